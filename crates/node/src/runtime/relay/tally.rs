//! Counters indexed by an enumeration with named values, such as reasons.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// An enumeration declared with [`named!`].
pub trait Named: Copy + 'static {
    /// All values, in order.
    const ALL: &'static [Self];

    /// Index in [`Named::ALL`].
    fn index(self) -> usize;

    /// Name in metrics and documentation.
    fn name(self) -> &'static str;
}

/// Declares an enumeration whose values have names.
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

/// A counter per value.
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
    /// Increments a counter; returns its new value.
    pub fn count(&self, value: E) -> u64 {
        self.counts[value.index()].fetch_add(1, Relaxed) + 1
    }

    /// Names and values of all counters.
    pub fn rows<C: FromIterator<(String, u64)>>(&self) -> C {
        E::ALL.iter().zip(&self.counts).map(|(e, n)| (e.name().to_owned(), n.load(Relaxed))).collect()
    }
}
