//! Requests to slice managers and agents about the slices of a scenario, for both backends.

use crate::scenario::file::Slice;
use crate::scenario::model::{Case, Flow};
use serde_json::{Value, json};
use std::net::SocketAddr;

/// Packet mark and routing table of the first slice; each slice has two of both.
pub const FIRST_MARK: u32 = 0x400;
/// The only access on which the slice manager places slices.
pub const ACCESS: &str = "network";

/// The slices whose access a UE has, with the index of this access.
pub fn of_ue<'a>(case: &'a Case, ue: &str) -> impl Iterator<Item = (&'a String, &'a Slice, usize)> {
    let accesses = case.ues.get(ue).map(|ue| ue.accesses.as_slice()).unwrap_or_default();
    case.slices.iter().filter_map(move |(name, slice)| {
        let index = accesses.iter().position(|access| access.name == slice.access)?;
        Some((name, slice, index))
    })
}

fn kbps(mbps: f64) -> u64 {
    (mbps * 1e3).round() as u64
}

/// Access capacity at which every slice is admitted: the sum of all guarantees, and at least 1 Gbit/s; in bit/s.
#[must_use]
pub fn capacity_bps(case: &Case) -> u64 {
    let both = |slice: &Slice| [slice.up_guaranteed_mbps, slice.down_guaranteed_mbps];
    let all: u64 = case.slices.values().flat_map(both).flatten().map(kbps).sum();
    (all * 1000).max(1_000_000_000)
}

/// Request for a slice (ServiceProfile, TS 28.541). The delay budget is one-way.
#[must_use]
pub fn profile(slice: &Slice) -> Value {
    let mut profile = json!({"sst": 1});
    for (key, mbps) in
        [("uLThptPerSlice", slice.up_guaranteed_mbps), ("dLThptPerSlice", slice.down_guaranteed_mbps)]
    {
        if let Some(mbps) = mbps {
            profile[key] = json!({ "guaThpt": kbps(mbps) });
        }
    }
    if let Some(ms) = slice.rtt_ms {
        profile["dLLatency"] = json!(ms / 2.0);
    }
    profile
}

/// Request to a UE's policy for a flow (`POST /connections/select`): its needs, destination and protocols.
#[must_use]
pub fn question(flow: &Flow, server: SocketAddr) -> Value {
    let tcp = flow.traffic.is_tcp();
    let mut properties = if tcp {
        json!({"multistreaming": "prohibit"})
    } else {
        json!({"reliability": "no-preference", "preserveOrder": "no-preference", "congestionControl": "no-preference"})
    };
    if let (Some(all), Some(needs)) = (properties.as_object_mut(), flow.needs.as_object()) {
        all.extend(needs.clone());
    }
    let protocols = if tcp { json!(["tcp", "mptcp"]) } else { json!(["udp"]) };
    let remote = json!([{"address": server.ip(), "port": server.port(), "protocols": protocols}]);
    json!({"properties": properties, "remote": remote})
}
