//! The report: a self-contained HTML file per scenario, and its metrics as JSON.

mod html;
mod matrix;
mod plots;
mod svg;

pub use svg::FARTHEST;

use crate::claims::Verdict;
use crate::output;
use crate::runner::Finished;
use crate::scenario::Scenario;
use anyhow::Context;
use std::path::{Path, PathBuf};

/// Files of one report.
#[derive(Debug, Clone)]
pub struct Written {
    /// The page.
    pub html: PathBuf,
    /// Title of the scenario.
    pub title: String,
    /// The backend on which it ran.
    pub backend: String,
    /// Number of claims that hold, differ and fail.
    pub verdicts: [usize; 3],
}

/// Writes `<name>.<backend>.html` and `.json` into `folder`, which is created if it does not exist.
///
/// # Errors
/// A file that cannot be written; a chart that cannot be drawn.
pub fn write(folder: &Path, name: &str, scenario: &Scenario, done: &Finished) -> anyhow::Result<Written> {
    std::fs::create_dir_all(folder)
        .with_context(|| format!("{}: cannot be made; give another --out", folder.display()))?;
    let mut figures = Vec::new();
    for plot in &scenario.plots {
        if plot.backends.as_ref().is_none_or(|b| b.contains(&done.backend)) {
            figures.push(plots::figure(plot, done)?);
        }
    }
    let source = std::fs::read_to_string(&scenario.file).unwrap_or_default();
    let place = |ending: &str| folder.join(format!("{name}.{}.{ending}", done.backend));
    let html = place("html");
    put(&html, &html::page(scenario, done, &figures, &source))?;
    let json = serde_json::to_string_pretty(&output::line(scenario, done)).context("metrics as JSON")?;
    put(&place("json"), &format!("{json}\n"))?;
    let count = |v: Verdict| done.claims.iter().filter(|c| c.verdict == v).count();
    Ok(Written {
        html,
        title: scenario.title.clone(),
        backend: done.backend.to_string(),
        verdicts: [count(Verdict::Holds), count(Verdict::Differs), count(Verdict::Fails)],
    })
}

/// Writes `index.html` with a link to each report.
///
/// # Errors
/// A file that cannot be written.
pub fn index(folder: &Path, reports: &[Written]) -> anyhow::Result<()> {
    put(&folder.join("index.html"), &html::index(reports))
}

fn put(path: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(path, text).with_context(|| format!("{}: cannot be written", path.display()))
}
