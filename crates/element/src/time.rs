//! The clock of the project: an integer count of nanoseconds, advanced by the caller.
//!
//! Simulated time starts at [`Instant::ZERO`]; a real-time run maps the monotonic clock onto it. This crate never reads a
//! clock: `now` is always an argument.

use core::fmt;
use core::ops::{Add, AddAssign, Sub};
pub use core::time::Duration;

/// A point in time, in nanoseconds since the start of the run.
///
/// Arithmetic saturates at the end of the representable range (584 years).
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    /// The start of the run.
    pub const ZERO: Self = Self(0);
    /// Later than every other instant.
    pub const MAX: Self = Self(u64::MAX);

    /// The instant `ns` nanoseconds after the start.
    #[inline]
    #[must_use]
    pub const fn from_nanos(ns: u64) -> Self {
        Self(ns)
    }

    /// The instant `us` microseconds after the start.
    #[inline]
    #[must_use]
    pub const fn from_micros(us: u64) -> Self {
        Self(us.saturating_mul(1_000))
    }

    /// The instant `ms` milliseconds after the start.
    #[inline]
    #[must_use]
    pub const fn from_millis(ms: u64) -> Self {
        Self(ms.saturating_mul(1_000_000))
    }

    /// The instant `s` seconds after the start.
    #[inline]
    #[must_use]
    pub const fn from_secs(s: u64) -> Self {
        Self(s.saturating_mul(1_000_000_000))
    }

    /// Nanoseconds since the start.
    #[inline]
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Microseconds since the start, rounded down.
    #[inline]
    #[must_use]
    pub const fn as_micros(self) -> u64 {
        self.0 / 1_000
    }

    /// Milliseconds since the start, rounded down.
    #[inline]
    #[must_use]
    pub const fn as_millis(self) -> u64 {
        self.0 / 1_000_000
    }

    /// Seconds since the start.
    #[inline]
    #[must_use]
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// The instant `ns` nanoseconds later.
    #[inline]
    #[must_use]
    pub const fn after_nanos(self, ns: u64) -> Self {
        Self(self.0.saturating_add(ns))
    }

    /// Time from `earlier` to `self`; zero if `earlier` is the later one.
    #[inline]
    #[must_use]
    pub const fn saturating_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// A duration in whole nanoseconds, saturating at `u64::MAX`.
#[inline]
#[must_use]
pub fn nanos(duration: Duration) -> u64 {
    const SECOND: u64 = 1_000_000_000;
    let (secs, rest) = (duration.as_secs(), u64::from(duration.subsec_nanos()));
    // The common case; the compiler recognises it as the inverse of `from_nanos`.
    if secs < u64::MAX / SECOND {
        return secs * SECOND + rest;
    }
    secs.saturating_mul(SECOND).saturating_add(rest)
}

impl Add<Duration> for Instant {
    type Output = Self;
    #[inline]
    fn add(self, rhs: Duration) -> Self {
        Self(self.0.saturating_add(nanos(rhs)))
    }
}

impl AddAssign<Duration> for Instant {
    #[inline]
    fn add_assign(&mut self, rhs: Duration) {
        *self = *self + rhs;
    }
}

impl Sub<Duration> for Instant {
    type Output = Self;
    #[inline]
    fn sub(self, rhs: Duration) -> Self {
        Self(self.0.saturating_sub(nanos(rhs)))
    }
}

impl Sub for Instant {
    type Output = Duration;
    #[inline]
    fn sub(self, rhs: Self) -> Duration {
        self.saturating_since(rhs)
    }
}

impl fmt::Display for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}s", self.0 / 1_000_000_000, self.0 % 1_000_000_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates() {
        assert_eq!(Instant::MAX + Duration::from_secs(1), Instant::MAX);
        assert_eq!(Instant::MAX.after_nanos(1), Instant::MAX);
        assert_eq!(Instant::ZERO.after_nanos(7), Instant::from_nanos(7));
        assert_eq!(Instant::ZERO - Duration::from_secs(1), Instant::ZERO);
        assert_eq!(Instant::ZERO - Instant::from_secs(3), Duration::ZERO);
        for ns in [0, 1, 999_999_999, 1_000_000_000, u64::MAX / 2, u64::MAX - 709_551_616, u64::MAX] {
            assert_eq!(nanos(Duration::from_nanos(ns)), ns);
        }
        assert_eq!(nanos(Duration::new(u64::MAX / 1_000_000_000, 709_551_616)), u64::MAX);
        assert_eq!(nanos(Duration::MAX), u64::MAX);
        assert_eq!(Instant::from_millis(1500).to_string(), "1.500000000s");
    }
}
