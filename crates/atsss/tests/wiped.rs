//! No copies of private keys remain in the memory of the process after they have been dropped.
//!
//! The memory is read from /proc/self/mem: all writable memory except this thread's stack, where copies of
//! return values may remain until it is reused.

use anabranch_atsss::crypto::{Initiator, PrivateKey, Responder, Suite, Verdict};
use anabranch_element::time::Instant;
use anabranch_wire::handshake::{Access, Hello, Welcome};
use rand_chacha::ChaCha20Rng;
use rand_core::SeedableRng;
use std::fs::{File, read_to_string};
use std::os::unix::fs::FileExt;

const MASK: u8 = 0xa7;
/// Keys, masked, so that these are not copies themselves.
const UE: [u8; 32] = *b"the key of the UE, and it is 32B";
const UPF: [u8; 32] = *b"the key of the UPF, also of 32 B";

fn unmasked(masked: &[u8; 32]) -> PrivateKey {
    PrivateKey::from_bytes(masked.map(|byte| byte ^ MASK))
}

/// Copies of a key in memory, except on this thread's stack.
fn copies(masked: &[u8; 32]) -> usize {
    let here = std::ptr::from_ref(&masked).addr() as u64;
    let memory = File::open("/proc/self/mem").unwrap();
    let mut found = 0;
    let mut bytes = vec![0u8; 1 << 16];
    for line in read_to_string("/proc/self/maps").unwrap().lines() {
        let mut fields = line.split_whitespace();
        let (range, rights) = (fields.next().unwrap(), fields.next().unwrap());
        let (from, to) = range.split_once('-').unwrap();
        let number = |text| u64::from_str_radix(text, 16).unwrap();
        let (mut at, to) = (number(from), number(to));
        if !rights.starts_with("rw") || (at..to).contains(&here) || line.ends_with("[stack]") {
            continue;
        }
        while at < to {
            let len = bytes.len().min((to - at) as usize);
            let Ok(len) = memory.read_at(&mut bytes[..len], at) else { break };
            found += bytes[..len]
                .windows(32)
                .filter(|window| window.iter().zip(masked).all(|(byte, masked)| byte ^ MASK == *masked))
                .count();
            // The data read must not be found when this buffer itself is read.
            bytes.fill(0);
            // A copy that spans two pieces is found completely in the second.
            at += (len as u64).max(32) - if at + (len as u64) < to { 31 } else { 0 };
        }
    }
    found
}

#[test]
fn nothing_is_left_of_private_keys_after_handshakes() {
    let mut rng = ChaCha20Rng::seed_from_u64(1);
    for suite in [Suite::Aes256Gcm, Suite::ChaCha20Poly1305] {
        let (ue, upf) = (unmasked(&UE), unmasked(&UPF));
        assert!(copies(&UE) > 0 && copies(&UPF) > 0, "they are found while they live");
        let mut responder = Responder::new(upf.clone(), [1; 32]);
        let hello = Hello {
            path: 0,
            accesses: vec![Access { path: 0, name: "5g".into() }],
            mtu: 1400,
            resume: None,
            plain: 0,
            features: 0,
        };
        let (mut initiator, init) =
            Initiator::start(&ue, &upf.public(), suite, 7, 1, &hello, None, &mut rng).unwrap();
        let from = "192.0.2.1:1".parse().unwrap();
        let Verdict::Passed(init) = responder.inspect(&init, from, Instant::ZERO, false) else { panic!() };
        let pending = init.read().unwrap();
        pending.prepare();
        let welcome = Welcome {
            ipv4: Some(([10, 0, 0, 1].into(), 32)),
            ipv6: None,
            inner_mtu: 1400,
            reorder_available: 0,
            instance: 0,
            plain: 0,
            features: 0,
        };
        let (mut at_upf, response) = pending.respond(9, &welcome).unwrap();
        let mut at_ue = initiator.finish(&response).unwrap().keys;
        let mut packet = vec![0; 100];
        at_ue.seal(0, 0, b"", &mut packet).unwrap();
        at_upf.open(0, 0, b"", &mut packet).unwrap();
        drop((ue, upf, responder, initiator, at_upf, at_ue));
        assert_eq!((copies(&UE), copies(&UPF)), (0, 0), "{suite:?}");
    }
}
