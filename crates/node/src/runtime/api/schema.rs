//! Rules as the OpenAPI description shows them: `rules`, whose types know nothing of OpenAPI,
//! mirrored. A test holds the two together.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// One ATSSS rule: which traffic, and how it is steered.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = Rule)]
#[serde(deny_unknown_fields)]
pub struct RuleSchema {
    /// Unique name.
    name: String,
    /// Which packets; an empty filter matches everything.
    #[serde(default)]
    filter: FilterSchema,
    /// How they are steered.
    steering: SteeringSchema,
    /// Whether the receiver restores order; default true.
    #[serde(default)]
    #[schema(default = true)]
    reorder: bool,
    /// What carries its TCP flows; others of its packets go by the packet lane always.
    #[serde(default, skip_serializing_if = "FunctionalitySchema::is_ll")]
    functionality: FunctionalitySchema,
}

/// Steering functionality.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Functionality)]
#[serde(rename_all = "lowercase")]
pub enum FunctionalitySchema {
    /// The packet lane: packets are steered as they are.
    #[default]
    Ll,
    /// The TCP lane: TCP ends at UE and UPF, with Multipath TCP between them.
    Mptcp,
}

impl FunctionalitySchema {
    fn is_ll(&self) -> bool {
        *self == Self::Ll
    }
}

/// Traffic selector from the UE's side; all fields given must match.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[schema(as = Filter)]
#[serde(deny_unknown_fields, default)]
pub struct FilterSchema {
    /// Transport protocol.
    protocol: Option<ProtocolSchema>,
    /// Address or prefix of the UE side.
    #[schema(example = "10.45.0.0/24")]
    local: Option<String>,
    /// Address or prefix of the far side.
    #[schema(example = "203.0.113.0/24")]
    remote: Option<String>,
    /// Port of the UE side, or "first-last".
    local_port: Option<PortSchema>,
    /// Port of the far side, or "first-last".
    remote_port: Option<PortSchema>,
    /// Domain name, learned from DNS answers; matches everything below it too.
    domain: Option<String>,
    /// User id of the sending process on the UE.
    uid: Option<u32>,
    /// cgroup v2 path of the sending process on the UE.
    cgroup: Option<String>,
}

/// Transport protocol.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = Protocol)]
#[serde(rename_all = "lowercase")]
pub enum ProtocolSchema {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// ICMP or ICMPv6.
    Icmp,
}

/// A port, or a range written "5000-5100".
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = PortRange)]
#[serde(untagged)]
pub enum PortSchema {
    /// One port.
    One(u16),
    /// "first-last".
    Range(String),
}

/// Steering mode and its parameters.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = SteeringMode)]
#[serde(tag = "mode", rename_all = "kebab-case", deny_unknown_fields)]
pub enum SteeringSchema {
    /// The primary access while it is available, else the best other one.
    ActiveStandby {
        /// Preferred access.
        primary: String,
        /// Moves on to the next access after so many packets, for experiments; 0 (default): stays.
        #[serde(default)]
        rotate_packets: u32,
        /// An access that steadily loses more is left while another loses less, in percent; default 5,
        /// 100: loss does not matter.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        leave_above_loss_percent: Option<u8>,
    },
    /// A share per access.
    LoadBalance {
        /// Shares in percent, steps of 10, summing to 100; empty: equal.
        #[serde(default)]
        weights: Vec<WeightSchema>,
        /// Unit that is split; default packet.
        #[serde(default)]
        per: GranularitySchema,
        /// Flows keep to one access; packets leave it where they arrive no later.
        #[serde(default)]
        autonomous: bool,
    },
    /// The access with the smallest RTT.
    SmallestDelay {
        /// How much smaller a new RTT must be, in percent; default 10.
        #[serde(default)]
        hysteresis_percent: u8,
        /// Least time between two changes, in milliseconds; default 500.
        #[serde(default)]
        dwell_ms: u32,
        /// An access that steadily loses more is left while another loses less, in percent; default 5,
        /// 100: loss does not matter.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        leave_above_loss_percent: Option<u8>,
    },
    /// The high-priority access until its RTT or loss passes a threshold, then overflow.
    PriorityBased {
        /// High-priority access.
        primary: String,
        /// RTT threshold in milliseconds.
        #[serde(default)]
        rtt_ms: Option<f64>,
        /// Loss threshold in percent.
        #[serde(default)]
        loss_percent: Option<f64>,
    },
    /// Every packet on every access.
    Redundant {
        /// Only above this loss, in percent.
        #[serde(default)]
        above_loss_percent: Option<f64>,
    },
    /// Every packet once, on the best access, and repair packets on another.
    Coded {
        /// Most bytes of repair packets, in percent of the packets' own; 10 to 100, default 30.
        #[serde(default)]
        overhead_percent: u8,
        /// Most packets one repair packet covers; 1 to 128, default 64.
        #[serde(default)]
        window_packets: u8,
        /// How long a lost packet is worth waiting for, in milliseconds; 10 to 1000, default 100.
        #[serde(default)]
        longest_wait_ms: u16,
    },
}

/// Share of one access.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = Weight)]
#[serde(deny_unknown_fields)]
pub struct WeightSchema {
    /// Which access.
    access: String,
    /// 0 to 100, in steps of 10.
    percent: u8,
}

/// What load-balance mode splits.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[schema(as = Granularity)]
#[serde(rename_all = "lowercase")]
pub enum GranularitySchema {
    /// Packet by packet.
    #[default]
    Packet,
    /// Flow by flow.
    Flow,
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_rules::Rule;

    /// Every mode and every filter key, through `core` and through the mirror: the same JSON.
    #[test]
    fn the_mirror_shows_what_core_speaks() {
        let all = [
            r#"{"name":"a","filter":{"protocol":"tcp","local":"10.0.0.0/8","remote":"2001:db8::/32","local_port":"1-2","remote_port":443,"domain":"a.example","uid":7,"cgroup":"x"},"steering":{"mode":"active-standby","primary":"5g","rotate_packets":7},"reorder":false}"#,
            r#"{"name":"b","filter":{"protocol":"udp"},"steering":{"mode":"load-balance","weights":[{"access":"5g","percent":100}],"per":"flow","autonomous":true},"reorder":true}"#,
            r#"{"name":"c","filter":{"protocol":"icmp"},"steering":{"mode":"smallest-delay","hysteresis_percent":20,"dwell_ms":500,"leave_above_loss_percent":7},"reorder":true}"#,
            r#"{"name":"d","filter":{},"steering":{"mode":"priority-based","primary":"5g","rtt_ms":5.5,"loss_percent":1.0},"reorder":true}"#,
            r#"{"name":"e","filter":{},"steering":{"mode":"redundant","above_loss_percent":2.0},"reorder":true,"functionality":"mptcp"}"#,
            r#"{"name":"f","filter":{},"steering":{"mode":"coded","overhead_percent":50,"window_packets":32,"longest_wait_ms":60},"reorder":false}"#,
        ];
        for text in all {
            let core: Rule = serde_json::from_str(text).unwrap();
            let emitted = serde_json::to_string(&core).unwrap();
            assert_eq!(emitted, text);
            let mirror: RuleSchema = serde_json::from_str(&emitted).unwrap();
            let mut shown = serde_json::to_value(&mirror).unwrap();
            let filter = shown["filter"].as_object_mut().unwrap();
            filter.retain(|_, value| !value.is_null());
            assert_eq!(shown, serde_json::from_str::<serde_json::Value>(text).unwrap());
        }
    }
}
