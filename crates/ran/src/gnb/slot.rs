//! One slot of one direction: retransmissions, scheduling, transport blocks, and the report to the limiters.

use super::bearer::Delivered;
use super::forecast::Demands;
use super::stats::{GnbEvent, SlotStats, UeSlotStats};
use super::ue::{DirectionState, Ue, index};
use super::{Flight, Gnb};
use crate::amc::Direction;
use crate::mac::harq::Retx;
use crate::mac::{Outcome, PER_PDU, TransportBlock};
use crate::queue::TtiReport;
use crate::sched::intra::{IntraSlice, Rank};
use crate::sched::{Allocation, Backlog, InterSlice, Tti};
use crate::sdap::DrbId;
use anabranch_element::time::{Instant, nanos};

/// Minimum packet size used to limit how many packets of a queue are listed: at least one block of such packets.
const SMALL_BYTES: u32 = 40;

/// Packets that were delivered and are sent out a little later.
pub(super) type DeferredPackets = Vec<(Direction, DrbId, Delivered)>;

/// Temporary data of a slot, kept between slots only to reuse its memory.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    pub(super) delivered: DeferredPackets,
    ranked: Vec<Ranked>,
    queues: Vec<Backlog>,
    sizes: Vec<u32>,
    allocation: Allocation,
    /// Demands by direction.
    pub(super) demands: [Demands; 2],
}

#[derive(Debug, Clone, Copy)]
struct Ranked {
    slice: u16,
    rank: Rank,
    ue: u32,
    mcs: u8,
    bytes: u64,
}

impl Gnb {
    /// Runs a slot of a direction if the slot carries that direction.
    pub(super) fn run_slot(&mut self, direction: Direction, slot: u64, at: Instant) {
        self.count_slots(direction, slot);
        let Some(rbs) = self.data_rbs(direction, slot) else {
            // Backlogs are recorded in every slot.
            self.list_backlogs(direction, slot, at, false);
            return;
        };
        self.links[index(direction)].counted = slot + 1;
        let retx_rbs = self.retransmit(direction, slot, at, rbs);
        self.list_backlogs(direction, slot, at, true);
        let before = self.links[index(direction)].stats;
        let used_rbs = self.schedule(direction, slot, at, rbs - retx_rbs);
        let stats = &mut self.links[index(direction)].stats;
        let (bytes, padding) =
            (stats.block_bytes - before.block_bytes, stats.padding_bytes - before.padding_bytes);
        let useful = f32::from(used_rbs) * (1.0 - padding as f32 / bytes.max(1) as f32);
        self.scratch.demands[index(direction)]
            .record_waste(1.0 - useful / f32::from((rbs - retx_rbs).max(1)));
        stats.slots += 1;
        stats.rbs += u64::from(rbs);
        stats.used_rbs += u64::from(used_rbs);
        stats.retx_rbs += u64::from(retx_rbs);
        let unused_rbs = rbs - retx_rbs - used_rbs;
        stats.unused_rbs += u64::from(unused_rbs);
        self.report(direction, slot, at);
        if self.telemetry.slots {
            let of_ue = |number: &u32| self.ues.get(*number as usize).map(|ue| ue.buffer_bytes(direction));
            let buffer_bytes = self.active.iter().filter_map(of_ue).sum();
            let slot = SlotStats { direction, at, rbs, used_rbs, retx_rbs, unused_rbs, buffer_bytes };
            self.event(GnbEvent::Slot(slot));
        }
    }

    /// Sends the due retransmissions for which there are RBs. Returns the RBs used.
    fn retransmit(&mut self, direction: Direction, slot: u64, at: Instant, rbs: u16) -> u16 {
        let full = self.amc.table(direction, slot).is_some_and(|table| std::ptr::eq(table, self.amc.full()));
        let mut taken = 0;
        while let Some(retx) = self.links[index(direction)].harq.take_due(at) {
            let Some(ue) = self.ues.get_mut(retx.ue as usize) else { continue };
            let state = ue.direction_state_mut(direction);
            let fits = retx.block.rbs <= rbs - taken && (full || retx.block.special);
            // At most one block per UE and slot.
            if !fits || state.retx_at > slot {
                self.links[index(direction)].harq.put_back(retx);
                break;
            }
            state.retx_at = slot + 1;
            state.harq_waiting = state.harq_waiting.saturating_sub(1);
            taken += retx.block.rbs;
            let Retx { ue, block, .. } = retx;
            self.send(direction, ue, block, at);
        }
        taken
    }

    /// Lists the UEs that may send new data, by slice and rank. Without `may`, only records the backlogs.
    fn list_backlogs(&mut self, direction: Direction, slot: u64, at: Instant, may: bool) {
        let Self { ues, active, amc, links, scratch, slices, .. } = self;
        let link = &links[index(direction)];
        let Scratch { ranked, queues, sizes, .. } = scratch;
        ranked.clear();
        queues.clear();
        sizes.clear();
        for number in active.iter() {
            let Some(ue) = ues.get_mut(*number as usize) else { continue };
            let bytes = match direction {
                Direction::Downlink => ue.air_bytes(direction, PER_PDU, at),
                Direction::Uplink => {
                    let reported = ue.reported_bytes(at);
                    ue.grants.known_backlog(slot, reported)
                }
            };
            if bytes == 0 || !may {
                continue;
            }
            let state = ue.direction_state(direction);
            if state.retx_at > slot || state.harq_waiting >= link.harq.processes() {
                continue;
            }
            let Some(mcs) = ue.mcs(direction, amc, at) else { continue };
            let mut rank = Rank::default();
            // A single UE needs no rank.
            if active.len() > 1 {
                let all = amc.table(direction, slot).map_or(&[][..], |table| table.row(mcs));
                let metric = ue.metric(direction, slot, all.last().copied().unwrap_or(0));
                let intra = slices.get(usize::from(ue.slice)).map(|s| s.intra).unwrap_or_default();
                rank = intra.rank(&metric);
            }
            ranked.push(Ranked { slice: ue.slice, rank, ue: *number, mcs, bytes });
        }
        if ranked.is_empty() {
            // Mostly in the uplink.
            return;
        }
        ranked.sort_unstable_by(|a, b| {
            a.slice.cmp(&b.slice).then_with(|| a.rank.compare(&b.rank)).then(a.ue.cmp(&b.ue))
        });
        let wanted = link.scheduler.needs_packet_sizes();
        for Ranked { slice, ue: number, mcs, bytes, .. } in ranked.iter().copied() {
            let start = sizes.len();
            if let (true, Some(ue)) = (wanted, ues.get(number as usize)) {
                let all = amc.full().row(mcs).last().copied().unwrap_or(0);
                let most = (all / SMALL_BYTES) as usize + 1;
                ue.sizes(direction, most, at, sizes);
                cut(sizes, start, bytes.min(all.into()));
            }
            let sizes = start as u32..sizes.len() as u32;
            queues.push(Backlog { ue: number, slice, mcs, bytes, sizes });
        }
    }

    /// Allocates RBs to the listed UEs and sends their blocks. Returns the RBs allocated.
    fn schedule(&mut self, direction: Direction, slot: u64, at: Instant, rbs: u16) -> u16 {
        if self.scratch.queues.is_empty() || rbs == 0 {
            return 0;
        }
        let Some(table) = self.amc.table(direction, slot) else { return 0 };
        let special = !std::ptr::eq(table, self.amc.full());
        let Scratch { allocation, queues, sizes, .. } = &mut self.scratch;
        let tti = Tti { rbs, rbg: self.amc.rbg(), table, slices: &self.slices, queues, sizes };
        self.links[index(direction)].scheduler.allocate(&tti, allocation);
        let mut used = 0;
        for place in 0..self.scratch.queues.len() {
            let Backlog { ue, mcs, slice, .. } = self.scratch.queues[place];
            let rbs = self.scratch.allocation.grants.get(place).copied().unwrap_or(0);
            used += rbs;
            let row = self.amc.table(direction, slot).map_or(&[][..], |table| table.row(mcs));
            let tbs_bytes = row.get(usize::from(rbs)).copied().unwrap_or(0);
            let ue_stats = UeSlotStats { ue, mcs, rbs, tbs_bytes, ..UeSlotStats::none(direction, at) };
            self.serve(direction, slot, usize::from(slice), ue_stats, special);
        }
        used
    }

    /// Fills and sends the block of a UE.
    fn serve(
        &mut self,
        direction: Direction,
        slot: u64,
        slice: usize,
        mut ue_stats: UeSlotStats,
        special: bool,
    ) {
        let at = ue_stats.at;
        let Self { ues, pool, links, telemetry, .. } = self;
        let Some(ue) = ues.get_mut(ue_stats.ue as usize) else { return };
        let mut block = None;
        if ue_stats.tbs_bytes > 0 {
            let mut filled = TransportBlock::new(ue_stats.tbs_bytes, ue_stats.rbs, pool);
            filled.special = special;
            let Ue { bearers, directions, .. } = ue;
            let DirectionState { sdap, uses_reports, .. } = &mut directions[index(direction)];
            for bearer in bearers {
                if !*uses_reports && !telemetry.ues {
                    bearer.fill(direction, &mut filled, at, pool);
                    continue;
                }
                let id = bearer.id;
                bearer.fill_counted(direction, sdap, &mut filled, at, pool, |sdap, sdu| {
                    let wait = at.saturating_since(sdu.forwarded);
                    sdap.on_sent(id, sdu.bytes, wait, at);
                    ue_stats.sent_sdus += 1;
                    ue_stats.rlc_wait_ns = ue_stats.rlc_wait_ns.saturating_add(nanos(wait));
                });
            }
            ue_stats.padding_bytes = u32::try_from(filled.room()).unwrap_or(0);
            let stats = &mut links[index(direction)].stats;
            stats.blocks += 1;
            stats.block_bytes += u64::from(ue_stats.tbs_bytes);
            stats.padding_bytes += u64::from(ue_stats.padding_bytes);
            if direction == Direction::Uplink {
                ue.grants.grant(ue_stats.tbs_bytes.into());
            }
            let state = ue.direction_state_mut(direction);
            state.last_served = slot + 1;
            state.average.served(ue_stats.tbs_bytes, slot);
            if state.uses_reports && state.sdap.waiting_for_limiters().0 > 0 {
                state.surplus.record(ue_stats.tbs_bytes, ue_stats.padding_bytes);
            }
            state.stats.used_rbs += u64::from(ue_stats.rbs);
            state.stats.block_bytes += u64::from(ue_stats.tbs_bytes);
            state.stats.padding_bytes += u64::from(ue_stats.padding_bytes);
            block = Some(filled);
        }
        if telemetry.ues {
            ue_stats.buffer_bytes = ue.buffer_bytes(direction);
            ue_stats.balance_rbs =
                links[index(direction)].scheduler.balances().get(slice).copied().unwrap_or(0);
            self.event(GnbEvent::Ue(ue_stats));
        }
        self.record_block(direction, ue_stats.ue, ue_stats.rbs, false);
        if let Some(block) = block {
            self.send(direction, ue_stats.ue, block, at);
        }
    }

    /// Sends a block over the air.
    #[inline(always)]
    fn send(&mut self, direction: Direction, number: u32, mut block: TransportBlock, at: Instant) {
        let due = at + self.air_delay;
        let link = &mut self.links[index(direction)];
        match link.harq.send(&mut block) {
            Outcome::Arrives => link.flights.push_back(Flight { due, ue: number, block }),
            Outcome::Again => {
                link.stats.nacks += 1;
                link.harq.keep(number, block, at);
                if let Some(ue) = self.ues.get_mut(number as usize) {
                    let state = ue.direction_state_mut(direction);
                    state.harq_waiting = state.harq_waiting.saturating_add(1);
                }
            }
            Outcome::Lost => {
                link.stats.nacks += 1;
                link.stats.lost_blocks += 1;
                self.pool.give_block(block.bytes);
                self.record_block(direction, number, 0, true);
            }
        }
    }

    /// Reports the slot to the limiters of all active UEs.
    fn report(&mut self, direction: Direction, slot: u64, at: Instant) {
        self.list_demands(direction, slot, at);
        for place in 0..self.active.len() {
            let number = self.active[place];
            let Some(ue) = self.ues.get_mut(number as usize) else { continue };
            if !ue.uses_reports(direction) {
                ue.direction_state_mut(direction).reported_until = slot + 1;
                continue;
            }
            let next = self.forecast(direction, number, slot);
            self.record_slot(direction, number, slot);
            let report = TtiReport { at, ..TtiReport::default() };
            if let Some(ue) = self.ues.get_mut(number as usize) {
                ue.report(direction, slot, &report, next);
            }
        }
    }
}

/// Truncates the sizes from index `start` on to those within the first `bytes` bytes.
fn cut(sizes: &mut Vec<u32>, start: usize, bytes: u64) {
    let mut sum = 0;
    let within = sizes[start..].iter().take_while(|size| {
        sum += u64::from(**size);
        sum <= bytes
    });
    let keep = start + within.count();
    sizes.truncate(keep);
}
