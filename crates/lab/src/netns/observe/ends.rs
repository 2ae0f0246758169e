//! What the tunnel ends say of themselves: RTTs, events, memory.

use super::super::agent::{Agent, Event, Next};
use super::super::program::resident_bytes;
use super::super::stop::Stop;
use anyhow::Result;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How often memory is looked at.
const MEMORY_PERIOD: Duration = Duration::from_millis(100);

/// RTTs at times, milliseconds; 0 while the path is down. By UE and access.
pub type Rtts = BTreeMap<(String, String), Vec<(f64, f64)>>;

/// Asks UEs for the RTTs of their paths until asked to end.
///
/// # Errors
/// One does not answer.
pub fn rtts(agents: &[Agent], start: Instant, period: Duration, end: &Stop) -> Result<Rtts> {
    let mut seen = Rtts::new();
    let mut next = start;
    while !end.sleep_until(next) {
        for agent in agents {
            let now = start.elapsed().as_secs_f64();
            for path in agent.paths()? {
                let rtt = path.rtt_ms.filter(|_| path.up).unwrap_or(0.0);
                seen.entry((path.ue, path.access)).or_default().push((now, rtt));
            }
        }
        next = (next + period).max(Instant::now());
    }
    Ok(seen)
}

/// Collects the events of an agent from `from_unix_ms` on until asked to end.
///
/// # Errors
/// It does not answer.
pub fn events(agent: &Agent, from_unix_ms: u64, end: &Stop) -> Result<Vec<Event>> {
    let mut seen = Vec::new();
    let mut events = agent.events()?;
    loop {
        match events.wait_next()? {
            Next::Event(event) if event.time_unix_ms >= from_unix_ms => seen.push(event),
            Next::Event(_) => {}
            // What came before the end was asked for is read before that is looked at.
            Next::Nothing if end.requested() => return Ok(seen),
            Next::Nothing => {}
            Next::End => return Ok(seen),
        }
    }
}

/// Resident memory at times, bytes, by process id, until asked to end.
pub fn memory(pids: &[u32], start: Instant, end: &Stop) -> BTreeMap<u32, Vec<(f64, u64)>> {
    let mut seen: BTreeMap<u32, Vec<(f64, u64)>> = BTreeMap::new();
    let mut next = start;
    while !end.sleep_until(next) {
        let now = start.elapsed().as_secs_f64();
        for pid in pids {
            if let Some(bytes) = resident_bytes(*pid) {
                seen.entry(*pid).or_default().push((now, bytes));
            }
        }
        next = (next + MEMORY_PERIOD).max(Instant::now());
    }
    seen
}
