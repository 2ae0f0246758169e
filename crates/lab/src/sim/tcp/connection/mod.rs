//! One end of a connection: handshake, options, segments in and out, closing.
//!
//! ```text
//!   connect ─▶ SynSent ──SYN/ACK──▶ Established ──FIN both ways──▶ Done
//!   accept  ─▶ SynReceived ──ACK──▶     │
//!                                       └─ reset, or 15 timeouts in a row ─▶ Closed
//! ```
//!
//! There is no TIME-WAIT: a finished connection answers retransmissions for as long as its host keeps it. On the wire, sequence
//! numbers have 32 bits and start at random; internally they have 64 bits and start at 0.

use super::ack::Acknowledgment;
use super::receiver::{INITIAL_WINDOW_BYTES, Receiver};
use super::rto::RTO_INITIAL;
use super::sender::{Outgoing, Sender};
use super::telemetry::{TelemetryEnd, TelemetryStats};
use super::{Options, Recovery, TcpStats};
use crate::sim::due;
use crate::sim::spare;
use crate::sim::stream::SeededStream;
use anabranch_cc::CcConfig;
use anabranch_element::packet::Packet;
use anabranch_element::time::{Duration, Instant};
use anabranch_wire::ioam::Feedback;
use anabranch_wire::tcp::{SackBlocks, TcpFlags, TcpHeader, TcpOptions, TcpTemplate, emit_packet};
use std::net::SocketAddr;

/// Window scale offered: 6 MiB in units of 128 bytes.
const WINDOW_SHIFT: u8 = 7;
/// Maximum number of SYNs: the first one, the retries of Linux's `tcp_syn_retries`, and those without back-off.
const SYN_TRIES: u32 = 7 + LINEAR_SYN_TIMEOUTS;
/// Timeouts of a SYN before the timeout doubles; not for a SYN/ACK (Linux `tcp_syn_linear_timeouts`, since 6.5).
const LINEAR_SYN_TIMEOUTS: u32 = 4;
/// Maximum number of SYN/ACKs (Linux `tcp_synack_retries` and the first one).
const SYN_ACK_TRIES: u32 = 6;
/// Maximum number of consecutive timeouts (Linux `tcp_retries2`).
const DATA_TRIES: u32 = 15;
/// Tolerance by which a timestamp may be older than the newest one (Linux `TCP_PAWS_WINDOW`).
const PAWS_SLACK: i32 = 1;

/// Headroom of every segment for the headers of a cell or tunnel, bytes.
const HEADROOM: usize = 16;

/// Header size of nearly every segment, bytes: IPv4, TCP, timestamps.
const USUAL_HEADERS: usize = 52;

/// Reasons for the end of a connection other than FIN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closed {
    /// The peer reset or refused the connection.
    Reset,
    /// The peer did not respond.
    TimedOut,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    SynSent,
    SynReceived,
    Established,
    Closed(Closed),
}

/// One end of a TCP connection; see the module documentation.
#[derive(Debug)]
pub struct Connection {
    local: SocketAddr,
    remote: SocketAddr,
    options: Options,
    state: State,
    /// Initial sequence numbers, local and of the peer.
    iss: u32,
    irs: u32,
    timestamp_offset: u32,
    timestamps: bool,
    timestamp_recent: u32,
    last_ack_sent: u64,
    peer_shift: u8,
    our_shift: u8,
    sack_permitted: bool,
    peer_mss: u16,
    sender: Sender,
    receiver: Receiver,
    syn_due: bool,
    syn_at: Option<Instant>,
    /// Time of the first SYN or SYN/ACK.
    syn_sent_at: Instant,
    syns_sent: u32,
    /// Number of them sent, counting the first and those after a timeout.
    syn_tries: u32,
    reset_due: Option<u64>,
    said_all: bool,
    telemetry: Option<Box<TelemetryEnd>>,
    stream: SeededStream,
    /// Header templates of packets sent and received; `None` if the two addresses differ in family.
    template: Option<TcpTemplate>,
    peer_template: Option<TcpTemplate>,
}

impl Connection {
    /// Opens a connection that sends `stream`. The initial sequence number follows from `seed`.
    #[must_use]
    pub fn connect(
        local: SocketAddr,
        remote: SocketAddr,
        options: Options,
        stream: SeededStream,
        seed: u64,
        now: Instant,
    ) -> Self {
        let sender = Sender::new(options.congestion_control.build(CcConfig::default()), 1, &options, None);
        Self {
            local,
            remote,
            state: State::SynSent,
            iss: seed as u32,
            irs: 0,
            timestamp_offset: (seed >> 32) as u32,
            timestamps: options.timestamps,
            timestamp_recent: 0,
            last_ack_sent: 0,
            peer_shift: 0,
            our_shift: 0,
            sack_permitted: false,
            peer_mss: 536,
            sender,
            receiver: Receiver::new(&options, now),
            syn_due: true,
            syn_at: None,
            syn_sent_at: now,
            syns_sent: 0,
            syn_tries: 0,
            reset_due: None,
            said_all: false,
            telemetry: options.telemetry.map(|t| Box::new(TelemetryEnd::new(t))),
            stream,
            template: TcpTemplate::new(local, remote).ok(),
            peer_template: TcpTemplate::new(remote, local).ok(),
            options,
        }
    }

    /// Accepts a connection: answers a SYN.
    #[must_use]
    pub fn accept(
        local: SocketAddr,
        remote: SocketAddr,
        syn: &TcpHeader,
        options: Options,
        stream: SeededStream,
        seed: u64,
        now: Instant,
    ) -> Self {
        let mut c = Self::connect(local, remote, options, stream, seed, now);
        c.state = State::SynReceived;
        c.learn_options(syn);
        c
    }

    /// Processes a segment. Data that becomes available is passed to `deliver` in order.
    #[inline]
    pub fn on_segment(
        &mut self,
        h: &TcpHeader,
        payload: &[u8],
        now: Instant,
        deliver: &mut dyn FnMut(&[u8]),
    ) {
        let syn = h.flags.contains(TcpFlags::SYN);
        let rst = h.flags.contains(TcpFlags::RST);
        let acks_syn = h.flags.contains(TcpFlags::ACK) && h.ack == self.iss.wrapping_add(1);
        match self.state {
            State::Closed(_) => return,
            State::SynSent => {
                if !acks_syn {
                    return;
                }
                if rst {
                    self.state = State::Closed(Closed::Reset);
                } else if syn {
                    self.learn_options(h);
                    self.establish(h, now);
                    self.receiver.want_ack();
                }
                return;
            }
            State::SynReceived => {
                if rst && h.seq == self.irs.wrapping_add(1) {
                    self.state = State::Closed(Closed::Reset);
                    return;
                }
                if syn {
                    self.syn_due = true;
                    return;
                }
                if !h.flags.contains(TcpFlags::ACK) || unwrap(1, self.iss, h.ack).is_none_or(|ack| ack < 1) {
                    return;
                }
                self.establish(h, now);
            }
            State::Established => {}
        }
        let seq = unwrap(self.receiver.next(), self.irs, h.seq);
        if rst {
            if seq == Some(self.receiver.next()) {
                self.state = State::Closed(Closed::Reset);
            }
            return;
        }
        let Some(seq) = seq else { return };
        if syn || seq == 0 {
            // A repeated SYN/ACK: the local ACK was lost. Sequence number 0 is only used by SYN.
            self.receiver.want_ack();
            return;
        }
        if !self.timestamp_is_acceptable(h, seq, !payload.is_empty()) {
            self.receiver.want_ack();
            return;
        }
        let echo = self.echo(h, now);
        if let Some(report) = self.telemetry.as_mut().and_then(|end| end.on_segment(&h.options, now)) {
            self.sender.on_report(&report, now);
        }
        if h.flags.contains(TcpFlags::ACK) {
            self.on_ack(h, payload.is_empty(), echo, now);
        }
        if let Some(echo) = echo.filter(|_| !payload.is_empty()) {
            self.receiver.on_rtt(now.saturating_since(echo).max(Duration::from_millis(1)));
        }
        self.receiver.on_segment(seq, payload, h.flags.contains(TcpFlags::FIN), now, deliver);
    }

    /// Header template of the peer's packets.
    #[inline]
    #[must_use]
    pub fn peer_template(&self) -> Option<&TcpTemplate> {
        self.peer_template.as_ref()
    }

    /// Offset in the peer's stream of the payload of a segment; `None` if it is outside.
    #[inline]
    #[must_use]
    pub fn place_of(&self, header: &TcpHeader) -> Option<u64> {
        unwrap(self.receiver.next(), self.irs, header.seq)?.checked_sub(1)
    }

    /// Processes the hop-by-hop options of a packet of this connection. Call it before the segment itself is processed.
    pub fn on_trace(&mut self, packet: &[u8], now: Instant) {
        if let Some(end) = &mut self.telemetry {
            end.on_trace(packet, now);
        }
    }

    /// The newest report about the path, and counters; `None` without telemetry.
    #[must_use]
    pub fn telemetry(&self) -> Option<(Option<&Feedback>, TelemetryStats)> {
        self.telemetry.as_ref().map(|end| (end.report(), end.stats()))
    }

    /// The next packet that may be sent now.
    #[inline]
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Packet> {
        self.said_all = false;
        if let Some(seq) = self.reset_due.take() {
            return self.emit(seq, TcpFlags::RST | TcpFlags::ACK, 0, now);
        }
        match self.state {
            State::Closed(_) => None,
            State::SynSent | State::SynReceived => {
                std::mem::take(&mut self.syn_due).then(|| self.emit_syn(now)).flatten()
            }
            State::Established => {
                if let Some(Outgoing { seq, payload, fin }) = self.sender.poll(now) {
                    let flags = if fin { TcpFlags::FIN | TcpFlags::ACK } else { TcpFlags::ACK };
                    return self.emit(seq, flags, payload as usize, now);
                }
                if self.sender.take_window_probe() {
                    return self.emit(self.sender.una - 1, TcpFlags::ACK, 0, now);
                }
                if self.receiver.ack_is_due(now) {
                    self.said_all = true;
                    return self.emit(self.sender.next, TcpFlags::ACK, 0, now);
                }
                None
            }
        }
    }

    /// Whether [`poll_transmit`](Self::poll_transmit) has nothing more to return until a packet arrives or a timer expires. An ACK
    /// is sent when there is nothing else.
    #[inline]
    #[must_use]
    pub const fn has_said_all(&self) -> bool {
        self.said_all
    }

    /// Whether only an ACK of in-order data is pending, so that it may also cover further data.
    #[inline]
    #[must_use]
    pub fn may_wait(&self) -> bool {
        self.is_established() && self.receiver.is_within_batch()
    }

    /// Handles timers that have expired.
    pub fn on_timeout(&mut self, now: Instant) {
        match self.state {
            State::Closed(_) => {}
            State::SynSent | State::SynReceived => {
                if self.syn_at.is_some_and(|at| at <= now) {
                    self.syn_at = None;
                    let most = if self.state == State::SynSent { SYN_TRIES } else { SYN_ACK_TRIES };
                    if self.syn_tries >= most {
                        self.state = State::Closed(Closed::TimedOut);
                    } else {
                        self.syn_due = true;
                    }
                }
            }
            State::Established => {
                self.sender.on_timeout(now);
                if self.sender.timeouts_in_row > DATA_TRIES {
                    self.state = State::Closed(Closed::TimedOut);
                }
            }
        }
    }

    /// The next timer; [`Instant::MAX`] if none is set.
    #[must_use]
    #[inline(always)]
    pub fn next_at(&self) -> Instant {
        match self.state {
            State::Closed(_) => Instant::MAX,
            State::SynSent | State::SynReceived => due(self.syn_at),
            State::Established => self.sender.next_at().min(due(self.receiver.ack_timeout())),
        }
    }

    /// The application writes `bytes` more bytes of the stream.
    pub fn write(&mut self, bytes: u64) {
        self.sender.write(bytes);
    }

    /// The application closes its stream; `abandon_unsent` discards data that was never sent.
    pub fn close(&mut self, abandon_unsent: bool) {
        self.sender.close(abandon_unsent);
    }

    /// Aborts the connection and sends a reset to the peer.
    pub fn abort(&mut self) {
        if self.state == State::Established {
            self.reset_due = Some(self.sender.next);
        }
        self.state = State::Closed(Closed::Reset);
    }

    /// Whether the handshake is complete and the connection was not aborted.
    #[must_use]
    #[inline]
    pub fn is_established(&self) -> bool {
        self.state == State::Established
    }

    /// Why the connection was aborted, if it was.
    #[must_use]
    pub fn closed(&self) -> Option<Closed> {
        match self.state {
            State::Closed(why) => Some(why),
            _ => None,
        }
    }

    /// Whether all data written locally, and FIN, was acknowledged.
    #[must_use]
    #[cfg(test)]
    pub fn is_sent(&self) -> bool {
        self.sender.is_done()
    }

    /// Whether all data of the peer, and its FIN, has arrived.
    #[must_use]
    pub fn is_received(&self) -> bool {
        self.receiver.is_finished()
    }

    /// Bytes delivered to the application.
    #[must_use]
    pub fn received_bytes(&self) -> u64 {
        self.receiver.delivered_bytes()
    }

    /// Bytes written and not yet acknowledged.
    #[must_use]
    pub fn unacknowledged_bytes(&self) -> u64 {
        self.sender.unacknowledged_bytes()
    }

    /// Counters and estimates of the sending half.
    #[must_use]
    pub fn stats(&self) -> TcpStats {
        self.sender.stats()
    }

    /// Number of segments received behind a gap, and of segments without new data.
    #[must_use]
    pub fn receive_disorder(&self) -> (u64, u64) {
        (self.receiver.out_of_order_segments, self.receiver.duplicate_segments)
    }

    /// Local address.
    #[must_use]
    pub const fn local(&self) -> SocketAddr {
        self.local
    }

    /// Address of the peer.
    #[must_use]
    pub const fn remote(&self) -> SocketAddr {
        self.remote
    }

    fn learn_options(&mut self, syn: &TcpHeader) {
        let o = &syn.options;
        self.irs = syn.seq;
        self.peer_mss = o.mss.unwrap_or(536).max(64);
        (self.peer_shift, self.our_shift) = match o.window_scale {
            Some(shift) => (shift.min(14), WINDOW_SHIFT),
            None => (0, 0),
        };
        self.sack_permitted = self.options.sack && o.sack_permitted;
        self.timestamps = self.options.timestamps && o.timestamps.is_some();
        self.timestamp_recent = o.timestamps.map_or(0, |(value, _)| value);
    }

    fn establish(&mut self, h: &TcpHeader, now: Instant) {
        let mss = self.our_mss().min(self.peer_mss) - if self.timestamps { 12 } else { 0 };
        let echo = h.options.timestamps.filter(|_| self.timestamps).map(|(_, echo)| echo);
        let answers_first = echo == Some(self.timestamp(self.syn_sent_at));
        let cc = self.options.congestion_control.build(CcConfig {
            mss_bytes: u32::from(mss),
            // RFC 5681 §3.1: the loss of a SYN or SYN/ACK reduces the initial window to one segment. Linux tolerates one loss
            // (`tcp_init_transfer`), and any number if the reply is to the first one (`tcp_try_undo_spurious_syn`).
            initial_window_segments: if self.syns_sent > 2 && self.syn_tries > 1 && !answers_first {
                1
            } else {
                self.options.initial_window_segments
            },
            hystart: self.options.hystart,
            int: self.options.int,
        });
        let rtt = match self.syns_sent {
            1 => Some(now.saturating_since(self.syn_sent_at)),
            _ => self.echo(h, now).map(|at| now.saturating_since(at).max(Duration::from_millis(1))),
        };
        let mut sender = Sender::new(cc, u32::from(mss), &self.options, rtt.map(|rtt| (rtt, now)));
        // The window of a SYN/ACK is not scaled.
        let shift = if self.state == State::SynSent { 0 } else { self.peer_shift };
        sender.window_end = 1 + (u64::from(h.window) << shift);
        sender.opened = self.state == State::SynSent;
        let (written, closing) = self.sender.intent();
        sender.write(written);
        if closing {
            sender.close(false);
        }
        self.sender = sender;
        // Kernels that count duplicates predate SACK compression.
        if self.sack_permitted && self.options.recovery == Recovery::Rack {
            self.receiver.compress_sacks(rtt);
        }
        self.state = State::Established;
        self.syn_at = None;
        self.syn_due = false;
    }

    #[inline]
    fn on_ack(&mut self, h: &TcpHeader, pure: bool, echo: Option<Instant>, now: Instant) {
        let una = self.sender.una;
        let unwrapped = |wire| unwrap(una, self.iss, wire);
        let Some(ack) = unwrapped(h.ack) else { return };
        if ack > self.sender.next {
            self.receiver.want_ack();
            return;
        }
        let mut blocks = [(0, 0); 4];
        let mut count = 0;
        for (left, right) in h.options.sack.as_slice() {
            if let (Some(left), Some(right)) = (unwrapped(*left), unwrapped(*right))
                && left < right
                && right <= self.sender.next
            {
                blocks[count] = (left, right);
                count += 1;
            }
        }
        let mut blocks = &blocks[..count];
        // RFC 2883 §4: the first block is a DSACK if it is below the ACK or within the second.
        let mut dsack = None;
        if let Some(&(left, right)) = blocks.first()
            && (right <= ack || blocks.get(1).is_some_and(|(l, r)| *l <= left && right <= *r))
        {
            dsack = Some((left, right));
            blocks = &blocks[1..];
        }
        let window_bytes = u64::from(h.window) << self.peer_shift;
        let sacks = if self.sack_permitted { blocks } else { &[] };
        self.sender.on_ack(&Acknowledgment { ack, window_bytes, sacks, dsack, echo, pure }, now);
    }

    /// PAWS (RFC 7323 §5) as in Linux, for segments with data. Stores the timestamp to echo.
    #[inline]
    fn timestamp_is_acceptable(&mut self, h: &TcpHeader, seq: u64, data: bool) -> bool {
        let Some((value, _)) = h.options.timestamps.filter(|_| self.timestamps) else { return true };
        let older_by = self.timestamp_recent.wrapping_sub(value) as i32;
        if data && older_by > PAWS_SLACK {
            return false;
        }
        if older_by <= 0 && seq <= self.last_ack_sent {
            self.timestamp_recent = value;
        }
        true
    }

    /// Send time of the segment whose timestamp the peer echoes.
    #[inline]
    fn echo(&self, h: &TcpHeader, now: Instant) -> Option<Instant> {
        let (_, echo) = h.options.timestamps.filter(|_| self.timestamps)?;
        let ago_ms = self.timestamp(now).wrapping_sub(echo);
        // A time before the run or in the future is not an echo of a local timestamp.
        now.as_millis().checked_sub(u64::from(ago_ms)).map(Instant::from_millis)
    }

    #[inline]
    fn timestamp(&self, now: Instant) -> u32 {
        self.timestamp_offset.wrapping_add(now.as_millis() as u32)
    }

    /// MSS of the local end. Room for a trace is reserved in all packets, as on a route with a lower MTU.
    fn our_mss(&self) -> u16 {
        let headers = if self.remote.is_ipv4() { 40 } else { 60 };
        let trace = self.options.telemetry.map_or(0, |telemetry| telemetry.header_bytes() as u16);
        self.options.mtu_bytes.saturating_sub(headers + trace).max(64)
    }

    fn emit_syn(&mut self, now: Instant) -> Option<Packet> {
        let answer = self.state == State::SynReceived;
        if self.syns_sent == 0 {
            self.syn_sent_at = now;
        }
        self.syns_sent += 1;
        // A SYN/ACK in reply to a repeated SYN restarts the timer and does not count as a try.
        if self.syn_at.is_none() {
            self.syn_tries += 1;
        }
        let linear = if answer { 0 } else { LINEAR_SYN_TIMEOUTS };
        self.syn_at = Some(now + RTO_INITIAL * (1 << self.syn_tries.saturating_sub(1 + linear)));
        let echo = if answer { self.timestamp_recent } else { 0 };
        self.last_ack_sent = 1;
        let header = TcpHeader {
            seq: self.iss,
            ack: if answer { self.irs.wrapping_add(1) } else { 0 },
            flags: if answer { TcpFlags::SYN | TcpFlags::ACK } else { TcpFlags::SYN },
            window: INITIAL_WINDOW_BYTES as u16,
            options: TcpOptions {
                mss: Some(self.our_mss()),
                window_scale: (!answer || self.our_shift > 0).then_some(WINDOW_SHIFT),
                sack_permitted: self.options.sack && (!answer || self.sack_permitted),
                timestamps: self.timestamps.then(|| (self.timestamp(now), echo)),
                ..TcpOptions::default()
            },
        };
        emit_packet(self.local, self.remote, &header, &[]).ok().map(|bytes| Packet::new(now, bytes))
    }

    /// Builds a segment with the current ACK; SACK blocks only if there is no payload.
    fn emit(&mut self, seq: u64, flags: TcpFlags, payload: usize, now: Instant) -> Option<Packet> {
        let mut sack = SackBlocks::default();
        let keep_ack_due = payload > 0 && self.sack_permitted && self.receiver.has_blocks();
        let (ack, window) = self.receiver.acknowledge();
        if keep_ack_due {
            self.receiver.want_ack();
        } else if self.sack_permitted && self.receiver.has_blocks() {
            for (left, right) in self.receiver.blocks(if self.timestamps { 3 } else { 4 }) {
                sack.push(self.irs.wrapping_add(left as u32), self.irs.wrapping_add(right as u32));
            }
        }
        self.last_ack_sent = ack;
        let mut header = TcpHeader {
            seq: self.iss.wrapping_add(seq as u32),
            ack: self.irs.wrapping_add(ack as u32),
            flags,
            window: u16::try_from(window >> self.our_shift).unwrap_or(u16::MAX),
            options: TcpOptions {
                timestamps: self.timestamps.then(|| (self.timestamp(now), self.timestamp_recent)),
                sack,
                ..TcpOptions::default()
            },
        };
        let template = self.template.as_ref()?;
        if let Some(end) = self.telemetry.as_mut().filter(|_| payload == 0) {
            let plain = template.headers_len(&header);
            end.answer(&mut header.options, plain, now);
        }
        let headers = template.headers_len(&header);
        let mut bytes = spare::take();
        match headers {
            // The length is a compile-time constant.
            USUAL_HEADERS => bytes.extend_from_slice(&[0; HEADROOM + USUAL_HEADERS]),
            _ => bytes.resize(HEADROOM + headers, 0),
        }
        let place = seq.saturating_sub(1);
        let payload_sum = if payload > 0 { self.stream.append(place, payload, &mut bytes) } else { 0 };
        let packet = &mut bytes[HEADROOM..];
        template.emit(packet, &header, payload_sum).ok()?;
        if let Some(end) = self.telemetry.as_mut().filter(|_| payload > 0)
            && let Some(with_trace) = end.trace(packet)
        {
            spare::give(bytes);
            return Some(Packet::new(now, with_trace));
        }
        Some(Packet::behind_headroom(now, HEADROOM, bytes))
    }
}

/// The 64-bit number nearest to `near` whose 32-bit form is `wire`; `None` if it is before the start.
#[inline]
fn unwrap(near: u64, initial: u32, wire: u32) -> Option<u64> {
    let distance = wire.wrapping_sub(initial.wrapping_add(near as u32)) as i32;
    near.checked_add_signed(distance.into())
}

#[cfg(test)]
mod tests;
