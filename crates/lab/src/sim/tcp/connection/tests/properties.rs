//! Invariants for any behaviour of the path or the peer.

use super::*;
use proptest::prelude::*;

fn fate() -> impl Strategy<Value = PacketAction> {
    prop_oneof![
        8 => Just(PacketAction::Pass),
        2 => Just(PacketAction::Lose),
        1 => (0u64..200_000).prop_map(PacketAction::Delay),
        1 => (0u64..400_000).prop_map(PacketAction::Twice),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// For any finite pattern of loss, reordering and duplication, both streams arrive complete and in order (the callback of the
    /// receiver checks every byte), and the connection ends.
    #[test]
    fn any_pattern_of_loss_reordering_and_duplication_delivers_the_stream(
        fates in prop::collection::vec(fate(), 1..400),
        sizes in (0u64..150_000, 0u64..60_000),
        timestamps: bool,
        pacing: bool,
        reno: bool,
        small_buffer: bool,
        recovery in prop_oneof![Just(Recovery::Rack), Just(Recovery::Classic), Just(Recovery::Adaptive)],
        sack: bool,
    ) {
        let options = Options {
            recovery,
            sack,
            timestamps,
            pacing,
            congestion_control: if reno { Algorithm::Reno } else { Algorithm::Cubic },
            receive_buffer_bytes: if small_buffer { 4000 } else { 1 << 20 },
            ..Options::default()
        };
        let mut pair = Pair::new(options, ms(15));
        pair.ends[0].write(sizes.0);
        pair.ends[1].write(sizes.1);
        for end in &mut pair.ends {
            end.close(false);
        }
        let mut fates = fates.into_iter();
        pair.run(end_of(5000), |_, _| fates.next().unwrap_or(PacketAction::Pass));
        let closed = pair.ends[0].closed().or(pair.ends[1].closed());
        prop_assert_eq!(closed, None);
        prop_assert!(pair.done(), "stuck at {}: {:?}", pair.now, pair.ends[0].stats());
        prop_assert_eq!(pair.received, [sizes.1, sizes.0]);
    }

    /// Segments that no conforming peer sends change only counters and never panic.
    #[test]
    fn hostile_segments_change_only_counters(
        segments in prop::collection::vec(
            (any::<u32>(), any::<u32>(), any::<u8>(), any::<u16>(),
             prop::collection::vec((any::<u32>(), any::<u32>()), 0..4), 0usize..50, any::<bool>()), 1..60),
        established: bool,
    ) {
        let mut pair = Pair::new(Options::default(), ms(5));
        pair.ends[0].write(50_000);
        if established {
            pair.run(at_ms(28), |_, _| PacketAction::Pass);
        }
        for (seq, ack, flags, window, blocks, len, near) in segments {
            let end = &mut pair.ends[0];
            let mut sack = SackBlocks::default();
            for (l, r) in blocks {
                let base = if near { end.iss.wrapping_add(end.sender.una as u32) } else { 0 };
                let place = |x: u32| base.wrapping_add(if near { x % 60_000 } else { x });
                sack.push(place(l), place(r));
            }
            let h = TcpHeader {
                seq: if near { end.irs.wrapping_add(1 + seq % 5) } else { seq },
                ack: if near { end.iss.wrapping_add(1 + ack % 60_000) } else { ack },
                // No RST: it legitimately ends the connection.
                flags: TcpFlags(flags & !0x04),
                window,
                options: TcpOptions { sack, timestamps: near.then_some((seq, ack)), ..TcpOptions::default() },
            };
            end.on_segment(&h, &vec![0; len], pair.now, &mut |_| ());
            let mut sent = 0;
            while pair.ends[0].poll_transmit(pair.now).is_some() {
                sent += 1;
                prop_assert!(sent < 1000);
            }
            pair.now += ms(50);
            pair.ends[0].on_timeout(pair.now);
        }
    }
}
