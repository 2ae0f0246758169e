//! PDCP of a data radio bearer, TS 38.323: a number per packet when it is sent, order when it is received.
//!
//! ```text
//!   limiter ──▶ room for the header ──▶ RLC buffer ──▶ number ──▶ RLC …… air …… RLC ──▶ in order ──▶ SDAP
//! ```
//!
//! NR's RLC hands packets up as they become whole, so a HARQ retransmission lets later ones overtake: it is
//! PDCP that puts them in order again, and waits `t_reordering` for one that may still come (§5.2.2.2).
//!
//! The number is given when a packet leaves the RLC buffer, not when it enters: a discipline that drops or
//! reorders there leaves no gap for the receiver to wait at. A CU and a DU apart could not do this.
//! No ciphering, integrity protection, header compression or status reports; the header has its true size.

use super::queue::Sdu;
use super::rlc::BufferPool;
use anabranch_element::packet::Packet;
use anabranch_element::time::{Duration, Instant};
pub use anabranch_wire::pdcp::PdcpSn;
use std::collections::VecDeque;

/// Most packets held back for order: half of the sequence numbers, and no more than this.
pub const MAX_WINDOW: u32 = 8192;

/// Most packets held back for order.
#[must_use]
pub const fn window(sn: PdcpSn) -> u32 {
    let half = sn.modulus() / 2;
    if half < MAX_WINDOW { half } else { MAX_WINDOW }
}

/// The sending side: reserves the header, and numbers packets.
#[derive(Debug, Clone)]
pub struct PdcpTx {
    sn: PdcpSn,
    /// COUNT of the next packet.
    next: u32,
}

impl PdcpTx {
    /// A bearer that has sent nothing.
    #[must_use]
    pub fn new(sn: PdcpSn) -> Self {
        Self { sn, next: 0 }
    }

    /// Bytes of the header.
    #[must_use]
    #[inline]
    pub const fn header_len(&self) -> u32 {
        self.sn.header_len() as u32
    }

    /// Makes room for the header.
    #[inline]
    pub fn reserve(&self, sdu: &mut Sdu) {
        let len = self.sn.header_len();
        if sdu.packet.headroom() >= len {
            // What is there is written over when the packet is numbered.
            sdu.packet.restore_front(len);
        } else {
            sdu.packet.push_front(len);
        }
        sdu.ip_offset = sdu.ip_offset.saturating_add(len as u8);
    }

    /// Fills the header that was reserved; returns the packet's COUNT.
    #[inline]
    pub fn number(&mut self, sdu: &mut Sdu) -> u32 {
        let count = self.next;
        self.next = self.next.wrapping_add(1);
        // A packet without room for a header was never reserved one: it is refused by the receiver.
        let _ = self.sn.emit(count, &mut sdu.packet);
        count
    }
}

/// The receiving side: restores the order of COUNT, §5.2.2.2.
#[derive(Debug, Clone)]
pub struct PdcpRx {
    sn: PdcpSn,
    t_reordering: Duration,
    /// RX_NEXT: COUNT after the highest received.
    next: u32,
    /// RX_DELIV: the first COUNT not handed up.
    deliver: u32,
    /// RX_REORD, and when the timer expires.
    reordering: Option<(u32, Instant)>,
    /// What is held back; the first is COUNT `deliver`.
    held: VecDeque<Option<Vec<u8>>>,
    stats: PdcpRxStats,
}

/// Counters of the receiving side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
pub struct PdcpRxStats {
    /// Packets handed up.
    pub delivered_sdus: u64,
    /// Packets that came more than once, or after they were given up.
    pub stale_sdus: u64,
    /// Packets given up.
    pub missing_sdus: u64,
    /// PDUs that could not be read.
    pub malformed_pdus: u64,
}

impl PdcpRx {
    /// A bearer that has received nothing.
    #[must_use]
    pub fn new(sn: PdcpSn, t_reordering: Duration) -> Self {
        Self {
            sn,
            t_reordering,
            next: 0,
            deliver: 0,
            reordering: None,
            held: VecDeque::new(),
            stats: PdcpRxStats::default(),
        }
    }

    /// A PDU came from RLC at `now`. Hands up what is in order: COUNT and packet, the header out of the way.
    #[inline]
    pub fn receive(
        &mut self,
        pdu: Vec<u8>,
        now: Instant,
        pool: &mut BufferPool,
        mut up: impl FnMut(u32, Packet),
    ) {
        match self.receive_next(pdu, now) {
            Ok((count, packet)) => up(count, packet),
            Err(pdu) => self.receive_any(pdu, now, pool, up),
        }
    }

    /// The same of any PDU, whatever is held back.
    fn receive_any(
        &mut self,
        pdu: Vec<u8>,
        now: Instant,
        pool: &mut BufferPool,
        mut up: impl FnMut(u32, Packet),
    ) {
        let Ok((sn, _)) = self.sn.parse(&pdu) else {
            self.stats.malformed_pdus += 1;
            return pool.give(pdu);
        };
        let count = self.count_of(sn);
        let ahead = count.wrapping_sub(self.deliver);
        if ahead >= window(self.sn) {
            self.stats.stale_sdus += 1;
            return pool.give(pdu);
        }
        let index = ahead as usize;
        while self.held.len() <= index {
            self.held.push_back(None);
        }
        if self.held[index].is_some() {
            self.stats.stale_sdus += 1;
            return pool.give(pdu);
        }
        self.held[index] = Some(pdu);
        if count.wrapping_sub(self.deliver) >= self.next.wrapping_sub(self.deliver) {
            self.next = count.wrapping_add(1);
        }
        self.deliver(now, &mut up);
        if let Some((until, _)) = self.reordering
            && self.deliver.wrapping_sub(until) <= u32::MAX / 2
        {
            self.reordering = None;
        }
        self.wait(now);
    }

    /// What [`receive`](Self::receive) does where the PDU is the next and nothing waits, as nearly always: the COUNT and
    /// the packet to hand up.
    ///
    /// # Errors
    /// The PDU, and nothing has changed, if it is otherwise.
    #[inline]
    pub fn receive_next(&mut self, pdu: Vec<u8>, now: Instant) -> Result<(u32, Packet), Vec<u8>> {
        let wanted = self.deliver & (self.sn.modulus() - 1);
        let is_next = self.sn.parse(&pdu).is_ok_and(|(sn, _)| sn == wanted);
        if !is_next || self.next != self.deliver || !self.held.is_empty() {
            return Err(pdu);
        }
        let count = self.deliver;
        self.deliver = count.wrapping_add(1);
        self.next = self.deliver;
        Ok((count, self.packet(pdu, now)))
    }

    /// Gives up what `t_reordering` has been waited for.
    pub fn on_timeout(&mut self, now: Instant, mut up: impl FnMut(u32, Packet)) {
        let Some((until, at)) = self.reordering else { return };
        if at > now {
            return;
        }
        self.reordering = None;
        while self.deliver != until {
            match self.held.pop_front() {
                Some(Some(pdu)) => self.up(pdu, now, &mut up),
                Some(None) | None => self.stats.missing_sdus += 1,
            }
            self.deliver = self.deliver.wrapping_add(1);
        }
        self.deliver(now, &mut up);
        self.wait(now);
    }

    /// When something is given up next.
    #[must_use]
    #[inline]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.reordering.map(|(_, at)| at)
    }

    /// What happened so far.
    #[must_use]
    pub fn stats(&self) -> PdcpRxStats {
        self.stats
    }

    /// The COUNT nearest to RX_DELIV that has this sequence number (§5.2.2.1).
    fn count_of(&self, sn: u32) -> u32 {
        let modulus = self.sn.modulus();
        let ahead = sn.wrapping_sub(self.deliver) & (modulus - 1);
        // The later half of the numbers is behind.
        let behind = if ahead >= modulus / 2 { modulus } else { 0 };
        self.deliver.wrapping_add(ahead).wrapping_sub(behind)
    }

    fn deliver(&mut self, now: Instant, up: &mut impl FnMut(u32, Packet)) {
        while let Some(Some(_)) = self.held.front() {
            if let Some(pdu) = self.held.pop_front().flatten() {
                self.up(pdu, now, up);
            }
            self.deliver = self.deliver.wrapping_add(1);
        }
    }

    fn up(&mut self, pdu: Vec<u8>, now: Instant, up: &mut impl FnMut(u32, Packet)) {
        let packet = self.packet(pdu, now);
        up(self.deliver, packet);
    }

    /// The packet of a PDU, which is handed up.
    #[inline(always)]
    fn packet(&mut self, pdu: Vec<u8>, now: Instant) -> Packet {
        self.stats.delivered_sdus += 1;
        let mut packet = Packet::new(now, pdu);
        packet.pull_front(self.sn.header_len());
        packet
    }

    /// Starts the timer if something is missing and it does not run.
    #[inline]
    fn wait(&mut self, now: Instant) {
        if self.reordering.is_none() && self.deliver != self.next {
            self.reordering = Some((self.next, now + self.t_reordering));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SN: PdcpSn = PdcpSn::Bits12;

    fn pdu(count: u32) -> Vec<u8> {
        let mut tx = PdcpTx { sn: SN, next: count };
        let mut sdu = Sdu::new(Packet::new(Instant::ZERO, vec![count as u8; 3]), 1);
        tx.reserve(&mut sdu);
        assert_eq!((sdu.packet.len(), sdu.ip_offset), (5, 2));
        assert_eq!(tx.number(&mut sdu), count);
        sdu.packet.into_bytes()
    }

    struct Bench(PdcpRx, BufferPool, Vec<u32>);

    impl Bench {
        fn new() -> Self {
            Self(PdcpRx::new(SN, Duration::from_millis(10)), BufferPool::default(), Vec::new())
        }
        fn receive(&mut self, count: u32, ms: u64) -> Vec<u32> {
            let Self(rx, pool, got) = self;
            let up = |count: u32, packet: Packet| {
                assert_eq!(packet[..], [count as u8; 3]);
                got.push(count);
            };
            rx.receive(pdu(count), Instant::from_millis(ms), pool, up);
            std::mem::take(&mut self.2)
        }
        fn expire(&mut self, ms: u64) -> Vec<u32> {
            let got = &mut self.2;
            self.0.on_timeout(Instant::from_millis(ms), |count, _| got.push(count));
            std::mem::take(&mut self.2)
        }
    }

    #[test]
    fn order_is_restored() {
        let mut b = Bench::new();
        assert_eq!(b.receive(0, 0), [0]);
        assert_eq!(b.receive(2, 0), Vec::<u32>::new());
        assert_eq!(b.receive(2, 0), Vec::<u32>::new(), "twice");
        assert_eq!(b.receive(3, 0), Vec::<u32>::new());
        assert_eq!(b.0.poll_timeout(), Some(Instant::from_millis(10)));
        assert_eq!(b.receive(1, 5), [1, 2, 3]);
        assert_eq!(b.0.poll_timeout(), None);
        assert_eq!(b.receive(1, 5), Vec::<u32>::new(), "long gone");
        assert_eq!(b.0.stats().stale_sdus, 2);
    }

    #[test]
    fn what_does_not_come_is_given_up() {
        let mut b = Bench::new();
        assert_eq!(b.receive(1, 0), Vec::<u32>::new());
        assert_eq!(b.receive(4, 3), Vec::<u32>::new());
        assert_eq!(b.expire(9), Vec::<u32>::new());
        assert_eq!(b.expire(10), [1], "0 is given up; 2 and 3 came to be missed later");
        assert_eq!(b.0.poll_timeout(), Some(Instant::from_millis(20)));
        assert_eq!(b.receive(0, 11), Vec::<u32>::new(), "too late");
        assert_eq!(b.receive(3, 12), Vec::<u32>::new());
        assert_eq!(b.expire(20), [3, 4]);
        assert_eq!(
            b.0.stats(),
            PdcpRxStats { delivered_sdus: 3, stale_sdus: 1, missing_sdus: 2, malformed_pdus: 0 }
        );
    }

    #[test]
    fn counts_go_on_beyond_the_numbers() {
        let mut b = Bench::new();
        for count in 0..10_000 {
            // Every second pair swapped.
            let count = count ^ 1;
            b.receive(count, 0);
        }
        assert_eq!(b.0.stats().delivered_sdus, 10_000);
        let pool = &mut BufferPool::default();
        b.0.receive(vec![0x10, 0, 0], Instant::ZERO, pool, |_, _| panic!("not data"));
        assert_eq!(b.0.stats().malformed_pdus, 1);
    }

    proptest! {
        /// [`PdcpRx::receive_next`] hands up what [`PdcpRx::receive_any`] would, and leaves the same state: PDUs that are
        /// next, that come early or twice, that are damaged, and timers that expire, across the end of the numbers.
        #[test]
        fn what_is_next_is_received_as_any_other(
            start in prop_oneof![Just(0_u32), Just(u32::MAX - 3), Just(SN.modulus() - 3)],
            steps in prop::collection::vec((0u32..8, 0u64..4, 0u8..12), 1..80),
        ) {
            let new = PdcpRx { next: start, deliver: start, ..PdcpRx::new(SN, Duration::from_millis(10)) };
            let (mut short, mut long, mut ms) = (new.clone(), new, 0);
            for (early, later_ms, how) in steps {
                ms += later_ms;
                let now = Instant::from_millis(ms);
                // Half of them are the next, as nearly always; the last numbers before it are stale.
                let early = if how < 6 { 0 } else { early.wrapping_sub(2) };
                let mut bytes = pdu(long.deliver.wrapping_add(early));
                if how == 11 {
                    bytes.truncate(early as usize % 3);
                }
                let (mut a, mut b) = (Vec::new(), Vec::new());
                let pool = &mut BufferPool::default();
                if how == 10 {
                    short.on_timeout(now, |count, packet| a.push((count, packet.to_vec())));
                    long.on_timeout(now, |count, packet| b.push((count, packet.to_vec())));
                } else {
                    short.receive(bytes.clone(), now, pool, |count, packet| a.push((count, packet.to_vec())));
                    long.receive_any(bytes, now, pool, |count, packet| b.push((count, packet.to_vec())));
                }
                prop_assert_eq!(a, b);
                prop_assert_eq!(format!("{short:?}"), format!("{long:?}"));
            }
        }
    }
}
