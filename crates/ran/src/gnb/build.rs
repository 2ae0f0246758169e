//! Construction of a cell from its configuration.

use super::config::{GnbConfig, GnbError, MAX_UES, N3};
use super::slot::Scratch;
use super::stats::LinkStats;
use super::ue::{TraceLoader, Ue};
use super::{Gnb, Link};
use crate::amc::Amc;
use crate::mac::Harq;
use crate::rlc::BufferPool;
use crate::sched::InterConfig;
use anabranch_element::time::{Duration, Instant, nanos};
use rand_chacha::ChaCha12Rng;
use rand_core::{RngCore, SeedableRng};
use std::collections::VecDeque;

/// Default number of slots from a backlog at the UE to its grant.
const GRANT_DELAY_SLOTS: u8 = 4;

impl Gnb {
    /// An empty cell. `load` returns the text of a channel trace by name.
    ///
    /// # Errors
    /// The first fault found: an RB count or MCS that is not in the carrier's table, shares above 100 %, a value that is not a
    /// number or out of range, a malformed trace, or a name or address that is used twice.
    pub fn new(config: &GnbConfig, load: &mut TraceLoader<'_>) -> Result<Self, GnbError> {
        let amc = Amc::new(&config.radio)?;
        let inter: [InterConfig; 2] = [
            config.scheduler.clone(),
            config.uplink_scheduler.clone().unwrap_or_else(|| config.scheduler.clone()),
        ];
        inter.iter().try_for_each(|inter| inter.check_slices(&config.slices))?;
        check_mac(config, &amc)?;
        if !(1..=MAX_UES).contains(&config.ues.len()) {
            return Err(GnbError::value("ues", config.ues.len(), "1 to 65535 UEs"));
        }
        let mut seeds = ChaCha12Rng::seed_from_u64(config.seed);
        let (mut ues, mut by_address, mut by_teid) = (Vec::new(), Vec::new(), Vec::new());
        let delay = config.mac.grant_delay_slots.unwrap_or(GRANT_DELAY_SLOTS);
        for (number, ue) in (0_u32..).zip(&config.ues) {
            let fail = |what| GnbError::Ue { ue: ue.name.clone(), what };
            let unknown = || super::UeError::value("slice", &ue.slice, "the name of a slice");
            let slice = config.slices.iter().position(|s| s.name == ue.slice);
            let slice = slice.ok_or_else(unknown).map_err(fail)?;
            let mut built = Ue::new(ue, slice as u16, &amc, delay, &mut seeds, load).map_err(fail)?;
            let teid = ue.teid_downlink.unwrap_or(number + 1);
            built.teid_uplink = ue.teid_uplink.unwrap_or(teid);
            by_teid.push((teid, number));
            by_address.extend(ue.addresses.iter().map(|address| (*address, number)));
            ues.push(built);
        }
        let mut names: Vec<&str> = config.ues.iter().map(|ue| ue.name.as_str()).collect();
        names.sort_unstable();
        if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1] || pair[0].is_empty()) {
            return Err(GnbError::value("ues.name", twice[0], "different for every UE, and not empty"));
        }
        by_address.sort_unstable();
        if let Some(twice) = by_address.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(GnbError::value("ues.addresses", twice[0].0, "listed only once, at one UE"));
        }
        by_teid.sort_unstable();
        if let Some(twice) = by_teid.windows(2).find(|pair| config.n3 == N3::Gtpu && pair[0].0 == pair[1].0) {
            return Err(GnbError::value("ues.teid_downlink", twice[0].0, "each given to one UE"));
        }
        let mut link = |inter: &InterConfig| {
            Ok::<_, GnbError>(Link {
                scheduler: inter.build(config.slices.len(), config.ues.len())?,
                harq: Harq::new(config.harq, &config.radio, amc.slot(), seeds.next_u64()),
                flights: VecDeque::new(),
                stats: LinkStats::default(),
                counted: 0,
            })
        };
        let mut cell = Self {
            n3: config.n3,
            links: [link(&inter[0])?, link(&inter[1])?],
            inter,
            air_delay: config.mac.air_delay_us.map_or(amc.slot(), |us| Duration::from_micros(us.into())),
            control: config.mac.control.clone(),
            forecast: config.mac.forecast.unwrap_or(true),
            telemetry: config.telemetry,
            slices: config.slices.clone(),
            ues,
            by_address,
            recent_address: None,
            by_teid,
            n3_fault: None,
            active: Vec::new(),
            period_slots: period_slots(config, &amc),
            slot_ns: nanos(amc.slot()).max(1),
            wake: Instant::MAX,
            next_slot: 0,
            ticking: false,
            due: Instant::MAX,
            pool: BufferPool::default(),
            out: VecDeque::new(),
            events: VecDeque::new(),
            scratch: Scratch::default(),
            amc,
        };
        if let Some(ioam) = config.ioam {
            cell.set_ioam(ioam)?;
        }
        Ok(cell)
    }
}

fn check_mac(config: &GnbConfig, amc: &Amc) -> Result<(), GnbError> {
    if let Some((key, value, remedy)) = config.harq.wrong() {
        return Err(GnbError::Value { key, value, remedy });
    }
    let mac = &config.mac;
    if let Some(delay @ 65..) = mac.grant_delay_slots {
        return Err(GnbError::value("mac.grant_delay_slots", delay, "0 to 64"));
    }
    if let Some(delay @ 1_000_001..) = mac.air_delay_us {
        return Err(GnbError::value("mac.air_delay_us", delay, "0 to 1000000"));
    }
    for load in &mac.control {
        if load.rbs > amc.rbs() {
            return Err(GnbError::value("mac.control.rbs", load.rbs, "no more than the carrier has"));
        }
        if load.every_slots == 0 || load.offset_slots >= load.every_slots {
            let value = format!("{} of {}", load.offset_slots, load.every_slots);
            return Err(GnbError::value(
                "mac.control.offset_slots",
                value,
                "below every_slots, which is at least 1",
            ));
        }
    }
    Ok(())
}

/// Number of slots after which directions and control loads repeat. A period above 2²⁰ slots is treated as 2²⁰; only the
/// counters of idle RBs are then inexact.
fn period_slots(config: &GnbConfig, amc: &Amc) -> u64 {
    let gcd = |mut a: u64, mut b: u64| {
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    let lcm = |a: u64, b: u64| (a / gcd(a, b).max(1)).saturating_mul(b).min(1 << 20);
    config.mac.control.iter().fold(amc.period_slots(), |period, load| lcm(period, load.every_slots.into()))
}
