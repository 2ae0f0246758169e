//! Work that would make packets wait, such as a handshake: done by a thread of its own beside each worker.
//!
//! ```text
//!   worker ── Job ──▶ bounded queue ──▶ thread (lower priority): Work ── Answer, an order ──▶ worker
//! ```

use super::udp::Sockets;
use super::worker::{End, Handle};
use anabranch_atsss::PathId;
use anabranch_element::time::Instant;
use anyhow::Context;
use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

/// What takes long; it needs nothing of the worker.
pub type Work<E> = Box<dyn FnOnce() -> Answer<E> + Send>;
/// What is done with its result, on the worker.
pub type Answer<E> = Box<dyn FnOnce(&mut E, Instant, &mut Sockets) + Send>;

/// Jobs that may wait: 0.1 s of them.
const MAX_JOBS: usize = 300;

/// The datagram that brought the work.
#[derive(Debug, Clone, Copy)]
pub struct Arrival {
    /// By which access.
    pub access: PathId,
    /// From where.
    pub from: SocketAddr,
    /// To which of our addresses.
    pub local: Option<IpAddr>,
}

/// Work, and what brought it.
type Job<E> = (Work<E>, Arrival);

/// The way to the thread. It ends when this is dropped.
pub struct WorkQueue<E>(SyncSender<Job<E>>);

impl<E: End> WorkQueue<E> {
    /// Starts the thread beside the worker with this number.
    pub fn start(worker: usize, handle: Handle<E>) -> anyhow::Result<(Self, JoinHandle<()>)> {
        let (sender, jobs) = sync_channel(MAX_JOBS);
        let thread = std::thread::Builder::new()
            .name(format!("anb-deferred-{worker}"))
            .spawn(move || run(&jobs, &handle))
            .context("starting the thread for deferred work")?;
        Ok((Self(sender), thread))
    }

    /// Whether there was room for it.
    pub fn give(&self, work: Work<E>, arrival: Arrival) -> bool {
        self.0.try_send((work, arrival)).is_ok()
    }
}

fn run<E: End>(jobs: &Receiver<Job<E>>, handle: &Handle<E>) {
    if let Err(error) = anabranch_kern::priority::background() {
        tracing::debug!("deferred work has the priority of the workers: {error}");
    }
    for (work, arrival) in jobs {
        let answer = work();
        // A worker that takes no orders is stopping, or has too many: whoever waits for the answer asks again.
        let _ = handle.run(move |worker, now| worker.answer(answer, arrival, now));
    }
}
