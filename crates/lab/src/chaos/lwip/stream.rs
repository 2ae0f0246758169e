//! A download: a server with a window, and the data received by a UE. The sender retransmits missing segments after three
//! duplicate acknowledgments or a timeout. It does not model a particular kernel.

use anabranch_element::time::{Duration, Instant};
use anabranch_wire::tcp::{SackBlocks, TcpFlags, TcpHeader, TcpOptions};
use std::collections::BTreeSet;

/// Bytes per segment.
pub const SEGMENT: u32 = 1_000;
/// Maximum number of segments in flight.
const WINDOW: u32 = 40;
/// Without progress for this long, the first missing segment is retransmitted.
const RETRANSMIT_AFTER: Duration = Duration::from_millis(400);

/// Both ends of a download; segments are numbered from 0.
#[derive(Debug, Default)]
pub struct Stream {
    /// Segments sent for the first time.
    pub sent: u32,
    /// Segments acknowledged, as seen by the server.
    pub acked_at_server: u32,
    same: u32,
    retransmit_at: Instant,
    /// Segments received in order by the UE, and those beyond a gap.
    pub received: u32,
    beyond: BTreeSet<u32>,
    /// Highest acknowledgment that the node received.
    pub acked_at_node: u32,
}

impl Stream {
    /// The segment to send now, if any.
    pub fn turn(&mut self, now: Instant, may_begin: bool) -> Option<u32> {
        if self.acked_at_server < self.sent && now >= self.retransmit_at {
            self.retransmit_at = now + RETRANSMIT_AFTER;
            return Some(self.acked_at_server);
        }
        if !may_begin || self.sent >= self.acked_at_server + WINDOW {
            return None;
        }
        if self.acked_at_server == self.sent {
            self.retransmit_at = now + RETRANSMIT_AFTER;
        }
        self.sent += 1;
        Some(self.sent - 1)
    }

    /// The server receives an acknowledgment. Returns the segment to retransmit at once, if any.
    pub fn on_ack(&mut self, acked: u32, now: Instant) -> Option<u32> {
        if acked > self.acked_at_server {
            (self.acked_at_server, self.same, self.retransmit_at) = (acked, 0, now + RETRANSMIT_AFTER);
            return None;
        }
        self.same += u32::from(acked == self.acked_at_server && acked < self.sent);
        if self.same == 3 {
            self.retransmit_at = now + RETRANSMIT_AFTER;
            return Some(acked);
        }
        None
    }

    /// A segment arrives at the UE. Returns whether it is a duplicate.
    pub fn take(&mut self, number: u32) -> bool {
        let is_new = number >= self.received && self.beyond.insert(number);
        while self.beyond.remove(&self.received) {
            self.received += 1;
        }
        !is_new
    }

    /// The acknowledgment of the UE, with the duplicate segment (RFC 2883) and the first blocks beyond the gap.
    pub fn acknowledgment(&self, again: Option<u32>, ms: u32) -> TcpHeader {
        let mut sack = SackBlocks::default();
        if let Some(again) = again {
            sack.push(base(again), base(again + 1));
        }
        let mut left = None;
        for number in &self.beyond {
            match left {
                Some((from, to)) if to == *number => left = Some((from, to + 1)),
                other => {
                    if let Some((from, to)) = other {
                        sack.push(base(from), base(to));
                    }
                    left = Some((*number, number + 1));
                }
            }
        }
        if let Some((from, to)) = left {
            sack.push(base(from), base(to));
        }
        let options = TcpOptions { sack: three(sack), timestamps: Some((ms, 1)), ..TcpOptions::default() };
        TcpHeader { seq: 1, ack: base(self.received), flags: TcpFlags::ACK, window: 1_000, options }
    }
}

/// As many blocks as fit beside timestamps.
fn three(all: SackBlocks) -> SackBlocks {
    let mut some = SackBlocks::default();
    for (left, right) in all.as_slice().iter().take(3) {
        some.push(*left, *right);
    }
    some
}

/// Sequence number of the first byte of a segment. It wraps early in a run.
pub const fn base(number: u32) -> u32 {
    (u32::MAX - 20_000).wrapping_add(number.wrapping_mul(SEGMENT))
}

/// The segment that begins at this sequence number.
pub const fn number(seq: u32) -> u32 {
    seq.wrapping_sub(base(0)) / SEGMENT
}
