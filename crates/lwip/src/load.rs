//! Whether samples are those of a full leg: tells a queue from jitter.
//!
//! A long round trip is no proof of a queue. Jitter that preserves order makes every round trip under load as long
//! as the jitter's bound, like a queue that never empties. The reaction to a change of load tells the two apart:
//!
//! ```text
//!   sent      P1 ▪▪▪▪▪▪▪▪▪ P2             b bytes, with P2, in a time τ
//!   answered        ●───────────────●     in a time t
//!
//!   spare:  t = τ + noise      the answers arrive at the distance of the probes, whatever b is
//!   full:   t = b/R + noise    the data sent between the probes leaves at the leg's rate R
//! ```
//!
//! Over the last samples, the *elasticity* of t/τ with respect to b/τ is computed: the slope of the regression
//! times the ratio of the means. It is 0 for a leg with spare capacity and 1 for a full one. Jitter of any width is
//! noise in t that is independent of b. It does not move the means, but appears in the residual and therefore in
//! the standard error of the elasticity. While b does not vary, the elasticity is undefined.

use anabranch_element::time::Duration;

/// Memory of the sums, in samples.
const MEMORY: f64 = 16.0;
/// Least number of samples for a result.
const MIN_SAMPLES: u32 = 6;
/// Relative variation of the load below which the elasticity is undefined.
const MIN_VARIATION: f64 = 0.01;
/// A load that differs from the mean by this factor begins a new measurement.
const RESTART_FACTOR: f64 = 2.5;
/// The leg has spare capacity if elasticity plus standard error is below this.
const MAX_SPARE_ELASTICITY: f64 = 0.3;
/// The leg is full if elasticity minus standard error is above this.
const MIN_FULL_ELASTICITY: f64 = 0.5;

/// Weighted sums over the last samples; each sample reduces the weight of the earlier ones by 1/16.
#[derive(Debug, Clone, Copy)]
pub(super) struct Meter {
    samples: u32,
    /// Mean of b/τ, bytes per second.
    sent: f64,
    /// Mean of t/τ.
    sent_var: f64,
    spread: f64,
    spread_var: f64,
    covariance: f64,
    /// Mean and variance of the excess of round trips over the least one, microseconds.
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

    /// Adds a sample: `bytes` were sent between two probes in the time `sent`, and `answered` passed between their
    /// answers. The round trip of the second probe exceeded the least one by `excess_us`.
    pub(super) fn sample(&mut self, bytes: u64, sent: Duration, answered: Duration, excess_us: f64) {
        let (bytes, tau, t) = (bytes as f64, sent.as_secs_f64(), answered.as_secs_f64());
        if tau <= 0.0 {
            return;
        }
        let (x, z) = (bytes / tau, t / tau);
        if self.samples > 0 && (x > self.sent * RESTART_FACTOR || x * RESTART_FACTOR < self.sent) {
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

    /// Upper bound of nearly all excesses: mean plus two standard deviations, microseconds.
    pub(super) fn top_us(&self) -> f64 {
        self.excess_us + 2.0 * self.excess_var.sqrt()
    }

    /// The elasticity and its standard error; `None` while it is undefined.
    fn elasticity(&self) -> Option<(f64, f64)> {
        let least = MIN_VARIATION * self.sent;
        if self.samples < MIN_SAMPLES || self.spread <= 0.0 || self.sent_var <= least * least {
            return None;
        }
        let slope = self.covariance / self.sent_var;
        let residual = (self.spread_var - slope * self.covariance).max(0.0);
        // Weights that fade by 1/m per sample are worth 2m − 1 equal ones.
        let worth = f64::from(self.samples).min(2.0 * MEMORY - 1.0) - 2.0;
        let error = (residual / (self.sent_var * worth.max(1.0))).sqrt();
        let scale = self.sent / self.spread;
        Some((slope * scale, error * scale))
    }

    /// Whether the samples are certainly not those of a full leg.
    pub(super) fn is_spare(&self) -> bool {
        self.elasticity().is_some_and(|(e, error)| e + error < MAX_SPARE_ELASTICITY)
    }

    /// Whether the samples are certainly those of a full leg.
    pub(super) fn is_full(&self) -> bool {
        self.elasticity().is_some_and(|(e, error)| e - error > MIN_FULL_ELASTICITY)
    }
}
