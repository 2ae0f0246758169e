//! Tables of claims in a Markdown page. The table of a scenario is between two comments; the text around it is written by
//! hand.

use crate::claims::{Checked, band};
use crate::matrix;
use crate::output::{holds, paper, reason_number, reasons, short};
use crate::runner::Finished;
use crate::scenario::Scenario;
use anyhow::Context;
use std::fmt::Write as _;
use std::path::Path;

/// Replaces the table of a scenario in `page`, or appends it if there is none.
///
/// # Errors
/// The page cannot be read or written, or an end comment is missing.
pub fn put(page: &Path, scenario: &Scenario, done: &Finished) -> anyhow::Result<()> {
    let name = || page.display().to_string();
    let old = match std::fs::read_to_string(page) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error).with_context(name),
    };
    let new = replaced(&old, &scenario.name, &table(scenario, done)).with_context(name)?;
    rewrite(page, &new).with_context(name)
}

/// Replaces a page with `text` atomically.
///
/// # Errors
/// It cannot be written; the old page is unchanged.
pub fn rewrite(page: &Path, text: &str) -> std::io::Result<()> {
    let page = page.canonicalize().unwrap_or_else(|_| page.to_owned());
    let mut new = page.clone().into_os_string();
    new.push(".new");
    let written = std::fs::write(&new, text).and_then(|()| match std::fs::metadata(&page) {
        Ok(old) => std::fs::set_permissions(&new, old.permissions()),
        Err(_) => Ok(()),
    });
    written.and_then(|()| std::fs::rename(&new, &page)).inspect_err(|_| drop(std::fs::remove_file(&new)))
}

/// The table of a scenario: claim, figure of the paper, measured value with its spread, band, verdict.
#[must_use]
pub fn table(scenario: &Scenario, done: &Finished) -> String {
    let seeds = match done.seeds {
        1 => format!("seed {}", done.seed),
        n => format!("median [least – most] of {n} seeds from {}", done.seed),
    };
    let form = if scenario.quick { ", quick form" } else { "" };
    let mut text = format!(
        "`{}`: {}. {} backend, {seeds}{form}.\n\n| claim | paper | ours | band | holds |\n|---|---|---|---|---|\n",
        scenario.name, scenario.title, done.backend
    );
    let reasons = reasons(&done.claims);
    for c in &done.claims {
        let mut verdict = holds(c);
        if let Some(number) = reason_number(c, &reasons) {
            let _ = write!(verdict, " ({number})");
        }
        let cells = [c.claim.what.clone(), paper(c), measured(c), band(&c.claim), verdict];
        let _ = writeln!(text, "| {} |", cells.map(|cell| cell.replace('|', "\\|")).join(" | "));
    }
    for (i, (why, _)) in reasons.iter().enumerate() {
        let _ = write!(text, "\n({}) {why}.\n", i + 1);
    }
    if let Some(of) = &scenario.matrix {
        text += &matrix::tables(of, done);
    }
    text
}

fn measured(c: &Checked) -> String {
    let Some(value) = c.measured else { return "no number".into() };
    let unit = if c.claim.unit.is_empty() { String::new() } else { format!(" {}", c.claim.unit) };
    let spread =
        c.spread().map_or(String::new(), |(low, high)| format!(" [{} – {}]", short(low), short(high)));
    format!("{}{spread}{unit}", short(value))
}

/// `page` with `table` between the comments of `name`.
fn replaced(page: &str, name: &str, table: &str) -> anyhow::Result<String> {
    let (begin, end) = (format!("<!-- results: {name} -->\n"), "<!-- end of results -->\n");
    let Some((before, rest)) = page.split_once(&begin) else {
        let gap = if page.is_empty() { "" } else { "\n" };
        return Ok(format!("{page}{gap}{begin}\n{table}\n{end}"));
    };
    let (_, after) = rest.split_once(end).with_context(|| format!("`{}` has no end", begin.trim_end()))?;
    Ok(format!("{before}{begin}\n{table}\n{end}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{Backend, Outcome, Progress, Quiet};
    use crate::runner::run;
    use crate::scenario::file::BackendName;
    use crate::scenario::{Case, parse};

    struct Fake;
    impl Backend for Fake {
        fn name(&self) -> BackendName {
            BackendName::Virtual
        }
        fn parallel(&self) -> bool {
            false
        }
        fn run(&self, _: &Case, seed: u64, _: &dyn Progress) -> anyhow::Result<Outcome> {
            let metrics = [("flow.f.outage_ms".to_owned(), seed as f64)].into();
            Ok(Outcome { metrics, ..Outcome::default() })
        }
    }

    #[test]
    fn a_table_says_paper_ours_and_why() {
        let claim = |id: &str, max: u32, differs: &str| {
            format!(
                "[[claim]]\nid = \"{id}\"\nwhat = \"a | b\"\nmetric = \"flow.f.outage_ms\"\nunit = \"ms\"\n\
                 paper = 2.5\nmax = {max}\n{differs}\n"
            )
        };
        let moon = "differs = { why = \"moon\", min = 1, max = 5 }";
        let text = format!(
            "title = \"t\"\n[link.w]\n[ue.u]\naccesses = [{{ name = \"w\", link = \"w\" }}]\n\
             [flow.f]\nkind = \"ping\"\n{}{}{}",
            claim("x", 9, ""),
            claim("y", 1, moon),
            claim("z", 2, moon)
        );
        let scenario = parse(Path::new("s.toml"), &text, &[]).unwrap();
        let done = run(&scenario, &Fake, 1, 5, &Quiet).unwrap();
        let table = table(&scenario, &done);
        assert!(table.contains("median [least – most] of 5 seeds from 1"), "{table}");
        assert!(table.contains("| a \\| b | 2.5 ms | 3 [1 – 5] ms | ≤ 9 | yes |"), "{table}");
        assert!(table.contains("| ≤ 1 | differs (1 of 5 seeds) (1) |"), "{table}");
        assert!(table.ends_with("| ≤ 2 | differs (2 of 5 seeds) (1) |\n\n(1) moon.\n"), "{table}");
    }

    #[test]
    fn a_page_is_there_until_the_new_one_is() {
        let folder = tempfile::tempdir().unwrap();
        let page = folder.path().join("page.md");
        rewrite(&page, "one").unwrap();
        // The path of the new file is not writable.
        std::fs::create_dir(folder.path().join("page.md.new")).unwrap();
        assert!(rewrite(&page, "two").is_err());
        assert_eq!(std::fs::read_to_string(&page).unwrap(), "one");
        std::fs::remove_dir(folder.path().join("page.md.new")).unwrap();
        rewrite(&page, "two").unwrap();
        assert_eq!(std::fs::read_to_string(&page).unwrap(), "two");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_table_takes_the_place_of_the_old_one() {
        let page = replaced("words\n", "a", "one\n").unwrap();
        let page = replaced(&page, "b", "two\n").unwrap();
        let again = replaced(&page, "a", "three\n").unwrap();
        assert_eq!(again, page.replace("one", "three"));
        assert!(replaced("<!-- results: a -->\n", "a", "x").is_err());
    }
}
