//! The world: ends, accesses, attackers and traffic in virtual time, event by event.
//!
//! ```text
//!   flows ─▶ UE 0..3 ─▶ line ─┐                      ┌─▶ UPF 0, 1 ─▶ ledger
//!                             ├─▶ datagrams, seen ───┤
//!   hostile UE, strangers ────┘   by strangers       └─▶ UEs      ─▶ ledger
//! ```
//!
//! A step is one event: a datagram arrives, a timer expires, a flow sends, an attacker acts, a fault begins or ends. Events are
//! processed by time; of two at the same time, the one listed first below comes first. Programs may end between any two
//! steps, including between a datagram and its consequences.

use super::check::{Invariant, Violation};
use super::draw::RandomStream;
use super::ends::{Out, SERVER, UeEnd, UpfEnd, inner, local, remote};
use super::flow::Transport;
use super::hostile::Hostile;
use super::ledger::{self, Arrival, Kind, Label, Ledger};
use super::line::Line;
use super::plan::{self, Fault, Plan};
use super::strangers::Strangers;
use super::system::{self, Active, RunState};
use anabranch_atsss::drops::DropCounters;
use anabranch_atsss::session::Addresses;
use anabranch_atsss::ue::UeEvent;
use anabranch_atsss::upf::UpfEvent;
use anabranch_element::time::{Duration, Instant};
use anabranch_steer::LoadView;
use anabranch_wire::ip;
use anabranch_wire::tunnel::{MessageType, classify};
use std::net::{IpAddr, SocketAddr};

/// Maximum number of polls of one end at one instant without any event between them.
const SPINS: u32 = 64;
/// Maximum delay beyond that of the slower access, if nothing is lost.
const PROMPT: Duration = Duration::from_millis(10);
/// Queueing delay that does not count as a queue: two packets of a fast access.
const QUEUE_US: u32 = 1_000;
/// A UE with a good access for this long must be served.
const GOOD_FOR: Duration = Duration::from_secs(6);
/// With such an access, not all of this many consecutive packets of a flow over this time may be lost.
const UNSERVED: u32 = 30;
const UNSERVED_FOR: Duration = Duration::from_secs(3);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Event {
    Fault(u64),
    Arrives { ue: usize, access: usize, up: bool },
    Ue(usize),
    Upf(usize),
    Answer(usize),
    Flow(usize, usize),
    Hostile,
    Strangers,
}

/// The world of the tunnel; see the module documentation.
pub struct World {
    pub(super) run_state: RunState,
    pub(super) ues: Vec<UeEnd>,
    pub(super) upfs: Vec<UpfEnd>,
    pub(super) lines: Vec<[Line; 2]>,
    pub(super) ledger: Ledger,
    pub(super) active: Active<plan::Kind>,
    pub(super) hostile: Option<Hostile>,
    pub(super) strangers: Option<Strangers>,
    /// Number of active faults during which no flow has data to send.
    pub(super) quiet: u32,
    /// Flows send no new data.
    pub(super) drain: bool,
    pub(super) plain: [bool; 2],
    /// Drop counters of each UE, then each UPF, at the last check.
    pub(super) dropped: Vec<DropCounters>,
    addresses: Vec<[IpAddr; 2]>,
    victims: Vec<Addresses>,
    out: Out,
    spins: (Instant, u32),
}

impl system::World<plan::Kind> for World {
    type Event = Event;

    /// Polls without an effect are counted per end ([`SPINS`]).
    const MOST_AT_ONE_TIME: u32 = u32::MAX;

    fn run_state(&self) -> &RunState {
        &self.run_state
    }

    fn course_mut(&mut self) -> &mut RunState {
        &mut self.run_state
    }

    fn next(&self) -> (Instant, Event) {
        let mut first = (Instant::MAX, Event::Strangers);
        let mut earlier = |at: Instant, event: Event| {
            if at < first.0 {
                first = (at, event);
            }
        };
        if let Some((at, number)) = self.active.next_end() {
            earlier(at, Event::Fault(number));
        }
        for (ue, lines) in self.lines.iter().enumerate() {
            for (access, line) in lines.iter().enumerate() {
                for up in [true, false] {
                    if let Some(at) = line.next_at(up) {
                        earlier(at, Event::Arrives { ue, access, up });
                    }
                }
            }
        }
        for (n, end) in self.ues.iter().enumerate() {
            if let Some(at) = end.due().filter(|_| end.runs()) {
                earlier(at.max(self.run_state.now), Event::Ue(n));
            }
        }
        for (n, end) in self.upfs.iter().enumerate() {
            if let Some((at, _)) = end.upf.poll_timeout().filter(|_| end.runs()) {
                earlier(at.max(self.run_state.now), Event::Upf(n));
            }
            if let Some((at, _)) = end.answers.front().filter(|_| end.runs()) {
                earlier((*at).max(self.run_state.now), Event::Answer(n));
            }
        }
        for (n, end) in self.ues.iter().enumerate() {
            for (flow, state) in end.flows.iter().enumerate() {
                earlier(state.next, Event::Flow(n, flow));
            }
        }
        if let Some(hostile) = &self.hostile {
            earlier(hostile.next, Event::Hostile);
        }
        if let Some(strangers) = &self.strangers {
            earlier(strangers.next, Event::Strangers);
        }
        first
    }

    fn happen(&mut self, event: Event) -> Result<(), Violation> {
        if !matches!(event, Event::Ue(_) | Event::Upf(_)) {
            self.spins = (self.run_state.now, 0);
        }
        match event {
            Event::Fault(number) => self.end_fault(number),
            Event::Arrives { ue, access, up } => {
                let taken = self.lines[ue][access].take(up, self.run_state.now, &mut self.run_state.tally);
                taken.map_or(Ok(()), |packet| self.arrive(ue, access, up, &packet))
            }
            Event::Ue(n) => {
                self.spin(|w| format!("UE {n}: {:?}", w.ues[n].ue.poll_timeout()))?;
                let end = &mut self.ues[n];
                let (mut sockets, mut device) = self.out.sides(end.no_room == 0);
                end.ue.poll(end.clock(self.run_state.now), &mut sockets, &mut device);
                self.run_state.tally.effect("ue-no-room", sockets.refused);
                self.take_ue(n)
            }
            Event::Upf(n) => {
                self.spin(|w| format!("UPF {n}: {:?}", w.upfs[n].upf.poll_timeout()))?;
                let end = &mut self.upfs[n];
                let (mut sockets, mut device) = self.out.sides(end.no_room == 0);
                end.upf.poll(self.run_state.now, &mut sockets, &mut device);
                self.run_state.tally.effect("upf-no-room", sockets.refused);
                self.take_upf(n)
            }
            Event::Answer(n) => {
                let end = &mut self.upfs[n];
                let (mut sockets, _) = self.out.sides(end.no_room == 0);
                let before = end.upf.drops().total();
                if let Some((_, computed)) = end.answers.pop_front() {
                    end.upf.finish_handshake(computed, self.run_state.now, &mut sockets);
                }
                let counted = end.upf.drops().total() > before;
                self.run_state.tally.effect("upf-no-room", sockets.refused);
                self.run_state.tally.count_check(Invariant::Counted);
                if !counted && self.out.datagrams.is_empty() {
                    let what = format!("UPF {n} neither answered nor counted a handshake");
                    return Err(self.run_state.violation(Invariant::Counted, what));
                }
                self.take_upf(n)
            }
            Event::Flow(ue, flow) => self.turn(ue, flow),
            Event::Hostile => self.attack_by_hostile(),
            Event::Strangers => self.attack_by_strangers(),
        }
    }

    fn check_invariants(&mut self) -> Result<(), Violation> {
        self.note_drops();
        self.bounds()
    }

    fn begin_fault(&mut self, number: u64, fault: &Fault) -> Result<(), Violation> {
        self.begin(number, fault)
    }
}

impl World {
    /// The world of a plan at its start.
    #[must_use]
    pub fn new(plan: &Plan, traced: bool) -> Self {
        let (seed, now) = (plan.seed, Instant::ZERO);
        let plain = plan.plain;
        let mut upfs: Vec<UpfEnd> =
            (0..usize::from(plan.upfs.max(1))).map(|n| UpfEnd::new(n, plain, seed, now)).collect();
        let ues: Vec<UeEnd> = plan
            .ues
            .iter()
            .enumerate()
            .map(|(n, ue)| {
                let home = n % upfs.len();
                UeEnd::new(ue, plain, n, home, upfs[home].key(), seed, now)
            })
            .collect();
        let lines = ues.iter().enumerate().map(|(n, ue)| {
            let draw = &mut RandomStream::new(seed, 500 + n as u64);
            [0, 1].map(|access| Line::new(ue.plan.delay_ms[access], ue.plan.mtu[access], draw))
        });
        let lines = lines.collect();
        let hostile = plan.hostile.then(|| Hostile::new(upfs[0].key(), seed));
        let strangers = plan.strangers.then(|| Strangers::new(&upfs[0].key(), seed));
        for upf in &mut upfs {
            for entry in ues.iter().map(|ue| &ue.entry).chain(hostile.as_ref().map(Hostile::entry).as_ref()) {
                upf.know(entry, now);
            }
        }
        let victims: Vec<Addresses> = (0..ues.len()).map(inner).collect();
        let both = |a: &Addresses| Some([a.v4?.into(), a.v6?.into()]);
        Self {
            run_state: RunState::new(traced),
            ledger: Ledger::new(ues.len()),
            addresses: victims.iter().filter_map(both).collect(),
            victims,
            ues,
            upfs,
            lines,
            active: Active::default(),
            hostile,
            strangers,
            quiet: 0,
            drain: false,
            plain,
            dropped: Vec::new(),
            out: Out::default(),
            spins: (now, 0),
        }
    }

    fn spin(&mut self, who: impl Fn(&Self) -> String) -> Result<(), Violation> {
        if self.spins.0 != self.run_state.now {
            self.spins = (self.run_state.now, 0);
        }
        self.spins.1 += 1;
        self.run_state.tally.count_check(Invariant::NoSpin);
        if self.spins.1 <= SPINS {
            return Ok(());
        }
        let what = format!("{} polls at {} without anything to do: {}", SPINS, self.run_state.now, who(self));
        Err(self.run_state.violation(Invariant::NoSpin, what))
    }

    // ---- datagrams ---------------------------------------------------------------------------------------

    fn arrive(&mut self, ue: usize, access: usize, up: bool, packet: &[u8]) -> Result<(), Violation> {
        let Ok((from, to, payload)) = ip::parse_udp(packet) else { return Ok(()) };
        let mut payload = packet[payload].to_vec();
        if up {
            let Some(upf) = (0..self.upfs.len()).find(|n| remote(*n, access) == to) else { return Ok(()) };
            return self.upf_takes(upf, access as u8, from, &mut payload);
        }
        // A datagram to an address from before a change is lost.
        if self.ues[ue].source[access] != to {
            return Ok(());
        }
        self.ue_takes(ue, access as u8, from, &mut payload)
    }

    fn upf_takes(
        &mut self,
        upf: usize,
        access: u8,
        from: SocketAddr,
        payload: &mut [u8],
    ) -> Result<(), Violation> {
        let end = &mut self.upfs[upf];
        if !end.runs() {
            return Ok(());
        }
        let (mut sockets, mut device) = self.out.sides(end.no_room == 0);
        end.upf.datagram(access, from, payload, self.run_state.now, &mut sockets, &mut device);
        end.compute_handshakes(self.run_state.now);
        self.run_state.tally.effect("upf-no-room", sockets.refused);
        self.take_upf(upf)
    }

    fn ue_takes(
        &mut self,
        ue: usize,
        access: u8,
        from: SocketAddr,
        payload: &mut [u8],
    ) -> Result<(), Violation> {
        let end = &mut self.ues[ue];
        if !end.runs() {
            return Ok(());
        }
        let (_, mut device) = self.out.sides(true);
        end.ue.datagram(access, from, payload, end.clock(self.run_state.now), &mut device);
        self.take_ue(ue)
    }

    /// Processes the output of a UE.
    pub(super) fn take_ue(&mut self, ue: usize) -> Result<(), Violation> {
        let Out { datagrams, packets } = std::mem::take(&mut self.out);
        while let Some(event) = self.ues[ue].ue.poll_event() {
            self.run_state.note(|| format!("UE {ue}: {event:?}"));
            match event {
                UeEvent::Handshake { timestamp_ns } => self.ues[ue].state_file_timestamp_ns = timestamp_ns,
                UeEvent::Refused { .. } => self.refused(ue),
                _ => {}
            }
        }
        for (path, to, payload) in datagrams {
            let access = usize::from(path);
            let from = self.ues[ue].source[access];
            self.see(true, path, from, to, &payload)?;
            let packet = ip::udp_datagram(from, to, &payload).unwrap_or_default();
            self.lines[ue][access].offer(true, packet, self.run_state.now, &mut self.run_state.tally);
        }
        self.deliver(false, packets)
    }

    /// Processes the output of a UPF.
    pub(super) fn take_upf(&mut self, upf: usize) -> Result<(), Violation> {
        let Out { datagrams, packets } = std::mem::take(&mut self.out);
        if self.upfs[upf].deaf == 0 {
            while let Some(event) = self.upfs[upf].upf.poll_event() {
                self.run_state.note(|| format!("UPF {upf}: {event:?}"));
                if let UpfEvent::Handshake { key, timestamp_ns } = event {
                    self.upfs[upf].state_file.insert(key.0, (key, timestamp_ns));
                }
            }
        } else {
            self.run_state.tally.effect("deaf", 1);
        }
        for (path, to, payload) in datagrams {
            let access = usize::from(path);
            let from = remote(upf, access);
            self.see(false, path, from, to, &payload)?;
            if let Some(ue) = self.ues.iter().position(|ue| ue.source[access] == to) {
                let packet = ip::udp_datagram(from, to, &payload).unwrap_or_default();
                self.lines[ue][access].offer(false, packet, self.run_state.now, &mut self.run_state.tally);
            } else if let Some(hostile) = self.hostile.as_mut().filter(|_| Hostile::home(path) == to) {
                hostile.datagram(&payload, self.run_state.now);
            }
        }
        self.deliver(true, packets)
    }

    /// A datagram is on an access, where it can be observed.
    fn see(
        &mut self,
        up: bool,
        access: u8,
        from: SocketAddr,
        to: SocketAddr,
        payload: &[u8],
    ) -> Result<(), Violation> {
        self.run_state.tally.digest(payload);
        self.run_state.tally.count_check(Invariant::Sealed);
        if !self.plain[usize::from(access)]
            && (classify(payload) == Ok(MessageType::PlainData) || ledger::in_clear(payload))
        {
            let what = format!("{} bytes from {from} to {to} show user data", payload.len());
            return Err(self.run_state.violation(Invariant::Sealed, what));
        }
        if let Some(strangers) = &mut self.strangers {
            strangers.see(up, access, from, to, payload, self.run_state.now);
        }
        Ok(())
    }

    // ---- inner packets -----------------------------------------------------------------------------------

    fn deliver(&mut self, up: bool, packets: Vec<Vec<u8>>) -> Result<(), Violation> {
        for packet in packets {
            let (ues, plain) = (&self.ues, self.plain.contains(&true));
            let arrival = self.ledger.arrive(
                up,
                &packet,
                self.run_state.now,
                &self.addresses,
                Hostile::own(),
                |_| plain,
                |ue, _| {
                    let ue = &ues[usize::from(ue)];
                    ue.orderly && ue.reorder
                },
                |ue| {
                    let ue = &ues[usize::from(ue)];
                    let slower = ue.plan.delay_ms.into_iter().max().map(Duration::from_millis);
                    slower.filter(|_| ue.orderly && ue.lossless && ue.reorder).map(|slower| slower + PROMPT)
                },
                &mut self.run_state.tally,
            );
            let arrival = arrival.map_err(|(invariant, what)| self.run_state.violation(invariant, what))?;
            if let Arrival::Packet(label) = arrival {
                self.use_packet(up, &label)?;
            }
        }
        Ok(())
    }

    fn use_packet(&mut self, up: bool, label: &Label) -> Result<(), Violation> {
        let (ue, number) = (usize::from(label.ue), usize::from(label.flow));
        self.ues[ue].unserved[usize::from(up)][number] = (0, self.run_state.now);
        let flow = &mut self.ues[ue].flows[number];
        let done = match label.kind {
            Kind::Udp => return Ok(()),
            Kind::Segment => flow.segment(label.offset, label.bytes).map(Some),
            Kind::Ack => flow.ack(label.offset).map(|()| None),
        };
        self.run_state.tally.count_check(Invariant::Reliable);
        let answer =
            done.map_err(|what| self.run_state.violation(Invariant::Reliable, format!("UE {ue}, {what}")))?;
        match answer {
            Some((kind, offset, bytes)) => self.send(ue, number, !up, kind, offset, bytes),
            None => Ok(()),
        }
    }

    fn turn(&mut self, ue: usize, flow: usize) -> Result<(), Violation> {
        let state = &mut self.ues[ue].flows[flow];
        let (up, new) = (state.up, self.quiet == 0 && !self.drain);
        let Some((kind, offset, bytes)) = state.turn(self.run_state.now, new) else {
            if self.quiet > 0 {
                self.run_state.tally.effect("quiet", 1);
            }
            return Ok(());
        };
        self.send(ue, flow, up, kind, offset, bytes)
    }

    /// A burst of numbered packets in both directions.
    pub(super) fn burst(&mut self, ue: usize, packets: u8) -> Result<(), Violation> {
        for n in 0..packets {
            self.run_state.tally.effect("burst", 1);
            let bytes = self.ues[ue].flows[0].size();
            let flow = usize::from(n % 2);
            self.send(ue, flow, n % 2 == 0, Kind::Udp, 0, bytes)?;
        }
        Ok(())
    }

    fn send(
        &mut self,
        ue: usize,
        flow: usize,
        up: bool,
        kind: Kind,
        offset: u64,
        bytes: usize,
    ) -> Result<(), Violation> {
        let v6 = usize::from(self.ues[ue].flows[flow].v6);
        let device = SocketAddr::new(self.addresses[ue][v6], 5_000 + flow as u16);
        let server = SocketAddr::new(SERVER[v6], 9);
        let (from, to) = if up { (device, server) } else { (server, device) };
        let label =
            Label { number: self.ledger.next_number(), kind, ue: ue as u8, flow: flow as u8, offset, bytes };
        let mut packet = ledger::emit(from, to, &label);
        self.ledger.send(ue as u8, flow as u8, up, &packet, self.run_state.now);
        self.expect_service(ue, flow, up)?;
        if up {
            let end = &mut self.ues[ue];
            if end.runs() {
                let (mut sockets, _) = self.out.sides(end.no_room == 0);
                end.ue.uplink(&mut packet, end.clock(self.run_state.now), &mut sockets);
                self.run_state.tally.effect("ue-no-room", sockets.refused);
            }
            return self.take_ue(ue);
        }
        let home = self.ues[ue].home;
        let end = &mut self.upfs[home];
        if end.runs() {
            let (mut sockets, _) = self.out.sides(end.no_room == 0);
            end.upf.downlink(&mut packet, self.run_state.now, &mut sockets);
            self.run_state.tally.effect("upf-no-room", sockets.refused);
        }
        self.take_upf(home)
    }

    /// Time since which a UE has had a good access and working programs at both ends.
    fn good_since(&self, ue: usize) -> Option<Instant> {
        use super::ends::Running;
        let end = &self.ues[ue];
        let upf = &self.upfs[end.home];
        let (Running::Since(a), Running::Since(b)) = (end.running, upf.running) else { return None };
        if end.no_room > 0
            || upf.no_room > 0
            || upf.sessions.is_some()
            || end.clock_s != 0
            || upf.clock_s != 0
        {
            return None;
        }
        let lines = &self.lines[ue];
        // If an access passes only some packets, a flow on it may lose any number in a row.
        if !lines.iter().all(Line::is_dead_or_clean) {
            return None;
        }
        let line = lines.iter().filter_map(Line::clean_since).min()?;
        Some(a.max(b).max(line).max(end.excused_until))
    }

    fn expect_service(&mut self, ue: usize, flow: usize, up: bool) -> Result<(), Violation> {
        let good = self.good_since(ue).is_some_and(|since| self.run_state.now >= since + GOOD_FOR);
        let now = self.run_state.now;
        let unserved = &mut self.ues[ue].unserved[usize::from(up)][flow];
        if !good {
            *unserved = (0, now);
            return Ok(());
        }
        if unserved.0 == 0 {
            unserved.1 = now;
        }
        unserved.0 += 1;
        let (packets, since) = *unserved;
        self.run_state.tally.count_check(Invariant::Served);
        if packets < UNSERVED || now < since + UNSERVED_FOR {
            return Ok(());
        }
        let what = format!(
            "none of {packets} packets of UE {ue}, flow {flow}, {}, arrived since {since}; paths {:?}",
            if up { "up" } else { "down" },
            self.ues[ue].ue.paths().iter().map(|p| (p.up, p.down)).collect::<Vec<_>>(),
        );
        Err(self.run_state.violation(Invariant::Served, what))
    }

    // ---- attackers ---------------------------------------------------------------------------------------

    fn attack_by_hostile(&mut self) -> Result<(), Violation> {
        let Some(hostile) = &mut self.hostile else { return Ok(()) };
        let attacks = hostile.turn(&self.victims, self.run_state.now);
        self.run_state.tally.effect("hostile", attacks.len() as u64);
        for (access, from, mut payload) in attacks {
            self.upf_takes(0, access, from, &mut payload)?;
        }
        Ok(())
    }

    fn attack_by_strangers(&mut self) -> Result<(), Violation> {
        let Some(strangers) = &mut self.strangers else { return Ok(()) };
        let Some(mut attack) = strangers.turn(remote(0, 0), self.run_state.now) else { return Ok(()) };
        self.run_state.tally.effect("strangers", 1);
        let (access, from) = (attack.access, attack.from);
        let drops = |w: &Self| {
            // Handshakes in computation will be counted or answered.
            let upfs: u64 = w.upfs.iter().map(|end| end.upf.drops().total() + end.answers.len() as u64).sum();
            let ues: u64 = w.ues.iter().map(|end| end.ue.drops().total()).sum();
            upfs + ues
        };
        let before = drops(self);
        let runs = if attack.up {
            let upf = (0..self.upfs.len()).find(|n| remote(*n, usize::from(access)) == attack.to);
            let Some(upf) = upf else { return Ok(()) };
            self.upf_takes(upf, access, from, &mut attack.payload)?;
            self.upfs[upf].runs()
        } else {
            let ue = self.ues.iter().position(|ue| ue.source[usize::from(access)] == attack.to);
            let Some(ue) = ue else { return Ok(()) };
            self.ue_takes(ue, access, from, &mut attack.payload)?;
            self.ues[ue].runs()
        };
        if !attack.harmless || !runs {
            return Ok(());
        }
        self.run_state.tally.count_check(Invariant::Counted);
        if drops(self) > before {
            return Ok(());
        }
        let what = format!("{:02x?} from {from} is counted nowhere", attack.payload);
        Err(self.run_state.violation(Invariant::Counted, what))
    }

    // ---- bounds ------------------------------------------------------------------------------------------

    fn bounds(&mut self) -> Result<(), Violation> {
        for n in 0..self.upfs.len() {
            let UpfEnd { upf, config, table_bytes, .. } = &self.upfs[n];
            let pool = upf.pool();
            self.run_state.tally.count_check(Invariant::Bounded);
            let bounded = pool.used_bytes() <= pool.config().bytes
                && pool.queues_used() <= pool.config().queues
                && upf.session_count() <= config.max_sessions as usize
                && upf.connected_count() <= upf.session_count()
                && upf.table_bytes() <= 2 * *table_bytes;
            if !bounded {
                let what = format!(
                    "UPF {n}: {} bytes and {} queues held, {} sessions of {}, tables of {} bytes, {table_bytes} at first",
                    pool.used_bytes(),
                    pool.queues_used(),
                    upf.session_count(),
                    config.max_sessions,
                    upf.table_bytes(),
                );
                return Err(self.run_state.violation(Invariant::Bounded, what));
            }
            self.run_state.tally.count_check(Invariant::Share);
            if pool.available_to(Default::default()) == 0 {
                let what = format!(
                    "UPF {n}: a session that holds nothing gets no queue: {} of {} and {} bytes are taken",
                    pool.queues_used(),
                    pool.config().queues,
                    pool.used_bytes(),
                );
                return Err(self.run_state.violation(Invariant::Share, what));
            }
        }
        Ok(())
    }

    /// Checks the measurements of both ends for accesses without added delay or loss.
    pub(super) fn measured(&mut self) -> Result<(), Violation> {
        let now = self.run_state.now;
        for n in 0..self.ues.len() {
            let (lines, tally) = (&mut self.lines[n], &mut self.run_state.tally);
            let end = &self.ues[n];
            if !(end.lossless && end.orderly) || lines.iter_mut().any(|line| line.dropped(now, tally) > 0) {
                continue;
            }
            tally.count_check(Invariant::Measured);
            let there = self.upfs[end.home].upf.session(&end.entry.key);
            let there = there.into_iter().flat_map(|session| session.path_loads(now));
            let mut all = end.ue.session().path_loads(end.clock(now)).chain(there);
            let wrong = all.find(|path| {
                let LoadView { queue_us, drop_us, capacity_bps, wild_ppm, .. } = path.load;
                let loss = u32::from(path.steady_loss_percent) + u32::from(path.lasting_loss_rx) + wild_ppm;
                queue_us > QUEUE_US || drop_us != u32::MAX || capacity_bps > 0 || loss > 0
            });
            if let Some(path) = wrong {
                let what = format!("UE {n} or its UPF sees a queue or a loss: {path:?}");
                return Err(self.run_state.violation(Invariant::Measured, what));
            }
        }
        Ok(())
    }

    // ---- interface ---------------------------------------------------------------------------------------

    /// A middlebox changes the source address of a UE.
    pub(super) fn roam(&mut self, ue: usize, access: usize) {
        let end = &mut self.ues[ue];
        end.roamed += 1;
        end.source[access] = local(ue, access, end.roamed);
        self.run_state.tally.effect("roam", 1);
    }

    /// What is missing, if not all UEs have their sessions or not all paths are up at both ends.
    #[must_use]
    pub fn unsettled(&self) -> Option<String> {
        self.ues.iter().enumerate().find_map(|(n, end)| {
            let upf = &self.upfs[end.home].upf;
            let view = upf.view(&end.entry.key);
            let here = end.ue.paths();
            let there = view.as_ref().map(|view| &view.paths[..]).unwrap_or_default();
            let up = |paths: &[anabranch_atsss::session::PathView]| {
                paths.len() == 2 && paths.iter().all(|path| path.up)
            };
            let connected = end.ue.is_connected() && view.as_ref().is_some_and(|view| view.connected);
            if connected && up(&here) && up(there) {
                return None;
            }
            let of = |paths: &[anabranch_atsss::session::PathView]| {
                paths.iter().map(|p| format!("{} {:?}", p.up, p.down)).collect::<Vec<_>>().join(", ")
            };
            Some(format!(
                "UE {n} connected: {connected}; paths at the UE: {}; at the UPF: {}; drops {:?} and {:?}",
                of(&here),
                of(there),
                end.ue.drops(),
                upf.drops()
            ))
        })
    }

    /// The first reliable flow that is not complete.
    #[must_use]
    pub fn undone(&self) -> Option<String> {
        self.ues.iter().enumerate().find_map(|(n, end)| {
            let open = |flow: &&super::flow::Flow| flow.transport == Transport::Reliable && !flow.is_done();
            let flow = end.flows.iter().find(open)?;
            let (offered, received) = flow.progress();
            Some(format!("UE {n}, flow {}: {received} of {offered} bytes arrived", flow.number))
        })
    }
}
