//! Loss of one direction, from the counters that the ends exchange in probes.
//!
//! Counters are compared modulo 2³². A difference of more than [`MAX_STEP`], or a step back of more than
//! [`LATE`], indicates a restarted counter: the meter takes the new values as its base and continues. A
//! smaller step back is a probe that was overtaken by a newer one, and is ignored. (If a counter restarts
//! soon after its start, nothing is measured until it has caught up.)

use super::monitor::ID_WINDOW;
use anabranch_element::time::{Duration, Instant};
use anabranch_steer::measure::{Load, Trains};
use anabranch_wire::control::{PathCounters, Probe};

/// All measurements of a path in use.
///
/// The departure of one probe in flight is remembered. The packets that the far end had received when it
/// answered are compared with the packets that had been sent before the probe, so packets in flight do not
/// count as lost.
#[derive(Debug, Clone, Default)]
pub(super) struct Meters {
    pub(super) tx_loss: LossMeter,
    pub(super) rx_loss: LossMeter,
    pub(super) load: Load,
    pub(super) trains: Trains,
    hole: HoleMeter,
    mark_id: u32,
    mark_packets: u32,
    mark_bytes: u32,
    marked: bool,
    /// Probes pass, but larger packets seem not to.
    pub(super) suspicion: bool,
    /// Lasting loss of the far end's sending direction, from its newest probe, in hundredths of a percent.
    pub(super) lasting_rx: u16,
    pub(super) gaps: Gaps,
    /// Answers were overdue when this was last asked.
    pub(super) overdue: bool,
}

/// The longest time between two answers of a path in traffic, which decays.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Gaps {
    longest_us: u32,
}

impl Gaps {
    /// An answer arrived this long after the one before.
    pub(super) fn update(&mut self, gap: Duration) {
        let gap_us = u32::try_from(gap.as_micros()).unwrap_or(u32::MAX);
        self.longest_us = gap_us.max(self.longest_us - self.longest_us / GAP_DECAY);
    }

    pub(super) fn longest(self) -> Duration {
        Duration::from_micros(self.longest_us.into())
    }
}

/// Part of the longest gap that each answer takes away: it halves in one to two minutes.
const GAP_DECAY: u32 = 4096;

/// The measurements of a path at rest, in 8 bytes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct AtRest {
    /// Smoothed loss of this end's sending and receiving direction, in units of 16 ppm.
    loss: [u16; 2],
    /// Estimated capacity in kbit/s, 0: unknown; and the two flags below.
    estimate: u32,
}

/// Flag of [`AtRest::estimate`]: the capacity was measured by traffic.
const BY_TRAFFIC: u32 = 1 << 31;
/// Flag of [`AtRest::estimate`]: trains were sent on the path.
const TRAINS_SENT: u32 = 1 << 30;

impl AtRest {
    /// Smoothed loss of the sending and the receiving direction, in parts per million.
    pub(super) fn loss_ppm(self) -> [u32; 2] {
        self.loss.map(|loss| u32::from(loss) * 16)
    }
}

impl Meters {
    /// Meters that continue from earlier measurements.
    pub(super) fn from_rest(rest: &AtRest, now: Instant) -> Self {
        let [tx, rx] = rest.loss_ppm();
        let mut load = Load::default();
        load.resume(u64::from(rest.estimate & (TRAINS_SENT - 1)) * 1000, rest.estimate & BY_TRAFFIC > 0, now);
        let trains =
            if rest.estimate & TRAINS_SENT > 0 { Trains::after_rest(now) } else { Trains::default() };
        Self {
            tx_loss: LossMeter::from_ppm(tx),
            rx_loss: LossMeter::from_ppm(rx),
            load,
            trains,
            ..Self::default()
        }
    }

    /// The measurements to keep when the session goes to rest.
    pub(super) fn to_rest(&self, now: Instant) -> AtRest {
        let (bps, told) = self.load.estimate(now);
        let kbps = u32::try_from(bps / 1000).unwrap_or(u32::MAX).min(TRAINS_SENT - 1);
        AtRest {
            loss: [&self.tx_loss, &self.rx_loss]
                .map(|loss| u16::try_from(loss.ppm() / 16).unwrap_or(u16::MAX)),
            estimate: kbps
                | if told { BY_TRAFFIC } else { 0 }
                | if self.trains.has_asked() { TRAINS_SENT } else { 0 },
        }
    }

    /// A probe with this id is sent; it is counted in `counters`.
    pub(super) fn departs(&mut self, id: u32, counters: &PathCounters, now: Instant) {
        self.load.departs(id, counters, now);
        if !self.marked {
            (self.mark_id, self.marked) = (id, true);
            (self.mark_packets, self.mark_bytes) = (counters.tx_packets as u32, counters.tx_bytes as u32);
        }
    }

    /// The far end answered one of our probes.
    pub(super) fn answered(&mut self, msg: &Probe, now: Instant) {
        self.load.answered(msg, now);
        if self.marked && msg.id == self.mark_id {
            let received = msg.counters.rx_bytes as u32;
            self.tx_loss.update(self.mark_packets, msg.counters.rx_packets as u32, now);
            self.suspicion |= self.hole.update(self.mark_bytes, received);
        }
        // An answer to a later probe than the remembered one shows that the remembered one was lost.
        self.marked &= (1..=ID_WINDOW).contains(&self.mark_id.wrapping_sub(msg.id));
    }

    /// The larger lasting loss of both directions, in whole percent.
    pub(super) fn lasting_percent(&self) -> u8 {
        u8::try_from(self.load.lasting_loss().max(self.lasting_rx) / 100).unwrap_or(100)
    }

    /// The path went down: losses during the outage do not describe its quality.
    pub(super) fn interrupted(&mut self) {
        self.marked = false;
        self.load.interrupted();
        self.trains.interrupted();
        self.hole = HoleMeter::default();
        self.tx_loss.skip_interval();
        self.rx_loss.skip_interval();
    }
}

/// Amount of user data after which the black-hole meter decides, bytes: two full-size packets.
const HOLE_BYTES: u32 = 2500;

/// Detects black holes after the path MTU has shrunk: most user data is lost while probes, which are small,
/// pass.
#[derive(Debug, Clone, Copy, Default)]
struct HoleMeter {
    sent: u32,
    got: u32,
    based: bool,
}

impl HoleMeter {
    /// `sent` bytes of user data had left, and `got` of them had arrived (both modulo 2³²). Returns `true` if
    /// most of the last few packets are missing.
    fn update(&mut self, sent: u32, got: u32) -> bool {
        let (sent_step, got_step) = (sent.wrapping_sub(self.sent), got.wrapping_sub(self.got));
        let believable = self.based && sent_step < 1 << 31 && got_step < 1 << 31;
        if believable && sent_step < HOLE_BYTES {
            return false;
        }
        (self.sent, self.got, self.based) = (sent, got, true);
        believable && got_step < sent_step / 2
    }
}

/// Largest plausible number of packets between two probes.
const MAX_STEP: u32 = 1 << 24;
/// Most packets by which a late probe may be behind the newest one.
const LATE: u32 = 1 << 16;
/// An interval ends after this many packets ...
const INTERVAL_PACKETS: u32 = 32;
/// ... or after this time, whichever is first.
const INTERVAL_MS: i64 = 1000;
const TICK_MS: u64 = 16;
/// A sample over `n` packets has the weight `n / (n + 512)`, so the value covers about the last 500 packets.
/// If `d` packets overtake a probe, the error of the sample is `d / n`, and that of the value only `d / (n +
/// 512)`. A new meter has fewer packets to remember; [`MEMORY_PACKETS_YOUNG`] is the minimum.
const MEMORY_PACKETS: u8 = 255; // in units of two
const MEMORY_PACKETS_YOUNG: u8 = 32;
/// A sample over the time `t` has at least the weight `t / 30 s`, so that a path without traffic forgets as
/// well.
const MEMORY_MS: i64 = 30_000;

/// Loss of one direction.
///
/// The smoothed value is signed: packets that overtake a probe make one interval too high and the next one
/// too low by the same number, and these errors must cancel.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LossMeter {
    sent: u32,
    got: u32,
    /// Begin of the interval in units of [`TICK_MS`], to fit into 16 bits.
    since: u16,
    lost: u32,
    smoothed_ppm: i32,
    /// Packets counted so far, in units of two, up to the memory.
    seen: u8,
    flags: u8,
}

const BASED: u8 = 1;
const SKIP: u8 = 2;
const MEASURED: u8 = 4;

impl LossMeter {
    /// A meter that starts from an earlier measurement.
    fn from_ppm(ppm: u32) -> Self {
        Self { smoothed_ppm: ppm.min(1_000_000) as i32, flags: MEASURED, ..Self::default() }
    }

    /// `sent` packets had left, and `got` of them had arrived, since the start.
    pub(super) fn update(&mut self, sent: u32, got: u32, now: Instant) {
        let now = (now.as_millis() / TICK_MS) as u16;
        let (sent_step, got_step) = (sent.wrapping_sub(self.sent), got.wrapping_sub(self.got));
        let late = self.sent.wrapping_sub(sent) <= LATE && sent_step != 0;
        let based = self.flags & BASED != 0;
        if based && late {
            return;
        }
        if !based || sent_step > MAX_STEP || got_step > MAX_STEP {
            (self.sent, self.got, self.since) = (sent, got, now);
            self.flags |= BASED;
            return;
        }
        let elapsed = i64::from(now.wrapping_sub(self.since)) * TICK_MS as i64;
        if sent_step == 0 || (sent_step < INTERVAL_PACKETS && elapsed < INTERVAL_MS) {
            return;
        }
        let missing = i64::from(sent_step) - i64::from(got_step);
        self.lost = u32::try_from((i64::from(self.lost) + missing).max(0)).unwrap_or(u32::MAX);
        if self.flags & SKIP != 0 {
            self.flags &= !SKIP;
        } else {
            let n = i64::from(sent_step);
            let memory = 2 * i64::from(self.seen.max(MEMORY_PACKETS_YOUNG));
            self.seen = u8::try_from(i64::from(self.seen) + n / 2).unwrap_or(MEMORY_PACKETS);
            let sample = (missing * 1_000_000 / n).clamp(-1_000_000, 1_000_000);
            let weight = (n * 4096 / (n + memory) + elapsed * 4096 / MEMORY_MS).min(4096);
            let old = i64::from(self.smoothed_ppm);
            // Both terms are within ±10⁶, so the sum fits.
            self.smoothed_ppm = (old + (sample - old) * weight / 4096) as i32;
            self.flags |= MEASURED;
        }
        (self.sent, self.got, self.since) = (sent, got, now);
    }

    /// The current interval spans an outage: its losses count in the total, but not in the smoothed value.
    pub(super) fn skip_interval(&mut self) {
        self.flags |= SKIP;
    }

    /// Smoothed loss in parts per million, 0 to 1 000 000.
    pub(super) fn ppm(&self) -> u32 {
        self.smoothed_ppm.clamp(0, 1_000_000) as u32
    }

    /// The same; `None` before the first measurement.
    pub(super) fn measured_ppm(&self) -> Option<u32> {
        (self.flags & MEASURED != 0).then(|| self.ppm())
    }

    /// Packets lost so far.
    pub(super) fn lost(&self) -> u32 {
        self.lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(v: u32) -> Instant {
        Instant::from_millis(v.into())
    }

    #[test]
    fn a_steady_loss_is_found_and_summed() {
        let mut m = LossMeter::default();
        for i in 0..200u32 {
            m.update(i * 100, i * 95, ms(i * 20));
        }
        assert_eq!(m.lost(), 199 * 5);
        assert!((49_000..=51_000).contains(&m.ppm()), "{}", m.ppm());
    }

    #[test]
    fn reordering_around_the_probe_cancels() {
        let mut m = LossMeter::default();
        for i in 1..400u32 {
            // In every second interval, ten packets are still in flight when the probe arrives.
            m.update(i * 100, i * 100 - if i % 2 == 0 { 10 } else { 0 }, ms(i * 20));
        }
        assert_eq!(m.lost(), 0);
        assert!(m.ppm() < 60_000, "{}", m.ppm());
        for i in 400..500u32 {
            m.update(i * 100, i * 100, ms(i * 20));
        }
        assert_eq!(m.ppm(), 0);
    }

    #[test]
    fn a_restarted_counter_is_a_new_base() {
        let mut m = LossMeter::default();
        m.update(3_000_000_000, 3_000_000_000, ms(0));
        m.update(3_000_000_100, 3_000_000_100, ms(20));
        m.update(100, 100, ms(40));
        m.update(200, 190, ms(60));
        assert_eq!(m.lost(), 10);
        assert!(m.ppm() < 60_000);
        // Across 2³², the counters simply continue.
        let mut m = LossMeter::default();
        m.update(u32::MAX - 49, u32::MAX - 49, ms(0));
        m.update(50, 40, ms(20));
        assert_eq!(m.lost(), 10);
    }

    #[test]
    fn an_outage_counts_in_the_total_only() {
        let mut m = LossMeter::default();
        m.update(0, 0, ms(0));
        m.update(100, 100, ms(20));
        m.skip_interval();
        m.update(200, 100, ms(5000));
        assert_eq!((m.lost(), m.ppm()), (100, 0));
    }

    #[test]
    fn a_hole_is_suspected_when_most_bytes_are_missing() {
        let mut m = HoleMeter::default();
        assert!(!m.update(1_000_000, 7_000), "the first one is the base");
        assert!(!m.update(1_002_000, 7_000), "too few bytes to decide");
        assert!(m.update(1_003_000, 7_000));
        assert!(!m.update(1_006_000, 9_000));
        assert!(m.update(1_009_000, 10_000));
        assert!(!m.update(5_000, 10_000), "a restarted counter is a new base");
        assert!(m.update(10_000, 10_000));
    }
}
