//! A simulated leg: the estimates under load, with queues and with jitter.

use super::*;
use proptest::prelude::*;

/// A leg of 8 Mbit/s and 20 ms that is offered `load_bps` and probed every 100 ms.
fn run(load_bps: f64, seconds: u64) -> Link {
    let mut link = Link::new();
    let mut answers: Vec<(Instant, u16)> = Vec::new();
    let (mut busy_until, mut credit) = (0.0f64, 0.0);
    for ms in 0..seconds * 1000 {
        let (now, t) = (Instant::from_millis(ms), ms as f64 / 1e3);
        answers.retain(|(at, sequence)| *at > now || !link.answered(*sequence, *at));
        credit += load_bps / 1e3;
        while credit >= 12_000.0 {
            credit -= 12_000.0;
            // The queue is limited to 200 ms.
            if busy_until < t + 0.2 {
                busy_until = busy_until.max(t) + 0.0015;
                link.sent_bytes += 1500;
            }
        }
        if ms % 100 == 0 {
            busy_until = busy_until.max(t) + 0.000_052;
            let sequence = link.probe(52, 4, now);
            answers.push((Instant::from_nanos(((busy_until + 0.02) * 1e9) as u64), sequence));
        }
    }
    link
}

#[test]
fn a_busy_leg_is_measured_and_an_idle_one_is_bounded() {
    let busy = run(20e6, 10);
    assert!((7.6e6..8.4e6).contains(&busy.rate_bps()), "{}", busy.rate_bps());
    assert!(busy.rtt_us() > 150_000.0 && busy.up);
    let idle = run(2e6, 10);
    assert!((1.8e6..3e6).contains(&idle.rate_bps()), "{}", idle.rate_bps());
    assert!((20_000.0..23_000.0).contains(&idle.rtt_us()), "{}", idle.rtt_us());
    assert_eq!((idle.probes, idle.answers), (100, 100));
}

#[test]
fn the_authors_average() {
    let mut link = Link::new();
    for (n, rtt, average) in [(0u64, 100u64, 100.0), (1, 50, 70.0), (2, 50, 58.0)] {
        let at = Instant::from_millis(1000 * n);
        let sequence = link.probe(52, 4, at);
        assert!(link.answered(sequence, at + Duration::from_millis(rtt)));
        assert!(!link.answered(sequence, at + Duration::from_millis(rtt)), "once");
        assert!((link.rtt_us() - 1000.0 * average).abs() < 1e-6);
    }
}

#[test]
fn silence_is_noticed_and_forgiven() {
    let mut link = Link::new();
    for n in 0..4 {
        link.probe(52, 4, Instant::from_millis(n));
        assert!(link.up);
    }
    let last = link.probe(52, 4, Instant::from_millis(4));
    assert!(!link.up);
    assert!(link.answered(last, Instant::from_millis(5)) && link.up);
}

proptest! {
    #[test]
    fn any_answers_leave_numbers(steps in proptest::collection::vec((any::<bool>(), any::<u16>(), 0u64..10_000), 0..100)) {
        let mut link = Link::new();
        let mut now = Instant::ZERO;
        for (probes, sequence, us) in steps {
            now += Duration::from_micros(us);
            if probes {
                link.probe(52, 4, now);
            } else {
                link.answered(sequence % 40, now);
            }
            let view = link.view(Leg::Lte);
            prop_assert!(view.rtt_us.is_finite() && view.rate_bps.is_finite() && view.answers <= view.probes);
        }
    }
}

/// A leg that preserves order under jitter.
struct SimulatedLeg {
    link: Link,
    rate_bps: f64,
    jitter_us: u64,
    random: u64,
    /// When the bottleneck becomes free, and when the last packet arrives, microseconds.
    free_us: f64,
    arrived_us: f64,
    answers: Vec<(f64, u16, Instant, u64)>,
    /// Answered probes: time sent, time answered, bytes.
    seen: Vec<(Instant, Instant, u64)>,
    ms: u64,
}

impl SimulatedLeg {
    fn new(rate_mbps: f64, jitter_ms: u64, seed: u64) -> Self {
        Self {
            link: Link::new(),
            rate_bps: rate_mbps * 1e6,
            jitter_us: jitter_ms * 1000,
            random: seed | 1,
            free_us: 0.0,
            arrived_us: 0.0,
            answers: Vec::new(),
            seen: Vec::new(),
            ms: 0,
        }
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % below.max(1)
    }

    fn send(&mut self, bytes: u64) -> f64 {
        let now = self.ms as f64 * 1e3;
        self.free_us = self.free_us.max(now) + bytes as f64 * 8e6 / self.rate_bps;
        let jitter = self.draw(self.jitter_us + 1) as f64;
        self.arrived_us = self.arrived_us.max(self.free_us + 10_000.0 + jitter);
        self.arrived_us
    }

    /// Runs for `seconds`. Every 300 ms a number from 0 to 99 is drawn; `offered` maps it to the load as a fraction
    /// of the rate, and to the queue in milliseconds at which the sender pauses.
    fn run(&mut self, seconds: u64, offered: impl Fn(u64) -> (f64, f64)) {
        let (mut credit, mut now_offered) = (0.0, offered(50));
        for _ in 0..seconds * 1000 {
            self.ms += 1;
            if self.ms.is_multiple_of(300) {
                now_offered = offered(self.draw(100));
            }
            let now_us = self.ms as f64 * 1e3;
            let at = self.answers.partition_point(|(at, ..)| *at <= now_us);
            for (at, sequence, sent, bytes) in self.answers.drain(..at).collect::<Vec<_>>() {
                let at = Instant::from_nanos((at * 1e3) as u64);
                assert!(self.link.answered(sequence, at));
                self.seen.push((sent, at, bytes));
            }
            credit = (credit + now_offered.0 * self.rate_bps / 8e3).min(60_000.0);
            while credit >= 1500.0 && self.free_us - now_us < now_offered.1 * 1e3 {
                credit -= 1500.0;
                self.link.sent_bytes += 1500;
                self.send(1500);
            }
            if self.ms.is_multiple_of(100) {
                let now = Instant::from_millis(self.ms);
                let sequence = self.link.probe(52, 4, now);
                let at = self.send(52) + 10_000.0;
                self.answers.push((at, sequence, now, self.link.sent_bytes));
            }
        }
    }
}

/// The plain test without a check for jitter, as a reference.
fn without_jitter(answers: &[(Instant, Instant, u64)]) -> (f64, bool) {
    let (mut least, mut rate, mut known) = (f64::INFINITY, 0.0f64, false);
    let mut last: Option<(u64, Instant, bool)> = None;
    for (sent, answered, bytes) in answers {
        let rtt = (*answered - *sent).as_secs_f64();
        least = least.min(rtt);
        let is_busy = rtt > least * 1.1 + 0.002;
        if let Some((before, at, was_busy)) = last.filter(|(before, ..)| bytes > before) {
            let sample = (bytes - before) as f64 * 8.0 / (*answered - at).as_secs_f64();
            match (was_busy && is_busy, known) {
                (true, true) => rate = RTT_WEIGHT * sample + (1.0 - RTT_WEIGHT) * rate,
                (true, false) => (rate, known) = (sample, true),
                (false, _) => rate = rate.max(sample),
            }
        }
        last = Some((*bytes, *answered, is_busy));
    }
    (rate, known)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn jitter_is_not_load(rate_mbps in 5.0..100.0f64, jitter_ms in 0u64..=30, least in 0.1..0.6f64, seed: u64) {
        let mut sim = SimulatedLeg::new(rate_mbps, jitter_ms, seed);
        // The loads differ by up to 0.2 of the rate, so a queue is never longer than a burst.
        sim.run(60, |draw| (least + 0.002 * draw as f64, 1000.0));
        let estimate = sim.link.rate_bps() / (rate_mbps * 1e6);
        prop_assert!(estimate > 0.9 * least, "{} of the rate, at least {} used", estimate, least);
    }

    #[test]
    fn a_standing_queue_gives_the_rate(rate_mbps in 5.0..100.0f64, jitter_ms in 0u64..=30, seed: u64) {
        let mut sim = SimulatedLeg::new(rate_mbps, jitter_ms, seed);
        sim.run(5, |draw| (0.2 + 0.004 * draw as f64, 1000.0));
        sim.run(30, |draw| (1.3, 45.0 + 0.6 * draw as f64));
        let estimate = sim.link.rate_bps() / (rate_mbps * 1e6);
        prop_assert!((0.75..1.25).contains(&estimate), "{} of the rate with {} ms", estimate, jitter_ms);
    }

    #[test]
    fn without_jitter_nothing_changes(rate_mbps in 5.0..100.0f64, least in 0.1..1.2f64, queue_ms in 10.0..100.0f64, seed: u64) {
        let mut sim = SimulatedLeg::new(rate_mbps, 0, seed);
        let (mut answers, mut known) = (Vec::new(), 0);
        // Within the first period of the minimum filter.
        for _ in 0..9 {
            let before = sim.link.answers;
            sim.run(1, |draw| (least + 0.004 * draw as f64, queue_ms));
            known += sim.link.answers - before;
            answers.append(&mut sim.seen);
            let (rate, is_known) = without_jitter(&answers);
            prop_assert_eq!(is_known, sim.link.is_rate_known());
            prop_assert!((rate - sim.link.rate_bps()).abs() <= 1e-6 * rate, "{} {}", rate, sim.link.rate_bps());
        }
        prop_assert!(known > 80);
    }
}

#[test]
fn a_lost_probe_blocks_further_ones_until_a_later_probe_is_answered() {
    let (mut link, mut now) = (Link::new(), Instant::from_secs(1));
    let lost = link.probe(52, 4, now);
    for _ in 0..40 {
        now += Duration::from_millis(20);
        assert!(link.may_ask(now), "{now}");
        let sequence = link.probe(52, u16::MAX, now);
        assert!(sequence != lost && link.answered(sequence, now + Duration::from_millis(10)));
    }
    // If none is answered, the outstanding ones are awaited.
    let asked = (0..40).filter(|_| link.may_ask(now) && link.probe(52, u16::MAX, now) > 0).count();
    assert_eq!(asked, MAX_OUTSTANDING);
}
