//! Path model: queue, capacity and drop level of a path in the sending direction, the basis of autonomous
//! steering (docs/atsss-steering.md, "Path model").
//!
//! A probe passes the same queue as data. From the departure of a probe by our clock and its arrival by the
//! peer's, the *forward delay* is known except for the offset of the clocks, which is the same on all paths of
//! a session:
//!
//! ```text
//!   forward     =  peer's timestamp − echo                 (µs, offset included)
//!   base        =  least forward delay of the last 30 to 60 s
//!   queue       =  forward − base, at most round trip − least round trip of that time; at the time the probe left
//!   capacity =  bytes received / time, by the peer's counters and clock, between two probes. It is a sample if the
//!               second probe met a queue longer than that time, because the path was then full throughout. It is also
//!               a sample if both met a queue; but the queue may have been empty in between, so a lower rate has a
//!               tenth of the weight. Before the first such sample, or a queue met by six probes in a row, it is the
//!               highest rate seen, and not used as a capacity.
//! ```
//!
//! Clocks that drift apart by 50 ppm differ by 3 ms after a minute, which looks like a queue. The round trip is
//! measured with a single clock: it grows with the queue, but not with the drift.
//!
//! The capacity of an idle path is estimated by trains of packets ([`trains`](super::trains)). Where paths are
//! compared, the newer of estimate and capacity is used.
//!
//! Between probes, a model continues the backlog, in bits: it grows with each packet sent and is drained by the
//! capacity. Each answered probe gives the backlog at its departure; three quarters of the difference to the
//! model at that time are corrected at once.
//!
//! *Loss.* Packets missing between two probes that met almost no queue were lost without congestion: they count
//! as wild loss. Packets missing next to a queue show at which queue the path drops (drop level). One or two
//! missing packets count only if the next probe does not find them, because a probe may overtake packets.

use super::loss::Losses;
use super::trains::Rate;
use crate::LoadView;
use anabranch_element::time::{Duration, Instant};
use anabranch_wire::control::{PathCounters, Probe};

/// Period of the minimum filter: the base is the least forward delay of the last one or two periods.
const BASE_WINDOW: Duration = Duration::from_secs(30);
/// Number of probes whose departure is remembered. A probe younger than [`SENT_PROBE_MIN_AGE`] is not overwritten, so with a
/// long round trip not every probe is remembered.
const SENT_PROBES: usize = 16;
const SENT_PROBE_MIN_AGE: Duration = Duration::from_secs(2);
/// Shortest time over which a rate is measured, in nanoseconds of the peer's clock.
const RATE_NS: u64 = 10_000_000;
/// A rate over the time `t` has the weight `t / (t + 100 ms)`; a lower one has less if the queue may have been
/// empty in between ([`LOWER_RATE_MEMORY_NS`]).
const RATE_MEMORY_NS: u64 = 100_000_000;
/// Number of consecutive intervals with a queue before and after from which on the path counts as full.
const BUSY_IN_A_ROW: u8 = 5;
const LOWER_RATE_MEMORY_NS: u64 = 1_000_000_000;
/// Assumed capacity before anything was received.
const FIRST_RATE_BPS: u64 = 10_000_000;
/// A queue up to this, plus the time of two full packets, counts as none.
const NO_QUEUE_US: u32 = 1_000;
const TWO_PACKETS_BITS: u64 = 24_000;
/// A larger step of the counters indicates a restarted peer.
const MAX_STEP: u32 = 1 << 24;
/// A capacity measured by traffic is not replaced by the result of a train for this time.
const TRUSTED: Duration = Duration::from_secs(600);
/// More missing packets than this were not overtaken by a probe: they are lost.
const MOST_OVERTAKEN: i32 = 2;
/// Largest plausible queue: 10 s.
const MAX_QUEUE_US: u32 = 10_000_000;

#[derive(Debug, Clone, Copy, Default)]
struct SentProbe {
    id: u32,
    tx_packets: u32,
    backlog_bits: u64,
    at: Instant,
    used: bool,
}

/// The newest probe with complete information.
#[derive(Debug, Clone, Copy)]
struct ProbeSample {
    at_ns: u64,
    rx_bytes: u32,
    queue_us: u32,
    tx_packets: u32,
    rx_packets: u32,
}

/// The meaning of `capacity_bps`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CapacityKind {
    /// The highest rate so far; no probe has met a queue.
    HighestRate,
    /// The highest rate so far; a probe has met a queue.
    LowerBound,
    /// A measured capacity.
    Measured,
}

/// Path model of one path in the sending direction.
#[derive(Debug, Clone)]
pub struct Load {
    /// Least forward delay of the current period and of the previous one; `i64::MAX`: none.
    base_us: [i64; 2],
    /// The same for the round trip.
    base_rtt_us: [u32; 2],
    window_from: Instant,
    queue_us: u32,
    /// Drop level: the queue at which packets were dropped, and the capacity at that time (0: unknown).
    dropped: (u32, u64),
    /// A few packets missing at the newest probe, and its queue: an overflow, unless the next probe finds them.
    missing: (i32, u32),
    capacity_bps: u64,
    capacity_kind: CapacityKind,
    /// The newer of the capacity and the result of a train; 0: neither.
    estimate_bps: u64,
    /// Whether the estimate is correct within about ten percent; otherwise it is a lower bound.
    exact: bool,
    /// Whether a train has had a result.
    trained: bool,
    /// Smoothed recent rate of reception, which never exceeds the capacity.
    received_bps: u64,
    /// When the capacity was last measured by traffic.
    full_at: Instant,
    /// Number of consecutive intervals with a queue before and after.
    busy: u8,
    losses: Losses,
    backlog_bits: u64,
    backlog_at: Instant,
    sent_probes: [SentProbe; SENT_PROBES],
    next_sent_probe: usize,
    last_sample: Option<ProbeSample>,
}

impl Default for Load {
    fn default() -> Self {
        Self {
            base_us: [i64::MAX; 2],
            base_rtt_us: [u32::MAX; 2],
            window_from: Instant::ZERO,
            queue_us: 0,
            dropped: (u32::MAX, 0),
            missing: (0, 0),
            capacity_bps: 0,
            capacity_kind: CapacityKind::HighestRate,
            estimate_bps: 0,
            exact: false,
            trained: false,
            received_bps: 0,
            full_at: Instant::ZERO,
            busy: 0,
            losses: Losses::default(),
            backlog_bits: 0,
            backlog_at: Instant::ZERO,
            sent_probes: [SentProbe::default(); SENT_PROBES],
            next_sent_probe: 0,
            last_sample: None,
        }
    }
}

impl Load {
    /// A packet of `bytes` is sent on the path.
    #[inline]
    pub fn on_sent(&mut self, bytes: usize, now: Instant) {
        // Packets dropped by the path do not wait in its queue.
        let most_us = u64::from(self.drop_us().min(MAX_QUEUE_US)) * 2;
        let most = (self.drain_bps() / 1000).saturating_mul(most_us) / 1000;
        self.backlog_bits = (self.backlog_now(now) + bytes as u64 * 8).min(most);
        self.backlog_at = now;
    }

    /// A probe with this id is sent; it is counted in `counters`.
    pub fn departs(&mut self, id: u32, counters: &PathCounters, now: Instant) {
        let oldest = self.sent_probes[self.next_sent_probe];
        if oldest.used && now.saturating_since(oldest.at) < SENT_PROBE_MIN_AGE {
            return;
        }
        let backlog_bits = self.backlog_now(now);
        let sent =
            SentProbe { id, tx_packets: counters.tx_packets as u32, backlog_bits, at: now, used: true };
        self.sent_probes[self.next_sent_probe] = sent;
        self.next_sent_probe = (self.next_sent_probe + 1) % SENT_PROBES;
    }

    /// The far end answered one of our probes.
    pub fn answered(&mut self, msg: &Probe, now: Instant) {
        let forward_us = msg.timestamp_ns.wrapping_sub(msg.echo_ns).cast_signed() / 1000;
        let rtt = now.saturating_since(Instant::from_nanos(msg.echo_ns));
        self.queue_us = self.queue_of(forward_us, u32::try_from(rtt.as_micros()).unwrap_or(u32::MAX), now);
        let sent = self.sent_probes.iter().find(|sent| sent.used && sent.id == msg.id).copied();
        // Answers to earlier probes are lost, or contain less information.
        for sent in self.sent_probes.iter_mut().filter(|sent| msg.id.wrapping_sub(sent.id).cast_signed() >= 0)
        {
            sent.used = false;
        }
        let Some(SentProbe { tx_packets, backlog_bits: modelled, .. }) = sent else { return };
        let sample = ProbeSample {
            at_ns: msg.timestamp_ns,
            rx_bytes: msg.counters.rx_bytes as u32,
            queue_us: self.queue_us,
            tx_packets,
            rx_packets: msg.counters.rx_packets as u32,
        };
        let Some(last) = self.last_sample else {
            self.last_sample = Some(sample);
            return;
        };
        let elapsed_ns = sample.at_ns.wrapping_sub(last.at_ns);
        if elapsed_ns > 1 << 40 || sample.tx_packets.wrapping_sub(last.tx_packets) > MAX_STEP {
            // The clock or the counters have restarted.
            self.last_sample = Some(sample);
            return;
        }
        if elapsed_ns >= RATE_NS {
            self.measure(&last, &sample, elapsed_ns, now);
            self.last_sample = Some(sample);
        }
        self.correct(modelled, now);
    }

    /// The path was down: packets in flight are lost or late.
    pub fn interrupted(&mut self) {
        *self = Self {
            dropped: self.dropped,
            capacity_bps: self.capacity_bps,
            capacity_kind: self.capacity_kind,
            estimate_bps: self.estimate_bps,
            exact: self.exact,
            trained: self.trained,
            losses: self.losses.interrupted(),
            ..Self::default()
        };
    }

    /// The state of the model at `now`; `rtt_us`: the least round trip, 0 before the first one.
    #[must_use]
    pub fn view(&self, rtt_us: u32, now: Instant) -> LoadView {
        let modelled_us = self.backlog_now(now) * 1000 / (self.drain_bps() / 1000).max(1);
        let modelled_us = u32::try_from(modelled_us).unwrap_or(u32::MAX).min(MAX_QUEUE_US);
        // Lost packets do not wait in the queue. With an estimate only, the model would count them as a queue.
        let by_probes =
            self.capacity_kind == CapacityKind::HighestRate && (!self.exact || self.losses.has_lost());
        let queue_us = if by_probes { self.queue_us } else { modelled_us };
        LoadView {
            base_us: self.base_us().filter(|_| self.last_sample.is_some()),
            rtt_us,
            queue_us,
            modelled_us,
            drop_us: self.drop_us(),
            seen_bps: self.capacity_bps,
            capacity_bps: if self.capacity_kind == CapacityKind::Measured { self.capacity_bps } else { 0 },
            estimate_bps: self.estimate_bps,
            is_measured: self.trained,
            wild_ppm: self.losses.wild_ppm(),
            restored_ppm: 0,
        }
    }

    fn base_us(&self) -> Option<i64> {
        let [this, before] = self.base_us;
        Some(this.min(before)).filter(|base| *base != i64::MAX)
    }

    /// The rate at which the model drains the queue. Without any measurement, twice the highest rate seen.
    fn drain_bps(&self) -> u64 {
        match self.capacity_kind {
            CapacityKind::HighestRate | CapacityKind::LowerBound if self.exact => {
                self.estimate_bps.max(1_000)
            }
            CapacityKind::HighestRate => (2 * self.capacity_bps).max(FIRST_RATE_BPS),
            CapacityKind::LowerBound | CapacityKind::Measured => self.capacity_bps.max(1_000),
        }
    }

    fn backlog_now(&self, now: Instant) -> u64 {
        let ns = u128::from(anabranch_element::time::nanos(now.saturating_since(self.backlog_at)));
        let drained = u128::from(self.drain_bps()) * ns / 1_000_000_000;
        u64::try_from(u128::from(self.backlog_bits).saturating_sub(drained)).unwrap_or(0)
    }

    fn queue_of(&mut self, forward_us: i64, rtt_us: u32, now: Instant) -> u32 {
        if now.saturating_since(self.window_from) >= BASE_WINDOW {
            self.base_us = [i64::MAX, self.base_us[0]];
            self.base_rtt_us = [u32::MAX, self.base_rtt_us[0]];
            self.window_from = now;
        }
        self.base_us[0] = self.base_us[0].min(forward_us);
        self.base_rtt_us[0] = self.base_rtt_us[0].min(rtt_us);
        let queue = forward_us.saturating_sub(self.base_us().unwrap_or(forward_us));
        let [this, before] = self.base_rtt_us;
        let most_us = (rtt_us - this.min(before)).min(MAX_QUEUE_US);
        u32::try_from(queue.max(0)).unwrap_or(u32::MAX).min(most_us)
    }

    /// Evaluates the interval between two probes.
    fn measure(&mut self, last: &ProbeSample, sample: &ProbeSample, elapsed_ns: u64, now: Instant) {
        let bytes = u64::from(sample.rx_bytes.wrapping_sub(last.rx_bytes));
        let rate_bps = if bytes > 1 << 31 { 0 } else { bytes * 8_000_000_000 / elapsed_ns };
        let two_packets_us = (TWO_PACKETS_BITS * 1_000_000).checked_div(rate_bps).unwrap_or(0);
        let none_us = NO_QUEUE_US.saturating_add(u32::try_from(two_packets_us).unwrap_or(u32::MAX));
        self.received_bps = smoothed(self.received_bps, rate_bps, elapsed_ns, RATE_MEMORY_NS);
        let queues = [last, sample].map(|probe| probe.queue_us > none_us);
        if self.learn_capacity(rate_bps, elapsed_ns, sample.queue_us, queues) {
            (self.estimate_bps, self.exact, self.full_at) = (self.capacity_bps, true, now);
        } else if self.estimate_bps > 0 {
            self.estimate_bps = self.estimate_bps.max(self.received_bps);
        }
        let sent = sample.tx_packets.wrapping_sub(last.tx_packets);
        let got = sample.rx_packets.wrapping_sub(last.rx_packets);
        if got > MAX_STEP {
            return;
        }
        let queue_us = last.queue_us.max(sample.queue_us);
        let lost = i32::try_from(i64::from(sent) - i64::from(got)).unwrap_or(0);
        self.overflowed(lost);
        let drop_us = self.drop_us();
        let known = drop_us != u32::MAX;
        if queue_us > none_us && !self.losses.is_lossy() && !(known && queue_us < drop_us / 2) {
            if lost > MOST_OVERTAKEN {
                self.drops_at(queue_us);
            } else {
                self.missing = (lost, queue_us);
            }
            return;
        }
        self.losses.add(sent, lost, sample.at_ns);
    }

    /// `lost` packets are missing since the previous probe, or were found (negative). Packets that were missing
    /// there and were not found show the drop level.
    fn overflowed(&mut self, lost: i32) {
        let (missing, queue_us) = std::mem::take(&mut self.missing);
        if missing.saturating_add(lost.min(0)) > 0 {
            self.drops_at(queue_us);
        }
    }

    /// Packets were dropped next to a queue that a probe met.
    fn drops_at(&mut self, queue_us: u32) {
        let at_us = (queue_us - queue_us / 8).max(2 * NO_QUEUE_US);
        // Probes do not meet the queue at its maximum, so a level below the known one has little weight.
        let level_us = match self.drop_us() {
            u32::MAX => at_us,
            known => at_us.max(known - known / 8),
        };
        self.dropped =
            (level_us, if self.capacity_kind == CapacityKind::Measured { self.capacity_bps } else { 0 });
    }

    /// The drop level. A queue of a fixed number of bytes drains faster if the capacity has grown, so the level
    /// shrinks in proportion. If the capacity has fallen, the next drops correct the level.
    fn drop_us(&self) -> u32 {
        let (at_us, at_bps) = self.dropped;
        if at_us == u32::MAX
            || self.capacity_kind != CapacityKind::Measured
            || self.capacity_bps <= at_bps
            || at_bps == 0
        {
            return at_us;
        }
        let scaled_us = u64::from(at_us) * (at_bps / 1000) / (self.capacity_bps / 1000).max(1);
        (scaled_us as u32).max(2 * NO_QUEUE_US).min(at_us)
    }

    /// Evaluates a rate of delivery, the queue after it, and whether probes met a queue before and after.
    /// Returns whether this is a sample of the capacity.
    fn learn_capacity(
        &mut self,
        rate_bps: u64,
        elapsed_ns: u64,
        queue_us: u32,
        [before, after]: [bool; 2],
    ) -> bool {
        let full = u64::from(queue_us) * 1000 >= elapsed_ns;
        let busy = before && after;
        if self.capacity_kind != CapacityKind::Measured {
            self.capacity_bps = match full {
                // A single sample is short; a train, or the time before a rest, gives a better value.
                true if self.exact => smoothed(self.estimate_bps, rate_bps, elapsed_ns, RATE_MEMORY_NS),
                true => rate_bps,
                false => self.capacity_bps.max(rate_bps),
            };
            self.busy = if busy { self.busy.saturating_add(1) } else { 0 };
            if (full || self.busy >= BUSY_IN_A_ROW) && self.capacity_bps > 0 {
                self.capacity_kind = CapacityKind::Measured;
            } else if after {
                self.capacity_kind = CapacityKind::LowerBound;
            }
            return self.capacity_kind == CapacityKind::Measured;
        }
        let memory_ns = match rate_bps > self.capacity_bps {
            true => RATE_MEMORY_NS,
            false if full => RATE_MEMORY_NS,
            false if busy => LOWER_RATE_MEMORY_NS,
            false => return false,
        };
        self.capacity_bps = smoothed(self.capacity_bps, rate_bps, elapsed_ns, memory_ns).max(1);
        full || busy
    }

    /// Continues with an estimate from before a rest; `full`: it was measured by traffic.
    pub fn resume(&mut self, bps: u64, full: bool, now: Instant) {
        (self.estimate_bps, self.exact) = (bps, full);
        self.full_at = if full { now } else { Instant::ZERO };
    }

    /// The result of a train. A recent capacity measured by traffic is better. A lower bound by few packets can only
    /// raise the estimate, and the path does not count as measured: its queue may hold no more.
    pub fn measured(&mut self, rate: Rate, now: Instant) {
        self.trained |= !rate.few;
        if !self.is_full_known(now) && (!rate.few || rate.bps > self.estimate_bps) {
            (self.estimate_bps, self.exact) = (rate.bps, rate.exact);
        }
    }

    /// The estimate, and whether traffic measured it recently.
    #[must_use]
    pub fn estimate(&self, now: Instant) -> (u64, bool) {
        (self.estimate_bps, self.is_full_known(now))
    }

    fn is_full_known(&self, now: Instant) -> bool {
        self.full_at != Instant::ZERO && now.saturating_since(self.full_at) < TRUSTED
    }

    /// Lasting loss: the loss without congestion that half of the samples of the last two seconds had or
    /// exceeded, in hundredths of a percent.
    #[must_use]
    pub fn lasting_loss(&self) -> u16 {
        self.losses.lasting()
    }

    /// Wild loss: the mean loss without congestion, in parts per million.
    #[must_use]
    pub fn wild_ppm(&self) -> u32 {
        self.losses.wild_ppm()
    }

    /// Steady loss: the loss without congestion that half of the last short samples had or exceeded, in
    /// percent.
    #[must_use]
    pub fn steady_loss_percent(&self) -> u8 {
        self.losses.steady_percent()
    }

    /// Corrects the model, which had `modelled` bits when a probe left that met `queue_us`.
    fn correct(&mut self, modelled: u64, now: Instant) {
        let met = u64::from(self.queue_us) * (self.drain_bps() / 1000) / 1000;
        let backlog = self.backlog_now(now);
        let moved = |bits: u64| {
            if met >= modelled {
                bits.saturating_add((met - modelled) / 4 * 3)
            } else {
                bits.saturating_sub((modelled - met) / 4 * 3)
            }
        };
        self.backlog_bits = moved(backlog);
        self.backlog_at = now;
        for sent in self.sent_probes.iter_mut().filter(|sent| sent.used) {
            sent.backlog_bits = moved(sent.backlog_bits);
        }
    }
}

/// Adds a rate to a mean; its weight is its time relative to that time plus `memory_ns`.
fn smoothed(mean_bps: u64, rate_bps: u64, elapsed_ns: u64, memory_ns: u64) -> u64 {
    let sum = u128::from(mean_bps) * u128::from(memory_ns) + u128::from(rate_bps) * u128::from(elapsed_ns);
    u64::try_from(sum / u128::from(memory_ns + elapsed_ns)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_wire::control::ProbeKind;
    use proptest::prelude::*;

    #[test]
    fn a_lower_bound_by_few_packets_only_raises_the_estimate() {
        let (mut load, now) = (Load::default(), Instant::from_secs(1));
        for (mbps, few, expected_mbps, measured) in [
            (30, true, 30, false),
            (20, true, 30, false),
            (50, true, 50, false),
            (40, false, 40, true),
            (30, true, 40, true),
        ] {
            load.measured(Rate { bps: mbps * 1_000_000, exact: !few, few }, now);
            assert_eq!(load.estimate(now), (expected_mbps * 1_000_000, false));
            assert_eq!(load.view(0, now).is_measured, measured);
        }
    }

    /// A path with a rate, a delay and a queue, whose far end has a clock that differs by hours.
    struct SimulatedPath {
        load: Load,
        counters: PathCounters,
        rx: PathCounters,
        rate_bps: u64,
        queue_us: u64,
        delay_us: u64,
        /// When the queue becomes empty, µs.
        busy_until: u64,
        wild_every: u64,
        next_id: u32,
        /// Answers in flight: (arrival, probe).
        answers: std::collections::VecDeque<(u64, Probe)>,
        lost: u64,
        /// One in this many probes overtakes the packet before it.
        overtakes_every: Option<u32>,
        /// Clock drift of the far end, in parts per million.
        drift_ppm: i64,
    }

    const OFFSET_US: u64 = 7_200_000_000;

    impl SimulatedPath {
        fn new(rate_bps: u64, delay_us: u64, queue_us: u64) -> Self {
            Self {
                load: Load::default(),
                counters: PathCounters::default(),
                rx: PathCounters::default(),
                rate_bps,
                queue_us,
                delay_us,
                busy_until: 0,
                wild_every: u64::MAX,
                next_id: 0,
                answers: std::collections::VecDeque::new(),
                lost: 0,
                overtakes_every: None,
                drift_ppm: 0,
            }
        }

        /// Sends one packet; returns its arrival time, if it arrives.
        fn pass(&mut self, bytes: u64, now: u64) -> Option<u64> {
            self.counters.tx_packets += 1;
            let begins = self.busy_until.max(now);
            if begins - now > self.queue_us || self.counters.tx_packets.is_multiple_of(self.wild_every) {
                self.lost += 1;
                return None;
            }
            self.busy_until = begins + bytes * 8_000_000 / self.rate_bps;
            self.rx.rx_packets += 1;
            Some(self.busy_until + self.delay_us)
        }

        /// Sends at this rate for `for_ms` milliseconds, with a probe every 20 ms.
        fn run(&mut self, offered_bps: u64, from_ms: u64, for_ms: u64) {
            let gap_us = (1440 * 8_000_000 / offered_bps.max(1)).max(1);
            let (mut next_data, mut next_probe) = (from_ms * 1000, from_ms * 1000);
            let end = (from_ms + for_ms) * 1000;
            while next_data.min(next_probe) < end {
                let now = next_data.min(next_probe);
                while self.answers.front().is_some_and(|(at, _)| *at <= now) {
                    let (at, probe) = self.answers.pop_front().unwrap();
                    self.load.answered(&probe, Instant::from_micros(at));
                }
                if now == next_data {
                    // Not synchronised with the link: gaps of half to one and a half of the mean.
                    next_data += gap_us / 2 + self.counters.tx_packets * 7919 % gap_us.max(1) + gap_us % 2;
                    self.load.on_sent(1440, Instant::from_micros(now));
                    self.counters.tx_bytes += 1440;
                    if self.pass(1440, now).is_some() {
                        self.rx.rx_bytes += 1440;
                    }
                    continue;
                }
                let id = self.next_id;
                // Not synchronised with the data, because a full queue would then drop all probes or none.
                next_probe += 20_000 + u64::from(id * 7919 % 1009);
                self.next_id += 1;
                let mut counters = self.counters;
                counters.tx_packets += 1;
                self.load.departs(id, &counters, Instant::from_micros(now));
                let Some(arrives) = self.pass(128, now) else { continue };
                let drift_ns = arrives.cast_signed() * self.drift_ppm / 1000;
                let probe = Probe {
                    kind: ProbeKind::Reply,
                    id,
                    timestamp_ns: ((arrives + OFFSET_US) * 1000).saturating_add_signed(drift_ns),
                    echo_ns: now * 1000,
                    counters: PathCounters {
                        rx_packets: self.rx.rx_packets
                            - u64::from(self.overtakes_every.is_some_and(|every| id % every == 1)),
                        ..self.rx
                    },
                    reorder_available: 0,
                    lasting_loss: 0,
                    rtt_us: 0,
                };
                self.answers.push_back((arrives + self.delay_us, probe));
            }
        }

        fn view(&self, ms: u64) -> LoadView {
            self.load.view(0, Instant::from_millis(ms))
        }
    }

    #[test]
    fn an_overload_reveals_capacity_queue_and_drop_level() {
        let mut path = SimulatedPath::new(50_000_000, 10_000, 20_000);
        path.run(10_000_000, 0, 500);
        let view = path.view(500);
        assert_eq!((view.capacity_bps, view.drop_us), (0, u32::MAX), "never full: {view:?}");
        assert!(view.queue_us < 1_000 && view.base_us.is_some());
        path.run(60_000_000, 500, 1000);
        let view = path.view(1500);
        assert!((48_000_000..=52_000_000).contains(&view.capacity_bps), "{view:?}");
        assert!((15_000..=40_000).contains(&view.queue_us), "{view:?}");
        assert!((12_000..=20_000).contains(&view.drop_us), "{view:?}");
        assert_eq!((view.wild_ppm, path.load.steady_loss_percent()), (0, 0), "an overflow is no wild loss");
        assert_eq!(path.load.lasting_loss(), 0);
        path.run(10_000_000, 1500, 500);
        assert!(path.view(2000).queue_us < 2_000, "the queue has drained: {:?}", path.view(2000));
    }

    proptest! {
        /// The rate of a path changes by up to a factor of ten in either direction. Its queue is limited in
        /// bytes or in time.
        #[test]
        fn the_drop_level_follows_a_rate_that_steps(
            from_mbps in 5_u64..200,
            percent in 10_u64..1_000,
            queue_ms in 10_u64..60,
            is_of_bytes: bool,
            drift_ppm in -200_i64..200,
        ) {
            let to_mbps = (from_mbps * percent / 100).clamp(5, 200);
            let mut path = SimulatedPath::new(from_mbps * 1_000_000, 10_000, queue_ms * 1000);
            path.drift_ppm = drift_ppm;
            path.run(from_mbps * 1_200_000, 0, 2000);
            let after_us = if is_of_bytes { queue_ms * 1000 * from_mbps / to_mbps } else { queue_ms * 1000 };
            let packets = |mbps: u64, us: u64| mbps * us / (1440 * 8);
            prop_assume!((4_000..200_000).contains(&after_us));
            prop_assume!(packets(from_mbps, queue_ms * 1000).min(packets(to_mbps, after_us)) >= 16);
            // The queue is empty, so that the step does not leave more in it than fits.
            path.run(from_mbps * 100_000, 2000, 500);
            (path.rate_bps, path.queue_us) = (to_mbps * 1_000_000, after_us);
            path.run(to_mbps * 1_200_000, 2500, 3000);
            let view = path.view(5500);
            let level_us = u64::from(view.drop_us);
            prop_assert!((after_us / 2..=after_us * 5 / 4 + 2_000).contains(&level_us), "{after_us} {view:?}");
            prop_assert_eq!((view.wild_ppm, path.load.lasting_loss()), (0, 0));
        }
    }

    #[test]
    fn clock_drift_does_not_count_as_a_queue() {
        for drift_ppm in [-200, -60, -20, 20, 60, 200] {
            for (rate_mbps, delay_us) in [(500, 10_000), (150, 300_000)] {
                let mut path = SimulatedPath::new(rate_mbps * 1_000_000, delay_us, 20_000);
                path.drift_ppm = drift_ppm;
                for s in 0..12 {
                    path.run(100_000_000, s * 5_000, 5_000);
                    let view = path.view((s + 1) * 5_000);
                    assert_eq!((view.capacity_bps, view.drop_us), (0, u32::MAX), "{drift_ppm} ppm: {view:?}");
                    assert!(view.queue_us < 500, "{drift_ppm} ppm: {view:?}");
                }
                path.wild_every = 10;
                path.run(100_000_000, 60_000, 10_000);
                let (steady, lasting) = (path.load.steady_loss_percent(), path.load.lasting_loss());
                assert!(
                    (8..=12).contains(&steady) && (900..=1100).contains(&lasting),
                    "{drift_ppm} ppm: {steady} {lasting}"
                );
                assert_eq!(path.view(70_000).drop_us, u32::MAX, "{drift_ppm} ppm");
            }
        }
    }

    #[test]
    fn probes_that_overtake_packets_give_no_drop_level() {
        let mut path = SimulatedPath::new(50_000_000, 10_000, 1_000_000);
        path.overtakes_every = Some(3);
        path.run(60_000_000, 0, 500);
        let view = path.view(500);
        assert_eq!((path.lost, view.drop_us, view.wild_ppm), (0, u32::MAX, 0), "{view:?}");
        assert!(view.queue_us > 50_000, "{view:?}");
    }

    #[test]
    fn a_short_first_sample_does_not_replace_the_result_of_a_train() {
        let mut load = Load { estimate_bps: 100_000_000, exact: true, ..Load::default() };
        assert!(load.learn_capacity(50_000_000, 10_000_000, 20_000, [true, true]));
        assert_eq!(load.capacity_bps, 95_454_545);
        let mut load = Load::default();
        assert!(load.learn_capacity(50_000_000, 10_000_000, 20_000, [true, true]));
        assert_eq!(load.capacity_bps, 50_000_000);
    }

    #[test]
    fn loss_without_a_queue_is_wild_and_steady() {
        let mut path = SimulatedPath::new(50_000_000, 10_000, 20_000);
        path.wild_every = 5;
        path.run(20_000_000, 0, 2000);
        let view = path.view(2000);
        assert!((150_000..=250_000).contains(&view.wild_ppm), "{view:?}");
        assert!((15..=25).contains(&path.load.steady_loss_percent()));
        assert!((1500..=2500).contains(&path.load.lasting_loss()), "{}", path.load.lasting_loss());
        assert_eq!(view.drop_us, u32::MAX);
        // It is forgotten after the same number of samples.
        path.wild_every = u64::MAX;
        path.run(20_000_000, 2000, 2000);
        assert_eq!((path.view(4000).wild_ppm, path.load.steady_loss_percent()), (0, 0));
    }

    proptest! {
        /// For any rate, delay, queue and load: after two seconds of overload, the capacity is correct within a
        /// tenth, the modelled queue is neither far below the true one nor above twice of it, and no loss
        /// counts as wild.
        #[test]
        fn the_model_follows_the_path(
            rate_mbps in 2_u64..500, delay_us in 500_u64..300_000, queue_ms in 8_u64..200, over in 110_u64..200,
            drift_ppm in -200_i64..200, idle_s in 0_u64..60,
        ) {
            let rate = rate_mbps * 1_000_000;
            let queue_us = (queue_ms * 1000).max(30 * 1440 * 8_000_000 / rate);
            let mut path = SimulatedPath::new(rate, delay_us, queue_us);
            path.drift_ppm = drift_ppm;
            let from_ms = idle_s * 1000;
            path.run(200_000, 0, from_ms);
            path.run(rate * over / 100, from_ms, 4000);
            let view = path.view(from_ms + 4000);
            let off = view.capacity_bps.abs_diff(rate);
            prop_assert!(off * 10 <= rate, "{:?}", view);
            let queue = path.busy_until.saturating_sub(from_ms * 1000 + 4_000_000);
            let modelled = u64::from(view.queue_us);
            prop_assert!(modelled + 5_000 >= queue / 4 * 3 && modelled <= 2 * queue + 10_000, "{} {:?}", queue, view);
            prop_assert_eq!((view.wild_ppm, path.load.lasting_loss()), (0, 0));
        }

        /// Answers with arbitrary counters, time stamps and ids never cause a panic, and the results stay in
        /// range.
        #[test]
        fn a_lying_peer_has_no_harmful_effect(
            probes in prop::collection::vec((any::<u32>(), any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>()), 1..50),
        ) {
            let mut load = Load::default();
            for (i, (id, stamp, echo, packets, bytes)) in probes.into_iter().enumerate() {
                let now = Instant::from_millis(i as u64 * 20);
                let counters = PathCounters { tx_packets: packets, tx_bytes: bytes, rx_packets: packets, rx_bytes: bytes };
                load.departs(id, &counters, now);
                load.on_sent(1440, now);
                load.answered(
                    &Probe { kind: ProbeKind::Ack, id, timestamp_ns: stamp, echo_ns: echo, counters, reorder_available: 0, lasting_loss: 0, rtt_us: 0 },
                    now,
                );
                let view = load.view(1, now);
                prop_assert!(view.queue_us <= MAX_QUEUE_US && load.steady_loss_percent() <= 100);
                prop_assert!(load.lasting_loss() <= 10_000);
            }
        }
    }
}
