//! Simple requests about one network interface (netdevice(7)), for which a netlink client would be too much.

use std::ffi::CString;
use std::io;
use std::mem::zeroed;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// The index of the interface called `name` in the calling thread's network namespace.
pub fn index(name: &str) -> io::Result<u32> {
    let c_name = CString::new(name).map_err(|_| unknown(name))?;
    // SAFETY: `c_name` is a NUL-terminated string that outlives the call.
    match unsafe { libc::if_nametoindex(c_name.as_ptr()) } {
        0 => Err(unknown(name)),
        index => Ok(index),
    }
}

/// Its MAC address.
pub fn mac(name: &str) -> io::Result<[u8; 6]> {
    let mut request = Request::new(name)?;
    request.call(libc::SIOCGIFHWADDR)?;
    // SAFETY: SIOCGIFHWADDR succeeded and has initialised this member of the union.
    let data = unsafe { request.0.ifr_ifru.ifru_hwaddr.sa_data };
    Ok(std::array::from_fn(|i| data[i] as u8))
}

/// Modems, and the kernel's devices for them (linux/if_arp.h).
const ARPHRD_RAWIP: u16 = 519;

/// Size of the link-layer header in front of an IP packet: 14 with Ethernet and on the loopback device, 0 on a TUN device, a
/// tunnel, PPP and a modem.
///
/// # Errors
/// There is no such interface, or it is of another kind (`Unsupported`).
pub fn link_header_bytes(name: &str) -> io::Result<u32> {
    let mut request = Request::new(name)?;
    request.call(libc::SIOCGIFHWADDR)?;
    // SAFETY: SIOCGIFHWADDR succeeded and has initialised this member of the union.
    let kind = unsafe { request.0.ifr_ifru.ifru_hwaddr.sa_family };
    match kind {
        libc::ARPHRD_ETHER | libc::ARPHRD_LOOPBACK => Ok(14),
        // Their headers are added later, after the programs at their egress.
        libc::ARPHRD_NONE | libc::ARPHRD_PPP | libc::ARPHRD_TUNNEL6 | libc::ARPHRD_SIT | ARPHRD_RAWIP => {
            Ok(0)
        }
        _ => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            format!(
                "\"{name}\" is neither Ethernet nor a device for bare IP packets (its kind is {kind}, linux/if_arp.h)"
            ),
        )),
    }
}

/// The MTU in bytes.
pub fn mtu(name: &str) -> io::Result<u32> {
    let mut request = Request::new(name)?;
    request.call(libc::SIOCGIFMTU)?;
    // SAFETY: SIOCGIFMTU succeeded and has initialised this member of the union.
    Ok(unsafe { request.0.ifr_ifru.ifru_mtu } as u32)
}

/// Sets the interface up or down. The far end of a veth pair sees the carrier change.
pub fn set_up(name: &str, up: bool) -> io::Result<()> {
    let mut request = Request::new(name)?;
    request.call(libc::SIOCGIFFLAGS)?;
    // SAFETY: SIOCGIFFLAGS succeeded and has initialised this member of the union.
    let flags = unsafe { request.0.ifr_ifru.ifru_flags };
    let bit = libc::IFF_UP as libc::c_short;
    request.0.ifr_ifru.ifru_flags = if up { flags | bit } else { flags & !bit };
    request.call(libc::SIOCSIFFLAGS)
}

/// Disables segmentation, receive coalescing and checksum offload, so that every packet on a veth pair is at most one MTU long and
/// has its full checksum. Must be applied at the sending end.
pub fn disable_offloads(name: &str) -> io::Result<()> {
    const ETHTOOL_STXCSUM: u32 = 0x17;
    const ETHTOOL_STSO: u32 = 0x1f;
    const ETHTOOL_SGSO: u32 = 0x24;
    const ETHTOOL_SGRO: u32 = 0x2c;
    for command in [ETHTOOL_STSO, ETHTOOL_SGSO, ETHTOOL_SGRO, ETHTOOL_STXCSUM] {
        ethtool(name, command)?;
    }
    Ok(())
}

/// Whether an interface has a carrier.
///
/// The kernel reports lost carriers at most once per second, counted over all namespaces of the machine. Since Linux 6.8 this query
/// makes it report a change of this interface at once.
pub fn has_carrier(name: &str) -> io::Result<bool> {
    const ETHTOOL_GLINK: u32 = 0x0a;
    Ok(ethtool(name, ETHTOOL_GLINK)? != 0)
}

/// Executes a command with a single value; it is 0 on entry.
fn ethtool(name: &str, command: u32) -> io::Result<u32> {
    // struct ethtool_value { __u32 cmd; __u32 data; }
    let mut value = [command, 0u32];
    let mut request = Request::new(name)?;
    request.0.ifr_ifru.ifru_data = value.as_mut_ptr().cast();
    request.call(libc::SIOCETHTOOL)?;
    Ok(value[1])
}

struct Request(libc::ifreq, OwnedFd);

impl Request {
    fn new(name: &str) -> io::Result<Self> {
        // SAFETY: an all-zero ifreq is a valid value.
        let mut request: libc::ifreq = unsafe { zeroed() };
        // One byte remains zero: the name is NUL-terminated.
        if name.is_empty() || name.len() >= request.ifr_name.len() || name.bytes().any(|b| b == 0) {
            return Err(unknown(name));
        }
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        // SAFETY: socket() takes no pointers.
        let raw = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
        if raw < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `raw` was just returned by socket() and belongs to nobody else.
        Ok(Self(request, unsafe { OwnedFd::from_raw_fd(raw) }))
    }

    fn call(&mut self, code: libc::c_ulong) -> io::Result<()> {
        // SAFETY: `code` is one of the requests above, each of which reads and writes one ifreq (and what
        // ifru_data points at, which the caller keeps alive across the call).
        let result = unsafe { libc::ioctl(self.1.as_raw_fd(), code as _, &raw mut self.0) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

fn unknown(name: &str) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("no interface \"{name}\" in this network namespace"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{Options, PacketSocket};
    use crate::tests::in_private_network;

    #[test]
    fn loopback_can_be_queried_and_switched() {
        in_private_network("true", || {
            assert_eq!(index("lo").unwrap(), 1);
            assert_eq!(mac("lo").unwrap(), [0; 6]);
            assert_eq!(mtu("lo").unwrap(), 65536);
            assert_eq!(link_header_bytes("lo").unwrap(), 14);
            let is_up = || {
                let shown = std::process::Command::new("ip").args(["link", "show", "lo"]).output().unwrap();
                String::from_utf8(shown.stdout).unwrap().contains("LOOPBACK,UP")
            };
            assert!(!is_up());
            set_up("lo", true).unwrap();
            assert!(is_up());
            set_up("lo", false).unwrap();
            assert!(!is_up());
            assert!(set_up("no-such-if0", true).is_err());
            assert!(mtu("a-name-that-is-too-long").is_err());
        });
    }

    #[test]
    fn the_carrier_is_that_of_the_peer() {
        in_private_network("ip link add va type veth peer vb; ip link set va up; ip link set vb up", || {
            assert!(has_carrier("va").unwrap());
            set_up("vb", false).unwrap();
            assert!(!has_carrier("va").unwrap());
            set_up("vb", true).unwrap();
            assert!(has_carrier("va").unwrap());
            assert!(has_carrier("no-such-if0").is_err());
        });
    }

    #[test]
    fn without_offloads_checksums_are_complete() {
        in_private_network(
            "ip link add va type veth peer vb; ip link set va up; ip link set vb up
             ip addr add 192.0.2.1/24 dev va; ip neigh add 192.0.2.2 lladdr 02:00:00:00:00:02 dev va",
            || {
                let mut b = PacketSocket::open("vb", &Options::default()).unwrap();
                let udp = std::net::UdpSocket::bind("192.0.2.1:0").unwrap();
                let mut partial = |payload: &[u8]| {
                    udp.send_to(payload, "192.0.2.2:9").unwrap();
                    let mut seen = Vec::new();
                    let mut each = |r: crate::packet::Received<'_>| {
                        if r.bytes.ends_with(payload) {
                            seen.push(r.partial_checksum);
                        }
                    };
                    while b.recv(&mut each).unwrap() > 0 {}
                    seen
                };
                assert_eq!(partial(b"before"), [true]);
                disable_offloads("va").unwrap();
                assert_eq!(partial(b"after"), [false]);
            },
        );
    }
}
