//! Registration of congestion controllers is the machine's.

use std::fs::File;

/// Held while a test registers: by one at a time, of all programs of tests, those of `kern` included.
pub fn alone() -> File {
    let file = File::create(std::env::temp_dir().join("anabranch-tests-registration.lock")).unwrap();
    file.lock().unwrap();
    file
}
