//! Configuration, commands, events and views of a UPF shard.

use crate::crypto::{PrivateKey, PublicKey};
use crate::session::{Addresses, PathView, Security, SessionEvent, SessionParams, Traffic};
use crate::table::TableError;
use anabranch_rules::AccessName;
use anabranch_steer::PolicyError;
use anabranch_steer::Rule;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// One access the UPF listens on.
#[derive(Debug, Clone)]
pub struct UpfAccess {
    /// Its name. A UE's access of the same name gets its protection.
    pub name: AccessName,
    /// How user data is protected on it.
    pub security: Security,
    /// Our own address on it; only the [`anabranch_element::Element`] form needs it.
    pub local: Option<SocketAddr>,
}

/// The configuration of a UPF shard.
#[derive(Clone)]
pub struct UpfConfig {
    /// The UPF's static key.
    pub private_key: PrivateKey,
    /// Accesses; the index is the access number of [`Upf::datagram`].
    pub accesses: Vec<UpfAccess>,
    /// Rules for every UE; a UE's own rules precede them.
    pub rules: Vec<Rule>,
    /// Rates and intervals.
    pub params: SessionParams,
    /// Index of this shard, from 0.
    pub shard: u32,
    /// Number of shards, at least 1.
    pub shards: u32,
    /// Most sessions at a time.
    pub max_sessions: u32,
    /// Unix time at [`anabranch_element::time::Instant::ZERO`], in nanoseconds: the reference for handshake
    /// timestamps.
    pub unix_epoch_ns: u64,
}

/// A configured UE.
#[derive(Debug, Clone, PartialEq)]
pub struct UeEntry {
    /// Name, for people.
    pub name: String,
    /// Static public key: its identity.
    pub key: PublicKey,
    /// Virtual addresses of its session.
    pub addresses: Addresses,
    /// Rules for this UE only; they precede those for all.
    pub rules: Vec<Rule>,
    /// Whether rules sent by the UE are followed for its downlink.
    pub accept_rules: bool,
}

/// Commands of the control plane to the UPF.
#[derive(Debug, Clone)]
pub enum UpfCommand {
    /// Adds a UE, or changes one. Its session, if any, continues with the new rules.
    AddUe(UeEntry),
    /// Removes a UE and ends its session.
    RemoveUe(PublicKey),
    /// Ends the session of a UE, which may connect again.
    CloseSession(PublicKey),
    /// New rules for every UE. Sessions adopt them one after the other, with the next polls.
    Rules(Vec<Rule>),
    /// One application of a UE follows a rule of its own: an exception (JUNCTION §V-C1). This costs less than
    /// rules for one UE, because nothing is compiled.
    SetException {
        /// Public key of the UE.
        key: PublicKey,
        /// Name of the rule whose traffic is concerned.
        application: String,
        /// Name of the rule that steers this traffic instead.
        rule: String,
    },
    /// Ends an exception.
    ClearException {
        /// Public key of the UE.
        key: PublicKey,
        /// Name of the rule whose traffic is concerned.
        application: String,
    },
    /// The clock was set: Unix time at [`anabranch_element::time::Instant::ZERO`] has changed.
    Clock {
        /// The new value, as [`UpfConfig::unix_epoch_ns`].
        unix_epoch_ns: u64,
    },
    /// Accepts any timestamp of this UE again, because its clock was wrong and has been corrected.
    ForgetTimestamp(PublicKey),
    /// Handshakes of a UE up to this timestamp are replays: the newest timestamp before a restart.
    NotBefore {
        /// Public key of the UE.
        key: PublicKey,
        /// Newest timestamp seen, in nanoseconds of Unix time.
        timestamp_ns: u64,
    },
}

/// A command cannot be executed; nothing has changed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum UpfError {
    /// The address belongs to another UE.
    #[error("address {address} of UE \"{name}\" already belongs to UE \"{other}\": give each its own")]
    AddressTaken {
        /// The UE that was to get it.
        name: String,
        /// The contested inner address.
        address: IpAddr,
        /// The UE that has it.
        other: String,
    },
    /// There is no such UE.
    #[error("no UE has the public key {0}")]
    UnknownUe(PublicKey),
    /// A rule does not fit the accesses.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// A table is full.
    #[error(transparent)]
    Table(#[from] TableError),
    /// An exception names a rule that does not exist.
    #[error("there is no rule \"{0}\" for this UE: name one of the rules for all, or of its own")]
    UnknownRule(String),
    /// More exceptions than one UE may have.
    #[error("UE \"{name}\" has {MAX_EXCEPTIONS} exceptions already: give it rules of its own instead")]
    TooManyExceptions {
        /// The UE.
        name: String,
    },
}

/// Most exceptions of one UE.
pub const MAX_EXCEPTIONS: usize = 16;

/// Reasons for which a session ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionEnd {
    /// The UE has other addresses now.
    AddressesChanged,
    /// The UE was removed.
    Removed,
    /// The operator closed the session.
    Closed,
    /// The UE closed the session.
    ClosedByUe,
    /// The UE has not renewed its keys.
    KeysExpired,
    /// The UE has other accesses, or another MTU, now.
    AccessesChanged,
}

impl SessionEnd {
    /// Whether connections of the UE end with the session. Otherwise the UE may continue them in its next session.
    #[must_use]
    pub const fn ends_connections(self) -> bool {
        !matches!(self, Self::KeysExpired | Self::AccessesChanged)
    }
}

impl std::fmt::Display for SessionEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::AddressesChanged => "addresses changed",
            Self::Removed => "UE removed",
            Self::Closed => "closed",
            Self::ClosedByUe => "closed by the UE",
            Self::KeysExpired => "keys expired",
            Self::AccessesChanged => "accesses or MTU changed",
        })
    }
}

/// Events of the UPF, for the control plane.
#[derive(Debug, Clone, PartialEq)]
pub enum UpfEvent {
    /// A handshake was accepted. To be stored across restarts (see [`UpfCommand::NotBefore`]).
    Handshake {
        /// Public key of the UE.
        key: PublicKey,
        /// Its timestamp, in nanoseconds of Unix time.
        timestamp_ns: u64,
    },
    /// A UE proved that it has the keys: its session carries traffic.
    SessionUp {
        /// Name of the UE.
        ue: String,
    },
    /// A known UE got no session, and was sent the reason.
    Refused {
        /// Name of the UE.
        ue: String,
        /// The reason, as sent to the UE.
        reason: &'static str,
    },
    /// Two running devices have this UE's key and displace each other from its session.
    SharedKey {
        /// Name of the UE.
        ue: String,
    },
    /// A session ended.
    SessionDown {
        /// Name of the UE.
        ue: String,
        /// The addresses of the session.
        addresses: Addresses,
        /// Cause of the end.
        reason: SessionEnd,
    },
    /// A document of a UE could not be used.
    BadConfig {
        /// Name of the UE.
        ue: String,
        /// Why the document was rejected.
        error: String,
    },
    /// An event of a session.
    Session {
        /// Name of the UE.
        ue: String,
        /// Names of its accesses, by path id.
        accesses: Arc<[AccessName]>,
        /// The event of this session.
        event: SessionEvent,
    },
}

/// The state of one session, for people and metrics.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionView {
    /// Name of the UE.
    pub ue: String,
    /// Its public key.
    pub key: PublicKey,
    /// Inner addresses assigned to the UE.
    pub addresses: Addresses,
    /// Whether it has a session and has proved that it has the keys.
    pub connected: bool,
    /// Whether the session is at rest.
    pub resting: bool,
    /// Traffic counters; `tx` is downlink.
    pub traffic: Traffic,
    /// Paths, empty without a session.
    pub paths: Vec<PathView>,
}
