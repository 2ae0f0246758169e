//! Adapters of the tunnel ends of crate `atsss` to the data path.

use super::deferred::{DeferredTask, ExecutionContext};
use super::udp::Sockets;
use super::worker::{TunnelEnd, Worker};
use anabranch_atsss::fast::{FastLane, FastTraffic};
use anabranch_atsss::ue::{Ue, UeEvent};
use anabranch_atsss::upf::{Upf, UpfEvent};
use anabranch_atsss::{DatagramSink, FixedHasher, PacketSink, PathId, tcp_lane};
use anabranch_element::time::Instant;
use anabranch_wire::ip;
use anabranch_wire::tunnel::InnerHeader;
use arc_swap::{ArcSwap, Cache};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

impl TunnelEnd for Ue {
    type Event = UeEvent;

    fn run(worker: Worker<Self>) -> anyhow::Result<()> {
        worker.run_until_stopped()
    }

    fn inner(&mut self, packet: &mut [u8], now: Instant, out: &mut impl DatagramSink) {
        self.uplink(packet, now, out);
    }

    fn datagram(
        &mut self,
        access: PathId,
        from: SocketAddr,
        datagram: &mut [u8],
        now: Instant,
        _out: &mut impl DatagramSink,
        inner: &mut impl PacketSink,
    ) -> bool {
        Ue::datagram(self, access, from, datagram, now, inner);
        // Each of its sockets has one peer and one address.
        false
    }

    fn poll(&mut self, now: Instant, out: &mut impl DatagramSink, inner: &mut impl PacketSink) {
        Ue::poll(self, now, out, inner);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        Ue::poll_timeout(self).map(|(at, _)| at)
    }

    fn poll_event(&mut self) -> Option<UeEvent> {
        Ue::poll_event(self)
    }

    fn carried(&mut self, lane: &FastLane, traffic: &FastTraffic, now: Instant) -> bool {
        Ue::carried(self, lane, traffic, now)
    }
}

/// Index of the worker of each virtual address.
pub type OwnerTable = HashMap<IpAddr, u8, FixedHasher>;

/// One shard of the UPF, with the distribution of UEs to the other shards.
pub struct UpfEnd {
    /// The shard.
    pub upf: Upf,
    workers: usize,
    owners: Option<Cache<Arc<ArcSwap<OwnerTable>>, Arc<OwnerTable>>>,
}

impl UpfEnd {
    /// A shard among `workers`; `owners` is used only if there are several.
    pub fn new(mut upf: Upf, workers: usize, owners: &Arc<ArcSwap<OwnerTable>>) -> Self {
        upf.defer_handshakes();
        let owners = (workers > 1).then(|| Cache::new(owners.clone()));
        Self { upf, workers, owners }
    }

    fn owner_of_address(&mut self, address: IpAddr) -> Option<usize> {
        self.owners
            .as_mut()?
            .load()
            .get(&tcp_lane::session_address(address))
            .map(|&worker| usize::from(worker))
    }
}

impl TunnelEnd for UpfEnd {
    type Event = UpfEvent;
    const DEFERS: bool = true;

    fn run(worker: Worker<Self>) -> anyhow::Result<()> {
        worker.run_until_stopped()
    }

    fn inner(&mut self, packet: &mut [u8], now: Instant, out: &mut impl DatagramSink) {
        self.upf.downlink(packet, now, out);
    }

    fn datagram(
        &mut self,
        access: PathId,
        from: SocketAddr,
        datagram: &mut [u8],
        now: Instant,
        out: &mut impl DatagramSink,
        inner: &mut impl PacketSink,
    ) -> bool {
        self.upf.datagram(access, from, datagram, now, out, inner)
    }

    fn poll(&mut self, now: Instant, out: &mut impl DatagramSink, inner: &mut impl PacketSink) {
        self.upf.poll(now, out, inner);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.upf.poll_timeout().map(|(at, _)| at)
    }

    fn poll_event(&mut self) -> Option<UpfEvent> {
        self.upf.poll_event()
    }

    fn carried(&mut self, lane: &FastLane, traffic: &FastTraffic, now: Instant) -> bool {
        self.upf.carried(lane, traffic, now)
    }

    fn poll_work(&mut self) -> Option<DeferredTask<Self>> {
        let handshake = self.upf.poll_handshake()?;
        Some(Box::new(move |place| {
            let computed = match place {
                ExecutionContext::DeferredThread => handshake.compute(),
                ExecutionContext::Worker => handshake.read(),
            };
            Box::new(move |end: &mut Self, now, out: &mut Sockets| {
                end.upf.finish_handshake(computed, now, out)
            })
        }))
    }

    fn drop_work(&mut self) {
        self.upf.drop_handshake();
    }

    /// Like `kern::reuseport`, except that plain data is looked up instead of guessed.
    fn owner_of_datagram(&mut self, datagram: &[u8]) -> Option<usize> {
        match datagram.first()? >> 4 {
            0x4 => {
                let index = datagram.get(4..8)?.try_into().map(u32::from_be_bytes).ok()?;
                Some(index as usize % self.workers)
            }
            0x1 => Some(usize::from(*datagram.get(3)?) % self.workers),
            0x8 => {
                let (source, _) = ip::src_dst(InnerHeader::packet(datagram)?).ok()?;
                self.owner_of_address(source)
            }
            _ => None,
        }
    }

    fn owner_of_packet(&mut self, packet: &[u8]) -> Option<usize> {
        let (_, destination) = ip::src_dst(packet).ok()?;
        self.owner_of_address(destination)
    }
}
