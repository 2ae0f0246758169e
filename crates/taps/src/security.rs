//! Security parameters (RFC 9622 §6.3), a minimal set: trusted certificates, own identity, application protocol, and whether
//! protection is required.

use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::fmt;
use std::sync::{Arc, OnceLock};

/// Why security parameters are invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("security, {what}: {reason}")]
pub struct SecurityError {
    what: &'static str,
    reason: String,
}

impl SecurityError {
    fn new(what: &'static str, reason: impl ToString) -> Self {
        Self { what, reason: reason.to_string() }
    }
}

/// Whether connections must be protected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Disabled,
    Opportunistic,
    Required,
}

/// Protection of a connection. Only QUIC provides it here (TLS 1.3); over TCP and UDP, programs use their own.
///
/// Clones share the state with which later connections resume earlier ones.
#[derive(Clone)]
pub struct Security {
    mode: Mode,
    trusted: Vec<CertificateDer<'static>>,
    identity: Option<(Vec<CertificateDer<'static>>, Arc<PrivateKeyDer<'static>>)>,
    alpn: Vec<Vec<u8>>,
    server_name: Option<String>,
    client: Arc<OnceLock<Arc<QuicClientConfig>>>,
}

impl Security {
    fn with(mode: Mode) -> Self {
        Self {
            mode,
            trusted: Vec::new(),
            identity: None,
            alpn: Vec::new(),
            server_name: None,
            client: Arc::default(),
        }
    }

    /// No protection: TCP, Multipath TCP and UDP; QUIC, which is always protected, is excluded.
    #[must_use]
    pub fn disabled() -> Self {
        Self::with(Mode::Disabled)
    }

    /// Protection where the protocol has it, that is over QUIC with a trusted certificate; otherwise none. RFC 9622 permits protection
    /// without authentication of the peer; here authentication is always required.
    #[must_use]
    pub fn opportunistic() -> Self {
        Self::with(Mode::Opportunistic)
    }

    /// Protection required: QUIC only.
    #[must_use]
    pub fn required() -> Self {
        Self::with(Mode::Required)
    }

    /// Trusts the certificates in `pem` as roots (`PEM`, one or more). No others are trusted, not even those of the system.
    ///
    /// # Errors
    /// `pem` contains no certificate.
    pub fn trust_pem(mut self, pem: &[u8]) -> Result<Self, SecurityError> {
        let wrong = |reason: String| SecurityError::new("trusted certificates", reason);
        let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
        let read = read.map_err(|e| wrong(e.to_string()))?;
        if read.is_empty() {
            return Err(wrong("no \"BEGIN CERTIFICATE\" in it".into()));
        }
        self.trusted.extend(read);
        Ok(self.changed())
    }

    /// Presents this certificate, with its chain, to peers: required to listen for QUIC (`serverCertificate`), and requested by some
    /// servers (`clientCertificate`).
    ///
    /// # Errors
    /// There is no certificate, or no private key.
    pub fn identity_pem(mut self, certificates: &[u8], key: &[u8]) -> Result<Self, SecurityError> {
        let wrong = |reason: String| SecurityError::new("identity", reason);
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(certificates).collect();
        let chain = chain.map_err(|e| wrong(e.to_string()))?;
        if chain.is_empty() {
            return Err(wrong("no \"BEGIN CERTIFICATE\" in the certificates".into()));
        }
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|e| wrong(format!("the private key: {e}")))?;
        self.identity = Some((chain, Arc::new(key)));
        Ok(self.changed())
    }

    /// Offers or accepts this application protocol (RFC 7301).
    #[must_use]
    pub fn alpn(mut self, protocol: impl Into<Vec<u8>>) -> Self {
        self.alpn.push(protocol.into());
        self.changed()
    }

    /// The name in the peer's certificate, if it differs from the remote endpoint's.
    #[must_use]
    pub fn server_name(mut self, name: impl Into<String>) -> Self {
        self.server_name = Some(name.into());
        self
    }

    /// Drops the resumption state, because sessions with other parameters must not be resumed.
    fn changed(mut self) -> Self {
        self.client = Arc::default();
        self
    }

    /// Whether unprotected protocols are permitted.
    pub(crate) fn allows_plain(&self) -> bool {
        self.mode != Mode::Required
    }

    /// Whether QUIC is permitted.
    pub(crate) fn allows_quic(&self) -> bool {
        self.mode != Mode::Disabled
    }

    /// Whether listening for QUIC is possible.
    pub(crate) fn has_identity(&self) -> bool {
        self.identity.is_some()
    }

    /// Whether a listener requests certificates from its peers.
    pub(crate) fn requests_certificates(&self) -> bool {
        !self.trusted.is_empty()
    }

    pub(crate) fn name(&self) -> Option<&str> {
        self.server_name.as_deref()
    }

    /// The configuration of a QUIC client; created once, because it contains the resumption state.
    pub(crate) fn client(&self) -> Result<Arc<QuicClientConfig>, SecurityError> {
        if let Some(client) = self.client.get() {
            return Ok(client.clone());
        }
        let wrong = |e: rustls::Error| SecurityError::new("client", e);
        let roots = self.roots()?;
        if roots.is_empty() {
            let reason = "nothing is trusted, so no peer can prove who it is: Security::trust_pem";
            return Err(SecurityError::new("trusted certificates", reason));
        }
        let builder = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(wrong)?
            .with_root_certificates(roots);
        let mut config = match &self.identity {
            Some((chain, key)) => {
                builder.with_client_auth_cert(chain.clone(), key.clone_key()).map_err(wrong)?
            }
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols.clone_from(&self.alpn);
        config.enable_early_data = true;
        let config = QuicClientConfig::try_from(config).map_err(|e| SecurityError::new("client", e))?;
        Ok(self.client.get_or_init(|| Arc::new(config)).clone())
    }

    fn roots(&self) -> Result<RootCertStore, SecurityError> {
        let mut roots = RootCertStore::empty();
        for certificate in &self.trusted {
            let wrong = |e| SecurityError::new("trusted certificates", e);
            roots.add(certificate.clone()).map_err(wrong)?;
        }
        Ok(roots)
    }

    /// The configuration of a QUIC server. If certificates are trusted, peers must authenticate with them. `early`: whether data sent
    /// before the end of the handshake, which may be a replay, is accepted.
    pub(crate) fn server(&self, early: bool) -> Result<Arc<QuicServerConfig>, SecurityError> {
        let wrong = |e: rustls::Error| SecurityError::new("server", e);
        let Some((chain, key)) = &self.identity else {
            let reason = "to listen for QUIC takes a certificate and its key: Security::identity_pem";
            return Err(SecurityError::new("identity", reason));
        };
        let builder = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(wrong)?;
        let builder = if self.trusted.is_empty() {
            builder.with_no_client_auth()
        } else {
            let roots = Arc::new(self.roots()?);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider()).build();
            builder.with_client_cert_verifier(verifier.map_err(|e| SecurityError::new("server", e))?)
        };
        let mut config = builder.with_single_cert(chain.clone(), key.clone_key()).map_err(wrong)?;
        config.alpn_protocols.clone_from(&self.alpn);
        // QUIC only permits "none" and "all" (RFC 9001 §4.6.1).
        config.max_early_data_size = if early { u32::MAX } else { 0 };
        let config = QuicServerConfig::try_from(config).map_err(|e| SecurityError::new("server", e))?;
        Ok(Arc::new(config))
    }
}

impl Default for Security {
    fn default() -> Self {
        Self::disabled()
    }
}

impl fmt::Debug for Security {
    /// Omits keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (trusted, identity) = (self.trusted.len(), self.identity.is_some());
        write!(f, "Security({:?}, {trusted} trusted, identity: {identity})", self.mode)
    }
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_parameters_are_named() {
        let of = |e: Result<Security, SecurityError>| e.unwrap_err().to_string();
        assert!(of(Security::required().trust_pem(b"x")).contains("no \"BEGIN CERTIFICATE\""));
        assert!(of(Security::required().identity_pem(b"", b"")).starts_with("security, identity"));
        assert!(Security::required().client().is_err_and(|e| e.to_string().contains("trust_pem")));
        assert!(Security::required().server(false).is_err_and(|e| e.to_string().contains("identity_pem")));
        assert!(!Security::disabled().allows_quic() && !Security::required().allows_plain());
        assert!(Security::opportunistic().allows_quic() && Security::opportunistic().allows_plain());
    }
}
