//! HARQ: a block that is not decoded is sent again, 8 slots later (LTE: TS 36.321 §5.3.2, FDD), on as many RBs.
//!
//! ```text
//!   TTI   0    1    2    3    4    5    6    7    8
//!         ▓ ✗  ▓    ▓    ▓                        ▓ again      later blocks may overtake it: RLC and PDCP
//!                                                              put that right
//! ```
//!
//! Whether a block is decoded is drawn: `bler` for the first time, `bler_retx` for each time after, for soft
//! combining makes those better. A UE has one block per slot, and so no new data in a slot with a
//! retransmission; with as many blocks waiting as it has processes it gets nothing new either.
//!
//! NR leaves the delay to the gNB (K1, TS 38.213 §9.2.3). 8 slots are 0.5 ms at µ = 4; a UE decodes a block within 20 symbols,
//! 0.18 ms at µ = 3 (TS 38.214 Table 5.3-1), and the gNB needs as long again. 8 ms there would be 64 and 128 slots,
//! with 6 and 13 blocks waiting at a BLER of 10 %, so that the processes run out. There are 16 of them (TS 38.214 §5.1), 8 in LTE.

use super::block::TransportBlock;
use crate::amc::RadioConfig;
use anabranch_element::time::{Duration, Instant};
use rand_chacha::ChaCha12Rng;
use rand_core::{RngCore, SeedableRng};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Parameters; the defaults lose nothing, as the paper's delay does not count HARQ (RLC §V-G).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HarqConfig {
    /// Share of blocks that are not decoded the first time, 0 to 1; 0.1 is what link adaptation aims at.
    pub bler: f64,
    /// Share of retransmissions that are not decoded either, 0 to 1.
    pub bler_retx: f64,
    /// Time to a retransmission, microseconds, at least 1; left out: 8 slots.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retx_delay_us: Option<u32>,
    /// How often a block is sent, 1 to 16; then it is lost.
    pub max_transmissions: u8,
    /// Blocks of a UE that may wait to be sent again, 1 to 32; left out: 16, in LTE 8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processes: Option<u8>,
}

/// Slots to a retransmission if nobody says otherwise.
const DELAY_SLOTS: u32 = 8;

impl Default for HarqConfig {
    fn default() -> Self {
        Self { bler: 0.0, bler_retx: 0.01, retx_delay_us: None, max_transmissions: 4, processes: None }
    }
}

impl HarqConfig {
    /// The first parameter out of its range: key, value and what would be valid.
    #[must_use]
    pub fn wrong(&self) -> Option<(&'static str, String, &'static str)> {
        let share =
            |key, p: f64| (!(0.0..=1.0).contains(&p)).then(|| (key, p.to_string(), "a number of 0 to 1"));
        let whole = |key, n: u32, ok: bool, remedy| (!ok).then(|| (key, n.to_string(), remedy));
        share("harq.bler", self.bler)
            .or_else(|| share("harq.bler_retx", self.bler_retx))
            .or_else(|| {
                let us = self.retx_delay_us.unwrap_or(1);
                whole("harq.retx_delay_us", us, us > 0, "at least 1")
            })
            .or_else(|| {
                let n = self.max_transmissions;
                whole("harq.max_transmissions", n.into(), (1..=16).contains(&n), "1 to 16")
            })
            .or_else(|| {
                let n = self.processes.unwrap_or(1);
                whole("harq.processes", n.into(), (1..=32).contains(&n), "1 to 32")
            })
    }
}

/// What the air made of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Decoded.
    Arrives,
    /// To be sent again.
    Again,
    /// Sent often enough.
    Lost,
}

/// A block that is sent again.
#[derive(Debug, Clone)]
pub struct Retx {
    /// Not before.
    pub due: Instant,
    /// Whose.
    pub ue: u32,
    /// The block.
    pub block: TransportBlock,
}

/// The blocks of one direction that wait to be sent again.
#[derive(Debug, Clone)]
pub struct Harq {
    config: HarqConfig,
    delay: Duration,
    processes: u8,
    waiting: VecDeque<Retx>,
    rng: ChaCha12Rng,
}

impl Harq {
    /// Nothing waits. What is left out is as usual for such a carrier, with slots of `slot`.
    #[must_use]
    pub fn new(config: HarqConfig, radio: &RadioConfig, slot: Duration, seed: u64) -> Self {
        let usual = if matches!(radio, RadioConfig::Lte(_)) { 8 } else { 16 };
        Self {
            config,
            delay: config.retx_delay_us.map_or(slot * DELAY_SLOTS, |us| Duration::from_micros(us.into())),
            processes: config.processes.unwrap_or(usual),
            waiting: VecDeque::new(),
            rng: ChaCha12Rng::seed_from_u64(seed),
        }
    }

    /// Most blocks of a UE that may wait.
    #[must_use]
    pub fn processes(&self) -> u8 {
        self.processes
    }

    /// A block is sent: what becomes of it.
    #[inline]
    pub fn send(&mut self, block: &mut TransportBlock) -> Outcome {
        block.transmissions = block.transmissions.saturating_add(1);
        let bler = if block.transmissions == 1 { self.config.bler } else { self.config.bler_retx };
        // Without loss nothing is drawn, so that such runs do not depend on the seed.
        let decoded = bler <= 0.0 || (self.rng.next_u64() >> 11) as f64 >= bler * (1_u64 << 53) as f64;
        if decoded {
            Outcome::Arrives
        } else if block.transmissions >= self.config.max_transmissions {
            Outcome::Lost
        } else {
            Outcome::Again
        }
    }

    /// Keeps a block that was sent at `now` and is to be sent again.
    pub fn keep(&mut self, ue: u32, block: TransportBlock, now: Instant) {
        let due = now + self.delay;
        // All wait equally long, so they stay in order.
        self.waiting.push_back(Retx { due, ue, block });
    }

    /// Puts back what did not fit.
    pub fn put_back(&mut self, retx: Retx) {
        self.waiting.push_front(retx);
    }

    /// The first block that is due.
    #[inline]
    pub fn take_due(&mut self, now: Instant) -> Option<Retx> {
        if self.waiting.front()?.due > now { None } else { self.waiting.pop_front() }
    }

    /// RBs of what will be due at `at`.
    #[must_use]
    pub fn rbs_due(&self, at: Instant) -> u16 {
        let due = self.waiting.iter().take_while(|retx| retx.due <= at);
        due.fold(0, |sum, retx| sum.saturating_add(retx.block.rbs))
    }

    /// Whether a block of a UE will be due at `at`.
    #[must_use]
    pub fn is_due(&self, ue: u32, at: Instant) -> bool {
        self.waiting.iter().take_while(|retx| retx.due <= at).any(|retx| retx.ue == ue)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new(config: HarqConfig, seed: u64) -> Harq {
        Harq::new(config, &RadioConfig::default(), Duration::from_millis(1), seed)
    }

    #[test]
    fn losses_are_as_frequent_as_asked_for() {
        let config = HarqConfig { bler: 0.1, bler_retx: 0.5, max_transmissions: 2, ..HarqConfig::default() };
        let mut harq = new(config, 3);
        let (mut again, mut lost) = (0, 0);
        for _ in 0..20_000 {
            let mut block = TransportBlock::default();
            if harq.send(&mut block) == Outcome::Again {
                again += 1;
                lost += u32::from(harq.send(&mut block) == Outcome::Lost);
            }
        }
        assert!((1900..2100).contains(&again) && (900..1100).contains(&lost), "{again} {lost}");
        let mut clear = new(HarqConfig::default(), 3);
        assert!((0..1000).all(|_| clear.send(&mut TransportBlock::default()) == Outcome::Arrives));
    }

    #[test]
    fn a_block_is_due_after_its_delay() {
        let mut harq = new(HarqConfig::default(), 0);
        harq.keep(7, TransportBlock { rbs: 5, ..TransportBlock::default() }, Instant::from_millis(2));
        assert!(harq.take_due(Instant::from_millis(9)).is_none());
        assert_eq!(
            (harq.rbs_due(Instant::from_millis(10)), harq.is_due(7, Instant::from_millis(9))),
            (5, false)
        );
        let retx = harq.take_due(Instant::from_millis(10)).unwrap();
        harq.put_back(retx);
        assert!(harq.is_due(7, Instant::from_millis(10)) && !harq.is_due(6, Instant::from_millis(10)));
    }

    #[test]
    fn what_is_out_of_range_is_named() {
        let wrong = |c: HarqConfig| c.wrong().map(|(key, value, _)| format!("{key} = {value}"));
        let d = HarqConfig::default;
        assert_eq!(wrong(d()), None);
        assert_eq!(wrong(HarqConfig { bler: f64::NAN, ..d() }).unwrap(), "harq.bler = NaN");
        assert_eq!(wrong(HarqConfig { processes: Some(33), ..d() }).unwrap(), "harq.processes = 33");
        assert_eq!(wrong(HarqConfig { retx_delay_us: Some(0), ..d() }).unwrap(), "harq.retx_delay_us = 0");
        assert_eq!(wrong(HarqConfig { max_transmissions: 0, ..d() }).unwrap(), "harq.max_transmissions = 0");
    }
}
