//! Path state: probes, failure detection, loss, rate, and flap control.
//!
//! Source: JUNCTION §V-E, "Continuous path measurements", and Fig. 8. The paper does not specify how the
//! probe rate follows the packet rate, or when a path is down and up again. Those rules are ours;
//! `docs/atsss-paths.md` explains them and their values.
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
//! **When a path is probed** (UE). Idle: once a second. In traffic, which is for 200 ms after a packet in
//! either direction: 40 ms after the last probe, or 20 ms if 50 packets have passed since. A probe whose
//! answer is late (by the smoothed RTT and four deviations) is repeated every 1/40 of the silence limit until
//! anything is received, so that no decision depends on a few packets that a lossy link may drop.
//!
//! **When it is down.** `T = max(3·RTT, 200 ms)`. At the UE in traffic: no reply for `T`. At the UE when
//! idle: three probes in a row, each with its repeats, unanswered for `T`. At the UPF: notified by the UE; or
//! no proof of arrival for `T` + 40 ms after eight datagrams or more; or nothing received for four idle
//! intervals + `T`.
//!
//! **When it is up again.** After three consecutive answers. A new path needs only one.

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

/// The end of the tunnel at which a monitor is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// Sends probes.
    Ue,
    /// Answers probes.
    Upf,
}

/// A change of a path that requires an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathEvent {
    /// The path may be used. [`PathMonitor::rtt`] has its round-trip time.
    Up,
    /// The path must not be used. Notify the far end on another path.
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
