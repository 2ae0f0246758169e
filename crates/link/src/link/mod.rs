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
use anabranch_element::packet::Packet;
use anabranch_element::time::{Duration, Instant, nanos};
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
    delay_ns: u64,
    jitter_ns: u64,
    reorder: bool,
    limit: QueueLimit,
    mtu_bytes: usize,
    up: bool,
    black_hole: bool,
    loss: LossProcess,
    jitter_rng: ChaCha12Rng,
    server: Server,
    /// Packets on the medium with the time they are due, earliest first; behind them the one being sent, and behind
    /// that those that wait, none of which is due at any time. A packet stays in its place from end to end.
    line: VecDeque<(Instant, Packet)>,
    /// How many of them are on the medium.
    in_flight: usize,
    flight_bytes: usize,
    /// The latest time at which a packet was ever due that was not dropped.
    last_due: Instant,
    /// When the packet being sent will have been; [`Instant::MAX`]: there is none, or the link stalls.
    sent_at: Instant,
    sending_bytes: usize,
    waiting_bytes: usize,
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
            delay_ns: nanos(config.delay),
            jitter_ns: nanos(config.jitter),
            reorder: config.reorder,
            limit: config.queue,
            mtu_bytes: config.mtu_bytes.unwrap_or(usize::MAX),
            up: config.up,
            black_hole: config.black_hole,
            loss: LossProcess::new(config.loss, stream(seed, 1)),
            jitter_rng: stream(seed, 2),
            server: Server::new(config.rate, Instant::ZERO),
            line: VecDeque::new(),
            in_flight: 0,
            flight_bytes: 0,
            last_due: Instant::ZERO,
            sent_at: Instant::MAX,
            sending_bytes: 0,
            waiting_bytes: 0,
            next: Instant::MAX,
            last_in: Instant::ZERO,
            telemetry: Telemetry::new(config.ioam, config.strip),
            stats: LinkStats::default(),
        }
    }

    /// Its wall clock may have been set: what it says at time 0 ([`IoamNode::epoch`]). Nothing where this is no IOAM node.
    pub fn set_ioam_epoch(&mut self, epoch: Duration) {
        if let Some(Telemetry { node: Some(node), .. }) = self.telemetry.as_deref_mut() {
            node.set_epoch(epoch);
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
        let inside = self.inside();
        if inside == 0 {
            self.send(packet.at, len);
            self.line.push_back((Instant::MAX, packet));
            self.look_ahead();
        } else if inside - 1 < self.limit.packets
            && self.waiting_bytes.saturating_add(len) <= self.limit.bytes
        {
            self.waiting_bytes += len;
            self.line.push_back((Instant::MAX, packet));
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
        // Of what is not on the medium nothing is due, however late it is.
        if self.in_flight == 0 || self.line.front()?.0 > now {
            return None;
        }
        let (due, mut packet) = self.line.pop_front()?;
        self.in_flight -= 1;
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
        // Nothing arrives sooner than the delay after it was sent. While something is in flight in order,
        // that is due first, which saves a wake-up per packet.
        let sent = self.sent_at.after_nanos(self.delay_ns);
        self.next = match self.line.front() {
            Some((due, _)) if self.in_flight > 0 && self.reorder => sent.min(*due),
            Some((due, _)) if self.in_flight > 0 => *due,
            _ => sent,
        };
    }

    /// Applies a change at `now`.
    pub fn change(&mut self, change: LinkChange, now: Instant) {
        self.advance(now);
        match change {
            LinkChange::Rate(rate) => {
                let end = self.server.set_rate(rate, now, self.inside() > 0);
                self.sent_at = end.unwrap_or(Instant::MAX);
            }
            LinkChange::Delay(delay) => self.delay_ns = nanos(delay),
            LinkChange::Jitter(jitter) => self.jitter_ns = nanos(jitter),
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
            queue_packets: self.inside() as u64,
            queue_bytes: self.queue_bytes() as u64,
            ..self.stats
        }
    }

    /// Packets that wait or are being sent: the first of them is.
    #[inline]
    fn inside(&self) -> usize {
        self.line.len() - self.in_flight
    }

    #[inline]
    fn queue_bytes(&self) -> usize {
        self.waiting_bytes + self.sending_bytes
    }

    /// Sends what can have been sent by `to`.
    #[inline]
    fn advance(&mut self, to: Instant) {
        if self.sent_at <= to && self.inside() > 0 {
            self.finish_sending(to);
        }
    }

    fn finish_sending(&mut self, to: Instant) {
        while self.sent_at <= to && self.inside() > 0 {
            self.put_on_medium();
            (self.sent_at, self.sending_bytes) = (Instant::MAX, 0);
            if let Some((_, next)) = self.line.get(self.in_flight) {
                let (at, len) = (next.at, next.len());
                self.waiting_bytes -= len;
                self.send(at, len);
            }
        }
        self.look_ahead();
    }

    /// Starts to send the first packet that is not on the medium.
    #[inline]
    fn send(&mut self, at: Instant, len: usize) {
        self.sending_bytes = len;
        self.sent_at = self.server.start(at, len);
    }

    /// The packet being sent has been.
    #[inline(always)]
    fn put_on_medium(&mut self) {
        let Some((place_due, packet)) = self.line.get_mut(self.in_flight) else { return };
        let sojourn_ns = self.sent_at.as_nanos().saturating_sub(packet.at.as_nanos());
        self.stats.sent_packets += 1;
        self.stats.sojourn_last_ns = sojourn_ns;
        self.stats.sojourn_total_ns = self.stats.sojourn_total_ns.saturating_add(sojourn_ns);
        self.stats.sojourn_max_ns = self.stats.sojourn_max_ns.max(sojourn_ns);
        if let Some(telemetry) = &mut self.telemetry {
            let queue = Queue {
                depth_bytes: self.waiting_bytes,
                capacity_bytes: self.limit.bytes.min(self.limit.packets.saturating_mul(FULL_PACKET_BYTES)),
                rate_bps: self.server.bps_at(self.sent_at),
            };
            telemetry.passes(packet, self.sent_at, queue, &self.stats);
        }
        let len = packet.len();
        // Both draws are always made, so that a change of one model does not shift the other's stream.
        let lost = self.loss.lost();
        let due = self
            .sent_at
            .after_nanos(self.delay_ns)
            .after_nanos(jitter_ns(&mut self.jitter_rng, self.jitter_ns));
        let drops = if self.black_hole {
            &mut self.stats.black_hole_drops
        } else if lost {
            &mut self.stats.random_drops
        } else if self.in_flight >= MAX_IN_FLIGHT_PACKETS || self.flight_bytes + len > MAX_IN_FLIGHT_BYTES {
            &mut self.stats.overflow_drops
        } else {
            self.flight_bytes += len;
            self.in_flight += 1;
            if due >= self.last_due || !self.reorder {
                self.last_due = self.last_due.max(due);
                *place_due = self.last_due;
            } else {
                self.overtake(due);
            }
            return;
        };
        *drops += 1;
        self.line.remove(self.in_flight);
    }

    /// The last packet on the medium is due before others.
    fn overtake(&mut self, due: Instant) {
        let mut place = self.in_flight - 1;
        self.line[place].0 = due;
        while place > 0 && self.line[place - 1].0 > due {
            self.line.swap(place - 1, place);
            place -= 1;
        }
    }

    fn drop_everything(&mut self, now: Instant) {
        // What was due by now has arrived, even if nobody has taken it yet.
        let arrived = self.line.iter().take(self.in_flight).take_while(|(due, _)| *due <= now).count();
        self.stats.down_drops += (self.line.len() - arrived) as u64;
        self.line.truncate(arrived);
        self.in_flight = arrived;
        self.flight_bytes = self.line.iter().map(|(_, packet)| packet.len()).sum();
        self.last_due = self.line.back().map_or(Instant::ZERO, |(due, _)| *due);
        self.sent_at = Instant::MAX;
        (self.sending_bytes, self.waiting_bytes) = (0, 0);
        self.server.abandon(now);
    }
}

/// A draw from 0 ..= `bound_ns`.
#[inline]
fn jitter_ns(rng: &mut ChaCha12Rng, bound_ns: u64) -> u64 {
    if bound_ns == 0 {
        return 0;
    }
    // A 64-bit draw scaled down: the bias is below 2⁻³⁰ for any jitter under ten seconds.
    let draw = u128::from(rng.next_u64()) * (u128::from(bound_ns) + 1);
    (draw >> 64) as u64
}

/// An independent random stream of a seed.
fn stream(seed: u64, stream: u64) -> ChaCha12Rng {
    let mut rng = ChaCha12Rng::seed_from_u64(seed);
    rng.set_stream(stream);
    rng
}

#[cfg(test)]
mod tests;
