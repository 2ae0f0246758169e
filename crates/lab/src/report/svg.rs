//! Charts as SVG text with colours from the page: every stroke and fill is a class, so the same drawing is readable on light and on
//! dark backgrounds.

use anyhow::anyhow;
use plotters::coord::Shift;
use plotters::prelude::*;
use std::ops::Range;

/// Number of series colours the page defines.
pub const COLOURS: usize = 8;

const SIZE: (u32, u32) = (760, 300);
const FONT: &str = "sans-serif";
/// Height of a row of labels below a chart.
const LABEL_ROW: u32 = 16;
/// Space to the right of a chart, for half of the last label of its x axis.
const RIGHT: u32 = 28;

/// Colours that represent classes until [`classes`] replaces them.
const INK: RGBColor = RGBColor(1, 1, 200);
const GRID: RGBColor = RGBColor(1, 1, 201);
const MARK: RGBColor = RGBColor(1, 1, 202);

const fn series_colour(i: usize) -> RGBColor {
    RGBColor(1, 1, (i % COLOURS) as u8)
}

/// Properties common to all charts.
#[derive(Debug, Clone, Default)]
pub struct Frame {
    /// Label of the x axis.
    pub x_label: String,
    /// Label of the y axis.
    pub y_label: String,
    /// Fixed ends of the axes, where given.
    pub x: (Option<f64>, Option<f64>),
    /// The same for y.
    pub y: (Option<f64>, Option<f64>),
    /// Whether the x and the y axis are logarithmic.
    pub log: (bool, bool),
}

impl Frame {
    /// The position of a value on an axis; NaN if it has no logarithm.
    fn place(log: bool, value: f64) -> f64 {
        match log {
            true if value > 0.0 => value.log10(),
            true => f64::NAN,
            false => value,
        }
    }

    fn placed(&self, lines: &[Line]) -> Vec<Line> {
        let point = |(x, y): &(f64, f64)| (Self::place(self.log.0, *x), Self::place(self.log.1, *y));
        let finite = |(x, y): &(f64, f64)| x.is_finite() && y.is_finite();
        lines.iter().map(|line| line.iter().map(point).filter(finite).collect()).collect()
    }

    /// Ends of an axis as positions: whole powers of ten if it is logarithmic.
    fn ends(
        log: bool,
        asked: (Option<f64>, Option<f64>),
        values: impl Iterator<Item = f64>,
        default_low: Option<f64>,
    ) -> Range<f64> {
        if !log {
            return range(asked, values, default_low);
        }
        let place = |end: Option<f64>| end.map(|v| Self::place(true, v)).filter(|v| v.is_finite());
        let free = range((place(asked.0), place(asked.1)), values, None);
        let whole = free.start.floor()..free.end.ceil();
        if whole.end > whole.start { whole } else { whole.start..whole.start + 1.0 }
    }
}

/// Points of one line.
pub type Line = Vec<(f64, f64)>;

type Result<T = ()> = anyhow::Result<T>;

/// Lines over a common x axis; `marks` are vertical lines with a label each.
///
/// # Errors
/// An error of the drawing library.
pub fn lines(frame: &Frame, lines: &[Line], marks: &[(f64, String)]) -> Result<String> {
    let lines = &frame.placed(lines);
    let all = || lines.iter().flatten();
    let x = Frame::ends(frame.log.0, frame.x, all().map(|p| p.0), None);
    let y = Frame::ends(frame.log.1, frame.y, all().filter(|p| x.contains(&p.0)).map(|p| p.1), Some(0.0));
    draw(|area| {
        let mut chart = plane(area, frame, &x, &y)?;
        for (at, _) in marks.iter().filter(|(at, _)| x.contains(at)) {
            let line = DashedLineSeries::new([(*at, y.start), (*at, y.end)], 4, 4, MARK.stroke_width(1));
            chart.draw_series(line).map_err(wrong)?;
        }
        for (i, line) in lines.iter().enumerate() {
            let inside = between(line, &x).into_iter().map(|(px, py)| (px, py.clamp(y.start, y.end)));
            chart.draw_series(LineSeries::new(inside, series_colour(i).stroke_width(2))).map_err(wrong)?;
        }
        // More labels would overlap.
        if marks.len() <= 6 {
            let (mut last, mut rows) = (-1000, 0);
            for (at, word) in marks.iter().filter(|(at, _)| x.contains(at)) {
                let (px, py) = chart.backend_coord(&(*at, y.end));
                rows = if px - last < 130 { rows + 1 } else { 0 };
                last = px;
                // There is space for two rows.
                let row = match rows {
                    0 => -2,
                    1 => -14,
                    _ => continue,
                };
                let style = (FONT, 14).into_font().color(&MARK);
                area.draw(&Text::new(word.clone(), (px + 3, py + row), style)).map_err(wrong)?;
            }
        }
        Ok(())
    })
}

/// Points; those of a line are joined in order.
///
/// # Errors
/// An error of the drawing library.
pub fn scatter(frame: &Frame, lines: &[Line]) -> Result<String> {
    let lines = &frame.placed(lines);
    let all = || lines.iter().flatten();
    // A margin on both sides, so that points do not lie on the frame.
    let around = |asked: (Option<f64>, Option<f64>), log, values: Vec<f64>| {
        let free = Frame::ends(log, asked, values.into_iter(), None);
        let air = if log { 0.0 } else { 0.06 * (free.end - free.start) };
        let start = if asked.0.is_some() { free.start } else { free.start - air };
        start..if asked.1.is_some() { free.end } else { free.end + air }
    };
    let x = around(frame.x, frame.log.0, all().map(|p| p.0).collect());
    let y = around(frame.y, frame.log.1, all().map(|p| p.1).collect());
    draw(|area| {
        let mut chart = plane(area, frame, &x, &y)?;
        for (i, line) in lines.iter().enumerate() {
            let colour = series_colour(i);
            let inside =
                |p: &(f64, f64)| (x.start..=x.end).contains(&p.0) && (y.start..=y.end).contains(&p.1);
            let points: Vec<_> = line.iter().copied().filter(inside).collect();
            if points.len() > 1 {
                chart.draw_series(LineSeries::new(points.clone(), colour.stroke_width(1))).map_err(wrong)?;
            }
            let dot = |p| Circle::new(p, 5, colour.filled());
            chart.draw_series(points.into_iter().map(dot)).map_err(wrong)?;
        }
        Ok(())
    })
}

/// Box per series: quartiles and median; whiskers from the 1st to the 99th percentile.
///
/// # Errors
/// An error of the drawing library.
pub fn boxes(frame: &Frame, labels: &[String], values: &[Vec<f64>]) -> Result<String> {
    let place = |of: &Vec<f64>| -> Vec<f64> {
        of.iter().map(|v| Frame::place(frame.log.1, *v)).filter(|v| v.is_finite()).collect()
    };
    let values: Vec<Vec<f64>> = values.iter().map(place).collect();
    // Values beyond the whiskers are not drawn.
    let whiskers = values.iter().filter(|of| !of.is_empty());
    let whiskers = whiskers.flat_map(|of| [0.01, 0.99].map(|share| crate::claims::percentile(of, share)));
    let y = Frame::ends(frame.log.1, frame.y, whiskers, Some(0.0));
    draw(|area| {
        let mut chart = categories(area, frame, labels, y)?;
        for (i, of) in values.iter().enumerate() {
            let q = |share| crate::claims::percentile(of, share);
            if of.is_empty() {
                continue;
            }
            let (x, colour) = (i as f64, series_colour(i));
            let line = |from: (f64, f64), to: (f64, f64), width| {
                PathElement::new(vec![from, to], colour.stroke_width(width))
            };
            chart
                .draw_series([
                    line((x, q(0.01)), (x, q(0.25)), 1),
                    line((x, q(0.75)), (x, q(0.99)), 1),
                    line((x - 0.1, q(0.01)), (x + 0.1, q(0.01)), 1),
                    line((x - 0.1, q(0.99)), (x + 0.1, q(0.99)), 1),
                    line((x - 0.2, q(0.5)), (x + 0.2, q(0.5)), 3),
                ])
                .map_err(wrong)?;
            let corners = [(x - 0.2, q(0.25)), (x + 0.2, q(0.75))];
            chart
                .draw_series([
                    Rectangle::new(corners, colour.mix(0.3).filled()),
                    Rectangle::new(corners, colour.stroke_width(1)),
                ])
                .map_err(wrong)?;
        }
        Ok(())
    })
}

/// One bar per value, with the value above it; colours repeat after `cycle` bars.
///
/// # Errors
/// An error of the drawing library.
pub fn bars(frame: &Frame, labels: &[String], values: &[f64], cycle: usize) -> Result<String> {
    let y = range(frame.y, values.iter().copied(), Some(0.0));
    draw(|area| {
        let mut chart = categories(area, frame, labels, y.clone())?;
        for (i, value) in values.iter().enumerate().filter(|(_, v)| v.is_finite()) {
            let x = i as f64;
            let (low, high) = (value.min(0.0).max(y.start), value.max(0.0).min(y.end));
            let bar =
                Rectangle::new([(x - 0.3, low), (x + 0.3, high)], series_colour(i % cycle.max(1)).filled());
            chart.draw_series([bar]).map_err(wrong)?;
            let (px, py) = chart.backend_coord(&(x, high));
            let style = text_style(15).pos(plotters::style::text_anchor::Pos::new(
                plotters::style::text_anchor::HPos::Center,
                plotters::style::text_anchor::VPos::Bottom,
            ));
            area.draw(&Text::new(crate::output::short(*value), (px, py - 2), style)).map_err(wrong)?;
        }
        Ok(())
    })
}

/// Space to the left of a chart, for the numbers of the y axis and its label.
fn left(frame: &Frame, y: &Range<f64>) -> u32 {
    let large = if frame.log.1 { 5.0 } else { 100_000.0 };
    if y.start.abs().max(y.end.abs()) >= large { 88 } else { 64 }
}

/// The part of a line with non-decreasing x within the ends of the axis.
fn between(line: &Line, x: &Range<f64>) -> Line {
    let mut part = Line::new();
    let mut last: Option<(f64, f64)> = None;
    for p in line.iter().copied() {
        let crossing = |end: f64| {
            let (lx, ly) = last.filter(|l| l.0 < end && end < p.0)?;
            Some((end, ly + (p.1 - ly) * (end - lx) / (p.0 - lx)))
        };
        part.extend(crossing(x.start));
        part.extend(Some(p).filter(|p| (x.start..=x.end).contains(&p.0)));
        part.extend(crossing(x.end));
        last = Some(p);
    }
    part
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Numbers = plotters::coord::types::RangedCoordf64;
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<Numbers, Numbers>>;

/// A chart with numbers on both axes.
fn plane<'a, 'b>(area: &'a Area<'b>, frame: &Frame, x: &Range<f64>, y: &Range<f64>) -> Result<Chart<'a, 'b>> {
    let mut chart = ChartBuilder::on(area)
        .margin_top(24)
        .margin_right(RIGHT)
        .x_label_area_size(46)
        .y_label_area_size(left(frame, y))
        .build_cartesian_2d(x.clone(), y.clone())
        .map_err(wrong)?;
    let mut mesh = chart.configure_mesh();
    styled(&mut mesh, frame, x, y);
    mesh.draw().map_err(wrong)?;
    drop(mesh);
    Ok(chart)
}

/// A chart whose x axis has one label per category, centred at 0, 1, 2 …
fn categories<'a, 'b>(
    area: &'a Area<'b>,
    frame: &Frame,
    labels: &[String],
    y: Range<f64>,
) -> Result<Chart<'a, 'b>> {
    let count = labels.len().max(1);
    let place_px = f64::from(SIZE.0 - left(frame, &y) - RIGHT) / count as f64;
    let labels: Vec<Vec<String>> = labels.iter().map(|label| wrapped(label, place_px)).collect();
    let rows = labels.iter().map(Vec::len).max().unwrap_or(1) as u32;
    let mut chart = ChartBuilder::on(area)
        .margin_top(24)
        .margin_right(RIGHT)
        .x_label_area_size(46_u32.max(14 + LABEL_ROW * rows))
        .y_label_area_size(left(frame, &y))
        .build_cartesian_2d(-0.5..count as f64 - 0.5, y.clone())
        .map_err(wrong)?;
    let mut mesh = chart.configure_mesh();
    styled(&mut mesh, frame, &(0.0..1.0), &y);
    mesh.disable_x_mesh().x_labels(0).draw().map_err(wrong)?;
    drop(mesh);
    for (i, label) in labels.iter().enumerate() {
        let (px, py) = chart.backend_coord(&(i as f64, y.start));
        let style = text_style(15).pos(plotters::style::text_anchor::Pos::new(
            plotters::style::text_anchor::HPos::Center,
            plotters::style::text_anchor::VPos::Top,
        ));
        for (row, words) in (0..).zip(label) {
            let at = (px, py + 7 + row * LABEL_ROW as i32);
            area.draw(&Text::new(words.clone(), at, style.clone())).map_err(wrong)?;
        }
    }
    Ok(chart)
}

/// A label in rows of about `width_px`, broken at blanks.
fn wrapped(label: &str, width_px: f64) -> Vec<String> {
    // Mean width of a letter of the page's font, with a margin.
    const LETTER_PX: f64 = 6.8;
    let mut rows: Vec<String> = Vec::new();
    for word in label.split_whitespace() {
        let with = |row: &String| (row.chars().count() + 1 + word.chars().count()) as f64 * LETTER_PX;
        match rows.last_mut() {
            // Do not separate a unit from its number.
            Some(row) if word == "%" || with(row) <= width_px => {
                row.push(' ');
                row.push_str(word);
            }
            _ => rows.push(word.to_owned()),
        }
    }
    rows
}

fn styled(
    mesh: &mut plotters::chart::MeshStyle<'_, '_, Numbers, Numbers, SVGBackend<'_>>,
    frame: &Frame,
    x: &Range<f64>,
    y: &Range<f64>,
) {
    // One label per power of ten.
    let labels = |log: bool, ends: &Range<f64>, most: usize| {
        if log { (ends.end - ends.start) as usize + 1 } else { most }
    };
    let log = frame.log;
    mesh.bold_line_style(GRID.stroke_width(1))
        .light_line_style(TRANSPARENT)
        .axis_style(GRID.stroke_width(1))
        .label_style(text_style(15))
        .axis_desc_style(text_style(15))
        .x_labels(labels(log.0, x, 12))
        .y_labels(labels(log.1, y, 6))
        .x_desc(frame.x_label.clone())
        .y_desc(frame.y_label.clone())
        .x_label_formatter(if log.0 { &|v| power(*v) } else { &|v| crate::output::short(tidy(*v)) })
        .y_label_formatter(if log.1 { &|v| power(*v) } else { &|v| crate::output::short(tidy(*v)) });
}

/// A power of ten as a number.
fn power(exponent: f64) -> String {
    // From a million on, there is no space for all zeros.
    let (scale, unit) = if exponent >= 6.0 { (6.0, " M") } else { (0.0, "") };
    format!("{}{unit}", crate::output::short(tidy(10_f64.powf(exponent - scale))))
}

fn text_style(size: u32) -> TextStyle<'static> {
    (FONT, size).into_font().color(&INK)
}

/// Removes rounding errors: marks of an axis are multiples of round numbers.
fn tidy(value: f64) -> f64 {
    (value * 1e9).round() / 1e9
}

/// The ends of an axis: as requested, else those of the data with a margin above.
fn range(
    asked: (Option<f64>, Option<f64>),
    values: impl Iterator<Item = f64>,
    default_low: Option<f64>,
) -> Range<f64> {
    let (low, high) = values
        .filter(|v| v.abs() <= FARTHEST)
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(lo, hi), v| (lo.min(v), hi.max(v)));
    let (low, high) = if low > high { (0.0, 1.0) } else { (low, high) };
    let start = asked.0.or(default_low.map(|d| d.min(low))).unwrap_or(low);
    let air = if default_low.is_some() { 0.08 * (high - start) } else { 0.0 };
    let end = asked.1.unwrap_or(high + air);
    if end > start { start..end } else { start..start + 1.0 }
}

/// Limit of values that are drawn or used as ends of an axis. No marks can be found between ends that are too far apart, or too
/// close for their size.
pub const FARTHEST: f64 = 1e15;

fn wrong(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("drawing a chart: {error}")
}

fn draw(paint: impl FnOnce(&Area<'_>) -> Result) -> Result<String> {
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        paint(&area)?;
        area.present().map_err(wrong)?;
    }
    Ok(classes(&text))
}

/// Replaces the colours that represent classes, and removes the size, which the page sets.
fn classes(svg: &str) -> String {
    let mut text = svg.replacen(&format!("width=\"{}\" height=\"{}\" ", SIZE.0, SIZE.1), "role=\"img\" ", 1);
    let mut named: Vec<(RGBColor, String)> =
        vec![(INK, "ink".into()), (GRID, "grid".into()), (MARK, "mark".into())];
    named.extend((0..COLOURS).map(|i| (series_colour(i), i.to_string())));
    for (RGBColor(r, g, b), name) in named {
        let colour = format!("#{r:02X}{g:02X}{b:02X}");
        text = text.replace(&format!("fill=\"{colour}\""), &format!("class=\"f-{name}\""));
        text = text.replace(&format!("stroke=\"{colour}\""), &format!("class=\"s-{name}\""));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charts_have_classes_and_no_colours() {
        let frame = Frame { x_label: "time, s".into(), y_label: "Mbit/s".into(), ..Frame::default() };
        let line: Line = (0..50).map(|i| (f64::from(i), f64::from(i % 7))).collect();
        let labels = ["a".to_owned(), "b".to_owned()];
        for svg in [
            lines(&frame, &[line.clone(), vec![]], &[(20.0, "wifi down".into())]).unwrap(),
            boxes(&frame, &labels, &[vec![1.0, 2.0, 3.0], vec![]]).unwrap(),
            bars(&frame, &labels, &[3.0, f64::NAN], 2).unwrap(),
            scatter(&frame, &[line.clone(), vec![(1.0, f64::NAN)], vec![(2.0, 2.0)]]).unwrap(),
            lines(&Frame { log: (false, true), ..frame.clone() }, &[line], &[]).unwrap(),
        ] {
            assert!(svg.contains("f-ink") && svg.contains("-0\"") && !svg.contains("\"#"), "{svg}");
        }
    }

    #[test]
    fn powers_of_ten_end_at_whole_ones() {
        let ends = |values: &[f64]| {
            let placed = values.iter().map(|v| Frame::place(true, *v));
            Frame::ends(true, (None, None), placed, Some(0.0))
        };
        assert_eq!(ends(&[0.3, 2000.0, 0.0, -1.0]), -1.0..4.0);
        assert_eq!(ends(&[10.0]), 1.0..2.0);
        assert_eq!(ends(&[]), 0.0..1.0);
        assert_eq!(Frame::ends(true, (Some(1.0), None), [2.0].into_iter(), None), 0.0..2.0);
        assert_eq!([-1.0, 3.0, 7.0].map(power), ["0.1", "1000", "10 M"]);
    }

    #[test]
    fn long_labels_take_rows() {
        assert_eq!(wrapped("DynRLC 8", 50.0), ["DynRLC", "8"]);
        assert_eq!(wrapped("EQP as printed, 25 %", 115.0), ["EQP as printed,", "25 %"]);
        assert_eq!(wrapped("printed 25 %", 75.0), ["printed 25 %"]);
        assert_eq!(wrapped("fixed partition", 170.0), ["fixed partition"]);
    }

    #[test]
    fn lines_end_at_the_ends_of_the_axis() {
        let line = vec![(0.0, 0.0), (2.0, 2.0), (6.0, 4.0)];
        assert_eq!(between(&line, &(1.0..4.0)), [(1.0, 1.0), (2.0, 2.0), (4.0, 3.0)]);
        assert_eq!(between(&line, &(3.0..4.0)), [(3.0, 2.5), (4.0, 3.0)]);
        assert_eq!(between(&line, &(0.0..9.0)), line);
    }

    #[test]
    fn axes_never_collapse() {
        assert_eq!(range((None, None), [].into_iter(), None), 0.0..1.0);
        assert_eq!(range((None, None), [5.0].into_iter(), None), 5.0..6.0);
        assert_eq!(range((None, None), [5.0, 1e300, -1e308].into_iter(), None), 5.0..6.0);
        assert_eq!(range((None, Some(3.0)), [5.0].into_iter(), Some(0.0)), 0.0..3.0);
    }
}
