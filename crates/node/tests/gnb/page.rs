//! The example of docs/ran.md, executed as written: as root in a sandbox with its own /run and /tmp.

use super::example;

const PAGE: &str = include_str!("../../../../docs/ran.md");

/// Mean round-trip times of the runs of `ping`, milliseconds.
fn means(output: &str) -> Vec<f64> {
    let lines = output.lines().filter_map(|line| line.strip_prefix("rtt min/avg/max/mdev = "));
    lines.map(|line| line.split('/').nth(1).unwrap().parse().unwrap()).collect()
}

/// The lines that do not depend on measurements.
fn names(text: &str) -> Vec<String> {
    let bare = |line: &str| {
        let words = line.split_whitespace().filter(|word| !word.contains(|c: char| c.is_ascii_digit()));
        words.collect::<Vec<_>>().join(" ")
    };
    text.lines().map(bare).collect()
}

#[test]
fn the_example_of_the_page_has_the_documented_results() {
    let Some((text, all)) = example::run(
        PAGE,
        "docs/ran.md",
        "kill -INT %1\nwait %1\nfor n in phone net; do ip -n $n -br link; done",
    ) else {
        return;
    };
    let expected = example::block(PAGE, "text");
    let [before, after] = means(&text)[..] else { panic!("two runs of ping: {all}") };
    // A generous bound, because other tests use the same cores.
    assert!(before > 100.0 && after < before / 4.0, "{before} ms, then {after} ms");
    let [shown_before, shown_after] = means(expected)[..] else { panic!("the page has two: {expected}") };
    assert!(shown_before > 100.0 && shown_after < shown_before / 4.0, "the page: {expected}");
    let printed = names(&text);
    let shown = names(expected).into_iter().filter(|line| *line != "..." && !line.starts_with("rtt "));
    for line in shown {
        assert!(printed.contains(&line), "the page shows a line with {line:?}; there is\n{all}");
    }
    // Only loopback is left in both namespaces.
    let left: Vec<&str> = text.lines().rev().take(2).collect();
    assert!(left.iter().all(|line| line.starts_with("lo ")), "{all}");
}
