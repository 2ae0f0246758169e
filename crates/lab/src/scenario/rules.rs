//! Shapes of the types of `anabranch_rules`, a crate that does not depend on the scenario format.

use super::schema::{Described, Key, Shape, Table};
use anabranch_rules::Filter;
use anabranch_steer::{ModeName, ParamKind, Rule, SteeringMode};
use std::sync::LazyLock;

static RULE: LazyLock<Table> = LazyLock::new(rule);
static FILTER: LazyLock<Table> = LazyLock::new(filter);
static STEERING: LazyLock<Table> = LazyLock::new(steering);
static WEIGHT: LazyLock<Table> = LazyLock::new(weight);

impl Described for Rule {
    fn shape() -> Shape {
        Shape::Table(&RULE)
    }
}

impl Described for Filter {
    fn shape() -> Shape {
        Shape::Table(&FILTER)
    }
}

impl Described for SteeringMode {
    fn shape() -> Shape {
        Shape::Table(&STEERING)
    }
}

fn rule() -> Table {
    Table {
        name: "Rule",
        doc: "An ATSSS rule: selects traffic and its steering mode.".into(),
        tag: None,
        keys: vec![
            Key::new("name", Shape::Text, &["Unique name."], None).required(),
            Key::new(
                "filter",
                Shape::Table(&FILTER),
                &["Packets to which the rule applies; default: all."],
                None,
            ),
            Key::new("steering", Shape::Table(&STEERING), &["Steering mode of these packets."], None)
                .required(),
            Key::new(
                "reorder",
                Shape::Bool,
                &[
                    "Whether the receiver restores the packet order. Disable it for transports that tolerate reordering.",
                ],
                Some("true".into()),
            ),
            Key::new(
                "functionality",
                Shape::OneOf(&["ll", "mptcp"]),
                &[
                    "Lane of its TCP flows: `ll` is the packet lane, `mptcp` the TCP lane (docs/tcp-lane.md; namespaces only).",
                ],
                Some("\"ll\"".into()),
            ),
        ],
    }
}

fn filter() -> Table {
    let text = |name, doc: &'static str| Key::new(name, Shape::Text, &[doc], None);
    Table {
        name: "Filter",
        doc: "A traffic selector, as seen from the UE: local is the UE, remote the far end. All \
              given keys must match."
            .into(),
        tag: None,
        keys: vec![
            Key::new("protocol", Shape::OneOf(&["tcp", "udp", "icmp"]), &["Transport protocol."], None),
            text("local", "Address or prefix of the UE."),
            text("remote", "Address or prefix of the far end."),
            Key::new("local_port", Shape::NumberOrText, &["Port, or range \"first-last\", of the UE."], None)
                .range(0.0, 65_535.0),
            Key::new(
                "remote_port",
                Shape::NumberOrText,
                &["Port, or range \"first-last\", of the far end, such as the `port` of a flow."],
                None,
            )
            .range(0.0, 65_535.0),
        ],
    }
}

fn steering() -> Table {
    let mut keys =
        vec![Key::new("mode", Shape::OneOf(ModeName::NAMES), &["Name of the mode."], None).required()];
    for (param, modes) in ModeName::all_params() {
        let default = param.default.as_ref().map(ToString::to_string);
        let about = format!("{}.", param.about);
        let key = Key::new(param.name, shape(param.kind), &[&about], default).only(&modes);
        keys.push(Key { required: param.required, range: param.range, ..key });
    }
    let doc = "A steering mode (JUNCTION §II-A; TS 23.501 §5.32.8).".into();
    Table { name: "Steering", doc, tag: Some("mode"), keys }
}

fn shape(kind: ParamKind) -> Shape {
    match kind {
        ParamKind::Bool => Shape::Bool,
        ParamKind::Integer(_) => Shape::Integer,
        ParamKind::Number => Shape::Number,
        ParamKind::Access => Shape::Text,
        ParamKind::Weights => Shape::List(Box::new(Shape::Table(&WEIGHT))),
        ParamKind::Words(words) => Shape::OneOf(words),
    }
}

fn weight() -> Table {
    Table {
        name: "Weight",
        doc: "Share of one access in load-balance mode.".into(),
        tag: None,
        keys: vec![
            Key::new("access", Shape::Text, &["Name of the access."], None).required(),
            Key::new(
                "percent",
                Shape::Integer,
                &["Share of the access, in steps of 10; the sum is 100."],
                None,
            )
            .required()
            .range(0.0, 100.0),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_rules::Filter;

    fn words(table: &Table) -> Vec<&'static str> {
        table.keys.iter().map(|k| k.name).collect()
    }

    #[test]
    fn shapes_name_every_key_the_policy_types_accept() {
        // The error of serde for an unknown field lists all expected fields.
        let expected = |error: String| {
            let mut names: Vec<String> = error
                .split('`')
                .skip(3)
                .step_by(2)
                .map(str::to_owned)
                .filter(|n| n != "uid" && n != "cgroup" && n != "domain")
                .collect();
            names.sort();
            names
        };
        let sorted = |mut v: Vec<&str>| {
            v.sort_unstable();
            v.into_iter().map(str::to_owned).collect::<Vec<_>>()
        };
        let error = toml::from_str::<Rule>("x = 1").unwrap_err().message().to_owned();
        assert_eq!(expected(error), sorted(words(&rule())));
        let error = toml::from_str::<Filter>("x = 1").unwrap_err().message().to_owned();
        assert_eq!(expected(error), sorted(words(&filter())));
    }
}
