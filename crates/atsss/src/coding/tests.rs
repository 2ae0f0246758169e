use super::*;
use anabranch_element::time::{Duration, Instant};
use proptest::prelude::*;
use std::collections::BTreeSet;

const ROOM: usize = 4 << 20;

fn overhead(percent: u8, window: u8, wait_ms: u64) -> Overhead {
    Overhead { percent, window, wait: Duration::from_millis(wait_ms) }
}

/// Source symbol number `n`. As in the session, it begins with a length, so that its end can be distinguished
/// from zeros.
fn symbol(n: u32, len: usize) -> Vec<u8> {
    let len = len.max(6);
    let mut bytes: Vec<u8> =
        (0..len as u32).map(|i| (i.wrapping_mul(31) ^ n.wrapping_mul(0x9E37)) as u8).collect();
    bytes[..2].copy_from_slice(&(len as u16).to_be_bytes());
    bytes[2..6].copy_from_slice(&n.to_be_bytes());
    bytes
}

/// An encoder and a decoder connected by a channel, with their own time.
struct Pair {
    now: Instant,
    encoder: Encoder,
    decoder: Decoder,
    work: [Work; 2],
    sent: Vec<(u32, Vec<u8>)>,
    delivered: BTreeSet<usize>,
    recovered: BTreeSet<usize>,
    repairs: Vec<(Repair, Vec<u8>)>,
    /// The encoder has restarted: sources that arrived before the decoder noticed may be restored once more.
    restarted: bool,
}

impl Pair {
    fn new(overhead: Overhead) -> Self {
        let now = Instant::from_secs(100);
        Self {
            now,
            encoder: Encoder::new(overhead, now),
            decoder: Decoder::new(now),
            work: [Work::new(now), Work::new(now)],
            sent: Vec::new(),
            delivered: BTreeSet::new(),
            recovered: BTreeSet::new(),
            repairs: Vec::new(),
            restarted: false,
        }
    }

    /// Sends one source; due repairs are collected in `repairs`.
    fn send(&mut self, len: usize, lost: bool) {
        let n = self.sent.len();
        let bytes = symbol(n as u32, len);
        let position = self.encoder.push([&bytes[..2], &bytes[2..]], self.now, ROOM).unwrap();
        self.sent.push((position, bytes));
        if !lost {
            self.arrive(n);
        }
        while let Some((repair, symbol)) = self.encoder.poll(self.now, &mut self.work[0]) {
            self.repairs.push((repair, symbol.to_vec()));
        }
    }

    fn arrive(&mut self, n: usize) {
        let (position, bytes) = &self.sent[n];
        self.decoder.on_source(
            *position,
            [&bytes[..5.min(bytes.len())], &bytes[5.min(bytes.len())..]],
            self.now,
            ROOM,
            &mut self.work[1],
        );
        self.delivered.insert(n);
        self.collect();
    }

    fn repair(&mut self, repair: &Repair, symbol: &[u8]) {
        self.decoder.on_repair(repair, symbol, self.now, ROOM, &mut self.work[1]);
        self.collect();
    }

    fn repair_all(&mut self) {
        for (repair, symbol) in core::mem::take(&mut self.repairs) {
            self.repair(&repair, &symbol);
        }
    }

    /// Every restored source must equal the one sent, and be restored only once.
    fn collect(&mut self) {
        while let Some(bytes) = self.decoder.pop_recovered() {
            let len = usize::from(u16::from_be_bytes([bytes[0], bytes[1]]));
            let n = u32::from_be_bytes([bytes[2], bytes[3], bytes[4], bytes[5]]) as usize;
            assert_eq!(self.sent[n].1, bytes[..len], "a wrong byte was restored");
            assert!(bytes[len..].iter().all(|b| *b == 0));
            let news = !self.delivered.contains(&n) && self.recovered.insert(n);
            assert!(news || self.restarted, "restored although it was received");
        }
    }

    fn missing(&self) -> usize {
        self.sent.len() - self.delivered.union(&self.recovered).count()
    }
}

#[test]
fn one_loss_is_restored_by_the_next_repair() {
    let mut pair = Pair::new(overhead(30, 16, 1000));
    for n in 0..40 {
        pair.send(100 + 7 * n, n == 20);
        pair.repair_all();
    }
    assert_eq!(pair.recovered, BTreeSet::from([20]));
    assert_eq!(pair.missing(), 0);
    let stats = pair.decoder.stats();
    assert_eq!((stats.recovered, stats.unused), (1, 0));
    assert_eq!(stats.idle + 1, stats.repairs);
}

#[test]
fn the_end_of_a_burst_of_traffic_is_covered_by_the_timer() {
    let mut pair = Pair::new(overhead(30, 16, 100));
    pair.send(200, false);
    pair.send(200, true);
    assert!(pair.repairs.is_empty(), "the budget does not allow it yet");
    let at = pair.encoder.poll_timeout().unwrap();
    assert_eq!(at - pair.now, Duration::from_millis(25));
    assert!(pair.encoder.flush(pair.now, &mut pair.work[0]).is_none(), "not due");
    pair.now = at;
    let (repair, symbol) = pair.encoder.flush(at, &mut pair.work[0]).map(|(r, s)| (r, s.to_vec())).unwrap();
    pair.repair(&repair, &symbol);
    assert_eq!(pair.recovered, BTreeSet::from([1]));
    assert_eq!(pair.encoder.poll_timeout(), None);
    // The credit is paid back: the next flush has to wait for it.
    pair.send(200, false);
    pair.now += Duration::from_millis(25);
    assert!(pair.encoder.flush(pair.now, &mut pair.work[0]).is_none());
}

#[test]
fn a_source_restored_after_the_longest_wait_is_not_delivered() {
    let mut pair = Pair::new(overhead(50, 16, 50));
    for n in 0..4 {
        pair.send(300, n == 1);
    }
    pair.now += Duration::from_millis(51);
    pair.repair_all();
    assert_eq!((pair.decoder.stats().recovered, pair.decoder.stats().late), (0, 1));
    assert!(pair.recovered.is_empty());
}

#[test]
fn every_source_that_is_lost_is_counted_once() {
    for repair_every in [1, 7, usize::MAX] {
        let mut pair = Pair::new(overhead(30, 16, 1000));
        for n in 0..2000 {
            pair.send(100, n % 9 == 5 && n < 1500);
            if n % repair_every == 0 {
                pair.repair_all();
            }
        }
        let stats = pair.decoder.stats();
        let lost = (0..1500).filter(|n| n % 9 == 5).count() as u64;
        assert_eq!(stats.recovered + stats.late + stats.given_up, lost, "{stats:?}");
        assert_eq!(stats.given_up > 0, repair_every == usize::MAX, "{stats:?}");
    }
}

#[test]
fn sources_older_than_the_wait_are_covered_no_more() {
    let mut pair = Pair::new(overhead(100, 64, 50));
    for _ in 0..10 {
        pair.send(300, false);
        pair.now += Duration::from_millis(20);
    }
    assert!(pair.repairs.iter().all(|(repair, _)| repair.covers <= 3));
    assert_eq!(pair.repairs.last().unwrap().0.covers, 3);
}

#[test]
fn a_restarted_sender_is_followed() {
    for jump in [1_i32, 40, 255, 256, 300, 1 << 20, -1, -40, -255, -256, -5000, -(1 << 20)] {
        let mut pair = Pair::new(overhead(50, 32, 1000));
        for n in 0..100 {
            pair.send(120, n % 10 == 3);
            pair.repair_all();
        }
        let position = pair.sent.last().unwrap().0;
        pair.encoder = Encoder::new(overhead(50, 32, 1000), pair.now);
        pair.restarted = true;
        pair.encoder.position = position.wrapping_add_signed(jump) & POSITION_MASK;
        for n in 0..200 {
            pair.send(120, n % 10 == 3);
            pair.repair_all();
            pair.now += Duration::from_millis(2);
        }
        // Only a few are lost: those sent before the decoder recognises the restart.
        assert!(pair.missing() <= 6, "{jump}: {}", pair.missing());
    }
}

#[test]
fn memory_is_within_what_is_granted_and_given_up_early() {
    let now = Instant::from_secs(1);
    let mut encoder = Encoder::new(overhead(50, 64, 1000), now);
    let (base, mut left) = (encoder.bytes(), 10_000_usize);
    let mut uncovered = 0;
    for n in 0..100 {
        let before = encoder.bytes();
        let bytes = symbol(n, 1000);
        uncovered += usize::from(encoder.push([&bytes, &[]], now, left).is_none());
        left -= encoder.bytes() - before;
    }
    assert!(uncovered > 80 && encoder.bytes() - base <= 10_000);
    let mut decoder = Decoder::new(now);
    let (base, mut left, mut work) = (decoder.bytes(), 10_000_usize, Work::new(now));
    for n in 0..200 {
        let before = decoder.bytes();
        let bytes = symbol(n, 1000);
        decoder.on_source(n, [&bytes, &[]], now, left, &mut work);
        let repair = Repair { position: n, covers: 64, index: 0, wait: Duration::from_secs(1) };
        decoder.on_repair(&repair, &bytes, now, left - (decoder.bytes() - before), &mut work);
        left -= decoder.bytes() - before;
    }
    assert!(decoder.bytes() - base <= 10_000);
}

#[test]
fn memory_stays_as_it_is_while_packets_are_lost() {
    let mut pair = Pair::new(overhead(30, 32, 1000));
    let mut bytes = [0; 2];
    for n in 0..20_000_usize {
        pair.send(200, n.wrapping_mul(0x9E37_79B9) >> 7 & 15 == 0);
        pair.repair_all();
        pair.now += Duration::from_millis(2);
        if n == 10_000 {
            bytes = [pair.encoder.bytes(), pair.decoder.bytes()];
            (pair.delivered, pair.recovered) = Default::default();
        }
    }
    assert!(pair.recovered.len() > 400);
    assert_eq!([pair.encoder.bytes(), pair.decoder.bytes()], bytes);
    assert!(bytes[1] < Decoder::BASE_BYTES + 60_000, "{bytes:?}: a window, not the whole span");
}

/// The unknowns that the received equations determine, by elimination over the coefficients alone.
fn solvable(unknown: &[u32], repairs: &[Repair]) -> BTreeSet<u32> {
    let covers = |r: &Repair, p: u32| r.position.wrapping_sub(p) & POSITION_MASK < u32::from(r.covers);
    let mut rows: Vec<Vec<u8>> = repairs
        .iter()
        .map(|r| {
            unknown.iter().map(|p| if covers(r, *p) { gf256::coefficient(*p, r.index) } else { 0 }).collect()
        })
        .collect();
    let mut rank = 0;
    for column in 0..unknown.len() {
        let Some(pivot) = (rank..rows.len()).find(|r| rows[*r][column] != 0) else { continue };
        rows.swap(rank, pivot);
        let factor = gf256::inverse(rows[rank][column]);
        gf256::scale(&mut rows[rank], factor);
        let pivot = rows[rank].clone();
        for (r, row) in rows.iter_mut().enumerate() {
            let factor = row[column];
            if r != rank && factor != 0 {
                gf256::add_scaled(row, &pivot, factor);
            }
        }
        rank += 1;
    }
    let single = rows.iter().filter(|row| row.iter().filter(|f| **f != 0).count() == 1);
    single.filter_map(|row| Some(unknown[row.iter().position(|f| *f != 0)?])).collect()
}

proptest! {
    /// With as many repairs as losses, all of which cover them, every loss is restored, whichever packets
    /// were lost.
    #[test]
    fn as_many_losses_as_repairs_are_restored(
        window in 1usize..=128,
        lost in proptest::collection::btree_set(0usize..128, 1..40),
        lens in proptest::collection::vec(3usize..1400, 128),
        skipped in 0u8..128,
    ) {
        let lost: BTreeSet<usize> = lost.into_iter().filter(|n| *n < window).collect();
        let mut pair = Pair::new(overhead(1, 128, 1000));
        pair.encoder.index = skipped;
        for (n, len) in lens.iter().enumerate().take(window) {
            pair.send(*len, lost.contains(&n));
        }
        pair.repairs.clear();
        for _ in 0..lost.len() {
            let (covers, cost) = pair.encoder.window(pair.now).unwrap();
            let (repair, symbol) =
                pair.encoder.emit(covers, cost, pair.now, &mut Work::new(pair.now)).map(|(r, s)| (r, s.to_vec())).unwrap();
            pair.repairs.push((repair, symbol));
        }
        pair.repair_all();
        prop_assert_eq!(&pair.recovered, &lost);
    }

    /// For any loss and order, exactly those sources are restored that the equations determine, and no byte
    /// is wrong.
    #[test]
    fn sources_determined_by_the_equations_are_restored(
        percent in 10u8..=100,
        window in 1u8..=128,
        packets in proptest::collection::vec((3usize..1500, 0u8..100, 0u8..100, 0usize..8), 1..200),
        loss in 0u8..60,
    ) {
        let mut pair = Pair::new(overhead(percent, window, 1000));
        let (mut held, mut arrived) = (Vec::new(), Vec::new());
        for (n, (len, chance, repair_chance, late)) in packets.iter().enumerate() {
            pair.send(*len, true);
            if *chance >= loss {
                held.push((n + late, n));
            }
            held.sort_unstable();
            while let Some((_, m)) = held.first().copied().filter(|(due, _)| *due <= n) {
                held.remove(0);
                if !pair.recovered.contains(&m) {
                    pair.arrive(m);
                }
            }
            for (repair, symbol) in core::mem::take(&mut pair.repairs) {
                if *repair_chance >= loss {
                    pair.repair(&repair, &symbol);
                    arrived.push(repair);
                }
            }
        }
        prop_assume!(arrived.iter().all(|repair| repair.covers > 0));
        let unknown: Vec<u32> = (0..packets.len()).filter(|n| !pair.delivered.contains(n)).map(|n| pair.sent[n].0).collect();
        let expected = solvable(&unknown, &arrived);
        let restored: BTreeSet<u32> = pair.recovered.iter().map(|n| pair.sent[*n].0).collect();
        if pair.decoder.stats().unused == 0 {
            prop_assert_eq!(restored, expected);
        } else {
            prop_assert!(restored.is_subset(&expected), "a repair before the first source, or too many unknowns");
        }
    }

    /// Bytes of repairs stay within the configured percentage of the sources' bytes, except for one credit.
    #[test]
    fn the_overhead_is_a_ceiling(
        percent in 1u8..=100,
        packets in proptest::collection::vec((3usize..1500, 0u64..60), 1..300),
    ) {
        let mut pair = Pair::new(overhead(percent, 32, 100));
        for (len, gap_ms) in packets {
            pair.send(len, false);
            pair.now += Duration::from_millis(gap_ms);
            let _ = pair.encoder.flush(pair.now, &mut pair.work[0]);
            let stats = pair.encoder.stats();
            prop_assert!(stats.repair_bytes * 100 <= stats.source_bytes * u64::from(percent) + 100 * 1600);
        }
    }

    /// For any input: no panic, memory and work within their bounds.
    #[test]
    fn any_input_is_bounded(
        input in proptest::collection::vec(
            (any::<bool>(), any::<u32>(), 0u32..600, 0u8..=255, 0u8..128, proptest::collection::vec(any::<u8>(), 1..300), 0u64..200_000),
            1..300,
        ),
    ) {
        let mut now = Instant::from_secs(1);
        let mut decoder = Decoder::new(now);
        let mut work = Work::new(now);
        for (source, far, near, covers, index, bytes, gap_us) in input {
            let position = if far % 16 == 0 { far } else { near } & POSITION_MASK;
            now += Duration::from_micros(gap_us);
            let room = (Decoder::BASE_BYTES + 100_000).saturating_sub(decoder.bytes());
            if source {
                decoder.on_source(position, [&bytes, &[]], now, room, &mut work);
            } else {
                let repair = Repair { position, covers: covers.min(MAX_WINDOW), index, wait: Duration::from_secs(1) };
                decoder.on_repair(&repair, &bytes, now, room, &mut work);
            }
            while decoder.pop_recovered().is_some() {}
            prop_assert!(decoder.bytes() <= Decoder::BASE_BYTES + 100_000);
            prop_assert!(decoder.rows.len() <= MAX_ROWS && decoder.spare.len() + decoder.rows.len() <= MAX_ROWS + 1);
        }
    }
}
