//! The slice manager: its decisions (`anabranch_slice`), its records in a store, and the cells it configures.
//!
//! ```text
//!   operator, UEs ─▶ instance 0, 1: decide ─▶ store ─▶ memory      a step is one event: a command, an answer, a tick,
//!   CAMARA's clients     │ requests, one at a time                 a message that reaches a cell
//!                        ├─▶ cell 0..2: shares, health
//!                        └─▶ UPF: sessions
//! ```
//!
//! The decisions are those of the product: [`anabranch_slice::Manager`] with its records as they are stored. The database and the
//! round of southbound steps, both in `node`, perform IO. `store.rs` and `worker.rs` replace them here and do the same in
//! the same order.

mod clients;
mod commands;
mod plan;
mod store;
mod upf;
mod worker;
mod world;

use super::{check, draw, system};
pub use plan::Plan;
