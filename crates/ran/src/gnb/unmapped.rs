//! Detection of packets that are always dropped, because they match no rule of `qos` and no QoS flow takes them.
//!
//! This is not a configuration error, because a UE may be meant to carry some traffic only, but without a warning it loses the
//! rest silently.

use super::Gnb;
use super::config::N3;
use crate::amc::Direction;
use std::fmt;

/// The packets of a UE that match no rule are dropped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnmappedPackets {
    /// Name of the UE.
    pub ue: String,
    /// Their QFI, the UE's `default_qfi`.
    pub qfi: u8,
}

impl fmt::Display for UnmappedPackets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ue, qfi } = self;
        write!(
            f,
            "ue \"{ue}\": packets that match no rule of qos are dropped, because no flow of sdap has QFI {qfi}: add the flow, give \
             one unmapped = true, or set default_qfi to the QFI of a flow"
        )
    }
}

impl Gnb {
    /// The UEs whose packets are dropped if they match no rule, in a direction in which rules determine the QoS flow.
    #[must_use]
    pub fn unmapped_packets(&self) -> Vec<UnmappedPackets> {
        let directions = match self.n3 {
            N3::Ip => &Direction::ALL[..],
            // In the downlink, the UPF determines the QoS flow.
            N3::Gtpu => &[Direction::Uplink],
        };
        let dropped = |ue: &super::Ue| directions.iter().find_map(|direction| ue.unmapped_qfi(*direction));
        let unmapped = |ue| Some(UnmappedPackets { qfi: dropped(ue)?, ue: ue.name.clone() });
        self.ues.iter().filter_map(unmapped).collect()
    }
}
