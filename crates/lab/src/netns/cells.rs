//! Cells of a scenario: `anabranch gnb` between the namespaces of UEs and of their UPF, its timed commands, and its
//! observation.

use super::agent::{Agent, CellPacket, Next};
use super::plan::{CellPlan, Plan};
use super::program::{self, Program};
use super::stop::Stop;
use super::topology::{Network, READY};
use super::tunnels::Device;
use crate::backend::Outcome;
use crate::cell::{CellObservations, Waits};
use crate::scenario::Case;
use anabranch_ran::amc::Direction;
use anabranch_ran::channel::ChannelConfig;
use anabranch_ran::gnb::PacketTimes;
use anabranch_ran::sched::SliceConfig;
use anyhow::{Context, Result, anyhow, bail};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};
use toml::{Table, Value};

/// Running cells. They end when this is dropped.
#[derive(Debug, Default)]
pub struct Cells {
    /// By name.
    pub running: BTreeMap<String, RunningCell>,
}

/// A running cell.
#[derive(Debug)]
pub struct RunningCell {
    /// The process.
    pub program: Program,
    /// Its REST interface.
    pub agent: Agent,
    /// Its slices, and UEs with varying channels, at the start.
    pub first: CellState,
}

/// The part of a cell that varies with time.
#[derive(Debug, Clone, Default)]
pub struct CellState {
    /// Its slices.
    pub slices: Vec<SliceConfig>,
    /// UEs whose channel starts to vary when the run begins: name, direction, channel.
    pub moving: Vec<(String, Direction, ChannelConfig)>,
}

impl Cells {
    /// Starts the cells, waits until they are ready, and configures the interfaces they created.
    ///
    /// # Errors
    /// A cell does not start.
    pub fn start(
        case: &Case,
        plan: &Plan,
        network: &Network,
        seed: u64,
        device: Device,
        folder: &Path,
        stop: &Stop,
    ) -> Result<Self> {
        let mut cells = Self::default();
        for (number, cell) in (0..).zip(&plan.cells) {
            let name = &cell.space;
            let path = |ending: &str| folder.join(format!("{name}.{ending}"));
            // Integers of TOML are signed.
            let seed = seed.wrapping_add(number) >> 1;
            let (file, first) = file(case, cell, seed, device, &path("sock"))
                .with_context(|| format!("gnb {}", cell.name))?;
            let text = toml::to_string(&file).context("configuration")?;
            std::fs::write(path("toml"), text).with_context(|| path("toml").display().to_string())?;
            let mut command = program::prompt(program::anabranch()?);
            command.arg("gnb").arg("--config").arg(path("toml"));
            let program = Program::start(network.space(name)?, name, &mut command, folder, None)?;
            let agent = Agent::new(name, &path("sock"));
            cells.running.insert(cell.name.clone(), RunningCell { program, agent, first });
        }
        for running in cells.running.values_mut() {
            let agent = running.agent.clone();
            running.program.wait_ready(READY, stop, || agent.status().is_ok())?;
        }
        for (space, lines) in &plan.radio_setup {
            network.space(space)?.ip(lines)?;
        }
        Ok(cells)
    }

    /// Checks that all cells are running.
    ///
    /// # Errors
    /// The cell that ended, with the end of its log.
    pub fn check(&mut self) -> Result<()> {
        for running in self.running.values_mut() {
            if let Some(status) = running.program.ended()? {
                bail!("{} ended ({status}): {}", running.program.name(), running.program.log_tail());
            }
        }
        Ok(())
    }

    /// Their agents, by name.
    #[must_use]
    pub fn agents(&self) -> Vec<(String, Agent)> {
        self.running.iter().map(|(name, cell)| (name.clone(), cell.agent.clone())).collect()
    }
}

impl Drop for Cells {
    fn drop(&mut self) {
        for running in self.running.values_mut() {
            running.program.stop();
        }
    }
}

/// The configuration file of a cell, and the part of it that varies.
fn file(
    case: &Case,
    plan: &CellPlan,
    seed: u64,
    device: Device,
    socket: &Path,
) -> Result<(Table, CellState)> {
    let gnb = case.gnbs.get(&plan.name).ok_or_else(|| anyhow!("is not in the scenario"))?;
    let ues: Vec<_> = plan.ues.iter().map(|ue| (ue.name.clone(), ue.addresses.clone())).collect();
    let mut cell = gnb.config(seed, &ues).map_err(anyhow::Error::msg)?;
    let mut first = CellState { slices: cell.slices.clone(), moving: Vec::new() };
    for ue in &mut cell.ues {
        // Both directions are explicit here: setting one must not change the other.
        let uplink = ue.uplink_channel.get_or_insert_with(|| ue.channel.clone());
        for (direction, channel) in [(Direction::Downlink, &mut ue.channel), (Direction::Uplink, uplink)] {
            if !matches!(channel, ChannelConfig::Constant { .. }) {
                // The trace must start with the run, not with the program.
                let waiting = ChannelConfig::Constant { mcs: None, cqi: Some(15) };
                first.moving.push((ue.name.clone(), direction, std::mem::replace(channel, waiting)));
            }
        }
    }
    let port = |space: &str, name: &str| {
        let mut table = Table::new();
        table.insert("kind".into(), device.name().into());
        table.insert("name".into(), name.into());
        table.insert("netns".into(), space.into());
        table
    };
    let mut n3 = port(&plan.n3.0, &plan.n3.1);
    n3.insert("mode".into(), "ip".into());
    let devices = plan.ues.iter().map(|ue| {
        let mut table = port(&ue.space, &ue.interface);
        table.insert("ues".into(), vec![Value::from(ue.name.clone())].into());
        Value::Table(table)
    });
    let mut file = Table::new();
    let named = |key: &str, value: String| Table::from_iter([(key.to_owned(), Value::from(value))]);
    file.insert("gnb".into(), named("name", plan.name.clone()).into());
    file.insert("n3".into(), n3.into());
    file.insert("device".into(), Value::Array(devices.collect()));
    file.insert("cell".into(), Value::try_from(&cell).context("the cell as TOML")?);
    file.insert("api".into(), named("listen", format!("unix:{}", socket.display())).into());
    Ok((file, first))
}

/// Lateness of slots, microseconds, and the processor time of the cell.
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Deserialize)]
pub struct Timings {
    /// Number of slots run.
    pub count: u64,
    /// Number of slots that were late by a slot or more.
    pub late: u64,
    /// Median.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// Maximum.
    pub max_us: f64,
    /// Processor time of the cell's thread since its start, milliseconds.
    pub processor_ms: f64,
}

/// Observations of a cell.
#[derive(Debug, Default)]
pub struct Watched {
    /// The observations that the virtual backend has as well, without packets.
    pub seen: CellObservations,
    /// Delivered downlink packets; times since the start of the run.
    pub packets: Vec<PacketTimes>,
    /// Timings, which only real time has; at the end.
    pub ticks: Timings,
    /// Share of one processor that the cell's thread used while it was observed, percent.
    pub processor_percent: f64,
}

/// Minimum interval between two requests to a cell.
const PERIOD: Duration = Duration::from_millis(100);
/// Time after the end during which earlier packets are still reported.
const STRAGGLERS: Duration = Duration::from_millis(250);

/// Observes a cell until the end is requested; the run began at `begin_ns` of the wall clock.
///
/// # Errors
/// The cell does not answer, or reports more packets than could be read.
pub fn watch(agent: &Agent, begin_ns: u64, start: Instant, period: Duration, end: &Stop) -> Result<Watched> {
    std::thread::scope(|scope| {
        let packets = scope.spawn(|| {
            let result = packets(agent, begin_ns, end);
            if result.is_err() {
                end.request();
            }
            result
        });
        let looked = looks(agent, start, period.max(PERIOD), end);
        if looked.is_err() {
            end.request();
        }
        let packets = packets.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        let mut watched = looked?;
        watched.packets = packets;
        Ok(watched)
    })
}

fn looks(agent: &Agent, start: Instant, period: Duration, end: &Stop) -> Result<Watched> {
    let mut watched = Watched::default();
    let mut first = None;
    let mut next = start;
    loop {
        let over = end.sleep_until(next);
        let (cell, slices, ues) = (agent.cell()?, agent.slices()?, agent.cell_ues()?);
        let now = start.elapsed().as_secs_f64();
        watched.ticks = cell.ticks;
        let (since, processor_ms) = *first.get_or_insert((now, cell.ticks.processor_ms));
        watched.processor_percent = (cell.ticks.processor_ms - processor_ms) / 10.0 / (now - since).max(1e-3);
        let seen = &mut watched.seen;
        seen.counters.push((now, cell.downlink));
        seen.uplink.push((now, cell.uplink));
        seen.rlc_bytes.resize_with(ues.len(), Vec::new);
        for (points, ue) in seen.rlc_bytes.iter_mut().zip(&ues) {
            points.push((now, ue.buffer_bytes() as f64));
        }
        let owed: Vec<i32> = slices.iter().filter_map(|slice| slice.downlink.balance_rbs).collect();
        seen.owed_rbs.resize_with(owed.len(), Vec::new);
        for (points, rbs) in seen.owed_rbs.iter_mut().zip(owed) {
            points.push((now, f64::from(rbs)));
        }
        if over {
            return Ok(watched);
        }
        next = (next + period).max(Instant::now());
    }
}

fn packets(agent: &Agent, begin_ns: u64, end: &Stop) -> Result<Vec<PacketTimes>> {
    let mut seen = Vec::new();
    let mut told = agent.packets()?;
    let mut next: Option<u64> = None;
    let mut until: Option<Instant> = None;
    loop {
        match told.wait_next()? {
            Next::Event(batch) => {
                let first = next.replace(batch.first + batch.packets.len() as u64).unwrap_or(batch.first);
                if first != batch.first {
                    bail!("{} packets of the cell were not told in time", batch.first - first);
                }
                let down = batch.packets.iter().filter(|packet| packet.downlink);
                seen.extend(down.filter_map(|p| place(p, batch.start_unix_ns, begin_ns)));
            }
            Next::Nothing => {}
            Next::End => return Ok(seen),
        }
        if until.is_none() && end.requested() {
            until = Some(Instant::now() + STRAGGLERS);
        }
        if until.is_some_and(|until| Instant::now() >= until) {
            return Ok(seen);
        }
    }
}

/// A packet in the time of the run; `None` if it is from before.
fn place(packet: &CellPacket, start_unix_ns: u64, begin_ns: u64) -> Option<PacketTimes> {
    let at = |ns: u64| {
        let since = (start_unix_ns + ns).checked_sub(begin_ns)?;
        Some(anabranch_element::time::Instant::from_nanos(since))
    };
    Some(PacketTimes {
        direction: Direction::Downlink,
        ue: packet.ue,
        drb: packet.drb,
        qfi: packet.qfi,
        bytes: packet.bytes,
        arrived: at(packet.arrived_ns)?,
        forwarded: at(packet.forwarded_ns)?,
        first_pull: at(packet.first_pull_ns)?,
        last_pull: at(packet.last_pull_ns)?,
        first_received: at(packet.first_received_ns)?,
        delivered: at(packet.delivered_ns)?,
    })
}

/// Metrics and series of cells.
pub fn measure(case: &Case, cells: BTreeMap<String, Watched>, end_s: f64, out: &mut Outcome) {
    for (name, watched) in cells {
        let Watched { mut seen, packets, ticks, processor_percent } = watched;
        seen.waits = Waits::between(case.measure_from.as_secs_f64(), end_s);
        packets.iter().for_each(|packet| seen.waits.note(packet, None));
        seen.collect(case, &name, end_s, out);
        let mut put = |what: &str, value: f64| out.metrics.insert(format!("gnb.{name}.{what}"), value);
        put("late_p50_us", ticks.p50_us);
        put("late_p99_us", ticks.p99_us);
        put("late_max_us", ticks.max_us);
        put("late_slots_percent", ticks.late as f64 * 100.0 / ticks.count.max(1) as f64);
        put("processor_percent", processor_percent);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::plan;

    #[test]
    fn the_file_has_the_cell_of_the_scenario() {
        let text = r#"
title = "t"
[gnb.cell]
queue = "jit"
slices = [{ name = "a", share_percent = 25 }, { name = "b", share_percent = 75 }]
[gnb.cell.ue.two]
slice = "b"
channel = { model = "train", seed = 7 }
[ue.one]
accesses = [{ name = "5g", link = "cell" }]
[ue.two]
accesses = [{ name = "5g", link = "cell" }]
[flow.f]
kind = "ping"
ue = "one"
via = "direct:5g"
"#;
        let scenario = crate::scenario::parse(Path::new("t.toml"), text, &[]).unwrap();
        let case = &scenario.cases[0];
        let plan = plan::lay_out(case).unwrap();
        let (file, first) = file(case, &plan.cells[0], 3, Device::Packet, Path::new("/x/s")).unwrap();
        let of = |path: &[&str]| {
            path.iter().fold(Value::Table(file.clone()), |at, key| match key.parse::<usize>() {
                Ok(number) => at[number].clone(),
                Err(_) => at[*key].clone(),
            })
        };
        let says = |path: &[&str], is: &str| assert_eq!(of(path).as_str(), Some(is), "{path:?}");
        says(&["n3", "netns"], "upf");
        says(&["n3", "name"], "l0");
        says(&["device", "1", "netns"], "two");
        says(&["device", "1", "ues", "0"], "two");
        says(&["device", "1", "kind"], "packet");
        says(&["cell", "ues", "1", "slice"], "b");
        says(&["cell", "ues", "0", "addresses", "0"], "10.1.0.10");
        says(&["api", "listen"], "unix:/x/s");
        assert_eq!(of(&["cell", "seed"]).as_integer(), Some(3));
        // A varying channel waits for the start of the run.
        says(&["cell", "ues", "1", "channel", "model"], "constant");
        says(&["cell", "ues", "1", "uplink_channel", "model"], "constant");
        let train = |direction| {
            let found = first.moving.iter().find(|(ue, way, _)| ue == "two" && *way == direction);
            matches!(found, Some((.., ChannelConfig::Train { seed: Some(7), .. })))
        };
        assert!(Direction::ALL.into_iter().all(train), "{:?}", first.moving);
        assert_eq!((first.moving.len(), first.slices.len()), (2, 2));
    }

    #[test]
    fn packets_from_before_the_run_are_left_out() {
        let packet = |arrived_ns| CellPacket {
            ue: 1,
            drb: 1,
            qfi: 9,
            downlink: true,
            bytes: 100,
            arrived_ns,
            forwarded_ns: arrived_ns + 1,
            first_pull_ns: arrived_ns + 2,
            last_pull_ns: arrived_ns + 3,
            first_received_ns: arrived_ns + 4,
            delivered_ns: arrived_ns + 5,
        };
        assert!(place(&packet(99), 1000, 1100).is_none());
        let placed = place(&packet(150), 1000, 1100).unwrap();
        assert_eq!((placed.arrived.as_nanos(), placed.queue_wait().as_nanos()), (50, 3));
    }
}
