//! Capacity of idle paths, measured by trains of packets.
//!
//! A path that was never full has no known capacity ([`load`](super::load)), so a slow near access could not be
//! distinguished from a fast far one before it carries traffic. The packets of a train are sent back to back.
//! The far end acknowledges each with its time of arrival; the packets after the first arrived at the rate of
//! the bottleneck:
//!
//! ```text
//!   rate  =  bytes that arrived after the first packet / (time of the last − time of the first)
//! ```
//!
//! Receivers process packets in batches, and radios send them in batches. A train that arrives within [`EXACT`]
//! therefore gives only a lower bound, and one of four times its length follows at once. If it arrives within
//! [`GOOD`], the next one is longer. The first trains are sent when the path comes up. Each further one waits
//! until the session has sent [`PARTS`] times its bytes of user data for each of its paths, and the path is
//! nearly idle. Packets of trains are in no counter of the path: they are neither data nor loss.
//!
//! The far end keeps no state. Its answers count only for packets of the train that was sent, and affect only
//! its own session.

use crate::token_bucket::TokenBucket;
use anabranch_element::time::{Duration, Instant};
use anabranch_wire::control::{CapacityAck, CapacityProbe};

/// Bytes of a train; the length increases from one stage to the next.
const TRAIN_BYTES: [u32; 3] = [11_200, 44_800, 179_200];
/// Least number of packets after the first: the first value for a result after which the schedule advances,
/// whatever the time between them, and the second for one if the time is [`EXACT`] or more, and for a lower bound
/// otherwise. A queue of a few packets passes no more.
const ENOUGH: (u16, u16) = (8, 3);
/// Time between first and last packet that makes a rate correct within about ten percent ([`EXACT`]), and with
/// margin ([`GOOD`]).
const EXACT: Duration = Duration::from_millis(1);
const GOOD: Duration = Duration::from_millis(5);
/// A measurement is repeated after this time, if there is traffic.
const FRESH: Duration = Duration::from_secs(60);
/// A train ends this time after it was sent.
const ANSWERED: Duration = Duration::from_secs(2);
/// Pause after a train without an answer: the first one, which doubles up to the second.
const UNANSWERED: (Duration, Duration) = (Duration::from_secs(4), Duration::from_secs(600));
/// Bytes of user data required per byte of a train.
const PARTS: u64 = 50;
/// A path that carries less than this is idle enough for a measurement, bytes per second.
const IDLE_BYTES: u64 = 62_500;
/// Shortest time over which this rate is measured.
const IDLE_TIME: Duration = Duration::from_millis(250);

/// Limit of the trains of all sessions of a tunnel end: 1 MB at once and 20 Mbit/s, so that many sessions that
/// begin at the same time do not fill a link.
pub type TrainBudget = TokenBucket<1_000_000, 2_500_000>;

/// The result of a train.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Bit/s of UDP payload.
    pub bps: u64,
    /// Whether it is correct within about ten percent; otherwise it is a lower bound.
    pub exact: bool,
    /// Whether it is a lower bound by less than eight packets after the first: of a path with a queue of a few
    /// packets, or of the beginning of a train.
    pub few: bool,
}

/// Schedule and results of the trains on one path.
#[derive(Debug, Clone)]
pub struct Trains {
    /// Number of the newest train; its packets, those sent so far, and the size of each follow.
    train: u16,
    packets: u16,
    sent: u16,
    size: u16,
    /// Index into [`TRAIN_BYTES`] of the next train.
    stage: u8,
    /// Answers to the newest train: arrival of its first packet (peer's clock), time from there to the latest
    /// one, number of packets after the first, and the least index that may still arrive.
    first_ns: u64,
    span_ns: u64,
    after_first: u16,
    next_index: u16,
    left_at: Instant,
    due_at: Instant,
    pause: Duration,
    /// User data that the session had sent when the newest train left; `None`: to be noted at the next call.
    paid: Option<u64>,
    /// Bytes of the path's user data, and the time of that count.
    idle_from: (u64, Instant),
    /// Almost nothing is known of the path: the next train is sent whatever the path carries, and needs no user
    /// data.
    free: bool,
}

impl Default for Trains {
    fn default() -> Self {
        Self {
            train: 0,
            packets: 0,
            sent: 0,
            size: 0,
            stage: 0,
            first_ns: 0,
            span_ns: 0,
            after_first: 0,
            next_index: 0,
            left_at: Instant::ZERO,
            due_at: Instant::ZERO,
            pause: UNANSWERED.0,
            paid: None,
            idle_from: (0, Instant::ZERO),
            free: true,
        }
    }
}

impl Trains {
    /// For a path on which trains were sent before a rest.
    #[must_use]
    pub fn after_rest(now: Instant) -> Self {
        Self { due_at: now + FRESH, free: false, ..Self::default() }
    }

    /// Whether any train has been sent.
    #[must_use]
    pub const fn has_asked(&self) -> bool {
        self.train > 0 || !self.free
    }

    /// The path was down, and may have another route when it is up again.
    pub fn interrupted(&mut self) {
        self.packets = self.sent;
        (self.free, self.stage, self.due_at) = (true, 0, self.due_at.min(self.left_at + UNANSWERED.0));
    }

    /// Begins a train if one is due. `path_bytes` and `session_bytes`: user data sent so far by this path, and
    /// by the session; `paths`: number of paths used by the session.
    pub fn begin(
        &mut self,
        size: u16,
        path_bytes: u64,
        session_bytes: u64,
        paths: usize,
        budget: &mut TrainBudget,
        now: Instant,
    ) {
        if !self.is_due(now) || size < CapacityProbe::MIN {
            return;
        }
        let bytes = TRAIN_BYTES[usize::from(self.stage)];
        let paid = *self.paid.get_or_insert(session_bytes);
        if !self.free {
            let (before, since) = self.idle_from;
            let time = now.saturating_since(since);
            if time < IDLE_TIME {
                return;
            }
            self.idle_from = (path_bytes, now);
            let carried = u128::from(path_bytes.saturating_sub(before)) * 1000;
            let is_idle = carried <= u128::from(IDLE_BYTES) * time.as_millis();
            // Data sent while there were more or fewer paths counts unchanged.
            let is_paid =
                session_bytes.saturating_sub(paid) >= u64::from(bytes) * PARTS * paths.max(1) as u64;
            // Two calls in a row: the first one after a pause covers the whole pause.
            if !is_idle || !is_paid || time > 4 * IDLE_TIME {
                return;
            }
        }
        let packets = u16::try_from(bytes / u32::from(size)).unwrap_or(u16::MAX).max(ENOUGH.0 + 1);
        if !budget.take(u64::from(packets) * u64::from(size), now) {
            return;
        }
        self.train = self.train.wrapping_add(1).max(1);
        (self.packets, self.sent, self.size) = (packets, 0, size);
        (self.first_ns, self.span_ns, self.after_first, self.next_index) = (0, 0, 0, 0);
        (self.left_at, self.paid) = (now, Some(session_bytes));
        // Until an answer arrives.
        self.due_at = now + self.pause;
        self.pause = (self.pause * 2).min(UNANSWERED.1);
    }

    /// Whether the next train may be sent, once enough user data has been sent.
    #[must_use]
    pub fn is_due(&self, now: Instant) -> bool {
        now >= self.due_at && self.sent == self.packets
    }

    /// The next packet of the current train.
    pub fn poll(&mut self) -> Option<CapacityProbe> {
        let index = self.sent;
        (index < self.packets).then(|| {
            self.sent += 1;
            CapacityProbe { size: self.size, train: self.train, index }
        })
    }

    /// There was no room for the last packet returned: the train ends before it.
    pub fn cut(&mut self) {
        self.sent = self.sent.saturating_sub(1);
        self.packets = self.sent;
    }

    /// A packet has arrived. Returns the rate by all answers so far.
    pub fn acknowledged(&mut self, ack: &CapacityAck, now: Instant) -> Option<Rate> {
        let fits = ack.train == self.train && (self.next_index..self.sent).contains(&ack.index);
        if !fits || now.saturating_since(self.left_at) > ANSWERED {
            return None;
        }
        let first = self.next_index == 0;
        self.next_index = ack.index + 1;
        if first {
            self.first_ns = ack.timestamp_ns;
            return None;
        }
        self.after_first += 1;
        self.span_ns = self.span_ns.max(ack.timestamp_ns.saturating_sub(self.first_ns));
        let lasts = |time: Duration| u128::from(self.span_ns) >= time.as_nanos();
        let exact = lasts(EXACT);
        if self.after_first < ENOUGH.1 {
            return None;
        }
        let bits = u64::from(self.after_first) * u64::from(self.size) * 8;
        let bps = bits.saturating_mul(1_000_000_000) / self.span_ns.max(EXACT.as_nanos() as u64);
        if !exact && self.after_first < ENOUGH.0 {
            return Some(Rate { bps, exact, few: true });
        }
        self.pause = UNANSWERED.0;
        let last = TRAIN_BYTES.len() as u8 - 1;
        if lasts(GOOD) || self.stage == last {
            // The next train has the length that is needed.
            let needed = bps / 8 * GOOD.as_millis() as u64 / 1000;
            let stage = TRAIN_BYTES.iter().position(|bytes| u64::from(*bytes) >= needed);
            self.stage = stage.map_or(last, |stage| stage as u8);
            (self.due_at, self.free) = (self.left_at + FRESH, false);
        } else {
            let complete = self.next_index == self.packets;
            self.stage += u8::from(complete);
            // A short queue drops the end of a train; the part that passed is used.
            (self.due_at, self.free) = match (complete, exact) {
                (true, exact) => (now, !exact),
                (false, true) => (self.left_at + FRESH, false),
                (false, false) => (self.due_at, self.free),
            };
        }
        Some(Rate { bps, exact, few: false })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SIZE: u16 = 1_400;

    /// Sends the due train over a path with a rate and a queue (bytes), to a receiver that processes packets
    /// every `batch_us`. Returns the result.
    fn train(
        trains: &mut Trains,
        rate_bps: u64,
        queue: u64,
        batch_us: u64,
        (sent, paths): (u64, usize),
        now: Instant,
    ) -> (u16, Option<Rate>) {
        trains.begin(SIZE, 0, sent, paths, &mut TrainBudget::default(), now);
        let (mut passed, mut told, mut packets) = (0, None, 0);
        let gap_ns = u64::from(SIZE) * 8_000_000_000 / rate_bps;
        while let Some(probe) = trains.poll() {
            packets += 1;
            if passed * u64::from(SIZE) > queue {
                continue;
            }
            passed += 1;
            let at_ns = (1 << 50) + passed * gap_ns;
            let timestamp_ns = if batch_us == 0 { at_ns } else { at_ns.next_multiple_of(batch_us * 1000) };
            let ack = CapacityAck { train: probe.train, index: probe.index, timestamp_ns };
            told = trains.acknowledged(&ack, now + Duration::from_millis(50)).or(told);
        }
        (packets, told)
    }

    proptest! {
        /// For any rate up to 500 Mbit/s, and a receiver that processes packets every half millisecond: results
        /// marked as exact are correct within a fifth, and there is such a result after the trains that traffic
        /// allows, if the queue holds a millisecond of the rate.
        #[test]
        fn trains_measure_the_capacity_of_a_path(
            kbps in 500_u64..500_000,
            queue in prop_oneof![0_u64..64_000, 0_u64..1_000_000],
            batch_us in prop_oneof![Just(0), 0_u64..500],
        ) {
            let mut trains = Trains::default();
            let (mut now, mut sent, mut told) = (Instant::from_secs(1), 0, None);
            // A queue of a few packets passes too few of them to distinguish them from a batch.
            let queue = if batch_us == 0 { queue } else { queue.max(kbps * 5 / 8 + 13 * 1_400) };
            for _ in 0..200 {
                let (packets, rate) = train(&mut trains, kbps * 1000, queue, batch_us, (sent, 1), now);
                prop_assert!(packets <= 256);
                told = rate.or(told);
                (now, sent) = (now + Duration::from_millis(300), sent + 1_000_000);
            }
            let told = told.filter(|told| told.exact).map(|told| told.bps);
            prop_assert!(told.is_some() || queue < kbps / 8 + 4 * 1_400, "nothing told");
            let off = told.map(|told| told.abs_diff(kbps * 1000));
            prop_assert!(off.is_none_or(|off| off * 5 <= kbps * 1000), "{} kbit/s, told {:?}", kbps, told);
        }

        /// Arbitrary acknowledgements have no harmful effect, and those of a train that was not sent give no
        /// result.
        #[test]
        fn a_lying_peer_has_no_harmful_effect(acks in prop::collection::vec((any::<u16>(), any::<u16>(), any::<u64>()), 1..50)) {
            let mut trains = Trains::default();
            let now = Instant::from_secs(1);
            for (train, index, timestamp_ns) in acks.iter().copied() {
                let ack = CapacityAck { train, index, timestamp_ns };
                prop_assert_eq!(trains.acknowledged(&ack, now), None);
            }
            trains.begin(SIZE, 0, 0, 1, &mut TrainBudget::default(), now);
            while trains.poll().is_some() {}
            for (train, index, timestamp_ns) in acks {
                let ack = CapacityAck { train: train % 2, index: index % 20, timestamp_ns };
                trains.acknowledged(&ack, now);
            }
            trains.begin(SIZE, 0, u64::MAX, 1, &mut TrainBudget::default(), now + Duration::from_secs(3600));
        }
    }

    /// The queue drops the end of the train, and less than a millisecond of it passes.
    #[test]
    fn a_queue_of_a_few_packets_gives_a_lower_bound() {
        for (mbps, packets, expected_mbps) in
            [(69, 4, Some(44.8)), (69, 3, Some(33.6)), (400, 5, Some(56.0)), (69, 2, None)]
        {
            let mut trains = Trains::default();
            let now = Instant::from_secs(1);
            let queue = packets * u64::from(SIZE);
            let (_, told) = train(&mut trains, mbps * 1_000_000, queue, 0, (0, 1), now);
            let bound = told.map(|told| (told.bps as f64 / 1e6, told.few));
            assert_eq!(bound, expected_mbps.map(|mbps| (mbps, true)), "{mbps} Mbit/s, {packets} packets");
            // The pauses are those of trains without an answer.
            let pauses = [4, 8, 16].map(Duration::from_secs);
            let mut at = now;
            for pause in pauses {
                assert!(!trains.is_due(at + pause - Duration::from_millis(1)) && trains.is_due(at + pause));
                at += pause;
                train(&mut trains, mbps * 1_000_000, queue, 0, (0, 1), at);
            }
        }
    }

    #[test]
    fn trains_are_free_until_there_is_a_rate_and_then_require_user_data() {
        for (mbps, packets) in
            [(5, &[9, 9][..]), (50, &[9, 32, 32]), (95, &[9, 32, 128, 128]), (400, &[9, 32, 128, 128])]
        {
            let mut trains = Trains::default();
            let (mut now, mut bytes) = (Instant::from_secs(1), 0);
            let mut sent = Vec::new();
            // 70 MB in 70 s over another path.
            for _ in 0..280 {
                let (packets, told) = train(&mut trains, mbps * 1_000_000, 1 << 20, 0, (bytes, 1), now);
                if packets > 0 {
                    sent.push((bytes, packets, told.unwrap().exact));
                }
                (now, bytes) = (now + Duration::from_millis(250), bytes + 250_000);
            }
            assert_eq!(
                sent.iter().map(|(_, packets, _)| *packets).collect::<Vec<_>>(),
                packets,
                "{mbps}: {sent:?}"
            );
            let told = sent.iter().position(|(_, _, exact)| *exact).unwrap();
            let padding: u64 =
                sent[told + 1..].iter().map(|(_, packets, _)| u64::from(*packets) * 1_400).sum();
            assert!(padding * 50 <= bytes && sent[told].0 <= 500_000, "{mbps}: {sent:?}");
        }
    }

    #[test]
    fn paths_in_use_are_not_measured_and_silent_peers_ever_more_rarely() {
        let mut trains = Trains::default();
        let mut now = Instant::from_secs(1);
        train(&mut trains, 5_000_000, 1 << 20, 0, (0, 1), now);
        let (mut packets, mut bytes) = (0, 0);
        for _ in 0..3600 * 4 {
            trains.begin(SIZE, bytes, bytes * 10, 1, &mut TrainBudget::default(), now);
            while trains.poll().is_some() {
                packets += 1;
            }
            (now, bytes) = (now + Duration::from_millis(250), bytes + 100_000);
        }
        assert_eq!(packets, 0, "3.2 Mbit/s on it");
        let mut trains = Trains::default();
        for i in 0..3600 * 4 {
            trains.begin(SIZE, 0, i * 1_000_000, 1, &mut TrainBudget::default(), now);
            while trains.poll().is_some() {
                packets += 1;
            }
            now += Duration::from_millis(250);
        }
        assert!((9 * 9..=14 * 9).contains(&packets), "in an hour: {packets}");
    }

    #[test]
    fn after_a_rest_a_train_requires_user_data_and_after_an_outage_one_is_sent_soon() {
        let begin = |trains: &mut Trains, sent, now| {
            trains.begin(SIZE, 0, sent, 1, &mut TrainBudget::default(), now);
            core::iter::from_fn(|| trains.poll()).count()
        };
        let now = Instant::from_secs(100);
        let mut trains = Trains::after_rest(now);
        assert!(trains.has_asked());
        // The session sent a gigabyte before.
        for ms in (0..90_000).step_by(250) {
            assert_eq!(begin(&mut trains, 1 << 30, now + Duration::from_millis(ms)), 0);
        }
        trains.interrupted();
        assert_eq!(begin(&mut trains, 1 << 30, now + Duration::from_secs(91)), 9);
        trains.interrupted();
        assert_eq!(begin(&mut trains, 1 << 30, now + Duration::from_secs(92)), 0, "a flapping path");
        assert_eq!(begin(&mut trains, 1 << 30, now + Duration::from_secs(96)), 9);
    }

    #[test]
    fn each_path_requires_its_part_of_the_data_sent_while_it_is_up() {
        for (before, after) in [(1, 2), (1, 8), (2, 1), (8, 1), (3, 3)] {
            let mut trains = Trains::default();
            let (mut now, mut bytes) = (Instant::from_secs(1), 0);
            let mut pass = |trains: &mut Trains, paths: usize, more: u64| {
                // Calls during 70 s, each followed by the due train and its answers.
                (0..280)
                    .map(|_| {
                        (now, bytes) = (now + Duration::from_millis(250), bytes + more / 280);
                        u64::from(train(trains, 400_000_000, 1 << 20, 0, (bytes, paths), now).0)
                    })
                    .sum::<u64>()
            };
            assert!(pass(&mut trains, before, 1 << 30) > 0);
            pass(&mut trains, after, 0);
            // The user data required for the longest train.
            let price = u64::from(TRAIN_BYTES[2]) * PARTS * after as u64;
            assert!(pass(&mut trains, after, price * 6 / 5) > 0, "{before} {after}");
            assert_eq!(pass(&mut trains, after, price / 2), 0, "{before} {after}");
        }
    }

    #[test]
    fn many_sessions_at_once_share_a_budget() {
        let mut budget = TrainBudget::default();
        let (mut now, mut packets) = (Instant::from_secs(1), 0);
        let mut all = vec![Trains::default(); 1_000];
        for _ in 0..100 {
            for trains in &mut all {
                trains.begin(SIZE, 0, 0, 1, &mut budget, now);
                while trains.poll().is_some() {
                    packets += 1;
                }
            }
            assert!(packets * 1_400 <= 1_000_000 + 2_500 * (now.as_millis() - 1_000), "{packets} at {now:?}");
            now += Duration::from_millis(100);
        }
        assert!(all.iter().all(Trains::has_asked));
    }

    #[test]
    fn a_train_without_room_ends_there() {
        let mut trains = Trains::default();
        trains.begin(SIZE, 0, 0, 1, &mut TrainBudget::default(), Instant::from_secs(1));
        assert!(trains.poll().is_some() && trains.poll().is_some());
        trains.cut();
        assert!(trains.poll().is_none());
        let ack = |index| CapacityAck { train: 1, index, timestamp_ns: 1 };
        assert_eq!(trains.acknowledged(&ack(1), Instant::from_secs(1)), None);
        assert_eq!(trains.next_index, 0, "the packet without room was not sent");
    }
}
