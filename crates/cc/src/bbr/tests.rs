use super::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, VecDeque};

const MSS: u64 = 1448;

fn config() -> CcConfig {
    CcConfig { mss_bytes: MSS as u32, ..CcConfig::default() }
}

/// A paced, window-limited sender with endless data behind one bottleneck; every packet is acknowledged. Losses are known one
/// RTT later and are sent again as new data.
struct Path {
    cc: Bbr,
    bps: u64,
    rtt: Duration,
    buffer: u64,
    /// Every n-th packet is lost in transit.
    lose_every: u64,
    now: Instant,
    pace_at: Instant,
    link_free: Instant,
    queue: VecDeque<Instant>,
    /// Packets by arrival time of their ACK.
    acks: BTreeMap<(Instant, u64), Sent>,
    sent: u64,
    in_flight: u64,
    delivered: u64,
    delivered_at: Instant,
    first_sent_at: Instant,
    lost: u64,
    /// Recovery lasts until the lost data has been retransmitted and has arrived.
    recover_until: Instant,
    most_queued: u64,
    least_in_flight: u64,
    rtts: Vec<f64>,
}

#[derive(Clone, Copy)]
struct Sent {
    at: Instant,
    delivered: u64,
    delivered_at: Instant,
    first_sent_at: Instant,
    lost_before: u64,
    lost: bool,
}

impl Path {
    fn new(bps: u64, rtt_ms: u64) -> Self {
        Self {
            cc: Bbr::new(config()),
            bps,
            rtt: Duration::from_millis(rtt_ms),
            buffer: 1 << 30,
            lose_every: 0,
            now: Instant::ZERO,
            pace_at: Instant::ZERO,
            link_free: Instant::ZERO,
            queue: VecDeque::new(),
            acks: BTreeMap::new(),
            sent: 0,
            in_flight: 0,
            delivered: 0,
            delivered_at: Instant::ZERO,
            first_sent_at: Instant::ZERO,
            lost: 0,
            recover_until: Instant::ZERO,
            most_queued: 0,
            least_in_flight: u64::MAX,
            rtts: Vec::new(),
        }
    }

    fn bdp(&self) -> u64 {
        (self.bps as f64 / 8.0 * self.rtt.as_secs_f64()) as u64
    }

    fn send(&mut self) {
        while self.queue.front().is_some_and(|done| *done <= self.now) {
            self.queue.pop_front();
        }
        if self.in_flight == 0 {
            self.first_sent_at = self.now;
            self.delivered_at = self.now;
        }
        self.sent += 1;
        self.in_flight += MSS;
        let full = (self.queue.len() as u64 + 1) * MSS > self.buffer;
        let lost = full || (self.lose_every > 0 && self.sent.is_multiple_of(self.lose_every));
        let done = if full {
            self.link_free.max(self.now)
        } else {
            self.link_free =
                self.link_free.max(self.now) + Duration::from_nanos(MSS * 8_000_000_000 / self.bps);
            self.queue.push_back(self.link_free);
            self.link_free
        };
        self.most_queued = self.most_queued.max(self.queue.len() as u64 * MSS);
        let sent = Sent {
            at: self.now,
            delivered: self.delivered,
            delivered_at: self.delivered_at,
            first_sent_at: self.first_sent_at,
            lost_before: self.lost,
            lost,
        };
        self.acks.insert((done + self.rtt, self.sent), sent);
        let pace = MSS * 8_000_000_000 / self.cc.pacing_bps().unwrap();
        self.pace_at = self.pace_at.max(self.now) + Duration::from_nanos(pace);
    }

    fn ack(&mut self, number: u64, sent: Sent) {
        self.in_flight -= MSS;
        let mut ack = Ack {
            now: self.now,
            in_flight_bytes: self.in_flight,
            unacknowledged: number * MSS,
            next_to_send: self.sent * MSS,
            srtt: self.rtt,
            ..Ack::default()
        };
        if sent.lost {
            self.lost += MSS;
            if self.now >= self.recover_until {
                self.cc.on_loss(self.now, self.in_flight + MSS);
            }
            self.recover_until = self.now + self.now.saturating_since(sent.at);
            return;
        }
        self.delivered += MSS;
        self.delivered_at = self.now;
        self.first_sent_at = sent.at;
        let elapsed = |from: Instant, to: Instant| to.saturating_since(from);
        let interval = elapsed(sent.first_sent_at, sent.at).max(elapsed(sent.delivered_at, self.now));
        ack.acked_bytes = MSS;
        ack.delivered_bytes = MSS;
        ack.in_recovery = self.now < self.recover_until;
        ack.rtt = Some(elapsed(sent.at, self.now));
        ack.rate = (interval >= self.cc.min_rtt.unwrap_or_default()).then_some(RateSample {
            delivered_bytes: self.delivered - sent.delivered,
            interval,
            prior_delivered_bytes: sent.delivered,
            lost_bytes: self.lost - sent.lost_before,
            app_limited: false,
        });
        self.rtts.push(elapsed(sent.at, self.now).as_secs_f64());
        self.cc.on_ack(&ack);
    }

    /// Runs until `until`; returns the goodput of this interval in bit/s.
    fn run(&mut self, until: Instant) -> f64 {
        let (from, before) = (self.now, self.delivered);
        (self.most_queued, self.least_in_flight) = (0, u64::MAX);
        self.rtts.clear();
        loop {
            let may_send = self.in_flight + MSS <= self.cc.cwnd_bytes();
            let send_at = may_send.then(|| self.pace_at.max(self.now));
            let ack_at = self.acks.keys().next().map(|(at, _)| *at);
            let next = [send_at, ack_at].into_iter().flatten().min().expect("a sender that never stops");
            if next > until {
                break;
            }
            self.now = next;
            if ack_at == Some(next) {
                let ((_, number), sent) = self.acks.pop_first().expect("there is one");
                self.ack(number, sent);
            } else {
                self.send();
            }
            self.least_in_flight = self.least_in_flight.min(self.in_flight);
        }
        self.now = until;
        (self.delivered - before) as f64 * 8.0 / until.saturating_since(from).as_secs_f64()
    }
}

fn sec(s: u64) -> Instant {
    Instant::from_secs(s)
}

#[test]
fn it_finds_the_rate_and_keeps_the_queue_short() {
    for (bps, rtt_ms) in [(1_000_000, 40), (16_000_000, 20), (100_000_000, 50), (1_000_000_000, 5)] {
        let mut path = Path::new(bps, rtt_ms);
        path.run(sec(2));
        assert_eq!(path.cc.mode(), Mode::ProbeBw, "{bps} bit/s, {rtt_ms} ms");
        let goodput = path.run(sec(9));
        assert!(goodput > 0.97 * bps as f64, "{bps} bit/s, {rtt_ms} ms: {goodput}");
        let estimate = path.cc.bandwidth_bps() as f64 / bps as f64;
        assert!((0.98..1.1).contains(&estimate), "{estimate}");
        let serialised = Duration::from_nanos(MSS * 8_000_000_000 / bps);
        let error = path.cc.min_rtt.unwrap().saturating_sub(path.rtt + serialised);
        assert!(error <= Duration::from_millis(1), "{error:?}");
        let room = path.bdp() * 3 / 2 + 12 * MSS;
        assert!(path.most_queued <= room, "{} of {room}", path.most_queued);
    }
}

#[test]
fn startup_doubles_each_round_and_ends() {
    let mut path = Path::new(50_000_000, 40);
    // 10 segments to 173 (one BDP): 4.1 doublings; three rounds for detection, each up to three RTTs because of the resulting
    // queue; and the time to drain it.
    path.run(Instant::from_millis(40 * 4));
    assert_eq!(path.cc.mode(), Mode::Startup);
    assert!(path.cc.in_slow_start());
    path.run(Instant::from_millis(40 * 20));
    assert_eq!(path.cc.mode(), Mode::ProbeBw);
}

#[test]
fn every_ten_seconds_it_drains_the_pipe_for_200_ms() {
    let mut path = Path::new(16_000_000, 20);
    path.run(Instant::from_millis(5_000));
    let (mut in_probe, mut entered) = (Duration::ZERO, Vec::new());
    let mut was = path.cc.mode();
    for ms in 5_001..35_000 {
        path.run(Instant::from_millis(ms));
        let mode = path.cc.mode();
        if mode == Mode::ProbeRtt {
            in_probe += Duration::from_millis(1);
            if was != mode {
                entered.push(ms);
            }
        }
        was = mode;
    }
    // At about 10, 20 and 30 s; the previous bandwidth is restored each time.
    assert_eq!(entered.len(), 3, "{entered:?}");
    assert!(entered.windows(2).all(|w| (10_000..11_000).contains(&(w[1] - w[0]))), "{entered:?}");
    let each = in_probe / 3;
    assert!((200..300).contains(&each.as_millis()), "{each:?}");
    let estimate = path.cc.bandwidth_bps() as f64 / 16e6;
    assert!((0.95..1.1).contains(&estimate), "{estimate}");
}

#[test]
fn it_follows_the_rate_both_ways() {
    let mut path = Path::new(40_000_000, 30);
    path.run(sec(5));
    path.bps = 10_000_000;
    path.run(sec(7));
    let goodput = path.run(sec(9));
    assert!(goodput > 0.95 * 10e6, "{goodput}");
    assert!(path.cc.bandwidth_bps() < 11_000_000, "ten rounds later the old rate is forgotten");
    path.bps = 40_000_000;
    path.run(sec(14));
    let goodput = path.run(sec(18));
    assert!(goodput > 0.9 * 40e6, "a quarter more per cycle: {goodput}");
}

#[test]
fn random_loss_costs_no_more_than_what_is_lost() {
    let mut path = Path::new(20_000_000, 40);
    path.lose_every = 50;
    path.run(sec(3));
    let goodput = path.run(sec(10));
    assert!(goodput > 0.93 * 20e6, "2 % lost: {goodput}");
}

#[test]
fn a_shallow_buffer_is_enough() {
    let mut path = Path::new(20_000_000, 40);
    path.buffer = path.bdp() / 4;
    path.run(sec(3));
    let goodput = path.run(sec(9));
    assert!(goodput > 0.9 * 20e6, "{goodput}");
}

#[test]
fn recovery_conserves_packets_for_a_round_and_gives_the_window_back() {
    let mut path = Path::new(20_000_000, 40);
    path.run(sec(3));
    let cwnd = path.cc.cwnd_bytes();
    path.cc.on_loss(path.now, path.in_flight);
    let ack = |path: &Path, in_recovery| Ack {
        now: path.now,
        acked_bytes: MSS,
        delivered_bytes: MSS,
        lost_bytes: 3 * MSS,
        in_flight_bytes: path.in_flight - 4 * MSS,
        in_recovery,
        srtt: path.rtt,
        ..Ack::default()
    };
    let (inside, after) = (ack(&path, true), ack(&path, false));
    path.cc.on_ack(&inside);
    assert_eq!(path.cc.cwnd_bytes(), inside.in_flight_bytes + MSS, "out as much as in");
    path.cc.on_ack(&after);
    assert!(path.cc.cwnd_bytes() >= cwnd.min(path.cc.target(CWND_GAIN, 0)));
}

#[test]
fn a_timeout_starts_from_one_segment_and_the_window_comes_back() {
    let mut path = Path::new(20_000_000, 40);
    path.run(sec(3));
    let cwnd = path.cc.cwnd_bytes();
    path.cc.on_rto(path.now, path.in_flight, true);
    assert_eq!(path.cc.cwnd_bytes(), MSS);
    let mut ack = Ack {
        now: path.now,
        acked_bytes: MSS,
        delivered_bytes: MSS,
        in_flight_bytes: MSS,
        unacknowledged: 1000,
        next_to_send: 50_000,
        srtt: path.rtt,
        ..Ack::default()
    };
    path.cc.on_ack(&ack);
    assert!(path.cc.cwnd_bytes() < cwnd / 2);
    ack.unacknowledged = 50_000;
    ack.next_to_send = 60_000;
    path.cc.on_ack(&ack);
    assert!(path.cc.cwnd_bytes() >= cwnd);
    // A spurious timeout is undone at once.
    path.cc.on_rto(path.now, path.in_flight, true);
    path.cc.on_spurious(path.now);
    assert!(path.cc.cwnd_bytes() >= cwnd);
}

#[test]
fn marks_change_nothing_and_an_idle_sender_resumes_at_its_rate() {
    let mut path = Path::new(20_000_000, 40);
    path.run(sec(3));
    let before = (path.cc.cwnd_bytes(), path.cc.pacing_bps());
    path.cc.on_ecn(path.now, path.in_flight);
    assert_eq!((path.cc.cwnd_bytes(), path.cc.pacing_bps()), before);
    path.cc.on_idle(sec(60), Duration::from_secs(57), Duration::from_secs(1));
    let pace = path.cc.pacing_bps().unwrap() as f64;
    assert!((0.95..1.05).contains(&(pace / 20e6)), "{pace}");
    assert_eq!(path.cc.cwnd_bytes(), before.0);
}

#[test]
fn the_filter_keeps_the_largest_of_ten_rounds() {
    let mut filter = MaxFilter::new(10);
    let values =
        [5.0, 9.0, 3.0, 4.0, 8.0, 1.0, 2.0, 2.0, 7.0, 1.0, 1.0, 1.0, 1.0, 6.0, 1.0, 1.0, 1.0, 1.0, 1.0];
    for (round, value) in values.into_iter().enumerate() {
        filter.update(round as u64, value);
        let of_window = values[round.saturating_sub(10)..=round].iter().copied().fold(0.0, f64::max);
        // Three values represent all: the result is the maximum, or that of a slightly shorter window.
        let of_shorter = values[round.saturating_sub(6)..=round].iter().copied().fold(0.0, f64::max);
        assert!((of_shorter..=of_window).contains(&filter.max()), "round {round}: {}", filter.max());
    }
}

#[test]
fn the_round_trip_of_the_handshake_is_the_first_minimum() {
    let (near, far) = (Duration::from_millis(10), Duration::from_millis(100));
    let mut cc = Bbr::new(config());
    cc.on_established(near, Instant::from_secs(1));
    assert_eq!(cc.min_rtt, Some(near));
    // 2.885 initial windows per round trip, less the margin.
    let bps = cc.pacing_bps().unwrap();
    assert!((32_000_000..34_000_000).contains(&bps), "{bps}");
    cc.on_ack(&Ack { now: Instant::from_secs(2), rtt: Some(far), srtt: far, ..Ack::default() });
    assert_eq!(cc.min_rtt, Some(near));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_path_is_used_and_none_is_flooded(
        bps in 200_000u64..200_000_000, rtt_ms in 1u64..200, buffer_bdps in 1u64..20, lose_every in 0u64..200,
    ) {
        let mut path = Path::new(bps, rtt_ms);
        path.buffer = (path.bdp() * buffer_bdps / 4).max(20 * MSS);
        path.lose_every = if lose_every < 20 { 0 } else { lose_every };
        path.run(sec(4));
        let goodput = path.run(sec(9));
        prop_assert!(goodput > 0.75 * bps as f64, "{} of {}", goodput, bps);
        prop_assert!(path.in_flight <= path.bdp() * 4 + 40 * MSS, "{} in flight", path.in_flight);
    }

    #[test]
    fn no_input_breaks_the_controller(steps in prop::collection::vec((0u8..6, any::<[u64; 8]>(), any::<[bool; 4]>()), 1..200)) {
        let mut cc = Bbr::new(CcConfig { mss_bytes: 0, initial_window_segments: 0, hystart: false, ..CcConfig::default() });
        for (what, v, b) in steps {
            let now = Instant::from_nanos(v[0]);
            match what {
                0 => cc.on_loss(now, v[1]),
                1 => cc.on_rto(now, v[1], b[0]),
                2 => cc.on_spurious(now),
                3 => cc.on_idle(now, Duration::from_nanos(v[1]), Duration::from_nanos(v[2])),
                _ => cc.on_ack(&Ack {
                    now,
                    acked_bytes: v[1] >> 16,
                    delivered_bytes: v[2] >> 16,
                    lost_bytes: v[3],
                    in_flight_bytes: v[4] >> 16,
                    unacknowledged: v[5],
                    next_to_send: v[6],
                    rtt: b[0].then(|| Duration::from_nanos(v[7])),
                    srtt: Duration::from_nanos(v[7]),
                    in_recovery: b[1],
                    rate: b[2].then(|| RateSample {
                        delivered_bytes: v[1],
                        interval: Duration::from_nanos(v[2]),
                        prior_delivered_bytes: v[3],
                        lost_bytes: v[4],
                        app_limited: b[3],
                    }),
                    ..Ack::default()
                }),
            }
            prop_assert!(cc.cwnd_bytes() >= 1);
            prop_assert!(cc.pacing_bps().unwrap() >= 1);
        }
    }
}
