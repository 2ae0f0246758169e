//! The traffic of a scenario: its processes, its observation in the kernel, and its metrics.

mod carrier;
mod ends;
mod measured;

use super::backend::{Download, Observations};
use super::diag::{Diag, Side};
use super::observe::{AckTap, TcpWatch, TraceTap};
use super::plan::Plan;
use super::program::{Interrupted, Program};
use super::slices::Choice;
use super::stop::Stop;
use super::telemetry::Telemetry;
use super::topology::{Network, READY};
use super::traffic::{self, Schedule};
use super::tunnels::Tunnels;
use crate::backend::Outcome;
use crate::scenario::model::{Case, Flow, Traffic, run_seed};
use anyhow::{Context, Result, bail};
use carrier::{Carrier, Start};
use ends::{Ends, chosen, ends};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

/// Maximum time to wait for a full queue to drain at the end, ms.
const MOST_QUEUE_MS: f64 = 1000.0;
/// Minimum time to wait for the last packets.
const LEAST_WAIT: Duration = Duration::from_millis(300);

/// All flows of a scenario, ready or running. Their processes end when this is dropped.
#[derive(Debug)]
pub struct Flows {
    running: Vec<RunningFlow>,
    /// End of the last flow, from the start of the run.
    until: Duration,
}

#[derive(Debug)]
struct RunningFlow {
    name: String,
    flow: Flow,
    /// The listening end first.
    programs: Vec<Program>,
    carrier: Carrier,
    choice: Choice,
}

impl Flows {
    /// Starts the processes of all flows, and waits until they are ready to receive the start time.
    ///
    /// # Errors
    /// A process does not start.
    pub fn start(
        case: &Case,
        plan: &Plan,
        network: &Network,
        (tunnels, telemetry): (&Tunnels, &Telemetry),
        seed: u64,
        folder: &Path,
        stop: &Stop,
    ) -> Result<Self> {
        let until = case.duration + case.under_way(MOST_QUEUE_MS).max(LEAST_WAIT);
        let mut flows = Self { running: Vec::new(), until };
        for (number, (name, flow)) in (0..).zip(&case.flows) {
            let ends = ends(case, plan, flow)?;
            let choice = chosen(flow, &ends, tunnels).with_context(|| format!("flow {name}"))?;
            let ends =
                choice.local.map_or(ends, |local| Ends { ue: SocketAddr::new(local, flow.port), ..ends });
            let when = Schedule::OnCommand { start: flow.start, stop: flow.stop, until };
            let (seed, choice_of, group) = (run_seed(seed, number), &choice, telemetry.group_of(plan, name));
            let start = Start {
                name,
                flow,
                ends,
                choice: choice_of,
                network,
                group,
                when,
                until,
                seed,
                folder,
                stop,
            };
            let (carrier, processes) = Carrier::start(&start).with_context(|| format!("flow {name}"))?;
            let mut programs = Vec::new();
            for (end, space, mut command) in processes {
                if let Some(group) = group {
                    command = group.within(&command);
                }
                // Some clients connect before the run begins, so the previous end must be listening by then.
                if let Some(listens) = programs.last_mut() {
                    wait_told(listens, stop)?;
                }
                let name = format!("flow-{name}-{end}");
                programs.push(Program::start_told(network.space(space)?, &name, &mut command, folder)?);
            }
            flows.running.push(RunningFlow {
                name: name.clone(),
                flow: flow.clone(),
                programs,
                carrier,
                choice,
            });
        }
        for last in flows.running.iter_mut().filter_map(|f| f.programs.last_mut()) {
            wait_told(last, stop)?;
        }
        Ok(flows)
    }

    /// Passes the start of the run, on the wall clock, to all processes.
    ///
    /// # Errors
    /// A process does not read its input.
    pub fn begin(&mut self, begin_ns: u64) -> Result<()> {
        let mut programs = self.running.iter_mut().flat_map(|f| &mut f.programs);
        programs.try_for_each(|p| p.write_line(&begin_ns.to_string()))
    }

    /// Time until which the last packets are awaited.
    #[must_use]
    pub const fn until(&self) -> Duration {
        self.until
    }

    /// Whether all processes have ended.
    ///
    /// # Errors
    /// The process that failed, with the end of its log.
    pub fn over(&mut self) -> Result<bool> {
        let mut over = true;
        for of in &mut self.running {
            of.carrier.check()?;
            for program in &mut of.programs {
                match program.ended()? {
                    None => over = false,
                    Some(status) if status.success() => {}
                    // A timeout or lost connection of curl is a result, and is measured.
                    Some(_) if matches!(of.carrier, Carrier::Curl(_)) => {}
                    Some(status) => bail!("{} failed ({status}): {}", program.name(), program.log_tail()),
                }
            }
        }
        Ok(over)
    }

    /// Files downloaded by curl.
    #[must_use]
    pub fn downloads(&self) -> Vec<Download> {
        let download = |of: &RunningFlow| {
            let Traffic::BulkTcp { bytes: Some(bytes), .. } = of.flow.traffic else { return None };
            let Carrier::Curl(web) = &of.carrier else { return None };
            Some(Download {
                flow: of.name.clone(),
                copy: web.copy().to_owned(),
                bytes,
                url: web.url().to_owned(),
            })
        };
        self.running.iter().filter_map(download).collect()
    }

    /// TCP flows to observe in the kernel.
    ///
    /// # Errors
    /// The kernel has no sock_diag.
    pub fn watches(&self, case: &Case, plan: &Plan, network: &Network) -> Result<Vec<TcpWatch>> {
        let mut watches = Vec::new();
        for of in &self.running {
            if !of.flow.is_kernel_tcp() {
                continue;
            }
            let ends = ends(case, plan, &of.flow)?;
            let ((space, side), far) = of.tcp_ends(&ends);
            let receiver = match of.carrier.is_watched_at_receiver() {
                false => None,
                true => Some((Diag::open(network.space(far.0)?)?, far.1)),
            };
            watches.push(TcpWatch {
                flow: of.name.clone(),
                sender: (Diag::open(network.space(space)?)?, side),
                space: network.space(space)?.clone(),
                receiver,
                mptcp: of.choice.mptcp,
            });
        }
        Ok(watches)
    }

    /// Taps for the acknowledgments received by senders, by namespace.
    ///
    /// # Errors
    /// Packet sockets are not available.
    pub fn ack_taps(&self, case: &Case, plan: &Plan, network: &Network) -> Result<Vec<AckTap>> {
        let mut by_space = BySpace::new();
        for of in self.running.iter().filter(|of| of.flow.is_kernel_tcp()) {
            let ends = ends(case, plan, &of.flow)?;
            add(&mut by_space, of, of.tcp_ends(&ends).0);
        }
        by_space.into_iter().map(|(space, flows)| AckTap::open(network.space(space)?, flows)).collect()
    }

    /// Taps for the data received by flows with telemetry, by namespace.
    ///
    /// # Errors
    /// Packet sockets are not available.
    pub fn trace_taps(&self, case: &Case, plan: &Plan, network: &Network) -> Result<Vec<TraceTap>> {
        let mut by_space = BySpace::new();
        for of in self.running.iter().filter(|of| of.flow.telemetry.is_some()) {
            let ends = ends(case, plan, &of.flow)?;
            add(&mut by_space, of, of.tcp_ends(&ends).1);
        }
        by_space.into_iter().map(|(space, flows)| TraceTap::open(network.space(space)?, flows)).collect()
    }

    /// Metrics and series of all flows.
    ///
    /// # Errors
    /// A process left no report.
    pub(super) fn measure(&self, case: &Case, seen: &Observations, out: &mut Outcome) -> Result<()> {
        for of in &self.running {
            of.measure(case, seen, out).with_context(|| format!("flow {}", of.name))?;
        }
        Ok(())
    }
}

/// Waits until a program reports that it is ready. Call it once per program, since the report is consumed.
fn wait_told(program: &mut Program, stop: &Stop) -> Result<()> {
    let deadline = Instant::now() + READY;
    while !program.says(traffic::READY) {
        if program.ended()?.is_some() || Instant::now() > deadline {
            bail!("{} did not get ready: {}", program.name(), program.log_tail());
        }
        if stop.sleep(Duration::from_millis(2)) {
            bail!(Interrupted);
        }
    }
    Ok(())
}

/// Flows by the namespace in which they are observed.
type BySpace<'a> = BTreeMap<&'a str, Vec<(String, Side)>>;

fn add<'a>(by_space: &mut BySpace<'a>, of: &RunningFlow, (space, side): (&'a str, Side)) {
    by_space.entry(space).or_default().push((of.name.clone(), side));
}

impl RunningFlow {
    /// Namespaces of the sender and the receiver, and the port that identifies their sockets there.
    fn tcp_ends<'a>(&self, ends: &Ends<'a>) -> ((&'a str, Side), (&'a str, Side)) {
        let port = self.flow.port;
        // For responses and downloads, the server is the sender. Its sockets are identified by their local port, unless the sender
        // opens the connection.
        let up = self.flow.traffic.is_upload();
        let listens = if matches!(self.carrier, Carrier::Tool(_)) { up } else { true };
        let (at_ue, at_server) = if listens {
            (Side::Remote(port), Side::Local(port))
        } else {
            (Side::Local(port), Side::Remote(port))
        };
        let [at_ue, at_server] = [(ends.ue_space, at_ue), (ends.server_space, at_server)];
        if up { (at_ue, at_server) } else { (at_server, at_ue) }
    }
}
