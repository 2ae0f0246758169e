//! The agents' REST interface (JUNCTION §V-A "agent"): sessions, paths, rules and events; the cell of a gNB;
//! an LWIP node; a transparent proxy.
//!
//! ```text
//!  client ── HTTP over unix socket or TCP ──▶ axum ── ControlRequest + oneshot ──▶ control loop ──▶ workers
//!         ◀── JSON, problem+json, event stream ──┘                      (one at a time)
//! ```
//!
//! UE, UPF, gNB, LWIP node and proxy have the same paths; a path that an agent does not support answers 405.
//! The OpenAPI description is generated from the handlers and committed as `openapi/agent.json`; each agent
//! serves its own part of it at `/openapi.json`. `anabranch int monitor --api` has an interface of its own,
//! built from the same modules.

pub mod auth;
pub mod client;
pub mod connections;
pub mod events;
pub mod extract;
pub mod origin;
pub mod problem;
pub mod queries;
pub mod request;
pub mod roles;
pub mod routes;
pub mod schema;
pub mod serve;
pub mod tls;
pub mod types;
pub mod versions;

pub use crate::gnb::api::{
    BearerLink, Cell, CellChange, CellLink, CellPacket, CellPackets, CellRequest, CellSecond, CellUe,
    SliceLink, SliceUse, Slices, Slot, SlotTimings, Streams, Telemetry, UeBearer, UeChange, UeFlow, UeList,
};
pub use crate::lwip::api::{
    LwipAcks, LwipChange, LwipFlow, LwipFlows, LwipHolds, LwipLeg, LwipLink, LwipNode, LwipRequest,
};
pub use crate::proxy::api::{
    ProxyAgent, ProxyCandidate, ProxyCarried, ProxyFlow, ProxyFlows, ProxyNode, ProxyRequest,
};
pub use crate::tcp_lane::api::{
    TcpLane, TcpLaneCarried, TcpLaneFlow, TcpLaneFlows, TcpLaneLeft, TcpLaneRequest,
};
pub use auth::Access;
pub use connections::{REUSED, proved};
#[cfg(test)]
pub use events::MAX_STORED as MAX_STORED_EVENTS;
pub use events::{EventKind, EventLog};
pub use problem::{NO_SUCH_PATH, Problem};
pub use request::ControlRequest;
pub use roles::Agent;
pub use routes::{Bearer, Page, hundred};
pub use serve::{Guarded, Server, TokenFile, bearer, finish, read_token, serve};
pub use types::{
    CodingCounters, Counters, Event, Law, LawPath, NotUsed, Path, PathList, PathLoad, Reloaded, RuleUse,
    Rules, Session, SessionList, Status, WorkerStatus,
};
pub use versions::{Preconditions, etag, header_of};

#[cfg(test)]
pub mod tests;
