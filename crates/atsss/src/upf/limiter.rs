//! Limits the number of handshakes computed, in total and per network, so that unknown senders cannot take
//! the CPU time of those that have sessions.

use crate::FixedHasher;
use anabranch_element::time::{Duration, Instant, nanos};
use std::hash::{BuildHasher, Hash};
use std::net::{IpAddr, SocketAddr};

/// Length of the windows in which handshakes are counted.
const WINDOW: Duration = Duration::from_millis(100);
/// From this many inits per window on, initiators must prove their address.
const COOKIE_ABOVE: u32 = 20;
/// Most handshakes computed per window for unknown senders: about a third of one core. After a restart of the
/// UPF, 100,000 UEs are connected again within a minute.
const STRANGERS: u32 = 200;
/// Most handshakes computed per window for addresses to which paths of live sessions are bound, independent
/// of unknown senders: sufficient for 120,000 sessions that change their keys every two minutes.
const BOUND: u32 = 100;
/// Most of these for one address.
const BOUND_LIMIT: u8 = 4;
/// Under load, most handshakes of one network of unknown senders, and never more than are left for others: *k* networks
/// that take all they can get *k*/(*k* + 1) of the total. Addresses are proved at that point. An IPv4 address counts as a
/// network, behind which there may be many UEs. An IPv6 /64 is a network, and its owner may also own its /56 (a
/// household's) or /48 (a site's).
const IPV4_LIMIT: u8 = 50;
const IPV6_LIMITS: [(u8, u8); 3] = [(64, 30), (56, 50), (48, 70)];
/// Counters of networks; networks with the same hash share one.
const NETWORKS: usize = 2048;

/// Counts handshakes per window, in constant memory.
pub(super) struct Limiter {
    window: u64,
    /// Inits in the current window.
    seen: u32,
    many_before: bool,
    /// Handshakes computed for unknown senders.
    computed: u32,
    bound: u32,
    networks: Box<[u8; NETWORKS]>,
    addresses: Box<[u8; NETWORKS]>,
    hasher: FixedHasher,
}

impl Limiter {
    /// `seed` must be secret; otherwise an attacker could choose addresses that share the counters of others.
    pub fn new(seed: u64) -> Self {
        Self {
            window: 0,
            seen: 0,
            many_before: false,
            computed: 0,
            bound: 0,
            networks: Box::new([0; NETWORKS]),
            addresses: Box::new([0; NETWORKS]),
            hasher: FixedHasher::new(seed),
        }
    }

    /// An init has arrived. Returns whether the sender must prove its address.
    pub fn note(&mut self, now: Instant) -> bool {
        let window = now.as_nanos() / nanos(WINDOW);
        if self.window != window {
            self.many_before = window == self.window + 1 && self.seen > COOKIE_ABOVE;
            self.seen = 0;
            if self.computed + self.bound > 0 {
                self.networks.fill(0);
                self.addresses.fill(0);
            }
            (self.window, self.computed, self.bound) = (window, 0, 0);
        }
        self.seen = self.seen.saturating_add(1);
        self.is_guarded()
    }

    /// Whether there are many inits in this window, or were in the previous one.
    const fn is_guarded(&self) -> bool {
        self.many_before || self.seen > COOKIE_ABOVE
    }

    /// Whether the limit of this window is reached for a sender; `bound`: a path of a live session is bound
    /// to its address.
    pub const fn is_spent(&self, bound: bool) -> bool {
        self.computed >= STRANGERS && !(bound && self.bound < BOUND)
    }

    /// Takes one computation for a sender whose address is proved. `false`: its share is used up.
    pub fn take(&mut self, from: SocketAddr, bound: bool) -> bool {
        if bound && self.bound < BOUND {
            let counter = self.counter(0, &from);
            if self.addresses[counter] < BOUND_LIMIT {
                self.addresses[counter] += 1;
                self.bound += 1;
                return true;
            }
        }
        let left = STRANGERS.saturating_sub(self.computed);
        let (networks, count) = self.networks_of(from.ip().to_canonical());
        let networks = &networks[..count];
        let full = |&(counter, limit): &(usize, u8)| {
            let had = self.networks[counter];
            had >= limit || u32::from(had) >= left
        };
        if left == 0 || (self.is_guarded() && networks.iter().any(full)) {
            return false;
        }
        for (counter, _) in networks {
            self.networks[*counter] = self.networks[*counter].saturating_add(1);
        }
        self.computed += 1;
        true
    }

    /// The counters of the networks that contain an address, with their limits, and their number.
    fn networks_of(&self, from: IpAddr) -> ([(usize, u8); 3], usize) {
        match from {
            IpAddr::V4(a) => ([(self.counter(0, &a), IPV4_LIMIT); 3], 1),
            IpAddr::V6(a) => (
                IPV6_LIMITS
                    .map(|(length, limit)| (self.counter(length, &(a.to_bits() >> (128 - length))), limit)),
                IPV6_LIMITS.len(),
            ),
        }
    }

    fn counter(&self, kind: u8, of: &impl Hash) -> usize {
        self.hasher.hash_one((kind, of)) as usize % NETWORKS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(n: u32) -> SocketAddr {
        SocketAddr::from((n.to_be_bytes(), 4500))
    }

    #[test]
    fn few_inits_pass_many_require_proof_and_no_network_takes_all() {
        let mut limiter = Limiter::new(1);
        let at = Instant::from_millis;
        for _ in 0..COOKIE_ABOVE {
            assert!(!limiter.note(at(50)) && limiter.take(from(7), false));
        }
        assert!(limiter.note(at(99)));
        for _ in COOKIE_ABOVE..IPV4_LIMIT.into() {
            assert!(limiter.take(from(7), false));
        }
        assert!(!limiter.take(from(7), false) && limiter.take(from(8), false));
        assert!(limiter.note(at(100)), "the guard stays on for a window");
        let taken = (0..100).filter(|_| limiter.take(from(7), false)).count();
        assert_eq!(taken, usize::from(IPV4_LIMIT));
        for n in 100..400 {
            limiter.take(from(n), false);
        }
        assert!(limiter.is_spent(false) && !limiter.is_spent(true));
        assert!(!limiter.note(at(200)), "one init per window does not keep it on");
        assert!(!limiter.note(at(400)) && !limiter.is_spent(false));
    }

    fn v6(site: u16, house: u8, net: u8, host: u16) -> SocketAddr {
        let net = u16::from(house) << 8 | u16::from(net);
        SocketAddr::from(([0x2001, 0xdb8, site, net, 0, 0, 0, host], 4500))
    }

    fn under_load() -> Limiter {
        let mut limiter = Limiter::new(1);
        (0..=COOKIE_ABOVE).for_each(|_| {
            let _ = limiter.note(Instant::ZERO);
        });
        limiter
    }

    #[test]
    fn many_ipv6_networks_of_one_owner_have_the_share_of_their_prefix() {
        let had = |each: &dyn Fn(u32) -> SocketAddr| {
            let mut limiter = under_load();
            (0..2_000).filter(|n| limiter.take(each(*n), false)).count()
        };
        assert_eq!(had(&|n| v6(1, 1, 1, n as u16)), 30, "a /64");
        assert_eq!(had(&|n| v6(1, 1, n as u8, n as u16)), 50, "256 of them in a /56");
        assert_eq!(had(&|n| v6(1, (n >> 8) as u8, n as u8, n as u16)), 70, "2,000 of them in a /48");
    }

    #[test]
    fn greedy_networks_leave_a_share_for_a_later_one() {
        for hostile in [1, 4, 10, 40] {
            let mut limiter = under_load();
            for _ in 0..200 {
                (0..hostile).for_each(|n| {
                    let _ = limiter.take(from(n), false);
                });
            }
            let left = (0..200).filter(|_| limiter.take(from(1_000_000), false)).count();
            assert!(left >= 1, "{hostile} networks have all");
        }
    }

    #[test]
    fn live_sessions_have_their_own_budget_and_no_address_takes_all_of_it() {
        let mut limiter = under_load();
        (0..1_000).for_each(|n| {
            let _ = limiter.take(from(n), false);
        });
        assert!(limiter.is_spent(false));
        let hostile = (0..1_000).filter(|_| limiter.take(from(5), true)).count();
        assert_eq!(hostile, usize::from(BOUND_LIMIT));
        let others =
            (2_000..2_090).filter(|n| !limiter.is_spent(true) && limiter.take(from(*n), true)).count();
        assert!(others >= 80, "{others} of 90 live sessions change their keys");
        (3_000..4_000).for_each(|n| {
            let _ = limiter.take(from(n), true);
        });
        assert!(limiter.is_spent(true));
    }
}
