//! Traffic: numbered packets, and a model of a reliable transport with segments, cumulative acknowledgements and retransmission.

use super::draw::RandomStream;
use super::ledger::Kind;
use anabranch_element::time::{Duration, Instant};
use std::collections::{BTreeMap, VecDeque};

/// Maximum number of segments in flight.
const WINDOW: usize = 8;
/// Time before a segment is retransmitted; doubles up to [`MAX_RTO`].
const RTO: Duration = Duration::from_millis(400);
const MAX_RTO: Duration = Duration::from_secs(3);

/// Interval at which a flow without data checks for new data.
const SILENT: Duration = Duration::from_millis(500);

/// The transport of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// Numbered packets.
    Udp,
    /// Every byte, once and in order.
    Reliable,
}

/// A segment that is not acknowledged.
#[derive(Debug, Clone, Copy)]
struct Segment {
    offset: u64,
    bytes: usize,
    sent: Instant,
    rto: Duration,
}

/// A flow of a UE, with both of its ends.
#[derive(Debug)]
pub struct Flow {
    /// Its index.
    pub number: u8,
    /// Whether data is sent to the UPF.
    pub up: bool,
    /// Whether it uses IPv6.
    pub v6: bool,
    pub transport: Transport,
    /// Time of its next transmission.
    pub next: Instant,
    draw: RandomStream,
    pace_ms: u64,
    // State of the sender.
    offered: u64,
    unacknowledged: VecDeque<Segment>,
    // State of the receiver.
    expected: u64,
    buffered: BTreeMap<u64, usize>,
}

/// A packet to send: kind, offset and bytes.
pub type Send = (Kind, u64, usize);

impl Flow {
    /// A flow that starts at `next`.
    #[must_use]
    pub fn new(
        number: u8,
        up: bool,
        v6: bool,
        transport: Transport,
        pace_ms: u64,
        next: Instant,
        draw: RandomStream,
    ) -> Self {
        Self {
            number,
            up,
            v6,
            transport,
            next,
            draw,
            pace_ms,
            offered: 0,
            unacknowledged: VecDeque::new(),
            expected: 0,
            buffered: BTreeMap::new(),
        }
    }

    /// Called when the flow may send. `new`: whether it may send new data.
    pub fn turn(&mut self, now: Instant, new: bool) -> Option<Send> {
        let us = self.pace_ms * 1_000;
        self.next = now + Duration::from_micros(self.draw.between((us / 2, us * 3 / 2)).max(1));
        if !new && self.unacknowledged.is_empty() {
            // There is nothing to do before an acknowledgment arrives.
            self.next = now + SILENT;
            return None;
        }
        let bytes = self.size();
        if self.transport == Transport::Udp {
            return new.then_some((Kind::Udp, 0, bytes));
        }
        if let Some(first) = self.unacknowledged.front_mut()
            && now >= first.sent + first.rto
        {
            (first.sent, first.rto) = (now, (first.rto * 2).min(MAX_RTO));
            return Some((Kind::Segment, first.offset, first.bytes));
        }
        if !new || self.unacknowledged.len() >= WINDOW {
            return None;
        }
        let offset = self.offered;
        self.offered += bytes as u64;
        self.unacknowledged.push_back(Segment { offset, bytes, sent: now, rto: RTO });
        Some((Kind::Segment, offset, bytes))
    }

    /// A packet size: mostly small or full, sometimes in between; a multiple of 8.
    pub fn size(&mut self) -> usize {
        let bytes = match self.draw.below(5) {
            0 | 1 => self.draw.between((40, 200)),
            2 | 3 => self.draw.between((900, 1_200)),
            // An IP packet of 1400 bytes, the maximum of a tunnel, has a body of 1,348 or 1,328.
            _ => self.draw.between((1_200, 1_328)),
        };
        bytes as usize & !7
    }

    /// A segment arrives. Returns its acknowledgment.
    ///
    /// # Errors
    /// The segment is not the one that was sent.
    pub fn segment(&mut self, offset: u64, bytes: usize) -> Result<Send, String> {
        let end = offset + bytes as u64;
        if end > self.offered {
            return Err(format!("flow {}: bytes {offset} to {end} were never offered", self.number));
        }
        if offset >= self.expected && self.buffered.insert(offset, bytes).is_some_and(|other| other != bytes)
        {
            return Err(format!("flow {}: two segments at {offset}", self.number));
        }
        while let Some(entry) = self.buffered.first_entry() {
            if *entry.key() > self.expected {
                break;
            }
            let (at, bytes) = entry.remove_entry();
            if at < self.expected {
                return Err(format!("flow {}: a segment at {at} overlaps what is there", self.number));
            }
            self.expected += bytes as u64;
        }
        Ok((Kind::Ack, self.expected, 0))
    }

    /// Everything up to `offset` is acknowledged.
    ///
    /// # Errors
    /// It had not arrived yet.
    pub fn ack(&mut self, offset: u64) -> Result<(), String> {
        if offset > self.expected {
            return Err(format!("flow {}: {offset} acknowledged, {} received", self.number, self.expected));
        }
        while self.unacknowledged.front().is_some_and(|first| first.offset + first.bytes as u64 <= offset) {
            self.unacknowledged.pop_front();
        }
        Ok(())
    }

    /// Whether all data has arrived and is acknowledged.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.unacknowledged.is_empty() && self.expected == self.offered
    }

    /// Bytes offered, and bytes received in order.
    #[must_use]
    pub const fn progress(&self) -> (u64, u64) {
        (self.offered, self.expected)
    }
}
