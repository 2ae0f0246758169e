//! Static keys: X25519, in base64 wherever a person sees them.

use aws_lc_rs::agreement::{self, UnparsedPublicKey, X25519};
use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use core::fmt;
use core::str::FromStr;
use rand_core::CryptoRng;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::sync::Arc;
use thiserror::Error;
use zeroize::Zeroizing;

/// Why a string is not a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("not a key: needs 44 characters of base64, as `anabranch keygen` prints")]
pub struct KeyError;

/// A static public key. Written in base64.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicKey(pub [u8; 32]);

impl PublicKey {
    /// First byte of the key's SHA-256: lets a UPF of several threads hand an init to the one that owns
    /// the UE.
    #[must_use]
    pub fn shard_hint(&self) -> u8 {
        digest(&SHA256, &self.0).as_ref().first().copied().unwrap_or(0)
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&STANDARD.encode(self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({self})")
    }
}

impl FromStr for PublicKey {
    type Err = KeyError;
    fn from_str(s: &str) -> Result<Self, KeyError> {
        Ok(Self(*decode(s)?))
    }
}

impl Serialize for PublicKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for PublicKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

/// A private key: never displayed, and wiped when the last clone is dropped. Clones share it.
#[derive(Clone)]
pub struct PrivateKey(Arc<Pair>);

struct Pair {
    raw: Zeroizing<[u8; 32]>,
    /// The same key in AWS-LC's form, whose creation costs as much as an agreement. Any 32 bytes are a key,
    /// so it is missing only if AWS-LC had no memory; then no agreement succeeds.
    parsed: Option<agreement::PrivateKey>,
    public: PublicKey,
}

impl PrivateKey {
    /// A fresh key.
    pub fn generate(rng: &mut impl CryptoRng) -> Self {
        let mut bytes = Zeroizing::new([0; 32]);
        rng.fill_bytes(&mut *bytes);
        // X25519 ignores these bits (RFC 7748 §5); other tools expect them in the stored form.
        bytes[0] &= 0xF8;
        bytes[31] = bytes[31] & 0x7F | 0x40;
        Self::new(bytes)
    }

    /// A key from 32 bytes; every value is valid.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self::new(Zeroizing::new(bytes))
    }

    pub(super) fn new(raw: Zeroizing<[u8; 32]>) -> Self {
        let parsed = agreement::PrivateKey::from_private_key(&X25519, &*raw).ok();
        let public = parsed.as_ref().and_then(|key| key.compute_public_key().ok());
        let public = public.and_then(|key| key.as_ref().try_into().ok()).unwrap_or([0; 32]);
        Self(Arc::new(Pair { raw, parsed, public: PublicKey(public) }))
    }

    /// The corresponding public key.
    #[must_use]
    pub fn public(&self) -> PublicKey {
        self.0.public
    }

    /// In base64, for the file of its owner only.
    #[must_use]
    pub fn to_base64(&self) -> Zeroizing<String> {
        Zeroizing::new(STANDARD.encode(*self.0.raw))
    }

    pub(super) fn bytes(&self) -> &[u8; 32] {
        &self.0.raw
    }

    /// Whether it is a clone of `other`.
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The shared secret with the owner of `public`; `None` if that key is of low order.
    pub(super) fn agree(&self, public: &[u8]) -> Option<Zeroizing<[u8; 32]>> {
        let parsed = self.0.parsed.as_ref()?;
        agreement::agree(parsed, UnparsedPublicKey::new(&X25519, public), None, |secret| {
            secret.try_into().map(Zeroizing::new).map_err(|_| None::<()>)
        })
        .ok()
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrivateKey(…)")
    }
}

impl FromStr for PrivateKey {
    type Err = KeyError;
    fn from_str(s: &str) -> Result<Self, KeyError> {
        decode(s).map(Self::new)
    }
}

impl<'de> Deserialize<'de> for PrivateKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Zeroizing::new(String::deserialize(deserializer)?).parse().map_err(de::Error::custom)
    }
}

fn decode(s: &str) -> Result<Zeroizing<[u8; 32]>, KeyError> {
    let bytes = Zeroizing::new(STANDARD.decode(s.trim()).map_err(|_| KeyError)?);
    let array: [u8; 32] = bytes.as_slice().try_into().map_err(|_| KeyError)?;
    Ok(Zeroizing::new(array))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand_chacha::ChaCha20Rng;
    use rand_core::SeedableRng;

    #[test]
    fn rfc_7748_key_pair() {
        let private = PrivateKey::from_bytes([
            0x77, 0x07, 0x6d, 0x0a, 0x73, 0x18, 0xa5, 0x7d, 0x3c, 0x16, 0xc1, 0x72, 0x51, 0xb2, 0x66, 0x45,
            0xdf, 0x4c, 0x2f, 0x87, 0xeb, 0xc0, 0x99, 0x2a, 0xb1, 0x77, 0xfb, 0xa5, 0x1d, 0xb9, 0x2c, 0x2a,
        ]);
        let public = [
            0x85, 0x20, 0xf0, 0x09, 0x89, 0x30, 0xa7, 0x54, 0x74, 0x8b, 0x7d, 0xdc, 0xb4, 0x3e, 0xf7, 0x5a,
            0x0d, 0xbf, 0x3a, 0x0d, 0x26, 0x38, 0x1a, 0xf4, 0xeb, 0xa4, 0xa9, 0x8e, 0xaa, 0x9b, 0x4e, 0x6a,
        ];
        assert_eq!(private.public(), PublicKey(public));
    }

    #[test]
    fn base64_round_trip_and_refusals() {
        let private = PrivateKey::generate(&mut ChaCha20Rng::from_seed([1; 32]));
        let again: PrivateKey = private.to_base64().parse().unwrap();
        assert_eq!(again.public(), private.public());
        let public = private.public();
        assert_eq!(public.to_string().parse(), Ok(public));
        assert_eq!(
            serde_json::from_str::<PublicKey>(&serde_json::to_string(&public).unwrap()).unwrap(),
            public
        );
        assert_eq!(format!("{private:?}"), "PrivateKey(…)");
        for bad in ["", "abc", "AAAA", &"A".repeat(44), "!!!"] {
            assert_eq!(bad.parse::<PublicKey>(), Err(KeyError));
            assert!(bad.parse::<PrivateKey>().is_err());
        }
    }
}
