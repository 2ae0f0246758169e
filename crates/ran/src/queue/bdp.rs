//! `5g_bdp`: the pacer that e5G-BDP improves; Irazabal et al., *Dynamic buffer sizing and pacing as enablers of 5G
//! low-latency services*, IEEE TMC 2020, as described in RLC §IV-A.
//!
//! ```text
//!   quota of a TTI = bytes taken by the MAC in the previous TTI − bytes left over
//!   passed so far ≤ quota · (elapsed share of the TTI + ⅓)      or RLC is empty
//! ```
//!
//! It assumes that every TTI equals the previous one. After a TTI without a grant it passes nothing until RLC is empty, and
//! a MAC that schedules by occupancy then grants even less. The packet size has no influence.
//!
//! Differences from the source: the authors' program counts packets per 10 ms tick, uses the capacity of the channel in
//! place of the bytes taken by the MAC (RLC §IV-A: only the occupancy is known), and grants at least one packet per tick,
//! which fills RLC without bound below one packet per TTI. With rare polls, the last poll before the tick is treated as
//! being at 4/5 of the TTI or later ([`Candidate::time_in_round`]). On NR, a TTI is replaced by a round of downlink slots,
//! see [`Pulls`] and docs/ran-limiter.md.

use super::{BearerParams, Candidate, Discipline, Limiter, NoParams, TtiReport};
use crate::amc::Pulls;
use anabranch_element::time::{Instant, nanos};

/// Head start of the pace in TTIs.
const HEAD_START_TTIS: f64 = 1.0 / 3.0;

/// The limiter of one bearer.
#[derive(Debug, Clone)]
pub struct Bdp {
    pulls: Pulls,
    quota_bytes: u64,
    sent_bytes: u64,
    left_bytes: u64,
    last_tti: Instant,
    /// Bytes taken by the MAC in the current round, and the length of the round so far.
    served_bytes: u64,
    in_round: u64,
    clock_ns: u64,
}

impl Bdp {
    /// The limiter of a new bearer; it admits one packet.
    #[must_use]
    pub fn new(bearer: BearerParams) -> Self {
        Self {
            pulls: bearer.pulls,
            quota_bytes: 0,
            sent_bytes: 0,
            left_bytes: 0,
            last_tti: Instant::ZERO,
            served_bytes: 0,
            in_round: 0,
            clock_ns: 0,
        }
    }
}

impl Discipline for Bdp {
    type Params = NoParams;

    fn build(_: &NoParams, bearer: BearerParams) -> Self {
        Self::new(bearer)
    }
}

impl Limiter for Bdp {
    fn admits(&mut self, next: &Candidate, now: Instant) -> bool {
        if self.sent_bytes + self.left_bytes == 0 {
            return true;
        }
        let since = next.time_in_round(&self.pulls, self.last_tti, now);
        let passed = since as f64 / nanos(self.pulls.round()) as f64 + HEAD_START_TTIS;
        (self.sent_bytes as f64) < self.quota_bytes as f64 * passed
    }

    fn on_forwarded(&mut self, bytes: u32, _: Instant) {
        self.sent_bytes = self.sent_bytes.saturating_add(u64::from(bytes));
    }

    fn on_tti(&mut self, report: &TtiReport) {
        self.served_bytes = self.served_bytes.saturating_add(report.served_bytes.into());
        let (pulls, passed) = self.pulls.in_slots(report.elapsed_ttis.max(1), report.at);
        self.in_round = self.in_round.saturating_add(pulls);
        self.clock_ns = self.clock_ns.saturating_add(passed);
        if self.in_round < self.pulls.of_round() || self.clock_ns == 0 {
            return;
        }
        let round = nanos(self.pulls.round());
        let served = u128::from(self.served_bytes) * u128::from(round) / u128::from(self.clock_ns);
        let bandwidth = u64::try_from(served).unwrap_or(u64::MAX);
        (self.served_bytes, self.in_round, self.clock_ns) = (0, 0, 0);
        self.left_bytes = u64::from(report.buffer_bytes);
        self.quota_bytes = bandwidth.saturating_sub(self.left_bytes);
        self.sent_bytes = 0;
        self.last_tti = report.at;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(served_bytes: u32, buffer_bytes: u32, ms: u64) -> TtiReport {
        TtiReport {
            at: Instant::from_millis(ms),
            elapsed_ttis: 1,
            served_bytes,
            buffer_bytes,
            ..TtiReport::default()
        }
    }

    #[test]
    fn the_pace_follows_the_last_tti() {
        let mut l = Bdp::new(BearerParams::default());
        let next = Candidate::alone(1500, Instant::ZERO);
        l.on_tti(&report(2289, 289, 1));
        // 2000 B to send: 667 at once, and the same again in each third of the TTI.
        assert!(l.admits(&next, Instant::from_micros(1000)));
        l.on_forwarded(1500, Instant::from_micros(1000));
        assert!(!l.admits(&next, Instant::from_micros(1400)));
        assert!(l.admits(&next, Instant::from_micros(1420)));
        l.on_forwarded(1500, Instant::from_micros(1420));
        assert!(!l.admits(&next, Instant::from_micros(1999)));
    }

    #[test]
    fn a_tti_without_a_grant_stops_it_until_rlc_is_empty() {
        let mut l = Bdp::new(BearerParams::default());
        let next = Candidate::alone(100, Instant::ZERO);
        l.on_tti(&report(0, 1, 1));
        assert!(!l.admits(&next, Instant::from_micros(1999)), "the vicious circle of RLC §IV-A");
        l.on_tti(&report(1, 0, 2));
        assert!(l.admits(&next, Instant::from_millis(2)));
    }
}
