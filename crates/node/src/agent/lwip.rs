//! `anabranch lwip`: set-up, control loop, tear-down. What the REST interface asks for is in `asks`.

mod asks;
mod backhaul;
mod metrics;
mod views;
mod worker;

use super::place::{self, Placed};
use super::service::{Signals, Wish, notify, reloading};
use super::thread::{Handle, Running};
use crate::api::{self, Ask, Asker, EventLog};
use crate::config::{self, ConfigError, GtpuBackhaul, LwipConfig};
use crate::netctl;
use anabranch_lwip::{Config as Node, DidaConfig};
use anyhow::Context;
use backhaul::{Backhaul, Gtpu, Tunnels};
use std::net::UdpSocket;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use worker::{Ports, Worker};

/// How often the service manager is told that the program lives.
const WATCHDOG: Duration = Duration::from_secs(5);

/// Reads the file and lets flags win.
pub fn load(args: &super::LwipArgs) -> anyhow::Result<LwipConfig> {
    let mut config: LwipConfig = config::load(&args.common.config)?;
    args.common.win(&mut config.api, &mut config.metrics)?;
    args.flags.win(&mut config.node)?;
    Ok(config)
}

/// Prints what a UE runs to turn its Wi-Fi address back.
pub fn print_ue_rules(args: &super::LwipArgs, config: &LwipConfig, ue: &str) -> anyhow::Result<()> {
    let rules = config
        .ue(ue)
        .and_then(|ue| config::ue_rules(&config.node, ue, args.ue_interface.as_deref()))
        .map_err(|e| ConfigError::new(args.common.config.display().to_string(), e))?;
    print!("{rules}");
    Ok(())
}

/// Sets everything up, runs, and takes everything down again, also when something fails.
pub fn run(args: &super::LwipArgs, config: LwipConfig) -> anyhow::Result<()> {
    let mut placed = Vec::new();
    let result =
        make(&config, &mut placed).and_then(|ports| super::runtime()?.block_on(serve(args, config, ports)));
    placed.into_iter().rev().for_each(Placed::remove);
    result
}

fn make(config: &LwipConfig, placed: &mut Vec<Placed>) -> anyhow::Result<Ports> {
    let mut open = |section: &'static str, port| {
        let (device, place) = place::open(port, config.mtu()).context(section)?;
        placed.push(place);
        anyhow::Ok(device)
    };
    let backhaul = match (&config.backhaul, &config.gtpu) {
        (Some(port), _) => Backhaul::Device(Box::new(open("[backhaul]", port)?)),
        (None, Some(gtpu)) => {
            let tunnels = Tunnels::new(gtpu, &config.node.ues);
            Backhaul::Gtpu(Box::new(Gtpu::new(bind(gtpu)?, gtpu.peer, tunnels).context("[gtpu]")?))
        }
        // The check of the configuration refused it.
        (None, None) => anyhow::bail!("neither [backhaul] nor [gtpu]"),
    };
    Ok(Ports {
        backhaul,
        lte: open("[lte]", &config.lte)?,
        wifi: config.wifi.as_ref().map(|wifi| open("[wifi]", wifi)).transpose()?,
    })
}

/// The socket, in the namespace it belongs to.
fn bind(gtpu: &GtpuBackhaul) -> anyhow::Result<UdpSocket> {
    netctl::inside(gtpu.netns().as_deref(), || {
        netctl::bind_when_free(|| UdpSocket::bind(gtpu.listen), netctl::is_in_use)
            .with_context(|| format!("[gtpu] listen = \"{}\": is another program there?", gtpu.listen))
    })
}

async fn serve(args: &super::LwipArgs, config: LwipConfig, ports: Ports) -> anyhow::Result<()> {
    let mut signals = Signals::open()?;
    let (worker, handle) = Worker::new(&config, ports)?;
    let mut running = Running::start("anb-lwip", worker, handle.clone())?;
    let (asker, asks) = mpsc::channel(64);
    let log = EventLog::default();
    let server = api::serve(
        api::Agent::Lwip,
        &config.api,
        config.metrics.as_ref(),
        Asker::new(asker),
        log.clone(),
        None,
    )
    .await;
    let mut agent = Agent {
        file: args.common.config.clone(),
        flags: args.flags.clone(),
        running: config.node.clone(),
        last_dida: config.node.dida.unwrap_or_default(),
        config,
        worker: handle,
        log,
        started: Instant::now(),
    };
    let result = match server {
        Ok(_server) => agent.serve(&mut signals, &mut running, asks).await,
        Err(error) => Err(error),
    };
    notify("STOPPING=1");
    let stopped = running.stop();
    result.and(stopped)
}

/// The control plane of an LWIP node.
struct Agent {
    file: PathBuf,
    config: LwipConfig,
    /// What wins over the file.
    flags: super::LwipFlags,
    /// The node as it is now.
    running: Node,
    /// DIDA as it is, or was before it was switched off.
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
        mut asks: mpsc::Receiver<Ask>,
    ) -> anyhow::Result<()> {
        let mut tick = tokio::time::interval(WATCHDOG);
        tracing::info!(name = self.config.lwip.name, ues = self.running.ues.len(), "lwip runs");
        notify("READY=1");
        loop {
            tokio::select! {
                biased;
                wish = signals.next() => match wish {
                    Wish::Stop | Wish::MakeWay => return Ok(()),
                    Wish::Reload => reloading(self.reload()).await,
                },
                Some(ask) = asks.recv() => self.on_ask(ask).await,
                _ = tick.tick() => {
                    // The node answers, so it lives.
                    if self.worker.ask(|_, _| ()).await.is_ok() {
                        notify("WATCHDOG=1");
                    }
                }
                error = running.failed() => return Err(error),
            }
        }
    }
}
