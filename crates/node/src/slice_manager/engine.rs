//! All records in memory, and the only way to change them.
//!
//! ```text
//!  request ─▶ commit: lock ─▶ read others' changes ─▶ decide (core) ─▶ write ─▶ unlock ─▶ memory ─▶ streams
//! ```

use super::store::{Failed, Newer, Store};
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
struct Held {
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
    held: RwLock<Held>,
    writer: tokio::sync::Mutex<()>,
    changed: watch::Sender<i64>,
    told: Mutex<(i64, HashMap<String, Arc<UeDocument>>)>,
}

/// Logs a failure of the database and returns the answer for the client.
fn store_failed(error: &anyhow::Error) -> Problem {
    tracing::error!("database: {error:#}");
    Problem::unavailable("the database does not answer; nothing has changed")
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
        let held = Held { manager, tokens: HashMap::new(), revision: -1 };
        let engine = Self {
            store,
            inventory,
            growth,
            ttl_s,
            held: RwLock::new(held),
            writer: tokio::sync::Mutex::default(),
            changed: watch::channel(0).0,
            told: Mutex::default(),
        };
        engine.sync().await?;
        Ok(Arc::new(engine))
    }

    /// The database.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Reads the current records. The lock must not be held across an await.
    pub fn read<T>(&self, with: impl FnOnce(&Manager) -> T) -> T {
        with(&self.held().manager)
    }

    /// The UE with this token.
    pub fn ue_of(&self, token_hash: &str) -> Option<String> {
        self.held().tokens.get(token_hash).cloned()
    }

    /// A receiver of the current revision, notified of changes.
    pub fn changes(&self) -> watch::Receiver<i64> {
        self.changed.subscribe()
    }

    /// Reads the changes of other instances.
    pub async fn sync(&self) -> anyhow::Result<()> {
        let _one = self.writer.lock().await;
        let known = self.held().revision;
        let newer = self.store.newer(known).await?;
        self.take(newer);
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
        let known = self.held().revision;
        let (change, newer) = self.store.begin(known).await.map_err(|e| store_failed(&e))?;
        self.take(newer);
        let (writes, answer) = match self.read(decide) {
            Ok((writes, answer)) if !writes.is_empty() => (writes, answer),
            other => {
                change.end().await;
                return other.map(|(_, answer)| answer);
            }
        };
        let revision = self.held().revision + 1;
        match change.commit(revision, &writes).await {
            Ok(()) => {}
            Err(Failed::Unchanged(error)) => return Err(store_failed(&error)),
            Err(Failed::Unknown(error)) => {
                tracing::error!("database: {error:#}; checking whether the change is stored");
                match self.store.was_made(revision, &writes).await {
                    Ok(true) => {}
                    Ok(false) => return Err(store_failed(&error)),
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
        self.take(Newer { writes, revision, all: false });
        Ok(answer)
    }

    /// The current view of a UE.
    pub fn told(&self, ue: &str) -> Result<Arc<UeDocument>, Refusal> {
        let held = self.held();
        let ue = held.manager.ue(ue)?;
        // Most UEs share their set of slices with many others and have no policies of their own, so views are
        // cached by set.
        let mut key: String = ue.slices.iter().map(|a| a.slice.as_str()).collect::<Vec<_>>().join(",");
        if !ue.policies.is_empty() {
            key = format!("{key} {}", ue.id);
        }
        let mut cache = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if cache.0 != held.revision {
            *cache = (held.revision, HashMap::new());
        }
        let make = || {
            let view = view::view(&held.manager, ue, self.ttl_s);
            let body = serde_json::to_string(&view).unwrap_or_default();
            let etag = format!("\"{}\"", tag(body.as_bytes()));
            Arc::new(UeDocument { body, etag })
        };
        Ok(cache.1.entry(key).or_insert_with(make).clone())
    }

    fn take(&self, newer: Newer) {
        let Newer { writes, revision, all } = newer;
        let mut held = self.held.write().unwrap_or_else(PoisonError::into_inner);
        if all {
            held.manager = Manager::new(self.inventory.clone(), self.growth);
            held.tokens.clear();
            // The revision may denote another change now.
            *self.told.lock().unwrap_or_else(PoisonError::into_inner) = Default::default();
        }
        for write in writes {
            if write.kind == Kind::Ue {
                let old = held.manager.ues().get(&write.id).map(|ue| ue.token_hash.clone());
                let new = match &write.record {
                    Some(Record::Ue(ue)) => Some(ue.token_hash.clone()),
                    _ => None,
                };
                if old != new {
                    old.and_then(|hash| held.tokens.remove(&hash));
                    new.and_then(|hash| held.tokens.insert(hash, write.id.clone()));
                }
            }
            held.manager.put(write);
        }
        held.revision = revision;
        drop(held);
        self.changed.send_if_modified(|at| std::mem::replace(at, revision) != revision);
    }

    fn held(&self) -> RwLockReadGuard<'_, Held> {
        self.held.read().unwrap_or_else(PoisonError::into_inner)
    }
}
