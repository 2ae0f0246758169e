//! Types of the REST interface. Names of members include units; times are Unix time in milliseconds.

use super::schema::RuleSchema;
use anabranch_steer::Rule;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// State of the program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Status {
    /// `ue`, `upf`, `gnb`, `lwip` or `proxy`.
    #[schema(example = "ue")]
    pub part: String,
    /// Name in the configuration.
    pub name: String,
    /// Version of the program.
    pub version: String,
    /// Time since the start, seconds.
    pub uptime_s: u64,
    /// Public key of this agent.
    pub public_key: String,
    /// Name of the inner interface.
    pub device: String,
    /// MTU of the inner interface, bytes.
    pub mtu_bytes: u16,
    /// Configured sessions (UE: 1; proxy: flows).
    pub sessions: u64,
    /// Sessions that are up.
    pub connected: u64,
    /// UEs without a session, with the reason. UPF: the UEs refused during the last five minutes, at most 32.
    /// UE: its own name, also if the UPF's name has not resolved since a reload.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub trouble: BTreeMap<String, String>,
    /// Dropped packets by reason, over all sessions.
    pub drops: BTreeMap<String, u64>,
    /// Packets with IOAM traces by result: `marked`, `no_room`, `other_namespace`, `malformed`. Absent if the
    /// agent is not an IOAM node.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ioam: BTreeMap<String, u64>,
    /// State of each data-path thread.
    pub workers: Vec<WorkerStatus>,
}

/// Counters of a data-path thread.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WorkerStatus {
    /// Counters of the sockets, by access.
    pub accesses: BTreeMap<String, Counters>,
    /// Packets read from the inner interface.
    pub device_rx_packets: u64,
    /// Frames in which they were read (segmentation offload).
    pub device_rx_frames: u64,
    /// Packets delivered to the inner interface.
    pub device_tx_packets: u64,
    /// Frames in which they were delivered.
    pub device_tx_frames: u64,
    /// Frames that the inner interface refused.
    pub device_errors: u64,
    /// Packets handed over to the worker that serves their session.
    pub handed_over: u64,
    /// Packets dropped because that worker's queue was full.
    pub handover_full: u64,
    /// Events that the control plane did not take in time.
    pub events_lost: u64,
    /// UPF: number of times a UE was displaced from its session by another device with the same key.
    #[serde(default)]
    pub key_conflicts: u64,
    /// Paths of sessions that the kernel's fast path serves at present.
    #[serde(default)]
    pub fast_lanes: u64,
    /// Flows given to the fast path.
    #[serde(default)]
    pub fast_flows: u64,
    /// Number of times a session took its flows back.
    #[serde(default)]
    pub fast_taken_back: u64,
    /// Datagrams sent by the fast path.
    #[serde(default)]
    pub fast_tx_datagrams: u64,
    /// Datagrams received by the fast path.
    #[serde(default)]
    pub fast_rx_datagrams: u64,
    /// Datagrams that the fast path failed to create.
    #[serde(default)]
    pub fast_failed: u64,
}

/// Counters of a socket.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Counters {
    /// Datagrams received.
    pub rx_datagrams: u64,
    /// Bytes received, without IP and UDP headers.
    pub rx_bytes: u64,
    /// Datagrams sent.
    pub tx_datagrams: u64,
    /// Bytes sent, without IP and UDP headers.
    pub tx_bytes: u64,
    /// System calls for sending.
    pub tx_batches: u64,
    /// Datagrams dropped because the socket was full.
    pub tx_full: u64,
    /// Datagrams that exceeded the interface MTU, including path MTU probes.
    pub tx_too_big: u64,
    /// Datagrams that the kernel refused for other reasons.
    pub tx_errors: u64,
}

/// A session with a UE (at the UE: with the UPF).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Session {
    /// Name of the UE.
    pub ue: String,
    /// Public key of the peer.
    pub public_key: String,
    /// Virtual addresses.
    pub addresses: Vec<String>,
    /// Whether the session is up.
    pub connected: bool,
    /// Inner packets sent to the peer.
    pub tx_packets: u64,
    /// Inner bytes sent to the peer.
    pub tx_bytes: u64,
    /// Inner packets received from the peer.
    pub rx_packets: u64,
    /// Inner bytes received from the peer.
    pub rx_bytes: u64,
    /// Paths, ordered by id.
    pub paths: Vec<Path>,
    /// Decisions of its rules in the sending direction of this agent: all rules in force, or (in a UPF's list
    /// of sessions) those that have seen packets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub uses: Vec<RuleUse>,
    /// Statistics of coded redundancy; absent if it was not used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub coded: Option<CodingCounters>,
}

/// Statistics of coded redundancy in a session; at a UPF since the session last became active.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CodingCounters {
    /// Packets sent.
    pub tx_packets: u64,
    /// Repair packets sent.
    pub tx_repairs: u64,
    /// Packets received.
    pub rx_packets: u64,
    /// Repair packets received.
    pub rx_repairs: u64,
    /// Packets recovered in time that were lost or delayed.
    pub restored: u64,
    /// Packets recovered after the maximum wait, which were discarded.
    pub late: u64,
    /// Packets that were neither received nor recovered.
    pub given_up: u64,
}

/// One access path of a session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Path {
    /// Name of the UE.
    pub ue: String,
    /// Index of the access in the configuration of the UE, from 0.
    pub id: u8,
    /// Name of the access.
    pub access: String,
    /// Whether it carries traffic.
    pub up: bool,
    /// Reason why the path is down, or a problem of the interface.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Peer address in use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// `secure` or `plain`.
    pub security: String,
    /// Smoothed round-trip time, milliseconds; absent when unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rtt_ms: Option<f64>,
    /// Smallest measured round-trip time, milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rtt_min_ms: Option<f64>,
    /// Loss rate in the sending direction, percent.
    pub loss_tx_percent: f64,
    /// Loss rate in the receiving direction, percent.
    pub loss_rx_percent: f64,
    /// Datagrams with user data or a probe sent.
    pub tx_packets: u64,
    /// Bytes of user data, tunnel headers included.
    pub tx_bytes: u64,
    /// Datagrams with user data or a probe received.
    pub rx_packets: u64,
    /// Bytes of user data, tunnel headers included.
    pub rx_bytes: u64,
    /// Largest UDP payload that the path is known to carry, bytes; 0 when unknown.
    pub mtu_bytes: u16,
    /// Fragments sent of packets that exceed the path's MTU; included in the datagrams.
    #[serde(default)]
    pub tx_fragments: u64,
    /// Fragments received.
    #[serde(default)]
    pub rx_fragments: u64,
    /// Packets lost because a fragment did not arrive.
    #[serde(default)]
    pub rx_incomplete: u64,
    /// Load estimate in the sending direction; absent before the first probe, and while the session rests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<PathLoad>,
}

/// Load estimate of a path in the sending direction.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PathLoad {
    /// Queueing delay of a packet sent now, milliseconds.
    pub queue_ms: f64,
    /// Queueing delay at which the path drops packets, milliseconds; absent until drops have been observed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drops_at_ms: Option<f64>,
    /// Measured capacity, bit/s; absent until the path has been saturated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity_bps: Option<u64>,
    /// Estimated capacity, bit/s: the newer of `capacity_bps` and the result of a packet train on the idle
    /// path; absent if there is neither.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimate_bps: Option<u64>,
    /// Loss rate without congestion, percent.
    pub random_loss_percent: f64,
    /// Loss rate without congestion that was reached in at least half of the last eight samples, percent;
    /// rules avoid a path because of it.
    pub steady_loss_percent: u8,
    /// Loss rate without congestion in the receiving direction that was reached in at least half of the last
    /// two seconds, percent, as measured by the peer; 0 if the peer does not report it.
    #[serde(default)]
    pub lasting_loss_rx_percent: f64,
}

/// A page of sessions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SessionList {
    /// Number of all sessions.
    pub total: u64,
    /// The sessions of this page, by name.
    pub sessions: Vec<Session>,
}

/// Paths of one session or of all sessions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PathList {
    /// Ordered by session, then by path id.
    pub paths: Vec<Path>,
    /// Decisions of the rules on these paths; see the same member of a session.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub uses: Vec<RuleUse>,
}

/// The rules in force, first match first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Rules {
    /// Rules.
    #[schema(value_type = Vec<RuleSchema>)]
    pub rules: Vec<Rule>,
    /// UE: current decisions of each rule, including the UPF's rules and the default.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub uses: Vec<RuleUse>,
}

/// Current decisions of a rule in the sending direction of this agent (UE: uplink, UPF: downlink). Counters
/// are reset when rules change; at a UPF also when the session becomes active again.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RuleUse {
    /// Name of the UE.
    #[serde(default)]
    pub ue: String,
    /// Name of the rule.
    pub rule: String,
    /// Steering mode.
    pub mode: String,
    /// Definition of the rule; absent for the built-in rule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<RuleSchema>)]
    pub definition: Option<Rule>,
    /// Origin of the rule: `ue`, `upf`, `upf-for-ue` (the UPF's, for this UE only) or `built-in`.
    #[serde(default)]
    #[schema(example = "ue")]
    pub origin: String,
    /// UPF: the rule that this application follows because of an exception.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follows: Option<String>,
    /// Access that carries its traffic; absent for splitting modes and rules without traffic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access: Option<String>,
    /// Number of moves from one access to another.
    pub switches: u64,
    /// Number of moves delayed because the peer had no free reorder queue.
    #[serde(default)]
    pub switches_waited: u64,
    /// State: `unused` (no packet yet), `no-path`, `one-path`, `shares`, `copies`, `coded`; with `autonomous`
    /// also `homes`, `spills`, `overflows`.
    #[serde(default)]
    #[schema(example = "spills")]
    pub state: String,
    /// Explanation of the state as text, with the reason.
    #[serde(default)]
    pub why: String,
    /// Accesses that it does not use, or uses only partly, with the reasons.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_used: Vec<NotUsed>,
    /// Packets sent by access, copies included; without those that the kernel's fast path carried.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub packets: BTreeMap<String, u64>,
    /// Statistics of the autonomous law; absent for other modes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub law: Option<Law>,
}

/// Reason why a rule does not use an access at present.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NotUsed {
    /// Name of the access.
    pub access: String,
    /// `down`, `held`, `steady-loss`, `loss`, `round-trip`, `no-share`, `standby`, `slower`; with `autonomous` also
    /// `random-loss`, `dropping`, `has-queue`, `too-small`, `too-far`, `later`, `home-not-full`.
    #[schema(example = "steady-loss")]
    pub reason: String,
    /// Explanation as text, with figures.
    pub why: String,
}

/// Statistics of the autonomous law.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Law {
    /// Statistics by access.
    pub paths: BTreeMap<String, LawPath>,
    /// Number of times overflow was paused because it was harmful.
    pub pauses: u64,
    /// Remaining duration of the pause, seconds; absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused_s: Option<u64>,
}

/// Statistics of the autonomous law on one access.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LawPath {
    /// Packets sent on this access as the home of their flow.
    pub at_home: u64,
    /// Packets of flows with another home that do not arrive later on this access.
    pub spilled: u64,
    /// Packets of flows with another home that may arrive later on this access.
    pub overflowed: u64,
    /// Flows for which this access was chosen as the first home.
    pub placed: u64,
    /// Flows that moved to this access from another home.
    pub moved: u64,
    /// Bulk flows that left this access because of its random loss.
    pub left: u64,
    /// Bulk flows whose home is this access at present.
    pub bulk_flows: u16,
}

/// A change of state that is logged and streamed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// Identifier, counts up by one; also the id in the event stream.
    pub id: u64,
    /// Unix time, milliseconds.
    pub time_unix_ms: u64,
    /// Kind: `session-up`, `session-down`, `path-up`, `path-down`, `moved`, `flapping`, `endpoint`, `rekeyed`, `remote`, `access-refused`,
    /// `access-left`, `access-back`, `overflow-paused`, `overflow-resumed`, `flows-left`, `rules`, `tcp-lane`, `handshake-timeout`,
    /// `refused`, `restored`, `not-restored`, `shared-key`, `outside`, `closed-destination`, `clock-reset`, `bad-config`, `reloaded`;
    /// of a gNB `slices`, `scheduler`, `ue-changed`, `late`; of an LWIP node `lwip-changed`.
    #[schema(example = "path-down")]
    pub kind: String,
    /// UE that the event concerns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ue: Option<String>,
    /// Access that the event concerns; for `moved` the new one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access: Option<String>,
    /// Rule that the event concerns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// Description as text.
    pub message: String,
}

/// Result of a reload.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Reloaded {
    /// Sections whose changes took effect.
    pub changed: Vec<String>,
    /// Sections whose changes need a restart.
    pub needs_restart: Vec<String>,
}
