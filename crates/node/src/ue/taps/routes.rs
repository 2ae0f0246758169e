//! REST routes of Transport Services (UE only): selection of slice, path and protocol for a connection, and
//! the repositories of NEAT's policy manager under the paths that its clients use.

use super::schema::AnswerSchema;
use super::{ManagerView, SliceSpec, Taps, unix_s};
use crate::runtime::api::extract::{Body, Path, Text};
use crate::runtime::api::problem::Problem;
use crate::runtime::api::routes::{Answer, Shared};
use anabranch_selection::neat::{NeatError, Node, Policy};
use anabranch_selection::ursp::{Flow, Ursp};
use anabranch_selection::{Endpoint, Properties, Refusal, Request, plan};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// The routes and their OpenAPI description.
pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(routes!(select))
        .routes(routes!(select_neat))
        .routes(routes!(connection_slices, set_connection_slices))
        .routes(routes!(manager))
        .routes(routes!(ursp, set_ursp, clear_ursp))
        .routes(routes!(pib))
        .routes(routes!(policy, set_policy, delete_policy))
        .routes(routes!(cib))
        .routes(routes!(cib_rows))
        .routes(routes!(node, set_node, delete_node))
}

fn taps(shared: &Shared) -> Result<Arc<Taps>, Problem> {
    shared.taps.clone().ok_or_else(|| {
        Problem::not_here(
            "connections are chosen on the device",
            "send the request to the agent of `anabranch ue`",
        )
    })
}

/// Runs work that may take a while outside the server's threads.
async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Problem> {
    tokio::task::spawn_blocking(work).await.map_err(Problem::unavailable)
}

impl From<NeatError> for Problem {
    fn from(error: NeatError) -> Self {
        // The innermost name: `policy "p": property "transport"` is about `transport`.
        let innermost = error.place.rsplit(": ").next().unwrap_or_default();
        Self::invalid(error.to_string()).field(innermost.split('"').nth(1).unwrap_or(innermost))
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        let remedy = "request less, or wait for another slice; nothing has changed";
        let problem = Self::conflict(refusal.to_string(), remedy);
        match refusal.failed.first() {
            Some(first) => problem.field(&first.property),
            None => problem,
        }
    }
}

/// A connection for which a program requests candidates.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SelectRequest {
    /// Properties by their names in RFC 9622, and `_slice.*`.
    #[serde(default)]
    #[schema(value_type = Object)]
    properties: Option<Value>,
    /// Resolved addresses of the peer: `address`, `port`, and optionally `priority` and `protocols`.
    #[schema(value_type = Vec<Object>)]
    remote: Vec<Endpoint>,
    /// Description of the flow for the route selection policy; if absent, the policy is not applied.
    #[serde(default)]
    flow: Option<FlowSpec>,
}

/// Properties of a flow besides its addresses.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FlowSpec {
    /// Operating system id, with `app_id`.
    os_id: Option<String>,
    /// Application id, with `os_id`.
    app_id: Option<String>,
    /// IP protocol number, for rules about the first of `remote`.
    protocol: Option<u8>,
    /// Domain name of the peer.
    domain: Option<String>,
    /// The requested data network (DNN).
    dnn: Option<String>,
    /// The requested capability, such as `INTERNET`.
    capability: Option<String>,
}

impl FlowSpec {
    fn flow(self, remote: &[Endpoint]) -> Flow {
        Flow {
            application: self.os_id.zip(self.app_id),
            server: self.protocol.zip(remote.first().map(Endpoint::socket_addr)),
            domain: self.domain,
            dnn: self.dnn,
            capability: self.capability,
        }
    }
}

/// Ranked candidates with reasons and steps; what was excluded and why; needs that no slice meets.
#[utoipa::path(
    post,
    path = "/connections/select",
    request_body = SelectRequest,
    responses(
        (status = 200, body = AnswerSchema),
        (status = 400, body = Problem),
        (status = 405, body = Problem),
        (status = 409, body = Problem, description = "no candidate is left; the field is the property that failed")
    )
)]
async fn select(State(shared): State<Shared>, Body(asked): Body<SelectRequest>) -> Answer<plan::Answer> {
    let taps = taps(&shared)?;
    let properties = Properties::from_json(asked.properties.unwrap_or_else(|| json!({})))
        .map_err(|e| Problem::invalid(e.to_string()).field(&e.property))?;
    let flow = asked.flow.map(|f| f.flow(&asked.remote));
    let request = Request { properties, remote: asked.remote, ..Request::default() };
    let asked = taps.clone();
    let answer = aside(move || asked.select(request, flow.as_ref())).await??;
    taps.settled().await;
    Ok(Json(answer))
}

/// A request in the format of NEAT (a list of requests), answered as NEAT does: a list of candidates, the
/// best first.
#[utoipa::path(
    post,
    path = "/connections/select/neat",
    request_body = Value,
    responses((status = 200, body = Value), (status = 400, body = Problem), (status = 405, body = Problem))
)]
async fn select_neat(State(shared): State<Shared>, body: Text) -> Answer<Value> {
    let taps = taps(&shared)?;
    let question = body.json()?;
    let candidates = aside(move || taps.select_neat(&question)).await??;
    Ok(Json(candidates.iter().map(|c| c.properties.json()).collect()))
}

/// The slices set over REST and by the slice manager.
#[utoipa::path(
    get,
    path = "/connections/slices",
    responses((status = 200, body = BTreeMap<String, SliceSpec>), (status = 405, body = Problem))
)]
async fn connection_slices(State(shared): State<Shared>) -> Answer<BTreeMap<String, SliceSpec>> {
    Ok(Json(taps(&shared)?.slices()))
}

/// Replaces the slices set over REST; their facts are valid for `ttl_s` from now on.
#[utoipa::path(
    put,
    path = "/connections/slices",
    request_body = BTreeMap<String, SliceSpec>,
    responses((status = 200, body = BTreeMap<String, SliceSpec>), (status = 400, body = Problem), (status = 405, body = Problem))
)]
async fn set_connection_slices(
    State(shared): State<Shared>,
    Body(slices): Body<BTreeMap<String, SliceSpec>>,
) -> Answer<BTreeMap<String, SliceSpec>> {
    let taps = taps(&shared)?;
    taps.set_slices(slices)
        .map_err(|(id, reason)| Problem::invalid(format!("slice \"{id}\": {reason}")).field(&id))?;
    Ok(Json(taps.slices()))
}

/// State of the connection to the slice manager.
#[utoipa::path(
    get,
    path = "/connections/manager",
    responses(
        (status = 200, body = ManagerView),
        (status = 404, body = Problem, description = "there is no [slices] in the configuration"),
        (status = 405, body = Problem)
    )
)]
async fn manager(State(shared): State<Shared>) -> Answer<ManagerView> {
    let taps = taps(&shared)?;
    let missing =
        || Problem::not_found("slice manager", "[slices]", "configure the slice manager in ue.toml");
    taps.usci().map(|usci| Json(usci.view())).ok_or_else(missing)
}

/// The route selection policy (URSP), as `ServiceParameterData` of TS 29.522.
#[utoipa::path(
    get,
    path = "/connections/ursp",
    responses((status = 200, body = Value), (status = 405, body = Problem))
)]
async fn ursp(State(shared): State<Shared>) -> Answer<Value> {
    Ok(Json(taps(&shared)?.ursp()))
}

/// Replaces the route selection policy (URSP).
#[utoipa::path(
    put,
    path = "/connections/ursp",
    request_body = Value,
    responses((status = 200, body = Value), (status = 400, body = Problem), (status = 405, body = Problem))
)]
async fn set_ursp(State(shared): State<Shared>, body: Text) -> Answer<Value> {
    let taps = taps(&shared)?;
    let policy =
        Ursp::from_json(body.text()?).map_err(|e| Problem::invalid(e.to_string()).field(&e.place))?;
    taps.set_ursp(policy);
    Ok(Json(taps.ursp()))
}

/// Deletes the route selection policy (URSP): no rule is left.
#[utoipa::path(
    delete,
    path = "/connections/ursp",
    responses((status = 204), (status = 405, body = Problem))
)]
async fn clear_ursp(State(shared): State<Shared>) -> Result<StatusCode, Problem> {
    taps(&shared)?.set_ursp(Ursp::default());
    Ok(StatusCode::NO_CONTENT)
}

/// Names of policies and profiles (NEAT).
#[utoipa::path(get, path = "/pib", responses((status = 200, body = Vec<String>), (status = 405, body = Problem)))]
async fn pib(State(shared): State<Shared>) -> Answer<Vec<String>> {
    let names =
        taps(&shared)?.manager(|m| m.policies.uids().chain(m.profiles.uids()).map(str::to_owned).collect());
    Ok(Json(names))
}

/// One policy or profile (NEAT).
#[utoipa::path(
    get,
    path = "/pib/{uid}",
    responses((status = 200, body = Value), (status = 404, body = Problem), (status = 405, body = Problem))
)]
async fn policy(State(shared): State<Shared>, Path(uid): Path<String>) -> Answer<Value> {
    taps(&shared)?
        .manager(|m| m.policies.get(&uid).or_else(|| m.profiles.get(&uid)).map(Policy::json))
        .map(Json)
        .ok_or_else(|| no_policy(&uid))
}

/// Sets a policy, or with `"policy_type": "profile"` a profile (NEAT); the name in the path applies.
#[utoipa::path(
    put,
    path = "/pib/{uid}",
    request_body = Value,
    responses((status = 200, body = Value), (status = 400, body = Problem), (status = 405, body = Problem))
)]
async fn set_policy(State(shared): State<Shared>, Path(uid): Path<String>, body: Text) -> Answer<Value> {
    let taps = taps(&shared)?;
    let policy = Policy::named(&uid, body.text()?)?;
    let written = policy.json();
    taps.manager(|m| {
        // A name belongs to either a policy or a profile.
        let (into, from) = if policy.is_profile {
            (&mut m.profiles, &mut m.policies)
        } else {
            (&mut m.policies, &mut m.profiles)
        };
        into.insert(policy)?;
        from.remove(&uid);
        Ok::<(), NeatError>(())
    })?;
    Ok(Json(written))
}

/// Removes a policy or profile (NEAT).
#[utoipa::path(
    delete,
    path = "/pib/{uid}",
    responses((status = 204), (status = 404, body = Problem), (status = 405, body = Problem))
)]
async fn delete_policy(State(shared): State<Shared>, Path(uid): Path<String>) -> Result<StatusCode, Problem> {
    let gone = taps(&shared)?.manager(|m| m.policies.remove(&uid).or_else(|| m.profiles.remove(&uid)));
    gone.map(|_| StatusCode::NO_CONTENT).ok_or_else(|| no_policy(&uid))
}

fn no_policy(uid: &str) -> Problem {
    Problem::not_found("policy", uid, "list them with GET /pib")
}

/// Names of CIB nodes (NEAT).
#[utoipa::path(get, path = "/cib", responses((status = 200, body = Vec<String>), (status = 405, body = Problem)))]
async fn cib(State(shared): State<Shared>) -> Answer<Vec<String>> {
    Ok(Json(taps(&shared)?.manager(|m| m.cib.uids().map(str::to_owned).collect())))
}

/// The rows that result from the combination of nodes (NEAT).
#[utoipa::path(
    get,
    path = "/cib/rows",
    responses((status = 200, body = Value), (status = 400, body = Problem), (status = 405, body = Problem))
)]
async fn cib_rows(State(shared): State<Shared>) -> Answer<Value> {
    let taps = taps(&shared)?;
    let cib = taps.manager(|m| m.cib.clone());
    let rows = aside(move || cib.rows(unix_s())).await??;
    Ok(Json(rows.iter().map(|row| row.json()).collect()))
}

/// One CIB node (NEAT).
#[utoipa::path(
    get,
    path = "/cib/{uid}",
    responses((status = 200, body = Value), (status = 404, body = Problem), (status = 405, body = Problem))
)]
async fn node(State(shared): State<Shared>, Path(uid): Path<String>) -> Answer<Value> {
    let found = taps(&shared)?.manager(|m| m.cib.get(&uid).map(Node::json));
    found.map(Json).ok_or_else(|| no_node(&uid))
}

/// Sets a CIB node (NEAT); the name in the path applies.
#[utoipa::path(
    put,
    path = "/cib/{uid}",
    request_body = Value,
    responses((status = 200, body = Value), (status = 400, body = Problem), (status = 405, body = Problem))
)]
async fn set_node(State(shared): State<Shared>, Path(uid): Path<String>, body: Text) -> Answer<Value> {
    let taps = taps(&shared)?;
    let node = Node::named(&uid, body.text()?, unix_s())?;
    let written = node.json();
    taps.manager(|m| m.cib.insert(node))?;
    Ok(Json(written))
}

/// Removes a CIB node (NEAT).
#[utoipa::path(
    delete,
    path = "/cib/{uid}",
    responses((status = 204), (status = 404, body = Problem), (status = 405, body = Problem))
)]
async fn delete_node(State(shared): State<Shared>, Path(uid): Path<String>) -> Result<StatusCode, Problem> {
    let gone = taps(&shared)?.manager(|m| m.cib.remove(&uid));
    gone.map(|_| StatusCode::NO_CONTENT).ok_or_else(|| no_node(&uid))
}

fn no_node(uid: &str) -> Problem {
    Problem::not_found("CIB node", uid, "list them with GET /cib")
}
