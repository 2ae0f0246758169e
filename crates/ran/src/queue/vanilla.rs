//! `vanilla`: SDAP passes every packet to RLC at once, and RLC is one FIFO with tail drop, as in OAI, srsRAN and most
//! deployed base stations (RLC §V-D, Table 1). With BBR at the sender, this is the case called *BBR* in the paper.
//! ```text
//!   ──▶ ▯▯▯▯▯▯▯▯▯▯▯▯▯▯▯▯▯▯▯▯▯▯▯▯▯▯▯▯▯▯▯▯▯▯▯▯▯▯▯ ──▶ MAC      the queue a loss-based sender fills
//!   ──▶ ▯▯▯▯▯▯▯▯▯▯▯▯▯▯▯▯▯▯▯▯▯▯▯▯▯▯▯▯▯▯▯▯▯▯▯▯▯▯▯ ──▶ MAC      a loss-based sender fills the queue

use super::{BearerParams, Buffer, BufferLimit, BufferStats, Candidate, Discipline, Limiter, NoParams, Sdu};
use anabranch_element::time::Instant;
use std::collections::VecDeque;

/// Admits every packet.
#[derive(Debug, Clone, Copy)]
pub struct Unlimited;

impl Discipline for Unlimited {
    type Params = NoParams;

    fn build(_: &NoParams, _: BearerParams) -> Self {
        Self
    }
}

impl Limiter for Unlimited {
    fn admits(&mut self, _: &Candidate, _: Instant) -> bool {
        true
    }
    fn on_forwarded(&mut self, _: u32, _: Instant) {}
    fn needs_polling(&self) -> bool {
        false
    }
}

/// First in, first out, tail drop. Also the RLC buffer used with every limiter.
#[derive(Debug, Clone)]
pub struct Fifo {
    limit: BufferLimit,
    queue: VecDeque<Sdu>,
    bytes: u64,
    stats: BufferStats,
}

impl Fifo {
    /// An empty queue.
    #[must_use]
    pub fn new(limit: BufferLimit) -> Self {
        Self { limit, queue: VecDeque::new(), bytes: 0, stats: BufferStats::default() }
    }

    /// Counts an SDU that is passed through an empty queue as pushed and popped. Returns `false`, and counts nothing, if it
    /// does not fit or the queue is not empty.
    #[inline]
    pub(crate) fn pass(&mut self, bytes: u64) -> bool {
        let fits = self.queue.is_empty() && bytes <= self.limit.bytes && self.limit.sdus > 0;
        if fits {
            self.stats.pushed_sdus += 1;
            self.stats.popped_sdus += 1;
            self.stats.max_bytes = self.stats.max_bytes.max(bytes);
        }
        fits
    }

    /// The next SDU.
    #[must_use]
    pub fn front(&self) -> Option<&Sdu> {
        self.queue.front()
    }
}

impl Buffer for Fifo {
    #[inline(always)]
    fn push(&mut self, sdu: Sdu, _: Instant) {
        self.stats.pushed_sdus += 1;
        let bytes = self.bytes + u64::from(sdu.bytes());
        if bytes > self.limit.bytes || self.queue.len() >= self.limit.sdus {
            self.stats.full_drops += 1;
            return;
        }
        self.bytes = bytes;
        self.stats.max_bytes = self.stats.max_bytes.max(bytes);
        self.queue.push_back(sdu);
    }

    #[inline(always)]
    fn pop(&mut self, _: Instant) -> Option<Sdu> {
        let sdu = self.queue.pop_front()?;
        self.bytes -= u64::from(sdu.bytes());
        self.stats.popped_sdus += 1;
        Some(sdu)
    }

    #[inline]
    fn len_sdus(&self) -> usize {
        self.queue.len()
    }

    #[inline]
    fn len_bytes(&self) -> u64 {
        self.bytes
    }

    fn sizes(&self, max_sdus: usize, out: &mut Vec<u32>) {
        out.extend(self.queue.iter().take(max_sdus).map(Sdu::bytes));
    }

    fn stats(&self) -> BufferStats {
        self.stats
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_element::packet::Packet;

    fn sdu(bytes: usize) -> Sdu {
        Sdu::new(Packet::new(Instant::ZERO, vec![0; bytes]), 1)
    }

    #[test]
    fn order_is_kept_and_what_does_not_fit_is_counted() {
        let mut q = Fifo::new(BufferLimit { bytes: 3000, sdus: 3 });
        for bytes in [1500, 1000, 600, 500, 1, 0] {
            q.push(sdu(bytes), Instant::ZERO);
        }
        assert_eq!((q.len_sdus(), q.len_bytes()), (3, 3000));
        let mut sizes = Vec::new();
        q.sizes(2, &mut sizes);
        assert_eq!(sizes, [1500, 1000]);
        let out: Vec<u32> = std::iter::from_fn(|| q.pop(Instant::ZERO)).map(|s| s.bytes()).collect();
        assert_eq!(out, [1500, 1000, 500]);
        let s = q.stats();
        assert_eq!((s.pushed_sdus, s.popped_sdus, s.full_drops, s.max_bytes), (6, 3, 3, 3000));
        assert_eq!(q.len_bytes(), 0);
    }
}
