//! Fragmentation outside the tunnel, for packets that do not fit a path ([`crate::fragment`]). The session's
//! MTU is therefore constant.

use super::active::Active;
use super::path::Paths;
use super::{Path, Security, Session};
use crate::drops::{DropCounters, DropReason};
use crate::fragment::FragmentLayout;
use crate::mtu::{PathMtu, Phase};
use crate::{DatagramSink, PathId, put};
use anabranch_element::time::Instant;
use anabranch_steer::is_protected;
use anabranch_wire::control::{CONFIG_FRAGMENT_MAX, Control};
use anabranch_wire::ip::{self, IpPacket};
use anabranch_wire::tunnel::{
    Fragment, InnerHeader, OUTER_IPV6, PLAIN_OVERHEAD, REPAIR_OVERHEAD, SECURE_OVERHEAD, SecureHeader,
    TAG_LEN,
};

/// IPv6's least MTU. Paths that carry less are not considered when the MSS is lowered.
const LEAST_MTU: u16 = 1280;

impl Active {
    /// Largest UDP payload for user data on `path`, in bytes. The first call begins the search. `max` is the largest size to
    /// search for, 0: no search.
    #[inline]
    pub fn usable(&mut self, path: PathId, max: u16, now: Instant) -> usize {
        if max == 0 {
            return usize::MAX;
        }
        match self.mtu(path) {
            Some(mtu) => mtu.usable().into(),
            None => {
                let mtu = PathMtu::new(max, now);
                let usable = mtu.usable();
                self.set_mtu(path, mtu);
                usable.into()
            }
        }
    }
}

impl Session {
    /// Sends a message in fragments that `path` carries: `max` bytes of UDP payload each, always sealed.
    #[cold]
    pub(super) fn emit_pieces(
        &mut self,
        path: PathId,
        header: InnerHeader,
        payload: &[u8],
        max: usize,
        now: Instant,
        out: &mut impl DatagramSink,
    ) -> Result<(), DropReason> {
        let mut head = [0; InnerHeader::LEN];
        header.emit(&mut head).map_err(|_| DropReason::NoRoom)?;
        let total = head.len() + payload.len();
        let layout = FragmentLayout::new(total, max).ok_or(DropReason::TooBig)?;
        if !self.keys.can_seal(now) {
            return Err(DropReason::NoKeys);
        }
        let state = self.paths.get_mut(path).ok_or(DropReason::UnknownPath)?;
        let (access, to) = (state.access(), state.endpoint().ok_or(DropReason::NoPath)?);
        let next = Active::of(&mut self.active, &self.profile).cuts.get_mut(usize::from(path));
        let number = next.map(|next| core::mem::replace(next, next.wrapping_add(1))).unwrap_or(0);
        for at in layout.pieces() {
            let size = Fragment::OVERHEAD + at.len();
            let keys = &mut self.keys;
            put(out, access, to, size, |slot| {
                let body = &mut slot[SecureHeader::LEN..size - TAG_LEN];
                // `FragmentLayout` bounds both by `MAX_MESSAGE`.
                let (total, offset) = (total as u16, at.start as u16);
                let piece = Fragment { number, total, offset, bytes: &[] };
                piece.emit_header(at.len(), body).map_err(|_| DropReason::NoRoom)?;
                let bytes = &mut body[Fragment::HEADER..];
                let of_head = head.len().saturating_sub(at.start).min(bytes.len());
                bytes[..of_head].copy_from_slice(&head[head.len() - of_head..]);
                let from = (at.start + of_head).saturating_sub(head.len());
                bytes[of_head..].copy_from_slice(&payload[from..from + at.len() - of_head]);
                keys.seal(path, slot, now)
            })?;
            state.monitor.on_data_sent(size, now);
            state.fragments().tx_pieces += 1;
        }
        Ok(())
    }

    /// Sends a fragment of configuration that the path does not carry whole, in pieces.
    #[cold]
    pub(super) fn emit_config_pieces(
        &mut self,
        path: PathId,
        message: &Control<'_>,
        max: usize,
        now: Instant,
        out: &mut impl DatagramSink,
    ) -> Result<(), DropReason> {
        let mut bytes = [0; CONFIG_FRAGMENT_MAX + 64];
        let len = message.encoded_len();
        let bytes = bytes.get_mut(..len).ok_or(DropReason::Malformed)?;
        message.emit(bytes).map_err(|_| DropReason::Malformed)?;
        let (header, body) = InnerHeader::parse(bytes).map_err(|_| DropReason::Malformed)?;
        self.emit_pieces(path, header, body, max, now, out)
    }

    /// Lowers the MSS of a TCP SYN to the size that the session carries whole.
    ///
    /// That is the inner MTU, or less if a live path carries less, so that TCP segments are not fragmented
    /// there. This costs the other paths at most 0.7 % of their rate in headers, and halves the number of
    /// datagrams on the smaller one. A path that does not carry [`LEAST_MTU`] would cost more; it is not
    /// considered unless all paths are that small.
    pub(super) fn clamp_mss(&self, ip: &IpPacket, packet: &mut [u8]) {
        ip::clamp_mss_with(ip, packet, || self.segment_mtu());
    }

    fn segment_mtu(&self) -> u16 {
        let inner_mtu = self.profile.inner_mtu();
        let Some(active) = &self.active else { return inner_mtu };
        let up = self.paths.iter().filter(|path| path.monitor.is_up());
        let (mut least, mut largest, mut all_small) = (inner_mtu, 0, true);
        // Where packets are protected, there is room for the code.
        let is_lossy = |path: &Path| is_protected(path.monitor.wild_ppm());
        let protects = self.profile.restores() && self.paths.iter().any(is_lossy);
        let protection = if protects { REPAIR_OVERHEAD as u16 } else { 0 };
        for path in up {
            let overhead = match self.profile.security(path.id) {
                Security::Secure => SECURE_OVERHEAD as u16,
                Security::Plain => PLAIN_OVERHEAD as u16,
            };
            let overhead = overhead + protection;
            // The size of a path is unknown while it is being searched.
            match active.mtu(path.id).and_then(PathMtu::proven).map(|most| most.saturating_sub(overhead)) {
                Some(mtu) if mtu < LEAST_MTU => largest = largest.max(mtu),
                Some(mtu) => (least, all_small) = (least.min(mtu), false),
                None => all_small = false,
            }
        }
        if all_small && largest > OUTER_IPV6 as u16 { largest.min(inner_mtu) } else { least }
    }

    /// The UDP payload that a faster data path may send on `path`; `None` while the search is not complete.
    pub(super) fn settled_payload(&self, path: PathId) -> Option<u16> {
        if self.profile.max_payload == 0 {
            return Some(u16::MAX);
        }
        let mtu = self.active.as_ref()?.mtu(path)?;
        (mtu.phase() == Phase::Complete).then(|| mtu.usable())
    }

    /// Answers a packet larger than the tunnel's MTU with an ICMP error.
    ///
    /// The source address of the answer is the destination of the packet. The host routes that address to the
    /// tunnel, so the answer passes its reverse path filter, however strict. It is also never one of the
    /// host's own addresses, whose packets the kernel would drop ("martian source"). The gateway address of
    /// the tunnel would not do, because a UE that sends only some prefixes through the tunnel need not have a
    /// route to it.
    pub(super) fn refuse_too_big(&mut self, packet: &[u8], mtu: u16) {
        if let Ok((_, to)) = ip::src_dst(packet) {
            self.active().queue_icmp(|| ip::packet_too_big(packet, mtu, to));
        }
    }
}

/// Counts a message that remains incomplete.
pub(super) fn lost_piece(paths: &mut Paths, path: PathId, drops: &mut DropCounters) {
    drops.count(DropReason::Incomplete);
    if let Some(path) = paths.get_mut(path) {
        path.fragments().rx_incomplete += 1;
    }
}
