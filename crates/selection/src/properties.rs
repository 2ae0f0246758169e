//! Requirements of an application for a connection: selection properties (RFC 9622 §6.2), connection properties (§8.1) and, under
//! `_slice.`, preferences about a slice's facts.
//!
//! Names and defaults are those of RFC 9622, with one difference: `multipath` has no default here. If it is not set, the host uses
//! several paths only when no single one meets the required rates (the paper, §4.4). `"disabled"`, RFC 9622's default, excludes
//! that as well.

use super::{Isolation, Preference};
use anabranch_element::names::did_you_mean;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::num::NonZeroU64;

/// Maximum number of entries of one set property (`interface`, `pvd`, `_slice.5qi`).
pub const MAX_SET: usize = 64;

/// The properties of a future connection.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Properties {
    /// Data arrives without loss. Default: require.
    pub reliability: Preference,
    /// Message boundaries are kept. Default: no preference.
    pub preserve_msg_boundaries: Preference,
    /// Reliability can be chosen message by message. Default: no preference.
    pub per_msg_reliability: Preference,
    /// Data arrives in order. Default: require.
    pub preserve_order: Preference,
    /// A first message may be sent before the handshake has completed. Default: no preference.
    pub zero_rtt_msg: Preference,
    /// Streams over one connection. Default: prefer.
    pub multistreaming: Preference,
    /// The checksum covers all data sent. Default: require.
    pub full_checksum_send: Preference,
    /// The checksum covers all data received. Default: require.
    pub full_checksum_recv: Preference,
    /// Congestion control. Default: require.
    pub congestion_control: Preference,
    /// Keep-alive packets. Default: no preference.
    pub keep_alive: Preference,
    /// ICMP errors are reported. Default: no preference.
    pub soft_error_notify: Preference,
    /// The initiator may read before it has sent. Default: no preference.
    pub active_read_before_send: Preference,
    /// Interfaces by name (`wwan0`) or kind (`cellular`). If several are required, any of them suffices.
    pub interface: BTreeMap<String, Preference>,
    /// Provisioning domains, that is slices, by id. If several are required, any of them suffices.
    pub pvd: BTreeMap<String, Preference>,
    /// A temporary source address (RFC 8981). Default: prefer.
    pub use_temporary_local_address: Preference,
    /// Several paths in one connection. Default: only if the required rates need it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub multipath: Option<Multipath>,
    /// Whether additional local addresses may be advertised to the peer. Default: false.
    pub advertises_altaddr: bool,
    /// Direction of data. Default: both.
    pub direction: Direction,
    /// Priority among the connections of a group, smaller is more urgent. Default: 100.
    pub conn_priority: u32,
    /// Type of traffic. Default: best effort.
    pub conn_capacity_profile: CapacityProfile,
    /// Use of several paths. Default: handover.
    pub multipath_policy: MultipathPolicy,
    /// Minimum sending rate. Default: none.
    pub min_send_rate: Rate,
    /// Minimum receiving rate. Default: none.
    pub min_recv_rate: Rate,
    /// Maximum sending rate, enforced by pacing. Default: no limit.
    pub max_send_rate: Rate,
    /// Maximum receiving rate. Default: no limit.
    pub max_recv_rate: Rate,
    /// Bound for the slice's round-trip time.
    #[serde(rename = "_slice.latency", skip_serializing_if = "Option::is_none")]
    pub slice_latency: Option<LatencyBound>,
    /// Bound for the slice's guaranteed uplink rate.
    #[serde(rename = "_slice.guaranteedSendRate", skip_serializing_if = "Option::is_none")]
    pub slice_send_rate: Option<RateBound>,
    /// Bound for the slice's guaranteed downlink rate.
    #[serde(rename = "_slice.guaranteedRecvRate", skip_serializing_if = "Option::is_none")]
    pub slice_recv_rate: Option<RateBound>,
    /// 5G QoS identifiers of the slice (TS 23.501 §5.7.4). If several are required, any of them suffices.
    #[serde(rename = "_slice.5qi")]
    pub slice_5qi: BTreeMap<u8, Preference>,
    /// Bound for the slice's isolation.
    #[serde(rename = "_slice.isolation", skip_serializing_if = "Option::is_none")]
    pub slice_isolation: Option<IsolationBound>,
}

impl Default for Properties {
    fn default() -> Self {
        use Preference::{NoPreference, Prefer, Require};
        Self {
            reliability: Require,
            preserve_msg_boundaries: NoPreference,
            per_msg_reliability: NoPreference,
            preserve_order: Require,
            zero_rtt_msg: NoPreference,
            multistreaming: Prefer,
            full_checksum_send: Require,
            full_checksum_recv: Require,
            congestion_control: Require,
            keep_alive: NoPreference,
            soft_error_notify: NoPreference,
            active_read_before_send: NoPreference,
            interface: BTreeMap::new(),
            pvd: BTreeMap::new(),
            use_temporary_local_address: Prefer,
            multipath: None,
            advertises_altaddr: false,
            direction: Direction::default(),
            conn_priority: 100,
            conn_capacity_profile: CapacityProfile::default(),
            multipath_policy: MultipathPolicy::default(),
            min_send_rate: Rate::Unlimited,
            min_recv_rate: Rate::Unlimited,
            max_send_rate: Rate::Unlimited,
            max_recv_rate: Rate::Unlimited,
            slice_latency: None,
            slice_send_rate: None,
            slice_recv_rate: None,
            slice_5qi: BTreeMap::new(),
            slice_isolation: None,
        }
    }
}

/// Several paths in one connection (RFC 9622 §6.2.14).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Multipath {
    /// Never.
    Disabled,
    /// Wanted.
    Active,
    /// Only if the peer requests it.
    Passive,
}

/// Direction of data (RFC 9622 §6.2.16). Every protocol here supports all three.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// Both ways.
    #[default]
    Bidirectional,
    /// Only towards the peer.
    UnidirectionalSend,
    /// Only from the peer.
    UnidirectionalReceive,
}

/// Type of traffic (RFC 9622 §8.1.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum CapacityProfile {
    /// Best effort.
    #[default]
    Default,
    /// Background traffic that may wait for all other traffic.
    Scavenger,
    /// Each message is awaited by a person or a controller.
    LowLatencyInteractive,
    /// Low latency without an awaited answer.
    LowLatencyNonInteractive,
    /// A constant rate.
    ConstantRateStreaming,
    /// As much capacity as is available.
    CapacitySeeking,
}

/// Use of several paths (RFC 9622 §8.1.7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MultipathPolicy {
    /// One path at a time.
    #[default]
    Handover,
    /// The path with the least delay.
    Interactive,
    /// All paths together.
    Aggregate,
}

/// A rate in bit/s, or none; in JSON a positive number or `"Unlimited"` (RFC 9622 §8.1.10).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Rate {
    /// No bound.
    #[default]
    Unlimited,
    /// Bits per second.
    Bps(NonZeroU64),
}

impl Rate {
    /// A rate in bit/s; 0 means none.
    #[must_use]
    pub fn bps(bps: u64) -> Self {
        NonZeroU64::new(bps).map_or(Self::Unlimited, Self::Bps)
    }

    /// The rate in bit/s, if set.
    #[must_use]
    pub const fn get(self) -> Option<u64> {
        match self {
            Self::Unlimited => None,
            Self::Bps(bps) => Some(bps.get()),
        }
    }
}

impl Serialize for Rate {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Unlimited => to.serialize_str("Unlimited"),
            Self::Bps(bps) => to.serialize_u64(bps.get()),
        }
    }
}

impl<'de> Deserialize<'de> for Rate {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(from)?;
        match &value {
            Value::String(s) if s.eq_ignore_ascii_case("unlimited") => Ok(Self::Unlimited),
            Value::Number(n) => n.as_u64().and_then(NonZeroU64::new).map(Self::Bps).ok_or_else(|| {
                D::Error::custom(format!("{n} is no rate: write whole bits per second, 1 or more"))
            }),
            _ => Err(D::Error::custom(format!(
                "{value} is no rate: write whole bits per second, 1 or more, or \"Unlimited\""
            ))),
        }
    }
}

/// A bound for a slice's round-trip time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LatencyBound {
    /// Maximum acceptable upper bound of the round-trip time, in microseconds.
    pub at_most_us: NonZeroU64,
    /// The preference. Default: prefer.
    #[serde(default = "prefer")]
    pub preference: Preference,
}

/// A bound for a guaranteed rate of a slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RateBound {
    /// Minimum acceptable guarantee, in bit/s.
    pub at_least_bps: NonZeroU64,
    /// The preference. Default: prefer.
    #[serde(default = "prefer")]
    pub preference: Preference,
}

/// A bound for a slice's isolation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct IsolationBound {
    /// Minimum acceptable isolation.
    pub at_least: Isolation,
    /// The preference. Default: prefer.
    #[serde(default = "prefer")]
    pub preference: Preference,
}

fn prefer() -> Preference {
    Preference::Prefer
}

/// Why properties are invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("property \"{property}\": {reason}")]
pub struct PropertyError {
    /// The faulty property; empty for the whole document.
    pub property: String,
    /// The fault, and the valid form.
    pub reason: String,
}

impl PropertyError {
    fn new(property: &str, reason: impl Into<String>) -> Self {
        Self { property: property.to_owned(), reason: reason.into() }
    }
}

/// The names of all properties.
const NAMES: [&str; 30] = [
    "reliability",
    "preserveMsgBoundaries",
    "perMsgReliability",
    "preserveOrder",
    "zeroRttMsg",
    "multistreaming",
    "fullChecksumSend",
    "fullChecksumRecv",
    "congestionControl",
    "keepAlive",
    "softErrorNotify",
    "activeReadBeforeSend",
    "interface",
    "pvd",
    "useTemporaryLocalAddress",
    "multipath",
    "advertisesAltaddr",
    "direction",
    "connPriority",
    "connCapacityProfile",
    "multipathPolicy",
    "minSendRate",
    "minRecvRate",
    "maxSendRate",
    "maxRecvRate",
    "_slice.latency",
    "_slice.guaranteedSendRate",
    "_slice.guaranteedRecvRate",
    "_slice.5qi",
    "_slice.isolation",
];

impl Properties {
    /// The names of all properties, as in JSON.
    pub const NAMES: &'static [&'static str] = &NAMES;

    /// Reads properties from a JSON object; omitted ones have their defaults.
    ///
    /// # Errors
    /// The faulty property, and the valid values.
    pub fn from_json(value: Value) -> Result<Self, PropertyError> {
        let Value::Object(map) = value else {
            return Err(PropertyError::new(
                "",
                "properties are an object, such as {\"reliability\": \"require\"}",
            ));
        };
        let mut whole = Map::new();
        for (name, value) in map {
            if !NAMES.contains(&name.as_str()) {
                return Err(PropertyError::new(
                    &name,
                    format!("there is no such property{}", did_you_mean(&name, NAMES)),
                ));
            }
            // One at a time, so that an error can be attributed to the property.
            let one = Map::from_iter([(name.clone(), value.clone())]);
            serde_json::from_value::<Self>(Value::Object(one))
                .map_err(|e| PropertyError::new(&name, e.to_string()))?;
            whole.insert(name, value);
        }
        let read: Self = serde_json::from_value(Value::Object(whole))
            .map_err(|e| PropertyError::new("", e.to_string()))?;
        read.check()?;
        Ok(read)
    }

    /// Rejects contradictory properties.
    ///
    /// # Errors
    /// The faulty property, and the reason.
    pub fn check(&self) -> Result<(), PropertyError> {
        let sizes = [
            ("interface", self.interface.len()),
            ("pvd", self.pvd.len()),
            ("_slice.5qi", self.slice_5qi.len()),
        ];
        if let Some((name, size)) = sizes.into_iter().find(|(_, size)| *size > MAX_SET) {
            return Err(PropertyError::new(name, format!("{size} entries; at most {MAX_SET}")));
        }
        for (least, most, name) in [
            (self.min_send_rate, self.max_send_rate, "minSendRate"),
            (self.min_recv_rate, self.max_recv_rate, "minRecvRate"),
        ] {
            if let (Some(least), Some(most)) = (least.get(), most.get())
                && least > most
            {
                let limit = name.replace("min", "max");
                return Err(PropertyError::new(
                    name,
                    format!("{least} bit/s is above {limit}, {most} bit/s"),
                ));
            }
        }
        Ok(())
    }
}
