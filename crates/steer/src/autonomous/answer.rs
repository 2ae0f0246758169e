//! How a flow's sender answers the loss of its home, by how much it sends.
//!
//! Nothing in a packet says so. But a sender that takes each loss for congestion has, whatever the path, a window of
//!
//! ```text
//!   √(3 / 2p)  packets on average, p = loss      (Mathis, Semke, Mahdavi, Ott, *The macroscopic behavior of the TCP
//!                                                congestion avoidance algorithm*, CCR 27(3), 1997; losses in runs of n
//!                                                count once: √n times as much)
//! ```
//!
//! So a flow that has three times as many packets in each round trip does not answer loss (BBR): it is as well off as its
//! home is large. One that has less is held back, by loss or by its application; elsewhere it may have more. One
//! that nothing acknowledges (a stream over UDP) is harmed by each loss, however much it sends.
//!
//! What a host's flow did is remembered, for its next flow has the same sender: on a path that is known to lose, one that answers
//! loss is expected to have that window, and one that does not what the path carries.

use super::super::Input;
use super::{SETTLE_PERIODS, WILD_PPM};
use crate::PathId;
use crate::view::{BULK_BYTES, PERIOD_MS};

/// So many times the window that loss leaves a sender that answers it.
const TOLERANT_PARTS: u64 = 3;
/// The window a sender begins with, which says nothing of how it answers loss.
const INITIAL_PACKETS: u64 = 10;
/// Packets by which the window of CUBIC (RFC 9438: 0.4 t³) is larger, on average over the ten seconds after a loss.
const REGROWTH_PACKETS: u64 = 100;
/// A full packet, in bytes.
const FULL_BYTES: u64 = 1_400;

/// Hosts whose senders are remembered.
const HOSTS: usize = 8;

/// How a host's sender answers loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    SlowsDown,
    Ignores,
}

/// How the senders of the last hosts answered the loss of a home.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Senders {
    hosts: [Option<(u32, Answer)>; HOSTS],
    /// Whose place the next one takes.
    next: u8,
}

impl Senders {
    fn of(&self, remote: u64) -> Option<Answer> {
        let known = self.hosts.iter().flatten().find(|(host, _)| *host == key(remote));
        known.map(|(_, answer)| *answer)
    }

    fn remember(&mut self, remote: u64, answer: Answer) {
        let host = key(remote);
        let known = self.hosts.iter().position(|known| known.is_some_and(|(other, _)| other == host));
        let at = known.unwrap_or_else(|| {
            let oldest = usize::from(self.next);
            self.next = (self.next + 1) % HOSTS as u8;
            oldest
        });
        self.hosts[at] = Some((host, answer));
    }

    /// Whether the packet's host is known to send as if its home lost nothing.
    pub(super) fn ignores(&self, input: &Input<'_>) -> bool {
        self.of(input.remote) == Some(Answer::Ignores)
    }

    /// What the packet's flow may have on a path, by what that is estimated to carry (0: not known) and, where its host is known to
    /// slow down for it, by the path's loss; bit/s.
    pub(super) fn share_bps(&self, input: &Input<'_>, path: PathId) -> u64 {
        let (path_bps, loss_ppm) = (input.load(path).estimate_bps, lasting_ppm(input, path));
        if loss_ppm <= WILD_PPM || self.of(input.remote) != Some(Answer::SlowsDown) {
            return path_bps;
        }
        let window_bps = left_by_loss_bps(input, path);
        if path_bps == 0 { window_bps } else { path_bps.min(window_bps) }
    }

    /// A period of the flow ended: counts those in which its home's loss held it back, and remembers how its
    /// sender answered, once it had so long to grow.
    pub(super) fn judge(&mut self, input: &mut Input<'_>) {
        let Some(home) = input.flow.home() else { return };
        let loss_ppm = loss_ppm(input, home);
        let packets = packets_per_round(input.flow.bytes[0], input.live.get(home).rtt_us);
        let is_told = input.flow.since_moved_ms(input.now) >= u32::from(SETTLE_PERIODS) * PERIOD_MS as u32;
        let lasting_ppm = lasting_ppm(input, home);
        let flow = &mut *input.flow;
        let held_back = packets < tolerant_packets(loss_ppm) || flow.arrived[0].bytes == 0;
        flow.held_back = if loss_ppm > WILD_PPM && held_back { flow.held_back.saturating_add(1) } else { 0 };
        if lasting_ppm > WILD_PPM && is_told && flow.bytes[0] >= BULK_BYTES && flow.arrived[0].bytes > 0 {
            if !held_back {
                self.remember(input.remote, Answer::Ignores);
            } else if flow.held_back >= SETTLE_PERIODS {
                self.remember(input.remote, Answer::SlowsDown);
            }
        }
    }
}

/// What of a host's hash tells it from the others.
const fn key(remote: u64) -> u32 {
    (remote ^ (remote >> 32)) as u32
}

/// Whether a flow that answers loss may soon have more on `path` than at its home: its window goes with it, and grows at its
/// own pace.
pub(super) fn may_gain(input: &Input<'_>, home: PathId, path: PathId) -> bool {
    let [from, to] = [home, path].map(|path| u64::from(input.live.get(path).rtt_us));
    let bytes = input.flow.bytes[0].max(input.flow.bytes[1]);
    let window = packets_per_round(bytes, input.live.get(home).rtt_us);
    (window + REGROWTH_PACKETS) * from > window * to
}

/// What the loss of a path leaves one sender that answers it, in bit/s, however much the path carries.
pub(super) fn left_by_loss_bps(input: &Input<'_>, path: PathId) -> u64 {
    let window_bits = packets_by_loss(lasting_ppm(input, path), 1).max(1) * FULL_BYTES * 8;
    window_bits * 1_000_000 / u64::from(input.live.get(path).rtt_us.max(1))
}

/// Loss of a path that is no congestion, in parts per million.
fn lasting_ppm(input: &Input<'_>, path: PathId) -> u32 {
    input.load(path).wild_ppm.max(u32::from(input.live.get(path).steady_loss_percent) * 10_000)
}

/// Loss of a path in parts per million. What is known to be no congestion is known late where little is sent; all of it
/// says the same of what a sender makes of it.
fn loss_ppm(input: &Input<'_>, path: PathId) -> u32 {
    lasting_ppm(input, path).max(input.live.get(path).loss_ppm)
}

/// Full packets per round trip of a flow that sent so many bytes in a period.
fn packets_per_round(bytes: u32, rtt_us: u32) -> u64 {
    u64::from(bytes) * u64::from(rtt_us) / (PERIOD_MS * 1000 * FULL_BYTES)
}

/// So many times the packets per round trip that loss leaves a sender that answers it.
fn packets_by_loss(loss_ppm: u32, times: u64) -> u64 {
    (1_500_000 * times * times / u64::from(loss_ppm.max(1))).isqrt()
}

/// Packets per round trip that only a sender has that does not answer loss.
fn tolerant_packets(loss_ppm: u32) -> u64 {
    packets_by_loss(loss_ppm, TOLERANT_PARTS).max(INITIAL_PACKETS)
}
