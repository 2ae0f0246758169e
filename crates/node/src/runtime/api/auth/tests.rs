//! Tokens made by an attacker, and keys that change.

use super::super::{Guarded, Server};
use super::keys::{Algorithm, KeySet};
use super::token::Token;
use super::verifier::Verifier;
use super::*;
use crate::runtime::config::{Listen, OAuth, Tls as TlsFiles};
use aws_lc_rs::hmac;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::{self, KeyPair as RsaKeyPair, KeySize};
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair, RSA_PKCS1_SHA256,
};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as B64;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

const ISSUER: &str = "https://as.example";
const AUDIENCE: &str = "https://slices.example";
const NOW: u64 = 1_800_000_000;

/// A signing key of an authorization server.
enum Signer {
    Rsa(RsaKeyPair),
    Ec(EcdsaKeyPair),
    Ed(Ed25519KeyPair),
}

impl Signer {
    fn new(algorithm: Algorithm) -> Self {
        match algorithm {
            Algorithm::Rs256 => Self::Rsa(RsaKeyPair::generate(KeySize::Rsa2048).unwrap()),
            Algorithm::Es256 => Self::Ec(EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap()),
            Algorithm::EdDsa => Self::Ed(Ed25519KeyPair::generate().unwrap()),
        }
    }

    fn alg(&self) -> &'static str {
        match self {
            Self::Rsa(_) => "RS256",
            Self::Ec(_) => "ES256",
            Self::Ed(_) => "EdDSA",
        }
    }

    fn jwk(&self, kid: &str) -> Value {
        match self {
            Self::Rsa(pair) => {
                let public = rsa::PublicKeyComponents::<Vec<u8>>::from(pair.public_key());
                json!({"kty": "RSA", "kid": kid, "n": B64.encode(public.n), "e": B64.encode(public.e)})
            }
            Self::Ec(pair) => {
                let point = pair.public_key().as_ref();
                json!({"kty": "EC", "crv": "P-256", "kid": kid, "use": "sig", "alg": "ES256",
                    "x": B64.encode(&point[1..33]), "y": B64.encode(&point[33..])})
            }
            Self::Ed(pair) => {
                json!({"kty": "OKP", "crv": "Ed25519", "kid": kid, "key_ops": ["verify"],
                    "x": B64.encode(pair.public_key().as_ref())})
            }
        }
    }

    fn sign(&self, message: &[u8]) -> Vec<u8> {
        let random = SystemRandom::new();
        match self {
            Self::Rsa(pair) => {
                let mut signature = vec![0; pair.public_modulus_len()];
                pair.sign(&RSA_PKCS1_SHA256, &random, message, &mut signature).unwrap();
                signature
            }
            Self::Ec(pair) => pair.sign(&random, message).unwrap().as_ref().to_vec(),
            Self::Ed(pair) => pair.sign(message).as_ref().to_vec(),
        }
    }

    fn token(&self, header: &Value, claims: &Value) -> String {
        let message = parts(header, claims);
        let signature = B64.encode(self.sign(message.as_bytes()));
        format!("{message}.{signature}")
    }
}

fn parts(header: &Value, claims: &Value) -> String {
    format!("{}.{}", B64.encode(header.to_string()), B64.encode(claims.to_string()))
}

static SIGNERS: LazyLock<[Signer; 3]> =
    LazyLock::new(|| [Algorithm::Rs256, Algorithm::Es256, Algorithm::EdDsa].map(Signer::new));

fn key_set() -> KeySet {
    let keys: Vec<Value> = SIGNERS.iter().map(|s| s.jwk(s.alg())).collect();
    KeySet::parse(json!({"keys": keys}).to_string().as_bytes()).unwrap()
}

fn config() -> OAuth {
    OAuth {
        issuer: ISSUER.into(),
        audience: AUDIENCE.into(),
        jwks: "/none".into(),
        ca_file: None,
        refresh_s: 300,
        leeway_s: 30,
        tenant_claim: "client_id".into(),
        any_type: false,
    }
}

pub fn header(alg: &str, kid: &str) -> Value {
    json!({"alg": alg, "typ": "at+jwt", "kid": kid})
}

pub fn claims() -> Value {
    json!({"iss": ISSUER, "aud": AUDIENCE, "exp": NOW + 60, "iat": NOW, "nbf": NOW, "sub": "x",
        "client_id": "acme", "scope": "anabranch:slices:read"})
}

/// The caller with this token at [`NOW`].
fn check(text: &str) -> Result<Caller, Refused> {
    check_with(text, &key_set(), &config(), NOW)
}

fn check_with(text: &str, keys: &KeySet, config: &OAuth, now: u64) -> Result<Caller, Refused> {
    let token = Token::read(text, config)?;
    token.check_claims(config, now)?;
    match token.check_signature(keys) {
        Some(true) => token.caller(config),
        Some(false) => Err(Refused::Invalid("signature")),
        None => Err(Refused::Invalid("key")),
    }
}

fn with(mut value: Value, key: &str, new: Value) -> Value {
    value[key] = new;
    value
}

fn without(mut value: Value, key: &str) -> Value {
    value.as_object_mut().unwrap().remove(key);
    value
}

#[test]
fn each_algorithm_is_accepted_with_its_own_key_only() {
    for signer in SIGNERS.iter() {
        let caller = check(&signer.token(&header(signer.alg(), signer.alg()), &claims())).unwrap();
        assert_eq!(caller.role, Role::Tenant("acme".into()));
        // Without a key id, every key of the type is tried.
        assert!(check(&signer.token(&without(header(signer.alg(), ""), "kid"), &claims())).is_ok());
        // An unknown key of the same type under the same key id.
        let algorithm = Algorithm::of(signer.alg()).unwrap();
        let stranger = Signer::new(algorithm);
        let forged = stranger.token(&header(signer.alg(), signer.alg()), &claims());
        assert!(check(&forged).is_err());
        for other in SIGNERS.iter().filter(|other| other.alg() != signer.alg()) {
            // Signed by one key but attributed to another, under each key id.
            for kid in [signer.alg(), other.alg()] {
                assert!(check(&signer.token(&header(other.alg(), kid), &claims())).is_err());
            }
            assert!(check(&signer.token(&header(signer.alg(), other.alg()), &claims())).is_err());
        }
    }
}

#[test]
fn algorithms_without_a_private_key_are_refused() {
    // HMAC with the public key, in every form in which a server may hold it.
    let set = json!({"keys": [SIGNERS[0].jwk("RS256")]});
    let n = set["keys"][0]["n"].as_str().unwrap();
    for secret in [n.as_bytes().to_vec(), B64.decode(n).unwrap(), set.to_string().into_bytes(), Vec::new()] {
        for (alg, of) in
            [("HS256", hmac::HMAC_SHA256), ("HS384", hmac::HMAC_SHA384), ("HS512", hmac::HMAC_SHA512)]
        {
            let message = parts(&header(alg, "RS256"), &claims());
            let tag = hmac::sign(&hmac::Key::new(of, &secret), message.as_bytes());
            assert!(check(&format!("{message}.{}", B64.encode(tag.as_ref()))).is_err(), "{alg}");
        }
    }
    for alg in
        ["none", "None", "NONE", "nOnE", "", "RS1", "rs256", "RS384", "RS512", "PS256", "ES384", "ES256K"]
    {
        let message = parts(&header(alg, "RS256"), &claims());
        assert!(check(&format!("{message}.")).is_err(), "{alg}");
        assert!(check(&SIGNERS[0].token(&header(alg, "RS256"), &claims())).is_err(), "{alg}");
    }
    // A symmetric key in the set is ignored.
    let oct = json!({"keys": [{"kty": "oct", "kid": "a", "k": B64.encode([7; 32]), "alg": "HS256"}]});
    assert!(KeySet::parse(oct.to_string().as_bytes()).is_err());
}

#[test]
fn a_token_cannot_choose_the_trusted_key() {
    let stranger = Signer::new(Algorithm::EdDsa);
    for (key, value) in [
        ("jwk", stranger.jwk("EdDSA")),
        ("jku", json!("https://evil.example/jwks")),
        ("x5u", json!("https://evil.example/x")),
        ("x5c", json!(["AAAA"])),
    ] {
        assert!(
            check(&stranger.token(&with(header("EdDSA", "EdDSA"), key, value), &claims())).is_err(),
            "{key}"
        );
    }
    for crit in [json!(["exp"]), json!([]), json!(["b64"])] {
        let header = with(header("EdDSA", "EdDSA"), "crit", crit);
        assert!(check(&SIGNERS[2].token(&header, &claims())).is_err());
    }
    for (typ, strict, lax) in [
        (json!("at+jwt"), true, true),
        (json!("AT+JWT"), true, true),
        (json!("application/at+jwt"), true, true),
        (json!("JWT"), false, true),
        (json!("dpop+jwt"), false, false),
        (json!("logout+jwt"), false, false),
        (json!(7), false, false),
    ] {
        let text = SIGNERS[2].token(&with(header("EdDSA", "EdDSA"), "typ", typ.clone()), &claims());
        assert_eq!(check(&text).is_ok(), strict, "{typ}");
        let config = OAuth { any_type: true, ..config() };
        assert_eq!(check_with(&text, &key_set(), &config, NOW).is_ok(), lax, "{typ}");
    }
}

#[test]
fn audience_issuer_and_times_are_checked() {
    let signer = &SIGNERS[2];
    let taken = |claims: &Value| check(&signer.token(&header("EdDSA", "EdDSA"), claims)).is_ok();
    for (key, value, fits) in [
        ("iss", json!(ISSUER), true),
        ("iss", json!("https://as.example/"), false),
        ("iss", json!("https://AS.example"), false),
        ("iss", json!([ISSUER]), false),
        ("iss", json!(null), false),
        ("aud", json!([AUDIENCE, "other"]), true),
        ("aud", json!("https://other.example"), false),
        ("aud", json!("https://slices.example.evil"), false),
        ("aud", json!([]), false),
        ("aud", json!([AUDIENCE, 7]), false),
        ("aud", json!({"a": AUDIENCE}), false),
        ("exp", json!(NOW - 29), true),
        ("exp", json!(NOW - 30), false),
        ("exp", json!(NOW as f64 + 0.5), true),
        ("exp", json!(0), false),
        ("exp", json!(-1), false),
        ("exp", json!(1e300), false),
        ("exp", json!((NOW + 60).to_string()), false),
        ("exp", json!(null), false),
        ("nbf", json!(NOW + 30), true),
        ("nbf", json!(NOW + 31), false),
        ("nbf", json!("0"), false),
        ("nbf", json!(null), false),
        ("iat", json!(NOW + 31), false),
        ("client_id", json!(""), false),
        ("client_id", json!(["acme"]), false),
        ("client_id", json!("x".repeat(257)), false),
    ] {
        assert_eq!(taken(&with(claims(), key, value.clone())), fits, "{key} {value}");
    }
    for (key, fits) in [
        ("iss", false),
        ("aud", false),
        ("exp", false),
        ("client_id", false),
        ("nbf", true),
        ("iat", true),
        ("sub", true),
    ] {
        assert_eq!(taken(&without(claims(), key)), fits, "{key}");
    }
    assert!(
        check(&"a".repeat(9000)).is_err()
            && check("").is_err()
            && check("..").is_err()
            && check("a.b.c.d").is_err()
    );
}

#[test]
fn scopes_determine_roles() {
    let of = |scope: Value| {
        let claims = with(claims(), "scope", scope);
        check(&SIGNERS[2].token(&header("EdDSA", "EdDSA"), &claims)).unwrap()
    };
    assert_eq!(of(json!("a anabranch:operator")).role, Role::Operator);
    assert_eq!(of(json!("anabranch:reader anabranch:operator")).role, Role::Operator);
    assert_eq!(of(json!(["anabranch:reader"])).role, Role::Reader);
    let tenant = of(json!("quality-on-demand:sessions:read"));
    assert_eq!(tenant.role, Role::Tenant("acme".into()));
    assert!(tenant.has_any(&["x", "quality-on-demand:sessions:read"]) && !tenant.has_any(&["x"]));
    for none in [json!("xanabranch:operator"), json!("ANABRANCH:OPERATOR"), json!(7), json!("")] {
        let caller = of(none.clone());
        assert!(
            matches!(caller.role, Role::Tenant(_)) && !caller.has_any(&["anabranch:slices:read"]),
            "{none}"
        );
    }
    assert_eq!(of(json!("x")).until, Some(NOW + 60 + 30));
}

#[test]
fn unsupported_keys_are_ignored() {
    let good = SIGNERS[2].jwk("good");
    let set = |keys: Vec<Value>| KeySet::parse(json!({"keys": keys}).to_string().as_bytes());
    let weak = json!({"kty": "RSA", "kid": "w", "n": B64.encode([0xff; 128]), "e": "AQAB"});
    for other in [
        json!({}),
        json!(7),
        json!({"kty": "PQC", "x": "AA"}),
        json!({"kty": "EC", "crv": "P-521", "x": "AA", "y": "AA"}),
        json!({"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"}),
        json!({"kty": "OKP", "crv": "X25519", "x": B64.encode([9; 32])}),
        with(good.clone(), "use", json!("enc")),
        with(good.clone(), "key_ops", json!(["sign"])),
        with(good.clone(), "alg", json!("ES256")),
        weak,
    ] {
        assert_eq!(set(vec![other.clone(), good.clone()]).unwrap().len(), 1, "{other}");
        assert!(set(vec![other]).is_err());
    }
    assert!(KeySet::parse(b"[]").is_err() && KeySet::parse(b"").is_err() && set(Vec::new()).is_err());
    assert_eq!(set(vec![good; 1000]).unwrap().len(), 64);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Any change to a token makes it invalid.
    #[test]
    fn a_modified_token_is_refused(which in 0..3_usize, at in any::<prop::sample::Index>(), to in "[A-Za-z0-9_.-]") {
        let signer = &SIGNERS[which];
        let text = signer.token(&header(signer.alg(), signer.alg()), &claims());
        let at = at.index(text.len());
        let mut touched = text.clone();
        touched.replace_range(at..=at, &to);
        prop_assert_eq!(check(&touched).is_ok(), touched == text);
        prop_assert!(check(&text[..at]).is_err());
    }

    /// No input makes the parser panic.
    #[test]
    fn any_text_is_read_or_refused(text in ".{0,200}", header in "[ -~]{0,60}", claims in "[ -~]{0,60}") {
        let _ = check(&text);
        let _ = check(&format!("{}.{}.{}", B64.encode(header), B64.encode(claims), "AA"));
        let _ = KeySet::parse(text.as_bytes());
    }

    /// Times are checked according to RFC 7519 §4.1.4 and §4.1.5, with the leeway.
    #[test]
    fn times_are_checked_as_in_the_rfc(exp in 0..4000_u64, nbf in 0..4000_u64, now in 0..4000_u64, leeway in 0..=300_u32) {
        let config = OAuth { leeway_s: leeway, ..config() };
        let claims = with(without(with(claims(), "exp", json!(exp)), "iat"), "nbf", json!(nbf));
        let text = parts(&header("EdDSA", "EdDSA"), &claims) + ".AA";
        let holds = now < exp + u64::from(leeway) && now + u64::from(leeway) >= nbf;
        prop_assert_eq!(Token::read(&text, &config).unwrap().check_claims(&config, now).is_ok(), holds);
    }
}

/// A simulated authorization server that serves its keys over https and counts the requests.
struct Keys {
    asked: Arc<AtomicU32>,
    current: Arc<std::sync::Mutex<String>>,
    /// Never answers.
    slow: Arc<AtomicBool>,
    server: Option<Server>,
    url: String,
    folder: tempfile::TempDir,
}

/// Creates a certificate for this machine and its authority in a directory.
pub fn certificate(folder: &std::path::Path) -> TlsFiles {
    certificate_of(folder, &["localhost", "127.0.0.1"], 4000)
}

/// The same for other names, valid until this year.
fn certificate_of(folder: &std::path::Path, names: &[&str], until: i32) -> TlsFiles {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair as Pair};
    let authority_key = Pair::generate().unwrap();
    let mut authority = CertificateParams::new(Vec::<String>::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority_certificate = authority.self_signed(&authority_key).unwrap();
    let issuer = Issuer::new(authority, authority_key);
    let key = Pair::generate().unwrap();
    let mut own =
        CertificateParams::new(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()).unwrap();
    own.not_after = rcgen::date_time_ymd(until, 1, 1);
    let own = own.signed_by(&key, &issuer).unwrap();
    let files = TlsFiles { certificate: folder.join("cert.pem"), key: folder.join("key.pem") };
    std::fs::write(&files.certificate, own.pem()).unwrap();
    std::fs::write(&files.key, key.serialize_pem()).unwrap();
    std::fs::write(folder.join("ca.pem"), authority_certificate.pem()).unwrap();
    files
}

impl Keys {
    async fn serve() -> Self {
        Self::serve_as(&["localhost", "127.0.0.1"], 4000).await
    }

    /// Serves with a certificate for these names, valid until this year.
    async fn serve_as(names: &[&str], until: i32) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let tls = super::super::tls::Tls::new(&certificate_of(folder.path(), names, until)).unwrap();
        let slow = Arc::<AtomicBool>::default();
        let asked = Arc::new(AtomicU32::new(0));
        let current = Arc::new(std::sync::Mutex::new(String::new()));
        let (count, text, waits) = (asked.clone(), current.clone(), slow.clone());
        let answer = async move || {
            count.fetch_add(1, Ordering::Relaxed);
            if waits.load(Ordering::Relaxed) {
                std::future::pending::<()>().await;
            }
            text.lock().unwrap().clone()
        };
        let endless = async || {
            let parts = futures_util::stream::repeat_with(|| Ok::<_, std::io::Error>(vec![b' '; 65_536]));
            axum::body::Body::from_stream(parts)
        };
        let router = axum::Router::new()
            .route("/jwks", axum::routing::get(answer))
            .route("/endless", axum::routing::get(endless))
            .route("/moved", axum::routing::get(async || axum::response::Redirect::temporary("/jwks")));
        let mut server = Server::default();
        let guarded = Guarded { tls: Some(Arc::new(tls)), changes_without_token: true, ..Guarded::default() };
        let at = server.listen(&Listen::Tcp("127.0.0.1:0".parse().unwrap()), router, guarded).await.unwrap();
        let url = format!("https://{}", at.unwrap());
        Self { asked, current, slow, server: Some(server), url, folder }
    }

    fn set(&self, signers: &[(&Signer, &str)]) {
        let keys: Vec<Value> = signers.iter().map(|(signer, kid)| signer.jwk(kid)).collect();
        *self.current.lock().unwrap() = json!({"keys": keys}).to_string();
    }

    fn verifier(&self, path: &str, gap: Duration) -> Verifier {
        let ca_file = Some(self.folder.path().join("ca.pem"));
        let config = OAuth { jwks: format!("{}{path}", self.url), ca_file, ..config() };
        Verifier::with_gap(&config, gap).unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_read_again_for_an_unknown_key_at_a_limited_rate() {
    const GAP: Duration = Duration::from_millis(1500);
    let mut keys = Keys::serve().await;
    let (old, new) = (&SIGNERS[2], Signer::new(Algorithm::EdDsa));
    keys.set(&[(old, "1")]);
    let verifier = keys.verifier("/jwks", GAP);
    let honest = old.token(&header("EdDSA", "1"), &claims());
    // The first request waits for the keys.
    assert!(verifier.check(&honest, NOW).await.is_ok());
    assert_eq!(keys.asked.load(Ordering::Relaxed), 1);
    // Hundreds of unknown key ids at once: valid tokens are accepted, and the server is not queried for each
    // id.
    let started = std::time::Instant::now();
    let flood = (0..500).map(|n| {
        let (text, verifier, honest) =
            (old.token(&header("EdDSA", &format!("x{n}")), &claims()), &verifier, &honest);
        async move {
            assert_eq!(verifier.check(&text, NOW).await, Err(Refused::Invalid("its key is not known")));
            assert!(verifier.check(honest, NOW).await.is_ok());
        }
    });
    futures_util::future::join_all(flood).await;
    let most = 2 + started.elapsed().as_millis() / GAP.as_millis();
    let asked = keys.asked.load(Ordering::Relaxed);
    assert!(u128::from(asked) <= most, "{asked}");
    // A new key, and the old one removed.
    keys.set(&[(&new, "2")]);
    tokio::time::sleep(GAP).await;
    assert!(verifier.check(&new.token(&header("EdDSA", "2"), &claims()), NOW).await.is_ok());
    assert!(verifier.check(&honest, NOW).await.is_err());
    // After an invalid answer, or without an answer, the previous keys stay in use.
    *keys.current.lock().unwrap() = "{\"keys\": []}".into();
    for gone in [false, true] {
        if gone {
            keys.server = None;
        }
        tokio::time::sleep(GAP).await;
        assert!(verifier.check(&honest, NOW).await.is_err());
        assert!(verifier.check(&new.token(&header("EdDSA", "2"), &claims()), NOW).await.is_ok());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_keys_all_tokens_are_refused() {
    let keys = Keys::serve().await;
    keys.set(&[(&SIGNERS[2], "1")]);
    let token = SIGNERS[2].token(&header("EdDSA", "1"), &claims());
    // Too long; redirected; missing.
    for path in ["/endless", "/moved", "/none"] {
        let verifier = keys.verifier(path, Duration::from_millis(50));
        assert_eq!(verifier.check(&token, NOW).await, Err(Refused::NoKeys), "{path}");
    }
    // A certificate of another authority.
    let folder = tempfile::tempdir().unwrap();
    certificate(folder.path());
    let ca_file = Some(folder.path().join("ca.pem"));
    let config = OAuth { jwks: format!("{}/jwks", keys.url), ca_file, ..config() };
    let verifier = Verifier::with_gap(&config, Duration::from_millis(50)).unwrap();
    assert_eq!(verifier.check(&token, NOW).await, Err(Refused::NoKeys));
    assert_eq!(keys.asked.load(Ordering::Relaxed), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_of_a_server_without_a_valid_certificate_are_refused() {
    for (names, until) in [(&["localhost", "127.0.0.9"][..], 4000), (&["localhost", "127.0.0.1"][..], 2020)] {
        let keys = Keys::serve_as(names, until).await;
        keys.set(&[(&SIGNERS[2], "1")]);
        let token = SIGNERS[2].token(&header("EdDSA", "1"), &claims());
        let verifier = keys.verifier("/jwks", Duration::from_millis(50));
        assert_eq!(verifier.check(&token, NOW).await, Err(Refused::NoKeys), "{names:?} {until}");
        assert_eq!(keys.asked.load(Ordering::Relaxed), 0);
    }
}

/// A request with a known key does not wait for the server; a request with an unknown key is answered after
/// the time limit.
#[tokio::test(flavor = "multi_thread")]
async fn an_unresponsive_server_does_not_delay_tokens_with_known_keys() {
    let keys = Keys::serve().await;
    keys.set(&[(&SIGNERS[2], "1")]);
    let token = |kid: &str| SIGNERS[2].token(&header("EdDSA", kid), &claims());
    const GAP: Duration = Duration::from_secs(1);
    let verifier = Arc::new(keys.verifier("/jwks", GAP));
    assert!(verifier.check(&token("1"), NOW).await.is_ok());
    keys.slow.store(true, Ordering::Relaxed);
    tokio::time::sleep(GAP).await;
    let begun = std::time::Instant::now();
    let unknown = (0..20).map(|n| {
        let (verifier, text) = (verifier.clone(), token(&format!("x{n}")));
        tokio::spawn(async move { verifier.check(&text, NOW).await })
    });
    let unknown: Vec<_> = unknown.collect();
    while keys.asked.load(Ordering::Relaxed) < 2 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    for _ in 0..100 {
        assert!(verifier.check(&token("1"), NOW).await.is_ok());
    }
    assert!(!unknown.iter().any(tokio::task::JoinHandle::is_finished), "{:?}", begun.elapsed());
    for one in unknown {
        assert_eq!(one.await.unwrap(), Err(Refused::Invalid("its key is not known")));
    }
    // The requests wait in parallel.
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    assert!(verifier.check(&token("1"), NOW).await.is_ok());
}

#[tokio::test]
async fn keys_of_a_file_are_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jwks.json");
    let config = OAuth { jwks: path.display().to_string(), ..config() };
    assert!(Verifier::new(&config).is_err());
    let write = |signer: &Signer, kid: &str| {
        std::fs::write(&path, json!({"keys": [signer.jwk(kid)]}).to_string()).unwrap();
    };
    write(&SIGNERS[1], "1");
    let verifier = Verifier::with_gap(&config, Duration::from_millis(20)).unwrap();
    assert!(verifier.check(&SIGNERS[1].token(&header("ES256", "1"), &claims()), NOW).await.is_ok());
    write(&SIGNERS[0], "2");
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(verifier.check(&SIGNERS[0].token(&header("RS256", "2"), &claims()), NOW).await.is_ok());
}

/// An authorization server with keys in a file, for tests of listeners: its `[api]` configuration, and
/// tokens.
pub struct Issuing(tempfile::TempDir);

impl Issuing {
    pub fn new() -> (Self, OAuth) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("jwks.json");
        std::fs::write(&path, json!({"keys": [SIGNERS[2].jwk("1")]}).to_string()).unwrap();
        (Self(folder), OAuth { jwks: path.display().to_string(), ..config() })
    }

    /// A token of this tenant with these scopes, valid for `seconds`.
    pub fn token(&self, tenant: &str, scope: &str, seconds: i64) -> String {
        assert!(self.0.path().exists());
        let now = anabranch_engine::clock::unix_ns() / 1_000_000_000;
        let claims = json!({"iss": ISSUER, "aud": AUDIENCE, "exp": now as i64 + seconds, "client_id": tenant, "scope": scope});
        SIGNERS[2].token(&header("EdDSA", "1"), &claims)
    }
}
