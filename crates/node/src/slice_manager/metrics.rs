//! `GET /metrics`: metrics in the Prometheus text format.

use super::Shared;
use super::auth::Operator;
use crate::runtime::api::Problem;
use crate::runtime::metrics::Text;
use anabranch_slice::Manager;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// The route and its OpenAPI description.
pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(metrics))
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabels {
    state: Text,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AccessStateLabels {
    access: Text,
    direction: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AccessLabels {
    access: Text,
}

/// Metrics in the Prometheus text format.
#[utoipa::path(get, path = "/metrics", tag = "slices", responses((status = 200, body = String, content_type = "application/openmetrics-text")))]
async fn metrics(_: Operator, State(shared): State<Shared>) -> Result<Response, Problem> {
    let registry = shared.engine.read(|m| registry(m, shared.streams.count()));
    let mut body = String::new();
    text::encode(&mut body, &registry).map_err(Problem::unavailable)?;
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(header::CONTENT_TYPE, kind)], body).into_response())
}

fn registry(m: &Manager, streams: u32) -> Registry {
    let mut registry = Registry::with_prefix("anabranch_slice_manager");
    let count = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
    let single = |registry: &mut Registry, name: &str, help: &str, value: i64| {
        let gauge = Gauge::<i64>::default();
        gauge.set(value);
        registry.register(name, help, gauge);
    };
    let slices = Family::<StateLabels, Gauge>::default();
    for state in
        ["Init", "Placement", "Provisioning", "Activation", "Running", "Degraded", "Terminating", "Failed"]
    {
        let n = m.slices().values().filter(|s| s.state.name() == state).count();
        slices.get_or_create(&StateLabels { state: state.into() }).set(count(n));
    }
    registry.register("slices", "Slices by state", slices);
    single(&mut registry, "ues", "Known UEs", count(m.ues().len()));
    let registered = m.ues().values().filter(|ue| ue.registered_ms.is_some()).count();
    single(&mut registry, "ues_registered", "Registered UEs", count(registered));
    single(&mut registry, "streams", "Open streams at this instance", streams.into());
    let promised = Family::<AccessStateLabels, Gauge>::default();
    let shares = Family::<AccessLabels, Gauge>::default();
    let ledger = m.ledger(None);
    for access in m.inventory().iter() {
        let (dl, ul, share) = ledger.promised(&access.name);
        for (direction, bps) in [("downlink", dl), ("uplink", ul)] {
            let labels = AccessStateLabels { access: access.name.as_str().into(), direction };
            promised.get_or_create(&labels).set(i64::try_from(bps).unwrap_or(i64::MAX));
        }
        let labels = AccessLabels { access: access.name.as_str().into() };
        shares.get_or_create(&labels).set(i64::try_from(share).unwrap_or(i64::MAX));
    }
    registry.register("promised_share_ppm", "Reserved share of RBs, millionths", shares);
    registry.register("promised_bps", "Reserved rates, bit/s", promised);
    registry
}
