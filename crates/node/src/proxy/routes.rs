//! REST routes of a transparent proxy.

use super::api::{ProxyFlows, ProxyNode, ProxyRequest};
use crate::runtime::api::extract::Params;
use crate::runtime::api::problem::Problem;
use crate::runtime::api::request::ControlRequest;
use crate::runtime::api::routes::{Answer, Page, Shared};
use axum::Json;
use axum::extract::State;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// The routes and their OpenAPI description.
pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(proxy)).routes(routes!(proxy_flows))
}

/// The proxy: rules, traffic by rule and slice, state of the policy agent.
#[utoipa::path(get, path = "/v1/proxy", responses((status = 200, body = ProxyNode), (status = 405, body = Problem)))]
async fn proxy(State(shared): State<Shared>) -> Answer<ProxyNode> {
    shared.control.request(|reply| ControlRequest::Proxy(ProxyRequest::Node(reply))).await.map(Json)
}

/// Flows of the proxy with plan and bytes, a page at a time.
#[utoipa::path(
    get,
    path = "/v1/proxy/flows",
    params(Page),
    responses((status = 200, body = ProxyFlows), (status = 405, body = Problem))
)]
async fn proxy_flows(State(shared): State<Shared>, Params(page): Params<Page>) -> Answer<ProxyFlows> {
    let (offset, limit) = page.bounds();
    shared
        .control
        .request(|reply| ControlRequest::Proxy(ProxyRequest::Flows { offset, limit, reply }))
        .await
        .map(Json)
}
