//! Big-endian access to fields of fixed size. The caller has checked offsets against the length; beyond the end, readers
//! return zero instead of panicking.

/// The `N` bytes at `at`; zeros beyond the end.
#[inline]
pub(crate) fn array<const N: usize>(b: &[u8], at: usize) -> [u8; N] {
    match b.get(at..).and_then(<[u8]>::first_chunk::<N>) {
        Some(v) => *v,
        None => [0; N],
    }
}

#[inline]
pub(crate) fn u16_at(b: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(array(b, at))
}

#[inline]
pub(crate) fn u32_at(b: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(array(b, at))
}

#[inline]
pub(crate) fn u64_at(b: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(array(b, at))
}

/// Writes `bytes` at `at`; the caller has checked that they fit.
#[inline]
pub(crate) fn put(b: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(room) = b.get_mut(at..at + bytes.len()) {
        room.copy_from_slice(bytes);
    }
}

/// An error unless `b` has at least `need` bytes.
#[inline]
pub(crate) fn need(b: &[u8], what: &'static str, need: usize) -> Result<(), crate::WireError> {
    if b.len() < need {
        return Err(crate::WireError::Truncated { what, need, have: b.len() });
    }
    Ok(())
}
