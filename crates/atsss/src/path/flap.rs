//! Flap control: a user whose preferred path keeps changing keeps its current path for a while.
//!
//! Source: JUNCTION §V-E, "Preventing path state bouncing": the agent suspends direct updates of the steering
//! structure for a user whose paths flip-flop until conditions are stable. The paper gives no numbers; these
//! are ours:
//!
//! ```text
//!              more than k flips in the window
//!   direct ─────────────────────────────────────▶ suspended ─┐ a flip: at least one
//!     ▲                                             │  ▲     │ more hold without any
//!     └─────────────────────────────────────────────┘  └─────┘
//!        hold · 2^(times suspended lately) is over
//! ```
//!
//! Only updates that *prefer* another path are suspended. A path that goes down is removed at once, suspended
//! or not.

use super::params::{PathParamsError, check};
use crate::{MAX_PATHS, PathId};
use anabranch_element::Reason;
use anabranch_element::time::{Duration, Instant};
use serde::{Deserialize, Serialize};

/// A path is preferred to the current one if its RTT is smaller by more than this percentage of the current
/// RTT and by more than [`MARGIN_US`], so paths of equal length do not flap.
const MARGIN_PERCENT: u32 = 10;
const MARGIN_US: u32 = 1000;
/// Number of flips that are remembered, and therefore the largest value of `flips`.
const HISTORY: usize = 8;

/// When a user counts as flapping, and how long its updates are suspended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FlapParams {
    /// Changes of the preferred path that are allowed within one window. 1 to 8, default 4.
    pub flips: u8,
    /// The window, in milliseconds. 100 to 3 600 000, default 10 000.
    pub window_ms: u32,
    /// Duration of the first suspension, in milliseconds. Each further one lasts twice as long. 100 to
    /// `hold_max_ms`, default 5000.
    pub hold_ms: u32,
    /// Longest suspension, in milliseconds. After this time without a suspension, the doubling starts again.
    /// Up to 3 600 000, default 60 000.
    pub hold_max_ms: u32,
}

impl Default for FlapParams {
    fn default() -> Self {
        Self { flips: 4, window_ms: 10_000, hold_ms: 5_000, hold_max_ms: 60_000 }
    }
}

impl FlapParams {
    /// Checks every range.
    ///
    /// # Errors
    /// The first key out of range, with the range that is valid.
    pub fn validate(&self) -> Result<(), PathParamsError> {
        const HOUR_MS: u32 = 3_600_000;
        check([
            ("flips", self.flips.into(), 1, HISTORY as u32),
            ("window_ms", self.window_ms, 100, HOUR_MS),
            ("hold_max_ms", self.hold_max_ms, 100, HOUR_MS),
            ("hold_ms", self.hold_ms, 100, self.hold_max_ms),
        ])
    }
}

/// A decision of [`FlapControl`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlapEvent {
    /// Direct updates are suspended for this time, or longer if the path keeps flapping.
    Suspended(Duration),
    /// Direct updates are applied again: apply the newest state now.
    Resumed,
}

/// Flap control of one user.
#[derive(Debug, Clone)]
pub struct FlapControl {
    params: FlapParams,
    /// Times of the last flips, as a ring.
    flips: [u32; HISTORY],
    /// End of the current suspension, or of the last one.
    until: Instant,
    seen: u8,
    next: u8,
    level: u8,
    preferred: PathId,
    known: bool,
    suspended: bool,
}

impl FlapControl {
    /// No measurements yet. Values out of range are clamped.
    #[must_use]
    pub fn new(params: &FlapParams) -> Self {
        let hold_ms = params.hold_ms.max(1);
        Self {
            params: FlapParams {
                flips: params.flips.clamp(1, HISTORY as u8),
                window_ms: params.window_ms.max(1),
                hold_ms,
                hold_max_ms: params.hold_max_ms.max(hold_ms),
            },
            flips: [0; HISTORY],
            until: Instant::ZERO,
            seen: 0,
            next: 0,
            level: 0,
            preferred: 0,
            known: false,
            suspended: false,
        }
    }

    /// The newest measurements: RTT by path in microseconds, 0 for down. To be called during a suspension,
    /// too.
    pub fn on_rtts(&mut self, rtt_us: impl Fn(PathId) -> u32, now: Instant) -> Option<FlapEvent> {
        let up = (0..MAX_PATHS as PathId).filter(|p| rtt_us(*p) != 0);
        let best = up.min_by_key(|p| rtt_us(*p))?;
        let now_preferred = rtt_us(self.preferred);
        let margin = (now_preferred / 100 * MARGIN_PERCENT).max(MARGIN_US);
        let stays = self.known && now_preferred != 0 && now_preferred.saturating_sub(rtt_us(best)) <= margin;
        self.on_preferred(if stays { self.preferred } else { best }, now)
    }

    fn on_preferred(&mut self, preferred: PathId, now: Instant) -> Option<FlapEvent> {
        let flip = self.known && preferred != self.preferred;
        (self.preferred, self.known) = (preferred, true);
        if !flip {
            return None;
        }
        if self.suspended {
            self.until = self.until.max(now + ms(self.params.hold_ms));
            return None;
        }
        let now_ms = now.as_millis() as u32;
        // Slot `next - k` contains the flip k before this one. If that is inside the window, the window has k
        // + 1 flips.
        let k = self.params.flips;
        let back = usize::from(self.next).wrapping_sub(usize::from(k)) % HISTORY;
        let too_many = self.seen >= k && now_ms.wrapping_sub(self.flips[back]) <= self.params.window_ms;
        self.flips[usize::from(self.next)] = now_ms;
        self.next = (self.next + 1) % HISTORY as u8;
        self.seen = self.seen.saturating_add(1).min(HISTORY as u8);
        too_many.then(|| self.suspend(now))
    }

    /// Whether updates that prefer another path are suspended.
    #[must_use]
    pub fn is_suspended(&self) -> bool {
        self.suspended
    }

    /// Ends a suspension whose time is over.
    pub fn on_timeout(&mut self, now: Instant) -> Option<FlapEvent> {
        if !self.suspended || now < self.until {
            return None;
        }
        self.suspended = false;
        self.seen = 0;
        Some(FlapEvent::Resumed)
    }

    /// When the current suspension ends.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<(Instant, Reason)> {
        self.suspended.then_some((self.until, "flap hold"))
    }

    fn suspend(&mut self, now: Instant) -> FlapEvent {
        if now.saturating_since(self.until) > ms(self.params.hold_max_ms) {
            self.level = 0;
        }
        let hold = (u64::from(self.params.hold_ms) << self.level.min(16)).min(self.params.hold_max_ms.into());
        self.level = self.level.saturating_add(1);
        let hold = Duration::from_millis(hold);
        self.until = now + hold;
        self.suspended = true;
        FlapEvent::Suspended(hold)
    }
}

const fn ms(v: u32) -> Duration {
    Duration::from_millis(v as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Flips every `step_ms` from `at_ms` until an event occurs or `n` flips are done.
    fn flip(c: &mut FlapControl, at_ms: u64, step_ms: u64, n: u64) -> Option<(u64, FlapEvent)> {
        (0..n).find_map(|i| {
            let t = at_ms + i * step_ms;
            let path = 1 - c.preferred.min(1);
            c.on_preferred(path, Instant::from_millis(t)).map(|e| (i, e))
        })
    }

    #[test]
    fn slow_changes_are_not_flapping() {
        let mut c = FlapControl::new(&FlapParams::default());
        c.on_preferred(0, Instant::ZERO);
        assert_eq!(flip(&mut c, 100_000, 2_501, 100), None);
        assert!(!c.is_suspended() && c.poll_timeout().is_none());
    }

    #[test]
    fn the_fifth_flip_in_a_window_suspends_and_the_hold_doubles() {
        let mut c = FlapControl::new(&FlapParams::default());
        c.on_preferred(0, Instant::ZERO);
        for (round, hold_s) in [(0u64, 5u64), (1, 10), (2, 20), (3, 40), (4, 60), (5, 60)] {
            let t = 1_000 + round * 100_000;
            let (i, event) = flip(&mut c, t, 100, 20).unwrap();
            assert_eq!(i, 4, "round {round}");
            assert_eq!(event, FlapEvent::Suspended(Duration::from_secs(hold_s)));
            let (until, _) = c.poll_timeout().unwrap();
            assert_eq!(c.on_timeout(until - Duration::from_nanos(1)), None);
            // Rounds 0 to 4 resume less than hold_max before the next one flaps again.
            let wake = Instant::from_millis(t + 95_000).max(until);
            assert_eq!(c.on_timeout(until), Some(FlapEvent::Resumed));
            assert!(wake > until);
            c.until = wake;
        }
        // A long quiet time starts the doubling again.
        let (_, event) = flip(&mut c, 10_000_000, 100, 20).unwrap();
        assert_eq!(event, FlapEvent::Suspended(Duration::from_secs(5)));
    }

    #[test]
    fn flapping_on_keeps_the_hold_until_stable() {
        let mut c = FlapControl::new(&FlapParams::default());
        c.on_preferred(0, Instant::ZERO);
        flip(&mut c, 0, 100, 20).unwrap();
        assert_eq!(flip(&mut c, 4_000, 1_000, 10), None);
        let (until, _) = c.poll_timeout().unwrap();
        assert_eq!(until, Instant::from_millis(13_000 + 5_000));
        assert_eq!(c.on_rtts(|_| 0, until), None);
        assert_eq!(c.on_timeout(until), Some(FlapEvent::Resumed));
    }

    #[test]
    fn paths_of_the_same_length_do_not_flap_and_ones_that_come_and_go_do() {
        let mut c = FlapControl::new(&FlapParams::default());
        for i in 0..1000u64 {
            let noisy = |p: PathId| [10_000 + (i * 7919 % 900) as u32, 10_400][usize::from(p.min(1))];
            let two = |p: PathId| if p < 2 { noisy(p) } else { 0 };
            assert_eq!(c.on_rtts(two, Instant::from_millis(i * 40)), None);
        }
        let mut c = FlapControl::new(&FlapParams::default());
        let bouncing = |i: u64| {
            move |p: PathId| {
                [if i.is_multiple_of(2) { 5_000 } else { 0 }, 30_000, 0, 0, 0, 0, 0, 0][usize::from(p)]
            }
        };
        let event = (0..100u64).find_map(|i| c.on_rtts(bouncing(i), Instant::from_millis(i * 1000)));
        assert_eq!(event, Some(FlapEvent::Suspended(Duration::from_secs(5))));
    }

    #[test]
    fn a_wrong_value_names_key_and_range() {
        assert_eq!(FlapParams::default().validate(), Ok(()));
        let p: FlapParams = serde_json::from_str(r#"{"hold_ms": 70000}"#).unwrap();
        assert_eq!(p.validate().unwrap_err().to_string(), "hold_ms = 70000: write a value from 100 to 60000");
    }

    #[test]
    fn small() {
        assert!(size_of::<FlapControl>() <= 64);
    }

    proptest! {
        /// Never suspended with k or fewer flips in any window; always suspended with more.
        #[test]
        fn agrees_with_counting(gaps in prop::collection::vec(0u64..5_000, 1..60), k in 1u8..9) {
            let params = FlapParams { flips: k, ..FlapParams::default() };
            let mut c = FlapControl::new(&params);
            c.on_preferred(0, Instant::ZERO);
            let (mut t, mut times) = (0u64, Vec::new());
            for (i, gap) in gaps.iter().enumerate() {
                t += gap;
                times.push(t);
                let event = c.on_preferred((i as u8 + 1) % 2, Instant::from_millis(t));
                let recent = times.iter().filter(|x| t - **x <= u64::from(params.window_ms)).count();
                prop_assert_eq!(event.is_some(), recent > usize::from(k));
                if event.is_some() {
                    break;
                }
            }
        }
    }
}
