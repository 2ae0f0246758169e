//! Plain policy types: what a person or a policy function writes, before anything is resolved to
//! indices. Shared by configuration files, the REST interface and the CONFIG message of the tunnel.
//!
//! Steering functionality and modes: TS 23.501 §5.32.8, TS 24.193 §6.1.3 (ATSSS rules); thresholds and
//! indicators: TS 29.244 §8.2.146 ff. Modes as in JUNCTION §II-A.
//!
//! ```
//! use anabranch_rules::{Rule, SteeringMode};
//!
//! let rule: Rule = serde_json::from_str(
//!     r#"{ "name": "calls", "filter": { "protocol": "udp" }, "steering": { "mode": "redundant" } }"#,
//! )?;
//! assert!(matches!(rule.steering, SteeringMode::Redundant { .. }));
//! # Ok::<(), serde_json::Error>(())
//! ```
#![forbid(unsafe_code)]
#![deny(missing_docs)]

use ipnet::IpNet;
use serde::de::value::MapAccessDeserializer;
use serde::{Deserialize, Deserializer, Serialize};

/// Default of `dwell_ms` in smallest-delay mode, in milliseconds.
pub const DEFAULT_DWELL_MS: u32 = 500;

/// Default of `overhead_percent` in coded mode.
pub const DEFAULT_OVERHEAD_PERCENT: u8 = 30;
/// Default of `window_packets` in coded mode.
pub const DEFAULT_WINDOW_PACKETS: u8 = 64;
/// Default of `longest_wait_ms` in coded mode, in milliseconds.
pub const DEFAULT_LONGEST_WAIT_MS: u16 = 100;
/// Default of `leave_above_loss_percent`.
pub const DEFAULT_LEAVE_PERCENT: u8 = 5;

/// The name of an access of a UE, such as `5g` or `wifi`.
pub type AccessName = String;

/// One ATSSS rule: which traffic, and how it is steered. The first rule that matches wins.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Unique name, shown wherever traffic is attributed to the rule.
    pub name: String,
    /// Which packets; an empty filter matches everything.
    #[serde(default, deserialize_with = "object")]
    pub filter: Filter,
    /// How they are steered.
    #[serde(deserialize_with = "object")]
    pub steering: SteeringMode,
    /// Whether the receiver restores order. Off for transports that do not care.
    #[serde(default = "yes")]
    pub reorder: bool,
    /// What carries its TCP flows. Others of its packets, such as UDP and QUIC, go by the packet lane always.
    #[serde(default, skip_serializing_if = "Functionality::is_ll")]
    pub functionality: Functionality,
}

/// Steering functionality of a rule (TS 23.501 §5.32.6).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Functionality {
    /// The packet lane, ATSSS-LL: packets are steered as they are.
    #[default]
    Ll,
    /// The TCP lane: TCP ends at UE and UPF, with Multipath TCP between them.
    Mptcp,
}

impl Functionality {
    /// As written in configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ll => "ll",
            Self::Mptcp => "mptcp",
        }
    }

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
    const fn is_ll(&self) -> bool {
        matches!(self, Self::Ll)
    }
}

/// Traffic selector, written from the UE's side: *local* is the UE, *remote* the far end.
///
/// All fields given must match. `domain`, `uid` and `cgroup` can only be evaluated at the UE; a rule
/// that has one matches downlink packets of a flow because the flow was classified by the UE first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Filter {
    /// Transport protocol.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<Protocol>,
    /// Address or prefix of the UE side.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local: Option<IpNet>,
    /// Address or prefix of the far side.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote: Option<IpNet>,
    /// Port or port range of the UE side.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local_port: Option<PortRange>,
    /// Port or port range of the far side.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote_port: Option<PortRange>,
    /// Domain name; matches the name and everything below it, learned from DNS answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// Numeric user id of the sending process on the UE.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// cgroup v2 path of the sending process on the UE, relative to the cgroup root.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
}

/// Transport protocol of a [`Filter`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// Transmission Control Protocol (6).
    Tcp,
    /// User Datagram Protocol (17).
    Udp,
    /// ICMP (1) or ICMPv6 (58).
    Icmp,
}

/// An inclusive range of ports, written `443` or `"5000-5100"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "PortSpec", into = "PortSpec")]
pub struct PortRange {
    /// First port.
    pub first: u16,
    /// Last port, not smaller than the first.
    pub last: u16,
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum PortSpec {
    One(u16),
    Range(String),
}

impl TryFrom<PortSpec> for PortRange {
    type Error = String;
    fn try_from(spec: PortSpec) -> Result<Self, String> {
        match spec {
            PortSpec::One(p) => Ok(Self { first: p, last: p }),
            PortSpec::Range(s) => {
                let wrong =
                    || format!("port range \"{s}\": write a port (443) or \"first-last\" (\"5000-5100\")");
                let (first, last) = s.split_once('-').unwrap_or((&s, &s));
                let first = first.trim().parse().map_err(|_| wrong())?;
                let last = last.trim().parse().map_err(|_| wrong())?;
                if first > last { Err(wrong()) } else { Ok(Self { first, last }) }
            }
        }
    }
}

impl From<PortRange> for PortSpec {
    fn from(r: PortRange) -> Self {
        if r.first == r.last { Self::One(r.first) } else { Self::Range(format!("{}-{}", r.first, r.last)) }
    }
}

/// How the packets of a rule are spread over the accesses (JUNCTION §II-A; TS 23.501 §5.32.8).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "mode", rename_all = "kebab-case", deny_unknown_fields)]
pub enum SteeringMode {
    /// The primary access while it is available, else the best other one.
    ActiveStandby {
        /// Preferred access.
        primary: AccessName,
        /// Moves on to the next access that is up after so many packets; 0: stays. Not of TS 24.193: it
        /// exercises the reordering of switches (JUNCTION §VI-C). What a UE asks for holds for its uplink.
        #[serde(default, skip_serializing_if = "is_zero")]
        rotate_packets: u32,
        /// An access that steadily loses more than this is left while another loses less, in percent; 100:
        /// loss does not matter.
        #[serde(default = "five", skip_serializing_if = "is_five")]
        leave_above_loss_percent: u8,
    },
    /// A share per access; an access that is down is skipped and its share redistributed.
    LoadBalance {
        /// Shares in percent, steps of 10, summing to 100. Empty: equal shares.
        #[serde(default)]
        weights: Vec<Weight>,
        /// Unit that is split.
        #[serde(default)]
        per: Granularity,
        /// Autonomous load-balance indicator (TS 29.244): shares follow the measured delivery rates.
        #[serde(default)]
        autonomous: bool,
    },
    /// The access with the smallest non-zero RTT.
    SmallestDelay {
        /// A change needs the new RTT to be smaller by this share of the old one, in percent.
        #[serde(default = "ten")]
        hysteresis_percent: u8,
        /// Least time between two changes while both accesses are up, in milliseconds.
        #[serde(default = "dwell")]
        dwell_ms: u32,
        /// An access that steadily loses more than this is left while another loses less, in percent; 100:
        /// loss does not matter.
        #[serde(default = "five", skip_serializing_if = "is_five")]
        leave_above_loss_percent: u8,
    },
    /// The high-priority access until its RTT or loss passes a threshold, then overflow to the others.
    PriorityBased {
        /// High-priority access.
        primary: AccessName,
        /// RTT threshold in milliseconds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rtt_ms: Option<f64>,
        /// Packet loss threshold in percent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        loss_percent: Option<f64>,
    },
    /// Every packet on every access, de-duplicated at the far end.
    Redundant {
        /// Only while the loss of the best access is above this, in percent. Absent: always.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        above_loss_percent: Option<f64>,
    },
    /// Every packet once, on the best access, and repair packets over the latest ones on another. Not of TS 24.193.
    Coded {
        /// Most bytes of repair packets, in percent of the packets' own.
        #[serde(default = "overhead")]
        overhead_percent: u8,
        /// Most packets one repair packet covers.
        #[serde(default = "window")]
        window_packets: u8,
        /// How long a lost packet is worth waiting for, in milliseconds; so long, too, order is kept across a gap.
        #[serde(default = "longest_wait")]
        longest_wait_ms: u16,
    },
}

/// Share of one access in load-balance mode.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Weight {
    /// Which access.
    pub access: AccessName,
    /// 0 to 100, in steps of 10.
    pub percent: u8,
}

/// What load-balance mode splits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Granularity {
    /// Packet by packet, by the last digit of the sequence number (JUNCTION §V-C3).
    #[default]
    Packet,
    /// Flow by flow (standard ATSSS-LL).
    Flow,
}

impl SteeringMode {
    /// The mode's name as written in configuration.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::ActiveStandby { .. } => "active-standby",
            Self::LoadBalance { .. } => "load-balance",
            Self::SmallestDelay { .. } => "smallest-delay",
            Self::PriorityBased { .. } => "priority-based",
            Self::Redundant { .. } => "redundant",
            Self::Coded { .. } => "coded",
        }
    }

    /// The accesses the mode names.
    pub fn accesses(&self) -> impl Iterator<Item = &AccessName> {
        let (primary, weights) = match self {
            Self::ActiveStandby { primary, .. } | Self::PriorityBased { primary, .. } => {
                (Some(primary), &[][..])
            }
            Self::LoadBalance { weights, .. } => (None, weights.as_slice()),
            Self::SmallestDelay { .. } | Self::Redundant { .. } | Self::Coded { .. } => (None, &[][..]),
        };
        primary.into_iter().chain(weights.iter().map(|w| &w.access))
    }

    /// Whether packets of one flow may be on several paths at the same time.
    #[must_use]
    pub const fn splits(&self) -> bool {
        match self {
            Self::LoadBalance { per, .. } => matches!(per, Granularity::Packet),
            Self::PriorityBased { .. } | Self::Redundant { .. } | Self::Coded { .. } => true,
            Self::ActiveStandby { .. } | Self::SmallestDelay { .. } => false,
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
const fn is_zero(n: &u32) -> bool {
    *n == 0
}

/// Lists of rules as one, in order; of rules with one name the first stands.
#[must_use]
pub fn chained<'a>(lists: impl IntoIterator<Item = &'a [Rule]>) -> Vec<Rule> {
    let mut all: Vec<Rule> = Vec::new();
    for rule in lists.into_iter().flatten() {
        if all.iter().all(|other| other.name != rule.name) {
            all.push(rule.clone());
        }
    }
    all
}

const fn yes() -> bool {
    true
}

/// Reads a table: serde takes a list for a struct, too, its fields in order.
fn object<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<T, D::Error> {
    struct Table<T>(std::marker::PhantomData<T>);
    impl<'de, T: Deserialize<'de>> serde::de::Visitor<'de> for Table<T> {
        type Value = T;
        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a table")
        }
        fn visit_map<A: serde::de::MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
            T::deserialize(MapAccessDeserializer::new(map))
        }
    }
    deserializer.deserialize_map(Table(std::marker::PhantomData))
}

const fn ten() -> u8 {
    10
}

const fn overhead() -> u8 {
    DEFAULT_OVERHEAD_PERCENT
}

const fn window() -> u8 {
    DEFAULT_WINDOW_PACKETS
}

const fn longest_wait() -> u16 {
    DEFAULT_LONGEST_WAIT_MS
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
const fn is_five(percent: &u8) -> bool {
    *percent == DEFAULT_LEAVE_PERCENT
}

const fn five() -> u8 {
    DEFAULT_LEAVE_PERCENT
}

const fn dwell() -> u32 {
    DEFAULT_DWELL_MS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_round_trips_through_json() {
        let text = r#"{"name":"web","filter":{"protocol":"tcp","remote_port":"80-443"},"steering":{"mode":"load-balance","weights":[{"access":"5g","percent":30},{"access":"wifi","percent":70}]}}"#;
        let rule: Rule = serde_json::from_str(text).unwrap();
        assert!(rule.reorder && rule.steering.splits() && rule.functionality == Functionality::Ll);
        assert_eq!(rule.filter.remote_port, Some(PortRange { first: 80, last: 443 }));
        let again: Rule = serde_json::from_str(&serde_json::to_string(&rule).unwrap()).unwrap();
        assert_eq!(again, rule);
    }

    #[test]
    fn coded_mode_has_defaults() {
        let mode: SteeringMode = serde_json::from_str(r#"{"mode":"coded"}"#).unwrap();
        let defaults = SteeringMode::Coded { overhead_percent: 30, window_packets: 64, longest_wait_ms: 100 };
        assert!(mode == defaults && mode.splits());
    }

    #[test]
    fn a_wrong_range_names_the_remedy() {
        let error = serde_json::from_str::<Filter>(r#"{"local_port":"9-1"}"#).unwrap_err().to_string();
        assert!(error.contains("\"9-1\"") && error.contains("first-last"), "{error}");
    }
}
