//! Listening, and who may come in.

use super::ask::Asker;
use super::events::EventLog;
use super::problem::Problem;
use super::routes::{self, Shared};
use crate::config::{Api, Listen, Metrics};
use crate::taps::Taps;
use anyhow::Context;
use axum::Router;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use std::io::ErrorKind;
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
    server.listen(&api.listen, router).await.context("[api] listen")?;
    if let Some(metrics) = metrics {
        let router = Router::new().route("/metrics", get(routes::metrics)).with_state(shared);
        server.listen(&metrics.listen, router).await.context("[metrics] listen")?;
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
    match token {
        Some(token) => router.layer(middleware::from_fn_with_state(token, guard)),
        None => router,
    }
}

async fn guard(State(token): State<Arc<str>>, request: Request, next: Next) -> Response {
    let given = request.headers().get(header::AUTHORIZATION).and_then(|v| v.to_str().ok());
    if given
        .and_then(|v| v.strip_prefix("Bearer "))
        .is_some_and(|given| same(given.as_bytes(), token.as_bytes()))
    {
        return next.run(request).await;
    }
    let remedy =
        "send \"Authorization: Bearer TOKEN\" with the first line of [api] token_file, or --api-token-file";
    let mut response =
        Problem::new(StatusCode::UNAUTHORIZED, "token missing or wrong", remedy).into_response();
    response.headers_mut().insert(header::WWW_AUTHENTICATE, header::HeaderValue::from_static("Bearer"));
    response
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
        token.len() >= 16,
        "token file {}: the first line must be a token of 16 characters or more, for instance from \
         `head -c 24 /dev/urandom | base64`",
        path.display()
    );
    Ok(token.into())
}

impl Server {
    /// Serves `router` at `at` until dropped.
    pub(crate) async fn listen(&mut self, at: &Listen, router: Router) -> anyhow::Result<()> {
        match at {
            Listen::Off => {}
            Listen::Tcp(address) => {
                let listener = TcpListener::bind(address).await.with_context(|| format!("{address}"))?;
                tracing::info!("listening on http://{address}");
                self.tasks.spawn(async move {
                    if let Err(error) = axum::serve(listener, router).await {
                        tracing::error!("REST interface: {error}");
                    }
                });
            }
            Listen::Unix(path) => {
                let listener = bind_unix(path).with_context(|| format!("unix:{}", path.display()))?;
                tracing::info!("listening on unix:{}", path.display());
                self.sockets.push(path.clone());
                self.tasks.spawn(async move {
                    if let Err(error) = axum::serve(listener, router).await {
                        tracing::error!("REST interface: {error}");
                    }
                });
            }
        }
        Ok(())
    }
}

/// A socket that a program that is gone left behind is replaced; one in use is not.
fn bind_unix(path: &Path) -> anyhow::Result<UnixListener> {
    if let Some(folder) = path.parent()
        && !folder.as_os_str().is_empty()
    {
        std::fs::create_dir_all(folder)?;
    }
    match std::os::unix::net::UnixStream::connect(path) {
        Ok(_) => anyhow::bail!("another program listens there: stop it, or set another path"),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => std::fs::remove_file(path)?,
        Err(_) => {}
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o660))?;
    Ok(listener)
}
