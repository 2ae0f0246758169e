//! The example of docs/lwip-operation.md, run as it stands: as root in a sandbox with /run and /tmp of its own.

use super::net::ANABRANCH;
use std::path::Path;
use std::process::{Command, Stdio};

const PAGE: &str = include_str!("../../../../docs/lwip-operation.md");

/// The lines of the first block with this fence after `heading`.
fn block<'a>(heading: &str, fence: &str) -> &'a str {
    let (_, rest) = PAGE.split_once(&format!("\n{heading}\n")).expect("the heading");
    let (_, rest) = rest.split_once(&format!("\n```{fence}\n")).expect("the block");
    rest.split_once("\n```\n").expect("its end").0
}

/// A line without what was measured.
fn bare(line: &str) -> String {
    let words = line.split_whitespace().filter(|word| !word.starts_with(|c: char| c.is_ascii_digit()));
    words.filter(|word| !matches!(*word, "B" | "KiB" | "MiB" | "GiB" | "%")).collect::<Vec<_>>().join(" ")
}

#[test]
fn the_example_of_the_page_does_what_the_page_says() {
    let private = "mount -t tmpfs tmpfs /run && mount -t tmpfs tmpfs /tmp";
    let sandbox = ["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-c"];
    let tried = Command::new("unshare").args(sandbox).arg(private).stderr(Stdio::null()).status();
    if !tried.is_ok_and(|status| status.success()) {
        assert!(std::env::var_os("CI").is_none(), "CI must be able to make namespaces");
        eprintln!("skipped: docs/lwip-operation.md needs root and namespaces");
        return;
    }
    let script = format!(
        "{private}\nset -e\n{}\nkill -INT %3\nwait %3\nfor n in ran server; do ip -n $n -br link; done",
        block("## Try it", "sh")
    );
    let programs = Path::new(ANABRANCH).parent().unwrap().display().to_string();
    let path = format!("{programs}:{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let output = Command::new("unshare").args(sandbox).arg(&script).env("PATH", path).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let all = format!("{text}\n{}", String::from_utf8_lossy(&output.stderr));
    println!("{all}");
    assert!(output.status.success(), "{all}");
    let printed: Vec<String> = text.lines().map(bare).collect();
    let shown =
        block("## Try it", "text").lines().filter(|line| !line.starts_with("holds ") && *line != "...");
    for line in shown.map(bare) {
        assert!(printed.contains(&line), "the page shows a line with {line:?}; there is\n{all}");
    }
    // ACKs were held, and most of them for nothing but their order.
    let held = text.lines().filter_map(|line| line.strip_prefix("held ")).next_back().unwrap_or_default();
    let numbers: Vec<u64> =
        held.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect();
    assert!(numbers[0] > 10 && numbers[1] > numbers[2], "{held}");
    // The node's interfaces are gone.
    assert!(!text.lines().any(|line| line.starts_with("ran0 ") || line.starts_with("n3 ")), "{all}");
}
