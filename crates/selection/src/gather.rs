//! Gathers the paths, alone or together, that a connection may use (RFC 9623 §4.1; the paper, §4.4).

use super::path::{Path, PathSet, Rates};
use super::properties::{Multipath, Properties};
use super::select::Pruned;
use super::{Host, MAX_PATHS, Request, rank};
use anabranch_element::time::Instant;
use std::collections::BTreeSet;

/// The sets of paths that violate no requirement, and those excluded with the reason.
///
/// Several paths together form one additional set per address family of the peer: all paths with that family if the application
/// wants multipath, or only as many as the rates need if it leaves the choice to the host and no single path meets them.
pub(super) fn path_sets<'a>(
    request: &Request,
    host: &'a Host,
    now: Instant,
) -> (Vec<PathSet<'a>>, Vec<Pruned>) {
    let p = &request.properties;
    let (mut eligible, mut pruned) = (Vec::new(), Vec::new());
    for path in super::path::paths(host, now).into_iter().take(MAX_PATHS) {
        match path.violates(p).or_else(|| path.is_outside(&request.bound_to)) {
            None => eligible.push(path),
            Some((property, has)) => pruned.push(Pruned::path(&path.name, property, has)),
        }
    }
    let mut sets: Vec<PathSet<'a>> = eligible.iter().cloned().map(PathSet::one).collect();
    let families: BTreeSet<bool> = request.remote.iter().map(|e| e.address.is_ipv6()).collect();
    for v6 in families {
        let reaching: Vec<Path<'a>> = eligible.iter().filter(|path| path.has_family(v6)).cloned().collect();
        if let Some(set) = together(p, &reaching).map(|members| PathSet { members })
            && !sets.iter().any(|other| other.names() == set.names())
        {
            sets.push(set);
        }
    }
    sets.retain(|set| match rate_violation(p, set) {
        None => true,
        Some((property, has)) => {
            pruned.push(Pruned::paths(&set.names(), property, has));
            false
        }
    });
    (sets, pruned)
}

/// The members of the multipath set, if there is one, the path with the least delay first. Each has a different interface,
/// because subflows are distinguished by their addresses.
fn together<'a>(p: &Properties, eligible: &[Path<'a>]) -> Option<Vec<Path<'a>>> {
    let wanted = Rates::wanted(p);
    let mut members = match p.multipath {
        Some(Multipath::Disabled) => return None,
        Some(Multipath::Active | Multipath::Passive) => {
            let ranked = rank::paths(p, eligible.iter().cloned().map(PathSet::one).collect());
            let mut interfaces = BTreeSet::new();
            let all = ranked.into_iter().flat_map(|ranked| ranked.set.members);
            all.filter(|path| interfaces.insert(path.name.interface.clone())).collect()
        }
        None => fewest(wanted, eligible)?,
    };
    if members.len() < 2 {
        return None;
    }
    let rtt = |m: &Path<'_>| m.facts.and_then(|f| f.rtt_us).unwrap_or(u64::MAX);
    members.sort_by(|a, b| rtt(a).cmp(&rtt(b)).then_with(|| a.name.cmp(&b.name)));
    Some(members)
}

/// The fewest paths that together meet the rates, or all with a known rate if even they do not; `None` if no rate is requested or
/// a single path suffices.
fn fewest<'a>(wanted: Rates, eligible: &[Path<'a>]) -> Option<Vec<Path<'a>>> {
    if !wanted.any() || eligible.iter().any(|path| PathSet::one(path.clone()).meets(&wanted)) {
        return None;
    }
    let rate = |path: &Path<'a>| {
        let facts = path.facts?;
        let share = |need: Option<u64>, has: Option<u64>| match need {
            // In millionths of the required rate.
            Some(need) => has.map(|has| u128::from(has) * 1_000_000 / u128::from(need.max(1))),
            None => Some(u128::MAX),
        };
        Some(
            share(wanted.send_bps, facts.uplink_guaranteed_bps)?
                .min(share(wanted.recv_bps, facts.downlink_guaranteed_bps)?),
        )
    };
    let mut known: Vec<(u128, &Path<'a>)> = eligible.iter().filter_map(|p| Some((rate(p)?, p))).collect();
    known.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.name.cmp(&b.1.name)));
    let mut set = PathSet { members: Vec::new() };
    for (_, path) in known {
        if set.has_interface(&path.name.interface) {
            continue;
        }
        set.members.push(path.clone());
        if set.is_several() && set.meets(&wanted) {
            break;
        }
    }
    Some(set.members)
}

/// A required or prohibited rate guarantee that the set violates.
fn rate_violation(p: &Properties, set: &PathSet<'_>) -> Option<(String, String)> {
    let bounds = [
        ("_slice.guaranteedSendRate", p.slice_send_rate, set.send_bps(), "uplink"),
        ("_slice.guaranteedRecvRate", p.slice_recv_rate, set.recv_bps(), "downlink"),
    ];
    bounds.into_iter().find_map(|(property, bound, has, way)| {
        let bound = bound?;
        let met = has.map(|has| has >= bound.at_least_bps.get());
        (!bound.preference.allows(met)).then(|| {
            let has = has.map_or_else(
                || format!("no guaranteed {way} rate is known"),
                |has| format!("{has} bit/s are guaranteed {way}"),
            );
            (property.to_owned(), has)
        })
    })
}
