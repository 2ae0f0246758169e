//! Applications over one TCP connection: a transfer, a paced stream, requests and responses. Every byte received is compared with
//! the byte that was sent.

use super::due;
use super::stream::SeededStream;
use super::tcp::{Connection, Options, TcpStats, TelemetryStats};
use anabranch_element::packet::Packet;
use anabranch_element::time::{Duration, Instant, nanos};
use anabranch_wire::ioam::{Feedback, HOP_BY_HOP};
use anabranch_wire::tcp::{TcpFlags, TcpHeader, parse_packet, parse_packet_with};
use std::net::SocketAddr;

/// Amount of data that an application without a limit keeps written ahead.
const AHEAD_BYTES: u64 = 64 << 20;
/// Interval between writes of a paced application.
const TICK: Duration = Duration::from_millis(1);
/// Maximum number of deliveries kept.
const MAX_DELIVERIES: usize = 16 << 20;

/// What an end does once the connection is established.
#[derive(Debug, Clone, PartialEq)]
pub enum Script {
    Receive,
    /// Sends.
    Send {
        /// Number of bytes; `None`: until `stop`.
        bytes: Option<u64>,
        /// Rate at which it writes, bit/s; `None`: as fast as TCP accepts.
        limit_bps: Option<u64>,
    },
    /// Sends a request, waits for the whole response, waits for the gap, and repeats.
    Requests {
        /// Size of a request, bytes.
        request_bytes: u64,
        /// Size of a response, bytes.
        response_bytes: u64,
        /// Pause after a response.
        gap: Duration,
    },
    /// Responds to every complete request.
    Answer {
        /// Size of a request, bytes.
        request_bytes: u64,
        /// Size of a response, bytes.
        response_bytes: u64,
    },
}

/// One end of a connection.
#[derive(Debug, Clone, PartialEq)]
pub struct End {
    /// Local address.
    pub local: SocketAddr,
    /// Address of the peer, if this end opens the connection.
    pub connect_to: Option<SocketAddr>,
    /// Time at which it opens the connection.
    pub start: Instant,
    /// Time from which it writes nothing; it then ends the stream.
    pub stop: Instant,
    /// What the end does.
    pub script: Script,
    /// Options of its TCP.
    pub options: Options,
    /// Seed of the stream it sends, and of its initial sequence numbers.
    pub seed: u64,
    /// Seed of the stream it expects.
    pub expects: u64,
}

/// An application with one TCP connection.
#[derive(Debug)]
pub struct TcpApp {
    end: End,
    connection: Option<Connection>,
    expects: SeededStream,
    deliveries: Deliveries,
    received: u64,
    intact: bool,
    written: u64,
    closed: bool,
    /// Time of the next write.
    write_at: Option<Instant>,
    requested_at: Option<Instant>,
    answers: Vec<(Instant, Duration)>,
    /// When [`act`](Self::act) last ran; it runs again when time or the stream has advanced.
    acted_at: Option<Instant>,
}

impl TcpApp {
    /// An end that opens its connection at `start`, or waits for one. Requests and responses are sent at once (`TCP_NODELAY`).
    #[must_use]
    pub fn new(mut end: End) -> Self {
        // As the programs used in namespaces.
        end.options.nodelay |= matches!(end.script, Script::Requests { .. } | Script::Answer { .. });
        Self {
            expects: SeededStream::new(end.expects),
            connection: None,
            deliveries: Deliveries::new(MAX_DELIVERIES),
            received: 0,
            intact: true,
            written: 0,
            closed: false,
            write_at: None,
            requested_at: None,
            answers: Vec::new(),
            acted_at: None,
            end,
        }
    }

    /// Local address.
    #[must_use]
    pub const fn local(&self) -> SocketAddr {
        self.end.local
    }

    /// Time and length of deliveries, in order.
    #[must_use]
    pub fn deliveries(&self) -> &[(Instant, u64)] {
        &self.deliveries.entries
    }

    /// Bytes delivered.
    #[must_use]
    pub const fn received(&self) -> u64 {
        self.received
    }

    /// Whether every byte delivered equals the byte sent.
    #[must_use]
    pub const fn is_intact(&self) -> bool {
        self.intact
    }

    /// Whether all data of the peer has arrived, the end of the stream included.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.connection.as_ref().is_some_and(Connection::is_received)
    }

    /// Time of each response and how long it took.
    #[must_use]
    pub fn answers(&self) -> &[(Instant, Duration)] {
        &self.answers
    }

    /// Counters of the data sent by this end.
    #[must_use]
    pub fn stats(&self) -> TcpStats {
        self.connection.as_ref().map_or_else(TcpStats::default, Connection::stats)
    }

    /// The newest report about the path received by this end, and counters; `None` without telemetry.
    #[must_use]
    pub fn telemetry(&self) -> Option<(Option<&Feedback>, TelemetryStats)> {
        self.connection.as_ref()?.telemetry()
    }

    /// Number of segments received behind a gap, and of segments without new data.
    #[must_use]
    pub fn receive_disorder(&self) -> (u64, u64) {
        self.connection.as_ref().map_or((0, 0), Connection::receive_disorder)
    }

    /// Processes a packet for this socket.
    #[inline]
    pub fn on_packet(&mut self, packet: &Packet, now: Instant) {
        let Some(connection) = &mut self.connection else { return self.accept(packet, now) };
        // Stream offset of the payload, if it equals the expected bytes.
        let mut place = None;
        let expects = self.expects;
        let mut known_sum = |header: &TcpHeader, payload: &[u8]| {
            if payload.is_empty() {
                return Some(0);
            }
            let offset = connection.place_of(header)?;
            let sum = expects.sum_if_equal(offset, payload)?;
            place = Some(offset..offset + payload.len() as u64);
            Some(sum)
        };
        let usual = connection.peer_template().and_then(|usual| usual.read(packet, &mut known_sum));
        let any;
        let (header, payload) = match &usual {
            Some((header, start)) => (header, &packet[*start..]),
            None => {
                any = parse_packet_with(packet, known_sum);
                let Ok(segment) = &any else { return };
                (&segment.header, &packet[segment.payload.clone()])
            }
        };
        if has_hop_by_hop(packet) {
            connection.on_trace(packet, now);
        }
        let stood = connection.is_established();
        let (received, intact, deliveries) = (&mut self.received, &mut self.intact, &mut self.deliveries);
        connection.on_segment(header, payload, now, &mut |bytes| {
            // Data stored behind a gap is delivered now as well; the payload of this packet has been compared already.
            let compared = place
                .as_ref()
                .is_some_and(|p| p.start <= *received && *received + bytes.len() as u64 <= p.end);
            *intact &= compared || expects.matches(*received, bytes);
            *received += bytes.len() as u64;
            deliveries.push(now, bytes.len() as u64);
        });
        if !stood && connection.is_established() {
            self.write_at = Some(now);
        }
        self.act(now);
    }

    /// Processes a SYN.
    fn accept(&mut self, packet: &Packet, now: Instant) {
        let Ok(segment) = parse_packet(packet) else { return };
        let flags = segment.header.flags;
        let opens = flags.contains(TcpFlags::SYN) && !flags.contains(TcpFlags::ACK);
        if self.end.connect_to.is_none() && opens {
            self.connection = Some(Connection::accept(
                self.end.local,
                segment.src,
                &segment.header,
                self.end.options.clone(),
                SeededStream::new(self.end.seed),
                self.end.seed,
                now,
            ));
        }
    }

    /// The next packet to send.
    #[inline]
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Packet> {
        if self.connection.is_none() && self.end.start <= now {
            let to = self.end.connect_to?;
            self.connection = Some(Connection::connect(
                self.end.local,
                to,
                self.end.options.clone(),
                SeededStream::new(self.end.seed),
                self.end.seed,
                now,
            ));
        }
        if self.acted_at != Some(now) {
            self.act(now);
        }
        self.connection.as_mut()?.poll_transmit(now)
    }

    /// See [`Connection::has_said_all`].
    #[inline]
    #[must_use]
    pub fn has_said_all(&self) -> bool {
        self.connection.as_ref().is_some_and(Connection::has_said_all)
    }

    /// See [`Connection::may_wait`].
    #[inline]
    #[must_use]
    pub fn may_wait(&self) -> bool {
        self.connection.as_ref().is_some_and(Connection::may_wait)
    }

    /// Handles timers of the connection that have expired.
    pub fn on_timeout(&mut self, now: Instant) {
        if let Some(connection) = &mut self.connection {
            connection.on_timeout(now);
        }
        self.act(now);
    }

    /// The next timer; [`Instant::MAX`] if none is set.
    #[must_use]
    #[inline(always)]
    pub fn next_at(&self) -> Instant {
        let Some(connection) = &self.connection else {
            return if self.end.connect_to.is_some() { self.end.start } else { Instant::MAX };
        };
        let ends = connection.is_established() && !self.closed && self.ends_at_stop();
        let stop = if ends { self.end.stop } else { Instant::MAX };
        connection.next_at().min(stop).min(due(self.write_at))
    }

    fn ends_at_stop(&self) -> bool {
        !matches!(self.end.script, Script::Receive | Script::Answer { .. })
    }

    /// Runs the application at the current time.
    #[inline]
    fn act(&mut self, now: Instant) {
        self.acted_at = Some(now);
        if !self.connection.as_ref().is_some_and(Connection::is_established) || self.ends_at_stop_now(now) {
            return;
        }
        let Some(connection) = &mut self.connection else { return };
        match &self.end.script {
            Script::Receive => self.write_at = None,
            Script::Send { bytes: Some(bytes), limit_bps: None } => {
                if !self.closed {
                    connection.write(*bytes);
                    connection.close(false);
                    self.written = *bytes;
                    self.closed = true;
                }
                self.write_at = None;
            }
            Script::Send { bytes: None, limit_bps: None } => {
                if connection.unacknowledged_bytes() < AHEAD_BYTES / 2 {
                    connection.write(AHEAD_BYTES);
                    self.written += AHEAD_BYTES;
                }
                self.write_at = None;
            }
            Script::Send { bytes, limit_bps: Some(rate) } => {
                let elapsed = nanos(now.saturating_since(self.end.start));
                let due = (u128::from(elapsed) * u128::from(*rate) / 8_000_000_000) as u64;
                let due = bytes.map_or(due, |capacity| due.min(capacity));
                if due > self.written {
                    connection.write(due - self.written);
                    self.written = due;
                }
                let over = Some(due) == *bytes;
                if over && !self.closed {
                    connection.close(false);
                    self.closed = true;
                }
                if self.write_at.is_some_and(|at| at <= now) {
                    self.write_at = (!over).then(|| now + TICK);
                }
            }
            Script::Requests { request_bytes, response_bytes, gap } => {
                let asked = self.written / (*request_bytes).max(1);
                if let Some(at) = self.requested_at
                    && self.received >= asked * response_bytes
                {
                    self.answers.push((now, now.saturating_since(at)));
                    self.requested_at = None;
                    self.write_at = Some(now + *gap);
                }
                if self.requested_at.is_none() && self.write_at.is_some_and(|at| at <= now) {
                    connection.write(*request_bytes);
                    self.written += request_bytes;
                    self.requested_at = Some(now);
                    self.write_at = None;
                }
            }
            Script::Answer { request_bytes, response_bytes } => {
                let due = self.received / (*request_bytes).max(1) * response_bytes;
                if due > self.written {
                    connection.write(due - self.written);
                    self.written = due;
                }
                self.write_at = None;
            }
        }
    }

    /// Ends the stream when the stop time has passed. Returns true if there is nothing more to write.
    #[inline]
    fn ends_at_stop_now(&mut self, now: Instant) -> bool {
        if now < self.end.stop || !self.ends_at_stop() {
            return false;
        }
        if let Some(connection) = self.connection.as_mut().filter(|_| !self.closed) {
            connection.close(true);
            self.closed = true;
        }
        self.write_at = None;
        // A transfer of a given size that has been written runs to its end.
        true
    }
}

/// Time and length of deliveries, in order. All bytes are counted: above `capacity` entries, those close together in time are merged,
/// at the time of the first.
#[derive(Debug)]
struct Deliveries {
    entries: Vec<(Instant, u64)>,
    capacity: usize,
    /// Interval within which deliveries are merged; 0 as long as there is room.
    grain: Duration,
}

impl Deliveries {
    const fn new(capacity: usize) -> Self {
        Self { entries: Vec::new(), capacity, grain: Duration::ZERO }
    }

    #[inline]
    fn push(&mut self, now: Instant, bytes: u64) {
        match self.entries.last_mut() {
            Some((at, sum)) if now.saturating_since(*at) <= self.grain => *sum += bytes,
            _ => {
                if self.entries.len() >= self.capacity {
                    self.merge();
                }
                self.entries.push((now, bytes));
            }
        }
    }

    /// Merges entries to halve their number.
    #[cold]
    fn merge(&mut self) {
        while self.entries.len() > self.capacity / 2 {
            self.grain = (self.grain * 2).max(Duration::from_micros(1));
            let grain = self.grain;
            self.entries.dedup_by(|(at, bytes), (first, sum)| {
                let near = at.saturating_since(*first) <= grain;
                *sum += if near { *bytes } else { 0 };
                near
            });
        }
    }
}

/// Whether an IP packet begins with hop-by-hop options.
fn has_hop_by_hop(packet: &[u8]) -> bool {
    matches!(packet, [first, _, _, _, _, _, HOP_BY_HOP, ..] if first >> 4 == 6)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(client: Script, server: Script) -> (TcpApp, TcpApp) {
        let (a, b) = ("10.0.0.1:40000".parse().unwrap(), "10.0.0.2:80".parse().unwrap());
        let end = |local, connect_to, script, seed, expects| End {
            local,
            connect_to,
            start: Instant::from_millis(10),
            stop: Instant::from_secs(2),
            script,
            options: Options::default(),
            seed,
            expects,
        };
        (TcpApp::new(end(a, Some(b), client, 1, 2)), TcpApp::new(end(b, None, server, 2, 1)))
    }

    /// Runs both ends with 5 ms per direction until `until`.
    fn run(a: &mut TcpApp, b: &mut TcpApp, until: Instant) {
        let mut wire: std::collections::BTreeMap<(Instant, u64), (bool, Packet)> = Default::default();
        let (mut now, mut serial) = (Instant::ZERO, 0);
        while now <= until {
            while let Some(entry) = wire.first_entry().filter(|e| e.key().0 <= now) {
                let (to_b, packet) = entry.remove();
                if to_b { b.on_packet(&packet, now) } else { a.on_packet(&packet, now) }
            }
            for (app, to_b) in [(&mut *a, true), (&mut *b, false)] {
                if app.next_at() <= now {
                    app.on_timeout(now);
                }
                while let Some(packet) = app.poll_transmit(now) {
                    serial += 1;
                    wire.insert((now + Duration::from_millis(5), serial), (to_b, packet));
                }
            }
            now += Duration::from_micros(500);
        }
    }

    #[test]
    fn many_deliveries_are_merged_without_losing_bytes() {
        let mut all = Deliveries::new(100);
        for us in 0..5000 {
            all.push(Instant::from_micros(10 * us), 3);
        }
        assert_eq!(all.entries.iter().map(|(_, bytes)| bytes).sum::<u64>(), 15_000);
        assert!((40..=100).contains(&all.entries.len()), "{}", all.entries.len());
        assert!(all.entries.is_sorted() && all.entries[0].0 == Instant::ZERO);
        assert!(all.entries.windows(2).all(|w| w[1].0.saturating_since(w[0].0) <= Duration::from_millis(2)));
        let mut few = Deliveries::new(100);
        for (us, bytes) in [(1, 2), (1, 3), (2, 4)] {
            few.push(Instant::from_micros(us), bytes);
        }
        assert_eq!(few.entries, [(Instant::from_micros(1), 5), (Instant::from_micros(2), 4)]);
    }

    #[test]
    fn a_transfer_arrives_whole() {
        let (mut a, mut b) = pair(Script::Send { bytes: Some(500_000), limit_bps: None }, Script::Receive);
        run(&mut a, &mut b, Instant::from_secs(1));
        assert_eq!((b.received(), b.is_intact(), b.is_complete()), (500_000, true, true));
        assert_eq!(b.deliveries().iter().map(|(_, n)| n).sum::<u64>(), 500_000);
        assert_eq!(a.stats().retransmissions(), 0);
    }

    #[test]
    fn a_paced_stream_keeps_its_rate_and_ends() {
        let (mut a, mut b) = pair(Script::Receive, Script::Send { bytes: None, limit_bps: Some(8_000_000) });
        run(&mut a, &mut b, Instant::from_secs(3));
        let megabytes = a.received() as f64 * 1e-6;
        assert!((1.9..2.0).contains(&megabytes), "{megabytes}");
        assert!(a.is_complete() && a.is_intact());
    }

    #[test]
    fn answers_are_timed() {
        let gap = Duration::from_millis(80);
        let (mut a, mut b) = pair(
            Script::Requests { request_bytes: 100, response_bytes: 1000, gap },
            Script::Answer { request_bytes: 100, response_bytes: 1000 },
        );
        run(&mut a, &mut b, Instant::from_secs(3));
        assert!((20..=23).contains(&a.answers().len()), "{}", a.answers().len());
        assert!(a.answers().iter().all(|(_, took)| (10..13).contains(&took.as_millis())));
    }
}
