//! Real time as the core sees it.

use anabranch_element::time::Instant;

/// Maps the monotonic clock to nanoseconds since the program started.
#[derive(Debug, Clone, Copy)]
pub struct Clock(std::time::Instant);

impl Clock {
    /// Starts now.
    pub fn start() -> Self {
        Self(std::time::Instant::now())
    }

    /// Now.
    pub fn now(&self) -> Instant {
        Instant::from_nanos(u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}

/// Nanoseconds since 1970, for handshake timestamps.
pub fn unix_ns() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |d| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX))
}
