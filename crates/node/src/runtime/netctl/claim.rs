//! What one program of a network namespace has alone: an interface's name, and a mark with its routing tables.
//!
//! A claim is an abstract Unix socket. Its names are those of the network namespace, and the kernel takes it back however the
//! program ends.

use anyhow::{Context, bail};
use std::io::ErrorKind;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

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
        take(&format!("device-{name}"), &format!("the device {name}: {remedy}"))
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
            sockets.push(take(&format!("mark-{number}"), &what)?);
        }
        Ok(Self(sockets))
    }
}

fn take(name: &str, what: &str) -> anyhow::Result<UnixDatagram> {
    let address = SocketAddr::from_abstract_name(format!("anabranch-{name}"))?;
    match UnixDatagram::bind_addr(&address) {
        Err(error) if error.kind() == ErrorKind::AddrInUse => {
            bail!("another anabranch program in this network namespace has {what}")
        }
        socket => socket.with_context(|| format!("abstract socket anabranch-{name}")),
    }
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
            drop(first);
            drop(Claim::device_and_mark("anb0", 43866).unwrap());
            drop(second);
        });
    }
}
