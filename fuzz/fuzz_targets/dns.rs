//! DNS questions and answers overheard: arbitrary bytes, alone and in a UDP packet. Nothing panics, the table stays bounded,
//! and what is learned lapses.
#![no_main]

use anabranch_atsss::dns::{DnsTable, NAMES_PER_ADDRESS, TTL_CEILING};
use anabranch_element::time::{Duration, Instant};
use anabranch_wire::ip;
use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use std::net::SocketAddr;

const LIMIT: usize = 4;

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    /// An IP packet, or what is in it; and how long after the one before it comes.
    messages: Vec<(bool, &'a [u8], u16)>,
    /// Addresses to ask for.
    asked: Vec<[u8; 4]>,
}

fuzz_target!(|input: Input| {
    let (mut table, mut now) = (DnsTable::new(LIMIT), Instant::ZERO);
    let server: SocketAddr = "192.0.2.53:53".parse().expect("valid");
    let device: SocketAddr = "192.0.2.1:4000".parse().expect("valid");
    for (whole, bytes, wait_s) in input.messages.iter().take(64) {
        now += Duration::from_secs((*wait_s).into());
        if *whole {
            table.track_question(bytes, now);
            table.snoop(bytes, now);
        } else {
            table.learn(bytes, now);
            if let (Ok(question), Ok(packet)) =
                (ip::udp_datagram(device, server, bytes), ip::udp_datagram(server, device, bytes))
            {
                table.track_question(&question, now);
                table.snoop(&packet, now);
            }
        }
        assert!(table.len() <= LIMIT);
    }
    let later = now + TTL_CEILING + Duration::from_secs(1);
    for address in input.asked {
        assert!(table.names(address.into(), now).count() <= NAMES_PER_ADDRESS);
        assert_eq!(table.names(address.into(), later).count(), 0);
    }
});
