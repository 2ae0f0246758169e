//! One direction of a link.
//!
//! Packets wait in a bounded queue, are sent one at a time, may be lost on the medium, and arrive after
//! the propagation delay. Every step is computed from the packet's logical time, so a caller that wakes
//! late delivers late but shifts nothing after it, and how often it polls changes no result.
//!
//! - The queue limit counts packets that wait, not the one being sent. Tail drop.
//! - Loss is drawn when a packet has been sent: it used its share of the rate, as on radio.
//! - Delay of a packet: `delay` plus a uniform draw from 0 ..= `jitter`. Order is kept by holding a
//!   packet until the one before it is due, unless `reorder` is set.
//! - Down: everything inside and everything offered is dropped, and carrier is lost. Black hole: what is
//!   sent never arrives, carrier stays, and what has been sent already still arrives.

use super::ioam::{IoamNode, Queue, Strip, Telemetry};
use super::loss::{LossModel, LossProcess};
use super::rate::{Rate, Server};
use crate::packet::Packet;
use crate::time::{Duration, Instant, nanos};
use rand_chacha::ChaCha12Rng;
use rand_core::{RngCore, SeedableRng};
use std::collections::VecDeque;

/// Most packets a link holds on the medium, whatever its rate and delay.
pub const MAX_IN_FLIGHT_PACKETS: usize = 1 << 18;
/// Most bytes a link holds on the medium, whatever its rate and delay.
pub const MAX_IN_FLIGHT_BYTES: usize = 256 << 20;

/// What a queue limit in packets counts for in bytes, where a node tells its capacity.
const FULL_PACKET_BYTES: usize = 1500;

/// What one direction of a link does.
#[derive(Debug, Clone, PartialEq)]
pub struct LinkConfig {
    /// How fast packets are sent.
    pub rate: Rate,
    /// Propagation delay.
    pub delay: Duration,
    /// Upper bound of the random extra delay.
    pub jitter: Duration,
    /// Whether jitter may change the order of packets.
    pub reorder: bool,
    /// Loss on the medium.
    pub loss: LossModel,
    /// How much may wait.
    pub queue: QueueLimit,
    /// Largest packet in bytes; larger ones are dropped without a word.
    pub mtu_bytes: Option<usize>,
    /// Whether the link has carrier.
    pub up: bool,
    /// Whether the medium swallows everything.
    pub black_hole: bool,
    /// Whether it fills IOAM traces, and as whom.
    pub ioam: Option<IoamNode>,
    /// What it takes off the packets that pass.
    pub strip: Strip,
}

/// How much may wait to be sent; a packet that exceeds either bound is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueLimit {
    /// Most packets waiting.
    pub packets: usize,
    /// Most bytes waiting.
    pub bytes: usize,
}

/// A change to a running link.
#[derive(Debug, Clone, PartialEq)]
pub enum LinkChange {
    /// New rate; a packet being sent goes on at the new one.
    Rate(Rate),
    /// New propagation delay, for packets sent from now on.
    Delay(Duration),
    /// New jitter bound, for packets sent from now on.
    Jitter(Duration),
    /// Whether jitter may reorder.
    Reorder(bool),
    /// New loss model; a burst under way ends.
    Loss(LossModel),
    /// New queue limit; packets that already wait stay.
    Queue(QueueLimit),
    /// New packet size limit in bytes.
    Mtu(Option<usize>),
    /// Carrier comes (true) or is lost (false), with everything inside.
    Up(bool),
    /// The medium swallows what is sent (true), or no longer (false).
    BlackHole(bool),
    /// What it takes off the packets that pass, from now on.
    Strip(Strip),
}

/// Counters and depth of one direction. Bytes are those of whole packets as offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
pub struct LinkStats {
    /// Packets offered.
    pub packets_in: u64,
    /// Bytes offered.
    pub bytes_in: u64,
    /// Packets that arrived at the far end.
    pub packets_out: u64,
    /// Bytes that arrived at the far end.
    pub bytes_out: u64,
    /// Packets the queue had no room for.
    pub queue_drops: u64,
    /// Packets lost by the loss model.
    pub random_drops: u64,
    /// Packets dropped because the link was or went down.
    pub down_drops: u64,
    /// Packets swallowed by a black hole.
    pub black_hole_drops: u64,
    /// Packets larger than the link's MTU.
    pub oversize_drops: u64,
    /// Packets the bounded medium had no room for (see [`MAX_IN_FLIGHT_PACKETS`]).
    pub overflow_drops: u64,
    /// Packets waiting or being sent now.
    pub queue_packets: u64,
    /// Bytes waiting or being sent now.
    pub queue_bytes: u64,
    /// Most bytes that ever waited or were being sent.
    pub queue_bytes_max: u64,
    /// Packets that have been sent (including those lost on the medium).
    pub sent_packets: u64,
    /// Sum over sent packets of the time from arrival to sent, in nanoseconds.
    pub sojourn_total_ns: u64,
    /// Largest such time, in nanoseconds.
    pub sojourn_max_ns: u64,
    /// That time of the packet sent last, in nanoseconds.
    pub sojourn_last_ns: u64,
}

impl LinkStats {
    /// All packets that went in and will never come out.
    #[must_use]
    pub fn drops(&self) -> u64 {
        self.queue_drops
            + self.random_drops
            + self.down_drops
            + self.black_hole_drops
            + self.oversize_drops
            + self.overflow_drops
    }
}

impl Default for QueueLimit {
    /// 1000 packets, the usual length of a Linux device queue.
    fn default() -> Self {
        Self { packets: 1000, bytes: usize::MAX }
    }
}

impl Default for LinkConfig {
    fn default() -> Self {
        Self {
            rate: Rate::Unlimited,
            delay: Duration::ZERO,
            jitter: Duration::ZERO,
            reorder: false,
            loss: LossModel::None,
            queue: QueueLimit::default(),
            mtu_bytes: None,
            up: true,
            black_hole: false,
            ioam: None,
            strip: Strip::None,
        }
    }
}

/// One direction of a link; see the top of this file.
#[derive(Debug, Clone)]
pub struct Link {
    delay: Duration,
    jitter: Duration,
    reorder: bool,
    limit: QueueLimit,
    mtu_bytes: usize,
    up: bool,
    black_hole: bool,
    loss: LossProcess,
    jitter_rng: ChaCha12Rng,
    server: Server,
    waiting: VecDeque<Packet>,
    waiting_bytes: usize,
    /// The packet being sent and when it will have been.
    sending: Option<(Packet, Instant)>,
    /// Packets on the medium with the time they are due, earliest first.
    flight: VecDeque<(Instant, Packet)>,
    flight_bytes: usize,
    /// When something may arrive next, see [`Link::next_at`]; [`Instant::MAX`]: never by itself.
    next: Instant,
    last_in: Instant,
    telemetry: Option<Box<Telemetry>>,
    stats: LinkStats,
}

impl Link {
    /// A link that is idle at time 0. The seed decides loss and jitter.
    #[must_use]
    pub fn new(config: LinkConfig, seed: u64) -> Self {
        Self {
            delay: config.delay,
            jitter: config.jitter,
            reorder: config.reorder,
            limit: config.queue,
            mtu_bytes: config.mtu_bytes.unwrap_or(usize::MAX),
            up: config.up,
            black_hole: config.black_hole,
            loss: LossProcess::new(config.loss, stream(seed, 1)),
            jitter_rng: stream(seed, 2),
            server: Server::new(config.rate, Instant::ZERO),
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            sending: None,
            flight: VecDeque::new(),
            flight_bytes: 0,
            next: Instant::MAX,
            last_in: Instant::ZERO,
            telemetry: Telemetry::new(config.ioam, config.strip),
            stats: LinkStats::default(),
        }
    }

    /// Offers a packet at its logical time `packet.at`, which never counts as earlier than that of the
    /// packet before.
    #[inline]
    pub fn offer(&mut self, mut packet: Packet) {
        packet.at = packet.at.max(self.last_in);
        self.last_in = packet.at;
        let len = packet.len();
        self.stats.packets_in += 1;
        self.stats.bytes_in += len as u64;
        if !self.up {
            self.stats.down_drops += 1;
            return;
        }
        if len > self.mtu_bytes {
            self.stats.oversize_drops += 1;
            return;
        }
        self.advance(packet.at);
        if let Some(node) = self.telemetry.as_mut().and_then(|t| t.node.as_mut()) {
            node.arrived(&packet, packet.at);
        }
        if self.sending.is_none() {
            self.send(packet);
            self.look_ahead();
        } else if self.waiting.len() < self.limit.packets
            && self.waiting_bytes.saturating_add(len) <= self.limit.bytes
        {
            self.waiting_bytes += len;
            self.waiting.push_back(packet);
        } else {
            self.stats.queue_drops += 1;
            return;
        }
        self.stats.queue_bytes_max = self.stats.queue_bytes_max.max(self.queue_bytes() as u64);
    }

    /// The next packet that has arrived at the far end by `now`; its `at` is when it arrived.
    #[inline(always)]
    pub fn take(&mut self, now: Instant) -> Option<Packet> {
        if self.next > now { None } else { self.take_due(now) }
    }

    /// The same where something may be due.
    fn take_due(&mut self, now: Instant) -> Option<Packet> {
        self.advance(now);
        if self.flight.front()?.0 > now {
            return None;
        }
        let (due, mut packet) = self.flight.pop_front()?;
        self.look_ahead();
        self.flight_bytes -= packet.len();
        self.stats.packets_out += 1;
        self.stats.bytes_out += packet.len() as u64;
        packet.at = due;
        Some(packet)
    }

    /// The earliest time at which [`Link::take`] could have something that it has not now.
    #[must_use]
    #[inline]
    pub fn next_at(&self) -> Option<Instant> {
        Some(self.next).filter(|next| *next < Instant::MAX)
    }

    /// Notes when something may arrive next, after anything has changed.
    #[inline]
    fn look_ahead(&mut self) {
        let arrival = self.flight.front().map(|(due, _)| *due);
        // Nothing arrives sooner than the delay after it was sent. While something is in flight in order,
        // that is due first, which saves a wake-up per packet.
        let sent = self.sending.as_ref().map(|(_, done)| *done + self.delay);
        self.next = match (arrival, sent) {
            (Some(a), Some(s)) if self.reorder => a.min(s),
            (Some(a), _) => a,
            (None, s) => s.unwrap_or(Instant::MAX),
        };
    }

    /// Applies a change at `now`.
    pub fn change(&mut self, change: LinkChange, now: Instant) {
        self.advance(now);
        match change {
            LinkChange::Rate(rate) => {
                let end = self.server.set_rate(rate, now, self.sending.is_some());
                if let (Some(sending), Some(end)) = (&mut self.sending, end) {
                    sending.1 = end;
                }
            }
            LinkChange::Delay(delay) => self.delay = delay,
            LinkChange::Jitter(jitter) => self.jitter = jitter,
            LinkChange::Reorder(reorder) => self.reorder = reorder,
            LinkChange::Loss(model) => self.loss.set_model(model),
            LinkChange::Queue(limit) => self.limit = limit,
            LinkChange::Mtu(bytes) => self.mtu_bytes = bytes.unwrap_or(usize::MAX),
            LinkChange::Up(up) => {
                self.up = up;
                if !up {
                    self.drop_everything(now);
                }
            }
            LinkChange::BlackHole(on) => self.black_hole = on,
            LinkChange::Strip(strip) => match &mut self.telemetry {
                Some(telemetry) => telemetry.strip = strip,
                none => *none = Telemetry::new(None, strip),
            },
        }
        self.look_ahead();
    }

    /// Whether the link has carrier.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.up
    }

    /// The present rate.
    #[must_use]
    pub fn rate(&self) -> &Rate {
        self.server.rate()
    }

    /// Counters as of `now`.
    pub fn stats(&mut self, now: Instant) -> LinkStats {
        self.advance(now);
        LinkStats {
            queue_packets: (self.waiting.len() + usize::from(self.sending.is_some())) as u64,
            queue_bytes: self.queue_bytes() as u64,
            ..self.stats
        }
    }

    fn queue_bytes(&self) -> usize {
        self.waiting_bytes + self.sending.as_ref().map_or(0, |(packet, _)| packet.len())
    }

    /// Sends what can have been sent by `to`.
    #[inline]
    fn advance(&mut self, to: Instant) {
        if self.sending.as_ref().is_some_and(|(_, done)| *done <= to) {
            self.finish_sending(to);
        }
    }

    fn finish_sending(&mut self, to: Instant) {
        while let Some((packet, done)) = self.sending.take_if(|(_, done)| *done <= to) {
            self.put_on_medium(packet, done);
            if let Some(next) = self.waiting.pop_front() {
                self.waiting_bytes -= next.len();
                self.send(next);
            }
        }
        self.look_ahead();
    }

    fn send(&mut self, packet: Packet) {
        let done = self.server.start(packet.at, packet.len());
        self.sending = Some((packet, done));
    }

    #[inline(always)]
    fn put_on_medium(&mut self, mut packet: Packet, done: Instant) {
        let sojourn_ns = done.as_nanos().saturating_sub(packet.at.as_nanos());
        self.stats.sent_packets += 1;
        self.stats.sojourn_last_ns = sojourn_ns;
        self.stats.sojourn_total_ns = self.stats.sojourn_total_ns.saturating_add(sojourn_ns);
        self.stats.sojourn_max_ns = self.stats.sojourn_max_ns.max(sojourn_ns);
        if let Some(telemetry) = &mut self.telemetry {
            let queue = Queue {
                depth_bytes: self.waiting_bytes,
                capacity_bytes: self.limit.bytes.min(self.limit.packets.saturating_mul(FULL_PACKET_BYTES)),
                rate_bps: self.server.rate().mean_bps(),
            };
            telemetry.passes(&mut packet, done, queue, &self.stats);
        }
        // Both draws are always made, so that a change of one model does not shift the other's stream.
        let lost = self.loss.lost();
        let due = done + self.delay + self.draw_jitter();
        if self.black_hole {
            self.stats.black_hole_drops += 1;
        } else if lost {
            self.stats.random_drops += 1;
        } else if self.flight.len() >= MAX_IN_FLIGHT_PACKETS
            || self.flight_bytes + packet.len() > MAX_IN_FLIGHT_BYTES
        {
            self.stats.overflow_drops += 1;
        } else {
            self.flight_bytes += packet.len();
            let last_due = self.flight.back().map_or(Instant::ZERO, |(due, _)| *due);
            if due >= last_due || !self.reorder {
                self.flight.push_back((due.max(last_due), packet));
            } else {
                let place = self.flight.partition_point(|(other, _)| *other <= due);
                self.flight.insert(place, (due, packet));
            }
        }
    }

    #[inline]
    fn draw_jitter(&mut self) -> Duration {
        let bound_ns = nanos(self.jitter);
        if bound_ns == 0 {
            return Duration::ZERO;
        }
        // A 64-bit draw scaled down: the bias is below 2⁻³⁰ for any jitter under ten seconds.
        let draw = u128::from(self.jitter_rng.next_u64()) * (u128::from(bound_ns) + 1);
        Duration::from_nanos((draw >> 64) as u64)
    }

    fn drop_everything(&mut self, now: Instant) {
        // What was due by now has arrived, even if nobody has taken it yet.
        let arrived = self.flight.partition_point(|(due, _)| *due <= now);
        let lost = self.flight.len() - arrived + self.waiting.len() + usize::from(self.sending.is_some());
        self.stats.down_drops += lost as u64;
        self.flight.truncate(arrived);
        self.flight_bytes = self.flight.iter().map(|(_, packet)| packet.len()).sum();
        self.waiting.clear();
        self.waiting_bytes = 0;
        self.sending = None;
        self.server.abandon(now);
    }
}

/// An independent random stream of a seed.
fn stream(seed: u64, stream: u64) -> ChaCha12Rng {
    let mut rng = ChaCha12Rng::seed_from_u64(seed);
    rng.set_stream(stream);
    rng
}

#[cfg(test)]
mod tests;
