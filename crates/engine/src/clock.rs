//! The real-time clock of the state machines.

use anabranch_element::time::{Duration, Instant, nanos};
use hdrhistogram::Histogram;
use nix::time::{ClockId, clock_gettime};

/// Upper end of [`histogram`], nanoseconds; longer times count as this.
const MAX_NS: u64 = 10_000_000_000;

/// The monotonic clock, starting at 0 at the start of the program.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    start_ns: u64,
}

impl Clock {
    /// A clock that starts now.
    pub fn start() -> Self {
        Self { start_ns: Self::monotonic_ns() }
    }

    /// The current time.
    pub fn now(self) -> Instant {
        self.at_monotonic(Self::monotonic_ns())
    }

    /// The wall clock at the start of this clock, according to the present setting of the wall clock; Unix
    /// time, nanoseconds.
    pub fn start_unix_ns(self) -> u64 {
        let wall = clock_gettime(ClockId::CLOCK_REALTIME).map(Duration::from).unwrap_or_default();
        nanos(wall).saturating_sub(self.now().as_nanos())
    }

    /// A time of this clock on the kernel's monotonic clock, nanoseconds.
    pub fn monotonic_at(self, at: Instant) -> u64 {
        self.start_ns.saturating_add(at.as_nanos())
    }

    /// A time of the kernel's monotonic clock, nanoseconds, on this clock; 0 if before its start.
    pub fn at_monotonic(self, ns: u64) -> Instant {
        Instant::from_nanos(ns.saturating_sub(self.start_ns))
    }

    fn monotonic_ns() -> u64 {
        let time = clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from).unwrap_or_default();
        nanos(time)
    }
}

/// Processor time of the calling thread since its start, without the time for which it waited for a processor.
pub fn processor_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from).unwrap_or_default()
}

/// A histogram of times from 1 ns to 10 s with two significant digits. Its size is fixed (20 KiB), so recording never
/// allocates.
pub(crate) fn histogram() -> Histogram<u64> {
    let mut histogram = Histogram::new_with_bounds(1, MAX_NS, 2).unwrap_or_else(|_| unreachable!());
    histogram.auto(false);
    histogram
}

/// Unix time in nanoseconds, for handshake timestamps.
pub fn unix_ns() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |d| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX))
}
