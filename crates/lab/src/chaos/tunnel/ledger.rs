//! A ledger of every inner packet sent and its fate.
//!
//! ```text
//!   payload  | number 8 | kind 1 | flow 1 | UE 1 | 0 | bytes 4 | offset 8 | body: three words of MARK, one of the stream's |
//! ```
//!
//! With this body, clear-text user data is easy to find in any datagram, and any byte of a reliable flow identifies its offset.

use super::check::{Invariant, Tally};
use anabranch_element::time::{Duration, Instant};
use anabranch_wire::ip;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

/// Three words of four in every body.
pub const MARK: u64 = 0x5ec2_e7da_7a1b_93c4;
/// Bytes of a payload before the body.
pub const HEADER: usize = 24;
/// Numbers from here on belong to the hostile UE and are not in the ledger.
pub const FOREIGN: u64 = 1 << 60;

/// The purpose of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A numbered packet.
    Udp = 0,
    /// A segment of a reliable flow.
    Segment = 1,
    /// An acknowledgment of everything up to the offset.
    Ack = 2,
}

/// The contents of a payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Label {
    /// Number in the ledger.
    pub number: u64,
    /// Purpose.
    pub kind: Kind,
    /// Index of the UE.
    pub ue: u8,
    /// Index of the flow.
    pub flow: u8,
    /// Offset of the segment in its stream, or the next offset expected.
    pub offset: u64,
    /// Bytes of the body.
    pub bytes: usize,
}

/// A packet that was sent.
#[derive(Debug, Clone, Copy)]
struct Sent {
    ue: u8,
    flow: u8,
    up: bool,
    hash: u64,
    at: Instant,
    /// Time of the first arrival.
    arrived_at: Option<Instant>,
    arrived: u8,
}

impl Sent {
    /// Its name in messages, for its number.
    fn name(&self, number: u64) -> String {
        let way = if self.up { "up" } else { "down" };
        format!("packet {number} of UE {}, flow {}, {way}", self.ue, self.flow)
    }
}

/// Service of one UE in one direction.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Service {
    /// Packets sent.
    pub sent: usize,
    /// Delay of each delivered packet without duplicates, nanoseconds, ascending.
    pub delays_ns: Vec<u64>,
}

impl Service {
    /// Number of packets delivered.
    #[must_use]
    pub fn delivered(&self) -> usize {
        self.delays_ns.len()
    }

    /// Mean delay of the fastest `most` packets, microseconds.
    #[must_use]
    pub fn mean_us(&self, most: usize) -> u64 {
        let counted = &self.delays_ns[..most.min(self.delivered())];
        counted.iter().sum::<u64>().checked_div(counted.len() as u64).unwrap_or(0) / 1_000
    }
}

/// Output of a tunnel end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// A packet of the ledger, for the first time.
    Packet(Label),
    /// A duplicate of a packet of the ledger, where duplicates cannot be detected.
    Copy,
    /// A packet of the tunnel itself, or of the hostile UE.
    Other,
}

/// The ledger; see the module documentation.
#[derive(Default)]
pub struct Ledger {
    sent: Vec<Sent>,
    /// Highest number that arrived, by UE, direction and flow.
    highest: Vec<[[u64; MAX_FLOWS]; 2]>,
}

/// Maximum number of flows of a UE.
pub const MAX_FLOWS: usize = 8;

impl Ledger {
    /// A ledger for this many UEs.
    #[must_use]
    pub fn new(ues: usize) -> Self {
        Self { sent: Vec::new(), highest: vec![[[0; MAX_FLOWS]; 2]; ues] }
    }

    /// The number of the next packet.
    #[must_use]
    pub fn next_number(&self) -> u64 {
        self.sent.len() as u64 + 1
    }

    /// Records a packet that is about to be sent, under the number that it carries.
    pub fn send(&mut self, ue: u8, flow: u8, up: bool, packet: &[u8], now: Instant) {
        let hash = hash(packet);
        self.sent.push(Sent { ue, flow, up, hash, at: now, arrived_at: None, arrived: 0 });
    }

    /// Checks a packet delivered by a tunnel end. `addresses` are those of each UE and `own` those of the hostile one. `up`: whether
    /// it was delivered at the UPF. `plain`: whether a UE has an access without a replay window. `ordered`: whether order must hold
    /// for a UE and direction. `within`: maximum delay of a packet of a UE.
    ///
    /// # Errors
    /// The invariant that was violated.
    /// What does not hold.
    #[expect(clippy::too_many_arguments, reason = "one packet and its surroundings")]
    pub fn arrive(
        &mut self,
        up: bool,
        packet: &[u8],
        now: Instant,
        addresses: &[[IpAddr; 2]],
        own: [IpAddr; 2],
        plain: impl Fn(u8) -> bool,
        ordered: impl Fn(u8, bool) -> bool,
        within: impl Fn(u8) -> Option<Duration>,
        tally: &mut Tally,
    ) -> Result<Arrival, (Invariant, String)> {
        let protocol = match packet.first().map(|b| b >> 4) {
            Some(4) => packet.get(9),
            _ => packet.get(6),
        };
        if matches!(protocol, Some(1 | 58)) {
            return Ok(Arrival::Other);
        }
        // The hostile UE may send anything with its own source address.
        if up && ip::src_dst(packet).is_ok_and(|(from, _)| own.contains(&from)) {
            return Ok(Arrival::Other);
        }
        tally.count_check(Invariant::Intact);
        let (from, to, label) = parse(packet).ok_or_else(|| {
            (Invariant::Intact, format!("{} bytes that nobody sent came out", packet.len()))
        })?;
        tally.count_check(Invariant::OwnSource);
        let owner = |address: IpAddr| addresses.iter().position(|own| own.contains(&address));
        let device = owner(if up { from.ip() } else { to.ip() });
        if label.number >= FOREIGN {
            return match device {
                Some(ue) => Err((
                    Invariant::OwnSource,
                    format!("a packet of the hostile UE was delivered as if UE {ue} had sent it"),
                )),
                None => Ok(Arrival::Other),
            };
        }
        let index = usize::try_from(label.number).unwrap_or(0).wrapping_sub(1);
        let Some(sent) = self.sent.get_mut(index) else {
            return Err((Invariant::Intact, format!("packet {} was never sent", label.number)));
        };
        if device != Some(sent.ue.into()) {
            let what = format!("packet {} of UE {} came out as of {from} for {to}", label.number, sent.ue);
            return Err((Invariant::OwnSource, what));
        }
        if sent.up != up || sent.hash != hash(packet) {
            let what = format!("packet {} of UE {} is not as it was sent", label.number, sent.ue);
            return Err((Invariant::Intact, what));
        }
        tally.count_check(Invariant::Once);
        sent.arrived = sent.arrived.saturating_add(1);
        if sent.arrived > 1 {
            if plain(sent.ue) {
                return Ok(Arrival::Copy);
            }
            let what = format!("packet {} of UE {} was delivered twice", label.number, sent.ue);
            return Err((Invariant::Once, what));
        }
        sent.arrived_at = Some(now);
        if let Some(within) = within(sent.ue) {
            tally.count_check(Invariant::Prompt);
            let took = now - sent.at;
            if took > within {
                let (took, within) = (took.as_millis(), within.as_millis());
                let what = format!("{}, took {took} ms where {within} are enough", sent.name(label.number));
                return Err((Invariant::Prompt, what));
            }
        }
        let highest = &mut self.highest[usize::from(sent.ue)][usize::from(up)][usize::from(sent.flow)];
        if ordered(sent.ue, up) {
            tally.count_check(Invariant::Order);
            if label.number < *highest {
                let what = format!("{}, came out after {highest}", sent.name(label.number));
                return Err((Invariant::Order, what));
            }
        }
        *highest = label.number.max(*highest);
        Ok(Arrival::Packet(label))
    }

    /// The first packet of a UE among these numbers that has not arrived.
    #[must_use]
    pub fn missing(&self, ue: u8, numbers: Range<u64>) -> Option<String> {
        let mut sent = (1..).zip(&self.sent).filter(|(number, _)| numbers.contains(number));
        let (number, sent) = sent.find(|(_, sent)| sent.ue == ue && sent.arrived == 0)?;
        Some(format!("{}, sent at {}", sent.name(number), sent.at))
    }

    /// Service of all packets sent by `until`, by UE and direction (up is 1).
    #[must_use]
    pub fn services(&self, until: Instant) -> Vec<[Service; 2]> {
        let mut services = vec![<[Service; 2]>::default(); self.highest.len()];
        for sent in self.sent.iter().filter(|sent| sent.at <= until) {
            let service = &mut services[usize::from(sent.ue)][usize::from(sent.up)];
            service.sent += 1;
            service
                .delays_ns
                .extend(sent.arrived_at.map(|arrived_at| (arrived_at - sent.at).as_nanos() as u64));
        }
        services.iter_mut().flatten().for_each(|service| service.delays_ns.sort_unstable());
        services
    }
}

/// Builds a packet of a flow.
#[must_use]
pub fn emit(from: SocketAddr, to: SocketAddr, label: &Label) -> Vec<u8> {
    let mut payload = vec![0; HEADER + label.bytes];
    payload[..8].copy_from_slice(&label.number.to_be_bytes());
    payload[8..12].copy_from_slice(&[label.kind as u8, label.flow, label.ue, 0]);
    payload[12..16].copy_from_slice(&(label.bytes as u32).to_be_bytes());
    payload[16..24].copy_from_slice(&label.offset.to_be_bytes());
    fill(label, &mut payload[HEADER..]);
    ip::udp_datagram(from, to, &payload).unwrap_or_default()
}

fn fill(label: &Label, body: &mut [u8]) {
    for (place, word) in (label.offset / 8..).zip(body.chunks_mut(8)) {
        let value = if place % 4 == 3 { scramble(place, label) } else { MARK };
        word.copy_from_slice(&value.to_le_bytes()[..word.len()]);
    }
}

fn scramble(place: u64, label: &Label) -> u64 {
    let of = u64::from(label.ue) << 8 | u64::from(label.flow);
    (place ^ of << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Parses a packet, if it belongs to the ledger and its body matches its offset.
fn parse(packet: &[u8]) -> Option<(SocketAddr, SocketAddr, Label)> {
    let (from, to, payload) = ip::parse_udp(packet).ok()?;
    let payload = &packet[payload];
    let word = |at: usize| Some(u64::from_be_bytes(payload.get(at..at + 8)?.try_into().ok()?));
    let kind = match payload.get(8)? {
        0 => Kind::Udp,
        1 => Kind::Segment,
        2 => Kind::Ack,
        _ => return None,
    };
    let bytes = u32::from_be_bytes(payload.get(12..16)?.try_into().ok()?) as usize;
    let label = Label { number: word(0)?, kind, flow: payload[9], ue: payload[10], offset: word(16)?, bytes };
    let mut body = vec![0; bytes];
    fill(&label, &mut body);
    (payload.get(HEADER..) == Some(&body)).then_some((from, to, label))
}

/// Whether a datagram contains user data in clear text.
#[must_use]
pub fn in_clear(datagram: &[u8]) -> bool {
    // Two consecutive words of the mark contain one of its rotations at any alignment.
    let doubled = u128::from(MARK) << 64 | u128::from(MARK);
    let rotations: [u64; 8] = std::array::from_fn(|n| (doubled >> (8 * n)) as u64);
    let words = datagram.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()));
    words.into_iter().any(|word| rotations.contains(&word))
}

/// A 64-bit hash of a packet.
fn hash(packet: &[u8]) -> u64 {
    let mut tally = Tally::default();
    tally.digest(packet);
    tally.digest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label(bytes: usize) -> Label {
        Label { number: 7, kind: Kind::Segment, ue: 1, flow: 2, offset: 4096, bytes }
    }

    #[test]
    fn packets_identify_themselves_and_corruption_is_detected() {
        let (from, to) = ("10.0.0.1:5".parse().unwrap(), "192.0.2.1:9".parse().unwrap());
        let packet = emit(from, to, &label(800));
        assert_eq!(parse(&packet), Some((from, to, label(800))));
        for at in [0, 17, 23, 24, 500, 823] {
            let mut payload = packet[28..].to_vec();
            payload[at] ^= 1;
            let other = ip::udp_datagram(from, to, &payload).unwrap();
            let changed = parse(&other).is_none_or(|(_, _, other)| other != label(800));
            assert!(changed, "byte {at}");
        }
    }

    #[test]
    fn user_data_is_found_at_any_offset() {
        let (from, to) = ("10.0.0.1:5".parse().unwrap(), "192.0.2.1:9".parse().unwrap());
        let packet = emit(from, to, &label(40));
        for shift in 0..16 {
            let mut datagram = vec![0xa5; shift];
            datagram.extend_from_slice(&packet);
            assert!(in_clear(&datagram), "{shift}");
        }
        assert!(!in_clear(&super::super::draw::RandomStream::new(1, 1).bytes(100_000)));
    }
}
