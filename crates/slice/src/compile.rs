//! The policy compiler: what slices promise, in the words of those that keep the promise.

use super::admission::Guarantee;
use super::inventory::{Access, WHOLE};
use super::plan::Action;
use super::profile::ServiceProfile;
use super::record::Slice;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What a cell's scheduler is told of one slice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SliceShare {
    /// The slice's name at the cell.
    pub name: String,
    /// Share of the RBs, millionths.
    pub share_ppm: u32,
    /// Of it, kept even when unused: the whole share of a slice isolated in the RAN (NG.116 isolation 2 and 3).
    pub dedicated_ppm: u32,
    /// Share never exceeded: what carries the maximum rate.
    pub max_ppm: u32,
    /// The lower, the sooner: the priority level of its most urgent 5QI.
    pub priority: u8,
}

impl SliceShare {
    /// A slice with this profile and guarantee on this access.
    #[must_use]
    pub fn new(slice: &Slice, profile: &ServiceProfile, guarantee: Guarantee, access: &Access) -> Self {
        let most = |kbps: Option<f64>| kbps.map_or(u64::MAX, |kbps| (kbps * 1e3).round() as u64);
        let most = Guarantee::of_rates(
            most(profile.dl_slice.max).min(access.downlink_bps),
            most(profile.ul_slice.max).min(access.uplink_bps),
            access,
        );
        let isolated = profile.sharing.as_deref() == Some("NON-SHARED");
        let levels = profile.other.get("qosParameters").and_then(|q| q.as_array());
        let priority = levels.into_iter().flatten().filter_map(|q| q.get("priority_level")?.as_u64()).min();
        Self {
            name: slice.cell_name.clone(),
            share_ppm: guarantee.share_ppm,
            dedicated_ppm: if isolated { guarantee.share_ppm } else { 0 },
            max_ppm: most.share_ppm.clamp(guarantee.share_ppm, WHOLE.max(guarantee.share_ppm)),
            priority: priority.and_then(|p| u8::try_from(p).ok()).unwrap_or(0),
        }
    }
}

/// The shares of a cell once `action` of the slice `id` is done; the other slices stay as they are. Their sum is within
/// what was admitted, whichever changes are under way.
#[must_use]
pub fn shares(
    slices: &BTreeMap<String, Slice>,
    access: &Access,
    id: &str,
    action: &Action,
) -> Vec<SliceShare> {
    let of = |slice: &Slice| {
        let (guarantees, profile) = match action {
            _ if slice.id != id => return now(slice, access),
            Action::Do(_) => (&slice.wanted, slice.pending.as_ref().map_or(&slice.profile, |p| &p.profile)),
            Action::Undo(_) => (&slice.before, &slice.profile),
        };
        Some(SliceShare::new(slice, profile, *guarantees.get(&access.name)?, access))
    };
    slices.values().filter_map(of).collect()
}

/// The shares of a cell as they should be now.
#[must_use]
pub fn shares_now(slices: &BTreeMap<String, Slice>, access: &Access) -> Vec<SliceShare> {
    slices.values().filter_map(|slice| now(slice, access)).collect()
}

/// What a slice should have now: of a change under way, what its cell was told and took.
fn now(slice: &Slice, access: &Access) -> Option<SliceShare> {
    let guarantee = *slice.applied.get(&access.name)?;
    let pending = slice.pending.as_ref().filter(|p| p.applied.contains(&access.name));
    Some(SliceShare::new(slice, pending.map_or(&slice.profile, |p| &p.profile), guarantee, access))
}
