//! The REST representation of a cell, and the changes that it accepts at run time.

use crate::runtime::api::problem::Problem;
use crate::runtime::api::request::Reply;
use anabranch_engine::cell::packets::Batch;
use anabranch_ran::channel::ChannelConfig;
use anabranch_ran::gnb::SlotStats;
use anabranch_ran::queue::QueueConfig;
use anabranch_ran::sched::{InterConfig, SliceConfig};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use tokio::sync::broadcast;
use utoipa::ToSchema;

/// A request to a gNB.
pub enum CellRequest {
    /// State of the cell.
    Cell(Reply<Cell>),
    /// Change the schedulers.
    SetCell(Box<CellChange>, Reply<Cell>),
    /// State of the slices.
    Slices(Reply<Slices>),
    /// Replace the slices.
    SetSlices(Vec<SliceConfig>, Reply<Slices>),
    /// UEs from index `offset` on, at most `limit`.
    Ues {
        /// Number of UEs to skip.
        offset: usize,
        /// Maximum number of UEs in the answer.
        limit: usize,
        /// Receives the answer.
        reply: Reply<UeList>,
    },
    /// State of one UE, by name.
    Ue(String, Reply<CellUe>),
    /// Change slice, channel or queue of a UE.
    SetUe(String, Box<UeChange>, Reply<CellUe>),
    /// Subscribe to telemetry: seconds, and the other streams that are requested.
    Telemetry(Telemetry, Reply<Streams>),
}

/// The streams that are requested besides seconds.
#[derive(Debug, Clone, Copy, Default)]
pub struct Telemetry {
    /// A record of every slot.
    pub slots: bool,
    /// A record of every delivered packet.
    pub packets: bool,
}

/// Subscription to the telemetry of a gNB.
pub struct Streams {
    /// One record per second.
    pub seconds: broadcast::Receiver<Arc<CellSecond>>,
    /// One record per slot and direction.
    pub slots: Option<broadcast::Receiver<SlotStats>>,
    /// Delivered packets, in batches.
    pub packets: Option<broadcast::Receiver<Arc<Batch>>>,
}

impl CellRequest {
    /// Refuses the request in a program that has no cell.
    pub fn refuse(self) {
        let why =
            || Problem::not_here("only a gNB has a cell", "send the request to the agent of `anabranch gnb`");
        match self {
            Self::Cell(reply) | Self::SetCell(_, reply) => drop(reply.send(Err(why()))),
            Self::Slices(reply) | Self::SetSlices(_, reply) => drop(reply.send(Err(why()))),
            Self::Ues { reply, .. } => drop(reply.send(Err(why()))),
            Self::Ue(_, reply) | Self::SetUe(_, _, reply) => drop(reply.send(Err(why()))),
            Self::Telemetry(_, reply) => drop(reply.send(Err(why()))),
        }
    }
}

/// The cell of a gNB.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Cell {
    /// Name of the gNB.
    pub name: String,
    /// `lte` or `nr`.
    pub rat: String,
    /// Resource blocks of the carrier.
    pub rbs: u16,
    /// Length of a slot, microseconds.
    pub slot_us: f64,
    /// Towards the UPF: `ip` or `gtpu`.
    pub n3: String,
    /// Downlink scheduler, which divides resources among the slices: a name, or an object with `algorithm`.
    #[schema(value_type = Object)]
    pub scheduler: InterConfig,
    /// Uplink scheduler, in the same form.
    #[schema(value_type = Object)]
    pub uplink_scheduler: InterConfig,
    /// Number of slices.
    pub slices: u64,
    /// Number of UEs.
    pub ues: u64,
    /// Lateness of the slots.
    pub ticks: SlotTimings,
    /// Downlink since the start.
    pub downlink: CellLink,
    /// Uplink since the start.
    pub uplink: CellLink,
}

/// Lateness of slots: from the nominal time of a slot to the start of its computation. Beside it, the processor time that
/// the cell takes: slots that are late although it is short are late because of the machine.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SlotTimings {
    /// Slots since the start, including those without data, which need no computation.
    pub count: u64,
    /// Slots of these that ran late by one slot or more.
    pub late: u64,
    /// Median lateness, microseconds.
    pub p50_us: f64,
    /// 99th percentile of the lateness, microseconds.
    pub p99_us: f64,
    /// Maximum lateness, microseconds.
    pub max_us: f64,
    /// Processor time of the cell's thread, milliseconds.
    pub processor_ms: f64,
}

/// One direction of a cell.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CellLink {
    /// Slots of this direction.
    pub slots: u64,
    /// Available RBs, for new data and retransmissions.
    pub rbs: u64,
    /// RBs granted for new data.
    pub used_rbs: u64,
    /// RBs of retransmissions.
    pub retx_rbs: u64,
    /// RBs that were not assigned.
    pub unused_rbs: u64,
    /// Transport blocks, first transmissions only.
    pub blocks: u64,
    /// Capacity of these blocks, bytes.
    pub block_bytes: u64,
    /// Padding in these blocks, bytes.
    pub padding_bytes: u64,
    /// Transmissions that were not decoded.
    pub nacks: u64,
    /// Transport blocks discarded after the last retransmission.
    pub lost_blocks: u64,
    /// Packets delivered.
    pub delivered_packets: u64,
    /// Bytes of the delivered packets.
    pub delivered_bytes: u64,
    /// Packets without a matching UE or QoS flow, and packets that could not be parsed.
    pub unroutable_packets: u64,
    /// Slots that were skipped because computation fell too far behind the clock.
    pub missed_slots: u64,
}

/// Change of the schedulers. Members that are left out stay unchanged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CellChange {
    /// Downlink scheduler: a name, or an object with `algorithm`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub scheduler: Option<InterConfig>,
    /// Uplink scheduler, in the same form.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub uplink_scheduler: Option<InterConfig>,
}

/// The slices in force.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Slices {
    /// The slices, as configured.
    #[schema(value_type = Vec<SliceSchema>)]
    pub slices: Vec<SliceConfig>,
    /// Use of each slice, in the same order.
    pub uses: Vec<SliceUse>,
}

/// Schema of a slice; mirrors the type of crate `ran`.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = Slice)]
#[serde(deny_unknown_fields)]
pub struct SliceSchema {
    /// Unique name.
    name: String,
    /// Share of the RBs, 0 to 100; the shares of all slices sum to at most 100.
    share_percent: f64,
    /// Scheduler among the UEs of the slice: `rr` (default), `pf` or `priority`.
    #[serde(default)]
    intra: Option<String>,
    /// `rrm_policy`: RBs reserved for the slice even when it does not use them, percent.
    #[serde(default)]
    dedicated_percent: Option<f64>,
    /// `rrm_policy`: RBs that the slice gets first, percent; default: its share.
    #[serde(default)]
    min_percent: Option<f64>,
    /// `rrm_policy`: upper bound on the slice's share of all RBs over time, percent; default: 100.
    #[serde(default)]
    max_percent: Option<f64>,
    /// `static_priority`: lower values are served first.
    #[serde(default)]
    priority: Option<u8>,
}

/// Traffic of a slice.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SliceUse {
    /// Name of the slice.
    pub slice: String,
    /// Number of UEs in the slice.
    pub ues: u64,
    /// Downlink.
    pub downlink: SliceLink,
    /// Uplink.
    pub uplink: SliceLink,
}

/// One direction of a slice.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SliceLink {
    /// Packets delivered since the start.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Median waiting time in SDAP and RLC during the last second, milliseconds.
    pub wait_p50_ms: f64,
    /// 99th percentile of that waiting time, milliseconds.
    pub wait_p99_ms: f64,
    /// Maximum of that waiting time, milliseconds.
    pub wait_max_ms: f64,
    /// Balance of the slice in the scheduler's account, RBs; positive if the slice is owed resources. Absent
    /// if the scheduler keeps no account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub balance_rbs: Option<i32>,
}

/// A page of UEs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct UeList {
    /// Number of all UEs.
    pub total: u64,
    /// The UEs of this page, in the order of the configuration.
    pub ues: Vec<CellUe>,
}

/// A UE, its radio channel, and its bearers and QoS flows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CellUe {
    /// Name of the UE.
    pub name: String,
    /// Name of the slice that serves the UE.
    pub slice: String,
    /// IP addresses that the cell routes to the UE.
    pub addresses: Vec<String>,
    /// Interface to which the UE is attached.
    pub device: String,
    /// MCS of the downlink now; absent in an outage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub downlink_mcs: Option<u8>,
    /// MCS of the uplink now; absent in an outage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uplink_mcs: Option<u8>,
    /// Channel of the downlink, an object with `model`.
    #[schema(value_type = Object)]
    pub channel: ChannelConfig,
    /// Channel of the uplink, an object with `model`.
    #[schema(value_type = Object)]
    pub uplink_channel: ChannelConfig,
    /// Data radio bearers of the UE.
    pub bearers: Vec<UeBearer>,
    /// QoS flows of the UE, downlink before uplink.
    pub flows: Vec<UeFlow>,
}

/// A data radio bearer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct UeBearer {
    /// DRB identity.
    pub drb: u8,
    /// RLC mode: `um` or `am`.
    pub rlc: String,
    /// Downlink.
    pub downlink: BearerLink,
    /// Uplink.
    pub uplink: BearerLink,
}

/// One direction of a bearer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct BearerLink {
    /// Queue discipline: a name, or an object with `algorithm`.
    #[schema(value_type = Object)]
    pub queue: QueueConfig,
    /// Packets delivered.
    pub delivered_packets: u64,
    /// Bytes of the delivered packets.
    pub delivered_bytes: u64,
    /// Bytes in the RLC buffer at present.
    pub buffer_bytes: u64,
    /// Maximum number of bytes in the RLC buffer since the start.
    pub buffer_max_bytes: u64,
    /// Packets dropped because the RLC buffer was full.
    pub full_drops: u64,
    /// Packets dropped by the queue discipline as a congestion signal.
    pub aqm_drops: u64,
    /// Packets marked with CE instead of dropped.
    pub ce_marks: u64,
    /// Retransmitted RLC PDUs.
    pub retx_pdus: u64,
    /// Incomplete packets that the receiver discarded.
    pub discarded_packets: u64,
    /// Packets that reached `max_retx` retransmissions in RLC AM; their transmission continues.
    pub max_retx_packets: u64,
    /// Missing packets that PDCP no longer waits for.
    pub missing_packets: u64,
    /// Packets that reached PDCP twice, or after PDCP had stopped waiting for them.
    pub late_packets: u64,
}

/// A QoS flow in one direction.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct UeFlow {
    /// QoS flow identifier.
    pub qfi: u8,
    /// True for downlink, false for uplink.
    pub downlink: bool,
    /// Packets passed on to RLC.
    pub packets: u64,
    /// Bytes of these packets.
    pub bytes: u64,
    /// Packets waiting in SDAP.
    pub waiting_packets: u64,
    /// Packets dropped because the SDAP queue was full.
    pub full_drops: u64,
    /// Packets dropped by the flow's queue discipline as a congestion signal.
    pub aqm_drops: u64,
    /// Packets marked with CE instead of dropped.
    pub ce_marks: u64,
    /// Mean waiting time in SDAP since the start, milliseconds.
    pub wait_mean_ms: f64,
    /// Maximum waiting time in SDAP since the start, milliseconds.
    pub wait_max_ms: f64,
}

/// Changes to a UE. Members that are left out stay unchanged.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct UeChange {
    /// Name of the slice that serves the UE from now on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slice: Option<String>,
    /// Downlink channel, an object with `model`; a trace starts now.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub channel: Option<ChannelConfig>,
    /// Uplink channel, in the same form.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub uplink_channel: Option<ChannelConfig>,
    /// Bearer to which `queue` and `uplink_queue` apply; default: all bearers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drb: Option<u8>,
    /// Downlink queue discipline: a name, or an object with `algorithm`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub queue: Option<QueueConfig>,
    /// Uplink queue discipline, in the same form.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub uplink_queue: Option<QueueConfig>,
}

/// Counters of one second, sent when it has ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CellSecond {
    /// End of the second, seconds since the start.
    pub uptime_s: u64,
    /// Lateness of the slots in this second.
    pub ticks: SlotTimings,
    /// Downlink counters of this second.
    pub downlink: CellLink,
    /// Uplink counters of this second.
    pub uplink: CellLink,
    /// Slices, with packets and bytes of this second.
    pub slices: Vec<SliceUse>,
}

/// One slot of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Slot {
    /// Nominal time of the slot, microseconds since the start.
    pub at_us: f64,
    /// True for downlink, false for uplink.
    pub downlink: bool,
    /// Available RBs, for new data and retransmissions.
    pub rbs: u16,
    /// RBs granted for new data.
    pub used_rbs: u16,
    /// RBs of retransmissions.
    pub retx_rbs: u16,
    /// RBs that were not assigned.
    pub unused_rbs: u16,
    /// Bytes in the RLC buffers after the slot.
    pub buffer_bytes: u64,
}

/// Packets delivered since the previous batch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CellPackets {
    /// Wall clock at the start of the gNB, from which the times are counted: Unix time, nanoseconds.
    pub start_unix_ns: u64,
    /// Number of packets in all earlier batches; a gap shows how many packets a slow listener missed.
    pub first: u64,
    /// In the order of their delivery.
    pub packets: Vec<CellPacket>,
}

/// Times of a packet on its way through the cell, in nanoseconds since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CellPacket {
    /// Index of the UE, from 0, in the order of `GET /v1/ues`.
    pub ue: u32,
    /// DRB identity.
    pub drb: u8,
    /// QoS flow identifier.
    pub qfi: u8,
    /// True for downlink, false for uplink.
    pub downlink: bool,
    /// Length of the packet, bytes.
    pub bytes: u32,
    /// Arrival at SDAP.
    pub arrived_ns: u64,
    /// Hand-over from SDAP to RLC.
    pub forwarded_ns: u64,
    /// First byte passed to the MAC.
    pub first_pull_ns: u64,
    /// Last byte passed to the MAC, first transmission.
    pub last_pull_ns: u64,
    /// First byte available at the receiver.
    pub first_received_ns: u64,
    /// Delivery of the complete packet, in order.
    pub delivered_ns: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_of_a_slice_mirrors_its_type() {
        let text = r#"{"name":"a","share_percent":25.0,"intra":"pf","dedicated_percent":5.0,"min_percent":10.0,"max_percent":50.0,"priority":3}"#;
        let core: SliceConfig = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&core).unwrap(), text);
        let mirror: SliceSchema = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&mirror).unwrap(), text);
    }
}
