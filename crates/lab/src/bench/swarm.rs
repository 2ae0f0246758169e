//! Many UEs that perform a handshake with a real UPF, probe their path once, and then fall silent or leave.
//!
//! They use the UE of `anabranch_atsss` without device or engine. Each has its own socket and source address, so that the UPF
//! has as many remote endpoints and networks as sessions.

use anabranch_atsss::crypto::{PrivateKey, PublicKey, Suite};
use anabranch_atsss::session::{Security, SessionParams};
use anabranch_atsss::ue::{Ue, UeAccess, UeCommand, UeConfig, UeEvent};
use anabranch_atsss::{DatagramSink, PacketSink, PathId};
use anabranch_element::time::Instant;
use anyhow::{Context, Result, ensure};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;

/// Number of concurrent handshakes.
const AT_ONCE: usize = 128;
/// Network of their addresses; the entire network is local to the namespace.
pub const NETWORK: &str = "10.128.0.0/12";
const FIRST: u32 = 0x0a80_0001;
/// Handshakes started per second. Above the capacity of the UPF, deferred handshakes would starve.
const PER_SECOND: f64 = 1500.0;
/// Time after which a UE without a session counts as failed.
const PATIENCE_S: f64 = 30.0;

/// The UPF with which sessions are established.
#[derive(Clone, Copy)]
pub struct Upf {
    /// Public key of the UPF.
    pub key: PublicKey,
    /// Its address.
    pub remote: SocketAddr,
}

/// Number of UEs so far, by result.
#[derive(Debug, Clone, Copy, Default)]
pub struct SessionCounts {
    /// UEs that have, or had, a session.
    pub up: usize,
    /// UEs without a session in time.
    pub late: usize,
}

struct PendingHandshake {
    ue: Ue,
    socket: UdpSocket,
    since: std::time::Instant,
    /// Whether it has received the rules of the UPF, so that no exchange is pending.
    ruled: bool,
}

/// Datagrams that a UE has to send.
pub struct Out<'a>(pub &'a mut Vec<Vec<u8>>);

impl DatagramSink for Out<'_> {
    fn reserve(&mut self, _path: PathId, _to: SocketAddr, len: usize) -> Option<&mut [u8]> {
        self.0.push(vec![0; len]);
        self.0.last_mut().map(Vec::as_mut_slice)
    }

    fn withdraw(&mut self, _path: PathId) {
        self.0.pop();
    }
}

/// Packets delivered to the host are dropped.
pub struct Nowhere;

impl PacketSink for Nowhere {
    fn deliver(&mut self, _packet: &mut [u8]) {}
}

/// Establishes a session with the UPF for each key; returns when all have one. Runs in the namespace of the calling thread.
///
/// # Errors
/// A session cannot be established, or `progress` returns an error.
pub fn install(keys: &[PrivateKey], upf: Upf, mut progress: impl FnMut(usize) -> Result<()>) -> Result<()> {
    come(keys.iter(), upf, PER_SECOND, false, |session_counts| {
        ensure!(session_counts.late == 0, "a UE got no session within {PATIENCE_S} s");
        progress(session_counts.up).map(|()| true)
    })
}

/// UEs with these keys establish sessions at a given rate per second and, if requested, leave as soon as they have one. Returns
/// after all of them, or when `go_on` returns false. Runs in the namespace of the calling thread.
///
/// # Errors
/// No socket can be created, or `go_on` returns an error.
pub fn come<'a>(
    mut keys: impl Iterator<Item = &'a PrivateKey>,
    upf: Upf,
    per_second: f64,
    leave: bool,
    mut go_on: impl FnMut(SessionCounts) -> Result<bool>,
) -> Result<()> {
    let start = std::time::Instant::now();
    let now = || Instant::from_nanos(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX));
    let unix_epoch_ns = unix_ns()?;
    let mut pending: Vec<PendingHandshake> = Vec::new();
    let mut session_counts = SessionCounts::default();
    let (mut begun, mut waiting) = (0_u32, true);
    let mut out = Vec::new();
    let mut buffer = [0; 2048];
    while waiting || !pending.is_empty() {
        while waiting
            && pending.len() < AT_ONCE
            && f64::from(begun) < per_second * (0.01 + start.elapsed().as_secs_f64())
        {
            let Some(key) = keys.next() else {
                waiting = false;
                break;
            };
            begun += 1;
            let ue = ue(key, upf, unix_epoch_ns, begun, now())?;
            let number =
                u32::from_be_bytes([0, key.public().0[0] & 0xf, key.public().0[1], key.public().0[2]]);
            let socket = socket(FIRST + number, upf.remote)?;
            pending.push(PendingHandshake { ue, socket, since: std::time::Instant::now(), ruled: false });
        }
        for one in &mut pending {
            one.ue.poll(now(), &mut Out(&mut out), &mut Nowhere);
            for datagram in out.drain(..) {
                // Datagrams that the system rejects are retransmitted by the timers of the UE.
                let _ = one.socket.send(&datagram);
            }
            while let Some(event) = one.ue.poll_event() {
                one.ruled |= matches!(event, UeEvent::Rules(_));
            }
        }
        let mut fds: Vec<PollFd<'_>> =
            pending.iter().map(|s| PollFd::new(s.socket.as_fd(), PollFlags::POLLIN)).collect();
        poll(&mut fds, PollTimeout::from(2u8)).context("poll")?;
        let ready: Vec<bool> = fds.iter().map(|fd| fd.any().unwrap_or(false)).collect();
        for (one, _) in pending.iter_mut().zip(ready).filter(|(_, ready)| *ready) {
            while let Ok(length) = one.socket.recv(&mut buffer) {
                one.ue.datagram(0, upf.remote, &mut buffer[..length], now(), &mut Nowhere);
            }
            // Sends the reply to a probe and the acknowledgement of the rules before the UE is dropped.
            one.ue.poll(now(), &mut Out(&mut out), &mut Nowhere);
            for datagram in out.drain(..) {
                let _ = one.socket.send(&datagram);
            }
        }
        pending.retain_mut(|one| {
            let up = one.ruled && one.ue.paths().iter().any(|path| path.up);
            let late = !up && one.since.elapsed().as_secs_f64() > PATIENCE_S;
            session_counts.up += usize::from(up);
            session_counts.late += usize::from(late);
            if up && leave {
                one.ue.on_command(UeCommand::Close, now());
                one.ue.poll(now(), &mut Out(&mut out), &mut Nowhere);
                for datagram in out.drain(..) {
                    let _ = one.socket.send(&datagram);
                }
            }
            !up && !late
        });
        if !go_on(session_counts)? {
            return Ok(());
        }
    }
    Ok(())
}

/// Nanoseconds since 1970.
///
/// # Errors
/// The clock is set to an earlier time.
pub fn unix_ns() -> Result<u64> {
    let unix = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).context("the clock")?;
    u64::try_from(unix.as_nanos()).context("the clock")
}

/// A UE without a session; `turn` must differ at each use of a key.
///
/// # Errors
/// None known.
pub fn ue(key: &PrivateKey, upf: Upf, unix_epoch_ns: u64, turn: u32, now: Instant) -> Result<Ue> {
    let config = UeConfig {
        private_key: key.clone(),
        upf_key: upf.key,
        suite: Suite::Aes256Gcm,
        accesses: vec![UeAccess {
            name: "wire".into(),
            remote: upf.remote,
            local: None,
            security: Security::Secure,
            max_payload: 1472,
        }],
        rules: Vec::new(),
        params: SessionParams::default(),
        unix_epoch_ns,
        last_timestamp_ns: 0,
    };
    // With a fixed seed, all UEs would use the same ephemeral keys, and each would repeat its own.
    let mut seed = key.public().0;
    let other = unix_epoch_ns.wrapping_add(turn.into()).to_be_bytes();
    seed.iter_mut().zip(other).for_each(|(byte, other)| *byte ^= other);
    Ue::new(config, seed, now).context("a UE")
}

/// A socket to `remote` with an address of [`NETWORK`], as a number.
///
/// # Errors
/// No socket can be created.
pub fn socket(address: u32, remote: SocketAddr) -> Result<UdpSocket> {
    let socket = UdpSocket::bind((std::net::Ipv4Addr::from(address), 0)).context("socket")?;
    socket.set_nonblocking(true).context("socket")?;
    socket.connect(remote).context("socket")?;
    Ok(socket)
}
