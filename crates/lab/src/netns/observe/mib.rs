//! TCP counters of a namespace: /proc/net/netstat, as shown by `nstat`.
//!
//! A sender enters fast recovery at the third duplicate ACK or its equivalent (SACK, RACK). These counters count each time exactly,
//! whereas polling a socket every few milliseconds would miss some. They are per namespace: they belong to one flow as long as the
//! namespace has no other TCP sender.

use super::super::space::Space;
use anyhow::{Context, Result};
use std::collections::BTreeMap;

/// Counters of a namespace by name, such as `TCPSackRecovery`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Mib(BTreeMap<String, u64>);

/// Events of a TCP sender.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Recoveries {
    /// Number of fast recoveries: with SACK (classic or RACK), and without.
    pub fast_recoveries: u64,
    /// Number of gaps that were reordering.
    pub reorderings: u64,
    /// Number of recoveries undone because nothing had been lost.
    pub undone: u64,
    /// Number of duplicate SACKs received: retransmitted data had arrived.
    pub dsacks: u64,
    /// Number of segments retransmitted in fast recovery.
    pub fast_retransmissions: u64,
}

impl Mib {
    /// The present counters of `space`.
    ///
    /// # Errors
    /// /proc cannot be read.
    pub fn read(space: &Space) -> Result<Self> {
        let path = "/proc/thread-self/net/netstat";
        space.enter(|| std::fs::read_to_string(path).context(path)).map(|text| Self::parse(&text))
    }

    /// Parses pairs of lines: names, then values, each after the name of its group.
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

    /// The difference from `before`.
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
    fn counters_are_the_difference_of_two_readings() {
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
