//! Refusal of unknown query parameters: if they were ignored, the answer would not be filtered as requested.

use super::problem::Problem;
use axum::extract::{MatchedPath, Request, State};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::collections::BTreeMap;
use std::sync::Arc;
use utoipa::openapi::OpenApi;
use utoipa::openapi::path::{Operation, ParameterIn};

/// Names of the query parameters of each operation, from the OpenAPI description.
#[derive(Debug, Clone, Default)]
pub struct Queries(Arc<BTreeMap<(String, Method), Vec<String>>>);

impl Queries {
    /// The parameters in a description.
    pub fn of(description: &OpenApi) -> Self {
        let names = |operation: &Operation| {
            let all = operation.parameters.iter().flatten();
            all.filter(|p| matches!(p.parameter_in, ParameterIn::Query)).map(|p| p.name.clone()).collect()
        };
        let mut known = BTreeMap::new();
        for (path, item) in &description.paths.paths {
            for (method, operation) in [
                (Method::GET, &item.get),
                (Method::PUT, &item.put),
                (Method::POST, &item.post),
                (Method::DELETE, &item.delete),
            ] {
                if let Some(operation) = operation {
                    known.insert((path.clone(), method), names(operation));
                }
            }
        }
        Self(Arc::new(known))
    }

    fn check(&self, path: &str, method: &Method, query: &str) -> Result<(), Problem> {
        let method = if method == Method::HEAD { Method::GET } else { method.clone() };
        let Some(known) = self.0.get(&(path.to_owned(), method)) else { return Ok(()) };
        for (name, _) in url::form_urlencoded::parse(query.as_bytes()) {
            if !known.iter().any(|k| *k == name) {
                let detail = format!("there is no parameter \"{name}\" here");
                let mut problem = Problem::invalid(detail).field(&name);
                problem.remedy = match known.as_slice() {
                    [] => "remove the query".to_owned(),
                    known => format!("there are: {}", known.join(", ")),
                };
                return Err(problem);
            }
        }
        Ok(())
    }
}

/// Middleware of every request with a known path.
pub async fn guard(State(queries): State<Queries>, request: Request, next: Next) -> Response {
    if let (Some(path), Some(query)) = (request.extensions().get::<MatchedPath>(), request.uri().query())
        && let Err(problem) = queries.check(path.as_str(), request.method(), query)
    {
        return problem.into_response();
    }
    next.run(request).await
}
