//! Configuration of cells, and their failures.

use super::*;
use axum::extract::{Path, Request, State};
use axum::middleware::Next;
use axum::response::Response;
use axum::routing::{get, put};
use axum::{Json, Router, middleware};
use std::sync::{Arc, Mutex};

/// A simulated gNB agent with its REST interface.
#[derive(Clone, Default)]
struct Cell(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    slices: Vec<Value>,
    ue: String,
    /// Number of further requests that fail.
    fails: u32,
    /// Restarts while its shares are set, and returns to its configuration.
    restarts: bool,
    /// Accepts requests but does not answer.
    hangs: bool,
    /// Answers without end.
    floods: bool,
    most_percent: f64,
    /// Bytes sent of answers without end.
    flooded: usize,
}

impl Inner {
    fn start(&mut self) {
        self.slices = vec![json!({"name": "default", "share_percent": 100.0, "intra": "pf"})];
        self.ue = "default".to_owned();
    }
}

impl Cell {
    fn with<T>(&self, f: impl FnOnce(&mut Inner) -> T) -> T {
        f(&mut self.0.lock().unwrap())
    }

    async fn start(&self) -> String {
        type Answer = Result<Json<Value>, (axum::http::StatusCode, Json<Value>)>;
        let broken = |inner: &mut Inner| {
            inner.fails = inner.fails.saturating_sub(1);
            (axum::http::StatusCode::SERVICE_UNAVAILABLE, Json(json!({"detail": "out of order"})))
        };
        let show = move |State(cell): State<Cell>| async move {
            let answer: Answer = cell.with(|i| {
                if i.fails > 0 { Err(broken(i)) } else { Ok(Json(json!({"slices": i.slices, "uses": []}))) }
            });
            answer
        };
        let set = move |State(cell): State<Cell>, Json(body): Json<Value>| async move {
            let answer: Answer = cell.with(|i| {
                if i.fails > 0 {
                    return Err(broken(i));
                }
                if std::mem::take(&mut i.restarts) {
                    i.start();
                }
                i.slices = body["slices"].as_array().unwrap().clone();
                let sum = i.slices.iter().map(|s| s["share_percent"].as_f64().unwrap()).sum::<f64>();
                i.most_percent = i.most_percent.max(sum);
                assert!(i.slices.iter().any(|s| s["name"] == i.ue.as_str()), "the UE's slice is kept");
                Ok(Json(body))
            });
            answer
        };
        let ues = async |State(cell): State<Cell>| {
            Json(json!({"total": 1, "ues": [{"name": "phone", "slice": cell.with(|i| i.ue.clone())}]}))
        };
        let move_ue = async |State(cell): State<Cell>, Path(name): Path<String>, Json(body): Json<Value>| {
            if name != "phone" {
                return (axum::http::StatusCode::NOT_FOUND, Json(json!({"detail": "no such UE"})));
            }
            cell.with(|i| i.ue = body["slice"].as_str().unwrap().to_owned());
            (axum::http::StatusCode::OK, Json(json!({"name": name})))
        };
        self.with(Inner::start);
        let app = Router::new()
            .route("/v1/slices", get(show).put(set))
            .route("/v1/ues", get(ues))
            .route("/v1/ues/{ue}", put(move_ue))
            .with_state(self.clone())
            .layer(middleware::from_fn_with_state(self.clone(), hang));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, app).await });
        at
    }

    fn share(&self, name: &str) -> Option<f64> {
        self.with(|i| i.slices.iter().find(|s| s["name"] == name)?["share_percent"].as_f64())
    }
}

async fn hang(State(cell): State<Cell>, request: Request, next: Next) -> Response {
    while cell.with(|i| i.hangs) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    if cell.with(|i| i.floods) {
        let sent = futures_util::stream::unfold(cell, async |cell: Cell| {
            let piece = br#"{"name":"x"},"#.repeat(5000);
            cell.with(|i| i.flooded += piece.len());
            Some((Ok::<_, std::io::Error>(piece), cell))
        });
        return Response::new(axum::body::Body::from_stream(sent));
    }
    next.run(request).await
}

#[tokio::test]
async fn a_slice_at_an_access_that_is_no_longer_configured_is_degraded() {
    let world = World::new("").await;
    let (status, made) = world.call("POST", "/v1/slices", at(&["cell-1", "cell-2"], "both", 1000)).await;
    assert_eq!(status, 201, "{made}");
    let id = made["id"].as_str().unwrap().to_owned();
    world.until(&id, "Running").await;
    let World { folder, _running: running, .. } = world;
    drop(running);
    let mut less = config(folder.path(), "");
    less.access.retain(|access| access.name != "cell-2");
    let world = World::of(folder, &less).await;
    let slice = world.until(&id, "Degraded").await;
    assert!(slice["reason"].as_str().unwrap().contains("cell-2 is not in the configuration"), "{slice}");
    let World { folder, _running: running, .. } = world;
    drop(running);
    World::at(folder, "").await.until(&id, "Running").await;
}

/// A faulty or hostile cell costs neither memory nor the other cells.
#[tokio::test]
async fn an_answer_without_end_is_a_failure_of_the_cell() {
    let cell = Cell::default();
    let world = world(&cell).await;
    cell.with(|i| i.floods = true);
    let (status, made) = world.call("POST", "/v1/slices", at(&["live"], "flooded", 1000)).await;
    assert_eq!(status, 201, "{made}");
    let id = made["id"].as_str().unwrap().to_owned();
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        let (_, slice) = world.call("GET", &format!("/v1/slices/{id}"), None).await;
        if slice.to_string().contains("more than 4194304 bytes") {
            break;
        }
        assert!(Instant::now() < end, "{slice}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let (status, made) = world.call("POST", "/v1/slices", at(&["cell-2"], "beside", 1000)).await;
    assert_eq!(status, 201, "{made}");
    world.until(made["id"].as_str().unwrap(), "Running").await;
    cell.with(|i| i.floods = false);
    world.until(&id, "Running").await;
    let flooded = cell.with(|i| i.flooded);
    assert!(flooded < 256 << 20, "{flooded} bytes were taken");
}

async fn access(name: &str, cell: &Cell) -> String {
    let at = cell.start().await;
    format!(
        "[[access]]\nname = \"{name}\"\nlocation = \"quay\"\ndownlink_bps = 100_000_000\nuplink_bps = 50_000_000\n\
         gnb = \"{at}\"\n"
    )
}

async fn world(cell: &Cell) -> World {
    World::new(&access("live", cell).await).await
}

fn at(accesses: &[&str], name: &str, kbps: u64) -> Option<Value> {
    Some(json!({"name": name, "accesses": accesses, "serviceProfile": {"dLThptPerSlice": {"guaThpt": kbps}}}))
}

fn body(name: &str, kbps: u64) -> Option<Value> {
    at(&["live"], name, kbps)
}

/// Creates a slice "video" and waits until it is in a state.
async fn video(world: &World, state: &str) -> Value {
    let (_, made) = world.call("POST", "/v1/slices", body("video", 30_000)).await;
    world.until(made["id"].as_str().unwrap(), state).await
}

#[tokio::test]
async fn shares_and_ues_follow_the_slices() {
    let cell = Cell::default();
    let world = world(&cell).await;
    let slice = video(&world, "Running").await;
    let id = slice["id"].as_str().unwrap();
    assert_eq!((cell.share("video"), cell.share("default")), (Some(30.0), Some(70.0)));
    assert_eq!(cell.with(|i| i.slices[0]["intra"].clone()), "pf", "what the operator set stays");
    attach(&world, &cell, id).await;
    assert_eq!(world.call("PUT", &format!("/v1/slices/{id}"), body("video", 50_000)).await.0, 202);
    world.until(id, "Running").await;
    assert_eq!((cell.share("video"), cell.share("default")), (Some(50.0), Some(50.0)));
    // A cell that loses its shares is configured again; meanwhile the slice reports it.
    cell.with(|i| {
        i.slices = vec![json!({"name": "default", "share_percent": 100.0})];
        i.fails = u32::MAX;
    });
    let reason = world.until(id, "Degraded").await["reason"].as_str().unwrap().to_owned();
    assert!(reason.contains("live: ") && reason.contains("refuses"), "{reason}");
    cell.with(|i| i.fails = 0);
    world.until(id, "Running").await;
    assert_eq!(cell.share("video"), Some(50.0));
    // UEs of a removed slice move to the default slice.
    assert_eq!(world.call("DELETE", &format!("/v1/slices/{id}"), None).await.0, 202);
    world.until(id, "gone").await;
    assert_eq!(
        (cell.share("video"), cell.share("default"), cell.with(|i| i.ue.clone())),
        (None, Some(100.0), "default".into())
    );
    assert!(cell.with(|i| i.most_percent) <= 100.0 + 1e-6);
}

/// Makes the UE "phone" a member of the slice "video", and waits until the cell has it.
async fn attach(world: &World, cell: &Cell, id: &str) {
    world.ue("phone", &[]).await;
    place(world, cell, id).await;
}

async fn place(world: &World, cell: &Cell, id: &str) {
    let place = format!("/v1/ues/phone/slices/{id}");
    assert_eq!(world.call("PUT", &place, Some(json!({"cell_ue": "phone"}))).await.0, 204);
    attached(world, cell).await;
}

async fn attached(world: &World, cell: &Cell) {
    eventually(async || {
        let (_, ue) = world.call("GET", "/v1/ues/phone", None).await;
        cell.with(|i| i.ue == "video") && ue["slices"][0]["attachment"] == "active"
    })
    .await;
}

async fn eventually(holds: impl AsyncFn() -> bool) {
    let end = Instant::now() + Duration::from_secs(30);
    while !holds().await {
        assert!(Instant::now() < end);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_cell_that_restarts_during_a_change_gets_its_ues_back() {
    let cell = Cell::default();
    let world = world(&cell).await;
    let slice = video(&world, "Running").await;
    let id = slice["id"].as_str().unwrap();
    attach(&world, &cell, id).await;
    // UEs of the slice that changes, and of another one.
    for (method, place, body) in [
        ("PUT", format!("/v1/slices/{id}"), body("video", 50_000)),
        ("POST", "/v1/slices".to_owned(), body("other", 10_000)),
    ] {
        cell.with(|i| i.restarts = true);
        let (status, made) = world.call(method, &place, body).await;
        assert!(matches!(status, 201 | 202), "{made}");
        world.until(made["id"].as_str().unwrap_or(id), "Running").await;
        assert!(!cell.with(|i| i.restarts));
        attached(&world, &cell).await;
    }
}

#[tokio::test]
async fn a_ue_without_membership_returns_to_the_default_slice() {
    let cell = Cell::default();
    let world = world(&cell).await;
    let slice = video(&world, "Running").await;
    let id = slice["id"].as_str().unwrap();
    let back = async || eventually(async || cell.with(|i| i.ue == "default")).await;
    attach(&world, &cell, id).await;
    // Existing memberships stay unchanged.
    assert_eq!(world.call("PUT", "/v1/ues/phone", Some(json!({"slices": [id]}))).await.0, 200);
    let (_, ue) = world.call("GET", "/v1/ues/phone", None).await;
    assert_eq!(
        (&ue["slices"][0]["cell_ue"], &ue["slices"][0]["attachment"]),
        (&json!("phone"), &json!("active"))
    );
    assert_eq!(world.call("DELETE", &format!("/v1/ues/phone/slices/{id}"), None).await.0, 204);
    back().await;
    place(&world, &cell, id).await;
    assert_eq!(world.call("DELETE", "/v1/ues/phone", None).await.0, 204);
    back().await;
    eventually(async || world.call("GET", "/v1/ues/phone", None).await.0 == 404).await;
    // The slice can be used by the next UE.
    attach(&world, &cell, id).await;
}

#[tokio::test]
async fn a_refusal_of_a_cell_fails_the_slice_and_leaves_nothing() {
    let cell = Cell::default();
    let world = world(&cell).await;
    cell.with(|i| i.fails = u32::MAX);
    let slice = video(&world, "Failed").await;
    let id = slice["id"].as_str().unwrap();
    assert!(slice["reason"].as_str().unwrap().contains("out of order"), "{slice}");
    assert_eq!(world.call("DELETE", &format!("/v1/slices/{id}"), None).await.0, 202);
    cell.with(|i| i.fails = 0);
    world.until(id, "gone").await;
    let (_, v) = world.call("GET", "/v1/accesses", None).await;
    let live = v["accesses"].as_array().unwrap().iter().find(|a| a["name"] == "live").unwrap().clone();
    assert_eq!(live["downlink_free_bps"], 100_000_000);
}

/// In either order.
#[tokio::test]
async fn a_removal_delayed_by_one_cell_does_not_delay_the_checks_of_others() {
    for (a, b) in [("live", "other"), ("other", "live")] {
        let (well, ill) = (Cell::default(), Cell::default());
        let world = World::new(&(access(a, &well).await + &access(b, &ill).await)).await;
        let mut ids = Vec::new();
        for (name, places) in [("x", &[a, b][..]), ("y", &[a]), ("z", &[b])] {
            let (status, made) = world.call("POST", "/v1/slices", at(places, name, 10_000)).await;
            assert_eq!(status, 201, "{made}");
            ids.push(made["id"].as_str().unwrap().to_owned());
            world.until(&ids[ids.len() - 1], "Running").await;
        }
        ill.with(|i| i.fails = u32::MAX);
        assert_eq!(world.call("DELETE", &format!("/v1/slices/{}", ids[0]), None).await.0, 202);
        world.until(&ids[2], "Degraded").await;
        well.with(Inner::start);
        eventually(async || well.share("y") == Some(10.0)).await;
        assert_eq!(
            world.call("GET", &format!("/v1/slices/{}", ids[0]), None).await.1["state"],
            "Terminating"
        );
        ill.with(|i| i.fails = 0);
        world.until(&ids[0], "gone").await;
        world.until(&ids[2], "Running").await;
        assert_eq!((well.share("x"), ill.share("x"), ill.share("z")), (None, None, Some(10.0)));
    }
}

#[tokio::test]
async fn an_unresponsive_cell_delays_no_other() {
    let (mute, well) = (Cell::default(), Cell::default());
    let world = World::new(&(access("live", &mute).await + &access("other", &well).await)).await;
    let slice = video(&world, "Running").await;
    let id = slice["id"].as_str().unwrap();
    mute.with(|i| i.hangs = true);
    for i in 0..40 {
        let name = format!("phone{i}");
        world.ue(&name, &[]).await;
        let place = format!("/v1/ues/{name}/slices/{id}");
        assert_eq!(world.call("PUT", &place, Some(json!({"cell_ue": name}))).await.0, 204);
    }
    // A removal at that cell waits, too.
    let (_, made) = world.call("POST", "/v1/slices", body("gone", 10_000)).await;
    let gone = format!("/v1/slices/{}", made["id"].as_str().unwrap());
    assert_eq!(world.call("DELETE", &gone, None).await.0, 202);
    let began = Instant::now();
    let (_, made) = world.call("POST", "/v1/slices", at(&["other"], "voice", 10_000)).await;
    world.until(made["id"].as_str().unwrap(), "Running").await;
    assert!(began.elapsed() < Duration::from_secs(14), "{:?}", began.elapsed());
    // When it answers again, it gets its target state.
    mute.with(|i| i.hangs = false);
    eventually(async || world.call("GET", &gone, None).await.0 == 404).await;
    eventually(async || world.call("GET", &format!("/v1/slices/{id}"), None).await.1["state"] == "Running")
        .await;
    attach(&world, &mute, id).await;
}

#[tokio::test]
async fn many_unresponsive_cells_delay_others_no_longer_than_one() {
    let well = Cell::default();
    let (mut mute, mut all) = (Vec::new(), String::new());
    for i in 0..6 {
        let cell = Cell::default();
        all += &access(&format!("a{i}"), &cell).await;
        mute.push(cell);
    }
    let world = World::new(&(all + &access("live", &well).await)).await;
    video(&world, "Running").await;
    mute.iter().for_each(|cell| cell.with(|i| i.hangs = true));
    well.with(Inner::start);
    let began = Instant::now();
    eventually(async || well.share("video") == Some(30.0)).await;
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
}
