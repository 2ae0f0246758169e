//! Changes of windows, and losses, of TCP sockets, per ACK: `bpf/tcp_trace.bpf.c` at the kernel's own trace points.

use super::controllers::object;
use super::object::{attach, configure, counters, open};
use super::sockets::NO_SSTHRESH;
use super::{BpfError, loadable_here, tried};
use libbpf_rs::{Link, MapCore, MapType, Object, RingBuffer, RingBufferBuilder};
use std::os::unix::fs::MetadataExt;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// Size of `struct ab_event`.
const EVENT_LEN: usize = 48;
const PROGRAMS: [&str; 3] = ["ab_trace_ack", "ab_trace_retransmit", "ab_trace_state"];

/// The sockets to trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TraceFilter {
    /// Sockets with this port at either end; `None`: all.
    pub port: Option<u16>,
    /// Sockets of every network namespace; otherwise those of the calling thread's.
    pub every_namespace: bool,
}

/// Kind of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TraceKind {
    /// A segment was received.
    Received,
    /// A segment was retransmitted.
    Retransmitted,
    /// The recovery state changed: `Open`, `Disorder`, `CWR`, `Recovery`, `Loss`.
    State(&'static str),
}

impl TraceKind {
    /// Name in output: `received`, `retransmitted`, or the state.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Received => "received",
            Self::Retransmitted => "retransmitted",
            Self::State(name) => name,
        }
    }
}

/// State of a socket at an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceEvent {
    /// Time of CLOCK_MONOTONIC.
    pub at: Duration,
    /// The kernel's cookie of the socket; never reused.
    pub socket: u64,
    /// Local TCP port.
    pub local_port: u16,
    /// Remote TCP port.
    pub remote_port: u16,
    /// What happened.
    pub kind: TraceKind,
    /// Congestion window, segments.
    pub cwnd: u32,
    /// Slow-start threshold, segments; `None` before the first loss.
    pub ssthresh: Option<u32>,
    /// Smoothed RTT.
    pub srtt: Duration,
    /// Segments in flight.
    pub in_flight: u32,
    /// Total number of retransmitted segments.
    pub retransmitted: u32,
    /// Segments currently considered lost.
    pub lost: u32,
}

/// An attached trace; detached when this is dropped.
pub struct Trace {
    // The links are dropped before the buffer that they feed.
    _links: Vec<Link>,
    ring: RingBuffer<'static>,
    events: Receiver<TraceEvent>,
    object: Object,
}

impl Trace {
    /// Attaches the trace.
    ///
    /// # Errors
    /// The machine lacks support, the user lacks permission, or the kernel refuses.
    pub fn attach(filter: TraceFilter) -> Result<Self, BpfError> {
        loadable_here()?;
        let io = |source| BpfError::Io { what: "which network namespace this is".to_owned(), source };
        let netns = match filter.every_namespace {
            true => 0,
            // The kernel's namespace inode numbers have 32 bits.
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
                // Without a receiver, the trace is ending.
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

    /// The events since the last call; waits for up to `timeout` if there are none.
    ///
    /// # Errors
    /// The kernel refuses to read the buffer.
    pub fn wait(&self, timeout: Duration) -> Result<impl Iterator<Item = TraceEvent> + '_, BpfError> {
        match self.ring.poll(timeout) {
            Err(error) if error.kind() == libbpf_rs::ErrorKind::Interrupted => {}
            polled => tried("reading events", polled)?,
        }
        Ok(self.events.try_iter())
    }

    /// Number of events lost because the buffer was full.
    ///
    /// # Errors
    /// The kernel refuses to read the counter.
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
