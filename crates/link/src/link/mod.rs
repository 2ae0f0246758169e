//! One direction of a link.
//!
//! Packets wait in a bounded queue, are sent one at a time, may be lost on the medium, and arrive after the propagation
//! delay. Every step is computed from the packet's logical time: a caller that wakes late delivers late, but does not shift
//! later packets, and the frequency of polling does not change any result.
//!
//! - The queue limit counts waiting packets without the one being sent. Tail drop.
//! - Loss is drawn when a packet has been sent: a lost packet has used the rate, as on radio.
//! - The delay of a packet is `delay` plus a uniform draw from 0 ..= `jitter`. The order is kept by holding a packet until
//!   the previous one is due, unless `reorder` is set.
//! - Down: all packets inside and all offered packets are dropped, and carrier is lost. Black hole: packets sent from now on
//!   never arrive, carrier stays, and packets sent before still arrive.

use super::ioam::{IoamNode, Queue, Strip, Telemetry};
use super::loss::{LossModel, LossProcess};
use super::rate::{Rate, Server};
use anabranch_element::packet::Packet;
use anabranch_element::time::{Duration, Instant, nanos};
use rand_chacha::ChaCha12Rng;
use rand_core::{RngCore, SeedableRng};
use std::collections::VecDeque;

/// Maximum number of packets on the medium, whatever the rate and delay.
pub const MAX_IN_FLIGHT_PACKETS: usize = 1 << 18;
/// Maximum number of bytes on the medium, whatever the rate and delay.
pub const MAX_IN_FLIGHT_BYTES: usize = 256 << 20;

/// Bytes per packet for converting a queue limit in packets to the capacity in bytes reported in traces.
const FULL_PACKET_BYTES: usize = 1500;

/// Configuration of one direction of a link.
#[derive(Debug, Clone, PartialEq)]
pub struct LinkConfig {
    /// Transmission rate.
    pub rate: Rate,
    /// Propagation delay.
    pub delay: Duration,
    /// Upper bound of the random extra delay.
    pub jitter: Duration,
    /// Whether jitter may change the order of packets.
    pub reorder: bool,
    /// Loss on the medium.
    pub loss: LossModel,
    /// Capacity of the queue.
    pub queue: QueueLimit,
    /// Maximum packet size in bytes; larger packets are dropped silently.
    pub mtu_bytes: Option<usize>,
    /// Whether the link has carrier.
    pub up: bool,
    /// Whether the medium drops every packet.
    pub black_hole: bool,
    /// The IOAM node whose data is written into traces, if any.
    pub ioam: Option<IoamNode>,
    /// Telemetry to remove from passing packets.
    pub strip: Strip,
}

/// Capacity of the queue; a packet that exceeds either limit is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueLimit {
    /// Maximum number of waiting packets.
    pub packets: usize,
    /// Maximum number of waiting bytes.
    pub bytes: usize,
}

/// A change to a running link.
#[derive(Debug, Clone, PartialEq)]
pub enum LinkChange {
    /// New rate; a packet being sent continues at the new rate.
    Rate(Rate),
    /// New propagation delay, for packets sent from now on.
    Delay(Duration),
    /// New jitter bound, for packets sent from now on.
    Jitter(Duration),
    /// Whether jitter may reorder.
    Reorder(bool),
    /// New loss model; a current burst ends.
    Loss(LossModel),
    /// New queue limit; packets that already wait are kept.
    Queue(QueueLimit),
    /// New maximum packet size in bytes.
    Mtu(Option<usize>),
    /// Carrier is gained (true), or lost together with all packets inside (false).
    Up(bool),
    /// The medium starts (true) or stops (false) dropping every packet.
    BlackHole(bool),
    /// Telemetry to remove from passing packets from now on.
    Strip(Strip),
}

/// Counters and queue depth of one direction. Bytes are those of whole packets as offered.
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
    /// Packets dropped because the queue was full.
    pub queue_drops: u64,
    /// Packets lost by the loss model.
    pub random_drops: u64,
    /// Packets dropped because the link was down or went down.
    pub down_drops: u64,
    /// Packets dropped by a black hole.
    pub black_hole_drops: u64,
    /// Packets larger than the link's MTU.
    pub oversize_drops: u64,
    /// Packets dropped because the medium was full (see [`MAX_IN_FLIGHT_PACKETS`]).
    pub overflow_drops: u64,
    /// Packets waiting or being sent now.
    pub queue_packets: u64,
    /// Bytes waiting or being sent now.
    pub queue_bytes: u64,
    /// Maximum number of bytes that ever waited or were being sent.
    pub queue_bytes_max: u64,
    /// Packets sent, including those lost on the medium.
    pub sent_packets: u64,
    /// Sum over sent packets of the time from arrival until sent, in nanoseconds.
    pub sojourn_total_ns: u64,
    /// Largest such time, in nanoseconds.
    pub sojourn_max_ns: u64,
    /// That time for the last packet sent, in nanoseconds.
    pub sojourn_last_ns: u64,
}

impl LinkStats {
    /// Number of packets that went in and will never come out.
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

/// One direction of a link; see the module documentation.
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
    /// All packets inside. First those on the medium with the time at which they are due, earliest first; then the one being
    /// sent and those waiting, with [`Instant::MAX`]. A packet is stored once, from entry to exit.
    line: VecDeque<(Instant, Packet)>,
    /// Number of packets on the medium.
    in_flight: usize,
    flight_bytes: usize,
    /// The latest due time of any packet put on the medium.
    last_due: Instant,
    /// End of the current transmission; [`Instant::MAX`] if there is none, or the link stalls.
    sent_at: Instant,
    sending_bytes: usize,
    waiting_bytes: usize,
    /// Earliest possible arrival, see [`Link::next_at`]; [`Instant::MAX`] if there is none without further packets or changes.
    next: Instant,
    last_in: Instant,
    telemetry: Option<Box<Telemetry>>,
    stats: LinkStats,
}

impl Link {
    /// A link that is idle at time 0. The seed determines loss and jitter.
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

    /// Sets the wall-clock time at time 0 ([`IoamNode::epoch`]), after the clock was set. No effect on a link that is no IOAM
    /// node.
    pub fn set_ioam_epoch(&mut self, epoch: Duration) {
        if let Some(Telemetry { node: Some(node), .. }) = self.telemetry.as_deref_mut() {
            node.set_epoch(epoch);
        }
    }

    /// Offers a packet at its logical time `packet.at`; a time earlier than that of the previous packet is raised to it.
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

    /// The next packet that has arrived at the far end by `now`; its `at` is the arrival time.
    #[inline(always)]
    pub fn take(&mut self, now: Instant) -> Option<Packet> {
        if self.next > now { None } else { self.take_due(now) }
    }

    /// Like [`take`](Self::take), when something may be due.
    fn take_due(&mut self, now: Instant) -> Option<Packet> {
        self.advance(now);
        // Packets that are not yet on the medium are never due, whatever `now` is.
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

    /// The earliest time at which [`Link::take`] may return a packet.
    #[must_use]
    #[inline]
    pub fn next_at(&self) -> Option<Instant> {
        Some(self.next).filter(|next| *next < Instant::MAX)
    }

    /// Updates the earliest possible arrival after a change.
    #[inline]
    fn look_ahead(&mut self) {
        // A packet arrives no sooner than the delay after it was sent. With packets in flight and order kept, the first of them is
        // due first; waiting for it alone saves one wake-up per packet.
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

    /// The current rate.
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

    /// Number of packets that wait or are being sent; the first of them is being sent.
    #[inline]
    fn inside(&self) -> usize {
        self.line.len() - self.in_flight
    }

    #[inline]
    fn queue_bytes(&self) -> usize {
        self.waiting_bytes + self.sending_bytes
    }

    /// Completes all transmissions that end by `to`.
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

    /// Starts the transmission of the first packet that is not on the medium.
    #[inline]
    fn send(&mut self, at: Instant, len: usize) {
        self.sending_bytes = len;
        self.sent_at = self.server.start(at, len);
    }

    /// Ends the current transmission: the packet is put on the medium, or lost.
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
        // Both numbers are always drawn, so that a change of one model does not shift the random stream of the other.
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

    /// Moves the last packet on the medium forward, because it is due before others.
    fn overtake(&mut self, due: Instant) {
        let mut place = self.in_flight - 1;
        self.line[place].0 = due;
        while place > 0 && self.line[place - 1].0 > due {
            self.line.swap(place - 1, place);
            place -= 1;
        }
    }

    fn drop_everything(&mut self, now: Instant) {
        // Packets due by now have arrived, even if they were not taken yet.
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

/// A random number from 0 ..= `bound_ns`.
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
