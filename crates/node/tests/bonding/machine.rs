//! Two bare machines and the Internet between them, simulated on this machine.
//!
//! ```text
//!  laptop                                     internet                       vps
//!    wwan0 10.170.4.7/24 ───────────── 10.170.4.1                 203.0.113.10 eth0
//!    wlan0 192.168.1.20/24 ─────────── 192.168.1.1   203.0.113.1 ────────────────┘
//!    lan0  10.0.0.1/24 ─ 10.0.0.2 lan  9.9.9.9
//! ```
//!
//! A machine is a network, process and mount namespace. /etc, /usr and /var are those of this machine under
//! an overlay that takes all writes; /run is empty. Packages are installed by the real tools, and nothing of
//! it persists. systemd does not run inside: `systemctl` is a replacement that starts the command of a unit
//! with the unit's user and capabilities.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Rate of each of the laptop's links.
pub const LINK_MBPS: u32 = 20;

/// Time limit, seconds; a longer run waits for an event that does not occur.
const LIMIT_S: &str = "300";

/// A bare machine.
pub struct Machine {
    pub name: &'static str,
    init: Child,
    pid: u32,
    folder: PathBuf,
}

/// Laptop, VPS and the network between them.
pub struct World {
    pub laptop: Machine,
    pub vps: Machine,
    internet: Machine,
    _folder: tempfile::TempDir,
}

impl World {
    /// `None` where this is not possible; the reason is printed.
    pub fn new() -> Option<Self> {
        if let Err(why) = possible() {
            assert!(std::env::var_os("CI").is_none(), "CI must be able to follow docs/bonding.md: {why}");
            // Written directly, because the test harness captures output of passing tests.
            let _ = writeln!(std::io::stderr(), "skipped: {why}");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let package = package(folder.path());
        let machine = |name| Machine::new(name, &folder.path().join(name));
        let (laptop, vps, internet) = (machine("laptop"), machine("vps"), machine("internet"));
        for machine in [&laptop, &vps] {
            std::fs::copy(&package, machine.inside("home/anabranch.deb")).unwrap();
        }
        let world = Self { laptop, vps, internet, _folder: folder };
        world.connect();
        Some(world)
    }

    fn connect(&self) {
        let Self { laptop, vps, internet, .. } = self;
        veth(laptop, "wwan0", internet, "cell");
        veth(laptop, "wlan0", internet, "home");
        veth(vps, "eth0", internet, "isp");
        let shape = format!("rate {LINK_MBPS}mbit burst 32k latency 60ms");
        internet
            .run(&format!(
                "ip addr add 10.170.4.1/24 dev cell; ip addr add 192.168.1.1/24 dev home
                 ip addr add 203.0.113.1/24 dev isp; ip addr add 9.9.9.9/32 dev lo
                 tc qdisc add dev cell root tbf {shape}; tc qdisc add dev home root tbf {shape}
                 sysctl -qw net.ipv4.ip_forward=1"
            ))
            .unwrap();
        vps.run("ip addr add 203.0.113.10/24 dev eth0; ip route add default via 203.0.113.1").unwrap();
        // The work of NetworkManager: addresses, and a default route per link while it is up.
        laptop
            .run(&format!(
                "ip addr add 10.170.4.7/24 dev wwan0; ip addr add 192.168.1.20/24 dev wlan0
                 tc qdisc add dev wwan0 root tbf {shape}; tc qdisc add dev wlan0 root tbf {shape}
                 cat > /usr/bin/network-manager <<'END'
#!/bin/bash
while true; do
    ip route replace default via 192.168.1.1 dev wlan0 proto dhcp metric 600
    ip route replace default via 10.170.4.1 dev wwan0 proto dhcp metric 700
    sleep 0.3
done
END
                 chmod +x /usr/bin/network-manager
                 setsid network-manager </dev/null >/dev/null 2>&1 &
                 sleep 0.5"
            ))
            .unwrap();
    }

    /// Lets a machine behind the laptop reach the Internet.
    pub fn behind_the_laptop(&self) {
        self.laptop
            .run(
                "ip netns add lan; ip link add lan0 type veth peer name eth0 netns lan
                 ip addr add 10.0.0.1/24 dev lan0; ip link set lan0 up
                 ip -n lan addr add 10.0.0.2/24 dev eth0; ip -n lan link set eth0 up
                 ip -n lan route add default via 10.0.0.1
                 ip netns exec lan ping -c 3 -W 2 9.9.9.9
                 ip link del lan0; ip netns del lan",
            )
            .unwrap_or_else(|output| panic!("behind the laptop:\n{output}\n{}", self.laptop.logs()));
        assert!(self.internet.init.id() > 0);
    }
}

impl Machine {
    fn new(name: &'static str, folder: &Path) -> Self {
        std::fs::create_dir(folder).unwrap();
        // The machine ends with this test, however the test ends.
        let mut init = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--", "unshare"])
            .args(["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"])
            // A shell, because process 1 must reap the children of others.
            .args(["bash", "-c", "sleep infinity & wait"])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        // The child of unshare is process 1 inside.
        let children = format!("/proc/{0}/task/{0}/children", init.id());
        let pid = (0..500).find_map(|_| {
            std::thread::sleep(std::time::Duration::from_millis(10));
            let text = std::fs::read_to_string(&children).ok()?;
            let pid: u32 = text.split_whitespace().next()?.parse().ok()?;
            // The machine is ready when process 1 has executed its program.
            let command = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
            (command.trim() == "bash").then_some(pid)
        });
        let Some(pid) = pid else {
            let _ = init.kill();
            panic!("{name}: unshare made no process");
        };
        let machine = Self { name, init, pid, folder: folder.to_owned() };
        machine.set_up();
        machine
    }

    fn set_up(&self) {
        let folder = self.folder.display();
        self.run_in(
            "/",
            &format!(
                "mount -t tmpfs tmpfs {folder}
             for d in etc usr var; do
                 mkdir -p {folder}/$d/up {folder}/$d/work
                 mount -t overlay overlay -o lowerdir=/$d,upperdir={folder}/$d/up,workdir={folder}/$d/work /$d
             done
             mkdir {folder}/home
             mount -t tmpfs tmpfs /run
             rm -rf /etc/anabranch /var/lib/anabranch
             mknod -m 666 {folder}/tun c 10 200
             mount --bind {folder}/tun /dev/net/tun
             ip link set lo up
             sysctl -qw net.ipv6.conf.all.disable_ipv6=1
             cat > /usr/bin/systemctl"
            ),
            SYSTEMCTL,
        )
        .unwrap_or_else(|output| panic!("{}: {output}", self.name));
        self.run("chmod 755 /usr/bin/systemctl").unwrap();
    }

    /// Runs commands as a reader would type them; returns their output, as `Err` if one failed.
    pub fn run(&self, commands: &str) -> Result<String, String> {
        self.run_in(&format!("{}/home", self.folder.display()), commands, "")
    }

    fn run_in(&self, folder: &str, commands: &str, input: &str) -> Result<String, String> {
        let pid = self.pid.to_string();
        let mut child = Command::new("timeout")
            .args(["--kill-after=5", LIMIT_S, "nsenter", "--target", &pid, "--net", "--mount", "--pid", "--"])
            .args(["bash", "-euo", "pipefail", "-c", &format!("exec 2>&1; cd {folder}\n{commands}")])
            .env("DEBIAN_FRONTEND", "noninteractive")
            .env_remove("ANABRANCH_SOCKET")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        match output.status.code() {
            Some(0) => Ok(text),
            Some(124) => Err(format!("not done within {LIMIT_S} s; so far:\n{text}")),
            _ => Err(text),
        }
    }

    /// The path of a file of the machine, from outside.
    fn inside(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{}/{name}", self.pid, self.folder.display()))
    }

    /// Bytes sent so far, by access.
    pub fn sent(&self) -> BTreeMap<String, u64> {
        let text = self.run("anabranch ctl paths --json").unwrap_or_else(|text| panic!("{text}"));
        let list: serde_json::Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
        let paths = list["paths"].as_array().unwrap();
        assert_eq!(paths.len(), 2, "{text}");
        paths
            .iter()
            .map(|p| (p["access"].as_str().unwrap().to_owned(), p["tx_bytes"].as_u64().unwrap()))
            .collect()
    }

    /// The logs of the services.
    pub fn logs(&self) -> String {
        self.run("tail -n 40 /var/log/anabranch-*.log").unwrap_or_else(|text| text)
    }

    /// The complete state that the tunnel, or the page, may have changed.
    pub fn picture(&self) -> String {
        self.run(
            "ip -o link | sed 's/ state .*//; s/<.*>//'; ip -o addr | awk '{print $2,$3,$4}'; ip rule; ip route show table all
             nft list ruleset; cat /proc/sys/net/ipv4/ip_forward /proc/sys/net/ipv4/conf/w*/rp_filter || true
             ls -d /etc/anabranch /usr/bin/anabranch /var/lib/anabranch || true",
        )
        .unwrap()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // All processes of the namespace end with its process 1.
        let _ = self.init.kill();
        let _ = self.init.wait();
    }
}

fn veth(a: &Machine, name_a: &str, b: &Machine, name_b: &str) {
    let name = format!("t{}", b.pid);
    let (net_a, net_b) = (a.pid, b.pid);
    let script = format!(
        "nsenter -t {net_a} -n ip link add {name_a} type veth peer name {name} netns {net_b}
         nsenter -t {net_b} -n ip link set {name} name {name_b}
         for end in '{net_a} {name_a}' '{net_b} {name_b}'; do
             set -- $end
             nsenter -t $1 -n ethtool -K $2 tx off tso off gso off gro off >/dev/null
             nsenter -t $1 -n ip link set $2 up
         done"
    );
    let output = Command::new("bash").args(["-euc", &script]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Whether machine and user permit the test.
fn possible() -> Result<(), String> {
    for (program, what) in [
        ("dpkg-deb", "a Debian machine"),
        ("apt-get", "a Debian machine"),
        ("systemd-sysusers", "systemd-sysusers (package systemd)"),
        ("nft", "nftables"),
        ("iperf3", "iperf3"),
        ("ethtool", "ethtool"),
        ("tc", "iproute2"),
    ] {
        let found =
            ["/usr/sbin", "/usr/bin", "/sbin", "/bin"].iter().any(|d| Path::new(d).join(program).exists());
        if !found {
            return Err(format!("docs/bonding.md needs {what}"));
        }
    }
    let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
    let script = format!(
        "mount -t tmpfs tmpfs {0} && mkdir {0}/up {0}/work && mount -t overlay overlay -o lowerdir=/etc,upperdir={0}/up,workdir={0}/work /etc",
        folder.path().display()
    );
    let tried = Command::new("unshare")
        .args(["--net", "--mount", "--pid", "--fork", "sh", "-c", &script])
        .output()
        .map_err(|e| e.to_string())?;
    if tried.status.success() {
        Ok(())
    } else {
        let text = String::from_utf8_lossy(&tried.stderr).trim().to_owned();
        Err(format!("docs/bonding.md needs root, namespaces and overlay file systems ({text})"))
    }
}

/// Builds the package from the program that was built for this test.
fn package(folder: &Path) -> PathBuf {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/deb");
    let output = Command::new(script)
        .args(["--binary", env!("CARGO_BIN_EXE_anabranch"), "--out"])
        .arg(folder)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    PathBuf::from(String::from_utf8(output.stdout).unwrap().trim())
}

/// Implements the relevant parts of a unit: user, group, capabilities, command, and signals to stop and
/// reload.
const SYSTEMCTL: &str = r#"#!/bin/bash
set -euo pipefail
say() { echo "systemctl stand-in: $*" >&2; exit 1; }
verb=$1; shift
[ "${1:-}" != --now ] || shift
unit=${1%.service}
name=${unit%@*}; instance=${unit#*@}
[ "$name" = "$unit" ] && file=/usr/lib/systemd/system/$name.service || file=/usr/lib/systemd/system/$name@.service
[ -f "$file" ] || say "no unit $unit"
key() { sed -n "s/^$1=//p" "$file" | sed "s/%i/$instance/g"; }
pid_file=/run/$unit.pid log=/var/log/$unit.log
case $verb in
    enable | start)
        user=$(key User) group=$(key Group)
        caps=$(key CapabilityBoundingSet | tr 'A-Z ' 'a-z,' | sed 's/cap_/+/g')
        umask "$(key UMask)"
        # shellcheck disable=SC2046
        setsid setpriv --reuid "$user" --regid "$group" --init-groups --bounding-set "-all,$caps" \
            --inh-caps "-all,$caps" --ambient-caps "-all,$caps" --no-new-privs -- $(key ExecStart) \
            </dev/null >>"$log" 2>&1 &
        echo $! >"$pid_file"
        for _ in $(seq 100); do
            if grep -qE '(ue|upf) runs' "$log"; then exit 0; fi
            kill -0 "$(cat "$pid_file")" 2>/dev/null || break
            sleep 0.1
        done
        tail -n 5 "$log" >&2
        say "$unit does not start"
        ;;
    disable | stop)
        pid=$(cat "$pid_file")
        kill -TERM "$pid"
        for _ in $(seq 100); do
            kill -0 "$pid" 2>/dev/null || { rm "$pid_file"; exit 0; }
            sleep 0.1
        done
        say "$unit does not stop"
        ;;
    reload) kill -HUP "$(cat "$pid_file")" ;;
    *) say "cannot $verb" ;;
esac
"#;
