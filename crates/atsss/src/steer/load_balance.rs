//! Load-balance: a share of the packets, or of the flows, per access.
//!
//! JUNCTION §V-C3: "packets are divided based on the rightmost digit of their sequence numbers. For
//! instance, to achieve a 30:70 split ratio, we route packets with the rightmost digits 0 to 2 over
//! the first path and those with digits 3 to 9 over the other path"; "we verify that the next selected
//! path has a non-zero RTT value". TS 23.501 §5.32.8 *Load-Balancing*; TS 29.244 §8.2.146 ff. for the
//! autonomous indicator (see `autonomous.rs`).
//!
//! ```text
//!   sequence number  ... 4 7 3 1 8
//!                              | +-- last digit: path by share      0 1 2 | 3 4 5 6 7 8 9
//!                              |                                      5g  |     wifi
//!                              +---- that path is down: the rest of the number picks a live path,
//!                                    in proportion to the live paths' own shares
//! ```
//!
//! The paper does not say where the share of a path that is down goes when more than one is left.
//! Here each live path keeps the digits it has, and the others are dealt out by the number without its
//! last digit, so that over 10 x (live shares) packets the split is exactly in proportion.
//!
//! *Per flow* (the standard's ATSSS-LL) is the same with the flow's hash in place of the sequence
//! number: a flow stays on its path while that is up. Equal shares of *n* paths use the number modulo
//! *n*, since a third of ten digits does not exist.

use super::autonomous::Lane;
use super::{Because, Doing, Exclusion, Input, ModeState, PathSet, Pick, Steer};
use crate::{MAX_PATHS, PathId};
use anabranch_rules::Granularity;

const MAX_DIGITS: usize = 10;

/// Compiled load-balance mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadBalance {
    /// Path of each digit; `digits` of them are in use.
    by_digit: [PathId; MAX_DIGITS],
    digits: u8,
    weights: [u8; MAX_PATHS],
    per: Granularity,
    autonomous: bool,
}

impl LoadBalance {
    /// `weights` in tenths (or any small unit: at most ten units are used, in the order given).
    pub(super) fn new(weights: &[(PathId, u8)], per: Granularity, autonomous: bool) -> Self {
        let mut mode =
            Self { by_digit: [0; MAX_DIGITS], digits: 0, weights: [0; MAX_PATHS], per, autonomous };
        for &(path, units) in weights {
            for _ in 0..units {
                let Some(slot) = mode.by_digit.get_mut(usize::from(mode.digits)) else { break };
                let Some(weight) = mode.weights.get_mut(usize::from(path)) else { break };
                *slot = path;
                *weight += 1;
                mode.digits += 1;
            }
        }
        mode
    }

    /// Whether packets are split, not flows.
    #[must_use]
    pub const fn per_packet(&self) -> bool {
        matches!(self.per, Granularity::Packet)
    }

    /// Whether the law of `autonomous.rs` decides instead of shares.
    #[must_use]
    pub const fn is_autonomous(&self) -> bool {
        self.autonomous
    }

    /// The paths to choose from: a flow must not move to and fro with one that flaps, a share of the packets may.
    fn up(&self, input: &Input<'_>) -> PathSet {
        match self.per {
            Granularity::Packet => input.live.up(),
            Granularity::Flow => input.up,
        }
    }

    fn by_share(&self, number: u64, up: PathSet) -> Option<PathId> {
        let digits = u64::from(self.digits.max(1));
        if self.digits > 0 {
            let path = self.by_digit[index(number % digits)];
            if up.contains(path) {
                return Some(path);
            }
        }
        let rest = number / digits;
        let weight = |path: PathId| u64::from(self.weights[usize::from(path)]);
        let live: u64 = up.iter().map(weight).sum();
        if live == 0 {
            // None of the paths with a share is up: equal shares for the others.
            return up.nth(index(rest % up.len().max(1) as u64));
        }
        let mut left = rest % live;
        up.iter().find(|&path| {
            let mine = left < weight(path);
            left = left.saturating_sub(weight(path));
            mine
        })
    }
}
const fn index(remainder: u64) -> usize {
    remainder as usize
}

impl Steer for LoadBalance {
    fn pick(&self, state: &mut ModeState, input: &mut Input<'_>) -> Pick {
        let up = self.up(input);
        let number = match self.per {
            Granularity::Packet => u64::from(input.sequence),
            Granularity::Flow => input.flow_hash,
        };
        if self.autonomous && up.len() > 1 {
            let lane = state.lane.get_or_insert_with(|| Box::new(Lane::new(self.weights)));
            return lane.pick(input, up, self.per_packet()).into();
        }
        self.by_share(number, up).into()
    }

    fn doing(&self, state: &ModeState, input: &Input<'_>) -> Doing {
        let up = self.up(input);
        match (&state.lane, up.first()) {
            (_, None) => Doing::NoPath,
            (_, Some(only)) if up.len() == 1 => Doing::One(only, Because::Only),
            (Some(lane), _) if self.autonomous => lane.doing(input, up),
            _ => Doing::Shares,
        }
    }

    fn excludes(&self, state: &ModeState, input: &Input<'_>, path: PathId) -> Option<Exclusion> {
        let up = self.up(input);
        if self.autonomous {
            let lane = state.lane.as_ref().filter(|_| up.len() > 1)?;
            return lane.excludes(input, up, self.per_packet(), path);
        }
        let share = |path: PathId| self.weights[usize::from(path)] > 0;
        (!share(path) && up.iter().any(share)).then_some(Exclusion::NoShare)
    }
}
