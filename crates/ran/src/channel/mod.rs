//! How good the radio channel of a UE is, and when: constant, recorded or generated.
//!
//! ```text
//!   constant   ────────────────────   an MCS or a CQI
//!   trace      ──┐ ┌──┐  ┌────────   "second,cqi" rows, or the CSV of the Irish LTE and 5G data sets
//!   mahimahi     └─┘  └──┘           opportunities to deliver 1500 bytes, as the MCS that gives their rate
//!   pedestrian, train                a Markov chain over CQI, seeded: ships with the product
//! ```
//!
//! RLC §V-C sets the MCS of every second from such a trace.

mod config;
mod csv;
mod mahimahi;
pub mod markov;
mod trace;

pub use config::ChannelConfig;
pub use trace::CqiTrace;

use super::amc::{Amc, AmcError};
use anabranch_element::time::{Duration, Instant, nanos};
use std::sync::Arc;

/// What the channel is like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quality {
    /// A channel quality indicator, 0 to 15.
    Cqi(u8),
    /// The MCS to be used.
    Mcs(u8),
    /// Nothing gets through.
    Outage,
}

impl Quality {
    /// The MCS to use on a carrier; `None` in an outage. Values a carrier does not have count as its last.
    #[must_use]
    #[inline]
    pub fn mcs(self, amc: &Amc) -> Option<u8> {
        match self {
            Self::Cqi(cqi) => amc.mcs_of_cqi(cqi.min(15)).ok(),
            Self::Mcs(mcs) => Some(mcs.min(amc.max_mcs())),
            Self::Outage => None,
        }
    }
}

/// Why a channel cannot be as written, where, and what would be right.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChannelError {
    /// One line of a trace cannot be used.
    #[error("{file}:{line}: {what}; {remedy}")]
    Line {
        /// Name of the trace, as the caller gave it.
        file: String,
        /// Line, from 1.
        line: usize,
        /// What was found.
        what: String,
        /// What would be valid.
        remedy: &'static str,
    },
    /// The trace as a whole cannot be used, or read.
    #[error("{file}: {what}; {remedy}")]
    Whole {
        /// Name of the trace, as the caller gave it.
        file: String,
        /// What was found.
        what: String,
        /// What would be valid.
        remedy: &'static str,
    },
    /// A value is out of its range.
    #[error("channel: {key} = {value}: must be {remedy}")]
    Value {
        /// The key as written.
        key: &'static str,
        /// Its value.
        value: String,
        /// What would be valid.
        remedy: &'static str,
    },
    /// An MCS or CQI that the carrier does not have.
    #[error("channel: {0}")]
    Amc(#[from] AmcError),
}

/// The channel of one UE.
#[derive(Debug, Clone)]
pub struct Channel {
    kind: Kind,
}

#[derive(Debug, Clone)]
enum Kind {
    Constant(Quality),
    Trace { trace: Arc<CqiTrace>, start: Instant, at: usize },
}

impl Channel {
    /// One quality for ever.
    #[must_use]
    pub fn constant(quality: Quality) -> Self {
        Self { kind: Kind::Constant(quality) }
    }

    /// A trace that starts at `start`, and repeats; before, its first value holds.
    #[must_use]
    pub fn trace(trace: Arc<CqiTrace>, start: Instant) -> Self {
        Self { kind: Kind::Trace { trace, start, at: 0 } }
    }

    /// The quality at `now`; cheap when called with times that do not go back.
    #[inline]
    pub fn quality(&mut self, now: Instant) -> Quality {
        match &mut self.kind {
            Kind::Constant(quality) => *quality,
            Kind::Trace { trace, start, at } => trace.at(nanos(now.saturating_since(*start)), at),
        }
    }

    /// Every quality it ever has.
    pub fn qualities(&self) -> impl Iterator<Item = Quality> + '_ {
        let (one, trace) = match &self.kind {
            Kind::Constant(quality) => (Some(*quality), None),
            Kind::Trace { trace, .. } => (None, Some(trace)),
        };
        one.into_iter().chain(trace.into_iter().flat_map(|trace| trace.steps().map(|(_, quality)| quality)))
    }

    /// The same channel with its trace starting later or earlier.
    #[must_use]
    pub fn starting_at(mut self, at: Duration) -> Self {
        if let Kind::Trace { start, .. } = &mut self.kind {
            *start = Instant::ZERO + at;
        }
        self
    }
}
