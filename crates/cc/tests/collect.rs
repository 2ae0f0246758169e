//! The collector with the elements that fill traces: it understands each of our nodes.

use anabranch_cc::collect::{CaptureInfo, CollectConfig, Collector, GaugeView};
use anabranch_element::Element;
use anabranch_element::packet::Packet;
use anabranch_element::time::Instant;
use anabranch_link::{DuplexLink, IoamNode, LinkConfig, Rate};
use anabranch_ran::amc::Direction;
use anabranch_ran::gnb::Gnb;
use anabranch_wire::ioam::{HOP_BY_HOP, TraceHeader, TraceType, emit_trace_header, insert, trace_header_len};
use anabranch_wire::tcp::{TcpHeader, emit_packet};

/// A full segment with an empty trace.
fn traced(port: u16) -> Vec<u8> {
    let (src, dst) = (format!("[fd00::1]:{port}"), "[fd00::2]:80".parse().unwrap());
    let mut packet = emit_packet(src.parse().unwrap(), dst, &TcpHeader::default(), &[7; 1000]).unwrap();
    let mut header = vec![0; trace_header_len(36)];
    emit_trace_header(
        packet[6],
        &TraceHeader::new(1, TraceType::REPORTED | TraceType::BUFFER, 36),
        &mut header,
    )
    .unwrap();
    insert(&mut packet, HOP_BY_HOP, &header).unwrap();
    packet
}

#[test]
fn traces_of_our_links_are_understood() {
    let ioam = Some(IoamNode { node_id: 1, namespace: 1, ..IoamNode::default() });
    let one = LinkConfig { ioam, rate: Rate::Fixed(8_000_000), ..LinkConfig::default() };
    let mut link = DuplexLink::new(one, LinkConfig::default(), 1);
    let mut collector = Collector::new(CollectConfig::default());
    for port in 0..10 {
        link.on_packet(DuplexLink::A, Packet::new(Instant::ZERO, traced(port)), Instant::ZERO);
    }
    let later = Instant::from_millis(100);
    while let Some((_, packet)) = link.poll_transmit(later) {
        let bytes = packet.len() as u32;
        collector.observe_packet(&packet, CaptureInfo { at: packet.at, wall: None, bytes });
    }
    let path = collector.paths(later).remove(0);
    assert_eq!((path.name.clone(), path.traces, path.flows_seen), ("1".into(), 10, 10));
    let hop = &path.hops[0];
    assert_eq!(hop.link_kbps.map(|l| l.last), Some(8_000));
    assert!(hop.depth_bytes.is_some_and(|depth| depth.most > 1000 && depth.last == 0), "{hop:?}");
    assert_eq!((hop.queue_drops, hop.medium_losses), (Some(0), Some(0)));
}

/// A cell with a UE whose traffic exceeds the capacity of the air.
#[test]
fn traces_of_our_cells_are_understood() {
    let config = serde_json::from_value(serde_json::json!({
        "radio": { "rat": "lte", "rbs": 25 },
        "ioam": { "node_id": 9, "namespace": 1 },
        "ues": [{
            "name": "u", "addresses": ["fd00::2"], "channel": { "model": "constant", "mcs": 20 },
            "bearer": { "queue": "e5g_bdp" },
            "sdap": { "flows": [{ "qfi": 9, "drb": 1, "unmapped": true, "limit_bytes": 100_000 }] },
        }],
    }));
    let mut cell = Gnb::new(&config.unwrap(), &mut |_| Err("no file".into())).unwrap();
    let mut collector = Collector::new(CollectConfig::default());
    let mut now = Instant::ZERO;
    // 25 Mbit/s into a carrier of 25 RBs, which carries about 10 Mbit/s at MCS 20.
    for step in 0..2000_u64 {
        now = Instant::from_micros(step * 350);
        cell.on_packet(Gnb::N3, Packet::new(now, traced((step % 3) as u16)), now);
        cell.on_timeout(now);
        while let Some((port, packet)) = cell.poll_transmit(now) {
            assert_eq!(port, Gnb::ue(0));
            let bytes = packet.len() as u32;
            collector.observe_packet(&packet, CaptureInfo { at: packet.at, wall: None, bytes });
        }
    }
    let path = collector.paths(now).remove(0);
    assert_eq!((path.name.as_str(), path.complete, path.flows_seen), ("9", true, 3));
    let hop = &path.hops[0];
    let last = |level: Option<GaugeView>| level.unwrap().last;
    assert_eq!((hop.mcs, hop.flows), (Some(20), Some(3)), "{hop:?}");
    assert!(hop.rb_share_percent > Some(90.0), "{hop:?}");
    // The reported rate equals the delivered rate, apart from MAC, RLC and PDCP headers.
    let delivered = cell.link_stats(Direction::Downlink, now).delivered_bytes * 8;
    let kbps = delivered as f64 / now.as_secs_f64() / 1e3;
    let told = f64::from(last(hop.link_kbps));
    assert!((kbps * 0.98..kbps * 1.08).contains(&told), "{told} and {kbps} kbit/s");
    // The queue is full, the limiter keeps it out of RLC, and packets without room were dropped.
    assert!((95_000..=130_000).contains(&last(hop.depth_bytes)), "{hop:?}");
    assert!(last(hop.rlc_bytes) < 10_000 && hop.capacity_bytes == Some(100_000), "{hop:?}");
    assert!(hop.queue_drops > Some(500) && hop.medium_losses == Some(0), "{hop:?}");
    assert!((22_000..29_000).contains(&last(hop.arrival_kbps)), "{hop:?}");
}
