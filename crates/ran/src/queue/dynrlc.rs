//! `dynrlc`: dynamic sizing of the RLC buffer in SDUs; Kumar, Francini, Panwar, Sharma, *Dynamic Control of
//! RLC Buffer Size for Latency Minimization in Mobile RAN*, WCNC 2018, with the parameters of RLC §V-D.
//!
//! ```text
//!   SDUs allowed ▲
//!          max 10 ┤   mean sojourn ≤ target: grow by α·(max − now), at least 1
//!                 │      ┌──┐  ┌──
//!                 │   ┌──┘  └──┘
//!           min 1 ┤───┘  mean sojourn > target: shrink by α·(now − min), at least 1
//!                 └──────┴──┴──┴──▶ every interval in which an SDU left, 10 ms
//! ```
//!
//! Neither the size of an SDU nor the time within a TTI has an influence.
//!
//! Differences from the source: the paper is not publicly available. The steps are those of the program measured in RLC (by
//! the paper's first author), which can exceed the maximum by one per interval without bound; here it stops at the maximum.
//! A maximum of ten SDUs is more than the largest LTE carrier takes in a millisecond. Where a carrier takes more, the
//! maximum is the number of packets of 1500 bytes per millisecond, plus one. The sojourn time excludes uplink slots (TDD).

use super::{BearerParams, Candidate, Discipline, Limiter, OutOfRange, TtiReport, at_least_1};
use crate::amc::Pulls;
use crate::registry::in_range;
use anabranch_element::time::{Duration, Instant, nanos};
use serde::{Deserialize, Serialize};

/// Typical size of a large packet.
const PACKET_BYTES: u64 = 1500;

/// Parameters; the defaults are those of RLC §V-D.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DynRlcParams {
    /// Time between two adjustments, microseconds.
    pub interval_us: u32,
    /// Mean sojourn time in RLC above which the buffer shrinks, microseconds.
    pub target_us: u32,
    /// Minimum number of SDUs allowed, at least 1.
    pub min_sdus: u32,
    /// Maximum number of SDUs allowed, at least `min_sdus`; higher if the carrier takes more in a millisecond.
    pub max_sdus: u32,
    /// Fraction of the distance to the bound covered by one adjustment, 0 to 1.
    pub alpha: f64,
}

impl Default for DynRlcParams {
    fn default() -> Self {
        Self { interval_us: 10_000, target_us: 3_000, min_sdus: 1, max_sdus: 10, alpha: 0.05 }
    }
}

/// The limiter of one bearer.
#[derive(Debug, Clone)]
pub struct DynRlc {
    params: DynRlcParams,
    pulls: Pulls,
    /// SDUs of a millisecond of the whole carrier, plus one.
    carrier_sdus: u32,
    allowed_sdus: u32,
    in_rlc_sdus: u64,
    sojourn_sum: Duration,
    sent_sdus: u32,
    changed_at: Instant,
}

impl DynRlc {
    /// The limiter of a new bearer; it starts with the maximum.
    #[must_use]
    pub fn new(params: DynRlcParams, bearer: BearerParams) -> Self {
        Self {
            params,
            pulls: bearer.pulls,
            carrier_sdus: 0,
            allowed_sdus: params.max_sdus.max(1),
            in_rlc_sdus: 0,
            sojourn_sum: Duration::ZERO,
            sent_sdus: 0,
            changed_at: Instant::ZERO,
        }
    }
}

impl Discipline for DynRlc {
    type Params = DynRlcParams;

    fn check(params: &DynRlcParams) -> Result<(), OutOfRange> {
        at_least_1("interval_us", params.interval_us)?;
        at_least_1("min_sdus", params.min_sdus)?;
        in_range("max_sdus", params.max_sdus, params.max_sdus >= params.min_sdus, "at least min_sdus")?;
        in_range("alpha", params.alpha, (0.0..=1.0).contains(&params.alpha), "0 to 1")
    }

    fn build(params: &DynRlcParams, bearer: BearerParams) -> Self {
        Self::new(*params, bearer)
    }
}

impl Limiter for DynRlc {
    fn admits(&mut self, _: &Candidate, _: Instant) -> bool {
        self.in_rlc_sdus < u64::from(self.allowed_sdus)
    }

    fn on_forwarded(&mut self, _: u32, _: Instant) {
        self.in_rlc_sdus += 1;
    }

    fn on_sent(&mut self, _: u32, sojourn: Duration, now: Instant) {
        let down = Instant::from_nanos(now.as_nanos().saturating_sub(nanos(sojourn)));
        let waited = self.pulls.clock(now).saturating_sub(self.pulls.clock(down));
        self.sojourn_sum = self.sojourn_sum.saturating_add(Duration::from_nanos(waited));
        self.sent_sdus = self.sent_sdus.saturating_add(1);
        let interval = Duration::from_micros(self.params.interval_us.into());
        if now.saturating_since(self.changed_at) < interval {
            return;
        }
        let mean = self.sojourn_sum / self.sent_sdus;
        let (min, max) = (self.params.min_sdus.max(1), self.params.max_sdus.max(self.carrier_sdus).max(1));
        let step = |way: u32| ((self.params.alpha * f64::from(way)) as u32).max(1);
        let now_allowed = self.allowed_sdus;
        let next = if mean > Duration::from_micros(self.params.target_us.into()) {
            now_allowed.saturating_sub(step(now_allowed.saturating_sub(min)))
        } else {
            now_allowed.saturating_add(step(max.saturating_sub(now_allowed)))
        };
        self.allowed_sdus = next.clamp(min, max.max(min));
        (self.sojourn_sum, self.sent_sdus, self.changed_at) = (Duration::ZERO, 0, now);
    }

    fn on_tti(&mut self, report: &TtiReport) {
        self.in_rlc_sdus = report.buffer_sdus.into();
        let (bytes, at) = report.next.map_or((report.granted_bytes, report.at), |n| (n.most_bytes, n.at));
        if bytes > 0 {
            let sdus = self.pulls.per_round(bytes, at).div_ceil(PACKET_BYTES) + 1;
            let sdus = u32::try_from(sdus).unwrap_or(u32::MAX);
            if std::mem::replace(&mut self.carrier_sdus, sdus) == 0 {
                // The limit starts with the maximum.
                self.allowed_sdus = self.allowed_sdus.max(sdus);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_sojourn_time_controls_the_limit() {
        let mut l = DynRlc::new(DynRlcParams::default(), BearerParams::default());
        let ms = Duration::from_millis;
        let at = Instant::from_millis;
        assert_eq!(l.allowed_sdus, 10);
        l.on_sent(1500, ms(2), at(5));
        assert_eq!(l.allowed_sdus, 10, "not before the interval is over");
        l.on_sent(1500, ms(5), at(10));
        assert_eq!(l.allowed_sdus, 9, "mean 3.5 ms");
        l.on_sent(1500, ms(3), at(20));
        assert_eq!(l.allowed_sdus, 10, "3 ms is not above the target");
        l.on_sent(1500, ms(3), at(30));
        assert_eq!(l.allowed_sdus, 10, "the maximum holds");
        for i in 4..30 {
            l.on_sent(1500, ms(9), at(10 * i));
        }
        assert_eq!(l.allowed_sdus, 1, "so does the minimum");
    }

    #[test]
    fn it_counts_sdus_whatever_their_size() {
        let mut l = DynRlc::new(DynRlcParams { max_sdus: 3, ..Default::default() }, BearerParams::default());
        let tiny = Candidate::alone(1, Instant::ZERO);
        for _ in 0..3 {
            assert!(l.admits(&tiny, Instant::ZERO));
            l.on_forwarded(1, Instant::ZERO);
        }
        assert!(!l.admits(&tiny, Instant::ZERO));
        l.on_tti(&TtiReport { buffer_sdus: 2, ..TtiReport::default() });
        assert!(l.admits(&tiny, Instant::ZERO));
    }
}
