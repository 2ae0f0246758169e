//! A scenario after checking, as passed to a backend: references are valid, units are types, and each variant is resolved.

pub use super::file::{
    BackendName, Claim, CongestionControl, Direction, Directions, DownHow, Link, LinkDirection, Loss,
    LossModel, Memory, Plot, Program, Recovery, Security, Server, Slice, Strip, Telemetry, Upf,
};
pub use super::gnb::Gnb;
pub use super::lwip::Lwip;
pub use super::matrix::Matrix;
use anabranch_element::time::Duration;
use anabranch_kern::file::read_text;
use anabranch_link::{self as net, LinkConfig, LinkSpec, SpecError};
use anabranch_steer::{Rule, SteeringMode};
use rand_chacha::ChaCha12Rng;
use rand_core::{RngCore, SeedableRng};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A whole scenario file.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// The file from which it was read.
    pub file: PathBuf,
    /// Name: that of the file, without folder and extension.
    pub name: String,
    /// One line.
    pub title: String,
    /// The paper and section that it reproduces.
    pub paper: Option<String>,
    /// For the report.
    pub description: Option<String>,
    /// Seed of the first run.
    pub seed: u64,
    /// Number of runs at each seed.
    pub runs: u32,
    /// Whether this is the quick form.
    pub quick: bool,
    /// Required files that are missing. If there are any, nothing else was checked and the scenario cannot run.
    pub missing: Vec<PathBuf>,
    /// Backends on which it can run.
    pub backends: Vec<BackendName>,
    /// What to run: each variant, or the file without changes.
    pub cases: Vec<Case>,
    /// Claims that must hold.
    pub claims: Vec<Claim>,
    /// Figures of the report.
    pub plots: Vec<Plot>,
    /// Relations of its cases, if they form a matrix.
    pub matrix: Option<Matrix>,
}

/// A scenario resolved for one variant.
#[derive(Debug, Clone)]
pub struct Case {
    /// Name of the scenario.
    pub scenario: String,
    /// Name of the variant, if the scenario has variants.
    pub variant: Option<String>,
    /// One line.
    pub title: String,
    /// Backends on which it can run.
    pub backends: Vec<BackendName>,
    /// Length of the run.
    pub duration: Duration,
    /// Start of the window of averages.
    pub measure_from: Duration,
    /// Width of one point of a time series.
    pub sample: Duration,
    /// Access links.
    pub links: BTreeMap<String, Link>,
    /// Cells.
    pub gnbs: BTreeMap<String, Gnb>,
    /// LWIP nodes.
    pub lwips: BTreeMap<String, Lwip>,
    /// UPFs by name.
    pub upfs: BTreeMap<String, Upf>,
    /// Servers by name.
    pub servers: BTreeMap<String, Server>,
    /// UEs by name.
    pub ues: BTreeMap<String, Ue>,
    /// Network slices.
    pub slices: BTreeMap<String, Slice>,
    /// Traffic.
    pub flows: BTreeMap<String, Flow>,
    /// Events; [`Case::timeline`] sorts them by time.
    pub events: Vec<Event>,
    /// Metrics defined by the scenario: name and expression.
    pub derived: BTreeMap<String, String>,
    /// Tables to compute.
    pub memory: Option<Memory>,
    /// Settings that are valid but probably not intended.
    pub warnings: Vec<String>,
}

/// A user equipment.
#[derive(Debug, Clone, PartialEq)]
pub struct Ue {
    /// Name of its UPF.
    pub upf: String,
    /// Its accesses; the index is the path id.
    pub accesses: Vec<Access>,
    /// Its rules; never empty.
    pub rules: Vec<Rule>,
    /// IOAM node id under which its tunnel end fills traces.
    pub ioam_node: Option<u32>,
}

impl Ue {
    /// The path id of an access.
    #[must_use]
    pub fn path_of(&self, access: &str) -> Option<u8> {
        self.accesses.iter().position(|a| a.name == access).and_then(|i| u8::try_from(i).ok())
    }
}

/// An access of a UE.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Access {
    /// Name of the access, used by rules and flows.
    pub name: String,
    /// The link it uses.
    pub link: String,
    /// Security of the tunnel.
    pub security: Security,
}

/// Traffic between a UE and a server.
#[derive(Debug, Clone, PartialEq)]
pub struct Flow {
    /// Name of the UE at one end.
    pub ue: String,
    /// Name of the server at the other end.
    pub server: String,
    /// How it is carried.
    pub via: Via,
    /// Properties that it requests from its UE's agent.
    pub needs: serde_json::Value,
    /// Server port.
    pub port: u16,
    /// When it starts.
    pub start: Duration,
    /// Maximum of a uniform random time added to it.
    pub start_jitter: Duration,
    /// Latest time at which it stops sending.
    pub stop: Duration,
    /// Kind of traffic.
    pub traffic: Traffic,
    /// Loss detection of its TCP senders.
    pub recovery: Recovery,
    /// Whether its TCP uses selective acknowledgments.
    pub sack: bool,
    /// Whether its TCP paces segments over the RTT.
    pub paced: bool,
    /// Initial window of its TCP, segments.
    pub initial_window_segments: u32,
    /// Program that carries it in namespaces.
    pub program: Program,
    /// Whether it runs over IPv6.
    pub ipv6: bool,
    /// In-band telemetry, if the flow uses it.
    pub telemetry: Option<Telemetry>,
}

impl Flow {
    /// Whether the kernel's TCP carries it in namespaces.
    #[must_use]
    pub fn is_kernel_tcp(&self) -> bool {
        self.traffic.is_tcp() && self.program != Program::Quinn
    }

    /// Whether its data is sent only from the UE to the server.
    #[must_use]
    pub fn is_up(&self) -> bool {
        match self.traffic {
            Traffic::Cbr { direction, .. }
            | Traffic::OnOff { direction, .. }
            | Traffic::BulkTcp { direction, .. } => direction == Direction::Up,
            Traffic::RequestResponse { .. } | Traffic::Ping { .. } => false,
        }
    }
}

/// How a flow is carried.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Via {
    /// Through the session of UE and UPF.
    Atsss,
    /// Over one access, without tunnel.
    Direct(String),
    /// Through an LWIP node.
    Lwip(String),
    /// Kernel MPTCP over all accesses.
    Mptcp,
    /// According to the UE's policy for the needs of the application.
    Slices,
}

/// The traffic of a flow.
#[derive(Debug, Clone, PartialEq)]
pub enum Traffic {
    /// UDP at a constant rate.
    Cbr {
        /// Direction of the data.
        direction: Direction,
        /// Rate of application data, bit/s.
        rate_bps: u64,
        /// UDP payload per packet, bytes.
        payload_bytes: u32,
    },
    /// UDP bursts.
    OnOff {
        /// Direction of the data.
        direction: Direction,
        /// Rate of application data within a burst, bit/s.
        rate_bps: u64,
        /// UDP payload per packet, bytes.
        payload_bytes: u32,
        /// Mean length of a burst.
        on: Duration,
        /// Mean length of a pause.
        off: Duration,
    },
    /// One TCP transfer.
    BulkTcp {
        /// Direction of the data.
        direction: Direction,
        /// Number of bytes; `None`: until the stop time.
        bytes: Option<u64>,
        /// Rate at which the application writes, bit/s; `None`: as fast as TCP accepts.
        limit_bps: Option<u64>,
        /// Congestion control of the sender.
        congestion_control: CongestionControl,
    },
    /// Requests and responses over one TCP connection.
    RequestResponse {
        /// Size of a request, bytes.
        request_bytes: u32,
        /// Size of a response, bytes.
        response_bytes: u32,
        /// Pause after a response.
        gap: Duration,
        /// Whether each request has a connection of its own.
        reconnect: bool,
        /// Congestion control of both ends.
        congestion_control: CongestionControl,
    },
    /// UDP echo.
    Ping {
        /// Time between requests.
        interval: Duration,
        /// UDP payload, bytes.
        payload_bytes: u32,
    },
}

impl Traffic {
    /// Whether it runs over TCP.
    #[must_use]
    pub const fn is_tcp(&self) -> bool {
        self.congestion_control().is_some()
    }

    /// The congestion control, if it runs over TCP.
    #[must_use]
    pub const fn congestion_control(&self) -> Option<CongestionControl> {
        match self {
            Self::BulkTcp { congestion_control, .. } | Self::RequestResponse { congestion_control, .. } => {
                Some(*congestion_control)
            }
            _ => None,
        }
    }

    /// Whether it is a TCP transfer whose data is sent to the server.
    #[must_use]
    pub const fn is_upload(&self) -> bool {
        matches!(self, Self::BulkTcp { direction: Direction::Up, .. })
    }
}

/// An event, which occurs once or periodically.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// Earliest time.
    pub at: Duration,
    /// Maximum of a uniform random time added to it.
    pub jitter: Duration,
    /// Time between repetitions.
    pub every: Option<Duration>,
    /// What happens.
    pub action: Action,
}

/// The action of an event.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// A link stops carrying packets.
    LinkDown {
        /// Name of the link.
        link: String,
        /// Directions affected.
        directions: Directions,
        /// Whether the UE notices.
        how: DownHow,
    },
    /// A link carries packets again.
    LinkUp {
        /// Name of the link.
        link: String,
        /// Directions affected.
        directions: Directions,
    },
    /// The rate of a link changes.
    Rate {
        /// Name of the link.
        link: String,
        /// Directions affected.
        directions: Directions,
        /// New rate, bit/s.
        rate_bps: u64,
    },
    /// The delay of a link changes.
    Delay {
        /// Name of the link.
        link: String,
        /// Directions affected.
        directions: Directions,
        /// New one-way delay.
        delay: Duration,
    },
    /// The loss model of a link changes.
    Loss {
        /// Name of the link.
        link: String,
        /// Directions affected.
        directions: Directions,
        /// New model.
        loss: Loss,
    },
    /// A link removes telemetry from packets.
    Strip {
        /// Name of the link.
        link: String,
        /// Directions affected.
        directions: Directions,
        /// What it removes.
        strip: Strip,
    },
    /// The mode of a rule changes.
    Steering {
        /// Name of the UE.
        ue: String,
        /// Name of the rule.
        rule: String,
        /// New mode.
        steering: SteeringMode,
    },
    /// The uplink changes to the next path after every given number of packets.
    SwitchEvery {
        /// Name of the UE.
        ue: String,
        /// Number of packets; 0: never.
        packets: u32,
    },
    /// The share of a slice changes.
    Share {
        /// Name of the cell.
        gnb: String,
        /// Name of the slice.
        slice: String,
        /// New share of the RBs, percent.
        share_percent: f64,
    },
}

impl Action {
    /// A short label for the time axis of the report.
    #[must_use]
    pub fn label(&self) -> String {
        match self {
            Self::LinkDown { link, how: DownHow::Carrier, .. } => format!("{link} down"),
            Self::LinkDown { link, how: DownHow::BlackHole, .. } => format!("{link} black hole"),
            Self::LinkUp { link, .. } => format!("{link} up"),
            Self::Rate { link, rate_bps, .. } => format!("{link} {} Mbit/s", *rate_bps as f64 / 1e6),
            Self::Delay { link, delay, .. } => format!("{link} {} ms", delay.as_secs_f64() * 1e3),
            Self::Loss { link, .. } => format!("{link} loss"),
            Self::Strip { link, strip: Strip::None, .. } => format!("{link} leaves telemetry"),
            Self::Strip { link, .. } => format!("{link} strips telemetry"),
            Self::Steering { ue, steering, .. } => format!("{ue} {}", steering.name()),
            Self::SwitchEvery { packets, .. } => format!("switch every {packets}"),
            Self::Share { slice, share_percent, .. } => format!("{slice} {share_percent} %"),
        }
    }
}

impl Case {
    /// The name of a metric or series without the variant's prefix; `None` if it belongs to another variant.
    #[must_use]
    pub fn own_name<'n>(&self, name: &'n str) -> Option<&'n str> {
        match &self.variant {
            Some(variant) => name.strip_prefix(variant.as_str())?.strip_prefix('.'),
            None => Some(name),
        }
    }

    /// UEs of a cell in order, with the path of the access.
    #[must_use]
    pub fn ues_of<'a>(&'a self, gnb: &str) -> Vec<(&'a String, usize)> {
        let of = |ue: &'a Ue| ue.accesses.iter().position(|a| a.link == gnb);
        self.ues.iter().filter_map(|(name, ue)| of(ue).map(|path| (name, path))).collect()
    }

    /// UEs of an LWIP node in order, with the paths of the LTE and the Wi-Fi access.
    #[must_use]
    pub fn ues_of_lwip<'a>(&'a self, node: &str) -> Vec<(&'a String, [usize; 2])> {
        let Some(of) = self.lwips.get(node) else { return Vec::new() };
        let path = |ue: &'a Ue, link: &str| ue.accesses.iter().position(|a| a.link == link);
        let both = |ue| Some([path(ue, &of.lte)?, path(ue, &of.wifi)?]);
        self.ues.iter().filter_map(|(name, ue)| Some((name, both(ue)?))).collect()
    }

    /// Time for packets in transit at the end to arrive, and to be answered if the flow has replies: a full queue of at most
    /// `most_queue_ms`, the delay after it, and 200 ms for reordering.
    #[must_use]
    pub fn under_way(&self, most_queue_ms: f64) -> Duration {
        let mut longest: f64 = 0.0;
        for (name, link) in &self.links {
            let (mut slowest_mbps, mut farthest_ms) = (f64::INFINITY, 0.0f64);
            for event in &self.events {
                match &event.action {
                    Action::Rate { link, rate_bps, .. } if link == name => {
                        slowest_mbps = slowest_mbps.min(*rate_bps as f64 * 1e-6);
                    }
                    Action::Delay { link, delay, .. } if link == name => {
                        farthest_ms = farthest_ms.max(delay.as_secs_f64() * 1e3);
                    }
                    _ => {}
                }
            }
            for d in [&link.up, &link.down] {
                let packets = d.queue_packets.map(|n| n as f64 * 1500.0);
                let bytes = d.spec().queue_bytes.map(|n| n as f64).or(packets).unwrap_or(0.0);
                let queue_ms = (bytes * 8e-3 / d.rate_mbps.min(slowest_mbps)).min(most_queue_ms);
                longest = longest.max(queue_ms + d.delay_ms.max(farthest_ms) + d.jitter_ms);
            }
        }
        // A full RLC buffer at a third of the cell's rate.
        for gnb in self.gnbs.values() {
            let full = |mbps: f64| gnb.rlc_bytes as f64 * 24e-3 / mbps;
            longest = longest.max(gnb.peak_mbps().map_or(1000.0, full).min(most_queue_ms));
        }
        longest += self.servers.values().map(|server| server.delay_ms).fold(0.0, f64::max);
        let answered = self.flows.values().any(|flow| matches!(flow.traffic, Traffic::Ping { .. }));
        ms(longest * if answered { 2.0 } else { 1.0 } + 200.0)
    }

    /// All events within the run with this seed, in order of time.
    #[must_use]
    pub fn timeline(&self, seed: u64) -> Vec<(Duration, Action)> {
        let mut rng = ChaCha12Rng::seed_from_u64(seed ^ 0x6576_656e_7473);
        let mut all = Vec::new();
        for event in &self.events {
            let share = (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
            let mut at = event.at + event.jitter.mul_f64(share);
            while at < self.duration {
                all.push((at, event.action.clone()));
                match event.every {
                    Some(every) if !every.is_zero() => at += every,
                    _ => break,
                }
            }
        }
        all.sort_by_key(|(at, _)| *at);
        all
    }
}

impl LinkDirection {
    /// The link in the format of `anabranch_link` and `anabranch link`.
    #[must_use]
    pub fn spec(&self) -> LinkSpec {
        let queue_ms = self.queue_bdp.map_or(self.queue_ms, |times| times * 2.0 * self.delay_ms);
        let by_time = (self.queue_packets.is_none() && self.queue_bytes.is_none())
            .then(|| ((self.rate_mbps * 1e6 / 8.0 * queue_ms / 1e3) as u64).max(3000));
        let size = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        LinkSpec {
            rate_bps: self.trace.is_none().then(|| bps(self.rate_mbps)),
            trace: self.trace.clone(),
            trace_repeat: self.trace_repeat,
            delay_ms: self.delay_ms,
            jitter_ms: self.jitter_ms,
            reorder: self.reorder,
            loss: self.loss.model(),
            queue_packets: self.queue_packets.map(size),
            queue_bytes: self.queue_bytes.or(by_time).map(size),
            mtu_bytes: self.mtu_bytes.map(size),
            up: true,
            black_hole: false,
            ioam_node: self.ioam_node,
            ioam_namespace: None,
            strip: self.strip.kind(),
        }
    }

    /// The configuration for the link emulation; reads the trace.
    ///
    /// # Errors
    /// The trace cannot be read or is not valid.
    pub fn config(&self) -> Result<LinkConfig, SpecError> {
        self.spec().build(&mut |file| read_text(Path::new(file)).map_err(|e| e.to_string()))
    }
}

impl Server {
    /// Its link (N6), alike in both directions, with the queue of a link that states none.
    #[must_use]
    pub fn link(&self) -> Link {
        let (rate_mbps, delay_ms, ioam_node) = (self.rate_mbps, self.delay_ms, self.ioam_node);
        let direction = LinkDirection { rate_mbps, delay_ms, ioam_node, ..LinkDirection::default() };
        Link { up: direction.clone(), down: direction }
    }
}

impl Loss {
    /// The model for the link emulation.
    #[must_use]
    pub fn model(&self) -> net::LossModel {
        match self.model {
            LossModel::None => net::LossModel::None,
            LossModel::Bernoulli => net::LossModel::Bernoulli { probability: self.percent / 100.0 },
            LossModel::GilbertElliott => net::LossModel::GilbertElliott {
                p: self.good_to_bad_percent / 100.0,
                r: self.bad_to_good_percent / 100.0,
                loss_good: self.good_loss_percent / 100.0,
                loss_bad: self.bad_loss_percent / 100.0,
            },
        }
    }
}

impl Strip {
    /// The kind for the link emulation.
    #[must_use]
    pub const fn kind(self) -> net::Strip {
        match self {
            Self::None => net::Strip::None,
            Self::Traces => net::Strip::Traces,
            Self::Reports => net::Strip::Reports,
            Self::Both => net::Strip::Both,
        }
    }
}

/// The seed of run number `run` (from 0) of a scenario with `seed`.
#[must_use]
pub fn run_seed(seed: u64, run: u32) -> u64 {
    if run == 0 {
        return seed;
    }
    ChaCha12Rng::seed_from_u64(seed.rotate_left(32) ^ u64::from(run)).next_u64()
}

/// A duration from milliseconds, as in a file.
#[must_use]
pub fn ms(ms: f64) -> Duration {
    Duration::from_nanos((ms * 1e6).round().max(0.0) as u64)
}

/// A duration from seconds, as in a file.
#[must_use]
pub fn s(s: f64) -> Duration {
    Duration::from_nanos((s * 1e9).round().max(0.0) as u64)
}

/// Mbit/s to bit/s.
#[must_use]
pub fn bps(mbps: f64) -> u64 {
    (mbps * 1e6).round().max(1.0) as u64
}
