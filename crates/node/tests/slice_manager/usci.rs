//! A UE and a slice manager: updates arrive at once, and facts outlive the manager for their validity.

use super::{Manager, slice};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// `anabranch ue` in a network namespace of its own, whose access does not reach a UPF.
struct Ue {
    child: Child,
    http: reqwest::Client,
}

impl Ue {
    async fn start(folder: &Path, token: &str, more: &str) -> Self {
        let at = |name: &str| folder.join(name);
        let mut keygen = Command::new(env!("CARGO_BIN_EXE_anabranch"));
        keygen.arg("keygen").arg("--out").arg(at("ue.key")).output().unwrap();
        std::fs::write(at("ue.token"), token).unwrap();
        let text = format!(
            "[ue]\nname = \"phone\"\nprivate_key_file = \"{0}/ue.key\"\n[upf]\npublic_key = \"vmHhqE8tcZ4WAGqG4kP5IO2rCzYb1eN3mWvPc7yqC2o=\"\n\
             [[access]]\nname = \"5g\"\nremote = \"192.0.2.1:4500\"\n[api]\nlisten = \"unix:{0}/ue.sock\"\n\
             [slices]\nmanager = \"unix:{0}/one.sock\"\ntoken_file = \"{0}/ue.token\"\n{more}\
             [[slice]]\nslice = \"gold\"\ninterface = \"wwan1\"\nmark = 512\ntable = 512\ngateway = \"198.51.100.1\"\n",
            folder.display()
        );
        std::fs::write(at("ue.toml"), text).unwrap();
        let log = std::fs::File::create(at("ue.log")).unwrap();
        // The namespace and its contents end with the program.
        let script = "ip link set lo up && ip link add wwan1 type veth peer name far && ip link set far up && \
                      ip addr add 198.51.100.2/24 dev wwan1 && ip link set wwan1 up && ip link add eth0 type veth peer name \
                      other && ip link set other up && ip addr add 203.0.113.2/24 dev eth0 && ip link set eth0 up && \
                      ip route add default via 203.0.113.1 && exec \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["--net", "sh", "-ec", script, "sh", env!("CARGO_BIN_EXE_anabranch"), "ue", "--config"]);
        let child = command.arg(at("ue.toml")).stderr(log).stdout(Stdio::null()).spawn().unwrap();
        let http = reqwest::Client::builder().no_proxy().unix_socket(at("ue.sock")).build().unwrap();
        let ue = Self { child, http };
        let end = Instant::now() + Duration::from_secs(60);
        while ue.call("GET", "/v1/status", Value::Null).await.is_none() {
            assert!(Instant::now() < end, "{}", std::fs::read_to_string(at("ue.log")).unwrap());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        ue
    }

    async fn call(&self, method: &str, path: &str, body: Value) -> Option<(u16, Value)> {
        let request = self.http.request(method.parse().unwrap(), format!("http://x{path}"));
        let request = if body.is_null() { request } else { request.json(&body) };
        let answer = request.timeout(Duration::from_secs(20)).send().await.ok()?;
        let status = answer.status().as_u16();
        Some((status, answer.json().await.unwrap_or_default()))
    }

    async fn get(&self, path: &str) -> Value {
        self.call("GET", path, Value::Null).await.expect("it answers").1
    }

    /// Output of a command in its namespace.
    fn inside(&self, command: &str) -> String {
        let pid = self.child.id().to_string();
        let output = Command::new("nsenter").args(["-t", &pid, "-n", "sh", "-c", command]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    /// Whether a connection that requires at most 12 ms finds a slice.
    async fn finds_low_latency(&self) -> bool {
        let wanted = json!({"_slice.latency": {"atMostUs": 12_000, "preference": "require"}});
        let body = json!({"properties": wanted, "remote": [{"address": "198.51.100.7", "port": 443}]});
        let (status, answer) = self.call("POST", "/connections/select", body).await.expect("it answers");
        match status {
            200 => true,
            409 if answer["field"] == "_slice.latency" => false,
            _ => panic!("{status} {answer}"),
        }
    }
}

impl Drop for Ue {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until `holds` returns true.
async fn until(what: &str, holds: impl AsyncFn() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !holds().await {
        assert!(Instant::now() < end, "never: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A manager with slice "gold", and the token of UE "phone", a member of the slice.
async fn network(folder: &Path) -> (Manager, String, String) {
    let database = format!("sqlite:{}/slices.db", folder.display());
    let manager = Manager::start(folder, "one", &database).await;
    let (status, made) = manager.call("POST", "/v1/slices", gold(20_000)).await.unwrap();
    assert_eq!(status, 201, "{made}");
    let id = made["id"].as_str().unwrap().to_owned();
    manager.settled().await;
    let (_, ue) = manager.call("PUT", "/v1/ues/phone", Some(json!({"slices": [id]}))).await.unwrap();
    (manager, id, ue["token"].as_str().unwrap().to_owned())
}

fn gold(kbps: u64) -> Option<Value> {
    let mut slice = slice("gold", kbps)?;
    slice["serviceProfile"]["uLThptPerSlice"] = json!({"guaThpt": kbps});
    slice["serviceProfile"]["dLLatency"] = json!(6);
    Some(slice)
}

/// Whether network namespaces can be created.
pub fn is_root() -> bool {
    use std::io::Write;
    let root = nix::unistd::Uid::effective().is_root();
    if !root {
        let _ = writeln!(std::io::stderr(), "skipped: needs root");
    }
    root
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ue_receives_facts_and_keeps_them_while_the_manager_is_unreachable() {
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (mut manager, id, token) = network(folder.path()).await;
    let mut ue = Ue::start(folder.path(), &token, "").await;
    let uplink = |slices: &Value| slices["gold"]["uplink_guaranteed_bps"].as_u64();
    until("told", async || uplink(&ue.get("/connections/slices").await) == Some(20_000_000)).await;
    assert_eq!(ue.get("/connections/slices").await["gold"]["rtt_us"], 12_000);
    assert!(ue.finds_low_latency().await);
    let registered =
        async |m: &Manager| m.call("GET", "/v1/ues/phone", None).await.unwrap().1["registered_ms"].is_u64();
    until("registered", async || registered(&manager).await).await;

    // Policies are pushed, and removed when they are no longer pushed.
    let profile = json!({"uid": "dependable", "policy_type": "profile", "match": {"transport": {"value": "dependable"}},
        "properties": {"transport": {"value": "TCP", "precedence": 2}}});
    let policies = async |list: Value| {
        let body = Some(json!({"policies": list}));
        manager.call("PUT", "/v1/ues/phone/policies", body).await.unwrap()
    };
    let odd = json!([profile, {"uid": "odd", "properties": {"x": {"precedence": 9}}}]);
    let (status, problem) = policies(odd).await;
    assert_eq!((status, &problem["field"]), (400, &json!("policies[1]")), "{problem}");
    assert_eq!(policies(json!([profile])).await.0, 204);
    until("pushed", async || ue.get("/pib").await == json!(["dependable"])).await;
    assert_eq!(policies(json!([])).await.0, 204);
    until("withdrawn", async || ue.get("/pib").await == json!([])).await;

    // A change arrives over the stream.
    assert_eq!(manager.call("PUT", &format!("/v1/slices/{id}"), gold(30_000)).await.unwrap().0, 202);
    until("changed", async || uplink(&ue.get("/connections/slices").await) == Some(30_000_000)).await;

    // The manager is killed: the facts stay valid for their 10 seconds, and no longer.
    manager.kill();
    assert!(ue.finds_low_latency().await, "known facts count");
    until("lost", async || ue.get("/connections/manager").await["answers"] == false).await;
    until("forgotten", async || !ue.finds_low_latency().await).await;
    let metrics = ue.http.get("http://x/metrics").send().await.unwrap().text().await.unwrap();
    for line in ["anabranch_ue_slices{state=\"stale\"} 1", "anabranch_ue_slice_manager_answers 0"] {
        assert!(metrics.contains(line), "{metrics}");
    }
    let page = include_str!("../../../../docs/taps.md");
    let told = metrics.lines().filter_map(|l| l.strip_prefix("# TYPE anabranch_ue_slice"));
    for name in told.map(|l| l.split(' ').next().unwrap()) {
        assert!(page.contains(&format!("`anabranch_ue_slice{name}")), "docs/taps.md lacks {name}");
    }

    // The manager returns.
    let database = format!("sqlite:{}/slices.db", folder.path().display());
    let manager = Manager::start(folder.path(), "one", &database).await;
    until("found again", async || ue.finds_low_latency().await).await;
    until("registered again", async || ue.get("/connections/manager").await["registered"] == true).await;

    // The UE leaves.
    kill(Pid::from_raw(ue.child.id() as i32), Signal::SIGTERM).unwrap();
    let status = ue.child.wait().unwrap();
    assert!(status.success(), "{status} {}", std::fs::read_to_string(folder.path().join("ue.log")).unwrap());
    assert!(!registered(&manager).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_polling_ue_receives_updates() {
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (manager, id, token) = network(folder.path()).await;
    let ue = Ue::start(folder.path(), &token, "follow = \"poll\"\npoll_interval_ms = 100\n").await;
    until("told", async || ue.finds_low_latency().await).await;
    let view = async || ue.get("/connections/manager").await;
    until("polled", async || view().await["unchanged"].as_u64() > Some(3)).await;
    assert_eq!(view().await["changes"], 1);
    assert_eq!(manager.call("PUT", &format!("/v1/slices/{id}"), gold(30_000)).await.unwrap().0, 202);
    until("changed", async || {
        ue.get("/connections/slices").await["gold"]["uplink_guaranteed_bps"] == 30_000_000
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn facts_become_routes_for_programs_that_do_not_select_slices() {
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (mut manager, id, token) = network(folder.path()).await;
    let mapping = "[[mapping]]\nname = \"upload\"\nprotocol = \"tcp\"\nremote = \"192.0.2.0/24\"\nremote_port = 5001\npaced = true\n\
                   properties = { \"_slice.latency\" = { atMostUs = 12000, preference = \"require\" } }\n";
    let ue = Ue::start(folder.path(), &token, mapping).await;
    let way = |to: &str| ue.inside(&format!("ip route get {to}"));
    let upload = "192.0.2.7 ipproto tcp dport 5001";
    // Half of 20 Mbit/s times 12 ms is 10.4 segments: ten.
    until("mapped", async || way(upload).contains("dev wwan1") && way(upload).contains("initcwnd 10")).await;
    assert!(
        way("192.0.2.7 mark 512").contains("via 198.51.100.1 dev wwan1"),
        "{}",
        way("192.0.2.7 mark 512")
    );
    assert!(way("192.0.2.7 ipproto tcp dport 5002").contains("dev eth0"), "other flows go as before");

    // A higher guarantee enlarges the window: 40 Mbit/s * 12 ms / 2 is 20.7 segments.
    assert_eq!(manager.call("PUT", &format!("/v1/slices/{id}"), gold(40_000)).await.unwrap().0, 202);
    until("a larger window", async || way(upload).contains("initcwnd 20")).await;
    let plan = json!({"remote": [{"address": "192.0.2.7", "port": 5002}], "properties": {
        "pvd": {"gold": "require"}, "multistreaming": "prohibit"}});
    let (_, answer) = ue.call("POST", "/connections/select", plan).await.unwrap();
    assert_eq!(answer["plan"][0], json!({"action": "mark", "mark": 513, "table": 513}), "{answer}");

    // Expired facts have no effect.
    manager.kill();
    until("forgotten", async || way(upload).contains("dev eth0")).await;
    until("no window", async || !way("192.0.2.7 mark 513").contains("initcwnd")).await;
    assert!(way("192.0.2.7 mark 513").contains("dev wwan1"), "who asks for the slice still has it");

    // All configuration is removed. A process in the namespace keeps it alive while it is checked.
    let mut witness = Command::new("nsenter");
    witness.args(["-t", &ue.child.id().to_string(), "-n", "sleep", "60"]);
    let mut witness = witness.spawn().unwrap();
    until("a witness", async || {
        let ns = |pid: u32| std::fs::read_link(format!("/proc/{pid}/ns/net")).ok();
        ns(witness.id()) == ns(ue.child.id())
    })
    .await;
    let mut ue = ue;
    kill(Pid::from_raw(ue.child.id() as i32), Signal::SIGTERM).unwrap();
    assert!(ue.child.wait().unwrap().success());
    let left = Command::new("nsenter")
        .args([
            "-t",
            &witness.id().to_string(),
            "-n",
            "sh",
            "-c",
            "ip rule; ip -6 rule; ip route show table all proto 171",
        ])
        .output()
        .unwrap();
    witness.kill().unwrap();
    witness.wait().unwrap();
    let left = String::from_utf8(left.stdout).unwrap();
    assert!(
        left.contains("lookup main")
            && !left.contains("512")
            && !left.contains("513")
            && !left.contains("wwan1"),
        "{left}"
    );
}
