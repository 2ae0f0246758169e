//! Generated channels: a Markov chain over CQI 1 to 15, one step per second, from a seed.
//!
//! ```text
//!                  stays with probability `stay`, otherwise moves from i to j ≠ i with weight
//!   ┌─┐  ┌─┐  ┌─┐          1                          1
//!   │6│⇄│7│⇄│8│⇄ …  ────────────────  ·  ─────────────────────
//!   └─┘  └─┘  └─┘    1 + ((j−i)/jump)²     1 + ((j−mean)/spread)⁴
//!                    short moves are likelier   draws towards the mean
//! ```
//!
//! The two presets match the pedestrian and the train trace of RLC Fig. 12 in mean CQI, mean MCS (11.0 and 14.5 with
//! OpenAirInterface's mapping, RLC §VI-B), and number and size of changes. They do not reproduce the traces themselves.

use super::trace::CqiTrace;
use super::{ChannelError, Quality};
use rand_chacha::ChaCha12Rng;
use rand_core::{RngCore, SeedableRng};

/// Parameters of the chain; see the module documentation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Markov {
    /// CQI towards which the chain is drawn.
    pub mean: f64,
    /// Width of the stationary distribution around the mean, in CQI steps.
    pub spread: f64,
    /// Typical size of a single move, in CQI steps.
    pub jump: f64,
    /// Probability of staying at the same CQI for another second.
    pub stay: f64,
}

/// Maximum length of a generated trace, seconds.
pub const MAX_LENGTH_S: u32 = 24 * 3600;

impl Markov {
    /// A pedestrian: mostly CQI 6 and 7, with small and rare changes.
    pub const PEDESTRIAN: Self = Self { mean: 6.9, spread: 1.6, jump: 0.8, stay: 0.62 };
    /// A train: CQI 5 to 13, frequent and abrupt changes.
    pub const TRAIN: Self = Self { mean: 8.6, spread: 3.0, jump: 1.4, stay: 0.48 };

    /// Generates `length_s` seconds (1 to a day).
    ///
    /// # Errors
    /// The length is out of range.
    pub fn generate(&self, length_s: u32, seed: u64) -> Result<CqiTrace, ChannelError> {
        if !(1..=MAX_LENGTH_S).contains(&length_s) {
            let value = length_s.to_string();
            return Err(ChannelError::Value { key: "length_s", value, remedy: "1 to 86400" });
        }
        let mut rng = ChaCha12Rng::seed_from_u64(seed);
        // A number in [0, 1) from 53 random bits.
        let mut draw = || (rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
        let mut cqi = choose(draw(), |j| self.pull(j));
        let steps = (0..u64::from(length_s)).map(|second| {
            if second > 0 && draw() >= self.stay {
                let from = cqi;
                cqi = choose(draw(), |j| if j == from { 0.0 } else { self.near(from, j) * self.pull(j) });
            }
            (second * 1_000_000_000, Quality::Cqi(cqi))
        });
        CqiTrace::from_steps("generated", steps.collect())
    }

    fn near(&self, from: u8, to: u8) -> f64 {
        let d = (f64::from(to) - f64::from(from)) / self.jump;
        1.0 / (1.0 + d * d)
    }

    fn pull(&self, to: u8) -> f64 {
        let d = (f64::from(to) - self.mean) / self.spread;
        1.0 / (1.0 + d * d * d * d)
    }
}

/// Draws one of CQI 1 to 15 by weight.
fn choose(draw: f64, weight: impl Fn(u8) -> f64) -> u8 {
    let total: f64 = (1..=15).map(&weight).sum();
    let mut left = draw * total;
    for cqi in 1..15 {
        left -= weight(cqi);
        if left < 0.0 {
            return cqi;
        }
    }
    15
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::amc::lte::CQI_TO_MCS;

    /// Mean CQI, mean MCS, changes per minute and mean size of a change over many seeds.
    fn shape(markov: Markov) -> [f64; 4] {
        let mut sums = [0.0; 4];
        let seeds = 200;
        for seed in 0..seeds {
            let trace = markov.generate(60, seed).unwrap();
            let cqi: Vec<u8> = trace
                .steps()
                .map(|(_, q)| match q {
                    Quality::Cqi(cqi) => cqi,
                    other => panic!("{other:?}"),
                })
                .collect();
            let mcs: f64 = cqi.iter().map(|c| f64::from(CQI_TO_MCS[usize::from(*c)])).sum();
            let changes: Vec<f64> = cqi
                .windows(2)
                .map(|w| (f64::from(w[1]) - f64::from(w[0])).abs())
                .filter(|d| *d > 0.0)
                .collect();
            sums[0] += cqi.iter().map(|c| f64::from(*c)).sum::<f64>() / 60.0;
            sums[1] += mcs / 60.0;
            sums[2] += changes.len() as f64;
            sums[3] += changes.iter().sum::<f64>() / changes.len().max(1) as f64;
        }
        sums.map(|s| s / seeds as f64)
    }

    #[test]
    fn the_presets_have_the_shape_of_the_papers_traces() {
        // The paper's traces: CQI 7.0 and 8.5, MCS 11.0 and 14.5, 21 and 31 changes, mean size 1.6 and 1.9.
        let [cqi, mcs, changes, size] = shape(Markov::PEDESTRIAN);
        assert!((cqi - 7.0).abs() < 0.4 && (mcs - 11.0).abs() < 1.0, "{cqi} {mcs}");
        assert!((changes - 21.0).abs() < 4.0 && (size - 1.6).abs() < 0.4, "{changes} {size}");
        let [cqi, mcs, changes, size] = shape(Markov::TRAIN);
        assert!((cqi - 8.5).abs() < 0.4 && (mcs - 14.5).abs() < 1.0, "{cqi} {mcs}");
        assert!((changes - 31.0).abs() < 4.0 && (size - 1.9).abs() < 0.5, "{changes} {size}");
    }

    #[test]
    fn the_same_seed_yields_the_same_trace() {
        let train = |seed| Markov::TRAIN.generate(60, seed).unwrap();
        assert_eq!(train(1), train(1));
        assert_ne!(train(1), train(2));
        assert!(Markov::TRAIN.generate(0, 1).is_err());
    }
}
