//! A link as an IOAM node: what its queue and its medium know, written into traces that pass (RFC 9197).
//!
//! ```text
//!  packet sent ──▶ has a trace of our namespace? ──▶ hop, queue depth, snapshot ──▶ medium
//!                                                     │
//!     arrivals of the last 50 ms: rate, flows ────────┤
//!     queue: capacity, drops · medium: losses ────────┘   `element::ioam`
//! ```
//!
//! The node bridges: it leaves the hop limit as it is, and writes the one it saw. Its losses of the medium are
//! what a Wi-Fi or cellular transmitter learns from missing acknowledgements; it does not tell of the packet at
//! hand, which the receiver would see anyway.
//!
//! A link can also be the middlebox that takes telemetry off ([`Strip`]).

use super::link::LinkStats;
use anabranch_element::ioam::{Node, NodeReport};
use anabranch_element::packet::Packet;
use anabranch_element::time::Instant;
use anabranch_wire::ioam;
use anabranch_wire::tcp::blank_option;
use serde::{Deserialize, Serialize};

pub use anabranch_element::ioam::IoamNode;

/// What a link takes off the packets that pass, as middleboxes do with options they do not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Strip {
    /// Nothing.
    #[default]
    None,
    /// IOAM options headers.
    Traces,
    /// Reports and the marks of packets with a trace: TCP options of kind 0x72 and 0x73.
    Reports,
    /// Both.
    Both,
}

/// All that one direction of a link does to telemetry.
#[derive(Debug, Clone)]
pub(super) struct Telemetry {
    pub node: Option<Node>,
    pub strip: Strip,
}

impl Telemetry {
    /// Nothing at all for a link that does nothing, so that one look tells.
    pub(super) fn new(node: Option<IoamNode>, strip: Strip) -> Option<Box<Self>> {
        (node.is_some() || strip != Strip::None).then(|| Box::new(Self { node: node.map(Node::new), strip }))
    }

    /// A packet goes to the medium.
    pub(super) fn passes(&mut self, packet: &mut Packet, at: Instant, queue: Queue, stats: &LinkStats) {
        if let Some(node) = &mut self.node {
            let arrived = packet.at;
            node.fill(packet, arrived, at, || NodeReport {
                depth_bytes: Some(queue.depth_bytes as u64),
                capacity_bytes: Some(queue.capacity_bytes as u64),
                link_bps: queue.rate_bps,
                queue_drops: Some(stats.queue_drops + stats.overflow_drops),
                medium_losses: Some(stats.random_drops + stats.black_hole_drops),
                ..NodeReport::default()
            });
        }
        if matches!(self.strip, Strip::Traces | Strip::Both)
            && ioam::trace_range(packet).is_ok_and(|trace| trace.is_some())
        {
            let mut bytes = packet.to_vec();
            // What cannot be read stays as it is. So does what is in front: a frame's header, in real time.
            if ioam::strip(&mut bytes).is_ok() {
                packet[..bytes.len()].copy_from_slice(&bytes);
                packet.truncate(bytes.len());
            }
        }
        if matches!(self.strip, Strip::Reports | Strip::Both) {
            for kind in [ioam::TCP_OPTION_KIND, ioam::TCP_MARK_KIND] {
                let _ = blank_option(packet, kind);
            }
        }
    }
}

/// What the queue knows when a packet leaves it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Queue {
    /// Bytes behind the packet.
    pub depth_bytes: usize,
    /// Most bytes it holds.
    pub capacity_bytes: usize,
    /// Present rate, bit/s.
    pub rate_bps: Option<u64>,
}
