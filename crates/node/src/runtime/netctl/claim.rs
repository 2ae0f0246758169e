//! Claims on resources that only one program of a network namespace may use: an interface name, a mark with
//! its routing tables, the turn to clean up.
//!
//! A claim is an abstract Unix socket. Its names are local to the network namespace, and the kernel releases
//! it however the program ends. Any user may bind any name, so a name counts as taken only if its holder may
//! run anabranch: root, this user, or a user whose group is `anabranch`, according to the kernel
//! (sock_diag(7), UDIAG_SHOW_UID). If another user holds the name, the claim gets a random suffix, and later
//! programs find it by its prefix.
//!
//! ```text
//!  @anabranch-device-anb0         free, or held by another user:  @anabranch-device-anb0#9f2c…
//! ```

use crate::keygen::random_seed;
use anyhow::{Context, bail};
use nix::libc;
use nix::unistd::{Group, Uid, User, geteuid};
use rtnetlink::sys::{Socket, SocketAddr as NetlinkAddr, constants::NETLINK_SOCK_DIAG};
use std::io::ErrorKind;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// Number of attempts for a name that was taken but is free when its holder is queried.
const TRIES: u32 = 3;
/// Pause and number of attempts for numbers in use. Until it executes its program, a child of a killed program
/// keeps the program's sockets, and a check claims the numbers for a moment.
const IN_USE: (Duration, u32) = (Duration::from_millis(20), 50);
/// Users with this group run anabranch programs (packaging/sysusers.d).
const GROUP: &str = "anabranch";

/// A claim, held while the program runs.
#[derive(Debug)]
#[must_use = "it ends when it is dropped"]
pub struct Claim(Vec<UnixDatagram>);

impl Claim {
    /// Claims the interface called `name`.
    ///
    /// # Errors
    /// Another program has claimed it.
    pub fn device(name: &str) -> anyhow::Result<Self> {
        let remedy = "stop it, or choose another [device] name";
        claim(&format!("device-{name}"), &format!("the device {name}: {remedy}"))
            .map(|socket| Self(vec![socket]))
    }

    /// Claims the interface called `name`, the mark, and the routing tables with the mark's number and the
    /// next one.
    ///
    /// # Errors
    /// Another program has claimed one of them.
    pub fn device_and_mark(name: &str, mark: u32) -> anyhow::Result<Self> {
        let Self(mut sockets) = Self::device(name)?;
        for number in [mark, mark.saturating_add(1)] {
            let remedy = "stop it, or give each its own [device] name and mark, two apart at least";
            let what = format!("mark and routing table {number} ([device] mark = {mark}): {remedy}");
            sockets.push(claim(&mark_name(number), &what)?);
        }
        Ok(Self(sockets))
    }

    /// Claims these marks, and the routing tables with these numbers. Returns the first number that another
    /// program has claimed, if it does not become free within a second.
    ///
    /// # Errors
    /// A socket cannot be created.
    pub fn numbers(numbers: impl IntoIterator<Item = u32>) -> anyhow::Result<Result<Self, u32>> {
        let mut sockets = Vec::new();
        for number in numbers {
            match take_when_free(&mark_name(number))? {
                Some(socket) => sockets.push(socket),
                None => return Ok(Err(number)),
            }
        }
        Ok(Ok(Self(sockets)))
    }
}

fn mark_name(number: u32) -> String {
    format!("mark-{number}")
}

fn take_when_free(name: &str) -> anyhow::Result<Option<UnixDatagram>> {
    let (pause, most) = IN_USE;
    for _ in 0..most {
        if let Some(socket) = take(name)? {
            return Ok(Some(socket));
        }
        std::thread::sleep(pause);
    }
    take(name)
}

fn claim(name: &str, what: &str) -> anyhow::Result<UnixDatagram> {
    match take(name)? {
        Some(socket) => Ok(socket),
        None => bail!("another anabranch program in this network namespace has {what}"),
    }
}

/// Claims `name` for the lifetime of the socket; `None` if another anabranch program has claimed it.
///
/// # Errors
/// A socket cannot be created.
pub fn take(name: &str) -> anyhow::Result<Option<UnixDatagram>> {
    let name = format!("anabranch-{name}");
    for _ in 0..TRIES {
        let (bound, stranger) = match bind(&name)? {
            Some(socket) => (socket, false),
            None => {
                let Some(all) = holders(&name) else { return Ok(None) };
                let Some(holder) = all.iter().find(|one| one.name == name) else { continue };
                if is_ours(holder.uid) {
                    return Ok(None);
                }
                let secret: String = random_seed()?[..16].iter().map(|byte| format!("{byte:02x}")).collect();
                let Some(socket) = bind(&format!("{name}#{secret}"))? else { continue };
                (socket, true)
            }
        };
        // Queried after binding the own socket: of two concurrent claims, at least one sees the other.
        let own = inode(&bound)?;
        let others = holders(&name).unwrap_or_default();
        if others.iter().any(|other| other.inode != own && is_ours(other.uid)) {
            return Ok(None);
        }
        if stranger {
            tracing::warn!("another user of this machine holds the socket @{name}: ignored");
        }
        return Ok(Some(bound));
    }
    Ok(None)
}

/// Binds the abstract socket; `None` if the name is in use.
fn bind(name: &str) -> anyhow::Result<Option<UnixDatagram>> {
    match UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(name)?) {
        Err(error) if error.kind() == ErrorKind::AddrInUse => Ok(None),
        other => other.map(Some).with_context(|| format!("abstract socket {name}")),
    }
}

/// Whether programs of this user may be anabranch programs.
fn is_ours(uid: u32) -> bool {
    let uid = Uid::from_raw(uid);
    let in_group = || {
        let group = Group::from_name(GROUP).ok()??;
        Some(User::from_uid(uid).ok()??.gid == group.gid)
    };
    uid.is_root() || uid == geteuid() || in_group().unwrap_or(false)
}

/// An abstract socket and its user.
struct Holder {
    name: String,
    inode: u32,
    uid: u32,
}

/// The sockets of this network namespace with this name, with or without a suffix; `None` if the kernel does
/// not report their users (before 5.3, or without CONFIG_UNIX_DIAG).
fn holders(name: &str) -> Option<Vec<Holder>> {
    query(name).inspect_err(|error| tracing::debug!("sock_diag: {error:#}")).ok()
}

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST_DUMP: u16 = 0x301;
const UDIAG_SHOW_NAME: u32 = 1;
const UDIAG_SHOW_UID: u32 = 0x40;
const UNIX_DIAG_NAME: u16 = 0;
const UNIX_DIAG_UID: u16 = 7;

fn query(name: &str) -> anyhow::Result<Vec<Holder>> {
    let socket = Socket::new(NETLINK_SOCK_DIAG)?;
    socket.connect(&NetlinkAddr::new(0, 0))?;
    socket.send(&request(), 0)?;
    let mut found = Vec::new();
    loop {
        let (answer, _) = socket.recv_from_full()?;
        let mut rest = &answer[..];
        while let Some((kind, body, after)) = next(rest) {
            rest = after;
            match kind {
                NLMSG_DONE => return Ok(found),
                NLMSG_ERROR => bail!("refused"),
                _ => {
                    let Some((holder, uid)) = holder(body) else { continue };
                    if holder
                        .name
                        .strip_prefix(name)
                        .is_some_and(|rest| rest.is_empty() || rest.starts_with('#'))
                    {
                        found.push(Holder { uid: uid.context("no uid")?, ..holder });
                    }
                }
            }
        }
    }
}

/// struct nlmsghdr and struct unix_diag_req.
fn request() -> [u8; 40] {
    let mut b = [0; 40];
    b[..4].copy_from_slice(&40_u32.to_ne_bytes());
    b[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    b[6..8].copy_from_slice(&NLM_F_REQUEST_DUMP.to_ne_bytes());
    b[16] = libc::AF_UNIX as u8;
    b[20..24].copy_from_slice(&u32::MAX.to_ne_bytes()); // any state
    b[28..32].copy_from_slice(&(UDIAG_SHOW_NAME | UDIAG_SHOW_UID).to_ne_bytes());
    b
}

/// Type and body of the first message, and the following messages.
fn next(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let [a, b, c, d, e, f, ..] = *bytes.first_chunk::<16>()?;
    let length = u32::from_ne_bytes([a, b, c, d]) as usize;
    let body = bytes.get(16..length)?;
    Some((u16::from_ne_bytes([e, f]), body, bytes.get(length.next_multiple_of(4)..).unwrap_or_default()))
}

/// Parses an abstract socket (struct unix_diag_msg and its attributes), with its user if the kernel reports
/// it.
fn holder(body: &[u8]) -> Option<(Holder, Option<u32>)> {
    let inode = u32::from_ne_bytes(*body.get(4..)?.first_chunk()?);
    let (mut name, mut uid, mut rest) = (None, None, body.get(16..)?);
    while let Some(&[a, b, c, d]) = rest.first_chunk::<4>() {
        let length = usize::from(u16::from_ne_bytes([a, b]));
        let Some(value) = rest.get(4..length) else { break };
        match u16::from_ne_bytes([c, d]) {
            UNIX_DIAG_NAME => {
                name = value.strip_prefix(b"\0").map(|n| String::from_utf8_lossy(n).into_owned())
            }
            UNIX_DIAG_UID => uid = value.first_chunk().map(|uid| u32::from_ne_bytes(*uid)),
            _ => {}
        }
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Some((Holder { name: name?, inode, uid: 0 }, uid))
}

fn inode(socket: &UnixDatagram) -> anyhow::Result<u32> {
    // The kernel reports the lower 32 bits of the inode number, as sock_diag does.
    Ok(nix::sys::stat::fstat(socket)?.st_ino as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::in_private_network;

    #[test]
    fn claims_are_exclusive_until_the_program_ends() {
        in_private_network(|| {
            let first = Claim::device_and_mark("anb0", 43866).unwrap();
            let same = Claim::device("anb0").unwrap_err().to_string();
            assert!(same.contains("the device anb0") && same.contains("[device] name"), "{same}");
            for mark in [43865, 43866, 43867] {
                let error = Claim::device_and_mark("anb1", mark).unwrap_err().to_string();
                assert!(error.contains("[device] mark") && error.contains("two apart"), "{error}");
            }
            // Claims made before the refusal have been released.
            let second = Claim::device_and_mark("anb1", 43868).unwrap();
            // A prefix of its name is a different name.
            let third = Claim::device("anb").unwrap();
            drop(first);
            drop(Claim::device_and_mark("anb0", 43866).unwrap());
            drop((second, third));
        });
    }

    #[test]
    fn a_number_in_use_is_named_and_is_free_when_its_program_ends() {
        in_private_network(|| {
            let proxy = Claim::numbers([43872, 43873]).unwrap().unwrap();
            assert_eq!(Claim::numbers([43871, 43872]).unwrap().unwrap_err(), 43872);
            assert_eq!(Claim::numbers([43873, 43874]).unwrap().unwrap_err(), 43873);
            assert!(Claim::device_and_mark("anb0", 43873).is_err());
            // Claims made before a refusal have been released.
            drop(Claim::numbers([43871, 43874]).unwrap().unwrap());
            // In another namespace, the numbers are free.
            in_private_network(|| drop(Claim::numbers([43872, 43873]).unwrap().unwrap()));
            let ends = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(100));
                drop(proxy);
            });
            drop(Claim::numbers([43872, 43873]).unwrap().unwrap());
            ends.join().unwrap();
        });
    }

    /// Sockets with these names, held by a user who runs no anabranch program.
    fn of_a_stranger(names: &[&str]) -> Vec<UnixDatagram> {
        // The fsuid applies to this thread only; sockets that it creates belong to that user.
        let stranger = Uid::from_raw(54_321);
        nix::unistd::setfsuid(stranger);
        let made = names
            .iter()
            .map(|name| UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap())
            .collect();
        nix::unistd::setfsuid(geteuid());
        made
    }

    /// Another user who takes all predictable names, before and between anabranch programs.
    #[test]
    fn other_users_cannot_block_claims_or_hide_conflicts() {
        in_private_network(|| {
            let names =
                ["device-anb0", "mark-43866", "mark-43867", "netctl"].map(|n| format!("anabranch-{n}"));
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let strangers = of_a_stranger(&names);
            let first = Claim::device_and_mark("anb0", 43866).unwrap();
            let turn = take("netctl").unwrap().unwrap();
            let refuses = || {
                assert!(Claim::device("anb0").is_err());
                assert!(Claim::device_and_mark("anb1", 43867).is_err());
                assert!(take("netctl").unwrap().is_none());
            };
            refuses();
            // The names are free now; the claim of the first program remains.
            drop(strangers);
            refuses();
            drop((first, turn));
            // A socket of another user created after the claim does not matter either.
            let held = Claim::device("anb0").unwrap();
            let late = of_a_stranger(&["anabranch-device-anb0#00"]);
            assert!(Claim::device("anb0").is_err());
            drop(held);
            drop(Claim::device("anb0").unwrap());
            drop(late);
        });
    }
}
