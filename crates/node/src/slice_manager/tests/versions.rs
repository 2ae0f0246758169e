//! Versions of resources, equal at every interface, and conditional changes; limits of UEs' streams and of
//! growth at their request.

use super::*;
use reqwest::Response;

impl World {
    async fn with(&self, method: &str, path: &str, etag: Option<&str>, body: Option<Value>) -> Response {
        let mut request = self.request(method, path, OPERATOR);
        if let Some(etag) = etag {
            request = request.header("if-match", etag);
        }
        if let Some(body) = body {
            request = request.json(&body);
        }
        request.send().await.unwrap()
    }

    async fn etag(&self, path: &str) -> String {
        let answer = self.with("GET", path, None, None).await;
        assert_eq!(answer.status(), 200, "{path}");
        answer.headers()["etag"].to_str().unwrap().to_owned()
    }
}

const FAST: &str = "[limits]\nue_burst = 10000\nue_requests_per_s = 10000\n";

#[tokio::test]
async fn of_two_changes_of_the_same_version_one_is_refused() {
    let world = World::new(FAST).await;
    for (first, second, latency) in [(2_000, 3_000, 20), (1, 7_777, 3), (50_000, 1, 9)] {
        let id = world.slice("shared", 1_000).await;
        let path = format!("/v1/slices/{id}");
        let (a, b) = (world.etag(&path).await, world.etag(&path).await);
        assert_eq!(a, b);
        let body = |rate: u64, ms: u64| {
            json!({"name": "shared", "accesses": ["cell-1"],
                "serviceProfile": {"sst": 1, "dLThptPerSlice": {"guaThpt": rate}, "dLLatency": ms}})
        };
        let accepted = world.with("PUT", &path, Some(&a), Some(body(first, 12))).await;
        assert_eq!(accepted.status(), 202);
        let now = accepted.headers()["etag"].to_str().unwrap().to_owned();
        // During the first change and after it, the second is refused, and none of it is applied.
        for etag in [&*b, "\"1\"", &format!("W/{now}")] {
            let refused = world.with("PUT", &path, Some(etag), Some(body(second, latency))).await;
            assert_eq!(refused.status(), 412, "{etag}");
        }
        assert_eq!(world.with("DELETE", &path, Some(&b), None).await.status(), 412);
        let slice = world.until(&id, "Running").await;
        assert_eq!(slice["serviceProfile"]["dLThptPerSlice"]["guaThpt"].as_f64(), Some(first as f64));
        assert_eq!(world.etag(&path).await, now, "the state it is in has no version");
        assert_eq!(world.etag(&format!("/api/slice/{id}")).await, now, "Katana's is the same");
        assert_eq!(
            world.with("PUT", &path, Some("no-quotes"), Some(body(second, latency))).await.status(),
            400
        );
        let accepted = world.with("PUT", &path, Some(&now), Some(body(second, latency))).await;
        assert_eq!(accepted.status(), 202);
        world.until(&id, "Running").await;
        let now = world.etag(&path).await;
        assert_eq!(world.with("DELETE", &path, Some(&now), None).await.status(), 202);
        world.until(&id, "gone").await;
    }
}

/// Sending the answer of GET back with PUT changes nothing.
#[tokio::test]
async fn reading_and_writing_back_changes_nothing() {
    let world = World::new(FAST).await;
    for (accesses, share) in [
        (json!(["cell-1"]), json!(5)),
        (json!(["cell-2"]), json!(0.25)),
        (json!(["cell-1", "cell-2"]), Value::Null),
        (json!([]), json!(12.5)),
    ] {
        let body = json!({"name": "rmw", "accesses": accesses, "share_percent": share,
            "serviceProfile": {"dLThptPerSlice": {"guaThpt": 1000}, "coverageArea": ["pier"], "anything": [1, 2]}});
        let (status, made) = world.call("POST", "/v1/slices", Some(body)).await;
        assert_eq!(status, 201, "{made}");
        let path = format!("/v1/slices/{}", made["id"].as_str().unwrap());
        let before = world.until(made["id"].as_str().unwrap(), "Running").await;
        let etag = world.etag(&path).await;
        let mut back = json!({});
        for key in ["name", "accesses", "share_percent", "serviceProfile"] {
            back[key] = before[key].clone();
        }
        assert_eq!((&back["accesses"], back["share_percent"].as_f64()), (&accesses, share.as_f64()));
        assert_eq!(world.with("PUT", &path, Some(&etag), Some(back)).await.status(), 202);
        let after = world.until(made["id"].as_str().unwrap(), "Running").await;
        for key in ["name", "accesses", "share_percent", "serviceProfile", "guarantees", "reserved"] {
            assert_eq!(after[key], before[key], "{key}");
        }
        assert_eq!(world.etag(&path).await, etag);
        world.call("DELETE", &path, None).await;
        world.until(made["id"].as_str().unwrap(), "gone").await;
    }
}

/// Katana's interface shows values set at the other one, and does not restore old values when it changes
/// something else.
#[tokio::test]
async fn katana_shows_and_keeps_values_of_the_native_interface() {
    let world = World::new(FAST).await;
    for (first, second) in [(5_000, 7_000), (20_000, 300), (9, 40_000)] {
        let nest = json!({"base_slice_descriptor": {"base_slice_des_id": "mix", "coverage": ["Pier"],
            "delay_tolerance": true, "network_DL_throughput": {"guaranteed": first},
            "qos": [{"qi": 7, "packet_delay_budget": 0.1}]}});
        let (status, id) = world.call("POST", "/api/slice", Some(nest)).await;
        assert_eq!(status, 201);
        let id = id.as_str().unwrap();
        let slice = world.until(id, "Running").await;
        let mut profile = slice["serviceProfile"].clone();
        profile["dLThptPerSlice"]["guaThpt"] = json!(second);
        profile["dLLatency"] = json!(33.0);
        let body = json!({"name": "renamed", "accesses": slice["accesses"], "serviceProfile": profile});
        assert_eq!(world.with("PUT", &format!("/v1/slices/{id}"), None, Some(body)).await.status(), 202);
        world.until(id, "Running").await;
        let (_, katana) = world.call("GET", &format!("/api/slice/{id}"), None).await;
        assert_eq!(katana["network_DL_throughput"]["guaranteed"].as_f64(), Some(second as f64), "{katana}");
        assert_eq!(katana["slice_name"], "renamed");
        let mtu = json!({"base_slice_descriptor": {"mtu": 1300}});
        let etag = world.etag(&format!("/v1/slices/{id}")).await;
        let modify = format!("/api/slice/{id}/modify");
        assert_eq!(world.with("POST", &modify, Some("\"old\""), Some(mtu.clone())).await.status(), 412);
        assert_eq!(world.with("POST", &modify, Some(&etag), Some(mtu)).await.status(), 200);
        let slice = world.until(id, "Running").await;
        assert_eq!(slice["guarantees"]["cell-1"]["downlink_bps"], second * 1000, "{slice}");
        assert_eq!(
            (&slice["serviceProfile"]["dLLatency"], &slice["name"]),
            (&json!(33.0), &json!("renamed"))
        );
        assert_eq!(slice["serviceProfile"]["dLMaxPktSize"], 1300);
        assert_ne!(world.etag(&format!("/api/slice/{id}")).await, etag);
        // Values that it sets itself are changed.
        let rate = json!({"base_slice_descriptor": {"network_DL_throughput": {"guaranteed": first}}});
        assert_eq!(world.with("POST", &modify, None, Some(rate)).await.status(), 200);
        let slice = world.until(id, "Running").await;
        assert_eq!(slice["guarantees"]["cell-1"]["downlink_bps"], first * 1000, "{slice}");
        world.call("DELETE", &format!("/v1/slices/{id}"), None).await;
        world.until(id, "gone").await;
    }
}

#[tokio::test]
async fn ues_and_documents_have_versions_checked_after_permissions() {
    let world = World::new(FAST).await;
    let id = world.slice("video", 1_000).await;
    let token = world.ue("phone", &[]).await;
    let path = "/v1/ues/phone";
    let old = world.etag(path).await;
    let place = format!("{path}/slices/{id}");
    assert_eq!(world.with("PUT", &place, Some(&old), Some(json!({}))).await.status(), 204);
    for (method, path, body) in [
        ("PUT", path.to_owned(), Some(json!({"slices": []}))),
        ("PUT", place.clone(), Some(json!({}))),
        ("DELETE", place, None),
        ("PUT", format!("{path}/policies"), Some(json!({"policies": []}))),
        ("POST", format!("{path}/token"), None),
        ("DELETE", path.to_owned(), None),
    ] {
        assert_eq!(world.with(method, &path, Some(&old), body).await.status(), 412, "{method} {path}");
    }
    assert_eq!(
        world.with("PUT", "/v1/ues/new", Some("*"), Some(json!({}))).await.status(),
        412,
        "there is none"
    );
    let now = world.etag(path).await;
    assert_eq!(world.with("POST", &format!("{path}/token"), Some(&now), None).await.status(), 200);
    assert_ne!(world.etag(path).await, now);
    // A UE's token is refused before versions are compared.
    let token = if world.ask_as(&token, "GET", "/v1/me", None).await.0 == 401 {
        world.ue("tv", &[]).await
    } else {
        token
    };
    let request = world.request("PUT", &format!("/v1/slices/{id}"), &token).header("if-match", "\"x\"");
    assert_eq!(request.json(&json!({"name": "x", "serviceProfile": {}})).send().await.unwrap().status(), 403);
    // Katana's documents.
    let base = "/api/base_slice_des/gold";
    let body = |mtu: u32| Some(json!({"base_slice_des_id": "gold", "mtu": mtu}));
    assert_eq!(world.with("PUT", base, None, body(1400)).await.status(), 201);
    let old = world.etag(base).await;
    assert_eq!(world.with("PUT", base, Some(&old), body(1300)).await.status(), 200);
    assert_eq!(world.with("PUT", base, Some(&old), body(1200)).await.status(), 412);
    assert_eq!(world.with("DELETE", base, Some(&old), None).await.status(), 412);
    let now = world.etag(base).await;
    assert_eq!(world.with("DELETE", base, Some(&now), None).await.status(), 200);
}

/// A stream is valid as long as the token with which it was opened; a UE has few streams, and others are not
/// affected.
#[tokio::test]
async fn streams_end_with_their_token_and_are_limited() {
    let world = World::new("[limits]\nue_burst = 10000\nstreams = 7\nstreams_per_ue = 3\n").await;
    let id = world.slice("video", 1_000).await;
    for end in ["rotated", "removed"] {
        let token = world.ue("phone", &[&id]).await;
        let open = async |token: &str| world.request("GET", "/v1/me/stream", token).send().await.unwrap();
        let mut streams = Vec::new();
        for _ in 0..3 {
            let mut stream = open(&token).await;
            assert_eq!(stream.status(), 200);
            let first = stream.chunk().await.unwrap().unwrap();
            assert!(first.starts_with(b"event: slices"), "{first:?}");
            streams.push(stream);
        }
        assert_eq!(open(&token).await.status(), 429);
        let other = world.ue("tv", &[&id]).await;
        let others: Vec<Response> = vec![open(&other).await];
        assert_eq!(others[0].status(), 200);
        if end == "rotated" {
            assert_eq!(world.call("POST", "/v1/ues/phone/token", None).await.0, 200);
        } else {
            assert_eq!(world.call("DELETE", "/v1/ues/phone", None).await.0, 204);
        }
        for mut stream in streams {
            let rest = async {
                while let Ok(Some(part)) = stream.chunk().await {
                    // No further events about slices; a keep-alive may be on its way.
                    assert!(!part.starts_with(b"event: slices"), "{part:?}");
                }
            };
            tokio::time::timeout(Duration::from_secs(20), rest).await.expect("it is closed");
        }
        assert_eq!(open(&token).await.status(), 401);
        drop(others);
        for ue in ["phone", "tv"] {
            world.call("DELETE", &format!("/v1/ues/{ue}"), None).await;
        }
        let end = Instant::now() + Duration::from_secs(20);
        while world._running.shared.streams.count() > 0 {
            assert!(Instant::now() < end, "streams stay");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// One UE cannot take the rest of a cell, and its growth is released when it leaves.
#[tokio::test]
async fn growth_for_one_ue_is_bounded_and_released() {
    let world = World::new("[limits]\nue_burst = 10000\nue_growth_percent = 20\n").await;
    let id = world.slice("video", 10_000).await;
    let token = world.ue("phone", &[&id]).await;
    let path = format!("/v1/slices/{id}");
    let etag = world.etag(&path).await;
    let needs = async |mbps: u64| {
        let body = json!({"slice": id, "dl_bps": mbps * 1_000_000});
        world.ask_as(&token, "POST", "/v1/me/needs", Some(body)).await
    };
    let (status, problem) = needs(31).await;
    assert_eq!(status, 409, "{problem}");
    assert!(problem["detail"].as_str().unwrap().contains("20000000"), "{problem}");
    assert_eq!(needs(30).await.0, 202);
    let slice = world.until(&id, "Running").await;
    assert_eq!(slice["guarantees"]["cell-1"]["downlink_bps"], 30_000_000, "{slice}");
    assert_eq!(slice["serviceProfile"]["dLThptPerSlice"]["guaThpt"], 10_000.0, "what was asked for");
    assert_eq!(slice["needs"]["phone"]["dl_bps"], 30_000_000);
    assert_eq!(world.etag(&path).await, etag);
    assert_eq!(world.ask_as(&token, "DELETE", "/v1/me", None).await.0, 204);
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        let (_, slice) = world.call("GET", &path, None).await;
        if slice["state"] == "Running" && slice["guarantees"]["cell-1"]["downlink_bps"] == 10_000_000 {
            break;
        }
        assert!(Instant::now() < end, "it keeps what it got: {slice}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A database that returns without its last change and then stores another one in its place: the view of the
/// first is not sent for the second.
#[tokio::test]
async fn a_change_that_replaces_a_lost_one_is_reported() {
    let world = World::new(FAST).await;
    let id = world.slice("video", 10_000).await;
    let token = world.ue("phone", &[&id]).await;
    let engine = world._running.shared.engine.clone();
    let crate::slice_manager::store::Store::Sqlite(pool, _) = engine.store() else { panic!() };
    let body = async || -> String {
        let sql = "SELECT body FROM anabranch_record WHERE id = 'phone'";
        sqlx::query_scalar(sql).fetch_one(pool).await.unwrap()
    };
    let push = async |uid: &str| {
        let policy = json!({"uid": uid, "properties": {"transport": {"value": "TCP", "precedence": 2}}});
        let list = json!({"policies": [policy]});
        assert_eq!(world.call("PUT", "/v1/ues/phone/policies", Some(list)).await.0, 204);
        world.ask_as(&token, "GET", "/v1/me", None).await.1["policies"][0]["uid"].clone()
    };
    let before = body().await;
    assert_eq!(push("first").await, "first");
    for sql in [
        "UPDATE anabranch_record SET revision = revision - 1, body = $1 WHERE id = 'phone'",
        "UPDATE anabranch_meta SET value = value - 1 WHERE name = 'revision' AND $1 <> ''",
    ] {
        sqlx::query(sql).bind(&before).execute(pool).await.unwrap();
    }
    assert_eq!(push("second").await, "second");
}
