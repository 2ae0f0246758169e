//! A matrix of cells of gNBs for a Markdown page: the figures of each pair of values of the first two axes, where the worse cells are,
//! and the worst cells.

use super::{FIGURES, value, worst};
use crate::claims::{median, percentile};
use crate::output::short;
use crate::runner::Finished;
use crate::scenario::matrix::Cell;
use crate::scenario::model::Matrix;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Figures shown for a pair.
const SHOWN: [&str; 10] = [
    "goodput_mbps",
    "useful_of_capacity",
    "useful_plain",
    "useful_beside",
    "least_wait_mean_ms",
    "wait_mean_ms",
    "wait_p95_ms",
    "wait_p99_ms",
    "wait_beside",
    "share_off_percent",
];
/// The figure that counts exceptions.
const WORSE: &str = "worse";

/// The tables; empty if the cells have no gNBs.
#[must_use]
pub fn tables(matrix: &Matrix, done: &Finished) -> String {
    let known = |cell: &Cell, figure: &str| value(&done.metrics, &cell.name, figure);
    let run: Vec<&Cell> = matrix.cells.iter().filter(|c| known(c, "wait_mean_ms").is_some()).collect();
    if run.is_empty() {
        return String::new();
    }
    // In the order of the file.
    let mut pairs: BTreeMap<Vec<usize>, Vec<&Cell>> = BTreeMap::new();
    for cell in &run {
        pairs.entry(cell.values.iter().take(2).copied().collect()).or_default().push(cell);
    }
    let name = |axis: usize, value: usize| {
        let of = matrix.spec.axis.get(axis).and_then(|a| a.value.get(value));
        of.map_or("", |v| v.name.as_str())
    };
    let pair_name = |pair: &[usize]| {
        let parts: Vec<&str> = pair.iter().enumerate().map(|(axis, v)| name(axis, *v)).collect();
        parts.join(", ")
    };
    let sum = |cells: &[&Cell]| {
        let all: Vec<f64> = cells.iter().filter_map(|c| known(c, WORSE)).collect();
        if all.is_empty() { String::new() } else { format!("{} of {}", all.iter().sum::<f64>(), all.len()) }
    };
    let axes: Vec<&str> = matrix.spec.axis.iter().take(2).map(|a| a.name.as_str()).collect();
    let mut text =
        format!("\n{} cells; median [worst] of each figure.\n\n| {} | cells |", run.len(), axes.join(", "));
    for figure in SHOWN {
        let _ = write!(text, " `{figure}` |");
    }
    let _ = writeln!(text, " `{WORSE}` |\n|{}", "---|".repeat(SHOWN.len() + 3));
    for (pair, cells) in &pairs {
        let _ = write!(text, "| {} | {} |", pair_name(pair), cells.len());
        for figure in SHOWN {
            let all: Vec<f64> = cells.iter().filter_map(|c| known(c, figure)).collect();
            let rises = FIGURES.iter().any(|f| f.name == figure && f.rises);
            let worst = percentile(&all, if rises { 0.0 } else { 1.0 });
            let told = if all.is_empty() {
                String::new()
            } else {
                format!("{} [{}]", short(median(&all)), short(worst))
            };
            let _ = write!(text, " {told} |");
        }
        let _ = writeln!(text, " {} |", sum(cells));
    }
    let judged: Vec<_> = pairs.iter().filter(|(_, cells)| !sum(cells).is_empty()).collect();
    if !judged.is_empty() {
        let _ = write!(text, "\nWhere they are worse.\n\n| |");
        for (pair, _) in &judged {
            let _ = write!(text, " {} |", pair_name(pair));
        }
        let _ = writeln!(text, "\n|{}", "---|".repeat(judged.len() + 1));
        for (axis, of) in matrix.spec.axis.iter().enumerate().skip(2) {
            for (number, value) in of.value.iter().enumerate() {
                let _ = write!(text, "| {} {} |", of.name, value.name);
                for (_, cells) in &judged {
                    let here: Vec<&Cell> =
                        cells.iter().copied().filter(|c| c.values.get(axis) == Some(&number)).collect();
                    let _ = write!(text, " {} |", sum(&here));
                }
                text.push('\n');
            }
        }
    }
    for (figure, cells) in worst(matrix, &done.metrics) {
        if !SHOWN.contains(&figure.name) {
            continue;
        }
        let list: Vec<String> = cells.iter().map(|(c, v)| format!("{} `{}`", short(*v), c.name)).collect();
        let _ = writeln!(text, "\nWorst by `{}` ({}): {}.", figure.name, figure.doc, list.join(", "));
    }
    text
}
