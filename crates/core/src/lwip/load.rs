//! Whether a leg is full, and at which rate: what tells a queue from jitter.
//!
//! A long round trip does not tell. Jitter that keeps order makes every round trip under load as long as its bound, like a
//! queue that never empties; and a queue that stood for long looks like the way itself. What differs is the answer to more load:
//!
//! ```text
//!   sent      P1 ▪▪▪▪▪▪▪▪▪ P2              b bytes, with P2, in a time τ
//!   answered        ●───────────────●      in a time t
//!
//!   spare:  t = τ + noise         the answers come as the probes went, whatever b is
//!   full:   t = b/R + noise       what was sent between the probes leaves at the leg's rate
//! ```
//!
//! So over the last samples the *elasticity* of t/τ in b/τ, the slope of its regression times the ratio of the means, is
//! 0 for a leg with capacity to spare and 1 for a full one. Jitter, of whatever width, is noise of t that b does not know of: it
//! moves no mean, and it shows in the residual, hence in the standard error of the elasticity. A leg is called full or spare
//! only if its elasticity is one standard error beyond ½. Steering makes b vary on purpose ([`super::balance`]); what TCP
//! varies by itself helps.
//!
//! In a queue that is shared with others, where a part f of the bytes is the UE's, the elasticity is f: a leg of which it has less than half is
//! spare, since to send more there is to get more.
//!
//! The rate of a full leg is Σb/Σt: the noise of t cancels, but for the first and last. Of a leg that is not full that is a lower bound.

use crate::time::Duration;

/// Memory, in samples.
const MEMORY: f64 = 16.0;
/// Fewer say nothing.
const FEWEST: u32 = 6;
/// Relative variation of the load below which nothing can be learned from it.
const LEAST_VARIATION: f64 = 0.01;
/// The load has become another one: so many times more or less than the mean.
const ANOTHER: f64 = 2.5;

/// Sums over the last samples, each of which weighs 1/16 less than the next.
#[derive(Debug, Clone, Copy)]
pub(super) struct Meter {
    samples: u32,
    /// Means of b/τ in bytes per second and of t/τ, their variances and covariance.
    sent: f64,
    spread: f64,
    sent_var: f64,
    spread_var: f64,
    covariance: f64,
}

impl Meter {
    /// Without samples.
    pub(super) const EMPTY: Self =
        Self { samples: 0, sent: 0.0, spread: 0.0, sent_var: 0.0, spread_var: 0.0, covariance: 0.0 };

    /// Between two probes `bytes` were sent in the time `sent`, and `answered` passed between their answers.
    pub(super) fn sample(&mut self, bytes: u64, sent: Duration, answered: Duration) {
        let (bytes, tau, t) = (bytes as f64, sent.as_secs_f64(), answered.as_secs_f64());
        if tau <= 0.0 {
            return;
        }
        let (x, z) = (bytes / tau, t / tau);
        if self.samples > 0 && (x > self.sent * ANOTHER || x * ANOTHER < self.sent) {
            *self = Self::EMPTY;
        }
        self.samples = self.samples.saturating_add(1);
        let new = (1.0 / f64::from(self.samples)).max(1.0 / MEMORY);
        let (dx, dz) = (x - self.sent, z - self.spread);
        self.sent += new * dx;
        self.spread += new * dz;
        self.sent_var = (1.0 - new) * (self.sent_var + new * dx * dx);
        self.spread_var = (1.0 - new) * (self.spread_var + new * dz * dz);
        self.covariance = (1.0 - new) * (self.covariance + new * dx * dz);
    }

    /// The elasticity and its standard error.
    pub(super) fn elasticity(&self) -> Option<(f64, f64)> {
        let least = LEAST_VARIATION * self.sent;
        if self.samples < FEWEST || self.spread <= 0.0 || self.sent_var <= least * least {
            return None;
        }
        let slope = self.covariance / self.sent_var;
        let residual = (self.spread_var - slope * self.covariance).max(0.0);
        // Weights that fade by 1/m a sample are worth 2m - 1 equal ones.
        let worth = f64::from(self.samples).min(2.0 * MEMORY - 1.0) - 2.0;
        let error = (residual / (self.sent_var * worth.max(1.0))).sqrt();
        let scale = self.sent / self.spread;
        Some((slope * scale, error * scale))
    }

    /// Whether more would be delivered if more were sent.
    pub(super) fn is_spare(&self) -> bool {
        self.elasticity().is_some_and(|(e, error)| e + error < 0.5)
    }

    /// Whether the round trips of these samples are the leg's own, without a queue now and then.
    pub(super) fn is_quiet(&self) -> bool {
        self.elasticity().is_some_and(|(e, error)| e < 0.15 && e + error < 0.5)
    }

    /// Whether what is sent is queued.
    pub(super) fn is_full(&self) -> bool {
        self.elasticity().is_some_and(|(e, error)| e - error > 0.5)
    }
}
