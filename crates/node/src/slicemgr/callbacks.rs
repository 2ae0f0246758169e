//! Events to those who asked for them: CloudEvents (1.0, structured JSON) over HTTP, only to targets of the
//! configuration.

use crate::api::Problem;
use crate::config::Callbacks as Config;
use reqwest::{Url, redirect};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::sync::mpsc;

/// Events that may wait.
const WAITING: usize = 1024;
/// Tries of each.
const TRIES: u32 = 3;

/// An event, where it goes, and the token that is shown there.
type Event = (Url, Value, Option<String>);

/// Sends events.
pub struct Callbacks {
    allow: Vec<Url>,
    queue: mpsc::Sender<Event>,
}

impl Callbacks {
    /// Must be called within a tokio runtime: events are sent by a task of their own.
    pub fn new(config: &Config) -> anyhow::Result<Self> {
        let allow = config.allow.iter().map(|url| Url::parse(url)).collect::<Result<_, _>>()?;
        let (queue, mut waiting) = mpsc::channel::<Event>(WAITING);
        // A redirect would lead where the configuration does not.
        let http = reqwest::Client::builder().no_proxy().redirect(redirect::Policy::none());
        let http = http.timeout(Duration::from_secs(5)).build()?;
        tokio::spawn(async move {
            while let Some((url, event, token)) = waiting.recv().await {
                for n in 1..=TRIES {
                    let mut request =
                        http.post(url.clone()).header("content-type", "application/cloudevents+json");
                    if let Some(token) = &token {
                        request = request.bearer_auth(token);
                    }
                    match request.body(event.to_string()).send().await {
                        Ok(answer) if answer.status().is_success() => break,
                        Ok(answer) => tracing::warn!("callback to {url}: {}", answer.status()),
                        Err(error) => tracing::warn!("callback to {url}: {error}"),
                    }
                    if n < TRIES {
                        tokio::time::sleep(Duration::from_secs(u64::from(n))).await;
                    }
                }
            }
        });
        Ok(Self { allow, queue })
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
        if !url.username().is_empty() || url.password().is_some() || !self.allow.iter().any(below) {
            return refuse(
                "is not below any of [callbacks] allow; the operator sets where events may be sent",
            );
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
            "time": super::times::rfc3339(super::now_ms()), "datacontenttype": "application/json", "data": data,
        });
        if self.queue.try_send((url, event, token)).is_err() {
            tracing::warn!("callback to {}: too many are waiting; dropped", sink.unwrap_or_default());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn events_go_where_the_configuration_says_and_nowhere_else() {
        let config = Config { allow: vec!["http://app.example/events/".into()] };
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
}
