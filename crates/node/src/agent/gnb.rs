//! `anabranch gnb`: set-up, control loop, tear-down. What the REST interface asks for is in `asks`.

mod asks;
mod metrics;
mod packets;
mod report;
mod views;
mod worker;

use super::Common;
use super::place::{self, Placed};
use super::service::{Signals, Wish, notify, reloading};
use super::thread::Running;
use crate::api::{self, Ask, Asker, EventLog};
use crate::config::read_trace;
use crate::config::{self, GnbConfig, N3Section};
use crate::netctl;
use anabranch_ran::amc::Amc;
use anabranch_ran::gnb::Gnb;
use anyhow::Context;
use report::Report;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{broadcast, mpsc};
use worker::{Handle, N3End, Parts, UeEnd, Worker};

/// Slots a slow listener may be behind before it misses some.
const SLOTS_BEHIND: usize = 16_384;
/// Seconds it may be.
const SECONDS_BEHIND: usize = 64;
/// Reports the control loop may be behind.
const REPORTS_BEHIND: usize = 8;
/// How often the service manager is told that the program lives.
const WATCHDOG: Duration = Duration::from_secs(5);

/// Reads the file and lets flags win.
pub fn load(args: &Common) -> anyhow::Result<GnbConfig> {
    let mut config: GnbConfig = config::load(&args.config)?;
    args.win(&mut config.api, &mut config.metrics)?;
    // A cell that cannot be is told of where it is made.
    for stuck in Gnb::new(&config.core(), &mut read_trace).iter().flat_map(Gnb::stuck) {
        tracing::warn!("[cell] {stuck}");
    }
    Ok(config)
}

/// Sets everything up, runs, and takes everything down again, also when something fails.
pub fn run(args: &Common, config: GnbConfig) -> anyhow::Result<()> {
    let mut placed = Vec::new();
    let result = make(&config, &mut placed)
        .and_then(|(n3, devices)| super::runtime()?.block_on(serve(args, config, n3, devices)));
    placed.into_iter().rev().for_each(Placed::remove);
    result
}

/// The interfaces and the socket.
fn make(config: &GnbConfig, placed: &mut Vec<Placed>) -> anyhow::Result<(N3End, Vec<UeEnd>)> {
    let n3 = match &config.n3 {
        N3Section::Ip(port) => {
            let (device, place) = place::open(port, config.mtu()).context("[n3]")?;
            placed.push(place);
            N3End::Ip(device)
        }
        N3Section::Gtpu(gtpu) => {
            let socket = netctl::bind_when_free(|| std::net::UdpSocket::bind(gtpu.listen), netctl::is_in_use)
                .with_context(|| format!("[n3] listen = \"{}\": is another program there?", gtpu.listen))?;
            N3End::gtpu(socket, gtpu.peer).context("[n3]")?
        }
    };
    let of = config.device_of_ues().map_err(anyhow::Error::msg)?;
    let mut ends = Vec::new();
    for (at, device) in config.device.iter().enumerate() {
        let (device, place) = place::open(&device.port(), config.mtu()).context("[[device]]")?;
        placed.push(place);
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
        anyhow::Error::from(config::ConfigError::new(
            args.config.display().to_string(),
            format!("[cell] {e}"),
        ))
    })?;
    let amc = gnb.amc().clone();
    let (told, reports) = mpsc::channel(REPORTS_BEHIND);
    let slots = broadcast::channel(SLOTS_BEHIND).0;
    let packets = broadcast::channel(packets::BATCHES_BEHIND).0;
    let of = config.device_of_ues().map_err(anyhow::Error::msg)?;
    let (worker, handle) = Worker::new(Parts {
        gnb,
        n3,
        devices,
        device_of_ue: of.iter().map(|at| *at as u16).collect(),
        addresses: config.cell.ues.iter().map(|ue| ue.addresses.clone()).collect::<Vec<Vec<IpAddr>>>(),
        real_time: config.gnb.real_time,
        reports: told,
        slots: slots.clone(),
        packets: packets.clone(),
    })?;
    let mut cell = Running::start("anb-cell", worker, handle.clone())?;
    let (asker, asks) = mpsc::channel(64);
    let log = EventLog::default();
    let server = api::serve(
        api::Agent::Gnb,
        &config.api,
        config.metrics.as_ref(),
        Asker::new(asker),
        log.clone(),
        None,
    )
    .await;
    let mut agent = Agent {
        file: args.config.clone(),
        running: config.core(),
        config,
        amc,
        device_of_ue: of,
        worker: handle,
        seconds: broadcast::channel(SECONDS_BEHIND).0,
        slots,
        packets,
        last: None,
        log,
        started: Instant::now(),
    };
    let result = match server {
        Ok(_server) => agent.serve(&mut signals, &mut cell, reports, asks).await,
        Err(error) => Err(error),
    };
    notify("STOPPING=1");
    let stopped = cell.stop();
    result.and(stopped)
}

/// The control plane of a gNB.
struct Agent {
    file: PathBuf,
    config: GnbConfig,
    /// The cell as it is now.
    running: anabranch_ran::gnb::GnbConfig,
    amc: Amc,
    device_of_ue: Vec<usize>,
    worker: Handle,
    seconds: broadcast::Sender<Arc<api::Second>>,
    slots: broadcast::Sender<api::Slot>,
    packets: broadcast::Sender<Arc<api::CellPackets>>,
    /// The report of the last second.
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
        mut asks: mpsc::Receiver<Ask>,
    ) -> anyhow::Result<()> {
        let mut tick = tokio::time::interval(WATCHDOG);
        tracing::info!(name = self.config.gnb.name, ues = self.running.ues.len(), "gnb runs");
        notify("READY=1");
        loop {
            tokio::select! {
                biased;
                wish = signals.next() => match wish {
                    Wish::Stop | Wish::MakeWay => return Ok(()),
                    Wish::Reload => reloading(self.reload()).await,
                },
                Some(report) = reports.recv() => self.on_report(report),
                Some(ask) = asks.recv() => self.on_ask(ask).await,
                _ = tick.tick() => {
                    // The cell answers, so it lives.
                    if let Ok(Some((_, Some(error)))) = self.worker.ask(|worker, _| worker.socket()).await {
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
            let message = format!("{missed} slots left out: the machine is too slow, or was suspended");
            self.log.push(super::views::event("late", None, message));
        }
        self.last = Some(report);
        // Nobody listens: fine.
        let _ = self.seconds.send(Arc::new(second));
    }
}
