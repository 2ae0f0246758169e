//! What a node tells.

use super::config::ConfigError;
use anabranch_element::time::Duration;
use anabranch_wire::ip::FlowKey;

/// Why a hold ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ReleaseReason {
    /// The missing ACK came: what was held is superseded, and not sent.
    Filled,
    /// The timer ran out.
    Timer,
    /// What went by the leg of the missing packet after it has arrived: it is lost.
    Lost,
    /// The UE sent data, or FIN: what it said before goes first.
    Data,
    /// SYN or RST: the connection is another one, or none.
    Handshake,
    /// A duplicate SACK: the sender learns that it need not have retransmitted.
    Dsack,
    /// The ECN bits changed.
    Ecn,
    /// The sender may be waiting for this window.
    Window,
    /// An option that says something once, or that cannot be read.
    Option,
    /// An ACK that does not fit what was seen of the flow.
    Resync,
    /// So many ACKs of one flow, or in all, are not held; or the ACK is too long.
    Full,
    /// The flow made room for another one, or was silent for long.
    Evicted,
    /// DIDA was changed or switched off.
    Reconfigured,
}

impl ReleaseReason {
    /// All, in the order of [`Self::index`].
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

    /// Its place in [`Self::ALL`].
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Its name in metrics and logs.
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

/// Something worth telling happened.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A hold ended.
    Released {
        /// The flow, in the direction of its data.
        flow: FlowKey,
        /// Why.
        reason: ReleaseReason,
        /// How many ACKs were held. They were sent, except with [`ReleaseReason::Filled`].
        acks: u32,
        /// From the first one held to the end.
        held: Duration,
    },
    /// A command could not be followed; nothing has changed.
    Refused(ConfigError),
}
