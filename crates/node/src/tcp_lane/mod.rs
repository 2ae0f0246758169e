//! The TCP lane (docs/tcp-lane.md): TCP flows of rules with `functionality = "mptcp"` are terminated at the
//! UE and continued at the UPF. Between them, they are Multipath TCP connections with a subflow on each path
//! of the session.
//!
//! ```text
//!  program ─ TCP ─▶ [TPROXY · ue] ═ MPTCP, first bytes: RFC 8803 ═▶ [upf · session's address] ─ TCP ─▶ server
//!                       └─ lane0 ─▶ worker ─▶ path by source address ─▶ worker ─▶ lane0 ─┘
//! ```
//!
//! Packets between the two `lane0` are ordinary inner packets of the session: encrypted if the access is, and
//! accepted only from an authenticated UE. Each end has its lane in a network namespace of its own.

pub mod api;
pub mod config;
pub mod converse;
pub mod ctl;
pub mod flows;
pub mod namespace;
pub mod run;
pub mod ue;
pub mod upf;

pub use flows::{Carrier, Flow, Flows};
pub use namespace::Namespace;
pub use ue::{UeLane, accept as accept_programs};
pub use upf::{UpfLane, accept as accept_ues};

use anyhow::Context;
use socket2::Socket;
use std::sync::Once;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

/// How long connections may take to end with their lane.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);
/// How long their resets take to be read from the lane's device.
const RESET_DELAY: Duration = Duration::from_millis(50);

/// Threads of a lane's own: what it copies is not to wait for control, nor control for it.
pub fn threads(workers: u16) -> anyhow::Result<Threads> {
    let mut builder = Builder::new_multi_thread();
    if workers > 0 {
        builder.worker_threads(workers.into());
    }
    let runtime = builder.enable_all().thread_name("anb-lane").build().context("starting threads")?;
    Ok(Threads(Some(runtime)))
}

/// See [`threads`]; when this is dropped, everything on them ends.
pub struct Threads(Option<Runtime>);

impl Threads {
    /// Handle for starting tasks on them.
    pub fn handle(&self) -> Option<&tokio::runtime::Handle> {
        self.0.as_ref().map(Runtime::handle)
    }

    /// Ends everything on them: connections are reset, and the resets have had time to leave by the lane's device, which must still
    /// be served.
    pub async fn end(mut self) {
        let Some(runtime) = self.0.take() else { return };
        // One that panics has ended, too.
        let _ = tokio::task::spawn_blocking(move || runtime.shutdown_timeout(SHUTDOWN_TIMEOUT)).await;
        tokio::time::sleep(RESET_DELAY).await;
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            // Does not block, because it may be dropped in an asynchronous context.
            runtime.shutdown_background();
        }
    }
}

/// Sets the congestion control of a connection's subflows. Empty: BBR, whose rate does not decrease because
/// of random loss on an access, or the kernel's default if there is no BBR.
fn congestion_control(socket: &Socket, name: &str) -> anyhow::Result<()> {
    static NO_BBR: Once = Once::new();
    if name.is_empty() {
        if let Err(error) = socket.set_tcp_congestion(b"bbr") {
            NO_BBR.call_once(|| {
                tracing::warn!(
                    "the kernel has no BBR for the TCP lane ({error}; modprobe tcp_bbr): an access that loses packets \
                     carries less"
                );
            });
        }
        return Ok(());
    }
    socket.set_tcp_congestion(name.as_bytes()).with_context(|| {
        format!(
            "[tcp_lane] congestion_control = \"{name}\": unknown to the kernel (modprobe tcp_{name}; `sysctl \
             net.ipv4.tcp_available_congestion_control` lists the available ones)"
        )
    })
}
