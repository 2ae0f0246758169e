//! The inner side of a worker: its queue of the interface, and that of the TCP lane while there is one.

use super::device::Device;
use anabranch_atsss::{PacketSink, tcp_lane};
use anabranch_wire::ip;

/// Where inner packets come from and go to.
pub struct Inner {
    /// The interface.
    pub main: Device,
    /// That of the TCP lane: what is sent to an address of the lane goes there, and nothing else.
    pub lane: Option<Device>,
}

impl Inner {
    /// Writes what was held back; called at the end of every batch.
    pub fn flush(&mut self) {
        self.main.flush();
        if let Some(lane) = &mut self.lane {
            lane.flush();
        }
    }
}

impl PacketSink for Inner {
    fn deliver(&mut self, packet: &mut [u8]) {
        if !for_lane(packet) {
            self.main.deliver(packet);
        } else if let Some(lane) = &mut self.lane {
            lane.deliver(packet);
        }
        // Else the lane was closed a moment ago: its addresses mean nothing to the host.
    }
}

#[inline]
fn for_lane(packet: &[u8]) -> bool {
    packet.first().is_some_and(|first| first >> 4 == 6)
        && ip::src_dst(packet).is_ok_and(|(_, to)| tcp_lane::contains(to))
}
