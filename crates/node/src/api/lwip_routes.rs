//! The paths of an LWIP node.

use super::ask::Ask;
use super::extract::{Body, Params};
use super::lwip::{LwipAsk, LwipChange, LwipFlows, LwipNode};
use super::problem::Problem;
use super::routes::{Answer, Page, Shared};
use axum::Json;
use axum::extract::State;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// The routes and their description.
pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(lwip, set_lwip)).routes(routes!(lwip_flows))
}

async fn ask<T>(shared: &Shared, question: impl FnOnce(super::ask::Reply<T>) -> LwipAsk) -> Answer<T> {
    shared.asker.ask(|reply| Ask::Lwip(question(reply))).await.map(Json)
}

/// The LWIP node: steering, DIDA, legs, ACKs, holds.
#[utoipa::path(get, path = "/v1/lwip", responses((status = 200, body = LwipNode), (status = 405, body = Problem)))]
async fn lwip(State(shared): State<Shared>) -> Answer<LwipNode> {
    ask(&shared, LwipAsk::Node).await
}

/// Other steering, or another hold, from the next packet on and until the next reload. Where DIDA changes, what is
/// held is sent.
#[utoipa::path(
    put,
    path = "/v1/lwip",
    request_body = LwipChange,
    responses((status = 200, body = LwipNode), (status = 400, body = Problem), (status = 405, body = Problem))
)]
async fn set_lwip(State(shared): State<Shared>, Body(change): Body<LwipChange>) -> Answer<LwipNode> {
    ask(&shared, |reply| LwipAsk::Set(Box::new(change), reply)).await
}

/// TCP connections that the LWIP node knows, a page at a time.
#[utoipa::path(
    get,
    path = "/v1/lwip/flows",
    params(Page),
    responses((status = 200, body = LwipFlows), (status = 405, body = Problem))
)]
async fn lwip_flows(State(shared): State<Shared>, Params(page): Params<Page>) -> Answer<LwipFlows> {
    let (offset, limit) = page.bounds();
    ask(&shared, |reply| LwipAsk::Flows { offset, limit, reply }).await
}
