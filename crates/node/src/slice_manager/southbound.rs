//! Adapters to the network elements that enforce slices: the gNB, the UPF, and a stub for MANO; each behind
//! [`Southbound`].

use crate::runtime::api::TokenFile;
use crate::runtime::api::client::{self, Client, Trust};
use crate::runtime::config::{AgentSection, ManagedAccess, SliceManagerConfig};
use anabranch_slice::record::SessionRule;
use anabranch_slice::{Expected, Slice, SliceShare};
use reqwest::{Method, RequestBuilder, StatusCode, Url};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Time limit for an answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit for all pages of a list.
const LIST_TIMEOUT: Duration = Duration::from_secs(30);
/// Number of entries requested per page of a list.
const PAGE: usize = 250;
/// Maximum length of an answer, bytes; a page of UEs with many bearers and flows has some 16 kB per UE.
const MAX_ANSWER: usize = 4 << 20;
/// Maximum length of all names and values of a list, bytes.
const MAX_LIST: usize = 64 << 20;
/// Shares that differ by less are equal: the rounding of a share in percent.
const SHARE_TOLERANCE_PERCENT: f64 = 1e-3;

/// Failure of a request, or of a health check.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// No answer was received.
    #[error("{0}")]
    Silent(String),
    /// The element cannot execute the request at present; a retry may succeed.
    #[error("{0}")]
    Busy(String),
    /// The element refuses, or its state differs from the expected one.
    #[error("{0}")]
    Refused(String),
}

impl From<Failure> for String {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Silent(why) | Failure::Busy(why) | Failure::Refused(why) => why,
        }
    }
}

/// Requests to a network element. Each states a target state, so repeating it is harmless. The defaults
/// ignore requests that do not concern an element.
pub trait Southbound: Send + Sync {
    /// Sets the shares of all slices of a cell.
    fn shares(&self, _shares: &[SliceShare]) -> impl Future<Output = Result<(), Failure>> + Send {
        async { Ok(()) }
    }

    /// The slice of each UE of a cell.
    fn places(&self) -> impl Future<Output = Result<BTreeMap<String, String>, Failure>> + Send {
        async { Ok(BTreeMap::new()) }
    }

    /// Moves a UE into a slice.
    fn attach(&self, _ue: &str, _slice: &str) -> impl Future<Output = Result<(), Failure>> + Send {
        async { Ok(()) }
    }

    /// Moves a UE back to the cell's default slice, if the UE is there.
    fn release(&self, _ue: &str) -> impl Future<Output = Result<(), Failure>> + Send {
        async { Ok(()) }
    }

    /// Sets a UE's session; `None` ends it.
    fn session(
        &self,
        _ue: &str,
        _session: Option<&SessionRule>,
    ) -> impl Future<Output = Result<(), Failure>> + Send {
        async { Ok(()) }
    }

    /// Starts or stops the network services of a slice.
    fn services(&self, _slice: &Slice, _running: bool) -> impl Future<Output = Result<(), Failure>> + Send {
        async { Ok(()) }
    }

    /// Checks that the element answers and has the expected state.
    fn health(&self, _expected: &Expected) -> impl Future<Output = Result<(), Failure>> + Send {
        async { Ok(()) }
    }
}

/// HTTP client of an anabranch agent.
struct Agent {
    client: Client,
    place: String,
}

impl Agent {
    fn new(at: &str, token_file: Option<&Path>, ca_file: Option<&Path>) -> anyhow::Result<Self> {
        let builder = client::builder(Trust::of(at, ca_file))?.timeout(REQUEST_TIMEOUT);
        let token = token_file.map(TokenFile::read).transpose()?;
        Ok(Self { client: Client::new(builder, at, token)?, place: at.to_owned() })
    }

    /// Sends a request; errors other than 404 and 409, which the caller distinguishes, are failures.
    async fn request(
        &self,
        method: Method,
        path: &[&str],
        body: Option<&Value>,
    ) -> Result<(StatusCode, Value), Failure> {
        let mut request = self.client.request(method, self.client.url(&[&["v1"], path].concat()));
        if let Some(body) = body {
            request = request.json(body);
        }
        let (status, body) = self.send(request).await?;
        let value: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
        if status.is_success() || matches!(status, StatusCode::NOT_FOUND | StatusCode::CONFLICT) {
            return Ok((status, value));
        }
        Err(self.refusal(status, &value))
    }

    /// Sends a request and returns status and body.
    async fn send(&self, request: RequestBuilder) -> Result<(StatusCode, Vec<u8>), Failure> {
        let silent = |why: String| Failure::Silent(format!("{} does not answer: {why}", self.place));
        let answer = self.client.send(request).await.map_err(|e| silent(client::innermost(&e)))?;
        let status = answer.status();
        match client::body(answer, MAX_ANSWER).await {
            Ok(body) => Ok((status, body)),
            Err(error) => Err(silent(error.to_string())),
        }
    }

    /// Reads a list page by page; returns the member `name` of each entry and its member `key`.
    async fn list(&self, list: &str, name: &str, key: &str) -> Result<BTreeMap<String, String>, Failure> {
        let all = tokio::time::timeout(LIST_TIMEOUT, self.pages(list, name, key)).await;
        all.unwrap_or_else(|_| {
            let why = format!("no complete list of {list} within {} s", LIST_TIMEOUT.as_secs());
            Err(Failure::Silent(format!("{}: {why}", self.place)))
        })
    }

    async fn pages(&self, list: &str, name: &str, key: &str) -> Result<BTreeMap<String, String>, Failure> {
        let mut all = BTreeMap::new();
        let (mut offset, mut bytes) = (0, 0);
        loop {
            let mut url = self.client.url(&["v1", list]);
            url.set_query(Some(&format!("offset={offset}&limit={PAGE}")));
            let (status, body) = self.send(self.client.request(Method::GET, url)).await?;
            let page: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
            if !status.is_success() {
                return Err(self.refusal(status, &page));
            }
            let Some(some) = page[list].as_array() else {
                return Err(Failure::Refused(format!("{} answers without a list of {list}", self.place)));
            };
            for entry in some {
                let (Some(name), Some(value)) = (entry[name].as_str(), entry[key].as_str()) else { continue };
                bytes += name.len() + value.len();
                if bytes > MAX_LIST {
                    let why = format!("the list of {list} has more than {MAX_LIST} bytes");
                    return Err(Failure::Refused(format!("{}: {why}", self.place)));
                }
                all.insert(name.to_owned(), value.to_owned());
            }
            offset += some.len();
            if some.is_empty() || offset as u64 >= page["total"].as_u64().unwrap_or(0) {
                return Ok(all);
            }
        }
    }

    fn refusal(&self, status: StatusCode, answer: &Value) -> Failure {
        let why = format!("{} refuses: {}", self.place, answer["detail"].as_str().unwrap_or(status.as_str()));
        let later = [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_MANY_REQUESTS].contains(&status);
        if later || status.is_server_error() { Failure::Busy(why) } else { Failure::Refused(why) }
    }
}

/// Adapter to the agent of an `anabranch gnb`.
pub struct Gnb {
    agent: Agent,
    default_slice: String,
    max_share_percent: f64,
}

impl Gnb {
    /// The slices in force, in the gNB's form.
    async fn slices(&self) -> Result<Vec<Value>, Failure> {
        let (_, answer) = self.agent.request(Method::GET, &["slices"], None).await?;
        match answer["slices"].as_array() {
            Some(slices) => Ok(slices.clone()),
            None => Err(Failure::Refused(format!("{} is not a gNB: it has no slices", self.agent.place))),
        }
    }

    /// The target list of slices: the manager's slices, and the default slice with the remaining share. UEs
    /// of slices that are removed are moved to the default slice.
    async fn target_slices(&self, shares: &[SliceShare]) -> Result<Vec<Value>, Failure> {
        let now = self.slices().await?;
        let percent = |ppm: u32| f64::from(ppm) / 1e4;
        let promised: f64 = shares.iter().map(|s| percent(s.share_ppm)).sum();
        let mut all: Vec<Value> = Vec::with_capacity(shares.len() + 1);
        // The default slice keeps the operator's settings, except for the share.
        let old = now.iter().find(|s| s["name"] == self.default_slice.as_str()).cloned();
        let mut rest = old.unwrap_or_else(|| json!({"name": self.default_slice}));
        let left = (100.0 - promised).clamp(0.0, 100.0);
        rest["share_percent"] = json!((left * 1e4).floor() / 1e4);
        rest["min_percent"] = json!(0.0);
        rest["dedicated_percent"] = json!(0.0);
        all.push(rest);
        for share in shares {
            let old = now.iter().find(|s| s["name"] == share.name.as_str());
            all.push(json!({
                "name": share.name, "share_percent": percent(share.share_ppm),
                "dedicated_percent": percent(share.dedicated_ppm), "min_percent": percent(share.share_ppm),
                "max_percent": percent(share.max_ppm), "priority": share.priority,
                "intra": old.map_or(json!("rr"), |o| o["intra"].clone()),
            }));
        }
        Ok(all)
    }

    /// Moves UEs out of slices that will be removed.
    async fn evacuate(&self, kept: &[Value]) -> Result<(), Failure> {
        for (ue, slice) in self.places().await? {
            if !kept.iter().any(|s| s["name"] == slice.as_str()) {
                self.attach(&ue, &self.default_slice).await?;
            }
        }
        Ok(())
    }

    /// Moves a UE into a slice; false if the UE is not there.
    async fn place(&self, ue: &str, slice: &str) -> Result<bool, Failure> {
        match self.agent.request(Method::PUT, &["ues", ue], Some(&json!({"slice": slice}))).await? {
            (StatusCode::NOT_FOUND, _) => Ok(false),
            (status, _) if status.is_success() => Ok(true),
            (status, answer) => Err(self.agent.refusal(status, &answer)),
        }
    }
}

impl Southbound for Gnb {
    async fn shares(&self, shares: &[SliceShare]) -> Result<(), Failure> {
        let promised: f64 = shares.iter().map(|s| f64::from(s.share_ppm) / 1e4).sum();
        if promised > self.max_share_percent + SHARE_TOLERANCE_PERCENT {
            let most = self.max_share_percent;
            let why = format!("{promised} % of the RBs exceeds the available {most} %");
            return Err(Failure::Refused(why));
        }
        let wanted = self.target_slices(shares).await?;
        self.evacuate(&wanted).await?;
        let (status, answer) =
            self.agent.request(Method::PUT, &["slices"], Some(&json!({"slices": wanted}))).await?;
        if status.is_success() { Ok(()) } else { Err(self.agent.refusal(status, &answer)) }
    }

    async fn places(&self) -> Result<BTreeMap<String, String>, Failure> {
        self.agent.list("ues", "name", "slice").await
    }

    async fn attach(&self, ue: &str, slice: &str) -> Result<(), Failure> {
        match self.place(ue, slice).await? {
            true => Ok(()),
            false => Err(Failure::Refused(format!("{} has no UE \"{ue}\"", self.agent.place))),
        }
    }

    async fn release(&self, ue: &str) -> Result<(), Failure> {
        // A UE that is not there is at another cell, or has left.
        self.place(ue, &self.default_slice).await.map(drop)
    }

    async fn health(&self, expected: &Expected) -> Result<(), Failure> {
        let now = self.slices().await?;
        let place = &self.agent.place;
        let other = |why: String| Err(Failure::Refused(format!("{place} {why}")));
        let Expected { shares, others } = expected;
        if let Some(others) = others {
            let ours =
                |name: &str| name == self.default_slice || shares.iter().any(|share| share.name == name);
            let names = now.iter().filter_map(|s| s["name"].as_str());
            if let Some(name) = names.into_iter().find(|name| !ours(name) && !others.contains(*name)) {
                return other(format!("still has slice \"{name}\""));
            }
        }
        for share in shares {
            let Some(there) = now.iter().find(|s| s["name"] == share.name.as_str()) else {
                return other(format!("lost slice \"{}\"", share.name));
            };
            for (key, ppm, unsaid) in [
                ("share_percent", share.share_ppm, 0.0),
                ("dedicated_percent", share.dedicated_ppm, 0.0),
                ("max_percent", share.max_ppm, 100.0),
            ] {
                let (has, wanted) = (there[key].as_f64().unwrap_or(unsaid), f64::from(ppm) / 1e4);
                if (has - wanted).abs() > SHARE_TOLERANCE_PERCENT {
                    return other(format!("gives slice \"{}\" {key} = {has}, not {wanted}", share.name));
                }
            }
        }
        Ok(())
    }
}

/// Adapter to the agent of an `anabranch upf`.
pub struct Upf(Agent);

impl Upf {
    /// The public keys of the UPF's sessions, by UE.
    pub async fn sessions(&self) -> Result<BTreeMap<String, String>, Failure> {
        self.0.list("sessions", "ue", "public_key").await
    }
}

impl Southbound for Upf {
    async fn session(&self, ue: &str, session: Option<&SessionRule>) -> Result<(), Failure> {
        let Some(session) = session else {
            // A session that does not exist, or that belongs to the UPF's configuration file, is not this
            // manager's to end.
            return self.0.request(Method::DELETE, &["sessions", ue], None).await.map(drop);
        };
        // One request, so that a UE keeps its session when its rules change.
        let body = json!({"name": ue, "public_key": session.public_key, "rule": session.rules});
        let (status, answer) = self.0.request(Method::PUT, &["sessions", ue], Some(&body)).await?;
        if status.is_success() {
            return Ok(());
        }
        Err(self.0.refusal(status, &answer))
    }

    async fn health(&self, _: &Expected) -> Result<(), Failure> {
        self.0.request(Method::GET, &["status"], None).await.map(drop)
    }
}

/// A stub of an orchestrator: orders as files in a directory, or as requests to a URL.
pub enum Mano {
    /// `FOLDER/ID.json` exists while the services are to run.
    Folder(PathBuf),
    /// `PUT URL/ID` and `DELETE URL/ID`.
    Url(reqwest::Client, Url),
}

impl Southbound for Mano {
    async fn services(&self, slice: &Slice, running: bool) -> Result<(), Failure> {
        let services = slice.nest.as_ref().and_then(|n| n.get("service_descriptor")).cloned();
        let order = json!({"slice": slice.id, "name": slice.name, "service_descriptor": services});
        match self {
            Self::Folder(folder) => {
                let path = folder.join(format!("{}.json", slice.id));
                let failed = |e: std::io::Error| Failure::Busy(format!("{}: {e}", path.display()));
                if running {
                    // The file is replaced atomically.
                    let new = path.with_extension("new");
                    tokio::fs::write(&new, order.to_string()).await.map_err(failed)?;
                    return tokio::fs::rename(&new, &path).await.map_err(failed);
                }
                match tokio::fs::remove_file(&path).await {
                    Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(failed(e)),
                    _ => Ok(()),
                }
            }
            Self::Url(http, base) => {
                let mut url = base.clone();
                if let Ok(mut segments) = url.path_segments_mut() {
                    segments.pop_if_empty().push(&slice.id);
                }
                let request = if running { http.put(url).json(&order) } else { http.delete(url) };
                let silent = |e| Failure::Silent(format!("MANO does not answer: {e}"));
                let status = request.send().await.map_err(silent)?.status();
                let fine = status.is_success() || (!running && status == StatusCode::NOT_FOUND);
                if fine { Ok(()) } else { Err(Failure::Refused(format!("MANO refuses: {status}"))) }
            }
        }
    }
}

/// All network elements.
pub struct Network {
    gnbs: BTreeMap<String, Gnb>,
    /// The UPF at which UEs get sessions; `None`: no `[upf]` section.
    pub upf: Option<Upf>,
    /// The orchestrator.
    pub mano: Option<Mano>,
}

impl Network {
    /// Prepares the clients; sends nothing.
    pub fn new(config: &SliceManagerConfig) -> anyhow::Result<Self> {
        let gnb = |a: &ManagedAccess| {
            let at = a.gnb.as_ref()?;
            let agent = Agent::new(at, a.gnb_token_file.as_deref(), a.gnb_ca_file.as_deref());
            let made = |agent| {
                let gnb = Gnb {
                    agent,
                    default_slice: a.rest_slice.clone(),
                    max_share_percent: a.max_share_percent,
                };
                (a.name.clone(), gnb)
            };
            Some(agent.map(made))
        };
        let upf = config.upf.as_ref();
        let agent = |u: &AgentSection| Agent::new(&u.agent, u.token_file.as_deref(), u.ca_file.as_deref());
        let upf = upf.map(|u| agent(u).map(Upf)).transpose()?;
        let mano = config.mano.as_ref().map(|m| -> anyhow::Result<Mano> {
            Ok(match Url::parse(&m.target) {
                Ok(url) if ["http", "https"].contains(&url.scheme()) => {
                    let http = client::builder(Trust::of(url.as_str(), None))?.timeout(REQUEST_TIMEOUT);
                    Mano::Url(http.build()?, url)
                }
                _ => Mano::Folder(PathBuf::from(&m.target)),
            })
        });
        let gnbs = config.access.iter().filter_map(gnb).collect::<anyhow::Result<_>>()?;
        Ok(Self { gnbs, upf, mano: mano.transpose()? })
    }

    /// The cells with a gNB agent, by access.
    pub fn cells(&self) -> impl Iterator<Item = (&String, &Gnb)> {
        self.gnbs.iter()
    }

    /// The cell of an access, if it has a gNB agent.
    pub fn cell(&self, access: &str) -> Option<&Gnb> {
        self.gnbs.get(access)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::api::{Guarded, Server};
    use crate::runtime::config::Listen;

    #[tokio::test]
    async fn an_agent_with_a_certificate_is_contacted_by_https_and_verified() {
        let folder = tempfile::tempdir().unwrap();
        let tls =
            crate::runtime::api::tls::Tls::new(&crate::runtime::api::auth::tests::certificate(folder.path()))
                .unwrap();
        let router =
            axum::Router::new().route("/v1/status", axum::routing::get(async || axum::Json(json!({}))));
        let guarded = Guarded { tls: Some(std::sync::Arc::new(tls)), ..Guarded::default() };
        let mut server = Server::default();
        let at = Listen::Tcp("127.0.0.1:0".parse().unwrap());
        let at = server.listen(&at, router, guarded).await.unwrap().unwrap();
        let (trusted, other) = (folder.path().join("ca.pem"), tempfile::tempdir().unwrap());
        crate::runtime::api::auth::tests::certificate(other.path());
        let untrusted = other.path().join("ca.pem");
        let asked = async |scheme: &str, ca: Option<&Path>| {
            Upf(Agent::new(&format!("{scheme}://{at}"), None, ca).unwrap())
                .health(&Expected::default())
                .await
                .is_ok()
        };
        assert!(asked("https", Some(&trusted)).await);
        for (scheme, ca) in [("https", Some(untrusted.as_path())), ("https", None), ("http", Some(&trusted))]
        {
            assert!(!asked(scheme, ca).await, "{scheme} {ca:?}");
        }
    }

    #[tokio::test]
    async fn a_stale_slice_of_a_cell_is_detected() {
        let slices = json!({"slices": [
            {"name": "default", "share_percent": 60.0}, {"name": "video", "share_percent": 40.0, "max_percent": 50.0, "dedicated_percent": 10.0}
        ]});
        let get = axum::routing::get(async move || axum::Json(slices));
        let router = axum::Router::new().route("/v1/slices", get);
        let mut server = Server::default();
        let at = Listen::Tcp("127.0.0.1:0".parse().unwrap());
        let at = server.listen(&at, router, Guarded::default()).await.unwrap().unwrap();
        let agent = Agent::new(&format!("http://{at}"), None, None).unwrap();
        let cell = Gnb { agent, default_slice: "default".into(), max_share_percent: 90.0 };
        let share = |share_ppm| SliceShare {
            name: "video".into(),
            share_ppm,
            max_ppm: 500_000,
            dedicated_ppm: 100_000,
            priority: 0,
        };
        let health = async |shares: &[SliceShare], others: Option<&[&str]>| {
            let others = others.map(|names| names.iter().map(|&name| name.to_owned()).collect());
            let expected = Expected { shares: shares.to_vec(), others };
            cell.health(&expected).await.map_err(String::from)
        };
        assert_eq!(health(&[share(400_000)], Some(&[])).await, Ok(()));
        assert!(health(&[share(300_000)], Some(&[])).await.unwrap_err().contains("gives slice"));
        let most = SliceShare { max_ppm: 600_000, ..share(400_000) };
        assert!(health(&[most], Some(&[])).await.unwrap_err().contains("max_percent = 50, not 60"));
        let shared = SliceShare { dedicated_ppm: 0, ..share(400_000) };
        assert!(health(&[shared], Some(&[])).await.unwrap_err().contains("dedicated_percent = 10, not 0"));
        // A slice that is not the manager's may belong to the operator.
        assert_eq!(health(&[], None).await, Ok(()));
        assert!(health(&[], Some(&["voice"])).await.unwrap_err().contains("still has slice \"video\""));
        assert_eq!(health(&[], Some(&["video"])).await, Ok(()));
    }
}
