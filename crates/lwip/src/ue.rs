//! The UE's part: packets that arrived by Wi-Fi become packets of the bearer again.
//!
//! On a real device this is one rule that runs before connection tracking. Stateful translation would assign a
//! bearer packet that arrived by Wi-Fi to a different connection:
//!
//! ```text
//! table ip lwip {
//!     chain wifi {
//!         type filter hook prerouting priority raw;
//!         iifname "wlan0" ip daddr 10.46.0.2 meta l4proto { tcp, udp } notrack ip daddr set 10.45.0.2
//!     }
//! }
//! ```
//!
//! Echo requests are not translated: the UE answers them from its Wi-Fi address.

use anabranch_element::packet::Packet;
use anabranch_element::time::Instant;
use anabranch_element::{Element, Port, Reason};
use anabranch_wire::ip::{IpPacket, emit_echo, parse_echo, protocol, rewrite_dst};
use std::collections::VecDeque;
use std::net::IpAddr;

use super::config::{ConfigError, UeConfig};

/// Most packets waiting to be taken out; further ones are dropped.
const MAX_OUT: usize = 65_536;

/// The addresses of one UE, and its treatment of packets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UeSide {
    bearer: [Option<IpAddr>; 2],
    wifi: [Option<IpAddr>; 2],
}

impl UeSide {
    /// A UE with the node's configuration of it.
    ///
    /// # Errors
    /// As [`UeConfig::check`].
    pub fn new(config: &UeConfig) -> Result<Self, ConfigError> {
        config.check()?;
        let mut side = Self::default();
        for address in &config.addresses {
            side.bearer[family(*address)] = Some(*address);
        }
        for address in &config.wifi {
            side.wifi[family(*address)] = Some(*address);
        }
        Ok(side)
    }

    /// The bearer address of the family of `of`.
    #[must_use]
    pub const fn bearer(&self, of: IpAddr) -> Option<IpAddr> {
        self.bearer[family(of)]
    }

    /// The Wi-Fi address of the family of `of`.
    #[must_use]
    pub const fn wifi(&self, of: IpAddr) -> Option<IpAddr> {
        self.wifi[family(of)]
    }

    /// Restores the bearer address as the destination of a TCP or UDP packet to the Wi-Fi address. Returns whether
    /// the packet was one; other packets stay unchanged.
    pub fn restore(&self, packet: &mut [u8]) -> bool {
        let Ok(ip) = IpPacket::parse(packet) else { return false };
        if !matches!(ip.protocol, protocol::TCP | protocol::UDP) || self.wifi(ip.dst) != Some(ip.dst) {
            return false;
        }
        self.bearer(ip.dst).is_some_and(|bearer| rewrite_dst(packet, bearer).is_ok())
    }

    /// The answer to an echo request to one of the UE's addresses, for the leg on which it arrived. On a real UE
    /// the kernel answers; this is for a simulated one.
    #[must_use]
    pub fn answer(&self, packet: &[u8]) -> Option<Vec<u8>> {
        let echo = parse_echo(packet).ok().filter(|echo| !echo.reply)?;
        if self.bearer(echo.dst) != Some(echo.dst) && self.wifi(echo.dst) != Some(echo.dst) {
            return None;
        }
        emit_echo(echo.dst, echo.src, true, (echo.id, echo.sequence), &packet[echo.payload]).ok()
    }
}

pub(super) const fn family(address: IpAddr) -> usize {
    match address {
        IpAddr::V4(_) => 0,
        IpAddr::V6(_) => 1,
    }
}

/// The UE's part as an element with the ports [`UeElement::IP`], [`UeElement::LTE`] and [`UeElement::WIFI`].
#[derive(Debug, Default)]
pub struct UeElement {
    side: UeSide,
    out: VecDeque<(Port, Packet)>,
}

impl UeElement {
    /// The UE's own IP stack.
    pub const IP: Port = Port(0);
    /// The cell; all packets of the UE leave by it.
    pub const LTE: Port = Port(1);
    /// The access point.
    pub const WIFI: Port = Port(2);

    /// A UE that answers echo requests on either leg.
    #[must_use]
    pub const fn new(side: UeSide) -> Self {
        Self { side, out: VecDeque::new() }
    }

    /// The addresses and the treatment of packets.
    #[must_use]
    pub const fn side(&self) -> &UeSide {
        &self.side
    }
}

impl Element for UeElement {
    type Command = ();
    type Event = ();

    fn on_packet(&mut self, port: Port, mut packet: Packet, _: Instant) {
        if self.out.len() >= MAX_OUT {
            return;
        }
        let out = if port == Self::IP {
            (Self::LTE, packet)
        } else if let Some(answer) = self.side.answer(&packet) {
            (port, Packet::new(packet.at, answer))
        } else {
            self.side.restore(&mut packet);
            (Self::IP, packet)
        };
        self.out.push_back(out);
    }

    fn poll_transmit(&mut self, _: Instant) -> Option<(Port, Packet)> {
        self.out.pop_front()
    }

    fn on_command(&mut self, (): (), _: Instant) {}

    fn poll_event(&mut self) -> Option<()> {
        None
    }

    fn on_timeout(&mut self, _: Instant) {}

    fn poll_timeout(&self) -> Option<(Instant, Reason)> {
        None
    }
}
