//! Socket options by name, as in properties `SO/<level>/<option>`, and their numbers on Linux.

/// Interpretation of a property's key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SocketOption {
    /// Not a socket option.
    NotOne,
    /// A socket option that is unknown to this host.
    Unknown,
    /// `so/<level>/<option>` with numbers.
    Number(String),
}

/// Levels and options that exist on Linux and are known by name to NEAT's Python code.
const NAMES: &[(&str, u16)] = &[
    ("SOL_SOCKET", 1),
    ("SOL_IP", 0),
    ("SOL_TCP", 6),
    ("SOL_UDP", 17),
    ("IPPROTO_IP", 0),
    ("IPPROTO_TCP", 6),
    ("IPPROTO_UDP", 17),
    ("IPPROTO_IPV6", 41),
    ("IPPROTO_SCTP", 132),
    ("IPPROTO_UDPLITE", 136),
    ("SO_ACCEPTCONN", 30),
    ("SO_BINDTODEVICE", 25),
    ("SO_BROADCAST", 6),
    ("SO_DEBUG", 1),
    ("SO_DOMAIN", 39),
    ("SO_DONTROUTE", 5),
    ("SO_ERROR", 4),
    ("SO_INCOMING_CPU", 49),
    ("SO_KEEPALIVE", 9),
    ("SO_LINGER", 13),
    ("SO_MARK", 36),
    ("SO_OOBINLINE", 10),
    ("SO_PASSCRED", 16),
    ("SO_PASSSEC", 34),
    ("SO_PEERCRED", 17),
    ("SO_PEERSEC", 31),
    ("SO_PRIORITY", 12),
    ("SO_PROTOCOL", 38),
    ("SO_RCVBUF", 8),
    ("SO_RCVLOWAT", 18),
    ("SO_RCVTIMEO", 20),
    ("SO_REUSEADDR", 2),
    ("SO_REUSEPORT", 15),
    ("SO_SNDBUF", 7),
    ("SO_SNDLOWAT", 19),
    ("SO_SNDTIMEO", 21),
    ("SO_TYPE", 3),
    ("TCP_CONGESTION", 13),
    ("TCP_CORK", 3),
    ("TCP_DEFER_ACCEPT", 9),
    ("TCP_FASTOPEN", 23),
    ("TCP_INFO", 11),
    ("TCP_KEEPCNT", 6),
    ("TCP_KEEPIDLE", 4),
    ("TCP_KEEPINTVL", 5),
    ("TCP_LINGER2", 8),
    ("TCP_MAXSEG", 2),
    ("TCP_NODELAY", 1),
    ("TCP_NOTSENT_LOWAT", 25),
    ("TCP_QUICKACK", 12),
    ("TCP_SYNCNT", 7),
    ("TCP_USER_TIMEOUT", 18),
    ("TCP_WINDOW_CLAMP", 10),
    ("IP_ADD_MEMBERSHIP", 35),
    ("IP_BIND_ADDRESS_NO_PORT", 24),
    ("IP_DROP_MEMBERSHIP", 36),
    ("IP_HDRINCL", 3),
    ("IP_MULTICAST_IF", 32),
    ("IP_MULTICAST_LOOP", 34),
    ("IP_MULTICAST_TTL", 33),
    ("IP_OPTIONS", 4),
    ("IP_RECVOPTS", 6),
    ("IP_RECVRETOPTS", 7),
    ("IP_RECVTOS", 13),
    ("IP_RETOPTS", 7),
    ("IP_TOS", 1),
    ("IP_TRANSPARENT", 19),
    ("IP_TTL", 2),
    ("IPV6_CHECKSUM", 7),
    ("IPV6_DONTFRAG", 62),
    ("IPV6_HOPLIMIT", 52),
    ("IPV6_JOIN_GROUP", 20),
    ("IPV6_LEAVE_GROUP", 21),
    ("IPV6_MULTICAST_HOPS", 18),
    ("IPV6_MULTICAST_IF", 17),
    ("IPV6_MULTICAST_LOOP", 19),
    ("IPV6_PATHMTU", 61),
    ("IPV6_PKTINFO", 50),
    ("IPV6_RECVHOPLIMIT", 51),
    ("IPV6_RECVPATHMTU", 60),
    ("IPV6_RECVPKTINFO", 49),
    ("IPV6_RECVTCLASS", 66),
    ("IPV6_TCLASS", 67),
    ("IPV6_UNICAST_HOPS", 16),
    ("IPV6_V6ONLY", 26),
    ("IPPROTO_MPTCP", 262),
];

/// Interprets a property's key, in lower case, as a socket option.
pub(super) fn socket_option(key: &str) -> SocketOption {
    let mut parts = key.split('/');
    if parts.next() != Some("so") {
        return SocketOption::NotOne;
    }
    let (Some(level), Some(option), None) = (parts.next(), parts.next(), parts.next()) else {
        return if key == "so" { SocketOption::NotOne } else { SocketOption::Unknown };
    };
    let number = |name: &str| {
        let upper = name.to_uppercase();
        let digits = !name.is_empty() && name.bytes().all(|b| b.is_ascii_digit());
        if digits { Some(upper) } else { NAMES.iter().find(|(n, _)| *n == upper).map(|(_, v)| v.to_string()) }
    };
    match (number(level), number(option)) {
        (Some(level), Some(option)) => SocketOption::Number(format!("so/{level}/{option}")),
        _ => SocketOption::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_by_name_and_number() {
        for (key, is) in [
            ("so/ipproto_ip/ip_tos", SocketOption::Number("so/0/1".into())),
            ("so/sol_socket/tcp_nodelay", SocketOption::Number("so/1/1".into())),
            ("so/6/13", SocketOption::Number("so/6/13".into())),
            ("so/sol_socket/so_mptcp_enabled", SocketOption::Unknown),
            ("so/x", SocketOption::Unknown),
            ("so//", SocketOption::Unknown),
            ("so", SocketOption::NotOne),
            ("source", SocketOption::NotOne),
        ] {
            assert_eq!(socket_option(key), is, "{key}");
        }
    }
}
