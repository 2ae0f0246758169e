//! Errors as RFC 9457 problem details, with the field at fault and the remedy.

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Detail of the answer to an unknown path; `ctl` uses it to detect that another kind of program answers.
pub const NO_SUCH_PATH: &str = "no such path";

/// A problem document: cause and remedy of an error (`application/problem+json`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// HTTP status.
    pub status: u16,
    /// Title of the kind of problem.
    pub title: String,
    /// The cause.
    pub detail: String,
    /// The field of the request at fault.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// The remedy.
    pub remedy: String,
}

impl Problem {
    /// A problem with this status.
    pub fn new(status: StatusCode, detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            status: status.as_u16(),
            title: status.canonical_reason().unwrap_or("Error").to_owned(),
            detail: detail.into(),
            field: None,
            remedy: remedy.into(),
        }
    }

    /// Sets the field at fault.
    pub fn field(mut self, field: &str) -> Self {
        self.field = Some(field.to_owned());
        self
    }

    /// 400: the request, or the file that it refers to, is invalid; the detail states what would be valid.
    pub fn invalid(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail, "correct it and send it again; nothing has changed")
    }

    /// 409: impossible in the present state.
    pub fn conflict(detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, detail, remedy)
    }

    /// 404: the object does not exist.
    pub fn not_found(what: &str, name: &str, remedy: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, format!("there is no {what} \"{name}\""), remedy)
    }

    /// 405: this program does not support the operation; the remedy names the one that does.
    pub fn not_here(what: &str, remedy: &str) -> Self {
        Self::new(StatusCode::METHOD_NOT_ALLOWED, what, remedy)
    }

    /// 503: the data path does not answer.
    pub fn unavailable(detail: impl std::fmt::Display) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, detail.to_string(), "try again in a moment; see the log")
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, axum::Json(self)).into_response();
        let kind = header::HeaderValue::from_static("application/problem+json");
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        response
    }
}

/// The field named in a message of serde or axum: in backquotes, or as a path before the colon.
pub fn field_in(detail: &str) -> Option<String> {
    let named = ["unknown field `", "missing field `", "duplicate field `"];
    let named = named.iter().find_map(|begin| detail.split_once(begin)?.1.split_once('`'));
    let path = || {
        let begins = ["target type: ", "query string: "];
        let (path, _) = begins.iter().find_map(|begin| detail.split_once(begin))?.1.split_once(": ")?;
        (!path.contains(' ')).then_some(path)
    };
    named.map(|(field, _)| field).or_else(path).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_names_the_field_and_not_its_value() {
        let of = "Failed to deserialize the JSON body into the target type: ";
        for (detail, field) in [
            ("missing field `serviceProfile` at line 1 column 9".to_owned(), Some("serviceProfile")),
            (format!("{of}B: unknown field `marks`, expected one of `mark`, `table`"), Some("marks")),
            (format!("{of}A.ttl_s: invalid value: integer `4294967296`, expected u32"), Some("A.ttl_s")),
            (format!("{of}invalid type: integer `5`, expected a map"), None),
            ("invalid value: integer `-1`, expected u64 at line 1 column 142".to_owned(), None),
        ] {
            assert_eq!(field_in(&detail).as_deref(), field, "{detail}");
        }
    }
}
