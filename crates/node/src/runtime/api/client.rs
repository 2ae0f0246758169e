//! HTTP client for requests to other programs: without proxies of the environment and redirects, and with the
//! configured certificate authorities.

use super::TokenFile;
use super::tls::provider;
use anyhow::{Context, ensure};
use reqwest::{Method, RequestBuilder, Response, StatusCode, Url, redirect};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use std::path::{Path, PathBuf};

/// The trusted certificate authorities.
#[derive(Debug, Clone, Copy)]
pub enum Trust<'a> {
    /// None: plain HTTP.
    Nobody,
    /// The authorities of the system.
    System,
    /// Only the authorities in a PEM file.
    Authorities(&'a Path),
}

impl<'a> Trust<'a> {
    /// The authorities for a URL: those of the file, else those of the system; none without https.
    pub fn of(url: &str, authorities: Option<&'a Path>) -> Self {
        match authorities {
            _ if !url.starts_with("https:") => Self::Nobody,
            Some(file) => Self::Authorities(file),
            None => Self::System,
        }
    }
}

/// A client of one program, with a bearer token if one is configured.
pub struct Client {
    http: reqwest::Client,
    base: Url,
    token: Option<TokenFile>,
}

impl Client {
    /// A client of the program at a URL or at `unix:PATH`; `builder` has all other settings. Sends nothing.
    ///
    /// # Errors
    /// `at` is not a valid URL.
    pub fn new(builder: reqwest::ClientBuilder, at: &str, token: Option<TokenFile>) -> anyhow::Result<Self> {
        let builder = builder.pool_idle_timeout(super::REUSED);
        let (builder, base) = match at.strip_prefix("unix:") {
            Some(path) => (builder.unix_socket(PathBuf::from(path)), Url::parse("http://localhost/")?),
            None => (builder, Url::parse(at)?),
        };
        Ok(Self { http: builder.build().context("setting up HTTP")?, base, token })
    }

    /// The URL of this path, relative to the path of the client's URL.
    pub fn url(&self, path: &[&str]) -> Url {
        let mut url = self.base.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(path);
        }
        url
    }

    /// Starts a request; see [`Self::url`] and [`Self::send`].
    pub fn request(&self, method: Method, url: Url) -> RequestBuilder {
        self.http.request(method, url)
    }

    /// Whether a token is configured.
    pub fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// Sends a request with the token and returns the answer. If the token is refused and its file has
    /// another one now, the request is repeated once.
    ///
    /// # Errors
    /// There is no answer.
    pub async fn send(&self, request: RequestBuilder) -> reqwest::Result<Response> {
        let Some(token) = &self.token else { return request.send().await };
        let (shown, again) = (token.token(), request.try_clone());
        let answer = request.bearer_auth(&shown).send().await?;
        if answer.status() != StatusCode::UNAUTHORIZED {
            return Ok(answer);
        }
        let now = token.read_again();
        match again.filter(|_| now != shown) {
            Some(request) => request.bearer_auth(now).send().await,
            None => Ok(answer),
        }
    }
}

/// Failure to read the body of an answer.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// The connection ended, or the time limit was reached.
    #[error("the answer broke off: {}", innermost(.0))]
    BrokenOff(reqwest::Error),
    /// The body is longer than permitted.
    #[error("an answer of more than {0} bytes")]
    TooLong(usize),
}

/// Reads the body of an answer of at most `max` bytes: the other program may be faulty, or hostile.
///
/// # Errors
/// The answer is not complete, or longer.
pub async fn body(mut answer: Response, max: usize) -> Result<Vec<u8>, BodyError> {
    let mut all = Vec::new();
    while let Some(chunk) = answer.chunk().await.map_err(BodyError::BrokenOff)? {
        if all.len() + chunk.len() > max {
            return Err(BodyError::TooLong(max));
        }
        all.extend_from_slice(&chunk);
    }
    Ok(all)
}

/// The innermost cause, without the layers around it.
pub fn innermost(error: &reqwest::Error) -> String {
    let mut inner: &dyn std::error::Error = error;
    while let Some(source) = inner.source() {
        inner = source;
    }
    inner.to_string()
}

/// The common settings of all clients.
///
/// # Errors
/// The file of authorities cannot be read, or has none.
pub fn builder(trust: Trust<'_>) -> anyhow::Result<reqwest::ClientBuilder> {
    let tls = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])?
        .with_root_certificates(roots(trust)?)
        .with_no_client_auth();
    // Without TLS, the system's certificates are not read; there may be none.
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
            ensure!(!roots.is_empty(), "{}: it has no certificate", place());
        }
    }
    Ok(roots)
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::{HeaderMap, header};
    use std::sync::{Arc, Mutex};

    /// The token of the other program changes, and the file is updated.
    #[tokio::test]
    async fn a_replaced_token_is_used_within_the_same_request() {
        let (first, second) = ("correct-horse-battery-staple", "another-horse-battery-staple");
        let state = Arc::new(Mutex::new((first, Vec::new())));
        let now = state.clone();
        let answer = move |headers: HeaderMap, body: String| {
            let mut now = now.lock().unwrap();
            let right = format!("Bearer {}", now.0);
            let shown = headers.get(header::AUTHORIZATION).is_some_and(|shown| *shown == *right);
            now.1.push((shown, body));
            std::future::ready(if shown { StatusCode::OK } else { StatusCode::UNAUTHORIZED })
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = format!("http://{}/", listener.local_addr().unwrap());
        let router = axum::Router::new().route("/v1/it", axum::routing::post(answer));
        let served = tokio::spawn(async move { axum::serve(listener, router).await });
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), first).unwrap();
        let token = TokenFile::read(file.path()).unwrap();
        let client = Client::new(builder(Trust::Nobody).unwrap(), &at, Some(token)).unwrap();
        let ask = async || {
            let request = client.request(Method::POST, client.url(&["v1", "it"])).body("what");
            let status = client.send(request).await.unwrap().status();
            (status, std::mem::take(&mut state.lock().unwrap().1))
        };
        let said = |shown: &[bool]| shown.iter().map(|shown| (*shown, "what".to_owned())).collect::<Vec<_>>();
        assert_eq!(ask().await, (StatusCode::OK, said(&[true])));
        // Refused, and the file has not changed: the request is not repeated.
        state.lock().unwrap().0 = second;
        assert_eq!(ask().await, (StatusCode::UNAUTHORIZED, said(&[false])));
        for no_token in ["", "short", first] {
            std::fs::write(file.path(), no_token).unwrap();
            assert_eq!(ask().await, (StatusCode::UNAUTHORIZED, said(&[false])));
        }
        std::fs::write(file.path(), second).unwrap();
        assert_eq!(ask().await, (StatusCode::OK, said(&[false, true])));
        assert_eq!(ask().await, (StatusCode::OK, said(&[true])));
        // A wrong new token is tried once.
        std::fs::write(file.path(), "a-third-horse-battery-staple").unwrap();
        state.lock().unwrap().0 = first;
        assert_eq!(ask().await, (StatusCode::UNAUTHORIZED, said(&[false, false])));
        served.abort();
    }
}
