//! BBR, version 1: Cardwell, Cheng, Gunn, Yeganeh, Jacobson, *BBR: Congestion-Based Congestion Control*, ACM
//! Queue 14(5), 2016; draft-cardwell-iccrg-bbr-congestion-control-00 (July 2017); details as `tcp_bbr.c` of
//! Linux 5.3, which RLC §V-D measures.
//!
//! ```text
//!   STARTUP ──▶ DRAIN ──▶ PROBE_BW: pace at 1¼ · ¾ · 1 · 1 · 1 · 1 · 1 · 1 of the bandwidth, a RTT each
//!   pace 2.885  pace ⅓      ▲   │
//!   until the   until in    │   │ no new minimum of the RTT for 10 s
//!   bandwidth   flight ≤    │   ▼
//!   stands      BDP        PROBE_RTT: 4 segments for 200 ms and a round trip
//!
//!   bandwidth = max of the delivery rate over 10 round trips    pace = gain · bandwidth
//!   min RTT   = min over 10 s                                   cwnd = 2 · bandwidth · min RTT + …
//! ```
//!
//! Loss has no effect, except for one round of packet conservation when recovery begins. ECN has none.
//!
//! Differences from the source: no long-term sampling for token-bucket policers (Linux only, inactive unless a fifth of the
//! packets is lost); the starting phase of the gain cycle is derived from the clock instead of a random number, so that runs are
//! reproducible.

mod filter;
#[cfg(test)]
mod tests;

use super::{Ack, CcConfig, CongestionController, RateSample};
use anabranch_element::time::{Duration, Instant};
use filter::{AckAggregation, MaxFilter};

/// 2/ln 2: the smallest gain that doubles the rate each round.
const HIGH_GAIN: f64 = 2885.0 / 1000.0;
/// Drains within a round the queue that a round of [`HIGH_GAIN`] has built.
const DRAIN_GAIN: f64 = 1000.0 / 2885.0;
/// Window in BDPs in PROBE_BW, with room for delayed and stretched ACKs.
const CWND_GAIN: f64 = 2.0;
const CYCLE: [f64; 8] = [1.25, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];
/// Number of round trips for which a delivery rate counts.
const BANDWIDTH_ROUNDS: u64 = 10;
const MIN_RTT_WINDOW: Duration = Duration::from_secs(10);
const PROBE_RTT_TIME: Duration = Duration::from_millis(200);
/// Minimum window in segments.
const MIN_SEGMENTS: u64 = 4;
/// The pipe is full if the bandwidth has not grown by a quarter in three rounds.
const FULL_GROWTH: f64 = 1.25;
const FULL_ROUNDS: u32 = 3;
/// Pacing is reduced by 1 %, so that errors of the estimate do not build up a queue.
const PACING_MARGIN: f64 = 0.99;

/// Larger than any window; keeps sums in range.
const MAX_WINDOW: u64 = 1 << 48;

/// State of the state machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Doubles the rate in each round.
    Startup,
    /// Drains the queue built up during startup.
    Drain,
    /// Cycles around the estimated bandwidth.
    ProbeBw,
    /// Measures the path's RTT with almost nothing in flight.
    ProbeRtt,
}

/// A BBR controller; see the module documentation.
#[derive(Debug, Clone)]
pub struct Bbr {
    mss: u64,
    initial_cwnd: u64,
    mode: Mode,
    cwnd: u64,
    prior_cwnd: u64,
    pacing_gain: f64,
    cwnd_gain: f64,
    pacing_bps: u64,
    has_seen_rtt: bool,
    /// Delivery rate in bytes per second, by round.
    bandwidth: MaxFilter,
    aggregation: AckAggregation,
    rounds: u64,
    round_start: bool,
    delivered: u64,
    next_round_delivered: u64,
    min_rtt: Option<Duration>,
    min_rtt_at: Instant,
    cycle: usize,
    cycle_at: Instant,
    full_bandwidth: f64,
    full_rounds: u32,
    full_pipe: bool,
    probe_rtt_done_at: Option<Instant>,
    probe_rtt_round_done: bool,
    /// Range of delivered bytes whose rate samples are not representative, because of PROBE_RTT.
    probe_rtt_limited: Option<(u64, u64)>,
    idle_restart: bool,
    recovery: Recovery,
    conserve_packets: bool,
    /// After a timeout: the window is restored when this amount is acknowledged; the inner `None` means not yet known.
    after_timeout: Option<Option<u64>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Recovery {
    No,
    Entering,
    Yes,
}

impl Bbr {
    /// A controller in startup.
    #[must_use]
    pub fn new(config: CcConfig) -> Self {
        let mss = u64::from(config.mss_bytes.max(1));
        let initial_cwnd = mss * u64::from(config.initial_window_segments.max(1));
        Self {
            mss,
            initial_cwnd,
            mode: Mode::Startup,
            cwnd: initial_cwnd,
            prior_cwnd: 0,
            pacing_gain: HIGH_GAIN,
            cwnd_gain: HIGH_GAIN,
            // Without an RTT, pace as if it were 1 ms.
            pacing_bps: to_bps(HIGH_GAIN * initial_cwnd as f64 * 1000.0),
            has_seen_rtt: false,
            bandwidth: MaxFilter::new(BANDWIDTH_ROUNDS),
            aggregation: AckAggregation::default(),
            rounds: 0,
            round_start: false,
            delivered: 0,
            next_round_delivered: 0,
            min_rtt: None,
            min_rtt_at: Instant::ZERO,
            cycle: 0,
            cycle_at: Instant::ZERO,
            full_bandwidth: 0.0,
            full_rounds: 0,
            full_pipe: false,
            probe_rtt_done_at: None,
            probe_rtt_round_done: false,
            probe_rtt_limited: None,
            idle_restart: false,
            recovery: Recovery::No,
            conserve_packets: false,
            after_timeout: None,
        }
    }

    /// The current state.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The estimated bandwidth of the path, bit/s of payload.
    #[must_use]
    #[cfg(test)]
    pub fn bandwidth_bps(&self) -> u64 {
        to_bps(self.bandwidth.max())
    }

    fn bdp(&self, gain: f64) -> f64 {
        match self.min_rtt {
            Some(rtt) => gain * self.bandwidth.max() * rtt.as_secs_f64(),
            // Without an RTT: the initial window.
            None => self.initial_cwnd as f64,
        }
    }

    /// Bytes that a paced sender passes down at once.
    fn send_quantum(&self) -> u64 {
        let bps = self.pacing_bps;
        let quantum = if bps < 1_200_000 { 1 } else { (bps / 8000 / self.mss).max(2) };
        (quantum * self.mss).min(64 << 10)
    }

    /// Window for `gain` BDPs plus `extra` bytes, with room for data held back by host and receiver.
    fn target(&self, gain: f64, extra: u64) -> u64 {
        let bytes = (self.bdp(gain) as u64).saturating_add(extra).min(MAX_WINDOW) + 3 * self.send_quantum();
        let even = bytes.div_ceil(self.mss).next_multiple_of(2) * self.mss;
        // Rounding must not hold back the probe.
        let probing = self.mode == Mode::ProbeBw && self.cycle == 0;
        even + if probing { 2 * self.mss } else { 0 }
    }

    fn update_round(&mut self, rate: &RateSample) {
        self.round_start = rate.prior_delivered_bytes >= self.next_round_delivered;
        if self.round_start {
            self.next_round_delivered = self.delivered;
            self.rounds += 1;
            self.conserve_packets = false;
        }
    }

    fn update_bandwidth(&mut self, rate: &RateSample) {
        let bytes_per_second = rate.delivered_bytes as f64 / rate.interval.as_secs_f64().max(1e-9);
        let slowed = self
            .probe_rtt_limited
            .is_some_and(|(from, until)| (from..=until).contains(&rate.prior_delivered_bytes));
        if !(rate.app_limited || slowed) || bytes_per_second >= self.bandwidth.max() {
            self.bandwidth.update(self.rounds, bytes_per_second);
        }
    }

    fn update_cycle(&mut self, ack: &Ack, rate: &RateSample) {
        if self.mode != Mode::ProbeBw {
            return;
        }
        let long = ack.now.saturating_since(self.cycle_at) > self.min_rtt.unwrap_or_default();
        let was_in_flight = ack.in_flight_bytes.saturating_add(ack.delivered_bytes);
        let over = if self.pacing_gain > 1.0 {
            long && (rate.lost_bytes > 0 || was_in_flight >= self.target(self.pacing_gain, 0))
        } else {
            long || (self.pacing_gain < 1.0 && was_in_flight <= self.target(1.0, 0))
        };
        if over {
            self.enter_phase((self.cycle + 1) % CYCLE.len(), ack.now);
        }
    }

    fn enter_phase(&mut self, cycle: usize, now: Instant) {
        self.cycle = cycle;
        self.cycle_at = now;
        self.pacing_gain = CYCLE[cycle];
    }

    fn enter_probe_bw(&mut self, now: Instant) {
        self.mode = Mode::ProbeBw;
        self.cwnd_gain = CWND_GAIN;
        // Any phase except the draining one, selected by hashing the clock (SplitMix64).
        let mut mixed = now.as_nanos().wrapping_add(0x9E37_79B9_7F4A_7C15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let phase = ((mixed >> 33) % 7) as usize;
        self.enter_phase(if phase == 0 { 0 } else { phase + 1 }, now);
    }

    fn check_full_pipe(&mut self, rate: &RateSample) {
        if self.full_pipe || !self.round_start || rate.app_limited {
            return;
        }
        if self.bandwidth.max() >= self.full_bandwidth * FULL_GROWTH {
            self.full_bandwidth = self.bandwidth.max();
            self.full_rounds = 0;
            return;
        }
        self.full_rounds += 1;
        self.full_pipe = self.full_rounds >= FULL_ROUNDS;
    }

    fn check_drain(&mut self, ack: &Ack) {
        if self.mode == Mode::Startup && self.full_pipe {
            self.mode = Mode::Drain;
            self.pacing_gain = DRAIN_GAIN;
            self.cwnd_gain = HIGH_GAIN;
        }
        if self.mode == Mode::Drain && ack.in_flight_bytes <= self.target(1.0, 0) {
            self.enter_probe_bw(ack.now);
        }
    }

    fn update_min_rtt(&mut self, ack: &Ack) {
        let expired = self.min_rtt.is_some() && ack.now.saturating_since(self.min_rtt_at) > MIN_RTT_WINDOW;
        if let Some(rtt) = ack.rtt
            && self.min_rtt.is_none_or(|min| rtt <= min || expired)
        {
            self.min_rtt = Some(rtt);
            self.min_rtt_at = ack.now;
        }
        if expired && !self.idle_restart && self.mode != Mode::ProbeRtt {
            self.save_cwnd();
            self.mode = Mode::ProbeRtt;
            self.pacing_gain = 1.0;
            self.cwnd_gain = 1.0;
            self.probe_rtt_done_at = None;
            self.probe_rtt_limited = Some((self.delivered, self.delivered));
        }
        if self.mode == Mode::ProbeRtt {
            self.stay_in_probe_rtt(ack);
        }
        if ack.delivered_bytes > 0 {
            self.idle_restart = false;
        }
    }

    fn stay_in_probe_rtt(&mut self, ack: &Ack) {
        if let Some((_, until)) = &mut self.probe_rtt_limited {
            *until = self.delivered.saturating_add(ack.in_flight_bytes);
        }
        match self.probe_rtt_done_at {
            None if ack.in_flight_bytes <= MIN_SEGMENTS * self.mss => {
                self.probe_rtt_done_at = Some(ack.now + PROBE_RTT_TIME);
                self.probe_rtt_round_done = false;
                self.next_round_delivered = self.delivered;
            }
            None => {}
            Some(at) => {
                self.probe_rtt_round_done |= self.round_start;
                if self.probe_rtt_round_done && ack.now > at {
                    self.min_rtt_at = ack.now;
                    self.cwnd = self.cwnd.max(self.prior_cwnd);
                    self.leave_probe_rtt(ack.now);
                }
            }
        }
    }

    fn leave_probe_rtt(&mut self, now: Instant) {
        if self.full_pipe {
            self.enter_probe_bw(now);
        } else {
            self.mode = Mode::Startup;
            self.pacing_gain = HIGH_GAIN;
            self.cwnd_gain = HIGH_GAIN;
        }
    }

    /// Paces the initial window by the first RTT (`bbr_init_pacing_rate_from_rtt`).
    fn init_pacing(&mut self, srtt: Duration) {
        if self.has_seen_rtt || srtt.is_zero() {
            return;
        }
        self.has_seen_rtt = true;
        let bytes_per_second = self.initial_cwnd as f64 / srtt.as_secs_f64();
        self.pacing_bps = to_bps(HIGH_GAIN * bytes_per_second * PACING_MARGIN);
    }

    fn set_pacing(&mut self, ack: &Ack) {
        self.init_pacing(ack.srtt);
        let bps = to_bps(self.pacing_gain * self.bandwidth.max() * PACING_MARGIN);
        if self.full_pipe || bps > self.pacing_bps {
            self.pacing_bps = bps;
        }
    }

    fn set_cwnd(&mut self, ack: &Ack) {
        if ack.delivered_bytes > 0 && !self.recover_or_restore(ack) {
            let aggregated = if self.full_pipe { self.aggregation.extra(self.bandwidth.max()) } else { 0 };
            let target = self.target(self.cwnd_gain, aggregated);
            let grown = self.cwnd.saturating_add(ack.delivered_bytes);
            if self.full_pipe {
                self.cwnd = grown.min(target);
            } else if self.cwnd < target || self.delivered < self.initial_cwnd {
                self.cwnd = grown;
            }
            self.cwnd = self.cwnd.max(MIN_SEGMENTS * self.mss);
        }
        if self.mode == Mode::ProbeRtt {
            self.cwnd = self.cwnd.min(MIN_SEGMENTS * self.mss);
        }
    }

    /// In the first round of recovery, sends as much as is delivered; at its end, restores the window. Returns whether this
    /// determined the window.
    fn recover_or_restore(&mut self, ack: &Ack) -> bool {
        if ack.lost_bytes > 0 {
            self.cwnd = self.cwnd.saturating_sub(ack.lost_bytes).max(self.mss);
        }
        if let Some(until) = &mut self.after_timeout {
            let until = *until.get_or_insert(ack.next_to_send);
            if ack.unacknowledged >= until {
                self.after_timeout = None;
                self.cwnd = self.cwnd.max(self.prior_cwnd);
            }
        }
        match (self.recovery, ack.in_recovery) {
            (Recovery::Entering, true) => {
                self.recovery = Recovery::Yes;
                self.conserve_packets = true;
                self.next_round_delivered = self.delivered;
                self.cwnd = ack.in_flight_bytes.saturating_add(ack.delivered_bytes);
            }
            (Recovery::Entering | Recovery::Yes, false) => {
                self.recovery = Recovery::No;
                self.conserve_packets = false;
                self.cwnd = self.cwnd.max(self.prior_cwnd);
            }
            _ => {}
        }
        if self.conserve_packets {
            self.cwnd = self.cwnd.max(ack.in_flight_bytes.saturating_add(ack.delivered_bytes));
        }
        self.conserve_packets
    }

    fn save_cwnd(&mut self) {
        let undisturbed =
            self.recovery == Recovery::No && self.after_timeout.is_none() && self.mode != Mode::ProbeRtt;
        self.prior_cwnd = if undisturbed { self.cwnd } else { self.prior_cwnd.max(self.cwnd) };
    }
}

impl CongestionController for Bbr {
    /// The round trip of the handshake is the first minimum, and determines the first pacing rate (`bbr_init`).
    fn on_established(&mut self, rtt: Duration, now: Instant) {
        (self.min_rtt, self.min_rtt_at) = (Some(rtt), now);
        self.init_pacing(rtt);
    }

    fn on_ack(&mut self, ack: &Ack) {
        self.delivered = self.delivered.saturating_add(ack.delivered_bytes);
        self.round_start = false;
        if let Some(rate) = &ack.rate {
            self.update_round(rate);
            self.update_bandwidth(rate);
            self.aggregation.update(ack, self.round_start, self.bandwidth.max(), self.cwnd);
            self.update_cycle(ack, rate);
            self.check_full_pipe(rate);
        }
        self.check_drain(ack);
        self.update_min_rtt(ack);
        self.set_pacing(ack);
        self.set_cwnd(ack);
    }

    fn on_loss(&mut self, _: Instant, _: u64) {
        self.save_cwnd();
        // As in Linux, a recovery that follows immediately counts as the same one.
        if self.recovery == Recovery::No {
            self.recovery = Recovery::Entering;
        }
    }

    fn on_ecn(&mut self, _: Instant, _: u64) {}

    fn on_rto(&mut self, _: Instant, _: u64, first: bool) {
        if first {
            self.save_cwnd();
            self.full_bandwidth = 0.0;
            self.full_rounds = 0;
        }
        self.recovery = Recovery::No;
        self.conserve_packets = false;
        self.after_timeout = Some(None);
        self.cwnd = self.mss;
    }

    fn on_spurious(&mut self, _: Instant) {
        // The apparent loss was a delay spike: the estimate of a full pipe may be wrong as well.
        self.full_bandwidth = 0.0;
        self.full_rounds = 0;
        if self.after_timeout.take().is_some() {
            self.cwnd = self.cwnd.max(self.prior_cwnd);
        }
    }

    fn on_idle(&mut self, now: Instant, _: Duration, _: Duration) {
        self.idle_restart = true;
        self.aggregation.restart(now);
        if self.mode == Mode::ProbeBw {
            self.pacing_bps = to_bps(self.bandwidth.max() * PACING_MARGIN);
        } else if self.mode == Mode::ProbeRtt && self.probe_rtt_done_at.is_some_and(|at| now > at) {
            self.min_rtt_at = now;
            self.cwnd = self.cwnd.max(self.prior_cwnd);
            self.leave_probe_rtt(now);
        }
    }

    fn cwnd_bytes(&self) -> u64 {
        self.cwnd
    }

    fn ssthresh_bytes(&self) -> u64 {
        u64::MAX
    }

    fn pacing_bps(&self) -> Option<u64> {
        Some(self.pacing_bps)
    }

    fn wants_rate(&self) -> bool {
        true
    }

    fn rules_recovery(&self) -> bool {
        true
    }

    fn in_slow_start(&self) -> bool {
        self.mode == Mode::Startup
    }
}

/// Converts to bit/s, at least 1: a pacing rate of 0 would block forever.
fn to_bps(bytes_per_second: f64) -> u64 {
    ((bytes_per_second * 8.0) as u64).max(1)
}
