//! Checks a parsed file against the [`Shape`]s before it is deserialized: unknown and missing keys, words, ranges. One pass finds
//! all problems, and each message states the place and the valid values.

use super::schema::{Key, Shape, Table};
use anabranch_element::names::did_you_mean;
use std::fmt;
use std::path::Path;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A problem in a scenario file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Line in the file, from 1; `None` if the text is not from a file.
    pub line: Option<usize>,
    /// Dotted path of the key.
    pub path: String,
    /// What is wrong, and what would be valid.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)
    }
}

/// All problems of one file; displayed one per line.
#[derive(Debug, Clone, thiserror::Error)]
pub struct Problems {
    /// Name of the file.
    pub file: String,
    /// In the order of the file.
    pub problems: Vec<Problem>,
}

impl Problems {
    /// Problems of the file at `path`.
    #[must_use]
    pub fn new(path: &Path, problems: Vec<Problem>) -> Self {
        Self { file: path.display().to_string(), problems }
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, p) in self.problems.iter().enumerate() {
            if i > 0 {
                writeln!(f)?;
            }
            write!(f, "{}", self.file)?;
            if let Some(line) = p.line {
                write!(f, ":{line}")?;
            }
            write!(f, ": {p}")?;
        }
        Ok(())
    }
}

/// Parses `text` and checks it against `shape`.
///
/// # Errors
/// Every problem found; one if the text is not TOML.
pub fn check(text: &str, shape: &Shape) -> Result<(), Vec<Problem>> {
    let root = DeTable::parse(text).map_err(|e| vec![from_toml(text, &e)])?;
    let mut walk = Walk { text, problems: Vec::new() };
    let span = root.span();
    walk.value(&Spanned::new(span, DeValue::Table(root.into_inner())), shape, "", None);
    if walk.problems.is_empty() { Ok(()) } else { Err(walk.problems) }
}

/// Converts an error of the TOML library.
#[must_use]
pub fn from_toml(text: &str, error: &toml::de::Error) -> Problem {
    let line = error.span().map(|s| line_of(text, s.start));
    Problem { line, path: String::new(), message: error.message().replace('\n', "; ") }
}

/// A text in which lines are looked up; it is parsed once.
pub struct Lines<'t> {
    text: &'t str,
    root: Option<DeTable<'t>>,
}

impl<'t> Lines<'t> {
    /// Parses `text`.
    #[must_use]
    pub fn new(text: &'t str) -> Self {
        Self { text, root: DeTable::parse(text).ok().map(Spanned::into_inner) }
    }

    /// The line of the dotted `path`, as far as the path exists.
    #[must_use]
    pub fn of_path(&self, path: &str) -> Option<usize> {
        let mut at = None;
        let mut table = self.root.as_ref()?;
        let mut parts = path.split('.');
        'parts: while let Some(part) = parts.next() {
            let Some((key, value)) = table.get_key_value(part) else { break };
            at = Some(key.span().start);
            match value.get_ref() {
                DeValue::Table(t) => table = t,
                DeValue::Array(list) => {
                    let Some(want) = parts.next() else { break };
                    for (i, element) in list.iter().enumerate() {
                        let DeValue::Table(t) = element.get_ref() else { continue };
                        let named = ["name", "id"].iter().any(
                            |k| matches!(t.get(*k).map(Spanned::get_ref), Some(DeValue::String(s)) if s == want),
                        );
                        if named || want.parse() == Ok(i) {
                            at = Some(element.span().start);
                            table = t;
                            continue 'parts;
                        }
                    }
                    break;
                }
                _ => break,
            }
        }
        at.map(|at| line_of(self.text, at))
    }
}

fn line_of(text: &str, at: usize) -> usize {
    text.as_bytes()[..at.min(text.len())].iter().filter(|b| **b == b'\n').count() + 1
}

/// Maximum number of problems reported per file.
pub const MOST_PROBLEMS: usize = 50;

struct Walk<'t> {
    text: &'t str,
    problems: Vec<Problem>,
}

impl Walk<'_> {
    fn problem(&mut self, at: usize, path: &str, message: String) {
        // Finding a line takes time, and further problems are not shown.
        if self.problems.len() >= MOST_PROBLEMS {
            return;
        }
        self.problems.push(Problem { line: Some(line_of(self.text, at)), path: path.to_owned(), message });
    }

    fn value(&mut self, value: &Spanned<DeValue<'_>>, shape: &Shape, path: &str, key: Option<&Key>) {
        let at = value.span().start;
        match (shape, value.get_ref()) {
            (Shape::Any, _) | (Shape::Bool, DeValue::Boolean(_)) | (Shape::Text, DeValue::String(_)) => {}
            (Shape::NumberOrText, DeValue::String(_)) => {}
            (Shape::Integer | Shape::Number | Shape::NumberOrText, DeValue::Integer(i)) => {
                // An integer with too many digits is large, not invalid.
                let digits = i.as_str().replace('_', "");
                let number = i64::from_str_radix(&digits, i.radix()).map_or_else(
                    |_| if digits.starts_with('-') { f64::NEG_INFINITY } else { f64::INFINITY },
                    |i| i as f64,
                );
                let written = if number.is_finite() { number.to_string() } else { shown(&digits) };
                if !self.range(number, &written, at, path, key)
                    && matches!(shape, Shape::Integer)
                    && number < 0.0
                {
                    self.problem(at, path, format!("{written} is below zero"));
                }
            }
            (Shape::Number | Shape::NumberOrText, DeValue::Float(x)) => {
                let digits = x.as_str().replace('_', "");
                let number: f64 = digits.parse().unwrap_or(f64::NAN);
                let written = if number.is_infinite() { shown(&digits) } else { shown(&number.to_string()) };
                self.range(number, &written, at, path, key);
            }
            (Shape::OneOf(words), DeValue::String(word)) => {
                if !words.contains(&word.as_ref()) {
                    let near = did_you_mean(word, words.iter().copied());
                    self.problem(
                        at,
                        path,
                        format!("\"{word}\" is not known{near}; valid: {}", words.join(", ")),
                    );
                }
            }
            (Shape::List(inner), DeValue::Array(list)) => {
                for (i, element) in list.iter().enumerate() {
                    let label = label_of(element).unwrap_or_else(|| i.to_string());
                    self.value(element, inner, &format!("{path}.{label}"), key);
                }
            }
            (Shape::Named(inner), DeValue::Table(table)) => {
                for (name, element) in table {
                    let path = join(path, name.get_ref());
                    if !valid_name(name.get_ref()) {
                        let message = "a name has letters, digits, `_` and `-` only".to_owned();
                        self.problem(name.span().start, &path, message);
                    }
                    self.value(element, inner, &path, None);
                }
            }
            (Shape::Table(shape), DeValue::Table(table)) => self.table(at, table, shape, path),
            (shape, found) => {
                let wanted = describe(shape);
                self.problem(at, path, format!("{} where {wanted} is wanted", found.type_str()));
            }
        }
    }

    /// Whether a number, written as `written`, is out of its range. If so, reports it.
    fn range(&mut self, number: f64, written: &str, at: usize, path: &str, key: Option<&Key>) -> bool {
        match key.and_then(|k| k.range) {
            Some((low, high)) if !(low..=high).contains(&number) => {
                self.problem(at, path, format!("{written} is out of range; valid: {low} to {high}"));
                true
            }
            _ if !number.is_finite() => {
                self.problem(at, path, format!("{written} is out of range; valid: a finite number"));
                true
            }
            _ => false,
        }
    }

    fn table(&mut self, at: usize, found: &DeTable<'_>, shape: &Table, path: &str) {
        let tag = shape.tag.and_then(|tag| match found.get(tag).map(Spanned::get_ref) {
            Some(DeValue::String(s)) => Some(s.to_string()),
            Some(_) => None,
            // A tag with a default, such as the loss model.
            None => shape.keys.iter().find(|k| k.name == tag)?.default.as_ref().map(|d| d.replace('"', "")),
        });
        let applies =
            |key: &Key| key.only.is_empty() || tag.as_deref().is_none_or(|tag| key.only.contains(&tag));
        for (name, value) in found {
            let here = join(path, name.get_ref());
            match shape.keys.iter().find(|k| k.name == name.get_ref()) {
                Some(key) if applies(key) => self.value(value, &key.shape, &here, Some(key)),
                Some(key) => {
                    let (tag_key, tag) = (shape.tag.unwrap_or_default(), tag.as_deref().unwrap_or_default());
                    let message = format!(
                        "means nothing where {tag_key} = \"{tag}\"; it belongs to {}",
                        key.only.join(", ")
                    );
                    self.problem(name.span().start, &here, message);
                }
                None => {
                    let valid: Vec<&str> = shape.keys.iter().filter(|k| applies(k)).map(|k| k.name).collect();
                    let near = did_you_mean(name.get_ref(), valid.iter().copied());
                    let message = format!("unknown key{near}; valid here: {}", valid.join(", "));
                    self.problem(name.span().start, &here, message);
                }
            }
        }
        for key in shape.keys.iter().filter(|k| k.required && applies(k)) {
            if !found.contains_key(key.name) {
                self.problem(at, &join(path, key.name), format!("is missing: {}", key.doc));
            }
        }
    }
}

/// A number as it was written; a long one is truncated.
fn shown(digits: &str) -> String {
    const MOST: usize = 24;
    match digits.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}… ({} digits)", &digits[..end], digits.len()),
        None => digits.to_owned(),
    }
}

fn label_of(element: &Spanned<DeValue<'_>>) -> Option<String> {
    let DeValue::Table(table) = element.get_ref() else { return None };
    ["name", "id"].iter().find_map(|k| match table.get(*k)?.get_ref() {
        DeValue::String(s) => Some(s.to_string()),
        _ => None,
    })
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// Whether `name` can be part of a metric's name.
#[must_use]
pub fn valid_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}

/// A shape in words.
#[must_use]
pub fn describe(shape: &Shape) -> String {
    match shape {
        Shape::Bool => "true or false".into(),
        Shape::Integer => "a whole number".into(),
        Shape::Number => "a number".into(),
        Shape::Text => "text".into(),
        Shape::NumberOrText => "a number or text".into(),
        Shape::Any => "a table".into(),
        Shape::OneOf(words) => format!("one of {}", words.join(", ")),
        Shape::List(inner) => format!("a list ({} each)", describe(inner)),
        Shape::Named(_) => "a table of named tables".into(),
        Shape::Table(_) => "a table".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::file::File;
    use crate::scenario::schema::Described;

    fn complaints(text: &str) -> String {
        let problems = check(text, &File::shape()).unwrap_err();
        Problems::new(Path::new("x.toml"), problems).to_string()
    }

    #[test]
    fn an_unknown_key_names_file_line_key_and_the_nearest_valid_one() {
        let text = "title = \"t\"\n[link.wifi.up]\nrate_mbit = 3\n";
        let says = complaints(text);
        assert!(
            says.starts_with("x.toml:3: link.wifi.up.rate_mbit: unknown key; did you mean \"rate_mbps\"?"),
            "{says}"
        );
    }

    #[test]
    fn all_problems_are_found_at_once() {
        let text = "[link.\"a b\"]\n[flow.x]\nkind = \"cbr\"\nbytes = 3\nrate_mbps = -1\n[[event]]\nkind = \"link_dwon\"\nat_s = 1\n";
        let says = complaints(text);
        for part in [
            "title: is missing",
            "a name has letters",
            "x.toml:4: flow.x.bytes: means nothing where kind = \"cbr\"; it belongs to bulk_tcp",
            "x.toml:5: flow.x.rate_mbps: -1 is out of range",
            "x.toml:7: event.0.kind: \"link_dwon\" is not known; did you mean \"link_down\"?",
        ] {
            assert!(says.contains(part), "{part}\nin\n{says}");
        }
    }

    #[test]
    fn numbers_of_many_digits_are_large_and_reported_once() {
        let text = |rate: &str| {
            format!("title = \"t\"\n[link.a]\ndown.rate_mbps = {rate}\n[flow.x]\nkind = \"cbr\"\nport = -1\n")
        };
        let says = complaints(&text("12345678901234567890"));
        assert!(
            says.contains("rate_mbps: 12345678901234567890 is out of range; valid: 0.001 to 100000"),
            "{says}"
        );
        let says = complaints(&text(&"9".repeat(309)));
        assert!(says.contains("999999999999999999999999… (309 digits) is out of range"), "{says}");
        let says = complaints(&text(&format!("{}.0", "9".repeat(400))));
        assert!(says.contains("digits) is out of range") && says.len() < 600, "{says}");
        assert_eq!(says.matches("flow.x.port").count(), 1, "one error for -1: {says}");
    }

    #[test]
    fn the_number_of_problems_is_limited() {
        let wrong: String = (0..100_000).map(|i| format!("k{i} = {i}\n")).collect();
        let problems = check(&wrong, &File::shape()).unwrap_err();
        assert_eq!(problems.len(), MOST_PROBLEMS);
    }

    #[test]
    fn lines_of_paths() {
        let text = "a = 1\n[[x]]\nname = \"one\"\n[[x]]\nname = \"two\"\nv = 3\n";
        let lines = Lines::new(text);
        assert_eq!(lines.of_path("x.two.v"), Some(6));
        assert_eq!(lines.of_path("x.0"), Some(2));
        assert_eq!(lines.of_path("nothing"), None);
    }
}
