//! Events to those who asked for them: CloudEvents (1.0, structured JSON) over HTTP or HTTPS, only to targets of the
//! configuration, and to no address that is not public unless the configuration names it: who may give a URL is not to
//! reach by it what only this machine reaches.
//!
//! ```text
//!  send ─▶ queue ─▶ of each server one line, one event of it at a time ─▶ resolve ─▶ public? ─▶ POST, up to three times
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

/// Events that may wait, in all.
const WAITING: usize = 1024;
/// Of them, of one server: one that does not answer keeps out none but its own.
const WAITING_OF_ONE: usize = 64;
/// Servers that are sent to at a time.
const SERVERS: usize = 128;
/// Tries of each.
const TRIES: u32 = 3;
/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// An event, where it goes, and the token that is shown there.
struct Event {
    to: Url,
    body: Value,
    token: Option<String>,
}

/// Sends events.
pub struct Callbacks {
    allow: Vec<Url>,
    any_https: bool,
    places: Arc<Destinations>,
    queue: mpsc::Sender<Event>,
}

/// Names by the system, without the addresses that events may not be sent to. Looked up for every connection, so what a name
/// meant before does not count.
struct Public(Arc<Destinations>);

impl Resolve for Public {
    fn resolve(&self, name: Name) -> Resolving {
        let places = self.0.clone();
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let open: Vec<SocketAddr> = found.filter(|at| places.admits(at.ip())).collect();
            if open.is_empty() {
                let why = format!("{} has no public address, and none of [callbacks] private", name.as_str());
                return Err(why.into());
            }
            Ok(Box::new(open.into_iter()) as Addrs)
        })
    }
}

impl Callbacks {
    /// Must be called within a tokio runtime: events are sent by a task of their own.
    pub fn new(config: &Config) -> anyhow::Result<Self> {
        let allow: Vec<Url> = config.allow.iter().map(|url| Url::parse(url)).collect::<Result<_, _>>()?;
        let places = Destinations::new([], [], config.private.iter().copied(), false);
        let places = Arc::new(places);
        let (queue, waiting) = mpsc::channel::<Event>(WAITING);
        let tls = config.any_https || allow.iter().any(|url| url.scheme() == "https");
        let trust = match &config.ca_file {
            Some(file) if tls => Trust::Authorities(file),
            None if tls => Trust::System,
            _ => Trust::Nobody,
        };
        // A redirect would lead where the configuration does not: there are none.
        let http = client::builder(trust).context("[callbacks] ca_file")?.timeout(PATIENCE);
        let http = http.dns_resolver(Arc::new(Public(places.clone()))).build()?;
        tokio::spawn(send_all(http, waiting));
        Ok(Self { allow, any_https: config.any_https, places, queue })
    }

    /// Whether events may be sent there.
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
        // Names are looked up when they are used.
        if !named && address(&url).is_some_and(|at| !self.places.admits(at)) {
            return refuse("is at an address that is not public, and in none of [callbacks] private");
        }
        Ok(url)
    }

    /// Sends an event, if there is someone to send it to. One that would have to wait too long is dropped.
    /// What it is about, `v`, says where it goes.
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
            tracing::warn!("callback to {}: too many are waiting; dropped", sink.unwrap_or_default());
        }
    }
}

/// The address that a URL names itself, in whatever form.
fn address(url: &Url) -> Option<IpAddr> {
    match url.host()? {
        url::Host::Ipv4(v4) => Some(v4.into()),
        url::Host::Ipv6(v6) => Some(v6.into()),
        url::Host::Domain(_) => None,
    }
}

/// Sends what comes, of each server one at a time and in order, until nothing can come any more.
async fn send_all(http: reqwest::Client, mut waiting: mpsc::Receiver<Event>) {
    let mut lines: HashMap<String, VecDeque<Event>> = HashMap::new();
    // Servers that have events and are sent none yet.
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
                        tracing::warn!(dropped, "callback to {server}: too many are waiting; dropped");
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
                // A panic would leave the line of its server: there is none on that way.
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
    async fn events_go_where_the_configuration_says_and_nowhere_else() {
        let config = Config { allow: vec!["http://app.example/events/".into()], ..Config::default() };
        let callbacks = Callbacks::new(&config).unwrap();
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

    /// Every form in which an address that is not public can be written, and those that the operator opened.
    #[tokio::test]
    async fn no_address_is_reached_that_is_not_public_or_named() {
        let config = Config {
            allow: vec!["http://127.0.0.1:9/own/".into()],
            any_https: true,
            private: vec!["10.1.0.0/16".parse().unwrap()],
            ..Config::default()
        };
        let callbacks = Callbacks::new(&config).unwrap();
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
        // A name that means such an address is found out when it is used.
        let resolve =
            |places: &Arc<Destinations>| Public(places.clone()).resolve("localhost".parse().unwrap());
        let refused = resolve(&callbacks.places).await.err().unwrap().to_string();
        assert!(refused.contains("[callbacks] private"), "{refused}");
        let open = ["127.0.0.0/8".parse().unwrap(), "::1/128".parse().unwrap()];
        let open = Arc::new(Destinations::new([], [], open, false));
        assert!(resolve(&open).await.unwrap().count() > 0);
    }

    /// A server that takes connections and says nothing has its own events wait, and nobody else's.
    #[tokio::test]
    async fn one_server_that_does_not_answer_keeps_out_none_but_its_own() {
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
        let callbacks = Callbacks::new(&config).unwrap();
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
