//! Many UEs that shake hands with a real UPF, probe their path once, and fall silent.
//!
//! They are `anabranch_atsss`'s own UE without device or engine: each has a socket and a source address, so that the
//! UPF sees as many endpoints and networks as sessions.

use anabranch_atsss::crypto::{PrivateKey, PublicKey, Suite};
use anabranch_atsss::session::{Security, SessionParams};
use anabranch_atsss::ue::{Ue, UeAccess, UeConfig, UeEvent};
use anabranch_atsss::{DatagramSink, PacketSink, PathId};
use anabranch_element::time::Instant;
use anyhow::{Context, Result, bail};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;

/// How many shake hands at a time.
const AT_ONCE: usize = 128;
/// Where they are; local to the namespace as a whole.
pub const NETWORK: &str = "10.128.0.0/12";
const FIRST: u32 = 0x0a80_0001;
/// How many begin to per second: fewer than a UPF computes at most, or those it puts off starve.
const PER_SECOND: f64 = 1500.0;
/// A UE that has no session after this long never will.
const PATIENCE_S: f64 = 30.0;

struct Shaking {
    ue: Ue,
    socket: UdpSocket,
    since: std::time::Instant,
    /// It has the UPF's rules: nothing is under way any more.
    ruled: bool,
}

struct Out<'a>(&'a mut Vec<Vec<u8>>);

impl DatagramSink for Out<'_> {
    fn reserve(&mut self, _path: PathId, _to: SocketAddr, len: usize) -> Option<&mut [u8]> {
        self.0.push(vec![0; len]);
        self.0.last_mut().map(Vec::as_mut_slice)
    }

    fn withdraw(&mut self, _path: PathId) {
        self.0.pop();
    }
}

struct Nowhere;

impl PacketSink for Nowhere {
    fn deliver(&mut self, _packet: &mut [u8]) {}
}

/// Gives each key a session with the UPF at `remote`; returns when all have one. Runs in the namespace of
/// the calling thread.
///
/// # Errors
/// One of them gets no session, or `progress` says so.
pub fn install(
    keys: &[PrivateKey],
    upf: PublicKey,
    remote: SocketAddr,
    mut progress: impl FnMut(usize) -> Result<()>,
) -> Result<()> {
    let start = std::time::Instant::now();
    let unix = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).context("the clock")?;
    let unix_epoch_ns = u64::try_from(unix.as_nanos()).context("the clock")?;
    let now = || Instant::from_nanos(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX));
    let mut waiting = keys.iter();
    let mut shaking: Vec<Shaking> = Vec::new();
    let mut done = 0;
    let mut out = Vec::new();
    let mut buffer = [0; 2048];
    while done < keys.len() {
        while shaking.len() < AT_ONCE
            && ((done + shaking.len()) as f64) < PER_SECOND * (0.01 + start.elapsed().as_secs_f64())
            && let Some(key) = waiting.next()
        {
            let config = UeConfig {
                private_key: key.clone(),
                upf_key: upf,
                suite: Suite::Aes256Gcm,
                accesses: vec![UeAccess {
                    name: "wire".into(),
                    remote,
                    local: None,
                    security: Security::Secure,
                    max_payload: 1472,
                }],
                rules: Vec::new(),
                params: SessionParams::default(),
                unix_epoch_ns,
                last_timestamp_ns: 0,
            };
            // A fixed seed would give all of them the same ephemeral keys.
            let seed = key.public().0;
            let ue = Ue::new(config, seed, now()).context("a UE")?;
            let number =
                u32::from_be_bytes([0, key.public().0[0] & 0xf, key.public().0[1], key.public().0[2]]);
            let address = std::net::Ipv4Addr::from(FIRST + number);
            let socket = UdpSocket::bind((address, 0)).context("socket")?;
            socket.set_nonblocking(true).context("socket")?;
            socket.connect(remote).context("socket")?;
            shaking.push(Shaking { ue, socket, since: std::time::Instant::now(), ruled: false });
        }
        for one in &mut shaking {
            one.ue.poll(now(), &mut Out(&mut out), &mut Nowhere);
            for datagram in out.drain(..) {
                // What the system does not take is sent again by the UE's own timers.
                let _ = one.socket.send(&datagram);
            }
            while let Some(event) = one.ue.poll_event() {
                one.ruled |= matches!(event, UeEvent::Rules(_));
            }
        }
        let mut fds: Vec<PollFd<'_>> =
            shaking.iter().map(|s| PollFd::new(s.socket.as_fd(), PollFlags::POLLIN)).collect();
        poll(&mut fds, PollTimeout::from(2u8)).context("poll")?;
        let ready: Vec<bool> = fds.iter().map(|fd| fd.any().unwrap_or(false)).collect();
        for (one, _) in shaking.iter_mut().zip(ready).filter(|(_, ready)| *ready) {
            while let Ok(length) = one.socket.recv(&mut buffer) {
                one.ue.datagram(0, remote, &mut buffer[..length], now(), &mut Nowhere);
            }
            // The answer to a probe and the receipt for the rules, before the UE is forgotten.
            one.ue.poll(now(), &mut Out(&mut out), &mut Nowhere);
            for datagram in out.drain(..) {
                let _ = one.socket.send(&datagram);
            }
        }
        if let Some(late) = shaking.iter().find(|s| s.since.elapsed().as_secs_f64() > PATIENCE_S) {
            bail!("a UE got no session within {PATIENCE_S} s: {:?}", late.ue.drops());
        }
        let before = shaking.len();
        shaking.retain(|one| !one.ruled || !one.ue.paths().iter().any(|path| path.up));
        done += before - shaking.len();
        progress(done)?;
    }
    Ok(())
}
