//! The two ends of the Noise IK handshake.

use super::aead::SessionKeys;
use super::keys::{PrivateKey, PublicKey};
use super::mac::{Cookie, CookieJar, Labels, Mac, mac2};
use super::noise::{Agreements, Exchange};
use super::{Suite, noise};
use crate::PathId;
use anabranch_element::time::Instant;
use anabranch_wire::WireError;
use anabranch_wire::handshake::{
    CookieMessage, HANDSHAKE_MAX, Hello, Init, MAC_LEN, NOISE_1_OVERHEAD, NOISE_2_OVERHEAD, Refused,
    Response, VERSION, Welcome,
};
use core::fmt;
use rand_chacha::ChaCha20Rng;
use rand_core::{CryptoRng, RngCore, SeedableRng};
use std::net::SocketAddr;
use thiserror::Error;
use zeroize::Zeroizing;

/// Why the UE's end of a handshake did not proceed. The handshake continues after all errors except
/// [`HandshakeError::Finished`] and [`HandshakeError::Refused`]: a forged answer does not end it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum HandshakeError {
    /// Not a well-formed message of its type, or a value that cannot be encoded.
    #[error("malformed handshake message: {0}")]
    Malformed(#[from] WireError),
    /// For a different handshake: an index or the path differs.
    #[error("answer is for another handshake")]
    NotOurs,
    /// The suite is not the requested one.
    #[error("answer has another suite")]
    Suite,
    /// mac1 is not that of a peer that knows this end's public key, or there is a mac2 although none was
    /// requested.
    #[error("answer's MACs are wrong")]
    Mac,
    /// Forged or damaged, or not from the peer's key.
    #[error("answer does not authenticate")]
    Authentication,
    /// The UPF knows this UE and refuses a session for now. The handshake is over.
    #[error("{}", .0.as_str())]
    Refused(Refused),
    /// The handshake is already complete.
    #[error("handshake is finished already")]
    Finished,
    /// The Noise library failed: the peer's public key is of low order, or there is no memory.
    #[error("handshake cannot be made with this peer key")]
    Library,
}

/// Why the UPF drops an init. Each reason has a counter.
///
/// [`Responder::inspect`] returns those up to [`Refusal::Shard`]. The others are determined by the UPF, and
/// listed here so that all are counted in one place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Refusal {
    /// Not an init, or of an impossible length.
    Malformed,
    /// An unsupported version of the protocol.
    Version,
    /// An unknown suite.
    Suite,
    /// mac1 is wrong: the sender does not know the UPF's public key, or the message is damaged.
    Mac1,
    /// The Noise message does not authenticate.
    Authentication,
    /// The hello is unreadable.
    Hello,
    /// The shard hint does not match the UE's key.
    Shard,
    /// The UE's key is not configured.
    UnknownUe,
    /// The timestamp is not greater than the last one: a replay, or a UE whose clock went back.
    Replayed,
    /// Its network has used up its share of computed handshakes.
    Rate,
    /// No room for another session.
    Full,
}

impl Refusal {
    /// All reasons, in the order of their counters.
    pub const ALL: [Self; 11] = [
        Self::Malformed,
        Self::Version,
        Self::Suite,
        Self::Mac1,
        Self::Authentication,
        Self::Hello,
        Self::Shard,
        Self::UnknownUe,
        Self::Replayed,
        Self::Rate,
        Self::Full,
    ];

    /// Name for logs and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::Version => "version",
            Self::Suite => "suite",
            Self::Mac1 => "mac1",
            Self::Authentication => "authentication",
            Self::Hello => "hello",
            Self::Shard => "shard",
            Self::UnknownUe => "unknown_ue",
            Self::Replayed => "replayed",
            Self::Rate => "rate",
            Self::Full => "full",
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The result of a handshake at the UE.
#[derive(Debug)]
pub struct Established {
    /// Keys of the new epoch.
    pub keys: SessionKeys,
    /// Index under which the UPF receives packets of this epoch.
    pub peer_index: u32,
    /// The parameters that the UPF assigns to the UE.
    pub welcome: Welcome,
    /// Path on which the handshake took place.
    pub path: PathId,
}

/// The UE's end.
pub struct Initiator {
    noise: Exchange,
    suite: Suite,
    sender_index: u32,
    path: PathId,
    /// MAC labels of the UE's own key, with which messages to the UE are authenticated.
    local: Labels,
    remote: Labels,
    mac1: Mac,
}

impl Initiator {
    /// Creates an init. `timestamp_ns` is Unix time in ns and must be greater than in every previous init,
    /// across restarts. `cookie` is one that the UPF requested, for this address, within
    /// [`super::COOKIE_LIFETIME`].
    ///
    /// A lost init must not be sent again unchanged, because the UPF would take it for a replay. Create a new
    /// one.
    ///
    /// # Errors
    /// [`HandshakeError::Malformed`] if `hello` is out of range, [`HandshakeError::Library`] for an unusable
    /// `remote`.
    #[expect(clippy::too_many_arguments, reason = "each is a separate input of one message")]
    pub fn start(
        local: &PrivateKey,
        remote: &PublicKey,
        suite: Suite,
        sender_index: u32,
        timestamp_ns: u64,
        hello: &Hello,
        cookie: Option<&Cookie>,
        rng: &mut impl CryptoRng,
    ) -> Result<(Self, Vec<u8>), HandshakeError> {
        let payload = hello.encode(timestamp_ns)?;
        let public = local.public();
        let mut message =
            Init::emit(suite, public.shard_hint(), sender_index, NOISE_1_OVERHEAD + payload.len());
        let macs_at = message.len() - 2 * MAC_LEN;
        let mut noise = noise::initiator(local, remote, suite, &message[..Init::HEADER], seed(rng))
            .map_err(|_| HandshakeError::Library)?;
        noise
            .write_message(&payload, &mut message[Init::HEADER..macs_at])
            .map_err(|_| HandshakeError::Library)?;
        let labels = Labels::new(remote);
        let mac1 = labels.mac1(&message[..macs_at]);
        message[macs_at..macs_at + MAC_LEN].copy_from_slice(&mac1);
        if let Some(cookie) = cookie {
            let mac = mac2(cookie, &message[..macs_at + MAC_LEN]);
            message[macs_at + MAC_LEN..].copy_from_slice(&mac);
        }
        let this = Self {
            noise,
            suite,
            sender_index,
            path: hello.path,
            local: Labels::new(&public),
            remote: labels,
            mac1,
        };
        Ok((this, message))
    }

    /// Reads the response. An error leaves the handshake unchanged, so a forged response has no effect.
    ///
    /// # Errors
    /// [`HandshakeError`]. The genuine response may still arrive, except after [`HandshakeError::Finished`],
    /// [`HandshakeError::Refused`], and [`HandshakeError::Malformed`] for an unreadable welcome.
    pub fn finish(&mut self, datagram: &[u8]) -> Result<Established, HandshakeError> {
        if self.noise.is_handshake_finished() {
            return Err(HandshakeError::Finished);
        }
        let response = Response::parse(datagram)?;
        if response.receiver() != self.sender_index || response.path() != self.path {
            return Err(HandshakeError::NotOurs);
        }
        if response.suite() != self.suite {
            return Err(HandshakeError::Suite);
        }
        let (mac1, covered) = response.mac1();
        // The UE sends no cookies, so a response has no mac2.
        if !self.local.mac1_is(covered, mac1) || response.mac2().0 != [0; MAC_LEN] {
            return Err(HandshakeError::Mac);
        }
        let mut payload = [0; HANDSHAKE_MAX];
        let length = self
            .noise
            .read_message(response.noise(), &mut payload)
            .map_err(|_| HandshakeError::Authentication)?;
        let payload = payload.get(..length).unwrap_or_default();
        if let Some(refused) = Refused::decode(payload) {
            return Err(HandshakeError::Refused(refused));
        }
        // The index in the header is for observers; this one is authenticated.
        let (index, welcome) = Welcome::decode(payload)?;
        let (to_upf, to_ue) = split(&mut self.noise);
        Ok(Established {
            keys: SessionKeys::new(self.suite, to_upf, to_ue),
            peer_index: index,
            welcome,
            path: self.path,
        })
    }

    /// Reads a cookie message that answers this init. Create a new init with the cookie, from the same
    /// address.
    ///
    /// # Errors
    /// [`HandshakeError::Malformed`], [`HandshakeError::NotOurs`], or [`HandshakeError::Authentication`] if
    /// it does not answer this init or is not from this UPF.
    pub fn on_cookie(&self, datagram: &[u8]) -> Result<Cookie, HandshakeError> {
        let message = CookieMessage::parse(datagram)?;
        if message.receiver != self.sender_index {
            return Err(HandshakeError::NotOurs);
        }
        self.remote.open_cookie(&message, &self.mac1).ok_or(HandshakeError::Authentication)
    }

    /// Index under which the UE receives packets of the new epoch.
    #[must_use]
    pub fn sender_index(&self) -> u32 {
        self.sender_index
    }
}

impl fmt::Debug for Initiator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Initiator(index {}, path {})", self.sender_index, self.path)
    }
}

/// The UPF's action on an init.
#[derive(Debug)]
pub enum Verdict {
    /// Drop and count.
    Refused(Refusal),
    /// Send this to the source of the init, and keep no state.
    Cookie(Vec<u8>),
    /// All checks before expensive computations have passed: read it.
    Passed(UnreadInit),
}

/// The UPF's end.
pub struct Responder {
    private: PrivateKey,
    labels: Labels,
    jar: CookieJar,
    /// Source of ephemeral keys.
    rng: ChaCha20Rng,
}

impl Responder {
    /// `seed` must be secret and fresh at every start: cookie secrets and ephemeral keys are derived from it.
    #[must_use]
    pub fn new(private: PrivateKey, seed: [u8; 32]) -> Self {
        let public = private.public();
        let mut rng = ChaCha20Rng::from_seed(seed);
        let jar = CookieJar::new(ChaCha20Rng::from_rng(&mut rng));
        Self { private, labels: Labels::new(&public), jar, rng }
    }

    /// The UPF's public key.
    #[must_use]
    pub fn public(&self) -> PublicKey {
        self.private.public()
    }

    /// Examines an init, the cheapest checks first. Never keeps state.
    ///
    /// `under_load`: answer with a cookie, which is not longer than the init, unless the init carries one.
    pub fn inspect(&mut self, datagram: &[u8], from: SocketAddr, now: Instant, under_load: bool) -> Verdict {
        self.inspect_if(datagram, from, now, under_load, || true)
    }

    /// As [`Self::inspect`]; `may_compute` is called once all checks have passed. If it returns `false`, the
    /// init is refused with [`Refusal::Rate`].
    pub fn inspect_if(
        &mut self,
        datagram: &[u8],
        from: SocketAddr,
        now: Instant,
        under_load: bool,
        may_compute: impl FnOnce() -> bool,
    ) -> Verdict {
        match self.try_inspect(datagram, from, now, under_load, may_compute) {
            Ok(verdict) => verdict,
            Err(refusal) => Verdict::Refused(refusal),
        }
    }

    fn try_inspect(
        &mut self,
        datagram: &[u8],
        from: SocketAddr,
        now: Instant,
        under_load: bool,
        may_compute: impl FnOnce() -> bool,
    ) -> Result<Verdict, Refusal> {
        match *datagram {
            [0x10, VERSION, suite, ..] => Suite::try_from(suite).map_err(|_| Refusal::Suite)?,
            [0x10, version, ..] if version != VERSION => return Err(Refusal::Version),
            _ => return Err(Refusal::Malformed),
        };
        let init = Init::parse(datagram).map_err(|_| Refusal::Malformed)?;
        let (mac1, covered) = init.mac1();
        if !self.labels.mac1_is(covered, mac1) {
            return Err(Refusal::Mac1);
        }
        if under_load {
            let (mac2, covered) = init.mac2();
            if !self.jar.mac2_is(covered, mac2, from, now) {
                let cookie = self.jar.bake(&self.labels, init.sender(), mac1, from, now);
                return Ok(Verdict::Cookie(cookie.ok_or(Refusal::Full)?.to_bytes().to_vec()));
            }
        }
        if !may_compute() {
            return Err(Refusal::Rate);
        }
        Ok(Verdict::Passed(UnreadInit {
            private: self.private.clone(),
            seed: seed(&mut self.rng),
            message: datagram.to_vec(),
        }))
    }
}

/// An init for which nothing expensive has been computed. It is independent of the UPF and may be read on
/// another thread.
pub struct UnreadInit {
    private: PrivateKey,
    /// Source of the ephemeral key.
    seed: Raw,
    message: Vec<u8>,
}

impl UnreadInit {
    /// Reads the init: two products of X25519.
    ///
    /// # Errors
    /// [`Refusal`]: it does not authenticate, or its hello is unreadable.
    pub fn read(self) -> Result<PendingInit, Refusal> {
        let init = Init::parse(&self.message).map_err(|_| Refusal::Malformed)?;
        let header = &self.message[..Init::HEADER];
        let (mut noise, agreements) =
            noise::responder(&self.private, init.suite(), header, self.seed).map_err(|_| Refusal::Full)?;
        let mut payload = [0; HANDSHAKE_MAX];
        let length = noise.read_message(init.noise(), &mut payload).map_err(|_| Refusal::Authentication)?;
        let peer = noise.get_remote_static().and_then(|key| key.try_into().ok()).map(PublicKey);
        let peer = peer.ok_or(Refusal::Authentication)?;
        let ephemeral = init.noise().first_chunk().copied().map(PublicKey).ok_or(Refusal::Malformed)?;
        let (timestamp_ns, hello) =
            Hello::decode(payload.get(..length).unwrap_or_default()).map_err(|_| Refusal::Hello)?;
        if peer.shard_hint() != init.shard_hint() {
            return Err(Refusal::Shard);
        }
        Ok(PendingInit {
            peer,
            ephemeral,
            hello,
            timestamp_ns,
            sender_index: init.sender(),
            suite: init.suite(),
            noise,
            agreements,
        })
    }
}

impl fmt::Debug for UnreadInit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UnreadInit({} bytes)", self.message.len())
    }
}

/// An init whose sender has proved its key.
pub struct PendingInit {
    peer: PublicKey,
    ephemeral: PublicKey,
    hello: Hello,
    timestamp_ns: u64,
    sender_index: u32,
    suite: Suite,
    noise: Exchange,
    agreements: Agreements,
}

impl PendingInit {
    /// Precomputes three products of X25519 for the response, so that creating the response is cheap. The
    /// response is the same without.
    pub fn prepare(&self) {
        self.agreements.prepare([&self.ephemeral, &self.peer]);
    }

    /// The UE's static public key.
    #[must_use]
    pub fn peer(&self) -> PublicKey {
        self.peer
    }

    /// The properties that the UE announces.
    #[must_use]
    pub fn hello(&self) -> &Hello {
        &self.hello
    }

    /// The UE's Unix time in ns, to be checked by the UE's [`super::TimestampGuard`].
    #[must_use]
    pub fn timestamp_ns(&self) -> u64 {
        self.timestamp_ns
    }

    /// Index under which the UE receives packets of the new epoch.
    #[must_use]
    pub fn sender_index(&self) -> u32 {
        self.sender_index
    }

    /// The suite chosen by the UE.
    #[must_use]
    pub fn suite(&self) -> Suite {
        self.suite
    }

    /// Creates the response, to be sent back on the path of the init, and the keys of the new epoch.
    /// `local_index` is the one under which the UPF receives it.
    ///
    /// The keys must not protect anything sent before a packet under them has been opened. Only such a packet
    /// shows that the init was not a replay (Noise §7.8).
    ///
    /// # Errors
    /// [`HandshakeError::Malformed`] if `welcome` is out of range; [`HandshakeError::Library`] for a UE
    /// whose ephemeral key is of low order.
    pub fn respond(
        mut self,
        local_index: u32,
        welcome: &Welcome,
    ) -> Result<(SessionKeys, Vec<u8>), HandshakeError> {
        let message = self.message(local_index, &welcome.encode(local_index)?)?;
        let (to_upf, to_ue) = split(&mut self.noise);
        Ok((SessionKeys::new(self.suite, to_ue, to_upf), message))
    }

    /// Creates the response that refuses a session to the UE.
    ///
    /// # Errors
    /// [`HandshakeError::Library`] for a UE whose ephemeral key is of low order.
    pub fn refuse(mut self, refused: Refused) -> Result<Vec<u8>, HandshakeError> {
        self.message(0, &refused.encode())
    }

    fn message(&mut self, local_index: u32, payload: &[u8]) -> Result<Vec<u8>, HandshakeError> {
        let noise_len = NOISE_2_OVERHEAD + payload.len();
        let mut message =
            Response::emit(self.suite, self.hello.path, local_index, self.sender_index, noise_len);
        let macs_at = message.len() - 2 * MAC_LEN;
        self.noise
            .write_message(payload, &mut message[Response::HEADER..macs_at])
            .map_err(|_| HandshakeError::Library)?;
        let mac1 = Labels::new(&self.peer).mac1(&message[..macs_at]);
        message[macs_at..macs_at + MAC_LEN].copy_from_slice(&mac1);
        Ok(message)
    }
}

impl fmt::Debug for PendingInit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PendingInit({}, index {}, path {})", self.peer, self.sender_index, self.hello.path)
    }
}

type Raw = Zeroizing<[u8; 32]>;

/// The keys towards the UPF and towards the UE.
fn split(noise: &mut Exchange) -> (Raw, Raw) {
    let (to_upf, to_ue) = noise.dangerously_get_raw_split();
    (Zeroizing::new(to_upf), Zeroizing::new(to_ue))
}

fn seed(rng: &mut impl RngCore) -> Raw {
    let mut seed = Zeroizing::new([0; 32]);
    rng.fill_bytes(&mut *seed);
    seed
}

#[cfg(test)]
mod tests;
