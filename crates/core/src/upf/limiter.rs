//! How many handshakes are computed, and for whom: strangers must not take the time of those who have
//! sessions.

use crate::access::FixedHasher;
use crate::time::{Duration, Instant, nanos};
use std::hash::BuildHasher;
use std::net::{IpAddr, SocketAddr};

/// Handshakes are counted per window of this length.
const WINDOW: Duration = Duration::from_millis(100);
/// From this many inits in a window on, initiators must prove their address.
const COOKIE_ABOVE: u32 = 20;
/// This many are computed per window at most: about a third of one core. A UPF that was started again has
/// 100,000 UEs back within a minute.
const HARD_LIMIT: u32 = 200;
/// Of which one network (an IPv4 address, behind which may be many UEs, or an IPv6 /64) may have this share
/// under load. Addresses are proved by then, so that an attacker needs as many networks as it wants shares.
const NETWORK_LIMIT: u8 = 50;
/// Counters of networks; two that meet in one share it.
const NETWORKS: usize = 1024;

/// Counts handshakes per window. Its size is fixed.
pub(super) struct Limiter {
    window: u64,
    seen: u32,
    computed: u32,
    networks: Box<[u8; NETWORKS]>,
    hasher: FixedHasher,
}

impl Limiter {
    /// `seed` must be secret, or an attacker could choose addresses that meet others' counters.
    pub fn new(seed: u64) -> Self {
        Self {
            window: 0,
            seen: 0,
            computed: 0,
            networks: Box::new([0; NETWORKS]),
            hasher: FixedHasher::new(seed),
        }
    }

    /// An init has come. Returns whether the sender must prove its address.
    pub fn note(&mut self, now: Instant) -> bool {
        let window = now.as_nanos() / nanos(WINDOW);
        if self.window != window {
            // A burst keeps the guard up for one more window.
            let burst = window == self.window + 1 && self.seen > COOKIE_ABOVE;
            self.seen = if burst { COOKIE_ABOVE } else { 0 };
            if self.computed > 0 {
                self.networks.fill(0);
            }
            (self.window, self.computed) = (window, 0);
        }
        self.seen = self.seen.saturating_add(1);
        self.seen > COOKIE_ABOVE
    }

    /// Whether nothing more may be computed in this window, whoever asks.
    pub const fn is_spent(&self) -> bool {
        self.computed >= HARD_LIMIT
    }

    /// Takes one computation for a sender whose address is proved. `false`: it has had its share.
    pub fn take(&mut self, from: SocketAddr) -> bool {
        let network = match from.ip().to_canonical() {
            IpAddr::V4(a) => u64::from(a.to_bits()),
            IpAddr::V6(a) => (a.to_bits() >> 64) as u64 ^ 1 << 63,
        };
        let counter = &mut self.networks[self.hasher.hash_one(network) as usize % NETWORKS];
        if self.seen > COOKIE_ABOVE && *counter >= NETWORK_LIMIT {
            return false;
        }
        *counter = counter.saturating_add(1);
        self.computed += 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(n: u32) -> SocketAddr {
        SocketAddr::from((n.to_be_bytes(), 4500))
    }

    #[test]
    fn a_few_are_welcome_many_must_prove_themselves_and_no_network_takes_all() {
        let mut limiter = Limiter::new(1);
        let at = Instant::from_millis;
        for _ in 0..COOKIE_ABOVE {
            assert!(!limiter.note(at(50)) && limiter.take(from(7)));
        }
        assert!(limiter.note(at(99)));
        for _ in COOKIE_ABOVE..NETWORK_LIMIT.into() {
            assert!(limiter.take(from(7)));
        }
        assert!(!limiter.take(from(7)) && limiter.take(from(8)));
        assert!(limiter.note(at(100)), "the guard stays up for a window");
        let taken = (0..100).filter(|_| limiter.take(from(7))).count();
        assert_eq!(taken, usize::from(NETWORK_LIMIT));
        for n in 100..400 {
            limiter.take(from(n));
        }
        assert!(limiter.is_spent());
        assert!(!limiter.note(at(300)) && !limiter.is_spent());
    }

    #[test]
    fn a_network_of_ipv6_is_a_64() {
        let mut limiter = Limiter::new(1);
        for _ in 0..=COOKIE_ABOVE {
            limiter.note(Instant::ZERO);
        }
        let v6 = |n: u16| SocketAddr::from(([0x2001, 0xdb8, 0, 1, 0, 0, 0, n], 4500));
        assert_eq!((0..200).filter(|n| limiter.take(v6(*n))).count(), usize::from(NETWORK_LIMIT));
    }
}
