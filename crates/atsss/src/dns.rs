//! Names of remote addresses, learned from DNS answers on their way to the device.
//!
//! RFC 1035 over UDP port 53. An answer `www.example.org CNAME x.cdn.net, x.cdn.net A 192.0.2.1` associates
//! 192.0.2.1 with both names, so that a rule for either domain matches (ATSSS rules may contain a domain: TS
//! 24.193 §6.1.3.2). Only records reachable from the question over CNAMEs count; additional records do not.
//!
//! A name is kept for the smallest TTL of the chain, but at least [`TTL_FLOOR`] and at most [`TTL_CEILING`].
//! The minimum exists because applications use addresses for longer than they should, and a flow is
//! classified when it starts and not when its name is resolved. The table is bounded: the address whose names
//! expire first is evicted. A wrong answer can only change the access of traffic, never take it out of the
//! tunnel.
//!
//! An answer counts only if its question was seen before (RFC 5452 §9.1: addresses, ports and identifier),
//! once per question, and within [`ANSWERED_WITHIN`], because anybody can send other answers.

use anabranch_element::time::{Duration, Instant};
use anabranch_wire::ip::{FlowKey, IpPacket, protocol};
use simple_dns::rdata::RData;
use simple_dns::{CLASS, Name, OPCODE, Packet, PacketFlag, RCODE, ResourceRecord};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

/// Shortest time a name is kept.
pub const TTL_FLOOR: Duration = Duration::from_secs(300);
/// Longest time a name is kept.
pub const TTL_CEILING: Duration = Duration::from_secs(24 * 3600);
/// Addresses in a table unless configured otherwise.
pub const DEFAULT_ADDRESSES: usize = 2048;
/// Names kept per address.
pub const NAMES_PER_ADDRESS: usize = 8;
/// The UDP port of DNS servers (RFC 1035 §4.2.1).
pub const PORT: u16 = 53;
/// Most questions remembered; beyond that, the oldest are forgotten.
pub const MAX_QUESTIONS: usize = 512;
/// How long after a question its answer is accepted: longer than resolvers wait.
pub const ANSWERED_WITHIN: Duration = Duration::from_secs(30);
/// CNAMEs followed in one answer.
const MAX_CHAIN: usize = 16;
const HEADER_BYTES: usize = 12;

/// Counters of DNS messages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DnsStats {
    /// Answers from which at least one address was learned.
    pub learned: u64,
    /// DNS messages without usable content: queries, errors, other record types.
    pub ignored: u64,
    /// Packets from port 53 that are not valid DNS.
    pub malformed: u64,
    /// Answers without a question, or to a question already answered.
    pub unasked: u64,
    /// Addresses that were evicted because the table was full.
    pub evicted: u64,
}

/// Address to names.
#[derive(Debug, Clone)]
pub struct DnsTable {
    addresses: BTreeMap<IpAddr, AddressEntry>,
    /// The same addresses, sorted by the expiry of their last name.
    by_expiry: BTreeSet<(Instant, IpAddr)>,
    /// Questions without an answer, oldest first.
    asked: VecDeque<Question>,
    limit: usize,
    stats: DnsStats,
}

/// An open question: the flow of its answer, and its identifier.
#[derive(Debug, Clone, Copy)]
struct Question {
    answer: FlowKey,
    id: u16,
    at: Instant,
}

#[derive(Debug, Clone)]
struct AddressEntry {
    names: Vec<(Arc<str>, Instant)>,
    expires: Instant,
}

impl Default for DnsTable {
    fn default() -> Self {
        Self::new(DEFAULT_ADDRESSES)
    }
}

impl DnsTable {
    /// A table of up to `limit` addresses (at least 1) with [`NAMES_PER_ADDRESS`] names each.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self {
            addresses: BTreeMap::new(),
            by_expiry: BTreeSet::new(),
            asked: VecDeque::new(),
            limit: limit.max(1),
            stats: DnsStats::default(),
        }
    }

    /// Examines an IP packet from the device, and remembers it if it is a DNS question.
    pub fn track_question(&mut self, packet: &[u8], now: Instant) {
        let Some(message) = dns_payload(packet, MessageKind::Question) else { return };
        let (Some(id), Ok(flow)) = (identifier(message), FlowKey::parse(packet)) else { return };
        let answer = flow.reversed();
        // A repeated question, as resolvers send it when there is no answer.
        self.asked.retain(|question| {
            (question.answer, question.id) != (answer, id) && question.at + ANSWERED_WITHIN > now
        });
        if self.asked.len() == MAX_QUESTIONS {
            self.asked.pop_front();
        }
        self.asked.push_back(Question { answer, id, at: now });
    }

    /// Examines an IP packet to the device, and learns from it if it answers a question seen by
    /// [`DnsTable::track_question`].
    pub fn snoop(&mut self, packet: &[u8], now: Instant) {
        // The cheap check first: nearly all packets are not UDP from port 53.
        let Some(message) = dns_payload(packet, MessageKind::Answer) else { return };
        let (Some(id), Ok(flow)) = (identifier(message), FlowKey::parse(packet)) else {
            self.stats.malformed += 1;
            return;
        };
        let answers = |question: &Question| {
            question.answer == flow && question.id == id && question.at + ANSWERED_WITHIN > now
        };
        let Some(at) = self.asked.iter().position(answers) else {
            self.stats.unasked += 1;
            return;
        };
        self.asked.remove(at);
        self.learn(message, now);
    }

    /// Learns from a DNS message of any sender.
    pub fn learn(&mut self, message: &[u8], now: Instant) {
        match answers(message) {
            Err(()) => self.stats.malformed += 1,
            Ok(found) if found.is_empty() => self.stats.ignored += 1,
            Ok(found) => {
                self.stats.learned += 1;
                for (address, name, ttl) in found {
                    self.put(address, name, ttl, now);
                }
            }
        }
    }

    /// Adds a name to an address. The name must be in lower case.
    pub fn insert(&mut self, address: IpAddr, name: &str, ttl: Duration, now: Instant) {
        self.put(address, name.to_ascii_lowercase().into(), ttl, now);
    }

    /// The names of an address.
    pub fn names(&self, address: IpAddr, now: Instant) -> impl Iterator<Item = &str> {
        let names = self.addresses.get(&address).map(|entry| entry.names.as_slice()).unwrap_or_default();
        names.iter().filter(move |(_, expires)| *expires > now).map(|(name, _)| &**name)
    }

    /// Number of addresses, including those whose names have expired since the last answer.
    #[must_use]
    pub fn len(&self) -> usize {
        self.addresses.len()
    }

    /// Whether no address is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.addresses.is_empty()
    }

    /// Counters so far.
    #[must_use]
    pub const fn stats(&self) -> DnsStats {
        self.stats
    }

    fn put(&mut self, address: IpAddr, name: Arc<str>, ttl: Duration, now: Instant) {
        self.expire(now);
        let expires = now + ttl.clamp(TTL_FLOOR, TTL_CEILING);
        let full = self.addresses.len() >= self.limit && !self.addresses.contains_key(&address);
        if full && let Some((_, evicted)) = self.by_expiry.pop_first() {
            self.addresses.remove(&evicted);
            self.stats.evicted += 1;
        }
        let entry = self
            .addresses
            .entry(address)
            .or_insert(AddressEntry { names: Vec::new(), expires: Instant::ZERO });
        self.by_expiry.remove(&(entry.expires, address));
        entry.names.retain(|(other, until)| *until > now && *other != name);
        if entry.names.len() >= NAMES_PER_ADDRESS
            && let Some(first) = (0..entry.names.len()).min_by_key(|&i| entry.names[i].1)
        {
            entry.names.swap_remove(first);
        }
        entry.names.push((name, expires));
        entry.expires = entry.names.iter().map(|(_, until)| *until).max().unwrap_or(expires);
        self.by_expiry.insert((entry.expires, address));
    }

    fn expire(&mut self, now: Instant) {
        while let Some((expires, address)) = self.by_expiry.first().copied()
            && expires <= now
        {
            self.by_expiry.pop_first();
            self.addresses.remove(&address);
        }
    }
}

/// Direction of a DNS message.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MessageKind {
    /// To port 53.
    Question,
    /// From port 53.
    Answer,
}

/// The payload of a UDP packet to or from port 53.
fn dns_payload(packet: &[u8], kind: MessageKind) -> Option<&[u8]> {
    let ip = IpPacket::parse(packet).ok()?;
    if ip.protocol != protocol::UDP || ip.fragment {
        return None;
    }
    let udp = packet.get(ip.payload)?;
    let length = usize::from(u16::from_be_bytes([*udp.get(4)?, *udp.get(5)?]));
    let port = if kind == MessageKind::Answer { &udp[..2] } else { &udp[2..4] };
    if port != PORT.to_be_bytes() || length < 8 {
        return None;
    }
    udp.get(8..length)
}

fn identifier(message: &[u8]) -> Option<u16> {
    message.first_chunk().copied().map(u16::from_be_bytes)
}

type AddressRecords = Vec<(IpAddr, Arc<str>, Duration)>;

/// The addresses of an answer, each with all names by which it was reached. `Err` if it is not valid DNS.
fn answers(message: &[u8]) -> Result<AddressRecords, ()> {
    let mut bytes = message.to_vec();
    let header: &mut [u8; HEADER_BYTES] = bytes.first_chunk_mut().ok_or(())?;
    // Only questions and answers are of interest, so the other sections are hidden from the parser. The
    // counts must fit the message, because the parser allocates by them (a question has at least 5 bytes, a
    // record 11).
    header[8..].fill(0);
    let count = |at: usize| usize::from(u16::from_be_bytes([header[at], header[at + 1]]));
    if HEADER_BYTES + count(4) * 5 + count(6) * 11 > message.len() {
        return Err(());
    }
    let packet = Packet::parse(&bytes).map_err(|_| ())?;
    let mut found = AddressRecords::new();
    let [question] = packet.questions.as_slice() else { return Ok(found) };
    let usable = packet.has_flags(PacketFlag::RESPONSE)
        && packet.opcode() == OPCODE::StandardQuery
        && packet.rcode() == RCODE::NoError;
    if !usable {
        return Ok(found);
    }
    let mut chain: Vec<Arc<str>> = Vec::new();
    let mut ttl = u32::MAX;
    let mut at = text(&question.qname);
    while let Some(name) = at.take()
        && chain.len() < MAX_CHAIN
        && !chain.contains(&name)
    {
        chain.push(name.clone());
        for record in packet.answers.iter().filter(|r| is_owner(r, &name)) {
            let address = match &record.rdata {
                RData::A(a) => IpAddr::V4(Ipv4Addr::from_bits(a.address)),
                RData::AAAA(a) => IpAddr::V6(Ipv6Addr::from_bits(a.address)),
                RData::CNAME(target) => {
                    ttl = ttl.min(record.ttl);
                    at = text(&target.0);
                    continue;
                }
                _ => continue,
            };
            let ttl = Duration::from_secs(ttl.min(record.ttl).into());
            found.extend(chain.iter().map(|name| (address, name.clone(), ttl)));
        }
    }
    Ok(found)
}

fn is_owner(record: &ResourceRecord<'_>, name: &str) -> bool {
    record.class == CLASS::IN && text(&record.name).is_some_and(|owner| *owner == *name)
}

/// The name in lower case without a final dot; `None` for the root, and for names with bytes that no rule can
/// contain.
fn text(name: &Name<'_>) -> Option<Arc<str>> {
    let mut text = String::new();
    for label in name.as_bytes() {
        if !label.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_')) {
            return None;
        }
        if !text.is_empty() {
            text.push('.');
        }
        text.extend(label.iter().map(|b| char::from(b.to_ascii_lowercase())));
    }
    (!text.is_empty()).then(|| text.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_wire::ip::udp_datagram;
    use proptest::prelude::*;
    use simple_dns::rdata::{A, AAAA, CNAME};
    use simple_dns::{QCLASS, QTYPE, Question, TYPE};

    const SECOND: Duration = Duration::from_secs(1);

    fn name(text: &'static str) -> Name<'static> {
        Name::new_unchecked(text)
    }

    fn cname(owner: &'static str, ttl: u32, target: &'static str) -> ResourceRecord<'static> {
        ResourceRecord::new(name(owner), CLASS::IN, ttl, RData::CNAME(CNAME(name(target))))
    }

    fn a(owner: &'static str, ttl: u32, last: u8) -> ResourceRecord<'static> {
        let address = u32::from_be_bytes([192, 0, 2, last]);
        ResourceRecord::new(name(owner), CLASS::IN, ttl, RData::A(A { address }))
    }

    fn reply(question: &'static str, answers: Vec<ResourceRecord<'static>>) -> Vec<u8> {
        let mut packet = Packet::new_reply(7);
        let qtype = QTYPE::TYPE(TYPE::A);
        packet.questions.push(Question::new(name(question), qtype, QCLASS::CLASS(CLASS::IN), false));
        packet.answers = answers;
        packet.build_bytes_vec_compressed().unwrap()
    }

    fn from_server(message: &[u8]) -> Vec<u8> {
        udp_datagram("192.0.2.53:53".parse().unwrap(), "10.0.0.2:4000".parse().unwrap(), message).unwrap()
    }

    /// The question answered by [`reply`], sent to the server of [`from_server`].
    fn to_server() -> Vec<u8> {
        question("10.0.0.2:4000", "192.0.2.53:53", 7)
    }

    fn question(from: &str, to: &str, id: u16) -> Vec<u8> {
        let message = Packet::new_query(id).build_bytes_vec().unwrap();
        udp_datagram(from.parse().unwrap(), to.parse().unwrap(), &message).unwrap()
    }

    #[test]
    fn answers_without_a_question_are_ignored() {
        let answer = reply("bank.example", vec![a("bank.example", 60, 1)]);
        let (us, server) = ("10.0.0.2:4000", "192.0.2.53:53");
        let learns = |asked: &[Vec<u8>], after: Duration, answers: usize| {
            let mut table = DnsTable::default();
            asked.iter().for_each(|packet| table.track_question(packet, Instant::ZERO));
            (0..answers).for_each(|_| table.snoop(&from_server(&answer), Instant::ZERO + after));
            (table.len(), table.stats().unasked)
        };
        let asked = question(us, server, 7);
        let late = ANSWERED_WITHIN;
        assert_eq!(learns(&[], SECOND, 1), (0, 1), "nobody asked");
        assert_eq!(learns(core::slice::from_ref(&asked), SECOND, 1), (1, 0));
        assert_eq!(learns(core::slice::from_ref(&asked), SECOND, 3), (1, 2), "one answer to each question");
        assert_eq!(learns(&[asked.clone(), asked.clone()], SECOND, 2), (1, 1), "the same question again");
        assert_eq!(learns(core::slice::from_ref(&asked), late, 1), (0, 1), "too late");
        let others = [
            question(us, server, 8),
            question("10.0.0.2:4001", server, 7),
            question("10.0.0.3:4000", server, 7),
            question(us, "192.0.2.54:53", 7),
            question(us, "192.0.2.53:54", 7),
        ];
        assert_eq!(learns(&others, SECOND, 1), (0, 1), "another identifier, port or address");
        let many: Vec<_> = (0..MAX_QUESTIONS).map(|n| question(us, server, 100 + n as u16)).collect();
        let flooded: Vec<_> = core::iter::once(asked.clone()).chain(many.iter().cloned()).collect();
        assert_eq!(learns(&flooded, SECOND, 1), (0, 1), "the oldest question was forgotten");
        let last: Vec<_> = many.into_iter().chain([asked]).collect();
        assert_eq!(learns(&last, SECOND, 1), (1, 0));
    }

    fn names(table: &DnsTable, last: u8, now: Instant) -> Vec<String> {
        table.names(IpAddr::from([192, 0, 2, last]), now).map(str::to_owned).collect()
    }

    #[test]
    fn a_chain_of_aliases_names_the_address_by_each() {
        let mut table = DnsTable::default();
        let answers = vec![
            a("edge.cdn.example", 1000, 1),
            cname("Www.Example.org", 900, "x.CDN.example"),
            cname("x.cdn.example", 400, "edge.cdn.example"),
            a("stranger.example", 9999, 2),
        ];
        table.track_question(&to_server(), Instant::ZERO);
        table.snoop(&from_server(&reply("www.example.org", answers)), Instant::ZERO);
        let wanted = ["www.example.org", "x.cdn.example", "edge.cdn.example"];
        assert_eq!(names(&table, 1, Instant::from_secs(399)), wanted);
        assert_eq!(names(&table, 1, Instant::from_secs(400)), [""; 0], "the smallest TTL of the chain");
        assert_eq!(names(&table, 2, Instant::ZERO), [""; 0], "not reached from the question");
        assert_eq!(table.stats(), DnsStats { learned: 1, ..DnsStats::default() });
    }

    #[test]
    fn ttls_have_a_floor_and_a_ceiling() {
        let mut table = DnsTable::default();
        table.learn(&reply("a.example", vec![a("a.example", 0, 1)]), Instant::ZERO);
        table.learn(&reply("b.example", vec![a("b.example", u32::MAX, 2)]), Instant::ZERO);
        let (floor, ceiling) = (Instant::ZERO + TTL_FLOOR, Instant::ZERO + TTL_CEILING);
        assert_eq!(names(&table, 1, floor - SECOND).len() + names(&table, 1, floor).len(), 1);
        assert_eq!(names(&table, 2, ceiling - SECOND).len() + names(&table, 2, ceiling).len(), 1);
        table.learn(&reply("c.example", vec![a("c.example", 0, 3)]), ceiling);
        assert_eq!(table.len(), 1, "expired addresses are dropped");
    }

    #[test]
    fn ipv6_answers_and_ipv6_packets() {
        let mut table = DnsTable::default();
        let address = Ipv6Addr::from_bits(0x2001_0db8 << 96 | 5);
        let record = RData::AAAA(AAAA { address: address.to_bits() });
        let message = reply("s.example", vec![ResourceRecord::new(name("s.example"), CLASS::IN, 60, record)]);
        table.track_question(&question("[fd00::2]:4000", "[fd00::53]:53", 7), Instant::ZERO);
        let (server, us) = ("[fd00::53]:53".parse().unwrap(), "[fd00::2]:4000".parse().unwrap());
        table.snoop(&udp_datagram(server, us, &message).unwrap(), Instant::ZERO);
        assert_eq!(table.names(address.into(), Instant::ZERO).collect::<Vec<_>>(), ["s.example"]);
    }

    #[test]
    fn messages_that_are_not_answers_are_counted() {
        let mut table = DnsTable::default();
        let query = Packet::new_query(1).build_bytes_vec().unwrap();
        table.learn(&query, Instant::ZERO);
        table.learn(&reply("a.example", vec![]), Instant::ZERO);
        let mut failed = reply("a.example", vec![a("a.example", 60, 1)]);
        failed[3] |= 3;
        table.learn(&failed, Instant::ZERO);
        assert_eq!(table.stats().ignored, 3);
        table.learn(&[0; 11], Instant::ZERO);
        // A header that claims 65535 questions and answers.
        table.learn(&[0, 0, 0x80, 0, 255, 255, 255, 255, 0, 0, 0, 0], Instant::ZERO);
        let answer = reply("a.example", vec![a("a.example", 60, 1)]);
        table.learn(&answer[..answer.len() - 1], Instant::ZERO);
        assert_eq!((table.stats().malformed, table.len()), (3, 0));
        let (server, us) = ("192.0.2.53:54".parse().unwrap(), "10.0.0.2:53".parse().unwrap());
        table.snoop(&udp_datagram(server, us, &answer).unwrap(), Instant::ZERO);
        assert!(table.is_empty(), "not from port 53");
        // Garbage in the hidden sections has no effect.
        let mut answer = answer;
        answer[8..12].fill(0xff);
        table.learn(&answer, Instant::ZERO);
        assert_eq!(table.len(), 1);
    }

    #[test]
    fn alias_loops_end() {
        let mut table = DnsTable::default();
        let loops = vec![cname("a.example", 9, "b.example"), cname("b.example", 9, "a.example")];
        table.learn(&reply("a.example", loops), Instant::ZERO);
        assert_eq!((table.len(), table.stats().ignored), (0, 1));
    }

    #[test]
    fn the_first_to_expire_is_evicted() {
        let mut table = DnsTable::new(2);
        for (owner, ttl, last) in [("a.example", 500, 1), ("b.example", 400, 2), ("c.example", 600, 3)] {
            table.learn(&reply(owner, vec![a(owner, ttl, last)]), Instant::ZERO);
        }
        assert_eq!((table.len(), table.stats().evicted), (2, 1));
        assert_eq!(names(&table, 2, Instant::ZERO), [""; 0]);
        let many = ["1.e", "2.e", "3.e", "4.e", "5.e", "6.e", "7.e", "8.e", "9.e"];
        for (i, owner) in many.into_iter().enumerate() {
            table.learn(&reply(owner, vec![a(owner, 400 + i as u32, 1)]), Instant::ZERO);
        }
        let known = names(&table, 1, Instant::ZERO);
        assert!(known.len() == NAMES_PER_ADDRESS && !known.contains(&"1.e".into()), "{known:?}");
    }

    proptest! {
        #[test]
        fn no_message_breaks_it(
            mut message in proptest::collection::vec(any::<u8>(), 0..200),
            flips in proptest::collection::vec((any::<u16>(), any::<u8>()), 0..8),
        ) {
            let mut table = DnsTable::new(4);
            table.learn(&message, Instant::ZERO);
            if message.len() > 12 {
                message[2] = 0x80;
                message[4..12].copy_from_slice(&[0, 1, 0, 3, 0, 0, 0, 0]);
                table.learn(&message, Instant::ZERO);
            }
            let aliases = vec![cname("a.example", 9, "b.example"), a("b.example", 9, 1), a("b.example", 9, 2)];
            let mut valid = from_server(&reply("a.example", aliases));
            for (at, bits) in flips {
                let at = usize::from(at) % valid.len();
                valid[at] ^= bits;
                table.track_question(&to_server(), Instant::ZERO);
                table.track_question(&valid, Instant::ZERO);
                table.snoop(&valid, Instant::ZERO);
            }
            prop_assert!(table.len() <= 4 && table.asked.len() <= MAX_QUESTIONS);
            prop_assert_eq!(table.addresses.len(), table.by_expiry.len());
        }
    }
}
