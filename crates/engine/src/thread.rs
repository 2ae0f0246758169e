//! Common parts of the data-path threads of gNB and LWIP node: jobs from the control plane, a clock, a timer
//! with absolute deadlines, start and stop.
//!
//! ```text
//!   control plane ── Handle: a job, and a wake-up ──▶ thread: poll ─▶ read ─▶ work ─▶ jobs ─▶ Timer ─▶ poll
//!                 ◀── Running::failed, or its panic ──┘
//! ```

use super::clock::Clock;
use anabranch_element::time::{Duration, Instant};
use anyhow::Context;
use crossbeam_queue::ArrayQueue;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token, Waker};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId as TimerClock, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::JoinHandle;
use tokio::sync::{mpsc, oneshot};

/// Maximum number of waiting jobs.
pub const MAX_JOBS: usize = 256;

/// The code that runs on such a thread.
pub trait Worker: Send + Sized + 'static {
    /// Runs until stopped.
    ///
    /// # Errors
    /// An interface no longer exists, or the system reports an error.
    fn run(self) -> anyhow::Result<()>;

    /// Makes [`Worker::run`] return.
    fn stop(&mut self);
}

/// A function that a worker runs on its thread between packets.
pub type Job<W> = Box<dyn FnOnce(&mut W, Instant) + Send>;

struct Queue<W> {
    waiting: ArrayQueue<Job<W>>,
    /// The worker has ended, and takes no more jobs.
    closed: AtomicBool,
}

impl<W> Queue<W> {
    fn push(&self, job: Job<W>) -> Result<(), Unreachable> {
        self.waiting.push(job).map_err(|_| Unreachable)?;
        // Either this or the end of the worker happens later, and then clears the queue.
        if self.closed.load(SeqCst) {
            self.clear();
            return Err(Unreachable);
        }
        Ok(())
    }

    fn clear(&self) {
        while self.waiting.pop().is_some() {}
    }
}

/// The worker's end of the job queue. When it is dropped, waiting jobs are dropped, too, so that no requester
/// waits for ever.
pub struct Jobs<W>(Arc<Queue<W>>);

impl<W> Jobs<W> {
    /// Takes the next job.
    pub fn pop(&self) -> Option<Job<W>> {
        self.0.waiting.pop()
    }

    /// Whether no job is waiting.
    pub fn is_empty(&self) -> bool {
        self.0.waiting.is_empty()
    }

    /// Number of waiting jobs.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.0.waiting.len()
    }
}

impl<W> Drop for Jobs<W> {
    fn drop(&mut self) {
        self.0.closed.store(true, SeqCst);
        self.0.clear();
    }
}

/// The control plane's handle of a worker.
pub struct Handle<W> {
    jobs: Arc<Queue<W>>,
    waker: Arc<Waker>,
}

impl<W> Clone for Handle<W> {
    fn clone(&self) -> Self {
        Self { jobs: self.jobs.clone(), waker: self.waker.clone() }
    }
}

/// The worker has ended, or its queue is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the data path does not answer; it is overloaded or stopping")]
pub struct Unreachable;

impl<W: Worker> Handle<W> {
    /// A handle, and the queue of the worker that is woken by `waker`.
    pub fn new(waker: Arc<Waker>) -> (Self, Jobs<W>) {
        let jobs = Arc::new(Queue { waiting: ArrayQueue::new(MAX_JOBS), closed: AtomicBool::new(false) });
        (Self { jobs: jobs.clone(), waker }, Jobs(jobs))
    }

    /// Queues `job`, which the worker runs between two batches.
    pub fn run(&self, job: impl FnOnce(&mut W, Instant) + Send + 'static) -> Result<(), Unreachable> {
        self.jobs.push(Box::new(job))?;
        self.waker.wake().map_err(|_| Unreachable)
    }

    /// Runs `query` on the worker and returns its result.
    pub async fn query<T: Send + 'static>(
        &self,
        query: impl FnOnce(&mut W, Instant) -> T + Send + 'static,
    ) -> Result<T, Unreachable> {
        let (answer, answered) = oneshot::channel();
        self.run(move |worker, now| drop(answer.send(query(worker, now))))?;
        answered.await.map_err(|_| Unreachable)
    }

    /// The waker of the worker.
    pub fn waker(&self) -> Arc<Waker> {
        self.waker.clone()
    }

    /// Makes the worker return.
    pub fn stop(&self) -> Result<(), Unreachable> {
        self.run(|worker, _| worker.stop())
    }
}

const WAKER: Token = Token(0);
const TIMER: Token = Token(1);
const FIRST_SOURCE: usize = 2;

/// The event loop of a worker: file descriptors, jobs and a deadline.
pub struct EventLoop<W> {
    poll: Poll,
    events: Events,
    timer: Timer,
    jobs: Jobs<W>,
}

impl<W: Worker> EventLoop<W> {
    /// An event loop without descriptors, and the handle of its worker.
    pub fn new(clock: Clock) -> anyhow::Result<(Self, Handle<W>)> {
        let poll = Poll::new().context("epoll")?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER).context("eventfd")?);
        let timer = Timer::new(clock)?;
        register(&poll, timer.as_raw_fd(), TIMER)?;
        let (handle, jobs) = Handle::new(waker);
        Ok((Self { poll, events: Events::with_capacity(64), timer, jobs }, handle))
    }

    /// Adds a file descriptor with the index `number`.
    pub fn register(&self, fd: RawFd, number: usize) -> anyhow::Result<()> {
        register(&self.poll, fd, Token(FIRST_SOURCE + number))
    }

    /// Takes the next job.
    pub fn next_job(&self) -> Option<Job<W>> {
        self.jobs.pop()
    }

    /// Waits until `next`, a job, or a readable descriptor, which is marked in `ready`. If the worker is
    /// `busy`, only polls.
    pub fn wait(&mut self, busy: bool, next: Instant, ready: &mut [bool]) -> anyhow::Result<()> {
        let timeout = if busy || !self.jobs.is_empty() {
            Some(Duration::ZERO)
        } else {
            self.timer.arm(next)?;
            None
        };
        match self.poll.poll(&mut self.events, timeout) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error).context("epoll"),
        }
        for event in &self.events {
            if let Some(ready) = event.token().0.checked_sub(FIRST_SOURCE).and_then(|at| ready.get_mut(at)) {
                *ready = true;
            }
        }
        Ok(())
    }
}

fn register(poll: &Poll, fd: RawFd, token: Token) -> anyhow::Result<()> {
    poll.registry().register(&mut SourceFd(&fd), token, Interest::READABLE).context("epoll")
}

/// A timer with absolute deadlines, so that a late wake-up shifts nothing.
struct Timer {
    timer: TimerFd,
    clock: Clock,
    /// The time to which it is set.
    armed: Instant,
}

impl Timer {
    /// A timer that is not set.
    pub fn new(clock: Clock) -> anyhow::Result<Self> {
        let flags = TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC;
        let timer = TimerFd::new(TimerClock::CLOCK_MONOTONIC, flags).context("timerfd")?;
        Ok(Self { timer, clock, armed: Instant::MAX })
    }

    /// Sets the timer to `next`, if necessary.
    pub fn arm(&mut self, next: Instant) -> anyhow::Result<()> {
        if next != self.armed || next <= self.clock.now() {
            let at = Duration::from_nanos(self.clock.monotonic_at(next).max(1));
            let when = Expiration::OneShot(TimeSpec::from(at));
            self.timer.set(when, TimerSetTimeFlags::TFD_TIMER_ABSTIME).context("timerfd")?;
            self.armed = next;
        }
        Ok(())
    }
}

impl AsRawFd for Timer {
    fn as_raw_fd(&self) -> RawFd {
        self.timer.as_fd().as_raw_fd()
    }
}

/// A running data-path thread.
pub struct Running<W: Worker> {
    handle: Handle<W>,
    exit: mpsc::Receiver<anyhow::Result<()>>,
    thread: Option<JoinHandle<()>>,
}

impl<W: Worker> Running<W> {
    /// Starts the thread.
    pub fn start(name: &str, worker: W, handle: Handle<W>) -> anyhow::Result<Self> {
        let (exit, exited) = mpsc::channel(1);
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            // An error means that the program is stopping.
            .spawn(move || drop(exit.try_send(worker.run())))
            .context("starting the data-path thread")?;
        Ok(Self { handle, exit: exited, thread: Some(thread) })
    }

    /// Waits until the thread ends without having been stopped; returns the cause.
    pub async fn failed(&mut self) -> anyhow::Error {
        match self.exit.recv().await {
            Some(Err(error)) => error,
            Some(Ok(())) => anyhow::anyhow!("the data-path thread ended by itself"),
            None => anyhow::anyhow!("the data-path thread panicked"),
        }
    }

    /// Stops the thread and waits for its end.
    pub fn stop(mut self) -> anyhow::Result<()> {
        // A worker that has ended need not be stopped.
        let _ = self.handle.stop();
        match self.thread.take().map(JoinHandle::join) {
            Some(Err(_)) => anyhow::bail!("the data-path thread panicked"),
            _ => Ok(()),
        }
    }
}

/// Requests precise timers and real-time priority.
pub fn on_time() {
    if let Err(error) = nix::sys::prctl::set_timerslack(1) {
        tracing::debug!("timer slack stays at its default: {error}");
    }
    if let Err(error) = anabranch_kern::priority::real_time() {
        tracing::info!("no real-time priority, timers may be late: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nothing;

    impl Worker for Nothing {
        fn run(self) -> anyhow::Result<()> {
            Ok(())
        }

        fn stop(&mut self) {}
    }

    /// A control loop that waited for a worker that has ended would neither notice that nor stop.
    #[tokio::test]
    async fn requests_to_a_worker_that_has_ended_fail() {
        let poll = Poll::new().unwrap();
        let waker = Arc::new(Waker::new(poll.registry(), WAKER).unwrap());
        let (handle, jobs) = Handle::<Nothing>::new(waker);
        let soon = std::time::Duration::from_secs(10);
        let asked = tokio::spawn({
            let handle = handle.clone();
            async move { handle.query(|_, _| ()).await }
        });
        while jobs.is_empty() {
            tokio::task::yield_now().await;
        }
        // The worker ends with the request in its queue.
        drop(jobs);
        assert_eq!(tokio::time::timeout(soon, asked).await.expect("an answer").unwrap(), Err(Unreachable));
        let later = tokio::time::timeout(soon, handle.query(|_, _| ())).await;
        assert_eq!(later.expect("an answer"), Err(Unreachable));
        assert_eq!(handle.run(|_, _| ()), Err(Unreachable));
    }
}
