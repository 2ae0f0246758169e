//! Repeated display of the same answer, with rates computed from the differences of counters.

use super::Output;
use super::error::CtlError;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Moves the cursor home and erases from there on, which redraws without flicker.
const REDRAW: &[u8] = b"\x1b[H\x1b[J";

/// Whether to repeat the display, and at which interval.
#[derive(Debug, Clone, clap::Args)]
pub struct Watch {
    /// Repeat every SECONDS until interrupted.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1", value_parser = seconds)]
    watch: Option<Duration>,
    /// Stop after this many repetitions.
    #[arg(long, value_name = "TIMES", requires = "watch", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
}

/// The last readings of counters by name, and their time.
#[derive(Default)]
pub struct Rates {
    last: BTreeMap<String, u64>,
    at: Option<Instant>,
    elapsed_s: f64,
}

impl Watch {
    /// Whether the display is repeated.
    pub fn repeats(&self) -> bool {
        self.watch.is_some()
    }

    /// Calls `show` once or repeatedly. On a terminal, each answer replaces the previous one.
    pub async fn repeat<S>(
        &self,
        output: &mut Output<'_>,
        mut state: S,
        mut show: impl AsyncFnMut(&mut Output<'_>, &mut S) -> Result<(), CtlError>,
    ) -> Result<(), CtlError> {
        let Some(every) = self.watch else { return show(output, &mut state).await };
        let mut ticks = tokio::time::interval(every);
        // If the agent answers late, the next request waits.
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
    /// Starts a round: the readings that follow are taken now.
    pub fn begin(&mut self) {
        let now = Instant::now();
        self.elapsed_s = self.at.map_or(0.0, |then| (now - then).as_secs_f64());
        self.at = Some(now);
    }

    /// The rate in bit/s of a counter of bytes since the last round; absent in the first round.
    pub fn bps(&mut self, name: String, bytes: u64) -> Option<f64> {
        let last = self.last.insert(name, bytes)?;
        // A counter that shrank was reset.
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
