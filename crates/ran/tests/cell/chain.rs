//! The chain of the drawing in `main.rs`.

use anabranch_element::packet::Packet;
use anabranch_element::time::{Duration, Instant, nanos};
use anabranch_ran::amc::Pulls;
use anabranch_ran::queue::{
    AnyBuffer, BearerParams, Buffer, BufferLimit, Forecast, QueueConfig, Sdu, TtiReport,
};
use anabranch_ran::sdap::{FlowConfig, Sdap, SdapConfig};
use rand_chacha::ChaCha12Rng;
use rand_core::{RngCore, SeedableRng};
use std::collections::VecDeque;
use std::fmt;

const TTI: Duration = Duration::from_millis(1);
const VOICE_BYTES: usize = 200;
const BULK_BYTES: usize = 1500;
/// TTIs from a transport block to its retransmission (TS 36.213 §7).
const HARQ_TTIS: u64 = 8;

/// Capacity of the air.
#[derive(Clone)]
pub struct Cell {
    /// Transport block size in bytes, per second.
    pub grants: Vec<u32>,
    /// Share of transport blocks that need a retransmission, which takes all RBs of its TTI.
    pub bler: f64,
}

/// One run over all of `cell.grants`.
pub struct Run {
    pub config: QueueConfig,
    pub cell: Cell,
    /// Phase of SDAP's polls in the TTI.
    pub poll_phase_us: u32,
    /// Maximum lateness of SDAP's timers.
    pub late_us: u64,
    pub voice_flows: usize,
    pub seed: u64,
}

/// Results for voice and for the cell.
pub struct Outcome {
    /// Delay of each voice packet from SDAP to the MAC, ascending, nanoseconds.
    pub delays_ns: Vec<u64>,
    /// Share of the bytes offered by the air that carried data.
    pub used: f64,
}

impl Outcome {
    pub fn mean_ms(&self) -> f64 {
        self.delays_ns.iter().sum::<u64>() as f64 / 1e6 / self.delays_ns.len() as f64
    }
    pub fn quantile_ms(&self, q: f64) -> f64 {
        self.delays_ns[((self.delays_ns.len() - 1) as f64 * q) as usize] as f64 / 1e6
    }
    /// Share of voice packets that waited less than `ms`.
    pub fn within(&self, ms: f64) -> f64 {
        self.delays_ns.iter().filter(|d| (**d as f64) < ms * 1e6).count() as f64 / self.delays_ns.len() as f64
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "< 1 ms {:5.1} %  mean {:6.3} p50 {:6.3} p95 {:7.3} p99 {:7.3} ms  used {:6.2} %",
            self.within(1.0) * 100.0,
            self.mean_ms(),
            self.quantile_ms(0.5),
            self.quantile_ms(0.95),
            self.quantile_ms(0.99),
            self.used * 100.0
        )
    }
}

struct Rlc {
    buffer: AnyBuffer,
    cut: Option<(Sdu, u32)>,
}

impl Rlc {
    /// Fills a transport block; UM with 12-bit SN: 1 byte for a whole SDU, 2 for a first segment, 4 for others.
    fn pull(&mut self, room: u32, now: Instant, mut sent: impl FnMut(Sdu)) -> (u32, u32) {
        let (mut left, mut served) = (room, 0);
        while let Some((sdu, rest)) = self.cut.take().or_else(|| {
            let sdu = self.buffer.pop(now)?;
            let bytes = sdu.bytes();
            Some((sdu, bytes))
        }) {
            let header = match (rest == sdu.bytes(), rest < left) {
                (true, true) => 1,
                (true, false) => 2,
                (false, _) => 4,
            };
            let take = rest.min(left.saturating_sub(header));
            if take == 0 {
                self.cut = Some((sdu, rest));
                break;
            }
            left -= header + take;
            served += take;
            if take < rest {
                self.cut = Some((sdu, rest - take));
                break;
            }
            sent(sdu);
        }
        (served, room - left)
    }

    fn bytes(&self) -> u32 {
        self.buffer.len_bytes() as u32 + self.cut.as_ref().map_or(0, |c| c.1)
    }
}

impl Run {
    pub fn go(&self) -> Outcome {
        let mut rng = ChaCha12Rng::seed_from_u64(self.seed);
        let bearer = BearerParams {
            pulls: Pulls::every(TTI),
            limit: BufferLimit { bytes: 100_000_000, sdus: 100_000 },
            ..BearerParams::default()
        };
        let (limiter, buffer) = self.config.build(bearer).unwrap();
        let mut rlc = Rlc { buffer, cut: None };
        let voice = FlowConfig { priority: 20, ..FlowConfig::new(1, 1) };
        let sdap = SdapConfig {
            poll_phase_us: self.poll_phase_us,
            flows: vec![voice, FlowConfig::new(9, 1)],
            ..SdapConfig::default()
        };
        let mut sdap = Sdap::new(&sdap, |_| limiter.clone()).unwrap();
        // Phase and drift of each talker. 20 ms are two radio frames, so without drift the phase would never change.
        let mut talkers: Vec<(Instant, Duration)> = (0..self.voice_flows)
            .map(|_| {
                let phase = Duration::from_nanos(rng.next_u64() % 20_000_000);
                let drift = rng.next_u64() % 20_000;
                (Instant::ZERO + phase, Duration::from_nanos(19_990_000 + drift))
            })
            .collect();
        let (mut delays, mut offered, mut used) = (Vec::new(), 0u64, 0u64);
        let mut harq: VecDeque<bool> = (0..HARQ_TTIS).map(|_| false).collect();
        let mut timer: Option<(Instant, Instant)> = None;
        let ttis = self.cell.grants.len() as u64 * 1000;
        let grant = |tti: u64| self.cell.grants[(tti / 1000).min(self.cell.grants.len() as u64 - 1) as usize];
        for tti in 0..ttis {
            let tick = Instant::from_millis(tti + 1);
            loop {
                while sdap.backlog_bytes(1) < 50_000 {
                    let at = Instant::from_millis(tti);
                    sdap.enqueue(9, Packet::new(at, vec![0; BULK_BYTES]), at).unwrap();
                }
                let speaks = talkers.iter().map(|(at, _)| *at).min().unwrap_or(Instant::MAX);
                let due = sdap.poll_timeout().map_or(Instant::MAX, |(at, _)| at);
                if timer.is_none_or(|(for_due, _)| for_due != due) {
                    let late = if self.late_us > 0 { rng.next_u64() % (self.late_us * 1000) } else { 0 };
                    timer = Some((due, due + Duration::from_nanos(late)));
                }
                let next =
                    timer.map_or(speaks, |(_, fires)| speaks.min(fires.max(Instant::from_millis(tti))));
                if next >= tick {
                    break;
                }
                for (at, period) in &mut talkers {
                    if *at == next {
                        sdap.enqueue(1, Packet::new(next, vec![0; VOICE_BYTES]), next).unwrap();
                        *at += *period;
                    }
                }
                if timer.is_some_and(|(_, fires)| fires <= next) {
                    sdap.on_timeout(next);
                }
                while let Some((_, sdu)) = sdap.poll_forward(next) {
                    rlc.buffer.push(sdu, next);
                }
            }
            let again = harq.pop_front().unwrap();
            let room = if again { 0 } else { grant(tti) };
            let mut done = Vec::new();
            let (served, filled) = rlc.pull(room, tick, |sdu| done.push(sdu));
            for sdu in done {
                sdap.on_sent(1, sdu.bytes(), tick.saturating_since(sdu.forwarded), tick);
                if sdu.qfi == 1 && tti > 1000 {
                    delays.push(nanos(tick.saturating_since(sdu.arrived)));
                }
            }
            let failed = !again
                && filled > 0
                && ((rng.next_u64() >> 11) as f64) < self.cell.bler * (1u64 << 53) as f64;
            harq.push_back(failed);
            if tti > 1000 {
                offered += u64::from(room);
                used += u64::from(filled);
            }
            let next = Forecast {
                at: tick + TTI,
                bytes: if harq[0] { 0 } else { grant(tti) },
                most_bytes: grant(tti),
            };
            sdap.on_tti(
                1,
                &TtiReport {
                    at: tick,
                    elapsed_ttis: 1,
                    granted_bytes: room,
                    served_bytes: served,
                    buffer_bytes: rlc.bytes(),
                    buffer_sdus: rlc.buffer.len_sdus() as u32 + u32::from(rlc.cut.is_some()),
                    next: Some(next),
                },
            );
        }
        delays.sort_unstable();
        Outcome { delays_ns: delays, used: used as f64 / offered as f64 }
    }
}
