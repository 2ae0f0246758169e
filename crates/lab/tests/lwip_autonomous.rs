//! How often an LWIP node that steers by itself is no worse than the better leg alone: drawn cells of the scenario `lwip/autonomous.toml`,
//! the same in every run. It is not always so, and these bounds are what was measured, to tell when it becomes worse: docs/lwip.md has the
//! cells that are far below. Those with 5 % loss on a leg are left out here, for too many of them are.

use anabranch_lab::backend::Quiet;
use anabranch_lab::runner;
use anabranch_lab::scenario::{self, Form};
use anabranch_lab::virtual_backend::VirtualBackend;
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use std::path::Path;

const CELLS: usize = 24;
/// Of the better leg alone: what all cells but [`BELOW`] of them have at least, and what all have (measured: 0.79, then 1.00).
const LEAST: f64 = 0.95;
const BELOW: usize = 1;
const WORST: f64 = 0.75;
/// The same of each half of the cells with other traffic (measured: 0.76, 0.78 and 0.97 of an upload).
const SHARED: usize = 12;
const SHARED_BELOW: usize = 2;
const SHARED_WORST: f64 = 0.7;

struct Draw(ChaCha8Rng);

impl Draw {
    fn part(&mut self) -> f64 {
        f64::from(self.0.next_u32()) / f64::from(u32::MAX)
    }

    /// By logarithm, of two digits or so.
    fn between(&mut self, least: f64, most: f64) -> f64 {
        let drawn = least * (most / least).powf(self.part());
        if drawn < 10.0 { (drawn * 10.0).round() / 10.0 } else { drawn.round() }
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.0.next_u32() as usize % of.len()]
    }
}

/// A cell as changes of the scenario.
fn cell(draw: &mut Draw) -> Vec<String> {
    let mut sets = Vec::new();
    let loss = draw.one(&[0.0, 0.0, 0.0, 0.5]);
    let lossy = draw.one(&["lte", "wifi"]);
    for link in ["lte", "wifi"] {
        let (mbps, rtt_ms) = (draw.between(1.0, 300.0), draw.between(3.0, 200.0));
        let queue = ((mbps * rtt_ms * 1000.0 / 8.0 / 1500.0) as u32).max(30);
        sets.push(format!("link.{link}.down.rate_mbps={mbps}"));
        sets.push(format!("link.{link}.down.queue_packets={queue}"));
        sets.push(format!("link.{link}.up.rate_mbps={}", mbps.max(10.0)));
        for way in ["down", "up"] {
            sets.push(format!("link.{link}.{way}.delay_ms={}", rtt_ms / 2.0));
        }
        if loss > 0.0 && link == lossy {
            sets.push(format!("link.{link}.down.loss={{ model = \"bernoulli\", percent = {loss} }}"));
        }
    }
    sets.push(format!("flow.file.congestion_control=\"{}\"", draw.one(&["cubic", "bbr", "reno"])));
    let flows = draw.one(&[1, 1, 1, 4, 16]);
    if flows > 1 {
        let sum: Vec<_> = (1..=flows).map(|n| format!("mean(flow.file-{n}.goodput_mbps, 6, 15)")).collect();
        sets.push(format!("flow.file.count={flows}"));
        sets.push(format!("metric.goodput_mbps=\"{}\"", sum.join(" + ")));
    } else {
        sets.push("metric.goodput_mbps=\"mean(flow.file.goodput_mbps, 6, 15)\"".into());
    }
    sets.push("duration_s=15".into());
    sets
}

/// Runs the scenario with these changes: the goodput by LTE alone, by Wi-Fi alone, and of `autonomous`.
fn goodputs(sets: &[String]) -> [f64; 3] {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/lwip/autonomous.toml");
    let mut scenario =
        scenario::load(&path, sets, Form::Full).unwrap_or_else(|problems| panic!("{problems}"));
    scenario.claims.clear();
    scenario.cases.retain(|case| case.variant.as_ref().is_some_and(|name| name.starts_with("even-")));
    assert_eq!(scenario.cases.len(), 3);
    let done = runner::run(&scenario, &VirtualBackend, 1, 1, &Quiet)
        .unwrap_or_else(|error| panic!("{sets:?}: {error:#}"));
    ["lte", "wifi", "autonomous"].map(|mode| done.metrics[&format!("even-{mode}.metric.goodput_mbps")])
}

#[test]
fn it_is_no_worse_than_the_better_leg_alone() {
    let mut draw = Draw(ChaCha8Rng::seed_from_u64(28));
    let mut parts = Vec::new();
    for _ in 0..CELLS {
        let sets = cell(&mut draw);
        let [lte, wifi, both] = goodputs(&sets);
        parts.push((both / lte.max(wifi), sets));
    }
    parts.sort_by(|a, b| a.0.total_cmp(&b.0));
    let worst: Vec<_> = parts.iter().take(BELOW + 2).collect();
    assert!(parts[0].0 >= WORST && parts[BELOW].0 >= LEAST, "{worst:.2?}");
    let mean = parts.iter().map(|(part, _)| part).sum::<f64>() / CELLS as f64;
    assert!(mean > 1.1, "splitting pays where it can: {mean:.2}");
}

/// A cell in which a UE sends, or gets datagrams by LTE, before its download begins. LTE carries more than Wi-Fi, and less upwards.
fn shared_cell(draw: &mut Draw, is_upload: bool) -> Vec<String> {
    let (wifi_mbps, times, rtts_ms) = (
        draw.between(2.0, 40.0),
        draw.between(2.0, 8.0),
        [draw.between(10.0, 80.0), draw.between(4.0, 60.0)],
    );
    let lte_mbps = wifi_mbps * times;
    let mut sets = vec!["duration_s=15".into(), "flow.file.start_s=4".into()];
    for (link, mbps, up_mbps, rtt_ms) in [
        ("lte", lte_mbps, lte_mbps / draw.one(&[2.0, 5.0, 10.0]), rtts_ms[0]),
        ("wifi", wifi_mbps, wifi_mbps, rtts_ms[1]),
    ] {
        for (way, mbps) in [("down", mbps), ("up", up_mbps.max(1.0))] {
            let queue = ((mbps * rtt_ms * 1000.0 / 8.0 / 1500.0) as u32).max(30);
            sets.push(format!("link.{link}.{way}.rate_mbps={mbps}"));
            sets.push(format!("link.{link}.{way}.queue_packets={queue}"));
            sets.push(format!("link.{link}.{way}.delay_ms={}", rtt_ms / 2.0));
        }
    }
    let beside = if is_upload { "upload" } else { "stream" };
    sets.push(format!("flow.{beside}.enabled=true"));
    sets.push(format!("flow.{beside}.start_s=0.3"));
    sets.push(format!("flow.stream.rate_mbps={}", lte_mbps * draw.one(&[0.2, 0.5, 0.8])));
    sets.push(format!("flow.file.congestion_control=\"{}\"", draw.one(&["cubic", "bbr", "reno"])));
    sets.push("metric.goodput_mbps=\"mean(flow.file.goodput_mbps, 6, 15)\"".into());
    sets
}

#[test]
fn it_is_no_worse_where_a_ue_sends_or_gets_datagrams() {
    let mut draw = Draw(ChaCha8Rng::seed_from_u64(29));
    for is_upload in [true, false] {
        let mut parts = Vec::new();
        for _ in 0..SHARED {
            let sets = shared_cell(&mut draw, is_upload);
            let [lte, wifi, both] = goodputs(&sets);
            parts.push((both / lte.max(wifi), [lte, wifi], sets));
        }
        parts.sort_by(|a, b| a.0.total_cmp(&b.0));
        let worst: Vec<_> = parts.iter().take(SHARED_BELOW + 2).collect();
        assert!(parts[0].0 >= SHARED_WORST && parts[SHARED_BELOW].0 >= LEAST, "{worst:.2?}");
    }
}
