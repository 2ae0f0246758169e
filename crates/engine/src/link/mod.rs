//! An emulated link in real time, between network interfaces: the same [`DuplexLink`](anabranch_link::DuplexLink) as in the
//! simulator.
//!
//! The arrival time of a frame is the kernel's time stamp, so a late wake-up delays one batch and shifts nothing after it.
//! Several interfaces on one side share the link: a frame goes to the interface behind which its destination was last seen.

mod control;
mod ports;
mod run;

pub use control::Control;
pub use ports::Ports;
pub use run::Running;
