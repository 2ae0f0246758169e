//! What sessions with the same accesses have in common.

use super::{Security, SessionParams};
use crate::access::path::{FlapParams, ProbeParams, Role};
use crate::access::{MAX_PATHS, PathId};
use crate::policy::AccessName;
use std::sync::Arc;

/// One copy is shared by every session with these accesses.
#[derive(Debug)]
pub struct Profile {
    pub(super) role: Role,
    accesses: Arc<[AccessName]>,
    /// Bit *i*: user data is in the clear on path *i*.
    plain: u8,
    pub(super) probe: Arc<ProbeParams>,
    pub(super) flap: FlapParams,
    /// See [`SessionParams::max_payload`].
    pub(super) max_payload: u16,
    /// See [`SessionParams::fast_path`].
    pub(super) fast: bool,
    /// See [`SessionParams::tcp_lane`].
    pub(super) tcp_lane: bool,
}

impl Profile {
    /// For sessions with these accesses, in order of path ids; at most [`MAX_PATHS`] count. `probe` is what
    /// `params` has, shared.
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
            plain: securities.iter().enumerate().map(plain).sum(),
            probe: Arc::clone(probe),
            flap: params.flap,
            max_payload: params.max_payload,
            fast: params.fast_path,
            tcp_lane: params.tcp_lane,
        }
    }

    /// Names of the accesses, by path id.
    #[must_use]
    pub fn accesses(&self) -> &Arc<[AccessName]> {
        &self.accesses
    }

    /// How user data is protected on a path.
    #[must_use]
    pub fn security(&self, path: PathId) -> Security {
        let plain = u32::from(self.plain).checked_shr(path.into()).unwrap_or(0) & 1 == 1;
        if plain { Security::Plain } else { Security::Secure }
    }

    /// Whether there is an access with this path id.
    #[must_use]
    pub fn has(&self, path: PathId) -> bool {
        usize::from(path) < self.accesses.len()
    }
}
