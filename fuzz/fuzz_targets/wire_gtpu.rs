//! GTP-U, its messages, error indications and lists of extension headers: whatever parses is written and read again as the same.
#![no_main]

use anabranch_wire::gtpu::{ErrorIndication, GtpuHeader, SupportedExtensions};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    // The length field first: a fuzzer rarely hits it.
    let mut message = data.to_vec();
    if let Some(length) = data.len().checked_sub(8).and_then(|n| u16::try_from(n).ok()) {
        message[2..4].copy_from_slice(&length.to_be_bytes());
    }
    for message in [data, &message[..]] {
        let Ok((header, payload)) = GtpuHeader::parse(message) else { continue };
        let mut again = vec![0; header.header_len() + payload.len()];
        let len = header.emit(payload.len(), &mut again).expect("fits where it came from");
        again[len..].copy_from_slice(payload);
        assert_eq!(GtpuHeader::parse(&again), Ok((header, payload)));
        if let Ok(told) = ErrorIndication::parse(payload) {
            let mut again = [0; ErrorIndication::MAX];
            let len = told.emit(&mut again).expect("there is room for the longest");
            let (_, elements) = GtpuHeader::parse(&again[..len]).expect("it is a message");
            assert_eq!(ErrorIndication::parse(elements), Ok(told));
        }
        if let Ok(known) = SupportedExtensions::parse(payload) {
            let mut again = [0; 12 + 2 + 255];
            let len = known.emit(&mut again).expect("there is room for the longest");
            let (_, elements) = GtpuHeader::parse(&again[..len]).expect("it is a message");
            assert_eq!(SupportedExtensions::parse(elements), Ok(known));
        }
    }
});
