//! A cell: the gNB with its limiters, RLC, HARQ and schedulers ([`anabranch_ran::gnb::Gnb`]), honest UEs with traffic both
//! ways, and one that floods.
//!
//! ```text
//!   flows ─▶ N3 ─▶ gNB ─▶ UE 0..3 ─▶ ledger        a step is one event: the gNB is due, a flow sends, the hostile UE
//!   ledger ◀─ N3 ◀─ gNB ◀─ UE 0..3 ◀─ flows         acts, a fault ends
//! ```

mod plan;
mod world;

use super::{check, draw, system};
pub use plan::Plan;
