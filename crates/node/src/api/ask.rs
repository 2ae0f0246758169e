//! Questions to the control loop, each with the way its answer takes.

use super::lwip::LwipAsk;
use super::problem::Problem;
use super::proxy::ProxyAsk;
use super::ran::RanAsk;
use super::tcp_lane::TcpLaneAsk;
use super::types::{Reloaded, Rules, Session, SessionList, Status};
use crate::config::UpfUe;
use anabranch_rules::Rule;
use tokio::sync::{mpsc, oneshot};

/// Where an answer goes.
pub type Reply<T> = oneshot::Sender<Result<T, Problem>>;

/// A question.
pub enum Ask {
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
    Ran(RanAsk),
    /// About an LWIP node.
    Lwip(LwipAsk),
    /// About a proxy.
    Proxy(ProxyAsk),
    /// About a TCP lane.
    TcpLane(TcpLaneAsk),
}

/// Asks the control loop.
#[derive(Clone)]
pub struct Asker(mpsc::Sender<Ask>);

impl Asker {
    /// Asks through `sender`.
    pub fn new(sender: mpsc::Sender<Ask>) -> Self {
        Self(sender)
    }

    /// Asks, and waits for the answer.
    pub async fn ask<T>(&self, question: impl FnOnce(Reply<T>) -> Ask) -> Result<T, Problem> {
        let (reply, answer) = oneshot::channel();
        let gone = || Problem::unavailable("the program is stopping");
        self.0.send(question(reply)).await.map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }
}
