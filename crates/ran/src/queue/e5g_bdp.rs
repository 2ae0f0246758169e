//! `e5g_bdp`: enhanced 5G-BDP, RLC §IV-A, Algorithms 1 to 3.
//!
//! ```text
//!  paced bytes                                           bandwidth: EWMA of the bytes taken per TTI
//!       ▲                                    ╱ 1.33·bw·t + MTU/7
//!       │                                  ╱             a packet is admitted when
//!  1544 ┤                               ╱┤                 it fits into half of the paced bytes, or
//!  1212 ┤                       ┌──╱─────┤                 sent + left over + a share of its size
//!   814 ┤                ╱──────┘        │                 fits into all of them; never when
//!   514 ┤       ╱──────                  │                 sent + left over exceed the cell's TBS
//!       └───────┴───────┴───────┴────────┴──▶ time in the TTI
//!              1/4     1/2     3/4      TTI
//! ```
//!
//! Small packets are admitted early in the TTI, large ones late; until then they can be overtaken in SDAP.
//!
//! Differences from the printed algorithms, with reasons:
//!
//! - The weight of the EWMA and `reduce_const` are not printed: 0.7 and 0.5.
//! - The bandwidth is divided by the TTIs that passed since the last update, not by one.
//! - A bandwidth under 100 B per TTI is treated as 0. As printed, at a TBS of 82 B or less `paced_bytes` stays below a fifth
//!   of the size of a full packet, the packet never leaves, and the cell's utilisation is 3–13 %.
//! - MTU/7 and MTU/4 are fractions of the real MTU, or of the packet if it is larger; with a fixed 1500, packets over 1875 B
//!   would never leave.
//! - Figure 3 uses 1.2 at t = ½, Algorithm 3 uses 1.33 from ½ on; this implementation follows the figure.
//! - "The maximum capacity under the current MCS" (line 5) is the TBS of the whole carrier as reported by the MAC; without
//!   such a report it is the largest recent grant. The authors' program uses a constant of 2300.
//! - The last poll before the tick is treated as being at 4/5 of the TTI or later ([`Candidate::time_in_round`]). As printed,
//!   nothing would ever leave with one poll in the first half of each TTI, and half of what is possible with one at 3/5.
//! - NR has slots shorter than 1 ms, and slots without downlink. A TTI of the paper is a *round* here: 1 ms of the clock that
//!   only downlink slots advance ([`Pulls`]). A round is also the unit of the bandwidth and of the capacity. Derived in
//!   docs/ran-limiter.md.
//! - A pull that takes nothing because the UE has no channel is ignored. As printed, the bandwidth estimate decays to 0 within
//!   some TTIs, and takes a hundred to recover where TTIs carry much (docs/ran-limiter.md). The MAC indicates such pulls with
//!   `Forecast::most_bytes` of 0; without a forecast the printed algorithm applies.
//! - The bandwidth follows a rise of the capacity of line 5: if the MAC then empties RLC, it rises by the same factor. It never
//!   exceeds the capacity. As printed, it grows by a twentieth and 150 B per TTI after a rise of the MCS, because RLC holds no
//!   more than that (docs/ran-limiter.md).
//! - The time since the last TTI is capped at one TTI: a late MAC gives no credit.

use super::{BearerParams, Candidate, Discipline, Limiter, OutOfRange, TtiReport};
use crate::amc::Pulls;
use crate::registry::in_range;
use anabranch_element::time::{Instant, nanos};
use serde::{Deserialize, Serialize};

/// Parameters; the defaults are the paper's.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct E5gBdpParams {
    /// Weight of the newest TTI in the bandwidth, above 0, up to 1.
    pub alpha: f64,
    /// Fraction of the paced bytes into which a packet may go whatever RLC holds, 0 to 1.
    pub reduce_const: f64,
    /// Bandwidth in bytes per TTI below which the bandwidth counts as 0.
    pub floor_bytes: u32,
    /// Start of a TTI's time: the MAC's tick (false), or the first evaluation after it (true) as literally specified in
    /// Algorithm 2.
    pub clock_from_poll: bool,
}

impl Default for E5gBdpParams {
    fn default() -> Self {
        Self { alpha: 0.7, reduce_const: 0.5, floor_bytes: 100, clock_from_poll: false }
    }
}

/// The limiter of one bearer.
#[derive(Debug, Clone)]
pub struct E5gBdp {
    params: E5gBdpParams,
    mtu_bytes: u32,
    pulls: Pulls,
    /// EWMA in bytes per round.
    bandwidth: f64,
    /// Bytes passed to RLC since the last update.
    srs_bytes: u64,
    /// Bytes in RLC at the last update.
    last_acc_bytes: u64,
    last_tti: Instant,
    /// Bytes that the whole carrier takes in a round.
    capacity_bytes: u64,
    /// The last capacity forecast that is not 0; `bandwidth` is of this capacity. 0 without a forecast.
    forecast_bytes: u64,
    /// The last report since the update, with the sum of pulls and of time over all reports since then.
    pending: Option<Pending>,
}

#[derive(Debug, Clone, Copy)]
struct Pending {
    at: Instant,
    acc_bytes: u32,
    pulls: u64,
    clock_ns: u64,
    /// Sum of the forecast capacity of each pull times the time that the clock advanced.
    capacity_ns: f64,
}

impl E5gBdp {
    /// The limiter of a new bearer.
    #[must_use]
    pub fn new(params: E5gBdpParams, bearer: BearerParams) -> Self {
        Self {
            params,
            mtu_bytes: bearer.mtu_bytes.max(1),
            pulls: bearer.pulls,
            bandwidth: 0.0,
            srs_bytes: 0,
            last_acc_bytes: 0,
            last_tti: Instant::ZERO,
            capacity_bytes: 0,
            forecast_bytes: 0,
            pending: None,
        }
    }

    /// The estimated bandwidth, bytes per round.
    #[must_use]
    #[cfg(test)]
    pub fn bandwidth_bytes(&self) -> f64 {
        self.bandwidth
    }

    /// Algorithm 2.
    fn update_bw_est(&mut self, now: Instant) {
        let Some(Pending { at, acc_bytes, pulls, clock_ns, capacity_ns }) = self.pending else { return };
        if pulls < self.pulls.of_round() || clock_ns == 0 {
            return;
        }
        let round = nanos(self.pulls.round());
        self.pending = None;
        let acc = u64::from(acc_bytes);
        let rms_bytes = (self.srs_bytes + self.last_acc_bytes).saturating_sub(acc);
        let per_round = rms_bytes as f64 * round as f64 / clock_ns as f64;
        // Bytes that were all that RLC held say nothing of a capacity that has risen meanwhile.
        let rise = self.forecast_bytes as f64 * clock_ns as f64 / capacity_ns;
        let per_round = if acc == 0 && rise > 1.0 && rise.is_finite() { per_round * rise } else { per_round };
        self.bandwidth += self.params.alpha * (per_round - self.bandwidth);
        self.srs_bytes = 0;
        self.last_acc_bytes = acc;
        self.last_tti = if self.params.clock_from_poll { now } else { at };
    }

    /// Scales the bandwidth with a rise of the forecast capacity if the pull just reported, which had the new capacity, emptied
    /// RLC.
    fn follow_capacity(&mut self, emptied: bool) {
        let (new, old) = (self.capacity_bytes as f64, self.forecast_bytes as f64);
        if old > 0.0 && new > old && emptied {
            self.bandwidth *= new / old;
        }
        self.bandwidth = self.bandwidth.min(new);
        self.forecast_bytes = self.capacity_bytes;
    }

    /// Rounds since the last update, see [`Candidate::time_in_round`].
    fn elapsed(&self, next: &Candidate, now: Instant) -> f64 {
        let since = next.time_in_round(&self.pulls, self.last_tti, now);
        since as f64 / nanos(self.pulls.round()) as f64
    }

    /// Algorithm 3.
    fn paced_bytes(&self, next: &Candidate, elapsed: f64) -> f64 {
        let mtu = f64::from(self.mtu_bytes.max(next.bytes));
        if self.bandwidth >= f64::from(self.params.floor_bytes) {
            let incr = if elapsed <= 0.5 { 1.2 } else { 1.33 };
            incr * elapsed * self.bandwidth + mtu / 7.0
        } else if self.last_acc_bytes == 0 && elapsed > 0.5 {
            mtu / 4.0
        } else {
            0.0
        }
    }
}

impl Discipline for E5gBdp {
    type Params = E5gBdpParams;

    fn check(params: &E5gBdpParams) -> Result<(), OutOfRange> {
        let E5gBdpParams { alpha, reduce_const, .. } = *params;
        in_range("alpha", alpha, alpha > 0.0 && alpha <= 1.0, "above 0, up to 1")?;
        in_range("reduce_const", reduce_const, (0.0..=1.0).contains(&reduce_const), "0 to 1")
    }

    fn build(params: &E5gBdpParams, bearer: BearerParams) -> Self {
        Self::new(*params, bearer)
    }
}

impl Limiter for E5gBdp {
    /// Algorithm 1, with the result inverted.
    fn admits(&mut self, next: &Candidate, now: Instant) -> bool {
        self.update_bw_est(now);
        let elapsed = self.elapsed(next, now);
        let standing = self.srs_bytes + self.last_acc_bytes;
        if standing as f64 > self.capacity_bytes as f64 * elapsed.max(1.0) {
            return false;
        }
        let paced = self.paced_bytes(next, elapsed);
        let data = f64::from(next.bytes);
        if paced * self.params.reduce_const > data + self.srs_bytes as f64 {
            return true;
        }
        let crowded = self.srs_bytes != 0 && self.last_acc_bytes != 0;
        let extra = data / if crowded { 3.0 } else { 5.0 };
        standing as f64 + extra <= paced
    }

    fn on_forwarded(&mut self, bytes: u32, _: Instant) {
        self.srs_bytes = self.srs_bytes.saturating_add(u64::from(bytes));
    }

    fn on_tti(&mut self, report: &TtiReport) {
        let (pulls, clock_ns, capacity_ns) =
            self.pending.map_or((0, 0, 0.0), |p| (p.pulls, p.clock_ns, p.capacity_ns));
        let (more, passed) = match report.next {
            Some(next) if next.most_bytes == 0 => (0, 0),
            _ => self.pulls.in_slots(report.elapsed_ttis.max(1), report.at),
        };
        self.pending = Some(Pending {
            at: report.at,
            acc_bytes: report.buffer_bytes,
            pulls: pulls.saturating_add(more),
            clock_ns: clock_ns.saturating_add(passed),
            capacity_ns: capacity_ns + self.forecast_bytes as f64 * passed as f64,
        });
        // Old grants decay slowly, because a MAC that grants by need reports small ones in between.
        let faded = self.capacity_bytes - self.capacity_bytes.div_ceil(128);
        self.capacity_bytes = match report.next {
            Some(next) => self.pulls.per_round(next.most_bytes, next.at),
            None => self.pulls.per_round(report.granted_bytes, report.at).max(faded),
        };
        if report.next.is_some() && self.capacity_bytes > 0 {
            self.follow_capacity(report.buffer_bytes == 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::Forecast;
    use anabranch_element::time::Duration;

    const TTI_US: u64 = 1000;

    fn at(quarters: u64) -> Instant {
        Instant::from_micros(10 * TTI_US + quarters * TTI_US / 4)
    }

    /// Figure 3's state: bandwidth 1000 B/TTI, 600 B left over, MTU 1500.
    fn figure_3() -> E5gBdp {
        E5gBdp {
            bandwidth: 1000.0,
            last_acc_bytes: 600,
            capacity_bytes: 2289,
            last_tti: at(0),
            ..E5gBdp::new(E5gBdpParams::default(), BearerParams::default())
        }
    }

    #[test]
    fn figure_3_of_the_paper() {
        let mut l = figure_3();
        for (quarter, paced) in [(1, 514.3), (2, 814.3), (3, 1211.8), (4, 1544.3)] {
            let next = Candidate::alone(1500, at(0));
            let elapsed = l.elapsed(&next, at(quarter));
            assert!((l.paced_bytes(&next, elapsed) - paced).abs() < 0.05, "t = {quarter}/4");
        }
        let bulk = Candidate::alone(1500, at(0));
        let voice = Candidate::alone(200, at(2));
        assert!(!l.admits(&bulk, at(1)), "keep");
        assert!(!l.admits(&bulk, at(2)), "keep");
        assert!(l.admits(&voice, at(3)), "send the small one");
        l.on_forwarded(200, at(3));
        assert!(!l.admits(&bulk, at(3)), "and keep the large one");
        assert!(l.admits(&bulk, at(4)), "until the end of the TTI");
    }

    /// One bearer on a MAC with a fixed TBS, always backlogged, with five polls of SDAP per TTI. Returns the used share of the
    /// capacity over `ttis`.
    fn utilisation(mut l: E5gBdp, tbs: u32, mtu: u32, forecast: bool, ttis: u64) -> f64 {
        let (mut rlc, mut served) = (0u32, 0u64);
        for tti in 0..ttis {
            let start = tti * TTI_US;
            for poll in 0..5 {
                let now = Instant::from_micros(start + 100 + poll * 200);
                while l.admits(&Candidate::alone(mtu, now), now) {
                    l.on_forwarded(mtu, now);
                    rlc += mtu;
                }
            }
            let tick = Instant::from_micros(start + TTI_US);
            let took = rlc.min(tbs);
            rlc -= took;
            served += u64::from(took);
            let next = Forecast { at: tick + Duration::from_millis(1), bytes: tbs, most_bytes: tbs };
            l.on_tti(&TtiReport {
                at: tick,
                elapsed_ttis: 1,
                granted_bytes: tbs,
                served_bytes: took,
                buffer_bytes: rlc,
                next: forecast.then_some(next),
                ..TtiReport::default()
            });
        }
        served as f64 / (u64::from(tbs) * ttis) as f64
    }

    #[test]
    fn it_fills_the_cell_at_every_tbs() {
        for forecast in [false, true] {
            for clock_from_poll in [false, true] {
                for tbs in [1, 10, 50, 82, 85, 99, 101, 150, 300, 800, 1500, 2289, 5000, 9422] {
                    let params = E5gBdpParams { clock_from_poll, ..E5gBdpParams::default() };
                    let l = E5gBdp::new(params, BearerParams::default());
                    let used = utilisation(l, tbs, 1500, forecast, 4000);
                    assert!(used > 0.9, "TBS {tbs}, forecast {forecast}, {clock_from_poll}: {used}");
                }
            }
        }
    }

    #[test]
    fn packets_over_the_old_mtu_leave() {
        for mtu_bytes in [1500, 9000] {
            let l =
                E5gBdp::new(E5gBdpParams::default(), BearerParams { mtu_bytes, ..BearerParams::default() });
            assert!(utilisation(l, 2289, 9000, false, 2000) > 0.9);
        }
    }

    #[test]
    fn without_the_floor_it_locks_up() {
        let params = E5gBdpParams { floor_bytes: 0, ..E5gBdpParams::default() };
        let used = utilisation(E5gBdp::new(params, BearerParams::default()), 50, 1500, false, 4000);
        assert!(used < 0.2, "the printed algorithm: {used}");
    }

    #[test]
    fn skipped_ttis_are_averaged_over() {
        let mut l = E5gBdp::new(E5gBdpParams { alpha: 1.0, ..Default::default() }, BearerParams::default());
        l.on_forwarded(3000, Instant::ZERO);
        l.on_tti(&TtiReport { at: at(0), elapsed_ttis: 3, granted_bytes: 3000, ..TtiReport::default() });
        l.admits(&Candidate::alone(1, at(0)), at(0));
        assert_eq!(l.bandwidth_bytes(), 1000.0);
        // Shorter slots: one update per millisecond.
        let bearer =
            BearerParams { pulls: Pulls::every(Duration::from_micros(250)), ..BearerParams::default() };
        let mut l = E5gBdp::new(E5gBdpParams { alpha: 1.0, ..Default::default() }, bearer);
        for slot in 1..=4 {
            l.on_forwarded(100, Instant::ZERO);
            l.on_tti(&TtiReport { at: Instant::from_micros(250 * slot), ..TtiReport::default() });
            l.admits(&Candidate::alone(1, at(0)), at(0));
            assert_eq!(l.bandwidth_bytes(), if slot < 4 { 0.0 } else { 400.0 });
        }
    }
}
