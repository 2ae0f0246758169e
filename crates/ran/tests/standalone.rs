//! The libraries outside the workspace: other programs can use a cell alone, and congestion control alone, without pulling
//! in cryptography; and every library can be packaged.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A cell of one UE, through which one packet passes.
const CELL: &str = r###"
use anabranch_element::packet::Packet;
use anabranch_element::time::{Duration, Instant};
use anabranch_element::{Element, Port, Sink, drive};
use anabranch_ran::channel::ChannelConfig;
use anabranch_ran::gnb::{BearerConfig, Gnb, GnbConfig, GnbEvent, UeConfig};
use anabranch_ran::queue::Algorithm;
use anabranch_ran::sched::SliceConfig;

struct Sent(Vec<Packet>);

impl Sink<GnbEvent> for Sent {
    fn transmit(&mut self, _: Port, packet: Packet) {
        self.0.push(packet);
    }
    fn event(&mut self, _: GnbEvent) {}
}

fn main() {
    let mut config: GnbConfig = serde_json::from_str(r##"{"ues": []}"##).unwrap();
    config.slices = vec![SliceConfig::new("all", 100.0)];
    config.ues = vec![UeConfig {
        addresses: vec!["10.45.0.2".parse().unwrap()],
        bearer: BearerConfig::with_queue(Algorithm::Jit),
        ..UeConfig::new("phone", "all", ChannelConfig::mcs(28))
    }];
    let mut gnb = Gnb::new(&config, &mut |file| Err(format!("there is no file {file}"))).unwrap();
    // IPv4 and UDP from 192.0.2.1:9 to 10.45.0.2:9 with 8 bytes.
    let mut packet = vec![0x45, 0, 0, 36, 0, 0, 0, 0, 64, 17, 0, 0, 192, 0, 2, 1, 10, 45, 0, 2, 0, 9, 0, 9, 0, 16, 0, 0];
    packet.extend([0; 8]);
    gnb.on_packet(Gnb::N3, Packet::new(Instant::ZERO, packet), Instant::ZERO);
    let (mut now, mut sent) = (Instant::ZERO, Sent(Vec::new()));
    while let Some((next, _)) = drive(&mut gnb, now, &mut sent).filter(|(at, _)| *at <= Instant::from_millis(20)) {
        now = next;
    }
    let waited = sent.0[0].at.saturating_since(Instant::ZERO);
    println!("{} packet, after less than 10 ms: {}", sent.0.len(), waited < Duration::from_millis(10));
}
"###;

/// Slow start of a controller selected by name.
const SENDER: &str = r#"
use anabranch_cc::{Ack, Algorithm, CcConfig, CongestionController};

fn main() {
    for name in Algorithm::NAMES {
        let mut controller = name.parse::<Algorithm>().unwrap().build(CcConfig::default());
        let before = controller.cwnd_bytes();
        controller.on_ack(&Ack { acked_bytes: 2896, delivered_bytes: 2896, cwnd_limited: true, ..Ack::default() });
        assert!(controller.cwnd_bytes() >= before, "{name}");
    }
    println!("{} controllers", Algorithm::ALL.len());
}
"#;

/// Crates that none of them may depend on.
const CRYPTOGRAPHY: [&str; 6] = ["snow", "aws-lc-rs", "aws-lc-sys", "ring", "rustls", "openssl"];

fn root() -> PathBuf {
    fs::canonicalize(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")).unwrap()
}

/// Standard output and standard error of a command, which must succeed.
fn run(command: &mut Command) -> (String, String) {
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let (printed, errors) = (text(output.stdout), text(output.stderr));
    assert!(output.status.success(), "{command:?}\n{printed}{errors}");
    (printed, errors)
}

#[test]
fn a_program_outside_uses_the_cell_or_congestion_control_alone() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("standalone");
    let programs = [
        ("cell", CELL, &["element", "ran"][..], "1 packet, after less than 10 ms: true\n"),
        ("sender", SENDER, &["cc"], "7 controllers\n"),
    ];
    let write = |path: &str, text: &str| {
        let path = folder.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write(
        "Cargo.toml",
        "[workspace]\nmembers = [\"cell\", \"sender\"]\nresolver = \"3\"\n[profile.dev]\ndebug = false\n",
    );
    fs::copy(root().join("Cargo.lock"), folder.join("Cargo.lock")).unwrap();
    let cargo = || {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.current_dir(&folder).env("CARGO_TARGET_DIR", folder.join("target"));
        cargo
    };
    for (name, source, uses, _) in programs {
        let mut manifest = format!("[package]\nname = \"{name}\"\nedition = \"2024\"\n\n[dependencies]\n");
        for library in uses {
            let path = root().join("crates").join(library);
            manifest += &format!("anabranch-{library} = {{ path = {path:?} }}\n");
        }
        manifest += "serde_json = \"1\"\n";
        write(&format!("{name}/Cargo.toml"), &manifest);
        write(&format!("{name}/src/main.rs"), source.trim_start());
    }
    for (name, _, uses, printed) in programs {
        let tree = ["tree", "--offline", "--prefix", "none", "--edges", "normal,build", "--package", name];
        let (tree, _) = run(cargo().args(tree));
        let needed: Vec<&str> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
        for library in uses {
            assert!(needed.contains(&format!("anabranch-{library}").as_str()), "{tree}");
        }
        for library in CRYPTOGRAPHY {
            assert!(!needed.contains(&library), "{name} needs {library}:\n{tree}");
        }
        assert_eq!(run(cargo().args(["run", "--quiet", "--offline", "--package", name])).0, printed);
    }
}

/// Checks name, version and the other required fields of each package; the contents are not compiled again.
#[test]
fn every_library_can_be_packaged() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("packages");
    let _ = fs::remove_dir_all(&folder);
    let mut libraries: Vec<String> = fs::read_dir(root().join("crates"))
        .unwrap()
        .map(|krate| krate.unwrap())
        .filter(|krate| krate.path().join("src/lib.rs").exists())
        .map(|krate| format!("anabranch-{}", krate.file_name().into_string().unwrap()))
        .collect();
    libraries.sort();
    assert!(libraries.len() > 10, "{libraries:?}");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["package", "--no-verify", "--offline", "--allow-dirty", "--exclude-lockfile"]);
    cargo.args(libraries.iter().flat_map(|name| ["--package", name.as_str()]));
    let (_, said) = run(cargo.current_dir(root()).env("CARGO_TARGET_DIR", &folder));
    assert!(!said.contains("manifest has no"), "{said}");
    let made: Vec<String> = fs::read_dir(folder.join("package"))
        .unwrap()
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".crate"))
        .collect();
    assert_eq!(made.len(), libraries.len(), "{made:?}");
}
