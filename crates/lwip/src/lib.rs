//! LWIP: the packets of one bearer are split between LTE and Wi-Fi beside the gNB, and DIDA hides the resulting
//! reordering from TCP senders.
//!
//! ```text
//!             ┌───────────────────────── Node ─────────────────────────┐
//!   backhaul  │ flow ─▶ steering ─┬─────────────────────────────────── │ ─▶ LTE leg   ─▶ UE
//!  (N3) ────▶ │ (5-tuple)         └─▶ destination := Wi-Fi address ─── │ ─▶ Wi-Fi leg ─▶ UE: and back again
//!             │                                                        │
//!       ◀──── │ ◀─ DIDA: duplicate ACKs wait for the one that is       │ ◀─ LTE leg: every ACK
//!             │    missing, or for the timer                           │
//!             └──── probes: RTT and rate of each leg ──────────────────┘
//! ```
//!
//! Source: Pasca S et al., *A Packet Level Steering Solution for Tightly Coupled LWIP Networks*. The endpoints of a
//! TCP connection are not aware of the node. docs/lwip.md has the derivations and the differences from the paper.
//!
//! [`Node`] has a batch interface for the data path (packets are modified in place, without allocation or locks)
//! and is an [`Element`](anabranch_element::Element). [`UeSide`] is the part that the UE needs; on a real device it
//! is one nftables rule.
//!
//! A node that sends every second packet of a UE over Wi-Fi:
//!
//! ```
//! use anabranch_element::time::Instant;
//! use anabranch_lwip::{Config, Leg, Node, Steering, UeConfig};
//!
//! let config = Config {
//!     steering: Steering::FixedRatio { lte_percent: 50.0 },
//!     ues: vec![UeConfig {
//!         name: "phone".into(),
//!         addresses: vec!["10.45.0.2".parse()?],
//!         wifi: vec!["10.46.0.2".parse()?],
//!     }],
//!     ..Config::default()
//! };
//! let mut node = Node::new(config, 1, Instant::ZERO)?;
//! let stranger = anabranch_wire::ip::udp_datagram("192.0.2.1:9".parse()?, "10.45.0.9:9".parse()?, &[0; 100]);
//! // Packets of others pass by LTE.
//! assert_eq!(node.downlink(&mut stranger.unwrap(), Instant::ZERO), Leg::Lte);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod adaptive;
mod beside;
mod config;
mod dida;
mod early_loss;
mod element;
mod estimate;
mod events;
mod flow;
mod flows;
pub mod holding_time;
mod jitter;
mod law;
mod link;
mod load;
mod node;
mod pool;
mod probe;
mod sack;
mod stamps;
mod stats;
mod steer;
mod timers;
mod ue;
mod uplink;

pub use config::{
    Config, ConfigError, DidaConfig, Hold, OtherTraffic, ProbeConfig, Steering, SwitchTo, UeConfig, WifiLeg,
};
pub use element::Command;
pub use events::{Event, ReleaseReason};
pub use flow::FlowView;
pub use link::LinkView;
pub use node::{Node, NodeSink};
pub use stats::{HOLD_BUCKETS_US, LegStats, PassReason, Stats};
pub use ue::{UeElement, UeSide};

/// One of the two ways to the UE.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Leg {
    /// The cell: the anchor leg, which all uplink packets use.
    Lte,
    /// The access point.
    Wifi,
}

impl Leg {
    /// Both legs, LTE first.
    pub const ALL: [Self; 2] = [Self::Lte, Self::Wifi];

    /// The name in configuration, metrics and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lte => "lte",
            Self::Wifi => "wifi",
        }
    }
}

#[cfg(test)]
mod tests;
