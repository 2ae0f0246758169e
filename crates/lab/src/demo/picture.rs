//! Conversion of the state of the demo to lines of text. Pure functions.

use std::collections::VecDeque;
use std::fmt::Write as _;

/// Columns of the history of an access.
pub const COLUMNS: usize = 30;
/// Number of messages shown.
const NEWS: usize = 9;
/// Width of the progress bar.
const BAR: usize = 36;

/// Contents of one picture.
#[derive(Debug, Clone, Default)]
pub struct Picture {
    /// One-line description.
    pub title: String,
    /// Seconds since the start.
    pub at_s: f64,
    /// The accesses, in their order.
    pub accesses: Vec<Access>,
    /// Current action of the rule.
    pub mode: String,
    /// Received and total bytes.
    pub file: (u64, u64),
    /// Messages, in order.
    pub news: Vec<LogMessage>,
}

/// A message: time in seconds, sender and text.
pub type LogMessage = (f64, &'static str, String);

/// State of an access, as drawn.
#[derive(Debug, Clone, Default)]
pub struct Access {
    /// Name of the access.
    pub name: String,
    /// Whether its path is up.
    pub up: bool,
    /// Current throughput.
    pub mbps: f64,
    /// Throughput over time, oldest first; at most [`COLUMNS`].
    pub history: VecDeque<f64>,
    /// Maximum rate of its link.
    pub scale_mbps: f64,
    /// Round-trip time, if known.
    pub rtt_ms: Option<f64>,
    /// Bytes received on it.
    pub bytes: u64,
}

/// Throughput above which an access carries more than probes, Mbit/s.
const CARRYING_MBPS: f64 = 0.5;

impl Access {
    fn state(&self) -> (&'static str, Style) {
        match (self.up, self.mbps >= CARRYING_MBPS) {
            (false, _) => ("lost", Style::Bad),
            (true, true) => ("carrying", Style::Good),
            (true, false) => ("ready", Style::Faint),
        }
    }

    fn rtt(&self) -> String {
        self.rtt_ms.filter(|_| self.up).map_or_else(|| "–".into(), |ms| format!("{ms:.1} ms"))
    }
}

#[derive(Debug, Clone, Copy)]
enum Style {
    Strong,
    Good,
    Bad,
    Faint,
}

/// The lines of a picture, at most 80 columns wide.
#[must_use]
pub fn draw(picture: &Picture, colours: bool) -> Vec<String> {
    let paint = |text: &str, style: Style| {
        let code = match style {
            Style::Strong => "1",
            Style::Good => "32",
            Style::Bad => "1;31",
            Style::Faint => "2",
        };
        if colours { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    };
    let clock = format!("{:.1} s", picture.at_s);
    let title = format!("{:<68}", picture.title);
    let mut lines = vec![format!("{}{clock:>10}", paint(&title, Style::Strong)), String::new()];
    let head = format!(
        "  {:<7} {:<9} {:>6}  {:<COLUMNS$} {:>8}  {:>9}",
        "access", "state", "Mbit/s", "throughput", "RTT", "carried"
    );
    lines.push(paint(&head, Style::Faint));
    for access in &picture.accesses {
        let (state, style) = access.state();
        lines.push(format!(
            "  {:<7} {} {:>6.1}  {} {:>8}  {:>9}",
            access.name,
            paint(&format!("{state:<9}"), style),
            access.mbps,
            paint(&history(access), style),
            access.rtt(),
            megabytes(access.bytes)
        ));
    }
    lines.push(String::new());
    lines.push(format!("  mode    {}", picture.mode));
    let (there, of) = picture.file;
    let share = if of == 0 { 0.0 } else { there as f64 / of as f64 };
    let full = (share.clamp(0.0, 1.0) * BAR as f64) as usize;
    lines.push(format!(
        "  file    {}{} {:>3.0} %  {} of {}",
        paint(&"█".repeat(full), Style::Good),
        paint(&"░".repeat(BAR - full), Style::Faint),
        (share * 100.0).floor(),
        megabytes(there),
        megabytes(of)
    ));
    lines.push(String::new());
    let from = picture.news.len().saturating_sub(NEWS);
    for (at, who, what) in &picture.news[from..] {
        let what: String = what.chars().take(60).collect();
        lines.push(format!("  {} {who:<4} {what}", paint(&format!("{at:>7.3} s"), Style::Faint)));
    }
    // Constant number of lines, so that the next picture covers this one.
    lines.resize(lines.len() + NEWS - (picture.news.len() - from), String::new());
    lines
}

/// One line for outputs that cannot be redrawn.
#[must_use]
pub fn line(picture: &Picture) -> String {
    let mut text = format!("{:6.1} s", picture.at_s);
    for access in &picture.accesses {
        // Writing to a String cannot fail.
        let _ =
            write!(text, "  {} {} {:.1} Mbit/s {}", access.name, access.state().0, access.mbps, access.rtt());
    }
    let (there, of) = picture.file;
    let _ = write!(text, "  file {} of {}", megabytes(there), megabytes(of));
    text
}

/// A message for outputs that cannot be redrawn.
#[must_use]
pub fn news_line((at, who, what): &LogMessage) -> String {
    if who.is_empty() { format!("{at:6.3} s  {what}") } else { format!("{at:6.3} s  {who}: {what}") }
}

fn history(access: &Access) -> String {
    const LEVELS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let bar = |mbps: &f64| {
        let share = (mbps / access.scale_mbps.max(0.001)).clamp(0.0, 1.0);
        // Throughput above that of probes is always visible.
        let level = (share * 8.0).round() as usize;
        LEVELS[if *mbps >= CARRYING_MBPS { level.max(1) } else { level }]
    };
    let text: String = access.history.iter().map(bar).collect();
    format!("{text:<COLUMNS$}")
}

fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture(news: usize) -> Picture {
        let access = |name: &str, up, mbps| Access {
            name: name.into(),
            up,
            mbps,
            history: (0..COLUMNS).map(|i| i as f64 * 2.0).collect(),
            scale_mbps: 60.0,
            rtt_ms: Some(12.34),
            bytes: 41_600_000,
        };
        Picture {
            title: "a download".into(),
            at_s: 5.25,
            accesses: vec![access("wifi", false, 0.0), access("5g", true, 57.2)],
            mode: "active-standby".into(),
            file: (40_000_000, 80_000_000),
            news: (0..news).map(|i| (i as f64, "UE", format!("event {i} {}", "x".repeat(90)))).collect(),
        }
    }

    #[test]
    fn pictures_are_of_one_size_and_fit() {
        let few = draw(&picture(0), false);
        let many = draw(&picture(50), false);
        assert_eq!(few.len(), many.len());
        assert!(many.iter().all(|l| l.chars().count() <= 80), "{many:#?}");
        assert!(many.iter().any(|l| l.contains("event 49")) && !many.iter().any(|l| l.contains("event 3 ")));
    }

    #[test]
    fn states_and_figures_are_shown() {
        let lines = draw(&picture(1), false);
        let wifi = lines.iter().find(|l| l.contains("wifi")).unwrap();
        assert!(wifi.contains("lost") && wifi.contains('–') && !wifi.contains("12.3"), "{wifi}");
        let nr = lines.iter().find(|l| l.contains("5g")).unwrap();
        assert!(nr.contains("carrying") && nr.contains("57.2") && nr.contains("12.3 ms"), "{nr}");
        assert!(nr.contains('█') && nr.contains("41.6 MB"));
        assert!(lines.iter().any(|l| l.contains(" 50 %  40.0 MB of 80.0 MB")));
        assert!(draw(&picture(1), true).iter().any(|l| l.contains("\x1b[1;31mlost")));
        let line = line(&picture(0));
        assert!(line.contains("wifi lost 0.0 Mbit/s –") && line.contains("5g carrying 57.2"), "{line}");
    }
}
