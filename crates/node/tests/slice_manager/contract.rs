//! Conformance of the REST interfaces with their descriptions, checked by schemathesis: it makes requests of
//! every kind that a description permits, and of others, and checks the answers.
//!
//! `./x test unit` installs it in the versions of `schemathesis.txt` and sets `ANABRANCH_SCHEMATHESIS` to its
//! path. `ANABRANCH_EXAMPLES=100` makes 100 requests of each kind instead of ten.

use serde_json::{Value, json};
use std::ffi::OsString;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const ANABRANCH: &str = env!("CARGO_BIN_EXE_anabranch");
const OPERATOR: &str = "operator-of-the-contract-test";
/// The checks whose failure is an error.
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,\
                      response_schema_conformance,negative_data_rejection";
/// Access to an interface: with a token, and without one from this machine.
const DOORS: [(&str, bool); 2] =
    [("token_file = \"FOLDER/token\"\n", true), ("changes_without_token = true\n", false)];

/// Number of requests per path and method.
fn examples() -> String {
    std::env::var("ANABRANCH_EXAMPLES").unwrap_or_else(|_| "10".to_owned())
}

struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a subcommand: the slice manager without privileges, the others in a network namespace of their own.
/// Returns the address of the interface.
async fn start(part: &str, folder: &Path, config: &str) -> (Program, String) {
    let at = folder.display().to_string();
    std::fs::write(folder.join("config.toml"), config.replace("FOLDER", &at)).unwrap();
    let config = format!("{at}/config.toml");
    started(part, &[part, "--config", &config], folder).await
}

/// Like [`start`], with the arguments of a program without a configuration file.
async fn started(part: &str, args: &[&str], folder: &Path) -> (Program, String) {
    std::fs::write(folder.join("token"), OPERATOR).unwrap();
    let log = folder.join("log");
    let inside = ["--net", "sh", "-ec", "ip link set lo up && exec \"$@\"", "sh", ANABRANCH];
    let mut command = if part == "slice-manager" { Command::new(ANABRANCH) } else { Command::new("unshare") };
    if part != "slice-manager" {
        command.args(inside);
    }
    command.args(args).stdout(Stdio::null());
    let mut program = Program(command.stderr(std::fs::File::create(&log).unwrap()).spawn().unwrap());
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let text = std::fs::read_to_string(&log).unwrap();
        if let Some((_, rest)) = text.split_once("listening on http://") {
            let port = rest.split_once(':').unwrap().1;
            let port: String = port.chars().take_while(char::is_ascii_digit).collect();
            return (program, format!("http://127.0.0.1:{port}"));
        }
        let ended = program.0.try_wait().unwrap();
        assert!(ended.is_none() && Instant::now() < end, "{part} does not listen: {ended:?} {text}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Path of schemathesis, if it is installed.
fn judge() -> Option<OsString> {
    let schemathesis = std::env::var_os("ANABRANCH_SCHEMATHESIS");
    if schemathesis.is_none() {
        use std::io::Write;
        let _ = writeln!(std::io::stderr(), "skipped: ./x test unit installs schemathesis for it");
    }
    schemathesis
}

/// Checks an interface; `command` runs schemathesis. Without a token, for an interface that needs none.
async fn judged(
    mut command: Command,
    description: &str,
    base: &str,
    token: Option<&str>,
    paths: &[&str],
    folder: &Path,
) {
    let mut description = format!("{}/../../openapi/{description}", env!("CARGO_MANIFEST_DIR"));
    if token.is_none() {
        // The description says that a token is required, which is not the case here.
        let mut open: Value = serde_json::from_slice(&std::fs::read(description).unwrap()).unwrap();
        open.as_object_mut().unwrap().remove("security");
        description = folder.join("open.json").display().to_string();
        std::fs::write(&description, open.to_string()).unwrap();
    }
    command.args(["run", &description, "--url", base]);
    command.args(token.map(|token| format!("--header=Authorization: Bearer {token}")));
    let checks = format!("{CHECKS}{}", if token.is_some() { ",ignored_auth" } else { "" });
    command.args(["--checks", &checks, "--max-examples", &examples(), "--seed", "1"]);
    command.args(["--phases", "examples,coverage,fuzzing", "--generation-database", "none"]);
    command.args(["--continue-on-failure", "--no-color"]).args(paths);
    command.current_dir(folder).stdin(Stdio::null());
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    let summary = text.lines().filter(|line| line.contains("generated") || line.contains("tested"));
    println!(
        "{} {paths:?}: {}",
        if token.is_some() { "token" } else { "no token" },
        summary.collect::<String>()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schemathesis_finds_no_fault_in_the_slice_manager() {
    let Some(schemathesis) = judge() else { return };
    let folder = tempfile::tempdir().unwrap();
    let config = "[manager]\ndatabase = \"sqlite:FOLDER/slices.db\"\n\
                  [api]\nlisten = \"127.0.0.1:0\"\nDOOR\
                  [limits]\nue_requests_per_s = 1000000\nue_burst = 1000000\nrefused_per_s = 1000000\n\
                  tenant_requests_per_s = 1000000\n\
                  [[access]]\nname = \"cell\"\ndownlink_bps = 1_000_000_000\nuplink_bps = 1_000_000_000\n";
    const WITH_TOKENS: &str = "token_file = \"FOLDER/token\"\n\
                               tokens = [{ file = \"FOLDER/tenant\", role = \"tenant\", tenant = \"acme\" }]\n";
    const TENANT: &str = "acme-token-acme-token";
    std::fs::write(folder.path().join("tenant"), TENANT).unwrap();
    let (_program, base) = start("slice-manager", folder.path(), &config.replace("DOOR", WITH_TOKENS)).await;
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let ask = async |method: &str, path: &str, body: Value| -> Value {
        let request = http.request(method.parse().unwrap(), format!("{base}{path}")).bearer_auth(OPERATOR);
        let answer = request.json(&body).send().await.unwrap();
        assert!(answer.status().is_success(), "{path}: {}", answer.status());
        answer.json().await.unwrap()
    };
    let profile = json!({"sst": 1, "dLThptPerSlice": {"guaThpt": 10_000, "maxThpt": 20_000}});
    let slice = ask("POST", "/v1/slices", json!({"name": "video", "serviceProfile": profile})).await;
    let ue = ask("PUT", "/v1/ues/phone", json!({"slices": [slice["id"]]})).await;
    // A UE's paths with a UE's token. The stream is excluded, because it does not end.
    let parts = [
        (OPERATOR, ["--exclude-path-regex", "^/v1/me"].as_slice()),
        // A tenant's paths with a tenant's token.
        (
            TENANT,
            &["--include-path-regex", "^/(v1/slices|api/slice|network-slice-booking|quality-on-demand)"],
        ),
        (
            ue["token"].as_str().unwrap(),
            &["--include-path-regex", "^/v1/me", "--exclude-path", "/v1/me/stream"],
        ),
    ];
    for (token, paths) in parts {
        let command = Command::new(&schemathesis);
        judged(command, "slice-manager.json", &base, Some(token), paths, folder.path()).await;
    }
    // Whatever was sent, every record can still be read.
    assert!(ask("GET", "/v1/slices", Value::Null).await["total"].is_u64());
    // The same without tokens.
    let folder = tempfile::tempdir().unwrap();
    let (_program, base) = start("slice-manager", folder.path(), &config.replace("DOOR", DOORS[1].0)).await;
    let (command, paths) = (Command::new(&schemathesis), ["--exclude-path", "/v1/me/stream"]);
    judged(command, "slice-manager.json", &base, None, &paths, folder.path()).await;
}

/// Streams are excluded, because they do not end.
const NO_STREAMS: [&str; 4] = ["--exclude-path", "/v1/events", "--exclude-path", "/v1/telemetry"];

/// Checks an agent. All agents have the same description; `paths` are those of this subcommand.
async fn agent(part: &str, config: &str, paths: &str) {
    let Some(schemathesis) = judge().filter(|_| super::usci::is_root()) else { return };
    let paths = [["--include-path-regex", paths].as_slice(), &NO_STREAMS].concat();
    for (door, has_token) in DOORS {
        let folder = tempfile::tempdir().unwrap();
        for key in ["upf.key", "ue.key"] {
            let mut keygen = Command::new(ANABRANCH);
            let made = keygen.arg("keygen").arg("--out").arg(folder.path().join(key)).output().unwrap();
            assert!(made.status.success());
        }
        let config = format!("{config}[api]\nlisten = \"127.0.0.1:8080\"\n{door}");
        let program = start(part, folder.path(), &config).await;
        let token = has_token.then_some(OPERATOR);
        judged_inside(program, &schemathesis, "agent.json", token, &paths, folder.path()).await;
    }
}

/// Checks a program in its network namespace from inside; the program must survive.
async fn judged_inside(
    (mut program, base): (Program, String),
    schemathesis: &OsString,
    description: &str,
    token: Option<&str>,
    paths: &[&str],
    folder: &Path,
) {
    let mut command = Command::new("nsenter");
    command.args(["-t", &program.0.id().to_string(), "-n"]).arg(schemathesis);
    judged(command, description, &base, token, paths, folder).await;
    assert!(program.0.try_wait().unwrap().is_none(), "it goes on");
    let log = std::fs::read_to_string(folder.join("log")).unwrap();
    assert!(!log.contains("panicked"), "{log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schemathesis_finds_no_fault_in_a_ues_agent() {
    let config = "[ue]\nname = \"phone\"\nprivate_key_file = \"FOLDER/ue.key\"\n\
                  [upf]\npublic_key = \"vmHhqE8tcZ4WAGqG4kP5IO2rCzYb1eN3mWvPc7yqC2o=\"\n\
                  [[access]]\nname = \"5g\"\nremote = \"192.0.2.1:4500\"\n";
    // Paths of other agents are refused, so a few of them are sufficient.
    agent("ue", config, "^/(v1/(status|sessions|rules|paths|reload|cell|lwip)|connections|pib|cib|metrics)")
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schemathesis_finds_no_fault_in_a_upfs_agent() {
    let config = "[upf]\nprivate_key_file = \"FOLDER/upf.key\"\nstate_file = \"FOLDER/state.json\"\n\
                  [[access]]\nname = \"5g\"\nlisten = \"127.0.0.1:4500\"\n[n6]\nmode = \"routed\"\n[pool]\nv4 = \"10.45.0.0/16\"\nv6 = \"fd45::/64\"\n";
    agent("upf", config, "^/v1/(status|sessions|rules|paths|reload)").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schemathesis_finds_no_fault_in_a_gnbs_agent() {
    let config = "[n3]\nmode = \"ip\"\nkind = \"tun\"\nname = \"n3\"\n[[device]]\nkind = \"tun\"\nname = \"ue0\"\n\
                  [cell]\nradio = { rat = \"lte\", rbs = 25 }\n[[cell.slices]]\nname = \"default\"\nshare_percent = 100\n\
                  [[cell.ues]]\nname = \"phone\"\nslice = \"default\"\naddresses = [\"10.45.0.2\"]\n\
                  channel = { model = \"constant\", mcs = 28 }\n";
    agent("gnb", config, "^/v1/(status|cell|slices|ues|reload)").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schemathesis_finds_no_fault_in_an_lwip_nodes_agent() {
    let config = "[backhaul]\nkind = \"tun\"\nname = \"n3\"\n[lte]\nkind = \"tun\"\nname = \"ran0\"\n\
                  [node]\nsteering = { mode = \"fixed_ratio\", lte_percent = 50 }\n\
                  [[node.ues]]\nname = \"phone\"\naddresses = [\"10.45.0.2\"]\nwifi = [\"10.46.0.2\"]\n";
    agent("lwip", config, "^/v1/(status|lwip|reload)").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schemathesis_finds_no_fault_in_a_monitor() {
    let Some(schemathesis) = judge().filter(|_| super::usci::is_root()) else { return };
    for with in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let file = format!("{}/token", folder.path().display());
        let args = ["int", "monitor", "--interface", "lo", "--quiet", "--interval-ms", "100"];
        let mut args = [&args[..], &["--api", "127.0.0.1:8080"]].concat();
        args.extend(["--api-token-file", &file].iter().filter(|_| with));
        let program = started("monitor", &args, folder.path()).await;
        let token = with.then_some(OPERATOR);
        judged_inside(program, &schemathesis, "int-monitor.json", token, &[], folder.path()).await;
    }
}
