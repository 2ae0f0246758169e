//! Flow and path telemetry from the first bytes of a packet, for passive observers such as a collector.
//!
//! The packet may be truncated after its options headers, as captured packets often are.

use super::edge::{EdgeToEdge, TcpState};
use super::ipv6::{ExtOption, options, options_in_front};
use super::option_type;
use super::trace::{TraceKind, TraceView};
use crate::WireError;
use crate::ip::{FlowKey, protocol, src_dst};
use crate::read::u16_at;

/// The telemetry in front of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head<'a> {
    /// Flow of the packet; ports are 0 if the packet ends before them or its protocol has none.
    pub flow: FlowKey,
    /// Hop limit at the observer.
    pub hop_limit: u8,
    /// Pre-allocated trace.
    pub trace: Option<TraceView<'a>>,
    /// Edge-to-edge data.
    pub edge: Option<EdgeToEdge>,
    /// TCP state of the sender.
    pub tcp: Option<TcpState>,
}

/// Parses the head of an IPv6 packet. The options headers must be complete; data after them may be missing. The first of
/// several options of the same kind is used.
///
/// # Errors
/// Not an IPv6 packet, a header that extends beyond it, or a malformed option of those read here.
pub fn head(packet: &[u8]) -> Result<Head<'_>, WireError> {
    let (found, (next, at)) = options_in_front(packet)?;
    let (src, dst) = src_dst(packet)?;
    let has_ports =
        matches!(next, protocol::TCP | protocol::UDP | protocol::SCTP | protocol::DCCP | protocol::UDP_LITE)
            && packet.len() >= at + 4;
    let (src_port, dst_port) = if has_ports { (u16_at(packet, at), u16_at(packet, at + 2)) } else { (0, 0) };
    let mut head = Head {
        flow: FlowKey { src, dst, src_port, dst_port, protocol: next },
        hop_limit: packet[7],
        trace: None,
        edge: None,
        tcp: None,
    };
    for (_, range) in found.iter().flatten() {
        for option in options(&packet[range.clone()]) {
            match option? {
                ExtOption::Ioam { kind: option_type::PRE_ALLOCATED, data } if head.trace.is_none() => {
                    head.trace = Some(TraceView::parse(data, TraceKind::PreAllocated)?);
                }
                ExtOption::Ioam { kind: option_type::EDGE_TO_EDGE, data } if head.edge.is_none() => {
                    head.edge = Some(EdgeToEdge::parse(data)?);
                }
                ExtOption::Tcp(state) if head.tcp.is_none() => head.tcp = Some(state),
                _ => {}
            }
        }
    }
    Ok(head)
}

#[cfg(test)]
mod tests {
    use super::super::{
        DESTINATION_OPTIONS, HOP_BY_HOP, Hop, NodeData, Sequence, TraceHeader, TraceType, emit_edge_header,
        emit_trace_header, fill, insert, trace_header_len, trace_range,
    };
    use super::*;
    use crate::tcp::{TcpHeader, emit_packet};

    #[test]
    fn a_truncated_packet_still_yields_its_telemetry() {
        let (src, dst) = ("[fd00::1]:4711".parse().unwrap(), "[fd00::2]:80".parse().unwrap());
        let mut packet = emit_packet(src, dst, &TcpHeader::default(), &[7; 500]).unwrap();
        let edge = EdgeToEdge { namespace: 1, sequence: Some(Sequence::Short(9)), ..EdgeToEdge::default() };
        let tcp = TcpState { cwnd: 10, ssthresh: 20, srtt_us: 30 };
        let mut header = [0; 56];
        let len = emit_edge_header(6, &edge, Some(&tcp), &mut header).unwrap();
        insert(&mut packet, DESTINATION_OPTIONS, &header[..len]).unwrap();
        let mut header = vec![0; trace_header_len(9)];
        emit_trace_header(DESTINATION_OPTIONS, &TraceHeader::new(1, TraceType::HOP, 9), &mut header).unwrap();
        insert(&mut packet, HOP_BY_HOP, &header).unwrap();
        let range = trace_range(&packet).unwrap().unwrap();
        let node = NodeData { hop: Some(Hop { limit: 64, node_id: Some(5) }), ..NodeData::default() };
        fill(&mut packet[range], &node).unwrap();

        let whole = packet.len();
        packet.truncate(whole - 500);
        let told = head(&packet).unwrap();
        assert_eq!((told.flow.src_port, told.flow.dst_port, told.flow.protocol), (4711, 80, 6));
        assert_eq!((told.edge, told.tcp), (Some(edge), Some(tcp)));
        assert_eq!(told.trace.unwrap().nodes().next(), Some(node));
        // Without the TCP header the addresses are still known; with a truncated options header parsing fails.
        packet.truncate(40 + header.len() + len);
        assert_eq!(head(&packet).unwrap().flow.src_port, 0);
        packet.pop();
        assert!(head(&packet).is_err());
        assert!(head(&[0x45; 60]).is_err());
    }
}
