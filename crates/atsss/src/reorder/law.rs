//! How long a packet may wait for earlier ones.
//!
//! The sender emits the packets of a flow in sequence order, and each path is (almost) FIFO. A packet `h`
//! that arrived by path *p* at `t` therefore waits for an earlier one missing on path *q* at most for the
//! time by which *q* is slower than *p*, plus jitter:
//!
//! ```text
//!   sent      m by q ┐   h by p ┐
//!                    │          └──▶ arrives t          hold_p starts
//!                    └─────────────────────▶ arrives ≤ t + (owd_q − owd_p)
//! ```
//!
//! One-way delays are unknown without a common clock. The difference of the round trips is used instead; it equals
//! the difference of the one-way delays if the additional delay is entirely in this direction. The rule, in
//! microseconds:
//!
//! ```text
//!   skew_p  = max over live q ≠ p of  max(0, late_q − early_p)
//!             late_q  = max(srtt_q, last_q) + 2·rttvar_q        early_p = min(srtt_p, last_p)
//!             (50 ms where one of the two has no RTT yet)
//!   margin  = 1 ms + max over p and live paths of rttvar
//!   hold_p  = clamp( max(skew_p + margin, late_seen_p · 9/8 + 1 ms),  min_hold, max_hold )
//! ```
//!
//! `srtt` and `rttvar` are those of RFC 6298. `late_seen_p` is measured: when a gap noticed by an arrival on
//! *p* fills, or when its packet arrives after it was given up, the elapsed time is a sample. A larger sample
//! replaces the value at once; a smaller one lowers it by 1/16 of the difference, and each RTT report by 1/8.
//! The hold time thus corrects RTTs that lead to a hold that is too short.
//!
//! A path is *live* if it is not reported down and carries data. A path on which nothing of the session
//! arrived while 256 packets and a second passed on the others is *quiet*. No packet waits for it until it
//! delivers one again, so that the backup of a priority rule does not turn every loss on the primary into a
//! stall. After a pause of the session, all paths count as live. So they do for a flow that leaves the only
//! path it was on: its first packet on the other one is still in flight.

use super::FlowLimits;
use crate::{MAX_PATHS, PathId};
use anabranch_element::time::{Duration, Instant};

/// Skew assumed for a path whose RTT is unknown.
const UNKNOWN_SKEW_US: u32 = 50_000;
const BASE_MARGIN_US: u32 = 1_000;
/// A path without arrivals during this many packets of the session, and for [`QUIET`], is quiet.
const QUIET_PACKETS: u32 = 256;
const QUIET: Duration = Duration::from_secs(1);
/// A path whose RTT exceeds that of the fastest by more than this, in microseconds, is not awaited while
/// nothing arrives on it.
const SPREAD_RTT_US: u32 = 300_000;

#[derive(Debug, Clone, Copy, Default)]
struct PathTiming {
    srtt_us: u32,
    var_us: u32,
    last_us: u32,
    late_us: u32,
    /// The session's packet count at the last arrival on this path.
    heard_count: u32,
    heard: Instant,
}

/// The state of the rule for one session.
#[derive(Debug, Clone)]
pub(super) struct HoldPolicy {
    paths: [PathTiming; MAX_PATHS],
    hold_us: [u32; MAX_PATHS],
    live: u8,
    down: u8,
    quiet: u8,
    /// Packets of the session on all paths.
    count: u32,
    now: Instant,
    min_us: u32,
    max_us: u32,
}

impl HoldPolicy {
    pub(super) fn new(limits: &FlowLimits) -> Self {
        let min_us = micros(limits.min_hold);
        let max_us = micros(limits.max_hold).max(min_us);
        let mut law = Self {
            paths: Default::default(),
            hold_us: [0; MAX_PATHS],
            live: 0,
            down: 0,
            quiet: 0,
            count: 0,
            now: Instant::ZERO,
            min_us,
            max_us,
        };
        law.recompute();
        law
    }

    /// Bit mask of the paths by which a missing packet may still arrive.
    pub(super) const fn live(&self) -> u8 {
        self.live & !self.quiet
    }

    /// Longest hold time of an arrival on `path`.
    pub(super) fn hold(&self, path: PathId) -> Duration {
        let us = self.hold_us.get(usize::from(path)).copied().unwrap_or(self.max_us);
        Duration::from_micros(u64::from(us))
    }

    /// A new round-trip time; 0 marks the path down.
    pub(super) fn on_rtt(&mut self, path: PathId, rtt_us: u32) {
        let Some(timing) = self.paths.get_mut(usize::from(path)) else { return };
        let bit = 1 << path;
        timing.late_us -= timing.late_us.div_ceil(8);
        if rtt_us == 0 {
            *timing = PathTiming::default();
            self.live &= !bit;
            self.down |= bit;
        } else {
            if timing.srtt_us == 0 {
                (timing.srtt_us, timing.var_us) = (rtt_us, rtt_us / 8);
            } else {
                let off = timing.srtt_us.abs_diff(rtt_us);
                timing.var_us = timing.var_us - timing.var_us / 4 + off / 4;
                timing.srtt_us = timing.srtt_us - timing.srtt_us / 8 + rtt_us / 8;
            }
            timing.last_us = rtt_us;
            if self.live & bit == 0 {
                (timing.heard_count, timing.heard) = (self.count, self.now);
                self.quiet &= !bit;
            }
            self.live |= bit;
            self.down &= !bit;
        }
        self.recompute();
    }

    /// A packet arrived by `path` (below [`MAX_PATHS`]). The path is live unless it was reported down; late
    /// packets do not revive a path that is down.
    pub(super) fn on_arrival(&mut self, path: PathId, now: Instant) {
        let bit = 1 << path;
        if self.count == 0 || now.saturating_since(self.now) >= QUIET {
            // A silence of all paths is no evidence against one of them.
            self.paths.iter_mut().for_each(|timing| timing.heard = now);
        }
        self.now = now;
        self.count = self.count.wrapping_add(1);
        if let Some(timing) = self.paths.get_mut(usize::from(path)) {
            (timing.heard_count, timing.heard) = (self.count, now);
        }
        if (self.live | self.down) & bit == 0 || self.quiet & bit != 0 {
            self.live |= bit & !self.down;
            self.quiet &= !bit;
            self.recompute();
        }
        if self.count.is_multiple_of(QUIET_PACKETS) {
            self.find_quiet();
        }
    }

    /// A flow that was on one path is now on several: its packets may arrive by any path that is up and not
    /// much slower than the fastest.
    pub(super) fn on_spread(&mut self) {
        let before = self.quiet;
        let up = |path: usize| self.live & (1 << path) != 0;
        let first = (0..MAX_PATHS).filter(|path| up(*path)).map(|path| self.paths[path].srtt_us).min();
        let latest = first.unwrap_or(0).saturating_add(SPREAD_RTT_US);
        for (path, timing) in self.paths.iter_mut().enumerate().filter(|(_, timing)| timing.srtt_us <= latest)
        {
            (timing.heard_count, timing.heard) = (self.count, self.now);
            self.quiet &= !(1 << path);
        }
        if self.quiet != before {
            self.recompute();
        }
    }

    /// A gap noticed by an arrival on `path` filled after `late`.
    pub(super) fn on_lateness(&mut self, path: PathId, late: Duration) {
        let max = self.max_us;
        let Some(timing) = self.paths.get_mut(usize::from(path)) else { return };
        let sample = micros(late).min(max);
        let before = timing.late_us;
        timing.late_us = if sample > before { sample } else { before - (before - sample) / 16 };
        if timing.late_us != before {
            self.recompute_one(usize::from(path));
        }
    }

    fn find_quiet(&mut self) {
        let before = self.quiet;
        for (path, timing) in self.paths.iter().enumerate() {
            let packets = self.count.wrapping_sub(timing.heard_count);
            if packets >= QUIET_PACKETS && self.now.saturating_since(timing.heard) >= QUIET {
                self.quiet |= self.live & (1 << path);
            }
        }
        if self.quiet != before {
            self.recompute();
        }
    }

    fn recompute(&mut self) {
        for path in 0..MAX_PATHS {
            self.recompute_one(path);
        }
    }

    fn recompute_one(&mut self, path: usize) {
        let own = self.paths[path];
        let early = own.srtt_us.min(own.last_us);
        let (mut skew, mut margin) = (0, own.var_us);
        for (other, timing) in self.paths.iter().enumerate() {
            if other != path && self.live() & (1 << other) != 0 {
                let known = own.srtt_us != 0 && timing.srtt_us != 0;
                let late = timing.srtt_us.max(timing.last_us).saturating_add(timing.var_us.saturating_mul(2));
                skew = skew.max(if known { late.saturating_sub(early) } else { UNKNOWN_SKEW_US });
                margin = margin.max(timing.var_us);
            }
        }
        let predicted = skew.saturating_add(margin).saturating_add(BASE_MARGIN_US);
        let observed = own.late_us.saturating_add(own.late_us / 8).saturating_add(BASE_MARGIN_US);
        self.hold_us[path] = predicted.max(observed).clamp(self.min_us, self.max_us);
    }
}

/// An RTT in units of 100 µs, rounded up; 0 stays 0.
pub(super) fn compact(rtt_us: u32) -> u16 {
    u16::try_from(rtt_us.div_ceil(100)).unwrap_or(u16::MAX)
}

/// How far `sequence` is ahead of `reference` in 32-bit serial arithmetic (RFC 1982); negative: behind.
pub(super) const fn ahead(sequence: u32, reference: u32) -> i32 {
    sequence.wrapping_sub(reference) as i32
}

/// The first number of a flow's sequence, for senders.
///
/// It is the microsecond clock, as for TCP's initial sequence numbers (RFC 9293 §3.4.1). A flow with less
/// than one packet per microsecond that is forgotten and begins again is therefore always ahead of its
/// earlier numbers, and the receiver cannot take its packets for duplicates.
#[must_use]
pub const fn initial_sequence(now: anabranch_element::time::Instant) -> u32 {
    now.as_micros() as u32
}

fn micros(duration: Duration) -> u32 {
    u32::try_from(duration.as_micros()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn law() -> HoldPolicy {
        HoldPolicy::new(&FlowLimits::default())
    }

    fn ms(duration: Duration) -> f64 {
        duration.as_secs_f64() * 1e3
    }

    #[test]
    fn the_fast_path_waits_for_the_slow_one_and_not_the_reverse() {
        let mut law = law();
        for _ in 0..50 {
            law.on_rtt(0, 10_000);
            law.on_rtt(1, 40_000);
        }
        assert!((31.0..33.0).contains(&ms(law.hold(0))), "{:?}", law.hold(0));
        assert!((1.0..2.0).contains(&ms(law.hold(1))), "{:?}", law.hold(1));
        law.on_rtt(1, 0);
        assert!((1.0..2.0).contains(&ms(law.hold(0))), "no other path: {:?}", law.hold(0));
        law.on_arrival(1, Instant::ZERO);
        assert_eq!(law.live(), 1, "a late packet does not revive a path that is down");
    }

    #[test]
    fn a_quiet_path_is_not_awaited_until_a_packet_arrives_on_it() {
        let mut law = law();
        law.on_rtt(0, 10_000);
        law.on_rtt(1, 40_000);
        law.on_arrival(1, Instant::ZERO);
        let hold = law.hold(0);
        // Neither a second of silence nor 256 packets alone are sufficient.
        law.on_arrival(0, Instant::from_secs(5));
        assert_eq!((law.live(), law.hold(0)), (3, hold));
        burst(&mut law, 5_000..6_300);
        assert_eq!(law.live(), 1);
        assert!(law.hold(0) < Duration::from_millis(8), "{:?}", law.hold(0));
        law.on_rtt(1, 40_000);
        assert_eq!(law.live(), 1, "an idle path is probed, too");
        law.on_arrival(1, Instant::from_secs(7));
        assert_eq!(law.live(), 3);
        assert!(law.hold(0) > Duration::from_millis(25));
    }

    /// A packet by the first path in each of these milliseconds.
    fn burst(law: &mut HoldPolicy, ms: core::ops::Range<u64>) {
        ms.for_each(|ms| law.on_arrival(0, Instant::from_millis(ms)));
    }

    /// The first packets of a session, or the first after a pause: those by the longer path are under way.
    #[test]
    fn a_burst_after_a_pause_finds_all_paths_live() {
        let mut law = law();
        law.on_rtt(0, 10_000);
        law.on_rtt(1, 90_000);
        let hold = law.hold(0);
        for from_ms in [10_000, 15_000, 20_000] {
            burst(&mut law, from_ms..from_ms + 999);
            assert_eq!((law.live(), law.hold(0)), (3, hold), "{from_ms}");
            burst(&mut law, from_ms + 999..from_ms + 1_300);
            assert_eq!(law.live(), 1, "{from_ms}");
            law.on_arrival(1, Instant::from_millis(from_ms + 1_400));
        }
    }

    /// A flow leaves the path it was on when the other one has brought nothing for nearly a second: its first packet there is under way.
    #[test]
    fn a_path_that_is_not_quiet_yet_is_waited_for_when_a_flow_spreads() {
        let mut law = law();
        law.on_rtt(0, 10_000);
        law.on_rtt(1, 90_000);
        law.on_arrival(1, Instant::from_millis(10_000));
        burst(&mut law, 10_000..10_990);
        law.on_spread();
        burst(&mut law, 10_990..11_900);
        assert_eq!(law.live(), 3);
        burst(&mut law, 11_900..12_300);
        assert_eq!(law.live(), 1);
    }

    proptest! {
        /// For any round trips: while a path is down or quiet, the hold times of the other one depend only on
        /// that one.
        #[test]
        fn paths_that_are_down_or_quiet_are_not_awaited(
            rtts in prop::collection::vec((1_u32..20_000, 1_u32..400_000), 1..50), down: bool,
        ) {
            let mut law = law();
            law.on_arrival(1, Instant::ZERO);
            for (own, other) in rtts {
                law.on_rtt(0, own);
                law.on_rtt(1, other);
            }
            if down {
                law.on_rtt(1, 0);
            } else {
                burst(&mut law, 5_000..6_300);
            }
            prop_assert_eq!(law.live(), 1);
            let own = Duration::from_micros(law.paths[0].var_us.into());
            prop_assert!(law.hold(0) <= own + Duration::from_millis(3), "{:?}", law.hold(0));
        }
    }

    #[test]
    fn packets_alone_do_not_make_a_path_quiet() {
        let mut law = law();
        law.on_arrival(1, Instant::ZERO);
        for _ in 0..10_000 {
            law.on_arrival(0, Instant::from_millis(999));
        }
        assert_eq!(law.live(), 3);
    }

    #[test]
    fn holds_are_clamped_and_unknown_paths_are_given_time() {
        let mut law = law();
        law.on_arrival(0, Instant::ZERO);
        assert_eq!(ms(law.hold(0)), 1.0);
        law.on_arrival(1, Instant::ZERO);
        assert_eq!(ms(law.hold(0)), 51.0);
        law.on_rtt(0, 1);
        law.on_rtt(1, u32::MAX);
        assert_eq!(ms(law.hold(0)), 200.0);
        assert_eq!(ms(law.hold(77)), 200.0);
        law.on_rtt(200, 5);
    }

    #[test]
    fn observed_lateness_corrects_wrong_rtts_and_fades() {
        let mut law = law();
        law.on_rtt(0, 10_000);
        law.on_rtt(1, 10_000);
        let told = law.hold(0);
        law.on_lateness(0, Duration::from_millis(80));
        assert!(ms(law.hold(0)) > 80.0);
        law.on_lateness(0, Duration::from_millis(10));
        assert!(ms(law.hold(0)) > 70.0, "a single small sample changes little");
        for _ in 0..60 {
            law.on_rtt(0, 10_000);
            law.on_rtt(1, 10_000);
        }
        assert!(law.hold(0) <= told);
        law.on_lateness(0, Duration::from_secs(9));
        assert_eq!(ms(law.hold(0)), 200.0);
    }

    #[test]
    fn serial_arithmetic_wraps() {
        assert_eq!(ahead(3, u32::MAX), 4);
        assert_eq!(ahead(u32::MAX, 3), -4);
        assert_eq!(initial_sequence(Instant::from_micros((1 << 32) + 7)), 7);
    }
}
