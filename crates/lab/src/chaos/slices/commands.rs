//! Commands to the manager, and their answers.

use super::check::{Invariant, Violation};
use super::draw::RandomStream;
use super::worker::access;
use super::world::{Failure, World};
use anabranch_slice::profile::{ServiceProfile, Thpt};
use anabranch_slice::{Manager, Refusal, SliceRequest, Ue, Write};
use std::collections::{BTreeMap, BTreeSet};

/// Tenants that may have bookings and QoS sessions, besides the operator.
pub const TENANTS: [&str; 2] = ["acme", "rival"];
/// Maximum number of concurrent slices requested.
const SLICES: usize = 12;

/// State of a slice as known to the operator.
#[derive(Debug, Default)]
pub struct SliceRecord {
    /// Guaranteed rates that may be in force, kbit/s: the last acknowledged one, and later ones without an answer.
    requested_kbps: Vec<f64>,
    /// Whether its removal was requested.
    removed: bool,
}

/// Requests and their answers.
#[derive(Debug, Default)]
pub struct RequestLog {
    fates: BTreeMap<String, SliceRecord>,
    ues: BTreeSet<String>,
    /// How often each UE was requested to be forgotten.
    forgotten: BTreeMap<String, u64>,
    next: u64,
    /// A removal continued despite failures: a cell may keep stale state until an operator repairs it.
    pub left: bool,
}

impl RequestLog {
    fn forgotten(&self, ue: &str) -> u64 {
        self.forgotten.get(ue).copied().unwrap_or(0)
    }
}

/// A command, with what its acknowledgment promises.
#[derive(Debug, Clone)]
pub enum Command {
    /// Creation of a slice with this rate.
    Create(String, f64),
    /// Change of a slice to this rate.
    Modify(String, f64),
    /// Registration of a UE, which had been requested to be forgotten this often before.
    Ue(String, u64),
    /// A command on a slice or UE whose answer promises nothing.
    #[expect(dead_code, reason = "traces show them")]
    Other(&'static str, String),
}

impl World {
    /// Sends a command.
    ///
    /// # Errors
    /// The invariant that was violated.
    pub fn command(&mut self) -> Result<(), Violation> {
        let instance = self.draw.below(self.instances.len() as u64) as usize;
        if !self.instances[instance].up {
            return Ok(());
        }
        let now_ms = self.clock_ms(instance);
        let ids: Vec<String> =
            self.request_log.fates.iter().filter(|(_, f)| !f.removed).map(|(i, _)| i.clone()).collect();
        let id = match ids.len() as u64 {
            0 => String::new(),
            n => ids[self.draw.below(n) as usize].clone(),
        };
        let ue = format!("ue{}", self.draw.below(self.plan.world.ues.into()));
        let most = self.plan.world.cells_mbps.iter().max().copied().unwrap_or(1) * 1_000;
        let kbps = self.draw.between((1, most * 2 / 3)) as f64;
        let order = self.order(kbps);
        type Decide = Box<dyn FnOnce(&Manager) -> Result<Vec<Write>, Refusal>>;
        let what = self.draw.below(16);
        let (of_ue, of_slice) = (ue.clone(), id.clone());
        let (command, decide): (Command, Decide) = match what {
            0..=3 if ids.len() < SLICES => {
                self.request_log.next += 1;
                let id = format!("{:08}-slice", self.request_log.next);
                (Command::Create(id.clone(), kbps), Box::new(move |m| m.create(&id, order, now_ms)))
            }
            4..=7 if !ids.is_empty() => {
                // It may be stored although there is no answer.
                self.request_log.fates.entry(id.clone()).or_default().requested_kbps.push(kbps);
                (Command::Modify(id.clone(), kbps), Box::new(move |m| m.modify(&id, order, now_ms)))
            }
            8 | 9 if !ids.is_empty() => {
                let force = !self.calm && self.draw.percent(30);
                self.request_log.left |= force;
                self.request_log.fates.entry(id.clone()).or_default().removed = true;
                (Command::Other("remove", id.clone()), Box::new(move |m| m.remove(&id, force, now_ms)))
            }
            10 if self.draw.percent(20) => {
                // It may be forgotten although there is no answer.
                self.request_log.ues.remove(&ue);
                *self.request_log.forgotten.entry(ue.clone()).or_default() += 1;
                (Command::Other("forget", ue.clone()), Box::new(move |m| m.forget(&ue)))
            }
            10 | 11 => {
                let id = ue.clone();
                let make = move |m: &Manager| match m.ue(&id) {
                    Ok(known) if known.leaving => Err(Refusal::Unknown("UE that stays", id)),
                    Ok(_) => Ok(Vec::new()),
                    Err(_) => Ok(vec![Write::ue(Ue::new(id, "hash".into()))]),
                };
                let forgotten = self.request_log.forgotten(&ue);
                (Command::Ue(ue, forgotten), Box::new(make))
            }
            12 | 13 => {
                // Its own name, or that of another UE.
                let cell_ue = match self.draw.below(4) {
                    0 => None,
                    1 => Some(format!("ue{}", self.draw.below(self.plan.world.ues.into()))),
                    _ => Some(ue.clone()),
                };
                (
                    Command::Other("assign", ue.clone()),
                    Box::new(move |m| {
                        let mut writes = m.assign(&ue, &id, cell_ue)?;
                        writes.extend(m.place_stays(&ue, &id, true));
                        Ok(writes)
                    }),
                )
            }
            14 => {
                let (dl, ul) = (self.draw.below(most * 400), self.draw.below(most * 100));
                let slice = id.clone();
                let grow: Decide = Box::new(move |m| m.grow(&ue, &slice, dl, ul, now_ms));
                (Command::Other("grow", id), grow)
            }
            _ if self.draw.percent(50) => {
                (Command::Other("needs nothing", ue.clone()), Box::new(move |m| Ok(m.needs_nothing(&ue))))
            }
            _ => (
                Command::Other("unassign", ue.clone()),
                Box::new(move |m| {
                    let mut writes = m.unassign(&ue, &id)?;
                    writes.extend(m.place_stays(&ue, &id, false));
                    Ok(writes)
                }),
            ),
        };
        let done = self.commit(instance, decide)?;
        self.run_state.note(|| format!("instance {instance}: {command:?}: {done:?}"));
        match &command {
            Command::Other("assign", _) => self.clients.placed(&of_ue, &of_slice, true, &done),
            Command::Other("unassign", _) => self.clients.placed(&of_ue, &of_slice, false, &done),
            Command::Other("forget", _) => self.clients.forgotten(&of_ue, &done),
            _ => {}
        }
        match done {
            Ok(()) => self.answer_later(instance, command),
            // Nothing has changed, so the command does not count.
            Err(Failure::Refused(_)) | Err(Failure::Unchanged) => self.refused(&command),
            Err(Failure::Unknown) => {}
        }
        Ok(())
    }

    fn order(&mut self, kbps: f64) -> SliceRequest {
        let cells = self.plan.world.cells_mbps.len();
        order(&mut self.draw, cells, kbps)
    }

    /// The request of a client.
    pub(super) fn client_order(&mut self, kbps: f64) -> SliceRequest {
        let cells = self.plan.world.cells_mbps.len();
        order(&mut self.client_draw, cells, kbps)
    }

    fn refused(&mut self, command: &Command) {
        if let Command::Modify(id, kbps) = command
            && let Some(fate) = self.request_log.fates.get_mut(id)
            && let Some(at) = fate.requested_kbps.iter().rposition(|k| k == kbps)
        {
            fate.requested_kbps.remove(at);
        }
    }

    /// Records an acknowledgment: from now on the change must be in force.
    pub fn answered(&mut self, command: Command) {
        match command {
            Command::Create(id, kbps) => drop(
                self.request_log.fates.insert(id, SliceRecord { requested_kbps: vec![kbps], removed: false }),
            ),
            Command::Modify(id, kbps) => {
                let Some(fate) = self.request_log.fates.get_mut(&id) else { return };
                // In a world without faults at cells, earlier values are no longer valid.
                if self.calm
                    && let Some(at) = fate.requested_kbps.iter().rposition(|k| *k == kbps)
                {
                    fate.requested_kbps.drain(..at);
                }
            }
            Command::Ue(id, forgotten) => {
                if self.request_log.forgotten(&id) == forgotten {
                    self.request_log.ues.insert(id);
                }
            }
            Command::Other(..) => {}
        }
    }

    /// Checks that all acknowledged changes are present.
    ///
    /// # Errors
    /// The invariant that was violated.
    pub fn remembered(&mut self, instance: usize) -> Result<(), Violation> {
        self.run_state.tally.count_check(Invariant::Remembered);
        let manager = &self.instances[instance].manager;
        let lost = |what: String| Err(self.run_state.violation(Invariant::Remembered, what));
        for (id, fate) in self.request_log.fates.iter().filter(|(_, fate)| !fate.removed) {
            let Ok(slice) = manager.slice(id) else {
                return lost(format!(
                    "instance {instance} has no slice {id}, which was answered and not removed"
                ));
            };
            let asked = slice.requested_slice().profile.dl_slice.gua.unwrap_or(0.0);
            if !fate.requested_kbps.contains(&asked) {
                return lost(format!(
                    "slice {id} is to promise {asked} kbit/s; asked for were {:?}",
                    fate.requested_kbps
                ));
            }
        }
        if let Some(what) = self.sessions_remembered(instance) {
            return lost(what);
        }
        if let Some(ue) = self.request_log.ues.iter().find(|ue| manager.ue(ue).is_err()) {
            return lost(format!("instance {instance} has no {ue}, which was answered"));
        }
        Ok(())
    }
}

fn order(draw: &mut RandomStream, cells: usize, kbps: f64) -> SliceRequest {
    let thpt = |gua: f64, max: Option<f64>| Thpt { gua: Some(gua), max };
    let max = draw.percent(30).then_some(kbps * 2.0);
    let accesses =
        if draw.percent(60) { vec![access(draw.below(cells as u64) as usize)] } else { Vec::new() };
    let profile = ServiceProfile {
        sst: 1,
        dl_slice: thpt(kbps, max),
        ul_slice: thpt(kbps / 4.0, None),
        max_ues: draw.percent(30).then_some(2),
        sharing: draw.percent(20).then(|| "NON-SHARED".into()),
        ..ServiceProfile::default()
    };
    let share_ppm = draw.percent(20).then(|| draw.below(300_000) as u32);
    SliceRequest {
        name: format!("name-{}", draw.below(4)),
        profile,
        accesses,
        share_ppm,
        ..SliceRequest::default()
    }
}
