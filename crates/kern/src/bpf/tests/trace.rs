//! A trace of the kernel's own CUBIC over the loopback device.

use super::alone;
use crate::bpf::{Trace, TraceEvent, TraceFilter, TraceKind};
use crate::tests::in_private_network;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

/// Transfers a megabyte over a connection to a new port; returns the port.
fn transfer() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut sender = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let (mut receiver, _) = listener.accept().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || sender.write_all(&vec![7; 1 << 20]).unwrap());
        let mut all = Vec::new();
        receiver.read_to_end(&mut all).unwrap();
        assert_eq!(all.len(), 1 << 20);
    });
    port
}

fn taken(trace: &Trace) -> Vec<TraceEvent> {
    let mut all = Vec::new();
    loop {
        let before = all.len();
        all.extend(trace.wait(Duration::from_millis(50)).unwrap());
        if all.len() == before {
            return all;
        }
    }
}

#[test]
fn windows_of_requested_sockets_are_reported_per_ack() {
    let Some(_alone) = alone() else { return };
    in_private_network("ip link set lo up", || {
        let trace = Trace::attach(TraceFilter::default()).unwrap();
        let port = transfer();
        let all = taken(&trace);
        assert_eq!(trace.lost().unwrap(), 0);
        let sent: Vec<&TraceEvent> = all.iter().filter(|e| e.remote_port == port).collect();
        assert!(sent.iter().any(|e| e.kind == TraceKind::Received), "ACKs: {all:?}");
        let data = all.iter().filter(|e| e.local_port == port && e.kind == TraceKind::Received);
        assert!(data.count() > 5, "a megabyte comes in pieces of 64 kB at most: {all:?}");
        assert!(
            sent.iter().all(|e| (1..100_000).contains(&e.cwnd) && e.socket == sent[0].socket),
            "{sent:?}"
        );
        assert!(sent.windows(2).all(|pair| pair[0].at <= pair[1].at), "in order");
        assert!(sent.iter().any(|e| e.srtt > Duration::ZERO), "{sent:?}");
        assert_eq!(sent[0].ssthresh, None, "no loss so far");
        drop(trace);

        let other = Trace::attach(TraceFilter { port: Some(9), ..TraceFilter::default() }).unwrap();
        transfer();
        assert_eq!(taken(&other), [], "another port");
    });
    // Sockets of another namespace: only if requested.
    let (own, every) = (TraceFilter::default(), TraceFilter { every_namespace: true, port: None });
    for (filter, expected) in [(own, false), (every, true)] {
        let trace = Trace::attach(filter).unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        in_private_network("ip link set lo up", move || tell.send(transfer()).unwrap());
        let Ok(port) = told.recv() else { return };
        let all = taken(&trace);
        assert_eq!(all.iter().any(|e| e.remote_port == port || e.local_port == port), expected, "{filter:?}");
    }
}
