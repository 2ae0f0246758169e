//! The acknowledgments received by a TCP sender of the kernel: duplicates, and the third consecutive one.
//!
//! The kernel counts its reactions to them, which differ with and without RACK. Here they are counted on arrival, by a packet
//! socket in the sender's namespace. A duplicate is defined as in RFC 5681 §2, as far as it is visible from outside: no data,
//! SYN, FIN or RST, the same number as the previous one, and SACK blocks or an unchanged window. One that only reports a second
//! copy (DSACK) does not count.

use super::super::diag::Side;
use super::super::space::Space;
use super::super::stop::Stop;
use super::listen::{ETH_P_IP, ETH_P_IPV6, LOOK, drain, flow_of, packet_socket};
use anabranch_wire::ioam::Feedback;
use anabranch_wire::tcp::{TcpFlags, TcpPacket, parse_packet};
use anyhow::Result;
use socket2::Socket;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Instant;

/// Maximum length of a packet without data: IPv6, TCP with all options.
const MAX_BYTES: usize = 256;

/// TCP senders of a namespace.
#[derive(Debug)]
pub struct AckTap {
    sockets: [Socket; 2],
    flows: Vec<(String, Side)>,
}

/// Observations of a flow.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AckObservations {
    /// Duplicate acknowledgments.
    pub duplicates: u64,
    /// Number of third consecutive duplicates.
    pub triples: u64,
    /// Their number over time, seconds; observed up to [`LOOK`] later.
    pub triples_by: Vec<(f64, f64)>,
    /// Bytes of the packets, and of path reports among them.
    pub bytes: [u64; 2],
    /// Path reports received.
    pub reports: u64,
    /// The newest report over time, seconds; observed up to [`LOOK`] later.
    pub reports_over_time: Vec<(f64, PathReport)>,
    /// The newest report, before its time is recorded.
    newest: Option<PathReport>,
}

/// A report received by a sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathReport {
    /// Losses of the medium so far, modulo 2^16.
    pub losses: u16,
    /// Queue of the bottleneck according to the newest full report.
    pub depth_bytes: Option<u64>,
}

impl AckTap {
    /// A tap for `flows`, whose sockets in `space` are identified by a port.
    ///
    /// # Errors
    /// Packet sockets are not available.
    pub fn open(space: &Space, flows: Vec<(String, Side)>) -> Result<Self> {
        let sockets = space.enter(|| Ok([packet_socket(ETH_P_IP)?, packet_socket(ETH_P_IPV6)?]))?;
        Ok(Self { sockets, flows })
    }
}

/// Counts until the end is requested.
///
/// # Errors
/// Packets cannot be read.
pub fn watch(mut tap: AckTap, start: Instant, end: &Stop) -> Result<BTreeMap<String, AckObservations>> {
    let mut counts = Counts { flows: tap.flows, of: BTreeMap::new(), seen: BTreeMap::new() };
    let mut buffer = [0; MAX_BYTES];
    loop {
        let over = end.requested();
        for socket in &mut tap.sockets {
            drain(socket, &mut buffer, |packet| counts.packet(packet))?;
        }
        counts.record(start.elapsed().as_secs_f64());
        if over {
            return Ok(counts.seen);
        }
        end.sleep(LOOK);
    }
}

/// Both addresses, which identify a connection of a flow.
type ConnectionAddresses = (SocketAddr, SocketAddr);

struct Counts {
    flows: Vec<(String, Side)>,
    of: BTreeMap<ConnectionAddresses, DuplicateRun>,
    seen: BTreeMap<String, AckObservations>,
}

/// Consecutive acknowledgments with the same number.
#[derive(Clone, Copy)]
struct DuplicateRun {
    ack: u32,
    window: u16,
    duplicates: u64,
}

impl Counts {
    /// Records changes up to now.
    fn record(&mut self, now_s: f64) {
        for seen in self.seen.values_mut() {
            let triples = seen.triples as f64;
            if seen.triples_by.last().map_or(0.0, |(_, last)| *last) != triples {
                seen.triples_by.push((now_s, triples));
            }
            if let Some(newest) = seen.newest.take() {
                seen.reports_over_time.push((now_s, newest));
            }
        }
    }

    fn packet(&mut self, packet: &[u8]) {
        // Packets longer than the buffer carry data and are not parsed.
        let bytes = packet.len() as u64;
        let Ok(packet) = parse_packet(packet) else { return };
        let Some(flow) = flow_of(&self.flows, packet.src.port(), packet.dst.port()) else { return };
        let header = &packet.header;
        if header.flags.0 & TcpFlags::ACK.0 == 0 {
            // A SYN acknowledges nothing, and its number is not comparable.
            return;
        }
        self.seen.entry(flow.to_owned()).or_default().reported(&header.options.report, bytes);
        let Some(row) = self.of.get_mut(&(packet.src, packet.dst)) else {
            let row = DuplicateRun { ack: header.ack, window: header.window, duplicates: 0 };
            self.of.insert((packet.src, packet.dst), row);
            return;
        };
        if row.ack != header.ack {
            // Older numbers carry no information and do not end the sequence.
            if row.ack.wrapping_sub(header.ack).cast_signed() < 0 {
                *row = DuplicateRun { ack: header.ack, window: header.window, duplicates: 0 };
            }
            return;
        }
        let duplicate = is_duplicate(&packet, row.window);
        row.window = header.window;
        if duplicate {
            row.duplicates += 1;
            let seen = self.seen.entry(flow.to_owned()).or_default();
            seen.duplicates += 1;
            seen.triples += u64::from(row.duplicates == 3);
        }
    }
}

impl AckObservations {
    /// Records a packet of this length, with its option, if any.
    fn reported(&mut self, option: &[u8], bytes: u64) {
        self.bytes[0] += bytes;
        let length = usize::from(option[1]).min(option.len());
        let Ok(Some(report)) = Feedback::parse(&option[..length]) else { return };
        self.reports += 1;
        self.bytes[1] += length as u64;
        let before = self.newest.or(self.reports_over_time.last().map(|(_, told)| *told));
        let depth_bytes = match report.bottleneck {
            Some(hop) => hop.depth_bytes,
            // The short form does not contain it.
            None => before.and_then(|told| told.depth_bytes),
        };
        self.newest = Some(PathReport { losses: report.medium_losses, depth_bytes });
    }
}

fn is_duplicate(packet: &TcpPacket, window: u16) -> bool {
    let header = &packet.header;
    let special = TcpFlags::SYN | TcpFlags::FIN | TcpFlags::RST;
    if !packet.payload.is_empty() || header.flags.0 & special.0 != 0 {
        return false;
    }
    // The first block of a DSACK is below the number, or within another one above.
    let blocks = header.options.sack.as_slice();
    let old = |right: u32| header.ack.wrapping_sub(right).cast_signed() >= 0;
    match blocks {
        [] => header.window == window,
        [(_, right)] => !old(*right),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_wire::ioam::Bottleneck;
    use anabranch_wire::tcp::{TcpHeader, emit_packet};

    fn ack(number: u32, window: u16, sack: &[(u32, u32)], payload: &[u8]) -> Vec<u8> {
        let mut header =
            TcpHeader { ack: number, window, flags: TcpFlags::ACK, seq: 7, ..TcpHeader::default() };
        for (left, right) in sack {
            assert!(header.options.sack.push(*left, *right));
        }
        let [ue, server] = ["10.0.0.2:4000", "10.0.0.1:80"].map(|a| a.parse().unwrap());
        emit_packet(ue, server, &header, payload).unwrap()
    }

    #[test]
    fn the_number_of_a_syn_is_ignored() {
        let [ue, server] = ["10.0.0.2:4000", "10.0.0.1:80"].map(|a| a.parse().unwrap());
        let syn = TcpHeader { flags: TcpFlags::SYN, seq: 6, ..TcpHeader::default() };
        let syn = emit_packet(ue, server, &syn, &[]).unwrap();
        let high = ack(0xf000_0000, 100, &[], &[]);
        assert_eq!(count(&[syn, high.clone(), high.clone(), high]).duplicates, 2);
    }

    fn count(packets: &[Vec<u8>]) -> AckObservations {
        let flows = vec![("other".to_owned(), Side::Local(81)), ("f".to_owned(), Side::Local(80))];
        let mut counts = Counts { flows, of: BTreeMap::new(), seen: BTreeMap::new() };
        packets.iter().for_each(|packet| counts.packet(packet));
        assert!(!counts.seen.contains_key("other"));
        counts.seen.remove("f").unwrap_or_default()
    }

    #[test]
    fn the_third_in_a_row_is_counted_once() {
        let first = ack(u32::MAX - 9, 100, &[], &[]);
        let again = ack(u32::MAX - 9, 101, &[(50, 90)], &[]);
        let next = ack(50, 100, &[], &[]);
        let mut packets = vec![first.clone()];
        packets.extend(vec![again; 5]);
        packets.extend([next.clone(), next.clone(), next.clone()]);
        // An older one that was overtaken changes nothing.
        packets.extend([first, next]);
        let seen = count(&packets);
        assert_eq!((seen.duplicates, seen.triples, seen.reports), (8, 2, 0));
        assert_eq!(seen.bytes, [packets.iter().map(Vec::len).sum::<usize>() as u64, 0]);
    }

    #[test]
    fn reports_are_read_and_counted() {
        let mut header = TcpHeader { ack: 9, flags: TcpFlags::ACK, ..TcpHeader::default() };
        let mut option = |losses: u16, depth_bytes: Option<u64>| {
            let bottleneck =
                depth_bytes.map(|depth| Bottleneck { depth_bytes: Some(depth), ..Bottleneck::default() });
            let report = Feedback { medium_losses: losses, bottleneck, ..Feedback::default() };
            report.emit(&mut header.options.report).unwrap();
            let [ue, server] = ["[fd00::2]:4000", "[fd00::1]:80"].map(|a| a.parse().unwrap());
            emit_packet(ue, server, &header, &[]).unwrap()
        };
        let (full, short) = (option(3, Some(1600)), option(5, None));
        let seen = count(&[full.clone(), short]);
        // The short form does not contain the queue.
        assert_eq!((seen.reports, seen.newest), (2, Some(PathReport { losses: 5, depth_bytes: Some(1600) })));
        assert_eq!(seen.bytes[1], 16 + 8);
        let mut counts =
            Counts { flows: Vec::new(), of: BTreeMap::new(), seen: [("f".to_owned(), seen)].into() };
        counts.record(0.5);
        counts.record(0.6);
        assert_eq!(
            counts.seen["f"].reports_over_time,
            [(0.5, PathReport { losses: 5, depth_bytes: Some(1600) })]
        );
    }

    #[test]
    fn times_are_recorded_when_the_count_increases() {
        let seen = AckObservations { triples: 2, ..AckObservations::default() };
        let mut counts =
            Counts { flows: Vec::new(), of: BTreeMap::new(), seen: [("f".to_owned(), seen)].into() };
        for (at, triples) in [(0.5, 2), (0.6, 2), (0.7, 5)] {
            counts.seen.get_mut("f").unwrap().triples = triples;
            counts.record(at);
        }
        assert_eq!(counts.seen["f"].triples_by, [(0.5, 2.0), (0.7, 5.0)]);
    }

    #[test]
    fn other_acknowledgments_are_not_counted() {
        let first = ack(1000, 100, &[], &[]);
        for other in [
            ack(1000, 101, &[], &[]),
            ack(1000, 100, &[], b"data"),
            ack(1000, 100, &[(500, 900)], &[]),
            first[..30].to_vec(),
        ] {
            assert_eq!(count(&[first.clone(), other]).duplicates, 0);
        }
        assert_eq!(count(&[first, ack(1000, 7, &[(500, 900), (2000, 3000)], &[])]).duplicates, 1);
    }
}
