//! A UE and a UPF connected by simple channels in virtual time, with delay, loss, outages, and a wire tap.

use anabranch_atsss::crypto::{PrivateKey, Suite};
use anabranch_atsss::session::{Addresses, Security, SessionParams};
use anabranch_atsss::ue::{Ue, UeAccess, UeConfig, UeEvent};
use anabranch_atsss::upf::{SessionView, UeEntry, Upf, UpfAccess, UpfCommand, UpfConfig, UpfEvent};
use anabranch_element::packet::Packet;
use anabranch_element::time::{Duration, Instant};
use anabranch_element::{Element, Port, Sink, drive};
use anabranch_steer::Rule;
use anabranch_wire::ip;
use rand_chacha::ChaCha12Rng;
use rand_core::{RngCore, SeedableRng};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

pub const UE_IP: Ipv4Addr = Ipv4Addr::new(10, 45, 0, 2);
pub const SERVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 80);

/// The host number of the twin.
const TWIN: u8 = 3;

#[derive(Clone, Copy)]
pub struct Channel {
    pub delay: Duration,
    pub loss: f64,
    /// Packets are lost only towards the UPF (`Some(true)`), or only towards the UE.
    pub lossy_towards_upf: Option<bool>,
    pub cut: bool,
    pub mtu: usize,
    /// Losses come in bursts of four on average (Gilbert-Elliott).
    pub burst: bool,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Flight {
    at: Instant,
    serial: u64,
    to_upf: bool,
    port: u16,
    bytes: Vec<u8>,
}

#[derive(Default)]
pub struct Out<E> {
    pub packets: Vec<(Port, Packet)>,
    pub events: Vec<E>,
}

impl<E> Sink<E> for Out<E> {
    fn transmit(&mut self, port: Port, packet: Packet) {
        self.packets.push((port, packet));
    }
    fn event(&mut self, event: E) {
        self.events.push(event);
    }
}

pub struct World {
    pub now: Instant,
    pub ue: Ue,
    pub upf: Upf,
    pub channels: Vec<Channel>,
    pub ue_events: Vec<(Instant, UeEvent)>,
    pub upf_events: Vec<(Instant, UpfEvent)>,
    /// Inner packets delivered at the server side.
    pub at_server: Vec<(Instant, Vec<u8>)>,
    pub at_device: Vec<(Instant, Vec<u8>)>,
    /// Outer packets seen, by (towards the UPF, path).
    pub tap: Vec<(Instant, bool, u16, Vec<u8>)>,
    /// Source address of datagrams on the first path as seen by the UPF, if there is a NAT.
    pub nat: Option<SocketAddr>,
    /// Another device with the UE's key, with its own addresses.
    pub twin: Option<Ue>,
    flights: BinaryHeap<Reverse<Flight>>,
    serial: u64,
    rng: ChaCha12Rng,
    /// Whether a loss burst is in progress, by path and direction.
    bad: [[bool; 2]; 2],
    pub upf_config: UpfConfig,
    pub ue_config: UeConfig,
    pub entry: UeEntry,
}

pub fn address(access: u8, host: u8) -> SocketAddr {
    SocketAddr::from(([10, 100 + access, 0, host], 4000 + u16::from(access)))
}

pub struct Setup {
    pub security: [Security; 2],
    /// The UPF's setting, if it differs.
    pub upf_security: Option<[Security; 2]>,
    pub ue_rules: Vec<Rule>,
    pub upf_rules: Vec<Rule>,
    pub delays_ms: [u64; 2],
    pub seed: u64,
    pub params: SessionParams,
    pub max_sessions: u32,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            security: [Security::Secure; 2],
            upf_security: None,
            ue_rules: Vec::new(),
            upf_rules: Vec::new(),
            delays_ms: [10, 5],
            seed: 1,
            params: SessionParams::default(),
            max_sessions: 16,
        }
    }
}

impl World {
    pub fn new(setup: Setup) -> Self {
        let mut rng = ChaCha12Rng::seed_from_u64(setup.seed);
        let (ue_key, upf_key) = (PrivateKey::generate(&mut rng), PrivateKey::generate(&mut rng));
        let names = ["5g", "wifi"];
        let params = setup.params;
        let upf_config = UpfConfig {
            private_key: upf_key.clone(),
            accesses: (0..2u8)
                .map(|i| UpfAccess {
                    name: names[usize::from(i)].into(),
                    security: setup.upf_security.unwrap_or(setup.security)[usize::from(i)],
                    local: Some(address(i, 1)),
                })
                .collect(),
            rules: setup.upf_rules,
            params: params.clone(),
            shard: 0,
            shards: 1,
            max_sessions: setup.max_sessions,
            unix_epoch_ns: 1_000_000_000,
        };
        let entry = UeEntry {
            name: "ue1".into(),
            key: ue_key.public(),
            addresses: Addresses { v4: Some(UE_IP), v6: None },
            rules: Vec::new(),
            accept_rules: true,
        };
        let ue_config = UeConfig {
            private_key: ue_key,
            upf_key: upf_key.public(),
            suite: Suite::Aes256Gcm,
            accesses: (0..2u8)
                .map(|i| UeAccess {
                    name: names[usize::from(i)].into(),
                    remote: address(i, 1),
                    local: Some(address(i, 2)),
                    security: setup.security[usize::from(i)],
                    max_payload: 1472,
                })
                .collect(),
            rules: setup.ue_rules,
            params,
            unix_epoch_ns: 1_000_000_000,
            last_timestamp_ns: 0,
        };
        let now = Instant::ZERO;
        let mut world = Self {
            now,
            ue: Ue::new(ue_config.clone(), [7; 32], now).unwrap(),
            upf: Upf::new(upf_config.clone(), [9; 32], now).unwrap(),
            channels: setup
                .delays_ms
                .iter()
                .map(|&d| Channel {
                    delay: Duration::from_millis(d),
                    loss: 0.0,
                    lossy_towards_upf: None,
                    cut: false,
                    mtu: 1500,
                    burst: false,
                })
                .collect(),
            ue_events: Vec::new(),
            upf_events: Vec::new(),
            at_server: Vec::new(),
            at_device: Vec::new(),
            tap: Vec::new(),
            nat: None,
            twin: None,
            flights: BinaryHeap::new(),
            serial: 0,
            rng,
            bad: [[false; 2]; 2],
            upf_config,
            ue_config,
            entry: entry.clone(),
        };
        world.upf.command(UpfCommand::AddUe(entry), now).unwrap();
        world
    }

    /// A new UPF process with the same configuration and no state.
    pub fn restart_upf(&mut self, seed: u8) {
        self.upf = Upf::new(self.upf_config.clone(), [seed; 32], self.now).unwrap();
        self.upf.command(UpfCommand::AddUe(self.entry.clone()), self.now).unwrap();
    }

    /// A new UE process with the same configuration and no state.
    pub fn restart_ue(&mut self, seed: u8) {
        self.ue = Ue::new(self.ue_config.clone(), [seed; 32], self.now).unwrap();
    }

    /// Another process with the UE's configuration and key, on another machine.
    pub fn start_twin(&mut self, seed: u8) {
        self.twin = Some(Ue::new(self.ue_config.clone(), [seed; 32], self.now).unwrap());
    }

    /// The UPF's view of its first UE.
    pub fn view(&self) -> SessionView {
        self.upf.view(&self.entry.key).unwrap()
    }

    pub fn run_ms(&mut self, ms: u64) {
        self.run_until(self.now + Duration::from_millis(ms));
    }

    pub fn run_until(&mut self, end: Instant) {
        let mut turns = 0u64;
        loop {
            turns += 1;
            assert!(
                turns < 2_000_000,
                "spinning at {} on {:?} {:?}",
                self.now,
                self.ue.poll_timeout(),
                self.upf.poll_timeout()
            );
            let timers = [self.drive_ue(), self.drive_twin(), self.drive_upf()];
            let next = timers.into_iter().flatten().chain(self.flights.peek().map(|f| f.0.at)).min();
            let Some(at) = next.filter(|&at| at <= end) else { break };
            self.now = self.now.max(at);
            while self.flights.peek().is_some_and(|f| f.0.at <= self.now) {
                let Reverse(f) = self.flights.pop().unwrap();
                let packet = Packet::new(f.at, f.bytes);
                if f.to_upf {
                    self.upf.on_packet(Port(f.port), packet, self.now);
                } else if let Some(twin) = self.twin.as_mut().filter(|_| {
                    ip::parse_udp(&packet).is_ok_and(|(_, to, _)| to == address(f.port as u8 - 1, TWIN))
                }) {
                    twin.on_packet(Port(f.port), packet, self.now);
                } else {
                    self.ue.on_packet(Port(f.port), packet, self.now);
                }
            }
        }
        self.now = end;
    }

    fn drive_ue(&mut self) -> Option<Instant> {
        let mut out = Out { packets: Vec::new(), events: Vec::new() };
        let next = drive(&mut self.ue, self.now, &mut out);
        self.ue_events.extend(out.events.into_iter().map(|e| (self.now, e)));
        for (port, packet) in out.packets {
            if port.0 == 0 {
                self.at_device.push((self.now, packet.into_bytes()));
            } else {
                self.fly(true, port.0, packet.into_bytes());
            }
        }
        next.map(|(at, _)| at)
    }

    fn drive_twin(&mut self) -> Option<Instant> {
        let mut out: Out<UeEvent> = Out { packets: Vec::new(), events: Vec::new() };
        let next = drive(self.twin.as_mut()?, self.now, &mut out);
        for (port, packet) in out.packets.into_iter().filter(|(port, _)| port.0 != 0) {
            let (_, to, payload) = ip::parse_udp(&packet).unwrap();
            let from = address(port.0 as u8 - 1, TWIN);
            let bytes = ip::udp_datagram(from, to, &packet[payload]).unwrap();
            self.fly(true, port.0, bytes);
        }
        next.map(|(at, _)| at)
    }

    fn drive_upf(&mut self) -> Option<Instant> {
        let mut out = Out { packets: Vec::new(), events: Vec::new() };
        let next = drive(&mut self.upf, self.now, &mut out);
        self.upf_events.extend(out.events.into_iter().map(|e| (self.now, e)));
        for (port, packet) in out.packets {
            if port.0 == 0 {
                self.at_server.push((self.now, packet.into_bytes()));
            } else {
                self.fly(false, port.0, packet.into_bytes());
            }
        }
        next.map(|(at, _)| at)
    }

    fn fly(&mut self, to_upf: bool, port: u16, mut bytes: Vec<u8>) {
        if let Some(nat) = self.nat.filter(|_| to_upf && port == 1) {
            let (_, to, payload) = ip::parse_udp(&bytes).unwrap();
            bytes = ip::udp_datagram(nat, to, &bytes[payload]).unwrap();
        }
        self.tap.push((self.now, to_upf, port - 1, bytes.clone()));
        // Datagrams from the UPF to other hosts do not reach the UE.
        let stranger = !to_upf
            && ip::parse_udp(&bytes).is_ok_and(|(_, to, _)| {
                let host = |host| to == address(port as u8 - 1, host);
                !host(2) && Some(to) != self.nat && !(self.twin.is_some() && host(TWIN))
            });
        let channel = self.channels[usize::from(port - 1)];
        if stranger
            || channel.cut
            || bytes.len() > channel.mtu
            || self.loses(channel, usize::from(port - 1), to_upf)
        {
            return;
        }
        self.inject(to_upf, port, bytes, channel.delay);
    }

    fn loses(&mut self, channel: Channel, path: usize, to_upf: bool) -> bool {
        let random = f64::from(self.rng.next_u32()) / 4_294_967_296.0;
        if channel.lossy_towards_upf.is_some_and(|towards| towards != to_upf) {
            return false;
        }
        if !channel.burst {
            return random < channel.loss;
        }
        let bad = &mut self.bad[path][usize::from(to_upf)];
        *bad = if *bad { random >= 0.25 } else { random < 0.25 * channel.loss / (1.0 - channel.loss) };
        *bad
    }

    /// All packets in flight are lost.
    pub fn forget_flights(&mut self) {
        self.flights.clear();
    }

    /// Sends an outer packet, as an attacker could.
    pub fn inject(&mut self, to_upf: bool, port: u16, bytes: Vec<u8>, delay: Duration) {
        self.serial += 1;
        let at = self.now + delay;
        self.flights.push(Reverse(Flight { at, serial: self.serial, to_upf, port, bytes }));
    }

    /// The device sends a UDP packet; its payload begins with the number.
    pub fn up(&mut self, number: u32, size: usize) {
        let packet = udp(UE_IP.into(), SERVER.into(), 5000, 9, number, size);
        self.ue.on_packet(Port(0), Packet::new(self.now, packet), self.now);
        self.run_until(self.now);
    }

    /// The server sends a UDP packet.
    pub fn down(&mut self, number: u32, size: usize) {
        let packet = udp(SERVER.into(), UE_IP.into(), 9, 5000, number, size);
        self.upf.on_packet(Port(0), Packet::new(self.now, packet), self.now);
        self.run_until(self.now);
    }

    /// Numbers of the packets delivered at the server, in order.
    pub fn server_numbers(&self) -> Vec<u32> {
        self.at_server.iter().map(|(_, p)| number(p)).collect()
    }

    pub fn device_numbers(&self) -> Vec<u32> {
        self.at_device.iter().map(|(_, p)| number(p)).collect()
    }

    /// User-data packets per path seen towards the UPF or the UE, of at least `bytes` and not much more.
    pub fn tapped(&self, to_upf: bool, bytes: usize) -> [usize; 2] {
        let mut n = [0; 2];
        for (_, up, path, packet) in &self.tap {
            if *up == to_upf && packet.len() > bytes && packet.len() < bytes + 200 {
                n[usize::from(*path)] += 1;
            }
        }
        n
    }
}

pub fn udp(src: IpAddr, dst: IpAddr, sport: u16, dport: u16, number: u32, size: usize) -> Vec<u8> {
    let mut payload = vec![0; size.max(4)];
    payload[..4].copy_from_slice(&number.to_be_bytes());
    ip::udp_datagram(SocketAddr::new(src, sport), SocketAddr::new(dst, dport), &payload).unwrap()
}

pub fn number(packet: &[u8]) -> u32 {
    let (_, _, payload) = ip::parse_udp(packet).unwrap();
    let b = &packet[payload];
    u32::from_be_bytes([b[0], b[1], b[2], b[3]])
}
