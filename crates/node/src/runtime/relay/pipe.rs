//! Pipes through which data passes from one socket to another without being copied (splice(2)).
//!
//! A flow has a pipe only while it contains data, so idle flows have none. Each thread keeps some empty
//! pipes.

use nix::sys::socket::{MsgFlags, recv};
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// Capacity of a pipe, bytes: several batches of a busy connection.
pub const BYTES: usize = 256 << 10;
/// Maximum number of empty pipes that a thread keeps.
pub const KEPT: usize = 64;
/// Size of a copy around an urgent byte; it fits into every pipe.
const URGENT_COPY_BYTES: usize = 4096;

thread_local! {
    static EMPTY: RefCell<Vec<Pipe>> = const { RefCell::new(Vec::new()) };
}

/// A pipe of the kernel, and the number of bytes in it.
pub struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
    held: usize,
}

impl Pipe {
    /// Takes an empty pipe, or creates one.
    ///
    /// # Errors
    /// There are no file descriptors left.
    pub fn take() -> io::Result<Self> {
        if let Some(pipe) = EMPTY.with_borrow_mut(Vec::pop) {
            return Ok(pipe);
        }
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        // The kernel may limit the pipes of a user to a smaller capacity, which is only slower.
        let _ = fcntl_setpipe_size(&write, BYTES);
        Ok(Self { read, write, held: 0 })
    }

    /// Returns the pipe for reuse, if it is empty.
    pub fn recycle(self) {
        if self.held == 0 {
            EMPTY.with_borrow_mut(|kept| {
                if kept.len() < KEPT {
                    kept.push(self);
                }
            });
        }
    }

    /// Number of bytes in the pipe.
    pub const fn buffered(&self) -> usize {
        self.held
    }

    /// Moves at most `most` bytes from a socket into the pipe, which must be empty. 0: the peer has sent its FIN.
    ///
    /// # Errors
    /// `WouldBlock`: there is no data; otherwise the error of the socket.
    pub fn fill(&mut self, from: impl AsFd, most: usize) -> io::Result<usize> {
        let flags = SpliceFlags::NONBLOCK | SpliceFlags::MOVE;
        let taken = match splice(&from, None, &self.write, None, most, flags).map_err(io::Error::from) {
            // splice(2) returns 0, as at the end, also immediately before an urgent byte.
            Ok(0) => self.copy(&from).or_else(|error| match error.kind() {
                io::ErrorKind::WouldBlock => Ok(0),
                _ => Err(error),
            })?,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.copy(&from)?,
            other => other?,
        };
        self.held += taken;
        Ok(taken)
    }

    /// The same through a buffer, past an urgent byte, which with `SO_OOBINLINE` is ordinary data.
    fn copy(&self, from: impl AsFd) -> io::Result<usize> {
        let mut buffer = [0; URGENT_COPY_BYTES];
        let taken = recv(from.as_fd().as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT)?;
        if taken > 0 && rustix::io::write(&self.write, &buffer[..taken])? != taken {
            return Err(io::ErrorKind::WriteZero.into());
        }
        Ok(taken)
    }

    /// Moves data from the pipe to a socket.
    ///
    /// # Errors
    /// `WouldBlock`: the socket is full; otherwise the error of the socket.
    pub fn drain(&mut self, to: impl AsFd) -> io::Result<usize> {
        let given = splice(&self.read, None, to, None, self.held, SpliceFlags::NONBLOCK | SpliceFlags::MOVE)?;
        self.held -= given.min(self.held);
        Ok(given)
    }
}
