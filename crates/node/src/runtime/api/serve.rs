//! Listeners of the REST interface, and access control.

use super::super::config::{Api, Connections, Listen, Metrics, warn_if_open};
use super::super::{folder, netctl};
use super::auth::{self, Access, OPERATOR_SCOPE, READER_SCOPE, Role};
use super::connections::{self, Listener};
use super::events::EventLog;
use super::origin::{self, Tokenless};
use super::problem::{NO_SUCH_PATH, Problem};
use super::queries::{self, Queries};
use super::request::{ControlRequest, RequestSender};
use super::roles::Agent;
use super::routes::{self, Shared};
use super::tls::Tls;
use crate::ue::taps::Taps;
use anyhow::Context;
use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::get;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::net::{TcpListener, UnixListener};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use utoipa::openapi::OpenApi;
use utoipa_axum::router::OpenApiRouter;

/// Maximum number of requests that wait for the control loop.
const MAX_WAITING_REQUESTS: usize = 64;

/// The running listeners; when this is dropped, they stop and their sockets are removed.
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

/// Starts the REST interface of an agent and, if configured, the metrics. Also returns the requests to be answered.
pub async fn serve(
    agent: Agent,
    api: &Api,
    metrics: Option<&Metrics>,
    events: EventLog,
    taps: Option<Arc<Taps>>,
) -> anyhow::Result<(Server, mpsc::Receiver<ControlRequest>)> {
    let (sender, requests) = mpsc::channel(MAX_WAITING_REQUESTS);
    let control = RequestSender::new(sender);
    let guarded = Guarded::of(api)?;
    let of_metrics = metrics.map(|m| m.tls.as_ref().map(Tls::new).transpose()).transpose();
    let of_metrics = of_metrics.context("[metrics] tls")?.flatten().map(Arc::new);
    let certificates = guarded.tls.iter().chain(&of_metrics).cloned().collect();
    let shared = Shared { control, events, taps, certificates };
    let mut server = Server::default();
    let access = Access::new(api)?;
    let router = router(agent, shared.clone(), access);
    server.listen(&api.listen, router, guarded).await.context("[api] listen")?;
    if let Some(metrics) = metrics {
        let router = Router::new().route("/metrics", get(routes::metrics)).with_state(shared);
        let tokenless = Guarded { tls: of_metrics, ..Guarded::default() };
        server.listen(&metrics.listen, router, tokenless).await.context("[metrics] listen")?;
    }
    Ok((server, requests))
}

/// The complete router. With `access`, every request needs a token.
pub fn router(agent: Agent, shared: Shared, access: Option<Arc<Access>>) -> Router {
    finish_as(routes::routes(), agent.description(), shared, access)
}

/// Completes routes with their description at `/openapi.json`, answers to unknown paths, and the guard if
/// there is a token.
pub fn finish<S: Clone + Send + Sync + 'static>(
    routes: OpenApiRouter<S>,
    shared: S,
    access: Option<Arc<Access>>,
) -> Router {
    let description = routes.get_openapi().clone();
    finish_as(routes, description, shared, access)
}

/// The same with another description.
fn finish_as<S: Clone + Send + Sync + 'static>(
    routes: OpenApiRouter<S>,
    description: OpenApi,
    shared: S,
    access: Option<Arc<Access>>,
) -> Router {
    let (router, whole) = routes.split_for_parts();
    let router = router.layer(middleware::from_fn_with_state(Queries::of(&whole), queries::guard));
    // Every connection has a copy of the router; the text is shared.
    let description = axum::body::Bytes::from(description.to_json().unwrap_or_default());
    let kind = [(header::CONTENT_TYPE, "application/json")];
    let router = router
        .route("/openapi.json", get(async move || (kind, description)))
        .fallback(async || {
            Problem::new(StatusCode::NOT_FOUND, NO_SUCH_PATH, "see /openapi.json for the existing paths")
        })
        .method_not_allowed_fallback(async || {
            Problem::new(StatusCode::METHOD_NOT_ALLOWED, "no such method on this path", "see /openapi.json")
        })
        .with_state(shared);
    let router = match access {
        Some(access) => router.layer(middleware::from_fn_with_state(access, guard)),
        None => router,
    };
    // Health checks need no token.
    router.route("/healthz", get(async || axum::Json(serde_json::json!({"status": "ok"}))))
}

async fn guard(State(access): State<Arc<Access>>, request: Request, next: Next) -> Response {
    let caller = match access.check(bearer(request.headers())).await {
        Ok(caller) => caller,
        Err(refused) => {
            let remedy = "send \"Authorization: Bearer TOKEN\" with the first line of [api] token_file, or \
                          --api-token-file, or one of the authorization server in [api] oauth";
            return refused.response(remedy);
        }
    };
    connections::proved(&request);
    let reads = [Method::GET, Method::HEAD].contains(request.method());
    match &caller.role {
        Role::Operator => {}
        Role::Reader if reads => {}
        Role::Reader => return auth::insufficient("a reader cannot change anything", &[OPERATOR_SCOPE]),
        Role::Tenant(_) => {
            let scopes: &[&str] = if reads { &[READER_SCOPE, OPERATOR_SCOPE] } else { &[OPERATOR_SCOPE] };
            return auth::insufficient("no resource here belongs to a tenant", scopes);
        }
    }
    auth::until(next.run(request).await, &caller)
}

/// The bearer token of a request (RFC 6750 §2.1); the name of the scheme is case-insensitive (RFC 9110
/// §11.1).
pub fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim_start_matches(' '))
}

/// The first line of a token file.
pub fn read_token(path: &Path) -> anyhow::Result<Arc<str>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("token file {}", path.display()))?;
    warn_if_open("token file", path);
    let token = text.lines().next().unwrap_or_default().trim();
    anyhow::ensure!(
        token.len() >= 16 && token.bytes().all(|b| b.is_ascii_graphic()),
        "token file {}: the first line must be a token of 16 characters or more, without spaces: for [api] a new one, \
         for instance from `head -c 24 /dev/urandom | base64`, otherwise the one that the other program issued or accepts",
        path.display()
    );
    Ok(token.into())
}

/// The token that this program presents to another one: read from a file, and read again when it is refused.
pub struct TokenFile {
    path: PathBuf,
    token: Mutex<Arc<str>>,
}

impl TokenFile {
    /// Reads the file.
    ///
    /// # Errors
    /// The file has no token.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        Ok(Self { path: path.to_owned(), token: Mutex::new(read_token(path)?) })
    }

    /// The current token.
    pub fn token(&self) -> Arc<str> {
        self.held().clone()
    }

    /// Reads the file again after a refusal. If the file has no token, the previous one stays in use.
    pub fn read_again(&self) -> Arc<str> {
        if let Ok(token) = read_token(&self.path) {
            *self.held() = token;
        }
        self.token()
    }

    fn held(&self) -> MutexGuard<'_, Arc<str>> {
        self.token.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Access control of a listener.
#[derive(Debug, Clone, Default)]
pub struct Guarded {
    /// Every request needs a token; the router checks it.
    pub by_token: bool,
    /// Whether a TCP listener without a token accepts requests that change something.
    pub changes_without_token: bool,
    /// Limits of the connections.
    pub connections: Connections,
    /// The listener's certificate and key; not used with a Unix socket.
    pub tls: Option<Arc<Tls>>,
}

impl Guarded {
    /// The access control that `[api]` configures.
    ///
    /// # Errors
    /// The certificate or the key cannot be used.
    pub fn of(api: &Api) -> anyhow::Result<Self> {
        let tls = api.tls.as_ref().map(Tls::new).transpose().context("[api] tls")?;
        Ok(Self {
            by_token: api.requires_token(),
            changes_without_token: api.changes_without_token,
            connections: api.connections(),
            tls: tls.map(Arc::new),
        })
    }
}

impl Server {
    /// Serves `router` at `at` until dropped. Returns the address, unless the listener is off or a Unix
    /// socket.
    pub(crate) async fn listen(
        &mut self,
        at: &Listen,
        router: Router,
        guarded: Guarded,
    ) -> anyhow::Result<Option<SocketAddr>> {
        let (listener, router, address) = match at {
            Listen::Off => return Ok(None),
            Listen::Tcp(address) => {
                let listen = || {
                    let listener = std::net::TcpListener::bind(address)?;
                    listener.set_nonblocking(true)?;
                    TcpListener::from_std(listener)
                };
                let listener = netctl::bind_when_free(listen).with_context(|| format!("{address}"))?;
                let at = listener.local_addr()?;
                let scheme = if guarded.tls.is_some() { "https" } else { "http" };
                tracing::info!("listening on {scheme}://{at}");
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
        let tls = guarded.tls.filter(|_| matches!(listener, Listener::Tcp(_)));
        if let Some(tls) = tls.clone() {
            let mut hangup = signal(SignalKind::hangup()).context("taking over signals")?;
            self.tasks.spawn(async move {
                while hangup.recv().await.is_some() {
                    match tls.reload() {
                        Ok(()) => tracing::info!("certificate read again"),
                        Err(error) => tracing::error!("reload: {error:#}; the old certificate stays"),
                    }
                }
            });
        }
        self.tasks.spawn(connections::serve(listener, router, guarded.connections, tls));
        Ok(address)
    }
}

/// Binds a Unix socket. A stale socket of a program that has ended is replaced; a socket in use is an error.
fn bind_unix(path: &Path) -> anyhow::Result<UnixListener> {
    folder::make_for(path)?;
    if folder::socket_in_use(path)? {
        anyhow::bail!("another program listens there: stop it, or set another path");
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o660))?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_again_and_an_invalid_one_is_ignored() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(TokenFile::read(file.path()).is_err());
        std::fs::write(file.path(), "correct-horse-battery-staple\n").unwrap();
        let token = TokenFile::read(file.path()).unwrap();
        for (text, expected) in [
            ("another-horse-battery-staple\nsecond line\n", "another-horse-battery-staple"),
            ("", "another-horse-battery-staple"),
            ("short", "another-horse-battery-staple"),
            ("a third horse has spaces in it", "another-horse-battery-staple"),
            ("  correct-horse-battery-staple  ", "correct-horse-battery-staple"),
        ] {
            std::fs::write(file.path(), text).unwrap();
            token.read_again();
            assert_eq!(&*token.token(), expected, "{text:?}");
        }
        std::fs::remove_file(file.path()).unwrap();
        token.read_again();
        assert_eq!(&*token.token(), "correct-horse-battery-staple");
    }
}
