//! CAMARA's Network Slice Booking (v0.1) and Quality on Demand (v1): a booking is a slice for a limited time,
//! a QoS session is a UE's membership in a slice for a limited time. Errors have CAMARA's form (`status`,
//! `code`, `message`).

use super::area::Area;
use super::auth::{self, View};
use super::camara_types::{Device, Ports, SinkCredential, TimeSpan};
use super::routes::{Body, Path, object, object_or_null, refused};
use super::{Shared, now_ms};
use crate::runtime::api::Problem;
use crate::runtime::times::{from_rfc3339, rfc3339};
use anabranch_slice::manager::camara::MAX_DURATION_S;
use anabranch_slice::profile::{ServiceProfile, Snssai, Thpt};
use anabranch_slice::{Kind, Manager, Record, SliceRequest, Write};
use axum::Json;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;
use utoipa::openapi::{ContentBuilder, OpenApi, Ref, RefOr};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Maximum number of devices, and maximum value of a rate in any unit.
const MOST: u64 = 1_000_000_000;
/// A booking may start this much later than this machine's clock shows, milliseconds.
const CLOCK_DIFFERENCE_MS: u64 = 60_000;
/// Maximum number of bookings, and of sessions.
const MAX_SESSIONS: usize = 10_000;
/// CloudEvents type of an event about a QoS session.
pub const QOD_EVENT: &str = "org.camaraproject.quality-on-demand.v1.qos-status-changed";
/// CloudEvents type of an event about a booking.
pub const BOOKING_EVENT: &str = "org.camaraproject.network-slice-booking.v0.status-changed";

/// The routes and their OpenAPI description.
pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(routes!(book))
        .routes(routes!(booking, unbook))
        .routes(routes!(start))
        .routes(routes!(session, stop))
        .routes(routes!(extend))
        .routes(routes!(retrieve))
}

/// Whether a path belongs to CAMARA's APIs.
fn is_camara(path: &str) -> bool {
    ["/network-slice-booking/", "/quality-on-demand/"].iter().any(|begin| path.starts_with(begin))
}

/// Middleware: converts every error on CAMARA's paths into CAMARA's form, including refusals of tokens.
pub async fn shaped(request: Request, next: Next) -> Response {
    if !is_camara(request.uri().path()) {
        return next.run(request).await;
    }
    let response = correlate(request, next).await;
    if response.headers().get(header::CONTENT_TYPE).is_none_or(|kind| kind != "application/problem+json") {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    let bytes = axum::body::to_bytes(body, 64 << 10).await.unwrap_or_default();
    let shaped = match serde_json::from_slice::<Problem>(&bytes) {
        Ok(problem) => CamaraError::from(problem).into_response(),
        Err(_) => bytes.into_response(),
    };
    let (own, body) = shaped.into_parts();
    parts.headers.remove(header::CONTENT_LENGTH);
    parts.headers.extend(own.headers);
    Response::from_parts(parts, body)
}

/// Adds CAMARA's form of errors to the OpenAPI description of these paths.
pub fn describe(description: &mut OpenApi) {
    for (path, item) in &mut description.paths.paths {
        let operations = [&mut item.get, &mut item.put, &mut item.post, &mut item.delete];
        for operation in operations.into_iter().flatten().filter(|_| is_camara(path)) {
            for (status, response) in &mut operation.responses.responses {
                if let RefOr::T(response) = response
                    && (status.starts_with('4') || status.starts_with('5'))
                {
                    let schema = Some(Ref::from_schema_name("CamaraError"));
                    let content = ContentBuilder::new().schema(schema).build();
                    response.content.insert("application/json".to_owned(), content);
                }
            }
        }
    }
}

/// Middleware: copies the header `x-correlator` of the request into the answer (CAMARA API design guide).
async fn correlate(request: Request, next: Next) -> Response {
    const NAME: &str = "x-correlator";
    let given = request.headers().get(NAME).cloned();
    let fits = |v: &HeaderValue| {
        let letters = |b: &u8| b.is_ascii_alphanumeric() || b"-_:;./<>{}".contains(b);
        (1..=256).contains(&v.len()) && v.as_bytes().iter().all(letters)
    };
    let (value, mut response) = match given {
        Some(value) if fits(&value) => (Some(value), next.run(request).await),
        Some(_) => {
            let problem = Problem::invalid("x-correlator: 1 to 256 letters, digits and -_:;./<>{}");
            (None, CamaraError::from(problem).into_response())
        }
        None => {
            let own = auth::new_uuid().ok().and_then(|id| HeaderValue::from_str(&id).ok());
            (own, next.run(request).await)
        }
    };
    if let Some(value) = value {
        response.headers_mut().insert(NAME, value);
    }
    response
}

/// An error in CAMARA's form.
#[derive(Debug, Serialize, ToSchema)]
pub struct CamaraError {
    /// HTTP status.
    status: u16,
    /// Error code, such as `INVALID_ARGUMENT`.
    code: &'static str,
    /// Cause and remedy.
    message: String,
}

impl CamaraError {
    /// An error with its own code.
    pub fn of(status: u16, code: &'static str, message: String) -> Self {
        Self { status, code, message }
    }
}

impl From<Problem> for CamaraError {
    fn from(problem: Problem) -> Self {
        let code = match problem.status {
            400 | 413 | 415 | 422 => "INVALID_ARGUMENT",
            401 => "UNAUTHENTICATED",
            403 => "PERMISSION_DENIED",
            404 => "NOT_FOUND",
            405 => "METHOD_NOT_ALLOWED",
            409 => "CONFLICT",
            429 => "TOO_MANY_REQUESTS",
            503 => "UNAVAILABLE",
            _ => "INTERNAL",
        };
        Self { status: problem.status, code, message: format!("{}: {}", problem.detail, problem.remedy) }
    }
}

impl IntoResponse for CamaraError {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        (status, Json(self)).into_response()
    }
}

type Answer<T> = Result<T, CamaraError>;

/// A rate: a value and its unit.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Rate {
    #[schema(maximum = 1_000_000_000)]
    value: u64,
    /// `bps`, `kbps`, `Mbps`, `Gbps` or `Tbps`.
    unit: String,
}

impl Rate {
    fn kbps(&self) -> Result<f64, Problem> {
        if self.value > MOST {
            return Err(
                Problem::invalid(format!("value is {}: must be {MOST} or less", self.value)).field("value")
            );
        }
        let times = match self.unit.as_str() {
            "bps" => 1e-3,
            "kbps" => 1.0,
            "Mbps" => 1e3,
            "Gbps" => 1e6,
            "Tbps" => 1e9,
            other => {
                let detail = format!("unit \"{other}\": must be bps, kbps, Mbps, Gbps or Tbps");
                return Err(Problem::invalid(detail).field("unit"));
            }
        };
        Ok(self.value as f64 * times)
    }
}

/// Guarantees of a booked slice.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct SliceQos {
    /// Maximum number of devices.
    #[serde(default)]
    #[schema(maximum = 1_000_000_000)]
    max_num_of_devices: Option<u64>,
    /// Downlink rate per device.
    #[serde(default, deserialize_with = "object_or_null")]
    down_stream_rate_per_device: Option<Rate>,
    /// Uplink rate per device.
    #[serde(default, deserialize_with = "object_or_null")]
    up_stream_rate_per_device: Option<Rate>,
    /// Maximum downlink delay.
    #[serde(default, deserialize_with = "object_or_null")]
    down_stream_delay_budget: Option<TimeSpan>,
    /// Maximum uplink delay.
    #[serde(default, deserialize_with = "object_or_null")]
    up_stream_delay_budget: Option<TimeSpan>,
    /// Maximum latency in both directions, milliseconds; not part of CAMARA.
    #[serde(default)]
    max_latency: Option<f64>,
}

/// Period of a booking.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ServiceTime {
    /// Start, RFC 3339; a time of more than one minute in the future is refused.
    #[serde(default)]
    start_date: Option<String>,
    /// End, RFC 3339; absent: until the booking is deleted.
    #[serde(default)]
    end_date: Option<String>,
}

/// A service area in CAMARA's form, or a list of location names as in `coverage`.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(untagged)]
enum ServiceArea {
    Area(Area),
    Names(Vec<String>),
}

impl<'de> Deserialize<'de> for ServiceArea {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // The variants are distinguished by hand, so that an error message refers to the intended one.
        match Value::deserialize(deserializer)? {
            names @ Value::Array(_) => serde_json::from_value(names).map(Self::Names),
            area => serde_json::from_value(area).map(Self::Area),
        }
        .map_err(D::Error::custom)
    }
}

/// Request for a booking.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct NewBooking {
    /// Period; a start more than one minute in the future is refused.
    #[serde(deserialize_with = "object")]
    service_time: ServiceTime,
    /// Service area; absent: everywhere.
    #[serde(default)]
    service_area: Option<ServiceArea>,
    /// Guarantees of the slice.
    #[serde(deserialize_with = "object")]
    slice_qos_profile: SliceQos,
    /// URL to which events are sent.
    #[serde(default)]
    sink: Option<String>,
    /// Credential to present there.
    #[serde(default, skip_serializing, deserialize_with = "object_or_null")]
    sink_credential: Option<SinkCredential>,
}

/// Books a slice.
#[utoipa::path(
    post,
    path = "/network-slice-booking/v0.1/sessions",
    tag = "camara",
    request_body = NewBooking,
    responses(
        (status = 201, body = Object),
        (status = 400, body = CamaraError),
        (status = 409, body = CamaraError),
        (status = 413, body = CamaraError),
        (status = 415, body = CamaraError)
    )
)]
async fn book(
    view: View,
    State(shared): State<Shared>,
    body: Result<Body<NewBooking>, Problem>,
) -> Answer<(StatusCode, Json<Value>)> {
    let Body(mut new) = body?;
    if let Some(sink) = &new.sink {
        shared.callbacks.check(sink)?;
    }
    let token = new.sink_credential.take().map(|credential| credential.token(now_ms())).transpose()?;
    let (coverage, accesses) = match &new.service_area {
        Some(ServiceArea::Area(area)) => (Vec::new(), area.accesses(&shared.placed)?),
        Some(ServiceArea::Names(names)) => (names.clone(), Vec::new()),
        None => (Vec::new(), Vec::new()),
    };
    let id = auth::new_uuid()?;
    let now = now_ms();
    let end = until(&new.service_time, now)?;
    let qos = &new.slice_qos_profile;
    let devices = qos.max_num_of_devices.unwrap_or(1);
    if devices > MOST {
        let detail = format!("maxNumOfDevices is {devices}: must be {MOST} or less");
        return Err(Problem::invalid(detail).field("sliceQosProfile.maxNumOfDevices").into());
    }
    let rate = |rate: &Option<Rate>| rate.as_ref().map(Rate::kbps).transpose();
    let (dl, ul) = (rate(&qos.down_stream_rate_per_device)?, rate(&qos.up_stream_rate_per_device)?);
    let budget = |span: &Option<TimeSpan>, field| span.as_ref().map(|s| s.ms(field)).transpose();
    let dl_ms = budget(&qos.down_stream_delay_budget, "sliceQosProfile.downStreamDelayBudget")?;
    let ul_ms = budget(&qos.up_stream_delay_budget, "sliceQosProfile.upStreamDelayBudget")?;
    let thpt = |kbps: Option<f64>, times: u64| Thpt { gua: kbps.map(|k| k * times as f64), max: None };
    let profile = ServiceProfile {
        sst: 1,
        snssai_list: vec![Snssai { sst: 1, sd: None }],
        max_ues: qos.max_num_of_devices,
        dl_latency: dl_ms.or(qos.max_latency),
        ul_latency: ul_ms.or(qos.max_latency),
        dl_slice: thpt(dl, devices),
        ul_slice: thpt(ul, devices),
        dl_ue: thpt(dl, 1),
        ul_ue: thpt(ul, 1),
        coverage,
        ..ServiceProfile::default()
    };
    profile.check().map_err(|e| Problem::invalid(e.to_string()))?;
    let short: String = id.chars().take(8).collect();
    let name = format!("booking-{short}");
    let order = SliceRequest { name, profile, accesses, owner: view.owner(), ..SliceRequest::default() };
    let made = shared
        .engine
        .commit(|m| {
            view.check_slice_quota(m, shared.quota)?;
            check_capacity(m, Kind::Booking)?;
            let own = m.documents(Kind::Booking).filter(|(_, v)| view.sees(v["owner"].as_str())).count();
            view.check_quota("bookings", own, shared.quota.slices)?;
            let given = json!({"request": new, "sink": new.sink, "sink_token": token, "owner": view.owner()});
            let writes = m.book(&id, order, (given, end), now).map_err(refused)?;
            let shown = shown_booking(m, &id, written(&writes));
            Ok((writes, shown))
        })
        .await?;
    Ok((StatusCode::CREATED, Json(made)))
}

fn check_capacity(m: &Manager, kind: Kind) -> Result<(), Problem> {
    if m.documents(kind).count() < MAX_SESSIONS {
        return Ok(());
    }
    Err(Problem::conflict(format!("there are {MAX_SESSIONS} already"), "remove those that are not needed"))
}

/// End of the service, Unix time in milliseconds; `None`: unlimited.
fn until(time: &ServiceTime, now: u64) -> Result<Option<u64>, Problem> {
    let read = |text: &Option<String>, field: &'static str| {
        let parse = |text: &String| {
            from_rfc3339(text).ok_or_else(|| {
                let detail = format!("{field} \"{text}\": must be a time such as 2030-01-31T08:00:00Z");
                Problem::invalid(detail).field(field)
            })
        };
        text.as_ref().map(parse).transpose()
    };
    let start = read(&time.start_date, "startDate")?;
    if start.is_some_and(|start| start > now + CLOCK_DIFFERENCE_MS) {
        let detail = "startDate is in the future: a slice is created when it is booked";
        return Err(Problem::invalid(detail).field("startDate"));
    }
    let end = read(&time.end_date, "endDate")?;
    if end.zip(start).is_some_and(|(end, start)| end <= start) {
        return Err(Problem::invalid("endDate is not after startDate").field("endDate"));
    }
    if end.is_some_and(|end| end <= now) {
        return Err(Problem::invalid("endDate is in the past").field("endDate"));
    }
    Ok(end)
}

/// The document of the resource, which is the last of the writes.
fn written(writes: &[Write]) -> &Value {
    match writes.last().and_then(|write| write.record.as_ref()) {
        Some(Record::Document(v)) => v,
        _ => &Value::Null,
    }
}

/// A booking as it is shown; `m` is the state before its creation, or the current state.
fn shown_booking(m: &Manager, id: &str, v: &Value) -> Value {
    let is_new = m.document(Kind::Booking, id).is_none();
    let (status, why) = match (v["ended_ms"].as_u64(), v["end_ms"].as_u64()) {
        (Some(at), Some(end)) if end <= at => ("UNAVAILABLE", Some("DURATION_EXPIRED".to_owned())),
        _ if is_new => ("REQUESTED", None),
        _ => m.camara_status(Kind::Booking, v),
    };
    let mut shown = v["request"].clone();
    if let Value::Object(shown) = &mut shown {
        shown.retain(|_, v| !v.is_null());
        shown.insert("sessionId".into(), json!(id));
        shown.insert("status".into(), json!(status));
        shown.insert("statusInfo".into(), json!(why));
        shown.insert("sliceId".into(), v["slice"].clone());
    }
    shown
}

/// A session that is visible in `view`; a session of another tenant is reported as missing.
fn found(view: &View, m: &Manager, kind: Kind, id: &str) -> Result<Value, Problem> {
    let missing = || Problem::not_found("session", id, "use the sessionId of the answer that created it");
    m.document(kind, id).filter(|v| view.sees(v["owner"].as_str())).cloned().ok_or_else(missing)
}

/// A booking.
#[utoipa::path(
    get,
    path = "/network-slice-booking/v0.1/sessions/{sessionId}",
    tag = "camara",
    params(("sessionId" = String, Path)),
    responses((status = 200, body = Object), (status = 404, body = CamaraError))
)]
async fn booking(view: View, State(shared): State<Shared>, Path(id): Path<String>) -> Answer<Json<Value>> {
    Ok(shared.engine.read(|m| {
        let v = found(&view, m, Kind::Booking, &id)?;
        Ok::<_, Problem>(Json(shown_booking(m, &id, &v)))
    })?)
}

/// Ends a booking and removes its slice.
#[utoipa::path(
    delete,
    path = "/network-slice-booking/v0.1/sessions/{sessionId}",
    tag = "camara",
    params(("sessionId" = String, Path)),
    responses((status = 204), (status = 404, body = CamaraError))
)]
async fn unbook(view: View, State(shared): State<Shared>, Path(id): Path<String>) -> Answer<StatusCode> {
    let unbook = |m: &Manager| {
        found(&view, m, Kind::Booking, &id)?;
        Ok((m.unbook(&id, now_ms()), ()))
    };
    shared.engine.commit(unbook).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Request for a QoS session.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct NewSession {
    /// UE, identified by `networkAccessIdentifier` or `phoneNumber`.
    #[serde(deserialize_with = "object")]
    device: Device,
    /// Application server of the flow; stored but not evaluated.
    #[schema(value_type = Object)]
    application_server: Value,
    /// Stored but not evaluated.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "object_or_null")]
    device_ports: Option<Ports>,
    /// Stored but not evaluated.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "object_or_null")]
    application_server_ports: Option<Ports>,
    /// The slice: identifier, or name if it is unique.
    qos_profile: String,
    /// Duration, seconds.
    #[schema(minimum = 1, maximum = 86_400)]
    duration: u64,
    /// URL to which events are sent.
    #[serde(default)]
    sink: Option<String>,
    /// Credential to present there.
    #[serde(default, skip_serializing, deserialize_with = "object_or_null")]
    sink_credential: Option<SinkCredential>,
}

/// Makes a device a member of a slice for a limited time.
#[utoipa::path(
    post,
    path = "/quality-on-demand/v1/sessions",
    tag = "camara",
    request_body = NewSession,
    responses(
        (status = 201, body = Object),
        (status = 400, body = CamaraError),
        (status = 404, body = CamaraError),
        (status = 409, body = CamaraError),
        (status = 413, body = CamaraError),
        (status = 415, body = CamaraError),
        (status = 422, body = CamaraError)
    )
)]
async fn start(
    view: View,
    State(shared): State<Shared>,
    body: Result<Body<NewSession>, Problem>,
) -> Answer<(StatusCode, Json<Value>)> {
    let Body(mut new) = body?;
    Ports::check(new.device_ports.as_ref(), "devicePorts")?;
    Ports::check(new.application_server_ports.as_ref(), "applicationServerPorts")?;
    let token = new.sink_credential.take().map(|credential| credential.token(now_ms())).transpose()?;
    if !(1..=MAX_DURATION_S).contains(&new.duration) {
        let detail = format!("duration is {}: must be 1 to {MAX_DURATION_S} seconds", new.duration);
        return Err(Problem::invalid(detail).field("duration").into());
    }
    if let Some(sink) = &new.sink {
        shared.callbacks.check(sink)?;
    }
    let ue = shared.engine.read(|m| new.device.ue(m))?;
    let id = auth::new_uuid()?;
    let now = now_ms();
    let made = shared
        .engine
        .commit(|m| {
            check_capacity(m, Kind::Qod)?;
            let own = m.documents(Kind::Qod).filter(|(_, v)| view.sees(v["owner"].as_str())).count();
            view.check_quota("sessions", own, shared.quota.sessions)?;
            let slice = profile(&view, m, &new.qos_profile)?;
            let given = json!({"request": new, "sink": new.sink, "sink_token": token, "owner": view.owner()});
            let writes = m.open_session(&id, (&ue, &slice), (given, new.duration), now).map_err(refused)?;
            let shown = shown_session(m, &id, written(&writes));
            Ok((writes, shown))
        })
        .await?;
    Ok((StatusCode::CREATED, Json(made)))
}

/// The slice that a profile names, by identifier or unique name.
fn profile(view: &View, m: &Manager, name: &str) -> Result<String, Problem> {
    if view.slice(m, name).is_ok() {
        return Ok(name.to_owned());
    }
    let mut named = view.slices(m).filter(|s| s.name == name);
    match (named.next(), named.next()) {
        (Some(slice), None) => Ok(slice.id.clone()),
        (Some(_), Some(_)) => {
            let detail = format!("qosProfile \"{name}\": several slices have this name: give an identifier");
            Err(Problem::invalid(detail).field("qosProfile"))
        }
        _ => Err(Problem::not_found("slice", name, "qosProfile is a slice's name or identifier")),
    }
}

/// A session as it is shown; `m` is the state before its creation, or the current state.
fn shown_session(m: &Manager, id: &str, v: &Value) -> Value {
    let is_new = m.document(Kind::Qod, id).is_none();
    let slice = v["slice"].as_str().unwrap_or_default();
    let (status, why) = if is_new { m.slice_status(slice) } else { m.camara_status(Kind::Qod, v) };
    let mut shown = v["request"].clone();
    if let Value::Object(shown) = &mut shown {
        shown.retain(|_, v| !v.is_null());
        shown.insert("sessionId".into(), json!(id));
        shown.insert("startedAt".into(), json!(v["started_ms"].as_u64().map(rfc3339)));
        shown.insert("expiresAt".into(), json!(v["end_ms"].as_u64().map(rfc3339)));
        let (status, info) = match (v["ended_ms"].is_u64(), status) {
            (true, _) => ("UNAVAILABLE", Some("DURATION_EXPIRED")),
            (false, "UNAVAILABLE") => (status, Some("NETWORK_TERMINATED")),
            (false, _) => (status, None),
        };
        shown.insert("qosStatus".into(), json!(status));
        if let Some(info) = info {
            shown.insert("statusInfo".into(), json!(info));
        }
        shown.insert("reason".into(), json!(why));
    }
    shown
}

/// Request to extend a QoS session.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct SessionExtension {
    /// Additional duration, seconds; the total is at most 86400.
    #[schema(minimum = 1, maximum = 86_400)]
    requested_additional_duration: u64,
}

/// Extends the duration of a QoS session.
#[utoipa::path(
    post,
    path = "/quality-on-demand/v1/sessions/{sessionId}/extend",
    tag = "camara",
    params(("sessionId" = String, Path)),
    request_body = SessionExtension,
    responses(
        (status = 200, body = Object),
        (status = 400, body = CamaraError),
        (status = 404, body = CamaraError),
        (status = 409, body = CamaraError),
        (status = 413, body = CamaraError),
        (status = 415, body = CamaraError)
    )
)]
async fn extend(
    view: View,
    State(shared): State<Shared>,
    Path(id): Path<String>,
    body: Result<Body<SessionExtension>, Problem>,
) -> Answer<Json<Value>> {
    let Body(SessionExtension { requested_additional_duration: more }) = body?;
    if !(1..=MAX_DURATION_S).contains(&more) {
        let detail = format!("requestedAdditionalDuration is {more}: must be 1 to {MAX_DURATION_S} seconds");
        return Err(Problem::invalid(detail).field("requestedAdditionalDuration").into());
    }
    let extend = |m: &Manager| {
        let Some(v) = m.extended(&found(&view, m, Kind::Qod, &id)?, more, now_ms()) else {
            // The refusal follows below, in CAMARA's form.
            return Ok((Vec::new(), None));
        };
        let shown = shown_session(m, &id, &v);
        Ok((vec![Write { kind: Kind::Qod, id: id.clone(), record: Some(Record::Document(v)) }], Some(shown)))
    };
    shared.engine.commit(extend).await?.map(Json).ok_or_else(|| {
        let message = "only a session that is AVAILABLE can be extended".to_owned();
        CamaraError::of(409, "QUALITY_ON_DEMAND.SESSION_EXTENSION_NOT_ALLOWED", message)
    })
}

/// Request for the QoS sessions of a device.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct DeviceSelection {
    #[serde(deserialize_with = "object")]
    device: Device,
}

/// The QoS sessions of a device.
#[utoipa::path(
    post,
    path = "/quality-on-demand/v1/retrieve-sessions",
    tag = "camara",
    request_body = DeviceSelection,
    responses(
        (status = 200, body = Vec<Object>),
        (status = 400, body = CamaraError),
        (status = 404, body = CamaraError),
        (status = 413, body = CamaraError),
        (status = 415, body = CamaraError),
        (status = 422, body = CamaraError)
    )
)]
async fn retrieve(
    view: View,
    State(shared): State<Shared>,
    body: Result<Body<DeviceSelection>, Problem>,
) -> Answer<Json<Vec<Value>>> {
    let Body(selection) = body?;
    shared.engine.read(|m| {
        let ue = selection.device.ue(m)?;
        let own = m.documents(Kind::Qod).filter(|(_, v)| v["ue"] == ue && view.sees(v["owner"].as_str()));
        Ok(Json(own.map(|(id, v)| shown_session(m, id, v)).collect()))
    })
}

/// A QoS session.
#[utoipa::path(
    get,
    path = "/quality-on-demand/v1/sessions/{sessionId}",
    tag = "camara",
    params(("sessionId" = String, Path)),
    responses((status = 200, body = Object), (status = 404, body = CamaraError))
)]
async fn session(view: View, State(shared): State<Shared>, Path(id): Path<String>) -> Answer<Json<Value>> {
    Ok(shared.engine.read(|m| {
        let v = found(&view, m, Kind::Qod, &id)?;
        Ok::<_, Problem>(Json(shown_session(m, &id, &v)))
    })?)
}

/// Ends a QoS session.
#[utoipa::path(
    delete,
    path = "/quality-on-demand/v1/sessions/{sessionId}",
    tag = "camara",
    params(("sessionId" = String, Path)),
    responses((status = 204), (status = 404, body = CamaraError))
)]
async fn stop(view: View, State(shared): State<Shared>, Path(id): Path<String>) -> Answer<StatusCode> {
    let v = shared
        .engine
        .commit(|m| {
            let v = found(&view, m, Kind::Qod, &id)?;
            Ok((m.close_session(&id, &v), v))
        })
        .await?;
    // The end of an expired session has already been reported.
    if !v["ended_ms"].is_u64() {
        let data = json!({"sessionId": id, "qosStatus": "UNAVAILABLE", "statusInfo": "DELETE_REQUESTED"});
        shared.callbacks.send(&v, QOD_EVENT, &format!("/quality-on-demand/v1/sessions/{id}"), &data);
    }
    Ok(StatusCode::NO_CONTENT)
}
