use super::*;
use anabranch_wire::handshake::Access;
use proptest::prelude::*;
use std::net::Ipv4Addr;

const FROM: &str = "192.0.2.7:4500";

fn rng(seed: u8) -> ChaCha20Rng {
    ChaCha20Rng::from_seed([seed; 32])
}

fn hello() -> Hello {
    Hello {
        path: 1,
        accesses: vec![Access { path: 0, name: "5g".into() }, Access { path: 1, name: "wifi".into() }],
        mtu: 1420,
        resume: None,
        plain: 0,
        features: 0,
    }
}

fn welcome() -> Welcome {
    Welcome {
        ipv4: Some((Ipv4Addr::new(10, 45, 0, 2), 24)),
        ipv6: None,
        inner_mtu: 1400,
        reorder_available: 16,
        instance: 1,
        plain: 0,
        features: 0,
    }
}

struct Ends {
    ue: PrivateKey,
    upf: Responder,
    suite: Suite,
}

impl Ends {
    fn new(suite: Suite) -> Self {
        let upf = Responder::new(PrivateKey::generate(&mut rng(2)), [3; 32]);
        Self { ue: PrivateKey::generate(&mut rng(1)), upf, suite }
    }

    fn start(&self, timestamp_ns: u64, cookie: Option<&Cookie>) -> (Initiator, Vec<u8>) {
        let remote = self.upf.public();
        Initiator::start(&self.ue, &remote, self.suite, 77, timestamp_ns, &hello(), cookie, &mut rng(4))
            .unwrap()
    }

    fn inspect(&mut self, init: &[u8], under_load: bool) -> Verdict {
        self.upf.inspect(init, FROM.parse().unwrap(), Instant::ZERO, under_load)
    }

    fn pending(&mut self, init: &[u8]) -> PendingInit {
        match self.inspect(init, false) {
            Verdict::Passed(init) => init.read().expect("an init that can be read"),
            other => panic!("refused: {other:?}"),
        }
    }

    fn refusal(&mut self, init: &[u8]) -> Refusal {
        match self.inspect(init, false) {
            Verdict::Refused(refusal) => refusal,
            Verdict::Passed(init) => init.read().expect_err("an init that is refused"),
            Verdict::Cookie(_) => panic!("a cookie"),
        }
    }
}

/// Corrects mac1 after a change. An attacker who knows the receiver's public key can do this.
fn forge_mac1(message: &mut [u8], receiver: &PublicKey) {
    let at = message.len() - 32;
    let mac1 = Labels::new(receiver).mac1(&message[..at]);
    message[at..at + 16].copy_from_slice(&mac1);
}

#[test]
fn both_ends_get_the_same_keys_and_each_others_payload() {
    for suite in [Suite::Aes256Gcm, Suite::ChaCha20Poly1305] {
        let mut ends = Ends::new(suite);
        let (mut initiator, init) = ends.start(1_000, None);
        let pending = ends.pending(&init);
        assert_eq!(pending.peer(), ends.ue.public());
        assert_eq!((pending.hello(), pending.timestamp_ns()), (&hello(), 1_000));
        assert_eq!((pending.sender_index(), pending.suite()), (77, suite));
        let (mut upf, response) = pending.respond(0xABCD, &welcome()).unwrap();
        assert!(response.len() <= init.len(), "an init is never answered with more");
        let mut ue = initiator.finish(&response).unwrap();
        assert_eq!((ue.peer_index, ue.path, &ue.welcome), (0xABCD, 1, &welcome()));
        for up in [true, false] {
            let (tx, rx) = if up { (&mut ue.keys, &mut upf) } else { (&mut upf, &mut ue.keys) };
            let mut packet = *b"ping................";
            tx.seal(1, 9, b"aad", &mut packet).unwrap();
            let mut other_way = packet;
            assert_eq!(rx.open(1, 9, b"aad", &mut packet).unwrap(), b"ping");
            other_way[0] ^= 1;
            assert!(rx.open(1, 9, b"aad", &mut other_way).is_err());
        }
        let mut reflected = [0; 20];
        ue.keys.seal(0, 0, b"", &mut reflected).unwrap();
        assert!(ue.keys.open(0, 0, b"", &mut reflected).is_err(), "the two directions differ");
        assert_eq!(initiator.finish(&response).unwrap_err(), HandshakeError::Finished);
    }
}

/// The same seeds give the same bytes; any change of the protocol is detected here.
#[test]
fn golden_handshake() {
    let run = |suite| {
        let mut ends = Ends::new(suite);
        let (_, init) = ends.start(1_000, None);
        let (mut keys, response) = ends.pending(&init).respond(5, &welcome()).unwrap();
        let mut packet = [0; 16];
        keys.seal(0, 0, b"", &mut packet).unwrap();
        (init, response, packet)
    };
    let short = |bytes: &[u8]| {
        let hash = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, bytes);
        hash.as_ref()[..6].iter().map(|b| format!("{b:02x}")).collect::<String>()
    };
    assert_eq!(run(Suite::Aes256Gcm), run(Suite::Aes256Gcm));
    let golden = [
        (Suite::Aes256Gcm, "c811e0beccd5", "9a8c5f091d79", "9187805aa0c1"),
        (Suite::ChaCha20Poly1305, "4a84937d5162", "a2403df3d547", "d0eaf355614f"),
    ];
    for (suite, want_init, want_response, want_packet) in golden {
        let (init, response, packet) = run(suite);
        assert_eq!(
            (&*short(&init), &*short(&response), &*short(&packet)),
            (want_init, want_response, want_packet),
            "{suite:?}"
        );
    }
}

#[test]
fn an_init_is_refused_for_the_right_reason() {
    let mut ends = Ends::new(Suite::Aes256Gcm);
    let (_, init) = ends.start(1_000, None);
    let macs_at = init.len() - 32;
    for at in 0..init.len() - 16 {
        let mut bad = init.clone();
        bad[at] ^= 1;
        let want = match at {
            0 => Refusal::Malformed,
            1 => Refusal::Version,
            2 => Refusal::Suite,
            _ => Refusal::Mac1,
        };
        assert_eq!(ends.refusal(&bad), want, "byte {at}");
        if (3..macs_at).contains(&at) {
            // An attacker who knows the UPF's public key passes mac1, but no further check.
            forge_mac1(&mut bad, &ends.upf.public());
            assert_eq!(ends.refusal(&bad), Refusal::Authentication, "byte {at}");
        }
    }
    // The other suite is well-formed, but not the requested one.
    let mut bad = init.clone();
    bad[2] = Suite::ChaCha20Poly1305 as u8;
    assert_eq!(ends.refusal(&bad), Refusal::Mac1);
    forge_mac1(&mut bad, &ends.upf.public());
    assert_eq!(ends.refusal(&bad), Refusal::Authentication);
    for len in 0..init.len() {
        assert!(matches!(ends.refusal(&init[..len]), Refusal::Malformed | Refusal::Mac1), "{len} bytes");
    }
    // mac2 is ignored while there is no load.
    let mut with_mac2 = init.clone();
    with_mac2[macs_at + 16] = 1;
    ends.pending(&with_mac2);
}

#[test]
fn a_ue_with_the_wrong_upf_key_is_refused_at_mac1() {
    let mut ends = Ends::new(Suite::Aes256Gcm);
    let other = PrivateKey::generate(&mut rng(9)).public();
    let (_, mut init) =
        Initiator::start(&ends.ue, &other, Suite::Aes256Gcm, 1, 1, &hello(), None, &mut rng(4)).unwrap();
    assert_eq!(ends.refusal(&init), Refusal::Mac1);
    forge_mac1(&mut init, &ends.upf.public());
    assert_eq!(ends.refusal(&init), Refusal::Authentication);
}

#[test]
fn a_low_order_key_is_refused() {
    let ends = Ends::new(Suite::Aes256Gcm);
    let zero = PublicKey([0; 32]);
    let r = Initiator::start(&ends.ue, &zero, Suite::Aes256Gcm, 1, 1, &hello(), None, &mut rng(4));
    assert_eq!(r.err(), Some(HandshakeError::Library));
    let mut ends = ends;
    let (_, mut init) = ends.start(1, None);
    init[Init::HEADER..][..32].fill(0);
    forge_mac1(&mut init, &ends.upf.public());
    assert_eq!(ends.refusal(&init), Refusal::Authentication);
}

#[test]
fn a_wrong_shard_hint_is_refused() {
    let mut ends = Ends::new(Suite::Aes256Gcm);
    // A UE whose hint does not match its key. Built from internals, because the API does not allow it.
    let public = ends.ue.public();
    let payload = hello().encode(5).unwrap();
    let mut message =
        Init::emit(Suite::Aes256Gcm, public.shard_hint() ^ 1, 3, NOISE_1_OVERHEAD + payload.len());
    let end = message.len() - 32;
    let mut noise =
        noise::initiator(&ends.ue, &ends.upf.public(), ends.suite, &message[..8], seed(&mut rng(1))).unwrap();
    noise.write_message(&payload, &mut message[8..end]).unwrap();
    forge_mac1(&mut message, &ends.upf.public());
    assert_eq!(ends.refusal(&message), Refusal::Shard);
    // An invalid hello.
    let payload = [0; 12];
    let mut message = Init::emit(Suite::Aes256Gcm, public.shard_hint(), 3, NOISE_1_OVERHEAD + payload.len());
    let end = message.len() - 32;
    let mut noise =
        noise::initiator(&ends.ue, &ends.upf.public(), ends.suite, &message[..8], seed(&mut rng(1))).unwrap();
    noise.write_message(&payload, &mut message[8..end]).unwrap();
    forge_mac1(&mut message, &ends.upf.public());
    assert_eq!(ends.refusal(&message), Refusal::Hello);
}

#[test]
fn a_replayed_init_gives_the_attacker_nothing_and_the_timestamp_shows_it() {
    let mut ends = Ends::new(Suite::Aes256Gcm);
    let mut guard = super::super::TimestampGuard::default();
    let (_, first) = ends.start(1_000, None);
    let (_, second) = ends.start(2_000, None);
    assert!(guard.accept(ends.pending(&second).timestamp_ns()));
    assert!(!guard.accept(ends.pending(&second).timestamp_ns()), "replayed");
    assert!(!guard.accept(ends.pending(&first).timestamp_ns()), "reordered");
}

#[test]
fn a_response_is_refused_for_the_right_reason_and_the_genuine_one_still_counts() {
    let mut ends = Ends::new(Suite::Aes256Gcm);
    let (mut initiator, init) = ends.start(1_000, None);
    let (_, response) = ends.pending(&init).respond(5, &welcome()).unwrap();
    let ue = ends.ue.public();
    for at in 0..response.len() {
        let mut bad = response.clone();
        bad[at] ^= 4;
        let why = initiator.finish(&bad).unwrap_err();
        match at {
            0..=2 => assert!(matches!(why, HandshakeError::Malformed(_)), "byte {at}: {why}"),
            3 | 8..=11 => assert_eq!(why, HandshakeError::NotOurs, "byte {at}"),
            _ => assert_eq!(why, HandshakeError::Mac, "byte {at}"),
        }
        // An attacker who knows the UE's public key passes mac1, but no further check.
        if (12..response.len() - 32).contains(&at) {
            forge_mac1(&mut bad, &ue);
            assert_eq!(initiator.finish(&bad).unwrap_err(), HandshakeError::Authentication, "byte {at}");
        }
    }
    for len in 0..response.len() {
        assert!(initiator.finish(&response[..len]).is_err(), "{len} bytes");
    }
    let mut other_suite = response.clone();
    other_suite[2] = Suite::ChaCha20Poly1305 as u8;
    assert_eq!(initiator.finish(&other_suite).unwrap_err(), HandshakeError::Suite);
    assert!(initiator.finish(&init).is_err(), "its own init, reflected");
    assert!(initiator.finish(&response).is_ok());
}

#[test]
fn a_forged_sender_index_has_no_effect() {
    let mut ends = Ends::new(Suite::Aes256Gcm);
    let (mut initiator, init) = ends.start(1_000, None);
    let (_, mut response) = ends.pending(&init).respond(5, &welcome()).unwrap();
    response[7] = 6;
    forge_mac1(&mut response, &ends.ue.public());
    assert_eq!(initiator.finish(&response).unwrap().peer_index, 5);
}

#[test]
fn a_response_to_another_init_does_not_authenticate() {
    let mut ends = Ends::new(Suite::Aes256Gcm);
    let (_, first) = ends.start(1_000, None);
    let (mut second, _) = ends.start(2_000, None);
    let (_, response) = ends.pending(&first).respond(5, &welcome()).unwrap();
    assert_eq!(second.finish(&response).unwrap_err(), HandshakeError::Authentication);
}

#[test]
fn under_load_only_a_cookie_is_given_until_it_comes_back() {
    let mut ends = Ends::new(Suite::Aes256Gcm);
    let (initiator, init) = ends.start(1_000, None);
    let Verdict::Cookie(message) = ends.inspect(&init, true) else { panic!("no cookie") };
    assert!(message.len() < init.len());
    for at in 0..message.len() {
        let mut bad = message.clone();
        bad[at] ^= 1;
        assert!(initiator.on_cookie(&bad).is_err(), "byte {at}");
    }
    assert!(initiator.on_cookie(&message[..63]).is_err());
    let cookie = initiator.on_cookie(&message).unwrap();

    let (mut initiator, init) = ends.start(2_000, Some(&cookie));
    let Verdict::Passed(unread) = ends.inspect(&init, true) else { panic!("cookie not taken") };
    assert!(initiator.finish(&unread.read().unwrap().respond(1, &welcome()).unwrap().1).is_ok());

    let elsewhere = "192.0.2.8:4500".parse().unwrap();
    let verdict = ends.upf.inspect(&init, elsewhere, Instant::ZERO, true);
    assert!(matches!(verdict, Verdict::Cookie(_)), "another address: {verdict:?}");
    let verdict = ends.upf.inspect(&init, FROM.parse().unwrap(), Instant::from_secs(300), true);
    assert!(matches!(verdict, Verdict::Cookie(_)), "too late: {verdict:?}");
    let mut bad = init.clone();
    let last = bad.len() - 1;
    bad[last] ^= 1;
    assert!(matches!(ends.inspect(&bad, true), Verdict::Cookie(_)), "mac2 damaged");
    bad[10] ^= 1;
    assert!(matches!(ends.inspect(&bad, true), Verdict::Refused(Refusal::Mac1)), "no cookie without mac1");
}

#[test]
fn a_prepared_response_is_the_same() {
    for suite in [Suite::Aes256Gcm, Suite::ChaCha20Poly1305] {
        let responses = [false, true].map(|prepare| {
            let mut ends = Ends::new(suite);
            let (mut initiator, init) = ends.start(1_000, None);
            let pending = ends.pending(&init);
            if prepare {
                pending.prepare();
            }
            let (_, response) = pending.respond(5, &welcome()).unwrap();
            assert!(initiator.finish(&response).is_ok());
            response
        });
        assert_eq!(responses[0], responses[1]);
    }
}

#[test]
fn out_of_range_values_are_an_error() {
    let mut ends = Ends::new(Suite::Aes256Gcm);
    let bad = Hello { path: 8, ..hello() };
    let r = Initiator::start(&ends.ue, &ends.upf.public(), ends.suite, 1, 1, &bad, None, &mut rng(4));
    assert!(matches!(r, Err(HandshakeError::Malformed(_))));
    let (_, init) = ends.start(1, None);
    let r = ends.pending(&init).respond(1, &Welcome { ipv4: None, ..welcome() });
    assert!(matches!(r, Err(HandshakeError::Malformed(_))));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn arbitrary_bytes_never_panic(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..400), first in 0usize..3, under_load: bool, macs: bool,
    ) {
        let mut ends = Ends::new(Suite::Aes256Gcm);
        let (mut initiator, _) = ends.start(1, None);
        if bytes.len() > 40 {
            bytes[..3].copy_from_slice(&[[0x10, 1, 1], [0x20, 1, 1], [0x30, 1, 0]][first]);
            bytes[4..12].copy_from_slice(&[0, 0, 0, 77, 0, 0, 0, 77]);
            if macs {
                let to = if first == 0 { ends.upf.public() } else { ends.ue.public() };
                forge_mac1(&mut bytes, &to);
            }
        }
        let verdict = ends.inspect(&bytes, under_load);
        if let Verdict::Passed(init) = verdict {
            prop_assert!(init.read().is_err());
        }
        prop_assert!(initiator.finish(&bytes).is_err());
        prop_assert!(initiator.on_cookie(&bytes).is_err());
    }
}
