//! Requests of UEs (USCI, §3.3 of the paper): registration, polling, stream, requests for more capacity,
//! de-registration.

use super::auth::{self, RequestingUe};
use super::engine::UeDocument;
use super::native::UeSlices;
use super::routes::{Body, refused};
use super::{Shared, now_ms};
use crate::runtime::api::{Preconditions, Problem, bearer};
use anabranch_slice::{Manager, Ue, Write};
use axum::Json;
use axum::body::Body as HttpBody;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio_stream::Stream;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// The routes and their OpenAPI description.
pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(me, register, leave)).routes(routes!(stream)).routes(routes!(needs))
}

/// The UE's slices. With the ETag of the last answer in If-None-Match: 304 without a body if nothing has
/// changed.
#[utoipa::path(
    get,
    path = "/v1/me",
    tag = "USCI",
    params(("if-none-match" = Option<String>, Header, description = "ETag of the last answer")),
    responses(
        (status = 200, body = UeSlices),
        (status = 304, description = "As before"),
        (status = 401, body = Problem),
        (status = 403, body = Problem, description = "Not a UE's token"),
        (status = 429, body = Problem)
    )
)]
async fn me(
    RequestingUe(name): RequestingUe,
    State(shared): State<Shared>,
    seen: Preconditions,
) -> Result<Response, Problem> {
    let document = document(&shared, &name)?;
    let etag = HeaderValue::from_str(&document.etag).unwrap_or(HeaderValue::from_static("\"\""));
    if seen.has_it(&document.etag) {
        // The shortest possible answer: without Content-Length, which a 304 does not need.
        let mut response =
            Response::new(HttpBody::from_stream(tokio_stream::empty::<Result<Vec<u8>, Infallible>>()));
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        response.headers_mut().insert(header::ETAG, etag);
        return Ok(response);
    }
    let kind = HeaderValue::from_static("application/json");
    Ok(([(header::ETAG, etag), (header::CONTENT_TYPE, kind)], document.body.clone()).into_response())
}

fn document(shared: &Shared, name: &str) -> Result<Arc<UeDocument>, Problem> {
    shared.engine.document(name).map_err(refused)
}

/// The UE's own state at registration.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
struct Registration {
    /// Identifiers of the slices that the UE believes to hold; those that are not its own are returned.
    slices: Vec<String>,
}

/// Registers the UE.
#[utoipa::path(
    put,
    path = "/v1/me",
    tag = "USCI",
    request_body = Registration,
    responses(
        (status = 200, body = Object, description = "`ttl_s`, and `unknown`: slices that are not its own"),
        (status = 400, body = Problem),
        (status = 403, body = Problem),
        (status = 413, body = Problem),
        (status = 415, body = Problem)
    )
)]
async fn register(
    RequestingUe(name): RequestingUe,
    State(shared): State<Shared>,
    Body(held): Body<Registration>,
) -> Result<Json<Value>, Problem> {
    if held.slices.len() > 64 {
        return Err(Problem::invalid("slices: at most 64").field("slices"));
    }
    let ttl_s = shared.ttl_s;
    let register = |m: &Manager| {
        let ue = m.ue(&name).map_err(refused)?;
        let known = |id: &&String| ue.slices.iter().any(|a| a.slice == **id);
        let unknown: Vec<&String> = held.slices.iter().filter(|id| !known(id)).collect();
        let answer = json!({"ttl_s": ttl_s, "unknown": unknown});
        let ue = Ue { registered_ms: Some(now_ms()), ..ue.clone() };
        Ok((vec![Write::ue(ue)], answer))
    };
    shared.engine.commit(register).await.map(Json)
}

/// De-registers the UE; its slices and its token remain.
#[utoipa::path(delete, path = "/v1/me", tag = "USCI", responses((status = 204), (status = 403, body = Problem)))]
async fn leave(
    RequestingUe(name): RequestingUe,
    State(shared): State<Shared>,
) -> Result<StatusCode, Problem> {
    let leave = |m: &Manager| {
        let ue = Ue { registered_ms: None, ..m.ue(&name).map_err(refused)?.clone() };
        // Growth that it requested is released.
        let mut writes = m.needs_nothing(&name);
        writes.push(Write::ue(ue));
        Ok((writes, ()))
    };
    shared.engine.commit(leave).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Requirements of an application on the UE.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Needs {
    /// The slice that is to carry it.
    slice: String,
    /// Downlink, bit/s.
    #[serde(default)]
    dl_bps: u64,
    /// Uplink, bit/s.
    #[serde(default)]
    ul_bps: u64,
}

/// Requests more capacity: the slice grows within its maximum, the free capacity of the accesses, and the
/// growth permitted per UE. The request expires after `[limits] ue_growth_s` unless it is repeated, and when
/// the UE de-registers.
#[utoipa::path(
    post,
    path = "/v1/me/needs",
    tag = "USCI",
    request_body = Needs,
    responses(
        (status = 200, body = Object, description = "The slice already guarantees as much"),
        (status = 202, body = Object, description = "It grows"),
        (status = 400, body = Problem),
        (status = 403, body = Problem),
        (status = 404, body = Problem, description = "Not a slice of this UE"),
        (status = 409, body = Problem, description = "The slice's maximum or the capacity of an access is too low, or the slice is not running"),
        (status = 413, body = Problem),
        (status = 415, body = Problem)
    )
)]
async fn needs(
    RequestingUe(name): RequestingUe,
    State(shared): State<Shared>,
    Body(needs): Body<Needs>,
) -> Result<(StatusCode, Json<Value>), Problem> {
    const MAX_BPS: u64 = 1_000_000_000_000;
    if needs.dl_bps > MAX_BPS || needs.ul_bps > MAX_BPS {
        return Err(Problem::invalid(format!("dl_bps and ul_bps: at most {MAX_BPS}")));
    }
    let grows = |m: &Manager| {
        let writes = m.grow(&name, &needs.slice, needs.dl_bps, needs.ul_bps, now_ms()).map_err(refused)?;
        let grows = !writes.is_empty();
        Ok((writes, grows))
    };
    let grows = shared.engine.commit(grows).await?;
    let status = if grows { StatusCode::ACCEPTED } else { StatusCode::OK };
    Ok((status, Json(json!({"slice": needs.slice, "grows": grows}))))
}

/// Numbers of open streams: in total, and per UE.
#[derive(Default)]
pub struct Streams(Mutex<(u32, BTreeMap<String, u32>)>);

impl Streams {
    /// Number of open streams.
    pub fn count(&self) -> u32 {
        self.of().0
    }

    fn of(&self) -> MutexGuard<'_, (u32, BTreeMap<String, u32>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a stream of `ue`, within the maximum in total (`most`) and per UE (`of_ue`).
    fn open(self: &Arc<Self>, ue: &str, most: u32, of_ue: u32) -> Result<OpenStream, Problem> {
        let mut guard = self.of();
        let (all, of) = &mut *guard;
        if *all >= most {
            return Err(Problem::unavailable("too many streams are open: poll instead"));
        }
        let own = of.entry(ue.to_owned()).or_default();
        if *own >= of_ue {
            let detail = format!("{own} streams of this UE are open: one is sufficient");
            let remedy = "close one, or poll; [limits] streams_per_ue of the manager is the maximum";
            return Err(Problem::new(StatusCode::TOO_MANY_REQUESTS, detail, remedy));
        }
        *own += 1;
        *all += 1;
        Ok(OpenStream(self.clone(), ue.to_owned()))
    }
}

/// Registration of an open stream, which ends when it is dropped.
struct OpenStream(Arc<Streams>, String);

impl Drop for OpenStream {
    fn drop(&mut self) {
        let mut guard = self.0.of();
        let (all, of) = &mut *guard;
        if let Some(own) = of.get_mut(&self.1) {
            *all -= 1;
            *own -= 1;
            if *own == 0 {
                of.remove(&self.1);
            }
        }
    }
}

/// The UE's slices as they change: server-sent events `slices` whose id is the ETag. The first is sent at
/// once.
#[utoipa::path(
    get,
    path = "/v1/me/stream",
    tag = "USCI",
    responses(
        (status = 200, body = UeSlices, content_type = "text/event-stream"),
        (status = 403, body = Problem),
        (status = 429, body = Problem, description = "Too many streams of this UE"),
        (status = 503, body = Problem, description = "Too many streams")
    )
)]
async fn stream(
    RequestingUe(name): RequestingUe,
    State(shared): State<Shared>,
    headers: HeaderMap,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Problem> {
    let open = shared.streams.open(&name, shared.max_streams, shared.streams_per_ue)?;
    let token = auth::hash(bearer(&headers).unwrap_or_default());
    let (changes, ttl_s) = (shared.engine.changes(), shared.ttl_s);
    let state = (shared, name, token, changes, None::<Arc<UeDocument>>, open);
    let stream =
        futures_util::stream::unfold(state, async |(shared, name, token, mut changes, last, open)| {
            loop {
                changes.borrow_and_update();
                // The stream ends when the UE is removed or gets another token.
                if shared.engine.ue_of(&token).as_ref() != Some(&name) {
                    return None;
                }
                let now = document(&shared, &name).ok()?;
                if last.as_ref().is_none_or(|last| !Arc::ptr_eq(last, &now) && last.etag != now.etag) {
                    let event =
                        Event::default().event("slices").id(now.etag.trim_matches('"')).data(&now.body);
                    return Some((Ok(event), (shared, name, token, changes, Some(now), open)));
                }
                changes.changed().await.ok()?;
            }
        });
    // A UE discards its facts after ttl_s without a message.
    let alive = Duration::from_secs(15).min(Duration::from_millis(u64::from(ttl_s) * 300));
    Ok(Sse::new(stream).keep_alive(KeepAlive::new().interval(alive)))
}
