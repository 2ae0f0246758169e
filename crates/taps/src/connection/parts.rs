//! Assembles received data into messages.

use super::{Inner, locked};
use crate::error::ReceiveError;
use crate::event::Event;
use crate::transport::{Read, Reader};
use anabranch_selection::Protocol;
use bytes::{Bytes, BytesMut};

/// The receiver of a connection.
pub(super) struct Incoming {
    pub reader: Reader,
    /// For a stream without framers: data received while more was requested.
    held: BytesMut,
    ended: bool,
    told: bool,
}

/// A message or a part of one.
pub(super) struct Part {
    pub data: Bytes,
    pub end_of_message: bool,
    pub last: bool,
    pub early: bool,
}

impl Incoming {
    pub fn new(reader: Reader) -> Self {
        Self { reader, held: BytesMut::new(), ended: false, told: false }
    }

    /// The next message or part. Received data is kept here if the future is dropped before completion.
    pub async fn receive(
        &mut self,
        inner: &Inner,
        least: usize,
        most: usize,
    ) -> Result<Option<Part>, ReceiveError> {
        let framed = !locked(&inner.framers).is_empty();
        let datagrams = inner.protocol == Protocol::Udp;
        let early = self.reader.is_early();
        let whole = |data: Bytes| Some(Part { data, end_of_message: true, last: false, early });
        loop {
            if framed {
                let mut framers = locked(&inner.framers);
                if let Some(data) = framers.deframe()? {
                    return Ok(whole(data));
                }
                let waiting = framers.waiting();
                if datagrams && waiting > 0 {
                    framers.forget();
                    inner.emit(Event::SoftError(format!("a datagram with {waiting} bytes of no message")));
                }
                if self.ended {
                    framers.forget();
                    return if waiting > 0 && !datagrams {
                        Err(ReceiveError::Incomplete(waiting))
                    } else {
                        Ok(None)
                    };
                }
            } else if !datagrams {
                let enough = !self.held.is_empty() && self.held.len() >= least.min(most.max(1));
                if enough || (self.ended && !self.held.is_empty()) {
                    let data = self.held.split_to(self.held.len().min(most.max(1))).freeze();
                    return Ok(Some(Part { data, end_of_message: false, last: false, early }));
                }
                if self.ended {
                    // The whole stream is one message, which ends here.
                    let end = Part { data: Bytes::new(), end_of_message: true, last: true, early };
                    return Ok((!std::mem::replace(&mut self.told, true)).then_some(end));
                }
            } else if self.ended {
                return Ok(None);
            }
            // With nothing buffered, data is passed on as it arrives.
            let room = if framed { usize::MAX } else { most.saturating_sub(self.held.len()).max(1) };
            match self.reader.read(room).await? {
                Read::End => self.ended = true,
                Read::Soft(error) => inner.emit(Event::SoftError(error.to_string())),
                Read::Data(data) if framed => {
                    if let Some(input) = locked(&inner.framers).input() {
                        input.extend_from_slice(&data);
                    }
                }
                Read::Data(data) if datagrams => return Ok(whole(data)),
                Read::Data(data) if self.held.is_empty() && data.len() >= least => {
                    return Ok(Some(Part { data, end_of_message: false, last: false, early }));
                }
                Read::Data(data) => self.held.extend_from_slice(&data),
            }
        }
    }
}
