//! Configuration files of both programs: nothing panics, and an error names a line that is there.
#![no_main]

// The program is no library: what is tested is its module.
#[allow(dead_code, unused_imports, reason = "the whole module comes along")]
#[path = "../../crates/node/src/config/mod.rs"]
mod config;

use config::{UeConfig, UpfConfig, parse};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let wrong = [parse::<UeConfig>("ue.toml", text).err(), parse::<UpfConfig>("upf.toml", text).err()];
    for error in wrong.into_iter().flatten() {
        let told = error.to_string();
        assert!(told.contains(".toml"), "{told}");
    }
});
