//! CUBIC. RFC 9438, with HyStart++ (RFC 9406) in the first slow start.
//!
//! ```text
//!  cwnd                          W_cubic(t) = C·(t − K)³ + W_max
//!   │                        ╱   K = ∛((W_max − cwnd_epoch) / C)
//!   │ W_max ........____----      C = 0.4 segments/s³, β = 0.7
//!   │         __---
//!   │       ╱                     Reno-friendly: never below W_est, which grows by
//!   │ cwnd_epoch                  α = 3(1 − β)/(1 + β) segments per RTT, and by 1 once it
//!   └───────┴──────┴───── t       has reached the window before the loss
//!           0      K
//! ```
//!
//! Where the RFC leaves a choice we do as Linux: the reduction is taken from cwnd, not from the flight
//! (§4.6 allows it because cwnd does not grow while the application limits the sender), and time during
//! which the application was the limit does not count in t (§5.8).

use super::hystart::{HyStart, Step};
use super::{Ack, CcConfig, CongestionController, after_idle, to_bytes};
use crate::time::{Duration, Instant};

/// C, in segments per second cubed (§5.1).
pub const C: f64 = 0.4;
/// Multiplicative decrease (§4.6).
pub const BETA: f64 = 0.7;
const ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);

/// See the top of this file. Windows are kept in segments, times in seconds.
#[derive(Debug, Clone)]
pub struct Cubic {
    config: CcConfig,
    state: State,
    before: Option<State>,
}

#[derive(Debug, Clone, Copy)]
struct State {
    cwnd: f64,
    ssthresh: f64,
    w_max: f64,
    /// cwnd before the last reduction.
    cwnd_prior: f64,
    epoch: Option<Epoch>,
    /// The next epoch follows a timeout (§4.8).
    after_timeout: bool,
    /// Since when the application has been the limit.
    unlimited_since: Option<Instant>,
    hystart: Option<HyStart>,
}

/// One congestion-avoidance stage.
#[derive(Debug, Clone, Copy)]
struct Epoch {
    start: Instant,
    k: f64,
    w_max: f64,
    w_est: f64,
}

impl Cubic {
    /// A controller in slow start.
    #[must_use]
    pub fn new(config: CcConfig) -> Self {
        let config = CcConfig { mss_bytes: config.mss_bytes.max(1), ..config };
        Self {
            state: State {
                cwnd: f64::from(config.initial_window_segments.max(1)),
                ssthresh: f64::INFINITY,
                w_max: 0.0,
                cwnd_prior: 0.0,
                epoch: None,
                after_timeout: false,
                unlimited_since: None,
                hystart: config.hystart.then(HyStart::default),
            },
            config,
            before: None,
        }
    }

    /// The window in segments.
    pub(super) fn segments(&self) -> f64 {
        self.state.cwnd
    }

    /// A loss answered with another factor than [`BETA`].
    pub(super) fn reduce_by(&mut self, beta: f64) {
        self.before = Some(self.state);
        self.state.reduce(beta);
        self.state.cwnd = self.state.ssthresh;
    }

    /// A loss answered by going on at `segments`, on the same curve.
    pub(super) fn keep(&mut self, segments: f64) {
        self.before = Some(self.state);
        self.state.ssthresh = segments.max(2.0);
        self.state.cwnd = self.state.ssthresh;
        self.state.hystart = None;
    }

    /// A timeout answered by starting anew from one segment, up to where it was.
    pub(super) fn restart_towards(&mut self, segments: f64) {
        self.keep(segments);
        self.state.cwnd = 1.0;
    }

    /// Slow start by another's rule, not beyond ssthresh.
    pub(super) fn grow(&mut self, segments: f64) {
        self.state.cwnd = (self.state.cwnd + segments).min(self.state.ssthresh.max(self.state.cwnd));
    }

    /// Goes on from `segments` as if slow start had ended there.
    pub(super) fn resume(&mut self, segments: f64) {
        let mut fresh = Self::new(self.config).state;
        fresh.cwnd = segments.max(2.0);
        fresh.ssthresh = fresh.cwnd;
        fresh.hystart = None;
        (self.state, self.before) = (fresh, None);
    }
}

impl CongestionController for Cubic {
    fn on_ack(&mut self, ack: &Ack) {
        let s = &mut self.state;
        if ack.in_recovery || ack.acked_bytes == 0 {
            return;
        }
        if !ack.cwnd_limited {
            s.unlimited_since.get_or_insert(ack.now);
            return;
        }
        if let (Some(since), Some(epoch)) = (s.unlimited_since.take(), &mut s.epoch) {
            epoch.start += ack.now.saturating_since(since.max(epoch.start));
        }
        let mut segments = ack.acked_bytes as f64 / f64::from(self.config.mss_bytes);
        if s.cwnd < s.ssthresh {
            let step = match &mut s.hystart {
                Some(hystart) => hystart.on_ack(ack, segments),
                None => Step::Grow(segments),
            };
            match step {
                Step::Grow(growth) => {
                    let grown = growth.min(s.ssthresh - s.cwnd);
                    s.cwnd += grown;
                    if s.cwnd < s.ssthresh {
                        return;
                    }
                    segments = (segments - grown).max(0.0);
                }
                Step::Exit => {
                    s.ssthresh = s.cwnd;
                    s.hystart = None;
                }
            }
        }
        s.avoid_congestion(ack.now, ack.srtt, segments);
    }

    fn on_loss(&mut self, _: Instant, _: u64) {
        self.reduce_by(BETA);
    }

    fn on_rto(&mut self, now: Instant, in_flight_bytes: u64, first: bool) {
        if first {
            self.on_loss(now, in_flight_bytes);
        }
        self.state.cwnd = 1.0;
        self.state.epoch = None;
        self.state.after_timeout = true;
    }

    /// §4.9.2.
    fn on_spurious(&mut self, _: Instant) {
        if let Some(before) = self.before.take() {
            let cwnd = before.cwnd.max(self.state.cwnd);
            self.state = State { cwnd, ..before };
        }
    }

    fn on_idle(&mut self, _: Instant, idle: Duration, rto: Duration) {
        let s = &mut self.state;
        let initial = f64::from(self.config.initial_window_segments);
        (s.cwnd, s.ssthresh) = after_idle(s.cwnd, s.ssthresh, initial, idle, rto);
        s.epoch = None;
    }

    fn cwnd_bytes(&self) -> u64 {
        to_bytes(self.state.cwnd, self.config.mss_bytes)
    }

    fn ssthresh_bytes(&self) -> u64 {
        to_bytes(self.state.ssthresh, self.config.mss_bytes)
    }
}

impl State {
    /// §4.6, and fast convergence §4.7: a flow that lost before it regained its last maximum leaves more
    /// room to the others.
    fn reduce(&mut self, beta: f64) {
        self.w_max = if self.cwnd < self.w_max { self.cwnd * (1.0 + beta) / 2.0 } else { self.cwnd };
        self.cwnd_prior = self.cwnd;
        self.ssthresh = (self.cwnd * beta).max(2.0);
        self.epoch = None;
        self.after_timeout = false;
        self.unlimited_since = None;
        // HyStart++ is for the first slow start only (RFC 9406 §4.3).
        self.hystart = None;
    }

    /// §4.2 to §4.5 for an ACK of `segments`.
    fn avoid_congestion(&mut self, now: Instant, srtt: Duration, segments: f64) {
        let cwnd = self.cwnd;
        let epoch = *self.epoch.get_or_insert_with(|| {
            // §4.8: after a timeout, or if slow start ended above the old maximum, the curve starts at
            // its plateau.
            let plateau = self.after_timeout || self.w_max <= cwnd;
            let w_max = if plateau { cwnd } else { self.w_max };
            Epoch { start: now, k: cube_root((w_max - cwnd) / C), w_max, w_est: cwnd }
        });
        self.after_timeout = false;
        let t = now.saturating_since(epoch.start).as_secs_f64();
        let w_cubic = |t: f64| {
            let d = t - epoch.k;
            C * d * d * d + epoch.w_max
        };
        let alpha = if epoch.w_est >= self.cwnd_prior { 1.0 } else { ALPHA };
        let w_est = epoch.w_est + alpha * segments / cwnd;
        self.epoch = Some(Epoch { w_est, ..epoch });
        if w_cubic(t) < w_est {
            self.cwnd = cwnd.max(w_est);
        } else {
            let target = w_cubic(t + srtt.as_secs_f64()).clamp(cwnd, 1.5 * cwnd);
            self.cwnd += (target - cwnd) / cwnd * segments;
        }
    }
}

/// The cube root of x ≥ 0 by Newton's method with basic operations only, so that every machine gets the
/// same bits.
fn cube_root(x: f64) -> f64 {
    if x <= 0.0 || !x.is_finite() {
        return 0.0;
    }
    // Bring x into [1, 8) by powers of 8; the root then scales by powers of 2.
    let (mut m, mut scale) = (x, 1.0);
    while m >= 8.0 {
        m /= 8.0;
        scale *= 2.0;
    }
    while m < 1.0 {
        m *= 8.0;
        scale /= 2.0;
    }
    let mut root = 1.5;
    for _ in 0..6 {
        root = (2.0 * root + m / (root * root)) / 3.0;
    }
    root * scale
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u32 = 1000;

    fn cubic(initial_window_segments: u32) -> Cubic {
        Cubic::new(CcConfig {
            mss_bytes: MSS,
            initial_window_segments,
            hystart: false,
            ..CcConfig::default()
        })
    }

    /// Plays `seconds` of ACKs, one per segment, `cwnd` segments per RTT; calls `check` every RTT.
    fn play(c: &mut Cubic, from: Instant, seconds: f64, rtt: Duration, mut check: impl FnMut(f64, f64)) {
        let mut now = from;
        while now.saturating_since(from).as_secs_f64() < seconds {
            let segments = (c.state.cwnd as u32).max(1);
            for _ in 0..segments {
                c.on_ack(&Ack {
                    now,
                    acked_bytes: u64::from(MSS),
                    srtt: rtt,
                    cwnd_limited: true,
                    ..Ack::default()
                });
                now += rtt / segments;
            }
            check(now.saturating_since(from).as_secs_f64(), c.state.cwnd);
        }
    }

    #[test]
    fn cube_roots() {
        for x in [1e-6f64, 0.3, 1.0, 7.999, 8.0, 27.0, 1234.5, 1e15] {
            let r = cube_root(x);
            assert!((r * r * r / x - 1.0).abs() < 1e-12, "{x}: {r}");
        }
        assert_eq!((cube_root(0.0), cube_root(-1.0), cube_root(f64::NAN)), (0.0, 0.0, 0.0));
    }

    /// The golden: after a loss at 1000 segments the window follows W_cubic(t), reaching W_max at K.
    #[test]
    fn the_curve_is_the_formula() {
        let mut c = cubic(1000);
        c.on_loss(Instant::ZERO, 0);
        assert_eq!(c.cwnd_bytes(), 700_000);
        let k = (300.0f64 / 0.4).cbrt();
        let mut checked = 0;
        play(&mut c, Instant::ZERO, 2.0 * k, Duration::from_millis(100), |t, cwnd| {
            let formula = 0.4 * (t - k).powi(3) + 1000.0;
            assert!((cwnd - formula).abs() <= 0.01 * formula, "t {t}: {cwnd} vs {formula}");
            checked += 1;
        });
        assert!(checked > 100);
    }

    /// With a small window and RTT the cubic is too slow and the window grows as Reno's would.
    #[test]
    fn small_windows_are_reno_friendly() {
        let mut c = cubic(20);
        c.on_loss(Instant::ZERO, 0);
        let rtt = Duration::from_millis(10);
        let mut at_half_a_second = 0.0;
        play(&mut c, Instant::ZERO, 0.5, rtt, |_, cwnd| at_half_a_second = cwnd);
        // 50 RTTs: α segments each up to the old window of 20 (12 RTTs), 1 each afterwards.
        assert!((50.0..=60.0).contains(&at_half_a_second), "{at_half_a_second}");
    }

    #[test]
    fn fast_convergence_gives_way() {
        let mut c = cubic(100);
        c.on_loss(Instant::ZERO, 0);
        assert_eq!((c.state.w_max, c.state.cwnd), (100.0, 70.0));
        c.on_loss(Instant::ZERO, 0);
        assert_eq!(c.state.w_max, 70.0 * 0.85);
        assert!((c.state.ssthresh - 49.0).abs() < 1e-9);
    }

    #[test]
    fn after_a_timeout_the_curve_starts_at_its_plateau() {
        let mut c = cubic(100);
        c.on_rto(Instant::ZERO, 0, true);
        assert_eq!((c.cwnd_bytes(), c.ssthresh_bytes()), (1000, 70_000));
        play(&mut c, Instant::ZERO, 0.8, Duration::from_millis(100), |_, _| ());
        let epoch = c.state.epoch.unwrap();
        assert!(epoch.k == 0.0 && epoch.w_max <= 71.0, "{epoch:?}");
    }

    #[test]
    fn a_spurious_loss_is_taken_back() {
        let mut c = cubic(100);
        c.on_rto(Instant::ZERO, 0, true);
        c.on_spurious(Instant::ZERO);
        assert_eq!((c.cwnd_bytes(), c.ssthresh_bytes(), c.state.w_max), (100_000, u64::MAX, 0.0));
    }

    #[test]
    fn time_without_need_does_not_count() {
        let (mut busy, mut paused) = (cubic(1000), cubic(1000));
        let rtt = Duration::from_millis(100);
        for c in [&mut busy, &mut paused] {
            c.on_loss(Instant::ZERO, 0);
            play(c, Instant::ZERO, 1.0, rtt, |_, _| ());
        }
        paused.on_ack(&Ack {
            now: Instant::from_secs(1),
            acked_bytes: 1000,
            srtt: rtt,
            cwnd_limited: false,
            ..Ack::default()
        });
        play(&mut busy, Instant::from_secs(1), 1.0, rtt, |_, _| ());
        play(&mut paused, Instant::from_secs(101), 1.0, rtt, |_, _| ());
        assert!((busy.state.cwnd - paused.state.cwnd).abs() < 2.0);
    }
}
