//! Computes the path report from a received trace. **`bpf/feedback.bpf.c` contains the same algorithm in C: change both.**

use super::feedback::{Bottleneck, Feedback};
use super::ipv6::trace_range;
use super::snapshot::Snapshot;
use super::trace::{TraceKind, TraceView};
use crate::WireError;

/// Common initial hop limits.
const FIRST_LIMITS: [u8; 3] = [64, 128, 255];
/// An unknown value.
const UNKNOWN: u64 = u64::MAX;

/// Number of routers that a packet with the received hop limit `arrived` has passed, if its first node wrote `first`. Each
/// router decrements the limit, a bridge does not.
#[must_use]
pub fn routers(first: u8, arrived: u8) -> Option<u8> {
    FIRST_LIMITS.into_iter().find(|limit| *limit >= first)?.checked_sub(arrived)
}

/// The report for the pre-allocated trace in a received IPv6 packet; `None` if there is no trace or no node wrote into it. The
/// age is 0.
///
/// The report is complete if every node reported its drops, and the hop limits show no more routers than `known_routers`, the
/// number known to have no dropping queue, each in front of a node. No queue on the path can then have dropped without being
/// reported, except in a bridge: nodes that report drops are bridges and do not decrement the hop limit, so every decrement is
/// by a hop without telemetry. If a node found no room, the bottleneck is unknown, because it may be that node.
///
/// # Errors
/// A malformed packet, header or trace.
pub fn report(packet: &[u8], known_routers: u8) -> Result<Option<Feedback>, WireError> {
    let Some(range) = trace_range(packet)? else { return Ok(None) };
    let trace = TraceView::parse(&packet[range], TraceKind::PreAllocated)?;
    let (mut drops_known, mut unbroken, mut nodes) = (true, true, false);
    let arrived = packet[7];
    let mut oldest = arrived;
    let mut least = UNKNOWN;
    let mut report = Feedback { bottleneck: Some(Bottleneck::default()), ..Feedback::default() };
    for (at, node) in trace.nodes().enumerate() {
        nodes = true;
        // Newest first. The newest node must have the hop limit of the arrival; each older node has the same limit as the one
        // after it, or one more if there is a router in between.
        let limit = node.hop.map_or(0, |hop| hop.limit);
        unbroken &=
            node.hop.is_some() && limit.checked_sub(oldest).is_some_and(|routers| routers <= at.min(1) as u8);
        oldest = limit;
        // A snapshot of another schema or with a wrong length contains no usable data.
        let Some(snapshot) = node.snapshot.and_then(|opaque| Snapshot::parse(opaque).ok().flatten()) else {
            drops_known = false;
            continue;
        };
        drops_known &= snapshot.queue_drops.is_some();
        let drops = snapshot.queue_drops.unwrap_or(0) as u16;
        report.queue_drops = report.queue_drops.wrapping_add(drops);
        let losses = snapshot.medium_losses.unwrap_or(0) as u16;
        report.medium_losses = report.medium_losses.wrapping_add(losses);
        let flows = snapshot.flows.unwrap_or(1).max(1);
        let share = snapshot.link_kbps.map_or(UNKNOWN, |kbps| u64::from(kbps) / u64::from(flows));
        if share < least {
            least = share;
            report.flows = flows;
            let depth = node.queue_depth;
            report.bottleneck = Some(Bottleneck {
                link_kbps: snapshot.link_kbps.map(u64::from),
                arrival_kbps: snapshot.arrival_kbps.map(u64::from),
                depth_bytes: depth.map(u64::from),
                free_bytes: snapshot
                    .capacity_bytes
                    .zip(depth)
                    .map(|(capacity, depth)| u64::from(capacity.saturating_sub(depth))),
            });
        }
    }
    let overflow = trace.header().overflow;
    if overflow {
        (report.flows, report.bottleneck) = (0, Some(Bottleneck::default()));
    }
    let routers = routers(oldest, arrived).filter(|_| unbroken);
    report.complete = drops_known && !overflow && routers.is_some_and(|routers| routers <= known_routers);
    Ok(nodes.then_some(report))
}

#[cfg(test)]
mod tests {
    use super::super::{
        HOP_BY_HOP, Hop, NodeData, Opaque, SNAPSHOT_SCHEMA, TraceHeader, TraceType, emit_trace_header, fill,
        insert, trace_header_len,
    };
    use super::*;
    use crate::tcp::{TcpHeader, emit_packet};

    fn packet(nodes: &[(u8, Option<Snapshot>, u32)], arrives_with: u8) -> Vec<u8> {
        let (src, dst) = ("[fd00::1]:1".parse().unwrap(), "[fd00::2]:2".parse().unwrap());
        let mut packet = emit_packet(src, dst, &TcpHeader::default(), &[0; 100]).unwrap();
        let mut header = vec![0; trace_header_len(27)];
        emit_trace_header(6, &TraceHeader::new(123, TraceType::REPORTED, 27), &mut header).unwrap();
        insert(&mut packet, HOP_BY_HOP, &header).unwrap();
        for (limit, snapshot, depth) in nodes {
            let data = snapshot.map(|s| s.emit());
            let node = NodeData {
                hop: Some(Hop { limit: *limit, node_id: Some(1) }),
                queue_depth: Some(*depth),
                snapshot: data.as_ref().map(|data| Opaque { schema: SNAPSHOT_SCHEMA, data }),
                ..NodeData::default()
            };
            let range = trace_range(&packet).unwrap().unwrap();
            fill(&mut packet[range], &node).unwrap();
        }
        packet[7] = arrives_with;
        packet
    }

    fn queue(link_kbps: u32, flows: u16, drops: u32) -> Option<Snapshot> {
        Some(Snapshot {
            arrival_kbps: Some(7),
            link_kbps: Some(link_kbps),
            capacity_bytes: Some(10_000),
            flows: Some(flows),
            mcs: None,
            rb_half_percent: None,
            queue_drops: Some(drops),
            medium_losses: Some(2),
        })
    }

    #[test]
    fn the_bottleneck_has_the_smallest_share_and_losses_add_up() {
        let report = |packet: &[u8]| report(packet, 0);
        let told = report(&packet(&[(64, queue(9000, 1, 0xffff), 1), (64, queue(10_000, 4, 3), 4000)], 64));
        let told = told.unwrap().unwrap();
        assert!(told.complete);
        assert_eq!((told.flows, told.queue_drops, told.medium_losses), (4, 2, 4));
        let hop = told.bottleneck.unwrap();
        assert_eq!((hop.link_kbps, hop.arrival_kbps), (Some(10_000), Some(7)));
        assert_eq!((hop.depth_bytes, hop.free_bytes), (Some(4000), Some(6000)));
        // Routers: none; in front of the second node; of the first; of both; of the receiver, where no node is behind it; two in a
        // row. Then hop limits that are no common initial value, or that grow along the path.
        for (limits, arrives, routers) in [
            ([64, 64], 64, Some(0)),
            ([64, 63], 63, Some(1)),
            ([63, 63], 63, Some(1)),
            ([63, 62], 62, Some(2)),
            ([255, 255], 254, None),
            ([128, 126], 126, None),
            ([100, 100], 100, Some(28)),
            ([63, 64], 63, None),
            ([64, 64], 65, None),
            ([1, 0], 0, Some(64)),
        ] {
            let nodes = limits.map(|limit| (limit, queue(1, 1, 0), 0));
            let packet = packet(&nodes, arrives);
            for known in [0, 1, 2, 63, u8::MAX] {
                let complete = super::report(&packet, known).unwrap().unwrap().complete;
                assert_eq!(complete, routers.is_some_and(|routers| routers <= known), "{limits:?} {known}");
            }
        }
        // A hop without data of our schema.
        let silent = report(&packet(&[(64, queue(9000, 1, 0), 1), (64, None, 4000)], 64)).unwrap().unwrap();
        assert!(!silent.complete && silent.flows == 1);
        // A hop that cannot know its drops, such as the end of a tunnel.
        let end = queue(9000, 1, 0).map(|s| Snapshot { queue_drops: None, medium_losses: None, ..s });
        let tunnel = report(&packet(&[(64, queue(9000, 1, 5), 1), (64, end, 0)], 64)).unwrap().unwrap();
        assert_eq!((tunnel.complete, tunnel.queue_drops, tunnel.medium_losses), (false, 5, 2));
        assert_eq!(report(&packet(&[], 64)), Ok(None));
        // A fourth node with room for only three: it may be the bottleneck.
        let nodes = [64, 63, 62, 61].map(|limit| (limit, queue(9000, 1, 1), 0));
        let told = report(&packet(&nodes, 61)).unwrap().unwrap();
        assert_eq!((told.complete, told.queue_drops, told.flows), (false, 3, 0));
        assert_eq!(told.bottleneck, Some(Bottleneck::default()));
    }
}
