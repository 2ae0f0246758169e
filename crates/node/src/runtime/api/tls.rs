//! TLS of listeners: TLS 1.2 and 1.3 with AWS-LC. Certificates can be replaced at run time.

use super::super::config::{Tls as Config, warn_if_open};
use super::super::times::rfc3339;
use anabranch_engine::clock::unix_ns;
use anyhow::Context;
use arc_swap::ArcSwap;
use rustls::ServerConfig;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::sync::Arc;

/// Certificate and key of listeners; shared by all listeners that use the same files.
pub struct Tls {
    files: Config,
    current: ArcSwap<ServerConfig>,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").field("files", &self.files).finish_non_exhaustive()
    }
}

impl Tls {
    /// Reads certificate and key.
    ///
    /// # Errors
    /// A file cannot be read, or the two do not match.
    pub fn new(files: &Config) -> anyhow::Result<Self> {
        Ok(Self { files: files.clone(), current: ArcSwap::from_pointee(read(files)?) })
    }

    /// Reads the files again, for new connections. After an error, the previous ones stay in use.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn reload(&self) -> anyhow::Result<()> {
        self.current.store(Arc::new(read(&self.files)?));
        Ok(())
    }

    /// The TLS configuration for a new connection.
    pub fn current(&self) -> Arc<ServerConfig> {
        self.current.load_full()
    }
}

/// The cryptography provider of all TLS connections of this program.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

fn read(files: &Config) -> anyhow::Result<ServerConfig> {
    let (certificate, key) = (files.certificate.display(), files.key.display());
    let place = || format!("certificate {certificate}");
    let chain = CertificateDer::pem_file_iter(&files.certificate).with_context(place)?;
    let chain = chain.collect::<Result<Vec<_>, _>>().with_context(place)?;
    anyhow::ensure!(!chain.is_empty(), "certificate {certificate}: the file has no certificate");
    if let Some(trouble) = chain.first().and_then(|own| trouble(own, unix_ns() / 1_000_000)) {
        // Clients that trust the certificate by other means are not affected.
        tracing::warn!("clients refuse certificate {certificate}: {trouble}");
    }
    warn_if_open("key", &files.key);
    let private = PrivateKeyDer::from_pem_file(&files.key).with_context(|| format!("key {key}"))?;
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])?
        .with_no_client_auth()
        .with_single_cert(chain, private)
        .with_context(|| format!("certificate {certificate} with key {key}"))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    // 0-RTT data is disabled: the server keeps no state for it.
    config.max_early_data_size = 0;
    Ok(config)
}

/// The reason why clients refuse a certificate at this time, Unix time in milliseconds (RFC 5280 §4.1.2.5).
/// `None` also for a certificate that cannot be parsed. The TLS library does not check the validity of its
/// own certificate.
fn trouble(certificate: &[u8], now_ms: u64) -> Option<String> {
    let (_, certificate) = x509_parser::parse_x509_certificate(certificate).ok()?;
    let ms =
        |time: x509_parser::time::ASN1Time| u64::try_from(time.timestamp()).unwrap_or(0).saturating_mul(1000);
    let validity = certificate.validity();
    let (not_before_ms, not_after_ms) = (ms(validity.not_before), ms(validity.not_after));
    if now_ms > not_after_ms {
        Some(format!("it was valid until {}: renew it", rfc3339(not_after_ms)))
    } else if now_ms < not_before_ms {
        let (from, now) = (rfc3339(not_before_ms), rfc3339(now_ms));
        Some(format!("it is valid from {from} on, and this machine's clock is at {now}"))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::super::auth::tests::certificate;
    use super::super::client::{self, Trust};
    use super::super::{Guarded, Server};
    use super::*;
    use crate::runtime::config::Listen;

    async fn serve(tls: Arc<Tls>) -> (Server, String) {
        let mut server = Server::default();
        let router = axum::Router::new().fallback(async || "hello");
        let guarded = Guarded { tls: Some(tls), changes_without_token: true, ..Guarded::default() };
        let at = Listen::Tcp("127.0.0.1:0".parse().unwrap());
        let address = server.listen(&at, router, guarded).await.unwrap().unwrap();
        (server, address.to_string())
    }

    async fn ask(trust: Trust<'_>, url: &str) -> Result<String, String> {
        let http = client::builder(trust).unwrap().build().unwrap();
        let answer = http.get(url).send().await.map_err(|e| format!("{e:?}"))?;
        answer.text().await.map_err(|e| e.to_string())
    }

    #[tokio::test]
    async fn a_listener_is_verified_by_its_certificate_which_can_be_replaced() {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let files = certificate(one.path());
        let other = certificate(two.path());
        let tls = Arc::new(Tls::new(&files).unwrap());
        let (_server, at) = serve(tls.clone()).await;
        let url = format!("https://{at}/");
        // The authority is replaced together with the certificate; the first one is kept for the test.
        let ca = one.path().join("ca.pem");
        let old = one.path().join("old.pem");
        std::fs::copy(&ca, &old).unwrap();
        let (first, second) = (Trust::Authorities(&old), two.path().join("ca.pem"));
        assert_eq!(ask(first, &url).await.unwrap(), "hello");
        for trust in [Trust::Authorities(&second), Trust::System, Trust::Nobody] {
            assert!(ask(trust, &url).await.unwrap_err().contains("InvalidCertificate"), "{trust:?}");
        }
        assert!(ask(Trust::Nobody, &format!("http://{at}/")).await.is_err(), "in the clear");
        // A name that is not in the certificate.
        assert!(ask(first, &url.replace("127.0.0.1", "127.0.0.2")).await.is_err());
        // The key of another certificate, or none: the previous files stay in use.
        for wrong in [std::fs::read(&other.key).unwrap(), b"nonsense".to_vec(), Vec::new()] {
            let kept = std::fs::read(&files.key).unwrap();
            std::fs::write(&files.key, wrong).unwrap();
            assert!(tls.reload().is_err());
            std::fs::write(&files.key, kept).unwrap();
            assert_eq!(ask(first, &url).await.unwrap(), "hello");
        }
        std::fs::copy(&other.key, &files.key).unwrap();
        std::fs::copy(&other.certificate, &files.certificate).unwrap();
        nix::sys::signal::raise(nix::sys::signal::Signal::SIGHUP).unwrap();
        let end = std::time::Instant::now() + std::time::Duration::from_secs(30);
        while ask(Trust::Authorities(&second), &url).await.is_err() {
            assert!(std::time::Instant::now() < end, "the old certificate is still shown");
        }
        assert!(ask(first, &url).await.is_err());
    }

    #[tokio::test]
    async fn tls_1_2_and_1_3_are_accepted_only() {
        let folder = tempfile::tempdir().unwrap();
        let tls = Arc::new(Tls::new(&certificate(folder.path())).unwrap());
        let (_server, at) = serve(tls).await;
        let ca = std::fs::read(folder.path().join("ca.pem")).unwrap();
        for (version, spoken) in [
            (reqwest::tls::Version::TLS_1_2, &rustls::version::TLS12),
            (reqwest::tls::Version::TLS_1_3, &rustls::version::TLS13),
        ] {
            let ca = reqwest::Certificate::from_pem(&ca).unwrap();
            let http = reqwest::Client::builder().no_proxy().tls_certs_only([ca]);
            let http = http.min_tls_version(version).max_tls_version(version).build().unwrap();
            let answer = http.get(format!("https://{at}/")).send().await;
            assert!(answer.is_ok(), "{spoken:?}: {answer:?}");
        }
        // A ClientHello of TLS 1.1: it is refused with an alert (RFC 5246 §7.2), without any other answer.
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let mut hello = vec![3, 2];
        hello.extend([7; 32]);
        hello.extend([0, 0, 4, 0xc0, 0x13, 0x00, 0x2f, 1, 0]);
        let mut message = vec![1, 0, 0, hello.len() as u8];
        message.extend(hello);
        let mut record = vec![22, 3, 1, 0, message.len() as u8];
        record.extend(message);
        let mut stream = tokio::net::TcpStream::connect(&at).await.unwrap();
        stream.write_all(&record).await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        assert!(answer.len() == 7 && answer[0] == 21, "{answer:?}");
    }

    #[test]
    fn an_invalid_certificate_is_reported_with_its_validity() {
        for (from, until) in [(1980, 2049), (2026, 2027), (2049, 2050), (2050, 4096)] {
            let mut parameters = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
            (parameters.not_before, parameters.not_after) =
                (rcgen::date_time_ymd(from, 3, 4), rcgen::date_time_ymd(until, 5, 6));
            let der = parameters.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().der().to_vec();
            let ms = |time: &str| crate::runtime::times::from_rfc3339(time).unwrap();
            let (first, last) =
                (ms(&format!("{from}-03-04T00:00:00Z")), ms(&format!("{until}-05-06T00:00:00Z")));
            assert_eq!([first, last].map(|at| trouble(&der, at)), [None, None]);
            let over = trouble(&der, last + 1).unwrap();
            assert!(over.contains(&format!("until {until}-05-06T00:00:00Z: renew it")), "{over}");
            let early = trouble(&der, first - 1).unwrap();
            assert!(early.contains(&format!("from {from}-03-04T00:00:00Z on")), "{early}");
            assert_eq!(trouble(&der[..der.len() - 1], last + 1), None, "not understood");
        }
    }
}
