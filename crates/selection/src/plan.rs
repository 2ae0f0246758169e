//! The plan of a candidate: the steps on the host that make its connection use its slice, each of which can be undone. This module
//! executes nothing.
//!
//! This is the only definition of steps and answers: the agent writes them (`POST /connections/select`), and `anabranch-taps` and
//! the lab read them.

use super::ursp::Matched;
pub use super::window::InitialWindow;
use super::window::{WindowInput, bucket, initial_window};
use super::{
    Candidate, CapacityProfile, Host, MultipathPolicy, Need, Properties, Protocol, Pruned, Selection,
    SliceFacts,
};
use anabranch_element::time::Instant;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// Settings for plans, chosen by the owner of the host.
#[derive(Debug, Clone, PartialEq)]
pub struct PlanConfig {
    /// α of Eq. 1; above 0, at most 1.
    pub alpha: f64,
    /// Maximum payload of a segment, in bytes.
    pub segment_bytes: u32,
    /// The initial receive window of the peer, if known, in bytes.
    pub peer_window_bytes: Option<u64>,
    /// The kernel's name of the congestion control.
    pub congestion_control: String,
}

impl Default for PlanConfig {
    fn default() -> Self {
        Self { alpha: 0.5, segment_bytes: 1448, peer_window_bytes: None, congestion_control: "cubic".into() }
    }
}

/// One step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "action", rename_all = "kebab-case")]
pub enum Action {
    /// Create the socket with Multipath TCP (`IPPROTO_MPTCP`). Without this step, TCP is plain TCP.
    Mptcp,
    /// Mark the packets; a rule sends packets with the mark to a routing table.
    Mark {
        /// The mark (`SO_MARK`).
        mark: u32,
        /// The routing table.
        table: u32,
    },
    /// Bind the socket to the address of the first of several paths. A mark would send all of them over one path.
    LocalAddress {
        /// Local address.
        address: IpAddr,
        /// Name of the interface that has the address.
        interface: String,
    },
    /// Bind the socket to a device (`SO_BINDTODEVICE`).
    Device {
        /// Name of the interface.
        interface: String,
    },
    /// Set the initial window, by a route of this bucket or by sockops.
    InitialWindow {
        /// The window, and what limited it.
        window: InitialWindow,
        /// `initcwnd` of the route.
        route_bucket: u32,
    },
    /// Limit the sending rate of the socket (`SO_MAX_PACING_RATE`).
    Pacing {
        /// Rate in bit/s.
        bps: u64,
    },
    /// Add an address to a Multipath TCP connection (`ip mptcp endpoint`).
    MptcpEndpoint {
        /// Local address.
        address: IpAddr,
        /// Name of the interface that has the address.
        interface: String,
        /// Whether it is used only when no other path is left.
        backup: bool,
    },
    /// Set the congestion control (`TCP_CONGESTION`).
    CongestionControl {
        /// The kernel's name.
        name: String,
    },
    /// Set the DSCP of sent packets (`IP_TOS`, `IPV6_TCLASS`) according to the capacity profile ([`dscp`]).
    Dscp {
        /// Six bits, 0 to 63; not shifted.
        dscp: u8,
    },
    /// A step unknown to this version; a client that cannot perform a step skips the candidate. Never generated here.
    #[serde(other)]
    Unknown,
}

/// A candidate with its plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Planned {
    /// The candidate to which the plan belongs.
    #[serde(flatten)]
    pub candidate: Candidate,
    /// Steps before the connection is opened, in this order.
    pub plan: Vec<Action>,
}

/// Answer of an agent to `POST /connections/select`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// The candidates with their plans, the best first; never empty.
    pub candidates: Vec<Planned>,
    /// Excluded candidates, with reasons.
    pub pruned: Vec<Pruned>,
    /// Required rates that no single slice guarantees.
    pub needs: Vec<Need>,
    /// The steps for the first candidate, repeated.
    pub plan: Vec<Action>,
    /// The route selection rule that was applied.
    pub ursp: Option<Matched>,
}

impl Answer {
    /// A selection with a plan for each candidate.
    #[must_use]
    pub fn new(
        selection: Selection,
        ursp: Option<Matched>,
        mut plan: impl FnMut(&Candidate) -> Vec<Action>,
    ) -> Self {
        let candidates: Vec<Planned> = selection
            .candidates
            .into_iter()
            .map(|candidate| Planned { plan: plan(&candidate), candidate })
            .collect();
        let first = candidates.first().map(|c| c.plan.clone()).unwrap_or_default();
        Self { candidates, pruned: selection.pruned, needs: selection.needs, plan: first, ursp }
    }
}

/// The DSCP for a capacity profile, six bits (RFC 9622 §8.1.6; of an Assured Forwarding class, the one with the lowest drop
/// precedence, RFC 2597).
#[must_use]
pub const fn dscp(profile: CapacityProfile) -> u8 {
    match profile {
        // Default Forwarding (RFC 2474).
        CapacityProfile::Default => 0,
        // LE (RFC 8622).
        CapacityProfile::Scavenger => 1,
        // AF41.
        CapacityProfile::LowLatencyInteractive => 34,
        // AF21.
        CapacityProfile::LowLatencyNonInteractive => 18,
        // AF31.
        CapacityProfile::ConstantRateStreaming => 26,
        // AF11.
        CapacityProfile::CapacitySeeking => 10,
    }
}

/// The steps for a candidate, in the order of execution.
///
/// A path whose slice no longer exists on the host yields no step: the candidate is outdated.
#[must_use]
pub fn plan(
    candidate: &Candidate,
    properties: &Properties,
    host: &Host,
    config: &PlanConfig,
    now: Instant,
) -> Vec<Action> {
    let mut actions = Vec::new();
    let Some(first) = candidate.paths.first() else { return actions };
    let slice = first.pvd.as_ref().and_then(|id| host.slices.get(id));
    let address_of = |interface: &str| {
        let family = candidate.endpoint.address.is_ipv6();
        let addresses = &host.interfaces.get(interface)?.addresses;
        addresses.iter().filter(|a| a.is_ipv6() == family).min().copied()
    };
    if candidate.protocol == Protocol::Mptcp {
        actions.push(Action::Mptcp);
    }
    match slice.and_then(|s| Some((s.mark?, s.table?))) {
        // With several paths, each subflow is routed by its address.
        _ if candidate.paths.len() > 1 => {
            let (interface, address) = (first.interface.clone(), address_of(&first.interface));
            actions.extend(address.map(|address| Action::LocalAddress { address, interface }));
        }
        Some((mark, table)) => actions.push(Action::Mark { mark, table }),
        None => actions.push(Action::Device { interface: first.interface.clone() }),
    }
    for path in candidate.paths.iter().skip(1) {
        if let Some(address) = address_of(&path.interface) {
            actions.push(Action::MptcpEndpoint {
                address,
                interface: path.interface.clone(),
                backup: properties.multipath.is_some()
                    && properties.multipath_policy == MultipathPolicy::Handover,
            });
        }
    }
    let facts = slice.and_then(|s| s.facts_at(now));
    let pacing = pacing_bps(properties, candidate.paths.len() == 1, facts);
    if let Some(bps) = pacing {
        actions.push(Action::Pacing { bps });
    }
    // Datagrams have no congestion control. QUIC has one in user space, to which name and window apply as well.
    if candidate.protocol != Protocol::Udp {
        actions.push(Action::CongestionControl { name: config.congestion_control.clone() });
        let input = facts.and_then(|f| {
            Some(WindowInput {
                alpha: config.alpha,
                rate_bps: f.uplink_guaranteed_bps?,
                rtt_us: f.rtt_us?,
                segment_bytes: config.segment_bytes,
                pacing_bps: pacing,
                peer_window_bytes: config.peer_window_bytes,
            })
        });
        if let Some(window) =
            input.as_ref().map(initial_window).filter(|w| w.segments > super::window::MIN_SEGMENTS)
        {
            actions.push(Action::InitialWindow { window, route_bucket: bucket(window.segments) });
        }
    }
    match dscp(properties.conn_capacity_profile) {
        0 => {}
        dscp => actions.push(Action::Dscp { dscp }),
    }
    actions
}

/// The pacing rate: the minimum of the application's and the slice's maximum. Over several paths only the former applies, because
/// the rate of the socket applies to every subflow.
fn pacing_bps(properties: &Properties, single: bool, facts: Option<&SliceFacts>) -> Option<u64> {
    let slice = facts.filter(|_| single).and_then(|f| f.uplink_max_bps.or(f.uplink_guaranteed_bps));
    [properties.max_send_rate.get(), slice].into_iter().flatten().min()
}
