//! Execution of the race of candidates (RFC 8305 §5): `selection::race` decides when an attempt starts and which is abandoned;
//! here attempts are futures, and the clock is real.

use anabranch_element::time::Instant;
use anabranch_selection::race::{Race, RaceAction, RaceConfig};
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

/// The clock of a race.
pub(crate) trait Clock {
    /// Time since an arbitrary origin.
    fn now(&self) -> Instant;
    /// Waits until `when`.
    fn until(&self, when: Instant) -> impl Future<Output = ()>;
}

/// The monotonic clock.
pub(crate) struct Real(std::time::Instant);

impl Real {
    pub fn start() -> Self {
        Self(std::time::Instant::now())
    }
}

impl Clock for Real {
    fn now(&self) -> Instant {
        // Sufficient for 584 years.
        Instant::from_nanos(u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    async fn until(&self, when: Instant) {
        tokio::time::sleep_until((self.0 + Duration::from_nanos(when.as_nanos())).into()).await;
    }
}

/// Result of a race.
pub(crate) enum Outcome<T> {
    /// This attempt succeeded.
    Won(usize, T),
    /// No attempt succeeded, possibly because of the time limit.
    Failed { timed_out: bool },
}

/// Runs attempts in the order of rank, each started after the delay of the previous one or its failure. Returns the first that
/// succeeds; `failed` is called for the others that ended. Attempts in progress when the race is decided are dropped, which
/// closes them.
pub(crate) async fn run<T, E, F: Future<Output = Result<T, E>>>(
    clock: &impl Clock,
    delays: Vec<Duration>,
    config: &RaceConfig,
    attempt: impl Fn(usize) -> F,
    mut failed: impl FnMut(usize, E),
) -> Outcome<T> {
    let end = clock.now() + config.deadline;
    let mut race = Race::new(delays, config, clock.now());
    let mut under_way: Vec<(usize, Pin<Box<F>>)> = Vec::new();
    let mut winner = None;
    loop {
        while let Some(action) = race.poll_action() {
            match action {
                RaceAction::Start(i) => under_way.push((i, Box::pin(attempt(i)))),
                RaceAction::Cancel(i) => under_way.retain(|(j, _)| *j != i),
                RaceAction::Failed => return Outcome::Failed { timed_out: clock.now() >= end },
                RaceAction::Won(i) => {
                    if let Some(connection) = winner.take() {
                        return Outcome::Won(i, connection);
                    }
                }
            }
        }
        let Some((when, _)) = race.poll_timeout() else { return Outcome::Failed { timed_out: false } };
        let mut timer = pin!(clock.until(when));
        let ended = poll_fn(|context| {
            for k in 0..under_way.len() {
                if let Poll::Ready(result) = under_way[k].1.as_mut().poll(context) {
                    return Poll::Ready(Some((under_way.remove(k).0, result)));
                }
            }
            timer.as_mut().poll(context).map(|()| None)
        })
        .await;
        match ended {
            Some((i, Ok(connection))) => {
                winner = Some(connection);
                race.on_connected(i);
            }
            Some((i, Err(error))) => {
                failed(i, error);
                race.on_failed(i, clock.now());
            }
            None => race.on_timeout(clock.now()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};
    use std::collections::BTreeSet;
    use std::sync::Arc;
    use std::task::{Context, Wake, Waker};

    /// A clock that stands still until it is waited for, and then jumps to the first deadline.
    #[derive(Default)]
    struct Virtual {
        now: Cell<Instant>,
        deadlines: RefCell<BTreeSet<Instant>>,
    }

    impl Clock for Virtual {
        fn now(&self) -> Instant {
            self.now.get()
        }

        async fn until(&self, when: Instant) {
            poll_fn(|_| {
                if self.now.get() >= when {
                    return Poll::Ready(());
                }
                self.deadlines.borrow_mut().insert(when);
                Poll::Pending
            })
            .await;
        }
    }

    struct Idle;
    impl Wake for Idle {
        fn wake(self: Arc<Self>) {}
    }

    /// Runs a race in virtual time; each attempt is given by (duration in milliseconds, whether it succeeds).
    fn race(
        attempts: &[Option<(u64, bool)>],
        rtt_us: Option<u64>,
    ) -> (Option<usize>, bool, Vec<(u64, usize)>, u64) {
        let (clock, config) = (Virtual::default(), RaceConfig::default());
        let starts = RefCell::new(Vec::new());
        let attempt = async |i: usize| {
            starts.borrow_mut().push((clock.now().as_millis(), i));
            let Some((after_ms, good)) = attempts[i] else { std::future::pending().await };
            clock.until(clock.now() + Duration::from_millis(after_ms)).await;
            if good { Ok(i) } else { Err(()) }
        };
        let delays = vec![config.delay(rtt_us); attempts.len()];
        let mut running = pin!(run(&clock, delays, &config, attempt, |_, ()| ()));
        let waker = Waker::from(Arc::new(Idle));
        let outcome = loop {
            match running.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(outcome) => break outcome,
                Poll::Pending => {
                    let next = clock.deadlines.borrow_mut().pop_first().expect("somebody waits for a time");
                    clock.now.set(next.max(clock.now()));
                }
            }
        };
        let (won, timed_out) = match outcome {
            Outcome::Won(i, j) => {
                assert_eq!(i, j);
                (Some(i), false)
            }
            Outcome::Failed { timed_out } => (None, timed_out),
        };
        (won, timed_out, starts.borrow().clone(), clock.now().as_millis())
    }

    #[test]
    fn an_unresponsive_first_candidate_costs_one_delay() {
        let answer = race(&[None, Some((30, true)), Some((5, true))], None);
        assert_eq!(answer, (Some(1), false, vec![(0, 0), (250, 1)], 280));
        // If the round-trip time is known, the delay is twice that.
        let answer = race(&[None, Some((30, true))], Some(70_000));
        assert_eq!(answer, (Some(1), false, vec![(0, 0), (140, 1)], 170));
    }

    #[test]
    fn a_slow_first_candidate_may_still_win_and_a_refused_one_costs_nothing() {
        let answer = race(&[Some((300, true)), Some((100, true))], None);
        assert_eq!(answer, (Some(0), false, vec![(0, 0), (250, 1)], 300));
        let answer = race(&[Some((10, false)), Some((10, true))], None);
        assert_eq!(answer, (Some(1), false, vec![(0, 0), (10, 1)], 20));
    }

    #[test]
    fn without_a_winner_it_ends_with_the_last_failure_or_in_time() {
        let answer = race(&[Some((10, false)), Some((20, false))], None);
        assert_eq!(answer, (None, false, vec![(0, 0), (10, 1)], 30));
        let answer = race(&[None, None], None);
        assert_eq!(answer, (None, true, vec![(0, 0), (250, 1)], 30_000));
        assert_eq!(race(&[], None).0, None);
    }
}
