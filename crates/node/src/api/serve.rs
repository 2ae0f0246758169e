//! Listening, and who may come in.

use super::ask::Asker;
use super::connections::{self, Listener};
use super::events::EventLog;
use super::origin::{self, Tokenless};
use super::problem::Problem;
use super::queries::{self, Queries};
use super::routes::{self, Shared};
use crate::config::{Api, Connections, Listen, Metrics};
use crate::folder;
use crate::taps::Taps;
use anyhow::Context;
use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::net::{TcpListener, UnixListener};
use tokio::task::JoinSet;
use utoipa_axum::router::OpenApiRouter;

/// What listens; stops, and removes its sockets, when dropped.
#[derive(Default)]
pub struct Server {
    tasks: JoinSet<()>,
    sockets: Vec<PathBuf>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.tasks.abort_all();
        for path in &self.sockets {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Starts the interface, and the metrics if asked for.
pub async fn serve(
    api: &Api,
    metrics: Option<&Metrics>,
    asker: Asker,
    events: EventLog,
    taps: Option<Arc<Taps>>,
) -> anyhow::Result<Server> {
    let shared = Shared { asker, events, taps };
    let mut server = Server::default();
    let token = api.token_file.as_deref().map(read_token).transpose()?;
    let router = router(shared.clone(), token);
    server.listen(&api.listen, router, Guarded::of(api)).await.context("[api] listen")?;
    if let Some(metrics) = metrics {
        let router = Router::new().route("/metrics", get(routes::metrics)).with_state(shared);
        let tokenless = Guarded::default();
        server.listen(&metrics.listen, router, tokenless).await.context("[metrics] listen")?;
    }
    Ok(server)
}

/// The whole interface. With a token, every request needs it.
pub fn router(shared: Shared, token: Option<Arc<str>>) -> Router {
    finish(routes::routes(), shared, token)
}

/// Routes, their description at `/openapi.json`, answers to those that go astray, and the guard where there is a token.
pub fn finish<S: Clone + Send + Sync + 'static>(
    routes: OpenApiRouter<S>,
    shared: S,
    token: Option<Arc<str>>,
) -> Router {
    let (router, description) = routes.split_for_parts();
    let router = router.layer(middleware::from_fn_with_state(Queries::of(&description), queries::guard));
    // Every connection has a copy of the router: of the text there is one.
    let description = axum::body::Bytes::from(description.to_json().unwrap_or_default());
    let kind = [(header::CONTENT_TYPE, "application/json")];
    let router = router
        .route("/openapi.json", get(async move || (kind, description)))
        .fallback(async || {
            Problem::new(StatusCode::NOT_FOUND, "no such path", "see /openapi.json for those there are")
        })
        .method_not_allowed_fallback(async || {
            Problem::new(StatusCode::METHOD_NOT_ALLOWED, "no such method on this path", "see /openapi.json")
        })
        .with_state(shared);
    let router = match token {
        Some(token) => router.layer(middleware::from_fn_with_state(token, guard)),
        None => router,
    };
    // Whoever watches over the program needs no token to see that it lives.
    router.route("/healthz", get(async || axum::Json(serde_json::json!({"status": "ok"}))))
}

async fn guard(State(token): State<Arc<str>>, request: Request, next: Next) -> Response {
    if bearer(request.headers()).is_some_and(|given| same(given.as_bytes(), token.as_bytes())) {
        connections::proved(&request);
        return next.run(request).await;
    }
    let remedy =
        "send \"Authorization: Bearer TOKEN\" with the first line of [api] token_file, or --api-token-file";
    let mut response =
        Problem::new(StatusCode::UNAUTHORIZED, "token missing or wrong", remedy).into_response();
    response.headers_mut().insert(header::WWW_AUTHENTICATE, header::HeaderValue::from_static("Bearer"));
    response
}

/// The token of a request (RFC 6750 §2.1); the name of the scheme is in any case (RFC 9110 §11.1).
pub fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim_start_matches(' '))
}

/// Compares in a time that does not depend on where the difference is.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |difference, (x, y)| difference | (x ^ y)) == 0
}

/// The first line of a token file.
pub fn read_token(path: &Path) -> anyhow::Result<Arc<str>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("token file {}", path.display()))?;
    let token = text.lines().next().unwrap_or_default().trim();
    anyhow::ensure!(
        token.len() >= 16 && token.bytes().all(|b| b.is_ascii_graphic()),
        "token file {}: the first line must be a token of 16 characters or more, for instance from \
         `head -c 24 /dev/urandom | base64`",
        path.display()
    );
    Ok(token.into())
}

/// What a listener asks of those who connect.
#[derive(Debug, Clone, Copy, Default)]
pub struct Guarded {
    /// Every request shows a token, or is refused by the router.
    pub by_token: bool,
    /// Whether a TCP listener without token takes requests that change something.
    pub changes_without_token: bool,
    /// How many there may be.
    pub connections: Connections,
}

impl Guarded {
    /// As `[api]` says.
    pub fn of(api: &Api) -> Self {
        Self {
            by_token: api.token_file.is_some(),
            changes_without_token: api.changes_without_token,
            connections: api.connections(),
        }
    }
}

impl Server {
    /// Serves `router` at `at` until dropped; where it is, unless it is off or a Unix socket.
    pub(crate) async fn listen(
        &mut self,
        at: &Listen,
        router: Router,
        guarded: Guarded,
    ) -> anyhow::Result<Option<SocketAddr>> {
        let (listener, router, address) = match at {
            Listen::Off => return Ok(None),
            Listen::Tcp(address) => {
                let listener = TcpListener::bind(address).await.with_context(|| format!("{address}"))?;
                let at = listener.local_addr()?;
                tracing::info!("listening on http://{at}");
                let router = if guarded.by_token {
                    router
                } else {
                    let tokenless = Tokenless { at, changes: guarded.changes_without_token };
                    router.layer(middleware::from_fn_with_state(tokenless, origin::guard))
                };
                (Listener::Tcp(listener), router, Some(at))
            }
            Listen::Unix(path) => {
                let listener = bind_unix(path).with_context(|| format!("unix:{}", path.display()))?;
                tracing::info!("listening on unix:{}", path.display());
                self.sockets.push(path.clone());
                (Listener::Unix(listener), router, None)
            }
        };
        self.tasks.spawn(connections::serve(listener, router, guarded.connections));
        Ok(address)
    }
}

/// A socket that a program that is gone left behind is replaced; one in use is not.
fn bind_unix(path: &Path) -> anyhow::Result<UnixListener> {
    folder::make_for(path)?;
    match std::os::unix::net::UnixStream::connect(path) {
        Ok(_) => anyhow::bail!("another program listens there: stop it, or set another path"),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => std::fs::remove_file(path)?,
        Err(_) => {}
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o660))?;
    Ok(listener)
}
