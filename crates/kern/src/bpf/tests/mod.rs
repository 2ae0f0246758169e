use super::*;
use anabranch_cc::Algorithm;
use anabranch_cc::int::{IntConfig, View};
use anabranch_wire::ioam::{Feedback as Report, code, decode};
use proptest::prelude::*;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{Ipv6Addr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard};

mod cost;
mod fast_path;
mod many;
mod peer;
mod source;
mod trace;
mod window;

/// `struct ab_view`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct CView {
    received_us: u64,
    rates_us: u64,
    acked_us: u64,
    counter_moved_us: u64,
    dropped_us: u64,
    counter_confirmed_us: u64,
    newest_us: u64,
    provisional_us: u64,
    min_rtt_ends_us: u64,
    round_ends_us: u64,
    link_kbps: u64,
    arrival_kbps: u64,
    depth_bytes: u64,
    free_bytes: u64,
    flows: u32,
    drops: u32,
    losses: u32,
    flags: u32,
    min_rtt_us: [u32; 2],
    round_min_rtt_us: [u32; 2],
    peak_bytes: [u32; 2],
    round_start_totals: [u32; 2],
    round_totals: [u32; 2],
}

unsafe extern "C" {
    fn abn_init(v: *mut CView);
    fn abn_on_report(v: *mut CView, option: *const u8, now_us: u64) -> i32;
    fn abn_record_ack(v: *mut CView, now_us: u64);
    fn abn_record_recovery_ack(v: *mut CView, delivered_us: u64, first_sent_us: u64);
    fn abn_is_fresh(v: *const CView, srtt_us: u64, stale: u32) -> i32;
    fn abn_has_fresh_rates(v: *const CView, srtt_us: u64, stale: u32) -> i32;
    fn abn_classify_medium(v: *mut CView, now_us: u64, srtt_us: u64, stale: u32) -> i32;
    fn abn_growth(v: *const CView, srtt_us: u64, increment: u32, cap: u32) -> u64;
    fn abn_fair_rate(v: *const CView, own_bps: u64, srtt_us: u64, mss: u64, ceiling_bps: u64) -> u64;
    fn abn_rate_window(rate_bps: u64, srtt_us: u64, mss: u64) -> u64;
    fn abn_record_sample(v: *mut CView, now_us: u64, rtt_us: u64, srtt_us: u64, delivered: u32, lost: u32);
    fn abn_has_unreported_queue(v: *const CView) -> i32;
    fn abn_window_with_reports(v: *const CView, segments: u64) -> u64;
    fn abn_delivered_per_rtt(v: *const CView, total: u32) -> u32;
    fn abn_may_be_unreported_drop(v: *const CView, now_us: u64, srtt_us: u64) -> i32;
    fn abn_max_explained_rtt(v: *const CView, min_rtt_us: u64) -> u64;
    fn abn_is_rtt_unexplained(v: *const CView, min_rtt_us: u64, srtt_us: u64) -> i32;
    fn abn_window_sustains(cwnd: u64, rate_bps: u64, srtt_us: u64, mss: u64) -> i32;
    fn abn_ceiling_window(ceiling_bps: u64, srtt_us: u64, mss: u64) -> u64;
    fn abn_at_ceiling(cwnd: u32, ceiling_bps: u64, srtt_us: u64, mss: u64) -> i32;
    fn abn_reduce_by_five_percent(cwnd: u32, owed: *mut u32) -> u32;
    fn abn_reports_growth(v: *const CView) -> i32;
    fn abn_encode(value: u64) -> u16;
    fn abn_decode(code: u16) -> u64;
    fn abn_encode_flows(flows: u32) -> u8;
    fn abn_size(which: u32) -> u64;
    fn abn_siphash(k0: u64, k1: u64, words: *const u64, count: u32) -> u64;
}

#[test]
fn the_contract_matches_the_sizes_written() {
    // SAFETY: the call takes a number and returns one.
    let sizes: Vec<u64> = (0..20).map(|i| unsafe { abn_size(i) }).collect();
    let view = size_of::<CView>() as u64;
    let shown = sockets::SHOWN_LEN as u64;
    assert_eq!(sizes[2], u64::from(replace::SOCKET_LEN));
    let path = (paths::WORDS * 8) as u64;
    assert_eq!(
        sizes,
        [
            24,
            view,
            view + 104,
            16,
            48,
            view,
            u64::from(object::COUNTERS),
            shown,
            160,
            16,
            MOST_WINDOWS as u64,
            3,
            path,
            80,
            128,
            8,
            40,
            12,
            8,
            FeedbackConfig::LEN as u64,
        ]
    );
}

#[derive(Debug, Clone)]
enum Step {
    Option([u8; 16]),
    /// An RTT sample (0: none), with the number of segments delivered and lost.
    Ack(u64, u32, u32),
    /// An ACK in recovery: `cc` processes it, the kernel program does not.
    Unseen,
    /// The flow had nothing in flight, and begins to send.
    Begin,
    Loss,
    Ask {
        increment: u32,
        cap: u32,
        own_kbps: u64,
        mss: u64,
        ceiling_bps: u64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => any::<[u8; 16]>().prop_map(Step::Option),
        3 => (prop_oneof![Just(0), 1u64..20_000_000], any::<u32>(), any::<u32>())
            .prop_map(|(rtt, delivered, lost)| Step::Ack(rtt, delivered >> (rtt % 32), lost >> (rtt % 32))),
        1 => Just(Step::Unseen),
        1 => Just(Step::Begin),
        2 => Just(Step::Loss),
        3 => (1u32..=16, 1u32..=16, 0u64..2_000_000_000, 1u64..10_000, 1u64..1 << 41).prop_map(
            |(increment, cap, own_kbps, mss, ceiling_bps)| Step::Ask { increment, cap, own_kbps, mss, ceiling_bps }
        ),
    ]
}

proptest! {
    /// The window left by `int_cubic_l2` after repeated losses equals that in `cc`.
    #[test]
    fn l2_gives_way_as_in_core(mut cwnd in any::<u32>(), mut owed in any::<u32>(), losses in 1u32..100) {
        let mut owed_there = owed;
        let mut there = cwnd;
        for _ in 0..losses {
            // SAFETY: the call takes a number and a place for one.
            there = unsafe { abn_reduce_by_five_percent(there, &raw mut owed_there) };
            (cwnd, owed) = View::reduce_by_five_percent(cwnd, owed);
            prop_assert_eq!((there, owed_there), (cwnd, owed));
        }
    }
}

fn all_of(v: &View) -> [u64; 15] {
    let small = [v.flows, v.drops, v.losses].map(u64::from);
    let [a, b, c] = small;
    [
        v.received_us,
        v.rates_us,
        v.acked_us,
        v.counter_moved_us,
        v.dropped_us,
        v.counter_confirmed_us,
        v.newest_us,
        v.provisional_us,
        v.link_kbps,
        v.arrival_kbps,
        v.depth_bytes,
        v.free_bytes,
        a,
        b,
        c,
    ]
}

fn all_of_c(v: &CView) -> [u64; 15] {
    let [a, b, c] = [v.flows, v.drops, v.losses].map(u64::from);
    [
        v.received_us,
        v.rates_us,
        v.acked_us,
        v.counter_moved_us,
        v.dropped_us,
        v.counter_confirmed_us,
        v.newest_us,
        v.provisional_us,
        v.link_kbps,
        v.arrival_kbps,
        v.depth_bytes,
        v.free_bytes,
        a,
        b,
        c,
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// The same reports, ACKs and losses through `cc` and through the kernel's code.
    #[test]
    fn the_kernels_arithmetic_is_cores(
        steps in proptest::collection::vec((step(), 1u64..200_000, 0u64..20_000_000), 1..60), stale in 1u32..=255,
    ) {
        let mut ours = View::default();
        let mut theirs = CView::default();
        // SAFETY: here and below: pointers to values of this frame with the C layout (tested above).
        unsafe { abn_init(&mut theirs) };
        let mut now = 1;
        // The kernel's record of deliveries (tcp_rate.c): time of the last one, and when its packet was sent.
        let (mut delivered, mut first_sent) = (0, 0);
        // During recovery the program is not called for ACKs; it learns of the last one when it is called at a loss.
        let mut unseen = false;
        let (mut total, mut lost) = (0u32, 0u32);
        for (step, later, srtt) in steps {
            now += later;
            match step {
                Step::Option(mut option) => {
                    // Mostly valid: kind, one of the lengths, the version.
                    if option[0] < 250 {
                        option[0] = 0x72;
                        option[1] = if option[1] % 3 == 0 { 8 } else { 16 };
                        option[3] = 0x40 | option[3] & 0x3f;
                    }
                    // Few different drop counts, so that some do not move, around the wrap and around half of it.
                    let around: u16 = [0, 0, 0, 0, 0, 0x7ffe, 0x8000, 0xfffe][usize::from(option[4] & 7)];
                    let drops = around.wrapping_add(u16::from(option[5] & 3));
                    option[4..6].copy_from_slice(&drops.to_be_bytes());
                    let report = Report::parse(&option).ok().flatten();
                    // SAFETY: `option` is as long as the longest form.
                    let late = unsafe { abn_on_report(&mut theirs, option.as_ptr(), now) };
                    prop_assert_eq!(report.is_none(), late < 0);
                    if let Some(report) = report {
                        prop_assert_eq!(ours.on_report(&report, now), late == 1);
                    }
                }
                Step::Ack(rtt, more, fewer) => {
                    (total, lost) = (total.wrapping_add(more), lost.wrapping_add(fewer));
                    ours.record_ack(now);
                    ours.record_sample(now, rtt, srtt, total, lost);
                    (delivered, first_sent) = (now, now - 1);
                    unseen = false;
                    // SAFETY: as above.
                    unsafe {
                        abn_record_ack(&mut theirs, now);
                        abn_record_sample(&mut theirs, now, rtt, srtt, total, lost);
                    }
                }
                Step::Unseen => {
                    ours.record_ack(now);
                    (delivered, first_sent) = (now, now - 1);
                    unseen = true;
                }
                // Only after the end of recovery: before it something is in flight.
                Step::Begin if unseen => {}
                Step::Begin => (delivered, first_sent) = (now, now),
                Step::Loss => {
                    unseen = false;
                    // SAFETY: as above.
                    let medium = unsafe {
                        abn_record_recovery_ack(&mut theirs, delivered, first_sent);
                        abn_classify_medium(&mut theirs, now, srtt, stale)
                    };
                    prop_assert_eq!(ours.classify_medium(now, srtt, stale), medium == 1);
                }
                // Controllers ask only when they are called for an ACK.
                Step::Ask { .. } if unseen => {}
                Step::Ask { increment, cap, own_kbps, mss, ceiling_bps } => {
                    // SAFETY: as above; the rest takes numbers.
                    let (growth, rate, window, most, tells) = unsafe {
                        (
                            abn_growth(&theirs, srtt, increment, cap),
                            abn_fair_rate(&theirs, own_kbps * 1000, srtt, mss, ceiling_bps),
                            abn_rate_window(own_kbps * 1000, srtt, mss),
                            abn_ceiling_window(ceiling_bps, srtt, mss),
                            abn_reports_growth(&theirs) == 1,
                        )
                    };
                    prop_assert_eq!(ours.slow_start_growth(srtt, increment, cap).unwrap_or(u64::MAX), growth);
                    prop_assert_eq!(ours.fair_rate(own_kbps * 1000, srtt, mss, ceiling_bps).unwrap_or(0), rate);
                    prop_assert_eq!(View::rate_window(own_kbps * 1000, srtt, mss), window);
                    prop_assert_eq!(View::ceiling_window(ceiling_bps, srtt, mss), most);
                    prop_assert_eq!(growth != u64::MAX, tells);
                    // SAFETY: as above; the rest takes numbers.
                    let (with_reports, explained, unseen, unexplained, carries) = unsafe {
                        (
                            abn_window_with_reports(&theirs, mss),
                            abn_max_explained_rtt(&theirs, mss * 100),
                            abn_may_be_unreported_drop(&theirs, now, srtt) == 1,
                            abn_is_rtt_unexplained(&theirs, mss * 100, srtt) == 1,
                            abn_window_sustains(u64::from(cap), own_kbps * 10, srtt, mss) == 1,
                        )
                    };
                    prop_assert_eq!(ours.window_with_reports(mss), with_reports);
                    prop_assert_eq!(ours.max_explained_rtt_us(mss * 100), explained);
                    prop_assert_eq!(ours.may_be_unreported_drop(now, srtt), unseen);
                    prop_assert_eq!(ours.is_rtt_unexplained(mss * 100, srtt), unexplained);
                    prop_assert_eq!(View::window_sustains(u64::from(cap), own_kbps * 10, srtt, mss), carries);
                    // Around the ceiling, and where the product would overflow.
                    for cwnd in [most - 1, most, most + 1, 1, 4, 1 << 26, 1 << 27, 1 << 30] {
                        let cwnd = u32::try_from(cwnd).unwrap_or(u32::MAX);
                        // SAFETY: takes numbers and returns one.
                        let reached = unsafe { abn_at_ceiling(cwnd, ceiling_bps, srtt, mss) };
                        prop_assert_eq!(u64::from(cwnd) >= most, reached == 1, "{} {}", cwnd, most);
                    }
                }
            }
            let (mut known, mut known_there) = (all_of(&ours), all_of_c(&theirs));
            if unseen {
                const ACKED: usize = 2;
                (known[ACKED], known_there[ACKED]) = (0, 0);
                prop_assert_eq!(known, known_there);
                continue;
            }
            prop_assert_eq!(known, known_there);
            prop_assert_eq!((ours.min_rtt_us, ours.round_min_rtt_us, ours.peak_bytes), (theirs.min_rtt_us, theirs.round_min_rtt_us, theirs.peak_bytes));
            prop_assert_eq!((ours.round_start_totals, ours.round_totals), (theirs.round_start_totals, theirs.round_totals));
            prop_assert_eq!((ours.min_rtt_ends_us, ours.round_ends_us), (theirs.min_rtt_ends_us, theirs.round_ends_us));
            // SAFETY: as above.
            let (untold, delivered_there) = unsafe { (abn_has_unreported_queue(&theirs) == 1, abn_delivered_per_rtt(&theirs, total)) };
            prop_assert_eq!((ours.has_unreported_queue(), ours.delivered_per_rtt(total)), (untold, delivered_there));
            // SAFETY: as above.
            let (fresh, detailed) = unsafe { (abn_is_fresh(&theirs, srtt, stale), abn_has_fresh_rates(&theirs, srtt, stale)) };
            prop_assert_eq!((ours.is_fresh(srtt, stale), ours.has_fresh_rates(srtt, stale)), (fresh == 1, detailed == 1));
        }
    }

    /// The kernel's tags are SipHash-2-4, as in Rust's library.
    #[test]
    fn tags_are_siphash(k0: u64, k1: u64, words in proptest::collection::vec(any::<u64>(), 0..10)) {
        #[allow(deprecated, reason = "of the two in the library it is the one with four last rounds")]
        let mut hash = std::hash::SipHasher::new_with_keys(k0, k1);
        words.iter().for_each(|word| std::hash::Hasher::write(&mut hash, &word.to_ne_bytes()));
        // SAFETY: the slice has this many words.
        let ours = unsafe { abn_siphash(k0, k1, words.as_ptr(), words.len() as u32) };
        prop_assert_eq!(ours, std::hash::Hasher::finish(&hash));
    }

    #[test]
    fn codes_are_the_same(value: u64, shift in 0u32..64, any: u16, flows: u16) {
        let value = value >> shift;
        // All ones mean unknown in the kernel, which has no Option.
        prop_assume!(value != u64::MAX);
        let report = Report { flows, ..Report::default() };
        let mut option = [0; 16];
        report.emit(&mut option).unwrap();
        // SAFETY: takes numbers and returns them.
        unsafe {
            prop_assert_eq!(code(value), abn_encode(value));
            prop_assert_eq!(decode(any).unwrap_or(u64::MAX), abn_decode(any));
            prop_assert_eq!(option[2], abn_encode_flows(flows.into()));
        }
    }
}

/// Registration is global: one test at a time, including those of `anabranch-node`. `None`, with a message, if registration is
/// not possible here.
fn alone() -> Option<(MutexGuard<'static, ()>, File)> {
    static ONE: Mutex<()> = Mutex::new(());
    let guard = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    match supported() {
        Ok(()) => {
            let of_all = std::env::temp_dir().join("anabranch-tests-registration.lock");
            let of_all = File::create(of_all).unwrap();
            of_all.lock().unwrap();
            Some((guard, of_all))
        }
        Err(why) => {
            // SAFETY: the call takes nothing and always succeeds.
            let root = unsafe { libc::geteuid() } == 0;
            assert!(!root || std::env::var_os("CI").is_none(), "CI must be able to: {why}");
            eprintln!("skipped: {why}");
            None
        }
    }
}

fn registered() -> Vec<String> {
    available().unwrap().into_iter().filter(|name| name.starts_with("int_")).collect()
}

#[test]
fn controllers_are_registered_and_removed() {
    let Some(_alone) = alone() else { return };
    let loaded = Controllers::load(&LOADABLE, &IntConfig::default()).unwrap();
    let mut names = registered();
    names.sort();
    assert_eq!(names, LOADABLE.map(Algorithm::name));
    let counts = loaded.counters().unwrap();
    assert!(counts.len() == 4 && counts.iter().all(|(_, c)| *c == Counters::default()));

    let reno = Controllers::load(&[Algorithm::Reno], &IntConfig::default()).unwrap_err();
    assert!(reno.to_string().starts_with("reno is not one of the kernel's; there are: int_cubic_l1"));
    assert_eq!(registered().len(), 4);
    drop(loaded);
    assert_eq!(registered(), [""; 0]);
}

#[test]
fn errors_name_the_missing_object() {
    let Some(_alone) = alone() else { return };
    let why = Source::attach("no-such-if", SourceConfig::default()).unwrap_err().to_string();
    assert!(why.starts_with("interface no-such-if: no interface"), "{why}");
    let why = Feedback::receiver(std::path::Path::new("/no/such"), &FeedbackConfig::default())
        .unwrap_err()
        .to_string();
    assert!(why.starts_with("/no/such (a cgroup v2 directory is needed)"), "{why}");
}

/// A cgroup of this process; the process returns to its previous one at the end.
struct OwnGroup {
    path: PathBuf,
    before: PathBuf,
}

impl OwnGroup {
    fn new() -> Option<Self> {
        Self::named("")
    }

    fn named(name: &str) -> Option<Self> {
        let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
        let root = mounts.lines().find_map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            (words[2] == "cgroup2").then(|| PathBuf::from(words[1]))
        })?;
        let own = std::fs::read_to_string("/proc/self/cgroup").unwrap();
        let below = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
        let path = root.join(format!("anabranch-test-{}{name}", std::process::id()));
        std::fs::create_dir(&path).ok()?;
        let group = Self { path, before: root.join(below) };
        group.enter()?;
        Some(group)
    }

    /// Sockets created from now on belong to this group.
    fn enter(&self) -> Option<()> {
        std::fs::write(self.path.join("cgroup.procs"), "0").ok()
    }
}

impl Drop for OwnGroup {
    fn drop(&mut self) {
        let _ = std::fs::write(self.before.join("cgroup.procs"), "0");
        let _ = std::fs::remove_dir(&self.path);
    }
}

/// A trace in every packet, short enough for the headroom of TCP: where the receiver gets the sender's own packets, a longer one
/// misleads the kernel (docs/int-cc.md, Limits).
fn loopback_source() -> SourceConfig {
    SourceConfig { every: 1, nodes: 1, ..SourceConfig::default() }
}

/// A TCP socket for IPv6 with a congestion controller and a segment size, connected to `port` of this machine.
fn connect(port: u16, congestion_control: &str) -> TcpStream {
    connect_to(Ipv6Addr::LOCALHOST, port, congestion_control)
}

/// Like [`connect`], to another address.
fn connect_to(address: Ipv6Addr, port: u16, congestion_control: &str) -> TcpStream {
    // SAFETY: plain system calls; every pointer is to a value of this frame, with its size.
    unsafe {
        let fd = libc::socket(libc::AF_INET6, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
        assert!(fd >= 0);
        let stream = TcpStream::from_raw_fd(fd);
        let name = congestion_control.as_bytes();
        let set = libc::setsockopt(fd, 6, libc::TCP_CONGESTION, name.as_ptr().cast(), name.len() as u32);
        assert_eq!(set, 0, "{congestion_control}: {}", std::io::Error::last_os_error());
        // Leaves room for the trace.
        let mss: i32 = 1200;
        assert_eq!(libc::setsockopt(fd, 6, libc::TCP_MAXSEG, (&raw const mss).cast(), 4), 0);
        let mut to: libc::sockaddr_in6 = std::mem::zeroed();
        to.sin6_family = libc::AF_INET6 as u16;
        to.sin6_port = port.to_be();
        to.sin6_addr.s6_addr = address.octets();
        let connected = libc::connect(stream.as_raw_fd(), (&raw const to).cast(), size_of_val(&to) as u32);
        assert_eq!(connected, 0, "{}", std::io::Error::last_os_error());
        stream
    }
}

/// Commands that make the loopback device of a network namespace a node that fills traces.
const NODE: &str = "ip link set lo mtu 1500 up; ip ioam namespace add 123; \
                    echo 1 > /proc/sys/net/ipv6/conf/lo/ioam6_enabled; echo 7 > /proc/sys/net/ipv6/ioam6_id";

/// The group for a test's sockets; `None`, with a message, if it cannot be created.
fn own_group() -> Option<OwnGroup> {
    let group = OwnGroup::new();
    if group.is_none() {
        assert!(std::env::var_os("CI").is_none(), "CI must have cgroup v2");
        eprintln!("skipped: no cgroup v2 to make a group in");
    }
    group
}

/// Waits for the kernel, in real time.
#[expect(clippy::disallowed_methods, reason = "there is no event to wait for")]
fn until(what: &str, mut is: impl FnMut() -> bool) {
    for _ in 0..1000 {
        if is() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    panic!("not after 20 s: {what}");
}

/// The whole loop through the kernel: source → a Linux node that fills the trace → receiver → option on ACKs → controller. When the
/// programs are removed during a transfer, the connection continues.
#[test]
fn reports_go_round() {
    let Some(_alone) = alone() else { return };
    let Some(group) = own_group() else { return };
    crate::tests::in_private_network(NODE, || {
        for algorithm in LOADABLE {
            let controllers = Controllers::load(&[algorithm], &IntConfig::default()).unwrap();
            let feedback = controllers.feedback(&group.path, &FeedbackConfig::default()).unwrap();
            let source = Source::attach("lo", loopback_source()).unwrap();
            let listener = TcpListener::bind("[::1]:0").unwrap();
            let port = listener.local_addr().unwrap().port();
            let megabytes = 4;
            let reader = std::thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                let (mut buffer, mut sum) = (vec![0; 1 << 16], 0);
                while let n @ 1.. = stream.read(&mut buffer).unwrap() {
                    assert!(buffer[..n].iter().all(|b| *b == 0x5a));
                    sum += n;
                }
                sum
            });
            let mut stream = connect(port, algorithm.name());
            let block = vec![0x5a; 1 << 20];
            for _ in 0..megabytes {
                stream.write_all(&block).unwrap();
            }
            // The last ACKs may still be in flight.
            until(&format!("{algorithm} heard a report"), || feedback.counters().unwrap().reports_in > 0);
            let (loop_counts, sent) = (feedback.counters().unwrap(), source.counters().unwrap());
            let (_, acks) = controllers.counters().unwrap()[0];
            assert!(sent.traces_out > 0, "{algorithm}: {sent:?}");
            assert!(loop_counts.traces_in > 0 && loop_counts.reports_out > 0, "{algorithm}: {loop_counts:?}");
            assert_eq!(loop_counts.reports_bad, 0);
            // Each trace is reported at most three times, apart from those for which SACK leaves no room in full.
            assert!(loop_counts.reports_out <= 3 * loop_counts.traces_in, "{algorithm}: {loop_counts:?}");
            assert!(acks.acks > 0, "{algorithm}: {acks:?}");
            // All our programs are removed; the connection continues.
            drop((source, feedback, controllers));
            assert_eq!(registered(), [""; 0]);
            stream.write_all(&block).unwrap();
            drop(stream);
            assert_eq!(reader.join().unwrap(), (megabytes + 1) << 20);
        }
    });
}

/// An end that only sends data skips the check for reports. When the other end starts to send data with telemetry, it reports.
#[test]
fn who_was_quiet_tells_when_roles_change() {
    let Some(_alone) = alone() else { return };
    let Some(group) = own_group() else { return };
    crate::tests::in_private_network(NODE, || {
        let name = Algorithm::IntRate.name();
        let controllers = Controllers::load(&[Algorithm::IntRate], &IntConfig::default()).unwrap();
        let feedback = controllers.feedback(&group.path, &FeedbackConfig::default()).unwrap();
        let listener = TcpListener::bind("[::1]:0").unwrap();
        let mut first = connect(listener.local_addr().unwrap().port(), name);
        let (mut second, at) = listener.accept().unwrap();
        let block = vec![0x5a; 64 << 20];
        let send = |from: &mut TcpStream, to: &mut TcpStream| {
            std::thread::scope(|scope| {
                scope.spawn(|| from.write_all(&block).unwrap());
                to.read_exact(&mut vec![0; block.len()]).unwrap();
            });
        };
        send(&mut first, &mut second);
        assert_eq!(feedback.counters().unwrap().reports_out, 0, "nothing to tell");

        let source = Source::attach("lo", loopback_source()).unwrap();
        send(&mut second, &mut first);
        let told = sockets().unwrap().into_iter().find(|socket| socket.remote.port() == at.port()).unwrap();
        assert!(told.report_age.is_some(), "the new sender has no reports: {told:?}");
        assert_eq!(feedback.counters().unwrap().reports_bad, 0);
        drop((source, feedback, controllers));
    });
}

/// Reports are used only if both ends have the same key, or none.
#[test]
fn reports_need_the_key_of_both_ends() {
    let Some(_alone) = alone() else { return };
    let Some(receivers) = own_group() else { return };
    let senders = OwnGroup::named("-senders").unwrap();
    let [one, other] = [1, 2].map(|byte| Some(ReportKey::new([byte; ReportKey::LEN])));
    let cases = [
        (&None, &None, true),
        (&one, &one, true),
        (&one, &other, false),
        (&one, &None, false),
        (&None, &one, false),
    ];
    crate::tests::in_private_network(NODE, || {
        for (receiver, sender, heard) in cases {
            let what = format!("receiver {receiver:?}, sender {sender:?}");
            let controllers = Controllers::load(&[Algorithm::IntRate], &IntConfig::default()).unwrap();
            let config =
                |key: &Option<ReportKey>| FeedbackConfig { key: key.clone(), ..FeedbackConfig::default() };
            let hears = controllers.feedback(&senders.path, &config(sender)).unwrap();
            let tells = Feedback::receiver(&receivers.path, &config(receiver)).unwrap();
            let source = Source::attach("lo", loopback_source()).unwrap();
            receivers.enter().unwrap();
            let listener = TcpListener::bind("[::1]:0").unwrap();
            senders.enter().unwrap();
            let mut from = connect(listener.local_addr().unwrap().port(), Algorithm::IntRate.name());
            let (mut to, _) = listener.accept().unwrap();
            let block = vec![0x5a; 4 << 20];
            std::thread::scope(|scope| {
                scope.spawn(|| from.write_all(&block).unwrap());
                to.read_exact(&mut vec![0; block.len()]).unwrap();
            });
            assert!(tells.counters().unwrap().reports_out > 0, "{what}");
            until(&what, || {
                let Counters { reports_in, reports_bad, .. } = hears.counters().unwrap();
                assert!(
                    if heard { reports_bad == 0 } else { reports_in == 0 },
                    "{what}: {reports_in}, bad {reports_bad}"
                );
                if heard { reports_in > 0 } else { reports_bad > 0 }
            });
            drop((source, tells, hears, controllers));
        }
    });
}
