//! The radio channel quality of a UE over time: constant, recorded or generated.
//!
//! ```text
//!   constant   ────────────────────   an MCS or a CQI
//!   trace      ──┐ ┌──┐  ┌────────   "second,cqi" rows, or the CSV of the Irish LTE and 5G data sets
//!   mahimahi     └─┘  └──┘           opportunities to deliver 1500 bytes, as the MCS with that rate
//!   pedestrian, train                a seeded Markov chain over CQI; included in the crate
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

/// Quality of the channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quality {
    /// A channel quality indicator, 0 to 15.
    Cqi(u8),
    /// The MCS to use.
    Mcs(u8),
    /// No transmission succeeds.
    Outage,
}

impl Quality {
    /// The MCS to use on a carrier; `None` in an outage. Values beyond the carrier's table are treated as its highest.
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

/// Why a channel configuration or trace is invalid, with the position and the valid values.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChannelError {
    /// One line of a trace cannot be used.
    #[error("{file}:{line}: {what}; {remedy}")]
    Line {
        /// Name of the trace, as the caller gave it.
        file: String,
        /// Line number, from 1.
        line: usize,
        /// What was found.
        what: String,
        /// What would be valid.
        remedy: &'static str,
    },
    /// The trace as a whole cannot be used or read.
    #[error("{file}: {what}; {remedy}")]
    Whole {
        /// Name of the trace, as the caller gave it.
        file: String,
        /// What was found.
        what: String,
        /// What would be valid.
        remedy: &'static str,
    },
    /// A value is out of range.
    #[error("channel: {key} = {value}: must be {remedy}")]
    Value {
        /// The configuration key.
        key: &'static str,
        /// The configured value.
        value: String,
        /// The valid values.
        remedy: &'static str,
    },
    /// An MCS or CQI that is not in the carrier's table.
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
    /// A channel of constant quality.
    #[must_use]
    pub fn constant(quality: Quality) -> Self {
        Self { kind: Kind::Constant(quality) }
    }

    /// A repeating trace that begins at `start`; its first value applies before that.
    #[must_use]
    pub fn trace(trace: Arc<CqiTrace>, start: Instant) -> Self {
        Self { kind: Kind::Trace { trace, start, at: 0 } }
    }

    /// The quality at `now`; cheap if `now` does not decrease between calls.
    #[inline]
    pub fn quality(&mut self, now: Instant) -> Quality {
        match &mut self.kind {
            Kind::Constant(quality) => *quality,
            Kind::Trace { trace, start, at } => trace.at(nanos(now.saturating_since(*start)), at),
        }
    }

    /// Every quality that occurs.
    pub fn qualities(&self) -> impl Iterator<Item = Quality> + '_ {
        let (one, trace) = match &self.kind {
            Kind::Constant(quality) => (Some(*quality), None),
            Kind::Trace { trace, .. } => (None, Some(trace)),
        };
        one.into_iter().chain(trace.into_iter().flat_map(|trace| trace.steps().map(|(_, quality)| quality)))
    }

    /// The same channel with the start of its trace moved to `at`.
    #[must_use]
    pub fn starting_at(mut self, at: Duration) -> Self {
        if let Kind::Trace { start, .. } = &mut self.kind {
            *start = Instant::ZERO + at;
        }
        self
    }
}
