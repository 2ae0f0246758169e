//! The paths of the interface, and what is said to those that go astray.

use super::{Shared, auth, camara, katana, me, metrics, native};
use crate::api::Problem;
use anabranch_core::slice::Refusal;
use axum::extract::rejection::{BytesRejection, PathRejection, QueryRejection};
use axum::extract::{DefaultBodyLimit, FromRequest, FromRequestParts, Query, Request};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use axum::routing::get;
use axum::{Json, Router, middleware};
use serde::de::DeserializeOwned;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::{Modify, OpenApi};
use utoipa_axum::router::OpenApiRouter;

/// Longest body, bytes.
pub const MAX_BODY: usize = 1 << 20;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "anabranch slice manager",
        description = "Slices: templates, admission, lifecycle, and what each UE is told. Paths below /api are Katana's, those below /v1 our own; the rest are CAMARA's.",
        license(name = "Apache-2.0", identifier = "Apache-2.0")
    ),
    components(schemas(Problem)),
    modifiers(&Bearer)
)]
struct Description;

struct Bearer;

impl Modify for Bearer {
    fn modify(&self, openapi: &mut utoipa::openapi::OpenApi) {
        let scheme = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .description(Some("The operator's token ([api] token_file), or a UE's for /v1/me."))
            .build();
        openapi.components.get_or_insert_default().add_security_scheme("token", SecurityScheme::Http(scheme));
        openapi.security = Some(vec![SecurityRequirement::new("token", Vec::<String>::new())]);
    }
}

fn routes() -> OpenApiRouter<Shared> {
    let mut router = OpenApiRouter::with_openapi(Description::openapi())
        .merge(katana::routes())
        .merge(native::routes())
        .merge(me::routes())
        .merge(metrics::routes())
        .merge(camara::routes());
    complete(router.get_openapi_mut());
    router
}

/// Adds to every operation what any of them may answer, and the type of problems.
fn complete(openapi: &mut utoipa::openapi::OpenApi) {
    let problem = || {
        let schema = utoipa::openapi::Ref::from_schema_name("Problem");
        utoipa::openapi::ContentBuilder::new().schema(Some(schema)).build()
    };
    for item in openapi.paths.paths.values_mut() {
        let operations = [&mut item.get, &mut item.put, &mut item.post, &mut item.delete];
        for operation in operations.into_iter().flatten() {
            let responses = &mut operation.responses.responses;
            for status in ["400", "401", "403", "404", "429", "503"] {
                let status = status.to_owned();
                let any = || utoipa::openapi::ResponseBuilder::new().description("See detail and remedy");
                responses
                    .entry(status)
                    .or_insert_with(|| any().content("application/json", problem()).build().into());
            }
            for (status, response) in responses {
                let utoipa::openapi::RefOr::T(response) = response else { continue };
                if status.starts_with('4') || status.starts_with('5') {
                    // CAMARA's have a form of their own, and may be told of the guard's, too.
                    let camara = response.content.get("application/json").cloned();
                    let own =
                        camara.filter(|c| !serde_json::to_string(c).is_ok_and(|t| t.contains("/Problem")));
                    response.content =
                        [("application/problem+json".to_owned(), problem())].into_iter().collect();
                    response.content.extend(own.map(|c| ("application/json".to_owned(), c)));
                }
            }
        }
    }
}

/// The description as committed in `openapi/slice-manager.json`.
#[cfg(test)]
pub fn description() -> String {
    let mut text = routes().into_openapi().to_pretty_json().unwrap_or_default();
    text.push('\n');
    text
}

/// The whole interface.
pub fn router(shared: Shared) -> Router {
    let (router, description) = routes().split_for_parts();
    router
        .route("/openapi.json", get(async move || Json(description)))
        .fallback(async || {
            Problem::new(StatusCode::NOT_FOUND, "no such path", "see /openapi.json for those there are")
        })
        .method_not_allowed_fallback(async || {
            Problem::new(StatusCode::METHOD_NOT_ALLOWED, "no such method on this path", "see /openapi.json")
        })
        .with_state(shared.clone())
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(middleware::from_fn_with_state(shared, auth::guard))
}

/// A JSON body; what is wrong with it is said as a [`Problem`].
pub struct Body<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = Problem;
    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let kind =
            request.headers().get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
        let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        if kind != "application/json" && !kind.ends_with("+json") {
            let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
            return Err(Problem::new(status, "the body is not JSON", "send content-type: application/json"));
        }
        let bytes = axum::body::Bytes::from_request(request, state).await.map_err(|e: BytesRejection| {
            Problem::new(
                e.status(),
                e.body_text(),
                format!("send at most {MAX_BODY} bytes; nothing has changed"),
            )
        })?;
        let value: T = serde_json::from_slice(&bytes).map_err(|e| {
            let detail = e.to_string();
            let mut problem = Problem::invalid(detail.clone());
            problem.field = detail.split('`').nth(1).map(str::to_owned);
            problem
        })?;
        Ok(Self(value))
    }
}

/// The query; what is wrong with it is said as a [`Problem`].
pub struct Params<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Params<T> {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let query = Query::<T>::from_request_parts(parts, state).await;
        query.map(|Query(value)| Self(value)).map_err(|e: QueryRejection| Problem::invalid(e.body_text()))
    }
}

/// What a path names; what is wrong with it is said as a [`Problem`].
pub struct Path<T>(pub T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Path<T> {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let path = axum::extract::Path::<T>::from_request_parts(parts, state).await;
        path.map(|axum::extract::Path(value)| Self(value))
            .map_err(|e: PathRejection| Problem::invalid(e.body_text()))
    }
}

/// A refusal as a problem.
pub fn refused(refusal: Refusal) -> Problem {
    let detail = refusal.to_string();
    match refusal {
        Refusal::Unknown(what, name) => {
            Problem::not_found(what, &name, "list those there are, and use one of them")
        }
        Refusal::Exists(..) => Problem::conflict(detail, "choose another name, or change that one"),
        Refusal::Shortage(_) => {
            Problem::conflict(detail, "nothing has changed; GET /v1/accesses shows what is left")
        }
        Refusal::State(_) => Problem::conflict(detail, "wait until what is under way has ended"),
        Refusal::Full { .. } => Problem::conflict(detail, "nothing has changed"),
        Refusal::InUse(_) => Problem::conflict(detail, "remove what uses it first"),
        Refusal::Nowhere(_) => Problem::invalid(detail),
    }
}

/// A name that people choose: what URLs and logs can carry.
pub fn check_name(what: &str, name: &str) -> Result<(), Problem> {
    let fits = (1..=64).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.@:".contains(&b));
    if fits {
        return Ok(());
    }
    let detail = format!("{what} \"{name}\": use 1 to 64 letters, digits, and - _ . @ :");
    Err(Problem::invalid(detail).field(what))
}
