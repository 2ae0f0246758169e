//! The state machine of one path of one session at one end.

use super::meter::{AtRest, Meters};
use super::params::ProbeParams;
use super::rtt::{MAX_RTT, RttEstimate, RttMeter};
use super::{DownReason, PathEvent, Role};
use anabranch_element::Reason;
use anabranch_element::time::{Duration, Instant};
use anabranch_steer::LoadView;
use anabranch_steer::measure::TrainBudget;
use anabranch_wire::control::{CapacityAck, CapacityProbe, PathCounters, Probe, ProbeKind};
use std::sync::Arc;

/// Least number of unanswered requests before silence counts as a failure, idle and in traffic. The repeats
/// usually exceed it, except after a stall of the whole process, when time has passed without any requests.
const FEWEST_IDLE: u16 = 4;
const FEWEST_IN_TRAFFIC: u16 = 16;
/// Number of repeated requests without an answer from which answers are overdue, on a path without loss; loss of round trips
/// that increases it by one; and loss that is assumed where it is unknown.
const REPEATS_OVERDUE: u32 = 4;
const LOSS_PER_REPEAT_PPM: u32 = 40_000;
const UNMEASURED_PPM: u32 = 100_000;
/// Most probes that an idle path that has come up sends at the pace of one in traffic, until its smoothed round trip has
/// settled. With a gain of 1/8 each, an eighth of the difference is left then.
const SETTLING_PROBES: u8 = 16;
/// An acknowledgement whose id differs by more than this comes from a restarted peer.
pub(super) const ID_WINDOW: u32 = 1024;

/// Whether the path may be used (see the drawing in [the module](super)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// No answer yet: the path is not usable, and one answer is sufficient.
    Fresh,
    Up,
    Down(DownReason),
}

/// State of one path at one end: up or down, round-trip time, loss, rate, and when to probe.
///
/// The caller sends the returned probes on *this* path. After each batch it calls
/// [`on_timeout`](Self::on_timeout), then [`poll_probe`](Self::poll_probe), then
/// [`poll_timeout`](Self::poll_timeout). Received datagrams are passed in before `on_timeout`, so that an
/// answer that has already arrived counts.
#[derive(Debug, Clone)]
pub struct PathMonitor {
    params: Arc<ProbeParams>,
    counters: PathCounters,
    /// UE: when the newest request left. UPF: unused.
    sent_at: Instant,
    /// When the far end last proved that both directions work.
    proof_at: Instant,
    /// UE: since when a reply has been due. UPF: since when `silence_datagrams` have been sent without a
    /// proof of arrival.
    waiting_since: Instant,
    rtt: RttMeter,
    /// Loss and rate; `None` while the session is at rest.
    meters: Option<Box<Meters>>,
    /// Their values when the session went to rest.
    at_rest: AtRest,
    /// UE: data packets in both directions since the newest request. UPF: datagrams sent since the last proof of
    /// arrival.
    activity: u32,
    /// UE: id of the next request.
    next_id: u32,
    /// Newest id answered.
    answered_id: u32,
    /// The far end's receive counter in its newest probe.
    peer_rx: u32,
    peer_reorder: u16,
    /// UE: requests since `waiting_since`.
    outstanding: u16,
    state: State,
    role: Role,
    /// UE, up: consecutive missed probes. Down: probes without an answer.
    missed: u8,
    /// Down: consecutive answers.
    streak: u8,
    /// Reason in the newest notification from the far end.
    notified: u8,
    /// Lasting loss at the last [`take_lasting_loss`](Self::take_lasting_loss), in percent; 255: never taken.
    taken_loss: u8,
    carrier: bool,
    /// Why the path must not be used, whatever its state.
    barred: Option<DownReason>,
    /// UE: number of further probes during which the path still counts as in traffic.
    linger: u8,
    /// UE: probes left of [`SETTLING_PROBES`]; 0: settled.
    settling: u8,
    /// UE: silence counts from the last proof, because probes have been sent steadily since then.
    steady: bool,
    /// UE: send the next request at once, whatever the interval.
    urgent: bool,
}

impl PathMonitor {
    /// A path without an answer yet. Parameters out of range are clamped ([`ProbeParams::validate`] reports
    /// them).
    #[must_use]
    pub fn new(role: Role, params: &Arc<ProbeParams>, now: Instant) -> Self {
        let valid = params.validate().is_ok();
        Self {
            params: if valid { Arc::clone(params) } else { Arc::new(params.clamped()) },
            counters: PathCounters::default(),
            sent_at: now,
            proof_at: now,
            waiting_since: now,
            rtt: RttMeter::default(),
            meters: Some(Box::default()),
            at_rest: AtRest::default(),
            activity: 0,
            next_id: 0,
            answered_id: u32::MAX,
            peer_rx: 0,
            peer_reorder: 0,
            outstanding: 0,
            state: State::Fresh,
            role,
            missed: 0,
            streak: 0,
            notified: 0,
            taken_loss: u8::MAX,
            carrier: true,
            barred: None,
            linger: 0,
            settling: 0,
            steady: false,
            urgent: true,
        }
    }

    /// The session goes to rest: frees the state that only a path in use needs. Loss and rate are not
    /// measured until [`Self::wake`]; the known loss is kept.
    pub fn rest(&mut self, now: Instant) {
        if let Some(meters) = self.meters.take() {
            self.at_rest = meters.to_rest(now);
        }
    }

    /// Resumes all measurements.
    pub fn wake(&mut self, now: Instant) {
        self.meters.get_or_insert_with(|| Box::new(Meters::from_rest(&self.at_rest, now)));
    }

    /// The far end has restarted: its probe ids and packet counters begin at zero. RTT and loss of the path
    /// are kept. A path that is up stays up. If the path was down because of the restart, one answer is
    /// sufficient.
    pub fn peer_restarted(&mut self, now: Instant) {
        if let State::Down(DownReason::Probes | DownReason::Silence | DownReason::Notified) = self.state {
            self.state = State::Fresh;
            self.streak = 0;
        }
        self.answered_id = self.next_id.wrapping_sub(1);
        self.peer_rx = 0;
        self.proof_at = now;
        self.activity = 0;
        self.outstanding = 0;
        if self.meters.is_some() {
            self.rest(now);
            self.wake(now);
        }
    }

    /// UE: the path has come up beside others. Its round trip is measured repeatedly until the smoothed value has settled, because
    /// steering compares it.
    pub fn settle(&mut self) {
        self.settling = SETTLING_PROBES;
    }

    /// Whether most of the user data sent since the last call was lost while probes passed. Packets larger
    /// than probes may then no longer fit the path.
    pub fn take_suspicion(&mut self) -> bool {
        self.meters.as_mut().is_some_and(|meters| core::mem::take(&mut meters.suspicion))
    }

    /// Whether traffic may be sent on this path.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.state == State::Up
    }

    /// Why the path is down; `None` while it is up or has had no answer yet.
    #[must_use]
    pub fn down_reason(&self) -> Option<DownReason> {
        match self.state {
            State::Down(reason) => Some(reason),
            State::Fresh | State::Up => None,
        }
    }

    /// The reason for which the far end declared the path down, if its last notification did.
    #[must_use]
    pub fn notified_reason(&self) -> Option<DownReason> {
        DownReason::from_code(self.notified)
    }

    /// A user-data datagram of `bytes` (UDP payload) is sent on this path.
    #[inline]
    pub fn on_data_sent(&mut self, bytes: usize, now: Instant) {
        self.counters.tx_packets += 1;
        self.counters.tx_bytes += bytes as u64;
        self.count_unproven(1, now);
        if let Some(meters) = &mut self.meters {
            meters.load.on_sent(bytes, now);
        }
    }

    /// An authentic user-data datagram of `bytes` (UDP payload) has arrived on this path.
    #[inline]
    pub fn on_data_received(&mut self, bytes: usize, _now: Instant) {
        self.counters.rx_packets += 1;
        self.counters.rx_bytes += bytes as u64;
        self.activity = self.activity.saturating_add(u32::from(self.role == Role::Ue));
    }

    /// User-data datagrams passed on this path without being seen individually (fast path). Equivalent to
    /// that many calls of [`on_data_sent`](Self::on_data_sent) and
    /// [`on_data_received`](Self::on_data_received).
    pub fn on_carried(&mut self, traffic: &PathCounters, now: Instant) {
        self.counters.tx_packets += traffic.tx_packets;
        self.counters.tx_bytes += traffic.tx_bytes;
        self.counters.rx_packets += traffic.rx_packets;
        self.counters.rx_bytes += traffic.rx_bytes;
        let many = |packets: u64| u32::try_from(packets).unwrap_or(u32::MAX);
        self.count_unproven(many(traffic.tx_packets), now);
        if self.role == Role::Ue {
            self.activity = self.activity.saturating_add(many(traffic.rx_packets));
        }
    }

    /// The handshake was answered on this path, `rtt` after it was sent: the path works in both directions.
    pub fn confirm(&mut self, rtt: Option<Duration>, now: Instant) -> Option<PathEvent> {
        if let Some(rtt) = rtt {
            self.rtt.sample(rtt, now);
        }
        if self.state != State::Fresh || !self.carrier || self.barred.is_some() {
            return None;
        }
        self.proof_at = now;
        Some(self.go_up())
    }

    /// An authentic probe has arrived on this path. Returns the answer, to be sent on the same path, and the
    /// resulting change.
    ///
    /// The UPF must apply the round-trip time in [`PathEvent::Rtt`] (or in [`rtt`](Self::rtt) after
    /// [`PathEvent::Up`]) before it steers the next packet (JUNCTION §V-E).
    #[must_use]
    pub fn on_probe(
        &mut self,
        msg: &Probe,
        reorder_available: u16,
        now: Instant,
    ) -> (Option<Probe>, Option<PathEvent>) {
        self.counters.rx_packets += 1;
        let expected = match self.role {
            Role::Ue => msg.kind == ProbeKind::Reply,
            Role::Upf => msg.kind != ProbeKind::Reply,
        };
        if !expected || self.barred.is_some() || (msg.kind != ProbeKind::Request && !plausible_echo(msg, now))
        {
            return (None, None);
        }
        if let Some(meters) = &mut self.meters {
            meters.rx_loss.update(msg.counters.tx_packets as u32, self.counters.rx_packets as u32, now);
            meters.lasting_rx = msg.lasting_loss;
        }
        self.peer_reorder = msg.reorder_available;
        match msg.kind {
            ProbeKind::Request => {
                // The far end has received something since its last probe, so our datagrams arrive.
                let peer_rx = msg.counters.rx_packets as u32;
                let advanced = peer_rx.wrapping_sub(self.peer_rx);
                if advanced != 0 && advanced < 1 << 31 && self.state == State::Up {
                    self.proof_at = now;
                    self.activity = 0;
                }
                self.peer_rx = peer_rx;
                if !self.rtt.known() && msg.rtt_us > 0 {
                    // Until the first acknowledgement, the value measured by the other end is used.
                    self.rtt.sample(Duration::from_micros(msg.rtt_us.into()), now);
                }
                self.count_unproven(1, now);
                (Some(self.probe(ProbeKind::Reply, msg.id, msg.timestamp_ns, reorder_available, now)), None)
            }
            ProbeKind::Reply => {
                // Ids are assigned by this end: all but unanswered ones are late or forged.
                let remaining = self.next_id.wrapping_sub(msg.id).wrapping_sub(1);
                let unanswered = self.next_id.wrapping_sub(self.answered_id).wrapping_sub(1);
                if remaining >= unanswered {
                    return (None, None);
                }
                let event = self.answered(msg, now);
                self.outstanding = u16::try_from(remaining).unwrap_or(u16::MAX);
                self.waiting_since = now;
                self.continue_settling();
                let ack = self.probe(ProbeKind::Ack, msg.id, msg.timestamp_ns, reorder_available, now);
                (Some(ack), event)
            }
            ProbeKind::Ack => {
                self.peer_rx = msg.counters.rx_packets as u32;
                let ahead = msg.id.wrapping_sub(self.answered_id);
                let late = ahead == 0 || ahead.wrapping_neg() <= ID_WINDOW;
                if late {
                    return (None, None);
                }
                self.activity = 0;
                (None, self.answered(msg, now))
            }
        }
    }

    /// The next request, if one is due (UE; the UPF only answers). It must be sent on this path even if the
    /// path is down.
    #[must_use]
    pub fn poll_probe(&mut self, reorder_available: u16, now: Instant) -> Option<Probe> {
        if self.request_due()? > now {
            return None;
        }
        if self.activity > 0 {
            if self.linger == 0 {
                // The path becomes one in traffic. Requests sent at the idle pace are no evidence for the
                // short silence limit.
                self.outstanding = 0;
            }
            let probes = self.params.silence_ms / self.params.active_interval_max_ms;
            self.linger = u8::try_from(probes).unwrap_or(u8::MAX).max(1);
        } else if self.outstanding == 0 || now < self.late_at() {
            self.linger = self.linger.saturating_sub(1);
        }
        if self.outstanding == 0 {
            self.waiting_since = now;
            self.steady = self.state == State::Up
                && self.missed == 0
                && self.proof_at >= self.sent_at
                && now.saturating_since(self.sent_at) <= 2 * self.params.active_max();
        }
        self.activity = 0;
        self.outstanding = self.outstanding.saturating_add(1);
        if self.state != State::Up {
            self.missed = self.missed.saturating_add(1);
            if self.waited(now) {
                self.streak = 0;
            }
        }
        self.urgent = false;
        self.sent_at = now;
        let id = self.next_id;
        self.next_id = id.wrapping_add(1);
        Some(self.probe(ProbeKind::Request, id, 0, reorder_available, now))
    }

    /// The next packet of a train that measures the capacity of the path, if one is due. `size`: UDP payload
    /// that the path carries, in bytes. `session_bytes`: user data sent by the session so far, which limits
    /// trains; each of its `paths` has an equal part of that limit. `budget`: limit for the trains of all
    /// sessions. The packet must be sent on this path at once.
    #[must_use]
    pub fn poll_train(
        &mut self,
        size: u16,
        session_bytes: u64,
        paths: usize,
        budget: &mut TrainBudget,
        now: Instant,
    ) -> Option<CapacityProbe> {
        let trains = &mut self.meters.as_mut()?.trains;
        trains.begin(size, self.counters.tx_bytes, session_bytes, paths, budget, now);
        trains.poll()
    }

    /// The packet returned by the last [`poll_train`](Self::poll_train) could not be sent.
    pub fn cut_train(&mut self) {
        if let Some(meters) = &mut self.meters {
            meters.trains.cut();
        }
    }

    /// A packet of a train has arrived at the far end.
    pub fn on_capacity_ack(&mut self, ack: &CapacityAck, now: Instant) {
        if let Some(meters) = &mut self.meters
            && let Some(rate) = meters.trains.acknowledged(ack, now)
            && !rate.few
        {
            meters.load.measured(rate, now);
        }
    }

    /// Performs the work due at `now`; no effect if none is due.
    pub fn on_timeout(&mut self, now: Instant) -> Option<PathEvent> {
        if self.verdict_due()? > now {
            return None;
        }
        match self.role {
            Role::Ue if self.in_traffic() => Some(self.go_down(DownReason::Silence)),
            Role::Ue => {
                self.missed = self.missed.saturating_add(1);
                if self.missed >= self.params.missed_probes {
                    return Some(self.go_down(DownReason::Probes));
                }
                self.outstanding = 0;
                self.urgent = true;
                None
            }
            Role::Upf if self.activity >= u32::from(self.params.silence_datagrams) => {
                Some(self.go_down(DownReason::Silence))
            }
            Role::Upf => Some(self.go_down(DownReason::Probes)),
        }
    }

    /// The next time at which [`on_timeout`](Self::on_timeout) or [`poll_probe`](Self::poll_probe) has work,
    /// and the reason. Data in either direction can make it earlier, so poll after each batch.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<(Instant, Reason)> {
        let request = self.request_due().map(|at| (at, "probe due"));
        let verdict = self.verdict_due().map(|at| (at, "path silent"));
        match (request, verdict) {
            (Some(r), Some(v)) => Some(if v.0 <= r.0 { v } else { r }),
            (one, other) => one.or(other),
        }
    }

    /// The access gained or lost its carrier (link state or route; UE).
    pub fn set_carrier(&mut self, up: bool, _now: Instant) -> Option<PathEvent> {
        if core::mem::replace(&mut self.carrier, up) == up {
            return None;
        }
        self.gate(up, DownReason::Carrier)
    }

    /// From now on the path must not be used, for this reason; `None`: it may be used.
    pub fn bar(&mut self, reason: Option<DownReason>, _now: Instant) -> Option<PathEvent> {
        if core::mem::replace(&mut self.barred, reason) == reason {
            return None;
        }
        self.gate(reason.is_none(), reason.unwrap_or(DownReason::Admin))
    }

    /// The far end reports, on another path, that this path is up or down at its end.
    ///
    /// The UPF adopts both. The UE adopts *down*, but finds out itself when the path is up again. `reason` is
    /// that of the message; [`notified_reason`](Self::notified_reason) returns it.
    pub fn on_notify(&mut self, up: bool, reason: u8, now: Instant) -> Option<PathEvent> {
        self.notified = if up { 0 } else { reason };
        match (up, self.state) {
            (false, State::Up) => Some(self.go_down(DownReason::Notified)),
            (false, State::Fresh) => {
                self.state = State::Down(DownReason::Notified);
                None
            }
            (true, State::Fresh | State::Down(_)) if self.role == Role::Upf && self.barred.is_none() => {
                self.proof_at = now;
                Some(self.go_up())
            }
            _ => None,
        }
    }

    /// Round-trip time; zero before the first sample.
    #[must_use]
    pub fn rtt(&self) -> RttEstimate {
        self.rtt.estimate()
    }

    /// Smoothed loss of this end's sending direction, in parts per million.
    #[must_use]
    pub fn loss_tx_ppm(&self) -> u32 {
        self.meters.as_ref().map_or(self.at_rest.loss_ppm()[0], |meters| meters.tx_loss.ppm())
    }

    /// Smoothed loss of this end's receiving direction, in parts per million.
    #[must_use]
    pub fn loss_rx_ppm(&self) -> u32 {
        self.meters.as_ref().map_or(self.at_rest.loss_ppm()[1], |meters| meters.rx_loss.ppm())
    }

    /// Smoothed loss of round trips, in parts per million: a round trip is lost if either direction is.
    /// `None` until both directions have been measured.
    #[must_use]
    pub fn round_trip_loss_ppm(&self) -> Option<u32> {
        const ALL: u64 = 1_000_000;
        let meters = self.meters.as_ref()?;
        let [tx, rx] = [meters.tx_loss.measured_ppm()?, meters.rx_loss.measured_ppm()?].map(u64::from);
        u32::try_from(ALL - (ALL - tx) * (ALL - rx) / ALL).ok()
    }

    /// Packets (data and probes) lost since the path was last woken: sent by this end, and sent by the far
    /// end.
    #[must_use]
    pub fn lost_packets(&self) -> (u32, u32) {
        self.meters.as_ref().map_or((0, 0), |meters| (meters.tx_loss.lost(), meters.rx_loss.lost()))
    }

    /// The path model of the sending direction.
    #[must_use]
    pub fn load(&self, now: Instant) -> LoadView {
        let rtt_us = self.rtt.minimum_us();
        self.meters.as_ref().map_or(LoadView::UNKNOWN, |meters| meters.load.view(rtt_us, now))
    }

    /// Wild loss of this end's sending direction, in parts per million.
    #[must_use]
    pub fn wild_ppm(&self) -> u32 {
        self.meters.as_ref().map_or(0, |meters| meters.load.wild_ppm())
    }

    /// Steady loss of this end's sending direction without a sign of congestion, in percent.
    #[must_use]
    pub fn steady_loss_percent(&self) -> u8 {
        self.meters.as_ref().map_or(0, |meters| meters.load.steady_loss_percent())
    }

    /// Lasting loss without congestion of the far end's sending direction, from its newest probe, in
    /// hundredths of a percent. Lasting means for two seconds at least.
    #[must_use]
    pub fn lasting_loss_rx(&self) -> u16 {
        self.meters.as_ref().map_or(0, |meters| meters.lasting_rx)
    }

    /// The larger lasting loss of both directions, in whole percent.
    #[must_use]
    pub fn lasting_loss_percent(&self) -> u8 {
        self.meters.as_ref().map_or(0, |meters| meters.lasting_percent())
    }

    /// The same, if it has changed since the last call.
    pub fn take_lasting_loss(&mut self) -> Option<u8> {
        let percent = self.meters.as_ref()?.lasting_percent();
        (core::mem::replace(&mut self.taken_loss, percent) != percent).then_some(percent)
    }

    /// Whether answers are overdue (UE): no request has been answered for so long that the path will probably be declared
    /// down.
    #[must_use]
    pub fn is_overdue(&self, now: Instant) -> bool {
        let is_waiting = self.outstanding >= FEWEST_IN_TRAFFIC && self.in_traffic();
        if self.role == Role::Upf || self.state != State::Up || !is_waiting {
            return false;
        }
        // Longer than any silence of the last minutes that ended with an answer.
        let longest = self.meters.as_ref().map_or(Duration::ZERO, |meters| meters.gaps.longest());
        let silence = (self.params.silence() * 3 / 5).max(longest * 3 / 2);
        // So many repeated requests should have been answered.
        let loss_ppm = self.round_trip_loss_ppm().unwrap_or(UNMEASURED_PPM);
        let repeats = self.repeat_interval() * (REPEATS_OVERDUE + loss_ppm / LOSS_PER_REPEAT_PPM);
        let answered = self.late_at() + repeats + self.rtt.cautious() + self.rtt.spread();
        now >= answered.max(self.silent_since() + silence)
    }

    /// The same at the last [`set_overdue`](Self::set_overdue).
    #[must_use]
    pub fn was_overdue(&self) -> bool {
        self.meters.as_ref().is_some_and(|meters| meters.overdue)
    }

    /// Whether an answer is later than usual (UE).
    #[must_use]
    pub fn is_late(&self, now: Instant) -> bool {
        self.role == Role::Ue && self.outstanding > 0 && now >= self.late_at()
    }

    /// Records whether answers are overdue; returns it if it has changed. They do not become overdue while answers by other
    /// paths are late, too, because then an end stalls.
    pub fn set_overdue(&mut self, overdue: bool, others_late: bool) -> Option<bool> {
        let before = &mut self.meters.as_mut()?.overdue;
        let overdue = overdue && (*before || !others_late);
        (core::mem::replace(before, overdue) != overdue).then_some(overdue)
    }

    /// Free reorder queues at the far end, from its newest probe.
    #[must_use]
    pub fn peer_reorder_available(&self) -> u16 {
        self.peer_reorder
    }

    /// Packets (data and probes) and bytes (user data) sent and received so far.
    #[must_use]
    pub fn counters(&self) -> PathCounters {
        self.counters
    }

    // ---- the laws --------------------------------------------------------------------------------

    /// Length of silence that counts as a failure.
    fn silence(&self) -> Duration {
        self.params.silence().max(self.rtts())
    }

    fn rtts(&self) -> Duration {
        self.rtt.cautious() * u32::from(self.params.silence_rtts)
    }

    /// Since when nothing has been received that should have been.
    fn silent_since(&self) -> Instant {
        if self.steady { self.proof_at } else { self.waiting_since }
    }

    /// Whether the path has recently carried a packet. It counts for `silence_ms` after the last one, so that
    /// probes continue when sparse traffic from the far end stops because the path failed.
    fn in_traffic(&self) -> bool {
        self.linger > 0 || self.activity > 0
    }

    /// When an answer is late enough for a repeated request.
    fn late_at(&self) -> Instant {
        self.waiting_since + self.rtt.late_after().min(self.silence() / 2)
    }

    /// When the next request is due (UE).
    fn request_due(&self) -> Option<Instant> {
        if self.role == Role::Upf || !self.carrier || self.barred.is_some() {
            return None;
        }
        if self.urgent {
            return Some(self.sent_at);
        }
        if self.state != State::Up {
            let interval = match self.streak {
                0 => self.params.down_interval(self.missed),
                _ => self.params.active_min(),
            };
            return Some(self.sent_at + interval);
        }
        let due = self.sent_at + self.params.interval_after(self.activity.max(self.linger.into()));
        if self.outstanding == 0 {
            return Some(due);
        }
        // Late: repeat quickly, so that the decision depends on many missing answers and not on one.
        Some(due.min(self.late_at().max(self.sent_at + self.repeat_interval())))
    }

    fn repeat_interval(&self) -> Duration {
        let interval = self.silence() / if self.in_traffic() { 40 } else { 8 };
        interval.max(Duration::from_millis(1))
    }

    /// When the path will be declared down unless something is received.
    fn verdict_due(&self) -> Option<Instant> {
        if self.state != State::Up {
            return None;
        }
        let silence = self.silence();
        // The newest request must have had some time, however late the others are.
        let asked = self.sent_at + Duration::from_millis(1);
        let fewest = if self.in_traffic() { FEWEST_IN_TRAFFIC } else { FEWEST_IDLE };
        match self.role {
            Role::Ue if self.outstanding < fewest => None,
            Role::Ue if self.in_traffic() && self.steady => {
                let waited = self.waiting_since + self.rtts().max(silence / 2);
                Some(asked.max(waited).max(self.proof_at + silence))
            }
            Role::Ue => Some(asked.max(self.waiting_since + silence)),
            Role::Upf => {
                let idle = self.params.idle_interval() * (u32::from(self.params.missed_probes) + 1);
                let idle = self.proof_at + idle + silence;
                let busy = self.waiting_since + silence + self.params.active_max();
                let enough = self.activity >= u32::from(self.params.silence_datagrams);
                Some(if enough { busy.min(idle) } else { idle })
            }
        }
    }

    /// Whether the oldest request has been unanswered for longer than a working path needs.
    fn waited(&self, now: Instant) -> bool {
        self.outstanding > 1 && now.saturating_since(self.waiting_since) > self.silence()
    }

    /// Counts datagrams without a proof of arrival. At the UPF the clock starts with the one that reaches
    /// `silence_datagrams`: fewer may simply have been lost.
    #[inline]
    fn count_unproven(&mut self, packets: u32, now: Instant) {
        let (before, limit) = (self.activity, u32::from(self.params.silence_datagrams));
        self.activity = before.saturating_add(packets);
        let enough = self.role == Role::Upf && before < limit && self.activity >= limit;
        self.waiting_since = if enough { now } else { self.waiting_since };
    }

    // ---- transitions -----------------------------------------------------------------------------

    /// The far end answered our probe: updates all measurements, and counts towards up.
    fn answered(&mut self, msg: &Probe, now: Instant) -> Option<PathEvent> {
        let rtt = now.saturating_since(Instant::from_nanos(msg.echo_ns));
        self.rtt.sample(rtt, now);
        let gap = now.saturating_since(self.silent_since());
        let counts = self.role == Role::Ue && self.state == State::Up && self.in_traffic();
        if let Some(meters) = &mut self.meters {
            meters.answered(msg, now);
            if counts {
                meters.gaps.update(gap);
            }
        }
        let follows = msg.id == self.answered_id.wrapping_add(1);
        self.answered_id = msg.id;
        self.proof_at = now;
        match self.state {
            State::Up => {
                self.missed = 0;
                Some(PathEvent::Rtt(rtt))
            }
            State::Fresh => Some(self.go_up()),
            State::Down(_) => {
                self.streak = if follows { self.streak.saturating_add(1) } else { 1 };
                (self.streak >= self.params.replies_to_recover).then(|| self.go_up())
            }
        }
    }

    /// After an answer: if it came much sooner than the first ones since the path came up, and the path is idle, the next probe
    /// follows at the pace of traffic. Otherwise a first sample taken while the machine was busy would keep traffic away
    /// from the path for many seconds.
    fn continue_settling(&mut self) {
        if self.rtt.is_settled() {
            self.settling = 0;
        } else if self.settling > 0 && self.state == State::Up && !self.in_traffic() {
            (self.linger, self.settling) = (1, self.settling - 1);
        }
    }

    fn go_up(&mut self) -> PathEvent {
        self.state = State::Up;
        self.missed = 0;
        self.streak = 0;
        if self.role == Role::Upf {
            self.activity = 0;
        }
        PathEvent::Up
    }

    fn go_down(&mut self, reason: DownReason) -> PathEvent {
        self.state = State::Down(reason);
        self.missed = 0;
        self.streak = 0;
        self.outstanding = 0;
        self.linger = 0;
        self.urgent = true;
        // Only answers to requests sent from now on count.
        if self.role == Role::Ue {
            self.answered_id = self.next_id.wrapping_sub(1);
        }
        self.rtt.restart();
        if let Some(meters) = &mut self.meters {
            meters.interrupted();
        }
        PathEvent::Down(reason)
    }

    /// Carrier or administration changed.
    fn gate(&mut self, up: bool, reason: DownReason) -> Option<PathEvent> {
        if up {
            // Probe at once: one packet is worthwhile when the carrier has returned.
            self.urgent = true;
            self.missed = 0;
            if let Some(reason) = self.barred {
                self.state = State::Down(reason);
            } else if !self.carrier {
                self.state = State::Down(DownReason::Carrier);
            }
            return None;
        }
        match self.state {
            State::Up => Some(self.go_down(reason)),
            State::Fresh | State::Down(_) => {
                self.state = State::Down(reason);
                self.streak = 0;
                None
            }
        }
    }

    /// Builds a probe, counts it, and remembers its departure if none is remembered.
    fn probe(
        &mut self,
        kind: ProbeKind,
        id: u32,
        echo_ns: u64,
        reorder_available: u16,
        now: Instant,
    ) -> Probe {
        self.counters.tx_packets += 1;
        if let Some(meters) = self.meters.as_mut().filter(|_| kind != ProbeKind::Ack) {
            meters.departs(id, &self.counters, now);
        }
        Probe {
            kind,
            id,
            timestamp_ns: now.as_nanos(),
            echo_ns,
            counters: self.counters,
            reorder_available,
            lasting_loss: self.meters.as_ref().map_or(0, |meters| meters.load.lasting_loss()),
            rtt_us: self.rtt.smoothed_us(),
        }
    }
}

/// Whether the echoed time can be ours: not in the future, and not older than any path is slow.
fn plausible_echo(msg: &Probe, now: Instant) -> bool {
    let sent = Instant::from_nanos(msg.echo_ns);
    sent <= now && now.saturating_since(sent) <= MAX_RTT
}
