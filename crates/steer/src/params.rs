//! Parameters of the modes. One declaration defines the type, its serialised form, its ranges, and the
//! descriptions in files, forms, flags and documentation.

use crate::PolicyError;
use anabranch_rules::AccessName;
use serde::Serializer;
use serde::ser::SerializeMap;
use serde_json::Value as Json;

/// The type of a parameter's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParamKind {
    /// `true` or `false`.
    Bool,
    /// An integer from 0 to this.
    Integer(u32),
    /// A number.
    Number,
    /// The name of an access.
    Access,
    /// A list of [`Weight`](crate::load_balance::Weight)s.
    Weights,
    /// One of these words.
    Words(&'static [&'static str]),
}

/// A parameter of a mode.
#[derive(Debug, Clone)]
pub struct Param {
    /// Its key in files and requests; the flag of `ctl` has `-` in place of `_`.
    pub name: &'static str,
    /// The type of its values.
    pub kind: ParamKind,
    /// Its meaning and unit, without a full stop.
    pub about: &'static str,
    /// Whether it must be given.
    pub required: bool,
    /// Its default; `None` without `required`: as stated in `about`.
    pub default: Option<Json>,
    /// Smallest and largest valid number, if the type allows others.
    pub range: Option<(f64, f64)>,
    /// The unit of the range, for messages.
    unit: &'static str,
    /// It is not serialised while it has its default.
    quiet: bool,
}

impl Param {
    /// A parameter of type `T`; without a default it must be given.
    #[must_use]
    pub fn new<T: Value>(name: &'static str, about: &'static str, default: Option<T>) -> Self {
        let required = default.is_none();
        let default = default.map(|value| value.json()).filter(|value| !value.is_null());
        let about = about.trim_start().trim_end_matches('.');
        Self { name, kind: T::KIND, about, required, default, range: None, unit: "", quiet: false }
    }

    /// Sets the smallest and largest valid number, and their unit.
    #[must_use]
    pub fn range(self, least: f64, most: f64, unit: &'static str) -> Self {
        Self { range: Some((least, most)), unit, ..self }
    }

    /// It is not serialised while it has its default.
    #[must_use]
    pub fn quiet(self) -> Self {
        Self { quiet: true, ..self }
    }
}

/// A type of parameter values.
pub trait Value {
    /// The kind of its values.
    const KIND: ParamKind;

    /// The serialised value; null: it is left out.
    fn json(&self) -> Json;

    /// The value as a number, if it is one.
    fn number(&self) -> Option<f64> {
        None
    }

    /// The accesses that it names.
    fn accesses(&self) -> Vec<&AccessName> {
        Vec::new()
    }
}

macro_rules! numbers {
    ($($ty:ident $kind:expr;)+) => { $(
        impl Value for $ty {
            const KIND: ParamKind = $kind;
            fn json(&self) -> Json {
                Json::from(*self)
            }
            fn number(&self) -> Option<f64> {
                Some(f64::from(*self))
            }
        }
    )+ };
}

numbers! {
    u8 ParamKind::Integer(u8::MAX as u32);
    u16 ParamKind::Integer(u16::MAX as u32);
    u32 ParamKind::Integer(u32::MAX);
    f64 ParamKind::Number;
}

impl Value for bool {
    const KIND: ParamKind = ParamKind::Bool;
    fn json(&self) -> Json {
        Json::from(*self)
    }
}

impl Value for AccessName {
    const KIND: ParamKind = ParamKind::Access;
    fn json(&self) -> Json {
        Json::from(self.as_str())
    }
    fn accesses(&self) -> Vec<&AccessName> {
        vec![self]
    }
}

impl<T: Value> Value for Option<T> {
    const KIND: ParamKind = T::KIND;
    fn json(&self) -> Json {
        self.as_ref().map_or(Json::Null, Value::json)
    }
    fn number(&self) -> Option<f64> {
        self.as_ref().and_then(Value::number)
    }
}

/// A parameter's value in several forms.
#[derive(Debug)]
pub struct ParamValue<'a> {
    /// The serialised value; null: it is left out.
    pub json: Json,
    /// The value as a number, if it is one.
    pub number: Option<f64>,
    /// The accesses that it names.
    pub accesses: Vec<&'a AccessName>,
}

impl<'a, T: Value> From<&'a T> for ParamValue<'a> {
    fn from(value: &'a T) -> Self {
        Self { json: value.json(), number: value.number(), accesses: value.accesses() }
    }
}

/// Parameters of a mode; [`params!`] declares them.
pub trait Params {
    /// All parameters.
    fn all() -> &'static [Param];

    /// Their values, in the same order.
    fn values(&self) -> Vec<ParamValue<'_>>;

    /// Checks that every number is in its range.
    ///
    /// # Errors
    /// The first number out of range.
    fn check(&self, mode: &'static str) -> Result<(), PolicyError> {
        for (param, given) in Self::all().iter().zip(self.values()) {
            // NaN is in no range.
            if let (Some((least, most)), Some(value)) = (param.range, given.number)
                && !(least..=most).contains(&value)
            {
                let unit = if param.unit.is_empty() { String::new() } else { format!(" ({})", param.unit) };
                let valid = format!("{least} to {most}{unit}");
                return Err(PolicyError::Range { mode, key: param.name, value, valid });
            }
        }
        Ok(())
    }

    /// Serialises them as a table.
    ///
    /// # Errors
    /// The serializer's error.
    fn write<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (param, ParamValue { json, .. }) in Self::all().iter().zip(self.values()) {
            let is_left_out = json.is_null() || param.quiet && param.default.as_ref() == Some(&json);
            if !is_left_out {
                map.serialize_entry(param.name, &json)?;
            }
        }
        map.end()
    }
}

/// Declares the parameters of a mode. One without a default is required. The default may be followed by
/// `range(least, most, "unit")` and `quiet()`: it is not serialised while it has its default.
///
/// The caller depends on `serde` with `derive`.
#[macro_export]
macro_rules! params {
    (@default) => {
        None
    };
    (@default $default:expr) => {
        Some($default)
    };
    (@value $ty:ty) => {
        <$ty>::default()
    };
    (@value $ty:ty, $default:expr) => {
        $default
    };
    (
        $(#[doc = $about:literal])+
        pub struct Params {
            $(
                $(#[doc = $doc:literal])+
                $key:ident: $ty:ty $(= $default:expr)? $(, $option:ident($($arg:expr),*))*;
            )*
        }
    ) => {
        $(#[doc = $about])+
        #[derive(Debug, Clone, PartialEq)]
        pub struct Params {
            $( $(#[doc = $doc])+ pub $key: $ty, )*
        }

        impl Default for Params {
            /// Required parameters are empty.
            fn default() -> Self {
                Self { $( $key: $crate::params!(@value $ty $(, $default)?), )* }
            }
        }

        impl $crate::Params for Params {
            fn all() -> &'static [$crate::Param] {
                static ALL: std::sync::LazyLock<Vec<$crate::Param>> = std::sync::LazyLock::new(|| vec![ $(
                    $crate::Param::new::<$ty>(
                        stringify!($key),
                        concat!($($doc),+),
                        $crate::params!(@default $($default)?),
                    )$(.$option($($arg),*))*,
                )* ]);
                &ALL
            }

            fn values(&self) -> Vec<$crate::ParamValue<'_>> {
                vec![$( (&self.$key).into(), )*]
            }
        }

        impl serde::Serialize for Params {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                $crate::Params::write(self, serializer)
            }
        }

        impl<'de> serde::Deserialize<'de> for Params {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                #[derive(serde::Deserialize)]
                #[serde(deny_unknown_fields)]
                struct Written {
                    $( #[serde(default, deserialize_with = "given")] $key: Option<$ty>, )*
                }
                // A present value counts even if it is null, which is an error unless the type allows it.
                fn given<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
                where
                    D: serde::Deserializer<'de>,
                    T: serde::Deserialize<'de>,
                {
                    T::deserialize(deserializer).map(Some)
                }
                let written = Written::deserialize(deserializer)?;
                let missing = <D::Error as serde::de::Error>::missing_field;
                Ok(Self { $(
                    $key: written.$key.or_else(|| $crate::params!(@default $($default)?))
                        .ok_or_else(|| missing(stringify!($key)))?,
                )* })
            }
        }
    };
}
