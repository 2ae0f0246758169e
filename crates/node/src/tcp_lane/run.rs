//! TCP lanes of UE and UPF: set-up, adaptation to rules and session, tear-down, and their REST
//! representation.

use super::{Carrier, Flow, Flows, Namespace, Threads, UeLane, UpfLane};
use crate::runtime::api;
use crate::runtime::config::{Device, UeLaneSection, UpfConfig, UpfLaneSection};
use crate::runtime::netctl::{self, Claim, FlowRule, Layer, Net, Step, Tproxy};
use crate::runtime::relay::{self, Bounds, Named};
use crate::runtime::views;
use crate::tcp_lane;
use anabranch_atsss::PathId;
use anabranch_atsss::session::Addresses;
use anabranch_atsss::ue::{Ue, UeCommand};
use anabranch_engine::device::Device as Queue;
use anabranch_engine::ends::UpfEnd;
use anabranch_engine::worker::{Handle, TunnelEnd, Worker};
use anabranch_rules::{Filter, Protocol};
use anabranch_steer::{Functionality, Lossy, PathSet, PathState, PathStates, Rule};
use anyhow::{Context, anyhow};
use ipnet::IpNet;
use socket2::Type;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::time::Instant;

/// Sessions for whose data there is memory at a UPF, if each has the most that it may have.
const SHARES: u64 = 8;
/// Time after which a failed lane is tried again.
const RETRY: Duration = Duration::from_secs(10);
/// Delay before needed endpoints are checked again, in which connections may open other subflows.
const RECHECK: Duration = Duration::from_secs(1);

/// Creates a namespace with the lane's device, one queue per worker.
async fn lane_namespace(mtu: u16, queues: usize) -> anyhow::Result<(Namespace, Vec<Queue>)> {
    let namespace = Namespace::new()?;
    let devices = namespace.run(move || Queue::tun(netctl::LANE_DEVICE, mtu, queues)).await?;
    Ok((namespace, devices))
}

/// Executes a plan in a namespace. It need not be undone, because it ends with the namespace.
async fn configure(namespace: &Namespace, plan: Vec<Step>) -> anyhow::Result<()> {
    let apply = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async { Net::open()?.apply(plan).await.map(drop) })
    };
    namespace.run(apply).await
}

/// Claims the mark of a lane, the next one, and the routing tables with these numbers.
async fn claim(mark: u32) -> anyhow::Result<Claim> {
    let claimed = tokio::task::spawn_blocking(move || Claim::numbers([mark, mark + 1])).await??;
    claimed.map_err(|number| {
        anyhow!(
            "[tcp_lane] mark = {mark}: another anabranch program in this network namespace has mark and routing table {number}: \
             stop it, or set another mark, two apart from others at least"
        )
    })
}

/// Control of the lane of a UE. The lane is created the first time that the UPF offers one and a rule requires it.
pub struct UeLaneControl {
    config: UeLaneSection,
    device: Device,
    /// Names of the accesses, by path.
    accesses: Vec<String>,
    net: Net,
    /// Whether the UPF offers a lane.
    pub offered: bool,
    /// States of the paths; their steady loss here is the lasting loss, the larger value of both directions.
    states: PathStates,
    /// Paths by which answers are overdue.
    overdue: PathSet,
    lossy: Lossy,
    running: Option<RunningUe>,
    /// Reason for a missing lane.
    trouble: Option<String>,
    /// Time of the last failure.
    failed_at: Option<Instant>,
}

struct RunningUe {
    lane: Arc<UeLane>,
    /// Paths without an endpoint, because they are down or their loss is too high.
    withdrawn: PathSet,
    /// Paths that are up, but whose loss is too high or by which answers are overdue.
    avoided: PathSet,
    /// Unusable paths that keep their endpoints, each with the number of connections that have no other subflow.
    needed: BTreeMap<PathId, usize>,
    /// Time of the next check of `needed`: connections may have opened other subflows by then.
    next_check: Option<Instant>,
    v6: bool,
    redirected: RedirectedFlows,
    /// The redirection of flows to the lane.
    layer: Layer,
    _claim: Claim,
    /// What runs on them ends with them.
    threads: Threads,
}

impl UeLaneControl {
    /// A lane that is not running.
    pub fn new(config: UeLaneSection, device: &Device, accesses: Vec<String>, net: Net) -> Self {
        Self {
            config,
            device: device.clone(),
            accesses,
            net,
            offered: false,
            states: PathStates::default(),
            overdue: PathSet::EMPTY,
            lossy: Lossy::NONE,
            running: None,
            trouble: None,
            failed_at: None,
        }
    }

    /// Removes the leftovers of a killed run, unless another program uses the mark.
    pub async fn clean(&self) -> anyhow::Result<()> {
        let Ok(_claim) = claim(self.config.mark).await else { return Ok(()) };
        self.net.clean_proxy(self.config.mark, &netctl::lane_table(&self.device.name)).await
    }

    /// Adapts the lane to the rules and the session; returns a description of the change, for the log.
    pub async fn update(
        &mut self,
        rules: &[Rule],
        addresses: Addresses,
        mtu: u16,
        worker: &Handle<Ue>,
    ) -> Option<String> {
        let redirected = RedirectedFlows::of(rules, addresses);
        let wanted = self.offered && redirected.redirects_any();
        let redirected = if wanted { redirected } else { RedirectedFlows::default() };
        if self.running.as_ref().is_some_and(|running| running.lane.addresses() != addresses) {
            // Flows of another session cannot be kept.
            self.stop(worker).await;
        }
        let had = self.trouble.take();
        let done = match (&self.running, addresses.v4) {
            (Some(running), _) if running.redirected == redirected => return None,
            (Some(_), _) => self.redirect(redirected).await.map(|()| format!("TCP lane: {}", count(rules))),
            (None, Some(session)) if wanted => {
                let started = self.start(session, addresses.v6, mtu, redirected, worker).await;
                started.map(|()| format!("TCP lane: {}", count(rules)))
            }
            _ => return None,
        };
        match done {
            Ok(what) => Some(what),
            Err(error) => {
                let trouble = if self.running.is_some() {
                    format!("the redirection to the TCP lane does not match the current rules: {error:#}")
                } else {
                    format!("no TCP lane, its flows use the packet lane: {error:#}")
                };
                self.trouble = Some(trouble.clone());
                self.failed_at = Some(Instant::now());
                // Reported once.
                (had.as_ref() != Some(&trouble)).then_some(trouble)
            }
        }
    }

    /// Whether it failed so recently that it is not tried again without a reason.
    pub fn is_backing_off(&self) -> bool {
        self.trouble.is_some() && self.failed_at.is_some_and(|at| at.elapsed() < RETRY)
    }

    async fn start(
        &mut self,
        session: Ipv4Addr,
        own_v6: Option<Ipv6Addr>,
        mtu: u16,
        redirected: RedirectedFlows,
        worker: &Handle<Ue>,
    ) -> anyhow::Result<()> {
        let claim = claim(self.config.mark).await?;
        let (namespace, mut devices) = lane_namespace(mtu, 1).await?;
        configure(&namespace, netctl::ue_lane_plan(session, paths(&self.accesses).end, mtu)).await?;
        let lane = Arc::new(UeLane::new(namespace, session, own_v6, worker.clone(), self.config.clone())?);
        let (threads, v6) = self.listen(&lane)?;
        let device = devices.pop();
        let take = move |worker: &mut Worker<Ue>, now| {
            worker.end.on_command(UeCommand::LaneAvoids(PathSet::EMPTY), now);
            worker.replace_lane(device)
        };
        worker.query(take).await??;
        let tproxy = self.tproxy(redirected.clone(), v6);
        match self.net.redirect(tproxy).await {
            Ok(layer) => {
                self.running = Some(RunningUe {
                    lane,
                    withdrawn: PathSet::EMPTY,
                    avoided: PathSet::EMPTY,
                    needed: BTreeMap::new(),
                    next_check: None,
                    v6,
                    redirected,
                    layer,
                    _claim: claim,
                    threads,
                });
                self.update_endpoints(worker).await;
                Ok(())
            }
            Err(error) => {
                close(worker).await;
                Err(error)
            }
        }
    }

    /// Starts to accept flows on threads of their own; also returns whether IPv6 is available.
    fn listen(&self, lane: &Arc<UeLane>) -> anyhow::Result<(Threads, bool)> {
        let threads = tcp_lane::threads(self.config.workers)?;
        let on = threads.handle().context("threads of the TCP lane")?;
        let mut v6 = true;
        for ip in [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)] {
            let at = SocketAddr::new(ip, self.config.port);
            let door =
                relay::intercepting_socket(at, Type::STREAM, socket2::Protocol::TCP, self.config.own_mark());
            let socket = match door {
                Err(error) if ip.is_ipv6() && relay::no_ipv6(&error) => {
                    v6 = false;
                    continue;
                }
                other => other.with_context(|| format!("[tcp_lane] port = {}: {at}", self.config.port))?,
            };
            socket.listen(relay::BACKLOG)?;
            let _on = on.enter();
            let listener = tokio::net::TcpListener::from_std(socket.into())?;
            on.spawn(tcp_lane::accept_programs(lane.clone(), listener));
        }
        on.spawn(relay::watch_memory(lane.flows.clone(), Bounds::of(self.config.memory_mb, 0, 1)));
        Ok((threads, v6))
    }

    async fn redirect(&mut self, redirected: RedirectedFlows) -> anyhow::Result<()> {
        let Some(running) = &self.running else { return Ok(()) };
        running.layer.replace(self.tproxy(redirected.clone(), running.v6)).await?;
        if let Some(running) = &mut self.running {
            running.redirected = redirected;
        }
        Ok(())
    }

    fn tproxy(&self, redirected: RedirectedFlows, v6: bool) -> Tproxy {
        Tproxy {
            table: netctl::lane_table(&self.device.name),
            mark: self.config.mark,
            port: self.config.port,
            v6,
            local: true,
            interfaces: self.config.interfaces.clone(),
            only_by: Some(self.device.name.clone()),
            except: Vec::new(),
            flows: redirected.own,
            forwarded: redirected.forwarded,
            keeps_source: false,
        }
    }

    /// A path came up or went down. While it is down and another is up, the kernel has no endpoint for it, so that data in
    /// flight on it is retransmitted on the others at once, not after a timeout of the sender. If the kernel refuses a
    /// change, flows continue unchanged. Returns the changes of other paths, for the log.
    pub async fn set_path(&mut self, path: PathId, up: bool, worker: &Handle<Ue>) -> Vec<api::Event> {
        let was = self.states.get(path);
        let state = if up { PathState::up(0) } else { PathState::DOWN };
        self.set(path, PathState { steady_loss_percent: was.steady_loss_percent, ..state }, worker).await
    }

    /// Sets the lasting loss of a path: the larger value of both directions, in percent. Above the limit the path is
    /// treated as down while another one is better, because data delayed on it also delays data of the other paths. Returns
    /// the changes, for the log.
    pub async fn set_loss(&mut self, path: PathId, percent: u8, worker: &Handle<Ue>) -> Vec<api::Event> {
        let state = PathState { steady_loss_percent: percent, ..self.states.get(path) };
        self.set(path, state, worker).await
    }

    async fn set(&mut self, path: PathId, state: PathState, worker: &Handle<Ue>) -> Vec<api::Event> {
        if self.states.get(path) == state {
            return Vec::new();
        }
        let late = self.late();
        self.states.set(path, state);
        self.update_avoided(late, worker).await
    }

    /// Sets whether answers by a path are overdue. It is then treated as down, because most probably it is, and withdrawing
    /// it takes some time; until an answer arrives, unless that is so for all paths.
    pub async fn set_overdue(&mut self, path: PathId, overdue: bool, worker: &Handle<Ue>) -> Vec<api::Event> {
        if self.overdue.contains(path) == overdue {
            return Vec::new();
        }
        let late = self.late();
        if overdue {
            self.overdue.insert(path);
        } else {
            self.overdue.remove(path);
        }
        self.update_avoided(late, worker).await
    }

    /// The paths to leave because answers are overdue: none if that is so for all.
    fn late(&self) -> PathSet {
        if self.states.up().without(self.overdue).is_empty() { PathSet::EMPTY } else { self.overdue }
    }

    /// `late`: the value of [`Self::late`] before the change.
    async fn update_avoided(&mut self, late: PathSet, worker: &Handle<Ue>) -> Vec<api::Event> {
        let had = self.running.as_ref().map(|running| running.avoided);
        self.update_endpoints(worker).await;
        let has = self.running.as_ref().map(|running| running.avoided);
        let Some((had, has)) = had.zip(has) else { return Vec::new() };
        let event = |path: PathId| {
            let (access, percent) = (self.access(path), self.states.get(path).steady_loss_percent);
            let limit = self.config.leave_loss_percent;
            let (kind, what) = if has.contains(path) {
                let late = self.late().contains(path);
                ("access-left", format!("leaves {access}: {}", why_left(late, percent, limit)))
            } else {
                let late = late.contains(path).then(|| self.overdue.contains(path));
                ("access-back", format!("may use {access} again: {}", why_back(late, percent, limit)))
            };
            api::Event { access: Some(access), ..views::event(kind, None, format!("TCP lane {what}")) }
        };
        let changed = had.without(has).union(has.without(had)).and(self.states.up());
        changed.iter().map(event).collect()
    }

    fn access(&self, path: PathId) -> String {
        self.accesses.get(usize::from(path)).cloned().unwrap_or_default()
    }

    /// Completes when [`Self::update_endpoints`] is due.
    pub async fn due(&self) {
        match self.running.as_ref().and_then(|running| running.next_check) {
            Some(at) => tokio::time::sleep_until(at).await,
            None => std::future::pending().await,
        }
    }

    /// Gives the kernel an endpoint for each usable path. An unusable path keeps its endpoint only while a connection has
    /// no other subflow, because the kernel opens none for a connection of which one end has sent all its data. Packets of
    /// an unusable path take another one in any case. Must be called repeatedly, because connections come and go.
    pub async fn update_endpoints(&mut self, worker: &Handle<Ue>) {
        let (up, limit) = (self.states.up(), self.config.leave_loss_percent);
        let usable = self.lossy.usable(up.without(self.late()), &self.states, limit);
        let all: PathSet = paths(&self.accesses).collect();
        let Some(running) = &mut self.running else { return };
        running.next_check = None;
        if usable.is_empty() {
            return;
        }
        let avoided = up.without(usable);
        // A worker that is too busy is notified at the next check.
        if avoided != running.avoided
            && worker
                .run(move |worker, now| worker.end.on_command(UeCommand::LaneAvoids(avoided), now))
                .is_ok()
        {
            running.avoided = avoided;
        }
        running.lane.set_usable(usable);
        if !netctl::reopens_subflows() {
            return;
        }
        let session = running.lane.session();
        let endpoint = move |path: PathId| netctl::lane_endpoint(session, path);
        let back = running.withdrawn.and(usable);
        let going = all.without(usable).without(running.withdrawn);
        if back.is_empty() && going.is_empty() {
            running.needed.clear();
            return;
        }
        let change = move || {
            for path in back {
                netctl::add_endpoint(&endpoint(path))?;
            }
            let addresses: Vec<IpAddr> = going.iter().map(|path| endpoint(path).address).collect();
            let needed =
                if addresses.is_empty() { BTreeMap::new() } else { netctl::needed_endpoints(&addresses)? };
            let needed: BTreeMap<PathId, usize> =
                going.iter().filter_map(|path| Some((path, *needed.get(&endpoint(path).address)?))).collect();
            for path in going.iter().filter(|path| !needed.contains_key(path)) {
                netctl::withdraw_endpoint(endpoint(path).address)?;
            }
            Ok(needed)
        };
        match running.lane.run(change).await {
            Ok(needed) => {
                let kept = needed.keys().copied().collect();
                running.withdrawn = running.withdrawn.without(back).union(going.without(kept));
                // An unchanged set is checked less often.
                running.next_check = (needed != running.needed).then(|| Instant::now() + RECHECK);
                running.needed = needed;
            }
            // Tried again with the next look.
            Err(error) => tracing::warn!("endpoints of Multipath TCP of the TCP lane: {error:#}"),
        }
    }

    /// The redirection of flows, while the lane is running.
    pub fn layer(&self) -> Option<&Layer> {
        Some(&self.running.as_ref()?.layer)
    }

    /// Resets flows that the UPF no longer has. Returns whether there is a lane.
    pub fn reset_flows(&self) -> bool {
        self.running.as_ref().map(|running| running.lane.reset_flows()).is_some()
    }

    /// Takes it down; its flows are reset.
    pub async fn stop(&mut self, worker: &Handle<Ue>) {
        let Some(running) = self.running.take() else { return };
        // Resets reach programs and the UPF as packets did.
        running.threads.end().await;
        self.net.undo(running.layer).await;
        close(worker).await;
    }

    /// The REST representation of the lane.
    pub fn view(&self) -> api::TcpLane {
        let (state, why) = match (&self.running, &self.trouble) {
            (Some(running), _) => match running.lane.suspended_by() {
                Some(why) => ("rests", Some(why.name().to_owned())),
                None => ("runs", self.trouble.clone()),
            },
            (None, Some(trouble)) => ("failed", Some(trouble.clone())),
            (None, None) if self.offered => {
                ("unused", Some("no rule has functionality = \"mptcp\"".to_owned()))
            }
            (None, None) => ("unused", Some("the UPF offers no lane".to_owned())),
        };
        let left = self.running.as_ref().map(|running| {
            let paths = running.withdrawn.union(running.needed.keys().copied().collect());
            paths.iter().map(|path| self.view_left(path, running.needed.get(&path))).collect()
        });
        let left = left.unwrap_or_default();
        api::TcpLane { left, ..view(state, why, self.running.as_ref().map(|running| &*running.lane.flows)) }
    }

    fn view_left(&self, path: PathId, needed: Option<&usize>) -> api::TcpLaneLeft {
        let state = self.states.get(path);
        let mut why = match state.is_up() {
            false => "down".to_owned(),
            true if self.overdue.contains(path) => "answers are overdue".to_owned(),
            true => format!("loss {} %", state.steady_loss_percent),
        };
        if let Some(needed) = needed {
            why +=
                &format!("; {needed} connections have no other subflow, their packets take another access");
        }
        api::TcpLaneLeft { access: self.access(path), why }
    }

    /// Flows from the `offset`th on.
    pub fn flows(&self, offset: usize, limit: usize) -> api::TcpLaneFlows {
        page(self.running.as_ref().map(|running| &*running.lane.flows), offset, limit)
    }
}

/// Why a path is left: answers are overdue, or its loss.
fn why_left(late: bool, loss_percent: u8, limit_percent: u8) -> String {
    if late { "answers are overdue".to_owned() } else { format!("loss {loss_percent} % > {limit_percent} %") }
}

/// Why a path is used again. `late`: it was left because answers were overdue, and whether they still are.
fn why_back(late: Option<bool>, loss_percent: u8, limit_percent: u8) -> String {
    match late {
        Some(false) => "it answers".to_owned(),
        Some(true) => "no other access answers".to_owned(),
        None if loss_percent > limit_percent => {
            format!("loss {loss_percent} %, and no other access is better")
        }
        None => format!("loss {loss_percent} %"),
    }
}

/// The path ids of these accesses.
fn paths(accesses: &[String]) -> Range<PathId> {
    0..PathId::try_from(accesses.len()).unwrap_or(PathId::MAX)
}

/// Detaches the lane's device from the workers.
async fn close<E: TunnelEnd>(worker: &Handle<E>) {
    // A worker that has ended has no device.
    let _ = worker.query(|worker, _| worker.replace_lane(None)).await;
}

/// The flows that nftables redirects to the lane. nftables cannot match names and cgroups, so all flows that
/// may match such a rule are redirected, and the lane decides.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct RedirectedFlows {
    /// Rules for flows of programs on the UE.
    own: Vec<FlowRule>,
    /// Rules for forwarded flows.
    forwarded: Vec<FlowRule>,
}

impl RedirectedFlows {
    /// The flows that match `rules` at the UE with these addresses.
    fn of(rules: &[Rule], addresses: Addresses) -> Self {
        let about_tcp = |filter: &Filter| !matches!(filter.protocol, Some(Protocol::Udp | Protocol::Icmp));
        let of = |rule: &Rule| {
            let take = rule.functionality == Functionality::Mptcp;
            let certain = rule.filter.domain.is_none() && rule.filter.cgroup.is_none();
            let filter = Filter { protocol: Some(Protocol::Tcp), ..rule.filter.clone() };
            (about_tcp(&rule.filter) && (take || certain)).then_some(FlowRule { filter, take })
        };
        let own: Vec<FlowRule> = rules.iter().filter_map(of).collect();
        let forwarded = own.iter().filter_map(|rule| forwarded(rule, addresses)).collect();
        Self { own, forwarded }
    }

    fn redirects_any(&self) -> bool {
        self.own.iter().any(|rule| rule.take)
    }
}

/// The same for forwarded flows: they belong to no program of this machine, and their source address in the
/// tunnel is the session's.
fn forwarded(rule: &FlowRule, addresses: Addresses) -> Option<FlowRule> {
    let Filter { uid, cgroup, local, remote, .. } = &rule.filter;
    if uid.is_some() || cgroup.is_some() {
        return None;
    }
    let mut filter = rule.filter.clone();
    if let Some(local) = local {
        let address = addresses.iter().find(|address| local.contains(address))?;
        let all = if address.is_ipv4() {
            IpAddr::V4(Ipv4Addr::UNSPECIFIED)
        } else {
            IpAddr::V6(Ipv6Addr::UNSPECIFIED)
        };
        filter.local = None;
        filter.remote = remote.or_else(|| IpNet::new(all, 0).ok());
    }
    Some(FlowRule { filter, take: rule.take })
}

fn count(rules: &[Rule]) -> String {
    let names = rules.iter().filter(|rule| rule.functionality == Functionality::Mptcp);
    let names: Vec<String> = names.map(|rule| rule.name.clone()).collect();
    format!("flows of rules {}", crate::ue::run::list(&names))
}

/// Control of the lane of a UPF: its namespace, network configuration and threads.
pub struct UpfLaneControl {
    lane: Arc<UpfLane>,
    net: Net,
    layer: Layer,
    threads: Threads,
    _claim: Claim,
}

impl UpfLaneControl {
    /// Sets up the lane. The queues of its device are given to the workers in order.
    pub async fn start(
        config: &UpfLaneSection,
        upf: &UpfConfig,
        mtu: u16,
        net: &Net,
        shards: &[Handle<UpfEnd>],
    ) -> anyhow::Result<Self> {
        let (device, pools) = (&upf.device, upf.pools());
        let claim = claim(config.mark).await?;
        net.clean_proxy(config.mark, &netctl::lane_table(&device.name)).await?;
        let (namespace, devices) = lane_namespace(mtu, shards.len()).await?;
        let return_route = netctl::lane_return_route(&device.name, namespace.fd(), &pools, config.mark, mtu);
        let layer = net.apply(return_route).await?;
        let rest = async {
            configure(&namespace, netctl::upf_lane_plan(&device.name, &pools, mtu)).await?;
            let lane = Arc::new(UpfLane::new(
                namespace,
                pools,
                upf.destinations(),
                shards.to_vec(),
                config.clone(),
            )?);
            let listener = lane.listen().await?;
            let threads = tcp_lane::threads(config.workers)?;
            let on = threads.handle().context("threads of the TCP lane")?;
            {
                let _on = on.enter();
                let listener = tokio::net::TcpListener::from_std(listener)?;
                on.spawn(tcp_lane::accept_ues(lane.clone(), listener));
                let bounds = Bounds::of(config.memory_mb, config.memory_per_session_mb, SHARES);
                on.spawn(relay::watch_memory(lane.flows.clone(), bounds));
            }
            for (shard, device) in shards.iter().zip(devices) {
                shard.query(move |worker, _| worker.replace_lane(Some(device))).await??;
            }
            anyhow::Ok((lane, threads))
        };
        match rest.await.context("[tcp_lane]") {
            Ok((lane, threads)) => Ok(Self { lane, net: net.clone(), layer, threads, _claim: claim }),
            Err(error) => {
                net.undo(layer).await;
                Err(error)
            }
        }
    }

    /// The network configuration of its flows.
    pub fn layer(&self) -> &Layer {
        &self.layer
    }

    /// Takes it down and resets its flows towards servers and UEs.
    pub async fn stop(self) {
        self.threads.end().await;
        self.net.undo(self.layer).await;
    }

    /// Resets the flows of a session; returns their number.
    pub fn reset_flows(&self, session: Ipv4Addr) -> usize {
        self.lane.reset_flows(session)
    }

    /// The REST representation of the lane.
    pub fn view(&self) -> api::TcpLane {
        view("runs", None, Some(&self.lane.flows))
    }

    /// Flows from index `offset` on.
    pub fn flows(&self, offset: usize, limit: usize) -> api::TcpLaneFlows {
        page(Some(&self.lane.flows), offset, limit)
    }
}

/// The REST representation at a UPF that offers no lane.
pub fn none() -> api::TcpLane {
    view("unused", Some("there is no section [tcp_lane]".to_owned()), None)
}

fn view(state: &str, why: Option<String>, flows: Option<&Flows>) -> api::TcpLane {
    // Counters of 0 are omitted.
    let happened = |rows: BTreeMap<String, u64>| rows.into_iter().filter(|(_, n)| *n > 0).collect();
    let sums = Carrier::ALL.iter().zip(flows.map(Flows::sums).into_iter().flatten());
    let carried = sums.map(|(carrier, totals)| api::TcpLaneCarried {
        carrier: carrier.name().to_owned(),
        flows: totals.flows,
        up_bytes: totals.up_bytes,
        down_bytes: totals.down_bytes,
    });
    let (held_bytes, waiting_bytes) = flows.map(|flows| flows.memory.bytes()).unwrap_or_default();
    api::TcpLane {
        state: state.to_owned(),
        why,
        flows: flows.map_or(0, Flows::count) as u64,
        max_flows: flows.map_or(0, Flows::limit) as u64,
        carried: carried.collect(),
        fallbacks: flows.map(|flows| happened(flows.counters.packets.rows())).unwrap_or_default(),
        refused: flows.map(|flows| happened(flows.refused.rows())).unwrap_or_default(),
        resets: flows.map_or(0, |flows| flows.resets.load(Relaxed)),
        held_bytes,
        waiting_bytes,
        limited: flows.map_or(0, |flows| flows.memory.limited()),
        left: Vec::new(),
    }
}

fn page(flows: Option<&Flows>, offset: usize, limit: usize) -> api::TcpLaneFlows {
    let Some(flows) = flows else { return api::TcpLaneFlows::default() };
    let row = |flow: &Arc<Flow>| api::TcpLaneFlow {
        id: flow.id,
        client: flow.client.to_string(),
        server: flow.of.server.get().map(SocketAddr::to_string).unwrap_or_default(),
        rule: flow.rule.get().cloned().unwrap_or_default(),
        carrier: flow.of.carrier.get().map(|carrier| carrier.name().to_owned()),
        subflows: flow.of.subflows(),
        age_s: flow.since.elapsed().as_secs_f64(),
        up_bytes: flow.up.load(Relaxed),
        down_bytes: flow.down.load(Relaxed),
    };
    let rows = flows.list(offset, limit);
    api::TcpLaneFlows { total: flows.count() as u64, flows: rows.iter().map(row).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Leftovers with the mark of a lane are removed, but not while another program has the mark.
    #[test]
    fn a_mark_that_another_program_has_stays_as_it_is() {
        crate::testing::in_private_network(|| {
            crate::runtime::current_thread().unwrap().block_on(async {
                let section = UeLaneSection::default();
                let (mark, net) = (section.mark, Net::open().unwrap());
                let lane = UeLaneControl::new(section, &Device::default(), Vec::new(), net);
                let rule = format!("ip rule add fwmark {mark} table {mark} priority 20600 proto 171");
                let rules = || crate::testing::sh("ip rule");
                let none = rules();
                let proxy = Claim::numbers([mark - 1, mark]).unwrap().unwrap();
                crate::testing::sh(&rule);
                let with = rules();
                lane.clean().await.unwrap();
                assert_eq!(rules(), with);
                let error = claim(mark).await.unwrap_err().to_string();
                assert!(error.contains(&format!("[tcp_lane] mark = {mark}: another anabranch")), "{error}");
                drop(proxy);
                lane.clean().await.unwrap();
                assert_eq!(rules(), none);
            });
        });
    }

    #[test]
    fn events_state_why_a_path_is_left_and_used_again() {
        assert_eq!(why_left(true, 20, 15), "answers are overdue");
        assert_eq!(why_left(false, 20, 15), "loss 20 % > 15 %");
        assert_eq!(why_back(Some(false), 20, 15), "it answers");
        assert_eq!(why_back(Some(true), 0, 15), "no other access answers");
        assert_eq!(why_back(None, 20, 15), "loss 20 %, and no other access is better");
        assert_eq!(why_back(None, 12, 15), "loss 12 %");
    }

    #[test]
    fn nftables_redirects_flows_that_may_match_a_rule() {
        let rules: Vec<Rule> = serde_json::from_str(
            r#"[
            {"name":"calls","filter":{"protocol":"udp"},"steering":{"mode":"redundant"},"functionality":"mptcp"},
            {"name":"names","filter":{"domain":"a.example"},"steering":{"mode":"redundant"}},
            {"name":"ssh","filter":{"remote_port":22},"steering":{"mode":"redundant"}},
            {"name":"video","filter":{"domain":"v.example"},"steering":{"mode":"redundant"},"functionality":"mptcp"},
            {"name":"rest","steering":{"mode":"redundant"}}]"#,
        )
        .unwrap();
        let redirected = RedirectedFlows::of(&rules, Addresses::default());
        for flows in [&redirected.own, &redirected.forwarded] {
            assert_eq!(flows.iter().map(|rule| rule.take).collect::<Vec<_>>(), [false, true, false]);
            assert!(flows.iter().all(|rule| rule.filter.protocol == Some(Protocol::Tcp)));
        }
        assert_eq!(count(&rules), "flows of rules calls, video");
    }

    #[test]
    fn forwarded_flows_have_an_address_of_the_session_and_no_owner() {
        let rules: Vec<Rule> = serde_json::from_str(
            r#"[
            {"name":"root","filter":{"uid":0},"steering":{"mode":"redundant"}},
            {"name":"backup","filter":{"cgroup":"backup"},"steering":{"mode":"redundant"},"functionality":"mptcp"},
            {"name":"mine","filter":{"local":"10.45.0.2/32"},"steering":{"mode":"redundant"},"functionality":"mptcp"},
            {"name":"mine-there","filter":{"local":"10.0.0.0/8","remote":"192.0.2.0/24"},"steering":{"mode":"redundant"}},
            {"name":"v6","filter":{"local":"fd45::/16","local_port":7},"steering":{"mode":"redundant"}},
            {"name":"other","filter":{"local":"192.168.0.0/16"},"steering":{"mode":"redundant"},"functionality":"mptcp"}]"#,
        )
        .unwrap();
        let addresses = Addresses { v4: "10.45.0.2".parse().ok(), v6: "fd45::2".parse().ok() };
        let redirected = RedirectedFlows::of(&rules, addresses);
        assert_eq!(redirected.own.len(), 6);
        let seen = |rule: &FlowRule| {
            let Filter { local, remote, local_port, .. } = &rule.filter;
            assert_eq!(*local, None);
            (rule.take, remote.unwrap().to_string(), local_port.map(|range| range.first))
        };
        let expected = [
            (true, "0.0.0.0/0".to_owned(), None),
            (false, "192.0.2.0/24".to_owned(), None),
            (false, "::/0".to_owned(), Some(7)),
        ];
        assert_eq!(redirected.forwarded.iter().map(seen).collect::<Vec<_>>(), expected);
    }
}
