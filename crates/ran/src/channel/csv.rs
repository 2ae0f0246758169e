//! Channel traces as CSV: `second,cqi`, or the files of the Irish data sets.
//!
//! - **second,cqi**: seconds, increasing from 0, and CQI 0 to 15; a header is allowed.
//! - **Irish 4G and 5G traces** (Raca et al., "Beyond throughput: a 4G LTE dataset with channel and context
//!   metrics", MMSys 2018; "…, the next generation: a 5G dataset …", MMSys 2020): the header contains `Timestamp`
//!   and `CQI` among other columns. Time stamps have the form `2018.02.06_11.55.59`. A CQI of `-` means no value: the
//!   previous value remains in force. The last of several rows with the same second counts.

use super::trace::{CqiTrace, MAX_TRACE_NS, clip, data_lines};
use super::{ChannelError, Quality};

const ROW: &str = "write rows \"second,cqi\", such as \"3,12\"";

pub(super) fn parse(file: &str, text: &str) -> Result<CqiTrace, ChannelError> {
    let mut lines = data_lines(text).peekable();
    let columns: Vec<String> = match lines.peek() {
        Some((_, line)) => line.split(',').map(|c| c.trim().to_ascii_lowercase()).collect(),
        None => Vec::new(),
    };
    let column = |name: &str| columns.iter().position(|c| c == name);
    if let (Some(time), Some(cqi)) = (column("timestamp"), column("cqi")) {
        lines.next();
        return irish(file, lines, time, cqi, columns.len());
    }
    if columns == ["second", "cqi"] {
        lines.next();
    }
    seconds(file, lines)
}

fn seconds<'a>(file: &str, lines: impl Iterator<Item = (usize, &'a str)>) -> Result<CqiTrace, ChannelError> {
    let mut steps: Vec<(u64, Quality)> = Vec::new();
    for (line, content) in lines {
        let fail = |what, remedy| ChannelError::Line { file: file.to_owned(), line, what, remedy };
        let Some((time, cqi)) = content.split_once(',') else {
            return Err(fail(format!("\"{}\"", clip(content)), ROW));
        };
        let second: f64 = match time.trim().parse() {
            Ok(second) => second,
            Err(_) => return Err(fail(format!("time \"{}\"", clip(time)), ROW)),
        };
        if !(0.0..=MAX_TRACE_NS as f64 / 1e9).contains(&second) {
            return Err(fail(format!("time {second} s"), "times are 0 to 30 days, in seconds"));
        }
        let at_ns = (second * 1e9).round() as u64;
        match steps.last() {
            None if at_ns != 0 => {
                return Err(fail(format!("the first time is {second} s"), "the first row is time 0"));
            }
            Some(last) if at_ns <= last.0 => {
                let what = format!("{second} s is not later than the row before");
                return Err(fail(what, "sort the rows: each time must be later than the one before"));
            }
            _ => {}
        }
        steps.push((at_ns, cqi_of(cqi).map_err(|what| fail(what, "CQI is a whole number of 0 to 15"))?));
    }
    CqiTrace::from_steps(file, steps)
}

fn irish<'a>(
    file: &str,
    lines: impl Iterator<Item = (usize, &'a str)>,
    time: usize,
    cqi: usize,
    columns: usize,
) -> Result<CqiTrace, ChannelError> {
    let mut steps: Vec<(u64, Quality)> = Vec::new();
    let mut start = None;
    for (line, content) in lines {
        let fail = |what, remedy| ChannelError::Line { file: file.to_owned(), line, what, remedy };
        let found = content.split(',').count();
        let field = |at: usize| content.split(',').nth(at).map(str::trim).unwrap_or_default();
        if found != columns {
            let what = format!("{found} columns where the header has {columns}");
            return Err(fail(what, "give every row as many columns as the header"));
        }
        let Some(second) = second_of(field(time)) else {
            let what = format!("Timestamp \"{}\"", clip(field(time)));
            return Err(fail(what, "time stamps are written 2018.02.06_11.55.59"));
        };
        let Some(since) = second.checked_sub(*start.get_or_insert(second)) else {
            let what = format!("{} is earlier than the first row", field(time));
            return Err(fail(what, "sort the rows by Timestamp"));
        };
        let at_ns = since.saturating_mul(1_000_000_000);
        if at_ns > MAX_TRACE_NS {
            return Err(fail(
                format!("{since} s after the first row"),
                "a trace may be at most 30 days long",
            ));
        }
        if steps.last().is_some_and(|last| at_ns < last.0) {
            let what = format!("{} is earlier than the row before", field(time));
            return Err(fail(what, "sort the rows by Timestamp"));
        }
        if field(cqi) == "-" || field(cqi).is_empty() {
            continue;
        }
        let remedy = "CQI is a whole number of 0 to 15, or - where there is none";
        let quality = cqi_of(field(cqi)).map_err(|what| fail(what, remedy))?;
        match steps.last_mut() {
            Some(last) if last.0 == at_ns => last.1 = quality,
            _ => steps.push((at_ns, quality)),
        }
    }
    // The first rows may have no CQI.
    if let Some(first) = steps.first_mut() {
        first.0 = 0;
    }
    CqiTrace::from_steps(file, steps)
}

fn cqi_of(text: &str) -> Result<Quality, String> {
    let text = text.trim();
    // Some tools write whole numbers as 12.0.
    let whole = text.strip_suffix(".0").unwrap_or(text);
    match whole.parse::<u8>() {
        Ok(cqi @ 0..=15) => Ok(Quality::Cqi(cqi)),
        _ => Err(format!("CQI \"{}\"", clip(text))),
    }
}

/// Seconds of a time stamp `2018.02.06_11.55.59` since the year 0.
fn second_of(text: &str) -> Option<u64> {
    let (date, time) = text.split_once('_')?;
    let three = |text: &str| -> Option<[u64; 3]> {
        let mut parts = text.split('.').map(|p| p.parse::<u64>().ok());
        let found = [parts.next()??, parts.next()??, parts.next()??];
        parts.next().is_none().then_some(found)
    };
    let ([year, month, day], [hour, minute, second]) = (three(date)?, three(time)?);
    let valid = year < 10_000 && (1..=12).contains(&month) && (1..=31).contains(&day);
    if !valid || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    // Days before a month, counting years from March so that the leap day comes last.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year.checked_sub(1)?, month + 9) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1;
    Some(((days * 24 + hour) * 60 + minute) * 60 + second)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why(text: &str) -> String {
        parse("cell.csv", text).unwrap_err().to_string()
    }

    #[test]
    fn seconds_and_cqi() {
        let trace = parse("t", "# 1 Hz\nsecond,cqi\n0,9\n1,10\n2.5,15\n").unwrap();
        let steps: Vec<_> = trace.steps().collect();
        assert_eq!(steps[2], (2_500_000_000, Quality::Cqi(15)));
        assert_eq!(trace.period_ns, 4_000_000_000);
    }

    #[test]
    fn the_irish_format() {
        let text = "Timestamp,Longitude,NetworkMode,CQI,State\n\
                    2018.02.28_23.59.58,-8.4,LTE,-,I\n\
                    2018.02.28_23.59.59,-8.4,LTE,7,D\n\
                    2018.02.28_23.59.59,-8.4,LTE,8,D\n\
                    2018.03.01_00.00.00,-8.4,LTE,-,D\n\
                    2018.03.01_00.00.02,-8.4,LTE,11.0,D\n";
        let trace = parse("t", text).unwrap();
        let steps: Vec<_> = trace.steps().map(|(ns, q)| (ns / 1_000_000_000, q)).collect();
        assert_eq!(steps, [(0, Quality::Cqi(8)), (4, Quality::Cqi(11))]);
        assert_eq!(
            second_of("2020.03.01_00.00.00").unwrap() - second_of("2020.02.28_00.00.00").unwrap(),
            2 * 86_400
        );
    }

    #[test]
    fn errors_name_the_file_the_line_and_what_is_valid() {
        assert_eq!(
            why("second,cqi\n0,9\n1,NaN\n"),
            "cell.csv:3: CQI \"NaN\"; CQI is a whole number of 0 to 15"
        );
        assert_eq!(why("0,16\n"), "cell.csv:1: CQI \"16\"; CQI is a whole number of 0 to 15");
        assert_eq!(
            why("0,9\n0,9\n"),
            "cell.csv:2: 0 s is not later than the row before; \
             sort the rows: each time must be later than the one before"
        );
        assert_eq!(why("0,9\nNaN,9\n"), "cell.csv:2: time NaN s; times are 0 to 30 days, in seconds");
        assert_eq!(why(""), "cell.csv: no row; write rows \"second,cqi\", such as \"0,12\"");
        for bad in ["1,9\n", "-1,3\n", "0;3\n", "0,3,4\n", "x,3\n", "inf,3\n", "0,-1\n", "0,\n"] {
            assert!(parse("t", bad).is_err(), "{bad:?}");
        }
        let irish = |row: &str| why(&format!("Timestamp,CQI\n2018.02.06_11.55.59,9\n{row}\n"));
        assert!(irish("2018.02.06_11.55.58,9").contains("earlier"));
        assert!(irish("2018.13.06_11.55.59,9").contains("written 2018.02.06_11.55.59"));
        assert!(irish("2018.02.06_11.56.59").contains("1 columns where the header has 2"));
        assert!(irish("2018.02.06_11.56.59,sixteen").contains("or - where there is none"));
        assert!(why("Timestamp,CQI\n2018.02.06_11.55.59,-\n").contains("no row"));
    }
}
