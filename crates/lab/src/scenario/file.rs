//! What a scenario file may hold. Each declaration is struct, default and reference text at once.

pub use super::gnb::Gnb;
pub use super::lwip::Lwip;
use super::schema::{choice, table};
pub use anabranch_cc::Algorithm as CongestionControl;
use anabranch_steer::{Rule, SteeringMode};
use std::collections::BTreeMap;

choice! {
    /// Where a scenario runs.
    pub enum BackendName {
        /// Virtual time: our own network, hosts and TCP models; no root needed; deterministic.
        Virtual = "virtual",
        /// Network namespaces: the `anabranch` program, kernel TCP and real time.
        Netns = "netns",
    }
}

choice! {
    /// Which way bytes go, seen from the UE.
    pub enum Direction {
        /// From the server to the UE.
        Down = "down",
        /// From the UE to the server.
        Up = "up",
    }
}

choice! {
    /// Which directions of a link an event concerns.
    pub enum Directions {
        /// Up and down.
        Both = "both",
        /// From the UE towards the UPF.
        Up = "up",
        /// From the UPF towards the UE.
        Down = "down",
    }
}

choice! {
    /// Form of the tunnel on a path.
    pub enum Security {
        /// Encrypted and authenticated.
        Secure = "secure",
        /// 8-byte header in the clear; only for accesses that are trusted.
        Plain = "plain",
    }
}

choice! {
    /// What a flow does.
    pub enum FlowKind {
        /// UDP at a constant bit rate.
        Cbr = "cbr",
        /// UDP bursts: at a constant rate while on, silent while off; lengths are exponential.
        OnOff = "on_off",
        /// One TCP transfer, as fast as it goes.
        BulkTcp = "bulk_tcp",
        /// Requests and answers over one TCP connection, one at a time.
        RequestResponse = "request_response",
        /// UDP echo requests at a fixed interval.
        Ping = "ping",
    }
}

choice! {
    /// Who carries a flow in namespaces.
    pub enum Program {
        /// Sources and sinks of this program, which know every byte.
        Own = "own",
        /// A file that nginx serves and curl fetches; sha256sum compares.
        Curl = "curl",
        /// iperf3: TCP, with `congestion_control` as its option `-C`.
        Iperf3 = "iperf3",
        /// irtt: packets that are answered, with time stamps of both ends; the sender of a `cbr` flow asks.
        Irtt = "irtt",
        /// A vehicle's MAVLink messages, made and read by pymavlink, up, over UDP.
        Mavlink = "mavlink",
        /// The same over one TCP connection; a message is delivered when its sender has the ACK of it.
        MavlinkTcp = "mavlink_tcp",
        /// Video that ffmpeg sends by RTMP and nginx records, up.
        Ffmpeg = "ffmpeg",
        /// One QUIC stream of quinn, with its CUBIC, BBR or Reno.
        Quinn = "quinn",
    }
}

choice! {
    /// How the sender of a TCP flow finds out what was lost.
    pub enum Recovery {
        /// By time (RACK-TLP, RFC 8985), mistakes taken back: Linux since 4.18.
        Rack = "rack",
        /// By the third duplicate, always; nothing taken back (RFC 5681, RFC 6675).
        Classic = "classic",
        /// By duplicates, more of them the more reordering was seen; mistakes taken back: Linux before RACK.
        Adaptive = "adaptive",
    }
}

choice! {
    /// What happens at an event.
    pub enum EventKind {
        /// The link stops carrying packets.
        LinkDown = "link_down",
        /// The link carries packets again.
        LinkUp = "link_up",
        /// The rate of the link changes.
        Rate = "rate",
        /// The delay of the link changes.
        Delay = "delay",
        /// The loss model of the link changes.
        Loss = "loss",
        /// A rule of a UE gets another steering mode, in both directions.
        Steering = "steering",
        /// From now on the UE's uplink moves to its next path every N packets.
        SwitchEvery = "switch_every",
        /// A slice of a cell gets another share.
        Share = "share",
        /// A link takes telemetry off what passes, or no longer.
        Strip = "strip",
    }
}

choice! {
    /// How a link goes down.
    pub enum DownHow {
        /// The UE sees the carrier go (radio lost, cable pulled).
        Carrier = "carrier",
        /// Packets vanish silently; nobody is told.
        BlackHole = "black_hole",
    }
}

choice! {
    /// Which packets a link loses at random.
    pub enum LossModel {
        /// None.
        None = "none",
        /// Each packet with the same probability.
        Bernoulli = "bernoulli",
        /// Two states with a loss probability each.
        GilbertElliott = "gilbert-elliott",
    }
}

choice! {
    /// What a middlebox takes off packets, as if it did not know it.
    pub enum Strip {
        /// Nothing.
        None = "none",
        /// IOAM options headers, so that no trace arrives.
        Traces = "traces",
        /// TCP options with reports, so that no report arrives.
        Reports = "reports",
        /// Both.
        Both = "both",
    }
}

choice! {
    /// The application part of a flat table's key.
    pub enum FlatEntry {
        /// The session's own filter, as in PFCP.
        Filter = "filter",
        /// The number of an application, found by a classifier that all share.
        ApplicationId = "application-id",
    }
}

choice! {
    /// How a plot is drawn.
    pub enum PlotKind {
        /// Series over time.
        Time = "time",
        /// Distribution of the values of each series.
        Cdf = "cdf",
        /// Median, quartiles and whiskers of each series.
        Box = "box",
        /// One bar per metric expression.
        Bars = "bars",
        /// Points, both coordinates metric expressions.
        Scatter = "scatter",
    }
}

/// A figure as a paper prints it: a number, or words where there is no number.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(untagged)]
pub enum PaperValue {
    /// A number in the claim's unit.
    Number(f64),
    /// Words.
    Text(String),
}

impl super::schema::Described for PaperValue {
    fn shape() -> super::schema::Shape {
        super::schema::Shape::NumberOrText
    }
}

table! {
    /// The file itself.
    pub struct File {
        /// One line: what is shown.
        title: String = String::new(), required();
        /// Where it comes from, such as a figure of a paper.
        paper: Option<String> = None;
        /// What happens and why, for the report.
        description: Option<String> = None;
        /// Seed of the first run; `--seed` wins.
        seed: u64 = 1;
        /// How often the scenario is run, each time with its own seed. With more than one run every
        /// metric `m` is the median over the runs, and `m.mean`, `m.min`, `m.max`, `m.p99` exist too.
        runs: u32 = 1, range(1.0, 10_000.0);
        /// Length of one run, seconds.
        duration_s: f64 = 10.0, range(0.001, 86_400.0);
        /// Start of the window that averages (goodput, delay, loss) are taken over, seconds.
        measure_from_s: f64 = 0.0, range(0.0, 86_400.0);
        /// Width of one point of a time series, milliseconds.
        sample_ms: f64 = 100.0, range(1.0, 60_000.0);
        /// Files it cannot do without and that are not shipped, relative to this one: without them it is left
        /// out, with a line that says so.
        needs: Vec<String> = Vec::new();
        /// Backends the scenario can run on.
        backends: Vec<BackendName> = vec![BackendName::Virtual];
        /// Access links by name. A link used by several UEs is shared by them.
        link: BTreeMap<String, Link> = BTreeMap::new();
        /// Cells by name: accesses with SDAP, RLC, MAC, slices and a radio channel.
        gnb: BTreeMap<String, Gnb> = BTreeMap::new();
        /// LWIP nodes by name: a bearer over LTE and Wi-Fi, packet by packet.
        lwip: BTreeMap<String, Lwip> = BTreeMap::new();
        /// User-plane functions by name. Without any there is one, `upf`, with the defaults.
        upf: BTreeMap<String, Upf> = BTreeMap::new();
        /// Servers behind the UPF by name. Without any there is one, `server`, with the defaults.
        server: BTreeMap<String, Server> = BTreeMap::new();
        /// User equipments by name.
        ue: BTreeMap<String, Ue> = BTreeMap::new();
        /// Network slices by name. A slice manager has them, and UEs with flows `via = "slices"` are told of theirs: in
        /// namespaces by the programs, in virtual time by what decides in them, before the run.
        slice: BTreeMap<String, Slice> = BTreeMap::new();
        /// Traffic by name.
        flow: BTreeMap<String, Flow> = BTreeMap::new();
        /// What happens when.
        event: Vec<Event> = Vec::new();
        /// Metrics of your own, computed after each run: an expression over metrics, and over series with
        /// `mean(series, from_s, to_s)`, `lowest(…)`, `highest(…)`, `first_above(series, level, from_s)` and
        /// `first_below(…)` (the time in seconds), `correlation(series, series, lag_s)` and `lag(series, series,
        /// most_s)`; `jain(…)` is the fairness of its values. The metric `x` is called `metric.x`.
        metric: BTreeMap<String, String> = BTreeMap::new();
        /// Memory of the UPF's tables, computed rather than run.
        memory: Option<Memory> = None;
        /// Changes that make a shorter form for `--quick`, written as those of `variant.set`: fewer runs, a
        /// shorter time. The claims stay, and hold in both forms if the file does not say otherwise; `claim.<id>.backends = []`
        /// takes one out.
        quick: Option<toml::Table> = None;
        /// Named changes of this file. With variants, each of them is run and its metrics begin with
        /// its name and a dot; a variant without `set` is the file as it stands.
        variant: Vec<Variant> = Vec::new();
        /// In place of `variant`: a family of variants, from the combinations of the values of several axes.
        matrix: Option<Matrix> = None;
        /// What must hold.
        claim: Vec<Claim> = Vec::new();
        /// What the report draws.
        plot: Vec<Plot> = Vec::new();
    }
}

table! {
    /// An access between UEs and the UPF: a bottleneck with its queue, then a delay, each way.
    pub struct Link {
        /// From the UE towards the UPF.
        up: LinkDirection = LinkDirection::default();
        /// From the UPF towards the UE.
        down: LinkDirection = LinkDirection::default();
    }
}

table! {
    /// One direction of a link.
    pub struct LinkDirection {
        /// Rate, Mbit/s of whole IP packets.
        rate_mbps: f64 = 100.0, range(0.001, 100_000.0);
        /// One-way delay behind the bottleneck, milliseconds.
        delay_ms: f64 = 5.0, range(0.0, 10_000.0);
        /// Width of the extra delay, milliseconds: each packet gets a uniform 0 to this.
        jitter_ms: f64 = 0.0, range(0.0, 10_000.0);
        /// Whether jitter may change the order of packets.
        reorder: bool = false;
        /// Length of the drop-tail queue, milliseconds at `rate_mbps`.
        queue_ms: f64 = 100.0, range(0.1, 60_000.0);
        /// Length of the drop-tail queue as a multiple of rate times twice `delay_ms`; wins over `queue_ms`.
        queue_bdp: Option<f64> = None, range(0.01, 1000.0);
        /// Length of the drop-tail queue, bytes; wins over `queue_ms` and `queue_bdp`.
        queue_bytes: Option<u64> = None, range(1500.0, 1e9);
        /// Length of the drop-tail queue, packets; alone, it wins over `queue_ms`.
        queue_packets: Option<u64> = None, range(1.0, 1e6);
        /// Random loss.
        loss: Loss = Loss::default();
        /// Rate over time, wins over `rate_mbps`: the path of a mahimahi trace or of a CSV file with
        /// lines `time_s,rate_bps`, relative to the scenario file.
        trace: Option<String> = None;
        /// Whether a CSV trace begins again at its end (a mahimahi trace always does).
        trace_repeat: bool = false;
        /// Largest IP packet, bytes; larger ones vanish. Left out, any size.
        mtu_bytes: Option<u64> = None, range(576.0, 65_535.0);
        /// It fills IOAM traces that pass, as the node with this id. Left out, it does not.
        ioam_node: Option<u32> = None, range(1.0, 16_777_214.0);
        /// What it takes off the packets that pass.
        strip: Strip = Strip::None;
    }
}

table! {
    /// Random loss of a link.
    tag "model"
    pub struct Loss {
        /// Loss model.
        model: LossModel = LossModel::None;
        /// Share of packets lost, percent.
        percent: f64 = 0.0, range(0.0, 100.0), only(&["bernoulli"]);
        /// Chance per packet to pass from the good to the bad state, percent.
        good_to_bad_percent: f64 = 1.0, range(0.0, 100.0), only(&["gilbert-elliott"]);
        /// Chance per packet to pass from the bad to the good state, percent.
        bad_to_good_percent: f64 = 25.0, range(0.0, 100.0), only(&["gilbert-elliott"]);
        /// Share of packets lost in the good state, percent.
        good_loss_percent: f64 = 0.0, range(0.0, 100.0), only(&["gilbert-elliott"]);
        /// Share of packets lost in the bad state, percent.
        bad_loss_percent: f64 = 100.0, range(0.0, 100.0), only(&["gilbert-elliott"]);
    }
}

table! {
    /// A user-plane function.
    pub struct Upf {
        /// Pausable queues of the uplink reordering pool.
        reorder_queues: u16 = 127, range(0.0, 4096.0);
        /// It fills IOAM traces of inner packets, both ways, as the node with this id. Left out, it does not.
        ioam_node: Option<u32> = None, range(1.0, 16_777_214.0);
    }
}

table! {
    /// A server behind the UPF.
    pub struct Server {
        /// Rate of its link (N6), each way, Mbit/s. Its drop-tail queue holds 100 ms.
        rate_mbps: f64 = 1000.0, range(0.001, 100_000.0);
        /// One-way delay of its link (N6), milliseconds.
        delay_ms: f64 = 0.5, range(0.0, 10_000.0);
        /// Its link fills IOAM traces that pass, as the node with this id. Left out, it does not.
        ioam_node: Option<u32> = None, range(1.0, 16_777_214.0);
    }
}

table! {
    /// A user equipment.
    pub struct Ue {
        /// Its UPF; may be left out where there is one.
        upf: Option<String> = None;
        /// Its accesses; the order gives the path numbers.
        accesses: Vec<Access> = Vec::new(), required();
        /// ATSSS rules, first match wins; both directions. Without any, active-standby with the first
        /// access as primary.
        rules: Vec<Rule> = Vec::new();
        /// Form of the tunnel on its accesses.
        security: Security = Security::Secure;
        /// Its end of the tunnel fills IOAM traces of inner packets, both ways, as the node with this id. Left out, it does
        /// not.
        ioam_node: Option<u32> = None, range(1.0, 16_777_214.0);
    }
}

table! {
    /// An access of a UE.
    pub struct Access {
        /// Name, such as `5g` or `wifi`.
        name: String = String::new(), required();
        /// The link or cell it uses.
        link: String = String::new(), required();
        /// Form of the tunnel on this access; left out, the UE's.
        security: Option<Security> = None;
    }
}

table! {
    /// Traffic between one UE and one server.
    tag "kind"
    pub struct Flow {
        /// What it does.
        kind: FlowKind = FlowKind::Cbr, required();
        /// Off: the flow is left out, with its metrics.
        enabled: bool = true;
        /// So many flows alike. More than one are called `<flow>-1`, `<flow>-2` and so on, and have a port each.
        count: u32 = 1, range(1.0, 256.0);
        /// Its UE; may be left out where there is one.
        ue: Option<String> = None;
        /// Its server; may be left out where there is one.
        server: Option<String> = None;
        /// Which way the data goes; a request_response or ping flow is always asked by the UE.
        direction: Direction = Direction::Down, only(&["cbr", "on_off", "bulk_tcp"]);
        /// How it travels: `atsss` (the session), `direct:<access>` (that access, no tunnel), `lwip` (through the
        /// LWIP node; `lwip:<node>` where there are several), `mptcp` (kernel MPTCP over all accesses; netns, TCP) or
        /// `slices` (what the UE's policy says for `needs`).
        via: String = "atsss".into();
        /// What the application asks its UE's agent for, by the names of RFC 9622 and `_slice.*` (docs/taps.md), such as
        /// `{ minRecvRate = 130_000_000 }`. Without `via = "slices"` it says nothing.
        needs: Option<toml::Table> = None;
        /// Server port, for the filters of rules: of its protocol, no other flow's at this server. Left out, a free one from
        /// 5001.
        port: Option<u16> = None;
        /// When it starts, seconds.
        start_s: f64 = 0.0, range(0.0, 86_400.0);
        /// Uniform random time added to `start_s`, 0 to this, milliseconds: another one in every run. Virtual
        /// backend only.
        start_jitter_ms: f64 = 0.0, range(0.0, 60_000.0), only(&["cbr", "on_off", "ping"]);
        /// How long it sends, seconds; left out, to the end of the run.
        duration_s: Option<f64> = None, range(0.001, 86_400.0);
        /// Bytes to transfer; left out, it sends until its time is over.
        bytes: Option<u64> = None, range(1.0, 1e12), only(&["bulk_tcp"]);
        /// Rate of the application's data while it sends, Mbit/s.
        rate_mbps: f64 = 10.0, range(0.001, 100_000.0), only(&["cbr", "on_off"]);
        /// Data per packet, bytes (UDP payload). More than 1372 needs `via = "direct:<access>"`, and more than 1452 the
        /// virtual backend.
        packet_bytes: u32 = 1200, range(32.0, 8952.0), only(&["cbr", "on_off", "ping"]);
        /// Mean length of a burst, milliseconds.
        on_ms: f64 = 500.0, range(1.0, 600_000.0), only(&["on_off"]);
        /// Mean length of a silence, milliseconds.
        off_ms: f64 = 500.0, range(1.0, 600_000.0), only(&["on_off"]);
        /// The application writes at this rate, Mbit/s; left out, as fast as TCP takes it.
        limit_mbps: Option<f64> = None, range(0.001, 100_000.0), only(&["bulk_tcp"]);
        /// Who carries it in namespaces: `curl` (bulk_tcp) fetches `bytes` downwards from nginx, `iperf3` is for
        /// bulk_tcp, `irtt` for cbr and ping. `mavlink` and `mavlink_tcp` (cbr, up) send a vehicle's messages, as many of
        /// them as `rate_mbps` has room for; `ffmpeg` (bulk_tcp, up) sends a video of `limit_mbps`; `quinn` carries a bulk_tcp
        /// flow over QUIC in the place of TCP, with quinn's own `congestion_control`. In virtual time there are only
        /// models.
        program: Program = Program::Own, only(&["bulk_tcp", "cbr", "ping"]);
        /// Congestion control of the sender.
        congestion_control: CongestionControl = CongestionControl::Cubic, only(&["bulk_tcp", "request_response"]);
        /// How the sender finds out what was lost. In namespaces it is set for all senders of a host.
        recovery: Recovery = Recovery::Rack, only(&["bulk_tcp", "request_response"]);
        /// Selective acknowledgments. Without them losses are found by duplicates, whatever `recovery` says. In
        /// namespaces it is set for a whole host.
        sack: bool = true, only(&["bulk_tcp", "request_response"]);
        /// Whether it runs over IPv6; with `via = "direct:<access>"` or `"atsss"`.
        ipv6: bool = false;
        /// Its data carries IOAM traces, its ACKs reports on the path. Left out, none. Needs `ipv6`.
        telemetry: Option<Telemetry> = None, only(&["bulk_tcp", "request_response"]);
        /// Segments are spread over the round trip, as with SO_MAX_PACING_RATE. In namespaces for traffic of our own
        /// that goes up.
        paced: bool = false, only(&["bulk_tcp", "request_response"]);
        /// What its slice guarantees, from which the initial window follows. Virtual backend only.
        slice: FlowSlice = FlowSlice::default(), only(&["bulk_tcp", "request_response"]);
        /// Size of a request, bytes.
        request_bytes: u32 = 200, range(1.0, 1e8), only(&["request_response"]);
        /// Size of an answer, bytes.
        response_bytes: u32 = 20_000, range(1.0, 1e8), only(&["request_response"]);
        /// Silence between an answer and the next request, milliseconds.
        gap_ms: f64 = 100.0, range(0.0, 600_000.0), only(&["request_response"]);
        /// Whether each request has a connection of its own, and its time that of connecting in it. In namespaces only.
        reconnect: bool = false, only(&["request_response"]);
        /// Time between echo requests, milliseconds.
        interval_ms: f64 = 100.0, range(1.0, 600_000.0), only(&["ping"]);
    }
}

table! {
    /// In-band telemetry of a TCP flow, and what it may do to its sender (docs/int-cc.md). All segments leave room
    /// for a trace: 16 bytes and 36 per node, up to 8n. In namespaces, root: flows that leave a host by one interface
    /// share `every` and `nodes` (4 at most, 2 through the tunnel), all flows the bounds, all IPv6 flows with one control the room.
    pub struct Telemetry {
        /// One data segment in so many carries a trace.
        every: u32 = 8, range(1.0, 10_000.0);
        /// Nodes a trace has room for.
        nodes: u8 = 2, range(1.0, 6.0);
        /// *increment* of Eq. 1 (`int_cubic_ss`).
        increment: u32 = 2, range(1.0, 16.0);
        /// Most segments Eq. 1 adds per acknowledged one; 1 is ordinary slow start.
        growth_cap: u32 = 2, range(1.0, 16.0);
        /// No report raises the flow above this rate, Mbit/s.
        ceiling_mbps: f64 = 1000.0, range(0.1, 1_000_000.0);
        /// Reports older than so many round trips count for nothing.
        stale_rtts: u32 = 8, range(1.0, 255.0);
        /// Reports come to the sender's controller by a broker, so long after one another, milliseconds; left out, with the ACKs
        /// that have them. Virtual backend only.
        broker_interval_ms: Option<f64> = None, range(0.001, 60_000.0);
        /// From when the broker has a report until the controller has it, milliseconds.
        broker_delay_ms: f64 = 0.0, range(0.0, 60_000.0);
    }
}

table! {
    /// What a slice guarantees to a flow's sender: a paced one starts with a window of α·T·RTT/S (Eq. 1 of the paper on
    /// slices at the end host), as `selection::window` bounds it.
    pub struct FlowSlice {
        /// T: guaranteed rate, Mbit/s; left out, the initial window is 10 segments.
        guaranteed_mbps: Option<f64> = None, range(0.001, 100_000.0);
        /// RTT: upper bound of the round trip, milliseconds.
        rtt_ms: f64 = 30.0, range(0.001, 10_000.0);
        /// α: the share of the guarantee to use at once.
        alpha: f64 = 0.5, range(0.01, 1.0);
    }
}

table! {
    /// A network slice: one way into the network, and what the network promises for it. What is left out is not promised.
    pub struct Slice {
        /// The access of UEs that it is reached by.
        access: String = String::new(), required();
        /// Guaranteed rate towards the network, Mbit/s.
        up_guaranteed_mbps: Option<f64> = None, range(0.001, 100_000.0);
        /// Guaranteed rate from the network, Mbit/s.
        down_guaranteed_mbps: Option<f64> = None, range(0.001, 100_000.0);
        /// Upper bound of the round trip, milliseconds.
        rtt_ms: Option<f64> = None, range(0.001, 10_000.0);
        /// α of the initial window: the share of the guarantee to use at once.
        alpha: f64 = 0.5, range(0.01, 1.0);
    }
}

table! {
    /// Something that happens at a time.
    tag "kind"
    pub struct Event {
        /// What happens.
        kind: EventKind = EventKind::LinkDown, required();
        /// A name, to address the event in `set`.
        name: Option<String> = None;
        /// Off: the event does not happen.
        enabled: bool = true;
        /// When, seconds.
        at_s: f64 = 0.0, range(0.0, 86_400.0), required();
        /// Uniform random time added to `at_s`, 0 to this, seconds: another one in every run.
        at_jitter_s: f64 = 0.0, range(0.0, 3600.0);
        /// Happens again every so many seconds; left out, once.
        every_s: Option<f64> = None, range(0.001, 86_400.0);
        /// Which link.
        link: String = String::new(), required(),
            only(&["link_down", "link_up", "rate", "delay", "loss", "strip"]);
        /// Which directions of the link.
        direction: Directions = Directions::Both,
            only(&["link_down", "link_up", "rate", "delay", "loss", "strip"]);
        /// How the link goes down.
        how: DownHow = DownHow::Carrier, only(&["link_down"]);
        /// New rate, Mbit/s.
        rate_mbps: f64 = 10.0, range(0.001, 100_000.0), only(&["rate"]);
        /// New one-way delay, milliseconds.
        delay_ms: f64 = 10.0, range(0.0, 10_000.0), only(&["delay"]);
        /// New loss model.
        loss: Loss = Loss::default(), only(&["loss"]);
        /// What the link takes off from now on.
        strip: Strip = Strip::Both, only(&["strip"]);
        /// Which UE; may be left out where there is one.
        ue: Option<String> = None, only(&["steering", "switch_every"]);
        /// Which rule of the UE; left out, its first.
        rule: Option<String> = None, only(&["steering"]);
        /// The new mode.
        steering: Option<SteeringMode> = None, only(&["steering"]);
        /// Packets between two switches; 0 ends switching.
        packets: u32 = 2000, range(0.0, 1e9), only(&["switch_every"]);
        /// Which cell; may be left out where there is one.
        gnb: Option<String> = None, only(&["share"]);
        /// Which slice of the cell.
        slice: String = String::new(), required(), only(&["share"]);
        /// Its new share, percent.
        share_percent: f64 = 0.0, range(0.0, 100.0), required(), only(&["share"]);
    }
}

table! {
    /// How many users of 1, 2, 4 and 8 sessions fit in the same memory with each design of the UPF's
    /// tables (JUNCTION Table V; docs/atsss-memory.md).
    pub struct Memory {
        /// The memory, MiB.
        budget_mib: f64 = 25.0, range(0.01, 1e6);
        /// What an entry of the flat tables holds of the application.
        flat: FlatEntry = FlatEntry::Filter;
    }
}

table! {
    /// A named change of the file, run beside the others.
    pub struct Variant {
        /// Its metrics begin with this name and a dot.
        name: String = String::new(), required();
        /// One line for the report; left out, the name.
        title: Option<String> = None;
        /// Backends it runs on; left out, all of the scenario's.
        backends: Option<Vec<BackendName>> = None;
        /// Keys and their new values, written as dotted keys or nested tables. An element of a list is
        /// addressed by its `name`, its `id` or its number; `*` is every element of a list or table. A table that gives its `kind`, `mode` or
        /// `model` replaces the old one, any other table is merged into it.
        set: toml::Table = toml::Table::new();
    }
}

choice! {
    /// What a cell of a matrix is compared with: runs of the same cell with less.
    pub enum Reference {
        /// Each access alone, through the tunnel.
        Alone = "alone",
        /// Each access alone, without the tunnel.
        Direct = "direct",
        /// Kernel MPTCP over all accesses, without the tunnel; namespaces, and TCP without `call`.
        Mptcp = "mptcp",
    }
}

/// Cells by the values of their axes: of each axis that is named, one of the values.
pub type CellFilter = BTreeMap<String, Vec<String>>;

table! {
    /// A family of variants: one per combination of the values of all axes, called by these, joined by `_`. Each is a
    /// cell; what it is compared with is run beside it, once for all cells that share it. The scenario has one UE.
    pub struct Matrix {
        /// The flow whose goodput is judged; with `count`, all of them together.
        bulk: String = String::new(), required();
        /// A UDP flow beside it, judged by delay and loss; left out, there is none.
        call: Option<String> = None;
        /// The QoS flow of the cells' UEs whose waits are judged; left out, cells are not looked at.
        qfi: Option<u8> = None, range(0.0, 63.0);
        /// The axes, in the order in which their values make names and titles.
        axis: Vec<Axis> = Vec::new(), required();
        /// Axes that make the rows of the table, by name; the others make the columns.
        rows: Vec<String> = Vec::new();
        /// Which combinations there are: those that fit one of these filters. Left out, all.
        cells: Vec<CellFilter> = Vec::new();
        /// Which of them run in namespaces too, if `backends` has them: those that fit one of these filters.
        netns: Vec<CellFilter> = Vec::new();
        /// What each cell is compared with; with an empty list there may be any number of UEs.
        references: Vec<Reference> = vec![Reference::Alone];
        /// Cells to speak of together in claims, by name: those that fit one of the filters. `all` is there.
        group: BTreeMap<String, Vec<CellFilter>> = BTreeMap::new();
        /// By backend, the group that is run there where nothing else is asked for (`--whole`, `--filter`). A backend
        /// that is not named then runs none.
        chosen: BTreeMap<String, String> = BTreeMap::new();
        /// An axis and its value that each cell with another value is compared with, such as `{ sender = "cubic" }`.
        beside: BTreeMap<String, String> = BTreeMap::new();
        /// The same of the value that stands for doing nothing, such as `{ queue = "vanilla" }`: what the others cost.
        plain: BTreeMap<String, String> = BTreeMap::new();
        /// Start of the window of averages, after `start_s` of the bulk, seconds.
        from_s: f64 = 3.0, range(0.0, 86_400.0);
    }
}

table! {
    /// An axis of a matrix.
    pub struct Axis {
        /// Name, for filters.
        name: String = String::new(), required();
        /// Heading in the table; left out, the name.
        title: Option<String> = None;
        /// Its values: as variants, but their names have no `_`.
        value: Vec<Variant> = Vec::new(), required();
    }
}

table! {
    /// What must hold, beside what the paper says.
    pub struct Claim {
        /// Short unique name.
        id: String = String::new(), required();
        /// One line for a reader who has not seen the scenario.
        what: String = String::new(), required();
        /// The paper's figure, a number in `unit` or words.
        paper: Option<PaperValue> = None;
        /// Expression over metrics: names, numbers, `+ - * /`, parentheses, `min(…)`, `max(…)`,
        /// `abs(…)`, `jain(…)`. Write a minus with a space before it.
        metric: String = String::new(), required();
        /// Unit of the measured value.
        unit: String = String::new();
        /// Holds if the value is at least this.
        min: Option<f64> = None;
        /// Holds if the value is at most this.
        max: Option<f64> = None;
        /// Holds if the value is within so many percent of `paper`.
        within_percent: Option<f64> = None, range(0.0, 1000.0);
        /// Backends it is checked on; left out, all.
        backends: Option<Vec<BackendName>> = None;
        /// Why our figure is not in the band, and the band it is in instead. Such a claim is reported as `differs`
        /// while it is there; outside it fails, and so it does once the claim's own band holds at five seeds.
        differs: Option<Differs> = None;
    }
}

table! {
    /// Why a claim is not in its band, and where our figure is.
    pub struct Differs {
        /// The reason, for a reader who has not seen the scenario.
        why: String = String::new(), required();
        /// Least value that the reason covers: what five seeds gave, less its spread (`run --bands` prints it).
        min: f64 = 0.0, required();
        /// Largest value that the reason covers.
        max: f64 = 0.0, required();
    }
}

table! {
    /// A figure of the report.
    pub struct Plot {
        /// How it is drawn.
        kind: PlotKind = PlotKind::Time, required();
        /// Title.
        title: String = String::new(), required();
        /// What is drawn: names of series; for `bars` and `scatter`, metric expressions. With more than one run
        /// every metric is a series over the runs as well.
        series: Vec<String> = Vec::new(), required();
        /// Scatter: metric expressions of the x coordinates, one per series.
        x: Vec<String> = Vec::new();
        /// Scatter: so many points one after the other have one colour and are joined by a line.
        group: u32 = 1, range(1.0, 1000.0);
        /// Legend, one per series, or per group; left out, the names.
        labels: Vec<String> = Vec::new();
        /// Bars: colours repeat after so many bars, such as 2 for pairs.
        cycle: u32 = 8, range(1.0, 8.0);
        /// Label of the x axis; left out, by kind.
        x_label: Option<String> = None;
        /// Label of the y axis; left out, by kind.
        y_label: Option<String> = None;
        /// Start of the x axis; left out, from the data.
        x_min: Option<f64> = None;
        /// End of the x axis; left out, from the data.
        x_max: Option<f64> = None;
        /// Start of the y axis; left out, zero.
        y_min: Option<f64> = None;
        /// End of the y axis; left out, from the data.
        y_max: Option<f64> = None;
        /// The x axis in powers of ten. Not for `box` and `bars`.
        x_log: bool = false;
        /// The y axis in powers of ten. Not for `bars`.
        y_log: bool = false;
        /// Backends it is drawn for; left out, all.
        backends: Option<Vec<BackendName>> = None;
    }
}
