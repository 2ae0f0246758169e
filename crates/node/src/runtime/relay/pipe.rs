//! Pipes that data passes through from one socket to the other without being copied (splice(2)).
//!
//! A flow has a pipe only while there is something in it: idle flows have none. Each thread keeps a few for the next one.

use nix::sys::socket::{MsgFlags, recv};
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// Room of a pipe, in bytes: several batches of what the network brings at once.
const BYTES: usize = 256 << 10;
/// Pipes a thread keeps.
pub const KEPT: usize = 64;
/// What is copied around an urgent byte: any pipe has room for it.
const AROUND_BYTES: usize = 4096;

thread_local! {
    static EMPTY: RefCell<Vec<Pipe>> = const { RefCell::new(Vec::new()) };
}

/// A pipe.
pub struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
    held: usize,
}

impl Pipe {
    /// An empty one.
    ///
    /// # Errors
    /// There are no descriptors left.
    pub fn take() -> io::Result<Self> {
        if let Some(pipe) = EMPTY.with_borrow_mut(Vec::pop) {
            return Ok(pipe);
        }
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        // Where a user has many the kernel keeps to less: slower, and as right.
        let _ = fcntl_setpipe_size(&write, BYTES);
        Ok(Self { read, write, held: 0 })
    }

    /// Gives it back for the next one, if it is empty.
    pub fn give(self) {
        if self.held == 0 {
            EMPTY.with_borrow_mut(|kept| {
                if kept.len() < KEPT {
                    kept.push(self);
                }
            });
        }
    }

    /// How many bytes are in it.
    pub const fn held(&self) -> usize {
        self.held
    }

    /// Takes what a socket has, as far as there is room; it must be empty. 0: the far end has sent all.
    ///
    /// # Errors
    /// `WouldBlock`: there is nothing; else what the socket says.
    pub fn fill(&mut self, from: impl AsFd) -> io::Result<usize> {
        let flags = SpliceFlags::NONBLOCK | SpliceFlags::MOVE;
        let taken = match splice(&from, None, &self.write, None, BYTES, flags).map_err(io::Error::from) {
            // As if there were nothing, or no more, right before an urgent byte.
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

    /// The same by way of a buffer, past an urgent byte: with `SO_OOBINLINE` that is one like any other.
    fn copy(&self, from: impl AsFd) -> io::Result<usize> {
        let mut buffer = [0; AROUND_BYTES];
        let taken = recv(from.as_fd().as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT)?;
        if taken > 0 && rustix::io::write(&self.write, &buffer[..taken])? != taken {
            return Err(io::ErrorKind::WriteZero.into());
        }
        Ok(taken)
    }

    /// Gives a socket what it takes.
    ///
    /// # Errors
    /// `WouldBlock`: it takes nothing now; else what the socket says.
    pub fn drain(&mut self, to: impl AsFd) -> io::Result<usize> {
        let given = splice(&self.read, None, to, None, self.held, SpliceFlags::NONBLOCK | SpliceFlags::MOVE)?;
        self.held -= given.min(self.held);
        Ok(given)
    }
}
