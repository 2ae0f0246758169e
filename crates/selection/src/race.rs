//! Staggered racing of candidates (RFC 8305 §5; RFC 9623 §4.3.2).
//!
//! ```text
//!            start 0          delay or failure of 0       delay or failure of 1
//!  Race::new ───────▶ trying 0 ───────▶ trying 0, 1 ───────▶ trying 0, 1, 2 … ──▶ all failed: Failed
//!                        │ connected i                                               or deadline
//!                        ▼
//!                     Won(i), Cancel of all others under way
//! ```

use anabranch_element::time::{Duration, Instant};
use std::collections::VecDeque;

/// Parameters of a race.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RaceConfig {
    /// Time between two attempts without information about the path (RFC 8305 §8: 250 ms).
    pub attempt_delay: Duration,
    /// Minimum time between two attempts (RFC 8305 §8: 100 ms, and never less than 10 ms).
    pub least_delay: Duration,
    /// Maximum time between two attempts (RFC 8305 §8: 2 s).
    pub most_delay: Duration,
    /// Total time.
    pub deadline: Duration,
}

impl Default for RaceConfig {
    fn default() -> Self {
        Self {
            attempt_delay: Duration::from_millis(250),
            least_delay: Duration::from_millis(100),
            most_delay: Duration::from_secs(2),
            deadline: Duration::from_secs(30),
        }
    }
}

impl RaceConfig {
    /// Delay between an attempt and the next one: two round-trip times if the bound is known, within the limits.
    #[must_use]
    pub fn delay(&self, rtt_us: Option<u64>) -> Duration {
        let least = self.least_delay.max(Duration::from_millis(10));
        let most = self.most_delay.max(least);
        rtt_us
            .map_or(self.attempt_delay, |rtt| Duration::from_micros(rtt.saturating_mul(2)))
            .clamp(least, most)
    }
}

/// An action for the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RaceAction {
    /// Start the attempt.
    Start(usize),
    /// Abandon the attempt, and close it if it still succeeds.
    Cancel(usize),
    /// The attempt is the connection; the race is over.
    Won(usize),
    /// No attempt succeeded; the race is over.
    Failed,
}

/// Reason of a race's timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RaceReason {
    /// The next attempt starts.
    NextAttempt,
    /// The total time is over.
    Deadline,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Attempt {
    Waiting,
    Trying,
    Over,
}

/// A race. Attempts are numbered by the rank of their candidates.
#[derive(Debug, Clone)]
pub struct Race {
    attempts: Vec<Attempt>,
    delays: Vec<Duration>,
    next_at: Instant,
    deadline: Instant,
    decided: bool,
    actions: VecDeque<RaceAction>,
}

impl Race {
    /// Starts a race at `now` with one attempt per delay; `delays[i]` is the time between the start of attempt `i` and that of the next
    /// one ([`RaceConfig::delay`]).
    #[must_use]
    pub fn new(delays: Vec<Duration>, config: &RaceConfig, now: Instant) -> Self {
        let mut race = Self {
            attempts: vec![Attempt::Waiting; delays.len()],
            delays,
            next_at: now,
            deadline: now + config.deadline,
            decided: false,
            actions: VecDeque::new(),
        };
        race.start_next(now);
        race
    }

    /// The next action; call repeatedly until `None`.
    pub fn poll_action(&mut self) -> Option<RaceAction> {
        self.actions.pop_front()
    }

    /// When to call [`Race::on_timeout`], and for what reason.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<(Instant, RaceReason)> {
        if self.decided {
            None
        } else if self.attempts.contains(&Attempt::Waiting) && self.next_at <= self.deadline {
            Some((self.next_at, RaceReason::NextAttempt))
        } else {
            Some((self.deadline, RaceReason::Deadline))
        }
    }

    /// Handles the passage of time.
    pub fn on_timeout(&mut self, now: Instant) {
        if self.decided {
            return;
        }
        if now >= self.deadline {
            self.fail();
        } else if now >= self.next_at {
            self.start_next(now);
        }
    }

    /// Records that an attempt succeeded. Abandoned and late attempts have no effect.
    pub fn on_connected(&mut self, attempt: usize) {
        if self.decided || self.attempts.get(attempt) != Some(&Attempt::Trying) {
            return;
        }
        self.decided = true;
        self.attempts[attempt] = Attempt::Over;
        self.actions.push_back(RaceAction::Won(attempt));
        self.cancel();
    }

    /// Records that an attempt failed: the next one starts at once (RFC 8305 §5).
    pub fn on_failed(&mut self, attempt: usize, now: Instant) {
        if self.decided || self.attempts.get(attempt) != Some(&Attempt::Trying) {
            return;
        }
        self.attempts[attempt] = Attempt::Over;
        self.start_next(now);
    }

    /// Whether the race is over.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        self.decided
    }

    fn start_next(&mut self, now: Instant) {
        if let Some(next) = self.attempts.iter().position(|a| *a == Attempt::Waiting) {
            self.attempts[next] = Attempt::Trying;
            self.next_at = now + self.delays[next];
            self.actions.push_back(RaceAction::Start(next));
        } else if !self.attempts.contains(&Attempt::Trying) {
            self.fail();
        }
    }

    fn fail(&mut self) {
        self.decided = true;
        self.cancel();
        self.actions.push_back(RaceAction::Failed);
    }

    fn cancel(&mut self) {
        for (i, attempt) in self.attempts.iter_mut().enumerate() {
            if *attempt == Attempt::Trying {
                self.actions.push_back(RaceAction::Cancel(i));
            }
            *attempt = Attempt::Over;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use RaceAction::{Cancel, Failed, Start, Won};
    use proptest::prelude::*;

    const MS: fn(u64) -> Instant = Instant::from_millis;

    fn race(attempts: usize) -> Race {
        let config = RaceConfig::default();
        Race::new(vec![config.delay(None); attempts], &config, MS(0))
    }

    fn all(race: &mut Race) -> Vec<RaceAction> {
        std::iter::from_fn(|| race.poll_action()).collect()
    }

    #[test]
    fn the_next_attempt_starts_after_the_delay_and_the_first_to_connect_wins() {
        let mut r = race(3);
        assert_eq!(all(&mut r), [Start(0)]);
        assert_eq!(r.poll_timeout(), Some((MS(250), RaceReason::NextAttempt)));
        r.on_timeout(MS(249));
        assert_eq!(all(&mut r), []);
        r.on_timeout(MS(250));
        assert_eq!(all(&mut r), [Start(1)]);
        r.on_connected(1);
        assert_eq!(all(&mut r), [Won(1), Cancel(0)]);
        assert_eq!(r.poll_timeout(), None);
        r.on_connected(0);
        assert_eq!(all(&mut r), []);
    }

    #[test]
    fn a_failure_starts_the_next_at_once_and_the_last_one_ends_it() {
        let mut r = race(2);
        r.on_failed(0, MS(10));
        assert_eq!(all(&mut r), [Start(0), Start(1)]);
        assert_eq!(r.poll_timeout(), Some((MS(30_000), RaceReason::Deadline)));
        r.on_failed(1, MS(20));
        assert_eq!(all(&mut r), [Failed]);
        assert!(r.is_over());
        assert_eq!(all(&mut race(0)), [Failed]);
    }

    #[test]
    fn the_deadline_gives_up_what_is_under_way() {
        let mut r = race(1);
        r.on_timeout(MS(30_000));
        assert_eq!(all(&mut r), [Start(0), Cancel(0), Failed]);
    }

    #[test]
    fn the_delay_follows_the_round_trip_time_within_limits() {
        let c = RaceConfig::default();
        let delays = [None, Some(12_000), Some(200_000), Some(u64::MAX)].map(|rtt| c.delay(rtt).as_millis());
        assert_eq!(delays, [250, 100, 400, 2000]);
    }

    proptest! {
        #[test]
        fn every_race_ends_with_one_verdict(
            delays in proptest::collection::vec(10u64..500, 0..6),
            events in proptest::collection::vec((0usize..7, any::<bool>(), 0u64..400), 0..40),
        ) {
            let delays = delays.into_iter().map(Duration::from_millis).collect::<Vec<_>>();
            let count = delays.len();
            let mut r = Race::new(delays, &RaceConfig::default(), MS(0));
            let (mut now, mut seen) = (0, all(&mut r));
            for (attempt, good, step) in events {
                now += step;
                if good { r.on_connected(attempt) } else { r.on_failed(attempt, MS(now)) }
                r.on_timeout(MS(now));
                seen.extend(all(&mut r));
            }
            r.on_timeout(MS(60_000));
            seen.extend(all(&mut r));
            prop_assert!(r.is_over());
            prop_assert_eq!(seen.iter().filter(|a| matches!(a, Won(_) | Failed)).count(), 1);
            let starts: Vec<usize> =
                seen.iter().filter_map(|a| if let Start(i) = a { Some(*i) } else { None }).collect();
            let in_order: Vec<usize> = (0..starts.len()).collect();
            prop_assert_eq!(&starts, &in_order, "as ranked, each once");
            prop_assert!(starts.len() <= count);
        }
    }
}
