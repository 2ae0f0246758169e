//! The scenario format as data: the contents of each table, with units, ranges and defaults.
//!
//! [`table!`] and [`choice!`] declare a Rust type, its defaults and its documentation in one place. The walker (unknown keys,
//! ranges), serde and `docs/scenarios.md` all use this declaration, so they always agree.

use std::collections::BTreeMap;
use std::sync::LazyLock;

/// What is valid at one place of a scenario file.
#[derive(Debug, Clone)]
pub enum Shape {
    /// `true` or `false`.
    Bool,
    /// A whole number.
    Integer,
    /// An integer or a fraction.
    Number,
    /// A string.
    Text,
    /// A number or a string.
    NumberOrText,
    /// Any value; it is checked elsewhere (changes of a variant).
    Any,
    /// One of these strings.
    OneOf(&'static [&'static str]),
    /// A list.
    List(Box<Shape>),
    /// A table whose keys are chosen by the author.
    Named(Box<Shape>),
    /// A table with fixed keys; created once, since many places of a file use it.
    Table(&'static LazyLock<Table>),
}

/// A table with fixed keys.
#[derive(Debug, Clone)]
pub struct Table {
    /// Name of the Rust type, used for anchors in the reference.
    pub name: &'static str,
    /// What it describes.
    pub doc: String,
    /// The key that determines which other keys are valid (`kind`, `mode`, `model`), if there is one.
    pub tag: Option<&'static str>,
    /// All its keys, in order.
    pub keys: Vec<Key>,
}

/// One key of a table.
#[derive(Debug, Clone)]
pub struct Key {
    /// Name in the file.
    pub name: &'static str,
    /// Valid values.
    pub shape: Shape,
    /// Description, with units.
    pub doc: String,
    /// Default as TOML; `None`: the key is optional, and `doc` states the meaning of its absence.
    pub default: Option<String>,
    /// Whether the key is mandatory.
    pub required: bool,
    /// Smallest and largest valid number.
    pub range: Option<(f64, f64)>,
    /// Valid only if the tag of the table has one of these values; empty: always.
    pub only: Vec<&'static str>,
}

/// A type that can be part of a scenario file.
pub trait Described {
    /// Structure of the values in a scenario file.
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
    anabranch_cc::Algorithm => Shape::OneOf(<Self>::NAMES),
    anabranch_ran::queue::Algorithm => Shape::OneOf(<Self>::NAMES),
    anabranch_ran::sched::InterAlgorithm => Shape::OneOf(<Self>::NAMES),
    anabranch_ran::sched::IntraKind => Shape::OneOf(<Self>::NAMES),
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

/// The default of a key in TOML syntax.
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
    /// An optional key without restrictions.
    #[must_use]
    pub fn new(name: &'static str, shape: Shape, doc: &[&str], default: Option<String>) -> Self {
        let doc = doc_text(doc);
        Self { name, shape, doc, default, required: false, range: None, only: Vec::new() }
    }

    /// Makes the key mandatory.
    #[must_use]
    pub fn required(self) -> Self {
        Self { required: true, default: None, ..self }
    }

    /// Sets the smallest and largest valid number.
    #[must_use]
    pub fn range(self, low: f64, high: f64) -> Self {
        Self { range: Some((low, high)), ..self }
    }

    /// Restricts the key to tables whose tag is one of `tags`.
    #[must_use]
    pub fn only(self, tags: &[&'static str]) -> Self {
        Self { only: tags.to_vec(), ..self }
    }
}

/// Declares a table of the scenario format: a struct, its defaults and its description.
///
/// The default of a key may be followed by `required()`, `range(low, high)` and `only(&["tag"])`.
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
                static TABLE: std::sync::LazyLock<schema::Table> = std::sync::LazyLock::new(|| {
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
                });
                schema::Shape::Table(&TABLE)
            }
        }
    };
}

/// Declares an enum that is written as one of several strings. The first is the default.
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
                $crate::scenario::schema::Shape::OneOf(<Self>::NAMES)
            }
        }
    };
}

pub(crate) use {choice, table};
