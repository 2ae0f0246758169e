//! Random draws: one independent stream for each part of a world, so that leaving one part out of a plan does not move
//! the draws of the others.

use rand_chacha::ChaCha12Rng;
use rand_core::{RngCore, SeedableRng};

/// A stream of draws.
#[derive(Debug, Clone)]
pub struct Draw(ChaCha12Rng);

impl Draw {
    /// Stream `stream` of `seed`.
    #[must_use]
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut rng = ChaCha12Rng::seed_from_u64(seed);
        rng.set_stream(stream);
        Self(rng)
    }

    /// From 0 to `below` − 1; 0 if there is nothing below.
    pub fn below(&mut self, below: u64) -> u64 {
        ((u128::from(self.0.next_u64()) * u128::from(below)) >> 64) as u64
    }

    /// From `range.0` to `range.1`, both included.
    pub fn between(&mut self, range: (u64, u64)) -> u64 {
        range.0 + self.below(range.1.saturating_sub(range.0).saturating_add(1))
    }

    /// Whether something of this probability, in percent, happens.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One of some.
    pub fn of<T: Copy>(&mut self, some: &[T]) -> T {
        some[self.below(some.len() as u64) as usize]
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A secret.
    pub fn secret(&mut self) -> [u8; 32] {
        let mut secret = [0; 32];
        self.0.fill_bytes(&mut secret);
        secret
    }

    /// Random bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.0.fill_bytes(&mut bytes);
        bytes
    }

    /// The generator, for what asks for one.
    pub fn rng(&mut self) -> &mut ChaCha12Rng {
        &mut self.0
    }
}
