//! The seam to `snow`: randomness from the caller, Diffie-Hellman from AWS-LC, the rest its own.
//!
//! AWS-LC's X25519 takes a third of the time of snow's and refuses keys of low order, whose shared
//! secret is zero whatever the private key (RFC 7748 §6.1).

use super::Suite;
use super::keys::{PrivateKey, PublicKey, public_of};
use aws_lc_rs::agreement::{self, UnparsedPublicKey, X25519};
use rand_chacha::ChaCha20Rng;
use rand_core::{RngCore, SeedableRng};
use snow::params::{CipherChoice, DHChoice, HashChoice, NoiseParams};
use snow::resolvers::{CryptoResolver, DefaultResolver};
use snow::types::{Cipher, Dh, Hash, Random};
use snow::{Builder, Error, HandshakeState};
use zeroize::Zeroizing;

const PROLOGUE: &[u8] = b"anabranch 1";

/// Starts the exchange with a peer whose public key is known.
pub(super) fn initiator(
    local: &PrivateKey,
    public: &PublicKey,
    remote: &PublicKey,
    suite: Suite,
    header: &[u8],
    seed: Zeroizing<[u8; 32]>,
) -> Result<HandshakeState, Error> {
    Builder::with_resolver(params(suite)?, resolver(local, public, seed))
        .prologue(&prologue(header))?
        .local_private_key(local.bytes())?
        .remote_public_key(&remote.0)?
        .build_initiator()
}

/// Answers one.
pub(super) fn responder(
    local: &PrivateKey,
    public: &PublicKey,
    suite: Suite,
    header: &[u8],
    seed: Zeroizing<[u8; 32]>,
) -> Result<HandshakeState, Error> {
    Builder::with_resolver(params(suite)?, resolver(local, public, seed))
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

fn resolver(local: &PrivateKey, public: &PublicKey, seed: Zeroizing<[u8; 32]>) -> Box<Resolver> {
    Box::new(Resolver { seed, private: local.clone(), public: *public })
}

struct Resolver {
    seed: Zeroizing<[u8; 32]>,
    private: PrivateKey,
    public: PublicKey,
}

impl CryptoResolver for Resolver {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        Some(Box::new(Seeded(ChaCha20Rng::from_seed(*self.seed))))
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        match choice {
            DHChoice::Curve25519 => Some(Box::new(X25519Dh {
                known: (self.private.clone(), self.public),
                private: Zeroizing::new([0; 32]),
                public: [0; 32],
            })),
            _ => None,
        }
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        DefaultResolver.resolve_hash(choice)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        DefaultResolver.resolve_cipher(choice)
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
struct X25519Dh {
    /// The static pair: its public half is not worked out again for every handshake.
    known: (PrivateKey, PublicKey),
    private: Zeroizing<[u8; 32]>,
    public: [u8; 32],
}

impl Dh for X25519Dh {
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
        for (to, from) in self.private.iter_mut().zip(private) {
            *to = *from;
        }
        self.public = if super::mac::equal(self.private.as_slice(), self.known.0.bytes()) {
            self.known.1.0
        } else {
            public_of(&self.private)
        };
    }

    fn generate(&mut self, rng: &mut dyn Random) -> Result<(), Error> {
        let mut bytes = Zeroizing::new([0; 32]);
        rng.try_fill_bytes(&mut *bytes)?;
        self.public = public_of(&bytes);
        self.private = bytes;
        Ok(())
    }

    fn pubkey(&self) -> &[u8] {
        &self.public
    }

    fn privkey(&self) -> &[u8] {
        &*self.private
    }

    fn dh(&self, public: &[u8], out: &mut [u8]) -> Result<(), Error> {
        let public = public.get(..32).ok_or(Error::Dh)?;
        let private =
            agreement::PrivateKey::from_private_key(&X25519, &*self.private).map_err(|_| Error::Dh)?;
        agreement::agree(&private, UnparsedPublicKey::new(&X25519, public), Error::Dh, |secret| {
            out.get_mut(..32).ok_or(Error::Dh)?.copy_from_slice(secret.get(..32).ok_or(Error::Dh)?);
            Ok(())
        })
    }
}
