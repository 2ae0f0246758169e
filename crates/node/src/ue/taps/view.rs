//! Conversion of the slice manager's view of this UE into the form of the engine.

use super::{MAX_SLICES, SliceSpec, Taps};
use crate::runtime::config::SliceBinding;
use anabranch_selection::neat::Policy;
use anabranch_selection::ursp::Ursp;
use anabranch_slice::{SliceFacts, UeView};
use std::collections::BTreeMap;

/// Maximum number of problems reported per answer.
const MOST_PROBLEMS: usize = 16;
/// Maximum length of a problem, characters.
const MAX_PROBLEM_CHARS: usize = 400;

/// Untrusted text of a manager, made safe for logs: one line of limited length.
pub fn in_a_line(text: &str) -> String {
    let odd = |c: char| {
        c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
    };
    let shown: String =
        text.chars().take(MAX_PROBLEM_CHARS).map(|c| if odd(c) { '\u{fffd}' } else { c }).collect();
    if text.chars().nth(MAX_PROBLEM_CHARS).is_some() { shown + "…" } else { shown }
}

impl Taps {
    /// Applies the slice manager's view: slices, and pushed policies. Returns messages about the unusable
    /// parts; the rest is applied.
    pub fn take_view(&self, view: &UeView) -> Vec<String> {
        let problems = self.problems_of(view);
        let more = problems.len().saturating_sub(MOST_PROBLEMS);
        let reported = problems.iter().take(MOST_PROBLEMS).map(|problem| in_a_line(problem));
        reported.chain((more > 0).then(|| format!("and {more} more"))).collect()
    }

    /// The slice in the view to which a `[[slice]]` refers: by identifier, or else by a unique name.
    fn slice_of<'a>(
        &self,
        binding: &SliceBinding,
        reported: &'a [SliceFacts],
    ) -> Result<Option<&'a SliceFacts>, String> {
        if let Some(facts) = reported.iter().find(|facts| facts.id == binding.slice) {
            return Ok(Some(facts));
        }
        let own = |facts: &SliceFacts| self.bindings.iter().any(|b| b.slice == facts.id);
        let mut named = reported.iter().filter(|facts| facts.name == binding.slice && !own(facts));
        let Some(first) = named.next() else { return Ok(None) };
        match named.find(|other| other.id != first.id) {
            None => Ok(Some(first)),
            Some(other) => Err(format!(
                "slices {} and {} are both named \"{}\": write the identifier of one as [[slice]] slice",
                first.id, other.id, first.name
            )),
        }
    }

    fn problems_of(&self, view: &UeView) -> Vec<String> {
        let now = self.now();
        let (mut problems, mut managed, mut ids) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        let slices = &view.slices[..view.slices.len().min(MAX_SLICES)];
        let reached =
            |facts: &&SliceFacts| self.bindings.iter().any(|b| b.slice == facts.id || b.slice == facts.name);
        for facts in slices.iter().filter(|facts| !reached(facts)) {
            problems.push(format!(
                "slice \"{}\" ({}): no [[slice]] defines how it is reached",
                facts.name, facts.id
            ));
        }
        if let Some(left) = view.slices.len().checked_sub(MAX_SLICES + 1) {
            problems.push(format!("{} slices: the last {} are ignored", view.slices.len(), left + 1));
        }
        for binding in &self.bindings {
            let facts = match self.slice_of(binding, slices) {
                Ok(Some(facts)) => facts,
                Ok(None) => continue,
                Err(why) => {
                    problems.push(why);
                    continue;
                }
            };
            let spec = SliceSpec::from_facts(facts, binding, view.ttl_s);
            match spec.slice(now) {
                Ok(slice) => {
                    managed.insert(binding.slice.clone(), (spec, slice));
                    ids.insert(binding.slice.clone(), facts.id.clone());
                }
                Err(why) => problems.push(format!("slice \"{}\": {why}", facts.name)),
            }
        }
        let mut known_slices = self.known_slices();
        (known_slices.managed, known_slices.ids) = (managed, ids);
        self.changed.notify_one();
        // Policies that are no longer pushed are removed.
        for uid in std::mem::take(&mut known_slices.pushed) {
            known_slices.manager.policies.remove(&uid);
            known_slices.manager.profiles.remove(&uid);
        }
        if std::mem::take(&mut known_slices.pushed_ursp) {
            known_slices.ursp = Ursp::default();
        }
        let mut ursps: Vec<Ursp> = Vec::new();
        for (i, policy) in view.policies.iter().enumerate() {
            if policy.get("urspGuidance").is_some() {
                match Ursp::from_json(&policy.to_string()) {
                    Ok(ursp) if ursps.contains(&ursp) => {}
                    Ok(ursp) => ursps.push(ursp),
                    Err(error) => problems.push(format!("policies[{i}]: {error}")),
                }
                continue;
            }
            let pushed = Policy::from_value(policy).and_then(|new| {
                let uid = new.uid.clone();
                let kind = if new.is_profile {
                    &mut known_slices.manager.profiles
                } else {
                    &mut known_slices.manager.policies
                };
                kind.insert(new).map(|()| uid)
            });
            match pushed {
                Ok(uid) => known_slices.pushed.push(uid),
                Err(error) => problems.push(format!("policies[{i}]: {error}")),
            }
        }
        match ursps.as_slice() {
            [] => {}
            [ursp] => (known_slices.ursp, known_slices.pushed_ursp) = (ursp.clone(), true),
            _ => problems.push("policies: urspGuidance occurs more than once: all are ignored".to_owned()),
        }
        problems
    }

    /// Extends the validity of the facts: the manager has sent a message without changes.
    pub fn view_counts_from_now(&self) {
        let now = self.now();
        for (_, slice) in self.known_slices().managed.values_mut() {
            if let Some(facts) = &mut slice.facts {
                facts.as_of = now;
            }
        }
    }
}

impl SliceSpec {
    /// A slice from the manager's facts and its local binding. A degraded slice remains a path, but its
    /// guarantees are ignored.
    fn from_facts(facts: &SliceFacts, binding: &SliceBinding, ttl_s: u32) -> Self {
        let kept = facts.state == "Running";
        let promise = |bps: Option<u64>| bps.filter(|_| kept);
        Self {
            interface: binding.interface.clone(),
            mark: binding.mark,
            table: binding.table,
            sst: Some(facts.sst),
            sd: facts.sd.clone(),
            dnn: facts.dnn.clone(),
            ttl_s,
            // The delay budget is one-way, for the slower direction (TS 28.541, dLLatency and uLLatency).
            rtt_us: facts
                .latency_ms
                .filter(|ms| kept && (0.0..=1e6).contains(ms))
                .map(|ms| (ms * 2e3).round() as u64),
            uplink_guaranteed_bps: promise(facts.ul_guaranteed_bps),
            uplink_max_bps: promise(facts.ul_max_bps),
            downlink_guaranteed_bps: promise(facts.dl_guaranteed_bps),
            downlink_max_bps: promise(facts.dl_max_bps),
            five_qi: facts.qi.clone(),
            isolation: facts.isolated.filter(|i| *i).map(|_| anabranch_selection::Isolation::Logical),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn binding(slice: &str) -> SliceBinding {
        SliceBinding {
            slice: slice.into(),
            interface: "wwan1".into(),
            mark: None,
            table: None,
            gateway: Default::default(),
            alpha: 0.5,
        }
    }

    fn facts(id: &str, name: &str, latency_ms: f64) -> SliceFacts {
        SliceFacts {
            id: id.into(),
            name: name.into(),
            state: "Running".into(),
            latency_ms: Some(latency_ms),
            ..SliceFacts::default()
        }
    }

    fn view(slices: Vec<SliceFacts>) -> UeView {
        UeView { ttl_s: 60, slices, ..UeView::default() }
    }

    /// Names at a manager need not be unique, and two slices of a UE may have the same name; the choice must
    /// not depend on their order.
    #[test]
    fn of_two_slices_of_one_name_neither_is_used() {
        let (one, two) = (facts("id-1", "gold", 5.0), facts("id-2", "gold", 50.0));
        for order in [vec![one.clone(), two.clone()], vec![two.clone(), one.clone()]] {
            let taps = Taps::new(vec![binding("gold")], Vec::new());
            let problems = taps.take_view(&view(order.clone()));
            assert!(
                problems.len() == 1 && problems[0].contains("id-1") && problems[0].contains("id-2"),
                "{problems:?}"
            );
            assert!(problems[0].contains("[[slice]]"), "{problems:?}");
            assert_eq!(taps.slices().len(), 0, "nothing is known of either");
            // An identifier is unambiguous, and a binding by the shared name is reported.
            let taps = Taps::new(vec![binding("id-2"), binding("gold")], Vec::new());
            let problems = taps.take_view(&view(order));
            assert_eq!(taps.slices()["id-2"].rtt_us, Some(100_000), "{problems:?}");
            assert_eq!(taps.slices()["gold"].rtt_us, Some(10_000), "{problems:?}");
            assert_eq!(problems, [""; 0]);
        }
        // The same slice listed twice is not ambiguous.
        let taps = Taps::new(vec![binding("gold")], Vec::new());
        let problems = taps.take_view(&view(vec![one.clone(), one]));
        assert_eq!((taps.slices().len(), problems.len()), (1, 0), "{problems:?}");
    }

    /// This slice manager sends at most one route selection policy per UE; other managers may send several.
    #[test]
    fn of_two_different_route_selection_policies_neither_is_used() {
        let guidance = |domain: &str| {
            serde_json::json!({"urspGuidance": [{"trafficDesc": {"domainDescs": [domain]},
                "routeSelParamSets": [{"snssai": {"sst": 1}}]}]})
        };
        let (one, two) = (guidance("a.example"), guidance("b.example"));
        let broken = serde_json::json!({"urspGuidance": []});
        let taps = Taps::new(Vec::new(), Vec::new());
        let take = |policies: &[&serde_json::Value]| {
            let policies = policies.iter().map(|policy| (*policy).clone()).collect();
            let problems = taps.take_view(&UeView { policies, ..view(Vec::new()) });
            (taps.known_slices().ursp.clone(), problems)
        };
        let read = |policy: &serde_json::Value| Ursp::from_json(&policy.to_string()).unwrap();
        assert_eq!(take(&[&one]), (read(&one), vec![]));
        for order in [[&one, &two], [&two, &one]] {
            let (ursp, problems) = take(&order);
            assert_eq!(ursp, Ursp::default());
            assert!(problems.len() == 1 && problems[0].contains("more than once"), "{problems:?}");
        }
        // Two equal policies count as one, and unreadable ones are ignored.
        assert_eq!(take(&[&two, &two]), (read(&two), vec![]));
        let (ursp, problems) = take(&[&broken, &one, &broken]);
        assert_eq!((ursp, problems.len()), (read(&one), 2), "{problems:?}");
        assert_eq!(take(&[]), (Ursp::default(), vec![]));
    }

    /// Text of a manager is logged and shown in the status: on one line and with limited length.
    #[test]
    fn text_of_a_manager_is_limited_to_one_line() {
        let taps = Taps::new(vec![binding("gold")], Vec::new());
        let odd = "a\n2026-11-28 ERROR \u{1b}[31m\u{202e}";
        let policies =
            vec![serde_json::json!({"uid": odd, "properties": {"x": {"value": 1, "precedence": 9}}})];
        let ursp = serde_json::json!({"urspGuidance": [{"trafficDesc": {"domainDescs": [odd]}, "relatPrecedence": odd}]});
        let broken = facts(odd, "gold", 1.0);
        let bad = SliceFacts { sd: Some(odd.into()), ..broken };
        let hostile =
            UeView { policies: [policies, vec![ursp]].concat(), ..view(vec![facts(odd, odd, 1.0), bad]) };
        for problem in taps.take_view(&hostile) {
            assert!(!problem.contains(|c: char| c.is_control() || c == '\u{202e}'), "{problem:?}");
        }
        let many = |n: usize| (0..n).map(|i| facts(&format!("s{i}"), &"n".repeat(10_000), 1.0)).collect();
        let problems = taps.take_view(&view(many(5000)));
        assert!(problems.len() <= 17, "{}", problems.len());
        assert!(problems.iter().all(|problem| problem.len() < 600), "{}", problems[0].len());
        assert!(problems.last().unwrap().contains("more"), "{:?}", problems.last());
    }
}
