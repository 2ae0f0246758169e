//! mahimahi traces (Netravali et al., ATC 2015) as a channel. Each line is a millisecond in which 1500 bytes could be
//! delivered. For every window, the lowest MCS is chosen at which the whole carrier delivers as many bytes. A window
//! without any opportunity is an outage.

use super::trace::{CqiTrace, MAX_TRACE_NS, clip, data_lines};
use super::{ChannelError, Quality};
use crate::amc::{Amc, Direction};
use anabranch_element::time::nanos;

/// Bytes per delivery opportunity.
const OPPORTUNITY_BYTES: u64 = 1500;

impl CqiTrace {
    /// Reads a mahimahi trace for a carrier, in windows of `window_ms` (10 to 60 000).
    ///
    /// # Errors
    /// A line that is not a whole number or is smaller than the previous one, an empty trace, or a window out of range.
    pub fn mahimahi(file: &str, text: &str, amc: &Amc, window_ms: u32) -> Result<Self, ChannelError> {
        const REMEDY: &str = "write one delivery opportunity per line, a whole number of milliseconds";
        if !(10..=60_000).contains(&window_ms) {
            let value = window_ms.to_string();
            return Err(ChannelError::Value { key: "window_ms", value, remedy: "10 to 60000" });
        }
        let window = u64::from(window_ms);
        let mut counts: Vec<u64> = Vec::new();
        let mut last = 0;
        for (line, content) in data_lines(text) {
            let fail = |what, remedy| ChannelError::Line { file: file.to_owned(), line, what, remedy };
            let ms: u64 = content.parse().map_err(|_| fail(format!("\"{}\"", clip(content)), REMEDY))?;
            if ms < last {
                let what = format!("{ms} ms is earlier than the line before");
                return Err(fail(what, "sort the lines: time may stand still but not go back"));
            }
            if ms > MAX_TRACE_NS / 1_000_000 {
                return Err(fail(format!("{ms} ms"), "a trace may be at most 30 days long"));
            }
            last = ms;
            // Millisecond 1 is the end of the first millisecond.
            let at = (ms.saturating_sub(1) / window) as usize;
            if counts.len() <= at {
                counts.resize(at + 1, 0);
            }
            counts[at] += 1;
        }
        if last == 0 {
            let what = "no line later than 0".to_owned();
            return Err(ChannelError::Whole { file: file.to_owned(), what, remedy: REMEDY });
        }
        let of_count = |count: u64| match count {
            0 => Quality::Outage,
            n => Quality::Mcs(mcs_of(amc, n * OPPORTUNITY_BYTES, window)),
        };
        let steps =
            (0..).zip(counts).map(|(i, n): (u64, u64)| (i * window * 1_000_000, of_count(n))).collect();
        let mut trace = Self::from_steps(file, steps)?;
        trace.merge();
        Ok(trace)
    }
}

/// The lowest MCS at which the carrier delivers `bytes` in `window_ms`; the highest if none does.
fn mcs_of(amc: &Amc, bytes: u64, window_ms: u64) -> u8 {
    let slots = window_ms * 1_000_000 / nanos(amc.slot()).max(1);
    // Every pattern repeats within 10 ms, which is 160 of the shortest slots.
    let (mut per_mcs, rbs) = (vec![0_u64; usize::from(amc.max_mcs()) + 1], amc.rbs());
    for slot in 0..160 {
        let Some(table) = amc.table(Direction::Downlink, slot) else { continue };
        for (mcs, sum) in (0..).zip(&mut per_mcs) {
            *sum += u64::from(table.bytes(mcs, rbs).unwrap_or(0));
        }
    }
    let enough = per_mcs.iter().position(|sum| sum * slots / 160 >= bytes);
    enough.map_or(amc.max_mcs(), |mcs| mcs as u8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::amc::RadioConfig;

    #[test]
    fn a_rate_is_the_mcs_that_gives_it() {
        let amc = Amc::new(&RadioConfig::default()).unwrap();
        // 12 Mbit/s for 100 ms, nothing for 100 ms, 1.2 Mbit/s for 100 ms.
        let mut text: String = (1..=100).map(|ms| format!("{ms}\n")).collect();
        text.extend((201..=300).step_by(10).map(|ms| format!("{ms}\n")));
        let trace = CqiTrace::mahimahi("t", &text, &amc, 100).unwrap();
        let steps: Vec<_> = trace.steps().collect();
        let [(0, Quality::Mcs(fast)), (100_000_000, Quality::Outage), (200_000_000, Quality::Mcs(slow))] =
            steps[..]
        else {
            panic!("{steps:?}")
        };
        let bytes = |mcs| amc.full().bytes(mcs, 25).unwrap();
        assert!(bytes(fast) >= 1500 && bytes(fast - 1) < 1500);
        assert!(bytes(slow) >= 150 && (slow == 0 || bytes(slow - 1) < 150));
        assert_eq!(trace.period_ns, 300_000_000);
    }

    #[test]
    fn errors_name_the_line() {
        let amc = Amc::new(&RadioConfig::default()).unwrap();
        let why = |text: &str| CqiTrace::mahimahi("up.trace", text, &amc, 100).unwrap_err().to_string();
        assert!(why("1\nx\n").starts_with("up.trace:2: \"x\"; write one delivery opportunity"));
        assert!(why("5\n4\n").contains("earlier than the line before"));
        assert!(why("0\n").contains("no line later than 0"));
        assert!(CqiTrace::mahimahi("t", "1\n", &amc, 0).unwrap_err().to_string().contains("window_ms = 0"));
    }
}
