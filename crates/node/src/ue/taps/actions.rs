//! Kernel configuration for plans (§4 of the paper): a routing table and a rule for each slice's mark, a second pair with the initial window
//! of its guarantee, rules for the flows of mappings, and Multipath TCP endpoints for plans with several
//! paths.
//!
//! The wanted configuration is computed anew whenever slices, facts or interfaces change. Only differences
//! are applied, and everything is removed when the agent stops.

use super::Taps;
use super::windows::Windows;
use crate::runtime::api::EventLog;
use crate::runtime::config::{Mapping, SliceBinding};
use crate::runtime::netctl::{
    self, Layer, MAPPING_PRIORITY, MARK_PRIORITY, Net, SOURCE_PRIORITY, Selector, SliceRoute, Step,
};
use anabranch_element::time::Instant;
use anabranch_rules as policy;
use anabranch_selection::plan::{Action, PlanConfig, plan};
use anabranch_selection::window::{WindowInput, bucket, initial_window};
use anabranch_selection::{Endpoint, Host, Preference, Properties, Protocol, Refusal, Request, select};
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// The object that a step configures; of two steps with the same key, the later replaces the earlier. Steps
/// are made in this order and removed in reverse.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum StepKey {
    Sysctl(String),
    Route {
        table: u32,
        v6: bool,
    },
    Rule {
        priority: u32,
        v6: bool,
    },
    /// Rule for packets with this source address.
    Source(IpAddr),
    Subflows,
    Endpoint(IpAddr),
}

impl StepKey {
    /// Whether a changed step replaces the previous one by itself, without an undo.
    fn replaces(&self) -> bool {
        matches!(self, Self::Route { .. } | Self::Endpoint(_))
    }

    /// Whether the step directs packets; without it or a replacement they would take another path.
    fn directs_packets(&self) -> bool {
        matches!(self, Self::Route { .. } | Self::Rule { .. } | Self::Source(_))
    }
}

impl Taps {
    /// The wanted kernel configuration, and a message for each mapping that has no slice.
    pub fn wanted(&self) -> (BTreeMap<StepKey, Step>, Vec<String>) {
        let (host, now) = (self.host(), self.now());
        let mut wanted = BTreeMap::new();
        for (priority, binding) in (MARK_PRIORITY..).step_by(2).zip(&self.bindings) {
            self.slice_steps(binding, priority, &host, now, &mut wanted);
        }
        self.endpoints.steps(&host, &mut wanted);
        let mut problems = self.source_steps(&host, &mut wanted);
        for (priority, mapping) in (MAPPING_PRIORITY..).zip(&self.mappings) {
            match self.table(mapping, &host, now) {
                Ok(Some(table)) => {
                    let by = Selector {
                        v6: mapping.remote.addr().is_ipv6(),
                        mark: None,
                        local: None,
                        protocol: Some(if mapping.protocol == policy::Protocol::Tcp { 6 } else { 17 }),
                        remote: Some(mapping.remote),
                        remote_port: mapping.remote_port.map(|r| (r.first, r.last)),
                        uid: mapping.uid,
                    };
                    let key = StepKey::Rule { priority, v6: by.v6 };
                    wanted.insert(key, Step::Select { priority, table, by });
                }
                // The flows follow the routes of the host.
                Ok(None) => {}
                Err(refusal) => problems.push(format!("[[mapping]] {}: {refusal}", mapping.name)),
            }
        }
        (wanted, problems)
    }

    fn slice_steps(
        &self,
        binding: &SliceBinding,
        priority: u32,
        host: &Host,
        now: Instant,
        wanted: &mut BTreeMap<StepKey, Step>,
    ) {
        let Some((mark, table)) = binding.mark.zip(binding.table) else { return };
        let Some(interface) = host.interfaces.get(&binding.interface).filter(|i| i.up) else { return };
        for step in netctl::ue_accesses([binding.interface.as_str()].into_iter()) {
            if let Step::Sysctl { key, .. } = &step {
                wanted.insert(StepKey::Sysctl(key.clone()), step);
            }
        }
        // If a kernel program sets the window, both tables are equal and only the mark differs.
        let window = self.window_routes.then(|| window(binding, host, now)).flatten().map(bucket);
        for v6 in [false, true] {
            if !interface.addresses.iter().any(|a| a.is_ipv6() == v6) {
                continue;
            }
            for (more, initcwnd) in [(0, None), (1, window)] {
                let (table, priority) = (table + more, priority + more);
                let gateway = binding.gateway.of(v6);
                let route = SliceRoute { v6, device: binding.interface.clone(), gateway, table, initcwnd };
                wanted.insert(StepKey::Route { table, v6 }, Step::Slice(route));
                let by = Selector { v6, mark: Some(mark + more), ..Selector::default() };
                wanted.insert(StepKey::Rule { priority, v6 }, Step::Select { priority, table, by });
            }
        }
    }

    /// Adds rules that direct subflows of Multipath TCP to the slice of their address. Returns messages about
    /// conflicts.
    fn source_steps(&self, host: &Host, wanted: &mut BTreeMap<StepKey, Step>) -> Vec<String> {
        let mut problems = Vec::new();
        for (address, slice) in self.endpoints.sources(host) {
            let Some(slice) = slice else {
                problems.push(format!(
                    "connections with several paths require different slices for {address}: their subflows from that address use no slice"
                ));
                continue;
            };
            let has_table = (SOURCE_PRIORITY..).zip(&self.bindings).find(|(_, b)| b.slice == slice);
            if let Some((priority, table)) = has_table.and_then(|(priority, b)| Some((priority, b.table?))) {
                let by = Selector { v6: address.is_ipv6(), local: Some(address), ..Selector::default() };
                wanted.insert(StepKey::Source(address), Step::Select { priority, table, by });
            }
        }
        problems
    }

    /// The table for the flows of a mapping; `None` if the best path is not a slice with a table.
    fn table(&self, mapping: &Mapping, host: &Host, now: Instant) -> Result<Option<u32>, Refusal> {
        let mut properties = Properties::from_json(Value::Object(mapping.properties.clone()))?;
        let tcp = mapping.protocol == policy::Protocol::Tcp;
        if !tcp {
            // The flow is UDP, whatever transport services an application would prefer.
            properties.reliability = Preference::NoPreference;
            properties.preserve_order = Preference::NoPreference;
            properties.congestion_control = Preference::NoPreference;
        }
        let mut host = host.clone();
        host.protocols.retain(|s| s.protocol == if tcp { Protocol::Tcp } else { Protocol::Udp });
        let port = mapping.remote_port.map_or(0, |r| r.first);
        let remote = vec![Endpoint::new(mapping.remote.addr(), port)];
        let request = Request { properties, remote, ..Request::default() };
        let selection = select(&request, &host, now)?;
        self.queue_needs(&selection.needs, &request.properties);
        let path = selection.candidates.first().and_then(|best| best.paths.first());
        let slice = path.and_then(|path| path.pvd.as_ref());
        let binding = slice.and_then(|id| self.bindings.iter().find(|b| b.slice == *id));
        let more = u32::from(tcp && mapping.paced);
        Ok(binding.and_then(|b| b.table).map(|table| table + more))
    }

    /// The steps of a plan on this host: with α of the slice, and with the mark whose routes have its window.
    pub(super) fn plan_here(
        &self,
        candidate: &anabranch_selection::Candidate,
        properties: &Properties,
        host: &Host,
        now: Instant,
    ) -> Vec<Action> {
        let slice = candidate.paths.first().and_then(|p| p.pvd.as_ref());
        let binding = slice.and_then(|id| self.bindings.iter().find(|b| b.slice == *id));
        let config = PlanConfig {
            alpha: binding.map_or(PlanConfig::default().alpha, |b| b.alpha),
            ..PlanConfig::default()
        };
        let mut steps = plan(candidate, properties, host, &config, now);
        let windowed = steps.iter().any(|s| matches!(s, Action::InitialWindow { .. }));
        if windowed && let Some(binding) = binding {
            steps.iter_mut().for_each(|step| second_mark(binding, step));
        }
        steps
    }
}

/// Replaces a slice's mark by the next one, whose routes have the window. Only for the configured `mark` and
/// `table` of the slice; a slice set over REST has no second mark.
fn second_mark(binding: &SliceBinding, step: &mut Action) {
    if let Action::Mark { mark, table } = step
        && let (Some(next_mark), Some(next_table)) =
            (binding.mark.filter(|own| own == mark), binding.table.filter(|own| own == table))
    {
        (*mark, *table) = (next_mark + 1, next_table + 1);
    }
}

impl Taps {
    /// The current initial windows by mark, if a kernel program sets them.
    pub fn windows(&self) -> BTreeMap<u32, u32> {
        let (host, now) = (self.host(), self.now());
        let of = |binding: &SliceBinding| Some((binding.mark? + 1, window(binding, &host, now)?));
        self.bindings.iter().filter_map(of).collect()
    }
}

/// The window of a slice's second mark: Eq. 1 for senders that pace at the slice's rate.
fn window(binding: &SliceBinding, host: &Host, now: Instant) -> Option<u32> {
    let facts = host.slices.get(&binding.slice)?.facts_at(now)?;
    let config = PlanConfig::default();
    let window = initial_window(&WindowInput {
        alpha: binding.alpha,
        rate_bps: facts.uplink_guaranteed_bps?,
        rtt_us: facts.rtt_us?,
        segment_bytes: config.segment_bytes,
        pacing_bps: facts.uplink_max_bps.or(facts.uplink_guaranteed_bps),
        peer_window_bytes: config.peer_window_bytes,
    });
    Some(window.segments)
}

/// The installed steps, each with its undo.
pub struct Installed {
    net: Net,
    windows: Option<Windows>,
    installed: BTreeMap<StepKey, (Step, Layer)>,
    /// The messages logged last, so that each is logged once.
    logged: Vec<String>,
    /// Name of the UE, and the log that records restorations.
    log: (String, EventLog),
}

impl Installed {
    /// Starts with nothing installed; removes leftovers of a killed run.
    pub async fn start(
        net: Net,
        bindings: &[SliceBinding],
        windows: Option<Windows>,
        log: (String, EventLog),
    ) -> anyhow::Result<Self> {
        let tables: Vec<u32> = bindings.iter().filter_map(|b| b.table).flat_map(|t| [t, t + 1]).collect();
        if !tables.is_empty() {
            net.clean_slices(&tables).await?;
        }
        net.clean_endpoints()?;
        Ok(Self { net, windows, installed: BTreeMap::new(), logged: Vec::new(), log })
    }

    /// Applies the wanted configuration. With `again`, routes are also made once more, because the kernel
    /// silently removes those of an interface that goes down, and rules that another program removed are
    /// restored. A step that directs packets is made before its predecessor is removed; if the kernel
    /// refuses, the predecessor stays.
    pub async fn update(&mut self, taps: &Taps, again: bool) {
        let asked = taps.endpoints.requested();
        let (wanted, mut problems) = taps.wanted();
        let differs = |key: &StepKey, step: &Step| match wanted.get(key) {
            None => true,
            Some(new) => new != step && !key.replaces(),
        };
        let gone =
            self.installed.iter().filter(|(key, (step, _))| !key.directs_packets() && differs(key, step));
        let gone: Vec<StepKey> = gone.map(|(key, _)| key.clone()).collect();
        self.remove_all(gone).await;
        for (key, step) in wanted.clone() {
            if let Some((old, layer)) = self.installed.get(&key)
                && *old == step
                && !(again && matches!(key, StepKey::Route { .. }))
            {
                if again {
                    let (ue, log) = &self.log;
                    self.net.hold([layer], Some(ue), log).await;
                }
                continue;
            }
            match self.net.apply(vec![step.clone()]).await {
                Ok(layer) => {
                    let stood = key.replaces();
                    let old = self.installed.insert(key, (step.clone(), layer));
                    if let Some((_, layer)) = old.filter(|(old, _)| *old != step && !stood) {
                        self.net.undo(layer).await;
                    }
                }
                Err(error) => {
                    // A route that cannot be restored is gone.
                    if self.installed.get(&key).is_some_and(|(old, _)| *old == step) {
                        self.installed.remove(&key);
                    }
                    problems.push(format!("{error:#}"));
                }
            }
        }
        let gone = self.installed.keys().filter(|key| !wanted.contains_key(*key)).cloned().collect();
        self.remove_all(gone).await;
        if let Some(windows) = &mut self.windows {
            problems.extend(windows.update(taps.windows()));
        }
        for problem in problems.iter().filter(|p| !self.logged.contains(p)) {
            tracing::warn!("slices: {problem}");
        }
        self.logged = problems;
        taps.endpoints.installed(asked);
    }

    /// Undoes these steps, in reverse order.
    async fn remove_all(&mut self, keys: Vec<StepKey>) {
        for key in keys.into_iter().rev() {
            if let Some((_, layer)) = self.installed.remove(&key) {
                self.net.undo(layer).await;
            }
        }
    }

    /// Removes all steps.
    pub async fn remove(self) {
        for (_, (_, layer)) in self.installed.into_iter().rev() {
            self.net.undo(layer).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_configured_mark_of_a_slice_has_a_second_one() {
        let binding = |mark, table| SliceBinding {
            slice: "A".into(),
            interface: "sa".into(),
            mark: Some(mark),
            table: Some(table),
            gateway: Default::default(),
            alpha: 0.5,
        };
        for (own, told, expected) in [
            ((512, 600), (512, 600), (513, 601)),
            ((512, 600), (u32::MAX, u32::MAX), (u32::MAX, u32::MAX)),
            ((512, 600), (512, 7), (512, 7)),
            ((512, 600), (5, 600), (5, 600)),
        ] {
            let mut step = Action::Mark { mark: told.0, table: told.1 };
            second_mark(&binding(own.0, own.1), &mut step);
            assert_eq!(step, Action::Mark { mark: expected.0, table: expected.1 }, "{own:?} {told:?}");
        }
    }
}
