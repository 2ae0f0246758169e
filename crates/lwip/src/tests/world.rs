//! One UE, one server and one connection; the test passes packets to the node.

use super::*;

/// DIDA as in the paper.
pub fn printed() -> DidaConfig {
    DidaConfig { hide_sack: false, ..DidaConfig::default() }
}

/// A node with one UE of both families, and half of the packets over LTE.
pub fn config(hold_ms: Option<f64>) -> Config {
    Config {
        dida: hold_ms.map(|ms| DidaConfig { hold: Hold::Fixed { ms }, ..printed() }),
        ues: vec![UeConfig {
            name: "phone".into(),
            addresses: vec!["10.45.0.2".parse().unwrap(), "fd00:45::2".parse().unwrap()],
            wifi: vec!["10.46.0.2".parse().unwrap(), "fd00:46::2".parse().unwrap()],
        }],
        ..Config::default()
    }
}

pub struct World {
    pub node: Node,
    pub now: Instant,
    /// Packets forwarded to the server.
    pub out: Vec<Vec<u8>>,
    pub server: SocketAddr,
    pub ue: SocketAddr,
    /// First sequence number of the server's data.
    pub base: u32,
    pub window: u16,
    /// The newest timestamp that the server received from the UE.
    pub echo: u32,
}

pub struct Wire<'a>(pub &'a mut Vec<Vec<u8>>);

impl NodeSink for Wire<'_> {
    fn backhaul(&mut self, packet: &[u8]) {
        self.0.push(packet.to_vec());
    }
    fn leg(&mut self, _: Leg, packet: &[u8]) {
        panic!("no packet of its own: {packet:?}");
    }
}

pub fn sacked(packet: &[u8]) -> u32 {
    let sack = parse_packet(packet).unwrap().header.options.sack;
    sack.as_slice().first().map_or(0, |block| block.1)
}

impl World {
    pub fn new(config: Config, v6: bool) -> Self {
        let (server, ue) =
            if v6 { ("[fd00:99::1]:80", "[fd00:45::2]:4000") } else { ("10.99.0.1:80", "10.45.0.2:4000") };
        Self {
            node: Node::new(config, 7, Instant::ZERO).unwrap(),
            now: Instant::ZERO,
            out: Vec::new(),
            server: server.parse().unwrap(),
            ue: ue.parse().unwrap(),
            base: 0,
            window: 1000,
            echo: 0,
        }
    }

    pub fn address(&self, leg: Leg) -> std::net::IpAddr {
        let ue = &self.node.config().ues[0];
        let list = if leg == Leg::Lte { &ue.addresses } else { &ue.wifi };
        list[usize::from(self.ue.is_ipv6())]
    }

    pub fn segment(&self, at: u32, len: u32, flags: TcpFlags) -> Vec<u8> {
        let timestamps = (self.echo > 0).then_some((9, self.echo));
        let options = TcpOptions { timestamps, ..TcpOptions::default() };
        let header = TcpHeader { seq: self.base.wrapping_add(at), ack: 1, flags, window: 500, options };
        emit_packet(self.server, self.ue, &header, &vec![7; len as usize]).unwrap()
    }

    pub fn down(&mut self, mut packet: Vec<u8>) -> (Leg, Vec<u8>) {
        let leg = self.node.downlink(&mut packet, self.now);
        (leg, packet)
    }

    pub fn data(&mut self, n: u32, len: u32) -> (Leg, Vec<u8>) {
        let packet = self.segment(n * len, len, TcpFlags::ACK);
        self.down(packet)
    }

    pub fn ack_header(&self, ack: u32) -> TcpHeader {
        TcpHeader {
            seq: 1,
            ack: self.base.wrapping_add(ack),
            flags: TcpFlags::ACK,
            window: self.window,
            ..TcpHeader::default()
        }
    }

    pub fn dup_header(&self, ack: u32, left: u32, right: u32) -> TcpHeader {
        let mut sack = SackBlocks::default();
        sack.push(self.base.wrapping_add(left), self.base.wrapping_add(right));
        let options =
            TcpOptions { sack, timestamps: Some((self.now.as_millis() as u32, 5)), ..TcpOptions::default() };
        TcpHeader { options, ..self.ack_header(ack) }
    }

    pub fn uplink_packet(&self, header: &TcpHeader, payload: &[u8]) -> Vec<u8> {
        emit_packet(self.ue, self.server, header, payload).unwrap()
    }

    pub fn up(&mut self, mut packet: Vec<u8>) -> usize {
        self.node.uplink(&mut packet, self.now, &mut Wire(&mut self.out));
        self.out.len()
    }

    pub fn ack(&mut self, ack: u32) -> usize {
        self.up(self.uplink_packet(&self.ack_header(ack), &[]))
    }

    /// The UE's clock.
    pub fn stamp(&self) -> u32 {
        1 + self.now.as_millis() as u32
    }

    pub fn stamped_ack(&mut self, ack: u32) -> usize {
        let options = TcpOptions { timestamps: Some((self.stamp(), 9)), ..TcpOptions::default() };
        self.up(self.uplink_packet(&TcpHeader { options, ..self.ack_header(ack) }, &[]))
    }

    pub fn dup(&mut self, ack: u32, left: u32, right: u32) -> usize {
        self.up(self.uplink_packet(&self.dup_header(ack, left, right), &[]))
    }

    /// SYN, SYN-ACK, ACK; the data begins at `base`.
    pub fn handshake(&mut self) {
        let options = TcpOptions { window_scale: Some(7), ..TcpOptions::default() };
        let syn = TcpHeader { flags: TcpFlags::SYN, window: 64000, options, ..TcpHeader::default() };
        self.up(self.uplink_packet(&syn, &[]));
        let seq = self.base.wrapping_sub(1);
        let answer = TcpHeader { seq, ack: 1, flags: TcpFlags::SYN | TcpFlags::ACK, ..syn };
        let packet = emit_packet(self.server, self.ue, &answer, &[]).unwrap();
        assert_eq!(self.down(packet).0, Leg::Lte);
        self.ack(0);
        assert_eq!(self.out.len(), 2);
        self.out.clear();
    }

    /// Lets time pass, and polls the node when it is due.
    pub fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some((at, _)) = self.node.poll_timeout()
            && at <= end
        {
            self.now = self.now.max(at);
            self.node.poll(self.now, &mut Wire(&mut self.out));
        }
        self.now = end;
    }

    /// Acknowledgments forwarded to the server, relative to `base`.
    pub fn acks(&self) -> Vec<u32> {
        self.out.iter().map(|p| parse_packet(p).unwrap().header.ack.wrapping_sub(self.base)).collect()
    }
}
