//! Flows there are, how many there may be, and what was counted.
//!
//! A flow counts its bytes by itself; the table is locked when a flow comes, goes, or is looked at.

use super::policy::{Origin, Way};
use super::rules::Transport;
use serde::Serialize;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

/// Rules and slices that are told apart in what ended; further ones are summed up as `other`.
const MAX_TOTALS: usize = 1024;

/// Why a flow was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// There are as many as there may be.
    Limit,
    /// Nothing meets what it needs, and its rule says that it is not to go on then.
    Unmet,
    /// No rule is about it any more, or it is for the proxy's port itself.
    NoRule,
    /// The server cannot be reached, or refuses.
    Unreachable,
    /// A socket could not be opened, for instance because there are no descriptors left.
    Socket,
}

impl Refused {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Limit, Self::Unmet, Self::NoRule, Self::Unreachable, Self::Socket];

    /// As metrics and pages name it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Limit => "limit",
            Self::Unmet => "unmet",
            Self::NoRule => "no_rule",
            Self::Unreachable => "unreachable",
            Self::Socket => "socket",
        }
    }
}

/// What is counted for all flows together.
#[derive(Debug, Default)]
pub struct Counters {
    refused: [AtomicU64; Refused::ALL.len()],
    origins: [AtomicU64; Origin::ALL.len()],
    /// Further candidates that were tried because an earlier one failed or was late.
    pub retries: AtomicU64,
    /// TCP flows that ended by a reset.
    pub resets: AtomicU64,
    /// Datagrams dropped: no room in a socket's or a flow's queue, or refused by the kernel.
    pub datagrams_dropped: AtomicU64,
    /// Parts of plans that this kernel refused.
    pub plan_failures: AtomicU64,
}

impl Counters {
    /// Counts a refusal.
    pub fn refuse(&self, why: Refused) {
        self.refused[why as usize].fetch_add(1, Relaxed);
    }

    /// Counts a datagram that is lost here.
    pub fn drop_datagram(&self) {
        self.datagrams_dropped.fetch_add(1, Relaxed);
    }

    /// Refusals so far.
    pub fn refused(&self) -> [(Refused, u64); Refused::ALL.len()] {
        Refused::ALL.map(|why| (why, self.refused[why as usize].load(Relaxed)))
    }

    /// Counts where a flow's ways came from.
    pub fn origin(&self, from: Origin) {
        self.origins[from as usize].fetch_add(1, Relaxed);
    }

    /// Where flows' ways came from so far.
    pub fn origins(&self) -> [(Origin, u64); Origin::ALL.len()] {
        Origin::ALL.map(|from| (from, self.origins[from as usize].load(Relaxed)))
    }
}

/// How a flow goes.
#[derive(Debug, Clone, PartialEq)]
pub struct Opened {
    /// The way it has.
    pub way: Arc<Way>,
    /// Where that came from.
    pub origin: Origin,
}

/// One flow.
#[derive(Debug)]
pub struct Flow {
    /// Counts up by one.
    pub id: u64,
    /// What the program speaks.
    pub transport: Transport,
    /// The program's end.
    pub client: SocketAddr,
    /// Where it wants to go.
    pub server: SocketAddr,
    /// Name of its rule.
    pub rule: OnceLock<String>,
    /// When it came.
    pub since: Instant,
    /// How it goes, once it does.
    pub opened: OnceLock<Opened>,
    /// Bytes from the program.
    pub up: AtomicU64,
    /// Bytes to the program.
    pub down: AtomicU64,
}

/// Sums of flows of a rule on a slice.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Flows, those that are there now included.
    pub flows: u64,
    /// Bytes from programs.
    pub up_bytes: u64,
    /// Bytes to programs.
    pub down_bytes: u64,
}

impl Totals {
    fn add(&mut self, flow: &Flow) {
        self.flows += 1;
        self.up_bytes += flow.up.load(Relaxed);
        self.down_bytes += flow.down.load(Relaxed);
    }
}

/// Rule, and slice: empty where a flow has none.
pub type TotalsKey = (String, String);

#[derive(Default)]
struct Table {
    open: BTreeMap<u64, Arc<Flow>>,
    ended: BTreeMap<TotalsKey, Totals>,
    next: u64,
}

/// All flows.
pub struct Flows {
    table: Mutex<Table>,
    limit: AtomicUsize,
    /// Counters.
    pub counters: Counters,
}

impl Flows {
    /// None yet, and at most so many.
    pub fn new(limit: usize) -> Self {
        Self { table: Mutex::default(), limit: AtomicUsize::new(limit), counters: Counters::default() }
    }

    /// How many there may be.
    pub fn limit(&self) -> usize {
        self.limit.load(Relaxed)
    }

    /// How many there may be from now on; what is there stays.
    pub fn set_limit(&self, limit: usize) {
        self.limit.store(limit, Relaxed);
    }

    /// A new flow; none, counted and told, where there are too many.
    pub fn open(
        self: &Arc<Self>,
        transport: Transport,
        client: SocketAddr,
        server: SocketAddr,
    ) -> Option<Entry> {
        let mut table = self.table();
        let (open, limit) = (table.open.len(), self.limit());
        if open >= limit {
            drop(table);
            self.counters.refuse(Refused::Limit);
            let refused = self.counters.refused[Refused::Limit as usize].load(Relaxed);
            // A flood of flows is not to become a flood of lines.
            if refused.is_power_of_two() {
                tracing::warn!(
                    limit,
                    refused,
                    "flows are refused: there are as many as [limits] flows allows"
                );
            }
            return None;
        }
        table.next += 1;
        let flow = Arc::new(Flow {
            id: table.next,
            transport,
            client,
            server,
            rule: OnceLock::new(),
            since: Instant::now(),
            opened: OnceLock::new(),
            up: AtomicU64::new(0),
            down: AtomicU64::new(0),
        });
        table.open.insert(flow.id, flow.clone());
        drop(table);
        Some(Entry { flows: self.clone(), flow })
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.table().open.len()
    }

    /// Those from the `offset`th on, at most `limit`, the oldest first.
    pub fn list(&self, offset: usize, limit: usize) -> Vec<Arc<Flow>> {
        self.table().open.values().skip(offset).take(limit).cloned().collect()
    }

    /// What flows carried, by rule and slice, those that are there now included.
    pub fn totals(&self) -> BTreeMap<TotalsKey, Totals> {
        let table = self.table();
        let mut all = table.ended.clone();
        for flow in table.open.values() {
            if let Some(key) = key(flow) {
                add(&mut all, key, flow);
            }
        }
        all
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // Every change is one step.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Those that got no way are among the refused.
fn key(flow: &Flow) -> Option<TotalsKey> {
    let opened = flow.opened.get()?;
    Some((flow.rule.get().cloned().unwrap_or_default(), opened.way.slice.clone().unwrap_or_default()))
}

fn add(to: &mut BTreeMap<TotalsKey, Totals>, key: TotalsKey, flow: &Flow) {
    let full = to.len() >= MAX_TOTALS && !to.contains_key(&key);
    let key = if full { ("other".to_owned(), "other".to_owned()) } else { key };
    to.entry(key).or_default().add(flow);
}

/// A flow as long as it is there.
pub struct Entry {
    flows: Arc<Flows>,
    /// The flow.
    pub flow: Arc<Flow>,
}

impl Drop for Entry {
    fn drop(&mut self) {
        let mut table = self.flows.table();
        if table.open.remove(&self.flow.id).is_some()
            && let Some(key) = key(&self.flow)
        {
            add(&mut table.ended, key, &self.flow);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_are_bounded_and_what_they_carried_is_kept() {
        let flows = Arc::new(Flows::new(2));
        let [client, server] = ["10.0.0.1:4000", "192.0.2.1:80"].map(|a| a.parse().unwrap());
        let open = || flows.open(Transport::Tcp, client, server);
        let (one, two) = (open().unwrap(), open().unwrap());
        assert!(open().is_none());
        assert_eq!(flows.counters.refused()[0], (Refused::Limit, 1));
        let way = Arc::new(Way { slice: Some("B".into()), ..Way::plain(Transport::Tcp) });
        one.flow.rule.set("video".into()).unwrap();
        one.flow.opened.set(Opened { way, origin: Origin::Asked }).unwrap();
        one.flow.up.store(7, Relaxed);
        let key = ("video".to_owned(), "B".to_owned());
        let totals = Totals { flows: 1, up_bytes: 7, down_bytes: 0 };
        assert_eq!(flows.totals(), [(key.clone(), totals)].into());
        drop(one);
        assert_eq!((flows.totals(), flows.count()), ([(key, totals)].into(), 1));
        drop(two);
        assert_eq!(flows.totals().len(), 1, "one that got no way carried nothing");
        assert!(open().is_some());
        flows.set_limit(0);
        assert!(open().is_none());
    }
}
