//! One property: a value, how fixed it is, and what it weighs.

use super::NeatError;
use super::value::{Value, number_json};
use serde_json::{Value as Json, json};

/// How fixed a property is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Precedence {
    /// 0: a default, for those who say nothing.
    Base,
    /// 1: asked for, may change.
    Optional,
    /// 2: cannot change. What the network says of a slice is of this kind.
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
    /// Its value.
    pub value: Value,
    /// How fixed it is.
    pub precedence: Precedence,
    /// What it weighs.
    pub score: f64,
    /// Whether another one was compared with it.
    pub evaluated: bool,
}

impl Property {
    /// A property of no weight.
    #[must_use]
    pub const fn new(value: Value, precedence: Precedence) -> Self {
        Self { value, precedence, score: 0.0, evaluated: false }
    }

    /// Reads one; keys that mean nothing here, such as `description` and `banned`, are passed over.
    ///
    /// # Errors
    /// The property, and what is wrong with it.
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

    /// As JSON, every attribute given.
    #[must_use]
    pub fn json(&self) -> Json {
        json!({
            "value": self.value.json(),
            "precedence": self.precedence.number(),
            "score": number_json(self.score),
            "evaluated": self.evaluated,
        })
    }

    /// This property with another one of the same key laid over it.
    ///
    /// # Errors
    /// If both are immutable and differ.
    pub fn merged(&self, over: &Self, key: &str) -> Result<Self, NeatError> {
        // A default gives way to whatever is there, and that does not count as a comparison.
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

    /// Adds one of the same key, as a file that names a key twice does.
    pub(super) fn add(&mut self, other: &Self, key: &str) -> Result<(), NeatError> {
        self.update(other, true, key)
    }

    /// Whether both allow some value.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        self.value.intersection(&other.value).is_some()
    }
}
