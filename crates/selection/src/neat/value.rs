//! Values of properties, and their intersections.

use super::NeatError;
use serde_json::{Map, Number, Value as Json, json};
use std::cmp::Ordering;
use std::fmt;

/// A single value.
#[derive(Debug, Clone, PartialEq)]
pub enum Scalar {
    /// A Boolean; equal to 0 or 1.
    Bool(bool),
    /// A number.
    Number(f64),
    /// A text.
    Text(String),
}

impl Scalar {
    /// The value as a number, if it is one.
    #[must_use]
    pub fn number(&self) -> Option<f64> {
        match self {
            Self::Bool(b) => Some(f64::from(u8::from(*b))),
            Self::Number(n) => Some(*n),
            Self::Text(_) => None,
        }
    }

    fn order(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Text(a), Self::Text(b)) => a.cmp(b),
            (Self::Text(_), _) => Ordering::Greater,
            (_, Self::Text(_)) => Ordering::Less,
            (a, b) => a.number().unwrap_or(0.0).total_cmp(&b.number().unwrap_or(0.0)),
        }
    }

    fn same(&self, other: &Self) -> bool {
        self.order(other) == Ordering::Equal
    }

    fn json(&self) -> Json {
        match self {
            Self::Bool(b) => Json::Bool(*b),
            Self::Number(n) => number_json(*n),
            Self::Text(t) => Json::String(t.clone()),
        }
    }
}

/// The value of a property.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Any value (`null`).
    Any,
    /// One value.
    Single(Scalar),
    /// Two or more distinct values, in order.
    Set(Vec<Scalar>),
    /// A number in this closed range.
    Range(f64, f64),
}

impl Value {
    /// Reads a value.
    ///
    /// # Errors
    /// The fault.
    pub fn from_json(json: &Json) -> Result<Self, NeatError> {
        let wrong = |reason: String| NeatError::new("value", reason);
        Ok(match json {
            Json::Null => Self::Any,
            Json::Array(all) => {
                let set: Result<Vec<Scalar>, NeatError> = all.iter().map(scalar).collect();
                Self::set(set?)
                    .ok_or_else(|| wrong("an empty set matches nothing; write null for anything".into()))?
            }
            Json::Object(range) => {
                let end = |name: &str| {
                    range.get(name).and_then(bound).ok_or_else(|| {
                        wrong(format!(
                            "a range is {{\"start\": number, \"end\": number}}; \"{name}\" is not one"
                        ))
                    })
                };
                let (start, end) = (end("start")?, end("end")?);
                if start > end {
                    return Err(wrong(format!("the range starts at {start}, after its end {end}")));
                }
                Self::Range(start, end)
            }
            single => Self::Single(scalar(single)?),
        })
    }

    fn set(mut all: Vec<Scalar>) -> Option<Self> {
        all.sort_by(Scalar::order);
        all.dedup_by(|a, b| a.same(b));
        match all.len() {
            0 => None,
            1 => all.pop().map(Self::Single),
            _ => Some(Self::Set(all)),
        }
    }

    /// The values that both permit, if any.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Option<Self> {
        match (self, other) {
            (Self::Any, known) | (known, Self::Any) => Some(known.clone()),
            (Self::Range(a, b), Self::Range(c, d)) => {
                let (start, end) = (a.max(*c), b.min(*d));
                if start > end {
                    None
                } else if start == end {
                    Some(Self::Single(Scalar::Number(start)))
                } else {
                    Some(Self::Range(start, end))
                }
            }
            (Self::Range(start, end), some) | (some, Self::Range(start, end)) => {
                let within = |s: &&Scalar| s.number().is_some_and(|n| *start <= n && n <= *end);
                Self::set(some.scalars().iter().filter(within).cloned().collect())
            }
            (a, b) => {
                let both = |s: &&Scalar| a.scalars().iter().any(|o| o.same(s));
                Self::set(b.scalars().iter().filter(both).cloned().collect())
            }
        }
    }

    /// The listed values; empty for a range or any value.
    #[must_use]
    pub fn scalars(&self) -> &[Scalar] {
        match self {
            Self::Single(s) => std::slice::from_ref(s),
            Self::Set(all) => all,
            Self::Any | Self::Range(..) => &[],
        }
    }

    /// As JSON; infinite bounds of ranges are the text `"Inf"` or `"-Inf"`.
    #[must_use]
    pub fn json(&self) -> Json {
        match self {
            Self::Any => Json::Null,
            Self::Single(s) => s.json(),
            Self::Set(all) => all.iter().map(Scalar::json).collect(),
            Self::Range(start, end) => json!({"start": number_json(*start), "end": number_json(*end)}),
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.json())
    }
}

/// A number, written as an integer if it is whole; non-finite numbers are text.
pub(super) fn number_json(n: f64) -> Json {
    if n == f64::INFINITY {
        "Inf".into()
    } else if n == f64::NEG_INFINITY {
        "-Inf".into()
    } else if n.fract() == 0.0 && n.abs() < 9e15 {
        // Whole and small enough for an exact cast.
        Json::Number(Number::from(n as i64))
    } else {
        Number::from_f64(n).map_or(Json::Null, Json::Number)
    }
}

fn scalar(json: &Json) -> Result<Scalar, NeatError> {
    match json {
        Json::Bool(b) => Ok(Scalar::Bool(*b)),
        Json::Number(n) => n
            .as_f64()
            .map(Scalar::Number)
            .ok_or_else(|| NeatError::new("value", format!("{n} is beyond the range of numbers"))),
        Json::String(s) => Ok(Scalar::Text(s.clone())),
        other => Err(NeatError::new(
            "value",
            format!("{other} cannot be in a set; write texts, numbers or truth values"),
        )),
    }
}

/// A bound of a range: a number, or a text for infinity.
fn bound(json: &Json) -> Option<f64> {
    match json {
        Json::Number(n) => n.as_f64(),
        Json::Bool(b) => Some(f64::from(u8::from(*b))),
        Json::String(s) => match s.trim().to_ascii_lowercase().as_str() {
            "inf" | "infinity" => Some(f64::INFINITY),
            "-inf" | "-infinity" => Some(f64::NEG_INFINITY),
            _ => None,
        },
        _ => None,
    }
}

/// A JSON object; an error for any other value.
pub(super) fn object<'a>(json: &'a Json, place: &str) -> Result<&'a Map<String, Json>, NeatError> {
    json.as_object().ok_or_else(|| {
        NeatError::new(place, "this is to be an object, such as {\"transport\": {\"value\": \"TCP\"}}")
    })
}
