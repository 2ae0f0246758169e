//! `anabranch proxy`: set-up, control loop and tear-down. `requests` handles the REST interface.

pub mod metrics;
pub mod requests;

use super::{Flows, Listeners, Policy, Proxy, Rules};
use crate::runtime::api::{self, ControlRequest, EventLog};
use crate::runtime::config::{self, ProxyConfig};
use crate::runtime::netctl::{self, Layer, Net, Tproxy};
use crate::runtime::service::{ProcessSignal, Signals, notify, reloading};
use crate::runtime::{Common, current_thread, preflight, run_to_end};
use anyhow::Context;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Arguments of `anabranch proxy`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
The smallest proxy.toml: every TCP and UDP flow of this machine follows the
policy of the `anabranch ue` beside it.
  [[rule]]
  name = \"all\"

Video on a slice that guarantees 5 Mbit/s, all other flows unchanged:
  [[rule]]
  name = \"video\"
  filter = { protocol = \"tcp\", remote_port = 1935 }
  properties = { minSendRate = 5000000 }

Example:
  anabranch proxy --config proxy.toml
  anabranch ctl proxy flows

SIGHUP reloads the file. SIGINT and SIGTERM stop the program and remove every
rule, route and table. Remains of a killed proxy are removed at the next start,
before the file is read, or with:
  anabranch proxy --clean")]
pub struct ProxyArgs {
    /// Remove the nftables tables, rules and routes that killed proxies have left in this network namespace, and exit.
    /// Running proxies are not affected.
    #[arg(long, exclusive = true)]
    clean: bool,
    #[command(flatten)]
    common: Option<Common>,
}

/// Runs a transparent proxy until it is stopped.
pub fn start(args: &ProxyArgs) -> anyhow::Result<()> {
    let Some(common) = args.common.as_ref().filter(|_| !args.clean) else {
        return preflight::may_configure().and_then(|()| clean());
    };
    if !common.check
        && preflight::may_configure().is_ok()
        && let Err(error) = clean()
    {
        // An invalid file ends this start, but leftovers of a killed proxy are removed before, so that hosts
        // are not cut off until the file is corrected.
        let text = format!("{error:#}");
        if text.contains("not permitted") {
            tracing::debug!("{text}");
        } else {
            tracing::warn!("{text}");
        }
    }
    let config = load(common)?;
    preflight::proxy(common, &config)?;
    if common.check {
        return Ok(());
    }
    preflight::may_configure()?;
    run(common, config)
}

/// Interval of the watchdog notifications to the service manager, and of the checks of nftables, rules and
/// routes.
const WATCHDOG: Duration = Duration::from_secs(5);

/// Removes the network configuration that killed proxies have left in this namespace; needs no configuration
/// file.
pub fn clean() -> anyhow::Result<()> {
    current_thread()?.block_on(async { Net::open()?.clean_dead().await }).context("cleaning up")
}

/// Reads the configuration file; command-line flags take precedence.
pub fn load(args: &Common) -> anyhow::Result<ProxyConfig> {
    let mut config: ProxyConfig = config::load(&args.config)?;
    args.win(&mut config.api, &mut config.metrics)?;
    Ok(config)
}

/// Sets everything up, runs until the end, and takes everything down again, also after a failure.
pub fn run(args: &Common, config: ProxyConfig) -> anyhow::Result<()> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    if config.proxy.workers > 0 {
        builder.worker_threads(config.proxy.workers.into());
    }
    let runtime = builder.enable_all().thread_name("anb-proxy").build().context("starting threads")?;
    run_to_end(runtime, set_up(args, config))
}

async fn set_up(args: &Common, config: ProxyConfig) -> anyhow::Result<()> {
    let mut signals = Signals::open()?;
    let net = Net::open()?;
    // Claimed first: the network configuration of a running proxy with one of these marks is not a leftover.
    let _claim = preflight::proxy_marks(args, &config, &net).await?;
    let listeners = Listeners::bind(config.proxy.port, config.proxy.own_mark())?;
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
    let mut serving = listeners.serve(&proxy);
    let log = EventLog::default();
    // The REST interface listens before flows are redirected.
    let (_server, requests) =
        api::serve(api::Agent::Proxy, &config.api, config.metrics.as_ref(), log.clone(), None).await?;
    let layer = net.redirect(tproxy).await?;
    let (args, missing, started) = (args.clone(), BTreeSet::new(), Instant::now());
    let mut agent = Agent { args, proxy, config, v6, net, layer, missing, log, started };
    let result = agent.serve(&mut signals, &mut serving, requests).await;
    notify("STOPPING=1");
    agent.net.undo(agent.layer).await;
    // Only now the sockets are closed and connections reset: a program connects again at once, and datagrams of open
    // flows bypass the proxy.
    drop(serving);
    result
}

/// Maximum number of UDP flows per client.
fn share(config: &ProxyConfig) -> usize {
    config.limits.udp_flows_per_client as usize
}

/// Parameters of the nftables table.
fn tproxy(config: &ProxyConfig, v6: bool) -> Tproxy {
    let flows = Rules::intercepted(&config.rule);
    Tproxy {
        table: Tproxy::table_name(&config.proxy.name),
        mark: config.proxy.mark,
        port: config.proxy.port,
        v6,
        local: config.intercept.local,
        only_by: None,
        interfaces: config.intercept.interfaces.clone(),
        except: config.intercept.except.clone(),
        forwarded: flows.clone(),
        flows,
        keeps_source: config.rule.iter().any(|rule| rule.source == config::Source::Client),
    }
}

/// Control plane of a proxy.
struct Agent {
    args: Common,
    config: ProxyConfig,
    proxy: Arc<Proxy>,
    /// Whether IPv6 is available.
    v6: bool,
    net: Net,
    /// The nftables table, rules and routes that redirect flows.
    layer: Layer,
    /// Interfaces of `[intercept]` that do not exist.
    missing: BTreeSet<String>,
    log: EventLog,
    started: Instant,
}

impl Agent {
    async fn serve(
        &mut self,
        signals: &mut Signals,
        serving: &mut JoinSet<anyhow::Error>,
        mut requests: mpsc::Receiver<ControlRequest>,
    ) -> anyhow::Result<()> {
        let mut tick = tokio::time::interval(WATCHDOG);
        let rules = self.config.rule.len();
        tracing::info!(name = self.config.proxy.name, port = self.config.proxy.port, rules, "proxy runs");
        notify("READY=1");
        loop {
            tokio::select! {
                biased;
                signal = signals.next() => match signal {
                    ProcessSignal::Stop | ProcessSignal::HandOver => return Ok(()),
                    ProcessSignal::Reload => reloading(self.reload()).await,
                },
                Some(request) = requests.recv() => self.on_request(request).await,
                () = netctl::broken([&self.layer]) => self.hold().await,
                _ = tick.tick() => {
                    self.hold().await;
                    self.look_for_interfaces();
                    notify("WATCHDOG=1");
                }
                Some(ended) = serving.join_next() => {
                    return Err(ended.unwrap_or_else(Into::into).context("taking flows"));
                }
            }
        }
    }

    /// Restores the parts of the redirection that were removed by other programs.
    async fn hold(&self) {
        self.net.hold([&self.layer], None, &self.log).await;
    }

    /// Logs which interfaces of `[intercept]` are missing, and which exist by now, once each.
    fn look_for_interfaces(&mut self) {
        let interfaces = &self.config.intercept.interfaces;
        let is_missing = |name: &&String| anabranch_kern::interface::index(name).is_err();
        let missing: BTreeSet<String> = interfaces.iter().filter(is_missing).cloned().collect();
        for name in missing.difference(&self.missing) {
            tracing::warn!(
                "[intercept] interfaces: \"{name}\" does not exist at present; its flows are intercepted once it does (`ip \
                 link` lists the interfaces)"
            );
        }
        for name in self.missing.iter().filter(|name| interfaces.contains(name) && !missing.contains(*name)) {
            tracing::info!("[intercept] interfaces: \"{name}\" exists now; its flows are intercepted");
        }
        self.missing = missing;
    }
}
