//! `anabranch lwip`: set-up, control loop and tear-down. `requests` handles the REST interface.

pub mod api;
pub mod config;
pub mod ctl;
pub mod metrics;
pub mod requests;
pub mod routes;
pub mod views;

use crate::runtime::api::{self as rest, ControlRequest, EventLog};
use crate::runtime::config::{ConfigError, GtpuBackhaul, LwipConfig, load as load_file, ue_rules};
use crate::runtime::interfaces::{self, OpenInterface};
use crate::runtime::service::{ProcessSignal, Signals, notify, reloading};
use crate::runtime::{Common, current_thread, netctl, preflight, run_to_end};
use anabranch_engine::lwip::backhaul::{Backhaul, Gtpu};
use anabranch_engine::lwip::{Parts, Ports, Worker};
use anabranch_engine::thread::{Handle, Running};
use anabranch_lwip::{Config as Node, DidaConfig, Hold, Steering};
use anyhow::Context;
use rand_core::{OsRng, TryRngCore};
use std::net::UdpSocket;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// Arguments of `anabranch lwip`.
#[derive(Debug, Clone, clap::Args)]
#[command(after_long_help = "\
The smallest lwip.toml: servers behind n3, one UE; LTE and Wi-Fi both behind
ran0.
  [backhaul]
  name = \"n3\"
  routes = [\"10.45.0.2/32\"]                    # packets from servers to the UE
  [lte]
  name = \"ran0\"
  netns = \"ran\"                                 # ip netns add ran
  routes = [\"0.0.0.0/0\"]                        # packets from UEs
  [node]
  steering = { mode = \"fixed_ratio\", lte_percent = 50 }
  dida = { hold = { mode = \"fixed\", ms = 50 } }
  [[node.ues]]
  name = \"phone\"
  addresses = [\"10.45.0.2\"]                   # of the bearer, known to servers
  wifi = [\"10.46.0.2\"]                        # through the access point

The UE translates its Wi-Fi address back with:
  anabranch lwip --config lwip.toml --ue-rules phone --ue-interface wlan0 |
    ssh phone nft -f -

SIGHUP reloads the file. SIGINT and SIGTERM send all held packets, stop the
program and remove every device, address and route.")]
pub struct LwipArgs {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    flags: LwipFlags,
    /// Print the nftables rules that a UE needs for its Wi-Fi leg, and exit.
    #[arg(long, value_name = "UE")]
    ue_rules: Option<String>,
    /// Wi-Fi interface of the UE, for --ue-rules; default: any.
    #[arg(long, value_name = "INTERFACE", requires = "ue_rules")]
    ue_interface: Option<String>,
}

/// Flags that override `[node]`.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct LwipFlags {
    /// Fixed share of TCP packets over LTE, percent. Overrides the file.
    #[arg(long, value_name = "PERCENT")]
    lte_percent: Option<f64>,
    /// Hold time for duplicate ACKs, milliseconds; 0 disables DIDA. Overrides the file.
    #[arg(long, value_name = "MS")]
    hold_ms: Option<f64>,
}

impl LwipFlags {
    fn win(&self, node: &mut Node) -> Result<(), ConfigError> {
        if let Some(lte_percent) = self.lte_percent {
            node.steering = Steering::FixedRatio { lte_percent };
            node.check().map_err(|e| ConfigError::new("--lte-percent", e.to_string()))?;
        }
        if let Some(ms) = self.hold_ms {
            let dida = DidaConfig { hold: Hold::Fixed { ms }, ..node.dida.unwrap_or_default() };
            node.dida = (ms != 0.0).then_some(dida);
            node.check().map_err(|e| ConfigError::new("--hold-ms", e.to_string()))?;
        }
        Ok(())
    }
}

/// Runs an LWIP node until it is stopped.
pub fn start(args: &LwipArgs) -> anyhow::Result<()> {
    let config = load(args)?;
    if let Some(ue) = &args.ue_rules {
        return print_ue_rules(args, &config, ue);
    }
    preflight::agent(&args.common, &config.api, config.metrics.as_ref())?;
    if args.common.check {
        return Ok(());
    }
    preflight::may_configure()?;
    run(args, config)
}

/// Interval of the watchdog notifications to the service manager.
const WATCHDOG: Duration = Duration::from_secs(5);

/// Reads the configuration file; command-line flags take precedence.
pub fn load(args: &LwipArgs) -> anyhow::Result<LwipConfig> {
    let mut config: LwipConfig = load_file(&args.common.config)?;
    args.common.win(&mut config.api, &mut config.metrics)?;
    args.flags.win(&mut config.node)?;
    Ok(config)
}

/// Prints the nftables rules with which the UE translates its Wi-Fi address back to the bearer's address.
pub fn print_ue_rules(args: &LwipArgs, config: &LwipConfig, ue: &str) -> anyhow::Result<()> {
    let rules = config
        .ue(ue)
        .and_then(|ue| ue_rules(&config.node, ue, args.ue_interface.as_deref()))
        .map_err(|e| ConfigError::new(args.common.config.display().to_string(), e))?;
    print!("{rules}");
    Ok(())
}

/// Sets everything up, runs until the end, and takes everything down again, also after a failure.
pub fn run(args: &LwipArgs, config: LwipConfig) -> anyhow::Result<()> {
    let mut opened = Vec::new();
    let result = make(&config, &mut opened)
        .and_then(|ports| run_to_end(current_thread()?, serve(args, config, ports)));
    opened.into_iter().rev().for_each(OpenInterface::remove);
    result
}

fn make(config: &LwipConfig, opened: &mut Vec<OpenInterface>) -> anyhow::Result<Ports> {
    let mut open = |section: &'static str, port| {
        let (device, interface) = interfaces::open(port, config.mtu()).context(section)?;
        opened.push(interface);
        anyhow::Ok(device)
    };
    let backhaul = match (&config.backhaul, &config.gtpu) {
        (Some(port), _) => Backhaul::Device(Box::new(open("[backhaul]", port)?)),
        (None, Some(gtpu)) => {
            let tunnels = gtpu.tunnels(&config.node.ues);
            Backhaul::Gtpu(Box::new(Gtpu::new(bind(gtpu)?, gtpu.peer, tunnels).context("[gtpu]")?))
        }
        // The check of the configuration has excluded this.
        (None, None) => anyhow::bail!("neither [backhaul] nor [gtpu]"),
    };
    Ok(Ports {
        backhaul,
        lte: open("[lte]", &config.lte)?,
        wifi: config.wifi.as_ref().map(|wifi| open("[wifi]", wifi)).transpose()?,
    })
}

/// Binds the GTP-U socket in its network namespace.
fn bind(gtpu: &GtpuBackhaul) -> anyhow::Result<UdpSocket> {
    netctl::inside(gtpu.netns().as_deref(), || {
        netctl::bind_when_free(|| UdpSocket::bind(gtpu.listen))
            .with_context(|| format!("[gtpu] listen = \"{}\": is another program there?", gtpu.listen))
    })
}

async fn serve(args: &LwipArgs, config: LwipConfig, ports: Ports) -> anyhow::Result<()> {
    let mut signals = Signals::open()?;
    let (worker, handle) = Worker::new(Parts {
        config: config.node.clone(),
        ioam: config.ioam,
        seed: OsRng.try_next_u64().context("random numbers")?,
        ports,
        real_time: config.lwip.real_time,
    })?;
    let mut running = Running::start("anb-lwip", worker, handle.clone())?;
    let log = EventLog::default();
    let server =
        rest::serve(rest::Agent::Lwip, &config.api, config.metrics.as_ref(), log.clone(), None).await;
    let mut agent = Agent {
        args: args.clone(),
        running: config.node.clone(),
        last_dida: config.node.dida.unwrap_or_default(),
        config,
        worker: handle,
        log,
        started: Instant::now(),
    };
    let result = match server {
        Ok((_server, requests)) => agent.serve(&mut signals, &mut running, requests).await,
        Err(error) => Err(error),
    };
    notify("STOPPING=1");
    let stopped = running.stop();
    result.and(stopped)
}

/// Control plane of an LWIP node.
struct Agent {
    /// Configuration file, and the flags that take precedence.
    args: LwipArgs,
    config: LwipConfig,
    /// Configuration of the node in force.
    running: Node,
    /// Parameters of DIDA: the current ones, or those before it was switched off.
    last_dida: DidaConfig,
    worker: Handle<Worker>,
    log: EventLog,
    started: Instant,
}

impl Agent {
    async fn serve(
        &mut self,
        signals: &mut Signals,
        running: &mut Running<Worker>,
        mut requests: mpsc::Receiver<ControlRequest>,
    ) -> anyhow::Result<()> {
        let mut tick = tokio::time::interval(WATCHDOG);
        tracing::info!(name = self.config.lwip.name, ues = self.running.ues.len(), "lwip runs");
        notify("READY=1");
        loop {
            tokio::select! {
                biased;
                signal = signals.next() => match signal {
                    ProcessSignal::Stop | ProcessSignal::HandOver => return Ok(()),
                    ProcessSignal::Reload => reloading(self.reload()).await,
                },
                Some(request) = requests.recv() => self.on_request(request).await,
                _ = tick.tick() => {
                    // The data path answered, so it is alive.
                    if self.worker.query(|_, _| ()).await.is_ok() {
                        notify("WATCHDOG=1");
                    }
                }
                error = running.failed() => return Err(error),
            }
        }
    }
}
