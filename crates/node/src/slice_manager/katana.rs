//! Paths compatible with Katana, so that its users can migrate with unchanged NESTs. Answers have Katana's
//! form (identifiers as plain text, 201 for new resources); errors are problem documents. Attributes that
//! Katana ignores are kept.

use super::auth::{Operator, Requester, View, forbidden, new_uuid};
use super::native::{check_slice, version, version_of};
use super::routes::{Body, Params, Path, refused};
use super::{Shared, now_ms};
use crate::runtime::api::{Preconditions, Problem, etag, header_of};
use anabranch_slice::nest::{self, Nest};
use anabranch_slice::{Kind, Manager, Record, Slice, SliceRequest, Write};
use axum::Json;
use axum::extract::State;
use axum::http::{HeaderName, HeaderValue, StatusCode};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Maximum number of documents per kind.
const MAX_DOCUMENTS: usize = 10_000;

type Answer = Result<Json<Value>, Problem>;
/// A resource and its version.
type Versioned = ([(HeaderName, HeaderValue); 1], Json<Value>);
type Text = Result<(StatusCode, String), Problem>;
/// Plain text with the version of the resource that was created or changed.
type VersionedText = Result<(StatusCode, [(HeaderName, HeaderValue); 1], String), Problem>;

/// The routes and their OpenAPI description.
pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(routes!(slices, create))
        .routes(routes!(slice, remove))
        .routes(routes!(time))
        .routes(routes!(errors))
        .routes(routes!(modify))
        .routes(routes!(gsts))
        .routes(routes!(gst))
        .routes(routes!(neat))
        .merge(documents::routes())
}

/// Slices: `_id`, `name`, `created_at`, `status`.
#[utoipa::path(get, path = "/api/slice", tag = "katana", responses((status = 200, body = Vec<Object>), (status = 401, body = Problem)))]
async fn slices(view: View, State(shared): State<Shared>) -> Answer {
    let line = |s: &Slice| json!({"_id": s.id, "name": s.name, "created_at": seconds(s.created_ms), "status": s.state.name()});
    Ok(Json(shared.engine.read(|m| view.slices(m).map(line).collect())))
}

/// Creates a slice from a NEST and returns its identifier. The slice is placed and its guarantees are
/// reserved; its status shows the progress.
#[utoipa::path(
    post,
    path = "/api/slice",
    tag = "katana",
    request_body = Object,
    responses(
        (status = 201, body = String, content_type = "text/plain"),
        (status = 400, body = Problem, description = "The NEST is invalid, or no access serves it"),
        (status = 409, body = Problem, description = "Insufficient capacity"),
        (status = 413, body = Problem),
        (status = 415, body = Problem)
    )
)]
async fn create(view: View, State(shared): State<Shared>, Body(document): Body<Value>) -> VersionedText {
    let id = new_uuid()?;
    let made = shared.engine.commit(|m| {
        view.check_slice_quota(m, shared.quota)?;
        let nest = parse(m, &document)?;
        let order = SliceRequest { owner: view.owner(), ..SliceRequest::from(&nest) };
        let mut writes = m.create(&id, order, now_ms()).map_err(refused)?;
        let version = version_of(&writes).unwrap_or_default();
        let record = Some(Record::Document(document));
        if m.documents(Kind::Gst).count() < MAX_DOCUMENTS {
            writes.push(Write { kind: Kind::Gst, id: id.clone(), record });
        }
        Ok((writes, version))
    });
    let version = made.await?;
    Ok((StatusCode::CREATED, header_of(&version), id))
}

/// A slice: all attributes of its NEST, and `status`, `sst`, `runtime_errors`, `deployment_time`.
#[utoipa::path(
    get,
    path = "/api/slice/{id}",
    tag = "katana",
    params(("id" = String, Path)),
    responses((status = 200, body = Object), (status = 404, body = Problem))
)]
async fn slice(
    view: View,
    State(shared): State<Shared>,
    Path(id): Path<String>,
) -> Result<Versioned, Problem> {
    let answer = |s: &Slice| (header_of(&version(s)), Json(document(s)));
    shared.engine.read(|m| view.slice(m, &id).map(answer))
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
    path = "/api/slice/{id}",
    tag = "katana",
    params(("id" = String, Path), RemoveParams, ("if-match" = Option<String>, Header, description = "ETag of the version to be changed")),
    responses(
        (status = 412, body = Problem, description = "The ETag has changed"),
        (status = 200, body = String, content_type = "text/plain"),
        (status = 400, body = Problem),
        (status = 404, body = Problem),
        (status = 409, body = Problem, description = "It is already being removed")
    )
)]
async fn remove(
    view: View,
    State(shared): State<Shared>,
    Path(id): Path<String>,
    Params(query): Params<RemoveParams>,
    seen: Preconditions,
) -> Text {
    let remove = |m: &Manager| {
        check_slice(&view, m, &id, &seen)?;
        Ok((m.remove(&id, query.force, now_ms()).map_err(refused)?, ()))
    };
    shared.engine.commit(remove).await?;
    Ok((StatusCode::OK, format!("Deleting {id}")))
}

/// Durations of the deployment phases, seconds.
#[utoipa::path(
    get,
    path = "/api/slice/{id}/time",
    tag = "katana",
    params(("id" = String, Path)),
    responses((status = 200, body = Object), (status = 404, body = Problem))
)]
async fn time(view: View, State(shared): State<Shared>, Path(id): Path<String>) -> Answer {
    shared.engine.read(|m| view.slice(m, &id).map(|s| Json(deployment_time(s))))
}

/// Errors of the slice.
#[utoipa::path(
    get,
    path = "/api/slice/{id}/errors",
    tag = "katana",
    params(("id" = String, Path)),
    responses((status = 200, body = Object), (status = 404, body = Problem))
)]
async fn errors(view: View, State(shared): State<Shared>, Path(id): Path<String>) -> Answer {
    shared.engine.read(|m| view.slice(m, &id).map(|s| Json(runtime_errors(s))))
}

/// Changes the attributes of a slice: a complete NEST, or only the changed keys of `base_slice_descriptor`.
#[utoipa::path(
    post,
    path = "/api/slice/{id}/modify",
    tag = "katana",
    params(("id" = String, Path), ("if-match" = Option<String>, Header, description = "ETag of the version to be changed")),
    request_body = Object,
    responses(
        (status = 200, body = String, content_type = "text/plain"),
        (status = 400, body = Problem),
        (status = 404, body = Problem),
        (status = 409, body = Problem, description = "Insufficient capacity, or another change is in progress"),
        (status = 412, body = Problem, description = "The ETag has changed"),
        (status = 413, body = Problem),
        (status = 415, body = Problem)
    )
)]
async fn modify(
    view: View,
    State(shared): State<Shared>,
    Path(id): Path<String>,
    seen: Preconditions,
    Body(update): Body<Map<String, Value>>,
) -> VersionedText {
    let modify = |m: &Manager| {
        check_slice(&view, m, &id, &seen)?;
        let asked = view.slice(m, &id)?.requested_slice();
        let Some(Value::Object(mut document)) = asked.nest else {
            return Err(Problem::conflict(
                "this slice was not created from a NEST",
                "use PUT /v1/slices/{id}",
            ));
        };
        let before = parse(m, &Value::Object(document.clone()))?;
        for (key, value) in update {
            match (document.get_mut(&key), value) {
                (Some(Value::Object(old)), Value::Object(new)) => old.extend(new),
                (_, value) => drop(document.insert(key, value)),
            }
        }
        let nest = parse(m, &Value::Object(document))?;
        let order = SliceRequest::from(&nest);
        // Only the attributes that this request changes; the others keep the values of PUT /v1/slices/{id}.
        let profile = asked.profile.with_changes(&SliceRequest::from(&before).profile, &order.profile);
        profile.check().map_err(|e| Problem::invalid(e.to_string()).field(e.key))?;
        let moved = nest.coverage != before.coverage;
        let order = SliceRequest {
            name: if nest.name == before.name { asked.name } else { nest.name },
            profile,
            accesses: if moved { Vec::new() } else { asked.accesses },
            share_ppm: asked.share_ppm,
            ..order
        };
        let writes = m.modify(&id, order, now_ms()).map_err(refused)?;
        let version = version_of(&writes).unwrap_or_default();
        Ok((writes, version))
    };
    let version = shared.engine.commit(modify).await?;
    Ok((StatusCode::OK, header_of(&version), format!("Updating {id}")))
}

/// Identifiers (`_id`) of the stored NESTs.
#[utoipa::path(get, path = "/api/gst", tag = "katana", responses((status = 200, body = Vec<Object>)))]
async fn gsts(_: Operator, State(shared): State<Shared>) -> Answer {
    Ok(Json(shared.engine.read(|m| m.documents(Kind::Gst).map(|(id, _)| json!({"_id": id})).collect())))
}

/// A NEST as it was received, with `_id`.
#[utoipa::path(
    get,
    path = "/api/gst/{id}",
    tag = "katana",
    params(("id" = String, Path)),
    responses((status = 200, body = Object), (status = 404, body = Problem))
)]
async fn gst(
    _: Operator,
    State(shared): State<Shared>,
    Path(id): Path<String>,
) -> Result<Versioned, Problem> {
    documents::one(&shared, Kind::Gst, &id)
}

/// The complete document of a slice for the policy system of a UE, in Katana's form. A UE sees only its own
/// slices.
#[utoipa::path(
    get,
    path = "/api/policy/neat/{slice}",
    tag = "katana",
    params(("slice" = String, Path)),
    responses((status = 200, body = Object), (status = 403, body = Problem), (status = 404, body = Problem))
)]
async fn neat(who: Requester, State(shared): State<Shared>, Path(id): Path<String>) -> Answer {
    shared.engine.read(|m| {
        let view = match &who {
            Requester::Ue(name) => {
                if !m.ue(name).is_ok_and(|ue| ue.slices.iter().any(|a| a.slice == id)) {
                    // The answer does not reveal whether the slice exists.
                    return Err(forbidden("this is not a slice of this UE", "GET /v1/me lists yours"));
                }
                View::All
            }
            Requester::Caller(caller) => View::of(caller),
        };
        view.slice(m, &id).map(|s| Json(document(s)))
    })
}

/// Parses a NEST with the stored base descriptors.
fn parse(m: &anabranch_slice::Manager, document: &Value) -> Result<Nest, Problem> {
    Nest::parse(document, &|name| base(m, name)).map_err(invalid)
}

/// A base descriptor, by name or by identifier.
fn base(m: &Manager, name: &str) -> Option<Map<String, Value>> {
    m.base(name).or_else(|| m.document(Kind::Base, name)?.as_object().cloned())
}

fn invalid(error: nest::NestError) -> Problem {
    let field = error.path.clone();
    Problem::invalid(error.to_string()).field(&field)
}

fn seconds(ms: u64) -> f64 {
    ms as f64 / 1e3
}

fn deployment_time(slice: &Slice) -> Value {
    let t = slice.timing;
    json!({
        "Placement_Time": seconds(t.placement_ms),
        "Provisioning_Time": seconds(t.provisioning_ms),
        "Activation_Time": seconds(t.activation_ms),
        "Slice_Deployment_Time": seconds(t.placement_ms + t.provisioning_ms + t.activation_ms),
    })
}

fn runtime_errors(slice: &Slice) -> Value {
    if slice.errors.is_empty() { json!({}) } else { json!({"errors": slice.errors}) }
}

/// A slice in Katana's form: the attributes of its NEST, flat, and its state.
fn document(slice: &Slice) -> Value {
    let asked = slice.requested_slice();
    let nest = asked.nest.as_ref().and_then(Value::as_object).cloned().unwrap_or_default();
    let mut all = Map::new();
    for (key, value) in nest {
        match (key.as_str(), value) {
            ("base_slice_descriptor", Value::Object(base)) => all.extend(base),
            ("service_descriptor", Value::Object(services)) => all.extend(services),
            (_, value) => drop(all.insert(key, value)),
        }
    }
    for (key, value) in [
        ("_id", json!(slice.id)),
        ("slice_name", json!(asked.name)),
        ("sst", json!(asked.profile.sst)),
        ("status", json!(slice.state.name())),
        ("reason", json!(slice.state.reason())),
        ("created_at", json!(seconds(slice.created_ms))),
        ("not_supported_locations", json!(slice.not_supported)),
        ("functions", json!(slice.applied.keys().collect::<Vec<_>>())),
        ("service_profile", json!(asked.profile)),
        ("deployment_time", deployment_time(slice)),
        ("runtime_errors", runtime_errors(slice)),
    ] {
        all.insert(key.to_owned(), value);
    }
    Value::Object(all)
}

/// Base slice descriptors, functions, locations and policy systems, stored as received.
mod documents {
    use super::*;

    pub fn routes() -> OpenApiRouter<Shared> {
        OpenApiRouter::new()
            .routes(routes!(bases, add_base))
            .routes(routes!(base, set_base, remove_base))
            .routes(routes!(functions, add_function))
            .routes(routes!(function, set_function, remove_function))
            .routes(routes!(locations, add_location))
            .routes(routes!(location, set_location, remove_location))
            .routes(routes!(policies, add_policy))
            .routes(routes!(policy, set_policy, remove_policy))
    }

    /// The routes of one kind of document.
    macro_rules! documents {
        ($kind:expr, $path:literal, $of:literal, $list:ident $add:ident $get:ident $set:ident $remove:ident) => {
            #[doc = concat!("All documents of this kind: ", $of, ".")]
            #[utoipa::path(get, path = $path, tag = "katana", responses((status = 200, body = Vec<Object>)))]
            async fn $list(_: Operator, State(shared): State<Shared>) -> Answer {
                Ok(Json(shared.engine.read(|m| m.documents($kind).map(|(id, v)| line($kind, id, v)).collect())))
            }

            #[doc = concat!("Adds a document (", $of, "); returns its identifier.")]
            #[utoipa::path(
                post, path = $path, tag = "katana", request_body = Object,
                responses(
                    (status = 201, body = String, content_type = "text/plain"),
                    (status = 400, body = Problem),
                    (status = 409, body = Problem),
                    (status = 413, body = Problem),
                    (status = 415, body = Problem)
                )
            )]
            async fn $add(_: Operator, State(shared): State<Shared>, Body(v): Body<Map<String, Value>>) -> Text {
                put(&shared, $kind, None, &Preconditions::default(), v).await
            }

            #[doc = concat!("One document (", $of, ").")]
            #[utoipa::path(
                get, path = concat!($path, "/{id}"), tag = "katana", params(("id" = String, Path)),
                responses((status = 200, body = Object), (status = 404, body = Problem))
            )]
            async fn $get(
                _: Operator,
                State(shared): State<Shared>,
                Path(id): Path<String>,
            ) -> Result<Versioned, Problem> {
                one(&shared, $kind, &id)
            }

            #[doc = concat!("Adds or replaces a document (", $of, ").")]
            #[utoipa::path(
                put, path = concat!($path, "/{id}"), tag = "katana",
                params(("id" = String, Path), ("if-match" = Option<String>, Header, description = "ETag of the version to be changed")),
                request_body = Object,
                responses(
                (status = 412, body = Problem, description = "The ETag has changed"),
                    (status = 200, body = String, content_type = "text/plain"),
                    (status = 201, body = String, content_type = "text/plain"),
                    (status = 400, body = Problem),
                    (status = 409, body = Problem),
                    (status = 413, body = Problem),
                    (status = 415, body = Problem)
                )
            )]
            async fn $set(
                _: Operator,
                State(shared): State<Shared>,
                Path(id): Path<String>,
                seen: Preconditions,
                Body(v): Body<Map<String, Value>>,
            ) -> Text {
                put(&shared, $kind, Some(id), &seen, v).await
            }

            #[doc = concat!("Removes a document (", $of, ").")]
            #[utoipa::path(
                delete, path = concat!($path, "/{id}"), tag = "katana",
                params(("id" = String, Path), ("if-match" = Option<String>, Header, description = "ETag of the version to be changed")),
                responses(
                (status = 412, body = Problem, description = "The ETag has changed"),
                    (status = 200, body = String, content_type = "text/plain"),
                    (status = 404, body = Problem),
                    (status = 409, body = Problem)
                )
            )]
            async fn $remove(
                _: Operator,
                State(shared): State<Shared>,
                Path(id): Path<String>,
                seen: Preconditions,
            ) -> Text {
                drop_one(&shared, $kind, id, &seen).await
            }
        };
    }

    documents!(Kind::Base, "/api/base_slice_des", "base slice descriptors", bases add_base base set_base remove_base);
    documents!(Kind::Function, "/api/function", "network functions",
        functions add_function function set_function remove_function);
    documents!(Kind::Location, "/api/location", "locations", locations add_location location set_location remove_location);
    documents!(Kind::Policy, "/api/policy", "policy management systems", policies add_policy policy set_policy remove_policy);

    /// The keys shown in a list.
    fn line(kind: Kind, id: &str, v: &Value) -> Value {
        let of = |key: &str| v.get(key).cloned().unwrap_or(Value::Null);
        let word = |key: &str, at: u64, yes: &'static str, no: &'static str| {
            json!(if of(key).as_u64() == Some(at) { yes } else { no })
        };
        match kind {
            Kind::Base => json!({"_id": id, "base_slice_des_id": of("base_slice_des_id")}),
            Kind::Function => json!({
                "_id": id, "func_id": of("id"), "loc": of("location"), "created_at": of("created_at"),
                "gen": word("gen", 4, "4G", "5G"), "func": word("func", 0, "Core", "Radio"),
                "type": word("type", 0, "Virtual", "Physical"),
            }),
            Kind::Policy => {
                json!({"_id": id, "component_id": of("id"), "created_at": of("created_at"), "type": of("type")})
            }
            _ => v.clone(),
        }
    }

    pub fn one(shared: &Shared, kind: Kind, id: &str) -> Result<Versioned, Problem> {
        let named = |m: &Manager| {
            let by_name = |v: &&Value| v["base_slice_des_id"] == id;
            let base =
                || m.documents(Kind::Base).map(|(_, v)| v).find(by_name).filter(|_| kind == Kind::Base);
            m.document(kind, id).or_else(base).cloned()
        };
        let found = shared.engine.read(named);
        let missing = || Problem::not_found(kind.name(), id, "list them, and use one of them");
        let found = found.ok_or_else(missing)?;
        let version = header_of(&etag(&found));
        let Value::Object(mut v) = found else { return Err(missing()) };
        v.entry("_id").or_insert_with(|| json!(id));
        Ok((version, Json(Value::Object(v))))
    }

    async fn put(
        shared: &Shared,
        kind: Kind,
        id: Option<String>,
        seen: &Preconditions,
        mut v: Map<String, Value>,
    ) -> Text {
        if let Some(id) = &id {
            super::super::routes::check_name("id", id)?;
        }
        let fresh = new_uuid()?;
        shared
            .engine
            .commit(|m| {
                let old = id.as_deref().and_then(|id| m.document(kind, id));
                seen.check(old.map(etag).as_deref())?;
                check(m, kind, id.as_deref(), &mut v)?;
                let id = id.unwrap_or(fresh);
                if old.is_none() && m.documents(kind).count() >= MAX_DOCUMENTS {
                    let detail = format!("there are {MAX_DOCUMENTS} documents of this kind");
                    return Err(Problem::conflict(detail, "remove unused ones"));
                }
                let created = old.and_then(|o| o.get("created_at").cloned());
                v.insert("created_at".into(), created.unwrap_or_else(|| json!(seconds(now_ms()))));
                v.insert("_id".into(), json!(id));
                let answer = match old {
                    Some(_) => (StatusCode::OK, format!("Modified {id}")),
                    None => (StatusCode::CREATED, id.clone()),
                };
                let record = Some(Record::Document(Value::Object(v)));
                Ok((vec![Write { kind, id, record }], answer))
            })
            .await
    }

    async fn drop_one(shared: &Shared, kind: Kind, id: String, seen: &Preconditions) -> Text {
        let remedy = "list them, and use one of them";
        shared
            .engine
            .commit(|m| {
                let old =
                    m.document(kind, &id).ok_or_else(|| Problem::not_found(kind.name(), &id, remedy))?;
                seen.check(Some(&etag(old)))?;
                let name = old.get("id").and_then(Value::as_str);
                let located = |v: &Value| v.get("location").and_then(Value::as_str) == name;
                if kind == Kind::Location
                    && name.is_some()
                    && m.documents(Kind::Function).any(|(_, v)| located(v))
                {
                    let detail = format!("location {id} has functions");
                    return Err(Problem::conflict(detail, "remove the functions first"));
                }
                let answer = (StatusCode::OK, format!("Deleted {} {id}", kind.name()));
                Ok((vec![Write { kind, id, record: None }], answer))
            })
            .await
    }

    /// Validates a document as Katana does, including the uniqueness of names.
    fn check(
        m: &anabranch_slice::Manager,
        kind: Kind,
        own: Option<&str>,
        v: &mut Map<String, Value>,
    ) -> Result<(), Problem> {
        let (key, needed): (&str, &[&str]) = match kind {
            Kind::Base => ("base_slice_des_id", &["base_slice_des_id"]),
            Kind::Function => ("id", &["id", "gen", "func", "shared", "type", "location"]),
            Kind::Policy => ("id", &["id", "url", "type"]),
            _ => ("id", &["id"]),
        };
        if let Some(missing) = needed.iter().find(|k| v.get(**k).is_none_or(Value::is_null)) {
            return Err(Problem::invalid(format!("{missing} is missing; needed are {}", needed.join(", ")))
                .field(missing));
        }
        let text = |v: &Map<String, Value>, key: &str| match v.get(key).and_then(Value::as_str) {
            Some(text) if (1..=128).contains(&text.len()) => Ok(text.to_owned()),
            _ => Err(Problem::invalid(format!("{key} must be a string of 1 to 128 bytes")).field(key)),
        };
        let mut name = text(v, key)?;
        match kind {
            Kind::Base => {
                nest::check_base(v, &|name| super::base(m, name)).map_err(invalid)?;
            }
            Kind::Location => {
                name = name.to_lowercase();
                v.insert("id".into(), json!(name));
            }
            Kind::Function => {
                for (key, valid) in [("gen", [4, 5]), ("func", [0, 1]), ("type", [0, 1])] {
                    if !valid.iter().any(|n| v.get(key).and_then(Value::as_u64) == Some(*n)) {
                        let detail = format!("{key} must be {} or {}", valid[0], valid[1]);
                        return Err(Problem::invalid(detail).field(key));
                    }
                }
                let place = text(v, "location")?.to_lowercase();
                let is_it = |l: &Value| l.get("id").and_then(Value::as_str) == Some(place.as_str());
                let known = place == "core"
                    || m.documents(Kind::Location).any(|(_, l)| is_it(l))
                    || m.inventory().at(&place).any(|a| !a.location.is_empty());
                if !known {
                    let detail =
                        format!("location {place} is not registered: POST it to /api/location first");
                    return Err(Problem::invalid(detail).field("location"));
                }
                v.insert("location".into(), json!(place));
            }
            Kind::Policy => {
                let of = text(v, "type")?;
                if !["neat", "test-policy", "usci"].contains(&of.as_str()) {
                    let detail = format!("type \"{of}\": must be neat, usci or test-policy");
                    return Err(Problem::invalid(detail).field("type"));
                }
                text(v, "url")?;
            }
            _ => {}
        }
        let same = |o: &Value| o.get(key).and_then(Value::as_str) == Some(name.as_str());
        match m.documents(kind).find(|(id, o)| Some(*id) != own && same(o)) {
            Some((id, _)) => {
                let detail = format!("{key} \"{name}\" is in use by {id}");
                Err(Problem::conflict(detail, "choose another, or change that one with PUT"))
            }
            None => Ok(()),
        }
    }
}
