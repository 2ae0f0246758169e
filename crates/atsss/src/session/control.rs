//! Control messages inside the tunnel: probes, path notifications, configuration, path MTU, closing.

use super::active::Active;
use super::coding::Coding;
use super::fragmentation::lost_piece;
use super::path::Origin;
use super::{Path, Session, SessionEvent, Shared, micros};
use crate::config_channel::Fragment;
use crate::drops::DropReason;
use crate::mtu::PathMtu;
use crate::path::{DownReason, PathEvent};
use crate::{DatagramSink, PacketSink, PathId};
use anabranch_element::Reason;
use anabranch_element::time::{Duration, Instant};
use anabranch_steer::PathSet;
use anabranch_wire::control::{
    CapacityAck, Close, Config, ConfigAck, Control, MtuAck, MtuProbe, Notify, Probe, ProbeKind,
};

/// While at most this many messages are queued, acknowledgements of capacity probes are queued as well. Less
/// than the outbox holds.
const MAX_CAPACITY_ACKS: usize = 160;

/// A control message waiting to be sealed.
#[derive(Debug, Clone)]
pub(super) enum Message {
    /// A message that carries no document.
    Short(Control<'static>),
    /// An answer to the candidate for the path's address.
    Candidate(Probe),
    /// A fragment of a document.
    Config(Fragment),
}

impl From<Control<'static>> for Message {
    fn from(message: Control<'static>) -> Self {
        Self::Short(message)
    }
}

impl Session {
    /// Delivers a document to the peer reliably. A newer document supersedes an older one. `false` if it is
    /// too long.
    pub fn push_config(&mut self, document: Vec<u8>, now: Instant) -> bool {
        self.config.push(document, now)
    }

    /// Whether the peer has acknowledged the newest document.
    #[must_use]
    pub fn is_config_delivered(&self) -> bool {
        self.config.is_delivered()
    }

    /// Notifies the peer, on every path that is up, that the session ends.
    pub fn close(&mut self, reason: u8) {
        for path in self.up_paths() {
            self.active().queue(path, Control::Close(Close { reason }));
        }
    }

    /// The peer has ended the session (UE): no path is usable until the peer answers again.
    pub fn peer_left(&mut self, now: Instant) {
        for path in self.up_paths() {
            let Some(state) = self.paths.get_mut(path) else { continue };
            let event = state.monitor.on_notify(false, 0, now);
            self.on_path_event(path, event, now);
        }
    }

    /// The carrier of an access was gained or lost (UE: reported by the operating system).
    pub fn set_carrier(&mut self, path: PathId, up: bool, now: Instant) {
        let Some(state) = self.paths.get_mut(path) else { return };
        let event = state.monitor.set_carrier(up, now);
        self.on_path_event(path, event, now);
    }

    fn up_paths(&self) -> PathSet {
        self.paths.iter().filter(|p| p.monitor.is_up()).map(|p| p.id).collect()
    }

    pub(super) fn on_control(
        &mut self,
        path: PathId,
        origin: Origin,
        message: Control<'_>,
        now: Instant,
        shared: &mut Shared<'_>,
    ) -> Result<(), DropReason> {
        let is_ue = self.is_ue();
        let active = Active::of(&mut self.active, &self.profile);
        match message {
            Control::Probe(probe) => {
                let available = shared.pool.available();
                let state = self.paths.get_mut(path).ok_or(DropReason::UnknownPath)?;
                let (answer, event) = state.monitor.on_probe(&probe, available, now);
                match (probe.kind, origin) {
                    (ProbeKind::Request, Origin::Endpoint) if answer.is_some() => state.probe_sent(probe.id),
                    (ProbeKind::Request, Origin::Candidate) if answer.is_some() => {
                        state.on_candidate_probe(probe.id)
                    }
                    (ProbeKind::Reply, _) if answer.is_some() => state.answered(probe.id),
                    (ProbeKind::Ack, Origin::Endpoint) if event.is_some() => state.answered(probe.id),
                    (ProbeKind::Ack, Origin::Candidate) => {
                        if let Some(address) = state.accept_candidate(probe.id) {
                            active.event(SessionEvent::Endpoint { path, address });
                            active.fast.invalidate();
                        }
                    }
                    _ => {}
                }
                match (answer, origin) {
                    (Some(answer), Origin::Candidate) => active.queue(path, Message::Candidate(answer)),
                    (Some(answer), _) => active.queue(path, Control::Probe(answer)),
                    (None, _) => {}
                }
                if is_ue && let Some(percent) = state.monitor.take_lasting_loss() {
                    active.event(SessionEvent::LastingLoss { path, percent });
                }
                if state.monitor.take_suspicion()
                    && let Some(mtu) = active.mtu_mut(path)
                {
                    mtu.suspect(now);
                }
                self.on_path_event(path, event, now);
                self.refresh(path, now);
            }
            Control::Notify(notify) => {
                if !active.is_new(&notify) {
                    return Ok(());
                }
                // A path that is unknown here cannot be used anyway.
                let Some(state) = self.paths.get_mut(notify.path) else { return Ok(()) };
                let event = state.monitor.on_notify(notify.up, notify.reason, now);
                self.on_path_event(notify.path, event, now);
            }
            Control::Config(part) => {
                if !active.takes_document(part.bytes.len(), now) {
                    return Ok(()); // without an acknowledgement, the peer repeats it
                }
                let Config { version, fragment, fragments, bytes } = part;
                let Ok(done) = self.config.on_fragment(version, fragment, fragments, bytes, shared.pool)
                else {
                    return Ok(()); // the same
                };
                active.queue(path, Control::ConfigAck(ConfigAck { version, fragment }));
                if let Some(document) = done {
                    active.document(document);
                }
            }
            Control::ConfigAck(ack) => self.config.on_ack(ack.version, ack.fragment),
            Control::MtuProbe(probe) => active.queue(path, Control::MtuAck(MtuAck { size: probe.size })),
            Control::MtuAck(ack) => {
                if let Some(mtu) = active.mtu_mut(path) {
                    let before = mtu.usable();
                    mtu.on_ack(ack.size, now);
                    if mtu.usable() != before {
                        active.fast.invalidate();
                    }
                }
            }
            Control::CapacityProbe(probe) => {
                let (train, index) = (probe.train, probe.index);
                let ack = CapacityAck { train, index, timestamp_ns: now.as_nanos() };
                // Acknowledgements must not displace more important answers.
                if active.outbox.len() < MAX_CAPACITY_ACKS {
                    active.queue(path, Control::CapacityAck(ack));
                }
            }
            Control::CapacityAck(ack) => {
                if let Some(state) = self.paths.get_mut(path) {
                    state.monitor.on_capacity_ack(&ack, now);
                }
            }
            Control::Close(close) => active.close(close.reason),
        }
        Ok(())
    }

    pub(super) fn on_timeout(&mut self, now: Instant, shared: &mut Shared<'_>, inner: &mut impl PacketSink) {
        for path in self.paths.ids() {
            let Some(state) = self.paths.get_mut(path).filter(|state| state.is_bound()) else { continue };
            let event = state.monitor.on_timeout(now);
            let overdue = state.monitor.is_overdue(now);
            self.on_path_event(path, event, now);
            let late = |other: &Path| other.id != path && other.monitor.is_up() && other.monitor.is_late(now);
            let others_late = overdue && self.paths.iter().any(late);
            let state = self.paths.get_mut(path);
            if let Some(overdue) = state.and_then(|state| state.monitor.set_overdue(overdue, others_late)) {
                self.active().event(SessionEvent::Overdue { path, overdue });
            }
        }
        self.config.on_timeout(now);
        if let Some(active) = &mut self.active {
            for path in self.paths.iter_mut() {
                let Some(mtu) = active.mtu_mut(path.id) else { continue };
                let before = mtu.usable();
                mtu.on_timeout(path.monitor.loss_tx_ppm(), now);
                if mtu.usable() != before {
                    active.fast.invalidate();
                }
            }
            active.assembler.on_timeout(now, &mut |path| lost_piece(&mut self.paths, path, shared.drops));
            active.flow_reorder.on_timeout(now, shared.pool, inner);
            active.stream_reorder.on_timeout(now, shared.pool, inner);
            if active.flap.on_timeout(now).is_some() {
                active.resume();
            }
        }
        self.sweep(now, shared.pool);
        if self.is_ue() && now.saturating_since(self.last_data) > shared.params.cool_after {
            self.keys.cool_down();
        }
    }

    /// When the state in [`Active`] next requires work, and the reason.
    pub(super) fn active_timeout(&self) -> Option<(Instant, Reason)> {
        let active = self.active.as_deref()?;
        let soon =
            (!active.outbox.is_empty() || !active.icmp.is_empty()).then_some((Instant::ZERO, "outbox"));
        let stale = active.fast.has_news().then_some((Instant::ZERO, "flows to take back"));
        let sealing = self.keys.rekey_at().is_some();
        let up = self.paths.iter().filter(|p| sealing && p.is_bound() && p.monitor.is_up());
        up.filter_map(|p| active.mtu(p.id)?.poll_timeout())
            .chain(active.flow_reorder.poll_timeout())
            .chain(active.stream_reorder.poll_timeout())
            .chain(active.flap.poll_timeout())
            .chain(active.assembler.poll_timeout())
            .chain(active.coding.as_deref().and_then(Coding::poll_timeout))
            .chain(soon)
            .chain(stale)
            .min_by_key(|(at, _)| *at)
    }

    pub(super) fn send_control(
        &mut self,
        now: Instant,
        shared: &mut Shared<'_>,
        out: &mut impl DatagramSink,
    ) {
        let available = shared.pool.available();
        // Without keys nothing can be sent, and a probe that was not sent must not count as one.
        let sealing = self.keys.can_seal(now);
        for state in self.paths.iter_mut().filter(|state| sealing && state.is_bound()) {
            let (path, up) = (state.id, state.monitor.is_up());
            if let Some(probe) = state.monitor.poll_probe(available, now) {
                state.probe_sent(probe.id);
                let active = Active::of(&mut self.active, &self.profile);
                active.queue(path, Control::Probe(probe));
                if up {
                    active.repeat_notices(path);
                }
            }
            while up
                && let Some(active) = self.active.as_mut()
                && let Some(size) = active.mtu_mut(path).and_then(|mtu| mtu.poll_probe(now))
            {
                active.queue(path, Control::MtuProbe(MtuProbe { size }));
            }
        }
        if let Some(path) = self.best_path() {
            while let Some(part) = self.config.poll() {
                self.active().queue(path, Message::Config(part));
            }
        }
        while let Some((path, message)) = self.active.as_mut().and_then(|active| active.outbox.pop_front()) {
            let mut to = None;
            let message = match &message {
                Message::Short(message) => *message,
                Message::Candidate(answer) => {
                    // The candidate was discarded, or has become the path's address.
                    to = self.paths.get(path).and_then(|path| path.candidate(answer.id));
                    Control::Probe(*answer)
                }
                Message::Config(f) => Control::Config(Config {
                    version: f.version,
                    fragment: f.index,
                    fragments: f.count,
                    bytes: &f.bytes,
                }),
            };
            if let Err(reason) = self.emit_control(path, to, &message, now, out) {
                Self::count(shared, reason);
            }
        }
        if sealing && self.rules.is_autonomous() && !self.resting {
            self.send_trains(now, shared, out);
        }
    }

    /// Sends trains to measure paths that are not in use, where flows are placed by capacity.
    fn send_trains(&mut self, now: Instant, shared: &mut Shared<'_>, out: &mut impl DatagramSink) {
        let up = self.up_paths();
        let (sent, paths) = (self.traffic.tx_bytes, up.len());
        for path in up {
            let Some(size) = self.active.as_ref().and_then(|active| active.mtu(path)).map(PathMtu::usable)
            else {
                continue;
            };
            while let Some(state) = self.paths.get_mut(path).filter(|state| state.is_proven())
                && let Some(probe) = state.monitor.poll_train(size, sent, paths, shared.trains, now)
            {
                if self.emit_control(path, None, &Control::CapacityProbe(probe), now, out).is_err() {
                    self.paths.get_mut(path).into_iter().for_each(|state| state.monitor.cut_train());
                    break;
                }
            }
        }
    }

    /// The live path with the smallest RTT.
    fn best_path(&self) -> Option<PathId> {
        let live = self.paths.iter().filter(|p| p.monitor.is_up() && p.is_bound());
        live.min_by_key(|p| p.monitor.rtt().smoothed).map(|p| p.id)
    }

    pub(super) fn on_path_event(&mut self, path: PathId, event: Option<PathEvent>, now: Instant) {
        let Some(event) = event else { return };
        match event {
            PathEvent::Up => {
                let rtt_us = self.paths.get(path).map_or(0, |p| micros(p.monitor.rtt().smoothed));
                if self.paths.iter().nth(1).is_some() {
                    self.paths.get_mut(path).into_iter().for_each(|path| path.monitor.settle());
                }
                self.active().event(SessionEvent::PathUp { path, rtt_us });
                // The search begins, or begins again because the route may have changed.
                let max = self.profile.max_payload;
                let active = self.active();
                active.usable(path, max, now);
                if let Some(mtu) = active.mtu_mut(path) {
                    mtu.suspect(now);
                }
                self.notify_peer(path, true, 0);
            }
            PathEvent::Down(reason) => {
                self.active().event(SessionEvent::PathDown { path, reason });
                if reason != DownReason::Notified {
                    self.notify_peer(path, false, reason.code());
                }
            }
            PathEvent::Rtt(_) => {}
        }
        self.refresh(path, now);
    }

    /// Notifies the peer on the paths that still work. Only the UE can report that a path is up again.
    fn notify_peer(&mut self, path: PathId, up: bool, reason: u8) {
        if up && !self.is_ue() {
            self.active().forget_notice(path);
            return;
        }
        self.notify_sequence = self.notify_sequence.wrapping_add(1);
        let notify = Notify { path, up, reason, sequence: self.notify_sequence };
        let paths = self.up_paths();
        self.active().notify(notify, paths);
    }

    /// The UE's handshake was answered by `path`: it works in both directions.
    pub fn confirm_path(&mut self, path: PathId, rtt: Option<Duration>, now: Instant) {
        let Some(state) = self.paths.get_mut(path) else { return };
        let event = state.monitor.confirm(rtt, now);
        self.on_path_event(path, event, now);
    }

    /// Copies the state of a path into the unified steering structure. Not done at rest, where it is not
    /// read; waking fills it.
    fn refresh(&mut self, path: PathId, now: Instant) {
        if self.resting {
            return;
        }
        let Some(fresh) = self.paths.get(path).map(super::Path::state) else { return };
        let active = Active::of(&mut self.active, &self.profile);
        // No packet waits for a path that goes down. A path that was not up yet may deliver data before it is
        // known to be up.
        if fresh.is_up() || active.live.is_up(path) {
            active.flow_reorder.set_path_rtt(path, fresh.rtt_us);
        }
        active.refresh(path, fresh, now);
    }
}
