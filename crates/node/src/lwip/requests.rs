//! Requests of the REST interface, and SIGHUP, at an LWIP node: queries, changes of steering and hold time,
//! reload.

use super::{Agent, metrics, views};
use crate::runtime::api::{self, ControlRequest, LwipRequest, Problem};
use crate::runtime::config::{LwipConfig, differing};
use crate::runtime::views::event;
use anabranch_lwip::{Command, Config as Node, DidaConfig};
use std::collections::BTreeMap;

/// Maximum number of flows per job of the data path, so that packets stay on time.
const MAX_FLOWS: usize = 1000;

impl Agent {
    pub(super) async fn on_request(&mut self, request: ControlRequest) {
        // A requester that has gone away needs no answer.
        match request {
            ControlRequest::Status(reply) => drop(reply.send(self.status().await)),
            ControlRequest::Reload(reply) => drop(reply.send(self.reload().await)),
            ControlRequest::Metrics(reply) => drop(reply.send(self.metrics().await)),
            ControlRequest::Lwip(LwipRequest::Node(reply)) => drop(reply.send(self.node().await)),
            ControlRequest::Lwip(LwipRequest::Set(change, reply)) => {
                drop(reply.send(match self.set(*change).await {
                    Ok(()) => self.node().await,
                    Err(problem) => Err(problem),
                }))
            }
            ControlRequest::Lwip(LwipRequest::Flows { offset, limit, reply }) => {
                drop(reply.send(self.flows(offset, limit).await));
            }
            other => other.refuse("an LWIP node has neither sessions nor rules", "see GET /v1/lwip"),
        }
    }

    async fn status(&self) -> Result<api::Status, Problem> {
        let query = self
            .worker
            .query(|worker, _| (worker.device_counters(), worker.gtpu(), worker.node.ioam_stats()));
        let (devices, gtpu, ioam) = query.await.map_err(Problem::unavailable)?;
        let mut status = api::WorkerStatus::default();
        for device in devices {
            status.device_rx_packets += device.rx_packets;
            status.device_rx_frames += device.rx_frames;
            status.device_tx_packets += device.tx_packets;
            status.device_tx_frames += device.tx_frames;
            status.device_errors += device.errors;
        }
        // With an interface as the backhaul, the node drops nothing itself; refusals of interfaces are
        // counted as their errors.
        let mut drops = BTreeMap::new();
        if let Some((socket, dropped)) = gtpu {
            status.accesses.insert("n3".to_owned(), crate::runtime::views::socket(socket));
            drops = dropped.by_reason();
        }
        let mtu = self.config.mtu();
        let names: Vec<&str> = self.config.ports().map(|(_, port)| port.name.as_str()).collect();
        let ues = self.running.ues.len() as u64;
        Ok(api::Status {
            part: "lwip".to_owned(),
            name: self.config.lwip.name.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_s: self.started.elapsed().as_secs(),
            public_key: String::new(),
            device: names.join(", "),
            mtu_bytes: self.config.ports().map(|(_, port)| port.mtu.unwrap_or(mtu)).min().unwrap_or(mtu),
            sessions: ues,
            connected: ues,
            trouble: BTreeMap::new(),
            drops,
            ioam: crate::runtime::views::ioam(self.config.ioam.is_some(), ioam),
            workers: vec![status],
        })
    }

    async fn node(&self) -> Result<api::LwipNode, Problem> {
        let name = self.config.lwip.name.clone();
        let query = self.worker.query(move |worker, _| views::node(&name, &worker.node));
        query.await.map_err(Problem::unavailable)
    }

    async fn flows(&self, offset: usize, limit: usize) -> Result<api::LwipFlows, Problem> {
        let query = self.worker.query(move |worker, now| {
            let flows = worker.node.flows().skip(offset).take(limit.min(MAX_FLOWS));
            let flows = flows.map(|view| views::flow(&view, now)).collect();
            api::LwipFlows { total: worker.node.flow_count().into(), flows }
        });
        query.await.map_err(Problem::unavailable)
    }

    async fn metrics(&self) -> Result<String, Problem> {
        Ok(metrics::text(&self.status().await?, &self.node().await?))
    }

    async fn set(&mut self, change: api::LwipChange) -> Result<(), Problem> {
        let new = changed(&self.running, self.last_dida, &change);
        let said = self.apply(new).await?;
        let message = if said.is_empty() { "nothing".to_owned() } else { said.join(", ") };
        self.log.push(event("lwip-changed", None, format!("changed: {message}")));
        Ok(())
    }

    /// Has the data path apply a new configuration between two packets. Returns the names of the changed
    /// parts.
    async fn apply(&mut self, new: Node) -> Result<Vec<String>, Problem> {
        let old = &self.running;
        new.check().map_err(|e| Problem::invalid(e.to_string()))?;
        let mut commands = Vec::new();
        let mut said = Vec::new();
        let mut differs = |differs: bool, what: &str, command: Command| {
            if differs {
                commands.push(command);
                said.push(what.to_owned());
            }
        };
        differs(new.steering != old.steering, "steering", Command::Steering(new.steering));
        differs(new.other != old.other, "other", Command::Other(new.other));
        differs(new.dida != old.dida, "dida", Command::Dida(new.dida));
        differs(new.ues != old.ues, "ues", Command::Ues(new.ues.clone()));
        let query = self.worker.query(move |worker, now| {
            commands.into_iter().try_for_each(|command| worker.node.apply(command, now))
        });
        let done = query.await.map_err(Problem::unavailable)?;
        done.map_err(|e| Problem::invalid(e.to_string()))?;
        let Node { steering, other, dida, ues, .. } = new;
        self.last_dida = dida.unwrap_or(self.last_dida);
        self.running = Node { steering, other, dida, ues, ..self.running.clone() };
        Ok(said)
    }

    /// Reads the configuration file again. Steering, DIDA and UEs change at once; all other differences need
    /// a restart.
    pub(super) async fn reload(&mut self) -> Result<api::Reloaded, Problem> {
        let new = super::load(&self.args).map_err(|e| Problem::invalid(e.to_string()))?;
        let mut changed = self.apply(new.node.clone()).await?;
        if self.apply_tunnels(&new).await? {
            changed.push("tunnels".to_owned());
        }
        let differs = [
            ("lwip", new.lwip != self.config.lwip),
            ("backhaul", new.backhaul != self.config.backhaul),
            ("gtpu", new.gtpu != self.config.gtpu),
            ("lte", new.lte != self.config.lte),
            ("wifi", new.wifi != self.config.wifi),
            ("ioam", new.ioam != self.config.ioam),
            ("node", new.node != self.running),
            ("api", new.api != self.config.api),
            ("metrics", new.metrics != self.config.metrics),
        ];
        let needs_restart = differing(&differs);
        let list = crate::ue::run::list;
        let message = format!("changed: {}; needs a restart: {}", list(&changed), list(&needs_restart));
        self.log.push(event("reloaded", None, message));
        Ok(api::Reloaded { changed, needs_restart })
    }

    /// Applies the tunnels of the new configuration, and the UE addresses that lead to them; true if they
    /// differ.
    async fn apply_tunnels(&mut self, new: &LwipConfig) -> Result<bool, Problem> {
        let (Some(old), Some(wanted)) = (&mut self.config.gtpu, &new.gtpu) else { return Ok(false) };
        let tunnels = wanted.tunnels(&new.node.ues);
        let query = self.worker.query(move |worker, _| worker.set_tunnels(tunnels));
        query.await.map_err(Problem::unavailable)?;
        let differ = old.tunnels != wanted.tunnels;
        old.tunnels.clone_from(&wanted.tunnels);
        Ok(differ)
    }
}

/// The configuration with the changes applied; `last` holds the previous parameters of DIDA.
fn changed(old: &Node, last: DidaConfig, change: &api::LwipChange) -> Node {
    let mut new = old.clone();
    new.steering = change.steering.unwrap_or(old.steering);
    new.other = change.other.unwrap_or(old.other);
    let on = change.hold.is_some() || change.let_through.is_some();
    new.dida = match change.dida {
        Some(false) => None,
        Some(true) => Some(old.dida.unwrap_or(last)),
        None if on => Some(old.dida.unwrap_or(last)),
        None => old.dida,
    };
    if let Some(dida) = &mut new.dida {
        dida.hold = change.hold.unwrap_or(dida.hold);
        dida.let_through = change.let_through.unwrap_or(dida.let_through);
    }
    new
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_lwip::Hold;

    #[test]
    fn dida_is_switched_off_and_on_with_the_same_parameters() {
        let twenty = DidaConfig { hold: Hold::Fixed { ms: 20.0 }, let_through: 0, ..DidaConfig::default() };
        let on = Node { dida: Some(twenty), ..Node::default() };
        let off = changed(&on, twenty, &api::LwipChange { dida: Some(false), ..Default::default() });
        assert_eq!(off.dida, None);
        assert_eq!(changed(&off, twenty, &api::LwipChange::default()).dida, None);
        let back = api::LwipChange { dida: Some(true), ..Default::default() };
        assert_eq!(changed(&off, twenty, &back).dida, Some(twenty));
        let more = api::LwipChange { let_through: Some(2), ..Default::default() };
        assert_eq!(changed(&off, twenty, &more).dida, Some(DidaConfig { let_through: 2, ..twenty }));
    }
}
