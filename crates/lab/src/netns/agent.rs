//! The REST interface of a running `anabranch ue`, `upf`, `gnb` or `lwip`, on its Unix socket.
//!
//! HTTP/1.0: the answer ends where the connection ends, which needs no library.

use super::cells::Lateness;
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

/// How long it may take to answer.
const ANSWER: Duration = Duration::from_secs(5);
/// Longest answer, bytes.
const MAX_ANSWER_BYTES: u64 = 16 << 20;

/// An agent that can be asked.
#[derive(Debug, Clone)]
pub struct Agent {
    name: String,
    socket: PathBuf,
}

/// Of `/v1/status`, what is used here.
#[derive(Debug, Clone, Deserialize)]
pub struct Status {
    /// Version of the program.
    pub version: String,
    /// Sessions that are up.
    pub connected: u64,
}

/// Of a path in `/v1/paths`, what is used here.
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

/// Of a rule's use in `/v1/rules`, what is used here.
#[derive(Debug, Clone, Deserialize)]
pub struct RuleUse {
    /// Name of the rule.
    pub rule: String,
    /// Steering mode.
    pub mode: String,
    /// Access its traffic is on; `None` for splitting modes.
    #[serde(default)]
    pub access: Option<String>,
}

#[derive(Deserialize)]
struct Rules {
    #[serde(default)]
    uses: Vec<RuleUse>,
}

/// Something that happened.
#[derive(Debug, Clone, Deserialize)]
pub struct Event {
    /// Wall clock.
    pub time_unix_ms: u64,
    /// What, such as `path-down` or `moved`.
    pub kind: String,
    /// UE it is about.
    #[serde(default)]
    pub ue: Option<String>,
    /// Access it is about.
    #[serde(default)]
    pub access: Option<String>,
    /// For people.
    pub message: String,
}

/// Of `/v1/lwip`, what is used here.
#[derive(Debug, Clone, Deserialize)]
pub struct LwipNode {
    /// LTE, then Wi-Fi.
    pub legs: Vec<LwipLeg>,
    /// What became of ACKs.
    pub acks: LwipAcks,
    /// How long holds were.
    pub holds: LwipHolds,
}

/// One of the ways to UEs.
#[derive(Debug, Clone, Deserialize)]
pub struct LwipLeg {
    /// `lte` or `wifi`.
    pub leg: String,
    /// TCP packets with data.
    pub steered: u64,
}

/// What became of ACKs.
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

/// How long holds were.
#[derive(Debug, Clone, Deserialize)]
pub struct LwipHolds {
    /// By why they ended.
    pub ended: BTreeMap<String, u64>,
    /// By their length.
    pub counts: Vec<u64>,
    /// All of them together, milliseconds.
    pub sum_ms: f64,
}

/// Of `/v1/cell`, what is used here.
#[derive(Debug, Clone, Deserialize)]
pub struct Cell {
    /// Lateness of slots.
    pub ticks: Lateness,
    /// Downlink since the start.
    pub downlink: Counters,
    /// Uplink since the start.
    pub uplink: Counters,
}

/// Of a slice's use in `/v1/slices`, what is used here.
#[derive(Debug, Clone, Deserialize)]
pub struct SliceUse {
    /// Downlink.
    pub downlink: SliceLink,
}

/// One direction of it.
#[derive(Debug, Clone, Deserialize)]
pub struct SliceLink {
    /// What the slice is owed, if there is an account.
    #[serde(default)]
    pub balance_rbs: Option<i32>,
}

#[derive(Deserialize)]
struct SliceUses {
    uses: Vec<SliceUse>,
}

/// Of a UE in `/v1/ues`, what is used here.
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
    /// `runs`, or why not.
    pub state: String,
    /// What its flows carried, by what carried them.
    pub carried: Vec<LaneCarried>,
}

/// What the flows of a lane carried that something carried.
#[derive(Debug, Clone, Deserialize)]
pub struct LaneCarried {
    /// `mptcp`, `tcp`, or `packets`.
    pub carrier: String,
    /// Flows.
    pub flows: u64,
}

#[derive(Deserialize)]
struct CellUes {
    ues: Vec<CellUe>,
}

/// Packets that a cell delivered.
#[derive(Debug, Clone, Deserialize)]
pub struct CellPackets {
    /// The wall clock at the cell's start.
    pub start_unix_ns: u64,
    /// Packets told before.
    pub first: u64,
    /// The packets.
    pub packets: Vec<CellPacket>,
}

/// When a packet was where, nanoseconds since the cell's start.
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

    /// The socket it listens at.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The program as a whole.
    ///
    /// # Errors
    /// It does not answer.
    pub fn status(&self) -> Result<Status> {
        self.get("/v1/status")
    }

    /// Its paths: those of all sessions, at most 1000.
    ///
    /// # Errors
    /// It does not answer.
    pub fn paths(&self) -> Result<Vec<PathState>> {
        self.get::<Paths>("/v1/paths?limit=1000").map(|p| p.paths)
    }

    /// What its rules do.
    ///
    /// # Errors
    /// It does not answer.
    pub fn uses(&self) -> Result<Vec<RuleUse>> {
        self.get::<Rules>("/v1/rules").map(|r| r.uses)
    }

    /// Replaces its rules.
    ///
    /// # Errors
    /// It does not answer, or refuses.
    pub fn set_rules(&self, rules: &[anabranch_steer::Rule]) -> Result<()> {
        let body = serde_json::json!({ "rules": rules }).to_string();
        self.ask("PUT", "/v1/rules", &body).map(drop)
    }

    /// Its TCP lane.
    ///
    /// # Errors
    /// It does not answer.
    pub fn tcp_lane(&self) -> Result<TcpLane> {
        self.get("/v1/tcp-lane")
    }

    /// An LWIP node.
    ///
    /// # Errors
    /// It does not answer.
    pub fn lwip(&self) -> Result<LwipNode> {
        self.get("/v1/lwip")
    }

    /// The cell of a gNB.
    ///
    /// # Errors
    /// It does not answer.
    pub fn cell(&self) -> Result<Cell> {
        self.get("/v1/cell")
    }

    /// What the slices of a cell do.
    ///
    /// # Errors
    /// It does not answer.
    pub fn slices(&self) -> Result<Vec<SliceUse>> {
        self.get::<SliceUses>("/v1/slices").map(|s| s.uses)
    }

    /// The UEs of a cell, at most 1000.
    ///
    /// # Errors
    /// It does not answer.
    pub fn cell_ues(&self) -> Result<Vec<CellUe>> {
        self.get::<CellUes>("/v1/ues?limit=1000").map(|u| u.ues)
    }

    /// Replaces the slices of a cell.
    ///
    /// # Errors
    /// It does not answer, or refuses.
    pub fn set_slices(&self, slices: &[SliceConfig]) -> Result<()> {
        let body = serde_json::json!({ "slices": slices }).to_string();
        self.ask("PUT", "/v1/slices", &body).map(drop)
    }

    /// Gives a UE of a cell another channel, whose trace starts now.
    ///
    /// # Errors
    /// It does not answer, or refuses.
    pub fn set_channel(&self, ue: &str, direction: Direction, channel: &ChannelConfig) -> Result<()> {
        let key = match direction {
            Direction::Downlink => "channel",
            Direction::Uplink => "uplink_channel",
        };
        let body = serde_json::json!({ key: channel }).to_string();
        self.ask("PUT", &format!("/v1/ues/{ue}"), &body).map(drop)
    }

    fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        let text = self.ask("GET", path, "")?;
        serde_json::from_str(&text).with_context(|| format!("answer of {} to GET {path}", self.name))
    }

    /// Asks it; the body of a good answer.
    ///
    /// # Errors
    /// It does not answer, or refuses, and why.
    pub fn ask(&self, method: &str, path: &str, body: &str) -> Result<String> {
        let what = || format!("{method} {path} of {}", self.name);
        let mut stream = self.request(method, path, body).with_context(what)?;
        stream.set_read_timeout(Some(ANSWER)).with_context(what)?;
        let mut answer = Vec::new();
        Read::by_ref(&mut stream).take(MAX_ANSWER_BYTES).read_to_end(&mut answer).with_context(what)?;
        parse(&String::from_utf8_lossy(&answer)).with_context(what)
    }

    fn request(&self, method: &str, path: &str, body: &str) -> std::io::Result<UnixStream> {
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

    /// Its events, the last ones first and then as they happen.
    ///
    /// # Errors
    /// It does not answer.
    pub fn events(&self) -> Result<Events> {
        self.stream("/v1/events", None)
    }

    /// The packets that a cell delivers from now on.
    ///
    /// # Errors
    /// It does not answer.
    pub fn packets(&self) -> Result<Events<CellPackets>> {
        self.stream("/v1/telemetry?packets=true", Some("packets"))
    }

    fn stream<T>(&self, path: &str, only: Option<&'static str>) -> Result<Events<T>> {
        let what = || format!("GET {path} of {}", self.name);
        let stream = self.request("GET", path, "").with_context(what)?;
        stream.set_read_timeout(Some(LOOK)).with_context(what)?;
        let reader = BufReader::new(stream);
        Ok(Events { reader, line: Vec::new(), only, kind: String::new(), of: PhantomData })
    }
}

/// Longest wait for an event.
const LOOK: Duration = Duration::from_millis(50);
/// Longest line of an event stream, bytes.
const MAX_LINE_BYTES: usize = 4 << 20;

/// A stream of events.
#[derive(Debug)]
pub struct Events<T = Event> {
    reader: BufReader<UnixStream>,
    line: Vec<u8>,
    /// The kind that is listened for, if there are others.
    only: Option<&'static str>,
    /// The kind of the event that is being read.
    kind: String,
    of: PhantomData<T>,
}

/// What came of waiting for an event.
#[derive(Debug)]
pub enum Next<T = Event> {
    /// This one.
    Event(T),
    /// None so far.
    Nothing,
    /// The program is gone.
    End,
}

impl<T: DeserializeOwned> Events<T> {
    /// The next event, if it comes within some 50 ms.
    ///
    /// # Errors
    /// What comes is no event stream.
    pub fn wait_next(&mut self) -> Result<Next<T>> {
        loop {
            match self.reader.read_until(b'\n', &mut self.line) {
                Ok(0) => return Ok(Next::End),
                Ok(_) if !self.line.ends_with(b"\n") => return Ok(Next::End),
                Ok(_) => {
                    let line = String::from_utf8_lossy(&self.line).into_owned();
                    self.line.clear();
                    // The rest is the head of the answer, ids, names, comments that keep it alive.
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

/// The body of an answer; what it says if it is a refusal.
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

    /// An agent that answers each request with the next of these.
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
    fn answers_and_refusals_are_told_apart() {
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
