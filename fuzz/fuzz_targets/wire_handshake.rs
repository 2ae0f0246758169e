//! Handshake messages keep their parts apart; hello and welcome survive being written and read again.
#![no_main]

use anabranch_wire::handshake::{CookieMessage, HANDSHAKE_MAX, Hello, Init, Response, Welcome};
use anabranch_wire::tunnel::{MessageType, classify};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(init) = Init::parse(data) {
        assert_eq!(classify(data), Ok(MessageType::Init));
        assert!(data.len() <= HANDSHAKE_MAX);
        assert_eq!(Init::HEADER + init.noise().len() + 32, data.len());
        assert_eq!(init.mac1().1.len() + 16, init.mac2().1.len());
        let again = Init::emit(init.suite(), init.shard_hint(), init.sender(), init.noise().len());
        assert_eq!(again[..Init::HEADER], data[..Init::HEADER]);
    }
    if let Ok(response) = Response::parse(data) {
        assert_eq!(classify(data), Ok(MessageType::Response));
        assert_eq!(Response::HEADER + response.noise().len() + 32, data.len());
        let r = response;
        let again = Response::emit(r.suite(), r.path(), r.sender(), r.receiver(), r.noise().len());
        assert_eq!(again[..Response::HEADER], data[..Response::HEADER]);
    }
    if let Ok(cookie) = CookieMessage::parse(data) {
        assert_eq!(cookie.to_bytes()[..], *data);
    }
    if let Ok((timestamp_ns, hello)) = Hello::decode(data) {
        let again = hello.encode(timestamp_ns).expect("in range, for it was read");
        assert_eq!(Hello::decode(&again), Ok((timestamp_ns, hello)));
    }
    if let Ok((sender, welcome)) = Welcome::decode(data) {
        let again = welcome.encode(sender).expect("in range, for it was read");
        assert_eq!(Welcome::decode(&again), Ok((sender, welcome)));
    }
});
