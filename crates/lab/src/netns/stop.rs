//! A stop request that wakes sleeping threads.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Set once, by a signal or by the first failing part of a run.
#[derive(Debug, Default)]
pub struct Stop {
    requested: Mutex<bool>,
    changed: Condvar,
}

impl Stop {
    /// Requests a stop.
    pub fn request(&self) {
        *self.requested.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }

    /// Whether a stop was requested.
    #[must_use]
    pub fn requested(&self) -> bool {
        *self.requested.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sleeps; true, at once, when a stop is requested.
    pub fn sleep(&self, time: Duration) -> bool {
        self.sleep_until(Instant::now() + time)
    }

    /// Sleeps until `deadline`; true, at once, when a stop is requested.
    pub fn sleep_until(&self, deadline: Instant) -> bool {
        let mut requested = self.requested.lock().unwrap_or_else(PoisonError::into_inner);
        while !*requested {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            requested = self.changed.wait_timeout(requested, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_ends_a_sleep() {
        let stop = Stop::default();
        assert!(!stop.sleep(Duration::from_millis(1)));
        let start = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| assert!(stop.sleep(Duration::from_secs(60))));
            stop.request();
        });
        assert!(stop.requested() && start.elapsed() < Duration::from_secs(30));
    }
}
