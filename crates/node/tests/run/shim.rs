//! `fault.c`, compiled and preloaded into the programs of a test.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Fault injection inside a program.
pub struct Shim {
    folder: PathBuf,
}

impl Shim {
    /// Compiles it in a directory of the test.
    pub fn new(folder: &Path) -> Self {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/run/fault.c");
        let mut cc = Command::new("cc");
        cc.args(["-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"]);
        let output = cc.arg(folder.join("fault.so")).arg(source).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Self { folder: folder.to_owned() }
    }

    /// Words for env(1) that precede a program's.
    fn with(&self, variable: &str, value: &str) -> Vec<String> {
        vec![format!("LD_PRELOAD={}", self.folder.join("fault.so").display()), format!("{variable}={value}")]
    }

    /// Kills a program right after step `last` of its requests to the kernel.
    pub fn die_after(&self, last: usize) -> Vec<String> {
        self.with("FAULT_DIE_AFTER", &last.to_string())
    }

    /// Counts those steps.
    pub fn count(&self) -> Vec<String> {
        let _ = std::fs::remove_file(self.folder.join("steps"));
        self.with("FAULT_STEPS", &self.folder.join("steps").display().to_string())
    }

    /// Number of steps so far.
    pub fn steps(&self) -> usize {
        std::fs::metadata(self.folder.join("steps")).map_or(0, |file| file.len() as usize)
    }

    /// Environment of a program whose wall clock [`Shim::set_clock`] sets.
    pub fn clock(&self) -> Vec<String> {
        self.with("FAULT_CLOCK", &self.folder.join("clock").display().to_string())
    }

    /// Sets the wall clock this many seconds ahead.
    pub fn set_clock(&self, ahead_s: i64) {
        std::fs::write(self.folder.join("clock"), ahead_s.to_string()).unwrap();
    }

    /// Environment of a program whose fsync fails while [`Shim::fail_fsync`] is set.
    pub fn fsync(&self) -> Vec<String> {
        self.with("FAULT_FSYNC", &self.folder.join("fsync").display().to_string())
    }

    /// Whether fsync fails from now on.
    pub fn fail_fsync(&self, fails: bool) {
        let file = self.folder.join("fsync");
        if fails { std::fs::write(file, "").unwrap() } else { std::fs::remove_file(file).unwrap() }
    }
}

/// Lowers the limit of open files so that the program can open nothing more; open files stay. Returns the
/// previous limit.
pub fn take_descriptors(pid: u32) -> String {
    let text = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let line = text.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let before = line.split_whitespace().nth(3).unwrap().to_owned();
    // Descriptors that are being closed, such as the connection of the last request, could be used again.
    let mut limit = u64::MAX;
    let mut unchanged = 0;
    while unchanged < 20 {
        let free = first_free(pid);
        if free < limit {
            limit = free;
            give_descriptors(pid, &limit.to_string());
            unchanged = 0;
        }
        unchanged += 1;
        std::thread::sleep(Duration::from_millis(10));
    }
    before
}

fn first_free(pid: u32) -> u64 {
    let open: std::collections::BTreeSet<u64> = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok())
        .collect();
    (0..).find(|number| !open.contains(number)).unwrap()
}

/// Sets the soft limit of open files.
pub fn give_descriptors(pid: u32, limit: &str) {
    let set =
        Command::new("prlimit").args(["--pid", &pid.to_string(), &format!("--nofile={limit}:")]).status();
    assert!(set.unwrap().success());
}
