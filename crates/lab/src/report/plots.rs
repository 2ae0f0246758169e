//! Converts a `[[plot]]` of the scenario to a figure of the page.

use super::svg::{self, Frame, Line};
use crate::claims::expr::Expr;
use crate::claims::{lookup, percentile};
use crate::runner::Finished;
use crate::scenario::file::{Plot, PlotKind};

/// A drawn figure.
#[derive(Debug, Clone)]
pub struct Figure {
    /// Its title.
    pub title: String,
    /// Meaning of each colour; empty if the axis states it.
    pub legend: Vec<String>,
    /// The drawing.
    pub svg: String,
    /// How to read it, if this is not obvious.
    pub note: String,
}

/// Draws `plot`; series that the run did not produce are left out and named.
///
/// # Errors
/// An error of the drawing library.
pub fn figure(plot: &Plot, done: &Finished) -> anyhow::Result<Figure> {
    let labels = labels(plot);
    let title = plot.title.clone();
    let frame = |x: &str, y: &str| Frame {
        x_label: plot.x_label.clone().unwrap_or_else(|| x.to_owned()),
        y_label: plot.y_label.clone().unwrap_or_else(|| y.to_owned()),
        x: (plot.x_min, plot.x_max),
        y: (plot.y_min, plot.y_max),
        log: (plot.x_log, plot.y_log),
    };
    let value = |text: &String| {
        let value = Expr::parse(text).ok().map(|e| e.value(&|n| lookup(&done.metrics, n)));
        value.and_then(Result::ok).unwrap_or(f64::NAN)
    };
    let points = |name: &String| done.series.get(name).map(|s| s.points.clone()).unwrap_or_default();
    let values = |name: &String| points(name).into_iter().map(|(_, v)| v).collect::<Vec<f64>>();
    let (x_unit, y_unit) = (units(&plot.x), units(&plot.series));
    let has_none = |name: &&String| match plot.kind {
        PlotKind::Time | PlotKind::Cdf | PlotKind::Box => points(name).is_empty(),
        PlotKind::Bars | PlotKind::Scatter => !value(name).is_finite(),
    };
    let empty: Vec<&str> = plot.series.iter().filter(has_none).map(String::as_str).collect();
    let without = if empty.is_empty() { String::new() } else { format!("No values: {}.", empty.join(", ")) };
    Ok(match plot.kind {
        PlotKind::Time => {
            let lines: Vec<Line> = plot.series.iter().map(points).collect();
            let svg = svg::lines(&frame("time, s", &y_unit), &lines, &done.events)?;
            Figure { title, legend: labels, svg, note: without }
        }
        PlotKind::Cdf => {
            let lines: Vec<Line> = plot.series.iter().map(|s| cdf(&values(s))).collect();
            let mut frame = frame(&y_unit, "share of values, %");
            frame.y.1 = frame.y.1.or(Some(100.0));
            let svg = svg::lines(&frame, &lines, &[])?;
            Figure { title, legend: labels, svg, note: without }
        }
        PlotKind::Box => {
            let all: Vec<Vec<f64>> = plot.series.iter().map(values).collect();
            let svg = svg::boxes(&frame("", &y_unit), &labels, &all)?;
            let note = format!("Box: quartiles and median. Whiskers: 1st to 99th percentile. {without}");
            Figure { title, legend: Vec::new(), svg, note: note.trim_end().to_owned() }
        }
        PlotKind::Bars => {
            let all: Vec<f64> = plot.series.iter().map(value).collect();
            let svg = svg::bars(&frame("", &y_unit), &labels, &all, plot.cycle as usize)?;
            Figure { title, legend: Vec::new(), svg, note: without }
        }
        PlotKind::Scatter => {
            let points: Vec<(f64, f64)> =
                plot.x.iter().map(value).zip(plot.series.iter().map(value)).collect();
            let lines: Vec<Line> = points.chunks(plot.group.max(1) as usize).map(<[_]>::to_vec).collect();
            Figure {
                title,
                legend: labels,
                svg: svg::scatter(&frame(&x_unit, &y_unit), &lines)?,
                note: without,
            }
        }
    })
}

fn labels(plot: &Plot) -> Vec<String> {
    if plot.labels.is_empty() { plot.series.clone() } else { plot.labels.clone() }
}

/// The units of an axis, each once. Products and quotients have none that their names show.
fn units(texts: &[String]) -> String {
    let mut units = Vec::new();
    for text in texts.iter().filter(|text| !text.contains(['/', '*'])) {
        let unit = unit_of(text.rsplit('.').next().unwrap_or_default());
        if !unit.is_empty() && !units.contains(&unit) {
            units.push(unit);
        }
    }
    units.join(", ")
}

/// The unit according to the last part of a series' name, as text for an axis.
fn unit_of(name: &str) -> &'static str {
    [
        ("_mbps", "Mbit/s"),
        ("_ms", "ms"),
        ("_bytes", "bytes"),
        ("_percent", "%"),
        ("_s", "s"),
        ("_packets", "packets"),
    ]
    .into_iter()
    .find(|(suffix, _)| name.ends_with(suffix))
    .map_or("", |(_, unit)| unit)
}

/// Points of a distribution function, enough to show its shape.
fn cdf(values: &[f64]) -> Line {
    const POINTS: usize = 400;
    if values.is_empty() {
        return Line::new();
    }
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    (0..=POINTS)
        .map(|i| {
            let share = i as f64 / POINTS as f64;
            (percentile_sorted(&sorted, share), 100.0 * share)
        })
        .collect()
}

fn percentile_sorted(sorted: &[f64], share: f64) -> f64 {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.max(1) - 1).copied().unwrap_or_else(|| percentile(sorted, share))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distribution_ends_at_the_largest_value() {
        let line = cdf(&[3.0, 1.0, 2.0]);
        assert_eq!((line[0], line[400]), ((1.0, 0.0), (3.0, 100.0)));
        assert!(cdf(&[]).is_empty());
    }

    #[test]
    fn axes_know_units() {
        assert_eq!((unit_of("goodput_mbps"), unit_of("responses")), ("Mbit/s", ""));
        let of = |texts: &[&str]| units(&texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>());
        assert_eq!(of(&["a.delay_ms", "b.goodput_mbps", "b.delay_ms"]), "ms, Mbit/s");
        assert_eq!(of(&["a.delay_ms / b.delay_ms"]), "");
    }
}
