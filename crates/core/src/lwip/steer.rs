//! Which leg a packet takes.
//!
//! Shares become a pattern by carrying over what a packet did not use: of any n packets in a row of a flow, n times
//! the share go over LTE, off by less than one. Each flow has a phase of its own, so that short flows keep the share,
//! too.

use super::Leg;

/// One, as a share.
pub(super) const ONE: u32 = 1 << 16;

/// The share of a percentage, in parts of [`ONE`].
pub(super) fn share(percent: f64) -> u32 {
    // `as` saturates, and makes what is no number 0.
    ((percent / 100.0 * f64::from(ONE)).round() as u32).min(ONE)
}

/// What a flow has left of the packets before.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Carry(u32);

impl Carry {
    /// A flow's phase, from its hash.
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

/// The leg of a whole flow, by its hash.
pub(super) const fn of_flow(hash: u64, lte_share: u32) -> Leg {
    if (hash as u32 % ONE) < lte_share { Leg::Lte } else { Leg::Wifi }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn whole_shares_are_whole() {
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
