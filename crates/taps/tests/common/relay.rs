//! A relay between a client and a server that records the DSCPs of both.

use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, setsockopt, sockopt};
use std::collections::BTreeSet;
use std::io::IoSliceMut;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex};

/// Traffic classes received so far.
#[derive(Debug, Default, Clone)]
pub struct Seen(Arc<Mutex<BTreeSet<u8>>>);

impl Seen {
    pub fn classes(&self) -> Vec<u8> {
        self.0.lock().unwrap().iter().copied().collect()
    }
}

/// Starts the relay; returns the address for the client, and the classes sent by client and server.
pub fn relay(server: SocketAddr) -> (SocketAddr, Seen, Seen) {
    let (near, far) = (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
    far.connect(server).unwrap();
    let here = near.local_addr().unwrap();
    let (up, down) = (Seen::default(), Seen::default());
    for socket in [&near, &far] {
        setsockopt(socket, sockopt::IpRecvTos, &true).unwrap();
    }
    let client = Arc::new(Mutex::new(None));
    let (near, far) = (Arc::new(near), Arc::new(far));
    for upwards in [true, false] {
        let (near, far, client) = (near.clone(), far.clone(), client.clone());
        let seen = if upwards { up.clone() } else { down.clone() };
        // The threads end with the test.
        std::thread::spawn(move || {
            let mut buffer = vec![0; 65_536];
            loop {
                let (len, from, class) = receive(if upwards { &near } else { &far }, &mut buffer);
                seen.0.lock().unwrap().insert(class);
                // Lost datagrams are ignored.
                let _ = if upwards {
                    *client.lock().unwrap() = from;
                    far.send(&buffer[..len])
                } else {
                    let client: Option<SocketAddr> = *client.lock().unwrap();
                    near.send_to(&buffer[..len], client.unwrap())
                };
            }
        });
    }
    (here, up, down)
}

fn receive(socket: &UdpSocket, buffer: &mut [u8]) -> (usize, Option<SocketAddr>, u8) {
    let mut control = nix::cmsg_space!(u8);
    let mut parts = [IoSliceMut::new(buffer)];
    let message =
        recvmsg::<SockaddrStorage>(socket.as_raw_fd(), &mut parts, Some(&mut control), MsgFlags::empty())
            .unwrap();
    let class = message.cmsgs().unwrap().find_map(|one| match one {
        ControlMessageOwned::Ipv4Tos(tos) => Some(tos),
        _ => None,
    });
    let from = message.address.as_ref().and_then(|a| a.as_sockaddr_in()).map(|a| SocketAddr::V4((*a).into()));
    (message.bytes, from, class.unwrap())
}
