//! Random draws: an independent stream for each part of a world. Removing one part from a plan therefore does not change the
//! draws of the others.

use rand_chacha::ChaCha12Rng;
use rand_core::{RngCore, SeedableRng};

/// A stream of draws.
#[derive(Debug, Clone)]
pub struct RandomStream(ChaCha12Rng);

impl RandomStream {
    /// Stream `stream` of `seed`.
    #[must_use]
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut rng = ChaCha12Rng::seed_from_u64(seed);
        rng.set_stream(stream);
        Self(rng)
    }

    /// A number from 0 to `below` − 1; 0 if `below` is 0.
    pub fn below(&mut self, below: u64) -> u64 {
        ((u128::from(self.0.next_u64()) * u128::from(below)) >> 64) as u64
    }

    /// A number from `range.0` to `range.1`, inclusive.
    pub fn between(&mut self, range: (u64, u64)) -> u64 {
        range.0 + self.below(range.1.saturating_sub(range.0).saturating_add(1))
    }

    /// True with this probability, in percent.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One of the given values.
    pub fn of<T: Copy>(&mut self, some: &[T]) -> T {
        some[self.below(some.len() as u64) as usize]
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A random secret.
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

    /// The underlying generator.
    pub fn rng(&mut self) -> &mut ChaCha12Rng {
        &mut self.0
    }
}
