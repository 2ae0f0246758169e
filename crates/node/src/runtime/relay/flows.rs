//! Flows of a relay: the table of open flows, its limits, and counters.
//!
//! A flow counts its own bytes; the table is locked only when a flow opens, ends, or is listed.

use super::memory::{Direction, Memory};
use super::tally::{Named, Tally};
use super::{ResetOnDrop, flow_limit, relay_both, reset};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinSet;

/// The properties of a kind of relay that differ from others.
pub trait RelayKind: Send + Sync + Sized + 'static {
    /// Reasons for refusing flows.
    type Reason: Named;
    /// Additional counters for all flows together.
    type Counters: Default + Send + Sync;
    /// Sums of traffic, by the criteria of this kind.
    type Sums: Clone + Default + Send;

    /// The configuration key that limits the number of flows.
    const LIMIT_KEY: &'static str;

    /// Whether the flow counts towards the share of its owner.
    fn shares(&self) -> bool {
        true
    }

    /// The reason of this kind for a full table.
    fn reason(full: LimitReached) -> Self::Reason;

    /// Adds the traffic of a flow to the sums.
    fn add(flow: &Flow<Self>, totals: Totals, to: &mut Self::Sums);
}

/// The limit that was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitReached {
    /// The size of the table.
    Table,
    /// The share of the owner.
    Share,
    /// The file descriptors of this process or of the machine.
    Descriptors,
}

/// A flow: one connection of a client and, once it is open, one to the server.
#[derive(Debug)]
pub struct Flow<K> {
    /// Identifier; counts up from the start.
    pub id: u64,
    /// Address of the client.
    pub client: SocketAddr,
    /// Name of its rule.
    pub rule: OnceLock<String>,
    /// Time of its start.
    pub since: Instant,
    /// Bytes to the server.
    pub up: AtomicU64,
    /// Bytes from the server.
    pub down: AtomicU64,
    /// Properties of this kind of relay.
    pub of: K,
    pub(super) owner: IpAddr,
    /// The connections of client and server, while they are relayed.
    pub(super) ends: OnceLock<[Arc<TcpStream>; 2]>,
    /// The directions to the server and to the client.
    pub(super) directions: [Direction; 2],
    end: Notify,
}

impl<K> Flow<K> {
    /// Ends the flow with a reset; see [`Entry::serve`].
    pub fn end(&self) {
        self.end.notify_one();
    }

    fn totals(&self) -> Totals {
        Totals { flows: 1, up_bytes: self.up.load(Relaxed), down_bytes: self.down.load(Relaxed) }
    }
}

/// Sums over flows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Number of flows, including open ones.
    pub flows: u64,
    /// Bytes to servers.
    pub up_bytes: u64,
    /// Bytes from servers.
    pub down_bytes: u64,
}

impl Totals {
    /// Adds the sums of `other`.
    pub const fn add(&mut self, other: Self) {
        self.flows += other.flows;
        self.up_bytes += other.up_bytes;
        self.down_bytes += other.down_bytes;
    }
}

struct Table<K: RelayKind> {
    open: BTreeMap<u64, Arc<Flow<K>>>,
    of_owner: BTreeMap<IpAddr, usize>,
    ended: K::Sums,
    next: u64,
}

/// The open flows of a relay, with limits and counters.
pub struct Flows<K: RelayKind> {
    table: Mutex<Table<K>>,
    limit: AtomicUsize,
    share: AtomicUsize,
    /// Refused flows, by reason.
    pub refused: Tally<K::Reason>,
    /// Flows that ended with a reset.
    pub resets: AtomicU64,
    /// Additional counters of this kind.
    pub counters: K::Counters,
    /// Data held by the flows, as of the last measurement.
    pub memory: Memory,
}

impl<K: RelayKind> Flows<K> {
    /// An empty table with at most `limit` flows, and `share` per owner.
    pub fn new(limit: usize, share: usize) -> Self {
        let table =
            Table { open: BTreeMap::new(), of_owner: BTreeMap::new(), ended: K::Sums::default(), next: 0 };
        Self {
            table: Mutex::new(table),
            limit: AtomicUsize::new(limit),
            share: AtomicUsize::new(share),
            refused: Tally::default(),
            resets: AtomicU64::new(0),
            counters: K::Counters::default(),
            memory: Memory::default(),
        }
    }

    /// The configured maximum of flows, limited by the available file descriptors. `threads` relay data (0:
    /// one per core).
    pub fn possible(wanted: u32, threads: u16) -> anyhow::Result<usize> {
        flow_limit(K::LIMIT_KEY, wanted, threads)
    }

    /// Maximum number of flows.
    pub fn limit(&self) -> usize {
        self.limit.load(Relaxed)
    }

    /// Sets the maximum number of flows; open flows are not affected.
    pub fn set_limit(&self, limit: usize) {
        self.limit.store(limit, Relaxed);
    }

    /// Sets the maximum number of flows per owner; open flows are not affected.
    pub fn set_share(&self, share: usize) {
        self.share.store(share, Relaxed);
    }

    /// Opens a flow. If a limit is reached, counts and logs the refusal and returns `None`.
    pub fn open(self: &Arc<Self>, owner: IpAddr, client: SocketAddr, of: K) -> Option<Entry<K>> {
        let mut table = self.table();
        let owned = table.of_owner.get(&owner).copied().unwrap_or(0);
        let limit = self.limit();
        let shares = of.shares();
        if table.open.len() >= limit || shares && owned >= self.share.load(Relaxed) {
            let full = if table.open.len() >= limit { LimitReached::Table } else { LimitReached::Share };
            drop(table);
            let refused = self.refused.count(K::reason(full));
            // Logged at powers of two, so that a flood of flows does not flood the log.
            if full == LimitReached::Table && refused.is_power_of_two() {
                tracing::warn!(limit, refused, "flows are refused: {} allows no more", K::LIMIT_KEY);
            }
            return None;
        }
        table.next += 1;
        let flow = Arc::new(Flow {
            id: table.next,
            client,
            rule: OnceLock::new(),
            since: Instant::now(),
            up: AtomicU64::new(0),
            down: AtomicU64::new(0),
            of,
            owner,
            ends: OnceLock::new(),
            directions: Default::default(),
            end: Notify::new(),
        });
        if shares {
            table.of_owner.insert(owner, owned + 1);
        }
        table.open.insert(flow.id, flow.clone());
        drop(table);
        Some(Entry { flows: self.clone(), flow })
    }

    /// Whether at most a quarter of the limit in total, or of this owner's share, is left.
    pub fn is_tight(&self, owner: IpAddr) -> bool {
        let table = self.table();
        let owned = table.of_owner.get(&owner).copied().unwrap_or(0);
        let tight = |used: usize, of: usize| used >= of - of / 4;
        tight(table.open.len(), self.limit()) || tight(owned, self.share.load(Relaxed))
    }

    /// Number of open flows.
    pub fn count(&self) -> usize {
        self.table().open.len()
    }

    /// Open flows from index `offset` on, at most `limit`, the oldest first.
    pub fn list(&self, offset: usize, limit: usize) -> Vec<Arc<Flow<K>>> {
        self.table().open.values().skip(offset).take(limit).cloned().collect()
    }

    /// Open flows of an owner.
    pub fn of_owner(&self, owner: IpAddr) -> Vec<Arc<Flow<K>>> {
        self.table().open.values().filter(|flow| flow.owner == owner).cloned().collect()
    }

    /// Sums of the traffic, including open flows.
    pub fn sums(&self) -> K::Sums {
        let table = self.table();
        let mut all = table.ended.clone();
        table.open.values().for_each(|flow| K::add(flow, flow.totals(), &mut all));
        all
    }

    fn table(&self) -> MutexGuard<'_, Table<K>> {
        // The mutex may be poisoned: each change is a single step, so the state is consistent.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Registration of an open flow, which ends when it is dropped.
pub struct Entry<K: RelayKind> {
    flows: Arc<Flows<K>>,
    pub flow: Arc<Flow<K>>,
}

impl<K: RelayKind> Entry<K> {
    /// Runs `work`, which serves the flow of the client's connection `near`, until the flow is ended.
    pub async fn serve(&self, near: &TcpStream, work: impl Future<Output = ()>) {
        tokio::select! {
            biased;
            () = self.flow.end.notified() => {
                reset(near);
                self.flows.resets.fetch_add(1, Relaxed);
            }
            () = work => {}
        }
    }

    /// Relays both directions until both ends have finished.
    pub async fn relay(&self, near: &Arc<TcpStream>, far: &Arc<TcpStream>) {
        // A flow is relayed once.
        let _ = self.flow.ends.set([near.clone(), far.clone()]);
        let unfinished = ResetOnDrop::new([near, far]);
        let Flow { up, down, directions: [to_server, to_client], .. } = &*self.flow;
        match relay_both(near, far, (up, to_server), (down, to_client)).await {
            Ok(()) => unfinished.done(),
            Err(error) => self.reset_both(near, far, &error),
        }
    }

    /// Resets both ends after one of them has failed.
    pub fn reset_both(&self, near: &TcpStream, far: &TcpStream, error: &io::Error) {
        reset(near);
        reset(far);
        self.flows.resets.fetch_add(1, Relaxed);
        tracing::debug!(flow = self.flow.id, client = %self.flow.client, "reset: {error}");
    }
}

impl<K: RelayKind> Drop for Entry<K> {
    fn drop(&mut self) {
        let flow = &self.flow;
        let mut table = self.flows.table();
        if table.open.remove(&flow.id).is_none() {
            return;
        }
        if flow.of.shares()
            && let Some(left) = table.of_owner.get_mut(&flow.owner)
        {
            *left = left.saturating_sub(1);
            if *left == 0 {
                table.of_owner.remove(&flow.owner);
            }
        }
        K::add(flow, flow.totals(), &mut table.ended);
    }
}

/// Accepts connections for ever; the tasks of `serve` end with it.
pub async fn accept<K: RelayKind, F>(
    flows: &Flows<K>,
    listener: TcpListener,
    serve: impl Fn(TcpStream, SocketAddr) -> F,
) -> Infallible
where
    F: Future<Output = ()> + Send + 'static,
{
    let mut tasks = JoinSet::new();
    loop {
        tokio::select! {
            taken = listener.accept() => match taken {
                Ok((stream, from)) => drop(tasks.spawn(serve(stream, from))),
                // The connection ended before it was accepted.
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    flows.refused.count(K::reason(LimitReached::Descriptors));
                    tracing::warn!("a connection cannot be accepted: {error}; is the limit of open files too low?");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            },
            Some(_) = tasks.join_next() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::named;
    use super::*;

    named! {
        pub enum Reason {
            Limit = "limit",
            Share = "share",
        }
    }

    impl RelayKind for u8 {
        type Reason = Reason;
        type Counters = ();
        type Sums = BTreeMap<Self, Totals>;

        const LIMIT_KEY: &'static str = "limit";

        fn reason(full: LimitReached) -> Reason {
            if full == LimitReached::Share { Reason::Share } else { Reason::Limit }
        }

        fn add(flow: &Flow<Self>, totals: Totals, to: &mut Self::Sums) {
            to.entry(flow.of).or_default().add(totals);
        }
    }

    /// A connection: the client's end and the relay's end.
    async fn connection() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let there = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (there, listener.accept().await.unwrap().0)
    }

    /// The ends of client and server, and the task that relays between them.
    async fn carried() -> (TcpStream, TcpStream, tokio::task::JoinHandle<()>) {
        let flows = Arc::new(Flows::new(1, 1));
        let ((client, near), (server, far)) = (connection().await, connection().await);
        let entry = flows.open([127, 0, 0, 1].into(), client.local_addr().unwrap(), 7).unwrap();
        let (near, far) = (Arc::new(near), Arc::new(far));
        (client, server, tokio::spawn(async move { entry.relay(&near, &far).await }))
    }

    #[tokio::test]
    async fn only_finished_connections_end_without_a_reset() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let (mut client, mut server, task) = carried().await;
        client.write_all(b"hello").await.unwrap();
        server.read_exact(&mut [0; 5]).await.unwrap();
        // As when this program ends.
        task.abort();
        for end in [&mut client, &mut server] {
            assert_eq!(end.read(&mut [0]).await.unwrap_err().kind(), ErrorKind::ConnectionReset);
        }
        let (mut client, mut server, task) = carried().await;
        for _ in 0..2 {
            client.write_all(b"hello").await.unwrap();
            client.shutdown().await.unwrap();
            let mut got = Vec::new();
            server.read_to_end(&mut got).await.unwrap();
            assert_eq!(got, b"hello");
            std::mem::swap(&mut client, &mut server);
        }
        task.await.unwrap();
    }

    #[tokio::test]
    async fn an_end_that_disappears_after_its_fin_ends_the_flow() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        for by_client in [true, false] {
            let (client, server, task) = carried().await;
            let (mut goes, mut stays) = if by_client { (client, server) } else { (server, client) };
            goes.shutdown().await.unwrap();
            assert_eq!(stays.read(&mut [0]).await.unwrap(), 0);
            reset(&goes);
            drop(goes);
            let ends = tokio::time::timeout(Duration::from_secs(10), task);
            ends.await.expect("the other end never sends, and need not").unwrap();
            assert!(stays.write(b"x").await.is_err(), "reset, not ended");
        }
    }

    #[test]
    fn each_owner_has_its_share_and_traffic_is_summed_up() {
        let flows = Arc::new(Flows::new(3, 2));
        let client = "10.0.0.1:4000".parse().unwrap();
        let open = |owner: &str| flows.open(owner.parse().unwrap(), client, 7);
        let (one, two) = (open("10.0.0.1").unwrap(), open("10.0.0.1").unwrap());
        assert!(open("10.0.0.1").is_none());
        let other = open("10.0.0.2").unwrap();
        assert!(open("10.0.0.3").is_none());
        assert_eq!(flows.refused.rows::<Vec<_>>(), [("limit".to_owned(), 1), ("share".to_owned(), 1)]);
        one.flow.up.store(5, Relaxed);
        let sums: BTreeMap<u8, Totals> = [(7, Totals { flows: 3, up_bytes: 5, down_bytes: 0 })].into();
        assert_eq!(flows.sums(), sums);
        drop(one);
        assert_eq!((flows.sums(), flows.count()), (sums, 2));
        assert!(open("10.0.0.1").is_some());
        flows.set_limit(0);
        assert!(open("10.0.0.1").is_none());
        drop((two, other));
        assert_eq!(flows.count(), 0);
        assert!(flows.table().of_owner.is_empty());
    }
}
