//! CONFIG documents of the peer: rules and flow hints. Nothing panics; what is read is written and read again;
//! rules that compile steer any flow over any path states to a path that is up, whenever there is one.
#![no_main]

use anabranch_atsss::classify::RuleSet;
use anabranch_atsss::document::Document;
use anabranch_element::time::Instant;
use anabranch_steer::{FlowSteer, ModeState, Packet, PathState, PathStates};
use anabranch_wire::ip::FlowKey;
use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;

/// Addresses, ports and protocol.
type Flow = ([u8; 4], [u8; 4], u16, u16, u8);

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    flows: Vec<Flow>,
    /// RTT, loss and steady loss of each path.
    paths: [(u32, u32, u8); 3],
    later_ms: u32,
    document: &'a [u8],
}

fuzz_target!(|input: Input| {
    let Ok(document) = Document::decode(input.document) else { return };
    let bytes = document.encode();
    let again = Document::decode(&bytes).expect("what was written is read");
    assert_eq!(
        (again.flows, again.rules.map(|r| r.len())),
        (document.flows, document.rules.as_ref().map(Vec::len))
    );

    let accesses = ["5g", "wifi", "a"].map(Into::into);
    let Ok(rules) = RuleSet::compile(&document.rules.unwrap_or_default(), &accesses) else { return };
    let mut states = PathStates::default();
    for (path, (rtt_us, loss_ppm, steady_loss_percent)) in (0..).zip(input.paths) {
        states.set(path, PathState { rtt_us, loss_ppm, steady_loss_percent });
    }
    let up = states.up();
    for (src, dst, src_port, dst_port, protocol) in input.flows.into_iter().take(32) {
        let key = FlowKey { src: src.into(), dst: dst.into(), src_port, dst_port, protocol };
        let rule = rules.classify(&key);
        assert!(usize::from(rule) < rules.rules().len());
        let mut state = ModeState::new();
        for (sequence, ms) in [(0, 0), (u32::MAX, u64::from(input.later_ms))] {
            let hash = u64::from(src_port) << 48 | u64::from(sequence);
            let flow = &mut FlowSteer::default();
            let datagram = protocol != anabranch_wire::ip::protocol::TCP;
            let ends = input.later_ms.is_multiple_of(2);
            let packet =
                Packet { sequence, flow_hash: hash, remote: hash, bytes: 1400, datagram, ends, flow };
            let pick = state.pick(&rules.get(rule).mode, &states, packet, Instant::from_millis(ms));
            assert!(pick.paths().without(up).is_empty(), "{pick:?} of {up:?}");
            assert_eq!(pick.paths().is_empty(), up.is_empty());
        }
    }
});
