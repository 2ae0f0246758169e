//! Kernel counters of TCP flows: of the sender, and of the receiver if it is a third-party program.

use super::super::diag::{Counters, Diag, Side};
use super::super::space::Space;
use super::super::stop::Stop;
use super::mib::{Mib, Recoveries};
use anyhow::Result;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Sampling interval of sockets, which is the resolution of curl's downloads.
const PERIOD: Duration = Duration::from_millis(5);

/// A TCP flow to observe.
#[derive(Debug)]
pub struct TcpWatch {
    /// Name of the flow in the scenario.
    pub flow: String,
    /// The sender's sockets: where they are, and the port that identifies them.
    pub sender: (Diag, Side),
    /// The sender's namespace.
    pub space: Space,
    /// The same for the receiver, if it is observed.
    pub receiver: Option<(Diag, Side)>,
    /// Whether the connection is MPTCP.
    pub mptcp: bool,
}

/// Observations of a TCP flow.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct TcpObservations {
    /// Congestion window of the sender over time, bytes; for MPTCP the sum of the subflows.
    pub cwnd: Vec<(f64, f64)>,
    /// Bytes received in order since the previous reading, over time.
    pub received: Vec<(f64, u64)>,
    /// Segments retransmitted and retransmission timeouts, over all connections.
    pub resent: [u64; 2],
    /// Bytes acknowledged, over all connections.
    pub acked_bytes: u64,
    /// Maximum of the sender's reordering estimate, packets.
    pub reordering: u64,
    /// TCP events of the sender's namespace during the run.
    pub recoveries: Recoveries,
}

/// Observes TCP sockets until the end is requested.
///
/// # Errors
/// The kernel refuses the request.
pub fn watch(
    watches: Vec<TcpWatch>,
    start: Instant,
    end: &Stop,
) -> Result<BTreeMap<String, TcpObservations>> {
    let mut records = watches.into_iter().map(Record::new).collect::<Result<Vec<_>>>()?;
    let mut next = start;
    loop {
        let over = end.sleep_until(next);
        // Once more at the end, for the final values.
        for record in &mut records {
            record.sample(start)?;
        }
        if over {
            break;
        }
        next = (next + PERIOD).max(Instant::now());
    }
    records.into_iter().map(Record::finish).collect()
}

struct Record {
    watch: TcpWatch,
    cwnd: Vec<(f64, f64)>,
    received: Vec<(f64, u64)>,
    total: u64,
    resent: BTreeMap<u64, [u64; 3]>,
    reordering: u64,
    before: Mib,
    found: Vec<Counters>,
}

impl Record {
    fn new(watch: TcpWatch) -> Result<Self> {
        Ok(Self {
            before: Mib::read(&watch.space)?,
            watch,
            cwnd: Vec::new(),
            received: Vec::new(),
            total: 0,
            resent: BTreeMap::new(),
            reordering: 0,
            found: Vec::new(),
        })
    }

    fn sample(&mut self, start: Instant) -> Result<()> {
        if let Some((diag, side)) = &mut self.watch.receiver {
            self.found.clear();
            diag.list(*side, &mut self.found)?;
            let total = self.found.iter().map(|s| s.bytes_received).max().unwrap_or(0);
            if total > self.total {
                self.received.push((start.elapsed().as_secs_f64(), total - self.total));
                self.total = total;
            }
        }
        let (diag, side) = &mut self.watch.sender;
        self.found.clear();
        diag.list(*side, &mut self.found)?;
        let mut window = 0;
        for socket in &self.found {
            self.resent.insert(socket.cookie, [socket.retransmissions, socket.timeouts, socket.bytes_acked]);
            self.reordering = self.reordering.max(socket.reordering);
            window = if self.watch.mptcp {
                window + socket.cwnd_bytes
            } else {
                u64::max(window, socket.cwnd_bytes)
            };
        }
        let window = window as f64;
        if window > 0.0 && self.cwnd.last().is_none_or(|(_, last)| *last != window) {
            self.cwnd.push((start.elapsed().as_secs_f64(), window));
        }
        Ok(())
    }

    fn finish(self) -> Result<(String, TcpObservations)> {
        let recoveries = Mib::read(&self.watch.space)?.since(&self.before);
        let sum = |at: usize| self.resent.values().map(|one| one[at]).sum();
        let (resent, acked_bytes) = ([sum(0), sum(1)], sum(2));
        let Self { cwnd, received, reordering, .. } = self;
        Ok((self.watch.flow, TcpObservations { cwnd, received, resent, acked_bytes, reordering, recoveries }))
    }
}
