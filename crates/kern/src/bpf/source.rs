//! The telemetry source: `bpf/ioam_source.bpf.c` at the egress of an interface.

use super::controllers::object;
use super::object::{Counters, attach_tcx, configure, counters, open};
use super::{BpfError, loadable_here, tried};
use libbpf_rs::query::LinkTypeInfo;
use libbpf_rs::{Link, Object};

/// Maximum number of nodes in a trace, due to the small stack of kernel programs.
pub const MOST_NODES: u8 = 4;
/// Maximum number of nodes with [`SourceConfig::detail`].
pub const MOST_NODES_DETAIL: u8 = 3;

/// Bytes that a trace with room for `nodes` adds to a packet; the MTU of the route must be lowered by this.
#[must_use]
pub const fn trace_bytes(nodes: u8, detail: bool) -> usize {
    let node = if detail { 48 } else { 36 };
    (16 + node * nodes as usize).next_multiple_of(8)
}

/// Configuration of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourceConfig {
    /// IOAM namespace. Default 123.
    pub namespace: u16,
    /// One data segment in this number carries a trace; 1: each. Default 8, with full segments 1.3 % of the bytes.
    pub every: u32,
    /// Number of nodes for which a trace has room, 1 to [`MOST_NODES`] (clamped). Default 4.
    pub nodes: u8,
    /// Also requests time stamps and buffer occupancy; then at most [`MOST_NODES_DETAIL`] nodes. Default no.
    pub detail: bool,
    /// Inserts traces even if the kernel must move a packet to a larger buffer; otherwise such packets carry none. If the receiver
    /// gets the sender's own packets, on one machine, this misleads the kernel (docs/int-cc.md, Limits). Default no.
    pub beyond_headroom: bool,
}

impl Default for SourceConfig {
    fn default() -> Self {
        Self { namespace: 123, every: 8, nodes: MOST_NODES, detail: false, beyond_headroom: false }
    }
}

/// An attached source; detached when this is dropped.
#[derive(Debug)]
pub struct Source {
    link: Link,
    object: Object,
    interface: String,
    index: u32,
}

impl Source {
    /// Attaches the source to the egress of `interface`, in the network namespace of the calling thread.
    ///
    /// # Errors
    /// No such interface, a kernel before 6.6, or a refusal of the kernel.
    pub fn attach(interface: &str, config: SourceConfig) -> Result<Self, BpfError> {
        loadable_here()?;
        let what = || format!("interface {interface}");
        let none = |source| BpfError::Io { what: what(), source };
        let index = crate::interface::index(interface).map_err(none)?;
        let link_bytes = crate::interface::link_header_bytes(interface).map_err(none)?;
        let mut object = open("ioam_source", object!("ioam_source"))?;
        let mut constants = config.namespace.to_ne_bytes().to_vec();
        let most = if config.detail { MOST_NODES_DETAIL } else { MOST_NODES };
        constants.extend([config.nodes.clamp(1, most), u8::from(config.detail)]);
        constants.extend(config.every.max(1).to_ne_bytes());
        constants.extend(link_bytes.to_ne_bytes());
        constants.extend(u32::from(config.beyond_headroom).to_ne_bytes());
        configure(&mut object, &constants)?;
        let object = tried("loading ioam_source", object.load())?;
        let link = attach_tcx(&object, "ab_source_egress", index, what)?;
        Ok(Self { link, object, interface: interface.to_owned(), index })
    }

    /// Whether its interface has been removed, with the program, or another interface has taken its name: that one needs another
    /// source. A renamed interface keeps its source.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        let is_taken_off = || match self.link.info().map(|link| link.info) {
            // The index becomes 0 when the interface is removed, or moved to another network namespace.
            Ok(LinkTypeInfo::Tcx(tcx)) => tcx.ifindex == 0,
            _ => false,
        };
        crate::interface::index(&self.interface).is_ok_and(|index| index != self.index) || is_taken_off()
    }

    /// The counters.
    ///
    /// # Errors
    /// The kernel refuses to read them.
    pub fn counters(&self) -> Result<Counters, BpfError> {
        counters(&self.object)
    }
}
