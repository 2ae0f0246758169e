//! Windows and losses of TCP sockets as they change, ACK by ACK: `bpf/tcp_trace.bpf.c` at the kernel's own trace points.

use super::controllers::object;
use super::object::{attach, configure, counters, open};
use super::sockets::NO_SSTHRESH;
use super::{BpfError, loadable_here, tried};
use libbpf_rs::{Link, MapCore, MapType, Object, RingBuffer, RingBufferBuilder};
use std::os::unix::fs::MetadataExt;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// Bytes of `struct ab_event`.
const EVENT_LEN: usize = 48;
const PROGRAMS: [&str; 3] = ["ab_trace_ack", "ab_trace_retransmit", "ab_trace_state"];

/// Which sockets are traced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TraceFilter {
    /// Those with this port at either end; none: all.
    pub port: Option<u16>,
    /// Those of every network namespace; otherwise those of the calling thread's.
    pub every_namespace: bool,
}

/// What happened to a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TraceKind {
    /// A segment has come.
    Received,
    /// A segment was sent again.
    Retransmitted,
    /// The state of recovery is another: `Open`, `Disorder`, `CWR`, `Recovery`, `Loss`.
    State(&'static str),
}

impl TraceKind {
    /// As it is written: `received`, `retransmitted`, or the state.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Received => "received",
            Self::Retransmitted => "retransmitted",
            Self::State(name) => name,
        }
    }
}

/// A socket at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceEvent {
    /// When, since the clock CLOCK_MONOTONIC began.
    pub at: Duration,
    /// The kernel's number for the socket; never used twice.
    pub socket: u64,
    /// Its own port.
    pub local_port: u16,
    /// Its peer's.
    pub remote_port: u16,
    /// What happened.
    pub kind: TraceKind,
    /// Congestion window, segments.
    pub cwnd: u32,
    /// Slow-start threshold, segments; `None` before the first loss.
    pub ssthresh: Option<u32>,
    /// Smoothed round trip.
    pub srtt: Duration,
    /// Segments under way.
    pub in_flight: u32,
    /// Segments sent again so far.
    pub retransmitted: u32,
    /// Segments held to be lost at present.
    pub lost: u32,
}

/// At work as long as this lives.
pub struct Trace {
    // The links go first, then what they feed.
    _links: Vec<Link>,
    ring: RingBuffer<'static>,
    events: Receiver<TraceEvent>,
    object: Object,
}

impl Trace {
    /// Begins.
    ///
    /// # Errors
    /// The machine or the user cannot, or the kernel refuses.
    pub fn attach(filter: TraceFilter) -> Result<Self, BpfError> {
        loadable_here()?;
        let io = |source| BpfError::Io { what: "which network namespace this is".to_owned(), source };
        let netns = match filter.every_namespace {
            true => 0,
            // The kernel's numbers of namespaces have 32 bits.
            false => std::fs::metadata("/proc/thread-self/ns/net").map_err(io)?.ino() as u32,
        };
        let mut object = open("tcp_trace", object!("tcp_trace"))?;
        let constants = [netns.to_ne_bytes(), u32::from(filter.port.unwrap_or(0)).to_ne_bytes()].concat();
        configure(&mut object, &constants)?;
        let object = tried("loading tcp_trace", object.load())?;
        let (tell, events) = channel();
        let ring = {
            let map = object.maps().find(|map| map.map_type() == MapType::RingBuf);
            let map = map.ok_or_else(|| BpfError::Unsupported("the object has no ring buffer".into()))?;
            let mut builder = RingBufferBuilder::new();
            let take = move |bytes: &[u8]| {
                // Nobody listens any more: the trace is ending.
                let _ = parse(bytes).map(|event| tell.send(event));
                0
            };
            tried("the ring buffer", builder.add(&map, take))?;
            tried("the ring buffer", builder.build())?
        };
        let links =
            attach(&object, &PROGRAMS, |program| tried("the kernel's trace points", program.attach()))?;
        Ok(Self { _links: links, ring, events, object })
    }

    /// What has happened since this was asked last; waits for up to `timeout` if that is nothing.
    ///
    /// # Errors
    /// The kernel does not let the buffer be read.
    pub fn wait(&self, timeout: Duration) -> Result<impl Iterator<Item = TraceEvent> + '_, BpfError> {
        match self.ring.poll(timeout) {
            Err(error) if error.kind() == libbpf_rs::ErrorKind::Interrupted => {}
            polled => tried("reading events", polled)?,
        }
        Ok(self.events.try_iter())
    }

    /// Events that nobody took in time.
    ///
    /// # Errors
    /// The kernel does not let the counter be read.
    pub fn lost(&self) -> Result<u64, BpfError> {
        Ok(counters(&self.object)?.traces_skipped)
    }
}

fn parse(bytes: &[u8]) -> Option<TraceEvent> {
    let bytes: &[u8; EVENT_LEN] = bytes.first_chunk()?;
    let u64_at = |at: usize| bytes[at..].first_chunk().map(|b| u64::from_ne_bytes(*b));
    let u32_at = |at: usize| bytes[at..].first_chunk().map(|b| u32::from_ne_bytes(*b));
    let u16_at = |at: usize| bytes[at..].first_chunk().map(|b| u16::from_ne_bytes(*b));
    let kind = match (bytes[44], bytes[45]) {
        (0, _) => TraceKind::Received,
        (1, _) => TraceKind::Retransmitted,
        (2, 0) => TraceKind::State("Open"),
        (2, 1) => TraceKind::State("Disorder"),
        (2, 2) => TraceKind::State("CWR"),
        (2, 3) => TraceKind::State("Recovery"),
        (2, 4) => TraceKind::State("Loss"),
        _ => return None,
    };
    Some(TraceEvent {
        at: Duration::from_micros(u64_at(0)?),
        socket: u64_at(8)?,
        cwnd: u32_at(16)?,
        ssthresh: Some(u32_at(20)?).filter(|value| *value < NO_SSTHRESH),
        srtt: Duration::from_micros(u32_at(24)?.into()),
        in_flight: u32_at(28)?,
        retransmitted: u32_at(32)?,
        lost: u32_at(36)?,
        local_port: u16_at(40)?,
        remote_port: u16_at(42)?,
        kind,
    })
}
