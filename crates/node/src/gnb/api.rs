//! A cell as the interface shows it, and what can be changed while it runs.

use crate::runtime::api::problem::Problem;
use crate::runtime::api::request::Reply;
use anabranch_ran::channel::ChannelConfig;
use anabranch_ran::queue::QueueConfig;
use anabranch_ran::sched::{InterConfig, SliceConfig};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use tokio::sync::broadcast;
use utoipa::ToSchema;

/// A question to a gNB.
pub enum CellRequest {
    /// The cell.
    Cell(Reply<Cell>),
    /// Other schedulers.
    SetCell(Box<CellChange>, Reply<Cell>),
    /// Slices.
    Slices(Reply<Slices>),
    /// Other slices.
    SetSlices(Vec<SliceConfig>, Reply<Slices>),
    /// UEs from the `offset`th on, at most `limit`.
    Ues {
        /// How many to skip.
        offset: usize,
        /// How many to show.
        limit: usize,
        /// Answer.
        reply: Reply<UeList>,
    },
    /// One UE.
    Ue(String, Reply<CellUe>),
    /// Another slice, channel or queue for a UE.
    SetUe(String, Box<UeChange>, Reply<CellUe>),
    /// What follows: seconds, and what else is asked for.
    Telemetry(Telemetry, Reply<Streams>),
}

/// What is told beside seconds.
#[derive(Debug, Clone, Copy, Default)]
pub struct Telemetry {
    /// Every slot.
    pub slots: bool,
    /// Every packet.
    pub packets: bool,
}

/// What a gNB tells as it happens.
pub struct Streams {
    /// Once a second.
    pub seconds: broadcast::Receiver<Arc<Second>>,
    /// Every slot of each direction.
    pub slots: Option<broadcast::Receiver<Slot>>,
    /// Packets that were delivered, in batches.
    pub packets: Option<broadcast::Receiver<Arc<CellPackets>>>,
}

impl CellRequest {
    /// The answer of whoever has no cell.
    pub fn refuse(self) {
        let why = || Problem::not_here("only a gNB has a cell", "ask the agent of `anabranch gnb`");
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
    /// `ip` or `gtpu`.
    pub n3: String,
    /// How the downlink is divided among slices: a name, or an object with `algorithm`.
    #[schema(value_type = Object)]
    pub scheduler: InterConfig,
    /// How the uplink is.
    #[schema(value_type = Object)]
    pub uplink_scheduler: InterConfig,
    /// How many slices.
    pub slices: u64,
    /// How many UEs.
    pub ues: u64,
    /// How late slots are run.
    pub ticks: Ticks,
    /// Downlink since the start.
    pub downlink: CellLink,
    /// Uplink since the start.
    pub uplink: CellLink,
}

/// How late slots were run, from their time to the start of their computation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Ticks {
    /// Slots run; those in which nobody has anything are only counted.
    pub count: u64,
    /// Of them, those run a slot late or more.
    pub late: u64,
    /// Median lateness, microseconds.
    pub p50_us: f64,
    /// 99th percentile, microseconds.
    pub p99_us: f64,
    /// Latest, microseconds.
    pub max_us: f64,
}

/// One direction of a cell.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CellLink {
    /// Slots of this direction.
    pub slots: u64,
    /// RBs for new data and retransmissions.
    pub rbs: u64,
    /// RBs granted for new data.
    pub used_rbs: u64,
    /// RBs of retransmissions.
    pub retx_rbs: u64,
    /// RBs nobody got.
    pub unused_rbs: u64,
    /// Transport blocks, the first time each.
    pub blocks: u64,
    /// Bytes they had room for.
    pub block_bytes: u64,
    /// Bytes of padding in them.
    pub padding_bytes: u64,
    /// Transmissions that were not decoded.
    pub nacks: u64,
    /// Blocks given up.
    pub lost_blocks: u64,
    /// Packets delivered.
    pub delivered_packets: u64,
    /// Their bytes.
    pub delivered_bytes: u64,
    /// Packets for nobody, that could not be read, or that no QoS flow takes.
    pub unroutable_packets: u64,
    /// Slots that were left out because the clock ran ahead of them.
    pub missed_slots: u64,
}

/// Other schedulers. What is left out stays.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CellChange {
    /// How the downlink is divided among slices: a name, or an object with `algorithm`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub scheduler: Option<InterConfig>,
    /// How the uplink is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub uplink_scheduler: Option<InterConfig>,
}

/// The slices in force.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Slices {
    /// As configured.
    #[schema(value_type = Vec<SliceSchema>)]
    pub slices: Vec<SliceConfig>,
    /// What each carried, in the same order.
    pub uses: Vec<SliceUse>,
}

/// A slice, `core`'s type mirrored.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = Slice)]
#[serde(deny_unknown_fields)]
pub struct SliceSchema {
    /// Unique name.
    name: String,
    /// Share of the RBs, 0 to 100; those of all slices sum to 100 at most.
    share_percent: f64,
    /// How its UEs take turns: `rr` (default), `pf` or `priority`.
    #[serde(default)]
    intra: Option<String>,
    /// `rrm_policy`: RBs kept for it even when it does not use them.
    #[serde(default)]
    dedicated_percent: Option<f64>,
    /// `rrm_policy`: RBs it gets first; left out: its share.
    #[serde(default)]
    min_percent: Option<f64>,
    /// `rrm_policy`: share of all RBs that it never exceeds over time; left out: 100.
    #[serde(default)]
    max_percent: Option<f64>,
    /// `static_priority`: the lower, the sooner.
    #[serde(default)]
    priority: Option<u8>,
}

/// What a slice carries.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SliceUse {
    /// Its name.
    pub slice: String,
    /// UEs in it.
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
    /// Median wait in SDAP and RLC in the last second, milliseconds.
    pub wait_p50_ms: f64,
    /// 99th percentile of it.
    pub wait_p99_ms: f64,
    /// Longest of it.
    pub wait_max_ms: f64,
    /// What the slice is owed, RBs, if the scheduler keeps an account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub balance_rbs: Option<i32>,
}

/// A page of UEs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct UeList {
    /// How many there are.
    pub total: u64,
    /// Those asked for, as configured.
    pub ues: Vec<CellUe>,
}

/// A UE of a cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CellUe {
    /// Its name.
    pub name: String,
    /// The slice it is in.
    pub slice: String,
    /// Its addresses.
    pub addresses: Vec<String>,
    /// The interface it is behind.
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
    /// Channel of the uplink.
    #[schema(value_type = Object)]
    pub uplink_channel: ChannelConfig,
    /// Its bearers.
    pub bearers: Vec<UeBearer>,
    /// Its QoS flows, downlink then uplink.
    pub flows: Vec<UeFlow>,
}

/// A data radio bearer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct UeBearer {
    /// Its identity.
    pub drb: u8,
    /// `um` or `am`.
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
    /// Their bytes.
    pub delivered_bytes: u64,
    /// Bytes in the RLC buffer now.
    pub buffer_bytes: u64,
    /// Most bytes that ever were.
    pub buffer_max_bytes: u64,
    /// Packets dropped because it was full.
    pub full_drops: u64,
    /// Packets dropped by the discipline to tell the sender.
    pub aqm_drops: u64,
    /// Packets marked in place of a drop.
    pub ce_marks: u64,
    /// RLC PDUs sent again.
    pub retx_pdus: u64,
    /// Packets given up by the receiver.
    pub discarded_packets: u64,
    /// Packets that RLC AM sent again as often as `max_retx` says; it goes on.
    pub max_retx_packets: u64,
    /// Packets that PDCP waited for and gave up.
    pub missing_packets: u64,
    /// Packets that came to PDCP twice, or after they were given up.
    pub late_packets: u64,
}

/// A QoS flow in one direction.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct UeFlow {
    /// Its identifier.
    pub qfi: u8,
    /// Which way.
    pub downlink: bool,
    /// Packets let down to RLC.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packets waiting in SDAP.
    pub waiting_packets: u64,
    /// Packets dropped because too many waited.
    pub full_drops: u64,
    /// Packets dropped by the flow's queue discipline to tell the sender.
    pub aqm_drops: u64,
    /// Packets marked in place of a drop.
    pub ce_marks: u64,
    /// Mean wait in SDAP since the start, milliseconds.
    pub wait_mean_ms: f64,
    /// Longest.
    pub wait_max_ms: f64,
}

/// Changes to a UE. What is left out stays.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct UeChange {
    /// The slice it moves to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slice: Option<String>,
    /// Channel of the downlink, an object with `model`; a trace starts now.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub channel: Option<ChannelConfig>,
    /// Channel of the uplink.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub uplink_channel: Option<ChannelConfig>,
    /// The bearer that `queue` and `uplink_queue` are about; left out: all of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drb: Option<u8>,
    /// Queue discipline of the downlink: a name, or an object with `algorithm`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub queue: Option<QueueConfig>,
    /// And of the uplink.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub uplink_queue: Option<QueueConfig>,
}

/// A second of a cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Second {
    /// Its end, seconds since the start.
    pub uptime_s: u64,
    /// Lateness of its slots.
    pub ticks: Ticks,
    /// Downlink in this second.
    pub downlink: CellLink,
    /// Uplink in this second.
    pub uplink: CellLink,
    /// Slices; packets and bytes in this second.
    pub slices: Vec<SliceUse>,
}

/// A slot of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Slot {
    /// Its time, microseconds since the start.
    pub at_us: f64,
    /// Downlink, else uplink.
    pub downlink: bool,
    /// RBs for new data and retransmissions.
    pub rbs: u16,
    /// RBs granted for new data.
    pub used_rbs: u16,
    /// RBs of retransmissions.
    pub retx_rbs: u16,
    /// RBs nobody got.
    pub unused_rbs: u16,
    /// Bytes in the RLC buffers after it.
    pub buffer_bytes: u64,
}

/// Packets that were delivered, since the batch before.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CellPackets {
    /// The wall clock at the start, from which times are counted: Unix, nanoseconds.
    pub start_unix_ns: u64,
    /// Packets told before; a gap shows what a slow listener missed.
    pub first: u64,
    /// The packets.
    pub packets: Vec<CellPacket>,
}

/// When a packet was where. Times are nanoseconds since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CellPacket {
    /// Number of its UE, from 0, in the order of `GET /v1/ues`.
    pub ue: u32,
    /// Its bearer.
    pub drb: u8,
    /// Its QoS flow.
    pub qfi: u8,
    /// Downlink, else uplink.
    pub downlink: bool,
    /// Its bytes.
    pub bytes: u32,
    /// When it entered SDAP.
    pub arrived_ns: u64,
    /// When SDAP let it down to RLC.
    pub forwarded_ns: u64,
    /// When its first byte went to the MAC.
    pub first_pull_ns: u64,
    /// When its last byte went to the MAC, for the first time.
    pub last_pull_ns: u64,
    /// When its first byte could be at the receiver.
    pub first_received_ns: u64,
    /// When it was handed up, whole and in order.
    pub delivered_ns: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mirror_of_a_slice_shows_what_core_speaks() {
        let text = r#"{"name":"a","share_percent":25.0,"intra":"pf","dedicated_percent":5.0,"min_percent":10.0,"max_percent":50.0,"priority":3}"#;
        let core: SliceConfig = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&core).unwrap(), text);
        let mirror: SliceSchema = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&mirror).unwrap(), text);
    }
}
