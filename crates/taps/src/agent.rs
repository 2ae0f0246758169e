//! The agent in this machine's `anabranch ue`, which knows the slices: `POST /connections/select`.

use crate::error::Error;
use anabranch_selection::plan::Answer;
use anabranch_selection::{PropertyError, Request};
use reqwest::StatusCode;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Socket of `anabranch ue` in the default configuration.
const DEFAULT_SOCKET: &str = "/run/anabranch/ue.sock";
/// An agent that takes longer is treated as absent, so that connections do not wait for it.
const AGENT_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum size of an answer: 1024 candidates take about 1 MB.
const MOST_BYTES: usize = 16 << 20;

/// The agent to query.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Agent {
    /// The one at `/run/anabranch/ue.sock`, if present.
    #[default]
    Local,
    /// The one at this socket.
    Socket(PathBuf),
    /// No agent: candidates are this host's own interfaces.
    None,
}

impl Agent {
    fn path(&self) -> Option<&Path> {
        match self {
            Self::Local => Some(Path::new(DEFAULT_SOCKET)),
            Self::Socket(path) => Some(path),
            Self::None => None,
        }
    }

    /// Queries the agent; `None` if there is none, or it does not belong to a UE. `flow` contains further attributes of the flow for
    /// the route selection policy.
    ///
    /// # Errors
    /// The policy refuses the connection because of a property, or the answer is not understood.
    pub(crate) async fn query(&self, request: &Request, flow: &Value) -> Result<Option<Answer>, Error> {
        let Some(path) = self.path().filter(|path| path.exists()) else { return Ok(None) };
        let wrong = |reason: String| Error::Agent { place: path.display().to_string(), reason };
        let client = reqwest::Client::builder().no_proxy().unix_socket(path).timeout(AGENT_TIMEOUT).build();
        let client = client.map_err(|e| wrong(e.to_string()))?;
        let absent = |error: reqwest::Error| {
            tracing::debug!("the agent at {} does not answer: {error}", path.display());
            Ok(None)
        };
        let body = json!({"properties": request.properties, "remote": request.remote, "flow": flow});
        let mut response = match client.post("http://agent/connections/select").json(&body).send().await {
            Ok(response) => response,
            Err(error) => return absent(error),
        };
        let status = response.status();
        let mut text = Vec::new();
        loop {
            let part = match response.chunk().await {
                Ok(Some(part)) => part,
                Ok(None) => break,
                Err(error) => return absent(error),
            };
            if text.len() + part.len() > MOST_BYTES {
                return Err(wrong(format!("more than {MOST_BYTES} bytes")));
            }
            text.extend_from_slice(&part);
        }
        let problem = || serde_json::from_slice::<Value>(&text).unwrap_or_default();
        let said = |problem: &Value, key: &str| problem[key].as_str().unwrap_or_default().to_owned();
        match status {
            StatusCode::OK => {
                let hint = "is it of the same version as this program?";
                serde_json::from_slice(&text).map(Some).map_err(|e| wrong(format!("{e}; {hint}")))
            }
            StatusCode::CONFLICT => {
                let problem = problem();
                Err(Error::Refused { property: said(&problem, "field"), reason: said(&problem, "detail") })
            }
            StatusCode::BAD_REQUEST => {
                let problem = problem();
                let (property, reason) = (said(&problem, "field"), said(&problem, "detail"));
                Err(PropertyError { property, reason }.into())
            }
            // An agent of another role, which does not select connections.
            StatusCode::METHOD_NOT_ALLOWED => Ok(None),
            other => Err(wrong(format!("it answers {other}: {}", said(&problem(), "detail")))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_selection::Endpoint;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::UnixListener;

    /// Queries an agent that gives this answer.
    async fn answering(status: &str, body: &str) -> Result<Option<Answer>, Error> {
        let name =
            format!("anabranch-taps-{}-{}", std::process::id(), status.split(' ').next().unwrap_or("0"));
        let path = std::env::temp_dir().join(name);
        // Left over from an earlier run, if present.
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        let answer = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        let serve = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            // The query arrives in one or two pieces; its end is not checked.
            let mut question = vec![0; 65536];
            assert!(stream.read(&mut question).await.unwrap() > 0);
            stream.write_all(answer.as_bytes()).await.unwrap();
            // Drain further data until the other side ends.
            while stream.read(&mut question).await.is_ok_and(|bytes| bytes > 0) {}
        };
        let request = Request { remote: vec![Endpoint::new([127, 0, 0, 1].into(), 1)], ..Request::default() };
        let agent = Agent::Socket(path.clone());
        let asked = async {
            let answer = agent.query(&request, &json!({})).await;
            std::fs::remove_file(&path).unwrap();
            answer
        };
        tokio::select! { answer = asked => answer, () = async { serve.await; std::future::pending().await } => unreachable!() }
    }

    #[tokio::test]
    async fn refusals_name_the_property_and_other_agents_are_ignored() {
        let refused =
            answering("409 Conflict", r#"{"field": "pvd", "detail": "no candidate is left"}"#).await;
        assert!(matches!(refused, Err(Error::Refused { property, .. }) if property == "pvd"));
        let wrong = answering("400 Bad Request", r#"{"field": "minSendRate", "detail": "x"}"#).await;
        assert!(matches!(wrong, Err(Error::Property(e)) if e.property == "minSendRate"));
        assert!(matches!(answering("405 Method Not Allowed", "{}").await, Ok(None)));
        let broken = answering("200 OK", "{}").await.unwrap_err().to_string();
        assert!(broken.contains("same version"), "{broken}");
        assert!(matches!(answering("503 Service Unavailable", "{}").await, Err(Error::Agent { .. })));
    }

    #[tokio::test]
    async fn without_a_listener_there_is_no_agent() {
        let agent = Agent::Socket("/nonexistent/agent.sock".into());
        assert!(matches!(agent.query(&Request::default(), &json!({})).await, Ok(None)));
        assert!(matches!(Agent::None.query(&Request::default(), &json!({})).await, Ok(None)));
    }
}
