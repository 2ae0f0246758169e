//! The public keys of an authorization server: a JWK set (RFC 7517). Keys that are not supported are ignored.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use jsonwebtoken::{DecodingKey, crypto};
use serde_json::Value;

/// Maximum number of keys that are kept.
const MOST_KEYS: usize = 64;
/// Maximum number of keys that are tried for one token.
const MOST_TRIED: usize = 4;

/// Signature algorithms of tokens; all of them use public keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    /// RSASSA-PKCS1-v1_5 with SHA-256 and keys of 2048 bits or more.
    Rs256,
    /// ECDSA with P-256 and SHA-256.
    Es256,
    /// Ed25519 (RFC 8037).
    EdDsa,
}

impl Algorithm {
    /// The algorithm with this name in a header (RFC 7518 §3.1, RFC 8037 §3.1); `None` for all others.
    pub fn of(name: &str) -> Option<Self> {
        match name {
            "RS256" => Some(Self::Rs256),
            "ES256" => Some(Self::Es256),
            "EdDSA" => Some(Self::EdDsa),
            _ => None,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Rs256 => "RS256",
            Self::Es256 => "ES256",
            Self::EdDsa => "EdDSA",
        }
    }

    const fn to_library(self) -> jsonwebtoken::Algorithm {
        match self {
            Self::Rs256 => jsonwebtoken::Algorithm::RS256,
            Self::Es256 => jsonwebtoken::Algorithm::ES256,
            Self::EdDsa => jsonwebtoken::Algorithm::EdDSA,
        }
    }
}

struct Key {
    kid: Option<String>,
    /// The algorithm that the key's type determines; a token cannot choose how a key is used.
    algorithm: Algorithm,
    key: DecodingKey,
}

/// The keys with which tokens may be signed.
pub struct KeySet(Vec<Key>);

impl KeySet {
    /// The usable keys of a JWK set.
    ///
    /// # Errors
    /// The text is not a JWK set, or has no usable key.
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        let document: Value = serde_json::from_slice(text).map_err(|e| format!("it is not JSON: {e}"))?;
        let list = document.get("keys").and_then(Value::as_array).ok_or("it has no list \"keys\"")?;
        let keys: Vec<Key> = list.iter().filter_map(Key::of).take(MOST_KEYS).collect();
        if keys.is_empty() {
            return Err("it has no key for RS256, ES256 or EdDSA".to_owned());
        }
        Ok(Self(keys))
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Verifies a signature with the key `kid`, or with any key if none is named. `None` if there is no such
    /// key.
    pub fn verify(
        &self,
        algorithm: Algorithm,
        kid: Option<&str>,
        message: &[u8],
        signature: &str,
    ) -> Option<bool> {
        let fits = |key: &&Key| key.algorithm == algorithm && (kid.is_none() || key.kid.as_deref() == kid);
        let mut any = false;
        for key in self.0.iter().filter(fits).take(MOST_TRIED) {
            any = true;
            if crypto::verify(signature, message, &key.key, algorithm.to_library()).unwrap_or(false) {
                return Some(true);
            }
        }
        any.then_some(false)
    }
}

impl Key {
    /// A supported key for signatures with sufficient strength.
    fn of(v: &Value) -> Option<Self> {
        let text = |key: &str| v.get(key).and_then(Value::as_str);
        let bytes = |key: &str| BASE64_URL_SAFE_NO_PAD.decode(text(key)?).ok();
        let is_for_signatures = v.get("use").is_none_or(|of| of == "sig")
            && v.get("key_ops")
                .is_none_or(|ops| ops.as_array().is_some_and(|ops| ops.iter().any(|op| op == "verify")));
        if !is_for_signatures {
            return None;
        }
        let (algorithm, key) = match (text("kty")?, text("crv")) {
            ("RSA", _) => {
                let (n, e) = (bytes("n")?, bytes("e")?);
                let bits = n.iter().skip_while(|b| **b == 0).count() * 8;
                if !(2048..=8192).contains(&bits) {
                    return None;
                }
                (Algorithm::Rs256, DecodingKey::from_rsa_raw_components(&n, &e))
            }
            ("EC", Some("P-256")) => {
                let (x, y) = (bytes("x")?, bytes("y")?);
                if (x.len(), y.len()) != (32, 32) {
                    return None;
                }
                let point = [&[4][..], &x, &y].concat();
                (Algorithm::Es256, DecodingKey::from_ec_der(&point))
            }
            ("OKP", Some("Ed25519")) => {
                let x = bytes("x").filter(|x| x.len() == 32)?;
                (Algorithm::EdDsa, DecodingKey::from_ed_der(&x))
            }
            _ => return None,
        };
        if text("alg").is_some_and(|alg| alg != algorithm.name()) {
            return None;
        }
        Some(Self { kid: text("kid").map(str::to_owned), algorithm, key })
    }
}
