use super::request::RequestSender;
use super::routes::{Shared, description};
use super::serve::router;
use super::*;
use axum::http::StatusCode;
use std::sync::Arc;
use tokio::sync::mpsc;

/// A simulated control loop with one session, `phone`.
async fn control_loop(mut asks: mpsc::Receiver<ControlRequest>) {
    let session = |name: &str| Session {
        ue: name.to_owned(),
        public_key: String::new(),
        addresses: vec!["10.45.0.2".into()],
        connected: true,
        tx_packets: 1,
        tx_bytes: 2,
        rx_packets: 3,
        rx_bytes: 4,
        paths: Vec::new(),
        uses: Vec::new(),
        coded: None,
    };
    while let Some(ask) = asks.recv().await {
        match ask {
            ControlRequest::Session(name, reply) if name == "phone" => drop(reply.send(Ok(session("phone")))),
            ControlRequest::Session(name, reply) => {
                drop(reply.send(Err(Problem::not_found(
                    "session",
                    &name,
                    "list them with GET /v1/sessions",
                ))));
            }
            ControlRequest::Create(ue, reply) => drop(reply.send(Ok(session(&ue.name)))),
            ControlRequest::Sessions { offset, limit, reply } => {
                assert_eq!((offset, limit), (5, 1000));
                drop(reply.send(Ok(SessionList { total: 1, sessions: vec![session("phone")] })));
            }
            ControlRequest::SetRules(rules, reply) => drop(reply.send(Ok(Rules { rules, uses: Vec::new() }))),
            ControlRequest::Put(ue, reply) => drop(reply.send(Ok((session(&ue.name), true)))),
            ControlRequest::Delete(_, reply) => drop(reply.send(Err(Problem::not_here("no", "ask the UPF")))),
            ControlRequest::ResetClock(_, reply) => {
                drop(reply.send(Err(Problem::not_here("no", "ask the UPF"))))
            }
            _ => {}
        }
    }
}

async fn start(token: Option<&str>) -> (String, EventLog) {
    start_with(token, None).await
}

pub async fn start_with(token: Option<&str>, taps: Option<Arc<crate::ue::taps::Taps>>) -> (String, EventLog) {
    let (sender, asks) = mpsc::channel(8);
    tokio::spawn(control_loop(asks));
    let events = EventLog::default();
    let certificates = Arc::default();
    let shared = Shared { control: RequestSender::new(sender), events: events.clone(), taps, certificates };
    let guarded = Guarded { by_token: token.is_some(), changes_without_token: true, ..Guarded::default() };
    let mut server = Server::default();
    let at = super::super::config::Listen::Tcp("127.0.0.1:0".parse().unwrap());
    let address = server
        .listen(&at, router(Agent::Upf, shared, token.map(Access::of_operator)), guarded)
        .await
        .unwrap()
        .unwrap();
    // The server runs until the end of the test process.
    std::mem::forget(server);
    (format!("http://{address}"), events)
}

#[test]
fn the_committed_description_is_current() {
    crate::testing::is_committed("agent.json", &description());
}

#[tokio::test]
async fn requests_are_answered_and_errors_name_field_and_remedy() {
    let (base, _) = start(None).await;
    let client = reqwest::Client::new();
    let get = async |path: &str| client.get(format!("{base}{path}")).send().await.unwrap();

    let session: Session = get("/v1/sessions/phone").await.json().await.unwrap();
    assert_eq!(session.addresses, ["10.45.0.2"]);
    let list: SessionList = get("/v1/sessions?offset=5&limit=100000").await.json().await.unwrap();
    assert_eq!(list.total, 1);

    let missing = get("/v1/sessions/tablet").await;
    assert_eq!(missing.status(), StatusCode::NOT_FOUND);
    assert_eq!(missing.headers()["content-type"], "application/problem+json");
    let problem: Problem = missing.json().await.unwrap();
    assert!(problem.detail.contains("tablet") && problem.remedy.contains("/v1/sessions"), "{problem:?}");
    assert_eq!(get("/v2").await.json::<Problem>().await.unwrap().status, 404);
    let wrong_method = client.put(format!("{base}/v1/status")).send().await.unwrap();
    assert_eq!(wrong_method.json::<Problem>().await.unwrap().status, 405);

    let post = async |body: &'static str| {
        let request = client.post(format!("{base}/v1/sessions")).header("content-type", "application/json");
        request.body(body).send().await.unwrap()
    };
    let key = r#"{"name":"tv","public_key":"vmHhqE8tcZ4WAGqG4kP5IO2rCzYb1eN3mWvPc7yqC2o="}"#;
    assert_eq!(post(key).await.status(), StatusCode::CREATED);
    let unknown: Problem = post(r#"{"name":"tv","pubic_key":"x"}"#).await.json().await.unwrap();
    assert_eq!((unknown.status, unknown.field.as_deref()), (422, Some("pubic_key")), "{unknown:?}");
    assert_eq!(post("{").await.json::<Problem>().await.unwrap().status, 400);

    let rules = r#"{"rules":[{"name":"all","steering":{"mode":"redundant"}}]}"#;
    let put = client.put(format!("{base}/v1/rules")).header("content-type", "application/json").body(rules);
    let rules: Rules = put.send().await.unwrap().json().await.unwrap();
    assert_eq!(rules.rules[0].steering.name(), "redundant");
    let openapi: serde_json::Value = get("/openapi.json").await.json().await.unwrap();
    assert!(openapi["paths"]["/v1/sessions/{ue}"]["delete"].is_object());
}

/// A loopback port without a token: read-only, with names of this machine, and not for pages of other sites.
#[tokio::test]
async fn a_port_without_token_refuses_browsers() {
    let (sender, asks) = mpsc::channel(8);
    tokio::spawn(control_loop(asks));
    let folder = tempfile::tempdir().unwrap();
    let unix = format!("unix:{}/a.sock", folder.path().display());
    for (listen, changes) in
        [("127.0.0.1:0", false), ("127.0.0.1:0", true), ("[::1]:0", false), (&unix, false)]
    {
        let (control, certificates) = (RequestSender::new(sender.clone()), Arc::default());
        let shared = Shared { control, events: EventLog::default(), taps: None, certificates };
        let mut server = Server::default();
        let guarded = Guarded { changes_without_token: changes, ..Guarded::default() };
        let at =
            server.listen(&listen.parse().unwrap(), router(Agent::Upf, shared, None), guarded).await.unwrap();
        let mut client = reqwest::Client::builder().no_proxy();
        if let Some(path) = listen.strip_prefix("unix:") {
            client = client.unix_socket(std::path::PathBuf::from(path));
        }
        let client = client.build().unwrap();
        let base = at.map_or("http://x".to_owned(), |at| format!("http://{at}"));
        let ask = async |method: &str, path: &str, headers: &[(&str, &str)]| {
            let mut request = client.request(method.parse().unwrap(), format!("{base}{path}"));
            for (name, value) in headers {
                request = request.header(*name, *value);
            }
            request.send().await.unwrap().status().as_u16()
        };
        // A browser cannot reach a Unix socket.
        let (refused, change) =
            if at.is_some() { (403, if changes { 404 } else { 403 }) } else { (200, 404) };
        for (headers, status) in [
            (&[][..], 200),
            (&[("host", "localhost:99")], 200),
            (&[("host", "evil.example")], refused),
            (&[("origin", "http://evil.example")], refused),
            (&[("sec-fetch-site", "cross-site")], refused),
        ] {
            assert_eq!(ask("GET", "/v1/sessions/phone", headers).await, status, "{listen} {headers:?}");
            assert_eq!(ask("GET", "/openapi.json", headers).await, status, "{listen} {headers:?}");
            let deleted = ask("DELETE", "/v1/sessions/phone", headers).await;
            assert_eq!(
                deleted == 403,
                at.is_some() && (status == 403 || change == 403),
                "{listen} {headers:?}: {deleted}"
            );
        }
    }
}

#[tokio::test]
async fn a_configured_token_is_required() {
    let (base, _) = start(Some("correct horse battery")).await;
    let client = reqwest::Client::new();
    let get = async |token: Option<&str>| {
        let mut request = client.get(format!("{base}/v1/sessions/phone"));
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        request.send().await.unwrap().status()
    };
    assert_eq!(get(None).await, StatusCode::UNAUTHORIZED);
    assert_eq!(get(Some("correct horse batterz")).await, StatusCode::UNAUTHORIZED);
    assert_eq!(get(Some("correct horse battery")).await, StatusCode::OK);
    for scheme in ["bearer", "BEARER", "Bearer  "] {
        let request = client.get(format!("{base}/v1/sessions/phone"));
        let request = request.header("authorization", format!("{scheme} correct horse battery"));
        assert_eq!(request.send().await.unwrap().status(), StatusCode::OK, "{scheme}");
    }
    // On every existing path, and on unknown ones.
    let openapi: serde_json::Value = serde_json::from_str(&description()).unwrap();
    let paths = openapi["paths"].as_object().unwrap().iter();
    let all = paths.flat_map(|(path, methods)| methods.as_object().unwrap().keys().map(move |m| (path, m)));
    let mut seen = 0;
    for (path, method) in all.chain([(&"/openapi.json".into(), &"get".into()), (&"/x".into(), &"get".into())])
    {
        let method: reqwest::Method = method.to_uppercase().parse().unwrap();
        let request = || client.request(method.clone(), format!("{base}{}", path.replace(['{', '}'], "")));
        for request in
            [request(), request().bearer_auth("correct horse batterz"), request().basic_auth("x", Some("y"))]
        {
            assert_eq!(request.send().await.unwrap().status(), StatusCode::UNAUTHORIZED, "{method} {path}");
        }
        seen += 1;
    }
    assert!(seen > 35, "{seen}");
}

#[tokio::test]
async fn events_arrive_without_gap_after_a_given_id() {
    let (base, log) = start(None).await;
    let event = |message: &str| Event {
        id: 0,
        time_unix_ms: 0,
        kind: "path-up".into(),
        ue: None,
        access: Some("5g".into()),
        rule: None,
        message: message.into(),
    };
    for i in 1..=300 {
        log.push(event(&i.to_string()));
    }
    let client = reqwest::Client::new();
    let mut response =
        client.get(format!("{base}/v1/events")).header("last-event-id", "298").send().await.unwrap();
    log.push(event("late"));
    let mut text = String::new();
    while !text.contains("late") {
        text.push_str(&String::from_utf8_lossy(&response.chunk().await.unwrap().unwrap()));
    }
    let ids: Vec<&str> = text.lines().filter_map(|l| l.strip_prefix("id: ")).collect();
    assert_eq!(ids, ["299", "300", "301"]);
    assert_eq!(log.since(0).0.len(), 256);
    assert_eq!((log.since(300).0.len(), log.since(301).0.len()), (1, 0));
    // An id of an earlier run.
    assert_eq!(log.since(302).0.len(), 256);
}

#[test]
fn every_kind_of_events_is_documented_and_every_documented_one_exists() {
    use std::collections::BTreeSet;
    let page = include_str!("../../../../../docs/operations.md");
    let rows = page.split("| event | it means |").nth(1).unwrap().lines().skip(2);
    let cells = rows.take_while(|line| line.starts_with('|')).map(|line| line.split('|').nth(1).unwrap());
    let documented: BTreeSet<&str> = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
    let told: BTreeSet<&str> = super::EventKind::NAMES.iter().copied().collect();
    assert_eq!(documented, told);
    // Also in the description of the REST interface.
    let described = description();
    let missing: Vec<_> = told.iter().filter(|kind| !described.contains(&format!("`{kind}`"))).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn every_request_is_documented_and_every_documented_one_exists() {
    use std::collections::BTreeSet;
    let page = include_str!("../../../../../docs/operations.md");
    let rows = page.split("| request | answer |").nth(1).unwrap().lines().skip(2);
    let cells = rows.take_while(|line| line.starts_with('|')).map(|line| line.split('|').nth(1).unwrap());
    let documented: BTreeSet<String> = cells
        .flat_map(|cell| cell.split('`').skip(1).step_by(2))
        .map(|request| request.split('?').next().unwrap().to_owned())
        .collect();
    let openapi: serde_json::Value = serde_json::from_str(&description()).unwrap();
    let paths = openapi["paths"].as_object().unwrap().iter();
    let served: BTreeSet<String> = paths
        .flat_map(|(path, methods)| {
            methods.as_object().unwrap().keys().map(move |method| format!("{} {path}", method.to_uppercase()))
        })
        .collect();
    assert_eq!(documented, served);
}

/// A listener of an agent with tokens of every kind: operator, reader, and authorization server.
#[tokio::test]
async fn roles_are_enforced_and_a_stream_ends_with_its_token() {
    use super::super::config::{Api, FixedToken, RoleName};
    let folder = tempfile::tempdir().unwrap();
    let (issuing, oauth) = super::auth::tests::Issuing::new();
    let file = |name: &str, token: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, token).unwrap();
        path
    };
    let (operator, reader) = ("operator-operator-operator", "reader-reader-reader");
    let api = Api {
        listen: super::super::config::Listen::Tcp("127.0.0.1:0".parse().unwrap()),
        token_file: Some(file("operator", operator)),
        tokens: vec![FixedToken { file: file("reader", reader), role: RoleName::Reader, tenant: None }],
        oauth: Some(oauth),
        ..Api::unix("")
    };
    let (sender, asks) = mpsc::channel(8);
    tokio::spawn(control_loop(asks));
    let (control, certificates, events) = (RequestSender::new(sender), Arc::default(), EventLog::default());
    let shared = Shared { control, events, taps: None, certificates };
    let mut server = Server::default();
    let router = router(Agent::Upf, shared, Access::new(&api).unwrap());
    let at = server.listen(&api.listen, router, Guarded::of(&api).unwrap()).await.unwrap().unwrap();
    let http = reqwest::Client::new();
    let ask = async |token: &str, method: &str, path: &str| {
        let request = http.request(method.parse().unwrap(), format!("http://{at}{path}"));
        let answer = request.bearer_auth(token).send().await.unwrap();
        let said = answer.headers().get("www-authenticate").map(|v| v.to_str().unwrap().to_owned());
        (answer.status().as_u16(), said.unwrap_or_default())
    };
    let granted = |scope: &str| issuing.token("acme", scope, 600);
    for (token, reads, changes) in [
        (operator.to_owned(), true, true),
        (granted("anabranch:operator"), true, true),
        (reader.to_owned(), true, false),
        (granted("anabranch:reader"), true, false),
        (granted("anabranch:slices:write"), false, false),
        (granted(""), false, false),
    ] {
        for (method, path, may) in [
            ("GET", "/v1/sessions/phone", reads),
            ("GET", "/openapi.json", reads),
            ("PUT", "/v1/sessions/phone", changes),
            ("DELETE", "/v1/sessions/phone", changes),
            ("POST", "/v1/sessions/phone/reset-clock", changes),
        ] {
            let (status, said) = ask(&token, method, path).await;
            assert_eq!(status != 403 && status != 401, may, "{method} {path}: {status}");
            assert_eq!(said.contains("insufficient_scope"), !may, "{method} {path}: {said}");
        }
    }
    let (status, said) = ask(&issuing.token("acme", "anabranch:operator", -600), "GET", "/v1/status").await;
    assert!(status == 401 && said.contains("invalid_token"), "{said}");
    // A token that is valid for one more second within the leeway: its stream ends by itself.
    let short = issuing.token("acme", "anabranch:reader", -28);
    let request = http.get(format!("http://{at}/v1/events")).bearer_auth(short);
    let mut stream = request.send().await.unwrap();
    assert_eq!(stream.status(), StatusCode::OK);
    let ended = async { while stream.chunk().await.unwrap().is_some() {} };
    tokio::time::timeout(std::time::Duration::from_secs(10), ended).await.unwrap();
    // An agent describes only its own paths.
    let description = http.get(format!("http://{at}/openapi.json")).bearer_auth(reader).send().await.unwrap();
    let description: serde_json::Value = description.json().await.unwrap();
    assert!(description["paths"]["/v1/sessions"].is_object() && description["paths"]["/v1/lwip"].is_null());
}
