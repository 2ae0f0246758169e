//! The answer to `POST /connections/select` as the OpenAPI description shows it: `selection`, whose types know nothing of
//! OpenAPI, mirrored. A test holds the two together.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How a connection should be made.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = SelectAnswer)]
#[serde(deny_unknown_fields)]
pub struct AnswerSchema {
    /// The candidates with their plans, the best first; never empty.
    candidates: Vec<CandidateSchema>,
    /// What was left out, and why.
    pruned: Vec<PrunedSchema>,
    /// Rates asked for that no single slice guarantees.
    needs: Vec<NeedSchema>,
    /// The steps for the first candidate, once more.
    plan: Vec<ActionSchema>,
    /// The route selection rule that bound it.
    ursp: Option<MatchedSchema>,
}

/// One way to make the connection.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = Candidate)]
#[serde(deny_unknown_fields)]
pub struct CandidateSchema {
    /// Place in the order, from 0.
    rank: u64,
    /// The paths, the best first; more than one only for a multipath protocol.
    paths: Vec<PathSchema>,
    /// The protocol.
    protocol: TransportSchema,
    /// Where to.
    endpoint: EndpointSchema,
    /// Upper bound of the round-trip time, in microseconds; racing waits by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rtt_us: Option<u64>,
    /// Wishes about the path fulfilled, less those to avoid that it has.
    path_points: i32,
    /// The same about the protocol.
    protocol_points: i32,
    /// Why it ranks where it does, in the order of weight.
    reasons: Vec<ReasonSchema>,
    /// What the program does before it opens the connection, in this order.
    plan: Vec<ActionSchema>,
}

/// An interface, and the slice on it.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = CandidatePath)]
#[serde(deny_unknown_fields)]
pub struct PathSchema {
    /// The interface.
    interface: String,
    /// The slice, if it is not the interface's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pvd: Option<String>,
}

/// A transport protocol.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = TransportProtocol)]
#[serde(rename_all = "lowercase")]
pub enum TransportSchema {
    /// TCP.
    Tcp,
    /// QUIC.
    Quic,
    /// Multipath TCP.
    Mptcp,
    /// UDP.
    Udp,
}

/// One address of the peer.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = RemoteEndpoint)]
#[serde(deny_unknown_fields)]
pub struct EndpointSchema {
    /// The resolver's order: smaller first.
    priority: u16,
    /// Address.
    #[schema(example = "198.51.100.7")]
    address: String,
    /// Port.
    port: u16,
    /// The protocols it is known to speak; left out: not known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    protocols: Vec<TransportSchema>,
}

/// One reason for a candidate's rank.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = Reason)]
#[serde(deny_unknown_fields)]
pub struct ReasonSchema {
    /// The property.
    property: String,
    /// What it does to the rank.
    effect: EffectSchema,
    /// What the candidate has.
    has: String,
}

/// What a property does to a candidate's rank.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = Effect)]
#[serde(rename_all = "kebab-case")]
pub enum EffectSchema {
    /// It was required and is there, or was prohibited and is not.
    Satisfies,
    /// A wish fulfilled: up.
    Preferred,
    /// A wish not fulfilled, or not known to be.
    Missed,
    /// Something to avoid: down.
    Avoided,
    /// A measure that equals are ordered by.
    Orders,
}

/// Something that cannot be part of a candidate.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = Pruned)]
#[serde(deny_unknown_fields)]
pub struct PrunedSchema {
    /// The property that failed.
    property: String,
    /// The path, protocol or endpoint, or several, that it failed for.
    candidate: String,
    /// What it has instead.
    has: String,
}

/// A rate asked for that no single slice guarantees.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = UnmetNeed)]
#[serde(deny_unknown_fields)]
pub struct NeedSchema {
    /// `minSendRate` or `minRecvRate`.
    property: String,
    /// What is asked for, in bit/s.
    asked_bps: u64,
    /// The most a single slice guarantees, in bit/s.
    best_single_bps: u64,
    /// The most any candidate guarantees, several paths together included, in bit/s.
    best_bps: u64,
    /// The slices the connection may use, the ones that may grow.
    slices: Vec<String>,
}

/// One step of a plan, which the program carries out itself.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = PlanAction)]
#[serde(tag = "action", rename_all = "kebab-case", deny_unknown_fields)]
pub enum ActionSchema {
    /// The socket is one of Multipath TCP (`IPPROTO_MPTCP`); without this step TCP is plain TCP.
    Mptcp {},
    /// Packets carry this mark (`SO_MARK`), and a rule of the agent sends it to this routing table.
    Mark {
        /// The mark.
        mark: u32,
        /// The table.
        table: u32,
    },
    /// The socket is bound to this address: the first path of several.
    LocalAddress {
        /// Local address.
        #[schema(example = "10.45.0.2")]
        address: String,
        /// Its interface.
        interface: String,
    },
    /// The socket is bound to this device (`SO_BINDTODEVICE`).
    Device {
        /// The interface.
        interface: String,
    },
    /// The initial congestion window, which the routing table of the mark carries.
    InitialWindow {
        /// The window and what bounded it.
        window: WindowSchema,
        /// `initcwnd` of the route, in segments.
        route_bucket: u32,
    },
    /// The socket sends at most at this rate (`SO_MAX_PACING_RATE`).
    Pacing {
        /// In bit/s.
        bps: u64,
    },
    /// A further address of a Multipath TCP connection (`ip mptcp endpoint`).
    MptcpEndpoint {
        /// Local address.
        #[schema(example = "10.46.0.2")]
        address: String,
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
    /// The code point of what is sent (`IP_TOS`, `IPV6_TCLASS`; RFC 9622 §8.1.6).
    Dscp {
        /// Six bits, not shifted.
        #[schema(maximum = 63)]
        dscp: u8,
    },
}

/// An initial window.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = InitialWindow)]
#[serde(deny_unknown_fields)]
pub struct WindowSchema {
    /// The window, in segments.
    segments: u32,
    /// What the equation alone says, in segments.
    equation_segments: u64,
    /// What bounded it.
    limit: LimitSchema,
}

/// What bounded a window.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = WindowLimit)]
#[serde(rename_all = "kebab-case")]
pub enum LimitSchema {
    /// Nothing: it is α·T·RTT/S.
    Equation,
    /// The least there is.
    Floor,
    /// What pacing sends in one RTT, or that there is no pacing.
    Pacing,
    /// The peer's receive window.
    PeerWindow,
    /// The most there is.
    Ceiling,
}

/// The rule a flow falls under, and the slices it leads to.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = MatchedRule)]
#[serde(deny_unknown_fields)]
pub struct MatchedSchema {
    /// Index of the rule, as written.
    rule: u64,
    /// Index of the route in it.
    route: u64,
    /// The host's slices that the route names.
    slices: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_selection::plan::{Action, Answer, InitialWindow, Planned};
    use anabranch_selection::ursp::Matched;
    use anabranch_selection::window::WindowLimit;
    use anabranch_selection::{Candidate, Effect, Endpoint, Need, PathName, Protocol, Pruned, Reason};
    use std::collections::BTreeSet;

    /// Every field there is, every step and every kind of effect and limit.
    fn all() -> Answer {
        let interface = || "wwan0".to_owned();
        let address = "10.0.0.2".parse().unwrap();
        let limits = [
            WindowLimit::Equation,
            WindowLimit::Floor,
            WindowLimit::Pacing,
            WindowLimit::PeerWindow,
            WindowLimit::Ceiling,
        ];
        let mut plan = vec![
            Action::Mptcp,
            Action::Mark { mark: 1, table: 2 },
            Action::LocalAddress { address, interface: interface() },
            Action::Device { interface: interface() },
            Action::Pacing { bps: 3 },
            Action::MptcpEndpoint { address, interface: interface(), backup: true },
            Action::CongestionControl { name: "cubic".into() },
            Action::Dscp { dscp: 34 },
        ];
        plan.extend(limits.map(|limit| Action::InitialWindow {
            window: InitialWindow { segments: 20, equation_segments: 21, limit },
            route_bucket: 20,
        }));
        let effects = [Effect::Satisfies, Effect::Preferred, Effect::Missed, Effect::Avoided, Effect::Orders];
        let reason = |effect| Reason { property: "pvd".into(), effect, has: "B".into() };
        let candidate = |(rank, protocol)| Candidate {
            rank,
            paths: vec![PathName { interface: interface(), pvd: (rank > 0).then(|| "B".into()) }],
            protocol,
            endpoint: Endpoint {
                protocols: if rank > 0 { BTreeSet::from([protocol]) } else { BTreeSet::new() },
                ..Endpoint::new(address, 443)
            },
            rtt_us: (rank > 0).then_some(12_000),
            path_points: -1,
            protocol_points: 1,
            reasons: effects.map(reason).to_vec(),
        };
        let candidates: Vec<Planned> = Protocol::ALL
            .into_iter()
            .enumerate()
            .map(|c| Planned { candidate: candidate(c), plan: plan.clone() })
            .collect();
        let text = || "x".to_owned();
        Answer {
            candidates,
            pruned: vec![Pruned { property: text(), candidate: text(), has: text() }],
            needs: vec![Need {
                property: text(),
                asked_bps: 3,
                best_single_bps: 1,
                best_bps: 2,
                slices: vec![text()],
            }],
            plan,
            ursp: Some(Matched { rule: 0, route: 1, slices: vec![text()] }),
        }
    }

    #[test]
    fn what_is_described_is_what_is_answered_and_what_is_read() {
        for answer in [all(), Answer { ursp: None, ..all() }] {
            let text = serde_json::to_value(&answer).unwrap();
            let mirror: AnswerSchema = serde_json::from_value(text.clone()).unwrap();
            assert_eq!(serde_json::to_value(&mirror).unwrap(), text);
            assert_eq!(serde_json::from_value::<Answer>(text).unwrap(), answer);
        }
    }

    #[test]
    fn a_step_of_a_later_version_does_not_hide_the_others() {
        let mut text = serde_json::to_value(all()).unwrap();
        text["candidates"][0]["plan"] = serde_json::json!([{"action": "teleport", "to": [1]}]);
        let read: Answer = serde_json::from_value(text).unwrap();
        assert_eq!(read.candidates[0].plan, [Action::Unknown]);
        assert_eq!(read.candidates[1], all().candidates[1]);
    }
}
