//! The programs in `bpf/`: congestion controllers that use telemetry, the source and the return path of telemetry, and others.
//!
//! ```text
//!  Controllers   struct_ops: int_cubic_l1, int_cubic_l2, int_cubic_ss, int_rate      ┐ share the state of each socket
//!  Feedback      sockops on a cgroup: traces in, reports out on ACKs, reports in      ┘ (the map ab_sockets)
//!  InitialWindows  sockops on a cgroup: initial window of connections by mark
//!  Source        tcx egress on an interface: inserts empty traces into TCP over IPv6
//!  FastPath      tcx on the inner interface and the accesses: packets of the plain form on a decided path
//!  Trace         the kernel's TCP trace points: changes of windows, and losses
//!  PathsMap      a monitor's paths, in memory readable by programs and processes
//! ```
//!
//! **No persistent state.** Everything is held by file descriptors of this process, and nothing is pinned: when a value is dropped,
//! or the process is killed, the kernel detaches its programs. A connection with one of our controllers keeps it until it ends.
//!
//! **Upgrades are seamless.** Loading a controller that is already loaded replaces it ([`Controllers::load`]): new connections use
//! the new version, open ones keep theirs, and both receive reports, because they share the sockets' state.
//!
//! The registration of a controller is global: its name is visible in every network namespace. It is used only by sockets that
//! select it by name (`TCP_CONGESTION`, `congctl` of a route, a sysctl of a namespace).

mod capabilities;
mod controllers;
mod fast_path;
mod feedback;
mod inspect;
mod mapped;
mod object;
mod paths;
mod replace;
mod sockets;
mod source;
#[cfg(test)]
mod tests;
mod trace;
mod window;

pub use controllers::{Controllers, LOADABLE, available};
pub use fast_path::{FastCounters, FastFlow, FastPath, FastPathConfig, FastTunnel, MOST_SLOTS};
pub use feedback::{Feedback, FeedbackConfig, ReportKey};
pub use inspect::{holders, registered, shown};
pub use object::Counters;
pub use paths::{PATH_NODES, PathsMap, PublishedPath, published};
pub use sockets::{SocketState, sockets};
pub use source::{MOST_NODES, MOST_NODES_DETAIL, Source, SourceConfig, trace_bytes};
pub use trace::{Trace, TraceEvent, TraceFilter, TraceKind};
pub use window::{InitialWindows, MOST_WINDOWS, WindowCounters};

use std::path::Path;

/// Why a kernel program cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BpfError {
    /// The machine or the user lacks support or permission.
    #[error("kernel programs cannot run here: {0}")]
    Unsupported(String),
    /// The user may not read programs and maps of other processes.
    #[error("what is at work on this machine cannot be seen: {0} is needed")]
    Unseen(&'static str),
    /// The kernel refused.
    #[error("{what}: {source}")]
    Kernel {
        /// The operation.
        what: String,
        /// The error of libbpf.
        source: libbpf_rs::Error,
    },
    /// A controller with that name is registered by other means than a replaceable link.
    #[error("\"{0}\" is registered already, and not by anabranch; take that one away first")]
    Registered(&'static str),
    /// There is no kernel program with that name.
    #[error("{0} is not one of the kernel's; there are: {names}", names = loadable())]
    NotLoadable(anabranch_cc::Algorithm),
    /// A cgroup or interface does not exist.
    #[error("{what}: {source}")]
    Io {
        /// The operation.
        what: String,
        /// The error of the operating system.
        source: std::io::Error,
    },
}

fn loadable() -> String {
    LOADABLE.map(anabranch_cc::Algorithm::name).join(", ")
}

/// Adds the operation to an error.
fn tried<T>(what: impl Into<String>, result: libbpf_rs::Result<T>) -> Result<T, BpfError> {
    result.map_err(|source| BpfError::Kernel { what: what.into(), source })
}

/// Checks whether this machine and user can load the programs.
///
/// # Errors
/// [`BpfError::Unsupported`] with the reason and the remedy.
pub fn supported() -> Result<(), BpfError> {
    loadable_here()?;
    if !available().is_ok_and(|names| names.iter().any(|n| n == "cubic")) {
        return Err(BpfError::Unsupported("the kernel's CUBIC is not there: `modprobe tcp_cubic`".into()));
    }
    Ok(())
}

/// The checks of [`supported`] for programs that are not congestion controllers.
fn loadable_here() -> Result<(), BpfError> {
    let missing = capabilities::missing(&capabilities::FOR_BPF);
    if !missing.is_empty() {
        return Err(BpfError::Unsupported(format!("{} is needed", missing.join(" and "))));
    }
    if !Path::new("/sys/kernel/btf/vmlinux").exists() {
        return Err(BpfError::Unsupported("the kernel has no BTF (CONFIG_DEBUG_INFO_BTF)".into()));
    }
    Ok(())
}

/// Checks whether this user can read our programs and maps: the kernel hides them from unprivileged users without an error.
fn visible_here() -> Result<(), BpfError> {
    match capabilities::missing(&capabilities::TO_SEE)[..] {
        [] => Ok(()),
        [missing, ..] => Err(BpfError::Unseen(missing)),
    }
}
