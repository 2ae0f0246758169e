//! PDCP of a data radio bearer, TS 38.323: numbers packets at the sender, restores their order at the receiver.
//!
//! ```text
//!   limiter ──▶ room for the header ──▶ RLC buffer ──▶ number ──▶ RLC …… air …… RLC ──▶ in order ──▶ SDAP
//! ```
//!
//! NR's RLC hands packets up as soon as they are complete, so a HARQ retransmission lets later packets overtake. PDCP
//! restores the order, and waits up to `t_reordering` for a packet that may still arrive (§5.2.2.2).
//!
//! A packet is numbered when it leaves the RLC buffer, not when it enters: a queue discipline that drops or reorders leaves
//! no gap in the numbers for which the receiver would wait. A split of CU and DU could not do this. Ciphering, integrity
//! protection, header compression and status reports are not modelled; the header has its true size.
//!
//! ```text
//!          a window           a window
//!   ────┼─────────────┼──────────────────────┼──────────────────────────────┼────
//!             late  RX_DELIV   held back        beyond: the oldest are given up    late again
//! ```
//!
//! §5.2.2.1 treats half of the numbers as late, so a receiver that missed more than half of them discards new packets. Here
//! only one [`window`] of numbers is late, which is as far as RLC can lag; all other numbers are ahead. A packet beyond the
//! window is kept, and enough of the oldest missing ones are given up to bound the number of packets held back.

use super::queue::Sdu;
use super::rlc::BufferPool;
use anabranch_element::packet::Packet;
use anabranch_element::time::{Duration, Instant};
pub use anabranch_wire::pdcp::PdcpSn;
use std::collections::VecDeque;

/// Maximum number of packets held back for reordering; the limit is also a quarter of the sequence numbers.
pub const MAX_WINDOW: u32 = 8192;

/// Maximum number of packets held back for reordering, and the maximum lateness of a packet in numbers.
#[must_use]
pub const fn window(sn: PdcpSn) -> u32 {
    let quarter = sn.modulus() / 4;
    if quarter < MAX_WINDOW { quarter } else { MAX_WINDOW }
}

/// The sender: reserves the header and numbers packets.
#[derive(Debug, Clone)]
pub struct PdcpTx {
    sn: PdcpSn,
    /// COUNT of the next packet.
    next: u32,
}

impl PdcpTx {
    /// The sender of a new bearer.
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

    /// Maximum number of packets in flight for which the receiver can restore the order.
    #[must_use]
    pub const fn window(&self) -> u32 {
        window(self.sn)
    }

    /// Reserves room for the header in front of a packet.
    #[inline]
    pub fn reserve(&self, sdu: &mut Sdu) {
        let len = self.sn.header_len();
        if sdu.packet.headroom() >= len {
            // The old content of the room is overwritten when the packet is numbered.
            sdu.packet.restore_front(len);
        } else {
            sdu.packet.push_front(len);
        }
        sdu.ip_offset = sdu.ip_offset.saturating_add(len as u8);
    }

    /// Writes the reserved header; returns the COUNT of the packet.
    #[inline]
    pub fn number(&mut self, sdu: &mut Sdu) -> u32 {
        let count = self.next;
        self.next = self.next.wrapping_add(1);
        // Without reserved room no header is written; the receiver rejects such a packet.
        let _ = self.sn.emit(count, &mut sdu.packet);
        count
    }
}

/// The receiver: restores the order of COUNT, §5.2.2.2.
#[derive(Debug, Clone)]
pub struct PdcpRx {
    sn: PdcpSn,
    t_reordering: Duration,
    /// RX_NEXT: the COUNT after the highest received.
    next: u32,
    /// RX_DELIV: the first COUNT not delivered.
    deliver: u32,
    /// RX_REORD, and the expiry time of the timer.
    reordering: Option<(u32, Instant)>,
    /// Packets held back by COUNT, from `deliver` on.
    held: VecDeque<Option<Vec<u8>>>,
    stats: PdcpRxStats,
}

/// Counters of the receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
pub struct PdcpRxStats {
    /// Packets delivered to the upper layer.
    pub delivered_sdus: u64,
    /// Packets received more than once, or after they were given up.
    pub stale_sdus: u64,
    /// Packets given up.
    pub missing_sdus: u64,
    /// Malformed PDUs.
    pub malformed_pdus: u64,
}

impl PdcpRx {
    /// The receiver of a new bearer.
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

    /// Processes a PDU from RLC. Calls `up` with COUNT and packet, without header, for each packet now in order.
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

    /// Like [`receive`](Self::receive), without its shortcut for the next packet in order.
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
        let Some(ahead) = self.ahead_of(sn) else {
            self.stats.stale_sdus += 1;
            return pool.give(pdu);
        };
        let count = self.deliver.wrapping_add(ahead);
        if ahead >= self.next.wrapping_sub(self.deliver) {
            self.next = count.wrapping_add(1);
        }
        let last = window(self.sn) - 1;
        if ahead > last {
            self.give_up(count.wrapping_sub(last), now, &mut up);
        }
        let index = count.wrapping_sub(self.deliver) as usize;
        while self.held.len() <= index {
            self.held.push_back(None);
        }
        if self.held[index].is_some() {
            self.stats.stale_sdus += 1;
            return pool.give(pdu);
        }
        self.held[index] = Some(pdu);
        self.deliver(now, &mut up);
        if let Some((until, _)) = self.reordering
            && self.deliver.wrapping_sub(until) <= u32::MAX / 2
        {
            self.reordering = None;
        }
        self.wait(now);
    }

    /// Shortcut of [`receive`](Self::receive) for the common case: the PDU is the next in order and no packet is held back.
    /// Returns the COUNT and the packet to deliver.
    ///
    /// # Errors
    /// Returns the PDU in all other cases; nothing has changed.
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

    /// Gives up the missing packets for which `t_reordering` has expired.
    pub fn on_timeout(&mut self, now: Instant, mut up: impl FnMut(u32, Packet)) {
        let Some((until, at)) = self.reordering else { return };
        if at > now {
            return;
        }
        self.reordering = None;
        self.give_up(until, now, &mut up);
        self.deliver(now, &mut up);
        self.wait(now);
    }

    /// Time at which the reordering timer expires.
    #[must_use]
    #[inline]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.reordering.map(|(_, at)| at)
    }

    /// The counters.
    #[must_use]
    pub fn stats(&self) -> PdcpRxStats {
        self.stats
    }

    /// Distance of a sequence number from RX_DELIV; `None` if it is late.
    fn ahead_of(&self, sn: u32) -> Option<u32> {
        let modulus = self.sn.modulus();
        let ahead = sn.wrapping_sub(self.deliver) & (modulus - 1);
        (ahead < modulus - window(self.sn)).then_some(ahead)
    }

    /// Delivers the packets held back before `until`, and gives up those missing.
    fn give_up(&mut self, until: u32, now: Instant, up: &mut impl FnMut(u32, Packet)) {
        while self.deliver != until {
            match self.held.pop_front() {
                Some(Some(pdu)) => self.up(pdu, now, up),
                Some(None) => self.stats.missing_sdus += 1,
                None => {
                    self.stats.missing_sdus += u64::from(until.wrapping_sub(self.deliver));
                    self.deliver = until;
                    return;
                }
            }
            self.deliver = self.deliver.wrapping_add(1);
        }
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

    /// Counts a delivered packet and wraps its PDU.
    #[inline(always)]
    fn packet(&mut self, pdu: Vec<u8>, now: Instant) -> Packet {
        self.stats.delivered_sdus += 1;
        let mut packet = Packet::new(now, pdu);
        packet.pull_front(self.sn.header_len());
        packet
    }

    /// Starts the timer if a packet is missing and the timer is not running.
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
        pdu_of(SN, count)
    }

    fn pdu_of(sn: PdcpSn, count: u32) -> Vec<u8> {
        let mut tx = PdcpTx { sn, next: count };
        let mut sdu = Sdu::new(Packet::new(Instant::ZERO, vec![count as u8; 3]), 1);
        tx.reserve(&mut sdu);
        assert_eq!((sdu.packet.len(), sdu.ip_offset), (3 + sn.header_len(), sn.header_len() as u8));
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
    fn missing_packets_are_given_up_after_t_reordering() {
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
    fn count_continues_when_sequence_numbers_wrap() {
        let mut b = Bench::new();
        for count in 0..10_000 {
            // Packets of a pair are swapped.
            let count = count ^ 1;
            b.receive(count, 0);
        }
        assert_eq!(b.0.stats().delivered_sdus, 10_000);
        let pool = &mut BufferPool::default();
        b.0.receive(vec![0x10, 0, 0], Instant::ZERO, pool, |_, _| panic!("not data"));
        assert_eq!(b.0.stats().malformed_pdus, 1);
    }

    /// A receiver that gets PDUs with these COUNTs at once, after which its timer expires. The result lists the numbers in the
    /// payload, because COUNT diverges once more packets are lost than there are sequence numbers.
    fn survivors(sn: PdcpSn, counts: impl Iterator<Item = u32>) -> (Vec<u32>, PdcpRx) {
        let (mut rx, pool) = (PdcpRx::new(sn, Duration::from_millis(10)), &mut BufferPool::default());
        let mut got = Vec::new();
        let number = |packet: &Packet| u32::from_be_bytes(packet[..4].try_into().unwrap());
        for count in counts {
            let mut sdu = Sdu::new(Packet::new(Instant::ZERO, count.to_be_bytes().to_vec()), 1);
            let mut tx = PdcpTx { sn, next: count };
            tx.reserve(&mut sdu);
            tx.number(&mut sdu);
            rx.receive(sdu.packet.into_bytes(), Instant::ZERO, pool, |_, packet| got.push(number(&packet)));
            assert!(rx.held.len() <= window(sn) as usize, "{} held", rx.held.len());
        }
        rx.on_timeout(Instant::from_millis(10), |_, packet| got.push(number(&packet)));
        assert_eq!(rx.poll_timeout(), None, "{rx:?}");
        (got, rx)
    }

    #[test]
    fn no_gap_is_the_end() {
        for sn in [PdcpSn::Bits12, PdcpSn::Bits18] {
            let far = window(sn);
            for gap in [1, 2, 100, far - 1, far, far + 1, 9000] {
                for after in [1, 2, far - 1, far, far + 1, 20_000, 2 * sn.modulus()] {
                    let counts = || (0..3).chain(3 + gap..3 + gap + after);
                    let (got, rx) = survivors(sn, counts());
                    let case = format!("{sn:?}, {gap} lost, {after} after them: {:?}", rx.stats());
                    assert!(got.iter().copied().eq(counts()), "{case}, {} handed up", got.len());
                    assert_eq!(rx.stats().stale_sdus, 0, "{case}");
                    // Sequence numbers that wrapped around were taken for the first round.
                    assert_eq!(rx.stats().missing_sdus, u64::from(gap % sn.modulus()), "{case}");
                }
            }
        }
    }

    proptest! {
        /// After any loss, all remaining packets are delivered in order, unless the loss is so long that new packets look late; then
        /// at most two windows are discarded.
        #[test]
        fn it_recovers_from_any_loss(
            bits12 in any::<bool>(),
            runs in prop::collection::vec((1_u32..3000, prop_oneof![0_u32..10, 0_u32..20_000, 0_u32..600_000]), 1..8),
        ) {
            let sn = if bits12 { PdcpSn::Bits12 } else { PdcpSn::Bits18 };
            let (window, modulus) = (window(sn), sn.modulus());
            let (mut counts, mut at, mut late) = (Vec::new(), 0, 0);
            for (came, lost) in runs {
                counts.extend(at..at + came);
                at += came + lost;
                // Packets already held back are added.
                late += u64::from(lost % modulus >= modulus - 2 * window);
            }
            counts.extend(at..at + 4 * window);
            let (got, rx) = survivors(sn, counts.iter().copied());
            let dropped = rx.stats().stale_sdus;
            prop_assert_eq!(got.len() as u64 + dropped, counts.len() as u64);
            prop_assert!(dropped <= late * 2 * u64::from(window), "{:?} after {} gaps", rx.stats(), late);
            prop_assert!(late > 0 || got == counts);
            let last = |all: &[u32]| all[all.len() - window as usize..].to_vec();
            prop_assert_eq!(last(&got), last(&counts));
        }

        /// [`PdcpRx::receive_next`] delivers the same packets and leaves the same state as [`PdcpRx::receive_any`]: for PDUs that are
        /// next, early, duplicate or damaged, and for expired timers, also across the wrap of the numbers.
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
                // Half of the PDUs are the next in order, the common case; the numbers just before it are stale.
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
