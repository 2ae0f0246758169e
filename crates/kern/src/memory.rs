//! Returns unused memory to the system.

/// Returns memory that has been free in mimalloc for a second or longer. The allocator itself checks for such memory only on
/// allocations, so a program that becomes idle would keep the memory used for a large file or many simultaneous handshakes. Takes
/// microseconds if there is nothing to return. No effect with another allocator.
pub fn give_back() {
    // SAFETY: the call takes no pointers, and any thread may make it at any time; `false` collects only memory that has been free
    // long enough.
    unsafe { libmimalloc_sys::mi_collect(false) };
}
