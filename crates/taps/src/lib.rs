//! Transport Services for Rust programs (RFC 9622): a program states the requirements of a connection; the policy selects its
//! slice, path, protocol and address.
//!
//! ```text
//!  Preconnection ── initiate ──▶ candidates ──▶ race ──▶ Connection ── send, receive, clone, close
//!  endpoints        listen        │  ▲            │          │ ▲
//!  properties       │             │  │ plans      ▼          ▼ │ framers
//!  security         ▼             ▼  │        TCP · Multipath TCP · UDP · QUIC
//!  framers       Listener        agent of `anabranch ue` (POST /connections/select),
//!                                or, without an agent, this host's own interfaces
//! ```
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use anabranch_taps::{Preconnection, Preference, Properties, RemoteEndpoint};
//! let mut properties = Properties::default();
//! properties.pvd.insert("low-latency".into(), Preference::Prefer);
//! let connection = Preconnection::new(properties)
//!     .remote(RemoteEndpoint::hostname("server.example").port(5000))
//!     .initiate()
//!     .await?;
//! connection.send("hello").await?;
//! while let Some(message) = connection.receive().await? {
//!     println!("{} bytes over {}", message.data.len(), connection.protocol());
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Everything runs on tokio. `anabranch_selection` implements the selection, this crate the sockets. Unsupported features are refused
//! by name, never silently ignored: docs/taps-api.md lists them and maps the API to RFC 9622.
#![deny(missing_docs)]
// Connections run in real time.
#![allow(clippy::disallowed_methods)]

mod agent;
mod candidates;
mod connection;
mod endpoint;
mod error;
mod event;
mod framer;
mod group;
mod host;
mod listener;
mod message;
mod preconnection;
mod queue;
mod race;
mod security;
mod setup;
mod transport;

pub use agent::Agent;
pub use anabranch_selection::plan::Action;
pub use anabranch_selection::{
    Candidate, CapacityProfile, Direction, Effect, Feature, Isolation, IsolationBound, LatencyBound,
    Multipath, MultipathPolicy, PathName, Preference, Properties, PropertyError, Protocol, Rate, RateBound,
    Reason,
};
pub use connection::{Connection, Info, State};
pub use endpoint::{LocalEndpoint, RemoteEndpoint};
pub use error::{Attempt, CloneError, Error, ReceiveError, SendError};
pub use event::Event;
pub use framer::{Framer, FramerError, LengthPrefix};
pub use group::ConnectionProperties;
pub use listener::Listener;
pub use message::{Message, MessageContext, MessageId};
pub use preconnection::Preconnection;
pub use security::{Security, SecurityError};
