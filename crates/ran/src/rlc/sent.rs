//! What was sent and not handed up at the other end yet: when each SDU was where, kept once for all who ask.

use anabranch_element::time::Instant;
use std::collections::VecDeque;

/// Most SDUs that are kept; older ones give way.
const MAX_KEPT: usize = 16_384;

/// What became of an SDU when its last byte was pulled for the first time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SentSdu {
    /// PDCP COUNT.
    pub count: u32,
    /// QoS flow.
    pub qfi: u8,
    /// Its bytes as RLC counts them.
    pub bytes: u32,
    /// When it entered SDAP.
    pub arrived: Instant,
    /// When SDAP let it down.
    pub forwarded: Instant,
    /// When its first byte was pulled.
    pub first_pull: Instant,
    /// When its last byte was pulled.
    pub last_pull: Instant,
}

/// See the top of this file.
#[derive(Debug, Clone, Default)]
pub struct SentLog {
    sdus: VecDeque<SentSdu>,
    noted: u64,
}

impl SentLog {
    #[inline]
    pub(super) fn note(&mut self, sdu: SentSdu) {
        if self.sdus.len() >= MAX_KEPT {
            self.sdus.pop_front();
        }
        self.sdus.push_back(sdu);
        self.noted += 1;
    }

    /// SDUs that were sent so far.
    #[must_use]
    #[inline]
    pub fn noted(&self) -> u64 {
        self.noted
    }

    /// Those that were sent since [`noted`](Self::noted) was `before`, oldest first.
    pub fn since(&self, before: u64) -> impl Iterator<Item = &SentSdu> {
        let new = usize::try_from(self.noted.saturating_sub(before)).unwrap_or(usize::MAX);
        self.sdus.range(self.sdus.len().saturating_sub(new)..)
    }

    /// The oldest, which is forgotten.
    #[inline]
    pub fn pop(&mut self) -> Option<SentSdu> {
        self.sdus.pop_front()
    }

    /// The SDU of a COUNT was handed up, in the order of COUNT: what is known of it. Those before it are lost, and it and
    /// they are forgotten.
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
    fn each_is_taken_once_and_what_is_lost_is_forgotten() {
        let mut log = SentLog::default();
        for count in [u32::MAX - 1, u32::MAX, 0, 1, 2] {
            log.note(sdu(count));
        }
        assert_eq!(log.since(3).map(|sdu| sdu.count).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(log.take(u32::MAX - 2), None, "before all of them");
        assert_eq!(log.take(0), Some(sdu(0)), "two were lost");
        assert_eq!((log.take(0), log.take(u32::MAX)), (None, None));
        assert_eq!(log.take(1), Some(sdu(1)));
        assert_eq!(log.take(7), None, "not noted");
        assert_eq!((log.pop(), log.noted()), (None, 5));
    }

    #[test]
    fn the_oldest_give_way() {
        let mut log = SentLog::default();
        (0..MAX_KEPT as u32 + 2).for_each(|count| log.note(sdu(count)));
        assert_eq!(log.since(0).count(), MAX_KEPT);
        assert_eq!((log.take(1), log.take(2)), (None, Some(sdu(2))));
    }
}
