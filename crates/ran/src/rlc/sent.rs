//! Time stamps of SDUs that were sent and not yet delivered at the other end.

use anabranch_element::time::Instant;
use std::collections::VecDeque;

/// Maximum number of records; beyond it the oldest are dropped.
const MAX_RECORDS: usize = 16_384;

/// Record of an SDU, made when its last byte was pulled for the first time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SentSdu {
    /// PDCP COUNT.
    pub count: u32,
    /// QoS flow.
    pub qfi: u8,
    /// Size in bytes as seen by RLC.
    pub bytes: u32,
    /// When it entered SDAP.
    pub arrived: Instant,
    /// When SDAP passed it to RLC.
    pub forwarded: Instant,
    /// When its first byte was pulled.
    pub first_pull: Instant,
    /// When its last byte was pulled.
    pub last_pull: Instant,
}

/// Log of sent SDUs.
#[derive(Debug, Clone, Default)]
pub struct SentLog {
    sdus: VecDeque<SentSdu>,
    recorded: u64,
}

impl SentLog {
    #[inline]
    pub(super) fn record(&mut self, sdu: SentSdu) {
        if self.sdus.len() >= MAX_RECORDS {
            self.sdus.pop_front();
        }
        self.sdus.push_back(sdu);
        self.recorded += 1;
    }

    /// Number of SDUs sent so far.
    #[must_use]
    #[inline]
    pub fn recorded(&self) -> u64 {
        self.recorded
    }

    /// SDUs sent since [`recorded`](Self::recorded) was `before`, oldest first.
    pub fn since(&self, before: u64) -> impl Iterator<Item = &SentSdu> {
        let new = usize::try_from(self.recorded.saturating_sub(before)).unwrap_or(usize::MAX);
        self.sdus.range(self.sdus.len().saturating_sub(new)..)
    }

    /// Removes the oldest record.
    #[inline]
    pub fn pop(&mut self) -> Option<SentSdu> {
        self.sdus.pop_front()
    }

    /// Removes and returns the record of a COUNT that was delivered. COUNTs are delivered in order, so earlier records belong to
    /// lost SDUs and are removed as well.
    #[inline]
    pub fn take(&mut self, count: u32) -> Option<SentSdu> {
        loop {
            let ahead = count.wrapping_sub(self.sdus.front()?.count);
            if ahead > u32::MAX / 2 {
                return None;
            }
            let first = self.sdus.pop_front();
            if ahead == 0 {
                return first;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sdu(count: u32) -> SentSdu {
        let at = Instant::ZERO;
        SentSdu { count, qfi: 1, bytes: 9, arrived: at, forwarded: at, first_pull: at, last_pull: at }
    }

    #[test]
    fn records_are_taken_once_and_those_of_lost_sdus_removed() {
        let mut log = SentLog::default();
        for count in [u32::MAX - 1, u32::MAX, 0, 1, 2] {
            log.record(sdu(count));
        }
        assert_eq!(log.since(3).map(|sdu| sdu.count).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(log.take(u32::MAX - 2), None, "before all of them");
        assert_eq!(log.take(0), Some(sdu(0)), "two were lost");
        assert_eq!((log.take(0), log.take(u32::MAX)), (None, None));
        assert_eq!(log.take(1), Some(sdu(1)));
        assert_eq!(log.take(7), None, "not noted");
        assert_eq!((log.pop(), log.recorded()), (None, 5));
    }

    #[test]
    fn the_oldest_records_are_dropped() {
        let mut log = SentLog::default();
        (0..MAX_RECORDS as u32 + 2).for_each(|count| log.record(sdu(count)));
        assert_eq!(log.since(0).count(), MAX_RECORDS);
        assert_eq!((log.take(1), log.take(2)), (None, Some(sdu(2))));
    }
}
