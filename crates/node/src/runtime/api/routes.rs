//! REST routes of the agents.

use super::super::config::UpfUe;
use super::events::EventLog;
use super::extract::{Body, Params, Path, complete};
use super::problem::Problem;
use super::request::{ControlRequest, RequestSender};
use super::tls::Tls;
use super::types::{Event, PathList, Reloaded, Rules, Session, SessionList, Status};
use crate::ue::taps::Taps;
use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::sse::{KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use std::convert::Infallible;
use std::sync::Arc;
use tokio_stream::wrappers::BroadcastStream;
use tokio_stream::{Stream, StreamExt};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::{IntoParams, Modify, OpenApi};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// State shared by the request handlers.
#[derive(Clone)]
pub struct Shared {
    /// Sends requests to the control loop.
    pub control: RequestSender,
    /// The log of events.
    pub events: EventLog,
    /// Transport Services; on a UE only.
    pub taps: Option<Arc<Taps>>,
    /// Certificates of the listeners, which a reload reads again.
    pub certificates: Arc<[Arc<Tls>]>,
}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "anabranch agent",
        description = "Sessions, paths, rules and events of a running `anabranch ue` or `anabranch upf`; cell, slices and UEs of an `anabranch gnb`; steering, DIDA and flows of an `anabranch lwip`; flows of an `anabranch proxy`; which slice, path and protocol a connection of a device should use.",
        license(name = "Apache-2.0", identifier = "Apache-2.0")
    ),
    modifiers(&Bearer)
)]
struct Description;

/// Adds the security scheme to the OpenAPI description.
pub struct Bearer;

impl Modify for Bearer {
    fn modify(&self, openapi: &mut utoipa::openapi::OpenApi) {
        let scheme = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .description(Some(
                "Needed only if [api] has token_file, tokens or oauth: a fixed token, or a JWT access token.",
            ))
            .build();
        openapi.components.get_or_insert_default().add_security_scheme("token", SecurityScheme::Http(scheme));
    }
}

/// The routes and their OpenAPI description.
pub fn routes() -> OpenApiRouter<Shared> {
    let mut router = OpenApiRouter::with_openapi(Description::openapi())
        .routes(routes!(status))
        .routes(routes!(sessions, create_session))
        .routes(routes!(session, put_session, delete_session))
        .routes(routes!(reset_clock))
        .routes(routes!(session_paths))
        .routes(routes!(paths))
        .routes(routes!(rules, set_rules))
        .routes(routes!(events))
        .routes(routes!(reload))
        .routes(routes!(metrics))
        .merge(crate::gnb::routes::routes())
        .merge(crate::lwip::routes::routes())
        .merge(crate::proxy::routes::routes())
        .merge(crate::tcp_lane::api::routes())
        .merge(crate::ue::taps::routes::routes());
    complete(
        router.get_openapi_mut(),
        &["400", "401", "403", "404", "405", "408", "503"],
        &["413", "415", "422"],
    );
    router
}

/// The OpenAPI description as committed in `openapi/agent.json`.
#[cfg(test)]
pub fn description() -> String {
    crate::testing::description(routes())
}

/// The answer of a handler.
pub type Answer<T> = Result<Json<T>, Problem>;

/// State of the program.
#[utoipa::path(get, path = "/v1/status", responses((status = 200, body = Status), (status = 503, body = Problem)))]
async fn status(State(shared): State<Shared>) -> Answer<Status> {
    shared.control.request(ControlRequest::Status).await.map(Json)
}

/// Selection of a page.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct Page {
    /// Number of entries to skip; default 0.
    #[serde(default)]
    pub offset: usize,
    /// Maximum number of entries, 1 to 1000; default 100. Other values are clamped.
    #[serde(default = "hundred")]
    pub limit: usize,
}

impl Page {
    /// Number of entries to skip, and maximum number of entries.
    pub fn bounds(&self) -> (usize, usize) {
        (self.offset, self.limit.clamp(1, 1000))
    }
}

/// Default of the maximum number of entries.
pub fn hundred() -> usize {
    100
}

/// Sessions, a page at a time.
#[utoipa::path(get, path = "/v1/sessions", params(Page), responses((status = 200, body = SessionList)))]
async fn sessions(State(shared): State<Shared>, Params(page): Params<Page>) -> Answer<SessionList> {
    let (offset, limit) = page.bounds();
    shared.control.request(|reply| ControlRequest::Sessions { offset, limit, reply }).await.map(Json)
}

/// Adds a UE (UPF only). It is kept across restarts.
#[utoipa::path(
    post,
    path = "/v1/sessions",
    request_body = UpfUe,
    responses(
        (status = 201, body = Session),
        (status = 400, body = Problem),
        (status = 405, body = Problem),
        (status = 409, body = Problem)
    )
)]
async fn create_session(State(shared): State<Shared>, Body(ue): Body<UpfUe>) -> Result<Response, Problem> {
    let session = shared.control.request(|reply| ControlRequest::Create(Box::new(ue), reply)).await?;
    Ok((StatusCode::CREATED, Json(session)).into_response())
}

/// One session.
#[utoipa::path(
    get,
    path = "/v1/sessions/{ue}",
    params(("ue" = String, Path, description = "Name of the UE")),
    responses((status = 200, body = Session), (status = 404, body = Problem))
)]
async fn session(State(shared): State<Shared>, Path(ue): Path<String>) -> Answer<Session> {
    shared.control.request(|reply| ControlRequest::Session(ue, reply)).await.map(Json)
}

/// Adds a UE, or replaces the one with that name (UPF only). It is kept across restarts. The session
/// continues if key and addresses stay the same.
#[utoipa::path(
    put,
    path = "/v1/sessions/{ue}",
    params(("ue" = String, Path, description = "Name of the UE; that in the body is the same")),
    request_body = UpfUe,
    responses(
        (status = 200, body = Session),
        (status = 201, body = Session),
        (status = 400, body = Problem),
        (status = 405, body = Problem),
        (status = 409, body = Problem)
    )
)]
async fn put_session(
    State(shared): State<Shared>,
    Path(name): Path<String>,
    Body(ue): Body<UpfUe>,
) -> Result<Response, Problem> {
    if ue.name != name {
        return Err(Problem::invalid(format!("the name is \"{name}\" in the path")).field("name"));
    }
    let (session, is_new) = shared.control.request(|reply| ControlRequest::Put(Box::new(ue), reply)).await?;
    let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(session)).into_response())
}

/// Ends the session of a UE and removes the UE (UPF only).
#[utoipa::path(
    delete,
    path = "/v1/sessions/{ue}",
    params(("ue" = String, Path, description = "Name of the UE")),
    responses((status = 204), (status = 404, body = Problem), (status = 405, body = Problem), (status = 409, body = Problem))
)]
async fn delete_session(State(shared): State<Shared>, Path(ue): Path<String>) -> Result<StatusCode, Problem> {
    shared.control.request(|reply| ControlRequest::Delete(ue, reply)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Accepts any handshake time stamp of a UE again (UPF only), after its clock was ahead and has been
/// corrected.
#[utoipa::path(
    post,
    path = "/v1/sessions/{ue}/reset-clock",
    params(("ue" = String, Path, description = "Name of the UE")),
    responses((status = 200, body = Session), (status = 404, body = Problem), (status = 405, body = Problem))
)]
async fn reset_clock(State(shared): State<Shared>, Path(ue): Path<String>) -> Answer<Session> {
    shared.control.request(|reply| ControlRequest::ResetClock(ue, reply)).await.map(Json)
}

/// The paths of one session.
#[utoipa::path(
    get,
    path = "/v1/sessions/{ue}/paths",
    params(("ue" = String, Path, description = "Name of the UE")),
    responses((status = 200, body = PathList), (status = 404, body = Problem))
)]
async fn session_paths(State(shared): State<Shared>, Path(ue): Path<String>) -> Answer<PathList> {
    let session = shared.control.request(|reply| ControlRequest::Session(ue, reply)).await?;
    Ok(Json(PathList { paths: session.paths, uses: session.uses }))
}

/// The paths of the sessions on a page.
#[utoipa::path(get, path = "/v1/paths", params(Page), responses((status = 200, body = PathList)))]
async fn paths(State(shared): State<Shared>, Params(page): Params<Page>) -> Answer<PathList> {
    let (offset, limit) = page.bounds();
    let list = shared.control.request(|reply| ControlRequest::Sessions { offset, limit, reply }).await?;
    let mut all = PathList { paths: Vec::new(), uses: Vec::new() };
    for session in list.sessions {
        all.paths.extend(session.paths);
        all.uses.extend(session.uses);
    }
    Ok(Json(all))
}

/// The rules in force.
#[utoipa::path(get, path = "/v1/rules", responses((status = 200, body = Rules)))]
async fn rules(State(shared): State<Shared>) -> Answer<Rules> {
    shared.control.request(ControlRequest::Rules).await.map(Json)
}

#[derive(Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
struct NewRules {
    /// The new rules, first match first.
    #[schema(value_type = Vec<super::schema::RuleSchema>)]
    rules: Vec<anabranch_steer::Rule>,
}

/// Replaces the agent's rules (UE: its own; UPF: the shared ones) until the next reload. Sessions continue.
#[utoipa::path(
    put,
    path = "/v1/rules",
    request_body = NewRules,
    responses((status = 200, body = Rules), (status = 400, body = Problem))
)]
async fn set_rules(State(shared): State<Shared>, Body(NewRules { rules }): Body<NewRules>) -> Answer<Rules> {
    shared.control.request(|reply| ControlRequest::SetRules(rules, reply)).await.map(Json)
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct Since {
    /// Start after the event with this id (also as header Last-Event-ID); default: with the last 256 events.
    #[serde(default)]
    since: Option<u64>,
}

/// Events as they happen (server-sent events; the data of each is an `Event`).
#[utoipa::path(
    get,
    path = "/v1/events",
    params(Since),
    responses((status = 200, body = Event, content_type = "text/event-stream"))
)]
async fn events(
    State(shared): State<Shared>,
    Params(query): Params<Since>,
    headers: HeaderMap,
) -> Sse<impl Stream<Item = Result<axum::response::sse::Event, Infallible>>> {
    let header = headers.get("last-event-id").and_then(|v| v.to_str().ok()?.parse().ok());
    let (kept, receiver) = shared.events.since(query.since.or(header).unwrap_or(0));
    // A listener that lags behind by more than the channel holds misses events; the ids show the gap.
    let live = BroadcastStream::new(receiver).filter_map(Result::ok);
    let stream = tokio_stream::iter(kept).chain(live).map(|event: Event| {
        let data = serde_json::to_string(&event).unwrap_or_default();
        Ok(axum::response::sse::Event::default().id(event.id.to_string()).event(event.kind).data(data))
    });
    Sse::new(stream).keep_alive(KeepAlive::default())
}

/// Reads the configuration file and the certificates again.
#[utoipa::path(post, path = "/v1/reload", responses((status = 200, body = Reloaded), (status = 400, body = Problem)))]
async fn reload(State(shared): State<Shared>) -> Answer<Reloaded> {
    for tls in shared.certificates.iter() {
        tls.reload().map_err(|error| Problem::invalid(format!("{error:#}")))?;
    }
    shared.control.request(ControlRequest::Reload).await.map(Json)
}

/// Metrics in the Prometheus text format.
#[utoipa::path(get, path = "/metrics", responses((status = 200, body = String, content_type = "application/openmetrics-text")))]
pub async fn metrics(State(shared): State<Shared>) -> Result<Response, Problem> {
    let text = shared.control.request(ControlRequest::Metrics).await?;
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(header::CONTENT_TYPE, kind)], text).into_response())
}
