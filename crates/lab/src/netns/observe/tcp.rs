//! Kernel counters of the senders of TCP flows.

use super::super::diag::{Counters, Diag, Side};
use super::super::stop::Stop;
use anyhow::Result;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How often sockets are looked at.
const PERIOD: Duration = Duration::from_millis(10);

/// What to watch of a TCP flow.
#[derive(Debug)]
pub struct TcpWatch {
    /// The flow.
    pub flow: String,
    /// What its sockets are at the sending end: where, and by which port they are known.
    pub sender: (Diag, Side),
    /// Whether the connection is MPTCP.
    pub mptcp: bool,
}

/// What was seen of a TCP flow.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct TcpSeen {
    /// Congestion window of the sender at times, bytes; of MPTCP the sum over the subflows.
    pub cwnd: Vec<(f64, f64)>,
    /// Segments sent again and retransmission timeouts, over all its connections.
    pub resent: [u64; 2],
}

/// Watches TCP sockets until asked to end.
///
/// # Errors
/// The kernel does not tell.
pub fn watch(watches: Vec<TcpWatch>, start: Instant, end: &Stop) -> Result<BTreeMap<String, TcpSeen>> {
    let mut records: Vec<Record> = watches.into_iter().map(Record::new).collect();
    let mut next = start;
    loop {
        let over = end.sleep_until(next);
        // Once more at the end, so that what is final is seen.
        for record in &mut records {
            record.look(start)?;
        }
        if over {
            break;
        }
        next = (next + PERIOD).max(Instant::now());
    }
    Ok(records.into_iter().map(Record::finish).collect())
}

struct Record {
    watch: TcpWatch,
    cwnd: Vec<(f64, f64)>,
    resent: BTreeMap<u64, [u64; 2]>,
    found: Vec<Counters>,
}

impl Record {
    fn new(watch: TcpWatch) -> Self {
        Self { watch, cwnd: Vec::new(), resent: BTreeMap::new(), found: Vec::new() }
    }

    fn look(&mut self, start: Instant) -> Result<()> {
        let (diag, side) = &mut self.watch.sender;
        self.found.clear();
        diag.list(*side, &mut self.found)?;
        let mut window = 0;
        for socket in &self.found {
            self.resent.insert(socket.cookie, [socket.retransmissions, socket.timeouts]);
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

    fn finish(self) -> (String, TcpSeen) {
        let resent = self.resent.values().fold([0, 0], |sum, one| [sum[0] + one[0], sum[1] + one[1]]);
        (self.watch.flow, TcpSeen { cwnd: self.cwnd, resent })
    }
}
