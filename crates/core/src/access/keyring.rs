//! The keys of one tunnel end over time: current, the one to come, and the one that just left.
//!
//! ```text
//!            install()                    first packet under `next`            previous expires
//!  current ───────────▶ current + next ──────────────────────────▶ current + previous ─────▶ current
//!                       (UPF sends under current)                 (still opens what is in flight)
//! ```
//!
//! The UE may use new keys at once, because the response proves that the UPF has them; the UPF waits
//! for the first packet it can open under them (JUNCTION has no encryption; the law is WireGuard's,
//! §6.3 of its paper). Packet numbers and replay windows are per epoch and per path.

use crate::access::crypto::{
    REJECT_AFTER, REKEY_AFTER, REKEY_AFTER_PACKETS, Replay, ReplayWindow, SessionKeys,
};
use crate::access::drops::DropReason;
use crate::access::{MAX_PATHS, PathId};
use crate::time::{Duration, Instant};
use anabranch_wire::tunnel::{SECURE_OVERHEAD, SecureHeader};

/// Old keys open packets still in flight for this long after the new ones are confirmed.
const PREVIOUS_LIFE: Duration = Duration::from_secs(5);
/// Keys whose peer never confirmed them are forgotten after this long.
const NEXT_LIFE: Duration = Duration::from_secs(15);

/// What one handshake yielded: keys, both indices, and per path a packet number and replay window.
pub struct Epoch {
    /// Receiver index the peer puts into packets for us.
    pub local_index: u32,
    /// Receiver index we put into packets for the peer.
    pub peer_index: u32,
    keys: SessionKeys,
    created: Instant,
    lanes: Vec<Lane>,
}

#[derive(Default)]
struct Lane {
    next_number: u64,
    replay: ReplayWindow,
}

impl Epoch {
    /// The epoch a finished handshake opens.
    #[must_use]
    pub fn new(local_index: u32, peer_index: u32, keys: SessionKeys, now: Instant) -> Self {
        Self { local_index, peer_index, keys, created: now, lanes: Vec::new() }
    }

    fn lane(&mut self, path: PathId) -> Result<&mut Lane, DropReason> {
        let index = usize::from(path);
        if index >= MAX_PATHS {
            return Err(DropReason::UnknownPath);
        }
        if self.lanes.len() <= index {
            self.lanes.reserve_exact(index + 1 - self.lanes.len());
            self.lanes.resize_with(index + 1, Lane::default);
        }
        Ok(&mut self.lanes[index])
    }

    /// Seals `buf` = header room ‖ plaintext ‖ tag room, in place.
    fn seal(&mut self, path: PathId, buf: &mut [u8]) -> Result<(), DropReason> {
        let receiver = self.peer_index;
        let lane = self.lane(path)?;
        let number = lane.next_number;
        lane.next_number += 1;
        let (header, body) = buf.split_at_mut_checked(SecureHeader::LEN).ok_or(DropReason::Malformed)?;
        SecureHeader { path, receiver, packet_number: number }
            .emit(header)
            .map_err(|_| DropReason::Malformed)?;
        self.keys.tx.seal(path, number, header, body).map_err(|_| DropReason::NoKeys)
    }

    /// Opens a datagram in place; returns its plaintext and whether it is the newest of its path.
    fn open<'a>(
        &mut self,
        header: &SecureHeader,
        datagram: &'a mut [u8],
    ) -> Result<(&'a mut [u8], bool), DropReason> {
        let lane = self.lane(header.path)?;
        lane.replay.check(header.packet_number).map_err(|replay| match replay {
            Replay::Duplicate => DropReason::Replayed,
            Replay::TooOld => DropReason::TooOld,
        })?;
        let (aad, body) = datagram.split_at_mut_checked(SecureHeader::LEN).ok_or(DropReason::Malformed)?;
        let plaintext = self
            .keys
            .rx
            .open(header.path, header.packet_number, aad, body)
            .map_err(|_| DropReason::Forged)?;
        let newest = self.lane(header.path)?.replay.commit(header.packet_number);
        Ok((plaintext, newest))
    }
}

/// The epochs of one session.
#[derive(Default)]
pub struct KeyRing {
    current: Option<Box<Epoch>>,
    next: Option<Box<Epoch>>,
    previous: Option<(Box<Epoch>, Instant)>,
}

/// A datagram that was opened.
pub struct Opened<'a> {
    /// Inner header and payload.
    pub plaintext: &'a mut [u8],
    /// Path id of the secure header.
    pub path: PathId,
    /// Whether no later packet of this path was seen before: only then may it move the path.
    pub newest: bool,
    /// The keys this packet confirmed, if it is the first one under them.
    pub confirmed: Option<Confirmed>,
}

/// The peer used the new keys for the first time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Confirmed {
    /// Index of the epoch that is current from now on.
    pub local_index: u32,
}

impl KeyRing {
    /// Takes new keys into use at once (UE: the response proves the peer has them).
    ///
    /// Returns the receiver index that no longer opens anything, if one fell out.
    pub fn install_now(&mut self, epoch: Epoch, now: Instant) -> Option<u32> {
        let retired = self.previous.take().map(|(e, _)| e.local_index);
        self.previous = self.current.take().map(|e| (e, now + PREVIOUS_LIFE));
        self.current = Some(Box::new(epoch));
        retired
    }

    /// Takes new keys that the peer has still to confirm (UPF).
    ///
    /// Returns the receiver index of an unconfirmed epoch it replaces.
    pub fn install_unconfirmed(&mut self, epoch: Epoch) -> Option<u32> {
        self.next.replace(Box::new(epoch)).map(|e| e.local_index)
    }

    /// Whether there are keys to seal with at `now`.
    #[must_use]
    pub fn can_seal(&self, now: Instant) -> bool {
        self.current.as_ref().is_some_and(|e| now < e.created + REJECT_AFTER)
    }

    /// Whether the UE should start a new handshake.
    #[must_use]
    pub fn wants_rekey(&self, now: Instant) -> bool {
        self.current.as_ref().is_some_and(|e| {
            now >= e.created + REKEY_AFTER || e.lanes.iter().any(|l| l.next_number >= REKEY_AFTER_PACKETS)
        })
    }

    /// When [`KeyRing::wants_rekey`] becomes true by age.
    #[must_use]
    pub fn rekey_at(&self) -> Option<Instant> {
        self.current.as_ref().map(|e| e.created + REKEY_AFTER)
    }

    /// Whether an epoch with this receiver index is here.
    #[must_use]
    pub fn has_index(&self, local_index: u32) -> bool {
        self.indices().any(|i| i == local_index)
    }

    /// Every receiver index that opens packets.
    pub fn indices(&self) -> impl Iterator<Item = u32> + '_ {
        let current = self.current.iter().chain(self.next.iter()).map(|e| e.local_index);
        current.chain(self.previous.iter().map(|(e, _)| e.local_index))
    }

    /// Seals a datagram laid out as secure-header room ‖ plaintext ‖ tag room.
    ///
    /// # Errors
    /// [`DropReason::NoKeys`] when there are none or they are past their life.
    pub fn seal(&mut self, path: PathId, buf: &mut [u8], now: Instant) -> Result<(), DropReason> {
        debug_assert!(buf.len() >= SECURE_OVERHEAD);
        let epoch = self.current.as_mut().ok_or(DropReason::NoKeys)?;
        if now >= epoch.created + REJECT_AFTER {
            return Err(DropReason::NoKeys);
        }
        epoch.seal(path, buf)
    }

    /// Opens a datagram in place.
    ///
    /// # Errors
    /// The reason it was refused; the ring is unchanged then.
    pub fn open<'a>(&mut self, datagram: &'a mut [u8], now: Instant) -> Result<Opened<'a>, DropReason> {
        let header = SecureHeader::parse(datagram).map_err(|_| DropReason::Malformed)?;
        let index = header.receiver;
        if let Some(epoch) = self.current.as_mut().filter(|e| e.local_index == index) {
            if now >= epoch.created + REJECT_AFTER {
                return Err(DropReason::NoKeys);
            }
            let (plaintext, newest) = epoch.open(&header, datagram)?;
            return Ok(Opened { plaintext, path: header.path, newest, confirmed: None });
        }
        if let Some(epoch) = self.next.as_mut().filter(|e| e.local_index == index) {
            let (plaintext, newest) = epoch.open(&header, datagram)?;
            if let Some(epoch) = self.next.take() {
                self.previous = self.current.replace(epoch).map(|old| (old, now + PREVIOUS_LIFE));
            }
            let confirmed = Some(Confirmed { local_index: index });
            return Ok(Opened { plaintext, path: header.path, newest, confirmed });
        }
        match self.previous.as_mut().filter(|(e, until)| e.local_index == index && now < *until) {
            // An old packet never moves a path: the newer epoch knows better.
            Some((epoch, _)) => epoch.open(&header, datagram).map(|(plaintext, _)| Opened {
                plaintext,
                path: header.path,
                newest: false,
                confirmed: None,
            }),
            None => Err(DropReason::UnknownIndex),
        }
    }

    /// Forgets epochs past their time and frees expanded ciphers of an idle session.
    ///
    /// Returns the receiver indices that no longer open anything.
    pub fn expire(&mut self, now: Instant) -> Vec<u32> {
        let mut gone = Vec::new();
        if let Some((epoch, _)) = self.previous.take_if(|(_, until)| *until <= now) {
            gone.push(epoch.local_index);
        }
        if let Some(epoch) = self.next.take_if(|e| e.created + NEXT_LIFE <= now) {
            gone.push(epoch.local_index);
        }
        if let Some(epoch) = self.current.take_if(|e| e.created + REJECT_AFTER <= now) {
            gone.push(epoch.local_index);
        }
        gone
    }

    /// When [`KeyRing::expire`] has something to do.
    #[must_use]
    pub fn expires_at(&self) -> Option<Instant> {
        let previous = self.previous.as_ref().map(|(_, until)| *until);
        let next = self.next.as_ref().map(|e| e.created + NEXT_LIFE);
        let current = self.current.as_ref().map(|e| e.created + REJECT_AFTER);
        [previous, next, current].into_iter().flatten().min()
    }

    /// Frees the expanded ciphers; the next packet expands them again.
    pub fn cool_down(&mut self) {
        let epochs = self.current.iter_mut().chain(self.next.iter_mut());
        for epoch in epochs.chain(self.previous.iter_mut().map(|(e, _)| e)) {
            epoch.keys.tx.cool_down();
            epoch.keys.rx.cool_down();
        }
    }
}
