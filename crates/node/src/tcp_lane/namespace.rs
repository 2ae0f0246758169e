//! A network namespace for the lane: its subflows, path manager and TCP settings are separate from those of
//! the host, and disappear with the program.

use anyhow::Context;
use nix::sched::{CloneFlags, unshare};
use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::mpsc;
use tokio::sync::oneshot;

type Job = Box<dyn FnOnce() + Send>;

/// A namespace, with a thread inside that creates sockets and devices. Both end when this is dropped.
pub struct Namespace {
    jobs: mpsc::Sender<Job>,
    file: File,
}

impl Namespace {
    /// Creates an empty namespace.
    ///
    /// # Errors
    /// CAP_SYS_ADMIN is missing.
    pub fn new() -> anyhow::Result<Self> {
        let (jobs, taken) = mpsc::channel::<Job>();
        let (made, is_made) = mpsc::sync_channel(1);
        let inside = move || {
            let file = unshare(CloneFlags::CLONE_NEWNET)
                .map_err(std::io::Error::from)
                .and_then(|()| File::open("/proc/thread-self/ns/net"));
            let ok = file.is_ok();
            // The receiver is still waiting.
            let _ = made.send(file);
            while ok && let Ok(job) = taken.recv() {
                job();
            }
        };
        std::thread::Builder::new()
            .name("anb-lane-ns".to_owned())
            .spawn(inside)
            .context("starting a thread")?;
        let file = is_made.recv().context("the thread of a namespace has ended")?;
        let file = file.context(
            "a network namespace of the TCP lane's own: run as root, or give the program CAP_SYS_ADMIN",
        )?;
        Ok(Self { jobs, file })
    }

    /// Runs `job` inside and returns its result. The job must not block for long, because other jobs wait for
    /// it.
    pub async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
    ) -> anyhow::Result<T> {
        let (answer, answered) = oneshot::channel();
        let job = Box::new(move || drop(answer.send(job())));
        self.jobs.send(job).ok().context("the thread of the TCP lane's namespace has ended")?;
        answered.await.context("the thread of the TCP lane's namespace has ended")?
    }

    /// File descriptor of the namespace.
    pub fn fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}
