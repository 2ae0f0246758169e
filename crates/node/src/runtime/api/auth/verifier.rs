//! Checks tokens against the keys of an authorization server, and keeps those keys: read at times, and when a token names
//! one that is not known; the last good set stays while there is no other.

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

/// Longest JWK set, bytes.
const MOST_BYTES: usize = 256 << 10;
/// Longest wait for the keys.
const PATIENCE: Duration = Duration::from_secs(5);
/// Keys are read at most this often, whatever tokens name.
const LEAST_GAP: Duration = Duration::from_secs(10);

/// Where the keys are.
enum Source {
    File(PathBuf),
    Url(reqwest::Client, reqwest::Url),
}

/// The keys, and when they may be read again.
struct Keys {
    source: Source,
    current: ArcSwapOption<KeySet>,
    /// Held while they are read: who comes meanwhile waits for that, and reads nothing.
    next: Mutex<Instant>,
    gap: Duration,
}

/// See above.
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
    /// Within a tokio runtime. Keys in a file must be there; those at a URL are read soon.
    ///
    /// # Errors
    /// The file has no keys, or the URL cannot be used.
    pub fn new(config: &OAuth) -> anyhow::Result<Self> {
        Self::with_gap(config, LEAST_GAP)
    }

    /// The same with another least time from one reading of the keys to the next.
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
                // Without any keys nobody comes in: that is tried more often.
                let rest = if kept.current.load().is_none() { kept.gap } else { period };
                tokio::time::sleep(rest).await;
            }
        });
        Ok(Self { config: config.clone(), keys, reading })
    }

    /// Who has this token at `now`, Unix seconds.
    ///
    /// # Errors
    /// Nobody, or not for us, or not now.
    pub async fn check(&self, text: &str, now: u64) -> Result<Caller, Refused> {
        let token = Token::read(text, &self.config)?;
        token.check_claims(&self.config, now)?;
        let mut signed = self.try_keys(&token);
        // Not for a wrong signature: keys are read again for one that is not known.
        if signed.is_none() {
            self.keys.read().await;
            signed = self.try_keys(&token);
        }
        match signed {
            Some(true) => token.caller(&self.config),
            Some(false) => Err(Refused::Invalid("its signature is wrong")),
            None if self.keys.current.load().is_none() => Err(Refused::NoKeys),
            None => Err(Refused::Invalid("its key is not known")),
        }
    }

    fn try_keys(&self, token: &Token<'_>) -> Option<bool> {
        token.check_signature(self.keys.current.load().as_deref()?)
    }
}

impl Keys {
    /// Reads them, unless that was done a moment ago.
    async fn read(&self) {
        let mut next = self.next.lock().await;
        if Instant::now() < *next {
            return;
        }
        // Also if whoever asks goes away meanwhile.
        *next = Instant::now() + self.gap;
        let read = match &self.source {
            Source::File(path) => read_file(path),
            // Also of an answer that comes a byte at a time.
            Source::Url(http, url) => match tokio::time::timeout(PATIENCE, fetch(http, url)).await {
                Ok(read) => read,
                Err(_) => Err(anyhow::anyhow!("{url}: no answer within {} s", PATIENCE.as_secs())),
            },
        };
        // From its end on: who has waited for an answer that did not come does not wait for another.
        *next = Instant::now() + self.gap;
        match read {
            Ok(keys) => {
                tracing::debug!("{} keys of the authorization server", keys.len());
                self.current.store(Some(Arc::new(keys)));
            }
            Err(error) => {
                let kept = if self.current.load().is_some() { "; those there are stay" } else { "" };
                tracing::warn!("[api] oauth jwks: {error:#}{kept}");
            }
        }
    }
}

/// Whether the files that a configuration names can be used.
///
/// # Errors
/// One cannot be read, or has no key or certificate.
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
    let mut answer = http.get(url.clone()).send().await.with_context(place)?;
    if !answer.status().is_success() {
        bail!("{url}: {}", answer.status());
    }
    let mut bytes = Vec::new();
    while let Some(piece) = answer.chunk().await.with_context(place)? {
        ensure!(bytes.len() + piece.len() <= MOST_BYTES, "{url}: more than {MOST_BYTES} bytes");
        bytes.extend_from_slice(&piece);
    }
    KeySet::parse(&bytes).map_err(anyhow::Error::msg).with_context(place)
}
