//! Two ends connected by a path that the test controls packet by packet.

mod properties;

use super::*;
use anabranch_cc::Algorithm;
use anabranch_wire::tcp::parse_packet;
use std::collections::BTreeMap;

const STREAMS: [SeededStream; 2] = [SeededStream::new(11), SeededStream::new(22)];

/// What the path does with a packet; times are additional delay in microseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
enum PacketAction {
    Pass,
    Lose,
    Delay(u64),
    /// Deliver it now, and a second time after this.
    Twice(u64),
}

struct Pair {
    ends: [Connection; 2],
    received: [u64; 2],
    /// Packets in transit: (due, serial) to (end, bytes).
    wire: BTreeMap<(Instant, u64), (usize, Packet)>,
    serial: u64,
    now: Instant,
    one_way: Duration,
    /// Number of packets sent without payload.
    bare: usize,
}

impl Pair {
    fn new(options: Options, one_way: Duration) -> Self {
        let a: SocketAddr = "10.0.0.1:1000".parse().unwrap();
        let b: SocketAddr = "10.0.0.2:80".parse().unwrap();
        let start = Instant::ZERO;
        // Initial sequence numbers close to the wrap of 32 bits.
        let mut client = Connection::connect(a, b, options.clone(), STREAMS[0], u64::MAX - 900, start);
        let syn = parse_packet(&client.poll_transmit(start).unwrap()).unwrap().header;
        let arrived = start + one_way;
        let server = Connection::accept(b, a, &syn, options, STREAMS[1], u64::MAX - 300, arrived);
        Self {
            ends: [client, server],
            received: [0; 2],
            wire: BTreeMap::new(),
            serial: 0,
            now: arrived,
            one_way,
            bare: 0,
        }
    }

    fn put(&mut self, to: usize, packet: Packet, extra_us: u64) {
        let due = self.now + self.one_way + Duration::from_micros(extra_us);
        self.serial += 1;
        self.wire.insert((due, self.serial), (to, packet));
    }

    fn transmit(&mut self, fate: &mut dyn FnMut(usize, &Packet) -> PacketAction) {
        for end in 0..2 {
            let (mut burst, mut said_all) = (0, false);
            while let Some(packet) = self.ends[end].poll_transmit(self.now) {
                assert!(!said_all, "a packet after the last one");
                said_all = self.ends[end].has_said_all();
                burst += 1;
                assert!(burst < 10_000, "an end never stops sending");
                self.bare += usize::from(parse_packet(&packet).unwrap().payload.is_empty());
                match fate(end, &packet) {
                    PacketAction::Pass => self.put(1 - end, packet, 0),
                    PacketAction::Lose => {}
                    PacketAction::Delay(us) => self.put(1 - end, packet, us),
                    PacketAction::Twice(us) => {
                        self.put(1 - end, packet.clone(), 0);
                        self.put(1 - end, packet, us);
                    }
                }
            }
        }
    }

    /// Advances to the next event; false: there is none.
    fn step(&mut self, fate: &mut dyn FnMut(usize, &Packet) -> PacketAction) -> bool {
        self.transmit(fate);
        let arrival = self.wire.first_key_value().map(|((due, _), _)| *due);
        let timer = self.ends.iter().map(|e| e.next_at()).filter(|at| *at < Instant::MAX).min();
        let Some(next) = arrival.into_iter().chain(timer).min() else { return false };
        self.now = self.now.max(next);
        while let Some(entry) = self.wire.first_entry().filter(|e| e.key().0 <= self.now) {
            let (end, packet) = entry.remove();
            let parsed = parse_packet(&packet).unwrap();
            let received = &mut self.received[end];
            self.ends[end].on_segment(&parsed.header, &packet[parsed.payload], self.now, &mut |bytes| {
                assert!(STREAMS[1 - end].matches(*received, bytes), "wrong bytes at {received}");
                *received += bytes.len() as u64;
            });
        }
        for end in &mut self.ends {
            if end.next_at() <= self.now {
                end.on_timeout(self.now);
            }
        }
        true
    }

    fn run(&mut self, until: Instant, mut fate: impl FnMut(usize, &Packet) -> PacketAction) {
        let mut steps = 0;
        while self.now < until && !self.done() && self.step(&mut fate) {
            steps += 1;
            assert!(steps < 2_000_000, "no end in sight at {}", self.now);
        }
    }

    /// Runs to the end with a path that varies with time; calls `watch` after each step.
    fn run_timed(
        &mut self,
        mut fate: impl FnMut(Instant, usize) -> PacketAction,
        mut watch: impl FnMut(Instant, TcpStats),
    ) {
        let mut steps = 0;
        while !self.done() {
            steps += 1;
            assert!(steps < 1_000_000, "no end in sight at {}", self.now);
            let now = self.now;
            assert!(self.step(&mut |end, _| fate(now, end)), "stuck at {now}");
            watch(now, self.ends[0].stats());
        }
    }

    fn done(&self) -> bool {
        self.ends.iter().all(|e| e.is_sent() && e.is_received())
    }
}

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn at_ms(n: u64) -> Instant {
    Instant::from_millis(n)
}

fn end_of(seconds: u64) -> Instant {
    Instant::from_secs(seconds)
}

/// A client that sends `bytes` over a path of 20 ms per direction; both ends close.
fn upload(options: Options, bytes: u64) -> Pair {
    let mut pair = Pair::new(options, ms(20));
    pair.ends[0].write(bytes);
    pair.ends[0].close(false);
    pair.ends[1].close(false);
    pair
}

/// Drops the data transmissions of end 0 with these ordinals.
fn lose(ordinals: &'static [usize]) -> impl FnMut(usize, &Packet) -> PacketAction {
    let mut n = 0;
    move |end, packet| {
        if end == 0 && packet.len() > 100 {
            n += 1;
            if ordinals.contains(&(n - 1)) {
                return PacketAction::Lose;
            }
        }
        PacketAction::Pass
    }
}

#[test]
fn a_clean_transfer_needs_no_retransmission() {
    for (timestamps, pacing) in [(true, false), (true, true), (false, false), (false, true)] {
        let mut pair = upload(Options { timestamps, pacing, ..Options::default() }, 1_000_000);
        pair.run(end_of(60), |_, _| PacketAction::Pass);
        assert!(pair.done());
        assert_eq!(pair.received, [0, 1_000_000]);
        let stats = pair.ends[0].stats();
        assert_eq!((stats.retransmissions(), stats.timeouts, stats.undos), (0, 0, 0), "{stats:?}");
        assert_eq!(stats.acked_bytes, 1_000_000);
        assert!(stats.min_rtt >= ms(40) && stats.min_rtt < ms(42), "{stats:?}");
    }
}

/// Number of data segments that an end sends within 1 ms, and in its first round trip, with a window of 40.
fn first_round_trip(end: usize, options: Options) -> (usize, usize) {
    let mut pair = Pair::new(Options { initial_window_segments: 40, ..options }, ms(20));
    pair.ends[end].write(200_000);
    pair.ends.iter_mut().for_each(|end| end.close(false));
    let mut sent = Vec::new();
    pair.run_timed(
        |now, from| {
            sent.extend((from == end).then_some(now));
            PacketAction::Pass
        },
        |_, _| {},
    );
    // The SYN was sent before; the first packet of the server is the SYN/ACK.
    let data = &sent[end..];
    let begin = data[0];
    let until = |after: Duration| data.iter().filter(|at| **at < begin + after).count();
    (until(ms(1)), until(ms(40)))
}

#[test]
fn the_first_segments_are_not_paced_and_the_rest_as_linux_does() {
    assert_eq!(first_round_trip(0, Options::default()), (40, 40));
    let paced = Options { pacing: true, ..Options::default() };
    // Opened locally: ten at once; the rest is paced at twenty per round trip, headers included, whatever the window is.
    assert_eq!(first_round_trip(0, paced.clone()), (10, 29));
    // Opened by the peer: the rate follows from the window.
    let (at_once, all) = first_round_trip(1, paced);
    assert!((10..13).contains(&at_once) && all == 40, "{at_once} {all}");
    // BBR paces by the round trip of the handshake, at 2.885 windows per round trip, whoever opened the connection.
    for end in 0..2 {
        let bbr = Options { congestion_control: Algorithm::Bbr, ..Options::default() };
        let (at_once, all) = first_round_trip(end, bbr);
        assert!((11..15).contains(&at_once) && all == 40, "{end}: {at_once} {all}");
    }
}

/// Seconds to send 20 MB through a bottleneck of 20 Mbit/s with an RTT of 40 ms and a deep queue, where every n-th packet is
/// lost on the path; the longest queueing delay; and counters.
fn through_a_bottleneck(congestion_control: Algorithm, lose_every: u64) -> (f64, Duration, TcpStats) {
    let mut pair = upload(Options { congestion_control, ..Options::default() }, 20_000_000);
    let (mut free, mut waited, mut n) = (Instant::ZERO, Duration::ZERO, 0);
    let mut last = TcpStats::default();
    let fate = |now: Instant, end| {
        if end == 1 {
            return PacketAction::Pass;
        }
        n += 1;
        if lose_every > 0 && n % lose_every == 0 {
            return PacketAction::Lose;
        }
        free = free.max(now) + Duration::from_nanos(1500 * 8_000_000_000 / 20_000_000);
        let wait = free.saturating_since(now);
        waited = waited.max(wait);
        PacketAction::Delay(wait.as_micros() as u64)
    };
    pair.run_timed(fate, |_, stats| last = stats);
    assert_eq!(pair.received, [0, 20_000_000]);
    (pair.now.as_secs_f64(), waited, last)
}

#[test]
fn bbr_paces_at_the_bottleneck_and_tolerates_loss() {
    // 20 MB in segments of 1448 bytes, packets of 1500, at 20 Mbit/s.
    let least = 20e6 * 8.0 / 20e6 * 1500.0 / 1448.0;
    let (seconds, waited, stats) = through_a_bottleneck(Algorithm::Bbr, 0);
    assert!(seconds < least * 1.05, "{seconds} s of at least {least}");
    assert!(waited < ms(120), "startup makes two BDPs, more would be wrong: {waited:?}");
    assert_eq!((stats.retransmissions(), stats.timeouts), (0, 0));
    let (_, with_cubic, _) = through_a_bottleneck(Algorithm::Cubic, 0);
    assert!(with_cubic > waited * 2, "a deep queue: {with_cubic:?}");
    let (seconds, _, stats) = through_a_bottleneck(Algorithm::Bbr, 50);
    assert!(seconds < least * 1.15, "2 % lost: {seconds} s of at least {least}, {stats:?}");
    assert_eq!(stats.timeouts, 0);
    let (with_reno, _, _) = through_a_bottleneck(Algorithm::Reno, 50);
    assert!(with_reno > 3.0 * seconds, "{with_reno} s");
}

/// After the RTT has decreased, BBR has a rate at which two segments that are acknowledged together take longer than the RTT.
/// The minimum RTT must be that of the second one, whose ACK was not delayed; otherwise no delivery rate is ever measured again.
#[test]
fn bbr_grows_after_a_round_trip_that_was_long() {
    let mut pair = Pair::new(Options { congestion_control: Algorithm::Bbr, ..Options::default() }, ms(3));
    pair.ends[0].write(4_000_000);
    pair.ends.iter_mut().for_each(|end| end.close(false));
    let mut free = Instant::ZERO;
    let fate = |now: Instant, end| {
        let far_us = if now < at_ms(600) { 118_000 } else { 0 };
        if end == 1 {
            return PacketAction::Delay(far_us);
        }
        free = free.max(now) + Duration::from_micros(3_000);
        PacketAction::Delay(far_us + free.saturating_since(now).as_micros() as u64)
    };
    pair.run_timed(fate, |_, _| ());
    let seconds = pair.now.as_secs_f64();
    assert!(seconds < 12.0, "4 MB over 4 Mbit/s: {seconds} s");
}

#[test]
fn both_directions_at_once() {
    let mut pair = Pair::new(Options::default(), ms(20));
    for (end, bytes) in [(0, 300_000), (1, 500_000)] {
        pair.ends[end].write(bytes);
        pair.ends[end].close(false);
    }
    let mut n = 0;
    pair.run(end_of(60), |_, _| {
        n += 1;
        if n % 20 == 0 { PacketAction::Lose } else { PacketAction::Pass }
    });
    assert!(pair.done());
    assert_eq!(pair.received, [500_000, 300_000]);
}

/// cwnd limits retransmissions as it limits new data, so that it grows. With one segment per RTT this would take 1.7 s.
#[test]
fn after_a_flight_that_cwnd_did_not_limit_was_lost_it_is_slow_start() {
    let mut pair = upload(Options { initial_window_segments: 100, ..Options::default() }, 60_000);
    let mut n = 0;
    pair.run(end_of(60), |end, packet| {
        n += usize::from(end == 0 && packet.len() > 100);
        if end == 0 && packet.len() > 100 && n <= 42 { PacketAction::Lose } else { PacketAction::Pass }
    });
    assert!(pair.done() && pair.now < at_ms(1000), "{} {:?}", pair.now, pair.ends[0].stats());
}

#[test]
fn one_loss_is_one_fast_retransmission_and_one_reduction() {
    let mut pair = upload(Options::default(), 400_000);
    pair.run(end_of(60), lose(&[40]));
    let stats = pair.ends[0].stats();
    assert_eq!((stats.retransmitted_fast, stats.retransmissions(), stats.recoveries), (1, 1, 1), "{stats:?}");
    assert_eq!((stats.timeouts, stats.spurious_segments, stats.undos), (0, 0, 0));
    assert!(stats.ssthresh_bytes < u64::MAX);
}

#[test]
fn without_reordering_no_reduction_is_undone() {
    // Losses only, also of data that a recovery sends beyond its own end. Each recovery then begins with retransmissions of the
    // previous one in flight, and their ACKs echo times before its own first retransmission.
    for seed in 0..20_u64 {
        let mut pair = upload(Options { pacing: seed % 2 == 0, ..Options::default() }, 2_000_000);
        let mut state = seed;
        pair.run(end_of(600), |end, packet| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let lost = end == 0 && packet.len() > 100 && (state >> 33) % 10 == 0;
            if lost { PacketAction::Lose } else { PacketAction::Pass }
        });
        assert!(pair.done());
        let stats = pair.ends[0].stats();
        assert!(stats.recoveries > 20, "{seed} {stats:?}");
        assert_eq!(stats.undos, 0, "{seed} {stats:?}");
    }
}

#[test]
fn a_lost_retransmission_is_found_without_a_timeout() {
    let mut pair = upload(Options::default(), 400_000);
    let mut lost = None;
    let mut times = 0;
    let mut n = 0;
    pair.run(end_of(60), |end, packet| {
        if end == 0 && packet.len() > 100 {
            n += 1;
            let seq = parse_packet(packet).unwrap().header.seq;
            if n == 41 {
                lost = Some(seq);
            }
            if lost == Some(seq) && times < 2 {
                times += 1;
                return PacketAction::Lose;
            }
        }
        PacketAction::Pass
    });
    let stats = pair.ends[0].stats();
    assert!(pair.done());
    assert_eq!((stats.retransmitted_fast, stats.timeouts, stats.recoveries), (2, 0, 1), "{stats:?}");
}

#[test]
fn a_lost_tail_is_repaired_by_a_probe_before_the_timeout() {
    let mut pair = Pair::new(Options::default(), ms(20));
    // 10 segments, of which the last is lost.
    pair.ends[0].write(14_480);
    pair.run(at_ms(440), lose(&[9]));
    let stats = pair.ends[0].stats();
    assert_eq!(pair.received[1], 14_480, "{stats:?}");
    assert_eq!((stats.retransmitted_probe, stats.timeouts, stats.probes), (1, 0, 1), "{stats:?}");
    // The loss is certain, and counts, if no DSACK arrives before later data is acknowledged.
    pair.ends[0].write(1000);
    pair.run(at_ms(600), |_, _| PacketAction::Pass);
    let stats = pair.ends[0].stats();
    assert_eq!((stats.recoveries, stats.retransmissions()), (1, 1), "{stats:?}");
}

#[test]
fn timeouts_double_until_the_path_is_back() {
    let mut pair = upload(Options::default(), 2_000_000);
    let dark = |now: Instant| now >= at_ms(200) && now < end_of(20);
    let mut timed_out_at = Vec::new();
    let mut timeouts = 0;
    pair.run_timed(
        |now, _| if dark(now) { PacketAction::Lose } else { PacketAction::Pass },
        |now, stats| {
            if stats.timeouts > timeouts {
                timeouts = stats.timeouts;
                timed_out_at.push(now);
            }
        },
    );
    assert!(pair.done() && timeouts >= 5, "{timeouts}");
    // `now` is the time before the step in which the timer expired; the first gap is that of the last ACK.
    let gaps: Vec<f64> = timed_out_at.windows(2).skip(1).map(|w| (w[1] - w[0]).as_secs_f64()).collect();
    for pair in gaps.windows(2).take(3) {
        assert!((pair[1] / pair[0] - 2.0).abs() < 0.01, "{gaps:?}");
    }
}

#[test]
fn a_reduction_by_a_delay_spike_is_undone() {
    // The path buffers everything from 300 to 900 ms and then delivers it in order: the timeout was spurious.
    let mut pair = upload(Options::default(), 12_000_000);
    let (from, to) = (at_ms(300), at_ms(900));
    let mut before = 0;
    pair.run_timed(
        |now, end| {
            let held = end == 0 && now >= from && now < to;
            if held { PacketAction::Delay((to - now).as_micros() as u64) } else { PacketAction::Pass }
        },
        |_, stats| {
            if stats.timeouts == 0 {
                before = stats.cwnd_bytes;
            }
            assert!(stats.undos == 0 || stats.cwnd_bytes >= before, "{stats:?} before {before}");
        },
    );
    let stats = pair.ends[0].stats();
    assert!(stats.timeouts > 0 && stats.undos == 1, "{stats:?}");
    assert!(stats.retransmissions() < 10, "{stats:?}");
}

#[test]
fn reordering_within_a_quarter_rtt_is_soon_tolerated() {
    // Every tenth segment is 8 ms late on a path of 40 ms. It is mistaken for a loss once; then the reordering window opens.
    let mut pair = upload(Options::default(), 4_000_000);
    let mut n = 0;
    pair.run(end_of(60), |end, _| {
        n += 1;
        if end == 0 && n % 10 == 0 { PacketAction::Delay(8_000) } else { PacketAction::Pass }
    });
    let stats = pair.ends[0].stats();
    assert!(pair.done());
    assert!(stats.retransmissions() <= 5, "{stats:?}");
    assert!(pair.ends[1].receive_disorder().0 > 100);
}

#[test]
fn heavy_reordering_widens_the_window_by_dsack() {
    // 25 ms late on 40 ms, more than a quarter: each round trip with DSACKs adds a quarter to the window.
    let mut pair = upload(Options::default(), 6_000_000);
    let (mut n, mut late) = (0, 0);
    pair.run(end_of(60), |end, _| {
        n += 1;
        if end == 0 && n % 50 == 0 {
            late += 1;
            return PacketAction::Delay(25_000);
        }
        PacketAction::Pass
    });
    let stats = pair.ends[0].stats();
    assert!(pair.done());
    assert!(stats.spurious_segments > 0, "{stats:?}");
    assert!(stats.retransmissions() * 2 < late, "{late} late, {stats:?}");
}

#[test]
fn a_lost_syn_is_retransmitted_and_a_dead_peer_times_out() {
    let mut pair = upload(Options::default(), 1000);
    let mut n = 0;
    pair.run(end_of(60), |_, _| {
        n += 1;
        if n <= 2 { PacketAction::Lose } else { PacketAction::Pass }
    });
    assert!(pair.done());
    assert!(pair.now > end_of(1) && pair.now < end_of(5), "{}", pair.now);

    let mut dead = Pair::new(Options::default(), ms(20));
    dead.run(end_of(1000), |_, _| PacketAction::Lose);
    assert_eq!(dead.ends[0].closed(), Some(Closed::TimedOut));

    let mut cut = upload(Options::default(), 1_000_000);
    let mut seen = 0;
    cut.run(end_of(10_000), |_, _| {
        seen += 1;
        if seen > 30 { PacketAction::Lose } else { PacketAction::Pass }
    });
    assert_eq!(cut.ends[0].closed(), Some(Closed::TimedOut));
    assert!(cut.now > end_of(600), "Linux gives up after a quarter of an hour: {}", cut.now);
}

fn header(packet: &Packet) -> TcpHeader {
    parse_packet(packet).unwrap().header
}

/// Times in seconds at which an end without a peer sends its first packet, and finally when it gives up.
fn tries(mut end: Connection) -> Vec<u64> {
    let (mut times, mut now) = (Vec::new(), Instant::ZERO);
    while end.closed().is_none() {
        times.extend(end.poll_transmit(now).map(|_| now.as_millis() / 1000));
        now = end.next_at();
        end.on_timeout(now);
    }
    times.push(now.as_millis() / 1000);
    times
}

fn client() -> Connection {
    let [a, b]: [SocketAddr; 2] = ["10.0.0.1:1000", "10.0.0.2:80"].map(|end| end.parse().unwrap());
    Connection::connect(a, b, Options::default(), STREAMS[0], 77, Instant::ZERO)
}

fn server_of(client: &Connection, syn: &TcpHeader, now: Instant) -> Connection {
    Connection::accept(client.remote, client.local, syn, Options::default(), STREAMS[1], 99, now)
}

#[test]
fn syns_are_sent_every_second_at_first_and_answers_with_back_off() {
    let mut asking = client();
    let syn = header(&asking.poll_transmit(Instant::ZERO).unwrap());
    let server = server_of(&asking, &syn, Instant::ZERO);
    assert_eq!(tries(server), [0, 1, 3, 7, 15, 31, 63]);
    assert_eq!(tries(client()), [0, 1, 2, 3, 4, 5, 7, 11, 19, 35, 67, 131]);
    // A repeated SYN is answered at once; the next retransmission of the answer is later.
    let mut server = server_of(&asking, &syn, Instant::ZERO);
    assert!(server.poll_transmit(Instant::ZERO).is_some());
    server.on_segment(&syn, &[], at_ms(900), &mut |_| ());
    assert!(server.poll_transmit(at_ms(900)).is_some() && server.next_at() == at_ms(1900));
}

/// Number of segments of the first window, and the RTT of the handshake in milliseconds.
fn first_window(end: &mut Connection, now: Instant) -> (usize, u128) {
    assert!(end.is_established());
    end.write(100_000);
    let rtt = end.stats().srtt.as_millis();
    (std::iter::from_fn(|| end.poll_transmit(now)).filter(|p| p.len() > 100).count(), rtt)
}

/// An end, and the headers of what it sends at these seconds.
fn sent_at(mut end: Connection, seconds: &[u64]) -> (Connection, Vec<TcpHeader>) {
    let sent = seconds.iter().map(|second| {
        end.on_timeout(end_of(*second));
        header(&end.poll_transmit(end_of(*second)).unwrap())
    });
    let sent = sent.collect();
    (end, sent)
}

#[test]
fn the_first_window_is_one_segment_if_two_syns_were_lost() {
    // Number of SYNs sent, and which of them is answered half a second after the last.
    for (seconds, answered, want) in [
        (&[0][..], 0, (10, 500)),
        (&[0, 1], 1, (10, 500)),
        (&[0, 1, 2], 2, (1, 500)),
        (&[0, 1, 2], 1, (1, 1500)),
        (&[0, 1, 2], 0, (10, 2500)),
    ] {
        let now = end_of(seconds.len() as u64 - 1) + ms(500);
        let (mut client, syns) = sent_at(client(), seconds);
        let mut server = server_of(&client, &syns[answered], now);
        let answer = header(&server.poll_transmit(now).unwrap());
        client.on_segment(&answer, &[], now, &mut |_| ());
        assert_eq!(first_window(&mut client, now), want, "SYN {answered} of {seconds:?}");
    }
    let now = at_ms(3500);
    for (answered, want) in [(0, (10, 3500)), (2, (1, 500))] {
        let (mut client, syns) = sent_at(client(), &[0]);
        let (mut server, answers) = sent_at(server_of(&client, &syns[0], Instant::ZERO), &[0, 1, 3]);
        client.on_segment(&answers[answered], &[], now, &mut |_| ());
        let ack = header(&client.poll_transmit(now).unwrap());
        server.on_segment(&ack, &[], now, &mut |_| ());
        assert_eq!(first_window(&mut server, now), want, "SYN/ACK {answered}");
    }
}

#[test]
fn reset_ends_both() {
    let mut pair = Pair::new(Options::default(), ms(20));
    pair.ends[0].write(1_000_000);
    pair.run(at_ms(150), |_, _| PacketAction::Pass);
    assert!(pair.ends[1].is_established());
    pair.ends[0].abort();
    pair.run(at_ms(400), |_, _| PacketAction::Pass);
    assert_eq!(pair.ends[1].closed(), Some(Closed::Reset));
}

#[test]
fn request_and_response_share_packets_with_their_acks() {
    let mut pair = Pair::new(Options::default(), ms(20));
    let (mut asked, mut answered) = (1, 0);
    pair.ends[0].write(100);
    while asked <= 50 {
        assert!(pair.step(&mut |_, _| PacketAction::Pass));
        while pair.received[1] >= (answered + 1) * 100 {
            answered += 1;
            pair.ends[1].write(400);
        }
        if pair.received[0] >= asked * 400 {
            asked += 1;
            pair.ends[0].write(100);
        }
    }
    assert_eq!(answered, 50);
    // A request takes one round trip, and few ACKs are sent alone.
    assert!(pair.now < at_ms(50 * 41 + 100), "{}", pair.now);
    assert!(pair.bare < 30, "{}", pair.bare);
    assert_eq!(pair.ends[0].stats().retransmissions() + pair.ends[1].stats().retransmissions(), 0);
}

/// Payload lengths of the data segments that end 0 can send now; each is put on the path.
fn payloads(pair: &mut Pair) -> Vec<usize> {
    let mut sizes = Vec::new();
    while let Some(packet) = pair.ends[0].poll_transmit(pair.now) {
        sizes.push(parse_packet(&packet).unwrap().payload.len());
        pair.put(1, packet, 0);
    }
    sizes
}

#[test]
fn small_writes_wait_for_the_ack_of_the_previous_small_segment() {
    let written = |nodelay| {
        let mut pair = Pair::new(Options { nodelay, ..Options::default() }, ms(20));
        pair.run(at_ms(70), |_, _| PacketAction::Pass);
        let mut sent = Vec::new();
        for bytes in [2000, 100, 900, 100] {
            pair.ends[0].write(bytes);
            sent.push(payloads(&mut pair));
        }
        pair.run(at_ms(75), |_, _| PacketAction::Pass);
        (sent, pair)
    };
    let (sent, pair) = written(true);
    assert_eq!(sent, [vec![1448, 552], vec![100], vec![900], vec![100]]);
    assert_eq!(pair.received[1], 3100);
    let (sent, mut pair) = written(false);
    // A small segment behind full ones is sent; later small ones wait for its ACK; full segments do not wait.
    assert_eq!(sent, [vec![1448, 552], vec![], vec![], vec![]]);
    assert_eq!(pair.received[1], 2000);
    pair.ends[0].write(400);
    assert_eq!(payloads(&mut pair), [1448]);
    pair.run(at_ms(200), |_, _| PacketAction::Pass);
    assert_eq!(pair.received[1], 3500);

    // The end of the stream does not wait, even if unsent data is discarded: this data was written.
    for abandon in [true, false] {
        let (_, mut pair) = written(false);
        pair.ends[0].close(abandon);
        assert_eq!(payloads(&mut pair), [1100]);
    }
}

#[test]
fn a_closed_window_is_probed_until_it_opens() {
    let mut pair = Pair::new(Options::default(), ms(20));
    pair.run(at_ms(70), |_, _| PacketAction::Pass);
    let client = &mut pair.ends[0];
    assert!(client.is_established());
    // The peer offers no window.
    client.sender.window_end = client.sender.next;
    client.write(5000);
    assert!(client.poll_transmit(pair.now).is_none());
    let at = client.next_at();
    assert_eq!(Some(at), client.sender.persist_at);
    client.on_timeout(at);
    let probe = client.poll_transmit(at).unwrap();
    let header = parse_packet(&probe).unwrap().header;
    assert_eq!(header.seq, client.iss, "a number the peer has acknowledged long ago");
    // The local receiver answers it.
    pair.ends[1].on_segment(&header, &[], at, &mut |_| ());
    assert!(pair.ends[1].poll_transmit(at).is_some());
}

fn counting(recovery: Recovery, sack: bool) -> Options {
    Options { recovery, sack, hystart: false, pacing: true, ..Options::default() }
}

#[test]
fn duplicates_find_losses_with_and_without_sack() {
    for (recovery, sack) in
        [(Recovery::Classic, true), (Recovery::Classic, false), (Recovery::Adaptive, true)]
    {
        // Three of one window, of which two are adjacent.
        let mut pair = upload(counting(recovery, sack), 2_000_000);
        pair.run(end_of(60), lose(&[60, 61, 66]));
        assert!(pair.done());
        let stats = pair.ends[0].stats();
        assert_eq!(
            (stats.recoveries, stats.undos, stats.timeouts),
            (1, 0, 0),
            "{recovery:?} {sack} {stats:?}"
        );
        assert_eq!(stats.retransmitted_fast, 3, "{recovery:?} {sack} {stats:?}");
        assert_eq!((stats.triple_duplicates > 0, pair.received[1]), (true, 2_000_000));
    }
}

#[test]
fn late_segments_count_as_lost_with_duplicate_counting() {
    let late = |n: &mut usize, end: usize, packet: &Packet| {
        if end == 0 && packet.len() > 100 {
            *n += 1;
            if n.is_multiple_of(60) {
                return PacketAction::Delay(4_000);
            }
        }
        PacketAction::Pass
    };
    let run = |recovery, sack| {
        let mut pair = upload(counting(recovery, sack), 3_000_000);
        let mut n = 0;
        pair.run(end_of(60), |end, packet| late(&mut n, end, packet));
        assert!(pair.done());
        (pair.ends[0].stats(), pair.now)
    };
    for sack in [true, false] {
        let (classic, slow) = run(Recovery::Classic, sack);
        assert!(classic.recoveries > 5 && classic.undos == 0, "{sack} {classic:?}");
        let (adaptive, fast) = run(Recovery::Adaptive, sack);
        assert!(adaptive.undos > 0 && fast < slow, "{sack} {adaptive:?}");
    }
    let (rack, _) = run(Recovery::Rack, true);
    assert!(rack.recoveries <= 1, "{rack:?}");
}
