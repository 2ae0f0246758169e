//! An `nft` that fails half-way: the table of the running program disappears, and no new one can be started.

use super::net::{Options, World};
use serde_json::json;
use std::time::Duration;

const RULES: &str = "[[rule]]\nname = \"web\"\nfilter = { protocol = \"tcp\", remote_port = \"8000-8999\" }\n\
    steering = { mode = \"load-balance\" }\nfunctionality = \"mptcp\"\n";

/// Places an nft before the real one that ends immediately if it is to keep a table and the file `dying`
/// exists.
fn shim(world: &World) {
    let bin = world.file("bin");
    std::fs::create_dir(&bin).unwrap();
    let script = format!(
        "#!/bin/sh\nnft=$(PATH=${{PATH#*:}} command -v nft)\n\
         case \"$*\" in *-i*) echo >> {}; [ -e {} ] && exit 3;; esac\nexec $nft \"$@\"\n",
        world.file("starts").display(),
        world.file("dying").display()
    );
    std::fs::write(bin.join("nft"), script).unwrap();
    world.ue.sh(&format!("chmod +x {}", bin.join("nft").display()));
    let path = format!("PATH={}:{}", bin.display(), std::env::var("PATH").unwrap());
    *world.environment.borrow_mut() = vec![path];
}

#[test]
fn a_reload_during_which_nft_fails_reports_the_mismatch() {
    let Some(world) = World::new() else { return };
    world.configure(&Options { ue_rules: RULES, upf_more: "[tcp_lane]\n", ..Options::default() });
    shim(&world);
    let upf = world.start_upf();
    let ue = world.start_ue();
    let lane = || world.get("ue", "/v1/tcp-lane");
    world.until("the lane runs", || lane()["state"] == "runs");
    let file = std::fs::read_to_string(world.file("ue.toml")).unwrap();
    let reload = |ports: &str| {
        std::fs::write(world.file("ue.toml"), file.replace("8000-8999", ports)).unwrap();
        world.call("ue", &["-X", "POST"], "/v1/reload")
    };
    std::fs::write(world.file("dying"), "").unwrap();
    world.ue.sh(&format!("kill -9 $(pgrep -P {} -x nft)", ue.pid()));
    assert_eq!(reload("8000-9999")["changed"], json!(["rule"]));
    let why = || lane()["why"].as_str().unwrap_or_default().to_owned();
    world.until("it says so", || why().contains("does not match the current rules"));
    assert_eq!(lane()["state"], "runs");
    // The problem is not reported repeatedly.
    std::thread::sleep(Duration::from_secs(6));
    let starts = std::fs::read_to_string(world.file("starts")).unwrap().lines().count();
    assert!(starts <= 10, "{starts}");
    std::fs::remove_file(world.file("dying")).unwrap();
    assert_eq!(reload("8000-9998")["changed"], json!(["rule"]));
    world.until("it is led", || world.ue.sh("nft list ruleset").contains("8000-9998") && why().is_empty());
    ue.stop();
    upf.stop();
}
