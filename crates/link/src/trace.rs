//! Recorded rates: mahimahi's delivery opportunities, and CSV steps `time_s,rate_bps`.
//!
//! Both define a non-decreasing function C(t), the work a link could have done since the start of the trace. A packet of `b`
//! bits that starts at C = c is sent at the first t with C(t) ≥ c + b. Work is counted in bits·10⁹ (bit/s × ns), so that
//! nothing is rounded.
//!
//! - **mahimahi** (R. Netravali et al., "Mahimahi: accurate record-and-replay for HTTP", ATC 2015): each line is a
//!   millisecond at which 1500 bytes can leave. Unused opportunities expire; if a packet uses part of an opportunity, the next
//!   waiting packet uses the rest. The trace repeats with the last line as its period.
//! - **CSV**: each rate is valid until the next row. Without repetition the last rate is valid forever; with repetition the
//!   last row lasts as long as the row before it.

use std::fmt;

/// Bytes of one mahimahi delivery opportunity.
pub const OPPORTUNITY_BYTES: u64 = 1500;
const OPPORTUNITY_WORK: u128 = OPPORTUNITY_BYTES as u128 * 8 * WORK_PER_BIT;
/// One bit in the unit of work.
pub const WORK_PER_BIT: u128 = 1_000_000_000;

/// A recorded rate.
#[derive(Clone, PartialEq)]
pub struct Trace {
    kind: Kind,
    /// Length of one repetition in nanoseconds; `None`: the last rate is valid forever.
    period_ns: Option<u64>,
    work_per_period: u128,
}

/// Why a trace is invalid, with the position and the valid values.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TraceError {
    /// One line cannot be read.
    #[error("{file}:{line}: {what}; {remedy}")]
    Line {
        /// Name of the trace, as the caller gave it.
        file: String,
        /// Line number, from 1.
        line: usize,
        /// What was found.
        what: String,
        /// What would be valid.
        remedy: &'static str,
    },
    /// The trace as a whole cannot be used.
    #[error("{file}: {what}; {remedy}")]
    Whole {
        /// Name of the trace, as the caller gave it.
        file: String,
        /// What was found.
        what: &'static str,
        /// What would be valid.
        remedy: &'static str,
    },
}

#[derive(Clone, PartialEq)]
enum Kind {
    /// Non-decreasing times in milliseconds.
    Opportunities(Vec<u64>),
    /// At least one step, the first at time 0.
    Steps(Vec<Step>),
}

#[derive(Clone, Copy, PartialEq)]
struct Step {
    at_ns: u64,
    rate_bps: u64,
    /// Work offered before this step.
    before: u128,
}

impl Trace {
    /// Reads either format: CSV if the first data line contains a comma, otherwise mahimahi.
    ///
    /// # Errors
    /// See [`Trace::mahimahi`] and [`Trace::csv`].
    pub fn parse(file: &str, text: &str) -> Result<Self, TraceError> {
        if data_lines(text).next().is_some_and(|(_, line)| line.contains(',')) {
            Self::csv(file, text)
        } else {
            Self::mahimahi(file, text)
        }
    }

    /// Reads mahimahi's format: one millisecond per line, non-decreasing; `#` starts a comment.
    ///
    /// # Errors
    /// A line that is not a whole number or is smaller than the previous one, an empty trace, or a last line of 0.
    pub fn mahimahi(file: &str, text: &str) -> Result<Self, TraceError> {
        const REMEDY: &str = "write one delivery opportunity per line, a whole number of milliseconds";
        let mut opportunities = Vec::new();
        for (line, content) in data_lines(text) {
            let fail = |what, remedy| TraceError::Line { file: file.to_owned(), line, what, remedy };
            let ms: u64 = content.parse().map_err(|_| fail(format!("\"{}\"", clip(content)), REMEDY))?;
            if ms > MAX_TRACE_S * 1000 {
                return Err(fail(format!("{ms} ms"), "a trace may be at most 30 days long"));
            }
            if opportunities.last().is_some_and(|last| ms < *last) {
                return Err(fail(
                    format!("{ms} ms is earlier than the line before"),
                    "sort the lines: time may stand still but not go back",
                ));
            }
            opportunities.push(ms);
        }
        let last_ms = match opportunities.last() {
            None => {
                return Err(TraceError::Whole { file: file.to_owned(), what: "no line", remedy: REMEDY });
            }
            Some(0) => {
                return Err(TraceError::Whole {
                    file: file.to_owned(),
                    what: "the last line is 0",
                    remedy: "the last line is the length of the trace and must be later than 0",
                });
            }
            Some(ms) => *ms,
        };
        Ok(Self {
            work_per_period: opportunities.len() as u128 * OPPORTUNITY_WORK,
            kind: Kind::Opportunities(opportunities),
            period_ns: Some(last_ms * 1_000_000),
        })
    }

    /// Reads CSV rows `time_s,rate_bps` with times increasing from 0 and rates of at least 0; a header `time_s,rate_bps` and `#`
    /// comments are allowed. The trace does not repeat: see [`Trace::repeating`].
    ///
    /// # Errors
    /// A row that is not two numbers in range, times that do not increase from 0, or an empty trace.
    pub fn csv(file: &str, text: &str) -> Result<Self, TraceError> {
        const REMEDY: &str = "write rows \"time_s,rate_bps\", such as \"1.5,20000000\"";
        let mut steps: Vec<Step> = Vec::new();
        let mut header_allowed = true;
        for (line, content) in data_lines(text) {
            if std::mem::take(&mut header_allowed) && content.replace(' ', "") == "time_s,rate_bps" {
                continue;
            }
            let fail = |what, remedy| TraceError::Line { file: file.to_owned(), line, what, remedy };
            let row = content.split_once(',').and_then(|(time, rate)| {
                Some((time.trim().parse::<f64>().ok()?, rate.trim().parse::<f64>().ok()?))
            });
            let Some((time_s, rate_bps)) = row else {
                return Err(fail(format!("\"{}\"", clip(content)), REMEDY));
            };
            if !(0.0..=MAX_TRACE_S as f64).contains(&time_s) {
                return Err(fail(format!("time {time_s} s"), "times are 0 to 30 days, in seconds"));
            }
            if !(0.0..=MAX_RATE_BPS as f64).contains(&rate_bps) {
                return Err(fail(format!("rate {rate_bps} bit/s"), "rates are 0 to 1e13 bit/s"));
            }
            let at_ns = (time_s * 1e9).round() as u64;
            let before = match steps.last() {
                None if at_ns != 0 => {
                    return Err(fail(format!("the first time is {time_s} s"), "the first row is time 0"));
                }
                None => 0,
                Some(last) if at_ns <= last.at_ns => {
                    return Err(fail(
                        format!("{time_s} s is not later than the row before"),
                        "sort the rows: each time must be later than the one before",
                    ));
                }
                Some(last) => last.before + last.work(at_ns),
            };
            steps.push(Step { at_ns, rate_bps: rate_bps.round() as u64, before });
        }
        if steps.is_empty() {
            return Err(TraceError::Whole { file: file.to_owned(), what: "no row", remedy: REMEDY });
        }
        Ok(Self { kind: Kind::Steps(steps), period_ns: None, work_per_period: 0 })
    }

    /// The same trace with repetition. A mahimahi trace always repeats; a CSV trace of one row is constant.
    ///
    /// # Errors
    /// All rates of a CSV trace are 0, so nothing would ever be sent.
    pub fn repeating(mut self, file: &str) -> Result<Self, TraceError> {
        if let Kind::Steps(steps) = &self.kind
            && let [.., before_last, last] = &steps[..]
        {
            let period_ns = last.at_ns + (last.at_ns - before_last.at_ns);
            self.work_per_period = last.before + last.work(period_ns);
            if self.work_per_period == 0 {
                return Err(TraceError::Whole {
                    file: file.to_owned(),
                    what: "every rate is 0",
                    remedy: "give at least one rate above 0, or take the link down instead",
                });
            }
            self.period_ns = Some(period_ns);
        }
        Ok(self)
    }

    /// Mean rate in bit/s over one repetition, or over the rows if the trace does not repeat.
    #[must_use]
    pub fn mean_bps(&self) -> u64 {
        let (work, span_ns) = match (&self.kind, self.period_ns) {
            (_, Some(period_ns)) => (self.work_per_period, period_ns),
            (Kind::Steps(steps), None) => match steps.last() {
                Some(last) if last.at_ns > 0 => (last.before, last.at_ns),
                Some(only) => return only.rate_bps,
                None => return 0,
            },
            (Kind::Opportunities(_), None) => return 0,
        };
        u64::try_from(work / u128::from(span_ns.max(1))).unwrap_or(u64::MAX)
    }

    /// The rate in bit/s at `elapsed_ns`: that of the row in a CSV trace; in a mahimahi trace the mean of the preceding 100 ms (at
    /// the start, of the first 100 ms).
    #[must_use]
    pub fn bps_at(&self, elapsed_ns: u64) -> u64 {
        match &self.kind {
            Kind::Steps(steps) => {
                let elapsed_ns = self.period_ns.map_or(elapsed_ns, |period_ns| elapsed_ns % period_ns);
                let index = steps.partition_point(|s| s.at_ns <= elapsed_ns).saturating_sub(1);
                steps.get(index).map_or(0, |step| step.rate_bps)
            }
            Kind::Opportunities(_) => {
                let until_ns = elapsed_ns.max(PRESENT_NS);
                let work = self.work_before(until_ns) - self.work_before(until_ns - PRESENT_NS);
                u64::try_from(work / u128::from(PRESENT_NS)).unwrap_or(u64::MAX)
            }
        }
    }

    /// The work offered before `elapsed_ns`, in bits·10⁹.
    #[must_use]
    pub fn work_before(&self, elapsed_ns: u64) -> u128 {
        let Some(first_ns) = elapsed_ns.checked_sub(1) else { return 0 };
        match (&self.kind, self.period_ns) {
            (Kind::Opportunities(list), Some(period_ns)) => {
                // The remainder is in 1 ..= period, so that the last line belongs to its own repetition.
                let (round, rest_ns) = (first_ns / period_ns, first_ns % period_ns + 1);
                let used = list.partition_point(|ms| ms * 1_000_000 < rest_ns);
                u128::from(round) * self.work_per_period + used as u128 * OPPORTUNITY_WORK
            }
            (Kind::Steps(steps), Some(period_ns)) => {
                u128::from(elapsed_ns / period_ns) * self.work_per_period
                    + work_in(steps, elapsed_ns % period_ns)
            }
            (Kind::Steps(steps), None) => work_in(steps, elapsed_ns),
            (Kind::Opportunities(_), None) => 0,
        }
    }

    /// The first time, in nanoseconds, at which `work` (bits·10⁹) has been offered; `None`: never.
    #[must_use]
    pub fn time_of(&self, work: u128) -> Option<u64> {
        if work == 0 {
            return Some(0);
        }
        let (round, rest) = match self.period_ns {
            Some(_) => ((work - 1) / self.work_per_period, (work - 1) % self.work_per_period + 1),
            None => (0, work),
        };
        let start_ns = round.checked_mul(u128::from(self.period_ns.unwrap_or(0)))?;
        let within_ns = match &self.kind {
            Kind::Opportunities(list) => {
                let index = usize::try_from((rest - 1) / OPPORTUNITY_WORK).ok()?;
                u128::from(*list.get(index)?) * 1_000_000
            }
            Kind::Steps(steps) => {
                let step = steps.get(steps.partition_point(|s| s.before < rest).checked_sub(1)?)?;
                if step.rate_bps == 0 {
                    return None;
                }
                u128::from(step.at_ns) + (rest - step.before).div_ceil(u128::from(step.rate_bps))
            }
        };
        u64::try_from(start_ns.checked_add(within_ns)?).ok()
    }
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, entries) = match &self.kind {
            Kind::Opportunities(list) => ("mahimahi", list.len()),
            Kind::Steps(steps) => ("csv", steps.len()),
        };
        write!(f, "Trace({kind}, {entries} entries, mean {} bit/s)", self.mean_bps())
    }
}

/// Interval over which delivery opportunities are averaged to a rate.
const PRESENT_NS: u64 = 100_000_000;
/// Maximum length of a trace, in seconds: 30 days.
const MAX_TRACE_S: u64 = 30 * 24 * 3600;
const MAX_RATE_BPS: u64 = 10_000_000_000_000;

impl Step {
    /// Work from this step's start to `until_ns`.
    fn work(&self, until_ns: u64) -> u128 {
        u128::from(until_ns.saturating_sub(self.at_ns)) * u128::from(self.rate_bps)
    }
}

fn work_in(steps: &[Step], elapsed_ns: u64) -> u128 {
    let index = steps.partition_point(|s| s.at_ns <= elapsed_ns).saturating_sub(1);
    steps.get(index).map_or(0, |s| s.before + s.work(elapsed_ns))
}

/// Lines that are neither blank nor comments, numbered from 1. A leading byte-order mark, which some editors write, is removed.
fn data_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.trim_start_matches('\u{feff}')
        .lines()
        .enumerate()
        .map(|(i, line)| (i + 1, line.trim()))
        .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
}

/// The first 40 characters of a line, for an error message.
fn clip(line: &str) -> &str {
    line.char_indices().nth(40).map_or(line, |(end, _)| &line[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const FULL: u128 = OPPORTUNITY_WORK;

    #[test]
    fn the_rate_at_a_time_is_not_the_mean() {
        let steps = Trace::parse("t", "0,20e6\n1,5e6\n3,0\n").unwrap();
        let s = 1000 * MS;
        assert_eq!(
            [0, s - 1, s, 3 * s - 1, 3 * s, 9 * s].map(|at| steps.bps_at(at)),
            [20_000_000, 20_000_000, 5_000_000, 5_000_000, 0, 0]
        );
        let round = steps.repeating("t").unwrap();
        assert_eq!([4 * s, 5 * s, 6 * s].map(|at| round.bps_at(at)), [0, 20_000_000, 5_000_000]);
        // An opportunity in each of the first 100 ms, then one every 10 ms up to 1000 ms.
        let lines = (1..=100).chain((110..=1000).step_by(10)).map(|ms: u64| format!("{ms}\n"));
        let radio = Trace::parse("t", &lines.collect::<String>()).unwrap();
        assert_eq!(
            [0, 50, 100, 150, 300, 1000, 1101].map(|ms| radio.bps_at(ms * MS) / 1000),
            [11_880, 11_880, 11_880, 6600, 1200, 1200, 12_000]
        );
    }

    #[test]
    fn a_byte_order_mark_is_not_part_of_the_first_line() {
        for text in ["1\n4\n", "# c\n1\n4\n", "0,1e6\n1,2e6\n", "time_s,rate_bps\n0,1e6\n1,2e6\n"] {
            let trace = Trace::parse("t", text).unwrap();
            assert!(Trace::parse("t", &format!("\u{feff}{text}")) == Ok(trace), "{text:?}");
        }
        let error = Trace::parse("t", "1\n\u{feff}2\n").unwrap_err().to_string();
        assert!(error.starts_with("t:2:"), "{error}");
    }

    #[test]
    fn opportunities_are_used_in_order_and_repeat() {
        let t = Trace::parse("t", "0\n2\n2\n5\n").unwrap();
        assert_eq!(t.time_of(1), Some(0));
        assert_eq!(t.time_of(FULL), Some(0));
        assert_eq!(t.time_of(FULL + 1), Some(2 * MS));
        assert_eq!(t.time_of(3 * FULL), Some(2 * MS));
        assert_eq!(t.time_of(4 * FULL), Some(5 * MS));
        assert_eq!(t.time_of(5 * FULL), Some(5 * MS), "the first line of the second round");
        assert_eq!(t.time_of(6 * FULL), Some(7 * MS));
        assert_eq!(t.work_before(0), 0);
        assert_eq!(t.work_before(1), FULL);
        assert_eq!(t.work_before(2 * MS), FULL);
        assert_eq!(t.work_before(2 * MS + 1), 3 * FULL);
        assert_eq!(t.work_before(5 * MS), 3 * FULL);
        assert_eq!(t.work_before(5 * MS + 1), 5 * FULL);
        assert_eq!(t.mean_bps(), 4 * 1500 * 8 * 200);
    }

    #[test]
    fn steps_hold_or_repeat() {
        let hold = Trace::parse("t", "time_s,rate_bps\n0,1000000\n1,0\n2,2e6\n").unwrap();
        let mbit = 1_000_000 * WORK_PER_BIT;
        assert_eq!(hold.work_before(500 * MS), mbit / 2);
        assert_eq!(hold.work_before(1700 * MS), mbit);
        assert_eq!(hold.time_of(mbit), Some(1000 * MS));
        assert_eq!(hold.time_of(2 * mbit), Some(2500 * MS));
        assert_eq!(hold.time_of(21 * mbit), Some(12_000 * MS));
        let round = hold.repeating("t").unwrap();
        assert_eq!(round.time_of(3 * mbit), Some(3000 * MS));
        assert_eq!(round.time_of(4 * mbit), Some(4000 * MS));
        assert_eq!(round.work_before(3500 * MS), 3 * mbit + mbit / 2);
        assert_eq!(round.mean_bps(), 1_000_000);
    }

    #[test]
    fn a_trace_that_ends_at_zero_never_finishes() {
        let t = Trace::csv("t", "0,1000\n1,0\n").unwrap();
        assert_eq!(t.time_of(2000 * WORK_PER_BIT), None);
        assert!(Trace::csv("t", "0,0\n1,0\n").unwrap().repeating("t").is_err());
    }

    #[test]
    fn errors_name_the_file_the_line_and_the_remedy() {
        let e = Trace::parse("cell.trace", "# c\n1\nx\n").unwrap_err().to_string();
        assert_eq!(
            e,
            "cell.trace:3: \"x\"; write one delivery opportunity per line, a whole number of milliseconds"
        );
        for bad in ["", "0\n", "5\n4\n", "-1\n", "0,1\n0,2\n", "1,5\n", "0,-3\n", "0,nan\n", "0,1,2\n"] {
            assert!(Trace::parse("t", bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_two_views_agree() {
        for t in [
            Trace::parse("t", "1\n1\n4\n9\n").unwrap(),
            Trace::parse("t", "0,3000000\n0.002,0\n0.003,700000\n").unwrap().repeating("t").unwrap(),
        ] {
            for w in (1..40).map(|i| i * FULL / 7) {
                let at = t.time_of(w).unwrap();
                assert!(t.work_before(at + 1) >= w, "{t:?} {w}");
                assert!(at == 0 || t.work_before(at.saturating_sub(1)) < w, "{t:?} {w}");
            }
        }
    }
}
