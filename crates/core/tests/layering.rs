//! Keeps the layers of ARCHITECTURE.md apart: crates depend one way, leaf modules of `core` do not know one
//! another, nothing in `wire` or `core` does IO, and only `kern` has unsafe code.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Which of our crates each crate may depend on, tests included.
const CRATES: [(&str, &[&str]); 6] = [
    ("wire", &[]),
    ("core", &["wire"]),
    ("kern", &["core", "wire"]),
    ("node", &["core", "kern", "wire"]),
    // The lab starts `anabranch` as a process, and needs no root for virtual time; of `kern` it takes options of sockets.
    ("lab", &["core", "kern", "wire"]),
    // A library for programs of others.
    ("taps", &["core", "kern", "wire"]),
];

/// Which further crates the tests and examples of a crate may use: nothing of ours is built on `taps`, but `node` shows that
/// it and `anabranch ue` fit together.
const FOR_TESTS: [(&str, &[&str]); 1] = [("node", &["taps"])];

/// The contract and plain policy types: what every module of `core` may import, and what imports none.
const CONTRACT: [&str; 6] = ["access::view", "element", "ioam", "packet", "policy", "time"];

/// Leaf modules of `core`: each imports `wire`, the contract, the plain items of `access`, and itself.
const LEAVES: [&str; 18] = [
    "access::coding",
    "access::crypto",
    "access::destinations",
    "access::dns",
    "access::marks",
    "access::mtu",
    "access::path",
    "access::reorder",
    "access::steer",
    "access::table",
    "access::tcp_lane",
    "cc",
    "collect",
    "lwip",
    "net",
    "ran",
    "slice",
    "taps",
];

/// Modules that compose leaves, and may import any of them.
const COMPOSERS: [&str; 12] = [
    "access::classify",
    "access::config_channel",
    "access::document",
    "access::drops",
    "access::fast",
    "access::fragment",
    "access::keyring",
    "access::memory",
    "access::session",
    "access::tunnel_element",
    "ue",
    "upf",
];

/// What needs an operating system, and so has no place in `wire` and `core`.
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
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("core lies in crates/").to_path_buf()
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

/// Identifiers and punctuation, with line numbers; comments, strings and characters left out.
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

/// Every path in a file of `core` that starts with `crate`, `super` or `self`, from the crate's root, groups
/// unfolded: `use super::{a, b::c}` in `x/y.rs` gives `x::a` and `x::b::c`.
fn paths(module: &[String], source: &str) -> Vec<(usize, Vec<String>)> {
    let tokens = tokens(source);
    let text = |i: usize| tokens.get(i).map_or("", |t| t.1.as_str());
    let (mut found, mut depth, mut inline) = (Vec::new(), 0usize, Vec::<(usize, String)>::new());
    let mut i = 0;
    while i < tokens.len() {
        match text(i) {
            "mod" if text(i + 2) == "{" => inline.push((depth, text(i + 1).into())),
            "{" => depth += 1,
            "}" => {
                depth = depth.saturating_sub(1);
                while inline.last().is_some_and(|(d, _)| *d == depth) {
                    inline.pop();
                }
            }
            "crate" | "super" | "self" if text(i + 1) == "::" && (i == 0 || text(i - 1) != "::") => {
                let mut at: Vec<String> = module.to_vec();
                at.extend(inline.iter().map(|(_, name)| name.clone()));
                i = unfold(&tokens, i, at, &mut found);
                continue;
            }
            _ => {}
        }
        i += 1;
    }
    found
}

/// Follows one path, and every branch of a group; returns the index after it.
fn unfold(
    tokens: &[(usize, String)],
    mut i: usize,
    mut at: Vec<String>,
    found: &mut Vec<(usize, Vec<String>)>,
) -> usize {
    let line = tokens[i].0;
    let text = |i: usize| tokens.get(i).map_or("", |t| t.1.as_str());
    loop {
        match text(i) {
            "crate" => at.clear(),
            "super" => drop(at.pop()),
            "self" => {}
            "{" => {
                i += 1;
                while !matches!(text(i), "}" | "") {
                    i = if text(i) == "," { i + 1 } else { unfold(tokens, i, at.clone(), found) };
                }
                return i + 1;
            }
            word if word.chars().all(|c| c.is_alphanumeric() || c == '_') && !word.is_empty() => {
                at.push(word.into())
            }
            _ => {
                // `*`, or the `<` of generic arguments: the path so far.
                found.push((line, at));
                return i + 1;
            }
        }
        if text(i + 1) != "::" {
            found.push((line, at));
            // `as name` inside a group.
            return if text(i + 1) == "as" { i + 3 } else { i + 1 };
        }
        i += 2;
    }
}

/// `access/path/rtt.rs` is the module `access::path::rtt`.
fn module_of(src: &Path, file: &Path) -> Vec<String> {
    let relative = file.strip_prefix(src).expect("below src").with_extension("");
    let mut module: Vec<String> =
        relative.components().map(|c| c.as_os_str().to_string_lossy().into_owned()).collect();
    if matches!(module.last().map(String::as_str), Some("mod" | "lib")) {
        module.pop();
    }
    module
}

fn is_below(path: &[String], module: &str) -> bool {
    let module: Vec<&str> = module.split("::").collect();
    path.len() >= module.len() && path.iter().zip(&module).all(|(a, b)| a == b)
}

fn one_of<'a>(path: &[String], modules: &[&'a str]) -> Option<&'a str> {
    modules.iter().copied().find(|m| is_below(path, m))
}

/// Why a file of `module` may not name `path`, if it may not.
fn objection(module: &[String], path: &[String]) -> Option<String> {
    if module.is_empty() || module == ["access"] || one_of(module, &COMPOSERS).is_some() {
        return None;
    }
    let own = one_of(module, &LEAVES);
    if own.is_some_and(|own| is_below(path, own)) || one_of(path, &CONTRACT).is_some() {
        return None;
    }
    if let Some(other) = one_of(path, &LEAVES).or(one_of(path, &COMPOSERS)) {
        return Some(format!("may not import {other}"));
    }
    match path.first().map(String::as_str) {
        Some("access") if own.is_some_and(|own| own.starts_with("access")) => None,
        Some(first) => Some(format!("may not import {first}")),
        None => None,
    }
}

#[test]
fn leaf_modules_of_core_do_not_know_one_another() {
    let src = crates_dir().join("core/src");
    let mut wrong = Vec::new();
    for file in sources(&src) {
        let module = module_of(&src, &file);
        for (line, path) in paths(&module, &read(&file)) {
            if let Some(why) = objection(&module, &path) {
                wrong.push(format!("{}:{line}: {} ({})", file.display(), why, path.join("::")));
            }
        }
    }
    assert!(wrong.is_empty(), "compose these in access::session, ue or upf instead:\n{}", wrong.join("\n"));
}

#[test]
fn every_module_of_core_has_its_layer() {
    let src = crates_dir().join("core/src");
    let unknown: BTreeSet<String> = sources(&src)
        .iter()
        .map(|file| module_of(&src, file))
        .filter(|m| !m.is_empty() && m != &["access"])
        .filter(|m| one_of(m, &CONTRACT).or(one_of(m, &LEAVES)).or(one_of(m, &COMPOSERS)).is_none())
        .map(|m| m.join("::"))
        .collect();
    assert!(unknown.is_empty(), "add to LEAVES or COMPOSERS in this test: {unknown:?}");
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
fn wire_and_core_do_no_io() {
    let mut wrong = Vec::new();
    for name in ["wire", "core"] {
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
fn this_test_sees_what_it_should() {
    let module: Vec<String> = ["access", "path", "rtt"].map(String::from).to_vec();
    let source = r##"
        // use crate::upf::X;
        use crate::{time::Instant, access::{steer::{self, Mode}, PathId}};
        const S: &str = "crate::ue::Y"; const R: &str = r#"crate::ue::"Z"#; const C: char = '"';
        mod tests { use super::{*, super::meter::M}; fn f<'a>() { crate::net::Link::<u8>::new(); } }
        use super::super::reorder::Q as P;
    "##;
    let found: Vec<(usize, String)> =
        paths(&module, source).into_iter().map(|(line, p)| (line, p.join("::"))).collect();
    let expected = [
        (3, "time::Instant"),
        (3, "access::steer"),
        (3, "access::steer::Mode"),
        (3, "access::PathId"),
        (5, "access::path::rtt"),
        (5, "access::path::meter::M"),
        (5, "net::Link"),
        (6, "access::reorder::Q"),
    ];
    assert_eq!(found, expected.map(|(line, p)| (line, p.to_owned())));
    let objections = found.iter().filter(|(_, p)| {
        let path: Vec<String> = p.split("::").map(String::from).collect();
        objection(&module, &path).is_some()
    });
    assert_eq!(objections.count(), 4, "steer twice, net, reorder");
}
