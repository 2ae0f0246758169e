//! Start and end of faults.

use super::check::Violation;
use super::ends::{Running, rules};
use super::plan::{Fault, Kind, LinkDirection, Mode};
use super::world::World;
use anabranch_atsss::ue::UeCommand;
use anabranch_atsss::upf::UpfCommand;
use anabranch_element::time::{Duration, Instant};
use anabranch_steer::Rule;

/// Sudden increase of the round trip from which an access may be declared dead: the shortest silence that counts as a failure
/// (200 ms) minus the longest time between two probes in traffic (40 ms).
const SILENT: Duration = Duration::from_millis(160);

/// Time until a refused UE returns: it retries at increasing intervals, finally every 80 s.
pub const REFUSED: Duration = Duration::from_secs(90);

impl World {
    /// Starts a fault.
    ///
    /// # Errors
    /// The invariant that was violated.
    pub fn begin(&mut self, number: u64, fault: &Fault) -> Result<(), Violation> {
        let (ues, upfs) = (self.ues.len(), self.upfs.len());
        if fault.kind.ue().is_some_and(|ue| usize::from(ue) >= ues) {
            return Ok(());
        }
        self.run_state.begins(number, fault, fault.kind.name());
        let now = self.run_state.now;
        let name = fault.kind.name();
        let mut lasts = true;
        match fault.kind {
            Kind::Loss { place, .. }
            | Kind::Partition { place }
            | Kind::Reorder { place, .. }
            | Kind::Duplicate { place, .. }
            | Kind::Corrupt { place, .. }
            | Kind::Delay { place, .. }
            | Kind::Rate { place, .. }
            | Kind::Mtu { place, .. } => {
                let (ue, access) = (usize::from(place.ue), usize::from(place.access));
                match fault.kind {
                    Kind::Duplicate { .. } => self.ues[ue].orderly &= !self.plain.contains(&true),
                    Kind::Delay { delay_ms, .. } => {
                        let ways = if place.way == LinkDirection::Both { 2 } else { 1 };
                        let silent = ways * Duration::from_millis(delay_ms.into()) >= SILENT;
                        self.ues[ue].slow(access, silent);
                    }
                    _ => self.ues[ue].disturb(),
                }
                self.lines[ue][access].begin(number, fault.kind, now, &mut self.run_state.tally);
            }
            Kind::Carrier { ue, access } => {
                let (ue, access) = (usize::from(ue), usize::from(access));
                self.ues[ue].disturb();
                self.lines[ue][access].begin(number, fault.kind, now, &mut self.run_state.tally);
                self.run_state.tally.effect(name, 1);
                self.carrier(ue, access, false)?;
            }
            Kind::Roam { ue, access } => {
                self.ues[usize::from(ue)].disturb();
                self.roam(usize::from(ue), usize::from(access));
                lasts = false;
            }
            Kind::RestartUe { ue, kept } => {
                let end = &mut self.ues[usize::from(ue)];
                end.disturb();
                end.running = Running::No;
                if !kept {
                    end.state_file_timestamp_ns = 0;
                }
                self.run_state.tally.effect(name, 1);
            }
            Kind::RestartUpf { upf, kept } => {
                let upf = usize::from(upf) % upfs;
                self.disturb_all_at(upf);
                self.upfs[upf].running = Running::No;
                if !kept {
                    self.upfs[upf].state_file.clear();
                }
                self.run_state.tally.effect(name, 1);
            }
            Kind::SmallUpf { upf, sessions } => {
                let upf = usize::from(upf) % upfs;
                self.disturb_all_at(upf);
                self.upfs[upf].sessions = Some(sessions.into());
                self.upfs[upf].start(now);
                self.run_state.tally.effect(name, 1);
            }
            Kind::UeClock { ue, seconds } => {
                let end = &mut self.ues[usize::from(ue)];
                end.disturb();
                end.clock_s = seconds;
                end.start(now);
                self.run_state.tally.effect(name, 1);
            }
            Kind::UpfClock { upf, seconds } => {
                let upf = usize::from(upf) % upfs;
                self.disturb_all_at(upf);
                self.set_upf_clock(upf, seconds);
                self.run_state.tally.effect(name, 1);
            }
            Kind::CloseAtUe { ue } => {
                let ue = usize::from(ue);
                self.ues[ue].disturb();
                if self.ues[ue].runs() {
                    self.ues[ue].command(UeCommand::Close, now);
                    self.run_state.tally.effect(name, 1);
                    self.take_ue(ue)?;
                }
                lasts = false;
            }
            Kind::CloseAtUpf { ue } => {
                let end = &mut self.ues[usize::from(ue)];
                end.disturb();
                let (home, key) = (end.home, end.entry.key);
                if self.upfs[home].runs()
                    && self.upfs[home].upf.command(UpfCommand::CloseSession(key), now).is_ok()
                {
                    self.run_state.tally.effect(name, 1);
                    self.take_upf(home)?;
                }
                lasts = false;
            }
            Kind::Remove { ue } => {
                let end = &mut self.ues[usize::from(ue)];
                end.disturb();
                end.excused_until = Instant::MAX;
                let (home, key) = (end.home, end.entry.key);
                self.upfs[home].known.retain(|entry| entry.key != key);
                if self.upfs[home].upf.command(UpfCommand::RemoveUe(key), now).is_ok() {
                    self.run_state.tally.effect(name, 1);
                    self.take_upf(home)?;
                }
            }
            Kind::Move { ue } => {
                lasts = false;
                let ue = usize::from(ue);
                if upfs > 1 {
                    self.ues[ue].disturb();
                    self.move_ue(ue);
                    self.run_state.tally.effect(name, 1);
                }
            }
            Kind::Rules { upf, mode, reorder } => {
                let upf = usize::from(upf) % upfs;
                self.rules_at(upf, rules("all", mode, reorder));
                self.run_state.tally.effect(name, 1);
                lasts = false;
            }
            Kind::UeRules { ue, mode, reorder } => {
                let ue = usize::from(ue);
                self.ue_rules(ue, mode, reorder);
                self.run_state.tally.effect(name, 1);
                self.take_ue(ue)?;
                lasts = false;
            }
            Kind::UeNoRoom { ue } => {
                self.ues[usize::from(ue)].disturb();
                self.ues[usize::from(ue)].no_room += 1;
            }
            Kind::UpfNoRoom { upf } => {
                let upf = usize::from(upf) % upfs;
                self.disturb_all_at(upf);
                self.upfs[upf].no_room += 1;
            }
            Kind::Deaf { upf } => self.upfs[usize::from(upf) % upfs].deaf += 1,
            Kind::Quiet => self.quiet += 1,
            Kind::Burst { ue, packets } => {
                // Before there is a session, there is room for a few packets.
                let ue = usize::from(ue);
                if self.ues[ue].flows.iter().all(|flow| flow.next > Instant::from_secs(3)) {
                    self.burst(ue, packets)?;
                }
                lasts = false;
            }
        }
        if lasts {
            self.active.begin(number, now + Duration::from_millis(fault.ms), fault.kind);
        }
        Ok(())
    }

    /// Ends a fault.
    ///
    /// # Errors
    /// The invariant that was violated.
    pub fn end_fault(&mut self, number: u64) -> Result<(), Violation> {
        let Some(kind) = self.active.end(number) else { return Ok(()) };
        self.run_state.note(|| format!("fault {number} ends"));
        let (now, upfs) = (self.run_state.now, self.upfs.len());
        match kind {
            Kind::Loss { place, .. }
            | Kind::Partition { place }
            | Kind::Reorder { place, .. }
            | Kind::Duplicate { place, .. }
            | Kind::Corrupt { place, .. }
            | Kind::Delay { place, .. }
            | Kind::Rate { place, .. }
            | Kind::Mtu { place, .. } => {
                let line = &mut self.lines[usize::from(place.ue)][usize::from(place.access)];
                line.end(number, now, &mut self.run_state.tally);
            }
            Kind::Carrier { ue, access } => {
                let (ue, access) = (usize::from(ue), usize::from(access));
                self.lines[ue][access].end(number, now, &mut self.run_state.tally);
                let down = |kind: &Kind| matches!(*kind, Kind::Carrier { ue: u, access: a } if (usize::from(u), usize::from(a)) == (ue, access));
                if !self.active.kinds().any(down) {
                    self.carrier(ue, access, true)?;
                }
            }
            Kind::RestartUe { ue, .. } => {
                let (ue, same) = (
                    usize::from(ue),
                    |kind: &Kind| matches!(*kind, Kind::RestartUe { ue: u, .. } if u == ue),
                );
                if !self.active.kinds().any(same) {
                    self.start_ue(ue)?;
                }
            }
            Kind::RestartUpf { upf, .. } => {
                let upf = usize::from(upf) % upfs;
                let same = |kind: &Kind| matches!(*kind, Kind::RestartUpf { upf: u, .. } if usize::from(u) % upfs == upf);
                if !self.active.kinds().any(same) {
                    self.upfs[upf].start(now);
                    self.disturb_all_at(upf);
                }
            }
            Kind::SmallUpf { upf, .. } => {
                let upf = usize::from(upf) % upfs;
                self.upfs[upf].sessions = None;
                if self.upfs[upf].runs() {
                    self.upfs[upf].start(now);
                }
                self.excuse_all_at(upf, REFUSED);
            }
            Kind::UeClock { ue, .. } => {
                let ue = usize::from(ue);
                self.ues[ue].clock_s = 0;
                self.reset_clock_of(ue);
                if self.ues[ue].runs() {
                    self.start_ue(ue)?;
                }
            }
            Kind::UpfClock { upf, .. } => {
                let upf = usize::from(upf) % upfs;
                self.set_upf_clock(upf, 0);
                self.excuse_all_at(upf, REFUSED);
            }
            Kind::Remove { ue } => {
                let ue = usize::from(ue);
                let (home, entry) = (self.ues[ue].home, self.ues[ue].entry.clone());
                for (n, upf) in self.upfs.iter_mut().enumerate() {
                    // It may have moved in the meantime.
                    if n == home || !upf.known.iter().any(|known| known.key == entry.key) {
                        upf.know(&entry, now);
                    }
                }
                self.ues[ue].excused_until = now;
            }
            // Packets without room, handshakes included, were not sent: service is required from now on.
            Kind::UeNoRoom { ue } => {
                let end = &mut self.ues[usize::from(ue)];
                end.no_room -= 1;
                end.excused_until = end.excused_until.max(now);
            }
            Kind::UpfNoRoom { upf } => {
                let upf = usize::from(upf) % upfs;
                self.upfs[upf].no_room -= 1;
                self.excuse_all_at(upf, Duration::ZERO);
            }
            Kind::Deaf { upf } => self.upfs[usize::from(upf) % upfs].deaf -= 1,
            Kind::Quiet => self.quiet -= 1,
            _ => {}
        }
        Ok(())
    }

    /// Ends all faults and all attacks.
    ///
    /// # Errors
    /// The invariant that was violated.
    pub fn end_all(&mut self) -> Result<(), Violation> {
        (self.hostile, self.strangers) = (None, None);
        while let Some(number) = self.active.first() {
            self.end_fault(number)?;
        }
        Ok(())
    }

    /// Starts a UE and passes it the carrier states of its accesses.
    fn start_ue(&mut self, ue: usize) -> Result<(), Violation> {
        self.ues[ue].start(self.run_state.now);
        let down: Vec<usize> = self
            .active
            .kinds()
            .filter_map(|kind| match *kind {
                Kind::Carrier { ue: u, access } if usize::from(u) == ue => Some(usize::from(access)),
                _ => None,
            })
            .collect();
        down.into_iter().try_for_each(|access| self.carrier(ue, access, false))
    }

    fn carrier(&mut self, ue: usize, access: usize, up: bool) -> Result<(), Violation> {
        if self.ues[ue].runs() {
            let command = UeCommand::Carrier { path: access as u8, up };
            self.ues[ue].command(command, self.run_state.now);
        }
        self.take_ue(ue)
    }

    fn disturb_all_at(&mut self, upf: usize) {
        self.ues.iter_mut().filter(|ue| ue.home == upf).for_each(super::ends::UeEnd::disturb);
    }

    fn excuse_all_at(&mut self, upf: usize, time: Duration) {
        let until = self.run_state.now + time;
        for ue in self.ues.iter_mut().filter(|ue| ue.home == upf) {
            ue.excused_until = ue.excused_until.max(until);
        }
    }

    fn set_upf_clock(&mut self, upf: usize, seconds: i32) {
        let end = &mut self.upfs[upf];
        end.clock_s = seconds;
        if end.runs() {
            let clock = UpfCommand::Clock { unix_epoch_ns: super::ends::epoch_ns(seconds) };
            let _ = end.upf.command(clock, self.run_state.now);
        }
    }

    /// Action of an operator for a UE whose clock was wrong (`ctl sessions reset-clock`).
    fn reset_clock_of(&mut self, ue: usize) {
        let key = self.ues[ue].entry.key;
        self.ues[ue].state_file_timestamp_ns = 0;
        for upf in &mut self.upfs {
            upf.state_file.remove(&key.0);
            // A UPF without this UE has nothing to forget.
            let _ = upf.upf.command(UpfCommand::ForgetTimestamp(key), self.run_state.now);
        }
    }

    /// A UE reports that it was refused. The operator checks both clocks and, if they are right, admits it again. (A refusal reported
    /// by the UPF is not sufficient: a replayed handshake looks the same there.)
    pub(super) fn refused(&mut self, ue: usize) {
        let home = self.ues[ue].home;
        let until = self.run_state.now + REFUSED;
        self.ues[ue].excused_until = self.ues[ue].excused_until.max(until);
        if self.ues[ue].clock_s == 0 && self.upfs[home].clock_s == 0 {
            self.reset_clock_of(ue);
        }
    }

    fn move_ue(&mut self, ue: usize) {
        let to = (self.ues[ue].home + 1) % self.upfs.len();
        let key = self.upfs[to].key();
        let end = &mut self.ues[ue];
        end.home = to;
        end.config.upf_key = key;
        for (n, access) in end.config.accesses.iter_mut().enumerate() {
            access.remote = super::ends::remote(to, n);
        }
        end.disturb();
        if end.runs() {
            end.start(self.run_state.now);
        }
    }

    fn rules_at(&mut self, upf: usize, rules: Vec<Rule>) {
        self.ues.iter_mut().filter(|ue| ue.home == upf).for_each(|ue| ue.orderly = false);
        self.upfs[upf].config.rules.clone_from(&rules);
        if self.upfs[upf].runs() {
            let _ = self.upfs[upf].upf.command(UpfCommand::Rules(rules), self.run_state.now);
        }
    }

    fn ue_rules(&mut self, ue: usize, mode: Mode, reorder: bool) {
        let end = &mut self.ues[ue];
        end.orderly = false;
        end.config.rules = rules("own", mode, reorder);
        if end.runs() {
            end.command(UeCommand::Rules(end.config.rules.clone()), self.run_state.now);
        }
    }
}
