//! The programs that carry a flow: the sources and sinks of this crate, or third-party programs.
//!
//! ```text
//!   own       anabranch-lab traffic ────────────▶ anabranch-lab traffic
//!   quinn     the same, over QUIC
//!   curl      curl ◀──────────────────────────── nginx: a file
//!   iperf3    iperf3 ───────────────────────────▶ iperf3 -s
//!   irtt      irtt client ◀─────────────────────▶ irtt server
//!   mavlink   vehicle.py (pymavlink) ───────────▶ vehicle.py
//!   ffmpeg    ffmpeg ───────────────────────────▶ nginx with its RTMP module: a recording
//! ```

use super::super::group::Group;
use super::super::program;
use super::super::slices::Choice;
use super::super::stop::Stop;
use super::super::tools::{self, Tool};
use super::super::topology::Network;
use super::super::traffic::{
    Bursts, Exchange, Quic, Schedule, Setup, Stream, Task, UdpEcho, UdpReceive, UdpSend, Wait,
};
use super::super::vehicle::Vehicle;
use super::super::video::Video;
use super::super::web::Web;
use super::ends::Ends;
use crate::scenario::file::{self, Direction};
use crate::scenario::model::{Flow, Traffic};
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The carrier of a flow; see the module documentation. Listening programs run already, or will run before the first connection.
#[derive(Debug)]
pub(super) enum Carrier {
    /// Sources and sinks of this program, with the files of their reports.
    Own {
        received: PathBuf,
        sent: PathBuf,
    },
    Curl(Web),
    Tool(Tool),
    Vehicle(Vehicle),
    Video(Video),
}

/// A flow that is about to start.
#[derive(Clone, Copy)]
pub(super) struct Start<'a> {
    pub name: &'a str,
    pub flow: &'a Flow,
    pub ends: Ends<'a>,
    pub choice: &'a Choice,
    pub network: &'a Network,
    pub group: Option<&'a Group>,
    pub when: Schedule,
    /// Time until which the last packets are awaited.
    pub until: Duration,
    pub seed: u64,
    pub folder: &'a Path,
    pub stop: &'a Stop,
}

/// A process to be started: its end of the flow, namespace, and command.
pub(super) type Process<'a> = (&'static str, &'a str, Command);

impl Carrier {
    /// The carrier of a flow, and its processes that are told when to begin, the listening end first.
    ///
    /// # Errors
    /// A program is missing, or does not start.
    pub fn start<'a>(of: &Start<'a>) -> Result<(Self, Vec<Process<'a>>)> {
        let name = format!("flow-{}", of.name);
        let (at_ue, at_server) =
            (of.network.space(of.ends.ue_space)?, of.network.space(of.ends.server_space)?);
        Ok(match (of.flow.program, &of.flow.traffic) {
            (file::Program::Curl, Traffic::BulkTcp { bytes: Some(bytes), .. }) => {
                let nginx = format!("{name}-nginx");
                let web = Web::start(at_server, &nginx, of.ends.server, *bytes, of.seed, of.folder, of.stop)?;
                let command = web.curl(of.ends.ue.ip(), (of.until - of.flow.start).as_secs_f64());
                let processes = vec![("ue", of.ends.ue_space, later(of, command)?)];
                (Self::Curl(web), processes)
            }
            (file::Program::Ffmpeg, Traffic::BulkTcp { limit_bps: Some(bps), .. }) => {
                let seconds = of.flow.stop - of.flow.start;
                let video =
                    Video::start(at_server, &name, of.ends.server, *bps, seconds, of.folder, of.stop)?;
                of.choice.bind_program(at_ue, of.ends.server, "tcp")?;
                let processes = vec![("ue", of.ends.ue_space, later(of, video.command())?)];
                (Self::Video(video), processes)
            }
            (
                program @ (file::Program::Mavlink | file::Program::MavlinkTcp),
                Traffic::Cbr { rate_bps, .. },
            ) => {
                let vehicle = Vehicle::new(&name, of.folder, program == file::Program::MavlinkTcp)?;
                let (from, to) = (of.ends.ue, of.ends.server);
                let send = vehicle.send(from, to, *rate_bps, of.seed, of.when, &of.choice.setup)?;
                let receive = vehicle.receive(to, of.when)?;
                let processes =
                    vec![("server", of.ends.server_space, receive), ("ue", of.ends.ue_space, send)];
                (Self::Vehicle(vehicle), processes)
            }
            (file::Program::Iperf3 | file::Program::Irtt, traffic) => {
                let server_asks = tools::server_asks(traffic);
                let (listens, addresses) = if server_asks {
                    (at_ue, [of.ends.server, of.ends.ue])
                } else {
                    (at_server, [of.ends.ue, of.ends.server])
                };
                let tool = if of.flow.program == file::Program::Iperf3 {
                    Tool::iperf3(listens, &name, of.flow, addresses, of.group, of.folder, of.stop)?
                } else {
                    Tool::irtt(listens, &name, of.flow, addresses, of.folder, of.stop)?
                };
                let (end, space) =
                    if server_asks { ("server", of.ends.server_space) } else { ("ue", of.ends.ue_space) };
                let processes = vec![(end, space, later(of, tool.command())?)];
                (Self::Tool(tool), processes)
            }
            (file::Program::Quinn, traffic) => {
                let path = |what: &str| of.folder.join(format!("{name}.{what}"));
                let (certificate, key) = (path("certificate"), path("key"));
                super::super::traffic::quic::identity(&certificate, &key)?;
                let control = traffic.congestion_control().unwrap_or_default();
                let quic = |stream, key| Quic {
                    stream,
                    congestion_control: control.name().to_owned(),
                    certificate: certificate.clone(),
                    key,
                };
                let (received, sent) = (path("received"), path("sent"));
                let [server, ue] = match tasks(of, &received, &sent) {
                    [Task::StreamListen(server), Task::StreamConnect(ue)] => {
                        [Task::QuicListen(quic(server, Some(key))), Task::QuicConnect(quic(ue, None))]
                    }
                    other => other,
                };
                (Self::Own { received, sent }, both(of, &server, &ue)?)
            }
            // Other combinations were rejected when the scenario was read.
            _ => {
                let path = |what: &str| of.folder.join(format!("{name}.{what}"));
                let (received, sent) = (path("received"), path("sent"));
                let [server, ue] = tasks(of, &received, &sent);
                (Self::Own { received, sent }, both(of, &server, &ue)?)
            }
        })
    }

    /// Checks that the listening programs are running.
    ///
    /// # Errors
    /// A program has ended; with the end of its log.
    pub fn check(&mut self) -> Result<()> {
        match self {
            Self::Curl(web) => web.check(),
            Self::Tool(tool) => tool.check(),
            Self::Video(video) => video.check(),
            Self::Own { .. } | Self::Vehicle(_) => Ok(()),
        }
    }

    /// Whether received data is read from the kernel because the receiving program does not report times.
    pub const fn is_watched_at_receiver(&self) -> bool {
        !matches!(self, Self::Own { .. })
    }
}

/// A process that executes `command` when the flow begins.
fn later(of: &Start<'_>, command: Vec<String>) -> Result<Command> {
    traffic(&Task::Command(Wait { when: of.when, command }))
}

/// The processes if both ends are this program.
fn both<'a>(of: &Start<'a>, server: &Task, ue: &Task) -> Result<Vec<Process<'a>>> {
    Ok(vec![("server", of.ends.server_space, traffic(server)?), ("ue", of.ends.ue_space, traffic(ue)?)])
}

/// A command that runs this program with a task.
fn traffic(task: &Task) -> Result<Command> {
    let own = std::env::current_exe().context("the path of this program")?;
    let mut command = program::prompt(own);
    command.arg("traffic").arg(serde_json::to_string(task).context("task")?);
    Ok(command)
}

/// The tasks of a flow: first at the server, then at the UE.
fn tasks(of: &Start<'_>, received: &Path, sent: &Path) -> [Task; 2] {
    let Start { flow, ends, choice, when, seed, .. } = *of;
    let setup = |ue: bool| if ue { choice.setup.clone() } else { Setup::default() };
    let (received, sent) = (received.to_owned(), sent.to_owned());
    let udp = |direction: Direction, rate_bps, payload_bytes: u32, bursts| {
        let down = direction == Direction::Down;
        let (from, to) = if down { (ends.server, ends.ue) } else { (ends.ue, ends.server) };
        let payload_bytes = payload_bytes as usize;
        let send = Task::UdpSend(UdpSend {
            bind: from,
            to,
            when,
            rate_bps,
            payload_bytes,
            bursts,
            setup: setup(!down),
            sent: None,
            report: sent.clone(),
        });
        let receive = Task::UdpReceive(UdpReceive { bind: to, when, report: received.clone() });
        if down { [send, receive] } else { [receive, send] }
    };
    match flow.traffic.clone() {
        Traffic::Cbr { direction, rate_bps, payload_bytes } => udp(direction, rate_bps, payload_bytes, None),
        Traffic::OnOff { direction, rate_bps, payload_bytes, on, off } => {
            udp(direction, rate_bps, payload_bytes, Some(Bursts { on, off, seed }))
        }
        Traffic::Ping { interval, payload_bytes } => {
            let payload_bytes = payload_bytes as usize;
            let rate_bps = (payload_bytes as f64 * 8.0 / interval.as_secs_f64()).round().max(1.0) as u64;
            let ask = UdpSend {
                bind: ends.ue,
                to: ends.server,
                when,
                rate_bps,
                payload_bytes,
                bursts: None,
                setup: setup(true),
                sent: Some(sent),
                report: received,
            };
            [Task::UdpEcho(UdpEcho { bind: ends.server, when }), Task::UdpPing(ask)]
        }
        Traffic::BulkTcp { direction, bytes, limit_bps, .. } => {
            let one = |sends, local, to| Stream {
                local: Some(local),
                to,
                when,
                sends,
                bytes,
                limit_bps,
                mptcp: choice.mptcp,
                setup: setup(to.is_some()),
                report: received.clone(),
            };
            let down = direction == Direction::Down;
            [
                Task::StreamListen(one(down, ends.server, None)),
                Task::StreamConnect(one(!down, ends.ue, Some(ends.server))),
            ]
        }
        Traffic::RequestResponse { request_bytes, response_bytes, gap, reconnect, .. } => {
            let one = |local, to| Exchange {
                local: Some(local),
                to,
                when,
                request_bytes: request_bytes as usize,
                response_bytes: response_bytes as usize,
                gap,
                reconnect,
                mptcp: choice.mptcp,
                setup: setup(to.is_some()),
                report: received.clone(),
            };
            [
                Task::ExchangeListen(one(ends.server, None)),
                Task::ExchangeConnect(one(ends.ue, Some(ends.server))),
            ]
        }
    }
}
