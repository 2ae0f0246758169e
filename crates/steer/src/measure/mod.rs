//! What is measured of a path: the model of its load, and the trains that tell what carries nothing yet.
//!
//! No packet is sent here. Who has the path sends probes and trains in its own format, and says what came back.

mod load;
mod loss;
mod trains;

pub use load::Load;
pub use trains::{Rate, TrainBudget, Trains};
