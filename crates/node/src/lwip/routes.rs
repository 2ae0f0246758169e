//! REST routes of an LWIP node.

use super::api::{LwipChange, LwipFlows, LwipNode, LwipRequest};
use crate::runtime::api::extract::{Body, Params};
use crate::runtime::api::problem::Problem;
use crate::runtime::api::request::ControlRequest;
use crate::runtime::api::routes::{Answer, Page, Shared};
use axum::Json;
use axum::extract::State;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// The routes and their OpenAPI description.
pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(lwip, set_lwip)).routes(routes!(lwip_flows))
}

async fn request<T>(
    shared: &Shared,
    question: impl FnOnce(crate::runtime::api::request::Reply<T>) -> LwipRequest,
) -> Answer<T> {
    shared.control.request(|reply| ControlRequest::Lwip(question(reply))).await.map(Json)
}

/// The LWIP node: steering, DIDA, legs, ACKs, holds.
#[utoipa::path(get, path = "/v1/lwip", responses((status = 200, body = LwipNode), (status = 405, body = Problem)))]
async fn lwip(State(shared): State<Shared>) -> Answer<LwipNode> {
    request(&shared, LwipRequest::Node).await
}

/// Changes steering or hold time, from the next packet on and until the next reload. If DIDA changes, all
/// held ACKs are sent.
#[utoipa::path(
    put,
    path = "/v1/lwip",
    request_body = LwipChange,
    responses((status = 200, body = LwipNode), (status = 400, body = Problem), (status = 405, body = Problem))
)]
async fn set_lwip(State(shared): State<Shared>, Body(change): Body<LwipChange>) -> Answer<LwipNode> {
    request(&shared, |reply| LwipRequest::Set(Box::new(change), reply)).await
}

/// TCP connections of the LWIP node, a page at a time.
#[utoipa::path(
    get,
    path = "/v1/lwip/flows",
    params(Page),
    responses((status = 200, body = LwipFlows), (status = 405, body = Problem))
)]
async fn lwip_flows(State(shared): State<Shared>, Params(page): Params<Page>) -> Answer<LwipFlows> {
    let (offset, limit) = page.bounds();
    request(&shared, |reply| LwipRequest::Flows { offset, limit, reply }).await
}
