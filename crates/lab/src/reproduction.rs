//! docs/reproduction.md: the results by paper and figure.
//!
//! ```text
//! scenario files ─┐
//! old page ───────┼─▶ tables ─▶ page
//! run --json ─────┘
//! ```
//!
//! Each table is between two comments with the scenario's name and backend. Tables without new results stay unchanged, so
//! that runs in namespaces, which require root and more time, can be done separately.

use crate::claims::band;
use crate::markdown;
use crate::output::short;
use crate::scenario::file::{BackendName, Claim, PaperValue};
use crate::scenario::{self, Form, Scenario, Select};
use anabranch_kern::file::read_text;
use anyhow::Context;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Beginning of the generated part; the text above it is written by hand.
const BEGIN: &str = "<!-- generated from here on: `anabranch-lab reproduction` -->\n";

/// A paper's folder under `scenarios/papers`, and its name.
const PAPERS: [(&str, &str); 5] = [
    ("junction", "JUNCTION (ATSSS on programmable switches)"),
    ("rlc", "RLC sojourn delays: e5G-BDP and EQP"),
    ("lwip", "LWIP and DIDA"),
    ("int", "In-band telemetry and eBPF"),
    ("slice", "Slice-aware end hosts"),
];

/// One line of `run --json`.
#[derive(Debug, Deserialize)]
struct Line {
    scenario: String,
    backend: String,
    #[serde(default = "one")]
    seeds: usize,
    claims: Vec<Measured>,
}

/// Omitted for a single seed.
const fn one() -> usize {
    1
}

#[derive(Debug, Deserialize)]
struct Measured {
    id: String,
    measured: Option<f64>,
    spread: Option<(f64, f64)>,
    verdict: String,
}

/// A table of the page, with its counts.
#[derive(Debug, Clone, Default)]
struct Table {
    text: String,
    held: usize,
    differ: usize,
    failed: usize,
}

/// Updates `page` with the results in these files of `run --json` lines.
///
/// # Errors
/// A file cannot be read or written, or a scenario or a line is invalid.
pub fn write(page: &Path, scenarios: &Path, results: &[PathBuf]) -> anyhow::Result<()> {
    let old = if page.exists() {
        read_text(page).with_context(|| page.display().to_string())?
    } else {
        String::new()
    };
    let mut lines = Vec::new();
    for file in results {
        let name = || file.display().to_string();
        for line in read_text(file).with_context(name)?.lines().filter(|line| !line.trim().is_empty()) {
            lines.push(serde_json::from_str::<Line>(line).with_context(name)?);
        }
    }
    let new = text(&old, &papers(scenarios)?, &lines);
    markdown::rewrite(page, &new).with_context(|| page.display().to_string())
}

/// Claims of the scenarios that are missing on the page: `scenario/claim` and the backend.
///
/// # Errors
/// A file cannot be read, or a scenario is invalid.
pub fn missing(page: &Path, scenarios: &Path) -> anyhow::Result<Vec<String>> {
    let text = read_text(page).with_context(|| page.display().to_string())?;
    let mut missing = Vec::new();
    for (_, scenarios) in papers(scenarios)? {
        for scenario in &scenarios {
            for backend in &scenario.backends {
                let place = kept(&text, scenario, *backend).map_or(String::new(), |table| table.text);
                let claims = scenario.claims.iter().filter(|claim| is_on(claim, *backend));
                missing.extend(
                    claims
                        .filter(|claim| !place.contains(&format!("| `{}` |", claim.id)))
                        .map(|claim| format!("{}/{} on {backend}", scenario.name, claim.id)),
                );
            }
        }
    }
    Ok(missing)
}

fn is_on(claim: &Claim, backend: BackendName) -> bool {
    claim.backends.as_ref().is_none_or(|b| b.contains(&backend))
}

fn papers(folder: &Path) -> anyhow::Result<Vec<(&'static str, Vec<Scenario>)>> {
    let mut papers = Vec::new();
    for (name, title) in PAPERS {
        let mut files = Vec::new();
        let within = folder.join(name);
        for entry in std::fs::read_dir(&within).with_context(|| within.display().to_string())? {
            files.push(entry?.path());
        }
        files.retain(|file| file.extension().is_some_and(|e| e == "toml"));
        files.sort();
        let mut scenarios = Vec::new();
        for file in files {
            let loaded = scenario::load_cells(&file, &[], Form::Full, &Select::Chosen);
            scenarios.push(loaded.map_err(|problems| anyhow::anyhow!("{problems}"))?);
        }
        scenarios.sort_by_cached_key(|s| (figure(s), s.name.clone()));
        papers.push((title, scenarios));
    }
    Ok(papers)
}

/// Sort order: tables before figures, each by number; scenarios without either last.
fn figure(scenario: &Scenario) -> (u8, u32) {
    let paper = scenario.paper.as_deref().unwrap_or_default();
    let number = |word: &str| {
        let (_, after) = paper.split_once(word)?;
        let after = after.trim_start_matches(['s', '.', ' ']);
        let digits: String = after.chars().take_while(char::is_ascii_digit).collect();
        let roman = ["I", "II", "III", "IV", "V", "VI"].into_iter().position(|r| r == after.trim_end());
        digits.parse().ok().or(roman.map(|n| n as u32 + 1))
    };
    number("Table").map(|n| (0, n)).or(number("Fig").map(|n| (1, n))).unwrap_or((2, 0))
}

fn text(old: &str, papers: &[(&'static str, Vec<Scenario>)], lines: &[Line]) -> String {
    let head = old.split_once(BEGIN).map_or(old, |(head, _)| head);
    let mut counts: Vec<(&str, [usize; 6])> = Vec::new();
    let mut figures = String::new();
    let mut body = String::new();
    for (title, scenarios) in papers {
        let _ = write!(body, "\n## {title}\n");
        let _ = write!(figures, "\n**{title}**\n\n| of the paper | scenario |\n|---|---|\n");
        let mut count = [0; 6];
        for scenario in scenarios {
            let of = scenario.paper.clone().unwrap_or_else(|| "beyond it".into());
            let anchor: String =
                format!("{of}: {}", scenario.name).chars().filter_map(anchored).collect::<String>();
            let _ = writeln!(figures, "| {} | [{}](#{anchor}) |", of.replace('|', "\\|"), scenario.name);
            let _ = write!(body, "\n### {of}: {}\n\n{}.\n", scenario.name, scenario.title);
            count[0] += 1;
            count[1] += scenario.cases.len().max(1);
            for backend in &scenario.backends {
                let line = lines.iter().rfind(|l| l.scenario == scenario.name && l.backend == backend.name());
                let table = match line {
                    Some(line) => table(scenario, *backend, line),
                    None => {
                        kept(old, scenario, *backend).unwrap_or_else(|| table(scenario, *backend, &nothing()))
                    }
                };
                count[2] += scenario.claims.iter().filter(|claim| is_on(claim, *backend)).count();
                for (sum, more) in count[3..].iter_mut().zip([table.held, table.differ, table.failed]) {
                    *sum += more;
                }
                let _ = write!(body, "\n{}{}{END}", begin(scenario, *backend), table.text);
            }
        }
        counts.push((*title, count));
    }
    let mut sums = String::from(
        "| paper | scenarios | variants | claims | held | differ | fail | not run |\n|---|---|---|---|---|---|---|---|\n",
    );
    for (title, [scenarios, variants, claims, held, differ, failed]) in counts {
        let rest = claims.saturating_sub(held + differ + failed);
        let _ = writeln!(
            sums,
            "| {title} | {scenarios} | {variants} | {claims} | {held} | {differ} | {failed} | {rest} |"
        );
    }
    format!("{}{BEGIN}\n{sums}\nClaims are counted on each backend they are for.\n{figures}{body}", head)
}

/// Anchor of a heading, as GitHub generates it.
fn anchored(c: char) -> Option<char> {
    match c {
        ' ' => Some('-'),
        '-' | '_' => Some(c),
        c if c.is_alphanumeric() => Some(c.to_ascii_lowercase()),
        _ => None,
    }
}

const END: &str = "<!-- end -->\n";

fn begin(scenario: &Scenario, backend: BackendName) -> String {
    format!("<!-- {} on {backend} -->\n", scenario.name)
}

/// The existing table of the page.
fn kept(page: &str, scenario: &Scenario, backend: BackendName) -> Option<Table> {
    let (_, rest) = page.split_once(&begin(scenario, backend))?;
    let (text, _) = rest.split_once(END)?;
    let count = |verdict: &str| text.lines().filter(|line| line.ends_with(&format!("| {verdict} |"))).count();
    let differ = text.lines().filter(|line| line.contains("| differs (")).count();
    Some(Table { text: text.to_owned(), held: count("holds"), differ, failed: count("fails") })
}

fn nothing() -> Line {
    Line { scenario: String::new(), backend: String::new(), seeds: 0, claims: Vec::new() }
}

fn table(scenario: &Scenario, backend: BackendName, line: &Line) -> Table {
    let found: BTreeMap<&str, &Measured> = line.claims.iter().map(|m| (m.id.as_str(), m)).collect();
    let mut table = Table::default();
    let how = match line.seeds {
        0 => "not run".to_owned(),
        1 => "one seed".to_owned(),
        n => format!("median [least – most] of {n} seeds"),
    };
    let text = &mut table.text;
    let _ = write!(
        text,
        "\n{backend} backend, {how}.\n\n| | claim | paper | ours | band | |\n|---|---|---|---|---|---|\n"
    );
    let mut reasons: Vec<&str> = Vec::new();
    for claim in scenario.claims.iter().filter(|claim| is_on(claim, backend)) {
        let unit = if claim.unit.is_empty() { String::new() } else { format!(" {}", claim.unit) };
        let paper = match &claim.paper {
            None => "–".to_owned(),
            Some(PaperValue::Number(x)) => format!("{}{unit}", short(*x)),
            Some(PaperValue::Text(words)) => words.clone(),
        };
        let (ours, verdict) = match found.get(claim.id.as_str()) {
            None => ("not run".to_owned(), "–".to_owned()),
            Some(m) => {
                let value = m.measured.map_or("no number".into(), short);
                let spread =
                    m.spread.map_or(String::new(), |(a, b)| format!(" [{} – {}]", short(a), short(b)));
                let verdict = match (m.verdict.as_str(), &claim.differs) {
                    ("differs", Some(differs)) => {
                        table.differ += 1;
                        let at = reasons.iter().position(|why| *why == differs.why).unwrap_or_else(|| {
                            reasons.push(&differs.why);
                            reasons.len() - 1
                        });
                        format!("differs ({})", at + 1)
                    }
                    ("holds", _) => {
                        table.held += 1;
                        "holds".to_owned()
                    }
                    _ => {
                        table.failed += 1;
                        "fails".to_owned()
                    }
                };
                (format!("{value}{spread}{unit}"), verdict)
            }
        };
        let cells = [format!("`{}`", claim.id), claim.what.clone(), paper, ours, band(claim), verdict];
        let _ = writeln!(text, "| {} |", cells.map(|cell| cell.replace('|', "\\|")).join(" | "));
    }
    for (i, why) in reasons.iter().enumerate() {
        let _ = write!(text, "\n({}) {why}.\n", i + 1);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scenario(claims: &str) -> Scenario {
        let text = format!(
            "title = \"t\"\npaper = \"P §1, Figs. 4, 5\"\n[link.w]\n[ue.u]\naccesses = [{{ name = \"w\", link = \"w\" }}]\n\
             [flow.f]\nkind = \"ping\"\n{claims}"
        );
        scenario::parse(Path::new("s.toml"), &text, &[]).unwrap_or_else(|p| panic!("{p:?}"))
    }

    const CLAIMS: &str = "[[claim]]\nid = \"a\"\nwhat = \"one\"\nmetric = \"flow.f.outage_ms\"\nmax = 9\n\
        [[claim]]\nid = \"b\"\nwhat = \"two\"\npaper = 2\nmetric = \"flow.f.outage_ms\"\nwithin_percent = 5\n\
        differs = { why = \"moon\", min = 5, max = 7 }\n";

    #[test]
    fn results_stay_until_there_are_new_ones() {
        let papers = [("P", vec![scenario(CLAIMS)])];
        let empty = text("Words.\n", &papers, &[]);
        assert!(empty.starts_with("Words.\n<!-- generated"), "{empty}");
        assert!(
            empty.contains("| P | 1 | 1 | 2 | 0 | 0 | 0 | 2 |")
                && empty.contains("| `a` | one | – | not run |")
        );
        let line = "{\"scenario\": \"s\", \"backend\": \"virtual\", \"seeds\": 5, \"claims\": [\
             {\"id\": \"a\", \"measured\": 6, \"spread\": [5, 7], \"verdict\": \"holds\"}, \
             {\"id\": \"b\", \"measured\": 6, \"verdict\": \"differs\"}]}";
        let run = text(&empty, &papers, &[serde_json::from_str(line).unwrap()]);
        assert!(run.contains("| P | 1 | 1 | 2 | 1 | 1 | 0 | 0 |"), "{run}");
        assert!(run.contains("| `a` | one | – | 6 [5 – 7] | ≤ 9 | holds |"), "{run}");
        assert!(run.contains("| differs (1) |\n\n(1) moon.\n"), "{run}");
        assert_eq!(text(&run, &papers, &[]), run);
        assert!(run.contains("[s](#p-1-figs-4-5-s)") && run.contains("### P §1, Figs. 4, 5: s\n"), "{run}");
    }

    #[test]
    fn figures_are_in_order() {
        let of = |paper: &str| figure(&Scenario { paper: Some(paper.into()), ..scenario(CLAIMS) });
        assert_eq!(of("X §1, Table 2, Figs. 6, 7"), (0, 2));
        assert_eq!((of("X, Table IV"), of("X, Fig. 22"), of("X")), ((0, 4), (1, 22), (2, 0)));
    }
}
