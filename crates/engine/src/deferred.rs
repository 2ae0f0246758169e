//! Deferred work: tasks that would delay packets, such as a handshake, run on a thread next to each worker,
//! in otherwise idle time. If there is no such time, the worker runs them itself.
//!
//! ```text
//!   worker ── Job ──▶ bounded queue ──▶ thread (SCHED_IDLE): Work ── Answer, as a job ──▶ worker
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

/// Where a task runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExecutionContext {
    /// On the thread next to the worker: there is time for preparations of later tasks.
    DeferredThread,
    /// On the worker, which has other duties: only what is indispensable.
    Worker,
}

/// A long-running task, which needs no access to the worker.
pub type DeferredTask<E> = Box<dyn FnOnce(ExecutionContext) -> ApplyResult<E> + Send>;
/// Applies the result of a task, on the worker.
pub type ApplyResult<E> = Box<dyn FnOnce(&mut E, Instant, &mut Sockets) + Send>;

/// Maximum number of waiting jobs, about 0.1 s of work.
const MAX_JOBS: usize = 300;
/// Time without progress after which the thread counts as starved.
const STARVATION_TIME: Duration = Duration::from_millis(20);

/// The datagram that caused the work.
#[derive(Debug, Clone, Copy)]
pub struct Arrival {
    /// Access of its arrival.
    pub access: PathId,
    /// Source address.
    pub from: SocketAddr,
    /// Destination address, one of this host.
    pub local: Option<IpAddr>,
}

/// Work, and the datagram that caused it.
pub type Job<E> = (DeferredTask<E>, Arrival);

struct Shared<E> {
    jobs: ArrayQueue<Job<E>>,
    /// Number of jobs taken from the queue.
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

/// The worker's end of the queue; dropping it ends the thread.
pub struct WorkQueue<E> {
    shared: Arc<Shared<E>>,
    thread: Thread,
    submitted: u64,
    /// Number of jobs taken at the worker's last check that showed progress, and the time of that check.
    last_progress: (u64, Instant),
}

impl<E: TunnelEnd> WorkQueue<E> {
    /// Starts the thread next to the worker with this number.
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
        let queue = Self {
            shared,
            thread: thread.thread().clone(),
            submitted: 0,
            last_progress: (0, Instant::from_nanos(0)),
        };
        Ok((queue, thread))
    }

    /// Queues a job; false if the queue is full.
    pub fn give(&mut self, job: Job<E>, now: Instant) -> bool {
        if self.shared.jobs.push(job).is_err() {
            return false;
        }
        if self.submitted == self.shared.taken.load(Ordering::Relaxed) {
            self.last_progress = (self.submitted, now);
        }
        self.submitted += 1;
        self.thread.unpark();
        true
    }

    /// A job that has waited too long, which the worker must run.
    pub fn overdue(&mut self, now: Instant) -> Option<Job<E>> {
        if self.submitted == self.last_progress.0 {
            return None;
        }
        let taken = self.shared.taken.load(Ordering::Relaxed);
        if taken != self.last_progress.0 {
            self.last_progress = (taken, now);
            return None;
        }
        if now.saturating_since(self.last_progress.1) < STARVATION_TIME {
            return None;
        }
        let job = self.shared.take();
        self.last_progress.0 += u64::from(job.is_some());
        job
    }

    /// Time of the next check for such a job.
    pub fn next_look(&self) -> Option<Instant> {
        (self.submitted != self.last_progress.0).then(|| self.last_progress.1 + STARVATION_TIME)
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
        let answer = work(ExecutionContext::DeferredThread);
        // A worker that accepts no jobs is stopping or overloaded; the peer will repeat its request.
        let _ = handle.run(move |worker, now| worker.answer(answer, arrival, now));
    }
}
