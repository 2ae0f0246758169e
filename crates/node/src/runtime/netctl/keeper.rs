//! A table of nftables that goes with this process, however it ends.
//!
//! The kernel removes a table with the flag `owner` (Linux 5.12) when the netlink socket closes that made it. The socket
//! is that of an `nft -i` of ours, which ends with its standard input: with us, and so by SIGKILL, too.
//!
//! ```text
//!  we ── commands, one a line ──▶ nft -j -i ── netlink ──▶ table { flags owner }
//!     ◀─ errors, then one line of JSON a command that lists ─┘
//! ```

use anyhow::{Context, bail};
use serde_json::Value;
use std::fmt;
use std::io::{BufRead, BufReader, PipeReader, Write};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// Longest wait for nft to do what it was told, or to end.
const PATIENCE: Duration = Duration::from_secs(10);

/// Keeps a table as long as one of its clones lives.
#[derive(Clone)]
pub struct Keeper {
    kept: Arc<Mutex<Kept>>,
    /// Told when an nft has ended that was to stay.
    ended: Arc<Notify>,
}

struct Kept {
    table: String,
    session: Session,
    ended: Arc<Notify>,
    /// The last ruleset that was executed. Each is the whole table.
    ruleset: Option<String>,
}

impl Keeper {
    /// Makes a table that goes with this process. There must be none of its name.
    ///
    /// # Errors
    /// This kernel has no such tables, or this nft takes no commands one by one.
    pub fn new(table: &str) -> anyhow::Result<Self> {
        let ended = Arc::<Notify>::default();
        let session = Session::own(table, &ended)?;
        let kept = Kept { table: table.to_owned(), session, ended: ended.clone(), ruleset: None };
        Ok(Self { kept: Arc::new(Mutex::new(kept)), ended })
    }

    /// Waits until its nft has ended, and the table with it: [`Self::revive`] is due.
    pub async fn ended(&self) {
        self.ended.notified().await;
    }

    /// Executes a ruleset, which must be the whole table, at once or not at all.
    ///
    /// # Errors
    /// What nft says.
    pub fn run(&self, ruleset: &Value) -> anyhow::Result<()> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.revive()?;
        let ruleset = ruleset.to_string();
        kept.session.run(&ruleset)?;
        kept.ruleset = Some(ruleset);
        Ok(())
    }

    /// Makes the table again if its nft has ended; the table's name if so.
    ///
    /// # Errors
    /// What nft says; the next call tries again.
    pub fn revive(&self) -> anyhow::Result<Option<String>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(kept.revive()?.then(|| kept.table.clone()))
    }
}

impl Kept {
    /// Whether it had to be made again.
    fn revive(&mut self) -> anyhow::Result<bool> {
        if matches!(self.session.nft.try_wait(), Ok(None)) {
            return Ok(false);
        }
        let mut session = Session::own(&self.table, &self.ended)?;
        if let Some(ruleset) = &self.ruleset {
            session.run(ruleset)?;
        }
        self.session = session;
        Ok(true)
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
}

impl Session {
    /// One that has made the table, which goes with it.
    fn own(table: &str, ended: &Arc<Notify>) -> anyhow::Result<Self> {
        let mut session = Self::start(table, ended)?;
        // The words of nft: its JSON knows the flag only since 1.1.1.
        session.run(&format!("add table inet {table} {{ flags owner; }}"))?;
        Ok(session)
    }

    fn start(table: &str, ended: &Arc<Notify>) -> anyhow::Result<Self> {
        let (reader, writer) = std::io::pipe()?;
        let mut command = Command::new("nft");
        // Its library for command lines neither draws nor keeps a history then.
        command.args(["-j", "-i"]).env("TERM", "dumb").env("HOME", "/nonexistent");
        command.stdin(std::process::Stdio::piped()).stdout(writer.try_clone()?).stderr(writer);
        let nft = command.spawn().context("cannot run nft: install nftables; what leads flows needs it")?;
        // It holds the other end of the pipe: that its own ends are seen is why it goes here.
        drop(command);
        let (tell, said) = channel();
        let ends = Arc::new(AtomicBool::new(false));
        let (wanted, table, ended) = (ends.clone(), table.to_owned(), ended.clone());
        std::thread::Builder::new().name("anb-nft".to_owned()).spawn(move || {
            read(reader, &tell);
            if !wanted.load(Relaxed) {
                tracing::error!(
                    table,
                    "nft has ended, and the table with it: flows go on without until it is there again"
                );
                ended.notify_one();
            }
        })?;
        Ok(Self { nft, said, ends })
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

    #[test]
    fn a_table_that_is_there_is_not_taken_over() {
        in_private_network(|| {
            sh("nft add table inet anabranch_t");
            assert!(Keeper::new("anabranch_t").is_err());
            assert!(sh("nft list ruleset").contains("anabranch_t"));
        });
    }
}
