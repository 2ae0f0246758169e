//! A thousand connections at once, and a version replaced while they are open.
// Waits for the kernel, in real time.
#![allow(clippy::disallowed_methods)]

use super::*;
use libbpf_rs::MapType;
use libbpf_rs::query::MapInfoIter;

const CONNECTIONS: usize = 1000;

/// Raises the limit of open files to have both ends of all of them.
fn files() {
    // SAFETY: the pointer is to a value of this frame.
    unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit), 0);
        let wanted = 2 * CONNECTIONS as u64 + 200;
        limit.rlim_max = limit.rlim_max.max(wanted);
        limit.rlim_cur = limit.rlim_cur.max(wanted);
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit), 0);
    }
}

/// Our maps: name and maximum number of entries.
fn maps() -> Vec<(String, u32)> {
    let mut all: Vec<_> = MapInfoIter::default()
        .filter(|info| info.ty != MapType::StructOps)
        .filter_map(|info| Some((info.name.to_str()?.to_owned(), info.max_entries)))
        .filter(|(name, _)| name.starts_with("ab_"))
        .collect();
    all.sort();
    all
}

/// The sockets in this namespace that use one of our controllers.
fn senders(port: u16) -> Vec<SocketState> {
    sockets()
        .unwrap()
        .into_iter()
        .filter(|s| s.remote.port() == port && s.controller.starts_with("int_"))
        .collect()
}

#[test]
fn a_thousand_connections_leave_no_state() {
    let Some(_alone) = alone() else { return };
    let Some(group) = own_group() else { return };
    files();
    // Those of the previous test may still be disappearing.
    let at_start = maps().len();
    crate::tests::in_private_network(NODE, || {
        let names = [Algorithm::IntRate, Algorithm::IntCubicL1];
        let controllers = Controllers::load(&names, &IntConfig::default()).unwrap();
        let feedback = controllers.feedback(&group.path, &FeedbackConfig::default()).unwrap();
        let _source = Source::attach("lo", loopback_source()).unwrap();
        let before = maps();
        // Only a limited number of destinations is remembered.
        let is_small = |(name, most): &(String, u32)| *most <= 16 || name == "ab_told";
        assert!(before.iter().all(is_small), "{before:?}");

        let listener = TcpListener::bind("[::1]:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut pairs: Vec<(TcpStream, TcpStream)> = Vec::new();
        for i in 0..CONNECTIONS {
            let mut sender = connect(port, names[i % 2].name());
            let (mut receiver, _) = listener.accept().unwrap();
            sender.write_all(&[1; 3000]).unwrap();
            receiver.read_exact(&mut [0; 3000]).unwrap();
            pairs.push((sender, receiver));
        }
        // Two more rounds, so that reports have returned with ACKs.
        for _ in 0..2 {
            for (sender, receiver) in &mut pairs {
                sender.write_all(&[2; 3000]).unwrap();
                receiver.read_exact(&mut [0; 3000]).unwrap();
            }
        }
        let all = senders(port);
        assert_eq!(all.len(), CONNECTIONS);
        assert_eq!(all.iter().filter(|s| s.controller == "int_rate").count(), CONNECTIONS / 2);
        assert!(
            all.iter().all(|s| s.remote.ip().is_loopback() && s.cwnd > 0 && s.resent == 0),
            "{:?}",
            all[0]
        );
        let heard = all.iter().filter(|s| s.report_age.is_some()).count();
        assert!(heard > CONNECTIONS * 9 / 10, "{heard} of {CONNECTIONS} heard a report");
        // The receivers report what they saw; they use the kernel's default controller.
        let receivers = sockets().unwrap().into_iter().filter(|s| s.local.port() == port).collect::<Vec<_>>();
        let told = receivers.iter().filter(|s| s.trace_age.is_some()).count();
        assert!(told > CONNECTIONS * 9 / 10, "{told} of {} saw a trace", receivers.len());
        let after = maps();
        assert!(
            after.len() <= before.len() && after.iter().all(|m| before.contains(m)),
            "{before:?} {after:?}"
        );

        // Replace the version, as another process would: no connection is interrupted.
        let newer = Controllers::load(&names, &IntConfig { stale_rtts: 9, ..IntConfig::default() }).unwrap();
        assert_eq!(newer.replaced(), names);
        drop(controllers);
        assert_eq!(registered().len(), 2);
        let fresh = connect(port, "int_rate");
        let (_kept, _) = listener.accept().unwrap();
        for (sender, receiver) in &mut pairs {
            sender.write_all(&[3; 3000]).unwrap();
            receiver.read_exact(&mut [0; 3000]).unwrap();
        }
        assert_eq!(senders(port).len(), CONNECTIONS + 1, "one map, old and new sockets");
        assert!(
            newer.counters().unwrap().iter().all(|(_, c)| c.acks < 100),
            "the old ones run the old version"
        );
        drop(fresh);

        // The state of a socket disappears with it.
        drop(pairs);
        until("every socket's state is gone", || senders(port).is_empty());
        drop((feedback, newer));
    });
    assert_eq!(registered(), [""; 0]);
    until("no map of ours is left", || maps().len() <= at_start);
}
