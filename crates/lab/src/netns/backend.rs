//! A run of a scenario in namespaces, from setup to metrics.

use super::agent::{Agent, Event};
use super::cells::{self, Cells};
use super::flows::Flows;
use super::lwips::Lwips;
use super::observe::network::{Access, ETHERNET_BYTES};
use super::observe::{
    AckObservations, NetworkObservations, NetworkWatch, TcpObservations, TraceObservations, acks, ends,
    network, tcp, traces,
};
use super::outcome;
use super::plan::{self, Plan, UePlan};
use super::program::{self, Interrupted};
use super::sandbox::{Sandbox, WORK_DIR};
use super::senders;
use super::space::Space;
use super::stop::Stop;
use super::telemetry::Telemetry;
use super::timeline::Timeline;
use super::topology::{self, Network};
use super::traffic;
use super::tunnels::{Device, Tunnels};
use crate::backend::{Backend, Outcome, Progress};
use crate::scenario::Case;
use crate::scenario::file::{BackendName, Recovery};
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Runs scenarios with the real programs and the kernel's TCP.
pub struct NetnsBackend {
    sandbox: Sandbox,
    device: Device,
    /// Destination folder of logs.
    logs: Option<PathBuf>,
    observer: Option<Box<dyn RunObserver>>,
    runs: AtomicU32,
}

impl std::fmt::Debug for NetnsBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NetnsBackend").field("device", &self.device).finish_non_exhaustive()
    }
}

/// An observer of a running scenario.
pub trait RunObserver: Sync {
    /// Called in a thread of its own when the run begins. Returns soon after `end` is requested.
    ///
    /// # Errors
    /// The observed programs do not answer; ends the run.
    fn observe(&self, observed: &ObservedRun, start: Instant, end: &Stop) -> Result<()>;

    /// Called when the run is over and measured, while everything still exists.
    ///
    /// # Errors
    /// Those of the observer.
    fn over(&self, observed: &ObservedRun, outcome: &Outcome) -> Result<()>;
}

/// Objects that can be observed.
#[derive(Debug, Clone)]
pub struct ObservedRun {
    /// Start of the run, Unix milliseconds.
    pub begin_unix_ms: u64,
    /// Namespaces, by name.
    pub spaces: Vec<Space>,
    /// The UEs under observation.
    pub ues: Vec<ObservedUe>,
    /// UPFs with a tunnel.
    pub upfs: Vec<Agent>,
    /// Files downloaded by curl.
    pub downloads: Vec<Download>,
}

/// A UE that can be observed.
#[derive(Debug, Clone)]
pub struct ObservedUe {
    /// Name in the scenario.
    pub name: String,
    /// Its namespace.
    pub space: Space,
    /// Accesses of the UE, by path id.
    pub accesses: Vec<Access>,
    /// Its agent, if it has a tunnel.
    pub agent: Option<Agent>,
}

/// A file downloaded by curl.
#[derive(Debug, Clone)]
pub struct Download {
    /// Name of the flow in the scenario.
    pub flow: String,
    /// The copy.
    pub copy: PathBuf,
    /// Size of the file, bytes.
    pub bytes: u64,
    /// Path of the copy.
    pub url: String,
}

/// Time between the start command and the start of the run.
const START_DELAY: Duration = Duration::from_millis(50);
/// Interval at which the run is checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);
/// Time for processes to write their reports.
const REPORTS: Duration = Duration::from_secs(10);

impl NetnsBackend {
    /// A backend in this sandbox; `logs` is a folder for the logs of all programs.
    ///
    /// # Errors
    /// A program is missing.
    pub fn new(sandbox: Sandbox, logs: Option<&Path>) -> Result<Self> {
        program::require(topology::PROGRAMS)?;
        program::anabranch()?;
        Ok(Self {
            sandbox,
            device: Device::best(),
            logs: logs.map(Path::to_owned),
            observer: None,
            runs: AtomicU32::new(0),
        })
    }

    /// Adds an observer.
    #[must_use]
    pub fn with_observer(self, observer: Box<dyn RunObserver>) -> Self {
        Self { observer: Some(observer), ..self }
    }

    /// How packets enter tunnels on this system.
    #[must_use]
    pub const fn device(&self) -> Device {
        self.device
    }
}

impl Backend for NetnsBackend {
    fn name(&self) -> BackendName {
        BackendName::Netns
    }

    fn parallel(&self) -> bool {
        false
    }

    fn run(&self, case: &Case, seed: u64, progress: &dyn Progress) -> Result<Outcome> {
        let number = self.runs.fetch_add(1, Ordering::Relaxed);
        let folder = PathBuf::from(WORK_DIR).join(format!("run-{number}"));
        std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        let variant = case.variant.as_deref().unwrap_or("run");
        let result = self.run_in(&folder, case, seed, progress);
        if let Some(logs) = &self.logs {
            keep_logs(&folder, &logs.join(format!("{}-{variant}-{number}", case.scenario)))?;
        }
        // The folder is in memory and is removed with the sandbox at the latest.
        let _ = std::fs::remove_dir_all(&folder);
        result
    }
}

/// A run in progress. The fields are dropped in this order.
struct Run<'a> {
    flows: Flows,
    tunnels: Tunnels,
    lwips: Lwips,
    cells: Cells,
    telemetry: Telemetry,
    network: Network,
    plan: Plan,
    case: &'a Case,
    device: Device,
}

/// All observations of a run.
pub(super) struct Observations {
    /// Start of the run, Unix nanoseconds.
    pub begin_ns: u64,
    /// Duration of the run, seconds; shorter than planned if all transfers have completed.
    pub end_s: f64,
    /// Events and their times, seconds.
    pub events: Vec<(f64, String)>,
    /// Observations of interfaces and links.
    pub network: NetworkObservations,
    /// TCP senders by flow.
    pub tcp: BTreeMap<String, TcpObservations>,
    /// Acknowledgments received by them.
    pub acks: BTreeMap<String, AckObservations>,
    /// Data received with traces.
    pub traces: BTreeMap<String, TraceObservations>,
    /// RTTs of paths.
    pub rtts: ends::Rtts,
    /// Events by name of the tunnel end: UEs, then UPFs.
    pub events_by_end: [BTreeMap<String, Vec<Event>>; 2],
    /// Cells by name.
    pub cells: BTreeMap<String, cells::Watched>,
    /// Resource usage by process.
    pub usage: BTreeMap<u32, ends::Usage>,
}

impl NetnsBackend {
    fn run_in(&self, folder: &Path, case: &Case, seed: u64, progress: &dyn Progress) -> Result<Outcome> {
        let stop = &*self.sandbox.stop;
        let plan = plan::lay_out(case)?;
        // Before the network, because its routes refer to the controllers.
        let mut telemetry = Telemetry::load(&plan, self.sandbox.rootless, folder, stop, progress)?;
        progress.doing("making the network");
        let network = Network::make(&plan, seed, folder, stop)?;
        senders::set(case, &plan, &network)?;
        let cells = Cells::start(case, &plan, &network, seed, self.device, folder, stop)?;
        let lwips = Lwips::start(case, &plan, &network, self.device, folder, stop)?;
        progress.doing("connecting");
        let tunnels = Tunnels::start(case, &plan, &network, seed, self.device, folder, stop)?;
        // After cells and tunnels, which create some of the interfaces.
        telemetry.start_sources(&plan, &network, folder, stop)?;
        let flows = Flows::start(case, &plan, &network, (&tunnels, &telemetry), seed, folder, stop)?;
        progress.doing(case.variant.as_deref().unwrap_or("running"));
        let mut run =
            Run { case, plan, network, telemetry, cells, lwips, tunnels, flows, device: self.device };
        let observer = self.observer.as_deref();
        let mut seen = run.observe(seed, stop, progress, observer)?;
        run.telemetry.keep_counters(folder)?;
        let mut out = Outcome { facts: self.facts(case)?, ..Outcome::default() };
        run.flows.measure(case, &seen, &mut out)?;
        outcome::network(case, &seen, &mut out);
        cells::measure(case, std::mem::take(&mut seen.cells), seen.end_s, &mut out);
        run.lwips.measure(&mut out)?;
        outcome::ends(case, &run.tunnels, &seen, &mut out)?;
        out.events = seen.events;
        if let Some(observer) = observer {
            observer.over(&run.observed(seen.begin_ns)?, &out)?;
        }
        Ok(out)
    }

    /// Facts about the machine that are needed to judge the results.
    fn facts(&self, case: &Case) -> Result<Vec<(String, String)>> {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        let anabranch = program::anabranch()?;
        let version = program::version(&anabranch.to_string_lossy(), "--version").unwrap_or_default();
        let build =
            if anabranch.components().any(|c| c.as_os_str() == "debug") { " (debug build)" } else { "" };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let mut controls: Vec<String> = case
            .flows
            .values()
            .filter_map(|f| Some((f.traffic.congestion_control()?, f.is_kernel_tcp())))
            .map(|(cc, kernel)| format!("{cc} of {}", if kernel { "the kernel" } else { "quinn" }))
            .collect();
        controls.sort_unstable();
        controls.dedup();
        let user = if self.sandbox.rootless { "an ordinary user, in a user namespace" } else { "root" };
        let mut facts = vec![
            ("kernel".to_owned(), format!("Linux {}", read("/proc/sys/kernel/osrelease"))),
            ("machine".to_owned(), format!("{cores} cores")),
            ("programs".to_owned(), format!("{version}{build}")),
            ("tunnel device".to_owned(), self.device.name().to_owned()),
            ("user".to_owned(), user.to_owned()),
        ];
        let mut detections: Vec<String> = case
            .flows
            .values()
            .filter(|f| f.traffic.is_tcp() && (f.recovery != Recovery::Rack || !f.sack))
            .map(|f| format!("{}{}", f.recovery, if f.sack { "" } else { ", without SACK" }))
            .collect();
        detections.sort_unstable();
        detections.dedup();
        if !detections.is_empty() {
            facts.push(("loss detection".to_owned(), detections.join("; ")));
        }
        if !controls.is_empty() {
            facts.push(("congestion control".to_owned(), controls.join(", ")));
        }
        Ok(facts)
    }
}

impl Run<'_> {
    /// Starts the run, supervises it to the end, and collects all observations.
    fn observe(
        &mut self,
        seed: u64,
        stop: &Stop,
        progress: &dyn Progress,
        observer: Option<&dyn RunObserver>,
    ) -> Result<Observations> {
        let case = self.case;
        let timeline = Timeline::new(case, &self.tunnels, &self.cells, seed);
        let watch = self.network_watch()?;
        let tcp_watches = self.flows.watches(case, &self.plan, &self.network)?;
        let ack_taps = self.flows.ack_taps(case, &self.plan, &self.network)?;
        let trace_taps = self.flows.trace_taps(case, &self.plan, &self.network)?;
        let agents: Vec<_> = self.tunnels.ues.values().map(|r| r.agent.clone()).collect();
        let told = [&self.tunnels.ues, &self.tunnels.upfs]
            .map(|ends| ends.iter().map(|(name, r)| (name.clone(), r.agent.clone())).collect::<Vec<_>>());
        let cell_agents = self.cells.agents();
        let pids: Vec<u32> = self.tunnels.all().map(|(_, r)| r.program.pid()).collect();

        let begin_ns = traffic::now_ns() + u64::try_from(START_DELAY.as_nanos()).unwrap_or(0);
        let start = Instant::now() + START_DELAY;
        let observed = self.observed(begin_ns)?;
        self.flows.begin(begin_ns)?;
        let end = Stop::default();
        let Self { network, telemetry, tunnels, cells, lwips, flows, .. } = self;
        std::thread::scope(|scope| {
            let end = &end;
            let timeline = scope.spawn(move || ending(end, || timeline.run(network, start, end)));
            let network = scope.spawn(move || ending(end, || network::watch(watch, start, case.sample, end)));
            let tcp = scope.spawn(move || ending(end, || tcp::watch(tcp_watches, start, end)));
            let counted = ack_taps
                .into_iter()
                .map(|tap| scope.spawn(move || ending(end, || acks::watch(tap, start, end))));
            let counted: Vec<_> = counted.collect();
            let traced = trace_taps
                .into_iter()
                .map(|tap| scope.spawn(move || ending(end, || traces::watch(tap, end))));
            let traced: Vec<_> = traced.collect();
            let agents = &agents;
            let rtts = scope.spawn(move || ending(end, || ends::rtts(agents, start, case.sample, end)));
            let watched = cell_agents.into_iter().map(|(name, agent)| {
                let watch = move || ending(end, || cells::watch(&agent, begin_ns, start, case.sample, end));
                (name, scope.spawn(watch))
            });
            let watched: Vec<_> = watched.collect();
            let usage = scope.spawn(move || ends::usage(&pids, start, end));
            let looking = observer.map(|observer| {
                let observed = &observed;
                scope.spawn(move || ending(end, || observer.observe(observed, start, end)))
            });
            let told = told.map(|agents| {
                let listen = |(name, agent): (String, Agent)| {
                    let events = move || ending(end, || ends::events(&agent, begin_ns / 1_000_000, end));
                    (name, scope.spawn(events))
                };
                agents.into_iter().map(listen).collect::<Vec<_>>()
            });
            let looked = look_after((tunnels, cells, lwips, telemetry), flows, start, end, stop, progress);
            let end_s = start.elapsed().as_secs_f64().min(case.duration.as_secs_f64());
            end.request();
            let told = told.map(|threads| {
                let joined = threads.into_iter().map(|(name, t)| Ok((name, join(t)??)));
                joined.collect::<Result<BTreeMap<_, _>>>()
            });
            let [ues, upfs] = told;
            let watched = watched.into_iter().map(|(name, thread)| Ok((name, join(thread)??)));
            let watched = watched.collect::<Result<BTreeMap<_, _>>>();
            let counted = counted.into_iter().map(join).collect::<Result<Vec<_>>>();
            let traced = traced.into_iter().map(join).collect::<Result<Vec<_>>>();
            let seen = (join(timeline)?, join(network)?, join(tcp)?, join(rtts)?, join(usage)?);
            let looking = looking.map(join).transpose()?;
            // Report the first cause: the log of a program that ended is clearer than a missing answer.
            looked?;
            looking.transpose()?;
            let (events, network, tcp, rtts, usage) = seen;
            Ok(Observations {
                begin_ns,
                end_s,
                events: events?,
                network: network?,
                tcp: tcp?,
                acks: counted?.into_iter().collect::<Result<Vec<_>>>()?.into_iter().flatten().collect(),
                traces: traced?.into_iter().collect::<Result<Vec<_>>>()?.into_iter().flatten().collect(),
                rtts: rtts?,
                events_by_end: [ues?, upfs?],
                cells: watched?,
                usage,
            })
        })
    }

    fn observed(&self, begin_ns: u64) -> Result<ObservedRun> {
        let mut ues = Vec::new();
        for (name, plan) in &self.plan.ues {
            ues.push(ObservedUe {
                name: name.clone(),
                space: self.network.space(&plan.space)?.clone(),
                accesses: self.accesses(plan),
                agent: self.tunnels.ues.get(name).map(|r| r.agent.clone()),
            });
        }
        Ok(ObservedRun {
            begin_unix_ms: begin_ns / 1_000_000,
            spaces: self.network.spaces.values().cloned().collect(),
            ues,
            upfs: self.tunnels.upfs.values().map(|r| r.agent.clone()).collect(),
            downloads: self.flows.downloads(),
        })
    }

    fn accesses(&self, plan: &UePlan) -> Vec<Access> {
        let access = |a: &plan::AccessPlan| {
            // A TUN interface has no frames.
            let bare = a.cell && self.device == Device::Tun;
            let header_bytes = if bare { 0 } else { ETHERNET_BYTES };
            Access { name: a.name.clone(), interface: a.interface.clone(), header_bytes }
        };
        plan.accesses.iter().map(access).collect()
    }

    fn network_watch(&self) -> Result<NetworkWatch> {
        let mut ues = Vec::new();
        for (name, plan) in &self.plan.ues {
            ues.push((name.clone(), self.network.space(&plan.space)?.clone(), self.accesses(plan)));
        }
        let mut links = BTreeMap::new();
        for (name, link) in &self.network.links {
            links.insert(name.clone(), link.connect()?);
        }
        Ok(NetworkWatch { ues, links })
    }
}

/// Waits until all flows are over.
fn look_after(
    (tunnels, cells, lwips, telemetry): (&mut Tunnels, &mut Cells, &mut Lwips, &mut Telemetry),
    flows: &mut Flows,
    start: Instant,
    end: &Stop,
    stop: &Stop,
    progress: &dyn Progress,
) -> Result<()> {
    let until = flows.until();
    loop {
        if stop.sleep(CHECK_INTERVAL) {
            bail!(Interrupted);
        }
        tunnels.check()?;
        cells.check()?;
        lwips.check()?;
        telemetry.check()?;
        let elapsed = start.elapsed();
        progress.at(elapsed.as_secs_f64() / until.as_secs_f64());
        if flows.over()? {
            return Ok(());
        }
        if end.requested() {
            // Another part has failed and reports the reason.
            return Ok(());
        }
        if elapsed > until + REPORTS {
            bail!("traffic did not end {} s after it should have", REPORTS.as_secs());
        }
    }
}

/// Runs `body`; if it fails, requests the end of all other parts.
fn ending<T>(end: &Stop, body: impl FnOnce() -> Result<T>) -> Result<T> {
    let result = body();
    if result.is_err() {
        end.request();
    }
    result
}

fn join<T>(thread: std::thread::ScopedJoinHandle<'_, T>) -> Result<T> {
    thread.join().map_err(|panic| {
        let what = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
        anyhow::anyhow!("an observer panicked: {}", what.unwrap_or_default())
    })
}

fn keep_logs(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to).with_context(|| format!("--logs: {}", to.display()))?;
    for entry in std::fs::read_dir(from).context("logs")? {
        let path = entry.context("logs")?.path();
        let kept = path.extension().is_some_and(|e| e == "log" || e == "toml");
        if let (true, Some(name)) = (kept, path.file_name()) {
            std::fs::copy(&path, to.join(name)).with_context(|| format!("--logs: {}", to.display()))?;
        }
    }
    Ok(())
}
