//! What the MAC expects to pull from a UE next, for limiters that fill RLC just in time.
//!
//! ```text
//!   demand    of a UE: what RLC holds, and what waits in SDAP for a limiter that follows the forecast
//!   slice     its share of the RBs, and what slices of less demand leave
//!   UE        what those of its slice that are ranked before it leave
//! ```
//!
//! The forecast of a UE is what it would get if it had as much as it likes. It is told after each slot, and again before RLC
//! is filled, for others' packets come in between.
//!
//! Where several UEs have more than a slot carries, the first in rank takes it all, and packets that others have in
//! RLC, urgent as they are, would wait for their turn. So it leaves room for those that come soon after it, as long
//! as that wastes next to nothing: a block for every UE means padding in every block.
//!
//! A slice gets its share over time and not in each slot: groups of RBs are whole, and packets, if the scheduler looks at them.
//! A slot with more than was expected finds RLC short. So the forecast grows by what was padding then, and shrinks a
//! little by every block: it settles where 2 % of the bytes are lost that way. Without slices, and where the scheduler gives the
//! same in each slot, nothing comes that was not expected.
//!
//! A scheduler of whole packets gives a narrow slice one, and then nothing for many slots. What is let down meanwhile would
//! only be in the way of what is urgent. So the slice's next pull is said to come when it is even, and what is expected then is
//! at most half of what it may be ahead by: the rest is for what comes before.

use super::Gnb;
use super::bearer::Bearer;
use super::ue::{Ue, index};
use crate::amc::{Direction, rbs_for};
use crate::mac::PER_PDU;
use crate::queue::Forecast;
use crate::sched::intra::{IntraSlice, Rank};
use crate::sched::{InterSlice, Outlook, SliceConfig};
use anabranch_element::time::Instant;
use std::cmp::Reverse;

/// The demand of every UE for the next slot of a direction. Kept from one slot to the next for its memory only.
#[derive(Debug, Default)]
pub(super) struct Demands {
    /// By slice and rank.
    ues: Vec<Demand>,
    /// Of each UE of the cell, its place among them and one; 0 if it has none.
    places: Vec<u32>,
    slices: Vec<SliceDemand>,
    /// RBs with which each slice is empty; of those whose turn comes later, what is in RLC already.
    slice_rbs: Vec<u32>,
    /// Slices by what they are owed, the most first. Kept for its memory only.
    by_balance: Vec<usize>,
    /// RBs there are, and those of a slice of them that its UEs may expect.
    expected: Vec<(u16, u16)>,
    /// Share of the RBs that carried nothing while packets waited in SDAP, of late.
    waste: f32,
}

#[derive(Debug, Clone, Copy, Default)]
struct SliceDemand {
    /// The first in rank for which packets wait in SDAP.
    first_held: Option<u32>,
    /// RBs with which the RLC buffers behind it are empty, as far as the last urgent packet.
    room_rbs: u32,
    /// RBs with which all its RLC buffers are empty.
    rlc_rbs: u32,
    /// Pulls before its turn comes.
    wait_pulls: u16,
}

#[derive(Debug, Clone, Copy)]
struct Demand {
    slice: u16,
    rank: Rank,
    ue: u32,
    /// RBs with which it is empty; all there are at most.
    rbs: u16,
    /// Those of what is in RLC.
    rlc_rbs: u16,
    /// RBs of the UEs ranked before it in its slice.
    before_rbs: u32,
    /// Whether packets of it wait in SDAP for a limiter that follows the forecast, and whole ones lie in RLC.
    held: bool,
    urgent: bool,
}

/// Pulls after which a slice that is ahead is told its turn comes, at most: longer than any guard.
const MOST_WAIT_PULLS: u16 = 17;

/// Waste above which no room is left for urgent packets, and the weight of a slot in its average.
const MAX_WASTE: f32 = 0.004;
const WASTE_WEIGHT: f32 = 1.0 / 128.0;

impl Demands {
    /// A slot wasted this share of its RBs.
    pub(super) fn note_waste(&mut self, share: f32) {
        if self.slices.iter().any(|slice| slice.first_held.is_some()) {
            self.waste += WASTE_WEIGHT * (share - self.waste);
        }
    }

    /// Who got whole packets, ahead of its share, by more than it is due in a slot waits until it is even, as long as those that are
    /// less ahead want all `rbs` RBs; what of it is not in RLC takes nothing from them.
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
            // One of a fourth or more gets some in nearly every slot.
            if wanted >= u32::from(rbs) && pulls > 0 && 4 * parts(of) < of_all {
                sums[of].wait_pulls = pulls.min(MOST_WAIT_PULLS.into()) as u16;
                slice_rbs[of] = sums[of].rlc_rbs;
            }
            wanted = wanted.saturating_add(slice_rbs[of]);
        }
    }
}

/// What a UE is granted beyond what was expected, and has nothing in RLC for.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Surplus {
    expected_bytes: u32,
    bytes: f32,
}

/// Share of the bytes granted that may be padding for that reason, and the weight of a block.
const MAX_PADDING: f32 = 0.02;
const SURPLUS_WEIGHT: f32 = 0.5;

impl Surplus {
    /// A block was sent while packets waited in SDAP.
    pub(super) fn note(&mut self, block_bytes: u32, padding_bytes: u32) {
        let beyond = padding_bytes.min(block_bytes.saturating_sub(self.expected_bytes));
        self.bytes += SURPLUS_WEIGHT * (beyond as f32 - MAX_PADDING * block_bytes as f32);
        self.bytes = self.bytes.max(0.0);
    }

    /// Adds what has been too little of late, `most` bytes at most. Nothing is expected of the next slot if the turn comes later.
    fn add_to(&mut self, next: &mut Forecast, most: u32, later: bool) {
        self.bytes = self.bytes.min(most.min(next.most_bytes) as f32);
        next.bytes = next.bytes.saturating_add(self.bytes as u32).min(next.most_bytes);
        self.expected_bytes = if later { 0 } else { next.bytes };
    }
}

impl Gnb {
    /// Tells the limiters that are about to fill RLC what has changed since the slot before.
    pub(super) fn announce(&mut self, now: Instant) {
        // What one UE gets depends on nobody else.
        if !self.forecast || !self.ticking || self.active.len() < 2 {
            return;
        }
        let direction = Direction::Downlink;
        let follows = |ue: &Ue| ue.wake <= now && ue.look(direction).sdap.held_bytes().0 > 0;
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

    /// Lists what the UEs will have to send in the slot after `slot`, if a limiter or a trace asks.
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
        let asked = active.iter().any(|n| ues.get(*n as usize).is_some_and(|ue| ue.listens(direction)));
        if !asked {
            return;
        }
        for number in active.iter() {
            let Some(ue) = ues.get_mut(*number as usize) else { continue };
            let Some(mcs) = ue.mcs(direction, amc, at) else { continue };
            // It gets nothing new then.
            if harq.is_due(*number, next_at) || ue.look(direction).harq_waiting >= harq.processes() {
                continue;
            }
            let row = amc.full().row(mcs);
            let in_rlc = ue.air_bytes(direction, PER_PDU, at);
            let average = ue.look(direction).average.at(slot);
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
            // In the uplink nobody leaves room for what is urgent.
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
        if down && slices.len() > 1 && link.scheduler.most_ahead().is_some() {
            scratch.demands[index(direction)].list_waits(link.scheduler.balances(), slices, rbs);
        }
    }

    /// When the MAC will pull from a UE's downlink after `slot`, and how many bytes it would take then, at the MCS now in
    /// force. A UE does not know this of its uplink.
    pub(super) fn forecast(&mut self, direction: Direction, number: u32, slot: u64) -> Option<Forecast> {
        if !self.forecast || direction == Direction::Uplink {
            return None;
        }
        if !self.ues.get(number as usize)?.look(direction).listens {
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
        let most_ahead = self.links[index(direction)].scheduler.most_ahead();
        let ue = self.ues.get_mut(number as usize)?;
        let most = match most_ahead {
            Some(rbs) => {
                let mcs = ue.mcs(direction, &self.amc, now)?;
                self.amc.full().row(mcs).get(usize::from(rbs / 2)).copied()
            }
            None => None,
        };
        let most = most.unwrap_or(next.most_bytes);
        ue.side(direction).surplus.add_to(&mut next, most, wait > 0);
        Some(next)
    }

    /// The same of either direction, whether a limiter listens or not: what the MAC itself knows.
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

    /// The slots after this one in which a direction sends data, in order; none that is further away than any pattern is long.
    fn pulls_after(&self, direction: Direction, slot: u64) -> impl Iterator<Item = u64> {
        (slot + 1..slot + 1000).filter(move |next| self.amc.table(direction, *next).is_some())
    }

    /// RBs of `rbs` that a slice gets if it has as much to send as it likes.
    fn rbs_of_slice(&mut self, direction: Direction, slice: usize, rbs: u16) -> u16 {
        let Demands { slice_rbs, expected, .. } = &mut self.scratch.demands[index(direction)];
        let known = expected.get(slice).copied().unwrap_or_default();
        if known.0 == rbs {
            return known.1;
        }
        let next = Outlook { rbs, rbg: self.amc.rbg(), slices: &self.slices, demands: slice_rbs };
        let mine = self.links[index(direction)].scheduler.expect(slice, &next);
        if let Some(known) = expected.get_mut(slice) {
            *known = (rbs, mine);
        }
        mine
    }

    /// RBs of its slice's `rbs` that a UE gets if it has as much to send as it likes.
    fn rbs_of_ue(&self, direction: Direction, number: u32, slice: usize, rbs: u16) -> u16 {
        let demands = &self.scratch.demands[index(direction)];
        let sum = demands.slices.get(slice).copied().unwrap_or_default();
        let place = demands.places.get(number as usize).copied().unwrap_or(0);
        let own = (place as usize).checked_sub(1).and_then(|place| demands.ues.get(place));
        // Those that are ranked before it come first. Who has just come was served longest ago.
        let room = if sum.first_held == Some(number) { sum.room_rbs } else { 0 };
        let taken = own.map_or(0, |d| d.before_rbs) + room;
        u32::from(rbs).saturating_sub(taken) as u16
    }
}

impl Ue {
    /// Bytes that wait in the downlink's SDAP and go down before the next pull: all of them behind a limiter that follows the forecast,
    /// `average` at most behind another, none where RLC cannot send anything new.
    fn held_bytes(&self, average: f32) -> u64 {
        let sdap = &self.look(Direction::Downlink).sdap;
        let (following, others) = sdap.held_bytes();
        let stalled = |b: &&Bearer| sdap.follows_forecast(b.id) && b.is_stalled(Direction::Downlink);
        let stalled = self.bearers.iter().filter(stalled).map(|b| sdap.backlog_bytes(b.id)).sum();
        following.saturating_sub(stalled).saturating_add(others.min(average as u64))
    }

    /// Whether whole packets lie in RLC behind a limiter that follows the forecast.
    fn has_urgent(&self, direction: Direction) -> bool {
        let sdap = &self.look(direction).sdap;
        self.bearers.iter().any(|b| sdap.follows_forecast(b.id) && b.has_whole_sdus(direction))
    }
}
