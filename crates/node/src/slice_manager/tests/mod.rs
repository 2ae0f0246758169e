//! Tests of the REST interface over HTTP, with a database in a temporary directory.

mod bad_input;
mod camara;
mod cells;
mod compat;
mod disk;
mod signalling;
mod tenants;
mod upf;
mod versions;

use super::engine::overbooked;
use super::{Running, callbacks, routes, southbound, start};
use crate::runtime::api::{Guarded, Server};
use crate::runtime::config::SliceManagerConfig;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const OPERATOR: &str = "correct-horse-battery-staple";

/// A running slice manager.
struct World {
    base: String,
    http: reqwest::Client,
    folder: tempfile::TempDir,
    _running: Running,
    _server: Server,
}

/// A configuration with two cells at two locations, followed by `more`.
fn config(folder: &std::path::Path, more: &str) -> SliceManagerConfig {
    let token = folder.join("token");
    std::fs::write(&token, OPERATOR).unwrap();
    let text = format!(
        "[manager]\ndatabase = \"sqlite:{0}/slices.db\"\nhealth_interval_ms = 100\n\
         [api]\nlisten = \"127.0.0.1:0\"\ntoken_file = \"{0}/token\"\n\
         [[access]]\nname = \"cell-1\"\nlocation = \"pier\"\ndownlink_bps = 100_000_000\nuplink_bps = 50_000_000\n\
         [[access]]\nname = \"cell-2\"\nlocation = \"group0_edge\"\ndownlink_bps = 2_000_000_000\n\
         uplink_bps = 200_000_000\n{more}",
        folder.display()
    );
    crate::runtime::config::parse("slice-manager.toml", &text).unwrap()
}

impl World {
    async fn new(more: &str) -> Self {
        Self::at(tempfile::tempdir().unwrap(), more).await
    }

    /// Starts with all files in this directory.
    async fn at(folder: tempfile::TempDir, more: &str) -> Self {
        let config = config(folder.path(), more);
        Self::of(folder, &config).await
    }

    /// Starts with this configuration.
    async fn of(folder: tempfile::TempDir, config: &SliceManagerConfig) -> Self {
        let running = started(config).await;
        let mut server = Server::default();
        let router = routes::router(running.shared.clone());
        let at = server.listen(&config.api.listen, router, Guarded::of(&config.api).unwrap()).await.unwrap();
        let base = format!("http://{}", at.unwrap());
        let http = reqwest::Client::builder().no_proxy().build().unwrap();
        Self { base, http, folder, _running: running, _server: server }
    }

    fn request(&self, method: &str, path: &str, token: &str) -> reqwest::RequestBuilder {
        let method = reqwest::Method::from_bytes(method.as_bytes()).unwrap();
        self.http.request(method, format!("{}{path}", self.base)).bearer_auth(token)
    }

    /// Sends a request as the operator; returns status and answer (JSON or text).
    async fn call(&self, method: &str, path: &str, body: Option<Value>) -> (u16, Value) {
        self.ask_as(OPERATOR, method, path, body).await
    }

    async fn ask_as(&self, token: &str, method: &str, path: &str, body: Option<Value>) -> (u16, Value) {
        let mut request = self.request(method, path, token);
        if let Some(body) = body {
            request = request.json(&body);
        }
        let answer = request.send().await.unwrap();
        let status = answer.status().as_u16();
        let text = answer.text().await.unwrap();
        (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }

    /// Waits until a slice is in a state.
    async fn until(&self, id: &str, state: &str) -> Value {
        let end = Instant::now() + Duration::from_secs(30);
        loop {
            let (status, slice) = self.call("GET", &format!("/v1/slices/{id}"), None).await;
            if status == 404 && state == "gone" || slice["state"] == state {
                return slice;
            }
            assert!(Instant::now() < end, "not {state}: {slice}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Creates a slice and waits until it is running; returns its identifier.
    async fn slice(&self, name: &str, dl_kbps: u64) -> String {
        let body = json!({"name": name, "accesses": ["cell-1"], "serviceProfile": {"sst": 1,
            "dLThptPerSlice": {"guaThpt": dl_kbps, "maxThpt": 80_000}, "dLLatency": 12}});
        let (status, made) = self.call("POST", "/v1/slices", Some(body)).await;
        assert_eq!(status, 201, "{made}");
        let id = made["id"].as_str().unwrap().to_owned();
        self.until(&id, "Running").await;
        id
    }

    /// Adds a UE with these slices; returns its token.
    async fn ue(&self, name: &str, slices: &[&str]) -> String {
        let (status, made) =
            self.call("PUT", &format!("/v1/ues/{name}"), Some(json!({"slices": slices}))).await;
        assert_eq!(status, 201, "{made}");
        made["token"].as_str().unwrap().to_owned()
    }
}

#[test]
fn the_committed_description_is_current() {
    crate::testing::is_committed("slice-manager.json", &routes::description());
}

#[tokio::test]
async fn every_path_refuses_a_wrong_token_and_operators_paths_refuse_ues() {
    let world =
        World::new("[limits]\nue_burst = 1000\nue_requests_per_s = 1000\nrefused_per_s = 1000\n").await;
    let token = world.ue("phone", &[]).await;
    let openapi: Value = serde_json::from_str(&routes::description()).unwrap();
    let mut seen = 0;
    for (path, methods) in openapi["paths"].as_object().unwrap() {
        let at = path
            .replace("{sessionId}", "x")
            .replace("{slice}", "x")
            .replace("{id}", "x")
            .replace("{ue}", "phone");
        for method in methods.as_object().unwrap().keys() {
            let body = ["post", "put"].contains(&method.as_str()).then(|| json!({}));
            let method = method.to_uppercase();
            let (status, problem) = world.ask_as("wrong", &method, &at, body.clone()).await;
            assert_eq!(status, 401, "{method} {path}: {problem}");
            let none =
                world.http.request(method.parse().unwrap(), format!("{}{at}", world.base)).send().await;
            assert_eq!(none.unwrap().status(), 401, "{method} {path}");
            if !path.starts_with("/v1/me") {
                let (status, problem) = world.ask_as(&token, &method, &at, body).await;
                assert_eq!(status, 403, "{method} {path}: {problem}");
            }
            seen += 1;
        }
    }
    assert!(seen > 40, "{seen}");
    assert_eq!(world.ask_as(OPERATOR, "GET", "/v1/me", None).await.0, 403);
}

async fn started(config: &SliceManagerConfig) -> Running {
    let network = southbound::Network::new(config).unwrap();
    start(config, network, callbacks::Sender::new(&config.callbacks).unwrap()).await.unwrap()
}

/// Without a token on loopback: requests must be for this machine's name, not from pages of other sites, and
/// changes must be enabled.
#[tokio::test]
async fn a_port_without_token_is_for_this_machine_and_for_reading() {
    for changes in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let mut config = config(folder.path(), "");
        config.api.token_file = None;
        config.api.changes_without_token = changes;
        let running = started(&config).await;
        let mut server = Server::default();
        let router = routes::router(running.shared.clone());
        let at = server
            .listen(&config.api.listen, router, Guarded::of(&config.api).unwrap())
            .await
            .unwrap()
            .unwrap();
        let http = reqwest::Client::builder().no_proxy().build().unwrap();
        let ask = async |method: &str, path: &str, headers: &[(&str, &str)]| {
            let mut request = http.request(method.parse().unwrap(), format!("http://{at}{path}"));
            for (name, value) in headers {
                request = request.header(*name, *value);
            }
            let body = (method == "PUT").then_some(("content-type", "application/json"));
            if let Some((name, value)) = body {
                request = request.header(name, value).body("{}");
            }
            request.send().await.unwrap().status().as_u16()
        };
        assert_eq!(ask("GET", "/v1/slices", &[]).await, 200);
        assert_eq!(ask("PUT", "/v1/ues/phone", &[]).await, if changes { 201 } else { 403 });
        for evil in [
            &[("host", "evil.example")][..],
            &[("host", "evil.example"), ("origin", "http://evil.example")],
            &[("origin", "https://evil.example"), ("sec-fetch-site", "cross-site")],
            &[("sec-fetch-site", "cross-site")],
        ] {
            for (method, path) in
                [("GET", "/v1/slices"), ("PUT", "/v1/ues/phone"), ("POST", "/v1/ues/phone/token")]
            {
                assert_eq!(ask(method, path, evil).await, 403, "{method} {path} {evil:?}");
            }
        }
        assert_eq!(ask("POST", "/v1/ues/phone/token", &[]).await, if changes { 200 } else { 403 });
    }
}

#[tokio::test]
async fn every_metric_is_documented() {
    let world = World::new("").await;
    world.slice("video", 30_000).await;
    let (status, text) = world.call("GET", "/metrics", None).await;
    assert_eq!(status, 200);
    let text = text.as_str().unwrap();
    assert!(text.contains("anabranch_slice_manager_slices{state=\"Running\"} 1"), "{text}");
    assert!(text.contains("promised_bps{access=\"cell-1\",direction=\"downlink\"} 30000000"), "{text}");
    let page = include_str!("../../../../../docs/slice-manager.md");
    let told = text.lines().filter_map(|l| l.strip_prefix("# TYPE ")).map(|l| l.split(' ').next().unwrap());
    let told: Vec<&str> = told.collect();
    assert!(told.len() >= 6 && told.iter().all(|name| page.contains(&format!("| `{name}` |"))), "{told:?}");
}

#[tokio::test]
async fn concurrent_requests_never_exceed_the_capacity() {
    let world = World::new("[limits]\nue_burst = 1000\n").await;
    let body = |i: usize| {
        json!({"name": format!("s{i}"), "accesses": ["cell-1"],
            "serviceProfile": {"sst": 1, "dLThptPerSlice": {"guaThpt": 30_000}}})
    };
    let all = (0..24).map(|i| world.call("POST", "/v1/slices", Some(body(i))));
    let all = futures_util::future::join_all(all).await;
    let made: Vec<&str> =
        all.iter().filter(|(s, _)| *s == 201).map(|(_, v)| v["id"].as_str().unwrap()).collect();
    assert_eq!(made.len(), 3, "{all:?}");
    for (status, problem) in all.iter().filter(|(s, _)| *s != 201) {
        assert_eq!(*status, 409);
        assert!(problem["detail"].as_str().unwrap().contains("bit/s downlink left"), "{problem}");
    }
    // Concurrent changes and removals stay within the capacity at all times.
    for id in &made {
        world.until(id, "Running").await;
    }
    let token = world.ue("phone", &made).await;
    let changes = (0..24).map(|i| {
        let (world, id, body, token) = (&world, made[i % 3], body(i), &token);
        async move {
            match i % 8 {
                6 | 7 => {
                    let needs = json!({"slice": id, "dl_bps": 20_000_000 + 4_000_000 * i as u64});
                    world.ask_as(token, "POST", "/v1/me/needs", Some(needs)).await.0
                }
                0 => world.call("DELETE", &format!("/v1/slices/{id}"), None).await.0,
                1 | 2 => world.call("POST", "/v1/slices", Some(body)).await.0,
                _ => {
                    let mut body = body;
                    body["serviceProfile"]["dLThptPerSlice"]["guaThpt"] = json!(10_000 + 5_000 * i);
                    world.call("PUT", &format!("/v1/slices/{id}"), Some(body)).await.0
                }
            }
        }
    });
    let watch = async {
        for _ in 0..50 {
            let (_, v) = world.call("GET", "/v1/accesses", None).await;
            let cell = &v["accesses"][0];
            let shares = cell["shares"].as_array().unwrap().iter().map(|s| s["share_ppm"].as_u64().unwrap());
            assert!(shares.sum::<u64>() <= 950_000, "{cell}");
        }
    };
    let (statuses, ()) = futures_util::future::join(futures_util::future::join_all(changes), watch).await;
    assert!(statuses.iter().all(|s| [200, 201, 202, 404, 409].contains(s)), "{statuses:?}");
}

#[tokio::test]
async fn answered_changes_survive_a_restart() {
    let world = World::new("").await;
    let id = world.slice("video", 30_000).await;
    let token = world.ue("phone", &[&id]).await;
    let config = config(world.folder.path(), "");
    let again = started(&config).await;
    assert_eq!(again.shared.engine.ue_of(&super::auth::hash(&token)).as_deref(), Some("phone"));
    assert_eq!(again.shared.engine.read(|m| m.slices().len()), 1);
    let files =
        std::fs::read_dir(world.folder.path()).unwrap().map(|f| std::fs::read(f.unwrap().path()).unwrap());
    let shown = files.filter(|bytes| bytes.windows(22).any(|w| w == token.as_bytes())).count();
    assert_eq!(shown, 0, "the token is stored");
    assert_eq!(again.shared.engine.read(overbooked), Vec::<String>::new());
    // The cell now has less than the slice's 30 Mbit/s.
    let mut less = config;
    less.access[0].downlink_bps = 20_000_000;
    let warnings = started(&less).await.shared.engine.read(overbooked);
    let [warning] = &warnings[..] else { panic!("{warnings:?}") };
    assert!(
        ["cell-1", "downlink_bps = 20000000", "30000000"].iter().all(|part| warning.contains(part)),
        "{warning}"
    );
}
