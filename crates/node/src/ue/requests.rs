//! Requests of the REST interface, and SIGHUP, at a UE: queries, changes of rules, reload.

use super::access::{self, Access};
use super::run::{Agent, list};
use crate::runtime::api::{self, ControlRequest, Problem, TcpLaneRequest};
use crate::runtime::config::{self, Device, UeConfig, check_rules};
use crate::runtime::{metrics, views, why};
use anabranch_atsss::session::{Addresses, CodingStats, PathLoad, PathView, RuleView, Traffic};
use anabranch_atsss::ue::UeCommand;
use anabranch_element::ioam::IoamStats;
use anabranch_steer::{PolicyError, Rule};
use ipnet::IpNet;
use std::collections::BTreeMap;
use std::time::Instant;

/// The state of the worker, read in one job.
struct Snapshot {
    paths: Vec<PathView>,
    traffic: Traffic,
    loads: Vec<PathLoad>,
    rules: Vec<RuleView>,
    coding: CodingStats,
    now: anabranch_element::time::Instant,
    drops: BTreeMap<String, u64>,
    ioam: IoamStats,
    worker: api::WorkerStatus,
}

impl Agent {
    pub(super) async fn on_request(&mut self, request: ControlRequest) {
        // A requester that has gone away needs no answer.
        match request {
            ControlRequest::Status(reply) => drop(reply.send(self.status().await)),
            ControlRequest::Sessions { offset, limit, reply } => {
                let answer = self.session_view().await.map(|session| api::SessionList {
                    total: 1,
                    sessions: std::iter::once(session).skip(offset).take(limit).collect(),
                });
                drop(reply.send(answer));
            }
            ControlRequest::Session(name, reply) if name == self.config.ue.name => {
                drop(reply.send(self.session_view().await));
            }
            ControlRequest::Session(name, reply) => {
                let remedy = format!("the only session of this UE is \"{}\"", self.config.ue.name);
                drop(reply.send(Err(Problem::not_found("session", &name, &remedy))));
            }
            ControlRequest::Rules(reply) => drop(reply.send(self.rules().await)),
            ControlRequest::SetRules(rules, reply) => {
                let answer = match self.set_rules(rules).await {
                    Ok(()) => self.rules().await,
                    Err(problem) => Err(problem),
                };
                drop(reply.send(answer));
            }
            ControlRequest::Reload(reply) => drop(reply.send(self.reload().await)),
            ControlRequest::TcpLane(TcpLaneRequest::Lane(reply)) => drop(reply.send(Ok(self.lane.view()))),
            ControlRequest::TcpLane(TcpLaneRequest::Flows { offset, limit, reply }) => {
                drop(reply.send(Ok(self.lane.flows(offset, limit))));
            }
            ControlRequest::Metrics(reply) => {
                let answer = match (self.status().await, self.session_view().await) {
                    (Ok(status), Ok(session)) => {
                        Ok(metrics::ue_text(&status, &session, &self.lane.view(), &self.taps))
                    }
                    (Err(problem), _) | (_, Err(problem)) => Err(problem),
                };
                drop(reply.send(answer));
            }
            other => other.refuse("a UE has one session, made by its configuration", "ask the UPF's agent"),
        }
    }

    async fn snapshot(&self) -> Result<Snapshot, Problem> {
        let names: Vec<String> = self.accesses.iter().map(|a| a.config.name.clone()).collect();
        let query = self.worker.query(move |worker, now| {
            let counters = worker.counters();
            let mut drops = BTreeMap::new();
            views::add_drops(&mut drops, worker.end.drops());
            Snapshot {
                paths: worker.end.paths(),
                traffic: worker.end.traffic(),
                loads: worker.end.session().path_loads(now).collect(),
                rules: worker.end.rule_views(now),
                coding: worker.end.session().coding(),
                now,
                drops,
                ioam: worker.end.ioam_stats(),
                worker: views::worker(&counters, names.iter().map(String::as_str)),
            }
        });
        query.await.map_err(Problem::unavailable)
    }

    async fn status(&self) -> Result<api::Status, Problem> {
        let snapshot = self.snapshot().await?;
        let connected = snapshot.paths.iter().any(|p| p.up);
        Ok(api::Status {
            part: "ue".to_owned(),
            name: self.config.ue.name.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_s: self.started.elapsed().as_secs(),
            public_key: self.own_key.to_string(),
            device: self.config.device.name.clone(),
            mtu_bytes: self.mtu,
            sessions: 1,
            connected: u64::from(connected),
            trouble: self.trouble(&snapshot),
            drops: snapshot.drops,
            ioam: views::ioam(self.config.ioam.is_some(), snapshot.ioam),
            workers: vec![snapshot.worker],
        })
    }

    /// The reasons why no data is carried (none if a path is up), and the names that do not resolve.
    fn trouble(&self, snapshot: &Snapshot) -> BTreeMap<String, String> {
        let up = snapshot.paths.iter().any(|p| p.up);
        let rows = if up { BTreeMap::new() } else { self.troubles.rows(Instant::now()) };
        let all: Vec<String> =
            rows.into_values().chain(self.accesses.iter().filter_map(Access::unresolved)).collect();
        if all.is_empty() { BTreeMap::new() } else { [(self.config.ue.name.clone(), all.join("; "))].into() }
    }

    async fn session_view(&self) -> Result<api::Session, Problem> {
        let snapshot = self.snapshot().await?;
        let ue = &self.config.ue.name;
        let connected = snapshot.paths.iter().any(|p| p.up);
        let key = self.config.upf.public_key.to_string();
        let mut session = views::session(ue, key, &self.addresses, connected, snapshot.traffic);
        let troubles = self.accesses.iter().map(Access::trouble);
        session.paths = snapshot
            .paths
            .iter()
            .zip(troubles)
            .map(|(view, trouble)| views::path(ue, view, &snapshot.loads, trouble))
            .collect();
        session.coded = why::coded(&snapshot.coding);
        session.uses = self.uses(&snapshot);
        Ok(session)
    }

    async fn rules(&self) -> Result<api::Rules, Problem> {
        let snapshot = self.snapshot().await?;
        Ok(api::Rules { rules: self.config.rule.clone(), uses: self.uses(&snapshot) })
    }

    fn uses(&self, snapshot: &Snapshot) -> Vec<api::RuleUse> {
        let name_of = |path| self.name_of(path);
        let one = |view| why::rule_use(&self.config.ue.name, view, snapshot.now, &name_of);
        snapshot.rules.iter().map(one).collect()
    }

    async fn set_rules(&mut self, rules: Vec<Rule>) -> Result<(), Problem> {
        self.apply_rules(rules.clone(), true).await?;
        self.config.rule = rules;
        Ok(())
    }

    /// Validates these rules and, if `follow`, applies them in the data path.
    async fn apply_rules(&self, rules: Vec<Rule>, follow: bool) -> Result<(), Problem> {
        let invalid = |why: String| Problem::invalid(why).field("rules");
        let names: Vec<&str> = self.accesses.iter().map(|a| a.config.name.as_str()).collect();
        check_rules(&rules, &names).map_err(invalid)?;
        let query = self.worker.query(move |worker, now| {
            worker.end.check_rules(&rules)?;
            if follow {
                worker.end.on_command(UeCommand::Rules(rules), now);
            }
            Ok::<(), PolicyError>(())
        });
        let done = query.await.map_err(Problem::unavailable)?;
        done.map_err(|why| invalid(format!("together with the UPF's rules: {why}")))
    }

    /// Routes these prefixes through the tunnel. If the kernel refuses, the previous routes stay.
    async fn set_routes(&mut self, routes: Vec<IpNet>) -> Result<(), Problem> {
        let before = std::mem::replace(&mut self.config.device.routes, routes);
        if self.addresses != Addresses::default()
            && let Err(error) = self.apply_session().await
        {
            self.config.device.routes = before;
            return Err(Problem::invalid(format!("{error:#}")).field("device.routes"));
        }
        Ok(())
    }

    /// Reads the configuration file again. Rules, routes and the UPF's addresses change at once; all other
    /// differences need a restart. Everything that can be validated is validated before the first change;
    /// after a failure, nothing has changed.
    pub(super) async fn reload(&mut self) -> Result<api::Reloaded, Problem> {
        let new = super::run::load(&self.args).map_err(|error| Problem::invalid(error.to_string()))?;
        let mut done = api::Reloaded::default();
        let old = self.config.clone();
        let (other_routes, other_rules) = (new.device.routes != old.device.routes, new.rule != old.rule);
        if other_rules {
            self.apply_rules(new.rule.clone(), false).await?;
        }
        if other_routes {
            self.set_routes(new.device.routes.clone()).await?;
            done.changed.push("device.routes".to_owned());
        }
        if other_rules {
            if let Err(problem) = self.set_rules(new.rule.clone()).await {
                if other_routes && let Err(error) = self.set_routes(old.device.routes).await {
                    let (why, stays) = (problem.detail, error.detail);
                    return Err(Problem::unavailable(format!(
                        "{why}; the new [device] routes are in force, because the previous ones cannot be restored: {stays}"
                    )));
                }
                return Err(problem);
            }
            done.changed.push("rule".to_owned());
        }
        // All names are resolved in parallel, so that an unresponsive name server delays the reload only once.
        let mut asked = Vec::new();
        for access in &new.access {
            let Some(path) = self.accesses.iter().position(|old| old.config.name == access.name) else {
                continue;
            };
            let old = &self.accesses[path].config;
            // A remote that fits only the new values of other keys waits for them.
            let with_remote = config::UeAccess { remote: access.remote.clone(), ..old.clone() };
            if access.remote != old.remote && with_remote.check_remote().is_ok() {
                let found = tokio::spawn(access::resolve(with_remote.remote, old.local));
                asked.push((path, access, found));
            }
        }
        for (path, access, found) in asked {
            let found = found.await.unwrap_or_default();
            self.accesses[path].rename(access.remote.clone());
            self.config.access[path].remote = access.remote.clone();
            self.on_resolved(path, &access.remote, found).await;
            done.changed.push(format!("access {} remote", access.name));
            if let Some(message) = self.accesses[path].unresolved() {
                let event = views::event("remote", Some(&self.config.ue.name), message);
                self.log.push(api::Event { access: Some(access.name.clone()), ..event });
            }
        }
        done.needs_restart = needs_restart(&new, &self.config);
        let message =
            format!("changed: {}; needs a restart: {}", list(&done.changed), list(&done.needs_restart));
        self.log.push(views::event("reloaded", None, message));
        Ok(done)
    }
}

fn needs_restart(new: &UeConfig, running: &UeConfig) -> Vec<String> {
    let device = Device { routes: running.device.routes.clone(), ..new.device.clone() };
    let differs = [
        ("ue", new.ue != running.ue),
        ("upf", new.upf != running.upf),
        ("device", device != running.device),
        ("probe", new.probe != running.probe),
        ("flap", new.flap != running.flap),
        ("tcp_lane", new.tcp_lane != running.tcp_lane),
        ("ioam", new.ioam != running.ioam),
        ("slices", new.slices != running.slices),
        ("slice", new.slice != running.slice),
        ("mapping", new.mapping != running.mapping),
        ("api", new.api != running.api),
        ("metrics", new.metrics != running.metrics),
    ];
    let mut waits = config::differing(&differs);
    waits.extend(config::differing_accesses(&new.access, &running.access));
    waits
}
