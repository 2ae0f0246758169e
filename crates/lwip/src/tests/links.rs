//! Probes between real elements: a UE that answers, and steering that follows the measurements.

use super::*;
use anabranch_element::Port;
use std::collections::BTreeMap;

struct Legs {
    node: Node,
    ue: UeElement,
    now: Instant,
    /// One-way delay by leg, milliseconds.
    delay_ms: [u64; 2],
    dead: bool,
    /// Packets in flight by arrival time; `true`: uplink.
    wire: BTreeMap<(Instant, u64), (bool, Port, Packet)>,
    count: u64,
    backhaul: Vec<Packet>,
}

#[derive(Default)]
struct Out(Vec<(Port, Packet)>);
impl<E> Sink<E> for Out {
    fn transmit(&mut self, port: Port, packet: Packet) {
        self.0.push((port, packet));
    }
    fn event(&mut self, _: E) {}
}

impl Legs {
    fn new(config: Config) -> Self {
        let side = UeSide::new(&config.ues[0]).unwrap();
        Self {
            node: Node::new(config, 1, Instant::ZERO).unwrap(),
            ue: UeElement::new(side),
            now: Instant::ZERO,
            delay_ms: [20, 5],
            dead: false,
            wire: BTreeMap::new(),
            count: 0,
            backhaul: Vec::new(),
        }
    }

    fn send(&mut self, up: bool, out: Out) {
        for (port, packet) in out.0 {
            if up && port == UeElement::IP {
                continue;
            }
            if !up && port == Node::BACKHAUL {
                self.backhaul.push(packet);
                continue;
            }
            if self.dead && port == Node::WIFI {
                continue;
            }
            let at = self.now + Duration::from_millis(self.delay_ms[usize::from(port == Node::WIFI)]);
            self.count += 1;
            self.wire.insert((at, self.count), (up, port, packet));
        }
    }

    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            let arrives = self.wire.first_key_value().map(|((at, _), _)| *at);
            let wakes = self.node.poll_timeout().map(|(at, _)| at.max(self.now));
            let Some(at) = arrives.into_iter().chain(wakes).min().filter(|at| *at <= end) else { break };
            self.now = at;
            let mut out = Out::default();
            if arrives == Some(at) {
                let (_, (up, port, packet)) = self.wire.pop_first().unwrap();
                if up {
                    self.node.on_packet(port, packet, at);
                } else {
                    self.ue.on_packet(port, packet, at);
                    drive(&mut self.ue, at, &mut out);
                    self.send(true, core::mem::take(&mut out));
                }
            }
            drive(&mut self.node, at, &mut out);
            self.send(false, out);
        }
        self.now = end;
    }
}

fn probing(steering: Steering, wifi_leg: WifiLeg) -> Config {
    let probe = ProbeConfig::new(vec!["10.45.0.1".parse().unwrap(), "fd00:45::1".parse().unwrap()]);
    Config { steering, wifi_leg, probe: Some(probe), ..config(None) }
}

#[test]
fn shares_follow_the_round_trips_of_both_legs() {
    for wifi_leg in [WifiLeg::Translate, WifiLeg::Tunnel] {
        let mut legs = Legs::new(probing(Steering::RttWeighted { least_percent: 5.0 }, wifi_leg));
        legs.run(Duration::from_secs(10));
        let [lte, wifi] = legs.node.links("phone").unwrap();
        assert_eq!((lte.rtt_us, wifi.rtt_us), (40_000.0, 10_000.0));
        assert_eq!((lte.answers, lte.probes), (10, 11), "one per second while idle; the last is in flight");
        assert!((legs.node.lte_percent("phone").unwrap() - 20.0).abs() < 0.01);
        assert!(legs.backhaul.is_empty(), "answers are the node's own");
        legs.delay_ms = [5, 45];
        legs.run(Duration::from_secs(10));
        assert!((legs.node.lte_percent("phone").unwrap() - 90.0).abs() < 0.1);
        // Wi-Fi fails and recovers.
        legs.dead = true;
        legs.run(Duration::from_secs(6));
        assert_eq!(legs.node.lte_percent("phone"), Some(100.0));
        legs.dead = false;
        legs.run(Duration::from_secs(2));
        assert!(legs.node.lte_percent("phone").unwrap() < 91.0);
    }
    let legs = Legs::new(probing(Steering::RttWeighted { least_percent: 5.0 }, WifiLeg::Tunnel));
    assert!(legs.node.links("nobody").is_none());
}

#[test]
fn a_busy_ue_is_probed_more_often() {
    let mut legs = Legs::new(probing(Steering::FixedRatio { lte_percent: 50.0 }, WifiLeg::Translate));
    let w = World::new(config(None), false);
    legs.run(Duration::from_millis(500));
    assert_eq!(legs.node.links("phone").unwrap()[0].probes, 1);
    for _ in 0..100 {
        let packet = w.segment(0, 1000, TcpFlags::ACK);
        legs.node.on_packet(Node::BACKHAUL, Packet::new(legs.now, packet), legs.now);
        legs.run(Duration::from_millis(20));
    }
    let probes = legs.node.links("phone").unwrap()[0].probes;
    assert!((20..=23).contains(&probes), "{probes}");
}

/// A sender whose data is lost sends little: retransmissions after 200 ms, 600 ms and so on. They must find the other leg.
#[test]
fn a_leg_that_fails_is_down_soon_although_its_sender_falls_silent() {
    for steering in [Steering::Autonomous, Steering::RttWeighted { least_percent: 5.0 }] {
        for interval_ms in [10, 100, 250] {
            let mut probed = probing(steering, WifiLeg::Translate);
            probed.probe.as_mut().unwrap().interval_ms = interval_ms;
            let mut legs = Legs::new(probed);
            let w = World::new(config(None), false);
            let send = |legs: &mut Legs, number: u32| {
                let packet = w.segment(number * 1000, 1000, TcpFlags::ACK);
                legs.node.on_packet(Node::BACKHAUL, Packet::new(legs.now, packet), legs.now);
            };
            for number in 0..100 {
                send(&mut legs, number);
                legs.run(Duration::from_millis(10));
            }
            legs.dead = true;
            for number in 100..110 {
                send(&mut legs, number);
            }
            legs.run(Duration::from_millis(200));
            send(&mut legs, 100);
            // Four probes and their patience.
            legs.run(Duration::from_millis(u64::from(5 * interval_ms) + 100));
            assert!(!legs.node.links("phone").unwrap()[1].up, "{steering:?}, {interval_ms} ms");
            let probes = legs.node.links("phone").unwrap()[1].probes;
            legs.run(Duration::from_secs(10));
            let after = legs.node.links("phone").unwrap()[1].probes - probes;
            assert!((9..=12).contains(&after), "a leg that is down is probed once per second, {after} times");
        }
    }
}

#[test]
fn only_genuine_answers_count() {
    let mut legs = Legs::new(probing(Steering::FixedRatio { lte_percent: 50.0 }, WifiLeg::Translate));
    let mut out = Out::default();
    drive(&mut legs.node, Instant::ZERO, &mut out);
    let (port, request) = out.0.pop().unwrap();
    let answer = legs.ue.side().answer(&request).unwrap();
    let echo = anabranch_wire::ip::parse_echo(&answer).unwrap();
    let forged = |payload: &[u8], reply| {
        anabranch_wire::ip::emit_echo(echo.src, echo.dst, reply, (echo.id, echo.sequence), payload).unwrap()
    };
    let mut wrong = answer[echo.payload.clone()].to_vec();
    wrong[9] ^= 1;
    for packet in [forged(&wrong, true), forged(&answer[echo.payload.clone()], false), forged(b"", true)] {
        legs.node.on_packet(port, Packet::new(legs.now, packet), legs.now);
        assert!(legs.node.poll_transmit(legs.now).is_some(), "not an answer to the node");
    }
    legs.node.on_packet(port, Packet::new(legs.now, answer), legs.now);
    assert!(legs.node.poll_transmit(legs.now).is_none());
    assert_eq!(legs.node.links("phone").unwrap()[1].answers, 1);
}

/// The autonomous law, with unknown legs.
fn autonomous() -> Config {
    let probe = Some(ProbeConfig::new(vec!["10.45.0.1".parse().unwrap()]));
    Config { steering: Steering::Autonomous, probe, ..config(Some(50.0)) }
}

#[test]
fn acks_are_held_once_another_steering_takes_over_from_the_autonomous_law() {
    let mut w = World::new(autonomous(), false);
    w.handshake();
    (0..4).for_each(|n| assert_eq!(w.data(n, 1000).0, Leg::Lte));
    w.ack(4000);
    w.node.set_steering(Steering::FixedRatio { lte_percent: 50.0 }, w.now).unwrap();
    (4..12).for_each(|n| {
        w.data(n, 1000);
    });
    (0..4).for_each(|n| {
        w.dup(4000, 5000, 6000 + n * 1000);
    });
    assert!(w.node.held_acks() > 0);
}

#[test]
fn memory_counts_what_the_law_remembers() {
    let bytes = |steering| {
        let mut w = World::new(Config { steering, ..autonomous() }, false);
        w.handshake();
        w.data(0, 1000);
        w.node.bytes()
    };
    let law = bytes(Steering::Autonomous) - bytes(Steering::FixedRatio { lte_percent: 50.0 });
    assert!(law > 1000, "{law}");
}
