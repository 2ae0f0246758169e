//! `anabranch slice-manager`: slices over REST, configuration of the cells that enforce them, and
//! notification of UEs.
//!
//! ```text
//!  operator, Katana's users ─┐                 ┌─ store: SQLite, or PostgreSQL shared with other instances
//!  UEs (poll, stream) ───────┼─ axum ─ engine ─┤
//!  CAMARA applications ──────┘       (core)    └─ southbound: one instance at a time changes cells and UPF
//! ```

mod area;
mod auth;
mod callbacks;
mod camara;
mod camara_types;
pub mod config;
mod engine;
mod katana;
mod me;
mod metrics;
mod native;
mod policies;
mod routes;
mod scopes;
mod southbound;
mod store;
mod worker;

#[cfg(test)]
pub use native::shown_ue;

#[cfg(test)]
mod tests;

use crate::runtime::api::{Access, Guarded, Server};
use crate::runtime::config::{Check, ConfigError, Listen, SliceManagerConfig, load};
use crate::runtime::service::{ProcessSignal, Signals, notify};
use crate::runtime::{preflight, run_to_end};
use anyhow::Context;
use engine::Engine;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
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

Create a slice:
  curl --unix-socket /run/anabranch/slice-manager.sock http://x/api/slice \\
    -H 'content-type: application/json' -d '{\"base_slice_descriptor\": {
         \"base_slice_des_id\": \"video\", \"delay_tolerance\": true,
         \"network_DL_throughput\": {\"guaranteed\": 30000}}}'

SIGINT and SIGTERM stop the program; slices stay as they are.")]
pub struct Args {
    /// Configuration file; packaging/slice-manager.example.toml lists every key.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Check the configuration file and exit: 0 if valid, 2 with an error message if not.
    #[arg(long)]
    check: bool,
    /// Database: sqlite:PATH or postgres://USER@HOST/NAME. Overrides the file.
    #[arg(long, value_name = "URL")]
    database: Option<String>,
    /// Address of the REST interface: unix:PATH or ADDRESS:PORT. Overrides the file.
    #[arg(long, value_name = "LISTEN")]
    api: Option<Listen>,
}

/// State shared by the request handlers.
#[derive(Clone)]
pub struct Shared {
    engine: Arc<Engine>,
    /// Principals admitted besides UEs; `None`: every client has the operator role.
    access: Option<Arc<Access>>,
    rate_limiter: Arc<auth::RateLimiter>,
    health: Arc<routes::Health>,
    callbacks: Arc<callbacks::Callbacks>,
    /// Accesses with a known position.
    placed: Arc<[area::LocatedAccess]>,
    streams: Arc<me::Streams>,
    max_streams: u32,
    streams_per_ue: u32,
    ttl_s: u32,
    quota: auth::Quota,
}

/// Runs until a signal.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let mut config: SliceManagerConfig = load(&args.config)?;
    if let Some(database) = &args.database {
        config.manager.database.clone_from(database);
    }
    if let Some(listen) = &args.api {
        config.api.listen = listen.clone();
    }
    let wrong = |error: String| ConfigError::new(args.config.display().to_string(), error);
    Check::check(&config).map_err(wrong)?;
    preflight::slice_manager(
        &args.config,
        args.check,
        &config.api,
        store::file_of(&config.manager.database),
    )?;
    // Tokens and certificate authorities of cells, UPF and event sinks.
    let network = southbound::Network::new(&config).map_err(|e| wrong(format!("{e:#}")))?;
    let callbacks = callbacks::Sender::new(&config.callbacks).map_err(|e| wrong(format!("{e:#}")))?;
    if args.check {
        return Ok(());
    }
    // One thread for requests, one for work that waits for the database.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    run_to_end(runtime, serve(config, network, callbacks))
}

async fn serve(
    config: SliceManagerConfig,
    network: southbound::Network,
    callbacks: callbacks::Sender,
) -> anyhow::Result<()> {
    let mut signals = Signals::open()?;
    let _only = store::lock(&config.manager.database)?;
    let running = start(&config, network, callbacks).await?;
    let router = routes::router(running.shared.clone());
    let mut guarded = Guarded::of(&config.api)?;
    // Streams of UEs do not count towards the limit of connections.
    guarded.connections.all = guarded.connections.all.saturating_add(config.limits.streams);
    let mut server = Server::default();
    server.listen(&config.api.listen, router, guarded).await.context("[api] listen")?;
    let mut tasks = running.tasks;
    notify("READY=1");
    let mut watchdog = tokio::time::interval(Duration::from_secs(5));
    let result = loop {
        tokio::select! {
            signal = signals.next() => if signal != ProcessSignal::Reload { break Ok(()) } else {
                tracing::warn!("of the configuration only certificates and keys are read again: restart to change the rest");
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
    drop(server);
    tasks.shutdown().await;
    running.shared.engine.store().release(&running.owner).await.ok();
    result
}

/// The background tasks of the slice manager.
pub struct Running {
    shared: Shared,
    tasks: JoinSet<anyhow::Result<()>>,
    owner: String,
}

/// Opens the database and starts the background tasks.
async fn start(
    config: &SliceManagerConfig,
    network: southbound::Network,
    callbacks: callbacks::Sender,
) -> anyhow::Result<Running> {
    let inventory = config.inventory().map_err(anyhow::Error::msg)?;
    let access = Access::new(&config.api)?;
    let store = store::Store::open(&config.manager.database).await?;
    let engine = Engine::start(store, inventory, config.limits.growth(), config.manager.ttl_s).await?;
    let callbacks = Arc::new(callbacks::Callbacks::new(callbacks));
    // The name identifies an instance across restarts; two instances on one machine have different names.
    let host = nix::unistd::gethostname().unwrap_or_default();
    let owner = format!("{}/{}", host.to_string_lossy(), config.manager.name);
    let shared = Shared {
        engine: engine.clone(),
        access,
        rate_limiter: Arc::new(auth::RateLimiter::new(&config.limits)),
        health: Arc::default(),
        callbacks: callbacks.clone(),
        placed: area::LocatedAccess::of(&config.access).into(),
        streams: Arc::default(),
        max_streams: config.limits.streams,
        streams_per_ue: config.limits.streams_per_ue,
        ttl_s: config.manager.ttl_s,
        quota: auth::Quota { slices: config.limits.tenant_slices, sessions: config.limits.tenant_sessions },
    };
    let mut tasks = JoinSet::new();
    tasks.spawn(worker::follow(engine.clone()));
    let interval = Duration::from_millis(config.manager.health_interval_ms.into());
    tasks.spawn(worker::southbound(engine.clone(), network, callbacks, owner.clone(), interval));
    Ok(Running { shared, tasks, owner })
}

/// Unix time, milliseconds.
fn now_ms() -> u64 {
    anabranch_engine::clock::unix_ns() / 1_000_000
}
