//! Transport Services (TAPS): an application states its requirements; the host selects slice, path, protocol and window.
//!
//! ```text
//!  properties ──▶ gather ──▶ prune ──▶ sort ──▶ ranked candidates ──▶ race ──▶ connection
//!  (RFC 9622)     paths ×    Require   paths → protocols → endpoints   (RFC 8305)
//!                 protocols  Prohibit  Prefer, Avoid, rates, profile      │
//!                 × endpoints    │                                        ▼
//!  host: interfaces, slices ─────┴──▶ refusal: property, candidates    plan: mark, device, window, pacing, MPTCP
//! ```
//!
//! A slice is a provisioning domain (`pvd`, RFC 7556). Information about it from the network is called *facts*; they have a time to
//! live and are ignored once it has expired. Sources: RFC 9621 to 9623 (Transport Services), RFC 8305 (racing); "Extending
//! Network Slice Management to the End-host" (5G-MeMU '21) for the initial window (Eq. 1), the mapping to slices and the rule for
//! aggregation; NEAT's policy manager for [`neat`]; TS 24.526 and TS 29.522 for [`ursp`].
//!
//! Every function depends only on its arguments: no clock, no sockets, no randomness. The order of candidates is total and does
//! not depend on the order of the inputs.
//!
//! ```
//! use anabranch_element::time::Instant;
//! use anabranch_selection::{Endpoint, Host, Interface, Request, select};
//!
//! let mut host = Host::with_all_protocols();
//! for (name, metric) in [("wlan0", 600), ("wwan0", 700)] {
//!     let addresses = vec!["192.0.2.7".parse()?];
//!     host.interfaces.insert(name.into(), Interface { up: true, addresses, metric, ..Interface::default() });
//! }
//! let request = Request { remote: vec![Endpoint::new("198.51.100.1".parse()?, 443)], ..Request::default() };
//! let selection = select(&request, &host, Instant::ZERO)?;
//! assert!(selection.candidates.len() >= 2);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod candidate;
mod endpoint;
mod gather;
mod host;
pub mod neat;
mod needs;
mod path;
pub mod plan;
mod preference;
mod properties;
mod protocol;
pub mod race;
mod rank;
mod request;
mod select;
pub mod ursp;
pub mod window;

pub use candidate::{Candidate, Effect, PathName, Reason};
pub use endpoint::Endpoint;
pub use host::{Host, Interface, Isolation, Slice, SliceFacts};
pub use needs::Need;
pub use preference::Preference;
pub use properties::{
    CapacityProfile, Direction, IsolationBound, LatencyBound, Multipath, MultipathPolicy, Properties,
    PropertyError, Rate, RateBound,
};
pub use protocol::{Feature, Protocol, Stack};
pub use request::{MAX_CANDIDATES, MAX_ENDPOINTS, MAX_PATHS, Request};
pub use select::{Pruned, Refusal, Selection, select};

#[cfg(test)]
mod tests;
