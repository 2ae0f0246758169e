//! One user's tunnel end: keys, paths, steering, sequencing and reordering, composed.
//!
//! The same type serves the UE (one session) and the UPF (many). It knows nothing of sockets or of
//! other sessions; its owner finds it by receiver index, endpoint or virtual address.
//!
//! ```text
//!  inner packet ─▶ flow table ─▶ rule ─▶ mode.pick(path states) ─▶ mark / number ─▶ seal ─▶ datagram
//!                     (classify once per flow)                       (stream or flow sequence)
//!
//!  datagram ─▶ open ─▶ Data ──▶ as it is │ flow reorder │ stream reorder ─▶ inner packet
//!                  └─▶ Probe, Notify, Config, MtuProbe, Close ─▶ path states, events, answers
//! ```

mod control;
mod path;
mod receive;
mod send;

pub use path::{Path, PathView, Security};
pub use send::{RuleState, RuleView};

use crate::access::classify::RuleSet;
use crate::access::config_channel::{ConfigReceiver, ConfigSender};
use crate::access::dns::DnsTable;
use crate::access::drops::{DropCounters, DropReason};
use crate::access::keyring::KeyRing;
use crate::access::path::{DownReason, FlapControl, FlapParams, ProbeParams, Role};
use crate::access::reorder::{FlowReorder, Pool, StreamReorder};
use crate::access::steer::PathStates;
use crate::access::table::flow::FlowTable;
use crate::access::{DatagramSink, PacketSink, PathId};
use crate::policy::AccessName;
use crate::time::{Duration, Instant};
use anabranch_wire::ip::FlowKey;
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

/// The addresses a session owns inside the tunnel; they are its identity at the UPF (JUNCTION §V-C).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Addresses {
    /// Virtual IPv4 address.
    pub v4: Option<Ipv4Addr>,
    /// Virtual IPv6 address.
    pub v6: Option<Ipv6Addr>,
}

impl Addresses {
    /// Whether `address` is one of them.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(a) => self.v4 == Some(a),
            IpAddr::V6(a) => self.v6 == Some(a),
        }
    }

    /// Both, IPv4 first.
    pub fn iter(&self) -> impl Iterator<Item = IpAddr> {
        self.v4.map(IpAddr::V4).into_iter().chain(self.v6.map(IpAddr::V6))
    }
}

/// What the owner lends a session for the time of one call.
pub struct Shared<'a> {
    /// Reorder buffers, bounded over all sessions.
    pub pool: &'a mut Pool,
    /// Drop counters of the whole tunnel end.
    pub drops: &'a mut DropCounters,
    /// Rates and intervals.
    pub params: &'a SessionParams,
    /// Names learned from DNS answers; the UE only.
    pub dns: Option<&'a DnsTable>,
}

/// Parameters common to all sessions of a tunnel end.
#[derive(Debug, Clone)]
pub struct SessionParams {
    /// Path probing and failure detection.
    pub probe: ProbeParams,
    /// When a user counts as flapping.
    pub flap: FlapParams,
    /// Largest outer UDP payload to search for on a path, in bytes (interface MTU less outer headers);
    /// 0 switches path MTU discovery off.
    pub max_payload: u16,
    /// Largest inner packet, in bytes; larger ones are answered with Packet Too Big.
    pub inner_mtu: u16,
    /// Pausable queues of the pool for stream-wise reordering; see [`crate::access::reorder::PoolConfig`].
    pub reorder_queues: u16,
    /// Expanded ciphers are freed after this long without a data packet.
    pub cool_after: Duration,
}

impl Default for SessionParams {
    fn default() -> Self {
        Self {
            probe: ProbeParams::default(),
            flap: FlapParams::default(),
            max_payload: 1472,
            inner_mtu: 1400,
            reorder_queues: 127,
            cool_after: Duration::from_secs(10),
        }
    }
}

/// Something a session wants known.
#[derive(Debug, Clone, PartialEq)]
pub enum SessionEvent {
    /// A path can carry traffic.
    PathUp {
        /// Which.
        path: PathId,
        /// Its RTT, in microseconds.
        rtt_us: u32,
    },
    /// A path stopped carrying traffic.
    PathDown {
        /// Which.
        path: PathId,
        /// How it was found out.
        reason: DownReason,
    },
    /// Traffic of a switching rule moved.
    Moved {
        /// The rule's name.
        rule: String,
        /// Path it was on; `None` for the first packet.
        from: Option<PathId>,
        /// Path it is on now.
        to: PathId,
    },
    /// The preferred path changed too often; direct updates pause for this long.
    Flapping {
        /// Pause.
        pause: Duration,
    },
    /// A path was bound to, or moved to, this endpoint.
    Endpoint {
        /// Which.
        path: PathId,
        /// Where its datagrams come from now.
        address: std::net::SocketAddr,
    },
    /// A rule needs to know who owns this flow (UE).
    OwnerWanted(FlowKey),
    /// Only the UE could classify this flow: the UPF must be told (UE).
    Hint {
        /// The flow as seen from the UE.
        key: FlowKey,
        /// Name of its rule.
        rule: String,
    },
    /// A complete CONFIG document arrived from the peer (UTF-8 JSON).
    Config(Vec<u8>),
    /// The peer ended the session.
    Closed {
        /// Reason code of the CLOSE message.
        reason: u8,
    },
    /// The peer confirmed new keys; receiver indices listed no longer open anything.
    Rekeyed {
        /// Receiver index of the keys now in use.
        local_index: u32,
    },
}

/// What both tunnel ends count per session.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Inner packets sent to the peer.
    pub tx_packets: u64,
    /// Inner bytes sent to the peer.
    pub tx_bytes: u64,
    /// Inner packets received from the peer, before reordering.
    pub rx_packets: u64,
    /// Inner bytes received from the peer, before reordering.
    pub rx_bytes: u64,
}

#[derive(Default)]
struct Channel {
    sender: ConfigSender,
    receiver: ConfigReceiver,
}

/// One user's tunnel end.
pub struct Session {
    role: Role,
    addresses: Addresses,
    accesses: Arc<[AccessName]>,
    keys: KeyRing,
    paths: Vec<Path>,
    states: PathStates,
    flap: FlapControl,
    rules: Arc<RuleSet>,
    generation: u32,
    flows: FlowTable,
    per_rule: Vec<RuleState>,
    flow_reorder: FlowReorder,
    stream_reorder: StreamReorder,
    channel: Option<Box<Channel>>,
    outbox: VecDeque<(PathId, control::Message)>,
    events: VecDeque<SessionEvent>,
    icmp: VecDeque<Vec<u8>>,
    traffic: Traffic,
    last_data: Instant,
    max_payload: u16,
    notify_sequence: u32,
}

/// Bounds of what may pile up between two polls.
const MAX_OUTBOX: usize = 256;
const MAX_EVENTS: usize = 256;
const MAX_ICMP: usize = 16;

impl Session {
    /// A session with these accesses, not yet connected. `hash_key` seeds its flow hash.
    #[must_use]
    pub fn new(
        role: Role,
        accesses: Arc<[AccessName]>,
        addresses: Addresses,
        rules: Arc<RuleSet>,
        params: &SessionParams,
        hash_key: u64,
        now: Instant,
    ) -> Self {
        let paths =
            (0u8..).zip(accesses.iter()).map(|(id, _)| Path::new(role, id, &params.probe, now)).collect();
        Self {
            role,
            addresses,
            accesses,
            keys: KeyRing::default(),
            paths,
            states: PathStates::default(),
            flap: FlapControl::new(&params.flap),
            rules,
            generation: 0,
            flows: FlowTable::new(hash_key),
            per_rule: Vec::new(),
            flow_reorder: FlowReorder::new(),
            stream_reorder: StreamReorder::new(),
            channel: None,
            outbox: VecDeque::new(),
            events: VecDeque::new(),
            icmp: VecDeque::new(),
            traffic: Traffic::default(),
            last_data: now,
            max_payload: params.max_payload,
            notify_sequence: 0,
        }
    }

    /// The keys.
    pub fn keys(&mut self) -> &mut KeyRing {
        &mut self.keys
    }

    /// When the UE should change keys.
    #[must_use]
    pub fn rekey_at(&self) -> Option<Instant> {
        self.keys.rekey_at()
    }

    /// The addresses the session owns inside the tunnel.
    #[must_use]
    pub fn addresses(&self) -> Addresses {
        self.addresses
    }

    /// Gives the session its addresses (UE: from the welcome).
    pub fn set_addresses(&mut self, addresses: Addresses) {
        self.addresses = addresses;
    }

    /// Names of the accesses, by path id.
    #[must_use]
    pub fn accesses(&self) -> &Arc<[AccessName]> {
        &self.accesses
    }

    /// Replaces the rules; every flow is classified again with its next packet. Streams go on where they
    /// are, so that traffic which new rules move arrives in order.
    pub fn set_rules(&mut self, rules: Arc<RuleSet>) {
        for (index, state) in (0..).zip(&mut self.per_rule) {
            state.renew(self.rules.get(index).name == rules.get(index).name);
        }
        self.rules = rules;
        self.generation = self.generation.wrapping_add(1);
    }

    /// The rules in force.
    #[must_use]
    pub fn rules(&self) -> &Arc<RuleSet> {
        &self.rules
    }

    /// Traffic counters.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        self.traffic
    }

    /// The unified steering structure: what every rule decides from.
    #[must_use]
    pub fn states(&self) -> &PathStates {
        &self.states
    }

    /// The reordering engines, for their statistics.
    #[must_use]
    pub fn reordering(&self) -> (&FlowReorder, &StreamReorder) {
        (&self.flow_reorder, &self.stream_reorder)
    }

    /// One row per path.
    pub fn path_views(&self) -> impl Iterator<Item = PathView> + '_ {
        self.paths.iter().zip(self.accesses.iter()).enumerate().map(|(id, (path, name))| path.view(id, name))
    }

    /// The path with this id.
    pub fn path_mut(&mut self, path: PathId) -> Option<&mut Path> {
        self.paths.get_mut(usize::from(path))
    }

    /// The path with this id.
    #[must_use]
    pub fn path(&self, path: PathId) -> Option<&Path> {
        self.paths.get(usize::from(path))
    }

    /// Number of paths that are up.
    #[must_use]
    pub fn paths_up(&self) -> usize {
        self.paths.iter().filter(|p| p.monitor.is_up()).count()
    }

    /// The next event, oldest first.
    pub fn poll_event(&mut self) -> Option<SessionEvent> {
        self.events.pop_front()
    }

    /// Sends what is due and releases what waited long enough.
    pub fn poll(
        &mut self,
        now: Instant,
        shared: &mut Shared<'_>,
        out: &mut impl DatagramSink,
        inner: &mut impl PacketSink,
    ) {
        self.on_timeout(now, shared, inner);
        self.send_control(now, shared, out);
        while let Some(mut packet) = self.icmp.pop_front() {
            inner.deliver(&mut packet);
        }
    }

    /// When [`Session::poll`] has something to do next, and why.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<(Instant, crate::element::Reason)> {
        let paths = self.paths.iter().filter_map(Path::poll_timeout);
        let config = self
            .channel
            .as_ref()
            .filter(|_| self.paths_up() > 0)
            .and_then(|c| c.sender.poll_timeout())
            .map(|at| (at, "config repeat"));
        let soon = (!self.outbox.is_empty() || !self.icmp.is_empty()).then_some((Instant::ZERO, "outbox"));
        paths
            .chain(self.flow_reorder.poll_timeout())
            .chain(self.stream_reorder.poll_timeout())
            .chain(config)
            .chain(soon)
            .chain(self.flap.poll_timeout())
            .chain(self.keys.expires_at().map(|at| (at, "key expiry")))
            .min_by_key(|(at, _)| *at)
    }

    /// Gives back what the session holds of the shared pool; call it before dropping the session.
    pub fn release(&mut self, pool: &mut Pool) {
        self.flow_reorder.close(pool);
        self.stream_reorder.close(pool);
    }

    /// Forgets what was being put in order: the peer was restarted and counts from zero.
    pub fn reset_receive(&mut self, pool: &mut Pool) {
        self.release(pool);
        if let Some(channel) = self.channel.as_mut() {
            channel.receiver.reset();
        }
    }

    fn event(&mut self, event: SessionEvent) {
        if self.events.len() == MAX_EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    fn queue(&mut self, path: PathId, message: control::Message) {
        if self.outbox.len() < MAX_OUTBOX {
            self.outbox.push_back((path, message));
        }
    }

    fn channel(&mut self) -> &mut Channel {
        self.channel.get_or_insert_with(Box::default)
    }

    fn count(shared: &mut Shared<'_>, reason: DropReason) {
        shared.drops.count(reason);
    }
}

/// A duration in whole microseconds, as the steering structure keeps it.
pub(crate) fn micros(duration: Duration) -> u32 {
    u32::try_from(duration.as_micros()).unwrap_or(u32::MAX)
}
