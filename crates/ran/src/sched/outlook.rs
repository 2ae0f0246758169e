//! What a scheduler will give a slice, before it does.
//!
//! ```text
//!   level   ─────────┬───────────┬────────    one level for all, a slice as wide as its share
//!           ▦▦▦▦▦▦▦▦ │ ▦▦▦▦▦▦▦▦▦ │
//!                    │           │ ▦▦▦▦▦▦▦    who needs less leaves the rest to the others
//! ```

use super::{Capacity, SliceConfig};

/// What is known before a TTI: the RBs there will be, and who wants them.
#[derive(Debug, Clone, Copy)]
pub struct Outlook<'a> {
    /// RBs free for new data, in groups of `rbg` and at most one shorter.
    pub rbs: u16,
    /// RBs of a group, at least 1.
    pub rbg: u16,
    /// The slices.
    pub slices: &'a [SliceConfig],
    /// RBs that would empty each of them.
    pub demands: &'a [u32],
}

impl Outlook<'_> {
    /// RBs that would empty a slice.
    #[must_use]
    pub fn demand(&self, slice: usize) -> u16 {
        let rbs = self.demands.get(slice).copied().unwrap_or(0);
        u16::try_from(rbs).map_or(self.rbs, |rbs| rbs.min(self.rbs))
    }

    /// The groups that are free.
    #[must_use]
    pub fn room(&self) -> Capacity {
        Capacity::new(self.rbs, self.rbg)
    }

    /// What a slice gets if it has as much to send as it likes: its share among those with a demand, and what those that
    /// need less leave. Groups are whole in each TTI and not over time, so that it is not rounded to them.
    #[must_use]
    pub fn by_share(&self, slice: usize) -> u16 {
        self.by_share_of(slice, |other| self.demand(other))
    }

    /// The same if every other slice wants what `demand` says.
    pub(super) fn by_share_of(&self, slice: usize, demand: impl Fn(usize) -> u16) -> u16 {
        // Those without a share divide equally what the others leave.
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
        // Less than an RB comes as whole ones, in some TTIs.
        let has_share = self.slices.get(slice).is_some_and(|slice| slice.share_parts() > 0);
        if has_share { good.max(1) } else { good }
    }
}
