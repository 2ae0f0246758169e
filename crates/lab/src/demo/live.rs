//! Polls the running network and updates the terminal.

use super::picture::{self, Access, COLUMNS, LogMessage, Picture};
use crate::netns::agent::{Agent, Event, Events, Next};
use crate::netns::backend::ObservedRun;
use crate::netns::observe::network::{interfaces, ip_bytes};
use crate::netns::stop::Stop;
use crate::scenario::Case;
use crate::scenario::file::DownHow;
use crate::scenario::model::Action;
use anyhow::Result;
use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Interval between two pictures.
const TICK: Duration = Duration::from_millis(100);
/// Number of ticks over which throughput is averaged.
const SMOOTH: usize = 4;
/// Ticks per column of the history.
const PER_COLUMN: usize = 4;
/// Interval between lines on outputs that cannot be redrawn.
const LINES: Duration = Duration::from_secs(1);

/// Output.
#[derive(Debug)]
pub struct Screen {
    error: bool,
    redraws: bool,
    colours: bool,
    /// Number of lines of the current picture.
    drawn: Mutex<usize>,
}

impl Screen {
    /// Standard output, or standard error.
    #[must_use]
    pub fn new(error: bool) -> Self {
        let terminal = if error { std::io::stderr().is_terminal() } else { std::io::stdout().is_terminal() };
        let dumb = std::env::var_os("TERM").is_none_or(|t| t == "dumb");
        let redraws = terminal && !dumb;
        let colours = redraws && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
        Self { error, redraws, colours, drawn: Mutex::new(0) }
    }

    /// Appends a line.
    pub fn line(&self, text: &str) {
        *self.drawn.lock().unwrap_or_else(PoisonError::into_inner) = 0;
        self.write(&format!("{text}\n"));
    }

    /// Replaces the previous picture.
    fn draw(&self, picture: &Picture) {
        let lines = picture::draw(picture, self.colours);
        let mut drawn = self.drawn.lock().unwrap_or_else(PoisonError::into_inner);
        let mut text = if *drawn > 0 { format!("\x1b[{}F", *drawn) } else { "\n".to_owned() };
        for line in &lines {
            text.push_str(line);
            text.push_str("\x1b[K\n");
        }
        *drawn = lines.len();
        self.write(&text);
    }

    fn write(&self, text: &str) {
        // A closed pipe is not an error.
        let _ = if self.error {
            std::io::stderr().lock().write_all(text.as_bytes())
        } else {
            let mut out = std::io::stdout().lock();
            out.write_all(text.as_bytes()).and_then(|()| out.flush())
        };
    }
}

/// Shows events until the end is requested. Returns the access to which downlink traffic moved when the first link was lost.
///
/// # Errors
/// An agent does not answer.
pub fn watch(
    screen: &Screen,
    case: &Case,
    observed: &ObservedRun,
    start: Instant,
    end: &Stop,
) -> Result<Option<String>> {
    let mut view = View::new(case, observed)?;
    let mut next_line = start + LINES;
    loop {
        let over = end.requested();
        // With two agents, this may take an entire tick.
        view.listen(observed)?;
        end.sleep_until(view.next);
        view.next = Instant::now() + TICK;
        view.observe(case, observed, start)?;
        if screen.redraws {
            view.fresh.clear();
            screen.draw(&view.picture);
        } else {
            for news in view.fresh.drain(..) {
                screen.line(&picture::news_line(&news));
            }
            if Instant::now() >= next_line || over {
                screen.line(&picture::line(&view.picture));
                next_line += LINES;
            }
        }
        if over {
            return Ok(view.moved_to(case));
        }
    }
}

struct View {
    picture: Picture,
    next: Instant,
    /// Events of UEs and UPFs, with the name of the sender.
    streams: Vec<(&'static str, Events)>,
    events: Vec<(f64, &'static str, Event)>,
    /// Messages since the last tick.
    fresh: Vec<LogMessage>,
    /// Future events of the scenario.
    to_come: Vec<(f64, String)>,
    /// Bytes received up to the previous tick, by UE and access.
    first: BTreeMap<(String, String), u64>,
    /// Times and bytes of the last ticks, by access.
    recent: Vec<Vec<(f64, u64)>>,
    ticks: usize,
}

impl View {
    fn new(case: &Case, observed: &ObservedRun) -> Result<Self> {
        let mut streams = Vec::new();
        let agents = observed.ues.iter().filter_map(|u| u.agent.as_ref()).map(|a| ("UE", a));
        for (who, agent) in agents.chain(observed.upfs.iter().map(|a| ("UPF", a))) {
            streams.push((who, agent.events()?));
        }
        let mut accesses = Vec::new();
        let mut first = BTreeMap::new();
        for ue in &observed.ues {
            let counted = interfaces(&ue.space)?;
            for access in &ue.accesses {
                let link = case.ues[&ue.name].accesses.iter().find(|a| a.name == access.name);
                let of_link = |a: &crate::scenario::model::Access| {
                    let link = case.links.get(&a.link).map(|l| l.down.rate_mbps);
                    link.or_else(|| case.gnbs.get(&a.link)?.peak_mbps())
                };
                let scale_mbps = link.and_then(of_link).unwrap_or(1.0);
                accesses.push(Access { name: access.name.clone(), scale_mbps, ..Access::default() });
                let [_, received] = ip_bytes(&counted, access);
                first.insert((ue.name.clone(), access.name.clone()), received);
            }
        }
        let to_come = case.events.iter().map(|e| (e.at.as_secs_f64(), describe(&e.action))).collect();
        let recent = vec![Vec::new(); accesses.len()];
        let bytes = observed.downloads.first().map_or(0, |d| d.bytes);
        let picture = Picture { title: title(case), accesses, file: (0, bytes), ..Picture::default() };
        Ok(Self {
            picture,
            next: Instant::now(),
            streams,
            events: Vec::new(),
            fresh: Vec::new(),
            to_come,
            first,
            recent,
            ticks: 0,
        })
    }

    /// Reads pending events.
    fn listen(&mut self, observed: &ObservedRun) -> Result<()> {
        for (who, stream) in &mut self.streams {
            while let Next::Event(event) = stream.wait_next()? {
                if event.time_unix_ms < observed.begin_unix_ms {
                    continue;
                }
                let at = (event.time_unix_ms - observed.begin_unix_ms) as f64 / 1e3;
                if matches!(event.kind.as_str(), "path-up" | "path-down" | "moved") {
                    self.fresh.push((at, *who, event.message.clone()));
                }
                self.events.push((at, *who, event));
            }
        }
        Ok(())
    }

    /// Updates all figures.
    fn observe(&mut self, case: &Case, observed: &ObservedRun, start: Instant) -> Result<()> {
        let now = start.elapsed().as_secs_f64();
        let picture = &mut self.picture;
        picture.at_s = now;
        let (happened, to_come) =
            std::mem::take(&mut self.to_come).into_iter().partition(|(at, _)| *at <= now);
        self.to_come = to_come;
        let happened: Vec<(f64, String)> = happened;
        self.fresh.extend(happened.into_iter().map(|(at, what)| (at, "", what)));
        self.fresh.sort_by(|a, b| a.0.total_cmp(&b.0));
        picture.news.extend(self.fresh.iter().cloned());
        picture.news.sort_by(|a, b| a.0.total_cmp(&b.0));

        let mut index = 0;
        let mut modes = Vec::new();
        for ue in &observed.ues {
            let counted = interfaces(&ue.space)?;
            let paths = ue.agent.as_ref().map(Agent::paths).transpose()?.unwrap_or_default();
            for of in &ue.accesses {
                let name = &of.name;
                let first = self.first.get(&(ue.name.clone(), name.clone())).copied().unwrap_or_default();
                let [_, received] = ip_bytes(&counted, of);
                let access = &mut picture.accesses[index];
                access.bytes = received.saturating_sub(first);
                let recent = &mut self.recent[index];
                recent.push((now, access.bytes));
                if recent.len() > SMOOTH {
                    recent.remove(0);
                }
                let path = paths.iter().find(|p| p.access == *name);
                access.up = path.is_some_and(|p| p.up);
                access.rtt_ms = path.and_then(|p| p.rtt_ms);
                // The recent throughput of a lost path does not describe its current state.
                let from = if access.up { 0 } else { recent.len().saturating_sub(2) };
                if let (Some((t0, b0)), Some((t1, b1))) = (recent.get(from), recent.last())
                    && t1 > t0
                {
                    access.mbps = b1.saturating_sub(*b0) as f64 * 8e-6 / (t1 - t0);
                }
                if self.ticks.is_multiple_of(PER_COLUMN) {
                    if access.history.len() == COLUMNS {
                        access.history.pop_front();
                    }
                    access.history.push_back(access.mbps);
                }
                index += 1;
            }
            let own: Vec<&str> = case.ues[&ue.name].rules.iter().map(|r| r.name.as_str()).collect();
            for used in ue.agent.as_ref().map(Agent::uses).transpose()?.unwrap_or_default() {
                if own.contains(&used.rule.as_str()) {
                    let on = used.access.map_or(String::new(), |a| format!(", now on {a}"));
                    modes.push(format!("{} (rule {}){on}", used.mode, used.rule));
                }
            }
        }
        picture.mode = modes.join("; ");
        if let Some(download) = observed.downloads.first() {
            picture.file.0 = std::fs::metadata(&download.copy).map_or(0, |m| m.len());
        }
        self.ticks += 1;
        Ok(())
    }

    /// Access to which the UPF moved the downlink when the first link was lost.
    fn moved_to(&self, case: &Case) -> Option<String> {
        let lost = case.events.iter().filter(|e| matches!(e.action, Action::LinkDown { .. }));
        let lost_s = lost.map(|e| e.at.as_secs_f64()).min_by(f64::total_cmp)?;
        let moved = |from: &'static str| {
            let mut all = self
                .events
                .iter()
                .filter(move |(at, who, e)| *who == from && e.kind == "moved" && *at >= lost_s - 0.01);
            all.next().and_then(|(_, _, e)| e.access.clone())
        };
        moved("UPF").or_else(|| moved("UE"))
    }
}

/// One-line description of the network.
#[must_use]
pub fn title(case: &Case) -> String {
    let mut letters = case.title.chars();
    let first = letters.next().map_or_else(String::new, |c| c.to_lowercase().to_string());
    format!("anabranch demo: {first}{}", letters.as_str())
}

/// An event of the scenario as text.
fn describe(action: &Action) -> String {
    match action {
        Action::LinkDown { link, how: DownHow::Carrier, .. } => format!("── link {link} disappears ──"),
        Action::LinkDown { link, how: DownHow::BlackHole, .. } => {
            format!("── link {link} swallows everything from now on ──")
        }
        Action::LinkUp { link, .. } => format!("── link {link} comes back ──"),
        other => format!("── {} ──", other.label()),
    }
}
