//! What a monitor says at a time: its collector's views, and what it counted.

use anabranch_cc::collect::{CollectCounters, FlowView, PathView};
use anyhow::{Context, Result};
use serde::Serialize;

/// One report. In JSON, one line.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// What the monitor is called.
    pub sink: String,
    /// When, milliseconds since 1970.
    pub unix_ms: u64,
    /// From one report to the next, milliseconds.
    pub interval_ms: u64,
    /// What it listens to.
    pub interfaces: Vec<String>,
    /// Packets the kernel had no buffer for.
    pub kernel_drops: u64,
    /// What the collector counted.
    pub counters: CollectCounters,
    /// The paths, in the order of first sight.
    pub paths: Vec<PathView>,
    /// The flows, by addresses and ports.
    pub flows: Vec<FlowView>,
}

impl Report {
    /// One line.
    pub fn json(&self) -> Result<String> {
        let mut line = serde_json::to_string(self).context("a report as JSON")?;
        line.push('\n');
        Ok(line)
    }
}

/// The host's name, for want of another.
pub fn host_name() -> String {
    let name = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    name.filter(|name| !name.is_empty()).unwrap_or_else(|| "anabranch".to_owned())
}
