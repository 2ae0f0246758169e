//! Packet-level steering next to a gNB: the LWIP node ([`anabranch_lwip::Node`]) and the UE side, with TCP downloads and numbered
//! datagrams in both directions.
//!
//! ```text
//!   server ─▶ node ─┬─ LTE leg ───▶ UE 0..2 ─▶ stream, ledger     a step is one event: a packet arrives, the node is due,
//!      ▲            └─ Wi-Fi leg ─▶    │                          a server or a UE sends, a fault ends
//!      └── node ◀──── LTE leg ◀────────┘
//! ```

mod plan;
mod stream;
mod world;

use super::{check, draw, system};
pub use plan::Plan;
