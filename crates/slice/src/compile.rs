//! The policy compiler: translates slice profiles into scheduler settings of cells.

use super::admission::Guarantee;
use super::inventory::{Access, WHOLE};
use super::plan::Action;
use super::profile::ServiceProfile;
use super::record::Slice;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Settings of one slice in a cell's scheduler.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SliceShare {
    /// Name of the slice at the cell.
    pub name: String,
    /// Share of the RBs, millionths.
    pub share_ppm: u32,
    /// Part of the share that is reserved even when unused: the whole share of a slice isolated in the RAN (NG.116 isolation 2
    /// and 3).
    pub dedicated_ppm: u32,
    /// Share that is never exceeded; it carries the maximum rate.
    pub max_ppm: u32,
    /// Priority level of the slice's most urgent 5QI; a lower number goes first.
    pub priority: u8,
}

impl SliceShare {
    /// Settings for a slice with this profile and guarantee on this access.
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

/// The shares of a cell after `action` of slice `id`; those of other slices do not change. Their sum is within the admitted
/// amounts, whichever changes are in progress.
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

/// The current shares of a cell.
#[must_use]
pub fn shares_now(slices: &BTreeMap<String, Slice>, access: &Access) -> Vec<SliceShare> {
    slices.values().filter_map(|slice| now(slice, access)).collect()
}

/// The current share of a slice; during a change, the share that its cell has accepted.
fn now(slice: &Slice, access: &Access) -> Option<SliceShare> {
    let guarantee = *slice.applied.get(&access.name)?;
    let pending = slice.pending.as_ref().filter(|p| p.applied.contains(&access.name));
    Some(SliceShare::new(slice, pending.map_or(&slice.profile, |p| &p.profile), guarantee, access))
}
