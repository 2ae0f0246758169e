//! The order of candidates: paths before protocols before endpoints (RFC 9623 §4.1.3).
//!
//! Paths are ordered by: fulfilled preferences minus properties to avoid; whether the required rates are met; the criterion of the
//! capacity profile; the interface's metric; one path before several; the name. Protocols are ordered by: fulfilled preferences
//! minus properties to avoid; the order of [`Protocol::ALL`]. A preference about a path therefore always outweighs one about a
//! protocol (RFC 9622 §6.2), and no two candidates are equal.

use super::candidate::{Effect, Reason};
use super::path::{PathSet, Rates};
use super::properties::{CapacityProfile, Multipath, Properties};
use super::{Feature, PathName, Preference, Protocol, Stack};
use std::cmp::Reverse;

/// A set of paths with its sort key. Smaller keys come first.
pub(super) struct RankedPaths<'a> {
    pub set: PathSet<'a>,
    pub points: i32,
    pub reasons: Vec<Reason>,
    key: PathKey,
}

type PathKey = (Reverse<i32>, bool, (bool, u64), u32, usize, Vec<PathName>);

/// Sorts sets of paths.
pub(super) fn paths<'a>(p: &Properties, sets: Vec<PathSet<'a>>) -> Vec<RankedPaths<'a>> {
    let mut ranked: Vec<RankedPaths<'a>> = sets.into_iter().map(|set| rank_paths(p, set)).collect();
    ranked.sort_by(|a, b| a.key.cmp(&b.key));
    ranked
}

fn rank_paths<'a>(p: &Properties, set: PathSet<'a>) -> RankedPaths<'a> {
    let (mut points, mut reasons) = (0, Vec::new());
    let mut weigh = |property: &str, wanted: Preference, has: Option<bool>, what: String| {
        points += wanted.points(has);
        reasons.extend(reason(property, wanted, has, what));
    };
    for (name, wanted) in &p.interface {
        weigh("interface", *wanted, Some(set.has_interface(name)), name.clone());
    }
    for (name, wanted) in &p.pvd {
        weigh("pvd", *wanted, Some(set.has_pvd(name)), name.clone());
    }
    let temporary = set.members.iter().all(|m| m.interface.temporary_address);
    let what = if temporary { "a temporary address" } else { "no temporary address" };
    weigh("useTemporaryLocalAddress", p.use_temporary_local_address, Some(temporary), what.into());
    if p.multipath == Some(Multipath::Active) {
        weigh(
            "multipath",
            Preference::Prefer,
            Some(set.is_several()),
            format!("{} paths", set.members.len()),
        );
    }
    let shown = |has: Option<u64>, unit: &str| has.map_or("not known".into(), |h| format!("{h} {unit}"));
    if let Some(bound) = p.slice_latency {
        let met = set.rtt_us().map(|rtt| rtt <= bound.at_most_us.get());
        weigh("_slice.latency", bound.preference, met, shown(set.rtt_us(), "us"));
    }
    for (name, bound, has) in [
        ("_slice.guaranteedSendRate", p.slice_send_rate, set.send_bps()),
        ("_slice.guaranteedRecvRate", p.slice_recv_rate, set.recv_bps()),
    ] {
        if let Some(bound) = bound {
            let met = has.map(|h| h >= bound.at_least_bps.get());
            weigh(name, bound.preference, met, shown(has, "bit/s"));
        }
    }
    for (qi, wanted) in &p.slice_5qi {
        weigh("_slice.5qi", *wanted, Some(set.has_5qi(*qi)), qi.to_string());
    }
    if let Some(bound) = p.slice_isolation {
        let has = set.isolation();
        let shown = has.map_or("not known".into(), |i| format!("{i:?}").to_lowercase());
        weigh("_slice.isolation", bound.preference, has.map(|h| h >= bound.at_least), shown);
    }
    let asked = Rates { send_bps: p.min_send_rate.get(), recv_bps: p.min_recv_rate.get() };
    let met = set.meets(&asked);
    for (name, need, has) in
        [("minSendRate", asked.send_bps, set.send_bps()), ("minRecvRate", asked.recv_bps, set.recv_bps())]
    {
        if let Some(need) = need {
            let effect = if has.is_some_and(|h| h >= need) { Effect::Preferred } else { Effect::Missed };
            reasons.push(Reason::new(name, effect, format!("{} guaranteed", shown(has, "bit/s"))));
        }
    }
    let order = profile_order(p.conn_capacity_profile, &set);
    if let Some(measure) = profile_measure(p.conn_capacity_profile, &set) {
        reasons.push(Reason::new("connCapacityProfile", Effect::Orders, measure));
    }
    let metric = set.members.iter().map(|m| m.interface.metric).max().unwrap_or(u32::MAX);
    let key = (Reverse(points), !met, order, metric, set.members.len(), set.names());
    RankedPaths { set, points, reasons, key }
}

/// Sort key of the capacity profile: known before unknown, then smaller first.
fn profile_order(profile: CapacityProfile, set: &PathSet<'_>) -> (bool, u64) {
    let small = |value: Option<u64>| (value.is_none(), value.unwrap_or(0));
    let large = |value: Option<u64>| (value.is_none(), value.map_or(0, |v| u64::MAX - v));
    match profile {
        CapacityProfile::Default => (false, 0),
        CapacityProfile::LowLatencyInteractive | CapacityProfile::LowLatencyNonInteractive => {
            small(set.rtt_us())
        }
        CapacityProfile::ConstantRateStreaming => large(guaranteed(set)),
        CapacityProfile::CapacitySeeking => large(set.most_bps()),
        // Background traffic: the path with the smallest guarantees, or none.
        CapacityProfile::Scavenger => (false, guaranteed(set).unwrap_or(0)),
    }
}

fn profile_measure(profile: CapacityProfile, set: &PathSet<'_>) -> Option<String> {
    let shown = |what: &str, value: Option<u64>, unit: &str| {
        Some(value.map_or_else(|| format!("{what} not known"), |v| format!("{what} {v} {unit}")))
    };
    match profile {
        CapacityProfile::Default => None,
        CapacityProfile::LowLatencyInteractive | CapacityProfile::LowLatencyNonInteractive => {
            shown("round-trip time up to", set.rtt_us(), "us")
        }
        CapacityProfile::ConstantRateStreaming | CapacityProfile::Scavenger => {
            shown("guaranteed both ways", guaranteed(set), "bit/s")
        }
        CapacityProfile::CapacitySeeking => shown("at most both ways", set.most_bps(), "bit/s"),
    }
}

fn guaranteed(set: &PathSet<'_>) -> Option<u64> {
    let (send, recv) = (set.send_bps(), set.recv_bps());
    send.or(recv).map(|_| send.unwrap_or(0).saturating_add(recv.unwrap_or(0)))
}

/// A protocol with its sort key.
pub(super) struct RankedProtocol {
    pub protocol: Protocol,
    pub points: i32,
    pub reasons: Vec<Reason>,
}

/// Sorts protocols.
pub(super) fn protocols(p: &Properties, stacks: &[Stack]) -> Vec<RankedProtocol> {
    let mut ranked: Vec<RankedProtocol> = stacks
        .iter()
        .map(|stack| {
            let (mut points, mut reasons) = (0, Vec::new());
            for feature in Feature::ALL {
                let (wanted, has) = (feature.wanted(p), stack.features.contains(&feature));
                points += wanted.points(Some(has));
                let what = if has { "it has it" } else { "it has it not" };
                reasons.extend(reason(feature.name(), wanted, Some(has), what.into()));
            }
            RankedProtocol { protocol: stack.protocol, points, reasons }
        })
        .collect();
    ranked.sort_by_key(|r| (Reverse(r.points), r.protocol));
    ranked
}

/// The first requirement or prohibition violated by a protocol: the property, and the protocol's value.
pub(super) fn protocol_violation(p: &Properties, stack: &Stack) -> Option<(String, String)> {
    Feature::ALL.into_iter().find_map(|feature| {
        let has = stack.features.contains(&feature);
        (!feature.wanted(p).allows(Some(has))).then(|| {
            let what = if has { "has it" } else { "has it not" };
            (feature.name().to_owned(), format!("{} {what}", stack.protocol))
        })
    })
}

fn reason(property: &str, wanted: Preference, has: Option<bool>, what: String) -> Option<Reason> {
    let effect = match (wanted, has) {
        (Preference::NoPreference, _) | (Preference::Avoid, Some(false) | None) => return None,
        (Preference::Require, Some(false) | None) | (Preference::Prohibit, Some(true)) => return None,
        (Preference::Require, Some(true)) | (Preference::Prohibit, _) => Effect::Satisfies,
        (Preference::Prefer, Some(true)) => Effect::Preferred,
        (Preference::Prefer, _) => Effect::Missed,
        (Preference::Avoid, Some(true)) => Effect::Avoided,
    };
    Some(Reason::new(property, effect, what))
}
