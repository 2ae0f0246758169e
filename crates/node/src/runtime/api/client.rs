//! HTTP to others: no proxies of the environment, no redirects, and TLS that trusts whom the configuration says.

use super::tls::provider;
use anyhow::{Context, ensure};
use reqwest::redirect;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use std::path::Path;

/// Whose certificates count.
#[derive(Debug, Clone, Copy)]
pub enum Trust<'a> {
    /// Nobody's: plain HTTP.
    Nobody,
    /// Those of the system's authorities.
    System,
    /// Those of the authorities in a file (PEM), and no others.
    Authorities(&'a Path),
}

impl<'a> Trust<'a> {
    /// For a URL: the authorities of a file, or the system's where none is given; nobody's where it is not https.
    pub fn of(url: &str, authorities: Option<&'a Path>) -> Self {
        match authorities {
            _ if !url.starts_with("https:") => Self::Nobody,
            Some(file) => Self::Authorities(file),
            None => Self::System,
        }
    }
}

/// Clients begin with this.
///
/// # Errors
/// The file of authorities cannot be read, or has none.
pub fn builder(trust: Trust<'_>) -> anyhow::Result<reqwest::ClientBuilder> {
    let tls = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])?
        .with_root_certificates(roots(trust)?)
        .with_no_client_auth();
    // What trusts nobody is made without reading the system's certificates: it may have none.
    let builder = reqwest::Client::builder().no_proxy().redirect(redirect::Policy::none());
    Ok(builder.tls_backend_preconfigured(tls))
}

fn roots(trust: Trust<'_>) -> anyhow::Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    match trust {
        Trust::Nobody => {}
        Trust::System => {
            let found = rustls_native_certs::load_native_certs();
            let (added, _) = roots.add_parsable_certificates(found.certs);
            if added == 0 {
                tracing::warn!("this system has no certificate authorities: no https can be trusted");
            }
        }
        Trust::Authorities(file) => {
            let place = || format!("certificate authorities {}", file.display());
            let certificates = CertificateDer::pem_file_iter(file).with_context(place)?;
            for certificate in certificates {
                roots.add(certificate.with_context(place)?).with_context(place)?;
            }
            ensure!(!roots.is_empty(), "{}: there is no certificate in it", place());
        }
    }
    Ok(roots)
}
