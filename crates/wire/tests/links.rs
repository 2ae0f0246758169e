//! Every link between pages of this repository leads to an existing file, and every anchor to an existing heading.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

fn top() -> PathBuf {
    normal(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."))
}

/// Resolves `.` and `..`.
fn normal(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(out.pop()),
            Component::CurDir => {}
            other => out.push(other),
        }
    }
    out
}

fn pages() -> BTreeMap<PathBuf, String> {
    let folders = [top(), top().join("docs"), top().join("packaging")];
    let files = folders.iter().flat_map(|folder| fs::read_dir(folder).unwrap());
    files
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .map(|path| (path.clone(), fs::read_to_string(&path).unwrap()))
        .collect()
}

/// GitHub's anchor for a heading: lower case, `-` for spaces, other punctuation removed.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    text.chars()
        .filter_map(|c| match c {
            ' ' => Some('-'),
            c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c),
            _ => None,
        })
        .collect()
}

/// Lines outside fenced code blocks.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut code = false;
    text.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        !code && !fence
    })
}

fn anchors(text: &str) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for heading in prose(text).filter(|line| line.starts_with('#')) {
        let first = anchor(heading);
        let mut name = first.clone();
        for n in 1.. {
            if all.insert(name) {
                break;
            }
            name = format!("{first}-{n}");
        }
    }
    all
}

#[test]
fn every_link_between_pages_resolves() {
    let pages = pages();
    let anchors: BTreeMap<_, _> = pages.iter().map(|(path, text)| (path.clone(), anchors(text))).collect();
    let (mut count, mut broken) = (0, Vec::new());
    for (page, text) in &pages {
        let targets =
            prose(text).flat_map(|line| line.split("](").skip(1)).filter_map(|rest| rest.split(')').next());
        for target in targets.filter(|target| !target.contains("://") && !target.contains(' ')) {
            count += 1;
            let (file, fragment) = target.split_once('#').unwrap_or((target, ""));
            let to = if file.is_empty() { page.clone() } else { normal(&page.parent().unwrap().join(file)) };
            let known = anchors.get(&to).is_none_or(|there| fragment.is_empty() || there.contains(fragment));
            if !to.exists() || !known {
                broken.push(format!("{}: {target}", page.display()));
            }
        }
    }
    assert!(count > 300, "{count} links were found");
    assert!(broken.is_empty(), "{broken:#?}");
}
