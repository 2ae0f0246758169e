//! The kernel fast path for the plain form of the tunnel: `bpf/fast_path.bpf.c` on the inner interface and on the accesses.
//!
//! ```text
//!   slot: one path of one session, with a lease        flow: its slot, and the generation in which it was added
//!
//!   open ──▶ offload(flow) … ──▶ renew regularly ──▶ revoke: drops all flows until they are offloaded again ──▶ close
//!
//! A slot works only during its lease: if user space stops renewing it, or dies, it gets every packet again at once. No function here
//! is called per packet.

use super::controllers::object;
use super::mapped::Mapped;
use super::object::{attach_tcx, configure, open};
use super::{BpfError, loadable_here, tried};
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, Object};
use std::collections::VecDeque;
use std::ffi::OsStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Number of words of `struct ab_fast_slot`, and the indices of its fields.
pub(super) const WORDS: usize = 16;
const UNTIL: usize = 0;
const GENERATION: usize = 1;
/// The number of lost datagrams is the second half of the word before the counters.
const FAILED: usize = 9;
const COUNTERS: usize = 10;
const THEN: usize = 14;
/// Size of IPv4 and UDP header.
const OUTER_LEN: usize = 28;
/// Maximum number of slots: 8 MiB.
pub const MOST_SLOTS: u32 = 65536;
const HOP_LIMIT: u8 = 64;
const DONT_FRAGMENT: u8 = 0x40;
const UDP: u8 = 17;

/// Configuration of the fast path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FastPathConfig {
    /// At the UE, every inner source from the far end is accepted, and answers of name servers go to user space. At the UPF, only
    /// packets from the session's own addresses are accepted.
    pub ue: bool,
    /// Number of slots, that is paths of sessions, 1 to [`MOST_SLOTS`] (clamped).
    pub slots: u32,
    /// Number of flows, at least 1; beyond it, the least recently used go to user space.
    pub flows: u32,
}

/// One path of one session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FastTunnel {
    /// Index of the interface for its datagrams, an Ethernet device.
    pub interface: u32,
    /// Local end.
    pub local: SocketAddrV4,
    /// Far end.
    pub remote: SocketAddrV4,
    /// Firewall mark of the datagrams.
    pub mark: u32,
    /// Maximum size of an inner packet, bytes.
    pub mtu: u16,
    /// IPv4 address of the session.
    pub inner_v4: Option<Ipv4Addr>,
    /// IPv6 address of the session.
    pub inner_v6: Option<Ipv6Addr>,
}

/// A flow in the direction into the tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FastFlow {
    /// Source address and port.
    pub source: SocketAddr,
    /// Destination address and port.
    pub destination: SocketAddr,
    /// Protocol: 6 (TCP) or 17 (UDP).
    pub protocol: u8,
}

/// Counters of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FastCounters {
    /// Datagrams sent.
    pub tx_packets: u64,
    /// Their UDP payload, bytes.
    pub tx_bytes: u64,
    /// Datagrams received.
    pub rx_packets: u64,
    /// Their UDP payload, bytes.
    pub rx_bytes: u64,
    /// Datagrams lost during encapsulation.
    pub tx_failed: u64,
}

/// The attached programs; detached when this is dropped.
#[derive(Debug)]
pub struct FastPath {
    slots: Mapped,
    flows: MapHandle,
    peers: MapHandle,
    control: Mutex<Control>,
}

#[derive(Debug)]
struct Control {
    /// Interfaces with an attached program.
    links: Vec<(u32, Link)>,
    _out: Link,
    /// Free slots; the one that has been free for longest is first.
    free: VecDeque<u32>,
    object: Object,
}

impl FastPath {
    /// Attaches the program to the inner interface `inner`, a TUN device, in the network namespace of the calling thread.
    ///
    /// # Errors
    /// No such interface, a kernel before 6.6, or a refusal of the kernel.
    pub fn attach(inner: &str, config: FastPathConfig) -> Result<Self, BpfError> {
        loadable_here()?;
        let what = || format!("interface {inner}");
        let index = crate::interface::index(inner).map_err(|source| BpfError::Io { what: what(), source })?;
        let mut object = open("fast_path", object!("fast_path"))?;
        let constants = [index.to_ne_bytes(), u32::from(config.ue).to_ne_bytes()].concat();
        configure(&mut object, &constants)?;
        let slots = config.slots.clamp(1, MOST_SLOTS);
        for mut map in object.maps_mut() {
            let entries = match map.name().to_str() {
                Some("ab_fast_slots" | "ab_fast_peers") => slots,
                Some("ab_fast_flows") => config.flows.max(1),
                _ => continue,
            };
            tried("setting the size of maps", map.set_max_entries(entries))?;
        }
        let object = tried("loading fast_path", object.load())?;
        let map = |name: &str| {
            let found = object.maps().find(|map| map.name() == OsStr::new(name));
            let map = found.ok_or_else(|| BpfError::Unsupported(format!("no map {name}")))?;
            tried(format!("map {name}"), MapHandle::try_from(&map))
        };
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let mapped = Mapped::new(&map("ab_fast_slots")?, "ab_fast_slots", slots, WORDS, protection)?;
        let (flows, peers) = (map("ab_fast_flows")?, map("ab_fast_peers")?);
        let out = attach_tcx(&object, "ab_fast_out", index, what)?;
        let control = Control { links: Vec::new(), _out: out, free: (0..slots).collect(), object };
        Ok(Self { slots: mapped, flows, peers, control: Mutex::new(control) })
    }

    /// Allocates a slot for a path, without a lease. `None`: no slot is free.
    ///
    /// # Errors
    /// The kernel refuses the interface, or the far end already has a slot.
    pub fn open(&self, tunnel: &FastTunnel) -> Result<Option<u32>, BpfError> {
        let mut control = self.control();
        if control.links.iter().all(|(index, _)| *index != tunnel.interface) {
            let what = || format!("interface {}", tunnel.interface);
            let link = attach_tcx(&control.object, "ab_fast_in", tunnel.interface, what)?;
            control.links.push((tunnel.interface, link));
        }
        let Some(slot) = control.free.pop_front() else { return Ok(None) };
        self.write(slot, tunnel);
        let taken = self.peers.update(&peer_key(tunnel), &slot.to_ne_bytes(), MapFlags::NO_EXIST);
        if let Err(source) = taken {
            control.free.push_front(slot);
            return Err(BpfError::Kernel { what: format!("the far end {}", tunnel.remote), source });
        }
        Ok(Some(slot))
    }

    /// Frees a slot allocated with [`FastPath::open`] for `tunnel`.
    pub fn close(&self, slot: u32, tunnel: &FastTunnel) {
        let mut control = self.control();
        self.revoke(slot);
        self.store(slot, UNTIL, 0);
        // Deleting an absent entry is not an error.
        let _ = self.peers.delete(&peer_key(tunnel));
        control.free.push_back(slot);
    }

    /// Extends the lease of a slot: it works for `lease` from now on.
    pub fn renew(&self, slot: u32, lease: Duration) {
        let until = monotonic() + lease;
        self.store(slot, UNTIL, u64::try_from(until.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Makes the slot carry `flow`, until [`FastPath::revoke`].
    ///
    /// # Errors
    /// The map is full.
    pub fn offload(&self, slot: u32, flow: &FastFlow) -> Result<(), BpfError> {
        let generation = self.head(slot)[0];
        let value = [slot.to_ne_bytes(), generation.to_ne_bytes()].concat();
        tried("giving a flow to the kernel", self.flows.update(&flow_key(flow), &value, MapFlags::ANY))
    }

    /// Removes `flow` from its slot.
    pub fn drop_flow(&self, flow: &FastFlow) {
        // Deleting an absent entry is not an error.
        let _ = self.flows.delete(&flow_key(flow));
    }

    /// Removes all flows from a slot.
    pub fn revoke(&self, slot: u32) {
        let [generation, interface] = self.head(slot);
        self.store(slot, GENERATION, pair(generation.wrapping_add(1), interface));
    }

    /// Counters of a slot since it was opened.
    #[must_use]
    pub fn counters(&self, slot: u32) -> FastCounters {
        self.read(slot, COUNTERS + 2)
    }

    /// Counters with the number of datagrams received when the last datagram arrived that the slot did not carry.
    #[must_use]
    pub fn counters_then(&self, slot: u32) -> FastCounters {
        self.read(slot, THEN)
    }

    fn read(&self, slot: u32, received: usize) -> FastCounters {
        let Some(words) = self.slots.entry(slot as usize) else { return FastCounters::default() };
        let [tx_packets, tx_bytes, rx_packets, rx_bytes] = [COUNTERS, COUNTERS + 1, received, received + 1]
            .map(|index| words[index].load(Ordering::Relaxed));
        let tx_failed = u64::from(halves(words[FAILED].load(Ordering::Relaxed))[1]);
        FastCounters { tx_packets, tx_bytes, rx_packets, rx_bytes, tx_failed }
    }

    /// Writes everything except the lease; programs ignore a slot without one.
    fn write(&self, slot: u32, tunnel: &FastTunnel) {
        let outer = outer(tunnel);
        let sum = outer[..20].chunks_exact(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
        let mut bytes = Vec::with_capacity((COUNTERS - 2) * 8);
        bytes.extend(tunnel.mark.to_ne_bytes());
        bytes.extend(u32::to_ne_bytes(sum));
        bytes.extend(outer);
        bytes.extend(u32::from(tunnel.mtu).to_ne_bytes());
        bytes.extend(tunnel.inner_v4.unwrap_or(Ipv4Addr::UNSPECIFIED).octets());
        bytes.extend(tunnel.inner_v6.unwrap_or(Ipv6Addr::UNSPECIFIED).octets());
        bytes.extend([0; 4]);
        let generation = self.head(slot)[0].wrapping_add(1);
        self.store(slot, GENERATION, pair(generation, tunnel.interface));
        for (index, word) in (GENERATION + 1..).zip(bytes.chunks_exact(8)) {
            self.store(slot, index, word.first_chunk().map_or(0, |word| u64::from_ne_bytes(*word)));
        }
        (COUNTERS..WORDS).for_each(|index| self.store(slot, index, 0));
    }

    /// Generation and interface index of a slot.
    fn head(&self, slot: u32) -> [u32; 2] {
        let word =
            self.slots.entry(slot as usize).map_or(0, |words| words[GENERATION].load(Ordering::Relaxed));
        halves(word)
    }

    fn store(&self, slot: u32, index: usize, value: u64) {
        if let Some(words) = self.slots.entry(slot as usize) {
            words[index].store(value, Ordering::Release);
        }
    }

    fn control(&self) -> MutexGuard<'_, Control> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn halves(word: u64) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h] = word.to_ne_bytes();
    [u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, g, h])]
}

fn pair(first: u32, second: u32) -> u64 {
    let ([a, b, c, d], [e, f, g, h]) = (first.to_ne_bytes(), second.to_ne_bytes());
    u64::from_ne_bytes([a, b, c, d, e, f, g, h])
}

/// IPv4 and UDP header with lengths and checksums 0.
fn outer(tunnel: &FastTunnel) -> [u8; OUTER_LEN] {
    let mut outer = [0; OUTER_LEN];
    outer[0] = 0x45;
    outer[6] = DONT_FRAGMENT;
    outer[8] = HOP_LIMIT;
    outer[9] = UDP;
    outer[12..16].copy_from_slice(&tunnel.local.ip().octets());
    outer[16..20].copy_from_slice(&tunnel.remote.ip().octets());
    outer[20..22].copy_from_slice(&tunnel.local.port().to_be_bytes());
    outer[22..24].copy_from_slice(&tunnel.remote.port().to_be_bytes());
    outer
}

/// `struct ab_fast_peer`.
fn peer_key(tunnel: &FastTunnel) -> [u8; 12] {
    let mut key = [0; 12];
    key[..4].copy_from_slice(&tunnel.remote.ip().octets());
    key[4..8].copy_from_slice(&tunnel.local.ip().octets());
    key[8..10].copy_from_slice(&tunnel.remote.port().to_be_bytes());
    key[10..].copy_from_slice(&tunnel.local.port().to_be_bytes());
    key
}

/// `struct ab_fast_key`.
fn flow_key(flow: &FastFlow) -> [u8; 40] {
    let mut key = [0; 40];
    let mut write = |at: usize, address: IpAddr| match address {
        IpAddr::V4(v4) => key[at..at + 4].copy_from_slice(&v4.octets()),
        IpAddr::V6(v6) => key[at..at + 16].copy_from_slice(&v6.octets()),
    };
    write(0, flow.source.ip());
    write(16, flow.destination.ip());
    key[32..34].copy_from_slice(&flow.source.port().to_be_bytes());
    key[34..36].copy_from_slice(&flow.destination.port().to_be_bytes());
    key[36] = flow.protocol;
    key[37] = if flow.source.is_ipv4() { 4 } else { 6 };
    key
}

/// CLOCK_MONOTONIC, the clock used by the programs.
fn monotonic() -> Duration {
    nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).map(Duration::from).unwrap_or_default()
}
