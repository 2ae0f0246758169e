//! Execution of a plan on a socket. Steps that determine the path must succeed, otherwise the candidate is skipped: a connection
//! on the wrong slice is worse than none. Steps that determine the treatment of packets may fail, which is reported as a soft
//! error.

use crate::endpoint::LocalEndpoint;
use anabranch_kern::socket::set_max_pacing_rate;
use anabranch_selection::plan::{Action, InitialWindow};
use anabranch_selection::{CapacityProfile, Protocol, Rate};
use socket2::{Domain, SockRef, Socket, TcpKeepalive, Type};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

/// The parts of a plan that concern a socket.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Setup {
    pub mptcp: bool,
    pub mark: Option<u32>,
    pub device: Option<String>,
    pub source: Option<IpAddr>,
    pub pacing_bps: Option<u64>,
    pub congestion_control: Option<String>,
    pub window: Option<InitialWindow>,
    pub dscp: Option<u8>,
}

impl Setup {
    /// Reads a plan.
    ///
    /// # Errors
    /// A step of a newer version: the candidate cannot be used.
    pub fn read(plan: &[Action]) -> Result<Self, io::Error> {
        let mut setup = Self::default();
        for action in plan {
            match action {
                Action::Mptcp => setup.mptcp = true,
                Action::Mark { mark, .. } => setup.mark = Some(*mark),
                Action::Device { interface } => setup.device = Some(interface.clone()),
                Action::LocalAddress { address, .. } => setup.source = Some(*address),
                Action::Pacing { bps } => setup.pacing_bps = Some(*bps),
                Action::CongestionControl { name } => setup.congestion_control = Some(name.clone()),
                Action::InitialWindow { window, .. } => setup.window = Some(*window),
                Action::Dscp { dscp } => setup.dscp = Some(*dscp),
                // Applies to the whole host, and is therefore executed by the agent (docs/taps-api.md).
                Action::MptcpEndpoint { .. } => {}
                Action::Unknown => {
                    let reason = "the plan has a step that this version does not know: the agent is newer";
                    return Err(io::Error::new(io::ErrorKind::Unsupported, reason));
                }
            }
        }
        Ok(setup)
    }

    /// A socket of `protocol` towards `remote`, bound according to the plan and `local`; and the failed steps for the treatment of its
    /// packets.
    pub fn socket(
        &self,
        protocol: Protocol,
        remote: SocketAddr,
        local: &LocalEndpoint,
    ) -> io::Result<(Socket, Vec<String>)> {
        let datagrams = matches!(protocol, Protocol::Udp | Protocol::Quic);
        let kind = if datagrams { Type::DGRAM } else { Type::STREAM };
        let by = match protocol {
            Protocol::Tcp => socket2::Protocol::TCP,
            Protocol::Mptcp => socket2::Protocol::MPTCP,
            Protocol::Udp | Protocol::Quic => socket2::Protocol::UDP,
        };
        let socket = Socket::new(Domain::for_address(remote), kind, Some(by))
            .map_err(|e| named(&format!("a {protocol} socket"), e))?;
        socket.set_nonblocking(true)?;
        if let Some(mark) = self.mark {
            socket.set_mark(mark).map_err(|e| named(&format!("SO_MARK {mark}"), e))?;
        }
        if let Some(device) = &self.device {
            socket
                .bind_device(Some(device.as_bytes()))
                .map_err(|e| named(&format!("SO_BINDTODEVICE {device}"), e))?;
        }
        if let (Some(planned), Some(asked)) = (self.source, local.address)
            && planned != asked
        {
            let reason = format!("the path's address is {planned}, the local endpoint's {asked}");
            return Err(io::Error::new(io::ErrorKind::AddrNotAvailable, reason));
        }
        if local.port.is_some() && !datagrams {
            // Candidates race from the same port, and an ended one may occupy it for a minute.
            socket.set_reuse_address(true)?;
        }
        let source = local.address.or(self.source);
        if source.is_some() || local.port.is_some() || datagrams {
            let any: IpAddr =
                if remote.is_ipv6() { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
            let from = SocketAddr::new(source.unwrap_or(any), local.port.unwrap_or(0));
            socket.bind(&from.into()).map_err(|e| named(&format!("bind to {from}"), e))?;
        }
        let refused = self.apply_to_accepted(&socket, protocol);
        Ok((socket, refused))
    }

    /// Applies the treatment of packets; returns the failures.
    fn apply_to_accepted(&self, socket: &Socket, protocol: Protocol) -> Vec<String> {
        let mut refused = Vec::new();
        let mut soft = |what: String, result: io::Result<()>| {
            refused.extend(result.err().map(|e| format!("{what}: {e}")));
        };
        if matches!(protocol, Protocol::Tcp | Protocol::Mptcp)
            && let Some(name) = &self.congestion_control
        {
            soft(format!("TCP_CONGESTION {name}"), socket.set_tcp_congestion(name.as_bytes()));
        }
        if let Some(bps) = self.pacing_bps.filter(|_| protocol != Protocol::Quic) {
            soft(format!("SO_MAX_PACING_RATE {bps} bit/s"), set_max_pacing_rate(socket, (bps / 8).max(1)));
        }
        if let Some(dscp) = self.dscp {
            soft(format!("DSCP {dscp}"), set_dscp(&SockRef::from(socket), dscp));
        }
        refused
    }
}

/// Sets the DSCP of a socket; the two bits below it belong to ECN and the kernel.
pub(crate) fn set_dscp(socket: &SockRef<'_>, dscp: u8) -> io::Result<()> {
    let byte = u32::from(dscp) << 2;
    if socket.domain()? != Domain::IPV6 {
        return socket.set_tos_v4(byte);
    }
    // A dual-stack socket also sends IPv4; an IPv6-only socket may refuse this.
    let _ = socket.set_tos_v4(byte);
    socket.set_tclass_v6(byte)
}

/// Sets the maximum sending rate of a socket.
pub(crate) fn set_rate(socket: &SockRef<'_>, rate: Rate) -> io::Result<()> {
    // SockRef dereferences to Socket; the maximum means no limit.
    set_max_pacing_rate(&**socket, rate.get().map_or(u64::MAX, |bps| (bps / 8).max(1)))
}

/// `TCP_NODELAY`: no waiting for full packets where latency matters (RFC 9622 §8.1.6).
pub(crate) fn set_profile(socket: &SockRef<'_>, profile: CapacityProfile) -> io::Result<()> {
    use CapacityProfile::{LowLatencyInteractive, LowLatencyNonInteractive};
    socket.set_tcp_nodelay(matches!(profile, LowLatencyInteractive | LowLatencyNonInteractive))
}

/// `keepAliveTimeout`: probes after this idle time; `None` disables them.
pub(crate) fn set_keep_alive(socket: &SockRef<'_>, idle: Option<Duration>) -> io::Result<()> {
    match idle {
        Some(idle) => socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(whole_s(idle))),
        None => socket.set_keepalive(false),
    }
}

/// `connTimeout`: how long sent data may remain unacknowledged.
pub(crate) fn set_timeout(socket: &SockRef<'_>, timeout: Option<Duration>) -> io::Result<()> {
    socket.set_tcp_user_timeout(timeout.map(whole_ms))
}

/// Converts a time to whole milliseconds, at least 1 (0 would disable it) and at most 24 days (the limit of TCP).
pub(crate) fn whole_ms(timeout: Duration) -> Duration {
    timeout.clamp(Duration::from_millis(1), Duration::from_millis(i32::MAX as u64))
}

/// Converts a time to whole seconds, 1 to 32767, as the kernel requires for `keepAliveTimeout`.
pub(crate) fn whole_s(idle: Duration) -> Duration {
    Duration::from_secs(idle.as_secs().clamp(1, 32_767))
}

/// An error of a step, with its name and, if helpful, the remedy.
fn named(step: &str, error: io::Error) -> io::Error {
    let remedy = match error.kind() {
        io::ErrorKind::PermissionDenied => " (a mark takes CAP_NET_ADMIN or CAP_NET_RAW)",
        _ => "",
    };
    io::Error::new(error.kind(), format!("{step}: {error}{remedy}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_carried_out_on_the_socket() {
        let plan = [
            Action::Pacing { bps: 8_000_000 },
            Action::CongestionControl { name: "reno".into() },
            Action::Dscp { dscp: 34 },
            Action::LocalAddress { address: "127.0.0.1".parse().unwrap(), interface: "lo".into() },
        ];
        let setup = Setup::read(&plan).unwrap();
        let remote = "127.0.0.1:9".parse().unwrap();
        let (socket, refused) = setup.socket(Protocol::Tcp, remote, &LocalEndpoint::new()).unwrap();
        assert_eq!(refused, Vec::<String>::new());
        assert_eq!(socket.tos_v4().unwrap(), 34 << 2);
        assert!(socket.tcp_congestion().unwrap().starts_with(b"reno"));
        assert_eq!(socket.local_addr().unwrap().as_socket().unwrap().ip().to_string(), "127.0.0.1");
        let elsewhere = LocalEndpoint::new().ip(Ipv4Addr::new(127, 0, 0, 2));
        let error = setup.socket(Protocol::Tcp, remote, &elsewhere).unwrap_err();
        assert!(error.to_string().contains("127.0.0.2"), "{error}");
    }

    #[test]
    fn times_are_rounded_to_the_units_of_protocols() {
        let tcp = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        for (time, set) in [
            (Duration::ZERO, Duration::from_millis(1)),
            (Duration::from_micros(10), Duration::from_millis(1)),
            (Duration::from_secs(5), Duration::from_secs(5)),
            (Duration::MAX, Duration::from_millis(i32::MAX as u64)),
        ] {
            set_timeout(&SockRef::from(&tcp), Some(time)).unwrap();
            assert_eq!(tcp.tcp_user_timeout().unwrap(), Some(set), "{time:?}");
        }
        // With 0, QUIC would send keep-alive packets endlessly.
        assert_eq!(whole_s(Duration::ZERO), Duration::from_secs(1));
        assert_eq!(whole_s(Duration::MAX), Duration::from_secs(32_767));
    }

    #[test]
    fn path_steps_must_succeed_and_treatment_steps_may_fail() {
        let remote = "127.0.0.1:9".parse().unwrap();
        let none = LocalEndpoint::new();
        let device = Setup::read(&[Action::Device { interface: "no-such-device".into() }]).unwrap();
        let error = device.socket(Protocol::Udp, remote, &none).unwrap_err();
        assert!(error.to_string().contains("SO_BINDTODEVICE no-such-device"), "{error}");
        let law = Setup::read(&[Action::CongestionControl { name: "no-such-law".into() }]).unwrap();
        let (_, refused) = law.socket(Protocol::Tcp, remote, &none).unwrap();
        assert!(refused.len() == 1 && refused[0].contains("no-such-law"), "{refused:?}");
        assert!(Setup::read(&[Action::Unknown]).is_err());
    }
}
