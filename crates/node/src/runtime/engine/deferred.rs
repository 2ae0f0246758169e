//! Work that would make packets wait, such as a handshake: done by a thread of its own beside each worker, in time that nobody
//! else wants. Where there is none, the worker does it itself.
//!
//! ```text
//!   worker ── Job ──▶ bounded queue ──▶ thread (SCHED_IDLE): Work ── Answer, an order ──▶ worker
//!                          └── no progress for 20 ms ──▶ worker: Work, Answer
//! ```

use super::udp::Sockets;
use super::worker::{Handle, TunnelEnd};
use anabranch_atsss::PathId;
use anabranch_element::time::Instant;
use anyhow::Context;
use crossbeam_queue::ArrayQueue;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{JoinHandle, Thread};
use std::time::Duration;

/// Where work is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// On the thread beside the worker: there is time for all that can be done beforehand.
    Beside,
    /// On the worker, which has other things to do: what cannot be left out.
    Worker,
}

/// What takes long; it needs nothing of the worker.
pub type Work<E> = Box<dyn FnOnce(Place) -> Answer<E> + Send>;
/// What is done with its result, on the worker.
pub type Answer<E> = Box<dyn FnOnce(&mut E, Instant, &mut Sockets) + Send>;

/// Jobs that may wait: 0.1 s of them.
const MAX_JOBS: usize = 300;
/// Without progress for so long, others want all the time there is.
const PATIENCE: Duration = Duration::from_millis(20);

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
pub type Job<E> = (Work<E>, Arrival);

struct Shared<E> {
    jobs: ArrayQueue<Job<E>>,
    /// How many were taken from the queue.
    taken: AtomicU64,
    closed: AtomicBool,
}

impl<E> Shared<E> {
    fn take(&self) -> Option<Job<E>> {
        let job = self.jobs.pop()?;
        self.taken.fetch_add(1, Ordering::Relaxed);
        Some(job)
    }
}

/// The worker's end of the queue. The thread ends when this is dropped.
pub struct WorkQueue<E> {
    shared: Arc<Shared<E>>,
    thread: Thread,
    given: u64,
    /// How many were taken when the worker looked, and since when.
    seen: (u64, Instant),
}

impl<E: TunnelEnd> WorkQueue<E> {
    /// Starts the thread beside the worker with this number.
    pub fn start(worker: usize, handle: Handle<E>) -> anyhow::Result<(Self, JoinHandle<()>)> {
        let shared = Arc::new(Shared {
            jobs: ArrayQueue::new(MAX_JOBS),
            taken: AtomicU64::new(0),
            closed: AtomicBool::new(false),
        });
        let thread = std::thread::Builder::new()
            .name(format!("anb-deferred-{worker}"))
            .spawn({
                let shared = Arc::clone(&shared);
                move || run(&shared, &handle)
            })
            .context("starting the thread for deferred work")?;
        let queue =
            Self { shared, thread: thread.thread().clone(), given: 0, seen: (0, Instant::from_nanos(0)) };
        Ok((queue, thread))
    }

    /// Whether there was room for it.
    pub fn give(&mut self, job: Job<E>, now: Instant) -> bool {
        if self.shared.jobs.push(job).is_err() {
            return false;
        }
        if self.given == self.shared.taken.load(Ordering::Relaxed) {
            self.seen = (self.given, now);
        }
        self.given += 1;
        self.thread.unpark();
        true
    }

    /// A job that has waited too long, to be done by the worker.
    pub fn overdue(&mut self, now: Instant) -> Option<Job<E>> {
        if self.given == self.seen.0 {
            return None;
        }
        let taken = self.shared.taken.load(Ordering::Relaxed);
        if taken != self.seen.0 {
            self.seen = (taken, now);
            return None;
        }
        if now.saturating_since(self.seen.1) < PATIENCE {
            return None;
        }
        let job = self.shared.take();
        self.seen.0 += u64::from(job.is_some());
        job
    }

    /// When to look for such a job.
    pub fn next_look(&self) -> Option<Instant> {
        (self.given != self.seen.0).then(|| self.seen.1 + PATIENCE)
    }
}

impl<E> Drop for WorkQueue<E> {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

fn run<E: TunnelEnd>(shared: &Shared<E>, handle: &Handle<E>) {
    if let Err(error) = anabranch_kern::priority::idle() {
        tracing::debug!("deferred work has the priority of the workers: {error}");
    }
    while !shared.closed.load(Ordering::Acquire) {
        let Some((work, arrival)) = shared.take() else {
            std::thread::park();
            continue;
        };
        let answer = work(Place::Beside);
        // A worker that takes no orders is stopping, or has too many: whoever waits for the answer asks again.
        let _ = handle.run(move |worker, now| worker.answer(answer, arrival, now));
    }
}
