//! Interface to the service manager and the terminal: signals and notifications.

use super::api::{Problem, Reloaded};
use anyhow::Context;
use std::os::unix::net::UnixDatagram;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The request of a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessSignal {
    /// SIGINT or SIGTERM.
    Stop,
    /// SIGHUP.
    Reload,
    /// SIGUSR1: stop, because a successor starts at once.
    HandOver,
}

/// The handled signals of this process.
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
    user: Signal,
}

impl Signals {
    /// Installs the handlers.
    pub fn open() -> anyhow::Result<Self> {
        let open = |kind| signal(kind).context("taking over signals");
        Ok(Self {
            interrupt: open(SignalKind::interrupt())?,
            terminate: open(SignalKind::terminate())?,
            hangup: open(SignalKind::hangup())?,
            user: open(SignalKind::user_defined1())?,
        })
    }

    /// Waits for the next signal.
    pub async fn next(&mut self) -> ProcessSignal {
        tokio::select! {
            _ = self.interrupt.recv() => ProcessSignal::Stop,
            _ = self.terminate.recv() => ProcessSignal::Stop,
            _ = self.hangup.recv() => ProcessSignal::Reload,
            _ = self.user.recv() => ProcessSignal::HandOver,
        }
    }
}

/// Runs a reload with notifications of systemd before and after. An error is logged; the program continues
/// unchanged.
pub async fn reloading(reload: impl Future<Output = Result<Reloaded, Problem>>) {
    notify("RELOADING=1");
    if let Err(problem) = reload.await {
        tracing::error!("reload: {}; nothing has changed", problem.detail);
    }
    notify("READY=1");
}

/// Notifies systemd (sd_notify(3)), if it expects that, of `READY=1`, `RELOADING=1`, `STOPPING=1` or
/// `WATCHDOG=1`. Abstract sockets ("@…") are used by systemd for user services in containers.
pub fn notify(state: &str) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let send = || -> std::io::Result<()> {
        use std::os::linux::net::SocketAddrExt;
        use std::os::unix::ffi::OsStrExt;
        let address = match path.as_bytes() {
            [b'@', name @ ..] => std::os::unix::net::SocketAddr::from_abstract_name(name)?,
            _ => std::os::unix::net::SocketAddr::from_pathname(&path)?,
        };
        UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address).map(drop)
    };
    if let Err(error) = send() {
        tracing::debug!("NOTIFY_SOCKET: {error}");
    }
}

#[cfg(test)]
mod tests {
    /// In a biased select, branches before the signals would delay them as long as they are ready.
    #[test]
    fn signals_are_first_in_every_biased_select() {
        let agents = [
            ("gnb", include_str!("../gnb/mod.rs")),
            ("lwip", include_str!("../lwip/mod.rs")),
            ("proxy", include_str!("../proxy/run/mod.rs")),
            ("ue", include_str!("../ue/run.rs")),
            ("upf", include_str!("../upf/run.rs")),
        ];
        for (agent, source) in agents {
            assert!(source.contains("signals.next()"), "{agent}");
            for ordered in source.split("biased;").skip(1) {
                assert!(
                    ordered.trim_start().starts_with("signal = signals.next()"),
                    "{agent}: {ordered:.120}"
                );
            }
        }
    }
}
