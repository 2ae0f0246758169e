use super::super::{Pool, PoolConfig};
use super::*;
use proptest::prelude::*;

#[derive(Default)]
struct Out(Vec<u32>);

impl PacketSink for Out {
    fn deliver(&mut self, packet: &mut [u8]) {
        self.0.push(u32::from_be_bytes(packet[..4].try_into().unwrap()));
    }
}

struct TestBed {
    reorder: StreamReorder,
    pool: Pool,
    out: Out,
    now: Instant,
}

impl TestBed {
    fn new(config: PoolConfig) -> Self {
        Self {
            reorder: StreamReorder::new(),
            pool: Pool::new(config),
            out: Out::default(),
            now: Instant::ZERO,
        }
    }

    fn data(&mut self, word: StreamWord, number: u32) -> StreamOutcome {
        let mut packet = [0; 200];
        packet[..4].copy_from_slice(&number.to_be_bytes());
        let Self { reorder, pool, out, now } = self;
        reorder.on_packet(word, &mut packet, *now, pool, out)
    }

    /// Epoch `epoch` began long ago.
    fn settled(epoch: u8, config: PoolConfig) -> Self {
        let mut bed = Self::new(config);
        bed.mark(epoch.wrapping_sub(1));
        bed.reorder.inner.as_mut().unwrap().stats = StreamStats::default();
        bed
    }

    fn get(&mut self, epoch: u8, number: u32) -> StreamOutcome {
        self.data(StreamWord { stream: 1, epoch, timeout_100us: 500 }, number)
    }

    fn mark(&mut self, epoch: u8) {
        let Self { reorder, pool, out, now } = self;
        reorder.on_marker(StreamWord { stream: 1, epoch, timeout_100us: 500 }, *now, pool, out);
    }

    fn at(&mut self, ms: u64) {
        self.now = Instant::from_millis(ms);
        let Self { reorder, pool, out, now } = self;
        reorder.on_timeout(*now, pool, out);
        assert!(reorder.poll_timeout().is_none_or(|(at, _)| at > *now));
    }

    fn took(&mut self) -> Vec<u32> {
        core::mem::take(&mut self.out.0)
    }
}

const HOLD: Duration = Duration::from_millis(50);

#[test]
fn packets_of_the_new_epoch_wait_for_the_mark() {
    let mut bed = TestBed::settled(255, PoolConfig::default());
    assert_eq!(bed.get(255, 1), StreamOutcome::Passed);
    assert_eq!(bed.get(0, 4), StreamOutcome::Held);
    assert_eq!(bed.get(0, 5), StreamOutcome::Held);
    assert_eq!(bed.pool.available(), 126);
    assert_eq!(bed.get(255, 2), StreamOutcome::Passed);
    assert_eq!(bed.get(255, 3), StreamOutcome::Passed);
    bed.mark(255);
    assert_eq!(bed.get(0, 6), StreamOutcome::Passed);
    assert_eq!(bed.took(), [1, 2, 3, 4, 5, 6]);
    assert_eq!((bed.pool.available(), bed.pool.used_bytes()), (127, 0));
    assert_eq!(bed.get(255, 0), StreamOutcome::Late);
    bed.mark(255);
    assert_eq!(bed.get(0, 7), StreamOutcome::Passed, "a second marker changes nothing");
    assert_eq!(bed.reorder.stats().by_marker, 1);
}

#[test]
fn a_lost_mark_costs_the_timeout() {
    let mut bed = TestBed::settled(7, PoolConfig::default());
    bed.get(7, 1);
    bed.get(8, 2);
    assert_eq!(bed.reorder.poll_timeout(), Some((Instant::from_millis(50), "stream hold")));
    bed.at(49);
    assert_eq!(bed.took(), [1]);
    bed.at(50);
    assert_eq!(bed.took(), [2]);
    assert_eq!(bed.reorder.stats().by_timeout, 1);
    assert_eq!(bed.reorder.stats().max_hold_ns, 50_000_000);
    assert!(bed.reorder.poll_timeout().is_none());
}

#[test]
fn several_epochs_wait_and_their_own_marks_count() {
    let mut bed = TestBed::settled(1, PoolConfig::default());
    bed.get(1, 10);
    bed.get(3, 30);
    bed.get(2, 20);
    bed.mark(2);
    bed.mark(3);
    assert_eq!(bed.took(), [10]);
    bed.get(1, 11);
    bed.mark(1);
    assert_eq!(bed.took(), [11, 20, 30]);
    assert_eq!(bed.get(4, 40), StreamOutcome::Passed);
    assert_eq!(bed.pool.queues_used(), 0);
}

#[test]
fn a_switch_after_a_failure_is_not_held_and_releases_all_packets() {
    let mut bed = TestBed::settled(1, PoolConfig::default());
    bed.get(1, 1);
    bed.get(2, 2);
    assert_eq!(bed.data(StreamWord { stream: 1, epoch: 3, timeout_100us: 0 }, 3), StreamOutcome::Passed);
    assert_eq!(bed.took(), [1, 2, 3]);
    assert_eq!(bed.reorder.stats().by_failure, 1);
    assert_eq!(bed.get(2, 9), StreamOutcome::Late);
}

#[test]
fn no_queue_or_no_memory_passes_in_order() {
    for config in [
        PoolConfig { queues: 0, ..PoolConfig::default() },
        PoolConfig { bytes: 0, ..PoolConfig::default() },
        PoolConfig {
            stream: StreamLimits { bytes_per_queue: 10, ..StreamLimits::default() },
            ..PoolConfig::default()
        },
        PoolConfig { stream: StreamLimits { epochs: 0, ..StreamLimits::default() }, ..PoolConfig::default() },
    ] {
        let mut bed = TestBed::settled(1, config);
        bed.get(1, 1);
        assert_eq!(bed.get(2, 2), StreamOutcome::Unordered);
        assert_eq!(bed.get(2, 3), StreamOutcome::Passed);
        assert_eq!(bed.took(), [1, 2, 3]);
        assert_eq!((bed.pool.queues_used(), bed.pool.used_bytes()), (0, 0));
    }
    // The memory ends in the middle of a queue.
    let mut bed = TestBed::settled(1, PoolConfig { bytes: 1000, ..PoolConfig::default() });
    bed.get(1, 1);
    for number in 2..9 {
        bed.get(2, number);
    }
    assert_eq!(bed.took(), [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(bed.reorder.stats().unordered, 1);
}

#[test]
fn a_restarted_stream_is_adopted() {
    let mut bed = TestBed::settled(50, PoolConfig::default());
    bed.get(50, 1);
    assert_eq!(bed.get(0, 2), StreamOutcome::Late);
    bed.at(2000);
    assert_eq!(bed.get(0, 3), StreamOutcome::Passed);
    assert_eq!(bed.get(1, 4), StreamOutcome::Held);
    bed.reorder.close(&mut bed.pool);
    assert_eq!((bed.pool.queues_used(), bed.pool.used_bytes(), bed.reorder.depth()), (0, 0, 0));
    assert_eq!(size_of::<StreamReorder>(), 8);
}

#[test]
fn streams_do_not_wait_for_each_other() {
    let mut bed = TestBed::settled(1, PoolConfig::default());
    bed.get(1, 1);
    bed.get(2, 2);
    let other = StreamWord { stream: 0, epoch: 9, timeout_100us: 0 };
    assert_eq!(bed.data(other, 3), StreamOutcome::Passed);
    assert_eq!(bed.took(), [1, 3]);
}

#[test]
fn a_stream_first_met_in_a_switch_waits_once() {
    let mut bed = TestBed::new(PoolConfig::default());
    assert_eq!(bed.get(1, 2), StreamOutcome::Held);
    assert_eq!(bed.get(0, 1), StreamOutcome::Passed);
    bed.mark(0);
    assert_eq!(bed.took(), [1, 2]);
}

#[test]
fn the_sender_asks_for_admission() {
    let mut sender = StreamSender::new(3);
    assert_eq!(
        sender.switch(true, HOLD, 0),
        Switch::Unmarked,
        "nothing was sent, so there is nothing to order"
    );
    assert_eq!(sender.stamp(), StreamWord { stream: 3, epoch: 0, timeout_100us: 0 });
    assert_eq!(sender.switch(true, HOLD, 0), Switch::Stay);
    assert_eq!(sender.epoch, 0);
    let word = StreamWord { stream: 3, epoch: 0, timeout_100us: 500 };
    assert_eq!(sender.switch(true, HOLD, 1), Switch::Ordered(Marker { word }));
    // It switched again before anything was sent: the first EX path is still the one to wait for.
    assert_eq!(sender.switch(true, 2 * HOLD, 1), Switch::Unmarked);
    assert_eq!(sender.stamp(), StreamWord { stream: 3, epoch: 1, timeout_100us: 1000 });
    // A failed path is left at once, whatever the peer advertises.
    assert_eq!(sender.switch(false, HOLD, 0), Switch::Unmarked);
    assert_eq!(sender.stamp(), StreamWord { stream: 3, epoch: 2, timeout_100us: 0 });
    // A hold of zero is not encoded as the value for a failure.
    let Switch::Ordered(marker) = sender.switch(true, Duration::ZERO, 1) else { panic!("refused") };
    assert_eq!(marker.word.timeout_100us, 1);
}

#[test]
fn the_hold_timeout_covers_the_ex_paths_round_trip() {
    assert_eq!(hold_timeout(15_000, 2_000), Duration::from_millis(24));
    assert_eq!(hold_timeout(0, 0), Duration::from_millis(2));
    assert_eq!(hold_timeout(u32::MAX, u32::MAX), Duration::from_millis(500));
}

/// A stream over FIFO paths that switches now and then.
#[derive(Debug, Clone)]
struct Run {
    delay_ms: [u64; 2],
    /// Per packet: gap before it in 0.1 ms, and whether the sender switches before it.
    sends: Vec<(u64, bool)>,
    marks_lost: bool,
    failures: bool,
}

fn run(marks_lost: bool, failures: bool) -> impl Strategy<Value = Run> {
    let send = (0..20_u64, prop::bool::weighted(0.05));
    (prop::array::uniform2(1..40_u64), prop::collection::vec(send, 1..500))
        .prop_map(move |(delay_ms, sends)| Run { delay_ms, sends, marks_lost, failures })
}

enum Arriving {
    Data(u32),
    Mark,
}

impl Run {
    /// Sends everything, receives everything, runs out the timers.
    fn go(&self, bed: &mut TestBed) -> Vec<u32> {
        let slowest_us = 1000 * self.delay_ms.iter().max().copied().unwrap_or(0);
        let hold = hold_timeout(2 * slowest_us as u32, 0);
        let mut sender = StreamSender::new(1);
        let (mut path, mut sent_us, mut wire) = (0, 0, Vec::new());
        for (number, &(gap, switch)) in self.sends.iter().enumerate() {
            // The first packet has arrived before the first switch.
            sent_us += gap * 100 + if number == 1 { 50_000 } else { 0 };
            if switch {
                let arrives_us = sent_us + 1000 * self.delay_ms[path];
                match sender.switch(!self.failures, hold, bed.pool.available()) {
                    Switch::Stay => panic!("there are queues"),
                    Switch::Ordered(Marker { word }) if !self.marks_lost => {
                        wire.push((arrives_us, word, Arriving::Mark));
                        wire.push((arrives_us, word, Arriving::Mark));
                    }
                    Switch::Ordered(_) | Switch::Unmarked => {}
                }
                path = 1 - path;
            }
            let arrives_us = sent_us + 1000 * self.delay_ms[path];
            wire.push((arrives_us, sender.stamp(), Arriving::Data(number as u32)));
        }
        wire.sort_by_key(|(at, ..)| *at); // stable, and delays are constant: FIFO per path
        for (at_us, word, what) in wire {
            let at = Instant::from_micros(at_us);
            self.timers(bed, at);
            bed.now = at;
            match what {
                Arriving::Data(number) => {
                    bed.data(word, number);
                }
                Arriving::Mark => {
                    let TestBed { reorder, pool, out, now } = bed;
                    reorder.on_marker(word, *now, pool, out);
                }
            }
            assert!(bed.pool.resident_bytes() <= bed.pool.config().bytes);
        }
        self.timers(bed, Instant::MAX);
        assert!(Duration::from_nanos(bed.reorder.stats().max_hold_ns) <= hold);
        assert_eq!((bed.reorder.depth(), bed.pool.queues_used(), bed.pool.used_bytes()), (0, 0, 0));
        bed.took()
    }

    fn timers(&self, bed: &mut TestBed, until: Instant) {
        while let Some((at, _)) = bed.reorder.poll_timeout().filter(|(at, _)| *at <= until) {
            bed.now = bed.now.max(at);
            let TestBed { reorder, pool, out, now } = bed;
            reorder.on_timeout(*now, pool, out);
            assert!(reorder.poll_timeout().is_none_or(|(at, _)| at > *now), "would spin");
        }
    }
}

fn roomy() -> PoolConfig {
    PoolConfig { stream: StreamLimits { epochs: 127, ..StreamLimits::default() }, ..PoolConfig::default() }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn with_marks_packets_are_delivered_in_the_order_sent(run in run(false, false)) {
        let out = run.go(&mut TestBed::new(roomy()));
        prop_assert_eq!(out, (0..run.sends.len() as u32).collect::<Vec<_>>());
    }

    #[test]
    fn without_marks_all_packets_are_delivered_by_the_timeout(run in run(true, false)) {
        let mut bed = TestBed::new(roomy());
        let mut out = run.go(&mut bed);
        out.sort_unstable();
        prop_assert_eq!(out, (0..run.sends.len() as u32).collect::<Vec<_>>());
    }

    #[test]
    fn failures_hold_nothing(run in run(true, true)) {
        let mut bed = TestBed::new(roomy());
        let out = run.go(&mut bed);
        prop_assert_eq!(out.len(), run.sends.len());
        prop_assert_eq!(bed.reorder.stats().held, 0);
    }

    /// For any stream words and very little memory: no packet lost, no memory leaked, no busy loop.
    #[test]
    fn any_words_are_survived(
        words in prop::collection::vec((0..3_u8, 0..20_u8, any::<u8>(), 0..300_u16, 0..40_u64), 1..500),
        bytes in 0..4000_usize,
        queues in 0..3_u16,
    ) {
        let mut bed = TestBed::new(PoolConfig { bytes, queues, ..PoolConfig::default() });
        let mut epochs = [0_u8; 3];
        let mut given = 0;
        for (stream, what, random, timeout_100us, ms) in words {
            bed.at(bed.now.as_millis() + ms / 8);
            let epoch = &mut epochs[usize::from(stream)];
            *epoch = match what {
                0 => random,
                1..=3 => epoch.wrapping_add(random % 5),
                4 => epoch.wrapping_sub(random % 3),
                _ => *epoch,
            };
            let word = StreamWord { stream, epoch: *epoch, timeout_100us };
            if what % 5 == 0 {
                let TestBed { reorder, pool, out, now } = &mut bed;
                reorder.on_marker(word, *now, pool, out);
            } else {
                given += 1;
                bed.data(word, 0);
            }
            prop_assert_eq!(bed.out.0.len() + bed.reorder.depth(), given);
            prop_assert!(bed.pool.resident_bytes() <= bytes && bed.pool.queues_used() <= queues);
        }
        bed.at(bed.now.as_millis() + 1000);
        prop_assert_eq!((bed.out.0.len(), bed.pool.queues_used(), bed.pool.used_bytes()), (given, 0, 0));
    }
}
