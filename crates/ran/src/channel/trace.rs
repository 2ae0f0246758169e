//! A recorded or generated channel: a sequence of qualities, each valid until the next; the sequence repeats.

use super::{ChannelError, Quality};

/// Maximum length of a trace, in nanoseconds: 30 days.
pub(super) const MAX_TRACE_NS: u64 = 30 * 24 * 3600 * 1_000_000_000;

/// A repeating sequence of qualities.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CqiTrace {
    /// Start in nanoseconds and quality of each step; the first starts at 0.
    steps: Vec<(u64, Quality)>,
    /// Length of one repetition, nanoseconds.
    pub(super) period_ns: u64,
}

impl CqiTrace {
    /// Reads rows `second,cqi`, or the CSV of the Irish 4G and 5G data sets (Raca et al., MMSys 2018 and 2020), where a
    /// CQI of `-` repeats the previous value.
    ///
    /// # Errors
    /// The first line that cannot be read, or a fault of the trace as a whole.
    pub fn csv(file: &str, text: &str) -> Result<Self, ChannelError> {
        super::csv::parse(file, text)
    }

    /// Steps with increasing times from 0. The last step lasts as long as the one before it, or one second.
    pub(super) fn from_steps(file: &str, steps: Vec<(u64, Quality)>) -> Result<Self, ChannelError> {
        let period_ns = match &steps[..] {
            [] => {
                let remedy = "write rows \"second,cqi\", such as \"0,12\"";
                return Err(ChannelError::Whole { file: file.to_owned(), what: "no row".to_owned(), remedy });
            }
            [only] => only.0 + 1_000_000_000,
            [.., before, last] => last.0 + (last.0 - before.0),
        };
        Ok(Self { steps, period_ns })
    }

    /// Merges adjacent steps of equal quality.
    pub(super) fn merge(&mut self) {
        self.steps.dedup_by(|next, before| next.1 == before.1);
    }

    /// The quality `elapsed_ns` after the start. `hint` is the index found by the previous call.
    pub(super) fn at(&self, elapsed_ns: u64, hint: &mut usize) -> Quality {
        let within = elapsed_ns % self.period_ns.max(1);
        let holds = |at: usize| {
            self.steps.get(at).is_some_and(|s| s.0 <= within)
                && self.steps.get(at + 1).is_none_or(|next| within < next.0)
        };
        if !holds(*hint) {
            *hint = match *hint + 1 {
                next if holds(next) => next,
                _ => self.steps.partition_point(|s| s.0 <= within).saturating_sub(1),
            };
        }
        self.steps.get(*hint).map_or(Quality::Outage, |s| s.1)
    }

    /// Start in nanoseconds and quality of each step.
    pub fn steps(&self) -> impl Iterator<Item = (u64, Quality)> + '_ {
        self.steps.iter().copied()
    }
}

/// Lines that are neither blank nor comments, numbered from 1. A leading byte-order mark, which some editors write, is removed.
pub(super) fn data_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.trim_start_matches('\u{feff}')
        .lines()
        .enumerate()
        .map(|(i, line)| (i + 1, line.trim()))
        .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
}

/// The first 40 characters of a line, for an error message.
pub(super) fn clip(line: &str) -> &str {
    line.char_indices().nth(40).map_or(line, |(end, _)| &line[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_order_mark_is_not_part_of_the_first_line() {
        let lines = |text| data_lines(text).collect::<Vec<_>>();
        assert_eq!(lines("\u{feff}second,cqi\n0,9\n"), [(1, "second,cqi"), (2, "0,9")]);
        assert_eq!(lines("\u{feff}# c\n0,9\n"), [(2, "0,9")]);
    }

    #[test]
    fn a_value_holds_until_the_next_and_the_trace_repeats() {
        let s = 1_000_000_000;
        let steps = vec![(0, Quality::Cqi(3)), (s, Quality::Cqi(9)), (3 * s, Quality::Outage)];
        let trace = CqiTrace::from_steps("t", steps).unwrap();
        assert_eq!(trace.period_ns, 5 * s);
        let mut hint = 0;
        let mut at = |seconds: f64| trace.at((seconds * 1e9) as u64, &mut hint);
        for (seconds, quality) in [
            (0.0, Quality::Cqi(3)),
            (0.999, Quality::Cqi(3)),
            (1.0, Quality::Cqi(9)),
            (4.9, Quality::Outage),
            (5.0, Quality::Cqi(3)),
            (2.0, Quality::Cqi(9)),
            (1003.5, Quality::Outage),
        ] {
            assert_eq!(at(seconds), quality, "{seconds}");
        }
        assert!(CqiTrace::from_steps("t", vec![]).is_err());
    }
}
