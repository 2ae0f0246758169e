//! Asking the agent of `anabranch ue` how a connection should go (`POST /connections/select`).

use super::policy::Way;
use super::rules::Transport;
use crate::runtime::api::TokenFile;
use crate::runtime::api::client::{self, Client, Trust};
use crate::runtime::config::{AgentLink, Listen};
use anabranch_selection::PathName;
use anabranch_selection::plan::{Answer as Selected, Planned};
use anyhow::Context;
use reqwest::{Method, Response, StatusCode};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Most ways that are tried.
pub const MAX_WAYS: usize = 4;
/// Longest answer taken.
const MAX_BYTES: usize = 1 << 20;

/// What it said.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// Ways, the best first; one or more.
    Ways(Vec<Arc<Way>>),
    /// Nothing meets the needs, and why.
    Unmet(String),
}

/// It did not answer, or not as it should.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// Nothing came, or not in time.
    #[error("the agent does not answer ({0}): does anabranch ue run, and is [agent] connect right?")]
    Gone(String),
    /// It refuses whatever it is asked.
    #[error("the agent refuses: {0}")]
    Refused(String),
    /// It refuses this question; of another rule's it says nothing.
    #[error("the agent refuses what a rule asks: {0}")]
    Question(String),
    /// It said what cannot be read.
    #[error("the agent's answer: {0}")]
    Unreadable(String),
}

/// The agent.
pub struct Agent {
    client: Client,
    place: String,
}

impl Agent {
    /// Nothing is sent yet; none if there is none to be asked.
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

    /// Where it is.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Asks how a flow to `server` with these needs should go.
    pub async fn ask(
        &self,
        properties: &Value,
        transport: Transport,
        server: SocketAddr,
    ) -> Result<Answer, AskError> {
        let url = self.client.url(&["connections", "select"]);
        let request = self.client.request(Method::POST, url);
        let request = request.json(&question(properties, transport, server));
        let gone = |e: reqwest::Error| AskError::Gone(innermost(&e));
        let answer = self.client.send(request).await.map_err(gone)?;
        let status = answer.status();
        let bytes = body(answer).await?;
        match status {
            StatusCode::OK => {
                let selected =
                    serde_json::from_slice(&bytes).map_err(|e| AskError::Unreadable(e.to_string()))?;
                ways(selected)
            }
            StatusCode::CONFLICT => Ok(Answer::Unmet(detail(&bytes))),
            StatusCode::BAD_REQUEST => Err(AskError::Question(detail(&bytes))),
            StatusCode::UNAUTHORIZED => {
                let why = if self.client.has_token() {
                    "it wants another token: is [agent] token_file that of its [api]?"
                } else {
                    "it wants a token: give [agent] token_file"
                };
                Err(AskError::Refused(why.to_owned()))
            }
            other => Err(AskError::Refused(format!("{other}: {}", detail(&bytes)))),
        }
    }
}

fn question(properties: &Value, transport: Transport, server: SocketAddr) -> Value {
    let mut properties = properties.clone();
    if transport == Transport::Udp
        && let Some(map) = properties.as_object_mut()
    {
        // It is UDP whatever an application might like better.
        for name in ["reliability", "preserveOrder", "congestionControl"] {
            map.insert(name.to_owned(), json!("no-preference"));
        }
    }
    // A mapped address is the IPv4 host.
    let remote = json!({
        "address": server.ip().to_canonical(), "port": server.port(), "protocols": transport.carriers(),
    });
    json!({"properties": properties, "remote": [remote], "flow": {"protocol": transport.number()}})
}

/// Of several protocols on the same paths the first will do: they reach or do not reach the same server.
fn ways(selected: Selected) -> Result<Answer, AskError> {
    let mut ways: Vec<(Vec<PathName>, Arc<Way>)> = Vec::new();
    for Planned { candidate, plan } in selected.candidates {
        let paths = candidate.paths;
        if ways.len() == MAX_WAYS || ways.iter().any(|(known, _)| *known == paths) {
            continue;
        }
        let first = paths.first().cloned();
        let way = Way {
            protocol: candidate.protocol,
            interface: first.as_ref().map(|path| path.interface.clone()),
            slice: first.and_then(|path| path.pvd),
            rtt_us: candidate.rtt_us,
            plan,
        };
        ways.push((paths, Arc::new(way)));
    }
    if ways.is_empty() {
        return Err(AskError::Unreadable("it has no candidate".to_owned()));
    }
    Ok(Answer::Ways(ways.into_iter().map(|(_, way)| way).collect()))
}

async fn body(mut answer: Response) -> Result<Vec<u8>, AskError> {
    let mut all = Vec::new();
    while let Some(chunk) = answer.chunk().await.map_err(|e| AskError::Gone(innermost(&e)))? {
        all.extend_from_slice(&chunk);
        if all.len() > MAX_BYTES {
            return Err(AskError::Unreadable(format!("more than {MAX_BYTES} bytes")));
        }
    }
    Ok(all)
}

fn detail(bytes: &[u8]) -> String {
    let problem: Value = serde_json::from_slice(bytes).unwrap_or_default();
    problem["detail"].as_str().unwrap_or("no reason given").to_owned()
}

/// What was the matter, without the layers around it.
fn innermost(error: &reqwest::Error) -> String {
    let mut inner: &dyn std::error::Error = error;
    while let Some(source) = inner.source() {
        inner = source;
    }
    inner.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_selection::plan::Action;

    /// As everywhere: without it each flow would be asked for in vain.
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

    /// Who changes the token of the agent's interface, and writes it where the proxy has its own, need not restart the proxy.
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
        let ask = async || agent.ask(&json!({}), Transport::Tcp, "192.0.2.1:443".parse().unwrap()).await;
        assert!(matches!(ask().await, Ok(Answer::Unmet(_))));
        *valid.lock().unwrap() = second;
        for _ in 0..2 {
            assert!(matches!(ask().await, Err(AskError::Refused(why)) if why.contains("token_file")));
        }
        std::fs::write(file.path(), second).unwrap();
        assert!(matches!(ask().await, Ok(Answer::Unmet(_))));
        served.abort();
    }

    #[test]
    fn a_question_is_about_what_the_program_speaks() {
        let asked = question(&json!({"connPriority": 7}), Transport::Udp, "192.0.2.1:443".parse().unwrap());
        let remote = json!([{"address": "192.0.2.1", "port": 443, "protocols": ["udp"]}]);
        assert_eq!((&asked["remote"], &asked["flow"]["protocol"]), (&remote, &json!(17)));
        assert_eq!(asked["properties"]["reliability"], "no-preference");
        let asked = question(&json!({}), Transport::Tcp, "[2001:db8::1]:443".parse().unwrap());
        assert_eq!(asked["remote"][0]["protocols"], json!(["tcp", "mptcp"]));
        assert_eq!(asked["properties"], json!({}));
    }

    /// What the agent really answers can be read, and each set of paths is tried once.
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
        let Ok(Answer::Ways(ways)) = ways(serde_json::from_value(text).unwrap()) else { panic!() };
        assert_eq!(ways.iter().map(|w| w.interface.as_deref().unwrap()).collect::<Vec<_>>(), ["b", "a"]);
        assert_eq!(
            (ways[0].slice.as_deref(), ways[0].plan.len(), ways[0].rtt_us),
            (Some("B"), 3, Some(12_000))
        );
        assert_eq!(ways[0].plan[0], Action::Mark { mark: 512, table: 512 });
    }
}
