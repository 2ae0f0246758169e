//! Conversion of the cell's state into its REST representation.

use crate::runtime::api::{
    BearerLink, CellLink, CellPacket, CellPackets, CellSecond, CellUe, SliceLink, SliceUse, Slot,
    SlotTimings, UeBearer, UeFlow,
};
use anabranch_element::time::{Duration, Instant};
use anabranch_engine::cell::packets::Batch;
use anabranch_engine::cell::report::{Carried, Report, SliceSums, Spread};
use anabranch_ran::amc::Direction;
use anabranch_ran::gnb::{BearerStats, Gnb, GnbConfig, LinkStats, PacketTimes, SlotStats, UeConfig};
use anabranch_ran::rlc::RlcConfig;
use anabranch_ran::sdap::FlowStats;
use std::collections::BTreeMap;

/// Lateness of slots; `late` counts the slots that were late by a slot or more, in `processor` time of the thread.
pub fn ticks(spread: Spread, late: u64, processor: Duration) -> SlotTimings {
    let us = |ns: u64| ns as f64 / 1e3;
    let Spread { count, p50_ns, p99_ns, max_ns } = spread;
    SlotTimings {
        count,
        late,
        p50_us: us(p50_ns),
        p99_us: us(p99_ns),
        max_us: us(max_ns),
        processor_ms: processor.as_secs_f64() * 1e3,
    }
}

/// One slot of one direction.
pub fn slot(slot: &SlotStats) -> Slot {
    Slot {
        at_us: slot.at.as_nanos() as f64 / 1e3,
        downlink: slot.direction == Direction::Downlink,
        rbs: slot.rbs,
        used_rbs: slot.used_rbs,
        retx_rbs: slot.retx_rbs,
        unused_rbs: slot.unused_rbs,
        buffer_bytes: slot.buffer_bytes,
    }
}

/// Delivered packets.
pub fn packets(batch: &Batch) -> CellPackets {
    let packets = batch.packets.iter().map(packet).collect();
    CellPackets { start_unix_ns: batch.start_unix_ns, first: batch.first, packets }
}

fn packet(times: &PacketTimes) -> CellPacket {
    CellPacket {
        ue: times.ue,
        drb: times.drb,
        qfi: times.qfi,
        downlink: times.direction == Direction::Downlink,
        bytes: times.bytes,
        arrived_ns: times.arrived.as_nanos(),
        forwarded_ns: times.forwarded.as_nanos(),
        first_pull_ns: times.first_pull.as_nanos(),
        last_pull_ns: times.last_pull.as_nanos(),
        first_received_ns: times.first_received.as_nanos(),
        delivered_ns: times.delivered.as_nanos(),
    }
}

/// Counters of a direction since `before`.
pub fn link(now: &LinkStats, before: Option<&LinkStats>) -> CellLink {
    let zero = LinkStats::default();
    let before = before.unwrap_or(&zero);
    CellLink {
        slots: now.slots - before.slots,
        rbs: now.rbs - before.rbs,
        used_rbs: now.used_rbs - before.used_rbs,
        retx_rbs: now.retx_rbs - before.retx_rbs,
        unused_rbs: now.unused_rbs - before.unused_rbs,
        blocks: now.blocks - before.blocks,
        block_bytes: now.block_bytes - before.block_bytes,
        padding_bytes: now.padding_bytes - before.padding_bytes,
        nacks: now.nacks - before.nacks,
        lost_blocks: now.lost_blocks - before.lost_blocks,
        delivered_packets: now.delivered_packets - before.delivered_packets,
        delivered_bytes: now.delivered_bytes - before.delivered_bytes,
        unroutable_packets: now.unroutable_packets - before.unroutable_packets,
        missed_slots: now.missed_slots - before.missed_slots,
    }
}

/// Traffic of the slices since `before`.
pub fn slices(now: &[SliceSums], before: &[SliceSums], cell: &GnbConfig) -> Vec<SliceUse> {
    let mut ues: BTreeMap<&str, u64> = BTreeMap::new();
    cell.ues.iter().for_each(|ue| *ues.entry(&ue.slice).or_default() += 1);
    let uses = now.iter().map(|slice| {
        let old = before.iter().find(|old| old.name == slice.name);
        let side = |at: usize| slice_link(&slice.carried[at], old.map(|old| &old.carried[at]));
        SliceUse {
            slice: slice.name.clone(),
            ues: ues.get(slice.name.as_str()).copied().unwrap_or(0),
            downlink: side(0),
            uplink: side(1),
        }
    });
    uses.collect()
}

fn slice_link(now: &Carried, before: Option<&Carried>) -> SliceLink {
    let ms = |ns: u64| ns as f64 / 1e6;
    SliceLink {
        packets: now.packets.saturating_sub(before.map_or(0, |b| b.packets)),
        bytes: now.bytes.saturating_sub(before.map_or(0, |b| b.bytes)),
        wait_p50_ms: ms(now.wait.p50_ns),
        wait_p99_ms: ms(now.wait.p99_ns),
        wait_max_ms: ms(now.wait.max_ns),
        balance_rbs: now.balance_rbs,
    }
}

/// The record of one second of the cell.
pub fn second(report: &Report, before: Option<&Report>, cell: &GnbConfig, uptime_s: u64) -> CellSecond {
    let side = |at: usize| link(&report.links[at], before.map(|b| &b.links[at]));
    let earlier = before.map_or(&[][..], |b| &b.slices);
    CellSecond {
        uptime_s,
        ticks: ticks(report.late, 0, report.processor - before.map_or(Duration::ZERO, |b| b.processor)),
        downlink: side(0),
        uplink: side(1),
        slices: slices(&report.slices, earlier, cell),
    }
}

/// State of a UE; `config` is its current configuration.
pub fn ue(gnb: &mut Gnb, number: u32, config: &UeConfig, device: &str, now: Instant) -> CellUe {
    let [downlink_mcs, uplink_mcs] = Direction::ALL.map(|direction| gnb.mcs(number, direction, now));
    let down: Vec<BearerStats> = gnb.bearer_stats(number, Direction::Downlink, now).collect();
    let up: Vec<BearerStats> = gnb.bearer_stats(number, Direction::Uplink, now).collect();
    let bearers = down.iter().zip(&up).map(|(down, up)| {
        let bearer = config.bearer(down.drb);
        let rlc = if matches!(bearer.rlc, RlcConfig::Am(_)) { "am" } else { "um" };
        UeBearer {
            drb: down.drb,
            rlc: rlc.to_owned(),
            downlink: bearer_link(down, bearer.queue.clone()),
            uplink: bearer_link(up, bearer.uplink_queue.clone().unwrap_or_else(|| bearer.queue.clone())),
        }
    });
    let flows = Direction::ALL.into_iter().flat_map(|direction| {
        gnb.flow_stats(number, direction).map(move |(qfi, stats)| flow(qfi, direction, &stats))
    });
    CellUe {
        name: config.name.clone(),
        slice: config.slice.clone(),
        addresses: config.addresses.iter().map(ToString::to_string).collect(),
        device: device.to_owned(),
        downlink_mcs,
        uplink_mcs,
        channel: config.channel.clone(),
        uplink_channel: config.uplink_channel.clone().unwrap_or_else(|| config.channel.clone()),
        bearers: bearers.collect(),
        flows: flows.collect(),
    }
}

fn bearer_link(stats: &BearerStats, queue: anabranch_ran::queue::QueueConfig) -> BearerLink {
    BearerLink {
        queue,
        delivered_packets: stats.delivered_packets,
        delivered_bytes: stats.delivered_bytes,
        buffer_bytes: stats.buffer_bytes,
        buffer_max_bytes: stats.buffer.max_bytes,
        full_drops: stats.buffer.full_drops,
        aqm_drops: stats.buffer.aqm_drops,
        ce_marks: stats.buffer.ce_marks,
        retx_pdus: stats.sender.retx_pdus,
        discarded_packets: stats.receiver.discarded_sdus,
        max_retx_packets: stats.sender.max_retx_reached,
        missing_packets: stats.order.missing_sdus,
        late_packets: stats.order.stale_sdus,
    }
}

fn flow(qfi: u8, direction: Direction, stats: &FlowStats) -> UeFlow {
    let mean_ns = stats.wait_total_ns.checked_div(stats.forwarded_sdus).unwrap_or(0);
    UeFlow {
        qfi,
        downlink: direction == Direction::Downlink,
        packets: stats.forwarded_sdus,
        bytes: stats.forwarded_bytes,
        waiting_packets: stats.waiting_sdus,
        full_drops: stats.queue.full_drops,
        aqm_drops: stats.queue.aqm_drops,
        ce_marks: stats.queue.ce_marks,
        wait_mean_ms: mean_ns as f64 / 1e6,
        wait_max_ms: stats.wait_max_ns as f64 / 1e6,
    }
}
