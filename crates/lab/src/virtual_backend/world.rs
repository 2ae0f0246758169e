//! Builds a virtual network from a scenario.
//!
//! ```text
//!   ue.host ──0── ue.tunnel ──1+path──┐
//!      └──1+path (no tunnel) ─────── link.near ── link ── core ──1+access── upf
//!                                                          ├──────0 (N6)────┘
//!                                                          └── server link ── server
//! ```
//!
//! `link.near` joins everything on the UE side of a link, `core` everything on the other side. Both add no delay. Several UEs on
//! one link share its queue.

use super::slices::{self, Choice};
use super::{addresses, lwip};
use crate::scenario::Case;
use crate::scenario::model::{self, CongestionControl, Direction, Flow, Traffic, Via, bps};
use crate::sim::host::{App, AppId, Host};
use crate::sim::network::{Network, NodeId};
use crate::sim::router::Router;
use crate::sim::tcp::telemetry::{Broker, NAMESPACE, Telemetry};
use crate::sim::tcp::{Options, Recovery};
use crate::sim::tcp_app::{End, Script, TcpApp};
use crate::sim::udp_app::{Schedule, UdpApp};
use anabranch_atsss::crypto::{PrivateKey, Suite};
use anabranch_atsss::session::{Addresses, Security, SessionParams};
use anabranch_atsss::ue::{Ue, UeAccess, UeConfig};
use anabranch_atsss::upf::UpfCommand;
use anabranch_atsss::upf::{UeEntry, Upf, UpfAccess, UpfConfig};
use anabranch_cc::int::IntConfig;
use anabranch_element::Port;
use anabranch_element::time::{Duration, Instant};
use anabranch_link::{DuplexLink, IoamNode};
use anabranch_lwip::UeElement;
use anabranch_ran::gnb::{Gnb, GnbCommand, PacketEvents, TelemetryConfig};
use anabranch_steer::Rule;
use anyhow::{Context, Result, bail};
use rand_chacha::ChaCha12Rng;
use rand_core::{RngCore, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// MTU of every link, as of Ethernet.
const LINK_MTU: u16 = 1500;
/// Length of the outer IPv4 and UDP headers.
const OUTER_BYTES: u16 = 28;
/// Overhead of a packet in the secure and in the plain form of the tunnel.
const SECURE_BYTES: u16 = 40;
const PLAIN_BYTES: u16 = 8;
/// Unix time at the start of every run: handshakes carry time stamps.
const EPOCH_NS: u64 = 1_700_000_000_000_000_000;
/// Maximum time to connect; a slower UE misses the start of the run.
const LONGEST_CONNECT: Duration = Duration::from_secs(30);

/// A UE in the network.
pub struct UeNode {
    /// Its tunnel end.
    pub tunnel: NodeId,
    /// Its applications.
    pub host: NodeId,
    /// Its current rules.
    pub rules: Vec<Rule>,
    /// Link of each access.
    pub links: Vec<String>,
    /// The host's port towards each LWIP node.
    pub lwips: BTreeMap<String, Port>,
    /// End of the leg of an LWIP node, by path.
    pub leg_ends: BTreeMap<usize, (NodeId, Port)>,
}

/// A flow in the network: its two ends.
pub struct FlowNode {
    /// Host and application at the UE.
    pub ue: (NodeId, AppId),
    /// Host and application at the server.
    pub server: (NodeId, AppId),
}

/// The network of a scenario.
pub struct World {
    /// The simulated network.
    pub net: Network,
    /// Access links.
    pub links: BTreeMap<String, NodeId>,
    /// Cells.
    pub gnbs: BTreeMap<String, NodeId>,
    /// LWIP nodes.
    pub lwips: BTreeMap<String, lwip::Site>,
    /// UEs by name.
    pub ues: BTreeMap<String, UeNode>,
    /// UPFs by name.
    pub upfs: BTreeMap<String, NodeId>,
    /// Flows by name.
    pub flows: BTreeMap<String, FlowNode>,
    /// Choices of the UEs' policies, by flow.
    pub choices: BTreeMap<String, Choice>,
    /// Start of the run, time 0 of the scenario.
    pub origin: Instant,
}

/// A router under construction; its ports are numbered in the order in which they are added.
pub struct Junction {
    router: Router,
    wires: Vec<Option<(NodeId, Port)>>,
}

impl Junction {
    /// A router without ports.
    pub fn new() -> Self {
        Self { router: Router::new(), wires: Vec::new() }
    }

    /// Leaves hop limits unchanged if `bridge`, so that only elements with telemetry count as hops.
    pub fn bridge(mut self, bridge: bool) -> Self {
        if bridge {
            self.router = self.router.bridge();
        }
        self
    }

    /// Adds a port that is connected to `to`, for these prefixes.
    pub fn join(&mut self, to: (NodeId, Port), prefixes: impl IntoIterator<Item = ipnet::IpNet>) {
        self.take(Some(to), prefixes);
    }

    /// Adds a port for these prefixes, to be connected by the caller.
    pub fn leave_open(&mut self, prefixes: impl IntoIterator<Item = ipnet::IpNet>) -> Port {
        self.take(None, prefixes)
    }

    fn take(&mut self, to: Option<(NodeId, Port)>, prefixes: impl IntoIterator<Item = ipnet::IpNet>) -> Port {
        let port = Port(self.wires.len() as u16);
        self.wires.push(to);
        for prefix in prefixes {
            self.router = std::mem::take(&mut self.router).route(prefix, port);
        }
        port
    }

    /// Adds it to the network.
    pub fn build(self, net: &mut Network, name: String) -> NodeId {
        let id = net.add(name, self.router);
        for (port, to) in self.wires.into_iter().enumerate() {
            if let Some(to) = to {
                net.connect((id, Port(port as u16)), to);
            }
        }
        id
    }
}

/// Builds the network of `case` for the run with this seed.
///
/// # Errors
/// A trace cannot be read, or the backend does not support the scenario.
pub fn build(case: &Case, seed: u64) -> Result<World> {
    let mut seeds = ChaCha12Rng::seed_from_u64(seed);
    let mut net = Network::new();
    let ipv6 = case.flows.values().any(|flow| flow.ipv6);
    let traced = case.flows.values().any(|flow| flow.telemetry.is_some());
    let mut core = Junction::new().bridge(traced);
    let sites = lwip::build(case, &mut net, || seeds.next_u64())?;
    let (mut links, mut near) = (BTreeMap::new(), Vec::new());
    for (number, (name, link)) in case.links.iter().enumerate() {
        let config =
            |direction: &model::LinkDirection| direction.config().with_context(|| format!("link {name}"));
        let id = net.add(name, DuplexLink::new(config(&link.up)?, config(&link.down)?, seeds.next_u64()));
        links.insert(name.clone(), id);
        let prefixes: Vec<_> = addresses::both(addresses::link(number), ipv6).collect();
        lwip::attach(&sites, (name, &prefixes), (id, DuplexLink::B), &mut core, &mut net);
        let mut junction = Junction::new().bridge(traced);
        junction.join((id, DuplexLink::A), addresses::both(addresses::anywhere(), ipv6));
        near.push(junction);
    }
    // Cells are numbered after the links.
    let mut gnbs = BTreeMap::new();
    for (g, (name, gnb)) in case.gnbs.iter().enumerate() {
        let link = case.links.len() + g;
        let mut ues = Vec::new();
        for (ue, _) in case.ues_of(name) {
            let u = case.ues.keys().position(|n| n == ue).context("a UE")?;
            let direct = addresses::direct(link, u);
            let mut all = vec![addresses::tunnel(link, u).ip(), direct.into()];
            all.extend(ipv6.then(|| IpAddr::V6(addresses::v6(direct))));
            all.extend(sites.values().filter_map(|site| lwip::bearer(site, ue)).map(IpAddr::V4));
            ues.push((ue.clone(), all));
        }
        let element = gnb.build(seeds.next_u64(), &ues).map_err(anyhow::Error::msg);
        let mut element = element.with_context(|| format!("gnb {name}"))?;
        if case.flows.values().any(Flow::is_up) {
            // Events for ACKs carry little information at the same cost.
            let telemetry = TelemetryConfig { packets: PacketEvents::All, ..element.telemetry() };
            element.apply(GnbCommand::Telemetry(telemetry), Instant::ZERO)?;
        }
        let id = net.add_untimed(name, element);
        let prefixes: Vec<_> = addresses::both(addresses::link(link), ipv6).collect();
        lwip::attach(&sites, (name, &prefixes), (id, Gnb::N3), &mut core, &mut net);
        gnbs.insert(name.clone(), id);
    }
    let number = |map: &BTreeMap<String, NodeId>, name: &str| map.keys().position(|key| key == name);
    let access_number = |name: &str| {
        let cell = || number(&gnbs, name).map(|g| links.len() + g);
        number(&links, name).or_else(cell).with_context(|| format!("link {name}"))
    };
    let mut radio = Vec::new();

    let mut upfs = BTreeMap::new();
    let mut upf_keys = BTreeMap::new();
    let mut upf_accesses: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (p, (name, upf)) in case.upfs.iter().enumerate() {
        let mut names: Vec<(String, model::Security)> = Vec::new();
        for access in case.ues.values().filter(|ue| ue.upf == *name).flat_map(|ue| &ue.accesses) {
            match names.iter_mut().find(|(known, _)| *known == access.name) {
                // If one UE uses an access in clear text, the UPF must allow it; other UEs still use encryption.
                Some((_, security)) if access.security == model::Security::Plain => {
                    *security = access.security
                }
                Some(_) => {}
                None => names.push((access.name.clone(), access.security)),
            }
        }
        let key = PrivateKey::generate(&mut seeds_for_keys(&mut seeds));
        let config = UpfConfig {
            private_key: key.clone(),
            accesses: names
                .iter()
                .enumerate()
                .map(|(a, (name, security))| UpfAccess {
                    name: name.clone(),
                    security: protection(*security),
                    local: Some(addresses::upf(p, a)),
                })
                .collect(),
            rules: Vec::new(),
            params: params(LINK_MTU - OUTER_BYTES - PLAIN_BYTES, upf.reorder_queues),
            shard: 0,
            shards: 1,
            max_sessions: 1 << 16,
            unix_epoch_ns: EPOCH_NS,
        };
        let mut element =
            Upf::new(config, seed_bytes(&mut seeds), Instant::ZERO).with_context(|| format!("UPF {name}"))?;
        if let Some(node) = ioam(upf.ioam_node) {
            element.set_ioam(node);
        }
        let id = net.add(name, element);
        core.join((id, Port(0)), addresses::both(addresses::pool(p), ipv6));
        for a in 0..names.len() {
            core.join((id, Port(1 + a as u16)), [host_of(addresses::upf(p, a))]);
        }
        upfs.insert(name.clone(), id);
        upf_keys.insert(name.clone(), key);
        upf_accesses.insert(name.clone(), names.into_iter().map(|(name, _)| name).collect());
    }

    let mut servers = BTreeMap::new();
    for (s, (name, server)) in case.servers.iter().enumerate() {
        let config = server.link().down.config().with_context(|| format!("server {name}"))?;
        let link = net.add(format!("{name}.link"), DuplexLink::new(config.clone(), config, seeds.next_u64()));
        let host = net.add(name, Host::new());
        core.join((link, DuplexLink::A), addresses::both(addresses::host(addresses::server(s)), ipv6));
        net.connect((link, DuplexLink::B), (host, Port(0)));
        servers.insert(name.clone(), (host, addresses::server(s)));
    }

    let server = |name: &str| servers.get(name).map(|(_, address)| SocketAddr::new((*address).into(), 0));
    let choices = slices::choices(case, server, |ue, path| slices::local(case, ue, path))?;
    let mut ues = BTreeMap::new();
    for (u, (name, ue)) in case.ues.iter().enumerate() {
        let p = number(&upfs, &ue.upf).with_context(|| format!("UPF {}", ue.upf))?;
        let key = PrivateKey::generate(&mut seeds_for_keys(&mut seeds));
        let mut accesses = Vec::new();
        let mut overhead = PLAIN_BYTES;
        for access in &ue.accesses {
            let link = access_number(&access.link)?;
            let a = upf_accesses[&ue.upf].iter().position(|n| *n == access.name).context("access")?;
            if access.security == model::Security::Secure {
                overhead = SECURE_BYTES;
            }
            accesses.push(UeAccess {
                name: access.name.clone(),
                remote: addresses::upf(p, a),
                local: Some(addresses::tunnel(link, u)),
                security: protection(access.security),
                max_payload: LINK_MTU - OUTER_BYTES,
            });
        }
        let upf = upfs[&ue.upf];
        let entry = UeEntry {
            name: name.clone(),
            key: key.public(),
            addresses: {
                let v4 = addresses::inner(p, u);
                Addresses { v4: Some(v4), v6: ipv6.then(|| addresses::v6(v4)) }
            },
            rules: Vec::new(),
            accept_rules: true,
        };
        net.command::<Upf>(upf, UpfCommand::AddUe(entry))?;
        // The choice of a policy takes precedence over the scenario's general settings.
        let chosen = case.flows.iter().filter(|(_, flow)| flow.ue == *name);
        let chosen = chosen.filter_map(|(flow, _)| choices.get(flow)?.rule.clone());
        let rules: Vec<Rule> = chosen.chain(ue.rules.iter().cloned()).collect();
        let config = UeConfig {
            private_key: key,
            upf_key: upf_keys[&ue.upf].public(),
            suite: Suite::Aes256Gcm,
            accesses,
            rules: rules.clone(),
            params: params(LINK_MTU - OUTER_BYTES - overhead, 0),
            unix_epoch_ns: EPOCH_NS,
            last_timestamp_ns: 0,
        };
        let mut element =
            Ue::new(config, seed_bytes(&mut seeds), Instant::ZERO).with_context(|| format!("UE {name}"))?;
        if let Some(node) = ioam(ue.ioam_node) {
            element.set_ioam(node);
        }
        let tunnel = net.add(format!("{name}.tunnel"), element);
        let host = net.add(name, Host::new().with_batches_from(Port(0)));
        net.connect((host, Port(0)), (tunnel, Port(0)));
        // Ends of the node's legs at the UE, by path.
        let mut leg_ends: BTreeMap<usize, ((NodeId, Port), Vec<ipnet::IpNet>)> = BTreeMap::new();
        let mut lwip_ends = BTreeMap::new();
        for (node, paths) in case.lwips.keys().filter_map(|node| {
            let of = case.ues_of_lwip(node);
            of.into_iter().find(|(ue, _)| *ue == name).map(|(_, paths)| (node, paths))
        }) {
            let site = &sites[node];
            let Some(end) = lwip::ue(case, node, site, name, &mut net)? else { continue };
            let way_out = Port((1 + ue.accesses.len() + lwip_ends.len()) as u16);
            net.connect((host, way_out), end.host);
            let ports = [UeElement::LTE, UeElement::WIFI].into_iter().zip(lwip::prefixes(site, name));
            for (path, (port, prefixes)) in paths.into_iter().zip(ports) {
                leg_ends.insert(path, ((end.id, port), prefixes));
            }
            lwip_ends.insert(node.clone(), way_out);
        }
        for (path, access) in ue.accesses.iter().enumerate() {
            let link = access_number(&access.link)?;
            let port = Port(1 + path as u16);
            let leg_end = leg_ends.get(&path).cloned();
            if let Some(id) = gnbs.get(&access.link) {
                let place =
                    case.ues_of(&access.link).iter().position(|(ue, _)| *ue == name).context("a UE")?;
                let mut junction = Junction::new().bridge(traced);
                junction.join((*id, Gnb::ue(place as u16)), addresses::both(addresses::anywhere(), ipv6));
                junction.join((tunnel, port), [host_of(addresses::tunnel(link, u))]);
                let direct = addresses::host(addresses::direct(link, u));
                junction.join((host, port), addresses::both(direct, ipv6));
                if let Some((end, prefixes)) = leg_end {
                    junction.join(end, prefixes);
                }
                radio.push((junction, format!("{name}.{}", access.name)));
                continue;
            }
            near[link].join((tunnel, port), [host_of(addresses::tunnel(link, u))]);
            let direct = addresses::host(addresses::direct(link, u));
            near[link].join((host, port), addresses::both(direct, ipv6));
            if let Some((end, prefixes)) = leg_end {
                near[link].join(end, prefixes);
            }
        }
        let node = UeNode {
            tunnel,
            host,
            rules,
            links: ue.accesses.iter().map(|a| a.link.clone()).collect(),
            lwips: lwip_ends,
            leg_ends: leg_ends.into_iter().map(|(path, (end, _))| (path, end)).collect(),
        };
        ues.insert(name.clone(), node);
    }
    for (junction, name) in near.into_iter().zip(case.links.keys()) {
        junction.build(&mut net, format!("{name}.near"));
    }
    for (junction, name) in radio {
        junction.build(&mut net, name);
    }
    core.build(&mut net, "core".to_owned());

    let flows = BTreeMap::new();
    let mut world =
        World { net, links, gnbs, lwips: sites, ues, upfs, flows, choices, origin: Instant::ZERO };
    world.connect(case, seed)?;
    for (index, (name, flow)) in case.flows.iter().enumerate() {
        let node = world
            .flow(case, index, (name, flow), &servers, &mut seeds)
            .with_context(|| format!("flow {name}"))?;
        world.flows.insert(name.clone(), node);
    }
    Ok(world)
}

/// The IOAM node with this id in virtual time.
fn ioam(node_id: Option<u32>) -> Option<IoamNode> {
    node_id.map(|node_id| IoamNode { node_id, namespace: NAMESPACE, ..IoamNode::default() })
}

impl World {
    /// Connects the UEs that use the tunnel over all their accesses before the run begins, as in namespaces. The start of the run after
    /// that is random, because the first packet numbers, which determine the split, are derived from the clock.
    fn connect(&mut self, case: &Case, seed: u64) -> Result<()> {
        let through_tunnel = |flow: &&Flow| matches!(flow.via, Via::Atsss | Via::Slices);
        let users: BTreeSet<&String> = case.flows.values().filter(through_tunnel).map(|f| &f.ue).collect();
        let tunnels: Vec<NodeId> =
            users.iter().filter_map(|name| Some(self.ues.get(*name)?.tunnel)).collect();
        if tunnels.is_empty() {
            return Ok(());
        }
        let second = Duration::from_secs(1);
        while self.origin < Instant::ZERO + LONGEST_CONNECT
            && !tunnels.iter().all(|ue| self.is_connected(*ue))
        {
            self.origin += second;
            self.net.run_until(self.origin)?;
        }
        let part = u64::from(ChaCha12Rng::seed_from_u64(seed ^ 0x6F72_6967_696E).next_u32());
        self.origin += Duration::from_nanos((part * 1_000_000_000) >> 32);
        Ok(self.net.run_until(self.origin)?)
    }

    fn is_connected(&mut self, tunnel: NodeId) -> bool {
        self.net.get_mut::<Ue>(tunnel).is_some_and(|ue| ue.paths().iter().all(|path| path.up))
    }

    /// Seconds since the start of the run.
    pub fn seconds(&self, at: Instant) -> f64 {
        at.saturating_since(self.origin).as_secs_f64()
    }

    fn flow(
        &mut self,
        case: &Case,
        index: usize,
        (name, flow): (&str, &Flow),
        servers: &BTreeMap<String, (NodeId, Ipv4Addr)>,
        seeds: &mut ChaCha12Rng,
    ) -> Result<FlowNode> {
        let &(server_host, server_address) = servers.get(&flow.server).context("its server")?;
        let ue = case.ues.get(&flow.ue).context("its UE")?;
        let u = case.ues.keys().position(|name| *name == flow.ue).context("its UE")?;
        let choice = self.choices.get(name).cloned().unwrap_or_default();
        let by_choice = match choice.paths.as_slice() {
            [path] => Via::Direct(ue.accesses[usize::from(*path)].name.clone()),
            _ => Via::Atsss,
        };
        let via = if flow.via == Via::Slices { &by_choice } else { &flow.via };
        let (ue_address, way_out) = match via {
            Via::Atsss => {
                let p = case.upfs.keys().position(|name| *name == ue.upf).context("its UPF")?;
                (addresses::inner(p, u), Port(0))
            }
            Via::Direct(access) => {
                let path = ue.path_of(access).context("its access")?;
                let link = &ue.accesses[usize::from(path)].link;
                let link = addresses::link_number(case, link).context("its link")?;
                (addresses::direct(link, u), Port(1 + u16::from(path)))
            }
            Via::Lwip(node) => {
                let site = self.lwips.get(node).context("its node")?;
                let way_out = self.ues[&flow.ue].lwips.get(node).context("its node")?;
                (lwip::bearer(site, &flow.ue).context("its bearer")?, *way_out)
            }
            Via::Slices => bail!("its UE's policy was not asked"),
            Via::Mptcp => bail!("MPTCP is the kernel's: it runs on the netns backend only"),
        };
        let port = addresses::FIRST_PORT.checked_add(u16::try_from(index).context("too many flows")?);
        let family = |v4: Ipv4Addr| if flow.ipv6 { addresses::v6(v4).into() } else { IpAddr::V4(v4) };
        let ue_end = SocketAddr::new(family(ue_address), port.context("too many flows")?);
        let server_end = SocketAddr::new(family(server_address), flow.port);
        let origin = self.origin;
        let ends = Ends { ue: ue_end, server: server_end, flow, choice, case, seeds, origin };
        let (ue_app, server_app) = ends.apps()?;
        let ue_host = self.ues[&flow.ue].host;
        let run = |net: &mut Network, host, app, way_out| -> Result<(NodeId, AppId)> {
            let element = net.get_mut::<Host>(host).context("a host")?;
            let app = element.run(app, way_out);
            net.wake(host)?;
            Ok((host, app))
        };
        let server = run(&mut self.net, server_host, server_app, Port(0))?;
        let ue = run(&mut self.net, ue_host, ue_app, way_out)?;
        Ok(FlowNode { ue, server })
    }
}

struct Ends<'a> {
    ue: SocketAddr,
    server: SocketAddr,
    flow: &'a Flow,
    choice: Choice,
    case: &'a Case,
    seeds: &'a mut ChaCha12Rng,
    origin: Instant,
}

impl Ends<'_> {
    /// The applications at the UE and at the server.
    fn apps(mut self) -> Result<(App, App)> {
        match &self.flow.traffic {
            Traffic::Cbr { direction, rate_bps, payload_bytes } => {
                Ok(self.one_way(*direction, *rate_bps, *payload_bytes, None))
            }
            Traffic::OnOff { direction, rate_bps, payload_bytes, on, off } => {
                let bursts = (*on, *off, self.seeds.next_u64());
                Ok(self.one_way(*direction, *rate_bps, *payload_bytes, Some(bursts)))
            }
            Traffic::Ping { interval, payload_bytes } => {
                let source = self.schedule(self.server, *interval, *payload_bytes, None);
                Ok((
                    App::Udp(Box::new(UdpApp::source(self.ue, source))),
                    App::Udp(Box::new(UdpApp::echo(self.server))),
                ))
            }
            Traffic::BulkTcp { direction, bytes, limit_bps, congestion_control } => {
                let send = Script::Send { bytes: *bytes, limit_bps: *limit_bps };
                let (ue, server) = match direction {
                    Direction::Up => (send, Script::Receive),
                    Direction::Down => (Script::Receive, send),
                };
                self.tcp(ue, server, *congestion_control)
            }
            Traffic::RequestResponse { request_bytes, response_bytes, gap, congestion_control, .. } => {
                let (request_bytes, response_bytes) = (u64::from(*request_bytes), u64::from(*response_bytes));
                let ask = Script::Requests { request_bytes, response_bytes, gap: *gap };
                self.tcp(ask, Script::Answer { request_bytes, response_bytes }, *congestion_control)
            }
        }
    }

    fn schedule(
        &mut self,
        to: SocketAddr,
        interval: Duration,
        payload_bytes: u32,
        bursts: Option<(Duration, Duration, u64)>,
    ) -> Schedule {
        // Without jitter nothing is drawn, so that such runs do not change.
        let jitter = match self.flow.start_jitter {
            Duration::ZERO => Duration::ZERO,
            most => most.mul_f64((self.seeds.next_u64() >> 11) as f64 / (1_u64 << 53) as f64),
        };
        Schedule {
            to,
            start: self.origin + self.flow.start + jitter,
            stop: self.origin + self.stop(),
            interval,
            payload_bytes: payload_bytes as usize,
            bursts,
        }
    }

    fn stop(&self) -> Duration {
        self.flow.stop.min(self.case.duration)
    }

    fn one_way(
        &mut self,
        direction: Direction,
        rate_bps: u64,
        payload_bytes: u32,
        bursts: Option<(Duration, Duration, u64)>,
    ) -> (App, App) {
        let interval = Duration::from_secs_f64(f64::from(payload_bytes) * 8.0 / rate_bps.max(1) as f64);
        let (from, to) = match direction {
            Direction::Up => (self.ue, self.server),
            Direction::Down => (self.server, self.ue),
        };
        let source =
            App::Udp(Box::new(UdpApp::source(from, self.schedule(to, interval, payload_bytes, bursts))));
        let sink = App::Udp(Box::new(UdpApp::sink(to)));
        if direction == Direction::Up { (source, sink) } else { (sink, source) }
    }

    fn tcp(&mut self, ue: Script, server: Script, cc: CongestionControl) -> Result<(App, App)> {
        let congestion_control = self.choice.congestion_control.unwrap_or(cc);
        let recovery = match self.flow.recovery {
            model::Recovery::Rack => Recovery::Rack,
            model::Recovery::Classic => Recovery::Classic,
            model::Recovery::Adaptive => Recovery::Adaptive,
        };
        let sack = self.flow.sack;
        let told = self.flow.telemetry.as_ref();
        let options = Options {
            congestion_control,
            recovery,
            sack,
            // A trace is added after the tunnel has adapted the MSS, so both ends must use the tunnel's MTU.
            mtu_bytes: match self.flow.via {
                Via::Atsss if self.flow.ipv6 => LINK_MTU - OUTER_BYTES - SECURE_BYTES,
                _ => LINK_MTU,
            },
            telemetry: told.map(|t| Telemetry {
                every: t.every,
                nodes: t.nodes,
                broker: t.broker_interval_ms.map(|interval| Broker {
                    interval: model::ms(interval),
                    delay: model::ms(t.broker_delay_ms),
                }),
            }),
            int: told.map_or_else(IntConfig::default, |t| IntConfig {
                ceiling_bps: bps(t.ceiling_mbps),
                increment: t.increment,
                growth_cap: t.growth_cap,
                stale_rtts: t.stale_rtts,
            }),
            pacing: self.flow.paced,
            initial_window_segments: self.flow.initial_window_segments,
            ..Options::default()
        };
        // The choice applies to the UE's socket.
        let planned = Options {
            pacing: options.pacing || self.choice.pacing_bps.is_some(),
            max_pacing_bps: self.choice.pacing_bps,
            initial_window_segments: self.choice.window.unwrap_or(options.initial_window_segments),
            ..options.clone()
        };
        let (ue_seed, server_seed) = (self.seeds.next_u64(), self.seeds.next_u64());
        let end = |local, connect_to, script, options, seed, expects| End {
            local,
            connect_to,
            start: self.origin + self.flow.start,
            stop: self.origin + self.stop(),
            script,
            options,
            seed,
            expects,
        };
        let ue = end(self.ue, Some(self.server), ue, planned, ue_seed, server_seed);
        let server = end(self.server, None, server, options, server_seed, ue_seed);
        Ok((App::Tcp(Box::new(TcpApp::new(ue))), App::Tcp(Box::new(TcpApp::new(server)))))
    }
}

fn params(inner_mtu: u16, reorder_queues: u16) -> SessionParams {
    SessionParams {
        max_payload: LINK_MTU - OUTER_BYTES,
        inner_mtu,
        reorder_queues,
        ..SessionParams::default()
    }
}

fn protection(security: model::Security) -> Security {
    match security {
        model::Security::Secure => Security::Secure,
        model::Security::Plain => Security::Plain,
    }
}

fn host_of(address: SocketAddr) -> ipnet::IpNet {
    address.ip().into()
}

fn seed_bytes(seeds: &mut ChaCha12Rng) -> [u8; 32] {
    let mut seed = [0; 32];
    seeds.fill_bytes(&mut seed);
    seed
}

/// A generator for keys, of the type that key generation uses.
fn seeds_for_keys(seeds: &mut ChaCha12Rng) -> rand_chacha::ChaCha20Rng {
    rand_chacha::ChaCha20Rng::from_seed(seed_bytes(seeds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{self, Form};
    use std::path::Path;

    fn world(file: &str, sets: &[&str], seed: u64) -> World {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios").join(file);
        let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
        let scenario = scenario::load(&path, &sets, Form::Full).unwrap_or_else(|p| panic!("{p}"));
        build(&scenario.cases[0], seed).unwrap()
    }

    #[test]
    fn a_run_begins_when_the_tunnels_are_up() {
        let slow = ["link.wifi.up.delay_ms=700", "link.wifi.down.delay_ms=700"];
        for sets in [&[][..], &slow] {
            let mut world = world("atsss/access-rate-drop.toml", sets, 1);
            let tunnel = world.ues["phone"].tunnel;
            assert!(world.is_connected(tunnel) && world.net.now() == world.origin);
            assert!((1.0..5.0).contains(&world.origin.as_secs_f64()), "{:?}", world.origin);
            assert_eq!(world.seconds(world.origin + Duration::from_millis(1500)), 1.5);
        }
        let begins = |seed| world("atsss/access-rate-drop.toml", &[], seed).origin;
        assert_eq!(begins(2), begins(2));
        assert_ne!(begins(2).as_nanos() % 1000, begins(3).as_nanos() % 1000);
    }

    #[test]
    fn waiting_for_an_access_that_stays_down_is_bounded() {
        let nothing = "{ model = \"bernoulli\", percent = 100 }";
        let set = format!("link.wifi.up.loss={nothing}");
        let world = world("atsss/access-rate-drop.toml", &[&set], 1);
        assert!(world.origin < Instant::ZERO + LONGEST_CONNECT + Duration::from_secs(1));
    }

    #[test]
    fn without_a_tunnel_the_run_starts_at_once() {
        let world = world("papers/rlc/table2-mcs28.toml", &[], 1);
        assert_eq!(world.origin, Instant::ZERO);
    }
}
