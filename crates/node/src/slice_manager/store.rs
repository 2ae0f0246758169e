//! Where records are kept: SQLite in a file of ours, or PostgreSQL that several instances share.
//!
//! One table of records and one number, the revision, that every change takes and raises under a lock. So changes come
//! one after another whoever makes them, an instance that is behind reads what is newer than what it has, and a program
//! that is killed leaves a change whole or not at all.

use crate::runtime::folder;
use anabranch_slice::{Kind, Record, Write};
use anyhow::Context;
use sqlx::postgres::{PgListener, PgPoolOptions};
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous,
};
use sqlx::{ConnectOptions, Connection, PgPool, Postgres, SqlitePool, Transaction};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

const CHANNEL: &str = "anabranch_slices";
/// Longest wait for a server. Behind a network that is cut it says nothing for ever, and no socket tells.
const SILENT: Duration = Duration::from_secs(5);
/// For every connection, whatever the server's own are: an instance that stops in the middle of a change keeps others waiting
/// no longer; and a change that waited for another's sees it.
const BEGUN: [&str; 2] = [
    "SET idle_in_transaction_session_timeout = '10s'",
    "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED",
];
/// Records that are gone stay as empty rows for so many changes, for instances that are behind.
const KEEP_GONE: i64 = 10_000;
/// More changes than are made in any time: a counter beyond it is damaged.
const MOST_CHANGES: i64 = 1 << 53;

const SCHEMA: [&str; 5] = [
    "CREATE TABLE IF NOT EXISTS anabranch_record (kind TEXT NOT NULL, id TEXT NOT NULL, revision BIGINT NOT NULL, \
     body TEXT, PRIMARY KEY (kind, id))",
    "CREATE INDEX IF NOT EXISTS anabranch_record_revision ON anabranch_record (revision)",
    "CREATE TABLE IF NOT EXISTS anabranch_meta (name TEXT PRIMARY KEY, value BIGINT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS anabranch_lease (name TEXT PRIMARY KEY, owner TEXT NOT NULL, until_ms BIGINT NOT NULL)",
    "INSERT INTO anabranch_meta (name, value) VALUES ('revision', 0), ('purged', 0), ('schema', 1) \
     ON CONFLICT (name) DO NOTHING",
];

const NEWER: &str =
    "SELECT kind, id, revision, body FROM anabranch_record WHERE revision > $1 ORDER BY revision";
const META: &str = "SELECT value FROM anabranch_meta WHERE name = $1";
const PUT: &str = "INSERT INTO anabranch_record (kind, id, revision, body) VALUES ($1, $2, $3, $4) \
                   ON CONFLICT (kind, id) DO UPDATE SET revision = excluded.revision, body = excluded.body";
const RAISE: &str = "UPDATE anabranch_meta SET value = $1 WHERE name = $2";
const PURGE: &str = "DELETE FROM anabranch_record WHERE body IS NULL AND revision <= $1";
const LEASE: &str = "INSERT INTO anabranch_lease (name, owner, until_ms) VALUES ('southbound', $1, $2) \
                     ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, until_ms = excluded.until_ms \
                     WHERE anabranch_lease.owner = $1 OR anabranch_lease.until_ms < $3";

/// A database.
#[derive(Clone)]
pub enum Store {
    /// A file.
    Sqlite(SqlitePool, Writer),
    /// A server.
    Postgres(PgPool),
}

/// The connection that changes are made with. A change takes it, and gives it back when it has ended as it should; of
/// one that has not, SQLite may have kept half a transaction open: that goes with its connection, and the next change
/// has a new one.
#[derive(Clone)]
pub struct Writer {
    options: Arc<SqliteConnectOptions>,
    idle: Arc<Mutex<Option<SqliteConnection>>>,
    /// Device and number of the file; none of one in memory.
    file: Option<(u64, u64)>,
}

/// Device and number of a file.
fn identity(file: &Path) -> std::io::Result<(u64, u64)> {
    std::fs::metadata(file).map(|meta| (meta.dev(), meta.ino()))
}

impl Writer {
    /// The file is the one that was opened: what is written to one that was removed or replaced nobody ever reads again.
    fn check(&self) -> anyhow::Result<()> {
        let Some(opened) = self.file else { return Ok(()) };
        let file = self.options.get_filename();
        let place = file.display();
        let why = match identity(file) {
            Ok(now) if now == opened => return Ok(()),
            Ok(_) => "is another file than was opened".to_owned(),
            Err(error) => format!("is not where it was opened ({error})"),
        };
        anyhow::bail!(
            "{place} {why}: put it back, or stop the slice manager, put the file there that is to count, and start it again"
        )
    }

    async fn take(&self) -> sqlx::Result<SqliteConnection> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).take();
        match idle {
            Some(connection) => Ok(connection),
            None => self.options.connect().await,
        }
    }

    fn give(&self, connection: SqliteConnection) {
        *self.idle.lock().unwrap_or_else(PoisonError::into_inner) = Some(connection);
    }
}

/// How storing a change went wrong.
#[derive(Debug)]
pub enum Failed {
    /// Nothing has changed.
    Unchanged(anyhow::Error),
    /// The database did not say whether it is stored.
    Unknown(anyhow::Error),
}

/// What is newer than what one has.
pub struct Newer {
    /// Records, oldest first.
    pub writes: Vec<Write>,
    /// What one has then.
    pub revision: i64,
    /// What one had is too old to be brought up to date, or the database is older than that: it is all there is.
    pub all: bool,
}

type Row = (String, String, i64, Option<String>);

/// A change that is not made yet. It holds the lock.
pub enum Change {
    /// In a file.
    Sqlite(SqliteConnection, Writer),
    /// At a server.
    Postgres(Transaction<'static, Postgres>),
}

/// The same statement for both.
macro_rules! on {
    ($self:expr, $of:ident, $at:ident => $run:expr) => {
        match $self {
            $of::Sqlite($at, _) => $run,
            $of::Postgres($at) => $run,
        }
    };
}

impl Store {
    /// Opens the database, and makes the tables where there are none.
    pub async fn open(url: &str) -> anyhow::Result<Self> {
        let hidden = hide_password(url);
        let store = match url.strip_prefix("sqlite:") {
            Some(path) => {
                let options = SqliteConnectOptions::from_str(url)
                    .with_context(|| format!("database \"{url}\""))?
                    .create_if_missing(true)
                    .journal_mode(SqliteJournalMode::Wal)
                    .synchronous(SqliteSynchronous::Full)
                    .busy_timeout(Duration::from_secs(10));
                if !path.starts_with(":memory:") {
                    let file = path.split('?').next().unwrap_or(path).trim_start_matches("//");
                    folder::make_for(Path::new(file)).context("database")?;
                }
                let pool = SqlitePoolOptions::new().max_connections(2).connect_with(options.clone()).await;
                let pool = pool.map_err(|error| {
                    let context = format!("database \"{url}\": {}", remedy(&error));
                    anyhow::Error::new(error).context(context)
                })?;
                let file =
                    (!path.starts_with(":memory:")).then(|| identity(options.get_filename())).transpose();
                let file = file.with_context(|| format!("database \"{url}\""))?;
                Self::Sqlite(pool, Writer { options: Arc::new(options), idle: Arc::default(), file })
            }
            None => {
                let pool = PgPoolOptions::new().max_connections(4).acquire_timeout(SILENT);
                let pool = pool.after_connect(|connection, _| {
                    Box::pin(async move {
                        for setting in BEGUN {
                            sqlx::query(setting).execute(&mut *connection).await?;
                        }
                        Ok(())
                    })
                });
                // One that waits for an answer which nobody waits for any more gives it, or is closed.
                let pool = pool.after_release(|connection, _| {
                    Box::pin(async move {
                        let answers = tokio::time::timeout(SILENT, connection.ping()).await;
                        answers.unwrap_or(Err(sqlx::Error::PoolTimedOut)).map(|()| true)
                    })
                });
                let pool = pool.connect(url).await;
                let pool = pool.with_context(|| format!("database \"{hidden}\": is the server there?"))?;
                let encoding: String = sqlx::query_scalar("SHOW server_encoding").fetch_one(&pool).await?;
                anyhow::ensure!(
                    ["UTF8", "SQL_ASCII"].contains(&encoding.as_str()),
                    "database \"{hidden}\" is in {encoding}, which does not have every character: make one with \
                     ENCODING 'UTF8' (and TEMPLATE template0)"
                );
                Self::Postgres(pool)
            }
        };
        // Two that start at the same time may both make a table; the second try finds it.
        let mut tried = store.prepare().await;
        for _ in 0..5 {
            if tried.is_ok() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
            tried = store.prepare().await;
        }
        tried.with_context(|| format!("database \"{hidden}\": making the tables"))?;
        let schema: i64 =
            on!(&store, Self, pool => sqlx::query_scalar(META).bind("schema").fetch_one(pool).await)?;
        anyhow::ensure!(schema == 1, "database \"{hidden}\" is of schema {schema}: use a newer anabranch");
        store.check().await.with_context(|| format!("database \"{hidden}\""))?;
        Ok(store)
    }

    /// Whether the tables are there, and their counters fit the records.
    async fn check(&self) -> anyhow::Result<()> {
        const NEWEST: &str = "SELECT COALESCE(MAX(revision), 0) FROM anabranch_record";
        const LEASES: &str = "SELECT COUNT(*) FROM anabranch_lease";
        on!(self, Self, pool => {
            let newest: i64 = sqlx::query_scalar(NEWEST).fetch_one(pool).await
                .context("table anabranch_record cannot be read: put a copy in its place")?;
            sqlx::query_scalar::<_, i64>(LEASES).fetch_one(pool).await
                .context("table anabranch_lease cannot be read: put a copy in its place")?;
            // After the records: they only go up.
            let purged: Option<i64> = sqlx::query_scalar(META).bind("purged").fetch_optional(pool).await?;
            let revision: Option<i64> = sqlx::query_scalar(META).bind("revision").fetch_optional(pool).await?;
            fit(purged, revision, newest).map(drop)
        })
    }

    async fn prepare(&self) -> sqlx::Result<()> {
        // What is there needs no leave to make it. The schema is what is made last.
        let made = async {
            on!(self, Self, pool => sqlx::query_scalar::<_, i64>(META).bind("schema").fetch_optional(pool).await)
        };
        if matches!(made.await, Ok(Some(_))) {
            return Ok(());
        }
        for statement in SCHEMA {
            on!(self, Self, pool => sqlx::query(statement).execute(pool).await.map(drop))?;
        }
        Ok(())
    }

    /// Begins a change: whoever else wants to make one waits. Gives what is newer than `known`.
    pub async fn begin(&self, known: i64) -> anyhow::Result<(Change, Newer)> {
        in_time(self.is_server(), self.begun(known)).await
    }

    async fn begun(&self, known: i64) -> anyhow::Result<(Change, Newer)> {
        let mut change = match self {
            Self::Sqlite(_, writer) => {
                writer.check()?;
                let mut connection = writer.take().await?;
                sqlx::query("BEGIN IMMEDIATE").execute(&mut connection).await?;
                Change::Sqlite(connection, writer.clone())
            }
            Self::Postgres(pool) => {
                let mut tx = pool.begin().await?;
                let lock = "SELECT value FROM anabranch_meta WHERE name = 'revision' FOR UPDATE";
                sqlx::query(lock).execute(&mut *tx).await?;
                Change::Postgres(tx)
            }
        };
        let newer = on!(&mut change, Change, tx => {
            let purged: Option<i64> = sqlx::query_scalar(META).bind("purged").fetch_optional(&mut *tx.statement()).await?;
            let revision: Option<i64> = sqlx::query_scalar(META).bind("revision").fetch_optional(&mut *tx.statement()).await?;
            let (purged, revision) = fit(purged, revision, 0)?;
            let all = known < purged || known > revision;
            let from = if all { -1 } else { known };
            let rows: Vec<Row> = if from < revision {
                sqlx::query_as(NEWER).bind(from).fetch_all(&mut *tx.statement()).await?
            } else {
                Vec::new()
            };
            newer(rows, revision, all)?
        });
        Ok((change, newer))
    }

    /// Whether a change was made of which it was not told: `writes` as `revision`. Waits for one that is still being made.
    pub async fn was_made(&self, revision: i64, writes: &[Write]) -> anyhow::Result<bool> {
        let (mut change, _) = self.begin(revision - 1).await?;
        let made = in_time(self.is_server(), change.has(revision, writes)).await;
        change.end().await;
        made
    }

    /// What is newer than `known`, without a lock.
    pub async fn newer(&self, known: i64) -> anyhow::Result<Newer> {
        in_time(self.is_server(), self.read(known)).await
    }

    async fn read(&self, known: i64) -> anyhow::Result<Newer> {
        if let Self::Sqlite(_, writer) = self {
            writer.check()?;
        }
        on!(self, Self, pool => {
            let mut rows: Vec<Row> = sqlx::query_as(NEWER).bind(known).fetch_all(pool).await?;
            // Asked after the rows: what was purged by then may be missing in them, what is purged later is in them.
            let purged: i64 = sqlx::query_scalar(META).bind("purged").fetch_one(pool).await?;
            let stored: i64 = sqlx::query_scalar(META).bind("revision").fetch_one(pool).await?;
            // A server whose last changes were lost with it, or that has a copy of before in its place, is behind.
            let all = known < purged || known > stored;
            if all {
                rows = sqlx::query_as(NEWER).bind(-1_i64).fetch_all(pool).await?;
            }
            // One statement sees a beginning of the row of changes, whole.
            let revision = rows.last().map_or(known.clamp(0, stored.max(0)), |row| row.2);
            newer(rows, revision, all)
        })
    }

    /// Whether this instance, until `until_ms`, is the one that changes the network.
    pub async fn lease(&self, owner: &str, until_ms: i64, now_ms: i64) -> anyhow::Result<bool> {
        in_time(self.is_server(), async {
            Ok(on!(self, Self, pool => {
                sqlx::query(LEASE).bind(owner).bind(until_ms).bind(now_ms).execute(pool).await?.rows_affected() == 1
            }))
        })
        .await
    }

    /// Gives the lease back.
    pub async fn release(&self, owner: &str) -> anyhow::Result<()> {
        let sql = "DELETE FROM anabranch_lease WHERE name = 'southbound' AND owner = $1";
        in_time(self.is_server(), async {
            on!(self, Self, pool => sqlx::query(sql).bind(owner).execute(pool).await.map(drop))?;
            Ok(())
        })
        .await
    }

    const fn is_server(&self) -> bool {
        matches!(self, Self::Postgres(_))
    }

    /// Tells of changes of other instances; `None` where there are none.
    pub async fn listen(&self) -> anyhow::Result<Option<PgListener>> {
        let Self::Postgres(pool) = self else { return Ok(None) };
        let mut listener = PgListener::connect_with(pool).await?;
        listener.listen(CHANNEL).await?;
        Ok(Some(listener))
    }
}

impl Change {
    /// Makes it, as `revision`.
    pub async fn commit(mut self, revision: i64, writes: &[Write]) -> Result<(), Failed> {
        if let Err(error) = in_time(self.is_server(), self.put(revision, writes)).await {
            self.end().await;
            return Err(Failed::Unchanged(error));
        }
        let made = match self {
            Self::Sqlite(mut connection, writer) => {
                match sqlx::query("COMMIT").execute(&mut connection).await {
                    Ok(_) => {
                        writer.give(connection);
                        Ok(())
                    }
                    Err(error) => {
                        // Closed before anyone looks: what it left half done is undone then.
                        drop(connection.close().await);
                        Err(error.into())
                    }
                }
            }
            Self::Postgres(tx) => in_time(true, async { Ok(tx.commit().await?) }).await,
        };
        made.map_err(Failed::Unknown)
    }

    const fn is_server(&self) -> bool {
        matches!(self, Self::Postgres(_))
    }

    async fn put(&mut self, revision: i64, writes: &[Write]) -> anyhow::Result<()> {
        for write in writes {
            let body = write.record.as_ref().map(Record::to_json).transpose()?;
            on!(self, Self, tx => {
                let put = sqlx::query(PUT).bind(write.kind.name()).bind(&write.id).bind(revision).bind(body);
                put.execute(&mut *tx.statement()).await.map(drop)
            })?;
        }
        on!(self, Self, tx => {
            sqlx::query(RAISE).bind(revision).bind("revision").execute(&mut *tx.statement()).await.map(drop)
        })?;
        if revision % 1000 == 0 && revision > KEEP_GONE {
            let old = revision - KEEP_GONE;
            on!(self, Self, tx => {
                sqlx::query(PURGE).bind(old).execute(&mut *tx.statement()).await?;
                sqlx::query(RAISE).bind(old).bind("purged").execute(&mut *tx.statement()).await.map(drop)
            })?;
        }
        if let Self::Postgres(tx) = self {
            let tell = "SELECT pg_notify($1, $2)";
            sqlx::query(tell).bind(CHANNEL).bind(revision.to_string()).execute(&mut **tx).await?;
        }
        Ok(())
    }

    /// Ends it without a change.
    pub async fn end(self) {
        match self {
            Self::Sqlite(mut connection, writer) => {
                // SQLite may have rolled back by itself, and says so; a new connection is sure not to be in the middle.
                match sqlx::query("ROLLBACK").execute(&mut connection).await {
                    Ok(_) => writer.give(connection),
                    Err(_) => drop(connection.close().await),
                }
            }
            // The server undoes what it does not hear the end of.
            Self::Postgres(tx) => drop(in_time(true, async { Ok(tx.rollback().await?) }).await),
        }
    }

    /// Whether the database has these writes as `revision`. A revision is of one change: its first record tells.
    async fn has(&mut self, revision: i64, writes: &[Write]) -> anyhow::Result<bool> {
        const MADE: &str = "SELECT body FROM anabranch_record WHERE kind = $1 AND id = $2 AND revision = $3";
        let Some(first) = writes.first() else { return Ok(true) };
        let body = first.record.as_ref().map(Record::to_json).transpose()?;
        let found: Option<Option<String>> = on!(self, Self, tx => {
            let made = sqlx::query_scalar(MADE).bind(first.kind.name()).bind(&first.id).bind(revision);
            made.fetch_optional(&mut *tx.statement()).await
        })?;
        Ok(found.is_some_and(|found| found == body))
    }
}

/// What statements of a change are executed on.
trait Statement {
    type Connection;
    fn statement(&mut self) -> &mut Self::Connection;
}

impl Statement for SqliteConnection {
    type Connection = Self;
    fn statement(&mut self) -> &mut Self {
        self
    }
}

impl Statement for Transaction<'static, Postgres> {
    type Connection = sqlx::PgConnection;
    fn statement(&mut self) -> &mut sqlx::PgConnection {
        self
    }
}

/// What a server does in time; a file is not given up.
async fn in_time<T>(is_server: bool, run: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    if !is_server {
        return run.await;
    }
    let done = tokio::time::timeout(SILENT, run).await;
    done.unwrap_or_else(|_| anyhow::bail!("the server said nothing within {} s", SILENT.as_secs()))
}

/// The counters, if both are there and fit: nothing was purged that is not stored yet, no record (the `newest` known) is newer than
/// the last change, and there is room for more changes than anybody makes.
fn fit(purged: Option<i64>, revision: Option<i64>, newest: i64) -> anyhow::Result<(i64, i64)> {
    if let (Some(purged), Some(revision)) = (purged, revision)
        && (0..=revision).contains(&purged)
        && (newest..=MOST_CHANGES).contains(&revision)
    {
        return Ok((purged, revision));
    }
    let of = |counter: Option<i64>| counter.map_or_else(|| "missing".to_owned(), |at| at.to_string());
    anyhow::bail!(
        "the counters in table anabranch_meta do not fit (revision {}, purged {}, newest record {newest}): put a copy in its place",
        of(revision),
        of(purged)
    )
}

fn newer(rows: Vec<Row>, revision: i64, all: bool) -> anyhow::Result<Newer> {
    let mut writes = Vec::with_capacity(rows.len());
    for (kind, id, _, body) in rows {
        // A newer program's kind is left alone.
        let Some(kind) = Kind::of(&kind) else { continue };
        let record = body.as_deref().map(|text| Record::from_json(kind, text)).transpose();
        // What one record promises counts for the others: none is left out.
        let record = record.with_context(|| {
            let kind = kind.name();
            format!(
                "record {kind} {id} in the database cannot be read: run the version that wrote it, repair its \"body\", or remove it \
                 with `DELETE FROM anabranch_record WHERE kind = '{kind}' AND id = '{id}'`"
            )
        })?;
        writes.push(Write { kind, id, record });
    }
    Ok(Newer { writes, revision, all })
}

/// What can be done where a file cannot be opened.
fn remedy(error: &sqlx::Error) -> &'static str {
    match error.as_database_error().and_then(|error| error.code()).as_deref() {
        // SQLITE_CORRUPT, SQLITE_NOTADB.
        Some("11" | "26") => {
            "the file is damaged, or no database: put a copy in its place, or what `sqlite3 FILE .recover` says"
        }
        _ => "can the file be written?",
    }
}

/// The URL without what must not be logged.
fn hide_password(url: &str) -> String {
    match reqwest::Url::parse(url) {
        Ok(mut parsed) if parsed.password().is_some() => {
            let _ = parsed.set_password(Some("…"));
            parsed.to_string()
        }
        _ => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(id: &str, text: &str) -> Write {
        let record = Some(Record::Document(serde_json::json!({"text": text})));
        Write { kind: Kind::Gst, id: id.to_owned(), record }
    }

    /// A COMMIT that fails leaves SQLite in the middle of a transaction: neither that nor a change that was let go is in the
    /// way of the next, and whether it was made is told rightly.
    #[tokio::test]
    async fn no_failure_is_in_the_way_of_the_next_change() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&format!("sqlite:{}/x.db", folder.path().display())).await.unwrap();
        let Store::Sqlite(pool, _) = &store else { panic!() };
        for sql in [
            "CREATE TABLE parent (id TEXT PRIMARY KEY)",
            "CREATE TABLE child (id TEXT REFERENCES parent (id) DEFERRABLE INITIALLY DEFERRED)",
            // What is called so cannot be committed, or not even written.
            "CREATE TRIGGER late AFTER INSERT ON anabranch_record WHEN NEW.id = 'late' \
             BEGIN INSERT INTO child VALUES ('nobody'); END",
            "CREATE TRIGGER early AFTER INSERT ON anabranch_record WHEN NEW.id = 'early' \
             BEGIN SELECT RAISE(ROLLBACK, 'no'); END",
        ] {
            sqlx::query(sql).execute(pool).await.unwrap();
        }
        let mut known = 0;
        for round in 0..20 {
            for (id, unknown) in [("late", true), ("early", false)] {
                let writes = [document("before", "x"), document(id, "x")];
                let (change, newer) = store.begin(known).await.unwrap();
                assert_eq!(newer.revision, known);
                match change.commit(known + 1, &writes).await {
                    Err(Failed::Unknown(_)) => assert!(unknown, "{id}"),
                    Err(Failed::Unchanged(_)) => assert!(!unknown, "{id}"),
                    Ok(()) => panic!("{id}"),
                }
                assert!(!store.was_made(known + 1, &writes).await.unwrap(), "{id}");
            }
            let (dropped, _) = store.begin(known).await.unwrap();
            drop(dropped);
            let writes = [document("good", &round.to_string())];
            let (change, _) = store.begin(known).await.unwrap();
            change.commit(known + 1, &writes).await.unwrap();
            known += 1;
            assert!(store.was_made(known, &writes).await.unwrap());
            assert!(!store.was_made(known, &[document("good", "other")]).await.unwrap());
            assert!(!store.was_made(known + 1, &writes).await.unwrap());
        }
        assert_eq!(store.newer(-1).await.unwrap().writes.len(), 1);
    }

    /// A reader in whose way records go and are purged: it hears of each that went, or reads all there is.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn who_reads_while_records_are_purged_misses_none_that_went() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&format!("sqlite:{}/x.db", folder.path().display())).await.unwrap();
        let (mut revision, mut whole) = (0, 0);
        for round in 0..400 {
            let id = format!("x{round}");
            let commit = async |at: i64, write: Write| {
                let (change, _) = store.begin(at).await.unwrap();
                change.commit(at, &[write]).await.unwrap();
            };
            let known = revision + 1;
            commit(known, document(&id, "is there")).await;
            let end = (known + 1 + KEEP_GONE + 1000) / 1000 * 1000;
            let reader = {
                let (store, id) = (store.clone(), id.clone());
                tokio::spawn(async move {
                    loop {
                        let newer = store.newer(known).await.unwrap();
                        let told = newer.writes.iter().any(|w| w.id == id && w.record.is_none());
                        let kept = newer.writes.iter().any(|w| w.id == id && w.record.is_some());
                        assert!(!kept, "it went before or was known");
                        assert!(newer.all || told || newer.revision <= known, "missed at {}", newer.revision);
                        if newer.revision >= end {
                            return newer.all;
                        }
                    }
                })
            };
            commit(known + 1, Write { kind: Kind::Gst, id, record: None }).await;
            // As many changes later as it takes for that to be purged.
            commit(end, document("last", &round.to_string())).await;
            whole += u32::from(reader.await.unwrap());
            revision = end;
        }
        assert_eq!(whole, 400);
    }

    #[tokio::test]
    async fn what_is_damaged_is_named_with_a_remedy_and_not_touched() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let url = |name: &str| format!("sqlite:{}", path(name).display());
        let store = Store::open(&url("good.db")).await.unwrap();
        let Store::Sqlite(pool, _) = &store else { panic!() };
        for (revision, body, left) in [(1, "{\"text\":", true), (2, "[", true), (3, "{}", false)] {
            let sql = "INSERT OR REPLACE INTO anabranch_record (kind, id, revision, body) VALUES ('slice', 'x', $1, $2)";
            sqlx::query(sql).bind(revision).bind(body).execute(pool).await.unwrap();
            let error = format!("{:#}", store.newer(-1).await.err().unwrap());
            assert!(
                error.contains("record slice x") && error.contains("kind = 'slice' AND id = 'x'"),
                "{error}"
            );
            assert!(error.contains("line 1") || !left, "{error}");
        }
        sqlx::query("PRAGMA wal_checkpoint(TRUNCATE)").execute(pool).await.unwrap();
        let good = std::fs::read(path("good.db")).unwrap();
        for (name, bytes) in
            [("garbage.db", &[7; 9000][..]), ("cut.db", &good[..5000]), ("text.db", &b"[manager]\n"[..])]
        {
            std::fs::write(path(name), bytes).unwrap();
            let error = format!("{:#}", Store::open(&url(name)).await.err().unwrap());
            assert!(
                error.contains(name) && error.contains("damaged") && error.contains("recover"),
                "{error}"
            );
            assert_eq!(std::fs::read(path(name)).unwrap(), bytes);
        }
    }

    /// Counters that do not fit the records would have changes lost, or none possible.
    #[tokio::test]
    async fn counters_that_do_not_fit_are_refused_with_a_remedy() {
        for (spoil, needle) in [
            ("UPDATE anabranch_meta SET value = -5 WHERE name = 'revision'", "revision -5"),
            ("UPDATE anabranch_meta SET value = 2 WHERE name = 'revision'", "newest record 3"),
            (
                "UPDATE anabranch_meta SET value = 9223372036854775807 WHERE name = 'revision'",
                "revision 9223372036854775807",
            ),
            ("UPDATE anabranch_meta SET value = 4 WHERE name = 'purged'", "purged 4"),
            ("UPDATE anabranch_meta SET value = -1 WHERE name = 'purged'", "purged -1"),
            ("DELETE FROM anabranch_meta WHERE name = 'revision'", "missing"),
            ("DELETE FROM anabranch_meta WHERE name = 'purged'", "missing"),
            ("DROP TABLE anabranch_lease", "anabranch_lease"),
            ("DROP TABLE anabranch_record", "anabranch_record"),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let url = format!("sqlite:{}/x.db", folder.path().display());
            let store = Store::open(&url).await.unwrap();
            for revision in 1..=3 {
                let (change, _) = store.begin(revision - 1).await.unwrap();
                change.commit(revision, &[document("a", &revision.to_string())]).await.unwrap();
            }
            let Store::Sqlite(pool, _) = &store else { panic!() };
            sqlx::query(spoil).execute(pool).await.unwrap();
            // Neither one that runs goes on with it, nor does one that starts.
            if !spoil.contains("DROP") && !spoil.contains("= 2") {
                let error = store.begin(3).await.err().map(|e| format!("{e:#}"));
                assert!(error.is_some(), "{spoil}: a change begins");
            }
            let error = Store::open(&url).await.err().map(|e| format!("{e:#}"));
            let error = error.unwrap_or_else(|| panic!("{spoil}: it opens"));
            assert!(error.contains(needle) && error.contains("put a copy in its place"), "{spoil}: {error}");
        }
    }

    /// A server that comes back without its last changes, or from a copy: what was known of them is forgotten.
    #[tokio::test]
    async fn who_knows_more_than_the_database_reads_all_there_is() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&format!("sqlite:{}/x.db", folder.path().display())).await.unwrap();
        for revision in 1..=3 {
            let (change, _) = store.begin(revision - 1).await.unwrap();
            change.commit(revision, &[document(&format!("a{revision}"), "x")]).await.unwrap();
        }
        for known in [4, 5, 1000] {
            let newer = store.newer(known).await.unwrap();
            assert_eq!((newer.all, newer.writes.len(), newer.revision), (true, 3, 3), "{known}");
            let (change, newer) = store.begin(known).await.unwrap();
            assert_eq!((newer.all, newer.writes.len(), newer.revision), (true, 3, 3), "{known}");
            change.end().await;
        }
        for known in [1, 3] {
            let newer = store.newer(known).await.unwrap();
            assert_eq!(
                (newer.all, newer.writes.len() as i64, newer.revision),
                (false, 3 - known, 3),
                "{known}"
            );
        }
    }

    #[test]
    fn a_password_is_not_shown() {
        let shown = hide_password("postgres://a:secret@db/x");
        assert!(!shown.contains("secret") && shown.contains("@db/x"), "{shown}");
    }
}
