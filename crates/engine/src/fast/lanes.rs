//! The kernel's fast path from the perspective of a worker: lanes are opened for the flows that sessions give
//! away, renewed as long as their session permits it, and their traffic is reported to the session.
//!
//! ```text
//!   Session ─ carry ─▶ Fast: lane ─▶ slot of kern::bpf::FastPath        every 20 ms in traffic: counters ─▶ Session::carried
//!           ─ revoke ─▶      no flow until it is given again          ◀─ false: the lane is closed
//! ```
//!
//! A worker that hangs or dies renews no lanes: within [`LEASE`], all packets take the path through user
//! space again.

use super::{CollectReason, FastStatus, LocalEndpoint};
use crate::worker::TunnelEnd;
use anabranch_atsss::fast::{FastFlow, FastLane, FastTraffic, is_none};
use anabranch_atsss::session::Addresses;
use anabranch_element::time::Instant;
use anabranch_kern::bpf::{FastCounters, FastFlow as Flow, FastPath, FastPathConfig, FastTunnel};
use anabranch_wire::ip::FlowKey;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Time for which the kernel carries flows without a renewal.
const LEASE: Duration = Duration::from_secs(2);
/// Interval of the collections of counters, with and without traffic.
const BUSY: Duration = Duration::from_millis(20);
const IDLE: Duration = Duration::from_millis(50);
/// With more lanes, there are no collections outside these intervals.
const FEW: u64 = 64;
/// Time after which opening a refused lane is tried again.
const AGAIN: Duration = Duration::from_secs(5);

/// Maximum number of flows.
const FLOWS: u32 = 65536;

/// A fast path per worker for the interface `device`, all with the same kernel programs. `paths`: maximum number of lanes.
///
/// # Errors
/// The kernel refuses the programs.
pub fn start(device: &str, ue: bool, paths: u32, workers: usize) -> anyhow::Result<Vec<Fast>> {
    let config = FastPathConfig { ue, slots: paths, flows: FLOWS };
    let kernel = Arc::new(FastPath::attach(device, config)?);
    Ok((0..workers).map(|_| Fast::new(kernel.clone())).collect())
}

/// One worker's share of the kernel's fast path.
pub struct Fast {
    kernel: Arc<FastPath>,
    lanes: HashMap<Addresses, Vec<Lane>>,
    /// Lanes that the kernel refused, with the time before which they are not tried again.
    refused: HashMap<FastLane, Instant>,
    status: FastStatus,
    next: Instant,
}

struct Lane {
    lane: FastLane,
    slot: u32,
    tunnel: FastTunnel,
    reported: FastCounters,
}

impl Lane {
    /// Traffic and losses since the last report. The counters of received packets may be older than those
    /// last reported.
    fn step(&mut self, now: &FastCounters) -> (FastTraffic, u64) {
        let step = |reported: &mut u64, now: u64| {
            let more = now.saturating_sub(*reported);
            *reported += more;
            more
        };
        let reported = &mut self.reported;
        let traffic = FastTraffic {
            tx_packets: step(&mut reported.tx_packets, now.tx_packets),
            tx_bytes: step(&mut reported.tx_bytes, now.tx_bytes),
            rx_packets: step(&mut reported.rx_packets, now.rx_packets),
            rx_bytes: step(&mut reported.rx_bytes, now.rx_bytes),
        };
        (traffic, step(&mut reported.tx_failed, now.tx_failed))
    }
}

impl Fast {
    /// Without lanes.
    fn new(kernel: Arc<FastPath>) -> Self {
        Self {
            kernel,
            lanes: HashMap::new(),
            refused: HashMap::new(),
            status: FastStatus::default(),
            next: Instant::MAX,
        }
    }

    /// Current counters.
    pub fn status(&self) -> FastStatus {
        self.status
    }

    /// Time of the next due [`Fast::collect`].
    pub fn next(&self) -> Option<Instant> {
        (self.status.lanes > 0).then_some(self.next)
    }

    /// Gives a flow to the kernel, by its lane, which is opened if necessary; `local_endpoint` determines the place of
    /// the socket.
    pub fn offload(
        &mut self,
        flow: &FastFlow,
        now: Instant,
        local_endpoint: impl FnOnce() -> Option<LocalEndpoint>,
    ) {
        let Some(key) = kernel_key(&flow.key) else { return };
        let lanes = self.lanes.get(&flow.lane.session);
        let lane = lanes.and_then(|lanes| lanes.iter().find(|lane| lane.lane == flow.lane));
        let slot = match lane.map(|lane| (lane.slot, lane.tunnel.mtu)) {
            Some((slot, mtu)) if mtu == flow.mtu => Some(slot),
            other => {
                if other.is_some() {
                    self.close(&flow.lane);
                }
                self.open(flow, now, local_endpoint)
            }
        };
        if slot.is_some_and(|slot| self.kernel.offload(slot, &key).is_ok()) {
            self.status.flows += 1;
        }
    }

    /// Takes this flow of the session back from the kernel, or all of them.
    pub fn revoke(&mut self, session: Addresses, flow: Option<&FlowKey>) {
        if let Some(flow) = flow {
            if let Some(key) = kernel_key(flow) {
                self.kernel.drop_flow(&key);
            }
            return;
        }
        for lane in self.lanes.get(&session).into_iter().flatten() {
            self.kernel.revoke(lane.slot);
        }
        self.status.taken_back += 1;
    }

    /// Reports traffic to the sessions and renews the lanes that they still permit, if that is due or `why`
    /// requires it.
    pub fn collect(&mut self, end: &mut impl TunnelEnd, now: Instant, why: CollectReason) {
        let asked = why != CollectReason::IfDue && self.status.lanes <= FEW;
        if self.status.lanes == 0 || !(now >= self.next || asked) {
            return;
        }
        let mut busy = false;
        let Self { kernel, lanes, status, .. } = self;
        lanes.retain(|_, of_session| {
            of_session.retain_mut(|lane| {
                let counters = match why {
                    CollectReason::Received => kernel.counters_then(lane.slot),
                    CollectReason::Sending | CollectReason::IfDue => kernel.counters(lane.slot),
                };
                let (traffic, failed) = lane.step(&counters);
                status.failed += failed;
                busy |= !is_none(&traffic);
                add(&mut status.traffic, &traffic);
                let wanted = end.carried(&lane.lane, &traffic, now);
                if wanted {
                    kernel.renew(lane.slot, LEASE);
                } else {
                    kernel.close(lane.slot, &lane.tunnel);
                    status.lanes -= 1;
                }
                wanted
            });
            !of_session.is_empty()
        });
        self.next = now + if busy { BUSY } else { IDLE };
    }

    /// Closes the lanes of an access whose socket was replaced.
    pub fn moved(&mut self, access: u8) {
        let lanes: Vec<FastLane> = self
            .lanes
            .values()
            .flatten()
            .map(|lane| lane.lane)
            .filter(|lane| lane.access == access)
            .collect();
        lanes.iter().for_each(|lane| self.close(lane));
        self.refused.retain(|lane, _| lane.access != access);
    }

    #[cold]
    fn open(
        &mut self,
        flow: &FastFlow,
        now: Instant,
        local_endpoint: impl FnOnce() -> Option<LocalEndpoint>,
    ) -> Option<u32> {
        if self.refused.get(&flow.lane).is_some_and(|again| now < *again) {
            return None;
        }
        let opened = self.try_open(flow, local_endpoint);
        match opened {
            Some((slot, tunnel)) => {
                self.refused.remove(&flow.lane);
                self.kernel.renew(slot, LEASE);
                let lane = Lane { lane: flow.lane, slot, tunnel, reported: FastCounters::default() };
                self.lanes.entry(flow.lane.session).or_default().push(lane);
                self.status.lanes += 1;
                self.next = self.next.min(now + BUSY);
                Some(slot)
            }
            None => {
                // If so many lanes are refused, the cause concerns all of them.
                if self.refused.len() >= 1024 {
                    self.refused.clear();
                }
                self.refused.insert(flow.lane, now + AGAIN);
                None
            }
        }
    }

    fn try_open(
        &self,
        flow: &FastFlow,
        local_endpoint: impl FnOnce() -> Option<LocalEndpoint>,
    ) -> Option<(u32, FastTunnel)> {
        let SocketAddr::V4(remote) = flow.lane.to else { return None };
        let LocalEndpoint { local, interface, mark } = local_endpoint()?;
        let FastLane { session: Addresses { v4, v6 }, .. } = flow.lane;
        let tunnel = FastTunnel { interface, local, remote, mark, mtu: flow.mtu, inner_v4: v4, inner_v6: v6 };
        match self.kernel.open(&tunnel) {
            Ok(slot) => slot.map(|slot| (slot, tunnel)),
            Err(error) => {
                tracing::warn!("the kernel's fast path to {remote}: {error}");
                None
            }
        }
    }

    fn close(&mut self, lane: &FastLane) {
        let Some(of_session) = self.lanes.get_mut(&lane.session) else { return };
        if let Some(at) = of_session.iter().position(|other| other.lane == *lane) {
            let lane = of_session.swap_remove(at);
            self.kernel.close(lane.slot, &lane.tunnel);
            self.status.lanes -= 1;
        }
    }
}

/// The kernel's key of the flow; `None` for flows without ports.
fn kernel_key(key: &FlowKey) -> Option<Flow> {
    let source = SocketAddr::new(key.src, key.src_port);
    let destination = SocketAddr::new(key.dst, key.dst_port);
    (source.is_ipv4() == destination.is_ipv4()).then_some(Flow {
        source,
        destination,
        protocol: key.protocol,
    })
}

fn add(sum: &mut FastTraffic, more: &FastTraffic) {
    sum.tx_packets += more.tx_packets;
    sum.tx_bytes += more.tx_bytes;
    sum.rx_packets += more.rx_packets;
    sum.rx_bytes += more.rx_bytes;
}
