//! Where flows go that are steered by delay: small ones, calls, and acknowledgements (see [the law](super)).
//!
//! The nearest path may be a small one. Acknowledgements of 800 Mbit/s are 15 Mbit/s, and a path of three drops most of them
//! where its queue holds a packet or two: no delay tells that it is full. So a flow goes only where it fits.

use super::spill::Delays;
use super::{Input, Lane, MAX_SKEW_US, MOVE, PathSet, SMALL_ROUNDS};
use crate::PathId;
use anabranch_wire::tunnel::SECURE_OVERHEAD;

/// A small flow or a call changes its path for a gain of this part of the new path's round trip, and this at least.
const GAIN_PARTS: i64 = 4;
const GAIN_US: i64 = 5_000;
/// Loss without congestion, in parts per million, above which they go where there is less.
const LOSS_PPM: u32 = 10_000;
/// A flow goes to a path of whose capacity its packets are so much at most, in percent, and leaves one of which they are so much.
const FITS_PERCENT: u64 = 50;
const CROWDED_PERCENT: u64 = 75;

/// Whether the packet's flow sends more than such a path carries well.
pub(super) fn is_crowded(input: &Input<'_>, paths: PathSet, path: PathId) -> bool {
    uses(input, &Delays::of(input, paths.union(PathSet::single(path))), path, CROWDED_PERCENT)
}

/// Whether the packet's flow sends so much, in percent, of what a path is taken to carry.
fn uses(input: &Input<'_>, delays: &Delays, path: PathId, percent: u64) -> bool {
    let load = input.load(path);
    let least_bps = delays.unmeasured_bps(&load).unwrap_or(load.estimate_bps);
    // Of an acknowledgement the tunnel's headers are a third.
    let bytes = u64::from(input.bytes.max(1));
    let own_bps = least_bps.max(load.seen_bps) * bytes / (bytes + SECURE_OVERHEAD as u64);
    least_bps > 0 && input.flow.fills(own_bps / 100 * percent)
}

impl Lane {
    /// Where a flow goes that is steered by delay.
    pub(super) fn rehome_small(&self, input: &Input<'_>, others: PathSet, home: PathId) -> PathId {
        let delays = Delays::of(input, others.union(PathSet::single(home)));
        let is_crowded = uses(input, &delays, home, CROWDED_PERCENT);
        let waits = input.flow.is_large() && input.now < self.move_at;
        let rounds_ms = input.live.get(home).rtt_us.saturating_mul(SMALL_ROUNDS) / 1000;
        let least_ms = rounds_ms.max(MOVE.as_millis() as u32);
        if !is_crowded && (waits || input.flow.since_moved_ms(input.now) < least_ms) {
            return home;
        }
        let clean = |path: PathId| input.load(path).wild_ppm <= LOSS_PPM;
        let serves = |path: &PathId| clean(*path) && !uses(input, &delays, *path, FITS_PERCENT);
        let harms = !clean(home) || is_crowded;
        let leaves = harms && others.iter().any(|path| serves(&path));
        let fits = |path: &PathId| serves(path) || harms && !leaves;
        let Some(best) = others.iter().filter(fits).min_by_key(|path| delays.arrival_us(*path, input)) else {
            return home;
        };
        let further_us = delays.base_us(best, input) - delays.base_us(home, input);
        if leaves && further_us <= MAX_SKEW_US {
            return best;
        }
        let gain = delays.arrival_us(home, input) - delays.arrival_us(best, input);
        // Estimates of a path are as good as its round trip is short.
        let rtt_us = i64::from(input.live.get(best).rtt_us);
        if gain > GAIN_US.max(rtt_us / GAIN_PARTS) { best } else { home }
    }
}
