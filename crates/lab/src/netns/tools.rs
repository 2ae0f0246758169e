//! Flows carried by iperf3 and irtt: the listening end, the command of the client, and their reports.
//!
//! The sender is the client, so that its congestion control can be set: the server for downlink traffic.

use super::group::Group;
use super::program::{self, Program};
use super::space::Space;
use super::stop::Stop;
use super::traffic::Arrival;
use crate::scenario::file::Direction;
use crate::scenario::model::{Flow, Traffic};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// Time for irtt to wait for the last replies, ms.
const WAIT_MS: u64 = 700;

/// A flow of iperf3 or irtt, whose listening end runs.
#[derive(Debug)]
pub struct Tool {
    listener: Program,
    command: Vec<String>,
    report: PathBuf,
}

/// Whether the server's end is the client of the tool.
#[must_use]
pub fn server_asks(traffic: &Traffic) -> bool {
    matches!(
        traffic,
        Traffic::Cbr { direction: Direction::Down, .. } | Traffic::BulkTcp { direction: Direction::Down, .. }
    )
}

impl Tool {
    /// iperf3: `listen` in `space` is the receiver, `from` the address of the sender.
    ///
    /// # Errors
    /// It is missing, or does not start.
    pub fn iperf3(
        space: &Space,
        name: &str,
        flow: &Flow,
        [from, listen]: [SocketAddr; 2],
        group: Option<&Group>,
        folder: &Path,
        stop: &Stop,
    ) -> Result<Self> {
        program::require(&[("iperf3", "iperf3")])?;
        let Traffic::BulkTcp { bytes, limit_bps, congestion_control, .. } = &flow.traffic else {
            bail!("iperf3 carries TCP");
        };
        let mut server = program::prompt(program::path_of("iperf3"));
        server.args(["-s", "-1", "-p"]).arg(listen.port().to_string());
        server.arg("-B").arg(listen.ip().to_string());
        if let Some(group) = group {
            server = group.within(&server);
        }
        let listener = Program::start_listening(
            space,
            &format!("{name}-listen"),
            &mut server,
            (listen.port(), true),
            folder,
            stop,
        )?;
        let report = folder.join(format!("{name}.json"));
        let seconds = (flow.stop - flow.start).as_secs_f64().ceil();
        let mut command = vec![program::path_of("iperf3").display().to_string()];
        let mut add = |flag: &str, value: String| command.extend([flag.to_owned(), value]);
        add("-c", listen.ip().to_string());
        add("-p", listen.port().to_string());
        add("-B", from.ip().to_string());
        add("-C", congestion_control.to_string());
        match bytes {
            Some(bytes) => add("-n", bytes.to_string()),
            None => add("-t", seconds.to_string()),
        }
        if let Some(bps) = limit_bps {
            add("-b", bps.to_string());
        }
        add("--logfile", report.display().to_string());
        command.push("-J".to_owned());
        Ok(Self { listener, command, report })
    }

    /// irtt: `listen` in `space` replies, `from` is the address of the client.
    ///
    /// # Errors
    /// It is missing, or does not start.
    pub fn irtt(
        space: &Space,
        name: &str,
        flow: &Flow,
        [from, listen]: [SocketAddr; 2],
        folder: &Path,
        stop: &Stop,
    ) -> Result<Self> {
        program::require(&[("irtt", "irtt")])?;
        let (interval_ns, bytes) = match flow.traffic {
            Traffic::Cbr { rate_bps, payload_bytes, .. } => {
                (u64::from(payload_bytes) * 8_000_000_000 / rate_bps.max(1), payload_bytes)
            }
            Traffic::Ping { interval, payload_bytes } => {
                (u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX), payload_bytes)
            }
            _ => bail!("irtt carries packets at an interval"),
        };
        let mut server = program::prompt(program::path_of("irtt"));
        // No limits of the server: the network is private.
        server.args(["server", "-i", "0", "-d", "0", "-l", "0", "-b"]).arg(listen.to_string());
        let listener = Program::start_listening(
            space,
            &format!("{name}-listen"),
            &mut server,
            (listen.port(), false),
            folder,
            stop,
        )?;
        let report = folder.join(format!("{name}.json"));
        let command = [
            program::path_of("irtt").display().to_string(),
            "client".into(),
            "-Q".into(),
            "-i".into(),
            format!("{}ns", interval_ns.max(1)),
            "-l".into(),
            bytes.to_string(),
            "-d".into(),
            format!("{}ns", (flow.stop - flow.start).as_nanos()),
            format!("--wait={WAIT_MS}ms"),
            format!("--local={}", SocketAddr::new(from.ip(), 0)),
            "-o".into(),
            report.display().to_string(),
            listen.to_string(),
        ];
        Ok(Self { listener, command: command.into(), report })
    }

    /// Command of the client.
    #[must_use]
    pub fn command(&self) -> Vec<String> {
        self.command.clone()
    }

    /// Checks the listening end.
    ///
    /// # Errors
    /// It failed; with the end of its log.
    pub fn check(&mut self) -> Result<()> {
        match self.listener.ended()? {
            Some(status) if !status.success() => {
                bail!("{} failed ({status}): {}", self.listener.name(), self.listener.log_tail())
            }
            _ => Ok(()),
        }
    }

    /// Bytes received by iperf3.
    ///
    /// # Errors
    /// There is no report.
    pub fn received_bytes(&self) -> Result<u64> {
        let report = self.report()?;
        if let Some(error) = report["error"].as_str() {
            bail!("iperf3: {error}");
        }
        report["end"]["sum_received"]["bytes"].as_u64().context("iperf3's report")
    }

    /// Packets that irtt sent, and those that were answered: with the time of arrival at the far end or, for a ping, of the reply.
    ///
    /// # Errors
    /// There is no report.
    pub fn packets(&self, ping: bool) -> Result<(u64, Vec<Arrival>)> {
        let report = self.report()?;
        let trips = report["round_trips"].as_array().context("irtt's report")?;
        Ok((trips.len() as u64, trips.iter().filter_map(|trip| arrival(trip, ping)).collect()))
    }

    fn report(&self) -> Result<Value> {
        let place = || self.report.display().to_string();
        let text = std::fs::read_to_string(&self.report).with_context(place)?;
        serde_json::from_str(&text).with_context(place)
    }
}

fn arrival(trip: &Value, ping: bool) -> Option<Arrival> {
    let (end, what) = if ping { ("client", "receive") } else { ("server", "receive") };
    let wall = |end: &str, what: &str| trip["timestamps"][end][what]["wall"].as_u64();
    let answered = trip["lost"] == "false";
    let arrived_ns = wall(end, what).filter(|_| answered)?;
    Some(Arrival { number: trip["seqno"].as_u64()?, sent_ns: wall("client", "send")?, arrived_ns })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn irtt_reports_are_parsed() {
        let trip = |lost: &str| -> Value {
            let text = format!(
                r#"{{"seqno":3,"lost":"{lost}","timestamps":{{"client":{{"receive":{{"wall":900}},"send":{{"wall":100}}}},
                "server":{{"receive":{{"wall":400}},"send":{{"wall":500}}}}}}}}"#
            );
            serde_json::from_str(&text).unwrap()
        };
        assert_eq!(arrival(&trip("false"), false).unwrap().arrived_ns, 400);
        let ping = arrival(&trip("false"), true).unwrap();
        assert_eq!((ping.number, ping.sent_ns, ping.arrived_ns), (3, 100, 900));
        assert!(arrival(&trip("true"), false).is_none());
        assert!(arrival(&Value::Null, false).is_none());
    }
}
