//! Congestion control: one trait, one file per algorithm, dispatch by enum, selection by name.
//!
//! A controller owns cwnd and ssthresh. Its caller, a TCP sender, owns loss detection, recovery (PRR) and the clock. Windows are in
//! bytes, rates in bit/s.
//!
//! To add an algorithm: a file with a type that implements [`CongestionController`] and has `new(CcConfig)`, and one line in the
//! registry below (docs/add-an-algorithm.md). Every [`Ack`] contains a rate sample (for BBR and similar algorithms). A controller
//! that also controls the window during recovery declares this with [`CongestionController::rules_recovery`].
//!
//! ```
//! use anabranch_cc::{Ack, Algorithm, CcConfig, CongestionController};
//! use anabranch_element::time::{Duration, Instant};
//!
//! let mut cubic = "cubic".parse::<Algorithm>()?.build(CcConfig::default());
//! let before = cubic.cwnd_bytes();
//! cubic.on_ack(&Ack {
//!     now: Instant::from_millis(20),
//!     acked_bytes: 2896,
//!     delivered_bytes: 2896,
//!     in_flight_bytes: before - 2896,
//!     rtt: Some(Duration::from_millis(20)),
//!     srtt: Duration::from_millis(20),
//!     cwnd_limited: true,
//!     ..Ack::default()
//! });
//! assert_eq!(cubic.cwnd_bytes(), before + 2896, "slow start");
//! cubic.on_loss(Instant::from_millis(40), before);
//! assert!(cubic.ssthresh_bytes() < before);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod collect;
pub mod hystart;
pub mod int;

use anabranch_element::time::{Duration, Instant};
use anabranch_wire::ioam::Feedback;
use int::IntConfig;

/// Information from one ACK.
#[derive(Debug, Clone, Copy, Default)]
pub struct Ack {
    /// Time of arrival.
    pub now: Instant,
    /// Bytes that count for growth: the newly delivered ones if the cumulative acknowledgment advanced, otherwise 0 (as in Linux;
    /// advancing over data acknowledged by SACK before counts as 0).
    pub acked_bytes: u64,
    /// Bytes newly known to be delivered, cumulatively or by SACK.
    pub delivered_bytes: u64,
    /// Bytes newly marked as lost because of this ACK.
    pub lost_bytes: u64,
    /// Bytes marked as lost by timers since the previous ACK.
    pub timer_lost_bytes: u64,
    /// Bytes in flight after processing it.
    pub in_flight_bytes: u64,
    /// First byte of the stream not yet acknowledged.
    pub unacknowledged: u64,
    /// First byte of the stream not yet sent.
    pub next_to_send: u64,
    /// RTT sample, if available.
    pub rtt: Option<Duration>,
    /// Smoothed RTT; zero if there is none yet.
    pub srtt: Duration,
    /// Whether cwnd limited the sender; growth is not justified otherwise (RFC 7661).
    pub cwnd_limited: bool,
    /// Whether the sender is in loss recovery.
    pub in_recovery: bool,
    /// Whether the sender is pacing; delay measurements are then not disturbed by bursts.
    pub paced: bool,
    /// Delivery rate sample, if available.
    pub rate: Option<RateSample>,
}

/// A delivery-rate sample (draft-ietf-ccwg-bbr §4.1; the method of Linux `tcp_rate.c`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateSample {
    /// Bytes delivered over the interval.
    pub delivered_bytes: u64,
    /// The longer of the send and the ACK interval.
    pub interval: Duration,
    /// Total bytes delivered when the newest acknowledged segment was sent. A round trip ends when this reaches the total at the
    /// start of the round.
    pub prior_delivered_bytes: u64,
    /// Bytes marked lost since the segment was sent.
    pub lost_bytes: u64,
    /// Whether the application had too little to send, so that the rate is only a lower bound.
    pub app_limited: bool,
}

impl RateSample {
    /// The rate in bit/s.
    #[must_use]
    pub fn bps(&self) -> u64 {
        let ns = self.interval.as_nanos().max(1);
        u64::try_from(u128::from(self.delivered_bytes) * 8_000_000_000 / ns).unwrap_or(u64::MAX)
    }
}

/// Parameters common to all controllers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CcConfig {
    /// Sender's maximum segment size in bytes, at least 1.
    pub mss_bytes: u32,
    /// Initial window in segments; 10 in RFC 6928 and Linux.
    pub initial_window_segments: u32,
    /// Whether CUBIC's slow start may end early on long trains of ACKs or rising delay (HyStart).
    pub hystart: bool,
    /// Parameters of the controllers that use path reports.
    pub int: IntConfig,
}

impl Default for CcConfig {
    fn default() -> Self {
        Self { mss_bytes: 1448, initial_window_segments: 10, hystart: true, int: IntConfig::default() }
    }
}

/// A congestion controller.
pub trait CongestionController {
    /// Whether it uses the path reports ([`on_report`](Self::on_report)).
    const READS_REPORTS: bool = false;

    /// The connection is established; `rtt`: the round trip of its handshake. Not called if that is unknown.
    fn on_established(&mut self, _rtt: Duration, _now: Instant) {}
    /// An ACK acknowledged or delivered data.
    fn on_ack(&mut self, ack: &Ack);
    /// Loss was detected and recovery begins; called once per recovery.
    fn on_loss(&mut self, now: Instant, in_flight_bytes: u64);
    /// The network set an ECN mark; called at most once per round trip.
    fn on_ecn(&mut self, now: Instant, in_flight_bytes: u64) {
        self.on_loss(now, in_flight_bytes);
    }
    /// The retransmission timer expired. `first`: no reduction for this flight has occurred yet, neither by an earlier timeout nor
    /// on loss; otherwise only cwnd collapses, and ssthresh is kept.
    fn on_rto(&mut self, now: Instant, in_flight_bytes: u64, first: bool);
    /// The last [`on_loss`](Self::on_loss) or [`on_rto`](Self::on_rto) was spurious: nothing had been lost. Undoes its effects.
    fn on_spurious(&mut self, now: Instant);
    /// Sending starts again after `idle`, longer than `rto` (RFC 2861, Linux `tcp_cwnd_restart`).
    fn on_idle(&mut self, now: Instant, idle: Duration, rto: Duration);
    /// The receiver reported on the path; called before [`on_ack`](Self::on_ack) for the same ACK. Used only by the controllers of
    /// [`int`].
    fn on_report(&mut self, _report: &Feedback, _now: Instant) {}
    /// Congestion window in bytes.
    fn cwnd_bytes(&self) -> u64;
    /// Slow-start threshold in bytes; `u64::MAX` before the first congestion.
    fn ssthresh_bytes(&self) -> u64;
    /// Pacing rate for payload in bit/s, if the algorithm defines one; the sender then paces regardless of its own settings.
    fn pacing_bps(&self) -> Option<u64> {
        None
    }
    /// Whether cwnd also applies during recovery, in place of PRR.
    fn rules_recovery(&self) -> bool {
        false
    }
    /// Whether it uses [`Ack::rate`]; if not, the sender need not measure it.
    fn wants_rate(&self) -> bool {
        false
    }
    /// Whether the window grows exponentially.
    fn in_slow_start(&self) -> bool {
        self.cwnd_bytes() < self.ssthresh_bytes()
    }
}

/// Declares the controllers: their files and names, and the enums to build and call them.
macro_rules! registry {
    ($( $module:ident $name:literal $Variant:ident($Controller:ty) $about:literal; )+) => {
        $( pub mod $module; )+

        anabranch_element::names! {
            /// The controllers by name.
            pub enum Algorithm("congestion control") { $( $Variant = $name, $about; )+ }
        }

        impl Algorithm {
            /// A controller of this kind.
            #[must_use]
            pub fn build(self, config: CcConfig) -> Controller {
                match self { $( Self::$Variant => Controller::$Variant(<$Controller>::new(config)), )+ }
            }

            /// Whether the controller uses path reports.
            #[must_use]
            pub const fn reads_reports(self) -> bool {
                match self { $( Self::$Variant => <$Controller>::READS_REPORTS, )+ }
            }
        }

        /// Any controller, without a virtual call.
        #[derive(Debug, Clone)]
        pub enum Controller { $( #[doc = $about] $Variant($Controller), )+ }

        impl CongestionController for Controller {
            fn on_established(&mut self, rtt: Duration, now: Instant) {
                match self { $( Self::$Variant(c) => c.on_established(rtt, now), )+ }
            }
            fn on_ack(&mut self, ack: &Ack) {
                match self { $( Self::$Variant(c) => c.on_ack(ack), )+ }
            }
            fn on_loss(&mut self, now: Instant, in_flight_bytes: u64) {
                match self { $( Self::$Variant(c) => c.on_loss(now, in_flight_bytes), )+ }
            }
            fn on_ecn(&mut self, now: Instant, in_flight_bytes: u64) {
                match self { $( Self::$Variant(c) => c.on_ecn(now, in_flight_bytes), )+ }
            }
            fn on_rto(&mut self, now: Instant, in_flight_bytes: u64, first: bool) {
                match self { $( Self::$Variant(c) => c.on_rto(now, in_flight_bytes, first), )+ }
            }
            fn on_spurious(&mut self, now: Instant) {
                match self { $( Self::$Variant(c) => c.on_spurious(now), )+ }
            }
            fn on_idle(&mut self, now: Instant, idle: Duration, rto: Duration) {
                match self { $( Self::$Variant(c) => c.on_idle(now, idle, rto), )+ }
            }
            fn on_report(&mut self, report: &Feedback, now: Instant) {
                match self { $( Self::$Variant(c) => c.on_report(report, now), )+ }
            }
            fn cwnd_bytes(&self) -> u64 {
                match self { $( Self::$Variant(c) => c.cwnd_bytes(), )+ }
            }
            fn ssthresh_bytes(&self) -> u64 {
                match self { $( Self::$Variant(c) => c.ssthresh_bytes(), )+ }
            }
            fn pacing_bps(&self) -> Option<u64> {
                match self { $( Self::$Variant(c) => c.pacing_bps(), )+ }
            }
            fn rules_recovery(&self) -> bool {
                match self { $( Self::$Variant(c) => c.rules_recovery(), )+ }
            }
            fn wants_rate(&self) -> bool {
                match self { $( Self::$Variant(c) => c.wants_rate(), )+ }
            }
            fn in_slow_start(&self) -> bool {
                match self { $( Self::$Variant(c) => c.in_slow_start(), )+ }
            }
        }
    };
}

// One line per controller: file, name, variant, type, description. The first is the default.
registry! {
    cubic "cubic" Cubic(cubic::Cubic) "CUBIC, RFC 9438.";
    reno "reno" Reno(reno::Reno) "NewReno, RFC 5681 and 6582.";
    bbr "bbr" Bbr(bbr::Bbr) "BBR, version 1.";
    int_cubic_l1 "int_cubic_l1" IntCubicL1(int_cubic_l1::IntCubicL1) "CUBIC that keeps its window on medium loss.";
    int_cubic_l2 "int_cubic_l2" IntCubicL2(int_cubic_l2::IntCubicL2) "CUBIC that reduces its window by 5 % on medium loss.";
    int_cubic_ss "int_cubic_ss" IntCubicSs(int_cubic_ss::IntCubicSs) "CUBIC with a slow start controlled by path telemetry.";
    int_rate "int_rate" IntRate(int_rate::IntRate) "Pacing at the fair share of the bottleneck.";
}

/// Compiles and runs the examples of the tutorial.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/add-an-algorithm.md")]
struct Tutorial;

/// RFC 2861: halves the window for every RTO of idle time, not below the initial window, and stores three quarters of it in
/// ssthresh. Returns (cwnd, ssthresh).
fn after_idle(cwnd: f64, ssthresh: f64, initial: f64, idle: Duration, rto: Duration) -> (f64, f64) {
    let floor = initial.min(cwnd);
    let halvings = idle.as_nanos() / rto.as_nanos().max(1);
    let mut shrunk = cwnd;
    for _ in 0..halvings.min(64) {
        shrunk /= 2.0;
    }
    let ssthresh = if ssthresh == f64::INFINITY { ssthresh } else { ssthresh.max(cwnd * 0.75) };
    (shrunk.max(floor), ssthresh)
}

/// A window of `segments` in bytes; infinity becomes `u64::MAX`.
fn to_bytes(segments: f64, mss_bytes: u32) -> u64 {
    // `as` saturates, as required for an infinite threshold.
    (segments * f64::from(mss_bytes)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_name_suggests_the_nearest() {
        assert_eq!("cubic".parse(), Ok(Algorithm::Cubic));
        let there_are = "cubic, reno, bbr, int_cubic_l1, int_cubic_l2, int_cubic_ss, int_rate";
        let error = |name: &str| name.parse::<Algorithm>().unwrap_err().to_string();
        let hint = "; did you mean \"cubic\"?";
        assert_eq!(error("Cubik"), format!("no congestion control \"Cubik\"{hint} (there are: {there_are})"));
        assert_eq!(error("xyz"), format!("no congestion control \"xyz\" (there are: {there_are})"));
        let parsed: Result<Algorithm, _> = serde_json::from_str("\"reno\"");
        assert_eq!(parsed.unwrap(), Algorithm::Reno);
    }

    #[test]
    fn idleness_halves_down_to_the_initial_window() {
        let s = Duration::from_secs;
        assert_eq!(after_idle(100.0, 80.0, 10.0, s(3), s(1)), (12.5, 80.0));
        assert_eq!(after_idle(100.0, 50.0, 10.0, s(9), s(1)), (10.0, 75.0));
        assert_eq!(after_idle(4.0, f64::INFINITY, 10.0, s(9), s(1)), (4.0, f64::INFINITY));
    }

    #[test]
    fn a_rate_sample_is_bits_per_second() {
        let sample = RateSample {
            delivered_bytes: 1_250_000,
            interval: Duration::from_millis(100),
            prior_delivered_bytes: 0,
            lost_bytes: 0,
            app_limited: false,
        };
        assert_eq!(sample.bps(), 100_000_000);
    }
}
