//! Where packets leave the cell: counters, events, and the tunnel header on N3.

use super::bearer::Delivered;
use super::stats::{GnbEvent, LinkStats, PacketTimes};
use super::{Gnb, MAX_EVENTS};
use crate::amc::Direction;
use crate::sdap::DrbId;
use anabranch_element::Port;
use anabranch_element::packet::Packet;
use anabranch_element::time::{Duration, Instant};
use anabranch_wire::gtpu::{GtpuHeader, PduSession};
use std::collections::VecDeque;

/// The exit of one UE's packets in one direction.
pub(super) struct Egress<'a> {
    pub(super) direction: Direction,
    pub(super) ue: u32,
    /// TEID of the UE's uplink at the UPF, and whether N3 uses tunnels.
    pub(super) teid_uplink: u32,
    pub(super) gtpu: bool,
    pub(super) air_delay: Duration,
    /// Whether each packet causes an event.
    pub(super) packet_events: bool,
    pub(super) stats: &'a mut LinkStats,
    pub(super) out: &'a mut VecDeque<(Port, Packet)>,
    pub(super) events: &'a mut VecDeque<GnbEvent>,
}

impl Egress<'_> {
    /// Sends a delivered packet out of the cell.
    #[inline(always)]
    pub(super) fn deliver(&mut self, drb: DrbId, delivered: Delivered, now: Instant) {
        let Delivered { mut packet, qfi, sent } = delivered;
        packet.at = now;
        let bytes = u32::try_from(packet.len()).unwrap_or(u32::MAX);
        self.stats.delivered_packets += 1;
        self.stats.delivered_bytes += u64::from(bytes);
        if let Some(sent) = sent.filter(|_| self.packet_events) {
            let times = PacketTimes {
                direction: self.direction,
                ue: self.ue,
                drb,
                qfi,
                bytes,
                arrived: sent.arrived,
                forwarded: sent.forwarded,
                first_pull: sent.first_pull,
                last_pull: sent.last_pull,
                first_received: sent.first_pull + self.air_delay,
                delivered: now,
            };
            push_event(self.events, GnbEvent::Packet(times));
        }
        let port = match self.direction {
            Direction::Downlink => Gnb::ue(self.ue as u16),
            Direction::Uplink => Gnb::N3,
        };
        if self.direction == Direction::Uplink && self.gtpu {
            let header = GtpuHeader::g_pdu(self.teid_uplink, Some(PduSession::uplink(qfi)));
            let (len, payload) = (header.header_len(), packet.len());
            if header.emit(payload, packet.push_front(len)).is_err() {
                return;
            }
        }
        self.out.push_back((port, packet));
    }
}

/// Queues an event; the oldest is dropped if the queue is full.
#[inline(always)]
pub(super) fn push_event(events: &mut VecDeque<GnbEvent>, event: GnbEvent) {
    if events.len() >= MAX_EVENTS {
        events.pop_front();
    }
    events.push_back(event);
}
