//! Loss models: none, Bernoulli, Gilbert–Elliott.
//!
//! Source: E. N. Gilbert, "Capacity of a burst-noise channel", BSTJ 1960; E. O. Elliott, BSTJ 1963;
//! parameter names as in G. Haßlinger and O. Hohlfeld, "The Gilbert-Elliott model for packet loss in
//! real time services on the Internet", 2008.
//!
//! ```text
//!              p                       p: good to bad, per packet
//!      ┌──────────────────┐            r: bad to good, per packet
//!      │                  ▼            a packet sent in `good` is lost with loss_good (1-k),
//!   ┌──────┐           ┌─────┐         in `bad` with loss_bad (1-h)
//!   │ good │           │ bad │
//!   └──────┘           └─────┘         share of time in bad: p / (p + r)
//!      ▲                  │            mean length of a bad period: 1 / r packets
//!      └──────────────────┘
//!              r
//! ```
//!
//! The chain starts in `good` and steps once per packet, after the loss of that packet has been drawn.

use rand_chacha::ChaCha12Rng;
use rand_core::RngCore;
use serde::{Deserialize, Serialize};

/// Loss model of the medium. All probabilities are in 0.0 ..= 1.0.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(tag = "model", rename_all = "kebab-case", deny_unknown_fields)]
pub enum LossModel {
    /// No loss.
    #[default]
    None,
    /// Every packet is lost independently.
    Bernoulli {
        /// Probability that a packet is lost.
        probability: f64,
    },
    /// Loss in bursts; see the module documentation.
    GilbertElliott {
        /// Probability, per packet, of going from good to bad.
        p: f64,
        /// Probability, per packet, of going from bad to good.
        r: f64,
        /// Probability that a packet sent in the good state is lost.
        #[serde(default)]
        loss_good: f64,
        /// Probability that a packet sent in the bad state is lost.
        #[serde(default = "certain")]
        loss_bad: f64,
    },
}

impl LossModel {
    /// The simple Gilbert model with a mean loss rate and a mean burst length in packets (at least 1).
    #[must_use]
    pub fn bursts(mean_loss: f64, mean_burst_packets: f64) -> Self {
        let r = 1.0 / mean_burst_packets.max(1.0);
        let mean_loss = mean_loss.clamp(0.0, 1.0);
        if mean_loss >= 1.0 {
            return Self::Bernoulli { probability: 1.0 };
        }
        Self::GilbertElliott {
            p: (r * mean_loss / (1.0 - mean_loss)).min(1.0),
            r,
            loss_good: 0.0,
            loss_bad: 1.0,
        }
    }

    /// The long-run share of lost packets.
    #[must_use]
    pub fn mean(&self) -> f64 {
        match *self {
            Self::None => 0.0,
            Self::Bernoulli { probability } => probability,
            Self::GilbertElliott { p, r, loss_good, loss_bad } => {
                let bad = if p + r > 0.0 { p / (p + r) } else { 0.0 };
                (1.0 - bad) * loss_good + bad * loss_bad
            }
        }
    }

    /// The first parameter that is not a probability, by name.
    #[must_use]
    pub fn bad_parameter(&self) -> Option<(&'static str, f64)> {
        let bad = |value: f64| !(0.0..=1.0).contains(&value);
        match *self {
            Self::None => None,
            Self::Bernoulli { probability } => bad(probability).then_some(("probability", probability)),
            Self::GilbertElliott { p, r, loss_good, loss_bad } => {
                [("p", p), ("r", r), ("loss_good", loss_good), ("loss_bad", loss_bad)]
                    .into_iter()
                    .find(|(_, value)| bad(*value))
            }
        }
    }
}

/// A [`LossModel`] with its state and its own random stream.
#[derive(Debug, Clone)]
pub struct LossProcess {
    model: LossModel,
    in_bad: bool,
    rng: ChaCha12Rng,
}

impl LossProcess {
    /// A process that starts in the good state.
    #[must_use]
    pub fn new(model: LossModel, rng: ChaCha12Rng) -> Self {
        Self { model, in_bad: false, rng }
    }

    /// Replaces the model; the chain restarts in the good state, the random stream continues.
    pub fn set_model(&mut self, model: LossModel) {
        self.model = model;
        self.in_bad = false;
    }

    /// Draws whether the next packet is lost.
    #[inline]
    pub fn lost(&mut self) -> bool {
        match self.model {
            LossModel::None => false,
            LossModel::Bernoulli { probability } => chance(&mut self.rng, probability),
            LossModel::GilbertElliott { p, r, loss_good, loss_bad } => {
                let (loss, leave) = if self.in_bad { (loss_bad, r) } else { (loss_good, p) };
                let lost = chance(&mut self.rng, loss);
                if chance(&mut self.rng, leave) {
                    self.in_bad = !self.in_bad;
                }
                lost
            }
        }
    }
}

/// True with the given probability; 0 and 1 are exact and use no randomness.
fn chance(rng: &mut ChaCha12Rng, probability: f64) -> bool {
    if probability <= 0.0 {
        return false;
    }
    if probability >= 1.0 {
        return true;
    }
    // 53 bits: the resolution of the probability itself.
    ((rng.next_u64() >> 11) as f64) < probability * (1u64 << 53) as f64
}

fn certain() -> f64 {
    1.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand_core::SeedableRng;

    fn run(model: LossModel, packets: usize) -> Vec<bool> {
        let mut process = LossProcess::new(model, ChaCha12Rng::seed_from_u64(7));
        (0..packets).map(|_| process.lost()).collect()
    }

    #[test]
    fn bernoulli_loses_its_share() {
        let lost = run(LossModel::Bernoulli { probability: 0.05 }, 100_000);
        let share = lost.iter().filter(|l| **l).count() as f64 / 1e5;
        assert!((share - 0.05).abs() < 0.003, "{share}");
        assert!(run(LossModel::Bernoulli { probability: 1.0 }, 10).iter().all(|l| *l));
        assert!(!run(LossModel::None, 10).iter().any(|l| *l));
    }

    #[test]
    fn gilbert_matches_the_configured_mean_and_burst_length() {
        let model = LossModel::bursts(0.02, 8.0);
        assert!((model.mean() - 0.02).abs() < 1e-9);
        let lost = run(model, 400_000);
        let share = lost.iter().filter(|l| **l).count() as f64 / 4e5;
        let bursts = lost.windows(2).filter(|w| !w[0] && w[1]).count() as f64;
        let length = lost.iter().filter(|l| **l).count() as f64 / bursts;
        assert!((share - 0.02).abs() < 0.003, "{share}");
        assert!((length - 8.0).abs() < 0.8, "{length}");
    }

    #[test]
    fn parameters_are_checked_by_name() {
        let bad = LossModel::GilbertElliott { p: 0.1, r: 1.5, loss_good: 0.0, loss_bad: 1.0 };
        assert_eq!(bad.bad_parameter(), Some(("r", 1.5)));
        assert!(LossModel::Bernoulli { probability: f64::NAN }.bad_parameter().is_some());
    }
}
