//! Memory that is not needed any more goes back to the system.

/// Gives back what mimalloc has had free for a second or longer. By itself it looks for such memory only when it is
/// asked for more: what a large file took to read, or many handshakes at once, would stay with a program that is
/// quiet from then on. Takes microseconds where there is nothing to give. Does nothing where another allocator is used.
pub fn give_back() {
    // SAFETY: the call takes no pointers, and any thread may make it at any time; `false` is to collect what has
    // waited long enough, not everything.
    unsafe { libmimalloc_sys::mi_collect(false) };
}
