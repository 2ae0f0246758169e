//! The transport protocols and their features (RFC 8303, RFC 8923; RFC 9623 §10 maps them to the API).

use super::Preference;
use super::properties::Properties;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;

/// A transport protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// TCP (RFC 9293).
    Tcp,
    /// QUIC (RFC 9000).
    Quic,
    /// Multipath TCP (RFC 8684).
    Mptcp,
    /// UDP (RFC 768).
    Udp,
}

/// A feature of a transport protocol, named after its selection property (RFC 9622 §6.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Feature {
    /// Data arrives without loss, §6.2.1.
    Reliability,
    /// Message boundaries are kept, §6.2.2.
    PreserveMsgBoundaries,
    /// Reliability can be chosen message by message, §6.2.3.
    PerMsgReliability,
    /// Data arrives in order, §6.2.4.
    PreserveOrder,
    /// A first message may be sent before the handshake has completed, §6.2.5.
    ZeroRttMsg,
    /// Streams over one connection, §6.2.6.
    Multistreaming,
    /// The checksum covers all data sent, §6.2.7.
    FullChecksumSend,
    /// The checksum covers all data received, §6.2.8.
    FullChecksumRecv,
    /// Congestion control, §6.2.9.
    CongestionControl,
    /// Keep-alive packets, §6.2.10.
    KeepAlive,
    /// ICMP errors are reported, §6.2.17.
    SoftErrorNotify,
    /// The initiator may read before it has sent, §6.2.18.
    ActiveReadBeforeSend,
}

impl Feature {
    /// All features, in the order of RFC 9622.
    pub const ALL: [Self; 12] = [
        Self::Reliability,
        Self::PreserveMsgBoundaries,
        Self::PerMsgReliability,
        Self::PreserveOrder,
        Self::ZeroRttMsg,
        Self::Multistreaming,
        Self::FullChecksumSend,
        Self::FullChecksumRecv,
        Self::CongestionControl,
        Self::KeepAlive,
        Self::SoftErrorNotify,
        Self::ActiveReadBeforeSend,
    ];

    /// The name of the property.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Reliability => "reliability",
            Self::PreserveMsgBoundaries => "preserveMsgBoundaries",
            Self::PerMsgReliability => "perMsgReliability",
            Self::PreserveOrder => "preserveOrder",
            Self::ZeroRttMsg => "zeroRttMsg",
            Self::Multistreaming => "multistreaming",
            Self::FullChecksumSend => "fullChecksumSend",
            Self::FullChecksumRecv => "fullChecksumRecv",
            Self::CongestionControl => "congestionControl",
            Self::KeepAlive => "keepAlive",
            Self::SoftErrorNotify => "softErrorNotify",
            Self::ActiveReadBeforeSend => "activeReadBeforeSend",
        }
    }

    /// The application's preference for it.
    #[must_use]
    pub const fn wanted(self, p: &Properties) -> Preference {
        match self {
            Self::Reliability => p.reliability,
            Self::PreserveMsgBoundaries => p.preserve_msg_boundaries,
            Self::PerMsgReliability => p.per_msg_reliability,
            Self::PreserveOrder => p.preserve_order,
            Self::ZeroRttMsg => p.zero_rtt_msg,
            Self::Multistreaming => p.multistreaming,
            Self::FullChecksumSend => p.full_checksum_send,
            Self::FullChecksumRecv => p.full_checksum_recv,
            Self::CongestionControl => p.congestion_control,
            Self::KeepAlive => p.keep_alive,
            Self::SoftErrorNotify => p.soft_error_notify,
            Self::ActiveReadBeforeSend => p.active_read_before_send,
        }
    }
}

impl Protocol {
    /// All protocols, in the order of equal ranks: the most widely usable first.
    pub const ALL: [Self; 4] = [Self::Tcp, Self::Quic, Self::Mptcp, Self::Udp];

    /// The name in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Quic => "quic",
            Self::Mptcp => "mptcp",
            Self::Udp => "udp",
        }
    }

    /// Whether one connection can use several paths.
    #[must_use]
    pub const fn is_multipath(self) -> bool {
        matches!(self, Self::Mptcp)
    }

    /// Its features as implemented by Linux and this program's API: no TCP Fast Open (few servers support it), byte streams over
    /// QUIC.
    #[must_use]
    pub fn features(self) -> BTreeSet<Feature> {
        use Feature as F;
        let stream: &[F] = &[
            F::Reliability,
            F::PreserveOrder,
            F::FullChecksumSend,
            F::FullChecksumRecv,
            F::CongestionControl,
            F::KeepAlive,
        ];
        let more: &[F] = match self {
            Self::Tcp => &[F::SoftErrorNotify, F::ActiveReadBeforeSend],
            Self::Mptcp => &[F::ActiveReadBeforeSend],
            Self::Quic => &[F::Multistreaming, F::ZeroRttMsg],
            Self::Udp => {
                return BTreeSet::from([
                    F::PreserveMsgBoundaries,
                    F::ZeroRttMsg,
                    F::FullChecksumSend,
                    F::FullChecksumRecv,
                    F::SoftErrorNotify,
                ]);
            }
        };
        stream.iter().chain(more).copied().collect()
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A protocol supported by this host, with its features.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stack {
    /// Transport protocol.
    pub protocol: Protocol,
    /// Features that the implementation provides.
    pub features: BTreeSet<Feature>,
}

impl From<Protocol> for Stack {
    fn from(protocol: Protocol) -> Self {
        Self { protocol, features: protocol.features() }
    }
}
