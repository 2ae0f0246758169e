//! Requests of the REST interface, and SIGHUP, at a gNB: queries, changes of slices, schedulers and UEs,
//! reload.

use super::{Agent, metrics, views};
use crate::runtime::api::{self, CellRequest, ControlRequest, Problem};
use crate::runtime::config::{N3Section, differing, read_trace};
use crate::runtime::views::event;
use anabranch_element::time::{Duration, Instant, nanos};
use anabranch_engine::clock::processor_time;
use anabranch_ran::amc::{Direction, RadioConfig};
use anabranch_ran::channel::{Channel, ChannelConfig};
use anabranch_ran::gnb::{BearerById, BearerConfig, GnbCommand, UeConfig};
use anabranch_ran::queue::{BearerParams, BufferLimit, QueueConfig};
use anabranch_ran::sched::SliceConfig;
use std::collections::BTreeMap;

/// Number of UEs queried per job of the data path, so that slots stay on time.
const CHUNK: usize = 64;

/// A change to the cell that has been validated and can no longer fail.
enum Change {
    Command(GnbCommand),
    /// A channel whose trace starts now.
    Channel {
        ue: String,
        direction: Direction,
        channel: Channel,
        after: Duration,
    },
}

impl Agent {
    pub(super) async fn on_request(&mut self, request: ControlRequest) {
        // A requester that has gone away needs no answer.
        match request {
            ControlRequest::Status(reply) => drop(reply.send(self.status().await)),
            ControlRequest::Reload(reply) => drop(reply.send(self.reload().await)),
            ControlRequest::Metrics(reply) => drop(reply.send(self.metrics().await)),
            ControlRequest::Cell(request) => self.on_cell_request(request).await,
            other => {
                other.refuse("a gNB has neither sessions nor rules", "see GET /v1/ues and GET /v1/slices")
            }
        }
    }

    async fn on_cell_request(&mut self, request: CellRequest) {
        match request {
            CellRequest::Cell(reply) => drop(reply.send(self.cell().await)),
            CellRequest::SetCell(change, reply) => drop(reply.send(match self.set_cell(*change).await {
                Ok(()) => self.cell().await,
                Err(problem) => Err(problem),
            })),
            CellRequest::Slices(reply) => drop(reply.send(self.slices().await)),
            CellRequest::SetSlices(slices, reply) => drop(reply.send(match self.set_slices(slices).await {
                Ok(()) => self.slices().await,
                Err(problem) => Err(problem),
            })),
            CellRequest::Ues { offset, limit, reply } => {
                let ues = self.ues(offset, limit).await;
                let total = self.running.ues.len() as u64;
                drop(reply.send(ues.map(|ues| api::UeList { total, ues })));
            }
            CellRequest::Ue(name, reply) => drop(reply.send(self.ue(&name).await)),
            CellRequest::SetUe(name, change, reply) => {
                drop(reply.send(match self.set_ue(&name, *change).await {
                    Ok(()) => self.ue(&name).await,
                    Err(problem) => Err(problem),
                }))
            }
            CellRequest::Telemetry(what, reply) => drop(reply.send(self.telemetry(what))),
        }
    }

    async fn status(&self) -> Result<api::Status, Problem> {
        let query = self.worker.query(|worker, now| {
            let ioam = worker.ioam_stats();
            (worker.device_counters(), worker.socket(), worker.dropped, worker.link_stats(now), ioam)
        });
        let (devices, socket, dropped, links, ioam) = query.await.map_err(Problem::unavailable)?;
        let mut status = api::WorkerStatus { events_lost: dropped.reports, ..api::WorkerStatus::default() };
        for device in devices {
            status.device_rx_packets += device.rx_packets;
            status.device_rx_frames += device.rx_frames;
            status.device_tx_packets += device.tx_packets;
            status.device_tx_frames += device.tx_frames;
            status.device_errors += device.errors;
        }
        if let Some((socket, _)) = socket {
            status.accesses.insert("n3".to_owned(), crate::runtime::views::socket(socket));
        }
        let unroutable = links.iter().map(|link| link.unroutable_packets).sum();
        let drops = [
            ("unknown_source", dropped.unknown_source),
            ("unknown_peer", dropped.unknown_peer),
            ("unknown_at_peer", dropped.unknown_at_peer),
            ("extension_at_peer", dropped.extension_at_peer),
            ("too_big", dropped.too_big),
            ("unroutable", unroutable),
        ];
        let drops: BTreeMap<String, u64> =
            drops.into_iter().filter(|(_, n)| *n > 0).map(|(reason, n)| (reason.to_owned(), n)).collect();
        let mtu = |mtu: Option<u16>| mtu.unwrap_or_else(|| self.config.mtu());
        let n3 = match &self.config.n3 {
            N3Section::Ip(port) => Some((port.name.clone(), mtu(port.mtu))),
            N3Section::Gtpu(_) => None,
        };
        let ports: Vec<(String, u16)> =
            n3.into_iter().chain(self.config.device.iter().map(|d| (d.name.clone(), mtu(d.mtu)))).collect();
        let ues = self.running.ues.len() as u64;
        Ok(api::Status {
            part: "gnb".to_owned(),
            name: self.config.gnb.name.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_s: self.started.elapsed().as_secs(),
            public_key: String::new(),
            device: ports.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", "),
            mtu_bytes: ports.iter().map(|(_, mtu)| *mtu).min().unwrap_or(0),
            sessions: ues,
            connected: ues,
            trouble: BTreeMap::new(),
            drops,
            ioam: crate::runtime::views::ioam(self.running.ioam.is_some(), ioam),
            workers: vec![status],
        })
    }

    async fn cell(&self) -> Result<api::Cell, Problem> {
        let query = self.worker.query(|worker, now| {
            let ticks = views::ticks(worker.late.total(), worker.late.slots, processor_time());
            (ticks, worker.link_stats(now), worker.gnb.slices().len())
        });
        let (ticks, [down, up], slices) = query.await.map_err(Problem::unavailable)?;
        let running = &self.running;
        Ok(api::Cell {
            name: self.config.gnb.name.clone(),
            rat: if matches!(running.radio, RadioConfig::Lte(_)) { "lte" } else { "nr" }.to_owned(),
            rbs: self.amc.rbs(),
            slot_us: nanos(self.amc.slot()) as f64 / 1e3,
            n3: if matches!(self.config.n3, N3Section::Ip(_)) { "ip" } else { "gtpu" }.to_owned(),
            scheduler: running.scheduler.clone(),
            uplink_scheduler: running.uplink_scheduler.clone().unwrap_or_else(|| running.scheduler.clone()),
            slices: slices as u64,
            ues: running.ues.len() as u64,
            ticks,
            downlink: views::link(&down, None),
            uplink: views::link(&up, None),
        })
    }

    async fn slices(&self) -> Result<api::Slices, Problem> {
        let query = self.worker.query(|worker, _| (worker.gnb.slices().to_vec(), worker.slice_sums()));
        let (slices, sums) = query.await.map_err(Problem::unavailable)?;
        Ok(api::Slices { slices, uses: views::slices(&sums, &[], &self.running) })
    }

    async fn ues(&self, offset: usize, limit: usize) -> Result<Vec<api::CellUe>, Problem> {
        let numbers: Vec<usize> = (0..self.running.ues.len()).skip(offset).take(limit).collect();
        let mut ues = Vec::with_capacity(numbers.len());
        for numbers in numbers.chunks(CHUNK) {
            let of = |number: &usize| {
                let device = &self.config.device[self.device_of_ue[*number]].name;
                (*number as u32, self.running.ues[*number].clone(), device.clone())
            };
            let wanted: Vec<(u32, UeConfig, String)> = numbers.iter().map(of).collect();
            let query = self.worker.query(move |worker, now| {
                let view = |(number, ue, device): &(u32, UeConfig, String)| {
                    views::ue(&mut worker.gnb, *number, ue, device, now)
                };
                wanted.iter().map(view).collect::<Vec<_>>()
            });
            ues.extend(query.await.map_err(Problem::unavailable)?);
        }
        Ok(ues)
    }

    async fn ue(&self, name: &str) -> Result<api::CellUe, Problem> {
        let number = self.number(name)?;
        let mut ues = self.ues(number, 1).await?;
        ues.pop().ok_or_else(|| no_ue(name))
    }

    fn number(&self, name: &str) -> Result<usize, Problem> {
        self.running.ues.iter().position(|ue| ue.name == name).ok_or_else(|| no_ue(name))
    }

    fn telemetry(&self, what: api::Telemetry) -> Result<api::Streams, Problem> {
        let seconds = self.seconds.subscribe();
        let slots = what.slots.then(|| self.slots.subscribe());
        if slots.is_some() {
            self.worker.run(|worker, now| worker.report_slots(true, now)).map_err(Problem::unavailable)?;
        }
        let packets = what.packets.then(|| self.packets.subscribe());
        if packets.is_some() {
            self.worker.run(|worker, _| worker.packets.listen()).map_err(Problem::unavailable)?;
        }
        Ok(api::Streams { seconds, slots, packets })
    }

    async fn metrics(&self) -> Result<String, Problem> {
        let (status, cell, slices) = (self.status().await?, self.cell().await?, self.slices().await?);
        let ues = if self.running.ues.len() <= metrics::MAX_UES {
            self.ues(0, metrics::MAX_UES).await?
        } else {
            Vec::new()
        };
        Ok(metrics::text(&status, &cell, &slices.uses, &ues))
    }

    async fn set_cell(&mut self, change: api::CellChange) -> Result<(), Problem> {
        let (slices, ues) = (self.running.slices.len(), self.running.ues.len());
        let api::CellChange { scheduler, uplink_scheduler } = change;
        let mut changes = Vec::new();
        let mut new = self.running.clone();
        for (direction, field, scheduler) in [
            (Direction::Downlink, "scheduler", scheduler),
            (Direction::Uplink, "uplink_scheduler", uplink_scheduler),
        ] {
            let Some(scheduler) = scheduler else { continue };
            let checked = scheduler.check_slices(&self.running.slices);
            checked
                .and_then(|()| scheduler.build(slices, ues))
                .map_err(|e| Problem::invalid(e.to_string()).field(field))?;
            match direction {
                // The uplink scheduler stays as it is.
                Direction::Downlink => {
                    let old = std::mem::replace(&mut new.scheduler, scheduler.clone());
                    new.uplink_scheduler.get_or_insert(old);
                }
                Direction::Uplink => new.uplink_scheduler = Some(scheduler.clone()),
            }
            changes.push(Change::Command(GnbCommand::Scheduler { direction, scheduler }));
        }
        self.apply(changes).await?;
        self.running = new;
        let running = &self.running;
        let up = running.uplink_scheduler.as_ref().unwrap_or(&running.scheduler).algorithm();
        let message = format!("downlink by {}, uplink by {up}", running.scheduler.algorithm());
        self.log.push(event("scheduler", None, message));
        Ok(())
    }

    async fn set_slices(&mut self, slices: Vec<SliceConfig>) -> Result<(), Problem> {
        let used = |name: &str| slices.iter().any(|slice| slice.name == name);
        if let Some(ue) = self.running.ues.iter().find(|ue| !used(&ue.slice)) {
            let detail = format!("ue \"{}\" is in slice \"{}\", which would be removed", ue.name, ue.slice);
            return Err(Problem::invalid(detail).field("slices"));
        }
        self.apply(vec![Change::Command(GnbCommand::Slices(slices.clone()))])
            .await
            .map_err(|problem| problem.field("slices"))?;
        let shares: Vec<String> =
            slices.iter().map(|s| format!("{} {} %", s.name, s.share_percent)).collect();
        self.running.slices = slices;
        self.log.push(event("slices", None, shares.join(", ")));
        Ok(())
    }

    async fn set_ue(&mut self, name: &str, change: api::UeChange) -> Result<(), Problem> {
        let number = self.number(name)?;
        let mut new = self.running.ues[number].clone();
        let api::UeChange { slice, channel, uplink_channel, drb, queue, uplink_queue } = change;
        let mut said = Vec::new();
        if let Some(slice) = slice {
            if !self.running.slices.iter().any(|s| s.name == slice) {
                let remedy = "list them with GET /v1/slices";
                return Err(Problem::not_found("slice", &slice, remedy).field("slice"));
            }
            said.push(format!("slice {slice}"));
            new.slice = slice;
        }
        if let Some(channel) = channel {
            // The uplink channel stays as it is.
            let old = std::mem::replace(&mut new.channel, channel);
            new.uplink_channel.get_or_insert(old);
            said.push("channel".to_owned());
        }
        if let Some(channel) = uplink_channel {
            new.uplink_channel = Some(channel);
            said.push("uplink channel".to_owned());
        }
        if let Some(drb) = drb
            && !new.sdap.drbs.iter().any(|known| known.id == drb)
        {
            let detail = format!("ue \"{name}\" has no bearer {drb}");
            return Err(Problem::invalid(detail).field("drb"));
        }
        if queue.is_some() || uplink_queue.is_some() {
            set_queue(&mut new, drb, queue, uplink_queue);
            said.push("queue".to_owned());
        }
        let changes = self.changes(&self.running.ues[number], &new).map_err(Problem::invalid)?;
        self.apply(changes).await?;
        self.running.ues[number] = new;
        self.log.push(event("ue-changed", Some(name), format!("changed: {}", crate::ue::run::list(&said))));
        Ok(())
    }

    /// The changes from `old` to `new`, as far as the UE accepts them while the cell runs.
    fn changes(&self, old: &UeConfig, new: &UeConfig) -> Result<Vec<Change>, String> {
        let mut changes = Vec::new();
        let ue = || new.name.clone();
        let seed = seed_of(self.running.seed, &new.name);
        if old.slice != new.slice {
            changes.push(Change::Command(GnbCommand::Move { ue: ue(), slice: new.slice.clone() }));
        }
        for direction in Direction::ALL {
            let channel = channel_of(new, direction);
            if channel_of(old, direction) != channel {
                let built = channel.build(&self.amc, seed, &mut read_trace);
                let built = built.map_err(|e| e.to_string())?;
                let after = start_of(channel);
                changes.push(Change::Channel { ue: ue(), direction, channel: built, after });
            }
            for drb in new.sdap.drbs.iter().map(|drb| drb.id) {
                let bearer = new.bearer(drb);
                let queue = queue_of(bearer, direction);
                if queue_of(old.bearer(drb), direction) != queue {
                    let limit = BufferLimit { bytes: bearer.limit_bytes, sdus: bearer.limit_sdus };
                    let (pulls, mtu_bytes) = (self.amc.pulls(direction), bearer.mtu_bytes);
                    let params = BearerParams { pulls, mtu_bytes, limit, seed, ..Default::default() };
                    queue.build(params).map_err(|e| e.to_string())?;
                    let queue = queue.clone();
                    changes.push(Change::Command(GnbCommand::Queue {
                        ue: ue(),
                        drb,
                        direction,
                        queue,
                        params,
                    }));
                }
            }
        }
        Ok(changes)
    }

    /// Has the data path apply the changes between two slots.
    async fn apply(&self, changes: Vec<Change>) -> Result<(), Problem> {
        let query = self.worker.query(move |worker, now| {
            for change in changes {
                let command = match change {
                    Change::Command(command) => command,
                    Change::Channel { ue, direction, channel, after } => {
                        let channel = channel.starting_at(now + after - Instant::ZERO);
                        GnbCommand::Channel { ue, direction, channel }
                    }
                };
                worker.gnb.apply(command, now)?;
            }
            worker.sums.set_slices_if_other(worker.gnb.slices());
            Ok(())
        });
        let done: Result<(), anabranch_ran::gnb::GnbError> = query.await.map_err(Problem::unavailable)?;
        done.map_err(|e| Problem::invalid(e.to_string()))
    }

    /// Reads the configuration file again. Slices, schedulers, and the slice, channel and queues of UEs
    /// change at once; all other differences need a restart.
    pub(super) async fn reload(&mut self) -> Result<api::Reloaded, Problem> {
        let new = super::load(&self.args).map_err(|e| Problem::invalid(e.to_string()))?;
        let wanted = new.core();
        let mut done = api::Reloaded::default();
        let mut changes = Vec::new();
        let mut running = self.running.clone();
        let same_ues = wanted.ues.len() == running.ues.len()
            && wanted.ues.iter().zip(&running.ues).all(|(new, old)| live(new, old) == *new);
        if same_ues {
            // New slices exist before UEs move to them; old slices are removed after their UEs have left.
            let mut both = wanted.slices.clone();
            both.extend(self.running.slices.iter().filter(|old| !both_has(&wanted.slices, old)).map(|old| {
                SliceConfig { share_percent: 0.0, dedicated_percent: 0.0, min_percent: None, ..old.clone() }
            }));
            if wanted.slices != running.slices {
                changes.push(Change::Command(GnbCommand::Slices(both.clone())));
                done.changed.push("cell.slices".to_owned());
            }
            for (new, old) in wanted.ues.iter().zip(&running.ues) {
                let of_ue = self.changes(old, new).map_err(Problem::invalid)?;
                if !of_ue.is_empty() {
                    done.changed.push(format!("ue {}", new.name));
                }
                changes.extend(of_ue);
            }
            if wanted.slices != running.slices && both.len() > wanted.slices.len() {
                changes.push(Change::Command(GnbCommand::Slices(wanted.slices.clone())));
            }
            let up = |cell: &anabranch_ran::gnb::GnbConfig| {
                cell.uplink_scheduler.clone().unwrap_or_else(|| cell.scheduler.clone())
            };
            for (direction, old, new) in [
                (Direction::Downlink, running.scheduler.clone(), wanted.scheduler.clone()),
                (Direction::Uplink, up(&running), up(&wanted)),
            ] {
                if old != new {
                    changes.push(Change::Command(GnbCommand::Scheduler { direction, scheduler: new }));
                    done.changed.push(format!("{} scheduler", name_of(direction)));
                }
            }
            running.slices.clone_from(&wanted.slices);
            running.ues.clone_from(&wanted.ues);
            running.scheduler.clone_from(&wanted.scheduler);
            running.uplink_scheduler.clone_from(&wanted.uplink_scheduler);
        }
        self.apply(changes).await?;
        self.running = running;
        let differs = [
            ("gnb", new.gnb != self.config.gnb),
            ("cell", wanted != self.running),
            ("n3", new.n3 != self.config.n3),
            ("device", new.device != self.config.device),
            ("api", new.api != self.config.api),
            ("metrics", new.metrics != self.config.metrics),
        ];
        done.needs_restart = differing(&differs);
        let list = crate::ue::run::list;
        let message =
            format!("changed: {}; needs a restart: {}", list(&done.changed), list(&done.needs_restart));
        self.log.push(event("reloaded", None, message));
        Ok(done)
    }
}

fn both_has(slices: &[SliceConfig], one: &SliceConfig) -> bool {
    slices.iter().any(|slice| slice.name == one.name)
}

/// `old` with every part of `new` that can change while the cell runs.
fn live(new: &UeConfig, old: &UeConfig) -> UeConfig {
    let mut ue = old.clone();
    ue.slice.clone_from(&new.slice);
    ue.channel.clone_from(&new.channel);
    ue.uplink_channel.clone_from(&new.uplink_channel);
    let queues = |to: &mut BearerConfig, from: &BearerConfig| {
        to.queue.clone_from(&from.queue);
        to.uplink_queue.clone_from(&from.uplink_queue);
    };
    queues(&mut ue.bearer, &new.bearer);
    // A new or changed bearer keeps its old definition, except for its queues; the rest needs a restart.
    let ids = new.bearers.iter().map(|bearer| bearer.id);
    ue.bearers = ids
        .map(|id| {
            let mut bearer = old.bearer(id).clone();
            queues(&mut bearer, new.bearer(id));
            BearerById { id, bearer }
        })
        .collect();
    ue
}

/// Sets the queue disciplines of bearer `drb`, or of all bearers.
fn set_queue(ue: &mut UeConfig, drb: Option<u8>, down: Option<QueueConfig>, up: Option<QueueConfig>) {
    let set = |bearer: &mut BearerConfig| {
        if let Some(down) = &down {
            // The uplink queue stays as it is.
            let old = std::mem::replace(&mut bearer.queue, down.clone());
            bearer.uplink_queue.get_or_insert(old);
        }
        if let Some(up) = &up {
            bearer.uplink_queue = Some(up.clone());
        }
    };
    let Some(id) = drb else {
        set(&mut ue.bearer);
        ue.bearers.iter_mut().for_each(|bearer| set(&mut bearer.bearer));
        return;
    };
    if !ue.bearers.iter().any(|bearer| bearer.id == id) {
        ue.bearers.push(BearerById { id, bearer: ue.bearer.clone() });
    }
    ue.bearers.iter_mut().filter(|bearer| bearer.id == id).for_each(|bearer| set(&mut bearer.bearer));
}

fn channel_of(ue: &UeConfig, direction: Direction) -> &ChannelConfig {
    match direction {
        Direction::Downlink => &ue.channel,
        Direction::Uplink => ue.uplink_channel.as_ref().unwrap_or(&ue.channel),
    }
}

fn queue_of(bearer: &BearerConfig, direction: Direction) -> &QueueConfig {
    match direction {
        Direction::Downlink => &bearer.queue,
        Direction::Uplink => bearer.uplink_queue.as_ref().unwrap_or(&bearer.queue),
    }
}

/// Random seed of a UE's channel, derived from the cell's seed and the UE's name: the same as at start-up,
/// different per UE, the same for both directions.
fn seed_of(cell: u64, ue: &str) -> u64 {
    // FNV-1a.
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    cell.to_be_bytes().into_iter().chain(ue.bytes()).fold(0xcbf2_9ce4_8422_2325, step)
}

/// Offset within the trace at which the channel starts.
fn start_of(channel: &ChannelConfig) -> Duration {
    let start_s = match channel {
        ChannelConfig::Constant { .. } => 0.0,
        ChannelConfig::Trace { start_s, .. }
        | ChannelConfig::Mahimahi { start_s, .. }
        | ChannelConfig::Pedestrian { start_s, .. }
        | ChannelConfig::Train { start_s, .. } => *start_s,
    };
    Duration::try_from_secs_f64(start_s).unwrap_or_default()
}

fn name_of(direction: Direction) -> &'static str {
    match direction {
        Direction::Downlink => "downlink",
        Direction::Uplink => "uplink",
    }
}

fn no_ue(name: &str) -> Problem {
    Problem::not_found("UE", name, "list them with GET /v1/ues")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_channels_that_ues_are_given_while_the_cell_runs_differ() {
        let amc = anabranch_ran::amc::Amc::new(&RadioConfig::default()).unwrap();
        let config: ChannelConfig = serde_json::from_str(r#"{"model": "pedestrian"}"#).unwrap();
        let qualities = |cell, ue: &str| {
            let channel = config.build(&amc, seed_of(cell, ue), &mut read_trace).unwrap();
            channel.qualities().collect::<Vec<_>>()
        };
        assert_ne!(qualities(0, "a"), qualities(0, "b"));
        assert_ne!(qualities(0, "a"), qualities(1, "a"));
        assert_eq!(qualities(1, "a"), qualities(1, "a"));
    }
}
