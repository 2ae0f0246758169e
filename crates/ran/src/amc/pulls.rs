//! The slots in which the MAC pulls data of one direction, and a clock that advances by the capacity of these slots.
//!
//! ```text
//!   slots    D   D   D   S   U   D   D   D   S   U        one run of slots per period; FDD: every slot
//!   pulls    ▮   ▮   ▮   ▯       ▮   ▮   ▮   ▯            a special slot carries part of a full slot
//!   clock    └─1─┴─1─┴0.7┴───1───┴─1─┴─1─┴0.7┴──
//! ```
//!
//! From one pull to the next, the [clock](Pulls::clock) advances by the capacity of the next pull, in units of a full
//! slot; between two pulls it advances at a constant rate. Equal intervals of this clock therefore carry equal numbers of
//! bytes, wherever they lie in the pattern, and uplink slots add nothing. With FDD it equals real time.
//!
//! Both ends have the pattern: it is part of the cell's configuration (TS 38.331 `tdd-UL-DL-ConfigurationCommon`).

use super::tdd::{Direction, Slot, TddPattern};
use anabranch_element::time::{Duration, Instant, nanos};

/// One LTE TTI, the unit of time of algorithms designed for LTE.
const MILLISECOND_NS: u64 = 1_000_000;

/// The pulls of one direction; see the module documentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pulls {
    slot_ns: u64,
    /// Length of a period in slots, and position and length of its run of slots with pulls.
    period: u64,
    first: u64,
    count: u64,
    /// Capacity of the last slot of the run, in nanoseconds of a full slot.
    last_ns: u64,
}

impl Pulls {
    /// One pull in every slot of duration `slot`; zero is treated as 1 ns.
    #[must_use]
    pub fn every(slot: Duration) -> Self {
        let slot_ns = nanos(slot).max(1);
        Self { slot_ns, period: 1, first: 0, count: 1, last_ns: slot_ns }
    }

    /// The pulls of a direction in a TDD pattern. `special` is the fraction of a full slot carried by the downlink part of a
    /// special slot. A direction without any slot gets a pull in every slot, because nothing ever waits for it.
    pub(super) fn of_pattern(
        pattern: &TddPattern,
        slot: Duration,
        direction: Direction,
        special: (u32, u32),
    ) -> Self {
        let every = Self::every(slot);
        let period = pattern.len();
        let carries = |slot: &u64| match (pattern.at(*slot), direction) {
            (Slot::Downlink, Direction::Downlink) | (Slot::Uplink, Direction::Uplink) => true,
            (Slot::Special, Direction::Downlink) => special.0 > 0,
            _ => false,
        };
        let Some(first) = (0..period).find(carries) else { return every };
        let count = (first..period).take_while(carries).count() as u64;
        let mut last_ns = every.slot_ns;
        if direction == Direction::Downlink && pattern.at(first + count - 1) == Slot::Special {
            last_ns = (every.slot_ns * u64::from(special.0) / u64::from(special.1.max(1))).max(1);
        }
        Self { period, first, count, last_ns, ..every }
    }

    /// Time from one slot to the next, at least 1 ns.
    #[must_use]
    pub fn slot(&self) -> Duration {
        Duration::from_nanos(self.slot_ns)
    }

    /// The equivalent of LTE's 1 ms TTI in time of the [clock](Self::clock): as many full slots as fit into 1 ms, at least one.
    #[must_use]
    pub fn round(&self) -> Duration {
        Duration::from_nanos((MILLISECOND_NS / self.slot_ns).max(1) * self.slot_ns)
    }

    /// Number of pulls per round; 1 in LTE.
    #[must_use]
    pub fn of_round(&self) -> u64 {
        nanos(self.round()) / self.slot_ns
    }

    /// Number of pulls in the last `slots` slots until `at`, and the clock time they span. The interval may begin before time 0.
    #[must_use]
    pub fn in_slots(&self, slots: u32, at: Instant) -> (u64, u64) {
        let ns = self.slot_ns.saturating_mul(slots.into());
        let whole =
            u64::from(slots).div_ceil(self.period).saturating_mul(self.period).saturating_mul(self.slot_ns);
        let at = Instant::from_nanos(at.as_nanos().saturating_add(whole));
        let from = Instant::from_nanos(at.as_nanos().saturating_sub(ns));
        (self.between(from, at), self.clock(at).saturating_sub(self.clock(from)))
    }

    /// Number of slots that cover every kind of pull: a TDD period, and at least one round.
    #[must_use]
    pub fn window_slots(&self) -> u64 {
        self.period.max(self.of_round())
    }

    /// The first pull after `now`.
    #[must_use]
    pub fn next_after(&self, now: Instant) -> Instant {
        let slot = (now.as_nanos() / self.slot_ns).saturating_add(1);
        let within = slot % self.period;
        let wait = match within {
            _ if within < self.first => self.first - within,
            _ if within < self.first + self.count => 0,
            _ => self.period - within + self.first,
        };
        Instant::from_nanos(slot.saturating_add(wait).saturating_mul(self.slot_ns))
    }

    /// The last pull at or before `now`; time 0 if there was none.
    #[must_use]
    pub fn last_until(&self, now: Instant) -> Instant {
        let slot = now.as_nanos() / self.slot_ns;
        let within = slot % self.period;
        let back = match within {
            _ if within < self.first => self.period + within + 1 - self.first - self.count,
            _ if within < self.first + self.count => 0,
            _ => within + 1 - self.first - self.count,
        };
        Instant::from_nanos(slot.saturating_sub(back).saturating_mul(self.slot_ns))
    }

    /// Pulls after `after` and at or before `until`.
    #[must_use]
    pub fn between(&self, after: Instant, until: Instant) -> u64 {
        let before = |slot: u64| {
            slot / self.period * self.count + (slot % self.period).saturating_sub(self.first).min(self.count)
        };
        let slots_until = |at: Instant| before((at.as_nanos() / self.slot_ns).saturating_add(1));
        slots_until(until).saturating_sub(slots_until(after))
    }

    /// Capacity of the pull at `at`, in nanoseconds of a full slot.
    fn carries_ns(&self, at: Instant) -> u64 {
        let within = at.as_nanos() / self.slot_ns % self.period;
        if within + 1 == self.first + self.count { self.last_ns } else { self.slot_ns }
    }

    /// Converts `bytes` of the pull at `from` to the capacity of the pull at `to`.
    #[must_use]
    pub fn scale(&self, bytes: u32, from: Instant, to: Instant) -> u32 {
        let (from, to) = (self.carries_ns(from), self.carries_ns(to));
        if from == to {
            return bytes;
        }
        u32::try_from(u64::from(bytes).saturating_mul(to) / from).unwrap_or(u32::MAX)
    }

    /// Converts `bytes` of the pull at `at` to the capacity of a round.
    #[must_use]
    pub fn per_round(&self, bytes: u32, at: Instant) -> u64 {
        u64::from(bytes).saturating_mul(nanos(self.round())) / self.carries_ns(at)
    }

    /// The clock at `now`, in nanoseconds; see the module documentation.
    #[must_use]
    pub fn clock(&self, now: Instant) -> u64 {
        if self.count == self.period && self.last_ns == self.slot_ns {
            return now.as_nanos();
        }
        let (last, next) = (self.last_until(now), self.next_after(now));
        // Capacity of all pulls up to and including the last.
        let slot = last.as_nanos() / self.slot_ns;
        let of_run = (slot % self.period + 1).saturating_sub(self.first).min(self.count);
        let short = self.slot_ns - self.last_ns;
        let periods = slot / self.period * (self.count * self.slot_ns - short);
        let done = periods + of_run * self.slot_ns - if of_run == self.count { short } else { 0 };
        let gap = next.as_nanos().saturating_sub(last.as_nanos()).max(1);
        let since = now.as_nanos().saturating_sub(last.as_nanos()).min(gap);
        let ahead = u128::from(since) * u128::from(self.carries_ns(next)) / u128::from(gap);
        done.saturating_add(ahead as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Amc, NrConfig, RadioConfig, TddConfig};
    use super::*;
    use proptest::prelude::*;

    fn pulls(numerology: u8, pattern: &str, symbols: u8, direction: Direction) -> (Pulls, Amc) {
        let tdd = TddConfig { pattern: pattern.into(), downlink_symbols: symbols, uplink_symbols: 2 };
        let amc = Amc::new(&RadioConfig::Nr(NrConfig { numerology, tdd: Some(tdd), ..NrConfig::default() }));
        let amc = amc.unwrap();
        (amc.pulls(direction), amc)
    }

    #[test]
    fn without_a_pattern_the_clock_is_real_time() {
        let every = Pulls::every(Duration::from_micros(500));
        for us in [0, 1, 499, 500, 501, 7777] {
            let at = Instant::from_micros(us);
            assert_eq!(every.clock(at), at.as_nanos());
            assert_eq!(every.next_after(at), Instant::from_micros(us / 500 * 500 + 500));
            assert_eq!(every.last_until(at), Instant::from_micros(us / 500 * 500));
        }
        assert_eq!((every.round(), every.of_round()), (Duration::from_millis(1), 2));
        assert_eq!(Pulls::every(Duration::from_millis(1)).in_slots(3, Instant::ZERO), (3, 3_000_000));
        assert_eq!(Pulls::every(Duration::from_micros(700)).round(), Duration::from_micros(700));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Compares with a count slot by slot, for every pattern that is valid for a numerology.
        #[test]
        fn pulls_and_clock_are_those_of_the_slots(
            numerology in 0u8..=4, down in 0usize..9, special in any::<bool>(), up in 0usize..9,
            symbols in 0u8..=12, uplink in any::<bool>(),
        ) {
            let direction = if uplink { Direction::Uplink } else { Direction::Downlink };
            let pattern = "D".repeat(down) + if special { "S" } else { "" } + &"U".repeat(up);
            let slot = Duration::from_nanos(1_000_000 >> numerology);
            let tdd = TddConfig { pattern: pattern.clone(), downlink_symbols: symbols, uplink_symbols: 2 };
            prop_assume!(TddPattern::new(&tdd, slot).is_ok());
            let (pulls, amc) = pulls(numerology, &pattern, symbols, direction);
            let most = |slot| amc.table(direction, slot).map_or(0, |t| *t.row(28).last().unwrap());
            prop_assume!((0..pattern.len() as u64).any(|slot| most(slot) > 0));
            let at = |slot: u64| Instant::from_nanos(slot * nanos(amc.slot()));
            let (mut clock, mut seen, mut last) = (0_u64, 0, at(0));
            for slot in 1..pattern.len() as u64 * 3 {
                prop_assert_eq!(pulls.last_until(at(slot)) == at(slot), most(slot) > 0);
                if most(slot) == 0 {
                    continue;
                }
                prop_assert_eq!(pulls.next_after(last), at(slot));
                if seen > 0 {
                    let middle = Instant::from_nanos((last.as_nanos() + at(slot).as_nanos()) / 2);
                    let (from, to) = (pulls.clock(last), pulls.clock(at(slot)));
                    prop_assert!(pulls.clock(middle).abs_diff((from + to) / 2) <= 1);
                    clock = to - from;
                    let share = f64::from(most(slot)) / f64::from(*amc.full().row(28).last().unwrap());
                    let expected = share * nanos(amc.slot()) as f64;
                    prop_assert!((clock as f64 - expected).abs() < 2.0, "{} {}", clock, expected);
                }
                seen += 1;
                prop_assert_eq!(pulls.between(at(0), at(slot)), seen);
                last = at(slot);
            }
            prop_assert!(clock > 0 || seen < 2);
        }
    }
}
