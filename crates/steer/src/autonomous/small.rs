//! Steering of flows by delay: small flows, calls, and acknowledgements (see [the law](super)).
//!
//! The nearest path may be small. Acknowledgements of 800 Mbit/s take 15 Mbit/s. A path of 3 Mbit/s drops most of
//! them if its queue holds only a packet or two, and no delay shows that it is full. A flow therefore moves only to
//! a path on which it fits.

use super::spill::Delays;
use super::{Input, LawState, MAX_SKEW_US, MOVE, PathSet, SMALL_ROUNDS};
use crate::PathId;
use anabranch_wire::tunnel::SECURE_OVERHEAD;

/// A small flow or a call moves if the gain is at least one part in this many of the new path's round trip, and at
/// least [`GAIN_US`].
const GAIN_PARTS: i64 = 4;
const GAIN_US: i64 = 5_000;
/// Wild loss in parts per million above which these flows move to a path with less.
const LOSS_PPM: u32 = 10_000;
/// A flow moves to a path only if its packets take at most this percentage of the capacity, and leaves one of which
/// they take [`CROWDED_PERCENT`].
const FITS_PERCENT: u64 = 50;
const CROWDED_PERCENT: u64 = 75;

/// Whether the packet's flow sends more than the path carries well.
pub(super) fn is_crowded(input: &Input<'_>, paths: PathSet, path: PathId) -> bool {
    uses(input, &Delays::of(input, paths.union(PathSet::single(path))), path, CROWDED_PERCENT)
}

/// Whether the packet's flow takes at least `percent` of the assumed capacity of a path.
fn uses(input: &Input<'_>, delays: &Delays, path: PathId, percent: u64) -> bool {
    let load = input.load(path);
    let least_bps = delays.unmeasured_bps(&load).unwrap_or(load.estimate_bps);
    // The tunnel's headers are a third of an acknowledgement.
    let bytes = u64::from(input.bytes.max(1));
    let own_bps = least_bps.max(load.seen_bps) * bytes / (bytes + SECURE_OVERHEAD as u64);
    least_bps > 0 && input.flow.fills(own_bps / 100 * percent)
}

impl LawState {
    /// The home of a flow that is steered by delay.
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
        // The estimates of a path are the more precise, the shorter its round trip is.
        let rtt_us = i64::from(input.live.get(best).rtt_us);
        if gain > GAIN_US.max(rtt_us / GAIN_PARTS) { best } else { home }
    }
}
