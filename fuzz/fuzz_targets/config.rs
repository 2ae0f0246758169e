//! Configuration files of both programs: nothing panics, and an error names a line that is there.
#![no_main]

// The program is no library: what is tested are its modules, under the paths that they have there.
#[allow(dead_code, unused_imports, unexpected_cfgs, reason = "whole modules come along")]
#[path = "../../crates/node/src/runtime"]
mod runtime {
    pub mod config;
}
#[allow(dead_code)]
#[path = "../../crates/node/src/gnb"]
mod gnb {
    pub mod config;
}
#[allow(dead_code)]
#[path = "../../crates/node/src/lwip"]
mod lwip {
    pub mod config;
}
#[allow(dead_code)]
#[path = "../../crates/node/src/proxy"]
mod proxy {
    pub mod config;
}
#[allow(dead_code)]
#[path = "../../crates/node/src/tcp_lane"]
mod tcp_lane {
    pub mod config;
}
#[allow(dead_code)]
#[path = "../../crates/node/src/ue"]
mod ue {
    pub mod config;
}
#[allow(dead_code)]
#[path = "../../crates/node/src/upf"]
mod upf {
    pub mod config;
}

use libfuzzer_sys::fuzz_target;
use runtime::config::{UeConfig, UpfConfig, parse};

fuzz_target!(|text: &str| {
    let wrong = [parse::<UeConfig>("ue.toml", text).err(), parse::<UpfConfig>("upf.toml", text).err()];
    for error in wrong.into_iter().flatten() {
        let told = error.to_string();
        assert!(told.contains(".toml"), "{told}");
    }
});
