//! Framers: messages over byte streams (RFC 9622 §9.1.2).
//!
//! ```text
//!  send ──▶ last added ─▶ … ─▶ first added ─▶ transport
//!  receive ◀─ last added ◀─ … ◀─ first added ◀─ transport
//! ```
//!
//! "The last one added runs first when framing outbound Messages, and last when parsing inbound data." Over UDP, every datagram is
//! parsed separately.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use std::fmt;

/// Converts messages to bytes and back. One instance handles both directions of one connection.
pub trait Framer: Send + Sync + fmt::Debug {
    /// Name for error messages.
    fn name(&self) -> &'static str;

    /// A new instance in its initial state, for another connection.
    fn fresh(&self) -> Box<dyn Framer>;

    /// Maximum message length in both directions, in bytes.
    fn most(&self) -> usize;

    /// Appends the framed form of `message` to `out`.
    ///
    /// # Errors
    /// The message cannot be framed; nothing of it is sent.
    fn frame(&mut self, message: &[u8], out: &mut BytesMut) -> Result<(), FramerError>;

    /// Removes the next complete message from the front of `input`, or returns `None` until more data has arrived. Called repeatedly
    /// until `None`. Implementations must bound the data they wait for: they fail rather than wait for more than [`Framer::most`].
    ///
    /// # Errors
    /// `input` cannot be the beginning of a message; the connection is aborted.
    fn deframe(&mut self, input: &mut BytesMut) -> Result<Option<Bytes>, FramerError>;
}

/// Why data cannot be framed, or is not a valid frame.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("framer {framer}: {reason}")]
pub struct FramerError {
    /// The framer's name.
    pub framer: &'static str,
    /// The fault.
    pub reason: String,
}

/// A length of four bytes, most significant first, before every message.
#[derive(Debug, Clone)]
pub struct LengthPrefix {
    most: u32,
}

impl LengthPrefix {
    const HEADER: usize = 4;

    /// Messages of at most `most` bytes.
    #[must_use]
    pub const fn new(most: u32) -> Self {
        Self { most }
    }

    fn too_long(&self, bytes: usize) -> FramerError {
        let reason = format!("a message of {bytes} bytes; at most {}", self.most);
        FramerError { framer: self.name(), reason }
    }
}

impl Default for LengthPrefix {
    /// Messages of at most 1 MiB.
    fn default() -> Self {
        Self::new(1 << 20)
    }
}

impl Framer for LengthPrefix {
    fn name(&self) -> &'static str {
        "length-prefix"
    }

    fn fresh(&self) -> Box<dyn Framer> {
        Box::new(self.clone())
    }

    fn most(&self) -> usize {
        self.most as usize
    }

    fn frame(&mut self, message: &[u8], out: &mut BytesMut) -> Result<(), FramerError> {
        let length = u32::try_from(message.len()).ok().filter(|l| *l <= self.most);
        out.reserve(Self::HEADER + message.len());
        out.put_u32(length.ok_or_else(|| self.too_long(message.len()))?);
        out.put_slice(message);
        Ok(())
    }

    fn deframe(&mut self, input: &mut BytesMut) -> Result<Option<Bytes>, FramerError> {
        let Some(header) = input.first_chunk::<{ Self::HEADER }>() else { return Ok(None) };
        let length = u32::from_be_bytes(*header);
        if length > self.most {
            return Err(self.too_long(length as usize));
        }
        let whole = Self::HEADER + length as usize;
        if input.len() < whole {
            input.reserve(whole - input.len());
            return Ok(None);
        }
        input.advance(Self::HEADER);
        Ok(Some(input.split_to(length as usize).freeze()))
    }
}

/// The framers of a connection, first added first, each with its pending input.
#[derive(Debug, Default)]
pub(crate) struct Stack {
    levels: Vec<(Box<dyn Framer>, BytesMut)>,
}

impl Clone for Stack {
    /// The same framers in their initial state.
    fn clone(&self) -> Self {
        Self { levels: self.levels.iter().map(|(f, _)| (f.fresh(), BytesMut::new())).collect() }
    }
}

impl Stack {
    pub fn add(&mut self, framer: Box<dyn Framer>) {
        self.levels.push((framer, BytesMut::new()));
    }

    pub fn is_empty(&self) -> bool {
        self.levels.is_empty()
    }

    /// The maximum length of messages in both directions.
    pub fn most(&self) -> Option<usize> {
        self.levels.iter().map(|(f, _)| f.most()).min()
    }

    /// The framed form of a message.
    pub fn frame(&mut self, message: Bytes) -> Result<Bytes, FramerError> {
        let mut data = message;
        for (framer, _) in self.levels.iter_mut().rev() {
            let mut out = BytesMut::new();
            framer.frame(&data, &mut out)?;
            data = out.freeze();
        }
        Ok(data)
    }

    /// Buffer for data from the transport; `None` without framers.
    pub fn input(&mut self) -> Option<&mut BytesMut> {
        self.levels.first_mut().map(|(_, input)| input)
    }

    /// The next complete message, if any.
    pub fn deframe(&mut self) -> Result<Option<Bytes>, FramerError> {
        let Some(mut level) = self.levels.len().checked_sub(1) else { return Ok(None) };
        loop {
            let (framer, input) = &mut self.levels[level];
            match framer.deframe(input)? {
                Some(message) if level + 1 == self.levels.len() => return Ok(Some(message)),
                Some(message) => {
                    level += 1;
                    self.levels[level].1.extend_from_slice(&message);
                }
                // No complete message at this level: get more from the one below.
                None if level == 0 => return Ok(None),
                None => level -= 1,
            }
        }
    }

    /// Number of received bytes that do not yet form a complete message.
    pub fn waiting(&self) -> usize {
        self.levels.iter().map(|(_, input)| input.len()).sum()
    }

    /// Discards these bytes.
    pub fn forget(&mut self) {
        self.levels.iter_mut().for_each(|(_, input)| input.clear());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Inverts every byte; all available data is one message.
    #[derive(Debug)]
    struct Invert;

    impl Framer for Invert {
        fn name(&self) -> &'static str {
            "invert"
        }
        fn fresh(&self) -> Box<dyn Framer> {
            Box::new(Self)
        }
        fn most(&self) -> usize {
            100
        }
        fn frame(&mut self, message: &[u8], out: &mut BytesMut) -> Result<(), FramerError> {
            out.extend(message.iter().map(|b| !b));
            Ok(())
        }
        fn deframe(&mut self, input: &mut BytesMut) -> Result<Option<Bytes>, FramerError> {
            let all = input.split();
            Ok((!all.is_empty()).then(|| all.iter().map(|b| !b).collect()))
        }
    }

    fn all(stack: &mut Stack) -> Vec<Bytes> {
        std::iter::from_fn(|| stack.deframe().unwrap()).collect()
    }

    #[test]
    fn messages_are_reassembled_from_any_segmentation() {
        let messages = ["", "a", "four", &"x".repeat(1000)];
        let mut stack = Stack::default();
        stack.add(Box::new(LengthPrefix::default()));
        let mut wire = BytesMut::new();
        for m in messages {
            wire.extend_from_slice(&stack.frame(Bytes::from(m.to_owned())).unwrap());
        }
        for cut in [1, 3, 4, 5, 700, wire.len()] {
            let mut received = Vec::new();
            for part in wire.chunks(cut) {
                stack.input().unwrap().extend_from_slice(part);
                received.extend(all(&mut stack));
            }
            assert_eq!(received, messages, "{cut}");
            assert_eq!(stack.waiting(), 0);
        }
    }

    proptest! {
        #[test]
        fn any_messages_cut_anywhere_come_back(
            messages in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..300), 0..20),
            cuts in proptest::collection::vec(1usize..100, 1..50),
        ) {
            let mut stack = Stack::default();
            // Twice, so that messages of one level are split by the one below.
            stack.add(Box::new(LengthPrefix::default()));
            stack.add(Box::new(LengthPrefix::default()));
            let mut wire = BytesMut::new();
            for m in &messages {
                wire.extend_from_slice(&stack.frame(Bytes::copy_from_slice(m)).unwrap());
            }
            let mut received = Vec::new();
            for cut in cuts.iter().cycle() {
                if wire.is_empty() {
                    break;
                }
                let part = wire.split_to((*cut).min(wire.len()));
                stack.input().unwrap().extend_from_slice(&part);
                received.extend(all(&mut stack));
            }
            prop_assert_eq!(received, messages);
            prop_assert_eq!(stack.waiting(), 0);
        }

        #[test]
        fn any_bytes_are_messages_or_an_error_and_never_more_than_there_are(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
            most in 0u32..100,
        ) {
            let mut stack = Stack::default();
            stack.add(Box::new(LengthPrefix::new(most)));
            stack.input().unwrap().extend_from_slice(&bytes);
            let mut sum = 0;
            while let Ok(Some(message)) = stack.deframe() {
                prop_assert!(message.len() <= most as usize);
                sum += message.len() + 4;
            }
            prop_assert_eq!(sum + stack.waiting(), bytes.len());
        }
    }

    #[test]
    fn messages_that_are_too_long_are_refused_before_they_are_buffered() {
        let mut stack = Stack::default();
        stack.add(Box::new(LengthPrefix::new(3)));
        assert!(stack.frame(Bytes::from("four")).unwrap_err().to_string().contains("at most 3"));
        stack.input().unwrap().extend_from_slice(&[0, 0, 0, 4]);
        assert!(stack.deframe().is_err());
        assert_eq!(stack.most(), Some(3));
    }

    #[test]
    fn the_last_one_added_runs_first_when_sending_and_last_when_receiving() {
        let mut stack = Stack::default();
        stack.add(Box::new(LengthPrefix::default()));
        stack.add(Box::new(Invert));
        let wire = stack.frame(Bytes::from("ab")).unwrap();
        assert_eq!(wire, [0, 0, 0, 2, !b'a', !b'b'][..], "inverted, then a plain length");
        let mut fresh = stack.clone();
        fresh.input().unwrap().extend_from_slice(&wire);
        fresh.input().unwrap().extend_from_slice(&wire[..5]);
        assert_eq!(all(&mut fresh), ["ab"]);
        assert_eq!(fresh.waiting(), 5);
        fresh.forget();
        assert_eq!(fresh.waiting(), 0);
    }
}
