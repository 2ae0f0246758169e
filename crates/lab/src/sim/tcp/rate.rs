//! Delivery-rate samples for controllers that use them (draft-ietf-ccwg-bbr §4.1).

use super::scoreboard::Segment;
use anabranch_cc::RateSample;
use anabranch_element::time::{Duration, Instant};

/// State of the connection stored with a segment when it is sent.
#[derive(Debug, Clone, Copy, Default)]
pub struct SentState {
    delivered_bytes: u64,
    delivered_at: Instant,
    first_sent_at: Instant,
    lost_bytes: u64,
    app_limited: bool,
}

/// The latest transmission delivered since the last sample.
#[derive(Debug, Clone, Copy)]
struct Newest {
    transmission: u64,
    sent_at: Instant,
    sent_state: SentState,
}

/// Counts deliveries and derives rate samples.
#[derive(Debug, Clone, Default)]
pub struct DeliveryRate {
    delivered_bytes: u64,
    delivered_at: Instant,
    first_sent_at: Instant,
    lost_bytes: u64,
    /// The rate is application-limited until this much has been delivered.
    app_limited_until: Option<u64>,
    newest: Option<Newest>,
}

impl DeliveryRate {
    /// The state to store with a segment that is sent now.
    pub fn on_sent(&mut self, nothing_in_flight: bool, now: Instant) -> SentState {
        if nothing_in_flight {
            self.first_sent_at = now;
            self.delivered_at = now;
        }
        SentState {
            delivered_bytes: self.delivered_bytes,
            delivered_at: self.delivered_at,
            first_sent_at: self.first_sent_at,
            lost_bytes: self.lost_bytes,
            app_limited: self.app_limited_until.is_some(),
        }
    }

    /// A segment was delivered by an ACK at `now`.
    pub fn on_delivered(&mut self, segment: &Segment, now: Instant) {
        self.delivered_bytes += u64::from(segment.len);
        self.delivered_at = now;
        if self.newest.is_none_or(|newest| segment.transmission > newest.transmission) {
            let Segment { transmission, sent_at, sent_state, .. } = *segment;
            self.newest = Some(Newest { transmission, sent_at, sent_state });
        }
    }

    /// Bytes were marked lost.
    pub fn on_lost(&mut self, bytes: u64) {
        self.lost_bytes += bytes;
    }

    /// The application has nothing to send although cwnd has room.
    pub fn on_app_limited(&mut self, in_flight_bytes: u64) {
        self.app_limited_until = Some((self.delivered_bytes + in_flight_bytes).max(1));
    }

    /// The sample of the ACK whose deliveries were reported since the previous call.
    pub fn sample(&mut self, min_rtt: Duration) -> Option<RateSample> {
        let newest = self.newest.take()?;
        let sent = newest.sent_state;
        if self.app_limited_until.is_some_and(|until| self.delivered_bytes > until) {
            self.app_limited_until = None;
        }
        self.first_sent_at = newest.sent_at;
        let send_elapsed = newest.sent_at.saturating_since(sent.first_sent_at);
        let ack_elapsed = self.delivered_at.saturating_since(sent.delivered_at);
        let interval = send_elapsed.max(ack_elapsed);
        // An interval shorter than the RTT is a burst of ACKs and gives no rate.
        (interval >= min_rtt && !interval.is_zero()).then(|| RateSample {
            delivered_bytes: self.delivered_bytes - sent.delivered_bytes,
            interval,
            prior_delivered_bytes: sent.delivered_bytes,
            lost_bytes: self.lost_bytes - sent.lost_bytes,
            app_limited: sent.app_limited,
        })
    }

    /// Total bytes delivered.
    pub fn delivered_bytes(&self) -> u64 {
        self.delivered_bytes
    }
}
