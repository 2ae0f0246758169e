//! TCP of the simulator: sans-IO, deterministic, as Linux where Linux and the RFCs differ.
//!
//! | file | what | source |
//! |---|---|---|
//! | `connection` | handshake, options, segments in and out, closing | RFC 9293, 7323 |
//! | `sender.rs`, `ack.rs` | what to send; processing of ACKs | RFC 5681, 6675, 1122 (Nagle) |
//! | `scoreboard.rs` | data in flight, SACKed, lost | RFC 6675 |
//! | `rack.rs` | loss detection by time, tail loss probes | RFC 8985 |
//! | `dupthresh.rs` | loss detection by counting, as before RACK | RFC 5681, 6675, 6582 |
//! | `prr.rs` | window during fast recovery | RFC 6937, 9937 |
//! | `rto.rs` | RTT and timeout | RFC 6298 |
//! | `rate.rs` | delivery rate | draft-ietf-ccwg-bbr |
//! | `receiver.rs` | reassembly, (D)SACK, delayed ACK, window | RFC 2018, 2883, 5681 |
//! | `telemetry.rs` | traces, reports | RFC 9197, docs/int-cc.md |
//! | `ranges.rs` | sets of sequence numbers | |
//!
//! docs/simulator.md lists what is not modelled.

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

/// Options of one end of a connection.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Congestion control for data sent by this end.
    pub congestion_control: Algorithm,
    /// Loss detection for data sent by this end.
    pub recovery: Recovery,
    /// Whether to offer and use selective acknowledgments (RFC 2018). Without them, losses are detected as in RFC 6582, whatever
    /// `recovery` is.
    pub sack: bool,
    /// Maximum size of an IP packet, bytes; determines the MSS.
    pub mtu_bytes: u16,
    /// Initial window, segments.
    pub initial_window_segments: u32,
    /// Whether CUBIC may leave slow start before a loss (HyStart).
    pub hystart: bool,
    /// Whether segments are paced over the RTT.
    pub pacing: bool,
    /// Maximum pacing rate, bit/s (`SO_MAX_PACING_RATE`).
    pub max_pacing_bps: Option<u64>,
    /// Whether small writes of the application are sent at once (`TCP_NODELAY`).
    pub nodelay: bool,
    /// Maximum receive window, bytes; Linux's default bound is 6 MiB.
    pub receive_buffer_bytes: u64,
    /// Maximum delay of an ACK; 40 ms in Linux.
    pub ack_delay: Duration,
    /// Whether to offer timestamps (RFC 7323).
    pub timestamps: bool,
    /// Whether data carries traces and ACKs carry reports. IPv6 only.
    pub telemetry: Option<Telemetry>,
    /// Bounds of the controllers that use reports.
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
    /// Segments retransmitted in fast recovery.
    pub retransmitted_fast: u64,
    /// Segments retransmitted as tail loss probes.
    pub retransmitted_probe: u64,
    /// Segments retransmitted after a timeout.
    pub retransmitted_timeout: u64,
    /// Segments received twice, according to DSACKs.
    pub spurious_segments: u64,
    /// Pure ACKs that repeated the previous number while data was outstanding.
    pub duplicate_acks: u64,
    /// Number of times the third consecutive duplicate arrived.
    pub triple_duplicates: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// Tail loss probes, those with new data included.
    pub probes: u64,
    /// Reductions of the window on loss, timeouts not counted.
    pub recoveries: u64,
    /// Reductions undone because nothing had been lost.
    pub undos: u64,
    /// Congestion window in use.
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
    /// All retransmitted segments; Linux counts them as `TCPRetransSegs`.
    #[must_use]
    pub const fn retransmissions(&self) -> u64 {
        self.retransmitted_fast + self.retransmitted_probe + self.retransmitted_timeout
    }
}
