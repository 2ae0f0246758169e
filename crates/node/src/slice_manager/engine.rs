//! All records in memory, and the only way to change them.
//!
//! ```text
//!  request ─▶ commit: lock ─▶ read others' changes ─▶ decide (core) ─▶ write ─▶ unlock ─▶ memory ─▶ streams
//! ```

use super::store::{NewerChanges, Store, StoreError};
use crate::runtime::api::Problem;
use anabranch_slice::view::{self, tag};
use anabranch_slice::{GrowthLimits, Inventory, Kind, Manager, Record, Refusal, Write};
use axum::http::StatusCode;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;
use tokio::sync::watch;

/// Longest wait for earlier changes. While the database does not respond, each of them uses up its own time
/// limit.
const QUEUED: Duration = Duration::from_secs(10);

/// The view of one UE in the form in which it is sent.
#[derive(Debug, PartialEq, Eq)]
pub struct UeDocument {
    /// JSON.
    pub body: String,
    /// ETag, in quotes.
    pub etag: String,
}

/// The records, and the index of tokens.
struct Records {
    manager: Manager,
    /// Names of UEs by the hash of their tokens.
    tokens: HashMap<String, String>,
    revision: i64,
}

/// The records and their store; the module documentation describes it.
pub struct Engine {
    store: Store,
    inventory: Inventory,
    growth: GrowthLimits,
    ttl_s: u32,
    records: RwLock<Records>,
    writer: tokio::sync::Mutex<()>,
    changed: watch::Sender<i64>,
    /// Why the last attempt to store something failed; `None`: it did not.
    write_failure: Mutex<Option<String>>,
    documents: Mutex<(i64, HashMap<String, Arc<UeDocument>>)>,
}

impl Engine {
    /// Reads all records.
    pub async fn start(
        store: Store,
        inventory: Inventory,
        growth: GrowthLimits,
        ttl_s: u32,
    ) -> anyhow::Result<Arc<Self>> {
        let manager = Manager::new(inventory.clone(), growth);
        let records = Records { manager, tokens: HashMap::new(), revision: -1 };
        let engine = Self {
            store,
            inventory,
            growth,
            ttl_s,
            records: RwLock::new(records),
            writer: tokio::sync::Mutex::default(),
            changed: watch::channel(0).0,
            write_failure: Mutex::default(),
            documents: Mutex::default(),
        };
        engine.sync().await?;
        engine.read(overbooked).iter().for_each(|warning| tracing::warn!("{warning}"));
        Ok(Arc::new(engine))
    }

    /// The database.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Reads the current records. The lock must not be held across an await.
    pub fn read<T>(&self, with: impl FnOnce(&Manager) -> T) -> T {
        with(&self.records().manager)
    }

    /// The UE with this token.
    pub fn ue_of(&self, token_hash: &str) -> Option<String> {
        self.records().tokens.get(token_hash).cloned()
    }

    /// A receiver of the current revision, notified of changes.
    pub fn changes(&self) -> watch::Receiver<i64> {
        self.changed.subscribe()
    }

    /// Why nothing can be stored at present, if that is so.
    pub fn write_failure(&self) -> Option<String> {
        self.write_failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Records and logs the result of an attempt to store something: a failure with the same cause as before is logged once.
    pub fn record_write(&self, result: Result<(), &anyhow::Error>) {
        let failure = result.err().map(|error| error.root_cause().to_string());
        let mut last = self.write_failure.lock().unwrap_or_else(PoisonError::into_inner);
        if *last == failure {
            return;
        }
        match result {
            Ok(()) => tracing::info!("database: changes can be stored again"),
            Err(error) => tracing::error!("database: {error:#}"),
        }
        *last = failure;
    }

    /// Records a failure of the database and returns the answer for the client.
    fn store_failed(&self, error: &anyhow::Error) -> Problem {
        self.record_write(Err(error));
        let cause = error.root_cause();
        Problem::unavailable(format!("the database cannot store the change: {cause}; nothing has changed"))
    }

    /// Reads the changes of other instances.
    pub async fn sync(&self) -> anyhow::Result<()> {
        let _one = self.writer.lock().await;
        let known = self.records().revision;
        let newer_changes = self.store.newer_changes(known).await?;
        self.take(newer_changes);
        Ok(())
    }

    /// Applies a decision to the newest records and stores the result. No other change occurs meanwhile, at
    /// any instance.
    pub async fn commit<T>(
        &self,
        decide: impl FnOnce(&Manager) -> Result<(Vec<Write>, T), Problem>,
    ) -> Result<T, Problem> {
        let Ok(_one) = tokio::time::timeout(QUEUED, self.writer.lock()).await else {
            let detail = "other changes wait for the database; nothing has changed";
            return Err(Problem::unavailable(detail));
        };
        let known = self.records().revision;
        let (change, newer_changes) = self.store.begin(known).await.map_err(|e| self.store_failed(&e))?;
        self.take(newer_changes);
        let (writes, answer) = match self.read(decide) {
            Ok((writes, answer)) if !writes.is_empty() => (writes, answer),
            other => {
                change.end().await;
                return other.map(|(_, answer)| answer);
            }
        };
        let revision = self.records().revision + 1;
        match change.commit(revision, &writes).await {
            Ok(()) => self.record_write(Ok(())),
            Err(StoreError::Unchanged(error)) => return Err(self.store_failed(&error)),
            Err(StoreError::Unknown(error)) => {
                tracing::error!("database: {error:#}; checking whether the change is stored");
                match self.store.is_stored(revision, &writes).await {
                    Ok(true) => {}
                    Ok(false) => return Err(self.store_failed(&error)),
                    Err(again) => {
                        tracing::error!("database: {again:#}");
                        let detail = "the connection to the database failed while the change was being stored: the outcome is not known";
                        return Err(Problem::new(
                            StatusCode::SERVICE_UNAVAILABLE,
                            detail,
                            "read the current state before you try again",
                        ));
                    }
                }
            }
        }
        self.take(NewerChanges { writes, revision, all: false });
        Ok(answer)
    }

    /// The current view of a UE.
    pub fn document(&self, ue: &str) -> Result<Arc<UeDocument>, Refusal> {
        let records = self.records();
        let ue = records.manager.ue(ue)?;
        // Most UEs share their set of slices with many others and have no policies of their own, so views are
        // cached by set.
        let mut key: String = ue.slices.iter().map(|a| a.slice.as_str()).collect::<Vec<_>>().join(",");
        if !ue.policies.is_empty() {
            key = format!("{key} {}", ue.id);
        }
        let mut cache = self.documents.lock().unwrap_or_else(PoisonError::into_inner);
        if cache.0 != records.revision {
            *cache = (records.revision, HashMap::new());
        }
        let make = || {
            let view = view::view(&records.manager, ue, self.ttl_s);
            let body = serde_json::to_string(&view).unwrap_or_default();
            let etag = format!("\"{}\"", tag(body.as_bytes()));
            Arc::new(UeDocument { body, etag })
        };
        Ok(cache.1.entry(key).or_insert_with(make).clone())
    }

    fn take(&self, newer_changes: NewerChanges) {
        let NewerChanges { writes, revision, all } = newer_changes;
        let mut records = self.records.write().unwrap_or_else(PoisonError::into_inner);
        if all {
            records.manager = Manager::new(self.inventory.clone(), self.growth);
            records.tokens.clear();
            // The revision may denote another change now.
            *self.documents.lock().unwrap_or_else(PoisonError::into_inner) = Default::default();
        }
        for write in writes {
            if write.kind == Kind::Ue {
                let old = records.manager.ues().get(&write.id).map(|ue| ue.token_hash.clone());
                let new = match &write.record {
                    Some(Record::Ue(ue)) => Some(ue.token_hash.clone()),
                    _ => None,
                };
                if old != new {
                    old.and_then(|hash| records.tokens.remove(&hash));
                    new.and_then(|hash| records.tokens.insert(hash, write.id.clone()));
                }
            }
            records.manager.put(write);
        }
        records.revision = revision;
        drop(records);
        self.changed.send_if_modified(|at| std::mem::replace(at, revision) != revision);
    }

    fn records(&self) -> RwLockReadGuard<'_, Records> {
        self.records.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Accesses that are configured with less than is guaranteed on them.
pub fn overbooked(m: &Manager) -> Vec<String> {
    let ledger = m.ledger(None);
    let of = |a: &anabranch_slice::Access| {
        let (downlink, uplink, share) = ledger.promised(&a.name);
        let kinds = [
            ("downlink_bps", 1, a.downlink_bps, downlink),
            ("uplink_bps", 1, a.uplink_bps, uplink),
            ("max_share_percent", 10_000, a.max_share_ppm.into(), share),
        ];
        let text = |(key, unit, configured, promised)| {
            let [configured, promised] =
                [configured, promised].map(|value: u64| value as f64 / f64::from(unit));
            format!(
                "access {}: {key} = {configured}, but slices have guarantees of {promised} there; they stay, and nothing \
                 is added",
                a.name
            )
        };
        kinds
            .into_iter()
            .filter(|(.., configured, promised)| promised > configured)
            .map(text)
            .collect::<Vec<_>>()
    };
    m.inventory().iter().flat_map(of).collect()
}
