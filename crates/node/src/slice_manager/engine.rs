//! Every record in memory, and the one way to change one.
//!
//! ```text
//!  request ─▶ commit: lock ─▶ read what others changed ─▶ decide (core) ─▶ write ─▶ unlock ─▶ memory ─▶ streams
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

/// Longest wait for the changes before one: while the database says nothing each of them takes all the time it is given.
const QUEUED: Duration = Duration::from_secs(10);

/// What one UE is told, as it is sent.
#[derive(Debug, PartialEq, Eq)]
pub struct UeDocument {
    /// JSON.
    pub body: String,
    /// ETag, in quotes.
    pub etag: String,
}

/// The records, and who may ask.
struct Held {
    manager: Manager,
    /// Names of UEs by the hash of their token.
    tokens: HashMap<String, String>,
    revision: i64,
}

/// See above.
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

/// What is wrong with the database.
fn store_failed(error: &anyhow::Error) -> Problem {
    tracing::error!("database: {error:#}");
    Problem::unavailable("the database does not answer; nothing has changed")
}

impl Engine {
    /// Reads everything there is.
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

    /// The records as they are now. Not to be held across an await.
    pub fn read<T>(&self, with: impl FnOnce(&Manager) -> T) -> T {
        with(&self.held().manager)
    }

    /// The UE that has this token.
    pub fn ue_of(&self, token_hash: &str) -> Option<String> {
        self.held().tokens.get(token_hash).cloned()
    }

    /// The revision, as it changes.
    pub fn changes(&self) -> watch::Receiver<i64> {
        self.changed.subscribe()
    }

    /// Takes over what other instances changed.
    pub async fn sync(&self) -> anyhow::Result<()> {
        let _one = self.writer.lock().await;
        let known = self.held().revision;
        let newer = self.store.newer(known).await?;
        self.take(newer);
        Ok(())
    }

    /// Decides on the newest records, and stores what was decided. Nothing else changes meanwhile, at any instance.
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
                tracing::error!("database: {error:#}; asking whether the change is stored");
                match self.store.was_made(revision, &writes).await {
                    Ok(true) => {}
                    Ok(false) => return Err(store_failed(&error)),
                    Err(again) => {
                        tracing::error!("database: {again:#}");
                        let detail =
                            "the database ended while it stored the change: whether it did is not known";
                        return Err(Problem::new(
                            StatusCode::SERVICE_UNAVAILABLE,
                            detail,
                            "read what is there before you try again",
                        ));
                    }
                }
            }
        }
        self.take(Newer { writes, revision, all: false });
        Ok(answer)
    }

    /// What a UE is told now.
    pub fn told(&self, ue: &str) -> Result<Arc<UeDocument>, Refusal> {
        let held = self.held();
        let ue = held.manager.ue(ue)?;
        // Most UEs have the same slices as many others, and no policies of their own.
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
            // The same revision may be another change now.
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
