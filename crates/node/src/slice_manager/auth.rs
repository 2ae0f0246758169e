//! Authentication, authorisation and rate limits of requests.

use super::routes::refused;
use super::{Shared, scopes};
use crate::runtime::api::auth::{Caller, Refused, Role, insufficient};
use crate::runtime::api::{Problem, bearer, proved};
use anabranch_slice::{Manager, Refusal, Slice};
use aws_lc_rs::digest;
use axum::extract::{FromRequestParts, MatchedPath, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use rand_core::{OsRng, TryRngCore};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// The originator of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Requester {
    /// An operator, a reader or a tenant.
    Caller(Caller),
    /// A UE; it may see and change only its own resources.
    Ue(String),
}

/// Limits of one tenant.
#[derive(Debug, Clone, Copy)]
pub struct Quota {
    /// Maximum number of slices (including those of bookings), and of bookings.
    pub slices: u32,
    /// Maximum number of QoS sessions.
    pub sessions: u32,
}

/// 128 bits from the system's random number generator, as 22 characters of base64url.
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

/// The stored form of a token: its SHA-256 hash.
pub fn hash(token: &str) -> String {
    let hash = digest::digest(&digest::SHA256, token.as_bytes());
    hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Middleware of every request: identifies the originator and applies the rate limits.
pub async fn guard(State(shared): State<Shared>, mut request: Request, next: Next) -> Response {
    let who = who(&shared, request.headers()).await;
    if who.is_ok() {
        proved(&request);
    }
    let key = match &who {
        Ok(Requester::Caller(Caller { role: Role::Operator | Role::Reader, .. })) => None,
        Ok(Requester::Caller(Caller { role: Role::Tenant(name), .. })) => Some(RateLimitKey::Tenant(name)),
        Ok(Requester::Ue(name)) => Some(RateLimitKey::Ue(name)),
        Err(_) => Some(RateLimitKey::Refused),
    };
    if let Some(key) = key
        && !shared.rate_limiter.take(key, Instant::now())
    {
        let detail = "too many requests";
        let problem = Problem::new(
            StatusCode::TOO_MANY_REQUESTS,
            detail,
            "wait a second; with a stream, no polling is needed",
        );
        let mut response = problem.into_response();
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        return response;
    }
    let who = match who {
        Ok(who) => who,
        Err(refused) => {
            let remedy =
                "send \"Authorization: Bearer TOKEN\" with a token of the operator, of a tenant or of the UE";
            return refused.response(remedy);
        }
    };
    let path = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    if let Requester::Caller(caller) = &who
        && let Some(path) = path
        && let Err((detail, scopes)) = scopes::check(caller, request.method(), path)
    {
        return insufficient(detail, scopes);
    }
    request.extensions_mut().insert(who);
    next.run(request).await
}

/// The originator that the token identifies.
async fn who(shared: &Shared, headers: &HeaderMap) -> Result<Requester, Refused> {
    let given = headers.get(header::AUTHORIZATION).map(|_| bearer(headers).unwrap_or_default());
    match (given, &shared.access) {
        // Without configured access, only users of the socket or of this machine can connect.
        (None, None) => Ok(Requester::Caller(Caller::fixed(Role::Operator))),
        (None, Some(_)) => Err(Refused::Missing),
        (Some(token), access) => {
            if let Some(caller) = access.as_ref().and_then(|access| access.fixed(token)) {
                return Ok(Requester::Caller(caller));
            }
            // Look-up by hash: its timing reveals only the hash.
            if let Some(ue) = shared.engine.ue_of(&hash(token)) {
                return Ok(Requester::Ue(ue));
            }
            match access {
                Some(access) => access.granted(token).await.map(Requester::Caller),
                None => Err(Refused::Invalid("token missing or wrong")),
            }
        }
    }
}

impl<S: Sync> FromRequestParts<S> for Requester {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        parts
            .extensions
            .get::<Self>()
            .cloned()
            .ok_or_else(|| Problem::unavailable("the token was not checked"))
    }
}

/// Extractor: the operator, or a reader for requests that change nothing; all others are refused.
pub struct Operator;

impl<S: Sync> FromRequestParts<S> for Operator {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        match View::from_request_parts(parts, state).await? {
            View::All => Ok(Self),
            View::Of(..) => {
                Err(forbidden("this is for the operator", "a tenant may use its slices and sessions"))
            }
        }
    }
}

/// The slices and sessions that a request may see: all, or those of a tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum View {
    /// All; for the operator or a reader.
    All,
    /// Those of this tenant.
    Of(Arc<str>),
}

impl View {
    /// The view of an operator, a reader or a tenant. Changes by a reader have been refused before.
    pub fn of(caller: &Caller) -> Self {
        match &caller.role {
            Role::Operator | Role::Reader => Self::All,
            Role::Tenant(name) => Self::Of(name.clone()),
        }
    }

    /// Whether a resource with this owner is visible.
    pub fn sees(&self, owner: Option<&str>) -> bool {
        match self {
            Self::All => true,
            Self::Of(tenant) => owner == Some(tenant),
        }
    }

    /// The owner of resources that are created with this view.
    pub fn owner(&self) -> Option<String> {
        match self {
            Self::All => None,
            Self::Of(tenant) => Some(tenant.to_string()),
        }
    }

    /// A visible slice; a slice of another tenant is reported as missing.
    pub fn slice<'m>(&self, m: &'m Manager, id: &str) -> Result<&'m Slice, Problem> {
        m.slice(id)
            .ok()
            .filter(|slice| self.sees(slice.owner.as_deref()))
            .ok_or_else(|| refused(Refusal::Unknown("slice", id.to_owned())))
    }

    /// All visible slices.
    pub fn slices<'m>(&self, m: &'m Manager) -> impl Iterator<Item = &'m Slice> {
        m.slices().values().filter(move |slice| self.sees(slice.owner.as_deref()))
    }

    /// Fails if the quota of slices is exhausted.
    pub fn check_slice_quota(&self, m: &Manager, quota: Quota) -> Result<(), Problem> {
        self.check_quota("slices", self.slices(m).count(), quota.slices)
    }

    /// Fails if `own`, the present number, has reached the quota.
    pub fn check_quota(&self, what: &str, own: usize, most: u32) -> Result<(), Problem> {
        if matches!(self, Self::All) || own < most as usize {
            return Ok(());
        }
        let remedy = "remove unused ones, or ask the operator ([limits] of the manager)";
        Err(Problem::conflict(format!("this tenant has {own} {what}, which is its maximum"), remedy))
    }
}

impl<S: Sync> FromRequestParts<S> for View {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        match Requester::from_request_parts(parts, state).await? {
            Requester::Caller(caller) => Ok(Self::of(&caller)),
            Requester::Ue(_) => {
                Err(forbidden("this is for the operator", "a UE may use /v1/me and what is below it"))
            }
        }
    }
}

/// Extractor: a UE, by its token.
pub struct RequestingUe(pub String);

impl<S: Sync> FromRequestParts<S> for RequestingUe {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        match Requester::from_request_parts(parts, state).await? {
            Requester::Ue(name) => Ok(Self(name)),
            Requester::Caller(_) => Err(forbidden("this is for UEs", "use a UE's token, or /v1/ues/{ue}")),
        }
    }
}

/// A refusal because of missing permissions.
pub fn forbidden(detail: &str, remedy: &str) -> Problem {
    Problem::new(StatusCode::FORBIDDEN, detail, remedy)
}

/// The originators whose requests are counted together.
#[derive(Debug, Clone, Copy)]
pub enum RateLimitKey<'a> {
    /// Requests of a UE.
    Ue(&'a str),
    /// Requests of a tenant.
    Tenant(&'a str),
    /// Requests with an invalid token.
    Refused,
}

/// Token buckets for rate limits.
pub struct RateLimiter {
    ue_per_s: f64,
    ue_burst: f64,
    tenant_per_s: f64,
    refused_per_s: f64,
    buckets: Mutex<HashMap<String, (f64, Instant)>>,
}

/// Maximum number of buckets; beyond it, full ones are removed.
const MAX_BUCKETS: usize = 200_000;

impl RateLimiter {
    /// All buckets full.
    pub fn new(limits: &crate::runtime::config::Limits) -> Self {
        Self {
            ue_per_s: limits.ue_requests_per_s.into(),
            ue_burst: limits.ue_burst.into(),
            tenant_per_s: limits.tenant_requests_per_s.into(),
            refused_per_s: limits.refused_per_s.into(),
            buckets: Mutex::default(),
        }
    }

    /// Takes a token from the bucket; false if it is empty.
    pub fn take(&self, bucket: RateLimitKey<'_>, now: Instant) -> bool {
        let (rate, burst, name) = match bucket {
            RateLimitKey::Refused => (self.refused_per_s, self.refused_per_s, String::new()),
            RateLimitKey::Ue(name) => (self.ue_per_s, self.ue_burst, format!("ue {name}")),
            RateLimitKey::Tenant(name) => (self.tenant_per_s, self.tenant_per_s, format!("tenant {name}")),
        };
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() >= MAX_BUCKETS && !buckets.contains_key(&name) {
            buckets.retain(|_, (tokens, since)| {
                *tokens + now.duration_since(*since).as_secs_f64() * rate < burst
            });
        }
        let (tokens, since) = match buckets.get_mut(&name) {
            Some(bucket) => bucket,
            None => buckets.entry(name).or_insert((burst, now)),
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
        let limits =
            crate::runtime::config::Limits { ue_requests_per_s: 2, ue_burst: 3, ..Default::default() };
        let rate_limiter = RateLimiter::new(&limits);
        let start = Instant::now();
        let taken = |at: Duration| {
            (0..10).filter(|_| rate_limiter.take(RateLimitKey::Ue("phone"), start + at)).count()
        };
        assert_eq!(taken(Duration::ZERO), 3);
        assert_eq!(taken(Duration::from_secs(1)), 2);
        assert_eq!(taken(Duration::from_secs(100)), 3);
        assert!(rate_limiter.take(RateLimitKey::Ue("tv"), start));
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
