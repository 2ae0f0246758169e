//! A link as an IOAM node: state of its queue and medium is written into passing traces (RFC 9197).
//!
//! ```text
//!  packet sent ──▶ has a trace of our namespace? ──▶ hop, queue depth, snapshot ──▶ medium
//!  packet sent ──▶ has a trace of our namespace? ──▶ hop, queue depth, snapshot ──▶ medium
//!     arrivals of the last 50 ms: rate, flows ────────┤
//!     queue: capacity, drops · medium: losses ────────┘   `element::ioam`
//! ```
//!
//! The node is a bridge: it does not decrement the hop limit, and writes the received value. Its medium losses are those
//! that a Wi-Fi or cellular transmitter learns from missing acknowledgements. The loss of the packet being filled is not
//! included; the receiver detects it anyway.
//!
//! A link can also act as a middlebox that removes telemetry ([`Strip`]).

use super::link::LinkStats;
use anabranch_element::ioam::{Node, NodeReport};
use anabranch_element::packet::Packet;
use anabranch_element::time::Instant;
use anabranch_wire::ioam;
use anabranch_wire::tcp::blank_option;
use serde::{Deserialize, Serialize};

pub use anabranch_element::ioam::IoamNode;

/// Telemetry that a link removes from passing packets, as middleboxes do with unknown options.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Strip {
    /// Nothing.
    #[default]
    None,
    /// IOAM options headers.
    Traces,
    /// Reports, and the marks of packets with a trace: TCP options of kind 0x72 and 0x73.
    Reports,
    /// Both.
    Both,
}

/// Telemetry functions of one direction of a link.
#[derive(Debug, Clone)]
pub(super) struct Telemetry {
    pub node: Option<Node>,
    pub strip: Strip,
}

impl Telemetry {
    /// Returns `None` for a link without any telemetry function, which makes the check per packet cheap.
    pub(super) fn new(node: Option<IoamNode>, strip: Strip) -> Option<Box<Self>> {
        (node.is_some() || strip != Strip::None).then(|| Box::new(Self { node: node.map(Node::new), strip }))
    }

    /// Processes a packet that is put on the medium.
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
            // A malformed packet is not changed, nor is the headroom in front of it: in real time it holds the frame header.
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

/// State of the queue when a packet leaves it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Queue {
    /// Bytes queued behind the packet.
    pub depth_bytes: usize,
    /// Maximum number of bytes.
    pub capacity_bytes: usize,
    /// Current rate, bit/s; `None` if unlimited.
    pub rate_bps: Option<u64>,
}
