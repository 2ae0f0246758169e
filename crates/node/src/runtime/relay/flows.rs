//! Flows of a relay: those there are, how many there may be, and what was counted.
//!
//! A flow counts its bytes by itself; the table is locked when a flow comes, goes, or is looked at.

use super::tally::{Named, Tally};
use super::{Unfinished, both, flow_limit, reset};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// What a relay of its kind knows of a flow beside what all have.
pub trait Kind: Send + Sync + Sized + 'static {
    /// Why flows are refused.
    type Why: Named;
    /// What else is counted for all flows together.
    type Counters: Default + Send + Sync;
    /// What flows carried, as it is told apart.
    type Sums: Clone + Default + Send;

    /// The key that says how many there may be.
    const LIMIT_KEY: &'static str;

    /// Whether it counts for the share of its owner.
    fn shares(&self) -> bool {
        true
    }

    /// The reason in its words.
    fn why(full: Full) -> Self::Why;

    /// Adds what a flow carried, or has so far.
    fn add(flow: &Flow<Self>, totals: Totals, to: &mut Self::Sums);
}

/// What there is no room for one more in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Full {
    /// The table.
    Table,
    /// The share of whoever owns it.
    Share,
    /// The descriptors of this process, or of the machine.
    Descriptors,
}

/// One flow.
#[derive(Debug)]
pub struct Flow<K> {
    /// Counts up by one.
    pub id: u64,
    /// The program's end.
    pub client: SocketAddr,
    /// Name of its rule.
    pub rule: OnceLock<String>,
    /// When it came.
    pub since: Instant,
    /// Bytes to the server.
    pub up: AtomicU64,
    /// Bytes from the server.
    pub down: AtomicU64,
    /// What its kind knows.
    pub of: K,
    owner: IpAddr,
}

impl<K> Flow<K> {
    fn totals(&self) -> Totals {
        Totals { flows: 1, up_bytes: self.up.load(Relaxed), down_bytes: self.down.load(Relaxed) }
    }
}

/// Sums over flows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Flows, those that are there now included.
    pub flows: u64,
    /// Bytes to servers.
    pub up_bytes: u64,
    /// Bytes from servers.
    pub down_bytes: u64,
}

impl Totals {
    /// Adds others.
    pub const fn add(&mut self, other: Self) {
        self.flows += other.flows;
        self.up_bytes += other.up_bytes;
        self.down_bytes += other.down_bytes;
    }
}

struct Table<K: Kind> {
    open: BTreeMap<u64, Arc<Flow<K>>>,
    of_owner: BTreeMap<IpAddr, usize>,
    ended: K::Sums,
    next: u64,
}

/// All flows of a relay.
pub struct Flows<K: Kind> {
    table: Mutex<Table<K>>,
    limit: AtomicUsize,
    share: AtomicUsize,
    /// Flows refused.
    pub refused: Tally<K::Why>,
    /// Flows that ended by a reset.
    pub resets: AtomicU64,
    /// What else is counted.
    pub counters: K::Counters,
}

impl<K: Kind> Flows<K> {
    /// None yet; at most so many, and so many of one owner.
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
        }
    }

    /// As many as are configured, or as there are descriptors for; `threads` copy (0: as many as there are cores).
    pub fn possible(wanted: u32, threads: u16) -> anyhow::Result<usize> {
        flow_limit(K::LIMIT_KEY, wanted, threads)
    }

    /// How many there may be.
    pub fn limit(&self) -> usize {
        self.limit.load(Relaxed)
    }

    /// How many there may be from now on; what is there stays.
    pub fn set_limit(&self, limit: usize) {
        self.limit.store(limit, Relaxed);
    }

    /// How many of one owner there may be from now on; what is there stays.
    pub fn set_share(&self, share: usize) {
        self.share.store(share, Relaxed);
    }

    /// A new flow; none, counted and told, where there are too many.
    pub fn open(self: &Arc<Self>, owner: IpAddr, client: SocketAddr, of: K) -> Option<Entry<K>> {
        let mut table = self.table();
        let owned = table.of_owner.get(&owner).copied().unwrap_or(0);
        let limit = self.limit();
        let shares = of.shares();
        if table.open.len() >= limit || shares && owned >= self.share.load(Relaxed) {
            let full = if table.open.len() >= limit { Full::Table } else { Full::Share };
            drop(table);
            let refused = self.refused.count(K::why(full));
            // A flood of flows is not to become a flood of lines.
            if full == Full::Table && refused.is_power_of_two() {
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
        });
        if shares {
            table.of_owner.insert(owner, owned + 1);
        }
        table.open.insert(flow.id, flow.clone());
        drop(table);
        Some(Entry { flows: self.clone(), flow })
    }

    /// Whether a quarter or less is left, of all or of what this owner may have.
    pub fn is_tight(&self, owner: IpAddr) -> bool {
        let table = self.table();
        let owned = table.of_owner.get(&owner).copied().unwrap_or(0);
        let tight = |used: usize, of: usize| used >= of - of / 4;
        tight(table.open.len(), self.limit()) || tight(owned, self.share.load(Relaxed))
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.table().open.len()
    }

    /// Those from the `offset`th on, at most `limit`, the oldest first.
    pub fn list(&self, offset: usize, limit: usize) -> Vec<Arc<Flow<K>>> {
        self.table().open.values().skip(offset).take(limit).cloned().collect()
    }

    /// What flows carried, those that are there now included.
    pub fn sums(&self) -> K::Sums {
        let table = self.table();
        let mut all = table.ended.clone();
        table.open.values().for_each(|flow| K::add(flow, flow.totals(), &mut all));
        all
    }

    fn table(&self) -> MutexGuard<'_, Table<K>> {
        // Every change is one step.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A flow as long as it is there.
pub struct Entry<K: Kind> {
    flows: Arc<Flows<K>>,
    /// The flow.
    pub flow: Arc<Flow<K>>,
}

impl<K: Kind> Entry<K> {
    /// Copies both ways until both ends are done.
    pub async fn carry(&self, near: &TcpStream, far: &TcpStream) {
        let unfinished = Unfinished::new([near, far]);
        match both(near, far, &self.flow.up, &self.flow.down).await {
            Ok(()) => unfinished.done(),
            Err(error) => self.broken(near, far, &error),
        }
    }

    /// One end is broken: so is the other.
    pub fn broken(&self, near: &TcpStream, far: &TcpStream, error: &io::Error) {
        reset(near);
        reset(far);
        self.flows.resets.fetch_add(1, Relaxed);
        tracing::debug!(flow = self.flow.id, client = %self.flow.client, "reset: {error}");
    }
}

impl<K: Kind> Drop for Entry<K> {
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

/// Takes connections for as long as it is polled; what `serve` makes of them ends with it.
pub async fn accept<K: Kind, F>(
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
                // Gone before it was taken.
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    flows.refused.count(K::why(Full::Descriptors));
                    tracing::warn!("a connection cannot be taken: {error}; is the limit of open files too low?");
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
        pub enum Why {
            Limit = "limit",
            Share = "share",
        }
    }

    impl Kind for u8 {
        type Why = Why;
        type Counters = ();
        type Sums = BTreeMap<Self, Totals>;

        const LIMIT_KEY: &'static str = "limit";

        fn why(full: Full) -> Why {
            if full == Full::Share { Why::Share } else { Why::Limit }
        }

        fn add(flow: &Flow<Self>, totals: Totals, to: &mut Self::Sums) {
            to.entry(flow.of).or_default().add(totals);
        }
    }

    /// A connection: the program's end, and ours.
    async fn connection() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let there = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (there, listener.accept().await.unwrap().0)
    }

    /// Client, server, and the task that carries between them.
    async fn carried() -> (TcpStream, TcpStream, tokio::task::JoinHandle<()>) {
        let flows = Arc::new(Flows::new(1, 1));
        let ((client, near), (server, far)) = (connection().await, connection().await);
        let entry = flows.open([127, 0, 0, 1].into(), client.local_addr().unwrap(), 7).unwrap();
        (client, server, tokio::spawn(async move { entry.carry(&near, &far).await }))
    }

    #[tokio::test]
    async fn only_what_both_ends_have_ended_looks_ended() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let (mut client, mut server, task) = carried().await;
        client.write_all(b"hello").await.unwrap();
        server.read_exact(&mut [0; 5]).await.unwrap();
        // As at the end of this program.
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
    async fn an_end_that_has_said_all_and_is_gone_ends_the_flow() {
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
    fn each_owner_has_its_share_and_what_was_carried_is_kept() {
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
