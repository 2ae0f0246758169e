//! Measurements of a path: the path model, and the trains that measure idle paths.
//!
//! No packet is sent here. The owner of the path sends probes and trains in its own format, and passes the
//! results in.

mod load;
mod loss;
mod trains;

pub use load::Load;
pub use trains::{Rate, TrainBudget, Trains};
