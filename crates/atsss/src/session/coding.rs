//! Coded mode in a session: source and repair packets, sent and received, and restored packets
//! ([`crate::coding`]).
//!
//! There is one code per rule: the flows of a rule protect one another, and a small flow is covered as soon
//! as the traffic of the rule allows a repair packet. Order is kept per flow ([`crate::reorder`]), so a gap
//! in one flow does not delay others.
//!
//! A source symbol is the message as it would be uncoded: inner header and packet. A restored message is
//! therefore processed like any message that arrives.

use super::active::Active;
use super::{Session, Shared};
use crate::classify::RuleIndex;
use crate::coding::{Decoder, DecoderStats, Encoder, EncoderStats, MAX_WAIT, Overhead, Repair, Work};
use crate::drops::DropReason;
use crate::reorder::{Hold, Pool};
use crate::{DatagramSink, MAX_PATHS, PacketSink, PathId};
use anabranch_element::Reason;
use anabranch_element::time::{Duration, Instant};
use anabranch_steer::Steer;
use anabranch_steer::coded::Coded;
use anabranch_wire::coding::{CodeWord, RepairHeader};
use anabranch_wire::tunnel::{DeliveryOrder, InnerHeader, InnerType};

/// Codes of one session per direction. The least recently used one is evicted, unless it is in use.
const MAX_STREAMS: usize = 8;
/// Most bytes of symbols that one session may keep.
const MAX_BYTES: usize = 4 << 20;
/// A code used within this time is in use.
const IN_USE: Duration = Duration::from_secs(1);
/// A code unused for this time is forgotten.
const IDLE: Duration = Duration::from_secs(30);

/// Counters of coded mode in a session since it last woke.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CodingStats {
    /// Counters of the sender.
    pub sent: EncoderStats,
    /// Counters of the receiver.
    pub received: DecoderStats,
    /// Restored messages that were not valid packets: the peer's repairs contradict its packets.
    pub wrong: u64,
}

/// The codes of one session.
pub(super) struct Coding {
    /// Sorted by use, the least recently used one first.
    encoders: Vec<Stream<Encoder>>,
    decoders: Vec<Stream<Decoder>>,
    /// Bytes charged to the pool.
    bytes: usize,
    encoding: Work,
    decoding: Work,
    /// Buffer of a repair or a restored message while it is being processed.
    scratch: Vec<u8>,
    /// Counters of codes that were removed.
    past: CodingStats,
}

struct Stream<C> {
    number: u8,
    used: Instant,
    code: Box<C>,
}

/// The packets that a code covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Covered {
    /// Those of a rule with coded mode.
    Rule(RuleIndex),
    /// Those on a path that loses packets without congestion.
    Path(PathId),
}

impl Covered {
    /// The number of the first stream of a path.
    const FIRST_OF_PATHS: u8 = u8::MAX - (MAX_PATHS as u8 - 1);

    /// The number of the code's stream.
    fn stream(self) -> u8 {
        match self {
            Self::Rule(rule) => super::send::stream_id(rule),
            Self::Path(path) => Self::FIRST_OF_PATHS + path,
        }
    }

    /// Whether packets and repairs of the code arrive by `path`. Those of a path arrive by that path only, so that packets
    /// on a plain path do not affect what is restored on others.
    fn may_arrive_by(self, path: PathId) -> bool {
        match self {
            Self::Rule(_) => true,
            Self::Path(own) => own == path,
        }
    }

    /// What the code with this stream covers.
    fn of(stream: u8) -> Self {
        match stream.checked_sub(Self::FIRST_OF_PATHS) {
            Some(path) => Self::Path(path),
            None => Self::Rule(stream.into()),
        }
    }
}

/// A repair to be sent: its header and its stream. The symbol is in the scratch buffer.
struct Due {
    stream: u8,
    repair: Repair,
}

impl Coding {
    fn new(now: Instant) -> Self {
        Self {
            encoders: Vec::new(),
            decoders: Vec::new(),
            bytes: 0,
            encoding: Work::new(now),
            decoding: Work::new(now),
            scratch: Vec::new(),
            past: CodingStats::default(),
        }
    }

    /// Bytes that the session may still use.
    fn free_bytes(&self, pool: &Pool) -> usize {
        MAX_BYTES.saturating_sub(self.bytes).min(pool.free_bytes())
    }

    /// Charges or refunds the change of the codes' memory.
    fn settle(&mut self, pool: &mut Pool) {
        let encoders: usize = self.encoders.iter().map(|stream| stream.code.bytes()).sum();
        let decoders: usize = self.decoders.iter().map(|stream| stream.code.bytes()).sum();
        let bytes = encoders + decoders;
        if bytes <= self.bytes {
            pool.refund(self.bytes - bytes);
            self.bytes = bytes;
        } else if pool.charge(bytes - self.bytes) {
            self.bytes = bytes;
        }
        // Otherwise the codes took slightly more than there was room for. The next call tries again, and
        // until then there is no room.
    }

    /// Removes all codes and returns their memory.
    pub fn close(&mut self, pool: &mut Pool) {
        self.forget(Instant::MAX, pool);
    }

    /// Removes codes last used before `since`.
    fn forget(&mut self, since: Instant, pool: &mut Pool) {
        for stream in self.encoders.iter().filter(|stream| stream.used < since) {
            self.past.sent.add(&stream.code.stats());
        }
        for stream in self.decoders.iter().filter(|stream| stream.used < since) {
            self.past.received.add(&stream.code.stats());
        }
        self.encoders.retain(|stream| stream.used >= since);
        self.decoders.retain(|stream| stream.used >= since);
        self.settle(pool);
    }

    pub fn stats(&self) -> CodingStats {
        let mut all = self.past;
        self.encoders.iter().for_each(|stream| all.sent.add(&stream.code.stats()));
        self.decoders.iter().for_each(|stream| all.received.add(&stream.code.stats()));
        all
    }

    /// When [`Session::send_repairs`] is due, and the reason.
    pub fn poll_timeout(&self) -> Option<(Instant, Reason)> {
        let flush = self.encoders.iter().filter_map(|stream| stream.code.poll_timeout()).min();
        flush.map(|at| (at, "repair packet"))
    }

    /// Adds a source to its code. Returns its position, or `None` if it is sent uncoded for lack of memory.
    fn push(
        &mut self,
        covered: Covered,
        mode: &Coded,
        parts: [&[u8]; 2],
        now: Instant,
        pool: &mut Pool,
    ) -> Option<CodeWord> {
        let overhead = Overhead {
            percent: mode.overhead_percent(),
            window: mode.window(),
            wait: Duration::from_millis(mode.wait_ms().into()),
        };
        let stream = covered.stream();
        let room = self.free_bytes(pool);
        let at = find(&mut self.encoders, stream, now, room, Encoder::base_bytes(&overhead), || {
            Encoder::new(overhead, now)
        })?;
        self.settle(pool);
        let room = self.free_bytes(pool);
        let code = &mut self.encoders[at].code;
        code.set_overhead(overhead);
        let position = code.push(parts, now, room);
        self.settle(pool);
        Some(CodeWord { stream, position: position? })
    }

    /// The next repair that is due by the budget of a code, or by the clock (no code).
    fn due(&mut self, covered: Option<Covered>, now: Instant) -> Option<Due> {
        let number = covered.map(Covered::stream);
        let work = &mut self.encoding;
        for stream in &mut self.encoders {
            let due = match number {
                Some(number) if number == stream.number => stream.code.poll(now, work),
                Some(_) => None,
                None => stream.code.flush(now, work),
            };
            if let Some((repair, symbol)) = due {
                self.scratch.clear();
                self.scratch.extend_from_slice(
                    &RepairHeader {
                        covers: repair.covers,
                        index: repair.index,
                        wait_100us: repair.wait_100us(),
                    }
                    .to_bytes(),
                );
                self.scratch.extend_from_slice(symbol);
                return Some(Due { stream: stream.number, repair });
            }
        }
        None
    }

    /// The decoder of a peer's stream; created if it does not exist.
    fn decoder(
        &mut self,
        stream: u8,
        now: Instant,
        pool: &mut Pool,
    ) -> Option<(&mut Decoder, &mut Work, usize)> {
        let room = self.free_bytes(pool);
        let at = find(&mut self.decoders, stream, now, room, Decoder::BASE_BYTES, || Decoder::new(now))?;
        self.settle(pool);
        let room = self.free_bytes(pool);
        Some((&mut self.decoders[at].code, &mut self.decoding, room))
    }
}

/// The index of a stream, which becomes the most recently used one. It is created if it does not exist and
/// its `cost` in bytes fits.
fn find<C>(
    streams: &mut Vec<Stream<C>>,
    number: u8,
    now: Instant,
    room: usize,
    cost: usize,
    new: impl FnOnce() -> C,
) -> Option<usize> {
    let last = streams.len().checked_sub(1);
    match streams.iter().rposition(|stream| stream.number == number) {
        Some(at) if Some(at) == last => {}
        Some(at) => streams[at..].rotate_left(1),
        None if room < cost => return None,
        None => {
            if streams.len() == MAX_STREAMS {
                // A peer that uses many stream numbers must not cause a new decoder for each packet.
                if now.saturating_since(streams[0].used) < IN_USE {
                    return None;
                }
                streams.remove(0);
            }
            streams.push(Stream { number, used: now, code: Box::new(new()) });
        }
    }
    let at = streams.len() - 1;
    streams[at].used = now;
    Some(at)
}

impl Session {
    /// Counters of coded mode since the session last woke.
    #[must_use]
    pub fn coding(&self) -> CodingStats {
        self.active
            .as_deref()
            .and_then(|active| active.coding.as_deref())
            .map(Coding::stats)
            .unwrap_or_default()
    }

    /// Sends a packet of a coded rule by `path`, and the repairs that it allows.
    #[expect(clippy::too_many_arguments, reason = "one packet and its surroundings")]
    pub(super) fn send_coded(
        &mut self,
        covered: Covered,
        mode: Coded,
        path: PathId,
        order: DeliveryOrder,
        packet: &[u8],
        now: Instant,
        shared: &mut Shared<'_>,
        out: &mut impl DatagramSink,
    ) -> Result<(), DropReason> {
        let header = InnerHeader::data(packet, order).ok_or(DropReason::NotIp)?;
        let mut head = [0; InnerHeader::LEN];
        header.emit(&mut head).map_err(|_| DropReason::NoRoom)?;
        let active = Active::of(&mut self.active, &self.profile);
        let coding = active.coding.get_or_insert_with(|| Box::new(Coding::new(now)));
        let word = coding.push(covered, &mode, [&head, packet], now, shared.pool);
        let (
            Some(word),
            DeliveryOrder::Flow { sequence, start, .. } | DeliveryOrder::Dedup { sequence, start },
        ) = (word, order)
        else {
            return self.emit_data(path, order, packet, now, out);
        };
        let mut body = core::mem::take(&mut coding.scratch);
        body.clear();
        body.extend_from_slice(&word.to_u32().to_be_bytes());
        body.extend_from_slice(packet);
        let order =
            DeliveryOrder::Coded { sequence, start, hold: matches!(order, DeliveryOrder::Flow { .. }) };
        let sent = self.emit_data(path, order, &body, now, out);
        self.put_back(body);
        self.emit_repairs(Some(covered), now, out);
        sent
    }

    /// Sends the repairs that are due by the clock.
    pub(super) fn send_repairs(&mut self, now: Instant, out: &mut impl DatagramSink) {
        self.emit_repairs(None, now, out);
    }

    fn emit_repairs(&mut self, covered: Option<Covered>, now: Instant, out: &mut impl DatagramSink) {
        loop {
            let Some(active) = self.active.as_deref_mut() else { return };
            let Some(coding) = active.coding.as_deref_mut() else { return };
            let Some(Due { stream, repair }) = coding.due(covered, now) else { return };
            let path = match Covered::of(stream) {
                Covered::Path(path) => path,
                Covered::Rule(rule) => {
                    let source =
                        active.per_rule.get(usize::from(rule)).and_then(super::RuleState::source_path);
                    let live = active.live;
                    let (Some(mode), Some(source)) = (self.rules.get(rule).mode.coded(), source) else {
                        continue;
                    };
                    mode.repair_path(source, &live)
                }
            };
            let body = core::mem::take(&mut coding.scratch);
            let order = DeliveryOrder::Repair(CodeWord { stream, position: repair.position });
            // A repair that cannot be sent counts as lost.
            let _ = self.emit_data(path, order, &body, now, out);
            self.put_back(body);
        }
    }

    /// Returns the scratch buffer for reuse.
    fn put_back(&mut self, body: Vec<u8>) {
        if let Some(coding) = self.active.as_deref_mut().and_then(|active| active.coding.as_deref_mut()) {
            coding.scratch = body;
        }
    }

    /// Passes the symbol of a received source to its decoder. Returns how long packets behind a gap before it
    /// may wait.
    pub(super) fn coded_source(
        &mut self,
        path: PathId,
        word: CodeWord,
        order: DeliveryOrder,
        packet: &[u8],
        now: Instant,
        shared: &mut Shared<'_>,
    ) -> Hold {
        let hold = matches!(order, DeliveryOrder::Flow { .. });
        if !Covered::of(word.stream).may_arrive_by(path) {
            return hold.into();
        }
        let mut head = [0; InnerHeader::LEN];
        let active = Active::of(&mut self.active, &self.profile);
        let coding = active.coding.get_or_insert_with(|| Box::new(Coding::new(now)));
        let header = InnerHeader::data(packet, order).and_then(|header| header.emit(&mut head).ok());
        let Some((decoder, work, room)) =
            coding.decoder(word.stream, now, shared.pool).filter(|_| header.is_some())
        else {
            return hold.into();
        };
        decoder.on_source(word.position, [&head, packet], now, room, work);
        let wait = decoder.wait();
        coding.settle(shared.pool);
        if hold && !wait.is_zero() { Hold::For(wait) } else { hold.into() }
    }

    /// Processes a repair received by `path`, and delivers the packets it restores.
    pub(super) fn coded_repair(
        &mut self,
        path: PathId,
        word: CodeWord,
        body: &[u8],
        now: Instant,
        shared: &mut Shared<'_>,
        inner: &mut impl PacketSink,
    ) -> Result<(), DropReason> {
        let (header, symbol) = RepairHeader::parse(body).map_err(|_| DropReason::Malformed)?;
        if self.resting || !Covered::of(word.stream).may_arrive_by(path) {
            return Ok(()); // nothing is missing
        }
        let wait = Duration::from_micros(u64::from(header.wait_100us) * 100).min(MAX_WAIT);
        let repair = Repair { position: word.position, covers: header.covers, index: header.index, wait };
        let active = Active::of(&mut self.active, &self.profile);
        let coding = active.coding.get_or_insert_with(|| Box::new(Coding::new(now)));
        if let Some((decoder, work, room)) = coding.decoder(word.stream, now, shared.pool) {
            decoder.on_repair(&repair, symbol, now, room, work);
            coding.settle(shared.pool);
        }
        self.deliver_recovered(path, word.stream, now, shared, inner);
        Ok(())
    }

    /// Delivers the packets of a stream that were restored since the last call.
    pub(super) fn deliver_recovered(
        &mut self,
        path: PathId,
        stream: u8,
        now: Instant,
        shared: &mut Shared<'_>,
        inner: &mut impl PacketSink,
    ) {
        loop {
            let Some(coding) = self.active.as_deref_mut().and_then(|active| active.coding.as_deref_mut())
            else {
                return;
            };
            let Some(decoder) = coding.decoders.last_mut().filter(|d| d.number == stream) else { return };
            let wait = decoder.code.wait();
            let Some(symbol) = decoder.code.pop_recovered() else { return };
            coding.scratch.clear();
            coding.scratch.extend_from_slice(symbol);
            let mut message = core::mem::take(&mut coding.scratch);
            let taken = match restored(&mut message) {
                Some((order, packet)) => {
                    let hold = if matches!(order, DeliveryOrder::Flow { .. }) {
                        Hold::For(wait)
                    } else {
                        Hold::Never
                    };
                    self.take_in(path, order, hold, packet, now, shared, inner)
                }
                None => Err(DropReason::Malformed),
            };
            if let Some(coding) = self.active.as_deref_mut().and_then(|active| active.coding.as_deref_mut()) {
                coding.past.wrong += u64::from(taken == Err(DropReason::Malformed));
                coding.scratch = message;
            }
            if let Err(reason) = taken {
                Self::count(shared, reason);
            }
        }
    }

    /// Removes codes that are not used.
    pub(super) fn sweep_coding(&mut self, now: Instant, pool: &mut Pool) {
        if let Some(coding) = self.active.as_deref_mut().and_then(|active| active.coding.as_deref_mut()) {
            coding.forget(Instant::from_nanos(now.as_nanos().saturating_sub(IDLE.as_nanos() as u64)), pool);
        }
    }
}

/// The packet in a restored message, which may be followed by zeros, and its order; `None` if the message is
/// invalid.
fn restored(message: &mut [u8]) -> Option<(DeliveryOrder, &mut [u8])> {
    let length = u16::from_be_bytes([*message.get(2)?, *message.get(3)?]);
    let (message, zeros) = message.split_at_mut_checked(InnerHeader::LEN + usize::from(length))?;
    if zeros.iter().any(|byte| *byte != 0) || ip_len(message.get(InnerHeader::LEN..)?) != Some(length.into())
    {
        return None;
    }
    let (header, _) =
        InnerHeader::parse(message).ok().filter(|(header, _)| header.kind == InnerType::Data)?;
    let order = header
        .order()
        .ok()
        .filter(|order| matches!(order, DeliveryOrder::Flow { .. } | DeliveryOrder::Dedup { .. }))?;
    Some((order, &mut message[InnerHeader::LEN..]))
}

/// The length of an IP packet by its header, in bytes.
fn ip_len(packet: &[u8]) -> Option<usize> {
    let field = |at: usize| Some(usize::from(u16::from_be_bytes([*packet.get(at)?, *packet.get(at + 1)?])));
    match packet.first()? >> 4 {
        4 => field(2),
        6 => field(4).map(|payload| payload + 40),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::classify::MAX_RULES;
    use anabranch_wire::ip as wire_ip;
    use proptest::prelude::*;
    use std::net::SocketAddr;

    #[test]
    fn codes_of_rules_and_paths_have_different_streams() {
        for rule in [0, 1, MAX_RULES as RuleIndex - 1] {
            assert_eq!(Covered::of(Covered::Rule(rule).stream()), Covered::Rule(rule));
            assert!((0..MAX_PATHS as PathId).all(|path| Covered::Rule(rule).may_arrive_by(path)));
        }
        for path in 0..MAX_PATHS as PathId {
            let covered = Covered::Path(path);
            assert_eq!(Covered::of(covered.stream()), covered);
            assert!((0..MAX_PATHS as PathId).all(|other| covered.may_arrive_by(other) == (other == path)));
        }
    }

    fn message(from: &str, to: &str, len: usize, order: DeliveryOrder) -> Vec<u8> {
        let address = |text: &str| text.parse::<SocketAddr>().unwrap();
        let packet = wire_ip::udp_datagram(address(from), address(to), &vec![7; len]).unwrap();
        let mut bytes = vec![0; InnerHeader::LEN];
        InnerHeader::data(&packet, order).unwrap().emit(&mut bytes).unwrap();
        bytes.extend_from_slice(&packet);
        bytes
    }

    #[test]
    fn only_a_valid_restored_message_is_accepted() {
        for (from, to) in [("10.0.0.1:5", "192.0.2.1:6"), ("[2001:db8::1]:5", "[2001:db8::2]:6")] {
            let order = DeliveryOrder::Dedup { sequence: 9, start: true };
            let sent = message(from, to, 100, order);
            let packet = sent[InnerHeader::LEN..].to_vec();
            for zeros in [0, 1, 300] {
                let mut message = sent.clone();
                message.resize(sent.len() + zeros, 0);
                assert_eq!(
                    restored(&mut message).map(|(o, p)| (o, p.to_vec())),
                    Some((order, packet.clone()))
                );
            }
            let mut longer = sent.clone();
            longer.push(1);
            assert_eq!(restored(&mut longer), None, "not followed by zeros");
            assert_eq!(restored(&mut sent[..sent.len() - 1].to_vec()), None, "cut");
            for at in [0, 1, 2, 3, InnerHeader::LEN] {
                let mut bad = sent.clone();
                bad[at] ^= 0x30;
                assert_eq!(restored(&mut bad), None, "byte {at}");
            }
        }
        let plain = message("10.0.0.1:5", "192.0.2.1:6", 100, DeliveryOrder::None);
        assert_eq!(restored(&mut plain.clone()), None, "messages of this order are not coded");
    }

    proptest! {
        #[test]
        fn any_bytes_are_harmless(mut bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = restored(&mut bytes);
        }
    }
}
