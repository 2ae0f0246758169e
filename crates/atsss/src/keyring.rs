//! The keys of one tunnel end over time: current, next, and previous.
//!
//! ```text
//!            install()                    first packet under `next`            previous expires
//!  current ───────────▶ current + next ──────────────────────────▶ current + previous ─────▶ current
//!                       (UPF sends under current)                 (still opens what is in flight)
//! ```
//!
//! The UE may use new keys at once, because the response proves that the UPF has them. The UPF waits for the
//! first packet that it can open with them (WireGuard's rule, §6.3 of its paper; JUNCTION has no encryption).
//! Packet numbers and replay windows are per epoch and per path.
//!
//! If answers take longer than the UE's retry interval, the UE may use the answer to any of its last
//! [`MAX_UNCONFIRMED`] handshakes. The UPF therefore keeps the keys of each until one is used or they
//! expire.
//!
//! No state is changed or allocated for a packet before it is authenticated.

use crate::crypto::{REJECT_AFTER, REKEY_AFTER, REKEY_AFTER_PACKETS, Replay, ReplayWindow, SessionKeys};
use crate::drops::DropReason;
use crate::{MAX_PATHS, PathId};
use anabranch_element::time::{Duration, Instant};
use anabranch_wire::tunnel::{SECURE_OVERHEAD, SecureHeader};

/// Old keys open packets still in flight for this long after the new ones are confirmed.
const PREVIOUS_LIFE: Duration = Duration::from_secs(5);
/// Keys that the peer never confirmed are forgotten after this time.
const NEXT_LIFE: Duration = Duration::from_secs(15);
/// Handshakes of one UE whose keys have not been used yet.
pub const MAX_UNCONFIRMED: usize = 5;
/// Epochs of one session: unconfirmed, current, and previous.
pub const MOST_EPOCHS: usize = MAX_UNCONFIRMED + 2;
/// Paths whose lanes are part of the epoch. Those of other paths are allocated when they are used.
const USUAL_PATHS: usize = 2;

/// The result of one handshake: keys, both indices, and per path a packet number and replay window.
pub struct Epoch {
    /// Receiver index the peer puts into packets for us.
    pub local_index: u32,
    /// Receiver index we put into packets for the peer.
    pub peer_index: u32,
    keys: SessionKeys,
    /// End of its life.
    until: Instant,
    lanes: [Lane; USUAL_PATHS],
    more_lanes: Option<Box<[Lane; MAX_PATHS - USUAL_PATHS]>>,
    /// The previous epoch, while this one is not current.
    older: Option<Box<Self>>,
    /// See [`Epoch::with_instance`].
    instance: u32,
    /// See [`Epoch::with_fresh_peer`].
    fresh_peer: bool,
}

#[derive(Default)]
struct Lane {
    next_number: u64,
    replay: ReplayWindow,
}

impl Epoch {
    /// The epoch of a completed handshake.
    #[must_use]
    pub fn new(local_index: u32, peer_index: u32, keys: SessionKeys, now: Instant) -> Self {
        Self {
            local_index,
            peer_index,
            keys,
            until: now + REJECT_AFTER,
            lanes: Default::default(),
            more_lanes: None,
            older: None,
            instance: 0,
            fresh_peer: false,
        }
    }

    /// When the handshake was completed; for a current or next epoch.
    fn created(&self) -> Instant {
        self.until - REJECT_AFTER
    }

    /// Notes that the peer has restarted: see [`Confirmed::fresh_peer`].
    #[must_use]
    pub fn with_fresh_peer(self, fresh_peer: bool) -> Self {
        Self { fresh_peer, ..self }
    }

    /// Sets the number by which the peer identifies the session: see [`KeyRing::peer_instance`].
    #[must_use]
    pub fn with_instance(self, instance: u32) -> Self {
        Self { instance, ..self }
    }

    fn lane(&self, path: PathId) -> Option<&Lane> {
        let path = usize::from(path);
        self.lanes.get(path).or_else(|| self.more_lanes.as_ref()?.get(path - USUAL_PATHS))
    }

    fn lane_mut(&mut self, path: PathId) -> Result<&mut Lane, DropReason> {
        let path = usize::from(path);
        if path < USUAL_PATHS {
            self.lanes.get_mut(path).ok_or(DropReason::UnknownPath)
        } else if path < MAX_PATHS {
            self.more_lanes.get_or_insert_default().get_mut(path - USUAL_PATHS).ok_or(DropReason::UnknownPath)
        } else {
            Err(DropReason::UnknownPath)
        }
    }

    fn all_lanes(&self) -> impl Iterator<Item = &Lane> {
        self.lanes.iter().chain(self.more_lanes.iter().flat_map(|lanes| lanes.iter()))
    }

    /// Seals `buf` = header room ‖ plaintext ‖ tag room, in place.
    fn seal(&mut self, path: PathId, buf: &mut [u8]) -> Result<(), DropReason> {
        let receiver = self.peer_index;
        let lane = self.lane_mut(path)?;
        let number = lane.next_number;
        lane.next_number += 1;
        let (header, body) = buf.split_at_mut_checked(SecureHeader::LEN).ok_or(DropReason::Malformed)?;
        SecureHeader { path, receiver, packet_number: number }
            .emit(header)
            .map_err(|_| DropReason::Malformed)?;
        self.keys.seal(path, number, header, body).map_err(|_| DropReason::NoKeys)
    }

    /// As if this many packets had been sent on `path`.
    #[cfg(test)]
    fn spend(&mut self, path: PathId, packets: u64) {
        self.lane_mut(path).unwrap().next_number = packets;
    }

    /// Opens a datagram in place. Returns its plaintext, and whether it is the newest of its path.
    fn open<'a>(
        &mut self,
        header: &SecureHeader,
        datagram: &'a mut [u8],
    ) -> Result<(&'a mut [u8], bool), DropReason> {
        if usize::from(header.path) >= MAX_PATHS {
            return Err(DropReason::UnknownPath);
        }
        if let Some(lane) = self.lane(header.path) {
            lane.replay.check(header.packet_number).map_err(|replay| match replay {
                Replay::Duplicate => DropReason::Replayed,
                Replay::TooOld => DropReason::TooOld,
            })?;
        }
        let (aad, body) = datagram.split_at_mut_checked(SecureHeader::LEN).ok_or(DropReason::Malformed)?;
        let plaintext =
            self.keys.open(header.path, header.packet_number, aad, body).map_err(|_| DropReason::Forged)?;
        let newest = self.lane_mut(header.path)?.replay.commit(header.packet_number);
        Ok((plaintext, newest))
    }

    fn cool_down(&mut self) {
        self.keys.cool_down();
        let more = self.more_lanes.iter_mut().flat_map(|lanes| lanes.iter_mut());
        self.lanes.iter_mut().chain(more).for_each(|lane| lane.replay.cool_down());
    }
}

/// The epochs of one session.
#[derive(Default)]
pub struct KeyRing {
    current: Option<Box<Epoch>>,
    /// The newest unconfirmed epoch, with its predecessors.
    next: Option<Box<Epoch>>,
    /// The previously current epoch, with its predecessors; only the first opens packets.
    previous: Option<Box<Epoch>>,
}

/// An opened datagram.
pub struct Opened<'a> {
    /// Inner header and payload.
    pub plaintext: &'a mut [u8],
    /// Path id of the secure header.
    pub path: PathId,
    /// Whether it is the newest packet of this path: only then may it move the path.
    pub newest: bool,
    /// The keys confirmed by this packet, if it is the first one under them.
    pub confirmed: Option<Confirmed>,
}

/// What a peer with certain keys knows about the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerInstance {
    /// Number of the session that was sent to it.
    pub instance: u32,
    /// It had restarted before it got these keys, and no packet under them has arrived yet.
    pub fresh_peer: bool,
}

/// The peer has used the new keys for the first time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Confirmed {
    /// Index of the epoch that is now current.
    pub local_index: u32,
    /// The peer has restarted and lost all state of the session.
    pub fresh_peer: bool,
}

impl KeyRing {
    /// Uses new keys at once (UE: the response proves that the peer has them).
    pub fn install_now(&mut self, epoch: Epoch, now: Instant) {
        // This end is not looked up by index, so the previous epoch can be removed.
        self.previous = self.current.replace(Box::new(epoch));
        if let Some(previous) = &mut self.previous {
            previous.until = now + PREVIOUS_LIFE;
        }
    }

    /// Stores new keys that the peer must still confirm (UPF).
    ///
    /// Returns the receiver index of the oldest such epoch if there are too many.
    pub fn install_unconfirmed(&mut self, mut epoch: Epoch) -> Option<u32> {
        epoch.older = self.next.take();
        self.next = Some(Box::new(epoch));
        let mut last = self.next.as_deref_mut()?;
        for _ in 1..MAX_UNCONFIRMED {
            last = last.older.as_deref_mut()?;
        }
        last.older.take().map(|oldest| oldest.local_index)
    }

    /// The knowledge of a peer that names the keys with this receiver index as its own; `None`: they do not
    /// exist here.
    #[must_use]
    pub fn peer_instance(&self, local_index: u32) -> Option<PeerInstance> {
        let waiting = chain(self.next.as_deref()).find(|e| e.local_index == local_index);
        let peer_instance = |e: &Epoch| PeerInstance { instance: e.instance, fresh_peer: e.fresh_peer };
        waiting.map(peer_instance).or_else(|| {
            let current = self.current.as_deref().filter(|_| self.has_index(local_index))?;
            Some(PeerInstance { instance: current.instance, fresh_peer: false })
        })
    }

    /// Whether there are keys for sealing at `now`.
    #[must_use]
    pub fn can_seal(&self, now: Instant) -> bool {
        self.current.as_ref().is_some_and(|e| now < e.until)
    }

    /// Whether the UE should start a new handshake.
    #[must_use]
    pub fn needs_rekey(&self, now: Instant) -> bool {
        self.current.as_ref().is_some_and(|e| {
            now >= e.created() + REKEY_AFTER || e.all_lanes().any(|l| l.next_number >= REKEY_AFTER_PACKETS)
        })
    }

    /// When [`KeyRing::needs_rekey`] becomes true because of age.
    #[must_use]
    pub fn rekey_at(&self) -> Option<Instant> {
        self.current.as_ref().map(|e| e.created() + REKEY_AFTER)
    }

    /// The peer's receiver index under the current keys.
    #[must_use]
    pub fn peer_index(&self) -> Option<u32> {
        self.current.as_ref().map(|e| e.peer_index)
    }

    /// Whether there is an epoch with this receiver index.
    fn has_index(&self, local_index: u32) -> bool {
        self.indices().any(|i| i == local_index)
    }

    /// All receiver indices of this session.
    pub fn indices(&self) -> impl Iterator<Item = u32> + '_ {
        let [current, next, previous] =
            [&self.current, &self.next, &self.previous].map(|e| chain(e.as_deref()));
        current.chain(next).chain(previous).map(|e| e.local_index)
    }

    /// Seals a datagram laid out as secure-header room ‖ plaintext ‖ tag room.
    ///
    /// # Errors
    /// [`DropReason::NoKeys`] if there are none, or if they have expired or are used up. `buf` is then all
    /// zeros.
    pub fn seal(&mut self, path: PathId, buf: &mut [u8], now: Instant) -> Result<(), DropReason> {
        debug_assert!(buf.len() >= SECURE_OVERHEAD);
        let sealed = match self.current.as_mut().filter(|epoch| now < epoch.until) {
            Some(epoch) => epoch.seal(path, buf),
            None => Err(DropReason::NoKeys),
        };
        if sealed.is_err() {
            buf.fill(0);
        }
        sealed
    }

    /// Opens a datagram in place.
    ///
    /// # Errors
    /// The reason of the rejection; the ring is then unchanged.
    pub fn open<'a>(&mut self, datagram: &'a mut [u8], now: Instant) -> Result<Opened<'a>, DropReason> {
        let header = SecureHeader::parse(datagram).map_err(|_| DropReason::Malformed)?;
        let index = header.receiver;
        if let Some(epoch) = self.current.as_mut().filter(|e| e.local_index == index) {
            if now >= epoch.until {
                return Err(DropReason::NoKeys);
            }
            let (plaintext, newest) = epoch.open(&header, datagram)?;
            return Ok(Opened { plaintext, path: header.path, newest, confirmed: None });
        }
        let waiting_at = chain(self.next.as_deref()).position(|e| e.local_index == index);
        if let Some(at) = waiting_at {
            let mut waiting = &mut self.next;
            for _ in 0..at {
                waiting = &mut waiting.as_mut().ok_or(DropReason::UnknownIndex)?.older;
            }
            let epoch = waiting.as_mut().ok_or(DropReason::UnknownIndex)?;
            let (plaintext, newest) = epoch.open(&header, datagram)?;
            let confirmed = Some(Confirmed { local_index: index, fresh_peer: epoch.fresh_peer });
            // Newer ones are kept: the peer may still receive their answers.
            if let Some(epoch) = waiting.take() {
                self.promote(epoch, now);
            }
            return Ok(Opened { plaintext, path: header.path, newest, confirmed });
        }
        match self.previous.as_mut().filter(|e| e.local_index == index && now < e.until) {
            // An old packet never moves a path, because the newer epoch has newer information.
            Some(epoch) => epoch.open(&header, datagram).map(|(plaintext, _)| Opened {
                plaintext,
                path: header.path,
                newest: false,
                confirmed: None,
            }),
            None => Err(DropReason::UnknownIndex),
        }
    }

    fn promote(&mut self, mut epoch: Box<Epoch>, now: Instant) {
        let fresh_peer = epoch.fresh_peer;
        // Displaced epochs open nothing; `expire` reports their indices.
        let mut over = epoch.older.take();
        append(&mut over, self.previous.take());
        let mut each = over.as_deref_mut();
        while let Some(epoch) = each {
            epoch.until = now;
            each = epoch.older.as_deref_mut();
        }
        self.previous = match self.current.replace(epoch) {
            Some(mut old) => {
                // A restarted peer has nothing in flight under the old keys.
                old.until = if fresh_peer { now } else { old.until.min(now + PREVIOUS_LIFE) };
                old.older = over;
                Some(old)
            }
            None => over,
        };
    }

    /// The peer has restarted: its earlier packets are no longer valid.
    pub fn forget_previous(&mut self) {
        self.previous = None;
    }

    /// Removes expired epochs.
    ///
    /// Returns the receiver indices that no longer open any packet.
    pub fn expire(&mut self, now: Instant) -> Vec<u32> {
        let mut gone = Vec::new();
        let mut older = self.previous.take();
        while let Some(mut epoch) = older {
            older = epoch.older.take();
            if epoch.until > now && self.previous.is_none() {
                self.previous = Some(epoch);
            } else {
                gone.push(epoch.local_index);
            }
        }
        let mut waiting = &mut self.next;
        while let Some(epoch) = waiting.take_if(|e| e.created() + NEXT_LIFE > now) {
            waiting = &mut waiting.insert(epoch).older;
        }
        // The others are older.
        let over = waiting.take();
        gone.extend(chain(over.as_deref()).map(|e| e.local_index));
        if let Some(epoch) = self.current.take_if(|e| e.until <= now) {
            gone.push(epoch.local_index);
        }
        gone
    }

    /// When [`KeyRing::expire`] is due.
    #[must_use]
    pub fn expires_at(&self) -> Option<Instant> {
        let previous =
            self.previous.as_ref().map(|e| if e.older.is_some() { Instant::ZERO } else { e.until });
        let next = chain(self.next.as_deref()).last().map(|e| e.created() + NEXT_LIFE);
        let current = self.current.as_ref().map(|e| e.until);
        [previous, next, current].into_iter().flatten().min()
    }

    /// Frees the expanded ciphers and all but the newest part of the replay windows; the next packet creates
    /// them again.
    pub fn cool_down(&mut self) {
        for epochs in [&mut self.current, &mut self.next, &mut self.previous] {
            let mut each = epochs.as_deref_mut();
            while let Some(epoch) = each {
                epoch.cool_down();
                each = epoch.older.as_deref_mut();
            }
        }
    }
}

/// An epoch and its predecessors.
fn chain(epoch: Option<&Epoch>) -> impl Iterator<Item = &Epoch> {
    core::iter::successors(epoch, |e| e.older.as_deref())
}

/// Appends epochs after the last one.
fn append(mut epochs: &mut Option<Box<Epoch>>, more: Option<Box<Epoch>>) {
    while let Some(epoch) = epochs {
        epochs = &mut epoch.older;
    }
    *epochs = more;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crypto::{Initiator, PrivateKey, Responder, Suite, Verdict};
    use anabranch_wire::handshake::{Access, Hello, Welcome};
    use rand_chacha::ChaCha20Rng;
    use rand_core::SeedableRng;

    const NOW: Instant = Instant::from_secs(1000);

    /// The two ends of a handshake, the UPF's under index `index`.
    fn epochs(index: u32, now: Instant) -> (Epoch, Epoch) {
        let mut rng = ChaCha20Rng::seed_from_u64(index.into());
        let (ue, upf) = (PrivateKey::generate(&mut rng), PrivateKey::generate(&mut rng));
        let mut responder = Responder::new(upf.clone(), [1; 32]);
        let accesses = vec![Access { path: 0, name: "5g".into() }];
        let hello = Hello { path: 0, accesses, mtu: 1400, resume: None, plain: 0, features: 0 };
        let suite = Suite::Aes256Gcm;
        let (mut initiator, init) =
            Initiator::start(&ue, &upf.public(), suite, 7, 1, &hello, None, &mut rng).unwrap();
        let from = "192.0.2.1:1".parse().unwrap();
        let Verdict::Passed(init) = responder.inspect(&init, from, now, false) else { panic!() };
        let pending = init.read().unwrap();
        let welcome = Welcome {
            ipv4: Some(([10, 0, 0, 1].into(), 32)),
            ipv6: None,
            inner_mtu: 1400,
            reorder_available: 0,
            instance: 0,
            plain: 0,
            features: 0,
        };
        let (keys, response) = pending.respond(index, &welcome).unwrap();
        let established = initiator.finish(&response).unwrap();
        (Epoch::new(7, index, established.keys, now), Epoch::new(index, 7, keys, now))
    }

    fn sealed(ring: &mut KeyRing, path: PathId) -> Vec<u8> {
        let mut buf = vec![0; SECURE_OVERHEAD + 10];
        ring.seal(path, &mut buf, NOW).unwrap();
        buf
    }

    #[test]
    fn an_idle_epoch_is_small() {
        assert!(size_of::<Epoch>() <= 184, "{}", size_of::<Epoch>());
        assert_eq!(size_of::<KeyRing>(), 24);
    }

    #[test]
    fn every_expired_index_is_reported_once() {
        let (mut ue, mut upf) = (KeyRing::default(), KeyRing::default());
        let mut reported = Vec::new();
        for index in 0..6 {
            let (ours, theirs) = epochs(index, NOW);
            ue.install_now(ours, NOW);
            reported.extend(upf.install_unconfirmed(theirs));
            if index != 3 {
                let opened = upf.open(&mut sealed(&mut ue, 0), NOW).map(|o| o.confirmed).unwrap();
                assert_eq!(opened, Some(Confirmed { local_index: index, fresh_peer: false }));
            }
        }
        assert!(reported.is_empty(), "unconfirmed epochs are removed with confirmed ones");
        assert_eq!(upf.expires_at(), Some(Instant::ZERO), "one too many is waiting to be reported");
        reported.extend(upf.expire(NOW));
        reported.sort_unstable();
        assert_eq!(reported, [0, 1, 2, 3]);
        assert_eq!(upf.indices().collect::<Vec<_>>(), [5, 4]);
        assert_eq!(upf.expire(NOW + PREVIOUS_LIFE), [4]);
        assert_eq!(upf.expire(NOW + REJECT_AFTER), [5]);
        assert_eq!((upf.indices().count(), upf.expires_at()), (0, None));
    }

    #[test]
    fn any_of_the_last_handshakes_may_be_used_and_ends_earlier_ones() {
        for used in 0..MAX_UNCONFIRMED {
            for (later, more) in [(0, 0), (0, 2), (3, 0)] {
                let mut upf = KeyRing::default();
                let (ours, theirs) = epochs(100, NOW);
                let mut ue = KeyRing::default();
                ue.install_now(ours, NOW);
                upf.install_unconfirmed(theirs.with_instance(100));
                upf.open(&mut sealed(&mut ue, 0), NOW).map(|_| ()).unwrap();
                let mut tries: Vec<Option<Epoch>> = Vec::new();
                let mut given_up = Vec::new();
                for index in 0..(MAX_UNCONFIRMED + more) as u32 {
                    let (ours, theirs) = epochs(index, NOW + Duration::from_secs(index.into()));
                    tries.push(Some(ours));
                    let theirs = theirs.with_instance(index).with_fresh_peer(index == 2);
                    given_up.extend(upf.install_unconfirmed(theirs));
                }
                assert_eq!(given_up, (0..more as u32).collect::<Vec<_>>());
                assert_eq!(upf.indices().count(), MAX_UNCONFIRMED + 1);
                let used = used + more;
                let fresh_peer = used == 2;
                let peer_instance = |instance, fresh_peer| Some(PeerInstance { instance, fresh_peer });
                assert_eq!(upf.peer_instance(used as u32), peer_instance(used as u32, fresh_peer));
                assert_eq!(
                    (upf.peer_instance(100), upf.peer_instance(99)),
                    (peer_instance(100, false), None)
                );
                ue.install_now(tries[used].take().unwrap(), NOW);
                for n in 0..=later {
                    let opened = upf.open(&mut sealed(&mut ue, 0), NOW).map(|o| o.confirmed).unwrap();
                    let confirmed = Confirmed { local_index: used as u32, fresh_peer };
                    assert_eq!(opened, (n == 0).then_some(confirmed));
                }
                assert_eq!(
                    upf.peer_instance(used as u32),
                    peer_instance(used as u32, false),
                    "it is used now"
                );
                let mut gone = upf.expire(NOW);
                gone.sort_unstable();
                let mut over: Vec<u32> = (more as u32..used as u32).collect();
                over.extend(fresh_peer.then_some(100));
                assert_eq!(gone, over);
                // Later ones are kept for their own time.
                let mut left: Vec<u32> = (used as u32 + 1..tries.len() as u32).collect();
                for second in 0..=tries.len() as u64 {
                    let now = NOW + NEXT_LIFE + Duration::from_secs(second);
                    upf.expire(now);
                    left.retain(|index| u64::from(*index) > second);
                    let waiting: Vec<u32> = chain(upf.next.as_deref()).map(|e| e.local_index).collect();
                    assert_eq!(waiting, left.iter().rev().copied().collect::<Vec<_>>());
                }
            }
        }
    }

    #[test]
    fn nothing_is_allocated_for_a_forged_packet_and_every_path_has_its_numbers() {
        let (mut ue, mut upf) = (KeyRing::default(), KeyRing::default());
        let (ours, theirs) = epochs(9, NOW);
        ue.install_now(ours, NOW);
        upf.install_unconfirmed(theirs);
        upf.open(&mut sealed(&mut ue, 0), NOW).map(|_| ()).unwrap();
        let mut forged = sealed(&mut ue, 5);
        forged[30] ^= 1;
        assert_eq!(upf.open(&mut forged, NOW).map(|_| ()), Err(DropReason::Forged));
        assert!(upf.current.as_ref().unwrap().more_lanes.is_none());
        for path in 0..MAX_PATHS as PathId {
            let packet = sealed(&mut ue, path);
            assert!(upf.open(&mut packet.clone(), NOW).map(|o| o.newest).unwrap());
            assert_eq!(upf.open(&mut packet.clone(), NOW).map(|_| ()), Err(DropReason::Replayed));
            upf.cool_down();
            assert_eq!(upf.open(&mut packet.clone(), NOW).map(|_| ()), Err(DropReason::Replayed));
        }
        let mut buf = vec![0; SECURE_OVERHEAD];
        assert_eq!(ue.seal(MAX_PATHS as PathId, &mut buf, NOW), Err(DropReason::UnknownPath));
    }

    #[test]
    fn a_packet_that_cannot_be_sealed_leaves_no_plaintext_and_is_not_sent() {
        struct Sink(Vec<Vec<u8>>, Vec<u8>);
        impl crate::DatagramSink for Sink {
            fn reserve(&mut self, _: PathId, _: std::net::SocketAddr, len: usize) -> Option<&mut [u8]> {
                self.0.push(vec![0xee; len]); // contents of an earlier datagram
                self.0.last_mut().map(Vec::as_mut_slice)
            }
            fn withdraw(&mut self, _: PathId) {
                self.1 = self.0.pop().unwrap();
            }
        }
        let to = "192.0.2.1:1".parse().unwrap();
        let fresh = || {
            let mut ring = KeyRing::default();
            ring.install_now(epochs(1, NOW).0, NOW);
            ring
        };
        let used_up = |path| {
            let mut ring = fresh();
            ring.current.as_mut().unwrap().spend(path, crate::crypto::REJECT_AFTER_PACKETS);
            ring
        };
        let cases = [
            (KeyRing::default(), 0, NOW),
            (fresh(), 0, NOW + REJECT_AFTER),
            (fresh(), MAX_PATHS as PathId, NOW),
            (used_up(0), 0, NOW),
            (used_up(5), 5, NOW),
        ];
        for (n, (mut ring, path, now)) in cases.into_iter().enumerate() {
            let mut sink = Sink(Vec::new(), Vec::new());
            let sent = crate::put(&mut sink, path, to, SECURE_OVERHEAD + 10, |slot| {
                slot[SecureHeader::LEN..].fill(0x5e);
                ring.seal(path, slot, now)
            });
            assert!(sent.is_err() && sink.0.is_empty(), "case {n}: sent");
            assert_eq!(sink.1, [0; SECURE_OVERHEAD + 10], "case {n}");
        }
        let mut sink = Sink(Vec::new(), Vec::new());
        let sent = crate::put(&mut sink, 0, to, 100, |_| Err(DropReason::Malformed));
        assert_eq!((sent, sink.0.len(), sink.1), (Err(DropReason::Malformed), 0, vec![0; 100]));
    }

    #[test]
    fn a_restarted_peer_has_nothing_in_flight() {
        let (mut ue, mut upf) = (KeyRing::default(), KeyRing::default());
        let (ours, theirs) = epochs(1, NOW);
        ue.install_now(ours, NOW);
        upf.install_unconfirmed(theirs);
        upf.open(&mut sealed(&mut ue, 0), NOW).map(|_| ()).unwrap();
        let mut late = sealed(&mut ue, 0);
        let (ours, theirs) = epochs(2, NOW);
        let mut again = KeyRing::default();
        again.install_now(ours, NOW);
        upf.install_unconfirmed(theirs.with_fresh_peer(true));
        let confirmed = upf.open(&mut sealed(&mut again, 0), NOW).map(|o| o.confirmed).unwrap();
        assert_eq!(confirmed, Some(Confirmed { local_index: 2, fresh_peer: true }));
        assert_eq!(upf.open(&mut late, NOW).map(|_| ()), Err(DropReason::UnknownIndex));
    }
}
