//! `l4s`: DualPI2, the dual-queue coupled AQM of L4S, in the RLC buffer, RFC 9332 §2 and Appendix A; packets are classified
//! according to RFC 9331.
//!
//! ```text
//!              ECT(1), CE, or a configured QFI
//!   ──▶ ┬──────────────▶ L ▯▯     mark: max(ramp on its own delay, k·p') ──┐
//!       │                           ▲ k = 2                                 ├─▶ weighted ──▶ MAC
//!       └──────────────▶ C ▯▯▯▯▯▯▯  │   drop or mark: p'²  ─────────────────┘   9 : 1
//!           everything else    PI ──┘ p' from the longer delay, every 16 ms
//! ```
//!
//! Senders in the L queue must be scalable (DCTCP, TCP Prague); CUBIC or NewReno would be marked far too often there.
//!
//! Differences from the source:
//!
//! - The ramp of the L queue starts one TTI later than its parameter: a shorter wait is due to the MAC's clock and not to
//!   other packets.
//! - The queues are served by weight, as in Linux, instead of a time-shifted FIFO (RFC 9332 §2.5.1.1 allows any such
//!   scheduler).
//! - `low_latency_qfis`: 3GPP identifies L4S traffic by its QoS flow (TS 23.501 §5.37.3); RFC 9332 §2.5.1.1 allows other
//!   identifiers besides ECT(1). Of these packets, those that are not ECN-capable are dropped only if the queue is
//!   overloaded.

use super::vanilla::Fifo;
use super::{BearerParams, Buffer, BufferLimit, BufferStats, Discipline, OutOfRange, Sdu, at_least_1};
use crate::registry::in_range;
use anabranch_element::time::{Duration, Instant, nanos};
use anabranch_wire::ip::{Ecn, ecn, set_ce};
use serde::{Deserialize, Serialize};

/// Coupling factor between p' and the marking probability of L.
const COUPLING: f64 = 2.0;
/// Share of service that C gets while both queues have packets.
const CLASSIC_SHARE_PERCENT: i64 = 10;
/// Drop probability of C above which the AQM is overloaded (RFC 9332 Appendix A.1: p_Cmax).
const MAX_CLASSIC_DROP: f64 = 0.25;
/// Maximum number of PI steps made up for after a pause.
const MAX_STEPS: u64 = 64;

/// Parameters; the defaults are those of RFC 9332 Appendix A.1.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct L4sParams {
    /// Target delay of the classic queue, microseconds.
    pub target_us: u32,
    /// Time between two steps of the PI controller, microseconds.
    pub update_us: u32,
    /// Integral gain, Hz.
    pub alpha_hz: f64,
    /// Proportional gain, Hz.
    pub beta_hz: f64,
    /// Delay at which marking in L begins, microseconds.
    pub ramp_start_us: u32,
    /// Additional delay at which every packet in L is marked, microseconds; 0: a step.
    pub ramp_range_us: u32,
    /// QoS flows whose packets go to L whatever their ECN bits, 0 to 63.
    pub low_latency_qfis: Vec<u8>,
}

impl Default for L4sParams {
    fn default() -> Self {
        Self {
            target_us: 15_000,
            update_us: 16_000,
            alpha_hz: 0.16,
            beta_hz: 3.2,
            ramp_start_us: 800,
            ramp_range_us: 400,
            low_latency_qfis: Vec::new(),
        }
    }
}

/// The buffer of one bearer.
#[derive(Debug, Clone)]
pub struct L4s {
    target: Duration,
    update: Duration,
    alpha: f64,
    beta: f64,
    ramp_start: Duration,
    ramp_range: Duration,
    low_latency_qfis: u64,
    limit: BufferLimit,
    l: SubQueue,
    c: SubQueue,
    /// Weighted bytes owed to C; if negative, L is served next.
    credit: i64,
    p: f64,
    last_delay: Duration,
    updated: Instant,
    stats: BufferStats,
}

#[derive(Debug, Clone)]
struct SubQueue {
    fifo: Fifo,
    /// Sum of likelihoods since the last mark or drop.
    recur: f64,
}

impl SubQueue {
    fn new() -> Self {
        // The limits apply to both queues together, so neither has one of its own.
        Self { fifo: Fifo::new(BufferLimit { bytes: u64::MAX, sdus: usize::MAX }), recur: 0.0 }
    }

    fn delay(&self, now: Instant) -> Duration {
        self.fifo.front().map_or(Duration::ZERO, |sdu| now.saturating_since(sdu.forwarded))
    }

    /// Deterministic equivalent of drawing with probability `likelihood`, evenly spread: RFC 9332 Appendix A.1, `recur`.
    fn is_due(&mut self, likelihood: f64) -> bool {
        self.recur += likelihood.clamp(0.0, 1.0);
        let due = self.recur >= 1.0;
        if due {
            self.recur -= 1.0;
        }
        due
    }
}

impl L4s {
    /// An empty buffer.
    #[must_use]
    pub fn new(params: &L4sParams, bearer: BearerParams) -> Self {
        let us = |us: u32| Duration::from_micros(us.into());
        Self {
            target: us(bearer.target_us(params.target_us)),
            update: us(params.update_us.max(1)),
            alpha: params.alpha_hz,
            beta: params.beta_hz,
            ramp_start: us(bearer.target_us(params.ramp_start_us)).saturating_add(bearer.pulls.slot()),
            ramp_range: us(params.ramp_range_us),
            low_latency_qfis: params.low_latency_qfis.iter().fold(0, |set, qfi| set | 1 << (qfi & 63)),
            limit: bearer.limit,
            l: SubQueue::new(),
            c: SubQueue::new(),
            credit: 0,
            p: 0.0,
            last_delay: Duration::ZERO,
            updated: Instant::ZERO,
            stats: BufferStats::default(),
        }
    }

    /// p', the base probability: C drops with its square, L marks with twice its value.
    #[must_use]
    #[cfg(test)]
    pub fn base_probability(&self) -> f64 {
        self.p
    }

    /// The PI controller, RFC 9332 Appendix A.1, `dualpi2_update`.
    fn step(&mut self, now: Instant) {
        let due = nanos(now.saturating_since(self.updated)) / nanos(self.update);
        if due == 0 {
            return;
        }
        for _ in 0..due.min(MAX_STEPS) {
            let delay = self.l.delay(now).max(self.c.delay(now));
            let (d, last) = (delay.as_secs_f64(), self.last_delay.as_secs_f64());
            self.p += self.alpha * (d - self.target.as_secs_f64()) + self.beta * (d - last);
            self.p = self.p.clamp(0.0, 1.0);
            self.last_delay = delay;
        }
        self.updated =
            if due > MAX_STEPS { now } else { self.updated + Duration::from_nanos(nanos(self.update) * due) };
    }

    fn is_low_latency(&self, sdu: &Sdu) -> bool {
        matches!(ecn(sdu.ip()), Ecn::Ect1 | Ecn::Ce) || self.low_latency_qfis >> (sdu.qfi & 63) & 1 == 1
    }

    /// Marking probability due to L's own queue.
    fn ramp(&self, delay: Duration) -> f64 {
        let over = delay.saturating_sub(self.ramp_start);
        if over >= self.ramp_range {
            f64::from(u8::from(delay > self.ramp_start))
        } else {
            over.as_secs_f64() / self.ramp_range.as_secs_f64()
        }
    }

    /// Drops or marks `sdu` with the probabilities of its queue; `None` if it was dropped.
    fn drop_or_mark(&mut self, mut sdu: Sdu, low_latency: bool, now: Instant) -> Option<Sdu> {
        let classic = self.p * self.p;
        let overload = classic > MAX_CLASSIC_DROP;
        if !low_latency {
            // With less than two packets there is nothing to control.
            let due = self.c.fifo.len_sdus() > 0 && self.c.is_due(classic);
            return if !due {
                Some(sdu)
            } else if !overload && set_ce(sdu.ip_mut()) {
                self.stats.ce_marks += 1;
                Some(sdu)
            } else {
                self.stats.aqm_drops += 1;
                None
            };
        }
        let native = self.ramp(now.saturating_since(sdu.forwarded));
        let likelihood = native.max(COUPLING * self.p);
        if overload && self.l.fifo.len_sdus() > 0 && self.l.is_due(classic) {
            self.stats.aqm_drops += 1;
            return None;
        }
        if self.l.is_due(likelihood) && set_ce(sdu.ip_mut()) {
            self.stats.ce_marks += 1;
        }
        Some(sdu)
    }
}

impl Discipline for L4s {
    type Params = L4sParams;

    fn check(params: &L4sParams) -> Result<(), OutOfRange> {
        at_least_1("update_us", params.update_us)?;
        let gain = |hz: f64| (0.0..=1e3).contains(&hz);
        in_range("alpha_hz", params.alpha_hz, gain(params.alpha_hz), "0 to 1000")?;
        in_range("beta_hz", params.beta_hz, gain(params.beta_hz), "0 to 1000")?;
        let wrong = params.low_latency_qfis.iter().find(|qfi| **qfi > 63);
        in_range("low_latency_qfis", wrong.unwrap_or(&0), wrong.is_none(), "QFIs of 0 to 63")
    }

    fn build(params: &L4sParams, bearer: BearerParams) -> Self {
        Self::new(params, bearer)
    }
}

impl Buffer for L4s {
    fn push(&mut self, sdu: Sdu, now: Instant) {
        self.step(now);
        self.stats.pushed_sdus += 1;
        let bytes = self.len_bytes() + u64::from(sdu.bytes());
        if bytes > self.limit.bytes || self.len_sdus() >= self.limit.sdus {
            self.stats.full_drops += 1;
            return;
        }
        self.stats.max_bytes = self.stats.max_bytes.max(bytes);
        let sub_queue = if self.is_low_latency(&sdu) { &mut self.l } else { &mut self.c };
        sub_queue.fifo.push(sdu, now);
    }

    fn pop(&mut self, now: Instant) -> Option<Sdu> {
        self.step(now);
        loop {
            let (l, c) = (self.l.fifo.len_sdus() > 0, self.c.fifo.len_sdus() > 0);
            if !l || !c {
                self.credit = 0;
            }
            let low_latency = l && (!c || self.credit <= 0);
            let sub_queue = if low_latency { &mut self.l } else { &mut self.c };
            let sdu = sub_queue.fifo.pop(now)?;
            let bytes = i64::from(sdu.bytes());
            self.credit += if low_latency {
                bytes * CLASSIC_SHARE_PERCENT
            } else {
                -bytes * (100 - CLASSIC_SHARE_PERCENT)
            };
            if let Some(sdu) = self.drop_or_mark(sdu, low_latency, now) {
                self.stats.popped_sdus += 1;
                return Some(sdu);
            }
        }
    }

    fn len_sdus(&self) -> usize {
        self.l.fifo.len_sdus() + self.c.fifo.len_sdus()
    }

    fn len_bytes(&self) -> u64 {
        self.l.fifo.len_bytes() + self.c.fifo.len_bytes()
    }

    /// L first; the share of C is not predicted.
    fn sizes(&self, max_sdus: usize, out: &mut Vec<u32>) {
        let before = out.len();
        self.l.fifo.sizes(max_sdus, out);
        self.c.fifo.sizes(max_sdus.saturating_sub(out.len() - before), out);
    }

    fn stats(&self) -> BufferStats {
        self.stats
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_element::packet::Packet;
    use anabranch_wire::ip::{internet_checksum, udp_datagram};

    fn sdu(at: Instant, ecn_bits: u8, qfi: u8) -> Sdu {
        let (src, dst) = ("10.0.0.1:1".parse().unwrap(), "10.0.0.2:2".parse().unwrap());
        let mut ip = udp_datagram(src, dst, &[0; 1472]).unwrap();
        ip[1] |= ecn_bits;
        ip[10..12].fill(0);
        let sum = internet_checksum(&ip[..20]);
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
        Sdu::new(Packet::new(at, ip), qfi)
    }

    fn balance(q: &L4s) {
        let s = q.stats();
        assert_eq!(s.pushed_sdus, s.popped_sdus + s.full_drops + s.aqm_drops + q.len_sdus() as u64);
    }

    #[test]
    fn the_ramp_of_l() {
        let q = L4s::new(&L4sParams::default(), BearerParams::default());
        for (us, p) in [(0, 0.0), (1800, 0.0), (1900, 0.25), (2200, 1.0), (9000, 1.0)] {
            assert!((q.ramp(Duration::from_micros(us)) - p).abs() < 1e-9, "{us} µs");
        }
        let step = L4sParams { ramp_range_us: 0, ..L4sParams::default() };
        let q = L4s::new(&step, BearerParams::default());
        assert_eq!(q.ramp(Duration::from_micros(1800)), 0.0);
        assert_eq!(q.ramp(Duration::from_micros(1801)), 1.0);
    }

    #[test]
    fn marks_couple_to_classic_drops() {
        let mut q = L4s::new(&L4sParams::default(), BearerParams::default());
        q.p = 0.1;
        q.alpha = 0.0;
        q.beta = 0.0;
        let t = Instant::ZERO;
        for _ in 0..5000 {
            // One packet each; both queues are never empty.
            while q.l.fifo.len_sdus() < 2 {
                q.push(sdu(t, 1, 1), t);
            }
            while q.c.fifo.len_sdus() < 3 {
                q.push(sdu(t, 0, 1), t);
            }
            q.pop(t).unwrap();
        }
        let of_l = q.stats().ce_marks as f64;
        let s = q.stats();
        let c_out = (s.popped_sdus + s.aqm_drops) as f64 * 0.1;
        assert!((of_l / 4500.0 - 0.2).abs() < 0.01, "k·p' = 0.2: {of_l}");
        assert!((s.aqm_drops as f64 / c_out - 0.01).abs() < 0.004, "p'² = 0.01: {s:?}");
        balance(&q);
    }

    #[test]
    fn the_classic_queue_settles_at_its_target() {
        // A sender whose rate falls with the square root of the drop probability, like Reno's.
        let mut q = L4s::new(&L4sParams::default(), BearerParams::default());
        let (mut credit, mut delays) = (0.0, Vec::new());
        for ms in 0..30_000u64 {
            let now = Instant::from_millis(ms);
            let p = (q.p * q.p).max(1e-4);
            credit += (0.05 / p.sqrt()).min(2.0);
            while credit >= 1.0 {
                credit -= 1.0;
                q.push(sdu(now, 0, 1), now);
            }
            q.pop(now);
            if ms > 15_000 {
                delays.push(q.c.delay(now).as_secs_f64() * 1e3);
            }
        }
        let mean = delays.iter().sum::<f64>() / delays.len() as f64;
        assert!((8.0..25.0).contains(&mean), "mean delay {mean} ms, target 15 ms");
        balance(&q);
    }

    #[test]
    fn l_goes_first_but_c_keeps_a_tenth() {
        let params = L4sParams { low_latency_qfis: vec![5], ..L4sParams::default() };
        let mut q = L4s::new(&params, BearerParams::default());
        let t = Instant::ZERO;
        for _ in 0..300 {
            q.push(sdu(t, 0, 5), t);
            q.push(sdu(t, 0, 1), t);
        }
        let first: Vec<u8> = (0..200).map(|_| q.pop(t).unwrap().qfi).collect();
        let classic = first.iter().filter(|qfi| **qfi == 1).count();
        assert!((19..=21).contains(&classic), "{classic}");
        while q.pop(t).is_some() {}
        assert_eq!(q.len_bytes(), 0);
        balance(&q);
    }

    #[test]
    fn overload_drops_in_l_too() {
        let mut q = L4s::new(&L4sParams::default(), BearerParams::default());
        for ms in 0..20_000u64 {
            let now = Instant::from_millis(ms);
            q.push(sdu(now, 1, 1), now);
            q.push(sdu(now, 1, 1), now);
            q.pop(now);
        }
        assert!(q.stats().aqm_drops > 1000, "{:?}", q.stats());
        balance(&q);
        // After a pause of an hour the probability has decayed.
        q.push(sdu(Instant::from_secs(3600), 1, 1), Instant::from_secs(3600));
        while q.pop(Instant::from_secs(3600)).is_some() {}
        q.pop(Instant::from_secs(7200));
        assert_eq!(q.base_probability(), 0.0);
    }
}
