//! Metrics and series of a flow.

use super::super::backend::Observations;
use super::super::observe::TcpObservations;
use super::super::outcome;
use super::super::traffic::{self, Answer, Delivered};
use super::RunningFlow;
use super::carrier::Carrier;
use crate::backend::{Outcome, Series};
use crate::measure::{self, Arrival, Times};
use crate::scenario::model::{Case, Traffic, Via};
use anyhow::{Context, Result, bail};
use serde::de::DeserializeOwned;
use std::path::Path;

/// Times in seconds, and bytes delivered at them.
type Deliveries = Vec<(f64, u64)>;

impl RunningFlow {
    pub(super) fn measure(&self, case: &Case, seen: &Observations, out: &mut Outcome) -> Result<()> {
        let tcp = seen.tcp.get(&self.name);
        let acks = tcp.map(|_| seen.acks.get(&self.name).cloned().unwrap_or_default());
        let seconds = |ns: u64| (i128::from(ns) - i128::from(seen.begin_ns)) as f64 * 1e-9;
        let mut times = Times {
            start_s: self.flow.start.as_secs_f64(),
            stop_s: self.flow.stop.as_secs_f64(),
            window_from_s: case.measure_from.as_secs_f64(),
            end_s: seen.end_s,
            sample_s: case.sample.as_secs_f64(),
        };
        let name = &self.name;
        match &self.flow.traffic {
            Traffic::Cbr { payload_bytes, .. } | Traffic::OnOff { payload_bytes, .. } => {
                let (sent, bytes, arrivals) = self.packets(*payload_bytes, out)?;
                measure::packets(out, name, sent, bytes, &placed(&arrivals, seconds), &times);
            }
            Traffic::Ping { payload_bytes, .. } => {
                let (sent, answers) = match &self.carrier {
                    Carrier::Tool(tool) => tool.packets(true)?,
                    _ => (self.sent()?, traffic::arrivals(self.received()?)?),
                };
                let answers = placed(&answers, seconds);
                put(out, name, "responses", answers.len() as f64);
                measure::packets(out, name, sent, u64::from(*payload_bytes), &answers, &times);
            }
            Traffic::BulkTcp { bytes, .. } => {
                let (delivered, total, intact) = self.delivered(tcp, seen.end_s, seconds)?;
                if let Some(intact) = intact {
                    put(out, name, "intact", f64::from(u8::from(intact)));
                }
                if let Some(bytes) = bytes {
                    let completed = total >= *bytes;
                    put(out, name, "completed", f64::from(u8::from(completed)));
                    if let (true, Some((last, _))) = (completed, delivered.last()) {
                        put(out, name, "completion_s", last - times.start_s);
                        times.stop_s = times.stop_s.min(*last);
                    }
                }
                if let Carrier::Video(video) = &self.carrier {
                    put(out, name, "frames", video.frames()? as f64);
                }
                measure::deliveries(out, name, delivered.into_iter(), &times);
            }
            Traffic::RequestResponse { response_bytes, .. } => {
                let answers: Vec<Answer> = self.report()?;
                put(out, name, "responses", answers.len() as f64);
                put(out, name, "intact", f64::from(u8::from(answers.iter().all(|a| a.intact))));
                let delays: Vec<(f64, f64)> = answers
                    .iter()
                    .map(|a| (seconds(a.answered_ns), a.answered_ns.saturating_sub(a.asked_ns) as f64 * 1e-6))
                    .collect();
                measure::delay_metrics(out, name, "response", &delays, &times);
                let delivered = delays.iter().map(|(t, _)| (*t, u64::from(*response_bytes)));
                measure::deliveries(out, name, delivered, &times);
            }
        }
        if self.flow.via == Via::Slices {
            put(out, name, "paths", self.choice.paths as f64);
            if let Some(window) = self.choice.window {
                put(out, name, "initial_window_segments", f64::from(window));
            }
        }
        if let Some(seen) = tcp {
            put(out, name, "retransmissions", seen.resent[0] as f64);
            put(out, name, "timeouts", seen.resent[1] as f64);
            put(out, name, "reordering_packets", seen.reordering as f64);
            let of = seen.recoveries;
            for (what, count) in [
                ("fast_retransmits", of.fast_recoveries),
                ("undos", of.undone),
                ("spurious_retransmissions", of.dsacks),
                ("reorderings", of.reorderings),
            ] {
                put(out, name, what, count as f64);
            }
            let cuts = (of.fast_recoveries + seen.resent[1]) as f64;
            if seen.acked_bytes > 0 {
                put(out, name, "cuts_per_mb", cuts * 1e6 / seen.acked_bytes as f64);
            }
            out.series.insert(format!("flow.{name}.cwnd_bytes"), Series { points: seen.cwnd.clone() });
        }
        if self.flow.telemetry.is_some() {
            let cwnd = tcp.map_or(&[][..], |tcp| tcp.cwnd.as_slice());
            outcome::telemetry(name, acks.as_ref(), seen.traces.get(name), cwnd, &times, out);
        }
        if let Some(acks) = acks {
            put(out, name, "duplicate_acks", acks.duplicates as f64);
            put(out, name, "triple_duplicates", acks.triples as f64);
            out.series.insert(format!("flow.{name}.triple_duplicates"), Series { points: acks.triples_by });
        }
        Ok(())
    }

    /// Deliveries, total bytes, and whether all of them are intact, if known.
    fn delivered(
        &self,
        tcp: Option<&TcpObservations>,
        end_s: f64,
        seconds: impl Fn(u64) -> f64,
    ) -> Result<(Deliveries, u64, Option<bool>)> {
        let sum = |delivered: &Deliveries| delivered.iter().map(|(_, n)| n).sum();
        let web = match &self.carrier {
            Carrier::Tool(tool) => {
                let total = tool.received_bytes()?;
                return Ok((whole(tcp, total), total, None));
            }
            Carrier::Video(_) => {
                let delivered = whole(tcp, 0);
                let total = sum(&delivered);
                return Ok((delivered, total, None));
            }
            Carrier::Curl(web) => web,
            Carrier::Own { .. } | Carrier::Vehicle(_) => {
                let report: Delivered = self.report()?;
                let delivered: Deliveries =
                    report.deliveries.iter().map(|(ns, n)| (seconds(*ns), *n)).collect();
                let total = sum(&delivered);
                return Ok((delivered, total, Some(report.intact)));
            }
        };
        let total = std::fs::metadata(web.copy()).map_or(0, |m| m.len());
        let intact = total > 0 && web.sums().map(|[file, copy]| file == copy)?;
        let mut delivered = whole(tcp, total);
        if intact {
            within(&mut delivered, end_s);
        }
        Ok((delivered, total, Some(intact)))
    }

    /// Packets sent, bytes per packet, and arrivals.
    fn packets(&self, payload_bytes: u32, out: &mut Outcome) -> Result<(u64, u64, Vec<traffic::Arrival>)> {
        let bytes = u64::from(payload_bytes);
        match &self.carrier {
            Carrier::Tool(tool) => {
                let (sent, arrivals) = tool.packets(false)?;
                Ok((sent, bytes, arrivals))
            }
            Carrier::Vehicle(vehicle) => {
                let seen = vehicle.report()?;
                put(out, &self.name, "intact", f64::from(u8::from(seen.bad == 0)));
                Ok((seen.sent, seen.bytes / seen.sent.max(1), seen.arrivals))
            }
            Carrier::Own { received, .. } => Ok((self.sent()?, bytes, traffic::arrivals(received)?)),
            Carrier::Curl(_) | Carrier::Video(_) => bail!("carries no packets"),
        }
    }

    /// Number of packets reported by the sender.
    fn sent(&self) -> Result<u64> {
        let Carrier::Own { sent, .. } = &self.carrier else { bail!("leaves no report of ours") };
        let sent = std::fs::read_to_string(sent).context("the sender's report")?;
        sent.trim().parse().context("the sender's report")
    }

    fn received(&self) -> Result<&Path> {
        match &self.carrier {
            Carrier::Own { received, .. } => Ok(received),
            _ => bail!("leaves no report of ours"),
        }
    }

    fn report<T: DeserializeOwned>(&self) -> Result<T> {
        let text = std::fs::read_to_string(self.received()?).context("the receiver's report")?;
        serde_json::from_str(&text).context("the receiver's report")
    }
}

/// Deliveries according to the kernel. Bytes received after the last reading are added to it.
fn whole(tcp: Option<&TcpObservations>, total: u64) -> Deliveries {
    let mut delivered = tcp.map(|t| t.received.clone()).unwrap_or_default();
    let seen: u64 = delivered.iter().map(|(_, bytes)| bytes).sum();
    if let Some((_, bytes)) = delivered.last_mut() {
        *bytes += total.saturating_sub(seen);
    }
    delivered
}

/// Limits times to the end of the run: the last reading may be slightly later.
fn within(delivered: &mut Deliveries, end_s: f64) {
    for (at, _) in delivered {
        *at = at.min(end_s);
    }
}

/// Packets in the time of the run.
fn placed(arrivals: &[traffic::Arrival], seconds: impl Fn(u64) -> f64) -> Vec<Arrival> {
    let place = |a: &traffic::Arrival| Arrival {
        number: a.number,
        sent_s: seconds(a.sent_ns),
        arrived_s: seconds(a.arrived_ns),
    };
    arrivals.iter().map(place).collect()
}

fn put(out: &mut Outcome, flow: &str, name: &str, value: f64) {
    out.metrics.insert(format!("flow.{flow}.{name}"), value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_after_the_last_reading_count() {
        let seen = TcpObservations { received: vec![(1.0, 700), (2.01, 200)], ..TcpObservations::default() };
        let mut delivered = whole(Some(&seen), 1000);
        assert_eq!(delivered, [(1.0, 700), (2.01, 300)]);
        within(&mut delivered, 2.0);
        assert_eq!(delivered, [(1.0, 700), (2.0, 300)]);
        assert_eq!(whole(Some(&seen), 800), seen.received, "headers count, too");
        assert!(whole(None, 5).is_empty());
    }
}
