//! Telemetry's source: `bpf/ioam_source.bpf.c` at an interface's egress.

use super::controllers::object;
use super::object::{Counters, attach_tcx, configure, counters, open};
use super::{BpfError, loadable_here, tried};
use libbpf_rs::query::LinkTypeInfo;
use libbpf_rs::{Link, Object};

/// Most nodes that a trace of ours has room for: the stack of a kernel program is small.
pub const MOST_NODES: u8 = 4;
/// The same with [`SourceConfig::detail`].
pub const MOST_NODES_DETAIL: u8 = 3;

/// Bytes that a trace with room for `nodes` adds to a packet: what the route's MTU is to be lowered by.
#[must_use]
pub const fn trace_bytes(nodes: u8, detail: bool) -> usize {
    let node = if detail { 48 } else { 36 };
    (16 + node * nodes as usize).next_multiple_of(8)
}

/// What a source puts into packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourceConfig {
    /// IOAM namespace; nodes fill traces of theirs. Default 123.
    pub namespace: u16,
    /// One data segment in so many carries a trace; 1: each. Default 8, with full segments 1.3 % of the bytes.
    pub every: u32,
    /// Nodes a trace has room for, 1 to [`MOST_NODES`] (taken as one of these otherwise). Default 4.
    pub nodes: u8,
    /// Ask nodes for time stamps and buffer occupancy, too; then at most [`MOST_NODES_DETAIL`]. Default no.
    pub detail: bool,
    /// Traces also where the kernel has to move a packet to a larger buffer for them; otherwise such packets go without. Where
    /// the receiver gets the sender's own packets, on one machine, that leads the kernel astray (docs/int-cc.md,
    /// Limits). Default no.
    pub beyond_headroom: bool,
}

impl Default for SourceConfig {
    fn default() -> Self {
        Self { namespace: 123, every: 8, nodes: MOST_NODES, detail: false, beyond_headroom: false }
    }
}

/// Attached as long as this lives.
#[derive(Debug)]
pub struct Source {
    link: Link,
    object: Object,
    interface: String,
    index: u32,
}

impl Source {
    /// Attaches it to the egress of `interface`, in the network namespace of the calling thread.
    ///
    /// # Errors
    /// No such interface, a kernel before 6.6, or it refuses.
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

    /// Whether its interface is gone, and the program with it, or another one has its name: that one needs another source. One that is
    /// only called otherwise by now has it still.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        let is_taken_off = || match self.link.info().map(|link| link.info) {
            // The kernel forgets the number of an interface that goes, to another network namespace, too.
            Ok(LinkTypeInfo::Tcx(tcx)) => tcx.ifindex == 0,
            _ => false,
        };
        crate::interface::index(&self.interface).is_ok_and(|index| index != self.index) || is_taken_off()
    }

    /// What it has counted.
    ///
    /// # Errors
    /// The kernel does not let them be read.
    pub fn counters(&self) -> Result<Counters, BpfError> {
        counters(&self.object)
    }
}
