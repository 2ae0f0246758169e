//! Storage of records: SQLite in a local file, or PostgreSQL shared by several instances.
//!
//! There is one table of records and one number, the revision, which every change reads and increments under
//! a lock. Therefore changes of all instances are serialised, an instance that is behind reads the records
//! with a newer revision, and a change of a killed program is stored completely or not at all.

use crate::runtime::folder;
use anabranch_slice::{Kind, Record, Write};
use anyhow::Context;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use sqlx::postgres::{PgListener, PgPoolOptions};
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous,
};
use sqlx::{ConnectOptions, Connection, PgPool, Postgres, SqlitePool, Transaction};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

const CHANNEL: &str = "anabranch_slices";
/// Time limit for an answer of a server. If the network is cut, there is no answer and no error of the
/// socket.
const SERVER_TIMEOUT: Duration = Duration::from_secs(5);
/// Settings of every connection, whatever the defaults of the server: an instance that stops during a change
/// blocks others no longer than this; and a change that has waited for another one sees its result.
const CONNECTION_SETTINGS: [&str; 2] = [
    "SET idle_in_transaction_session_timeout = '10s'",
    "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED",
];
/// Number of changes after which the empty rows of removed records are purged; instances that are behind need
/// them.
const REMOVED_ROWS_KEPT: i64 = 10_000;
/// Upper bound of the revision; a higher value is a sign of damage.
const MAX_REVISION: i64 = 1 << 53;

const SCHEMA: [&str; 5] = [
    "CREATE TABLE IF NOT EXISTS anabranch_record (kind TEXT NOT NULL, id TEXT NOT NULL, revision BIGINT NOT NULL, \
     body TEXT, PRIMARY KEY (kind, id))",
    "CREATE INDEX IF NOT EXISTS anabranch_record_revision ON anabranch_record (revision)",
    "CREATE TABLE IF NOT EXISTS anabranch_meta (name TEXT PRIMARY KEY, value BIGINT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS anabranch_lease (name TEXT PRIMARY KEY, owner TEXT NOT NULL, until_ms BIGINT NOT NULL)",
    "INSERT INTO anabranch_meta (name, value) VALUES ('revision', 0), ('purged', 0), ('schema', 1) \
     ON CONFLICT (name) DO NOTHING",
];

const SELECT_NEWER: &str =
    "SELECT kind, id, revision, body FROM anabranch_record WHERE revision > $1 ORDER BY revision";
const META: &str = "SELECT value FROM anabranch_meta WHERE name = $1";
const UPSERT_RECORD: &str = "INSERT INTO anabranch_record (kind, id, revision, body) VALUES ($1, $2, $3, $4) \
                   ON CONFLICT (kind, id) DO UPDATE SET revision = excluded.revision, body = excluded.body";
const UPDATE_REVISION: &str = "UPDATE anabranch_meta SET value = $1 WHERE name = $2";
const PURGE: &str = "DELETE FROM anabranch_record WHERE body IS NULL AND revision <= $1";
const LEASE: &str = "INSERT INTO anabranch_lease (name, owner, until_ms) VALUES ('southbound', $1, $2) \
                     ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, until_ms = excluded.until_ms \
                     WHERE anabranch_lease.owner = $1 OR anabranch_lease.until_ms < $3";

/// A database.
#[derive(Clone)]
pub enum Store {
    /// A local file.
    Sqlite(SqlitePool, Writer),
    /// A PostgreSQL server.
    Postgres(PgPool),
}

/// The connection for changes. A change takes it, and returns it after a regular end. After any other end,
/// SQLite may have left a transaction open; that ends with its connection, and the next change opens a new
/// one.
#[derive(Clone)]
pub struct Writer {
    options: Arc<SqliteConnectOptions>,
    idle: Arc<Mutex<Option<SqliteConnection>>>,
    /// Device and inode number of the file; `None` for a database in memory.
    file: Option<(u64, u64)>,
}

/// The file of a SQLite database; `None`: a server, or memory.
pub fn file_of(url: &str) -> Option<&Path> {
    let path = url.strip_prefix("sqlite:")?;
    let file = path.split('?').next().unwrap_or(path).trim_start_matches("//");
    (!file.starts_with(":memory:")).then(|| Path::new(file))
}

/// Makes this the only instance on a SQLite database, which does not notify others of changes. The kernel releases the lock
/// when the program ends in any way.
///
/// # Errors
/// Another instance uses the database, or the file for the lock cannot be created.
pub fn lock(url: &str) -> anyhow::Result<Option<Flock<File>>> {
    let Some(file) = file_of(url) else { return Ok(None) };
    folder::make_for(file).context("database")?;
    // Not the database itself: closing it would release SQLite's own locks.
    let path = PathBuf::from(format!("{}.lock", file.display()));
    let place = || format!("database \"{url}\": {}", path.display());
    let opened = File::options().create(true).truncate(false).write(true).open(&path).with_context(place)?;
    match Flock::lock(opened, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => Ok(Some(lock)),
        Err((_, Errno::EWOULDBLOCK)) => anyhow::bail!(
            "database \"{url}\" is in use by another slice manager: stop it, or give each a file of its own; several \
             instances of one slice manager share a PostgreSQL server"
        ),
        Err((_, errno)) => Err(errno).with_context(place),
    }
}

/// Device and inode number of a file.
fn identity(file: &Path) -> std::io::Result<(u64, u64)> {
    std::fs::metadata(file).map(|meta| (meta.dev(), meta.ino()))
}

impl Writer {
    /// Checks that the path still leads to the open file: data written to a file that was removed or replaced
    /// would be lost.
    fn check(&self) -> anyhow::Result<()> {
        let Some(opened) = self.file else { return Ok(()) };
        let file = self.options.get_filename();
        let place = file.display();
        let why = match identity(file) {
            Ok(now) if now == opened => return Ok(()),
            Ok(_) => "is not the file that was opened".to_owned(),
            Err(error) => format!("is no longer where it was opened ({error})"),
        };
        anyhow::bail!(
            "{place} {why}: put it back, or stop the slice manager, put the right file in its place, and start it again"
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

/// Failure to store a change.
#[derive(Debug)]
pub enum StoreError {
    /// The change was not stored.
    Unchanged(anyhow::Error),
    /// It is unknown whether the change was stored.
    Unknown(anyhow::Error),
}

/// Changes newer than a revision.
pub struct NewerChanges {
    /// Records, oldest first.
    pub writes: Vec<Write>,
    /// The revision after these changes.
    pub revision: i64,
    /// True if this is the complete contents: the known revision is too old for an update, or newer than the
    /// database.
    pub all: bool,
}

type Row = (String, String, i64, Option<String>);

/// A change in progress, which holds the lock.
pub enum Change {
    /// In a local file.
    Sqlite(SqliteConnection, Writer),
    /// At a server.
    Postgres(Transaction<'static, Postgres>),
}

/// Executes the same statement on both kinds of database.
macro_rules! on {
    ($self:expr, $of:ident, $at:ident => $run:expr) => {
        match $self {
            $of::Sqlite($at, _) => $run,
            $of::Postgres($at) => $run,
        }
    };
}

impl Store {
    /// Opens the database and creates missing tables.
    pub async fn open(url: &str) -> anyhow::Result<Self> {
        let hidden = hide_password(url);
        let store = match url.strip_prefix("sqlite:") {
            Some(_) => {
                let options = SqliteConnectOptions::from_str(url)
                    .with_context(|| format!("database \"{url}\""))?
                    .create_if_missing(true)
                    .journal_mode(SqliteJournalMode::Wal)
                    .synchronous(SqliteSynchronous::Full)
                    .busy_timeout(Duration::from_secs(10));
                let file = file_of(url);
                file.map(folder::make_for).transpose().context("database")?;
                let pool = SqlitePoolOptions::new().max_connections(2).connect_with(options.clone()).await;
                let pool = pool.map_err(|error| {
                    let context = format!("database \"{url}\": {}", remedy(&error));
                    anyhow::Error::new(error).context(context)
                })?;
                let file = file.map(|_| identity(options.get_filename())).transpose();
                let file = file.with_context(|| format!("database \"{url}\""))?;
                Self::Sqlite(pool, Writer { options: Arc::new(options), idle: Arc::default(), file })
            }
            None => {
                let pool = PgPoolOptions::new().max_connections(4).acquire_timeout(SERVER_TIMEOUT);
                let pool = pool.after_connect(|connection, _| {
                    Box::pin(async move {
                        for setting in CONNECTION_SETTINGS {
                            sqlx::query(setting).execute(&mut *connection).await?;
                        }
                        Ok(())
                    })
                });
                // A connection with an unread answer, after a cancelled query, is drained or closed.
                let pool = pool.after_release(|connection, _| {
                    Box::pin(async move {
                        let answers = tokio::time::timeout(SERVER_TIMEOUT, connection.ping()).await;
                        answers.unwrap_or(Err(sqlx::Error::PoolTimedOut)).map(|()| true)
                    })
                });
                let pool = pool.connect(url).await;
                let pool = pool.with_context(|| format!("database \"{hidden}\": is the server running?"))?;
                let encoding: String = sqlx::query_scalar("SHOW server_encoding").fetch_one(&pool).await?;
                anyhow::ensure!(
                    ["UTF8", "SQL_ASCII"].contains(&encoding.as_str()),
                    "database \"{hidden}\" has the encoding {encoding}, which lacks characters: create one with \
                     ENCODING 'UTF8' (and TEMPLATE template0)"
                );
                Self::Postgres(pool)
            }
        };
        // Two instances that start at the same time may both create a table; the next attempt finds it.
        let mut tried = store.prepare().await;
        for _ in 0..5 {
            if tried.is_ok() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
            tried = store.prepare().await;
        }
        tried.with_context(|| format!("database \"{hidden}\": creating the tables"))?;
        let schema: i64 =
            on!(&store, Self, pool => sqlx::query_scalar(META).bind("schema").fetch_one(pool).await)?;
        anyhow::ensure!(schema == 1, "database \"{hidden}\" has schema {schema}: use a newer anabranch");
        store.check().await.with_context(|| format!("database \"{hidden}\""))?;
        Ok(store)
    }

    /// Checks that the tables exist and that their counters are consistent with the records.
    async fn check(&self) -> anyhow::Result<()> {
        const NEWEST: &str = "SELECT COALESCE(MAX(revision), 0) FROM anabranch_record";
        const LEASES: &str = "SELECT COUNT(*) FROM anabranch_lease";
        on!(self, Self, pool => {
            let newest: i64 = sqlx::query_scalar(NEWEST).fetch_one(pool).await
                .context("table anabranch_record cannot be read: put a copy in its place")?;
            sqlx::query_scalar::<_, i64>(LEASES).fetch_one(pool).await
                .context("table anabranch_lease cannot be read: put a copy in its place")?;
            // Read after the records, because the counters only increase.
            let purged: Option<i64> = sqlx::query_scalar(META).bind("purged").fetch_optional(pool).await?;
            let revision: Option<i64> = sqlx::query_scalar(META).bind("revision").fetch_optional(pool).await?;
            consistent_counters(purged, revision, newest).map(drop)
        })
    }

    async fn prepare(&self) -> sqlx::Result<()> {
        // If the tables exist, no permission to create them is needed. The schema row is created last.
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

    /// Begins a change, which waits for other changes; returns also the changes newer than `known`.
    pub async fn begin(&self, known: i64) -> anyhow::Result<(Change, NewerChanges)> {
        in_time(self.is_server(), self.begun(known)).await
    }

    async fn begun(&self, known: i64) -> anyhow::Result<(Change, NewerChanges)> {
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
        let newer_changes = on!(&mut change, Change, tx => {
            let purged: Option<i64> = sqlx::query_scalar(META).bind("purged").fetch_optional(&mut *tx.statement()).await?;
            let revision: Option<i64> = sqlx::query_scalar(META).bind("revision").fetch_optional(&mut *tx.statement()).await?;
            let (purged, revision) = consistent_counters(purged, revision, 0)?;
            let all = known < purged || known > revision;
            let from = if all { -1 } else { known };
            let rows: Vec<Row> = if from < revision {
                sqlx::query_as(SELECT_NEWER).bind(from).fetch_all(&mut *tx.statement()).await?
            } else {
                Vec::new()
            };
            newer_changes(rows, revision, all)?
        });
        Ok((change, newer_changes))
    }

    /// Whether a change with unknown outcome, `writes` as `revision`, was stored. Waits for changes in
    /// progress.
    pub async fn is_stored(&self, revision: i64, writes: &[Write]) -> anyhow::Result<bool> {
        let (mut change, _) = self.begin(revision - 1).await?;
        let made = in_time(self.is_server(), change.contains(revision, writes)).await;
        change.end().await;
        made
    }

    /// The changes newer than `known`, without a lock.
    pub async fn newer_changes(&self, known: i64) -> anyhow::Result<NewerChanges> {
        in_time(self.is_server(), self.read(known)).await
    }

    async fn read(&self, known: i64) -> anyhow::Result<NewerChanges> {
        if let Self::Sqlite(_, writer) = self {
            writer.check()?;
        }
        on!(self, Self, pool => {
            let mut rows: Vec<Row> = sqlx::query_as(SELECT_NEWER).bind(known).fetch_all(pool).await?;
            // Read after the rows: records purged before may be missing in them, records purged later are in
            // them.
            let purged: i64 = sqlx::query_scalar(META).bind("purged").fetch_one(pool).await?;
            let stored: i64 = sqlx::query_scalar(META).bind("revision").fetch_one(pool).await?;
            // A server that lost its last changes, or was restored from a copy, is behind.
            let all = known < purged || known > stored;
            if all {
                rows = sqlx::query_as(SELECT_NEWER).bind(-1_i64).fetch_all(pool).await?;
            }
            // One statement sees a consistent prefix of the sequence of changes.
            let revision = rows.last().map_or(known.clamp(0, stored.max(0)), |row| row.2);
            newer_changes(rows, revision, all)
        })
    }

    /// Acquires or extends the lease with which one instance at a time changes the network, until `until_ms`;
    /// false if another instance has it.
    pub async fn lease(&self, owner: &str, until_ms: i64, now_ms: i64) -> anyhow::Result<bool> {
        in_time(self.is_server(), async {
            Ok(on!(self, Self, pool => {
                sqlx::query(LEASE).bind(owner).bind(until_ms).bind(now_ms).execute(pool).await?.rows_affected() == 1
            }))
        })
        .await
    }

    /// Releases the lease.
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

    /// Subscribes to changes of other instances; `None` if there can be none.
    pub async fn listen(&self) -> anyhow::Result<Option<PgListener>> {
        let Self::Postgres(pool) = self else { return Ok(None) };
        let mut listener = PgListener::connect_with(pool).await?;
        listener.listen(CHANNEL).await?;
        Ok(Some(listener))
    }
}

impl Change {
    /// Stores the change as `revision`.
    pub async fn commit(mut self, revision: i64, writes: &[Write]) -> Result<(), StoreError> {
        if let Err(error) = in_time(self.is_server(), self.put(revision, writes)).await {
            self.end().await;
            return Err(StoreError::Unchanged(error));
        }
        let made = match self {
            Self::Sqlite(mut connection, writer) => {
                match sqlx::query("COMMIT").execute(&mut connection).await {
                    Ok(_) => {
                        writer.give(connection);
                        Ok(())
                    }
                    Err(error) => {
                        // The connection is closed first, which undoes an incomplete transaction.
                        drop(connection.close().await);
                        Err(error.into())
                    }
                }
            }
            Self::Postgres(tx) => in_time(true, async { Ok(tx.commit().await?) }).await,
        };
        made.map_err(StoreError::Unknown)
    }

    const fn is_server(&self) -> bool {
        matches!(self, Self::Postgres(_))
    }

    async fn put(&mut self, revision: i64, writes: &[Write]) -> anyhow::Result<()> {
        for write in writes {
            let body = write.record.as_ref().map(Record::to_json).transpose()?;
            on!(self, Self, tx => {
                let put = sqlx::query(UPSERT_RECORD).bind(write.kind.name()).bind(&write.id).bind(revision).bind(body);
                put.execute(&mut *tx.statement()).await.map(drop)
            })?;
        }
        on!(self, Self, tx => {
            sqlx::query(UPDATE_REVISION).bind(revision).bind("revision").execute(&mut *tx.statement()).await.map(drop)
        })?;
        if revision % 1000 == 0 && revision > REMOVED_ROWS_KEPT {
            let old = revision - REMOVED_ROWS_KEPT;
            on!(self, Self, tx => {
                sqlx::query(PURGE).bind(old).execute(&mut *tx.statement()).await?;
                sqlx::query(UPDATE_REVISION).bind(old).bind("purged").execute(&mut *tx.statement()).await.map(drop)
            })?;
        }
        if let Self::Postgres(tx) = self {
            let tell = "SELECT pg_notify($1, $2)";
            sqlx::query(tell).bind(CHANNEL).bind(revision.to_string()).execute(&mut **tx).await?;
        }
        Ok(())
    }

    /// Ends the change without storing anything.
    pub async fn end(self) {
        match self {
            Self::Sqlite(mut connection, writer) => {
                // SQLite may have rolled back by itself and then reports an error; a new connection certainly
                // has no open transaction.
                match sqlx::query("ROLLBACK").execute(&mut connection).await {
                    Ok(_) => writer.give(connection),
                    Err(_) => drop(connection.close().await),
                }
            }
            // The server rolls back a transaction whose connection ends.
            Self::Postgres(tx) => drop(in_time(true, async { Ok(tx.rollback().await?) }).await),
        }
    }

    /// Whether the database has these writes as `revision`. A revision belongs to one change, so its first
    /// record is sufficient.
    async fn contains(&mut self, revision: i64, writes: &[Write]) -> anyhow::Result<bool> {
        const SELECT_WRITTEN: &str =
            "SELECT body FROM anabranch_record WHERE kind = $1 AND id = $2 AND revision = $3";
        let Some(first) = writes.first() else { return Ok(true) };
        let body = first.record.as_ref().map(Record::to_json).transpose()?;
        let found: Option<Option<String>> = on!(self, Self, tx => {
            let made = sqlx::query_scalar(SELECT_WRITTEN).bind(first.kind.name()).bind(&first.id).bind(revision);
            made.fetch_optional(&mut *tx.statement()).await
        })?;
        Ok(found.is_some_and(|found| found == body))
    }
}

/// The connection on which the statements of a change are executed.
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

/// Applies the time limit to a server; access to a file has none.
async fn in_time<T>(is_server: bool, run: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    if !is_server {
        return run.await;
    }
    let done = tokio::time::timeout(SERVER_TIMEOUT, run).await;
    done.unwrap_or_else(|_| anyhow::bail!("the server did not answer within {} s", SERVER_TIMEOUT.as_secs()))
}

/// The counters, if both exist and are consistent: the purged revision is not above the stored one, no record
/// (`newest`) is newer than the stored revision, and the revision is below its upper bound.
fn consistent_counters(
    purged: Option<i64>,
    revision: Option<i64>,
    newest: i64,
) -> anyhow::Result<(i64, i64)> {
    if let (Some(purged), Some(revision)) = (purged, revision)
        && (0..=revision).contains(&purged)
        && (newest..=MAX_REVISION).contains(&revision)
    {
        return Ok((purged, revision));
    }
    let of = |counter: Option<i64>| counter.map_or_else(|| "missing".to_owned(), |at| at.to_string());
    anyhow::bail!(
        "the counters in table anabranch_meta are inconsistent (revision {}, purged {}, newest record {newest}): put a copy in its place",
        of(revision),
        of(purged)
    )
}

fn newer_changes(rows: Vec<Row>, revision: i64, all: bool) -> anyhow::Result<NewerChanges> {
    let mut writes = Vec::with_capacity(rows.len());
    for (kind, id, _, body) in rows {
        // Records of a kind that only a newer program has are ignored.
        let Some(kind) = Kind::of(&kind) else { continue };
        let record = body.as_deref().map(|text| Record::from_json(kind, text)).transpose();
        // Every record counts for admission, so none may be skipped.
        let record = record.with_context(|| {
            let kind = kind.name();
            format!(
                "record {kind} {id} in the database cannot be read: run the version that wrote it, repair its \"body\", or remove it \
                 with `DELETE FROM anabranch_record WHERE kind = '{kind}' AND id = '{id}'`"
            )
        })?;
        writes.push(Write { kind, id, record });
    }
    Ok(NewerChanges { writes, revision, all })
}

/// The remedy for a file that cannot be opened.
fn remedy(error: &sqlx::Error) -> &'static str {
    match error.as_database_error().and_then(|error| error.code()).as_deref() {
        // SQLITE_CORRUPT, SQLITE_NOTADB.
        Some("11" | "26") => {
            "the file is damaged, or not a database: put a copy in its place, or the output of `sqlite3 FILE .recover`"
        }
        _ => "is the file writable?",
    }
}

/// The URL without its password, for logs.
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

    #[test]
    fn a_file_has_one_instance() {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}/slices.db", folder.path().display());
        let first = lock(&url).unwrap();
        let error = lock(&format!("{url}?mode=rwc")).unwrap_err().to_string();
        assert!(error.contains("another slice manager"), "{error}");
        assert!(lock("sqlite::memory:").unwrap().is_none() && lock("postgres://host/db").unwrap().is_none());
        drop(first);
        assert!(lock(&url).unwrap().is_some());
    }

    /// A failed COMMIT leaves SQLite within a transaction. Neither that nor a cancelled change blocks the
    /// next one, and the outcome is reported correctly.
    #[tokio::test]
    async fn no_failure_blocks_the_next_change() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&format!("sqlite:{}/x.db", folder.path().display())).await.unwrap();
        let Store::Sqlite(pool, _) = &store else { panic!() };
        for sql in [
            "CREATE TABLE parent (id TEXT PRIMARY KEY)",
            "CREATE TABLE child (id TEXT REFERENCES parent (id) DEFERRABLE INITIALLY DEFERRED)",
            // Records with these ids fail at the commit, or already at the write.
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
                let (change, newer_changes) = store.begin(known).await.unwrap();
                assert_eq!(newer_changes.revision, known);
                match change.commit(known + 1, &writes).await {
                    Err(StoreError::Unknown(_)) => assert!(unknown, "{id}"),
                    Err(StoreError::Unchanged(_)) => assert!(!unknown, "{id}"),
                    Ok(()) => panic!("{id}"),
                }
                assert!(!store.is_stored(known + 1, &writes).await.unwrap(), "{id}");
            }
            let (dropped, _) = store.begin(known).await.unwrap();
            drop(dropped);
            let writes = [document("good", &round.to_string())];
            let (change, _) = store.begin(known).await.unwrap();
            change.commit(known + 1, &writes).await.unwrap();
            known += 1;
            assert!(store.is_stored(known, &writes).await.unwrap());
            assert!(!store.is_stored(known, &[document("good", "other")]).await.unwrap());
            assert!(!store.is_stored(known + 1, &writes).await.unwrap());
        }
        assert_eq!(store.newer_changes(-1).await.unwrap().writes.len(), 1);
    }

    /// A reader during removals and purges receives every removal, or the complete contents.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_reader_misses_no_removal_while_records_are_purged() {
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
            let end = (known + 1 + REMOVED_ROWS_KEPT + 1000) / 1000 * 1000;
            let reader = {
                let (store, id) = (store.clone(), id.clone());
                tokio::spawn(async move {
                    loop {
                        let newer_changes = store.newer_changes(known).await.unwrap();
                        let told = newer_changes.writes.iter().any(|w| w.id == id && w.record.is_none());
                        let kept = newer_changes.writes.iter().any(|w| w.id == id && w.record.is_some());
                        assert!(!kept, "it went before or was known");
                        assert!(
                            newer_changes.all || told || newer_changes.revision <= known,
                            "missed at {}",
                            newer_changes.revision
                        );
                        if newer_changes.revision >= end {
                            return newer_changes.all;
                        }
                    }
                })
            };
            commit(known + 1, Write { kind: Kind::Gst, id, record: None }).await;
            // As many changes as are needed for a purge of that record.
            commit(end, document("last", &round.to_string())).await;
            whole += u32::from(reader.await.unwrap());
            revision = end;
        }
        assert_eq!(whole, 400);
    }

    #[tokio::test]
    async fn damage_is_reported_with_a_remedy_and_nothing_is_changed() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let url = |name: &str| format!("sqlite:{}", path(name).display());
        let store = Store::open(&url("good.db")).await.unwrap();
        let Store::Sqlite(pool, _) = &store else { panic!() };
        for (revision, body, left) in [(1, "{\"text\":", true), (2, "[", true), (3, "{}", false)] {
            let sql = "INSERT OR REPLACE INTO anabranch_record (kind, id, revision, body) VALUES ('slice', 'x', $1, $2)";
            sqlx::query(sql).bind(revision).bind(body).execute(pool).await.unwrap();
            let error = format!("{:#}", store.newer_changes(-1).await.err().unwrap());
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

    /// Counters that are inconsistent with the records would cause lost changes, or prevent changes.
    #[tokio::test]
    async fn inconsistent_counters_are_refused_with_a_remedy() {
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
            // Neither a running instance nor one that starts accepts this.
            if !spoil.contains("DROP") && !spoil.contains("= 2") {
                let error = store.begin(3).await.err().map(|e| format!("{e:#}"));
                assert!(error.is_some(), "{spoil}: a change begins");
            }
            let error = Store::open(&url).await.err().map(|e| format!("{e:#}"));
            let error = error.unwrap_or_else(|| panic!("{spoil}: it opens"));
            assert!(error.contains(needle) && error.contains("put a copy in its place"), "{spoil}: {error}");
        }
    }

    /// A server that returns without its last changes, or from a copy: the newer state in memory is
    /// discarded.
    #[tokio::test]
    async fn an_instance_ahead_of_the_database_reads_everything() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&format!("sqlite:{}/x.db", folder.path().display())).await.unwrap();
        for revision in 1..=3 {
            let (change, _) = store.begin(revision - 1).await.unwrap();
            change.commit(revision, &[document(&format!("a{revision}"), "x")]).await.unwrap();
        }
        for known in [4, 5, 1000] {
            let newer_changes = store.newer_changes(known).await.unwrap();
            assert_eq!(
                (newer_changes.all, newer_changes.writes.len(), newer_changes.revision),
                (true, 3, 3),
                "{known}"
            );
            let (change, newer_changes) = store.begin(known).await.unwrap();
            assert_eq!(
                (newer_changes.all, newer_changes.writes.len(), newer_changes.revision),
                (true, 3, 3),
                "{known}"
            );
            change.end().await;
        }
        for known in [1, 3] {
            let newer_changes = store.newer_changes(known).await.unwrap();
            assert_eq!(
                (newer_changes.all, newer_changes.writes.len() as i64, newer_changes.revision),
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
