//! Requests of the REST interface, and SIGHUP, at a UPF: queries, addition and removal of UEs, changes of
//! rules, reload.

use super::leases::Leases;
use super::run::{Agent, Directory, UeRecord, add, directory};
use crate::runtime::api::{self, ControlRequest, Problem, TcpLaneRequest};
use crate::runtime::config::{self, Device, UpfConfig, UpfUe, check_rules};
use crate::runtime::{metrics, views, why};
use crate::tcp_lane::run::UpfLaneControl;
use crate::ue::run as ue;
use anabranch_atsss::PathId;
use anabranch_atsss::crypto::PublicKey;
use anabranch_atsss::session::{CodingStats, PathLoad, RuleView, Session};
use anabranch_atsss::upf::{SessionView, Upf, UpfCommand, UpfError};
use anabranch_element::ioam::IoamStats;
use anabranch_element::time::Instant as CoreInstant;
use anabranch_rules::AccessName;
use anabranch_steer::Rule;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum number of commands that a worker executes between two batches, which takes a few hundred
/// microseconds.
const CHUNK: usize = 100;
/// Longest delay until the workers receive new addresses, which are collected.
const OWNERS_WITHIN: Duration = Duration::from_millis(20);

impl Agent {
    pub(crate) async fn on_request(&mut self, request: ControlRequest) {
        // A requester that has gone away needs no answer.
        match request {
            ControlRequest::Status(reply) => drop(reply.send(self.status().await)),
            ControlRequest::Sessions { offset, limit, reply } => {
                drop(reply.send(self.sessions(offset, limit).await))
            }
            ControlRequest::Session(name, reply) => drop(reply.send(self.session(&name).await)),
            ControlRequest::Create(ue, reply) => drop(reply.send(self.create(*ue).await)),
            ControlRequest::Put(ue, reply) => drop(reply.send(self.put(*ue).await)),
            ControlRequest::Delete(name, reply) => drop(reply.send(self.delete(&name).await)),
            ControlRequest::ResetClock(name, reply) => drop(reply.send(self.reset_clock(&name).await)),
            ControlRequest::Rules(reply) => drop(reply.send(Ok(self.rules()))),
            ControlRequest::SetRules(rules, reply) => drop(reply.send(self.set_rules(rules).await)),
            ControlRequest::Reload(reply) => drop(reply.send(self.reload().await)),
            ControlRequest::TcpLane(TcpLaneRequest::Lane(reply)) => drop(reply.send(Ok(self.lane_view()))),
            ControlRequest::TcpLane(TcpLaneRequest::Flows { offset, limit, reply }) => {
                let flows = self.lane.as_ref().map(|lane| lane.flows(offset, limit)).unwrap_or_default();
                drop(reply.send(Ok(flows)));
            }
            ControlRequest::Metrics(reply) => drop(reply.send(self.metrics().await)),
            other => other.refuse(
                "a UPF has sessions and rules only",
                "send the request to the agent of the program that has it",
            ),
        }
    }

    async fn status(&self) -> Result<api::Status, Problem> {
        let names: Vec<String> = self.config.access.iter().map(|a| a.name.clone()).collect();
        let (mut drops, mut connected, mut workers) = (BTreeMap::new(), 0, Vec::new());
        let mut ioam = IoamStats::default();
        for shard in &self.shards {
            let query = shard.query(|worker, _| {
                let counters = worker.counters();
                let upf = &worker.end.upf;
                (counters, upf.drops().clone(), upf.connected_count(), upf.ioam_stats(), upf.key_conflicts())
            });
            let (counters, dropped, up, marks, key_conflicts) = query.await.map_err(Problem::unavailable)?;
            views::add_drops(&mut drops, &dropped);
            connected += up as u64;
            ioam += marks;
            let worker = views::worker(&counters, names.iter().map(String::as_str));
            workers.push(api::WorkerStatus { key_conflicts, ..worker });
        }
        Ok(api::Status {
            part: "upf".to_owned(),
            name: "upf".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_s: self.started.elapsed().as_secs(),
            public_key: self.own_key.to_string(),
            device: self.config.device.name.clone(),
            mtu_bytes: self.mtu,
            sessions: self.ues.len() as u64,
            connected,
            trouble: self.trouble_rows(),
            drops,
            ioam: views::ioam(self.config.ioam.is_some(), ioam),
            workers,
        })
    }

    fn trouble_rows(&self) -> BTreeMap<String, String> {
        let now = Instant::now();
        let mut rows = self.shared_keys.rows(now);
        rows.extend(self.troubles.rows(now));
        rows.extend(self.refused.clone());
        rows
    }

    async fn sessions(&self, offset: usize, limit: usize) -> Result<api::SessionList, Problem> {
        let page: Vec<&UeRecord> = self.ues.values().skip(offset).take(limit).collect();
        Ok(api::SessionList {
            total: self.ues.len() as u64,
            sessions: self.session_views(&page, false).await?,
        })
    }

    async fn session(&self, name: &str) -> Result<api::Session, Problem> {
        if let (None, Some(why)) = (self.ues.get(name), self.refused.get(name)) {
            return Err(Problem::not_found("session", name, why));
        }
        let record = self.ues.get(name).ok_or_else(|| no_session(name))?;
        self.session_views(&[record], true).await?.pop().ok_or_else(|| no_session(name))
    }

    /// The sessions of these UEs, in their order; with `all_rules` all their rules, else those that have seen
    /// packets.
    async fn session_views(&self, page: &[&UeRecord], all_rules: bool) -> Result<Vec<api::Session>, Problem> {
        let mut found: BTreeMap<PublicKey, api::Session> = BTreeMap::new();
        for (number, shard) in self.shards.iter().enumerate() {
            let keys: Vec<PublicKey> = page
                .iter()
                .filter(|record| record.shard(self.shards.len()) == number)
                .map(|record| record.key)
                .collect();
            for keys in keys.chunks(CHUNK) {
                let keys = keys.to_vec();
                let query = shard.query(move |worker, now| {
                    let upf = &worker.end.upf;
                    let look = |key| SessionReport::at(upf, key, all_rules, now);
                    keys.iter().filter_map(look).collect::<Vec<_>>()
                });
                for look in query.await.map_err(Problem::unavailable)? {
                    found.insert(look.view.key, look.session());
                }
            }
        }
        Ok(page.iter().filter_map(|record| found.remove(&record.key)).collect())
    }

    async fn create(&mut self, ue: UpfUe) -> Result<api::Session, Problem> {
        if self.ues.contains_key(ue.name.as_str()) {
            return taken("name", &ue.name);
        }
        self.put(ue).await.map(|(session, _)| session)
    }

    /// Adds a UE or changes the one with its name; true if it is new. The session continues if key and
    /// addresses stay the same.
    async fn put(&mut self, ue: UpfUe) -> Result<(api::Session, bool), Problem> {
        self.config.check_ue(&ue).map_err(Problem::invalid)?;
        let old =
            self.ues.get_key_value(ue.name.as_str()).map(|(name, record)| (name.clone(), record.clone()));
        if old.as_ref().is_some_and(|(_, old)| old.from_file) {
            return Err(in_file(&ue.name, "change its [[ue]] section and reload"));
        }
        let (key, old_key) = (ue.public_key, old.as_ref().map(|(_, old)| old.key));
        let others = || self.ues.values().map(|record| record.key).filter(|other| Some(*other) != old_key);
        if others().any(|other| other == key) {
            return taken("public_key", &key);
        }
        for address in ue.fixed().iter() {
            let owner = self.leases.owner(address).filter(|owner| *owner != key);
            if owner.is_some_and(|owner| others().any(|other| other == owner)) {
                return taken(config::address_key(address), &address);
            }
        }
        let keys: BTreeSet<PublicKey> = others().collect();
        let mut leases = self.leases.clone();
        let addresses = leases
            .assign_one(&ue, |key| keys.contains(key))
            .map_err(|detail| Problem::conflict(detail, "remove UEs that are no longer in use"))?;
        // The new UE replaces a refused one with the same name or key.
        leases.added.retain(|added| {
            Some(added.public_key) == old_key || added.name != ue.name && added.public_key != key
        });
        leases.forget_unread(&ue.name);
        match leases.added.iter_mut().find(|added| Some(added.public_key) == old_key) {
            Some(added) => *added = ue.clone(),
            None => leases.added.push(ue.clone()),
        }
        leases.dirty = true;
        let is_new = old.is_none();
        let (old, new): (Directory, Directory) =
            (old.into_iter().collect(), std::iter::once(UeRecord::new(ue, addresses, false)).collect());
        let workers = self.shards.len();
        let back = commands(&new, &old, &self.leases, workers);
        self.execute(Change { commands: commands(&old, &new, &leases, workers), inverse: back.clone() })
            .await?;
        let before = std::mem::replace(&mut self.leases, leases);
        if let Err(error) = self.save().await {
            self.revoke(before);
            self.execute(Change { commands: back, inverse: vec![Vec::new(); workers] }).await?;
            return Err(not_saved(&error));
        }
        self.ues.extend(new.clone());
        self.refused.retain(|name, _| {
            self.leases.added.iter().any(|added| added.name == *name && added.public_key != key)
                || self.leases.unread.iter().any(|unread| unread.name == *name)
        });
        self.addresses_changed();
        let name = new.keys().next().map_or("", |name| &**name);
        Ok((self.session(name).await?, is_new))
    }

    /// Restores the previous state after a failed write. The file may have been written nevertheless, so it
    /// is marked for writing.
    fn revoke(&mut self, before: Leases) {
        self.leases = before;
        self.leases.dirty = true;
    }

    async fn delete(&mut self, name: &str) -> Result<(), Problem> {
        if self.refused.contains_key(name) {
            return self.delete_refused(name).await;
        }
        let record = self.ues.get(name).ok_or_else(|| no_session(name))?;
        if record.from_file {
            return Err(in_file(name, "remove its [[ue]] section and reload"));
        }
        let (key, shard) = (record.key, record.shard(self.shards.len()));
        let before = self.leases.clone();
        self.leases.added.retain(|ue| ue.public_key != key);
        self.leases.dirty = true;
        // A UE that is still in the file would reappear after a restart.
        if let Err(error) = self.save().await {
            self.revoke(before);
            return Err(not_saved(&error));
        }
        if let Err(problem) = self.order(shard, vec![UpfCommand::RemoveUe(key)], Vec::new()).await {
            self.revoke(before);
            return Err(problem);
        }
        self.ues.remove(name);
        self.troubles.clear(name);
        self.addresses_changed();
        Ok(())
    }

    /// Removes a UE that is in the state file but not admitted.
    async fn delete_refused(&mut self, name: &str) -> Result<(), Problem> {
        let before = self.leases.clone();
        self.leases.added.retain(|ue| ue.name != name);
        self.leases.forget_unread(name);
        self.leases.dirty = true;
        if let Err(error) = self.save().await {
            self.revoke(before);
            return Err(not_saved(&error));
        }
        self.refused.remove(name);
        Ok(())
    }

    /// Accepts any handshake timestamp of this UE again; its session continues.
    async fn reset_clock(&mut self, name: &str) -> Result<api::Session, Problem> {
        let record = self.ues.get(name).ok_or_else(|| no_session(name))?;
        let (key, shard) = (record.key, record.shard(self.shards.len()));
        self.order(shard, vec![UpfCommand::ForgetTimestamp(key)], Vec::new()).await?;
        self.leases.forget_timestamp(&key);
        self.troubles.clear(name);
        self.log.push(views::event(
            "clock-reset",
            Some(name),
            "any handshake time stamp is accepted again".to_owned(),
        ));
        if let Err(error) = self.save().await {
            tracing::error!("{error:#}; will be retried");
        }
        self.session(name).await
    }

    fn rules(&self) -> api::Rules {
        api::Rules { rules: self.config.rule.clone(), uses: Vec::new() }
    }

    async fn set_rules(&mut self, rules: Vec<Rule>) -> Result<api::Rules, Problem> {
        let names: Vec<&str> = self.config.access.iter().map(|a| a.name.as_str()).collect();
        check_rules(&rules, &names).map_err(|e| Problem::invalid(e).field("rules"))?;
        let change = Change {
            commands: vec![vec![UpfCommand::Rules(rules.clone())]; self.shards.len()],
            inverse: vec![vec![UpfCommand::Rules(self.config.rule.clone())]; self.shards.len()],
        };
        self.execute(change).await?;
        self.config.rule = rules;
        Ok(self.rules())
    }

    fn lane_view(&self) -> api::TcpLane {
        self.lane.as_ref().map_or_else(crate::tcp_lane::run::none, UpfLaneControl::view)
    }

    async fn metrics(&self) -> Result<String, Problem> {
        let status = self.status().await?;
        let sessions = if self.ues.len() <= metrics::MAX_SESSIONS {
            self.sessions(0, metrics::MAX_SESSIONS).await?.sessions
        } else {
            Vec::new()
        };
        Ok(metrics::text(&status, &sessions, &self.lane_view()))
    }

    /// Reads the configuration file again. UEs and rules change at once; all other differences need a
    /// restart. The change is planned completely before it is executed; if a part fails, all of it is undone.
    pub(crate) async fn reload(&mut self) -> Result<api::Reloaded, Problem> {
        let new = super::run::load(&self.args).map_err(|e| Problem::invalid(e.to_string()))?;
        let needs_restart = needs_restart(&new, &self.config);
        // Addresses come from the pool in use.
        let mut running = UpfConfig { ue: new.ue, rule: new.rule, ..self.config.clone() };
        let names: Vec<&str> = running.access.iter().map(|a| a.name.as_str()).collect();
        let invalid = |e: String| Problem::invalid(format!("{}: {e}", self.args.config.display()));
        check_rules(&running.rule, &names).map_err(invalid)?;
        for ue in &running.ue {
            running.check_ue(ue).map_err(invalid)?;
        }
        let mut leases = self.leases.clone();
        let (ues, refused) = directory(&mut running, &mut leases).map_err(invalid)?;
        // A reload does not refuse a UE that has been admitted.
        let served = |name: &str| self.ues.get(name).is_some_and(|record| !record.from_file);
        if let Some((name, why)) = refused.iter().find(|(name, _)| served(name)) {
            return Err(invalid(format!("UE \"{name}\": {why}")));
        }

        let workers = self.shards.len();
        let mut change = Change {
            commands: commands(&self.ues, &ues, &leases, workers),
            inverse: commands(&ues, &self.ues, &self.leases, workers),
        };
        if running.rule != self.config.rule {
            for (forth, back) in change.commands.iter_mut().zip(&mut change.inverse) {
                forth.push(UpfCommand::Rules(running.rule.clone()));
                back.push(UpfCommand::Rules(self.config.rule.clone()));
            }
        }
        let mut changed = Vec::new();
        if ues != self.ues {
            changed.push("ue".to_owned());
        }
        if running.rule != self.config.rule {
            changed.push("rule".to_owned());
        }
        self.execute(change).await?;
        for (name, why) in refused.iter().filter(|(name, why)| self.refused.get(*name) != Some(*why)) {
            self.log.push(views::event("refused", Some(name), why.clone()));
        }
        (self.config, self.ues, self.leases, self.refused) = (running, ues, leases, refused);
        self.addresses_changed();
        if let Err(error) = self.save().await {
            tracing::error!("{error:#}; will be retried");
        }
        let (did, waits) = (ue::list(&changed), ue::list(&needs_restart));
        let message = format!("changed: {did}; needs a restart: {waits}");
        self.log.push(views::event("reloaded", None, message));
        Ok(api::Reloaded { changed, needs_restart })
    }

    /// Executes a change on all shards, or on none.
    async fn execute(&self, change: Change) -> Result<(), Problem> {
        let mut done = Vec::new();
        for (shard, (commands, inverse)) in change.commands.into_iter().zip(change.inverse).enumerate() {
            if let Err(problem) = self.order(shard, commands, inverse.clone()).await {
                for (shard, inverse) in done {
                    if let Err(problem) = self.order(shard, inverse, Vec::new()).await {
                        tracing::error!("undoing a change: {}", problem.detail);
                    }
                }
                return Err(problem);
            }
            done.push((shard, inverse));
        }
        Ok(())
    }

    /// Executes commands on one shard; if one fails, `inverse` undoes all of them.
    async fn order(
        &self,
        shard: usize,
        commands: Vec<UpfCommand>,
        inverse: Vec<UpfCommand>,
    ) -> Result<(), Problem> {
        let Some(handle) = self.shards.get(shard) else { return Ok(()) };
        let mut commands = commands.into_iter().peekable();
        while commands.peek().is_some() {
            let chunk: Vec<UpfCommand> = commands.by_ref().take(CHUNK).collect();
            let query = handle.query(move |worker, now| -> Result<(), UpfError> {
                chunk.into_iter().try_for_each(|command| worker.end.upf.command(command, now))
            });
            let problem = match query.await {
                Ok(Ok(())) => continue,
                Ok(Err(error)) => Problem::invalid(error.to_string()),
                Err(error) => Problem::unavailable(error),
            };
            let undo = handle.run(move |worker, now| {
                for command in inverse {
                    // Commands that were not executed need not be undone.
                    let _ = worker.end.upf.command(command, now);
                }
            });
            if let Err(error) = undo {
                tracing::error!("undoing a change: {error}");
            }
            return Err(problem);
        }
        Ok(())
    }

    fn addresses_changed(&mut self) {
        if self.shards.len() > 1 && self.owners_due.is_none() {
            self.owners_due = Some(tokio::time::Instant::now() + OWNERS_WITHIN);
        }
    }
}

/// A worker's report on one session.
struct SessionReport {
    view: SessionView,
    loads: Vec<PathLoad>,
    rules: Vec<RuleView>,
    accesses: Arc<[AccessName]>,
    coding: CodingStats,
    now: CoreInstant,
}

impl SessionReport {
    fn at(upf: &Upf, key: &PublicKey, all_rules: bool, now: CoreInstant) -> Option<Self> {
        let view = upf.view(key)?;
        // A resting session has no recent activity, and most sessions rest; its rules stay in force.
        let session = upf.session(key).filter(|session| all_rules || !session.is_resting());
        let mut rules = session.map(|_| upf.rule_views(key, now)).unwrap_or_default();
        rules.retain(|rule| all_rules || rule.is_used());
        Some(Self {
            loads: session
                .filter(|session| !session.is_resting())
                .map(|session| session.path_loads(now).collect())
                .unwrap_or_default(),
            accesses: session.map_or_else(|| Arc::new([]) as _, |session| session.accesses().clone()),
            coding: session.map(Session::coding).unwrap_or_default(),
            view,
            rules,
            now,
        })
    }

    fn session(&self) -> api::Session {
        let SessionView { ue, key, addresses, connected, traffic, paths, .. } = &self.view;
        let access = |path: PathId| {
            self.accesses.get(usize::from(path)).map_or_else(|| path.to_string(), String::clone)
        };
        let mut session = views::session(ue, key.to_string(), addresses, *connected, *traffic);
        session.paths = paths.iter().map(|path| views::path(ue, path, &self.loads, None)).collect();
        session.uses = self.rules.iter().map(|rule| why::rule_use(ue, rule, self.now, &access)).collect();
        session.coded = why::coded(&self.coding);
        session
    }
}

/// Commands per shard, and the commands that undo them.
struct Change {
    commands: Vec<Vec<UpfCommand>>,
    inverse: Vec<Vec<UpfCommand>>,
}

/// The commands that turn `old` into `new`. UEs that are removed or have other addresses are removed first,
/// so that addresses can be reassigned; then new and changed UEs are added.
fn commands(old: &Directory, new: &Directory, leases: &Leases, workers: usize) -> Vec<Vec<UpfCommand>> {
    let (of_old, of_new) = (by_key(old), by_key(new));
    let mut commands = vec![Vec::new(); workers];
    for (key, (_, record)) in &of_old {
        if of_new.get(key).is_none_or(|(_, new)| new.addresses != record.addresses) {
            commands[record.shard(workers)].push(UpfCommand::RemoveUe(**key));
        }
    }
    for (key, (name, record)) in &of_new {
        let same = |(other, old): &(&str, &UeRecord)| old.entry(other) == record.entry(name);
        if !of_old.get(key).is_some_and(same) {
            commands[record.shard(workers)].extend(add(name, record, leases));
        }
    }
    commands
}

fn by_key(ues: &Directory) -> BTreeMap<&PublicKey, (&str, &UeRecord)> {
    ues.iter().map(|(name, record)| (&record.key, (&**name, record))).collect()
}

fn needs_restart(new: &UpfConfig, running: &UpfConfig) -> Vec<String> {
    let device = Device { routes: running.device.routes.clone(), ..new.device.clone() };
    let differs = [
        ("upf", new.upf != running.upf),
        ("device", device != running.device),
        ("n6", new.n6 != running.n6),
        ("pool", new.pool != running.pool),
        ("probe", new.probe != running.probe),
        ("flap", new.flap != running.flap),
        ("tcp_lane", new.tcp_lane != running.tcp_lane),
        ("ioam", new.ioam != running.ioam),
        ("api", new.api != running.api),
        ("metrics", new.metrics != running.metrics),
    ];
    let mut waits = config::differing(&differs);
    waits.extend(config::differing_accesses(&new.access, &running.access));
    waits
}

fn taken<T>(field: &str, value: &dyn std::fmt::Display) -> Result<T, Problem> {
    let detail = format!("{field} {value} belongs to another UE");
    Err(Problem::conflict(detail, "choose another, or remove that UE first").field(field))
}

fn in_file(name: &str, remedy: &str) -> Problem {
    Problem::conflict(format!("UE \"{name}\" is in the configuration file"), remedy)
}

fn not_saved(error: &anyhow::Error) -> Problem {
    Problem::unavailable(format!("{error:#}; nothing has changed"))
}

fn no_session(name: &str) -> Problem {
    Problem::not_found("session", name, "list them with GET /v1/sessions")
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_atsss::crypto::{PrivateKey, Suite};
    use anabranch_atsss::session::{Addresses, Origin, Security, SessionParams};
    use anabranch_atsss::ue::{Ue, UeAccess, UeConfig};
    use anabranch_atsss::upf::{self, UeEntry};
    use anabranch_element::packet::Packet;
    use anabranch_element::{Element, Port, Sink, drive};

    #[derive(Default)]
    struct Sent(Vec<(Port, Packet)>);

    impl<E> Sink<E> for Sent {
        fn transmit(&mut self, port: Port, packet: Packet) {
            self.0.push((port, packet));
        }
        fn event(&mut self, _: E) {}
    }

    /// A UPF whose only UE has been idle until its session rests.
    fn resting(ue_rules: &[Rule], upf_rules: &[Rule]) -> (Upf, PublicKey, CoreInstant) {
        let [ue_key, upf_key] = [1, 2].map(|id| PrivateKey::from_bytes([id; 32]));
        let [ue_address, upf_address] =
            ["192.0.2.2:4500", "192.0.2.1:4500"].map(|text| text.parse().unwrap());
        let (name, security) = ("5g".to_owned(), Security::Secure);
        let mut upf = Upf::new(
            upf::UpfConfig {
                private_key: upf_key.clone(),
                accesses: vec![upf::UpfAccess { name: name.clone(), security, local: Some(upf_address) }],
                rules: upf_rules.to_vec(),
                params: SessionParams::default(),
                shard: 0,
                shards: 1,
                max_sessions: 1,
                unix_epoch_ns: 1,
            },
            [3; 32],
            CoreInstant::ZERO,
        )
        .unwrap();
        let key = ue_key.public();
        let addresses = Addresses { v4: Some("10.45.0.2".parse().unwrap()), v6: None };
        let entry = UeEntry { name: "tv".into(), key, addresses, rules: Vec::new(), accept_rules: true };
        upf.command(UpfCommand::AddUe(entry), CoreInstant::ZERO).unwrap();
        let access =
            UeAccess { name, remote: upf_address, local: Some(ue_address), security, max_payload: 1472 };
        let config = UeConfig {
            private_key: ue_key,
            upf_key: upf_key.public(),
            suite: Suite::Aes256Gcm,
            accesses: vec![access],
            rules: ue_rules.to_vec(),
            params: SessionParams::default(),
            unix_epoch_ns: 1,
            last_timestamp_ns: 0,
        };
        let mut ue = Ue::new(config, [4; 32], CoreInstant::ZERO).unwrap();
        let mut now = CoreInstant::ZERO;
        for _ in 0..3000 {
            now += Duration::from_millis(10);
            let (mut up, mut down) = (Sent::default(), Sent::default());
            drive(&mut ue, now, &mut up);
            up.0.into_iter().for_each(|(port, packet)| upf.on_packet(port, packet, now));
            drive(&mut upf, now, &mut down);
            down.0.into_iter().for_each(|(port, packet)| ue.on_packet(port, packet, now));
        }
        assert!(upf.view(&key).unwrap().resting);
        (upf, key, now)
    }

    #[test]
    fn a_resting_session_shows_all_rules_in_force_with_their_origin() {
        let rule = |name: &str, port: u16| -> Rule {
            let filter = serde_json::json!({"remote_port": port});
            let steering = serde_json::json!({"mode": "active-standby", "primary": "5g"});
            serde_json::from_value(serde_json::json!({"name": name, "filter": filter, "steering": steering}))
                .unwrap()
        };
        let (upf, key, now) = resting(&[rule("bond", 1)], &[rule("bond", 2), rule("all", 3)]);
        let uses = SessionReport::at(&upf, &key, true, now).unwrap().session().uses;
        let rows: Vec<_> = uses.iter().map(|used| (used.rule.as_str(), used.origin.as_str())).collect();
        let expected = [
            ("bond", Origin::Ue),
            ("bond (upf)", Origin::Upf),
            ("all", Origin::Upf),
            ("default", Origin::BuiltIn),
        ];
        assert_eq!(rows, expected.map(|(rule, origin)| (rule, origin.name())));
        assert!(uses[..3].iter().all(|used| used.definition.is_some()));
        // A list of sessions has the rules that carried packets lately.
        assert!(SessionReport::at(&upf, &key, false, now).unwrap().session().uses.is_empty());
    }
}
