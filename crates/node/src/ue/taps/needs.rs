//! Guarantees that programs need and no slice has are requested from the slice manager, which may enlarge a
//! slice. In the paper, the USCI only carries facts towards the UE; requests in the other direction are among
//! its future work (§5).
//!
//! ```text
//!  select, mappings ─▶ queue_needs ─▶ queue ─▶ Usci: POST /v1/me/needs, slice after slice until one grows
//!                                                        │
//!  a request answered within HOLDS is not repeated ◀──────┘   the enlarged guarantee arrives as facts, by stream or poll
//! ```

use super::Taps;
use anabranch_selection::{Need, Properties};
use serde::Serialize;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use utoipa::ToSchema;

/// Maximum number of waiting requests, and of remembered answers.
const MAX_ANSWERS: usize = 16;
/// Time for which an answer is valid; the same request is not repeated before.
const HOLDS: Duration = Duration::from_secs(5);

/// Rates that a program needs from a single slice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequiredRates {
    /// Downlink, bit/s; 0: unchanged.
    pub dl_bps: u64,
    /// Uplink, bit/s; 0: unchanged.
    pub ul_bps: u64,
    /// The slices that may be enlarged, the one with the smallest deficit first: local name, identifier at
    /// the manager.
    pub slices: Vec<(String, String)>,
}

/// Outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum GrowthOutcome {
    /// A slice is enlarged.
    Grows,
    /// A slice already guarantees as much.
    Promised,
    /// No slice may be enlarged.
    Refused,
    /// The slice manager did not answer.
    Failed,
}

/// A request to the slice manager.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct NeedView {
    /// Downlink, bit/s; 0: unchanged.
    pub dl_bps: u64,
    /// Uplink, bit/s; 0: unchanged.
    pub ul_bps: u64,
    /// Outcome.
    pub became: GrowthOutcome,
    /// The slice that is enlarged or already guarantees the rates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slice: Option<String>,
    /// Reasons for refusals, per slice.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub why: Vec<String>,
    /// Age, seconds.
    pub s_ago: f64,
}

/// Waiting requests and remembered answers.
#[derive(Default)]
pub struct Needs {
    inner: Mutex<Inner>,
    more: Notify,
}

#[derive(Default)]
struct Inner {
    waiting: VecDeque<RequiredRates>,
    answered: VecDeque<(Instant, RequiredRates, NeedView)>,
    /// The request in progress.
    in_progress: Option<RequiredRates>,
    counts: [u64; 4],
}

impl Needs {
    /// Waits for the next request. It is in progress until it is answered.
    pub async fn next(&self) -> RequiredRates {
        loop {
            let more = self.more.notified();
            {
                let mut inner = self.inner();
                if let Some(wanted) = inner.waiting.pop_front() {
                    inner.in_progress = Some(wanted.clone());
                    return wanted;
                }
            }
            more.await;
        }
    }

    /// Records the outcome of the request that [`Self::next`] returned last.
    pub fn answer(&self, became: GrowthOutcome, slice: Option<String>, why: Vec<String>) {
        let mut inner = self.inner();
        inner.counts[became as usize] += 1;
        let Some(wanted) = inner.in_progress.take() else { return };
        let view = NeedView { dl_bps: wanted.dl_bps, ul_bps: wanted.ul_bps, became, slice, why, s_ago: 0.0 };
        if inner.answered.len() == MAX_ANSWERS {
            inner.answered.pop_front();
        }
        inner.answered.push_back((Instant::now(), wanted, view));
    }

    /// The last requests, the newest last.
    pub fn view(&self) -> Vec<NeedView> {
        let with_age = |(at, _, view): &(Instant, RequiredRates, NeedView)| NeedView {
            s_ago: at.elapsed().as_secs_f64(),
            ..view.clone()
        };
        self.inner().answered.iter().map(with_age).collect()
    }

    /// Number of requests by outcome.
    pub fn counts(&self) -> [(&'static str, u64); 4] {
        let [grows, promised, refused, failed] = self.inner().counts;
        [("grows", grows), ("promised", promised), ("refused", refused), ("failed", failed)]
    }

    fn push(&self, wanted: RequiredRates) {
        let mut inner = self.inner();
        let held = inner.answered.iter().any(|(at, other, _)| *other == wanted && at.elapsed() < HOLDS);
        let known = inner.waiting.contains(&wanted) || inner.in_progress.as_ref() == Some(&wanted);
        // A program with so many requests at once will repeat them.
        if held || known || inner.waiting.len() >= MAX_ANSWERS {
            return;
        }
        inner.waiting.push_back(wanted);
        drop(inner);
        self.more.notify_one();
    }

    /// The mutex may be poisoned: each change is a single step, so the state is consistent.
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Taps {
    /// The requests to the slice manager.
    pub fn needs(&self) -> &Needs {
        &self.needs
    }

    /// Queues the unmet needs of a selection, if there is a slice manager and requests are enabled.
    pub(super) fn queue_needs(&self, open: &[Need], p: &Properties) {
        let Some(first) = open.first().filter(|_| self.requests_growth) else { return };
        let known_slices = self.known_slices();
        let mut slices: Vec<(u64, String, String)> = first
            .slices
            .iter()
            .filter_map(|name| {
                let (_, slice) = known_slices.managed.get(name)?;
                let facts = slice.facts.as_ref()?;
                let has = match first.property.as_str() {
                    "minSendRate" => facts.uplink_guaranteed_bps,
                    _ => facts.downlink_guaranteed_bps,
                };
                Some((has.unwrap_or(0), name.clone(), known_slices.ids.get(name)?.clone()))
            })
            .collect();
        drop(known_slices);
        slices.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
        if slices.is_empty() {
            return;
        }
        self.needs.push(RequiredRates {
            dl_bps: p.min_recv_rate.get().unwrap_or(0),
            ul_bps: p.min_send_rate.get().unwrap_or(0),
            slices: slices.into_iter().map(|(_, name, id)| (name, id)).collect(),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(dl_bps: u64) -> RequiredRates {
        RequiredRates { dl_bps, ul_bps: 0, slices: vec![("gold".into(), "1".into())] }
    }

    #[tokio::test]
    async fn equal_requests_are_sent_once_and_the_queue_is_bounded() {
        let needs = Needs::default();
        for _ in 0..3 {
            needs.push(wanted(1));
        }
        assert_eq!(needs.next().await, wanted(1));
        needs.push(wanted(1));
        needs.answer(GrowthOutcome::Refused, None, vec!["gold: full".into()]);
        needs.push(wanted(1));
        assert!(needs.inner().waiting.is_empty(), "the answer holds");
        assert_eq!((needs.view()[0].became, needs.counts()[2]), (GrowthOutcome::Refused, ("refused", 1)));
        (0..100).for_each(|i| needs.push(wanted(i + 10)));
        assert_eq!(needs.inner().waiting.len(), MAX_ANSWERS);
        for _ in 0..MAX_ANSWERS {
            needs.next().await;
            needs.answer(GrowthOutcome::Grows, Some("gold".into()), Vec::new());
        }
        assert_eq!(needs.view().len(), MAX_ANSWERS);
        // After the answer has expired (here: was evicted), the request is repeated.
        needs.push(wanted(1));
        assert_eq!(needs.next().await, wanted(1));
    }
}
