//! docs/add-an-algorithm.md lists the lines that make an algorithm's name known: they are those of the source,
//! all of them and no others. docs/ran.md names the tests that show what holds: they are there.

use std::path::Path;

const EVIDENCE: &str = include_str!("../../../docs/ran.md");
const PAGE: &str = include_str!("../../../docs/add-an-algorithm.md");

/// The list behind `<!-- lines of NAME -->`: files with their lines.
fn listed(name: &str) -> Vec<(String, Vec<String>)> {
    let start = format!("<!-- lines of {name} -->\n```text\n");
    let list = PAGE.split_once(&start).unwrap_or_else(|| panic!("no list of {name}")).1;
    let mut files: Vec<(String, Vec<String>)> = Vec::new();
    for line in list.lines().take_while(|line| *line != "```") {
        match line.strip_prefix("    ") {
            Some(of_file) => files.last_mut().expect("a file first").1.push(of_file.to_owned()),
            None => files.push((line.to_owned(), Vec::new())),
        }
    }
    files
}

/// Lines of code, comments and tests left out, with one of the words.
fn lines_with(text: &str, words: &[&str]) -> Vec<String> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let has = |line: &str| line.split(|c| !is_part(c)).any(|word| words.contains(&word));
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    code.lines()
        .map(str::trim)
        .filter(|line| !line.starts_with("//") && has(line))
        .map(str::to_owned)
        .collect()
}

#[test]
fn the_tutorial_lists_every_line() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for (name, words) in [("gps_packing", ["gps_packing", "GpsPacking"]), ("drql", ["drql", "Drql"])] {
        let files = listed(name);
        assert_eq!(files.len(), 3, "{name}");
        for (file, lines) in files {
            let path = root.join(&file);
            let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{file}: {e}"));
            assert_eq!(lines, lines_with(&text, &words), "{file}: docs/add-an-algorithm.md is behind");
        }
    }
}

#[test]
fn the_evidence_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let rows = EVIDENCE.split_once("\n## Evidence\n").expect("the section").1;
    let mut tests = 0;
    for row in rows.lines().filter(|line| line.starts_with("| ") && line.contains(".rs`")) {
        let cell = row.trim_end_matches(" |").rsplit_once(" | ").expect("two columns").1;
        for named in cell.split(", ") {
            let words: Vec<&str> = named.split('`').filter(|word| !word.trim().is_empty()).collect();
            let file = words[0];
            let inside = !file.starts_with("crates/") && !file.starts_with("fuzz/");
            let path = root.join(if inside { "crates/ran/src" } else { "" }).join(file);
            let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{file}: {e}"));
            if let Some(test) = words.get(1) {
                assert!(text.contains(&format!("fn {test}(")), "{file} has no test {test}");
                tests += 1;
            } else {
                assert!(file.starts_with("fuzz/"), "{named}: name a test");
            }
        }
    }
    assert!(tests > 30, "{tests}");
}
