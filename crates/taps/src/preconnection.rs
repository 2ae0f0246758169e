//! Preconnections: the specification of a connection before it exists (RFC 9622 §6, §7).

use crate::candidates::{CandidateQuery, RankedCandidates};
use crate::connection::{Connection, ConnectionParameters, Info};
use crate::endpoint::{LocalEndpoint, RemoteEndpoint, Resolved, resolve};
use crate::error::{Attempt, Error};
use crate::framer::{Framer, Stack};
use crate::group::{ConnectionProperties, Group};
use crate::listener::{self, Listener};
use crate::message::{MessageContext, MessageId};
use crate::race::{self, Outcome, Real};
use crate::security::Security;
use crate::setup::Setup;
use crate::transport::{Opened, Recipe};
use crate::{Agent, Preference, Properties, Protocol};
use anabranch_selection::Host;
use anabranch_selection::plan::Planned;
use anabranch_selection::race::RaceConfig;
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;

/// Default of `keepAliveTimeout` if keep-alive is requested: below the lifetime of idle flows in NATs (RFC 9000 §10.1.2 mentions
/// 30 s for UDP).
const KEEP_ALIVE: Duration = Duration::from_secs(25);

/// The specification of a connection, from which any number can be opened. Later changes do not affect open connections.
#[derive(Debug, Clone)]
pub struct Preconnection {
    pub(crate) properties: Properties,
    pub(crate) local: LocalEndpoint,
    pub(crate) remotes: Vec<RemoteEndpoint>,
    pub(crate) security: Security,
    pub(crate) framers: Stack,
    timeout: Option<Duration>,
    keep_alive_timeout: Option<Duration>,
    agent: Agent,
    race: RaceConfig,
    interfaces: fn() -> Host,
}

impl Preconnection {
    /// A preconnection with these properties, without security.
    #[must_use]
    pub fn new(properties: Properties) -> Self {
        Self {
            properties,
            local: LocalEndpoint::default(),
            remotes: Vec::new(),
            security: Security::disabled(),
            framers: Stack::default(),
            timeout: None,
            keep_alive_timeout: None,
            agent: Agent::default(),
            race: RaceConfig::default(),
            interfaces: anabranch_kern::host::interfaces,
        }
    }

    /// Restricts the local endpoint.
    #[must_use]
    pub fn local(mut self, local: impl Into<LocalEndpoint>) -> Self {
        self.local = local.into();
        self
    }

    /// Adds a remote endpoint; all of them are alternatives for the same peer. A listener accepts connections only from them.
    #[must_use]
    pub fn remote(mut self, remote: impl Into<RemoteEndpoint>) -> Self {
        self.remotes.push(remote.into());
        self
    }

    /// Sets the security parameters.
    #[must_use]
    pub fn security(mut self, security: Security) -> Self {
        self.security = security;
        self
    }

    /// Adds a framer: the last one added runs first when sending, and last when receiving.
    #[must_use]
    pub fn framer(mut self, framer: impl Framer + 'static) -> Self {
        self.framers.add(Box::new(framer));
        self
    }

    /// `connTimeout`.
    #[must_use]
    pub fn connection_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// `keepAliveTimeout`; default 25 s if the property `keepAlive` requests keep-alive.
    #[must_use]
    pub fn keep_alive_timeout(mut self, timeout: Duration) -> Self {
        self.keep_alive_timeout = Some(timeout);
        self
    }

    /// Sets the agent to query. Default: the local one.
    #[must_use]
    pub fn agent(mut self, agent: Agent) -> Self {
        self.agent = agent;
        self
    }

    /// Maximum total time for establishment. Default: 30 s.
    #[must_use]
    pub fn establish_within(mut self, timeout: Duration) -> Self {
        self.race.deadline = timeout;
        self
    }

    /// Opens a connection (`Initiate`): candidates are raced, and the first to succeed is used.
    ///
    /// # Errors
    /// No candidate satisfies the properties, with the violated ones; or every candidate failed, with the reasons.
    pub async fn initiate(&self) -> Result<Connection, Error> {
        self.open(None).await.map(|(connection, _)| connection)
    }

    /// Opens a connection and sends a first message (`InitiateWithSend`). A safely replayable message is sent with the handshake if
    /// QUIC has connected to the peer before.
    ///
    /// # Errors
    /// Those of [`Preconnection::initiate`]; or the message cannot be sent.
    pub async fn initiate_with_send(
        &self,
        data: impl Into<Bytes>,
        context: &MessageContext,
    ) -> Result<(Connection, MessageId), Error> {
        let (connection, sent) = self.open(Some((data.into(), context))).await?;
        match sent {
            Some(id) => Ok((connection, id)),
            // Cannot happen: a message was given above.
            None => Err(crate::SendError::Closed.into()),
        }
    }

    /// Waits for connections on the local endpoint (`Listen`).
    ///
    /// # Errors
    /// No protocol satisfies the properties, or the endpoint cannot be listened on.
    pub async fn listen(&self) -> Result<Listener, Error> {
        listener::listen(self).await
    }

    /// Initial connection properties.
    pub(crate) fn connection_properties(&self) -> ConnectionProperties {
        let wanted = matches!(self.properties.keep_alive, Preference::Require | Preference::Prefer);
        ConnectionProperties {
            timeout: self.timeout,
            keep_alive_timeout: self.keep_alive_timeout.or(wanted.then_some(KEEP_ALIVE)),
            ..ConnectionProperties::of(&self.properties)
        }
    }

    /// The peer's addresses, and the candidates to reach them.
    async fn candidates(&self) -> Result<(Resolved, RankedCandidates), Error> {
        let resolved = resolve(&self.remotes).await?;
        if resolved.endpoints.is_empty()
            && let Some(error) = resolved.failed
        {
            return Err(error);
        }
        let query = CandidateQuery {
            properties: &self.properties,
            local: &self.local,
            security: &self.security,
            agent: &self.agent,
            interfaces: self.interfaces,
        };
        let choice = query.answer(&resolved).await?;
        Ok((resolved, choice))
    }

    async fn open(
        &self,
        first: Option<(Bytes, &MessageContext)>,
    ) -> Result<(Connection, Option<MessageId>), Error> {
        let started = std::time::Instant::now();
        let Ok(prepared) = tokio::time::timeout(self.race.deadline, self.candidates()).await else {
            return Err(Error::TimedOut(Vec::new()));
        };
        let (resolved, RankedCandidates { candidates, by_agent }) = prepared?;
        let (connection_properties, mut framers) = (self.connection_properties(), self.framers.clone());
        let early = match &first {
            Some((data, context)) if context.safely_replayable => {
                Some(framers.frame(data.clone()).map_err(crate::SendError::from)?)
            }
            _ => None,
        };
        let (mut failed, delays) =
            (Vec::new(), candidates.iter().map(|c| self.race.delay(c.candidate.rtt_us)).collect());
        let attempt = |i: usize| {
            let recipe = self.recipe(&candidates[i], &resolved);
            let early = early.as_ref();
            async move {
                let recipe = Arc::new(recipe?);
                recipe.open(&connection_properties, early).await.map(|opened| (recipe, opened))
            }
        };
        let tell = |i: usize, error: std::io::Error| {
            let candidate = candidates[i].candidate.clone();
            failed.push(Attempt { candidate, error: error.to_string() });
        };
        // The part of the total time that remains after name resolution and the agent.
        let race = RaceConfig { deadline: self.race.deadline.saturating_sub(started.elapsed()), ..self.race };
        let outcome = race::run(&Real::start(), delays, &race, attempt, tell).await;
        let (won, (recipe, opened)) = match outcome {
            Outcome::Won(i, winner) => (candidates[i].clone(), winner),
            Outcome::Failed { timed_out: true } => return Err(Error::TimedOut(failed)),
            Outcome::Failed { timed_out: false } => return Err(Error::Failed(failed)),
        };
        let winner = RaceWinner { won, recipe, opened, framers, failed, by_agent };
        let (connection, sent) = self.start_connection(
            winner,
            connection_properties,
            first.as_ref().map(|(_, context)| *context),
        )?;
        match (sent, first) {
            (None, Some((data, context))) => {
                let id = connection.send_with(data, context).await?;
                Ok((connection, Some(id)))
            }
            (sent, _) => Ok((connection, sent)),
        }
    }

    fn start_connection(
        &self,
        winner: RaceWinner,
        connection_properties: ConnectionProperties,
        first: Option<&MessageContext>,
    ) -> Result<(Connection, Option<MessageId>), Error> {
        let sent_first = winner.opened.sent_first;
        let Planned { candidate, plan } = winner.won;
        let (protocol, failed) = (candidate.protocol, winner.failed.clone());
        let parameters = ConnectionParameters {
            protocol,
            properties: self.properties.clone(),
            framers: winner.framers,
            info: Some(Info { candidate, plan, by_agent: winner.by_agent, failed: winner.failed }),
            recipe: Some(winner.recipe),
            group: Group::new(connection_properties),
            priority: self.properties.conn_priority,
        };
        // It may have ended in the meantime.
        let connection = Connection::start(winner.opened, parameters).map_err(|_| Error::Failed(failed))?;
        let sent = first.filter(|_| sent_first).map(|context| connection.sent_early(context.last));
        Ok((connection, sent))
    }

    fn recipe(&self, planned: &Planned, resolved: &Resolved) -> std::io::Result<Recipe> {
        let candidate = &planned.candidate;
        let mut setup = Setup::read(&planned.plan)?;
        setup.mptcp = candidate.protocol == Protocol::Mptcp;
        let remote = candidate.endpoint.socket_addr();
        let name = self.security.name().map(str::to_owned);
        let name = name.or_else(|| resolved.names.get(&remote).cloned());
        Ok(Recipe {
            protocol: candidate.protocol,
            remote,
            setup,
            local: self.local.clone(),
            security: self.security.clone(),
            server_name: name.unwrap_or_else(|| remote.ip().to_string()),
            soft_errors: matches!(
                self.properties.soft_error_notify,
                Preference::Require | Preference::Prefer
            ),
        })
    }
}

/// The winner of a race.
struct RaceWinner {
    won: Planned,
    recipe: Arc<Recipe>,
    opened: Opened,
    framers: Stack,
    failed: Vec<Attempt>,
    by_agent: bool,
}
