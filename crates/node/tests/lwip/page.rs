//! The example of docs/lwip-operation.md, executed as written: as root in a sandbox with its own /run and
//! /tmp.

use super::example;

const PAGE: &str = include_str!("../../../../docs/lwip-operation.md");

/// A line without measured values.
fn bare(line: &str) -> String {
    let words = line.split_whitespace().filter(|word| !word.starts_with(|c: char| c.is_ascii_digit()));
    words.filter(|word| !matches!(*word, "B" | "KiB" | "MiB" | "GiB" | "%")).collect::<Vec<_>>().join(" ")
}

#[test]
fn the_example_of_the_page_has_the_documented_results() {
    let Some((text, all)) = example::run(
        PAGE,
        "docs/lwip-operation.md",
        "kill -INT %3\nwait %3\nfor n in ran server; do ip -n $n -br link; done",
    ) else {
        return;
    };
    let printed: Vec<String> = text.lines().map(bare).collect();
    let shown =
        example::block(PAGE, "text").lines().filter(|line| !line.starts_with("holds ") && *line != "...");
    for line in shown.map(bare) {
        assert!(printed.contains(&line), "the page shows a line with {line:?}; there is\n{all}");
    }
    // ACKs were held, most of them only because of their order.
    let held = text.lines().filter_map(|line| line.strip_prefix("held ")).next_back().unwrap_or_default();
    let numbers: Vec<u64> =
        held.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect();
    assert!(numbers[0] > 10 && numbers[1] > numbers[2], "{held}");
    // The node's interfaces have been removed.
    assert!(!text.lines().any(|line| line.starts_with("ran0 ") || line.starts_with("n3 ")), "{all}");
}
