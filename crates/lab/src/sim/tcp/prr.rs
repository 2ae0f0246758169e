//! Proportional rate reduction: how much to send during fast recovery. RFC 6937, RFC 9937 (PRR-SSRB with the safe-ACK
//! condition).

/// The state of one recovery.
#[derive(Debug, Clone, Copy)]
pub struct Prr {
    ssthresh: u64,
    recover_flight: u64,
    delivered: u64,
    out: u64,
    cwnd: u64,
}

impl Prr {
    /// Starts a recovery with `flight` bytes outstanding and a target window of `ssthresh` from the congestion controller.
    pub fn new(flight: u64, ssthresh: u64) -> Self {
        Self { ssthresh, recover_flight: flight.max(1), delivered: 0, out: 0, cwnd: 0 }
    }

    /// An ACK delivered `delivered` bytes; `in_flight` is the pipe after it. `safe`: it advanced the cumulative acknowledgment and
    /// marked nothing lost.
    pub fn on_ack(&mut self, delivered: u64, in_flight: u64, safe: bool, mss: u64) {
        self.delivered += delivered;
        let mut count = if in_flight > self.ssthresh {
            let due = u128::from(self.delivered) * u128::from(self.ssthresh);
            let due = u64::try_from(due.div_ceil(u128::from(self.recover_flight))).unwrap_or(u64::MAX);
            due.saturating_sub(self.out)
        } else {
            let conservative = self.delivered.saturating_sub(self.out).max(delivered);
            let limit = if safe { conservative + mss } else { conservative };
            limit.min(self.ssthresh - in_flight)
        };
        if self.out == 0 {
            // The first retransmission is always allowed.
            count = count.max(mss);
        }
        self.cwnd = in_flight + count;
    }

    /// Bytes were sent.
    pub fn on_sent(&mut self, bytes: u64) {
        self.out += bytes;
    }

    /// The window now, in bytes.
    pub fn cwnd(&self) -> u64 {
        self.cwnd
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of RFC 6937: one loss in a window of 20 with β = 0.5. During the recovery, 10 segments are sent for the 19 that
    /// arrive, evenly spread.
    #[test]
    fn the_reduction_is_proportional() {
        let mut prr = Prr::new(20, 10);
        let (mut in_flight, mut sent) = (19u64, Vec::new());
        for _ in 0..19 {
            in_flight -= 1;
            prr.on_ack(1, in_flight, false, 1);
            let n = prr.cwnd().saturating_sub(in_flight);
            prr.on_sent(n);
            in_flight += n;
            sent.push(n);
        }
        assert_eq!(sent.iter().sum::<u64>(), 10);
        assert_eq!(in_flight, 10);
        assert!(sent.iter().all(|n| *n <= 1), "{sent:?}");
    }

    #[test]
    fn after_heavy_loss_it_slow_starts_back_to_ssthresh() {
        let mut prr = Prr::new(20, 10);
        // 15 of 20 are lost: 5 in flight, below ssthresh.
        prr.on_ack(1, 4, false, 1);
        assert_eq!(prr.cwnd(), 5);
        prr.on_sent(1);
        prr.on_ack(1, 4, true, 1);
        assert_eq!(prr.cwnd(), 6, "a safe ACK allows one more");
        prr.on_sent(2);
        prr.on_ack(1, 10, true, 1);
        assert_eq!(prr.cwnd(), 10, "never above ssthresh");
    }
}
