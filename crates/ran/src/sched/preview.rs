//! Estimate of the RBs that a scheduler will give a slice.
//!
//! ```text
//!   level   ─────────┬───────────┬────────    the same level for all slices, each as wide as its share
//!           ▦▦▦▦▦▦▦▦ │ ▦▦▦▦▦▦▦▦▦ │
//!                    │           │ ▦▦▦▦▦▦▦    a slice that needs less leaves the rest to the others
//! ```

use super::{Capacity, SliceConfig};

/// What is known before a TTI: the available RBs and the demand of each slice.
#[derive(Debug, Clone, Copy)]
pub struct TtiPreview<'a> {
    /// RBs free for new data: groups of `rbg`, and at most one shorter group.
    pub rbs: u16,
    /// RBs of a group, at least 1.
    pub rbg: u16,
    /// Configuration of the slices, by slice index.
    pub slices: &'a [SliceConfig],
    /// RBs that would empty each slice.
    pub demands: &'a [u32],
}

impl TtiPreview<'_> {
    /// RBs that would empty a slice.
    #[must_use]
    pub fn demand(&self, slice: usize) -> u16 {
        let rbs = self.demands.get(slice).copied().unwrap_or(0);
        u16::try_from(rbs).map_or(self.rbs, |rbs| rbs.min(self.rbs))
    }

    /// The free groups.
    #[must_use]
    pub fn room(&self) -> Capacity {
        Capacity::new(self.rbs, self.rbg)
    }

    /// RBs of a slice with an unlimited backlog: its share among the slices with a demand, plus what slices that need less
    /// leave. The result is not rounded to groups, because groups are indivisible in a TTI but not over time.
    #[must_use]
    pub fn by_share(&self, slice: usize) -> u16 {
        self.by_share_of(slice, |other| self.demand(other))
    }

    /// Like [`by_share`](Self::by_share), with the demand of the other slices given by `demand`.
    pub(super) fn by_share_of(&self, slice: usize, demand: impl Fn(usize) -> u16) -> u16 {
        // Slices without a share divide equally what the others leave.
        let weight = |slice: usize| self.slices.get(slice).map_or(0, SliceConfig::share_parts).max(1);
        let own = weight(slice);
        let fits = |mine: u16| {
            let others = (0..self.slices.len()).filter(|other| *other != slice);
            let at_level =
                others.map(|other| (u64::from(mine) * weight(other)).min(u64::from(demand(other)) * own));
            at_level.sum::<u64>() <= u64::from(self.rbs.saturating_sub(mine)) * own
        };
        if fits(self.rbs) {
            return self.rbs;
        }
        let (mut good, mut bad) = (0, self.rbs);
        while bad - good > 1 {
            let mid = u16::midpoint(good, bad);
            if fits(mid) { good = mid } else { bad = mid }
        }
        // Less than one RB per TTI comes as whole RBs in some TTIs.
        let has_share = self.slices.get(slice).is_some_and(|slice| slice.share_parts() > 0);
        if has_share { good.max(1) } else { good }
    }
}
