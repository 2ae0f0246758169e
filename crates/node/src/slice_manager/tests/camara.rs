//! CAMARA's published examples, unchanged: Quality on Demand v1, Network Slice Booking v0.1.

use super::*;

const QOD: &str = "/quality-on-demand/v1";
const NSB: &str = "/network-slice-booking/v0.1/sessions";

async fn world() -> World {
    let places = "latitude = 31.22529\nlongitude = 121.48905\nrange_m = 200.0\n";
    World::new(&format!("{places}[callbacks]\nallow = [\"http://application-server.example/\"]\n")).await
}

#[tokio::test]
async fn quality_on_demand_takes_the_published_request() {
    let world = world().await;
    let id = world.slice("voice", 1_000).await;
    for name in ["+123456789", "123456789@domain.com"] {
        world.ue(name, &[]).await;
    }
    // Its createSession example, with a sink that is permitted here.
    let request = json!({
        "device": {
            "phoneNumber": "+123456789",
            "ipv4Address": {"publicAddress": "203.0.113.0", "publicPort": 59765},
            "ipv6Address": "2001:db8:85a3:8d3:1319:8a2e:370:7344"
        },
        "applicationServer": {"ipv4Address": "198.51.100.0/24"},
        "devicePorts": {"ranges": [{"from": 5010, "to": 5020}], "ports": [5060, 5070]},
        "applicationServerPorts": {"ranges": [{"from": 5010, "to": 5020}], "ports": [5060, 5070]},
        "qosProfile": "voice",
        "sink": "http://application-server.example/notifications",
        "sinkCredential": {"credentialType": "ACCESSTOKEN", "accessToken": "secret-of-the-sink",
            "accessTokenExpiresUtc": "2030-08-01T10:00:00Z", "accessTokenType": "bearer"},
        "duration": 3600
    });
    let (status, made) = world.call("POST", &format!("{QOD}/sessions"), Some(request.clone())).await;
    assert_eq!(status, 201, "{made}");
    assert_eq!((&made["qosStatus"], &made["duration"]), (&json!("AVAILABLE"), &json!(3600)), "{made}");
    assert_eq!((&made["devicePorts"], &made["device"]), (&request["devicePorts"], &request["device"]));
    assert!(!made.to_string().contains("secret-of-the-sink"), "{made}");
    let session = format!("{QOD}/sessions/{}", made["sessionId"].as_str().unwrap());
    let (_, ue) = world.call("GET", "/v1/ues/+123456789", None).await;
    assert_eq!(ue["slices"][0]["slice"], id.as_str(), "{ue}");
    // An extension by the requested duration, to at most a day in total.
    for (more, status, duration) in [(1800, 200, 5400), (86_400, 200, 86_400), (0, 400, 0), (86_401, 400, 0)]
    {
        let body = json!({"requestedAdditionalDuration": more});
        let (got, shown) = world.call("POST", &format!("{session}/extend"), Some(body)).await;
        assert_eq!(got, status, "{shown}");
        if status == 200 {
            assert_eq!(shown["duration"], duration, "{shown}");
        }
    }
    for (device, status, code, count) in [
        (json!({"phoneNumber": "+123456789"}), 200, "", 1),
        (json!({"networkAccessIdentifier": "123456789@domain.com"}), 200, "", 0),
        (json!({"phoneNumber": "+4999"}), 404, "IDENTIFIER_NOT_FOUND", 0),
        (json!({"ipv6Address": "2001:db8::1"}), 422, "UNSUPPORTED_IDENTIFIER", 0),
        (json!({}), 422, "MISSING_IDENTIFIER", 0),
    ] {
        let path = format!("{QOD}/retrieve-sessions");
        let (got, said) = world.call("POST", &path, Some(json!({"device": device}))).await;
        assert_eq!(got, status, "{device}: {said}");
        if status == 200 {
            assert_eq!(said.as_array().unwrap().len(), count, "{said}");
        } else {
            assert_eq!(said["code"], code, "{said}");
        }
    }
    for (key, value, code) in [
        ("devicePorts", json!({"ranges": [{"from": 9, "to": 8}]}), "INVALID_ARGUMENT"),
        ("devicePorts", json!({"ports": [70_000]}), "INVALID_ARGUMENT"),
        ("duration", json!(0), "INVALID_ARGUMENT"),
        ("sink", json!("http://elsewhere.example/"), "INVALID_ARGUMENT"),
    ] {
        let mut wrong = request.clone();
        wrong[key] = value;
        let (status, said) = world.call("POST", &format!("{QOD}/sessions"), Some(wrong)).await;
        assert_eq!((status, &said["code"]), (400, &json!(code)), "{key}: {said}");
    }
    assert_eq!(world.call("DELETE", &session, None).await.0, 204);
    assert_eq!(world.call("GET", &session, None).await.0, 404);
}

/// With an expired token no event would be accepted.
#[tokio::test]
async fn an_expired_sink_credential_is_refused() {
    let world = world().await;
    world.slice("voice", 1_000).await;
    world.ue("phone", &[]).await;
    let session = json!({"device": {"networkAccessIdentifier": "phone"}, "applicationServer": {},
        "qosProfile": "voice", "duration": 600});
    let end_date = crate::runtime::times::rfc3339(super::super::now_ms() + 600_000);
    let booking = json!({"serviceTime": {"endDate": end_date}, "sliceQosProfile": {"maxNumOfDevices": 1}});
    let sessions = format!("{QOD}/sessions");
    let now_ms = super::super::now_ms();
    let second_ago = crate::runtime::times::rfc3339(now_ms - 1_000);
    let hour_on = crate::runtime::times::rfc3339(now_ms + 3_600_000);
    for (expires, status) in [
        ("2024-12-01T12:00:00Z", 400),
        ("1969-12-31T23:59:59Z", 400),
        (second_ago.as_str(), 400),
        ("soon", 400),
        (hour_on.as_str(), 201),
        ("9999-12-31T23:59:59Z", 201),
    ] {
        for (path, request) in [(sessions.as_str(), &session), (NSB, &booking)] {
            let mut request = request.clone();
            request["sink"] = json!("http://application-server.example/notifications");
            request["sinkCredential"] = json!({"credentialType": "ACCESSTOKEN", "accessToken": "secret-of-the-sink",
                "accessTokenExpiresUtc": expires, "accessTokenType": "bearer"});
            let (got, said) = world.call("POST", path, Some(request)).await;
            assert_eq!(got, status, "{path}, {expires}: {said}");
            if status == 400 {
                assert_eq!(said["code"], "INVALID_CREDENTIAL", "{said}");
                let message = said["message"].as_str().unwrap();
                assert!(message.contains("accessTokenExpiresUtc"), "{message}");
            } else {
                let id = said["sessionId"].as_str().or(said["sliceId"].as_str()).unwrap();
                assert_eq!(world.call("DELETE", &format!("{path}/{id}"), None).await.0, 204);
            }
        }
    }
}

#[tokio::test]
async fn an_expired_session_is_shown_for_a_while() {
    let world = world().await;
    world.slice("voice", 1_000).await;
    world.ue("phone", &[]).await;
    let request = json!({"device": {"networkAccessIdentifier": "phone"}, "applicationServer": {},
        "qosProfile": "voice", "duration": 1});
    let (_, made) = world.call("POST", &format!("{QOD}/sessions"), Some(request)).await;
    let session = format!("{QOD}/sessions/{}", made["sessionId"].as_str().unwrap());
    let end = Instant::now() + Duration::from_secs(30);
    let over = loop {
        let (status, shown) = world.call("GET", &session, None).await;
        assert_eq!(status, 200, "{shown}");
        if shown["qosStatus"] == "UNAVAILABLE" {
            break shown;
        }
        assert!(Instant::now() < end, "{shown}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert_eq!(over["statusInfo"], "DURATION_EXPIRED", "{over}");
    assert_eq!(world.call("GET", "/v1/ues/phone", None).await.1["slices"], json!([]));
    let body = json!({"requestedAdditionalDuration": 60});
    let (status, said) = world.call("POST", &format!("{session}/extend"), Some(body)).await;
    let code = "QUALITY_ON_DEMAND.SESSION_EXTENSION_NOT_ALLOWED";
    assert_eq!((status, &said["code"]), (409, &json!(code)), "{said}");
    assert_eq!(world.call("DELETE", &session, None).await.0, 204);
}

#[tokio::test]
async fn an_expired_booking_is_shown_for_a_while() {
    let world = world().await;
    let end_date = crate::runtime::times::rfc3339(super::super::now_ms() + 2_500);
    let request = json!({"serviceTime": {"endDate": end_date}, "sliceQosProfile": {"maxNumOfDevices": 1}});
    let (status, made) = world.call("POST", NSB, Some(request)).await;
    assert_eq!(status, 201, "{made}");
    let id = made["sliceId"].as_str().unwrap().to_owned();
    world.until(&id, "gone").await;
    let booking = format!("{NSB}/{id}");
    let (status, shown) = world.call("GET", &booking, None).await;
    assert_eq!((status, &shown["status"]), (200, &json!("UNAVAILABLE")), "{shown}");
    assert_eq!(shown["statusInfo"], "DURATION_EXPIRED", "{shown}");
    assert_eq!(world.call("DELETE", &booking, None).await.0, 204);
}

#[tokio::test]
async fn a_session_whose_membership_is_removed_is_not_available() {
    let world = world().await;
    let id = world.slice("voice", 1_000).await;
    world.ue("phone", &[]).await;
    let session = session(&world, 600).await;
    let shown = async |status: &str| {
        let end = Instant::now() + Duration::from_secs(10);
        loop {
            let (_, shown) = world.call("GET", &session, None).await;
            if shown["qosStatus"] == status {
                return shown;
            }
            assert!(Instant::now() < end, "not {status}: {shown}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    shown("AVAILABLE").await;
    let place = format!("/v1/ues/phone/slices/{id}");
    assert_eq!(world.call("DELETE", &place, None).await.0, 204);
    assert_eq!(shown("UNAVAILABLE").await["statusInfo"], "NETWORK_TERMINATED");
    let more = json!({"requestedAdditionalDuration": 60});
    assert_eq!(world.call("POST", &format!("{session}/extend"), Some(more)).await.0, 409);
    assert_eq!(world.call("PUT", &place, Some(json!({}))).await.0, 204);
    shown("AVAILABLE").await;
    // Another UE of the same name does not inherit it.
    assert_eq!(world.call("DELETE", "/v1/ues/phone", None).await.0, 204);
    assert_eq!(world.call("GET", "/v1/ues/phone", None).await.0, 404);
    world.ue("phone", &[]).await;
    shown("UNAVAILABLE").await;
}

/// Creates a QoS session of the phone in the slice "voice"; returns its path.
async fn session(world: &World, duration: u64) -> String {
    let request = json!({"device": {"networkAccessIdentifier": "phone"}, "applicationServer": {},
        "qosProfile": "voice", "duration": duration});
    let (status, made) = world.call("POST", &format!("{QOD}/sessions"), Some(request)).await;
    assert_eq!(status, 201, "{made}");
    format!("{QOD}/sessions/{}", made["sessionId"].as_str().unwrap())
}

/// Ends a session by request, or waits until it expires.
async fn ended(world: &World, session: &str, by_request: bool) {
    if by_request {
        assert_eq!(world.call("DELETE", session, None).await.0, 204);
    }
    let end = Instant::now() + Duration::from_secs(30);
    while !matches!(world.call("GET", session, None).await, (404, _))
        && world.call("GET", session, None).await.1["statusInfo"] != "DURATION_EXPIRED"
    {
        assert!(Instant::now() < end, "{session}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn has_place(world: &World) -> bool {
    world.call("GET", "/v1/ues/phone", None).await.1["slices"] != json!([])
}

#[tokio::test]
async fn a_membership_ends_with_its_last_session() {
    let world = world().await;
    world.slice("voice", 1_000).await;
    world.ue("phone", &[]).await;
    for by_request in [true, false] {
        for order in [[0, 1], [1, 0]] {
            let seconds = if by_request { [60, 60] } else { [order[0] + 1, order[1] + 1].map(|s| 2 * s - 1) };
            let sessions = [session(&world, seconds[0]).await, session(&world, seconds[1]).await];
            let [first, last] = order.map(|n| &sessions[n as usize]);
            ended(&world, first, by_request).await;
            assert!(has_place(&world).await, "{order:?} {by_request}");
            ended(&world, last, by_request).await;
            assert!(!has_place(&world).await, "{order:?} {by_request}");
        }
    }
}

#[tokio::test]
async fn a_membership_set_by_the_operator_outlasts_the_sessions() {
    let world = world().await;
    let id = world.slice("voice", 1_000).await;
    world.ue("phone", &[]).await;
    let place = format!("/v1/ues/phone/slices/{id}");
    for by_request in [true, false] {
        for (path, body) in [(place.as_str(), json!({})), ("/v1/ues/phone", json!({"slices": [id]}))] {
            let sessions = [session(&world, 1).await, session(&world, 2).await];
            assert!([200, 204].contains(&world.call("PUT", path, Some(body)).await.0));
            for session in &sessions {
                ended(&world, session, by_request).await;
            }
            assert!(has_place(&world).await, "{path} {by_request}");
            // A membership that was removed during a session and is created again by the next session belongs
            // to the sessions.
            let first = session(&world, 60).await;
            assert_eq!(world.call("DELETE", &place, None).await.0, 204);
            let second = session(&world, 60).await;
            for session in [&first, &second] {
                assert!(has_place(&world).await, "{path} {by_request}");
                ended(&world, session, true).await;
            }
            assert!(!has_place(&world).await, "{path} {by_request}");
        }
    }
}

#[tokio::test]
async fn bookings_take_areas_and_delay_budgets() {
    let world = world().await;
    let circle = json!({"areaType": "CIRCLE", "center": {"latitude": 31.22529, "longitude": 121.48905}, "radius": 100.0});
    let polygon = json!({"areaType": "POLYGON", "boundary": [{"latitude": 31.2, "longitude": 121.4},
        {"latitude": 31.2, "longitude": 121.6}, {"latitude": 31.3, "longitude": 121.6}]});
    for area in [circle.clone(), polygon] {
        let request = json!({
            "serviceTime": {"startDate": "2024-06-01T12:00:00Z", "endDate": "2099-06-02T12:00:00.000Z"},
            "serviceArea": area,
            "sliceQosProfile": {
                "maxNumOfDevices": 5,
                "downStreamRatePerDevice": {"value": 10, "unit": "Mbps"},
                "upStreamRatePerDevice": {"value": 1000, "unit": "kbps"},
                "downStreamDelayBudget": {"value": 12, "unit": "Milliseconds"},
                "upStreamDelayBudget": {"value": 12, "unit": "Minutes"}
            }
        });
        let (status, made) = world.call("POST", NSB, Some(request)).await;
        assert_eq!(status, 201, "{made}");
        assert_eq!(made["serviceArea"], area, "{made}");
        let id = made["sliceId"].as_str().unwrap();
        let slice = world.until(id, "Running").await;
        // Only the access that reaches the area.
        assert_eq!(slice["accesses"], json!(["cell-2"]), "{slice}");
        assert_eq!(slice["guarantees"]["cell-2"]["downlink_bps"], 50_000_000);
        let profile = &slice["serviceProfile"];
        assert_eq!((&profile["dLLatency"], &profile["uLLatency"]), (&json!(12.0), &json!(10_000.0)));
        let session = format!("{NSB}/{}", made["sessionId"].as_str().unwrap());
        assert_eq!(world.call("DELETE", &session, None).await.0, 204);
        world.until(id, "gone").await;
    }
    let now = crate::slice_manager::now_ms();
    for (start_s, end_s, field) in [(120, 600, "startDate"), (-5, -9, "endDate"), (30, 20, "endDate")] {
        let at = |s: i64| crate::runtime::times::rfc3339(now.saturating_add_signed(s * 1000));
        let request = json!({"serviceTime": {"startDate": at(start_s), "endDate": at(end_s)},
            "serviceArea": circle, "sliceQosProfile": {"maxNumOfDevices": 1}});
        let (status, said) = world.call("POST", NSB, Some(request)).await;
        assert_eq!(status, 400, "{said}");
        assert!(said.to_string().contains(field), "{said}");
    }
    let mut far = circle;
    far["center"]["latitude"] = json!(-31.0);
    let request = json!({"serviceTime": {"startDate": "2024-06-01T12:00:00Z", "endDate": "2099-06-02T12:00:00Z"},
        "serviceArea": far, "sliceQosProfile": {"maxNumOfDevices": 1}});
    let (status, said) = world.call("POST", NSB, Some(request)).await;
    assert_eq!((status, &said["code"]), (400, &json!("INVALID_ARGUMENT")), "{said}");
    assert!(said["message"].as_str().unwrap().contains("no access reaches"), "{said}");
}

#[tokio::test]
async fn answers_have_the_correlator_of_the_request() {
    let world = world().await;
    for (given, status) in
        [(Some("b4333c46-49c0-4f62-80d7-f0ef930f1c46"), 404), (None, 404), (Some("a b"), 400)]
    {
        let mut request = world.request("GET", &format!("{QOD}/sessions/none"), OPERATOR);
        if let Some(given) = given {
            request = request.header("x-correlator", given);
        }
        let answer = request.send().await.unwrap();
        assert_eq!(answer.status(), status, "{given:?}");
        let back = answer.headers().get("x-correlator").map(|v| v.to_str().unwrap().to_owned());
        match (given, status) {
            (Some(given), 404) => assert_eq!(back.as_deref(), Some(given)),
            (None, _) => assert_eq!(back.unwrap().len(), 36),
            _ => assert_eq!(back, None),
        }
    }
}
