//! What a UE asks (its USCI, §3.3 of the paper): register, poll or stream, ask for more, de-register.

use super::auth::{self, Me};
use super::engine::UeDocument;
use super::native::ViewSchema;
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

/// The routes and their description.
pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(me, register, leave)).routes(routes!(stream)).routes(routes!(needs))
}

/// The UE's slices. With the ETag of the last answer in If-None-Match: 304 and no body where nothing has changed.
#[utoipa::path(
    get,
    path = "/v1/me",
    tag = "USCI",
    params(("if-none-match" = Option<String>, Header, description = "ETag of the last answer")),
    responses(
        (status = 200, body = ViewSchema),
        (status = 304, description = "As before"),
        (status = 401, body = Problem),
        (status = 403, body = Problem, description = "Not a UE's token"),
        (status = 429, body = Problem)
    )
)]
async fn me(Me(name): Me, State(shared): State<Shared>, seen: Preconditions) -> Result<Response, Problem> {
    let told = told(&shared, &name)?;
    let etag = HeaderValue::from_str(&told.etag).unwrap_or(HeaderValue::from_static("\"\""));
    if seen.has_it(&told.etag) {
        // As short as can be: without a length, which 304 has no use for.
        let mut response =
            Response::new(HttpBody::from_stream(tokio_stream::empty::<Result<Vec<u8>, Infallible>>()));
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        response.headers_mut().insert(header::ETAG, etag);
        return Ok(response);
    }
    let kind = HeaderValue::from_static("application/json");
    Ok(([(header::ETAG, etag), (header::CONTENT_TYPE, kind)], told.body.clone()).into_response())
}

fn told(shared: &Shared, name: &str) -> Result<Arc<UeDocument>, Problem> {
    shared.engine.told(name).map_err(refused)
}

/// What a UE says of itself.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
struct Registration {
    /// The slices it believes to hold, by identifier; those that are not its own are told back.
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
    Me(name): Me,
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

/// De-registers the UE; its slices and its token stay.
#[utoipa::path(delete, path = "/v1/me", tag = "USCI", responses((status = 204), (status = 403, body = Problem)))]
async fn leave(Me(name): Me, State(shared): State<Shared>) -> Result<StatusCode, Problem> {
    let leave = |m: &Manager| {
        let ue = Ue { registered_ms: None, ..m.ue(&name).map_err(refused)?.clone() };
        // What it needed is given back.
        let mut writes = m.needs_nothing(&name);
        writes.push(Write::ue(ue));
        Ok((writes, ()))
    };
    shared.engine.commit(leave).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// What an application of the UE needs.
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

/// Asks for more: the slice grows within its maximum, what the accesses have left, and what one UE may have slices grow by.
/// That counts for `[limits] ue_growth_s` unless it is asked for again, and until the UE leaves.
#[utoipa::path(
    post,
    path = "/v1/me/needs",
    tag = "USCI",
    request_body = Needs,
    responses(
        (status = 200, body = Object, description = "It promises as much already"),
        (status = 202, body = Object, description = "It grows"),
        (status = 400, body = Problem),
        (status = 403, body = Problem),
        (status = 404, body = Problem, description = "No slice of this UE"),
        (status = 409, body = Problem, description = "Its maximum, or an access, has too little; or it is not running"),
        (status = 413, body = Problem),
        (status = 415, body = Problem)
    )
)]
async fn needs(
    Me(name): Me,
    State(shared): State<Shared>,
    Body(needs): Body<Needs>,
) -> Result<(StatusCode, Json<Value>), Problem> {
    const MOST: u64 = 1_000_000_000_000;
    if needs.dl_bps > MOST || needs.ul_bps > MOST {
        return Err(Problem::invalid(format!("dl_bps and ul_bps: at most {MOST}")));
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

/// Streams that are open: how many, and of each UE.
#[derive(Default)]
pub struct Streams(Mutex<(u32, BTreeMap<String, u32>)>);

impl Streams {
    /// How many there are.
    pub fn count(&self) -> u32 {
        self.of().0
    }

    fn of(&self) -> MutexGuard<'_, (u32, BTreeMap<String, u32>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more, if there may be: of all, and of one UE.
    fn open(self: &Arc<Self>, ue: &str, most: u32, of_ue: u32) -> Result<Open, Problem> {
        let mut guard = self.of();
        let (all, of) = &mut *guard;
        if *all >= most {
            return Err(Problem::unavailable("too many streams are open: poll instead"));
        }
        let own = of.entry(ue.to_owned()).or_default();
        if *own >= of_ue {
            let detail = format!("{own} streams of this UE are open: one tells everything");
            let remedy =
                "close one, or poll; [limits] streams_per_ue of the manager says how many there may be";
            return Err(Problem::new(StatusCode::TOO_MANY_REQUESTS, detail, remedy));
        }
        *own += 1;
        *all += 1;
        Ok(Open(self.clone(), ue.to_owned()))
    }
}

/// An open stream, for as long as it lives.
struct Open(Arc<Streams>, String);

impl Drop for Open {
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

/// The same as it changes: server-sent events `slices`, whose id is the ETag. The first comes at once.
#[utoipa::path(
    get,
    path = "/v1/me/stream",
    tag = "USCI",
    responses(
        (status = 200, body = ViewSchema, content_type = "text/event-stream"),
        (status = 403, body = Problem),
        (status = 429, body = Problem, description = "Too many streams of this UE"),
        (status = 503, body = Problem, description = "Too many streams")
    )
)]
async fn stream(
    Me(name): Me,
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
                // Who was removed, or got another token, is told nothing more.
                if shared.engine.ue_of(&token).as_ref() != Some(&name) {
                    return None;
                }
                let now = told(&shared, &name).ok()?;
                if last.as_ref().is_none_or(|last| !Arc::ptr_eq(last, &now) && last.etag != now.etag) {
                    let event =
                        Event::default().event("slices").id(now.etag.trim_matches('"')).data(&now.body);
                    return Some((Ok(event), (shared, name, token, changes, Some(now), open)));
                }
                changes.changed().await.ok()?;
            }
        });
    // A UE that hears nothing for ttl_s forgets.
    let alive = Duration::from_secs(15).min(Duration::from_millis(u64::from(ttl_s) * 300));
    Ok(Sse::new(stream).keep_alive(KeepAlive::new().interval(alive)))
}
