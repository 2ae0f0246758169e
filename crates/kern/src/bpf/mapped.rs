//! A kernel array in the memory of this process (`BPF_F_MMAPABLE`): words that programs and processes may change at any time.

use super::BpfError;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicU64;

/// The mapped entries of a map.
#[derive(Debug)]
pub(super) struct Mapped {
    at: NonNull<AtomicU64>,
    entries: usize,
    words: usize,
}

// SAFETY: the memory is accessed only by atomic operations, from any thread.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// Maps the `entries` of `map`, each of `words` 64-bit words; `protection` is that of mmap(2).
    pub(super) fn new(
        map: &impl AsFd,
        name: &str,
        entries: u32,
        words: usize,
        protection: libc::c_int,
    ) -> Result<Self, BpfError> {
        let entries = entries as usize;
        let bytes = entries * words * size_of::<u64>();
        // SAFETY: a new mapping at an address chosen by the kernel; the descriptor is open during the call, and the mapping
        // keeps the map alive.
        let at = unsafe {
            libc::mmap(ptr::null_mut(), bytes, protection, libc::MAP_SHARED, map.as_fd().as_raw_fd(), 0)
        };
        let source = io::Error::last_os_error();
        match NonNull::new(at) {
            Some(at) if at.as_ptr() != libc::MAP_FAILED => Ok(Self { at: at.cast(), entries, words }),
            _ => Err(BpfError::Io { what: format!("mapping {name} into memory"), source }),
        }
    }

    /// Number of entries.
    pub(super) fn len(&self) -> usize {
        self.entries
    }

    /// The words of an entry.
    pub(super) fn entry(&self, index: usize) -> Option<&[AtomicU64]> {
        if index >= self.entries {
            return None;
        }
        // SAFETY: the index is within the mapping, which is as long as `self`, page-aligned, and consists of whole entries. The
        // words are atomic because processes and kernel programs change them concurrently.
        Some(unsafe { std::slice::from_raw_parts(self.at.as_ptr().add(index * self.words), self.words) })
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping created in `new`; no reference into it outlives `self`.
        unsafe { libc::munmap(self.at.as_ptr().cast(), self.entries * self.words * size_of::<u64>()) };
    }
}
