//! Cost of the programs: verification, and time per call.

use super::*;
use libbpf_rs::query::ProgInfoIter;

/// Maximum number of instructions processed by the verifier, over all paths of a program; its own limit is 1,000,000. Growth beyond
/// this value is more likely a mistake than a need.
const MOST_VERIFIED: u32 = 20_000;

/// Prefixes of our programs' names. Stack usage is checked at compile time (build.rs).
const OURS: [&str; 5] = ["l1_", "l2_", "ss_", "rate_", "ab_"];

/// Our loaded programs: name, verified instructions, nanoseconds and calls.
fn programs() -> Vec<(String, u32, u64, u64)> {
    ProgInfoIter::default()
        .filter_map(|info| {
            let name = info.name.to_str()?.to_owned();
            OURS.iter().any(|ours| name.starts_with(ours)).then_some((
                name,
                info.verified_insns,
                info.run_time_ns,
                info.run_cnt,
            ))
        })
        .collect()
}

#[test]
fn the_verifier_sees_small_programs() {
    let Some(_alone) = alone() else { return };
    let Some(group) = OwnGroup::new() else {
        assert!(std::env::var_os("CI").is_none(), "CI must have cgroup v2");
        return;
    };
    crate::tests::in_private_network("ip link set lo up", || {
        let controllers = Controllers::load(&LOADABLE, &IntConfig::default()).unwrap();
        let _feedback = controllers.feedback(&group.path, &FeedbackConfig::default()).unwrap();
        let _source = Source::attach("lo", SourceConfig::default()).unwrap();
        let all = programs();
        for (name, verified, ..) in &all {
            eprintln!("{name}: {verified} instructions verified");
            assert!(*verified > 0 && *verified <= MOST_VERIFIED, "{name}: {verified} instructions");
        }
        // At least six operations of each controller, and two other programs.
        assert!(all.len() >= 4 * 6 + 2, "{all:?}");
    });
}

/// Enables the kernel's time accounting of programs while it exists.
struct Timed(String);

impl Timed {
    const SWITCH: &'static str = "/proc/sys/kernel/bpf_stats_enabled";

    fn new() -> Self {
        let before = std::fs::read_to_string(Self::SWITCH).unwrap();
        std::fs::write(Self::SWITCH, "1").unwrap();
        Self(before)
    }
}

impl Drop for Timed {
    fn drop(&mut self) {
        let _ = std::fs::write(Self::SWITCH, &self.0);
    }
}

/// Number of rounds; the median is used, because other processes use the machine.
const ROUNDS: usize = 7;

/// One flow of `mib` MiB over the loopback device: each program's name, nanoseconds per call, and calls per ACK.
fn one_flow(algorithm: Algorithm, group: &OwnGroup, mib: usize) -> Vec<(String, f64, f64)> {
    let controllers = Controllers::load(&[algorithm], &IntConfig::default()).unwrap();
    let feedback = controllers.feedback(&group.path, &FeedbackConfig::default()).unwrap();
    let source = Source::attach("lo", loopback_source()).unwrap();
    let listener = TcpListener::bind("[::1]:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let reader = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut buffer = vec![0; 1 << 16];
        while stream.read(&mut buffer).unwrap() > 0 {}
    });
    let mut stream = connect(port, algorithm.name());
    let block = vec![0x5a; 1 << 20];
    for _ in 0..mib {
        stream.write_all(&block).unwrap();
    }
    let (_, counted) = controllers.counters().unwrap()[0];
    // Programs of the previous round may still exist as long as its connection does.
    let own = OURS[LOADABLE.iter().position(|a| *a == algorithm).unwrap_or(0)];
    let measured = programs()
        .into_iter()
        .filter(|p| p.3 >= 100 && (p.0.starts_with(own) || p.0.starts_with("ab_")))
        .map(|(name, _, ns, calls)| {
            (name, ns as f64 / calls as f64, calls as f64 / counted.acks.max(1) as f64)
        })
        .collect();
    drop(stream);
    reader.join().unwrap();
    drop((source, feedback, controllers));
    measured
}

#[test]
#[ignore = "a measurement: ./x bench cc"]
fn nanoseconds_per_call() {
    let Some(_alone) = alone() else { return };
    let Some(group) = OwnGroup::new() else { return };
    const SETUP: &str = "ip link set lo mtu 1500 up; ip ioam namespace add 123; \
                         echo 1 > /proc/sys/net/ipv6/conf/lo/ioam6_enabled; echo 7 > /proc/sys/net/ipv6/ioam6_id";
    crate::tests::in_private_network(SETUP, || {
        let _timed = Timed::new();
        println!("controller       program          ns/call: median    least     most   calls/ACK");
        // Interleaved rounds, so that a busy moment does not affect only one of them.
        let mut all: std::collections::BTreeMap<(&str, String), (Vec<f64>, f64)> = Default::default();
        for _ in 0..ROUNDS {
            for algorithm in LOADABLE {
                for (name, ns, per_ack) in one_flow(algorithm, &group, 100) {
                    let row = all.entry((algorithm.name(), name)).or_default();
                    row.0.push(ns);
                    row.1 = per_ack;
                }
            }
        }
        for ((controller, program), (mut ns, per_ack)) in all {
            ns.sort_by(f64::total_cmp);
            let (least, median, most) = (ns[0], ns[ns.len() / 2], ns[ns.len() - 1]);
            println!(
                "{controller:<16} {program:<16} {median:>15.0} {least:>8.0} {most:>8.0} {per_ack:>11.2}"
            );
        }
    });
}
