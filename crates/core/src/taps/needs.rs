//! What the application needs and no slice gives: the request that goes up to the slice manager.

use super::path::{PathSet, Rates};
use super::properties::Properties;
use serde::Serialize;

/// A rate asked for that no single slice guarantees.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Need {
    /// `minSendRate` or `minRecvRate`.
    pub property: String,
    /// What is asked for, in bit/s.
    pub asked_bps: u64,
    /// The most a single slice guarantees, in bit/s.
    pub best_single_bps: u64,
    /// The most any candidate guarantees, several paths together included, in bit/s.
    pub best_bps: u64,
    /// The slices the connection may use, the ones that may grow.
    pub slices: Vec<String>,
}

/// Needs that the sets leave open.
pub(super) fn open(p: &Properties, sets: &[PathSet<'_>]) -> Vec<Need> {
    let asked = Rates { send_bps: p.min_send_rate.get(), recv_bps: p.min_recv_rate.get() };
    let mut slices: Vec<String> =
        sets.iter().flat_map(|s| s.members.iter().filter_map(|m| m.name.pvd.clone())).collect();
    slices.sort();
    slices.dedup();
    let ways: [(&str, Option<u64>, fn(&PathSet<'_>) -> Option<u64>); 2] = [
        ("minSendRate", asked.send_bps, |s| s.send_bps()),
        ("minRecvRate", asked.recv_bps, |s| s.recv_bps()),
    ];
    ways.into_iter()
        .filter_map(|(property, asked, has)| {
            let asked_bps = asked?;
            let best = |several: bool| {
                sets.iter().filter(|s| several || !s.is_several()).filter_map(has).max().unwrap_or(0)
            };
            let (best_single_bps, best_bps) = (best(false), best(true));
            (best_single_bps < asked_bps).then(|| Need {
                property: property.to_owned(),
                asked_bps,
                best_single_bps,
                best_bps,
                slices: slices.clone(),
            })
        })
        .collect()
}
