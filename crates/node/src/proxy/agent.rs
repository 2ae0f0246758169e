//! Client of the agent of `anabranch ue`, which selects paths for connections (`POST /connections/select`).

use super::policy::Candidate;
use super::rules::Transport;
use crate::runtime::api::TokenFile;
use crate::runtime::api::client::{self, BodyError, Client, Trust};
use crate::runtime::config::{AgentLink, Listen};
use anabranch_selection::PathName;
use anabranch_selection::plan::{Answer as Selected, Planned};
use anyhow::Context;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Maximum number of candidates that are tried.
pub const MAX_CANDIDATES: usize = 4;
/// Maximum length of an answer, bytes.
const MAX_BYTES: usize = 1 << 20;

/// Answer of the agent.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// Candidates, the best first; at least one.
    Candidates(Vec<Arc<Candidate>>),
    /// No candidate meets the requirements, with the reason.
    Unmet(String),
}

/// Failure of a request to the agent.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The agent did not answer, or not in time.
    #[error("the agent does not answer ({0}): does anabranch ue run, and is [agent] connect right?")]
    Unreachable(String),
    /// The agent refuses every request, for example because of the token.
    #[error("the agent refuses: {0}")]
    Refused(String),
    /// The agent refuses this request; requests of other rules may succeed.
    #[error("the agent refuses the request for a rule: {0}")]
    RequestRefused(String),
    /// The answer cannot be decoded.
    #[error("the agent's answer: {0}")]
    Unreadable(String),
}

/// Client of the agent.
pub struct Agent {
    client: Client,
    place: String,
}

impl Agent {
    /// Prepares the client; sends nothing. `None` if the proxy is configured to run without an agent.
    pub fn new(config: &AgentLink) -> anyhow::Result<Option<Self>> {
        let builder =
            client::builder(Trust::Nobody)?.timeout(Duration::from_millis(config.timeout_ms.into()));
        let (at, place) = match &config.connect {
            Listen::Off => return Ok(None),
            Listen::Unix(path) => {
                let at = format!("unix:{}", path.display());
                (at.clone(), at)
            }
            Listen::Tcp(address) => (format!("http://{address}"), address.to_string()),
        };
        let token = config.token_file.as_deref().map(TokenFile::read).transpose();
        let token = token.context("[agent] token_file")?;
        let client = Client::new(builder, &at, token).context("[agent] connect")?;
        Ok(Some(Self { client, place }))
    }

    /// Address of the agent, for messages and status.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Requests candidates for a flow to `server` with these requirements.
    pub async fn request_candidates(
        &self,
        properties: &Value,
        transport: Transport,
        server: SocketAddr,
    ) -> Result<Answer, AgentError> {
        let url = self.client.url(&["connections", "select"]);
        let request = self.client.request(Method::POST, url);
        let request = request.json(&question(properties, transport, server));
        let gone = |e: reqwest::Error| AgentError::Unreachable(client::innermost(&e));
        let answer = self.client.send(request).await.map_err(gone)?;
        let status = answer.status();
        let bytes = client::body(answer, MAX_BYTES).await.map_err(|error| match error {
            BodyError::BrokenOff(error) => gone(error),
            BodyError::TooLong(_) => AgentError::Unreadable(error.to_string()),
        })?;
        match status {
            StatusCode::OK => {
                let selected =
                    serde_json::from_slice(&bytes).map_err(|e| AgentError::Unreadable(e.to_string()))?;
                candidates(selected)
            }
            StatusCode::CONFLICT => Ok(Answer::Unmet(detail(&bytes))),
            StatusCode::BAD_REQUEST => Err(AgentError::RequestRefused(detail(&bytes))),
            StatusCode::UNAUTHORIZED => {
                let why = if self.client.has_token() {
                    "it requires another token: is [agent] token_file the one of its [api]?"
                } else {
                    "it requires a token: give [agent] token_file"
                };
                Err(AgentError::Refused(why.to_owned()))
            }
            other => Err(AgentError::Refused(format!("{other}: {}", detail(&bytes)))),
        }
    }
}

fn question(properties: &Value, transport: Transport, server: SocketAddr) -> Value {
    let mut properties = properties.clone();
    if transport == Transport::Udp
        && let Some(map) = properties.as_object_mut()
    {
        // The program has chosen UDP, so preferences for other transport services do not apply.
        for name in ["reliability", "preserveOrder", "congestionControl"] {
            map.insert(name.to_owned(), json!("no-preference"));
        }
    }
    // An IPv4-mapped address is sent as IPv4.
    let remote = json!({
        "address": server.ip().to_canonical(), "port": server.port(), "protocols": transport.carriers(),
    });
    json!({"properties": properties, "remote": [remote], "flow": {"protocol": transport.number()}})
}

/// The candidates of an answer. Of several protocols on the same paths, only the first is used: all of them
/// reach the server, or none does.
fn candidates(selected: Selected) -> Result<Answer, AgentError> {
    let mut candidates: Vec<(Vec<PathName>, Arc<Candidate>)> = Vec::new();
    for Planned { candidate, plan } in selected.candidates {
        let paths = candidate.paths;
        if candidates.len() == MAX_CANDIDATES || candidates.iter().any(|(known, _)| *known == paths) {
            continue;
        }
        let first = paths.first().cloned();
        let candidate = Candidate {
            protocol: candidate.protocol,
            interface: first.as_ref().map(|path| path.interface.clone()),
            slice: first.and_then(|path| path.pvd),
            rtt_us: candidate.rtt_us,
            plan,
        };
        candidates.push((paths, Arc::new(candidate)));
    }
    if candidates.is_empty() {
        return Err(AgentError::Unreadable("the answer has no candidate".to_owned()));
    }
    Ok(Answer::Candidates(candidates.into_iter().map(|(_, candidate)| candidate).collect()))
}

fn detail(bytes: &[u8]) -> String {
    let problem: Value = serde_json::from_slice(bytes).unwrap_or_default();
    problem["detail"].as_str().unwrap_or("no reason given").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_selection::plan::Action;

    /// Without a token, every request would be refused.
    #[test]
    fn a_token_file_without_a_token_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let config = AgentLink {
            connect: Listen::Unix("/nowhere".into()),
            token_file: Some(file.path().into()),
            ..AgentLink::default()
        };
        let error = format!("{:#}", Agent::new(&config).err().unwrap());
        assert!(error.contains("[agent] token_file") && error.contains("16 characters"), "{error}");
        std::fs::write(file.path(), "correct-horse-battery-staple\n").unwrap();
        assert!(Agent::new(&config).unwrap().is_some());
    }

    /// If the token of the agent's REST interface changes, the proxy reads its token file again and need not
    /// be restarted.
    #[tokio::test]
    async fn a_token_that_was_replaced_is_read_again() {
        use axum::http::{HeaderMap, header};
        use std::sync::Mutex;
        let (first, second) = ("correct-horse-battery-staple", "another-horse-battery-staple");
        let valid = Arc::new(Mutex::new(first));
        let now = valid.clone();
        let answer = move |headers: HeaderMap| {
            let right = format!("Bearer {}", now.lock().unwrap());
            let shown = headers.get(header::AUTHORIZATION).is_some_and(|shown| *shown == *right);
            std::future::ready(if shown { StatusCode::CONFLICT } else { StatusCode::UNAUTHORIZED })
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let connect = Listen::Tcp(listener.local_addr().unwrap());
        let router = axum::Router::new().route("/connections/select", axum::routing::post(answer));
        let served = tokio::spawn(async move { axum::serve(listener, router).await });
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), first).unwrap();
        let config = AgentLink { connect, token_file: Some(file.path().into()), ..AgentLink::default() };
        let agent = Agent::new(&config).unwrap().unwrap();
        let requested = async || {
            agent.request_candidates(&json!({}), Transport::Tcp, "192.0.2.1:443".parse().unwrap()).await
        };
        assert!(matches!(requested().await, Ok(Answer::Unmet(_))));
        *valid.lock().unwrap() = second;
        for _ in 0..2 {
            assert!(matches!(requested().await, Err(AgentError::Refused(why)) if why.contains("token_file")));
        }
        std::fs::write(file.path(), second).unwrap();
        assert!(matches!(requested().await, Ok(Answer::Unmet(_))));
        served.abort();
    }

    #[test]
    fn a_request_names_the_transport_of_the_program() {
        let asked = question(&json!({"connPriority": 7}), Transport::Udp, "192.0.2.1:443".parse().unwrap());
        let remote = json!([{"address": "192.0.2.1", "port": 443, "protocols": ["udp"]}]);
        assert_eq!((&asked["remote"], &asked["flow"]["protocol"]), (&remote, &json!(17)));
        assert_eq!(asked["properties"]["reliability"], "no-preference");
        let asked = question(&json!({}), Transport::Tcp, "[2001:db8::1]:443".parse().unwrap());
        assert_eq!(asked["remote"][0]["protocols"], json!(["tcp", "mptcp"]));
        assert_eq!(asked["properties"], json!({}));
    }

    /// An answer of the agent is decoded, and each set of paths is tried once.
    #[test]
    fn an_answer_becomes_ways() {
        let candidate = |protocol: &str, interface: &str, plan: Value| {
            json!({
                "rank": 0, "protocol": protocol, "paths": [{"interface": interface, "pvd": "B"}], "reasons": [],
                "endpoint": {"address": "192.0.2.1", "port": 443}, "rtt_us": 12_000, "path_points": 0,
                "protocol_points": 0, "plan": plan,
            })
        };
        let window = json!({"segments": 20, "equation_segments": 20, "limit": "equation"});
        let plan = json!([
            {"action": "mark", "mark": 512, "table": 512}, {"action": "pacing", "bps": 1000},
            {"action": "initial-window", "window": window, "route_bucket": 20},
        ]);
        let text = json!({
            "candidates": [
                candidate("tcp", "b", plan), candidate("mptcp", "b", json!([])), candidate("tcp", "a", json!([])),
            ],
            "pruned": [], "needs": [], "plan": [], "ursp": null,
        });
        let Ok(Answer::Candidates(candidates)) = candidates(serde_json::from_value(text).unwrap()) else {
            panic!()
        };
        assert_eq!(
            candidates.iter().map(|w| w.interface.as_deref().unwrap()).collect::<Vec<_>>(),
            ["b", "a"]
        );
        assert_eq!(
            (candidates[0].slice.as_deref(), candidates[0].plan.len(), candidates[0].rtt_us),
            (Some("B"), 3, Some(12_000))
        );
        assert_eq!(candidates[0].plan[0], Action::Mark { mark: 512, table: 512 });
    }
}
