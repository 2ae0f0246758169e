//! Path state: probes, failure detection, loss and rate, flap control.
//!
//! Source: JUNCTION §V-E "Continuous path measurements" and Fig. 8. What the paper leaves open (the law
//! between packet rate and probe rate, when a path is down, when it is back) is decided here; the
//! drawings and the numbers behind each choice are in `docs/atsss-paths.md`.
//!
//! ```text
//!          UE                                  UPF
//!     w  ──┤ request(id, w) ─────────────────▶ ├── x
//!          │                                   │
//!     y  ──┤ ◀──────────────── reply(id, x, w) ┤         RTT at the UE  = y − w
//!          │                                   │
//!          └ ack(id, y, x) ──────────────────▶ ├── z     RTT at the UPF = z − x
//! ```
//!
//! ```text
//!             an answer                  silence · missed probes · carrier · notified · admin
//!   Fresh ───────────────▶  Up ─────────────────────────────────────────────────▶ Down(reason)
//!                            ▲                                                        │
//!                            └────────────────────────────────────────────────────────┘
//!                              n consecutive answers (UPF: or notified)
//! ```
//!
//! **When a path is probed** (UE). Idle: once a second. In traffic, which it is for 200 ms after a packet
//! in either direction: 40 ms after the last probe, or 20 ms if 50 packets have passed since. A probe whose
//! answer is late (by the smoothed RTT and four deviations) is repeated every 1/40 of the silence limit
//! until something is heard, so that no verdict rests on a few packets that a lossy link may drop.
//!
//! **When it is down.** `T = max(3·RTT, 200 ms)`. In traffic: no reply for `T`. Idle: three probes in a
//! row, each with its repeats, unanswered for `T`. At the UPF: told so; or for `T` + 40 ms no proof of
//! arrival while eight datagrams or more are out; or nothing heard for four idle intervals + `T`.
//!
//! **When it is up again.** Three consecutive answers; a path that was never down needs one.

mod flap;
mod meter;
mod monitor;
mod params;
mod rtt;

#[cfg(test)]
mod bench;
#[cfg(test)]
mod laws;

use anabranch_element::time::Duration;
pub use anabranch_steer::DownReason;
pub use anabranch_steer::measure::TrainBudget;
pub use flap::{FlapControl, FlapEvent, FlapParams};
pub use monitor::PathMonitor;
pub use params::{PathParamsError, ProbeParams};
pub use rtt::RttEstimate;

/// Which end of the tunnel a monitor sits at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// Asks.
    Ue,
    /// Answers.
    Upf,
}

/// A change of a path worth acting on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathEvent {
    /// The path may be used. Read [`PathMonitor::rtt`] for its round-trip time.
    Up,
    /// The path must not be used; tell the far end on another one.
    Down(DownReason),
    /// A new round-trip time of a path that is up, not smoothed.
    Rtt(Duration),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_of_reasons_round_trip() {
        for reason in DownReason::ALL {
            assert_eq!(DownReason::from_code(reason.code()), Some(reason));
        }
        assert_eq!(DownReason::from_code(0), None);
        assert_eq!(DownReason::from_code(7), None);
    }
}
