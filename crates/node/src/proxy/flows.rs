//! Flows of a proxy.

use super::policy::{Origin, Way};
use super::rules::Transport;
use crate::runtime::relay::{self, Full, Kind, Tally, Totals, named};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

/// Rules and slices that are told apart in what ended; further ones are summed up as `other`.
const MAX_TOTALS: usize = 1024;

/// One flow.
pub type Flow = relay::Flow<Known>;
/// All flows of a proxy. An owner is a client's address.
pub type Flows = relay::Flows<Known>;
/// A flow as long as it is there.
pub type Entry = relay::Entry<Known>;

named! {
    /// Why a flow was refused.
    pub enum Refused {
        /// There are as many as there may be.
        Limit = "limit",
        /// There are as many over UDP as one client may have.
        ClientLimit = "client_limit",
        /// Nothing meets what it needs, and its rule says that it is not to go on then.
        Unmet = "unmet",
        /// It was not led here: a program connected to the proxy's port itself.
        NoRule = "no_rule",
        /// The server cannot be reached, or refuses.
        Unreachable = "unreachable",
        /// A socket could not be opened, for instance because there are no descriptors left.
        Socket = "socket",
    }
}

/// What is counted beside refusals.
#[derive(Debug, Default)]
pub struct Counters {
    /// Where flows' ways came from.
    pub origins: Tally<Origin>,
    /// Further candidates that were tried because an earlier one failed or was late.
    pub retries: AtomicU64,
    /// Datagrams dropped: no room in a socket's or a flow's queue, or refused by the kernel.
    pub datagrams_dropped: AtomicU64,
    /// Parts of plans that this kernel refused.
    pub plan_failures: AtomicU64,
}

impl Counters {
    /// Counts a datagram that is lost here.
    pub fn drop_datagram(&self) {
        self.datagrams_dropped.fetch_add(1, Relaxed);
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

/// What a proxy knows of a flow.
#[derive(Debug)]
pub struct Known {
    /// What the program speaks.
    pub transport: Transport,
    /// Where it wants to go.
    pub server: SocketAddr,
    /// How it goes, once it does.
    pub opened: OnceLock<Opened>,
}

impl Known {
    /// One that does not go yet.
    pub const fn new(transport: Transport, server: SocketAddr) -> Self {
        Self { transport, server, opened: OnceLock::new() }
    }
}

/// Rule, and slice: empty where a flow has none.
pub type TotalsKey = (String, String);

impl Kind for Known {
    type Why = Refused;
    type Counters = Counters;
    type Sums = BTreeMap<TotalsKey, Totals>;

    const LIMIT_KEY: &'static str = "[limits] flows";

    /// A TCP flow shows that its client is there; datagrams can come from anyone, and each is a flow for minutes.
    fn shares(&self) -> bool {
        self.transport == Transport::Udp
    }

    fn why(full: Full) -> Refused {
        match full {
            Full::Table => Refused::Limit,
            Full::Share => Refused::ClientLimit,
            Full::Descriptors => Refused::Socket,
        }
    }

    fn add(flow: &Flow, totals: Totals, to: &mut Self::Sums) {
        // Those that got no way are among the refused.
        let Some(opened) = flow.of.opened.get() else { return };
        let rule = flow.rule.get().cloned().unwrap_or_default();
        let key = (rule, opened.way.slice.clone().unwrap_or_default());
        let full = to.len() >= MAX_TOTALS && !to.contains_key(&key);
        let key = if full { ("other".to_owned(), "other".to_owned()) } else { key };
        to.entry(key).or_default().add(totals);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_client_does_not_take_every_udp_flow() {
        for (limit, share) in [(10, 3), (100, 1), (4096, 1024)] {
            let flows = Arc::new(Flows::new(limit, share));
            let server: SocketAddr = "192.0.2.1:53".parse().unwrap();
            let open = |client: &str, transport| {
                let client: SocketAddr = client.parse().unwrap();
                flows.open(client.ip(), client, Known::new(transport, server))
            };
            let mut held: Vec<Entry> =
                (0..limit).filter_map(|_| open("10.0.0.1:1", Transport::Udp)).collect();
            assert_eq!(held.len(), share);
            let refused: std::collections::BTreeMap<String, u64> = flows.refused.rows();
            assert_eq!(refused["client_limit"], (limit - share) as u64);
            // Others, and its own TCP, still have the rest.
            held.extend(open("10.0.0.2:1", Transport::Udp));
            held.extend(open("10.0.0.1:1", Transport::Tcp));
            assert_eq!(held.len(), share + 2);
            held.remove(0);
            assert!(open("10.0.0.1:2", Transport::Udp).is_some());
        }
    }

    #[test]
    fn what_flows_carried_is_kept_by_rule_and_slice() {
        let flows = Arc::new(Flows::new(usize::MAX, usize::MAX));
        let [client, server]: [SocketAddr; 2] = ["10.0.0.1:4000", "192.0.2.1:80"].map(|a| a.parse().unwrap());
        let open = || flows.open(client.ip(), client, Known::new(Transport::Tcp, server)).unwrap();
        drop(open());
        assert!(flows.sums().is_empty(), "one that got no way carried nothing");
        for rule in 0..MAX_TOTALS + 2 {
            let entry = open();
            let way = Arc::new(Way { slice: Some("B".into()), ..Way::plain(Transport::Tcp) });
            entry.flow.rule.set(rule.to_string()).unwrap();
            entry.flow.of.opened.set(Opened { way, origin: Origin::Asked }).unwrap();
            entry.flow.up.store(7, Relaxed);
        }
        let sums = flows.sums();
        let of = |rule: &str, slice: &str| sums[&(rule.to_owned(), slice.to_owned())];
        assert_eq!(of("0", "B"), Totals { flows: 1, up_bytes: 7, down_bytes: 0 });
        assert_eq!(of("other", "other"), Totals { flows: 2, up_bytes: 14, down_bytes: 0 });
        assert_eq!(sums.len(), MAX_TOTALS + 1);
    }
}
