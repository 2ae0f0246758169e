//! Initial windows with the kernel's own TCP: the window of a new connection, and the size of its first flight.

use super::{OwnGroup, alone};
use crate::bpf::{InitialWindows, WindowCounters};
use crate::socket::tcp_window_segments;
use crate::tests::in_private_network;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd};

/// A connection to `port` of this machine with the packet mark `mark`.
fn marked(port: u16, mark: u32) -> TcpStream {
    // SAFETY: plain system calls; every pointer is to a value of this frame, with its size.
    unsafe {
        let fd = libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
        assert!(fd >= 0);
        let stream = TcpStream::from_raw_fd(fd);
        let set = |level, name, value: *const libc::c_void, len: u32| {
            assert_eq!(
                libc::setsockopt(fd, level, name, value, len),
                0,
                "{}",
                std::io::Error::last_os_error()
            );
        };
        set(libc::SOL_SOCKET, libc::SO_MARK, (&raw const mark).cast(), 4);
        let cubic = b"cubic";
        set(libc::IPPROTO_TCP, libc::TCP_CONGESTION, cubic.as_ptr().cast(), 5);
        let mut to: libc::sockaddr_in = std::mem::zeroed();
        to.sin_family = libc::AF_INET as u16;
        to.sin_port = port.to_be();
        to.sin_addr.s_addr = u32::from_ne_bytes([127, 0, 0, 1]);
        let connected = libc::connect(stream.as_raw_fd(), (&raw const to).cast(), size_of_val(&to) as u32);
        assert_eq!(connected, 0, "{}", std::io::Error::last_os_error());
        stream
    }
}

#[test]
fn a_mark_has_its_window_in_its_namespace_and_no_longer_than_the_program() {
    let Some(_alone) = alone() else { return };
    let Some(group) = OwnGroup::new() else {
        assert!(std::env::var_os("CI").is_none(), "CI must have cgroup v2");
        eprintln!("skipped: no cgroup v2 to make a group in");
        return;
    };
    let path = group.path.clone();
    in_private_network("ip link set lo up", move || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let start = |mark| tcp_window_segments(&marked(port, mark)).unwrap();
        assert_eq!(start(513), 10, "the kernel's");
        let windows = InitialWindows::attach(&path).unwrap();
        windows.set(513, Some(39)).unwrap();
        windows.set(515, Some(200)).unwrap();
        assert_eq!([start(513), start(515), start(512), start(0)], [39, 200, 10, 10]);
        windows.set(513, Some(56)).unwrap();
        assert_eq!(start(513), 56, "another one takes its place");
        windows.set(515, None).unwrap();
        windows.set(516, None).unwrap();
        assert_eq!(start(515), 10);
        assert_eq!(windows.counters().unwrap(), WindowCounters { set: 3, ..WindowCounters::default() });
        // The same mark in another namespace is independent.
        let there = std::thread::spawn(|| {
            in_private_network("ip link set lo up", || {
                let listener = TcpListener::bind("127.0.0.1:0").unwrap();
                let stream = marked(listener.local_addr().unwrap().port(), 513);
                assert_eq!(tcp_window_segments(&stream).unwrap(), 10);
            });
        });
        there.join().unwrap();
        let why = InitialWindows::attach(std::path::Path::new("/no/such")).unwrap_err().to_string();
        assert!(why.starts_with("/no/such (a cgroup v2 directory is needed)"), "{why}");
        drop(windows);
        assert_eq!(start(513), 10, "nothing stays");
    });
}
