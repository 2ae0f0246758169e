//! IOAM: traces, edge-to-edge, feedback and whole packets with extension headers. What parses is written and
//! read again as the same; what is filled can be read.
#![no_main]

use anabranch_wire::ioam::{
    self, EdgeToEdge, FEEDBACK_LEN, Feedback, Filled, Hop, NodeData, TraceKind, TraceView,
};
use anabranch_wire::tcp::blank_option;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(trace) = TraceView::parse(data, TraceKind::PreAllocated) {
        let header = trace.header();
        let free = 8 + 4 * usize::from(header.remaining_words);
        let mut again = data.to_vec();
        let mut at = free;
        for node in trace.nodes() {
            let len = node.emit(header.trace_type, &mut again[at..]).expect("fits where it came from");
            assert_eq!(NodeData::parse(&again[at..], header.trace_type), Ok((node, len)));
            at += len;
        }
        assert_eq!(at, data.len());
        let node = NodeData { hop: Some(Hop { limit: 3, node_id: Some(4) }), ..NodeData::default() };
        let before = trace.nodes().count();
        let filled = ioam::fill(&mut again, &node).expect("it parsed");
        let after = TraceView::parse(&again, TraceKind::PreAllocated).expect("filling keeps it sound");
        assert_eq!(after.nodes().count(), before + usize::from(filled == Filled::Yes));
        assert_eq!(after.header().overflow, filled == Filled::NoRoom);
    }
    let _ = TraceView::parse(data, TraceKind::Incremental).map(|t| t.nodes().count());
    if let Ok(edge) = EdgeToEdge::parse(data) {
        let mut again = vec![0; edge.encoded_len()];
        edge.emit(&mut again).expect("room");
        assert_eq!(again, data);
    }
    if let Ok(Some(feedback)) = Feedback::parse(data) {
        let mut again = [0; FEEDBACK_LEN];
        let len = feedback.emit(&mut again).expect("room");
        assert_eq!(Feedback::parse(&again[..len]), Ok(Some(feedback)));
    }
    // The same bytes behind an IPv6 header that fits them.
    let mut packet = vec![0x60; 40];
    packet.extend(data.iter().take(2000));
    let length = (packet.len() - 40) as u16;
    packet[4..6].copy_from_slice(&length.to_be_bytes());
    packet[6] = if length.is_multiple_of(2) { ioam::HOP_BY_HOP } else { ioam::DESTINATION_OPTIONS };
    let _ = ioam::report(&packet, length as u8);
    if let Ok(Some(range)) = ioam::trace_range(&packet) {
        let _ = ioam::fill(&mut packet[range], &NodeData::default());
    }
    if ioam::strip(&mut packet).is_ok() {
        assert_eq!(usize::from(u16::from_be_bytes([packet[4], packet[5]])), packet.len() - 40);
    }
    packet[6] = 6;
    let before = packet.len();
    if let Ok(true) = blank_option(&mut packet, ioam::TCP_OPTION_KIND) {
        assert_eq!((packet.len(), blank_option(&mut packet, ioam::TCP_OPTION_KIND)), (before, Ok(false)));
    }
});
