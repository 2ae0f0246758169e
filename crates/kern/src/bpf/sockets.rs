//! The sockets with state of our programs: `bpf/sockets.bpf.c` iterates over every such map on this machine.

use super::controllers::object;
use super::object::{attach, open};
use super::replace::SOCKET_LEN;
use super::{BpfError, loadable_here, tried};
use libbpf_rs::query::MapInfoIter;
use libbpf_rs::{Iter, MapHandle, MapType};
use std::ffi::OsStr;
use std::io::Read;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;
use std::time::Duration;

/// Size of `struct ab_shown`.
pub(super) const SHOWN_LEN: usize = 176;
/// Name of the maps with the sockets' state.
pub(super) const SOCKETS: &str = "ab_sockets";

const STATE_FRESH: u32 = 2;
const STATE_CEILING: u32 = 4;
const KNOWN: u32 = 1;
const COMPLETE: u32 = 2;
const DETAILED: u32 = 16;
/// Value of ssthresh before the first loss (the kernel's TCP_INFINITE_SSTHRESH).
pub(super) const NO_SSTHRESH: u32 = 0x7fff_ffff;

/// A TCP socket that uses one of our controllers, or sends or receives reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SocketState {
    /// The kernel's cookie of the socket; never reused.
    pub cookie: u64,
    /// Inode of its network namespace, as in `lsns -t net`.
    pub netns: u32,
    /// Local address.
    pub local: SocketAddr,
    /// Remote address.
    pub remote: SocketAddr,
    /// Its congestion controller, ours or another.
    pub controller: String,
    /// Congestion window, segments.
    pub cwnd: u32,
    /// Slow-start threshold, segments; `None` before the first loss.
    pub ssthresh: Option<u32>,
    /// Pacing rate of the socket, bit/s; `None`: not paced.
    pub pacing_bps: Option<u64>,
    /// Smoothed RTT.
    pub srtt: Duration,
    /// Segments in flight.
    pub in_flight: u32,
    /// Retransmitted segments.
    pub resent: u32,
    /// Of these, after losses classified as congestion.
    pub resent_congestion: u32,
    /// Of these, after losses classified as medium losses.
    pub resent_medium: u32,
    /// Losses classified as congestion.
    pub losses_congestion: u32,
    /// Losses classified as medium losses.
    pub losses_medium: u32,
    /// Classifications revoked by a late report.
    pub losses_taken_back: u32,
    /// Age of the newest report; `None`: no report yet.
    pub report_age: Option<Duration>,
    /// Age of the newest trace that it reports to its peer; `None`: it is not a receiver.
    pub trace_age: Option<Duration>,
    /// Whether reports were fresh at the last ACK, so that telemetry is used; otherwise it is CUBIC.
    pub fresh: bool,
    /// Every hop reported its drops.
    pub complete: bool,
    /// int_rate: the rate derived from telemetry, bit/s; `None`: CUBIC is active.
    pub rate_bps: Option<u64>,
    /// Link rate of the bottleneck, kbit/s.
    pub link_kbps: Option<u64>,
    /// Queue at the bottleneck, bytes.
    pub depth_bytes: Option<u64>,
    /// Flows at the bottleneck.
    pub flows: Option<u32>,
    /// Whether the ceiling (`--ceiling-bps`) is in force.
    pub at_ceiling: bool,
    /// Maximum window set for the socket, segments; `None`: no limit.
    pub cwnd_clamp: Option<u32>,
}

/// Every such socket that is open in a process, of all network namespaces, by cookie. Root only.
///
/// # Errors
/// The machine lacks support, or the kernel refuses.
pub fn sockets() -> Result<Vec<SocketState>, BpfError> {
    loadable_here()?;
    let mut all = Vec::new();
    for info in MapInfoIter::default() {
        // Another version with another layout of the state; its own `cc show` can read it.
        let other = info.value_size != SOCKET_LEN;
        if info.ty != MapType::SkStorage || info.name != OsStr::new(SOCKETS) || other {
            continue;
        }
        // A map that has disappeared in the meantime has no sockets.
        let Ok(map) = MapHandle::from_map_id(info.id) else { continue };
        let mut object = open("sockets", object!("sockets"))?;
        for mut own in object.maps_mut().filter(|own| own.name() == OsStr::new(SOCKETS)) {
            tried("loading sockets", own.reuse_fd(map.as_fd()))?;
        }
        let object = tried("loading sockets", object.load())?;
        let links =
            attach(&object, &["ab_sockets_iter"], |program| tried("reading sockets", program.attach()))?;
        let mut bytes = Vec::new();
        for link in &links {
            let mut reader = tried("reading sockets", Iter::new(link))?;
            reader
                .read_to_end(&mut bytes)
                .map_err(|source| BpfError::Io { what: "reading sockets".into(), source })?;
        }
        all.extend(bytes.chunks_exact(SHOWN_LEN).map(parse));
    }
    all.sort_by_key(|s| s.cookie);
    // A socket may be open in two processes and have state in the maps of two loaders; the one with reports is preferred.
    all.dedup_by(|later, first| {
        let same = later.cookie == first.cookie;
        if same && first.report_age.is_none() && first.trace_age.is_none() {
            std::mem::swap(later, first);
        }
        same
    });
    Ok(all)
}

fn parse(b: &[u8]) -> SocketState {
    let bytes = |at: usize| -> [u8; 8] { std::array::from_fn(|i| b[at + i]) };
    let long = |at| u64::from_ne_bytes(bytes(at));
    let word = |at| u32::from_ne_bytes(std::array::from_fn(|i| b[at + i]));
    let short = |at: usize| u16::from_ne_bytes([b[at], b[at + 1]]);
    let address = |at: usize, port: usize| {
        let six: [u8; 16] = std::array::from_fn(|i| b[at + i]);
        let ip = IpAddr::from(Ipv6Addr::from(six)).to_canonical();
        SocketAddr::new(ip, short(port))
    };
    let (state, flags, now) = (word(148), word(156), long(8));
    let age = |at: usize| {
        Some(long(at)).filter(|us| *us > 0).map(|us| Duration::from_micros(now.saturating_sub(us)))
    };
    let known = flags & KNOWN != 0;
    let detail = |at| Some(long(at)).filter(|v| flags & DETAILED != 0 && *v != u64::MAX);
    let name: Vec<u8> = b[160..176].iter().copied().take_while(|c| *c != 0).collect();
    SocketState {
        cookie: long(0),
        netns: word(100),
        local: address(64, 96),
        remote: address(80, 98),
        controller: String::from_utf8_lossy(&name).into_owned(),
        cwnd: word(104),
        ssthresh: Some(word(108)).filter(|v| *v < NO_SSTHRESH),
        pacing_bps: long(32).checked_mul(8),
        srtt: Duration::from_micros(word(116).into()),
        in_flight: word(120),
        resent: word(124),
        resent_congestion: word(128),
        resent_medium: word(132),
        losses_congestion: word(136),
        losses_medium: word(140),
        losses_taken_back: word(144),
        report_age: age(16).filter(|_| known),
        trace_age: age(24),
        fresh: state & STATE_FRESH != 0,
        complete: known && flags & COMPLETE != 0,
        rate_bps: Some(long(40)).filter(|v| *v > 0),
        link_kbps: detail(48),
        depth_bytes: detail(56),
        flows: known.then(|| word(152)),
        at_ceiling: state & STATE_CEILING != 0,
        cwnd_clamp: Some(word(112)).filter(|v| *v != u32::MAX),
    }
}
