//! The events of a scenario, in real time.

use super::agent::Agent;
use super::cells::{CellState, Cells};
use super::stop::Stop;
use super::topology::Network;
use super::tunnels::Tunnels;
use crate::scenario::file::{Directions, DownHow};
use crate::scenario::model::{Action, Case, Ue};
use anabranch_link::{Direction, LinkPatch};
use anabranch_steer::{Rule, SteeringMode, active_standby};
use anyhow::{Context, Result, anyhow};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Executes the events.
#[derive(Debug)]
pub struct Timeline {
    events: Vec<(Duration, Action)>,
    ues: BTreeMap<String, Device>,
    cells: BTreeMap<String, (Agent, CellState)>,
}

/// The state of a UE that events change.
#[derive(Debug)]
struct Device {
    agent: Option<Agent>,
    rules: Vec<Rule>,
}

impl Timeline {
    /// The events of a run.
    #[must_use]
    pub fn new(case: &Case, tunnels: &Tunnels, cells: &Cells, seed: u64) -> Self {
        let device = |(name, ue): (&String, &Ue)| {
            let agent = tunnels.ues.get(name).map(|r| r.agent.clone());
            (name.clone(), Device { agent, rules: ue.rules.clone() })
        };
        let cell = cells.running.iter().map(|(name, c)| (name.clone(), (c.agent.clone(), c.first.clone())));
        Self {
            events: case.timeline(seed),
            ues: case.ues.iter().map(device).collect(),
            cells: cell.collect(),
        }
    }

    /// Executes the events until they are over or the end is requested. Returns the events and their times.
    ///
    /// # Errors
    /// A link or an agent refuses.
    pub fn run(mut self, network: &mut Network, start: Instant, end: &Stop) -> Result<Vec<(f64, String)>> {
        let mut done = Vec::new();
        if end.sleep_until(start) {
            return Ok(done);
        }
        for (agent, state) in self.cells.values() {
            for (ue, direction, channel) in &state.moving {
                agent.set_channel(ue, *direction, channel)?;
            }
        }
        for (at, action) in std::mem::take(&mut self.events) {
            if end.sleep_until(start + at) {
                break;
            }
            self.carry_out(&action, network).with_context(|| action.label())?;
            // The planned time: the link acts within a millisecond of it.
            done.push((at.as_secs_f64(), action.label()));
        }
        Ok(done)
    }

    fn carry_out(&mut self, action: &Action, network: &mut Network) -> Result<()> {
        let patch = LinkPatch::default();
        match action {
            Action::LinkDown { link, directions, how: DownHow::Carrier } => {
                network.carrier_down(link, of(*directions))
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
            Action::Strip { link, directions, strip } => {
                network.link(link)?.set(of(*directions), &LinkPatch { strip: Some(strip.kind()), ..patch })
            }
            Action::Steering { ue, rule, steering } => self.rules(ue, |one| {
                if one.name == *rule {
                    one.steering = steering.clone();
                }
            }),
            Action::Share { gnb, slice, share_percent } => {
                let (agent, state) = self.cells.get_mut(gnb).ok_or_else(|| anyhow!("no gnb {gnb}"))?;
                for one in state.slices.iter_mut().filter(|one| one.name == *slice) {
                    one.share_percent = *share_percent;
                }
                agent.set_slices(&state.slices)
            }
            Action::SwitchEvery { ue, packets } => self.rules(ue, |one| {
                if let SteeringMode::ActiveStandby(active_standby::Params { rotate_packets, .. }) =
                    &mut one.steering
                {
                    *rotate_packets = *packets;
                }
            }),
        }
    }

    fn rules(&mut self, ue: &str, change: impl FnMut(&mut Rule)) -> Result<()> {
        let ue = self.ues.get_mut(ue).ok_or_else(|| anyhow!("no UE {ue}"))?;
        ue.rules.iter_mut().for_each(change);
        // Without traffic for the tunnel there is no tunnel and nothing to steer.
        ue.agent.as_ref().map_or(Ok(()), |agent| agent.set_rules(&ue.rules))
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
