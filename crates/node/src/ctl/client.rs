//! HTTP client of an agent: over its Unix socket, or over TCP with a bearer token.

use super::error::CtlError;
use crate::runtime::api::client::{self, Trust};
use crate::runtime::api::{NO_SUCH_PATH, Problem};
use reqwest::{Method, RequestBuilder, Response, StatusCode, Url};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::error::Error as _;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Default sockets of the agents.
pub const DEFAULT_SOCKETS: [&str; 4] = [
    "/run/anabranch/ue.sock",
    "/run/anabranch/upf.sock",
    "/run/anabranch/gnb.sock",
    "/run/anabranch/lwip.sock",
];
/// Default socket of a proxy. A proxy runs next to a UE, so only its own subcommand uses this socket without
/// --socket.
pub const PROXY_SOCKET: &str = "/run/anabranch/proxy.sock";
/// Socket at which a telemetry monitor is expected; its `--api` sets the actual one.
pub const INT_SOCKET: &str = "/run/anabranch/int.sock";
/// Default socket of a slice manager. A slice manager has a REST interface of its own, so only its own
/// subcommand uses this socket.
pub const MANAGER_SOCKET: &str = "/run/anabranch/slice-manager.sock";

/// The agent to contact, and the credentials.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Agent")]
pub struct Target {
    /// Unix socket of the agent; default: ue.sock, upf.sock, gnb.sock or lwip.sock in /run/anabranch, if exactly one of
    /// them exists; proxy.sock, int.sock and slice-manager.sock for the subcommands of that name.
    #[arg(long, global = true, value_name = "PATH", env = "ANABRANCH_SOCKET", conflicts_with = "url")]
    pub socket: Option<PathBuf>,
    /// URL of the agent, if its [api] listens on TCP: https://HOST:PORT or http://127.0.0.1:PORT.
    #[arg(long, global = true, value_name = "URL", env = "ANABRANCH_URL")]
    pub url: Option<String>,
    /// PEM file with the certificate authorities to trust for https; default: those of the system.
    #[arg(long, global = true, value_name = "FILE", env = "ANABRANCH_CA_FILE")]
    pub ca_file: Option<PathBuf>,
    /// Bearer token. Arguments are visible to other users of this machine; prefer --token-file or the environment variable.
    #[arg(long, global = true, value_name = "TOKEN", env = "ANABRANCH_TOKEN", hide_env_values = true)]
    pub token: Option<String>,
    /// File with the bearer token in its first line.
    #[arg(long, global = true, value_name = "FILE", env = "ANABRANCH_TOKEN_FILE", conflicts_with = "token")]
    pub token_file: Option<PathBuf>,
    /// Time limit for an answer, in seconds.
    #[arg(long, global = true, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub timeout_s: u64,
}

/// Client of one agent.
pub struct Client {
    http: reqwest::Client,
    base: Url,
    place: String,
    socket: Option<PathBuf>,
    token: Option<String>,
    timeout: Duration,
}

impl Client {
    /// Prepares a client from the arguments; sends nothing. Fails on an unreadable token or certificate file,
    /// and on a URL or socket that cannot be used.
    pub fn new(target: &Target) -> Result<Self, CtlError> {
        let token = match (&target.token, &target.token_file) {
            (Some(token), _) => Some(token.trim().to_owned()),
            (None, Some(file)) => Some(read_token(file)?),
            (None, None) => None,
        };
        // A header must be printable; this catches tokens that were pasted incompletely.
        if let Some(token) = &token
            && (token.is_empty() || !token.bytes().all(|b| b.is_ascii_graphic()))
        {
            return Err(CtlError::Usage(
                "the token is empty or contains a character that is not allowed in tokens".into(),
            ));
        }
        let timeout = Duration::from_secs(target.timeout_s);
        let trust = Trust::of(target.url.as_deref().unwrap_or_default(), target.ca_file.as_deref());
        let builder = client::builder(trust).map_err(|e| CtlError::Usage(format!("--ca-file: {e:#}")))?;
        let builder = builder.connect_timeout(timeout);
        let (builder, base, place, socket) = match &target.url {
            Some(url) => (builder, check_url(url)?, url.trim_end_matches('/').to_owned(), None),
            None => {
                let path = match &target.socket {
                    Some(path) => path.clone(),
                    None => the_one_socket(&DEFAULT_SOCKETS)?,
                };
                let place = format!("unix:{}", path.display());
                (builder.unix_socket(path.clone()), local_base()?, place, Some(path))
            }
        };
        let http = builder.build().map_err(|e| CtlError::failed("setting up HTTP", e))?;
        Ok(Self { http, base, place, socket, token, timeout })
    }

    /// GET of `/segments…?query`, decoded from JSON.
    pub async fn get<T: DeserializeOwned>(
        &self,
        segments: &[&str],
        query: &[(&str, String)],
    ) -> Result<T, CtlError> {
        let request = self.request(Method::GET, segments, query).timeout(self.timeout);
        self.json(self.send(request, Method::GET, segments).await?).await
    }

    /// Sends a request with a JSON body and decodes the answer.
    pub async fn send_json<T: DeserializeOwned>(
        &self,
        method: Method,
        segments: &[&str],
        body: &impl Serialize,
    ) -> Result<T, CtlError> {
        let request = self.request(method.clone(), segments, &[]).json(body).timeout(self.timeout);
        self.json(self.send(request, method, segments).await?).await
    }

    /// POST without a body; decodes the answer.
    pub async fn post<T: DeserializeOwned>(&self, segments: &[&str]) -> Result<T, CtlError> {
        let request = self.request(Method::POST, segments, &[]).timeout(self.timeout);
        self.json(self.send(request, Method::POST, segments).await?).await
    }

    /// DELETE; the answer has no body.
    pub async fn delete(&self, segments: &[&str]) -> Result<(), CtlError> {
        let request = self.request(Method::DELETE, segments, &[]).timeout(self.timeout);
        self.send(request, Method::DELETE, segments).await.map(drop)
    }

    /// GET of plain text.
    pub async fn text(&self, segments: &[&str]) -> Result<String, CtlError> {
        let request = self.request(Method::GET, segments, &[]).timeout(self.timeout);
        let response = self.send(request, Method::GET, segments).await?;
        response.text().await.map_err(|e| self.explain(&e))
    }

    /// Opens a streamed answer, read with [`Client::chunk`].
    pub async fn stream(&self, segments: &[&str], query: &[(&str, String)]) -> Result<Response, CtlError> {
        let request = self.request(Method::GET, segments, query);
        self.send(request, Method::GET, segments).await
    }

    /// The next chunk of a stream; `None` at its end.
    pub async fn chunk(&self, response: &mut Response) -> Result<Option<Vec<u8>>, CtlError> {
        Ok(response.chunk().await.map_err(|e| self.explain(&e))?.map(|bytes| bytes.to_vec()))
    }

    /// The agent's address (socket path or URL), for messages.
    pub fn place(&self) -> &str {
        &self.place
    }

    fn request(&self, method: Method, segments: &[&str], query: &[(&str, String)]) -> RequestBuilder {
        let mut url = self.base.clone();
        if let Ok(mut path) = url.path_segments_mut() {
            // Names of UEs may contain any character; this encodes them.
            path.pop_if_empty().extend(segments);
        }
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        let request = self.http.request(method, url);
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    async fn send(
        &self,
        request: RequestBuilder,
        method: Method,
        segments: &[&str],
    ) -> Result<Response, CtlError> {
        let response = request.send().await.map_err(|e| self.explain(&e))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let text = response.text().await.unwrap_or_default();
        let mut problem = serde_json::from_str(&text).unwrap_or_else(|_| {
            let detail = text.lines().next().unwrap_or_default().chars().take(200).collect::<String>();
            Problem::new(status, detail, "check that this is the address of an anabranch agent")
        });
        if status == StatusCode::UNAUTHORIZED {
            problem.remedy = "give --token-file with the agent's [api] token_file (or --token, \
                              ANABRANCH_TOKEN, ANABRANCH_TOKEN_FILE)"
                .into();
        }
        if status == StatusCode::NOT_FOUND && problem.detail == NO_SUCH_PATH {
            problem.remedy = "is it a slice manager? Then: anabranch ctl slice-manager, or the requests of docs/slice-manager.md".into();
        }
        let place = format!("{} {method} /{}", self.place, segments.join("/"));
        if status.is_server_error() {
            return Err(CtlError::failed(place, format!("{}; {}", problem.detail, problem.remedy)));
        }
        Err(CtlError::Refused { place, problem: Box::new(problem) })
    }

    async fn json<T: DeserializeOwned>(&self, response: Response) -> Result<T, CtlError> {
        let text = response.text().await.map_err(|e| self.explain(&e))?;
        serde_json::from_str(&text).map_err(|e| {
            let remedy = "is it an anabranch agent, of this version?";
            CtlError::failed(&self.place, format!("the answer cannot be decoded ({e}); {remedy}"))
        })
    }

    fn explain(&self, error: &reqwest::Error) -> CtlError {
        let unreachable = |cause: String, remedy: &str| CtlError::Unreachable {
            place: self.place.clone(),
            cause,
            remedy: remedy.to_owned(),
        };
        if error.is_timeout() {
            let cause = format!("no answer within {} s", self.timeout.as_secs());
            return unreachable(cause, "see the agent's log (journalctl -u 'anabranch-*')");
        }
        let mut cause = error.source();
        let mut kind = None;
        let mut text = error.to_string();
        while let Some(inner) = cause {
            kind = inner.downcast_ref::<std::io::Error>().map(std::io::Error::kind).or(kind);
            text = inner.to_string();
            cause = inner.source();
        }
        let over_tcp = if self.base.scheme() == "https" {
            "is the agent running, is this its [api] listen, and was its certificate issued by an authority in --ca-file?"
        } else {
            "is the agent running, and is this its [api] listen? With [api] tls it speaks https"
        };
        // The connection was accepted, so the agent runs.
        let closed = [ErrorKind::BrokenPipe, ErrorKind::ConnectionReset, ErrorKind::UnexpectedEof];
        if !error.is_connect() && kind.is_some_and(|kind| closed.contains(&kind)) {
            let remedy = "does it have too many connections? See [api] connections and connections_per_peer, and the agent's log";
            return unreachable(format!("it closed the connection ({text})"), remedy);
        }
        let remedy = match (&self.socket, kind) {
            (Some(_), Some(ErrorKind::PermissionDenied)) => {
                "use sudo, or join the socket's group: sudo usermod -aG anabranch $USER, and log in again"
            }
            (Some(_), _) => {
                "is the agent running (systemctl status 'anabranch-*')? Its [api] listen has the address; give it \
                 with --socket"
            }
            (None, _) => over_tcp,
        };
        unreachable(text, remedy)
    }
}

fn local_base() -> Result<Url, CtlError> {
    Url::parse("http://localhost").map_err(|e| CtlError::failed("http://localhost", e))
}

fn check_url(text: &str) -> Result<Url, CtlError> {
    let example = "write https://HOST:PORT, http://127.0.0.1:PORT or http://[::1]:PORT";
    let url = Url::parse(text).map_err(|e| CtlError::Usage(format!("--url {text}: {e}; {example}")))?;
    if !["http", "https"].contains(&url.scheme()) || url.host().is_none() {
        return Err(CtlError::Usage(format!(
            "--url {text}: agents speak HTTP; {example}. To reach a socket elsewhere, forward it: \
             ssh -L 9464:/run/anabranch/upf.sock HOST, then --url http://127.0.0.1:9464"
        )));
    }
    let loopback = url.host_str().is_some_and(|host| {
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        host == "localhost" || bare.parse::<std::net::IpAddr>().is_ok_and(|a| a.is_loopback())
    });
    if !loopback && url.scheme() == "http" {
        tracing::warn!(
            "{text}: token and answers cross the network in the clear; [api] tls or ssh -L is safer"
        );
    }
    Ok(url)
}

/// The only default socket that exists. Fails if there is none, or more than one.
fn the_one_socket(candidates: &[&str]) -> Result<PathBuf, CtlError> {
    let there: Vec<&str> = candidates.iter().copied().filter(|path| Path::new(path).exists()).collect();
    match there[..] {
        [one] => Ok(one.into()),
        [] => Err(CtlError::Unreachable {
            place: candidates.join(" and "),
            cause: "none exists".into(),
            remedy:
                "start an agent (systemctl start anabranch-ue@NAME), or give its [api] listen with --socket or \
                     --url"
                    .into(),
        }),
        _ => Err(CtlError::Usage(format!(
            "{} agents run here: choose with --socket {}",
            there.len(),
            there.join(" or --socket ")
        ))),
    }
}

fn read_token(file: &Path) -> Result<String, CtlError> {
    let text = std::fs::read_to_string(file)
        .map_err(|e| CtlError::Usage(format!("--token-file {}: {e}", file.display())))?;
    Ok(text.lines().next().unwrap_or_default().trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_default_is_taken_only_where_there_is_no_choice() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        let (ue, upf) = (path("ue.sock"), path("upf.sock"));
        let both = [ue.as_str(), upf.as_str()];
        assert_eq!(the_one_socket(&both).unwrap_err().exit_code(), 3);
        std::fs::write(&upf, "").unwrap();
        assert_eq!(the_one_socket(&both).unwrap(), PathBuf::from(&upf));
        std::fs::write(&ue, "").unwrap();
        let error = the_one_socket(&both).unwrap_err();
        assert!(error.exit_code() == 2 && error.to_string().contains("--socket"), "{error}");
    }

    #[test]
    fn only_http_urls_are_taken() {
        assert!(check_url("http://[::1]:9464").is_ok());
        assert!(check_url("https://upf.example:9464").is_ok());
        for wrong in ["ftp://127.0.0.1:1", "unix:/x", "127.0.0.1:80", ""] {
            let error = check_url(wrong).unwrap_err();
            assert!(error.exit_code() == 2 && error.to_string().contains("http://127.0.0.1"), "{error}");
        }
    }
}
