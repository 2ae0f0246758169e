//! Directories that only one lab may use at a time.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Locks the directory at `path` for the lifetime of the result. Returns `None` if another process holds the lock, or if `path`
/// now refers to another directory.
///
/// # Errors
/// It cannot be opened or locked.
pub fn directory(path: &Path) -> io::Result<Option<File>> {
    let file = File::open(path)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(None),
        Err(TryLockError::Error(error)) => return Err(error),
    }
    let (own, there) = (file.metadata()?, std::fs::metadata(path));
    let same = there.is_ok_and(|there| (there.dev(), there.ino()) == (own.dev(), own.ino()));
    Ok(same.then_some(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_holder_locks_a_directory() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("it");
        assert_eq!(directory(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
        std::fs::create_dir(&path).unwrap();
        let first = directory(&path).unwrap().unwrap();
        assert!(directory(&path).unwrap().is_none());
        // The path now refers to another directory.
        std::fs::remove_dir(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        let second = directory(&path).unwrap().unwrap();
        drop(first);
        assert!(directory(&path).unwrap().is_none());
        drop(second);
        assert!(directory(&path).unwrap().is_some());
    }
}
