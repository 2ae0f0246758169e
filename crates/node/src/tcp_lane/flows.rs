//! Flows of a lane: those there are, how many there may be, and what was counted.
//!
//! A flow counts its bytes by itself; the table is locked when a flow comes, goes, or is looked at.

use anabranch_kern::socket::mptcp_paths;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;
use tokio::net::TcpStream;

/// What carries a flow between UE and UPF.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carrier {
    /// Multipath TCP.
    Mptcp,
    /// TCP on one path: something in between took the options of Multipath TCP away.
    Tcp,
    /// The packet lane: the flow goes on to its server as any other.
    Packets,
}

impl Carrier {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Mptcp, Self::Tcp, Self::Packets];

    /// As metrics and pages name it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mptcp => "mptcp",
            Self::Tcp => "tcp",
            Self::Packets => "packets",
        }
    }
}

/// Why a flow was refused, or (at a UE) went by the packet lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// There are as many as there may be.
    Limit,
    /// The session has as many as it may have.
    SessionLimit,
    /// The first bytes are no message of the Convert Protocol, or one that is not served.
    Malformed,
    /// The first bytes did not come in time, or the far end left before.
    Silent,
    /// Its destination is not served.
    Destination,
    /// The server cannot be reached.
    Unreachable,
    /// The server refuses.
    Reset,
    /// A socket could not be opened, for instance because there are no descriptors left.
    Socket,
    /// UE: its rule says `ll`; it was led here because of another rule.
    Rule,
    /// UE: the UPF's lane does not answer, or refuses.
    NoLane,
    /// UE: Multipath TCP was stripped a short while ago.
    Stripped,
}

impl Why {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::Limit,
        Self::SessionLimit,
        Self::Malformed,
        Self::Silent,
        Self::Destination,
        Self::Unreachable,
        Self::Reset,
        Self::Socket,
        Self::Rule,
        Self::NoLane,
        Self::Stripped,
    ];

    /// As metrics and pages name it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Limit => "limit",
            Self::SessionLimit => "session_limit",
            Self::Malformed => "malformed",
            Self::Silent => "silent",
            Self::Destination => "destination",
            Self::Unreachable => "unreachable",
            Self::Reset => "reset",
            Self::Socket => "socket",
            Self::Rule => "rule",
            Self::NoLane => "no_lane",
            Self::Stripped => "stripped",
        }
    }
}

/// What is counted for all flows together.
#[derive(Debug, Default)]
pub struct Counters {
    refused: [AtomicU64; Why::ALL.len()],
    packets: [AtomicU64; Why::ALL.len()],
    /// Flows that ended by a reset.
    pub resets: AtomicU64,
}

impl Counters {
    /// Counts a flow that is refused.
    pub fn refuse(&self, why: Why) {
        self.refused[why as usize].fetch_add(1, Relaxed);
    }

    /// Counts a flow that goes by the packet lane.
    pub fn by_packets(&self, why: Why) {
        self.packets[why as usize].fetch_add(1, Relaxed);
    }

    /// Refused so far; what never happened is left out.
    pub fn refused(&self) -> BTreeMap<&'static str, u64> {
        rows(&self.refused)
    }

    /// Gone by the packet lane so far; what never happened is left out.
    pub fn fallbacks(&self) -> BTreeMap<&'static str, u64> {
        rows(&self.packets)
    }
}

fn rows(of: &[AtomicU64; Why::ALL.len()]) -> BTreeMap<&'static str, u64> {
    let all = Why::ALL.into_iter().map(|why| (why.name(), of[why as usize].load(Relaxed)));
    all.filter(|(_, n)| *n > 0).collect()
}

/// One flow.
#[derive(Debug)]
pub struct Flow {
    /// Counts up by one.
    pub id: u64,
    /// The program's end, or the UE's address at the UPF.
    pub client: SocketAddr,
    /// Where it goes.
    pub server: OnceLock<SocketAddr>,
    /// Name of its rule (UE).
    pub rule: OnceLock<String>,
    /// When it came.
    pub since: Instant,
    /// What carries it, once something does.
    pub carrier: OnceLock<Carrier>,
    /// The connection between UE and UPF.
    pub between: OnceLock<Arc<TcpStream>>,
    /// Bytes to the server.
    pub up: AtomicU64,
    /// Bytes from the server.
    pub down: AtomicU64,
    session: IpAddr,
}

impl Flow {
    /// Subflows there are; 1 where there is no Multipath TCP.
    pub fn subflows(&self) -> u8 {
        let between = self.between.get();
        between.and_then(|stream| mptcp_paths(&**stream).ok().flatten()).unwrap_or(1)
    }

    /// The UPF's: no server is there before the first bytes.
    pub fn server_text(&self) -> String {
        self.server.get().map(SocketAddr::to_string).unwrap_or_default()
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
    fn add(&mut self, flow: &Flow) {
        self.flows += 1;
        self.up_bytes += flow.up.load(Relaxed);
        self.down_bytes += flow.down.load(Relaxed);
    }
}

#[derive(Default)]
struct Table {
    open: BTreeMap<u64, Arc<Flow>>,
    of_session: BTreeMap<IpAddr, usize>,
    ended: [Totals; Carrier::ALL.len()],
    next: u64,
}

/// All flows of a lane.
pub struct Flows {
    table: Mutex<Table>,
    limit: AtomicUsize,
    session_limit: usize,
    /// Counters.
    pub counters: Counters,
}

impl Flows {
    /// None yet; at most so many, and so many of one session.
    pub fn new(limit: usize, session_limit: usize) -> Self {
        let limit = AtomicUsize::new(limit);
        Self { table: Mutex::default(), limit, session_limit, counters: Counters::default() }
    }

    /// How many there may be.
    pub fn limit(&self) -> usize {
        self.limit.load(Relaxed)
    }

    /// A new flow of a session; none, and counted, where there are too many.
    pub fn open(self: &Arc<Self>, session: IpAddr, client: SocketAddr) -> Option<Entry> {
        let mut table = self.table();
        let of_session = table.of_session.get(&session).copied().unwrap_or(0);
        let why = if table.open.len() >= self.limit() {
            Some(Why::Limit)
        } else if of_session >= self.session_limit {
            Some(Why::SessionLimit)
        } else {
            None
        };
        if let Some(why) = why {
            drop(table);
            self.counters.refuse(why);
            return None;
        }
        table.next += 1;
        let flow = Arc::new(Flow {
            id: table.next,
            client,
            server: OnceLock::new(),
            rule: OnceLock::new(),
            since: Instant::now(),
            carrier: OnceLock::new(),
            between: OnceLock::new(),
            up: AtomicU64::new(0),
            down: AtomicU64::new(0),
            session,
        });
        table.of_session.insert(session, of_session + 1);
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

    /// What flows carried, by carrier, those that are there now included.
    pub fn totals(&self) -> [(Carrier, Totals); Carrier::ALL.len()] {
        let table = self.table();
        let mut all = table.ended;
        for flow in table.open.values() {
            if let Some(carrier) = flow.carrier.get() {
                all[*carrier as usize].add(flow);
            }
        }
        Carrier::ALL.map(|carrier| (carrier, all[carrier as usize]))
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // Every change is one step.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
        if table.open.remove(&self.flow.id).is_none() {
            return;
        }
        if let Some(left) = table.of_session.get_mut(&self.flow.session) {
            *left = left.saturating_sub(1);
            if *left == 0 {
                table.of_session.remove(&self.flow.session);
            }
        }
        if let Some(carrier) = self.flow.carrier.get() {
            table.ended[*carrier as usize].add(&self.flow);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_session_has_its_share_and_what_was_carried_is_kept() {
        let flows = Arc::new(Flows::new(3, 2));
        let client = "10.0.0.1:4000".parse().unwrap();
        let open = |session: &str| flows.open(session.parse().unwrap(), client);
        let (one, two) = (open("10.0.0.1").unwrap(), open("10.0.0.1").unwrap());
        assert!(open("10.0.0.1").is_none());
        let other = open("10.0.0.2").unwrap();
        assert!(open("10.0.0.3").is_none());
        assert_eq!(flows.counters.refused(), [("limit", 1), ("session_limit", 1)].into());
        one.flow.carrier.set(Carrier::Mptcp).unwrap();
        one.flow.up.store(7, Relaxed);
        let totals = Totals { flows: 1, up_bytes: 7, down_bytes: 0 };
        assert_eq!(flows.totals()[0], (Carrier::Mptcp, totals));
        drop(one);
        assert_eq!((flows.totals()[0].1, flows.count()), (totals, 2));
        assert!(open("10.0.0.1").is_some());
        drop((two, other));
        assert_eq!(flows.count(), 0);
        assert!(flows.table().of_session.is_empty());
    }
}
