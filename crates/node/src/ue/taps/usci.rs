//! Client of the slice manager (USCI, §3.3 of the paper): registers the UE, receives updates by stream or polling,
//! passes them to [`Taps`], and de-registers.
//!
//! ```text
//!  GET /v1/me ─▶ PUT /v1/me (slices held) ─▶ stream, or poll with ETag ──┐
//!     ▲                                             every message ───────┴─▶ facts are valid for another ttl_s
//!     └── 0.5 s … 30 s after any failure: facts remain valid until their ttl_s has passed
//! ```

use super::Taps;
use super::needs::{GrowthOutcome, NeedView};
use super::view::in_a_line;
use crate::runtime::api::TokenFile;
use crate::runtime::api::client::{self, Client, Trust};
use crate::runtime::config::{Follow, SlicesSection};
use anabranch_slice::UeView;
use anyhow::{Context, bail, ensure};
use reqwest::{Method, Response, StatusCode, header};
use serde::Serialize;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use utoipa::ToSchema;

/// Time limit for an answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time limit without data on a stream: the manager sends something every 15 seconds.
const SILENCE: Duration = Duration::from_secs(40);
/// Shortest and longest pause before the next attempt.
const PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));
/// Time limit for de-registration.
const FAREWELL: Duration = Duration::from_secs(2);
/// Maximum length of an answer, bytes.
const MAX_ANSWER: usize = 1 << 20;

/// State of the connection to the slice manager.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct ManagerView {
    /// Address of the slice manager.
    pub manager: String,
    /// Whether it answered the last request.
    pub answers: bool,
    /// Whether this UE is registered there, as far as the UE knows.
    pub registered: bool,
    /// Seconds since the last message from it; absent if there was none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heard_s_ago: Option<f64>,
    /// Answers and events with changes.
    pub changes: u64,
    /// Answers and events without changes.
    pub unchanged: u64,
    /// Requests that were not answered, or not usably.
    pub failures: u64,
    /// Parts of its last answer that cannot be used, and the last failure.
    pub problems: Vec<String>,
    /// Requests on behalf of programs and their outcome: the last 16, the newest last.
    pub needs: Vec<NeedView>,
}

/// The client; the module documentation describes it.
pub struct Usci {
    client: Client,
    manager_address: String,
    follow: Follow,
    poll_interval: Duration,
    taps: Arc<Taps>,
    registered: AtomicBool,
    answers: AtomicBool,
    changes: AtomicU64,
    unchanged: AtomicU64,
    failures: AtomicU64,
    sync_state: Mutex<SyncState>,
}

#[derive(Default)]
struct SyncState {
    etag: String,
    ttl_s: u32,
    ids: Vec<String>,
    last_message: Option<Instant>,
    problems: Vec<String>,
    failure: Option<String>,
}

impl Usci {
    /// Prepares the client; sends nothing.
    pub fn new(config: &SlicesSection, taps: Arc<Taps>) -> anyhow::Result<Arc<Self>> {
        let token = TokenFile::read(&config.token_file)?;
        let trust = Trust::of(&config.manager, config.ca_file.as_deref());
        let builder = client::builder(trust).context("[slices] ca_file")?;
        let builder = builder.connect_timeout(PATIENCE);
        let client = Client::new(builder, &config.manager, Some(token)).context("[slices] manager")?;
        Ok(Arc::new(Self {
            client,
            manager_address: config.manager.clone(),
            follow: config.follow,
            poll_interval: Duration::from_millis(config.poll_interval_ms.into()),
            taps,
            registered: AtomicBool::new(false),
            answers: AtomicBool::new(false),
            changes: AtomicU64::new(0),
            unchanged: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            sync_state: Mutex::default(),
        }))
    }

    /// Follows the manager; never returns.
    pub async fn run(self: Arc<Self>) {
        let mut pause = PAUSE.0;
        loop {
            let started = Instant::now();
            let Err(error) = self.session().await;
            let was = self.answers.swap(false, Ordering::Relaxed);
            self.failures.fetch_add(1, Ordering::Relaxed);
            if was || self.failures.load(Ordering::Relaxed) == 1 {
                tracing::warn!(
                    manager = self.manager_address,
                    "slices: {error:#}; the known facts stay valid until they expire"
                );
            }
            self.sync_state().failure = Some(format!("{error:#}"));
            // After a session that lasted for a while, the pause is the shortest again.
            if started.elapsed() > PAUSE.1 {
                pause = PAUSE.0;
            }
            tokio::time::sleep(spread(pause)).await;
            pause = (pause * 2).min(PAUSE.1);
        }
    }

    /// Sends the requests for larger guarantees one after another; never returns.
    pub async fn send_needs(self: Arc<Self>) {
        loop {
            let wanted = self.taps.needs().next().await;
            let (mut became, mut by, mut why) = (GrowthOutcome::Refused, None, Vec::new());
            for (name, id) in &wanted.slices {
                let body = json!({"slice": id, "dl_bps": wanted.dl_bps, "ul_bps": wanted.ul_bps});
                let request = self.request(Method::POST, "me/needs").timeout(PATIENCE).json(&body);
                match self.client.send(request).await {
                    Ok(answer) if answer.status().is_success() => {
                        let grows = answer.status() == StatusCode::ACCEPTED;
                        became = if grows { GrowthOutcome::Grows } else { GrowthOutcome::Promised };
                        by = Some(name.clone());
                        break;
                    }
                    Ok(answer) => why.push(format!("{name}: {}", refusal(answer).await)),
                    Err(error) => {
                        became = GrowthOutcome::Failed;
                        why.push(format!("{name}: the slice manager does not answer: {error}"));
                        break;
                    }
                }
            }
            let (dl_bps, ul_bps) = (wanted.dl_bps, wanted.ul_bps);
            match &by {
                Some(slice) => tracing::info!(slice, dl_bps, ul_bps, "needs: {became:?}"),
                None => tracing::warn!(dl_bps, ul_bps, "needs: {became:?}: {}", why.join("; ")),
            }
            self.taps.needs().answer(became, by, why);
        }
    }

    /// De-registers, if registered.
    pub async fn leave(&self) {
        if !self.registered.swap(false, Ordering::Relaxed) {
            return;
        }
        let farewell = self.send(Method::DELETE, "me", None);
        match tokio::time::timeout(FAREWELL, farewell).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::warn!(manager = self.manager_address, "de-registering: {error:#}"),
            Err(_) => tracing::warn!(manager = self.manager_address, "de-registering: no answer"),
        }
    }

    /// Current state.
    pub fn view(&self) -> ManagerView {
        let sync_state = self.sync_state();
        ManagerView {
            manager: self.manager_address.clone(),
            answers: self.answers.load(Ordering::Relaxed),
            registered: self.registered.load(Ordering::Relaxed),
            heard_s_ago: sync_state.last_message.map(|at| at.elapsed().as_secs_f64()),
            changes: self.changes.load(Ordering::Relaxed),
            unchanged: self.unchanged.load(Ordering::Relaxed),
            failures: self.failures.load(Ordering::Relaxed),
            problems: sync_state.problems.iter().chain(&sync_state.failure).cloned().collect(),
            needs: self.taps.needs().view(),
        }
    }

    /// Registers and follows until a failure.
    async fn session(&self) -> anyhow::Result<std::convert::Infallible> {
        self.poll().await?;
        self.register().await?;
        if self.follow == Follow::Stream {
            // The stream is endless, but it must start in time.
            let asked = self.client.send(self.request(Method::GET, "me/stream"));
            let answer = tokio::time::timeout(PATIENCE, asked).await.context("the stream does not begin")?;
            let answer = answer.context("it does not answer")?;
            match answer.status() {
                StatusCode::OK => return self.stream(answer).await,
                // The manager has too many streams; it refuses before it reads anything.
                StatusCode::SERVICE_UNAVAILABLE => {}
                _ => bail!(refusal(answer).await),
            }
        }
        loop {
            // The interval is short enough that facts do not expire.
            // A manager with a ttl_s of 0 is polled no more often than one with a ttl_s of 1.
            let ttl = Duration::from_millis(u64::from(self.sync_state().ttl_s.max(1)) * 300);
            tokio::time::sleep(spread(self.poll_interval.min(ttl))).await;
            self.poll().await?;
        }
    }

    async fn register(&self) -> anyhow::Result<()> {
        let held = self.sync_state().ids.clone();
        let answer = self.send(Method::PUT, "me", Some(&json!({"slices": held}))).await?;
        let answer: Value = serde_json::from_slice(&client::body(answer, MAX_ANSWER).await?)
            .context("answer to PUT /v1/me")?;
        for id in answer["unknown"].as_array().into_iter().flatten() {
            tracing::warn!("the slice manager has no slice {id} for this UE");
        }
        self.registered.store(true, Ordering::Relaxed);
        Ok(())
    }

    async fn poll(&self) -> anyhow::Result<()> {
        let etag = self.sync_state().etag.clone();
        let mut request = self.request(Method::GET, "me").timeout(PATIENCE);
        if !etag.is_empty() {
            request = request.header(header::IF_NONE_MATCH, etag);
        }
        let answer = self.client.send(request).await.context("it does not answer")?;
        match answer.status() {
            StatusCode::NOT_MODIFIED => {
                self.last_message(false);
                Ok(())
            }
            StatusCode::OK => {
                let etag = answer.headers().get(header::ETAG).and_then(|v| v.to_str().ok());
                let etag = etag.unwrap_or_default().to_owned();
                self.take(&client::body(answer, MAX_ANSWER).await?, etag)
            }
            _ => bail!(refusal(answer).await),
        }
    }

    /// Reads the events of a stream: the id is the ETag, the data equals the answer to a poll.
    async fn stream(&self, mut answer: Response) -> anyhow::Result<std::convert::Infallible> {
        let mut text = Vec::new();
        loop {
            let chunk =
                tokio::time::timeout(SILENCE, answer.chunk()).await.context("the stream is silent")?;
            text.extend_from_slice(&chunk.context("the stream broke")?.context("the stream ended")?);
            ensure!(text.len() <= MAX_ANSWER, "an event of more than {MAX_ANSWER} bytes");
            while let Some(end) = text.windows(2).position(|w| w == b"\n\n") {
                let event: Vec<u8> = text.drain(..end + 2).collect();
                let event = String::from_utf8_lossy(&event);
                let field = |name: &str| {
                    let lines = event.lines().filter_map(|l| l.strip_prefix(name)?.strip_prefix(':'));
                    lines.map(|l| l.strip_prefix(' ').unwrap_or(l)).collect::<Vec<_>>().join("\n")
                };
                let data = field("data");
                if data.is_empty() {
                    // A comment; nothing has changed.
                    self.last_message(false);
                } else {
                    self.take(data.as_bytes(), format!("\"{}\"", field("id")))?;
                }
            }
        }
    }

    /// Applies the view of an answer or event.
    fn take(&self, body: &[u8], etag: String) -> anyhow::Result<()> {
        let view: UeView = serde_json::from_slice(body).context("answer of the slice manager")?;
        let problems = self.taps.take_view(&view);
        let mut sync_state = self.sync_state();
        for problem in problems.iter().filter(|problem| !sync_state.problems.contains(problem)) {
            tracing::warn!("slices: {problem}");
        }
        let changed = sync_state.etag != etag || etag.is_empty();
        (sync_state.etag, sync_state.ttl_s, sync_state.problems) = (etag, view.ttl_s, problems);
        sync_state.ids = view.slices.iter().map(|s| s.id.clone()).collect();
        drop(sync_state);
        self.last_message(changed);
        Ok(())
    }

    /// Extends the validity of the facts after a message from the manager.
    fn last_message(&self, changed: bool) {
        self.taps.view_counts_from_now();
        let counter = if changed { &self.changes } else { &self.unchanged };
        counter.fetch_add(1, Ordering::Relaxed);
        if !self.answers.swap(true, Ordering::Relaxed) {
            tracing::info!(manager = self.manager_address, "the slice manager answers");
        }
        let mut sync_state = self.sync_state();
        (sync_state.last_message, sync_state.failure) = (Some(Instant::now()), None);
    }

    fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        let path: Vec<&str> = std::iter::once("v1").chain(path.split('/')).collect();
        self.client.request(method, self.client.url(&path))
    }

    async fn send(&self, method: Method, path: &str, body: Option<&Value>) -> anyhow::Result<Response> {
        let mut request = self.request(method, path).timeout(PATIENCE);
        if let Some(body) = body {
            request = request.json(body);
        }
        let answer = self.client.send(request).await.context("it does not answer")?;
        if answer.status().is_success() { Ok(answer) } else { bail!(refusal(answer).await) }
    }

    fn sync_state(&self) -> std::sync::MutexGuard<'_, SyncState> {
        self.sync_state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The text of a refusal, with a remedy.
async fn refusal(answer: Response) -> String {
    let status = answer.status();
    let remedy = match status {
        StatusCode::UNAUTHORIZED => ": does [slices] token_file belong to this UE?",
        StatusCode::FORBIDDEN => ": [slices] token_file must be a UE's token, not the operator's",
        _ => "",
    };
    let body = client::body(answer, MAX_ANSWER).await.ok();
    let problem: Value = body.and_then(|b| serde_json::from_slice(&b).ok()).unwrap_or_default();
    format!("{status}: {}{remedy}", in_a_line(problem["detail"].as_str().unwrap_or("no reason given")))
}

/// The pause shortened by up to a quarter at random, so that the UEs of a failed manager do not return all at
/// once.
fn spread(pause: Duration) -> Duration {
    let random = crate::keygen::random_seed().map_or(0, |seed| u32::from(seed[0]));
    pause - pause / 4 * random / 256
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    /// Answers one request, but not the one for the stream.
    async fn answer(mut stream: TcpStream) {
        let mut asked = Vec::new();
        let is_whole = |asked: &[u8]| {
            let text = String::from_utf8_lossy(asked).into_owned();
            text.ends_with('}') || text.ends_with("\r\n\r\n") && !text.starts_with("PUT")
        };
        while !is_whole(&asked) {
            assert!(stream.read_buf(&mut asked).await.unwrap() > 0);
        }
        if asked.starts_with(b"GET /v1/me/stream") {
            std::future::pending::<()>().await;
        }
        let body = r#"{"ttl_s":60,"slices":[]}"#;
        let head =
            format!("HTTP/1.1 200 OK\r\nconnection: close\r\netag: \"1\"\r\ncontent-length: {}", body.len());
        stream.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).await.unwrap();
    }

    /// A manager (or a proxy in front of it) that stops responding does not block the UE for ever.
    #[tokio::test]
    async fn a_stream_that_does_not_start_is_given_up() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let manager = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(answer(stream));
            }
        });
        let folder = tempfile::tempdir().unwrap();
        let token_file = folder.path().join("token");
        std::fs::write(&token_file, "correct-horse-battery-staple").unwrap();
        let config = SlicesSection {
            manager,
            ca_file: None,
            token_file,
            follow: Follow::Stream,
            poll_interval_ms: 5000,
            ask_for_more: true,
        };
        let usci = Usci::new(&config, Arc::default()).unwrap();
        let follows = tokio::spawn(usci.clone().run());
        let end = Instant::now() + 3 * PATIENCE;
        while usci.view().failures == 0 {
            assert!(Instant::now() < end, "{:?}", usci.view());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let view = usci.view();
        assert!(view.registered && view.problems[0].contains("does not begin"), "{view:?}");
        follows.abort();
    }

    /// A manager that answers every request except the one for the stream with `body`, and counts them.
    /// Requests with a token other than the current `token` are refused.
    async fn manager(body: &'static str, token: Arc<Mutex<&'static str>>) -> (String, Arc<AtomicU64>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (at, asked) = (format!("http://{}", listener.local_addr().unwrap()), Arc::new(AtomicU64::new(0)));
        let count = asked.clone();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let (count, token) = (count.clone(), token.clone());
                tokio::spawn(async move {
                    let mut text = String::new();
                    while !text.ends_with("\r\n\r\n") && !text.ends_with('}') {
                        let mut part = [0; 4096];
                        let n = stream.read(&mut part).await.unwrap();
                        assert!(n > 0, "{text}");
                        text += &String::from_utf8_lossy(&part[..n]);
                    }
                    count.fetch_add(1, Ordering::Relaxed);
                    let right = text.contains(&format!("Bearer {}\r\n", token.lock().unwrap()));
                    let status = if right { "200 OK" } else { "401 Unauthorized" };
                    let answer = format!(
                        "HTTP/1.1 {status}\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
                        body.len()
                    );
                    // The client may have gone away.
                    let _ = stream.write_all(answer.as_bytes()).await;
                });
            }
        });
        (at, asked)
    }

    fn polls(manager: String, token_file: PathBuf) -> SlicesSection {
        let follow = Follow::Poll;
        SlicesSection {
            manager,
            ca_file: None,
            token_file,
            follow,
            poll_interval_ms: 1000,
            ask_for_more: true,
        }
    }

    /// A manager with a ttl_s of 0 is polled no more often than one with a ttl_s of 1.
    #[tokio::test]
    async fn a_manager_with_ttl_0_is_polled_at_a_bounded_rate() {
        let token = "correct-horse-battery-staple";
        let (at, asked) = manager(r#"{"ttl_s":0,"slices":[]}"#, Arc::new(Mutex::new(token))).await;
        let folder = tempfile::tempdir().unwrap();
        let token_file = folder.path().join("token");
        std::fs::write(&token_file, token).unwrap();
        let usci = Usci::new(&polls(at, token_file), Arc::default()).unwrap();
        let begun = Instant::now();
        let follows = tokio::spawn(usci.clone().run());
        tokio::time::sleep(Duration::from_secs(3)).await;
        follows.abort();
        // The interval is at least 225 ms (300 ms less a quarter); two more requests occur at the start.
        let most = begun.elapsed().as_millis() as u64 / 225 + 3;
        let asked = asked.load(Ordering::Relaxed);
        assert!((1..=most).contains(&asked), "{asked} questions, {most} at most");
    }

    /// The manager issues a new token, which is written into the token file.
    #[tokio::test]
    async fn a_token_that_was_replaced_is_read_again() {
        let (first, second) = ("correct-horse-battery-staple", "another-horse-battery-staple");
        let valid = Arc::new(Mutex::new(first));
        let (at, _) = manager(r#"{"ttl_s":60,"slices":[]}"#, valid.clone()).await;
        let folder = tempfile::tempdir().unwrap();
        let token_file = folder.path().join("token");
        std::fs::write(&token_file, first).unwrap();
        let usci = Usci::new(&polls(at, token_file.clone()), Arc::default()).unwrap();
        let follows = tokio::spawn(usci.clone().run());
        let until = async |what: &str, holds: &dyn Fn(&ManagerView) -> bool| {
            let end = Instant::now() + Duration::from_secs(120);
            while !holds(&usci.view()) {
                assert!(Instant::now() < end, "never {what}: {:?}", usci.view());
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        until("answers", &|view| view.answers && view.registered).await;
        *valid.lock().unwrap() = second;
        until("refused", &|view| !view.answers && view.problems.iter().any(|p| p.contains("401"))).await;
        // While the file temporarily has no token, the previous one stays in use.
        std::fs::write(&token_file, "").unwrap();
        let failures = usci.view().failures;
        until("asked again", &|view| view.failures > failures).await;
        std::fs::write(&token_file, second).unwrap();
        until("answers again", &|view| view.answers).await;
        follows.abort();
    }
}
