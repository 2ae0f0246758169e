//! Sessions at rest: which state is freed, and how a session wakes.
//!
//! A user without traffic still has a session: keys, addresses, endpoints, path measurements. All other state
//! can be derived again. A session of the UPF without data packets for `cool_after` therefore frees it:
//!
//! ```text
//!              no data for cool_after, nothing queued, held, negotiated or suspended
//!   in use ──────────────────────────────────────────────────────────────────────────▶ resting
//!     ▲    Active (states, rules, reordering, queues), loss meters, flow table,            │ probes are
//!     │    expanded ciphers, wide replay windows, path MTU search are given back           │ answered
//!     └────────────────────────────────────────────────────────────────────────────────────┘
//!                              a data packet, in either direction
//! ```
//!
//! Kept, so that waking loses no packet: the last 64 packet numbers of each path, the measured loss and round
//! trips, the result of the path MTU search, the flow counter (sequence numbers never repeat), and flows
//! whose rule only the UE could determine. A flow or stream that continues after a rest begins a new
//! sequence, which the far end adopts at once.
//!
//! Sizes: `docs/atsss-memory.md`; the tests below check the figures.

use super::{Session, Shared};
use crate::mtu::PathMtu;
use crate::path::Role;
use crate::reorder::Pool;
use anabranch_element::time::{Duration, Instant};

/// A flow that the UE classified is remembered at the UPF for this time after its last downlink packet. That
/// is longer than at the UE, so the UE repeats its hint before the UPF has forgotten the flow.
const UPF_FLOWS: Duration = Duration::from_secs(600);
const UE_FLOWS: Duration = Duration::from_secs(120);
/// Time between two searches for unused flows.
const SWEEP: Duration = Duration::from_secs(30);

impl Session {
    /// Whether the session is at rest.
    #[must_use]
    pub const fn is_resting(&self) -> bool {
        self.resting
    }

    /// A data packet arrived: restores the freed state. Path states are correct before the packet is steered.
    #[cold]
    pub(super) fn wake(&mut self, now: Instant) {
        self.resting = false;
        let states = self.paths.states();
        let max = self.profile.max_payload;
        let active = super::Active::of(&mut self.active, &self.profile);
        (active.states, active.live) = (states, states);
        active.sweep_at = now + SWEEP;
        for path in self.paths.iter_mut() {
            path.monitor.wake(now);
            active.flow_reorder.set_path_rtt(path.id, states.get(path.id).rtt_us);
            if path.mtu_bounds.low_bytes() > 0 && max > 0 {
                active.set_mtu(path.id, PathMtu::resume(path.mtu_bounds, max, now));
            }
        }
    }

    /// Frees the state that can be derived again, if the session has been idle for long enough. To be called
    /// after every poll, once the events have been taken.
    pub fn rest(&mut self, now: Instant, shared: &mut Shared<'_>) {
        if self.profile.role == Role::Ue || !self.may_rest(now, shared.params.cool_after) {
            return;
        }
        self.keys.cool_down();
        for path in self.paths.iter_mut() {
            path.monitor.rest(now);
            if let Some(mtu) = self.active.as_ref().and_then(|active| active.mtu(path.id)) {
                path.mtu_bounds = mtu.bounds();
            }
        }
        if !self.resting {
            self.flows.rest(UPF_FLOWS, now);
            self.resting = true;
        }
        self.release(shared.pool);
        self.active = None;
    }

    fn may_rest(&self, now: Instant, after: Duration) -> bool {
        let idle = self.resting || now.saturating_since(self.last_data) >= after;
        let busy = |active: &super::Active| {
            !active.is_empty()
                || active.flow_reorder.depth() > 0
                || active.stream_reorder.depth() > 0
                || active.assembler.poll_timeout().is_some()
                || active.flap.is_suspended()
                || active.fast.has_handed_over()
        };
        idle && self.config.is_idle() && !self.active.as_deref().is_some_and(busy)
    }

    /// When [`Self::rest`] will have an effect, if that time is known and in the future.
    #[must_use]
    pub fn rest_due_at(&self, now: Instant, after: Duration) -> Option<Instant> {
        let at = self.last_data + after;
        (self.profile.role == Role::Upf && !self.resting && at > now).then_some(at)
    }

    /// Forgets flows that have not been used for long.
    pub(super) fn sweep(&mut self, now: Instant, pool: &mut Pool) {
        let Some(active) = self.active.as_mut().filter(|active| active.sweep_at <= now) else { return };
        active.sweep_at = now + SWEEP;
        self.sweep_coding(now, pool);
        self.flows.expire(if self.is_ue() { UE_FLOWS } else { UPF_FLOWS }, now);
    }
}
