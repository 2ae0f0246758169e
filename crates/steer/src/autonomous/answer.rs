//! How the sender of a flow responds to the loss of the flow's home, judged by the amount that it sends.
//!
//! Packets do not reveal the sender's congestion control. But a sender that takes each loss for congestion has, on
//! any path, a window of
//!
//! ```text
//!   √(3 / 2p)  packets on average, p = loss      (Mathis, Semke, Mahdavi, Ott, *The macroscopic behavior of the TCP
//!                                                congestion avoidance algorithm*, CCR 27(3), 1997; losses in runs of n
//!                                                count once: √n times as much)
//! ```
//!
//! A flow with at least three times as many packets per round trip therefore ignores loss (BBR): its rate depends
//! only on the capacity of its home. A flow with less is held back, by loss or by its application, and may have
//! more elsewhere. A flow that nothing acknowledges (a stream over UDP) is harmed by each loss, however much it
//! sends.
//!
//! The response is remembered per host, because the host's next flow has the same sender. On a path with known
//! loss, a sender that slows down is expected to have that window, and one that ignores loss the capacity of the
//! path.

use super::super::Input;
use super::{SETTLE_PERIODS, WILD_PPM};
use crate::PathId;
use crate::view::{BULK_BYTES, PERIOD_MS};

/// A flow ignores loss if its window is at least this multiple of the window that loss leaves a sender which slows
/// down.
const TOLERANT_PARTS: u64 = 3;
/// The initial window of senders. A window of this size is no evidence of the response to loss.
const INITIAL_PACKETS: u64 = 10;
/// Average growth of CUBIC's window over the ten seconds after a loss, packets (RFC 9438: 0.4 t³).
const REGROWTH_PACKETS: u64 = 100;
/// Size of a full packet, bytes.
const FULL_BYTES: u64 = 1_400;

/// Number of hosts whose senders are remembered.
const HOSTS: usize = 8;

/// A sender's response to loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LossResponse {
    SlowsDown,
    Ignores,
}

/// What is known of a host's senders.
#[derive(Debug, Clone, Copy)]
struct Host {
    key: u32,
    response: LossResponse,
    /// The sender slowed down on a path that had capacity left.
    by_loss: bool,
}

/// The responses of the senders of the last hosts.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Senders {
    hosts: [Option<Host>; HOSTS],
    /// Index of the next entry to be replaced.
    next: u8,
}

impl Senders {
    fn of(&self, remote: u64) -> Option<LossResponse> {
        self.host(remote).map(|host| host.response)
    }

    fn host(&self, remote: u64) -> Option<&Host> {
        self.hosts.iter().flatten().find(|host| host.key == key(remote))
    }

    fn remember(&mut self, remote: u64, response: LossResponse, by_loss: bool) {
        let key = key(remote);
        let known = self.hosts.iter().position(|known| known.is_some_and(|other| other.key == key));
        let at = known.unwrap_or_else(|| {
            let oldest = usize::from(self.next);
            self.next = (self.next + 1) % HOSTS as u8;
            oldest
        });
        let known = self.hosts[at].filter(|host| host.key == key && host.response == response);
        let by_loss = by_loss || known.is_some_and(|host| host.by_loss);
        self.hosts[at] = Some(Host { key, response, by_loss });
    }

    /// Remembers that the sender of a host slows down because of loss.
    pub(super) fn note_slowing(&mut self, remote: u64) {
        self.remember(remote, LossResponse::SlowsDown, true);
    }

    /// Whether the sender of a host is known to slow down because of loss, on a path that had capacity left.
    pub(super) fn slows_down(&self, remote: u64) -> bool {
        self.host(remote).is_some_and(|host| host.by_loss)
    }

    /// Whether the sender of the packet's host is known to ignore loss.
    pub(super) fn ignores(&self, input: &Input<'_>) -> bool {
        self.of(input.remote) == Some(LossResponse::Ignores)
    }

    /// The rate that the packet's flow may have on a path, in bit/s: the path's estimate (0: unknown), or less if
    /// its host is known to slow down because of the path's loss.
    pub(super) fn share_bps(&self, input: &Input<'_>, path: PathId) -> u64 {
        let (path_bps, loss_ppm) = (input.load(path).estimate_bps, lasting_ppm(input, path));
        if loss_ppm <= WILD_PPM || self.of(input.remote) != Some(LossResponse::SlowsDown) {
            return path_bps;
        }
        let window_bps = left_by_loss_bps(input, path);
        if path_bps == 0 { window_bps } else { path_bps.min(window_bps) }
    }

    /// Evaluates a completed period of the flow: counts consecutive periods in which the loss of its home held it
    /// back, and remembers the response of its sender after the flow has had enough time to grow.
    pub(super) fn evaluate(&mut self, input: &mut Input<'_>, has_room: bool) {
        let Some(home) = input.flow.home() else { return };
        let loss_ppm = loss_ppm(input, home);
        let packets = packets_per_round(input.flow.bytes[0], input.live.get(home).rtt_us);
        let is_settled = input.flow.since_moved_ms(input.now) >= u32::from(SETTLE_PERIODS) * PERIOD_MS as u32;
        let lasting_ppm = lasting_ppm(input, home);
        let flow = &mut *input.flow;
        let held_back = packets < tolerant_packets(loss_ppm) || flow.arrived[0].bytes == 0;
        flow.held_back = if loss_ppm > WILD_PPM && held_back { flow.held_back.saturating_add(1) } else { 0 };
        if lasting_ppm > WILD_PPM && is_settled && flow.bytes[0] >= BULK_BYTES && flow.arrived[0].bytes > 0 {
            if !held_back {
                self.remember(input.remote, LossResponse::Ignores, false);
            } else if flow.held_back >= SETTLE_PERIODS {
                self.remember(input.remote, LossResponse::SlowsDown, has_room);
            }
        }
    }
}

/// The part of a host's hash by which it is identified.
const fn key(remote: u64) -> u32 {
    (remote ^ (remote >> 32)) as u32
}

/// Whether a flow that responds to loss may soon have more on `path` than at its home. Its window moves with it and
/// grows independently of the path.
pub(super) fn may_gain(input: &Input<'_>, home: PathId, path: PathId) -> bool {
    let [from, to] = [home, path].map(|path| u64::from(input.live.get(path).rtt_us));
    let bytes = input.flow.bytes[0].max(input.flow.bytes[1]);
    let window = packets_per_round(bytes, input.live.get(home).rtt_us);
    (window + REGROWTH_PACKETS) * from > window * to
}

/// The rate that the loss of a path leaves a single sender that slows down, in bit/s, whatever the capacity of the
/// path.
pub(super) fn left_by_loss_bps(input: &Input<'_>, path: PathId) -> u64 {
    let window_bits = packets_by_loss(lasting_ppm(input, path), 1).max(1) * FULL_BYTES * 8;
    window_bits * 1_000_000 / u64::from(input.live.get(path).rtt_us.max(1))
}

/// Wild or steady loss of a path, whichever is larger, in parts per million; 0 if it is restored.
fn lasting_ppm(input: &Input<'_>, path: PathId) -> u32 {
    let load = input.load(path);
    if load.restored_ppm > 0 {
        return 0;
    }
    load.wild_ppm.max(u32::from(input.live.get(path).steady_loss_percent) * 10_000)
}

/// Loss of a path in parts per million, including loss that may be congestion: where little is sent, loss without
/// congestion is recognised late. For the sender's response, the kind of loss makes no difference.
fn loss_ppm(input: &Input<'_>, path: PathId) -> u32 {
    lasting_ppm(input, path).max(input.live.get(path).loss_ppm)
}

/// Full packets per round trip of a flow that sent `bytes` in a period.
fn packets_per_round(bytes: u32, rtt_us: u32) -> u64 {
    u64::from(bytes) * u64::from(rtt_us) / (PERIOD_MS * 1000 * FULL_BYTES)
}

/// `times` the packets per round trip that loss leaves a sender which slows down.
fn packets_by_loss(loss_ppm: u32, times: u64) -> u64 {
    (1_500_000 * times * times / u64::from(loss_ppm.max(1))).isqrt()
}

/// Packets per round trip from which on a sender is taken to ignore loss.
fn tolerant_packets(loss_ppm: u32) -> u64 {
    packets_by_loss(loss_ppm, TOLERANT_PARTS).max(INITIAL_PACKETS)
}
