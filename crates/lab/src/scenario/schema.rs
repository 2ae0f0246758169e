//! The scenario format as data: what each table may hold, with units, ranges and defaults.
//!
//! [`table!`] and [`choice!`] declare a Rust type, its defaults and its documentation in one place. The
//! walker (unknown keys, ranges), serde and `docs/scenarios.md` all read the same declaration, so none
//! of them can fall behind.

use std::collections::BTreeMap;

/// What may stand at one place of a scenario file.
#[derive(Debug, Clone)]
pub enum Shape {
    /// `true` or `false`.
    Bool,
    /// A whole number.
    Integer,
    /// A number, whole or not.
    Number,
    /// A string.
    Text,
    /// A number or a string.
    NumberOrText,
    /// Anything; somebody else checks it (overrides of a variant).
    Any,
    /// One of these strings.
    OneOf(&'static [&'static str]),
    /// A list.
    List(Box<Shape>),
    /// A table whose keys are names the author gives.
    Named(Box<Shape>),
    /// A table with fixed keys.
    Table(fn() -> Table),
}

/// A table with fixed keys.
#[derive(Debug, Clone)]
pub struct Table {
    /// Name of the Rust type: anchors in the reference.
    pub name: &'static str,
    /// What it describes.
    pub doc: String,
    /// The key that decides which other keys apply (`kind`, `mode`, `model`), if there is one.
    pub tag: Option<&'static str>,
    /// All its keys, in order.
    pub keys: Vec<Key>,
}

/// One key of a table.
#[derive(Debug, Clone)]
pub struct Key {
    /// As written in the file.
    pub name: &'static str,
    /// What may stand there.
    pub shape: Shape,
    /// What it means, with units.
    pub doc: String,
    /// Its default as TOML; `None`: it may be left out and then means what `doc` says.
    pub default: Option<String>,
    /// It must be given.
    pub required: bool,
    /// Smallest and largest valid number.
    pub range: Option<(f64, f64)>,
    /// Only valid where the table's tag is one of these; empty: always.
    pub only: &'static [&'static str],
}

/// A type that may stand in a scenario file.
pub trait Described {
    /// Its shape.
    fn shape() -> Shape;
}

macro_rules! leaf {
    ($($ty:ty => $shape:expr),+ $(,)?) => { $(impl Described for $ty { fn shape() -> Shape { $shape } })+ };
}

leaf! {
    bool => Shape::Bool,
    u8 => Shape::Integer,
    u16 => Shape::Integer,
    u32 => Shape::Integer,
    u64 => Shape::Integer,
    f64 => Shape::Number,
    String => Shape::Text,
    toml::Table => Shape::Any,
}

impl<T: Described> Described for Option<T> {
    fn shape() -> Shape {
        T::shape()
    }
}

impl<T: Described> Described for Vec<T> {
    fn shape() -> Shape {
        Shape::List(Box::new(T::shape()))
    }
}

impl<T: Described> Described for BTreeMap<String, T> {
    fn shape() -> Shape {
        Shape::Named(Box::new(T::shape()))
    }
}

/// The default of a key as it would be written in TOML.
pub fn default_text<T: serde::Serialize>(value: &T) -> Option<String> {
    let value = toml::Value::try_from(value).ok()?;
    match &value {
        toml::Value::Table(t) if t.is_empty() => None,
        toml::Value::Array(a) if a.is_empty() => Some("[]".into()),
        toml::Value::Table(_) => Some("see below".into()),
        other => Some(other.to_string()),
    }
}

/// Joins the lines of a doc comment.
pub fn doc_text(lines: &[&str]) -> String {
    lines.iter().map(|l| l.trim()).collect::<Vec<_>>().join(" ").trim().to_owned()
}

impl Key {
    /// A key that may be left out and is always valid.
    #[must_use]
    pub fn new(name: &'static str, shape: Shape, doc: &[&str], default: Option<String>) -> Self {
        let doc = doc_text(doc);
        Self { name, shape, doc, default, required: false, range: None, only: &[] }
    }

    /// The key must be given.
    #[must_use]
    pub fn required(self) -> Self {
        Self { required: true, default: None, ..self }
    }

    /// Smallest and largest valid number.
    #[must_use]
    pub fn range(self, low: f64, high: f64) -> Self {
        Self { range: Some((low, high)), ..self }
    }

    /// Only valid where the table's tag is one of `tags`.
    #[must_use]
    pub fn only(self, tags: &'static [&'static str]) -> Self {
        Self { only: tags, ..self }
    }
}

/// Declares a table of the scenario format: a struct, its defaults and its description.
///
/// After the default of a key may follow `required()`, `range(low, high)` and `only(&["tag"])`.
macro_rules! table {
    (
        $(#[doc = $doc:literal])+
        $(tag $tag:literal)?
        pub struct $name:ident {
            $(
                $(#[doc = $kdoc:literal])+
                $key:ident : $ty:ty = $default:expr $(, $option:ident ( $($arg:expr),* ))* ;
            )*
        }
    ) => {
        $(#[doc = $doc])+
        #[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct $name {
            $( $(#[doc = $kdoc])+ pub $key: $ty, )*
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $( $key: $default, )* }
            }
        }

        impl $crate::scenario::schema::Described for $name {
            fn shape() -> $crate::scenario::schema::Shape {
                use $crate::scenario::schema::{self, Key};
                schema::Shape::Table(|| {
                    let default = $name::default();
                    schema::Table {
                        name: stringify!($name),
                        doc: schema::doc_text(&[$($doc),+]),
                        tag: [$($tag,)? ""].first().copied().filter(|t| !t.is_empty()),
                        keys: vec![ $(
                            Key::new(
                                stringify!($key),
                                <$ty as schema::Described>::shape(),
                                &[$($kdoc),+],
                                schema::default_text(&default.$key),
                            )$(.$option($($arg),*))*,
                        )* ],
                    }
                })
            }
        }
    };
}

/// Declares a set of words: an enum written as strings. The first is the default.
macro_rules! choice {
    (
        $(#[doc = $doc:literal])+
        pub enum $name:ident { $( $(#[doc = $vdoc:literal])+ $variant:ident = $text:literal ),+ $(,)? }
    ) => {
        $(#[doc = $doc])+
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
        pub enum $name { $( $(#[doc = $vdoc])+ #[serde(rename = $text)] $variant ),+ }

        impl $name {
            /// Every value as written in a file, in order.
            pub const NAMES: &'static [&'static str] = &[$($text),+];
            /// As written in a file.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $( Self::$variant => $text ),+ }
            }
        }

        impl Default for $name {
            fn default() -> Self {
                [$(Self::$variant),+][0]
            }
        }

        impl std::str::FromStr for $name {
            type Err = String;
            fn from_str(text: &str) -> Result<Self, String> {
                match text {
                    $( $text => Ok(Self::$variant), )+
                    other => Err(format!("`{other}`: write one of {}", Self::NAMES.join(", "))),
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }

        impl $crate::scenario::schema::Described for $name {
            fn shape() -> $crate::scenario::schema::Shape {
                $crate::scenario::schema::Shape::OneOf(Self::NAMES)
            }
        }
    };
}

pub(crate) use {choice, table};

/// The valid name nearest to a mistyped one, if any is near enough to be meant; the first of equals.
pub fn nearest<'a>(wrong: &str, valid: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    nearest_of(wrong, valid, 1).pop()
}

/// The same, `most` at most, the nearest first.
pub fn nearest_of<'a>(wrong: &str, valid: impl IntoIterator<Item = &'a str>, most: usize) -> Vec<&'a str> {
    let letters = wrong.chars().count();
    let mut best: Vec<(f64, &str)> = Vec::with_capacity(most + 1);
    for name in valid {
        let enough = best.get(most - 1).map_or(0.5, |(score, _)| *score);
        let mut score = prefix_score(wrong, name);
        // No edit distance is less than the difference of the lengths; most names need not be looked at closer.
        let count = name.chars().count();
        if 1.0 - letters.abs_diff(count) as f64 / letters.max(count).max(1) as f64 >= enough {
            score = score.max(strsim::normalized_damerau_levenshtein(wrong, name));
        }
        if score >= enough && best.iter().all(|(_, known)| *known != name) {
            best.insert(best.partition_point(|(better, _)| *better >= score), (score, name));
            best.truncate(most);
        }
    }
    best.into_iter().map(|(_, name)| name).collect()
}

/// A shared beginning of at least three letters says as much as a small edit distance.
fn prefix_score(a: &str, b: &str) -> f64 {
    let same = a.bytes().zip(b.bytes()).take_while(|(x, y)| x == y).count();
    if same < 3 { 0.0 } else { 0.9 * same as f64 / a.len().max(b.len()) as f64 + 0.1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_finds_what_was_meant_and_nothing_else() {
        let keys = ["rate_mbps", "delay_ms", "jitter_ms", "queue_bytes"];
        assert_eq!(nearest("rate_mbit", keys), Some("rate_mbps"));
        assert_eq!(nearest("dealy_ms", keys), Some("delay_ms"));
        assert_eq!(nearest("colour", keys), None);
        assert_eq!(
            nearest_of("delay", ["relay", "delays", "delay_s", "decay", "delta"], 3),
            ["delays", "relay", "decay"]
        );
    }

    proptest::proptest! {
        /// What is not looked at closer would not have been among the nearest.
        #[test]
        fn the_nearest_are_the_nearest_of_all(
            wrong in "[ab_]{0,9}", valid in proptest::collection::btree_set("[ab_]{0,9}", 0..20), most in 1usize..4,
        ) {
            let score = |name: &str| {
                strsim::normalized_damerau_levenshtein(&wrong, name).max(prefix_score(&wrong, name))
            };
            let mut all: Vec<&str> = valid.iter().map(String::as_str).filter(|name| score(name) >= 0.5).collect();
            all.sort_by(|a, b| score(b).total_cmp(&score(a)));
            all.truncate(most);
            proptest::prop_assert_eq!(nearest_of(&wrong, valid.iter().map(String::as_str), most), all);
        }
    }
}
