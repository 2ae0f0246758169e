//! The properties that sessions with the same accesses share.

use super::{PeerSettings, Security, SessionParams};
use crate::path::{FlapParams, ProbeParams, Role};
use crate::{MAX_PATHS, PathId};
use anabranch_rules::AccessName;
use anabranch_wire::handshake::FEATURE_PATH_REPAIRS;
use std::sync::Arc;

/// One copy is shared by all sessions with these accesses.
#[derive(Debug, Clone)]
pub struct Profile {
    pub(super) role: Role,
    accesses: Arc<[AccessName]>,
    /// Bit *i*: path *i* is configured `plain` at this end; at the peer.
    plain: [u8; 2],
    pub(super) probe: Arc<ProbeParams>,
    pub(super) flap: FlapParams,
    /// See [`SessionParams::max_payload`].
    pub(super) max_payload: u16,
    /// The largest inner packet, in bytes: of this end, and after the handshake the smaller of both ends'
    /// values.
    pub(super) inner_mtu: u16,
    /// Features of the peer, as bits.
    features: u8,
    /// See [`SessionParams::fast_path`].
    pub(super) fast: bool,
    /// See [`SessionParams::tcp_lane`].
    pub(super) tcp_lane: bool,
}

impl Profile {
    /// For sessions with these accesses, in order of path ids, at most [`MAX_PATHS`]. `probe` is a shared
    /// copy of the one in `params`.
    #[must_use]
    pub fn new(
        role: Role,
        accesses: impl IntoIterator<Item = (AccessName, Security)>,
        probe: &Arc<ProbeParams>,
        params: &SessionParams,
    ) -> Self {
        let (accesses, securities): (Vec<_>, Vec<_>) = accesses.into_iter().take(MAX_PATHS).unzip();
        let plain = |(i, security): (usize, &Security)| u8::from(*security == Security::Plain) << i;
        Self {
            role,
            accesses: accesses.into(),
            plain: [securities.iter().enumerate().map(plain).sum(); 2],
            probe: Arc::clone(probe),
            flap: params.flap,
            max_payload: params.max_payload,
            inner_mtu: params.inner_mtu,
            features: 0,
            fast: params.fast_path,
            tcp_lane: params.tcp_lane,
        }
    }

    /// Names of the accesses, by path id.
    #[must_use]
    pub fn accesses(&self) -> &Arc<[AccessName]> {
        &self.accesses
    }

    /// The same with the results of the handshake.
    #[must_use]
    pub fn with_peer(&self, peer: PeerSettings) -> Self {
        let PeerSettings { plain, inner_mtu, features } = peer;
        Self { plain: [self.plain[0], plain], inner_mtu, features, ..self.clone() }
    }

    /// The results of the last handshake.
    #[must_use]
    pub const fn peer(&self) -> PeerSettings {
        PeerSettings { plain: self.plain[1], inner_mtu: self.inner_mtu, features: self.features }
    }

    /// The features that this end states in the handshake, as bits. With a plain path, packets are not protected: a forged one
    /// could corrupt what is restored.
    #[must_use]
    pub const fn own_features(&self) -> u8 {
        if self.plain[0] == 0 { FEATURE_PATH_REPAIRS } else { 0 }
    }

    /// Whether both ends restore lost packets of a path from the repair packets of that path.
    #[must_use]
    pub const fn restores(&self) -> bool {
        self.features & self.own_features() & FEATURE_PATH_REPAIRS != 0
    }

    /// The largest inner packet that both ends accept, in bytes; before the first handshake, that this end
    /// accepts.
    #[must_use]
    pub const fn inner_mtu(&self) -> u16 {
        self.inner_mtu
    }

    /// Paths configured `plain` at this end, as bits.
    #[must_use]
    pub const fn plain(&self) -> u8 {
        self.plain[0]
    }

    /// Protection of user data on a path: plain only if both ends are configured so.
    #[must_use]
    pub fn security(&self, path: PathId) -> Security {
        if bit(self.plain[0] & self.plain[1], path) { Security::Plain } else { Security::Secure }
    }

    /// Protection of user data on a path as configured at this end.
    #[must_use]
    pub fn own_security(&self, path: PathId) -> Security {
        if bit(self.plain[0], path) { Security::Plain } else { Security::Secure }
    }

    /// Whether the ends are configured differently on a path, which therefore carries nothing.
    #[must_use]
    pub fn is_refused(&self, path: PathId) -> bool {
        bit(self.plain[0] ^ self.plain[1], path) && self.has(path)
    }

    /// Whether that applies to every path.
    #[must_use]
    pub fn refuses_all(&self) -> bool {
        (0..self.accesses.len() as PathId).all(|path| self.is_refused(path))
    }

    /// Whether there is an access with this path id.
    #[must_use]
    pub fn has(&self, path: PathId) -> bool {
        usize::from(path) < self.accesses.len()
    }
}

fn bit(set: u8, path: PathId) -> bool {
    u32::from(set).checked_shr(path.into()).unwrap_or(0) & 1 == 1
}
