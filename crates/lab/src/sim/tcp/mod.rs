//! The simulator's TCP: sans-IO, deterministic, close to Linux where Linux and the RFCs differ.
//!
//! | file | what | source |
//! |---|---|---|
//! | `connection` | handshake, options, segments in and out, close | RFC 9293, 7323 |
//! | `sender.rs`, `ack.rs` | what to send; what an ACK does | RFC 5681, 6675, 1122 (Nagle) |
//! | `scoreboard.rs` | what is in flight, SACKed, lost | RFC 6675 |
//! | `rack.rs` | loss detection by time, tail loss probes | RFC 8985 |
//! | `dupthresh.rs` | loss detection by counting, as before RACK | RFC 5681, 6675, 6582 |
//! | `prr.rs` | window during fast recovery | RFC 6937, 9937 |
//! | `rto.rs` | RTT and timeout | RFC 6298 |
//! | `rate.rs` | delivery rate | draft-ietf-ccwg-bbr |
//! | `receiver.rs` | reassembly, (D)SACK, delayed ACK, window | RFC 2018, 2883, 5681 |
//! | `telemetry.rs` | traces, reports | RFC 9197, docs/int-cc.md |
//! | `ranges.rs` | sets of sequence numbers | |
//!
//! What is not modelled is listed in docs/simulator.md.

pub mod ack;
pub mod connection;
pub mod dupthresh;
pub mod prr;
pub mod rack;
pub mod ranges;
pub mod rate;
pub mod receiver;
pub mod rto;
pub mod scoreboard;
pub mod sender;
pub mod telemetry;

pub use connection::{Closed, Connection};
pub use dupthresh::Recovery;
pub use telemetry::{Telemetry, TelemetryStats};

use anabranch_cc::Algorithm;
use anabranch_cc::int::IntConfig;
use anabranch_element::time::Duration;

/// How an end of a connection behaves.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Congestion control of what this end sends.
    pub congestion_control: Algorithm,
    /// How what this end sends is found to be lost.
    pub recovery: Recovery,
    /// Whether to offer and use selective acknowledgments (RFC 2018). Without them losses are found as in
    /// RFC 6582, whatever `recovery` says.
    pub sack: bool,
    /// Largest IP packet, bytes; the MSS follows from it.
    pub mtu_bytes: u16,
    /// Initial window, segments.
    pub initial_window_segments: u32,
    /// Whether CUBIC's slow start may end before a loss (HyStart).
    pub hystart: bool,
    /// Whether segments are spread over the round trip.
    pub pacing: bool,
    /// Most that is sent where it is, bit/s (`SO_MAX_PACING_RATE`).
    pub max_pacing_bps: Option<u64>,
    /// Whether what an application writes little by little is sent at once (`TCP_NODELAY`).
    pub nodelay: bool,
    /// Largest receive window, bytes; Linux's default bound is 6 MiB.
    pub receive_buffer_bytes: u64,
    /// Longest delay of an ACK; 40 ms in Linux.
    pub ack_delay: Duration,
    /// Whether to offer timestamps (RFC 7323).
    pub timestamps: bool,
    /// Whether data carries traces, and ACKs reports. IPv6 only.
    pub telemetry: Option<Telemetry>,
    /// What bounds the controllers that take reports.
    pub int: IntConfig,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            congestion_control: Algorithm::Cubic,
            recovery: Recovery::Rack,
            sack: true,
            mtu_bytes: 1500,
            initial_window_segments: 10,
            hystart: true,
            pacing: false,
            max_pacing_bps: None,
            nodelay: false,
            receive_buffer_bytes: 6 << 20,
            ack_delay: Duration::from_millis(40),
            timestamps: true,
            telemetry: None,
            int: IntConfig::default(),
        }
    }
}

/// Counters and estimates of the sending half.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TcpStats {
    /// Data segments sent, retransmissions included.
    pub segments_sent: u64,
    /// Payload bytes sent for the first time.
    pub bytes_sent: u64,
    /// Payload bytes acknowledged.
    pub acked_bytes: u64,
    /// Segments sent again in fast recovery.
    pub retransmitted_fast: u64,
    /// Segments sent again as tail loss probes.
    pub retransmitted_probe: u64,
    /// Segments sent again after a timeout.
    pub retransmitted_timeout: u64,
    /// Segments that arrived twice, by the receiver's DSACKs.
    pub spurious_segments: u64,
    /// Pure ACKs that repeated the number of the one before while data was outstanding.
    pub duplicate_acks: u64,
    /// Times the third of them in a row arrived.
    pub triple_duplicates: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// Tail loss probes, those with new data included.
    pub probes: u64,
    /// Reductions of the window on loss, timeouts not counted.
    pub recoveries: u64,
    /// Reductions taken back because nothing had been lost.
    pub undos: u64,
    /// Congestion window in force.
    pub cwnd_bytes: u64,
    /// Slow-start threshold.
    pub ssthresh_bytes: u64,
    /// Bytes believed to be in the network.
    pub in_flight_bytes: u64,
    /// Smoothed RTT.
    pub srtt: Duration,
    /// Smallest RTT.
    pub min_rtt: Duration,
    /// Retransmission timeout with back-off.
    pub rto: Duration,
}

impl TcpStats {
    /// Segments sent again for whatever reason; what Linux counts as `TCPRetransSegs`.
    #[must_use]
    pub const fn retransmissions(&self) -> u64 {
        self.retransmitted_fast + self.retransmitted_probe + self.retransmitted_timeout
    }
}
