//! UEs' sessions at a UPF, and its failures.

use super::*;
use axum::extract::Path;
use axum::http::StatusCode;
use axum::routing::{delete, get};
use axum::{Json, Router};
use std::sync::{Arc, Mutex};

/// A simulated UPF agent with the answers to the next requests: the first of each list, the last one
/// repeatedly.
#[derive(Clone, Default)]
struct Upf(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    put: Vec<u16>,
    delete: Vec<u16>,
    /// Number of requests of each kind.
    made: u32,
    ended: u32,
    /// Public keys of its sessions, by UE.
    there: std::collections::BTreeMap<String, Value>,
}

fn next(answers: &mut Vec<u16>) -> (StatusCode, Json<Value>) {
    let status = if answers.len() > 1 { answers.remove(0) } else { answers[0] };
    (StatusCode::from_u16(status).unwrap(), Json(json!({"detail": "as the test says"})))
}

impl Upf {
    async fn world(&self, put_answers: &[u16], delete_answers: &[u16]) -> World {
        {
            let mut inner = self.0.lock().unwrap();
            (inner.put, inner.delete) = (put_answers.to_vec(), delete_answers.to_vec());
        }
        let (made, ended) = (self.clone(), self.clone());
        let make = async move |Path(ue): Path<String>, Json(body): Json<Value>| {
            let mut inner = made.0.lock().unwrap();
            inner.made += 1;
            let answer = next(&mut inner.put);
            if answer.0.is_success() {
                inner.there.insert(ue, body["public_key"].clone());
            }
            answer
        };
        let end = async move |Path(ue): Path<String>| {
            let mut inner = ended.0.lock().unwrap();
            inner.ended += 1;
            inner.there.remove(&ue);
            next(&mut inner.delete)
        };
        let list = self.clone();
        let list = async move || {
            let there = &list.0.lock().unwrap().there;
            let all: Vec<Value> =
                there.iter().map(|(ue, key)| json!({"ue": ue, "public_key": key})).collect();
            Json(json!({"total": all.len(), "sessions": all}))
        };
        let app = Router::new()
            .route("/v1/status", get(async || Json(json!({}))))
            .route("/v1/sessions", get(list))
            .route("/v1/sessions/{ue}", delete(end).put(make));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, app).await });
        World::new(&format!("[upf]\nagent = \"http://{at}\"\n")).await
    }

    fn made(&self) -> u32 {
        self.0.lock().unwrap().made
    }

    fn ended(&self) -> u32 {
        self.0.lock().unwrap().ended
    }
}

const KEYS: [&str; 2] =
    ["vmHhqE8tcZ4WAGqG4kP5IO2rCzYb1eN3mWvPc7yqC2o=", "YWxzbyAzMiBieXRlcywgd2hpY2ggaXMgYSBrZXkhISE="];

async fn put(world: &World) -> Value {
    put_key(world, KEYS[0]).await
}

async fn put_key(world: &World, key: &str) -> Value {
    let body = json!({"session": {"public_key": key}});
    let (status, ue) = world.call("PUT", "/v1/ues/phone", Some(body)).await;
    assert!(matches!(status, 200 | 201), "{ue}");
    ue
}

/// Waits until the UE's session is in a state; "gone": the UE no longer exists.
async fn until(world: &World, state: &str) {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        let (status, ue) = world.call("GET", "/v1/ues/phone", None).await;
        if ue["session_state"]["attachment"] == state || (status, state) == (404, "gone") {
            return;
        }
        assert!(Instant::now() < end, "not {state}: {ue}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_key_belongs_to_one_ue() {
    let upf = Upf::default();
    let world = upf.world(&[201], &[404]).await;
    put(&world).await;
    let body = json!({"session": {"public_key": KEYS[0]}});
    let (status, problem) = world.call("PUT", "/v1/ues/tablet", Some(body)).await;
    assert_eq!((status, &problem["field"]), (409, &json!("session.public_key")), "{problem}");
    assert_eq!(world.call("GET", "/v1/ues/tablet", None).await.0, 404);
}

#[tokio::test]
async fn a_temporarily_refused_session_is_retried() {
    let upf = Upf::default();
    let world = upf.world(&[503, 201], &[404]).await;
    assert_eq!(put(&world).await["session_state"]["attachment"], "pending");
    until(&world, "active").await;
    assert_eq!(upf.made(), 2);
    // Repeating the same request changes nothing.
    put(&world).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(upf.made(), 2);
    // A change is one request, so the UE is never without a session.
    put_key(&world, KEYS[1]).await;
    until(&world, "active").await;
    assert_eq!((upf.made(), upf.ended()), (3, 0));
}

#[tokio::test]
async fn a_refused_session_is_retried_at_once_on_request() {
    let upf = Upf::default();
    let world = upf.world(&[409, 409, 409, 201], &[404]).await;
    // The pause grows: by now the next attempt is some seconds away.
    put(&world).await;
    let end = Instant::now() + Duration::from_secs(20);
    while upf.made() < 3 {
        assert!(Instant::now() < end, "it is tried again by itself");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    until(&world, "failed").await;
    let began = Instant::now();
    assert_eq!(put(&world).await["session_state"]["attachment"], "pending");
    until(&world, "active").await;
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
}

/// A UE in the UPF's own configuration file is not the manager's to remove.
#[tokio::test]
async fn a_ue_that_the_upf_keeps_is_removed_from_the_manager() {
    let upf = Upf::default();
    let world = upf.world(&[409], &[409]).await;
    put(&world).await;
    until(&world, "failed").await;
    assert_eq!(world.call("DELETE", "/v1/ues/phone", None).await.0, 204);
    until(&world, "gone").await;
}

#[tokio::test]
async fn a_session_that_the_upf_has_lost_is_restored() {
    let upf = Upf::default();
    let world = upf.world(&[201], &[404]).await;
    put(&world).await;
    until(&world, "active").await;
    let another = async |change: &dyn Fn(&mut Inner)| {
        change(&mut upf.0.lock().unwrap());
        let end = Instant::now() + Duration::from_secs(20);
        while upf.0.lock().unwrap().there.get("phone") != Some(&json!(KEYS[0])) {
            assert!(Instant::now() < end, "{:?}", upf.0.lock().unwrap().there);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        until(&world, "active").await;
    };
    // The UPF restarts without its state; and another client changes the key of the session.
    another(&|inner| inner.there.clear()).await;
    another(&|inner| drop(inner.there.insert("phone".into(), json!("bm90IG91cnM=")))).await;
    assert_eq!((upf.made(), upf.ended()), (3, 0));
}
