use super::{Args, CtlError, Output, execute};
use crate::cli::{Cli, Command};
use crate::runtime::api::{
    CodingCounters, ControlRequest, Counters, Event, EventLog, Law, LawPath, NotUsed, Path, PathLoad,
    Problem, Reloaded, RuleUse, Rules, Session, SessionList, Status, WorkerStatus, serve,
};
use crate::runtime::config::{Api, Listen};
use anabranch_steer::Rule;
use clap::{CommandFactory, Parser};
use std::path::PathBuf;
use tokio::sync::mpsc;

const KEY: &str = "vmHhqE8tcZ4WAGqG4kP5IO2rCzYb1eN3mWvPc7yqC2o=";

fn session(name: &str, tx_bytes: u64) -> Session {
    let path = |id: u8, access: &str, up: bool| Path {
        ue: name.into(),
        id,
        access: access.into(),
        up,
        why: (!up).then(|| "carrier lost".into()),
        endpoint: Some("198.51.100.10:4500".into()),
        security: "secure".into(),
        rtt_ms: up.then_some(20.25),
        rtt_min_ms: None,
        loss_tx_percent: 0.5,
        loss_rx_percent: 0.0,
        tx_packets: 1,
        tx_bytes: if up { tx_bytes } else { 0 },
        rx_packets: 1,
        rx_bytes: 2048,
        mtu_bytes: 1400,
        tx_fragments: if up { 12 } else { 0 },
        rx_fragments: 0,
        rx_incomplete: 0,
        load: up.then_some(PathLoad {
            queue_ms: 3.04,
            capacity_bps: Some(81_200_000),
            estimate_bps: Some(81_200_000),
            random_loss_percent: 0.5,
            steady_loss_percent: 12,
            lasting_loss_rx_percent: 3.25,
            drops_at_ms: None,
        }),
    };
    Session {
        ue: name.into(),
        public_key: KEY.into(),
        addresses: vec!["10.45.0.2".into()],
        connected: true,
        tx_packets: 1,
        tx_bytes,
        rx_packets: 3,
        rx_bytes: 4,
        paths: vec![path(0, "5g", false), path(1, "wifi", true)],
        uses: Vec::new(),
        coded: Some(CodingCounters {
            tx_packets: 100,
            tx_repairs: 30,
            restored: 7,
            ..CodingCounters::default()
        }),
    }
}

fn status() -> Status {
    let counters = Counters { rx_bytes: 1024, tx_full: 7, ..Counters::default() };
    let worker = WorkerStatus { accesses: [("5g".into(), counters)].into(), ..WorkerStatus::default() };
    Status {
        part: "upf".into(),
        name: "edge".into(),
        version: env!("CARGO_PKG_VERSION").into(),
        uptime_s: 61,
        public_key: KEY.into(),
        device: "anb0".into(),
        mtu_bytes: 1400,
        sessions: 3,
        connected: 1,
        trouble: [].into(),
        drops: [("replayed".into(), 4), ("no-route".into(), 0)].into(),
        ioam: [("marked".into(), 3)].into(),
        workers: vec![worker.clone(), worker],
    }
}

/// The decisions of two rules: one that switches, one that splits autonomously.
fn uses(ue: &str, rules: &[Rule]) -> Vec<RuleUse> {
    let not = |access: &str, reason: &str, why: &str| NotUsed {
        access: access.into(),
        reason: reason.into(),
        why: why.into(),
    };
    let path = LawPath { at_home: 90, spilled: 10, placed: 3, left: 1, bulk_flows: 2, ..LawPath::default() };
    let all = RuleUse {
        ue: ue.into(),
        rule: "all".into(),
        mode: "active-standby".into(),
        definition: rules.iter().find(|rule| rule.name == "all").cloned(),
        origin: "upf".into(),
        access: Some("wifi".into()),
        switches: 3,
        state: "one-path".into(),
        why: "wifi alone: preferred".into(),
        not_used: vec![not("5g", "down", "down: carrier lost")],
        packets: [("wifi".into(), 4)].into(),
        ..RuleUse::default()
    };
    let bond = RuleUse {
        ue: ue.into(),
        rule: "bond".into(),
        mode: "load-balance".into(),
        origin: "ue".into(),
        state: "spills".into(),
        why: "packets spill, and come no later".into(),
        not_used: vec![not("wifi", "steady-loss", "steady loss 12 %, limit 3 %")],
        packets: [("5g".into(), 100), ("wifi".into(), 300)].into(),
        law: Some(Law { paths: [("5g".into(), path)].into(), ..Law::default() }),
        ..RuleUse::default()
    };
    vec![all, bond]
}

/// A simulated agent with one session whose path sends 125 kB between any two requests.
async fn agent(mut asks: mpsc::Receiver<ControlRequest>) {
    let first = r#"{"name":"all","steering":{"mode":"active-standby","primary":"wifi"}}"#;
    let mut rules: Vec<Rule> = vec![serde_json::from_str(first).unwrap()];
    let mut tx_bytes = 0;
    let missing = |name: &str| Problem::not_found("session", name, "list them with GET /v1/sessions");
    while let Some(ask) = asks.recv().await {
        tx_bytes += 125_000;
        match ask {
            ControlRequest::Status(reply) => drop(reply.send(Ok(status()))),
            ControlRequest::Sessions { limit, reply, .. } => {
                assert!(limit > 0);
                let uses = uses("phone", &rules);
                let sessions = vec![Session { uses, ..session("phone", tx_bytes) }];
                drop(reply.send(Ok(SessionList { total: 3, sessions })));
            }
            ControlRequest::Session(name, reply) if name == "a b/ü" || name == "phone" => {
                let uses = uses(&name, &rules);
                drop(reply.send(Ok(Session { uses, ..session(&name, tx_bytes) })));
            }
            ControlRequest::Session(name, reply) => drop(reply.send(Err(missing(&name)))),
            ControlRequest::Create(ue, reply) => {
                assert_eq!(ue.public_key.to_string(), KEY);
                drop(reply.send(Ok(session(&ue.name, 0))));
            }
            ControlRequest::Put(ue, reply) => drop(reply.send(Ok((session(&ue.name, 0), false)))),
            ControlRequest::Delete(name, reply) if name == "phone" => drop(reply.send(Ok(()))),
            ControlRequest::Delete(name, reply) => drop(reply.send(Err(missing(&name)))),
            ControlRequest::ResetClock(name, reply) => drop(reply.send(Err(missing(&name)))),
            ControlRequest::Rules(reply) => {
                drop(reply.send(Ok(Rules { rules: rules.clone(), uses: Vec::new() })))
            }
            ControlRequest::SetRules(new, reply) => {
                rules = new;
                drop(reply.send(Ok(Rules { rules: rules.clone(), uses: Vec::new() })));
            }
            ControlRequest::Reload(reply) => {
                drop(reply.send(Ok(Reloaded { changed: vec!["rule".into()], needs_restart: Vec::new() })));
            }
            ControlRequest::Cell(ask) => ask.refuse(),
            ControlRequest::Lwip(ask) => ask.refuse(),
            ControlRequest::Proxy(ask) => ask.refuse(),
            ControlRequest::TcpLane(ask) => ask.refuse(),
            ControlRequest::Metrics(reply) => {
                drop(reply.send(Ok("# HELP x y\nx{ue=\"a\"} 4\nz 1\n# EOF\n".into())))
            }
        }
    }
}

struct World {
    /// The server, which listens until it is dropped.
    _server: Box<dyn std::any::Any>,
    events: EventLog,
    folder: tempfile::TempDir,
}

impl World {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let api = Api::unix(&folder.path().join("ue.sock").display().to_string());
        Self::at(&api, folder).await
    }

    async fn at(api: &Api, folder: tempfile::TempDir) -> Self {
        let events = EventLog::default();
        let (server, requests) =
            serve(crate::runtime::api::Agent::Upf, api, None, events.clone(), None).await.unwrap();
        tokio::spawn(agent(requests));
        Self { _server: Box::new(server), events, folder }
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// Runs `anabranch ctl --socket … words` and returns its output.
    async fn ctl(&self, words: &str) -> Result<String, CtlError> {
        let socket = self.folder.path().join("ue.sock").display().to_string();
        ctl(&format!("--socket {socket} {words}")).await
    }
}

fn parse(words: &str) -> Result<Args, clap::Error> {
    let words = ["anabranch", "ctl"].map(str::to_owned).into_iter().chain(crate::testing::words(words));
    match Cli::try_parse_from(words)?.command {
        Command::Ctl(args) => Ok(*args),
        other => panic!("{other:?}"),
    }
}

async fn ctl(words: &str) -> Result<String, CtlError> {
    let args = parse(words).unwrap_or_else(|e| panic!("{e}"));
    let mut text = Vec::new();
    let mut output = Output { to: &mut text, json: args.json, terminal: false };
    execute(&args, &mut output).await.map(|()| String::from_utf8(text).unwrap())
}

#[test]
fn every_subcommand_has_an_example_in_its_help() {
    fn look(command: &clap::Command, name: &str, seen: &mut usize) {
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        assert!(
            help.contains("Example") && help.contains("anabranch ctl"),
            "anabranch {name} --help: {help}"
        );
        *seen += 1;
        for sub in command.get_subcommands().filter(|c| c.get_name() != "help") {
            look(sub, &format!("{name} {}", sub.get_name()), seen);
        }
    }
    let mut seen = 0;
    let cli = Cli::command();
    look(cli.find_subcommand("ctl").unwrap(), "ctl", &mut seen);
    assert_eq!(seen, 1 + 8 + 4 + 3 + 3 + 4 + 2 + 2 + 2 + 2 + 2);
    Cli::command().debug_assert();
}

#[test]
fn the_examples_of_the_help_parse() {
    fn collect(command: &clap::Command, into: &mut Vec<String>) {
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let help = help.replace("\\\n      ", "");
        for line in help.lines().filter_map(|l| l.trim().strip_prefix("anabranch ctl")) {
            // Text after several spaces is an explanation; text after a bar belongs to another program.
            let line = line.trim().split("   ").next().unwrap().split('|').next().unwrap();
            into.push(line.to_owned());
        }
        command.get_subcommands().for_each(|c| collect(c, into));
    }
    let mut examples = Vec::new();
    collect(Cli::command().find_subcommand("ctl").unwrap(), &mut examples);
    assert!(examples.len() > 20, "{examples:?}");
    for example in examples {
        assert!(parse(&example).is_ok(), "{example}: {:?}", parse(&example));
    }
}

#[tokio::test]
async fn answers_are_tables_or_what_the_agent_sent() {
    let world = World::new().await;
    let text = world.ctl("status").await.unwrap();
    for line in
        ["sessions    1 of 3 up", "drops       replayed 4", "traces      marked 3", "up for      00:01:01"]
    {
        assert!(text.contains(line), "{line}\n{text}");
    }
    // The sum over both workers.
    assert!(text.contains("5g                 0  2.0 KiB             0  0 B           14       0"), "{text}");
    let json: Status = serde_json::from_str(&world.ctl("status --json").await.unwrap()).unwrap();
    assert_eq!(json, status());

    let text = world.ctl("sessions").await.unwrap();
    assert!(
        text.contains("phone  up       1/2") && text.contains("1 of 3; --offset and --limit select others"),
        "{text}"
    );
    let text = world.ctl("paths").await.unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[1].starts_with("5g      down: carrier lost       -"), "{text}");
    assert!(
        lines[2].starts_with("wifi    up") && lines[2].ends_with("active-standby (all), load-balance (bond)"),
        "{text}"
    );
    let sending = lines.iter().position(|line| line.starts_with("sending  queue ms")).unwrap();
    assert!(lines[sending + 1].starts_with("5g              -            -            -"), "{text}");
    let left = "bond: steady loss 12 %, limit 3 %";
    let row = "wifi          3.0            -  81.2 Mbit/s           0.50             12           3.25  ";
    assert_eq!(lines[sending + 2], format!("{row}{left}"), "{text}");
    let text = world.ctl("metrics ue").await.unwrap();
    assert_eq!(text, "x{ue=\"a\"} 4\n");
    let nothing = world.ctl("metrics nope").await.unwrap_err().to_string();
    assert!(nothing.contains("no line contains \"nope\""), "{nothing}");
    let json: serde_json::Value = serde_json::from_str(&world.ctl("metrics --json").await.unwrap()).unwrap();
    assert_eq!(json[1], serde_json::json!({"name": "z", "labels": {}, "value": 1.0}));
    assert_eq!(world.ctl("reload").await.unwrap(), "changed        rule\nneeds restart  nothing\n");
}

#[tokio::test]
async fn watching_shows_rates() {
    let world = World::new().await;
    let text = world.ctl("paths --watch 0.1 --count 3 --json").await.unwrap();
    let lines: Vec<serde_json::Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(lines.len(), 3);
    assert!(lines[0]["paths"][1].get("tx_bps").is_none());
    // Two requests per round: 250 kB in 0.1 s, with a wide tolerance for slow machines.
    let bps = lines[2]["paths"][1]["tx_bps"].as_f64().unwrap();
    assert!((1e5..=1e8).contains(&bps), "{bps}");
    assert_eq!(
        lines[2]["paths"][1]["carries"],
        serde_json::json!(["active-standby (all)", "load-balance (bond)"])
    );
    let text = world.ctl("paths --watch 0.1 --count 2").await.unwrap();
    assert!(text.contains("tx rate") && text.contains("bit/s") && text.contains("switches"), "{text}");
    assert!(world.ctl("status --watch 0.1 --count 2").await.unwrap().contains("0 bit/s"));
}

#[tokio::test]
async fn sessions_are_created_shown_and_deleted() {
    let world = World::new().await;
    let rules = world.file("tv.toml", "[[rule]]\nname = \"x\"\nsteering = { mode = \"redundant\" }\n");
    let text = world
        .ctl(&format!(
            "sessions create tv --public-key {KEY} --address-v4 10.45.0.9 --rules {}",
            rules.display()
        ))
        .await
        .unwrap();
    assert!(text.starts_with("ue          tv\n") && text.contains("path 5g  down: carrier lost"), "{text}");
    assert_eq!(world.ctl("sessions delete phone").await.unwrap(), "");
    let error = world.ctl("sessions delete tablet").await.unwrap_err();
    assert_eq!(error.exit_code(), 4);
    assert!(
        error.to_string().contains("DELETE /v1/sessions/tablet: 404") && error.to_string().contains("GET")
    );
    // Names are encoded, not pasted into the URL.
    let args = parse("sessions show x").unwrap();
    let super::Command::Sessions { page, .. } = &args.command else { panic!() };
    let socket = Some(world.folder.path().join("ue.sock"));
    let client = super::Client::new(&super::Target { socket, ..args.target.clone() }).unwrap();
    let show = super::sessions::Action::Show { ue: "a b/ü".into() };
    let mut text = Vec::new();
    let mut output = Output { to: &mut text, json: false, terminal: false };
    super::sessions::run(&client, page, Some(&show), &mut output).await.unwrap();
    assert!(String::from_utf8(text).unwrap().starts_with("ue          a b/ü\n"));
}

#[tokio::test]
async fn rules_are_shown_with_decisions_and_reasons() {
    let world = World::new().await;
    // With three sessions, the session must be named.
    let text = world.ctl("rules").await.unwrap();
    assert!(text == "rule  traffic     steering\nall   everything  active-standby primary=wifi\n", "{text}");
    let text = world.ctl("rules --ue phone").await.unwrap();
    let expected = "\
rule  from  traffic          steering                     on                  switches  now
all   upf   everything       active-standby primary=wifi  wifi                       3  wifi alone: preferred
bond  ue    everything else  load-balance                 5g 25 %, wifi 75 %         0  packets spill, and come no later

rule  not by  because
bond  wifi    steady loss 12 %, limit 3 %

bond  packets at home  spilled  overflowed  bulk flows  placed  moved here  left for loss
5g                 90       10           0           2       3           0              1

coded    sent  repairs  received  repairs  restored  too late  given up
packets   100       30         0        0         7         0         0
";
    assert_eq!(text, expected);
    let json: Rules = serde_json::from_str(&world.ctl("rules --ue phone --json").await.unwrap()).unwrap();
    assert_eq!(json.uses[1].not_used[0].reason, "steady-loss");
    assert_eq!(world.ctl("rules --ue nobody").await.unwrap_err().exit_code(), 4);
    let text = world.ctl("sessions show phone").await.unwrap();
    assert!(text.contains("coded    sent  repairs"), "{text}");
}

#[tokio::test]
async fn rules_are_changed_in_their_place() {
    let world = World::new().await;
    let names = async || {
        let json: Rules = serde_json::from_str(&world.ctl("rules --json").await.unwrap()).unwrap();
        json.rules.into_iter().map(|r| r.name).collect::<Vec<_>>()
    };
    let calls = "rules add calls --mode redundant --protocol udp --remote 192.0.2.1 --remote-port 3478-3481";
    let text = world.ctl(calls).await.unwrap();
    let row = "calls  protocol=udp remote=192.0.2.1/32 remote_port=3478-3481  redundant";
    assert!(text.contains(row), "{text}");
    assert!(text.contains("all    everything"), "{text}");
    assert!(text.contains("active-standby primary=wifi"), "{text}");
    world.ctl("rules add web --mode smallest-delay --remote-port 443 --before all").await.unwrap();
    world
        .ctl("rules add rest --mode load-balance --weights 5g=40,wifi=60 --no-reorder --last")
        .await
        .unwrap();
    assert_eq!(names().await, ["calls", "web", "all", "rest"]);
    world.ctl("rules replace web --mode priority-based --primary wifi --rtt-ms 80").await.unwrap();
    world.ctl("rules remove calls all").await.unwrap();
    assert_eq!(names().await, ["web", "rest"]);

    // As TOML, and read back.
    let toml = world.ctl("rules --toml").await.unwrap();
    assert!(toml.contains("rtt_ms = 80.0") && toml.contains("reorder = false"), "{toml}");
    let file = world.file("rules.toml", &toml).display().to_string();
    world.ctl("rules remove --all").await.unwrap();
    assert!(names().await.is_empty());
    world.ctl(&format!("rules replace --file {file}")).await.unwrap();
    assert_eq!(world.ctl("rules --toml").await.unwrap(), toml);

    for (words, code, text) in [
        ("rules add web --mode redundant".to_owned(), 1, "rules replace web"),
        (format!("rules add --file {file}"), 1, "exists"),
        ("rules remove gone".into(), 1, "web, rest"),
        ("rules replace gone --mode redundant".into(), 1, "\"gone\""),
        ("rules add x --mode active-standby".into(), 2, "missing option --primary"),
        ("rules add x --mode redundant --primary wifi".into(), 2, "unknown option --primary"),
        ("rules add x --mode redundant --remote-port 9-1".into(), 2, "first-last"),
        ("rules add --file /nowhere/rules.toml".into(), 2, "/nowhere/rules.toml"),
        (
            format!("rules add --file {}", world.file("bad.toml", "[[rule]]\nnam = 1\n").display()),
            2,
            "bad.toml:2",
        ),
        (format!("rules replace --file {}", world.file("none.toml", "").display()), 2, "[[rule]]"),
    ] {
        let error = world.ctl(&words).await.unwrap_err();
        assert!(error.exit_code() == code && error.to_string().contains(text), "{words}: {error}");
    }
    assert_eq!(names().await, ["web", "rest"]);
    for wrong in ["rules add", "rules add x", "rules remove", "rules add x --mode fast", "paths --watch 0"] {
        assert!(parse(wrong).is_err(), "{wrong}");
    }
}

#[tokio::test]
async fn events_are_printed_after_the_given_id() {
    let world = World::new().await;
    for (kind, ue) in [("path-up", "phone"), ("path-down", "phone"), ("path-down", "tv")] {
        let message = format!("{kind} of {ue}");
        let event = Event {
            id: 0,
            time_unix_ms: 0,
            kind: kind.into(),
            ue: Some(ue.into()),
            access: None,
            rule: None,
            message,
        };
        world.events.push(event);
    }
    let text = world.ctl("events --no-follow --since 1").await.unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 2, "{text}");
    assert!(lines[0].ends_with("Z     2  path-down          phone: path-down of phone"), "{text}");
    let nobody = world.ctl("events --no-follow --ue nobody").await.unwrap_err();
    assert_eq!(nobody.exit_code(), 4, "{nobody}");
    let nobody = nobody.to_string();
    assert!(nobody.contains("no session \"nobody\"") && nobody.contains("/v1/sessions"), "{nobody}");
    assert_eq!(world.ctl("events --no-follow --ue phone --kind session-up").await.unwrap(), "");
    let text = world.ctl("events --no-follow --json --kind path-down --ue tv").await.unwrap();
    assert_eq!(serde_json::from_str::<Event>(&text).unwrap().id, 3);
    // A stream of an unknown kind would never deliver an event.
    let error = world.ctl("events --no-follow --kind path-up --kind path-dwn").await.unwrap_err();
    assert_eq!(error.exit_code(), 2, "{error}");
    let error = error.to_string();
    assert!(error.contains("\"path-dwn\"") && error.contains("did you mean \"path-down\"?"), "{error}");
    assert!(error.contains("session-up") && error.contains("lwip-changed"), "{error}");
}

#[tokio::test]
async fn exit_codes_distinguish_unreachable_and_refused() {
    let folder = tempfile::tempdir().unwrap();
    let error = ctl(&format!("--socket {}/none.sock status", folder.path().display())).await.unwrap_err();
    assert_eq!(error.exit_code(), 3, "{error}");
    assert!(error.to_string().contains("none.sock") && error.to_string().contains("--socket"), "{error}");

    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = ctl(&format!("--url http://{port} status")).await.unwrap_err();
    assert!(error.exit_code() == 3 && error.to_string().contains("[api] listen"), "{error}");

    // Over TCP, with a token.
    let token_file = folder.path().join("token");
    std::fs::write(&token_file, "correct-horse-battery\n").unwrap();
    let token = token_file.display().to_string();
    let api = Api { listen: Listen::Tcp(port), token_file: Some(token_file), ..Api::unix("") };
    let _world = World::at(&api, folder).await;
    let error = ctl(&format!("--url http://{port} status")).await.unwrap_err();
    assert!(error.exit_code() == 4 && error.to_string().contains("--token-file"), "{error}");
    for auth in ["--token correct-horse-battery".to_owned(), format!("--token-file {token}")] {
        assert!(ctl(&format!("--url http://{port} {auth} status")).await.unwrap().contains("edge"));
    }
    let error = ctl(&format!("--url ftp://{port} status")).await.unwrap_err();
    assert!(error.exit_code() == 2 && error.to_string().contains("ssh -L"), "{error}");
    // That port does not speak TLS.
    let error = ctl(&format!("--url https://{port} status")).await.unwrap_err();
    assert!(error.exit_code() == 3 && error.to_string().contains("--ca-file"), "{error}");
    assert!(ctl("--token-file /nowhere --socket /x status").await.unwrap_err().exit_code() == 2);
    // Another program listens there.
    let other = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = other.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(other, axum::Router::new().fallback(async || "hello")).await });
    let error = ctl(&format!("--url http://{address} status")).await.unwrap_err();
    assert!(error.exit_code() == 1 && error.to_string().contains("anabranch agent"), "{error}");
}

#[tokio::test]
async fn an_agent_with_a_certificate_is_contacted_by_https() {
    let folder = tempfile::tempdir().unwrap();
    let tls = crate::runtime::api::auth::tests::certificate(folder.path());
    let (token_file, ca) = (folder.path().join("token"), folder.path().join("ca.pem"));
    std::fs::write(&token_file, "correct-horse-battery\n").unwrap();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let listen = Listen::Tcp(port);
    let api = Api { listen, token_file: Some(token_file), tls: Some(tls), ..Api::unix("") };
    let ca = ca.display().to_string();
    let _world = World::at(&api, folder).await;
    let auth = "--token correct-horse-battery";
    let shown = ctl(&format!("--url https://{port} --ca-file {ca} {auth} status")).await.unwrap();
    assert!(shown.contains("edge"), "{shown}");
    // A reload reads the certificate again.
    assert!(ctl(&format!("--url https://{port} --ca-file {ca} {auth} reload")).await.is_ok());
    // Three failures: an untrusted authority, plain HTTP, and a missing file.
    let error = ctl(&format!("--url https://{port} {auth} status")).await.unwrap_err();
    assert!(error.exit_code() == 3 && error.to_string().contains("--ca-file"), "{error}");
    let error = ctl(&format!("--url http://{port} {auth} status")).await.unwrap_err();
    assert!(error.exit_code() != 0 && error.to_string().contains("https"), "{error}");
    let error = ctl(&format!("--url https://{port} --ca-file /none {auth} status")).await.unwrap_err();
    assert!(error.exit_code() == 2 && error.to_string().contains("/none"), "{error}");
}
