//! Servers of the last report: REST, metrics and MQTT, on a thread of their own.

use super::mqtt::{self, MqttArgs};
use super::report::Report;
use super::{ApiArgs, api, metrics};
use crate::runtime::api::{Guarded, Server};
use crate::runtime::config::Listen;
use anyhow::{Context, Result};
use axum::Router;
use axum::http::header;
use axum::routing::get;
use std::sync::Arc;
use tokio::runtime::Runtime;
use tokio::sync::watch;

/// Receiver of the last report; `None` before the first one.
pub type Last = watch::Receiver<Option<Arc<Report>>>;

/// The running servers; they stop when this is dropped.
pub struct MonitorServers {
    last: watch::Sender<Option<Arc<Report>>>,
    // Drop order: first the listeners, then their runtime.
    _server: Server,
    _runtime: Option<Runtime>,
}

impl MonitorServers {
    /// Starts the requested servers and connections.
    pub fn start(name: &str, rest: &ApiArgs, at: Option<&Listen>, mqtt: &MqttArgs) -> Result<Self> {
        let (last, reports) = watch::channel(None);
        let mut server = Server::default();
        let asked = rest.check()?;
        let tls = rest.tls(at)?;
        if at.is_none() && asked.is_none() && !mqtt.is_wanted() {
            return Ok(Self { last, _server: server, _runtime: None });
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .context("starting a thread")?;
        if let Some(at) = at {
            let router = metrics_route(reports.clone());
            let guarded = Guarded { tls: tls.clone(), ..Guarded::default() };
            runtime.block_on(server.listen(at, router, guarded)).context("--metrics")?;
        }
        if let Some((at, token)) = asked {
            let guarded = Guarded { by_token: token.is_some(), tls, ..Guarded::default() };
            let router = api::router(reports.clone(), token);
            runtime.block_on(server.listen(at, router, guarded)).context("--api")?;
        }
        runtime.block_on(mqtt::start(name, mqtt, &reports))?;
        Ok(Self { last, _server: server, _runtime: Some(runtime) })
    }

    /// Publishes a report, which replaces the previous one.
    pub fn set(&self, report: Report) {
        self.last.send_replace(Some(Arc::new(report)));
    }
}

fn metrics_route(reports: Last) -> Router {
    let answer = async move || {
        let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
        let last = reports.borrow().clone();
        ([(header::CONTENT_TYPE, kind)], last.as_deref().map(metrics::text).unwrap_or_default())
    };
    Router::new().route("/metrics", get(answer))
}
