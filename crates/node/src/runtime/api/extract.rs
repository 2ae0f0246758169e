//! Extractors of request contents, which report every error as a [`Problem`]; and the common answers of all
//! operations in the OpenAPI description.

use super::problem::{Problem, field_in};
use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, JsonRejection, PathRejection, QueryRejection};
use axum::extract::{FromRequest, FromRequestParts, Query, Request};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use serde::de::{DeserializeOwned, Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use utoipa::openapi::{ContentBuilder, OpenApi, Ref, RefOr, ResponseBuilder};

/// Extractor of a JSON body: an object of type `T`.
pub struct Body<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = Problem;
    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        check_kind(&request)?;
        let Text(bytes) = Text::from_request(request, state).await?;
        // serde also accepts a list for a struct (its fields in order).
        if bytes.trim_ascii_start().first() == Some(&b'[') {
            let detail = "the body must be an object";
            return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, detail, SEE));
        }
        check_keys(&bytes).map_err(|detail| {
            let field = field_in(&detail);
            Problem { field, ..Problem::new(StatusCode::UNPROCESSABLE_ENTITY, detail, SEE) }
        })?;
        Text(bytes).json().map(Self)
    }
}

/// Checks that no object of a JSON text has a duplicate key: programs may differ on which value they take
/// (RFC 8259 §4), and serde_json detects duplicates only of known keys.
///
/// # Errors
/// An object has a duplicate key. Invalid JSON is not an error here; the parser reports it.
pub fn check_keys(json: &[u8]) -> Result<(), String> {
    match serde_json::from_slice::<Distinct>(json) {
        Err(error) if error.is_data() => Err(error.to_string()),
        _ => Ok(()),
    }
}

/// Deserialises any value and discards it.
struct Distinct;

impl<'de> Deserialize<'de> for Distinct {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Self)
    }
}

impl<'de> Visitor<'de> for Distinct {
    type Value = Self;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self, E> {
        Ok(Self)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self, E> {
        Ok(Self)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self, E> {
        Ok(Self)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self, E> {
        Ok(Self)
    }

    fn visit_str<E>(self, _: &str) -> Result<Self, E> {
        Ok(Self)
    }

    fn visit_unit<E>(self) -> Result<Self, E> {
        Ok(Self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self, A::Error> {
        while list.next_element::<Self>()?.is_some() {}
        Ok(Self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self, A::Error> {
        let mut keys = BTreeSet::new();
        while let Some(key) = map.next_key::<Cow<'de, str>>()? {
            if keys.contains(&key) {
                return Err(A::Error::custom(format_args!("duplicate field `{key}`")));
            }
            keys.insert(key);
            map.next_value::<Self>()?;
        }
        Ok(Self)
    }
}

/// Extractor of a raw body, whatever its content type: NEAT's clients do not declare JSON.
pub struct Text(pub Bytes);

impl<S: Send + Sync> FromRequest<S> for Text {
    type Rejection = Problem;
    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let bytes = Bytes::from_request(request, state).await.map_err(|e: BytesRejection| {
            Problem::new(e.status(), e.body_text(), "send less; nothing has changed")
        })?;
        Ok(Self(bytes))
    }
}

impl Text {
    /// The body as text.
    ///
    /// # Errors
    /// The body is not UTF-8.
    pub fn text(&self) -> Result<&str, Problem> {
        std::str::from_utf8(&self.0).map_err(|e| Problem::invalid(format!("the body is not UTF-8: {e}")))
    }

    /// The body as JSON.
    ///
    /// # Errors
    /// The body is not JSON, or not of type `T`.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Problem> {
        Json::from_bytes(&self.0).map(|Json(value)| value).map_err(|e| bad_body(&e))
    }
}

/// Checks that the content type of a request is JSON.
///
/// # Errors
/// It is not.
pub fn check_kind(request: &Request) -> Result<(), Problem> {
    let kind = request.headers().get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if kind == "application/json" || kind.ends_with("+json") {
        return Ok(());
    }
    let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
    Err(Problem::new(status, "the body is not JSON", "send content-type: application/json"))
}

/// Extractor of query parameters.
pub struct Params<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Params<T> {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let query = Query::<T>::from_request_parts(parts, state).await;
        query.map(|Query(value)| Self(value)).map_err(|e: QueryRejection| bad_parameters(e.body_text()))
    }
}

/// Extractor of path parameters.
pub struct Path<T>(pub T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Path<T> {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let path = axum::extract::Path::<T>::from_request_parts(parts, state).await;
        path.map(|axum::extract::Path(value)| Self(value))
            .map_err(|e: PathRejection| bad_parameters(e.body_text()))
    }
}

/// The problem for a query or path that does not have the expected form.
fn bad_parameters(detail: String) -> Problem {
    let field = field_in(&detail);
    Problem { field, ..Problem::invalid(detail) }
}

const SEE: &str = "see /openapi.json for what the body must be";

/// The problem for a body that does not have the expected form.
fn bad_body(rejection: &JsonRejection) -> Problem {
    let detail = rejection.body_text();
    let field = field_in(&detail);
    let problem = Problem::new(rejection.status(), detail, SEE);
    Problem { field, ..problem }
}

/// Adds the common statuses to every operation (those in `any`, and those in `with_body` if it has a body),
/// with the type of problems.
pub fn complete(openapi: &mut OpenApi, any: &[&str], with_body: &[&str]) {
    let problem = || ContentBuilder::new().schema(Some(Ref::from_schema_name("Problem"))).build();
    for item in openapi.paths.paths.values_mut() {
        let operations = [&mut item.get, &mut item.put, &mut item.post, &mut item.delete];
        for operation in operations.into_iter().flatten() {
            let with_body = if operation.request_body.is_some() { with_body } else { &[] };
            let responses: &mut BTreeMap<_, _> = &mut operation.responses.responses;
            for status in any.iter().chain(with_body) {
                let response = || ResponseBuilder::new().description("See detail and remedy");
                responses
                    .entry((*status).to_owned())
                    .or_insert_with(|| response().content("application/json", problem()).build().into());
            }
            for (status, response) in responses {
                let RefOr::T(response) = response else { continue };
                if status.starts_with('4') || status.starts_with('5') {
                    // CAMARA's errors have their own form; the statuses of the guard are added to them.
                    let own = response.content.get("application/json").cloned();
                    let own = own.filter(|c| !serde_json::to_string(c).is_ok_and(|t| t.contains("/Problem")));
                    response.content =
                        [("application/problem+json".to_owned(), problem())].into_iter().collect();
                    response.content.extend(own.map(|c| ("application/json".to_owned(), c)));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[tokio::test]
    async fn an_agent_refuses_duplicate_keys() {
        for (body, field) in [
            (r#"{"A":{"x":1},"A":{"x":2}}"#, Some("A")),
            (r#"{"A":{"x":1,"y":{"b":1,"b":1}}}"#, Some("b")),
            (r#"{"A":[{"x":1,"x":1}]}"#, Some("x")),
            (r#"{"A":{"x":1},"B":{"x":1},"x":[1,1]}"#, None),
        ] {
            let request = Request::post("/").header("content-type", "application/json");
            let request = request.body(axum::body::Body::from(body)).unwrap();
            match (Body::<Value>::from_request(request, &()).await, field) {
                (Ok(_), None) => {}
                (Err(problem), Some(field)) => {
                    assert!(problem.detail.contains("duplicate"), "{body}: {problem:?}");
                    assert_eq!(problem.field.as_deref(), Some(field), "{body}: {problem:?}");
                    assert!((400..500).contains(&problem.status));
                }
                (read, _) => panic!("{body}: {:?}", read.map(|Body(value)| value)),
            }
        }
    }
}
