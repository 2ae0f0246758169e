//! mac1, mac2 and cookies, which a UPF verifies before it computes anything expensive for an init.
//!
//! WireGuard (Donenfeld, NDSS 2017) §5.4.4 and §5.4.7, with HMAC-SHA-256 truncated to 16 bytes for the MAC,
//! and ChaCha20-Poly1305 under a derived key for the sealed cookie (24 bytes of nonce: 12 select the key, 12
//! are the AEAD's).

use super::keys::PublicKey;
use anabranch_element::time::Instant;
use anabranch_wire::handshake::{COOKIE_NONCE_LEN, COOKIE_SECRET_LEN, CookieMessage, MAC_LEN};
use aws_lc_rs::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{Context, SHA256};
use aws_lc_rs::hmac;
use core::fmt;
use rand_chacha::ChaCha20Rng;
use rand_core::RngCore;
use std::net::{IpAddr, SocketAddr};
use zeroize::Zeroizing;

/// A MAC of 16 bytes.
pub(super) type Mac = [u8; MAC_LEN];

/// Proof that the UE can receive at its address; used for mac2 of the next init.
///
/// Valid for [`super::COOKIE_LIFETIME`] from receipt, and only from the address to which it was sent.
#[derive(Clone, PartialEq, Eq)]
pub struct Cookie(pub(super) [u8; COOKIE_SECRET_LEN]);

impl fmt::Debug for Cookie {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cookie(…)")
    }
}

/// The two keys derived from the public key of the receiver of a message.
pub(super) struct Labels {
    mac1: hmac::Key,
    cookie: hmac::Key,
}

impl Labels {
    pub(super) fn new(receiver: &PublicKey) -> Self {
        let derive = |label: &[u8]| {
            let mut hash = Context::new(&SHA256);
            hash.update(label);
            hash.update(&receiver.0);
            hmac::Key::new(hmac::HMAC_SHA256, hash.finish().as_ref())
        };
        Self { mac1: derive(b"mac1"), cookie: derive(b"cookie") }
    }

    pub(super) fn mac1(&self, covered: &[u8]) -> Mac {
        mac(&self.mac1, &[covered])
    }

    pub(super) fn mac1_is(&self, covered: &[u8], mac: &[u8]) -> bool {
        equal(&self.mac1(covered), mac)
    }

    /// The AEAD that seals a cookie under `nonce`, and the remaining part of the nonce.
    fn cookie_aead(&self, nonce: &[u8; COOKIE_NONCE_LEN]) -> Option<(LessSafeKey, Nonce)> {
        let (choice, rest) = nonce.split_at(12);
        let key = hmac::sign(&self.cookie, choice);
        let key = UnboundKey::new(&CHACHA20_POLY1305, key.as_ref()).ok()?;
        Some((LessSafeKey::new(key), Nonce::try_assume_unique_for_key(rest).ok()?))
    }

    /// A cookie message that can be opened only with `mac1` (and the UPF's public key).
    fn seal_cookie(
        &self,
        cookie: &Cookie,
        receiver: u32,
        mac1: &[u8],
        nonce: [u8; COOKIE_NONCE_LEN],
    ) -> Option<CookieMessage> {
        let (aead, aead_nonce) = self.cookie_aead(&nonce)?;
        let mut sealed = [0; _];
        let (text, room) = sealed_parts(&mut sealed);
        text.copy_from_slice(&cookie.0);
        let tag = aead.seal_in_place_separate_tag(aead_nonce, Aad::from(mac1), text).ok()?;
        room.copy_from_slice(tag.as_ref());
        Some(CookieMessage { receiver, nonce, sealed })
    }

    /// The cookie in a cookie message that answers the init with `mac1`.
    pub(super) fn open_cookie(&self, message: &CookieMessage, mac1: &Mac) -> Option<Cookie> {
        let (aead, nonce) = self.cookie_aead(&message.nonce)?;
        let mut sealed = message.sealed;
        let text = aead.open_in_place(nonce, Aad::from(mac1), &mut sealed).ok()?;
        Some(Cookie((&*text).try_into().ok()?))
    }
}

/// mac2 of an init under `cookie`.
pub(super) fn mac2(cookie: &Cookie, covered: &[u8]) -> Mac {
    mac(&hmac::Key::new(hmac::HMAC_SHA256, &cookie.0), &[covered])
}

/// Whether two MACs are equal, in constant time.
pub(super) fn equal(a: &[u8], b: &[u8]) -> bool {
    verify_slices_are_equal(a, b).is_ok()
}

/// Creates and verifies cookies with a secret that changes every 120 s; the previous secret is still
/// accepted.
pub(super) struct CookieJar {
    rng: ChaCha20Rng,
    current: Zeroizing<[u8; 32]>,
    previous: Option<Zeroizing<[u8; 32]>>,
    rotate_at: Instant,
}

impl CookieJar {
    /// `rng` must be used by the jar only, because its output is secret.
    pub(super) fn new(mut rng: ChaCha20Rng) -> Self {
        let current = fresh(&mut rng);
        Self { rng, current, previous: None, rotate_at: Instant::ZERO + super::COOKIE_LIFETIME }
    }

    fn rotate(&mut self, now: Instant) {
        if now < self.rotate_at {
            return;
        }
        let current = core::mem::replace(&mut self.current, fresh(&mut self.rng));
        // After a long idle time, the last secret is older than a cookie may be.
        let recent = now < self.rotate_at + super::COOKIE_LIFETIME;
        self.previous = recent.then_some(current);
        self.rotate_at = now + super::COOKIE_LIFETIME;
    }

    /// Whether `mac` over `covered` proves that `from` recently received a cookie.
    pub(super) fn mac2_is(&mut self, covered: &[u8], mac: &[u8], from: SocketAddr, now: Instant) -> bool {
        self.rotate(now);
        let proves = |secret: &[u8; 32]| equal(&mac2(&cookie_for(secret, from), covered), mac);
        let by_current = proves(&self.current);
        let by_previous = self.previous.as_ref().is_some_and(|secret| proves(secret));
        by_current | by_previous
    }

    /// The message that gives `from` its cookie, in answer to the init with `mac1` from index `receiver`.
    pub(super) fn bake(
        &mut self,
        labels: &Labels,
        receiver: u32,
        mac1: &[u8],
        from: SocketAddr,
        now: Instant,
    ) -> Option<CookieMessage> {
        self.rotate(now);
        let mut nonce = [0; COOKIE_NONCE_LEN];
        self.rng.fill_bytes(&mut nonce);
        labels.seal_cookie(&cookie_for(&self.current, from), receiver, mac1, nonce)
    }
}

fn cookie_for(secret: &[u8; 32], from: SocketAddr) -> Cookie {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
    let port = from.port().to_be_bytes();
    // An IPv4-mapped address is the same host.
    Cookie(match from.ip().to_canonical() {
        IpAddr::V4(a) => mac(&key, &[&port, &a.octets()]),
        IpAddr::V6(a) => mac(&key, &[&port, &a.octets()]),
    })
}

fn fresh(rng: &mut ChaCha20Rng) -> Zeroizing<[u8; 32]> {
    let mut secret = Zeroizing::new([0; 32]);
    rng.fill_bytes(&mut *secret);
    secret
}

fn mac(key: &hmac::Key, parts: &[&[u8]]) -> Mac {
    let mut context = hmac::Context::with_key(key);
    for part in parts {
        context.update(part);
    }
    let mut mac = [0; MAC_LEN];
    for (to, from) in mac.iter_mut().zip(context.sign().as_ref()) {
        *to = *from;
    }
    mac
}

fn sealed_parts(sealed: &mut [u8; COOKIE_SECRET_LEN + 16]) -> (&mut [u8], &mut [u8]) {
    sealed.split_at_mut(COOKIE_SECRET_LEN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_element::time::Duration;
    use rand_core::SeedableRng;

    fn at(s: u64) -> Instant {
        Instant::from_secs(s)
    }

    #[test]
    fn a_cookie_lives_for_one_to_two_periods_and_for_one_address() {
        let labels = Labels::new(&PublicKey([9; 32]));
        let mut jar = CookieJar::new(ChaCha20Rng::from_seed([1; 32]));
        let from: SocketAddr = "192.0.2.1:500".parse().unwrap();
        let mac1 = [5; 16];
        let message = jar.bake(&labels, 7, &mac1, from, at(10)).unwrap();
        let cookie = labels.open_cookie(&message, &mac1).unwrap();
        assert_eq!(labels.open_cookie(&message, &[6; 16]), None, "another init's");
        assert_eq!(Labels::new(&PublicKey([8; 32])).open_cookie(&message, &mac1), None, "another UPF's");
        let mac = mac2(&cookie, b"init");
        assert!(jar.mac2_is(b"init", &mac, from, at(10)));
        assert!(!jar.mac2_is(b"inif", &mac, from, at(10)));
        assert!(!jar.mac2_is(b"init", &mac, "192.0.2.2:500".parse().unwrap(), at(10)));
        assert!(!jar.mac2_is(b"init", &mac, "192.0.2.1:501".parse().unwrap(), at(10)));
        assert!(jar.mac2_is(b"init", &mac, "[::ffff:192.0.2.1]:500".parse().unwrap(), at(10)));
        assert!(jar.mac2_is(b"init", &mac, from, at(130)), "secret rotated once");
        assert!(!jar.mac2_is(b"init", &mac, from, at(251)), "and twice");
    }

    #[test]
    fn a_secret_does_not_outlive_a_long_silence() {
        let labels = Labels::new(&PublicKey([9; 32]));
        let mut jar = CookieJar::new(ChaCha20Rng::from_seed([1; 32]));
        let from: SocketAddr = "[2001:db8::1]:500".parse().unwrap();
        let message = jar.bake(&labels, 7, &[5; 16], from, at(10)).unwrap();
        let mac = mac2(&labels.open_cookie(&message, &[5; 16]).unwrap(), b"init");
        assert!(!jar.mac2_is(b"init", &mac, from, at(0) + Duration::from_secs(10_000)));
    }
}
