//! `jit`: just in time. An algorithm of this project, derived in docs/ran-limiter.md.
//!
//! ```text
//!        tick n                                   next tick, announced: grant G
//!   ───────┬──────────────────────────────────┬───────┬──────▶ t
//!          │  RLC holds R, the rest of a       │ guard │
//!          │  segmented packet                 │       │
//!          │                                   ▼       ▼
//!          │  a packet nothing can overtake:   fill:   MAC takes G,
//!          │  passed at once                   while   R' < one packet stays
//!          │  any other: stays in SDAP         R < G
//! ```
//!
//! Packets for the next tick wait in SDAP, where they can be overtaken, until `guard` before the tick. RLC is then filled
//! until it covers the grant, so that none of the grant is padding. Time and size of the next grant come from the MAC
//! ([`Forecast`]; between a DU and a CU, it is the *desired buffer size* of TS 38.425 §5.4.2). Changes of the MCS and RBs
//! taken by HARQ retransmissions are therefore effective from the TTI in which the MAC learns of them, and a TTI without
//! downlink counts as none. Without a forecast, the limiter expects the previous grant again.
//!
//! One more tick is left to packets that may still arrive if this costs almost nothing: RLC is not filled if at most
//! `spare_bytes` of the grant would remain unused (fewer where grants and packets are small) and the packet would occupy RLC
//! beyond the next tick.
//!
//! In the uplink, the grant itself fills RLC from SDAP; only packets that nothing can overtake are passed before.
//!
//! The guard is adaptive. A tick that finds less in RLC than its grant while packets wait in SDAP means that the fill came
//! too late: the guard grows. Every other tick shrinks it slightly. It settles where one tick in a thousand is missed, as
//! late as the timers of the host permit.

use super::{BearerParams, Candidate, Discipline, Forecast, Limiter, OutOfRange, TtiReport, at_least_1};
use crate::amc::{Direction, Pulls};
use crate::registry::in_range;
use anabranch_element::time::{Duration, Instant};
use serde::{Deserialize, Serialize};

/// Target rate of missed ticks: a miss adds 999 times as much to the guard as a hit takes from it.
const TARGET_MISS_RATE: f64 = 0.001;
/// Number of consecutive forecasts of 0 bytes after which they are ignored.
const MAX_EMPTY_FORECASTS: u32 = 64;
/// Geometric mean of grant and packet, in bytes, below which the permitted unused part of a grant is scaled down in proportion.
const FULL_SPARE_BYTES: u64 = 400;
/// Maximum number of ticks covered at once when slots are shorter than the guard.
const MAX_TICKS: u64 = 64;

/// Parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct JitParams {
    /// Bytes of a grant that may remain unused to keep RLC empty for a TTI; fewer where grant and packets are small.
    pub spare_bytes: u32,
    /// Minimum time between filling RLC and the tick, microseconds.
    pub min_guard_us: u32,
    /// Maximum time between filling RLC and the tick, microseconds, at least `min_guard_us`.
    pub max_guard_us: u32,
    /// Initial guard in microseconds, between the two.
    pub guard_us: u32,
}

impl Default for JitParams {
    fn default() -> Self {
        Self { spare_bytes: 40, min_guard_us: 20, max_guard_us: 1000, guard_us: 200 }
    }
}

/// The limiter of one bearer.
#[derive(Debug, Clone)]
pub struct Jit {
    /// Whether the limiter fills RLC (downlink) rather than the grant (uplink).
    fills: bool,
    pulls: Pulls,
    mtu_bytes: u32,
    spare_bytes: u64,
    min_guard_ns: f64,
    max_guard_ns: f64,
    guard_ns: f64,
    /// The next tick, if known.
    next: Option<Forecast>,
    in_rlc_bytes: u64,
    /// The last answer was negative: a packet waits in SDAP.
    held: bool,
    /// [`Limiter::admits`] was called since the last forecast.
    asked: bool,
    empty_forecasts: u32,
}

impl Jit {
    /// The limiter of a new bearer.
    #[must_use]
    pub fn new(params: JitParams, bearer: BearerParams) -> Self {
        let ns = |us: u32| f64::from(us) * 1000.0;
        Self {
            fills: bearer.direction == Direction::Downlink,
            pulls: bearer.pulls,
            mtu_bytes: bearer.mtu_bytes,
            spare_bytes: params.spare_bytes.into(),
            min_guard_ns: ns(params.min_guard_us),
            max_guard_ns: ns(params.max_guard_us),
            guard_ns: ns(params.guard_us),
            next: None,
            in_rlc_bytes: 0,
            held: false,
            asked: false,
            empty_forecasts: 0,
        }
    }

    /// Time before the tick at which RLC is filled.
    #[must_use]
    pub fn guard(&self) -> Duration {
        Duration::from_nanos(self.guard_ns as u64)
    }

    /// The first tick after `now`.
    fn next_tick(&self, next: Forecast, now: Instant) -> Instant {
        if next.at > now { next.at } else { self.pulls.next_after(now) }
    }

    /// Whether a packet of `bytes` must be passed at `now` to use the grants of the ticks within the guard.
    fn is_due(&self, next: Forecast, bytes: u32, now: Instant) -> bool {
        let first = self.next_tick(next, now);
        let until = now + self.guard();
        if first > until {
            return false;
        }
        let ticks = (self.pulls.between(first, until) + 1).min(MAX_TICKS);
        // An endless series of empty grants must not block the bearer forever.
        let disbelieved = self.empty_forecasts > MAX_EMPTY_FORECASTS;
        let grant = u64::from(next.bytes.max(disbelieved.into()));
        let Some(missing) = (grant * ticks).checked_sub(self.in_rlc_bytes).filter(|missing| *missing > 0)
        else {
            return false;
        };
        let bytes = u64::from(bytes);
        let stays_on = bytes > missing + grant;
        let price = |bytes: u64, of: u64| bytes.saturating_mul(bytes).saturating_mul(of);
        let cheap = missing <= self.spare_bytes
            && price(missing, FULL_SPARE_BYTES * FULL_SPARE_BYTES) <= price(self.spare_bytes, grant * bytes);
        !(stays_on && self.in_rlc_bytes > 0 && cheap)
    }
}

impl Discipline for Jit {
    type Params = JitParams;

    fn check(params: &JitParams) -> Result<(), OutOfRange> {
        let (guard, min, max) = (params.guard_us, params.min_guard_us, params.max_guard_us);
        at_least_1("max_guard_us", max)?;
        in_range("min_guard_us", min, min <= max, "at most max_guard_us")?;
        in_range("guard_us", guard, (min..=max).contains(&guard), "between min_guard_us and max_guard_us")
    }

    fn build(params: &JitParams, bearer: BearerParams) -> Self {
        Self::new(*params, bearer)
    }
}

impl Limiter for Jit {
    fn admits(&mut self, next: &Candidate, now: Instant) -> bool {
        self.asked = true;
        let Some(forecast) = self.next else {
            // Without information, one packet at a time.
            return self.in_rlc_bytes == 0;
        };
        // Such a packet gains nothing from waiting in SDAP, but a flow of them must not flood RLC.
        let room = u64::from(forecast.bytes) + 2 * u64::from(self.mtu_bytes);
        let urgent = !next.overtakable && self.in_rlc_bytes.saturating_add(next.bytes.into()) <= room;
        let admitted = urgent || self.fills && self.is_due(forecast, next.bytes, now);
        self.held = !admitted;
        admitted
    }

    fn on_forwarded(&mut self, bytes: u32, _: Instant) {
        self.in_rlc_bytes = self.in_rlc_bytes.saturating_add(u64::from(bytes));
    }

    fn on_tti(&mut self, report: &TtiReport) {
        // A grant larger or earlier than announced is not counted as a miss of the guard.
        let announced = self.next.filter(|next| next.at <= report.at).map_or(0, |next| next.bytes);
        let held_bytes = self.in_rlc_bytes.saturating_add(self.spare_bytes);
        let missed = self.held && held_bytes < report.granted_bytes.min(announced).into();
        let step = self.max_guard_ns * 0.1;
        self.guard_ns += if missed { step } else { -step * TARGET_MISS_RATE };
        self.guard_ns = self.guard_ns.clamp(self.min_guard_ns, self.max_guard_ns.max(self.min_guard_ns));
        self.in_rlc_bytes = report.buffer_bytes.into();
        let at = self.pulls.next_after(report.at);
        let bytes = self.pulls.scale(report.granted_bytes, report.at, at);
        let again = Forecast { at, bytes, most_bytes: bytes };
        let next = report.next.unwrap_or(match self.next {
            Some(last) if report.granted_bytes == 0 => Forecast { bytes: last.bytes, ..again },
            _ => again,
        });
        self.empty_forecasts = if next.bytes == 0 { self.empty_forecasts.saturating_add(1) } else { 0 };
        (self.next, self.asked) = (Some(next), false);
    }

    fn on_forecast(&mut self, next: Forecast) {
        (self.next, self.asked) = (Some(next), false);
    }

    fn on_taken(&mut self, bytes: u32) {
        if let Some(next) = &mut self.next {
            next.bytes = next.bytes.saturating_sub(bytes);
        }
    }

    fn needs_polling(&self) -> bool {
        self.fills && self.next.is_none()
    }

    fn follows_forecast(&self) -> bool {
        true
    }

    fn wake_at(&self, now: Instant) -> Option<Instant> {
        if !self.fills {
            return None;
        }
        let fill = self.next_tick(self.next?, now) - self.guard();
        if fill > now {
            return Some(fill);
        }
        // Slots shorter than the guard: the fill for the next tick has taken place if the current forecast has been evaluated. The
        // next fill is then the one for the first tick beyond the guard.
        Some(if self.asked { self.pulls.next_after(now + self.guard()) - self.guard() } else { now })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::amc::{Amc, NrConfig, RadioConfig, TddConfig};
    use proptest::prelude::*;

    fn at_us(us: u64) -> Instant {
        Instant::from_micros(us)
    }

    fn report(at: u64, granted: u32, left: u32, next: Option<(u64, u32)>) -> TtiReport {
        TtiReport {
            at: at_us(at),
            elapsed_ttis: 1,
            granted_bytes: granted,
            buffer_bytes: left,
            next: next.map(|(at, bytes)| Forecast { at: at_us(at), bytes, most_bytes: bytes }),
            ..TtiReport::default()
        }
    }

    fn jit(guard_us: u32) -> Jit {
        let params =
            JitParams { guard_us, min_guard_us: guard_us, max_guard_us: guard_us, ..Default::default() };
        Jit::new(params, BearerParams::default())
    }

    fn bulk() -> Candidate {
        Candidate::alone(1500, Instant::ZERO)
    }

    fn voice() -> Candidate {
        Candidate { overtakable: false, ..Candidate::alone(200, Instant::ZERO) }
    }

    #[test]
    fn bulk_waits_for_the_guard_and_then_covers_the_grant() {
        let mut l = jit(100);
        l.on_tti(&report(1000, 2292, 700, Some((2000, 2292))));
        assert_eq!(l.wake_at(at_us(1000)), Some(at_us(1900)));
        assert!(!l.admits(&bulk(), at_us(1000)) && !l.admits(&bulk(), at_us(1899)));
        assert!(l.admits(&voice(), at_us(1001)), "what nothing can overtake need not wait");
        l.on_forwarded(200, at_us(1001));
        assert!(l.admits(&bulk(), at_us(1900)), "900 < 2292");
        l.on_forwarded(1500, at_us(1900));
        assert!(!l.admits(&bulk(), at_us(1950)), "2400 ≥ 2292");
        assert!(l.admits(&voice(), at_us(1950)));
        // After the fill, the next evaluation is a TTI later.
        assert_eq!(l.wake_at(at_us(1900)), Some(at_us(2900)));
    }

    #[test]
    fn a_tick_is_left_open_if_that_costs_almost_nothing() {
        for (bytes, grant, left, goes) in [
            (1500, 300, 259, true),
            (1500, 300, 260, false),
            (1500, 300, 0, true),
            (1500, 1600, 1580, true),
            // A tenth of the square root of 140 times 200 is 16.7.
            (200, 140, 122, true),
            (200, 140, 124, false),
        ] {
            let mut l = jit(100);
            l.on_tti(&report(1000, grant, left, Some((2000, grant))));
            let packet = Candidate::alone(bytes, Instant::ZERO);
            assert_eq!(l.admits(&packet, at_us(1950)), goes, "{left} of {grant}, a packet of {bytes}");
        }
    }

    #[test]
    fn the_forecast_is_followed_at_once() {
        let mut l = jit(100);
        // The MCS falls: 400 B in RLC suffice for the next grant.
        l.on_tti(&report(1000, 2292, 400, Some((2000, 85))));
        assert!(!l.admits(&bulk(), at_us(1950)));
        // HARQ uses the next TTI: nothing is needed although RLC is empty.
        l.on_tti(&report(2000, 85, 0, Some((3000, 0))));
        assert!(!l.admits(&bulk(), at_us(2950)));
        // Two TTIs without downlink.
        l.on_tti(&report(3000, 0, 0, Some((6000, 500))));
        assert!(!l.admits(&bulk(), at_us(4950)));
        assert_eq!(l.wake_at(at_us(3000)), Some(at_us(5900)));
        assert!(l.admits(&bulk(), at_us(5900)));
    }

    #[test]
    fn without_a_forecast_the_last_grant_is_expected() {
        let mut l = jit(100);
        assert!(l.admits(&bulk(), at_us(0)), "nothing known, nothing in RLC");
        l.on_forwarded(1500, at_us(0));
        assert!(!l.admits(&bulk(), at_us(0)) && l.needs_polling());
        l.on_tti(&report(1000, 500, 1000, None));
        assert!(!l.admits(&bulk(), at_us(1950)));
        l.on_tti(&report(2000, 1200, 400, None));
        assert!(l.admits(&bulk(), at_us(2950)));
        // Not scheduled: expect the same amount as before.
        l.on_tti(&report(3000, 0, 400, None));
        assert!(l.admits(&bulk(), at_us(3950)));
    }

    #[test]
    fn in_the_uplink_only_what_nothing_overtakes_goes_before_its_grant() {
        let bearer = BearerParams { direction: Direction::Uplink, ..BearerParams::default() };
        let mut l = Jit::new(JitParams::default(), bearer);
        for tti in 1..=200 {
            l.on_tti(&report(tti * 1000, 2292, 0, None));
            let fill = at_us(tti * 1000 + 990);
            assert!(!l.admits(&bulk(), fill) && l.admits(&voice(), fill));
            assert!(l.wake_at(fill).is_none() && !l.needs_polling(), "nothing changes with time");
        }
    }

    #[test]
    fn slots_shorter_than_the_guard_are_covered_together() {
        let params = JitParams { guard_us: 100, min_guard_us: 100, max_guard_us: 100, ..Default::default() };
        let mut l = Jit::new(
            params,
            BearerParams { pulls: Pulls::every(Duration::from_nanos(62_500)), ..BearerParams::default() },
        );
        let next = Forecast { at: Instant::from_nanos(1_062_500), bytes: 1000, most_bytes: 1000 };
        l.on_tti(&TtiReport { at: at_us(1000), granted_bytes: 1000, next: Some(next), ..Default::default() });
        // Ticks at 62.5, 125 … µs: at 0 one is within 100 µs, at 30 µs two are.
        l.on_forwarded(1000, at_us(1000));
        assert!(!l.is_due(next, 1500, at_us(1000)));
        assert!(l.is_due(next, 1500, at_us(1030)));
        // The current forecast is covered first.
        assert_eq!(l.wake_at(at_us(1000)), Some(at_us(1000)));
        l.admits(&bulk(), at_us(1000));
        assert_eq!(l.wake_at(at_us(1000)), Some(Instant::from_nanos(1_025_000)));
    }

    proptest! {
        /// With any slots, pattern and guard, each forecast is evaluated before the pull it describes.
        #[test]
        fn every_forecast_is_evaluated_before_its_pull(
            (pattern, numerology) in proptest::sample::select(vec![
                (None, 0), (None, 3), (None, 4), (Some("DDDSU"), 0), (Some("DDDSU"), 1), (Some("DDDSU"), 3),
                (Some("DDSU"), 2), (Some("DDDDDDDSUU"), 1), (Some("DDDDDDDSUU"), 4), (Some("DU"), 2),
            ]),
            guard_us in 20u32..=1000,
            grants in proptest::collection::vec(0u32..5000, 50),
        ) {
            let tdd = pattern.map(|pattern: &str| TddConfig {
                pattern: pattern.into(),
                downlink_symbols: 10,
                uplink_symbols: 2,
            });
            let radio = NrConfig { numerology, tdd, ..NrConfig::default() };
            let pulls = Amc::new(&RadioConfig::Nr(radio)).unwrap().pulls(Direction::Downlink);
            let params = JitParams { guard_us, min_guard_us: guard_us, max_guard_us: guard_us, spare_bytes: 40 };
            let mut l = Jit::new(params, BearerParams { pulls, ..BearerParams::default() });
            let mut at = Instant::from_millis(1);
            for bytes in grants {
                at = pulls.next_after(at);
                let next = Forecast { at: pulls.next_after(at), bytes, most_bytes: 5000 };
                l.on_tti(&TtiReport { at, elapsed_ttis: 1, next: Some(next), ..TtiReport::default() });
                let look = l.wake_at(at).unwrap();
                prop_assert!(look < next.at, "{look:?}, the pull is at {:?}", next.at);
                while l.admits(&bulk(), look) {
                    l.on_forwarded(1500, look);
                }
                prop_assert!(l.in_rlc_bytes + 40 >= bytes.into(), "{} of {bytes}", l.in_rlc_bytes);
                prop_assert!(l.wake_at(look).unwrap() > look);
            }
        }
    }

    #[test]
    fn the_guard_adapts_to_the_lateness_of_the_host() {
        let params = JitParams { guard_us: 20, ..JitParams::default() };
        let mut l = Jit::new(params, BearerParams::default());
        let (mut missed, mut late) = (0, 1u64);
        for tti in 0..20_000u64 {
            let start = Instant::from_millis(tti);
            let fill = l.wake_at(start).map_or(start, |at| {
                late = late.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                // Up to 150 µs late.
                at + Duration::from_nanos((late >> 33) % 150_000)
            });
            l.admits(&bulk(), start);
            let mut rlc = 0;
            while fill < start + Duration::from_millis(1) && l.admits(&bulk(), fill) {
                l.on_forwarded(1500, fill);
                rlc += 1500;
            }
            missed += u32::from(rlc < 1000);
            let tick = tti * 1000 + 1000;
            l.on_tti(&report(tick, 1000, 0, Some((tick + 1000, 1000))));
        }
        assert!((10..60).contains(&missed), "one in a thousand: {missed} of 20000");
        assert!(l.guard() < Duration::from_micros(260), "{:?}", l.guard());
    }

    #[test]
    fn an_endless_series_of_empty_forecasts_is_ignored() {
        let mut l = jit(100);
        for tti in 1..=100 {
            l.on_tti(&report(tti * 1000, 0, 0, Some((tti * 1000 + 1000, 0))));
        }
        assert!(l.admits(&bulk(), at_us(100_950)));
    }

    #[test]
    fn a_flow_that_nothing_overtakes_does_not_flood_rlc() {
        let mut l = jit(100);
        l.on_tti(&report(1000, 500, 0, Some((2000, 500))));
        let mut rlc = 0;
        while l.admits(&Candidate { overtakable: false, ..bulk() }, at_us(1000)) {
            l.on_forwarded(1500, at_us(1000));
            rlc += 1500;
        }
        assert_eq!(rlc, 3000, "500 + two packets");
    }
}
