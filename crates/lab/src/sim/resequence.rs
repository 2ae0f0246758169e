//! Resequencing at a UE: TCP data that arrives early is buffered until the missing data has arrived or a timer expires. It
//! serves as a comparison for DIDA; the node does not use it.
//!
//! ```text
//!   network ─▶ sequence number as expected? ─yes─▶ TCP, followed by buffered data now in sequence
//!                        └─no─▶ buffered, in order; all of it leaves when the timer expires
//! ```

use anabranch_element::packet::Packet;
use anabranch_element::time::{Duration, Instant};
use anabranch_element::{Element, Port, Reason};
use anabranch_wire::ip::FlowKey;
use anabranch_wire::tcp::{TcpFlags, parse_packet};
use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;

/// Maximum number of flows; packets of further flows pass unchanged.
const MAX_FLOWS: usize = 4096;
/// Maximum number of packets buffered per flow; one more releases all of them.
const MAX_HELD: usize = 4096;

/// A resequencing buffer for all TCP flows; see the module documentation.
#[derive(Debug)]
pub struct Resequencer {
    hold: Duration,
    flows: BTreeMap<FlowKey, Flow>,
    out: VecDeque<(Port, Packet)>,
}

#[derive(Debug)]
struct Flow {
    /// The next sequence number expected.
    expected: u32,
    /// Buffered packets by stream offset, with the offset of their end.
    held: BTreeMap<u64, (u64, Packet)>,
    /// `expected` as a stream offset.
    expected_at: u64,
    until: Option<Instant>,
}

impl Resequencer {
    /// Port towards the applications.
    pub const HOST: Port = Port(0);
    /// Port towards the network.
    pub const NETWORK: Port = Port(1);

    /// A buffer that waits up to `hold` for missing data.
    #[must_use]
    pub fn new(hold: Duration) -> Self {
        Self { hold, flows: BTreeMap::new(), out: VecDeque::new() }
    }

    fn arrive(&mut self, packet: Packet, now: Instant) {
        let (Ok(segment), Ok(key)) = (parse_packet(&packet), FlowKey::parse(&packet)) else {
            return self.pass(packet);
        };
        let flags = segment.header.flags;
        let len = segment.payload.len() as u32;
        let takes = len + u32::from(flags.contains(TcpFlags::FIN));
        let seq = segment.header.seq;
        if flags.contains(TcpFlags::SYN) {
            if self.flows.len() < MAX_FLOWS || self.flows.contains_key(&key) {
                let flow = Flow {
                    expected: seq.wrapping_add(1 + len),
                    held: BTreeMap::new(),
                    expected_at: 0,
                    until: None,
                };
                self.flows.insert(key, flow);
            }
            return self.pass(packet);
        }
        let hold = self.hold;
        let Some(flow) = self.flows.get_mut(&key).filter(|_| takes > 0) else { return self.pass(packet) };
        let ahead = seq.wrapping_sub(flow.expected);
        if ahead == 0 {
            flow.advance(takes);
            self.out.push_back((Self::HOST, packet));
            flow.follow(&mut self.out);
            if flow.held.is_empty() {
                flow.until = None;
            } else {
                flow.until = Some(now + hold);
            }
        } else if ahead < 1 << 30 {
            let at = flow.expected_at + u64::from(ahead);
            flow.held.insert(at, (at + u64::from(takes), packet));
            flow.until.get_or_insert(now + hold);
            if flow.held.len() > MAX_HELD {
                flow.flush(&mut self.out);
            }
        } else {
            self.pass(packet);
        }
    }

    fn pass(&mut self, packet: Packet) {
        self.out.push_back((Self::HOST, packet));
    }
}

impl Flow {
    fn advance(&mut self, by: u32) {
        self.expected = self.expected.wrapping_add(by);
        self.expected_at += u64::from(by);
    }

    /// Releases the buffered packets that are now in sequence.
    fn follow(&mut self, out: &mut VecDeque<(Port, Packet)>) {
        while let Some(first) = self.held.first_entry().filter(|e| *e.key() <= self.expected_at) {
            let (end, packet) = first.remove();
            self.advance(end.saturating_sub(self.expected_at) as u32);
            out.push_back((Resequencer::HOST, packet));
        }
    }

    /// Releases everything, with gaps.
    fn flush(&mut self, out: &mut VecDeque<(Port, Packet)>) {
        self.until = None;
        while let Some((_, (end, packet))) = self.held.pop_first() {
            self.advance(end.saturating_sub(self.expected_at) as u32);
            out.push_back((Resequencer::HOST, packet));
        }
    }
}

impl Element for Resequencer {
    type Command = Infallible;
    type Event = Infallible;

    fn on_packet(&mut self, port: Port, packet: Packet, now: Instant) {
        if port == Self::NETWORK {
            self.arrive(packet, now);
        } else {
            self.out.push_back((Self::NETWORK, packet));
        }
    }

    fn poll_transmit(&mut self, _: Instant) -> Option<(Port, Packet)> {
        self.out.pop_front()
    }

    fn on_command(&mut self, command: Infallible, _: Instant) {
        match command {}
    }

    fn poll_event(&mut self) -> Option<Infallible> {
        None
    }

    fn on_timeout(&mut self, now: Instant) {
        let Self { flows, out, .. } = self;
        for flow in flows.values_mut().filter(|f| f.until.is_some_and(|at| at <= now)) {
            flow.flush(out);
        }
    }

    fn poll_timeout(&self) -> Option<(Instant, Reason)> {
        self.flows.values().filter_map(|f| f.until).min().map(|at| (at, "data held at the UE"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_wire::tcp::{TcpHeader, TcpOptions, emit_packet};

    fn packet(seq: u32, flags: TcpFlags, len: usize) -> Packet {
        let header = TcpHeader { seq, ack: 1, flags, window: 9, options: TcpOptions::default() };
        let (from, to) = ("10.0.0.1:80".parse().unwrap(), "10.0.0.2:9".parse().unwrap());
        Packet::new(Instant::ZERO, emit_packet(from, to, &header, &vec![0; len]).unwrap())
    }

    fn out(r: &mut Resequencer) -> Vec<u32> {
        let mut seqs = Vec::new();
        while let Some((port, packet)) = r.poll_transmit(Instant::ZERO) {
            assert_eq!(port, Resequencer::HOST);
            seqs.push(parse_packet(&packet).unwrap().header.seq);
        }
        seqs
    }

    #[test]
    fn data_leaves_in_order_across_a_sequence_wrap_or_on_timeout() {
        let start = u32::MAX - 150;
        let seq = |n: u32| start.wrapping_add(1).wrapping_add(n * 100);
        let mut r = Resequencer::new(Duration::from_millis(20));
        let put = |r: &mut Resequencer, n: u32, ms: u64| {
            r.on_packet(Resequencer::NETWORK, packet(seq(n), TcpFlags::ACK, 100), Instant::from_millis(ms));
            out(r)
        };
        r.on_packet(Resequencer::NETWORK, packet(start, TcpFlags::SYN, 0), Instant::ZERO);
        assert_eq!(out(&mut r), [start]);
        assert!(put(&mut r, 2, 1).is_empty() && put(&mut r, 1, 2).is_empty());
        assert_eq!(put(&mut r, 0, 3), [seq(0), seq(1), seq(2)]);
        assert_eq!(r.poll_timeout(), None);
        assert!(put(&mut r, 5, 4).is_empty() && put(&mut r, 4, 9).is_empty());
        assert_eq!(r.poll_timeout().unwrap().0, Instant::from_millis(24));
        r.on_timeout(Instant::from_millis(24));
        assert_eq!(out(&mut r), [seq(4), seq(5)]);
        assert_eq!(put(&mut r, 3, 30), [seq(3)], "late, and at once");
        assert_eq!(put(&mut r, 6, 31), [seq(6)]);
    }
}
