//! The server of a link: sends one packet at a time, at a fixed rate or according to a trace.

use super::trace::{Trace, WORK_PER_BIT};
use anabranch_element::time::{Instant, nanos};
use std::sync::Arc;

/// Transmission rate of a link.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum Rate {
    /// Transmission takes no time.
    #[default]
    Unlimited,
    /// Bits per second. 0 stalls the link; packets are dropped only when the queue is full.
    Fixed(u64),
    /// A recorded rate; it starts when the link is created or when the command takes effect.
    Trace(Arc<Trace>),
}

/// Computes when transmissions end, and the remaining work of a packet when the rate changes during its transmission.
#[derive(Debug, Clone)]
pub(super) struct Server {
    rate: Rate,
    /// Start of the trace.
    origin: Instant,
    /// End of the current or last transmission.
    free_at: Instant,
    /// Start of the current packet.
    started_at: Instant,
    /// Work (bits·10⁹) of the current packet, and the trace position at its start (used only with a trace).
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

    /// Starts the next packet, which arrived at `at`; returns when its transmission ends.
    #[inline]
    pub(super) fn start(&mut self, at: Instant, bytes: usize) -> Instant {
        self.started_at = self.free_at.max(at);
        // A packet may use the rest of the delivery opportunity in which the previous one ended.
        if matches!(self.rate, Rate::Trace(_)) {
            self.position = self.position.saturating_add(self.work);
        }
        self.begin(bytes as u128 * 8 * WORK_PER_BIT)
    }

    /// Changes the rate at `now`. Returns the new end of the current transmission, if `busy`.
    pub(super) fn set_rate(&mut self, rate: Rate, now: Instant, busy: bool) -> Option<Instant> {
        let left = if busy { self.work_left(now) } else { 0 };
        self.rate = rate;
        self.origin = now;
        self.position = 0;
        self.work = 0;
        self.started_at = now;
        if !busy {
            // An idle server keeps its time; a stalled server whose packet was dropped is free from now on.
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
                // Sufficient except for packets of gigabytes: 64-bit division is many times faster.
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
        // 5 of 10 ms have passed; half of the packet remains at a fifth of the rate.
        assert_eq!(s.set_rate(Rate::Fixed(2_400_000), ms(5), true), Some(ms(30)));
        assert_eq!(s.set_rate(Rate::Fixed(0), ms(10), true), Some(Instant::MAX));
        assert_eq!(s.set_rate(Rate::Fixed(12_000_000), ms(100), true), Some(ms(104)));
    }

    #[test]
    fn unused_opportunities_expire_and_partly_used_ones_are_shared() {
        let trace = Trace::parse("t", "1\n2\n3\n4\n").unwrap();
        let mut s = Server::new(Rate::Trace(Arc::new(trace)), Instant::ZERO);
        assert_eq!(s.start(Instant::from_micros(2500), 500), ms(3));
        assert_eq!(s.start(Instant::from_micros(2500), 500), ms(3));
        assert_eq!(s.start(Instant::from_micros(2500), 600), ms(4));
        assert_eq!(s.start(Instant::from_micros(4500), 1500), ms(5));
    }
}
