//! packaging/: units that systemd accepts, an installation that matches its README, and programs that need no
//! more privileges than the units grant.

// These tests run in real time.
#![allow(clippy::disallowed_methods)]

#[path = "../run/net.rs"]
#[allow(dead_code, reason = "shared with the tests of the programs")]
mod net;

use net::{ANABRANCH, Options, World};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const PACKAGING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging");

const UE_UNIT: &str = include_str!("../../../../packaging/systemd/anabranch-ue@.service");
const GNB_UNIT: &str = include_str!("../../../../packaging/systemd/anabranch-gnb@.service");
const LWIP_UNIT: &str = include_str!("../../../../packaging/systemd/anabranch-lwip@.service");
const PROXY_UNIT: &str = include_str!("../../../../packaging/systemd/anabranch-proxy.service");
const UPF_UNIT: &str = include_str!("../../../../packaging/systemd/anabranch-upf.service");

const UNITS: [&str; 6] = [
    "anabranch-ue@home.service",
    "anabranch-upf.service",
    "anabranch-gnb@gnb.service",
    "anabranch-lwip@lwip.service",
    "anabranch-proxy.service",
    "anabranch-slice-manager.service",
];
const SLICES_UNIT: &str = include_str!("../../../../packaging/systemd/anabranch-slice-manager.service");

fn keys(unit: &'static str) -> BTreeMap<&'static str, &'static str> {
    unit.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once('=')).collect()
}

#[track_caller]
fn text(output: &Output) -> String {
    let both = [output.stdout.as_slice(), &output.stderr].concat();
    String::from_utf8_lossy(&both).into_owned()
}

/// Whether a program is installed; a missing one is reported, and is a failure in CI.
fn there(program: &str) -> bool {
    let found =
        ["/usr/sbin", "/usr/bin", "/sbin", "/bin"].iter().any(|d| Path::new(d).join(program).exists());
    if !found {
        assert!(std::env::var_os("CI").is_none(), "CI must have {program}");
        // Written directly, because the test harness captures output of passing tests.
        let _ = writeln!(std::io::stderr(), "skipped: a test of packaging/ needs {program}");
    }
    found
}

#[test]
fn units_have_two_capabilities_and_no_way_to_more() {
    for unit in [UE_UNIT, UPF_UNIT, GNB_UNIT, LWIP_UNIT] {
        let keys = keys(unit);
        for key in ["CapabilityBoundingSet", "AmbientCapabilities"] {
            assert_eq!(keys[key], "CAP_NET_ADMIN CAP_NET_RAW");
        }
        assert_eq!((keys["Group"], keys["NoNewPrivileges"]), ("anabranch", "yes"));
        assert_eq!((keys["ProtectSystem"], keys["DevicePolicy"]), ("strict", "closed"));
        assert_eq!((keys["Type"], keys["ExecReload"]), ("notify", "/bin/kill -HUP $MAINPID"));
    }
    // The units differ only where necessary.
    let same = [
        "ExecStart",
        "Description",
        "Documentation",
        "Wants",
        "After",
        "RestartKillSignal",
        "User",
        "ReadWritePaths",
    ];
    let rest = |unit| {
        let mut keys = keys(unit);
        keys.retain(|key, _| !same.contains(key));
        keys
    };
    assert_eq!(rest(UE_UNIT), rest(UPF_UNIT));
    // A gNB needs real-time priority for slots, and an LWIP node for the ends of holds.
    for unit in [GNB_UNIT, LWIP_UNIT] {
        let mut keys = rest(unit);
        assert_eq!(keys.remove("LimitRTPRIO"), Some("1"));
        assert_eq!(keys.insert("RestrictRealtime", "yes"), None);
        assert_eq!(keys, rest(UE_UNIT));
    }
}

/// No two daemons share a user, and all writable files are in the directories created for them.
#[test]
fn each_daemon_has_a_user_of_its_own() {
    let units = [UE_UNIT, UPF_UNIT, GNB_UNIT, LWIP_UNIT, PROXY_UNIT, SLICES_UNIT].map(keys);
    let users: std::collections::BTreeSet<&str> = units.iter().map(|keys| keys["User"]).collect();
    assert_eq!(users.len(), units.len(), "{users:?}");
    let sysusers = std::fs::read_to_string(format!("{PACKAGING}/sysusers.d/anabranch.conf")).unwrap();
    for user in users {
        assert!(sysusers.lines().any(|line| line.starts_with(&format!("u     {user} "))), "{user}");
    }
    let tmpfiles = std::fs::read_to_string(format!("{PACKAGING}/tmpfiles.d/anabranch.conf")).unwrap();
    for keys in &units {
        // These would change the owner to the user of each unit that starts.
        assert!(!keys.contains_key("RuntimeDirectory") && !keys.contains_key("StateDirectory"));
        for folder in keys["ReadWritePaths"].split(' ') {
            let made = tmpfiles.lines().find(|line| line.split_whitespace().nth(1) == Some(folder));
            assert!(made.is_some_and(|line| line.contains(" 1770 root ")), "{folder}: {made:?}");
        }
    }
}

/// A proxy has the same two capabilities, and access to neither devices nor sysctls.
#[test]
fn the_proxy_sees_less() {
    let keys = keys(PROXY_UNIT);
    for key in ["CapabilityBoundingSet", "AmbientCapabilities"] {
        assert_eq!(keys[key], "CAP_NET_ADMIN CAP_NET_RAW");
    }
    assert_eq!((keys["NoNewPrivileges"], keys["Type"]), ("yes", "notify"));
    assert_eq!((keys["PrivateDevices"], keys["ProtectKernelTunables"]), ("yes", "yes"));
    // However it ends, the host must not be cut off.
    assert_eq!(keys["ExecStopPost"], "/usr/bin/anabranch proxy --clean");
    assert_eq!((keys["ProtectSystem"], keys["ExecReload"]), ("strict", "/bin/kill -HUP $MAINPID"));
}

/// A slice manager changes nothing on its machine.
#[test]
fn the_slice_manager_has_no_capability_at_all() {
    let keys = keys(SLICES_UNIT);
    assert_eq!((keys["CapabilityBoundingSet"], keys["AmbientCapabilities"]), ("", ""));
    assert_eq!(keys["NoNewPrivileges"], "yes");
    assert_eq!((keys["ProtectSystem"], keys["PrivateDevices"]), ("strict", "yes"));
}

/// A root directory with program, units and users in place.
fn root() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    let put = |from: &Path, to: &str| {
        let to = root.path().join(to);
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        std::fs::copy(from, to).unwrap();
    };
    let packaging = PathBuf::from(PACKAGING);
    put(Path::new(ANABRANCH), "usr/bin/anabranch");
    put(Path::new("/bin/kill"), "bin/kill");
    for unit in [
        "anabranch-ue@.service",
        "anabranch-upf.service",
        "anabranch-gnb@.service",
        "anabranch-lwip@.service",
        "anabranch-proxy.service",
        "anabranch-slice-manager.service",
    ] {
        put(&packaging.join("systemd").join(unit), &format!("usr/lib/systemd/system/{unit}"));
    }
    put(&packaging.join("sysusers.d/anabranch.conf"), "usr/lib/sysusers.d/anabranch.conf");
    put(&packaging.join("tmpfiles.d/anabranch.conf"), "usr/lib/tmpfiles.d/anabranch.conf");
    root
}

#[test]
fn systemd_accepts_the_units_and_rates_them_safe() {
    if !there("systemd-analyze") {
        return;
    }
    let root = root();
    let analyze = |args: &[&str]| {
        let mut command = Command::new("systemd-analyze");
        command.arg(format!("--root={}", root.path().display())).args(args).output().unwrap()
    };
    for unit in UNITS {
        let output = analyze(&["verify", unit]);
        // Messages about other units, which are missing in this root, do not matter.
        let about = text(&output);
        let about: Vec<&str> = about.lines().filter(|line| line.contains("anabranch")).collect();
        assert!(
            about.iter().all(|line| line.contains("not found") && line.contains(".target")),
            "{about:#?}"
        );
    }
    // A control: an unknown key must be detected.
    let broken = root.path().join("usr/lib/systemd/system/anabranch-upf.service");
    std::fs::write(&broken, UPF_UNIT.replace("ProtectClock", "ProtektClock")).unwrap();
    assert!(text(&analyze(&["verify", "anabranch-upf.service"])).contains("ProtektClock"));
    std::fs::write(&broken, UPF_UNIT).unwrap();
    // Exposure from 0 (safe) to 100; the remaining exposure is network access, which is the purpose.
    for unit in UNITS {
        let output = analyze(&["security", "--offline=yes", "--threshold=25", unit]);
        assert!(output.status.success(), "{}", text(&output));
    }
}

#[test]
fn user_and_folders_are_made_as_described() {
    if !there("systemd-sysusers") || !there("systemd-tmpfiles") || !nix::unistd::Uid::effective().is_root() {
        return;
    }
    use std::os::unix::fs::MetadataExt;
    let root = root();
    let etc = root.path().join("etc");
    std::fs::create_dir_all(etc.join("anabranch")).unwrap();
    let state = root.path().join("var/lib/anabranch");
    std::fs::create_dir_all(&state).unwrap();
    for name in ["ue.key", "upf.key", "laptop.key", "token"] {
        std::fs::write(etc.join("anabranch").join(name), "secret").unwrap();
    }
    // As left by an earlier version with a single user.
    std::fs::write(state.join("upf-state.json"), "{}").unwrap();
    std::os::unix::fs::chown(state.join("upf-state.json"), Some(4711), Some(4711)).unwrap();
    for (program, create) in [("systemd-sysusers", ""), ("systemd-tmpfiles", "--create")] {
        let mut command = Command::new(program);
        command.arg(format!("--root={}", root.path().display()));
        let output =
            command.args([create, "anabranch.conf"].iter().filter(|a| !a.is_empty())).output().unwrap();
        assert!(output.status.success(), "{program}: {}", text(&output));
    }
    let passwd = std::fs::read_to_string(etc.join("passwd")).unwrap();
    let uid = |name: &str| -> u32 {
        let user = passwd.lines().find(|line| line.starts_with(&format!("{name}:"))).unwrap();
        assert!(user.ends_with("/nologin"), "{user}");
        user.split(':').nth(2).unwrap().parse().unwrap()
    };
    let (ue, upf) = (uid("anabranch-ue"), uid("anabranch-upf"));
    assert_ne!(ue, upf);
    let meta = |name: &str| std::fs::metadata(etc.join("anabranch").join(name)).unwrap();
    let of = |meta: std::fs::Metadata| (meta.mode() & 0o7777, meta.uid());
    assert_eq!(of(meta("")), (0o750, 0));
    assert_eq!((of(meta("ue.key")), of(meta("upf.key"))), ((0o400, ue), (0o400, upf)));
    assert_eq!(of(meta("laptop.key")), (0o400, 0), "whoever it is for, no other daemon reads it");
    assert_eq!(of(meta("token")), (0o440, 0));
    let group = meta("token").gid();
    assert_ne!(group, 0);
    for folder in [root.path().join("run/anabranch"), state.clone()] {
        let meta = std::fs::metadata(&folder).unwrap();
        assert_eq!((meta.gid(), of(meta)), (group, (0o1770, 0)), "{}", folder.display());
    }
    assert_eq!(of(std::fs::metadata(state.join("upf-state.json")).unwrap()), (0o600, upf));
}

/// The examples are valid as they are.
#[test]
fn the_examples_are_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path().to_str().unwrap();
    for part in ["ue", "upf", "gnb", "lwip", "proxy", "slice-manager"] {
        // Keys and directories as in an installation.
        let key = format!("{here}/{part}.key");
        assert!(Command::new(ANABRANCH).args(["keygen", "--out", &key]).output().unwrap().status.success());
        let mut example = std::fs::read_to_string(format!("{PACKAGING}/{part}.example.toml")).unwrap();
        for installed in ["/etc/anabranch", "/run/anabranch", "/var/lib/anabranch"] {
            example = example.replace(installed, here);
        }
        let file = format!("{here}/{part}.toml");
        std::fs::write(&file, example).unwrap();
        let output = Command::new(ANABRANCH).args([part, "--check", "--config", &file]).output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
    }
}

/// With another user and only the units' two capabilities: session, traffic, and nothing left behind.
#[test]
fn the_programs_need_no_more_than_the_units_give() {
    if !there("setpriv") {
        return;
    }
    let Some(world) = World::new() else { return };
    world.configure(&Options::default());
    let state_file = format!("[ue]\nstate_file = \"{}\"\n", world.file("ue-state.json").display());
    let with_state =
        std::fs::read_to_string(world.file("ue.toml")).unwrap().replacen("[ue]\n", &state_file, 1);
    std::fs::write(world.file("ue.toml"), with_state).unwrap();
    let (ue_before, upf_before) = (world.ue.picture(), world.upf.picture());
    // As in the units: a user that owns keys, state and sockets.
    let user = nix::unistd::User::from_name("nobody").unwrap().unwrap();
    for name in ["", "ue.key", "upf.key", "ue.toml", "upf.toml"] {
        std::os::unix::fs::chown(world.file(name), Some(user.uid.as_raw()), Some(user.gid.as_raw())).unwrap();
    }
    let start = |part: &str| {
        let caps = "-all,+net_admin,+net_raw";
        let (uid, gid) = (user.uid.to_string(), user.gid.to_string());
        // Where other users cannot open the device, as in many containers, use a copy that they can.
        let program = format!(
            "d=$(mktemp -d) && mount -t tmpfs tmpfs $d && mknod -m 666 $d/tun c 10 200 && mount --bind $d/tun /dev/net/tun
             exec setpriv --reuid={uid} --regid={gid} --clear-groups --no-new-privs --bounding-set={caps} \
               --inh-caps={caps} --ambient-caps={caps} -- {} {part} --config {}",
            world.file("anabranch").display(),
            world.file(&format!("{part}.toml")).display(),
        );
        let ns = if part == "ue" { &world.ue } else { &world.upf };
        ns.spawn("unshare", &["--mount", "sh", "-ec", &program], &world.file(&format!("{part}.log")))
    };
    // Other users may have no access to the build directory.
    std::fs::copy(ANABRANCH, world.file("anabranch")).unwrap();
    let upf = start("upf");
    world.until("the UPF runs", || upf.log().contains("upf runs"));
    let ue = start("ue");
    world.until("the UE is connected", || world.paths_up("ue") == 2);
    let text = world.ue.sh("ping -q -i 0.01 -c 20 -W 2 192.0.2.2; ping -q -i 0.01 -c 20 -W 2 2001:db8:6::2");
    assert_eq!(text.matches(" 0% packet loss").count(), 2, "{text}\n{}", world.logs());
    let status = |pid: &str| std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let pids = world.ue.sh(&format!("pgrep -f '^{}'", world.file("anabranch").display()));
    for pid in pids.split_whitespace() {
        let status = status(pid);
        // CAP_NET_ADMIN is 12, CAP_NET_RAW 13.
        assert!(
            status.contains("CapEff:\t0000000000003000") && status.contains("NoNewPrivs:\t1"),
            "{status}"
        );
    }
    ue.stop();
    assert_eq!(world.ue.picture(), ue_before);
    upf.stop();
    assert_eq!(world.upf.picture(), upf_before);
    let log = world.logs();
    assert!(!log.contains("WARN") && !log.contains("ERROR"), "{log}");
}

/// Messages quoted in the troubleshooting section of the page are messages of the program.
#[test]
fn quoted_messages_exist_in_the_program() {
    fn sources(folder: &Path, text: &mut String) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                sources(&path, text);
            } else {
                *text += &std::fs::read_to_string(&path).unwrap();
            }
        }
    }
    let mut said = String::new();
    for of in ["node/src", "engine/src", "atsss/src", "steer/src"] {
        sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(of), &mut said);
    }
    // And messages of the kernel.
    said += "Permission denied";
    let page = std::fs::read_to_string(format!("{PACKAGING}/../docs/operations.md")).unwrap();
    let rows = page.split("## Troubleshooting").nth(1).unwrap().lines().filter(|line| line.starts_with("| "));
    let symptoms = rows.map(|row| row.split('|').nth(1).unwrap());
    let quoted: Vec<&str> = symptoms.flat_map(|cell| cell.split('"').skip(1).step_by(2)).collect();
    assert!(quoted.len() >= 9, "{quoted:?}");
    for message in quoted {
        // The parts between variable text.
        for piece in message.split('…').flat_map(|part| part.split("anb0")).flat_map(|part| part.split("2 "))
        {
            let piece = piece.trim();
            assert!(
                said.contains(piece),
                "docs/operations.md quotes \"{message}\"; nothing says \"{piece}\""
            );
        }
    }
}

/// The package has the files that the README lists, and the required metadata.
#[test]
fn the_package_holds_what_the_readme_lists() {
    if !there("dpkg-deb") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let make = |args: &[&str]| Command::new(format!("{PACKAGING}/deb")).args(args).output().unwrap();
    let out = folder.path().to_str().unwrap();
    let output = make(&["--binary", ANABRANCH, "--out", out]);
    assert!(output.status.success(), "{}", text(&output));
    let package = String::from_utf8(output.stdout).unwrap().trim().to_owned();
    let deb = |args: &[&str]| {
        let output = Command::new("dpkg-deb").args(args).output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        text(&output)
    };
    let contents = deb(&["--contents", &package]);
    for path in [
        "./usr/bin/anabranch",
        "./usr/lib/systemd/system/anabranch-ue@.service",
        "./usr/lib/systemd/system/anabranch-upf.service",
        "./usr/lib/systemd/system/anabranch-gnb@.service",
        "./usr/lib/systemd/system/anabranch-lwip@.service",
        "./usr/lib/systemd/system/anabranch-slice-manager.service",
        "./usr/lib/systemd/system/anabranch-proxy.service",
        "./usr/share/doc/anabranch/examples/proxy.toml",
        "./usr/share/doc/anabranch/proxy.md",
        "./usr/share/doc/anabranch/examples/slice-manager.toml",
        "./usr/share/doc/anabranch/slice-manager.md",
        "./usr/lib/sysusers.d/anabranch.conf",
        "./usr/lib/tmpfiles.d/anabranch.conf",
        "./usr/share/doc/anabranch/examples/ue.toml",
        "./usr/share/doc/anabranch/examples/upf.toml",
        "./usr/share/doc/anabranch/examples/gnb.toml",
        "./usr/share/doc/anabranch/examples/lwip.toml",
        "./usr/share/doc/anabranch/operations.md",
        "./usr/share/doc/anabranch/ran.md",
        "./usr/share/doc/anabranch/copyright",
    ] {
        assert!(contents.lines().any(|line| line.ends_with(&format!(" {path}"))), "{path} in\n{contents}");
    }
    assert!(contents.lines().all(|line| line.contains(" root/root ")), "{contents}");
    let control = deb(&["--field", &package]);
    assert!(control.contains(&format!("Version: {}\n", env!("CARGO_PKG_VERSION"))), "{control}");
    assert!(control.contains("libc6 (>= 2."), "{control}");

    let root = folder.path().join("root");
    deb(&["--raw-extract", &package, root.to_str().unwrap()]);
    for script in ["postinst", "prerm", "postrm"] {
        let checked = Command::new("sh").arg("-n").arg(root.join("DEBIAN").join(script)).output().unwrap();
        assert!(checked.status.success(), "{script}: {}", text(&checked));
    }
    let version = Command::new(root.join("usr/bin/anabranch")).arg("--version").output().unwrap();
    assert!(text(&version).contains(env!("CARGO_PKG_VERSION")), "{}", text(&version));

    let missing = make(&["--binary", "/nonexistent"]);
    assert!(!missing.status.success() && text(&missing).contains("./x setup"), "{}", text(&missing));
}

/// The README's "By hand" section installs the same files as the package.
#[test]
fn by_hand_is_as_by_package() {
    let readme = std::fs::read_to_string(format!("{PACKAGING}/README.md")).unwrap();
    let by_hand = readme.split("## By hand").nth(1).unwrap().split("```").nth(1).unwrap();
    let script = by_hand.trim_start_matches("sh\n");
    let checkout = tempfile::tempdir().unwrap();
    let root = checkout.path().join("root");
    std::fs::create_dir_all(checkout.path().join("target/release")).unwrap();
    std::os::unix::fs::symlink(ANABRANCH, checkout.path().join("target/release/anabranch")).unwrap();
    std::os::unix::fs::symlink(PACKAGING, checkout.path().join("packaging")).unwrap();
    // Everything except systemd's own part, into a directory.
    let lines: Vec<String> = script
        .lines()
        .filter(|line| line.starts_with("install"))
        .map(|line| line.replace(" /usr/", &format!(" {}/usr/", root.display())))
        .collect();
    assert_eq!((lines.len(), script.lines().count()), (4, 7), "{script}");
    let output =
        Command::new("sh").args(["-ec", &lines.join("\n")]).current_dir(checkout.path()).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    for path in ["bin/anabranch", "lib/systemd/system/anabranch-ue@.service", "lib/sysusers.d/anabranch.conf"]
    {
        assert!(root.join("usr").join(path).is_file(), "{path}");
    }
}
