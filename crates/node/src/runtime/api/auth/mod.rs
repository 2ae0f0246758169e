//! Who asks: fixed tokens, and access tokens of an OAuth2 authorization server (JWT, RFC 9068), each with a role.
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

/// The scope of OAuth2 tokens that may do everything.
pub const OPERATOR_SCOPE: &str = "anabranch:operator";
/// The scope of those that may see everything.
pub const READER_SCOPE: &str = "anabranch:reader";

/// What a caller may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role {
    /// Everything.
    Operator,
    /// See everything, change nothing.
    Reader,
    /// See and change what belongs to this tenant.
    Tenant(Arc<str>),
}

/// Who asks, as their token says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// What they may do.
    pub role: Role,
    /// The scopes they were given; `None`: every one that the role can use.
    scopes: Option<Arc<BTreeSet<String>>>,
    /// When that ends, Unix seconds: an answer that goes on ends then, too.
    pub until: Option<u64>,
}

impl Caller {
    /// By a token of the configuration.
    pub fn fixed(role: Role) -> Self {
        Self { role, scopes: None, until: None }
    }

    /// Whether they were given one of these scopes.
    pub fn has_any(&self, scopes: &[&str]) -> bool {
        self.scopes.as_ref().is_none_or(|own| scopes.iter().any(|scope| own.contains(*scope)))
    }
}

/// Why nobody is let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// No token was shown.
    Missing,
    /// What was shown is no token, or not one that holds now.
    Invalid(&'static str),
    /// The keys of the authorization server could not be had yet.
    NoKeys,
}

impl Refused {
    /// As RFC 6750 §3 has it: who shows nothing is told nothing more.
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

/// Not with this token (RFC 6750 §3.1): one with any of `scopes` would do.
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

/// Who may come in at a listener.
pub struct Access {
    /// Hashes of the fixed tokens: comparing those tells nothing of the tokens.
    fixed: Vec<(digest::Digest, Caller)>,
    oauth: Option<Verifier>,
}

impl Access {
    /// As `[api]` says; `None` where no token is wanted. Within a tokio runtime: a URL of keys is read by a task.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn new(api: &Api) -> anyhow::Result<Option<Arc<Self>>> {
        if !api.wants_token() {
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

    /// One token, the operator's.
    pub fn of_operator(token: &str) -> Arc<Self> {
        Arc::new(Self { fixed: vec![(hash(token), Caller::fixed(Role::Operator))], oauth: None })
    }

    /// Who has this token of the configuration.
    pub fn fixed(&self, token: &str) -> Option<Caller> {
        let given = hash(token);
        // All of them are looked at, whichever it is.
        self.fixed.iter().fold(None, |found, (hash, caller)| {
            let same = constant_time::verify_slices_are_equal(hash.as_ref(), given.as_ref()).is_ok();
            if same { Some(caller.clone()) } else { found }
        })
    }

    /// Whom the authorization server gave this token.
    ///
    /// # Errors
    /// Nobody, or not for us, or not now.
    pub async fn granted(&self, token: &str) -> Result<Caller, Refused> {
        match &self.oauth {
            Some(verifier) => verifier.check(token, crate::runtime::clock::unix_ns() / 1_000_000_000).await,
            None => Err(Refused::Invalid("token missing or wrong")),
        }
    }

    /// Who has this token.
    ///
    /// # Errors
    /// Nobody has it, or none was shown.
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

/// Ends an answer that goes on (an event stream) when the token that it was given to ends.
pub fn until(response: Response, caller: &Caller) -> Response {
    use futures_util::StreamExt;
    let Some(until) = caller.until else { return response };
    let streams =
        response.headers().get(header::CONTENT_TYPE).is_some_and(|kind| kind == "text/event-stream");
    if !streams {
        return response;
    }
    let now = crate::runtime::clock::unix_ns() / 1_000_000_000;
    let end = tokio::time::sleep(std::time::Duration::from_secs(until.saturating_sub(now)));
    response.map(|body| axum::body::Body::from_stream(body.into_data_stream().take_until(end)))
}
