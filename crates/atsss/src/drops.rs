//! Why a packet was not forwarded: one enum, one counter per reason.

use core::fmt;

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// Why a packet or message was dropped. Every reason is a counter and a metrics label.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum DropReason { $($(#[$doc])* $name,)* }

        impl DropReason {
            /// Every reason, in counter order.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The reason as a metrics label.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

reasons! {
    /// Shorter than its header says, or a field has an impossible value.
    Malformed = "malformed",
    /// Not a message of this protocol, or a type that is not allowed here.
    UnknownType = "unknown_type",
    /// No session has this receiver index.
    UnknownIndex = "unknown_index",
    /// Plain-form data from an address no session is bound to.
    UnknownEndpoint = "unknown_endpoint",
    /// The path id is not one the UE announced.
    UnknownPath = "unknown_path",
    /// Authentication failed: forged, corrupted, or sealed under other keys.
    Forged = "forged",
    /// This packet number was seen before.
    Replayed = "replayed",
    /// The packet number is older than the replay window.
    TooOld = "too_old",
    /// Plain-form data on a path that is configured secure.
    PlainRefused = "plain_refused",
    /// On a path that is configured plain at one end only.
    AccessRefused = "access_refused",
    /// The inner source address is not one of the session's own.
    SpoofedSource = "spoofed_source",
    /// The inner source address is link-local or unspecified, as in neighbour discovery by a host's kernel.
    LinkLocal = "link_local",
    /// The inner destination is closed to UEs.
    ClosedDestination = "closed_destination",
    /// The inner destination belongs to no session.
    NoSession = "no_session",
    /// No access of the session is up.
    NoPath = "no_path",
    /// Larger than the tunnel's MTU; the sender was informed by ICMP.
    TooBig = "too_big",
    /// Fragmented by the peer, and not all fragments arrived in time.
    Incomplete = "incomplete",
    /// The output batch was full.
    NoRoom = "no_room",
    /// There are no keys yet, or they have expired.
    NoKeys = "no_keys",
    /// Not IPv4 or IPv6.
    NotIp = "not_ip",
    /// A second copy in redundant mode, or a packet that coded mode had already restored.
    Duplicate = "duplicate",
    /// Handshake: the first authentication tag does not match our public key.
    HandshakeMac = "handshake_mac",
    /// Handshake: under load, and the sender has not proved its address yet.
    HandshakeCookie = "handshake_cookie",
    /// Handshake: the message does not decrypt, or the suite is unknown.
    HandshakeInvalid = "handshake_invalid",
    /// Handshake: an unsupported version of the protocol.
    HandshakeVersion = "handshake_version",
    /// Handshake: the UE's key is not configured.
    HandshakeUnknownUe = "handshake_unknown_ue",
    /// Handshake: the timestamp is not newer than the last one of this UE.
    HandshakeReplayed = "handshake_replayed",
    /// Handshake: the timestamp is too far in the future.
    HandshakeClock = "handshake_clock",
    /// Handshake: more in this interval than the UPF computes.
    HandshakeRate = "handshake_rate",
    /// No session slot or address is free.
    Exhausted = "exhausted",
}

/// One counter per [`DropReason`].
#[derive(Clone)]
pub struct DropCounters([u64; DropReason::ALL.len()]);

impl Default for DropCounters {
    fn default() -> Self {
        Self([0; DropReason::ALL.len()])
    }
}

impl DropCounters {
    /// Counts one.
    pub fn count(&mut self, reason: DropReason) {
        self.0[reason as usize] += 1;
    }

    /// How often `reason` was counted.
    #[must_use]
    pub fn get(&self, reason: DropReason) -> u64 {
        self.0[reason as usize]
    }

    /// Every reason with its count.
    pub fn iter(&self) -> impl Iterator<Item = (DropReason, u64)> + '_ {
        DropReason::ALL.iter().map(|&r| (r, self.get(r)))
    }

    /// Sum of all reasons.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}

impl fmt::Debug for DropCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter().filter(|(_, n)| *n > 0).map(|(r, n)| (r.name(), n))).finish()
    }
}
