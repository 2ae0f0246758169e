//! Invalid requests: each gets a precise 4xx, and nothing is stored.

use super::*;

#[tokio::test]
async fn a_policy_that_no_ue_could_use_is_refused() {
    let world = World::new("").await;
    let id = world.slice("video", 10_000).await;
    let token = world.ue("phone", &[&id]).await;
    let tcp = json!({"uid": "a", "properties": {"transport": {"value": "TCP", "precedence": 2}}});
    let ursp = json!({"urspGuidance": [{"trafficDesc": {"domainDescs": ["a.example"]}, "routeSelParamSets": [{"snssai": {"sst": 1}}]}]});
    let good = json!([tcp, ursp]);
    let push = async |list: &Value| {
        world.call("PUT", "/v1/ues/phone/policies", Some(json!({"policies": list}))).await
    };
    assert_eq!(push(&good).await.0, 204);
    for (list, place, needle) in [
        (
            json!([tcp, {"uid": "b", "properties": {"x": {"value": 1, "precedence": 9}}}]),
            "policies[1]",
            "precedence",
        ),
        (
            json!([{"uid": "b", "properties": {"x": {"value": {"start": 9, "end": 1}}}}]),
            "policies[0]",
            "start",
        ),
        (json!([{"uid": "b", "priority": "high", "properties": {}}]), "policies[0]", "whole number"),
        (
            json!([tcp, {"uid": "A", "properties": {"transport": {"value": "UDP", "precedence": 2}}}]),
            "policies[1]",
            "twice",
        ),
        (json!([ursp, ursp]), "policies[1]", "twice"),
        (
            json!([{"urspGuidance": [{"routeSelParamSets": [{"snssai": {"sst": 1, "sd": "xyz"}}]}]}]),
            "policies[0]",
            "urspGuidance[0]",
        ),
        (json!([7]), "", "map"),
    ] {
        let (status, problem) = push(&list).await;
        assert_eq!(status, 400, "{list}: {problem}");
        if !place.is_empty() {
            assert_eq!(problem["field"], place, "{list}: {problem}");
        }
        assert!(problem["detail"].as_str().unwrap().contains(needle), "{list}: {problem}");
    }
    // Invalid requests for more capacity.
    for (needs, status, needle) in [
        (json!({"slice": id, "dl_bps": -1}), 400, "-1"),
        (json!({"slice": id, "dl_bps": "10 Mbit/s"}), 400, "10 Mbit/s"),
        (json!({"slice": id, "dl_bps": 2_000_000_000_000_u64}), 400, "at most"),
        (json!({"slice": id, "dl_kbps": 5}), 400, "dl_kbps"),
        (json!({"slice": "none", "dl_bps": 5}), 404, "none"),
        (json!({"slice": id, "dl_bps": 90_000_000}), 409, "80000000"),
    ] {
        let (got, problem) = world.ask_as(&token, "POST", "/v1/me/needs", Some(needs.clone())).await;
        assert_eq!(got, status, "{needs}: {problem}");
        assert!(problem["detail"].as_str().unwrap().contains(needle), "{needs}: {problem}");
    }
    assert_eq!(
        world.call("GET", "/v1/ues/phone", None).await.1["policies"],
        good,
        "what is wrong changes nothing"
    );
    assert_eq!(
        world.call("GET", &format!("/v1/slices/{id}"), None).await.1["serviceProfile"]["dLThptPerSlice"]["guaThpt"],
        10_000.0
    );
}

#[tokio::test]
async fn errors_are_reported_and_nothing_is_stored() {
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
        ("DELETE", "/api/slice/none?force=maybe", Value::Null, 400, "force"),
        ("DELETE", "/api/slice/none?force=", Value::Null, 400, "force"),
        ("GET", "/v1/slices?limit=-1", Value::Null, 400, "limit"),
        ("GET", "/v1/slices?limit=1&limit=2", Value::Null, 400, "limit"),
        ("GET", "/v1/slices?offset=99999999999", Value::Null, 400, "offset"),
        ("PUT", "/v1/ues/phone", json!({"session": {"public_key": "x"}}), 400, "session.public_key"),
        ("GET", "/v1/slices?limit=many", Value::Null, 400, "limit"),
    ];
    for (method, path, body, status, needle) in cases {
        let (got, problem) = world.call(method, path, (!body.is_null()).then(|| body.clone())).await;
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
    // The request is refused before it was sent completely, which the sender may see first.
    let large = raw(vec![b' '; 10 << 20], "application/json").await;
    assert!(large.is_err() || large.unwrap() == 413);
    for path in ["/api/slice", "/api/gst", "/api/location", "/api/function", "/api/base_slice_des"] {
        assert_eq!(world.call("GET", path, None).await, (200, json!([])), "{path}");
    }
    assert_eq!(world.call("GET", "/v1/ues", None).await.1["total"], 0);
    assert_eq!(world.call("GET", "/nothing", None).await.0, 404);
    assert_eq!(world.call("PATCH", "/v1/slices", None).await.0, 405);
}

/// Programs may differ on which value of a duplicate key they take (RFC 8259 §4), so such a key is refused
/// and named at every level. The place of a value with a wrong type is named, too.
#[tokio::test]
async fn duplicate_keys_are_refused_and_wrong_types_are_located() {
    let world = World::new("").await;
    for (method, path, body, field) in [
        ("POST", "/v1/slices", r#"{"name":"a","name":"b","serviceProfile":{}}"#, "name"),
        (
            "POST",
            "/v1/slices",
            r#"{"name":"a","serviceProfile":{"dLLatency":10,"dLLatency":20}}"#,
            "dLLatency",
        ),
        (
            "POST",
            "/v1/slices",
            r#"{"name":"a","serviceProfile":{"dLThptPerSlice":{"guaThpt":1,"guaThpt":5}}}"#,
            "guaThpt",
        ),
        ("POST", "/v1/slices", r#"{"name":"a","serviceProfile":{"zz":[{"k":1},{"k":1,"\u006b":2}]}}"#, "k"),
        (
            "POST",
            "/api/slice",
            r#"{"base_slice_descriptor":{"base_slice_des_id":"n","delay_tolerance":true,
                "network_DL_throughput":{"guaranteed":1},"mtu":1000,"mtu":1300}}"#,
            "mtu",
        ),
        ("PUT", "/v1/ues/phone", r#"{"session":{"public_key":"a","public_key":"b"}}"#, "public_key"),
        (
            "POST",
            "/v1/slices",
            r#"{"name":"a","serviceProfile":{"dLThptPerSlice":{"guaThpt":"1"}}}"#,
            "serviceProfile",
        ),
        ("POST", "/v1/slices", r#"{"name":"a","accesses":["c",5],"serviceProfile":{}}"#, "accesses[1]"),
        ("POST", "/v1/slices", r#"{"name":"a","share_percent":"5","serviceProfile":{}}"#, "share_percent"),
        ("PUT", "/v1/ues/phone", r#"{"slices":[null]}"#, "slices[0]"),
    ] {
        let request = world.request(method, path, OPERATOR).header("content-type", "application/json");
        let answer = request.body(body).send().await.unwrap();
        let status = answer.status().as_u16();
        let said: Value = serde_json::from_str(&answer.text().await.unwrap()).unwrap();
        assert_eq!((status, &said["field"]), (400, &json!(field)), "{path} {body}: {said}");
    }
    let (_, slices) = world.call("GET", "/v1/slices", None).await;
    assert_eq!(slices["total"], 0, "{slices}");
    assert_eq!(world.call("GET", "/v1/ues", None).await.1["total"], 0);
    // Not duplicates: keys within strings, and the same key in different objects.
    let body =
        json!({"name": "a", "serviceProfile": {"zz": [{"k": "k\":1,\"k"}, {"k": 1}], "k": {"k": {"k": 1}}}});
    let (status, said) = world.call("POST", "/v1/slices", Some(body)).await;
    assert_eq!(status, 201, "{said}");
}

#[test]
fn a_database_without_a_name_is_refused() {
    for (url, right) in
        [("sqlite:", false), ("sqlite://", false), ("sqlite:?mode=rwc", false), ("sqlite:x.db", true)]
    {
        let text = format!(
            "[manager]\ndatabase = \"{url}\"\n[[access]]\nname = \"a\"\ndownlink_bps = 1\nuplink_bps = 1\n"
        );
        let read = crate::runtime::config::parse::<SliceManagerConfig>("slice-manager.toml", &text);
        assert_eq!(read.is_ok(), right, "{url}: {read:?}");
    }
}
