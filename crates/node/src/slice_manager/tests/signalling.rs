//! The view of UEs: their own slices, in few bytes, with updates.

use super::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[tokio::test]
async fn a_ue_sees_only_its_own_slices() {
    let world = World::new("").await;
    let (mine, other) = (world.slice("mine", 10_000).await, world.slice("other", 10_000).await);
    let token = world.ue("phone", &[&mine]).await;
    let (status, me) = world.ask_as(&token, "GET", "/v1/me", None).await;
    assert_eq!((status, me["slices"].as_array().unwrap().len()), (200, 1));
    assert_eq!(
        (me["slices"][0]["id"].as_str(), me["slices"][0]["latency_ms"].as_f64()),
        (Some(mine.as_str()), Some(12.0))
    );
    assert_eq!(world.ask_as(&token, "GET", &format!("/api/policy/neat/{mine}"), None).await.0, 200);
    assert_eq!(world.ask_as(&token, "GET", &format!("/api/policy/neat/{other}"), None).await.0, 403);
    let held = json!({"slices": [mine, other]});
    let (_, answer) = world.ask_as(&token, "PUT", "/v1/me", Some(held)).await;
    assert_eq!(answer["unknown"], json!([other]));
    assert!(world.call("GET", "/v1/ues/phone", None).await.1["registered_ms"].is_u64());
    let needs = |id: &str, bps: u64| json!({"slice": id, "dl_bps": bps});
    assert_eq!(world.ask_as(&token, "POST", "/v1/me/needs", Some(needs(&other, 1))).await.0, 404);
    assert_eq!(world.ask_as(&token, "POST", "/v1/me/needs", Some(needs(&mine, 1))).await.0, 200);
    assert_eq!(world.ask_as(&token, "POST", "/v1/me/needs", Some(needs(&mine, 40_000_000))).await.0, 202);
    world.until(&mine, "Running").await;
    let (_, me) = world.ask_as(&token, "GET", "/v1/me", None).await;
    assert_eq!(me["slices"][0]["dl_guaranteed_bps"], 40_000_000);
    assert_eq!(world.ask_as(&token, "DELETE", "/v1/me", None).await.0, 204);
    assert!(world.call("GET", "/v1/ues/phone", None).await.1["registered_ms"].is_null());
    // Secrets are never shown, and a new token invalidates the old one.
    let ue = world.call("GET", "/v1/ues/phone", None).await.1.to_string();
    assert!(!ue.contains(&token) && !ue.contains("token"), "{ue}");
    let renewed =
        world.call("POST", "/v1/ues/phone/token", None).await.1["token"].as_str().unwrap().to_owned();
    assert_eq!(world.ask_as(&token, "GET", "/v1/me", None).await.0, 401);
    assert_eq!(world.ask_as(&renewed, "GET", "/v1/me", None).await.0, 200);
    assert_eq!(world.call("DELETE", "/v1/ues/phone", None).await.0, 204);
    assert_eq!(world.ask_as(&renewed, "GET", "/v1/me", None).await.0, 401);
}

#[tokio::test]
async fn an_unchanged_poll_costs_at_most_200_bytes() {
    let world = World::new("").await;
    let id = world.slice("mine", 10_000).await;
    let token = world.ue("phone", &[&id]).await;
    let host = world.base.strip_prefix("http://").unwrap();
    let mut stream = tokio::net::TcpStream::connect(host).await.unwrap();
    let mut poll = async |etag: &str| {
        let seen = if etag.is_empty() { String::new() } else { format!("if-none-match: {etag}\r\n") };
        let request =
            format!("GET /v1/me HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {token}\r\n{seen}\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let (mut answer, mut buffer) = (String::new(), [0; 4096]);
        let complete = |answer: &str| {
            let (head, body) = answer.split_once("\r\n\r\n")?;
            let length = head.lines().find_map(|l| l.strip_prefix("content-length: ")?.parse().ok());
            (body.len() >= length.unwrap_or(0)).then_some(())
        };
        while complete(&answer).is_none() {
            let n = stream.read(&mut buffer).await.unwrap();
            assert!(n > 0, "{answer}");
            answer.push_str(&String::from_utf8_lossy(&buffer[..n]));
        }
        (request.len() + answer.len(), answer)
    };
    let (_, first) = poll("").await;
    assert!(first.starts_with("HTTP/1.1 200"), "{first}");
    let etag = first.lines().find_map(|l| l.strip_prefix("etag: ")).unwrap().to_owned();
    let (bytes, answer) = poll(&etag).await;
    assert!(answer.starts_with("HTTP/1.1 304"), "{answer}");
    assert!(bytes <= 200, "{bytes} bytes: {answer}");
    // The connection can be used further.
    assert_eq!(poll(&etag).await.0, bytes);
    let policies = json!({"policies": [{"uid": "p", "properties": {}}]});
    assert_eq!(world.call("PUT", "/v1/ues/phone/policies", Some(policies)).await.0, 204);
    let (_, changed) = poll(&etag).await;
    assert!(changed.starts_with("HTTP/1.1 200") && changed.contains("\"uid\":\"p\""), "{changed}");
}

#[tokio::test]
async fn a_stream_sends_changes_only() {
    let world = World::new("").await;
    let (mine, other) = (world.slice("mine", 10_000).await, world.slice("other", 10_000).await);
    let token = world.ue("phone", &[&mine]).await;
    let mut answer = world.request("GET", "/v1/me/stream", &token).send().await.unwrap();
    let mut text = String::new();
    let mut next = async || {
        loop {
            if let Some((event, rest)) = text.clone().split_once("\n\n") {
                text = rest.to_owned();
                if let Some(data) = event.lines().find_map(|l| l.strip_prefix("data: ")) {
                    return serde_json::from_str::<Value>(data).unwrap();
                }
            }
            let chunk = tokio::time::timeout(Duration::from_secs(30), answer.chunk()).await.unwrap().unwrap();
            text.push_str(&String::from_utf8_lossy(&chunk.expect("it goes on")));
        }
    };
    assert_eq!(next().await["slices"][0]["dl_guaranteed_bps"], 10_000_000);
    let body = |name: &str, kbps: u64| json!({"name": name, "accesses": ["cell-1"], "serviceProfile": {"sst": 1, "dLThptPerSlice": {"guaThpt": kbps}}});
    assert_eq!(world.call("PUT", &format!("/v1/slices/{other}"), Some(body("other", 20_000))).await.0, 202);
    world.until(&other, "Running").await;
    assert_eq!(world.call("PUT", &format!("/v1/slices/{mine}"), Some(body("mine", 30_000))).await.0, 202);
    let mut seen = Vec::new();
    loop {
        let view = next().await;
        assert_eq!(view["slices"][0]["id"], mine.as_str());
        seen.push(view["slices"][0]["dl_guaranteed_bps"].as_u64().unwrap());
        if seen.last() == Some(&30_000_000) && view["slices"][0]["state"] == "Running" {
            break;
        }
    }
    assert!(seen.iter().all(|bps| [10_000_000, 30_000_000].contains(bps)), "{seen:?}");
}

#[tokio::test]
async fn requests_above_the_rate_limit_are_refused() {
    let world = World::new("[limits]\nue_requests_per_s = 1\nue_burst = 3\nrefused_per_s = 2\n").await;
    let (phone, tv) = (world.ue("phone", &[]).await, world.ue("tv", &[]).await);
    let mut last = 0;
    for _ in 0..20 {
        last = world.ask_as(&phone, "GET", "/v1/me", None).await.0;
        if last == 429 {
            break;
        }
    }
    assert_eq!(last, 429);
    assert_eq!(world.ask_as(&tv, "GET", "/v1/me", None).await.0, 200);
    let all = (0..20).map(|_| world.ask_as("wrong", "GET", "/v1/me", None));
    let refused = futures_util::future::join_all(all).await;
    assert!(refused.iter().any(|(s, _)| *s == 429) && refused.iter().all(|(s, _)| [401, 429].contains(s)));
    assert_eq!(world.call("GET", "/v1/ues", None).await.0, 200);
}

/// Health checks are answered, however many clients send wrong tokens or the same request.
#[tokio::test]
async fn refused_clients_do_not_block_health_checks() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config(folder.path(), "[limits]\nrefused_per_s = 2\n");
    (config.api.connections, config.api.connections_per_peer) = (1000, 1000);
    let world = World::of(folder, &config).await;
    let wrong = (0..50).map(|_| world.ask_as("wrong", "GET", "/v1/slices", None));
    let refused = futures_util::future::join_all(wrong).await;
    assert!(refused.iter().any(|(status, _)| *status == 429), "{refused:?}");
    let health = async || {
        let answer = world.http.get(format!("{}/healthz", world.base)).send().await.unwrap();
        (answer.status().as_u16(), answer.json::<Value>().await.unwrap())
    };
    let all = futures_util::future::join_all((0..200).map(|_| health())).await;
    assert!(all.iter().all(|said| *said == (200, json!({"status": "ok"}))), "{all:?}");
}
