//! The data-path threads of a program.

use super::engine::deferred::WorkQueue;
use super::engine::handover::Handover;
use super::engine::worker::{Handle, TunnelEnd, Worker};
use super::thread::Worker as _;
use anyhow::{Context, bail};
use std::thread::JoinHandle;
use tokio::sync::mpsc;

/// Largest packet that can be handed from worker to worker: an inner packet of 9000 bytes in its tunnel.
const MAX_HANDOVER_BYTES: usize = 9216;

/// Running workers.
pub struct WorkerPool<E: TunnelEnd> {
    handles: Vec<Handle<E>>,
    exits: mpsc::Receiver<anyhow::Result<()>>,
    threads: Vec<JoinHandle<()>>,
}

impl<E: TunnelEnd> WorkerPool<E> {
    /// Starts a thread per worker.
    pub fn start(workers: Vec<(Worker<E>, Handle<E>)>) -> anyhow::Result<Self> {
        let (mut workers, handles): (Vec<_>, Vec<_>) = workers.into_iter().unzip();
        if workers.len() > 1 {
            let wakers = handles.iter().map(Handle::waker).collect();
            for (worker, handover) in workers.iter_mut().zip(Handover::mesh(wakers, MAX_HANDOVER_BYTES)) {
                worker.join(handover);
            }
        }
        let (exit, exits) = mpsc::channel(workers.len().max(1));
        let mut threads = Vec::with_capacity(workers.len());
        for (i, mut worker) in workers.into_iter().enumerate() {
            if E::DEFERS {
                let (queue, thread) = WorkQueue::start(i, handles[i].clone())?;
                worker.defer(queue);
                threads.push(thread);
            }
            let guard = ExitGuard { exit: exit.clone(), result: None };
            let thread = std::thread::Builder::new()
                .name(format!("anb-worker-{i}"))
                .spawn(move || {
                    let mut guard = guard;
                    if let Err(error) = anabranch_kern::priority::short_slice() {
                        tracing::debug!("the worker has a slice like everybody: {error}");
                    }
                    guard.result = Some(worker.run());
                })
                .context("starting a data-path thread")?;
            threads.push(thread);
        }
        Ok(Self { handles, exits, threads })
    }

    /// How to reach the workers, in order.
    pub fn handles(&self) -> &[Handle<E>] {
        &self.handles
    }

    /// Waits until a worker ends although nobody asked it to.
    pub async fn failed(&mut self) -> anyhow::Error {
        match self.exits.recv().await {
            Some(Err(error)) => error,
            Some(Ok(())) | None => anyhow::anyhow!("a data-path thread ended by itself"),
        }
    }

    /// Stops every worker and waits for it.
    pub fn stop(self) -> anyhow::Result<()> {
        for handle in &self.handles {
            // One that is gone has nothing to stop.
            let _ = handle.stop();
        }
        for thread in self.threads {
            if thread.join().is_err() {
                bail!("a data-path thread panicked");
            }
        }
        Ok(())
    }
}

/// Reports the end of a thread, however it comes.
struct ExitGuard {
    exit: mpsc::Sender<anyhow::Result<()>>,
    result: Option<anyhow::Result<()>>,
}

impl Drop for ExitGuard {
    fn drop(&mut self) {
        let result =
            self.result.take().unwrap_or_else(|| Err(anyhow::anyhow!("a data-path thread panicked")));
        // Nobody listens any more: the program is stopping.
        let _ = self.exit.try_send(result);
    }
}
