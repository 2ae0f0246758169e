//! Counters of the autonomous law, for people; the law itself does not use them.

use super::{LawCounts, PathSet};
use crate::{MAX_PATHS, PathId};
use anabranch_element::time::{Duration, Instant};

/// The current behaviour of the law is what packets did within this time.
const NOW: Duration = Duration::from_secs(1);

/// See the top of this file.
#[derive(Debug, Clone, Default)]
pub(super) struct Record {
    pub counts: LawCounts,
    /// Home of the flow of the newest packet.
    pub home: Option<PathId>,
    /// Time of the newest packet that spilled.
    spilled_at: Option<Instant>,
    overflowed_at: Option<Instant>,
    /// Time of the newest packet away from its home, by the path it took.
    away_at: [Option<Instant>; MAX_PATHS],
    /// The part of `counts.left` that has not been reported yet.
    pub unreported_departures: [Departures; MAX_PATHS],
}

/// Bulk flows that left a path for its wild loss.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Departures {
    /// Flows that have not been reported yet.
    pub flows: u16,
    /// Wild loss of the path when the newest one left, in parts per million.
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

    /// A flow moved to a better home.
    pub fn moved(&mut self, to: PathId) {
        self.counts.moved[usize::from(to)] += 1;
    }

    /// A bulk flow left `from` for its wild loss.
    pub fn left(&mut self, from: PathId, loss_ppm: u32) {
        self.counts.left[usize::from(from)] += 1;
        let untold = &mut self.unreported_departures[usize::from(from)];
        *untold = Departures { flows: untold.flows.saturating_add(1), loss_ppm };
    }

    pub fn overflows(&self, now: Instant) -> bool {
        is_now(self.overflowed_at, now)
    }

    pub fn spills(&self, now: Instant) -> bool {
        is_now(self.spilled_at, now)
    }

    /// Whether packets of other homes currently take `path`.
    pub fn takes_others(&self, path: PathId, now: Instant) -> bool {
        is_now(self.away_at[usize::from(path)], now)
    }

    /// The home used in explanations: the one with the most bulk flows, otherwise that of the newest packet.
    pub fn main_home(&self, among: PathSet, bulk: impl Fn(PathId) -> u16) -> Option<PathId> {
        let most = among.iter().filter(|path| bulk(*path) > 0).max_by_key(|path| bulk(*path));
        most.or(self.home).filter(|home| among.contains(*home)).or_else(|| among.first())
    }
}

fn is_now(at: Option<Instant>, now: Instant) -> bool {
    at.is_some_and(|at| now.saturating_since(at) <= NOW)
}
