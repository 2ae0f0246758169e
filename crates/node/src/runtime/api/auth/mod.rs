//! Authentication: fixed tokens, and access tokens of an OAuth2 authorization server (JWT, RFC 9068), each
//! with a role.
//!
//! ```text
//!  Authorization: Bearer … ─▶ fixed token? ─no─▶ a JWT of ours? ─▶ key ─▶ signature ─▶ iss, aud, exp, nbf ─▶ scope
//!                                │ role             └─ no: 401 invalid_token          └─ JWK set: file or URL    │ role
//! ```

mod keys;
mod token;
mod verifier;

#[cfg(test)]
pub mod tests;

use super::super::config::{Api, RoleName};
use super::problem::Problem;
use super::serve::read_token;
use anyhow::Context;
use aws_lc_rs::{constant_time, digest};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use std::collections::BTreeSet;
use std::sync::Arc;
use verifier::Verifier;
pub use verifier::check_files;

/// Scope of OAuth2 tokens that grants the operator role.
pub const OPERATOR_SCOPE: &str = "anabranch:operator";
/// Scope of OAuth2 tokens that grants the reader role.
pub const READER_SCOPE: &str = "anabranch:reader";

/// Permissions of a caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role {
    /// May do everything.
    Operator,
    /// May see everything and change nothing.
    Reader,
    /// May see and change the resources of this tenant.
    Tenant(Arc<str>),
}

/// The authenticated originator of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// What they may do.
    pub role: Role,
    /// Granted scopes; `None`: all that the role can use.
    scopes: Option<Arc<BTreeSet<String>>>,
    /// Expiry of the token, Unix time in seconds; streams end then, too. `None`: never.
    pub until: Option<u64>,
}

impl Caller {
    /// A caller with a token of the configuration.
    pub fn fixed(role: Role) -> Self {
        Self { role, scopes: None, until: None }
    }

    /// Whether one of these scopes was granted.
    pub fn has_any(&self, scopes: &[&str]) -> bool {
        self.scopes.as_ref().is_none_or(|own| scopes.iter().any(|scope| own.contains(*scope)))
    }
}

/// Reason why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// The request has no token.
    Missing,
    /// The token is malformed, invalid or expired.
    Invalid(&'static str),
    /// The keys of the authorization server are not available yet.
    NoKeys,
}

impl Refused {
    /// The answer according to RFC 6750 §3; a request without a token gets no further details.
    pub fn response(self, remedy: &str) -> Response {
        let (status, detail, challenge) = match self {
            Self::Missing => (StatusCode::UNAUTHORIZED, "token missing or wrong", "Bearer".to_owned()),
            Self::Invalid(why) => (
                StatusCode::UNAUTHORIZED,
                why,
                format!("Bearer error=\"invalid_token\", error_description=\"{why}\""),
            ),
            Self::NoKeys => {
                let detail = "the keys of the authorization server are not known yet";
                return Problem::unavailable(detail).into_response();
            }
        };
        with_challenge(Problem::new(status, detail, remedy), &challenge)
    }
}

/// The answer to a token without sufficient permission (RFC 6750 §3.1); `scopes` are those of which one would
/// be sufficient.
pub fn insufficient(detail: &str, scopes: &[&str]) -> Response {
    let scopes = scopes.join(" ");
    let remedy = format!("use a token with one of the scopes {scopes}, or a fixed token of that role");
    let problem = Problem::new(StatusCode::FORBIDDEN, detail, remedy);
    with_challenge(problem, &format!("Bearer error=\"insufficient_scope\", scope=\"{scopes}\""))
}

fn with_challenge(problem: Problem, challenge: &str) -> Response {
    let mut response = problem.into_response();
    let value = HeaderValue::from_str(challenge).unwrap_or(HeaderValue::from_static("Bearer"));
    response.headers_mut().insert(header::WWW_AUTHENTICATE, value);
    response
}

/// The tokens that a listener accepts.
pub struct Access {
    /// Hashes of the fixed tokens; the timing of comparisons reveals nothing about the tokens.
    fixed: Vec<(digest::Digest, Caller)>,
    oauth: Option<Verifier>,
}

impl Access {
    /// The access that `[api]` configures; `None` if no token is required. Must be called within a tokio
    /// runtime, because a task reads keys from a URL.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn new(api: &Api) -> anyhow::Result<Option<Arc<Self>>> {
        if !api.requires_token() {
            return Ok(None);
        }
        let mut fixed = Vec::new();
        if let Some(path) = &api.token_file {
            let token = read_token(path).context("[api] token_file")?;
            fixed.push((hash(&token), Caller::fixed(Role::Operator)));
        }
        for token in &api.tokens {
            let role = match token.role {
                RoleName::Operator => Role::Operator,
                RoleName::Reader => Role::Reader,
                RoleName::Tenant => Role::Tenant(token.tenant.as_deref().unwrap_or_default().into()),
            };
            let text = read_token(&token.file).context("[api] tokens")?;
            let hash = hash(&text);
            if fixed.iter().any(|(other, _)| other.as_ref() == hash.as_ref()) {
                anyhow::bail!("[api] tokens: {} has the token of another role", token.file.display());
            }
            fixed.push((hash, Caller::fixed(role)));
        }
        let oauth = api.oauth.as_ref().map(Verifier::new).transpose().context("[api] oauth")?;
        Ok(Some(Arc::new(Self { fixed, oauth })))
    }

    /// Access with a single token, which has the operator role.
    pub fn of_operator(token: &str) -> Arc<Self> {
        Arc::new(Self { fixed: vec![(hash(token), Caller::fixed(Role::Operator))], oauth: None })
    }

    /// The caller with this fixed token.
    pub fn fixed(&self, token: &str) -> Option<Caller> {
        let given = hash(token);
        // All tokens are compared, whichever matches, for constant timing.
        self.fixed.iter().fold(None, |found, (hash, caller)| {
            let same = constant_time::verify_slices_are_equal(hash.as_ref(), given.as_ref()).is_ok();
            if same { Some(caller.clone()) } else { found }
        })
    }

    /// The caller to whom the authorization server issued this token.
    ///
    /// # Errors
    /// The token is invalid, not for this audience, or not valid now.
    pub async fn granted(&self, token: &str) -> Result<Caller, Refused> {
        match &self.oauth {
            Some(verifier) => verifier.check(token, anabranch_engine::clock::unix_ns() / 1_000_000_000).await,
            None => Err(Refused::Invalid("token missing or wrong")),
        }
    }

    /// The caller with this token.
    ///
    /// # Errors
    /// The token is missing or invalid.
    pub async fn check(&self, token: Option<&str>) -> Result<Caller, Refused> {
        let token = token.ok_or(Refused::Missing)?;
        match self.fixed(token) {
            Some(caller) => Ok(caller),
            None => self.granted(token).await,
        }
    }
}

fn hash(token: &str) -> digest::Digest {
    digest::digest(&digest::SHA256, token.as_bytes())
}

/// Ends a streamed answer when the caller's token expires.
pub fn until(response: Response, caller: &Caller) -> Response {
    use futures_util::StreamExt;
    let Some(until) = caller.until else { return response };
    let streams =
        response.headers().get(header::CONTENT_TYPE).is_some_and(|kind| kind == "text/event-stream");
    if !streams {
        return response;
    }
    let now = anabranch_engine::clock::unix_ns() / 1_000_000_000;
    let end = tokio::time::sleep(std::time::Duration::from_secs(until.saturating_sub(now)));
    response.map(|body| axum::body::Body::from_stream(body.into_data_stream().take_until(end)))
}
