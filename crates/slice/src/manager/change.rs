//! Effects of a change on the record of a slice.

use crate::lifecycle::{Illegal, Phase, State};
use crate::plan::{Execution, Step};
use crate::profile::ServiceProfile;
use crate::record::{Need, Slice};
use std::collections::BTreeSet;

/// Initial pause before a failed slice is retried, milliseconds; it doubles each time.
const RETRY_MS: u64 = 5_000;
/// Maximum of this pause, milliseconds.
pub const MAX_RETRY_MS: u64 = 300_000;

/// The plan of a change: shares first, then services, then verification of each access.
pub fn steps(slice: &Slice, services: bool) -> Execution {
    let accesses: BTreeSet<&String> = slice.wanted.keys().chain(slice.before.keys()).collect();
    let mut all: Vec<Step> = accesses.iter().map(|a| Step::Shares { access: (*a).clone() }).collect();
    if services {
        all.push(Step::Services);
    }
    all.extend(slice.wanted.keys().map(|a| Step::Verify { access: a.clone() }));
    Execution::new(all)
}

/// Schedules the retry of a failed slice.
pub fn wait(slice: &mut Slice, now_ms: u64) {
    let pause = RETRY_MS.saturating_mul(1 << slice.tries.min(16)).min(MAX_RETRY_MS);
    slice.tries = slice.tries.saturating_add(1);
    slice.retry_ms = Some(now_ms.saturating_add(pause));
}

/// A profile that guarantees each UE what it needs.
pub fn grown<'a>(asked: &ServiceProfile, needs: impl Iterator<Item = &'a Need>) -> ServiceProfile {
    let mut profile = asked.clone();
    for need in needs {
        for (slice, ue, bps) in [
            (&mut profile.dl_slice, &mut profile.dl_ue, need.dl_bps),
            (&mut profile.ul_slice, &mut profile.ul_ue, need.ul_bps),
        ] {
            let kbps = bps as f64 / 1e3;
            if kbps <= ue.gua.or(slice.gua).unwrap_or(0.0) {
                continue;
            }
            if ue.gua.is_some() {
                ue.gua = Some(kbps);
            }
            slice.gua = Some(slice.gua.unwrap_or(0.0).max(kbps));
        }
    }
    profile
}

/// Records that an access has the new configuration or, with `back`, the previous one.
pub fn settle(slice: &mut Slice, access: &str, back: bool) {
    let to = if back { &slice.before } else { &slice.wanted };
    match to.get(access).copied() {
        Some(guarantee) => drop(slice.applied.insert(access.to_owned(), guarantee)),
        None => drop(slice.applied.remove(access)),
    }
    if let Some(pending) = &mut slice.pending {
        if back {
            pending.applied.remove(access)
        } else {
            pending.applied.insert(access.to_owned())
        };
    }
    // The access has confirmed its configuration.
    slice.unsure.remove(access);
}

/// Updates the state according to the known faults.
pub fn degrade(slice: &mut Slice) -> Result<(), Illegal> {
    if !slice.state.usable() {
        return Ok(());
    }
    // Faults at accesses where the slice is no longer present do not concern it.
    slice.problems.retain(|access, _| slice.applied.contains_key(access));
    let wrong: Vec<String> = slice.problems.iter().map(|(access, why)| format!("{access}: {why}")).collect();
    slice.state = match (&slice.state, wrong.is_empty()) {
        (_, false) => slice.state.after(&Phase::Degrade(wrong.join("; ")))?,
        (State::Degraded(_), true) => slice.state.after(&Phase::Recover)?,
        (state, true) => state.clone(),
    };
    Ok(())
}
