//! The path of a packet whose home has a queue: spill and overflow (see [the law](super)).

use super::overflow::Overflow;
use super::{Exclusion, Input, LoadView, MAX_SKEW_US, PathSet, UNMEASURED_BPS, WILD_PPM};
use crate::PathId;
use anabranch_element::time::Duration;

/// Least queue of a home from which packets spill, microseconds.
const SPILL_US: u32 = 2_000;
/// And to a path that carries less than half of what the home does up to a queue of this part of its round trip, or half of
/// its drop level: the bursts of the home do not fit its queue, and one packet dropped there would end the sender's growth.
const SPILL_RTT_PARTS: u32 = 4;
/// No packet takes a path with less than one part in this many of the home's capacity. A loss there costs a sender
/// a tenth or more of its window.
const LITTLE_PART: u64 = 32;
/// If the far end does not restore order, packets spill only to a path with at least one part in this many of the
/// home's capacity.
const UNORDERED_SPILL_PART: u64 = 4;
/// And only to a path that is nearer than the home by at most this, without queues, in microseconds: on a path that is
/// nearer by more, every packet is out of order.
const UNORDERED_NEARER_US: i64 = 40_000;
/// Only packets of flows overflow that send at least one part in this many of what the home carries; a call beside
/// them does not.
const FILLS_PART: u64 = 8;
/// Before its first loss, a sender's window grows by 5 % per round trip (CUBIC), so it doubles in this number of
/// round trips. Packets overflow only if the window for both paths is reached within the first time, or within the second
/// if the path carries more than the home: alone, it would require nearly that window as well.
const DOUBLING_ROUNDS: u64 = 14;
const GROWN: [Duration; 2] = [Duration::from_millis(2_500), Duration::from_millis(5_200)];
/// Packets overflow to a path with this percentage of the home's capacity however slowly the window grows: those of a
/// lone flow, those of several flows.
const MUCH_LARGER_PERCENT: [u64; 2] = [150, 200];

/// The delays by which arrivals are compared: forward delays if all paths have one, otherwise half round trips.
pub(super) struct Delays {
    forward: bool,
    /// Whether trains have had results on any of the paths.
    measures: bool,
}

impl Delays {
    pub(super) fn of(input: &Input<'_>, paths: PathSet) -> Self {
        Self {
            forward: paths.iter().all(|path| input.load(path).base_us.is_some()),
            measures: paths.iter().any(|path| input.load(path).is_measured),
        }
    }

    /// Assumed capacity of a path if trains measured others but not this one, because its queue holds too few
    /// packets.
    pub(super) fn unmeasured_bps(&self, load: &LoadView) -> Option<u64> {
        let is_unmeasured = self.measures && load.estimate_bps == 0;
        is_unmeasured.then(|| load.seen_bps.max(UNMEASURED_BPS))
    }

    /// Delay without a queue, relative to what is common to all paths, microseconds.
    pub(super) fn base_us(&self, path: PathId, input: &Input<'_>) -> i64 {
        match input.load(path).base_us {
            Some(base) if self.forward => base,
            _ => i64::from(input.live.get(path).rtt_us / 2),
        }
    }

    pub(super) fn arrival_us(&self, path: PathId, input: &Input<'_>) -> i64 {
        self.base_us(path, input) + i64::from(input.load(path).queue_us)
    }

    pub(super) fn has_queue(&self, path: PathId, input: &Input<'_>) -> bool {
        input.load(path).queue_us >= SPILL_US.max(input.live.get(path).rtt_us / 16)
    }

    /// The capacity of a path that is too small for a home of `own_bps`, because a packet lost there costs more
    /// than the path adds: the capacity is almost nothing, or small with a queue that absorbs no burst.
    fn too_small_bps(&self, load: &LoadView, own_bps: u64) -> Option<u64> {
        match self.unmeasured_bps(load) {
            Some(bps) => (bps < own_bps / 2).then_some(bps),
            None => (load.estimate_bps > 0 && load.estimate_bps < own_bps / LITTLE_PART)
                .then_some(load.estimate_bps),
        }
    }

    /// The path of a packet whose flow has this home, and whether the packet overflows.
    pub(super) fn spill(
        &self,
        input: &Input<'_>,
        usable: PathSet,
        home: PathId,
        is_lone: bool,
        overflow: &Overflow,
    ) -> (PathId, bool) {
        if !self.has_queue(home, input) {
            return (home, false);
        }
        let at_home = self.arrival_us(home, input);
        let own = input.load(home);
        let overflows = overflow.begins(&own) && input.flow.fills(own.seen_bps / FILLS_PART);
        // Where the far end puts nothing in order, a packet that is dropped, or early, costs more than a small path carries. Elsewhere a
        // sender by datagrams (QUIC) sends again all that the far end does not wait for; TCP learns that it was only late.
        let pays = |path: PathId| {
            if overflow.is_never() {
                known_bps(&input.load(path)) >= carries_bps(&own) / UNORDERED_SPILL_PART
                    && self.base_us(home, input) - self.base_us(path, input) <= UNORDERED_NEARER_US
            } else {
                !input.datagram || (at_home - self.arrival_us(path, input)).abs() <= MAX_SKEW_US
            }
        };
        let free = |path: &PathId| {
            *path != home && pays(*path) && self.refuses(input, home, is_lone, overflows, *path).is_none()
        };
        match usable.iter().filter(free).min_by_key(|path| self.arrival_us(*path, input)) {
            Some(path) => (path, self.arrival_us(path, input) >= at_home),
            None => (home, false),
        }
    }

    /// Why a packet that meets a queue at its home does not take `path`. `is_lone`: there is one bulk flow.
    pub(super) fn refuses(
        &self,
        input: &Input<'_>,
        home: PathId,
        is_lone: bool,
        overflows: bool,
        path: PathId,
    ) -> Option<Exclusion> {
        let (own, load) = (input.load(home), input.load(path));
        let limit_ppm = WILD_PPM.max(own.wild_ppm);
        let whole = |us: i64| u32::try_from(us.max(0)).unwrap_or(u32::MAX);
        let further_us = self.base_us(path, input) - self.base_us(home, input);
        let later_us = self.arrival_us(path, input) - self.arrival_us(home, input);
        // With almost no capacity, late packets gain nothing.
        let own_bps = carries_bps(&own);
        let gains = load.estimate_bps == 0 || load.estimate_bps >= own_bps / 8;
        let queue_us = load.queue_us.max(load.modelled_us);
        let drop_us = if load.drop_us == u32::MAX { 0 } else { load.drop_us };
        let limit_us = SPILL_US.max(load.rtt_us / SPILL_RTT_PARTS).max(drop_us / 2);
        let is_small = load.estimate_bps > 0 && load.estimate_bps < own_bps / 2;
        if load.queue_us >= load.drop_us {
            Some(Exclusion::Dropping { queue_us: load.queue_us, drop_us: load.drop_us })
        } else if load.wild_ppm > limit_ppm {
            Some(Exclusion::RandomLoss { loss_ppm: load.wild_ppm, limit_ppm })
        } else if let Some(bps) = self.too_small_bps(&load, own_bps) {
            Some(Exclusion::TooSmall { bps, home_bps: own_bps })
        } else if further_us > MAX_SKEW_US {
            Some(Exclusion::TooFar { later_us: whole(further_us), limit_us: whole(MAX_SKEW_US) })
        } else if later_us < 0 && is_small && queue_us >= limit_us {
            Some(Exclusion::HasQueue { queue_us, limit_us })
        } else if later_us >= 0
            && !(overflows
                && gains
                && is_emptier(&load, &own)
                && grows_soon(&load, &own, is_lone, further_us))
        {
            Some(Exclusion::Later { later_us: whole(later_us) })
        } else {
            None
        }
    }
}

/// The estimate of a path, or the highest rate seen if there is none.
fn known_bps(load: &LoadView) -> u64 {
    if load.estimate_bps > 0 { load.estimate_bps } else { load.seen_bps }
}

/// The estimate of a path, or the highest rate seen if that is more.
pub(super) fn carries_bps(load: &LoadView) -> u64 {
    load.estimate_bps.max(load.seen_bps)
}

/// The usable queue: up to the drop level, or one round trip if no drop was seen.
fn fits_us(load: &LoadView) -> u64 {
    match load.drop_us {
        u32::MAX => u64::from(load.rtt_us.max(2 * SPILL_US)),
        drop => u64::from(drop),
    }
}

/// Whether the path uses less of its own queue than the home does, so that a burst is spread by what fits.
fn is_emptier(load: &LoadView, home: &LoadView) -> bool {
    u64::from(load.modelled_us) * fits_us(home) < u64::from(home.queue_us) * fits_us(load)
}

/// Whether a window that fills the home and its queue grows soon enough to one that fills both paths, where packets
/// of this path arrive later by `further_us`.
fn grows_soon(load: &LoadView, home: &LoadView, is_lone: bool, further_us: i64) -> bool {
    let (own_bps, path_bps) = (carries_bps(home), carries_bps(load));
    if path_bps * 100 >= own_bps * MUCH_LARGER_PERCENT[usize::from(!is_lone)] {
        return true;
    }
    let round_us = u64::from(home.rtt_us) + further_us.max(0).cast_unsigned();
    let both = u128::from(own_bps + path_bps) * u128::from(round_us);
    let alone = u128::from(own_bps) * u128::from(u64::from(home.rtt_us) + fits_us(home));
    // Four times the logarithm of a number with eight binary places.
    let times = (both * 256 / alone.max(1)).clamp(256, 1 << 24);
    let doublings_4 = u64::from(times.pow(4).ilog2() - 32);
    let limit = GROWN[usize::from(path_bps > own_bps)];
    round_us * DOUBLING_ROUNDS * doublings_4 / 4 <= limit.as_micros() as u64
}
