//! Names in configuration files: enums of names, and suggestions for unknown names.
//!
//! ```
//! anabranch_element::names! {
//!     /// How a queue is served.
//!     pub enum Order("order") {
//!         Fifo = "fifo", "First in, first out.";
//!         Lifo = "lifo", "Last in, first out.";
//!     }
//! }
//! assert_eq!("lifo".parse(), Ok(Order::Lifo));
//! assert_eq!(
//!     "fivo".parse::<Order>().unwrap_err().to_string(),
//!     "no order \"fivo\"; did you mean \"fifo\"? (there are: fifo, lifo)"
//! );
//! ```

use std::fmt;

/// Declares an enum of names from one list of variants, names and descriptions, with parser, display and serde. The first
/// variant is the default.
///
/// The caller depends on `serde` with `derive`.
#[macro_export]
macro_rules! names {
    (
        $(#[$meta:meta])*
        pub enum $Name:ident($what:literal) { $( $Variant:ident = $name:literal, $about:literal; )+ }
    ) => {
        $(#[$meta])*
        #[derive(
            Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
        )]
        #[serde(try_from = "String", into = "String")]
        pub enum $Name { $( #[doc = $about] $Variant, )+ }

        impl $Name {
            /// Every value.
            pub const ALL: [Self; Self::NAMES.len()] = [$( Self::$Variant ),+];
            /// Every name, in the order of [`ALL`](Self::ALL).
            pub const NAMES: &[&str] = &[$( $name ),+];

            /// The name in files and reports.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $( Self::$Variant => $name, )+ }
            }

            /// A one-sentence description.
            #[must_use]
            pub const fn about(self) -> &'static str {
                match self { $( Self::$Variant => $about, )+ }
            }
        }

        impl Default for $Name {
            fn default() -> Self {
                Self::ALL[0]
            }
        }

        impl std::fmt::Display for $Name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }

        impl std::str::FromStr for $Name {
            type Err = $crate::names::UnknownName;
            fn from_str(name: &str) -> Result<Self, Self::Err> {
                let unknown = || $crate::names::UnknownName::new($what, name, Self::NAMES);
                Self::ALL.into_iter().find(|value| value.name() == name).ok_or_else(unknown)
            }
        }

        impl TryFrom<String> for $Name {
            type Error = $crate::names::UnknownName;
            fn try_from(name: String) -> Result<Self, Self::Error> {
                name.parse()
            }
        }

        impl From<$Name> for String {
            fn from(value: $Name) -> Self {
                value.name().to_owned()
            }
        }
    };
}

/// Error of parsing a name that is not among the valid ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownName {
    what: &'static str,
    name: String,
    valid: &'static [&'static str],
}

impl UnknownName {
    /// The error that `name` is not a valid `what`; `valid` lists the valid names.
    #[must_use]
    pub fn new(what: &'static str, name: &str, valid: &'static [&'static str]) -> Self {
        Self { what, name: name.to_owned(), valid }
    }
}

impl fmt::Display for UnknownName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, name, valid } = self;
        let hint = did_you_mean(name, valid.iter().copied());
        write!(f, "no {what} \"{name}\"{hint} (there are: {})", valid.join(", "))
    }
}

impl std::error::Error for UnknownName {}

/// `; did you mean "…"?` with the closest of `valid`, or an empty string if none is close.
pub fn did_you_mean<'a>(wrong: &str, valid: impl IntoIterator<Item = &'a str>) -> String {
    nearest(wrong, valid, 1).pop().map_or_else(String::new, |name| format!("; did you mean \"{name}\"?"))
}

/// Up to `most` of the names that are close enough to `wrong` to be meant, the closest first; ties in the given order. Case
/// is ignored.
pub fn nearest<'a>(wrong: &str, valid: impl IntoIterator<Item = &'a str>, most: usize) -> Vec<&'a str> {
    let wrong = wrong.to_lowercase();
    let letters = wrong.chars().count();
    let mut best: Vec<(f64, &str)> = Vec::with_capacity(most + 1);
    for written in valid {
        let name = written.to_lowercase();
        let enough = best.get(most.saturating_sub(1)).map_or(0.5, |(score, _)| *score);
        let mut score = prefix_score(&wrong, &name);
        // The edit distance is at least the difference of the lengths, which rules out most names without computing it.
        let count = name.chars().count();
        if 1.0 - letters.abs_diff(count) as f64 / letters.max(count).max(1) as f64 >= enough {
            score = score.max(strsim::normalized_damerau_levenshtein(&wrong, &name));
        }
        if score >= enough && best.iter().all(|(_, known)| *known != written) {
            best.insert(best.partition_point(|(better, _)| *better >= score), (score, written));
            best.truncate(most);
        }
    }
    best.into_iter().map(|(_, name)| name).collect()
}

/// A common prefix of at least three letters counts as much as a small edit distance.
fn prefix_score(a: &str, b: &str) -> f64 {
    let same = a.bytes().zip(b.bytes()).take_while(|(x, y)| x == y).count();
    if same < 3 { 0.0 } else { 0.9 * same as f64 / a.len().max(b.len()) as f64 + 0.1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suggestions_are_close_names_only() {
        let keys = ["rate_mbps", "delay_ms", "jitter_ms", "queue_bytes"];
        assert_eq!(did_you_mean("rate_mbit", keys), "; did you mean \"rate_mbps\"?");
        assert_eq!(nearest("Dealy_ms", keys, 1), ["delay_ms"]);
        assert_eq!(did_you_mean("colour", keys), "");
        assert_eq!(
            nearest("delay", ["relay", "delays", "delay_s", "decay", "delta"], 3),
            ["delays", "relay", "decay"]
        );
    }

    proptest::proptest! {
        /// Names ruled out by their length would not be among the closest.
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
            proptest::prop_assert_eq!(nearest(&wrong, valid.iter().map(String::as_str), most), all);
        }
    }
}
