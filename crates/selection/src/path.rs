//! Paths, alone and together: their values of the selection properties.

use super::properties::Properties;
use super::{Host, Interface, Isolation, PathName, Preference, SliceFacts};
use anabranch_element::time::Instant;
use std::net::IpAddr;

/// A path: an interface, with or without a slice.
#[derive(Debug, Clone)]
pub(super) struct Path<'a> {
    pub name: PathName,
    pub interface: &'a Interface,
    pub facts: Option<&'a SliceFacts>,
    /// Whether the slice's facts have expired.
    pub stale: bool,
}

/// Every path of the host, in the order of names. An interface used as a whole by a slice is not a separate path.
pub(super) fn paths(host: &Host, now: Instant) -> Vec<Path<'_>> {
    let whole = |name: &str| host.slices.values().any(|s| s.mark.is_none() && s.interface == name);
    let plain = host.interfaces.iter().filter(|(name, _)| !whole(name)).map(|(name, interface)| Path {
        name: PathName { interface: name.clone(), pvd: None },
        interface,
        facts: None,
        stale: false,
    });
    let sliced = host.slices.iter().filter_map(|(id, slice)| {
        let facts = slice.facts_at(now);
        Some(Path {
            name: PathName { interface: slice.interface.clone(), pvd: Some(id.clone()) },
            interface: host.interfaces.get(&slice.interface)?,
            facts,
            stale: slice.facts.is_some() && facts.is_none(),
        })
    });
    let mut all: Vec<Path<'_>> = plain.chain(sliced).collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

impl Path<'_> {
    /// Whether it has an address in the family of `remote`.
    pub fn reaches(&self, remote: IpAddr) -> bool {
        self.has_family(remote.is_ipv6())
    }

    /// Whether it has an IPv6 or IPv4 address.
    pub fn has_family(&self, v6: bool) -> bool {
        self.interface.addresses.iter().any(|a| a.is_ipv6() == v6)
    }

    fn is_interface(&self, wanted: &str) -> bool {
        self.name.interface == wanted || (!wanted.is_empty() && self.interface.kind == wanted)
    }

    /// The first violated requirement or prohibition, except rates: the property, and the path's value.
    pub fn violates(&self, p: &Properties) -> Option<(String, String)> {
        if !self.interface.up {
            return Some(("interface".into(), "the interface is down".into()));
        }
        let of_set = |property: &str, has: String, wanted: &mut dyn Iterator<Item = (bool, Preference)>| {
            let (mut required, mut met) = (false, false);
            for (has_it, preference) in wanted {
                match preference {
                    Preference::Prohibit if has_it => return Some((property.to_owned(), has)),
                    Preference::Require => (required, met) = (true, met || has_it),
                    _ => {}
                }
            }
            (required && !met).then(|| (property.to_owned(), has))
        };
        let pvd = self.name.pvd.as_deref();
        of_set(
            "interface",
            format!("it is {}{}", self.name.interface, kind(self.interface)),
            &mut p.interface.iter().map(|(n, l)| (self.is_interface(n), *l)),
        )
        .or_else(|| {
            let has = pvd.map_or_else(|| "it is in no slice".to_owned(), |id| format!("it is {id}"));
            of_set("pvd", has, &mut p.pvd.iter().map(|(n, l)| (pvd == Some(n), *l)))
        })
        .or_else(|| {
            let known = self.facts.map(|f| &f.five_qi).filter(|q| !q.is_empty());
            let has = known.map_or_else(|| self.unknown("5QI"), |q| format!("it carries 5QI {q:?}"));
            of_set(
                "_slice.5qi",
                has,
                &mut p.slice_5qi.iter().map(|(q, l)| (known.is_some_and(|k| k.contains(q)), *l)),
            )
        })
        .or_else(|| {
            let level = p.use_temporary_local_address;
            (!level.allows(Some(self.interface.temporary_address)))
                .then(|| ("useTemporaryLocalAddress".to_owned(), "its addresses say otherwise".to_owned()))
        })
        .or_else(|| {
            let bound = p.slice_latency?;
            let rtt = self.facts.and_then(|f| f.rtt_us);
            let within = rtt.map(|rtt| rtt <= bound.at_most_us.get());
            (!bound.preference.allows(within)).then(|| {
                let has = rtt.map_or_else(|| self.unknown("RTT"), |rtt| format!("its RTT is up to {rtt} us"));
                ("_slice.latency".to_owned(), has)
            })
        })
        .or_else(|| {
            let bound = p.slice_isolation?;
            let level = self.facts.and_then(|f| f.isolation);
            (!bound.preference.allows(level.map(|l| l >= bound.at_least))).then(|| {
                let has = level.map_or_else(|| self.unknown("isolation"), |l| format!("it is {l:?}"));
                ("_slice.isolation".to_owned(), has)
            })
        })
    }

    /// The path's slice, if a route selection policy excludes it.
    pub fn is_outside(&self, bound_to: &[String]) -> Option<(String, String)> {
        let pvd = self.name.pvd.as_ref();
        let inside = bound_to.is_empty() || pvd.is_some_and(|id| bound_to.contains(id));
        (!inside)
            .then(|| ("ursp".to_owned(), pvd.map_or("it is in no slice".into(), |id| format!("it is {id}"))))
    }

    fn unknown(&self, what: &str) -> String {
        let why = match (&self.name.pvd, self.stale) {
            (None, _) => "it is in no slice",
            (Some(_), true) => "what the network told of it is out of date",
            (Some(_), false) => "the network has not told it",
        };
        format!("its {what} is not known: {why}")
    }
}

fn kind(interface: &Interface) -> String {
    if interface.kind.is_empty() { String::new() } else { format!(" ({})", interface.kind) }
}

/// One path, or several paths of one connection.
#[derive(Debug, Clone)]
pub(super) struct PathSet<'a> {
    pub members: Vec<Path<'a>>,
}

impl<'a> PathSet<'a> {
    pub fn one(path: Path<'a>) -> Self {
        Self { members: vec![path] }
    }

    pub fn is_several(&self) -> bool {
        self.members.len() > 1
    }

    pub fn names(&self) -> Vec<PathName> {
        self.members.iter().map(|m| m.name.clone()).collect()
    }

    /// Whether any member has this interface.
    pub fn has_interface(&self, wanted: &str) -> bool {
        self.members.iter().any(|m| m.is_interface(wanted))
    }

    /// Whether any member is in this provisioning domain.
    pub fn has_pvd(&self, wanted: &str) -> bool {
        self.members.iter().any(|m| m.name.pvd.as_deref() == Some(wanted))
    }

    /// Whether any member carries this 5QI.
    pub fn has_5qi(&self, qi: u8) -> bool {
        self.members.iter().any(|m| m.facts.is_some_and(|f| f.five_qi.contains(&qi)))
    }

    /// Round-trip time of the slowest member, if known for all.
    pub fn rtt_us(&self) -> Option<u64> {
        self.of_all(|f| f.rtt_us).and_then(|all| all.into_iter().max())
    }

    /// The weakest isolation, if known for all.
    pub fn isolation(&self) -> Option<Isolation> {
        self.of_all(|f| f.isolation).and_then(|all| all.into_iter().min())
    }

    /// Guaranteed uplink rate in bit/s, summed over all members, if known for all.
    pub fn send_bps(&self) -> Option<u64> {
        self.of_all(|f| f.uplink_guaranteed_bps).map(sum)
    }

    /// Guaranteed downlink rate in bit/s, summed over all members, if known for all.
    pub fn recv_bps(&self) -> Option<u64> {
        self.of_all(|f| f.downlink_guaranteed_bps).map(sum)
    }

    /// Maximum rate of both directions in bit/s, as far as known.
    pub fn most_bps(&self) -> Option<u64> {
        let most = |max: Option<u64>, guaranteed: Option<u64>| max.or(guaranteed);
        self.of_all(|f| {
            let up = most(f.uplink_max_bps, f.uplink_guaranteed_bps);
            let down = most(f.downlink_max_bps, f.downlink_guaranteed_bps);
            up.or(down).map(|_| up.unwrap_or(0).saturating_add(down.unwrap_or(0)))
        })
        .map(sum)
    }

    /// Whether the guarantees meet the required minimum rates; unknown guarantees do not.
    pub fn meets(&self, needs: &Rates) -> bool {
        let enough =
            |need: Option<u64>, has: Option<u64>| need.is_none_or(|need| has.is_some_and(|h| h >= need));
        enough(needs.send_bps, self.send_bps()) && enough(needs.recv_bps, self.recv_bps())
    }

    fn of_all<T>(&self, fact: impl Fn(&SliceFacts) -> Option<T>) -> Option<Vec<T>> {
        self.members.iter().map(|m| m.facts.and_then(&fact)).collect()
    }
}

fn sum(all: Vec<u64>) -> u64 {
    all.into_iter().fold(0, u64::saturating_add)
}

/// Required rates, in bit/s.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Rates {
    pub send_bps: Option<u64>,
    pub recv_bps: Option<u64>,
}

impl Rates {
    /// All required rates: connection properties, and rates required or preferred of the slice.
    pub fn wanted(p: &Properties) -> Self {
        let bound = |b: Option<super::RateBound>| {
            b.filter(|b| matches!(b.preference, Preference::Require | Preference::Prefer))
                .map(|b| b.at_least_bps.get())
        };
        Self {
            send_bps: p.min_send_rate.get().max(bound(p.slice_send_rate)),
            recv_bps: p.min_recv_rate.get().max(bound(p.slice_recv_rate)),
        }
    }

    pub const fn any(&self) -> bool {
        self.send_bps.is_some() || self.recv_bps.is_some()
    }
}
