//! Messages and their properties (RFC 9622 §9.1).

use crate::error::SendError;
use anabranch_selection::{CapacityProfile, Preference, Properties, Protocol};
use bytes::Bytes;
use std::net::SocketAddr;
use std::time::Duration;

/// Names a message that was given to `send`, unique in its connection, from 1 on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId(pub(crate) u64);

/// Properties of one message (RFC 9622 §9.1.3). What is `None` follows from the connection.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MessageContext {
    /// `msgLifetime`: how long it may wait here before it is sent.
    pub lifetime: Option<Duration>,
    /// `msgPriority`: smaller first, among messages that need not keep their order. Default: 100.
    pub priority: Option<u32>,
    /// `msgOrdered`: whether it keeps its place behind those sent before. Default: whether `preserveOrder` is required or
    /// preferred.
    pub ordered: Option<bool>,
    /// `safelyReplayable`: it may arrive more than once, and so may travel before the handshake has ended.
    pub safely_replayable: bool,
    /// `final`: it is the last one.
    pub last: bool,
    /// `msgReliable`. Default: as the connection. Only a connection whose protocol can choose by message takes another one.
    pub reliable: Option<bool>,
    /// `msgCapacityProfile`. Default: the connection's. No protocol here can mark single messages of a stream.
    pub capacity_profile: Option<CapacityProfile>,
    /// `noFragmentation`: not to be fragmented by the network layer.
    pub no_fragmentation: bool,
    /// `noSegmentation`: one packet or an error.
    pub no_segmentation: bool,
}

impl MessageContext {
    /// Nothing but defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets `msgLifetime`.
    #[must_use]
    pub fn lifetime(mut self, lifetime: Duration) -> Self {
        self.lifetime = Some(lifetime);
        self
    }

    /// Sets `msgPriority`, and that the message need not keep its order.
    #[must_use]
    pub fn priority(mut self, priority: u32) -> Self {
        (self.priority, self.ordered) = (Some(priority), Some(false));
        self
    }

    /// Sets `safelyReplayable`.
    #[must_use]
    pub fn safely_replayable(mut self) -> Self {
        self.safely_replayable = true;
        self
    }

    /// Sets `final`.
    #[must_use]
    pub fn last(mut self) -> Self {
        self.last = true;
        self
    }

    /// The place in the queue: ordered messages keep theirs among themselves.
    pub(crate) fn rank(&self, properties: &Properties) -> u32 {
        let wanted = matches!(properties.preserve_order, Preference::Require | Preference::Prefer);
        if self.ordered.unwrap_or(wanted) {
            DEFAULT_PRIORITY
        } else {
            self.priority.unwrap_or(DEFAULT_PRIORITY)
        }
    }

    /// Refuses what the protocol cannot keep; `singular` is the most that fits in one packet, if that is known.
    pub(crate) fn check(
        &self,
        bytes: usize,
        protocol: Protocol,
        profile: CapacityProfile,
        singular: Option<usize>,
    ) -> Result<(), SendError> {
        let property = |property, reason: &str| Err(SendError::Property { property, reason: reason.into() });
        if self.lifetime.is_some_and(|l| l.is_zero()) {
            return property("msgLifetime", "0 expires at once: give more, or none");
        }
        if self.reliable.is_some_and(|wanted| wanted != (protocol != Protocol::Udp)) {
            let reason = format!("{protocol} cannot choose reliability by message; leave it out");
            return property("msgReliable", &reason);
        }
        if self.capacity_profile.is_some_and(|wanted| wanted != profile) {
            let reason =
                "single messages cannot be marked; clone the connection, or change connCapacityProfile";
            return property("msgCapacityProfile", reason);
        }
        match singular {
            Some(most) if (self.no_segmentation || self.no_fragmentation) && bytes > most => {
                Err(SendError::TooLong { bytes, most })
            }
            None if self.no_segmentation => {
                property("noSegmentation", &format!("{protocol} cuts what it sends as it likes; use udp"))
            }
            _ => Ok(()),
        }
    }
}

/// `msgPriority` and `connPriority` where nothing is said.
pub(crate) const DEFAULT_PRIORITY: u32 = 100;

/// What was received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// The data.
    pub data: Bytes,
    /// Whether this ends the message. A stream of bytes without a framer is one message that comes in parts.
    pub end_of_message: bool,
    /// Whether it was sent as the last one (RFC 9622 §9.3.3.3).
    pub last: bool,
    /// Whether it came before the handshake had ended, so that it may be a repetition (§9.3.3.2). Only to listeners that require
    /// or prefer `zeroRttMsg`, and ask for no certificates.
    pub early: bool,
    /// The peer's address.
    pub remote: SocketAddr,
    /// Our own.
    pub local: SocketAddr,
}
