//! Load-balance: a share of the packets or flows per access.
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
//! The paper does not specify how the share of a path that is down is divided among several others. Here each
//! live path keeps its digits, and the other digits are assigned by the number without its last digit. Over 10
//! x (live shares) packets, the split is exactly proportional.
//!
//! *Per flow* (the standard's ATSSS-LL) uses the flow's hash instead of the sequence number: a flow stays on
//! its path as long as that is up. Equal shares of *n* paths use the number modulo *n*, because ten digits
//! cannot be divided by three.

use crate::autonomous::LawState;
use crate::coded::Coded;
use crate::{
    Cause, Compile, Exclusion, Input, LoadView, MAX_PATHS, ModeState, Names, ParamKind, PathId, PathSet,
    Pick, PolicyError, Steer, Treatment, Value,
};
use anabranch_rules::AccessName;
use serde::{Deserialize, Serialize};

const MAX_DIGITS: usize = 10;

crate::params! {
    /// Parameters of load-balance.
    pub struct Params {
        /// Shares of the accesses in percent, in steps of 10, with a sum of 100; empty: equal shares.
        weights: Vec<Weight> = Vec::new();
        /// Unit of the split: packets or flows.
        per: Granularity = Granularity::Packet;
        /// Autonomous load-balance indicator (TS 29.244): each flow stays on one access, and its packets use another one only if
        /// they arrive no later. Capacities are measured.
        autonomous: bool = false;
    }
}

/// Share of one access.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Weight {
    /// The access.
    pub access: AccessName,
    /// 0 to 100, in steps of 10.
    pub percent: u8,
}

/// The unit that is split.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Granularity {
    /// Packet by packet, by the last digit of the sequence number (JUNCTION §V-C3).
    #[default]
    Packet,
    /// Flow by flow (standard ATSSS-LL).
    Flow,
}

impl Value for Granularity {
    const KIND: ParamKind = ParamKind::Words(&["packet", "flow"]);
    fn json(&self) -> serde_json::Value {
        serde_json::json!(self)
    }
}

impl Value for Vec<Weight> {
    const KIND: ParamKind = ParamKind::Weights;
    fn json(&self) -> serde_json::Value {
        serde_json::json!(self)
    }
    fn accesses(&self) -> Vec<&AccessName> {
        self.iter().map(|weight| &weight.access).collect()
    }
}

/// The share of each path in tenths, ascending by position in the policy; equal if none are given.
fn tenths(weights: &[Weight], names: &Names<'_>) -> Result<Vec<(PathId, u8)>, PolicyError> {
    if weights.is_empty() {
        return Ok(names.accesses.iter().map(|(path, _)| (*path, 1)).collect());
    }
    let mut tenths = Vec::with_capacity(weights.len());
    for (i, Weight { access, percent }) in weights.iter().enumerate() {
        if weights[..i].iter().any(|w| w.access == *access) {
            return Err(PolicyError::AccessTwice { mode: names.mode, access: access.clone() });
        }
        if *percent > 100 || percent % 10 != 0 {
            return Err(PolicyError::WeightStep { access: access.clone(), percent: *percent });
        }
        if let Some(path) = names.path(access)? {
            tenths.push((path, percent / 10));
        }
    }
    let sum = weights.iter().map(|w| u32::from(w.percent)).sum();
    if sum == 100 { Ok(tenths) } else { Err(PolicyError::WeightSum { sum }) }
}

/// Compiled load-balance mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadBalance {
    /// The path of each digit; `digits` of them are used.
    by_digit: [PathId; MAX_DIGITS],
    digits: u8,
    weights: [u8; MAX_PATHS],
    per: Granularity,
    autonomous: bool,
    /// Autonomous: packets may overflow, because the far end restores order.
    overflows: bool,
}

impl LoadBalance {
    /// `weights` in tenths (or any small unit: at most ten units are used, in the order given).
    pub(super) fn new(weights: &[(PathId, u8)], per: Granularity, autonomous: bool) -> Self {
        let mut mode = Self {
            by_digit: [0; MAX_DIGITS],
            digits: 0,
            weights: [0; MAX_PATHS],
            per,
            autonomous,
            overflows: true,
        };
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

    /// The same mode without overflow.
    pub(super) const fn in_order(self) -> Self {
        Self { overflows: false, ..self }
    }

    /// Whether packets are split instead of flows.
    const fn per_packet(&self) -> bool {
        matches!(self.per, Granularity::Packet)
    }

    /// The paths to choose from. A flow must not move back and forth with a flapping path; a share of the
    /// packets may use it.
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
            // No path with a share is up: equal shares for the others.
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

impl Compile for LoadBalance {
    type Params = Params;

    fn compile(params: &Params, names: &Names<'_>) -> Result<Self, PolicyError> {
        Ok(Self::new(&tenths(&params.weights, names)?, params.per, params.autonomous))
    }
}

impl Steer for LoadBalance {
    fn splits(&self) -> bool {
        self.per_packet()
    }

    fn per_flow(&self) -> bool {
        !self.per_packet()
    }

    fn uses_held(&self) -> bool {
        self.per_packet()
    }

    fn is_autonomous(&self) -> bool {
        self.autonomous
    }

    fn pick(&self, state: &mut ModeState, input: &mut Input<'_>) -> Pick {
        let up = self.up(input);
        let number = match self.per {
            Granularity::Packet => u64::from(input.sequence),
            Granularity::Flow => input.flow_hash,
        };
        if self.autonomous && up.len() > 1 {
            let lane =
                state.lane.get_or_insert_with(|| Box::new(LawState::new(self.weights, self.overflows)));
            return lane.pick(input, up, self.per_packet()).into();
        }
        self.by_share(number, up).into()
    }

    fn protection(&self, state: &ModeState, remote: u64, load: &LoadView) -> Option<Coded> {
        let law = state.lane.as_ref().filter(|_| self.autonomous && self.per_packet())?;
        law.protection(remote, load)
    }

    fn treatment(&self, state: &ModeState, input: &Input<'_>) -> Treatment {
        let up = self.up(input);
        match (&state.lane, up.first()) {
            (_, None) => Treatment::NoPath,
            (_, Some(only)) if up.len() == 1 => Treatment::One(only, Cause::Only),
            (Some(lane), _) if self.autonomous => lane.treatment(input, up),
            _ => Treatment::Shares,
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
