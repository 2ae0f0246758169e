//! Parser of JWT access tokens. Its input is untrusted. Time and keys are passed as arguments.

use super::keys::{Algorithm, KeySet};
use super::{Caller, OPERATOR_SCOPE, READER_SCOPE, Refused, Role};
use crate::runtime::config::OAuth;
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Maximum length of a token, bytes.
const MOST_BYTES: usize = 8 << 10;
/// Maximum number of scopes that are read.
const MOST_SCOPES: usize = 256;
/// Upper bound of times (year 9999), Unix time in seconds.
const LATEST: f64 = 253_402_300_799.0;

/// The header of a token (RFC 7515 §4.1). Other members (`jku`, `jwk`, `x5u` …) are ignored: a token cannot
/// choose the trusted key.
#[derive(Deserialize)]
struct Header {
    alg: String,
    #[serde(default)]
    kid: Option<String>,
    #[serde(default)]
    typ: Option<String>,
    #[serde(default)]
    crit: Option<Value>,
}

/// A parsed token whose signature and claims have not been checked yet.
pub struct Token<'a> {
    algorithm: Algorithm,
    /// Key id of the signing key.
    pub kid: Option<String>,
    /// The signed part of the token.
    message: &'a [u8],
    signature: &'a str,
    claims: Map<String, Value>,
}

impl<'a> Token<'a> {
    /// Parses a token.
    pub fn read(text: &'a str, config: &OAuth) -> Result<Self, Refused> {
        const NO_JWT: Refused = Refused::Invalid("token missing or wrong");
        if text.len() > MOST_BYTES {
            return Err(Refused::Invalid("the token is too long"));
        }
        let (message, signature) = text.rsplit_once('.').ok_or(NO_JWT)?;
        let (header, claims) = message.split_once('.').ok_or(NO_JWT)?;
        let decode = |part: &str| BASE64_URL_SAFE_NO_PAD.decode(part).map_err(|_| NO_JWT);
        let header: Header = serde_json::from_slice(&decode(header)?).map_err(|_| NO_JWT)?;
        // Only these algorithms: not "none", and not HMAC, whose key would be public.
        let algorithm =
            Algorithm::of(&header.alg).ok_or(Refused::Invalid("its alg is not RS256, ES256 or EdDSA"))?;
        if header.crit.is_some() {
            return Err(Refused::Invalid("its crit has an unsupported extension"));
        }
        let typ = header.typ.as_deref().map(|typ| typ.to_ascii_lowercase());
        let typ = typ.as_deref().map(|typ| typ.strip_prefix("application/").unwrap_or(typ));
        let fits = match typ {
            Some("at+jwt") => true,
            Some("jwt") | None => config.any_type,
            Some(_) => false,
        };
        if !fits {
            return Err(Refused::Invalid("its typ is not at+jwt"));
        }
        let claims = serde_json::from_slice(&decode(claims)?).map_err(|_| NO_JWT)?;
        Ok(Self { algorithm, kid: header.kid, message: message.as_bytes(), signature, claims })
    }

    /// Checks issuer, audience and times at `now` (Unix time in seconds). It is cheap, so it precedes the
    /// check of the signature.
    pub fn check_claims(&self, config: &OAuth, now: u64) -> Result<(), Refused> {
        if self.claims.get("iss").and_then(Value::as_str) != Some(&config.issuer) {
            return Err(Refused::Invalid("its iss is not the configured issuer"));
        }
        let for_us = match self.claims.get("aud") {
            Some(Value::String(aud)) => *aud == config.audience,
            Some(Value::Array(list)) => {
                // If a member is not a string, the whole claim is invalid.
                list.iter().all(Value::is_string) && list.iter().any(|aud| *aud == config.audience.as_str())
            }
            _ => false,
        };
        if !for_us {
            return Err(Refused::Invalid("its aud does not contain the configured audience"));
        }
        let leeway = f64::from(config.leeway_s);
        let now = now as f64;
        let Some(exp) = self.time("exp")? else { return Err(Refused::Invalid("it has no exp")) };
        // RFC 7519 §4.1.4: a token is invalid on and after its exp.
        if now >= exp + leeway {
            return Err(Refused::Invalid("it has expired"));
        }
        for claim in ["nbf", "iat"] {
            if self.time(claim)?.is_some_and(|from| now < from - leeway) {
                return Err(Refused::Invalid("it is not valid yet"));
            }
        }
        Ok(())
    }

    /// A NumericDate (RFC 7519 §2).
    fn time(&self, claim: &str) -> Result<Option<f64>, Refused> {
        match self.claims.get(claim) {
            None => Ok(None),
            Some(value) => match value.as_f64().filter(|time| (0.0..=LATEST).contains(time)) {
                Some(time) => Ok(Some(time)),
                None => Err(Refused::Invalid("a time in it is invalid")),
            },
        }
    }

    /// Verifies the signature; `None` if no suitable key is known.
    pub fn check_signature(&self, keys: &KeySet) -> Option<bool> {
        keys.verify(self.algorithm, self.kid.as_deref(), self.message, self.signature)
    }

    /// The caller with the role and scopes of the token.
    pub fn caller(&self, config: &OAuth) -> Result<Caller, Refused> {
        let scopes: BTreeSet<String> = match self.claims.get("scope") {
            Some(Value::String(list)) => list.split(' ').take(MOST_SCOPES).map(str::to_owned).collect(),
            // RFC 8693 specifies a string, but some servers send a list.
            Some(Value::Array(list)) => {
                list.iter().filter_map(Value::as_str).take(MOST_SCOPES).map(str::to_owned).collect()
            }
            _ => BTreeSet::new(),
        };
        let role = if scopes.contains(OPERATOR_SCOPE) {
            Role::Operator
        } else if scopes.contains(READER_SCOPE) {
            Role::Reader
        } else {
            let name = self.claims.get(&config.tenant_claim).and_then(Value::as_str);
            let name = name.filter(|name| (1..=256).contains(&name.len()));
            Role::Tenant(name.ok_or(Refused::Invalid("it does not name the tenant"))?.into())
        };
        let leeway = u64::from(config.leeway_s);
        let until = self.time("exp")?.map(|exp| (exp as u64).saturating_add(leeway));
        Ok(Caller { role, scopes: Some(Arc::new(scopes)), until })
    }
}
