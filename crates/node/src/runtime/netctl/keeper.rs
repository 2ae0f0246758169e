//! An nftables table whose lifetime is that of this process.
//!
//! The kernel removes a table with the flag `owner` (Linux 5.12) when the netlink socket that created it
//! closes. That socket belongs to a child process `nft -i`, which ends with its standard input: when this
//! process ends, also by SIGKILL.
//!
//! ```text
//!  this process ── commands, one per line ──▶ nft -j -i ── netlink ──▶ table { flags owner }
//!               ◀─ errors, then one line of JSON per list command ─┘
//! ```
//!
//! An nft that ends prematurely is restarted at once; if it ends repeatedly, with growing pauses ([`RestartSchedule`]).

use anyhow::{Context, bail};
use serde_json::Value;
use std::fmt;
use std::io::{BufRead, BufReader, PipeReader, Write};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// Time limit for nft to execute a command, or to end.
const NFT_TIMEOUT: Duration = Duration::from_secs(10);
/// Shortest and longest pause between starts of an nft that ends repeatedly.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];
/// Running time after which an nft counts as stable, so that an occasional end causes no pauses.
const STABLE_AFTER: Duration = Duration::from_secs(10);
/// Pause from which on (at the third start in a row) the problem is reported.
const REPORT_FROM_PAUSE: Duration = Duration::from_secs(4);

/// Keeps a table as long as one of its clones exists.
#[derive(Clone)]
pub struct Keeper {
    table: Arc<str>,
    state: Arc<Mutex<NftState>>,
    process: Arc<NftProcess>,
}

struct NftState {
    session: Session,
    process: Arc<NftProcess>,
    /// The last ruleset that was executed; each ruleset is the complete table.
    ruleset: Option<String>,
}

/// Schedule of the restarts of nft: at once, or with pauses that double if it ends repeatedly.
#[derive(Debug, Clone, Copy)]
struct RestartSchedule {
    ended: bool,
    /// Time of the last start.
    last_start: Instant,
    /// Pause between that start and the next.
    pause: Duration,
    is_reported: bool,
}

impl RestartSchedule {
    /// An nft was started.
    const fn new(now: Instant) -> Self {
        Self { ended: false, last_start: now, pause: Duration::ZERO, is_reported: false }
    }

    /// The nft has ended.
    fn end(&mut self, now: Instant) {
        if !self.ended && now.saturating_duration_since(self.last_start) >= STABLE_AFTER {
            (self.pause, self.is_reported) = (Duration::ZERO, false);
        }
        self.ended = true;
    }

    /// Earliest time of the next start, if one is due.
    fn due(&self) -> Option<Instant> {
        self.ended.then(|| self.last_start + self.pause)
    }

    /// The next nft is started.
    fn start(&mut self, now: Instant) {
        self.ended = false;
        self.last_start = now;
        self.pause = (2 * self.pause).clamp(PAUSES[0], PAUSES[1]);
    }

    /// Whether the problem must be reported; true once, until an nft is stable again.
    fn must_report(&mut self) -> bool {
        let news = self.ended && self.pause >= REPORT_FROM_PAUSE && !self.is_reported;
        self.is_reported |= news;
        news
    }
}

/// State of the nft process, outside the lock of its commands.
struct NftProcess {
    schedule: Mutex<RestartSchedule>,
    /// Notified when it has ended.
    ended: Notify,
}

impl NftProcess {
    fn schedule(&self) -> MutexGuard<'_, RestartSchedule> {
        self.schedule.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self) {
        self.schedule().end(Instant::now());
        self.ended.notify_one();
    }
}

impl Keeper {
    /// Creates the table, which must not exist.
    ///
    /// # Errors
    /// The kernel does not support such tables, or nft does not accept commands line by line.
    pub fn new(table: &str) -> anyhow::Result<Self> {
        let process = Arc::new(NftProcess {
            schedule: Mutex::new(RestartSchedule::new(Instant::now())),
            ended: Notify::default(),
        });
        let session = Session::own(table, &process)?;
        let state = NftState { session, process: process.clone(), ruleset: None };
        Ok(Self { table: table.into(), state: Arc::new(Mutex::new(state)), process })
    }

    /// Waits until the nft, and with it the table, has ended, and may be restarted: then [`Self::revive`] is
    /// due.
    pub async fn ended(&self) {
        loop {
            let due = self.process.schedule().due();
            match due {
                Some(at) => return tokio::time::sleep_until(at.into()).await,
                None => self.process.ended.notified().await,
            }
        }
    }

    /// Executes a ruleset, which must be the complete table, atomically.
    ///
    /// # Errors
    /// The message of nft.
    pub fn run(&self, ruleset: &Value) -> anyhow::Result<()> {
        let mut state = self.state();
        if state.has_ended() {
            state.revive(&self.table)?;
        }
        let ruleset = ruleset.to_string();
        state.session.run(&ruleset)?;
        state.ruleset = Some(ruleset);
        Ok(())
    }

    /// Restores the table if its nft has ended and may be restarted; returns the table's name if it was
    /// restored.
    ///
    /// # Errors
    /// The message of nft; a later call tries again.
    pub fn revive(&self) -> anyhow::Result<Option<String>> {
        let mut state = self.state();
        if !state.has_ended() || self.process.schedule().due().is_some_and(|at| Instant::now() < at) {
            return Ok(None);
        }
        state.revive(&self.table)?;
        Ok(Some(self.table.to_string()))
    }

    /// A message that nft ends repeatedly, if it has not been reported yet.
    pub fn complaint(&self) -> Option<String> {
        let mut schedule = self.process.schedule();
        schedule.must_report().then(|| {
            format!(
                "nftables table {}: one nft after the other ends, and the table with it: the next is started ever later, \
                 {} s after the last at most, and until then flows go on without the table",
                self.table,
                PAUSES[1].as_secs()
            )
        })
    }

    /// Whether that was reported and still applies.
    pub fn is_problem_reported(&self) -> bool {
        self.process.schedule().is_reported
    }

    fn state(&self) -> MutexGuard<'_, NftState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl NftState {
    /// Whether the nft has ended; if that was unknown, it is recorded.
    fn has_ended(&mut self) -> bool {
        let ended = self.session.is_over();
        if ended {
            self.process.schedule().end(Instant::now());
        } else {
            // The recorded end was that of a previous nft.
            self.process.schedule().ended = false;
        }
        ended
    }

    fn revive(&mut self, table: &str) -> anyhow::Result<()> {
        self.process.schedule().start(Instant::now());
        let start = || {
            let mut session = Session::own(table, &self.process)?;
            if let Some(ruleset) = &self.ruleset {
                session.run(ruleset)?;
            }
            anyhow::Ok(session)
        };
        self.session = start().inspect_err(|_| self.process.end())?;
        Ok(())
    }
}

impl fmt::Debug for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keeper")
    }
}

struct Session {
    nft: Child,
    output: Receiver<String>,
    /// Its end is intended.
    end_is_intended: Arc<AtomicBool>,
    /// Its output has ended.
    output_ended: Arc<AtomicBool>,
}

impl Session {
    /// Starts an nft that creates and owns the table.
    fn own(table: &str, process: &Arc<NftProcess>) -> anyhow::Result<Self> {
        let mut session = Self::start(table, process)?;
        // The command is text, because nft's JSON knows the flag only since 1.1.1.
        session.run(&format!("add table inet {table} {{ flags owner; }}"))?;
        Ok(session)
    }

    fn start(table: &str, process: &Arc<NftProcess>) -> anyhow::Result<Self> {
        let (reader, writer) = std::io::pipe()?;
        let mut command = Command::new("nft");
        // With these settings its command-line library neither draws nor keeps a history.
        command.args(["-j", "-i"]).env("TERM", "dumb").env("HOME", "/nonexistent");
        command.stdin(std::process::Stdio::piped()).stdout(writer.try_clone()?).stderr(writer);
        let nft = command.spawn().context("cannot run nft: install nftables; what leads flows needs it")?;
        // The command holds the write end of the pipe; the end of the output is detected only after it is
        // dropped.
        drop(command);
        let (tell, output) = channel();
        let (end_is_intended, output_ended) = <(Arc<AtomicBool>, Arc<AtomicBool>)>::default();
        let (wanted, last_said, table, process) =
            (end_is_intended.clone(), output_ended.clone(), table.to_owned(), process.clone());
        std::thread::Builder::new().name("anb-nft".to_owned()).spawn(move || {
            read(reader, &tell);
            last_said.store(true, Relaxed);
            if !wanted.load(Relaxed) {
                if !process.schedule().is_reported {
                    tracing::error!(
                        table,
                        "nft has ended, and the table with it: flows go on without until it is there again"
                    );
                }
                process.end();
            }
        })?;
        Ok(Self { nft, output, end_is_intended, output_ended })
    }

    /// Whether the nft has ended or is about to end.
    fn is_over(&mut self) -> bool {
        self.output_ended.load(Relaxed) || !matches!(self.nft.try_wait(), Ok(None))
    }

    /// Executes one line.
    fn run(&mut self, line: &str) -> anyhow::Result<()> {
        let until = Instant::now() + NFT_TIMEOUT;
        // nft reports all errors of a line before it answers the next one. The listed family has no table of
        // this program, because nft 1.0.6 outputs random table flags.
        let text = format!("{line}\nlist tables arp\n");
        let mut stdin = self.nft.stdin.take().context("nft has ended")?;
        let written = std::thread::scope(|scope| {
            let writes = scope.spawn(|| stdin.write_all(text.as_bytes()).and_then(|()| stdin.flush()));
            let mut errors = String::new();
            let answer = loop {
                match self.output.recv_timeout(until.saturating_duration_since(Instant::now())) {
                    Ok(line) if line.starts_with("{\"nftables\"") => break Ok(()),
                    Ok(line) => {
                        if !line.trim().is_empty() && errors.is_empty() {
                            errors = line;
                        }
                    }
                    Err(RecvTimeoutError::Timeout) => {
                        // This also ends a pending write.
                        let _ = self.nft.kill();
                        break Err(format!("no answer within {} s", NFT_TIMEOUT.as_secs()));
                    }
                    Err(RecvTimeoutError::Disconnected) => break Err(format!("it ended: {}", errors.trim())),
                }
            };
            // If the write failed, nft reports the reason.
            drop(writes.join());
            answer.and_then(|()| if errors.is_empty() { Ok(()) } else { Err(errors.trim().to_owned()) })
        });
        self.nft.stdin = Some(stdin);
        match written {
            Ok(()) => Ok(()),
            Err(why) => bail!("nft: {why}"),
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.end_is_intended.store(true, Relaxed);
        drop(self.nft.stdin.take());
        let until = Instant::now() + NFT_TIMEOUT;
        while matches!(self.nft.try_wait(), Ok(None)) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(2));
        }
        // Has no effect on an nft that has ended, and ends one that hangs.
        let _ = self.nft.kill();
        let _ = self.nft.wait();
    }
}

fn read(from: PipeReader, tell: &std::sync::mpsc::Sender<String>) {
    for line in BufReader::new(from).split(b'\n') {
        let Ok(line) = line else { return };
        if tell.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{in_private_network, sh};
    use serde_json::json;

    fn chain(table: &str, name: &str) -> Value {
        json!({"nftables": [{"add": {"chain": {"family": "inet", "table": table, "name": name}}}]})
    }

    #[test]
    fn the_table_is_removed_only_with_its_keeper() {
        in_private_network(|| {
            let keeper = Keeper::new("anabranch_t").unwrap();
            keeper.run(&chain("anabranch_t", "one")).unwrap();
            let error = keeper.run(&chain("anabranch_x", "one")).unwrap_err().to_string();
            assert!(error.contains("No such file"), "{error}");
            keeper.run(&chain("anabranch_t", "two")).unwrap();
            assert!(sh("nft delete table inet anabranch_t 2>&1 || true").contains("not permitted"));
            let all = sh("nft list ruleset");
            assert!(all.contains("chain one") && all.contains("chain two"), "{all}");
            // A line longer than the largest ruleset.
            let rule = json!({"add": {"rule": {"family": "inet", "table": "anabranch_t", "chain": "one", "expr": [
                {"match": {"op": "==", "left": {"meta": {"key": "mark"}}, "right": 7}}, {"return": null}]}}});
            let many: Vec<Value> = (0..5000).map(|_| rule.clone()).collect();
            keeper.run(&json!({"nftables": many})).unwrap();
            assert_eq!(sh("nft list chain inet anabranch_t one").matches("return").count(), 5000);
            drop(keeper);
            assert_eq!(sh("nft list ruleset"), "");
        });
    }

    #[test]
    fn a_table_whose_nft_was_killed_is_restored() {
        in_private_network(|| {
            let keeper = Keeper::new("anabranch_t").unwrap();
            keeper.run(&chain("anabranch_t", "one")).unwrap();
            let kill = || {
                let pid = keeper.state.lock().unwrap().session.nft.id();
                sh(&format!(
                    "kill -9 {pid}
                     for i in $(seq 1000); do
                         grep -q '^State:.Z' /proc/{pid}/status && ! nft list ruleset | grep -q anabranch_t && exit 0
                         sleep 0.01
                     done
                     echo 'nft or its table is there 10 s after it was killed' >&2; exit 1"
                ));
            };
            assert_eq!(keeper.revive().unwrap(), None);
            let is_reported = || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
                let soon = Duration::from_secs(5);
                runtime.block_on(async { tokio::time::timeout(soon, keeper.ended()).await.is_ok() })
            };
            kill();
            assert!(is_reported());
            assert_eq!(keeper.revive().unwrap().as_deref(), Some("anabranch_t"));
            assert!(sh("nft list ruleset").contains("chain one"));
            kill();
            assert!(is_reported());
            keeper.run(&chain("anabranch_t", "two")).unwrap();
            assert!(sh("nft list ruleset").contains("chain two"));
            drop(keeper);
            assert_eq!(sh("nft list ruleset"), "");
        });
    }

    /// For any running time of nft, starts are limited, the next one follows soon enough, and the problem is
    /// reported once.
    #[test]
    fn an_unstable_nft_is_restarted_with_growing_pauses_and_reported_once() {
        let hour = Duration::from_secs(3600);
        for lasts_ms in [0, 1, 100, 900, 1_500, 9_999, 10_000, 59_999, 60_000, 61_000, 600_000] {
            let (lasts, start) = (Duration::from_millis(lasts_ms), Instant::now());
            let (mut schedule, mut now, mut starts, mut reports, mut gone) =
                (RestartSchedule::new(start), start, 0, 0, Duration::ZERO);
            while now < start + hour {
                now += lasts;
                schedule.end(now);
                // The same for an nft that could not be started.
                schedule.end(now);
                reports += usize::from(schedule.must_report());
                let at = now.max(schedule.due().unwrap());
                if starts == 0 {
                    assert_eq!(at, now, "the first is started at once");
                }
                gone = gone.max(at - now);
                now = at;
                schedule.start(now);
                starts += 1;
                assert_eq!(schedule.due(), None);
            }
            assert!(gone <= PAUSES[1], "{lasts_ms}: {gone:?}");
            if lasts < STABLE_AFTER {
                assert_eq!(reports, 1, "{lasts_ms}");
                assert!((60..=66).contains(&starts), "{lasts_ms}: {starts}");
            } else {
                // These are stable.
                assert_eq!((reports, gone), (0, Duration::ZERO), "{lasts_ms}");
            }
        }
    }

    #[test]
    fn an_existing_table_is_not_taken_over() {
        in_private_network(|| {
            sh("nft add table inet anabranch_t");
            assert!(Keeper::new("anabranch_t").is_err());
            assert!(sh("nft list ruleset").contains("anabranch_t"));
        });
    }
}
