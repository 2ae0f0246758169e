//! The flows of a proxy, and their counters.

use super::policy::{Candidate, Origin};
use super::rules::Transport;
use crate::runtime::relay::{self, LimitReached, RelayKind, Tally, Totals, named};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

/// Maximum number of pairs of rule and slice in the totals of ended flows; further ones are summed up as
/// `other`.
const MAX_TOTALS: usize = 1024;

pub type Flow = relay::Flow<FlowProperties>;
/// All flows of a proxy. The owner of a flow is the client's address.
pub type Flows = relay::Flows<FlowProperties>;
/// A flow's registration, which ends when it is dropped.
pub type Entry = relay::Entry<FlowProperties>;

named! {
    /// Reason for refusing a flow.
    pub enum Refused {
        /// The maximum number of flows is reached.
        Limit = "limit",
        /// The maximum number of UDP flows of the client is reached.
        ClientLimit = "client_limit",
        /// No candidate meets the requirements, and the rule says `refuse`.
        Unmet = "unmet",
        /// The flow was not redirected: a program connected to the proxy's port directly.
        NoRule = "no_rule",
        /// The server cannot be reached, or refuses the connection.
        Unreachable = "unreachable",
        /// A socket could not be opened, for example for lack of file descriptors.
        Socket = "socket",
    }
}

/// Counters besides the refusals.
#[derive(Debug, Default)]
pub struct Counters {
    /// Flows by origin of their plan.
    pub origins: Tally<Origin>,
    /// Further candidates that were tried after an earlier one failed or was late.
    pub retries: AtomicU64,
    /// Dropped datagrams: the queue of a socket or flow was full, or the kernel refused them.
    pub datagrams_dropped: AtomicU64,
    /// Steps of plans that the kernel refused.
    pub plan_failures: AtomicU64,
}

impl Counters {
    /// Counts a dropped datagram.
    pub fn drop_datagram(&self) {
        self.datagrams_dropped.fetch_add(1, Relaxed);
    }
}

/// The candidate that a flow uses.
#[derive(Debug, Clone, PartialEq)]
pub struct OpenedCandidate {
    pub candidate: Arc<Candidate>,
    pub origin: Origin,
}

/// Properties of a flow that only the proxy has.
#[derive(Debug)]
pub struct FlowProperties {
    /// Transport protocol of the program.
    pub transport: Transport,
    /// Destination of the program.
    pub server: SocketAddr,
    /// The candidate in use; unset while the flow connects.
    pub opened: OnceLock<OpenedCandidate>,
}

impl FlowProperties {
    /// A flow that is still connecting.
    pub const fn new(transport: Transport, server: SocketAddr) -> Self {
        Self { transport, server, opened: OnceLock::new() }
    }
}

/// Name of the rule and name of the slice; empty: none.
pub type TotalsKey = (String, String);

impl RelayKind for FlowProperties {
    type Reason = Refused;
    type Counters = Counters;
    type Sums = BTreeMap<TotalsKey, Totals>;

    const LIMIT_KEY: &'static str = "[limits] flows";

    /// Only UDP counts towards the limit per client: a TCP handshake proves the client's address, while
    /// datagrams can be forged, and each creates a flow for minutes.
    fn shares(&self) -> bool {
        self.transport == Transport::Udp
    }

    fn reason(full: LimitReached) -> Refused {
        match full {
            LimitReached::Table => Refused::Limit,
            LimitReached::Share => Refused::ClientLimit,
            LimitReached::Descriptors => Refused::Socket,
        }
    }

    fn add(flow: &Flow, totals: Totals, to: &mut Self::Sums) {
        // Flows without a candidate are among the refused ones.
        let Some(opened) = flow.of.opened.get() else { return };
        let rule = flow.rule.get().cloned().unwrap_or_default();
        let key = (rule, opened.candidate.slice.clone().unwrap_or_default());
        let full = to.len() >= MAX_TOTALS && !to.contains_key(&key);
        let key = if full { ("other".to_owned(), "other".to_owned()) } else { key };
        to.entry(key).or_default().add(totals);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_client_cannot_use_up_all_udp_flows() {
        for (limit, share) in [(10, 3), (100, 1), (4096, 1024)] {
            let flows = Arc::new(Flows::new(limit, share));
            let server: SocketAddr = "192.0.2.1:53".parse().unwrap();
            let open = |client: &str, transport| {
                let client: SocketAddr = client.parse().unwrap();
                flows.open(client.ip(), client, FlowProperties::new(transport, server))
            };
            let mut held: Vec<Entry> =
                (0..limit).filter_map(|_| open("10.0.0.1:1", Transport::Udp)).collect();
            assert_eq!(held.len(), share);
            let refused: std::collections::BTreeMap<String, u64> = flows.refused.rows();
            assert_eq!(refused["client_limit"], (limit - share) as u64);
            // Other clients, and TCP of the same client, can use the rest.
            held.extend(open("10.0.0.2:1", Transport::Udp));
            held.extend(open("10.0.0.1:1", Transport::Tcp));
            assert_eq!(held.len(), share + 2);
            held.remove(0);
            assert!(open("10.0.0.1:2", Transport::Udp).is_some());
        }
    }

    #[test]
    fn traffic_is_summed_up_by_rule_and_slice() {
        let flows = Arc::new(Flows::new(usize::MAX, usize::MAX));
        let [client, server]: [SocketAddr; 2] = ["10.0.0.1:4000", "192.0.2.1:80"].map(|a| a.parse().unwrap());
        let open = || flows.open(client.ip(), client, FlowProperties::new(Transport::Tcp, server)).unwrap();
        drop(open());
        assert!(flows.sums().is_empty(), "one that got no way carried nothing");
        for rule in 0..MAX_TOTALS + 2 {
            let entry = open();
            let candidate =
                Arc::new(Candidate { slice: Some("B".into()), ..Candidate::plain(Transport::Tcp) });
            entry.flow.rule.set(rule.to_string()).unwrap();
            entry.flow.of.opened.set(OpenedCandidate { candidate, origin: Origin::Asked }).unwrap();
            entry.flow.up.store(7, Relaxed);
        }
        let sums = flows.sums();
        let of = |rule: &str, slice: &str| sums[&(rule.to_owned(), slice.to_owned())];
        assert_eq!(of("0", "B"), Totals { flows: 1, up_bytes: 7, down_bytes: 0 });
        assert_eq!(of("other", "other"), Totals { flows: 2, up_bytes: 14, down_bytes: 0 });
        assert_eq!(sums.len(), MAX_TOTALS + 1);
    }
}
