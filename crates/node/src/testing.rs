//! Helpers shared by the tests: private network namespaces and checks of documents. Where namespaces are not
//! permitted, a test prints that it is skipped and does nothing; in CI that is a failure.

use nix::sched::{CloneFlags, unshare};
use std::collections::BTreeSet;
use std::process::Command;
use utoipa_axum::router::OpenApiRouter;

/// Runs `body` on a thread in a network namespace of its own and returns its result; `None` where namespaces
/// are not permitted.
pub fn in_private_network<T: Send>(body: impl FnOnce() -> T + Send) -> Option<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            if let Err(error) = unshare(CloneFlags::CLONE_NEWNET) {
                assert!(
                    std::env::var_os("CI").is_none(),
                    "CI must be able to make a network namespace: {error}"
                );
                eprintln!("skipped: needs root to make a network namespace ({error})");
                return None;
            }
            sh("ip link set lo up");
            Some(body())
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// The OpenAPI description of `routes` as it is committed in openapi/.
pub fn description<S: Clone + Send + Sync + 'static>(routes: OpenApiRouter<S>) -> String {
    let mut text = routes.into_openapi().to_pretty_json().unwrap_or_default();
    text.push('\n');
    text
}

/// Checks that `openapi/{file}` equals this description; with ANABRANCH_WRITE_OPENAPI set, writes the file
/// first.
#[track_caller]
pub fn is_committed(file: &str, description: &str) {
    let path = format!("{}/../../openapi/{file}", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("ANABRANCH_WRITE_OPENAPI").is_some() {
        std::fs::create_dir_all(std::path::Path::new(&path).parent().unwrap()).unwrap();
        std::fs::write(&path, description).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == description,
        "openapi/{file} is out of date: ANABRANCH_WRITE_OPENAPI=1 cargo test -p anabranch-node description"
    );
}

/// Runs shell commands in the network namespace of the calling thread and returns their output. Panics if
/// they fail.
#[track_caller]
pub fn sh(commands: &str) -> String {
    let output = Command::new("sh").args(["-ec", commands]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{commands}\n{text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

/// Splits a command line into words as a shell does; single quotes are supported.
pub fn words(line: &str) -> Vec<String> {
    let (mut words, mut quoted, mut open) = (vec![String::new()], false, false);
    for c in line.chars() {
        match c {
            '\'' => (quoted, open) = (!quoted, true),
            c if c.is_whitespace() && !quoted => {
                if open {
                    words.push(String::new());
                }
                open = false;
            }
            c => {
                open = true;
                if let Some(word) = words.last_mut() {
                    word.push(c);
                }
            }
        }
    }
    if !open {
        words.pop();
    }
    words
}

/// Every metric of an OpenMetrics text as the beginning of a row of a documented table: name without
/// `prefix`, type, labels.
pub fn metric_rows(text: &str, prefix: &str) -> BTreeSet<String> {
    let kinds: BTreeSet<(&str, &str)> =
        text.lines().filter_map(|l| l.strip_prefix("# TYPE ")?.split_once(' ')).collect();
    let row = |line: &str| {
        let name = line.split([' ', '{']).next().unwrap();
        let family = ["_total", "_sum", "_count", "_bucket"].iter().find_map(|end| name.strip_suffix(end));
        let family = family.unwrap_or(name);
        let kind = kinds.iter().find(|(name, _)| *name == family).unwrap_or_else(|| panic!("{line}")).1;
        let name = if kind == "histogram" { family } else { name };
        let labels = line.split(['{', '}']).nth(1).unwrap_or_default();
        // A label ends at the quote that closes its value.
        let labels: Vec<String> = labels
            .split("\",")
            .filter_map(|l| Some(l.split_once('=')?.0))
            .filter(|label| *label != "le")
            .map(|label| format!("`{label}`"))
            .collect();
        let name = name.strip_prefix(prefix).unwrap();
        format!("| `{name}` | {kind} | {} |", labels.join(", ")).replace("|  |", "| |")
    };
    text.lines().filter(|l| !l.starts_with('#')).map(row).collect()
}

/// The number of rows of metrics on a page.
pub fn documented_metrics(page: &str) -> usize {
    let kinds = [" | gauge | ", " | counter | ", " | histogram | "];
    page.lines().filter(|line| kinds.iter().any(|kind| line.contains(kind))).count()
}
