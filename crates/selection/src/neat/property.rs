//! A property: its value, precedence and score.

use super::NeatError;
use super::value::{Value, number_json};
use serde_json::{Value as Json, json};

/// Precedence of a property.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Precedence {
    /// 0: a default.
    Base,
    /// 1: requested, may change.
    Optional,
    /// 2: immutable. Facts about slices from the network have this precedence.
    Immutable,
}

impl Precedence {
    const fn number(self) -> u8 {
        match self {
            Self::Base => 0,
            Self::Optional => 1,
            Self::Immutable => 2,
        }
    }
}

/// One property, without its key.
#[derive(Debug, Clone, PartialEq)]
pub struct Property {
    /// Its value: a number, text, range or set.
    pub value: Value,
    /// Base, optional or immutable.
    pub precedence: Precedence,
    /// Contribution to the rank of a candidate.
    pub score: f64,
    /// Whether it was compared with another property.
    pub evaluated: bool,
}

impl Property {
    /// A property with score 0.
    #[must_use]
    pub const fn new(value: Value, precedence: Precedence) -> Self {
        Self { value, precedence, score: 0.0, evaluated: false }
    }

    /// Reads a property; irrelevant keys such as `description` and `banned` are ignored.
    ///
    /// # Errors
    /// The property and its fault.
    pub fn from_json(key: &str, json: &Json) -> Result<Self, NeatError> {
        let wrong = |reason: String| NeatError::new(format!("property \"{key}\""), reason);
        let object = json.as_object().ok_or_else(|| {
            wrong(format!("{json} is no property; write {{\"value\": {json}, \"precedence\": 1}}"))
        })?;
        let value = Value::from_json(object.get("value").unwrap_or(&Json::Null))
            .map_err(|e| e.within(&format!("property \"{key}\"")))?;
        let precedence = match object.get("precedence") {
            None => Precedence::Optional,
            Some(p) => match p.as_f64() {
                Some(0.0) => Precedence::Base,
                Some(1.0) => Precedence::Optional,
                Some(2.0) => Precedence::Immutable,
                _ => return Err(wrong(format!("precedence {p} is none; write 0, 1 or 2"))),
            },
        };
        let score = object.get("score").map_or(Some(0.0), Json::as_f64).filter(|s| s.is_finite());
        let evaluated = object.get("evaluated").map_or(Some(false), Json::as_bool);
        Ok(Self {
            value,
            precedence,
            score: score.ok_or_else(|| wrong("\"score\" is a number".into()))?,
            evaluated: evaluated.ok_or_else(|| wrong("\"evaluated\" is true or false".into()))?,
        })
    }

    /// As JSON with every attribute.
    #[must_use]
    pub fn json(&self) -> Json {
        json!({
            "value": self.value.json(),
            "precedence": self.precedence.number(),
            "score": number_json(self.score),
            "evaluated": self.evaluated,
        })
    }

    /// This property overridden by another one with the same key.
    ///
    /// # Errors
    /// Both are immutable and differ.
    pub fn merged(&self, over: &Self, key: &str) -> Result<Self, NeatError> {
        // A default is overridden by any existing property, and this does not count as a comparison.
        if over.precedence == Precedence::Base {
            let mut base = over.clone();
            base.update(self, false, key)?;
            return Ok(base);
        }
        let mut new = self.clone();
        new.update(over, true, key)?;
        Ok(new)
    }

    fn update(&mut self, other: &Self, evaluated: bool, key: &str) -> Result<(), NeatError> {
        self.evaluated = evaluated;
        if let Some(both) = self.value.intersection(&other.value) {
            self.value = both;
            self.score += other.score;
            self.precedence = self.precedence.max(other.precedence);
        } else if self.precedence == Precedence::Immutable && other.precedence == Precedence::Immutable {
            return Err(NeatError::new(
                format!("property \"{key}\""),
                format!("{} and {} are both of precedence 2, and differ", self.value, other.value),
            ));
        } else if other.precedence >= self.precedence {
            self.value = other.value.clone();
            self.score = other.score;
            self.precedence = other.precedence;
        }
        Ok(())
    }

    /// Adds a property with the same key, for files that contain a key twice.
    pub(super) fn add(&mut self, other: &Self, key: &str) -> Result<(), NeatError> {
        self.update(other, true, key)
    }

    /// Whether there is a value that both permit.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        self.value.intersection(&other.value).is_some()
    }
}
