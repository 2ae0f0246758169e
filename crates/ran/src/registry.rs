//! Common parts of the registries of queue disciplines and schedulers. An algorithm is configured by its name, or by a table
//! with `algorithm` and some of its parameters.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Parameters of an algorithm that has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoParams {}

/// A parameter is out of range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key} = {value}: must be {remedy}")]
pub struct OutOfRange {
    /// The configuration key.
    pub key: &'static str,
    /// The configured value.
    pub value: String,
    /// The valid values.
    pub remedy: &'static str,
}

/// Returns an error about `key` unless `ok`.
pub(crate) fn in_range(
    key: &'static str,
    value: impl fmt::Display,
    ok: bool,
    remedy: &'static str,
) -> Result<(), OutOfRange> {
    if ok { Ok(()) } else { Err(OutOfRange { key, value: value.to_string(), remedy }) }
}

/// Declares the enum of names and the enum of configurations.
macro_rules! configs {
    (
        $(#[$names_meta:meta])* $Name:ident($what:literal);
        $(#[$meta:meta])* $Config:ident { $( $Variant:ident($Params:ty) = $name:literal, $about:literal; )+ }
    ) => {
        anabranch_element::names! {
            $(#[$names_meta])*
            pub enum $Name($what) { $( $Variant = $name, $about; )+ }
        }

        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(remote = "Self", tag = "algorithm")]
        pub enum $Config {
            $( #[doc = $about] #[serde(rename = $name)] $Variant($Params), )+
        }

        impl $Config {
            /// The name.
            #[must_use]
            pub const fn algorithm(&self) -> $Name {
                match self { $( Self::$Variant(_) => $Name::$Variant, )+ }
            }
        }

        impl From<$Name> for $Config {
            fn from(algorithm: $Name) -> Self {
                match algorithm { $( $Name::$Variant => Self::$Variant(<$Params>::default()), )+ }
            }
        }

        impl std::str::FromStr for $Config {
            type Err = anabranch_element::names::UnknownName;
            fn from_str(name: &str) -> Result<Self, Self::Err> {
                name.parse::<$Name>().map(Self::from)
            }
        }

        impl serde::Serialize for $Config {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                Self::serialize(self, serializer)
            }
        }

        impl<'de> serde::Deserialize<'de> for $Config {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct NameOrTable;
                impl<'de> serde::de::Visitor<'de> for NameOrTable {
                    type Value = $Config;
                    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        let names = $Name::NAMES.join(", ");
                        write!(f, concat!("a ", $what, " ({}), or a table with `algorithm` and its parameters"), names)
                    }
                    fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<$Config, E> {
                        name.parse().map_err(E::custom)
                    }
                    fn visit_map<M: serde::de::MapAccess<'de>>(self, map: M) -> Result<$Config, M::Error> {
                        $Config::deserialize(serde::de::value::MapAccessDeserializer::new(map))
                    }
                }
                deserializer.deserialize_any(NameOrTable)
            }
        }
    };
}
pub(crate) use configs;
