//! The sending half: what to send next, and the timers. ACKs are processed in `ack.rs`.
//!
//! ```text
//!     loss found (RACK or counting)      timeout
//!   Open ───────────────────▶ Recovery ─────────▶ Loss
//!    ▲ ▲                        │  (PRR)           │ (slow start from 1 segment)
//!    │ └── all sent at entry acknowledged, or the  │
//!    │     retransmissions proved unnecessary ─────┤
//!    └─────────────────────────────────────────────┘
//! ```
//!
//! There is no send buffer: the application writes a length, and the bytes are a function of their offset in the stream.
//! Sequence numbers have 64 bits: 0 is SYN, the first byte is 1.

use super::dupthresh::{DupThresh, Recovery};
use super::prr::Prr;
use super::rack::{self, LossProbe, Rack, RackInputs};
use super::rate::{DeliveryRate, SentState};
use super::rto::RttEstimator;
use super::scoreboard::{Scoreboard, Segment};
use super::{Options, TcpStats};
use crate::sim::due;
use anabranch_cc::{CongestionController, Controller};
use anabranch_element::time::{Duration, Instant, nanos};
use anabranch_wire::ioam::Feedback;

/// Number of segments that a connection sends before pacing starts, as in Linux (`tcp_update_skb_after_send`). Also the
/// window that determines the pacing rate of a locally opened connection until its first ACK: Linux sets that rate on
/// the SYN/ACK, before the first window (`tcp_rcv_synsent_state_process`).
const FIRST_SEGMENTS: u64 = 10;

/// The sending half; see the module documentation.
#[derive(Debug)]
pub struct Sender {
    pub(super) cc: Controller,
    pub(super) mss: u32,
    pub(super) una: u64,
    pub(super) next: u64,
    /// One past the last byte written.
    written: u64,
    closing: bool,
    fin_sent: bool,
    /// First sequence number beyond the receive window.
    pub(super) window_end: u64,
    pub(super) board: Scoreboard,
    pub(super) rack: Rack,
    /// Loss detection by counting, if it is used instead of RACK.
    pub(super) counting: Option<DupThresh>,
    /// State for loss detection without SACK.
    pub(super) reno_scoreboard: Option<RenoScoreboard>,
    /// Whether unnecessary reductions are undone.
    pub(super) undoes: bool,
    /// Consecutive duplicate ACKs.
    pub(super) duplicates_in_row: u64,
    pub(super) rtt: RttEstimator,
    /// Delivery rate, if the controller uses it.
    pub(super) rate: Option<DeliveryRate>,
    pub(super) phase: Phase,
    pub(super) undo: Option<Undo>,
    /// Time of the first retransmission in flight (Linux's `retrans_stamp`). An ACK that echoes an earlier time does not
    /// acknowledge a retransmission.
    pub(super) retransmitting_since: Option<Instant>,
    /// Bytes marked as lost since the controller was last notified.
    pub(super) unreported_lost_bytes: u64,
    pub(super) probe: Option<LossProbe>,
    pub(super) rto_at: Option<Instant>,
    pub(super) early_timer: Option<(Instant, EarlyTimer)>,
    /// Timeouts since the last acknowledgment of new data.
    pub(super) timeouts_in_row: u32,
    /// Value of `next` when cwnd was last the limit.
    pub(super) cwnd_limited_at: u64,
    pub(super) stats: TcpStats,
    pub(super) paced: bool,
    probe_due: bool,
    /// One segment may be sent regardless of cwnd.
    forced: bool,
    pace_at: Instant,
    pace_blocked: bool,
    /// Maximum pacing rate, bit/s.
    max_pacing_bps: Option<u64>,
    nodelay: bool,
    /// End of the last segment sent that was not full-sized.
    small_end: u64,
    /// Whether the connection was opened locally.
    pub(super) opened: bool,
    pub(super) persist_at: Option<Instant>,
    window_probe_due: bool,
    last_sent_at: Option<Instant>,
}

/// Phase of loss recovery; `until` is the sequence number whose acknowledgment ends it.
#[derive(Debug, Clone, Copy)]
pub(super) enum Phase {
    Open,
    Recovery { until: u64, prr: Prr },
    Loss { until: u64 },
}

/// State to detect an unnecessary reduction (RFC 3522, RFC 3708).
#[derive(Debug, Clone, Copy)]
pub(super) struct Undo {
    /// Everything below had arrived at the reduction; a DSACK for it does not concern this reduction.
    pub(super) from: u64,
    /// Number of retransmissions already in flight at the reduction: those above the end of a recovery outlive it.
    pub(super) retransmissions: u64,
    pub(super) dsacked: u64,
}

/// Replacement for the scoreboard without SACK (Linux's `tcp_add_reno_sack`).
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RenoScoreboard {
    /// Bytes that left the network, according to duplicate ACKs.
    pub(super) delivered_estimate_bytes: u64,
}

/// A timer that precedes the retransmission timeout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EarlyTimer {
    Reordering,
    Probe,
}

/// A segment to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outgoing {
    /// First sequence number.
    pub seq: u64,
    /// Payload length, bytes.
    pub payload: u32,
    /// Whether FIN follows the payload.
    pub fin: bool,
}

impl Sender {
    /// A sender after the handshake. `handshake`: its round trip, if it is known which SYN was answered, and the time.
    pub fn new(
        mut cc: Controller,
        mss: u32,
        options: &Options,
        handshake: Option<(Duration, Instant)>,
    ) -> Self {
        let mut rtt = RttEstimator::default();
        if let Some((sample, now)) = handshake {
            rtt.sample(sample, sample, now);
            cc.on_established(sample, now);
        }
        let paced = options.pacing || cc.pacing_bps().is_some();
        let rate = cc.wants_rate().then(DeliveryRate::default);
        Self {
            cc,
            mss: mss.max(1),
            una: 1,
            next: 1,
            written: 1,
            closing: false,
            fin_sent: false,
            window_end: 1,
            board: Scoreboard::default(),
            rack: Rack::default(),
            counting: match options.recovery {
                Recovery::Rack if options.sack => None,
                recovery => Some(DupThresh::new(recovery == Recovery::Adaptive, mss)),
            },
            reno_scoreboard: (!options.sack).then(RenoScoreboard::default),
            undoes: options.recovery != Recovery::Classic,
            duplicates_in_row: 0,
            rtt,
            rate,
            phase: Phase::Open,
            undo: None,
            retransmitting_since: None,
            unreported_lost_bytes: 0,
            probe: None,
            rto_at: None,
            early_timer: None,
            timeouts_in_row: 0,
            cwnd_limited_at: 0,
            stats: TcpStats::default(),
            paced,
            probe_due: false,
            forced: false,
            pace_at: Instant::ZERO,
            pace_blocked: false,
            max_pacing_bps: options.max_pacing_bps,
            nodelay: options.nodelay,
            small_end: 0,
            opened: false,
            persist_at: None,
            window_probe_due: false,
            last_sent_at: None,
        }
    }

    /// The application writes `bytes` more bytes.
    pub fn write(&mut self, bytes: u64) {
        if !self.closing {
            self.written = self.written.saturating_add(bytes);
        }
    }

    /// The application closes its stream. `abandon_unsent` also discards data that was never sent, except data that Nagle's
    /// algorithm delays.
    pub fn close(&mut self, abandon_unsent: bool) {
        let kept = self.next_new().is_some_and(|segment| self.must_gather(&segment));
        if abandon_unsent && !self.closing && !kept {
            self.written = self.written.min(self.next);
        }
        self.closing = true;
    }

    /// Bytes written, and whether the application has closed; taken over by a sender created after the handshake.
    pub(super) fn intent(&self) -> (u64, bool) {
        (self.written - 1, self.closing)
    }

    /// Whether everything including FIN was acknowledged.
    pub fn is_done(&self) -> bool {
        self.fin_sent && self.una == self.next
    }

    /// Bytes written and not yet acknowledged.
    pub fn unacknowledged_bytes(&self) -> u64 {
        self.written.saturating_sub(self.una)
    }

    /// The next segment that may be sent now; it is recorded as sent.
    #[inline]
    pub fn poll(&mut self, now: Instant) -> Option<Outgoing> {
        self.pace_blocked = false;
        if std::mem::take(&mut self.probe_due) && matches!(self.phase, Phase::Open) {
            return self.send_probe(now);
        }
        if self.board.is_empty() && self.next == self.written && !self.closing {
            // An end that only receives usually gets here: no window matters.
            self.note_app_limited(0);
            self.persist_at = None;
            return None;
        }
        let cwnd = self.cwnd_bytes();
        let in_flight = self.in_flight_bytes();
        if let Some(lost) = self.board.next_lost() {
            if !self.forced && in_flight > 0 && in_flight + u64::from(lost.len) > cwnd {
                self.cwnd_limited_at = self.next;
                return None;
            }
            if !self.forced && self.must_pace(now) {
                return None;
            }
            self.forced = false;
            return Some(self.retransmit(&lost, now));
        }
        let Some(segment) = self.next_new().filter(|segment| !self.must_gather(segment)) else {
            if self.written < self.next + u64::from(self.mss) && in_flight < cwnd {
                self.note_app_limited(in_flight);
            }
            self.arm_persist(now);
            return None;
        };
        if in_flight > 0 && in_flight + self.length(&segment) > cwnd {
            self.cwnd_limited_at = self.next;
            return None;
        }
        if self.must_pace(now) {
            return None;
        }
        if self.board.is_empty()
            && let Some(last) = self.last_sent_at
        {
            let idle = now.saturating_since(last);
            if idle > self.rtt.rto() {
                self.cc.on_idle(now, idle, self.rtt.rto());
            }
        }
        Some(self.send_new(segment, now))
    }

    /// Whether an empty segment below the window should be sent to probe the window.
    pub fn take_window_probe(&mut self) -> bool {
        std::mem::take(&mut self.window_probe_due)
    }

    /// Handles timers that have expired.
    pub fn on_timeout(&mut self, now: Instant) {
        if let Some((at, which)) = self.early_timer
            && at <= now
        {
            self.early_timer = None;
            match which {
                EarlyTimer::Reordering => {
                    self.detect_losses(now);
                }
                EarlyTimer::Probe => {
                    self.probe_due = true;
                    self.rto_at = Some(now + self.rtt.rto());
                }
            }
        }
        if self.rto_at.is_some_and(|at| at <= now) {
            self.on_rto(now);
        }
        if self.persist_at.is_some_and(|at| at <= now) {
            self.window_probe_due = true;
            self.rtt.back_off();
            self.persist_at = Some(now + self.rtt.rto());
        }
    }

    /// The next timer; [`Instant::MAX`] if none is set.
    #[inline(always)]
    pub fn next_at(&self) -> Instant {
        let early_timer = self.early_timer.map_or(Instant::MAX, |(at, _)| at);
        let pace = if self.pace_blocked { self.pace_at } else { Instant::MAX };
        early_timer.min(due(self.rto_at)).min(due(self.persist_at)).min(pace)
    }

    /// Counters and estimates.
    pub fn stats(&self) -> TcpStats {
        TcpStats {
            cwnd_bytes: self.cwnd_bytes(),
            ssthresh_bytes: self.cc.ssthresh_bytes(),
            in_flight_bytes: self.in_flight_bytes(),
            srtt: self.rtt.srtt(),
            min_rtt: self.rtt.min(),
            rto: self.rtt.rto(),
            acked_bytes: self.una.min(self.written).saturating_sub(1),
            ..self.stats
        }
    }

    /// Processes a report about the path. Call it before the acknowledgment that arrived with it is processed.
    pub fn on_report(&mut self, report: &Feedback, now: Instant) {
        self.cc.on_report(report, now);
        // Once a controller has set a pacing rate, the connection stays paced, as a kernel socket does.
        self.paced |= self.cc.pacing_bps().is_some();
    }

    /// The congestion window in use.
    #[inline]
    pub(super) fn cwnd_bytes(&self) -> u64 {
        match &self.phase {
            Phase::Recovery { prr, .. } if !self.cc.rules_recovery() => prr.cwnd(),
            _ => self.cc.cwnd_bytes(),
        }
    }

    /// Bytes considered to be in the network.
    #[inline]
    pub(super) fn in_flight_bytes(&self) -> u64 {
        let left = self.reno_scoreboard.map_or(0, |reno_scoreboard| reno_scoreboard.delivered_estimate_bytes);
        self.board.in_flight_bytes().saturating_sub(left)
    }

    pub(super) fn circumstances(&self, now: Instant) -> RackInputs {
        RackInputs {
            now,
            min_rtt: self.rtt.min(),
            srtt: self.rtt.srtt(),
            in_recovery: !matches!(self.phase, Phase::Open),
        }
    }

    /// Detects losses, enters recovery on the first one, and sets the reordering timer. Returns the bytes found lost.
    pub(super) fn detect_losses(&mut self, now: Instant) -> u64 {
        let before = self.board.lost_bytes();
        let again = match (&self.counting, self.reno_scoreboard) {
            (Some(counting), None) => {
                counting.detect(&mut self.board);
                None
            }
            (Some(counting), Some(_)) => {
                // Called at every ACK of a recovery: the first segment is still missing, unless it has been retransmitted.
                let enough = self.duplicates_in_row >= counting.threshold() as u64;
                if enough || matches!(self.phase, Phase::Recovery { .. }) {
                    self.board.lose_first();
                }
                None
            }
            (None, _) => {
                let circumstances = self.circumstances(now);
                self.rack.detect(&mut self.board, &circumstances)
            }
        };
        let lost = self.board.lost_bytes() - before;
        self.note_lost(lost);
        match (again, self.early_timer) {
            (Some(at), _) => self.early_timer = Some((at, EarlyTimer::Reordering)),
            (None, Some((_, EarlyTimer::Reordering))) => self.early_timer = None,
            _ => {}
        }
        if lost > 0 && matches!(self.phase, Phase::Open) {
            self.stats.recoveries += 1;
            let flight = self.next - self.una;
            self.cc.on_loss(now, self.in_flight_bytes() + lost);
            let mut prr = Prr::new(flight, self.cc.cwnd_bytes());
            prr.on_ack(0, self.in_flight_bytes(), false, u64::from(self.mss));
            self.phase = Phase::Recovery { until: self.next, prr };
            self.doubt();
        }
        lost
    }

    /// A reduction occurred: starts checking whether it was unnecessary.
    fn doubt(&mut self) {
        let retransmissions = self.board.retransmissions_in_flight();
        if retransmissions == 0 {
            self.retransmitting_since = None;
        }
        self.undo = self.undoes.then_some(Undo { from: self.una, retransmissions, dsacked: 0 });
    }

    /// Sets a probe two RTTs from now if nothing is known to be missing (RFC 8985 §7.2).
    #[inline]
    pub(super) fn arm_probe(&mut self, now: Instant) {
        if matches!(self.early_timer, Some((_, EarlyTimer::Reordering))) {
            return;
        }
        self.early_timer = None;
        let probes = self.counting.is_none();
        let calm = probes && matches!(self.phase, Phase::Open) && self.board.sacked_segments() == 0;
        if calm && !self.board.is_empty() && self.probe.is_none() {
            let srtt = self.rtt.has_sample().then(|| self.rtt.srtt());
            let at = now + rack::probe_timeout(srtt, self.board.len());
            self.early_timer = Some((self.rto_at.map_or(at, |rto| at.min(rto)), EarlyTimer::Probe));
        }
    }

    fn on_rto(&mut self, now: Instant) {
        if self.board.is_empty() {
            self.rto_at = None;
            return;
        }
        self.stats.timeouts += 1;
        self.timeouts_in_row += 1;
        self.probe = None;
        self.probe_due = false;
        self.early_timer = None;
        let first = matches!(self.phase, Phase::Open)
            || matches!(self.phase, Phase::Loss { until } if self.una >= until);
        self.cc.on_rto(now, self.board.in_flight_bytes(), first);
        if first {
            self.doubt();
        }
        let circumstances = self.circumstances(now);
        let sacked = self.board.sacked_segments();
        let before = self.board.lost_bytes();
        match &mut self.counting {
            Some(counting) => {
                counting.on_timeout();
                // RFC 6675 §5.1: nothing is considered to be in the network any more.
                self.board.lose_on_timeout(|_| true);
            }
            None => {
                let rack = &self.rack;
                self.board.lose_on_timeout(|s| rack.lost_on_timeout(s, &circumstances, sacked));
            }
        }
        self.duplicates_in_row = 0;
        if let Some(reno_scoreboard) = &mut self.reno_scoreboard {
            reno_scoreboard.delivered_estimate_bytes = 0;
        }
        self.note_lost(self.board.lost_bytes() - before);
        self.phase = Phase::Loss { until: self.next };
        self.forced = true;
        self.pace_at = now;
        self.rtt.back_off();
        self.rto_at = Some(now + self.rtt.rto());
    }

    /// The delivery-rate state to store with a segment that is sent now.
    #[inline]
    fn sent_state(&mut self, nothing_in_flight: bool, now: Instant) -> SentState {
        self.rate.as_mut().map_or_else(SentState::default, |rate| rate.on_sent(nothing_in_flight, now))
    }

    #[inline]
    fn note_lost(&mut self, bytes: u64) {
        self.unreported_lost_bytes += bytes;
        if let Some(rate) = &mut self.rate {
            rate.on_lost(bytes);
        }
    }

    #[inline]
    fn note_app_limited(&mut self, in_flight_bytes: u64) {
        if let Some(rate) = &mut self.rate {
            rate.on_app_limited(in_flight_bytes);
        }
    }

    #[inline]
    fn must_pace(&mut self, now: Instant) -> bool {
        self.pace_blocked = self.paced && self.pace_at > now;
        self.pace_blocked
    }

    fn send_probe(&mut self, now: Instant) -> Option<Outgoing> {
        self.stats.probes += 1;
        let (sent, retransmission) = match self.next_new() {
            Some(fresh) => (self.send_new(fresh, now), false),
            None => {
                let last = self.board.last()?;
                let sent = self.retransmit(&last, now);
                self.stats.retransmitted_probe += 1;
                (sent, true)
            }
        };
        self.probe = Some(LossProbe { end: self.next, retransmission });
        self.early_timer = None;
        Some(sent)
    }

    /// The next segment with new data, within the data written and the receive window.
    #[inline]
    fn next_new(&self) -> Option<Outgoing> {
        let unsent = self.written.saturating_sub(self.next);
        let room = self.window_end.saturating_sub(self.next);
        let payload = unsent.min(u64::from(self.mss)).min(room);
        if payload < unsent.min(u64::from(self.mss)) && !self.board.is_empty() {
            // Silly window avoidance: wait until a whole segment fits.
            return None;
        }
        let fin = self.closing && !self.fin_sent && payload == unsent && room > payload;
        (payload > 0 || fin).then_some(Outgoing { seq: self.next, payload: payload as u32, fin })
    }

    /// Nagle's algorithm in Minshall's form, as in Linux (`tcp_nagle_check`): a segment that is not full-sized waits until the
    /// previous such segment is acknowledged, or until it can be filled.
    #[inline]
    fn must_gather(&self, segment: &Outgoing) -> bool {
        segment.payload < self.mss && self.small_end > self.una && !segment.fin && !self.nodelay
    }

    #[inline]
    fn length(&self, segment: &Outgoing) -> u64 {
        u64::from(segment.payload) + u64::from(segment.fin)
    }

    #[inline]
    fn send_new(&mut self, segment: Outgoing, now: Instant) -> Outgoing {
        let len = self.length(&segment);
        let state = self.sent_state(self.board.is_empty(), now);
        self.board.push(segment.seq, len as u32, segment.fin, now, state);
        self.next += len;
        if segment.payload < self.mss {
            self.small_end = self.next;
        }
        self.fin_sent |= segment.fin;
        self.stats.segments_sent += 1;
        self.stats.bytes_sent += u64::from(segment.payload);
        self.on_sent(len, now);
        self.arm_probe(now);
        segment
    }

    fn retransmit(&mut self, segment: &Segment, now: Instant) -> Outgoing {
        let state = self.sent_state(false, now);
        self.board.retransmit(segment.seq, now, state);
        self.retransmitting_since.get_or_insert(now);
        if let Some(undo) = &mut self.undo {
            undo.retransmissions += 1;
        }
        self.stats.segments_sent += 1;
        match self.phase {
            Phase::Open => {}
            Phase::Recovery { .. } => self.stats.retransmitted_fast += 1,
            Phase::Loss { .. } => self.stats.retransmitted_timeout += 1,
        }
        self.on_sent(u64::from(segment.len), now);
        Outgoing { seq: segment.seq, payload: segment.len - u32::from(segment.fin), fin: segment.fin }
    }

    #[inline]
    fn on_sent(&mut self, len: u64, now: Instant) {
        self.last_sent_at = Some(now);
        self.persist_at = None;
        self.rto_at.get_or_insert_with(|| now + self.rtt.rto());
        if let Phase::Recovery { prr, .. } = &mut self.phase {
            prr.on_sent(len);
        }
        if self.paced
            && let Some(ns) = self.pacing_ns(len)
        {
            self.pace_at = self.pace_at.max(now) + Duration::from_nanos(ns);
        }
    }

    /// Time for `len` bytes of payload at the pacing rate of the controller, or at twice the window per RTT in slow start and 1.2
    /// times after, as in Linux. `None` for the first segments.
    fn pacing_ns(&self, len: u64) -> Option<u64> {
        if self.stats.segments_sent < FIRST_SEGMENTS {
            return None;
        }
        let limit = self.max_pacing_bps.unwrap_or(u64::MAX);
        if let Some(bps) = self.cc.pacing_bps().map(|bps| bps.min(limit)) {
            return Some(len * 8_000_000_000 / bps.max(1));
        }
        let srtt_ns = u128::from(nanos(self.rtt.srtt()));
        let mut cwnd = self.cc.cwnd_bytes();
        if self.opened && self.una == 1 {
            cwnd = cwnd.min(FIRST_SEGMENTS * u64::from(self.mss));
        }
        let percent = if cwnd < self.cc.ssthresh_bytes() / 2 { 200 } else { 120 };
        let bps = u128::from(cwnd) * 8 * percent * 10_000_000 / (srtt_ns > 0).then_some(srtt_ns)?;
        let bps = bps.min(u128::from(limit));
        // Headers count for the pacing rate: 52 bytes with timestamps.
        u64::try_from(u128::from(len + 52) * 8_000_000_000 / bps.max(1)).ok()
    }

    /// Sets the persist timer if data waits, nothing is in flight, and the receive window is closed.
    fn arm_persist(&mut self, now: Instant) {
        let waiting = self.next < self.written || (self.closing && !self.fin_sent);
        if waiting && self.board.is_empty() {
            self.persist_at.get_or_insert_with(|| now + self.rtt.rto());
        } else {
            self.persist_at = None;
        }
    }
}
