//! Inner packets that leave a tunnel, processed as an IOAM node.

use super::PacketSink;
use anabranch_element::ioam::{Node, NodeReport};
use anabranch_element::time::Instant;

/// Forwards packets. Each is counted as an arrival of `node`, and its trace is filled. Packets held for order
/// count as a queue in the tunnel, with their timestamps.
pub(crate) struct Marked<'a, S> {
    node: Option<&'a mut Node>,
    told: NodeReport,
    now: Instant,
    inner: &'a mut S,
}

impl<'a, S: PacketSink> Marked<'a, S> {
    /// `held_bytes` of at most `most_bytes` are held for order. Routers inside the tunnel see only its outer
    /// headers, so their drops are unknown.
    pub(crate) fn new(
        node: Option<&'a mut Node>,
        held_bytes: usize,
        most_bytes: usize,
        now: Instant,
        inner: &'a mut S,
    ) -> Self {
        let (depth_bytes, capacity_bytes) = (Some(held_bytes as u64), Some(most_bytes as u64));
        Self { node, told: NodeReport { depth_bytes, capacity_bytes, ..NodeReport::default() }, now, inner }
    }
}

impl<S: PacketSink> PacketSink for Marked<'_, S> {
    #[inline]
    fn deliver(&mut self, packet: &mut [u8]) {
        if let Some(node) = &mut self.node {
            node.arrived(packet, self.now);
            node.fill(packet, self.now, self.now, || self.told);
        }
        self.inner.deliver(packet);
    }
}
