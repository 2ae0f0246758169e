//! A rule: a filter, and the steering of the traffic that it matches.

use crate::SteeringMode;
use anabranch_rules::{Filter, MAX_NAME};
use serde::de::value::MapAccessDeserializer;
use serde::{Deserialize, Deserializer, Serialize};
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

/// One ATSSS rule: a filter, and the steering of the traffic that it matches. The first matching rule applies.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Name, unique in its list; displayed wherever traffic is attributed to the rule.
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

/// Mark of a rule of the UPF in the joint list of UE and UPF, if a rule before it has its name.
pub const OF_UPF: &str = "upf";
/// Mark of a rule for all UEs in the UPF's list for one UE, if a rule for this UE has its name.
pub const OF_ALL: &str = "all UEs";

/// A rule of a joint list.
#[derive(Debug, Clone)]
pub struct JointRule<'a, O> {
    /// Where it is defined.
    pub origin: O,
    /// Its name in the list.
    pub name: Cow<'a, str>,
    /// Its definition.
    pub rule: &'a Rule,
}

impl<'a, O> JointRule<'a, O> {
    /// A rule with its own name.
    #[must_use]
    pub const fn new(origin: O, rule: &'a Rule) -> Self {
        Self { origin, name: Cow::Borrowed(rule.name.as_str()), rule }
    }
}

/// Joins rules in the order of matching. Counters, events, and the messages in which a UE states the rule of
/// a flow identify a rule by its name, so both ends derive the same distinct names: the first rule with a
/// name keeps it, and a later one is marked, as `bond (upf)`, then `bond (upf 2)`. A rule with the name and
/// the filter of an earlier one never matches and is left out.
#[must_use]
pub fn joint<'a, O>(
    rules: impl Iterator<Item = JointRule<'a, O>> + Clone,
    mark: &str,
) -> Vec<JointRule<'a, O>> {
    // A mark does not make a name equal to one that is given.
    let mut taken: HashSet<Cow<'a, str>> = rules.clone().map(|rule| rule.name).collect();
    let mut filters: HashMap<Cow<'a, str>, Vec<&'a Filter>> = HashMap::new();
    let distinct = |JointRule { origin, name, rule }: JointRule<'a, O>| {
        let before = filters.entry(name.clone()).or_default();
        if before.contains(&&rule.filter) {
            return None;
        }
        before.push(&rule.filter);
        if before.len() == 1 {
            return Some(JointRule { origin, name, rule });
        }
        let other = (1_u32..).map(|number| match number {
            1 => marked(&name, &format!(" ({mark})")),
            _ => marked(&name, &format!(" ({mark} {number})")),
        });
        let name = other.map(Cow::<'a, str>::Owned).find(|other| taken.insert(other.clone()))?;
        Some(JointRule { origin, name, rule })
    };
    rules.filter_map(distinct).collect()
}

/// Lists of rules joined as by [`joint`].
#[must_use]
pub fn chained<'a>(lists: impl IntoIterator<Item = &'a [Rule], IntoIter: Clone>, mark: &str) -> Vec<Rule> {
    let rules = lists.into_iter().flatten().map(|rule| JointRule::new((), rule));
    let named = |joint: JointRule<'_, ()>| Rule { name: joint.name.into_owned(), ..joint.rule.clone() };
    joint(rules, mark).into_iter().map(named).collect()
}

/// A name with a mark, cut to the longest valid name.
fn marked(name: &str, mark: &str) -> String {
    let most = name.len().min(MAX_NAME - mark.len());
    let end = (0..=most).rev().find(|end| name.is_char_boundary(*end)).unwrap_or(0);
    format!("{}{mark}", &name[..end])
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
    fn rules_with_one_name_stay_in_a_joint_list_with_distinct_names() {
        let rules = |names: &[&str]| -> Vec<Rule> {
            let rule = |(port, name): (u16, &&str)| {
                let filter = serde_json::json!({"remote_port": port});
                let rule =
                    serde_json::json!({"name": name, "filter": filter, "steering": {"mode": "redundant"}});
                serde_json::from_value(rule).unwrap()
            };
            (1..).zip(names).map(rule).collect()
        };
        let names = |names: &[&str]| -> Vec<String> {
            chained([&*rules(names)], OF_UPF).into_iter().map(|rule| rule.name).collect()
        };
        assert_eq!(names(&["a", "b", "c"]).join(", "), "a, b, c");
        assert_eq!(names(&["a", "b", "a", "a"]).join(", "), "a, b, a (upf), a (upf 2)");
        // A name that is given is not used for another rule, wherever it is.
        assert_eq!(names(&["a", "a", "a (upf)"]).join(", "), "a, a (upf 2), a (upf)");
        let twice = names(&["a", "a (upf)", "a", "a (upf)"]);
        assert_eq!(twice.join(", "), "a, a (upf), a (upf 2), a (upf) (upf)");
        for long in ["x".repeat(128), "ü".repeat(64), format!("x{}y", "ü".repeat(63))] {
            let names = names(&[&*long; 240]);
            assert!(names.iter().all(|name| anabranch_rules::is_name(name)), "{names:?}");
            assert_eq!(names.iter().collect::<HashSet<_>>().len(), 240);
        }
        // The same filter again would never match.
        let again = chained([&*rules(&["a", "b"]), &rules(&["a", "c"])], OF_ALL);
        assert_eq!(again.iter().map(|rule| &*rule.name).collect::<Vec<_>>(), ["a", "b", "c"]);
    }

    #[test]
    fn coded_mode_has_defaults() {
        let mode: SteeringMode = serde_json::from_str(r#"{"mode":"coded"}"#).unwrap();
        let defaults = coded::Params { overhead_percent: 30, window_packets: 64, longest_wait_ms: 100 };
        assert!(mode == SteeringMode::Coded(defaults) && mode.splits());
    }
}
