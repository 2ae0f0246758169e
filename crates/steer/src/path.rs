//! The unified steering structure: one small record per access and user.
//!
//! JUNCTION §V-C2: switching modes must know whether an access is available, the others need its RTT; "non-zero
//! RTT indicates availability", so one number serves both purposes. Loss is added for the thresholds of TS
//! 29.244, which the paper leaves out, and for leaving paths with too much loss.

use crate::{MAX_PATHS, PathId};

/// The state of one path as used by steering.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PathState {
    /// Smoothed round-trip time in microseconds; 0 = the path is down.
    pub rtt_us: u32,
    /// Packet loss in the sending direction, in parts per million.
    pub loss_ppm: u32,
    /// Steady loss in the sending direction without a sign of congestion, in percent: the loss that half of the
    /// last eight samples of 32 packets had or exceeded.
    pub steady_loss_percent: u8,
}

impl PathState {
    /// A path that is down.
    pub const DOWN: Self = Self { rtt_us: 0, loss_ppm: 0, steady_loss_percent: 0 };

    /// A path that is up with this RTT (at least 1 us) and nothing else known.
    #[must_use]
    pub const fn up(rtt_us: u32) -> Self {
        Self { rtt_us: if rtt_us == 0 { 1 } else { rtt_us }, loss_ppm: 0, steady_loss_percent: 0 }
    }

    /// Whether the path is available.
    #[must_use]
    pub const fn is_up(&self) -> bool {
        self.rtt_us != 0
    }
}

/// The paths of one user, indexed by [`PathId`]; shared by all sessions and rules of that user.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PathStates([PathState; MAX_PATHS]);

impl PathStates {
    /// All paths down.
    pub const DOWN: Self = Self([PathState::DOWN; MAX_PATHS]);

    /// The state of a path; a path that does not exist is down.
    #[must_use]
    pub fn get(&self, path: PathId) -> PathState {
        self.0.get(usize::from(path)).copied().unwrap_or_default()
    }

    /// The state of a path, mutable; `None` if `path` is not below [`MAX_PATHS`].
    pub fn get_mut(&mut self, path: PathId) -> Option<&mut PathState> {
        self.0.get_mut(usize::from(path))
    }

    /// Replaces the state of a path; ignored if `path` is not below [`MAX_PATHS`].
    pub fn set(&mut self, path: PathId, state: PathState) {
        if let Some(slot) = self.get_mut(path) {
            *slot = state;
        }
    }

    /// Marks a path as down at once (JUNCTION §V-E: the UPF writes 0). Its loss is kept for its return.
    #[cfg(test)]
    pub fn mark_down(&mut self, path: PathId) {
        if let Some(slot) = self.get_mut(path) {
            slot.rtt_us = 0;
        }
    }

    /// The paths that are up.
    #[must_use]
    pub fn up(&self) -> PathSet {
        let mut bits = 0;
        for (i, state) in self.0.iter().enumerate() {
            bits |= u8::from(state.is_up()) << i;
        }
        PathSet(bits)
    }

    /// Whether a path is up.
    #[must_use]
    pub fn is_up(&self, path: PathId) -> bool {
        self.get(path).is_up()
    }

    /// Whether every path is down.
    #[must_use]
    pub fn none_up(&self) -> bool {
        self.up().is_empty()
    }

    /// The path that is up and has the smallest RTT; the lower id wins a tie.
    #[must_use]
    pub fn smallest_delay(&self) -> Option<PathId> {
        self.fastest(PathSet::ALL)
    }

    /// The path of `among` with the smallest RTT; the lower id wins a tie. Paths that are down are ignored.
    #[must_use]
    pub fn fastest(&self, among: PathSet) -> Option<PathId> {
        among.iter().filter(|&p| self.get(p).is_up()).min_by_key(|&p| self.get(p).rtt_us)
    }
}

/// A set of paths, as a bitmap.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct PathSet(u8);

const _: () = assert!(MAX_PATHS <= 8, "a PathSet has eight bits");

impl PathSet {
    /// No path.
    pub const EMPTY: Self = Self(0);
    /// Every path.
    pub const ALL: Self = Self(u8::MAX);

    /// The set in which bit *i* stands for path *i*.
    #[must_use]
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits)
    }

    /// The set as bits: bit *i* stands for path *i*.
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// The set of one path; empty if `path` is not below [`MAX_PATHS`].
    #[must_use]
    pub const fn single(path: PathId) -> Self {
        Self(mask(path))
    }

    /// Whether `path` is in the set.
    #[must_use]
    pub const fn contains(self, path: PathId) -> bool {
        self.0 & mask(path) != 0
    }

    /// Adds a path; ignored if `path` is not below [`MAX_PATHS`].
    pub const fn insert(&mut self, path: PathId) {
        self.0 |= mask(path);
    }

    /// Removes a path.
    pub const fn remove(&mut self, path: PathId) {
        self.0 &= !mask(path);
    }

    /// The paths in `self` but not in `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// The paths in either.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The paths in both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Number of paths.
    #[must_use]
    pub const fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether there is no path.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The path with the lowest id.
    #[must_use]
    pub fn first(self) -> Option<PathId> {
        self.iter().next()
    }

    /// The `n`-th path in ascending order, counted from 0.
    #[must_use]
    pub fn nth(self, n: usize) -> Option<PathId> {
        self.iter().nth(n)
    }

    /// The paths in ascending order.
    #[must_use]
    pub const fn iter(self) -> PathIter {
        PathIter(self.0)
    }
}

const fn mask(path: PathId) -> u8 {
    if (path as usize) < MAX_PATHS { 1 << path } else { 0 }
}

impl FromIterator<PathId> for PathSet {
    fn from_iter<I: IntoIterator<Item = PathId>>(paths: I) -> Self {
        let mut set = Self::EMPTY;
        paths.into_iter().for_each(|p| set.insert(p));
        set
    }
}

impl IntoIterator for PathSet {
    type Item = PathId;
    type IntoIter = PathIter;
    fn into_iter(self) -> PathIter {
        self.iter()
    }
}

impl core::fmt::Debug for PathSet {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

/// The paths of a [`PathSet`] in ascending order.
#[derive(Debug, Clone)]
pub struct PathIter(u8);

impl Iterator for PathIter {
    type Item = PathId;

    fn next(&mut self) -> Option<PathId> {
        if self.0 == 0 {
            return None;
        }
        let path = self.0.trailing_zeros() as PathId;
        self.0 &= self.0 - 1;
        Some(path)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let n = self.0.count_ones() as usize;
        (n, Some(n))
    }
}

impl ExactSizeIterator for PathIter {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_is_ordered_and_ignores_paths_that_cannot_exist() {
        let set: PathSet = [7, 0, 3, 8, 255].into_iter().collect();
        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 3, 7]);
        assert_eq!((set.len(), set.nth(1), set.nth(3)), (3, Some(3), None));
        assert!(!set.contains(8) && !PathSet::ALL.contains(200));
        assert_eq!(format!("{set:?}"), "{0, 3, 7}");
    }

    #[test]
    fn marking_down_keeps_what_was_measured() {
        let mut paths = PathStates::default();
        paths.set(1, PathState { rtt_us: 9, loss_ppm: 5, steady_loss_percent: 7 });
        paths.set(2, PathState::up(0));
        paths.set(8, PathState::up(4));
        assert_eq!(paths.up(), PathSet::from_bits(0b110));
        assert_eq!(paths.fastest(PathSet::ALL), Some(2));
        paths.mark_down(1);
        assert_eq!(paths.get(1), PathState { rtt_us: 0, loss_ppm: 5, steady_loss_percent: 7 });
        assert_eq!(paths.fastest(PathSet::single(1)), None);
        assert_eq!(paths.get(8), PathState::DOWN);
    }
}
