//! A cell of a thousand UEs: what it holds of memory, and how long a TTI takes.

use super::super::{Result1, figures, stats};
use anabranch_element::packet::Packet;
use anabranch_element::time::Duration;
use anabranch_element::time::Instant as Time;
use anabranch_element::{Element, Port, Sink, drive};
use anabranch_ran::amc::{LteConfig, RadioConfig};
use anabranch_ran::channel::ChannelConfig;
use anabranch_ran::gnb::{BearerConfig, Gnb, GnbConfig, GnbEvent, UeConfig};
use anabranch_ran::queue::Algorithm;
use anabranch_ran::sched::{InterAlgorithm, SliceConfig};
use anabranch_wire::ip::udp_datagram;
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Instant;

const UES: u32 = 1000;
const SLICES: u32 = 4;
/// TTIs measured, after as many to find its pace.
const TTIS: u32 = 2000;
/// 20 MHz of LTE.
const RBS: u16 = 100;

pub fn run() -> Result<Result1> {
    let mut table = figures(&[
        "load",
        "scheduler",
        "limiter",
        "MiB",
        "kB per UE",
        "µs per TTI p50",
        "p99",
        "packets per TTI",
    ]);
    let mut rows = Vec::new();
    for (load, busy) in [("10 packets per TTI", false), ("every UE backlogged", true)] {
        for (scheduler, queue) in [
            (InterAlgorithm::Fixed, Algorithm::Vanilla),
            (InterAlgorithm::EqpExact, Algorithm::E5gBdp),
            (InterAlgorithm::GpsPacking, Algorithm::Jit),
        ] {
            let before = resident_bytes();
            let mut cell = Cell::new(scheduler, queue)?;
            for _ in 0..TTIS {
                cell.tti(busy);
            }
            let delivered = cell.delivered.0;
            let mut took: Vec<u64> = (0..TTIS).map(|_| cell.tti(busy)).collect();
            let packets = (cell.delivered.0 - delivered) as f64 / f64::from(TTIS);
            // What an earlier cell gave back to the allocator is used again: this is at least what it takes.
            let held = resident_bytes().saturating_sub(before);
            let (p50, p99) = (stats::quantile(&mut took, 0.5), stats::quantile(&mut took, 0.99));
            table.add_row([
                load.to_owned(),
                scheduler.name().to_owned(),
                queue.name().to_owned(),
                format!("{:.1}", held as f64 / 1_048_576.0),
                format!("{:.1}", held as f64 / f64::from(UES) * 1e-3),
                stats::us(p50),
                stats::us(p99),
                format!("{packets:.1}"),
            ]);
            rows.push(json!({
                "load": load, "scheduler": scheduler.name(), "limiter": queue.name(), "held_bytes": held,
                "p50_us": p50 as f64 * 1e-3, "p99_us": p99 as f64 * 1e-3, "packets_per_tti": packets,
            }));
        }
    }
    let notes = vec![format!(
        "{UES} UEs in {SLICES} slices, LTE of {RBS} RBs; downlink packets of 500 bytes; a TTI is arrivals, limiters, \
         scheduler, RLC, air, and delivery. Memory is what became resident beside all before it."
    )];
    Ok(Result1 { name: "ues", table, json: Value::from(rows), notes })
}

struct Cell {
    gnb: Gnb,
    packets: Vec<Vec<u8>>,
    now: Time,
    /// The next UE that gets a packet.
    next: u32,
    delivered: Delivered,
}

/// How many packets came out; their buffers are used again.
#[derive(Default)]
struct Delivered(u64, Vec<Vec<u8>>);

impl Sink<GnbEvent> for Delivered {
    fn transmit(&mut self, _: Port, packet: Packet) {
        self.0 += 1;
        self.1.push(packet.into_buffer());
    }
    fn event(&mut self, _: GnbEvent) {}
}

impl Cell {
    fn new(scheduler: InterAlgorithm, queue: Algorithm) -> Result<Self> {
        let address = |ue: u32| IpAddr::V4(Ipv4Addr::from(0x0a2d_0000 + ue + 1));
        let share = 100.0 / f64::from(SLICES);
        let config = GnbConfig {
            radio: RadioConfig::Lte(LteConfig { rbs: RBS, ..LteConfig::default() }),
            scheduler: scheduler.into(),
            slices: (0..SLICES).map(|n| SliceConfig::new(format!("s{n}"), share)).collect(),
            ues: (0..UES)
                .map(|n| UeConfig {
                    addresses: vec![address(n)],
                    bearer: BearerConfig::with_queue(queue),
                    ..UeConfig::new(
                        format!("ue{n}"),
                        format!("s{}", n % SLICES),
                        ChannelConfig::mcs(10 + n as u8 % 19),
                    )
                })
                .collect(),
            ..serde_json::from_str(r#"{"ues": []}"#).context("a cell")?
        };
        let far = SocketAddr::from(([198, 51, 100, 1], 9));
        let packets = (0..UES).map(|n| udp_datagram(far, SocketAddr::new(address(n), 7), &[0; 472]));
        let packets = packets.collect::<Result<_, _>>().context("packets")?;
        let gnb = Gnb::new(&config, &mut |file| Err(format!("no file {file}")))?;
        Ok(Self { gnb, packets, now: Time::ZERO, next: 0, delivered: Delivered::default() })
    }

    /// A TTI: packets arrive, and what is due happens. Nanoseconds it took.
    fn tti(&mut self, busy: bool) -> u64 {
        let end = self.now + Duration::from_millis(1);
        // Everybody has a packet more than could be sent, or ten UEs in turn get one.
        let arrivals = if busy { if self.next == 0 { 10 * UES } else { 40 } } else { 10 };
        let from = Instant::now();
        for _ in 0..arrivals {
            let ue = self.next % UES;
            self.next += 1;
            let mut buffer = self.delivered.1.pop().unwrap_or_default();
            buffer.extend_from_slice(&self.packets[ue as usize]);
            self.gnb.on_packet(Gnb::N3, Packet::new(self.now, buffer), self.now);
        }
        drive(&mut self.gnb, self.now, &mut self.delivered);
        while let Some((at, _)) = self.gnb.poll_timeout().filter(|(at, _)| *at <= end) {
            drive(&mut self.gnb, at, &mut self.delivered);
        }
        self.now = end;
        u64::try_from(from.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// What this process holds of memory.
fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
}
