//! Control messages survive being written and read again.
#![no_main]

use anabranch_wire::control::{Control, split_config};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(message) = Control::parse(data) {
        let again = message.encode().expect("in range, for it was read");
        assert_eq!(again.len(), message.encoded_len());
        assert_eq!(Control::parse(&again), Ok(message));
    }
    if let Ok(pieces) = split_config(1, data) {
        let mut joined = Vec::new();
        for piece in pieces {
            let bytes = Control::Config(piece).encode().expect("in range");
            assert_eq!(Control::parse(&bytes), Ok(Control::Config(piece)));
            joined.extend_from_slice(piece.bytes);
        }
        assert_eq!(joined, data);
    }
});
