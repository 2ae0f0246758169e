//! The slice manager: what decides (`anabranch_slice`), its records in a store, and the cells it tells.
//!
//! ```text
//!   operator, UEs ─▶ instance 0, 1: decide ─▶ store ─▶ memory      a step is one event: a command, an answer, a tick,
//!   CAMARA's clients     │ asks, one at a time                     a message that reaches a cell
//!                        ├─▶ cell 0..2: shares, health
//!                        └─▶ UPF: sessions
//! ```
//!
//! What decides is what ships: [`anabranch_slice::Manager`] with its records as they are stored. What carries it out (the
//! database and the round of southbound steps, both in `node`) does IO, and is stood in for by what does the same in the same
//! order: `store.rs` and `worker.rs` here.

mod clients;
mod commands;
mod plan;
mod store;
mod upf;
mod worker;
mod world;

use super::{check, draw, system};
pub use plan::Plan;
