//! A vehicle and its ground station: MAVLink messages created and parsed by pymavlink (vehicle.py), over UDP or TCP.

use super::program;
use super::traffic::{Arrival, Schedule, Setup};
use crate::backend::Unable;
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The program of both ends.
const SCRIPT: &str = include_str!("vehicle.py");

/// The reports of both ends, and the command to run them.
#[derive(Debug)]
pub struct Vehicle {
    python: PathBuf,
    script: PathBuf,
    sent: PathBuf,
    received: PathBuf,
    tcp: bool,
}

/// The combined report of both ends.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Number of messages sent.
    pub sent: u64,
    /// Bytes of these messages.
    pub bytes: u64,
    /// Messages read by pymavlink with their times; over TCP the time at which the vehicle received the ACK of their last byte.
    pub arrivals: Vec<Arrival>,
    /// Number of received items that are not a message.
    pub bad: u64,
}

impl Vehicle {
    /// A vehicle with reports called `name` in `folder`; over TCP if `tcp`, else UDP.
    ///
    /// # Errors
    /// [`Unable`]: pymavlink is missing.
    pub fn new(name: &str, folder: &Path, tcp: bool) -> Result<Self> {
        let python =
            std::env::var_os("ANABRANCH_PYTHON").map_or_else(|| program::path_of("python3"), PathBuf::from);
        let has = Command::new(&python).args(["-c", "import pymavlink"]).output();
        if !has.is_ok_and(|output| output.status.success()) {
            bail!(Unable(format!(
                "{} has no pymavlink: python3 -m venv x && x/bin/pip install pymavlink, and ANABRANCH_PYTHON=x/bin/python",
                python.display()
            )));
        }
        let path = |what: &str| folder.join(format!("{name}.{what}"));
        let (script, sent, received) = (path("vehicle.py"), path("sent"), path("received"));
        let vehicle = Self { python, script, sent, received, tcp };
        std::fs::write(&vehicle.script, SCRIPT).with_context(|| vehicle.script.display().to_string())?;
        Ok(vehicle)
    }

    /// The vehicle, which sends messages at about `rate_bps` bit/s.
    ///
    /// # Errors
    /// The times are absolute.
    pub fn send(
        &self,
        from: SocketAddr,
        to: SocketAddr,
        rate_bps: u64,
        seed: u64,
        when: Schedule,
        setup: &Setup,
    ) -> Result<Command> {
        let mut task = self.task(from, when, &self.sent)?;
        task["to"] = address(to);
        task["rate_bps"] = rate_bps.into();
        task["seed"] = seed.into();
        task["mark"] = json!(setup.mark);
        task["interface"] = json!(setup.interface);
        task["dscp"] = json!(setup.dscp);
        Ok(self.command("send", &task))
    }

    /// The ground station.
    ///
    /// # Errors
    /// As [`Vehicle::send`].
    pub fn receive(&self, at: SocketAddr, when: Schedule) -> Result<Command> {
        Ok(self.command("receive", &self.task(at, when, &self.received)?))
    }

    fn task(&self, bind: SocketAddr, when: Schedule, report: &Path) -> Result<Value> {
        let Schedule::OnCommand { start, stop, until } = when else {
            bail!("a vehicle is told when to begin")
        };
        let ns = |d: std::time::Duration| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
        Ok(json!({
            "tcp": self.tcp,
            "bind": address(bind),
            "start_ns": ns(start),
            "stop_ns": ns(stop),
            "until_ns": ns(until),
            "report": report,
        }))
    }

    fn command(&self, role: &str, task: &Value) -> Command {
        let mut command = program::prompt(&self.python);
        // Do not write Python's caches to the folder of the run.
        command.arg("-B").arg(&self.script).arg(role).arg(task.to_string());
        command
    }

    /// Combines the reports.
    ///
    /// # Errors
    /// An end left no report.
    pub fn report(&self) -> Result<Report> {
        let read = |path: &Path| std::fs::read_to_string(path).with_context(|| path.display().to_string());
        parse(&read(&self.sent)?, &read(&self.received)?).context("the reports of vehicle.py")
    }
}

fn address(address: SocketAddr) -> Value {
    json!([address.ip(), address.port()])
}

fn parse(sent: &str, received: &str) -> Result<Report> {
    let numbers = |line: &str| -> Result<Vec<u64>> {
        line.split(' ').map(|n| n.parse().with_context(|| format!("\"{line}\""))).collect()
    };
    let pair = |line: &str| -> Result<(u64, u64)> {
        let [a, b] = numbers(line)?[..] else { bail!("\"{line}\"") };
        Ok((a, b))
    };
    // Time, bytes, and over TCP the time of the ACK.
    let sent: Vec<(u64, u64, Option<u64>)> = sent
        .lines()
        .map(|line| match numbers(line)?[..] {
            [at, bytes] => Ok((at, bytes, None)),
            [at, bytes, acked] => Ok((at, bytes, Some(acked))),
            _ => bail!("\"{line}\""),
        })
        .collect::<Result<_>>()?;
    let mut report =
        Report { sent: sent.len() as u64, bytes: sent.iter().map(|of| of.1).sum(), ..Report::default() };
    for line in received.lines() {
        if let Some(bad) = line.strip_prefix("bad ") {
            report.bad = bad.parse()?;
            continue;
        }
        let (number, read_ns) = pair(line)?;
        let at = usize::try_from(number).ok().and_then(|n| sent.get(n));
        let (sent_ns, _, acked) = *at.with_context(|| format!("message {number} was never sent"))?;
        let arrived_ns = acked.unwrap_or(read_ns);
        // The message was read, but its ACK had not arrived at the end of the run: it counts as lost.
        if arrived_ns > 0 {
            report.arrivals.push(Arrival { number, sent_ns, arrived_ns });
        }
    }
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_found_by_their_numbers() {
        let report = parse("100 40\n200 21\n300 39\n", "0 150\n2 320\nbad 1\n").unwrap();
        let arrival = |number, sent_ns, arrived_ns| Arrival { number, sent_ns, arrived_ns };
        let arrivals = vec![arrival(0, 100, 150), arrival(2, 300, 320)];
        assert_eq!(report, Report { sent: 3, bytes: 100, arrivals, bad: 1 });
        assert!(parse("100 40\n", "1 150\n").unwrap_err().to_string().contains("never sent"));
        assert!(parse("100\n", "").is_err());
        assert!(parse("100 40 1 2\n", "").is_err());
    }

    #[test]
    fn over_tcp_a_message_has_arrived_when_its_ack_comes() {
        let report = parse("100 40 190\n200 21 260\n300 39 0\n", "0 150\n1 220\n2 320\nbad 0\n").unwrap();
        let arrival = |number, sent_ns, arrived_ns| Arrival { number, sent_ns, arrived_ns };
        assert_eq!(report.arrivals, [arrival(0, 100, 190), arrival(1, 200, 260)]);
        assert_eq!((report.sent, report.bytes), (3, 100));
    }
}
