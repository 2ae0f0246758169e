//! The events of a scenario, in real time.

use super::agent::Agent;
use super::observe::network::interfaces;
use super::plan::{Plan, UePlan};
use super::space::Space;
use super::stop::Stop;
use super::topology::Network;
use super::tunnels::Tunnels;
use crate::scenario::file::{Directions, DownHow};
use crate::scenario::model::{Action, Case};
use anabranch_core::net::{Direction, LinkPatch};
use anabranch_core::policy::{Rule, SteeringMode};
use anyhow::{Context, Result, anyhow, bail};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How often packets are counted while the uplink switches.
const COUNT: Duration = Duration::from_millis(2);

/// What carries out the events.
#[derive(Debug)]
pub struct Timeline {
    events: Vec<(Duration, Action)>,
    ues: BTreeMap<String, Device>,
}

/// A UE as events see it.
#[derive(Debug)]
struct Device {
    agent: Option<Agent>,
    rules: Vec<Rule>,
    space: Space,
    /// Interfaces of its accesses.
    interfaces: Vec<String>,
    /// Names of its accesses.
    accesses: Vec<String>,
    switching: Option<Switching>,
}

/// An uplink that moves to its next path every so many packets.
#[derive(Debug, Clone, Copy)]
struct Switching {
    packets: u64,
    /// Packets sent when it moved last.
    since: u64,
}

impl Timeline {
    /// The events of a run.
    ///
    /// # Errors
    /// An event this backend cannot carry out.
    pub fn new(case: &Case, plan: &Plan, network: &Network, tunnels: &Tunnels, seed: u64) -> Result<Self> {
        let mut ues = BTreeMap::new();
        for (name, of) in &case.ues {
            let plan: &UePlan = plan.ues.get(name).ok_or_else(|| anyhow!("no UE {name}"))?;
            let device = Device {
                agent: tunnels.ues.get(name).map(|r| r.agent.clone()),
                rules: of.rules.clone(),
                space: network.space(&plan.space)?.clone(),
                interfaces: plan.accesses.iter().map(|a| a.interface.clone()).collect(),
                accesses: of.accesses.iter().map(|a| a.name.clone()).collect(),
                switching: None,
            };
            ues.insert(name.clone(), device);
        }
        Ok(Self { events: case.timeline(seed), ues })
    }

    /// Carries out the events until they are over or the end is asked for; returns what happened when.
    ///
    /// # Errors
    /// A link or an agent refuses.
    pub fn run(mut self, network: &mut Network, start: Instant, end: &Stop) -> Result<Vec<(f64, String)>> {
        let mut done = Vec::new();
        for (at, action) in std::mem::take(&mut self.events) {
            if self.wait(start + at, end)? {
                return Ok(done);
            }
            self.carry_out(&action, network).with_context(|| action.label())?;
            done.push((start.elapsed().as_secs_f64(), action.label()));
        }
        // Switching goes on after the last event.
        while self.switching() && !self.wait(Instant::now() + COUNT, end)? {}
        Ok(done)
    }

    fn switching(&self) -> bool {
        self.ues.values().any(|u| u.switching.is_some())
    }

    /// Waits, and switches meanwhile what is to be switched; true if the end is asked for.
    fn wait(&mut self, until: Instant, end: &Stop) -> Result<bool> {
        while self.switching() && Instant::now() < until {
            if end.sleep_until((Instant::now() + COUNT).min(until)) {
                return Ok(true);
            }
            for ue in self.ues.values_mut() {
                ue.switch_if_due()?;
            }
        }
        Ok(end.sleep_until(until))
    }

    fn carry_out(&mut self, action: &Action, network: &mut Network) -> Result<()> {
        let patch = LinkPatch::default();
        match action {
            Action::LinkDown { link, directions, how: DownHow::Carrier } => {
                network.link(link)?.set(of(*directions), &LinkPatch { up: Some(false), ..patch })
            }
            Action::LinkDown { link, directions, how: DownHow::BlackHole } => {
                network.link(link)?.set(of(*directions), &LinkPatch { black_hole: Some(true), ..patch })
            }
            Action::LinkUp { link, directions } => network
                .link(link)?
                .set(of(*directions), &LinkPatch { up: Some(true), black_hole: Some(false), ..patch }),
            Action::Rate { link, directions, rate_bps } => {
                network.link(link)?.set(of(*directions), &LinkPatch { rate_bps: Some(*rate_bps), ..patch })
            }
            Action::Delay { link, directions, delay } => {
                let delay_ms = Some(delay.as_secs_f64() * 1e3);
                network.link(link)?.set(of(*directions), &LinkPatch { delay_ms, ..patch })
            }
            Action::Loss { link, directions, loss } => {
                network.link(link)?.set(of(*directions), &LinkPatch { loss: Some(loss.model()), ..patch })
            }
            Action::Steering { ue, rule, steering } => {
                let ue = self.ue(ue)?;
                for one in ue.rules.iter_mut().filter(|r| r.name == *rule) {
                    one.steering = steering.clone();
                }
                ue.apply()
            }
            Action::SwitchEvery { ue, packets } => {
                let ue = self.ue(ue)?;
                ue.switching = match packets {
                    0 => None,
                    n => Some(Switching { packets: u64::from(*n), since: ue.sent()? }),
                };
                let fixed = ue.rules.iter().all(|r| !matches!(r.steering, SteeringMode::ActiveStandby { .. }));
                if fixed {
                    bail!("switch_every moves rules of mode active-standby; there is none");
                }
                Ok(())
            }
        }
    }

    fn ue(&mut self, name: &str) -> Result<&mut Device> {
        self.ues.get_mut(name).ok_or_else(|| anyhow!("no UE {name}"))
    }
}

impl Device {
    fn apply(&self) -> Result<()> {
        // Without traffic for the tunnel there is no tunnel, and nothing to steer.
        self.agent.as_ref().map_or(Ok(()), |agent| agent.set_rules(&self.rules))
    }

    /// Packets sent over all accesses.
    fn sent(&self) -> Result<u64> {
        let all = interfaces(&self.space)?;
        Ok(self.interfaces.iter().filter_map(|i| all.get(i)).map(|i| i.sent_packets).sum())
    }

    fn switch_if_due(&mut self) -> Result<()> {
        let Some(switching) = self.switching else { return Ok(()) };
        let sent = self.sent()?;
        if sent < switching.since + switching.packets {
            return Ok(());
        }
        for rule in &mut self.rules {
            if let SteeringMode::ActiveStandby { primary, .. } = &mut rule.steering {
                let at = self.accesses.iter().position(|a| a == primary).unwrap_or(0);
                primary.clone_from(&self.accesses[(at + 1) % self.accesses.len()]);
            }
        }
        self.switching = Some(Switching { since: sent, ..switching });
        self.apply()
    }
}

/// Up is from side A to side B of a link.
const fn of(directions: Directions) -> Direction {
    match directions {
        Directions::Both => Direction::Both,
        Directions::Up => Direction::AToB,
        Directions::Down => Direction::BToA,
    }
}
