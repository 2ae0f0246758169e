//! Fault simulation: some hundred seeds, the plans that failed once, and the simulator itself. docs/testing.md.

use anabranch_lab::chaos::many::many;
use anabranch_lab::chaos::plan::Plan;
use anabranch_lab::chaos::run;
use std::path::Path;

const THREADS: usize = 2;

#[test]
fn some_hundred_seeds_hold_and_every_fault_and_check_occurs() {
    let summary = many(0..300, 2_000, THREADS, |_, _| {});
    assert!(summary.failed.is_empty(), "{:#?}", summary.failed);
    assert_eq!(summary.without_effect(), [""; 0], "{}", summary.text());
    assert_eq!(summary.unchecked(), [""; 0], "{}", summary.text());
}

#[test]
fn plans_that_failed_once_hold() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/chaos");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|end| end == "toml"));
    files.sort();
    assert!(!files.is_empty());
    for file in files {
        let plan = Plan::from_toml(&std::fs::read_to_string(&file).unwrap()).unwrap();
        let outcome = run(&plan);
        assert_eq!(outcome.violation, None, "{}", file.display());
    }
}

#[test]
fn a_plan_gives_the_same_bytes_each_time_and_from_its_file() {
    for seed in 0..10 {
        let plan = Plan::of(seed, 1_000);
        let read = Plan::from_toml(&plan.to_toml().unwrap()).unwrap();
        assert_eq!(read, plan, "seed {seed}");
        assert_eq!(run(&plan), run(&read), "seed {seed}");
        let other = run(&Plan { seed: seed + 1_000, ..plan.clone() });
        assert_ne!(run(&plan).tally.digest, other.tally.digest, "seed {seed}");
    }
}

#[test]
fn a_plan_that_cannot_be_is_refused_with_the_reason() {
    let good = Plan::of(1, 100).to_toml().unwrap();
    let says = |text: &str| Plan::from_toml(text).unwrap_err();
    assert!(says(&good.replace("version = 1", "version = 9")).contains("version 9"));
    assert!(says(&good.replace("upfs = ", "upfs = 7 # ")).contains("write 1 or 2"));
    assert!(says("x = 1").contains("unknown field"));
}
