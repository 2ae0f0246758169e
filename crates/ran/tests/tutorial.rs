//! docs/add-an-algorithm.md works as written: each of its algorithms is added to a copy of its crate as one file and one
//! line, and the copy compiles and accepts the name. The tests named in docs/ran.md as evidence exist.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const EVIDENCE: &str = include_str!("../../../docs/ran.md");
const PAGE: &str = include_str!("../../../docs/add-an-algorithm.md");

/// An algorithm of the page.
struct Example {
    /// Its name, which is also that of its file.
    name: &'static str,
    /// Crate and folder of its file.
    krate: &'static str,
    folder: &'static str,
    /// File of the registry, and the line after which the list begins.
    registry: &'static str,
    section: &'static str,
    /// A constant expression that is true once the registry has the name.
    known: &'static str,
}

const EXAMPLES: [Example; 4] = [
    Example {
        name: "longest_queue",
        krate: "ran",
        folder: "sched",
        registry: "sched/mod.rs",
        section: "\nregistry! {\n",
        known: "matches!(super::InterAlgorithm::LongestQueue.name().as_bytes(), b\"longest_queue\")",
    },
    Example {
        name: "last_grant",
        krate: "ran",
        folder: "queue",
        registry: "queue/mod.rs",
        section: "\n    limiters {\n        vanilla",
        known: "matches!(super::Algorithm::LastGrant.name().as_bytes(), b\"last_grant\")",
    },
    Example {
        name: "least_loss",
        krate: "steer",
        folder: "",
        registry: "lib.rs",
        section: "\nregistry! {\n",
        known: "matches!(super::ModeName::LeastLoss.name().as_bytes(), b\"least-loss\")",
    },
    Example {
        name: "half_rate",
        krate: "cc",
        folder: "",
        registry: "lib.rs",
        section: "\nregistry! {\n",
        known: "matches!(super::Algorithm::HalfRate.name().as_bytes(), b\"half_rate\")",
    },
];

/// The page's code that contains `what`: from the start of its block to its test, or to the end of the block.
fn block(what: &str) -> &'static str {
    let at = PAGE.find(what).unwrap_or_else(|| panic!("the page has no {what}"));
    let start = PAGE[..at].rfind("```").expect("a block begins");
    let body = PAGE[start..].split_once('\n').expect("a line").1;
    let end = body.find("// Its test.").unwrap_or(usize::MAX).min(body.find("```").expect("a block ends"));
    &body[..end]
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Copies a file or a folder; unchanged files keep their time, so that they are not compiled again.
fn copy(from: &Path, to: &Path) {
    if from.is_dir() {
        fs::create_dir_all(to).unwrap();
        for entry in fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            copy(&entry.path(), &to.join(entry.file_name()));
        }
    } else {
        write(to, &fs::read_to_string(from).unwrap());
    }
}

fn write(to: &Path, text: &str) {
    if fs::read_to_string(to).ok().as_deref() != Some(text) {
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::write(to, text).unwrap();
    }
}

#[test]
fn each_algorithm_of_the_tutorial_is_a_file_and_a_line() {
    let copies = Path::new(env!("CARGO_TARGET_TMPDIR")).join("tutorial");
    let _ = fs::remove_dir_all(copies.join("crates"));
    // The crates needed by the three; `link` is only used by their tests, which are not compiled.
    for krate in ["wire", "element", "rules", "link", "ran", "steer", "cc"] {
        let folder = root().join("crates").join(krate);
        let to = copies.join("crates").join(krate);
        copy(&folder.join("src"), &to.join("src"));
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        write(&to.join("Cargo.toml"), manifest.split("\n[[bench]]").next().unwrap());
    }
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let (before, rest) = manifest.split_once("members = [").unwrap();
    let after = rest.split_once("]\n").unwrap().1;
    write(
        &copies.join("Cargo.toml"),
        &format!("{before}members = [\"crates/ran\", \"crates/steer\", \"crates/cc\"]\n{after}"),
    );
    copy(&root().join("Cargo.lock"), &copies.join("Cargo.lock"));

    for Example { name, krate, folder, registry, section, known } in EXAMPLES {
        let source = copies.join("crates").join(krate).join("src");
        let code = block(&format!("pub struct {}", type_of(name)))
            .replace(&format!("anabranch_{krate}::"), "crate::");
        let code = format!("//! {name}: of the tutorial.\n{code}\nconst _: () = assert!({known});\n");
        write(&source.join(folder).join(format!("{name}.rs")), &code);
        let line = block(&format!("\" {}({name}::", type_of(name)));
        assert_eq!(line.lines().count(), 1, "{name}: {line}");
        let file = source.join(registry);
        let text = fs::read_to_string(&file).unwrap();
        let at = text.rfind(section).unwrap_or_else(|| panic!("{registry} has no {section}")) + 1;
        // Not at the start, because the first is the default.
        let end = at + text[at..].find(";\n").unwrap() + 2;
        write(&file, &format!("{}{line}{}", &text[..end], &text[end..]));
    }

    let check = Command::new(env!("CARGO"))
        .args(["check", "--quiet", "--offline", "--workspace"])
        .current_dir(&copies)
        .env("CARGO_TARGET_DIR", copies.join("target"))
        .output()
        .unwrap();
    assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stderr));
}

fn type_of(name: &str) -> String {
    name.split('_').map(|word| word[..1].to_uppercase() + &word[1..]).collect()
}

/// Outside its own file and tests, the product names an algorithm in exactly one line: in the registry.
#[test]
fn one_line_names_an_algorithm() {
    for (file, words) in [
        ("crates/ran/src/sched/static_priority.rs", ["static_priority", "StaticPriority"]),
        ("crates/ran/src/queue/drql.rs", ["drql", "Drql"]),
        ("crates/ran/src/queue/l4s.rs", ["l4s", "L4s"]),
        ("crates/cc/src/reno.rs", ["Reno", "Reno"]),
    ] {
        let mut found = Vec::new();
        let mut folders: Vec<PathBuf> = fs::read_dir(root().join("crates"))
            .unwrap()
            .map(|krate| krate.unwrap().path().join("src"))
            .collect();
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                let name = path.file_name().unwrap().to_string_lossy().into_owned();
                if path.is_dir() && name != "tests" {
                    folders.push(path);
                } else if name.ends_with(".rs") && name != "tests.rs" && path != root().join(file) {
                    let text = fs::read_to_string(&path).unwrap();
                    found.extend(lines_with(&text, &words).into_iter().map(|line| (path.clone(), line)));
                }
            }
        }
        assert_eq!(found.len(), 1, "{file}: {found:#?}");
    }
}

/// Lines of code that contain one of the words, without comments and tests.
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
            let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{file}: {e}"));
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
