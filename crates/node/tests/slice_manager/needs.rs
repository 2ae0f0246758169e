//! Requests of programs change the cell: application, UE, slice manager and gNB, all of them real.
//!
//! ```text
//!  POST /connections/select ─▶ anabranch ue ─ needs ─▶ slice-manager ─ shares ─▶ anabranch gnb
//!       minRecvRate 12 Mbit/s      ▲                        │                       │
//!                                  └──── stream of facts ───┘    phone ◀── 18 Mbit/s of air ──▶ tv
//! ```

use super::Manager;
use super::net::{ANABRANCH, Namespace, Program};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Approximate capacity of the cell: 25 RBs of LTE at MCS 28.
const CELL: &str = "downlink_bps = 18_000_000\nuplink_bps = 9_000_000\n";

struct World {
    phone: Namespace,
    tv: Namespace,
    gnb: Namespace,
    network: Namespace,
    folder: tempfile::TempDir,
}

impl World {
    /// `None` where namespaces are not permitted.
    fn new() -> Option<Self> {
        let [phone, tv, gnb, network] = std::array::from_fn(|_| Namespace::new());
        let folder = tempfile::tempdir().unwrap();
        Some(Self { phone: phone?, tv: tv?, gnb: gnb?, network: network?, folder })
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn start(&self, part: &str, inside: &Namespace, config: &str) -> Program {
        let file = self.file(&format!("{part}.toml"));
        let socket = self.file(&format!("{part}.sock"));
        let config = format!("{config}[api]\nlisten = \"unix:{}\"\n", socket.display());
        std::fs::write(&file, config).unwrap();
        let log = self.file(&format!("{part}.log"));
        let program = inside.spawn(ANABRANCH, &[part, "--config", file.to_str().unwrap()], &log);
        let end = Instant::now() + Duration::from_secs(60);
        while !socket.exists() {
            assert!(Instant::now() < end, "{part} does not start: {}", program.log());
            std::thread::sleep(Duration::from_millis(10));
        }
        program
    }

    /// Starts the cell: two UEs, each with its device in a namespace; the whole cell is slice "default".
    fn cell(&self) -> Program {
        let mut config = format!(
            "[n3]\nmode = \"ip\"\nkind = \"tun\"\nname = \"n3\"\nnetns = \"{}\"\naddresses = [\"10.45.0.1/24\"]\n\
             [cell]\nscheduler = \"fixed\"\nradio = {{ rat = \"lte\", rbs = 25 }}\n\
             [[cell.slices]]\nname = \"default\"\nshare_percent = 100\n",
            self.network.path()
        );
        for (name, ns, address) in [("phone", &self.phone, "10.45.0.2"), ("tv", &self.tv, "10.45.0.3")] {
            config += &format!(
                "[[cell.ues]]\nname = \"{name}\"\nslice = \"default\"\naddresses = [\"{address}\"]\n\
                 channel = {{ model = \"constant\", mcs = 28 }}\n\
                 [[device]]\nues = [\"{name}\"]\nkind = \"tun\"\nname = \"ue0\"\nnetns = \"{}\"\naddresses = [\"{address}/24\"]\n",
                ns.path()
            );
        }
        self.start("gnb", &self.gnb, &config)
    }

    fn ue(&self, token: &str) -> Program {
        let folder = self.folder.path().display();
        std::fs::write(self.file("ue.token"), token).unwrap();
        self.phone.sh(&format!("{ANABRANCH} keygen --out {folder}/ue.key"));
        let config = format!(
            "[ue]\nname = \"phone\"\nprivate_key_file = \"{folder}/ue.key\"\n[upf]\npublic_key = \"vmHhqE8tcZ4WAGqG4kP5IO2rCzYb1eN3mWvPc7yqC2o=\"\n\
             [[access]]\nname = \"5g\"\nremote = \"192.0.2.1:4500\"\n\
             [slices]\nmanager = \"unix:{folder}/one.sock\"\ntoken_file = \"{folder}/ue.token\"\n\
             [[slice]]\nslice = \"gold\"\ninterface = \"ue0\"\nmark = 512\ntable = 512\n"
        );
        self.start("ue", &self.phone, &config)
    }

    /// Sends a request to an agent.
    async fn call(&self, part: &str, method: &str, path: &str, body: Option<Value>) -> Value {
        let socket = self.file(&format!("{part}.sock"));
        let http = reqwest::Client::builder().no_proxy().unix_socket(socket).build().unwrap();
        let mut request = http.request(method.parse().unwrap(), format!("http://x{path}"));
        if let Some(body) = body {
            request = request.json(&body);
        }
        request.timeout(Duration::from_secs(20)).send().await.unwrap().json().await.unwrap()
    }

    /// Requests candidates for connections with this downlink rate, as a program would at the UE's agent.
    async fn select(&self, min_recv_bps: u64) -> Value {
        let body = json!({"properties": {"minRecvRate": min_recv_bps}, "remote": [{"address": "10.45.0.1", "port": 443}]});
        self.call("ue", "POST", "/connections/select", Some(body)).await
    }

    /// The outcome of the last request for more capacity.
    async fn last_need(&self) -> Value {
        self.call("ue", "GET", "/connections/manager", None).await["needs"]
            .as_array()
            .unwrap()
            .last()
            .cloned()
            .unwrap_or_default()
    }

    async fn share(&self, slice: &str) -> f64 {
        let slices = self.call("gnb", "GET", "/v1/slices", None).await;
        let all = slices["slices"].as_array().unwrap();
        all.iter().find(|s| s["name"] == slice).map_or(0.0, |s| s["share_percent"].as_f64().unwrap())
    }

    /// The phone's share of the downlink traffic of the cell during a short period.
    async fn part_of_phone(&self) -> f64 {
        let bytes = async |ue: &str| {
            let ue = self.call("gnb", "GET", &format!("/v1/ues/{ue}"), None).await;
            ue["bearers"][0]["downlink"]["delivered_bytes"].as_f64().unwrap_or_else(|| panic!("{ue}"))
        };
        let before = (bytes("phone").await, bytes("tv").await);
        tokio::time::sleep(Duration::from_millis(1500)).await;
        let (phone, tv) = (bytes("phone").await - before.0, bytes("tv").await - before.1);
        // NaN before there is traffic, which compares false with everything.
        if phone + tv < 100_000.0 { f64::NAN } else { phone / (phone + tv) }
    }
}

async fn until(what: &str, holds: impl AsyncFn() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !holds().await {
        assert!(Instant::now() < end, "never: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn made(manager: &Manager, name: &str, guaranteed_kbps: u64, max_kbps: u64) -> String {
    let rates = json!({"guaThpt": guaranteed_kbps, "maxThpt": max_kbps});
    let body = json!({"name": name, "serviceProfile": {"sst": 1, "dLThptPerSlice": rates}});
    let (status, made) = manager.call("POST", "/v1/slices", Some(body)).await.unwrap();
    assert_eq!(status, 201, "{made}");
    made["id"].as_str().unwrap().to_owned()
}

async fn manager(folder: &Path) -> Manager {
    let database = format!("sqlite:{}/slices.db", folder.display());
    // One UE may use all free capacity.
    let cell =
        format!("{CELL}gnb = \"unix:{}/gnb.sock\"\n[limits]\nue_growth_percent = 100\n", folder.display());
    Manager::start_with(folder, "one", &database, &cell).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rate_that_no_slice_guarantees_enlarges_a_slice_in_the_cell() {
    let Some(world) = World::new() else { return };
    let _gnb = world.cell();
    let manager = manager(world.folder.path()).await;
    let (gold, _silver) =
        (made(&manager, "gold", 4500, 15_000).await, made(&manager, "silver", 3600, 3600).await);
    manager.settled().await;
    let (_, ue) = manager.call("PUT", "/v1/ues/phone", Some(json!({"slices": []}))).await.unwrap();
    let place = format!("/v1/ues/phone/slices/{gold}");
    assert_eq!(manager.call("PUT", &place, Some(json!({"cell_ue": "phone"}))).await.unwrap().0, 204);
    until("the phone is in its slice", async || {
        world.call("gnb", "GET", "/v1/ues/phone", None).await["slice"] == "gold"
    })
    .await;
    let share_is = async |percent: f64| (world.share("gold").await - percent).abs() < 0.01;
    assert!(share_is(25.0).await);
    let _ue = world.ue(ue["token"].as_str().unwrap());
    let guaranteed = async || {
        world.call("ue", "GET", "/connections/slices", None).await["gold"]["downlink_guaranteed_bps"].as_u64()
    };
    until("told", async || guaranteed().await == Some(4_500_000)).await;

    // More than the cell's capacity, to both, during the whole test.
    let mut load = Vec::new();
    for (ns, to) in [(&world.phone, "10.45.0.2"), (&world.tv, "10.45.0.3")] {
        load.push(ns.spawn("iperf3", &["-s"], &world.file("iperf3.log")));
        until("iperf3 listens", async || !ns.sh("ss -Hltn 'sport = :5201'").is_empty()).await;
        let args = ["-u", "-b", "20M", "-l", "1200", "-t", "120", "-c", to];
        load.push(world.network.spawn("iperf3", &args, &world.file("iperf3.log")));
    }
    // 25 % of the RBs, and 55 % for the tv: less than a third of the traffic.
    until("its part is as its slice's", async || world.part_of_phone().await < 0.4).await;

    // Rates that a slice already guarantees cause no request.
    assert_eq!(world.select(4_000_000).await["needs"], json!([]));
    assert_eq!(world.last_need().await, Value::Null);
    // A rate that no slice guarantees is requested and granted.
    let answer = world.select(12_600_000).await;
    assert_eq!(answer["needs"][0]["slices"], json!(["gold"]), "{answer}");
    assert!(answer["candidates"].as_array().is_some_and(|c| !c.is_empty()), "as well as may be: {answer}");
    until("the cell has it", async || share_is(70.0).await).await;
    until("the UE knows", async || guaranteed().await == Some(12_600_000)).await;
    let need = world.last_need().await;
    assert_eq!(
        (&need["became"], &need["slice"], &need["dl_bps"]),
        (&json!("grows"), &json!("gold"), &json!(12_600_000))
    );
    assert_eq!(world.select(12_600_000).await["needs"], json!([]), "the next question finds it");
    // Now 70 to 10.
    until("its packets have it", async || world.part_of_phone().await > 0.6).await;

    // 15 Mbit/s are within its maximum, but exceed the free capacity of the cell.
    world.select(15_000_000).await;
    until("refused", async || world.last_need().await["became"] == "refused").await;
    let why = world.last_need().await["why"].to_string();
    assert!(why.contains("gold: 409") && why.contains(" left, and "), "{why}");
    // 16 Mbit/s exceed its maximum.
    world.select(16_000_000).await;
    until("refused", async || world.last_need().await["dl_bps"] == 16_000_000).await;
    let why = world.last_need().await["why"].to_string();
    assert!(why.contains("at most 15000000"), "{why}");
    assert!(share_is(70.0).await);
    let metrics = world
        .phone
        .sh(&format!("curl -s --unix-socket {} http://x/metrics", world.file("ue.sock").display()));
    for line in ["needs_total{what=\"grows\"} 1", "needs_total{what=\"refused\"} 2"] {
        assert!(metrics.contains(line), "{metrics}");
    }
}
