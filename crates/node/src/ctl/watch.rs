//! The same answer again and again, with rates from the difference of counters.

use super::Output;
use super::error::CtlError;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Home, and erase from there on: redraws without flicker.
const REDRAW: &[u8] = b"\x1b[H\x1b[J";

/// Whether to repeat, and how often.
#[derive(Debug, Clone, clap::Args)]
pub struct Watch {
    /// Repeat every SECONDS until interrupted.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1", value_parser = seconds)]
    watch: Option<Duration>,
    /// Stop after this many repetitions.
    #[arg(long, value_name = "TIMES", requires = "watch", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
}

/// Counters of things, and when they were read.
#[derive(Default)]
pub struct Rates {
    last: BTreeMap<String, u64>,
    at: Option<Instant>,
    elapsed_s: f64,
}

impl Watch {
    /// Whether it repeats.
    pub fn repeats(&self) -> bool {
        self.watch.is_some()
    }

    /// Calls `show` once or repeatedly. On a terminal each answer takes the place of the last.
    pub async fn repeat<S>(
        &self,
        output: &mut Output<'_>,
        mut state: S,
        mut show: impl AsyncFnMut(&mut Output<'_>, &mut S) -> Result<(), CtlError>,
    ) -> Result<(), CtlError> {
        let Some(every) = self.watch else { return show(output, &mut state).await };
        let mut ticks = tokio::time::interval(every);
        // An agent that answers late is not asked twice at once.
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut left = self.count;
        loop {
            ticks.tick().await;
            let mut text = Vec::new();
            let mut page = Output { to: &mut text, json: output.json, terminal: output.terminal };
            show(&mut page, &mut state).await?;
            if output.terminal && !output.json {
                output.to.write_all(REDRAW)?;
            }
            output.to.write_all(&text)?;
            output.to.flush()?;
            left = left.map(|n| n - 1);
            if left == Some(0) {
                return Ok(());
            }
        }
    }
}

impl Rates {
    /// New readings follow, taken now.
    pub fn begin(&mut self) {
        let now = Instant::now();
        self.elapsed_s = self.at.map_or(0.0, |then| (now - then).as_secs_f64());
        self.at = Some(now);
    }

    /// Bits per second of a counter of bytes since the last reading; absent at the first.
    pub fn bps(&mut self, name: String, bytes: u64) -> Option<f64> {
        let last = self.last.insert(name, bytes)?;
        // A counter that shrank began anew.
        (self.elapsed_s > 0.0).then(|| bytes.saturating_sub(last) as f64 * 8.0 / self.elapsed_s)
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "write a number of seconds, as in 0.5")?;
    if (0.05..=86_400.0).contains(&seconds) {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err("give 0.05 to 86400 seconds".into())
    }
}
