//! Roles: the permissions of operators, readers and tenants, with fixed tokens and tokens of an authorization
//! server.

use super::*;
use crate::runtime::api::auth::tests::Issuing;
use crate::runtime::config::{FixedToken, RoleName};
use anabranch_slice::{Kind, Manager, Record, Write};

const READER: &str = "reader-token-reader-token";
const ACME: &str = "acme-token-acme-token-acme";

/// A slice manager with tokens of every kind.
async fn world(more: &str) -> (World, Issuing) {
    let folder = tempfile::tempdir().unwrap();
    let (issuing, oauth) = Issuing::new();
    let mut config = config(folder.path(), more);
    for (token, role, tenant) in
        [(READER, RoleName::Reader, None), (ACME, RoleName::Tenant, Some("acme".to_owned()))]
    {
        let file = folder.path().join(format!("{role:?}"));
        std::fs::write(&file, token).unwrap();
        config.api.tokens.push(FixedToken { file, role, tenant });
    }
    config.api.oauth = Some(oauth);
    (World::of(folder, &config).await, issuing)
}

const FAST: &str = "[limits]\ntenant_requests_per_s = 10000\nrefused_per_s = 10000\nue_requests_per_s = 10000\nue_burst = 10000\n";

fn new_slice(name: &str) -> Value {
    json!({"name": name, "serviceProfile": {"sst": 1, "dLThptPerSlice": {"guaThpt": 1000}}})
}

fn booking() -> Value {
    json!({"serviceTime": {}, "sliceQosProfile": {"maxNumOfDevices": 1}})
}

/// Every operation with a body that a tenant could send: method, path, body.
fn operations(id: &str) -> Vec<(String, String, Option<Value>)> {
    let openapi: Value = serde_json::from_str(&routes::description()).unwrap();
    let mut all = Vec::new();
    for (path, methods) in openapi["paths"].as_object().unwrap() {
        let at = ["{sessionId}", "{slice}", "{id}", "{ue}"]
            .iter()
            .fold(path.clone(), |at, hole| at.replace(hole, id));
        for method in methods.as_object().unwrap().keys() {
            let body = ["post", "put"].contains(&method.as_str()).then(|| match path.as_str() {
                "/v1/slices/{id}" => new_slice("taken"),
                "/quality-on-demand/v1/sessions/{sessionId}/extend" => {
                    json!({"requestedAdditionalDuration": 60})
                }
                _ => json!({}),
            });
            all.push((method.to_uppercase(), at.clone(), body));
        }
    }
    all
}

#[tokio::test]
async fn a_tenant_sees_and_changes_only_its_own() {
    let (world, issuing) = world(FAST).await;
    let all = "anabranch:slices:write network-slice-booking:sessions:create network-slice-booking:sessions:get \
               network-slice-booking:sessions:delete quality-on-demand:sessions:create quality-on-demand:sessions:read \
               quality-on-demand:sessions:update quality-on-demand:sessions:delete \
               quality-on-demand:sessions:retrieve-by-device";
    let rival = issuing.token("rival", all, 600);
    let acme = issuing.token("acme", all, 600);
    let ask = async |token: &str, method: &str, path: &str, body: Option<Value>| {
        world.ask_as(token, method, path, body).await
    };
    // One resource of each kind, of the tenant and of the operator.
    let mut theirs = Vec::new();
    for owner in [ACME, OPERATOR] {
        let (status, slice) = ask(owner, "POST", "/v1/slices", Some(new_slice("s"))).await;
        assert_eq!(status, 201, "{slice}");
        let slice = slice["id"].as_str().unwrap().to_owned();
        let nest = json!({"base_slice_descriptor": {"base_slice_des_id": "n", "delay_tolerance": true, "network_DL_throughput": {"guaranteed": 1000}}});
        let (status, katana) = ask(owner, "POST", "/api/slice", Some(nest)).await;
        assert_eq!(status, 201, "{katana}");
        let (status, booked) =
            ask(owner, "POST", "/network-slice-booking/v0.1/sessions", Some(booking())).await;
        assert_eq!(status, 201, "{booked}");
        world.until(&slice, "Running").await;
        let name = if owner == ACME { "phone" } else { "tablet" };
        world.ue(name, &[]).await;
        let qod = json!({"device": {"networkAccessIdentifier": name}, "applicationServer": {"ipv4Address": "192.0.2.1"},
            "qosProfile": slice, "duration": 60});
        let (status, session) = ask(owner, "POST", "/quality-on-demand/v1/sessions", Some(qod)).await;
        assert_eq!(status, 201, "{session}");
        let katana = katana.as_str().unwrap().to_owned();
        let of = |v: &Value| v["sessionId"].as_str().unwrap().to_owned();
        theirs.push([slice, katana, of(&booked), of(&session)]);
    }
    // The owner sees them with each of its tokens.
    for token in [ACME, &acme] {
        for (path, i) in [
            ("/v1/slices", 0),
            ("/api/slice", 1),
            ("/v1/slices", 2),
            ("/network-slice-booking/v0.1/sessions", 2),
            ("/quality-on-demand/v1/sessions", 3),
        ] {
            assert_eq!(ask(token, "GET", &format!("{path}/{}", theirs[0][i]), None).await.0, 200, "{path}");
        }
        let (_, list) = ask(token, "GET", "/v1/slices", None).await;
        assert_eq!((&list["total"], list["slices"].as_array().unwrap().len()), (&json!(3), 3), "{list}");
    }
    // A rival tries every operation with every identifier: the resources seem not to exist, and nothing
    // changes.
    let before = world.call("GET", "/v1/slices", None).await;
    for id in theirs.iter().flatten() {
        for (method, path, body) in operations(id) {
            let (status, answer) = ask(&rival, &method, &path, body.clone()).await;
            assert!(!answer.to_string().contains("acme"), "{method} {path}: {answer}");
            if path.contains(id.as_str()) {
                assert!([403, 404].contains(&status), "{method} {path}: {status} {answer}");
                // The same answer as for an identifier that never existed.
                let never = path.replace(id.as_str(), "never");
                let (other, text) = ask(&rival, &method, &never, body).await;
                assert_eq!(other, status, "{method} {path}");
                assert_eq!(
                    text.to_string(),
                    answer.to_string().replace(id.as_str(), "never"),
                    "{method} {path}"
                );
            }
        }
    }
    for (path, of) in [("/v1/slices", "slices"), ("/api/slice", "")] {
        let (status, list) = ask(&rival, "GET", path, None).await;
        let list = if of.is_empty() { list } else { list[of].clone() };
        assert_eq!((status, list), (200, json!([])), "{path}");
    }
    for name in ["phone", "tablet"] {
        let whose = json!({"device": {"networkAccessIdentifier": name}});
        let (status, list) =
            ask(&rival, "POST", "/quality-on-demand/v1/retrieve-sessions", Some(whose)).await;
        assert_eq!((status, list), (200, json!([])));
    }
    // Nor can it add a device to another tenant's slice, by identifier or by name.
    for profile in [theirs[0][0].as_str(), "s"] {
        let qod = json!({"device": {"networkAccessIdentifier": "phone"}, "applicationServer": {"ipv4Address": "192.0.2.1"},
            "qosProfile": profile, "duration": 60});
        let (status, refused) = ask(&rival, "POST", "/quality-on-demand/v1/sessions", Some(qod)).await;
        assert_eq!(status, 404, "{refused}");
    }
    let state = |(_, mut v): (u16, Value)| {
        for slice in v["slices"].as_array_mut().unwrap() {
            for key in ["state", "since_ms", "guarantees", "wanted", "reserved"] {
                slice.as_object_mut().unwrap().remove(key);
            }
        }
        v
    };
    assert_eq!(state(world.call("GET", "/v1/slices", None).await), state(before));
    // A change keeps the owner, whoever makes it.
    let id = &theirs[0][0];
    assert_eq!(world.call("PUT", &format!("/v1/slices/{id}"), Some(new_slice("other"))).await.0, 202);
    assert_eq!(world.until(id, "Running").await["owner"], "acme");
    assert_eq!(ask(&acme, "DELETE", &format!("/v1/slices/{id}"), None).await.0, 202);
    assert_eq!(ask(&rival, "DELETE", &format!("/v1/slices/{}", theirs[1][0]), None).await.0, 404);
}

#[tokio::test]
async fn every_operation_needs_its_scope_or_its_role() {
    let (world, issuing) = world(FAST).await;
    let openapi: Value = serde_json::from_str(&routes::description()).unwrap();
    let none = issuing.token("acme", "openid", 600);
    let reader = issuing.token("acme", "anabranch:reader", 600);
    let mut for_tenants = 0;
    for (path, methods) in openapi["paths"].as_object().unwrap() {
        let at = ["{sessionId}", "{slice}", "{id}", "{ue}"]
            .iter()
            .fold(path.clone(), |at, hole| at.replace(hole, "x"));
        for (method, operation) in methods.as_object().unwrap() {
            if path.starts_with("/v1/me") {
                continue;
            }
            let body = ["post", "put"].contains(&method.as_str()).then(|| json!({}));
            let method = method.to_uppercase();
            let send = async |token: &str| {
                let mut request = world.request(&method, &at, token);
                if let Some(body) = &body {
                    request = request.json(body);
                }
                let answer = request.send().await.unwrap();
                let challenge =
                    answer.headers().get("www-authenticate").map(|v| v.to_str().unwrap().to_owned());
                (answer.status().as_u16(), challenge.unwrap_or_default())
            };
            // RFC 6750 §3.1: the challenge names the sufficient scope.
            let (status, challenge) = send(&none).await;
            assert!(
                status == 403 && challenge.contains("error=\"insufficient_scope\""),
                "{method} {path}: {challenge}"
            );
            let scopes = operation["x-scopes"].as_array().cloned().unwrap_or_default();
            for scope in &scopes {
                let scope = scope.as_str().unwrap();
                assert!(challenge.contains(scope), "{method} {path}: {challenge}");
                let (status, _) = send(&issuing.token("acme", scope, 600)).await;
                assert!(status != 401 && status != 403, "{method} {path} with {scope}: {status}");
                for_tenants += 1;
            }
            // Tenants may execute only operations with a row; a fixed token has every scope of its role.
            assert_eq!(send(ACME).await.0 == 403, scopes.is_empty(), "{method} {path}");
            let reads = method == "GET" || path.ends_with("retrieve-sessions");
            for token in [READER, &reader] {
                assert_eq!(send(token).await.0 == 403, !reads, "{method} {path}");
            }
        }
    }
    assert!(for_tenants > 20, "{for_tenants}");
}

#[tokio::test]
async fn an_invalid_token_is_refused_as_in_the_rfc() {
    let (world, issuing) = world(FAST).await;
    let challenge = async |token: Option<&str>| {
        let mut request = world.http.get(format!("{}/v1/slices", world.base));
        if let Some(token) = token {
            request = request.bearer_auth(token);
        }
        let answer = request.send().await.unwrap();
        let challenge = answer.headers().get("www-authenticate").map(|v| v.to_str().unwrap().to_owned());
        (answer.status().as_u16(), challenge.unwrap_or_default())
    };
    assert_eq!(challenge(None).await, (401, "Bearer".to_owned()));
    let expired = issuing.token("acme", "anabranch:slices:read", -600);
    let good = issuing.token("acme", "anabranch:slices:read", 600);
    let (message, signature) = good.rsplit_once('.').unwrap();
    let touched = format!("{message}.{}", signature.chars().rev().collect::<String>());
    for token in ["nonsense-nonsense", &expired, "a.b.c", &touched] {
        let (status, said) = challenge(Some(token)).await;
        assert!(status == 401 && said.contains("error=\"invalid_token\""), "{said}");
    }
    assert!(challenge(Some(&expired)).await.1.contains("expired"));
    assert_eq!(challenge(Some(&good)).await.0, 200);
}

#[tokio::test]
async fn one_tenant_cannot_exhaust_the_capacity() {
    let more = "[limits]\ntenant_slices = 3\ntenant_requests_per_s = 30\nrefused_per_s = 1000\n";
    let (world, issuing) = world(more).await;
    let rival = issuing.token("rival", "anabranch:slices:write", 600);
    let make = async |token: &str| world.ask_as(token, "POST", "/v1/slices", Some(new_slice("s"))).await.0;
    let booked = world.ask_as(ACME, "POST", "/network-slice-booking/v0.1/sessions", Some(booking())).await;
    assert_eq!(booked.0, 201);
    assert_eq!([make(ACME).await, make(ACME).await, make(ACME).await], [201, 201, 409]);
    let (status, problem) =
        world.ask_as(ACME, "POST", "/network-slice-booking/v0.1/sessions", Some(booking())).await;
    assert!(status == 409 && problem["message"].as_str().unwrap().contains("3 slices"), "{problem}");
    assert_eq!(make(&rival).await, 201);
    // Requests are limited, too; the operator is not affected.
    let mut refused = 0;
    for _ in 0..200 {
        refused += u32::from(world.ask_as(ACME, "GET", "/v1/slices", None).await.0 == 429);
    }
    assert!(refused > 50, "{refused}");
    assert_eq!(world.ask_as(&rival, "GET", "/v1/slices", None).await.0, 200);
    assert_eq!(make(OPERATOR).await, 201);
}

/// Resources that a tenant creates and removes do not accumulate.
#[tokio::test]
async fn removed_resources_of_a_tenant_do_not_accumulate() {
    let (world, issuing) = world(&format!("{FAST}tenant_slices = 20\n")).await;
    let rival = issuing.token("rival", "network-slice-booking:sessions:create", 600);
    let bookings = "/network-slice-booking/v0.1/sessions";
    for _ in 0..20 {
        let nest = json!({"base_slice_descriptor": {"base_slice_des_id": "n", "delay_tolerance": true, "network_DL_throughput": {"guaranteed": 1000}}});
        let (status, slice) = world.ask_as(ACME, "POST", "/api/slice", Some(nest)).await;
        assert_eq!(status, 201, "{slice}");
        let (status, booked) = world.ask_as(ACME, "POST", bookings, Some(booking())).await;
        assert_eq!(status, 201, "{booked}");
        for id in [slice.as_str().unwrap(), booked["sliceId"].as_str().unwrap()] {
            assert_eq!(world.ask_as(ACME, "DELETE", &format!("/v1/slices/{id}"), None).await.0, 202);
            world.until(id, "gone").await;
        }
    }
    assert_eq!(world.call("GET", "/api/gst", None).await, (200, json!([])));
    // Ended bookings are shown for a while, and count.
    let (status, full) = world.ask_as(ACME, "POST", bookings, Some(booking())).await;
    assert!(status == 409 && full["message"].as_str().unwrap().contains("20 bookings"), "{full}");
    assert_eq!(world.ask_as(&rival, "POST", bookings, Some(booking())).await.0, 201);
    let engine = &world._running.shared.engine;
    let acmes = || {
        let of = |m: &Manager| {
            let all = m.documents(Kind::Booking).filter(|(_, v)| v["owner"] == "acme");
            all.map(|(id, v)| (id.to_owned(), v.clone())).collect::<Vec<_>>()
        };
        engine.read(of)
    };
    let end = Instant::now() + Duration::from_secs(30);
    while !acmes().iter().all(|(_, v)| v["ended_ms"].is_u64()) {
        assert!(Instant::now() < end, "{:?}", acmes());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // After that time.
    let older = |(id, mut v): (String, Value)| {
        v["ended_ms"] = json!(v["ended_ms"].as_u64().unwrap() - anabranch_slice::manager::camara::KEPT_MS);
        Write { kind: Kind::Booking, id, record: Some(Record::Document(v)) }
    };
    let writes = acmes().into_iter().map(older).collect();
    engine.commit(|_| Ok((writes, ()))).await.unwrap();
    while !acmes().is_empty() {
        assert!(Instant::now() < end, "{:?}", acmes());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(world.ask_as(ACME, "POST", bookings, Some(booking())).await.0, 201);
}

/// On CAMARA's paths every refusal has CAMARA's form and the correlator of the request.
#[tokio::test]
async fn refusals_have_the_form_of_the_requested_api() {
    let (world, issuing) = world(FAST).await;
    let none = issuing.token("acme", "openid", 600);
    let path = "/quality-on-demand/v1/sessions/x";
    for (token, method, path, status, code) in [
        ("wrong", "GET", path, 401, "UNAUTHENTICATED"),
        (&none, "GET", path, 403, "PERMISSION_DENIED"),
        (ACME, "GET", path, 404, "NOT_FOUND"),
        (OPERATOR, "PUT", path, 405, "METHOD_NOT_ALLOWED"),
        (ACME, "GET", "/quality-on-demand/v1/sessions/x?y=z", 400, "INVALID_ARGUMENT"),
        (ACME, "GET", "/quality-on-demand/v9/none", 404, "NOT_FOUND"),
    ] {
        let answer = world.request(method, path, token).header("x-correlator", "abc").send().await.unwrap();
        assert_eq!(answer.status().as_u16(), status, "{method} {path}");
        assert_eq!(answer.headers()["x-correlator"], "abc", "{method} {path}");
        assert_eq!(answer.headers()["content-type"], "application/json", "{method} {path}");
        assert_eq!(answer.headers().contains_key("www-authenticate"), status == 401 || status == 403);
        let error: Value = answer.json().await.unwrap();
        assert!(
            error["status"] == status && error["code"] == code && error["message"].is_string(),
            "{error}"
        );
    }
    let own = world.request("GET", "/v1/slices", "wrong").send().await.unwrap();
    assert_eq!(own.headers()["content-type"], "application/problem+json");
}
