//! Event notifications: CloudEvents (1.0, structured JSON) over HTTP or HTTPS. Targets must match the
//! configuration, and addresses that are not public must be listed there, so that a client cannot use a URL
//! to reach services that only this machine can reach (SSRF).
//!
//! ```text
//!  send ─▶ queue ─▶ a queue per server, one event at a time ─▶ resolve ─▶ public? ─▶ POST, up to three times
//! ```

use crate::runtime::api::Problem;
use crate::runtime::api::client::{self, Trust};
use crate::runtime::config::Callbacks as Config;
use anabranch_atsss::destinations::Destinations;
use anyhow::Context;
use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use serde_json::{Value, json};
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Maximum number of waiting events.
const WAITING: usize = 1024;
/// Maximum number of waiting events per server, so that an unresponsive server delays only its own events.
const WAITING_OF_ONE: usize = 64;
/// Maximum number of servers contacted at the same time.
const SERVERS: usize = 128;
/// Number of attempts per event.
const TRIES: u32 = 3;
/// Time limit for an answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// An event with its target URL and bearer token.
struct Event {
    to: Url,
    body: Value,
    token: Option<String>,
}

/// Queue of events, with the rules for their sinks.
pub struct Callbacks {
    allow: Vec<Url>,
    any_https: bool,
    places: Arc<Destinations>,
    queue: mpsc::Sender<Event>,
}

/// The HTTP client that sends events, and the rules for their sinks.
pub struct Sender {
    allow: Vec<Url>,
    any_https: bool,
    places: Arc<Destinations>,
    http: reqwest::Client,
}

/// Resolver that omits addresses to which no events may be sent. It is used for every connection, so earlier
/// results of a name do not matter.
struct Public(Arc<Destinations>);

impl Resolve for Public {
    fn resolve(&self, name: Name) -> Resolving {
        let places = self.0.clone();
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let open: Vec<SocketAddr> = found.filter(|at| places.admits(at.ip())).collect();
            if open.is_empty() {
                let why =
                    format!("{} has no public address, and none within [callbacks] private", name.as_str());
                return Err(why.into());
            }
            Ok(Box::new(open.into_iter()) as Addrs)
        })
    }
}

impl Sender {
    /// Reads the file of certificate authorities, also if no sink uses it.
    ///
    /// # Errors
    /// A URL or that file is not usable.
    pub fn new(config: &Config) -> anyhow::Result<Self> {
        let allow: Vec<Url> = config.allow.iter().map(|url| Url::parse(url)).collect::<Result<_, _>>()?;
        let places = Destinations::new([], [], config.private.iter().copied(), false);
        let places = Arc::new(places);
        let tls = config.any_https || allow.iter().any(|url| url.scheme() == "https");
        let trust = match &config.ca_file {
            Some(file) => Trust::Authorities(file),
            None if tls => Trust::System,
            None => Trust::Nobody,
        };
        // Redirects are disabled, because they could lead to targets that are not configured.
        let http = client::builder(trust).context("[callbacks] ca_file")?.timeout(PATIENCE);
        let http = http.dns_resolver(Arc::new(Public(places.clone()))).build()?;
        Ok(Self { allow, any_https: config.any_https, places, http })
    }
}

impl Callbacks {
    /// Must be called within a tokio runtime, because a task of its own sends the events.
    pub fn new(sender: Sender) -> Self {
        let Sender { allow, any_https, places, http } = sender;
        let (queue, waiting) = mpsc::channel::<Event>(WAITING);
        tokio::spawn(send_all(http, waiting));
        Self { allow, any_https, places, queue }
    }

    /// Validates a sink URL; an error if events may not be sent there.
    pub fn check(&self, sink: &str) -> Result<Url, Problem> {
        let refuse = |why: &str| {
            let detail = format!("sink \"{sink}\": {why}");
            Err(Problem::invalid(detail).field("sink"))
        };
        let Ok(url) = Url::parse(sink) else { return refuse("is no URL") };
        let below =
            |allowed: &Url| url.origin() == allowed.origin() && url.path().starts_with(allowed.path());
        let named = self.allow.iter().any(below);
        let any = self.any_https && url.scheme() == "https" && url.has_host();
        if !url.username().is_empty() || url.password().is_some() || !(named || any) {
            return refuse(
                "is not below any of [callbacks] allow; the operator sets where events may be sent",
            );
        }
        // Names are resolved and checked when they are used.
        if !named && address(&url).is_some_and(|at| !self.places.admits(at)) {
            return refuse("has an address that is not public and not within [callbacks] private");
        }
        Ok(url)
    }

    /// Sends an event to the sink in the document `v`, if it has one. If too many events wait, it is dropped.
    pub fn send(&self, v: &Value, kind: &str, source: &str, data: &Value) {
        let sink = v["sink"].as_str();
        let Some(Ok(url)) = sink.map(|sink| self.check(sink)) else { return };
        let token = v["sink_token"].as_str().map(str::to_owned);
        let Ok(id) = super::auth::new_uuid() else { return };
        let event = json!({
            "specversion": "1.0", "id": id, "source": source, "type": kind,
            "time": crate::runtime::times::rfc3339(super::now_ms()), "datacontenttype": "application/json", "data": data,
        });
        if self.queue.try_send(Event { to: url, body: event, token }).is_err() {
            tracing::warn!("callback to {}: too many events are waiting; dropped", sink.unwrap_or_default());
        }
    }
}

/// The address that a URL contains literally, in whatever notation.
fn address(url: &Url) -> Option<IpAddr> {
    match url.host()? {
        url::Host::Ipv4(v4) => Some(v4.into()),
        url::Host::Ipv6(v6) => Some(v6.into()),
        url::Host::Domain(_) => None,
    }
}

/// Sends the events, to each server one at a time and in order, until the channel is closed.
async fn send_all(http: reqwest::Client, mut waiting: mpsc::Receiver<Event>) {
    let mut lines: HashMap<String, VecDeque<Event>> = HashMap::new();
    // Servers with waiting events and no event in progress.
    let mut ready: VecDeque<String> = VecDeque::new();
    let (mut total, mut dropped) = (0_usize, 0_u64);
    let mut sending: JoinSet<String> = JoinSet::new();
    loop {
        while sending.len() < SERVERS
            && let Some(server) = ready.pop_front()
        {
            match lines.get_mut(&server).and_then(VecDeque::pop_front) {
                Some(event) => {
                    total -= 1;
                    let http = http.clone();
                    sending.spawn(async move {
                        deliver(&http, event).await;
                        server
                    });
                }
                None => drop(lines.remove(&server)),
            }
        }
        tokio::select! {
            event = waiting.recv() => {
                let Some(event) = event else { return };
                let server = event.to.origin().ascii_serialization();
                let is_new = !lines.contains_key(&server);
                let line = lines.entry(server.clone()).or_default();
                if line.len() >= WAITING_OF_ONE || total >= WAITING {
                    dropped += 1;
                    if dropped.is_power_of_two() {
                        tracing::warn!(dropped, "callback to {server}: too many events are waiting; dropped");
                    }
                    if is_new {
                        lines.remove(&server);
                    }
                    continue;
                }
                line.push_back(event);
                total += 1;
                if is_new {
                    ready.push_back(server);
                }
            }
            Some(server) = sending.join_next() => {
                // A panic would block the queue of its server; the code has none.
                if let Ok(server) = server {
                    ready.push_back(server);
                }
            }
        }
    }
}

async fn deliver(http: &reqwest::Client, Event { to, body, token }: Event) {
    for n in 1..=TRIES {
        let mut request = http.post(to.clone()).header("content-type", "application/cloudevents+json");
        if let Some(token) = &token {
            request = request.bearer_auth(token);
        }
        match request.body(body.to_string()).send().await {
            Ok(answer) if answer.status().is_success() => return,
            Ok(answer) => tracing::warn!("callback to {to}: {}", answer.status()),
            Err(error) => {
                let why =
                    std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
                tracing::warn!("callback to {to}: {why}");
            }
        }
        if n < TRIES {
            tokio::time::sleep(Duration::from_secs(u64::from(n))).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn events_are_sent_to_configured_targets_only() {
        let config = Config { allow: vec!["http://app.example/events/".into()], ..Config::default() };
        let callbacks = Callbacks::new(Sender::new(&config).unwrap());
        assert!(callbacks.check("http://app.example/events/a?b=c").is_ok());
        for sink in [
            "http://app.example/other",
            "http://app.example/events/../other",
            "http://app.example:8080/events/a",
            "https://app.example/events/a",
            "http://app.example.evil/events/a",
            "http://app.example@evil/events/a",
            "http://user@app.example/events/a",
            "http://127.0.0.1/events/a",
            "file:///events/a",
            "nonsense",
        ] {
            let problem = callbacks.check(sink).unwrap_err();
            assert_eq!(problem.field.as_deref(), Some("sink"), "{sink}");
        }
    }

    /// Every notation of an address that is not public, and the addresses that the operator permits.
    #[tokio::test]
    async fn only_public_or_configured_addresses_are_reached() {
        let config = Config {
            allow: vec!["http://127.0.0.1:9/own/".into()],
            any_https: true,
            private: vec!["10.1.0.0/16".parse().unwrap()],
            ..Config::default()
        };
        let callbacks = Callbacks::new(Sender::new(&config).unwrap());
        for sink in [
            "https://app.example/a",
            "https://203.0.113.7:8443/a",
            "https://10.1.2.3/a",
            "https://[2001:4860::1]/a",
            "http://127.0.0.1:9/own/a",
        ] {
            assert!(callbacks.check(sink).is_ok(), "{sink}");
        }
        for sink in [
            "http://app.example/a",
            "https://127.0.0.1/a",
            "https://127.1/a",
            "https://2130706433/a",
            "https://0x7f.0.0.1/a",
            "https://0177.0.0.1/a",
            "https://0.0.0.0/a",
            "https://169.254.169.254/latest/meta-data",
            "https://192.168.0.1/a",
            "https://10.2.0.1/a",
            "https://100.64.0.1/a",
            "https://[::1]/a",
            "https://[::]/a",
            "https://[::ffff:127.0.0.1]/a",
            "https://[64:ff9b::7f00:1]/a",
            "https://[fe80::1]/a",
            "https://[fd00::1]/a",
            "https://user@app.example/a",
            "http://127.0.0.1:9/other",
        ] {
            let problem = callbacks.check(sink).unwrap_err();
            assert_eq!(problem.field.as_deref(), Some("sink"), "{sink}");
        }
        // A name that resolves to such an address is refused when it is used.
        let resolve =
            |places: &Arc<Destinations>| Public(places.clone()).resolve("localhost".parse().unwrap());
        let refused = resolve(&callbacks.places).await.err().unwrap().to_string();
        assert!(refused.contains("[callbacks] private"), "{refused}");
        let open = ["127.0.0.0/8".parse().unwrap(), "::1/128".parse().unwrap()];
        let open = Arc::new(Destinations::new([], [], open, false));
        assert!(resolve(&open).await.unwrap().count() > 0);
    }

    /// A server that accepts connections but does not answer delays only its own events.
    #[tokio::test]
    async fn an_unresponsive_server_delays_only_its_own_events() {
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let lively = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = |listener: &tokio::net::TcpListener| format!("http://{}/", listener.local_addr().unwrap());
        let (dead, alive) = (url(&silent), url(&lively));
        let (told, mut heard) = mpsc::channel(64);
        let answer = async move |body: String| {
            let event: Value = serde_json::from_str(&body).unwrap();
            told.send(event["data"]["n"].as_u64().unwrap()).await.unwrap();
        };
        let router = axum::Router::new().fallback(answer);
        tokio::spawn(async move { axum::serve(lively, router).await });
        let config = Config { allow: vec![dead.clone(), alive.clone()], ..Config::default() };
        let callbacks = Callbacks::new(Sender::new(&config).unwrap());
        let (dead, alive) = (json!({"sink": dead}), json!({"sink": alive}));
        let started = std::time::Instant::now();
        for n in 0..300_u64 {
            callbacks.send(&dead, "x", "/x", &json!({"n": n}));
            if n % 10 == 0 {
                callbacks.send(&alive, "x", "/x", &json!({"n": n}));
            }
            tokio::task::yield_now().await;
        }
        for n in (0..300).step_by(10) {
            assert_eq!(heard.recv().await, Some(n));
        }
        assert!(started.elapsed() < PATIENCE, "{:?}", started.elapsed());
    }
}
