//! Real time as the algorithms see it.

use anabranch_element::time::{Duration, Instant, nanos};
use nix::time::{ClockId, clock_gettime};

/// The monotonic clock, from the start of the program.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    start_ns: u64,
}

impl Clock {
    /// Starts now.
    pub fn start() -> Self {
        Self { start_ns: Self::monotonic_ns() }
    }

    /// Now.
    pub fn now(self) -> Instant {
        Instant::from_nanos(Self::monotonic_ns().saturating_sub(self.start_ns))
    }

    /// The wall clock at the start, as the wall clock is set now.
    pub fn start_unix_ns(self) -> u64 {
        let wall = clock_gettime(ClockId::CLOCK_REALTIME).map(Duration::from).unwrap_or_default();
        nanos(wall).saturating_sub(self.now().as_nanos())
    }

    /// A time of this clock in nanoseconds of the kernel's monotonic clock.
    pub fn monotonic_at(self, at: Instant) -> u64 {
        self.start_ns.saturating_add(at.as_nanos())
    }

    fn monotonic_ns() -> u64 {
        let time = clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from).unwrap_or_default();
        nanos(time)
    }
}

/// Nanoseconds since 1970, for handshake timestamps.
pub fn unix_ns() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |d| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX))
}
