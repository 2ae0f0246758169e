//! The data path between two namespaces, with a tunnel end that only prepends eight bytes.

use crate::clock::Clock;
use crate::deferred::{Arrival, DeferredTask, Job, WorkQueue};
use crate::device::Device;
use crate::thread::{Jobs, Worker as _};
use crate::udp::AccessSocket;
use crate::worker::{Handle, TunnelEnd, Worker};
use anabranch_atsss::{DatagramSink, PacketSink, PathId};
use anabranch_element::time::Instant;
use nix::sched::{CloneFlags, unshare};
use std::net::{SocketAddr, UdpSocket};
use std::process::Command;
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// Runs `body` on a thread in a network namespace of its own; `None` where namespaces are not permitted.
pub(crate) fn in_private_network<T: Send>(body: impl FnOnce() -> T + Send) -> Option<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            if let Err(error) = unshare(CloneFlags::CLONE_NEWNET) {
                assert!(
                    std::env::var_os("CI").is_none(),
                    "CI must be able to make a network namespace: {error}"
                );
                eprintln!("skipped: needs root to make a network namespace ({error})");
                return None;
            }
            sh("ip link set lo up");
            Some(body())
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

pub(crate) fn sh(commands: &str) -> String {
    let output = Command::new("sh").args(["-ec", commands]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{commands}\n{text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

/// A tunnel end that prepends eight bytes.
struct Through(SocketAddr);

impl TunnelEnd for Through {
    type Event = ();
    fn run(worker: Worker<Self>) -> anyhow::Result<()> {
        worker.run_until_stopped()
    }
    fn inner(&mut self, packet: &mut [u8], _: Instant, out: &mut impl DatagramSink) {
        if let Some(room) = out.reserve(0, self.0, packet.len() + 8) {
            room[..8].fill(0x80);
            room[8..].copy_from_slice(packet);
        }
    }
    fn datagram(
        &mut self,
        _: PathId,
        _: SocketAddr,
        datagram: &mut [u8],
        _: Instant,
        _: &mut impl DatagramSink,
        inner: &mut impl PacketSink,
    ) -> bool {
        if datagram.len() > 8 {
            inner.deliver(&mut datagram[8..]);
        }
        true
    }
    fn poll(&mut self, _: Instant, _: &mut impl DatagramSink, _: &mut impl PacketSink) {}
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }
    fn poll_event(&mut self) -> Option<()> {
        None
    }
}

/// Runs one end until it is stopped: TUN `10.9.0.<host>` over `10.8.0.<host>` on veth.
fn end(host: u8, ready: &mpsc::Sender<(u8, Handle<Through>)>) {
    let far = SocketAddr::from(([10, 8, 0, 3 - host], 4500));
    let device = Device::tun("anb0", 1400, 1).unwrap().remove(0);
    sh(&format!("ip addr add 10.9.0.{host}/24 dev anb0; ip link set anb0 up"));
    let socket = UdpSocket::bind(("0.0.0.0", 4500)).unwrap();
    let _ = nix::sys::socket::setsockopt(&socket, nix::sys::socket::sockopt::RcvBufForce, &(8 << 20));
    let socket = AccessSocket::new(socket, false, true).unwrap();
    let (events, _keep) = tokio::sync::mpsc::channel(1);
    let (worker, handle) =
        Worker::new(Through(far), Clock::start(), device, vec![Some(socket)], events).unwrap();
    ready.send((host, handle)).unwrap();
    worker.run().unwrap();
}

/// Starts both ends, runs `script`, in which `$A` and `$B` enter the namespaces, and returns its output.
fn between_two(script: &str) -> Option<String> {
    in_private_network(|| {
        let (ready, wait) = mpsc::channel();
        let a = nix::unistd::gettid();
        std::thread::scope(|scope| {
            let (named, name) = mpsc::channel();
            let (go, start) = mpsc::channel::<()>();
            let ready_b = ready.clone();
            scope.spawn(move || {
                nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
                named.send(nix::unistd::gettid()).unwrap();
                start.recv().unwrap();
                sh("ip link set lo up; ip addr add 10.8.0.2/24 dev vb; ip link set vb up");
                end(2, &ready_b);
            });
            let b = name.recv().unwrap();
            sh(&format!("ip link add va type veth peer vb; ip link set vb netns {b}"));
            sh("ip addr add 10.8.0.1/24 dev va; ip link set va up");
            go.send(()).unwrap();
            // One worker per thread: one runs here, the other on a thread in the same namespace.
            scope.spawn(move || end(1, &ready));
            let handles: Vec<_> = (0..2).map(|_| wait.recv().unwrap()).collect();
            let enter = |tid| format!("nsenter --net=/proc/{}/task/{tid}/ns/net", std::process::id());
            let output =
                std::panic::catch_unwind(|| sh(&format!("A='{}'; B='{}'\n{script}", enter(a), enter(b))));
            for (_, handle) in handles {
                handle.stop().unwrap();
            }
            output.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    })
}

/// Sends packets to one peer, and answers a datagram from it when it is polled.
struct Answers {
    peer: SocketAddr,
    asked: bool,
}

impl TunnelEnd for Answers {
    type Event = ();
    fn run(worker: Worker<Self>) -> anyhow::Result<()> {
        worker.run_until_stopped()
    }
    fn inner(&mut self, packet: &mut [u8], _: Instant, out: &mut impl DatagramSink) {
        if let Some(room) = out.reserve(0, self.peer, packet.len()) {
            room.copy_from_slice(packet);
        }
    }
    fn datagram(
        &mut self,
        _: PathId,
        _: SocketAddr,
        _: &mut [u8],
        _: Instant,
        _: &mut impl DatagramSink,
        _: &mut impl PacketSink,
    ) -> bool {
        self.asked = true;
        true
    }
    fn poll(&mut self, _: Instant, out: &mut impl DatagramSink, _: &mut impl PacketSink) {
        if std::mem::take(&mut self.asked)
            && let Some(room) = out.reserve(0, self.peer, 1)
        {
            room.fill(0);
        }
    }
    fn poll_timeout(&self) -> Option<Instant> {
        self.asked.then_some(Instant::ZERO)
    }
    fn poll_event(&mut self) -> Option<()> {
        None
    }
}

#[test]
fn an_answer_leaves_before_packets_that_are_read_after_the_question() {
    let first_bytes = in_private_network(|| {
        let device = Device::tun("anb0", 1400, 1).unwrap().remove(0);
        sh("ip link set lo up; ip addr add 10.9.0.1/24 dev anb0; ip link set anb0 up");
        let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
        peer.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = socket.local_addr().unwrap();
        let socket = AccessSocket::new(socket, false, true).unwrap();
        let end = Answers { peer: peer.local_addr().unwrap(), asked: false };
        let (events, _keep) = tokio::sync::mpsc::channel(1);
        let (worker, handle) = Worker::new(end, Clock::start(), device, vec![Some(socket)], events).unwrap();
        // The question and the packets wait when the worker begins.
        peer.send_to(b"?", to).unwrap();
        let sender = UdpSocket::bind("10.9.0.1:0").unwrap();
        for _ in 0..20 {
            sender.send_to(&[0; 500], "10.9.0.2:9").unwrap();
        }
        std::thread::scope(|scope| {
            let first = scope.spawn(|| {
                let first = peer.recv_from(&mut [0; 1500]).map(|(bytes, _)| bytes);
                handle.stop().unwrap();
                first
            });
            worker.run().unwrap();
            first.join().unwrap().unwrap()
        })
    });
    assert!(first_bytes.is_none_or(|bytes| bytes == 1), "{first_bytes:?}");
}

#[test]
fn pings_of_every_size_pass() {
    // With -c alone, ping waits two round trips for the last reply, which is too short on a busy machine.
    // With -w it continues until it has 50 replies; the test passes if they answer the first 50 requests.
    let script = "for size in 0 1 500 1372 4000; do $A ping -n -i 0.002 -c 50 -w 20 -s $size 10.9.0.2; done";
    let Some(text) = between_two(script) else { return };
    let runs: Vec<&str> = text.split("PING 10.9.0.2").skip(1).collect();
    assert_eq!(runs.len(), 5, "{text}");
    for run in runs {
        let number = |line: &str| line.split_once("icmp_seq=")?.1.split(' ').next()?.parse().ok();
        let answered: Vec<u32> = run.lines().filter_map(number).collect();
        assert_eq!(answered, Vec::from_iter(1..=50), "{run}");
    }
}

#[test]
fn tcp_arrives_intact_in_frames() {
    let Some(text) = between_two(
        "dir=$(mktemp -d); head -c 20000000 /dev/urandom > $dir/sent
         $B timeout 20 python3 -c 'import socket,sys
s=socket.create_server((\"10.9.0.2\",99)); c,_=s.accept(); f=open(sys.argv[1],\"wb\")
while d:=c.recv(1<<20): f.write(d)' $dir/got & server=$!
         until $B ss -ltn | grep -q :99; do sleep 0.05; done
         $A timeout 20 python3 -c 'import socket,sys
c=socket.create_connection((\"10.9.0.2\",99)); c.sendall(open(sys.argv[1],\"rb\").read()); c.close()' $dir/sent
         wait $server; cmp $dir/sent $dir/got && echo same; rm -r $dir",
    ) else {
        return;
    };
    assert!(text.contains("same"), "{text}");
}

/// `cargo test --release -p anabranch-node throughput -- --ignored --nocapture`
#[test]
#[ignore = "measures; run by hand"]
fn throughput() {
    let script = "$B iperf3 -s -1 -D >/dev/null; until $B ss -ltn | grep -q :5201; do sleep 0.05; done; $A iperf3 -C cubic -c 10.9.0.2 -t 5 -f m | tail -4
                  $B iperf3 -s -1 -D >/dev/null; until $B ss -ltn | grep -q :5201; do sleep 0.05; done; $A iperf3 -C cubic -c 10.8.0.2 -t 3 -f m | tail -4";
    if let Some(text) = between_two(script) {
        println!("{text}");
    }
}

/// A queue of deferred work with its thread, and the jobs that it returns.
fn deferred() -> (WorkQueue<Through>, std::thread::JoinHandle<()>, Jobs<Worker<Through>>, mio::Poll) {
    let poll = mio::Poll::new().unwrap();
    let waker = Arc::new(mio::Waker::new(poll.registry(), mio::Token(0)).unwrap());
    let (handle, jobs) = Handle::new(waker);
    let (queue, thread) = WorkQueue::start(0, handle).unwrap();
    (queue, thread, jobs, poll)
}

fn job(work: impl FnOnce() + Send + 'static) -> Job<Through> {
    let arrival = Arrival { access: 0, from: SocketAddr::from(([10, 8, 0, 1], 1)), local: None };
    let work: DeferredTask<Through> = Box::new(move |_| {
        work();
        Box::new(|_, _, _| {})
    });
    (work, arrival)
}

fn soon(what: &str, holds: impl Fn() -> bool) {
    let start = std::time::Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn deferred_work_comes_back_as_jobs_and_the_thread_ends_with_its_queue() {
    let (mut queue, thread, jobs, _poll) = deferred();
    for _ in 0..10 {
        assert!(queue.give(job(|| {}), Instant::from_nanos(0)));
    }
    soon("ten answers", || jobs.len() == 10);
    assert!(queue.overdue(Instant::from_secs(1)).is_none(), "nothing is left");
    assert_eq!(queue.next_look(), None);
    drop(queue);
    thread.join().unwrap();
}

#[test]
fn a_worker_takes_deferred_work_back_when_there_is_no_progress() {
    let (mut queue, thread, jobs, _poll) = deferred();
    let (begun, has_begun) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    let at = |ms: u64| Instant::from_nanos(ms * 1_000_000);
    assert!(queue.give(
        job(move || {
            begun.send(()).unwrap();
            let _ = released.recv();
        }),
        at(0)
    ));
    has_begun.recv().unwrap();
    // The thread is blocked: the queue fills up to its limit.
    let mut waiting = 0;
    while queue.give(job(|| {}), at(1)) {
        waiting += 1;
    }
    assert_eq!(waiting, 300);
    assert!(queue.overdue(at(2)).is_none(), "one was taken since");
    let look = queue.next_look().unwrap();
    assert!(queue.overdue(Instant::from_nanos(look.as_nanos() - 1)).is_none());
    for _ in 0..waiting {
        assert!(queue.overdue(look).is_some());
    }
    assert!(queue.overdue(look).is_none() && queue.next_look().is_none());
    release.send(()).unwrap();
    soon("the answer to the first", || jobs.len() == 1);
    drop(queue);
    thread.join().unwrap();
}
