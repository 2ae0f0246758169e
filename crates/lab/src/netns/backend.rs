//! One run of a scenario in namespaces, from nothing to its metrics.

use super::agent::{Agent, Event};
use super::cells::{self, Cells};
use super::flows::Flows;
use super::lwips::Lwips;
use super::observe::network::{Access, ETHERNET_BYTES};
use super::observe::{
    AcksSeen, NetworkSeen, NetworkWatch, TcpSeen, TracesSeen, acks, ends, network, tcp, traces,
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
    /// Where logs are copied to.
    logs: Option<PathBuf>,
    onlooker: Option<Box<dyn Onlooker>>,
    runs: AtomicU32,
}

impl std::fmt::Debug for NetnsBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NetnsBackend").field("device", &self.device).finish_non_exhaustive()
    }
}

/// Somebody who looks on while a scenario runs.
pub trait Onlooker: Sync {
    /// Called in a thread of its own when the run begins; returns soon after the end is asked for.
    ///
    /// # Errors
    /// What it looks at does not answer; ends the run.
    fn look(&self, scene: &Scene, start: Instant, end: &Stop) -> Result<()>;

    /// Called when the run is over and measured, while everything is still there.
    ///
    /// # Errors
    /// As its own.
    fn over(&self, scene: &Scene, outcome: &Outcome) -> Result<()>;
}

/// What there is to look at.
#[derive(Debug, Clone)]
pub struct Scene {
    /// The beginning on the wall clock, Unix milliseconds.
    pub begin_unix_ms: u64,
    /// Namespaces, by name.
    pub spaces: Vec<Space>,
    /// UEs.
    pub ues: Vec<SceneUe>,
    /// UPFs with a tunnel.
    pub upfs: Vec<Agent>,
    /// Files that curl fetches: flow, copy, bytes and address.
    pub downloads: Vec<Download>,
}

/// A UE to look at.
#[derive(Debug, Clone)]
pub struct SceneUe {
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub space: Space,
    /// Its accesses.
    pub accesses: Vec<Access>,
    /// Its agent, if it has a tunnel.
    pub agent: Option<Agent>,
}

/// A file that curl fetches.
#[derive(Debug, Clone)]
pub struct Download {
    /// The flow.
    pub flow: String,
    /// The copy.
    pub copy: PathBuf,
    /// How long it will be.
    pub bytes: u64,
    /// Where it is fetched from.
    pub url: String,
}

/// From the order to begin to the beginning.
const LEAD: Duration = Duration::from_millis(50);
/// How often the run is looked after.
const LOOK: Duration = Duration::from_millis(10);
/// How long processes may take to write their reports.
const REPORTS: Duration = Duration::from_secs(10);

impl NetnsBackend {
    /// In this sandbox; `logs` is a folder for the logs of all programs.
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
            onlooker: None,
            runs: AtomicU32::new(0),
        })
    }

    /// With somebody who looks on.
    #[must_use]
    pub fn with_onlooker(self, onlooker: Box<dyn Onlooker>) -> Self {
        Self { onlooker: Some(onlooker), ..self }
    }

    /// How packets get into tunnels here.
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
        // It is in memory, and gone with the sandbox at the latest.
        let _ = std::fs::remove_dir_all(&folder);
        result
    }
}

/// A run that can be looked at. Taken down in this order.
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

/// Everything that was seen.
pub(super) struct Seen {
    /// The beginning on the wall clock.
    pub begin_ns: u64,
    /// Length of the run, seconds: less than planned if all transfers were done before.
    pub end_s: f64,
    /// What happened when.
    pub events: Vec<(f64, String)>,
    /// Interfaces and links.
    pub network: NetworkSeen,
    /// TCP senders.
    pub tcp: BTreeMap<String, TcpSeen>,
    /// Acknowledgments that reached them.
    pub acks: BTreeMap<String, AcksSeen>,
    /// Data that reached receivers, with traces.
    pub traces: BTreeMap<String, TracesSeen>,
    /// RTTs of paths.
    pub rtts: ends::Rtts,
    /// Events of each tunnel end by its name; UEs and UPFs apart.
    pub told: [BTreeMap<String, Vec<Event>>; 2],
    /// Cells by name.
    pub cells: BTreeMap<String, cells::Watched>,
    /// What processes used.
    pub usage: BTreeMap<u32, ends::Usage>,
}

impl NetnsBackend {
    fn run_in(&self, folder: &Path, case: &Case, seed: u64, progress: &dyn Progress) -> Result<Outcome> {
        let stop = &*self.sandbox.stop;
        let plan = plan::lay_out(case)?;
        // Before the network, whose routes name the controllers.
        let mut telemetry = Telemetry::load(&plan, self.sandbox.rootless, folder, stop, progress)?;
        progress.doing("making the network");
        let network = Network::make(&plan, seed, folder, stop)?;
        senders::set(case, &plan, &network)?;
        let cells = Cells::start(case, &plan, &network, seed, self.device, folder, stop)?;
        let lwips = Lwips::start(case, &plan, &network, self.device, folder, stop)?;
        progress.doing("connecting");
        let tunnels = Tunnels::start(case, &plan, &network, seed, self.device, folder, stop)?;
        // They may sit on interfaces that a cell or a tunnel made.
        telemetry.start_sources(&plan, &network, folder, stop)?;
        let flows = Flows::start(case, &plan, &network, (&tunnels, &telemetry), seed, folder, stop)?;
        progress.doing(case.variant.as_deref().unwrap_or("running"));
        let mut run =
            Run { case, plan, network, telemetry, cells, lwips, tunnels, flows, device: self.device };
        let onlooker = self.onlooker.as_deref();
        let mut seen = run.observe(seed, stop, progress, onlooker)?;
        run.telemetry.keep_counters(folder)?;
        let mut out = Outcome { facts: self.facts(case)?, ..Outcome::default() };
        run.flows.measure(case, &seen, &mut out)?;
        outcome::network(case, &seen, &mut out);
        cells::measure(case, std::mem::take(&mut seen.cells), seen.end_s, &mut out);
        run.lwips.measure(&mut out)?;
        outcome::ends(case, &run.tunnels, &seen, &mut out)?;
        out.events = seen.events;
        if let Some(onlooker) = onlooker {
            onlooker.over(&run.scene(seen.begin_ns)?, &out)?;
        }
        Ok(out)
    }

    /// What a reader must know to judge the numbers.
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
    /// Begins, looks after everything until it is over, and puts together what was seen.
    fn observe(
        &mut self,
        seed: u64,
        stop: &Stop,
        progress: &dyn Progress,
        onlooker: Option<&dyn Onlooker>,
    ) -> Result<Seen> {
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

        let begin_ns = traffic::now_ns() + u64::try_from(LEAD.as_nanos()).unwrap_or(0);
        let start = Instant::now() + LEAD;
        let scene = self.scene(begin_ns)?;
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
            let looking = onlooker.map(|onlooker| {
                let scene = &scene;
                scope.spawn(move || ending(end, || onlooker.look(scene, start, end)))
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
            // The first cause is told: what ended a program shows in its log better than in a lost answer.
            looked?;
            looking.transpose()?;
            let (events, network, tcp, rtts, usage) = seen;
            Ok(Seen {
                begin_ns,
                end_s,
                events: events?,
                network: network?,
                tcp: tcp?,
                acks: counted?.into_iter().collect::<Result<Vec<_>>>()?.into_iter().flatten().collect(),
                traces: traced?.into_iter().collect::<Result<Vec<_>>>()?.into_iter().flatten().collect(),
                rtts: rtts?,
                told: [ues?, upfs?],
                cells: watched?,
                usage,
            })
        })
    }

    fn scene(&self, begin_ns: u64) -> Result<Scene> {
        let mut ues = Vec::new();
        for (name, plan) in &self.plan.ues {
            ues.push(SceneUe {
                name: name.clone(),
                space: self.network.space(&plan.space)?.clone(),
                accesses: self.accesses(plan),
                agent: self.tunnels.ues.get(name).map(|r| r.agent.clone()),
            });
        }
        Ok(Scene {
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
        if stop.sleep(LOOK) {
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
            // Somebody else has failed, and says why.
            return Ok(());
        }
        if elapsed > until + REPORTS {
            bail!("traffic did not end {} s after it should have", REPORTS.as_secs());
        }
    }
}

/// Runs `body`; if it fails, everybody is to stop.
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
