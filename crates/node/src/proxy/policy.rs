//! Candidates for flows: answers of the UE's agent, with a cache.
//!
//! ```text
//!  answer younger than refresh ─▶ use it                                   (Origin::Recent)
//!  else request ─┬─ answered ─▶ use it, cache it                           (Origin::Asked)
//!                └─ not in time ─┬─ answer younger than ttl ─▶ use it      (Origin::Last)
//!                                └─ else ─▶ the routes of the host         (Origin::Plain)
//! ```
//!
//! Identical requests are sent only once at a time, however many flows wait for the answer. After a failure,
//! no request is sent for a second, so that flows do not wait one after the other. A flow never waits longer
//! for requests of other flows than for its own.

use super::agent::{Agent, AgentError, Answer};
use super::rules::{Rule, Transport};
use crate::runtime::config::AgentLink;
use crate::runtime::relay::named;
use anabranch_selection::Protocol;
use anabranch_selection::plan::Action;
use serde::Serialize;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Maximum number of cached answers.
const MAX_ANSWERS: usize = 4096;
/// Number of locks over the requests in progress.
const SHARDS: usize = 16;
/// Time without requests after a failure.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_secs(1);

/// A candidate for a flow.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Candidate {
    /// Protocol towards the server.
    pub protocol: Protocol,
    /// Egress interface; `None`: chosen by the routes of the host.
    pub interface: Option<String>,
    /// Name of the slice; `None`: none.
    pub slice: Option<String>,
    /// Upper bound of the round-trip time, microseconds.
    pub rtt_us: Option<u64>,
    /// Steps to configure the socket.
    pub plan: Vec<Action>,
}

impl Candidate {
    /// DSCP of its packets, if the plan sets one.
    pub fn dscp(&self) -> Option<u8> {
        self.plan.iter().find_map(|step| if let Action::Dscp { dscp } = step { Some(*dscp) } else { None })
    }

    /// The candidate that follows the routes of the host.
    pub const fn plain(transport: Transport) -> Self {
        let protocol = match transport {
            Transport::Tcp => Protocol::Tcp,
            Transport::Udp => Protocol::Udp,
        };
        Self { protocol, interface: None, slice: None, rtt_us: None, plan: Vec::new() }
    }
}

named! {
    /// Origin of a flow's candidates.
    pub enum Origin {
        /// The agent answered a request of this flow.
        Asked = "asked",
        /// A cached answer younger than `refresh_ms`.
        Recent = "recent",
        /// An older cached answer, because the agent does not answer.
        Last = "last",
        /// No answer is available.
        Plain = "plain",
    }
}

/// Key of the cache: the properties on which an answer depends.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct CacheKey {
    rule: String,
    transport: Transport,
    server: SocketAddr,
}

struct CachedAnswer {
    at: Instant,
    answer: Arc<Answer>,
}

/// State of the policy agent, for the status.
#[derive(Debug, Clone, PartialEq)]
pub struct PolicyView {
    /// Address of the agent.
    pub agent: String,
    /// Whether the agent answered the last request; `None` before the first request.
    pub answers: Option<bool>,
    /// Requests that the agent answered.
    pub asked: u64,
    /// Requests that the agent did not answer in time.
    pub failures: u64,
    /// Cause of the last failure.
    pub failure: Option<String>,
    /// Number of cached answers.
    pub cached: usize,
}

/// The policy: the agent's client and the cache.
pub struct Policy {
    agent: Option<Agent>,
    config: AgentLink,
    cached: Mutex<BTreeMap<CacheKey, CachedAnswer>>,
    in_progress: [tokio::sync::Mutex<()>; SHARDS],
    /// Time and cause of the last failure, until the agent answers again.
    last_failure: Mutex<Option<(Instant, String)>>,
    answers: AtomicBool,
    asked: AtomicU64,
    failures: AtomicU64,
}

impl Policy {
    /// A policy with an empty cache.
    ///
    /// # Errors
    /// The token file of the agent cannot be read.
    pub fn new(config: &AgentLink) -> anyhow::Result<Self> {
        Ok(Self {
            agent: Agent::new(config)?,
            config: config.clone(),
            cached: Mutex::default(),
            in_progress: std::array::from_fn(|_| tokio::sync::Mutex::new(())),
            last_failure: Mutex::default(),
            answers: AtomicBool::new(false),
            asked: AtomicU64::new(0),
            failures: AtomicU64::new(0),
        })
    }

    /// The candidates for a flow of `rule` to `server`, the best first, and their origin.
    pub async fn candidates(
        &self,
        rule: &Rule,
        transport: Transport,
        server: SocketAddr,
    ) -> (Arc<Answer>, Origin) {
        let Some(agent) = &self.agent else { return plain(transport) };
        let question = CacheKey { rule: rule.name.clone(), transport, server };
        if let Some(answer) = self.remembered(&question, Duration::from_millis(self.config.refresh_ms.into()))
        {
            return (answer, Origin::Recent);
        }
        let mut hash = DefaultHasher::new();
        question.hash(&mut hash);
        let patience = Duration::from_millis(self.config.timeout_ms.into());
        let turn =
            tokio::time::timeout(patience, self.in_progress[hash.finish() as usize % SHARDS].lock()).await;
        // Another flow may have received the answer meanwhile.
        if let Some(answer) = self.remembered(&question, Duration::from_millis(self.config.refresh_ms.into()))
        {
            return (answer, Origin::Recent);
        }
        if turn.is_ok() && self.recent_failure().is_none() {
            match agent.request_candidates(&rule.properties, transport, server).await {
                Ok(answer) => {
                    self.record_answer(agent);
                    let answer = Arc::new(answer);
                    self.remember(question, answer.clone());
                    return (answer, Origin::Asked);
                }
                Err(AgentError::RequestRefused(why)) => {
                    self.failures.fetch_add(1, Relaxed);
                    tracing::debug!(
                        agent = agent.place(),
                        rule = rule.name,
                        "the agent refuses the request: {why}"
                    );
                }
                Err(error) => self.record_failure(agent, &error),
            }
        }
        match self.remembered(&question, Duration::from_secs(self.config.ttl_s.into())) {
            Some(answer) => (answer, Origin::Last),
            None => plain(transport),
        }
    }

    /// Clears the cache, because the rules have changed.
    pub fn forget(&self) {
        self.cached().clear();
    }

    /// Current state.
    pub fn view(&self) -> PolicyView {
        let (asked, failures) = (self.asked.load(Relaxed), self.failures.load(Relaxed));
        PolicyView {
            agent: self.agent.as_ref().map_or_else(|| "off".to_owned(), |agent| agent.place().to_owned()),
            answers: (asked + failures > 0).then(|| self.answers.load(Relaxed)),
            asked,
            failures,
            failure: self.last_failure().as_ref().map(|(_, why)| why.clone()),
            cached: self.cached().len(),
        }
    }

    fn remembered(&self, question: &CacheKey, within: Duration) -> Option<Arc<Answer>> {
        self.cached()
            .get(question)
            .filter(|cached| cached.at.elapsed() < within)
            .map(|cached| cached.answer.clone())
    }

    fn remember(&self, question: CacheKey, answer: Arc<Answer>) {
        let ttl = Duration::from_secs(self.config.ttl_s.into());
        let mut cached = self.cached();
        if cached.len() >= MAX_ANSWERS && !cached.contains_key(&question) {
            cached.retain(|_, one| one.at.elapsed() < ttl);
            // If all answers are recent, the older half is evicted, so that this does not happen for every
            // new answer.
            if cached.len() >= MAX_ANSWERS {
                let mut times: Vec<Instant> = cached.values().map(|one| one.at).collect();
                times.sort_unstable();
                let middle = times[times.len() / 2];
                cached.retain(|_, one| one.at > middle);
            }
        }
        cached.insert(question, CachedAnswer { at: Instant::now(), answer });
    }

    fn record_answer(&self, agent: &Agent) {
        self.asked.fetch_add(1, Relaxed);
        if !self.answers.swap(true, Relaxed) {
            tracing::info!(agent = agent.place(), "the agent answers: flows follow its plans");
        }
        *self.last_failure() = None;
    }

    fn record_failure(&self, agent: &Agent, error: &AgentError) {
        let first = self.failures.fetch_add(1, Relaxed) == 0;
        if self.answers.swap(false, Relaxed) || first {
            let ttl_s = self.config.ttl_s;
            tracing::warn!(
                agent = agent.place(),
                ttl_s,
                "{error}; flows follow its last plans, after that the routes of the host"
            );
        }
        *self.last_failure() = Some((Instant::now(), error.to_string()));
    }

    fn recent_failure(&self) -> Option<String> {
        self.last_failure()
            .as_ref()
            .filter(|(at, _)| at.elapsed() < PAUSE_AFTER_FAILURE)
            .map(|(_, why)| why.clone())
    }

    fn cached(&self) -> MutexGuard<'_, BTreeMap<CacheKey, CachedAnswer>> {
        self.cached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn last_failure(&self) -> MutexGuard<'_, Option<(Instant, String)>> {
        self.last_failure.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn plain(transport: Transport) -> (Arc<Answer>, Origin) {
    (Arc::new(Answer::Candidates(vec![Arc::new(Candidate::plain(transport))])), Origin::Plain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::Rules;
    use crate::runtime::config::{Listen, ProxyConfig, parse};
    use std::io::{Read, Write};
    use std::net::TcpListener;

    /// A policy whose agent takes `pause` for each answer and refuses requests about `wrong`.
    fn policy(pause: Duration, timeout_ms: u32) -> (Policy, Vec<Arc<Rule>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let connect = Listen::Tcp(listener.local_addr().unwrap());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                std::thread::spawn(move || {
                    let mut asked = vec![0; 65_536];
                    let len = stream.read(&mut asked).unwrap();
                    std::thread::sleep(pause);
                    let wrong = String::from_utf8_lossy(&asked[..len]).contains("\"connPriority\":7");
                    let status = if wrong { "400 Bad Request" } else { "409 Conflict" };
                    let answer = "{\"detail\": \"no\"}";
                    let head =
                        format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {}", answer.len());
                    // The client may have given up.
                    let _ = stream.write_all(format!("{head}\r\n\r\n{answer}").as_bytes());
                });
            }
        });
        let text = "[[rule]]\nname = \"wrong\"\nfilter = { remote_port = 1 }\nproperties = { connPriority = 7 }\n\
                    [[rule]]\nname = \"right\"\n";
        let config: ProxyConfig = parse("proxy.toml", text).unwrap();
        let rules = Rules::new(&config.rule).unwrap();
        let config = AgentLink { connect, timeout_ms, ..AgentLink::default() };
        (Policy::new(&config).unwrap(), rules.all().to_vec())
    }

    fn server(i: u16) -> SocketAddr {
        SocketAddr::new([192, 0, 2, 1].into(), i)
    }

    #[tokio::test]
    async fn a_refused_request_does_not_affect_others() {
        let (policy, rules) = policy(Duration::ZERO, 10_000);
        for _ in 0..3 {
            let (_, origin) = policy.candidates(&rules[0], Transport::Tcp, server(1)).await;
            assert_eq!(origin, Origin::Plain);
            let (answer, origin) = policy.candidates(&rules[1], Transport::Tcp, server(2)).await;
            assert!(matches!(origin, Origin::Asked | Origin::Recent), "{origin:?}");
            assert!(matches!(*answer, Answer::Unmet(_)));
        }
        let view = policy.view();
        assert_eq!((view.failures, view.answers, view.failure), (3, Some(true), None));
    }

    #[tokio::test]
    async fn no_flow_waits_long_for_requests_of_others() {
        let (policy, rules) = policy(Duration::from_millis(300), 400);
        let policy = Arc::new(policy);
        let begin = Instant::now();
        let mut flows = tokio::task::JoinSet::new();
        for i in 0..20 * SHARDS as u16 {
            let (policy, rule) = (policy.clone(), rules[1].clone());
            flows.spawn(async move { policy.candidates(&rule, Transport::Tcp, server(i)).await.1 });
        }
        let origins = flows.join_all().await;
        assert!(begin.elapsed() < Duration::from_secs(3), "{:?}", begin.elapsed());
        assert!(origins.contains(&Origin::Asked) && origins.contains(&Origin::Plain));
    }
}
