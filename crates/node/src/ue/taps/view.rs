//! What the slice manager tells this UE, as the engine takes it.

use super::{MAX_SLICES, SliceSpec, Taps};
use crate::runtime::config::SliceBinding;
use anabranch_selection::neat::Policy;
use anabranch_selection::ursp::Ursp;
use anabranch_slice::{SliceFacts, UeView};
use std::collections::BTreeMap;

impl Taps {
    /// Takes over what the slice manager tells: slices, and the policies it pushes. Gives what cannot be used, and why;
    /// the rest counts.
    pub fn take_view(&self, view: &UeView) -> Vec<String> {
        let now = self.now();
        let (mut problems, mut managed, mut ids) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        for facts in view.slices.iter().take(MAX_SLICES) {
            let Some(binding) = self.bindings.iter().find(|b| b.slice == facts.id || b.slice == facts.name)
            else {
                problems.push(format!(
                    "slice \"{}\" ({}): no [[slice]] says how it is reached",
                    facts.name, facts.id
                ));
                continue;
            };
            let spec = SliceSpec::told(facts, binding, view.ttl_s);
            match spec.slice(now) {
                Ok(slice) => {
                    managed.insert(binding.slice.clone(), (spec, slice));
                    ids.insert(binding.slice.clone(), facts.id.clone());
                }
                Err(why) => problems.push(format!("slice \"{}\": {why}", facts.name)),
            }
        }
        let mut told = self.told();
        (told.managed, told.ids) = (managed, ids);
        self.changed.notify_one();
        // Those that are pushed no more are gone.
        for uid in std::mem::take(&mut told.pushed) {
            told.manager.policies.remove(&uid);
            told.manager.profiles.remove(&uid);
        }
        if std::mem::take(&mut told.pushed_ursp) {
            told.ursp = Ursp::default();
        }
        for (i, policy) in view.policies.iter().enumerate() {
            if policy.get("urspGuidance").is_some() {
                match Ursp::from_json(&policy.to_string()) {
                    Ok(ursp) => (told.ursp, told.pushed_ursp) = (ursp, true),
                    Err(error) => problems.push(format!("policies[{i}]: {error}")),
                }
                continue;
            }
            let pushed = Policy::from_value(policy).and_then(|new| {
                let uid = new.uid.clone();
                let kind =
                    if new.is_profile { &mut told.manager.profiles } else { &mut told.manager.policies };
                kind.insert(new).map(|()| uid)
            });
            match pushed {
                Ok(uid) => told.pushed.push(uid),
                Err(error) => problems.push(format!("policies[{i}]: {error}")),
            }
        }
        problems
    }

    /// What the slice manager told counts from now: it was heard of, and nothing has changed.
    pub fn view_counts_from_now(&self) {
        let now = self.now();
        for (_, slice) in self.told().managed.values_mut() {
            if let Some(facts) = &mut slice.facts {
                facts.as_of = now;
            }
        }
    }
}

impl SliceSpec {
    /// What the manager tells of a slice, and how it is reached from here. A slice that is degraded is still a path, but
    /// its promises do not count.
    fn told(facts: &SliceFacts, binding: &SliceBinding, ttl_s: u32) -> Self {
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
            // The delay budget is one way, of the slower direction (TS 28.541, dLLatency and uLLatency).
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
