//! All routes of the REST interface, common extractors and refusals.

use super::{Shared, auth, camara, katana, me, metrics, native, policies, scopes};
use crate::runtime::api::NO_SUCH_PATH;
pub use crate::runtime::api::extract::{Params, Path};
use crate::runtime::api::extract::{check_keys, check_kind, complete};
use crate::runtime::api::problem::{Problem, field_in};
use crate::runtime::api::queries::{self, Queries};
use anabranch_slice::Refusal;
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, FromRequest, Request, State};
use axum::http::{StatusCode, header};
use axum::routing::get;
use axum::{Json, Router, middleware};
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};
use std::time::{Duration, Instant};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::{Modify, OpenApi};
use utoipa_axum::router::OpenApiRouter;

/// Maximum length of a body, bytes.
pub const MAX_BODY: usize = 1 << 20;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "anabranch slice manager",
        description = "Slices: templates, admission, lifecycle and notification of UEs. Paths below /api are compatible with Katana, paths below /v1 are native; the others are CAMARA's.",
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
            .description(Some(
                "A fixed token ([api] token_file, tokens), a JWT access token of the server in [api] oauth with the scopes \
                 of x-scopes, or a UE's token for /v1/me.",
            ))
            .build();
        openapi.components.get_or_insert_default().add_security_scheme("token", SecurityScheme::Http(scheme));
        openapi.security = Some(vec![SecurityRequirement::new("token", Vec::<String>::new())]);
    }
}

fn routes() -> OpenApiRouter<Shared> {
    let mut router = OpenApiRouter::with_openapi(Description::openapi())
        .merge(katana::routes())
        .merge(native::routes())
        .merge(policies::routes())
        .merge(me::routes())
        .merge(metrics::routes())
        .merge(camara::routes());
    scopes::describe(router.get_openapi_mut());
    complete(router.get_openapi_mut(), &["400", "401", "403", "404", "408", "429", "503"], &[]);
    camara::describe(router.get_openapi_mut());
    router
}

/// The OpenAPI description as committed in `openapi/slice-manager.json`.
#[cfg(test)]
pub fn description() -> String {
    crate::testing::description(routes())
}

/// The complete router.
pub fn router(shared: Shared) -> Router {
    let (router, description) = routes().split_for_parts();
    let router = router.layer(middleware::from_fn_with_state(Queries::of(&description), queries::guard));
    // Every connection has a copy of the router; the text is shared.
    let description = axum::body::Bytes::from(description.to_json().unwrap_or_default());
    let kind = [(header::CONTENT_TYPE, "application/json")];
    router
        .route("/openapi.json", get(async move || (kind, description)))
        .fallback(async || {
            Problem::new(StatusCode::NOT_FOUND, NO_SUCH_PATH, "see /openapi.json for the existing paths")
        })
        .method_not_allowed_fallback(async || {
            Problem::new(StatusCode::METHOD_NOT_ALLOWED, "no such method on this path", "see /openapi.json")
        })
        .with_state(shared.clone())
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(middleware::from_fn_with_state(shared.clone(), auth::guard))
        .layer(middleware::from_fn(camara::shaped))
        .route("/healthz", get(healthz).with_state(shared))
}

/// Health, without a token: 200, or 503 while the database does not answer, or cannot store changes.
async fn healthz(State(shared): State<Shared>) -> Result<Json<Value>, Problem> {
    let asked = async {
        match tokio::time::timeout(Duration::from_secs(2), shared.engine.sync()).await {
            Ok(Ok(())) => shared.engine.write_failure().map_or(Ok(()), |why| Err(format!("database: {why}"))),
            Ok(Err(error)) => Err(format!("database: {error:#}")),
            Err(_) => Err("the database does not answer".to_owned()),
        }
    };
    let health = shared.health.of(asked).await;
    health.map(|()| Json(serde_json::json!({"status": "ok"}))).map_err(Problem::unavailable)
}

/// Cached health of the database. Anybody may request it, so the database is checked at most once per second.
#[derive(Default)]
pub struct Health(tokio::sync::Mutex<Option<(Instant, Result<(), String>)>>);

impl Health {
    /// The cached health, or the result of `asked`. Concurrent requests wait for the same result.
    async fn of(&self, asked: impl Future<Output = Result<(), String>>) -> Result<(), String> {
        let mut known = self.0.lock().await;
        if let Some((at, health)) = &*known
            && at.elapsed() < Duration::from_secs(1)
        {
            return health.clone();
        }
        let health = asked.await;
        *known = Some((Instant::now(), health.clone()));
        health
    }
}

/// Extractor of a JSON body; errors are reported as a [`Problem`].
pub struct Body<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = Problem;
    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        check_kind(&request)?;
        let bytes = axum::body::Bytes::from_request(request, state).await.map_err(|e: BytesRejection| {
            Problem::new(
                e.status(),
                e.body_text(),
                format!("send at most {MAX_BODY} bytes; nothing has changed"),
            )
        })?;
        // serde also accepts a list for a struct (its fields in order).
        if bytes.trim_ascii_start().first() == Some(&b'[') {
            return Err(Problem::invalid("the body must be an object"));
        }
        let refuse = |detail: String| {
            let field = field_in(&detail);
            Problem { field, ..Problem::invalid(detail) }
        };
        check_keys(&bytes).map_err(refuse)?;
        Json::from_bytes(&bytes).map(|Json(value)| Self(value)).map_err(|e| refuse(e.body_text()))
    }
}

/// Deserialises an object within a body; refuses a list, which serde would accept for a struct.
pub fn object<'de, D: Deserializer<'de>, T: DeserializeOwned>(deserializer: D) -> Result<T, D::Error> {
    let object = Map::<String, Value>::deserialize(deserializer)?;
    T::deserialize(Value::Object(object)).map_err(D::Error::custom)
}

/// The same for a member that may be null.
pub fn object_or_null<'de, D: Deserializer<'de>, T: DeserializeOwned>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    let object = Option::<Map<String, Value>>::deserialize(deserializer)?;
    object.map(|object| T::deserialize(Value::Object(object)).map_err(D::Error::custom)).transpose()
}

/// Converts a refusal into a problem document.
pub fn refused(refusal: Refusal) -> Problem {
    let detail = refusal.to_string();
    match refusal {
        Refusal::Unknown(what, name) => Problem::not_found(what, &name, "list them, and use one of them"),
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

/// Validates a name chosen by users, which appears in URLs and logs.
pub fn check_name(what: &str, name: &str) -> Result<(), Problem> {
    // A path segment of dots alone is removed from URLs: "." and ".." cannot be names (RFC 3986 §5.2.4).
    let fits = (1..=64).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.@:+".contains(&b))
        && name.bytes().any(|b| b != b'.');
    if fits {
        return Ok(());
    }
    let detail =
        format!("{what} \"{name}\": use 1 to 64 letters, digits, and - _ . @ : +, and not dots alone");
    Err(Problem::invalid(detail).field(what))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn a_name_of_dots_alone_is_refused() {
        for (name, fits) in [
            (".", false),
            ("..", false),
            ("...", false),
            ("", false),
            ("a/b", false),
            (".a", true),
            ("-.-", true),
        ] {
            assert_eq!(check_name("ue", name).is_ok(), fits, "{name}");
        }
    }

    #[tokio::test]
    async fn concurrent_health_requests_query_the_database_once() {
        let (health, looks) = (Health::default(), AtomicU32::new(0));
        let look = async || {
            looks.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(50)).await;
            Err("gone".to_owned())
        };
        let all = futures_util::future::join_all((0..200).map(|_| health.of(look()))).await;
        assert!(all.iter().all(|said| *said == Err("gone".to_owned())));
        assert_eq!(looks.load(Ordering::Relaxed), 1);
        // A client that disconnects while waiting does not block later requests.
        let health = Health::default();
        assert!(tokio::time::timeout(Duration::from_millis(1), health.of(look())).await.is_err());
        assert_eq!(health.of(async { Ok(()) }).await, Ok(()));
    }
}
