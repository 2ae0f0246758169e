//! How long to hold: the model of §V of the paper, its optimum, and its bounds.
//!
//! Differences from the paper (derivations in docs/lwip.md):
//!
//! - Eq. 5 has the wrong sign before the linear term of its numerator. It yields the absolute value of the negative
//!   root. For A = 3, B = 1000, R = 0.1 s it gives 573 s; the zero of Eq. 4 is at 58.15 ms.
//! - "θ is given as TS = 1/(S1+S2)" does not define a range LB to UB of any particular width. With θ = 1/S1 + 1/S2
//!   its width is R, with the shorter part on the steeper side.
//! - The slope of ϑ at t = 0 is infinite. S1 and S2 are the slopes of the lines from the optimum to both ends.
//! - Eq. 1 can exceed the RTO, because 1/γ magnifies the margin that a minimum of the RTO leaves. A hold is limited
//!   to RTO − R′ − guard instead.

use core::f64::consts::E;

/// Smoothing factor of the RTT (RFC 6298: α; the paper: γ).
pub const GAMMA: f64 = 1.0 / 8.0;
/// K of RFC 6298.
pub const K: f64 = 4.0;
/// Clock granularity G, seconds: the kernel's timer period at 1000 Hz.
pub const GRANULARITY_S: f64 = 0.001;
/// Time between the end of a hold and the RTO, seconds.
pub const GUARD_S: f64 = 0.010;

/// HSTCP's additive increase per RTT, in segments, at a window of `w` segments (RFC 3649 §5).
#[must_use]
pub fn alpha(w: f64) -> f64 {
    if w <= LOW_WINDOW || w.is_nan() {
        return 1.0;
    }
    let beta = beta(w);
    w * w * (0.078 / w.powf(1.2)) * 2.0 * beta / (2.0 - beta)
}

/// HSTCP's decrease as a fraction of the window, at a window of `w` segments (RFC 3649 §5).
#[must_use]
pub fn beta(w: f64) -> f64 {
    if w <= LOW_WINDOW || w.is_nan() {
        return 0.5;
    }
    let position = (w / LOW_WINDOW).ln() / (HIGH_WINDOW / LOW_WINDOW).ln();
    (0.5 + (HIGH_DECREASE - 0.5) * position).max(HIGH_DECREASE)
}

const LOW_WINDOW: f64 = 38.0;
const HIGH_WINDOW: f64 = 83_000.0;
const HIGH_DECREASE: f64 = 0.1;

/// The model of Eq. 3, for one flow at one time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Model {
    /// A = δ·w·(1 − β(w)): the window that remains after a failure.
    pub a: f64,
    /// B = δ·α(w)·T_E: the growth after a success, times the RTT; in the unit of `a` times seconds.
    pub b: f64,
    /// RTT without holding, seconds.
    pub rtt_s: f64,
}

impl Model {
    /// The model of a flow with a window of `w` segments that has grown for `elapsed_s` seconds. The paper's δ
    /// scales A and B alike and does not affect the optimum; it is 1 here.
    #[must_use]
    pub fn of_flow(w: f64, elapsed_s: f64, rtt_s: f64) -> Self {
        Self { a: w * (1.0 - beta(w)), b: alpha(w) * elapsed_s, rtt_s }
    }

    /// ϑ(t) of Eq. 3 at a hold of `t_s` seconds, with ψ = 1 / T_MHT^(1/e) and P_f = 1 − P_s (Eq. 2).
    #[must_use]
    pub fn growth(&self, t_s: f64, mht_s: f64) -> f64 {
        let success = (t_s / mht_s).powf(1.0 / E);
        self.a * (1.0 - success) + self.b * success / (self.rtt_s + t_s)
    }

    /// The hold at which Eq. 3 has its maximum, seconds; 0 if Eq. 3 falls from the start, or if the parameters are
    /// invalid.
    ///
    /// With r = B/A and c = r(e−1)/2: `sqrt(c² + e·r·R) − R − c`, if r > R. It is below R/(e−1) = 0.582·R.
    #[must_use]
    pub fn optimum_s(&self) -> f64 {
        let (r, rtt) = (self.b / self.a, self.rtt_s);
        if !(r > rtt && rtt > 0.0 && self.a > 0.0) {
            return 0.0;
        }
        if r.is_infinite() {
            return rtt / (E - 1.0);
        }
        let c = r * (E - 1.0) / 2.0;
        // The same root without the cancellation of two nearly equal numbers.
        let t = rtt * (r - rtt) / (rtt + c + (c * c + E * r * rtt).sqrt());
        if t.is_finite() { t } else { rtt / (E - 1.0) }
    }

    /// The best operating range around the optimum (§V), seconds. Its width is R before it is limited to 0 and
    /// T_MHT.
    #[must_use]
    #[cfg(test)]
    pub fn range_s(&self, mht_s: f64) -> (f64, f64) {
        let best = self.optimum_s().min(mht_s);
        let top = self.growth(best, mht_s);
        let slope = |from: f64| {
            let (rise, run) = (top - self.growth(from, mht_s), (best - from).abs());
            if run > 0.0 { (rise / run).max(0.0) } else { 0.0 }
        };
        let (s1, s2) = (slope(0.0), slope(mht_s));
        if !(s1 > 0.0 && s2 > 0.0) {
            return (best, best);
        }
        let theta = 1.0 / s1 + 1.0 / s2;
        let low = best - self.rtt_s / (s1 * theta);
        let high = best + self.rtt_s / (s2 * theta);
        (low.clamp(0.0, mht_s), high.clamp(0.0, mht_s))
    }
}

/// The sender's round trips, seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RoundTrips {
    /// R′: the newest one.
    pub last_s: f64,
    /// SRTT (RFC 6298).
    pub smoothed_s: f64,
    /// RTTVAR (RFC 6298).
    pub variation_s: f64,
}

impl RoundTrips {
    /// The retransmission timeout of RFC 6298 §2. As in Linux, the minimum applies to the variation term, so the
    /// timeout is never less than SRTT + 0.2 s. The RFC's own minimum, 1 s for the whole, is longer than that for
    /// round trips below 0.8 s.
    fn rto_s(&self, floor_s: f64) -> f64 {
        self.smoothed_s + GRANULARITY_S.max(K * self.variation_s).max(floor_s)
    }

    /// The longest hold, seconds from the last ACK that advanced: `max(0, RTO − R′ − guard)`. Eq. 1 is not used:
    /// where the minimum of the RTO applies, it exceeds the RTO, and otherwise it is SRTT − R′, which allows no
    /// hold as soon as round trips grow.
    #[must_use]
    pub fn mht_s(&self, rto_floor_s: f64) -> f64 {
        let left = self.rto_s(rto_floor_s) - self.last_s - GUARD_S;
        // NaN means no hold.
        if left > 0.0 { left } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The maximum by golden-section search; Eq. 3 has a single maximum.
    fn argmax(f: impl Fn(f64) -> f64, mut low: f64, mut high: f64) -> f64 {
        let ratio = (5f64.sqrt() - 1.0) / 2.0;
        for _ in 0..200 {
            let (x, y) = (high - ratio * (high - low), low + ratio * (high - low));
            if f(x) < f(y) { low = x } else { high = y }
        }
        f64::midpoint(low, high)
    }

    /// T_MHT by Eq. 1 as printed, seconds.
    fn printed_mht_s(trips: &RoundTrips, rto_s: f64) -> f64 {
        (rto_s
            - GRANULARITY_S.max(K * trips.variation_s)
            - (1.0 - GAMMA) * trips.smoothed_s
            - GAMMA * trips.last_s)
            / GAMMA
    }

    /// Eq. 5 as printed.
    fn printed(m: &Model) -> f64 {
        let k = 1.0 / E;
        let linear = 2.0 * m.a * k * m.rtt_s + m.b * (1.0 - k);
        let root =
            (linear * linear + 4.0 * m.a * k * (k * m.b * m.rtt_s - m.a * k * m.rtt_s * m.rtt_s)).sqrt();
        (linear + root) / (2.0 * m.a * k)
    }

    #[test]
    fn golden_and_print() {
        let m = Model { a: 3.0, b: 1000.0, rtt_s: 0.1 };
        assert!((m.optimum_s() - 0.05815).abs() < 5e-6, "{}", m.optimum_s());
        assert!((printed(&m) - 573.0).abs() < 0.5, "{}", printed(&m));
        // The printed formula yields the other root of the same equation without its sign.
        let c = (1000.0 / 3.0) * (E - 1.0) / 2.0;
        let other = -(c * c + E * (1000.0 / 3.0) * 0.1).sqrt() - 0.1 - c;
        assert!((printed(&m) + other).abs() < 1e-6);
    }

    #[test]
    fn hstcp_as_in_the_table_of_rfc_3649() {
        // RFC 3649 appendix B: w, a(w), b(w).
        for (w, a, b) in [
            (38.0, 1.0, 0.50),
            (118.0, 2.0, 0.44),
            (221.0, 3.0, 0.41),
            (1058.0, 8.0, 0.33),
            (5497.0, 21.0, 0.24),
            (10661.0, 30.0, 0.20),
            (84035.0, 73.0, 0.10),
        ] {
            // The table has whole segments and the window at which each is reached.
            assert!((alpha(w) - a).abs() <= 0.5 + 0.02 * a, "a({w}) = {}", alpha(w));
            assert!((beta(w) - b).abs() <= 0.008, "b({w}) = {}", beta(w));
        }
        assert_eq!((alpha(10.0), beta(10.0), alpha(f64::NAN), beta(1e9)), (1.0, 0.5, 1.0, 0.1));
    }

    #[test]
    fn the_printed_bound_exceeds_the_rto_under_a_floor() {
        let trips = RoundTrips { last_s: 0.1, smoothed_s: 0.1, variation_s: 0.01 };
        let rto = trips.rto_s(1.0);
        assert!(printed_mht_s(&trips, rto) > 6.0 * rto);
        assert!((trips.mht_s(1.0) - 0.99).abs() < 1e-9);
        assert!((trips.mht_s(0.2) - 0.19).abs() < 1e-9);
        // A queue lengthens the round trips and the timeout alike, so it does not shorten the hold.
        let queued = RoundTrips { last_s: 0.5, smoothed_s: 0.5, variation_s: 0.01 };
        assert!((queued.mht_s(0.2) - 0.19).abs() < 1e-9);
        // Without a minimum, only RTTVAR leaves time for a hold.
        assert!((trips.mht_s(0.0) - 0.030).abs() < 1e-9);
        // While round trips grow, the printed formula leaves no time, because it is SRTT − R'.
        let growing = RoundTrips { last_s: 0.3, smoothed_s: 0.12, variation_s: 0.09 };
        assert!((printed_mht_s(&growing, growing.rto_s(0.2)) + 0.18).abs() < 1e-9);
        assert!((growing.mht_s(0.2) - 0.17).abs() < 1e-9);
        let odd = RoundTrips { last_s: f64::NAN, smoothed_s: 0.1, variation_s: 0.0 };
        assert_eq!(odd.mht_s(1.0), 0.0);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]

        #[test]
        fn the_closed_form_is_where_the_model_is_largest(
            a in 1.0..1000.0f64, b in 0.01..100_000.0f64, rtt_s in 0.001..1.0f64,
        ) {
            let m = Model { a, b, rtt_s };
            let seen = argmax(|t| m.growth(t, 10.0), 0.0, 2.0 * rtt_s);
            let t = m.optimum_s();
            prop_assert!(t >= 0.0 && t < rtt_s / (E - 1.0) + 1e-12);
            // The maximum is flat to within rounding: compare the position or the value.
            prop_assert!((t - seen).abs() < 1e-4 * rtt_s || m.growth(t, 10.0) >= m.growth(seen, 10.0), "{} {}", t, seen);
            prop_assert!((t - seen).abs() < 0.02 * rtt_s, "{} {}", t, seen);
        }

        #[test]
        fn the_range_is_as_wide_as_the_rtt_and_holds_the_optimum(
            w in 1.0..10_000.0f64, elapsed_s in 0.0..1000.0f64, rtt_s in 0.001..0.5f64, mht_s in 0.001..5.0f64,
        ) {
            let m = Model::of_flow(w, elapsed_s, rtt_s);
            let (low, high) = m.range_s(mht_s);
            let best = m.optimum_s().min(mht_s);
            prop_assert!(0.0 <= low && low <= best && best <= high && high <= mht_s, "{low} {best} {high}");
            prop_assert!(high - low <= rtt_s * (1.0 + 1e-9));
            if low > 0.0 && high < mht_s && high > low {
                prop_assert!((high - low - rtt_s).abs() < 1e-6 * rtt_s);
            }
        }

        #[test]
        fn any_numbers_give_a_hold_that_is_one(a: f64, b: f64, rtt_s: f64, last_s: f64, smoothed_s: f64, variation_s: f64) {
            let t = Model { a, b, rtt_s }.optimum_s();
            prop_assert!(t >= 0.0 && t.is_finite());
            let trips = RoundTrips { last_s, smoothed_s, variation_s };
            prop_assert!(trips.mht_s(0.2) >= 0.0);
        }
    }
}
