//! The agent's REST interface (JUNCTION §V-A "agent"): sessions, paths, rules, events; a gNB's cell;
//! an LWIP node; a transparent proxy.
//!
//! ```text
//!  client ── HTTP over unix socket or TCP ──▶ axum ── Ask + oneshot ──▶ control loop ──▶ workers
//!         ◀── JSON, problem+json, event stream ──┘                      (one at a time)
//! ```
//!
//! The same paths serve UE, UPF, gNB, LWIP node and proxy; what only one of them can do answers 405 at the others. The OpenAPI
//! description is generated from the handlers and committed as `openapi/agent.json`; each serves its own part of it at
//! `/openapi.json`. `anabranch int monitor --api` has an interface of its own, made of the same parts.

mod ask;
pub mod auth;
pub mod client;
mod connections;
mod events;
pub mod extract;
mod lwip;
mod lwip_routes;
mod origin;
mod problem;
mod proxy;
mod proxy_routes;
pub mod queries;
mod ran;
mod ran_routes;
mod roles;
mod routes;
mod schema;
mod serve;
mod taps_routes;
mod taps_schema;
mod tcp_lane;
pub mod tls;
mod types;
mod versions;

pub use ask::{Ask, Asker};
pub use auth::Access;
pub use connections::{REUSED, proved};
pub use events::EventLog;
#[cfg(test)]
pub use events::KEPT as EVENTS_KEPT;
pub use lwip::{LwipAcks, LwipAsk, LwipChange, LwipFlow, LwipFlows, LwipHolds, LwipLeg, LwipLink, LwipNode};
pub use problem::Problem;
pub use proxy::{ProxyAgent, ProxyAsk, ProxyCarried, ProxyFlow, ProxyFlows, ProxyNode, ProxyWay};
pub use ran::{
    BearerLink, Cell, CellChange, CellLink, CellPacket, CellPackets, CellUe, RanAsk, Second, SliceLink,
    SliceUse, Slices, Slot, Streams, Telemetry, Ticks, UeBearer, UeChange, UeFlow, UeList,
};
pub use roles::Agent;
pub use routes::{Bearer, Page, hundred};
pub use serve::{Guarded, Server, bearer, finish, read_token, serve};
pub use tcp_lane::{TcpLane, TcpLaneAsk, TcpLaneCarried, TcpLaneFlow, TcpLaneFlows};
pub use types::{
    Coded, Counters, Event, Law, LawPath, NotUsed, Path, PathList, PathLoad, Reloaded, RuleUse, Rules,
    Session, SessionList, Status, WorkerStatus,
};
pub use versions::{Preconditions, etag, header_of};

#[cfg(test)]
pub mod tests;
