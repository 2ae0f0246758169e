//! `anabranch proxy`: set-up, control loop, tear-down. What the REST interface asks for is in `asks`.

mod asks;
mod metrics;

use super::Common;
use super::service::{Signals, Wish, notify, reloading};
use crate::api::{self, Ask, Asker, EventLog};
use crate::config::{self, ProxyConfig};
use crate::netctl::{Layer, Net, Tproxy};
use crate::proxy::{Flows, Listeners, Policy, Proxy, Rules};
use anyhow::Context;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// How often the service manager is told that the program lives.
const WATCHDOG: Duration = Duration::from_secs(5);

/// Removes what a proxy that was killed has left here, whatever its file says.
pub fn clean() -> anyhow::Result<()> {
    super::runtime()?.block_on(async { Net::open()?.clean_dead().await }).context("cleaning up")
}

/// Reads the file and lets flags win.
pub fn load(args: &Common) -> anyhow::Result<ProxyConfig> {
    let mut config: ProxyConfig = config::load(&args.config)?;
    args.win(&mut config.api, &mut config.metrics)?;
    Ok(config)
}

/// Sets everything up, runs, and takes everything down again, also when something fails.
pub fn run(args: &Common, config: ProxyConfig) -> anyhow::Result<()> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    if config.proxy.workers > 0 {
        builder.worker_threads(config.proxy.workers.into());
    }
    let runtime = builder.enable_all().thread_name("anb-proxy").build().context("starting threads")?;
    runtime.block_on(set_up(args, config))
}

async fn set_up(args: &Common, config: ProxyConfig) -> anyhow::Result<()> {
    let mut signals = Signals::open()?;
    // The port first: who has it is at work, and what it installed is not a leftover.
    let listeners = Listeners::bind(config.proxy.port, config.proxy.own_mark())?;
    let net = Net::open()?;
    let tproxy = tproxy(&config, listeners.v6());
    net.clean_proxy(tproxy.mark, &tproxy.table).await?;
    let flows = Flows::new(Flows::possible(config.limits.flows, config.proxy.workers)?, share(&config));
    let proxy = Arc::new(Proxy::new(
        Rules::new(&config.rule)?,
        Policy::new(&config.agent)?,
        config.limits.clone(),
        flows,
        config.proxy.own_mark(),
    )?);
    let v6 = listeners.v6();
    let serving = listeners.serve(&proxy);
    let (asker, asks) = mpsc::channel(64);
    let log = EventLog::default();
    // Whoever listens does so before flows are led here.
    let _server = api::serve(
        api::Agent::Proxy,
        &config.api,
        config.metrics.as_ref(),
        Asker::new(asker),
        log.clone(),
        None,
    )
    .await?;
    let layer = net.lead(tproxy).await?;
    let mut agent =
        Agent { file: args.config.clone(), proxy, config, v6, net, layer, log, started: Instant::now() };
    let result = agent.serve(&mut signals, serving, asks).await;
    notify("STOPPING=1");
    agent.net.undo(agent.layer).await;
    result
}

/// How many UDP flows one client may have.
fn share(config: &ProxyConfig) -> usize {
    config.limits.udp_flows_per_client as usize
}

/// What nftables is told.
fn tproxy(config: &ProxyConfig, v6: bool) -> Tproxy {
    Tproxy {
        table: Tproxy::table_name(&config.proxy.name),
        mark: config.proxy.mark,
        port: config.proxy.port,
        v6,
        local: config.intercept.local,
        only_by: None,
        interfaces: config.intercept.interfaces.clone(),
        except: config.intercept.except.clone(),
        flows: Rules::intercepted(&config.rule),
        keeps_source: config.rule.iter().any(|rule| rule.source == config::Source::Client),
    }
}

/// The control plane of a proxy.
struct Agent {
    file: PathBuf,
    config: ProxyConfig,
    proxy: Arc<Proxy>,
    /// Whether there is IPv6.
    v6: bool,
    net: Net,
    /// What leads flows here.
    layer: Layer,
    log: EventLog,
    started: Instant,
}

impl Agent {
    async fn serve(
        &mut self,
        signals: &mut Signals,
        mut serving: JoinSet<anyhow::Error>,
        mut asks: mpsc::Receiver<Ask>,
    ) -> anyhow::Result<()> {
        let mut tick = tokio::time::interval(WATCHDOG);
        let rules = self.config.rule.len();
        tracing::info!(name = self.config.proxy.name, port = self.config.proxy.port, rules, "proxy runs");
        notify("READY=1");
        loop {
            tokio::select! {
                biased;
                wish = signals.next() => match wish {
                    Wish::Stop | Wish::MakeWay => return Ok(()),
                    Wish::Reload => reloading(self.reload()).await,
                },
                Some(ask) = asks.recv() => self.on_ask(ask).await,
                _ = tick.tick() => notify("WATCHDOG=1"),
                Some(ended) = serving.join_next() => {
                    return Err(ended.unwrap_or_else(Into::into).context("taking flows"));
                }
            }
        }
    }
}
