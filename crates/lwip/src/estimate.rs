//! Round trips and window of a flow's sender, measured by the node between both sides.
//!
//! ```text
//!   server ◀──── r_up ────▶ node ◀──── r_down ────▶ UE
//!     data, TSecr = v ─────▶ ·  data, TSval = u ───▶
//!     ◀───── ACK, TSval = v  ·  ◀──── ACK, TSecr = u
//! ```
//!
//! Each part is the time until a timestamp is echoed. Without usable timestamps, `r_down` is the time from one segment
//! to its ACK, unless the segment was retransmitted (Karn) or waited behind a gap: either the ACK advances from that
//! segment, or no gap was seen in the meantime. `r_up` is then the round trip of the handshake. `r_up` is the least of
//! the recent samples, because a sender without data or without window answers late. The sum of both is the sender's RTT.
//!
//! SRTT and RTTVAR follow RFC 6298. Every sample has the full weight, as in Linux, although a round trip may have eight of
//! them. RFC 7323 appendix G would divide the weights by that number. With such a long memory, the node would overstate
//! the timeout of a sender like Linux for eight round trips after the path became faster, and a hold could exceed it.

use super::dida::before;
use super::holding_time::{GAMMA, RoundTrips};
use super::stamps::Stamps;
use anabranch_element::time::{Duration, Instant, nanos};
use anabranch_wire::tcp::{TcpFlags, TcpOption, TcpView};

/// A larger value of `r_up` is adopted after this many samples above the current one.
const UP_PATIENCE: u8 = 8;

/// Most segments that are skipped before the next one is timed.
const MAX_SKIPPED: u8 = 15;

/// The estimates of one flow.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Estimate {
    timed_from: u32,
    timed_end: u32,
    timed_at: Instant,
    stamps: Stamps,
    /// When an echoed timestamp last gave a sample of `r_down`.
    echoed_at: Instant,
    stamp: u32,
    stamped_at: Instant,
    /// When the window began to grow: when the sender was last informed of a gap, or at the flow's first segment.
    pub epoch: Instant,
    up_us: u32,
    up_next_us: u32,
    /// Least `r_down`, microseconds.
    pub down_min_us: u32,
    down_us: u32,
    last_us: u32,
    smoothed_us: u32,
    variation_us: u32,
    /// Largest payload seen, bytes.
    pub mss: u16,
    up_seen: u8,
    /// Number of times in a row that the ACK of the timed segment covered a gap in front of it. That many segments
    /// are skipped before the next one is timed: if the legs alternate, every second segment may be on the leg
    /// whose packets never close a gap.
    misses: u8,
    skips: u8,
    is_timed: bool,
    /// The timed segment may be behind a gap.
    saw_gap: bool,
    is_stamped: bool,
}

fn us(time: Duration) -> u32 {
    u32::try_from(nanos(time) / 1_000).unwrap_or(u32::MAX)
}

fn seconds(us: u32) -> f64 {
    f64::from(us) / 1e6
}

impl Estimate {
    /// A segment is sent down to the UE. `is_retransmission`: it is a retransmission.
    pub(super) fn on_segment(&mut self, tcp: &TcpView<'_>, is_retransmission: bool, now: Instant) {
        if self.epoch == Instant::ZERO {
            self.epoch = now;
        }
        if tcp.flags().contains(TcpFlags::SYN) {
            // A new connection has other sequence numbers and another clock. Its handshake is timed as a whole.
            (self.stamps, self.is_timed) = (Stamps::default(), false);
            return;
        }
        let payload = tcp.payload_len();
        self.mss = self.mss.max(u16::try_from(payload).unwrap_or(u16::MAX));
        if tcp.sequence_len() == 0 {
            return;
        }
        if is_retransmission {
            self.is_timed = false;
        } else if self.skips > 0 {
            self.skips -= 1;
        } else if !self.is_timed {
            (self.is_timed, self.saw_gap, self.timed_at, self.timed_from) = (true, false, now, tcp.seq());
            self.timed_end = tcp.seq().wrapping_add(tcp.sequence_len());
        }
        let Some((value, echo)) = tcp.timestamps() else { return };
        self.stamps.on_segment(value, self.down_us, now);
        if self.is_stamped && !before(echo, self.stamp) {
            self.is_stamped = false;
            self.up_sample(us(now.saturating_since(self.stamped_at)).max(1));
        }
    }

    /// Round trip of the sender's side from the UE's SYN to the SYN-ACK.
    pub(super) fn on_handshake(&mut self, time: Duration) {
        if self.up_us == 0 {
            self.up_us = us(time).max(1);
        }
    }

    /// The UE sends an ACK that advances from `una`.
    pub(super) fn on_advance(&mut self, tcp: &TcpView<'_>, una: u32, now: Instant) {
        let timestamps = tcp.timestamps();
        let trip = timestamps.and_then(|(_, echo)| self.stamps.on_echo(echo, self.down_us, now));
        if let Some(trip) = trip {
            self.echoed_at = now;
            self.down_sample(us(trip).max(1));
        }
        if self.is_timed && !before(tcp.ack(), self.timed_end) {
            self.is_timed = false;
            let is_its_own = !self.saw_gap || !before(una, self.timed_from);
            self.misses = if is_its_own { 0 } else { (self.misses + 1).min(MAX_SKIPPED) };
            self.skips = self.misses;
            if is_its_own && self.echoed_at <= self.timed_at {
                self.down_sample(us(now.saturating_since(self.timed_at)).max(1));
            }
        }
        // The ACK may report the next gap.
        if self.is_timed && tcp.options().map_while(Result::ok).any(|o| matches!(o, TcpOption::Sack(_))) {
            self.on_gap();
        }
        let waits_long = now.saturating_since(self.stamped_at) > Duration::from_secs(1);
        if !self.is_stamped || waits_long {
            // Only a value that was not sent before can be recognised by its echo.
            if let Some((value, _)) = timestamps
                && (value != self.stamp || waits_long)
            {
                (self.is_stamped, self.stamp, self.stamped_at) = (true, value, now);
            }
        }
    }

    /// A duplicate is received: the timed segment may be behind a gap, and then its ACK gives no round trip.
    pub(super) const fn on_gap(&mut self) {
        self.saw_gap = true;
    }

    /// The sender's round trips; `None` before the first measurement.
    pub(super) fn round_trips(&self) -> Option<RoundTrips> {
        (self.smoothed_us > 0).then(|| RoundTrips {
            last_s: seconds(self.last_us),
            smoothed_s: seconds(self.smoothed_us),
            variation_s: seconds(self.variation_us),
        })
    }

    /// The sender's window in segments: the data in flight behind the node, scaled by the ratio of the whole round
    /// trip to `r_down`, since the remaining data is in front of the node.
    pub(super) fn window(&self, in_flight: u32) -> f64 {
        let whole = f64::from(self.up_us.saturating_add(self.down_us));
        let part = f64::from(self.down_us.max(1));
        f64::from(in_flight) / f64::from(self.mss.max(1)) * (whole / part).max(1.0)
    }

    fn up_sample(&mut self, sample: u32) {
        if self.up_us == 0 || sample <= self.up_us {
            (self.up_us, self.up_seen, self.up_next_us) = (sample, 0, 0);
            return;
        }
        let least = if self.up_next_us == 0 { sample } else { self.up_next_us.min(sample) };
        (self.up_next_us, self.up_seen) = (least, self.up_seen + 1);
        if self.up_seen >= UP_PATIENCE {
            (self.up_us, self.up_seen, self.up_next_us) = (least, 0, 0);
        }
    }

    /// RFC 6298 §2, applied to the sum of both sides.
    fn down_sample(&mut self, sample: u32) {
        self.down_us = sample;
        self.down_min_us = if self.down_min_us == 0 { sample } else { self.down_min_us.min(sample) };
        let rtt = sample.saturating_add(self.up_us);
        self.last_us = rtt;
        if self.smoothed_us == 0 {
            (self.smoothed_us, self.variation_us) = (rtt, rtt / 2);
            return;
        }
        let off = f64::from(self.smoothed_us.abs_diff(rtt));
        self.variation_us = (0.75 * f64::from(self.variation_us) + 0.25 * off) as u32;
        let smoothed = (1.0 - GAMMA) * f64::from(self.smoothed_us) + GAMMA * f64::from(rtt);
        self.smoothed_us = (smoothed as u32).max(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_wire::ip::IpPacket;
    use anabranch_wire::tcp::{TcpFlags, TcpHeader, TcpOptions, emit_packet};

    fn packet(seq: u32, ack: u32, len: usize, timestamps: Option<(u32, u32)>) -> Vec<u8> {
        let options = TcpOptions { timestamps, ..TcpOptions::default() };
        let header = TcpHeader { seq, ack, flags: TcpFlags::ACK, options, ..TcpHeader::default() };
        emit_packet("10.0.0.1:1".parse().unwrap(), "10.0.0.2:2".parse().unwrap(), &header, &vec![0; len])
            .unwrap()
    }

    fn view(packet: &[u8]) -> TcpView<'_> {
        TcpView::parse(&packet[IpPacket::parse(packet).unwrap().payload]).unwrap()
    }

    #[test]
    fn both_sides_add_up() {
        let mut e = Estimate::default();
        assert!(e.round_trips().is_none());
        let at = |ms: u64| Instant::from_millis(1000 + ms);
        // In each round: data down, its ACK 30 ms later, and new data 70 ms after that.
        let mut ms = 0;
        for round in 0..50u32 {
            let data = packet(round * 1000, 1, 1000, Some((9, 100 + round)));
            e.on_segment(&view(&data), false, at(ms));
            let ack = packet(1, round * 1000 + 1000, 0, Some((101 + round, 9)));
            e.on_advance(&view(&ack), round * 1000, at(ms + 30));
            ms += 100;
        }
        let trips = e.round_trips().unwrap();
        assert!((trips.smoothed_s - 0.1).abs() < 0.001 && (trips.last_s - 0.1).abs() < 1e-6, "{trips:?}");
        assert!(trips.variation_s < 0.001);
        assert_eq!((e.mss, e.down_min_us), (1000, 30_000));
        // 30 segments behind the node mean 100 in total.
        assert!((e.window(30_000) - 100.0).abs() < 1e-6, "{}", e.window(30_000));
    }

    #[test]
    fn retransmissions_and_segments_behind_a_gap_are_not_timed() {
        let mut e = Estimate::default();
        let (data, next) = (packet(0, 1, 1000, None), packet(1000, 1, 1000, None));
        let (ack, both) = (packet(1, 1000, 0, None), packet(1, 2000, 0, None));
        e.on_segment(&view(&data), false, Instant::from_millis(1));
        e.on_segment(&view(&data), true, Instant::from_millis(400));
        e.on_advance(&view(&ack), 0, Instant::from_millis(401));
        assert!(e.round_trips().is_none(), "sent again");
        e.on_segment(&view(&next), false, Instant::from_millis(500));
        e.on_gap();
        e.on_advance(&view(&both), 0, Instant::from_millis(900));
        assert!(e.round_trips().is_none(), "behind a gap");
        e.on_handshake(Duration::from_millis(20));
        e.on_segment(&view(&next), false, Instant::from_millis(950));
        e.on_segment(&view(&data), false, Instant::from_millis(1000));
        e.on_gap();
        e.on_advance(&view(&both), 0, Instant::from_millis(1010));
        assert!((e.round_trips().unwrap().last_s - 0.03).abs() < 1e-9, "the segment closed the gap");
        e.on_segment(&view(&next), false, Instant::from_millis(1020));
        e.on_advance(&view(&both), 0, Instant::from_millis(1025));
        assert!((e.round_trips().unwrap().last_s - 0.025).abs() < 1e-9, "no gap at all");
    }
}
