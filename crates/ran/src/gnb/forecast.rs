//! The MAC's forecast of its next pull from each UE, for limiters that fill RLC just in time.
//!
//! ```text
//!   demand    of a UE: the bytes in RLC, plus those in SDAP behind a limiter that follows the forecast
//!   slice     its share of the RBs, plus what slices with less demand leave
//!   UE        what the UEs ranked before it in its slice leave
//! ```
//!
//! The forecast of a UE is what it would get if its backlog were unlimited. Limiters receive it after each slot, and again
//! just before RLC is filled, because packets of other UEs arrive in between.
//!
//! If several UEs together have more than a slot carries, the first in rank takes the whole slot, and urgent packets that
//! other UEs have in RLC would wait for their turn. The forecast of the first UE therefore leaves room for the UEs that
//! follow closely, as long as this wastes almost nothing: one block for every UE means padding in every block.
//!
//! A slice gets its share over time, not in each slot: groups of RBs are indivisible, and so are packets for some
//! schedulers. In a slot larger than forecast, RLC holds too little. The forecast therefore grows by the padding of such a
//! slot and shrinks a little with every block; it settles where 2 % of the bytes are padding for this reason. Without
//! slices, and with schedulers that give the same in each slot, forecasts are exact.
//!
//! A scheduler of whole packets gives a narrow slice one packet and then nothing for many slots. Packets passed to RLC in
//! the meantime would only delay urgent ones. The forecast therefore places the slice's next pull at the time when its
//! balance is 0 again, and limits the bytes to half of what the slice may be ahead by; the rest is left for packets that
//! arrive before.

use super::Gnb;
use super::bearer::Bearer;
use super::ue::{Ue, index};
use crate::amc::{Direction, rbs_for};
use crate::mac::PER_PDU;
use crate::queue::Forecast;
use crate::sched::intra::{IntraSlice, Rank};
use crate::sched::{InterSlice, SliceConfig, TtiPreview};
use anabranch_element::time::Instant;
use std::cmp::Reverse;

/// The demand of every UE for the next slot of a direction. The value is kept between slots only to reuse its memory.
#[derive(Debug, Default)]
pub(super) struct Demands {
    /// Sorted by slice and rank.
    ues: Vec<Demand>,
    /// For each UE of the cell, its index in `ues` plus one; 0 if it is not listed.
    places: Vec<u32>,
    slices: Vec<SliceDemand>,
    /// RBs that would empty each slice; for slices whose turn comes later, only what is already in RLC.
    slice_rbs: Vec<u32>,
    /// Slices by balance, the highest first. Kept only to reuse its memory.
    by_balance: Vec<usize>,
    /// For each slice: the RBs of the slot for which it was computed, and the RBs that the slice may expect of them.
    expected: Vec<(u16, u16)>,
    /// Moving average of the share of RBs that carried nothing while packets waited in SDAP.
    waste: f32,
}

#[derive(Debug, Clone, Copy, Default)]
struct SliceDemand {
    /// The first UE in rank with packets in SDAP.
    first_held: Option<u32>,
    /// RBs that would empty the RLC buffers of the UEs ranked after it, up to the last one with urgent packets.
    room_rbs: u32,
    /// RBs that would empty all RLC buffers of the slice.
    rlc_rbs: u32,
    /// Pulls before the slice's turn comes.
    wait_pulls: u16,
}

#[derive(Debug, Clone, Copy)]
struct Demand {
    slice: u16,
    rank: Rank,
    ue: u32,
    /// RBs that would empty the UE, at most all RBs of the carrier.
    rbs: u16,
    /// The part of `rbs` for data in RLC.
    rlc_rbs: u16,
    /// RBs of the UEs ranked before it in its slice.
    before_rbs: u32,
    /// Whether packets wait in SDAP behind a limiter that follows the forecast; `urgent`: whether whole packets are in RLC
    /// behind such a limiter.
    held: bool,
    urgent: bool,
}

/// Upper bound of the announced number of pulls until a slice's turn; it exceeds any guard.
const MAX_WAIT_PULLS: u16 = 17;

/// Waste above which no room is left for urgent packets, and the weight of one slot in the moving average.
const MAX_WASTE: f32 = 0.004;
const WASTE_WEIGHT: f32 = 1.0 / 128.0;

impl Demands {
    /// Records the share of RBs wasted in a slot.
    pub(super) fn record_waste(&mut self, share: f32) {
        if self.slices.iter().any(|slice| slice.first_held.is_some()) {
            self.waste += WASTE_WEIGHT * (share - self.waste);
        }
    }

    /// Determines which slices wait for later slots. A slice that got whole packets ahead of its share, by more than its due
    /// of one slot, waits until its balance is 0, provided that the slices less far ahead use all `rbs` RBs. Its data outside
    /// RLC then takes nothing from the other slices.
    fn list_waits(&mut self, balances: &[i32], slices: &[SliceConfig], rbs: u16) {
        let Self { slices: sums, slice_rbs, by_balance, .. } = self;
        let balance = |slice: usize| balances.get(slice).copied().unwrap_or(0);
        let parts = |slice: usize| slices.get(slice).map_or(0, SliceConfig::share_parts);
        by_balance.clear();
        by_balance.extend((0..slice_rbs.len()).filter(|of| slice_rbs[*of] > 0));
        by_balance.sort_unstable_by_key(|of| Reverse(balance(*of)));
        let of_all: u64 = by_balance.iter().map(|of| parts(*of)).sum();
        let mut wanted = 0;
        for of in by_balance.iter().copied() {
            let owes = u64::from(balance(of).min(0).unsigned_abs()).saturating_mul(of_all);
            let pulls = owes.checked_div(u64::from(rbs).saturating_mul(parts(of))).unwrap_or(u64::MAX);
            // A slice with at least a fourth of the weight gets some RBs in nearly every slot.
            if wanted >= u32::from(rbs) && pulls > 0 && 4 * parts(of) < of_all {
                sums[of].wait_pulls = pulls.min(MAX_WAIT_PULLS.into()) as u16;
                slice_rbs[of] = sums[of].rlc_rbs;
            }
            wanted = wanted.saturating_add(slice_rbs[of]);
        }
    }
}

/// Bytes granted to a UE beyond the forecast for which RLC held no data.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Surplus {
    expected_bytes: u32,
    bytes: f32,
}

/// Acceptable share of granted bytes that are padding for this reason, and the weight of one block.
const MAX_PADDING: f32 = 0.02;
const SURPLUS_WEIGHT: f32 = 0.5;

impl Surplus {
    /// Records a block that was sent while packets waited in SDAP.
    pub(super) fn record(&mut self, block_bytes: u32, padding_bytes: u32) {
        let beyond = padding_bytes.min(block_bytes.saturating_sub(self.expected_bytes));
        self.bytes += SURPLUS_WEIGHT * (beyond as f32 - MAX_PADDING * block_bytes as f32);
        self.bytes = self.bytes.max(0.0);
    }

    /// Adds the recent shortfall to the forecast, at most `most` bytes. With `later`, the turn comes in a later slot, and
    /// nothing is expected of the next one.
    fn add_to(&mut self, next: &mut Forecast, most: u32, later: bool) {
        self.bytes = self.bytes.min(most.min(next.most_bytes) as f32);
        next.bytes = next.bytes.saturating_add(self.bytes as u32).min(next.most_bytes);
        self.expected_bytes = if later { 0 } else { next.bytes };
    }
}

impl Gnb {
    /// Sends an updated forecast to the limiters that are about to fill RLC.
    pub(super) fn announce(&mut self, now: Instant) {
        // The forecast of a single active UE does not change between slots.
        if !self.forecast || !self.ticking || self.active.len() < 2 {
            return;
        }
        let direction = Direction::Downlink;
        let follows =
            |ue: &Ue| ue.wake <= now && ue.direction_state(direction).sdap.waiting_for_limiters().0 > 0;
        if !self.active.iter().any(|n| self.ues.get(*n as usize).is_some_and(follows)) {
            return;
        }
        let Some(slot) = self.next_slot.checked_sub(1) else { return };
        self.list_demands(direction, slot, now);
        for place in 0..self.active.len() {
            let number = self.active[place];
            if self.ues.get(number as usize).is_some_and(follows)
                && let Some(next) = self.forecast(direction, number, slot)
                && let Some(ue) = self.ues.get_mut(number as usize)
            {
                ue.announce(direction, next, now);
            }
        }
    }

    /// Lists the demand of the UEs for the slot after `slot`, if a limiter or a trace needs it.
    pub(super) fn list_demands(&mut self, direction: Direction, slot: u64, at: Instant) {
        let next = self.pulls_after(direction, slot).next();
        let next_at = self.time_of(next.unwrap_or(slot));
        let rbs = next.and_then(|next| self.data_rbs(direction, next)).unwrap_or(0);
        let down = direction == Direction::Downlink;
        let Self { ues, active, amc, slices, scratch, links, .. } = self;
        let link = &links[index(direction)];
        let harq = &link.harq;
        let Demands { ues: listed, places, slices: sums, slice_rbs, expected, waste, .. } =
            &mut scratch.demands[index(direction)];
        listed.drain(..).for_each(|d| places[d.ue as usize] = 0);
        places.resize(ues.len(), 0);
        sums.clear();
        sums.resize(slices.len(), SliceDemand::default());
        slice_rbs.clear();
        slice_rbs.resize(slices.len(), 0);
        expected.clear();
        expected.resize(slices.len(), (0, 0));
        let asked = active.iter().any(|n| ues.get(*n as usize).is_some_and(|ue| ue.uses_reports(direction)));
        if !asked {
            return;
        }
        for number in active.iter() {
            let Some(ue) = ues.get_mut(*number as usize) else { continue };
            let Some(mcs) = ue.mcs(direction, amc, at) else { continue };
            // The UE gets no new data in that slot.
            if harq.is_due(*number, next_at) || ue.direction_state(direction).harq_waiting >= harq.processes()
            {
                continue;
            }
            let row = amc.full().row(mcs);
            let in_rlc = ue.air_bytes(direction, PER_PDU, at);
            let average = ue.direction_state(direction).average.at(slot);
            let bytes = match direction {
                Direction::Downlink => in_rlc.saturating_add(ue.held_bytes(average)),
                Direction::Uplink => ue.reported_bytes(at),
            };
            if bytes == 0 {
                continue;
            }
            let rbs_of =
                |bytes: u64| rbs_for(row, u32::try_from(bytes).unwrap_or(u32::MAX)).unwrap_or(amc.rbs());
            let intra = slices.get(usize::from(ue.slice)).map(|s| s.intra).unwrap_or_default();
            let rank = match active.len() {
                1 => Rank::default(),
                _ => intra.rank(&ue.metric(direction, slot + 1, row.last().copied().unwrap_or(0))),
            };
            let (rbs, rlc_rbs) = (rbs_of(bytes), rbs_of(in_rlc));
            // In the uplink no room is left for urgent packets.
            let (held, urgent) = (down && bytes > in_rlc, down && ue.has_urgent(direction));
            let (slice, ue) = (ue.slice, *number);
            listed.push(Demand { slice, rank, ue, rbs, rlc_rbs, before_rbs: 0, held, urgent });
        }
        listed.sort_unstable_by(|a, b| {
            a.slice.cmp(&b.slice).then_with(|| a.rank.compare(&b.rank)).then(a.ue.cmp(&b.ue))
        });
        let most_room = if *waste < MAX_WASTE { u32::from(amc.rbs()) / 2 } else { 0 };
        let mut behind = 0;
        for (place, demand) in (1..).zip(listed) {
            places[demand.ue as usize] = place;
            let slice = usize::from(demand.slice);
            let (Some(sum), Some(rbs)) = (sums.get_mut(slice), slice_rbs.get_mut(slice)) else { continue };
            demand.before_rbs = *rbs;
            *rbs += u32::from(demand.rbs);
            sum.rlc_rbs += u32::from(demand.rlc_rbs);
            if sum.first_held.is_some() {
                behind += u32::from(demand.rlc_rbs);
                if demand.urgent && behind <= most_room {
                    sum.room_rbs = behind;
                }
            } else if demand.held {
                (sum.first_held, behind) = (Some(demand.ue), 0);
            }
        }
        if down && slices.len() > 1 && link.scheduler.max_ahead_rbs().is_some() {
            scratch.demands[index(direction)].list_waits(link.scheduler.balances(), slices, rbs);
        }
    }

    /// When the MAC will next pull from a UE's downlink after `slot`, and how many bytes it would take at the current MCS.
    /// `None` for the uplink, because a UE has no such information.
    pub(super) fn forecast(&mut self, direction: Direction, number: u32, slot: u64) -> Option<Forecast> {
        if !self.forecast || direction == Direction::Uplink {
            return None;
        }
        if !self.ues.get(number as usize)?.direction_state(direction).uses_reports {
            return None;
        }
        let mut next = self.expectation(direction, number, slot)?;
        if next.bytes == 0 {
            return Some(next);
        }
        let slice = usize::from(self.ues.get(number as usize)?.slice);
        let demands = &self.scratch.demands[index(direction)];
        let wait = demands.slices.get(slice).map_or(0, |sum| sum.wait_pulls);
        if wait > 0 {
            let pulls = self.pulls_after(direction, slot).take(usize::from(wait) + 1);
            next.at = pulls.last().map_or(next.at, |later| self.time_of(later));
        }
        let now = self.time_of(slot);
        let max_ahead_rbs = self.links[index(direction)].scheduler.max_ahead_rbs();
        let ue = self.ues.get_mut(number as usize)?;
        let most = match max_ahead_rbs {
            Some(rbs) => {
                let mcs = ue.mcs(direction, &self.amc, now)?;
                self.amc.full().row(mcs).get(usize::from(rbs / 2)).copied()
            }
            None => None,
        };
        let most = most.unwrap_or(next.most_bytes);
        ue.direction_state_mut(direction).surplus.add_to(&mut next, most, wait > 0);
        Some(next)
    }

    /// Like [`forecast`](Self::forecast), for either direction and without regard to limiters: the MAC's own expectation.
    pub(super) fn expectation(&mut self, direction: Direction, number: u32, slot: u64) -> Option<Forecast> {
        let next = self.pulls_after(direction, slot).next()?;
        let (now, at) = (self.time_of(slot), self.time_of(next));
        let rbs = self.data_rbs(direction, next)?;
        let harq = &self.links[index(direction)].harq;
        let (rbs, due_again) = (rbs.saturating_sub(harq.rbs_due(at)), harq.is_due(number, at));
        let slice = usize::from(self.ues.get(number as usize)?.slice);
        let of_slice = self.rbs_of_slice(direction, slice, rbs);
        let mine = self.rbs_of_ue(direction, number, slice, of_slice);
        let Some(mcs) = self.ues.get_mut(number as usize)?.mcs(direction, &self.amc, now) else {
            return Some(Forecast { at, bytes: 0, most_bytes: 0 });
        };
        let row = self.amc.table(direction, next)?.row(mcs);
        let bytes = if due_again { 0 } else { row.get(usize::from(mine)).copied().unwrap_or(0) };
        Some(Forecast { at, bytes, most_bytes: row.last().copied().unwrap_or(0) })
    }

    /// The slots after `slot` in which a direction sends data, in order; limited to the next 1000 slots, which exceeds any
    /// pattern.
    fn pulls_after(&self, direction: Direction, slot: u64) -> impl Iterator<Item = u64> {
        (slot + 1..slot + 1000).filter(move |next| self.amc.table(direction, *next).is_some())
    }

    /// RBs out of `rbs` that a slice gets with an unlimited backlog.
    fn rbs_of_slice(&mut self, direction: Direction, slice: usize, rbs: u16) -> u16 {
        let Demands { slice_rbs, expected, .. } = &mut self.scratch.demands[index(direction)];
        let known = expected.get(slice).copied().unwrap_or_default();
        if known.0 == rbs {
            return known.1;
        }
        let next = TtiPreview { rbs, rbg: self.amc.rbg(), slices: &self.slices, demands: slice_rbs };
        let mine = self.links[index(direction)].scheduler.expect(slice, &next);
        if let Some(known) = expected.get_mut(slice) {
            *known = (rbs, mine);
        }
        mine
    }

    /// RBs out of its slice's `rbs` that a UE gets with an unlimited backlog.
    fn rbs_of_ue(&self, direction: Direction, number: u32, slice: usize, rbs: u16) -> u16 {
        let demands = &self.scratch.demands[index(direction)];
        let sum = demands.slices.get(slice).copied().unwrap_or_default();
        let place = demands.places.get(number as usize).copied().unwrap_or(0);
        let own = (place as usize).checked_sub(1).and_then(|place| demands.ues.get(place));
        // UEs ranked before it are served first. A UE that has just become active was served longest ago.
        let room = if sum.first_held == Some(number) { sum.room_rbs } else { 0 };
        let taken = own.map_or(0, |d| d.before_rbs) + room;
        u32::from(rbs).saturating_sub(taken) as u16
    }
}

impl Ue {
    /// Bytes in the downlink's SDAP that are passed to RLC before the next pull: all bytes behind a limiter that follows the
    /// forecast, at most `average` behind other limiters, and none where RLC cannot send new data.
    fn held_bytes(&self, average: f32) -> u64 {
        let sdap = &self.direction_state(Direction::Downlink).sdap;
        let (following, others) = sdap.waiting_for_limiters();
        let stalled = |b: &&Bearer| sdap.follows_forecast(b.id) && b.is_stalled(Direction::Downlink);
        let stalled = self.bearers.iter().filter(stalled).map(|b| sdap.backlog_bytes(b.id)).sum();
        following.saturating_sub(stalled).saturating_add(others.min(average as u64))
    }

    /// Whether RLC holds whole packets behind a limiter that follows the forecast.
    fn has_urgent(&self, direction: Direction) -> bool {
        let sdap = &self.direction_state(direction).sdap;
        self.bearers.iter().any(|b| sdap.follows_forecast(b.id) && b.has_whole_sdus(direction))
    }
}
