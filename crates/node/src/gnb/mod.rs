//! `anabranch gnb`: set-up, control loop and tear-down. `requests` handles the REST interface.

pub mod api;
pub mod config;
pub mod ctl;
pub mod metrics;
pub mod requests;
pub mod routes;
pub mod views;

use crate::runtime::api::{self as rest, ControlRequest, EventLog};
use crate::runtime::config::{ConfigError, GnbConfig, N3Section, load as load_file, read_trace};
use crate::runtime::interfaces::{self, OpenInterface};
use crate::runtime::service::{ProcessSignal, Signals, notify, reloading};
use crate::runtime::{Common, current_thread, netctl, preflight, run_to_end};
use anabranch_engine::cell::packets::{Batch, MAX_BATCH_LAG};
use anabranch_engine::cell::report::Report;
use anabranch_engine::cell::{Handle, N3End, Parts, UeEnd, Worker};
use anabranch_engine::thread::Running;
use anabranch_ran::amc::Amc;
use anabranch_ran::gnb::{Gnb, SlotStats};
use anyhow::Context;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{broadcast, mpsc};

/// Arguments of `anabranch gnb`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
The smallest gnb.toml: one UE behind ue0, network behind n3, LTE with 25 RBs.
  [n3]
  mode = \"ip\"
  name = \"n3\"
  [[device]]
  name = \"ue0\"
  netns = \"phone\"                                # ip netns add phone
  addresses = [\"10.45.0.2/32\"]
  routes = [\"0.0.0.0/0\"]
  [cell]
  [[cell.ues]]
  name = \"phone\"
  addresses = [\"10.45.0.2\"]
  channel = { model = \"constant\", mcs = 28 }
  bearer = { queue = \"e5g_bdp\" }

SIGHUP reloads the file. SIGINT and SIGTERM stop the program and remove every
device, address and route.")]
pub struct GnbArgs {
    #[command(flatten)]
    pub common: Common,
}

/// Runs a gNB until it is stopped.
pub fn start(args: &GnbArgs) -> anyhow::Result<()> {
    let config = load(&args.common)?;
    preflight::agent(&args.common, &config.api, config.metrics.as_ref())?;
    if args.common.check {
        return Ok(());
    }
    preflight::may_configure()?;
    run(&args.common, config)
}

/// Number of slots that a slow listener may lag behind before it misses some.
const MAX_SLOT_LAG: usize = 16_384;
/// Number of seconds that a slow listener may lag behind before it misses some.
const MAX_SECOND_LAG: usize = 64;
/// Number of reports that the control loop may lag behind the data path.
const MAX_REPORT_LAG: usize = 8;
/// Interval of the watchdog notifications to the service manager.
const WATCHDOG: Duration = Duration::from_secs(5);

/// Reads the configuration file; command-line flags take precedence.
pub fn load(args: &Common) -> anyhow::Result<GnbConfig> {
    let mut config: GnbConfig = load_file(&args.config)?;
    args.win(&mut config.api, &mut config.metrics)?;
    if let Err(without_effect) = config.cell.check_effects() {
        tracing::warn!("[cell] {without_effect}");
    }
    // A cell that cannot be built is reported where it is built.
    if let Ok(gnb) = Gnb::new(&config.core(), &mut read_trace) {
        gnb.unservable_queues().iter().for_each(|stuck| tracing::warn!("[cell] {stuck}"));
        gnb.unmapped_packets().iter().for_each(|unmapped| tracing::warn!("[cell] {unmapped}"));
    }
    Ok(config)
}

/// Sets everything up, runs until the end, and takes everything down again, also after a failure.
pub fn run(args: &Common, config: GnbConfig) -> anyhow::Result<()> {
    let mut opened = Vec::new();
    let result = make(&config, &mut opened)
        .and_then(|(n3, devices)| run_to_end(current_thread()?, serve(args, config, n3, devices)));
    opened.into_iter().rev().for_each(OpenInterface::remove);
    result
}

/// Creates the interfaces and, for GTP-U, the socket.
fn make(config: &GnbConfig, opened: &mut Vec<OpenInterface>) -> anyhow::Result<(N3End, Vec<UeEnd>)> {
    let n3 = match &config.n3 {
        N3Section::Ip(port) => {
            let (device, interface) = interfaces::open(port, config.mtu()).context("[n3]")?;
            opened.push(interface);
            N3End::Ip(device)
        }
        N3Section::Gtpu(gtpu) => {
            let socket = netctl::bind_when_free(|| std::net::UdpSocket::bind(gtpu.listen))
                .with_context(|| format!("[n3] listen = \"{}\": is another program there?", gtpu.listen))?;
            N3End::gtpu(socket, gtpu.peer).context("[n3]")?
        }
    };
    let of = config.device_of_ues().map_err(anyhow::Error::msg)?;
    let mut ends = Vec::new();
    for (at, device) in config.device.iter().enumerate() {
        let (device, interface) = interfaces::open(&device.port(), config.mtu()).context("[[device]]")?;
        opened.push(interface);
        let mut behind = (0_u16..).zip(&of).filter(|(_, of)| **of == at).map(|(ue, _)| ue);
        let only = match (behind.next(), behind.next()) {
            (Some(ue), None) => Some(ue),
            _ => None,
        };
        ends.push(UeEnd { device, only });
    }
    Ok((n3, ends))
}

async fn serve(args: &Common, config: GnbConfig, n3: N3End, devices: Vec<UeEnd>) -> anyhow::Result<()> {
    let mut signals = Signals::open()?;
    let gnb = Gnb::new(&config.core(), &mut read_trace).map_err(|e| {
        anyhow::Error::from(ConfigError::new(args.config.display().to_string(), format!("[cell] {e}")))
    })?;
    let amc = gnb.amc().clone();
    let (publisher, reports) = mpsc::channel(MAX_REPORT_LAG);
    let slots = broadcast::channel(MAX_SLOT_LAG).0;
    let packets = broadcast::channel(MAX_BATCH_LAG).0;
    let of = config.device_of_ues().map_err(anyhow::Error::msg)?;
    let (worker, handle) = Worker::new(Parts {
        gnb,
        n3,
        devices,
        device_of_ue: of.iter().map(|at| *at as u16).collect(),
        addresses: config.cell.ues.iter().map(|ue| ue.addresses.clone()).collect::<Vec<Vec<IpAddr>>>(),
        real_time: config.gnb.real_time,
        reports: publisher,
        slots: slots.clone(),
        packets: packets.clone(),
    })?;
    let mut cell = Running::start("anb-cell", worker, handle.clone())?;
    let log = EventLog::default();
    let server = rest::serve(rest::Agent::Gnb, &config.api, config.metrics.as_ref(), log.clone(), None).await;
    let mut agent = Agent {
        args: args.clone(),
        running: config.core(),
        config,
        amc,
        device_of_ue: of,
        worker: handle,
        seconds: broadcast::channel(MAX_SECOND_LAG).0,
        slots,
        packets,
        last: None,
        log,
        started: Instant::now(),
    };
    let result = match server {
        Ok((_server, requests)) => agent.serve(&mut signals, &mut cell, reports, requests).await,
        Err(error) => Err(error),
    };
    notify("STOPPING=1");
    let stopped = cell.stop();
    result.and(stopped)
}

/// Control plane of a gNB.
struct Agent {
    args: Common,
    config: GnbConfig,
    /// Configuration of the cell in force.
    running: anabranch_ran::gnb::GnbConfig,
    amc: Amc,
    device_of_ue: Vec<usize>,
    worker: Handle,
    seconds: broadcast::Sender<Arc<rest::CellSecond>>,
    slots: broadcast::Sender<SlotStats>,
    packets: broadcast::Sender<Arc<Batch>>,
    /// Report of the previous second.
    last: Option<Report>,
    log: EventLog,
    started: Instant,
}

impl Agent {
    async fn serve(
        &mut self,
        signals: &mut Signals,
        cell: &mut Running<Worker>,
        mut reports: mpsc::Receiver<Report>,
        mut requests: mpsc::Receiver<ControlRequest>,
    ) -> anyhow::Result<()> {
        let mut tick = tokio::time::interval(WATCHDOG);
        tracing::info!(name = self.config.gnb.name, ues = self.running.ues.len(), "gnb runs");
        notify("READY=1");
        loop {
            tokio::select! {
                biased;
                signal = signals.next() => match signal {
                    ProcessSignal::Stop | ProcessSignal::HandOver => return Ok(()),
                    ProcessSignal::Reload => reloading(self.reload()).await,
                },
                Some(report) = reports.recv() => self.on_report(report),
                Some(request) = requests.recv() => self.on_request(request).await,
                _ = tick.tick() => {
                    // The data path answered, so it is alive.
                    if let Ok(Some((_, Some(error)))) = self.worker.query(|worker, _| worker.socket()).await {
                        tracing::warn!("N3: datagrams could not be sent: {error}");
                    }
                    notify("WATCHDOG=1");
                }
                error = cell.failed() => return Err(error),
            }
        }
    }

    fn on_report(&mut self, report: Report) {
        let second =
            views::second(&report, self.last.as_ref(), &self.running, self.started.elapsed().as_secs());
        let missed = second.downlink.missed_slots.max(second.uplink.missed_slots);
        if missed > 0 {
            let message = format!("{missed} slots skipped: the machine is too slow, or was suspended");
            self.log.push(crate::runtime::views::event("late", None, message));
        }
        self.last = Some(report);
        // An error means that there is no listener.
        let _ = self.seconds.send(Arc::new(second));
    }
}
