//! The data paths in real time: threads with epoll that move packets in batches through the state machines of the algorithm crates.
//!
//! ```text
//!  control plane ── jobs ──▶ thread: Worker(TunnelEnd) ◀── UDP sockets, one per access (GSO and GRO)
//!                ◀─ events ──┘                        ◀── inner interface (TUN with offload, or veth)
//! ```
//!
//! - [`worker`]: one such thread. [`worker_pool`]: the threads of a UE or UPF. [`ends`]: the tunnel ends that they drive.
//! - [`cell`], [`lwip`]: the threads of a gNB and of an LWIP node. [`link`]: an emulated link between interfaces.
//! - [`thread`]: jobs, timer, start and stop of all these threads. [`clock`]: their time.
//! - [`udp`], [`device`]: sockets and interfaces. [`gtpu`]: messages about GTP-U packets that cannot be accepted.
//!   [`fast`]: flows that the kernel forwards itself.
//!
//! ```
//! use anabranch_engine::clock::Clock;
//! use anabranch_engine::thread::{EventLoop, Running, Worker};
//! use anabranch_element::time::Instant;
//!
//! struct Counter(EventLoop<Counter>, u64, bool);
//!
//! impl Worker for Counter {
//!     fn run(mut self) -> anyhow::Result<()> {
//!         while !self.2 {
//!             self.0.wait(false, Instant::MAX, &mut [])?;
//!             while let Some(job) = self.0.next_job() {
//!                 job(&mut self, Instant::ZERO);
//!             }
//!         }
//!         Ok(())
//!     }
//!
//!     fn stop(&mut self) {
//!         self.2 = true;
//!     }
//! }
//!
//! let (events, handle) = EventLoop::new(Clock::start())?;
//! let running = Running::start("counter", Counter(events, 0, false), handle.clone())?;
//! handle.run(|counter, _| counter.1 += 1)?;
//! running.stop()?;
//! # anyhow::Ok(())
//! ```
#![forbid(unsafe_code)]
// Real clocks, unlike the state machines.
#![allow(clippy::disallowed_methods)]

pub mod cell;
pub mod clock;
pub mod deferred;
pub mod device;
pub mod ends;
pub mod fast;
pub mod gtpu;
pub mod handover;
mod inner;
pub mod link;
pub mod lwip;
mod offload;
pub mod thread;
pub mod udp;
pub mod worker;
pub mod worker_pool;

#[cfg(test)]
mod real_time;
