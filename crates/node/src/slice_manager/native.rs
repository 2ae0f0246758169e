//! Native paths: slices in terms of TS 28.541, UEs, and the free capacity of the accesses.

use super::auth::{self, Operator, View};
use super::routes::{Body, Params, Path, check_name, object, object_or_null, refused};
use super::{Shared, now_ms};
use crate::runtime::api::{Preconditions, Problem, etag, header_of};
use anabranch_atsss::crypto::PublicKey;
use anabranch_slice::profile::{ProfileError, ServiceProfile};
use anabranch_slice::record::SessionRule;
use anabranch_slice::{
    Attachment, Manager, Record, Refusal, Slice, SliceRequest, State as SliceState, Ue, Write,
};
use axum::Json;
use axum::extract::State;
use axum::http::{HeaderName, HeaderValue, StatusCode};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value, json};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

type Answer = Result<Json<Value>, Problem>;
/// A resource and its version.
type Versioned = ([(HeaderName, HeaderValue); 1], Json<Value>);

/// The routes and their OpenAPI description.
pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(routes!(accesses))
        .routes(routes!(slices, create))
        .routes(routes!(slice, change, remove))
        .routes(routes!(ues))
        .routes(routes!(ue, set_ue, remove_ue))
        .routes(routes!(token))
        .routes(routes!(assign, unassign))
}

/// Properties of a new or changed slice.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct NewSlice {
    /// Name for operators; need not be unique.
    name: String,
    /// Guarantees: a ServiceProfile of TS 28.541, rates in kbit/s.
    #[serde(rename = "serviceProfile", deserialize_with = "service_profile")]
    #[schema(value_type = Object)]
    profile: ServiceProfile,
    /// Accesses; default: those of its `coverageArea`, or all.
    #[serde(default)]
    accesses: Vec<String>,
    /// Share of the RBs independent of its rates, percent.
    #[serde(default)]
    share_percent: Option<f64>,
}

/// A profile without SST is eMBB (TS 23.501 Table 5.15.2.2-1), as at the other interfaces.
fn service_profile<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ServiceProfile, D::Error> {
    let mut given: Map<String, Value> = object(deserializer)?;
    if !given.contains_key("sst") {
        let listed = given.get("sNSSAIList").and_then(|list| list.get(0)?.get("sst").cloned());
        given.insert("sst".to_owned(), listed.unwrap_or(json!(1)));
    }
    serde_json::from_value(Value::Object(given)).map_err(D::Error::custom)
}

impl NewSlice {
    fn order(self) -> Result<SliceRequest, Problem> {
        check_name("name", &self.name)?;
        self.profile.check().map_err(|e: ProfileError| Problem::invalid(e.to_string()).field(e.key))?;
        if let Some(share) = self.share_percent.filter(|s| !(0.0..=100.0).contains(s)) {
            let detail = format!("share_percent is {share}: must be 0 to 100");
            return Err(Problem::invalid(detail).field("share_percent"));
        }
        if self.accesses.len() > 256 {
            return Err(Problem::invalid("accesses: at most 256").field("accesses"));
        }
        Ok(SliceRequest {
            name: self.name,
            profile: self.profile,
            nest: None,
            services: false,
            accesses: self.accesses,
            share_ppm: self.share_percent.map(|p| (p * 1e4).round() as u32),
            owner: None,
        })
    }
}

/// A slice as it is shown: the members that PUT accepts have the last requested values, `guarantees` are in
/// force, `reserved` is withheld from other slices.
fn shown(slice: &Slice) -> Value {
    let asked = slice.requested_slice();
    json!({
        "id": slice.id,
        "owner": slice.owner,
        "name": asked.name,
        "state": slice.state.name(),
        "reason": slice.state.reason().or_else(|| removal_problem(slice)),
        "serviceProfile": asked.profile,
        "accesses": asked.accesses,
        "share_percent": asked.share_ppm.map(|ppm| f64::from(ppm) / 1e4),
        "guarantees": slice.applied,
        "reserved": slice.reserved(),
        "needs": slice.growth.needs,
        "retry_ms": slice.retry_ms,
        "wanted": if slice.plan.is_some() { json!(slice.wanted) } else { Value::Null },
        "cellName": slice.cell_name,
        "errors": slice.errors,
        "created_ms": slice.created_ms,
        "since_ms": slice.since_ms,
    })
}

/// Why the removal of a slice takes long: a failed step is retried.
fn removal_problem(slice: &Slice) -> Option<&str> {
    slice.errors.last().filter(|_| slice.state == SliceState::Terminating).map(String::as_str)
}

/// The version (ETag) of a slice, the same at every interface.
pub fn version(slice: &Slice) -> String {
    etag(&slice.requested_slice())
}

/// The version (ETag) of a UE: its slices, policies and session.
fn version_ue(ue: &Ue) -> String {
    let slices: Vec<_> = ue.slices.iter().map(|a| (&a.slice, &a.cell_ue)).collect();
    etag(&(&ue.token_hash, slices, &ue.policies, &ue.session))
}

/// The version of the first slice or UE in the writes.
pub fn version_of(writes: &[Write]) -> Option<String> {
    match writes.first()?.record.as_ref()? {
        Record::Slice(slice) => Some(version(slice)),
        Record::Ue(ue) => Some(version_ue(ue)),
        Record::Document(value) => Some(etag(value)),
    }
}

/// Checks the preconditions of a change to a slice.
///
/// # Errors
/// The slice is not visible, or it has another version.
pub fn check_slice(view: &View, m: &Manager, id: &str, asked: &Preconditions) -> Result<(), Problem> {
    asked.check(Some(&version(view.slice(m, id)?)))
}

/// Checks the preconditions of a change to a UE.
///
/// # Errors
/// The UE does not exist, or it has another version.
pub fn check_ue(m: &Manager, name: &str, asked: &Preconditions) -> Result<(), Problem> {
    asked.check(Some(&version_ue(m.ue(name).map_err(refused)?)))
}

/// Total, guaranteed and free capacity of each access.
#[utoipa::path(get, path = "/v1/accesses", tag = "slices", responses((status = 200, body = Object), (status = 401, body = Problem)))]
async fn accesses(_: Operator, State(shared): State<Shared>) -> Answer {
    let list = shared.engine.read(|m| {
        let ledger = m.ledger(None);
        let line = |a: &anabranch_slice::Access| {
            let (dl, ul, share) = ledger.promised(&a.name);
            json!({
                "name": a.name, "location": a.location, "delay_ms": a.delay_ms,
                "downlink_bps": a.downlink_bps, "downlink_free_bps": a.downlink_bps.saturating_sub(dl),
                "uplink_bps": a.uplink_bps, "uplink_free_bps": a.uplink_bps.saturating_sub(ul),
                "max_share_ppm": a.max_share_ppm,
                "share_free_ppm": u64::from(a.max_share_ppm).saturating_sub(share),
                "shares": m.shares_now(&a.name),
            })
        };
        m.inventory().iter().map(line).collect::<Vec<_>>()
    });
    Ok(Json(json!({"accesses": list})))
}

/// Selection of a page.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct Page {
    /// Number of entries to skip; default 0.
    #[serde(default)]
    #[param(maximum = 1_000_000)]
    offset: u32,
    /// Maximum number of entries, 1 to 1000; default 100.
    #[serde(default = "hundred")]
    #[param(minimum = 1, maximum = 1000)]
    limit: u32,
}

fn hundred() -> u32 {
    100
}

impl Page {
    fn check(&self) -> Result<(), Problem> {
        if self.offset > 1_000_000 {
            return Err(Problem::invalid("offset: at most 1000000").field("offset"));
        }
        if !(1..=1000).contains(&self.limit) {
            return Err(Problem::invalid("limit: 1 to 1000").field("limit"));
        }
        Ok(())
    }

    fn of<T>(&self, all: impl Iterator<Item = T>) -> Vec<T> {
        all.skip(self.offset as usize).take(self.limit as usize).collect()
    }
}

/// Slices, a page at a time.
#[utoipa::path(
    get,
    path = "/v1/slices",
    tag = "slices",
    params(Page),
    responses((status = 200, body = Object), (status = 400, body = Problem))
)]
async fn slices(view: View, State(shared): State<Shared>, Params(page): Params<Page>) -> Answer {
    page.check()?;
    Ok(Json(
        shared
            .engine
            .read(|m| json!({"total": view.slices(m).count(), "slices": page.of(view.slices(m).map(shown))})),
    ))
}

/// Creates a slice.
#[utoipa::path(
    post,
    path = "/v1/slices",
    tag = "slices",
    request_body = NewSlice,
    responses(
        (status = 201, body = Object),
        (status = 400, body = Problem),
        (status = 409, body = Problem, description = "Insufficient capacity"),
        (status = 413, body = Problem),
        (status = 415, body = Problem)
    )
)]
async fn create(
    view: View,
    State(shared): State<Shared>,
    Body(new): Body<NewSlice>,
) -> Result<(StatusCode, Versioned), Problem> {
    let id = auth::new_uuid()?;
    let order = SliceRequest { owner: view.owner(), ..new.order()? };
    let answer = |writes: Vec<Write>| {
        let shown = match writes.first().and_then(|w| w.record.as_ref()) {
            Some(Record::Slice(slice)) => (header_of(&version(slice)), Json(shown(slice))),
            _ => (header_of("\"\""), Json(Value::Null)),
        };
        (writes, shown)
    };
    let make = |m: &Manager| {
        view.check_slice_quota(m, shared.quota)?;
        m.create(&id, order, now_ms()).map(answer).map_err(refused)
    };
    let made = shared.engine.commit(make).await?;
    Ok((StatusCode::CREATED, made))
}

/// One slice.
#[utoipa::path(
    get,
    path = "/v1/slices/{id}",
    tag = "slices",
    params(("id" = String, Path)),
    responses((status = 200, body = Object), (status = 404, body = Problem))
)]
async fn slice(
    view: View,
    State(shared): State<Shared>,
    Path(id): Path<String>,
) -> Result<Versioned, Problem> {
    let answer = |s: &Slice| (header_of(&version(s)), Json(shown(s)));
    shared.engine.read(|m| view.slice(m, &id).map(answer))
}

/// Changes the profile of a slice; the old profile stays in force until the cells have applied the new one,
/// or if they refuse it.
#[utoipa::path(
    put,
    path = "/v1/slices/{id}",
    tag = "slices",
    params(("id" = String, Path), ("if-match" = Option<String>, Header, description = "ETag of the version to be changed")),
    request_body = NewSlice,
    responses(
        (status = 412, body = Problem, description = "The ETag has changed"),
        (status = 202, description = "Accepted; `state` shows the progress"),
        (status = 400, body = Problem),
        (status = 404, body = Problem),
        (status = 409, body = Problem, description = "Insufficient capacity, or another change is in progress"),
        (status = 413, body = Problem),
        (status = 415, body = Problem)
    )
)]
async fn change(
    view: View,
    State(shared): State<Shared>,
    Path(id): Path<String>,
    seen: Preconditions,
    Body(new): Body<NewSlice>,
) -> Result<(StatusCode, [(HeaderName, HeaderValue); 1]), Problem> {
    let order = new.order()?;
    let modify = |m: &Manager| {
        check_slice(&view, m, &id, &seen)?;
        let writes = m.modify(&id, order, now_ms()).map_err(refused)?;
        let version = version_of(&writes).unwrap_or_default();
        Ok((writes, version))
    };
    let version = shared.engine.commit(modify).await?;
    Ok((StatusCode::ACCEPTED, header_of(&version)))
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct RemoveParams {
    /// Remove the slice even if a step fails.
    #[serde(default)]
    force: bool,
}

/// Removes a slice.
#[utoipa::path(
    delete,
    path = "/v1/slices/{id}",
    tag = "slices",
    params(("id" = String, Path), RemoveParams, ("if-match" = Option<String>, Header, description = "ETag of the version to be changed")),
    responses(
        (status = 412, body = Problem, description = "The ETag has changed"),
        (status = 202, description = "Accepted; removal is complete when GET returns 404"),
        (status = 400, body = Problem),
        (status = 404, body = Problem),
        (status = 409, body = Problem)
    )
)]
async fn remove(
    view: View,
    State(shared): State<Shared>,
    Path(id): Path<String>,
    Params(query): Params<RemoveParams>,
    seen: Preconditions,
) -> Result<StatusCode, Problem> {
    let remove = |m: &Manager| {
        check_slice(&view, m, &id, &seen)?;
        Ok((m.remove(&id, query.force, now_ms()).map_err(refused)?, ()))
    };
    shared.engine.commit(remove).await?;
    Ok(StatusCode::ACCEPTED)
}

/// A UE as it is shown to the operator, without its token.
pub fn shown_ue(ue: &Ue) -> Value {
    json!({
        "id": ue.id,
        "slices": ue.slices,
        "policies": ue.policies,
        "session": ue.session,
        "session_state": ue.session_state,
        "leaving": ue.leaving,
        "registered_ms": ue.registered_ms,
    })
}

/// UEs, a page at a time.
#[utoipa::path(
    get,
    path = "/v1/ues",
    tag = "UEs",
    params(Page),
    responses((status = 200, body = Object), (status = 400, body = Problem))
)]
async fn ues(_: Operator, State(shared): State<Shared>, Params(page): Params<Page>) -> Answer {
    page.check()?;
    Ok(Json(
        shared
            .engine
            .read(|m| json!({"total": m.ues().len(), "ues": page.of(m.ues().values().map(shown_ue))})),
    ))
}

/// A UE with its slices and the state of each in the network.
#[utoipa::path(
    get,
    path = "/v1/ues/{ue}",
    tag = "UEs",
    params(("ue" = String, Path)),
    responses((status = 200, body = Object), (status = 404, body = Problem))
)]
async fn ue(
    _: Operator,
    State(shared): State<Shared>,
    Path(name): Path<String>,
) -> Result<Versioned, Problem> {
    let answer = |ue: &Ue| (header_of(&version_ue(ue)), Json(shown_ue(ue)));
    shared.engine.read(|m| m.ue(&name).map(answer).map_err(refused))
}

/// A UE's membership in a slice.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
struct MembershipRequest {
    /// Name of the UE at the slice's cells; absent: the cells are not configured.
    cell_ue: Option<String>,
}

/// Properties of a new or changed UE.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
struct NewUe {
    /// Identifiers of its slices; existing memberships remain.
    slices: Vec<String>,
    /// Session at the UPF: `public_key`, and `rules` for this UE. Absent: unchanged.
    #[serde(deserialize_with = "object_or_null")]
    #[schema(value_type = Option<Object>)]
    session: Option<SessionRule>,
}

/// Adds or changes a UE. The token of a new UE is only in this answer.
#[utoipa::path(
    put,
    path = "/v1/ues/{ue}",
    tag = "UEs",
    params(("ue" = String, Path), ("if-match" = Option<String>, Header, description = "ETag of the version to be changed")),
    request_body = NewUe,
    responses(
        (status = 412, body = Problem, description = "The ETag has changed"),
        (status = 200, body = Object),
        (status = 201, body = Object, description = "`token` is the UE's token, which is not shown again"),
        (status = 400, body = Problem),
        (status = 404, body = Problem, description = "A slice does not exist"),
        (status = 409, body = Problem),
        (status = 413, body = Problem),
        (status = 415, body = Problem)
    )
)]
async fn set_ue(
    _: Operator,
    State(shared): State<Shared>,
    Path(name): Path<String>,
    seen: Preconditions,
    Body(new): Body<NewUe>,
) -> Result<(StatusCode, Versioned), Problem> {
    check_name("ue", &name)?;
    let token = auth::new_token()?;
    shared
        .engine
        .commit(|m| {
            let old = m.ues().get(&name).cloned();
            seen.check(old.as_ref().map(version_ue).as_deref())?;
            if old.as_ref().is_some_and(|ue| ue.leaving) {
                return Err(Problem::conflict("this UE is being removed", "wait until it answers 404"));
            }
            let is_new = old.is_none();
            if is_new && m.ues().len() >= anabranch_slice::manager::MAX_UES {
                let most = anabranch_slice::manager::MAX_UES as u64;
                return Err(refused(Refusal::Full { what: "UEs", most }));
            }
            let mut ue = old.unwrap_or_else(|| Ue::new(name.clone(), auth::hash(&token)));
            if let Some(session) = new.session {
                check_session(m, &name, &session)?;
                // Setting the same session again after a refusal by the UPF retries it.
                let failed = matches!(ue.session_state, Some(Attachment::Failed(_)));
                if failed || ue.session.as_ref() != Some(&session) {
                    ue.session_state = Some(Attachment::Pending);
                    ue.session = Some(session);
                }
            }
            let ue = assigned(m, ue, &new.slices)?;
            let mut shown = shown_ue(&ue);
            if is_new {
                shown["token"] = json!(token);
            }
            let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
            let version = header_of(&version_ue(&ue));
            let mut writes = vec![Write::ue(ue)];
            writes.extend(new.slices.iter().flat_map(|slice| m.place_stays(&name, slice, true)));
            Ok((writes, (status, (version, Json(shown)))))
        })
        .await
}

/// Checks that the UPF can accept a session of the UE `name`.
fn check_session(m: &Manager, name: &str, session: &SessionRule) -> Result<(), Problem> {
    if session.rules.len() > 64 {
        return Err(Problem::invalid("session: there may be at most 64 rules").field("session.rules"));
    }
    let wrong_key =
        |why: String| Problem::invalid(format!("session.public_key: {why}")).field("session.public_key");
    let key: PublicKey = session.public_key.parse().map_err(|error| wrong_key(format!("{error}")))?;
    let same_key = |ue: &&Ue| {
        let of = ue.session.as_ref().and_then(|session| session.public_key.parse::<PublicKey>().ok());
        ue.id != name && of == Some(key)
    };
    match m.ues().values().find(same_key) {
        Some(other) => {
            let detail = format!("session.public_key is that of UE \"{}\"", other.id);
            Err(Problem::conflict(detail, "every UE needs a key of its own").field("session.public_key"))
        }
        None => Ok(()),
    }
}

/// The UE with a membership in each of `slices`.
fn assigned(m: &Manager, ue: Ue, slices: &[String]) -> Result<Ue, Problem> {
    if slices.is_empty() {
        return Ok(ue);
    }
    // The rules apply to existing UEs, so the new UE is added to a copy.
    let mut trial = m.clone();
    let id = &ue.id;
    trial.put(Write::ue(ue.clone()));
    // Existing memberships stay unchanged.
    let is_new = |slice: &&String| !ue.slices.iter().any(|membership| membership.slice == **slice);
    for slice in slices.iter().filter(is_new) {
        for write in trial.assign(id, slice, None).map_err(refused)? {
            trial.put(write);
        }
    }
    trial.ue(id).cloned().map_err(refused)
}

/// Removes a UE; its token is invalid at once. Removal is complete when the UPF has ended its session and the
/// cells have moved it to their default slice.
#[utoipa::path(
    delete,
    path = "/v1/ues/{ue}",
    tag = "UEs",
    params(("ue" = String, Path), ("if-match" = Option<String>, Header, description = "ETag of the version to be changed")),
    responses((status = 412, body = Problem, description = "The ETag has changed"), (status = 204), (status = 404, body = Problem))
)]
async fn remove_ue(
    _: Operator,
    State(shared): State<Shared>,
    Path(name): Path<String>,
    seen: Preconditions,
) -> Result<StatusCode, Problem> {
    let forget = |m: &Manager| {
        check_ue(m, &name, &seen)?;
        Ok((m.forget(&name).map_err(refused)?, ()))
    };
    shared.engine.commit(forget).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Issues a new token for a UE; the old one is invalid at once.
#[utoipa::path(
    post,
    path = "/v1/ues/{ue}/token",
    tag = "UEs",
    params(("ue" = String, Path), ("if-match" = Option<String>, Header, description = "ETag of the version to be changed")),
    responses((status = 412, body = Problem, description = "The ETag has changed"), (status = 200, body = Object), (status = 404, body = Problem))
)]
async fn token(
    _: Operator,
    State(shared): State<Shared>,
    Path(name): Path<String>,
    seen: Preconditions,
) -> Answer {
    let token = auth::new_token()?;
    let renew = |m: &Manager| {
        check_ue(m, &name, &seen)?;
        let ue = Ue { token_hash: auth::hash(&token), ..m.ue(&name).map_err(refused)?.clone() };
        Ok((vec![Write::ue(ue)], ()))
    };
    shared.engine.commit(renew).await?;
    Ok(Json(json!({"id": name, "token": token})))
}

/// Makes a UE a member of a slice.
#[utoipa::path(
    put,
    path = "/v1/ues/{ue}/slices/{id}",
    tag = "UEs",
    params(("ue" = String, Path), ("id" = String, Path), ("if-match" = Option<String>, Header, description = "ETag of the version to be changed")),
    request_body = MembershipRequest,
    responses(
        (status = 412, body = Problem, description = "The ETag has changed"),
        (status = 204),
        (status = 400, body = Problem),
        (status = 404, body = Problem),
        (status = 409, body = Problem, description = "The slice has its maximum number of UEs"),
        (status = 413, body = Problem),
        (status = 415, body = Problem)
    )
)]
async fn assign(
    _: Operator,
    State(shared): State<Shared>,
    Path((name, id)): Path<(String, String)>,
    seen: Preconditions,
    Body(membership): Body<MembershipRequest>,
) -> Result<StatusCode, Problem> {
    if let Some(cell_ue) = &membership.cell_ue {
        check_name("cell_ue", cell_ue)?;
    }
    let assign = |m: &Manager| {
        check_ue(m, &name, &seen)?;
        let mut writes = m.assign(&name, &id, membership.cell_ue).map_err(refused)?;
        writes.extend(m.place_stays(&name, &id, true));
        Ok((writes, ()))
    };
    shared.engine.commit(assign).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Ends a UE's membership in a slice.
#[utoipa::path(
    delete,
    path = "/v1/ues/{ue}/slices/{id}",
    tag = "UEs",
    params(("ue" = String, Path), ("id" = String, Path), ("if-match" = Option<String>, Header, description = "ETag of the version to be changed")),
    responses((status = 412, body = Problem, description = "The ETag has changed"), (status = 204), (status = 404, body = Problem))
)]
async fn unassign(
    _: Operator,
    State(shared): State<Shared>,
    Path((name, id)): Path<(String, String)>,
    seen: Preconditions,
) -> Result<StatusCode, Problem> {
    let unassign = |m: &Manager| {
        check_ue(m, &name, &seen)?;
        let mut writes = m.unassign(&name, &id).map_err(refused)?;
        writes.extend(m.place_stays(&name, &id, false));
        Ok((writes, ()))
    };
    shared.engine.commit(unassign).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Only for the OpenAPI description of the UE's view.
#[derive(Serialize, ToSchema)]
#[allow(dead_code, reason = "named in the description only")]
pub struct UeSlices {
    /// Time for which this is valid, seconds.
    ttl_s: u32,
    /// The UE's slices: id, name, state, sst, sd, dnn, rates in bit/s, latency_ms, jitter_ms, loss_percent, qi, mtu_bytes.
    slices: Vec<Value>,
    /// Policies pushed to it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    policies: Vec<Value>,
}
