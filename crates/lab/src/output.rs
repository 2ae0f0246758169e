//! Output of a run: a table of claims for people, one JSON object per scenario for programs.

use crate::claims::{Checked, Verdict, band, band_of_seeds};
use crate::runner::Finished;
use crate::scenario::Scenario;
use crate::scenario::file::{Differs, PaperValue};
use comfy_table::{ContentArrangement, Table};
use std::collections::BTreeMap;
use std::io::IsTerminal;

/// A line under the heading.
const PRESET: &str = "     ──            ";

/// The table *claim · paper · measured · holds*, with a heading and the reasons of the claims that differ.
#[must_use]
pub fn table(scenario: &Scenario, done: &Finished) -> String {
    let mut table = Table::new();
    table
        .load_preset(PRESET)
        .set_content_arrangement(ContentArrangement::Dynamic)
        // Independent of the terminal width, so that terminals and files receive the same text.
        .set_width(120)
        .set_header(["claim", "paper", "measured", "band", "holds"]);
    for checked in &done.claims {
        table.add_row([
            checked.claim.what.clone(),
            paper(checked),
            measured(checked),
            band(&checked.claim),
            holds(checked),
        ]);
    }
    let seeds = match done.seeds {
        1 => format!("seed {}", done.seed),
        n => format!("{n} seeds from {}", done.seed),
    };
    let runs = if scenario.runs > 1 { format!(", {} runs", scenario.runs) } else { String::new() };
    let form = if scenario.quick { ", quick form" } else { "" };
    let mut text =
        format!("{} · {} · {}, {seeds}{runs}{form}\n", scenario.name, scenario.title, done.backend);
    if done.claims.is_empty() {
        text.push_str("no claims on this backend\n");
    } else {
        for line in table.to_string().lines() {
            text.push_str(&coloured(line));
            text.push('\n');
        }
    }
    for (why, claims) in reasons(&done.claims) {
        let ids: Vec<&str> = claims.iter().map(|c| c.claim.id.as_str()).collect();
        text.push_str(&format!("differs · {}: {why}\n", ids.join(", ")));
    }
    if scenario.quick && done.failed() {
        text.push_str("quick form: bands are those of the whole form, which decides (see the file)\n");
    }
    for checked in &done.claims {
        if let Some(misfit) = checked.misfit() {
            text.push_str(&format!("NO · {}: {misfit}\n", checked.claim.id));
        }
    }
    text
}

/// Claims by verdict.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Count {
    /// Number of claims that hold.
    pub held: usize,
    /// Number of claims that differ for a stated reason.
    pub differing: usize,
    /// Number of claims that fail.
    pub failed: usize,
}

impl Count {
    /// Counts these claims.
    #[must_use]
    pub fn of(claims: &[Checked]) -> Self {
        let count = |v: Verdict| claims.iter().filter(|c| c.verdict == v).count();
        Self {
            held: count(Verdict::Holds),
            differing: count(Verdict::Differs),
            failed: count(Verdict::Fails),
        }
    }

    /// Number of all claims.
    #[must_use]
    pub fn all(self) -> usize {
        self.held + self.differing + self.failed
    }
}

impl std::ops::AddAssign for Count {
    fn add_assign(&mut self, other: Self) {
        self.held += other.held;
        self.differing += other.differing;
        self.failed += other.failed;
    }
}

impl std::fmt::Display for Count {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { held, differing, failed } = self;
        write!(f, "{} claims: {held} held, {differing} differing, {failed} failed", self.all())
    }
}

/// For each claim with a reason: the band that results from these seeds, in the form of the scenario file.
#[must_use]
pub fn bands(scenario: &Scenario, done: &Finished) -> String {
    let mut text = String::new();
    for checked in done.claims.iter().filter(|c| c.claim.differs.is_some() || c.verdict == Verdict::Fails) {
        let (min, max) = band_of_seeds(&checked.values);
        let was = checked.claim.differs.as_ref().map_or("none".into(), |d| format!("{} to {}", d.min, d.max));
        let (holding, all) = checked.seeds();
        text.push_str(&format!(
            "{} {}: min = {min}, max = {max} (was {was}; in the claim's own band at {holding} of {all} seeds)\n",
            scenario.name, checked.claim.id
        ));
    }
    text
}

/// Reasons why claims differ, in the order of the claims. A reason shared by several claims appears once.
#[must_use]
pub fn reasons(claims: &[Checked]) -> Vec<(&str, Vec<&Checked>)> {
    let mut reasons: Vec<(&str, Vec<&Checked>)> = Vec::new();
    for checked in claims {
        let Some(why) = reason(checked) else { continue };
        match reasons.iter_mut().find(|(r, _)| *r == why) {
            Some((_, claims)) => claims.push(checked),
            None => reasons.push((why, vec![checked])),
        }
    }
    reasons
}

/// The number of a claim's reason among `reasons`, from 1.
#[must_use]
pub fn reason_number(checked: &Checked, reasons: &[(&str, Vec<&Checked>)]) -> Option<usize> {
    let why = reason(checked)?;
    reasons.iter().position(|(r, _)| *r == why).map(|i| i + 1)
}

fn reason(checked: &Checked) -> Option<&str> {
    checked.claim.differs.as_ref().filter(|_| checked.verdict == Verdict::Differs).map(|d| d.why.as_str())
}

/// The verdict, highlighted on a terminal.
fn coloured(line: &str) -> String {
    let line = line.trim_end();
    let colours = [(Verdict::Holds, "32"), (Verdict::Differs, "1;33"), (Verdict::Fails, "1;31")];
    for (verdict, colour) in colours {
        let word = verdict.to_string();
        if std::io::stdout().is_terminal()
            && let Some(before) = line.strip_suffix(word.as_str())
            && before.ends_with("  ")
        {
            return format!("{before}\x1b[{colour}m{word}\x1b[0m");
        }
    }
    line.to_owned()
}

/// The paper's figure of a claim.
#[must_use]
pub fn paper(checked: &Checked) -> String {
    match &checked.claim.paper {
        None => "—".into(),
        Some(PaperValue::Text(text)) => text.clone(),
        Some(PaperValue::Number(n)) => with_unit(*n, &checked.claim.unit),
    }
}

/// The measured value, with its spread over the seeds.
#[must_use]
pub fn measured(checked: &Checked) -> String {
    let Some(value) = checked.measured else { return "no number".into() };
    let mut text = with_unit(value, &checked.claim.unit);
    if let Some((low, high)) = checked.spread() {
        text.push_str(&format!(" ({} … {})", short(low), short(high)));
    }
    text
}

/// The verdict, with the number of seeds at which it holds if seeds differ.
#[must_use]
pub fn holds(checked: &Checked) -> String {
    match checked.seeds() {
        (holding, all) if holding < all && holding > 0 => {
            format!("{} ({holding} of {all} seeds)", checked.verdict)
        }
        _ => checked.verdict.to_string(),
    }
}

fn with_unit(value: f64, unit: &str) -> String {
    if unit.is_empty() { short(value) } else { format!("{} {unit}", short(value)) }
}

/// A number with about four significant digits.
#[must_use]
pub fn short(value: f64) -> String {
    let size = value.abs();
    let digits = match size {
        _ if value == value.round() && size < 1e15 => 0,
        s if s >= 1000.0 => 0,
        s if s >= 100.0 => 1,
        s if s >= 10.0 => 2,
        s if s >= 0.1 => 3,
        _ => 5,
    };
    let text = format!("{value:.digits$}");
    if digits == 0 { text } else { text.trim_end_matches('0').trim_end_matches('.').to_owned() }
}

/// The object of `--json`, its keys in this order.
#[derive(Debug, serde::Serialize)]
pub struct Line<'a> {
    scenario: &'a str,
    backend: &'a str,
    seed: u64,
    /// Omitted for a single seed.
    #[serde(skip_serializing_if = "Option::is_none")]
    seeds: Option<usize>,
    claims: Vec<ClaimLine<'a>>,
    metrics: &'a BTreeMap<String, f64>,
}

#[derive(Debug, serde::Serialize)]
struct ClaimLine<'a> {
    id: &'a str,
    what: &'a str,
    paper: &'a Option<PaperValue>,
    measured: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    spread: Option<(f64, f64)>,
    unit: &'a str,
    holds: bool,
    /// `holds`, `differs` or `fails`.
    verdict: &'static str,
    /// Reason and band, if the scenario states a reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    differs: Option<&'a Differs>,
}

/// A finished scenario as one line of JSON.
#[must_use]
pub fn line<'a>(scenario: &'a Scenario, done: &'a Finished) -> Line<'a> {
    let claim = |c: &'a Checked| ClaimLine {
        id: &c.claim.id,
        what: &c.claim.what,
        paper: &c.claim.paper,
        measured: c.measured,
        spread: c.spread(),
        unit: &c.claim.unit,
        holds: c.verdict == Verdict::Holds,
        verdict: match c.verdict {
            Verdict::Holds => "holds",
            Verdict::Differs => "differs",
            Verdict::Fails => "fails",
        },
        differs: c.claim.differs.as_ref(),
    };
    Line {
        scenario: &scenario.name,
        backend: done.backend.name(),
        seed: done.seed,
        seeds: (done.seeds > 1).then_some(done.seeds),
        claims: done.claims.iter().map(claim).collect(),
        metrics: &done.metrics,
    }
}

#[cfg(test)]
mod tests {
    use super::short;

    #[test]
    fn numbers_are_short_and_true() {
        for (value, text) in [
            (0.0, "0"),
            (12.0, "12"),
            (1234.56, "1235"),
            (123.456, "123.5"),
            (12.3456, "12.35"),
            (0.98765, "0.988"),
            (0.004_21, "0.00421"),
            (-3.5, "-3.5"),
            (3_702_784.0, "3702784"),
        ] {
            assert_eq!(short(value), text);
        }
    }
}
