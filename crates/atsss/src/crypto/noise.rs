//! Adapter for `snow`: randomness from the caller, Diffie-Hellman from AWS-LC, the rest from snow itself.
//!
//! AWS-LC's X25519 is faster than snow's own. It also rejects keys of low order, whose shared secret is zero
//! for any private key (RFC 7748 §6.1).
//!
//! snow does not wipe its memory, which contains the keys of its ciphers and the chaining key, from which the
//! session keys are derived. Both are overwritten here before the memory is freed.

use super::Suite;
use super::keys::{PrivateKey, PublicKey};
use rand_chacha::ChaCha20Rng;
use rand_core::{RngCore, SeedableRng};
use snow::params::{CipherChoice, DHChoice, HashChoice, NoiseParams};
use snow::resolvers::{CryptoResolver, DefaultResolver};
use snow::types::{Cipher, Dh, Hash, Random};
use snow::{Builder, Error, HandshakeState};
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, OnceLock};
use zeroize::Zeroizing;

const PROLOGUE: &[u8] = b"anabranch 1";

/// An exchange, which stays at one place in memory until it is overwritten.
pub(super) struct Exchange(Box<HandshakeState>);

impl Exchange {
    fn new(state: HandshakeState) -> Self {
        Self(Box::new(state))
    }
}

impl Deref for Exchange {
    type Target = HandshakeState;
    fn deref(&self) -> &HandshakeState {
        &self.0
    }
}

impl DerefMut for Exchange {
    fn deref_mut(&mut self) -> &mut HandshakeState {
        &mut self.0
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        // It is replaced by an unused exchange, created in a way that cannot fail: no agreement is computed.
        static NOBODY: OnceLock<PrivateKey> = OnceLock::new();
        let nobody = NOBODY.get_or_init(|| PrivateKey::from_bytes([0; 32]));
        if let Ok(blank) =
            state_of_responder(nobody, Suite::Aes256Gcm, &[], Agreements::new(Zeroizing::new([0; 32])))
        {
            *self.0 = blank;
        }
    }
}

/// Starts the exchange with a peer whose public key is known.
pub(super) fn initiator(
    local: &PrivateKey,
    remote: &PublicKey,
    suite: Suite,
    header: &[u8],
    seed: Zeroizing<[u8; 32]>,
) -> Result<Exchange, Error> {
    Builder::with_resolver(params(suite)?, resolver(local, Agreements::new(seed)))
        .prologue(&prologue(header))?
        .local_private_key(local.bytes())?
        .remote_public_key(&remote.0)?
        .build_initiator()
        .map(Exchange::new)
}

/// Answers an exchange; agreements with its ephemeral key can be computed beforehand.
pub(super) fn responder(
    local: &PrivateKey,
    suite: Suite,
    header: &[u8],
    seed: Zeroizing<[u8; 32]>,
) -> Result<(Exchange, Agreements), Error> {
    let agreements = Agreements::new(seed);
    let state = state_of_responder(local, suite, header, agreements.clone())?;
    Ok((Exchange::new(state), agreements))
}

fn state_of_responder(
    local: &PrivateKey,
    suite: Suite,
    header: &[u8],
    agreements: Agreements,
) -> Result<HandshakeState, Error> {
    Builder::with_resolver(params(suite)?, resolver(local, agreements))
        .prologue(&prologue(header))?
        .local_private_key(local.bytes())?
        .build_responder()
}

fn params(suite: Suite) -> Result<NoiseParams, Error> {
    match suite {
        Suite::Aes256Gcm => "Noise_IK_25519_AESGCM_BLAKE2s",
        Suite::ChaCha20Poly1305 => "Noise_IK_25519_ChaChaPoly_BLAKE2s",
    }
    .parse()
}

fn prologue(header: &[u8]) -> Vec<u8> {
    [PROLOGUE, header].concat()
}

fn resolver(local: &PrivateKey, agreements: Agreements) -> Box<Resolver> {
    Box::new(Resolver { agreements, local: local.clone() })
}

/// The ephemeral key of an exchange, from its seed, and agreements precomputed with it. Clones share it.
#[derive(Clone)]
pub(super) struct Agreements(Arc<Shared>);

struct Shared {
    seed: Zeroizing<[u8; 32]>,
    prepared: OnceLock<Prepared>,
}

struct Prepared {
    key: PrivateKey,
    /// Peers' keys, and the shared secret with each.
    secrets: Vec<(PublicKey, Zeroizing<[u8; 32]>)>,
}

impl Agreements {
    fn new(seed: Zeroizing<[u8; 32]>) -> Self {
        Self(Arc::new(Shared { seed, prepared: OnceLock::new() }))
    }

    fn rng(&self) -> ChaCha20Rng {
        ChaCha20Rng::from_seed(*self.0.seed)
    }

    /// Computes the ephemeral key and its agreements with these keys. A key of low order is left to the
    /// exchange, which then fails.
    pub(super) fn prepare(&self, peers: [&PublicKey; 2]) {
        self.0.prepared.get_or_init(|| {
            // The exchange draws the same bytes first.
            let mut bytes = Zeroizing::new([0; 32]);
            self.rng().fill_bytes(&mut *bytes);
            let key = PrivateKey::new(bytes);
            let secrets = peers.iter().filter_map(|peer| Some((**peer, key.agree(&peer.0)?))).collect();
            Prepared { key, secrets }
        });
    }

    /// The key with these bytes, if it has been prepared.
    fn key(&self, bytes: &[u8; 32]) -> Option<PrivateKey> {
        let key = &self.0.prepared.get()?.key;
        super::mac::equal(bytes, key.bytes()).then(|| key.clone())
    }

    /// The agreement of `key` with a peer, if it has been prepared.
    fn secret(&self, key: &PrivateKey, peer: &[u8]) -> Option<&[u8; 32]> {
        let prepared = self.0.prepared.get().filter(|prepared| prepared.key.is(key))?;
        prepared.secrets.iter().find(|(public, _)| public.0 == *peer).map(|(_, secret)| &**secret)
    }
}

struct Resolver {
    agreements: Agreements,
    local: PrivateKey,
}

impl CryptoResolver for Resolver {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        Some(Box::new(Seeded(self.agreements.rng())))
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        match choice {
            DHChoice::Curve25519 => {
                let (local, agreements) = (self.local.clone(), self.agreements.clone());
                Some(Box::new(X25519 { local, agreements, key: None, public: [0; 32] }))
            }
            _ => None,
        }
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        DefaultResolver.resolve_hash(choice)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        DefaultResolver.resolve_cipher(choice).map(|cipher| Box::new(Wiped(cipher)) as Box<dyn Cipher>)
    }
}

/// A cipher of snow's whose key is overwritten on drop.
struct Wiped(Box<dyn Cipher>);

impl Cipher for Wiped {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn set(&mut self, key: &[u8; 32]) {
        self.0.set(key);
    }

    fn encrypt(&self, nonce: u64, authtext: &[u8], plaintext: &[u8], out: &mut [u8]) -> usize {
        self.0.encrypt(nonce, authtext, plaintext, out)
    }

    fn decrypt(
        &self,
        nonce: u64,
        authtext: &[u8],
        ciphertext: &[u8],
        out: &mut [u8],
    ) -> Result<usize, Error> {
        self.0.decrypt(nonce, authtext, ciphertext, out)
    }

    fn rekey(&mut self) {
        self.0.rekey();
    }
}

impl Drop for Wiped {
    fn drop(&mut self) {
        self.0.set(&[0; 32]);
    }
}

struct Seeded(ChaCha20Rng);

impl Random for Seeded {
    fn try_fill_bytes(&mut self, dest: &mut [u8]) -> Result<(), Error> {
        self.0.fill_bytes(dest);
        Ok(())
    }
}

/// X25519 by AWS-LC.
struct X25519 {
    /// The static key, ready for use; snow passes it as bytes for every handshake.
    local: PrivateKey,
    agreements: Agreements,
    key: Option<PrivateKey>,
    public: [u8; 32],
}

impl X25519 {
    fn take(&mut self, key: PrivateKey) {
        self.public = key.public().0;
        self.key = Some(key);
    }
}

impl Dh for X25519 {
    fn name(&self) -> &'static str {
        "25519"
    }

    fn pub_len(&self) -> usize {
        32
    }

    fn priv_len(&self) -> usize {
        32
    }

    fn set(&mut self, private: &[u8]) {
        if super::mac::equal(private, self.local.bytes()) {
            self.take(self.local.clone());
        } else if let Ok(private) = private.try_into() {
            self.take(PrivateKey::from_bytes(private));
        }
    }

    fn generate(&mut self, rng: &mut dyn Random) -> Result<(), Error> {
        let mut bytes = Zeroizing::new([0; 32]);
        rng.try_fill_bytes(&mut *bytes)?;
        self.take(self.agreements.key(&bytes).unwrap_or_else(|| PrivateKey::new(bytes)));
        Ok(())
    }

    fn pubkey(&self) -> &[u8] {
        &self.public
    }

    fn privkey(&self) -> &[u8] {
        self.key.as_ref().map_or(&[], |key| key.bytes())
    }

    fn dh(&self, public: &[u8], out: &mut [u8]) -> Result<(), Error> {
        let key = self.key.as_ref().ok_or(Error::Dh)?;
        let (public, out) = (public.get(..32).ok_or(Error::Dh)?, out.get_mut(..32).ok_or(Error::Dh)?);
        match self.agreements.secret(key, public) {
            Some(secret) => out.copy_from_slice(secret),
            None => out.copy_from_slice(&*key.agree(public).ok_or(Error::Dh)?),
        }
        Ok(())
    }
}
