//! A slice's facts as a CIB node: all of precedence 2, because the host cannot change them.

use super::NeatError;
use super::cib::Node;
use crate::{Interface, Slice};
use anabranch_element::time::Instant;
use serde_json::{Map, json};

/// The node of a slice: a root with one row per local address; `rtt` in milliseconds, capacities in Mbit/s. `None` without valid
/// facts. `now` and `now_unix_s` are the same time.
///
/// # Errors
/// None for a slice created by this program; otherwise those of [`Node::from_value`].
pub fn slice_node(
    id: &str,
    slice: &Slice,
    interface: &Interface,
    now: Instant,
    now_unix_s: u64,
) -> Result<Option<Node>, NeatError> {
    let Some(facts) = slice.facts_at(now) else { return Ok(None) };
    let mut properties = Map::new();
    let mut tell = |key: &str, value: serde_json::Value| {
        properties.insert(key.to_owned(), json!({"value": value, "precedence": 2}));
    };
    tell("interface", json!(slice.interface));
    tell("slice", json!(id));
    // A request with a fixed transport requires it of every row.
    tell("transport", json!(["TCP", "MPTCP", "UDP", "QUIC"]));
    let mbit = |bps: u64| json!(bps as f64 / 1e6);
    for (key, bps) in [
        ("capacity", facts.downlink_guaranteed_bps),
        ("capacity_uplink", facts.uplink_guaranteed_bps),
        ("max_capacity", facts.downlink_max_bps),
        ("max_capacity_uplink", facts.uplink_max_bps),
    ] {
        if let Some(bps) = bps {
            tell(key, mbit(bps));
        }
    }
    if let Some(rtt_us) = facts.rtt_us {
        tell("rtt", json!(rtt_us as f64 / 1e3));
    }
    if !facts.five_qi.is_empty() {
        tell("5qi", json!(facts.five_qi));
    }
    if let Some(isolation) = facts.isolation {
        tell("isolation", json!(isolation));
    }
    let addresses: Vec<_> = interface
        .addresses
        .iter()
        .map(|a| {
            json!({
                "local_ip": {"value": a.to_string(), "precedence": 2},
                "ip_version": {"value": if a.is_ipv6() { 6 } else { 4 }, "precedence": 2},
            })
        })
        .collect();
    let mut groups = vec![serde_json::Value::Object(properties)];
    if !addresses.is_empty() {
        groups.push(addresses.into());
    }
    // Expiry of the facts in whole seconds, rounded up.
    let left = facts.ttl.saturating_sub(now.saturating_since(facts.as_of));
    let node = json!({
        "uid": format!("slice/{id}"),
        "root": true,
        "expire": now_unix_s.saturating_add(left.as_secs()).saturating_add(u64::from(left.subsec_nanos() > 0)),
        "description": "what the network tells about this slice",
        "properties": groups,
    });
    Node::from_value(&node, now_unix_s).map(Some)
}
