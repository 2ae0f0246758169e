//! What the autonomous law did, counted for people; the law itself reads none of it.

use super::{LawCounts, PathSet};
use crate::{MAX_PATHS, PathId};
use anabranch_element::time::{Duration, Instant};

/// What packets did within this time is what the law does now.
const NOW: Duration = Duration::from_secs(1);

/// See the module's head.
#[derive(Debug, Clone, Default)]
pub(super) struct Record {
    pub counts: LawCounts,
    /// Home of the latest packet's flow.
    pub home: Option<PathId>,
    /// Latest packet that was away from its home because it arrives no later, and because the home is full.
    spilled_at: Option<Instant>,
    overflowed_at: Option<Instant>,
    /// Latest packet away from its home, by the path it took.
    away_at: [Option<Instant>; MAX_PATHS],
    /// Part of `counts.left` that nobody was told of.
    pub untold_left: [Left; MAX_PATHS],
}

/// Bulk flows that left a path for its random loss.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Left {
    /// Flows of which nobody was told yet.
    pub flows: u16,
    /// Loss for which the latest left, in parts per million.
    pub loss_ppm: u32,
}

impl Record {
    /// A packet took `path`.
    #[inline]
    pub fn took(&mut self, path: PathId, home: PathId, overflowed: bool, now: Instant) {
        self.home = Some(home);
        let counts = match (path == home, overflowed) {
            (true, _) => &mut self.counts.at_home,
            (false, true) => {
                self.overflowed_at = Some(now);
                &mut self.counts.overflowed
            }
            (false, false) => {
                self.spilled_at = Some(now);
                &mut self.counts.spilled
            }
        };
        counts[usize::from(path)] += 1;
        if path != home {
            self.away_at[usize::from(path)] = Some(now);
        }
    }

    /// A flow was given a home.
    pub fn placed(&mut self, home: PathId) {
        self.counts.placed[usize::from(home)] += 1;
    }

    /// A flow moved to where it is better off.
    pub fn moved(&mut self, to: PathId) {
        self.counts.moved[usize::from(to)] += 1;
    }

    /// A bulk flow left `from` for its random loss.
    pub fn left(&mut self, from: PathId, loss_ppm: u32) {
        self.counts.left[usize::from(from)] += 1;
        let untold = &mut self.untold_left[usize::from(from)];
        *untold = Left { flows: untold.flows.saturating_add(1), loss_ppm };
    }

    pub fn overflows(&self, now: Instant) -> bool {
        is_now(self.overflowed_at, now)
    }

    pub fn spills(&self, now: Instant) -> bool {
        is_now(self.spilled_at, now)
    }

    /// Whether packets of other homes take `path`.
    pub fn takes_others(&self, path: PathId, now: Instant) -> bool {
        is_now(self.away_at[usize::from(path)], now)
    }

    /// The home that is spoken of: that with the most bulk flows, else that of the latest packet.
    pub fn main_home(&self, among: PathSet, bulk: impl Fn(PathId) -> u16) -> Option<PathId> {
        let most = among.iter().filter(|path| bulk(*path) > 0).max_by_key(|path| bulk(*path));
        most.or(self.home).filter(|home| among.contains(*home)).or_else(|| among.first())
    }
}

fn is_now(at: Option<Instant>, now: Instant) -> bool {
    at.is_some_and(|at| now.saturating_since(at) <= NOW)
}
