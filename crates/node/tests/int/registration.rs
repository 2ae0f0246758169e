//! Serialisation of tests that register congestion controllers, which are global to the machine.

use std::fs::File;

/// A lock held while a test registers controllers; shared with the tests of crate `kern`.
pub fn alone() -> File {
    let file = File::create(std::env::temp_dir().join("anabranch-tests-registration.lock")).unwrap();
    file.lock().unwrap();
    file
}
