//! The leg of each packet in the ratio modes and in `switched`.
//!
//! A share becomes a pattern by carrying the remainder of each packet over to the next: of any n consecutive
//! packets of a flow, n times the share use LTE, with an error below one packet. Each flow has its own phase, so
//! that many short flows have the right share in total, too.

use super::Leg;
use super::config::{Steering, SwitchTo};
use super::link::Link;
use anabranch_element::time::{Duration, Instant};

/// A share of 100 %.
pub(super) const ONE: u32 = 1 << 16;

/// A percentage as a share, in parts of [`ONE`].
pub(super) fn share(percent: f64) -> u32 {
    // `as` saturates and maps NaN to 0.
    ((percent / 100.0 * f64::from(ONE)).round() as u32).min(ONE)
}

/// The remainder carried over from the previous packets of a flow, in parts of [`ONE`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Carry(u32);

impl Carry {
    /// The initial remainder of a flow, from its hash.
    pub(super) const fn with_phase(hash: u64) -> Self {
        Self(hash as u32 % ONE)
    }

    /// The leg of the next packet.
    pub(super) const fn next(&mut self, lte_share: u32) -> Leg {
        self.0 += if lte_share > ONE { ONE } else { lte_share };
        if self.0 >= ONE {
            self.0 -= ONE;
            Leg::Lte
        } else {
            Leg::Wifi
        }
    }
}

/// The leg of a whole flow, from its hash.
pub(super) const fn of_flow(hash: u64, lte_share: u32) -> Leg {
    if (hash as u32 % ONE) < lte_share { Leg::Lte } else { Leg::Wifi }
}

/// The current share of LTE among a UE's packets. A Wi-Fi leg that is down has no share. LTE is assumed to be up: it is
/// the anchor leg, and every ACK uses it.
pub(super) fn lte_share(steering: &Steering, links: &[Link; 2], switch: &mut Switch, now: Instant) -> u32 {
    let [lte, wifi] = links;
    if !wifi.up {
        switch.to(Leg::Lte, now);
        return ONE;
    }
    match *steering {
        Steering::FixedRatio { lte_percent } => share(lte_percent),
        Steering::RttWeighted { least_percent } => {
            let (l, w) = (lte.rtt_us(), wifi.rtt_us());
            // Proportional to 1/l and 1/w.
            let percent = if l > 0.0 && w > 0.0 { 100.0 * w / (l + w) } else { 50.0 };
            share(percent.clamp(least_percent, 100.0 - least_percent))
        }
        Steering::CapacityWeighted { least_percent, lte_mbps, wifi_mbps } => {
            let rate = |link: &Link, mbps: f64| {
                if link.is_rate_known() { link.rate_bps() } else { link.rate_bps().max(mbps * 1e6) }
            };
            let (l, w) = (rate(lte, lte_mbps), rate(wifi, wifi_mbps));
            share((100.0 * l / (l + w)).clamp(least_percent, 100.0 - least_percent))
        }
        // For flows that are not TCP; TCP is steered by the law.
        Steering::Autonomous => ONE / 2,
        Steering::Switched { to: SwitchTo::Lte, .. } => ONE,
        Steering::Switched { to: SwitchTo::Wifi, .. } => 0,
        Steering::Switched { to: SwitchTo::Auto, hysteresis_percent, dwell_ms } => {
            let (here, there) = match switch.leg {
                Leg::Lte => (lte.rtt_us(), wifi.rtt_us()),
                Leg::Wifi => (wifi.rtt_us(), lte.rtt_us()),
            };
            let dwell = Duration::from_millis(dwell_ms.into());
            let is_settled = switch.at.is_none_or(|at| now.saturating_since(at) >= dwell);
            if there > 0.0 && here > 0.0 && there < here * (1.0 - hysteresis_percent / 100.0) && is_settled {
                let other = if switch.leg == Leg::Lte { Leg::Wifi } else { Leg::Lte };
                switch.to(other, now);
            }
            if switch.leg == Leg::Lte { ONE } else { 0 }
        }
    }
}

/// The current leg of a switched bearer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Switch {
    leg: Leg,
    at: Option<Instant>,
}

impl Switch {
    /// Begins on the anchor leg.
    pub(super) const fn new() -> Self {
        Self { leg: Leg::Lte, at: None }
    }

    fn to(&mut self, leg: Leg, now: Instant) {
        if self.leg != leg {
            (self.leg, self.at) = (leg, Some(now));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn shares_of_0_and_100_percent_are_exact() {
        assert_eq!(
            (share(0.0), share(100.0), share(50.0), share(f64::NAN), share(1e9)),
            (0, ONE, ONE / 2, 0, ONE)
        );
        for hash in [0, 1, u64::MAX] {
            let mut carry = Carry::with_phase(hash);
            assert!((0..100).all(|_| carry.next(ONE) == Leg::Lte));
            assert!((0..100).all(|_| carry.next(0) == Leg::Wifi));
            assert_eq!((of_flow(hash, ONE), of_flow(hash, 0)), (Leg::Lte, Leg::Wifi));
        }
    }

    /// A leg with the given round-trip time.
    fn leg(rtt_ms: u64) -> Link {
        let mut link = Link::new();
        let sequence = link.probe(52, 4, Instant::ZERO);
        link.answered(sequence, Instant::from_millis(rtt_ms));
        link
    }

    #[test]
    fn shares_follow_round_trips() {
        let (mut switch, now) = (Switch::new(), Instant::from_secs(1));
        let mut of = |steering: Steering, links: [Link; 2]| {
            (f64::from(lte_share(&steering, &links, &mut switch, now)) * 100.0 / f64::from(ONE)).round()
        };
        let rtt = Steering::RttWeighted { least_percent: 5.0 };
        assert_eq!(of(rtt, [leg(40), leg(10)]), 20.0);
        assert_eq!(of(rtt, [leg(10), leg(40)]), 80.0);
        assert_eq!(of(rtt, [leg(1000), leg(1)]), 5.0);
        assert_eq!(of(rtt, [leg(10), Link::new()]), 50.0);
        let mut down = leg(10);
        down.up = false;
        assert_eq!(of(rtt, [leg(40), down.clone()]), 100.0);
        assert_eq!(of(Steering::FixedRatio { lte_percent: 20.0 }, [leg(40), down]), 100.0);
        let rates = Steering::CapacityWeighted { least_percent: 5.0, lte_mbps: 10.0, wifi_mbps: 30.0 };
        assert_eq!(of(rates, [leg(40), leg(10)]), 25.0);
    }

    #[test]
    fn a_switched_bearer_stays_for_a_while() {
        let mut switch = Switch::new();
        let auto = Steering::Switched { to: SwitchTo::Auto, hysteresis_percent: 25.0, dwell_ms: 1000 };
        let mut of = |links: [Link; 2], ms| lte_share(&auto, &links, &mut switch, Instant::from_millis(ms));
        assert_eq!(of([leg(40), leg(35)], 0), ONE, "not shorter by a quarter");
        assert_eq!(of([leg(40), leg(20)], 10), 0);
        assert_eq!(of([leg(10), leg(20)], 1000), 0, "too soon");
        assert_eq!(of([leg(10), leg(20)], 1010), ONE);
        let mut down = leg(1);
        down.up = false;
        assert_eq!(of([leg(40), leg(20)], 2010), 0);
        assert_eq!(of([leg(40), down], 2020), ONE, "at once");
        assert_eq!(of([leg(40), leg(20)], 2030), ONE, "and not back at once");
    }

    proptest! {
        #[test]
        fn a_share_is_kept_over_any_stretch(percent in 0.0..=100.0f64, hash: u64, skip in 0usize..50, n in 1usize..300) {
            let (mut carry, share) = (Carry::with_phase(hash), share(percent));
            (0..skip).for_each(|_| { carry.next(share); });
            let lte = (0..n).filter(|_| carry.next(share) == Leg::Lte).count();
            let ideal = n as f64 * f64::from(share) / f64::from(ONE);
            prop_assert!((lte as f64 - ideal).abs() < 1.0, "{} {}", lte, ideal);
        }
    }
}
