//! Atomic replacement of files in the state directory, and the state file of a UE.

use super::folder;
use anyhow::Context;
use serde::{Deserialize, Serialize};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

/// Replaces the file by `bytes`. On success, file and directory are synced to disk. On failure, the old
/// contents remain, and no temporary file takes up space.
pub fn replace(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let new = PathBuf::from(new);
    let write = || -> anyhow::Result<()> {
        // A temporary file of another user does not matter if the directory belongs to this one.
        let made = match std::fs::File::create(&new) {
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                std::fs::remove_file(&new).and_then(|()| std::fs::File::create(&new))
            }
            other => other,
        };
        let mut file = made.with_context(|| format!("making {}", new.display()))?;
        write_and_rename(&mut file, bytes, &new, path)?;
        Ok(std::fs::File::open(folder::of(path))?.sync_all()?)
    };
    write().with_context(|| format!("state file {}", path.display()))
}

/// Writes `bytes` to `file`, which is open at `new`, and renames it to `path`. On failure, `new` is removed. The directory is
/// not synced.
pub fn write_and_rename(
    file: &mut std::fs::File,
    bytes: &[u8],
    new: &Path,
    path: &Path,
) -> std::io::Result<()> {
    let written = file.write_all(bytes).and_then(|()| file.sync_all());
    let renamed = written.and_then(|()| std::fs::rename(new, path));
    if renamed.is_err() {
        let _ = std::fs::remove_file(new);
    }
    renamed
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    version: u32,
    timestamp_ns: u64,
}

/// The largest handshake timestamp that the UPF has accepted; it prevents that a clock that is set back locks
/// the UE out.
pub struct Timestamp {
    path: PathBuf,
    saved_ns: u64,
}

impl Timestamp {
    /// Reads the file. If it cannot be used, the program starts nevertheless and relies on the clock alone.
    pub fn load(path: &Path) -> Self {
        let read = || match std::fs::read(path) {
            Ok(text) => Ok(serde_json::from_slice::<File>(&text)?.timestamp_ns),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(0),
            Err(error) => Err(anyhow::Error::from(error)),
        };
        let saved_ns = read().unwrap_or_else(|error| {
            tracing::warn!("state file {} is ignored, and will be written anew: {error:#}", path.display());
            0
        });
        Self { path: path.to_owned(), saved_ns }
    }

    /// The stored timestamp, Unix time in nanoseconds; 0: none.
    pub const fn ns(&self) -> u64 {
        self.saved_ns
    }

    /// Records an accepted timestamp; returns the path and the new contents of the file if it is larger than
    /// the stored one.
    pub fn accepted(&mut self, timestamp_ns: u64) -> Option<(PathBuf, Vec<u8>)> {
        if timestamp_ns <= self.saved_ns {
            return None;
        }
        self.saved_ns = timestamp_ns;
        let text = serde_json::to_vec(&File { version: 1, timestamp_ns }).ok()?;
        Some((self.path.clone(), text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_time_stamp_survives_a_restart_and_a_damaged_file_is_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ue-state.json");
        let mut first = Timestamp::load(&path);
        assert_eq!(first.ns(), 0);
        for (stamp, larger) in [(5, true), (9, true), (7, false), (9, false)] {
            let write = first.accepted(stamp);
            assert_eq!(write.is_some(), larger, "{stamp}");
            write.into_iter().for_each(|(path, text)| replace(&path, &text).unwrap());
        }
        assert_eq!(Timestamp::load(&path).ns(), 9);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing beside it");
        std::fs::write(&path, "{").unwrap();
        assert_eq!(Timestamp::load(&path).ns(), 0);
        let nowhere = folder.path().join("not/there.json");
        let error = format!("{:#}", replace(&nowhere, b"x").unwrap_err());
        assert!(error.contains("not/there.json"), "{error}");
    }
}
