//! Rules that the compiler does not enforce: the permitted dependencies between crates (drawing in ARCHITECTURE.md), no IO in
//! the algorithm crates, and unsafe code only in `kern`. clippy.toml bans clocks.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Crates without IO, clocks and randomness of their own.
const ALGORITHMS: [&str; 11] =
    ["wire", "element", "rules", "steer", "atsss", "ran", "lwip", "cc", "slice", "selection", "link"];

/// Crates on which the lab may depend. It starts `anabranch` as a process, and needs no root for virtual time; it uses `kern`
/// only for socket options.
const LAB: &[&str] = &[
    "wire",
    "element",
    "rules",
    "steer",
    "atsss",
    "ran",
    "lwip",
    "cc",
    "slice",
    "selection",
    "link",
    "kern",
];

/// Crates on which `anabranch` may depend.
const NODE: &[&str] = &[
    "wire",
    "element",
    "rules",
    "steer",
    "atsss",
    "ran",
    "lwip",
    "cc",
    "slice",
    "selection",
    "link",
    "kern",
    "engine",
];

/// The crates of the workspace on which each crate may depend.
const CRATES: [(&str, &[&str]); 16] = [
    ("wire", &[]),
    ("element", &["wire"]),
    ("rules", &[]),
    ("steer", &["element", "rules", "wire"]),
    ("atsss", &["element", "rules", "steer", "wire"]),
    ("ran", &["element", "rules", "wire"]),
    ("lwip", &["element", "steer", "wire"]),
    ("cc", &["element", "wire"]),
    ("slice", &["steer"]),
    ("selection", &["element", "rules"]),
    ("link", &["element", "wire"]),
    ("kern", &["cc", "selection"]),
    ("engine", &["atsss", "element", "kern", "link", "lwip", "ran", "wire"]),
    ("node", NODE),
    ("lab", LAB),
    // A library for other programs.
    ("taps", &["element", "selection", "kern", "wire"]),
];

/// Additional crates that the tests, benchmarks and examples of a crate may use.
const FOR_TESTS: [(&str, &[&str]); 5] = [
    ("atsss", &["link"]),
    ("lwip", &["atsss"]),
    ("cc", &["ran", "steer", "link"]),
    ("kern", &["wire"]),
    // For the test that the library works with `anabranch ue`.
    ("node", &["taps"]),
];

/// Modules of the standard library that require an operating system.
const IO: [&str; 9] = [
    "std::env",
    "std::fs",
    "std::io",
    "std::os",
    "std::process",
    "std::thread",
    "TcpStream",
    "UdpSocket",
    "UnixStream",
];

fn crates_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("wire lies in crates/").to_path_buf()
}

fn sources(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![dir.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display())) {
            let path = entry.expect("a folder can be read").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Identifiers and punctuation with line numbers, without comments, strings and characters.
fn tokens(source: &str) -> Vec<(usize, String)> {
    let text: Vec<char> = source.chars().collect();
    let (mut tokens, mut line, mut i) = (Vec::new(), 1, 0);
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    while let Some(&c) = text.get(i) {
        let next = text.get(i + 1).copied().unwrap_or(' ');
        if c == '\n' {
            line += 1;
            i += 1;
        } else if c == '/' && next == '/' {
            while text.get(i).is_some_and(|c| *c != '\n') {
                i += 1;
            }
        } else if c == '/' && next == '*' {
            while i < text.len() && !(text[i] == '*' && text.get(i + 1) == Some(&'/')) {
                line += usize::from(text[i] == '\n');
                i += 1;
            }
            i += 2;
        } else if c == 'r'
            && (next == '"' || (next == '#' && text.get(i + 2).is_some_and(|c| "#\"".contains(*c))))
        {
            let hashes = text[i + 1..].iter().take_while(|c| **c == '#').count();
            i += hashes + 2;
            let closes = |at: usize| text[at] == '"' && text[at + 1..].iter().take(hashes).all(|c| *c == '#');
            while i < text.len() && !closes(i) {
                line += usize::from(text[i] == '\n');
                i += 1;
            }
            i += hashes + 1;
        } else if c == '"' {
            i += 1;
            while i < text.len() && text[i] != '"' {
                i += usize::from(text[i] == '\\');
                line += usize::from(text.get(i) == Some(&'\n'));
                i += 1;
            }
            i += 1;
        } else if c == '\'' && (next == '\\' || text.get(i + 2) == Some(&'\'')) {
            i += if next == '\\' { 3 } else { 2 };
            while text.get(i).is_some_and(|c| *c != '\'') {
                i += 1;
            }
            i += 1;
        } else if is_word(c) {
            let end = (i..text.len()).find(|j| !is_word(text[*j])).unwrap_or(text.len());
            tokens.push((line, text[i..end].iter().collect()));
            i = end;
        } else if c == ':' && next == ':' {
            tokens.push((line, "::".into()));
            i += 2;
        } else {
            if !c.is_whitespace() {
                tokens.push((line, c.into()));
            }
            i += 1;
        }
    }
    tokens
}

#[test]
fn crates_depend_one_way() {
    for (name, allowed) in CRATES {
        let manifest = read(&crates_dir().join(name).join("Cargo.toml"));
        let tested = FOR_TESTS.iter().find(|(n, _)| n == &name).map_or(&[][..], |(_, others)| others);
        let mut section = "";
        for line in manifest.lines().map(str::trim) {
            if line.starts_with('[') {
                section = line;
            }
            let Some(dependency) = line.strip_prefix("anabranch-") else { continue };
            let other = dependency.split(['.', ' ', '=']).next().unwrap_or_default();
            let test = section == "[dev-dependencies]" && tested.contains(&other);
            assert!(allowed.contains(&other) || test, "crates/{name} may not depend on {other}");
        }
    }
    let listed: BTreeSet<String> = CRATES.iter().map(|(name, _)| (*name).to_owned()).collect();
    let present: BTreeSet<String> = fs::read_dir(crates_dir())
        .expect("crates/ can be read")
        .map(|e| e.expect("crates/ can be read").file_name().to_string_lossy().into_owned())
        .collect();
    assert_eq!(listed, present, "every crate has a line in CRATES");
}

#[test]
fn only_kern_has_unsafe_code() {
    let root = read(&crates_dir().parent().expect("the workspace").join("Cargo.toml"));
    assert!(root.contains("unsafe_code = \"forbid\""), "the workspace forbids unsafe code");
    for (name, _) in CRATES {
        let manifest = read(&crates_dir().join(name).join("Cargo.toml"));
        let inherits = manifest.contains("[lints]\nworkspace = true");
        assert_eq!(inherits, name != "kern", "crates/{name} and the workspace lints");
    }
}

#[test]
fn algorithms_do_no_io() {
    let mut wrong = Vec::new();
    for name in ALGORITHMS {
        for file in sources(&crates_dir().join(name).join("src")) {
            let code: Vec<(usize, String)> = tokens(&read(&file));
            for window in code.windows(3) {
                let path = format!("{}::{}", window[0].1, window[2].1);
                let whole = window[1].1 == "::" && IO.contains(&path.as_str());
                if whole || IO.contains(&window[0].1.as_str()) {
                    wrong.push(format!("{}:{}: {}", file.display(), window[0].0, path));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "state machines do no IO:\n{}", wrong.join("\n"));
}

#[test]
fn words_in_comments_and_strings_are_ignored() {
    let source = r##"
        // std::fs::read
        const S: &str = "std::fs"; const R: &str = r#"std::"fs"#; const C: char = '"';
        fn f<'a>() { std::fs::read("x"); }
    "##;
    let code = tokens(source);
    let found: Vec<usize> = code.iter().filter(|(_, word)| word == "fs").map(|(line, _)| *line).collect();
    assert_eq!(found, [4]);
}
