//! Flows that sessions hand over to a faster data path, and take back.

mod swarm;

use anabranch_atsss::fast::{FastFlow, FastLane, FastTraffic};
use anabranch_atsss::session::{Addresses, SessionParams};
use anabranch_atsss::ue::UeCommand;
use anabranch_atsss::upf::UpfCommand;
use anabranch_element::time::Duration;
use anabranch_steer::Rule;
use anabranch_wire::ip::{self, FlowKey};
use std::net::SocketAddr;
use swarm::{Fast, REMOTE, SERVER, Swarm, Wire, from, virtual_ip};

const UDP: u8 = 17;

fn params() -> SessionParams {
    SessionParams { fast_path: true, max_payload: 0, ..SessionParams::default() }
}

fn rule(steering: &str) -> Rule {
    let text = format!("{{\"name\": \"all\", \"steering\": {{ {steering} }} }}");
    serde_json::from_str(&text).expect("a rule")
}

fn world(rule: Rule, params: SessionParams) -> Swarm {
    let mut swarm = Swarm::new(4, vec![rule], params, || 0);
    swarm.connect();
    forget(&mut swarm);
    swarm
}

fn forget(swarm: &mut Swarm) {
    swarm.to_upf.fast.clear();
    swarm.to_ue.fast.clear();
}

/// The flow of [`Swarm::talk`] with number `port`, as in its uplink packets.
fn key(port: u16) -> FlowKey {
    FlowKey {
        src: virtual_ip(0).into(),
        dst: SERVER.into(),
        src_port: 5000 + port,
        dst_port: 9,
        protocol: UDP,
    }
}

fn session() -> Addresses {
    Addresses { v4: Some(virtual_ip(0)), v6: None }
}

fn given(wire: &Wire) -> Vec<FastFlow> {
    let flow = |(_, fast): &(usize, Fast)| match fast {
        Fast::Given(flow) => Some(*flow),
        Fast::TakenBack(_) => None,
    };
    wire.fast.iter().filter_map(flow).collect()
}

fn taken(wire: &Wire) -> Vec<Option<FlowKey>> {
    let flow = |(_, fast): &(usize, Fast)| match fast {
        Fast::Given(_) => None,
        Fast::TakenBack(flow) => Some(*flow),
    };
    wire.fast.iter().filter_map(flow).collect()
}

const SMALLEST_DELAY: &str = "\"mode\": \"smallest-delay\"";
const STANDBY: &str = "\"mode\": \"active-standby\", \"primary\": \"5g\"";

#[test]
fn both_ends_hand_a_flow_over_once_its_path_is_known() {
    let mut swarm = world(rule(STANDBY), params());
    swarm.talk(0, 2);
    let lane = |to: SocketAddr| FastLane { session: session(), access: 0, to };
    let up = |port| FastFlow { lane: lane(REMOTE), key: key(port), mtu: 1400 };
    let down = |port: u16| FastFlow { lane: lane(from(0, 0)), key: key(port).reversed(), mtu: 1400 };
    assert_eq!(given(&swarm.to_upf), [up(0), up(1)]);
    assert_eq!(given(&swarm.to_ue), [down(0), down(1)]);
    assert_eq!((swarm.at_upf.0, swarm.at_ues.0), (2, 2), "the packets themselves went by us");

    // Packets without ports are not handed over, because other flows could look the same.
    forget(&mut swarm);
    let mut ping = ip::udp_datagram((virtual_ip(0), 1).into(), (SERVER, 2).into(), &[0; 16]).unwrap();
    ping[9] = 1;
    let now = swarm.now;
    swarm.ues[0].as_mut().unwrap().uplink(&mut ping, now, &mut swarm.to_upf);
    assert_eq!(given(&swarm.to_upf), []);
}

#[test]
fn a_flow_is_handed_over_for_packets_that_both_ends_accept() {
    let mut swarm = Swarm::new(4, vec![rule(STANDBY)], params(), || 0);
    swarm.params.inner_mtu = 1280;
    swarm.connect();
    forget(&mut swarm);
    swarm.talk(0, 1);
    let mtus =
        [&swarm.to_upf, &swarm.to_ue].map(|wire| given(wire).iter().map(|flow| flow.mtu).collect::<Vec<_>>());
    assert_eq!(mtus, [[1280], [1280]]);
}

#[test]
fn secure_split_or_unrequested_flows_are_not_handed_over() {
    let splits = "\"mode\": \"load-balance\", \"per\": \"packet\"";
    let off = SessionParams { fast_path: false, ..params() };
    for (steering, params) in [(splits, params()), ("\"mode\": \"redundant\"", params()), (STANDBY, off)] {
        let mut swarm = world(rule(steering), params);
        swarm.talk(0, 3);
        assert_eq!((given(&swarm.to_upf), given(&swarm.to_ue)), (vec![], vec![]), "{steering}");
    }
}

#[test]
fn flows_are_taken_back_before_the_marker_when_the_path_changes() {
    let mut swarm = world(rule(STANDBY), params());
    swarm.talk(0, 2);
    forget(&mut swarm);
    let now = swarm.now;
    let ue = swarm.ues[0].as_mut().unwrap();
    ue.on_command(UeCommand::Carrier { path: 0, up: false }, now);
    // A packet arrives before timers are served.
    let mut packet = ip::udp_datagram((virtual_ip(0), 5000).into(), (SERVER, 9).into(), &[0; 100]).unwrap();
    ue.uplink(&mut packet, now, &mut swarm.to_upf);
    assert_eq!(swarm.to_upf.fast, [(0, Fast::TakenBack(None))], "before the first datagram on the new path");
    assert!(swarm.to_upf.len() > 0);
    swarm.settle(0);
    assert_eq!(taken(&swarm.to_ue), [None], "the UPF was told, and sends by the other path");

    // For a while no flow is handed over, so that packets in flight arrive first.
    forget(&mut swarm);
    swarm.talk(0, 2);
    assert_eq!((given(&swarm.to_upf), given(&swarm.to_ue)), (vec![], vec![]));
    swarm.pass(Duration::from_millis(1100), Duration::from_millis(5));
    swarm.talk(0, 1);
    assert_eq!(given(&swarm.to_upf).len(), 1);
    assert_eq!(given(&swarm.to_upf)[0].lane.access, 1, "by the other path");
}

#[test]
fn a_better_path_is_used_although_no_packet_passes_the_session() {
    let mut swarm = world(rule(SMALLEST_DELAY), params());
    swarm.talk(0, 1);
    let on = given(&swarm.to_upf)[0].lane.access;
    forget(&mut swarm);
    // Without a change, no flow is taken back.
    swarm.pass(Duration::from_secs(3), Duration::from_millis(5));
    assert_eq!(taken(&swarm.to_upf), []);
    swarm.ues[0].as_mut().unwrap().on_command(UeCommand::Carrier { path: on, up: false }, swarm.now);
    swarm.pass(Duration::from_millis(50), Duration::from_millis(5));
    assert_eq!(taken(&swarm.to_upf), [None]);
    assert_eq!(taken(&swarm.to_ue), [None]);
}

#[test]
fn flows_are_taken_back_for_new_rules_and_new_decisions() {
    let mut swarm = world(rule(STANDBY), params());
    swarm.talk(0, 2);
    forget(&mut swarm);
    let now = swarm.now;
    swarm.upf.command(UpfCommand::Rules(vec![rule(SMALLEST_DELAY)]), now).unwrap();
    swarm.pass(Duration::from_millis(50), Duration::from_millis(5));
    assert_eq!(taken(&swarm.to_ue), [None]);
    assert_eq!(taken(&swarm.to_upf), [None], "the UE was told of the rules");
}

#[test]
fn bypassing_traffic_is_counted_and_keeps_the_session_awake() {
    let mut swarm = world(rule(STANDBY), params());
    swarm.talk(0, 1);
    let lane = given(&swarm.to_ue)[0].lane;
    let traffic = FastTraffic { tx_packets: 10, tx_bytes: 10_080, rx_packets: 5, rx_bytes: 540 };
    let at_ue = given(&swarm.to_upf)[0].lane;
    let FastTraffic { tx_packets, tx_bytes, rx_packets, rx_bytes } = traffic;
    let mirrored = FastTraffic {
        tx_packets: rx_packets,
        tx_bytes: rx_bytes,
        rx_packets: tx_packets,
        rx_bytes: tx_bytes,
    };
    let before = swarm.upf.sessions().next().unwrap();
    let mut now = swarm.now;
    for _ in 0..150 {
        now = swarm.now;
        assert!(swarm.upf.carried(&lane, &traffic, now));
        // The UE must be informed as well: it probes at the pace of traffic, and the UPF expects that.
        assert!(swarm.ues[0].as_mut().unwrap().carried(&at_ue, &mirrored, now));
        swarm.pass(Duration::from_millis(200), Duration::from_millis(5));
    }
    let after = swarm.upf.sessions().next().unwrap();
    assert!(!after.resting);
    let both = |f: fn(&anabranch_atsss::session::Traffic) -> u64| f(&after.traffic) - f(&before.traffic);
    assert_eq!([both(|t| t.tx_packets), both(|t| t.tx_bytes)], [1500, 1_500_000]);
    assert_eq!([both(|t| t.rx_packets), both(|t| t.rx_bytes)], [750, 75_000]);
    assert_eq!(after.paths[0].tx_bytes - before.paths[0].tx_bytes, 1_512_000);
    assert!(taken(&swarm.to_ue).is_empty());
    // Without further traffic, the flows are taken back and the session goes to rest.
    swarm.pass(Duration::from_secs(12), Duration::from_millis(5));
    assert_eq!(taken(&swarm.to_ue), [None]);
    assert!(swarm.upf.sessions().next().unwrap().resting);

    let nobody = FastLane { session: Addresses { v4: Some(virtual_ip(9)), v6: None }, ..lane };
    let elsewhere = FastLane { to: from(0, 1), ..lane };
    assert!(!swarm.upf.carried(&nobody, &traffic, now) && !swarm.upf.carried(&elsewhere, &traffic, now));
    let key = swarm.keys[0];
    assert!(swarm.upf.carried(&lane, &FastTraffic::default(), swarm.now));
    swarm.upf.command(UpfCommand::CloseSession(key), swarm.now).unwrap();
    assert!(!swarm.upf.carried(&lane, &traffic, swarm.now), "the session is over: the lane is closed");
}

#[test]
fn packets_on_the_faster_path_fit_it() {
    let params = SessionParams { max_payload: 1472, ..params() };
    let mut swarm = Swarm::new(4, vec![rule(STANDBY)], params, || 0);
    (swarm.to_upf.carries, swarm.to_ue.carries) = (1300, 1200);
    swarm.connect();
    swarm.talk(0, 1);
    assert_eq!((given(&swarm.to_upf), given(&swarm.to_ue)), (vec![], vec![]), "nobody knows yet what fits");
    swarm.pass(Duration::from_secs(4), Duration::from_millis(5));
    swarm.talk(0, 1);
    let [up, down] = [&swarm.to_upf, &swarm.to_ue].map(|wire| usize::from(given(wire)[0].mtu));
    assert!((1300 - 16..=1300 - 8).contains(&up) && (1200 - 16..=1200 - 8).contains(&down), "{up} {down}");
    // The path carries less: the flow is taken back.
    forget(&mut swarm);
    swarm.to_upf.carries = 1000;
    for _ in 0..35 {
        swarm.pass(Duration::from_secs(1), Duration::from_millis(5));
        swarm.talk(0, 1);
    }
    assert_eq!(taken(&swarm.to_upf), [None]);
    let last = given(&swarm.to_upf).last().map(|flow| flow.mtu);
    assert!(last.is_some_and(|mtu| (1000 - 16..=1000 - 8).contains(&mtu)), "{last:?}");
}
