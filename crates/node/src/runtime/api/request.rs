//! Requests to the control loop, each with a channel for its answer.

use super::super::config::UpfUe;
use super::problem::Problem;
use super::types::{Reloaded, Rules, Session, SessionList, Status};
use crate::gnb::api::CellRequest;
use crate::lwip::api::LwipRequest;
use crate::proxy::api::ProxyRequest;
use crate::tcp_lane::api::TcpLaneRequest;
use anabranch_steer::Rule;
use tokio::sync::{mpsc, oneshot};

/// Channel for an answer.
pub type Reply<T> = oneshot::Sender<Result<T, Problem>>;

/// A request to the control loop.
pub enum ControlRequest {
    /// State of the program.
    Status(Reply<Status>),
    /// Sessions from index `offset` on, at most `limit`.
    Sessions {
        /// Number of sessions to skip.
        offset: usize,
        /// Maximum number of sessions in the answer.
        limit: usize,
        /// Receives the answer.
        reply: Reply<SessionList>,
    },
    /// The session of this UE, with its paths.
    Session(String, Reply<Session>),
    /// Add a UE.
    Create(Box<UpfUe>, Reply<Session>),
    /// Add a UE, or replace the one with its name; the answer also says whether it is new.
    Put(Box<UpfUe>, Reply<(Session, bool)>),
    /// Remove a UE.
    Delete(String, Reply<()>),
    /// Accept any handshake timestamp of a UE again.
    ResetClock(String, Reply<Session>),
    /// Rules in force.
    Rules(Reply<Rules>),
    /// Replace the agent's rules.
    SetRules(Vec<Rule>, Reply<Rules>),
    /// Read the configuration again.
    Reload(Reply<Reloaded>),
    /// Metrics in the Prometheus text format.
    Metrics(Reply<String>),
    /// A request about a cell.
    Cell(CellRequest),
    /// A request about an LWIP node.
    Lwip(LwipRequest),
    /// A request about a proxy.
    Proxy(ProxyRequest),
    /// A request about a TCP lane.
    TcpLane(TcpLaneRequest),
}

impl ControlRequest {
    /// Refuses the request in a program that does not support it. `what` and `remedy` apply to requests about
    /// sessions and rules; the refusal of a request about a cell, an LWIP node, a proxy or a TCP lane names
    /// the program that supports it.
    pub fn refuse(self, what: &str, remedy: &str) {
        let why = || Problem::not_here(what, remedy);
        // A requester that has gone away needs no answer.
        match self {
            Self::Status(reply) => drop(reply.send(Err(why()))),
            Self::Sessions { reply, .. } => drop(reply.send(Err(why()))),
            Self::Session(_, reply) | Self::Create(_, reply) | Self::ResetClock(_, reply) => {
                drop(reply.send(Err(why())))
            }
            Self::Put(_, reply) => drop(reply.send(Err(why()))),
            Self::Delete(_, reply) => drop(reply.send(Err(why()))),
            Self::Rules(reply) | Self::SetRules(_, reply) => drop(reply.send(Err(why()))),
            Self::Reload(reply) => drop(reply.send(Err(why()))),
            Self::Metrics(reply) => drop(reply.send(Err(why()))),
            Self::Cell(request) => request.refuse(),
            Self::Lwip(request) => request.refuse(),
            Self::Proxy(request) => request.refuse(),
            Self::TcpLane(request) => request.refuse(),
        }
    }
}

/// Sends requests to the control loop.
#[derive(Clone)]
pub struct RequestSender(mpsc::Sender<ControlRequest>);

impl RequestSender {
    /// Sends requests through `sender`.
    pub fn new(sender: mpsc::Sender<ControlRequest>) -> Self {
        Self(sender)
    }

    /// Sends a request and waits for the answer.
    pub async fn request<T>(&self, question: impl FnOnce(Reply<T>) -> ControlRequest) -> Result<T, Problem> {
        let (reply, answer) = oneshot::channel();
        let gone = || Problem::unavailable("the program is stopping");
        self.0.send(question(reply)).await.map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }
}
