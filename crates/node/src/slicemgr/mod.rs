//! `anabranch slice-manager`: slices over REST, the cells that keep them, and what each UE is told.
//!
//! ```text
//!  operator, Katana's users ─┐                 ┌─ store: SQLite, or PostgreSQL shared with other instances
//!  UEs (poll, stream) ───────┼─ axum ─ engine ─┤
//!  CAMARA applications ──────┘       (core)    └─ southbound: one instance at a time changes cells and UPF
//! ```

mod auth;
mod callbacks;
mod camara;
mod engine;
mod katana;
mod me;
mod metrics;
mod native;
mod policies;
mod routes;
mod southbound;
mod store;
mod worker;

#[cfg(test)]
mod tests;

use crate::agent::service::{Signals, Wish, notify};
use crate::config::{self, Listen, SliceManagerConfig};
use anyhow::Context;
use engine::Engine;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;
use tokio::net::{TcpListener, UnixListener};
use tokio::task::JoinSet;

/// Arguments of `anabranch slice-manager`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
The smallest slice-manager.toml: one cell, its gNB on this machine.
  [[access]]
  name = \"cell-1\"
  downlink_bps = 100_000_000
  uplink_bps = 50_000_000
  gnb = \"unix:/run/anabranch/gnb.sock\"

Then, for instance:
  curl --unix-socket /run/anabranch/slice-manager.sock http://x/api/slice -H 'content-type: application/json' \\
    -d '{\"base_slice_descriptor\": {\"base_slice_des_id\": \"video\", \"delay_tolerance\": true,
         \"network_DL_throughput\": {\"guaranteed\": 30000}}}'

SIGINT and SIGTERM stop it; slices stay as they are.")]
pub struct Args {
    /// Configuration file; packaging/slice-manager.example.toml shows every key.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Only check the file: 0 if it is right, 2 and a sentence if not.
    #[arg(long)]
    check: bool,
    /// The database, instead of what the file says: sqlite:PATH or postgres://USER@HOST/NAME.
    #[arg(long, value_name = "URL")]
    database: Option<String>,
    /// Where it listens, instead of what the file says: unix:PATH or ADDRESS:PORT.
    #[arg(long, value_name = "LISTEN")]
    api: Option<Listen>,
}

/// What handlers share.
#[derive(Clone)]
pub struct Shared {
    engine: Arc<Engine>,
    /// Hash of the operator's token.
    operator: Option<Arc<str>>,
    buckets: Arc<auth::Buckets>,
    callbacks: Arc<callbacks::Callbacks>,
    streams: Arc<AtomicU32>,
    max_streams: u32,
    ttl_s: u32,
}

/// Runs until it is told to stop.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let mut config: SliceManagerConfig = config::load(&args.config)?;
    if let Some(database) = &args.database {
        config.manager.database.clone_from(database);
    }
    if let Some(listen) = &args.api {
        config.api.listen = listen.clone();
    }
    config::Check::check(&config)
        .map_err(|e| config::ConfigError::new(args.config.display().to_string(), e))?;
    if args.check {
        return Ok(());
    }
    // One thread for requests, one for whatever waits behind the database.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(serve(config))
}

async fn serve(config: SliceManagerConfig) -> anyhow::Result<()> {
    let mut signals = Signals::open()?;
    let running = start(&config).await?;
    let listener = listen(&config.api.listen).await?;
    let router = routes::router(running.shared.clone());
    let mut tasks = running.tasks;
    match listener {
        Listening::Tcp(listener) => {
            // The answers are small, and nobody waits for more of them.
            use axum::serve::ListenerExt;
            let listener = listener.tap_io(|stream| drop(stream.set_nodelay(true)));
            tasks.spawn(async move { axum::serve(listener, router).await.context("REST interface") });
        }
        Listening::Unix(listener) => {
            tasks.spawn(async move { axum::serve(listener, router).await.context("REST interface") });
        }
    }
    notify("READY=1");
    let mut watchdog = tokio::time::interval(Duration::from_secs(5));
    let result = loop {
        tokio::select! {
            wish = signals.next() => if wish != Wish::Reload { break Ok(()) } else {
                tracing::warn!("the configuration is read at the start only: restart to change it");
            },
            ended = tasks.join_next() => break match ended {
                Some(Ok(result)) => result,
                Some(Err(error)) => Err(error.into()),
                None => Ok(()),
            },
            _ = watchdog.tick() => notify("WATCHDOG=1"),
        }
    };
    notify("STOPPING=1");
    tasks.shutdown().await;
    if let Listen::Unix(path) = &config.api.listen {
        // Its name must not outlive it; if it is gone, so be it.
        let _ = std::fs::remove_file(path);
    }
    running.shared.engine.store().release(&running.owner).await.ok();
    result
}

/// What runs behind the interface.
pub struct Running {
    shared: Shared,
    tasks: JoinSet<anyhow::Result<()>>,
    owner: String,
}

/// Opens the database and starts what runs behind the interface.
async fn start(config: &SliceManagerConfig) -> anyhow::Result<Running> {
    let inventory = config.inventory().map_err(anyhow::Error::msg)?;
    let operator = config.api.token_file.as_deref().map(read_token).transpose()?;
    let store = store::Store::open(&config.manager.database).await?;
    let engine = Engine::start(store, inventory, config.manager.ttl_s).await?;
    let callbacks = Arc::new(callbacks::Callbacks::new(&config.callbacks)?);
    // One that is started again goes on where it was; two on one machine have names of their own.
    let host = nix::unistd::gethostname().unwrap_or_default();
    let owner = format!("{}/{}", host.to_string_lossy(), config.manager.name);
    let shared = Shared {
        engine: engine.clone(),
        operator: operator.map(|token| auth::hash(&token).into()),
        buckets: Arc::new(auth::Buckets::new(&config.limits)),
        callbacks: callbacks.clone(),
        streams: Arc::default(),
        max_streams: config.limits.streams,
        ttl_s: config.manager.ttl_s,
    };
    let mut tasks = JoinSet::new();
    tasks.spawn(worker::follow(engine.clone()));
    let network = southbound::Network::new(config)?;
    let interval = Duration::from_millis(config.manager.health_interval_ms.into());
    tasks.spawn(worker::southbound(engine.clone(), network, callbacks, owner.clone(), interval));
    Ok(Running { shared, tasks, owner })
}

enum Listening {
    Tcp(TcpListener),
    Unix(UnixListener),
}

async fn listen(at: &Listen) -> anyhow::Result<Listening> {
    match at {
        Listen::Tcp(address) => {
            let listener =
                TcpListener::bind(address).await.with_context(|| format!("[api] listen {address}"))?;
            tracing::info!("listening on http://{}", listener.local_addr()?);
            Ok(Listening::Tcp(listener))
        }
        Listen::Unix(path) => {
            let context = || format!("[api] listen unix:{}", path.display());
            if let Some(folder) = path.parent() {
                std::fs::create_dir_all(folder).with_context(context)?;
            }
            if std::os::unix::net::UnixStream::connect(path).is_ok() {
                anyhow::bail!("{}: another program listens there: stop it, or set another path", context());
            }
            match std::fs::remove_file(path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(error).with_context(context);
                }
                _ => {}
            }
            let listener = UnixListener::bind(path).with_context(context)?;
            use std::os::unix::fs::PermissionsExt;
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o660)).with_context(context)?;
            tracing::info!("listening on unix:{}", path.display());
            Ok(Listening::Unix(listener))
        }
        Listen::Off => anyhow::bail!("[api] listen = \"off\": give unix:PATH or ADDRESS:PORT"),
    }
}

/// The first line of a file, 16 characters or more.
pub fn read_token(path: &Path) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(path).with_context(|| format!("token file {}", path.display()))?;
    let token = text.lines().next().unwrap_or_default().trim();
    anyhow::ensure!(
        token.len() >= 16 && token.bytes().all(|b| b.is_ascii_graphic()),
        "token file {}: the first line must be a token of 16 characters or more, for instance from \
         `head -c 24 /dev/urandom | base64`",
        path.display()
    );
    Ok(token.to_owned())
}

/// Unix milliseconds.
fn now_ms() -> u64 {
    crate::engine::clock::unix_ns() / 1_000_000
}
