//! Deterministic fault simulation: the whole system in virtual time, with a plan of faults that follows from a seed, and
//! what must hold whatever happens.
//!
//! ```text
//!   seed ─▶ plan ─▶ world: steps with faults ─▶ the faults stop ─▶ everything converges, works and comes to rest
//!            ▲                    │ each step: invariants
//!            └── shrink ◀── violation ─▶ file, replay
//! ```
//!
//! The same plan gives the same bytes, always. docs/testing.md says how to use it.

pub mod check;
pub mod cli;
mod draw;
mod ends;
mod faults;
mod flow;
mod hostile;
mod ledger;
mod line;
pub mod many;
pub mod plan;
pub mod run;
pub mod shrink;
mod strangers;
mod trace;
mod world;

pub use check::{Invariant, Tally, Violation};
pub use plan::Plan;
pub use run::{Outcome, run, run_traced};
