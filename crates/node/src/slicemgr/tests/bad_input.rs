//! Whatever is wrong with a request: a precise 4xx, and nothing stored.

use super::*;

#[tokio::test]
async fn what_is_wrong_is_said_and_nothing_is_stored() {
    let world = World::new("").await;
    let nest = |key: &str, value: Value| {
        let mut base = json!({"base_slice_des_id": "a", "delay_tolerance": true, "coverage": ["pier"],
            "network_DL_throughput": {"guaranteed": 1000}});
        base[key] = value;
        json!({ "base_slice_descriptor": base })
    };
    let profile = |profile: Value| json!({"name": "a", "serviceProfile": profile});
    let cases = [
        (
            "POST",
            "/api/slice",
            nest("network_DL_throughput", json!({"guaranteed": "10 Mbit/s"})),
            400,
            "kbit/s",
        ),
        (
            "POST",
            "/api/slice",
            nest("network_UL_throughput", json!({"guaranteed": -1})),
            400,
            "network_UL_throughput",
        ),
        (
            "POST",
            "/api/slice",
            nest("ue_DL_throughput", json!({"guaranteed": 2, "maximum": 1})),
            400,
            "below the guaranteed",
        ),
        ("POST", "/api/slice", nest("base_slice_des_ref", json!("nothing")), 400, "\"nothing\""),
        ("POST", "/api/slice", nest("coverage", json!(["moon"])), 400, "no access serves \"moon\""),
        (
            "POST",
            "/api/slice",
            nest("network_DL_throughput", json!({"guaranteed": 101_000})),
            409,
            "bit/s downlink left",
        ),
        ("POST", "/api/slice", json!({}), 400, "base_slice_descriptor: is missing"),
        ("POST", "/api/slice", json!([]), 400, "must be an object"),
        ("POST", "/v1/slices", profile(json!({"dLThptPerSlice": {"guaThpt": -5}})), 400, "dLThptPerSlice"),
        ("POST", "/v1/slices", profile(json!({"dLThptPerSlice": {"guaranteed": 5}})), 400, "guaranteed"),
        ("POST", "/v1/slices", profile(json!({"dLLatency": 1e9})), 400, "milliseconds"),
        ("POST", "/v1/slices", json!({"name": "a b", "serviceProfile": {}}), 400, "letters"),
        ("POST", "/v1/slices", json!({"nome": "a", "serviceProfile": {}}), 400, "nome"),
        ("POST", "/api/slice/none/modify", json!({}), 404, "\"none\""),
        ("PUT", "/v1/slices/none", profile(json!({})), 404, "\"none\""),
        ("PUT", "/v1/ues/phone", json!({"slices": ["none"]}), 404, "\"none\""),
        ("PUT", "/v1/ues/phone/slices/none", json!({}), 404, "phone"),
        ("POST", "/api/location", json!({"name": "x"}), 400, "id is missing"),
        (
            "POST",
            "/api/function",
            json!({"id": "f", "gen": 3, "func": 0, "shared": {}, "type": 0, "location": "core"}),
            400,
            "gen must be 4 or 5",
        ),
        (
            "POST",
            "/api/function",
            json!({"id": "f", "gen": 5, "func": 0, "shared": {}, "type": 0, "location": "moon"}),
            400,
            "moon is not registered",
        ),
        ("POST", "/api/base_slice_des", json!({"mtu": 1500}), 400, "base_slice_des_id"),
        (
            "POST",
            "/network-slice-booking/v0.1/sessions",
            json!({"serviceTime": {"endDate": "1999-01-01T00:00:00Z"}, "sliceQosProfile": {}}),
            400,
            "past",
        ),
        (
            "POST",
            "/quality-on-demand/v1/sessions",
            json!({"device": {"networkAccessIdentifier": "x"}, "applicationServer": {}, "qosProfile": "none", "duration": 0}),
            400,
            "duration",
        ),
        ("DELETE", "/v1/slices/none?force=maybe", Value::Null, 400, "force"),
        ("GET", "/v1/slices?limit=many", Value::Null, 400, "limit"),
    ];
    for (method, path, body, status, needle) in cases {
        let (got, problem) = world.ask(method, path, (!body.is_null()).then(|| body.clone())).await;
        let text = problem.to_string();
        assert_eq!(got, status, "{method} {path} {body}: {text}");
        assert!(text.replace("\\\"", "\"").contains(needle), "{method} {path} {body}: {text}");
    }
    let raw = async |body: Vec<u8>, kind: &str| {
        let request = world.request("POST", "/api/slice", OPERATOR).header("content-type", kind).body(body);
        request.send().await.map(|a| a.status().as_u16())
    };
    assert_eq!(raw(b"{".to_vec(), "application/json").await.unwrap(), 400);
    assert_eq!(raw(b"{}".to_vec(), "text/plain").await.unwrap(), 415);
    assert_eq!(raw(b"[".repeat(100_000), "application/json").await.unwrap(), 400, "deep nesting");
    // It is refused before it was all sent; the sender may see that first.
    let large = raw(vec![b' '; 10 << 20], "application/json").await;
    assert!(large.is_err() || large.unwrap() == 413);
    for path in ["/api/slice", "/api/gst", "/api/location", "/api/function", "/api/base_slice_des"] {
        assert_eq!(world.ask("GET", path, None).await, (200, json!([])), "{path}");
    }
    assert_eq!(world.ask("GET", "/v1/ues", None).await.1["total"], 0);
    assert_eq!(world.ask("GET", "/nothing", None).await.0, 404);
    assert_eq!(world.ask("PATCH", "/v1/slices", None).await.0, 405);
}
