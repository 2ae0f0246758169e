//! The programs of `bpf/`: congestion controllers by telemetry, telemetry's way back, and its source; initial windows.
//!
//! ```text
//!  Controllers   struct_ops: int_cubic_l1, int_cubic_l2, int_cubic_ss, int_rate      ┐ share each socket's state
//!  Feedback      sockops on a cgroup: traces in, reports out on ACKs, reports in      ┘ (the map ab_sockets)
//!  InitialWindows  sockops on a cgroup: the first flight of connections by their mark
//!  Source        tcx egress on an interface: puts empty traces into TCP over IPv6
//!  FastPath      tcx on the inner interface and the accesses: packets of the plain form whose path is decided
//!  Trace         the kernel's trace points of TCP: windows and losses as they change
//!  PathsMap      what a monitor knows of paths, in memory that programs and processes read
//! ```
//!
//! **Nothing stays.** Everything is held by file descriptors of this process and nothing is pinned: when a value
//! is dropped, or the process is killed in whatever way, the kernel takes its programs off by itself. A
//! connection that runs one of our controllers keeps it until it ends.
//!
//! **A newer version goes in without a gap.** Loading over a loaded controller puts the new one in the old one's
//! place ([`Controllers::load`]): new connections run the new version, open ones keep theirs, and reports reach
//! both, for they share the sockets' state.
//!
//! Registration of a controller is global for the machine: every network namespace sees its name. No one uses it
//! who does not ask for it by name (`TCP_CONGESTION`, `congctl` of a route, a sysctl of a namespace).

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

/// Why a kernel program is not at work.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BpfError {
    /// The machine or the user cannot do it.
    #[error("kernel programs cannot run here: {0}")]
    Unsupported(String),
    /// The user cannot see programs and maps of others.
    #[error("what is at work on this machine cannot be seen: {0} is needed")]
    Unseen(&'static str),
    /// The kernel refused.
    #[error("{what}: {source}")]
    Kernel {
        /// What was tried.
        what: String,
        /// What libbpf said.
        source: libbpf_rs::Error,
    },
    /// A controller of that name is registered, and by no link that could be taken over.
    #[error("\"{0}\" is registered already, and not by anabranch; take that one away first")]
    Registered(&'static str),
    /// No kernel program of that name.
    #[error("{0} is not one of the kernel's; there are: {names}", names = loadable())]
    NotLoadable(anabranch_cc::Algorithm),
    /// A cgroup or interface that is not there.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// What the system said.
        source: std::io::Error,
    },
}

fn loadable() -> String {
    LOADABLE.map(anabranch_cc::Algorithm::name).join(", ")
}

/// Adds what was tried.
fn tried<T>(what: impl Into<String>, result: libbpf_rs::Result<T>) -> Result<T, BpfError> {
    result.map_err(|source| BpfError::Kernel { what: what.into(), source })
}

/// Whether this machine and user can load our programs.
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

/// The same of programs that have nothing to do with congestion control.
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

/// Whether this user can see what of ours is at work: the kernel shows nothing to others, and says so to nobody who walks its lists.
fn visible_here() -> Result<(), BpfError> {
    match capabilities::missing(&capabilities::TO_SEE)[..] {
        [] => Ok(()),
        [missing, ..] => Err(BpfError::Unseen(missing)),
    }
}
