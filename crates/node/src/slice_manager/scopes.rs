//! Required scopes of tenants' operations. An operation without a row is reserved for the operator, and for a
//! reader if it changes nothing.

use crate::runtime::api::auth::{Caller, OPERATOR_SCOPE, READER_SCOPE, Role};
use axum::http::Method;
use utoipa::openapi::OpenApi;
use utoipa::openapi::extensions::Extensions;

/// Scope to read one's own slices.
const SEE: &str = "anabranch:slices:read";
/// Scope to create, change and remove one's own slices.
const CHANGE: &str = "anabranch:slices:write";

/// Path, method, whether it is read-only, and the scopes of which one is sufficient. CAMARA's scopes have the
/// names in its API descriptions; network-slice-booking uses `get` where the other APIs use `read`.
const TENANTS: &[(&str, Method, bool, &[&str])] = &[
    ("/v1/slices", Method::GET, true, &[SEE, CHANGE]),
    ("/v1/slices", Method::POST, false, &[CHANGE]),
    ("/v1/slices/{id}", Method::GET, true, &[SEE, CHANGE]),
    ("/v1/slices/{id}", Method::PUT, false, &[CHANGE]),
    ("/v1/slices/{id}", Method::DELETE, false, &[CHANGE]),
    ("/api/slice", Method::GET, true, &[SEE, CHANGE]),
    ("/api/slice", Method::POST, false, &[CHANGE]),
    ("/api/slice/{id}", Method::GET, true, &[SEE, CHANGE]),
    ("/api/slice/{id}", Method::DELETE, false, &[CHANGE]),
    ("/api/slice/{id}/time", Method::GET, true, &[SEE, CHANGE]),
    ("/api/slice/{id}/errors", Method::GET, true, &[SEE, CHANGE]),
    ("/api/slice/{id}/modify", Method::POST, false, &[CHANGE]),
    ("/api/policy/neat/{slice}", Method::GET, true, &[SEE, CHANGE]),
    ("/network-slice-booking/v0.1/sessions", Method::POST, false, &["network-slice-booking:sessions:create"]),
    (
        "/network-slice-booking/v0.1/sessions/{sessionId}",
        Method::GET,
        true,
        &["network-slice-booking:sessions:get", "network-slice-booking:sessions:read"],
    ),
    (
        "/network-slice-booking/v0.1/sessions/{sessionId}",
        Method::DELETE,
        false,
        &["network-slice-booking:sessions:delete"],
    ),
    ("/quality-on-demand/v1/sessions", Method::POST, false, &["quality-on-demand:sessions:create"]),
    ("/quality-on-demand/v1/sessions/{sessionId}", Method::GET, true, &["quality-on-demand:sessions:read"]),
    (
        "/quality-on-demand/v1/sessions/{sessionId}",
        Method::DELETE,
        false,
        &["quality-on-demand:sessions:delete"],
    ),
    (
        "/quality-on-demand/v1/sessions/{sessionId}/extend",
        Method::POST,
        false,
        &["quality-on-demand:sessions:update"],
    ),
    (
        "/quality-on-demand/v1/retrieve-sessions",
        Method::POST,
        true,
        &["quality-on-demand:sessions:retrieve-by-device"],
    ),
];

/// Checks whether a caller may execute an operation; if not, returns the reason and the sufficient scopes.
pub fn check(
    caller: &Caller,
    method: &Method,
    path: &str,
) -> Result<(), (&'static str, &'static [&'static str])> {
    let asked = if method == Method::HEAD { &Method::GET } else { method };
    let row = TENANTS.iter().find(|(at, of, ..)| *at == path && of == asked);
    let reads = row.map_or(asked == Method::GET, |(_, _, reads, _)| *reads);
    match &caller.role {
        Role::Operator => Ok(()),
        Role::Reader if reads => Ok(()),
        Role::Reader => Err(("a reader cannot change anything", &[OPERATOR_SCOPE])),
        // Permitted with every valid token.
        Role::Tenant(_) if path == "/openapi.json" => Ok(()),
        Role::Tenant(_) => match row {
            Some((.., scopes)) if caller.has_any(scopes) => Ok(()),
            Some((.., scopes)) => Err(("the token lacks the scope for this", scopes)),
            None if reads => Err(("this is for the operator", &[READER_SCOPE, OPERATOR_SCOPE])),
            None => Err(("this is for the operator", &[OPERATOR_SCOPE])),
        },
    }
}

/// Adds the scopes of each operation to the OpenAPI description, as `x-scopes`.
pub fn describe(description: &mut OpenApi) {
    for (path, method, _, scopes) in TENANTS {
        let Some(item) = description.paths.paths.get_mut(*path) else { continue };
        let operation = match *method {
            Method::GET => &mut item.get,
            Method::PUT => &mut item.put,
            Method::POST => &mut item.post,
            _ => &mut item.delete,
        };
        if let Some(operation) = operation {
            let extension = Extensions::builder().add("x-scopes", *scopes).build();
            operation.extensions.get_or_insert_default().merge(extension);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_row_is_an_operation_with_scopes_in_the_description() {
        let description: serde_json::Value =
            serde_json::from_str(&super::super::routes::description()).unwrap();
        let mut seen = BTreeSet::new();
        for (path, method, _, scopes) in TENANTS {
            let operation = &description["paths"][path][method.as_str().to_lowercase()];
            assert_eq!(operation["x-scopes"], serde_json::json!(scopes), "{method} {path}");
            assert!(seen.insert((path, method.as_str())), "{method} {path} twice");
        }
    }
}
