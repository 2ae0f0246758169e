//! An array of the kernel in this process's memory (`BPF_F_MMAPABLE`): words that programs, processes and we change at any time.

use super::BpfError;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicU64;

/// The entries of a map.
#[derive(Debug)]
pub(super) struct Mapped {
    at: NonNull<AtomicU64>,
    entries: usize,
    words: usize,
}

// SAFETY: the memory is only reached by atomic operations, from whatever thread.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// Maps the `entries` of `map`, of so many words of 64 bits each; `protection` is that of mmap(2).
    pub(super) fn new(
        map: &impl AsFd,
        name: &str,
        entries: u32,
        words: usize,
        protection: libc::c_int,
    ) -> Result<Self, BpfError> {
        let entries = entries as usize;
        let bytes = entries * words * size_of::<u64>();
        // SAFETY: a new mapping where the kernel finds room; the descriptor is open for the time of the call, and the mapping
        // keeps the map.
        let at = unsafe {
            libc::mmap(ptr::null_mut(), bytes, protection, libc::MAP_SHARED, map.as_fd().as_raw_fd(), 0)
        };
        let source = io::Error::last_os_error();
        match NonNull::new(at) {
            Some(at) if at.as_ptr() != libc::MAP_FAILED => Ok(Self { at: at.cast(), entries, words }),
            _ => Err(BpfError::Io { what: format!("mapping {name} into memory"), source }),
        }
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.entries
    }

    /// The words of an entry.
    pub(super) fn entry(&self, index: usize) -> Option<&[AtomicU64]> {
        if index >= self.entries {
            return None;
        }
        // SAFETY: the index is within the mapping, which is as long as `self`, aligned to a page, and of whole entries; others
        // that change it (processes, kernel programs) are why the words are atomic.
        Some(unsafe { std::slice::from_raw_parts(self.at.as_ptr().add(index * self.words), self.words) })
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping that `new` made, and nobody has a reference into it that outlives `self`.
        unsafe { libc::munmap(self.at.as_ptr().cast(), self.entries * self.words * size_of::<u64>()) };
    }
}
