//! Multipath TCP endpoints (`ip mptcp endpoint`): additional addresses of this host from which the kernel
//! opens subflows. Generic netlink, family `mptcp_pm` (linux/mptcp_pm.h).
//!
//! The kernel does not record the owner of an endpoint, so the identifiers from [`FIRST_ID`] on are reserved
//! for anabranch. Endpoints of other programs are not changed; they are used if they have the required
//! address.

use anabranch_kern::release::{release, version};
use anyhow::{Context, bail, ensure};
use nix::libc;
use rtnetlink::sys::{Socket, SocketAddr};
use std::io;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Once;

/// Identifier of the first endpoint; the number that also marks routes and rules.
pub const FIRST_ID: u8 = super::steps::PROTOCOL;
/// Maximum number of endpoints of a namespace (MPTCP_PM_ADDR_MAX).
pub const MAX_ENDPOINTS: usize = 8;
const IDS: RangeInclusive<u8> = FIRST_ID..=FIRST_ID + (MAX_ENDPOINTS as u8 - 1);

/// Kernel versions whose Multipath TCP receiver occasionally corrupts data (docs/limitations.md).
const CORRUPTING_KERNEL: (u32, u32) = (6, 18);

/// Logs once if this kernel may corrupt data received over Multipath TCP.
pub fn warn_of_kernel() {
    static WARNED: Once = Once::new();
    WARNED.call_once(|| {
        let release = release().unwrap_or_default();
        if version(&release) == Some(CORRUPTING_KERNEL) {
            tracing::warn!(
                release,
                "Multipath TCP of this kernel may alter data (docs/limitations.md): use another kernel, or no Multipath TCP"
            );
        }
    });
}

const NETLINK_GENERIC: isize = 16;
pub(super) const HEADER_BYTES: usize = 16;
const GENERIC_BYTES: usize = 4;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
pub(super) const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
pub(super) const NLM_F_DUMP: u16 = 0x300;
const NLA_F_NESTED: u16 = 1 << 15;

/// The controller family of generic netlink (linux/genetlink.h).
const GENL_ID_CTRL: u16 = 16;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;

const ADD: u8 = 1;
const DELETE: u8 = 2;
const GET: u8 = 3;
const SET_LIMITS: u8 = 5;
const GET_LIMITS: u8 = 6;
const SET_FLAGS: u8 = 7;

const ATTR_ADDRESS: u16 = 1;
const ATTR_RECEIVED: u16 = 2;
const ATTR_SUBFLOWS: u16 = 3;

const ADDRESS_FAMILY: u16 = 1;
const ADDRESS_ID: u16 = 2;
const ADDRESS_V4: u16 = 3;
const ADDRESS_V6: u16 = 4;
const ADDRESS_FLAGS: u16 = 6;
const ADDRESS_INDEX: u16 = 7;

const SUBFLOW: u32 = 1 << 1;
const BACKUP: u32 = 1 << 2;
/// The endpoint was created by the kernel itself.
const IMPLICIT: u32 = 1 << 4;

/// An address from which the kernel opens additional subflows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// Interface of the address.
    pub device: String,
    /// Local address of the subflows.
    pub address: IpAddr,
    /// Used only when no other path is left.
    pub backup: bool,
}

/// An endpoint of the kernel's path manager.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ExistingEndpoint {
    id: u8,
    address: IpAddr,
    flags: u32,
}

/// Adds an endpoint; returns its identifier, or `None` if another program has already created it.
pub fn add(endpoint: &Endpoint) -> anyhow::Result<Option<u8>> {
    let manager = Manager::open()?;
    let index = anabranch_kern::interface::index(&endpoint.device)?;
    let mut known = manager.list()?;
    let flags = SUBFLOW | if endpoint.backup { BACKUP } else { 0 };
    if let Some(at) = known.iter().position(|k| k.address == endpoint.address) {
        let ExistingEndpoint { id, flags: has, .. } = known[at];
        if IDS.contains(&id) {
            if has != flags {
                manager.change(SET_FLAGS, &address(id, Some(endpoint.address), Some(flags), None))?;
            }
            return Ok(Some(id));
        }
        if has & IMPLICIT == 0 {
            ensure!(
                has & SUBFLOW > 0,
                "an endpoint of this address is there, without `subflow` (ip mptcp endpoint)"
            );
            return Ok(None);
        }
        // The subflow that it represents continues.
        manager.change(DELETE, &address(id, None, None, None))?;
        known.remove(at);
    }
    let id = IDS.into_iter().find(|id| known.iter().all(|k| k.id != *id));
    let id = id.with_context(|| format!("the kernel has no more than {MAX_ENDPOINTS} endpoints"))?;
    manager.change(ADD, &address(id, Some(endpoint.address), Some(flags), Some(index)))?;
    Ok(Some(id))
}

/// Removes an endpoint of this program; a missing one is not an error.
pub fn remove(id: u8) -> anyhow::Result<()> {
    match Manager::open()?.request(DELETE, NLM_F_ACK, &address(id, None, None, None)) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOENT)) => Ok(()),
        other => Ok(other.map(drop)?),
    }
}

/// Removes the endpoint of an address: its subflows end at both ends of a connection, and their outstanding
/// data is retransmitted on others at once. [`add`] has them opened again. True if there was one.
pub fn withdraw(endpoint: IpAddr) -> anyhow::Result<bool> {
    let manager = Manager::open()?;
    let ours = |known: &ExistingEndpoint| known.address == endpoint && IDS.contains(&known.id);
    let Some(known) = manager.list()?.into_iter().find(ours) else { return Ok(false) };
    manager.change(DELETE, &address(known.id, None, None, None))?;
    Ok(true)
}

/// Whether [`add`] restores the subflow of an open connection that [`withdraw`] removed, even its first one:
/// since Linux 6.12.
pub fn reopens_subflows() -> bool {
    release().is_ok_and(|release| version(&release) >= Some((6, 12)))
}

/// Removes the leftovers of a killed run.
pub fn clean() -> anyhow::Result<()> {
    // Without Multipath TCP in the kernel there are none.
    let Ok(manager) = Manager::open() else { return Ok(()) };
    for known in manager.list()?.iter().filter(|k| IDS.contains(&k.id)) {
        tracing::info!(address = %known.address, "removing an endpoint of Multipath TCP that an earlier run left");
        manager.change(DELETE, &address(known.id, None, None, None))?;
    }
    Ok(())
}

/// Raises the number of additional subflows per connection to at least `subflows`; returns the previous
/// number if it was lower.
pub fn allow(subflows: u32) -> anyhow::Result<Option<u32>> {
    let manager = Manager::open()?;
    let before = manager.limit(ATTR_SUBFLOWS)?;
    if before >= subflows {
        return Ok(None);
    }
    manager.limit_to(subflows)?;
    Ok(Some(before))
}

/// Restores the number of additional subflows.
pub fn limit(subflows: u32) -> anyhow::Result<()> {
    Manager::open()?.limit_to(subflows)
}

/// The kernel's path manager.
struct Manager {
    socket: Socket,
    family: u16,
}

impl Manager {
    fn open() -> anyhow::Result<Self> {
        let mut socket = Socket::new(NETLINK_GENERIC).context("opening generic netlink")?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        // The kernel answers synchronously or not at all; the control plane must never block.
        socket.set_non_blocking(true)?;
        let mut manager = Self { socket, family: GENL_ID_CTRL };
        let mut name = Vec::new();
        put(&mut name, CTRL_ATTR_FAMILY_NAME, b"mptcp_pm\0");
        let answer = manager.request(CTRL_CMD_GETFAMILY, 0, &name);
        let answer = answer.context("the kernel has no Multipath TCP (CONFIG_MPTCP)")?;
        let id = answer.iter().find_map(|part| attributes(part).find(|a| a.0 == CTRL_ATTR_FAMILY_ID));
        let id = id.and_then(|(_, value)| Some(u16::from_ne_bytes(value.get(..2)?.try_into().ok()?)));
        manager.family = id.context("generic netlink's answer")?;
        Ok(manager)
    }

    /// Sends a request; returns the payload of each answer after the generic netlink header.
    fn request(&self, command: u8, flags: u16, payload: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        let length = HEADER_BYTES + GENERIC_BYTES + payload.len();
        let mut message = Vec::with_capacity(length);
        message.extend((length as u32).to_ne_bytes());
        message.extend(self.family.to_ne_bytes());
        message.extend((NLM_F_REQUEST | flags).to_ne_bytes());
        message.extend([0; 8]);
        message.extend([command, 1, 0, 0]);
        message.extend(payload);
        self.socket.send(&message, 0)?;
        let mut answers = Vec::new();
        receive(&self.socket, flags & (NLM_F_DUMP | NLM_F_ACK) > 0, |body| {
            answers.push(body.get(GENERIC_BYTES..).unwrap_or_default().to_vec());
        })?;
        Ok(answers)
    }

    /// Sends a request that changes something.
    fn change(&self, command: u8, payload: &[u8]) -> anyhow::Result<()> {
        match self.request(command, NLM_F_ACK, payload) {
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
                bail!("not permitted: run as root, or give the program CAP_NET_ADMIN")
            }
            other => Ok(other.map(drop)?),
        }
    }

    fn list(&self) -> anyhow::Result<Vec<ExistingEndpoint>> {
        let all = self.request(GET, NLM_F_DUMP, &[]).context("listing endpoints")?;
        Ok(all.iter().filter_map(|one| parse_endpoint(one)).collect())
    }

    fn limit(&self, kind: u16) -> anyhow::Result<u32> {
        let answer = self.request(GET_LIMITS, 0, &[]).context("reading limits")?;
        let value = answer.iter().find_map(|part| attributes(part).find(|a| a.0 == kind));
        let value = value.and_then(|(_, value)| value.first_chunk().map(|b| u32::from_ne_bytes(*b)));
        value.context("the kernel's limits")
    }

    /// The kernel sets both limits together.
    fn limit_to(&self, subflows: u32) -> anyhow::Result<()> {
        let mut both = Vec::new();
        put(&mut both, ATTR_RECEIVED, &self.limit(ATTR_RECEIVED)?.to_ne_bytes());
        put(&mut both, ATTR_SUBFLOWS, &subflows.to_ne_bytes());
        self.change(SET_LIMITS, &both)
    }
}

/// Passes the payload of each message of an answer to `take`. `ends`: a separate message marks the end of the answer.
pub(super) fn receive(socket: &Socket, ends: bool, mut take: impl FnMut(&[u8])) -> io::Result<()> {
    loop {
        let (bytes, _) = socket.recv_from_full()?;
        let mut rest = bytes.as_slice();
        while let Some(header) = rest.first_chunk::<HEADER_BYTES>() {
            let length = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]) as usize;
            let kind = u16::from_ne_bytes([header[4], header[5]]);
            let Some(body) = rest.get(HEADER_BYTES..length) else {
                return Err(io::ErrorKind::InvalidData.into());
            };
            match kind {
                NLMSG_DONE => return Ok(()),
                NLMSG_ERROR => {
                    let code = body.first_chunk().map_or(0, |code| i32::from_ne_bytes(*code));
                    return if code == 0 {
                        Ok(())
                    } else {
                        Err(io::Error::from_raw_os_error(code.saturating_neg()))
                    };
                }
                _ => take(body),
            }
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        }
        if !ends {
            return Ok(());
        }
    }
}

/// The attribute that names an endpoint.
fn address(id: u8, address: Option<IpAddr>, flags: Option<u32>, index: Option<u32>) -> Vec<u8> {
    let mut inner = Vec::new();
    put(&mut inner, ADDRESS_ID, &[id]);
    if let Some(address) = address {
        let (family, kind) = match address {
            IpAddr::V4(_) => (libc::AF_INET, ADDRESS_V4),
            IpAddr::V6(_) => (libc::AF_INET6, ADDRESS_V6),
        };
        put(&mut inner, ADDRESS_FAMILY, &(family as u16).to_ne_bytes());
        match address {
            IpAddr::V4(address) => put(&mut inner, kind, &address.octets()),
            IpAddr::V6(address) => put(&mut inner, kind, &address.octets()),
        }
    }
    if let Some(flags) = flags {
        put(&mut inner, ADDRESS_FLAGS, &flags.to_ne_bytes());
    }
    if let Some(index) = index {
        put(&mut inner, ADDRESS_INDEX, &index.to_ne_bytes());
    }
    let mut outer = Vec::new();
    put(&mut outer, ATTR_ADDRESS | NLA_F_NESTED, &inner);
    outer
}

/// Appends an attribute: length, kind, value, padding.
fn put(to: &mut Vec<u8>, kind: u16, value: &[u8]) {
    to.extend(((4 + value.len()) as u16).to_ne_bytes());
    to.extend(kind.to_ne_bytes());
    to.extend(value);
    to.resize(to.len().next_multiple_of(4), 0);
}

/// Attributes one after the other, until something is cut short.
pub(super) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let head: [u8; 4] = *bytes.first_chunk()?;
        let length = usize::from(u16::from_ne_bytes([head[0], head[1]]));
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((u16::from_ne_bytes([head[2], head[3]]) & !NLA_F_NESTED, value))
    })
}

/// Parses an endpoint from a list of the kernel.
fn parse_endpoint(message: &[u8]) -> Option<ExistingEndpoint> {
    let (_, inner) = attributes(message).find(|a| a.0 == ATTR_ADDRESS)?;
    let (mut id, mut address, mut flags) = (0, None, 0);
    for (kind, value) in attributes(inner) {
        match kind {
            ADDRESS_ID => id = *value.first()?,
            ADDRESS_V4 => address = value.first_chunk::<4>().map(|b| IpAddr::from(*b)),
            ADDRESS_V6 => address = value.first_chunk::<16>().map(|b| IpAddr::from(*b)),
            ADDRESS_FLAGS => flags = u32::from_ne_bytes(*value.first_chunk()?),
            _ => {}
        }
    }
    Some(ExistingEndpoint { id, address: address?, flags })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_survive_a_round_trip_and_any_input_is_harmless() {
        for address in ["192.0.2.7", "2001:db8::7"] {
            let address: IpAddr = address.parse().unwrap();
            let message = self::address(173, Some(address), Some(SUBFLOW | BACKUP), Some(5));
            assert_eq!(
                parse_endpoint(&message),
                Some(ExistingEndpoint { id: 173, address, flags: SUBFLOW | BACKUP })
            );
            for len in 0..message.len() {
                let _ = parse_endpoint(&message[..len]);
            }
        }
        for byte in [0, 4, 255] {
            let _ = parse_endpoint(&[byte; 100]);
        }
    }
}
