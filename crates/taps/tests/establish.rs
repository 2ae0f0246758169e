//! Obstacles to establishing a connection, and their duration: names, agents, ports, extreme times.

// These tests run in real time.
#![allow(clippy::disallowed_methods)]

#[allow(dead_code, reason = "shared with the tests over loopback")]
mod common;

use anabranch_taps::{
    Agent, Error, Listener, LocalEndpoint, Multipath, Preconnection, Preference, Properties, Protocol,
    RemoteEndpoint, Security,
};
use common::{Identity, within};
use socket2::{Domain, Socket, Type};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

const HERE: Ipv4Addr = Ipv4Addr::LOCALHOST;
/// Not an address of this machine; the kernel sends no TCP to it.
const UNREACHABLE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::BROADCAST), 9);

fn pre() -> Preconnection {
    let plain = Properties { multipath: Some(Multipath::Disabled), ..Properties::default() };
    Preconnection::new(plain).agent(Agent::None)
}

async fn listen() -> Listener {
    pre().local(LocalEndpoint::new().ip(HERE)).listen().await.unwrap()
}

/// A server whose accept queue is full, so that it answers no SYN; returned with the connections that fill it.
fn dead() -> (SocketAddr, Socket, Vec<TcpStream>) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((HERE, 0)).into()).unwrap();
    socket.listen(0).unwrap();
    let at = socket.local_addr().unwrap().as_socket().unwrap();
    let soon = Duration::from_millis(300);
    let held = std::iter::from_fn(|| TcpStream::connect_timeout(&at, soon).ok()).collect();
    (at, socket, held)
}

#[tokio::test]
async fn candidates_race_from_one_port() {
    within(async {
        let (dead, _socket, _held) = dead();
        let listener = listen().await;
        // A free port.
        let port = std::net::TcpListener::bind((HERE, 0)).unwrap().local_addr().unwrap().port();
        let live = RemoteEndpoint::from(listener.local()).priority(1);
        let dial = pre().local(LocalEndpoint::new().port(port)).remote(dead).remote(live);
        let connection = dial.establish_within(Duration::from_secs(10)).initiate().await.unwrap();
        assert_eq!((connection.remote(), connection.local().port()), (listener.local(), port));
    })
    .await;
}

#[tokio::test]
async fn a_name_without_address_does_not_affect_other_names() {
    within(async {
        let listener = listen().await;
        let nameless = || RemoteEndpoint::hostname("no.such.name.invalid").port(1);
        let dial = pre().remote(nameless()).remote(listener.local());
        assert_eq!(dial.initiate().await.unwrap().remote(), listener.local());
        // For a listener, every peer is required.
        let strict = pre().remote(nameless()).remote(listener.local()).listen().await;
        assert!(matches!(strict, Err(Error::Resolve { .. })), "{strict:?}");
    })
    .await;
}

/// An agent that accepts queries, and answers with `answer`.
fn agent(folder: &std::path::Path, answer: &'static str) -> Agent {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let path = folder.join(format!("{}.sock", answer.len()));
    let listener = tokio::net::UnixListener::bind(&path).unwrap();
    tokio::spawn(async move {
        let mut held = Vec::new();
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            assert!(stream.read(&mut [0; 65_536]).await.unwrap() > 0);
            stream.write_all(answer.as_bytes()).await.unwrap();
            held.push(stream);
        }
    });
    Agent::Socket(path)
}

#[tokio::test]
async fn the_total_time_includes_the_agent() {
    within(async {
        let folder = tempfile::tempdir().unwrap();
        let began = Instant::now();
        let dial = pre().agent(agent(folder.path(), "")).remote(UNREACHABLE);
        let failed = dial.establish_within(Duration::from_millis(200)).initiate().await.unwrap_err();
        assert!(matches!(failed, Error::TimedOut(_)), "{failed}");
        assert!(began.elapsed() < Duration::from_millis(1500), "{:?}", began.elapsed());
    })
    .await;
}

#[tokio::test]
async fn an_agent_that_breaks_off_is_ignored() {
    within(async {
        let folder = tempfile::tempdir().unwrap();
        let begun = "HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n{\"candidates\": [";
        let dial = pre().agent(agent(folder.path(), begun)).remote(UNREACHABLE);
        let failed = dial.establish_within(Duration::from_secs(4)).initiate().await.unwrap_err();
        assert!(!matches!(failed, Error::Agent { .. }), "{failed}");
    })
    .await;
}

#[tokio::test]
async fn the_connection_limit_applies_to_all_waiting_callers() {
    within(async {
        let listener = std::sync::Arc::new(listen().await);
        let dial = async || pre().remote(listener.local()).initiate().await.unwrap();
        listener.set_new_connection_limit(Some(1));
        let given = |listener: std::sync::Arc<Listener>| {
            tokio::spawn(async move { listener.next().await.map(|c| c.remote()) })
        };
        let all: Vec<_> = (0..4).map(|_| given(listener.clone())).collect();
        tokio::time::sleep(Duration::from_millis(100)).await;
        let (_one, _two) = (dial().await, dial().await);
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(all.iter().filter(|task| task.is_finished()).count(), 1);
        // A waiting caller is notified of a new limit.
        listener.set_new_connection_limit(None);
        while all.iter().filter(|task| task.is_finished()).count() < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        listener.set_new_connection_limit(Some(0));
        let _three = dial().await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(all.iter().filter(|task| task.is_finished()).count(), 2);
        listener.stop();
        for task in all {
            task.await.unwrap();
        }
    })
    .await;
}

#[tokio::test]
async fn extreme_times_still_open_connections() {
    within(async {
        let identity = Identity::new();
        let tcp = listen().await;
        let quic =
            pre().security(identity.server()).local(LocalEndpoint::new().ip(HERE)).listen().await.unwrap();
        let most = [Duration::MAX, Duration::from_secs(u64::from(u32::MAX)), Duration::ZERO];
        for time in most {
            for (to, protocol) in [(&tcp, Protocol::Tcp), (&quic, Protocol::Quic)] {
                let mut dial = pre().remote(RemoteEndpoint::from(to.local()).protocol(protocol));
                if protocol == Protocol::Quic {
                    dial = dial.security(identity.client());
                    // A connection that must never be silent for a moment cannot work.
                    dial = dial.connection_timeout(time.max(Duration::from_secs(30)));
                } else {
                    dial = dial.connection_timeout(time);
                }
                let connection = dial.keep_alive_timeout(time).initiate().await.unwrap();
                assert_eq!(connection.protocol(), protocol);
            }
        }
    })
    .await;
}

/// Runs `body` where requests for any port yield one of the four `ports`.
fn with_few_ports(body: impl FnOnce(std::ops::Range<u16>) + Send) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            if let Err(error) = nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET) {
                assert!(
                    std::env::var_os("CI").is_none(),
                    "CI must be able to make a network namespace: {error}"
                );
                eprintln!("skipped: needs root to make a network namespace ({error})");
                return;
            }
            std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", "40000 40003").unwrap();
            anabranch_kern::interface::set_up("lo", true).unwrap();
            body(40_000..40_004);
        });
    });
}

/// If any port is acceptable, the listener takes one that is free for each protocol, and reports it.
#[test]
fn a_listener_on_any_port_selects_one_free_for_all_protocols() {
    let identity = Identity::new();
    with_few_ports(|ports| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(within(async {
            // TCP and UDP; TCP and QUIC.
            for quic in [false, true] {
                let any = Properties {
                    reliability: Preference::NoPreference,
                    preserve_order: Preference::NoPreference,
                    congestion_control: Preference::NoPreference,
                    multipath: Some(Multipath::Disabled),
                    ..Properties::default()
                };
                let plain = Preconnection::new(any).agent(Agent::None).local(LocalEndpoint::new().ip(HERE));
                let pre = || {
                    if quic {
                        plain.clone().security(
                            Security::opportunistic()
                                .alpn("test")
                                .identity_pem(identity.certificate.as_bytes(), identity.key.as_bytes())
                                .unwrap(),
                        )
                    } else {
                        plain.clone()
                    }
                };
                for free in ports.clone() {
                    let taken: Vec<_> = ports
                        .clone()
                        .filter(|port| *port != free)
                        .map(|port| std::net::UdpSocket::bind((HERE, port)).unwrap())
                        .collect();
                    let listener = pre().listen().await.unwrap();
                    assert_eq!(
                        (listener.local().port(), listener.protocols().len()),
                        (free, 2),
                        "{listener:?}"
                    );
                    drop((listener, taken));
                    // Its ports are free again within one or two seconds.
                    while std::net::UdpSocket::bind((HERE, free)).is_err() {
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                }
                // No port is free for both: the error names the protocol.
                let taken: Vec<_> =
                    ports.clone().map(|port| std::net::UdpSocket::bind((HERE, port)).unwrap()).collect();
                let error = pre().listen().await.unwrap_err();
                assert!(matches!(&error, Error::Listen(why) if why.contains("in use")), "{error}");
                drop(taken);
            }
        }));
    });
}
