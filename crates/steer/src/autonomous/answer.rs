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

use super::super::Input;
use crate::PathId;
use crate::view::PERIOD_MS;

/// So many times the window that loss leaves a sender that answers it.
const TOLERANT_PARTS: u64 = 3;
/// The window a sender begins with, which says nothing of how it answers loss.
const INITIAL_PACKETS: u64 = 10;
/// Packets by which the window of CUBIC (RFC 9438: 0.4 t³) is larger, on average over the ten seconds after a loss.
const REGROWTH_PACKETS: u64 = 100;
/// A full packet, in bytes.
const FULL_BYTES: u64 = 1_400;

/// A period of the flow ended: counts those in which its home's loss, if above `wild_ppm`, held it back.
pub(super) fn judge(input: &mut Input<'_>, wild_ppm: u32) {
    let Some(home) = input.flow.home() else { return };
    let loss_ppm = loss_ppm(input, home);
    let packets = packets_per_round(input.flow.bytes[0], input.live.get(home).rtt_us);
    let flow = &mut *input.flow;
    let held_back = packets < tolerant_packets(loss_ppm) || flow.arrived[0].bytes == 0;
    flow.held_back = if loss_ppm > wild_ppm && held_back { flow.held_back.saturating_add(1) } else { 0 };
}

/// Whether a flow that answers loss may soon have more on `path` than at its home: its window goes with it, and grows at its
/// own pace.
pub(super) fn may_gain(input: &Input<'_>, home: PathId, path: PathId) -> bool {
    let [from, to] = [home, path].map(|path| u64::from(input.live.get(path).rtt_us));
    let bytes = input.flow.bytes[0].max(input.flow.bytes[1]);
    let window = packets_per_round(bytes, input.live.get(home).rtt_us);
    (window + REGROWTH_PACKETS) * from > window * to
}

/// Loss of a path in parts per million. What is known to be no congestion is known late where little is sent; all of it
/// says the same of what a sender makes of it.
fn loss_ppm(input: &Input<'_>, path: PathId) -> u32 {
    let state = input.live.get(path);
    input.load(path).wild_ppm.max(u32::from(state.steady_loss_percent) * 10_000).max(state.loss_ppm)
}

/// Full packets per round trip of a flow that sent so many bytes in a period.
fn packets_per_round(bytes: u32, rtt_us: u32) -> u64 {
    u64::from(bytes) * u64::from(rtt_us) / (PERIOD_MS * 1000 * FULL_BYTES)
}

/// Packets per round trip that only a sender has that does not answer loss.
fn tolerant_packets(loss_ppm: u32) -> u64 {
    let square = 1_500_000 * TOLERANT_PARTS * TOLERANT_PARTS / u64::from(loss_ppm.max(1));
    square.isqrt().max(INITIAL_PACKETS)
}
