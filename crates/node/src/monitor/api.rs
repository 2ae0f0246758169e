//! `--api`: the last report of the monitor over REST.
//!
//! ```text
//!  GET /v1/int                  the monitor: its interfaces and counters
//!  GET /v1/int/paths            its paths, hop by hop, in the order in which they were first seen
//!  GET /v1/int/paths/{number}   one of them
//!  GET /v1/int/flows            its flows, by addresses and ports; of one path with ?path=NUMBER
//! ```
//!
//! Each answer refers to one report and has its time. The OpenAPI description is generated from the handlers,
//! served at `/openapi.json` and committed as `openapi/int-monitor.json`.

use super::report::Report;
use super::schema::{CountersSchema, FlowSchema, PathSchema};
use super::served::Last;
use crate::runtime::api::extract::{Params, Path, complete};
use crate::runtime::api::{Access, Bearer, Page, Problem, finish, hundred};
use anabranch_cc::collect::{CollectCounters, FlowView, PathView};
use axum::extract::State;
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use utoipa::{IntoParams, OpenApi, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "anabranch int monitor",
        description = "Paths and flows according to in-band telemetry: the last report of a running `anabranch int monitor`.",
        license(name = "Apache-2.0", identifier = "Apache-2.0")
    ),
    components(schemas(Problem)),
    modifiers(&Bearer)
)]
struct Description;

/// A monitor, without its paths and flows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct IntMonitor {
    /// Name of the monitor.
    pub sink: String,
    /// Time of the report, Unix time in milliseconds.
    pub unix_ms: u64,
    /// Interval between reports, milliseconds.
    pub interval_ms: u64,
    /// Names of the interfaces that it listens on.
    pub interfaces: Vec<String>,
    /// Packets for which the kernel had no buffer.
    pub kernel_drops: u64,
    /// Counters of the collector.
    #[schema(value_type = CountersSchema)]
    pub counters: CollectCounters,
    /// Number of known paths.
    pub paths: u64,
    /// Number of known flows.
    pub flows: u64,
}

/// A page of paths.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct IntPaths {
    /// Time of the report, Unix time in milliseconds.
    pub unix_ms: u64,
    /// Number of all paths.
    pub total: u64,
    /// The paths of this page.
    #[schema(value_type = Vec<PathSchema>)]
    pub paths: Vec<PathView>,
}

/// A page of flows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct IntFlows {
    /// Time of the report, Unix time in milliseconds.
    pub unix_ms: u64,
    /// Number of all flows, or of all flows on the requested path.
    pub total: u64,
    /// The flows of this page.
    #[schema(value_type = Vec<FlowSchema>)]
    pub flows: Vec<FlowView>,
}

type Answer<T> = Result<Json<T>, Problem>;

fn routes() -> OpenApiRouter<Last> {
    let mut router = OpenApiRouter::with_openapi(Description::openapi())
        .routes(routes!(monitor))
        .routes(routes!(paths))
        .routes(routes!(path))
        .routes(routes!(flows));
    complete(router.get_openapi_mut(), &["400", "401", "403", "404", "405", "408", "503"], &[]);
    router
}

/// The OpenAPI description as committed in `openapi/int-monitor.json`.
#[cfg(test)]
pub fn description() -> String {
    crate::testing::description(routes())
}

/// The complete router. With `access`, every request needs the token.
pub fn router(last: Last, access: Option<Arc<Access>>) -> Router {
    finish(routes(), last, access)
}

fn newest(last: &Last) -> Result<Arc<Report>, Problem> {
    last.borrow().clone().ok_or_else(|| Problem::unavailable("the monitor has made no report yet"))
}

fn page_of<T: Clone>(all: impl Iterator<Item = T>, (offset, limit): (usize, usize)) -> Vec<T> {
    all.skip(offset).take(limit).collect()
}

/// The monitor: interfaces and counters.
#[utoipa::path(get, path = "/v1/int", responses((status = 200, body = IntMonitor)))]
async fn monitor(State(last): State<Last>) -> Answer<IntMonitor> {
    let report = newest(&last)?;
    Ok(Json(IntMonitor {
        sink: report.sink.clone(),
        unix_ms: report.unix_ms,
        interval_ms: report.interval_ms,
        interfaces: report.interfaces.clone(),
        kernel_drops: report.kernel_drops,
        counters: report.counters,
        paths: report.paths.len() as u64,
        flows: report.flows.len() as u64,
    }))
}

/// Paths in the order in which they were first seen, a page at a time.
#[utoipa::path(get, path = "/v1/int/paths", params(Page), responses((status = 200, body = IntPaths)))]
async fn paths(State(last): State<Last>, Params(page): Params<Page>) -> Answer<IntPaths> {
    let report = newest(&last)?;
    let paths = page_of(report.paths.iter().cloned(), page.bounds());
    Ok(Json(IntPaths { unix_ms: report.unix_ms, total: report.paths.len() as u64, paths }))
}

/// One path.
#[utoipa::path(
    get,
    path = "/v1/int/paths/{number}",
    params(("number" = u64, Path, description = "Its number, in the order of first sight, from 1")),
    responses((status = 200, body = PathSchema), (status = 404, body = Problem))
)]
async fn path(State(last): State<Last>, Path(number): Path<u64>) -> Answer<PathView> {
    let report = newest(&last)?;
    let found = report.paths.iter().find(|path| path.number == number).cloned();
    let missing = || Problem::not_found("path", &number.to_string(), "list them with GET /v1/int/paths");
    found.map(Json).ok_or_else(missing)
}

/// Selection of flows.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct FlowsOf {
    /// Only flows on the path with this number.
    #[serde(default)]
    path: Option<u64>,
    /// Number of flows to skip; default 0.
    #[serde(default)]
    offset: usize,
    /// Maximum number of flows, 1 to 1000; default 100. Other values are clamped.
    #[serde(default = "hundred")]
    limit: usize,
}

/// Flows in the order of addresses and ports, a page at a time.
#[utoipa::path(get, path = "/v1/int/flows", params(FlowsOf), responses((status = 200, body = IntFlows)))]
async fn flows(State(last): State<Last>, Params(of): Params<FlowsOf>) -> Answer<IntFlows> {
    let report = newest(&last)?;
    let wanted = || report.flows.iter().filter(|flow| of.path.is_none_or(|path| flow.path == path));
    let flows = page_of(wanted().cloned(), Page { offset: of.offset, limit: of.limit }.bounds());
    Ok(Json(IntFlows { unix_ms: report.unix_ms, total: wanted().count() as u64, flows }))
}

#[cfg(test)]
mod tests {
    use super::super::show::tests::sample;
    use super::*;
    use crate::runtime::api::{Guarded, Server};
    use crate::runtime::config::Listen;
    use tokio::sync::watch;

    async fn serve(
        report: Option<Report>,
        token: Option<&str>,
    ) -> (Server, reqwest::Client, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("int.sock");
        let (last, reports) = watch::channel(report.map(Arc::new));
        let mut server = Server::default();
        let router = router(reports, token.map(Access::of_operator));
        server.listen(&Listen::Unix(socket.clone()), router, Guarded::default()).await.unwrap();
        drop(last);
        (server, reqwest::Client::builder().unix_socket(socket).build().unwrap(), folder)
    }

    /// Three paths and five flows; the third and the fifth flow are on the second path.
    fn many() -> Report {
        let mut report = sample();
        let (path, flow) = (report.paths[0].clone(), report.flows[0].clone());
        report.paths = (1..=3).map(|number| PathView { number, ..path.clone() }).collect();
        let on = |n: u64| if n == 3 || n == 5 { 2 } else { 1 };
        report.flows = (1..=5).map(|n| FlowView { path: on(n), traces: n, ..flow.clone() }).collect();
        report
    }

    #[tokio::test]
    async fn the_last_report_is_served() {
        let (_server, http, _folder) = serve(Some(many()), None).await;
        let get = async |path: &str| http.get(format!("http://x{path}")).send().await.unwrap();
        let own: IntMonitor = get("/v1/int").await.json().await.unwrap();
        assert_eq!((own.paths, own.flows, own.kernel_drops, own.counters.malformed), (3, 5, 5, 2));

        let all: IntPaths = get("/v1/int/paths").await.json().await.unwrap();
        assert_eq!((all.total, &all.paths), (3, &many().paths));
        let page: IntPaths = get("/v1/int/paths?offset=1&limit=1").await.json().await.unwrap();
        assert_eq!((page.total, page.paths.len(), page.paths[0].number), (3, 1, 2));
        let one: PathView = get("/v1/int/paths/3").await.json().await.unwrap();
        assert_eq!(one, many().paths[2]);

        let flows: IntFlows = get("/v1/int/flows?path=2").await.json().await.unwrap();
        let traces: Vec<u64> = flows.flows.iter().map(|flow| flow.traces).collect();
        assert_eq!((flows.total, traces), (2, vec![3, 5]));
        let flows: IntFlows = get("/v1/int/flows?limit=2&offset=4").await.json().await.unwrap();
        assert_eq!((flows.total, flows.flows.len()), (5, 1));
    }

    #[tokio::test]
    async fn errors_are_problem_documents_with_a_remedy() {
        let (_server, http, _folder) = serve(Some(sample()), None).await;
        for (path, status, says) in [
            ("/v1/int/paths/9", 404, "there is no path \"9\""),
            ("/v1/int/paths/first", 400, "first"),
            ("/v1/int/paths?page=2", 400, "page"),
            ("/v1/int/flows?path=-1", 400, "path"),
            ("/v1/paths", 404, "no such path"),
        ] {
            let response = http.get(format!("http://x{path}")).send().await.unwrap();
            assert_eq!(response.headers()["content-type"], "application/problem+json", "{path}");
            let problem: Problem = response.json().await.unwrap();
            assert!(problem.status == status && problem.detail.contains(says), "{path}: {problem:?}");
        }
        let (_server, http, _folder) = serve(None, None).await;
        let early = http.get("http://x/v1/int/paths").send().await.unwrap();
        assert_eq!(early.status(), 503);
    }

    #[tokio::test]
    async fn a_configured_token_is_required() {
        let (_server, http, _folder) = serve(Some(sample()), Some("correct horse battery")).await;
        let ask = || http.get("http://x/v1/int/paths");
        assert_eq!(ask().send().await.unwrap().status(), 401);
        assert_eq!(ask().bearer_auth("correct horse battery").send().await.unwrap().status(), 200);
    }

    #[test]
    fn the_committed_description_is_current() {
        crate::testing::is_committed("int-monitor.json", &description());
    }
}
