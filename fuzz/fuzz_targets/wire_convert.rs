//! Convert messages survive being read and written again; what was read never fails to be written.
#![no_main]

use anabranch_wire::convert::{Message, Tlv, encode};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok((message, rest)) = Message::parse(data) {
        let tlvs: Vec<Tlv<'_>> = message.tlvs().collect();
        let again = encode(&tlvs).expect("as long as it was");
        let (reread, none) = Message::parse(&again).expect("what was written");
        assert!(none.is_empty() && rest.len() < data.len());
        assert_eq!(reread.tlvs().collect::<Vec<_>>(), tlvs);
    }
});
