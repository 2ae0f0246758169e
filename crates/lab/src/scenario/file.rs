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
        /// Virtual time: the network, host and TCP models of this program; deterministic; needs no root.
        Virtual = "virtual",
        /// Network namespaces: the `anabranch` program, kernel TCP and real time.
        Netns = "netns",
    }
}

choice! {
    /// Direction of data, as seen from the UE.
    pub enum Direction {
        /// From the server to the UE.
        Down = "down",
        /// From the UE to the server.
        Up = "up",
    }
}

choice! {
    /// Directions of a link to which an event applies.
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
        /// 8-byte header without encryption; only for trusted accesses.
        Plain = "plain",
    }
}

choice! {
    /// Kind of traffic of a flow.
    pub enum FlowKind {
        /// UDP at a constant bit rate.
        Cbr = "cbr",
        /// UDP bursts: constant rate while on, silence while off; both durations are exponentially distributed.
        OnOff = "on_off",
        /// One TCP transfer at the highest rate that TCP allows.
        BulkTcp = "bulk_tcp",
        /// Requests and responses over one TCP connection, one at a time.
        RequestResponse = "request_response",
        /// UDP echo requests at a fixed interval.
        Ping = "ping",
    }
}

choice! {
    /// Program that carries a flow in namespaces.
    pub enum Program {
        /// Sources and sinks of this program, which check every byte.
        Own = "own",
        /// A file served by nginx and fetched by curl; sha256sum compares the two copies.
        Curl = "curl",
        /// iperf3: TCP, with `congestion_control` passed as `-C`.
        Iperf3 = "iperf3",
        /// irtt: packets with replies, time-stamped at both ends; the sender of a `cbr` flow is the client.
        Irtt = "irtt",
        /// MAVLink messages of a vehicle, generated and parsed by pymavlink, uplink, over UDP.
        Mavlink = "mavlink",
        /// The same over one TCP connection; a message counts as delivered when its sender has received the ACK.
        MavlinkTcp = "mavlink_tcp",
        /// Video sent by ffmpeg over RTMP and recorded by nginx, uplink.
        Ffmpeg = "ffmpeg",
        /// One QUIC stream of quinn, with quinn's CUBIC, BBR or Reno.
        Quinn = "quinn",
    }
}

choice! {
    /// Loss detection of a TCP sender.
    pub enum Recovery {
        /// By time (RACK-TLP, RFC 8985), spurious reductions undone: Linux since 4.18.
        Rack = "rack",
        /// Always by the third duplicate ACK; nothing is undone (RFC 5681, RFC 6675).
        Classic = "classic",
        /// By duplicate ACKs, with a threshold that grows with the observed reordering; spurious reductions undone:
        /// Linux before RACK.
        Adaptive = "adaptive",
    }
}

choice! {
    /// Action of an event.
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
        /// The steering mode of a rule of a UE changes, in both directions.
        Steering = "steering",
        /// From this time on, the UE's uplink moves to its next path every N packets.
        SwitchEvery = "switch_every",
        /// The share of a slice of a cell changes.
        Share = "share",
        /// A link starts or stops removing telemetry from packets.
        Strip = "strip",
    }
}

choice! {
    /// How a link goes down.
    pub enum DownHow {
        /// The UE detects loss of carrier (radio lost, cable unplugged).
        Carrier = "carrier",
        /// Packets are dropped silently, without any indication.
        BlackHole = "black_hole",
    }
}

choice! {
    /// Model of random packet loss on a link.
    pub enum LossModel {
        /// None.
        None = "none",
        /// The same loss probability for each packet.
        Bernoulli = "bernoulli",
        /// Two states, each with its own loss probability.
        GilbertElliott = "gilbert-elliott",
    }
}

choice! {
    /// What a middlebox removes from packets, as if it did not support it.
    pub enum Strip {
        /// Nothing.
        None = "none",
        /// IOAM option headers; no trace arrives.
        Traces = "traces",
        /// TCP options with reports; no report arrives.
        Reports = "reports",
        /// Both.
        Both = "both",
    }
}

choice! {
    /// Application part of the key of a flat table.
    pub enum FlatEntry {
        /// The session's own filter, as in PFCP.
        Filter = "filter",
        /// Number of an application, determined by a classifier that all sessions share.
        ApplicationId = "application-id",
    }
}

choice! {
    /// Type of a plot.
    pub enum PlotKind {
        /// Series over time.
        Time = "time",
        /// Distribution of the values of each series.
        Cdf = "cdf",
        /// Median, quartiles and whiskers of each series.
        Box = "box",
        /// One bar per metric expression.
        Bars = "bars",
        /// Points whose coordinates are metric expressions.
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
    /// Top-level keys of a scenario file.
    pub struct File {
        /// Title of the scenario, one line.
        title: String = String::new(), required();
        /// Source of the scenario, such as a figure of a paper.
        paper: Option<String> = None;
        /// Description of the scenario and its purpose, for the report.
        description: Option<String> = None;
        /// Seed of the first run; overridden by `--seed`.
        seed: u64 = 1;
        /// Number of runs, each with its own seed. With more than one run, every metric `m` is the median over the
        /// runs, and `m.mean`, `m.min`, `m.max`, `m.p99` exist too.
        runs: u32 = 1, range(1.0, 10_000.0);
        /// Duration of one run, seconds.
        duration_s: f64 = 10.0, range(0.001, 86_400.0);
        /// Start of the window over which averages (goodput, delay, loss) are computed, seconds.
        measure_from_s: f64 = 0.0, range(0.0, 86_400.0);
        /// Sampling interval of time series, milliseconds.
        sample_ms: f64 = 100.0, range(1.0, 60_000.0);
        /// Required files that are not shipped, relative to the scenario file. If one is missing, the scenario is
        /// skipped with a message.
        needs: Vec<String> = Vec::new();
        /// Backends the scenario can run on.
        backends: Vec<BackendName> = vec![BackendName::Virtual];
        /// Access links by name. UEs that use the same link share it.
        link: BTreeMap<String, Link> = BTreeMap::new();
        /// Cells by name: accesses with SDAP, RLC, MAC, slices and a radio channel.
        gnb: BTreeMap<String, Gnb> = BTreeMap::new();
        /// LWIP nodes by name: a bearer split over LTE and Wi-Fi, packet by packet.
        lwip: BTreeMap<String, Lwip> = BTreeMap::new();
        /// User-plane functions by name. If none is given, there is one, `upf`, with the defaults.
        upf: BTreeMap<String, Upf> = BTreeMap::new();
        /// Servers behind the UPF by name. If none is given, there is one, `server`, with the defaults.
        server: BTreeMap<String, Server> = BTreeMap::new();
        /// User equipments by name.
        ue: BTreeMap<String, Ue> = BTreeMap::new();
        /// Network slices by name, held by the slice manager. UEs with flows `via = "slices"` receive theirs: in
        /// namespaces through the programs, in virtual time before the run, through the decision logic of these
        /// programs.
        slice: BTreeMap<String, Slice> = BTreeMap::new();
        /// Traffic flows by name.
        flow: BTreeMap<String, Flow> = BTreeMap::new();
        /// Timed events.
        event: Vec<Event> = Vec::new();
        /// User-defined metrics, computed after each run. Each is an expression over metrics and over series, with
        /// `mean(series, from_s, to_s)`, `lowest(…)`, `highest(…)`, `first_above(series, level, from_s)` and
        /// `first_below(…)` (time in seconds), `correlation(series, series, lag_s)` and `lag(series, series, most_s)`;
        /// `jain(…)` is the fairness index of its arguments. The metric `x` is named `metric.x`.
        metric: BTreeMap<String, String> = BTreeMap::new();
        /// Memory of the UPF's tables, computed without a run.
        memory: Option<Memory> = None;
        /// Changes for the short form selected by `--quick`, written like `variant.set`: fewer or shorter runs. Claims
        /// apply to both forms unless the file states otherwise; `claim.<id>.backends = []` removes one.
        quick: Option<toml::Table> = None;
        /// Named changes to this file. If there are variants, each is run, and its metrics begin with its name and a
        /// dot. A variant without `set` is the unchanged file.
        variant: Vec<Variant> = Vec::new();
        /// Instead of `variant`: a family of variants, generated from the combinations of the values of several axes.
        matrix: Option<Matrix> = None;
        /// Conditions on the results.
        claim: Vec<Claim> = Vec::new();
        /// Plots of the report.
        plot: Vec<Plot> = Vec::new();
    }
}

table! {
    /// An access link between UEs and the UPF. Each direction is a bottleneck with a queue, followed by a delay.
    pub struct Link {
        /// Direction from the UE to the UPF.
        up: LinkDirection = LinkDirection::default();
        /// Direction from the UPF to the UE.
        down: LinkDirection = LinkDirection::default();
    }
}

table! {
    /// One direction of a link.
    pub struct LinkDirection {
        /// Rate in Mbit/s of entire IP packets.
        rate_mbps: f64 = 100.0, range(0.001, 100_000.0);
        /// One-way delay after the bottleneck, milliseconds.
        delay_ms: f64 = 5.0, range(0.0, 10_000.0);
        /// Maximum additional delay, milliseconds; each packet gets a uniformly distributed value from 0 to this.
        jitter_ms: f64 = 0.0, range(0.0, 10_000.0);
        /// Whether jitter may reorder packets.
        reorder: bool = false;
        /// Length of the drop-tail queue, in milliseconds at `rate_mbps`.
        queue_ms: f64 = 100.0, range(0.1, 60_000.0);
        /// Length of the drop-tail queue as a multiple of the rate times twice `delay_ms`; takes precedence over
        /// `queue_ms`.
        queue_bdp: Option<f64> = None, range(0.01, 1000.0);
        /// Length of the drop-tail queue in bytes; takes precedence over `queue_ms` and `queue_bdp`.
        queue_bytes: Option<u64> = None, range(1500.0, 1e9);
        /// Length of the drop-tail queue in packets; takes precedence over `queue_ms` and `queue_bdp`. With
        /// `queue_bytes`, both limits apply.
        queue_packets: Option<u64> = None, range(1.0, 1e6);
        /// Random loss.
        loss: Loss = Loss::default();
        /// Variable rate, in place of `rate_mbps`: path of a mahimahi trace or of a CSV file with lines
        /// `time_s,rate_bps`, relative to the scenario file.
        trace: Option<String> = None;
        /// Whether a CSV trace repeats at its end (a mahimahi trace always does).
        trace_repeat: bool = false;
        /// Largest IP packet in bytes; larger ones are dropped silently. Unlimited by default.
        mtu_bytes: Option<u64> = None, range(576.0, 65_535.0);
        /// Identifier of the IOAM node that fills traces in packets on this link; without it, traces are not filled.
        ioam_node: Option<u32> = None, range(1.0, 16_777_214.0);
        /// Telemetry removed from packets on this link.
        strip: Strip = Strip::None;
    }
}

table! {
    /// Random loss of a link.
    tag "model"
    pub struct Loss {
        /// Loss model.
        model: LossModel = LossModel::None;
        /// Packet loss probability, percent.
        percent: f64 = 0.0, range(0.0, 100.0), only(&["bernoulli"]);
        /// Probability per packet of a transition from the good to the bad state, percent.
        good_to_bad_percent: f64 = 1.0, range(0.0, 100.0), only(&["gilbert-elliott"]);
        /// Probability per packet of a transition from the bad to the good state, percent.
        bad_to_good_percent: f64 = 25.0, range(0.0, 100.0), only(&["gilbert-elliott"]);
        /// Packet loss probability in the good state, percent.
        good_loss_percent: f64 = 0.0, range(0.0, 100.0), only(&["gilbert-elliott"]);
        /// Packet loss probability in the bad state, percent.
        bad_loss_percent: f64 = 100.0, range(0.0, 100.0), only(&["gilbert-elliott"]);
    }
}

table! {
    /// A user-plane function.
    pub struct Upf {
        /// Number of pausable queues in the uplink reordering pool.
        reorder_queues: u16 = 127, range(0.0, 4096.0);
        /// Identifier of the IOAM node that fills traces in inner packets, in both directions; without it, traces are
        /// not filled.
        ioam_node: Option<u32> = None, range(1.0, 16_777_214.0);
    }
}

table! {
    /// A server behind the UPF.
    pub struct Server {
        /// Rate of its N6 link in each direction, Mbit/s. The drop-tail queue of the link holds 100 ms.
        rate_mbps: f64 = 1000.0, range(0.001, 100_000.0);
        /// One-way delay of its N6 link, milliseconds.
        delay_ms: f64 = 0.5, range(0.0, 10_000.0);
        /// Identifier of the IOAM node that fills traces in packets on its N6 link; without it, traces are not filled.
        ioam_node: Option<u32> = None, range(1.0, 16_777_214.0);
    }
}

table! {
    /// A user equipment.
    pub struct Ue {
        /// UPF of this UE; optional if there is only one.
        upf: Option<String> = None;
        /// Accesses of the UE; their order determines the path numbers.
        accesses: Vec<Access> = Vec::new(), required();
        /// ATSSS rules for both directions; the first match applies. Default: active-standby with the first access as
        /// primary.
        rules: Vec<Rule> = Vec::new();
        /// Form of the tunnel on its accesses.
        security: Security = Security::Secure;
        /// Identifier of the IOAM node with which the UE's tunnel endpoint fills traces in inner packets, in both
        /// directions; without it, traces are not filled.
        ioam_node: Option<u32> = None, range(1.0, 16_777_214.0);
    }
}

table! {
    /// An access of a UE.
    pub struct Access {
        /// Name, such as `5g` or `wifi`.
        name: String = String::new(), required();
        /// Link or cell of this access.
        link: String = String::new(), required();
        /// Form of the tunnel on this access; default: that of the UE.
        security: Option<Security> = None;
    }
}

table! {
    /// Traffic between one UE and one server.
    tag "kind"
    pub struct Flow {
        /// Kind of traffic.
        kind: FlowKind = FlowKind::Cbr, required();
        /// Whether the flow is part of the scenario; if not, its metrics do not exist either.
        enabled: bool = true;
        /// Number of identical flows. Several flows are named `<flow>-1`, `<flow>-2` and so on, each with its own port.
        count: u32 = 1, range(1.0, 256.0);
        /// UE of this flow; optional if there is only one.
        ue: Option<String> = None;
        /// Server of this flow; optional if there is only one.
        server: Option<String> = None;
        /// Direction of the data. In request_response and ping flows the UE always sends the requests.
        direction: Direction = Direction::Down, only(&["cbr", "on_off", "bulk_tcp"]);
        /// Route: `atsss` (the session), `direct:<access>` (that access without a tunnel), `lwip` (through the LWIP
        /// node; `lwip:<node>` if there are several), `mptcp` (kernel MPTCP over all accesses; namespaces and TCP only)
        /// or `slices` (by the UE's policy for `needs`).
        via: String = "atsss".into();
        /// Properties that the application requests from the UE's agent, by the names of RFC 9622 and `_slice.*`
        /// (docs/taps.md), such as `{ minRecvRate = 130_000_000 }`. Only with `via = "slices"`.
        needs: Option<toml::Table> = None;
        /// Server port, for the filters of rules; unique per protocol at this server. Default: a free port from 5001.
        port: Option<u16> = None;
        /// Start time, seconds.
        start_s: f64 = 0.0, range(0.0, 86_400.0);
        /// Maximum random time added to `start_s`, milliseconds; uniformly distributed from 0 and different in each
        /// run. Virtual backend only.
        start_jitter_ms: f64 = 0.0, range(0.0, 60_000.0), only(&["cbr", "on_off", "ping"]);
        /// Sending time, seconds; default: until the end of the run.
        duration_s: Option<f64> = None, range(0.001, 86_400.0);
        /// Bytes to transfer; default: the flow sends until its time is over.
        bytes: Option<u64> = None, range(1.0, 1e12), only(&["bulk_tcp"]);
        /// Rate of application data while sending, Mbit/s.
        rate_mbps: f64 = 10.0, range(0.001, 100_000.0), only(&["cbr", "on_off"]);
        /// Data per packet (UDP payload), bytes. More than 1372 requires `via = "direct:<access>"`; more than 1452
        /// requires the virtual backend.
        packet_bytes: u32 = 1200, range(32.0, 8952.0), only(&["cbr", "on_off", "ping"]);
        /// Mean duration of a burst, milliseconds.
        on_ms: f64 = 500.0, range(1.0, 600_000.0), only(&["on_off"]);
        /// Mean duration of a silence, milliseconds.
        off_ms: f64 = 500.0, range(1.0, 600_000.0), only(&["on_off"]);
        /// Rate at which the application writes, Mbit/s; default: as fast as TCP accepts data.
        limit_mbps: Option<f64> = None, range(0.001, 100_000.0), only(&["bulk_tcp"]);
        /// Program that carries the flow in namespaces: `curl` (bulk_tcp) downloads `bytes` from nginx; `iperf3` is for
        /// bulk_tcp, `irtt` for cbr and ping. `mavlink` and `mavlink_tcp` (cbr, up) send as many messages of a vehicle
        /// as fit in `rate_mbps`. `ffmpeg` (bulk_tcp, up) sends a video of `limit_mbps`. `quinn` carries a bulk_tcp
        /// flow over QUIC instead of TCP, with quinn's own `congestion_control`. Virtual time always uses models.
        program: Program = Program::Own, only(&["bulk_tcp", "cbr", "ping"]);
        /// Congestion control of the sender.
        congestion_control: CongestionControl = CongestionControl::Cubic, only(&["bulk_tcp", "request_response"]);
        /// Loss detection of the sender. In namespaces it applies to all senders of a host.
        recovery: Recovery = Recovery::Rack, only(&["bulk_tcp", "request_response"]);
        /// Selective acknowledgements. Without them, losses are detected by duplicate ACKs, whatever `recovery` is. In
        /// namespaces it applies to the entire host.
        sack: bool = true, only(&["bulk_tcp", "request_response"]);
        /// Whether the flow runs over IPv6; with `via = "direct:<access>"` or `"atsss"` only.
        ipv6: bool = false;
        /// In-band telemetry: IOAM traces in data segments, and path reports in ACKs. Default: none. Requires `ipv6`.
        telemetry: Option<Telemetry> = None, only(&["bulk_tcp", "request_response"]);
        /// Whether segments are spread over the round trip, as with SO_MAX_PACING_RATE. In namespaces only for uplink
        /// and request_response flows of `program = "own"`.
        paced: bool = false, only(&["bulk_tcp", "request_response"]);
        /// Guarantees of the flow's slice, which determine the initial window. Virtual backend only.
        slice: FlowSlice = FlowSlice::default(), only(&["bulk_tcp", "request_response"]);
        /// Size of a request in bytes.
        request_bytes: u32 = 200, range(1.0, 1e8), only(&["request_response"]);
        /// Size of a response in bytes.
        response_bytes: u32 = 20_000, range(1.0, 1e8), only(&["request_response"]);
        /// Pause between a response and the next request, milliseconds.
        gap_ms: f64 = 100.0, range(0.0, 600_000.0), only(&["request_response"]);
        /// Whether each request opens a new connection; its response time then includes connection setup. Namespaces
        /// only.
        reconnect: bool = false, only(&["request_response"]);
        /// Interval between echo requests, milliseconds.
        interval_ms: f64 = 100.0, range(1.0, 600_000.0), only(&["ping"]);
    }
}

table! {
    /// In-band telemetry of a TCP flow, and its influence on the sender (docs/int-cc.md). Every segment reserves space
    /// for a trace: 16 bytes plus 36 per node, rounded up to a multiple of 8. Namespaces require root. There, flows
    /// that leave a host by the same interface share `every` and `nodes` (at most 4; 2 through the tunnel), all flows
    /// share the bounds, and all IPv6 flows with the same congestion control share the reserved space.
    pub struct Telemetry {
        /// Number of data segments per trace.
        every: u32 = 8, range(1.0, 10_000.0);
        /// Number of nodes for which a trace has space.
        nodes: u8 = 2, range(1.0, 6.0);
        /// *increment* of Eq. 1 (`int_cubic_ss`).
        increment: u32 = 2, range(1.0, 16.0);
        /// Maximum number of segments that Eq. 1 adds per acknowledged segment; 1 is ordinary slow start.
        growth_cap: u32 = 2, range(1.0, 16.0);
        /// Maximum rate to which reports can raise the flow, Mbit/s.
        ceiling_mbps: f64 = 1000.0, range(0.1, 1_000_000.0);
        /// Age in round trips above which reports are ignored.
        stale_rtts: u32 = 8, range(1.0, 255.0);
        /// Interval at which a broker passes reports to the sender's controller, milliseconds; default: reports reach
        /// it with the ACKs that carry them. Virtual backend only.
        broker_interval_ms: Option<f64> = None, range(0.001, 60_000.0);
        /// Delay of a report from the broker to the controller, milliseconds.
        broker_delay_ms: f64 = 0.0, range(0.0, 60_000.0);
    }
}

table! {
    /// Guarantees of a slice to a flow's sender. A paced sender starts with a window of α·T·RTT/S (Eq. 1 of the paper
    /// on slices at the end host), limited by `selection::window`.
    pub struct FlowSlice {
        /// T: guaranteed rate, Mbit/s; without it, the initial window is 10 segments.
        guaranteed_mbps: Option<f64> = None, range(0.001, 100_000.0);
        /// RTT: upper bound of the round-trip time, milliseconds.
        rtt_ms: f64 = 30.0, range(0.001, 10_000.0);
        /// α: share of the guarantee to use immediately.
        alpha: f64 = 0.5, range(0.01, 1.0);
    }
}

table! {
    /// A network slice: an access to the network and its guarantees. Omitted properties are not guaranteed.
    pub struct Slice {
        /// Access of the UEs through which the slice is reached.
        access: String = String::new(), required();
        /// Guaranteed uplink rate, Mbit/s.
        up_guaranteed_mbps: Option<f64> = None, range(0.001, 100_000.0);
        /// Guaranteed downlink rate, Mbit/s.
        down_guaranteed_mbps: Option<f64> = None, range(0.001, 100_000.0);
        /// Upper bound of the round-trip time, milliseconds.
        rtt_ms: Option<f64> = None, range(0.001, 10_000.0);
        /// α of the initial window: share of the guarantee to use immediately.
        alpha: f64 = 0.5, range(0.01, 1.0);
    }
}

table! {
    /// A timed event.
    tag "kind"
    pub struct Event {
        /// Action.
        kind: EventKind = EventKind::LinkDown, required();
        /// Name by which `set` can address the event.
        name: Option<String> = None;
        /// Whether the event takes place.
        enabled: bool = true;
        /// Time, seconds.
        at_s: f64 = 0.0, range(0.0, 86_400.0), required();
        /// Maximum random time added to `at_s`, seconds; uniformly distributed from 0 and different in each run.
        at_jitter_s: f64 = 0.0, range(0.0, 3600.0);
        /// Interval of repetition, seconds; default: no repetition.
        every_s: Option<f64> = None, range(0.001, 86_400.0);
        /// Link concerned.
        link: String = String::new(), required(),
            only(&["link_down", "link_up", "rate", "delay", "loss", "strip"]);
        /// Directions of the link concerned.
        direction: Directions = Directions::Both,
            only(&["link_down", "link_up", "rate", "delay", "loss", "strip"]);
        /// Kind of link failure.
        how: DownHow = DownHow::Carrier, only(&["link_down"]);
        /// New rate, Mbit/s.
        rate_mbps: f64 = 10.0, range(0.001, 100_000.0), only(&["rate"]);
        /// New one-way delay, milliseconds.
        delay_ms: f64 = 10.0, range(0.0, 10_000.0), only(&["delay"]);
        /// New loss model.
        loss: Loss = Loss::default(), only(&["loss"]);
        /// Telemetry that the link removes from this time on.
        strip: Strip = Strip::Both, only(&["strip"]);
        /// UE concerned; optional if there is only one.
        ue: Option<String> = None, only(&["steering", "switch_every"]);
        /// Rule of the UE; default: its first.
        rule: Option<String> = None, only(&["steering"]);
        /// New steering mode.
        steering: Option<SteeringMode> = None, only(&["steering"]);
        /// Number of packets between two switches; 0 ends switching.
        packets: u32 = 2000, range(0.0, 1e9), only(&["switch_every"]);
        /// Cell concerned; optional if there is only one.
        gnb: Option<String> = None, only(&["share"]);
        /// Slice of the cell.
        slice: String = String::new(), required(), only(&["share"]);
        /// New share, percent.
        share_percent: f64 = 0.0, range(0.0, 100.0), required(), only(&["share"]);
    }
}

table! {
    /// Number of users with 1, 2, 4 and 8 sessions that fit in the same memory with each design of the UPF's tables
    /// (JUNCTION Table V; docs/atsss-memory.md).
    pub struct Memory {
        /// Available memory, MiB.
        budget_mib: f64 = 25.0, range(0.01, 1e6);
        /// Application part of an entry of the flat tables.
        flat: FlatEntry = FlatEntry::Filter;
    }
}

table! {
    /// A named change of the file, run in addition to the others.
    pub struct Variant {
        /// Name; its metrics begin with it and a dot.
        name: String = String::new(), required();
        /// One-line title for the report; default: the name.
        title: Option<String> = None;
        /// Backends on which it runs; default: all of the scenario.
        backends: Option<Vec<BackendName>> = None;
        /// Keys and their new values, written as dotted keys or nested tables. An element of a list is addressed by its
        /// `name`, its `id` or its number; `*` addresses every element of a list or table. A table with `kind`, `mode`
        /// or `model` replaces the old one; any other table is merged into it.
        set: toml::Table = toml::Table::new();
    }
}

choice! {
    /// Reference runs with which a cell of a matrix is compared.
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
    /// A family of variants, called cells: one per combination of the values of all axes, named by these values joined
    /// with `_`. The reference runs of each cell are added, once for all cells that share them. The scenario has one
    /// UE.
    pub struct Matrix {
        /// Flow whose goodput is evaluated; with `count`, the sum of all of them.
        bulk: String = String::new(), required();
        /// Concurrent UDP flow, evaluated by delay and loss; default: none.
        call: Option<String> = None;
        /// QoS flow of the UEs of radio cells whose waiting times are evaluated; default: none.
        qfi: Option<u8> = None, range(0.0, 63.0);
        /// Axes, in the order in which their values form names and titles.
        axis: Vec<Axis> = Vec::new(), required();
        /// Names of the axes that form the rows of the table; the others form the columns.
        rows: Vec<String> = Vec::new();
        /// Existing combinations: those that match one of these filters. Default: all.
        cells: Vec<CellFilter> = Vec::new();
        /// Combinations that also run in namespaces, if `backends` includes them: those that match one of these
        /// filters. Default: all.
        netns: Vec<CellFilter> = Vec::new();
        /// Reference runs of each cell; if the list is empty, any number of UEs is allowed.
        references: Vec<Reference> = vec![Reference::Alone];
        /// Named groups of cells for use in claims: those that match one of the filters. The group `all` always exists.
        group: BTreeMap<String, Vec<CellFilter>> = BTreeMap::new();
        /// By backend, the group to run unless `--whole` or `--filter` is given. A backend that is not listed then runs
        /// no cell.
        chosen: BTreeMap<String, String> = BTreeMap::new();
        /// An axis and a value of it with which cells of other values are compared, such as `{ sender = "cubic" }`.
        beside: BTreeMap<String, String> = BTreeMap::new();
        /// An axis and its baseline value, such as `{ queue = "vanilla" }`; shows the cost of the other values.
        plain: BTreeMap<String, String> = BTreeMap::new();
        /// Start of the averaging window, seconds after `start_s` of the bulk flow.
        from_s: f64 = 3.0, range(0.0, 86_400.0);
    }
}

table! {
    /// An axis of a matrix.
    pub struct Axis {
        /// Name, for filters.
        name: String = String::new(), required();
        /// Heading in the table; default: the name.
        title: Option<String> = None;
        /// Values: written as variants, but without `_` in their names.
        value: Vec<Variant> = Vec::new(), required();
    }
}

table! {
    /// A condition on the results, with the figure of the paper.
    pub struct Claim {
        /// Short unique name.
        id: String = String::new(), required();
        /// One-line description, for a reader who does not know the scenario.
        what: String = String::new(), required();
        /// Figure of the paper: a number in `unit`, or text.
        paper: Option<PaperValue> = None;
        /// Expression over metrics: names, numbers, `+ - * /`, parentheses, `min(…)`, `max(…)`, `abs(…)`, `jain(…)`. A
        /// minus sign must follow a space.
        metric: String = String::new(), required();
        /// Unit of the measured value.
        unit: String = String::new();
        /// Smallest value for which the claim holds.
        min: Option<f64> = None;
        /// Largest value for which the claim holds.
        max: Option<f64> = None;
        /// Largest deviation from `paper` for which the claim holds, percent.
        within_percent: Option<f64> = None, range(0.0, 1000.0);
        /// Backends on which it is checked; default: all.
        backends: Option<Vec<BackendName>> = None;
        /// Reason why the measured value is outside the band of the claim, and the band in which it is instead. Within
        /// that band the claim is reported as `differs`. Outside it the claim fails, as it does once its own band holds
        /// at five seeds.
        differs: Option<Differs> = None;
    }
}

table! {
    /// Reason why the value of a claim is outside its band, and the band of the measured value.
    pub struct Differs {
        /// Reason, for a reader who does not know the scenario.
        why: String = String::new(), required();
        /// Smallest value that the reason covers: the result of five seeds minus its spread (`run --bands` prints it).
        min: f64 = 0.0, required();
        /// Largest value that the reason covers.
        max: f64 = 0.0, required();
    }
}

table! {
    /// A plot of the report.
    pub struct Plot {
        /// Type of plot.
        kind: PlotKind = PlotKind::Time, required();
        /// Title.
        title: String = String::new(), required();
        /// Names of series; for `bars` and `scatter`, metric expressions. With more than one run, every metric is also
        /// a series over the runs.
        series: Vec<String> = Vec::new(), required();
        /// Scatter: metric expressions of the x coordinates, one per series.
        x: Vec<String> = Vec::new();
        /// Scatter: number of consecutive points that share a colour and are joined by a line.
        group: u32 = 1, range(1.0, 1000.0);
        /// Legend, one entry per series or group; default: the names.
        labels: Vec<String> = Vec::new();
        /// Bars: number of bars after which colours repeat, such as 2 for pairs.
        cycle: u32 = 8, range(1.0, 8.0);
        /// Label of the x axis; default: by kind.
        x_label: Option<String> = None;
        /// Label of the y axis; default: by kind.
        y_label: Option<String> = None;
        /// Start of the x axis; default: from the data.
        x_min: Option<f64> = None;
        /// End of the x axis; default: from the data.
        x_max: Option<f64> = None;
        /// Start of the y axis; default: zero.
        y_min: Option<f64> = None;
        /// End of the y axis; default: from the data.
        y_max: Option<f64> = None;
        /// Whether the x axis is logarithmic. Not for `box` and `bars`.
        x_log: bool = false;
        /// Whether the y axis is logarithmic. Not for `bars`.
        y_log: bool = false;
        /// Backends for which it is drawn; default: all.
        backends: Option<Vec<BackendName>> = None;
    }
}
