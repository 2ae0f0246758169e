//! Kernel settings (sysctls) that the program changes, and their original values.
//!
//! A value in /proc/sys does not show who set it. Therefore the original value is stored in a file before a
//! change: a run after a killed one uses that instead of the value set by the killed run. Like the values,
//! the file is valid for one boot and one network namespace.
//!
//! Each program has a file of its own and holds a lock on it while it runs; programs with the same directory
//! see each other's files. A program that stops restores a value only if no other running program has set it,
//! too, and if it has not been changed since.
//!
//! ```text
//!  FOLDER/sysctls-DEVICE-NAMESPACE.json    {"version":1,"boot":…,"namespace":…,"records":{KEY:{"original":…,"set":…}}}
//! ```

use super::super::{folder, state_file};
use anyhow::Context;
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const PREFIX: &str = "sysctls-";
/// Maximum number of files of other programs that are read, and maximum length of each.
const MOST_FILES: usize = 256;
const MOST_BYTES: u64 = 1 << 16;
/// Longest wait for another program that reads or changes settings.
const TURN: Duration = Duration::from_secs(5);

/// The original value of a sysctl, and the value that was set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    original: String,
    set: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    version: u32,
    boot: String,
    namespace: u64,
    records: BTreeMap<String, Record>,
}

/// The sysctls set by this program.
pub struct Sysctls {
    /// Root of the values: /proc/sys.
    root: PathBuf,
    file: Option<PathBuf>,
    boot: String,
    namespace: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    records: BTreeMap<String, Record>,
    /// Number of steps that need each setting.
    uses: BTreeMap<String, u32>,
    /// Held while there are records.
    lock: Option<Flock<File>>,
    /// The records could not be written, which has been reported.
    unsaved: bool,
}

impl std::fmt::Debug for Sysctls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sysctls").field("file", &self.file).finish_non_exhaustive()
    }
}

impl Sysctls {
    /// Without a file: the records end with the process. For namespaces that end with it, too.
    pub fn forgetful() -> Self {
        Self::at(PathBuf::from("/proc/sys"), None)
    }

    /// With a file in this directory, named after the program's device.
    pub fn in_folder(folder: &Path, device: &str) -> Self {
        let namespace = namespace();
        let file = folder.join(format!("{PREFIX}{device}-{namespace}.json"));
        Self::at(PathBuf::from("/proc/sys"), Some(file))
    }

    fn at(root: PathBuf, file: Option<PathBuf>) -> Self {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let mut all = Self {
            root,
            file,
            boot: boot.trim().to_owned(),
            namespace: namespace(),
            state: Mutex::default(),
        };
        let records = all.file.as_deref().and_then(|file| all.read_records(file)).unwrap_or_default();
        all.state = Mutex::new(State { records, ..State::default() });
        all
    }

    /// Sets a sysctl, unless it already has the value; with `only_from`, only if that is its value. True if
    /// it must be restored: then one [`restore`](Self::restore) is due per call.
    ///
    /// # Errors
    /// The sysctl cannot be read or written.
    pub fn set(&self, key: &str, value: &str, only_from: Option<&str>) -> anyhow::Result<bool> {
        let _turn = self.turn();
        let mut state = self.state();
        let current = self.read(key)?;
        let known =
            state.records.get(key).cloned().into_iter().chain(self.others(key).map(|(record, _)| record));
        let before = known.into_iter().find(|record| record.set == current).map(|record| record.original);
        let original = before.unwrap_or_else(|| current.clone());
        if original == value || only_from.is_some_and(|from| from != original) {
            // The value had been set already, or must not be changed.
            if state.records.remove(key).is_some() {
                self.save(&mut state);
            }
            return Ok(false);
        }
        state.records.insert(key.to_owned(), Record { original, set: value.to_owned() });
        self.save(&mut state);
        if current != value
            && let Err(error) = self.write(key, value)
        {
            if !state.uses.contains_key(key) {
                state.records.remove(key);
                self.save(&mut state);
            }
            return Err(error);
        }
        *state.uses.entry(key.to_owned()).or_default() += 1;
        Ok(true)
    }

    /// Restores a sysctl when the last step that needs it is undone.
    ///
    /// # Errors
    /// The sysctl cannot be written.
    pub fn restore(&self, key: &str) -> anyhow::Result<()> {
        let _turn = self.turn();
        let mut state = self.state();
        match state.uses.get_mut(key) {
            Some(uses) if *uses > 1 => {
                *uses -= 1;
                Ok(())
            }
            _ => {
                state.uses.remove(key);
                self.put_back(&mut state, key)
            }
        }
    }

    /// Restores sysctls set by a killed run that this run has not set again.
    ///
    /// # Errors
    /// A sysctl cannot be written.
    pub fn restore_rest(&self) -> anyhow::Result<()> {
        let _turn = self.turn();
        let mut state = self.state();
        let rest: Vec<String> =
            state.records.keys().filter(|key| !state.uses.contains_key(*key)).cloned().collect();
        rest.into_iter().try_for_each(|key| self.put_back(&mut state, &key))
    }

    fn put_back(&self, state: &mut State, key: &str) -> anyhow::Result<()> {
        let Some(record) = state.records.remove(key) else { return Ok(()) };
        let shared = self.others(key).any(|(other, runs)| runs && other.set == record.set);
        let done = match self.read(key) {
            // The sysctl has disappeared with its interface.
            Err(_) => Ok(()),
            Ok(_) if shared => {
                tracing::info!("{key} stays {}: another running program has set it, too", record.set);
                Ok(())
            }
            Ok(current) if current == record.set => self.write(key, &record.original),
            Ok(current) => {
                tracing::info!("{key} stays {current}: it has been changed since");
                Ok(())
            }
        };
        self.save(state);
        done
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self, key: &str) -> anyhow::Result<String> {
        let path = self.root.join(key);
        let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        // Several numbers are separated by tabs.
        Ok(text.split_whitespace().collect::<Vec<_>>().join(" "))
    }

    fn write(&self, key: &str, value: &str) -> anyhow::Result<()> {
        let path = self.root.join(key);
        std::fs::write(&path, value).with_context(|| format!("writing {value} to {}", path.display()))
    }

    /// Locks the directory: only one program reads and changes settings at a time.
    fn turn(&self) -> Option<Flock<File>> {
        let folder = folder::of(self.file.as_deref()?);
        let mut file = File::open(folder).ok()?;
        let start = Instant::now();
        loop {
            match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(lock) => return Some(lock),
                Err((_, error)) if error != nix::errno::Errno::EWOULDBLOCK || start.elapsed() > TURN => {
                    tracing::warn!("folder {} cannot be locked: {error}", folder.display());
                    return None;
                }
                Err((back, _)) => file = back,
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The records of other programs about a sysctl, and whether each program is running.
    fn others(&self, key: &str) -> impl Iterator<Item = (Record, bool)> {
        let own = self.file.clone();
        let folder = own.as_deref().and_then(Path::parent);
        let entries =
            folder.and_then(|folder| std::fs::read_dir(folder).ok()).into_iter().flatten().flatten();
        let files = entries.map(|entry| entry.path()).filter(move |path| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            name.starts_with(PREFIX) && name.ends_with(".json") && Some(path) != own.as_ref()
        });
        let found = files.take(MOST_FILES).filter_map(|path| {
            let record = self.read_records(&path)?.remove(key)?;
            let taken = File::open(&path).ok().map(|file| Flock::lock(file, FlockArg::LockSharedNonblock));
            Some((record, matches!(taken, Some(Err(_)))))
        });
        found.collect::<Vec<_>>().into_iter()
    }

    /// The records in a file, if it is of this boot and namespace.
    fn read_records(&self, path: &Path) -> Option<BTreeMap<String, Record>> {
        let read = || -> anyhow::Result<Content> {
            let mut text = Vec::new();
            File::open(path)?.take(MOST_BYTES).read_to_end(&mut text)?;
            Ok(serde_json::from_slice(&text)?)
        };
        let content = match read() {
            Ok(content) => content,
            Err(error) => {
                let missing = error.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
                if missing != Some(std::io::ErrorKind::NotFound) {
                    tracing::warn!(
                        "{} is not used: {error:#}: what an earlier run has set in /proc/sys stays",
                        path.display()
                    );
                }
                return None;
            }
        };
        (content.boot == self.boot && content.namespace == self.namespace).then_some(content.records)
    }

    /// Writes the records to disk. On failure the program works nevertheless, but a kill leaves its settings.
    fn save(&self, state: &mut State) {
        let Some(path) = self.file.as_deref() else { return };
        let saved = self.try_save(path, state);
        if let Err(error) = &saved
            && !state.unsaved
        {
            tracing::warn!(
                "{}: {error:#}: if this program is killed, its settings in /proc/sys stay",
                path.display()
            );
        }
        state.unsaved = saved.is_err();
    }

    fn try_save(&self, path: &Path, state: &mut State) -> anyhow::Result<()> {
        if state.records.is_empty() {
            state.lock = None;
            return match std::fs::remove_file(path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
                _ => Ok(()),
            };
        }
        let content = Content {
            version: 1,
            boot: self.boot.clone(),
            namespace: self.namespace,
            records: state.records.clone(),
        };
        let text = serde_json::to_vec(&content)?;
        let new = path.with_extension("new");
        let mut options = std::fs::OpenOptions::new();
        let file = options.write(true).create(true).truncate(true).mode(0o640).open(&new)?;
        let mut file = Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, error)| error)?;
        state_file::write_and_rename(&mut file, &text, &new, path)?;
        state.lock = Some(file);
        Ok(File::open(folder::of(path))?.sync_all()?)
    }
}

/// Identifier of the calling thread's network namespace.
fn namespace() -> u64 {
    std::fs::metadata("/proc/thread-self/ns/net").map_or(0, |meta| meta.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "net/ipv4/ip_forward";

    /// A directory of simulated sysctls, and programs that set them.
    struct World {
        root: tempfile::TempDir,
        folder: tempfile::TempDir,
    }

    impl World {
        fn new(value: &str) -> Self {
            let world = {
                // In memory, because thousands of files are synced.
                let folder = || tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
                Self { root: folder(), folder: folder() }
            };
            std::fs::create_dir_all(world.root.path().join("net/ipv4")).unwrap();
            world.write(value);
            world
        }

        fn write(&self, value: &str) {
            std::fs::write(self.root.path().join(KEY), value).unwrap();
        }

        fn value(&self) -> String {
            std::fs::read_to_string(self.root.path().join(KEY)).unwrap()
        }

        fn program(&self, name: &str) -> Sysctls {
            let file = self.folder.path().join(format!("{PREFIX}{name}.json"));
            Sysctls::at(self.root.path().to_owned(), Some(file))
        }

        fn files(&self) -> usize {
            std::fs::read_dir(self.folder.path()).unwrap().count()
        }
    }

    #[test]
    fn the_original_value_survives_a_kill() {
        for original in ["0", "2", "0\t1"] {
            let world = World::new(original);
            for _ in 0..3 {
                let killed = world.program("a");
                assert!(killed.set(KEY, "1", None).unwrap());
                assert_eq!(world.value(), "1");
            }
            let last = world.program("a");
            assert!(last.set(KEY, "1", None).unwrap());
            last.restore(KEY).unwrap();
            assert_eq!(world.value(), original.replace('\t', " "));
            assert_eq!(world.files(), 0);
        }
    }

    #[test]
    fn earlier_values_and_later_changes_of_others_are_kept() {
        let world = World::new("1");
        let program = world.program("a");
        assert!(!program.set(KEY, "1", None).unwrap());
        program.restore(KEY).unwrap();
        assert_eq!((world.value().as_str(), world.files()), ("1", 0));
        world.write("0");
        assert!(!program.set(KEY, "1", Some("2")).unwrap(), "only from 2");
        assert_eq!(world.value(), "0");
        assert!(program.set(KEY, "1", Some("0")).unwrap());
        world.write("2");
        program.restore(KEY).unwrap();
        assert_eq!((world.value().as_str(), world.files()), ("2", 0));
        // Killed; another program sets the original value, and then the wanted one: that value is the
        // other's.
        world.write("0");
        world.program("a").set(KEY, "1", None).unwrap();
        world.write("2");
        let next = world.program("a");
        assert!(next.set(KEY, "1", None).unwrap());
        next.restore(KEY).unwrap();
        assert_eq!(world.value(), "2");
    }

    /// Every order of starts, kills and stops of two programs: the value is set while a program that set it
    /// is running, and restored when all have stopped.
    #[test]
    fn two_programs_that_share_a_switch() {
        // One step: the program, and whether it stops, is killed, or starts.
        for plan in 0..6_u32.pow(4) {
            let world = World::new("0");
            let mut running: [Option<Sysctls>; 2] = [None, None];
            let steps = (0..4).map(|n| plan / 6_u32.pow(n) % 6);
            for step in steps.map(|step| (step as usize / 3, step % 3)).chain([
                (0, 0),
                (1, 0),
                (0, 2),
                (0, 0),
                (1, 2),
                (1, 0),
            ]) {
                let (who, what) = step;
                let program = running[who].take();
                match what {
                    0 => {
                        if let Some(program) = program {
                            program.restore(KEY).unwrap();
                        }
                    }
                    1 => drop(program),
                    _ => {
                        let program = program.unwrap_or_else(|| {
                            let new = world.program(["a", "b"][who]);
                            assert!(new.set(KEY, "1", None).unwrap(), "{plan}: it was 0");
                            new
                        });
                        running[who] = Some(program);
                    }
                }
                if running.iter().any(Option::is_some) {
                    assert_eq!(world.value(), "1", "{plan}");
                }
            }
            assert_eq!((world.value().as_str(), world.files()), ("0", 0), "{plan}");
        }
    }

    #[test]
    fn steps_of_one_program_that_share_a_switch() {
        let world = World::new("0");
        let program = world.program("a");
        assert!(program.set(KEY, "1", None).unwrap() && program.set(KEY, "1", Some("0")).unwrap());
        program.restore(KEY).unwrap();
        assert_eq!(world.value(), "1");
        program.restore(KEY).unwrap();
        program.restore(KEY).unwrap();
        assert_eq!((world.value().as_str(), world.files()), ("0", 0));
    }

    #[test]
    fn files_of_another_boot_or_namespace_and_damaged_files_are_ignored() {
        let world = World::new("1");
        let file = |boot: &str, namespace: u64| {
            format!(
                "{{\"version\":1,\"boot\":\"{boot}\",\"namespace\":{namespace},\"records\":{{\"{KEY}\":{{\"original\":\"0\",\"set\":\"1\"}}}}}}"
            )
        };
        let boot = world.program("a").boot;
        for text in [
            file("another", namespace()),
            file(&boot, namespace() + 1),
            "{".into(),
            "[]".into(),
            String::new(),
        ] {
            for name in ["a", "b"] {
                std::fs::write(world.folder.path().join(format!("{PREFIX}{name}.json")), &text).unwrap();
            }
            let program = world.program("a");
            assert!(!program.set(KEY, "1", None).unwrap(), "{text}");
            program.restore_rest().unwrap();
            assert_eq!(world.value(), "1", "{text}");
        }
        std::fs::write(world.folder.path().join(format!("{PREFIX}a.json")), file(&boot, namespace()))
            .unwrap();
        world.program("a").restore_rest().unwrap();
        assert_eq!(world.value(), "0", "what a killed run left that the next did not want");
    }

    #[test]
    fn values_are_set_and_restored_without_a_directory() {
        let world = World::new("0");
        let file = Some(world.folder.path().join("not/there/sysctls-a.json"));
        let program = Sysctls::at(world.root.path().to_owned(), file);
        assert!(program.set(KEY, "1", None).unwrap());
        program.restore(KEY).unwrap();
        assert_eq!(world.value(), "0");
        let error = format!("{:#}", program.set("net/ipv4/none", "1", None).unwrap_err());
        assert!(error.contains("reading") && error.contains("net/ipv4/none"), "{error}");
    }
}
