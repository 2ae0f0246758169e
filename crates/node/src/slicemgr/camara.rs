//! CAMARA's Network Slice Booking (v0.1, work in progress there) and Quality on Demand (v1): bookings are slices of
//! ours for a time, QoS sessions are places in one for a time. Errors have CAMARA's form (`status`, `code`, `message`).

use super::auth::{self, Operator};
use super::routes::{Body, Path, object, object_or_null, refused};
use super::{Shared, now_ms};
use crate::api::Problem;
use anabranch_core::slice::profile::{ServiceProfile, Snssai, Thpt};
use anabranch_core::slice::{Kind, Manager, Order, Record, State as SliceState, Write};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Longest QoS session, seconds (the default of CAMARA's profiles).
const MAX_DURATION_S: u64 = 86_400;
/// Largest number of devices, and largest value of a rate in any unit.
const MOST: u64 = 1_000_000_000;
/// Most bookings, and most sessions.
const MAX_SESSIONS: usize = 10_000;
/// The type of an event about a QoS session.
pub const QOD_EVENT: &str = "org.camaraproject.quality-on-demand.v1.qos-status-changed";
/// The type of an event about a booking.
pub const BOOKING_EVENT: &str = "org.camaraproject.network-slice-booking.v0.status-changed";

/// The routes and their description.
pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(routes!(book))
        .routes(routes!(booking, unbook))
        .routes(routes!(start))
        .routes(routes!(session, stop))
}

/// An error in CAMARA's form.
#[derive(Debug, Serialize, ToSchema)]
pub struct CamaraError {
    /// HTTP status.
    status: u16,
    /// Such as `INVALID_ARGUMENT`.
    code: &'static str,
    /// What happened, and what to do.
    message: String,
}

impl From<Problem> for CamaraError {
    fn from(problem: Problem) -> Self {
        let code = match problem.status {
            400 | 413 | 415 | 422 => "INVALID_ARGUMENT",
            401 => "UNAUTHENTICATED",
            403 => "PERMISSION_DENIED",
            404 => "NOT_FOUND",
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

/// What a booked slice is to promise.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct SliceQos {
    /// Most devices.
    #[serde(default)]
    #[schema(maximum = 1_000_000_000)]
    max_num_of_devices: Option<u64>,
    /// Downlink of a device.
    #[serde(default, deserialize_with = "object_or_null")]
    down_stream_rate_per_device: Option<Rate>,
    /// Uplink of a device.
    #[serde(default, deserialize_with = "object_or_null")]
    up_stream_rate_per_device: Option<Rate>,
    /// Milliseconds.
    #[serde(default)]
    max_latency: Option<f64>,
}

/// When.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ServiceTime {
    /// RFC 3339; bookings ahead of time are refused.
    #[serde(default)]
    start_date: Option<String>,
    /// RFC 3339; left out: until it is removed.
    #[serde(default)]
    end_date: Option<String>,
}

/// A booking that is asked for.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct NewBooking {
    /// When.
    #[serde(deserialize_with = "object")]
    service_time: ServiceTime,
    /// Where: names of places, as in `coverage`.
    #[serde(default)]
    service_area: Vec<String>,
    /// What.
    #[serde(deserialize_with = "object")]
    slice_qos_profile: SliceQos,
    /// Where events are sent.
    #[serde(default)]
    sink: Option<String>,
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
    _: Operator,
    State(shared): State<Shared>,
    body: Result<Body<NewBooking>, Problem>,
) -> Answer<(StatusCode, Json<Value>)> {
    let Body(new) = body?;
    if let Some(sink) = &new.sink {
        shared.callbacks.check(sink)?;
    }
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
    let thpt = |kbps: Option<f64>, times: u64| Thpt { gua: kbps.map(|k| k * times as f64), max: None };
    let profile = ServiceProfile {
        sst: 1,
        snssai_list: vec![Snssai { sst: 1, sd: None }],
        max_ues: qos.max_num_of_devices,
        dl_latency: qos.max_latency,
        ul_latency: qos.max_latency,
        dl_slice: thpt(dl, devices),
        ul_slice: thpt(ul, devices),
        dl_ue: thpt(dl, 1),
        ul_ue: thpt(ul, 1),
        coverage: new.service_area.clone(),
        ..ServiceProfile::default()
    };
    profile.check().map_err(|e| Problem::invalid(e.to_string()))?;
    let short: String = id.chars().take(8).collect();
    let order = Order { name: format!("booking-{short}"), profile, ..Order::default() };
    let made = shared
        .engine
        .commit(|m| {
            room(m, Kind::Booking)?;
            let mut writes = m.create(&id, order, now).map_err(refused)?;
            let v =
                json!({"request": new, "slice": id, "end_ms": end, "sink": new.sink, "told": "REQUESTED"});
            let shown = shown_booking(m, &id, &v);
            writes.push(Write { kind: Kind::Booking, id: id.clone(), record: Some(Record::Document(v)) });
            Ok((writes, shown))
        })
        .await?;
    Ok((StatusCode::CREATED, Json(made)))
}

fn room(m: &Manager, kind: Kind) -> Result<(), Problem> {
    if m.documents(kind).count() < MAX_SESSIONS {
        return Ok(());
    }
    Err(Problem::conflict(format!("there are {MAX_SESSIONS} already"), "remove those that are not needed"))
}

/// When a service ends, Unix milliseconds; `None`: never.
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
    if read(&time.start_date, "startDate")?.is_some_and(|start| start > now + 60_000) {
        let detail = "startDate is ahead: slices are made when they are booked";
        return Err(Problem::invalid(detail).field("startDate"));
    }
    let end = read(&time.end_date, "endDate")?;
    if end.is_some_and(|end| end <= now) {
        return Err(Problem::invalid("endDate is past").field("endDate"));
    }
    Ok(end)
}

/// The status of a slice in CAMARA's words, and why.
pub fn status(m: &Manager, slice: &str) -> (&'static str, Option<String>) {
    match m.slices().get(slice).map(|s| &s.state) {
        None => ("UNAVAILABLE", Some("the slice is gone".to_owned())),
        Some(SliceState::Running) => ("AVAILABLE", None),
        Some(SliceState::Degraded(why)) => ("AVAILABLE", Some(format!("degraded: {why}"))),
        Some(SliceState::Failed(why)) => ("UNAVAILABLE", Some(why.clone())),
        Some(SliceState::Terminating) => ("UNAVAILABLE", Some("the slice is being removed".to_owned())),
        Some(_) => ("REQUESTED", None),
    }
}

fn shown_booking(m: &Manager, id: &str, v: &Value) -> Value {
    let slice = v["slice"].as_str().unwrap_or_default();
    let (status, why) = if m.slices().contains_key(slice) { status(m, slice) } else { ("REQUESTED", None) };
    let mut shown = v["request"].clone();
    if let Value::Object(shown) = &mut shown {
        shown.retain(|_, v| !v.is_null());
        shown.insert("sessionId".into(), json!(id));
        shown.insert("status".into(), json!(status));
        shown.insert("statusInfo".into(), json!(why));
        shown.insert("sliceId".into(), json!(slice));
    }
    shown
}

fn found(m: &Manager, kind: Kind, id: &str) -> Result<Value, Problem> {
    let missing = || Problem::not_found("session", id, "use the sessionId of the answer that made it");
    m.document(kind, id).cloned().ok_or_else(missing)
}

/// A booking.
#[utoipa::path(
    get,
    path = "/network-slice-booking/v0.1/sessions/{sessionId}",
    tag = "camara",
    params(("sessionId" = String, Path)),
    responses((status = 200, body = Object), (status = 404, body = CamaraError))
)]
async fn booking(_: Operator, State(shared): State<Shared>, Path(id): Path<String>) -> Answer<Json<Value>> {
    Ok(shared.engine.read(|m| {
        let v = found(m, Kind::Booking, &id)?;
        let mut shown = shown_booking(m, &id, &v);
        if !m.slices().contains_key(&id) {
            shown["status"] = json!("UNAVAILABLE");
            shown["statusInfo"] = json!("the slice is gone");
        }
        Ok::<_, Problem>(Json(shown))
    })?)
}

/// Ends a booking, and its slice.
#[utoipa::path(
    delete,
    path = "/network-slice-booking/v0.1/sessions/{sessionId}",
    tag = "camara",
    params(("sessionId" = String, Path)),
    responses((status = 204), (status = 404, body = CamaraError))
)]
async fn unbook(_: Operator, State(shared): State<Shared>, Path(id): Path<String>) -> Answer<StatusCode> {
    shared.engine.commit(|m| Ok((end_booking(m, &id)?, ()))).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Ends a booking.
pub fn end_booking(m: &Manager, id: &str) -> Result<Vec<Write>, Problem> {
    found(m, Kind::Booking, id)?;
    let mut writes = vec![Write { kind: Kind::Booking, id: id.to_owned(), record: None }];
    // One that is being removed, or gone, needs nothing more.
    if let Ok(more) = m.remove(id, false, now_ms()) {
        writes.extend(more);
    }
    Ok(writes)
}

/// Who a QoS session is for.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Device {
    /// The UE's name here.
    network_access_identifier: String,
}

/// A QoS session that is asked for.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct NewSession {
    /// For whom.
    #[serde(deserialize_with = "object")]
    device: Device,
    /// Whom it talks to; kept, and not looked at.
    #[schema(value_type = Object)]
    application_server: Value,
    /// The slice: its identifier, or its name where that is unique.
    qos_profile: String,
    /// How long, seconds.
    #[schema(minimum = 1, maximum = 86_400)]
    duration: u64,
    /// Where events are sent.
    #[serde(default)]
    sink: Option<String>,
}

/// Gives a device a place in a slice for a time.
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
        (status = 415, body = CamaraError)
    )
)]
async fn start(
    _: Operator,
    State(shared): State<Shared>,
    body: Result<Body<NewSession>, Problem>,
) -> Answer<(StatusCode, Json<Value>)> {
    let Body(new) = body?;
    if !(1..=MAX_DURATION_S).contains(&new.duration) {
        let detail = format!("duration is {}: must be 1 to {MAX_DURATION_S} seconds", new.duration);
        return Err(Problem::invalid(detail).field("duration").into());
    }
    if let Some(sink) = &new.sink {
        shared.callbacks.check(sink)?;
    }
    let id = auth::new_uuid()?;
    let now = now_ms();
    let made = shared
        .engine
        .commit(|m| {
            room(m, Kind::Qod)?;
            let slice = profile(m, &new.qos_profile)?;
            let ue = &new.device.network_access_identifier;
            let had = m.ue(ue).map_err(refused)?.slices.iter().any(|a| a.slice == slice);
            let mut writes = if had { Vec::new() } else { m.assign(ue, &slice, None).map_err(refused)? };
            let (status, _) = status(m, &slice);
            let v = json!({
                "request": new, "slice": slice, "ue": ue, "had": had, "started_ms": now,
                "end_ms": now + new.duration * 1000, "sink": new.sink, "told": status,
            });
            let shown = shown_session(m, &id, &v);
            writes.push(Write { kind: Kind::Qod, id: id.clone(), record: Some(Record::Document(v)) });
            Ok((writes, shown))
        })
        .await?;
    Ok((StatusCode::CREATED, Json(made)))
}

/// The slice that a profile names.
fn profile(m: &Manager, name: &str) -> Result<String, Problem> {
    if m.slices().contains_key(name) {
        return Ok(name.to_owned());
    }
    let mut named = m.slices().values().filter(|s| s.name == name);
    match (named.next(), named.next()) {
        (Some(slice), None) => Ok(slice.id.clone()),
        (Some(_), Some(_)) => {
            let detail = format!("qosProfile \"{name}\": several slices have this name: give an identifier");
            Err(Problem::invalid(detail).field("qosProfile"))
        }
        _ => Err(Problem::not_found("slice", name, "qosProfile is a slice's name or identifier")),
    }
}

fn shown_session(m: &Manager, id: &str, v: &Value) -> Value {
    let (status, why) = status(m, v["slice"].as_str().unwrap_or_default());
    let mut shown = v["request"].clone();
    if let Value::Object(shown) = &mut shown {
        shown.retain(|_, v| !v.is_null());
        shown.insert("sessionId".into(), json!(id));
        shown.insert("qosStatus".into(), json!(status));
        shown.insert("startedAt".into(), json!(v["started_ms"].as_u64().map(rfc3339)));
        shown.insert("expiresAt".into(), json!(v["end_ms"].as_u64().map(rfc3339)));
        if status == "UNAVAILABLE" {
            shown.insert("statusInfo".into(), json!("NETWORK_TERMINATED"));
        }
        shown.insert("reason".into(), json!(why));
    }
    shown
}

/// A QoS session.
#[utoipa::path(
    get,
    path = "/quality-on-demand/v1/sessions/{sessionId}",
    tag = "camara",
    params(("sessionId" = String, Path)),
    responses((status = 200, body = Object), (status = 404, body = CamaraError))
)]
async fn session(_: Operator, State(shared): State<Shared>, Path(id): Path<String>) -> Answer<Json<Value>> {
    Ok(shared.engine.read(|m| {
        let v = found(m, Kind::Qod, &id)?;
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
async fn stop(_: Operator, State(shared): State<Shared>, Path(id): Path<String>) -> Answer<StatusCode> {
    let v = shared
        .engine
        .commit(|m| {
            let v = found(m, Kind::Qod, &id)?;
            Ok((end_session(m, &id, &v), v))
        })
        .await?;
    let data = json!({"sessionId": id, "qosStatus": "UNAVAILABLE", "statusInfo": "DELETE_REQUESTED"});
    shared.callbacks.send(
        v["sink"].as_str(),
        QOD_EVENT,
        &format!("/quality-on-demand/v1/sessions/{id}"),
        &data,
    );
    Ok(StatusCode::NO_CONTENT)
}

/// Ends a QoS session; a place that the UE had before stays.
pub fn end_session(m: &Manager, id: &str, v: &Value) -> Vec<Write> {
    let mut writes = vec![Write { kind: Kind::Qod, id: id.to_owned(), record: None }];
    let (ue, slice) = (v["ue"].as_str().unwrap_or_default(), v["slice"].as_str().unwrap_or_default());
    let same = |o: &Value| o["ue"] == v["ue"] && o["slice"] == v["slice"];
    let shared = m.documents(Kind::Qod).any(|(other, o)| other != id && same(o));
    if v["had"] != json!(true) && !shared {
        // The slice, or the UE, may be gone.
        writes.extend(m.unassign(ue, slice).unwrap_or_default());
    }
    writes
}

/// A time as RFC 3339, in UTC.
pub fn rfc3339(ms: u64) -> String {
    let (days, rest) = (ms / 86_400_000, ms % 86_400_000);
    // Civil from days (Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms").
    let z = days as i64 + 719_468;
    let era = z.div_euclid(146_097);
    let doe = z.rem_euclid(146_097);
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let (day, month) = (doy - (153 * mp + 2) / 5 + 1, if mp < 10 { mp + 3 } else { mp - 9 });
    let year = yoe + era * 400 + i64::from(month <= 2);
    let s = rest / 1000;
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", s / 3600, s / 60 % 60, s % 60)
}

/// Unix milliseconds of a time in RFC 3339; fractions of a second are left out.
fn from_rfc3339(text: &str) -> Option<u64> {
    let number = |from: usize, to: usize| text.get(from..to)?.parse::<i64>().ok();
    let b = text.as_bytes();
    let fits =
        b.len() >= 20 && b[4] == b'-' && b[7] == b'-' && b[10] | 32 == b't' && b[13] == b':' && b[16] == b':';
    let (y, m, d) = fits.then_some((number(0, 4)?, number(5, 7)?, number(8, 10)?))?;
    let (h, min, s) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    let zone = text.get(19..)?.trim_start_matches(['.', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9']);
    let offset_min = match zone.as_bytes() {
        [b'Z' | b'z'] => 0,
        [sign @ (b'+' | b'-'), _, _, b':', _, _] => {
            let minutes = zone.get(1..3)?.parse::<i64>().ok()? * 60 + zone.get(4..6)?.parse::<i64>().ok()?;
            if *sign == b'-' { -minutes } else { minutes }
        }
        _ => return None,
    };
    if !((1..=12).contains(&m) && (1..=31).contains(&d) && h < 24 && min < 60 && s <= 60) || y < 1970 {
        return None;
    }
    let (y, mp) = if m <= 2 { (y - 1, m + 9) } else { (y, m - 3) };
    let era = y.div_euclid(400);
    let yoe = y.rem_euclid(400);
    let doy = (153 * mp + 2) / 5 + d - 1;
    let days = era * 146_097 + yoe * 365 + yoe / 4 - yoe / 100 + doy - 719_468;
    u64::try_from((((days * 24 + h) * 60 + min - offset_min) * 60 + s) * 1000).ok()
}

#[cfg(test)]
mod time_tests {
    use super::*;

    #[test]
    fn times_go_there_and_back() {
        for ms in [0, 951_782_400_000, 1_795_000_000_000, 4_102_444_799_000] {
            assert_eq!(from_rfc3339(&rfc3339(ms)), Some(ms), "{}", rfc3339(ms));
        }
        assert_eq!(rfc3339(951_782_400_000), "2000-02-29T00:00:00Z");
        assert_eq!(from_rfc3339("2000-02-29T02:30:00.123+02:30"), Some(951_782_400_000));
        for wrong in [
            "",
            "2030",
            "2030-13-01T00:00:00Z",
            "2030-01-01 00:00:00",
            "2030-01-01T00:00:00+0x:00",
            "ü030-01-01T00:00:00Z",
        ] {
            assert_eq!(from_rfc3339(wrong), None, "{wrong}");
        }
    }
}
