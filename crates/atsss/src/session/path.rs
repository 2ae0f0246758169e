//! One access path of a session: its endpoint, its protection, and its state.

use crate::fragment::FragmentCounters;
use crate::mtu::MtuBounds;
use crate::path::{PathMonitor, ProbeParams, Role};
use crate::{MAX_PATHS, PathId};
use anabranch_element::time::Instant;
use anabranch_steer::LoadView;
use anabranch_steer::{PathSet, PathState, PathStates};
use serde::{Deserialize, Serialize};
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6};
use std::sync::Arc;

/// How user data is protected on a path. Control is always sealed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Security {
    /// Encrypted and authenticated. The default, and required on every Wi-Fi hop.
    #[default]
    Secure,
    /// Without encryption, with the 8-byte header only: for an access that a lower layer protects, such as
    /// 5G.
    Plain,
}

/// One access path of a session.
pub struct Path {
    /// Probes, RTT, loss and availability.
    pub monitor: PathMonitor,
    endpoint: Endpoint,
    /// The result of the path MTU search when the session went to rest.
    pub(super) mtu_bounds: MtuBounds,
    /// The path id.
    pub(super) id: PathId,
    proof: Proof,
    /// Allocated when one of its fields is needed.
    rare: Option<Box<RareState>>,
}

/// State that most paths do not need.
#[derive(Default)]
struct RareState {
    fragments: FragmentCounters,
    candidate: Option<Candidate>,
}

/// An address from which an authentic packet of a plain path arrived, but which has not yet been shown to be
/// the peer's: an attacker who sees packets can send a copy that arrives first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Candidate {
    endpoint: Endpoint,
    /// Requests answered to that address: the newest id, and a bit mask in which bit *k* is the id *k* before
    /// it. Where a round trip takes longer than the interval between requests, many are in flight, and any of
    /// them proves the address.
    newest: u32,
    answered: u128,
}

impl Candidate {
    fn note(&mut self, id: u32) {
        let ahead = id.wrapping_sub(self.newest);
        if self.answered == 0 || ahead < 1 << 31 {
            self.answered = self.answered.checked_shl(ahead).unwrap_or(0) | 1;
            self.newest = id;
        } else {
            self.answered |= 1_u128.checked_shl(ahead.wrapping_neg()).unwrap_or(0);
        }
    }

    fn has_answered(&self, id: u32) -> bool {
        let back = self.newest.wrapping_sub(id);
        self.answered.checked_shr(back).is_some_and(|answered| answered & 1 == 1)
    }
}

/// Whether the peer has answered a sealed probe that was sent to the address in use. User data in the clear
/// is not sent before that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Proof {
    No,
    /// The lower half of the id of the first probe sent there, or of a later one, in bytes.
    Asked([u8; 2]),
    Yes,
}

/// The origin of a datagram, relative to a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// The address in use.
    Endpoint,
    /// The candidate for the address in use.
    Candidate,
    /// Any other address.
    Elsewhere,
}

/// The far end's address and our access (socket) for a path's datagrams. 24 bytes, where a `SocketAddr` and a
/// number would take 36.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Endpoint {
    address: [u8; 16],
    scope: u32,
    port: u16,
    /// Address family: 4, 6, or 0 for none.
    family: u8,
    access: PathId,
}

impl Endpoint {
    fn new(address: SocketAddr, access: PathId) -> Self {
        let mut this = Self { port: address.port(), access, ..Self::default() };
        match address {
            SocketAddr::V4(a) => {
                this.address[..4].copy_from_slice(&a.ip().octets());
                this.family = 4;
            }
            SocketAddr::V6(a) => {
                this.address = a.ip().octets();
                (this.scope, this.family) = (a.scope_id(), 6);
            }
        }
        this
    }

    fn address(&self) -> Option<SocketAddr> {
        let v6 = Ipv6Addr::from(self.address);
        match self.family {
            4 => {
                let [a, b, c, d, ..] = self.address;
                Some(SocketAddr::from(([a, b, c, d], self.port)))
            }
            6 => Some(SocketAddrV6::new(v6, self.port, 0, self.scope).into()),
            _ => None,
        }
    }
}

/// The state of a path, for people and metrics.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PathView {
    /// Path id.
    pub path: PathId,
    /// Name of the access.
    pub access: String,
    /// Peer address in use.
    pub endpoint: Option<SocketAddr>,
    /// Protection of user data.
    pub security: Security,
    /// Whether it carries traffic.
    pub up: bool,
    /// Why it does not, as in [`crate::path::DownReason::as_str`].
    pub down: Option<&'static str>,
    /// Smoothed RTT, in microseconds; 0 if unknown.
    pub rtt_us: u32,
    /// Smallest RTT seen, in microseconds; 0 if unknown.
    pub rtt_min_us: u32,
    /// Loss towards the peer, in parts per million.
    pub loss_tx_ppm: u32,
    /// Loss from the peer, in parts per million.
    pub loss_rx_ppm: u32,
    /// Datagrams with user data or a probe sent.
    pub tx_packets: u64,
    /// User-data bytes sent, headers of the tunnel included.
    pub tx_bytes: u64,
    /// Datagrams with user data or a probe received.
    pub rx_packets: u64,
    /// User-data bytes received, headers of the tunnel included.
    pub rx_bytes: u64,
    /// Largest UDP payload that the path is known to carry, in bytes; 0 without a search.
    pub mtu_bytes: u16,
    /// Counters of fragments, for messages that did not fit the path.
    pub fragments: FragmentCounters,
}

impl Path {
    /// A path without an endpoint.
    pub(super) fn new(role: Role, id: PathId, params: &Arc<ProbeParams>, now: Instant) -> Self {
        Self {
            monitor: PathMonitor::new(role, params, now),
            endpoint: Endpoint { access: id, ..Endpoint::default() },
            mtu_bounds: MtuBounds::default(),
            id,
            proof: Proof::No,
            rare: None,
        }
    }

    /// Counters of its fragments.
    pub(super) fn fragments(&mut self) -> &mut FragmentCounters {
        &mut self.rare.get_or_insert_default().fragments
    }

    /// Destination of its datagrams; unknown at the UPF until the first authenticated packet.
    #[must_use]
    pub fn endpoint(&self) -> Option<SocketAddr> {
        self.endpoint.address()
    }

    /// The access (socket) of ours by which its datagrams leave. At the UE this is the path id; at the UPF,
    /// the access by which the path's newest packet arrived.
    #[must_use]
    pub const fn access(&self) -> PathId {
        self.endpoint.access
    }

    /// Whether the path has an endpoint.
    #[must_use]
    pub const fn is_bound(&self) -> bool {
        self.endpoint.family != 0
    }

    /// Binds the path to the far end's address and our access. Returns whether they are new.
    pub fn bind(&mut self, address: SocketAddr, access: PathId) -> bool {
        let endpoint = Endpoint::new(address, access);
        let moved = core::mem::replace(&mut self.endpoint, endpoint) != endpoint;
        if moved {
            self.proof = Proof::No;
        }
        moved
    }

    /// Whether the peer has proved that it is at the address in use.
    #[must_use]
    pub const fn is_proven(&self) -> bool {
        matches!(self.proof, Proof::Yes)
    }

    /// A probe with this id is sent to the address in use.
    pub(super) const fn probe_sent(&mut self, id: u32) {
        let id = id as u16;
        match self.proof {
            Proof::No => self.proof = Proof::Asked(id.to_be_bytes()),
            // Half of all ids count as earlier ones. The stored id therefore follows the newest one, further
            // behind than any answer that is accepted.
            Proof::Asked(asked) => {
                let ahead = id.wrapping_sub(u16::from_be_bytes(asked));
                if ahead >= 1 << 14 && ahead <= u16::MAX - (1 << 13) {
                    self.proof = Proof::Asked(id.wrapping_sub(1 << 13).to_be_bytes());
                }
            }
            Proof::Yes => {}
        }
    }

    /// The probe with this id was answered.
    pub(super) const fn answered(&mut self, id: u32) {
        if let Proof::Asked(asked) = self.proof
            && (id as u16).wrapping_sub(u16::from_be_bytes(asked)) < 1 << 15
        {
            self.proof = Proof::Yes;
        }
    }

    /// The origin of a datagram, relative to this path.
    pub(super) fn origin(&self, address: SocketAddr, access: PathId) -> Origin {
        let from = Endpoint::new(address, access);
        if from == self.endpoint {
            return Origin::Endpoint;
        }
        let candidate = self.rare.as_ref().and_then(|rare| rare.candidate);
        match candidate {
            Some(candidate) if candidate.endpoint == from => Origin::Candidate,
            _ => Origin::Elsewhere,
        }
    }

    /// The newest packet came from this address: the peer may have moved.
    pub(super) fn set_candidate(&mut self, address: SocketAddr, access: PathId) {
        let endpoint = Endpoint::new(address, access);
        self.rare.get_or_insert_default().candidate = Some(Candidate { endpoint, newest: 0, answered: 0 });
    }

    /// The answer to a request from the candidate is sent to it. Remembers the id of the request.
    pub(super) fn on_candidate_probe(&mut self, id: u32) {
        if let Some(candidate) = self.rare.as_mut().and_then(|rare| rare.candidate.as_mut()) {
            candidate.note(id);
        }
    }

    /// Address and access of the candidate, if the request with this id is one of those answered there.
    pub(super) fn candidate(&self, id: u32) -> Option<(SocketAddr, PathId)> {
        let candidate = self.rare.as_ref()?.candidate.filter(|candidate| candidate.has_answered(id))?;
        Some((candidate.endpoint.address()?, candidate.endpoint.access))
    }

    /// The candidate has acknowledged the answer to this request and becomes the endpoint.
    pub(super) fn accept_candidate(&mut self, id: u32) -> Option<SocketAddr> {
        let (address, access) = self.candidate(id)?;
        self.forget_candidate();
        self.bind(address, access);
        self.proof = Proof::Yes;
        Some(address)
    }

    pub(super) fn forget_candidate(&mut self) {
        if let Some(rare) = &mut self.rare {
            rare.candidate = None;
        }
    }

    /// Whether the path is bound to this address and access.
    #[must_use]
    pub fn is_bound_to(&self, address: SocketAddr, access: PathId) -> bool {
        self.endpoint == Endpoint::new(address, access)
    }

    pub(super) fn view(&self, access: &str, security: Security, mtu_bytes: u16) -> PathView {
        let rtt = self.monitor.rtt();
        let counters = self.monitor.counters();
        PathView {
            path: self.id,
            access: access.to_owned(),
            endpoint: self.endpoint(),
            security,
            up: self.monitor.is_up(),
            down: self.monitor.down_reason().map(|reason| reason.as_str()),
            rtt_us: super::micros(rtt.smoothed),
            rtt_min_us: super::micros(rtt.minimum),
            loss_tx_ppm: self.monitor.loss_tx_ppm(),
            loss_rx_ppm: self.monitor.loss_rx_ppm(),
            tx_packets: counters.tx_packets,
            tx_bytes: counters.tx_bytes,
            rx_packets: counters.rx_packets,
            rx_bytes: counters.rx_bytes,
            mtu_bytes,
            fragments: self.rare.as_ref().map(|rare| rare.fragments).unwrap_or_default(),
        }
    }
}

/// The paths in use by a session, by path id. An unused path takes no memory.
#[derive(Default)]
pub(super) struct Paths(Box<[Path]>);

impl Paths {
    #[inline]
    pub fn get(&self, id: PathId) -> Option<&Path> {
        // Usually the paths in use are the first ones.
        match self.0.get(usize::from(id)) {
            Some(path) if path.id == id => Some(path),
            _ => self.0.iter().find(|path| path.id == id),
        }
    }

    #[inline]
    pub fn get_mut(&mut self, id: PathId) -> Option<&mut Path> {
        let at = match self.0.get(usize::from(id)) {
            Some(path) if path.id == id => usize::from(id),
            _ => self.0.iter().position(|path| path.id == id)?,
        };
        self.0.get_mut(at)
    }

    /// Adds a path with an id that is not in use.
    #[cold]
    pub fn add(&mut self, path: Path) {
        let mut paths = core::mem::take(&mut self.0).into_vec();
        paths.reserve_exact(1);
        let at = paths.partition_point(|other| other.id < path.id);
        paths.insert(at, path);
        self.0 = paths.into_boxed_slice();
    }

    /// In order of path ids.
    pub fn iter(&self) -> impl Iterator<Item = &Path> {
        self.0.iter()
    }

    /// In order of path ids.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Path> {
        self.0.iter_mut()
    }

    /// Path ids, in order.
    pub fn ids(&self) -> PathSet {
        self.0.iter().map(|path| path.id).collect()
    }

    /// The path model of each path, by path id.
    pub fn loads(&self, now: Instant) -> [LoadView; MAX_PATHS] {
        let mut loads = [LoadView::UNKNOWN; MAX_PATHS];
        for path in self.0.iter() {
            if let Some(slot) = loads.get_mut(usize::from(path.id)) {
                *slot = path.monitor.load(now);
            }
        }
        loads
    }

    /// The path states for steering.
    pub fn states(&self) -> PathStates {
        let mut states = PathStates::default();
        for path in self.0.iter() {
            states.set(path.id, path.state());
        }
        states
    }
}

impl Path {
    /// The path state for steering.
    pub(super) fn state(&self) -> PathState {
        let up = self.monitor.is_up() && self.is_bound();
        PathState {
            rtt_us: if up { super::micros(self.monitor.rtt().smoothed).max(1) } else { 0 },
            loss_ppm: self.monitor.loss_tx_ppm(),
            steady_loss_percent: self.monitor.steady_loss_percent(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_come_back_as_they_were() {
        for text in ["192.0.2.1:500", "[2001:db8::1]:65535", "[fe80::1%7]:1", "[::ffff:192.0.2.1]:9"] {
            let address: SocketAddr = text.parse().unwrap();
            let mut path = Path::new(Role::Upf, 3, &Arc::default(), Instant::ZERO);
            assert_eq!((path.endpoint(), path.access(), path.is_bound()), (None, 3, false));
            assert!(path.bind(address, 1));
            assert!(!path.bind(address, 1));
            assert_eq!((path.endpoint(), path.access(), path.is_bound()), (Some(address), 1, true));
            assert!(path.is_bound_to(address, 1) && !path.is_bound_to(address, 2));
        }
    }

    #[test]
    fn a_candidate_is_proved_by_any_request_answered_there_and_by_no_other() {
        let (home, nat): (SocketAddr, SocketAddr) =
            ("192.0.2.1:1".parse().unwrap(), "192.0.2.2:2".parse().unwrap());
        for first in [0, 7, u32::MAX - 20] {
            // Every third request came from elsewhere; the others are answered at the candidate, some out of
            // order.
            let asked = |n: u32| n % 3 != 1;
            let mut path = Path::new(Role::Upf, 0, &Arc::default(), Instant::ZERO);
            path.bind(home, 0);
            path.set_candidate(nat, 0);
            assert!((0..300).all(|n| path.candidate(first.wrapping_add(n)).is_none()));
            for n in [2, 0, 3, 6, 5, 9, 8].into_iter().chain((11..200).filter(|n| asked(*n))) {
                path.on_candidate_probe(first.wrapping_add(n));
            }
            for n in 0..300 {
                let recent = (71..199).contains(&n);
                assert_eq!(
                    path.candidate(first.wrapping_add(n)).is_some(),
                    recent && asked(n),
                    "{first} {n}"
                );
            }
            assert_eq!(path.accept_candidate(first.wrapping_add(73)), None);
            assert_eq!(path.accept_candidate(first.wrapping_add(180)), Some(nat));
            assert_eq!((path.endpoint(), path.is_proven()), (Some(nat), true));
            assert_eq!(path.candidate(first.wrapping_add(180)), None, "it is the address in use by now");
        }
    }

    #[test]
    fn an_address_is_proved_by_an_answer_to_what_was_asked_there_however_late() {
        let address: SocketAddr = "192.0.2.1:1".parse().unwrap();
        for first in [0, 7, 65_530, u32::MAX - 20] {
            for asked in [1_u32, 100, 16_384, 16_385, 33_000, 40_000, 66_000, 140_000] {
                let proves = |number: u32| {
                    let mut path = Path::new(Role::Upf, 0, &Arc::default(), Instant::ZERO);
                    path.bind(address, 0);
                    for n in 0..asked {
                        path.probe_sent(first.wrapping_add(n));
                        // A late one.
                        path.probe_sent(first.wrapping_add(n.saturating_sub(100)));
                    }
                    path.answered(first.wrapping_add(number));
                    path.is_proven()
                };
                // An answer is accepted for a minute: of some 3000 requests.
                for back in [1, 2, 10, 3_000, 8_000].into_iter().filter(|back| *back <= asked) {
                    assert!(proves(asked - back), "{first}, asked {asked}, {back} back");
                }
                for before in [1, 2, 100, 3_000, 8_000] {
                    if asked + before < 1 << 15 {
                        assert!(!proves(before.wrapping_neg()), "{first}, asked {asked}, {before} before");
                    }
                }
            }
        }
    }

    #[test]
    fn paths_are_found_by_id_for_any_order_of_insertion() {
        let mut paths = Paths::default();
        for id in [5, 0, 7, 1] {
            assert!(paths.get(id).is_none());
            paths.add(Path::new(Role::Upf, id, &Arc::default(), Instant::ZERO));
        }
        for id in 0..9 {
            let there = [0, 1, 5, 7].contains(&id);
            assert_eq!(paths.get(id).map(|p| p.id), there.then_some(id));
            assert_eq!(paths.get_mut(id).map(|p| p.id), there.then_some(id));
        }
        assert_eq!(paths.ids().iter().collect::<Vec<_>>(), [0, 1, 5, 7]);
    }
}
