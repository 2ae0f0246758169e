//! HARQ: a block that is not decoded is retransmitted 8 slots later (LTE: TS 36.321 §5.3.2, FDD), on the same number of RBs.
//!
//! ```text
//!   TTI   0    1    2    3    4    5    6    7    8
//!         ▓ ✗  ▓    ▓    ▓                        ▓ again      later blocks may overtake it: RLC and PDCP
//!                                                              restore the order
//! ```
//!
//! Decoding errors are random: with probability `bler` for the first transmission and `bler_retx` for each later one, which
//! soft combining makes more robust. A UE has one block per slot, so it gets no new data in a slot with a retransmission. It
//! also gets none while as many blocks as it has processes wait for retransmission.
//!
//! NR leaves the delay to the gNB (K1, TS 38.213 §9.2.3). 8 slots are 0.5 ms at µ = 4. A UE decodes a block within 20
//! symbols, 0.18 ms at µ = 3 (TS 38.214 Table 5.3-1), and the gNB needs as long again. A delay of 8 ms would be 64 slots at
//! µ = 3 and 128 at µ = 4, with 6 and 13 waiting blocks at a BLER of 10 %, which exhausts the processes: NR has 16 of them
//! (TS 38.214 §5.1), LTE 8.

use super::block::TransportBlock;
use crate::amc::RadioConfig;
use anabranch_element::time::{Duration, Instant};
use rand_chacha::ChaCha12Rng;
use rand_core::{RngCore, SeedableRng};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Parameters. The defaults lose nothing, because the delay in the paper excludes HARQ (RLC §V-G).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HarqConfig {
    /// Block error rate of first transmissions, 0 to 1; link adaptation aims at 0.1.
    pub bler: f64,
    /// Block error rate of retransmissions, 0 to 1.
    pub bler_retx: f64,
    /// Time to a retransmission, microseconds, at least 1; default: 8 slots.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retx_delay_us: Option<u32>,
    /// Maximum number of transmissions of a block, 1 to 16; after that the block is lost.
    pub max_transmissions: u8,
    /// Maximum number of blocks of a UE that wait for retransmission, 1 to 32; default: 16, in LTE 8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processes: Option<u8>,
}

/// Default number of slots to a retransmission.
const DELAY_SLOTS: u32 = 8;

impl Default for HarqConfig {
    fn default() -> Self {
        Self { bler: 0.0, bler_retx: 0.01, retx_delay_us: None, max_transmissions: 4, processes: None }
    }
}

impl HarqConfig {
    /// The first parameter that is out of range: key, value and valid values.
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

/// Result of a transmission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Decoded.
    Arrives,
    /// Not decoded; to be retransmitted.
    Again,
    /// Not decoded in the last permitted transmission.
    Lost,
}

/// A block that waits for retransmission.
#[derive(Debug, Clone)]
pub struct Retx {
    /// Earliest time of the retransmission.
    pub due: Instant,
    /// Index of the UE in the cell.
    pub ue: u32,
    /// The transport block to retransmit.
    pub block: TransportBlock,
}

/// The blocks of one direction that wait for retransmission.
#[derive(Debug, Clone)]
pub struct Harq {
    config: HarqConfig,
    delay: Duration,
    processes: u8,
    waiting: VecDeque<Retx>,
    rng: ChaCha12Rng,
}

impl Harq {
    /// Creates an empty set. Unset parameters take the defaults of the RAT, with slots of duration `slot`.
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

    /// Maximum number of waiting blocks per UE.
    #[must_use]
    pub fn processes(&self) -> u8 {
        self.processes
    }

    /// Counts a transmission of a block and returns its result.
    #[inline]
    pub fn send(&mut self, block: &mut TransportBlock) -> Outcome {
        block.transmissions = block.transmissions.saturating_add(1);
        let bler = if block.transmissions == 1 { self.config.bler } else { self.config.bler_retx };
        // Without loss no random number is drawn, so these runs do not depend on the seed.
        let decoded = bler <= 0.0 || (self.rng.next_u64() >> 11) as f64 >= bler * (1_u64 << 53) as f64;
        if decoded {
            Outcome::Arrives
        } else if block.transmissions >= self.config.max_transmissions {
            Outcome::Lost
        } else {
            Outcome::Again
        }
    }

    /// Stores a block sent at `now` for retransmission.
    pub fn keep(&mut self, ue: u32, block: TransportBlock, now: Instant) {
        let due = now + self.delay;
        // All blocks wait equally long, so they stay in order.
        self.waiting.push_back(Retx { due, ue, block });
    }

    /// Puts back a block that did not fit into the slot.
    pub fn put_back(&mut self, retx: Retx) {
        self.waiting.push_front(retx);
    }

    /// Removes the first block that is due.
    #[inline]
    pub fn take_due(&mut self, now: Instant) -> Option<Retx> {
        if self.waiting.front()?.due > now { None } else { self.waiting.pop_front() }
    }

    /// RBs of the retransmissions due at `at`.
    #[must_use]
    pub fn rbs_due(&self, at: Instant) -> u16 {
        let due = self.waiting.iter().take_while(|retx| retx.due <= at);
        due.fold(0, |sum, retx| sum.saturating_add(retx.block.rbs))
    }

    /// Whether a retransmission of a UE is due at `at`.
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
    fn losses_match_the_configured_rate() {
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
    fn values_out_of_range_are_reported() {
        let wrong = |c: HarqConfig| c.wrong().map(|(key, value, _)| format!("{key} = {value}"));
        let d = HarqConfig::default;
        assert_eq!(wrong(d()), None);
        assert_eq!(wrong(HarqConfig { bler: f64::NAN, ..d() }).unwrap(), "harq.bler = NaN");
        assert_eq!(wrong(HarqConfig { processes: Some(33), ..d() }).unwrap(), "harq.processes = 33");
        assert_eq!(wrong(HarqConfig { retx_delay_us: Some(0), ..d() }).unwrap(), "harq.retx_delay_us = 0");
        assert_eq!(wrong(HarqConfig { max_transmissions: 0, ..d() }).unwrap(), "harq.max_transmissions = 0");
    }
}
