//! Requests of the REST interface, and SIGHUP, at a proxy: queries and reload.

use super::super::{Flow, Flows, Rules};
use super::{Agent, metrics, share, tproxy};
use crate::runtime::api::{self, ControlRequest, Problem, ProxyRequest};
use crate::runtime::config::differing;
use crate::runtime::relay::{Named, Totals};
use crate::runtime::views::event;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

impl Agent {
    pub(super) async fn on_request(&mut self, request: ControlRequest) {
        // A requester that has gone away needs no answer.
        match request {
            ControlRequest::Status(reply) => drop(reply.send(Ok(self.status()))),
            ControlRequest::Reload(reply) => drop(reply.send(self.reload().await)),
            ControlRequest::Metrics(reply) => {
                drop(reply.send(Ok(metrics::text(&self.status(), &self.node()))))
            }
            ControlRequest::Proxy(ProxyRequest::Node(reply)) => drop(reply.send(Ok(self.node()))),
            ControlRequest::Proxy(ProxyRequest::Flows { offset, limit, reply }) => {
                let flows = self.proxy.flows.list(offset, limit);
                let total = self.proxy.flows.count() as u64;
                drop(reply.send(Ok(api::ProxyFlows { total, flows: flows.iter().map(flow).collect() })));
            }
            other => other.refuse("a proxy has neither sessions nor ATSSS rules", "see GET /v1/proxy"),
        }
    }

    fn status(&self) -> api::Status {
        let flows = self.proxy.flows.count() as u64;
        let dropped = self.proxy.flows.counters.datagrams_dropped.load(Relaxed);
        api::Status {
            part: "proxy".to_owned(),
            name: self.config.proxy.name.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_s: self.started.elapsed().as_secs(),
            public_key: String::new(),
            device: self.config.intercept.interfaces.join(", "),
            mtu_bytes: 0,
            sessions: flows,
            connected: flows,
            trouble: BTreeMap::new(),
            drops: [("datagrams".to_owned(), dropped)].into(),
            ioam: BTreeMap::new(),
            workers: Vec::new(),
        }
    }

    fn node(&self) -> api::ProxyNode {
        let (flows, policy) = (&self.proxy.flows, self.proxy.policy.view());
        let counters = &flows.counters;
        let carried = |((rule, slice), totals): ((String, String), Totals)| {
            let Totals { flows, up_bytes, down_bytes } = totals;
            api::ProxyCarried { rule, slice, flows, up_bytes, down_bytes }
        };
        api::ProxyNode {
            name: self.config.proxy.name.clone(),
            port: self.config.proxy.port,
            local: self.config.intercept.local,
            interfaces: self.config.intercept.interfaces.clone(),
            rules: self.config.rule.iter().map(|rule| rule.name.clone()).collect(),
            agent: api::ProxyAgent {
                place: policy.agent,
                answers: policy.answers,
                asked: policy.asked,
                failures: policy.failures,
                failure: policy.failure,
                known: policy.cached as u64,
            },
            flows: flows.count() as u64,
            max_flows: flows.limit() as u64,
            carried: flows.sums().into_iter().map(carried).collect(),
            plans: counters.origins.rows(),
            refused: flows.refused.rows(),
            retries: counters.retries.load(Relaxed),
            resets: flows.resets.load(Relaxed),
            datagrams_dropped: counters.datagrams_dropped.load(Relaxed),
            plan_failures: counters.plan_failures.load(Relaxed),
        }
    }

    /// Reads the configuration file again. Rules, interception and limits change at once; all other
    /// differences need a restart. After a failure, nothing has changed. Existing flows are not affected.
    pub(super) async fn reload(&mut self) -> Result<api::Reloaded, Problem> {
        let mut new = super::load(&self.args).map_err(|e| Problem::invalid(e.to_string()))?;
        let rules = Rules::new(&new.rule).map_err(|e| Problem::invalid(format!("{e:#}")))?;
        let limit = Flows::possible(new.limits.flows, new.proxy.workers).map_err(Problem::unavailable)?;
        let differs = [
            ("intercept", new.intercept != self.config.intercept),
            ("rule", new.rule != self.config.rule),
            ("limits", new.limits != self.config.limits),
        ];
        let waits = [
            ("proxy", new.proxy != self.config.proxy),
            ("agent", new.agent != self.config.agent),
            ("api", new.api != self.config.api),
            ("metrics", new.metrics != self.config.metrics),
        ];
        // Port and mark of the running proxy stay in use.
        new.proxy = self.config.proxy.clone();
        new.agent = self.config.agent.clone();
        (new.api, new.metrics) = (self.config.api.clone(), self.config.metrics.clone());
        if differs[0].1 || differs[1].1 {
            // One transaction replaces the nftables table; the rules and routes around it stay.
            let to = tproxy(&new, self.v6);
            self.layer.replace(to).await.map_err(|e| Problem::invalid(format!("{e:#}")))?;
            self.proxy.rules.store(Arc::new(rules));
            self.proxy.policy.forget();
        }
        self.proxy.limits.store(Arc::new(new.limits.clone()));
        self.proxy.flows.set_limit(limit);
        self.proxy.flows.set_share(share(&new));
        self.config = new;
        let done = api::Reloaded { changed: differing(&differs), needs_restart: differing(&waits) };
        let list = crate::ue::run::list;
        let message =
            format!("changed: {}; needs a restart: {}", list(&done.changed), list(&done.needs_restart));
        self.log.push(event("reloaded", None, message));
        Ok(done)
    }
}

fn flow(flow: &Arc<Flow>) -> api::ProxyFlow {
    let candidate = flow.of.opened.get().map(|opened| api::ProxyCandidate {
        protocol: opened.candidate.protocol.name().to_owned(),
        interface: opened.candidate.interface.clone(),
        slice: opened.candidate.slice.clone(),
        origin: opened.origin.name().to_owned(),
        plan: opened.candidate.plan.clone(),
    });
    api::ProxyFlow {
        id: flow.id,
        transport: flow.of.transport.name().to_owned(),
        client: flow.client.to_string(),
        server: flow.of.server.to_string(),
        rule: flow.rule.get().cloned().unwrap_or_default(),
        age_s: flow.since.elapsed().as_secs_f64(),
        way: candidate,
        up_bytes: flow.up.load(Relaxed),
        down_bytes: flow.down.load(Relaxed),
    }
}
