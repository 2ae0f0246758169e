//! The inner side of a worker: its queue of the interface, and the queue of the TCP lane if there is one.

use super::device::Device;
use anabranch_atsss::{PacketSink, tcp_lane};
use anabranch_wire::ip;

/// Source and destination of inner packets.
pub struct Inner {
    /// The interface.
    pub main: Device,
    /// The interface of the TCP lane; it receives only packets to addresses of the lane.
    pub lane: Option<Device>,
}

impl Inner {
    /// Writes queued packets; called at the end of every batch.
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
        // Otherwise the lane has just been closed; its addresses have no meaning to the host.
    }
}

#[inline]
fn for_lane(packet: &[u8]) -> bool {
    packet.first().is_some_and(|first| first >> 4 == 6)
        && ip::src_dst(packet).is_ok_and(|(_, to)| tcp_lane::contains(to))
}
