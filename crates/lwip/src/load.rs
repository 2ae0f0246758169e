//! Whether samples of a leg are those of a full one: what tells a queue from jitter.
//!
//! A long round trip does not tell. Jitter that keeps order makes every round trip under load as long as its bound, like a
//! queue that never empties. What differs is the answer to another load:
//!
//! ```text
//!   sent      P1 ▪▪▪▪▪▪▪▪▪ P2              b bytes, with P2, in a time τ
//!   answered        ●───────────────●      in a time t
//!
//!   spare:  t = τ + noise         the answers come as the probes went, whatever b is
//!   full:   t = b/R + noise       what was sent between the probes leaves at the leg's rate R
//! ```
//!
//! So over the last samples the *elasticity* of t/τ in b/τ, the slope of its regression times the ratio of the means, is
//! 0 for a leg with capacity to spare and 1 for a full one. Jitter, of whatever width, is noise of t that b does not know of: it
//! moves no mean, and it shows in the residual, hence in the standard error of the elasticity. As long as b does not vary there is
//! nothing to be learned, and nothing is said.

use anabranch_element::time::Duration;

/// Memory, in samples.
const MEMORY: f64 = 16.0;
/// Fewer say nothing.
const FEWEST: u32 = 6;
/// Relative variation of the load below which nothing can be learned from it.
const LEAST_VARIATION: f64 = 0.01;
/// The load has become another one: so many times more or less than the mean.
const ANOTHER: f64 = 2.5;
/// Elasticity, with its standard error, up to which samples are not those of a full leg.
const SPARE: f64 = 0.3;
/// Elasticity, less its standard error, from which they are.
const FULL: f64 = 0.5;

/// Sums over the last samples, each of which weighs 1/16 less than the next.
#[derive(Debug, Clone, Copy)]
pub(super) struct Meter {
    samples: u32,
    /// Mean and variance of b/τ, bytes per second, and of t/τ, and their covariance.
    sent: f64,
    sent_var: f64,
    spread: f64,
    spread_var: f64,
    covariance: f64,
    /// Mean and variance of the round trips beyond the least, microseconds.
    excess_us: f64,
    excess_var: f64,
}

impl Meter {
    /// Without samples.
    pub(super) const EMPTY: Self = Self {
        samples: 0,
        sent: 0.0,
        sent_var: 0.0,
        spread: 0.0,
        spread_var: 0.0,
        covariance: 0.0,
        excess_us: 0.0,
        excess_var: 0.0,
    };

    /// Between two probes `bytes` were sent in the time `sent`, and `answered` passed between their answers, the later of which
    /// took `excess_us` more than the least round trip.
    pub(super) fn sample(&mut self, bytes: u64, sent: Duration, answered: Duration, excess_us: f64) {
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
        let (dx, dz, de) = (x - self.sent, z - self.spread, excess_us - self.excess_us);
        self.sent += new * dx;
        self.spread += new * dz;
        self.excess_us += new * de;
        self.sent_var = (1.0 - new) * (self.sent_var + new * dx * dx);
        self.spread_var = (1.0 - new) * (self.spread_var + new * dz * dz);
        self.covariance = (1.0 - new) * (self.covariance + new * dx * dz);
        self.excess_var = (1.0 - new) * (self.excess_var + new * de * de);
    }

    /// What hardly any of these round trips is beyond the least, microseconds.
    pub(super) fn top_us(&self) -> f64 {
        self.excess_us + 2.0 * self.excess_var.sqrt()
    }

    /// The elasticity and its standard error.
    fn elasticity(&self) -> Option<(f64, f64)> {
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

    /// Whether these are not samples of a full leg, for sure.
    pub(super) fn is_spare(&self) -> bool {
        self.elasticity().is_some_and(|(e, error)| e + error < SPARE)
    }

    /// Whether they are, for sure.
    pub(super) fn is_full(&self) -> bool {
        self.elasticity().is_some_and(|(e, error)| e - error > FULL)
    }
}
