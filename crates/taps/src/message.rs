//! Messages and their properties (RFC 9622 §9.1).

use crate::error::SendError;
use anabranch_selection::{CapacityProfile, Preference, Properties, Protocol};
use bytes::Bytes;
use std::net::SocketAddr;
use std::time::Duration;

/// Identifies a message that was passed to `send`, unique within its connection, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId(pub(crate) u64);

/// Properties of one message (RFC 9622 §9.1.3). `None` means the value of the connection.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MessageContext {
    /// `msgLifetime`: maximum time in the send queue.
    pub lifetime: Option<Duration>,
    /// `msgPriority`: smaller first, among messages without required order. Default: 100.
    pub priority: Option<u32>,
    /// `msgOrdered`: whether it stays behind messages sent before. Default: whether `preserveOrder` is required or preferred.
    pub ordered: Option<bool>,
    /// `safelyReplayable`: it may arrive more than once, and may therefore be sent before the handshake has completed.
    pub safely_replayable: bool,
    /// `final`: the last message.
    pub last: bool,
    /// `msgReliable`. Default: as the connection. Other values require a protocol with reliability per message.
    pub reliable: Option<bool>,
    /// `msgCapacityProfile`. Default: that of the connection. No protocol here can mark single messages of a stream.
    pub capacity_profile: Option<CapacityProfile>,
    /// `noFragmentation`: the network layer must not fragment it.
    pub no_fragmentation: bool,
    /// `noSegmentation`: a single packet, or an error.
    pub no_segmentation: bool,
}

impl MessageContext {
    /// Default properties.
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

    /// Sets `msgPriority`, and removes the ordering requirement.
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

    /// Rank in the send queue; ordered messages have equal ranks, which keeps their order.
    pub(crate) fn rank(&self, properties: &Properties) -> u32 {
        let wanted = matches!(properties.preserve_order, Preference::Require | Preference::Prefer);
        if self.ordered.unwrap_or(wanted) {
            DEFAULT_PRIORITY
        } else {
            self.priority.unwrap_or(DEFAULT_PRIORITY)
        }
    }

    /// Rejects properties that the protocol does not support; `singular` is the maximum size for one packet, if known.
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

/// Default of `msgPriority` and `connPriority`.
pub(crate) const DEFAULT_PRIORITY: u32 = 100;

/// A received message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Contents, or a part of them.
    pub data: Bytes,
    /// Whether this ends the message. A byte stream without a framer is one message, received in parts.
    pub end_of_message: bool,
    /// Whether the peer sent it as the final message (RFC 9622 §9.3.3.3).
    pub last: bool,
    /// Whether it arrived before the handshake had completed, and may be a replay (§9.3.3.2). Only with listeners that require or
    /// prefer `zeroRttMsg`, and do not request certificates.
    pub early: bool,
    /// Address of the peer.
    pub remote: SocketAddr,
    /// Local address.
    pub local: SocketAddr,
}
