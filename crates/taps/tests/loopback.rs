//! Connections over loopback, with each protocol, without an agent.

// These tests run in real time.
#![allow(clippy::disallowed_methods)]

mod common;

use anabranch_taps::{
    Agent, CapacityProfile, CloneError, Connection, Error, Event, LengthPrefix, Listener, LocalEndpoint,
    MessageContext, Multipath, Preconnection, Preference, Properties, Protocol, Rate, ReceiveError,
    RemoteEndpoint, SendError, State,
};
use common::relay::{Seen, relay};
use common::{Identity, datagrams, next_event, within};
use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

const HERE: Ipv4Addr = Ipv4Addr::LOCALHOST;

fn pre(properties: Properties) -> Preconnection {
    Preconnection::new(properties).agent(Agent::None)
}

async fn listen(pre: Preconnection) -> Listener {
    pre.local(LocalEndpoint::new().ip(HERE)).listen().await.unwrap()
}

fn at(address: SocketAddr, protocol: Protocol) -> RemoteEndpoint {
    RemoteEndpoint::from(address).protocol(protocol)
}

/// Sends every message back until the peer ends, and then ends as well.
async fn echo(connection: Connection) {
    while let Some(message) = connection.receive().await.unwrap() {
        if !message.data.is_empty() {
            connection.send(message.data).await.unwrap();
        }
    }
    connection.close();
    while !matches!(connection.event().await, None | Some(Event::Closed)) {}
}

/// Serves echoes.
fn serve(listener: Listener) -> tokio::task::JoinHandle<()> {
    tokio::spawn(async move {
        while let Some(connection) = listener.next().await {
            tokio::spawn(echo(connection));
        }
    })
}

/// Framed messages in both directions, in order, and the end of both sides.
async fn round_trip(connection: &Connection) {
    let messages = ["first", "", &"long ".repeat(50_000), "last"];
    for message in messages {
        connection.send(message.to_owned()).await.unwrap();
    }
    for message in messages.iter().filter(|m| !m.is_empty()) {
        let received = connection.receive().await.unwrap().unwrap();
        assert_eq!(received.data, message.as_bytes());
        assert!(received.end_of_message);
        assert_eq!(received.remote, connection.remote());
    }
    connection.send_with("bye", &MessageContext::new().last()).await.unwrap();
    assert_eq!(connection.send("more").await, Err(SendError::AfterFinal));
    assert!(!connection.can_send() && connection.can_receive());
    assert_eq!(connection.receive().await.unwrap().unwrap().data, "bye");
    assert!(connection.receive().await.unwrap().is_none(), "the peer has sent its last");
}

#[tokio::test]
async fn framed_messages_over_tcp() {
    within(async {
        let listener = listen(pre(Properties::default()).framer(LengthPrefix::default())).await;
        assert_eq!(listener.protocols(), [Protocol::Mptcp]);
        let to = listener.local();
        let server = serve(listener);
        // Connections can be opened in tasks of their own.
        let dial = pre(Properties::default()).remote(to).framer(LengthPrefix::default());
        let connection = tokio::spawn(async move { dial.initiate().await }).await.unwrap().unwrap();
        assert_eq!((connection.protocol(), connection.remote()), (Protocol::Tcp, to));
        assert_eq!(connection.event().await, Some(Event::Ready));
        round_trip(&connection).await;
        assert!(connection.rtt().unwrap() > Duration::ZERO);
        assert_eq!((connection.paths(), connection.state()), (1, State::Established));
        let info = connection.info().unwrap();
        assert!(!info.by_agent && info.failed.is_empty() && info.plan.is_empty(), "{info:?}");
        connection.close();
        next_event(&connection, |e| *e == Event::Closed).await;
        assert_eq!((connection.event().await, connection.state()), (None, State::Closed));
        assert!(matches!(connection.receive().await, Err(ReceiveError::Closed)));
        assert_eq!(connection.send("x").await, Err(SendError::AfterFinal));
        assert_eq!((connection.rtt(), connection.paths()), (None, 0));
        server.abort();
    })
    .await;
}

#[tokio::test]
async fn framed_messages_over_multipath_tcp() {
    within(async {
        let several = Properties { multipath: Some(Multipath::Active), ..Properties::default() };
        let listener = listen(pre(several.clone()).framer(LengthPrefix::default())).await;
        let to = at(listener.local(), Protocol::Mptcp);
        let server = serve(listener);
        let connection = pre(several).remote(to).framer(LengthPrefix::default()).initiate().await;
        let connection = match connection {
            Ok(connection) => connection,
            Err(Error::Failed(attempts)) if attempts.iter().all(|a| a.error.contains("mptcp socket")) => {
                assert!(std::env::var_os("CI").is_none(), "CI must have Multipath TCP");
                return;
            }
            Err(error) => panic!("{error}"),
        };
        assert_eq!((connection.protocol(), connection.paths()), (Protocol::Mptcp, 1));
        round_trip(&connection).await;
        server.abort();
    })
    .await;
}

#[tokio::test]
async fn a_stream_without_framers_is_one_message_in_parts() {
    within(async {
        let listener = listen(pre(Properties::default())).await;
        let connection = pre(Properties::default()).remote(listener.local()).initiate().await.unwrap();
        let served = listener.next().await.unwrap();
        connection.send_partial("one ", &MessageContext::new(), false).await.unwrap();
        connection.send_partial("two", &MessageContext::new().last(), true).await.unwrap();
        let all = served.receive_part(7, 100).await.unwrap().unwrap();
        assert_eq!((&all.data[..], all.end_of_message), (&b"one two"[..], false));
        let end = served.receive().await.unwrap().unwrap();
        assert!(end.data.is_empty() && end.end_of_message && end.last);
        assert!(served.receive().await.unwrap().is_none());
        // In the other direction, no more than requested at a time.
        served.send("abcdef").await.unwrap();
        for part in ["ab", "cd", "ef"] {
            assert_eq!(connection.receive_part(2, 2).await.unwrap().unwrap().data, part);
        }
    })
    .await;
}

#[tokio::test]
async fn datagrams_keep_their_boundaries_and_peers_are_distinguished() {
    within(async {
        let listener = listen(pre(datagrams())).await;
        assert_eq!(listener.protocols(), [Protocol::Udp]);
        let one = pre(datagrams()).remote(listener.local()).initiate().await.unwrap();
        let two = pre(datagrams()).remote(listener.local()).initiate().await.unwrap();
        assert_eq!((one.protocol(), one.rtt()), (Protocol::Udp, None));
        for (connection, text) in [(&one, "one"), (&two, "two")] {
            connection.send(text).await.unwrap();
            let served = listener.next().await.unwrap();
            assert_eq!(served.remote(), connection.local());
            assert_eq!(served.receive().await.unwrap().unwrap().data, text);
            // The end of the listener does not end its connections.
            listener.set_new_connection_limit(None);
            served.send("").await.unwrap();
            served.send("answer").await.unwrap();
            assert_eq!(connection.receive().await.unwrap().unwrap().data, "");
            let answer = connection.receive().await.unwrap().unwrap();
            assert_eq!((&answer.data[..], answer.end_of_message), (&b"answer"[..], true));
        }
        let too_long = one.send(vec![0; 65_508]).await;
        assert_eq!(too_long, Err(SendError::TooLong { bytes: 65_508, most: 65_507 }));
        let most = one.singular_transmission_msg_max_len().unwrap();
        let whole = MessageContext { no_segmentation: true, ..MessageContext::new() };
        let error = one.send_with(vec![0; most + 1], &whole).await;
        assert_eq!(error, Err(SendError::TooLong { bytes: most + 1, most }));
        let reliable = MessageContext { reliable: Some(true), ..MessageContext::new() };
        let error = one.send_with("x", &reliable).await.unwrap_err();
        assert!(matches!(error, SendError::Property { property: "msgReliable", .. }), "{error}");
    })
    .await;
}

#[tokio::test]
async fn datagrams_to_nobody_are_a_soft_error() {
    within(async {
        // A port that was free a moment ago.
        let free = std::net::UdpSocket::bind((HERE, 0)).unwrap().local_addr().unwrap();
        let connection = pre(datagrams()).remote(free).initiate().await.unwrap();
        connection.send("anybody?").await.unwrap();
        let listens = tokio::spawn(async move {
            let _ = tokio::time::timeout(Duration::from_secs(1), connection.receive()).await;
            next_event(&connection, |e| matches!(e, Event::SoftError(_))).await;
            connection.state()
        });
        assert_eq!(listens.await.unwrap(), State::Established);
    })
    .await;
}

#[tokio::test]
async fn streams_of_quic_are_a_group() {
    within(async {
        let identity = Identity::new();
        let security = identity.server();
        let listener =
            listen(pre(Properties::default()).security(security).framer(LengthPrefix::default())).await;
        assert_eq!(listener.protocols(), [Protocol::Quic]);
        let to = listener.local();
        let first = pre(Properties::default())
            .security(identity.client())
            .framer(LengthPrefix::default())
            .remote(to)
            .initiate()
            .await
            .unwrap();
        assert_eq!(first.protocol(), Protocol::Quic);
        let server = serve(listener);
        let second = first.clone_connection().await.unwrap();
        assert_eq!(
            (second.local(), second.remote()),
            (first.local(), first.remote()),
            "one connection below"
        );
        assert_eq!(first.grouped_connections(), [first.id(), second.id()]);
        second.set_priority(5);
        assert_eq!((first.priority(), second.priority()), (100, 5), "priorities are each one's own");
        round_trip(&second).await;
        round_trip(&first).await;
        assert!(first.rtt().is_some());
        // A property set for one is set for all, and one that cannot be set is named.
        let faster = anabranch_taps::ConnectionProperties {
            keep_alive_timeout: Some(Duration::from_secs(5)),
            ..first.connection_properties()
        };
        let error = second.set_connection_properties(faster).unwrap_err().to_string();
        assert!(error.contains("keepAliveTimeout"), "{error}");
        second.close_group();
        next_event(&first, |e| *e == Event::Closed).await;
        assert_eq!(first.grouped_connections(), [0; 0]);
        server.abort();
    })
    .await;
}

/// Each side marks its packets according to its own capacity profile; ECN keeps its two bits.
#[tokio::test]
async fn quic_has_the_code_point_of_its_capacity_profile() {
    within(async {
        let identity = Identity::new();
        let calls = |profile| Properties { conn_capacity_profile: profile, ..Properties::default() };
        for (ours, theirs, up, down) in [
            (CapacityProfile::LowLatencyInteractive, CapacityProfile::Scavenger, 34, 1),
            (CapacityProfile::Default, CapacityProfile::CapacitySeeking, 0, 10),
        ] {
            let server = pre(calls(theirs)).security(identity.server()).framer(LengthPrefix::default());
            let listener = listen(server).await;
            let (to, sent, answered) = relay(listener.local());
            let server = serve(listener);
            let client = pre(calls(ours)).security(identity.client()).framer(LengthPrefix::default());
            let connection = client.remote(at(to, Protocol::Quic)).initiate().await.unwrap();
            round_trip(&connection).await;
            // Batches as well: 250 kB came back.
            let points = |seen: &Seen| seen.classes().into_iter().map(|c| c >> 2).collect::<BTreeSet<_>>();
            assert_eq!((points(&sent), points(&answered)), ([up].into(), [down].into()));
            assert!(sent.classes().contains(&(up << 2 | 2)), "ECT(0): {:?}", sent.classes());
            server.abort();
        }
    })
    .await;
}

#[tokio::test]
async fn a_replayable_first_message_is_sent_with_the_second_handshake() {
    within(async {
        let early = Properties { zero_rtt_msg: Preference::Prefer, ..Properties::default() };
        let identity = Identity::new();
        let listener = listen(pre(early.clone()).security(identity.server())).await;
        let client = pre(early).security(identity.client()).remote(listener.local());
        for round in 0..2 {
            let (connection, _) = client
                .initiate_with_send("hello", &MessageContext::new().safely_replayable().last())
                .await
                .unwrap();
            let served = listener.next().await.unwrap();
            let message = served.receive_part(5, 5).await.unwrap().unwrap();
            assert_eq!(message.data, "hello");
            assert_eq!(message.early, round == 1, "round {round}");
            next_event(&connection, |e| matches!(e, Event::Sent(_))).await;
            served.send_with("ok", &MessageContext::new().last()).await.unwrap();
            // The resumption state arrives with the answer.
            assert_eq!(connection.receive().await.unwrap().unwrap().data, "ok");
        }
    })
    .await;
}

#[tokio::test]
async fn a_peer_without_the_right_certificate_is_refused() {
    within(async {
        let listener = listen(pre(Properties::default()).security(Identity::new().server())).await;
        let client = pre(Properties::default()).security(Identity::new().client()).remote(listener.local());
        let error = client.initiate().await.unwrap_err().to_string();
        assert!(error.contains("quic to") && error.to_lowercase().contains("certificate"), "{error}");
    })
    .await;
}

#[tokio::test]
async fn clones_over_tcp_are_connections_that_share_their_properties() {
    within(async {
        let listener = listen(pre(Properties::default()).framer(LengthPrefix::default())).await;
        let one = pre(Properties::default())
            .framer(LengthPrefix::default())
            .remote(listener.local())
            .initiate()
            .await
            .unwrap();
        let served = listener.next().await.unwrap();
        let error = served.clone_connection().await.unwrap_err();
        assert!(matches!(error, CloneError::Passive(_)), "{error}");
        let two = one.clone_connection().await.unwrap();
        assert_ne!(one.local(), two.local());
        let changed = anabranch_taps::ConnectionProperties {
            timeout: Some(Duration::from_secs(9)),
            keep_alive_timeout: Some(Duration::from_secs(7)),
            capacity_profile: CapacityProfile::LowLatencyInteractive,
            max_send_rate: Rate::bps(80_000_000),
        };
        one.set_connection_properties(changed).unwrap();
        assert_eq!(two.connection_properties(), changed);
        let three = two.clone_connection().await.unwrap();
        assert_eq!(three.grouped_connections().len(), 3);
        three.send("from three").await.unwrap();
        let (_, last) = (listener.next().await.unwrap(), listener.next().await.unwrap());
        assert_eq!(last.receive().await.unwrap().unwrap().data, "from three");
        drop(two);
        three.abort();
        assert_eq!(three.state(), State::Closed);
        assert!(matches!(last.receive().await, Err(ReceiveError::Io(_))), "an abort is no end");
    })
    .await;
}

#[tokio::test]
async fn queued_messages_expire_and_urgent_ones_overtake() {
    within(async {
        let loose = Properties { preserve_order: Preference::NoPreference, ..Properties::default() };
        let listener = listen(pre(loose.clone()).framer(LengthPrefix::default())).await;
        let connection =
            pre(loose).framer(LengthPrefix::default()).remote(listener.local()).initiate().await.unwrap();
        let served = listener.next().await.unwrap();
        // Without a reader, the kernel's buffers fill, and then messages queue here.
        let big = vec![7u8; 512 << 10];
        let mut sent = 0;
        while let Ok(result) =
            tokio::time::timeout(Duration::from_millis(300), connection.send(big.clone())).await
        {
            result.unwrap();
            sent += 1;
        }
        // One is partly sent, two wait: room for small ones appears when the first is sent.
        let late = MessageContext::new().lifetime(Duration::from_millis(1));
        let urgent = MessageContext::new().priority(1);
        let (reads, writes) = tokio::join!(
            async {
                let mut texts = Vec::new();
                while let Some(message) = served.receive().await.unwrap() {
                    if message.data.len() < 100 {
                        texts.push(String::from_utf8(message.data.to_vec()).unwrap());
                    } else {
                        sent -= 1;
                    }
                }
                texts
            },
            async {
                connection.send_with("late", &late).await.unwrap();
                connection.send_with("urgent", &urgent).await.unwrap();
                connection.send("normal").await.unwrap();
                connection.close();
                let mut expired = 0;
                next_event(&connection, |e| {
                    expired += usize::from(matches!(e, Event::Expired(_)));
                    *e == Event::Closed
                })
                .await;
                expired
            }
        );
        assert_eq!(sent, 0, "every big one arrived");
        // How far reading had progressed when the late one was queued depends on the scheduler; nothing may be lost or sent twice.
        assert_eq!(reads.len() + writes, 3, "{reads:?}");
        assert!(reads.contains(&"urgent".to_owned()) && reads.contains(&"normal".to_owned()));
    })
    .await;
}

#[tokio::test]
async fn a_refused_candidate_is_skipped_at_once() {
    within(async {
        let dead = std::net::TcpListener::bind((HERE, 0)).unwrap().local_addr().unwrap();
        let listener = listen(pre(Properties::default())).await;
        let start = Instant::now();
        let connection = pre(Properties::default())
            .remote(RemoteEndpoint::from(dead))
            .remote(RemoteEndpoint::from(listener.local()).priority(1))
            .initiate()
            .await
            .unwrap();
        assert_eq!(connection.remote(), listener.local());
        assert!(start.elapsed() < Duration::from_millis(250), "no delay after a failure");
        let failed = &connection.info().unwrap().failed;
        assert_eq!((failed.len(), failed[0].candidate.endpoint.port), (1, dead.port()));
        let error = pre(Properties::default()).remote(dead).initiate().await.unwrap_err();
        assert!(matches!(&error, Error::Failed(all) if all.len() == 1), "{error}");
        assert!(error.to_string().contains(&format!("tcp to {dead} by lo: ")), "{error}");
    })
    .await;
}

#[tokio::test]
async fn refusals_name_the_property() {
    within(async {
        let of = async |properties: Properties| {
            let error = pre(properties).remote(SocketAddr::from((HERE, 9))).initiate().await.unwrap_err();
            match error {
                Error::Refused { property, reason } => (property, reason),
                other => panic!("{other}"),
            }
        };
        let slice = Properties { pvd: [("gold".into(), Preference::Require)].into(), ..Properties::default() };
        let (property, reason) = of(slice.clone()).await;
        assert_eq!(property, "pvd");
        assert!(reason.contains("it is in no slice"), "{reason}");
        let contradiction =
            Properties { per_msg_reliability: Preference::Require, ..Properties::default() };
        assert_eq!(of(contradiction).await.0, "perMsgReliability");
        let error = pre(slice).listen().await.unwrap_err().to_string();
        assert!(error.contains("pvd rules out paths"), "{error}");
        let error = pre(Properties::default()).initiate().await.unwrap_err().to_string();
        assert!(error.contains("Preconnection::remote"), "{error}");
        let nameless = pre(Properties::default()).remote(RemoteEndpoint::hostname("no.such.name.invalid").port(1));
        assert!(matches!(nameless.initiate().await, Err(Error::Resolve { name, .. }) if name.ends_with(".invalid")));
    })
    .await;
}

#[tokio::test]
async fn without_an_address_a_listener_serves_both_families() {
    within(async {
        let quick = Properties {
            conn_capacity_profile: CapacityProfile::LowLatencyInteractive,
            ..Properties::default()
        };
        let listener = pre(quick.clone()).listen().await.unwrap();
        let port = listener.local().port();
        for here in ["127.0.0.1", "::1"] {
            let to = SocketAddr::new(here.parse().unwrap(), port);
            let connection = pre(quick.clone()).remote(to).initiate().await.unwrap();
            let info = connection.info().unwrap();
            assert_eq!(info.plan, [anabranch_taps::Action::Dscp { dscp: 34 }]);
            let served = listener.next().await.unwrap();
            connection.send(here).await.unwrap();
            assert_eq!(served.receive_part(here.len(), 100).await.unwrap().unwrap().data, here);
            // No treatment of packets failed.
            assert_eq!(served.event().await, Some(Event::Ready));
            served.send("ok").await.unwrap();
            assert!(matches!(served.event().await, Some(Event::Received { .. })));
            assert!(matches!(served.event().await, Some(Event::Sent(_))));
        }
    })
    .await;
}

#[tokio::test]
async fn a_listener_honours_limit_and_peers_until_it_stops() {
    within(async {
        let listener = listen(pre(Properties::default())).await;
        let to = listener.local();
        listener.set_new_connection_limit(Some(1));
        let dial = || async { pre(Properties::default()).remote(to).initiate().await.unwrap() };
        let (one, _two) = (dial().await, dial().await);
        let first = listener.next().await.unwrap();
        assert_eq!(first.remote(), one.local());
        let waits = tokio::time::timeout(Duration::from_millis(100), listener.next()).await;
        assert!(waits.is_err(), "the limit holds");
        listener.set_new_connection_limit(None);
        assert!(listener.next().await.is_some());
        listener.stop();
        assert!(listener.next().await.is_none());
        // Its connections remain open.
        one.send("still here").await.unwrap();
        assert_eq!(first.receive_part(10, 10).await.unwrap().unwrap().data, "still here");

        let elsewhere = RemoteEndpoint::ip(Ipv4Addr::new(127, 0, 0, 9)).port(1);
        let strict = listen(pre(Properties::default()).remote(elsewhere)).await;
        let _refused = pre(Properties::default()).remote(strict.local()).initiate().await.unwrap();
        let waits = tokio::time::timeout(Duration::from_millis(100), strict.next()).await;
        assert!(waits.is_err(), "a stranger is not let in");
    })
    .await;
}

#[tokio::test]
async fn unaccepted_peers_do_not_block_datagrams_of_existing_ones() {
    within(async {
        let listener = listen(pre(datagrams())).await;
        let one = pre(datagrams()).remote(listener.local()).initiate().await.unwrap();
        one.send("first").await.unwrap();
        let served = listener.next().await.unwrap();
        assert_eq!(served.receive().await.unwrap().unwrap().data, "first");
        listener.set_new_connection_limit(Some(0));
        for _ in 0..500 {
            let other = std::net::UdpSocket::bind((HERE, 0)).unwrap();
            other.send_to(b"hello", listener.local()).unwrap();
            // The socket's buffer cannot hold all of them at once.
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // UDP may lose datagrams while the socket's buffer is full.
        loop {
            one.send("second").await.unwrap();
            let soon = tokio::time::timeout(Duration::from_millis(200), served.receive()).await;
            if soon.is_ok_and(|got| got.unwrap().unwrap().data == "second") {
                break;
            }
        }
        // They are returned once requested.
        listener.set_new_connection_limit(None);
        assert_eq!(listener.next().await.unwrap().receive().await.unwrap().unwrap().data, "hello");
    })
    .await;
}

#[tokio::test]
async fn an_oversized_datagram_is_the_only_loss() {
    within(async {
        let listener = listen(pre(datagrams()).framer(LengthPrefix::default())).await;
        let to = listener.local();
        let connection =
            pre(datagrams()).remote(to).framer(LengthPrefix::default()).initiate().await.unwrap();
        // The maximum length of a datagram, plus four bytes of the framer.
        let id = connection.send(vec![0; connection.send_msg_max_len()]).await.unwrap();
        next_event(&connection, |e| matches!(e, Event::SendError(lost, _) if *lost == id)).await;
        connection.send("short").await.unwrap();
        let served = listener.next().await.unwrap();
        assert_eq!(served.receive().await.unwrap().unwrap().data, "short");
    })
    .await;
}

/// Given up while ICMP reports "unreachable": the connection fails with this error, and not with a regular end of the stream.
#[test]
fn a_connection_to_an_unreachable_peer_fails() {
    let sh = |command: &str| {
        assert!(std::process::Command::new("sh").args(["-ec", command]).status().unwrap().success());
    };
    let in_a_namespace = move || {
        if nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).is_err() {
            assert!(std::env::var_os("CI").is_none(), "CI must be able to make a network namespace");
            return eprintln!("skipped: needs root to make a network namespace");
        }
        sh("ip link add v0 type veth peer v1; for i in lo v0 v1; do ip link set $i up; done
            ip addr add 10.0.0.1/32 dev v0; ip addr add 10.0.0.2/32 dev lo");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(within(async {
            let plain = Properties { multipath: Some(Multipath::Disabled), ..Properties::default() };
            let there = LocalEndpoint::new().ip(Ipv4Addr::new(10, 0, 0, 2));
            let listener = pre(plain.clone()).local(there).listen().await.unwrap();
            let here = LocalEndpoint::new().ip(Ipv4Addr::new(10, 0, 0, 1));
            let connection = pre(plain)
                .local(here)
                .remote(listener.local())
                .connection_timeout(Duration::from_secs(5))
                .initiate()
                .await;
            let connection = connection.unwrap();
            let _served = listener.next().await.unwrap();
            // The address is unanswered, and after three seconds the kernel reports this to itself.
            sh("ip addr del 10.0.0.2/32 dev lo; ip route add 10.0.0.2 dev v0");
            connection.send("lost").await.unwrap();
            let error = connection.receive().await.unwrap_err();
            assert!(
                matches!(&error, ReceiveError::Io(e) if e.kind() == std::io::ErrorKind::HostUnreachable),
                "{error}"
            );
        }));
    };
    std::thread::spawn(in_a_namespace).join().unwrap();
}
