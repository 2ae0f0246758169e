//! Send queue of a connection: bounded, ordered by priority, with lifetimes.

use crate::error::SendError;
use crate::message::MessageId;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::sync::Notify;

/// Maximum number of queued bytes, except for a single longer message.
const MOST_BYTES: usize = 1 << 20;
/// Maximum number of queued messages.
const MAX_MESSAGES: usize = 1024;

/// A queued message.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub id: MessageId,
    pub data: Bytes,
    /// Time after which it is not sent.
    pub expires: Option<Instant>,
}

/// The next action.
#[derive(Debug)]
pub(crate) enum Next {
    /// Send the message.
    Send(Waiting),
    /// The lifetime of the message was exceeded.
    Expired(MessageId),
    /// No further messages.
    End,
}

#[derive(Debug, Default)]
struct State {
    waiting: BTreeMap<(u32, u64), Waiting>,
    bytes: usize,
    last_id: u64,
    /// No further messages are accepted; `final` tells whether because of a last message.
    closed: bool,
    by_last: bool,
}

/// The send queue.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
    /// Notified when there is a message, or the end.
    filled: Notify,
    /// Notified when there is room.
    room: Notify,
}

impl Queue {
    /// Appends a message when there is room. Smaller `rank` goes first; equal ranks keep their order.
    pub async fn push(
        &self,
        data: Bytes,
        rank: u32,
        expires: Option<Instant>,
        last: bool,
    ) -> Result<MessageId, SendError> {
        loop {
            let mut room = std::pin::pin!(self.room.notified());
            // Register first, so that no notification is missed.
            room.as_mut().enable();
            {
                let mut state = self.state();
                if state.closed {
                    return Err(if state.by_last { SendError::AfterFinal } else { SendError::Closed });
                }
                let fits = state.waiting.is_empty() || state.bytes + data.len() <= MOST_BYTES;
                if fits && state.waiting.len() < MAX_MESSAGES {
                    state.last_id += 1;
                    let id = MessageId(state.last_id);
                    state.bytes += data.len();
                    let rank = if last { u32::MAX } else { rank.min(u32::MAX - 1) };
                    state.waiting.insert((rank, id.0), Waiting { id, data, expires });
                    if last {
                        (state.closed, state.by_last) = (true, true);
                        // Wakes the callers waiting for room, which then find the queue closed.
                        self.room.notify_waiters();
                    }
                    self.filled.notify_one();
                    return Ok(id);
                }
            }
            room.await;
        }
    }

    /// Assigns an identifier to a message that was sent already.
    pub fn skip(&self, last: bool) -> MessageId {
        let id = {
            let mut state = self.state();
            state.last_id += 1;
            if last {
                (state.closed, state.by_last) = (true, true);
            }
            MessageId(state.last_id)
        };
        self.filled.notify_one();
        id
    }

    /// Accepts no further messages; queued ones are still sent.
    pub fn close(&self) {
        self.state().closed = true;
        self.filled.notify_one();
        self.room.notify_waiters();
    }

    /// Accepts no further messages, and discards queued ones.
    pub fn abort(&self) {
        {
            let mut state = self.state();
            state.closed = true;
            state.bytes = 0;
            state.waiting.clear();
        }
        self.filled.notify_one();
        self.room.notify_waiters();
    }

    /// Whether messages are accepted.
    pub fn is_open(&self) -> bool {
        !self.state().closed
    }

    /// The next action, when there is one. Only one caller at a time.
    pub async fn next(&self) -> Next {
        loop {
            {
                let mut state = self.state();
                if let Some((_, waiting)) = state.waiting.pop_first() {
                    state.bytes -= waiting.data.len();
                    drop(state);
                    self.room.notify_waiters();
                    let late = waiting.expires.is_some_and(|expires| Instant::now() >= expires);
                    return if late { Next::Expired(waiting.id) } else { Next::Send(waiting) };
                }
                if state.closed {
                    return Next::End;
                }
            }
            self.filled.notified().await;
        }
    }

    /// A panic while the lock is held leaves the data consistent.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    async fn push(queue: &Queue, text: &'static str, rank: u32) -> u64 {
        queue.push(Bytes::from(text), rank, None, false).await.unwrap().0
    }

    async fn next(queue: &Queue) -> String {
        match queue.next().await {
            Next::Send(w) => String::from_utf8(w.data.to_vec()).unwrap(),
            Next::Expired(id) => format!("expired {}", id.0),
            Next::End => "end".into(),
        }
    }

    #[tokio::test]
    async fn smaller_ranks_go_first_and_equal_ones_in_order() {
        let queue = Queue::default();
        for (text, rank) in [("a", 100), ("b", 5), ("c", 100), ("d", 5)] {
            push(&queue, text, rank).await;
        }
        let last = queue.push(Bytes::from("z"), 0, None, true).await.unwrap();
        assert_eq!(last, MessageId(5));
        assert_eq!(queue.push(Bytes::new(), 0, None, false).await, Err(SendError::AfterFinal));
        for expected in ["b", "d", "a", "c", "z", "end", "end"] {
            assert_eq!(next(&queue).await, expected);
        }
    }

    #[tokio::test]
    async fn expired_messages_are_not_sent() {
        let queue = Queue::default();
        let soon = Instant::now() + Duration::from_millis(5);
        queue.push(Bytes::from("old"), 100, Some(soon), false).await.unwrap();
        push(&queue, "new", 100).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(next(&queue).await, "expired 1");
        assert_eq!(next(&queue).await, "new");
    }

    #[tokio::test]
    async fn a_full_queue_blocks_the_sender_until_room_or_close() {
        let queue = std::sync::Arc::new(Queue::default());
        // Exceeds the bound, but is alone.
        queue.push(Bytes::from(vec![0; MOST_BYTES + 1]), 100, None, false).await.unwrap();
        let (q, r) = (queue.clone(), queue.clone());
        let waits = tokio::spawn(async move { q.push(Bytes::from("x"), 100, None, false).await });
        tokio::task::yield_now().await;
        assert!(!waits.is_finished());
        assert!(matches!(r.next().await, Next::Send(_)));
        assert_eq!(waits.await.unwrap(), Ok(MessageId(2)));
        let big = Bytes::from(vec![0; MOST_BYTES]);
        let q = queue.clone();
        let waits = tokio::spawn(async move { q.push(big, 100, None, false).await });
        tokio::task::yield_now().await;
        queue.abort();
        assert_eq!(waits.await.unwrap(), Err(SendError::Closed));
        assert_eq!(next(&queue).await, "end");
    }
}
