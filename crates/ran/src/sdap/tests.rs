use super::*;
use crate::queue::{Algorithm, BearerParams, QueueConfig};
use proptest::prelude::*;

fn flow(qfi: u8, drb: DrbId, priority: u8) -> FlowConfig {
    FlowConfig { priority, ..FlowConfig::new(qfi, drb) }
}

fn config(scheduler: SchedulerKind, flows: Vec<FlowConfig>) -> SdapConfig {
    SdapConfig { scheduler, flows, ..SdapConfig::default() }
}

fn open(config: &SdapConfig) -> Sdap {
    Sdap::new(config, |_| AnyLimiter::UNLIMITED).unwrap()
}

/// A bearer whose limiter admits nothing until `on_tti` reports an empty RLC buffer: DynRLC with room for one SDU.
fn one_at_a_time(config: &SdapConfig) -> Sdap {
    let one = crate::queue::dynrlc::DynRlcParams { max_sdus: 1, ..Default::default() };
    let queue = QueueConfig::DynRlc(one);
    Sdap::new(config, |_| queue.build(BearerParams::default()).unwrap().0).unwrap()
}

/// The MAC takes everything; returns the packet passed at the next poll.
fn step(sdap: &mut Sdap, now: Instant) -> Option<(u8, u32)> {
    sdap.on_tti(1, &TtiReport { at: now, ..TtiReport::default() });
    sdap.on_timeout(now);
    sdap.poll_forward(now).map(|(_, sdu)| (sdu.qfi, sdu.bytes()))
}

fn packet(bytes: usize, at: Instant) -> Packet {
    Packet::new(at, vec![0x45; bytes])
}

fn run(scheduler: SchedulerKind, flows: Vec<FlowConfig>, load: &[(u8, usize)], steps: usize) -> Vec<u8> {
    let mut sdap = one_at_a_time(&config(scheduler, flows));
    for (qfi, bytes) in load {
        sdap.enqueue(*qfi, packet(*bytes, Instant::ZERO), Instant::ZERO).unwrap();
    }
    (1..=steps).filter_map(|ms| step(&mut sdap, Instant::from_millis(ms as u64))).map(|p| p.0).collect()
}

#[test]
fn priority_goes_first() {
    let flows = vec![flow(9, 1, 90), flow(1, 1, 20), flow(5, 1, 10)];
    let load = [(9, 100), (9, 100), (1, 100), (5, 100), (1, 100)];
    assert_eq!(run(SchedulerKind::Priority, flows, &load, 9), [5, 1, 1, 9, 9]);
}

#[test]
fn a_grant_fetches_in_order_what_the_limiter_keeps() {
    let mut sdap = one_at_a_time(&config(SchedulerKind::Priority, vec![flow(9, 1, 90), flow(1, 1, 20)]));
    for (qfi, bytes) in [(9, 1000), (9, 600), (9, 500), (1, 100)] {
        sdap.enqueue(qfi, packet(bytes, Instant::ZERO), Instant::ZERO).unwrap();
        if bytes == 1000 {
            assert!(sdap.poll_forward(Instant::ZERO).is_some());
        }
    }
    assert_eq!(sdap.poll_forward(Instant::ZERO), None, "one is in RLC");
    assert_eq!(sdap.waiting_packets(1), WaitingPackets { sdus: 3, bytes: 1200 });
    let sizes = |sdap: &Sdap, most| {
        let mut sizes = vec![7];
        sdap.sizes(1, most, 5, &mut sizes);
        sizes
    };
    assert_eq!((sizes(&sdap, 9), sizes(&sdap, 2)), (vec![7, 105, 605, 505], vec![7, 105, 605]));
    let fetched: Vec<u32> =
        std::iter::from_fn(|| sdap.fetch(1, Instant::ZERO)).map(|sdu| sdu.bytes()).collect();
    assert_eq!((fetched, sdap.waiting_packets(1)), (vec![100, 600, 500], WaitingPackets::default()));
    assert!(sdap.fetch(2, Instant::ZERO).is_none(), "there is no such bearer");
}

#[test]
fn round_robin_shares_bytes_by_quantum() {
    for quantum in [1, 7, 1500, 100_000] {
        let share = |qfi, q| FlowConfig { quantum_bytes: q, ..flow(qfi, 1, 50) };
        let flows = vec![share(1, 2 * quantum), share(2, quantum), share(3, quantum)];
        let load: Vec<(u8, usize)> = (0..400).flat_map(|_| [(1, 1000), (2, 1000), (3, 250)]).collect();
        let sizes = [0, 1000, 1000, 250];
        let mut bytes = [0u32; 4];
        for qfi in run(SchedulerKind::Drr, flows, &load, 400) {
            bytes[usize::from(qfi)] += sizes[usize::from(qfi)];
        }
        if quantum <= 1500 {
            // Within one quantum and one packet of 2 : 1 : 1.
            assert!(bytes[1].abs_diff(2 * bytes[2]) <= 2 * quantum + 2000, "{quantum}: {bytes:?}");
            assert!(bytes[2].abs_diff(bytes[3]) <= quantum + 1000, "{quantum}: {bytes:?}");
        }
    }
}

#[test]
fn the_earliest_deadline_goes_first() {
    let budget = |qfi, ms: u32| FlowConfig { delay_budget_us: ms * 1000, ..flow(qfi, 1, 50) };
    let mut sdap = one_at_a_time(&config(SchedulerKind::Edf, vec![budget(1, 10), budget(2, 30)]));
    let at = Instant::from_millis;
    sdap.enqueue(2, packet(10, at(0)), at(0)).unwrap();
    sdap.enqueue(1, packet(10, at(15)), at(15)).unwrap();
    sdap.enqueue(1, packet(10, at(25)), at(25)).unwrap();
    let order: Vec<u8> = (26..30).filter_map(|ms| step(&mut sdap, at(ms))).map(|p| p.0).collect();
    assert_eq!(order, [1, 2, 1], "deadlines 25, 30, 35 ms");
}

#[test]
fn flows_go_to_their_bearers() {
    let mut c = config(SchedulerKind::Priority, vec![flow(1, 3, 20), flow(9, 1, 90)]);
    c.drbs = vec![DrbConfig { id: 1, header: false }, DrbConfig { id: 3, header: true }];
    let mut sdap = open(&c);
    let t = Instant::from_millis(1);
    sdap.enqueue(9, packet(100, Instant::ZERO), t).unwrap();
    sdap.enqueue(1, packet(100, Instant::ZERO), t).unwrap();
    assert_eq!(sdap.enqueue(2, packet(100, t), t), Err(SdapDrop::Unmapped(2)));
    assert_eq!(sdap.enqueue(9, packet(9001, t), t), Err(SdapDrop::TooLarge(9001)));
    assert_eq!(sdap.drops(), (1, 1));
    let mut out: Vec<(DrbId, Sdu)> = std::iter::from_fn(|| sdap.poll_forward(t)).collect();
    out.sort_by_key(|(drb, _)| *drb);
    assert_eq!((out[0].0, out[0].1.packet.len(), out[0].1.ip_offset), (1, 100, 0));
    assert_eq!((out[1].0, out[1].1.packet.len(), out[1].1.ip_offset), (3, 101, 1));
    assert_eq!(out[1].1.packet[0], 1, "the header is the QFI");
    assert_eq!(out[1].1.ip(), [0x45; 100]);
    assert_eq!(out[1].1.forwarded.saturating_since(out[1].1.arrived), Duration::from_millis(1));
    let stats: Vec<(u8, FlowStats)> = sdap.flow_stats().collect();
    assert_eq!(stats[0].1.wait_max_ns, 1_000_000);
    assert_eq!(sdap.poll_timeout(), None);
    // Unmapped QFIs are accepted once a flow is declared for them.
    c.flows[1].unmapped = true;
    let mut sdap = open(&c);
    sdap.enqueue(2, packet(100, t), t).unwrap();
    assert_eq!(sdap.poll_forward(t).map(|(drb, sdu)| (drb, sdu.qfi)), Some((1, 2)));
}

#[test]
fn polls_keep_their_grid() {
    let mut c = config(SchedulerKind::Priority, vec![flow(9, 1, 90)]);
    c.poll_phase_us = 70;
    let mut sdap = one_at_a_time(&c);
    let us = Instant::from_micros;
    assert_eq!(sdap.poll_timeout(), None, "nothing waits");
    for _ in 0..2 {
        sdap.enqueue(9, packet(10, us(1000)), us(1000)).unwrap();
    }
    assert!(sdap.poll_forward(us(1000)).is_some() && sdap.poll_forward(us(1000)).is_none());
    let mut due = Vec::new();
    for _ in 0..3 {
        let (at, _) = sdap.poll_timeout().unwrap();
        // A late wake-up does not shift the grid.
        let woken = at.max(us(1000)) + Duration::from_micros(3);
        sdap.on_timeout(woken);
        assert!(sdap.poll_forward(woken).is_none());
        due.push(sdap.poll_timeout().unwrap().0.as_micros());
    }
    assert_eq!(due, [1070, 1270, 1470]);
    // No evaluation between polls.
    sdap.on_tti(1, &TtiReport::default());
    sdap.on_timeout(us(1469));
    assert!(sdap.poll_forward(us(1469)).is_none());
    sdap.on_timeout(us(1470));
    assert!(sdap.poll_forward(us(1470)).is_some());
}

#[test]
fn a_full_queue_and_an_aqm_count_their_drops() {
    let mut short = flow(9, 1, 90);
    short.limit_sdus = 3;
    let mut sdap = one_at_a_time(&config(SchedulerKind::Priority, vec![short]));
    for _ in 0..5 {
        sdap.enqueue(9, packet(100, Instant::ZERO), Instant::ZERO).unwrap();
    }
    let (_, stats) = sdap.flow_stats().next().unwrap();
    assert_eq!((stats.queue.full_drops, stats.waiting_sdus, sdap.backlog_bytes(1)), (2, 3, 300));

    let aqm = FlowConfig { queue: Algorithm::CoDel.into(), ..flow(9, 1, 90) };
    let mut sdap = one_at_a_time(&config(SchedulerKind::Priority, vec![aqm]));
    for ms in 0..500 {
        let now = Instant::from_millis(ms);
        for _ in 0..2 {
            sdap.enqueue(9, packet(1500, now), now).unwrap();
        }
        step(&mut sdap, now);
    }
    let (_, stats) = sdap.flow_stats().next().unwrap();
    assert!(stats.queue.aqm_drops > 3);
    assert_eq!(
        stats.forwarded_sdus + stats.queue.aqm_drops + stats.queue.full_drops + stats.waiting_sdus,
        1000
    );
    assert_eq!(stats.waiting_bytes, sdap.backlog_bytes(1));
}

#[test]
fn a_live_change_of_the_limiter() {
    let mut sdap = one_at_a_time(&config(SchedulerKind::Priority, vec![flow(9, 1, 90)]));
    for _ in 0..5 {
        sdap.enqueue(9, packet(100, Instant::ZERO), Instant::ZERO).unwrap();
    }
    assert!(sdap.poll_forward(Instant::ZERO).is_some());
    assert!(sdap.poll_forward(Instant::ZERO).is_none());
    assert!(sdap.set_limiter(1, AnyLimiter::UNLIMITED) && !sdap.set_limiter(2, AnyLimiter::UNLIMITED));
    assert_eq!(std::iter::from_fn(|| sdap.poll_forward(Instant::ZERO)).count(), 4);
    assert!(sdap.limiter(1).is_some_and(AnyLimiter::is_open));
}

#[test]
fn the_configuration_and_its_errors() {
    let text = r#"{"scheduler": "drr", "drbs": [{"id": 1}], "flows": [
        {"qfi": 1, "drb": 1, "priority": 20}, {"qfi": 9, "drb": 1, "queue": "codel", "unmapped": true}]}"#;
    let good: SdapConfig = serde_json::from_str(text).unwrap();
    assert_eq!((good.poll_us, good.flows[1].queue.algorithm()), (200, Algorithm::CoDel));
    good.check().unwrap();
    let wrong = |change: &dyn Fn(&mut SdapConfig)| {
        let mut c = good.clone();
        change(&mut c);
        assert!(Sdap::new(&c, |_| AnyLimiter::UNLIMITED).is_err());
        c.check().unwrap_err().to_string()
    };
    assert_eq!(wrong(&|c| c.flows[1].qfi = 64), "sdap flow 64: qfi = 64: must be 0 to 63");
    assert_eq!(wrong(&|c| c.flows[1].qfi = 1), "sdap flow 1: qfi = 1: must be unique");
    assert_eq!(wrong(&|c| c.flows[0].drb = 2), "sdap flow 1: drb = 2: must be the id of one of the drbs");
    assert_eq!(wrong(&|c| c.drbs[0].id = 0), "sdap drb 0: id = 0: must be 1 to 32");
    assert_eq!(wrong(&|c| c.flows[0].priority = 0), "sdap flow 1: priority = 0: must be 1 to 127");
    assert_eq!(wrong(&|c| c.poll_us = 0), "sdap: 0 poll_us: must be at least 1");
    assert_eq!(wrong(&|c| c.flows.clear()), "sdap: 0 flows: must be 1 to 64");
    assert_eq!(
        wrong(&|c| c.flows[0].unmapped = true),
        "sdap: 2 flows with unmapped = true: must be at most one"
    );
    assert_eq!(
        wrong(&|c| c.flows[0].queue = Algorithm::E5gBdp.into()),
        "sdap flow 1: queue = e5g_bdp: must be vanilla or codel or fq_codel or l4s"
    );
}

/// A bearer on a MAC that takes `tbs` bytes at each whole millisecond and gives no forecast.
struct Air {
    sdap: Sdap,
    rlc_bytes: u32,
    now: Instant,
}

impl Air {
    fn new(limiter: Algorithm, poll_us: u32, poll_phase_us: u32) -> Self {
        let config =
            SdapConfig { poll_us, poll_phase_us, ..config(SchedulerKind::Priority, vec![flow(9, 1, 90)]) };
        let queue = QueueConfig::from(limiter);
        let sdap = Sdap::new(&config, |_| queue.build(BearerParams::default()).unwrap().0).unwrap();
        Self { sdap, rlc_bytes: 0, now: Instant::ZERO }
    }

    fn offer(&mut self, bytes: usize) {
        self.sdap.enqueue(9, packet(bytes, self.now), self.now).unwrap();
        self.forward(self.now);
    }

    fn forward(&mut self, at: Instant) {
        while let Some((drb, sdu)) = self.sdap.poll_forward(at) {
            self.rlc_bytes += sdu.bytes();
            self.sdap.on_sent(drb, sdu.bytes(), Duration::ZERO, at);
        }
    }

    /// The polls of one TTI, then the tick. Returns the bytes taken by the MAC.
    fn tti(&mut self, tbs: u32) -> u32 {
        let tick = self.now + Duration::from_millis(1);
        while let Some((at, _)) = self.sdap.poll_timeout().filter(|(at, _)| *at < tick) {
            let at = at.max(self.now);
            self.sdap.on_timeout(at);
            self.forward(at);
        }
        let served_bytes = self.rlc_bytes.min(tbs);
        self.rlc_bytes -= served_bytes;
        let buffer_bytes = self.rlc_bytes;
        self.now = tick;
        self.sdap.on_tti(
            1,
            &TtiReport {
                at: tick,
                elapsed_ttis: 1,
                granted_bytes: tbs,
                served_bytes,
                buffer_bytes,
                buffer_sdus: buffer_bytes.div_ceil(1500),
                next: None,
            },
        );
        served_bytes
    }
}

#[test]
fn limiters_fill_the_cell_wherever_in_the_tti_the_polls_are() {
    for limiter in Algorithm::ALL {
        for poll_us in [50, 200, 203, 333, 500, 700, 1000] {
            for phase in [0, 1, 100, 300, 499, 600, 950].into_iter().filter(|phase| *phase < poll_us) {
                for tbs in [82, 800, 2289] {
                    let case = format!("{limiter}, polls every {poll_us} us, first at {phase} us, TBS {tbs}");
                    let mut air = Air::new(limiter, poll_us, phase);
                    // All packets at once: a later arrival would cause an evaluation between the polls.
                    let ttis = 400;
                    for _ in 0..ttis * tbs / 1500 + 4 {
                        air.offer(1500);
                    }
                    let took: u32 = (0..ttis).map(|_| air.tti(tbs)).sum();
                    let used = f64::from(took) / f64::from(ttis * tbs);
                    assert!(used > 0.9, "{case}: used {used}");
                    for _ in 0..400 {
                        air.tti(tbs);
                    }
                    assert_eq!((air.sdap.backlog_bytes(1), air.rlc_bytes), (0, 0), "{case}: all of it");
                    // The same after a pause.
                    air.offer(9000);
                    for _ in 0..400 {
                        air.tti(tbs);
                    }
                    assert_eq!((air.sdap.backlog_bytes(1), air.rlc_bytes), (0, 0), "{case}: after a pause");
                }
            }
        }
    }
}

#[test]
fn a_single_large_packet_leaves_after_silence() {
    for limiter in Algorithm::ALL {
        for (poll_us, phase) in [(200, 0), (200, 199), (500, 100), (1000, 0), (1000, 100), (1000, 999)] {
            let mut air = Air::new(limiter, poll_us, phase);
            for _ in 0..5 {
                air.tti(9000);
            }
            air.offer(8750);
            let took: u32 = (0..20).map(|_| air.tti(9000)).sum();
            assert_eq!(took, 8750, "{limiter}, polls every {poll_us} us, first at {phase} us");
            assert_eq!(air.sdap.poll_timeout(), None);
        }
    }
}

/// Packets of (QFI, bytes, time since the previous one in microseconds) through three flows and two bearers.
fn accounts(
    scheduler: SchedulerKind,
    limiter: Algorithm,
    queue: Algorithm,
    quantum: u32,
    limit: usize,
    steps: &[(u8, usize, u64)],
) -> Result<(), TestCaseError> {
    let limited = |qfi, drb| FlowConfig {
        quantum_bytes: quantum,
        limit_sdus: limit,
        queue: queue.into(),
        ..flow(qfi, drb, 1 + qfi)
    };
    let mut c = config(scheduler, vec![limited(1, 1), limited(2, 1), limited(3, 2)]);
    c.drbs = vec![DrbConfig { id: 1, header: false }, DrbConfig { id: 2, header: true }];
    let config = QueueConfig::from(limiter);
    let mut sdap = Sdap::new(&c, |_| config.build(BearerParams::default()).unwrap().0).unwrap();
    // The twin uses the direct path where possible; the results must not differ.
    let (mut twin, mut twin_out) = (sdap.clone(), Vec::new());
    let (mut now, mut offered, mut out) = (Instant::ZERO, 0u64, Vec::new());
    let mut tick = Instant::ZERO;
    for &(qfi, bytes, wait_us) in steps {
        now += Duration::from_micros(wait_us);
        offered += 1;
        let mut p = packet(bytes, now);
        // Not IP, so one flow for every queue. The number of the packet is stored where there is room.
        p.iter_mut().for_each(|b| *b = 0);
        if bytes >= 9 {
            p[1..9].copy_from_slice(&offered.to_be_bytes());
        }
        match twin.pass(qfi, p.clone(), now) {
            Ok(down) => twin_out.push(down),
            Err(p) => {
                let _ = twin.enqueue(qfi, p, now);
            }
        }
        let _ = sdap.enqueue(qfi, p, now);
        sdap.on_timeout(now);
        out.extend(std::iter::from_fn(|| sdap.poll_forward(now)));
        twin.on_timeout(now);
        twin_out.extend(std::iter::from_fn(|| twin.poll_forward(now)));
        prop_assert_eq!(sdap.poll_timeout(), twin.poll_timeout());
        if now.saturating_since(tick) >= Duration::from_millis(1) {
            tick = now;
            for drb in [1, 2] {
                let report = TtiReport { at: now, granted_bytes: 9000, ..TtiReport::default() };
                sdap.on_tti(drb, &report);
                twin.on_tti(drb, &report);
            }
        }
    }
    prop_assert!(sdap.flow_stats().eq(twin.flow_stats()));
    let fields = |(drb, sdu): &(DrbId, Sdu)| (*drb, sdu.qfi, sdu.arrived, sdu.forwarded, sdu.packet.to_vec());
    prop_assert!(out.iter().map(fields).eq(twin_out.iter().map(fields)));
    let stats: Vec<FlowStats> = sdap.flow_stats().map(|(_, s)| s).collect();
    for s in &stats {
        prop_assert!(s.waiting_sdus <= limit as u64 + 1);
        prop_assert_eq!(
            s.queue.pushed_sdus,
            s.forwarded_sdus + s.queue.full_drops + s.queue.aqm_drops + s.waiting_sdus
        );
    }
    let (unmapped, large) = sdap.drops();
    prop_assert_eq!(offered, unmapped + large + stats.iter().map(|s| s.queue.pushed_sdus).sum::<u64>());
    prop_assert_eq!(out.len() as u64, stats.iter().map(|s| s.forwarded_sdus).sum::<u64>());
    prop_assert_eq!(
        sdap.backlog_bytes(1) + sdap.backlog_bytes(2),
        stats.iter().map(|s| s.waiting_bytes).sum::<u64>()
    );
    for qfi in 1..=3 {
        let numbers: Vec<u64> = out
            .iter()
            .filter(|(_, s)| s.qfi & 63 == qfi)
            .filter_map(|(_, s)| s.ip().get(1..9).map(|b| u64::from_be_bytes(b.try_into().unwrap())))
            .collect();
        prop_assert!(numbers.windows(2).all(|w| w[0] < w[1]));
    }
    // Finally it empties: five polls, then the tick.
    for poll in 0..3000 {
        now += Duration::from_micros(200);
        sdap.on_timeout(now);
        while sdap.poll_forward(now).is_some() {}
        if poll % 5 < 4 {
            continue;
        }
        for drb in [1, 2] {
            sdap.on_tti(
                drb,
                &TtiReport { at: now, granted_bytes: 9000, elapsed_ttis: 1, ..TtiReport::default() },
            );
        }
    }
    prop_assert_eq!(sdap.flow_stats().map(|(_, s)| s.waiting_sdus).sum::<u64>(), 0);
    prop_assert_eq!(sdap.poll_timeout(), None);
    Ok(())
}

#[test]
fn a_large_packet_after_small_ones_leaves() {
    let small = [(0, 0, 189), (0, 0, 384), (0, 0, 38), (0, 0, 389), (0, 0, 308), (4, 0, 68), (0, 0, 96)];
    let large = [(0, 0, 382), (15, 3121, 146), (50, 880, 266), (12, 5691, 394), (61, 3808, 131)];
    let steps = [&small[..], &large, &[(29, 6025, 315), (3, 8750, 4)]].concat();
    for limiter in Algorithm::ALL {
        accounts(SchedulerKind::Priority, limiter, Algorithm::Vanilla, 1, 1, &steps).unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn every_packet_is_accounted_for_and_flows_keep_their_order(
        scheduler in prop_oneof![Just(SchedulerKind::Priority), Just(SchedulerKind::Drr), Just(SchedulerKind::Edf)],
        limiter in proptest::sample::select(&Algorithm::ALL[..]),
        queue in proptest::sample::select(vec![Algorithm::Vanilla, Algorithm::CoDel, Algorithm::FqCoDel, Algorithm::L4s]),
        quantum in 1u32..3000,
        limit in 0usize..30,
        steps in prop::collection::vec((0u8..70, 0usize..9100, 0u64..400), 1..300),
    ) {
        accounts(scheduler, limiter, queue, quantum, limit, &steps)?;
    }
}
