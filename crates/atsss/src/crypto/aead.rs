//! Packet protection under one key epoch.

use super::{REJECT_AFTER_PACKETS, Suite};
use crate::PathId;
use aws_lc_rs::aead::{AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use core::fmt;
use thiserror::Error;
use zeroize::Zeroizing;

/// Bytes of the authentication tag.
const TAG_LEN: usize = anabranch_wire::tunnel::TAG_LEN;

/// Why a packet was not sealed or opened. Each is a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum CryptoError {
    /// No room for the tag.
    #[error("packet is shorter than its tag")]
    TooShort,
    /// The packet number is [`REJECT_AFTER_PACKETS`] or more: the key must not be used any more.
    #[error("packet number is beyond the life of the key")]
    Exhausted,
    /// Forged, damaged, or sealed with another key.
    #[error("packet does not authenticate")]
    Authentication,
    /// The library failed for lack of memory.
    #[error("cryptographic library is out of memory")]
    Library,
}

/// Both directions of one key epoch.
///
/// At rest they are 64 bytes of keys. The expanded form (round keys, GHASH tables) is computed on first use
/// and takes about 1.6 KiB on the heap.
pub struct SessionKeys {
    tx: Raw,
    rx: Raw,
    expanded: Option<Box<Expanded>>,
    suite: Suite,
}

type Raw = Zeroizing<[u8; 32]>;

struct Expanded {
    tx: LessSafeKey,
    rx: LessSafeKey,
}

impl SessionKeys {
    pub(super) fn new(suite: Suite, tx: Raw, rx: Raw) -> Self {
        Self { tx, rx, expanded: None, suite }
    }

    /// Encrypts `buf` except for its last 16 bytes in place, for the peer, and writes the tag into those.
    ///
    /// `pn` must never repeat on `path` under these keys. After an error `buf` must not be sent: it may still
    /// contain the plaintext.
    ///
    /// # Errors
    /// [`CryptoError::TooShort`], [`CryptoError::Exhausted`] or [`CryptoError::Library`].
    #[inline]
    pub fn seal(&mut self, path: PathId, pn: u64, aad: &[u8], buf: &mut [u8]) -> Result<(), CryptoError> {
        let nonce = nonce(path, pn)?;
        let (text, tag_room) = buf.split_last_chunk_mut::<TAG_LEN>().ok_or(CryptoError::TooShort)?;
        let tag = self
            .expanded()?
            .tx
            .seal_in_place_separate_tag(nonce, Aad::from(aad), text)
            .map_err(|_| CryptoError::Library)?;
        tag_room.copy_from_slice(tag.as_ref());
        Ok(())
    }

    /// Verifies and decrypts `buf` (ciphertext and tag) from the peer in place; returns the plaintext.
    ///
    /// After an error the contents of `buf` are undefined.
    ///
    /// # Errors
    /// [`CryptoError`]; the packet can be trusted only after success.
    #[inline]
    pub fn open<'a>(
        &mut self,
        path: PathId,
        pn: u64,
        aad: &[u8],
        buf: &'a mut [u8],
    ) -> Result<&'a mut [u8], CryptoError> {
        let nonce = nonce(path, pn)?;
        if buf.len() < TAG_LEN {
            return Err(CryptoError::TooShort);
        }
        let key = &self.expanded()?.rx;
        key.open_in_place(nonce, Aad::from(aad), buf).map_err(|_| CryptoError::Authentication)
    }

    /// Frees the expanded keys until the next packet.
    pub fn cool_down(&mut self) {
        self.expanded = None;
    }

    /// Whether the keys are expanded.
    #[must_use]
    #[cfg(test)]
    pub fn is_warm(&self) -> bool {
        self.expanded.is_some()
    }

    #[inline]
    fn expanded(&mut self) -> Result<&Expanded, CryptoError> {
        if self.expanded.is_none() {
            self.expand()?;
        }
        self.expanded.as_deref().ok_or(CryptoError::Library)
    }

    #[cold]
    fn expand(&mut self) -> Result<(), CryptoError> {
        let algorithm = match self.suite {
            Suite::Aes256Gcm => &AES_256_GCM,
            Suite::ChaCha20Poly1305 => &CHACHA20_POLY1305,
        };
        let key = |raw: &Raw| UnboundKey::new(algorithm, &**raw).map(LessSafeKey::new);
        let both = key(&self.tx).and_then(|tx| Ok(Expanded { tx, rx: key(&self.rx)? }));
        self.expanded = Some(Box::new(both.map_err(|_| CryptoError::Library)?));
        Ok(())
    }
}

impl fmt::Debug for SessionKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SessionKeys({:?})", self.suite)
    }
}

#[inline]
fn nonce(path: PathId, pn: u64) -> Result<Nonce, CryptoError> {
    if pn >= REJECT_AFTER_PACKETS {
        return Err(CryptoError::Exhausted);
    }
    let mut bytes = [0; 12];
    bytes[3] = path;
    bytes[4..].copy_from_slice(&pn.to_be_bytes());
    Ok(Nonce::assume_unique_for_key(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(suite: Suite) -> (SessionKeys, SessionKeys) {
        let keys = || SessionKeys::new(suite, Zeroizing::new([7; 32]), Zeroizing::new([7; 32]));
        (keys(), keys())
    }

    fn sealed(tx: &mut SessionKeys, path: u8, pn: u64, text: &[u8]) -> Vec<u8> {
        let mut buf = text.to_vec();
        buf.resize(text.len() + TAG_LEN, 0);
        tx.seal(path, pn, b"head", &mut buf).unwrap();
        buf
    }

    #[test]
    fn seals_and_opens_with_both_suites_warm_or_cold() {
        for suite in [Suite::Aes256Gcm, Suite::ChaCha20Poly1305] {
            let (mut tx, mut rx) = pair(suite);
            for pn in 0..4 {
                let mut buf = sealed(&mut tx, 1, pn, b"payload");
                assert_ne!(&buf[..7], b"payload");
                assert_eq!(rx.open(1, pn, b"head", &mut buf).unwrap(), b"payload");
                assert!(tx.is_warm() && rx.is_warm());
                tx.cool_down();
                rx.cool_down();
                assert!(!tx.is_warm() && !rx.is_warm());
            }
        }
    }

    /// Compared with another implementation: snow's nonce is 4 zero bytes and the counter, as ours on path 0.
    /// Noise has it big-endian for AES-GCM and little-endian for ChaCha20-Poly1305.
    #[test]
    fn the_nonce_is_path_then_packet_number() {
        use snow::params::CipherChoice;
        use snow::resolvers::{CryptoResolver, DefaultResolver};
        const PN: u64 = 0x0102_0304;
        for (suite, choice, counter) in [
            (Suite::Aes256Gcm, CipherChoice::AESGCM, PN),
            (Suite::ChaCha20Poly1305, CipherChoice::ChaChaPoly, PN.swap_bytes()),
        ] {
            let (mut tx, _) = pair(suite);
            let mut other = DefaultResolver.resolve_cipher(&choice).unwrap();
            other.set(&[7; 32]);
            let mut theirs = [0; 7 + TAG_LEN];
            other.encrypt(counter, b"head", b"payload", &mut theirs);
            assert_eq!(sealed(&mut tx, 0, PN, b"payload"), theirs);
            assert_ne!(sealed(&mut tx, 1, PN, b"payload"), theirs);
        }
    }

    #[test]
    fn every_part_is_bound() {
        let (mut tx, mut rx) = pair(Suite::Aes256Gcm);
        let good = sealed(&mut tx, 1, 5, b"payload");
        let mut open = |path, pn, aad: &[u8], buf: &[u8]| {
            rx.open(path, pn, aad, &mut buf.to_vec()).map(|text| text.to_vec())
        };
        assert_eq!(open(1, 5, b"head", &good).unwrap(), b"payload");
        let refused = Err(CryptoError::Authentication);
        assert_eq!(open(2, 5, b"head", &good), refused);
        assert_eq!(open(1, 6, b"head", &good), refused);
        assert_eq!(open(1, 5, b"heat", &good), refused);
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            assert_eq!(open(1, 5, b"head", &bad), refused, "byte {at}");
        }
        for len in 0..good.len() {
            let want = if len < TAG_LEN { CryptoError::TooShort } else { CryptoError::Authentication };
            assert_eq!(open(1, 5, b"head", &good[..len]), Err(want), "{len} bytes");
        }
        let (mut other, _) = pair(Suite::ChaCha20Poly1305);
        assert_eq!(open(1, 5, b"head", &sealed(&mut other, 1, 5, b"payload")), refused, "wrong suite");
    }

    #[test]
    fn a_used_up_key_seals_and_opens_nothing() {
        let (mut tx, mut rx) = pair(Suite::Aes256Gcm);
        let mut buf = [0; 32];
        assert_eq!(tx.seal(0, REJECT_AFTER_PACKETS, b"", &mut buf), Err(CryptoError::Exhausted));
        assert_eq!(rx.open(0, u64::MAX, b"", &mut buf), Err(CryptoError::Exhausted));
        assert_eq!(buf, [0; 32]);
        assert_eq!(tx.seal(0, 0, b"", &mut [0; 15]), Err(CryptoError::TooShort));
    }

    #[test]
    fn a_resting_epoch_is_small() {
        // Part of the 1 KiB that an idle session may use.
        assert_eq!(size_of::<SessionKeys>(), 80);
    }
}
