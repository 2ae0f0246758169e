//! A matrix for the terminal: its cells if there are few, otherwise statistics of each row and column; and the ten worst cells.

use super::{FIGURES, Figure, value};
use crate::claims::median;
use crate::output::short;
use crate::runner::Finished;
use crate::scenario::matrix::{ALL, Cell};
use crate::scenario::model::Matrix;
use comfy_table::{CellAlignment, Table};
use std::collections::BTreeMap;

/// Maximum number of cells listed individually.
const FEW: usize = 60;

/// The table of a matrix after its runs, and the worst ten cells.
#[must_use]
pub fn text(matrix: &Matrix, done: &Finished) -> String {
    let run: Vec<&Cell> = matrix.cells.iter().filter(|c| known(done, c, "goodput_mbps").is_some()).collect();
    let mut out = format!("{} cells", run.len());
    let left_out = matrix.size(ALL, done.backend) - run.len();
    if left_out > 0 {
        out += &format!("; {left_out} and the claims that speak of them are left out (--whole runs all)");
    }
    let shown: Vec<&Figure> =
        FIGURES.iter().filter(|f| run.iter().any(|c| known(done, c, f.name).is_some())).collect();
    if run.len() <= FEW {
        let mut table = figures("cell", &shown);
        for cell in &run {
            table.add_row(row(&cell.name, &shown, |f| known(done, cell, f.name)));
        }
        out += &format!("\n{table}\n");
    } else {
        for (i, axis) in matrix.spec.axis.iter().enumerate().filter(|(_, a)| a.value.len() > 1) {
            let heading = format!("{} (median of its cells)", axis.title.as_deref().unwrap_or(&axis.name));
            let mut table = figures(&heading, &shown);
            for (v, of) in axis.value.iter().enumerate() {
                let cells: Vec<&&Cell> = run.iter().filter(|c| c.values.get(i) == Some(&v)).collect();
                let middle = |f: &Figure| {
                    let all: Vec<f64> = cells.iter().filter_map(|c| known(done, c, f.name)).collect();
                    (!all.is_empty()).then(|| median(&all))
                };
                table.add_row(row(of.title.as_deref().unwrap_or(&of.name), &shown, middle));
            }
            out += &format!("\n{table}\n");
        }
    }
    for (figure, cells) in worst(matrix, &done.metrics) {
        let list: Vec<String> =
            cells.iter().map(|(c, v)| format!("  {:>8}  {}", short(*v), c.name)).collect();
        out += &format!("\nworst by {}: {}\n{}\n", figure.name, figure.doc, list.join("\n"));
    }
    out
}

/// The ten worst cells by each figure that can show a fault.
#[must_use]
pub fn worst<'m>(
    matrix: &'m Matrix,
    metrics: &BTreeMap<String, f64>,
) -> Vec<(&'static Figure, Vec<(&'m Cell, f64)>)> {
    let judged = [
        "of_best",
        "of_sum",
        "window",
        "settle_s",
        "step_s",
        "call_late_ms",
        "call_lost_percent",
        "useful_plain",
        "wait_beside",
        "share_off_percent",
    ];
    let of = |figure: &'static Figure| {
        let mut cells: Vec<(&Cell, f64)> =
            matrix.cells.iter().filter_map(|c| Some((c, value(metrics, &c.name, figure.name)?))).collect();
        cells.sort_by(|a, b| if figure.rises { a.1.total_cmp(&b.1) } else { b.1.total_cmp(&a.1) });
        cells.truncate(10);
        (!cells.is_empty()).then_some((figure, cells))
    };
    FIGURES.iter().filter(|f| judged.contains(&f.name)).filter_map(of).collect()
}

fn known(done: &Finished, cell: &Cell, figure: &str) -> Option<f64> {
    value(&done.metrics, &cell.name, figure)
}

fn figures(first: &str, shown: &[&Figure]) -> Table {
    let mut table = Table::new();
    table
        .load_preset("     ──            ")
        .set_header([first].into_iter().chain(shown.iter().map(|f| f.name)));
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn row(name: &str, shown: &[&Figure], of: impl Fn(&Figure) -> Option<f64>) -> Vec<String> {
    let values = shown.iter().map(|f| of(f).map_or(String::new(), short));
    [name.to_owned()].into_iter().chain(values).collect()
}
