//! Deterministic fault simulation: a system in virtual time, a plan of faults derived from a seed, and invariants that must hold
//! under any faults.
//!
//! ```text
//!   seed ─▶ plan ─▶ world: steps with faults ─▶ the faults stop ─▶ everything converges, works and becomes idle
//!            ▲                    │ each step: invariants
//!            └── shrink ◀── violation ─▶ file, replay
//! ```
//!
//! A [`System`] combines a kind of plan with the world it runs in: [`tunnel`], [`slices`], [`cell`], [`lwip`]. A plan always
//! gives the same bytes. docs/testing.md describes the usage.

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
