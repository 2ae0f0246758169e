//! Log of recent events, with a stream for subscribers.

use super::types::Event;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::broadcast;

anabranch_element::names! {
    /// Kinds of events of all agents.
    pub enum EventKind("kind of events") {
        SessionUp = "session-up", "A session was established.";
        SessionDown = "session-down", "A session ended.";
        PathUp = "path-up", "A path can be used.";
        PathDown = "path-down", "A path cannot be used.";
        Moved = "moved", "The traffic of a rule moved to another path.";
        Flapping = "flapping", "Paths change state frequently.";
        Endpoint = "endpoint", "The peer has another address.";
        Rekeyed = "rekeyed", "New keys are in use.";
        Remote = "remote", "The UPF has another address, or a name that does not resolve.";
        AccessRefused = "access-refused", "The two ends have configured different security.";
        AccessLeft = "access-left", "A rule, or the TCP lane, avoids an access.";
        AccessBack = "access-back", "A rule, or the TCP lane, may use the access again.";
        OverflowPaused = "overflow-paused", "The overflow of a rule is paused.";
        OverflowResumed = "overflow-resumed", "The overflow of a rule has resumed.";
        FlowsLeft = "flows-left", "Flows were moved away from an access.";
        ClockReset = "clock-reset", "Any time stamp of a UE is accepted again.";
        Rules = "rules", "Other rules are in force.";
        TcpLane = "tcp-lane", "The TCP lane was set up, changed, or failed.";
        HandshakeTimeout = "handshake-timeout", "The UPF does not answer.";
        Refused = "refused", "The UPF refuses a session.";
        SharedKey = "shared-key", "Two devices use the same key.";
        Restored = "restored", "Network configuration that was removed has been restored.";
        NotRestored = "not-restored", "Network configuration is removed repeatedly and is restored at increasing intervals.";
        Outside = "outside", "Traffic bypasses the tunnel.";
        ClosedDestination = "closed-destination", "A packet was for a destination that is closed.";
        BadConfig = "bad-config", "The configuration of the peer cannot be applied.";
        Reloaded = "reloaded", "The configuration file was read again.";
        Slices = "slices", "A gNB's slices have other shares.";
        Scheduler = "scheduler", "The schedulers of a gNB have changed.";
        UeChanged = "ue-changed", "A UE of a gNB was changed.";
        Late = "late", "Slots of a gNB run late.";
        LwipChanged = "lwip-changed", "An LWIP node was changed.";
    }
}

/// Number of events that are kept.
pub const MAX_STORED: usize = 256;
/// Number of events that a slow listener may lag behind before it misses some.
const MAX_LAG: usize = 1024;

/// Keeps the last events and publishes new ones. Used by the control plane only, never by the data path.
#[derive(Clone)]
pub struct EventLog {
    stored: Arc<Mutex<VecDeque<Event>>>,
    live: broadcast::Sender<Event>,
}

impl Default for EventLog {
    fn default() -> Self {
        Self { stored: Arc::default(), live: broadcast::channel(MAX_LAG).0 }
    }
}

impl EventLog {
    /// Adds an event and logs it; id and time are filled in.
    pub fn push(&self, mut event: Event) {
        debug_assert!(EventKind::NAMES.contains(&event.kind.as_str()), "kind {}", event.kind);
        let mut stored = self.stored();
        event.id = stored.back().map_or(1, |last| last.id + 1);
        event.time_unix_ms = anabranch_engine::clock::unix_ns() / 1_000_000;
        let Event { kind, message, .. } = &event;
        match event.ue.as_deref() {
            Some(ue) => tracing::info!(kind, ue, "{message}"),
            None => tracing::info!(kind, "{message}"),
        }
        if stored.len() == MAX_STORED {
            stored.pop_front();
        }
        stored.push_back(event.clone());
        // An error means that there is no listener.
        let _ = self.live.send(event);
    }

    /// The stored events after event `id`, and a receiver of the following ones, without a gap. An id that
    /// has not been assigned yet belongs to an earlier run of the program; then all events are returned.
    pub fn since(&self, id: u64) -> (Vec<Event>, broadcast::Receiver<Event>) {
        let stored = self.stored();
        let receiver = self.live.subscribe();
        let id = if stored.back().is_some_and(|last| last.id >= id) { id } else { 0 };
        (stored.iter().filter(|e| e.id > id).cloned().collect(), receiver)
    }

    fn stored(&self) -> MutexGuard<'_, VecDeque<Event>> {
        self.stored.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
