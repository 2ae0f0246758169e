//! Events of a node.

use super::config::ConfigError;
use anabranch_element::time::Duration;
use anabranch_wire::ip::FlowKey;

/// Why a hold ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ReleaseReason {
    /// The missing ACK arrived: the held ACKs are superseded and not sent.
    Filled,
    /// The timer expired.
    Timer,
    /// A packet that followed the missing one on the same leg has arrived: the missing packet is lost.
    Lost,
    /// The UE sent data or FIN: earlier ACKs must be sent first.
    Data,
    /// SYN or RST: a new connection begins, or the connection ends.
    Handshake,
    /// A duplicate SACK, which tells the sender that a retransmission was unnecessary.
    Dsack,
    /// The ECN bits changed.
    Ecn,
    /// The sender may be waiting for the window in this ACK.
    Window,
    /// An option that is not repeated in later ACKs, or that cannot be read.
    Option,
    /// The ACK does not match the state of the flow.
    Resync,
    /// The limit of held ACKs is reached, per flow or in total, or the ACK is too long to be held.
    Full,
    /// The flow was evicted to make room for another, or was idle for too long.
    Evicted,
    /// DIDA was reconfigured or disabled.
    Reconfigured,
}

impl ReleaseReason {
    /// All reasons, in the order of [`Self::index`].
    pub const ALL: [Self; 13] = [
        Self::Filled,
        Self::Timer,
        Self::Lost,
        Self::Data,
        Self::Handshake,
        Self::Dsack,
        Self::Ecn,
        Self::Window,
        Self::Option,
        Self::Resync,
        Self::Full,
        Self::Evicted,
        Self::Reconfigured,
    ];

    /// Index in [`Self::ALL`].
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The name in metrics and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Filled => "filled",
            Self::Timer => "timer",
            Self::Lost => "lost",
            Self::Data => "data",
            Self::Handshake => "handshake",
            Self::Dsack => "dsack",
            Self::Ecn => "ecn",
            Self::Window => "window",
            Self::Option => "option",
            Self::Resync => "resync",
            Self::Full => "full",
            Self::Evicted => "evicted",
            Self::Reconfigured => "reconfigured",
        }
    }
}

/// A noteworthy event.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A hold ended.
    Released {
        /// The flow, in the direction of its data.
        flow: FlowKey,
        /// Why the hold ended.
        reason: ReleaseReason,
        /// Number of held ACKs. They were sent, except with [`ReleaseReason::Filled`].
        acks: u32,
        /// Time from the first held ACK to the end of the hold.
        held: Duration,
    },
    /// A command could not be applied; nothing has changed.
    Refused(ConfigError),
}
