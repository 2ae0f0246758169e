//! The data received by a TCP flow with telemetry: traces and total bytes.

use super::super::diag::Side;
use super::super::space::Space;
use super::super::stop::Stop;
use super::listen::{ETH_P_IPV6, LOOK, drain, flow_of, packet_socket};
use anabranch_wire::ioam;
use anyhow::Result;
use socket2::Socket;
use std::collections::BTreeMap;

/// Maximum packet length: offloads are off on paths with telemetry.
const MAX_BYTES: usize = 2048;
const HOP_BY_HOP: u8 = 0;
const TCP: u8 = 6;
const IPV6_BYTES: usize = 40;

/// TCP receivers of a namespace.
#[derive(Debug)]
pub struct TraceTap {
    socket: Socket,
    flows: Vec<(String, Side)>,
}

/// Observations of a flow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TraceObservations {
    /// Number of traces with data of at least one node.
    pub traces: u64,
    /// Number of packets with data.
    pub segments: u64,
    /// Bytes of all packets, and of headers with traces among them.
    pub bytes: [u64; 2],
}

impl TraceTap {
    /// A tap for `flows`, whose sockets in `space` are identified by a port.
    ///
    /// # Errors
    /// Packet sockets are not available.
    pub fn open(space: &Space, flows: Vec<(String, Side)>) -> Result<Self> {
        let socket = space.enter(|| packet_socket(ETH_P_IPV6))?;
        Ok(Self { socket, flows })
    }
}

/// Counts until the end is requested.
///
/// # Errors
/// Packets cannot be read.
pub fn watch(mut tap: TraceTap, end: &Stop) -> Result<BTreeMap<String, TraceObservations>> {
    let mut seen = BTreeMap::new();
    let mut buffer = [0; MAX_BYTES];
    loop {
        let over = end.requested();
        drain(&mut tap.socket, &mut buffer, |one| packet(&tap.flows, &mut seen, one))?;
        if over {
            return Ok(seen);
        }
        end.sleep(LOOK);
    }
}

fn packet(flows: &[(String, Side)], seen: &mut BTreeMap<String, TraceObservations>, packet: &[u8]) {
    let Some(&next) = packet.get(6) else { return };
    let options = match (next, packet.get(IPV6_BYTES..IPV6_BYTES + 2)) {
        (HOP_BY_HOP, Some(&[TCP, length])) => (usize::from(length) + 1) * 8,
        (TCP, _) => 0,
        _ => return,
    };
    let Some(tcp) = packet.get(IPV6_BYTES + options..).filter(|tcp| tcp.len() >= 20) else { return };
    let [source, destination] = [0, 2].map(|at| u16::from_be_bytes([tcp[at], tcp[at + 1]]));
    let Some(flow) = flow_of(flows, source, destination) else { return };
    let seen = seen.entry(flow.to_owned()).or_default();
    seen.bytes[0] += packet.len() as u64;
    seen.segments += u64::from(tcp.len() > usize::from(tcp[12] >> 4) * 4);
    if options > 0 && matches!(ioam::report(packet, 0), Ok(Some(_))) {
        seen.traces += 1;
        seen.bytes[1] += options as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_wire::ioam::{
        Hop, NodeData, TraceHeader, TraceType, emit_trace_header, fill, insert, trace_header_len, trace_range,
    };
    use anabranch_wire::tcp::{TcpHeader, emit_packet};

    #[test]
    fn traces_count_if_a_node_added_data() {
        let ends = ["[fd00::1]:5201", "[fd00::2]:4000"].map(|a| a.parse().unwrap());
        let plain = emit_packet(ends[0], ends[1], &TcpHeader::default(), &[0; 100]).unwrap();
        let mut header = vec![0; trace_header_len(9)];
        emit_trace_header(TCP, &TraceHeader::new(123, TraceType::REPORTED, 9), &mut header).unwrap();
        let mut empty = plain.clone();
        insert(&mut empty, HOP_BY_HOP, &header).unwrap();
        let mut filled = empty.clone();
        let range = trace_range(&filled).unwrap().unwrap();
        let node = NodeData { hop: Some(Hop { limit: 64, node_id: Some(1) }), ..NodeData::default() };
        fill(&mut filled[range], &node).unwrap();
        let flows = [("f".to_owned(), Side::Remote(5201))];
        let mut seen = BTreeMap::new();
        for one in [&plain, &empty, &filled, &filled[..50].to_vec()] {
            packet(&flows, &mut seen, one);
        }
        let bytes = [plain.len() + empty.len() + filled.len(), header.len()].map(|n| n as u64);
        assert_eq!(seen["f"], TraceObservations { traces: 1, segments: 3, bytes });
        packet(&[("f".to_owned(), Side::Remote(80))], &mut seen, &plain);
        assert_eq!(seen["f"].segments, 3);
    }
}
