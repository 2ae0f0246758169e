//! The same seed gives the same bytes: every scenario of the papers that needs no data of others, and the short
//! ones of our own, run in virtual time and compared with the snapshots in `tests/snapshots`; most are run twice.
//!
//! After a change that is meant to move figures: `ANABRANCH_WRITE_SNAPSHOTS=1 cargo test -p anabranch-lab
//! --test snapshots`, then read the difference before committing it.

use anabranch_lab::backend::Quiet;
use anabranch_lab::runner;
use anabranch_lab::scenario::{self, Form};
use anabranch_lab::virtual_backend::VirtualBackend;
use std::fmt::Write;
use std::path::{Path, PathBuf};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Every metric on a line of its own, with nine significant digits: enough to see any change, few enough to
/// survive another mathematical library.
fn run(file: &str, sets: &[&str]) -> String {
    run_some(file, sets, &[])
}

/// Only these variants; all if none is named.
fn run_some(file: &str, sets: &[&str], variants: &[&str]) -> String {
    let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
    let path = repository().join("scenarios").join(file);
    let mut scenario =
        scenario::load(&path, &sets, Form::Full).unwrap_or_else(|problems| panic!("{problems}"));
    if !variants.is_empty() {
        // Claims speak of variants that are not run.
        scenario.claims.clear();
        scenario.cases.retain(|case| case.variant.as_deref().is_some_and(|name| variants.contains(&name)));
        assert_eq!(scenario.cases.len(), variants.len(), "{file}: variants renamed?");
    }
    let done = runner::run(&scenario, &VirtualBackend, scenario.seed, 1, &Quiet)
        .unwrap_or_else(|error| panic!("{error:#}"));
    let mut text = String::new();
    for (name, value) in &done.metrics {
        writeln!(text, "{name} {}", format!("{value:.8e}").parse::<f64>().unwrap_or(f64::NAN)).unwrap();
    }
    for (name, series) in &done.series {
        let sum: f64 = series.points.iter().map(|(x, y)| x * y).sum();
        let sum = format!("{sum:.8e}").parse::<f64>().unwrap_or(f64::NAN);
        writeln!(text, "series {name} {} points, checksum {sum}", series.points.len()).unwrap();
    }
    text
}

fn check(file: &str, sets: &[&str]) {
    let first = run(file, sets);
    assert_eq!(first, run(file, sets), "{file}: two runs with one seed differ");
    compare(file, &first);
}

/// Some variants of a large scenario, run once.
fn check_some(file: &str, sets: &[&str], variants: &[&str]) {
    compare(file, &run_some(file, sets, variants));
}

fn compare(file: &str, first: &str) {
    let name = file.rsplit('/').next().unwrap_or(file).replace(".toml", ".txt");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots").join(name);
    if std::env::var_os("ANABRANCH_WRITE_SNAPSHOTS").is_some() {
        std::fs::write(&path, first).unwrap();
        return;
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    let differs: Vec<String> = first
        .lines()
        .filter(|line| !kept.lines().any(|old| old == *line))
        .take(8)
        .map(|new| {
            let name = new.rsplit_once(' ').map_or(new, |(name, _)| name);
            let old = kept.lines().find(|old| old.starts_with(name)).unwrap_or("(not there)");
            format!("  was {old}\n  is  {new}")
        })
        .collect();
    assert!(
        first == kept,
        "{file} gives other figures than {}; if that is meant, write them anew \
         (ANABRANCH_WRITE_SNAPSHOTS=1) and read the difference:\n{}",
        path.display(),
        differs.join("\n")
    );
}

#[test]
fn fig11_handover() {
    check("papers/junction/fig11-handover.toml", &[]);
}

#[test]
fn fig12_aggregation() {
    check("papers/junction/fig12-aggregation.toml", &["duration_s=10"]);
}

#[test]
fn fig13_smallest_delay() {
    check("papers/junction/fig13-smallest-delay.toml", &[]);
}

#[test]
fn table4_reordering() {
    check("papers/junction/table4-reordering.toml", &["runs=5"]);
}

#[test]
fn table5_memory() {
    check("papers/junction/table5-memory.toml", &[]);
}

#[test]
fn fig6_session() {
    check("papers/slice/fig6-session.toml", &["duration_s=6"]);
}

#[test]
fn competing_flows() {
    check("papers/slice/competing-flows.toml", &["duration_s=8"]);
}

#[test]
fn priority_overflow() {
    check("atsss/priority-overflow.toml", &[]);
}

#[test]
fn redundant() {
    check("atsss/redundant.toml", &[]);
}

#[test]
fn no_cross_flow_stall() {
    check("atsss/no-cross-flow-stall.toml", &[]);
}

#[test]
fn another_seed_gives_other_figures() {
    let one = run("atsss/redundant.toml", &["seed=1"]);
    assert_ne!(one, run("atsss/redundant.toml", &["seed=2"]));
}

#[test]
fn rlc_table2() {
    // A shorter one: ten variants.
    check("papers/rlc/table2-mcs28.toml", &["duration_s=9"]);
}

#[test]
fn rlc_table6() {
    check("papers/rlc/table6-slices.toml", &["duration_s=7"]);
}

// Of the other figures of RLC some variants, and shorter: whoever draws them runs them whole.

#[test]
fn rlc_fig4() {
    check("papers/rlc/fig4-example.toml", &["duration_s=2"]);
}

#[test]
fn rlc_fig8() {
    let variants = ["vanilla", "codel", "bbr", "e5g_bdp", "dynrlc", "drql", "jit"];
    check_some("papers/rlc/fig8-irtt.toml", &["duration_s=7"], &variants);
}

#[test]
fn rlc_fig11() {
    let variants = ["e5g_bdp-8", "dynrlc-8", "drql-8", "jit-8"];
    check_some("papers/rlc/fig11-voip-count.toml", &["duration_s=7"], &variants);
}

#[test]
fn rlc_fig19() {
    let variants = ["fp-8", "eqp-8", "limit-25", "eqp-8-jit", "gps-8"];
    check_some("papers/rlc/fig19-21-eqp-load.toml", &["duration_s=7"], &variants);
}

#[test]
fn rlc_fig22() {
    check_some("papers/rlc/fig22-moving-slices.toml", &["duration_s=8"], &["fp", "eqp", "gps"]);
}

#[test]
fn rlc_table2_kernel() {
    let variants = ["vanilla", "codel", "e5g_bdp", "jit"];
    check_some("papers/rlc/table2-kernel.toml", &["duration_s=4", "measure_from_s=2"], &variants);
}

#[test]
fn rlc_table3() {
    let variants = ["train-bbr", "train-e5g_bdp", "pedestrian-codel", "pedestrian-jit"];
    check_some("papers/rlc/table3-5-moving.toml", &["duration_s=8"], &variants);
}

#[test]
fn rlc_table6_irtt() {
    check_some("papers/rlc/table6-irtt.toml", &["duration_s=7"], &["fp-25-10", "eqp-25-10", "eqp-50-70"]);
}

#[test]
fn lwip_fig2() {
    let variants = ["rtt100-classic", "rtt100-no-sack", "rtt100-adaptive", "rtt100-rack"];
    check_some("papers/lwip/fig2-3-cwnd.toml", &["runs=1", "flow.file.bytes=4000000"], &variants);
}

#[test]
fn lwip_fig9() {
    let variants = ["lte50-h0", "lte50-h50", "lte20-h50", "printed-h50", "printed-no-sack-h50", "rack-h50"];
    check_some("papers/lwip/fig9-11-hold-rtt100.toml", &["runs=1", "flow.file.bytes=4000000"], &variants);
}

#[test]
fn lwip_fig12() {
    let variants = ["steady-16-lte", "steady-16-wifi", "fluct-16-native", "fluct-16-dida"];
    check_some("papers/lwip/fig12-download-time.toml", &["runs=1"], &variants);
}

#[test]
fn lwip_dida_or_reorder() {
    let variants = ["classic-cubic-dida", "classic-reno-ue", "rack-bbr-both"];
    check_some("lwip/dida-or-reorder.toml", &["runs=1", "flow.file.bytes=4000000"], &variants);
}
