//! Flow descriptions: the three-tuple of the server as an IPFilterRule (RFC 6733 §4.3; TS 29.214 §5.3.8).

use anabranch_rules::PortRange;
use ipnet::IpNet;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// Protocol, address and ports of the server.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FlowDescription {
    /// IP protocol number; `None`: any.
    pub protocol: Option<u8>,
    /// The server's address or prefix; `None`: any.
    pub server: Option<IpNet>,
    /// The server's ports; empty: any.
    pub ports: Vec<PortRange>,
}

impl FlowDescription {
    /// Whether a packet to this server matches.
    #[must_use]
    pub fn matches(&self, protocol: u8, address: IpAddr, port: u16) -> bool {
        self.protocol.is_none_or(|p| p == protocol)
            && self.server.is_none_or(|net| net.contains(&address))
            && (self.ports.is_empty() || self.ports.iter().any(|r| r.first <= port && port <= r.last))
    }
}

/// With `out` (to the UE) the server is the source, with `in` the destination; the UE's side may only be `any` or `assigned`.
impl FromStr for FlowDescription {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        const RIGHT: &str = "write \"permit out 17 from 198.51.100.7 5000-5100 to any\"";
        let words: Vec<&str> = text.split_whitespace().collect();
        let [action, way, protocol, "from", rest @ ..] = words.as_slice() else {
            return Err(format!("\"{text}\" is no flow description; {RIGHT}"));
        };
        if *action != "permit" {
            return Err(format!("\"{action}\": a flow description permits; {RIGHT}"));
        }
        let to = rest.iter().position(|w| *w == "to").ok_or_else(|| format!("\"to\" is missing; {RIGHT}"))?;
        let (from, to) = (&rest[..to], &rest[to + 1..]);
        let (server, device) = match *way {
            "out" => (from, to),
            "in" => (to, from),
            other => return Err(format!("\"{other}\" is no direction; write \"out\", to the UE, or \"in\"")),
        };
        if !matches!(device, ["any" | "assigned"]) {
            let device = device.join(" ");
            return Err(format!("\"{device}\": the UE's side of a three-tuple is \"any\" or \"assigned\""));
        }
        let protocol = match *protocol {
            "ip" => None,
            number => {
                Some(number.parse().map_err(|_| format!("protocol \"{number}\": write \"ip\" or 0 to 255"))?)
            }
        };
        let [address, ports @ ..] = server else {
            return Err(format!("the server's address is missing; {RIGHT}"));
        };
        let server = match *address {
            "any" => None,
            address => Some(
                address
                    .parse::<IpNet>()
                    .or_else(|_| address.parse::<IpAddr>().map(IpNet::from))
                    .map_err(|_| format!("\"{address}\" is no address or prefix, nor \"any\""))?
                    .trunc(),
            ),
        };
        let ports = match ports {
            [] => Vec::new(),
            [list] => list.split(',').map(port_range).collect::<Result<_, _>>()?,
            [_, option, ..] => return Err(format!("\"{option}\": options have no place in a three-tuple")),
        };
        Ok(Self { protocol, server, ports })
    }
}

fn port_range(text: &str) -> Result<PortRange, String> {
    let wrong = || format!("\"{text}\" is no port; write 443 or 5000-5100, several with commas and no space");
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let first = first.parse().map_err(|_| wrong())?;
    let last = last.parse().map_err(|_| wrong())?;
    if first > last { Err(wrong()) } else { Ok(PortRange { first, last }) }
}

impl fmt::Display for FlowDescription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("permit out ")?;
        match self.protocol {
            Some(p) => write!(f, "{p}")?,
            None => f.write_str("ip")?,
        }
        match self.server {
            Some(net) if net.prefix_len() == net.max_prefix_len() => write!(f, " from {}", net.addr())?,
            Some(net) => write!(f, " from {net}")?,
            None => f.write_str(" from any")?,
        }
        for (i, r) in self.ports.iter().enumerate() {
            f.write_str(if i == 0 { " " } else { "," })?;
            if r.first == r.last { write!(f, "{}", r.first)? } else { write!(f, "{}-{}", r.first, r.last)? }
        }
        f.write_str(" to any")
    }
}
