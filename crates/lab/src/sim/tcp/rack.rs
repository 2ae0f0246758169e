//! RACK-TLP loss detection by time. RFC 8985.
//!
//! A segment is lost when one sent later has been delivered and more than the RTT plus a reordering window has passed since it
//! was sent. The window is 0 until reordering was seen and there is cause to hurry, a quarter of the smallest RTT otherwise. It
//! grows by the same amount for each round trip with a DSACK, that is, with a premature retransmission (§6.2 step 4).
//!
//! One difference: the reordering timer is set to the earliest deadline, not the latest (§6.2 step 5). Each segment is declared
//! lost exactly at its own deadline.

use super::scoreboard::{Scoreboard, Segment};
use anabranch_element::time::{Duration, Instant, nanos};

/// Number of SACKed segments that justify not waiting if no reordering was ever seen (RFC 5681).
pub const DUP_THRESH: usize = 3;
/// Recoveries after which a widened reordering window is narrowed again.
const REO_WND_PERSIST: u32 = 16;
/// Maximum delay of the ACK of a single segment (RFC 8985 §7.2, Linux).
const MAX_ACK_DELAY: Duration = Duration::from_millis(200);

/// State of RACK.
#[derive(Debug, Clone)]
pub struct Rack {
    /// Of all delivered transmissions, the number of the one sent last.
    newest: Option<u64>,
    /// RTT measured with the newest delivered segment.
    rtt: Duration,
    /// Highest sequence number delivered.
    forward_ack: u64,
    reordering_seen: bool,
    window_multiple: u32,
    window_persist: u32,
    /// A DSACK has already widened the window until this is acknowledged.
    dsack_round: Option<u64>,
}

/// State of the connection that RACK uses.
#[derive(Debug, Clone, Copy)]
pub struct RackInputs {
    /// The current time.
    pub now: Instant,
    /// Smallest RTT.
    pub min_rtt: Duration,
    /// Smoothed RTT.
    pub srtt: Duration,
    /// Whether the sender is in fast or timeout recovery.
    pub in_recovery: bool,
}

impl Default for Rack {
    fn default() -> Self {
        Self {
            newest: None,
            rtt: Duration::ZERO,
            forward_ack: 0,
            reordering_seen: false,
            window_multiple: 1,
            window_persist: REO_WND_PERSIST,
            dsack_round: None,
        }
    }
}

impl Rack {
    /// A segment was delivered (§6.2 steps 1 to 3). `echo_proves_original`: the echoed timestamp is older than the last
    /// transmission of the segment, so an earlier one was delivered.
    pub fn on_delivered(&mut self, s: &Segment, echo_proves_original: bool, now: Instant, min_rtt: Duration) {
        if s.end() > self.forward_ack {
            self.forward_ack = s.end();
        } else if !s.retransmitted {
            self.reordering_seen = true;
        }
        let rtt = now.saturating_since(s.sent_at);
        if s.retransmitted && (echo_proves_original || rtt < min_rtt) {
            return;
        }
        if self.newest.is_none_or(|newest| s.transmission > newest) {
            self.newest = Some(s.transmission);
            self.rtt = rtt;
        }
    }

    /// An ACK carried a DSACK (§6.2 step 4).
    pub fn on_dsack(&mut self, una: u64, next: u64) {
        if self.dsack_round.is_none_or(|round| una >= round) {
            self.dsack_round = Some(next);
            self.window_multiple = self.window_multiple.saturating_add(1);
        }
        self.window_persist = REO_WND_PERSIST;
    }

    /// At the end of a recovery: the reordering window returns to its minimum after 16 recoveries without DSACK.
    pub fn on_recovery_end(&mut self) {
        self.window_persist = self.window_persist.saturating_sub(1);
        if self.window_persist == 0 {
            self.window_multiple = 1;
        }
    }

    /// Reordering was observed.
    pub fn on_reordering(&mut self) {
        self.reordering_seen = true;
    }

    /// The reordering window (§6.2 step 4).
    pub fn reordering_window(&self, c: &RackInputs, sacked_segments: usize) -> Duration {
        if !self.reordering_seen && (c.in_recovery || sacked_segments >= DUP_THRESH) {
            return Duration::ZERO;
        }
        let window_ns = (nanos(c.min_rtt) / 4).saturating_mul(self.window_multiple.into());
        Duration::from_nanos(window_ns.min(nanos(c.srtt)))
    }

    /// Marks segments that are lost now (§6.2 step 5). Returns the time of the next check.
    pub fn detect(&self, board: &mut Scoreboard, c: &RackInputs) -> Option<Instant> {
        let newest = self.newest?;
        let patience = self.rtt + self.reordering_window(c, board.sacked_segments());
        let next = board.lose_oldest(|s| s.transmission < newest && s.sent_at + patience <= c.now)?;
        (next.transmission < newest).then(|| next.sent_at + patience)
    }

    /// Whether the timeout also marks this segment as lost (§6.3).
    pub fn lost_on_timeout(&self, s: &Segment, c: &RackInputs, sacked_segments: usize) -> bool {
        s.sent_at + self.rtt + self.reordering_window(c, sacked_segments) <= c.now
    }

    /// Whether reordering was ever observed.
    #[cfg(test)]
    pub fn has_seen_reordering(&self) -> bool {
        self.reordering_seen
    }
}

/// Time to wait for an ACK before a tail loss probe (§7.2).
pub fn probe_timeout(srtt: Option<Duration>, segments_in_flight: usize) -> Duration {
    let Some(srtt) = srtt else { return Duration::from_secs(1) };
    // Two milliseconds account for Linux's coarse timers: a probe must not compete with the ACK it waits for.
    let slack = if segments_in_flight <= 1 { MAX_ACK_DELAY } else { Duration::from_millis(2) };
    srtt * 2 + slack
}

/// A tail loss probe in flight (§7.4).
#[derive(Debug, Clone, Copy)]
pub struct LossProbe {
    /// End of all data sent at the time of the probe.
    pub end: u64,
    /// Whether the probe was a retransmission.
    pub retransmission: bool,
}

/// Result of an ACK for a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProbeOutcome {
    /// Not known yet.
    Pending,
    /// Nothing had been lost.
    NoLoss,
    /// The probe itself repaired a loss; congestion control must be notified.
    Repaired,
}

impl LossProbe {
    /// §7.4.2. `plain_duplicate`: the ACK acknowledged nothing new and carried no SACK.
    pub fn outcome(&self, ack: u64, dsack: bool, plain_duplicate: bool) -> ProbeOutcome {
        if ack < self.end {
            ProbeOutcome::Pending
        } else if !self.retransmission || dsack {
            ProbeOutcome::NoLoss
        } else if ack > self.end {
            ProbeOutcome::Repaired
        } else if plain_duplicate {
            // Both the original and the probe arrived.
            ProbeOutcome::NoLoss
        } else {
            ProbeOutcome::Pending
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::rate::SentState;
    use super::*;

    const MIN_RTT: Duration = Duration::from_millis(40);

    fn at(ms: u64) -> RackInputs {
        RackInputs { now: Instant::from_millis(ms), min_rtt: MIN_RTT, srtt: MIN_RTT, in_recovery: false }
    }

    /// Segments of 100 sent at 0, 1, 2, ... ms.
    fn board(n: u64) -> Scoreboard {
        let mut b = Scoreboard::default();
        for i in 0..n {
            b.push(i * 100, 100, false, Instant::from_millis(i), SentState::default());
        }
        b
    }

    fn sack(rack: &mut Rack, b: &mut Scoreboard, start: u64, end: u64, now_ms: u64) {
        b.sack(start, end, |s| rack.on_delivered(s, false, Instant::from_millis(now_ms), MIN_RTT));
    }

    #[test]
    fn three_sacks_make_a_loss_at_once_fewer_wait_a_quarter_rtt() {
        let (mut rack, mut b) = (Rack::default(), board(5));
        sack(&mut rack, &mut b, 100, 200, 41);
        // Sent at 0, RTT 40 ms, window 10 ms.
        assert_eq!(rack.detect(&mut b, &at(41)), Some(Instant::from_millis(50)));
        assert_eq!(b.lost_bytes(), 0);
        sack(&mut rack, &mut b, 200, 400, 43);
        assert_eq!(rack.detect(&mut b, &at(43)), None);
        assert_eq!(b.lost_bytes(), 100);
    }

    #[test]
    fn the_window_opens_on_reordering_and_widens_with_each_round_of_dsacks() {
        let (mut rack, mut b) = (Rack::default(), board(10));
        sack(&mut rack, &mut b, 300, 400, 43);
        sack(&mut rack, &mut b, 0, 100, 44);
        assert!(rack.has_seen_reordering());
        let window = |rack: &Rack| rack.reordering_window(&at(44), 5).as_millis();
        assert_eq!(window(&rack), 10);
        rack.on_dsack(0, 1000);
        rack.on_dsack(500, 1500);
        assert_eq!(window(&rack), 20, "once per round trip");
        rack.on_dsack(1000, 2000);
        assert_eq!(window(&rack), 30);
        for _ in 0..16 {
            rack.on_recovery_end();
        }
        assert_eq!(window(&rack), 10);
        for round in 2..20 {
            rack.on_dsack(round * 1000, (round + 1) * 1000);
        }
        assert_eq!(window(&rack), 40, "never above the smoothed RTT");
    }

    #[test]
    fn a_lost_retransmission_is_found_by_time() {
        let (mut rack, mut b) = (Rack::default(), board(6));
        sack(&mut rack, &mut b, 100, 500, 44);
        rack.detect(&mut b, &at(44));
        b.retransmit(0, Instant::from_millis(44), SentState::default());
        b.push(600, 100, false, Instant::from_millis(45), SentState::default());
        sack(&mut rack, &mut b, 500, 700, 85);
        rack.detect(&mut b, &at(85));
        assert_eq!(b.lost_bytes(), 100);
    }

    #[test]
    fn an_echo_of_the_original_does_not_count_as_the_retransmission() {
        let (mut rack, mut b) = (Rack::default(), board(3));
        b.lose_on_timeout(|_| false);
        b.retransmit(0, Instant::from_millis(100), SentState::default());
        b.acknowledge(100, |s| rack.on_delivered(s, true, Instant::from_millis(145), MIN_RTT));
        assert_eq!(rack.detect(&mut b, &at(200)), None);
        assert_eq!(b.lost_bytes(), 0);
    }

    #[test]
    fn probe_outcomes_follow_the_acks() {
        let probe = LossProbe { end: 500, retransmission: true };
        assert_eq!(probe.outcome(400, false, false), ProbeOutcome::Pending);
        assert_eq!(probe.outcome(500, false, false), ProbeOutcome::Pending);
        assert_eq!(probe.outcome(500, true, false), ProbeOutcome::NoLoss);
        assert_eq!(probe.outcome(500, false, true), ProbeOutcome::NoLoss);
        assert_eq!(probe.outcome(600, false, false), ProbeOutcome::Repaired);
        let fresh = LossProbe { retransmission: false, ..probe };
        assert_eq!(fresh.outcome(500, false, false), ProbeOutcome::NoLoss);
        assert_eq!(probe_timeout(None, 1), Duration::from_secs(1));
        assert_eq!(probe_timeout(Some(MIN_RTT), 1), Duration::from_millis(280));
    }
}
