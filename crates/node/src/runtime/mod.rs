//! The control plane of `anabranch ue`, `upf`, `gnb`, `lwip` and `proxy`: one thread that never touches a user's packet.
//!
//! ```text
//!  signals ─┐                       orders ┌──────────┐
//!  REST ────┼──▶ control loop ────────────▶│ worker 0 │   (crate engine; one per core)
//!  netlink ─┘     │       ▲                │ worker … │
//!                 ▼       └──── events ────└──────────┘
//!              netctl (addresses, routes, NAT; undone at the end)
//! ```

pub mod api;
pub mod config;
pub mod device;
pub mod folder;
pub mod interfaces;
pub mod metrics;
pub mod netctl;
pub mod preflight;
pub mod race;
pub mod relay;
pub mod service;
pub mod state_file;
pub mod times;
pub mod trouble;
pub mod views;
pub mod why;

use crate::runtime::config::{Api, ConfigError, Listen, Metrics};
use std::path::PathBuf;
use std::time::Duration;
use tokio::runtime::Runtime;

#[derive(Debug, Clone, clap::Args)]
pub struct Common {
    /// Configuration file; packaging/*.example.toml lists every key.
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// Check the configuration file and the keys, interfaces and free ports that it needs on this machine, then exit: 0 if
    /// valid, 2 with an error message if not.
    #[arg(long)]
    pub check: bool,
    /// Address of the REST interface: unix:PATH, ADDRESS:PORT or off. Overrides the file.
    #[arg(long, value_name = "LISTEN")]
    api: Option<Listen>,
    /// Address for Prometheus metrics. Overrides the file.
    #[arg(long, value_name = "LISTEN")]
    metrics: Option<Listen>,
}

impl Common {
    /// Applies the flags, which override the file.
    pub fn win(&self, api: &mut Api, metrics: &mut Option<Metrics>) -> Result<(), ConfigError> {
        if let Some(listen) = &self.api {
            api.listen = listen.clone();
            api.check().map_err(|e| ConfigError::new("--api", e))?;
        }
        if let Some(listen) = &self.metrics {
            let given = metrics.take();
            let tls = given.as_ref().and_then(|m| m.tls.clone());
            let without_tls = given.is_some_and(|m| m.without_tls);
            *metrics = Some(Metrics { listen: listen.clone(), tls, without_tls });
            Metrics::check(metrics.as_ref()).map_err(|e| ConfigError::new("--metrics", e))?;
        }
        Ok(())
    }
}

/// Whether an error is caused by the configuration.
pub fn is_config_error(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| cause.is::<ConfigError>())
}

pub fn current_thread() -> anyhow::Result<Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

/// Longest wait at exit for threads that write files or query name servers.
const LAST_WAIT: Duration = Duration::from_secs(2);

/// Runs `body` to its end, then stops the runtime within [`LAST_WAIT`]: a name server that does not answer does not delay
/// the exit.
pub fn run_to_end<T>(runtime: Runtime, body: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let result = runtime.block_on(body);
    runtime.shutdown_timeout(LAST_WAIT);
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn blocked_threads_do_not_delay_the_exit() {
        let begun = Instant::now();
        let done = run_to_end(current_thread().unwrap(), async {
            // Like a name server that does not answer.
            tokio::task::spawn_blocking(|| std::thread::sleep(Duration::from_secs(60)));
            tokio::task::yield_now().await;
            anyhow::Ok(7)
        });
        assert_eq!(done.unwrap(), 7);
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    }
}
