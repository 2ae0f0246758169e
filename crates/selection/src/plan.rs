//! What has to be done on the host so that a candidate's connection uses its slice: a list of steps, each of
//! which can be undone. Nothing is done here.
//!
//! The one definition of steps and answers: the agent writes them (`POST /connections/select`), `anabranch-taps` and the lab
//! read them.

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

/// What the host's owner decides about plans.
#[derive(Debug, Clone, PartialEq)]
pub struct PlanConfig {
    /// α of Eq. 1; above 0, at most 1.
    pub alpha: f64,
    /// The largest segment's payload, in bytes.
    pub segment_bytes: u32,
    /// The receive window the peer is known to open with, in bytes.
    pub peer_window_bytes: Option<u64>,
    /// The congestion control by the kernel's name.
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
    /// The socket is one of Multipath TCP (`IPPROTO_MPTCP`). Without this step TCP is plain TCP.
    Mptcp,
    /// Packets carry this mark, and a rule sends it to this routing table.
    Mark {
        /// The mark (`SO_MARK`).
        mark: u32,
        /// The table.
        table: u32,
    },
    /// The socket is bound to this address: the first path of several. A mark would lead all of them over one.
    LocalAddress {
        /// Local address.
        address: IpAddr,
        /// Its interface.
        interface: String,
    },
    /// The socket is bound to this device (`SO_BINDTODEVICE`).
    Device {
        /// The interface.
        interface: String,
    },
    /// The initial window, by a route of this bucket or by sockops.
    InitialWindow {
        /// The window and what bounded it.
        window: InitialWindow,
        /// `initcwnd` of the route.
        route_bucket: u32,
    },
    /// The socket sends at most at this rate (`SO_MAX_PACING_RATE`).
    Pacing {
        /// In bit/s.
        bps: u64,
    },
    /// Further addresses of a Multipath TCP connection (`ip mptcp endpoint`).
    MptcpEndpoint {
        /// Local address.
        address: IpAddr,
        /// Its interface.
        interface: String,
        /// Used only when no other path is left.
        backup: bool,
    },
    /// The congestion control (`TCP_CONGESTION`).
    CongestionControl {
        /// The kernel's name.
        name: String,
    },
    /// The code point of what is sent (`IP_TOS`, `IPV6_TCLASS`), by the capacity profile ([`dscp`]).
    Dscp {
        /// Six bits, 0 to 63; not shifted.
        dscp: u8,
    },
    /// A step that this version does not know; whoever cannot do a step leaves the candidate. Never made here.
    #[serde(other)]
    Unknown,
}

/// A candidate, and the steps for it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Planned {
    /// The candidate.
    #[serde(flatten)]
    pub candidate: Candidate,
    /// What to do before its connection is opened, in this order.
    pub plan: Vec<Action>,
}

/// What an agent answers to `POST /connections/select`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// The candidates with their plans, the best first; never empty.
    pub candidates: Vec<Planned>,
    /// What was left out, and why.
    pub pruned: Vec<Pruned>,
    /// Rates asked for that no single slice guarantees.
    pub needs: Vec<Need>,
    /// The steps for the first candidate, once more.
    pub plan: Vec<Action>,
    /// The route selection rule that bound it.
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

/// The code point a capacity profile asks of the network, six bits (RFC 9622 §8.1.6; of an Assured Forwarding class the
/// one that is dropped last, RFC 2597).
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

/// The steps for a candidate, in the order in which they are to be done.
///
/// A path whose slice the host no longer has gives no step: the candidate is out of date.
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
        // Several paths: each subflow goes by its address.
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
    // Datagrams have no congestion control of their own. QUIC has, in the program, and takes name and window, too.
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

/// The rate to pace at: the most the application sends, and the most the slice takes. Over several paths only
/// the former, since the socket's rate is that of every subflow.
fn pacing_bps(properties: &Properties, single: bool, facts: Option<&SliceFacts>) -> Option<u64> {
    let slice = facts.filter(|_| single).and_then(|f| f.uplink_max_bps.or(f.uplink_guaranteed_bps));
    [properties.max_send_rate.get(), slice].into_iter().flatten().min()
}
