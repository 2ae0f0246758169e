//! Who asks, and how often they may.

use super::Shared;
use crate::api::{Problem, bearer, proved};
use aws_lc_rs::{constant_time, digest};
use axum::extract::{FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use rand_core::{OsRng, TryRngCore};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Who asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Who {
    /// May do everything.
    Operator,
    /// May see and change its own.
    Ue(String),
}

/// 128 bits from the system, as 22 letters.
pub fn new_token() -> Result<String, Problem> {
    Ok(BASE64_URL_SAFE_NO_PAD.encode(random::<16>()?))
}

/// A random UUID (RFC 9562, version 4).
pub fn new_uuid() -> Result<String, Problem> {
    let mut b = random::<16>()?;
    b[6] = b[6] & 0x0f | 0x40;
    b[8] = b[8] & 0x3f | 0x80;
    let hex: String = b.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]))
}

fn random<const N: usize>() -> Result<[u8; N], Problem> {
    let mut bytes = [0; N];
    OsRng.try_fill_bytes(&mut bytes).map_err(|e| Problem::unavailable(format!("no randomness: {e}")))?;
    Ok(bytes)
}

/// What is kept of a token.
pub fn hash(token: &str) -> String {
    let hash = digest::digest(&digest::SHA256, token.as_bytes());
    hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Every request passes here.
pub async fn guard(State(shared): State<Shared>, mut request: Request, next: Next) -> Response {
    let given = request.headers().get(header::AUTHORIZATION).map(|_| bearer(request.headers()));
    let who = match (given, &shared.operator) {
        // Only those who reach the socket, or this machine.
        (None, None) => Some(Who::Operator),
        (None, Some(_)) => None,
        (Some(given), operator) => {
            let hash = hash(given.unwrap_or_default());
            let is_operator = operator.as_ref().is_some_and(|operator| {
                constant_time::verify_slices_are_equal(operator.as_bytes(), hash.as_bytes()).is_ok()
            });
            // A lookup by hash: what its time tells is about the hash.
            let who = if is_operator { Some(Who::Operator) } else { shared.engine.ue_of(&hash).map(Who::Ue) };
            if who.is_some() {
                proved(&request);
            }
            who
        }
    };
    let key = match &who {
        Some(Who::Operator) => None,
        Some(Who::Ue(name)) => Some(name.as_str()),
        None => Some(""),
    };
    if let Some(key) = key
        && !shared.buckets.take(key, Instant::now())
    {
        let detail = "too many requests";
        let problem =
            Problem::new(StatusCode::TOO_MANY_REQUESTS, detail, "wait a second; a stream needs no polls");
        let mut response = problem.into_response();
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        return response;
    }
    match who {
        Some(who) => {
            request.extensions_mut().insert(who);
            next.run(request).await
        }
        None => {
            let remedy = "send \"Authorization: Bearer TOKEN\" with the operator's or the UE's token";
            let problem = Problem::new(StatusCode::UNAUTHORIZED, "token missing or wrong", remedy);
            let mut response = problem.into_response();
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            response
        }
    }
}

impl<S: Sync> FromRequestParts<S> for Who {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        parts
            .extensions
            .get::<Self>()
            .cloned()
            .ok_or_else(|| Problem::unavailable("nobody looked at the token"))
    }
}

/// The operator, or nobody.
pub struct Operator;

impl<S: Sync> FromRequestParts<S> for Operator {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        match Who::from_request_parts(parts, state).await? {
            Who::Operator => Ok(Self),
            Who::Ue(_) => {
                Err(forbidden("this is for the operator", "a UE may use /v1/me and what is below it"))
            }
        }
    }
}

/// A UE, by its token.
pub struct Me(pub String);

impl<S: Sync> FromRequestParts<S> for Me {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        match Who::from_request_parts(parts, state).await? {
            Who::Ue(name) => Ok(Self(name)),
            Who::Operator => Err(forbidden("this is for UEs", "use a UE's token, or /v1/ues/{ue}")),
        }
    }
}

/// Not with this token.
pub fn forbidden(detail: &str, remedy: &str) -> Problem {
    Problem::new(StatusCode::FORBIDDEN, detail, remedy)
}

/// Token buckets by name; that of wrong tokens has the empty name.
pub struct Buckets {
    ue_per_s: f64,
    ue_burst: f64,
    refused_per_s: f64,
    left: Mutex<HashMap<String, (f64, Instant)>>,
}

/// Buckets that are kept; past it, full ones are forgotten.
const MAX_BUCKETS: usize = 200_000;

impl Buckets {
    /// Full buckets.
    pub fn new(limits: &crate::config::Limits) -> Self {
        Self {
            ue_per_s: limits.ue_requests_per_s.into(),
            ue_burst: limits.ue_burst.into(),
            refused_per_s: limits.refused_per_s.into(),
            left: Mutex::default(),
        }
    }

    /// Whether there is one more for `name`.
    pub fn take(&self, name: &str, now: Instant) -> bool {
        let (rate, burst) = if name.is_empty() {
            (self.refused_per_s, self.refused_per_s)
        } else {
            (self.ue_per_s, self.ue_burst)
        };
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        if left.len() >= MAX_BUCKETS && !left.contains_key(name) {
            left.retain(|_, (tokens, since)| {
                *tokens + now.duration_since(*since).as_secs_f64() * rate < burst
            });
        }
        let (tokens, since) = match left.get_mut(name) {
            Some(bucket) => bucket,
            None => left.entry(name.to_owned()).or_insert((burst, now)),
        };
        *tokens = (*tokens + now.saturating_duration_since(*since).as_secs_f64() * rate).min(burst);
        *since = now;
        if *tokens < 1.0 {
            return false;
        }
        *tokens -= 1.0;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn buckets_empty_and_fill() {
        let limits = crate::config::Limits { ue_requests_per_s: 2, ue_burst: 3, ..Default::default() };
        let buckets = Buckets::new(&limits);
        let start = Instant::now();
        let taken = |at: Duration| (0..10).filter(|_| buckets.take("phone", start + at)).count();
        assert_eq!(taken(Duration::ZERO), 3);
        assert_eq!(taken(Duration::from_secs(1)), 2);
        assert_eq!(taken(Duration::from_secs(100)), 3);
        assert!(buckets.take("tv", start));
    }

    #[test]
    fn tokens_and_identifiers_are_random_and_in_form() {
        let (a, b) = (new_token().unwrap(), new_token().unwrap());
        assert!(a != b && a.len() == 22);
        let id = new_uuid().unwrap();
        assert!(id.len() == 36 && id.as_bytes()[14] == b'4', "{id}");
        assert_eq!(hash("").len(), 64);
    }
}
