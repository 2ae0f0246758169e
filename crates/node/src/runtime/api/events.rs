//! What happened lately, and to whom it is told.

use super::types::Event;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::broadcast;

anabranch_element::names! {
    /// Kinds of events, of all parts.
    pub enum EventKind("kind of events") {
        SessionUp = "session-up", "A session came about.";
        SessionDown = "session-down", "A session ended.";
        PathUp = "path-up", "A path can be used.";
        PathDown = "path-down", "A path cannot be used.";
        Moved = "moved", "A rule's traffic is on another path.";
        Flapping = "flapping", "Paths come and go.";
        Endpoint = "endpoint", "The peer has another address.";
        Rekeyed = "rekeyed", "There are new keys.";
        Remote = "remote", "The UPF has another address, or a name that does not resolve.";
        AccessRefused = "access-refused", "The ends want another security each.";
        AccessLeft = "access-left", "A rule, or the TCP lane, leaves an access.";
        AccessBack = "access-back", "It may use the access again.";
        OverflowPaused = "overflow-paused", "A rule does not overflow for a while.";
        OverflowResumed = "overflow-resumed", "It may overflow again.";
        FlowsLeft = "flows-left", "Flows were moved away from an access.";
        ClockReset = "clock-reset", "Any time stamp of a UE is accepted again.";
        Rules = "rules", "Other rules are in force.";
        TcpLane = "tcp-lane", "The TCP lane was set up, changed, or failed.";
        HandshakeTimeout = "handshake-timeout", "The UPF does not answer.";
        Refused = "refused", "The UPF refuses a session.";
        SharedKey = "shared-key", "Two devices have one key.";
        Restored = "restored", "Something of ours that somebody removed is there again.";
        NotRestored = "not-restored", "Something of ours does not stay, and is made again ever more seldom.";
        Outside = "outside", "Traffic goes outside the tunnel.";
        ClosedDestination = "closed-destination", "A packet was for a destination that is closed.";
        BadConfig = "bad-config", "What the peer has configured cannot be followed.";
        Reloaded = "reloaded", "The file was read again.";
        Slices = "slices", "A gNB's slices have other shares.";
        Scheduler = "scheduler", "A gNB schedules in another way.";
        UeChanged = "ue-changed", "A UE of a gNB was changed.";
        Late = "late", "A gNB's slots are run late.";
        LwipChanged = "lwip-changed", "An LWIP node was changed.";
    }
}

/// Events kept for those who come late.
pub const KEPT: usize = 256;
/// Events a slow listener may be behind before it misses some.
const BEHIND: usize = 1024;

/// Keeps the last events and tells new ones. Control plane only: the data path never comes here.
#[derive(Clone)]
pub struct EventLog {
    kept: Arc<Mutex<VecDeque<Event>>>,
    live: broadcast::Sender<Event>,
}

impl Default for EventLog {
    fn default() -> Self {
        Self { kept: Arc::default(), live: broadcast::channel(BEHIND).0 }
    }
}

impl EventLog {
    /// Adds an event; id and time are filled in. It is logged too.
    pub fn push(&self, mut event: Event) {
        debug_assert!(EventKind::NAMES.contains(&event.kind.as_str()), "kind {}", event.kind);
        let mut kept = self.kept();
        event.id = kept.back().map_or(1, |last| last.id + 1);
        event.time_unix_ms = crate::runtime::clock::unix_ns() / 1_000_000;
        let Event { kind, message, .. } = &event;
        match event.ue.as_deref() {
            Some(ue) => tracing::info!(kind, ue, "{message}"),
            None => tracing::info!(kind, "{message}"),
        }
        if kept.len() == KEPT {
            kept.pop_front();
        }
        kept.push_back(event.clone());
        // Nobody listening is fine.
        let _ = self.live.send(event);
    }

    /// Those after event `id` that are still kept, and a receiver for what follows them, without gap. An id that none has yet is of
    /// an earlier run of the program: all of this one come after it.
    pub fn since(&self, id: u64) -> (Vec<Event>, broadcast::Receiver<Event>) {
        let kept = self.kept();
        let receiver = self.live.subscribe();
        let id = if kept.back().is_some_and(|last| last.id >= id) { id } else { 0 };
        (kept.iter().filter(|e| e.id > id).cloned().collect(), receiver)
    }

    fn kept(&self) -> MutexGuard<'_, VecDeque<Event>> {
        self.kept.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
