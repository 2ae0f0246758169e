//! The traffic of a scenario: its processes, what to watch of it in the kernel, and its metrics.

use super::backend::{Download, Seen};
use super::diag::{Diag, Side};
use super::group::Group;
use super::observe::{AckTap, TcpSeen, TcpWatch, TraceTap};
use super::outcome;
use super::plan::{Plan, ServerPlan, UePlan, lwip_addresses};
use super::program::{self, Interrupted, Program};
use super::slices::{self, Choice};
use super::stop::Stop;
use super::telemetry::Telemetry;
use super::tools::{self, Tool};
use super::topology::{Network, READY};
use super::traffic::{
    self, Answer, Bursts, Delivered, Exchange, Schedule, Setup, Stream, Task, UdpEcho, UdpReceive, UdpSend,
    Wait,
};
use super::tunnels::Tunnels;
use super::web::Web;
use crate::backend::{Outcome, Series};
use crate::measure::{self, Arrival, Times};
use crate::scenario::file::{self, CongestionControl, Direction};
use crate::scenario::model::{Case, Flow, Traffic, Via, run_seed};
use anyhow::{Context, Result, anyhow, bail};
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// All flows of a scenario, ready or at work. Their processes end when it is dropped.
#[derive(Debug)]
pub struct Flows {
    running: Vec<RunningFlow>,
    /// When the last of them is over, from the beginning of the run.
    until: Duration,
}

#[derive(Debug)]
struct RunningFlow {
    name: String,
    flow: Flow,
    /// The end that listens first.
    programs: Vec<Program>,
    /// Whether the processes end of themselves when all is transferred.
    finite: bool,
    received: PathBuf,
    sent: PathBuf,
    web: Option<Web>,
    tool: Option<Tool>,
    choice: Choice,
}

/// Seconds, and bytes delivered at them.
type Deliveries = Vec<(f64, u64)>;

/// The two ends of a flow in the network.
#[derive(Clone, Copy)]
struct Ends<'a> {
    ue_space: &'a str,
    server_space: &'a str,
    ue: SocketAddr,
    server: SocketAddr,
}

impl Flows {
    /// Starts the processes of all flows; when it returns they are ready to be told the beginning.
    ///
    /// # Errors
    /// One does not start.
    pub fn start(
        case: &Case,
        plan: &Plan,
        network: &Network,
        (tunnels, telemetry): (&Tunnels, &Telemetry),
        seed: u64,
        folder: &Path,
        stop: &Stop,
    ) -> Result<Self> {
        let until = case.duration + drain(case);
        let mut flows = Self { running: Vec::new(), until };
        let own = std::env::current_exe().context("the path of this program")?;
        for (number, (name, flow)) in (0..).zip(&case.flows) {
            let ends = ends(case, plan, flow)?;
            let choice = chosen(flow, &ends, network, tunnels).with_context(|| format!("flow {name}"))?;
            let ends =
                choice.local.map_or(ends, |local| Ends { ue: SocketAddr::new(local, flow.port), ..ends });
            let path = |what: &str| folder.join(format!("flow-{name}.{what}"));
            let (received, sent) = (path("received"), path("sent"));
            let when = Schedule::Told { start: flow.start, stop: flow.stop, until };
            let seed = run_seed(seed, number);
            let web = match (flow.program, &flow.traffic) {
                (file::Program::Curl, Traffic::BulkTcp { bytes: Some(bytes), .. }) => {
                    let space = network.space(ends.server_space)?;
                    let nginx = format!("flow-{name}-nginx");
                    Some(Web::start(space, &nginx, ends.server, *bytes, seed, folder, stop)?)
                }
                _ => None,
            };
            let group = telemetry.group_of(plan, name);
            let tool = tool(name, flow, &ends, network, group, folder, stop)?;
            let tasks = match (&web, &tool) {
                (Some(web), _) => {
                    let seconds = (until - flow.start).as_secs_f64();
                    let command = web.curl(ends.ue.ip(), seconds);
                    vec![("ue", ends.ue_space, Task::Command(Wait { when, command }))]
                }
                (None, Some(tool)) => {
                    let task = Task::Command(Wait { when, command: tool.command() });
                    let server = tools::server_asks(&flow.traffic);
                    let (end, space) =
                        if server { ("server", ends.server_space) } else { ("ue", ends.ue_space) };
                    vec![(end, space, task)]
                }
                (None, None) => {
                    let [server, ue] = tasks(flow, &ends, &choice, when, seed, &received, &sent);
                    vec![("server", ends.server_space, server), ("ue", ends.ue_space, ue)]
                }
            };
            let mut programs = Vec::new();
            for (end, space, task) in &tasks {
                let mut command = program::prompt(&own);
                command.arg("traffic").arg(serde_json::to_string(task).context("task")?);
                if let Some(group) = group {
                    command = group.within(&command);
                }
                let name = format!("flow-{name}-{end}");
                programs.push(Program::start_told(network.space(space)?, &name, &mut command, folder)?);
            }
            let finite = matches!(flow.traffic, Traffic::BulkTcp { bytes: Some(_), .. });
            flows.running.push(RunningFlow {
                name: name.clone(),
                flow: flow.clone(),
                programs,
                finite,
                received,
                sent,
                web,
                tool,
                choice,
            });
        }
        for program in flows.running.iter_mut().flat_map(|f| &mut f.programs) {
            let mut ready = false;
            // What it says can be read once only; `wait_ready` needs the process for itself.
            let deadline = Instant::now() + READY;
            while !ready {
                ready = program.says(traffic::READY);
                if !ready && (program.ended()?.is_some() || Instant::now() > deadline) {
                    bail!("{} did not get ready: {}", program.name(), program.log_tail());
                }
                if !ready && stop.sleep(Duration::from_millis(2)) {
                    bail!(Interrupted);
                }
            }
        }
        Ok(flows)
    }

    /// The run began then, on the wall clock.
    ///
    /// # Errors
    /// A process does not listen.
    pub fn begin(&mut self, begin_ns: u64) -> Result<()> {
        let mut programs = self.running.iter_mut().flat_map(|f| &mut f.programs);
        programs.try_for_each(|p| p.tell(&begin_ns.to_string()))
    }

    /// When the last packets have been waited for.
    #[must_use]
    pub const fn until(&self) -> Duration {
        self.until
    }

    /// Whether all have ended; an error if one failed.
    ///
    /// # Errors
    /// Which, and the end of its log.
    pub fn over(&mut self) -> Result<bool> {
        let mut over = true;
        for of in &mut self.running {
            if let Some(web) = &mut of.web {
                web.check()?;
            }
            if let Some(tool) = &mut of.tool {
                tool.check()?;
            }
            for program in &mut of.programs {
                match program.ended()? {
                    None => over = false,
                    Some(status) if status.success() => {}
                    // curl ran out of time or lost its connection: that is a result, and it is measured.
                    Some(_) if of.web.is_some() => {}
                    Some(status) => bail!("{} failed ({status}): {}", program.name(), program.log_tail()),
                }
            }
        }
        Ok(over)
    }

    /// Whether there is nothing but transfers of a size, so that the run is over when they are.
    #[must_use]
    pub fn finite(&self) -> bool {
        self.running.iter().all(|f| f.finite)
    }

    /// Files that curl fetches.
    #[must_use]
    pub fn downloads(&self) -> Vec<Download> {
        let download = |of: &RunningFlow| {
            let Traffic::BulkTcp { bytes: Some(bytes), .. } = of.flow.traffic else { return None };
            let web = of.web.as_ref()?;
            Some(Download {
                flow: of.name.clone(),
                copy: web.copy().to_owned(),
                bytes,
                url: web.url().to_owned(),
            })
        };
        self.running.iter().filter_map(download).collect()
    }

    /// What to watch of TCP flows in the kernel.
    ///
    /// # Errors
    /// The kernel has no sock_diag.
    pub fn watches(&self, case: &Case, plan: &Plan, network: &Network) -> Result<Vec<TcpWatch>> {
        let mut watches = Vec::new();
        for of in &self.running {
            if !of.flow.traffic.is_tcp() {
                continue;
            }
            let ends = ends(case, plan, &of.flow)?;
            let ((space, side), far) = of.tcp_ends(&ends);
            let receiver = match (&of.web, &of.tool) {
                (None, None) => None,
                _ => Some((Diag::open(network.space(far.0)?)?, far.1)),
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

    /// The acknowledgments that reach senders, by namespace.
    ///
    /// # Errors
    /// There are no packet sockets here.
    pub fn ack_taps(&self, case: &Case, plan: &Plan, network: &Network) -> Result<Vec<AckTap>> {
        let mut by_space = BySpace::new();
        for of in self.running.iter().filter(|of| of.flow.traffic.is_tcp()) {
            let ends = ends(case, plan, &of.flow)?;
            add(&mut by_space, of, of.tcp_ends(&ends).0);
        }
        by_space.into_iter().map(|(space, flows)| AckTap::open(network.space(space)?, flows)).collect()
    }

    /// The data that reaches receivers of flows with telemetry, by namespace.
    ///
    /// # Errors
    /// There are no packet sockets here.
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
    pub(super) fn measure(&self, case: &Case, seen: &Seen, out: &mut Outcome) -> Result<()> {
        for of in &self.running {
            of.measure(case, seen, out).with_context(|| format!("flow {}", of.name))?;
        }
        Ok(())
    }
}

/// Flows by the namespace in which they are listened to.
type BySpace<'a> = BTreeMap<&'a str, Vec<(String, Side)>>;

fn add<'a>(by_space: &mut BySpace<'a>, of: &RunningFlow, (space, side): (&'a str, Side)) {
    by_space.entry(space).or_default().push((of.name.clone(), side));
}

impl RunningFlow {
    /// Namespace of the sending and of the receiving end, and by which port their sockets are known there.
    fn tcp_ends<'a>(&self, ends: &Ends<'a>) -> ((&'a str, Side), (&'a str, Side)) {
        let port = self.flow.port;
        // The server sends the answers, and what goes down; its sockets are known by their own port, unless
        // it is the sender that asks.
        let up = self.flow.traffic.is_upload();
        let listens = if self.tool.is_some() { up } else { true };
        let (at_ue, at_server) = if listens {
            (Side::Remote(port), Side::Local(port))
        } else {
            (Side::Local(port), Side::Remote(port))
        };
        let [at_ue, at_server] = [(ends.ue_space, at_ue), (ends.server_space, at_server)];
        if up { (at_ue, at_server) } else { (at_server, at_ue) }
    }

    fn measure(&self, case: &Case, seen: &Seen, out: &mut Outcome) -> Result<()> {
        let tcp = seen.tcp.get(&self.name);
        let acks = tcp.map(|_| seen.acks.get(&self.name).cloned().unwrap_or_default());
        let seconds = |ns: u64| (i128::from(ns) - i128::from(seen.begin_ns)) as f64 * 1e-9;
        let mut times = Times {
            start_s: self.flow.start.as_secs_f64(),
            stop_s: self.flow.stop.as_secs_f64(),
            window_from_s: case.measure_from.as_secs_f64(),
            end_s: seen.end_s,
            sample_s: case.sample.as_secs_f64(),
        };
        let name = &self.name;
        match &self.flow.traffic {
            Traffic::Cbr { payload_bytes, .. } | Traffic::OnOff { payload_bytes, .. } => {
                let (sent, arrivals) = match &self.tool {
                    Some(tool) => {
                        let (sent, arrivals) = tool.packets(false)?;
                        (sent, placed(&arrivals, seconds))
                    }
                    None => {
                        let sent = std::fs::read_to_string(&self.sent).context("the sender's report")?;
                        (sent.trim().parse().context("the sender's report")?, self.arrivals(seconds)?)
                    }
                };
                measure::packets(out, name, sent, u64::from(*payload_bytes), &arrivals, &times);
            }
            Traffic::Ping { payload_bytes, .. } => {
                let answers = match &self.tool {
                    Some(tool) => placed(&tool.packets(true)?.1, seconds),
                    None => self.arrivals(seconds)?,
                };
                put(out, name, "responses", answers.len() as f64);
                let delays: Vec<(f64, f64)> =
                    answers.iter().map(|a| (a.arrived_s, (a.arrived_s - a.sent_s).max(0.0) * 1e3)).collect();
                measure::delay_metrics(out, name, "delay", &delays, &times);
                let delivered: Vec<(f64, u64)> =
                    answers.iter().map(|a| (a.arrived_s, u64::from(*payload_bytes))).collect();
                measure::deliveries(out, name, &delivered, &times);
            }
            Traffic::BulkTcp { bytes, .. } => {
                let (delivered, total, intact) = self.delivered(tcp, seen.end_s, seconds)?;
                if let Some(intact) = intact {
                    put(out, name, "intact", f64::from(u8::from(intact)));
                }
                if let Some(bytes) = bytes {
                    let completed = total >= *bytes;
                    put(out, name, "completed", f64::from(u8::from(completed)));
                    if let (true, Some((last, _))) = (completed, delivered.last()) {
                        put(out, name, "completion_s", last - times.start_s);
                        times.stop_s = times.stop_s.min(*last);
                    }
                }
                measure::deliveries(out, name, &delivered, &times);
            }
            Traffic::RequestResponse { response_bytes, .. } => {
                let answers: Vec<Answer> = self.report()?;
                put(out, name, "responses", answers.len() as f64);
                put(out, name, "intact", f64::from(u8::from(answers.iter().all(|a| a.intact))));
                let delays: Vec<(f64, f64)> = answers
                    .iter()
                    .map(|a| (seconds(a.answered_ns), a.answered_ns.saturating_sub(a.asked_ns) as f64 * 1e-6))
                    .collect();
                measure::delay_metrics(out, name, "response", &delays, &times);
                let delivered: Vec<(f64, u64)> =
                    delays.iter().map(|(t, _)| (*t, u64::from(*response_bytes))).collect();
                measure::deliveries(out, name, &delivered, &times);
            }
        }
        if self.flow.via == Via::Slices {
            put(out, name, "paths", self.choice.paths as f64);
            if let Some(window) = self.choice.window {
                put(out, name, "initial_window_segments", f64::from(window));
            }
        }
        if let Some(seen) = tcp {
            put(out, name, "retransmissions", seen.resent[0] as f64);
            put(out, name, "timeouts", seen.resent[1] as f64);
            put(out, name, "reordering_packets", seen.reordering as f64);
            let of = seen.recoveries;
            for (what, count) in [
                ("fast_retransmits", of.fast_recoveries),
                ("undos", of.undone),
                ("spurious_retransmissions", of.dsacks),
                ("reorderings", of.reorderings),
            ] {
                put(out, name, what, count as f64);
            }
            let cuts = (of.fast_recoveries + seen.resent[1]) as f64;
            put(out, name, "cuts_per_mb", cuts * 1e6 / seen.acked_bytes.max(1) as f64);
            out.series.insert(format!("flow.{name}.cwnd_bytes"), Series { points: seen.cwnd.clone() });
        }
        if self.flow.telemetry.is_some() {
            let cwnd = tcp.map_or(&[][..], |tcp| tcp.cwnd.as_slice());
            outcome::telemetry(name, acks.as_ref(), seen.traces.get(name), cwnd, &times, out);
        }
        if let Some(acks) = acks {
            put(out, name, "duplicate_acks", acks.duplicates as f64);
            put(out, name, "triple_duplicates", acks.triples as f64);
            out.series.insert(format!("flow.{name}.triple_duplicates"), Series { points: acks.triples_by });
        }
        Ok(())
    }

    /// When how much was delivered, how much in all, and whether all of it is as it was sent, if that is known.
    fn delivered(
        &self,
        tcp: Option<&TcpSeen>,
        end_s: f64,
        seconds: impl Fn(u64) -> f64,
    ) -> Result<(Deliveries, u64, Option<bool>)> {
        if let Some(tool) = &self.tool {
            let total = tool.received_bytes()?;
            return Ok((whole(tcp, total), total, None));
        }
        let Some(web) = &self.web else {
            let report: Delivered = self.report()?;
            let delivered: Vec<(f64, u64)> =
                report.deliveries.iter().map(|(ns, n)| (seconds(*ns), *n)).collect();
            let total = delivered.iter().map(|(_, n)| n).sum();
            return Ok((delivered, total, Some(report.intact)));
        };
        let total = std::fs::metadata(web.copy()).map_or(0, |m| m.len());
        let intact = total > 0 && web.sums().map(|[file, copy]| file == copy)?;
        let mut delivered = whole(tcp, total);
        if intact {
            within(&mut delivered, end_s);
        }
        Ok((delivered, total, Some(intact)))
    }

    fn arrivals(&self, seconds: impl Fn(u64) -> f64) -> Result<Vec<Arrival>> {
        Ok(placed(&traffic::arrivals(&self.received)?, seconds))
    }

    fn report<T: DeserializeOwned>(&self) -> Result<T> {
        let text = std::fs::read_to_string(&self.received).context("the receiver's report")?;
        serde_json::from_str(&text).context("the receiver's report")
    }
}

/// What the kernel said was received when; what came after the last look at a socket came with it.
fn whole(tcp: Option<&TcpSeen>, total: u64) -> Deliveries {
    let mut delivered = tcp.map(|t| t.received.clone()).unwrap_or_default();
    let seen: u64 = delivered.iter().map(|(_, bytes)| bytes).sum();
    if let Some((_, bytes)) = delivered.last_mut() {
        *bytes += total.saturating_sub(seen);
    }
    delivered
}

/// A file that is there was there at the end of the run, though the last look was a little later.
fn within(delivered: &mut Deliveries, end_s: f64) {
    for (at, _) in delivered {
        *at = at.min(end_s);
    }
}

/// Packets in the time of the run.
fn placed(arrivals: &[traffic::Arrival], seconds: impl Fn(u64) -> f64) -> Vec<Arrival> {
    let place = |a: &traffic::Arrival| Arrival {
        number: a.number,
        sent_s: seconds(a.sent_ns),
        arrived_s: seconds(a.arrived_ns),
    };
    arrivals.iter().map(place).collect()
}

/// iperf3 or irtt, if the flow is theirs: the end that listens is started.
fn tool(
    name: &str,
    flow: &Flow,
    ends: &Ends<'_>,
    network: &Network,
    group: Option<&Group>,
    folder: &Path,
    stop: &Stop,
) -> Result<Option<Tool>> {
    let (space, addresses) = if tools::server_asks(&flow.traffic) {
        (ends.ue_space, [ends.server, ends.ue])
    } else {
        (ends.server_space, [ends.ue, ends.server])
    };
    let (space, name) = (network.space(space)?, format!("flow-{name}"));
    Ok(match flow.program {
        file::Program::Iperf3 => Some(Tool::iperf3(space, &name, flow, addresses, group, folder, stop)?),
        file::Program::Irtt => Some(Tool::irtt(space, &name, flow, addresses, folder, stop)?),
        file::Program::Own | file::Program::Curl => None,
    })
}

fn put(out: &mut Outcome, flow: &str, name: &str, value: f64) {
    out.metrics.insert(format!("flow.{flow}.{name}"), value);
}

/// How long what is under way at the end may take: a full queue, the delay behind it, and reordering.
fn drain(case: &Case) -> Duration {
    // A full RLC buffer at a third of the cell's rate.
    let of_cell = |gnb: &crate::scenario::model::Gnb| {
        gnb.peak_mbps().map_or(1000.0, |mbps| (gnb.rlc_bytes as f64 * 24e-3 / mbps).min(1000.0))
    };
    let cells = case.gnbs.values().map(of_cell);
    let directions = case.links.values().flat_map(|l| [&l.up, &l.down]);
    let links = directions.map(|d| d.queue_ms.min(1000.0) + d.delay_ms + d.jitter_ms);
    let longest = links.chain(cells).fold(0.0, f64::max);
    crate::scenario::model::ms((longest + 200.0).clamp(300.0, 3000.0))
}

/// A rate that limits nobody: TCP paces at its own where a socket has one.
const PACED_BPS: u64 = 100_000_000_000;

/// How a flow is to be opened: as its UE's policy says, or as the scenario does.
fn chosen(flow: &Flow, ends: &Ends<'_>, network: &Network, tunnels: &Tunnels) -> Result<Choice> {
    let mut choice = match (&flow.via, tunnels.ues.get(&flow.ue)) {
        (Via::Slices, Some(ue)) => {
            slices::choose(&ue.agent, network.space(ends.ue_space)?, flow, ends.server)?
        }
        (via, _) => Choice { mptcp: *via == Via::Mptcp, ..Choice::default() },
    };
    if flow.paced && choice.setup.pacing_bps.is_none() {
        choice.setup.pacing_bps = Some(PACED_BPS);
    }
    Ok(choice)
}

fn ends<'a>(case: &Case, plan: &'a Plan, flow: &Flow) -> Result<Ends<'a>> {
    let ue: &UePlan = plan.ues.get(&flow.ue).ok_or_else(|| anyhow!("no UE {}", flow.ue))?;
    let server: &ServerPlan =
        plan.servers.get(&flow.server).ok_or_else(|| anyhow!("no server {}", flow.server))?;
    let access_of = |name: &str| ue.accesses.iter().find(|a| a.name == name);
    let access = |name: &str| access_of(name).map(|a| a.address);
    let cc = flow.traffic.congestion_control().unwrap_or(CongestionControl::Cubic);
    if let (true, Via::Direct(name)) = (flow.ipv6, &flow.via) {
        let own = access_of(name).ok_or_else(|| anyhow!("UE {} has no such access", flow.ue))?;
        return Ok(Ends {
            ue_space: &ue.space,
            server_space: &server.space,
            ue: SocketAddr::new(own.address6.into(), flow.port),
            server: SocketAddr::new(server.address6(cc).into(), flow.port),
        });
    }
    let own = match &flow.via {
        Via::Atsss => Some(ue.inner),
        Via::Direct(name) => access(name),
        // Where it leaves, its mark or the routes say.
        Via::Slices => Some(Ipv4Addr::UNSPECIFIED),
        Via::Mptcp => case.ues[&flow.ue].accesses.first().and_then(|a| access(&a.name)),
        Via::Lwip(node) => {
            let number = case.lwips.keys().position(|name| name == node);
            number.map(|number| lwip_addresses(case, number, &flow.ue)[0])
        }
    };
    let own = own.ok_or_else(|| anyhow!("UE {} has no such access", flow.ue))?;
    Ok(Ends {
        ue_space: &ue.space,
        server_space: &server.space,
        ue: SocketAddr::new(IpAddr::V4(own), flow.port),
        server: SocketAddr::new(IpAddr::V4(server.address(cc)), flow.port),
    })
}

/// What the processes of a flow do: first that at the server, then that at the UE.
fn tasks(
    flow: &Flow,
    ends: &Ends<'_>,
    choice: &Choice,
    when: Schedule,
    seed: u64,
    received: &Path,
    sent: &Path,
) -> [Task; 2] {
    let setup = |ue: bool| if ue { choice.setup.clone() } else { Setup::default() };
    let (received, sent) = (received.to_owned(), sent.to_owned());
    let udp = |direction: Direction, rate_bps, payload_bytes: u32, bursts| {
        let down = direction == Direction::Down;
        let (from, to) = if down { (ends.server, ends.ue) } else { (ends.ue, ends.server) };
        let payload_bytes = payload_bytes as usize;
        let send = Task::UdpSend(UdpSend {
            bind: from,
            to,
            when,
            rate_bps,
            payload_bytes,
            bursts,
            setup: setup(!down),
            report: sent.clone(),
        });
        let receive = Task::UdpReceive(UdpReceive { bind: to, when, report: received.clone() });
        if down { [send, receive] } else { [receive, send] }
    };
    match flow.traffic.clone() {
        Traffic::Cbr { direction, rate_bps, payload_bytes } => udp(direction, rate_bps, payload_bytes, None),
        Traffic::OnOff { direction, rate_bps, payload_bytes, on, off } => {
            udp(direction, rate_bps, payload_bytes, Some(Bursts { on, off, seed }))
        }
        Traffic::Ping { interval, payload_bytes } => {
            let payload_bytes = payload_bytes as usize;
            let rate_bps = (payload_bytes as f64 * 8.0 / interval.as_secs_f64()).round().max(1.0) as u64;
            let ask = UdpSend {
                bind: ends.ue,
                to: ends.server,
                when,
                rate_bps,
                payload_bytes,
                bursts: None,
                setup: setup(true),
                report: received,
            };
            [Task::UdpEcho(UdpEcho { bind: ends.server, when }), Task::UdpPing(ask)]
        }
        Traffic::BulkTcp { direction, bytes, limit_bps, .. } => {
            let one = |sends, local, to| Stream {
                local: Some(local),
                to,
                when,
                sends,
                bytes,
                limit_bps,
                mptcp: choice.mptcp,
                setup: setup(to.is_some()),
                report: received.clone(),
            };
            let down = direction == Direction::Down;
            [
                Task::StreamListen(one(down, ends.server, None)),
                Task::StreamConnect(one(!down, ends.ue, Some(ends.server))),
            ]
        }
        Traffic::RequestResponse { request_bytes, response_bytes, gap, reconnect, .. } => {
            let one = |local, to| Exchange {
                local: Some(local),
                to,
                when,
                request_bytes: request_bytes as usize,
                response_bytes: response_bytes as usize,
                gap,
                reconnect,
                mptcp: choice.mptcp,
                setup: setup(to.is_some()),
                report: received.clone(),
            };
            [
                Task::ExchangeListen(one(ends.server, None)),
                Task::ExchangeConnect(one(ends.ue, Some(ends.server))),
            ]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_after_the_last_look_counts() {
        let seen = TcpSeen { received: vec![(1.0, 700), (2.01, 200)], ..TcpSeen::default() };
        let mut delivered = whole(Some(&seen), 1000);
        assert_eq!(delivered, [(1.0, 700), (2.01, 300)]);
        within(&mut delivered, 2.0);
        assert_eq!(delivered, [(1.0, 700), (2.0, 300)]);
        assert_eq!(whole(Some(&seen), 800), seen.received, "headers count, too");
        assert!(whole(None, 5).is_empty());
    }
}
