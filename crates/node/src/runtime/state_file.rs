//! Files in the state directory: replaced whole, so that a crash leaves the old one or the new one; and what a UE keeps there.

use super::folder;
use anyhow::Context;
use serde::{Deserialize, Serialize};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

/// Puts `bytes` in the place of what the file says, and has both file and folder on the disk when it returns. Where that fails,
/// what it says stays, and no part of `bytes` takes room beside it.
pub fn replace(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let new = PathBuf::from(new);
    let write = || -> anyhow::Result<()> {
        // One that a program of another user has left is no obstacle where the folder is ours.
        let made = match std::fs::File::create(&new) {
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                std::fs::remove_file(&new).and_then(|()| std::fs::File::create(&new))
            }
            other => other,
        };
        let mut file = made.with_context(|| format!("making {}", new.display()))?;
        let written = file.write_all(bytes).and_then(|()| file.sync_all());
        if let Err(error) = written.and_then(|()| std::fs::rename(&new, path)) {
            let _ = std::fs::remove_file(&new);
            return Err(error.into());
        }
        Ok(std::fs::File::open(folder::of(path))?.sync_all()?)
    };
    write().with_context(|| format!("state file {}", path.display()))
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    version: u32,
    timestamp_ns: u64,
}

/// The largest time stamp of a handshake that the UPF accepted: a clock that goes back must not lock the UE out.
pub struct Timestamp {
    path: PathBuf,
    saved_ns: u64,
}

impl Timestamp {
    /// Reads the file. One that cannot be used is no reason not to start: the clock alone counts then.
    pub fn load(path: &Path) -> Self {
        let read = || match std::fs::read(path) {
            Ok(text) => Ok(serde_json::from_slice::<File>(&text)?.timestamp_ns),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(0),
            Err(error) => Err(anyhow::Error::from(error)),
        };
        let saved_ns = read().unwrap_or_else(|error| {
            tracing::warn!("state file {} is not used, and will be written anew: {error:#}", path.display());
            0
        });
        Self { path: path.to_owned(), saved_ns }
    }

    /// As it is in the file, in nanoseconds of Unix time; 0: none.
    pub const fn ns(&self) -> u64 {
        self.saved_ns
    }

    /// A larger one was accepted: what is to be written, and where to.
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
    fn the_largest_time_stamp_is_there_after_a_restart_and_a_damaged_file_is_as_none() {
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
