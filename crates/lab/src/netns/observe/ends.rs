//! Observation of the tunnel ends: RTTs, events, memory, processor time.

use super::super::agent::{Agent, Event, Next};
use super::super::program::{cpu_s, resident_bytes};
use super::super::stop::Stop;
use anyhow::Result;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Sampling interval of processes.
const USAGE_PERIOD: Duration = Duration::from_millis(100);

/// RTTs over time, milliseconds; 0 while the path is down. By UE and access.
pub type Rtts = BTreeMap<(String, String), Vec<(f64, f64)>>;

/// Polls UEs for the RTTs of their paths until the end is requested.
///
/// # Errors
/// An agent does not answer.
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

/// Collects the events of an agent from `from_unix_ms` until the end is requested.
///
/// # Errors
/// The agent does not answer.
pub fn events(agent: &Agent, from_unix_ms: u64, end: &Stop) -> Result<Vec<Event>> {
    let mut seen = Vec::new();
    let mut events = agent.events()?;
    loop {
        match events.wait_next()? {
            Next::Event(event) if event.time_unix_ms >= from_unix_ms => seen.push(event),
            Next::Event(_) => {}
            // Events from before the end are read before the request is checked.
            Next::Nothing if end.requested() => return Ok(seen),
            Next::Nothing => {}
            Next::End => return Ok(seen),
        }
    }
}

/// Resource usage of a process over time.
#[derive(Debug, Default)]
pub struct Usage {
    /// Resident memory, bytes.
    pub memory: Vec<(f64, u64)>,
    /// Processor time so far, seconds.
    pub cpu: Vec<(f64, f64)>,
}

/// Samples resource usage by process id, until the end is requested.
pub fn usage(pids: &[u32], start: Instant, end: &Stop) -> BTreeMap<u32, Usage> {
    let mut seen: BTreeMap<u32, Usage> = BTreeMap::new();
    let mut next = start;
    while !end.sleep_until(next) {
        let now = start.elapsed().as_secs_f64();
        for pid in pids {
            let of = seen.entry(*pid).or_default();
            of.memory.extend(resident_bytes(*pid).map(|bytes| (now, bytes)));
            of.cpu.extend(cpu_s(*pid).map(|seconds| (now, seconds)));
        }
        next = (next + USAGE_PERIOD).max(Instant::now());
    }
    seen
}
