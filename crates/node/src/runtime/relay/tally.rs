//! Counters by an enumeration whose values have names, such as reasons.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// An enumeration made by [`named!`].
pub trait Named: Copy + 'static {
    /// Every value, in order.
    const ALL: &'static [Self];

    /// Its place in [`Named::ALL`].
    fn index(self) -> usize;

    /// As metrics and pages name it.
    fn name(self) -> &'static str;
}

/// An enumeration, each value with its name.
macro_rules! named {
    ($(#[$meta:meta])* pub enum $Type:ident { $($(#[$doc:meta])* $Value:ident = $text:literal,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $Type { $($(#[$doc])* $Value,)* }

        impl $crate::runtime::relay::Named for $Type {
            const ALL: &'static [Self] = &[$(Self::$Value,)*];

            fn index(self) -> usize {
                self as usize
            }

            fn name(self) -> &'static str {
                match self { $(Self::$Value => $text,)* }
            }
        }
    };
}
pub(crate) use named;

/// A counter for each value.
#[derive(Debug)]
pub struct Tally<E> {
    counts: Box<[AtomicU64]>,
    of: PhantomData<E>,
}

impl<E: Named> Default for Tally<E> {
    fn default() -> Self {
        Self { counts: E::ALL.iter().map(|_| AtomicU64::new(0)).collect(), of: PhantomData }
    }
}

impl<E: Named> Tally<E> {
    /// Counts one more; how many there are now.
    pub fn count(&self, value: E) -> u64 {
        self.counts[value.index()].fetch_add(1, Relaxed) + 1
    }

    /// Names and counts, all of them.
    pub fn rows<C: FromIterator<(String, u64)>>(&self) -> C {
        E::ALL.iter().zip(&self.counts).map(|(e, n)| (e.name().to_owned(), n.load(Relaxed))).collect()
    }
}
