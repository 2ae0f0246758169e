//! What a UPF shard is told, and what it tells.

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
    /// Its name; a UE's access of the same name gets its protection.
    pub name: AccessName,
    /// How user data is protected on it.
    pub security: Security,
    /// Our own address on it; only the [`anabranch_element::Element`] form needs it.
    pub local: Option<SocketAddr>,
}

/// What a UPF shard must know.
#[derive(Clone)]
pub struct UpfConfig {
    /// Our static key.
    pub private_key: PrivateKey,
    /// Accesses; the index is the access number of [`Upf::datagram`].
    pub accesses: Vec<UpfAccess>,
    /// Rules for every UE; a UE's own go before them.
    pub rules: Vec<Rule>,
    /// Rates and intervals.
    pub params: SessionParams,
    /// Number of this shard.
    pub shard: u32,
    /// Number of shards, at least 1.
    pub shards: u32,
    /// Most sessions at a time.
    pub max_sessions: u32,
    /// Unix time at [`anabranch_element::time::Instant::ZERO`], in nanoseconds: what handshake timestamps are held against.
    pub unix_epoch_ns: u64,
}

/// A UE the UPF knows.
#[derive(Debug, Clone, PartialEq)]
pub struct UeEntry {
    /// Name, for people.
    pub name: String,
    /// Static public key: its identity.
    pub key: PublicKey,
    /// Virtual addresses of its session.
    pub addresses: Addresses,
    /// Rules for this UE alone, before those for all.
    pub rules: Vec<Rule>,
    /// Whether rules the UE brings along are followed for its downlink.
    pub accept_rules: bool,
}

/// Control in.
#[derive(Debug, Clone)]
pub enum UpfCommand {
    /// Adds a UE, or changes one; its session, if any, goes on with the new rules.
    AddUe(UeEntry),
    /// Forgets a UE and ends its session.
    RemoveUe(PublicKey),
    /// Ends the session of a UE; it may come back.
    CloseSession(PublicKey),
    /// New rules for every UE. Sessions take them up one after the other, with the next polls.
    Rules(Vec<Rule>),
    /// One application of a UE follows another rule than everybody's: an exception (JUNCTION §V-C1). Cheaper
    /// than rules of its own: nothing is compiled.
    SetException {
        /// The UE.
        key: PublicKey,
        /// Name of the rule whose traffic it is about.
        application: String,
        /// Name of the rule that says how it is steered instead.
        rule: String,
    },
    /// Ends an exception.
    ClearException {
        /// The UE.
        key: PublicKey,
        /// Name of the rule whose traffic it is about.
        application: String,
    },
    /// The clock was set: Unix time at [`anabranch_element::time::Instant::ZERO`] is another one now, in nanoseconds.
    Clock {
        /// As in [`UpfConfig::unix_epoch_ns`].
        unix_epoch_ns: u64,
    },
    /// Any timestamp of this UE is accepted again: its clock was wrong and is not any more.
    ForgetTimestamp(PublicKey),
    /// Handshakes of a UE up to this timestamp are recordings: what was seen before a restart.
    NotBefore {
        /// The UE.
        key: PublicKey,
        /// Newest timestamp seen, in nanoseconds of Unix time.
        timestamp_ns: u64,
    },
}

/// A command that cannot be carried out; nothing has changed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum UpfError {
    /// The address belongs to another UE.
    #[error("address {address} of UE \"{name}\" already belongs to UE \"{other}\": give each its own")]
    AddressTaken {
        /// UE that asked for it.
        name: String,
        /// The address.
        address: IpAddr,
        /// UE that has it.
        other: String,
    },
    /// No such UE.
    #[error("no UE has the public key {0}")]
    UnknownUe(PublicKey),
    /// A rule does not fit the accesses.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// A table is full.
    #[error(transparent)]
    Table(#[from] TableError),
    /// An exception names a rule that is not there.
    #[error("there is no rule \"{0}\" for this UE: name one of the rules for all, or of its own")]
    UnknownRule(String),
    /// More exceptions than one UE may have.
    #[error("UE \"{name}\" has {MAX_EXCEPTIONS} exceptions already: give it rules of its own instead")]
    TooManyExceptions {
        /// The UE.
        name: String,
    },
}

/// Exceptions one UE may have.
pub const MAX_EXCEPTIONS: usize = 16;

/// Telemetry out.
#[derive(Debug, Clone, PartialEq)]
pub enum UpfEvent {
    /// A handshake was accepted; to be remembered across restarts (see [`UpfCommand::NotBefore`]).
    Handshake {
        /// The UE.
        key: PublicKey,
        /// Its timestamp, in nanoseconds of Unix time.
        timestamp_ns: u64,
    },
    /// A UE proved its keys: its session carries traffic.
    SessionUp {
        /// The UE.
        ue: String,
    },
    /// A UE that is known got no session, and was told why.
    Refused {
        /// The UE.
        ue: String,
        /// Why.
        reason: &'static str,
    },
    /// Two devices that run have this UE's key, and push each other out of its session.
    SharedKey {
        /// The UE.
        ue: String,
    },
    /// A session ended.
    SessionDown {
        /// The UE.
        ue: String,
        /// Why.
        reason: &'static str,
    },
    /// A document of a UE could not be used.
    BadConfig {
        /// The UE.
        ue: String,
        /// What is wrong.
        error: String,
    },
    /// From a session.
    Session {
        /// The UE.
        ue: String,
        /// Names of its accesses, by path id.
        accesses: Arc<[AccessName]>,
        /// What happened.
        event: SessionEvent,
    },
}

/// One session as shown to people and metrics.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionView {
    /// Name of the UE.
    pub ue: String,
    /// Its public key.
    pub key: PublicKey,
    /// Its addresses.
    pub addresses: Addresses,
    /// Whether it has a session and has proved its keys.
    pub connected: bool,
    /// Whether the session rests: nothing was sent or received for a while.
    pub resting: bool,
    /// Traffic counters; `tx` is downlink.
    pub traffic: Traffic,
    /// Paths, empty without a session.
    pub paths: Vec<PathView>,
}
