//! A rule: which traffic, and how it is steered.

use crate::SteeringMode;
use anabranch_rules::Filter;
use serde::de::value::MapAccessDeserializer;
use serde::{Deserialize, Deserializer, Serialize};

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
