//! What waits to be sent by one connection: bounded, by priority, with lifetimes.

use crate::error::SendError;
use crate::message::MessageId;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::sync::Notify;

/// Most bytes that wait, apart from a single longer message.
const MOST_BYTES: usize = 1 << 20;
/// Most messages that wait.
const MOST_MESSAGES: usize = 1024;

/// A message that waits.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub id: MessageId,
    pub data: Bytes,
    /// After this it is not sent.
    pub expires: Option<Instant>,
}

/// What to do next.
#[derive(Debug)]
pub(crate) enum Next {
    /// Send it.
    Send(Waiting),
    /// It waited too long.
    Expired(MessageId),
    /// Nothing follows.
    End,
}

#[derive(Debug, Default)]
struct State {
    waiting: BTreeMap<(u32, u64), Waiting>,
    bytes: usize,
    last_id: u64,
    /// Nothing is taken any more; `final` says whether by a last message.
    closed: bool,
    by_last: bool,
}

/// The queue.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
    /// There is something to send, or the end.
    filled: Notify,
    /// There is room.
    room: Notify,
}

impl Queue {
    /// Puts a message in, when there is room. Messages of smaller `rank` go first, equal ones in the order given.
    pub async fn push(
        &self,
        data: Bytes,
        rank: u32,
        expires: Option<Instant>,
        last: bool,
    ) -> Result<MessageId, SendError> {
        loop {
            let mut room = std::pin::pin!(self.room.notified());
            // Whoever makes room after this is heard.
            room.as_mut().enable();
            {
                let mut state = self.state();
                if state.closed {
                    return Err(if state.by_last { SendError::AfterFinal } else { SendError::Closed });
                }
                let fits = state.waiting.is_empty() || state.bytes + data.len() <= MOST_BYTES;
                if fits && state.waiting.len() < MOST_MESSAGES {
                    state.last_id += 1;
                    let id = MessageId(state.last_id);
                    state.bytes += data.len();
                    let rank = if last { u32::MAX } else { rank.min(u32::MAX - 1) };
                    state.waiting.insert((rank, id.0), Waiting { id, data, expires });
                    if last {
                        (state.closed, state.by_last) = (true, true);
                        // Those who wait for room find it closed.
                        self.room.notify_waiters();
                    }
                    self.filled.notify_one();
                    return Ok(id);
                }
            }
            room.await;
        }
    }

    /// Names a message that was sent already.
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

    /// Takes nothing more; what waits is still sent.
    pub fn close(&self) {
        self.state().closed = true;
        self.filled.notify_one();
        self.room.notify_waiters();
    }

    /// Takes nothing more, and forgets what waits.
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

    /// Whether a message would be taken.
    pub fn is_open(&self) -> bool {
        !self.state().closed
    }

    /// What to do next, when there is something. One caller only.
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

    /// A panic in between leaves the maps whole.
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
    async fn what_waited_too_long_is_not_sent() {
        let queue = Queue::default();
        let soon = Instant::now() + Duration::from_millis(5);
        queue.push(Bytes::from("old"), 100, Some(soon), false).await.unwrap();
        push(&queue, "new", 100).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(next(&queue).await, "expired 1");
        assert_eq!(next(&queue).await, "new");
    }

    #[tokio::test]
    async fn a_full_queue_lets_the_sender_wait_and_closing_lets_it_go() {
        let queue = std::sync::Arc::new(Queue::default());
        // Longer than the bound, but alone.
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
