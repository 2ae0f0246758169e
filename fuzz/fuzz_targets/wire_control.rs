//! Control messages survive being written and read again.
#![no_main]

use anabranch_wire::control::Control;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(message) = Control::parse(data) {
        let again = message.encode().expect("in range, for it was read");
        assert_eq!(again.len(), message.encoded_len());
        assert_eq!(Control::parse(&again), Ok(message));
    }
});
