//! The tasks of a connection: one sends what waits and closes, one looks after paths.

use super::{Inner, State, locked};
use crate::event::Event;
use crate::queue::Next;
use crate::transport::{Link, Read, Writer};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How long the peer's last words are waited for when we close: unread data would make the kernel break the connection
/// before ours has arrived.
const LINGER: Duration = Duration::from_secs(1);
/// Between two looks at the paths.
const WATCH: Duration = Duration::from_millis(250);

/// Sends until the end, and closes.
pub(super) async fn write(inner: Arc<Inner>, mut writer: Writer) {
    // Closed counts first: an abort must not look like an end to the peer.
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
            () = farewell(&inner, &mut writer) => inner.end(None),
        }
    }
    // Nobody reads any more; whoever does now is told so, and lets go.
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

/// No more follows from us; then, once the program closes, the end.
async fn farewell(inner: &Inner, writer: &mut Writer) {
    if let Err(error) = writer.finish().await {
        inner.emit(Event::SoftError(error.to_string()));
    }
    // The program may go on receiving after its last message.
    let _ = inner.state.subscribe().wait_for(|s| *s != State::Established).await;
    if matches!(writer, Writer::Stream(_)) {
        let drain = async {
            let mut incoming = inner.incoming.lock().await;
            let Some(incoming) = incoming.as_mut() else { return };
            while let Ok(Read::Data(_) | Read::Soft(_)) = incoming.reader.read(usize::MAX).await {}
        };
        // Whoever does not end in time is left.
        let _ = tokio::time::timeout(LINGER, drain).await;
    }
}

/// Tells of paths that come and go, as long as the connection is there.
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
        tokio::time::sleep(WATCH).await;
    }
}
