//! OpenAPI schemas of the answer to `POST /connections/select`. They mirror the types of crate `selection`,
//! which does not depend on utoipa; a test keeps the two consistent.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Candidates for a connection.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = SelectAnswer)]
#[serde(deny_unknown_fields)]
pub struct AnswerSchema {
    /// The candidates with their plans, the best first; never empty.
    candidates: Vec<CandidateSchema>,
    /// Excluded paths, protocols and endpoints, with reasons.
    pruned: Vec<PrunedSchema>,
    /// Requested rates that no single slice guarantees.
    needs: Vec<NeedSchema>,
    /// The steps for the first candidate, repeated.
    plan: Vec<ActionSchema>,
    /// The route selection rule that restricted the slices.
    ursp: Option<MatchedSchema>,
}

/// A candidate: paths, protocol and endpoint of the connection.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = Candidate)]
#[serde(deny_unknown_fields)]
pub struct CandidateSchema {
    /// Position in the order, from 0.
    rank: u64,
    /// The paths, the best first; more than one only for a multipath protocol.
    paths: Vec<PathSchema>,
    /// Transport protocol.
    protocol: TransportSchema,
    /// Address of the peer.
    endpoint: EndpointSchema,
    /// Upper bound of the round-trip time, microseconds; determines the delay between attempts when
    /// candidates are raced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rtt_us: Option<u64>,
    /// Number of fulfilled path preferences minus number of avoided properties that the path has.
    path_points: i32,
    /// The same for the protocol.
    protocol_points: i32,
    /// Reasons for the rank, in the order of their weight.
    reasons: Vec<ReasonSchema>,
    /// Steps that the program executes before it opens the connection, in this order.
    plan: Vec<ActionSchema>,
}

/// An interface, and the slice on it.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = CandidatePath)]
#[serde(deny_unknown_fields)]
pub struct PathSchema {
    /// Name of the interface.
    interface: String,
    /// The slice; absent: the interface's default.
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
    /// Priority assigned by the resolver; smaller values first.
    priority: u16,
    /// IP address.
    #[schema(example = "198.51.100.7")]
    address: String,
    /// Port, 1 to 65535.
    port: u16,
    /// Protocols that the peer is known to support; absent: unknown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    protocols: Vec<TransportSchema>,
}

/// A reason for a candidate's rank.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = Reason)]
#[serde(deny_unknown_fields)]
pub struct ReasonSchema {
    /// Name of the property as in the request.
    property: String,
    /// Effect on the rank.
    effect: EffectSchema,
    /// Value that the candidate has.
    has: String,
}

/// Effect of a property on a candidate's rank.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = Effect)]
#[serde(rename_all = "kebab-case")]
pub enum EffectSchema {
    /// Required and present, or prohibited and absent.
    Satisfies,
    /// A fulfilled preference; raises the rank.
    Preferred,
    /// A preference that is not fulfilled, or not known to be.
    Missed,
    /// An avoided property that is present; lowers the rank.
    Avoided,
    /// A measure that orders otherwise equal candidates.
    Orders,
}

/// A path, protocol or endpoint that is excluded from all candidates.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = Pruned)]
#[serde(deny_unknown_fields)]
pub struct PrunedSchema {
    /// The property that was violated.
    property: String,
    /// The excluded path, protocol or endpoint, or a combination of them.
    candidate: String,
    /// Value that it has instead.
    has: String,
}

/// A requested rate that no single slice guarantees.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = UnmetNeed)]
#[serde(deny_unknown_fields)]
pub struct NeedSchema {
    /// `minSendRate` or `minRecvRate`.
    property: String,
    /// Requested rate, bit/s.
    asked_bps: u64,
    /// Highest rate that a single slice guarantees, bit/s.
    best_single_bps: u64,
    /// Highest rate that any candidate guarantees, including combinations of paths, bit/s.
    best_bps: u64,
    /// Slices that the connection may use and that may be enlarged.
    slices: Vec<String>,
}

/// A step of a plan, which the program executes itself.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = PlanAction)]
#[serde(tag = "action", rename_all = "kebab-case", deny_unknown_fields)]
pub enum ActionSchema {
    /// Open a Multipath TCP socket (`IPPROTO_MPTCP`); without this step TCP is plain TCP.
    Mptcp {},
    /// Set this packet mark (`SO_MARK`); a rule of the agent directs it to this routing table.
    Mark {
        /// Packet mark.
        mark: u32,
        /// Routing table.
        table: u32,
    },
    /// Bind the socket to this address: the first of several paths.
    LocalAddress {
        /// Local address.
        #[schema(example = "10.45.0.2")]
        address: String,
        /// Interface of the address.
        interface: String,
    },
    /// Bind the socket to this device (`SO_BINDTODEVICE`).
    Device {
        /// Name of the interface.
        interface: String,
    },
    /// The initial congestion window, which the mark's routing table carries.
    InitialWindow {
        /// The window and its limit.
        window: WindowSchema,
        /// `initcwnd` of the route, segments.
        route_bucket: u32,
    },
    /// Limit the sending rate of the socket (`SO_MAX_PACING_RATE`).
    Pacing {
        /// Rate, bit/s.
        bps: u64,
    },
    /// An additional address of a Multipath TCP connection (`ip mptcp endpoint`).
    MptcpEndpoint {
        /// Local address.
        #[schema(example = "10.46.0.2")]
        address: String,
        /// Interface of the address.
        interface: String,
        /// Whether it is used only when no other path is left.
        backup: bool,
    },
    /// Set the congestion control (`TCP_CONGESTION`).
    CongestionControl {
        /// Name in the kernel.
        name: String,
    },
    /// Set the DSCP of sent packets (`IP_TOS`, `IPV6_TCLASS`; RFC 9622 §8.1.6).
    Dscp {
        /// DSCP, six bits, not shifted.
        #[schema(maximum = 63)]
        dscp: u8,
    },
}

/// An initial window.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = InitialWindow)]
#[serde(deny_unknown_fields)]
pub struct WindowSchema {
    /// Initial window after applying the limit, segments.
    segments: u32,
    /// Result of the equation alone, segments.
    equation_segments: u64,
    /// The limit that determined the window.
    limit: LimitSchema,
}

/// Limit that determined a window.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = WindowLimit)]
#[serde(rename_all = "kebab-case")]
pub enum LimitSchema {
    /// None: the window is α·T·RTT/S.
    Equation,
    /// The minimum.
    Floor,
    /// The data that pacing sends in one RTT, or the absence of pacing.
    Pacing,
    /// The peer's receive window.
    PeerWindow,
    /// The maximum.
    Ceiling,
}

/// The route selection rule that applies to a flow, and its slices.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = MatchedRule)]
#[serde(deny_unknown_fields)]
pub struct MatchedSchema {
    /// Index of the rule in the policy as written.
    rule: u64,
    /// Index of the route within the rule.
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

    /// An answer with every field, step, effect and limit.
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
    fn the_schema_mirrors_the_answer_and_the_reader_accepts_it() {
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
