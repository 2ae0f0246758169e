//! Configuration of SDAP.
//!
//! ```toml
//! scheduler = "priority"       # priority | drr | edf
//! poll_us = 200                # RLC §V-A; 203 lets the polls drift through the TTI
//! poll_phase_us = 100
//! [[drbs]]
//! id = 1
//! [[flows]]
//! qfi = 1                      # voice
//! drb = 1
//! priority = 20
//! [[flows]]
//! qfi = 9                      # everything else
//! drb = 1
//! priority = 90
//! unmapped = true
//! queue = "codel"              # vanilla, codel, fq_codel, l4s
//! limit_bytes = 1_000_000
//! ```

use super::{DrbId, QFIS};
use crate::amc::Pulls;
use crate::queue::{AnyBuffer, BearerParams, BufferLimit, QueueConfig, QueueError};
use anabranch_element::time::Duration;
use serde::{Deserialize, Serialize};

/// Maximum number of bearers of a UE (TS 38.331: maxDRB).
pub const MAX_DRBS: usize = 29;

/// Scheduler of the flows of a bearer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SchedulerKind {
    /// The flow with the lowest `priority` number that has a packet.
    #[default]
    Priority,
    /// Deficit round robin with `quantum_bytes`.
    Drr,
    /// Earliest deadline first: arrival plus `delay_budget_us`.
    Edf,
}

/// Configuration of one SDAP entity.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SdapConfig {
    /// Scheduler of the flows of a bearer.
    pub scheduler: SchedulerKind,
    /// Time between two polls, microseconds.
    pub poll_us: u32,
    /// Time of the first poll, microseconds after the start; the MAC ticks at multiples of a TTI.
    pub poll_phase_us: u32,
    /// The bearers.
    pub drbs: Vec<DrbConfig>,
    /// The QoS flows.
    pub flows: Vec<FlowConfig>,
}

/// A data radio bearer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DrbConfig {
    /// Identity of the bearer, 1 to 32.
    pub id: DrbId,
    /// Whether packets carry the SDAP header of 1 byte.
    #[serde(default)]
    pub header: bool,
}

/// A QoS flow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlowConfig {
    /// QFI, 0 to 63.
    pub qfi: u8,
    /// The bearer to which the flow is mapped.
    pub drb: DrbId,
    /// Priority level, 1 to 127; a lower number goes first (TS 23.501 §5.7.3.3).
    #[serde(default = "default_priority")]
    pub priority: u8,
    /// Bytes per round of DRR, at least 1.
    #[serde(default = "default_quantum")]
    pub quantum_bytes: u32,
    /// Delay budget of a packet, microseconds; the deadline of EDF.
    #[serde(default = "default_delay_budget")]
    pub delay_budget_us: u32,
    /// Whether this flow takes packets with a QFI that no flow has.
    #[serde(default)]
    pub unmapped: bool,
    /// Queue of the flow: a discipline of the RLC buffer, without a limiter.
    #[serde(default = "default_queue")]
    pub queue: QueueConfig,
    /// Maximum number of waiting bytes.
    #[serde(default = "default_limit_bytes")]
    pub limit_bytes: u64,
    /// Maximum number of waiting packets.
    #[serde(default = "default_limit_sdus")]
    pub limit_sdus: usize,
}

const fn default_priority() -> u8 {
    90
}
const fn default_quantum() -> u32 {
    1500
}
const fn default_delay_budget() -> u32 {
    300_000
}
fn default_queue() -> QueueConfig {
    crate::queue::Algorithm::Vanilla.into()
}
fn default_limit_bytes() -> u64 {
    BufferLimit::default().bytes
}
fn default_limit_sdus() -> usize {
    BufferLimit::default().sdus
}

impl Default for SdapConfig {
    /// One bearer with one flow that takes all packets.
    fn default() -> Self {
        Self {
            scheduler: SchedulerKind::Priority,
            poll_us: 200,
            poll_phase_us: 0,
            drbs: vec![DrbConfig { id: 1, header: false }],
            flows: vec![FlowConfig { unmapped: true, ..FlowConfig::new(9, 1) }],
        }
    }
}

impl FlowConfig {
    /// A flow with default values.
    #[must_use]
    pub fn new(qfi: u8, drb: DrbId) -> Self {
        Self {
            qfi,
            drb,
            priority: default_priority(),
            quantum_bytes: default_quantum(),
            delay_budget_us: default_delay_budget(),
            unmapped: false,
            queue: default_queue(),
            limit_bytes: default_limit_bytes(),
            limit_sdus: default_limit_sdus(),
        }
    }

    /// Builds the empty queue.
    pub(super) fn build_queue(&self) -> Result<AnyBuffer, SdapError> {
        let limit = BufferLimit { bytes: self.limit_bytes, sdus: self.limit_sdus };
        // Packets in SDAP do not wait for the MAC's clock.
        let params = BearerParams {
            pulls: Pulls::every(Duration::ZERO),
            limit,
            seed: self.qfi.into(),
            ..Default::default()
        };
        let (limiter, buffer) = self.queue.build(params)?;
        if limiter.is_open() {
            Ok(buffer)
        } else {
            Err(self.wrong("queue", self.queue.algorithm(), QueueConfig::UNLIMITED))
        }
    }

    fn wrong(&self, key: &'static str, value: impl ToString, remedy: &'static str) -> SdapError {
        SdapError::Value { what: "flow", id: self.qfi, key, value: value.to_string(), remedy }
    }
}

/// Why the configuration of an SDAP entity is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SdapError {
    /// A value is out of range.
    #[error("sdap {what} {id}: {key} = {value}: must be {remedy}")]
    Value {
        /// "flow" or "drb".
        what: &'static str,
        /// Its QFI or bearer identity.
        id: u8,
        /// The configuration key.
        key: &'static str,
        /// The configured value.
        value: String,
        /// The valid values.
        remedy: &'static str,
    },
    /// A wrong number of items.
    #[error("sdap: {got} {what}: must be {remedy}")]
    Count {
        /// The kind of item.
        what: &'static str,
        /// The number found.
        got: usize,
        /// The valid numbers.
        remedy: &'static str,
    },
    /// A flow's queue.
    #[error(transparent)]
    Queue(#[from] QueueError),
}

impl SdapConfig {
    /// Checks the configuration.
    ///
    /// # Errors
    /// The first fault, with the valid values.
    pub fn check(&self) -> Result<(), SdapError> {
        let count = |what, got, ok: bool, remedy| {
            if ok { Ok(()) } else { Err(SdapError::Count { what, got, remedy }) }
        };
        count("poll_us", self.poll_us as usize, self.poll_us > 0, "at least 1")?;
        count("drbs", self.drbs.len(), (1..=MAX_DRBS).contains(&self.drbs.len()), "1 to 29")?;
        count("flows", self.flows.len(), (1..=QFIS).contains(&self.flows.len()), "1 to 64")?;
        let open = self.flows.iter().filter(|f| f.unmapped).count();
        count("flows with unmapped = true", open, open <= 1, "at most one")?;
        for (i, drb) in self.drbs.iter().enumerate() {
            let twice = self.drbs[..i].iter().any(|d| d.id == drb.id);
            if twice || !(1..=32).contains(&drb.id) {
                let remedy = if twice { "unique" } else { "1 to 32" };
                return Err(SdapError::Value {
                    what: "drb",
                    id: drb.id,
                    key: "id",
                    value: drb.id.to_string(),
                    remedy,
                });
            }
        }
        for (i, flow) in self.flows.iter().enumerate() {
            if usize::from(flow.qfi) >= QFIS {
                return Err(flow.wrong("qfi", flow.qfi, "0 to 63"));
            }
            if self.flows[..i].iter().any(|f| f.qfi == flow.qfi) {
                return Err(flow.wrong("qfi", flow.qfi, "unique"));
            }
            if !self.drbs.iter().any(|d| d.id == flow.drb) {
                return Err(flow.wrong("drb", flow.drb, "the id of one of the drbs"));
            }
            if !(1..=127).contains(&flow.priority) {
                return Err(flow.wrong("priority", flow.priority, "1 to 127"));
            }
            if flow.quantum_bytes == 0 {
                return Err(flow.wrong("quantum_bytes", 0, "at least 1"));
            }
            flow.build_queue()?;
        }
        Ok(())
    }
}
