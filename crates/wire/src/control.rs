//! Control messages between the tunnel ends, carried only in the secure form.
//!
//! Each message is an inner header (next protocol 59, sequence 0) and a body:
//!
//! ```text
//! 0x9/A/B probe (60)        0xC notify (8)            0xD config              0xD|ACK config ack (6)
//! +---------------------+   +----+----+------+----+   +------------------+    +--------------+
//! | id                  |   |path| up |reason| 0  |   | version          |    | version      |
//! | RTT, us             |   | sequence            |   | fragment | of    |    | fragment |   +
//! | timestamp, ns (8)   |   +---------------------+   | bytes (1..=1024) |    +----------+
//! | echo, ns (8)        |                             +------------------+
//! | tx packets (8)      |   0xE MTU probe             0xE|ACK MTU ack (2)     0xF close (1)
//! | tx bytes (8)        |   +------+----------+       +------+                +--------+
//! | rx packets (8)      |   | size | zeros .. |       | size |                | reason |
//! | rx bytes (8)        |   +------+----------+       +------+                +--------+
//! | reorder  | loss     |
//! +---------------------+
//! ```

use crate::read::{need, put, u16_at, u32_at, u64_at};
use crate::tunnel::{InnerHeader, InnerType, SECURE_OVERHEAD, flag};
use crate::{MAX_PATHS, WireError};

/// Maximum number of configuration bytes in one fragment.
pub const CONFIG_FRAGMENT_MAX: usize = 1024;
/// Maximum number of fragments of one configuration, 256 KiB in total.
pub const CONFIG_FRAGMENTS_MAX: u16 = 256;

const PROBE_LEN: usize = 60;
const NOTIFY_LEN: usize = 8;
const CONFIG_HEADER: usize = 8;
const CAPACITY_ACK_LEN: usize = 12;

/// A control message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Control<'a> {
    /// One leg of the three-way probe.
    Probe(Probe),
    /// An access has changed.
    Notify(Notify),
    /// A fragment of the configuration, UPF to UE.
    Config(Config<'a>),
    /// Acknowledges a fragment of the configuration, UE to UPF.
    ConfigAck(ConfigAck),
    /// Probes whether a datagram of this size arrives.
    MtuProbe(MtuProbe),
    /// Acknowledges an MTU probe.
    MtuAck(MtuAck),
    /// One packet of a train that measures the capacity of the path.
    CapacityProbe(CapacityProbe),
    /// Acknowledges a capacity probe.
    CapacityAck(CapacityAck),
    /// The session ends.
    Close(Close),
}

/// The leg of the three-way probe (JUNCTION §V-E) that a [`Probe`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProbeKind {
    /// UE to UPF.
    Request,
    /// UPF to UE, immediately after the request.
    Reply,
    /// UE to UPF, immediately after the reply.
    Ack,
}

/// Counters of one end for one path, since the session began.
///
/// They are never reset during the session; loss is the difference of two readings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PathCounters {
    /// Packets sent on the path.
    pub tx_packets: u64,
    /// Bytes sent on the path, of UDP payload.
    pub tx_bytes: u64,
    /// Packets received on the path.
    pub rx_packets: u64,
    /// Bytes received on the path, of UDP payload.
    pub rx_bytes: u64,
}

/// One leg of the three-way probe: request(w), reply(x, echo w), ack(y, echo x).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Probe {
    /// The leg.
    pub kind: ProbeKind,
    /// Identical on the three legs; incremented by the UE.
    pub id: u32,
    /// When this leg was sent, on the sender's clock, in ns.
    pub timestamp_ns: u64,
    /// The timestamp of the leg being answered, in ns; 0 in a request.
    pub echo_ns: u64,
    /// The sender's smoothed RTT of the path, in us; 0 if there is none yet.
    pub rtt_us: u32,
    /// The sender's counters of the path.
    pub counters: PathCounters,
    /// Free reordering queues at the sender.
    pub reorder_available: u16,
    /// Loss without congestion of the sender's packets on the path that persists for two seconds, in hundredths of a percent, 0 to
    /// 10,000; 0 from ends that do not report it.
    pub lasting_loss: u16,
}

/// Reports that an access went down or came up; sent on another access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Notify {
    /// The path, below [`MAX_PATHS`].
    pub path: u8,
    /// Whether the access is up.
    pub up: bool,
    /// Reason code, defined by the session layer.
    pub reason: u8,
    /// Incremented per session and direction; a number older than the last one received is stale.
    pub sequence: u32,
}

/// A fragment of the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config<'a> {
    /// Version of the configuration.
    pub version: u32,
    /// Index of the fragment, below `fragments`.
    pub fragment: u16,
    /// Number of fragments: 1 to [`CONFIG_FRAGMENTS_MAX`].
    pub fragments: u16,
    /// 1 to [`CONFIG_FRAGMENT_MAX`] bytes. All fragments together are JSON in UTF-8; a fragment may end inside a character.
    pub bytes: &'a [u8],
}

/// Acknowledges a fragment of the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConfigAck {
    /// Version of the configuration.
    pub version: u32,
    /// Index of the fragment.
    pub fragment: u16,
}

/// A packet padded to a given size, to test whether it arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MtuProbe {
    /// Size of the whole UDP payload in the secure form, in bytes; at least [`MtuProbe::MIN`].
    pub size: u16,
}

impl MtuProbe {
    /// The smallest size: a secure packet that contains only the size.
    pub const MIN: u16 = (SECURE_OVERHEAD + 2) as u16;
}

/// Reports that an [`MtuProbe`] of this size arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MtuAck {
    /// Size of the received UDP payload, in bytes.
    pub size: u16,
}

/// One packet of a train sent back to back; the gaps between arrivals show the capacity of the path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CapacityProbe {
    /// Size of the whole UDP payload in the secure form, in bytes; at least [`CapacityProbe::MIN`].
    pub size: u16,
    /// Number of the train on this path.
    pub train: u16,
    /// Index within the train, from 0.
    pub index: u16,
}

impl CapacityProbe {
    /// The smallest size: that of the acknowledgement.
    pub const MIN: u16 = (SECURE_OVERHEAD + CAPACITY_ACK_LEN) as u16;
}

/// Acknowledges a [`CapacityProbe`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CapacityAck {
    /// Number of the train, as in the probe.
    pub train: u16,
    /// Index within the train.
    pub index: u16,
    /// When the probe arrived, on the receiver's clock, in ns.
    pub timestamp_ns: u64,
}

/// The session ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Close {
    /// Reason code, defined by the session layer.
    pub reason: u8,
}

impl<'a> Control<'a> {
    /// Parses a control message: inner header and body.
    ///
    /// # Errors
    /// A [`WireError`] from the header; [`WireError::Type`] for Data; [`WireError::Length`],
    /// [`WireError::Truncated`] or [`WireError::Value`] from the body.
    pub fn parse(buf: &'a [u8]) -> Result<Self, WireError> {
        let (header, body) = InnerHeader::parse(buf)?;
        Self::parse_body(&header, body)
    }

    /// Parses the body of a control message whose header has been parsed.
    ///
    /// # Errors
    /// Those of [`Control::parse`].
    pub fn parse_body(header: &InnerHeader, body: &'a [u8]) -> Result<Self, WireError> {
        let capacity = header.kind == InnerType::MtuProbe && header.flags & flag::TRAIN != 0;
        let ack = match (header.kind, header.flags & !(u8::from(capacity) * flag::TRAIN)) {
            (_, 0) => false,
            (InnerType::Config | InnerType::MtuProbe, flag::ACK) => true,
            (_, other) => return Err(WireError::Value { what: "control flags", got: other.into() }),
        };
        if header.sequence != 0 {
            return Err(WireError::Value {
                what: "sequence of a control message",
                got: header.sequence.into(),
            });
        }
        Ok(match (header.kind, ack) {
            (InnerType::ProbeRequest, _) => Self::Probe(probe(ProbeKind::Request, body)?),
            (InnerType::ProbeReply, _) => Self::Probe(probe(ProbeKind::Reply, body)?),
            (InnerType::ProbeAck, _) => Self::Probe(probe(ProbeKind::Ack, body)?),
            (InnerType::Notify, _) => Self::Notify(notify(body)?),
            (InnerType::Config, false) => Self::Config(config(body)?),
            (InnerType::Config, true) => {
                exactly(body, "config ack", 6)?;
                let fragment = fragment(u16_at(body, 4), CONFIG_FRAGMENTS_MAX)?;
                Self::ConfigAck(ConfigAck { version: u32_at(body, 0), fragment })
            }
            (InnerType::MtuProbe, false) if capacity => {
                need(body, "capacity probe", CAPACITY_ACK_LEN)?;
                let size = u16_at(body, 0);
                exactly(body, "capacity probe", usize::from(size).saturating_sub(SECURE_OVERHEAD))?;
                Self::CapacityProbe(CapacityProbe { size, train: u16_at(body, 2), index: u16_at(body, 4) })
            }
            (InnerType::MtuProbe, true) if capacity => {
                exactly(body, "capacity ack", CAPACITY_ACK_LEN)?;
                let (train, index) = (u16_at(body, 0), u16_at(body, 2));
                Self::CapacityAck(CapacityAck { train, index, timestamp_ns: u64_at(body, 4) })
            }
            (InnerType::MtuProbe, false) => {
                need(body, "MTU probe", 2)?;
                let size = u16_at(body, 0);
                exactly(body, "MTU probe", usize::from(size).saturating_sub(SECURE_OVERHEAD))?;
                Self::MtuProbe(MtuProbe { size })
            }
            (InnerType::MtuProbe, true) => {
                exactly(body, "MTU ack", 2)?;
                Self::MtuAck(MtuAck { size: u16_at(body, 0) })
            }
            (InnerType::Close, _) => {
                exactly(body, "close", 1)?;
                Self::Close(Close { reason: body[0] })
            }
            (InnerType::Data | InnerType::Fragment, _) => {
                return Err(WireError::Type((header.kind as u8) << 4));
            }
        })
    }

    /// Number of bytes written by [`Control::emit`], including the inner header.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        InnerHeader::LEN + self.body_len()
    }

    /// Writes inner header and body into the first [`Control::encoded_len`] bytes of `buf`.
    ///
    /// # Errors
    /// [`WireError::Truncated`] if `buf` is too small; [`WireError::Value`] or [`WireError::TooLong`]
    /// if a field is out of its range.
    pub fn emit(&self, buf: &mut [u8]) -> Result<(), WireError> {
        self.check()?;
        let length = self.body_len();
        need(buf, "control message", InnerHeader::LEN + length)?;
        let (kind, flags) = self.kind();
        // `check` bounds every body: the longest is an MTU probe of 65,535 bytes minus overhead.
        InnerHeader::control(kind, flags, length as u16).emit(buf)?;
        let b = &mut buf[InnerHeader::LEN..InnerHeader::LEN + length];
        b.fill(0);
        match *self {
            Self::Probe(p) => {
                put(b, 0, &p.id.to_be_bytes());
                put(b, 4, &p.rtt_us.to_be_bytes());
                put(b, 8, &p.timestamp_ns.to_be_bytes());
                put(b, 16, &p.echo_ns.to_be_bytes());
                put(b, 24, &p.counters.tx_packets.to_be_bytes());
                put(b, 32, &p.counters.tx_bytes.to_be_bytes());
                put(b, 40, &p.counters.rx_packets.to_be_bytes());
                put(b, 48, &p.counters.rx_bytes.to_be_bytes());
                put(b, 56, &p.reorder_available.to_be_bytes());
                put(b, 58, &p.lasting_loss.to_be_bytes());
            }
            Self::Notify(n) => {
                put(b, 0, &[n.path, n.up.into(), n.reason]);
                put(b, 4, &n.sequence.to_be_bytes());
            }
            Self::Config(c) => {
                put(b, 0, &c.version.to_be_bytes());
                put(b, 4, &c.fragment.to_be_bytes());
                put(b, 6, &c.fragments.to_be_bytes());
                put(b, CONFIG_HEADER, c.bytes);
            }
            Self::ConfigAck(a) => {
                put(b, 0, &a.version.to_be_bytes());
                put(b, 4, &a.fragment.to_be_bytes());
            }
            Self::MtuProbe(MtuProbe { size }) | Self::MtuAck(MtuAck { size }) => {
                put(b, 0, &size.to_be_bytes());
            }
            Self::CapacityProbe(p) => {
                put(b, 0, &p.size.to_be_bytes());
                put(b, 2, &p.train.to_be_bytes());
                put(b, 4, &p.index.to_be_bytes());
            }
            Self::CapacityAck(a) => {
                put(b, 0, &a.train.to_be_bytes());
                put(b, 2, &a.index.to_be_bytes());
                put(b, 4, &a.timestamp_ns.to_be_bytes());
            }
            Self::Close(c) => b[0] = c.reason,
        }
        Ok(())
    }

    /// Inner header and body as a vector.
    ///
    /// # Errors
    /// Those of [`Control::emit`].
    pub fn encode(&self) -> Result<Vec<u8>, WireError> {
        let mut b = vec![0; self.encoded_len()];
        self.emit(&mut b)?;
        Ok(b)
    }

    fn kind(&self) -> (InnerType, u8) {
        match self {
            Self::Probe(p) => match p.kind {
                ProbeKind::Request => (InnerType::ProbeRequest, 0),
                ProbeKind::Reply => (InnerType::ProbeReply, 0),
                ProbeKind::Ack => (InnerType::ProbeAck, 0),
            },
            Self::Notify(_) => (InnerType::Notify, 0),
            Self::Config(_) => (InnerType::Config, 0),
            Self::ConfigAck(_) => (InnerType::Config, flag::ACK),
            Self::MtuProbe(_) => (InnerType::MtuProbe, 0),
            Self::MtuAck(_) => (InnerType::MtuProbe, flag::ACK),
            Self::CapacityProbe(_) => (InnerType::MtuProbe, flag::TRAIN),
            Self::CapacityAck(_) => (InnerType::MtuProbe, flag::TRAIN | flag::ACK),
            Self::Close(_) => (InnerType::Close, 0),
        }
    }

    fn body_len(&self) -> usize {
        match self {
            Self::Probe(_) => PROBE_LEN,
            Self::Notify(_) => NOTIFY_LEN,
            Self::Config(c) => CONFIG_HEADER + c.bytes.len(),
            Self::ConfigAck(_) => 6,
            Self::MtuProbe(MtuProbe { size }) | Self::CapacityProbe(CapacityProbe { size, .. }) => {
                usize::from(*size).saturating_sub(SECURE_OVERHEAD)
            }
            Self::MtuAck(_) => 2,
            Self::CapacityAck(_) => CAPACITY_ACK_LEN,
            Self::Close(_) => 1,
        }
    }

    fn check(&self) -> Result<(), WireError> {
        match self {
            Self::Probe(p) => check_loss(p.lasting_loss),
            Self::Notify(n) => path_id(n.path).map(drop),
            Self::Config(c) => check_config(c),
            Self::ConfigAck(a) => fragment(a.fragment, CONFIG_FRAGMENTS_MAX).map(drop),
            Self::MtuProbe(p) if p.size < MtuProbe::MIN => {
                Err(WireError::Value { what: "size of an MTU probe", got: p.size.into() })
            }
            Self::CapacityProbe(p) if p.size < CapacityProbe::MIN => {
                Err(WireError::Value { what: "size of a capacity probe", got: p.size.into() })
            }
            _ => Ok(()),
        }
    }
}

fn probe(kind: ProbeKind, b: &[u8]) -> Result<Probe, WireError> {
    exactly(b, "probe", PROBE_LEN)?;
    check_loss(u16_at(b, 58))?;
    Ok(Probe {
        kind,
        id: u32_at(b, 0),
        rtt_us: u32_at(b, 4),
        timestamp_ns: u64_at(b, 8),
        echo_ns: u64_at(b, 16),
        counters: PathCounters {
            tx_packets: u64_at(b, 24),
            tx_bytes: u64_at(b, 32),
            rx_packets: u64_at(b, 40),
            rx_bytes: u64_at(b, 48),
        },
        reorder_available: u16_at(b, 56),
        lasting_loss: u16_at(b, 58),
    })
}

fn check_loss(hundredths: u16) -> Result<(), WireError> {
    if hundredths > 10_000 {
        return Err(WireError::Value { what: "lasting loss of a path", got: hundredths.into() });
    }
    Ok(())
}

fn notify(b: &[u8]) -> Result<Notify, WireError> {
    exactly(b, "notify", NOTIFY_LEN)?;
    let up = match b[1] {
        0 => false,
        1 => true,
        other => return Err(WireError::Value { what: "state of an access", got: other.into() }),
    };
    Ok(Notify { path: path_id(b[0])?, up, reason: b[2], sequence: u32_at(b, 4) })
}

fn config(b: &[u8]) -> Result<Config<'_>, WireError> {
    need(b, "config", CONFIG_HEADER)?;
    let config = Config {
        version: u32_at(b, 0),
        fragment: u16_at(b, 4),
        fragments: u16_at(b, 6),
        bytes: &b[CONFIG_HEADER..],
    };
    check_config(&config)?;
    Ok(config)
}

fn check_config(c: &Config<'_>) -> Result<(), WireError> {
    if !(1..=CONFIG_FRAGMENTS_MAX).contains(&c.fragments) {
        return Err(WireError::Value { what: "number of fragments", got: c.fragments.into() });
    }
    fragment(c.fragment, c.fragments)?;
    if c.bytes.is_empty() {
        return Err(WireError::Missing("bytes of a config fragment"));
    }
    if c.bytes.len() > CONFIG_FRAGMENT_MAX {
        let have = c.bytes.len();
        return Err(WireError::TooLong { what: "config fragment", most: CONFIG_FRAGMENT_MAX, have });
    }
    Ok(())
}

fn fragment(index: u16, of: u16) -> Result<u16, WireError> {
    if index < of { Ok(index) } else { Err(WireError::Value { what: "fragment", got: index.into() }) }
}

fn path_id(path: u8) -> Result<u8, WireError> {
    if usize::from(path) < MAX_PATHS {
        Ok(path)
    } else {
        Err(WireError::Value { what: "path id", got: path.into() })
    }
}

fn exactly(b: &[u8], what: &'static str, expected: usize) -> Result<(), WireError> {
    if b.len() == expected { Ok(()) } else { Err(WireError::Length { what, expected, have: b.len() }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn golden_layouts() {
        let counters = PathCounters { tx_packets: 1, tx_bytes: 2, rx_packets: 3, rx_bytes: 4 };
        let probe = Probe {
            kind: ProbeKind::Reply,
            id: 0x0102_0304,
            timestamp_ns: 5,
            echo_ns: 6,
            rtt_us: 7,
            counters,
            reorder_available: 8,
            lasting_loss: 12,
        };
        let b = Control::Probe(probe).encode().unwrap();
        assert_eq!(b.len(), 68);
        assert_eq!(b[..16], [0xA0, 59, 0, 60, 0, 0, 0, 0, 1, 2, 3, 4, 0, 0, 0, 7]);
        assert_eq!(b[16..32], [0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 6]);
        assert_eq!([b[39], b[47], b[55], b[63]], [1, 2, 3, 4]);
        assert_eq!(b[64..], [0, 8, 0, 12]);

        for (message, golden) in [
            (
                Control::Notify(Notify { path: 1, up: true, reason: 2, sequence: 3 }),
                &[0xC0u8, 59, 0, 8, 0, 0, 0, 0, 1, 1, 2, 0, 0, 0, 0, 3][..],
            ),
            (
                Control::Config(Config { version: 1, fragment: 2, fragments: 3, bytes: b"{}" }),
                &[0xD0, 59, 0, 10, 0, 0, 0, 0, 0, 0, 0, 1, 0, 2, 0, 3, b'{', b'}'],
            ),
            (
                Control::ConfigAck(ConfigAck { version: 1, fragment: 2 }),
                &[0xD1, 59, 0, 6, 0, 0, 0, 0, 0, 0, 0, 1, 0, 2],
            ),
            (Control::MtuProbe(MtuProbe { size: 44 }), &[0xE0, 59, 0, 4, 0, 0, 0, 0, 0, 44, 0, 0]),
            (Control::MtuAck(MtuAck { size: 1300 }), &[0xE1, 59, 0, 2, 0, 0, 0, 0, 5, 0x14]),
            (
                Control::CapacityProbe(CapacityProbe { size: 53, train: 258, index: 3 }),
                &[0xE2, 59, 0, 13, 0, 0, 0, 0, 0, 53, 1, 2, 0, 3, 0, 0, 0, 0, 0, 0, 0],
            ),
            (
                Control::CapacityAck(CapacityAck { train: 258, index: 3, timestamp_ns: 4 }),
                &[0xE3, 59, 0, 12, 0, 0, 0, 0, 1, 2, 0, 3, 0, 0, 0, 0, 0, 0, 0, 4],
            ),
            (Control::Close(Close { reason: 9 }), &[0xF0, 59, 0, 1, 0, 0, 0, 0, 9]),
        ] {
            assert_eq!(message.encode().unwrap(), golden);
            assert_eq!(Control::parse(golden), Ok(message));
        }
    }

    #[test]
    fn values_out_of_range_are_refused_when_read_and_written() {
        for bad in [
            Control::Notify(Notify { path: 8, up: true, reason: 0, sequence: 0 }),
            Control::Config(Config { version: 0, fragment: 1, fragments: 1, bytes: b"x" }),
            Control::Config(Config { version: 0, fragment: 0, fragments: 257, bytes: b"x" }),
            Control::Config(Config { version: 0, fragment: 0, fragments: 1, bytes: b"" }),
            Control::Config(Config { version: 0, fragment: 0, fragments: 1, bytes: &[0; 1025] }),
            Control::ConfigAck(ConfigAck { version: 0, fragment: 256 }),
            Control::MtuProbe(MtuProbe { size: 41 }),
            Control::CapacityProbe(CapacityProbe { size: 51, train: 0, index: 0 }),
        ] {
            assert!(bad.encode().is_err(), "{bad:?}");
        }
        for bad in [
            &[0xC0u8, 59, 0, 8, 0, 0, 0, 0, 8, 1, 2, 0, 0, 0, 0, 3][..], // path 8
            &[0xC0, 59, 0, 8, 0, 0, 0, 0, 1, 2, 2, 0, 0, 0, 0, 3],       // state 2
            &[0xC1, 59, 0, 8, 0, 0, 0, 0, 1, 1, 2, 0, 0, 0, 0, 3],       // flags
            &[0xC0, 59, 0, 8, 0, 0, 0, 1, 1, 1, 2, 0, 0, 0, 0, 3],       // sequence
            &[0xE0, 59, 0, 4, 0, 0, 0, 0, 0, 45, 0, 0],                  // not the size it says
            &[0xE2, 59, 0, 12, 0, 0, 0, 0, 0, 53, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], // the same of a train
            &[0xE2, 59, 0, 6, 0, 0, 0, 0, 0, 46, 0, 0, 0, 0],            // shorter than its answer
            &[0xC2, 59, 0, 8, 0, 0, 0, 0, 1, 1, 2, 0, 0, 0, 0, 3], // only capacity probes are of a train
            &[0x80, 4, 0, 1, 0, 0, 0, 0, 0x45],                    // data
            &[0x90, 59, 0, 1, 0, 0, 0, 0, 0],                      // short probe
        ] {
            assert!(Control::parse(bad).is_err(), "{bad:02x?}");
        }
        let mut lossy = [0; InnerHeader::LEN + PROBE_LEN];
        lossy[..4].copy_from_slice(&[0x90, 59, 0, 60]);
        for (loss, good) in [(0u16, true), (10_000, true), (10_001, false)] {
            lossy[InnerHeader::LEN + 58..].copy_from_slice(&loss.to_be_bytes());
            assert_eq!(Control::parse(&lossy).is_ok(), good, "{loss}");
        }
        // A probe of 1232 bytes of UDP payload has exactly that size once sealed.
        let probe = Control::MtuProbe(MtuProbe { size: 1232 });
        assert_eq!(probe.encoded_len() + SECURE_OVERHEAD - InnerHeader::LEN, 1232);
    }

    proptest! {
        #[test]
        fn round_trips(
            a: u32, b: u64, c: u64, d: u32, n: [u64; 4], r: u16, l in 0u16..=10_000, path in 0u8..8, up: bool, reason: u8,
            fragments in 1u16..=CONFIG_FRAGMENTS_MAX, size in MtuProbe::MIN..4000,
            bytes in proptest::collection::vec(any::<u8>(), 1..CONFIG_FRAGMENT_MAX),
        ) {
            let counters =
                PathCounters { tx_packets: n[0], tx_bytes: n[1], rx_packets: n[2], rx_bytes: n[3] };
            let probe = |kind| Probe {
                kind, id: a, timestamp_ns: b, echo_ns: c, rtt_us: d, counters, reorder_available: r, lasting_loss: l,
            };
            for m in [
                Control::Probe(probe(ProbeKind::Request)),
                Control::Probe(probe(ProbeKind::Reply)),
                Control::Probe(probe(ProbeKind::Ack)),
                Control::Notify(Notify { path, up, reason, sequence: a }),
                Control::Config(Config { version: a, fragment: r % fragments, fragments, bytes: &bytes }),
                Control::ConfigAck(ConfigAck { version: a, fragment: r % CONFIG_FRAGMENTS_MAX }),
                Control::MtuProbe(MtuProbe { size }),
                Control::MtuAck(MtuAck { size: r }),
                Control::CapacityProbe(CapacityProbe { size: size + 10, train: r, index: r }),
                Control::CapacityAck(CapacityAck { train: r, index: r, timestamp_ns: b }),
                Control::Close(Close { reason }),
            ] {
                let b = m.encode().unwrap();
                prop_assert_eq!(b.len(), m.encoded_len());
                prop_assert_eq!(Control::parse(&b), Ok(m));
                for cut in 0..b.len().min(80) {
                    prop_assert!(Control::parse(&b[..cut]).is_err());
                }
            }
        }

        #[test]
        fn what_parses_encodes_again(
            kind in 0x8u8..=0xF, flags in 0u8..2, body in proptest::collection::vec(any::<u8>(), 0..80),
        ) {
            let mut buf = vec![kind << 4 | flags, 59, 0, body.len() as u8, 0, 0, 0, 0];
            buf.extend_from_slice(&body);
            if let Ok(m) = Control::parse(&buf) {
                let again = m.encode().unwrap();
                prop_assert_eq!(Control::parse(&again), Ok(m));
            }
        }
    }
}
