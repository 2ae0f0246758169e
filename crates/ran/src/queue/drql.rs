//! `drql`: dynamic RLC queue limit; Irazabal et al., IEEE TMC 2020, as described in RLC §V-D: a limit in bytes that leaves
//! the equivalent of one MTU in RLC after the TTI, similar to Linux's byte queue limits.
//!
//! ```text
//!   limit ▲        ┌────┐   the MAC left more than an MTU: the limit is reduced by the excess
//!         │   ┌────┘    └───────
//!         │───┘  it left less while the limit kept packets in SDAP: the limit is raised by the shortfall
//!         └──────────────────────▶ TTI
//! ```
//!
//! Packets are passed to RLC in a burst right after the TTI, while RLC holds less than the limit.
//!
//! Differences from the source: the authors' program counts packets, grows by a factor of 1.2 when RLC ran dry, and shrinks
//! by the smallest remainder of 100 ms; neither the paper nor RLC §V-D gives a rule in bytes. Here every TTI corrects the
//! limit by the whole error. On NR, where SDAP may be polled less often than the MAC pulls and pulls differ in size, the
//! limit grows after any pull and shrinks by the smallest remainder of a millisecond or TDD period.

use super::{BearerParams, Candidate, Discipline, Limiter, NoParams, TtiReport};
use anabranch_element::time::Instant;

/// Upper bound of the limit, whatever the reports contain.
const MAX_LIMIT_BYTES: u64 = 1 << 30;

/// The limiter of one bearer.
#[derive(Debug, Clone)]
pub struct Drql {
    mtu_bytes: u64,
    limit_bytes: u64,
    in_rlc_bytes: u64,
    /// The limit has held back a packet in this round, and was not raised since.
    held: bool,
    /// Length of a round in slots, and the slots elapsed of the current one.
    round_slots: u64,
    in_round: u64,
    /// Length in slots of the window for shrinking the limit, the slots elapsed of it, and the smallest remainder after its pulls.
    window_slots: u64,
    slots: u64,
    least_bytes: u64,
}

impl Drql {
    /// The limiter of a new bearer; it starts with one MTU.
    #[must_use]
    pub fn new(bearer: BearerParams) -> Self {
        let mtu_bytes = u64::from(bearer.mtu_bytes.max(1));
        Self {
            mtu_bytes,
            limit_bytes: mtu_bytes,
            in_rlc_bytes: 0,
            held: false,
            round_slots: bearer.pulls.of_round(),
            in_round: 0,
            window_slots: bearer.pulls.window_slots(),
            slots: 0,
            least_bytes: u64::MAX,
        }
    }
}

impl Discipline for Drql {
    type Params = NoParams;

    fn build(_: &NoParams, bearer: BearerParams) -> Self {
        Self::new(bearer)
    }
}

impl Limiter for Drql {
    fn admits(&mut self, _: &Candidate, _: Instant) -> bool {
        let room = self.in_rlc_bytes < self.limit_bytes;
        self.held |= !room;
        room
    }

    fn on_forwarded(&mut self, bytes: u32, _: Instant) {
        self.in_rlc_bytes = self.in_rlc_bytes.saturating_add(u64::from(bytes));
    }

    fn on_tti(&mut self, report: &TtiReport) {
        let left = u64::from(report.buffer_bytes);
        self.in_rlc_bytes = left;
        self.least_bytes = self.least_bytes.min(left);
        let passed = u64::from(report.elapsed_ttis.max(1));
        self.slots = self.slots.saturating_add(passed);
        self.in_round = self.in_round.saturating_add(passed);
        if left <= self.mtu_bytes && self.held {
            self.limit_bytes += self.mtu_bytes - left;
            self.held = false;
        }
        if self.in_round >= self.round_slots {
            (self.in_round, self.held) = (0, false);
        }
        if self.slots >= self.window_slots {
            let excess = self.least_bytes.saturating_sub(self.mtu_bytes);
            self.limit_bytes = self.limit_bytes.saturating_sub(excess);
            (self.slots, self.least_bytes) = (0, u64::MAX);
        }
        self.limit_bytes = self.limit_bytes.clamp(1, MAX_LIMIT_BYTES);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Passes all admitted packets, pulls `tbs` bytes, and returns the remaining bytes.
    fn tti(l: &mut Drql, rlc: &mut u32, tbs: u32, backlog: bool) -> u32 {
        let next = Candidate::alone(1500, Instant::ZERO);
        while backlog && l.admits(&next, Instant::ZERO) {
            l.on_forwarded(1500, Instant::ZERO);
            *rlc += 1500;
        }
        *rlc -= (*rlc).min(tbs);
        l.on_tti(&TtiReport { buffer_bytes: *rlc, elapsed_ttis: 1, ..TtiReport::default() });
        *rlc
    }

    #[test]
    fn about_one_mtu_stays_behind() {
        for tbs in [85, 400, 2289, 9422] {
            let (mut l, mut rlc) = (Drql::new(BearerParams::default()), 0);
            for _ in 0..100 {
                tti(&mut l, &mut rlc, tbs, true);
            }
            let left: Vec<u32> = (0..1000).map(|_| tti(&mut l, &mut rlc, tbs, true)).collect();
            let mean = left.iter().map(|b| f64::from(*b)).sum::<f64>() / 1000.0;
            assert!((750.0..2250.0).contains(&mean), "TBS {tbs}: {mean}");
            assert!(left.iter().all(|b| *b < 4500), "TBS {tbs}");
        }
    }

    #[test]
    fn an_idle_sender_does_not_raise_the_limit() {
        let (mut l, mut rlc) = (Drql::new(BearerParams::default()), 0);
        for _ in 0..100 {
            tti(&mut l, &mut rlc, 2289, true);
        }
        let before = l.limit_bytes;
        for _ in 0..1000 {
            tti(&mut l, &mut rlc, 2289, false);
        }
        assert!(l.limit_bytes <= before + 1500);
    }
}
