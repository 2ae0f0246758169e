//! The tables of docs/scenarios.md, generated from the declarations.

use super::file::File;
use super::schema::{Described, Key, Shape, Table};
use crate::metrics::{METRICS, Metric, SERIES};
use std::fmt::Write as _;

/// The line in docs/scenarios.md after which the generated part begins.
pub const BEGIN: &str = "<!-- generated from crates/lab/src/scenario/file.rs; run the test to renew -->";

/// All keys, all metrics, all series, as Markdown.
#[must_use]
pub fn markdown() -> String {
    let mut text = String::from("## Keys\n\n");
    let mut done: Vec<&'static str> = Vec::new();
    if let Shape::Table(root) = File::shape() {
        table(&mut text, root, "The file", &mut done);
    }
    text.push_str("## Metrics\n\n");
    text.push_str(
        "If a scenario has variants, every name begins with the name of the variant and a dot. With more \
         than one run, `m` is the median over the runs, and `m.mean`, `m.min`, `m.max`, `m.p99` exist too \
         (with one run they equal `m`). A metric exists only if every run has it.\n\n",
    );
    list(&mut text, METRICS);
    text.push_str("\n## Series\n\n");
    text.push_str("For `[[plot]]`. Series come from the first run.\n\n");
    list(&mut text, SERIES);
    text
}

fn list(text: &mut String, metrics: &[Metric]) {
    text.push_str("| name | unit | meaning |\n|---|---|---|\n");
    for m in metrics {
        let _ = writeln!(text, "| `{}` | {} | {} |", m.name, m.unit, m.doc);
    }
}

fn table(text: &mut String, table_of: &Table, place: &str, done: &mut Vec<&'static str>) {
    if done.contains(&table_of.name) {
        return;
    }
    done.push(table_of.name);
    let heading = if place == "The file" { place.to_owned() } else { format!("`{place}`") };
    let _ = write!(text, "### {heading}\n\n{}\n\n", table_of.doc);
    text.push_str("| key | value | default | meaning |\n|---|---|---|---|\n");
    for key in &table_of.keys {
        row(text, table_of, key);
    }
    text.push('\n');
    let parent = if place == "The file" { String::new() } else { format!("{place}.") };
    for key in &table_of.keys {
        if let Some((of_key, suffix)) = inner(&key.shape) {
            // Both directions of a link share one table.
            let same = |k: &&Key| inner(&k.shape).is_some_and(|(t, _)| t.name == of_key.name);
            let names: Vec<&str> = table_of.keys.iter().filter(same).map(|k| k.name).collect();
            table(text, of_key, &format!("{parent}{}{suffix}", names.join("|")), done);
        }
    }
}

/// The table in a shape, and the suffix of the key for it.
fn inner(shape: &Shape) -> Option<(&'static Table, &'static str)> {
    match shape {
        Shape::Table(table) => Some((table, "")),
        Shape::Named(inner_shape) => inner(inner_shape).map(|(t, _)| (t, ".<name>")),
        Shape::List(inner_shape) => inner(inner_shape).map(|(t, _)| (t, "[]")),
        _ => None,
    }
}

fn row(text: &mut String, table: &Table, key: &Key) {
    let value = match &key.shape {
        Shape::OneOf(words) => words.iter().map(|w| format!("`{w}`")).collect::<Vec<_>>().join(" "),
        Shape::List(inner) => match &**inner {
            Shape::OneOf(words) => {
                let words = words.iter().map(|w| format!("`{w}`")).collect::<Vec<_>>().join(" ");
                format!("list of {words}")
            }
            Shape::Table(_) | Shape::Named(_) => "list of tables".into(),
            Shape::Integer => "list of whole numbers".into(),
            _ => "list of text".into(),
        },
        Shape::Named(inner) if matches!(**inner, Shape::Text) => "named text".into(),
        Shape::Named(inner) if matches!(**inner, Shape::List(_)) => "named lists".into(),
        Shape::Named(_) => "named tables".into(),
        Shape::Any => "table".into(),
        other => super::walk::describe(other),
    };
    let range = key.range.map(|(low, high)| format!(", {low} to {high}")).unwrap_or_default();
    let default = match (&key.default, key.required) {
        (_, true) => "**required**".into(),
        (Some(text), _) if text == "see below" => text.clone(),
        (Some(text), _) => format!("`{text}`"),
        (None, _) => "—".into(),
    };
    let only = if key.only.is_empty() {
        String::new()
    } else {
        format!(" *({} {})*", table.tag.unwrap_or_default(), key.only.join(", "))
    };
    let _ = writeln!(
        text,
        "| `{}` | {value}{range} | {default} | {}{only} |",
        key.name,
        key.doc.replace('|', "\\|")
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With `UPDATE_DOCS=1` the page is rewritten instead.
    #[test]
    fn the_page_has_every_key_as_declared() {
        let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/scenarios.md");
        let text = std::fs::read_to_string(&page).unwrap();
        let (head, found) = text.split_once(BEGIN).expect("docs/scenarios.md has the marker");
        let wanted = format!("\n\n{}", markdown());
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(&page, format!("{head}{BEGIN}{wanted}")).unwrap();
            return;
        }
        assert!(
            found == wanted,
            "docs/scenarios.md is behind: UPDATE_DOCS=1 cargo test -p anabranch-lab the_page"
        );
    }
}
