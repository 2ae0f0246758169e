//! A cgroup (v2) for the sockets of some flows: the kernel programs of telemetry apply to no other sockets.
//!
//! It is the only object of a run outside the sandbox. A lab that is killed leaves an empty cgroup, which the next one removes. A
//! lock on its directory shows whether it is in use.

use super::lock;
use anyhow::{Context, Result, bail};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Prefix of the names, followed by a number.
const PREFIX: &str = "anabranch-lab-";
/// Time for killed processes to leave the group.
const LEAVE: Duration = Duration::from_secs(5);

/// A cgroup that is removed when this is dropped.
#[derive(Debug)]
pub struct Group {
    path: PathBuf,
    _lock: File,
}

impl Group {
    /// Creates a group, and removes those left by killed labs.
    ///
    /// # Errors
    /// There is no cgroup v2, or the user may not create one.
    pub fn create() -> Result<Self> {
        Self::create_in(&mounted()?)
    }

    fn create_in(root: &Path) -> Result<Self> {
        remove_left(root);
        for number in 0..1000 {
            let path = root.join(format!("{PREFIX}{number}"));
            match std::fs::create_dir(&path) {
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => continue,
                made => made.with_context(|| format!("a cgroup of our own: {}", path.display()))?,
            }
            // Another lab may have removed it as a leftover.
            if let Ok(Some(lock)) = lock::directory(&path) {
                return Ok(Self { path, _lock: lock });
            }
        }
        bail!("{}: a thousand cgroups of ours already", root.display())
    }

    /// Wraps a command so that it is a member of the group before its first socket.
    #[must_use]
    pub fn within(&self, command: &Command) -> Command {
        let mut joined = super::program::command("sh");
        joined.args(["-c", "echo 0 >\"$0\" && exec \"$@\""]).arg(self.path.join("cgroup.procs"));
        joined.arg(command.get_program()).args(command.get_args());
        joined
    }

    /// Runs `body` with this process as a member. Sockets that it creates belong to the group for their lifetime.
    ///
    /// # Errors
    /// Those of `body`, and of joining and leaving.
    pub fn joined<T>(&self, body: impl FnOnce() -> Result<T>) -> Result<T> {
        let own = std::fs::read_to_string("/proc/self/cgroup").context("/proc/self/cgroup")?;
        let place = own.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
        let before = self.path.parent().unwrap_or(&self.path).join(place);
        join(&self.path)?;
        let result = body();
        join(&before)?;
        result
    }

    /// Its directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let start = Instant::now();
        while let Err(error) = std::fs::remove_dir(&self.path) {
            if error.kind() == std::io::ErrorKind::NotFound {
                return;
            }
            if start.elapsed() > LEAVE {
                tracing::warn!("{}: {error}; the next run removes it", self.path.display());
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Mount point of cgroup v2.
///
/// # Errors
/// It is not mounted.
pub fn mounted() -> Result<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/mounts").context("/proc/mounts")?;
    root(&mounts).context("no cgroup v2 is mounted (mount -t cgroup2 none /sys/fs/cgroup)")
}

/// Moves this process to a group.
fn join(group: &Path) -> Result<()> {
    let members = group.join("cgroup.procs");
    std::fs::write(&members, "0").with_context(|| members.display().to_string())
}

fn root(mounts: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let mut words = line.split(' ').skip(1);
        let place = words.next()?;
        (words.next()? == "cgroup2").then(|| PathBuf::from(place))
    })
}

/// Removes groups whose lab has ended. The kernel keeps those that have processes.
fn remove_left(root: &Path) {
    for entry in std::fs::read_dir(root).into_iter().flatten().flatten() {
        let ours = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
        if !ours {
            continue;
        }
        if let Ok(Some(_lock)) = lock::directory(&entry.path())
            && std::fs::remove_dir(entry.path()).is_ok()
        {
            tracing::info!("removed {}, left by a run that was killed", entry.path().display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unlocked_groups_are_removed() {
        let root = tempfile::tempdir().unwrap();
        let first = Group::create_in(root.path()).unwrap();
        std::fs::create_dir(root.path().join(format!("{PREFIX}7"))).unwrap();
        std::fs::create_dir(root.path().join("other-1")).unwrap();
        let second = Group::create_in(root.path()).unwrap();
        assert!(first.path().exists() && second.path().exists() && first.path() != second.path());
        assert!(!root.path().join(format!("{PREFIX}7")).exists() && root.path().join("other-1").exists());
        let path = first.path().to_owned();
        drop(first);
        assert!(!path.exists());
    }

    #[test]
    fn the_second_version_is_found() {
        let mounts = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\ncgroup /sys/fs/cgroup/cpu cgroup rw 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        assert_eq!(root(mounts).unwrap(), Path::new("/sys/fs/cgroup/unified"));
        assert!(root("proc /proc proc rw 0 0\n").is_none());
    }

    #[test]
    fn a_command_joins_first() {
        let root = tempfile::tempdir().unwrap();
        let group = Group::create_in(root.path()).unwrap();
        let mut echo = Command::new("echo");
        echo.args(["a b", "$c"]);
        let output = group.within(&echo).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "a b $c\n");
        assert_eq!(std::fs::read_to_string(group.path().join("cgroup.procs")).unwrap(), "0\n");
        // Only in a real cgroup are such files removed with the directory.
        std::fs::remove_file(group.path().join("cgroup.procs")).unwrap();
    }
}
