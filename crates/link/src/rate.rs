//! The server of a link: one packet at a time, at a fixed rate or after a trace.

use super::trace::{Trace, WORK_PER_BIT};
use anabranch_element::time::{Instant, nanos};
use std::sync::Arc;

/// How fast a link sends.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum Rate {
    /// Sending takes no time.
    #[default]
    Unlimited,
    /// Bits per second; 0 stalls the link without dropping anything but what the queue cannot hold.
    Fixed(u64),
    /// A recorded rate; it starts when the link is made or when the command takes effect.
    Trace(Arc<Trace>),
}

/// Computes when packets have been sent, and what is left of one when the rate changes under way.
#[derive(Debug, Clone)]
pub(super) struct Server {
    rate: Rate,
    /// When the trace started.
    origin: Instant,
    /// When the last packet was, or will be, sent.
    free_at: Instant,
    /// Start of the present packet.
    started_at: Instant,
    /// Work (bits·10⁹) of the present packet, and the position where it starts, which only a trace needs.
    work: u128,
    position: u128,
}

impl Server {
    pub(super) fn new(rate: Rate, origin: Instant) -> Self {
        Self { rate, origin, free_at: Instant::ZERO, started_at: Instant::ZERO, work: 0, position: 0 }
    }

    pub(super) fn rate(&self) -> &Rate {
        &self.rate
    }

    /// The rate at `at` in bit/s; `None` if unlimited.
    pub(super) fn bps_at(&self, at: Instant) -> Option<u64> {
        match &self.rate {
            Rate::Unlimited => None,
            Rate::Fixed(bps) => Some(*bps),
            Rate::Trace(trace) => Some(trace.bps_at(nanos(at.saturating_since(self.origin)))),
        }
    }

    /// Starts the next packet, which was there at `at`; returns when it has been sent.
    #[inline]
    pub(super) fn start(&mut self, at: Instant, bytes: usize) -> Instant {
        self.started_at = self.free_at.max(at);
        // Where the last packet ended within an opportunity is where this one may begin.
        if matches!(self.rate, Rate::Trace(_)) {
            self.position = self.position.saturating_add(self.work);
        }
        self.begin(bytes as u128 * 8 * WORK_PER_BIT)
    }

    /// Changes the rate at `now`. Returns the new end of the packet being sent, if `busy`.
    pub(super) fn set_rate(&mut self, rate: Rate, now: Instant, busy: bool) -> Option<Instant> {
        let left = if busy { self.work_left(now) } else { 0 };
        self.rate = rate;
        self.origin = now;
        self.position = 0;
        self.work = 0;
        self.started_at = now;
        if !busy {
            // Free since it was free; a stalled server that dropped its packet is free now.
            self.free_at = self.free_at.min(now);
            return None;
        }
        Some(self.begin(left))
    }

    /// The packet being sent was dropped.
    pub(super) fn abandon(&mut self, now: Instant) {
        self.free_at = self.free_at.min(now);
        self.work = 0;
    }

    #[inline]
    fn begin(&mut self, work: u128) -> Instant {
        self.work = work;
        self.free_at = match &self.rate {
            Rate::Unlimited => self.started_at,
            Rate::Fixed(0) => Instant::MAX,
            Rate::Fixed(bps) => {
                // All but packets of gigabytes: division of 64 bits is many times faster.
                let ns = match u64::try_from(work) {
                    Ok(work) => work.div_ceil(*bps),
                    Err(_) => u64::try_from(work.div_ceil(u128::from(*bps))).unwrap_or(u64::MAX),
                };
                self.started_at.after_nanos(ns)
            }
            Rate::Trace(trace) => {
                let elapsed_ns = nanos(self.started_at.saturating_since(self.origin));
                self.position = self.position.max(trace.work_before(elapsed_ns));
                match trace.time_of(self.position.saturating_add(work)) {
                    Some(ns) => self.origin.after_nanos(ns).max(self.started_at),
                    None => Instant::MAX,
                }
            }
        };
        self.free_at
    }

    fn work_left(&self, now: Instant) -> u128 {
        let done = match &self.rate {
            Rate::Unlimited => self.work,
            Rate::Fixed(bps) => u128::from(nanos(now.saturating_since(self.started_at))) * u128::from(*bps),
            Rate::Trace(trace) => {
                trace.work_before(nanos(now.saturating_since(self.origin))).saturating_sub(self.position)
            }
        };
        self.work.saturating_sub(done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Instant {
        Instant::from_millis(ms)
    }

    #[test]
    fn packets_queue_behind_one_another() {
        let mut s = Server::new(Rate::Fixed(12_000_000), Instant::ZERO);
        assert_eq!(s.start(ms(1), 1500), ms(2));
        assert_eq!(s.start(ms(1), 1500), ms(3));
        assert_eq!(s.start(ms(10), 1500), ms(11));
    }

    #[test]
    fn a_rate_change_rescales_what_is_left() {
        let mut s = Server::new(Rate::Fixed(12_000_000), Instant::ZERO);
        s.start(ms(0), 15_000);
        // 5 of 10 ms done; half the packet at a fifth of the rate.
        assert_eq!(s.set_rate(Rate::Fixed(2_400_000), ms(5), true), Some(ms(30)));
        assert_eq!(s.set_rate(Rate::Fixed(0), ms(10), true), Some(Instant::MAX));
        assert_eq!(s.set_rate(Rate::Fixed(12_000_000), ms(100), true), Some(ms(104)));
    }

    #[test]
    fn a_trace_wastes_what_nobody_uses_and_shares_what_is_left() {
        let trace = Trace::parse("t", "1\n2\n3\n4\n").unwrap();
        let mut s = Server::new(Rate::Trace(Arc::new(trace)), Instant::ZERO);
        assert_eq!(s.start(Instant::from_micros(2500), 500), ms(3));
        assert_eq!(s.start(Instant::from_micros(2500), 500), ms(3));
        assert_eq!(s.start(Instant::from_micros(2500), 600), ms(4));
        assert_eq!(s.start(Instant::from_micros(4500), 1500), ms(5));
    }
}
