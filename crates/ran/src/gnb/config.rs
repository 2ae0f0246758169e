//! Configuration of a cell.
//!
//! ```toml
//! seed = 1
//! n3 = "ip"                          # ip: plain packets, mapped by address and `qos`; gtpu: tunnels with QFI
//! scheduler = "eqp_exact"            # of the downlink; uplink_scheduler: the same if left out
//! radio = { rat = "lte", rbs = 25 }
//! mac = { control = [{ every_slots = 5, rbs = 8 }] }
//! harq = { bler = 0.1 }
//!
//! [[slices]]
//! name = "default"
//! share_percent = 100
//!
//! [[ues]]
//! name = "phone"
//! slice = "default"
//! addresses = ["10.45.0.2"]
//! channel = { model = "constant", mcs = 28 }
//! bearer = { queue = "e5g_bdp", rlc = { mode = "um" } }
//! qos = [{ qfi = 1, filter = { protocol = "udp" } }]
//! sdap = { flows = [{ qfi = 1, drb = 1, priority = 20 }, { qfi = 9, drb = 1, unmapped = true }] }
//! ```

use crate::amc::{Amc, AmcError, Direction, RadioConfig};
use crate::channel::{ChannelConfig, ChannelError};
use crate::mac::ControlLoad;
use crate::mac::harq::HarqConfig;
use crate::pdcp::PdcpSn;
use crate::queue::{BearerParams, BufferLimit, QueueConfig, QueueError};
use crate::rlc::{RlcConfig, RlcError};
use crate::sched::{InterConfig, SchedError, SliceConfig};
use crate::sdap::{DrbId, SdapConfig, SdapError};
pub use anabranch_element::ioam::IoamConfig;
use anabranch_element::time::Duration;
use anabranch_rules::Filter;

use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// Maximum number of UEs in a cell.
pub const MAX_UES: usize = 65_535;

/// Format of packets on N3.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum N3 {
    /// Plain IP packets: the UE is found by address, the QoS flow by [`UeConfig::qos`].
    #[default]
    Ip,
    /// GTP-U messages: the UE is found by TEID, the QoS flow by the PDU session container.
    Gtpu,
}

/// A fault of a packet on N3 that is reported to its sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum N3Fault {
    /// No UE has a tunnel with this TEID (TS 29.281 §7.3.1).
    NoTunnel(u32),
    /// The packet has an extension header that is unknown and whose comprehension is required (§7.2.3).
    UnknownExtension,
}

/// Configuration of a cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GnbConfig {
    /// Seed of all random numbers.
    #[serde(default)]
    pub seed: u64,
    /// Format of packets on N3.
    #[serde(default)]
    pub n3: N3,
    /// The carrier.
    #[serde(default)]
    pub radio: RadioConfig,
    /// Parameters of the MAC.
    #[serde(default)]
    pub mac: MacConfig,
    /// Block errors and retransmissions.
    #[serde(default)]
    pub harq: HarqConfig,
    /// Inter-slice scheduler of the downlink.
    #[serde(default)]
    pub scheduler: InterConfig,
    /// Inter-slice scheduler of the uplink; default: that of the downlink.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uplink_scheduler: Option<InterConfig>,
    /// Slices; default: one with the whole cell.
    #[serde(default = "one_slice")]
    pub slices: Vec<SliceConfig>,
    /// UEs of the cell; their order defines their indices.
    pub ues: Vec<UeConfig>,
    /// Events to emit.
    #[serde(default)]
    pub telemetry: TelemetryConfig,
    /// IOAM node whose data is written into passing traces; default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ioam: Option<IoamConfig>,
}

fn one_slice() -> Vec<SliceConfig> {
    vec![SliceConfig::new("default", 100.0)]
}

/// Timing and control load of the MAC.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MacConfig {
    /// Time from a tick until the receiver has the block, microseconds; default: one slot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub air_delay_us: Option<u32>,
    /// Slots from a backlog at the UE to its grant, at most 64: scheduling request, buffer status report, grant.
    /// Default: 4.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grant_delay_slots: Option<u8>,
    /// RBs of the downlink that carry no user data.
    pub control: Vec<ControlLoad>,
    /// Whether limiters receive the MAC's forecast of the next pull; default: yes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forecast: Option<bool>,
}

/// Events to emit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TelemetryConfig {
    /// One event per delivered packet.
    pub packets: PacketEvents,
    /// One event per slot and direction.
    pub slots: bool,
    /// One event per slot, direction and UE with a backlog.
    pub ues: bool,
}

/// Packets that cause events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PacketEvents {
    /// No packets.
    #[default]
    None,
    /// Packets to UEs.
    Downlink,
    /// All packets.
    All,
}

impl PacketEvents {
    /// Whether packets of a direction cause events.
    #[must_use]
    #[inline]
    pub const fn has(self, direction: Direction) -> bool {
        match self {
            Self::None => false,
            Self::Downlink => matches!(direction, Direction::Downlink),
            Self::All => true,
        }
    }
}

/// Configuration of a UE.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UeConfig {
    /// Its name, unique.
    pub name: String,
    /// Name of its slice.
    #[serde(default = "default_slice")]
    pub slice: String,
    /// IP addresses, for `n3 = "ip"`.
    #[serde(default)]
    pub addresses: Vec<IpAddr>,
    /// TEID of the downlink, for `n3 = "gtpu"`; default: the number of the UE, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub teid_downlink: Option<u32>,
    /// TEID of the uplink at the UPF; default: that of the downlink.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub teid_uplink: Option<u32>,
    /// Priority for `intra = "priority"`: a lower number goes first.
    #[serde(default)]
    pub priority: u8,
    /// The channel of the downlink.
    pub channel: ChannelConfig,
    /// The channel of the uplink; default: that of the downlink.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uplink_channel: Option<ChannelConfig>,
    /// Rules that map packets to QoS flows; the first match applies.
    #[serde(default)]
    pub qos: Vec<QosRule>,
    /// QoS flow of packets without a matching rule.
    #[serde(default = "default_qfi")]
    pub default_qfi: u8,
    /// SDAP: QoS flows, bearers, scheduler.
    #[serde(default)]
    pub sdap: SdapConfig,
    /// SDAP of the uplink; default: that of the downlink.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uplink_sdap: Option<SdapConfig>,
    /// Configuration of every bearer that is not in `bearers`.
    #[serde(default)]
    pub bearer: BearerConfig,
    /// Bearers with a configuration of their own.
    #[serde(default)]
    pub bearers: Vec<BearerById>,
}

fn default_slice() -> String {
    "default".to_owned()
}
const fn default_qfi() -> u8 {
    9
}

impl UeConfig {
    /// A UE with a channel and default values.
    #[must_use]
    pub fn new(name: impl Into<String>, slice: impl Into<String>, channel: ChannelConfig) -> Self {
        Self {
            name: name.into(),
            slice: slice.into(),
            addresses: Vec::new(),
            teid_downlink: None,
            teid_uplink: None,
            priority: 0,
            channel,
            uplink_channel: None,
            qos: Vec::new(),
            default_qfi: default_qfi(),
            sdap: SdapConfig::default(),
            uplink_sdap: None,
            bearer: BearerConfig::default(),
            bearers: Vec::new(),
        }
    }

    /// The configuration of the bearer with this identity.
    #[must_use]
    pub fn bearer(&self, id: DrbId) -> &BearerConfig {
        self.bearers.iter().find(|b| b.id == id).map_or(&self.bearer, |b| &b.bearer)
    }
}

/// A rule that maps packets to a QoS flow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QosRule {
    /// QFI, 0 to 63.
    pub qfi: u8,
    /// Differentiated services code point, 0 to 63; default: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dscp: Option<u8>,
    /// Addresses, ports and protocol from the UE's point of view; domain, uid and cgroup are not supported.
    #[serde(default)]
    pub filter: Filter,
}

/// Configuration of one bearer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BearerById {
    /// One of `sdap.drbs`.
    pub id: DrbId,
    /// Its configuration.
    #[serde(flatten)]
    pub bearer: BearerConfig,
}

/// Configuration of a bearer, both directions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BearerConfig {
    /// Queue discipline (limiter and RLC buffer) of the downlink.
    pub queue: QueueConfig,
    /// Queue discipline of the uplink; default: that of the downlink.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uplink_queue: Option<QueueConfig>,
    /// RLC mode and parameters.
    pub rlc: RlcConfig,
    /// Maximum number of bytes in the RLC buffer. For comparison: OAI LTE 1 MB, OAI NR 100 MB, srsRAN 6.17 MB, ns-3 10 kB.
    pub limit_bytes: u64,
    /// Maximum number of packets in the RLC buffer.
    pub limit_sdus: usize,
    /// Largest expected packet, bytes, 1 to 9000; larger packets pass as well.
    pub mtu_bytes: u32,
    /// Length of the PDCP sequence number, 12 or 18.
    pub pdcp_sn_bits: u8,
    /// How long PDCP waits for a missing packet, milliseconds, 0 to 3000; default: 50, or 500 where RLC AM retransmits what
    /// HARQ lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub t_reordering_ms: Option<u16>,
    /// Priority of the logical channel, lower numbers first; equal ones in the order of `sdap.drbs`.
    pub priority: u8,
}

impl Default for BearerConfig {
    fn default() -> Self {
        let limit = BufferLimit::default();
        Self {
            queue: crate::queue::Algorithm::Vanilla.into(),
            uplink_queue: None,
            rlc: RlcConfig::default(),
            limit_bytes: limit.bytes,
            limit_sdus: limit.sdus,
            mtu_bytes: 1500,
            pdcp_sn_bits: 18,
            t_reordering_ms: None,
            priority: 0,
        }
    }
}

impl BearerConfig {
    /// A bearer with this queue discipline and default values.
    #[must_use]
    pub fn with_queue(queue: impl Into<QueueConfig>) -> Self {
        Self { queue: queue.into(), ..Self::default() }
    }

    pub(super) fn params(&self, amc: &Amc, direction: Direction, delay_slots: u8, seed: u64) -> BearerParams {
        let limit = BufferLimit { bytes: self.limit_bytes, sdus: self.limit_sdus };
        let pulls = amc.pulls(direction);
        let grant_wait = grant_wait(amc, direction, delay_slots);
        BearerParams { direction, grant_wait, pulls, mtu_bytes: self.mtu_bytes, limit, seed }
    }

    pub(super) fn t_reordering(&self) -> Duration {
        let usual = if matches!(self.rlc, RlcConfig::Am(_)) { 500 } else { 50 };
        Duration::from_millis(self.t_reordering_ms.unwrap_or(usual).into())
    }

    pub(super) fn pdcp_sn(&self) -> PdcpSn {
        if self.pdcp_sn_bits == 12 { PdcpSn::Bits12 } else { PdcpSn::Bits18 }
    }
}

/// Time from a packet's arrival in a direction until a grant `delay_slots` later.
pub(super) fn grant_wait(amc: &Amc, direction: Direction, delay_slots: u8) -> Duration {
    match direction {
        Direction::Downlink => Duration::ZERO,
        Direction::Uplink => amc.slot() * u32::from(delay_slots),
    }
}

/// Why the configuration of a cell is invalid.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum GnbError {
    /// The carrier.
    #[error(transparent)]
    Radio(#[from] AmcError),
    /// Slices or a scheduler.
    #[error(transparent)]
    Sched(#[from] SchedError),
    /// The configuration of a UE.
    #[error("ue \"{ue}\": {what}")]
    Ue {
        /// Name of the UE.
        ue: String,
        /// The fault.
        what: UeError,
    },
    /// A value is out of range.
    #[error("{key} = {value}: must be {remedy}")]
    Value {
        /// The configuration key.
        key: &'static str,
        /// The configured value.
        value: String,
        /// The valid values.
        remedy: &'static str,
    },
}

/// Why the configuration of a UE is invalid.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum UeError {
    /// The channel.
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// A queue discipline.
    #[error(transparent)]
    Queue(#[from] QueueError),
    /// RLC.
    #[error(transparent)]
    Rlc(#[from] RlcError),
    /// SDAP.
    #[error(transparent)]
    Sdap(#[from] SdapError),
    /// A value is out of range.
    #[error("{key} = {value}: must be {remedy}")]
    Value {
        /// The configuration key.
        key: &'static str,
        /// The configured value.
        value: String,
        /// The valid values.
        remedy: String,
    },
}

impl GnbError {
    pub(super) fn value(key: &'static str, value: impl ToString, remedy: &'static str) -> Self {
        Self::Value { key, value: value.to_string(), remedy }
    }
}

impl UeError {
    pub(super) fn value(key: &'static str, value: impl ToString, remedy: impl ToString) -> Self {
        Self::Value { key, value: value.to_string(), remedy: remedy.to_string() }
    }
}
