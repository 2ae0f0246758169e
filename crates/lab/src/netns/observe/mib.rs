//! What the TCP of a namespace has counted: /proc/net/netstat, as `nstat` shows it.
//!
//! A sender enters fast recovery at the third duplicate ACK or its equivalent (SACK, RACK); each time is counted
//! there, exactly, where a look at a socket every few milliseconds would miss some. Counters are of the namespace:
//! a flow's own as long as no other TCP sender lives beside it.

use super::super::space::Space;
use anyhow::{Context, Result};
use std::collections::BTreeMap;

/// Counters of a namespace by name, such as `TCPSackRecovery`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Mib(BTreeMap<String, u64>);

/// What a TCP sender went through.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Recoveries {
    /// Fast recoveries entered: with SACK (classic or RACK), and without.
    pub fast_recoveries: u64,
    /// Times a hole turned out to be reordering.
    pub reorderings: u64,
    /// Recoveries taken back because nothing had been lost.
    pub undone: u64,
    /// Duplicate SACKs received: what was sent again had arrived.
    pub dsacks: u64,
    /// Segments sent again in fast recovery.
    pub fast_retransmissions: u64,
}

impl Mib {
    /// Those of `space` now.
    ///
    /// # Errors
    /// /proc cannot be read.
    pub fn read(space: &Space) -> Result<Self> {
        let path = "/proc/thread-self/net/netstat";
        space.enter(|| std::fs::read_to_string(path).context(path)).map(|text| Self::parse(&text))
    }

    /// Pairs of lines: names, then values, both behind the name of their group.
    fn parse(text: &str) -> Self {
        let lines: Vec<&str> = text.lines().collect();
        let pairs = lines.chunks_exact(2).filter_map(|pair| {
            let (group, names) = pair[0].split_once(':')?;
            let values = pair[1].strip_prefix(group)?.strip_prefix(':')?;
            (group == "TcpExt").then_some((names, values))
        });
        let of = |(names, values): (&str, &str)| -> Vec<(String, u64)> {
            let values = values.split_whitespace().filter_map(|v| v.parse().ok());
            names.split_whitespace().map(str::to_owned).zip(values).collect()
        };
        Self(pairs.flat_map(of).collect())
    }

    /// What was counted since `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Recoveries {
        let one = |name: &str| {
            let of = |mib: &Self| mib.0.get(name).copied().unwrap_or(0);
            of(self).saturating_sub(of(before))
        };
        let sum = |names: &[&str]| names.iter().map(|name| one(name)).sum();
        Recoveries {
            fast_recoveries: sum(&["TCPSackRecovery", "TCPRenoRecovery"]),
            reorderings: sum(&["TCPSACKReorder", "TCPRenoReorder", "TCPTSReorder"]),
            undone: sum(&["TCPFullUndo", "TCPPartialUndo", "TCPDSACKUndo"]),
            dsacks: sum(&["TCPDSACKRecv", "TCPDSACKOfoRecv"]),
            fast_retransmissions: one("TCPFastRetrans"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_happened_between_two_readings_is_the_difference() {
        let text = |recoveries: u64, undone: u64| {
            format!(
                "TcpExt: SyncookiesSent TCPSackRecovery TCPRenoRecovery TCPFullUndo TCPDSACKUndo TCPDSACKRecv\n\
                 TcpExt: 9 {recoveries} 1 {undone} 2 7\nIpExt: InNoRoutes TCPSackRecovery\nIpExt: 3 99\n"
            )
        };
        let [before, after] = [Mib::parse(&text(5, 0)), Mib::parse(&text(12, 3))];
        let seen = after.since(&before);
        let expected = Recoveries { fast_recoveries: 7, undone: 3, ..Recoveries::default() };
        assert_eq!(seen, expected);
        assert_eq!(after.since(&Mib::default()).dsacks, 7);
        assert_eq!(Mib::parse("TcpExt: a\nother"), Mib::default());
    }
}
