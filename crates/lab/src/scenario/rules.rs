//! Shapes of the types of `anabranch_rules`, which know nothing of scenario files.

use super::schema::{Described, Key, Shape, Table};
use anabranch_rules::{Filter, Rule, SteeringMode};
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
        doc: "An ATSSS rule: which traffic, and how it is steered.".into(),
        tag: None,
        keys: vec![
            Key::new("name", Shape::Text, &["Unique name."], None).required(),
            Key::new("filter", Shape::Table(&FILTER), &["Which packets; left out, all."], None),
            Key::new("steering", Shape::Table(&STEERING), &["How they are steered."], None).required(),
            Key::new(
                "reorder",
                Shape::Bool,
                &["Whether the receiver restores order. Off for transports that do not care."],
                Some("true".into()),
            ),
            Key::new(
                "functionality",
                Shape::OneOf(&["ll", "mptcp"]),
                &[
                    "What carries its TCP flows: the packet lane, or the TCP lane (docs/tcp-lane.md). In namespaces only.",
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
        doc: "A traffic selector from the UE's side: local is the UE, remote the far end. All that is \
              given must match."
            .into(),
        tag: None,
        keys: vec![
            Key::new("protocol", Shape::OneOf(&["tcp", "udp", "icmp"]), &["Transport protocol."], None),
            text("local", "Address or prefix of the UE side."),
            text("remote", "Address or prefix of the far side."),
            Key::new("local_port", Shape::NumberOrText, &["Port or \"first-last\" of the UE side."], None)
                .range(0.0, 65_535.0),
            Key::new(
                "remote_port",
                Shape::NumberOrText,
                &["Port or \"first-last\" of the far side, such as the `port` of a flow."],
                None,
            )
            .range(0.0, 65_535.0),
        ],
    }
}

fn steering() -> Table {
    let modes: &[&str] =
        &["active-standby", "load-balance", "smallest-delay", "priority-based", "redundant", "coded"];
    let percent = |name, doc: &'static str| Key::new(name, Shape::Number, &[doc], None).range(0.0, 100.0);
    Table {
        name: "Steering",
        doc: "A steering mode (JUNCTION §II-A; TS 23.501 §5.32.8).".into(),
        tag: Some("mode"),
        keys: vec![
            Key::new("mode", Shape::OneOf(modes), &["Which mode."], None).required(),
            Key::new("primary", Shape::Text, &["The preferred access."], None)
                .required()
                .only(&["active-standby", "priority-based"]),
            Key::new(
                "weights",
                Shape::List(Box::new(Shape::Table(&WEIGHT))),
                &["Shares of the accesses; left out, equal."],
                Some("[]".into()),
            )
            .only(&["load-balance"]),
            Key::new(
                "per",
                Shape::OneOf(&["packet", "flow"]),
                &["What is split."],
                Some("\"packet\"".into()),
            )
            .only(&["load-balance"]),
            Key::new(
                "autonomous",
                Shape::Bool,
                &["Flows keep to one access and packets leave it where they arrive no later; capacities are measured."],
                Some("false".into()),
            )
            .only(&["load-balance"]),
            Key::new(
                "hysteresis_percent",
                Shape::Integer,
                &["An access is left when another's RTT is smaller by this share, percent."],
                Some("10".into()),
            )
            .range(0.0, 100.0)
            .only(&["smallest-delay"]),
            Key::new(
                "leave_above_loss_percent",
                Shape::Integer,
                &["An access that steadily loses more is left while another loses less, percent; 100: loss does not matter."],
                Some("5".into()),
            )
            .range(0.0, 100.0)
            .only(&["active-standby", "smallest-delay"]),
            Key::new("rtt_ms", Shape::Number, &["RTT above which traffic overflows, milliseconds."], None)
                .range(0.0, 60_000.0)
                .only(&["priority-based"]),
            percent("loss_percent", "Loss above which traffic overflows, percent.").only(&["priority-based"]),
            percent("above_loss_percent", "Only while the best access loses more than this, percent.")
                .only(&["redundant"]),
            Key::new(
                "overhead_percent",
                Shape::Integer,
                &["Most bytes of repair packets, percent of the packets' own."],
                Some("30".into()),
            )
            .range(10.0, 100.0)
            .only(&["coded"]),
            Key::new(
                "window_packets",
                Shape::Integer,
                &["Most packets one repair packet covers."],
                Some("64".into()),
            )
            .range(1.0, 128.0)
            .only(&["coded"]),
            Key::new(
                "longest_wait_ms",
                Shape::Integer,
                &["How long a lost packet is worth waiting for, milliseconds."],
                Some("100".into()),
            )
            .range(10.0, 1000.0)
            .only(&["coded"]),
        ],
    }
}

fn weight() -> Table {
    Table {
        name: "Weight",
        doc: "Share of one access in load-balance mode.".into(),
        tag: None,
        keys: vec![
            Key::new("access", Shape::Text, &["Which access."], None).required(),
            Key::new("percent", Shape::Integer, &["Its share in steps of 10; all together 100."], None)
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
        // serde's own list of expected fields is in its complaint about a wrong one.
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

    #[test]
    fn every_key_of_every_mode_is_accepted() {
        for text in [
            "mode = \"active-standby\"\nprimary = \"5g\"\nleave_above_loss_percent = 7",
            "mode = \"load-balance\"\nweights = []\nper = \"flow\"\nautonomous = true",
            "mode = \"smallest-delay\"\nhysteresis_percent = 5\nleave_above_loss_percent = 100",
            "mode = \"priority-based\"\nprimary = \"5g\"\nrtt_ms = 3\nloss_percent = 1",
            "mode = \"redundant\"\nabove_loss_percent = 1",
            "mode = \"coded\"\noverhead_percent = 50\nwindow_packets = 32\nlongest_wait_ms = 60",
        ] {
            toml::from_str::<SteeringMode>(text).unwrap();
        }
    }
}
