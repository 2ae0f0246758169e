//! Processing of an ACK by the sender: deliveries, RTT, losses, recovery, congestion controller, timers.

use super::rack::ProbeOutcome;
use super::sender::{EarlyTimer, Phase, Sender};
use anabranch_cc::{Ack, CongestionController};
use anabranch_element::time::{Duration, Instant};

/// An acknowledgment with its sequence numbers unwrapped.
#[derive(Debug, Clone, Copy)]
pub struct Acknowledgment<'a> {
    /// Everything below has been received.
    pub ack: u64,
    /// Receive window above `ack`, bytes.
    pub window_bytes: u64,
    /// SACK blocks above `ack`.
    pub sacks: &'a [(u64, u64)],
    /// Data received twice (RFC 2883).
    pub dsack: Option<(u64, u64)>,
    /// Send time of the segment whose timestamp is echoed, at the resolution of the timestamp clock.
    pub echo: Option<Instant>,
    /// Whether the segment carried no data.
    pub pure: bool,
}

/// Data delivered by an ACK, collected while the scoreboard is traversed.
#[derive(Default)]
struct Delivered {
    bytes: u64,
    /// Send times of the first and the last acknowledged segment that was sent only once.
    acked: Option<(Instant, Instant)>,
    sacked: Option<(Instant, Instant)>,
    resent_acked: bool,
}

impl Delivered {
    /// Send time of the last of these segments.
    fn newest(&self) -> Option<Instant> {
        match (self.acked.filter(|_| !self.resent_acked), self.sacked) {
            (Some((_, a)), Some((_, s))) => Some(a.max(s)),
            (a, s) => a.or(s).map(|(_, last)| last),
        }
    }
}

impl Sender {
    /// Processes an acknowledgment.
    pub fn on_ack(&mut self, a: &Acknowledgment<'_>, now: Instant) {
        if a.ack > self.next {
            return;
        }
        if self.is_at_rest(a) {
            // The common case at a receiver of data: nothing was sent, so there is nothing to update.
            self.window_end = self.window_end.max(a.ack + a.window_bytes);
            return;
        }
        let old_una = self.una;
        let advanced = a.ack > self.una;
        self.count_duplicate(a, advanced);
        if a.ack >= self.una {
            self.una = a.ack;
            // The window never shrinks: space once offered stays valid (RFC 9293 §3.8.6 discourages shrinking).
            self.window_end = self.window_end.max(a.ack + a.window_bytes);
        }
        let delivered = self.deliver(a, now);
        self.sample_rtt(&delivered, a, advanced, now);
        if advanced {
            self.timeouts_in_row = 0;
        }
        if let Some((start, end)) = a.dsack {
            self.on_dsack(start, end);
        }
        let plain_duplicate =
            a.pure && a.ack == old_una && a.sacks.is_empty() && a.dsack.is_none() && !self.board.is_empty();
        if self.una >= a.ack
            && let Some(probe) = self.probe
        {
            match probe.outcome(a.ack, a.dsack.is_some(), plain_duplicate) {
                ProbeOutcome::Pending => {}
                ProbeOutcome::NoLoss => self.probe = None,
                ProbeOutcome::Repaired => {
                    self.probe = None;
                    self.undo = None;
                    if matches!(self.phase, Phase::Open) {
                        self.stats.recoveries += 1;
                        self.cc.on_loss(now, self.board.in_flight_bytes());
                    }
                }
            }
        }
        self.undo_if_spurious(a, advanced, now);
        if let Phase::Recovery { until, .. } | Phase::Loss { until } = self.phase
            && self.una >= until
        {
            self.phase = Phase::Open;
            self.rack.on_recovery_end();
            if let Some(reno_scoreboard) = &mut self.reno_scoreboard {
                reno_scoreboard.delivered_estimate_bytes = 0;
            }
        }
        let was_open = matches!(self.phase, Phase::Open);
        let lost = self.detect_losses(now);
        let in_flight = self.in_flight_bytes();
        if let Phase::Recovery { prr, .. } = &mut self.phase {
            let safe = advanced && lost == 0 && !was_open;
            prr.on_ack(delivered.bytes, in_flight, safe, u64::from(self.mss));
        }
        if advanced || delivered.bytes > 0 {
            self.notify_controller(advanced, &delivered, lost, now);
        }
        self.set_timers(advanced, now);
    }

    /// Whether nothing is in flight and the ACK can only change the window.
    #[inline]
    fn is_at_rest(&self, a: &Acknowledgment<'_>) -> bool {
        let nothing_sent = self.board.is_empty() && a.ack == self.una && self.una == self.next;
        let nothing_waits = self.rto_at.is_none() && self.early_timer.is_none() && self.undo.is_none();
        let calm = matches!(self.phase, Phase::Open) && self.probe.is_none() && nothing_waits;
        nothing_sent && calm && a.sacks.is_empty() && a.dsack.is_none()
    }

    /// Counts duplicate ACKs (RFC 5681 §2). Without SACK, each stands for a segment that left the network; an acknowledgment
    /// subtracts those it covers.
    fn count_duplicate(&mut self, a: &Acknowledgment<'_>, advanced: bool) {
        let outstanding = self.next - self.una;
        let mss = u64::from(self.mss);
        if advanced {
            self.duplicates_in_row = 0;
            if let Some(reno_scoreboard) = &mut self.reno_scoreboard {
                reno_scoreboard.delivered_estimate_bytes = reno_scoreboard
                    .delivered_estimate_bytes
                    .saturating_sub((a.ack - self.una).saturating_sub(mss));
            }
            return;
        }
        let same_window = a.ack + a.window_bytes <= self.window_end;
        let says_something = !a.sacks.is_empty() || (same_window && a.dsack.is_none());
        if a.pure && a.ack == self.una && outstanding > 0 && says_something {
            self.duplicates_in_row += 1;
            self.stats.duplicate_acks += 1;
            self.stats.triple_duplicates += u64::from(self.duplicates_in_row == 3);
            if let Some(reno_scoreboard) = &mut self.reno_scoreboard {
                reno_scoreboard.delivered_estimate_bytes =
                    (reno_scoreboard.delivered_estimate_bytes + mss).min(outstanding.saturating_sub(mss));
            }
        }
    }

    fn deliver(&mut self, a: &Acknowledgment<'_>, now: Instant) -> Delivered {
        let min_rtt = self.rtt.min();
        let mut d = Delivered::default();
        let Self { board, rack, counting, rate, .. } = self;
        let is_old = |sent_at: Instant| a.echo.is_some_and(|echo| echo < ms_floor(sent_at));
        for (start, end) in a.sacks {
            board.sack(*start, *end, |s| {
                d.bytes += u64::from(s.len);
                if !s.retransmitted {
                    note(&mut d.sacked, s.sent_at);
                }
                rack.on_delivered(s, is_old(s.sent_at), now, min_rtt);
                if let Some(counting) = counting {
                    counting.on_delivered(s);
                }
                if let Some(rate) = rate {
                    rate.on_delivered(s, now);
                }
            });
        }
        board.acknowledge(a.ack, |s| {
            d.bytes += u64::from(s.len);
            if s.retransmitted {
                d.resent_acked = true;
            } else {
                note(&mut d.acked, s.sent_at);
            }
            rack.on_delivered(s, is_old(s.sent_at), now, min_rtt);
            if let Some(counting) = counting {
                counting.on_delivered(s);
            }
            if let Some(rate) = rate {
                rate.on_delivered(s, now);
            }
        });
        d
    }

    /// Takes an RTT sample (Karn's rule with SACK): from cumulatively acknowledged segments if none was sent twice, else from
    /// SACKed ones, else from the timestamp echo (RFC 7323 §4).
    fn sample_rtt(&mut self, d: &Delivered, a: &Acknowledgment<'_>, advanced: bool, now: Instant) {
        let acked = d.acked.filter(|_| !d.resent_acked).or(d.sacked);
        if let (Some((first, _)), Some(newest)) = (acked, d.newest()) {
            self.rtt.sample(now.saturating_since(first), now.saturating_since(newest), now);
        } else if let Some(echo) = a.echo.filter(|_| advanced) {
            let rtt = now.saturating_since(echo).max(Duration::from_millis(1));
            self.rtt.sample(rtt, rtt, now);
        }
    }

    fn on_dsack(&mut self, start: u64, end: u64) {
        let segments = end.saturating_sub(start).div_ceil(u64::from(self.mss)).max(1);
        self.stats.spurious_segments += segments;
        self.rack.on_dsack(self.una, self.next);
        if let Some(undo) = self.undo.as_mut().filter(|undo| end > undo.from) {
            undo.dsacked += segments;
        }
    }

    /// Undoes a reduction if an ACK proves that the original arrived: by a timestamp older than every retransmission in flight
    /// (Eifel, RFC 3522), or by DSACKs for every retransmission (RFC 3708).
    fn undo_if_spurious(&mut self, a: &Acknowledgment<'_>, advanced: bool, now: Instant) {
        let Some(undo) = self.undo else { return };
        let in_recovery = !matches!(self.phase, Phase::Open);
        let by_echo = in_recovery
            && advanced
            && match (self.retransmitting_since, a.echo) {
                (Some(resent), Some(echo)) => echo < ms_floor(resent),
                _ => false,
            };
        let by_dsack = undo.retransmissions > 0 && undo.dsacked >= undo.retransmissions;
        if !by_echo && !by_dsack {
            return;
        }
        self.undo = None;
        self.stats.undos += 1;
        self.cc.on_spurious(now);
        if in_recovery {
            self.phase = Phase::Open;
            self.board.forgive();
            self.rack.on_recovery_end();
        }
        if by_echo {
            self.rack.on_reordering();
        }
    }

    fn notify_controller(&mut self, advanced: bool, d: &Delivered, lost: u64, now: Instant) {
        let min_rtt = self.rtt.min();
        let rate = self.rate.as_mut().and_then(|rate| rate.sample(min_rtt));
        let unreported = core::mem::take(&mut self.unreported_lost_bytes);
        self.cc.on_ack(&Ack {
            now,
            acked_bytes: if advanced { d.bytes } else { 0 },
            delivered_bytes: d.bytes,
            lost_bytes: lost,
            timer_lost_bytes: unreported.saturating_sub(lost),
            in_flight_bytes: self.in_flight_bytes(),
            unacknowledged: self.una,
            next_to_send: self.next,
            rtt: d.newest().map(|sent_at| now.saturating_since(sent_at)),
            srtt: self.rtt.srtt(),
            // The acknowledged data was sent at or before the time at which cwnd was last the limit.
            cwnd_limited: self.una <= self.cwnd_limited_at,
            in_recovery: matches!(self.phase, Phase::Recovery { .. }),
            paced: self.paced,
            rate,
        });
    }

    fn set_timers(&mut self, advanced: bool, now: Instant) {
        if self.board.is_empty() {
            self.rto_at = None;
            self.early_timer = None;
        } else if advanced {
            self.rto_at = Some(now + self.rtt.rto());
            self.arm_probe(now);
        } else if self.board.sacked_segments() > 0 && matches!(self.early_timer, Some((_, EarlyTimer::Probe)))
        {
            // Data is missing: the RACK timer or the timeout handles it.
            self.early_timer = None;
        }
    }
}

/// Rounds down to the timestamp clock, which ticks once per millisecond.
fn ms_floor(at: Instant) -> Instant {
    Instant::from_millis(at.as_millis())
}

fn note(span: &mut Option<(Instant, Instant)>, sent_at: Instant) {
    *span = Some(match *span {
        None => (sent_at, sent_at),
        Some((first, last)) => (first.min(sent_at), last.max(sent_at)),
    });
}
