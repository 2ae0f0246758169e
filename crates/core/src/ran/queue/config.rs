//! Queue disciplines by name, and their parameters as a person writes them.

use super::vanilla::Fifo;
use super::{AnyBuffer, AnyLimiter, BearerParams};
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The disciplines by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Algorithm {
    /// Everything at once into a FIFO.
    Vanilla,
}

impl Algorithm {
    /// Every discipline, in the order of the paper's tables.
    pub const ALL: [Self; 1] = [Self::Vanilla];

    /// Its name in files and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Vanilla => "vanilla",
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that is no queue discipline.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no queue discipline \"{name}\"{}; there are: {}", nearest(name), names())]
pub struct UnknownAlgorithm {
    /// The name as written.
    pub name: String,
}

impl FromStr for Algorithm {
    type Err = UnknownAlgorithm;
    fn from_str(name: &str) -> Result<Self, UnknownAlgorithm> {
        Self::ALL
            .into_iter()
            .find(|a| a.name() == name)
            .ok_or_else(|| UnknownAlgorithm { name: name.to_owned() })
    }
}

impl TryFrom<String> for Algorithm {
    type Error = UnknownAlgorithm;
    fn try_from(name: String) -> Result<Self, UnknownAlgorithm> {
        name.parse()
    }
}

impl From<Algorithm> for String {
    fn from(algorithm: Algorithm) -> Self {
        algorithm.name().to_owned()
    }
}

fn names() -> String {
    Algorithm::ALL.map(Algorithm::name).join(", ")
}

fn nearest(name: &str) -> String {
    Algorithm::ALL
        .into_iter()
        .map(|a| (strsim::jaro_winkler(&name.to_lowercase(), a.name()), a))
        .filter(|(likeness, _)| *likeness > 0.7)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map_or_else(String::new, |(_, a)| format!(", did you mean \"{a}\"?"))
}

/// A discipline and its parameters, as written: a name, or a table with `algorithm` and some of its
/// parameters. What is left out has the default of the discipline's own file.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "algorithm", rename_all = "snake_case")]
pub enum QueueConfig {
    /// Everything at once into a FIFO; no parameters.
    Vanilla,
}

/// A parameter out of its range.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("queue {algorithm}: {key} = {value}: {remedy}")]
pub struct QueueError {
    /// The discipline.
    pub algorithm: Algorithm,
    /// The key as written.
    pub key: &'static str,
    /// Its value.
    pub value: String,
    /// What would be valid.
    pub remedy: &'static str,
}

impl QueueConfig {
    /// The discipline's name.
    #[must_use]
    pub fn algorithm(&self) -> Algorithm {
        match self {
            Self::Vanilla => Algorithm::Vanilla,
        }
    }

    /// The limiter and the buffer of a bearer.
    ///
    /// # Errors
    /// A parameter is out of its range; the error names it and the range.
    pub fn build(&self, params: BearerParams) -> Result<(AnyLimiter, AnyBuffer), QueueError> {
        let fifo = || AnyBuffer::Fifo(Fifo::new(params.limit));
        Ok(match self {
            Self::Vanilla => (AnyLimiter::Open, fifo()),
        })
    }
}

impl From<Algorithm> for QueueConfig {
    fn from(algorithm: Algorithm) -> Self {
        match algorithm {
            Algorithm::Vanilla => Self::Vanilla,
        }
    }
}

impl FromStr for QueueConfig {
    type Err = UnknownAlgorithm;
    fn from_str(name: &str) -> Result<Self, UnknownAlgorithm> {
        name.parse::<Algorithm>().map(Self::from)
    }
}

impl<'de> Deserialize<'de> for QueueConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        /// The table form; the name is checked first, for a better error than serde's.
        #[derive(Deserialize)]
        #[serde(tag = "algorithm", rename_all = "snake_case", deny_unknown_fields)]
        enum Table {
            Vanilla {},
        }
        struct NameOrTable;
        impl<'de> Visitor<'de> for NameOrTable {
            type Value = QueueConfig;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a queue discipline ({}), or a table with `algorithm` and its parameters", names())
            }
            fn visit_str<E: de::Error>(self, name: &str) -> Result<QueueConfig, E> {
                name.parse().map_err(E::custom)
            }
            fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<QueueConfig, M::Error> {
                Ok(match Table::deserialize(MapAccessDeserializer::new(map))? {
                    Table::Vanilla {} => QueueConfig::Vanilla,
                })
            }
        }
        deserializer.deserialize_any(NameOrTable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_or_a_table() {
        let parse = |text: &str| serde_json::from_str::<QueueConfig>(text);
        assert_eq!(parse("\"vanilla\"").unwrap(), QueueConfig::Vanilla);
        assert_eq!(parse("{\"algorithm\": \"vanilla\"}").unwrap(), QueueConfig::Vanilla);
        assert!(parse("\"vanila\"").unwrap_err().to_string().contains("did you mean \"vanilla\"?"));
        assert!(parse("{\"algorithm\": \"vanilla\", \"target_ms\": 1}").is_err());
        assert!(parse("3").unwrap_err().to_string().contains("a queue discipline"));
        for algorithm in Algorithm::ALL {
            let config = QueueConfig::from(algorithm);
            assert_eq!(config.algorithm(), algorithm);
            let written = serde_json::to_string(&config).unwrap();
            assert_eq!(parse(&written).unwrap(), config);
            config.build(BearerParams::default()).unwrap();
        }
    }
}
