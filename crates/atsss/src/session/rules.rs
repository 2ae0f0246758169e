//! Explanations of what rules do: on request, and as events.
//!
//! Packets only update counters. Once a second, at a poll that occurs anyway, the current behaviour of each
//! rule is compared with that of the last review, and changes are reported. The number of events of a session
//! is bounded.

use super::active::Active;
use super::path::Paths;
use super::send::RuleState;
use super::{Session, SessionEvent};
use crate::classify::RuleIndex;
use crate::{MAX_PATHS, PathId};
use anabranch_element::time::{Duration, Instant};
use anabranch_steer::LoadView;
use anabranch_steer::{Departures, Exclusion, Explanation, LawView, Mode, PathSet, PathState, Pause, View};
use anabranch_steer::{JointRule, OF_ALL, OF_UPF, Rule, Steer, joint};
use std::collections::HashMap;

/// Time between two reviews of the rules; [`SILENCE`] after a review of a rule that caused an event.
const EVERY: Duration = Duration::from_secs(1);
const SILENCE: Duration = Duration::from_secs(5);
/// Most rule events per review; others follow with the next reviews.
const MAX_EVENTS: usize = 8;

/// The configuration that contains a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The configuration of the UE.
    Ue,
    /// The configuration of the UPF for this UE only.
    UpfForUe,
    /// The configuration of the UPF for all UEs.
    Upf,
    /// None: the rule of last resort.
    BuiltIn,
}

impl Origin {
    /// The name in the REST API.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ue => "ue",
            Self::UpfForUe => "upf-for-ue",
            Self::Upf => "upf",
            Self::BuiltIn => "built-in",
        }
    }
}

/// The joint list of a UE and its UPF: the names in it, and where each rule is defined.
#[derive(Debug)]
pub struct Definitions<'a>(Vec<JointRule<'a, Origin>>);

impl<'a> Definitions<'a> {
    /// The rules of the UE, and those of the UPF: first its rules for this UE, then those for all.
    #[must_use]
    pub fn new(ue: &'a [Rule], upf: &[(Origin, &'a [Rule])]) -> Self {
        let of = |origin, rules: &'a [Rule]| rules.iter().map(move |rule| JointRule::new(origin, rule));
        let upf = joint(upf.iter().flat_map(|(origin, rules)| of(*origin, rules)), OF_ALL);
        Self(joint(of(Origin::Ue, ue).chain(upf), OF_UPF))
    }

    /// The place of a rule in the list.
    pub(crate) fn place(&self, rule: &Rule) -> Option<RuleIndex> {
        let is_it =
            |joint: &JointRule<'_, _>| (&joint.rule.name, &joint.rule.filter) == (&rule.name, &rule.filter);
        self.0.iter().position(is_it).and_then(|place| RuleIndex::try_from(place).ok())
    }
}

/// The current behaviour of a rule in the sending direction, for people. Counters begin when the rules last
/// changed; at the UPF, when the session last woke.
#[derive(Debug, Clone, PartialEq)]
pub struct RuleView {
    /// The rule's name in the joint list of UE and UPF.
    pub rule: String,
    /// Its steering mode, as written in configuration.
    pub mode: &'static str,
    /// The list in which the rule is defined.
    pub origin: Origin,
    /// Its definition there; `None` for the rule of last resort.
    pub definition: Option<Rule>,
    /// UPF: the rule that this application follows because of an exception.
    pub follows: Option<String>,
    /// Current path of a switching rule with traffic.
    pub path: Option<PathId>,
    /// Changes from one path to another.
    pub switches: u64,
    /// Changes that were postponed because the far end had no free reorder queue.
    pub denied: u64,
    /// Packets sent by path, copies included, without those carried by a faster data path.
    pub packets: [u64; MAX_PATHS],
    /// What the rule does and why; `None` before its first packet.
    pub explanation: Option<Explanation>,
    /// State of the autonomous law; `None` before its first packet.
    pub law: Option<LawView>,
}

impl RuleView {
    /// Whether the rule has had a packet.
    #[must_use]
    pub fn is_used(&self) -> bool {
        self.packets.iter().any(|packets| *packets > 0)
    }
}

/// A noteworthy change of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuleEvent {
    /// The rule leaves a path because of its measurements.
    Excluded {
        /// The path that is left.
        path: PathId,
        /// The measured value and the limit.
        why: Exclusion,
    },
    /// The rule may use the path again.
    Included {
        /// The path that may be used again.
        path: PathId,
        /// Its current measurements.
        state: PathState,
    },
    /// Overflow is paused because it reduced the rate.
    OverflowPaused {
        /// Remaining time.
        remaining_ms: u32,
        /// The rate sent when the pause began, in bit/s.
        sent_bps: u64,
        /// The capacity of the homes of bulk flows, in bit/s.
        capacity_bps: u64,
    },
    /// Overflow is allowed again.
    OverflowResumed,
    /// Bulk flows left a path because of its random loss.
    FlowsLeft {
        /// The path with the loss.
        path: PathId,
        /// Number of bulk flows that left.
        flows: u16,
        /// Random loss of the path when the latest flow left, in parts per million.
        loss_ppm: u32,
    },
}

/// The state of a rule that was last reported.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Reported {
    packets: u64,
    silent_until: Instant,
    excluded: PathSet,
    paused: bool,
}

/// The state of a path as steering sees it, for people; in the sending direction unless stated otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathLoad {
    /// Path id.
    pub path: PathId,
    /// Path model: queue, capacity, random loss, drop level.
    pub load: LoadView,
    /// Steady loss without a sign of congestion, in percent.
    pub steady_loss_percent: u8,
    /// Lasting loss in the receiving direction, as measured by the peer, in hundredths of a percent.
    pub lasting_loss_rx: u16,
}

impl Session {
    /// One row per rule in force, the rule of last resort last.
    pub fn rule_views<'a>(
        &'a self,
        now: Instant,
        definitions: &'a Definitions<'_>,
    ) -> impl Iterator<Item = RuleView> + 'a {
        let loads = self.paths.loads(now);
        let defined: HashMap<&str, _> = definitions.0.iter().map(|joint| (&*joint.name, joint)).collect();
        self.rules.rules().iter().enumerate().map(move |(i, rule)| {
            let active = self.active.as_deref().filter(|_| !self.resting);
            let state = active.and_then(|active| active.per_rule.get(i));
            let last = i + 1 == self.rules.rules().len();
            let defined = defined.get(rule.name.as_str()).filter(|_| !last);
            let used = active.zip(state).filter(|(_, state)| state.is_used());
            RuleView {
                rule: rule.name.clone(),
                mode: rule.mode.name(),
                origin: defined.map_or(Origin::BuiltIn, |joint| joint.origin),
                definition: defined.map(|joint| joint.rule.clone()),
                follows: None,
                // The streams of a switching rule that this rule replaced keep their path.
                path: state
                    .and_then(RuleState::path)
                    .filter(|_| !rule.mode.splits() && !rule.mode.per_flow()),
                switches: state.map_or(0, |s| s.switches),
                denied: state.map_or(0, |s| s.denied),
                packets: state.map_or([0; MAX_PATHS], |s| s.sent),
                explanation: used
                    .map(|(active, state)| explain(&self.paths, active, &loads, &rule.mode, state, now)),
                law: state.and_then(|state| state.mode.law(now)),
            }
        })
    }

    /// The state of each path in use, as steering sees it.
    pub fn path_loads(&self, now: Instant) -> impl Iterator<Item = PathLoad> + '_ {
        self.paths.iter().map(move |path| PathLoad {
            path: path.id,
            load: path.monitor.load(now),
            steady_loss_percent: path.monitor.steady_loss_percent(),
            lasting_loss_rx: path.monitor.lasting_loss_rx(),
        })
    }

    /// Reports what rules began or ceased to do since the last review.
    pub(super) fn review_rules(&mut self, now: Instant) {
        let Some(active) = self.active.as_deref_mut().filter(|_| !self.resting) else { return };
        if now < active.review_at {
            return;
        }
        active.review_at = now + EVERY;
        let loads = self.paths.loads(now);
        let mut left = MAX_EVENTS;
        for (index, rule) in self.rules.rules().iter().enumerate() {
            let Some(state) = active.per_rule.get(index) else { break };
            let packets = state.sent.iter().fold(0_u64, |sum, packets| sum.wrapping_add(*packets));
            if packets == state.told.packets || now < state.told.silent_until || left == 0 {
                continue;
            }
            let explanation = explain(&self.paths, active, &loads, &rule.mode, state, now);
            let live = active.live;
            let state = &mut active.per_rule[index];
            let events = news(state, &explanation, |path| live.get(path), &mut left, now);
            if left > 0 {
                state.told.packets = packets;
            }
            for event in events {
                active.event(SessionEvent::Rule { rule: rule.name.clone(), event });
            }
        }
    }

    /// Why a switching rule has left `from`.
    pub(super) fn why_left(&self, rule: RuleIndex, from: PathId, now: Instant) -> Option<Exclusion> {
        let active = self.active.as_deref()?;
        let state = active.per_rule.get(usize::from(rule))?;
        let mode = &self.rules.get(rule).mode;
        explain(&self.paths, active, &[], mode, state, now).excluded[usize::from(from)]
    }
}

fn explain(
    paths: &Paths,
    active: &Active,
    loads: &[LoadView],
    mode: &Mode,
    state: &RuleState,
    now: Instant,
) -> Explanation {
    let view = View { steady: &active.states, live: &active.live, loads, restores: false };
    let mut explanation = state.mode.explain(mode, view, paths.ids(), now);
    for (path, why) in (0..).zip(&mut explanation.excluded) {
        if let Some(Exclusion::Down { reason }) = why {
            *reason = paths.get(path).and_then(|path| path.monitor.down_reason());
        }
    }
    explanation
}

/// Reports the changes of a rule, at most `left` events.
fn news(
    state: &mut RuleState,
    explanation: &Explanation,
    live: impl Fn(PathId) -> PathState,
    left: &mut usize,
    now: Instant,
) -> Vec<RuleEvent> {
    let mut events = Vec::new();
    let mut tell = |event| {
        let room = *left > 0;
        if room {
            *left -= 1;
            events.push(event);
        }
        room
    };
    let verdicts = explanation.verdicts();
    for path in verdicts.without(state.told.excluded) {
        if let Some(why) = explanation.excluded[usize::from(path)]
            && tell(RuleEvent::Excluded { path, why })
        {
            state.told.excluded.insert(path);
        }
    }
    for path in state.told.excluded.without(verdicts) {
        let away =
            matches!(explanation.excluded[usize::from(path)], Some(Exclusion::Down { .. } | Exclusion::Held));
        if !away && tell(RuleEvent::Included { path, state: live(path) }) {
            state.told.excluded.remove(path);
        }
    }
    let paused = state.mode.law(now).and_then(|law| law.paused);
    if paused.is_some() != state.told.paused {
        let event = match paused {
            Some(Pause { until, sent_bps, capacity_bps }) => {
                let remaining = until.saturating_since(now).as_millis();
                let remaining_ms = u32::try_from(remaining).unwrap_or(u32::MAX);
                RuleEvent::OverflowPaused { remaining_ms, sent_bps, capacity_bps }
            }
            None => RuleEvent::OverflowResumed,
        };
        if tell(event) {
            state.told.paused = paused.is_some();
        }
    }
    for (path, untold) in state.mode.unreported_departures() {
        let Departures { flows, loss_ppm } = *untold;
        if flows > 0 && tell(RuleEvent::FlowsLeft { path, flows, loss_ppm }) {
            untold.flows = 0;
        }
    }
    if !events.is_empty() {
        state.told.silent_until = now + SILENCE;
    }
    events
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_steer::Treatment;

    #[test]
    fn events_of_rules_do_not_make_the_queues_of_events_larger() {
        let hint = size_of::<(anabranch_wire::ip::FlowKey, String)>();
        assert!(size_of::<SessionEvent>() <= hint + 8, "{} {hint}", size_of::<SessionEvent>());
    }

    #[test]
    fn events_per_review_are_bounded_and_each_change_is_reported_once() {
        let mut state = RuleState::new(0);
        let why = Exclusion::SteadyLoss { loss: 20, limit: 5 };
        let all = Explanation { treatment: Treatment::Shares, excluded: [Some(why); MAX_PATHS] };
        let none = Explanation { excluded: [None; MAX_PATHS], ..all };
        let away = Explanation { excluded: [Some(Exclusion::Held); MAX_PATHS], ..all };
        let mut look = |explanation: &Explanation, mut left: usize| {
            let live = |_| PathState::up(10_000);
            let events = news(&mut state, explanation, live, &mut left, Instant::from_secs(1));
            (events.len(), left)
        };
        assert_eq!(look(&all, 3), (3, 0));
        assert_eq!(look(&all, 8), (5, 3));
        assert_eq!(look(&all, 8), (0, 8));
        assert_eq!(look(&away, 8), (0, 8), "left for another reason, which is reported elsewhere");
        assert_eq!(look(&none, 7), (7, 0));
        assert_eq!(look(&none, 8), (1, 7));
    }
}
