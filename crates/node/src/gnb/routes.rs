//! REST routes of a cell.

use super::api::{
    Cell, CellChange, CellRequest, CellSecond, CellUe, SliceSchema, Slices, Streams, Telemetry, UeChange,
    UeList,
};
use super::views;
use crate::runtime::api::extract::{Body, Params, Path};
use crate::runtime::api::problem::Problem;
use crate::runtime::api::request::ControlRequest;
use crate::runtime::api::routes::{Answer, Page, Shared};
use anabranch_ran::sched::SliceConfig;
use axum::Json;
use axum::extract::State;
use axum::response::sse::{Event, KeepAlive, Sse};
use serde::{Deserialize, Serialize};
use std::convert::Infallible;
use tokio_stream::wrappers::BroadcastStream;
use tokio_stream::{Stream, StreamExt};
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// The routes and their OpenAPI description.
pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(routes!(cell, set_cell))
        .routes(routes!(slices, set_slices))
        .routes(routes!(ues))
        .routes(routes!(ue, set_ue))
        .routes(routes!(telemetry))
}

async fn request<T>(
    shared: &Shared,
    question: impl FnOnce(crate::runtime::api::request::Reply<T>) -> CellRequest,
) -> Answer<T> {
    shared.control.request(|reply| ControlRequest::Cell(question(reply))).await.map(Json)
}

/// The cell (gNB only): carrier, schedulers, lateness of slots, both directions.
#[utoipa::path(get, path = "/v1/cell", responses((status = 200, body = Cell), (status = 405, body = Problem)))]
async fn cell(State(shared): State<Shared>) -> Answer<Cell> {
    request(&shared, CellRequest::Cell).await
}

/// Changes the schedulers, until the next reload; quanta and lags restart at 0.
#[utoipa::path(
    put,
    path = "/v1/cell",
    request_body = CellChange,
    responses((status = 200, body = Cell), (status = 400, body = Problem), (status = 405, body = Problem))
)]
async fn set_cell(State(shared): State<Shared>, Body(change): Body<CellChange>) -> Answer<Cell> {
    request(&shared, |reply| CellRequest::SetCell(Box::new(change), reply)).await
}

/// The slices and their traffic (gNB only).
#[utoipa::path(get, path = "/v1/slices", responses((status = 200, body = Slices), (status = 405, body = Problem)))]
async fn slices(State(shared): State<Shared>) -> Answer<Slices> {
    request(&shared, CellRequest::Slices).await
}

#[derive(Deserialize, Serialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
struct NewSlices {
    /// The new slices; every slice that has a UE must be among them.
    #[schema(value_type = Vec<SliceSchema>)]
    slices: Vec<SliceConfig>,
}

/// Replaces the slices, until the next reload. Takes effect in the next slot.
#[utoipa::path(
    put,
    path = "/v1/slices",
    request_body = NewSlices,
    responses((status = 200, body = Slices), (status = 400, body = Problem), (status = 405, body = Problem))
)]
async fn set_slices(
    State(shared): State<Shared>,
    Body(NewSlices { slices }): Body<NewSlices>,
) -> Answer<Slices> {
    request(&shared, |reply| CellRequest::SetSlices(slices, reply)).await
}

/// UEs of the cell, a page at a time (gNB only).
#[utoipa::path(
    get,
    path = "/v1/ues",
    params(Page),
    responses((status = 200, body = UeList), (status = 405, body = Problem))
)]
async fn ues(State(shared): State<Shared>, Params(page): Params<Page>) -> Answer<UeList> {
    let (offset, limit) = page.bounds();
    request(&shared, |reply| CellRequest::Ues { offset, limit, reply }).await
}

/// One UE of the cell: channel, bearers, QoS flows (gNB only).
#[utoipa::path(
    get,
    path = "/v1/ues/{ue}",
    params(("ue" = String, Path, description = "Name of the UE")),
    responses((status = 200, body = CellUe), (status = 404, body = Problem), (status = 405, body = Problem))
)]
async fn ue(State(shared): State<Shared>, Path(name): Path<String>) -> Answer<CellUe> {
    request(&shared, |reply| CellRequest::Ue(name, reply)).await
}

/// Changes slice, channel or queue discipline of a UE, until the next reload.
#[utoipa::path(
    put,
    path = "/v1/ues/{ue}",
    params(("ue" = String, Path, description = "Name of the UE")),
    request_body = UeChange,
    responses(
        (status = 200, body = CellUe),
        (status = 400, body = Problem),
        (status = 404, body = Problem),
        (status = 405, body = Problem)
    )
)]
async fn set_ue(
    State(shared): State<Shared>,
    Path(name): Path<String>,
    Body(change): Body<UeChange>,
) -> Answer<CellUe> {
    request(&shared, |reply| CellRequest::SetUe(name, Box::new(change), reply)).await
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct TelemetryParams {
    /// Also a `slot` event per slot and direction.
    #[serde(default)]
    slots: bool,
    /// Also `packets` events with every delivered packet, ten per second.
    #[serde(default)]
    packets: bool,
}

/// Live telemetry of the cell (gNB only): server-sent events `second`, and on request `slot` and `packets`.
#[utoipa::path(
    get,
    path = "/v1/telemetry",
    params(TelemetryParams),
    responses(
        (status = 200, body = CellSecond, content_type = "text/event-stream", description = "`slot` has the form of Slot, `packets` that of CellPackets"),
        (status = 405, body = Problem)
    )
)]
async fn telemetry(
    State(shared): State<Shared>,
    Params(params): Params<TelemetryParams>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Problem> {
    let params = Telemetry { slots: params.slots, packets: params.packets };
    let streams =
        shared.control.request(|reply| ControlRequest::Cell(CellRequest::Telemetry(params, reply))).await?;
    let Streams { seconds, slots, packets } = streams;
    // A slow listener misses records; the times show the gap.
    let seconds = BroadcastStream::new(seconds).filter_map(Result::ok).map(|s| event("second", &*s));
    let slots: BoxedEventStream = match slots {
        Some(slots) => {
            let slots = BroadcastStream::new(slots).filter_map(Result::ok);
            Box::pin(slots.map(|slot| event("slot", &views::slot(&slot))))
        }
        None => Box::pin(tokio_stream::empty()),
    };
    let packets: BoxedEventStream = match packets {
        Some(packets) => {
            let packets = BroadcastStream::new(packets).filter_map(Result::ok);
            Box::pin(packets.map(|batch| event("packets", &views::packets(&batch))))
        }
        None => Box::pin(tokio_stream::empty()),
    };
    Ok(Sse::new(seconds.merge(slots).merge(packets)).keep_alive(KeepAlive::default()))
}

type BoxedEventStream = std::pin::Pin<Box<dyn Stream<Item = Result<Event, Infallible>> + Send>>;

fn event(kind: &str, data: &impl Serialize) -> Result<Event, Infallible> {
    Ok(Event::default().event(kind).data(serde_json::to_string(data).unwrap_or_default()))
}
