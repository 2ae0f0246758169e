//! Fault simulation: some hundred seeds, the plans that failed once, and the simulator itself. docs/testing.md.

use anabranch_lab::chaos::many::{Summary, many};
use anabranch_lab::chaos::tunnel::plan::Plan;
use anabranch_lab::chaos::{System, cell, lwip, run, slices, system};
use std::path::Path;

const THREADS: usize = 2;

fn hold_and_occur<S: System>(seeds: u64, steps: u64) {
    let summary: Summary<S> = many(0..seeds, steps, THREADS, |_, _| {});
    assert!(summary.failed.is_empty(), "{:#?}", summary.failed);
    assert_eq!(summary.without_effect(), [""; 0], "{}", summary.text());
    assert_eq!(summary.unchecked(), [""; 0], "{}", summary.text());
}

#[test]
fn some_hundred_seeds_hold_and_every_fault_and_check_occurs() {
    hold_and_occur::<Plan>(300, 2_000);
}

#[test]
fn so_do_those_of_the_slice_manager() {
    hold_and_occur::<slices::Plan>(200, 400);
}

#[test]
fn so_do_those_of_the_cell() {
    hold_and_occur::<cell::Plan>(200, 600);
}

#[test]
fn so_do_those_of_the_lwip_node() {
    hold_and_occur::<lwip::Plan>(200, 500);
}

#[test]
fn plans_that_failed_once_hold() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/chaos");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|end| end == "toml"));
    files.sort();
    assert!(!files.is_empty());
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let violation = match system::named(&text).unwrap().as_str() {
            slices::Plan::NAME => run(&slices::Plan::from_toml(&text).unwrap()).violation,
            cell::Plan::NAME => run(&cell::Plan::from_toml(&text).unwrap()).violation,
            lwip::Plan::NAME => run(&lwip::Plan::from_toml(&text).unwrap()).violation,
            _ => run(&Plan::from_toml(&text).unwrap()).violation,
        };
        assert_eq!(violation, None, "{}", file.display());
    }
}

fn same_each_time<S: System>() {
    for seed in 0..10 {
        let plan = S::of(seed, 1_000);
        let read = S::from_toml(&plan.to_toml().unwrap()).unwrap();
        assert_eq!(read, plan, "{} {seed}", S::NAME);
        assert_eq!(run(&plan), run(&read), "{} {seed}", S::NAME);
        let other = run(&S::of(seed + 1_000, 1_000));
        assert_ne!(run(&plan).tally.digest, other.tally.digest, "{} {seed}", S::NAME);
    }
}

#[test]
fn a_plan_gives_the_same_bytes_each_time_and_from_its_file() {
    same_each_time::<Plan>();
    same_each_time::<slices::Plan>();
    same_each_time::<cell::Plan>();
    same_each_time::<lwip::Plan>();
}

#[test]
fn a_plan_that_cannot_be_is_refused_with_the_reason() {
    let good = Plan::of(1, 100).to_toml().unwrap();
    let says = |text: &str| Plan::from_toml(text).unwrap_err();
    assert!(says(&good.replace("version = 1", "version = 9")).contains("version 9"));
    assert!(says(&good.replace("upfs = ", "upfs = 7 # ")).contains("write 1 or 2"));
    assert!(says("x = 1").contains("unknown field"));
    let other = slices::Plan::of(1, 100).to_toml().unwrap();
    assert!(
        slices::Plan::from_toml(&other.replace("instances = ", "instances = 3 # "))
            .unwrap_err()
            .contains("1 or 2")
    );
    assert!(
        slices::Plan::from_toml(&other.replace("\"slices\"", "\"cell\"")).unwrap_err().contains("system")
    );
}
