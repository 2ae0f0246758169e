//! The table of a matrix in colours, its worst cells, and a drawing of each cell on demand.

use super::html::escape;
use crate::backend::Series;
use crate::matrix::{BULK, FIGURES, value, worst};
use crate::output::short;
use crate::runner::Finished;
use crate::scenario::file::Reference;
use crate::scenario::matrix::Cell;
use crate::scenario::model::Matrix;
use std::collections::BTreeMap;
use std::fmt::Write as _;

const STYLE: &str = include_str!("matrix.css");
const SCRIPT: &str = include_str!("matrix.js");

/// The part of a page for a matrix.
#[must_use]
pub fn section(matrix: &Matrix, done: &Finished) -> String {
    let get = |cell: &Cell, figure: &str| value(&done.metrics, &cell.name, figure);
    let run: Vec<&Cell> = matrix.cells.iter().filter(|c| get(c, "goodput_mbps").is_some()).collect();
    let mut text = format!("<style>{STYLE}</style><h2>Cells</h2>{LEGEND}");
    text.push_str(&table(matrix, done, &run));
    text.push_str("<div id=cell hidden></div>");
    text.push_str(&worst_cells(matrix, done));
    text.push_str("<h2>Figures</h2><dl class=terms>");
    for figure in FIGURES.iter().filter(|f| run.iter().any(|c| get(c, f.name).is_some())) {
        let unit = if figure.unit.is_empty() { String::new() } else { format!(", {}", figure.unit) };
        let _ = write!(text, "<dt>{}<dd>{}{}", figure.name, escape(figure.doc), escape(&unit));
    }
    let _ = write!(text, "</dl><script>const CELLS={};{SCRIPT}</script>", data(matrix, done, &run));
    text
}

const LEGEND: &str = "<p class=note>Goodput of each cell. <b>Left</b>: of the best access alone through the same tunnel. \
    <b>Right</b>: of the sum of all rates, headers taken off. A cell shows its goodput over time when it is clicked or \
    chosen with the keyboard.</p>\
    <ul class=\"legend scale\"><li>of the best alone:<li><i class=q0></i>under 0.5<li><i class=q1></i>under 0.85\
    <li><i class=q2></i>under 0.98: harm<li><i class=q3></i>no harm<li><i class=q4></i>1.2 and more: gain</ul>\
    <ul class=\"legend scale\"><li>of the sum:<li><i class=q0></i>under 0.5<li><i class=q1></i>under 0.7\
    <li><i class=q2></i>under 0.85<li><i class=q3></i>under 0.92<li><i class=q4></i>0.92 and more</ul>";

/// Limits of the colours for `of_best`, from worse to better than one access.
const OF_BEST: [f64; 4] = [0.5, 0.85, 0.98, 1.2];
/// Limits of the colours for `of_sum`, from low to nearly all.
const OF_SUM: [f64; 4] = [0.5, 0.7, 0.85, 0.92];

fn class(levels: [f64; 4], value: f64) -> usize {
    levels.iter().filter(|level| value >= **level).count()
}

fn table(matrix: &Matrix, done: &Finished, run: &[&Cell]) -> String {
    let mut columns: Vec<Vec<&str>> = Vec::new();
    let mut rows: Vec<Vec<&str>> = Vec::new();
    let mut at: BTreeMap<(usize, usize), &Cell> = BTreeMap::new();
    // In the order of the values, independently of the order of the axes.
    let mut ordered: Vec<&Cell> = run.to_vec();
    let key = |cell: &Cell, rows: bool| -> Vec<usize> {
        cell.values
            .iter()
            .enumerate()
            .filter(|(axis, _)| matrix.is_row(*axis) == rows)
            .map(|(_, v)| *v)
            .collect()
    };
    ordered.sort_by_key(|cell| key(cell, false));
    for cell in &ordered {
        let titles = matrix.titles(cell, false);
        if !columns.contains(&titles) {
            columns.push(titles);
        }
    }
    ordered.sort_by_key(|cell| key(cell, true));
    for cell in &ordered {
        let titles = matrix.titles(cell, true);
        if !rows.contains(&titles) {
            rows.push(titles);
        }
    }
    for cell in &ordered {
        let row = rows.iter().position(|r| *r == matrix.titles(cell, true));
        let column = columns.iter().position(|c| *c == matrix.titles(cell, false));
        if let (Some(row), Some(column)) = (row, column) {
            at.insert((row, column), cell);
        }
    }
    let headings = |rows: bool| {
        let axes = matrix.spec.axis.iter().enumerate().filter(move |(i, _)| matrix.is_row(*i) == rows);
        axes.map(|(_, a)| a.title.as_deref().unwrap_or(&a.name)).collect::<Vec<_>>()
    };
    let (row_axes, column_axes) = (headings(true), headings(false));
    let mut text = String::from("<div class=wide><table class=matrix><thead>");
    for (level, axis) in column_axes.iter().enumerate() {
        text.push_str("<tr>");
        if level + 1 < column_axes.len() {
            let _ = write!(text, "<th colspan={} class=axis>{}", row_axes.len(), escape(axis));
        } else {
            for name in &row_axes {
                let _ = write!(text, "<th class=axis>{}", escape(name));
            }
        }
        let mut i = 0;
        while i < columns.len() {
            let same = columns[i..].iter().take_while(|c| c[..=level] == columns[i][..=level]).count();
            let first = if i > 0 && columns[i][0] != columns[i - 1][0] { " class=first" } else { "" };
            let _ = write!(text, "<th colspan={same}{first}>{}", escape(columns[i][level]));
            i += same;
        }
    }
    text.push_str("</thead><tbody>");
    for (r, titles) in rows.iter().enumerate() {
        let new = r == 0 || rows[r - 1][0] != titles[0];
        let _ = write!(text, "<tr{}>", if new { " class=new" } else { "" });
        for (level, title) in titles.iter().enumerate() {
            let fresh = r == 0 || rows[r - 1][..=level] != titles[..=level];
            if fresh {
                let same = rows[r..].iter().take_while(|o| o[..=level] == titles[..=level]).count();
                let _ = write!(text, "<th rowspan={same} scope=row class=level{level}>{}", escape(title));
            }
        }
        for c in 0..columns.len() {
            let first = if c > 0 && columns[c][0] != columns[c - 1][0] { " class=first" } else { "" };
            let Some(cell) = at.get(&(r, c)) else {
                let _ = write!(text, "<td{first}>");
                continue;
            };
            let part = |figure: &str, levels: [f64; 4]| {
                value(&done.metrics, &cell.name, figure)
                    .map_or("<i>–</i>".to_owned(), |v| format!("<i class=q{}>{v:.2}</i>", class(levels, v)))
            };
            let _ = write!(
                text,
                "<td{first}><a href=\"#{0}\" title=\"{0}\">{1}{2}</a>",
                escape(&cell.name),
                part("of_best", OF_BEST),
                part("of_sum", OF_SUM),
            );
        }
    }
    text.push_str("</tbody></table></div>");
    text
}

fn worst_cells(matrix: &Matrix, done: &Finished) -> String {
    let mut text = String::from("<h2>The worst ten</h2><div class=worst>");
    for (figure, cells) in worst(matrix, &done.metrics) {
        let unit = if figure.unit.is_empty() { String::new() } else { format!(" {}", figure.unit) };
        let _ = write!(text, "<section><h3>{}</h3><p class=note>{}</p><ol>", figure.name, escape(figure.doc));
        for (cell, value) in cells {
            let name = escape(&cell.name);
            let _ =
                write!(text, "<li><b>{}{}</b> <a href=\"#{name}\">{name}</a>", short(value), escape(&unit));
        }
        text.push_str("</ol></section>");
    }
    text + "</div>"
}

/// Number of samples per point of a drawing.
const SAMPLES: usize = 5;

/// Per cell: title, figures, and lines. References shared by several cells are included once.
fn data(matrix: &Matrix, done: &Finished, run: &[&Cell]) -> String {
    let mut lines: BTreeMap<&str, serde_json::Value> = BTreeMap::new();
    let mut cells = serde_json::Map::new();
    for cell in run {
        let mut of = vec![("bonded".to_owned(), cell.name.as_str())];
        of.extend(cell.references.iter().filter(|r| r.0 != Reference::Direct).map(|(what, access, name)| {
            let what = access.as_ref().map_or(what.to_string(), |access| format!("{access} alone"));
            (what, name.as_str())
        }));
        of.retain(|(_, name)| {
            let series = done.series.get(&format!("{name}.{BULK}"));
            series.is_some_and(|series| {
                lines.entry(*name).or_insert_with(|| coarse(series));
                true
            })
        });
        let figures: serde_json::Map<String, serde_json::Value> = FIGURES
            .iter()
            .filter_map(|f| {
                let unit = if f.unit.is_empty() { String::new() } else { format!(" {}", f.unit) };
                Some((
                    f.name.to_owned(),
                    format!("{}{unit}", short(value(&done.metrics, &cell.name, f.name)?)).into(),
                ))
            })
            .collect();
        let titles = [matrix.titles(cell, true), matrix.titles(cell, false)].concat().join(" · ");
        cells.insert(
            cell.name.clone(),
            serde_json::json!({ "title": titles, "lines": of, "figures": figures }),
        );
    }
    // The data must not end the script element.
    serde_json::json!({ "cells": cells, "lines": lines }).to_string().replace('<', "\\u003c")
}

/// Time of the first point, interval, and values.
fn coarse(series: &Series) -> serde_json::Value {
    let points: Vec<(f64, f64)> = series
        .points
        .chunks(SAMPLES)
        .map(|c| {
            let mean = |f: fn(&(f64, f64)) -> f64| c.iter().map(f).sum::<f64>() / c.len() as f64;
            (mean(|p| p.0), mean(|p| p.1))
        })
        .collect();
    let step = if let [a, b, ..] = points.as_slice() { b.0 - a.0 } else { 1.0 };
    let round = |x: f64| (x * 100.0).round() / 100.0;
    let values: Vec<f64> = points.iter().map(|p| (p.1 * 10.0).round() / 10.0).collect();
    serde_json::json!([round(points.first().map_or(0.0, |p| p.0)), round(step), values])
}
