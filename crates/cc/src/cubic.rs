//! CUBIC as in Linux (`tcp_cubic.c` of 6.18): RFC 9438, with HyStart in slow start.
//!
//! ```text
//!  cwnd                          W_cubic(t) = C·(t − K)³ + W_max
//!   │                        ╱   K = ∛((W_max − cwnd_epoch) / C)
//!   │ W_max ........____----      C = 0.4 segments/s³, β = 0.7
//!   │         __---
//!   │       ╱                     Reno-friendly: at least W_est, which grows by
//!   │ cwnd_epoch                  α = 8/15 segments per RTT
//!   └───────┴──────┴───── t
//!           0      K
//! ```
//!
//! Where Linux differs from RFC 9438, this implementation follows Linux, because this is what senders use:
//!
//! - Windows are whole segments, rounded down on a reduction (§4.6): at 5 % loss this is a third of the window.
//! - The curve is evaluated one minimum RTT ahead, not one smoothed RTT (§4.2).
//! - W_est always grows by less than a whole segment per RTT (§4.3: once it has reached the window before the loss).
//! - Before the first loss, the window grows by at least 5 % per RTT: HyStart may have ended slow start early, and the curve,
//!   which then starts at its plateau, would take long to find the available bandwidth.
//! - A spurious reduction restores the window, but not the curve (§4.9.2), which restarts at its plateau.
//! - After a timeout all state is reset (§4.8).
//!
//! Time during which the application was the limit does not count towards t (§5.8).

use super::hystart::HyStart;
use super::{Ack, CcConfig, CongestionController, after_idle, to_bytes};
use anabranch_element::time::{Duration, Instant};

/// C, in segments per second cubed (§5.1).
pub const C: f64 = 0.4;
/// Multiplicative decrease (§4.6).
pub const BETA: f64 = 0.7;
/// Growth of W_est in segments per window acknowledged: 3(1 − β)/(1 + β), rounded as in Linux.
const ALPHA: f64 = 8.0 / 15.0;
/// The window grows by at most half of the acknowledged segments.
const MIN_COUNT: f64 = 2.0;
/// Before the first loss, the window grows by at least one segment per this many acknowledged ones.
const NO_LOSS_COUNT: f64 = 20.0;
/// On the plateau, the window grows by one segment in this many round trips.
const PLATEAU_RTTS: f64 = 100.0;
/// Delay samples within this time after a reduction are ignored, because the queue is still draining.
const AFTER_REDUCTION: Duration = Duration::from_secs(1);

/// A CUBIC controller; see the module documentation. Windows are kept in segments, times in seconds.
#[derive(Debug, Clone)]
pub struct Cubic {
    config: CcConfig,
    state: State,
    /// Window and threshold before the last reduction, for undoing it.
    before_reduction: Option<(f64, f64)>,
}

#[derive(Debug, Clone, Copy)]
struct State {
    /// Whole segments, unless set by another algorithm.
    cwnd: f64,
    /// Acknowledged segments counted towards the next increment of the window.
    credit: f64,
    ssthresh: f64,
    /// 0: no loss yet.
    w_max: f64,
    epoch: Option<Epoch>,
    /// Minimum RTT since the connection began or timed out.
    delay_min: Option<Duration>,
    /// Start of the current application-limited period.
    unlimited_since: Option<Instant>,
    hystart: Option<HyStart>,
}

/// One congestion-avoidance stage.
#[derive(Debug, Clone, Copy)]
struct Epoch {
    start: Instant,
    k: f64,
    /// The plateau of the curve, segments.
    origin: f64,
    w_est: f64,
    /// Acknowledged segments counted towards the next increment of `w_est`.
    w_est_credit: f64,
}

impl Cubic {
    /// A controller in slow start.
    #[must_use]
    pub fn new(config: CcConfig) -> Self {
        let config = CcConfig { mss_bytes: config.mss_bytes.max(1), ..config };
        Self {
            state: State {
                cwnd: f64::from(config.initial_window_segments.max(1)),
                credit: 0.0,
                ssthresh: f64::INFINITY,
                w_max: 0.0,
                epoch: None,
                delay_min: None,
                unlimited_since: None,
                hystart: config.hystart.then(HyStart::default),
            },
            config,
            before_reduction: None,
        }
    }

    /// The window in segments.
    pub(super) fn segments(&self) -> f64 {
        self.state.cwnd
    }

    /// Response to a loss: continues with `segments`, on the same curve.
    pub(super) fn reduce_to(&mut self, segments: f64) {
        self.before_reduction = Some((self.state.cwnd, self.state.ssthresh));
        self.state.ssthresh = segments.max(2.0);
        self.state.cwnd = self.state.ssthresh;
        self.state.hystart = None;
    }

    /// Response to a timeout: restarts from one segment, with a threshold of `segments`.
    pub(super) fn restart_towards(&mut self, segments: f64) {
        self.reduce_to(segments);
        self.state.cwnd = 1.0;
    }

    /// Slow start with growth given by the caller, limited by ssthresh.
    pub(super) fn add_in_slow_start(&mut self, segments: f64) {
        self.state.cwnd = (self.state.cwnd + segments).min(self.state.ssthresh.max(self.state.cwnd));
    }

    /// Continues with `segments` as if slow start had ended there.
    pub(super) fn leave_slow_start_at(&mut self, segments: f64) {
        let mut fresh = Self::new(self.config).state;
        fresh.cwnd = segments.max(2.0);
        fresh.ssthresh = fresh.cwnd;
        fresh.hystart = None;
        (self.state, self.before_reduction) = (fresh, None);
    }
}

impl CongestionController for Cubic {
    fn on_ack(&mut self, ack: &Ack) {
        let s = &mut self.state;
        s.sample_delay(ack);
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
            let grown = segments.min(s.ssthresh - s.cwnd);
            s.cwnd += grown;
            segments -= grown;
            if segments <= 0.0 {
                return;
            }
        }
        s.avoid_congestion(ack.now, segments);
    }

    fn on_loss(&mut self, _: Instant, _: u64) {
        self.before_reduction = Some((self.state.cwnd, self.state.ssthresh));
        self.state.reduce();
        self.state.cwnd = self.state.ssthresh;
    }

    fn on_rto(&mut self, now: Instant, in_flight_bytes: u64, first: bool) {
        if first {
            self.on_loss(now, in_flight_bytes);
        }
        let State { ssthresh, .. } = self.state;
        self.state = State { cwnd: 1.0, ssthresh, ..Self::new(self.config).state };
    }

    fn on_spurious(&mut self, _: Instant) {
        if let Some((cwnd, ssthresh)) = self.before_reduction.take() {
            self.state.cwnd = self.state.cwnd.max(cwnd);
            self.state.ssthresh = self.state.ssthresh.max(ssthresh);
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
    /// Updates the minimum RTT; ends slow start if HyStart detects a full path.
    fn sample_delay(&mut self, ack: &Ack) {
        let Some(rtt) = ack.rtt else { return };
        if self.epoch.is_some_and(|epoch| ack.now.saturating_since(epoch.start) < AFTER_REDUCTION) {
            return;
        }
        let min = self.delay_min.map_or(rtt, |min| min.min(rtt));
        self.delay_min = Some(min);
        if self.cwnd < self.ssthresh
            && let Some(hystart) = &mut self.hystart
            && hystart.on_ack(ack, rtt, min, self.cwnd)
        {
            self.ssthresh = self.cwnd.floor();
            self.hystart = None;
        }
    }

    /// §4.6, and fast convergence §4.7: a flow that lost before reaching its previous maximum leaves more room to others.
    fn reduce(&mut self) {
        let cwnd = self.cwnd.floor();
        self.w_max = if cwnd < self.w_max { (cwnd * (1.0 + BETA) / 2.0).floor() } else { cwnd };
        self.ssthresh = (cwnd * BETA).floor().max(2.0);
        self.epoch = None;
        self.credit = 0.0;
        self.unlimited_since = None;
    }

    /// §4.2 to §4.5 for an ACK of `segments`.
    fn avoid_congestion(&mut self, now: Instant, segments: f64) {
        let cwnd = self.cwnd;
        let epoch = self.epoch.get_or_insert_with(|| {
            // If slow start ended above the previous maximum, or there is none, the curve starts at its plateau.
            let origin = if self.w_max <= cwnd { cwnd } else { self.w_max };
            let k = cube_root((origin - cwnd) / C);
            Epoch { start: now, k, origin, w_est: cwnd, w_est_credit: 0.0 }
        });
        epoch.w_est_credit += segments;
        let t = now.saturating_since(epoch.start) + self.delay_min.unwrap_or_default();
        let d = t.as_secs_f64() - epoch.k;
        // Whole segments relative to the plateau.
        let target = epoch.origin + (C * d * d * d).trunc();
        let mut count = if target > cwnd { cwnd / (target - cwnd) } else { PLATEAU_RTTS * cwnd };
        if self.w_max == 0.0 {
            count = count.min(NO_LOSS_COUNT);
        }
        let per_segment = (cwnd / ALPHA).floor().max(1.0);
        let whole = (epoch.w_est_credit / per_segment).floor();
        epoch.w_est += whole;
        epoch.w_est_credit -= whole * per_segment;
        if epoch.w_est > cwnd {
            count = count.min(cwnd / (epoch.w_est - cwnd));
        }
        self.add(count.floor().max(MIN_COUNT), segments);
    }

    /// Increments the window by one segment per `count` acknowledged ones.
    fn add(&mut self, count: f64, segments: f64) {
        if self.credit >= count {
            // The credit was accumulated with a larger count.
            self.credit = 0.0;
            self.cwnd += 1.0;
        }
        self.credit += segments;
        let whole = (self.credit / count).floor();
        self.credit -= whole * count;
        self.cwnd += whole;
    }
}

/// The cube root of x ≥ 0 by Newton's method, using only basic operations for bit-identical results on every machine.
fn cube_root(x: f64) -> f64 {
    if x <= 0.0 || !x.is_finite() {
        return 0.0;
    }
    // Scale x to [1, 8) by powers of 8; the root then scales by powers of 2.
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

    /// Simulates `seconds` of ACKs, one per segment and `cwnd` segments per RTT; calls `check` every RTT.
    fn play(c: &mut Cubic, from: Instant, seconds: f64, rtt: Duration, mut check: impl FnMut(f64, f64)) {
        let mut now = from;
        while now.saturating_since(from).as_secs_f64() < seconds {
            let segments = (c.state.cwnd as u32).max(1);
            for _ in 0..segments {
                c.on_ack(&Ack {
                    now,
                    acked_bytes: u64::from(MSS),
                    rtt: Some(rtt),
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

    /// Reference curve: after a loss at 1000 segments the window follows W_cubic(t) and reaches W_max at K.
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

    /// With a small window and RTT, the cubic curve is too slow and the window grows like Reno's.
    #[test]
    fn small_windows_are_reno_friendly() {
        let mut c = cubic(20);
        c.on_loss(Instant::ZERO, 0);
        let rtt = Duration::from_millis(10);
        let mut at_half_a_second = 0.0;
        play(&mut c, Instant::ZERO, 0.5, rtt, |_, cwnd| at_half_a_second = cwnd);
        // From 14, by 8/15 of a segment in each of about 50 RTTs.
        assert!((36.0..=42.0).contains(&at_half_a_second), "{at_half_a_second}");
    }

    #[test]
    fn fast_convergence_gives_way() {
        let mut c = cubic(100);
        c.on_loss(Instant::ZERO, 0);
        assert_eq!((c.state.w_max, c.state.cwnd), (100.0, 70.0));
        c.on_loss(Instant::ZERO, 0);
        assert_eq!((c.state.w_max, c.state.ssthresh), (59.0, 49.0));
    }

    #[test]
    fn after_a_timeout_the_curve_starts_at_its_plateau() {
        let mut c = cubic(100);
        c.on_rto(Instant::ZERO, 0, true);
        assert_eq!((c.cwnd_bytes(), c.ssthresh_bytes()), (1000, 70_000));
        play(&mut c, Instant::ZERO, 0.8, Duration::from_millis(100), |_, _| ());
        let epoch = c.state.epoch.unwrap();
        assert!(epoch.k == 0.0 && epoch.origin <= 71.0 && c.state.w_max == 0.0, "{epoch:?}");
    }

    #[test]
    fn small_windows_are_rounded_down() {
        let mut c = cubic(5);
        c.on_loss(Instant::ZERO, 0);
        assert_eq!(c.cwnd_bytes(), 3 * u64::from(MSS));
        c.on_loss(Instant::ZERO, 0);
        c.on_loss(Instant::ZERO, 0);
        assert_eq!(c.cwnd_bytes(), 2 * u64::from(MSS), "never below two");
    }

    /// HyStart may end slow start at a fraction of the available bandwidth.
    #[test]
    fn before_the_first_loss_the_window_grows_by_a_twentieth_per_round_trip() {
        let mut c = cubic(100);
        c.state.ssthresh = 100.0;
        let rtt = Duration::from_millis(10);
        let mut after = 0.0;
        play(&mut c, Instant::ZERO, 0.28, rtt, |_, cwnd| after = cwnd);
        assert!((370.0..=410.0).contains(&after), "1.05^28 = 3.92: {after}");
        c.on_loss(Instant::ZERO, 0);
        let reduced = c.state.cwnd;
        play(&mut c, Instant::from_secs(1), 0.28, rtt, |_, cwnd| after = cwnd);
        assert!(after < 1.2 * reduced, "{reduced} {after}");
    }

    #[test]
    fn a_spurious_loss_gives_the_window_back_and_starts_the_curve_anew() {
        let mut c = cubic(100);
        c.on_rto(Instant::ZERO, 0, true);
        c.on_spurious(Instant::ZERO);
        assert_eq!((c.cwnd_bytes(), c.ssthresh_bytes()), (100_000, u64::MAX));
        let mut c = cubic(100);
        c.state.ssthresh = 100.0;
        c.on_loss(Instant::ZERO, 0);
        c.on_spurious(Instant::ZERO);
        assert_eq!((c.cwnd_bytes(), c.ssthresh_bytes()), (100_000, 100_000));
        assert!(c.state.epoch.is_none() && c.state.w_max == 100.0);
    }

    #[test]
    fn slow_start_ends_when_acks_show_a_full_path() {
        for (rtt_ms, ends) in [(20, false), (40, true)] {
            let mut c = Cubic::new(CcConfig { mss_bytes: MSS, ..CcConfig::default() });
            let base = Duration::from_millis(20);
            play(&mut c, Instant::ZERO, 0.03, base, |_, _| ());
            assert_eq!(c.ssthresh_bytes(), u64::MAX);
            // ACKs too far apart to form a train.
            let mut now = Instant::from_secs(1);
            for i in 0..12 {
                now += Duration::from_millis(3);
                let rtt = Some(Duration::from_millis(rtt_ms));
                let (unacknowledged, next_to_send) = (1000 + i, 2000);
                c.on_ack(&Ack {
                    now,
                    acked_bytes: 1000,
                    rtt,
                    cwnd_limited: true,
                    unacknowledged,
                    next_to_send,
                    ..Ack::default()
                });
            }
            assert_eq!(c.ssthresh_bytes() < u64::MAX, ends, "{rtt_ms} ms");
        }
    }

    #[test]
    fn application_limited_time_does_not_count() {
        let (mut busy, mut paused) = (cubic(1000), cubic(1000));
        let rtt = Duration::from_millis(100);
        for c in [&mut busy, &mut paused] {
            c.on_loss(Instant::ZERO, 0);
            play(c, Instant::ZERO, 1.0, rtt, |_, _| ());
        }
        paused.on_ack(&Ack {
            now: Instant::from_secs(1),
            acked_bytes: 1000,
            rtt: Some(rtt),
            cwnd_limited: false,
            ..Ack::default()
        });
        play(&mut busy, Instant::from_secs(1), 1.0, rtt, |_, _| ());
        play(&mut paused, Instant::from_secs(101), 1.0, rtt, |_, _| ());
        assert!((busy.state.cwnd - paused.state.cwnd).abs() < 2.0);
    }
}
