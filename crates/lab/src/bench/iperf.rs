//! TCP goodput between the ends of a [`Pair`], measured by iperf3, with one core each for client and server.

use super::{Bench, Core, Pair, pinned};
use crate::netns::program::Program;
use crate::netns::traffic;
use anyhow::{Context, Result};
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

/// Port of the server.
pub const PORT: u16 = 5201;

/// One run; its first second is excluded.
pub struct Iperf<'a> {
    /// Address of the server's end.
    pub server: &'a str,
    /// Congestion control of both ends.
    pub congestion: &'a str,
    /// Further options of the client.
    pub client: &'a [&'a str],
}

impl Iperf<'_> {
    /// Received Mbit/s.
    ///
    /// # Errors
    /// iperf3 does not start or fails; with the output of client and server.
    pub fn goodput(&self, bench: &Bench, pair: &Pair, folder: &Path) -> Result<f64> {
        let mut server = pinned(Core::Server, "iperf3");
        server.args(["--server", "--one-off", "--bind", self.server]);
        let mut server = Program::start(&pair.server, "iperf3-server", &mut server, folder, None)?;
        let listening = || pair.server.enter(|| Ok(traffic::port_in_use(PORT, true))).unwrap_or(false);
        server.wait_ready(Duration::from_secs(5), &bench.sandbox.stop, listening)?;
        let mut client = pinned(Core::Client, "iperf3");
        client.args(["--client", self.server, "--json", "--congestion", self.congestion, "--omit", "1"]);
        client.args(["--time", &bench.seconds.as_secs().to_string()]).args(self.client);
        let output =
            pair.client.output(&mut client).with_context(|| format!("iperf3: {}", server.log_tail()))?;
        let report: Value = serde_json::from_str(&output).context("iperf3's report")?;
        let bps =
            report["end"]["sum_received"]["bits_per_second"].as_f64().context("iperf3 reports no goodput")?;
        Ok(bps * 1e-6)
    }
}
