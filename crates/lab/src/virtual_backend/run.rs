//! Runs the network of a scenario: events, and a sample at every tick.

use super::world::{UeNode, World};
use crate::backend::Progress;
use crate::cell::{CellObservations, Waits};
use crate::scenario::Case;
use crate::scenario::model::{Action, Directions, DownHow};
use crate::sim::host::{App, Host};
use crate::sim::network::Stuck;
use anabranch_atsss::session::SessionEvent;
use anabranch_atsss::ue::{Ue, UeCommand, UeEvent};
use anabranch_atsss::upf::{Upf, UpfEvent};
use anabranch_element::Port;
use anabranch_element::time::{Duration, Instant};
use anabranch_link::{Direction, DuplexLink, LinkChange, LinkCommand, LinkStats, Rate};
use anabranch_ran::amc::Direction as Radio;
use anabranch_ran::gnb::{Gnb, GnbCommand, GnbEvent};
use anabranch_steer::{Rule, SteeringMode, active_standby};
use anyhow::{Context, Result};
use std::collections::BTreeMap;

/// Observations of the network during a run.
#[derive(Default)]
pub struct Observations {
    /// Samples by UE and access.
    pub paths: BTreeMap<(String, usize), Vec<PathSample>>,
    /// By link: time and bytes in the queues, up and down.
    pub queues: BTreeMap<String, Vec<(f64, [u64; 2])>>,
    /// By TCP sender: time, congestion window in bytes, number of third consecutive duplicates so far.
    pub senders: BTreeMap<String, Vec<(f64, f64, f64)>>,
    /// By TCP flow with telemetry: the reports received by its sender.
    pub path_reports: BTreeMap<String, Vec<PathReport>>,
    /// Number of failures of a path according to the UE and to the UPF.
    pub failures: BTreeMap<(String, usize), [u64; 2]>,
    /// Events and their times.
    pub events: Vec<(f64, String)>,
    /// By cell: observations of its downlink.
    pub cells: BTreeMap<String, CellObservations>,
    /// By LWIP node: its observations.
    pub lwips: BTreeMap<String, super::lwip::Observations>,
    /// Counters of the links at the end, up and down.
    pub links: BTreeMap<String, [LinkStats; 2]>,
}

/// A path report received by the sender of a flow.
#[derive(Debug, Clone, Copy)]
pub struct PathReport {
    /// Time, seconds.
    pub at_s: f64,
    /// Losses of media so far, modulo 2^16.
    pub losses: u16,
    /// Bytes in the queue of the bottleneck, if reported.
    pub depth_bytes: Option<u64>,
}

/// A sample of a path.
#[derive(Debug, Clone, Copy)]
pub struct PathSample {
    /// Time, seconds.
    pub at_s: f64,
    /// IP bytes the UE sent so far.
    pub up_bytes: u64,
    /// IP bytes the UE received so far.
    pub down_bytes: u64,
    /// RTT of the UE's probes, milliseconds; 0 while the path is down.
    pub rtt_ms: f64,
}

/// Maximum number of events in a report.
const MAX_EVENTS: usize = 2000;

/// Runs to the end.
///
/// # Errors
/// The network has a loop, which is a fault of this program.
pub fn run(world: &mut World, case: &Case, seed: u64, progress: &dyn Progress) -> Result<Observations> {
    let mut seen = Observations::default();
    for name in world.gnbs.keys() {
        let waits = Waits::between(case.measure_from.as_secs_f64(), case.duration.as_secs_f64())
            .since(world.origin.as_secs_f64());
        let cell = CellObservations { up_waits: waits.clone(), waits, ..CellObservations::default() };
        seen.cells.insert(name.clone(), cell);
    }
    let origin = world.origin;
    let end = origin + case.duration;
    let mut actions = case.timeline(seed).into_iter().peekable();
    let mut sample_at = origin;
    loop {
        let action_at = actions.peek().map(|(at, _)| origin + *at);
        let next = action_at.into_iter().chain([sample_at, end]).min().unwrap_or(end);
        world.net.run_until(next)?;
        if next >= end {
            break;
        }
        if action_at == Some(next) {
            if let Some((_, action)) = actions.next() {
                seen.note(world.seconds(next), action.label());
                act(world, &action)?;
            }
        } else {
            seen.sample(world, next);
            progress.at(world.seconds(next) / case.duration.as_secs_f64().max(1e-9));
            sample_at += case.sample.max(Duration::from_micros(100));
        }
    }
    seen.sample(world, end);
    for (name, id) in &world.gnbs {
        let (Some(cell), Some(gnb)) = (seen.cells.get_mut(name), world.net.get_mut::<Gnb>(*id)) else {
            continue;
        };
        let from = origin + case.measure_from;
        let bytes = Radio::ALL.map(|direction| gnb.capacity_bytes(direction, from, end));
        cell.capacity_bytes = Some(bytes);
    }
    for (name, id) in &world.links {
        let stats = world.net.get_mut::<DuplexLink>(*id).context("a link")?.stats(end);
        seen.links.insert(name.clone(), stats);
    }
    seen.events.sort_by(|a, b| a.0.total_cmp(&b.0));
    Ok(seen)
}

impl Observations {
    fn note(&mut self, at_s: f64, what: String) {
        if self.events.len() < MAX_EVENTS {
            self.events.push((at_s, what));
        }
    }

    fn sample(&mut self, world: &mut World, now: Instant) {
        let origin = world.origin;
        let seconds = |at: Instant| at.saturating_since(origin).as_secs_f64();
        let at_s = seconds(now);
        let ues: Vec<(&String, &UeNode)> = world.ues.iter().collect();
        for (name, ue) in ues {
            let rtts: Vec<f64> = world.net.get_mut::<Ue>(ue.tunnel).map_or_else(Vec::new, |element| {
                let paths = element.paths();
                paths.iter().map(|p| if p.up { f64::from(p.rtt_us) * 1e-3 } else { 0.0 }).collect()
            });
            for (path, rtt_ms) in rtts.into_iter().enumerate() {
                let port = Port(1 + path as u16);
                let (tunnel, direct) =
                    (world.net.port_count((ue.tunnel, port)), world.net.port_count((ue.host, port)));
                let leg = ue.leg_ends.get(&path).map(|end| world.net.port_count(*end)).unwrap_or_default();
                self.paths.entry((name.clone(), path)).or_default().push(PathSample {
                    at_s,
                    up_bytes: tunnel.out_bytes + direct.out_bytes + leg.out_bytes,
                    down_bytes: tunnel.in_bytes + direct.in_bytes + leg.in_bytes,
                    rtt_ms,
                });
            }
            for (at, event) in world.net.take_events::<Ue>(ue.tunnel) {
                if let UeEvent::Session(event) = event {
                    self.session_event(seconds(at), name, ue, &event, 0);
                }
            }
        }
        for id in world.upfs.values() {
            for (at, event) in world.net.take_events::<Upf>(*id) {
                if let UpfEvent::Session { ue: name, event, .. } = event
                    && let Some(ue) = world.ues.get(&name)
                {
                    self.session_event(seconds(at), &name, ue, &event, 1);
                }
            }
        }
        for (name, id) in &world.links {
            if let Some(link) = world.net.get_mut::<DuplexLink>(*id) {
                let queued = link.stats(now).map(|stats| stats.queue_bytes);
                self.queues.entry(name.clone()).or_default().push((at_s, queued));
            }
        }
        for (name, id) in &world.gnbs {
            let Some(cell) = self.cells.get_mut(name) else { continue };
            let events: Vec<_> = world.net.take_events::<Gnb>(*id).collect();
            let Some(gnb) = world.net.get_mut::<Gnb>(*id) else { continue };
            for (at, event) in events {
                match event {
                    GnbEvent::Packet(times) => {
                        let least = gnb.min_wait(times.ue, times.direction, times.arrived, times.bytes);
                        match times.direction {
                            Radio::Downlink => cell.waits.note(&times, least),
                            Radio::Uplink => cell.up_waits.note(&times, least),
                        }
                    }
                    GnbEvent::Refused(why) if self.events.len() < MAX_EVENTS => {
                        self.events.push((seconds(at), format!("{name}: refused: {why}")));
                    }
                    _ => {}
                }
            }
            cell.counters.push((at_s, gnb.link_stats(Radio::Downlink, now).into()));
            cell.uplink.push((at_s, gnb.link_stats(Radio::Uplink, now).into()));
            cell.ues.resize_with(gnb.ue_names().count(), Vec::new);
            for (ue, points) in (0..).zip(&mut cell.ues) {
                points.push((at_s, gnb.ue_link_stats(ue, Radio::Downlink)));
            }
            cell.rlc_bytes.resize_with(gnb.ue_names().count(), Vec::new);
            for (ue, points) in (0..).zip(&mut cell.rlc_bytes) {
                let bytes: u64 = gnb.bearer_stats(ue, Radio::Downlink, now).map(|b| b.buffer_bytes).sum();
                points.push((at_s, bytes as f64));
            }
            cell.radio.resize_with(gnb.ue_names().count(), Vec::new);
            for (ue, points) in (0..).zip(&mut cell.radio) {
                points.extend(gnb.radio(ue, Radio::Downlink, now).map(|(mcs, bytes)| (at_s, mcs, bytes)));
            }
            let owed = gnb.balances(Radio::Downlink);
            cell.owed_rbs.resize_with(owed.len(), Vec::new);
            for (points, rbs) in cell.owed_rbs.iter_mut().zip(owed) {
                points.push((at_s, f64::from(*rbs)));
            }
        }
        for (name, site) in &world.lwips {
            self.lwips.entry(name.clone()).or_default().sample(&mut world.net, site.id, now, &seconds);
        }
        for (name, flow) in &world.flows {
            let (mut window, mut triples) = (0, 0);
            for (host, app) in [flow.ue, flow.server] {
                if let Some(App::Tcp(app)) = world.net.get_mut::<Host>(host).and_then(|h| h.app(app)) {
                    let stats = app.stats();
                    if stats.segments_sent > 0 {
                        window = window.max(stats.cwnd_bytes);
                        triples += stats.triple_duplicates;
                    }
                    if let Some((Some(report), _)) = app.telemetry() {
                        let depth_bytes = report.bottleneck.and_then(|hop| hop.depth_bytes);
                        let told = PathReport { at_s, losses: report.medium_losses, depth_bytes };
                        self.path_reports.entry(name.clone()).or_default().push(told);
                    }
                }
            }
            if window > 0 {
                let points = self.senders.entry(name.clone()).or_default();
                points.push((at_s, window as f64, triples as f64));
            }
        }
    }

    fn session_event(&mut self, at_s: f64, name: &str, ue: &UeNode, event: &SessionEvent, side: usize) {
        let who = ["UE", "UPF"][side];
        let access = |path: u8| ue.links.get(usize::from(path)).cloned().unwrap_or_default();
        match event {
            SessionEvent::PathDown { path, reason } => {
                self.failures.entry((name.to_owned(), usize::from(*path))).or_default()[side] += 1;
                self.note(at_s, format!("{name}: {who} sees {} down ({})", access(*path), reason.as_str()));
            }
            SessionEvent::PathUp { path, .. } => {
                self.note(at_s, format!("{name}: {who} sees {} up", access(*path)));
            }
            SessionEvent::Flapping { .. } => self.note(at_s, format!("{name}: flapping")),
            _ => {}
        }
    }
}

/// Executes an action.
fn act(world: &mut World, action: &Action) -> Result<()> {
    match action {
        Action::LinkDown { link, directions, how: DownHow::Carrier } => {
            change(world, link, *directions, &LinkChange::Up(false))
        }
        Action::LinkDown { link, directions, how: DownHow::BlackHole } => {
            change(world, link, *directions, &LinkChange::BlackHole(true))
        }
        Action::LinkUp { link, directions } => {
            change(world, link, *directions, &LinkChange::BlackHole(false))?;
            change(world, link, *directions, &LinkChange::Up(true))
        }
        Action::Rate { link, directions, rate_bps } => {
            change(world, link, *directions, &LinkChange::Rate(Rate::Fixed(*rate_bps)))
        }
        Action::Delay { link, directions, delay } => {
            change(world, link, *directions, &LinkChange::Delay(*delay))
        }
        Action::Loss { link, directions, loss } => {
            change(world, link, *directions, &LinkChange::Loss(loss.model()))
        }
        Action::Strip { link, directions, strip } => {
            change(world, link, *directions, &LinkChange::Strip(strip.kind()))
        }
        Action::Steering { ue, rule, steering } => rules(world, ue, |r| {
            if r.name == *rule {
                r.steering = steering.clone();
            }
        }),
        Action::Share { gnb, slice, share_percent } => {
            let id = *world.gnbs.get(gnb).with_context(|| format!("gnb {gnb}"))?;
            let command = GnbCommand::Share { slice: slice.clone(), share_percent: *share_percent };
            world.net.command::<Gnb>(id, command)?;
            Ok(())
        }
        Action::SwitchEvery { ue, packets } => rules(world, ue, |r| {
            if let SteeringMode::ActiveStandby(active_standby::Params { rotate_packets, .. }) =
                &mut r.steering
            {
                *rotate_packets = *packets;
            }
        }),
    }
}

fn rules(world: &mut World, ue: &str, change: impl Fn(&mut Rule)) -> Result<()> {
    let node = world.ues.get_mut(ue).with_context(|| format!("UE {ue}"))?;
    node.rules.iter_mut().for_each(change);
    let (tunnel, rules) = (node.tunnel, node.rules.clone());
    world.net.command::<Ue>(tunnel, UeCommand::Rules(rules))?;
    Ok(())
}

/// Changes a link. UEs on it are notified of carrier changes.
fn change(world: &mut World, link: &str, directions: Directions, change: &LinkChange) -> Result<()> {
    let id = *world.links.get(link).with_context(|| format!("link {link}"))?;
    let direction = match directions {
        Directions::Both => Direction::Both,
        Directions::Up => Direction::AToB,
        Directions::Down => Direction::BToA,
    };
    let before = world.net.get_mut::<DuplexLink>(id).is_some_and(|link| link.has_carrier());
    world.net.command::<DuplexLink>(id, LinkCommand { direction, change: change.clone() })?;
    let up = world.net.get_mut::<DuplexLink>(id).is_some_and(|link| link.has_carrier());
    if up == before {
        return Ok(());
    }
    let on_link: Vec<_> = world
        .ues
        .values()
        .flat_map(|ue| ue.links.iter().enumerate().map(move |(path, name)| (ue.tunnel, path, name)))
        .filter(|(_, _, name)| *name == link)
        .map(|(tunnel, path, _)| (tunnel, path as u8))
        .collect();
    on_link.into_iter().try_for_each(|(tunnel, path)| -> Result<(), Stuck> {
        world.net.command::<Ue>(tunnel, UeCommand::Carrier { path, up }).map(|_| ())
    })?;
    Ok(())
}
