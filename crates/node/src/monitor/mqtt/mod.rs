//! MQTT 3.1.1: each report as messages, to an external broker (`--mqtt`) and from a built-in one
//! (`--mqtt-listen`).
//!
//! ```text
//! anabranch/int/<monitor>/status                                  online, offline (last will); retained
//! anabranch/int/<monitor>/paths/<namespace>/<node-node-…>         a path, JSON; retained; empty when removed
//! anabranch/int/<monitor>/flows/<from>/<to>/<protocol>            a flow seen since the last report, JSON
//! anabranch/int/<monitor>/counters                                counters of the monitor, JSON
//! ```
//!
//! Messages have QoS 0, because the next report repeats the state. A slow or unreachable broker does not
//! delay the monitor.

mod broker;
mod client;

use super::report::Report;
use super::served::Last;
use anyhow::{Context, Result};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

/// Maximum number of flows per report. Flows without packets since the last report are left out first.
const MOST_FLOWS: usize = 256;
/// Maximum length of a packet in both directions, bytes; a path of 16 hops has about 12,000.
const MOST_BYTES: usize = 64 << 10;
/// Messages of a report that are sent before other tasks run.
const TURN: usize = 128;
const ONLINE: &str = "online";
const OFFLINE: &str = "offline";

/// Destination of the messages.
#[derive(Debug, clap::Args)]
pub struct MqttArgs {
    /// Publish to the MQTT broker at HOST:PORT, or HOST for port 1883.
    #[arg(long, value_name = "HOST:PORT", value_parser = broker_at)]
    mqtt: Option<(String, u16)>,
    /// User name at the broker.
    #[arg(long, value_name = "NAME", requires = "mqtt")]
    mqtt_user: Option<String>,
    /// File with the password for the broker in its first line.
    #[arg(long, value_name = "FILE", requires = "mqtt_user")]
    mqtt_password_file: Option<PathBuf>,
    /// Run an MQTT broker at ADDRESS:PORT for subscribers and other monitors. It does not authenticate clients.
    #[arg(long, value_name = "ADDRESS:PORT")]
    mqtt_listen: Option<SocketAddr>,
    /// Topic prefix.
    #[arg(long, value_name = "TOPIC", value_parser = prefix, default_value = "anabranch/int")]
    mqtt_topic: String,
}

impl MqttArgs {
    /// Whether messages are to be published at all.
    pub fn is_wanted(&self) -> bool {
        self.mqtt.is_some() || self.mqtt_listen.is_some()
    }
}

fn broker_at(text: &str) -> Result<(String, u16), String> {
    const WANTED: &str = "write HOST:PORT, HOST, or [ADDRESS]:PORT";
    // An IPv6 address contains colons, so it must be in brackets.
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || (host.starts_with('[') && host.ends_with(']')) => {
            (host, port.parse().map_err(|_| WANTED)?)
        }
        None => (text, 1883),
        Some(_) => return Err(WANTED.into()),
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    if host.is_empty() || port == 0 { Err(WANTED.into()) } else { Ok((host.to_owned(), port)) }
}

fn prefix(text: &str) -> Result<String, String> {
    let topic = text.trim_matches('/');
    let is_bad = |c: char| matches!(c, '+' | '#') || c.is_control();
    if topic.is_empty() || topic.starts_with('$') || topic.contains(is_bad) || topic.len() > 200 {
        return Err(
            "expected a topic of 1 to 200 bytes without +, #, control characters and leading $".into()
        );
    }
    Ok(topic.to_owned())
}

/// Starts the client and the broker, as requested, in the background of this runtime.
pub async fn start(name: &str, args: &MqttArgs, reports: &Last) -> Result<()> {
    let topics = Topics::new(&args.mqtt_topic, name);
    if let Some(at) = args.mqtt_listen {
        let broker = broker::listen(at).await.with_context(|| format!("--mqtt-listen {at}"))?;
        broker.publish(topics.status(), ONLINE.into(), true);
        let (mut topics, mut reports) = (topics.clone(), reports.clone());
        tokio::spawn(async move {
            while let Some(report) = next(&mut reports).await {
                for (at, Message { topic, payload, retain }) in
                    topics.messages(&report).into_iter().enumerate()
                {
                    broker.publish(topic, payload.into(), retain);
                    // The same thread serves subscribers, which must not fall behind.
                    if at % TURN == TURN - 1 {
                        tokio::task::yield_now().await;
                    }
                }
            }
        });
    }
    if let Some((host, port)) = &args.mqtt {
        let password = args.mqtt_password_file.as_ref().map(|file| {
            let text = std::fs::read_to_string(file)
                .with_context(|| format!("--mqtt-password-file {}", file.display()))?;
            anyhow::Ok(text.lines().next().unwrap_or_default().to_owned())
        });
        let login = args.mqtt_user.clone().zip(Some(password.transpose()?.unwrap_or_default()));
        let client = client::connect(name, (host, *port), login, &topics);
        let (mut topics, mut reports) = (topics, reports.clone());
        tokio::spawn(async move {
            while let Some(report) = next(&mut reports).await {
                // Nothing is queued while the broker is unreachable. After a reconnection it receives all
                // paths, and the paths removed meanwhile are deleted there.
                if client.is_connected() {
                    for message in topics.messages(&report) {
                        client.publish(message).await;
                    }
                }
            }
        });
    }
    Ok(())
}

async fn next(reports: &mut Last) -> Option<Arc<Report>> {
    loop {
        reports.changed().await.ok()?;
        let last = reports.borrow_and_update().clone();
        if last.is_some() {
            return last;
        }
    }
}

/// A message to be published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    topic: String,
    payload: Vec<u8>,
    retain: bool,
}

/// Converts reports into messages.
#[derive(Debug, Clone)]
struct Topics {
    /// Topic prefix with the name of the monitor.
    own: String,
    /// Topics of the paths that are published at present.
    paths: BTreeSet<String>,
}

impl Topics {
    fn new(prefix: &str, name: &str) -> Self {
        // The name must be a single topic level.
        Self { own: format!("{prefix}/{}", name.replace(['/', '+', '#', '\0'], "_")), paths: BTreeSet::new() }
    }

    fn status(&self) -> String {
        format!("{}/status", self.own)
    }

    fn messages(&mut self, report: &Report) -> Vec<Message> {
        let own = &self.own;
        let mut messages = Vec::new();
        let mut add = |topic: String, value: serde_json::Result<Vec<u8>>, retain| {
            // Serialisation to JSON cannot fail for these types.
            if let Ok(payload) = value {
                messages.push(Message { topic, payload, retain });
            }
        };
        let mut paths = BTreeSet::new();
        for path in &report.paths {
            let topic = format!("{own}/paths/{}/{}", path.namespace, path.name);
            // If two paths have the same name, the one seen last is published.
            paths.insert(topic.clone());
            add(topic, serde_json::to_vec(path), true);
        }
        for flow in report.flows.iter().filter(|flow| flow.silent_ms <= report.interval_ms).take(MOST_FLOWS) {
            let topic = format!("{own}/flows/{}/{}/{}", flow.source, flow.destination, flow.protocol);
            add(topic, serde_json::to_vec(flow), false);
        }
        add(format!("{own}/counters"), serde_json::to_vec(&report.counters), false);
        for gone in self.paths.difference(&paths) {
            add(gone.clone(), Ok(Vec::new()), true);
        }
        self.paths = paths;
        messages
    }
}

#[cfg(test)]
mod tests {
    use super::super::show::tests::sample;
    use super::*;
    use anabranch_cc::collect::PathView;
    use std::time::Duration;
    use tokio::io::copy_bidirectional;
    use tokio::net::{TcpListener, TcpStream};
    use tokio::sync::watch;
    use tokio::task::{JoinHandle, JoinSet};

    #[test]
    fn a_removed_path_is_deleted_once() {
        let mut topics = Topics::new("a/b", "m/#1");
        let report = sample();
        let told = |messages: &[Message]| -> Vec<(String, bool, bool)> {
            messages.iter().map(|m| (m.topic.clone(), m.payload.is_empty(), m.retain)).collect()
        };
        let path = "a/b/m__1/paths/123/?-2".to_owned();
        let counters = ("a/b/m__1/counters".to_owned(), false, false);
        let flow = "a/b/m__1/flows/[fd00::1]:4711/[fd00::2]:80/6".to_owned();
        let all = vec![(path.clone(), false, true), (flow, false, false), counters.clone()];
        assert_eq!(told(&topics.messages(&report)), all);
        let none = Report { paths: Vec::new(), flows: Vec::new(), ..report };
        assert_eq!(told(&topics.messages(&none)), [counters.clone(), (path, true, true)]);
        assert_eq!(told(&topics.messages(&none)), [counters]);
    }

    /// A TCP relay between a monitor and its broker, until it is aborted.
    fn between(at: SocketAddr, broker: SocketAddr) -> JoinHandle<()> {
        tokio::spawn(async move {
            let listener = TcpListener::bind(at).await.unwrap();
            let mut both = JoinSet::new();
            while let Ok((mut near, _)) = listener.accept().await {
                let mut far = TcpStream::connect(broker).await.unwrap();
                both.spawn(async move { copy_bidirectional(&mut near, &mut far).await });
            }
        })
    }

    #[tokio::test]
    async fn paths_removed_while_the_broker_is_unreachable_are_deleted() {
        let free = || std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let (here, there) = (free(), free());
        let broker = broker::listen(there).await.unwrap();
        let way = between(here, there);
        let (tell, reports) = watch::channel(None);
        let args = MqttArgs {
            mqtt: Some((here.ip().to_string(), here.port())),
            mqtt_user: None,
            mqtt_password_file: None,
            mqtt_listen: None,
            mqtt_topic: "t".into(),
        };
        start("m", &args, &reports).await.unwrap();
        fn none() -> Report {
            Report { paths: Vec::new(), flows: Vec::new(), ..sample() }
        }
        // Sends a report every 50 ms until the broker has the path, or no longer has it.
        let until = async |report: fn() -> Report, has_path: bool| {
            for _ in 0..400 {
                tell.send_replace(Some(Arc::new(report())));
                tokio::time::sleep(Duration::from_millis(50)).await;
                if broker.kept().iter().any(|topic| topic.contains("/paths/")) == has_path {
                    return;
                }
            }
            panic!("not after 20 s: the broker has a path: {has_path}");
        };
        until(sample, true).await;
        way.abort();
        let _ = way.await;
        for _ in 0..10 {
            tell.send_replace(Some(Arc::new(none())));
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let _way = between(here, there);
        until(none, false).await;
    }

    /// A report with more paths than the message queue holds.
    fn many(first: usize) -> Report {
        let report = sample();
        let named = |at: usize| PathView { name: at.to_string(), ..report.paths[0].clone() };
        Report { paths: (first..first + 3000).map(named).collect(), ..report }
    }

    #[tokio::test]
    async fn of_many_paths_each_is_published_and_deleted() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let broker = broker::listen(free).await.unwrap();
        let (tell, reports) = watch::channel(None);
        let mqtt = Some((free.ip().to_string(), free.port()));
        let args = MqttArgs {
            mqtt,
            mqtt_user: None,
            mqtt_password_file: None,
            mqtt_listen: None,
            mqtt_topic: "t".into(),
        };
        start("m", &args, &reports).await.unwrap();
        for first in [0, 1000] {
            let mut wanted: Vec<String> = (first..first + 3000)
                .map(|at| format!("t/m/paths/123/{at}"))
                .chain(["t/m/status".into()])
                .collect();
            wanted.sort();
            let mut kept = Vec::new();
            for _ in 0..200 {
                tell.send_replace(Some(Arc::new(many(first))));
                tokio::time::sleep(Duration::from_millis(50)).await;
                kept = broker.kept();
                if kept == wanted {
                    break;
                }
            }
            assert!(kept == wanted, "the broker has {} of {} topics", kept.len(), wanted.len());
        }
    }

    #[test]
    fn silent_flows_are_left_out() {
        let mut report = sample();
        report.flows[0].silent_ms = report.interval_ms + 1;
        let messages = Topics::new("t", "m").messages(&report);
        assert!(messages.iter().all(|m| !m.topic.contains("flows")), "{messages:?}");
    }

    #[test]
    fn addresses_of_brokers_are_parsed() {
        let at = |text| broker_at(text).ok();
        assert_eq!(at("mqtt.example"), Some(("mqtt.example".into(), 1883)));
        assert_eq!(at("10.0.0.1:99"), Some(("10.0.0.1".into(), 99)));
        assert_eq!(at("[fd00::1]:99"), Some(("fd00::1".into(), 99)));
        for wrong in ["", ":1", "h:", "h:x", "h:0", "fd00::1", "h:70000"] {
            assert_eq!(at(wrong), None, "{wrong}");
        }
        assert!(prefix("a/+").is_err() && prefix("$SYS").is_err() && prefix("a/").as_deref() == Ok("a"));
        assert!(
            ["", "/", "//", "/$SYS", "a\n", "a\u{1b}[2J"].into_iter().all(|wrong| prefix(wrong).is_err())
        );
    }
}
