//! Protection: repair packets for the packets on a path that loses some without congestion, sent by the same path
//! (`atsss::coding`, docs/atsss-coded.md).
//!
//! A sender that takes each loss for congestion has a window of √(3 / 2p) packets on such a path, whatever the path carries
//! ([`answer`](super::answer)). If the far end restores the lost packets, the sender sees no loss, and the path
//! counts as one without loss for the law.
//!
//! - *Only hosts whose sender is known to slow down.* Others lose nothing by the loss, but would pay for the repairs.
//! - *Congestion stays visible* (RFC 9265 §3). A packet that meets a long queue is not protected, because the queue may be
//!   about to overflow. Repairs thus mostly use capacity that nothing else does.
//! - *Overhead.* With a loss of p, a repair packet follows every 1 / (6 % + 4 p) packets. As each covers the last
//!   [`WINDOW`], some five of them cover each packet. Fewer repairs restore as much, but later.

use super::super::coded::Coded;
use super::{LoadView, WILD_PPM};
use crate::MAX_PATHS;

/// Largest wild loss, in parts per million, for which repairs are sent. Above, they cost more than they bring, and the path
/// is left for its steady loss.
const MOST_PPM: u32 = 30_000;
/// Repairs in percent of the protected bytes: a constant part, and a multiple of the loss.
const BASE_PERCENT: u32 = 6;
const LOSS_FACTOR: u32 = 4;
/// Packets that one repair covers.
const WINDOW: u8 = 64;
/// A packet is protected if it meets a queue below the largest of this, half of the least round trip, and three quarters of
/// the drop level, microseconds.
const SHORT_QUEUE_US: u32 = 2_000;
/// Least and greatest time for which packets behind a lost one are held, milliseconds, before it is rounded up to a power of
/// two; in between, three quarters of a round trip.
const WAIT_MS: (u32, u32) = (12, 128);

/// Whether packets are protected on a path with this wild loss, in parts per million.
#[must_use]
pub const fn is_protected(wild_ppm: u32) -> bool {
    wild_ppm > WILD_PPM && wild_ppm <= MOST_PPM
}

/// Whether repairs restore the loss of a path with this model.
pub(super) fn covers(load: &LoadView) -> bool {
    is_protected(load.wild_ppm)
}

/// The path models for a flow whose lost packets are restored.
pub(super) fn restored(loads: &[LoadView]) -> [LoadView; MAX_PATHS] {
    let mut restored = [LoadView::UNKNOWN; MAX_PATHS];
    for (to, load) in restored.iter_mut().zip(loads) {
        *to = *load;
        if covers(load) {
            (to.wild_ppm, to.restored_ppm) = (0, load.wild_ppm);
        }
    }
    restored
}

/// The repairs for a packet that takes a path with this model now.
pub(super) fn of(load: &LoadView) -> Option<Coded> {
    if !covers(load) {
        return None;
    }
    let drop_us = if load.drop_us == u32::MAX { 0 } else { load.drop_us };
    let limit_us = SHORT_QUEUE_US.max(load.rtt_us / 2).max(drop_us / 4 * 3);
    if load.queue_us >= limit_us {
        return None;
    }
    let percent = BASE_PERCENT + LOSS_FACTOR * load.wild_ppm / 10_000;
    // The far end uses the newest value for all flows, and a change forgets the window: few different values.
    let wait_ms = (load.rtt_us / 4_000 * 3).clamp(WAIT_MS.0, WAIT_MS.1).next_power_of_two();
    Some(Coded::new(percent as u8, WINDOW, wait_ms as u16))
}
