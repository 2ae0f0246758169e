//! Deterministic fault simulation: a system in virtual time, with a plan of faults that follows from a seed, and what must
//! hold whatever happens.
//!
//! ```text
//!   seed ─▶ plan ─▶ world: steps with faults ─▶ the faults stop ─▶ everything converges, works and comes to rest
//!            ▲                    │ each step: invariants
//!            └── shrink ◀── violation ─▶ file, replay
//! ```
//!
//! A [`System`] is a kind of plan and what it runs: [`tunnel`], [`slices`], [`cell`], [`lwip`]. The same plan gives the
//! same bytes, always. docs/testing.md says how to use it.

pub mod cell;
pub mod check;
pub mod cli;
mod draw;
pub mod lwip;
pub mod many;
pub mod run;
pub mod shrink;
pub mod slices;
pub mod system;
pub mod tunnel;

pub use check::{Invariant, Tally, Violation};
pub use run::{Outcome, run, run_traced};
pub use system::System;
