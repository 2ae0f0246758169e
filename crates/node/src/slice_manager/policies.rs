//! Policies that the operator pushes to a UE. They are parsed here as on the UE; policies that it could not
//! use are refused.

use super::Shared;
use super::auth::Operator;
use super::native::check_ue;
use super::routes::{Body, Path, refused};
use crate::runtime::api::{Preconditions, Problem};
use anabranch_selection::neat::Policy;
use anabranch_selection::ursp::Ursp;
use anabranch_slice::{Manager, Ue, Write};
use axum::extract::State;
use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeSet;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// The routes and their OpenAPI description.
pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(policies))
}

/// Policies for a UE.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Policies {
    /// Policies for the UE's policy engine; they replace the previous ones.
    #[schema(value_type = Vec<Object>)]
    policies: Vec<serde_json::Map<String, Value>>,
}

/// Pushes policies to a UE: they are in the answers to its polls, and its stream sends them at once.
#[utoipa::path(
    put,
    path = "/v1/ues/{ue}/policies",
    tag = "UEs",
    params(("ue" = String, Path), ("if-match" = Option<String>, Header, description = "ETag of the version to be changed")),
    request_body = Policies,
    responses(
        (status = 412, body = Problem, description = "The ETag has changed"),
        (status = 204),
        (status = 400, body = Problem),
        (status = 404, body = Problem),
        (status = 413, body = Problem),
        (status = 415, body = Problem)
    )
)]
async fn policies(
    _: Operator,
    State(shared): State<Shared>,
    Path(name): Path<String>,
    seen: Preconditions,
    Body(new): Body<Policies>,
) -> Result<StatusCode, Problem> {
    let bytes = serde_json::to_string(&new.policies).map_or(usize::MAX, |text| text.len());
    if new.policies.len() > 64 || bytes > 65_536 {
        return Err(Problem::invalid("policies: at most 64, of 65536 bytes together").field("policies"));
    }
    check(&new.policies)?;
    let push = |m: &Manager| {
        check_ue(m, &name, &seen)?;
        let policies = new.policies.into_iter().map(Value::Object).collect();
        let ue = Ue { policies, ..m.ue(&name).map_err(refused)?.clone() };
        Ok((vec![Write::ue(ue)], ()))
    };
    shared.engine.commit(push).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Validates NEAT policies and profiles, whose names must be unique, and at most one route selection policy.
fn check(policies: &[serde_json::Map<String, Value>]) -> Result<(), Problem> {
    let mut seen = BTreeSet::new();
    for (i, policy) in policies.iter().enumerate() {
        let place = format!("policies[{i}]");
        let wrong = |why: String| Problem::invalid(format!("{place}: {why}")).field(&place);
        let value = Value::Object(policy.clone());
        let name = if policy.contains_key("urspGuidance") {
            Ursp::from_json(&value.to_string()).map_err(|e| wrong(e.to_string()))?;
            "urspGuidance".to_owned()
        } else {
            let read = Policy::from_value(&value).map_err(|e| wrong(e.to_string()))?;
            format!("uid \"{}\"", read.uid)
        };
        if !seen.insert(name.clone()) {
            return Err(wrong(format!("{name} occurs twice: names must be unique")));
        }
    }
    Ok(())
}
