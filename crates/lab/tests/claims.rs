//! Every claim of the scenarios that are shipped can tell what the paper says from the opposite.

use anabranch_lab::claims::audit::audit;
use anabranch_lab::reproduction;
use anabranch_lab::scenario::{self, Form, Select};
use std::path::{Path, PathBuf};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn scenarios() -> Vec<PathBuf> {
    let mut folders = vec![repository().join("scenarios")];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "toml") {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

#[test]
fn claims_can_fail() {
    let files = scenarios();
    assert!(files.len() > 60, "only {} scenarios found", files.len());
    let mut found = Vec::new();
    for file in files {
        let scenario = scenario::load_cells(&file, &[], Form::Full, &Select::Whole)
            .unwrap_or_else(|problems| panic!("{problems}"));
        for problem in audit(&scenario) {
            found.push(format!("{}: {}: {}", file.display(), problem.path, problem.message));
        }
    }
    assert!(found.is_empty(), "{} claims:\n{}", found.len(), found.join("\n"));
}

#[test]
fn the_page_of_figures_has_every_claim() {
    let page = repository().join("docs/reproduction.md");
    let missing = reproduction::missing(&page, &repository().join("scenarios/papers")).unwrap();
    assert!(
        missing.is_empty(),
        "docs/reproduction.md lacks {} claims (`anabranch-lab reproduction` writes it): {}",
        missing.len(),
        missing.join(", ")
    );
}
