//! Random faults, several at a time, in rounds under traffic. After each round the network is repaired; then
//! both programs must return by themselves to the state before the first fault.

use super::{Day, SERVER, new_connection, start_broken};
use crate::Options;
use crate::live::{self, Live};
use crate::net::{Namespace, Program, World};
use nix::sys::signal::Signal;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

/// Environment variable with one or several seeds, separated by blanks; the random choices are printed.
const SEEDS: &str = "ANABRANCH_FAULT_SEEDS";
/// Environment variable with the number of rounds per seed.
const ROUNDS: &str = "ANABRANCH_FAULT_ROUNDS";
/// Time limit from the repair of the network until everything is as before. UE and UPF check their
/// configuration every 5 s; a silent path is probed at least every 4 s.
const SETTLED: Duration = Duration::from_secs(25);
/// Addresses that use the TCP lane, according to its rule.
const LANE: [&str; 2] = ["192.0.2.2:8080", "[2001:db8:6::2]:8080"];
const LANE_RULES: &str = "[[rule]]\nname = \"web\"\nfilter = { protocol = \"tcp\", remote_port = \"8000-8999\" }\n\
    steering = { mode = \"load-balance\" }\nfunctionality = \"mptcp\"\n[tcp_lane]\n";

/// SplitMix64.
struct Draw(u64);

impl Draw {
    /// A random number below `n`.
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) % n as u64) as usize
    }

    fn ms(&mut self, most: usize) -> Duration {
        Duration::from_millis(self.below(most) as u64)
    }
}

/// A fault: a change to the network in a namespace, or to a program.
enum Fault {
    /// Commands in the UE's namespace; a command that fails because its object does not exist is ignored.
    Ue(&'static str),
    Upf(&'static str),
    /// Killed and restarted.
    Killed(&'static str),
    /// Killed, started with a broken file, and restarted.
    Broken(&'static str),
    /// Ended by SIGTERM and restarted.
    Ended(&'static str),
    /// Ended like a systemd unit that is restarted (SIGUSR1), and restarted.
    Restarted(&'static str),
    /// Suspended for a while (SIGSTOP).
    Paused(&'static str),
    /// Reloads its file (SIGHUP).
    Reload(&'static str),
    /// Loses the nft processes that hold its tables.
    WithoutNft(&'static str),
}

use Fault::{Broken, Ended, Killed, Paused, Reload, Restarted, Ue, Upf, WithoutNft};

const FAULTS: &[Fault] = &[
    // Accesses.
    Ue("ip link set 5g0 down"),
    Ue("ip link set wifi0 down"),
    Ue("ip link set 5g0 down; ip link set wifi0 down"),
    Ue(
        "ip link set 5g0 down; sleep 0.1; ip link set 5g0 up; sleep 0.1; ip link set 5g0 down; sleep 0.1; ip link set 5g0 up",
    ),
    Upf("ip link set 5g0 down"),
    Upf("ip link set wifi0 down"),
    Ue("ip addr flush dev 5g0"),
    Ue("ip addr flush dev wifi0"),
    Ue("ip addr add 10.1.0.7/24 dev 5g0; ip addr del 10.1.0.2/24 dev 5g0"),
    Ue("ip addr add fd02::7/64 dev wifi0; ip addr del fd02::2/64 dev wifi0"),
    Ue("ip link del 5g0"),
    Ue("ip link del wifi0"),
    Ue("ip link set 5g0 mtu 1300"),
    Ue("ip route del default"),
    Ue("ip route replace default via 10.2.0.1; ip -6 route del default"),
    Ue("sysctl -qw net.ipv6.conf.wifi0.disable_ipv6=1"),
    Ue("sysctl -qw net.ipv6.conf.all.disable_ipv6=1"),
    Ue("sysctl -qw net.ipv4.conf.all.rp_filter=1 net.ipv4.conf.5g0.rp_filter=1"),
    Ue("tc qdisc add dev 5g0 root netem delay 300ms 100ms"),
    Ue("tc qdisc add dev wifi0 root netem loss 60%"),
    Ue("tc qdisc add dev 5g0 root netem corrupt 30% duplicate 30%"),
    Upf("tc qdisc add dev wifi0 root netem delay 50ms 40ms reorder 30%"),
    Upf("tc qdisc add dev 5g0 root netem loss 100%"),
    // Configuration made by the UE.
    Ue("for n in 21001 21002; do ip rule del pref $n; ip -6 rule del pref $n; done"),
    Ue("ip rule flush; ip rule add pref 32766 table main; ip rule add pref 32767 table default"),
    Ue("ip route flush table 43867; ip -6 route flush table 43867"),
    Ue("ip addr flush dev anb0"),
    Ue("ip -6 addr flush dev anb0"),
    Ue("ip link set anb0 down; sleep 0.05; ip link set anb0 up"),
    Ue("ip route flush dev anb0; ip -6 route flush dev anb0"),
    Ue("nft flush ruleset"),
    // More notifications than a netlink socket holds: some are lost.
    Ue(
        "for i in $(seq 3000); do echo route add blackhole 198.18.$((i / 250)).$((i % 250)) table 77; done | ip -batch -; \
        ip link set 5g0 down; ip addr flush dev anb0; ip route flush table 77; ip link set 5g0 up",
    ),
    // Configuration made by the UPF.
    Upf("nft flush ruleset"),
    Upf("ip addr flush dev anb0"),
    Upf("ip link set anb0 down; sleep 0.05; ip link set anb0 up"),
    Upf("ip route flush dev anb0; ip -6 route flush dev anb0"),
    Upf(
        "for t in $(ip route show table all | sed -n 's/.*table \\([0-9]*\\).*/\\1/p' | sort -u); do ip route flush table $t; done",
    ),
    Upf("sysctl -qw net.ipv4.ip_forward=0"),
    Upf("sysctl -qw net.ipv6.conf.all.forwarding=0"),
    Upf("ip link set n6 down"),
    Upf("ip addr flush dev n6"),
    Upf("for n in $(ip rule | cut -d: -f1 | grep -v -e '^0$' -e 3276); do ip rule del pref $n; done"),
    // Programs.
    Killed("ue"),
    Killed("upf"),
    Broken("ue"),
    Broken("upf"),
    Ended("ue"),
    Ended("upf"),
    Restarted("ue"),
    Restarted("upf"),
    Paused("ue"),
    Paused("upf"),
    Reload("ue"),
    Reload("upf"),
    WithoutNft("ue"),
    WithoutNft("upf"),
];

/// Restores the network to its state before the first fault, whatever happened to it.
const MEND_UE: &str = "
    for i in 5g0 wifi0; do
        tc qdisc del dev $i root || true
        ip link set $i mtu 1500 up
        sysctl -qw net.ipv6.conf.$i.disable_ipv6=0 net.ipv4.conf.$i.rp_filter=0
    done
    sysctl -qw net.ipv6.conf.all.disable_ipv6=0 net.ipv4.conf.all.rp_filter=0
    ip addr replace 10.1.0.2/24 dev 5g0; ip addr del 10.1.0.7/24 dev 5g0 || true
    ip addr replace 10.2.0.2/24 dev wifi0
    ip addr replace fd02::2/64 dev wifi0; ip addr del fd02::7/64 dev wifi0 || true
    ip route replace default via 10.1.0.1; ip -6 route replace default via fd02::1
    ip route flush table 77 || true";
const MEND_UPF: &str = "
    for i in 5g0 wifi0 n6; do
        tc qdisc del dev $i root || true
        ip link set $i up
    done
    sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
    ip addr replace 10.1.0.1/24 dev 5g0; ip addr replace 10.2.0.1/24 dev wifi0; ip addr replace fd02::1/64 dev wifi0
    ip addr replace 192.0.2.1/24 dev n6; ip addr replace 2001:db8:6::1/64 dev n6";

impl Fault {
    fn name(&self) -> String {
        match self {
            Ue(commands) => format!("ue: {commands}"),
            Upf(commands) => format!("upf: {commands}"),
            Killed(part) => format!("{part} killed"),
            Broken(part) => format!("{part} killed, started with a broken file"),
            Ended(part) => format!("{part} ended"),
            Restarted(part) => format!("{part} restarted"),
            Paused(part) => format!("{part} stopped"),
            Reload(part) => format!("{part} reads its file"),
            WithoutNft(part) => format!("{part} without nft"),
        }
    }

    /// Whether the fault may end the address translation of the UPF's host, and with it translated flows: the
    /// host itself resets the rest of them.
    fn ends_translation(&self) -> bool {
        match self {
            Upf(commands) => commands.contains("n6") || commands.contains("nft"),
            Ended(part) => *part == "upf",
            _ => false,
        }
    }

    fn begin(&self, day: &mut Day, draw: &mut Draw) {
        let do_all = |ns: &Namespace, commands: &str| {
            // Without -e, because objects that no longer exist cannot be removed.
            ns.try_sh(&format!("set +e; {commands}"));
        };
        match *self {
            Ue(commands) => do_all(&day.world.ue, commands),
            Upf(commands) => do_all(&day.world.upf, commands),
            Killed(part) => {
                day.kill(part);
                std::thread::sleep(draw.ms(1000));
                day.spawn(part);
            }
            Broken(part) => {
                day.kill(part);
                start_broken(&day.world, part);
                day.spawn(part);
            }
            Ended(part) => {
                day.part(part).take().unwrap().stop();
                std::thread::sleep(draw.ms(1000));
                day.spawn(part);
            }
            Restarted(part) => {
                let mut program = day.part(part).take().unwrap();
                program.signal(Signal::SIGUSR1);
                assert_eq!(program.wait(Duration::from_secs(15)), 0, "{}", program.log());
                std::thread::sleep(draw.ms(1000));
                day.spawn(part);
            }
            Paused(part) => day.pause(part, draw.ms(2500)),
            Reload(part) => day.part(part).as_ref().unwrap().signal(Signal::SIGHUP),
            WithoutNft(part) => {
                let pid = day.pid(part);
                do_all(&day.world.ue, &format!("pkill -9 -x -P {pid} nft"));
            }
        }
    }
}

impl Day {
    /// Starts a program while the state of the network may prevent a session.
    fn spawn(&mut self, part: &str) {
        let seen = self.world.logs().matches(&format!("{part} runs")).count();
        let program = self.world.spawn(part);
        // Earlier signals would end it, or be lost.
        let runs = || self.world.logs().matches(&format!("{part} runs")).count() > seen;
        self.world.until(&format!("the {part} runs"), runs);
        *self.part(part) = Some(program);
    }

    fn mend(&self) {
        for interface in ["5g0", "wifi0"] {
            if !self.world.ue.try_sh(&format!("ip link show {interface}")).1 {
                self.world.ue.veth(interface, &self.world.upf, interface);
            }
        }
        self.world.upf.sh(MEND_UPF);
        self.world.ue.sh(MEND_UE);
    }
}

/// The state of a program and the network, without values that differ each time: interface indexes,
/// link-local addresses.
fn state(ns: &Namespace) -> String {
    ns.sh("exec 2>/dev/null; ip -o link | sed 's/^[0-9]*: //; s/@.*/:/; s/ state .*//; s/<.*>//; s/ qdisc.*//' | sort
         ip -o addr | awk '{print $2,$3,$4}' | grep -v fe80 | sort
         ip rule; ip -6 rule
         for f in -4 -6; do
             ip -o $f route show table all | grep -v -e fe80 -e ff00 -e expires -e anycast -e '^fd45::2 dev anb0 proto kernel' |
                 sed 's/ metric [0-9]*//; s/ pref medium//; s/ linkdown//; s/ src [^ ]*//' | sort
         done
         nft list tables | sort | while read -r table; do nft -s list $table; done
         cat /proc/sys/net/ipv4/ip_forward /proc/sys/net/ipv6/conf/all/forwarding")
}

/// Numbers of file descriptors and threads of a program.
fn held(program: &Program) -> [usize; 2] {
    ["fd", "task"].map(|what| {
        std::fs::read_dir(format!("/proc/{}/{what}", program.pid())).map_or(0, |entries| entries.count())
    })
}

/// Whether a new connection gets an answer.
fn answers(from: &Namespace, at: &str) -> bool {
    new_connection(from, at, Duration::from_secs(1)).is_ok()
}

fn lane_runs(world: &World) -> bool {
    ["ue", "upf"].iter().all(|part| world.get(part, "/v1/tcp-lane")["state"] == "runs")
}

/// The differences from the state before, as text; empty if there are none.
fn differs(day: &Day, before: &BTreeMap<&str, String>) -> String {
    let mut text = String::new();
    for (part, ns) in [("ue", &day.world.ue), ("upf", &day.world.upf)] {
        let now = state(ns);
        let was = &before[part];
        if now != *was {
            for line in was.lines().filter(|line| !now.lines().any(|other| other == *line)) {
                let _ = writeln!(text, "{part}: gone: {line}");
            }
            for line in now.lines().filter(|line| !was.lines().any(|other| other == *line)) {
                let _ = writeln!(text, "{part}: new: {line}");
            }
            if text.is_empty() {
                let _ = writeln!(text, "{part}: another order, or a line twice\n{now}");
            }
        }
        let up = day.world.paths_up(part);
        if up != 2 {
            let _ = writeln!(text, "{part}: {up} of 2 paths: {}", day.world.get(part, "/v1/paths"));
        }
    }
    if !lane_runs(&day.world) {
        for part in ["ue", "upf"] {
            let _ = writeln!(text, "{part}: lane: {}", day.world.get(part, "/v1/tcp-lane"));
        }
    }
    text
}

/// Waits until everything is as before, and new connections in both families are answered over tunnel and
/// lane.
fn settles(day: &mut Day, before: &BTreeMap<&str, String>, plan: &str) {
    let start = Instant::now();
    loop {
        let running = [day.ue.as_mut(), day.upf.as_mut()].map(|program| program.unwrap().is_running());
        assert_eq!(running, [true; 2], "{plan}: a program ended\n{}", day.world.logs());
        let mut what = differs(day, before);
        if what.is_empty() {
            for at in SERVER.iter().chain(&LANE).filter(|at| !answers(&day.world.ue, at)) {
                let _ = writeln!(what, "no answer from {at}");
            }
        }
        if what.is_empty() {
            println!("{plan}: as before after {:.1} s", start.elapsed().as_secs_f64());
            return;
        }
        assert!(start.elapsed() < SETTLED, "{plan}: after {SETTLED:?}:\n{what}\n{}", day.world.logs());
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Runs the rounds of one seed.
fn rounds(seed: u64, rounds: usize, options: &Options<'_>) {
    let Some(mut day) = Day::new(options) else { return };
    let mut draw = Draw(seed);
    for at in LANE {
        live::serve(&day.world.server, at.parse().unwrap());
    }
    day.world.server.sh("ip route add 10.45.0.0/24 via 192.0.2.1; ip route add fd45::/64 via 2001:db8:6::1");
    let none = [state(&day.world.ue), state(&day.world.upf)];
    day.start("upf");
    day.start("ue");
    let world = &day.world;
    world.until("the lane runs, and answers", || {
        lane_runs(world) && LANE.iter().all(|at| answers(&world.ue, at))
    });
    let before = BTreeMap::from([("ue", state(&day.world.ue)), ("upf", state(&day.world.upf))]);
    let mut pids = [day.pid("ue"), day.pid("upf")];
    let mut had = [day.ue.as_ref(), day.upf.as_ref()].map(|program| held(program.unwrap()));
    for round in 0..rounds {
        let traffic = Live::start(&day.world.ue, SERVER[round % 2].parse().unwrap());
        // A connection that is not yet established at the server fails if the UPF's host temporarily has no
        // route to the UE.
        std::thread::sleep(Duration::from_millis(300));
        let mut translated = false;
        let mut plan = format!("seed {seed}, round {round}:");
        for _ in 0..=draw.below(4) {
            let fault = &FAULTS[draw.below(FAULTS.len())];
            translated |= fault.ends_translation();
            let wait = draw.ms(400);
            let _ = write!(plan, " [{}] {} ms", fault.name(), wait.as_millis());
            fault.begin(&mut day, &mut draw);
            std::thread::sleep(wait);
        }
        std::thread::sleep(draw.ms(2000));
        day.mend();
        settles(&mut day, &before, &plan);
        let [tcp, _] = traffic.end();
        assert!(translated || tcp.broken.is_none() && tcp.lost == 0, "{plan}: {tcp:?}\n{}", day.world.logs());
        let logs = day.world.logs();
        assert!(!logs.contains("panicked"), "{plan}\n{logs}");
        // No descriptor opened because of a fault stays open.
        for (index, part) in ["ue", "upf"].into_iter().enumerate() {
            let pid = day.pid(part);
            let program = day.part(part).as_ref().unwrap();
            if pids[index] != pid {
                (pids[index], had[index]) = (pid, held(program));
            }
            let start = Instant::now();
            while (0..2).any(|i| held(program)[i] > had[index][i] + 3) {
                let now = held(program);
                assert!(start.elapsed() < SETTLED, "{plan}: {part} holds {now:?}, before {:?}", had[index]);
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }
    let Day { world, ue, upf, .. } = day;
    [ue, upf].into_iter().flatten().for_each(Program::stop);
    // A UPF that started while forwarding was off leaves it off.
    world.upf.sh(MEND_UPF);
    let left = [state(&world.ue), state(&world.upf)];
    assert_eq!(left, none, "seed {seed}: something is left\n{}", world.logs());
}

fn number(variable: &str, default: &str) -> Vec<u64> {
    let text = std::env::var(variable).unwrap_or_else(|_| default.to_owned());
    text.split_whitespace().map(|word| word.parse().expect(variable)).collect()
}

#[test]
fn everything_recovers_after_random_faults() {
    for seed in number(SEEDS, "1") {
        // With and without address translation.
        let n6 = if seed % 2 == 0 { "[n6]\nmode = \"routed\"\n" } else { "" };
        let upf_more = format!("{n6}[tcp_lane]\n");
        let options = Options { ue_rules: LANE_RULES, upf_more: &upf_more, ..Options::default() };
        rounds(seed, number(ROUNDS, "4")[0] as usize, &options);
    }
}
