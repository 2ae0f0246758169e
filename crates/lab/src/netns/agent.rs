//! The REST interface of a running `anabranch ue`, `upf`, `gnb` or `lwip`, on its Unix socket.
//!
//! HTTP/1.0: the answer ends with the connection, so no library is needed.

use super::cells::Timings;
use crate::cell::Counters;
use anabranch_ran::amc::Direction;
use anabranch_ran::channel::ChannelConfig;
use anabranch_ran::sched::SliceConfig;
use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::marker::PhantomData;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Timeout of an answer.
const ANSWER: Duration = Duration::from_secs(5);
/// Maximum length of an answer, bytes.
const MAX_ANSWER_BYTES: u64 = 16 << 20;

/// The agent of a running program.
#[derive(Debug, Clone)]
pub struct Agent {
    name: String,
    socket: PathBuf,
}

/// The fields of `/v1/status` used here.
#[derive(Debug, Clone, Deserialize)]
pub struct Status {
    /// Version of the program.
    pub version: String,
    /// Number of sessions that are up.
    pub connected: u64,
}

/// The fields of a path in `/v1/paths` used here.
#[derive(Debug, Clone, Deserialize)]
pub struct PathState {
    /// Name of the UE.
    pub ue: String,
    /// Name of the access.
    pub access: String,
    /// Whether it carries traffic.
    pub up: bool,
    /// Smoothed round-trip time, if known.
    #[serde(default)]
    pub rtt_ms: Option<f64>,
}

#[derive(Deserialize)]
struct Paths {
    paths: Vec<PathState>,
}

/// The fields of a rule in `/v1/rules` used here.
#[derive(Debug, Clone, Deserialize)]
pub struct RuleUse {
    /// Name of the rule.
    pub rule: String,
    /// Steering mode.
    pub mode: String,
    /// Access of its traffic; `None` for splitting modes.
    #[serde(default)]
    pub access: Option<String>,
}

#[derive(Deserialize)]
struct Rules {
    #[serde(default)]
    uses: Vec<RuleUse>,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Event {
    /// Wall clock, Unix milliseconds.
    pub time_unix_ms: u64,
    /// Kind, such as `path-down` or `moved`.
    pub kind: String,
    /// UE affected.
    #[serde(default)]
    pub ue: Option<String>,
    /// Access affected.
    #[serde(default)]
    pub access: Option<String>,
    /// Message for people.
    pub message: String,
}

/// The fields of `/v1/lwip` used here.
#[derive(Debug, Clone, Deserialize)]
pub struct LwipNode {
    /// LTE, then Wi-Fi.
    pub legs: Vec<LwipLeg>,
    /// Counters of ACKs.
    pub acks: LwipAcks,
    /// Durations for which ACKs were delayed.
    pub holds: LwipHolds,
}

/// A leg of an LWIP node.
#[derive(Debug, Clone, Deserialize)]
pub struct LwipLeg {
    /// `lte` or `wifi`.
    pub leg: String,
    /// Number of TCP packets with data.
    pub steered: u64,
}

/// Counters of ACKs.
#[derive(Debug, Clone, Deserialize)]
#[allow(missing_docs, reason = "they are those of the node")]
pub struct LwipAcks {
    pub advances: u64,
    pub duplicates: u64,
    pub let_through: u64,
    pub triple_duplicates: u64,
    pub held: u64,
    pub released: u64,
    pub superseded: u64,
}

/// Durations for which ACKs were delayed.
#[derive(Debug, Clone, Deserialize)]
pub struct LwipHolds {
    /// Number by reason of release.
    pub ended: BTreeMap<String, u64>,
    /// Number by duration.
    pub counts: Vec<u64>,
    /// Total duration, milliseconds.
    pub sum_ms: f64,
}

/// The fields of `/v1/cell` used here.
#[derive(Debug, Clone, Deserialize)]
pub struct Cell {
    /// Timings of slots.
    pub ticks: Timings,
    /// Downlink counters since the start.
    pub downlink: Counters,
    /// Uplink counters since the start.
    pub uplink: Counters,
}

/// The fields of a slice in `/v1/slices` used here.
#[derive(Debug, Clone, Deserialize)]
pub struct SliceUse {
    /// Downlink.
    pub downlink: SliceLink,
}

/// One direction of a slice.
#[derive(Debug, Clone, Deserialize)]
pub struct SliceLink {
    /// Balance of the slice, RBs, if the scheduler has accounts.
    #[serde(default)]
    pub balance_rbs: Option<i32>,
}

#[derive(Deserialize)]
struct SliceUses {
    uses: Vec<SliceUse>,
}

/// The fields of a UE in `/v1/ues` used here.
#[derive(Debug, Clone, Deserialize)]
pub struct CellUe {
    bearers: Vec<Bearer>,
}

#[derive(Debug, Clone, Deserialize)]
struct Bearer {
    downlink: BearerLink,
}

#[derive(Debug, Clone, Deserialize)]
struct BearerLink {
    buffer_bytes: u64,
}

impl CellUe {
    /// Bytes in its RLC buffers, downlink.
    #[must_use]
    pub fn buffer_bytes(&self) -> u64 {
        self.bearers.iter().map(|bearer| bearer.downlink.buffer_bytes).sum()
    }
}

/// A TCP lane.
#[derive(Debug, Clone, Deserialize)]
pub struct TcpLane {
    /// `runs`, or the reason why not.
    pub state: String,
    /// Traffic of its flows, by carrier.
    pub carried: Vec<LaneCarried>,
}

/// Traffic of the flows of a lane with one carrier.
#[derive(Debug, Clone, Deserialize)]
pub struct LaneCarried {
    /// `mptcp`, `tcp`, or `packets`.
    pub carrier: String,
    /// Number of flows.
    pub flows: u64,
}

#[derive(Deserialize)]
struct CellUes {
    ues: Vec<CellUe>,
}

/// Packets delivered by a cell.
#[derive(Debug, Clone, Deserialize)]
pub struct CellPackets {
    /// Wall clock at the start of the cell, Unix nanoseconds.
    pub start_unix_ns: u64,
    /// Number of packets reported before.
    pub first: u64,
    /// The packets.
    pub packets: Vec<CellPacket>,
}

/// Times of a packet, nanoseconds since the start of the cell.
#[derive(Debug, Clone, Copy, Deserialize)]
#[allow(missing_docs, reason = "they are those of PacketTimes")]
pub struct CellPacket {
    pub ue: u32,
    pub drb: u8,
    pub qfi: u8,
    pub downlink: bool,
    pub bytes: u32,
    pub arrived_ns: u64,
    pub forwarded_ns: u64,
    pub first_pull_ns: u64,
    pub last_pull_ns: u64,
    pub first_received_ns: u64,
    pub delivered_ns: u64,
}

impl Agent {
    /// The agent of `name` that listens at `socket`.
    #[must_use]
    pub fn new(name: &str, socket: &Path) -> Self {
        Self { name: name.to_owned(), socket: socket.to_owned() }
    }

    /// Path of its socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The status of the program.
    ///
    /// # Errors
    /// The agent does not answer.
    pub fn status(&self) -> Result<Status> {
        self.get("/v1/status")
    }

    /// The paths of all sessions, at most 1000.
    ///
    /// # Errors
    /// The agent does not answer.
    pub fn paths(&self) -> Result<Vec<PathState>> {
        self.get::<Paths>("/v1/paths?limit=1000").map(|p| p.paths)
    }

    /// The use of its rules.
    ///
    /// # Errors
    /// The agent does not answer.
    pub fn uses(&self) -> Result<Vec<RuleUse>> {
        self.get::<Rules>("/v1/rules").map(|r| r.uses)
    }

    /// Replaces its rules.
    ///
    /// # Errors
    /// The agent does not answer, or refuses.
    pub fn set_rules(&self, rules: &[anabranch_steer::Rule]) -> Result<()> {
        let body = serde_json::json!({ "rules": rules }).to_string();
        self.request("PUT", "/v1/rules", &body).map(drop)
    }

    /// The state of its TCP lane.
    ///
    /// # Errors
    /// The agent does not answer.
    pub fn tcp_lane(&self) -> Result<TcpLane> {
        self.get("/v1/tcp-lane")
    }

    /// The state of an LWIP node.
    ///
    /// # Errors
    /// The agent does not answer.
    pub fn lwip(&self) -> Result<LwipNode> {
        self.get("/v1/lwip")
    }

    /// The state of the cell of a gNB.
    ///
    /// # Errors
    /// The agent does not answer.
    pub fn cell(&self) -> Result<Cell> {
        self.get("/v1/cell")
    }

    /// The use of the slices of a cell.
    ///
    /// # Errors
    /// The agent does not answer.
    pub fn slices(&self) -> Result<Vec<SliceUse>> {
        self.get::<SliceUses>("/v1/slices").map(|s| s.uses)
    }

    /// The UEs of a cell, at most 1000.
    ///
    /// # Errors
    /// The agent does not answer.
    pub fn cell_ues(&self) -> Result<Vec<CellUe>> {
        self.get::<CellUes>("/v1/ues?limit=1000").map(|u| u.ues)
    }

    /// Replaces the slices of a cell.
    ///
    /// # Errors
    /// The agent does not answer, or refuses.
    pub fn set_slices(&self, slices: &[SliceConfig]) -> Result<()> {
        let body = serde_json::json!({ "slices": slices }).to_string();
        self.request("PUT", "/v1/slices", &body).map(drop)
    }

    /// Sets the channel of a UE of a cell. A trace starts now.
    ///
    /// # Errors
    /// The agent does not answer, or refuses.
    pub fn set_channel(&self, ue: &str, direction: Direction, channel: &ChannelConfig) -> Result<()> {
        let key = match direction {
            Direction::Downlink => "channel",
            Direction::Uplink => "uplink_channel",
        };
        let body = serde_json::json!({ key: channel }).to_string();
        self.request("PUT", &format!("/v1/ues/{ue}"), &body).map(drop)
    }

    fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        let text = self.request("GET", path, "")?;
        serde_json::from_str(&text).with_context(|| format!("answer of {} to GET {path}", self.name))
    }

    /// Sends a request. Returns the body of a successful answer.
    ///
    /// # Errors
    /// The agent does not answer, or refuses; with its reason.
    pub fn request(&self, method: &str, path: &str, body: &str) -> Result<String> {
        let what = || format!("{method} {path} of {}", self.name);
        let mut stream = self.send_request(method, path, body).with_context(what)?;
        stream.set_read_timeout(Some(ANSWER)).with_context(what)?;
        let mut answer = Vec::new();
        Read::by_ref(&mut stream).take(MAX_ANSWER_BYTES).read_to_end(&mut answer).with_context(what)?;
        parse(&String::from_utf8_lossy(&answer)).with_context(what)
    }

    fn send_request(&self, method: &str, path: &str, body: &str) -> std::io::Result<UnixStream> {
        let mut stream = UnixStream::connect(&self.socket)?;
        stream.set_write_timeout(Some(ANSWER))?;
        let length = body.len();
        write!(
            stream,
            "{method} {path} HTTP/1.0\r\nHost: anabranch\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n\r\n{body}"
        )?;
        Ok(stream)
    }

    /// A stream of its events: recent ones first, then new ones.
    ///
    /// # Errors
    /// The agent does not answer.
    pub fn events(&self) -> Result<Events> {
        self.stream("/v1/events", None)
    }

    /// A stream of the packets that a cell delivers from now on.
    ///
    /// # Errors
    /// The agent does not answer.
    pub fn packets(&self) -> Result<Events<CellPackets>> {
        self.stream("/v1/telemetry?packets=true", Some("packets"))
    }

    fn stream<T>(&self, path: &str, only: Option<&'static str>) -> Result<Events<T>> {
        let what = || format!("GET {path} of {}", self.name);
        let stream = self.send_request("GET", path, "").with_context(what)?;
        stream.set_read_timeout(Some(LOOK)).with_context(what)?;
        let reader = BufReader::new(stream);
        Ok(Events { reader, line: Vec::new(), only, kind: String::new(), of: PhantomData })
    }
}

/// Maximum wait for an event.
const LOOK: Duration = Duration::from_millis(50);
/// Maximum length of a line of an event stream, bytes.
const MAX_LINE_BYTES: usize = 4 << 20;

/// A stream of events.
#[derive(Debug)]
pub struct Events<T = Event> {
    reader: BufReader<UnixStream>,
    line: Vec<u8>,
    /// The kind of events to return; `None`: all.
    only: Option<&'static str>,
    /// The kind of the event being read.
    kind: String,
    of: PhantomData<T>,
}

/// Result of waiting for an event.
#[derive(Debug)]
pub enum Next<T = Event> {
    Event(T),
    /// No event so far.
    Nothing,
    /// The program has ended.
    End,
}

impl<T: DeserializeOwned> Events<T> {
    /// The next event, if it arrives within about 50 ms.
    ///
    /// # Errors
    /// The data received is not an event stream.
    pub fn wait_next(&mut self) -> Result<Next<T>> {
        loop {
            match self.reader.read_until(b'\n', &mut self.line) {
                Ok(0) => return Ok(Next::End),
                Ok(_) if !self.line.ends_with(b"\n") => return Ok(Next::End),
                Ok(_) => {
                    let line = String::from_utf8_lossy(&self.line).into_owned();
                    self.line.clear();
                    // Other lines are the head of the answer, ids, names, and keep-alive comments.
                    if let Some(kind) = line.strip_prefix("event:") {
                        kind.trim().clone_into(&mut self.kind);
                    }
                    let wanted = self.only.is_none_or(|only| only == self.kind);
                    if let Some(data) = line.strip_prefix("data:").filter(|_| wanted) {
                        return serde_json::from_str(data).map(Next::Event).context("an event");
                    }
                }
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                    return Ok(Next::Nothing);
                }
                Err(e) if e.kind() == ErrorKind::ConnectionReset => return Ok(Next::End),
                Err(e) => return Err(e).context("events"),
            }
            if self.line.len() > MAX_LINE_BYTES {
                bail!("a line of the event stream does not end");
            }
        }
    }
}

/// The body of an answer; an error with its text if it is a refusal.
fn parse(answer: &str) -> Result<String> {
    let (head, body) = answer.split_once("\r\n\r\n").context("no answer in HTTP")?;
    let code =
        head.split_whitespace().nth(1).and_then(|c| c.parse::<u16>().ok()).context("no answer in HTTP")?;
    if (200..300).contains(&code) {
        return Ok(body.to_owned());
    }
    let problem: Value = serde_json::from_str(body).unwrap_or_default();
    let says = ["detail", "title"].iter().find_map(|k| problem.get(*k)?.as_str());
    bail!("refused ({code}): {}", says.unwrap_or(body.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    /// An agent that answers requests with these, in order.
    fn answering(answers: Vec<String>, body: impl FnOnce(Agent)) {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        let listener = UnixListener::bind(&socket).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for answer in answers {
                    let (mut stream, _) = listener.accept().unwrap();
                    let mut reader = BufReader::new(stream.try_clone().unwrap());
                    let (mut line, mut length) = (String::new(), 0);
                    while reader.read_line(&mut line).unwrap() > 2 {
                        if let Some(n) = line.strip_prefix("Content-Length: ") {
                            length = n.trim().parse().unwrap();
                        }
                        line.clear();
                    }
                    reader.read_exact(&mut vec![0; length]).unwrap();
                    stream.write_all(answer.as_bytes()).unwrap();
                }
            });
            body(Agent::new("test", &socket));
        });
    }

    fn ok(body: &str) -> String {
        format!("HTTP/1.0 200 OK\r\ncontent-type: x\r\n\r\n{body}")
    }

    #[test]
    fn answers_and_refusals_are_distinguished() {
        let refusal = "HTTP/1.0 400 Bad Request\r\n\r\n{\"detail\":\"no access lte\"}".to_owned();
        let path = r#"{"paths":[{"ue":"a","access":"5g","up":true,"rtt_ms":7.5,"new":1},{"ue":"a","access":"w","up":false}]}"#;
        answering(vec![ok(path), refusal, String::new()], |agent| {
            let paths = agent.paths().unwrap();
            assert_eq!((paths[0].rtt_ms, paths[1].up), (Some(7.5), false));
            let error = format!("{:#}", agent.set_rules(&[]).unwrap_err());
            assert!(error.contains("PUT /v1/rules of test") && error.contains("no access lte"), "{error}");
            assert!(agent.status().is_err());
        });
    }

    #[test]
    fn events_are_read_one_by_one() {
        let event = r#"{"id":1,"time_unix_ms":5,"kind":"path-down","access":"wifi","message":"m"}"#;
        let stream = ok(&format!(":\n\nid: 1\nevent: path-down\ndata: {event}\n\ndata:{event}\n\n"));
        answering(vec![stream], |agent| {
            let mut events = agent.events().unwrap();
            let mut seen = 0;
            loop {
                match events.wait_next().unwrap() {
                    Next::Event(e) => {
                        assert_eq!((e.kind.as_str(), e.access.as_deref()), ("path-down", Some("wifi")));
                        seen += 1;
                    }
                    Next::Nothing => {}
                    Next::End => break,
                }
            }
            assert_eq!(seen, 2);
        });
    }
}
