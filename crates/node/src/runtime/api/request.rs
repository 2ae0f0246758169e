//! Questions to the control loop, each with the way its answer takes.

use super::super::config::UpfUe;
use super::problem::Problem;
use super::types::{Reloaded, Rules, Session, SessionList, Status};
use crate::gnb::api::CellRequest;
use crate::lwip::api::LwipRequest;
use crate::proxy::api::ProxyRequest;
use crate::tcp_lane::api::TcpLaneRequest;
use anabranch_steer::Rule;
use tokio::sync::{mpsc, oneshot};

/// Where an answer goes.
pub type Reply<T> = oneshot::Sender<Result<T, Problem>>;

/// A question.
pub enum ControlRequest {
    /// The program as a whole.
    Status(Reply<Status>),
    /// Sessions from the `offset`th on, at most `limit`.
    Sessions {
        /// How many to skip.
        offset: usize,
        /// How many to show.
        limit: usize,
        /// Answer.
        reply: Reply<SessionList>,
    },
    /// One session.
    Session(String, Reply<Session>),
    /// Add a UE.
    Create(Box<UpfUe>, Reply<Session>),
    /// Add a UE, or change the one of its name; also whether it is new.
    Put(Box<UpfUe>, Reply<(Session, bool)>),
    /// Forget a UE.
    Delete(String, Reply<()>),
    /// Accept any handshake timestamp of a UE again.
    ResetClock(String, Reply<Session>),
    /// Rules in force.
    Rules(Reply<Rules>),
    /// Replace our rules.
    SetRules(Vec<Rule>, Reply<Rules>),
    /// Read the configuration again.
    Reload(Reply<Reloaded>),
    /// Prometheus text.
    Metrics(Reply<String>),
    /// About a cell.
    Cell(CellRequest),
    /// About an LWIP node.
    Lwip(LwipRequest),
    /// About a proxy.
    Proxy(ProxyRequest),
    /// About a TCP lane.
    TcpLane(TcpLaneRequest),
}

impl ControlRequest {
    /// Answers that this role does not serve the request: `what` and `remedy` where it is about sessions and rules;
    /// one about a cell, an LWIP node, a proxy or a TCP lane names the role that has it.
    pub fn refuse(self, what: &str, remedy: &str) {
        let why = || Problem::not_here(what, remedy);
        // Whoever asked and went away does not care for the answer.
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

/// Asks the control loop.
#[derive(Clone)]
pub struct RequestSender(mpsc::Sender<ControlRequest>);

impl RequestSender {
    /// Asks through `sender`.
    pub fn new(sender: mpsc::Sender<ControlRequest>) -> Self {
        Self(sender)
    }

    /// Asks, and waits for the answer.
    pub async fn request<T>(&self, question: impl FnOnce(Reply<T>) -> ControlRequest) -> Result<T, Problem> {
        let (reply, answer) = oneshot::channel();
        let gone = || Problem::unavailable("the program is stopping");
        self.0.send(question(reply)).await.map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }
}
