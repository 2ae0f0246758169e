//! What the interface shows. Units are in the names; times are Unix milliseconds.

use super::schema::RuleSchema;
use anabranch_steer::Rule;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// The program as a whole.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Status {
    /// `ue`, `upf`, `gnb`, `lwip` or `proxy`.
    #[schema(example = "ue")]
    pub part: String,
    /// Its name in the configuration.
    pub name: String,
    /// Version of the program.
    pub version: String,
    /// Seconds since it started.
    pub uptime_s: u64,
    /// Its own public key.
    pub public_key: String,
    /// Name of the inner interface.
    pub device: String,
    /// MTU of the inner interface, in bytes.
    pub mtu_bytes: u16,
    /// Sessions configured (UE: 1; proxy: flows).
    pub sessions: u64,
    /// Sessions that are up.
    pub connected: u64,
    /// UEs without a session, and why: at a UPF those it refused in the last five minutes (32 at most), at a UE itself, also for a
    /// name of the UPF that does not resolve since a reload.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub trouble: BTreeMap<String, String>,
    /// Dropped packets by reason, over all sessions.
    pub drops: BTreeMap<String, u64>,
    /// Packets with IOAM traces by what became of them: `marked`, `no_room`, `other_namespace`, `malformed`. Absent: it is no
    /// IOAM node.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ioam: BTreeMap<String, u64>,
    /// One per data-path thread.
    pub workers: Vec<WorkerStatus>,
}

/// Counters of a data-path thread.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WorkerStatus {
    /// Sockets, by access.
    pub accesses: BTreeMap<String, Counters>,
    /// Packets read from the inner interface.
    pub device_rx_packets: u64,
    /// Frames they came in (segmentation offload).
    pub device_rx_frames: u64,
    /// Packets delivered to the inner interface.
    pub device_tx_packets: u64,
    /// Frames they were delivered in.
    pub device_tx_frames: u64,
    /// Frames the inner interface refused.
    pub device_errors: u64,
    /// Packets given to the worker that has their session.
    pub handed_over: u64,
    /// Packets dropped because that worker had no room.
    pub handover_full: u64,
    /// Events nobody took in time.
    pub events_lost: u64,
    /// UPF: times that a UE was pushed out of its session by another device with its key.
    #[serde(default)]
    pub key_conflicts: u64,
    /// Paths of sessions that the kernel's fast path serves now.
    #[serde(default)]
    pub fast_lanes: u64,
    /// Flows given to it.
    #[serde(default)]
    pub fast_flows: u64,
    /// Times that a session took its flows back.
    #[serde(default)]
    pub fast_taken_back: u64,
    /// Datagrams sent by it.
    #[serde(default)]
    pub fast_tx_datagrams: u64,
    /// Datagrams received by it.
    #[serde(default)]
    pub fast_rx_datagrams: u64,
    /// Datagrams lost while they were made.
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
    /// System calls the sending took.
    pub tx_batches: u64,
    /// Datagrams dropped because the socket was full.
    pub tx_full: u64,
    /// Datagrams larger than the interface takes; path MTU probes among them.
    pub tx_too_big: u64,
    /// Datagrams the kernel refused.
    pub tx_errors: u64,
}

/// A session with a UE (or, at the UE, with the UPF).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Session {
    /// Name of the UE.
    pub ue: String,
    /// Public key of the peer.
    pub public_key: String,
    /// Virtual addresses.
    pub addresses: Vec<String>,
    /// Whether it carries traffic.
    pub connected: bool,
    /// Inner packets sent to the peer.
    pub tx_packets: u64,
    /// Inner bytes sent to the peer.
    pub tx_bytes: u64,
    /// Inner packets received from the peer.
    pub rx_packets: u64,
    /// Inner bytes received from the peer.
    pub rx_bytes: u64,
    /// Its paths.
    pub paths: Vec<Path>,
    /// What its rules do with what this end sends: all rules in force, or (in a list of a UPF's sessions) those that had
    /// packets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub uses: Vec<RuleUse>,
    /// What coded mode did; absent if nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub coded: Option<Coded>,
}

/// What coded mode did in a session; at a UPF since the session last woke.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Coded {
    /// Packets sent.
    pub tx_packets: u64,
    /// Repair packets sent.
    pub tx_repairs: u64,
    /// Packets received.
    pub rx_packets: u64,
    /// Repair packets received.
    pub rx_repairs: u64,
    /// Packets restored in time: lost, or still on their way.
    pub restored: u64,
    /// Packets restored after the longest wait, and not delivered.
    pub late: u64,
    /// Packets that did not come, and that nothing restored.
    pub given_up: u64,
}

/// One access path of a session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Path {
    /// Name of the UE.
    pub ue: String,
    /// Path id.
    pub id: u8,
    /// Name of the access.
    pub access: String,
    /// Whether it carries traffic.
    pub up: bool,
    /// Why not, or what is wrong with the interface.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Peer address in use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// `secure` or `plain`.
    pub security: String,
    /// Smoothed round-trip time in milliseconds; absent when unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rtt_ms: Option<f64>,
    /// Smallest round-trip time seen, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rtt_min_ms: Option<f64>,
    /// Loss towards the peer, in percent.
    pub loss_tx_percent: f64,
    /// Loss from the peer, in percent.
    pub loss_rx_percent: f64,
    /// Datagrams with user data sent.
    pub tx_packets: u64,
    /// Their bytes, tunnel headers included.
    pub tx_bytes: u64,
    /// Datagrams with user data received.
    pub rx_packets: u64,
    /// Their bytes, tunnel headers included.
    pub rx_bytes: u64,
    /// Largest UDP payload the path is known to carry, in bytes; 0 when that is not known.
    pub mtu_bytes: u16,
    /// Pieces sent of packets that the path does not carry whole; among the datagrams.
    #[serde(default)]
    pub tx_fragments: u64,
    /// Such pieces received.
    #[serde(default)]
    pub rx_fragments: u64,
    /// Packets lost because one of their pieces did not arrive.
    #[serde(default)]
    pub rx_incomplete: u64,
    /// What steering knows of it in the sending direction; absent before the first probe, and while the session rests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<PathLoad>,
}

/// What steering knows of a path in the sending direction.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PathLoad {
    /// How long a packet sent now waits in the path's queue, in milliseconds.
    pub queue_ms: f64,
    /// The queue at which the path drops, in milliseconds; absent while it was not seen to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drops_at_ms: Option<f64>,
    /// What it carries, in bit/s; absent while it was never full.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity_bps: Option<u64>,
    /// What it is taken to carry, in bit/s: the newer of `capacity_bps` and what a train of packets told while it was idle; absent
    /// while there is neither.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimate_bps: Option<u64>,
    /// Loss without congestion, in percent.
    pub random_loss_percent: f64,
    /// Loss without congestion that half of the last eight samples had or passed, in percent: what rules leave a path for.
    pub steady_loss_percent: u8,
    /// Loss without congestion in the receiving direction that half of the last two seconds had or passed, as the far end measures it, in
    /// percent; 0 from one that does not tell it.
    #[serde(default)]
    pub lasting_loss_rx_percent: f64,
}

/// A page of sessions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SessionList {
    /// How many there are.
    pub total: u64,
    /// Those asked for, by name.
    pub sessions: Vec<Session>,
}

/// Paths of one or all sessions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PathList {
    /// By session, then path id.
    pub paths: Vec<Path>,
    /// What rules do on them; see the same field of a session.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub uses: Vec<RuleUse>,
}

/// The rules in force, first match first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Rules {
    /// Rules.
    #[schema(value_type = Vec<RuleSchema>)]
    pub rules: Vec<Rule>,
    /// UE: what each rule does now, by rule; the UPF's rules and the default included.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub uses: Vec<RuleUse>,
}

/// What a rule does now with what this end sends (UE: the uplink, UPF: the downlink). Counters begin when rules change; at a
/// UPF also when the session wakes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RuleUse {
    /// Name of the UE.
    #[serde(default)]
    pub ue: String,
    /// Name of the rule.
    pub rule: String,
    /// Steering mode.
    pub mode: String,
    /// The rule; absent for the built-in one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<RuleSchema>)]
    pub definition: Option<Rule>,
    /// Whose configuration it is from: `ue`, `upf`, `upf-for-ue` (the UPF's, for this UE alone) or `built-in`.
    #[serde(default)]
    #[schema(example = "ue")]
    pub origin: String,
    /// UPF: an exception says that this application follows the rule of this name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follows: Option<String>,
    /// Access its traffic is on; absent for splitting modes and rules without traffic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access: Option<String>,
    /// Moves from one access to another so far.
    pub switches: u64,
    /// Moves that waited because the far end had no reorder queue free.
    #[serde(default)]
    pub switches_waited: u64,
    /// What it does: `unused` (no packet yet), `no-path`, `one-path`, `shares`, `copies`, `coded`; with `autonomous` also
    /// `homes`, `spills`, `overflows`.
    #[serde(default)]
    #[schema(example = "spills")]
    pub state: String,
    /// The same for people, with the reason.
    #[serde(default)]
    pub why: String,
    /// Accesses it does not use, or no more than it does, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_used: Vec<NotUsed>,
    /// Packets sent by access, copies included; not those that the kernel's fast path carried.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub packets: BTreeMap<String, u64>,
    /// What the autonomous law did; absent for other modes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub law: Option<Law>,
}

/// Why a rule does not use an access now.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NotUsed {
    /// Name of the access.
    pub access: String,
    /// `down`, `held`, `steady-loss`, `loss`, `round-trip`, `no-share`, `standby`, `slower`; with `autonomous` also
    /// `random-loss`, `dropping`, `has-queue`, `too-small`, `too-far`, `later`, `home-not-full`.
    #[schema(example = "steady-loss")]
    pub reason: String,
    /// The same for people, with the figures.
    pub why: String,
}

/// What the autonomous law did.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Law {
    /// By access.
    pub paths: BTreeMap<String, LawPath>,
    /// Times that overflow was paused, for it did harm.
    pub pauses: u64,
    /// Seconds that it is still paused; absent while it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused_s: Option<u64>,
}

/// What the autonomous law did on one access.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LawPath {
    /// Packets that took it as the home of their flow.
    pub at_home: u64,
    /// Packets that took it for their home, and arrive no later by it.
    pub spilled: u64,
    /// Packets that took it for their home, and may arrive later by it.
    pub overflowed: u64,
    /// Flows that were given it as their home.
    pub placed: u64,
    /// Flows that moved to it from another home.
    pub moved: u64,
    /// Bulk flows that left it for its random loss.
    pub left: u64,
    /// Bulk flows that have it as their home now.
    pub bulk_flows: u16,
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// Counts up by one; also the id in the event stream.
    pub id: u64,
    /// When.
    pub time_unix_ms: u64,
    /// What: `session-up`, `session-down`, `path-up`, `path-down`, `moved`, `flapping`, `endpoint`, `rekeyed`, `remote`, `access-refused`,
    /// `access-left`, `access-back`, `overflow-paused`, `overflow-resumed`, `flows-left`, `rules`, `tcp-lane`, `handshake-timeout`,
    /// `refused`, `restored`, `not-restored`, `shared-key`, `outside`, `closed-destination`, `clock-reset`, `bad-config`, `reloaded`;
    /// of a gNB `slices`, `scheduler`, `ue-changed`, `late`; of an LWIP node `lwip-changed`.
    #[schema(example = "path-down")]
    pub kind: String,
    /// UE it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ue: Option<String>,
    /// Access it is about; for `moved` the one traffic is on now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access: Option<String>,
    /// Rule it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// For people.
    pub message: String,
}

/// What a reload did.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Reloaded {
    /// What took effect.
    pub changed: Vec<String>,
    /// What is different in the file but takes effect only after a restart.
    pub needs_restart: Vec<String>,
}
