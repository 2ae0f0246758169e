use super::*;
use proptest::prelude::*;

fn hello() -> Hello {
    Hello {
        path: 1,
        accesses: vec![Access { path: 0, name: "5g".into() }, Access { path: 1, name: "wifi".into() }],
        mtu: 1420,
        resume: Some(7),
        plain: 0b01,
        features: FEATURE_PATH_REPAIRS,
    }
}

fn welcome() -> Welcome {
    Welcome {
        ipv4: Some((Ipv4Addr::new(10, 45, 0, 2), 24)),
        ipv6: Some(("2001:db8::2".parse().unwrap(), 64)),
        inner_mtu: 1400,
        reorder_available: 512,
        instance: 3,
        plain: 0b10,
        features: 0b101,
    }
}

#[test]
fn a_refusal_is_not_a_welcome() {
    for refused in [Refused::FULL, Refused::ACCESSES, Refused::SECURITY, Refused(200)] {
        let payload = refused.encode();
        assert_eq!(Refused::decode(&payload), Some(refused));
        assert!(Welcome::decode(&payload).is_err() && !refused.as_str().is_empty());
    }
    assert_eq!(Refused::decode(&welcome().encode(7).unwrap()), None);
    assert_eq!((Refused::decode(&[]), Refused::decode(&[0, 0, 0, 0, 6])), (None, None));
}

#[test]
fn hello_golden() {
    let bytes = hello().encode(0x0102).unwrap();
    let golden = [
        0, 0, 0, 0, 0, 0, 1, 2, // timestamp
        1, 1, 1, // path
        2, 3, 0, b'5', b'g', // access 0
        2, 5, 1, b'w', b'i', b'f', b'i', // access 1
        3, 2, 5, 0x8c, // MTU 1420
        4, 4, 0, 0, 0, 7, // resume
        5, 1, 0b01, // plain paths
        6, 1, 1, // features
    ];
    assert_eq!(bytes, golden);
    assert_eq!(Hello::decode(&bytes), Ok((0x0102, hello())));
}

#[test]
fn welcome_golden() {
    let bytes = welcome().encode(0x0102_0304).unwrap();
    let golden = [
        1, 2, 3, 4, // sender index
        1, 5, 10, 45, 0, 2, 24, // IPv4
        2, 17, 0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 64, // IPv6
        3, 2, 5, 0x78, // MTU 1400
        4, 2, 2, 0, // reorder queues
        5, 4, 0, 0, 0, 3, // instance
        7, 1, 0b10, // plain paths
        8, 1, 0b101, // features
    ];
    assert_eq!(bytes, golden);
    assert_eq!(Welcome::decode(&bytes), Ok((0x0102_0304, welcome())));
}

/// The features are the last TLV of three bytes.
#[test]
fn a_peer_that_states_no_features_has_none() {
    let bytes = hello().encode(9).unwrap();
    assert_eq!(Hello::decode(&bytes[..bytes.len() - 3]), Ok((9, Hello { features: 0, ..hello() })));
    let bytes = welcome().encode(9).unwrap();
    assert_eq!(Welcome::decode(&bytes[..bytes.len() - 3]), Ok((9, Welcome { features: 0, ..welcome() })));
}

#[test]
fn unknown_parts_are_skipped_and_bad_ones_refused() {
    let mut bytes = hello().encode(9).unwrap();
    bytes.extend_from_slice(&[200, 3, 1, 2, 3]);
    assert_eq!(Hello::decode(&bytes), Ok((9, hello())));
    for (extra, why) in [
        (&[1u8, 1, 1][..], WireError::Repeated("hello path")),
        (&[2, 2, 1, b'x'], WireError::Repeated("hello access")),
        (&[2, 2, 8, b'x'], WireError::Value { what: "path id", got: 8 }),
        (&[2, 2, 2, b'\n'], WireError::Name("access name")),
        (&[2, 1, 2], WireError::Truncated { what: "hello access", need: 2, have: 1 }),
        (&[9], WireError::Truncated { what: "TLV", need: 2, have: 1 }),
        (&[9, 2, 0], WireError::Truncated { what: "TLV value", need: 2, have: 1 }),
        (&[4, 1, 0], WireError::Length { what: "hello resume", expected: 4, have: 1 }),
        (&[5, 1, 0], WireError::Repeated("hello plain")),
        (&[5, 2, 0, 0], WireError::Length { what: "hello plain", expected: 1, have: 2 }),
        (&[6, 1, 0], WireError::Repeated("hello features")),
        (&[6, 0], WireError::Length { what: "hello features", expected: 1, have: 0 }),
    ] {
        let mut bad = hello().encode(9).unwrap();
        bad.extend_from_slice(extra);
        assert_eq!(Hello::decode(&bad), Err(why));
    }
    assert_eq!(Hello::decode(&[0; 8]), Err(WireError::Missing("hello path")));
    assert_eq!(Welcome::decode(&[0; 4]), Err(WireError::Missing("welcome address")));
    assert!(Welcome { ipv4: None, ipv6: None, ..welcome() }.encode(0).is_err());
    assert!(Welcome { inner_mtu: 575, ..welcome() }.encode(0).is_err());
    assert!(Welcome { ipv4: Some((Ipv4Addr::LOCALHOST, 33)), ..welcome() }.encode(0).is_err());
    assert!(Hello { path: 8, ..hello() }.encode(0).is_err());
    let stranger = WireError::Value { what: "plain path", got: 4 };
    assert_eq!(Hello { plain: 4, ..hello() }.encode(0), Err(stranger));
    let mut bad = hello().encode(9).unwrap();
    let plain = bad.len() - 4; // the features follow
    bad[plain] = 4;
    assert_eq!(Hello::decode(&bad), Err(stranger));
    assert!(Hello { accesses: vec![Access { path: 0, name: "a b".into() }], ..hello() }.encode(0).is_err());
}

#[test]
fn message_layouts_golden() {
    let noise: Vec<u8> = (0..(NOISE_1_OVERHEAD + 8) as u8).collect();
    let mut b = Init::emit(Suite::ChaCha20Poly1305, 0xAB, 0x0102_0304, noise.len());
    assert_eq!(b[..8], [0x10, 1, 2, 0xAB, 1, 2, 3, 4]);
    assert_eq!(b.len(), INIT_MIN);
    b[Init::HEADER..][..noise.len()].copy_from_slice(&noise);
    let end = b.len();
    b[end - 32..end - 16].fill(0x11);
    b[end - 16..].fill(0x22);
    let init = Init::parse(&b).unwrap();
    assert_eq!(
        (init.suite(), init.shard_hint(), init.sender()),
        (Suite::ChaCha20Poly1305, 0xAB, 0x0102_0304)
    );
    assert_eq!(init.noise(), noise);
    assert_eq!(init.mac1(), (&[0x11; 16][..], &b[..end - 32]));
    assert_eq!(init.mac2(), (&[0x22; 16][..], &b[..end - 16]));

    let b = Response::emit(Suite::Aes256Gcm, 5, 0x0102_0304, 0x0506_0708, NOISE_2_OVERHEAD + 4);
    assert_eq!(b[..12], [0x20, 1, 1, 5, 1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(b.len(), RESPONSE_MIN);
    let r = Response::parse(&b).unwrap();
    assert_eq!((r.path(), r.sender(), r.receiver()), (5, 0x0102_0304, 0x0506_0708));
    assert_eq!(r.noise().len(), NOISE_2_OVERHEAD + 4);

    let c = CookieMessage { receiver: 9, nonce: [1; 24], sealed: [2; 32] };
    let b = c.to_bytes();
    assert_eq!(b[..9], [0x30, 1, 0, 0, 0, 0, 0, 9, 1]);
    assert_eq!(CookieMessage::parse(&b), Ok(c));
    assert!(CookieMessage::parse(&b[..63]).is_err());
}

#[test]
fn errors_name_type_version_suite_and_size() {
    let b = Init::emit(Suite::Aes256Gcm, 0, 1, NOISE_1_OVERHEAD + 8);
    let with = |at: usize, v: u8| {
        let mut c = b.clone();
        c[at] = v;
        Init::parse(&c).unwrap_err()
    };
    assert_eq!(with(0, 0x20), WireError::Type(0x20));
    assert_eq!(with(1, 2), WireError::Value { what: "version", got: 2 });
    assert_eq!(with(2, 3), WireError::Value { what: "suite", got: 3 });
    assert!(matches!(Init::parse(&b[..INIT_MIN - 1]), Err(WireError::Truncated { .. })));
    let long = Init::emit(Suite::Aes256Gcm, 0, 1, HANDSHAKE_MAX);
    assert!(matches!(Init::parse(&long), Err(WireError::TooLong { .. })));
}

proptest! {
    #[test]
    fn hello_round_trips(
        timestamp: u64,
        path in 0u8..8,
        names in proptest::collection::btree_map(0u8..8, "[a-z0-9._-]{1,32}", 0..8),
        mtu in MTU_MIN..,
        resume: Option<u32>,
        plain: u8,
        features: u8,
    ) {
        let announced = names.keys().fold(0, |set, path| set | 1 << path);
        let accesses = names.into_iter().map(|(path, name)| Access { path, name }).collect();
        let hello = Hello { path, accesses, mtu, resume, plain: plain & announced, features };
        let bytes = hello.encode(timestamp).unwrap();
        prop_assert!(INIT_MIN - 8 + bytes.len() <= HANDSHAKE_MAX);
        prop_assert_eq!(Hello::decode(&bytes), Ok((timestamp, hello)));
    }

    #[test]
    fn welcome_round_trips(
        v4 in proptest::option::of((any::<u32>(), 0u8..=32)),
        v6: u128, len in 0u8..=128, inner_mtu in MTU_MIN.., reorder_available: u16, instance: u32,
        plain: u8, features: u8,
    ) {
        let welcome = Welcome {
            ipv4: v4.map(|(a, p)| (Ipv4Addr::from(a), p)),
            ipv6: Some((Ipv6Addr::from(v6), len)),
            inner_mtu, reorder_available, instance, plain, features,
        };
        prop_assert_eq!(Welcome::decode(&welcome.encode(7).unwrap()), Ok((7, welcome)));
    }

    #[test]
    fn arbitrary_bytes_never_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..400), kind in 0u8..4) {
        let _ = Hello::decode(&bytes);
        let _ = Welcome::decode(&bytes);
        if bytes.len() > 3 {
            bytes[..3].copy_from_slice(&[kind << 4, 1, 1]);
        }
        if let Ok(m) = Init::parse(&bytes) {
            prop_assert_eq!(m.mac1().1.len() + 32, bytes.len());
        }
        if let Ok(m) = Response::parse(&bytes) {
            prop_assert_eq!(m.noise().len() + 12 + 32, bytes.len());
        }
        let _ = CookieMessage::parse(&bytes);
    }
}
