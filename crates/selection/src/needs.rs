//! Rates required by the application that no slice guarantees: the request to the slice manager.

use super::path::{PathSet, Rates};
use super::properties::Properties;
use serde::{Deserialize, Serialize};

/// A required rate that no single slice guarantees.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Need {
    /// `minSendRate` or `minRecvRate`.
    pub property: String,
    /// The required rate, in bit/s.
    pub asked_bps: u64,
    /// The highest guarantee of a single slice, in bit/s.
    pub best_single_bps: u64,
    /// The highest guarantee of any candidate, including several paths together, in bit/s.
    pub best_bps: u64,
    /// The slices that the connection may use, and whose guarantee may be raised.
    pub slices: Vec<String>,
}

/// Needs that no set of paths satisfies.
pub(super) fn open(p: &Properties, sets: &[PathSet<'_>]) -> Vec<Need> {
    let asked = Rates { send_bps: p.min_send_rate.get(), recv_bps: p.min_recv_rate.get() };
    let mut slices: Vec<String> =
        sets.iter().flat_map(|s| s.members.iter().filter_map(|m| m.name.pvd.clone())).collect();
    slices.sort();
    slices.dedup();
    let single = |s: &&PathSet<'_>| !s.is_several();
    let (send, recv) = (|s: &PathSet<'_>| s.send_bps(), |s: &PathSet<'_>| s.recv_bps());
    let ways = [
        (
            "minSendRate",
            asked.send_bps,
            sets.iter().filter(single).filter_map(send).max(),
            sets.iter().filter_map(send).max(),
        ),
        (
            "minRecvRate",
            asked.recv_bps,
            sets.iter().filter(single).filter_map(recv).max(),
            sets.iter().filter_map(recv).max(),
        ),
    ];
    ways.into_iter()
        .filter_map(|(property, asked, best_single, best)| {
            let (asked_bps, best_single_bps) = (asked?, best_single.unwrap_or(0));
            (best_single_bps < asked_bps).then(|| Need {
                property: property.to_owned(),
                asked_bps,
                best_single_bps,
                best_bps: best.unwrap_or(0),
                slices: slices.clone(),
            })
        })
        .collect()
}
