//! From a checked [`File`] to a [`Case`]: references must be valid, and no part may be unused.

use super::file::{self, File, FlowKind};
use super::model::{Access, Action, Case, Event, Flow, Traffic, Ue, Via, bps, ms, s};
use super::walk::Problem;
use crate::virtual_backend::addresses;
use anabranch_atsss::MAX_PATHS;
use anabranch_element::names::did_you_mean;
use anabranch_element::time::Duration;
use anabranch_ran::gnb::Gnb;
use anabranch_ran::sched::SliceConfig;
use anabranch_rules::Filter;
use anabranch_selection::Properties;
use anabranch_selection::window::{self, WindowInput};
use anabranch_steer::{Mode, PolicyError, Rule, SteeringMode, active_standby};
use std::collections::{BTreeMap, BTreeSet};

/// Resolves one variant of a file.
///
/// # Errors
/// All invalid references and all parts without effect.
pub fn resolve(mut file: File, scenario: &str, variant: Option<(&str, &str)>) -> Result<Case, Vec<Problem>> {
    if file.upf.is_empty() && !file.ue.is_empty() {
        file.upf.insert("upf".into(), file::Upf::default());
    }
    if file.server.is_empty() && !file.ue.is_empty() {
        file.server.insert("server".into(), file::Server::default());
    }
    let mut check = Check { problems: Vec::new(), warnings: Vec::new() };
    let ues = check.ues(&file);
    let flows = check.flows(&file, &ues);
    let events = check.events(&file, &ues);
    check.idle(&file, &ues, &flows);
    check.untraced_queues(&file);
    if !check.problems.is_empty() {
        return Err(check.problems);
    }
    let case = Case {
        scenario: scenario.to_owned(),
        variant: variant.map(|(name, _)| name.to_owned()),
        title: variant.map_or(file.title, |(_, title)| title.to_owned()),
        backends: file.backends,
        duration: s(file.duration_s),
        measure_from: s(file.measure_from_s),
        sample: ms(file.sample_ms),
        links: file.link,
        gnbs: file.gnb,
        lwips: file.lwip,
        upfs: file.upf,
        servers: file.server,
        ues,
        slices: file.slice,
        flows,
        events,
        derived: file.metric,
        memory: file.memory,
        warnings: check.warnings,
    };
    if case.backends.contains(&file::BackendName::Virtual) {
        let too_many = |message| vec![Problem { line: None, path: String::new(), message }];
        addresses::enough(&case).map_err(too_many)?;
    }
    Ok(case)
}

/// Header of an irtt packet with all time stamps, and a reserve, bytes.
const IRTT_BYTES: u32 = 80;

/// Maximum UDP payload in packets of a session (1400 bytes) and of a link (1500 bytes), over IPv6.
const TUNNEL_PAYLOAD: u32 = 1372;
const LINK_PAYLOAD: u32 = 1452;

/// Maximum number of points of a series over the whole run, and of repetitions of an event.
const MOST_POINTS: f64 = 1e6;
const MOST_TIMES: f64 = 1e6;

/// Maximum sum of the shares of a cell, with a tolerance for rounding, percent.
const MAX_SHARES_PERCENT: f64 = 100.0 + 1e-6;

struct Check {
    problems: Vec<Problem>,
    warnings: Vec<String>,
}

/// Maximum number of known names listed in a message.
const MOST_NAMED: usize = 20;

impl Check {
    fn problem(&mut self, path: impl Into<String>, message: impl Into<String>) {
        self.problems.push(Problem { line: None, path: path.into(), message: message.into() });
    }

    /// Returns `name` if it is in `known`; otherwise reports a problem at `path`.
    fn known<'a>(
        &mut self,
        path: &str,
        what: &str,
        name: &str,
        known: impl IntoIterator<Item = &'a str> + Clone,
    ) -> bool {
        if known.clone().into_iter().any(|k| k == name) {
            return true;
        }
        let near = did_you_mean(name, known.clone());
        let mut all: Vec<_> = known.into_iter().collect();
        let more = all.len().saturating_sub(MOST_NAMED);
        all.truncate(MOST_NAMED);
        let all = match (all.join(", "), more) {
            (all, _) if all.is_empty() => "there is none".into(),
            (all, 0) => format!("there is {all}"),
            (all, more) => format!("there is {all} and {more} more"),
        };
        self.problem(path, format!("there is no {what} `{name}`{near}; {all}"));
        false
    }

    /// The given name, or the only one that exists.
    fn given_or_only<V>(
        &mut self,
        path: &str,
        what: &str,
        given: Option<&String>,
        all: &BTreeMap<String, V>,
    ) -> String {
        match (given, all.len()) {
            (Some(name), _) => {
                if !all.contains_key(name) {
                    self.known(path, what, name, all.keys().map(String::as_str));
                }
                name.clone()
            }
            (None, 1) => all.keys().next().cloned().unwrap_or_default(),
            (None, n) => {
                self.problem(path, format!("is missing: there are {n} of these, say which {what}"));
                String::new()
            }
        }
    }

    fn ues(&mut self, file: &File) -> BTreeMap<String, Ue> {
        let mut ues = BTreeMap::new();
        for (name, ue) in &file.ue {
            let path = format!("ue.{name}");
            let upf = self.given_or_only(&format!("{path}.upf"), "upf", ue.upf.as_ref(), &file.upf);
            if ue.accesses.is_empty() || ue.accesses.len() > MAX_PATHS {
                self.problem(format!("{path}.accesses"), format!("a UE has 1 to {MAX_PATHS} accesses"));
            }
            let mut seen = BTreeSet::new();
            let accesses: Vec<Access> = ue
                .accesses
                .iter()
                .map(|a| {
                    let path = format!("{path}.accesses.{}", a.name);
                    if !super::walk::valid_name(&a.name) || !seen.insert(a.name.clone()) {
                        self.problem(&path, "needs a name of its own: letters, digits, `_` and `-`");
                    }
                    if !file.link.contains_key(&a.link) && !file.gnb.contains_key(&a.link) {
                        let links = file.link.keys().chain(file.gnb.keys()).map(String::as_str);
                        self.known(&path, "link", &a.link, links);
                    }
                    Access {
                        name: a.name.clone(),
                        link: a.link.clone(),
                        security: a.security.unwrap_or(ue.security),
                    }
                })
                .collect();
            let mut rules = ue.rules.clone();
            let mut seen = BTreeSet::new();
            for rule in &rules {
                let path = format!("{path}.rules.{}", rule.name);
                if !super::walk::valid_name(&rule.name) || !seen.insert(rule.name.clone()) {
                    self.problem(&path, "needs a name of its own: letters, digits, `_` and `-`");
                }
                self.steering(&path, &rule.steering, &accesses);
            }
            if rules.is_empty() {
                rules.extend(accesses.first().map(|first| Rule {
                    name: "all".into(),
                    filter: Filter::default(),
                    steering: SteeringMode::ActiveStandby(active_standby::Params {
                        primary: first.name.clone(),
                        rotate_packets: 0,
                        leave_above_loss_percent: 5,
                    }),
                    reorder: true,
                    functionality: Default::default(),
                }));
            }
            ues.insert(name.clone(), Ue { upf, accesses, rules, ioam_node: ue.ioam_node });
        }
        ues
    }

    fn steering(&mut self, path: &str, mode: &SteeringMode, accesses: &[Access]) {
        let path = format!("{path}.steering");
        for (key, access) in mode.accesses() {
            let names = accesses.iter().map(|a| a.name.as_str());
            self.known(&format!("{path}.{key}"), "access", access, names);
        }
        let known: Vec<_> = mode.accesses().map(|(_, access)| access.clone()).collect();
        match Mode::compile_for(mode, &[], &known) {
            // Ranges are checked when the file is read.
            Ok(_) | Err(PolicyError::Range { .. }) => {}
            Err(error) => self.problem(path, error.to_string()),
        }
    }

    fn flows(&mut self, file: &File, ues: &BTreeMap<String, Ue>) -> BTreeMap<String, Flow> {
        let mut flows = BTreeMap::new();
        let given: BTreeSet<u16> = file.flow.values().filter_map(|f| f.port).collect();
        let mut free = (5001..=u16::MAX).filter(|p| !given.contains(p));
        for (name, flow) in &file.flow {
            let path = format!("flow.{name}");
            let port = flow.port.or_else(|| free.next()).unwrap_or(u16::MAX);
            if !flow.enabled {
                continue;
            }
            let ue = self.given_or_only(&format!("{path}.ue"), "ue", flow.ue.as_ref(), &file.ue);
            let server =
                self.given_or_only(&format!("{path}.server"), "server", flow.server.as_ref(), &file.server);
            let start = s(flow.start_s);
            let stop = flow.duration_s.map_or(s(file.duration_s), |d| start + s(d)).min(s(file.duration_s));
            if start >= stop {
                self.problem(format!("{path}.start_s"), "starts after the end of the run (duration_s)");
            }
            let traffic = traffic(flow);
            let via = self.via(&path, flow, ues.get(&ue), &traffic, file);
            self.program(&path, flow, &via);
            self.size(&path, flow, &via, file);
            self.ipv6(&path, flow, &via);
            let fetches = flow.bytes.is_some() && flow.direction == file::Direction::Down;
            if flow.program == file::Program::Curl
                && (!fetches || flow.limit_mbps.is_some() || via == Via::Mptcp)
            {
                let what = "curl fetches a file: it needs `bytes` and direction \"down\", without limit_mbps or mptcp";
                self.problem(format!("{path}.program"), what);
            }
            let needs = self.slices(&path, flow, &via, file, ues.get(&ue));
            let one = Flow {
                ue,
                server,
                via,
                needs,
                port,
                start,
                start_jitter: ms(flow.start_jitter_ms),
                stop,
                traffic,
                recovery: flow.recovery,
                sack: flow.sack,
                paced: flow.paced,
                initial_window_segments: initial_window(flow),
                program: flow.program,
                ipv6: flow.ipv6,
                telemetry: flow.telemetry.clone(),
            };
            if flow.count == 1 {
                flows.insert(name.clone(), one);
                continue;
            }
            for i in 1..=flow.count {
                let name = format!("{name}-{i}");
                if file.flow.contains_key(&name) {
                    self.problem(format!("{path}.count"), format!("there is a flow `{name}` already"));
                }
                let port = if i == 1 { port } else { free.next().unwrap_or(u16::MAX) };
                flows.insert(name, Flow { port, ..one.clone() });
            }
        }
        self.ports(file, &flows);
        flows
    }

    /// Checks that each port belongs to one flow.
    fn ports(&mut self, file: &File, flows: &BTreeMap<String, Flow>) {
        let netns = file.backends.contains(&file::BackendName::Netns);
        let (mut at_servers, mut at_ues) = (BTreeMap::new(), BTreeMap::new());
        for (name, flow) in flows {
            let tcp = flow.traffic.is_tcp();
            let there = at_servers.insert((&flow.server, tcp, flow.port), name);
            // In namespaces, the local UDP port of a UE equals the server's port.
            let ue = (netns && !tcp).then_some((&flow.ue, &flow.via, flow.port));
            let here = ue.and_then(|end| at_ues.insert(end, name));
            if let Some(other) = there.or(here) {
                let of = if there.is_some() { "server" } else { "UE (in namespaces)" };
                let port = flow.port;
                self.problem(
                    format!("flow.{name}.port"),
                    format!(
                        "{port} is the port of flow `{other}` at the same {of}: give each its own; a filter takes several, \
                         \"first-last\""
                    ),
                );
            }
        }
    }

    /// Checks that IPv6 is supported by the path of the flow, and that telemetry is used only with IPv6.
    fn ipv6(&mut self, path: &str, flow: &file::Flow, via: &Via) {
        if flow.telemetry.is_some() && !flow.ipv6 {
            self.problem(format!("{path}.telemetry"), "rides in IPv6 options: it needs `ipv6 = true`");
        }
        if flow.ipv6 && !matches!(via, Via::Direct(_) | Via::Atsss) {
            let remedy = "IPv6 goes by `via = \"atsss\"` or `via = \"direct:<access>\"` only";
            self.problem(format!("{path}.ipv6"), remedy);
        }
        if flow.telemetry.is_some() && flow.program == file::Program::Curl {
            self.problem(format!("{path}.telemetry"), "is for our own traffic and iperf3, not for curl");
        }
    }

    /// Checks keys related to slices and windows, and where they may be used. Returns the needs of the flow.
    fn slices(
        &mut self,
        path: &str,
        flow: &file::Flow,
        via: &Via,
        file: &File,
        ue: Option<&Ue>,
    ) -> serde_json::Value {
        let netns = file.backends.contains(&file::BackendName::Netns);
        let own = flow.program == file::Program::Own;
        let asks_slices = own
            || matches!(
                flow.program,
                file::Program::Mavlink | file::Program::MavlinkTcp | file::Program::Ffmpeg
            );
        if flow.slice.guaranteed_mbps.is_some() && netns {
            let what = "is for the virtual backend; namespaces have `via = \"slices\"` and [slice]";
            self.problem(format!("{path}.slice"), what);
        }
        let up = flow.direction == file::Direction::Up || flow.kind == FlowKind::RequestResponse;
        if flow.paced && netns && !(own && up) {
            let what =
                "in namespaces only uplink and request_response flows of `program = \"own\"` are paced";
            self.problem(format!("{path}.paced"), what);
        }
        if flow.reconnect && file.backends.contains(&file::BackendName::Virtual) {
            self.problem(format!("{path}.reconnect"), "is for namespaces; take `backends = [\"netns\"]`");
        }
        let needs = flow.needs.clone().unwrap_or_default();
        if *via != Via::Slices {
            if flow.needs.is_some() {
                self.problem(format!("{path}.needs"), "is asked for with `via = \"slices\"` only");
            }
            return serde_json::Value::Null;
        }
        if !asks_slices {
            self.problem(format!("{path}.program"), "does not ask for slices: leave it out");
        }
        let asks = matches!(flow.kind, FlowKind::BulkTcp | FlowKind::RequestResponse | FlowKind::Ping)
            || flow.direction == file::Direction::Up;
        if !asks {
            self.problem(format!("{path}.direction"), "the server cannot ask the UE's policy: take \"up\"");
        }
        if let Some(ue) = ue
            && !file.slice.values().any(|slice| ue.accesses.iter().any(|a| a.name == slice.access))
        {
            self.problem(format!("{path}.via"), "no [slice] has an access of its UE");
        }
        let needs = serde_json::to_value(needs).unwrap_or_default();
        if let Err(error) = Properties::from_json(needs.clone()) {
            self.problem(format!("{path}.needs"), error.to_string());
        }
        needs
    }

    /// Checks that a packet fits in its tunnel or link.
    fn size(&mut self, path: &str, flow: &file::Flow, via: &Via, file: &File) {
        if !matches!(flow.kind, FlowKind::Cbr | FlowKind::OnOff | FlowKind::Ping) {
            return;
        }
        let remedy = match via {
            Via::Direct(_) if flow.packet_bytes <= LINK_PAYLOAD => return,
            Via::Direct(_) if !file.backends.contains(&file::BackendName::Netns) => return,
            Via::Direct(_) => format!(
                "interfaces of namespaces carry {LINK_PAYLOAD} at most: take backends = [\"virtual\"]"
            ),
            _ if flow.packet_bytes <= TUNNEL_PAYLOAD => return,
            _ => format!("a tunnel carries {TUNNEL_PAYLOAD} at most: take via = \"direct:<access>\""),
        };
        self.problem(format!("{path}.packet_bytes"), format!("{}: {remedy}", flow.packet_bytes));
    }

    /// Checks that a flow is suitable for its program.
    fn program(&mut self, path: &str, flow: &file::Flow, via: &Via) {
        let path = format!("{path}.program");
        let tcp = flow.kind == FlowKind::BulkTcp;
        match flow.program {
            file::Program::Curl if !tcp => {
                self.problem(path, "curl fetches a file: it needs kind \"bulk_tcp\"");
            }
            file::Program::Iperf3 if !tcp || *via == Via::Mptcp => {
                self.problem(path, "iperf3 carries kind \"bulk_tcp\", without mptcp");
            }
            file::Program::Quinn
                if !tcp
                    || !matches!(via, Via::Atsss | Via::Direct(_))
                    || flow.limit_mbps.is_some()
                    || flow.congestion_control.reads_reports() =>
            {
                let what = "quinn carries kind \"bulk_tcp\" with cubic, bbr or reno by atsss or direct:<access>, without \
                            limit_mbps";
                self.problem(path, what);
            }
            file::Program::Irtt if tcp => {
                self.problem(path, "irtt carries kind \"cbr\" or \"ping\"");
            }
            file::Program::Irtt if flow.packet_bytes < IRTT_BYTES => {
                let bytes = flow.packet_bytes;
                self.problem(path, format!("packet_bytes = {bytes}: irtt has {IRTT_BYTES} at least"));
            }
            file::Program::Mavlink | file::Program::MavlinkTcp
                if flow.kind != FlowKind::Cbr || flow.direction != file::Direction::Up =>
            {
                self.problem(path, "a vehicle sends MAVLink: it needs kind \"cbr\" and direction \"up\"");
            }
            file::Program::Ffmpeg
                if !tcp
                    || flow.direction != file::Direction::Up
                    || flow.limit_mbps.is_none()
                    || flow.bytes.is_some()
                    || *via == Via::Mptcp =>
            {
                let what = "ffmpeg sends a video: it needs kind \"bulk_tcp\", direction \"up\" and limit_mbps, and neither \
                            bytes nor mptcp";
                self.problem(path, what);
            }
            _ => {}
        }
    }

    fn via(&mut self, path: &str, flow: &file::Flow, ue: Option<&Ue>, traffic: &Traffic, file: &File) -> Via {
        let path = format!("{path}.via");
        if flow.via == "lwip" || flow.via.starts_with("lwip:") {
            let given = flow.via.strip_prefix("lwip:").map(str::to_owned);
            let node = self.given_or_only(&path, "lwip", given.as_ref(), &file.lwip);
            let on = |ue: &Ue, link: &str| ue.accesses.iter().any(|a| a.link == link);
            if let (Some(ue), Some(of)) = (ue, file.lwip.get(&node))
                && !(on(ue, &of.lte) && on(ue, &of.wifi))
            {
                let (lte, wifi) = (&of.lte, &of.wifi);
                self.problem(&path, format!("its UE needs an access on `{lte}` and one on `{wifi}`"));
            }
            return Via::Lwip(node);
        }
        match (flow.via.as_str(), flow.via.strip_prefix("direct:")) {
            ("atsss", _) => Via::Atsss,
            ("slices", _) => Via::Slices,
            ("mptcp", _) => {
                if !traffic.is_tcp() {
                    self.problem(path, "mptcp carries TCP only; take atsss or direct:<access>");
                }
                Via::Mptcp
            }
            (_, Some(access)) => {
                if let Some(ue) = ue {
                    self.known(&path, "access", access, ue.accesses.iter().map(|a| a.name.as_str()));
                }
                Via::Direct(access.to_owned())
            }
            (other, None) => {
                self.problem(path, format!("`{other}`: write atsss, direct:<access>, lwip, mptcp or slices"));
                Via::Atsss
            }
        }
    }

    fn events(&mut self, file: &File, ues: &BTreeMap<String, Ue>) -> Vec<Event> {
        let mut events = Vec::new();
        for (i, event) in file.event.iter().enumerate().filter(|(_, e)| e.enabled) {
            let path = format!("event.{}", event.name.clone().unwrap_or_else(|| i.to_string()));
            let Some(action) = self.action(&path, event, file, ues) else { continue };
            if s(event.at_s) >= s(file.duration_s) {
                self.problem(format!("{path}.at_s"), "is after the end of the run (duration_s)");
            }
            let times = event.every_s.map_or(1.0, |every_s| (file.duration_s - event.at_s) / every_s);
            if times > MOST_TIMES {
                let message = format!("happens {times:.0} times: give {MOST_TIMES} at most");
                self.problem(format!("{path}.every_s"), message);
                continue;
            }
            events.push(Event {
                at: s(event.at_s),
                jitter: s(event.at_jitter_s),
                every: event.every_s.map(s),
                action,
            });
        }
        self.shares(file, &events);
        events
    }

    /// Checks that the shares of a cell sum to at most 100 % after each of its `share` events. Events of one instant are
    /// applied in the order of the file.
    fn shares(&mut self, file: &File, events: &[Event]) {
        let mut changes: Vec<_> = events
            .iter()
            .filter_map(|event| match &event.action {
                Action::Share { gnb, slice, share_percent } => Some((event.at, gnb, slice, share_percent)),
                _ => None,
            })
            .collect();
        changes.sort_by_key(|(at, ..)| *at);
        for (name, gnb) in &file.gnb {
            let mut slices = gnb.slices();
            let sum = |slices: &[SliceConfig]| slices.iter().map(|slice| slice.share_percent).sum::<f64>();
            if sum(&slices) > MAX_SHARES_PERCENT {
                // Reported for the cell.
                continue;
            }
            for (at, _, slice, share) in changes.iter().filter(|(_, gnb, ..)| *gnb == name) {
                let Some(changed) = slices.iter_mut().find(|s| s.name == **slice) else { continue };
                changed.share_percent = **share;
                let sum = sum(&slices);
                if sum > MAX_SHARES_PERCENT {
                    let (at_s, share) = (at.as_secs_f64(), **share);
                    let message = format!(
                        "{share} % for slice `{slice}` at {at_s} s would make the shares of gnb `{name}` {sum} %: must be 100 at \
                         most; reduce another slice before"
                    );
                    return self.problem("event", message);
                }
            }
        }
    }

    fn action(
        &mut self,
        path: &str,
        event: &file::Event,
        file: &File,
        ues: &BTreeMap<String, Ue>,
    ) -> Option<Action> {
        use file::EventKind as K;
        let directions = event.direction;
        if let K::Steering | K::SwitchEvery = event.kind {
            let ue = self.given_or_only(&format!("{path}.ue"), "ue", event.ue.as_ref(), &file.ue);
            if event.kind == K::SwitchEvery {
                return Some(Action::SwitchEvery { ue, packets: event.packets });
            }
            let known = ues.get(&ue)?;
            let Some(steering) = event.steering.clone() else {
                self.problem(format!("{path}.steering"), "is missing: the new mode");
                return None;
            };
            self.steering(path, &steering, &known.accesses);
            let names: Vec<&str> = known.rules.iter().map(|r| r.name.as_str()).collect();
            let rule = event.rule.clone().or_else(|| names.first().map(|r| (*r).to_owned()))?;
            self.known(&format!("{path}.rule"), "rule", &rule, names);
            return Some(Action::Steering { ue, rule, steering });
        }
        if event.kind == K::Share {
            let gnb = self.given_or_only(&format!("{path}.gnb"), "gnb", event.gnb.as_ref(), &file.gnb);
            let slices = file.gnb.get(&gnb)?.slices();
            let names = slices.iter().map(|s| s.name.as_str());
            self.known(&format!("{path}.slice"), "slice", &event.slice, names);
            let (slice, share_percent) = (event.slice.clone(), event.share_percent);
            return Some(Action::Share { gnb, slice, share_percent });
        }
        let link = event.link.clone();
        if !self.known(&format!("{path}.link"), "link", &link, file.link.keys().map(String::as_str)) {
            return None;
        }
        Some(match event.kind {
            K::LinkDown => Action::LinkDown { link, directions, how: event.how },
            K::LinkUp => Action::LinkUp { link, directions },
            K::Rate => Action::Rate { link, directions, rate_bps: bps(event.rate_mbps) },
            K::Delay => Action::Delay { link, directions, delay: ms(event.delay_ms) },
            K::Loss => Action::Loss { link, directions, loss: event.loss.clone() },
            K::Strip => Action::Strip { link, directions, strip: event.strip },
            K::Steering | K::SwitchEvery | K::Share => return None,
        })
    }

    /// Checks that a cell has UEs and can be built.
    fn cell(&mut self, name: &str, gnb: &file::Gnb, file: &File, ues: &BTreeMap<String, Ue>) {
        let path = format!("gnb.{name}");
        if file.link.contains_key(name) {
            self.problem(&path, "is the name of a link, too");
        }
        let on = |ue: &Ue| ue.accesses.iter().filter(|a| a.link == name).count();
        for (ue, of) in ues.iter().filter(|(_, ue)| on(ue) > 1) {
            self.problem(
                format!("ue.{ue}.accesses"),
                format!("has {} accesses on cell `{name}`, not one", on(of)),
            );
        }
        let mine: Vec<&str> = ues.iter().filter(|(_, ue)| on(ue) > 0).map(|(n, _)| n.as_str()).collect();
        if mine.is_empty() {
            return self.problem(path, "is used by no UE");
        }
        let upfs: BTreeSet<&str> = mine.iter().map(|ue| ues[*ue].upf.as_str()).collect();
        if upfs.len() > 1 && file.backends.contains(&file::BackendName::Netns) {
            let what = "in namespaces its N3 ends at one; give each UPF a cell of its own";
            self.problem(&path, format!("has UEs of {} UPFs: {what}", upfs.len()));
        }
        let names: BTreeSet<&str> = mine.iter().copied().collect();
        for ue in gnb.ue.keys().filter(|ue| !names.contains(ue.as_str())) {
            self.known(&format!("{path}.ue.{ue}"), "UE of this cell", ue, mine.iter().copied());
        }
        for slice in &gnb.slices {
            if !super::walk::valid_name(&slice.name) {
                self.problem(format!("{path}.slices"), "a name has letters, digits, `_` and `-` only");
            }
        }
        let named: Vec<_> = mine.iter().map(|ue| ((*ue).to_owned(), Vec::new())).collect();
        match gnb.build(0, &named) {
            Ok(cell) => {
                self.stuck(&path, &cell);
                self.unmapped(&path, &cell);
            }
            Err(why) => self.problem(path, why),
        }
    }

    /// Warns of queues of a cell that no packet can ever leave, in its initial state. UEs with the same message are combined.
    fn stuck(&mut self, path: &str, cell: &Gnb) {
        let mut said: BTreeMap<String, (String, usize)> = BTreeMap::new();
        for stuck in cell.unservable_queues() {
            let what = stuck.to_string();
            let of_all = what.split_once(": ").map_or(what.clone(), |(_, rest)| rest.to_owned());
            said.entry(of_all).or_insert((what, 0)).1 += 1;
        }
        for (what, ues) in said.into_values() {
            let more = if ues > 1 { format!(" (and {} UEs more)", ues - 1) } else { String::new() };
            self.warnings.push(format!("{path}: {what}{more}"));
        }
    }

    /// Warns of default queues whose length is that at a rate which a trace replaces.
    fn untraced_queues(&mut self, file: &File) {
        for (name, link) in &file.link {
            for (key, direction) in [("up", &link.up), ("down", &link.down)] {
                let is_default =
                    (direction.rate_mbps - file::LinkDirection::default().rate_mbps).abs() < 1e-9;
                let by_rate = direction.queue_packets.is_none() && direction.queue_bytes.is_none();
                if direction.trace.is_some() && is_default && by_rate {
                    self.warnings.push(format!(
                        "link.{name}.{key}: the queue is sized for rate_mbps = {}, in place of which the trace applies: give \
                         queue_packets or queue_bytes, or as rate_mbps the rate for which it is sized",
                        direction.rate_mbps
                    ));
                }
            }
        }
    }

    /// Warns of packets that no QoS flow of a cell takes; all its UEs have the same flows.
    fn unmapped(&mut self, path: &str, cell: &Gnb) {
        if !cell.unmapped_packets().is_empty() {
            let what = "packets that match no filter are dropped: add a QoS flow without filter";
            self.warnings.push(format!("{path}.qos: {what}"));
        }
    }

    /// Checks that an LWIP node has two legs of its own and UEs, and can be built.
    fn node(&mut self, name: &str, node: &file::Lwip, file: &File, ues: &BTreeMap<String, Ue>) {
        let path = format!("lwip.{name}");
        let links = file.link.keys().map(String::as_str);
        let lte = links.clone().chain(file.gnb.keys().map(String::as_str));
        let known = self.known(&format!("{path}.lte"), "link or cell", &node.lte, lte)
            & self.known(&format!("{path}.wifi"), "link", &node.wifi, links);
        if !known {
            return;
        }
        if node.lte == node.wifi {
            self.problem(format!("{path}.wifi"), "is the LTE leg; a node has two");
        }
        for (other, of) in file.lwip.iter().filter(|(other, _)| other.as_str() < name) {
            for (key, link) in [("lte", &node.lte), ("wifi", &node.wifi)] {
                if [&of.lte, &of.wifi].contains(&link) {
                    self.problem(format!("{path}.{key}"), format!("`{link}` is a leg of `{other}`, too"));
                }
            }
        }
        let on = |ue: &Ue, link: &str| ue.accesses.iter().any(|a| a.link == link);
        if !ues.values().any(|ue| on(ue, &node.lte) && on(ue, &node.wifi)) {
            self.problem(&path, "has no UE: none has an access on both its legs");
        }
        let somewhere = [std::net::Ipv4Addr::LOCALHOST.into()];
        if let Err(why) = node.config_at(Vec::new(), &somewhere) {
            self.problem(path, why);
        }
    }

    /// Reports parts that are unused, since these are probably mistyped names.
    fn idle(&mut self, file: &File, ues: &BTreeMap<String, Ue>, flows: &BTreeMap<String, Flow>) {
        let used: BTreeSet<&str> =
            ues.values().flat_map(|ue| &ue.accesses).map(|access| access.link.as_str()).collect();
        for link in file.link.keys().filter(|link| !used.contains(link.as_str())) {
            self.problem(format!("link.{link}"), "is used by no UE");
        }
        for (name, link) in &file.link {
            for (direction, of) in [("up", &link.up), ("down", &link.down)] {
                if let Err(error) = of.config() {
                    self.problem(format!("link.{name}.{direction}"), error.to_string());
                }
            }
        }
        for (name, gnb) in &file.gnb {
            self.cell(name, gnb, file, ues);
        }
        for (name, node) in &file.lwip {
            self.node(name, node, file, ues);
        }
        for (name, slice) in &file.slice {
            let users: Vec<_> =
                flows.values().filter(|f| f.via == Via::Slices).map(|f| &ues[&f.ue]).collect();
            if !users.iter().any(|ue| ue.accesses.iter().any(|a| a.name == slice.access)) {
                let what = "no UE with a flow `via = \"slices\"` has this access";
                self.problem(format!("slice.{name}.access"), what);
            }
        }
        for upf in file.upf.keys() {
            if !ues.values().any(|u| u.upf == *upf) {
                self.problem(format!("upf.{upf}"), "is used by no UE");
            }
        }
        for server in file.server.keys() {
            if !file.flow.is_empty()
                && !file.flow.values().any(|f| f.server.as_ref().is_none_or(|s| s == server))
            {
                self.problem(format!("server.{server}"), "is used by no flow");
            }
        }
        if flows.is_empty() && file.memory.is_none() {
            self.problem("flow", "is missing: nothing would happen");
        }
        if file.backends.contains(&file::BackendName::Virtual) {
            for (name, flow) in flows {
                if flow.via == Via::Mptcp {
                    self.problem(
                        format!("flow.{name}.via"),
                        "the virtual backend has no MPTCP; put the flow in a variant with backends = [\"netns\"]",
                    );
                }
            }
        }
        if file.backends.is_empty() {
            self.problem("backends", format!("names none; there is {}", file::BackendName::NAMES.join(", ")));
        }
        if file.measure_from_s >= file.duration_s {
            self.problem("measure_from_s", "is after the end of the run (duration_s)");
        }
        let points = file.duration_s * 1e3 / file.sample_ms;
        if points > MOST_POINTS {
            let least = (file.duration_s * 1e3 / MOST_POINTS).ceil();
            let message =
                format!("makes {points:.0} points of each series: take {least} or more for this duration_s");
            self.problem("sample_ms", message);
        }
    }
}

/// The window of Eq. 1 if the slice is known, else 10 segments.
fn initial_window(flow: &file::Flow) -> u32 {
    let Some(guaranteed_mbps) = flow.slice.guaranteed_mbps else { return window::MIN_SEGMENTS };
    let rate_bps = bps(guaranteed_mbps);
    let window = window::initial_window(&WindowInput {
        alpha: flow.slice.alpha,
        rate_bps,
        rtt_us: (flow.slice.rtt_ms * 1e3).round() as u64,
        segment_bytes: SEGMENT_BYTES,
        pacing_bps: flow.paced.then_some(rate_bps),
        peer_window_bytes: None,
    });
    // As a value of a route.
    window::bucket(window.segments)
}

/// Payload of a full-sized segment with timestamps on the links of scenarios, bytes.
const SEGMENT_BYTES: u32 = 1448;

fn traffic(flow: &file::Flow) -> Traffic {
    let (direction, rate_bps, payload_bytes) = (flow.direction, bps(flow.rate_mbps), flow.packet_bytes);
    let congestion_control = flow.congestion_control;
    let at_least = |d: Duration| d.max(Duration::from_micros(1));
    match flow.kind {
        FlowKind::Cbr => Traffic::Cbr { direction, rate_bps, payload_bytes },
        FlowKind::OnOff => Traffic::OnOff {
            direction,
            rate_bps,
            payload_bytes,
            on: at_least(ms(flow.on_ms)),
            off: at_least(ms(flow.off_ms)),
        },
        FlowKind::BulkTcp => Traffic::BulkTcp {
            direction,
            bytes: flow.bytes,
            limit_bps: flow.limit_mbps.map(bps),
            congestion_control,
        },
        FlowKind::RequestResponse => Traffic::RequestResponse {
            request_bytes: flow.request_bytes,
            response_bytes: flow.response_bytes,
            gap: ms(flow.gap_ms),
            reconnect: flow.reconnect,
            congestion_control,
        },
        FlowKind::Ping => Traffic::Ping { interval: at_least(ms(flow.interval_ms)), payload_bytes },
    }
}
