//! A cell as a person writes it.
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

/// Most UEs of a cell.
pub const MAX_UES: usize = 65_535;

/// What goes over N3.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum N3 {
    /// Plain IP packets: the UE by its address, the QoS flow by [`UeConfig::qos`].
    #[default]
    Ip,
    /// GTP-U messages: the UE by its TEID, the QoS flow by the PDU session container.
    Gtpu,
}

/// What is wrong with a packet by N3 that its sender is to be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum N3Fault {
    /// No UE has a tunnel of this TEID (TS 29.281 §7.3.1).
    NoTunnel(u32),
    /// It has an extension header that must be understood and is not (§7.2.3).
    UnknownExtension,
}

/// A cell, as written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GnbConfig {
    /// For whatever is drawn.
    #[serde(default)]
    pub seed: u64,
    /// What goes over N3.
    #[serde(default)]
    pub n3: N3,
    /// The carrier.
    #[serde(default)]
    pub radio: RadioConfig,
    /// The MAC.
    #[serde(default)]
    pub mac: MacConfig,
    /// What the air does to transport blocks.
    #[serde(default)]
    pub harq: HarqConfig,
    /// How the downlink is divided among slices.
    #[serde(default)]
    pub scheduler: InterConfig,
    /// How the uplink is; left out: as the downlink.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uplink_scheduler: Option<InterConfig>,
    /// The slices.
    #[serde(default = "one_slice")]
    pub slices: Vec<SliceConfig>,
    /// The UEs.
    pub ues: Vec<UeConfig>,
    /// What is told.
    #[serde(default)]
    pub telemetry: TelemetryConfig,
    /// As which IOAM node it fills traces that pass; left out: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ioam: Option<IoamConfig>,
}

fn one_slice() -> Vec<SliceConfig> {
    vec![SliceConfig::new("default", 100.0)]
}

/// The MAC's times and loads.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MacConfig {
    /// From a tick until the receiver has the block, microseconds; left out: one slot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub air_delay_us: Option<u32>,
    /// From a backlog at the UE until the grant for it, slots, at most 64: scheduling request, buffer status
    /// report, grant. Left out: 4.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grant_delay_slots: Option<u8>,
    /// RBs of the downlink that carry no user data.
    pub control: Vec<ControlLoad>,
    /// Whether limiters are told what the MAC expects to give next; left out: yes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forecast: Option<bool>,
}

/// Which events there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TelemetryConfig {
    /// One event per packet that was delivered.
    pub packets: PacketEvents,
    /// One event per slot and direction.
    pub slots: bool,
    /// One event per slot, direction and UE with a backlog.
    pub ues: bool,
}

/// Of which packets there are events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PacketEvents {
    /// Of none.
    #[default]
    None,
    /// Of those to UEs.
    Downlink,
    /// Of all.
    All,
}

impl PacketEvents {
    /// Whether there are events of the packets of a direction.
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

/// A UE.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UeConfig {
    /// Its name, unique.
    pub name: String,
    /// The slice it is in.
    #[serde(default = "default_slice")]
    pub slice: String,
    /// Its addresses, for `n3 = "ip"`.
    #[serde(default)]
    pub addresses: Vec<IpAddr>,
    /// Tunnel endpoint identifier of its downlink, for `n3 = "gtpu"`; left out: its number, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub teid_downlink: Option<u32>,
    /// Tunnel endpoint identifier of its uplink at the UPF; left out: as the downlink's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub teid_uplink: Option<u32>,
    /// For `intra = "priority"`: the lower, the sooner.
    #[serde(default)]
    pub priority: u8,
    /// The channel of the downlink.
    pub channel: ChannelConfig,
    /// The channel of the uplink; left out: as the downlink.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uplink_channel: Option<ChannelConfig>,
    /// Which packets belong to which QoS flow; the first that matches.
    #[serde(default)]
    pub qos: Vec<QosRule>,
    /// The QoS flow of what no rule matches.
    #[serde(default = "default_qfi")]
    pub default_qfi: u8,
    /// SDAP: QoS flows, bearers, scheduler.
    #[serde(default)]
    pub sdap: SdapConfig,
    /// SDAP of the uplink; left out: as the downlink.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uplink_sdap: Option<SdapConfig>,
    /// Every bearer that `bearers` does not name.
    #[serde(default)]
    pub bearer: BearerConfig,
    /// Bearers that are different.
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
    /// A UE with a channel and every default.
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

    /// The bearer with this identity.
    #[must_use]
    pub fn bearer(&self, id: DrbId) -> &BearerConfig {
        self.bearers.iter().find(|b| b.id == id).map_or(&self.bearer, |b| &b.bearer)
    }
}

/// Which packets are a QoS flow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QosRule {
    /// The QoS flow.
    pub qfi: u8,
    /// Differentiated services code point, 0 to 63; left out: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dscp: Option<u8>,
    /// Addresses, ports and protocol, seen from the UE; no domain, uid or cgroup.
    #[serde(default)]
    pub filter: Filter,
}

/// A bearer with its identity.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BearerById {
    /// One of `sdap.drbs`.
    pub id: DrbId,
    /// What it is like.
    #[serde(flatten)]
    pub bearer: BearerConfig,
}

/// Both directions of a bearer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BearerConfig {
    /// Queue discipline: limiter and RLC buffer of the downlink.
    pub queue: QueueConfig,
    /// And of the uplink; left out: as the downlink.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uplink_queue: Option<QueueConfig>,
    /// Mode of RLC.
    pub rlc: RlcConfig,
    /// Most bytes in the RLC buffer: OAI's LTE has 1 MB, OAI's NR 100 MB, srsRAN 6.17 MB, ns-3 10 kB.
    pub limit_bytes: u64,
    /// Most packets in the RLC buffer.
    pub limit_sdus: usize,
    /// Largest packet expected, bytes, 1 to 9000; a larger one passes all the same.
    pub mtu_bytes: u32,
    /// Length of the PDCP sequence number, 12 or 18.
    pub pdcp_sn_bits: u8,
    /// How long PDCP waits for a packet that is missing, milliseconds, 0 to 3000; left out: 50, and 500 where
    /// RLC AM sends again what HARQ lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub t_reordering_ms: Option<u16>,
    /// Priority of its logical channel, the lower, the sooner; equal ones in the order of `sdap.drbs`.
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
    /// A bearer with this queue discipline and every default.
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

/// How long a packet of a direction waits for a grant that comes `delay_slots` after it.
pub(super) fn grant_wait(amc: &Amc, direction: Direction, delay_slots: u8) -> Duration {
    match direction {
        Direction::Downlink => Duration::ZERO,
        Direction::Uplink => amc.slot() * u32::from(delay_slots),
    }
}

/// Why a cell cannot be as written.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum GnbError {
    /// The carrier.
    #[error(transparent)]
    Radio(#[from] AmcError),
    /// Slices or a scheduler.
    #[error(transparent)]
    Sched(#[from] SchedError),
    /// Something of a UE.
    #[error("ue \"{ue}\": {what}")]
    Ue {
        /// Its name.
        ue: String,
        /// What is wrong with it.
        what: UeError,
    },
    /// A value is out of its range.
    #[error("{key} = {value}: must be {remedy}")]
    Value {
        /// The key as written.
        key: &'static str,
        /// Its value.
        value: String,
        /// What would be valid.
        remedy: &'static str,
    },
}

/// Why a UE cannot be as written.
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
    /// A value is out of its range.
    #[error("{key} = {value}: must be {remedy}")]
    Value {
        /// The key as written.
        key: &'static str,
        /// Its value.
        value: String,
        /// What would be valid.
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
