//! Control inside the tunnel: probes, path notifications, configuration, path MTU, closing.

use super::{Session, SessionEvent, Shared, micros};
use crate::access::config_channel::Fragment;
use crate::access::drops::DropReason;
use crate::access::path::{DownReason, FlapEvent, PathEvent, Role};
use crate::access::steer::PathState;
use crate::access::{DatagramSink, PacketSink, PathId};
use crate::time::{Duration, Instant};
use anabranch_wire::control::{Close, Config, ConfigAck, Control, MtuAck, MtuProbe, Notify};

/// A control message waiting to be sealed.
#[derive(Debug, Clone)]
pub(super) enum Message {
    /// One that carries no document.
    Short(Control<'static>),
    /// A piece of a document.
    Config(Fragment),
}

impl From<Control<'static>> for Message {
    fn from(message: Control<'static>) -> Self {
        Self::Short(message)
    }
}

impl Session {
    /// Delivers a document to the peer, reliably; a newer one supersedes. `false` if it is too long.
    pub fn push_config(&mut self, document: Vec<u8>, now: Instant) -> bool {
        self.channel().sender.push(document, now)
    }

    /// Sends the pending document from the start: the peer was restarted.
    pub fn restart_config(&mut self, now: Instant) {
        if let Some(channel) = self.channel.as_mut() {
            channel.sender.restart(now);
            channel.receiver.reset();
        }
    }

    /// Tells the peer the session is over, on every path that is up.
    pub fn close(&mut self, reason: u8) {
        for path in self.up_paths() {
            self.queue(path, Control::Close(Close { reason }).into());
        }
    }

    /// Carrier of an access came or went (UE: from the operating system).
    pub fn set_carrier(&mut self, path: PathId, up: bool, now: Instant) {
        let Some(state) = self.path_mut(path) else { return };
        let event = state.monitor.set_carrier(up, now);
        self.on_path_event(path, event, now);
    }

    fn up_paths(&self) -> Vec<PathId> {
        (0u8..).zip(&self.paths).filter(|(_, p)| p.monitor.is_up()).map(|(id, _)| id).collect()
    }

    pub(super) fn on_control(
        &mut self,
        path: PathId,
        message: Control<'_>,
        now: Instant,
        shared: &mut Shared<'_>,
    ) -> Result<(), DropReason> {
        match message {
            Control::Probe(probe) => {
                let available = shared.pool.available();
                let state = self.path_mut(path).ok_or(DropReason::UnknownPath)?;
                let (answer, event) = state.monitor.on_probe(&probe, available, now);
                if let Some(answer) = answer {
                    self.queue(path, Control::Probe(answer).into());
                }
                self.on_path_event(path, event, now);
                self.refresh(path, now);
            }
            Control::Notify(notify) => {
                let state = self.path_mut(notify.path).ok_or(DropReason::UnknownPath)?;
                let event = state.monitor.on_notify(notify.up, notify.reason, now);
                self.on_path_event(notify.path, event, now);
            }
            Control::Config(part) => {
                let ack = ConfigAck { version: part.version, fragment: part.fragment };
                self.queue(path, Control::ConfigAck(ack).into());
                let receiver = &mut self.channel().receiver;
                let done = receiver.on_fragment(part.version, part.fragment, part.fragments, part.bytes);
                if let Some(document) = done {
                    self.event(SessionEvent::Config(document));
                }
            }
            Control::ConfigAck(ack) => self.channel().sender.on_ack(ack.version, ack.fragment),
            Control::MtuProbe(probe) => {
                self.queue(path, Control::MtuAck(MtuAck { size: probe.size }).into());
            }
            Control::MtuAck(ack) => {
                if let Some(mtu) = self.path_mut(path).and_then(|p| p.mtu.as_mut()) {
                    mtu.on_ack(ack.size, now);
                }
            }
            Control::Close(close) => self.event(SessionEvent::Closed { reason: close.reason }),
        }
        Ok(())
    }

    pub(super) fn on_timeout(&mut self, now: Instant, shared: &mut Shared<'_>, inner: &mut impl PacketSink) {
        for id in 0..self.paths.len() {
            let path = id as PathId;
            let state = &mut self.paths[id];
            if state.endpoint.is_none() {
                continue;
            }
            let event = state.monitor.on_timeout(now);
            if let Some(mtu) = state.mtu.as_mut() {
                mtu.on_timeout(now);
            }
            self.on_path_event(path, event, now);
        }
        self.flow_reorder.on_timeout(now, shared.pool, inner);
        self.stream_reorder.on_timeout(now, shared.pool, inner);
        if let Some(channel) = self.channel.as_mut() {
            channel.sender.on_timeout(now);
        }
        if self.flap.on_timeout(now).is_some() {
            for path in 0..self.paths.len() {
                self.refresh(path as PathId, now);
            }
        }
        if now.saturating_since(self.last_data) > shared.params.cool_after {
            self.keys.cool_down();
        }
    }

    pub(super) fn send_control(
        &mut self,
        now: Instant,
        shared: &mut Shared<'_>,
        out: &mut impl DatagramSink,
    ) {
        let available = shared.pool.available();
        for id in 0..self.paths.len() {
            let path = id as PathId;
            let state = &mut self.paths[id];
            if state.endpoint.is_none() {
                continue;
            }
            if let Some(probe) = state.monitor.poll_probe(available, now) {
                self.queue(path, Control::Probe(probe).into());
            }
            let up = self.paths[id].monitor.is_up();
            if up && let Some(size) = self.paths[id].mtu.as_mut().and_then(|m| m.poll_probe(now)) {
                self.queue(path, Control::MtuProbe(MtuProbe { size }).into());
            }
        }
        if let Some(path) = self.best_path()
            && let Some(channel) = self.channel.as_mut()
        {
            let parts: Vec<Fragment> = core::iter::from_fn(|| channel.sender.poll()).collect();
            for part in parts {
                self.queue(path, Message::Config(part));
            }
        }
        while let Some((path, message)) = self.outbox.pop_front() {
            let message = match &message {
                Message::Short(message) => *message,
                Message::Config(f) => Control::Config(Config {
                    version: f.version,
                    fragment: f.index,
                    fragments: f.count,
                    bytes: &f.bytes,
                }),
            };
            if let Err(reason) = self.emit_control(path, &message, now, out) {
                Self::count(shared, reason);
            }
        }
    }

    /// The live path with the smallest RTT.
    fn best_path(&self) -> Option<PathId> {
        (0u8..)
            .zip(&self.paths)
            .filter(|(_, p)| p.monitor.is_up() && p.endpoint.is_some())
            .min_by_key(|(_, p)| p.monitor.rtt().smoothed)
            .map(|(id, _)| id)
    }

    pub(super) fn on_path_event(&mut self, path: PathId, event: Option<PathEvent>, now: Instant) {
        let Some(event) = event else { return };
        match event {
            PathEvent::Up => {
                let rtt_us = self.path(path).map_or(0, |p| micros(p.monitor.rtt().smoothed));
                self.event(SessionEvent::PathUp { path, rtt_us });
                self.notify_peer(path, true, 0);
            }
            PathEvent::Down(reason) => {
                self.event(SessionEvent::PathDown { path, reason });
                if reason != DownReason::Notified {
                    self.notify_peer(path, false, reason.code());
                }
            }
            PathEvent::Rtt(_) => {}
        }
        self.refresh(path, now);
    }

    /// Tells the peer on the paths that still work. Only the UE's word on a path brings it up again.
    fn notify_peer(&mut self, path: PathId, up: bool, reason: u8) {
        if up && self.role == Role::Upf {
            return;
        }
        self.notify_sequence = self.notify_sequence.wrapping_add(1);
        let notify = Notify { path, up, reason, sequence: self.notify_sequence };
        for other in self.up_paths() {
            if other != path {
                self.queue(other, Control::Notify(notify).into());
            }
        }
    }

    /// The UE's handshake was answered by way of `path`: it works both ways.
    pub fn confirm_path(&mut self, path: PathId, rtt: Option<Duration>, now: Instant) {
        let Some(state) = self.path_mut(path) else { return };
        let event = state.monitor.confirm(rtt, now);
        self.on_path_event(path, event, now);
    }

    /// Writes what is known of a path into the unified steering structure.
    fn refresh(&mut self, path: PathId, now: Instant) {
        let Some(state) = self.path(path) else { return };
        let up = state.monitor.is_up() && state.endpoint.is_some();
        let rtt_us = micros(state.monitor.rtt().smoothed).max(1);
        let fresh = PathState {
            rtt_us: if up { rtt_us } else { 0 },
            loss_ppm: state.monitor.loss_tx_ppm(),
            delivery_bps: state.monitor.delivery_rate_bps(),
        };
        if up {
            self.flow_reorder.set_path_rtt(path, rtt_us);
        }
        let mut newest = self.states;
        newest.set(path, fresh);
        if let Some(FlapEvent::Suspended(pause)) = self.flap.on_rtts(|p| newest.get(p).rtt_us, now) {
            self.event(SessionEvent::Flapping { pause });
        }
        // A path that is gone is marked at once, whatever flap control says: packets must not die on it.
        // One that comes back, or whose RTT moved, waits until the user's paths are stable again.
        if !up || !self.flap.is_suspended() || self.states.up().is_empty() {
            self.states = newest;
        }
    }
}
