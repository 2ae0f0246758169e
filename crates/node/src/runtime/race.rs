//! Connection racing: candidates are tried in order; the next one starts when an earlier one fails or is late
//! (RFC 8305).

use anabranch_element::time;
use anabranch_selection::race::{Race, RaceAction, RaceConfig};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// Returns the index of the first candidate that succeeds, and its result. `delays` has, per candidate, the
/// time after which the next one is tried in parallel; `try_one` tries one. Attempts in progress are aborted
/// at the end.
///
/// # Errors
/// The first failure, or `None` if only the deadline expired.
pub async fn first<T, E, F>(
    delays: Vec<Duration>,
    config: &RaceConfig,
    mut try_one: impl FnMut(usize) -> F,
) -> Result<(usize, T), Option<E>>
where
    T: Send + 'static,
    E: Send + 'static,
    F: Future<Output = Result<T, E>> + Send + 'static,
{
    let started = Instant::now();
    let now = || time::Instant::from_nanos(u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX));
    let mut race = Race::new(delays, config, now());
    // Attempts that are still in progress at the end are aborted.
    let mut tried = JoinSet::new();
    let mut connected = None;
    let mut failure = None;
    loop {
        while let Some(action) = race.poll_action() {
            match action {
                RaceAction::Start(i) => {
                    let attempt = try_one(i);
                    tried.spawn(async move { (i, attempt.await) });
                }
                // Occurs only together with the end.
                RaceAction::Cancel(_) => {}
                RaceAction::Won(i) => return connected.map(|found| (i, found)).ok_or(failure),
                RaceAction::Failed => return Err(failure),
            }
        }
        let Some((at, _)) = race.poll_timeout() else { continue };
        let until = started + Duration::from_nanos(at.as_nanos());
        tokio::select! {
            Some(done) = tried.join_next() => match done {
                Ok((i, Ok(found))) => {
                    connected = Some(found);
                    race.on_connected(i);
                }
                Ok((i, Err(error))) => {
                    failure.get_or_insert(error);
                    race.on_failed(i, now());
                }
                // An attempt is aborted only at the end.
                Err(_) => {}
            },
            () = tokio::time::sleep_until(until.into()) => race.on_timeout(now()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy)]
    enum Way {
        Leads,
        Fails,
        Never,
    }
    use Way::{Fails, Leads, Never};

    /// The result of a race, and the number of candidates that were tried.
    async fn race(ways: &'static [Way], deadline_s: u64) -> (Result<(usize, usize), Option<usize>>, usize) {
        let config = RaceConfig { deadline: Duration::from_secs(deadline_s), ..RaceConfig::default() };
        let mut begun = 0;
        let delays = ways.iter().map(|_| config.delay(None)).collect();
        let result = first(delays, &config, |i| {
            assert_eq!(i, begun, "in order");
            begun += 1;
            async move {
                match ways[i] {
                    Leads => Ok(i),
                    Fails => Err(i),
                    Never => std::future::pending().await,
                }
            }
        });
        (result.await, begun)
    }

    #[tokio::test]
    async fn a_late_or_failed_candidate_is_followed_by_the_next() {
        assert_eq!(race(&[Leads], 60).await, (Ok((0, 0)), 1));
        assert_eq!(race(&[Never, Leads, Never], 60).await, (Ok((1, 1)), 2));
        assert_eq!(race(&[Fails, Never, Leads], 60).await, (Ok((2, 2)), 3));
        assert_eq!(race(&[Fails, Fails], 60).await, (Err(Some(0)), 2));
        assert_eq!(race(&[Never, Fails, Never], 1).await, (Err(Some(1)), 3));
        assert_eq!(race(&[Never], 1).await, (Err(None), 1));
        assert_eq!(race(&[], 60).await, (Err(None), 0));
    }
}
