//! Whatever parses is emitted as the same bytes again.
#![no_main]

use anabranch_wire::tunnel::{
    DeliveryOrder, Fragment, InnerHeader, InnerType, MessageType, SecureHeader, StreamWord, classify,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let class = classify(data);
    if let Ok((header, payload)) = InnerHeader::parse(data) {
        let mut out = [0; InnerHeader::LEN];
        header.emit(&mut out).expect("room");
        assert_eq!(out[..], data[..InnerHeader::LEN]);
        assert_eq!(payload, &data[InnerHeader::LEN..]);
        if header.kind == InnerType::Data {
            let order = header.order().expect("checked by parse");
            // Without a flag the sequence is ignored, and written as 0.
            let sequence = if order == DeliveryOrder::None { 0 } else { header.sequence };
            // A length of 0 is what a kernel's fast path writes: up to the datagram's end.
            let length = if header.length == 0 { payload.len() as u16 } else { header.length };
            assert_eq!(InnerHeader::data(payload, order), Some(InnerHeader { sequence, length, ..header }));
            assert_eq!(class, Ok(MessageType::PlainData));
        }
        if let Ok(fragment) = Fragment::parse_body(&header, payload) {
            let mut out = vec![0; data.len()];
            fragment.emit(&mut out).expect("what parses can be written");
            assert_eq!(out, data);
        }
        let word = StreamWord::from_u32(header.sequence);
        assert_eq!(word.to_u32(), header.sequence);
    }
    if let Ok(header) = SecureHeader::parse(data) {
        assert_eq!(header.to_bytes()[..], data[..SecureHeader::LEN]);
        assert_eq!(class, Ok(MessageType::Secure));
    }
});
