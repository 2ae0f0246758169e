//! Verification of tokens with the keys of an authorization server. Keys are read periodically, and when a
//! token names an unknown one; after a failure, the last valid set stays in use.

use super::super::client::{self, Trust};
use super::keys::KeySet;
use super::token::Token;
use super::{Caller, Refused};
use crate::runtime::config::OAuth;
use anyhow::{Context, bail, ensure};
use arc_swap::ArcSwapOption;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Maximum length of a JWK set, bytes.
const MOST_BYTES: usize = 256 << 10;
/// Time limit for reading the keys.
const PATIENCE: Duration = Duration::from_secs(5);
/// Shortest interval between two readings of the keys.
const LEAST_GAP: Duration = Duration::from_secs(10);

/// Source of the keys.
enum Source {
    File(PathBuf),
    Url(reqwest::Client, reqwest::Url),
}

/// The keys, and the time from which they may be read again.
struct Keys {
    source: Source,
    current: ArcSwapOption<KeySet>,
    /// Locked during a reading: concurrent requests wait for its result and do not read again.
    next: Mutex<Instant>,
    gap: Duration,
}

/// The verifier; the module documentation describes it.
pub struct Verifier {
    config: OAuth,
    keys: Arc<Keys>,
    reading: JoinHandle<()>,
}

impl Drop for Verifier {
    fn drop(&mut self) {
        self.reading.abort();
    }
}

impl Verifier {
    /// Must be called within a tokio runtime. A file with keys must exist; a URL is read in the background.
    ///
    /// # Errors
    /// The file has no usable keys, or the URL is invalid.
    pub fn new(config: &OAuth) -> anyhow::Result<Self> {
        Self::with_gap(config, LEAST_GAP)
    }

    /// The same with another shortest interval between readings.
    pub fn with_gap(config: &OAuth, gap: Duration) -> anyhow::Result<Self> {
        let source = if config.jwks.starts_with('/') {
            Source::File(PathBuf::from(&config.jwks))
        } else {
            let trust = config.ca_file.as_deref().map_or(Trust::System, Trust::Authorities);
            let http = client::builder(trust)?.timeout(PATIENCE).https_only(true).build()?;
            Source::Url(http, reqwest::Url::parse(&config.jwks).context("jwks")?)
        };
        let first = match &source {
            Source::File(path) => Some(Arc::new(read_file(path)?)),
            Source::Url(..) => None,
        };
        let next = Mutex::new(Instant::now());
        let keys = Arc::new(Keys { source, current: ArcSwapOption::from(first), next, gap });
        let (kept, period) = (keys.clone(), Duration::from_secs(config.refresh_s.into()));
        let reading = tokio::spawn(async move {
            loop {
                kept.read().await;
                // Without keys all tokens are refused, so reading is retried more often.
                let rest = if kept.current.load().is_none() { kept.gap } else { period };
                tokio::time::sleep(rest).await;
            }
        });
        Ok(Self { config: config.clone(), keys, reading })
    }

    /// The caller with this token at `now`, Unix time in seconds.
    ///
    /// # Errors
    /// The token is invalid, not for this audience, or not valid at `now`.
    pub async fn check(&self, text: &str, now: u64) -> Result<Caller, Refused> {
        let token = Token::read(text, &self.config)?;
        token.check_claims(&self.config, now)?;
        let mut signed = self.try_keys(&token);
        // Keys are read again for an unknown key only, not for an invalid signature.
        if signed.is_none() {
            self.keys.read().await;
            signed = self.try_keys(&token);
        }
        match signed {
            Some(true) => token.caller(&self.config),
            Some(false) => Err(Refused::Invalid("its signature is invalid")),
            None if self.keys.current.load().is_none() => Err(Refused::NoKeys),
            None => Err(Refused::Invalid("its key is not known")),
        }
    }

    fn try_keys(&self, token: &Token<'_>) -> Option<bool> {
        token.check_signature(self.keys.current.load().as_deref()?)
    }
}

impl Keys {
    /// Reads the keys, unless they were read within the shortest interval.
    async fn read(&self) {
        let mut next = self.next.lock().await;
        if Instant::now() < *next {
            return;
        }
        // Set before the reading, in case the request is cancelled.
        *next = Instant::now() + self.gap;
        let read = match &self.source {
            Source::File(path) => read_file(path),
            // The limit also covers an answer that arrives byte by byte.
            Source::Url(http, url) => match tokio::time::timeout(PATIENCE, fetch(http, url)).await {
                Ok(read) => read,
                Err(_) => Err(anyhow::anyhow!("{url}: no answer within {} s", PATIENCE.as_secs())),
            },
        };
        // The interval starts at the end of the reading, so that a request waits for at most one failing
        // reading.
        *next = Instant::now() + self.gap;
        match read {
            Ok(keys) => {
                tracing::debug!("{} keys of the authorization server", keys.len());
                self.current.store(Some(Arc::new(keys)));
            }
            Err(error) => {
                let kept = if self.current.load().is_some() { "; the previous ones stay in use" } else { "" };
                tracing::warn!("[api] oauth jwks: {error:#}{kept}");
            }
        }
    }
}

/// Checks the files named in a configuration.
///
/// # Errors
/// A file cannot be read, or has no key or certificate.
pub fn check_files(config: &OAuth) -> anyhow::Result<()> {
    if config.jwks.starts_with('/') {
        read_file(config.jwks.as_ref())?;
    }
    if let Some(file) = &config.ca_file {
        client::builder(Trust::Authorities(file)).map(drop)?;
    }
    Ok(())
}

fn read_file(path: &std::path::Path) -> anyhow::Result<KeySet> {
    use std::io::Read as _;
    let place = || format!("{}", path.display());
    let file = std::fs::File::open(path).with_context(place)?;
    let mut bytes = Vec::new();
    file.take(MOST_BYTES as u64 + 1).read_to_end(&mut bytes).with_context(place)?;
    ensure!(bytes.len() <= MOST_BYTES, "{}: more than {MOST_BYTES} bytes", path.display());
    KeySet::parse(&bytes).map_err(anyhow::Error::msg).with_context(place)
}

async fn fetch(http: &reqwest::Client, url: &reqwest::Url) -> anyhow::Result<KeySet> {
    let place = || format!("{url}");
    let answer = http.get(url.clone()).send().await.with_context(place)?;
    if !answer.status().is_success() {
        bail!("{url}: {}", answer.status());
    }
    let bytes = client::body(answer, MOST_BYTES).await.with_context(place)?;
    KeySet::parse(&bytes).map_err(anyhow::Error::msg).with_context(place)
}
