//! UDP applications: a source at a constant rate or in bursts, a sink, an echo server.
//!
//! A packet carries a sequence number and its send time, from which the sink computes delay, order and loss.

use super::due;
use crate::measure::Arrival;
use anabranch_element::packet::Packet;
use anabranch_element::time::{Duration, Instant, nanos};
use anabranch_wire::ip::{parse_udp, udp_datagram};
use rand_chacha::ChaCha12Rng;
use rand_core::{RngCore, SeedableRng};
use std::collections::VecDeque;
use std::net::SocketAddr;

/// Length of the sequence number and time at the start of a payload.
const HEADER_BYTES: usize = 16;
/// Maximum number of arrivals kept.
pub const MAX_ARRIVALS: usize = 16 << 20;

/// A UDP socket and its application.
#[derive(Debug)]
pub struct UdpApp {
    local: SocketAddr,
    source: Option<Source>,
    echo: bool,
    /// Replies of an echo server that wait to be sent.
    answers: VecDeque<(SocketAddr, Vec<u8>)>,
    arrivals: Vec<Arrival>,
    /// Number of arrivals that were not kept.
    unkept: u64,
}

/// When and what a source sends.
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    /// Address of the peer.
    pub to: SocketAddr,
    /// Time of the first packet.
    pub start: Instant,
    /// Time from which no packet is sent.
    pub stop: Instant,
    /// Time between packets within a burst.
    pub interval: Duration,
    /// UDP payload, bytes; at least 16.
    pub payload_bytes: usize,
    /// Mean lengths of bursts and pauses, and the seed of the lengths; `None`: no pauses.
    pub bursts: Option<(Duration, Duration, u64)>,
}

#[derive(Debug)]
struct Source {
    schedule: Schedule,
    sent: u64,
    /// Time of the next packet; `None` at the end.
    due: Option<Instant>,
    bursts: Option<Bursts>,
}

impl UdpApp {
    /// A source with a schedule; packets that come back are kept as arrivals.
    #[must_use]
    pub fn source(local: SocketAddr, schedule: Schedule) -> Self {
        let bursts = schedule.bursts.map(|(on, off, seed)| Bursts::new(on, off, seed, schedule.start));
        let due = (schedule.start < schedule.stop).then_some(schedule.start);
        Self { source: Some(Source { schedule, sent: 0, due, bursts }), ..Self::sink(local) }
    }

    /// A sink, which keeps what arrives.
    #[must_use]
    pub fn sink(local: SocketAddr) -> Self {
        Self { local, source: None, echo: false, answers: VecDeque::new(), arrivals: Vec::new(), unkept: 0 }
    }

    /// An echo server.
    #[must_use]
    pub fn echo(local: SocketAddr) -> Self {
        Self { echo: true, ..Self::sink(local) }
    }

    /// Local address.
    #[must_use]
    pub const fn local(&self) -> SocketAddr {
        self.local
    }

    /// Packets sent by the schedule.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.source.as_ref().map_or(0, |source| source.sent)
    }

    /// Received packets, in order of arrival.
    #[must_use]
    pub fn arrivals(&self) -> &[Arrival] {
        &self.arrivals
    }

    /// Arrivals that are missing in [`arrivals`](Self::arrivals) because there were too many.
    #[must_use]
    pub fn unkept(&self) -> u64 {
        self.unkept
    }

    /// Processes a packet for this socket.
    pub fn on_packet(&mut self, packet: &Packet, now: Instant) {
        let Ok((from, _, payload)) = parse_udp(packet) else { return };
        let payload = &packet[payload];
        if self.echo {
            self.answers.push_back((from, payload.to_vec()));
            return;
        }
        let field = |at: usize| payload.get(at..)?.first_chunk::<8>().map(|bytes| u64::from_be_bytes(*bytes));
        if let (Some(number), Some(sent)) = (field(0), field(8)) {
            if self.arrivals.len() >= MAX_ARRIVALS {
                self.unkept += 1;
                return;
            }
            self.arrivals.push(Arrival {
                number,
                sent_s: Instant::from_nanos(sent).as_secs_f64(),
                arrived_s: now.as_secs_f64(),
            });
        }
    }

    /// The next packet that is due.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Packet> {
        if let Some((to, payload)) = self.answers.pop_front() {
            return udp_datagram(self.local, to, &payload).ok().map(|bytes| Packet::new(now, bytes));
        }
        let local = self.local;
        let source = self.source.as_mut()?;
        let due = source.due.filter(|due| *due <= now)?;
        let mut payload = vec![0; source.schedule.payload_bytes.max(HEADER_BYTES)];
        payload[..8].copy_from_slice(&source.sent.to_be_bytes());
        payload[8..HEADER_BYTES].copy_from_slice(&now.as_nanos().to_be_bytes());
        source.sent += 1;
        source.advance(due);
        udp_datagram(local, source.schedule.to, &payload).ok().map(|bytes| Packet::new(now, bytes))
    }

    /// When the next packet is due; [`Instant::MAX`]: never.
    #[must_use]
    #[inline(always)]
    pub fn next_at(&self) -> Instant {
        self.source.as_ref().map_or(Instant::MAX, |source| due(source.due))
    }
}

impl Source {
    fn advance(&mut self, due: Instant) {
        let mut next = due + self.schedule.interval.max(Duration::from_nanos(1));
        if let Some(bursts) = &mut self.bursts {
            next = bursts.next_on(next);
        }
        self.due = Some(next).filter(|next| *next < self.schedule.stop);
    }
}

/// Exponentially distributed bursts and pauses, a burst first.
#[derive(Debug)]
struct Bursts {
    on: Duration,
    off: Duration,
    rng: ChaCha12Rng,
    on_until: Instant,
}

impl Bursts {
    fn new(on: Duration, off: Duration, seed: u64, start: Instant) -> Self {
        let mut bursts = Self { on, off, rng: ChaCha12Rng::seed_from_u64(seed), on_until: start };
        bursts.on_until = start + bursts.draw(on);
        bursts
    }

    /// `due` if it is in a burst, else the start of the next one.
    fn next_on(&mut self, due: Instant) -> Instant {
        let mut at = due;
        while at >= self.on_until {
            let start = self.on_until + self.draw(self.off);
            self.on_until = start + self.draw(self.on);
            at = at.max(start);
        }
        at
    }

    fn draw(&mut self, mean: Duration) -> Duration {
        let uniform = ((self.rng.next_u64() >> 11) as f64 + 1.0) / (1u64 << 53) as f64;
        // Never 0, so that time advances.
        Duration::from_nanos((-uniform.ln() * nanos(mean) as f64) as u64 + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(bursts: Option<(Duration, Duration, u64)>) -> Schedule {
        Schedule {
            to: "10.0.0.2:9".parse().unwrap(),
            start: Instant::from_millis(5),
            stop: Instant::from_millis(1005),
            interval: Duration::from_millis(1),
            payload_bytes: 100,
            bursts,
        }
    }

    fn run(app: &mut UdpApp, sink: &mut UdpApp) {
        while app.next_at() < Instant::MAX {
            let at = app.next_at();
            while let Some(packet) = app.poll_transmit(at) {
                sink.on_packet(&packet, at + Duration::from_millis(3));
            }
        }
    }

    #[test]
    fn a_constant_rate_is_constant() {
        let mut app = UdpApp::source("10.0.0.1:8".parse().unwrap(), schedule(None));
        let mut sink = UdpApp::sink("10.0.0.2:9".parse().unwrap());
        run(&mut app, &mut sink);
        assert_eq!((app.sent(), sink.arrivals().len()), (1000, 1000));
        let last = sink.arrivals()[999];
        assert_eq!(last.number, 999);
        assert!((last.arrived_s - last.sent_s - 0.003).abs() < 1e-9);
    }

    #[test]
    fn bursts_send_about_half_of_the_time() {
        let ms = Duration::from_millis(5);
        let mut app = UdpApp::source("10.0.0.1:8".parse().unwrap(), schedule(Some((ms, ms, 3))));
        let mut sink = UdpApp::sink("10.0.0.2:9".parse().unwrap());
        run(&mut app, &mut sink);
        assert!((350..750).contains(&app.sent()), "{}", app.sent());
    }

    #[test]
    fn an_echo_answers_with_the_same_bytes() {
        let mut app = UdpApp::source("10.0.0.1:8".parse().unwrap(), schedule(None));
        let mut echo = UdpApp::echo("10.0.0.2:9".parse().unwrap());
        let at = Instant::from_millis(5);
        echo.on_packet(&app.poll_transmit(at).unwrap(), at);
        let answer = echo.poll_transmit(at).unwrap();
        app.on_packet(&answer, Instant::from_millis(25));
        assert_eq!(app.arrivals().len(), 1);
        assert!((app.arrivals()[0].arrived_s - app.arrivals()[0].sent_s - 0.02).abs() < 1e-9);
    }
}
