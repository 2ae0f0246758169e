//! The data-path threads of UE and UPF.

use super::deferred::WorkQueue;
use super::handover::Handover;
use super::thread::Worker as _;
use super::worker::{Handle, TunnelEnd, Worker};
use anyhow::{Context, bail};
use std::thread::JoinHandle;
use tokio::sync::mpsc;

/// Maximum length of a packet that can be handed over between workers: an inner packet of 9000 bytes in its
/// tunnel.
const MAX_HANDOVER_BYTES: usize = 9216;

/// The running workers.
pub struct WorkerPool<E: TunnelEnd> {
    handles: Vec<Handle<E>>,
    exits: mpsc::Receiver<anyhow::Result<()>>,
    threads: Vec<JoinHandle<()>>,
}

impl<E: TunnelEnd> WorkerPool<E> {
    /// Starts one thread per worker.
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
                        tracing::debug!("the worker keeps the default scheduling: {error}");
                    }
                    guard.result = Some(worker.run());
                })
                .context("starting a data-path thread")?;
            threads.push(thread);
        }
        Ok(Self { handles, exits, threads })
    }

    /// The handles of the workers, in order.
    pub fn handles(&self) -> &[Handle<E>] {
        &self.handles
    }

    /// Waits until a worker ends without having been stopped; returns the cause.
    pub async fn failed(&mut self) -> anyhow::Error {
        match self.exits.recv().await {
            Some(Err(error)) => error,
            Some(Ok(())) | None => anyhow::anyhow!("a data-path thread ended unexpectedly"),
        }
    }

    /// Stops all workers and waits for their end.
    pub fn stop(self) -> anyhow::Result<()> {
        for handle in &self.handles {
            // A worker that has ended need not be stopped.
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

/// Reports the end of a thread, including a panic.
struct ExitGuard {
    exit: mpsc::Sender<anyhow::Result<()>>,
    result: Option<anyhow::Result<()>>,
}

impl Drop for ExitGuard {
    fn drop(&mut self) {
        let result =
            self.result.take().unwrap_or_else(|| Err(anyhow::anyhow!("a data-path thread panicked")));
        // An error means that the program is stopping.
        let _ = self.exit.try_send(result);
    }
}
