//! A table of nftables that goes with this process, however it ends.
//!
//! The kernel removes a table with the flag `owner` (Linux 5.12) when the netlink socket closes that made it. The socket
//! is that of an `nft -i` of ours, which ends with its standard input: with us, and so by SIGKILL, too.
//!
//! ```text
//!  we ── commands, one a line ──▶ nft -j -i ── netlink ──▶ table { flags owner }
//!     ◀─ errors, then one line of JSON a command that lists ─┘
//! ```
//!
//! One that ends before it should is started again at once; where the next does not last either, ever more seldom ([`Pace`]).

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

/// Longest wait for nft to do what it was told, or to end.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two starts of an nft that does not last: at first, and at most.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];
/// One that has lived for so long has lasted: whoever ends it does not keep us busy.
const LASTS: Duration = Duration::from_secs(10);
/// From this pause on, the third start in a row, it is told that it does not last.
const TOLD_FROM: Duration = Duration::from_secs(4);

/// Keeps a table as long as one of its clones lives.
#[derive(Clone)]
pub struct Keeper {
    table: Arc<str>,
    kept: Arc<Mutex<Kept>>,
    life: Arc<Life>,
}

struct Kept {
    session: Session,
    life: Arc<Life>,
    /// The last ruleset that was executed. Each is the whole table.
    ruleset: Option<String>,
}

/// When an nft that has ended is started again: at once, after one that does not last with pauses that double.
#[derive(Debug, Clone, Copy)]
struct Pace {
    ended: bool,
    /// The last start.
    tried: Instant,
    /// After it, before the next.
    pause: Duration,
    told: bool,
}

impl Pace {
    /// One was started.
    const fn new(now: Instant) -> Self {
        Self { ended: false, tried: now, pause: Duration::ZERO, told: false }
    }

    /// It has ended.
    fn end(&mut self, now: Instant) {
        if !self.ended && now.saturating_duration_since(self.tried) >= LASTS {
            (self.pause, self.told) = (Duration::ZERO, false);
        }
        self.ended = true;
    }

    /// When the next may be started, if one is due.
    fn due(&self) -> Option<Instant> {
        self.ended.then(|| self.tried + self.pause)
    }

    /// The next is started.
    fn start(&mut self, now: Instant) {
        self.ended = false;
        self.tried = now;
        self.pause = (2 * self.pause).clamp(PAUSES[0], PAUSES[1]);
    }

    /// Whether it is time to tell that none lasts; once, until one does.
    fn is_news(&mut self) -> bool {
        let news = self.ended && self.pause >= TOLD_FROM && !self.told;
        self.told |= news;
        news
    }
}

/// What is known of the nft's life outside the lock of what it is told.
struct Life {
    pace: Mutex<Pace>,
    /// Told when it has ended.
    ended: Notify,
}

impl Life {
    fn pace(&self) -> MutexGuard<'_, Pace> {
        self.pace.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self) {
        self.pace().end(Instant::now());
        self.ended.notify_one();
    }
}

impl Keeper {
    /// Makes a table that goes with this process. There must be none of its name.
    ///
    /// # Errors
    /// This kernel has no such tables, or this nft takes no commands one by one.
    pub fn new(table: &str) -> anyhow::Result<Self> {
        let life = Arc::new(Life { pace: Mutex::new(Pace::new(Instant::now())), ended: Notify::default() });
        let session = Session::own(table, &life)?;
        let kept = Kept { session, life: life.clone(), ruleset: None };
        Ok(Self { table: table.into(), kept: Arc::new(Mutex::new(kept)), life })
    }

    /// Waits until its nft has ended, and the table with it, and another may be started: [`Self::revive`] is due.
    pub async fn ended(&self) {
        loop {
            let due = self.life.pace().due();
            match due {
                Some(at) => return tokio::time::sleep_until(at.into()).await,
                None => self.life.ended.notified().await,
            }
        }
    }

    /// Executes a ruleset, which must be the whole table, at once or not at all.
    ///
    /// # Errors
    /// What nft says.
    pub fn run(&self, ruleset: &Value) -> anyhow::Result<()> {
        let mut kept = self.kept();
        if kept.has_ended() {
            kept.revive(&self.table)?;
        }
        let ruleset = ruleset.to_string();
        kept.session.run(&ruleset)?;
        kept.ruleset = Some(ruleset);
        Ok(())
    }

    /// Makes the table again if its nft has ended and another may be started; the table's name if so.
    ///
    /// # Errors
    /// What nft says; tried again by a later call.
    pub fn revive(&self) -> anyhow::Result<Option<String>> {
        let mut kept = self.kept();
        if !kept.has_ended() || self.life.pace().due().is_some_and(|at| Instant::now() < at) {
            return Ok(None);
        }
        kept.revive(&self.table)?;
        Ok(Some(self.table.to_string()))
    }

    /// That one nft after the other ends, if that is news.
    pub fn complaint(&self) -> Option<String> {
        let mut pace = self.life.pace();
        pace.is_news().then(|| {
            format!(
                "nftables table {}: one nft after the other ends, and the table with it: the next is started ever later, \
                 {} s after the last at most, and until then flows go on without the table",
                self.table,
                PAUSES[1].as_secs()
            )
        })
    }

    /// Whether that was told, and holds.
    pub fn has_complained(&self) -> bool {
        self.life.pace().told
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    /// Whether its nft has; where nobody has said so yet, that is noted.
    fn has_ended(&mut self) -> bool {
        let ended = self.session.is_over();
        if ended {
            self.life.pace().end(Instant::now());
        } else {
            // What was heard is of one before.
            self.life.pace().ended = false;
        }
        ended
    }

    fn revive(&mut self, table: &str) -> anyhow::Result<()> {
        self.life.pace().start(Instant::now());
        let start = || {
            let mut session = Session::own(table, &self.life)?;
            if let Some(ruleset) = &self.ruleset {
                session.run(ruleset)?;
            }
            anyhow::Ok(session)
        };
        self.session = start().inspect_err(|_| self.life.end())?;
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
    said: Receiver<String>,
    /// Its end is wanted.
    ends: Arc<AtomicBool>,
    /// It has said its last.
    silent: Arc<AtomicBool>,
}

impl Session {
    /// One that has made the table, which goes with it.
    fn own(table: &str, life: &Arc<Life>) -> anyhow::Result<Self> {
        let mut session = Self::start(table, life)?;
        // The words of nft: its JSON knows the flag only since 1.1.1.
        session.run(&format!("add table inet {table} {{ flags owner; }}"))?;
        Ok(session)
    }

    fn start(table: &str, life: &Arc<Life>) -> anyhow::Result<Self> {
        let (reader, writer) = std::io::pipe()?;
        let mut command = Command::new("nft");
        // Its library for command lines neither draws nor keeps a history then.
        command.args(["-j", "-i"]).env("TERM", "dumb").env("HOME", "/nonexistent");
        command.stdin(std::process::Stdio::piped()).stdout(writer.try_clone()?).stderr(writer);
        let nft = command.spawn().context("cannot run nft: install nftables; what leads flows needs it")?;
        // It holds the other end of the pipe: that its own ends are seen is why it goes here.
        drop(command);
        let (tell, said) = channel();
        let (ends, silent) = <(Arc<AtomicBool>, Arc<AtomicBool>)>::default();
        let (wanted, last_said, table, life) = (ends.clone(), silent.clone(), table.to_owned(), life.clone());
        std::thread::Builder::new().name("anb-nft".to_owned()).spawn(move || {
            read(reader, &tell);
            last_said.store(true, Relaxed);
            if !wanted.load(Relaxed) {
                if !life.pace().told {
                    tracing::error!(
                        table,
                        "nft has ended, and the table with it: flows go on without until it is there again"
                    );
                }
                life.end();
            }
        })?;
        Ok(Self { nft, said, ends, silent })
    }

    /// Whether it has ended, or is about to.
    fn is_over(&mut self) -> bool {
        self.silent.load(Relaxed) || !matches!(self.nft.try_wait(), Ok(None))
    }

    /// Has it execute one line.
    fn run(&mut self, line: &str) -> anyhow::Result<()> {
        let until = Instant::now() + PATIENCE;
        // Whatever it says of a line it says before it answers the next. Of a family without tables of ours: nft 1.0.6 gives a
        // wild pointer as their flags.
        let text = format!("{line}\nlist tables arp\n");
        let mut stdin = self.nft.stdin.take().context("nft has ended")?;
        let written = std::thread::scope(|scope| {
            let writes = scope.spawn(|| stdin.write_all(text.as_bytes()).and_then(|()| stdin.flush()));
            let mut errors = String::new();
            let answer = loop {
                match self.said.recv_timeout(until.saturating_duration_since(Instant::now())) {
                    Ok(line) if line.starts_with("{\"nftables\"") => break Ok(()),
                    Ok(line) => {
                        if !line.trim().is_empty() && errors.is_empty() {
                            errors = line;
                        }
                    }
                    Err(RecvTimeoutError::Timeout) => {
                        // What waits to be written ends, too.
                        let _ = self.nft.kill();
                        break Err(format!("no answer within {} s", PATIENCE.as_secs()));
                    }
                    Err(RecvTimeoutError::Disconnected) => break Err(format!("it ended: {}", errors.trim())),
                }
            };
            // What it could not take it says itself.
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
        self.ends.store(true, Relaxed);
        drop(self.nft.stdin.take());
        let until = Instant::now() + PATIENCE;
        while matches!(self.nft.try_wait(), Ok(None)) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(2));
        }
        // One that has ended is not hit; one that hangs is.
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
    fn the_table_goes_with_its_keeper_and_nobody_else_removes_it() {
        in_private_network(|| {
            let keeper = Keeper::new("anabranch_t").unwrap();
            keeper.run(&chain("anabranch_t", "one")).unwrap();
            let error = keeper.run(&chain("anabranch_x", "one")).unwrap_err().to_string();
            assert!(error.contains("No such file"), "{error}");
            keeper.run(&chain("anabranch_t", "two")).unwrap();
            assert!(sh("nft delete table inet anabranch_t 2>&1 || true").contains("not permitted"));
            let all = sh("nft list ruleset");
            assert!(all.contains("chain one") && all.contains("chain two"), "{all}");
            // A line as long as the largest ruleset, and then some.
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
    fn a_table_whose_nft_was_killed_is_made_again() {
        in_private_network(|| {
            let keeper = Keeper::new("anabranch_t").unwrap();
            keeper.run(&chain("anabranch_t", "one")).unwrap();
            let kill = || {
                let pid = keeper.kept.lock().unwrap().session.nft.id();
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
            let told = || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
                let soon = Duration::from_secs(5);
                runtime.block_on(async { tokio::time::timeout(soon, keeper.ended()).await.is_ok() })
            };
            kill();
            assert!(told());
            assert_eq!(keeper.revive().unwrap().as_deref(), Some("anabranch_t"));
            assert!(sh("nft list ruleset").contains("chain one"));
            kill();
            assert!(told());
            keeper.run(&chain("anabranch_t", "two")).unwrap();
            assert!(sh("nft list ruleset").contains("chain two"));
            drop(keeper);
            assert_eq!(sh("nft list ruleset"), "");
        });
    }

    /// However long each nft lasts, starts are few, the next comes soon enough, and what is told is told once.
    #[test]
    fn an_nft_that_does_not_last_is_started_ever_more_seldom_and_that_is_told_once() {
        let hour = Duration::from_secs(3600);
        for lasts_ms in [0, 1, 100, 900, 1_500, 9_999, 10_000, 59_999, 60_000, 61_000, 600_000] {
            let (lasts, start) = (Duration::from_millis(lasts_ms), Instant::now());
            let (mut pace, mut now, mut starts, mut told, mut gone) =
                (Pace::new(start), start, 0, 0, Duration::ZERO);
            while now < start + hour {
                now += lasts;
                pace.end(now);
                // The same of one that was started and of one that could not be.
                pace.end(now);
                told += usize::from(pace.is_news());
                let at = now.max(pace.due().unwrap());
                if starts == 0 {
                    assert_eq!(at, now, "the first is started at once");
                }
                gone = gone.max(at - now);
                now = at;
                pace.start(now);
                starts += 1;
                assert_eq!(pace.due(), None);
            }
            assert!(gone <= PAUSES[1], "{lasts_ms}: {gone:?}");
            if lasts < LASTS {
                assert_eq!(told, 1, "{lasts_ms}");
                assert!((60..=66).contains(&starts), "{lasts_ms}: {starts}");
            } else {
                // Those last.
                assert_eq!((told, gone), (0, Duration::ZERO), "{lasts_ms}");
            }
        }
    }

    #[test]
    fn a_table_that_is_there_is_not_taken_over() {
        in_private_network(|| {
            sh("nft add table inet anabranch_t");
            assert!(Keeper::new("anabranch_t").is_err());
            assert!(sh("nft list ruleset").contains("anabranch_t"));
        });
    }
}
