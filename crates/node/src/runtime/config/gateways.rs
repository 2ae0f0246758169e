//! The routers of a slice's interface.

use serde::Deserialize;
use std::net::IpAddr;

/// Routers: one address, or a list with one address per family.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "GatewaysSpec")]
pub struct Gateways {
    v4: Option<IpAddr>,
    v6: Option<IpAddr>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "an address in quotes, or a list of an IPv4 and an IPv6 address")]
enum GatewaysSpec {
    One(IpAddr),
    Both(Vec<IpAddr>),
}

impl TryFrom<GatewaysSpec> for Gateways {
    type Error = String;
    fn try_from(spec: GatewaysSpec) -> Result<Self, String> {
        let list = match spec {
            GatewaysSpec::One(address) => vec![address],
            GatewaysSpec::Both(list) => list,
        };
        let mut gateways = Self::default();
        for address in list {
            let of = if address.is_ipv6() { &mut gateways.v6 } else { &mut gateways.v4 };
            if let Some(other) = of.replace(address) {
                return Err(format!("gateway {other} and {address}: give at most one per family"));
            }
        }
        Ok(gateways)
    }
}

impl Gateways {
    /// The router of an address family.
    pub fn of(self, v6: bool) -> Option<IpAddr> {
        if v6 { self.v6 } else { self.v4 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    struct File {
        gateway: Gateways,
    }

    #[test]
    fn each_family_has_at_most_one_router() {
        let read = |text: &str| toml::from_str::<File>(&format!("gateway = {text}")).map(|file| file.gateway);
        let address = |text: &str| Some(text.parse().unwrap());
        for (text, v4, v6) in [
            ("\"10.0.1.1\"", address("10.0.1.1"), None),
            ("\"fe80::1\"", None, address("fe80::1")),
            ("[\"10.0.1.1\", \"fe80::1\"]", address("10.0.1.1"), address("fe80::1")),
            ("[\"fe80::1\", \"10.0.1.1\"]", address("10.0.1.1"), address("fe80::1")),
            ("[]", None, None),
        ] {
            let gateways = read(text).unwrap();
            assert_eq!((gateways.of(false), gateways.of(true)), (v4, v6), "{text}");
        }
        for wrong in ["[\"10.0.1.1\", \"10.0.1.2\"]", "[\"::1\", \"fe80::1\"]", "\"router\"", "7"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
