//! The report of a monitor: the collector's views and counters.

use anabranch_cc::collect::{CollectCounters, FlowView, PathView};
use anyhow::{Context, Result};
use serde::Serialize;

/// One report; in JSON, one line.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Name of the monitor.
    pub sink: String,
    /// Time of the report, Unix time in milliseconds.
    pub unix_ms: u64,
    /// Interval between reports, milliseconds.
    pub interval_ms: u64,
    /// Names of the interfaces that it listens on.
    pub interfaces: Vec<String>,
    /// Packets for which the kernel had no buffer.
    pub kernel_drops: u64,
    /// Counters of the collector.
    pub counters: CollectCounters,
    /// The paths, in the order in which they were first seen.
    pub paths: Vec<PathView>,
    /// The flows, in the order of addresses and ports.
    pub flows: Vec<FlowView>,
}

impl Report {
    /// The report as one line of JSON, with the line break.
    pub fn json(&self) -> Result<String> {
        let mut line = serde_json::to_string(self).context("a report as JSON")?;
        line.push('\n');
        Ok(line)
    }
}

/// The host name; it is the default name of a monitor.
pub fn host_name() -> String {
    let name = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    name.filter(|name| !name.is_empty()).unwrap_or_else(|| "anabranch".to_owned())
}
