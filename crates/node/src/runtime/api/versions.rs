//! Versions of resources: ETag, If-Match and If-None-Match (RFC 9110 §8.8.3, §13.1). A version covers the
//! requested configuration, not its state, and is the same at every interface.

use super::problem::Problem;
use aws_lc_rs::digest;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde::Serialize;

/// The version of a configuration as an ETag in quotes: 96 bits of its SHA-256 hash.
pub fn etag(asked: &impl Serialize) -> String {
    let text = serde_json::to_vec(asked).unwrap_or_default();
    let hash = digest::digest(&digest::SHA256, &text);
    format!("\"{}\"", BASE64_URL_SAFE_NO_PAD.encode(&hash.as_ref()[..12]))
}

/// The ETag header.
pub fn header_of(etag: &str) -> [(HeaderName, HeaderValue); 1] {
    [(header::ETAG, HeaderValue::from_str(etag).unwrap_or(HeaderValue::from_static("\"\"")))]
}

/// The tags of a header; each with its weakness and the tag in quotes.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Tags {
    Any,
    List(Vec<(bool, String)>),
}

impl Tags {
    fn of(headers: &HeaderMap, name: &HeaderName) -> Result<Option<Self>, Problem> {
        let mut list = Vec::new();
        let wrong = || {
            let detail = format!("{name}: write ETags as they were given, in quotes, or *");
            Problem::invalid(detail).field(name.as_str())
        };
        for value in headers.get_all(name) {
            let mut rest = value.to_str().map_err(|_| wrong())?.trim();
            if rest == "*" {
                return Ok(Some(Self::Any));
            }
            while !rest.is_empty() {
                let weak = rest.starts_with("W/");
                let tag = if weak { &rest[2..] } else { rest };
                let len = tag.strip_prefix('"').and_then(|inner| inner.find('"')).ok_or_else(wrong)? + 2;
                list.push((weak, tag[..len].to_owned()));
                rest = tag[len..].trim_start();
                rest = match rest.strip_prefix(',') {
                    Some(more) => more.trim_start(),
                    None if rest.is_empty() => rest,
                    None => return Err(wrong()),
                };
            }
        }
        // An If-Match without tags must not permit a change of any version.
        if list.is_empty() && *name == header::IF_MATCH && headers.contains_key(name) {
            return Err(wrong());
        }
        Ok((!list.is_empty()).then_some(Self::List(list)))
    }

    /// Strong comparison, as in If-Match: weak tags never match (RFC 9110 §13.1.1).
    fn has_strong(&self, etag: &str) -> bool {
        match self {
            Self::Any => true,
            Self::List(list) => list.iter().any(|(weak, tag)| !weak && tag == etag),
        }
    }

    /// Weak comparison, as in If-None-Match (RFC 9110 §13.1.2).
    fn has(&self, etag: &str) -> bool {
        match self {
            Self::Any => true,
            Self::List(list) => list.iter().any(|(_, tag)| tag == etag),
        }
    }
}

/// The preconditions of a request on the version of its resource.
#[derive(Debug, Clone, Default)]
pub struct Preconditions {
    matches: Option<Tags>,
    none_matches: Option<Tags>,
}

impl Preconditions {
    /// Checks whether a resource of this version may be changed; `None`: it does not exist.
    ///
    /// # Errors
    /// 412: it was changed, created or removed meanwhile.
    pub fn check(&self, etag: Option<&str>) -> Result<(), Problem> {
        let failed = |detail: &str| {
            let remedy = "nothing has changed; GET it again, and change that version";
            Err(Problem::new(StatusCode::PRECONDITION_FAILED, detail, remedy))
        };
        if self.matches.as_ref().is_some_and(|tags| !etag.is_some_and(|etag| tags.has_strong(etag))) {
            return failed("it does not have the ETag in If-Match: it was changed meanwhile");
        }
        if self.none_matches.as_ref().is_some_and(|tags| etag.is_some_and(|etag| tags.has(etag))) {
            return failed("it exists already, which If-None-Match excludes");
        }
        Ok(())
    }

    /// Whether the requester already has this version.
    pub fn has_it(&self, etag: &str) -> bool {
        self.none_matches.as_ref().is_some_and(|tags| tags.has(etag))
    }
}

impl<S: Sync> FromRequestParts<S> for Preconditions {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        Ok(Self {
            matches: Tags::of(&parts.headers, &header::IF_MATCH)?,
            none_matches: Tags::of(&parts.headers, &header::IF_NONE_MATCH)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn preconditions(name: HeaderName, values: &[&str]) -> Result<Preconditions, Problem> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(name.clone(), HeaderValue::from_str(value).unwrap());
        }
        Ok(Preconditions {
            matches: Tags::of(&headers, &header::IF_MATCH)?,
            none_matches: Tags::of(&headers, &header::IF_NONE_MATCH)?,
        })
    }

    #[test]
    fn changes_apply_only_to_the_given_version() {
        let status = |values: &[&str], etag: Option<&str>| {
            let asked = preconditions(header::IF_MATCH, values);
            asked.and_then(|asked| asked.check(etag)).map_or_else(|problem| problem.status, |()| 200)
        };
        let now = Some("\"a\"");
        for (values, expected) in [
            (&[][..], 200),
            (&["\"a\""], 200),
            (&["*"], 200),
            (&["\"x\", \"a\""], 200),
            (&["\"x\"", "\"a\""], 200),
            (&["\"x,\",\"a\""], 200),
            (&["\"x\""], 412),
            (&["W/\"a\""], 412),
            (&["\"a"], 400),
            (&["a"], 400),
            (&["\"a\" \"b\""], 400),
            (&["w/\"a\""], 400),
            (&[""], 400),
            (&[" ", ""], 400),
        ] {
            assert_eq!(status(values, now), expected, "{values:?}");
        }
        assert_eq!((status(&["*"], None), status(&["\"a\""], None), status(&[], None)), (412, 412, 200));
    }

    #[test]
    fn creation_and_change_are_distinguished() {
        let asked = |values: &[&str]| preconditions(header::IF_NONE_MATCH, values).unwrap();
        for (values, has) in
            [(&["\"a\""][..], true), (&["W/\"a\""], true), (&["*"], true), (&["\"b\""], false), (&[], false)]
        {
            assert_eq!(asked(values).has_it("\"a\""), has, "{values:?}");
            assert_eq!(asked(values).check(Some("\"a\"")).is_err(), has, "{values:?}");
        }
        assert!(asked(&["*"]).check(None).is_ok());
    }
}
