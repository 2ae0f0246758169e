//! Arbitrary bytes and damaged true messages at every door of the handshake: nothing panics, and nothing but
//! an undamaged message gets through.
#![no_main]

use anabranch_atsss::crypto::{Initiator, PrivateKey, PublicKey, Responder, Suite, Verdict};
use anabranch_element::time::Instant;
use anabranch_wire::handshake::{Access, Hello, Welcome};
use arbitrary::Arbitrary;
use aws_lc_rs::{digest, hmac};
use libfuzzer_sys::fuzz_target;
use rand_chacha::ChaCha20Rng;
use rand_core::SeedableRng;
use std::net::{Ipv4Addr, SocketAddr};

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    chacha: bool,
    under_load: bool,
    door: Door,
    damage: Damage<'a>,
    /// Make mac1 right again, as whoever knows the receiver's public key can.
    forge_mac1: bool,
    now_s: u16,
}

#[derive(Arbitrary, Debug)]
enum Door {
    Init,
    Response,
    Cookie,
}

#[derive(Arbitrary, Debug)]
enum Damage<'a> {
    Bytes(&'a [u8]),
    Flips(Vec<(u16, u8)>),
    Cut(u16),
    Grow(&'a [u8]),
}

impl Damage<'_> {
    fn apply(&self, message: &[u8]) -> Vec<u8> {
        let mut out = message.to_vec();
        match self {
            Self::Bytes(bytes) => out = bytes.to_vec(),
            Self::Flips(flips) => {
                for (at, bits) in flips {
                    let at = usize::from(*at) % out.len();
                    out[at] ^= bits;
                }
            }
            Self::Cut(len) => out.truncate(usize::from(*len) % message.len()),
            Self::Grow(bytes) => out.extend_from_slice(bytes),
        }
        out
    }
}

/// As docs/wire-formats.md has it, written a second time.
fn forge_mac1(message: &mut [u8], receiver: &PublicKey) {
    let Some(at) = message.len().checked_sub(32) else { return };
    let key = digest::digest(&digest::SHA256, &[b"mac1", &receiver.0[..]].concat());
    let mac = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key.as_ref()), &message[..at]);
    message[at..at + 16].copy_from_slice(&mac.as_ref()[..16]);
}

fuzz_target!(|input: Input<'_>| {
    let suite = if input.chacha { Suite::ChaCha20Poly1305 } else { Suite::Aes256Gcm };
    let mut rng = ChaCha20Rng::from_seed([1; 32]);
    let ue = PrivateKey::generate(&mut rng);
    let mut upf = Responder::new(PrivateKey::generate(&mut rng), [2; 32]);
    let from = SocketAddr::from(([192, 0, 2, 1], 4500));
    let now = Instant::from_secs(input.now_s.into());
    let hello = Hello {
        path: 1,
        accesses: vec![Access { path: 1, name: "wifi".into() }],
        mtu: 1400,
        resume: Some(9),
        plain: 0,
        features: 0,
    };
    let welcome = Welcome {
        ipv4: Some((Ipv4Addr::new(10, 45, 0, 2), 24)),
        ipv6: None,
        inner_mtu: 1400,
        reorder_available: 1,
        instance: 1,
        plain: 0,
        features: 0,
    };
    let (mut initiator, init) =
        Initiator::start(&ue, &upf.public(), suite, 7, 1, &hello, None, &mut rng).expect("start");
    match input.door {
        Door::Init => {
            let mut message = input.damage.apply(&init);
            if input.forge_mac1 {
                forge_mac1(&mut message, &upf.public());
            }
            match upf.inspect(&message, from, now, input.under_load) {
                Verdict::Refused(_) => assert_ne!(message, init),
                Verdict::Cookie(cookie) => assert!(input.under_load && cookie.len() < message.len()),
                Verdict::Passed(unread) => {
                    let Ok(pending) = unread.read() else {
                        assert_ne!(message, init);
                        return;
                    };
                    pending.prepare();
                    // mac2 counts under load only; all before it must be as it was.
                    assert_eq!(message[..message.len() - 16], init[..init.len() - 16]);
                    assert!(!input.under_load && pending.peer() == ue.public() && *pending.hello() == hello);
                }
            }
        }
        Door::Response => {
            let Verdict::Passed(unread) = upf.inspect(&init, from, now, false) else { unreachable!() };
            let pending = unread.read().expect("an init as it was made");
            let (_, response) = pending.respond(5, &welcome).expect("respond");
            let mut message = input.damage.apply(&response);
            if input.forge_mac1 {
                forge_mac1(&mut message, &ue.public());
            }
            if let Ok(established) = initiator.finish(&message) {
                assert_eq!((established.peer_index, &established.welcome), (5, &welcome));
                // All but the sender index of the header, which is not used, is as it was.
                assert_eq!(message[8..message.len() - 32], response[8..response.len() - 32]);
            } else {
                assert_ne!(message, response);
                assert!(initiator.finish(&response).is_ok(), "a forged response ends nothing");
            }
        }
        Door::Cookie => {
            let Verdict::Cookie(cookie) = upf.inspect(&init, from, now, true) else { unreachable!() };
            let message = input.damage.apply(&cookie);
            assert_eq!(initiator.on_cookie(&message).is_ok(), message == cookie);
        }
    }
});
