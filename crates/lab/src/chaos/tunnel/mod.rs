//! The tunnel: UEs, accesses, UPFs, a hostile UE and strangers.
//!
//! ```text
//!   plan ─▶ world: steps with faults ─▶ the faults stop ─▶ everything converges, works and becomes idle
//! ```

mod ends;
mod faults;
mod flow;
mod hostile;
mod ledger;
mod line;
pub mod plan;
mod run;
mod strangers;
mod trace;
mod world;

use super::{check, draw, system};
