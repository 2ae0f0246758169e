//! A UE that uses all it can of a UPF worker's shared resources, and another UE that must not be affected.

mod swarm;

use anabranch_atsss::session::{SessionEvent, SessionParams};
use anabranch_atsss::ue::{UeCommand, UeEvent};
use anabranch_element::time::Duration;
use anabranch_steer::{Rule, SteeringMode, active_standby};
use anabranch_wire::ip;
use anabranch_wire::tunnel::{DeliveryOrder, InnerHeader, PLAIN_OVERHEAD, StreamWord};
use std::net::SocketAddr;
use swarm::{SERVER, Swarm, from, virtual_ip};

fn standby(primary: &str) -> Vec<Rule> {
    vec![Rule {
        name: "all".into(),
        filter: Default::default(),
        steering: SteeringMode::ActiveStandby(active_standby::Params {
            primary: primary.into(),
            rotate_packets: 0,
            leave_above_loss_percent: 5,
        }),
        reorder: true,
        functionality: Default::default(),
    }]
}

/// Makes the UPF hold packets of UE `i`: in every possible stream, in every epoch that may be held, for as
/// long as possible.
fn hoard(swarm: &mut Swarm, i: u32, bytes: usize) {
    let (device, server) = (SocketAddr::from((virtual_ip(i), 5000)), SocketAddr::from((SERVER, 9)));
    let packet = ip::udp_datagram(device, server, &vec![0; bytes]).expect("same family");
    for stream in 0..=255 {
        for epoch in 1..=8 {
            let word = StreamWord { stream, epoch, timeout_100us: u16::MAX };
            let header = InnerHeader::data(&packet, DeliveryOrder::Stream(word)).expect("IP");
            let mut datagram = vec![0; PLAIN_OVERHEAD + packet.len()];
            header.emit(&mut datagram).expect("room");
            datagram[InnerHeader::LEN..].copy_from_slice(&packet);
            let now = swarm.now;
            swarm.upf.datagram(0, from(i, 0), &mut datagram, now, &mut swarm.to_ue, &mut swarm.at_upf);
        }
    }
}

/// UEs 1 to `hostile` hoard while UE 0 moves back and forth between the paths.
fn moves_among(hostile: u32, bytes: usize) {
    // In the clear, so that datagrams can be composed here.
    let params = SessionParams { fast_path: true, max_payload: 0, ..SessionParams::default() };
    let mut swarm = Swarm::new(1 + hostile, standby("5g"), params, || 0);
    for _ in 0..=hostile {
        swarm.connect();
    }
    swarm.talk(0, 1);
    let mut moves = 0;
    for turn in 0..20 {
        for i in 1..=hostile {
            hoard(&mut swarm, i, bytes);
        }
        let free = 127 - swarm.upf.pool().queues_used();
        assert!(free > 0, "turn {turn}: {hostile} UEs have all queues");
        let most = swarm.upf.pool().config().bytes;
        assert!(swarm.upf.pool().used_bytes() < most, "turn {turn}: {hostile} UEs have all bytes");
        // The honest UE learns the remaining number of queues with its next probe.
        swarm.pass(Duration::from_millis(60), Duration::from_millis(10));
        let rules = standby(if turn % 2 == 0 { "wifi" } else { "5g" });
        let now = swarm.now;
        swarm.ues[0].as_mut().expect("there").on_command(UeCommand::Rules(rules), now);
        swarm.talk(0, 1);
        swarm.settle(0);
        let ue = swarm.ues[0].as_mut().expect("there");
        while let Some(event) = ue.poll_event() {
            moves +=
                usize::from(matches!(event, UeEvent::Session(SessionEvent::Moved { from: Some(_), .. })));
        }
        assert_eq!(moves, turn + 1, "turn {turn}: it could not leave a path among {hostile} that hoard");
    }
}

#[test]
fn a_ue_leaves_a_path_whatever_others_hoard() {
    for (hostile, bytes) in [(1, 1000), (1, 9000), (6, 200), (30, 9000)] {
        moves_among(hostile, bytes);
    }
}
