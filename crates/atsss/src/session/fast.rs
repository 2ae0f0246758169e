//! Flows handed over to a faster data path, and taken back ([`crate::fast`]).

use super::active::Active;
use super::{Security, Session, Shared};
use crate::fast::{FastFlow, FastLane, FastTraffic, KEEP_AFTER_CHANGE, has_ports, is_none};
use crate::{DatagramSink, PathId, dns};
use anabranch_element::time::Instant;
use anabranch_steer::{PathSet, Pick, Steer, View};
use anabranch_wire::ip::{FlowKey, protocol};
use anabranch_wire::tunnel::PLAIN_OVERHEAD;
use std::net::SocketAddr;

/// If the decisions of more flows than this change between two polls, all flows are taken back.
const MAX_RECALLED: usize = 64;

/// The flows that a session has handed over.
#[derive(Debug, Default)]
pub(super) struct Fast {
    /// The state on which the decisions are based; `None`: no flow is handed over.
    inputs: Option<DecisionInputs>,
    /// Other state has changed since then.
    stale: bool,
    /// Flows whose decision has changed since then.
    recalled: Vec<FlowKey>,
    not_before: Option<Instant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct DecisionInputs {
    up: PathSet,
    generation: u32,
}

impl Fast {
    pub const fn has_handed_over(&self) -> bool {
        self.inputs.is_some()
    }

    /// The decisions are no longer valid: all flows are taken back with the next poll.
    pub fn invalidate(&mut self) {
        self.stale = self.inputs.is_some();
    }

    /// As [`Fast::invalidate`], for one flow; `key` as in its packets.
    pub fn recall(&mut self, key: FlowKey) {
        if self.recalled.len() == MAX_RECALLED {
            self.invalidate();
        } else if self.has_handed_over() {
            self.recalled.push(key);
        }
    }

    pub const fn has_news(&self) -> bool {
        self.stale || !self.recalled.is_empty()
    }
}

impl Session {
    /// A packet of a flow was sent by `path` and its order does not matter: hands the flow over, so that the
    /// next packets bypass the program.
    pub(super) fn give(&mut self, key: &FlowKey, path: PathId, now: Instant, out: &mut impl DatagramSink) {
        if !self.profile.fast || self.profile.security(path) != Security::Plain || !has_ports(key) {
            return;
        }
        // The UE must see DNS questions to recognise their answers ([`crate::dns`]).
        if self.is_ue() && (key.protocol, key.dst_port) == (protocol::UDP, dns::PORT) {
            return;
        }
        let inputs = self.inputs();
        // Larger packets are passed to the program, which fragments them.
        let Some(most) = self.settled_payload(path) else { return };
        let mtu = self.profile.inner_mtu().min(most - PLAIN_OVERHEAD as u16);
        let proven = self.paths.get(path).filter(|path| path.is_proven());
        let Some((access, to)) = proven.and_then(|p| Some((p.access(), p.endpoint()?))) else {
            return;
        };
        let fast = &mut self.active().fast;
        let waits = fast.stale || fast.not_before.is_some_and(|at| now < at);
        if waits || fast.inputs.is_some_and(|old| old != inputs) {
            return;
        }
        fast.inputs = Some(inputs);
        let lane = FastLane { session: self.addresses, access, to };
        out.offload(&FastFlow { lane, key: *key, mtu }, now);
    }

    /// Takes all flows back if a decision would be different now.
    pub(super) fn reconsider(&mut self, now: Instant, shared: &Shared<'_>, out: &mut impl DatagramSink) {
        let Some(inputs) = self.active.as_ref().and_then(|active| active.fast.inputs) else { return };
        let idle = now.saturating_since(self.last_data) >= shared.params.cool_after;
        let stale = self.active.as_ref().is_some_and(|active| active.fast.stale);
        if stale || idle || inputs != self.inputs() || self.would_move(now) {
            self.revoke(now, out);
            return;
        }
        let session = self.addresses;
        let recalled = &mut self.active().fast.recalled;
        recalled.drain(..).for_each(|key| out.revoke(session, Some(&key)));
    }

    /// Takes all flows back. For a while, none is handed over.
    pub(super) fn revoke(&mut self, now: Instant, out: &mut impl DatagramSink) {
        let session = self.addresses;
        let fast = &mut self.active().fast;
        fast.not_before = Some(now + KEEP_AFTER_CHANGE);
        fast.stale = false;
        fast.recalled.clear();
        if fast.inputs.take().is_some() {
            out.revoke(session, None);
        }
    }

    fn inputs(&self) -> DecisionInputs {
        DecisionInputs { up: self.states().up(), generation: self.generation }
    }

    /// Whether the next packet of a rule that has a path would take another one.
    fn would_move(&mut self, now: Instant) -> bool {
        let active = Active::of(&mut self.active, &self.profile);
        let view = View { steady: &active.states, live: &active.live, loads: &[], restores: false };
        active.per_rule.iter_mut().zip(self.rules.rules()).any(|(state, rule)| {
            let Some(path) = state.path() else { return false };
            !rule.mode.splits()
                && !rule.mode.per_flow()
                && state.pick_again(&rule.mode, view, now) != Pick::One(path)
        })
    }

    /// Accounts for the traffic that `lane` carried. `false`: the lane is no longer valid and must be closed.
    pub fn carried(&mut self, access: PathId, to: SocketAddr, traffic: &FastTraffic, now: Instant) -> bool {
        if !self.profile.fast || !self.keys.can_seal(now) {
            return false;
        }
        let Some(path) = self.plain_path(to, access) else { return false };
        if is_none(traffic) {
            return true;
        }
        if self.resting {
            self.wake(now);
        }
        self.note_data(now);
        let headers = PLAIN_OVERHEAD as u64;
        self.traffic.tx_packets += traffic.tx_packets;
        self.traffic.tx_bytes += traffic.tx_bytes.saturating_sub(headers * traffic.tx_packets);
        self.traffic.rx_packets += traffic.rx_packets;
        self.traffic.rx_bytes += traffic.rx_bytes.saturating_sub(headers * traffic.rx_packets);
        if let Some(state) = self.paths.get_mut(path) {
            state.monitor.on_carried(traffic, now);
        }
        true
    }
}
