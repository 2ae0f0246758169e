//! The tasks of a connection: one sends queued messages and closes, one monitors the paths.

use super::{Inner, State, locked};
use crate::event::Event;
use crate::queue::Next;
use crate::transport::{Link, Read, Writer};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How long to wait for the peer's last data when closing: with unread data the kernel would reset the connection before our data
/// has arrived.
const LINGER: Duration = Duration::from_secs(1);
/// Interval between checks of the paths.
const PATH_CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// Sends until the end, and closes.
pub(super) async fn write(inner: Arc<Inner>, mut writer: Writer) {
    // The closed state has precedence: an abort must not look like a regular end to the peer.
    let over = tokio::select! {
        biased;
        () = inner.closed() => true,
        done = send_all(&inner, &mut writer) => {
            done.is_err_and(|failure| {
                inner.end(Some(failure));
                true
            })
        }
    };
    if !over {
        tokio::select! {
            biased;
            () = inner.closed() => {}
            () = finish_sending(&inner, &mut writer) => inner.end(None),
        }
    }
    // No reader is left; a later one gets an error and releases the lock.
    inner.incoming.lock().await.take();
}

async fn send_all(inner: &Inner, writer: &mut Writer) -> Result<(), String> {
    loop {
        match inner.queue.next().await {
            Next::Expired(id) => inner.emit(Event::Expired(id)),
            Next::End => return Ok(()),
            Next::Send(waiting) => {
                let framed = locked(&inner.framers).frame(waiting.data);
                let data = match framed {
                    Ok(data) => data,
                    Err(error) => {
                        inner.emit(Event::SendError(waiting.id, error.to_string()));
                        continue;
                    }
                };
                writer.prioritise(inner.priority.load(Relaxed));
                let mut soft = |error: std::io::Error| inner.emit(Event::SoftError(error.to_string()));
                match writer.write(data, &mut soft).await {
                    Ok(()) => inner.emit(Event::Sent(waiting.id)),
                    Err(error) => {
                        inner.emit(Event::SendError(waiting.id, error.to_string()));
                        if !writer.loses_only(&error) {
                            return Err(error.to_string());
                        }
                    }
                }
            }
        }
    }
}

/// Ends our direction, then waits until the program closes.
async fn finish_sending(inner: &Inner, writer: &mut Writer) {
    if let Err(error) = writer.finish().await {
        inner.emit(Event::SoftError(error.to_string()));
    }
    // The program may continue to receive after its last message.
    let _ = inner.state.subscribe().wait_for(|s| *s != State::Established).await;
    if matches!(writer, Writer::Stream(_)) {
        let drain = async {
            let mut incoming = inner.incoming.lock().await;
            let Some(incoming) = incoming.as_mut() else { return };
            while let Ok(Read::Data(_) | Read::Soft(_)) = incoming.reader.read(usize::MAX).await {}
        };
        // A peer that does not end in time is not waited for.
        let _ = tokio::time::timeout(LINGER, drain).await;
    }
}

/// Reports added and lost paths while the connection exists.
pub(super) async fn watch_paths(inner: Weak<Inner>) {
    let mut before = None;
    loop {
        {
            let Some(inner) = inner.upgrade() else { return };
            if *inner.state.borrow() == State::Closed {
                return;
            }
            let remote = match locked(&inner.link).as_ref() {
                Some(Link::Quic(connection, _)) => Some((connection.remote_address(), connection.local_ip())),
                _ => None,
            };
            let now = (inner.paths(), remote);
            if before.is_some_and(|before| before != now) {
                inner.emit(Event::PathChange { paths: now.0 });
            }
            before = Some(now);
        }
        tokio::time::sleep(PATH_CHECK_INTERVAL).await;
    }
}
