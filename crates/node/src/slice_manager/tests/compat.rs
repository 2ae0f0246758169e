//! Compatibility with Katana and CAMARA.

use super::*;
use axum::routing::post;
use tokio::sync::mpsc;

/// A NEST with every key of Katana's model, and further ones.
const NEST: &str = include_str!("../../../../../packaging/examples/nest-full.json");
/// A NEST in the form of Katana's shortest published example.
const SHORT: &str = include_str!("../../../../../packaging/examples/nest-short.json");

#[tokio::test]
async fn a_nest_creates_a_slice_and_all_attributes_are_kept() {
    let world = World::new("").await;
    let text = |(status, value): (u16, Value)| (status, value.as_str().map(str::to_owned));
    let location = json!({"id": "Group0_Edge", "description": "an edge"});
    let (status, place) = text(world.call("POST", "/api/location", Some(location)).await);
    assert_eq!(status, 201);
    assert_eq!(
        world.call("GET", &format!("/api/location/{}", place.unwrap()), None).await.1["id"],
        "group0_edge"
    );
    let function = json!({"id": "core", "name": "core", "gen": 5, "func": 0, "shared": {"availability": false},
        "type": 0, "location": "Core", "pnf_list": [], "ns_list": [{"nsd-id": "x", "placement": 0}]});
    assert_eq!(world.call("POST", "/api/function", Some(function.clone())).await.0, 201);
    let (status, problem) = world.call("POST", "/api/function", Some(function)).await;
    assert_eq!((status, problem["field"].is_null()), (409, true), "{problem}");
    let policy = json!({"id": "p", "url": "http://ue", "type": "neat"});
    assert_eq!(world.call("POST", "/api/policy", Some(policy)).await.0, 201);
    assert_eq!(world.call("GET", "/api/policy", None).await.1[0]["component_id"], "p");

    for (document, sst) in [(SHORT, 1), (NEST, 2)] {
        let nest: Value = serde_json::from_str(document).unwrap();
        let (status, id) = text(world.call("POST", "/api/slice", Some(nest.clone())).await);
        assert_eq!(status, 201, "{id:?}");
        let id = id.unwrap();
        world.until(&id, "Running").await;
        let (_, mut stored) = world.call("GET", &format!("/api/gst/{id}"), None).await;
        stored.as_object_mut().unwrap().remove("_id");
        assert_eq!(stored, nest, "as it was sent");
        let (_, shown) = world.call("GET", &format!("/api/slice/{id}"), None).await;
        assert_eq!((shown["status"].as_str(), shown["sst"].as_u64()), (Some("Running"), Some(sst)));
        for part in ["base_slice_descriptor", "service_descriptor"] {
            for (key, value) in nest[part].as_object().unwrap() {
                assert_eq!(&shown[key], value, "{key} reaches the reader");
            }
        }
        assert_eq!(world.call("GET", &format!("/api/policy/neat/{id}"), None).await.1, shown);
        let (_, time) = world.call("GET", &format!("/api/slice/{id}/time"), None).await;
        assert!(time["Slice_Deployment_Time"].as_f64().unwrap() >= 0.0);
        assert_eq!(world.call("GET", &format!("/api/slice/{id}/errors"), None).await, (200, json!({})));
        let update = json!({"base_slice_descriptor": {"mtu": 1300}});
        assert_eq!(world.call("POST", &format!("/api/slice/{id}/modify"), Some(update)).await.0, 200);
        world.until(&id, "Running").await;
        assert_eq!(world.call("GET", &format!("/api/slice/{id}"), None).await.1["mtu"], 1300);
        assert_eq!(world.call("DELETE", &format!("/api/slice/{id}?force=true"), None).await.0, 200);
        world.until(&id, "gone").await;
    }
    assert_eq!(world.call("GET", "/api/slice", None).await.1, json!([]));
}

/// Katana's published example NESTs, unchanged: `KATANA=FOLDER` is a checkout of
/// medianetlab/katana-slice_manager. They cannot be distributed here; the NESTs above have the same form.
#[tokio::test]
async fn published_nests_are_accepted_unchanged() {
    let Some(katana) = std::env::var_os("KATANA") else { return };
    let folder = std::path::PathBuf::from(katana).join("templates/example_config_files");
    let read = |path: std::path::PathBuf| -> Value {
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
    };
    let world = World::new("").await;
    for (path, file) in [
        ("/api/location", "location/example_group0_edge.json"),
        ("/api/function", "Functions/example_demo5gcore.json"),
        ("/api/function", "Functions/example_demo5ggnb.json"),
        ("/api/policy", "SB_components/example_policy.json"),
    ] {
        let (status, answer) = world.call("POST", path, Some(read(folder.join(file)))).await;
        assert_eq!(status, 201, "{file}: {answer}");
    }
    let mut seen = 0;
    for entry in std::fs::read_dir(folder.join("nest")).unwrap() {
        let nest = read(entry.unwrap().path());
        let (status, id) = world.call("POST", "/api/slice", Some(nest.clone())).await;
        assert_eq!(status, 201, "{id}");
        let id = id.as_str().unwrap();
        world.until(id, "Running").await;
        let (_, shown) = world.call("GET", &format!("/api/policy/neat/{id}"), None).await;
        for part in ["base_slice_descriptor", "service_descriptor"] {
            for (key, value) in nest[part].as_object().unwrap() {
                assert_eq!(&shown[key], value, "{key} reaches the UE");
            }
        }
        assert_eq!(world.call("DELETE", &format!("/api/slice/{id}"), None).await.0, 200);
        world.until(id, "gone").await;
        seen += 1;
    }
    assert!(seen >= 2, "{seen}");
}

#[tokio::test]
async fn base_descriptors_are_used_and_cycles_are_refused() {
    let world = World::new("").await;
    let base = json!({"base_slice_des_id": "base", "network_DL_throughput": {"guaranteed": 1000},
        "delay_tolerance": true, "coverage": ["pier"], "colour": "red"});
    let (status, id) = world.call("POST", "/api/base_slice_des", Some(base)).await;
    assert_eq!(status, 201, "{id}");
    let nest = json!({"base_slice_descriptor": {"base_slice_des_id": "own", "base_slice_des_ref": "base"}});
    let (status, slice) = world.call("POST", "/api/slice", Some(nest)).await;
    assert_eq!(status, 201, "{slice}");
    assert_eq!(
        world.until(slice.as_str().unwrap(), "Running").await["guarantees"]["cell-1"]["downlink_bps"],
        1_000_000
    );
    let round = json!({"base_slice_des_id": "base", "base_slice_des_ref": "base"});
    let path = format!("/api/base_slice_des/{}", id.as_str().unwrap());
    let (status, problem) = world.call("PUT", &path, Some(round)).await;
    assert!(status == 400 && problem["detail"].as_str().unwrap().contains("circle"), "{problem}");
    assert_eq!(world.call("GET", &path, None).await.1["colour"], "red", "nothing was stored");
}

#[tokio::test]
async fn a_qos_session_is_a_temporary_membership_and_its_end_is_reported() {
    let (sender, mut events) = mpsc::channel::<Value>(8);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let sink = format!("http://{}/events/", listener.local_addr().unwrap());
    let take = async move |axum::Json(event): axum::Json<Value>| drop(sender.send(event).await);
    let app = axum::Router::new().route("/events/{*rest}", post(take));
    tokio::spawn(async move { axum::serve(listener, app).await });
    let world = World::new(&format!("[callbacks]\nallow = [\"{sink}\"]\n")).await;
    let id = world.slice("gold", 10_000).await;
    world.ue("phone", &[]).await;
    let session = |sink: &str, duration: u64| {
        json!({"device": {"networkAccessIdentifier": "phone"}, "applicationServer": {"ipv4Address": "192.0.2.1"},
            "qosProfile": "gold", "duration": duration, "sink": sink})
    };
    let mut told =
        async || tokio::time::timeout(Duration::from_secs(30), events.recv()).await.unwrap().unwrap();
    let path = "/quality-on-demand/v1/sessions";
    let (status, error) = world.call("POST", path, Some(session("http://169.254.169.254/latest", 9))).await;
    assert_eq!((status, error["code"].as_str()), (400, Some("INVALID_ARGUMENT")), "{error}");
    let (status, made) = world.call("POST", path, Some(session(&format!("{sink}x"), 3600))).await;
    assert_eq!((status, made["qosStatus"].as_str()), (201, Some("AVAILABLE")), "{made}");
    assert_eq!(world.call("GET", "/v1/ues/phone", None).await.1["slices"][0]["slice"], id.as_str());
    let at = format!("{path}/{}", made["sessionId"].as_str().unwrap());
    assert_eq!(world.call("DELETE", &at, None).await.0, 204);
    let event = told().await;
    assert_eq!(
        (event["data"]["statusInfo"].as_str(), event["specversion"].as_str()),
        (Some("DELETE_REQUESTED"), Some("1.0"))
    );
    let (status, made) = world.call("POST", path, Some(session(&format!("{sink}x"), 1))).await;
    assert_eq!(status, 201, "{made}");
    let event = told().await;
    assert_eq!(event["data"]["statusInfo"], "DURATION_EXPIRED", "{event}");
    let at = format!("{path}/{}", made["sessionId"].as_str().unwrap());
    assert_eq!(world.call("GET", &at, None).await.1["qosStatus"], "UNAVAILABLE", "shown for a while");
    assert_eq!(world.call("GET", "/v1/ues/phone", None).await.1["slices"], json!([]));

    let booking = json!({"serviceTime": {"endDate": "2099-01-01T00:00:00Z"}, "serviceArea": ["pier"],
        "sliceQosProfile": {"maxNumOfDevices": 4, "downStreamRatePerDevice": {"value": 5, "unit": "Mbps"}}});
    let path = "/network-slice-booking/v0.1/sessions";
    let (status, made) = world.call("POST", path, Some(booking.clone())).await;
    assert_eq!(status, 201, "{made}");
    let slice = world.until(made["sliceId"].as_str().unwrap(), "Running").await;
    assert_eq!(slice["guarantees"]["cell-1"]["downlink_bps"], 20_000_000);
    let at = format!("{path}/{}", made["sessionId"].as_str().unwrap());
    assert_eq!(world.call("GET", &at, None).await.1["status"], "AVAILABLE");
    let mut large = booking;
    large["sliceQosProfile"]["maxNumOfDevices"] = json!(40);
    assert_eq!(world.call("POST", path, Some(large)).await.1["code"], "CONFLICT");
    assert_eq!(world.call("DELETE", &at, None).await.0, 204);
    world.until(made["sliceId"].as_str().unwrap(), "gone").await;
}
