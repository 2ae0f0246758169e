//! A rule: a filter, and the steering of the traffic that it matches.

use crate::SteeringMode;
use anabranch_rules::Filter;
use serde::de::value::MapAccessDeserializer;
use serde::{Deserialize, Deserializer, Serialize};

/// One ATSSS rule: a filter, and the steering of the traffic that it matches. The first matching rule applies.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Unique name, displayed wherever traffic is attributed to the rule.
    pub name: String,
    /// The filter; an empty one matches everything.
    #[serde(default, deserialize_with = "object")]
    pub filter: Filter,
    /// How the packets are steered.
    #[serde(deserialize_with = "object")]
    pub steering: SteeringMode,
    /// Whether the receiver restores order; `false` for transports that tolerate reordering.
    #[serde(default = "yes")]
    pub reorder: bool,
    /// How its TCP flows are carried. Other packets, such as UDP and QUIC, always use the packet lane.
    #[serde(default, skip_serializing_if = "Functionality::is_ll")]
    pub functionality: Functionality,
}

/// Steering functionality of a rule (TS 23.501 §5.32.6).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Functionality {
    /// The packet lane, ATSSS-LL: packets are steered unchanged.
    #[default]
    Ll,
    /// The TCP lane: TCP is terminated at UE and UPF, with Multipath TCP between them.
    Mptcp,
}

impl Functionality {
    /// The name in the configuration.
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

/// Concatenates lists of rules; of rules with the same name, the first is kept.
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

/// Accepts only a table: for a struct, serde would also accept a list of its fields in order.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coded;
    use anabranch_rules::PortRange;

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
        let defaults = coded::Params { overhead_percent: 30, window_packets: 64, longest_wait_ms: 100 };
        assert!(mode == SteeringMode::Coded(defaults) && mode.splits());
    }
}
