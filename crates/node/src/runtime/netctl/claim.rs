//! What one program of a network namespace has alone: an interface's name, a mark with its routing tables, a turn at cleaning.
//!
//! A claim is an abstract Unix socket. Its names are those of the network namespace, and the kernel takes it back however the
//! program ends. Every user may bind any name, so a name counts as taken only if a program of ours may be the one that has it:
//! one of root, of this user, or of a user whose group is `anabranch`, as the kernel says (sock_diag(7), UDIAG_SHOW_UID). Where
//! somebody else has it, the claim has a further part that nobody can know before, and whoever comes next finds it by the
//! beginning.
//!
//! ```text
//!  @anabranch-device-anb0         free, or held by a stranger:  @anabranch-device-anb0#9f2c…
//! ```

use crate::keygen::random_seed;
use anyhow::{Context, bail};
use nix::libc;
use nix::unistd::{Group, Uid, User, geteuid};
use rtnetlink::sys::{Socket, SocketAddr as NetlinkAddr, constants::NETLINK_SOCK_DIAG};
use std::io::ErrorKind;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Names that were taken and are free when they are looked at are tried again so often.
const TRIES: u32 = 3;
/// Users with this group run programs of ours (packaging/sysusers.d).
const GROUP: &str = "anabranch";

/// Held while the program runs.
#[derive(Debug)]
#[must_use = "it ends when it is dropped"]
pub struct Claim(Vec<UnixDatagram>);

impl Claim {
    /// The interface called `name`.
    ///
    /// # Errors
    /// Another program has it.
    pub fn device(name: &str) -> anyhow::Result<Self> {
        let remedy = "stop it, or choose another [device] name";
        claim(&format!("device-{name}"), &format!("the device {name}: {remedy}"))
            .map(|socket| Self(vec![socket]))
    }

    /// The interface called `name`, the mark, and the routing tables of its number and of the next one.
    ///
    /// # Errors
    /// Another program has one of them.
    pub fn device_and_mark(name: &str, mark: u32) -> anyhow::Result<Self> {
        let Self(mut sockets) = Self::device(name)?;
        for number in [mark, mark.saturating_add(1)] {
            let remedy = "stop it, or give each its own [device] name and mark, two apart at least";
            let what = format!("mark and routing table {number} ([device] mark = {mark}): {remedy}");
            sockets.push(claim(&format!("mark-{number}"), &what)?);
        }
        Ok(Self(sockets))
    }
}

fn claim(name: &str, what: &str) -> anyhow::Result<UnixDatagram> {
    match take(name)? {
        Some(socket) => Ok(socket),
        None => bail!("another anabranch program in this network namespace has {what}"),
    }
}

/// The socket that stands for `name`, as long as it lives; none: another program of ours has it.
///
/// # Errors
/// A socket cannot be made.
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
        // Looked at after our own is there: of two that come at the same time one sees the other at least.
        let own = inode(&bound)?;
        let others = holders(&name).unwrap_or_default();
        if others.iter().any(|other| other.inode != own && is_ours(other.uid)) {
            return Ok(None);
        }
        if stranger {
            tracing::warn!(
                "a user of this machine who runs no anabranch program holds the socket @{name}: it does not count"
            );
        }
        return Ok(Some(bound));
    }
    Ok(None)
}

/// None: somebody has the name.
fn bind(name: &str) -> anyhow::Result<Option<UnixDatagram>> {
    match UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(name)?) {
        Err(error) if error.kind() == ErrorKind::AddrInUse => Ok(None),
        other => other.map(Some).with_context(|| format!("abstract socket {name}")),
    }
}

/// Whether programs of this user may be ours.
fn is_ours(uid: u32) -> bool {
    let uid = Uid::from_raw(uid);
    let in_group = || {
        let group = Group::from_name(GROUP).ok()??;
        Some(User::from_uid(uid).ok()??.gid == group.gid)
    };
    uid.is_root() || uid == geteuid() || in_group().unwrap_or(false)
}

/// An abstract socket.
struct Holder {
    name: String,
    inode: u32,
    uid: u32,
}

/// Those of this network namespace whose name is `name`, or that and a further part; none: this kernel does not tell whose they
/// are (before 5.3, or without CONFIG_UNIX_DIAG).
fn holders(name: &str) -> Option<Vec<Holder>> {
    ask(name).inspect_err(|error| tracing::debug!("sock_diag: {error:#}")).ok()
}

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST_DUMP: u16 = 0x301;
const UDIAG_SHOW_NAME: u32 = 1;
const UDIAG_SHOW_UID: u32 = 0x40;
const UNIX_DIAG_NAME: u16 = 0;
const UNIX_DIAG_UID: u16 = 7;

fn ask(name: &str) -> anyhow::Result<Vec<Holder>> {
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

/// Type and body of the first message, and what follows it.
fn next(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let [a, b, c, d, e, f, ..] = *bytes.first_chunk::<16>()?;
    let length = u32::from_ne_bytes([a, b, c, d]) as usize;
    let body = bytes.get(16..length)?;
    Some((u16::from_ne_bytes([e, f]), body, bytes.get(length.next_multiple_of(4)..).unwrap_or_default()))
}

/// An abstract socket (struct unix_diag_msg and its attributes), and its user if the kernel tells.
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
    // The kernel tells its lower half, as sock_diag does.
    Ok(nix::sys::stat::fstat(socket)?.st_ino as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::in_private_network;

    #[test]
    fn what_a_living_program_has_is_refused_to_others_and_free_when_it_ends() {
        in_private_network(|| {
            let first = Claim::device_and_mark("anb0", 43866).unwrap();
            let same = Claim::device("anb0").unwrap_err().to_string();
            assert!(same.contains("the device anb0") && same.contains("[device] name"), "{same}");
            for mark in [43865, 43866, 43867] {
                let error = Claim::device_and_mark("anb1", mark).unwrap_err().to_string();
                assert!(error.contains("[device] mark") && error.contains("two apart"), "{error}");
            }
            // What was claimed before the refusal is free again.
            let second = Claim::device_and_mark("anb1", 43868).unwrap();
            // The beginning of its name is not its name.
            let third = Claim::device("anb").unwrap();
            drop(first);
            drop(Claim::device_and_mark("anb0", 43866).unwrap());
            drop((second, third));
        });
    }

    /// Sockets with these names, of a user who runs no program of ours.
    fn of_a_stranger(names: &[&str]) -> Vec<UnixDatagram> {
        // Of this thread alone; what it makes is that user's then.
        let stranger = Uid::from_raw(54_321);
        nix::unistd::setfsuid(stranger);
        let made = names
            .iter()
            .map(|name| UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap())
            .collect();
        nix::unistd::setfsuid(geteuid());
        made
    }

    /// A stranger who takes every name that can be known, before and between programs of ours.
    #[test]
    fn a_stranger_keeps_no_program_from_starting_nor_two_from_meeting() {
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
            // The names are free now; what the first one has is its all the same.
            drop(strangers);
            refuses();
            drop((first, turn));
            // One that came after a program of ours is none of its, either.
            let held = Claim::device("anb0").unwrap();
            let late = of_a_stranger(&["anabranch-device-anb0#00"]);
            assert!(Claim::device("anb0").is_err());
            drop(held);
            drop(Claim::device("anb0").unwrap());
            drop(late);
        });
    }
}
