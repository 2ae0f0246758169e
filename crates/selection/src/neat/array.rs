//! Sets of properties, and lists of alternative ones.

use super::property::{Precedence, Property};
use super::value::object;
use super::{MAX_ROWS, NeatError};
use serde_json::{Map, Value as Json};
use std::cmp::Ordering;
use std::collections::BTreeMap;

/// Properties by key, which is in lower case.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PropertyArray(BTreeMap<String, Property>);

/// Score of an array, in two parts: properties that were compared, and the others.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Score {
    /// Sum over properties that were compared with another one.
    pub evaluated: f64,
    /// Sum over the others.
    pub other: f64,
}

impl Score {
    /// Orders the better score first.
    pub(super) fn best_first(&self, other: &Self) -> Ordering {
        other.evaluated.total_cmp(&self.evaluated).then(other.other.total_cmp(&self.other))
    }
}

impl PropertyArray {
    /// Reads an object of properties. A list as value means several properties with the same key, each overriding the previous one.
    ///
    /// # Errors
    /// The faulty property.
    pub fn from_json(json: &Json) -> Result<Self, NeatError> {
        let mut array = Self::default();
        for (key, attributes) in object(json, "properties")? {
            for property in list(attributes) {
                array.add(key, Property::from_json(key, property)?)?;
            }
        }
        Ok(array)
    }

    /// Reads an object of properties in which a list as value means alternatives, as in requests.
    pub(super) fn alternatives(json: &Json) -> Result<MultiArray, NeatError> {
        let mut by_key: BTreeMap<String, Vec<Property>> = BTreeMap::new();
        for (key, attributes) in object(json, "request")? {
            for property in list(attributes) {
                by_key.entry(key.to_lowercase()).or_default().push(Property::from_json(key, property)?);
            }
        }
        let mut single = Self::default();
        let mut multi = MultiArray::default();
        for (key, mut all) in by_key {
            match (all.pop(), all.is_empty()) {
                (Some(property), true) => drop(single.0.insert(key, property)),
                (Some(last), false) => {
                    all.push(last);
                    multi.0.push(all.into_iter().map(|p| Self(BTreeMap::from([(key.clone(), p)]))).collect());
                }
                (None, _) => {}
            }
        }
        multi.0.push(vec![single]);
        Ok(multi)
    }

    /// Adds a property, or updates the one with the same key.
    ///
    /// # Errors
    /// Both are immutable and differ.
    pub fn add(&mut self, key: &str, property: Property) -> Result<(), NeatError> {
        let key = key.to_lowercase();
        match self.0.get_mut(&key) {
            Some(there) => there.add(&property, &key),
            None => {
                self.0.insert(key, property);
                Ok(())
            }
        }
    }

    /// These properties overridden by others.
    ///
    /// # Errors
    /// A property is immutable in both, and differs.
    pub fn plus(&self, other: &Self) -> Result<Self, NeatError> {
        let mut sum = self.clone();
        for (key, property) in &other.0 {
            let new = match self.0.get(key) {
                Some(mine) => mine.merged(property, key)?,
                None => property.clone(),
            };
            sum.0.insert(key.clone(), new);
        }
        Ok(sum)
    }

    /// These properties, completed by those of `others` with other keys.
    pub(super) fn before(&self, others: &Self) -> Self {
        let mut row = others.clone();
        row.0.extend(self.0.clone());
        row
    }

    /// Whether every property here overlaps with one of `other`.
    #[must_use]
    pub fn is_within(&self, other: &Self) -> bool {
        self.0.iter().all(|(key, property)| other.0.get(key).is_some_and(|o| property.overlaps(o)))
    }

    /// Whether both have the same keys and all properties overlap, which is NEAT's definition of equality.
    pub(super) fn equals(&self, other: &Self) -> bool {
        self.0.len() == other.0.len() && self.is_within(other)
    }

    /// The immutable properties.
    pub(super) fn immutable(&self) -> impl Iterator<Item = (&String, &Property)> {
        self.0.iter().filter(|(_, p)| p.precedence == Precedence::Immutable)
    }

    /// The score.
    #[must_use]
    pub fn score(&self) -> Score {
        let sum = |evaluated: bool| {
            self.0.values().filter(|p| p.evaluated == evaluated).map(|p| p.score).fold(0.0, |a, b| a + b)
        };
        Score { evaluated: sum(true), other: sum(false) }
    }

    /// The property with a key in lower case.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Property> {
        self.0.get(key)
    }

    /// All properties, by key.
    pub fn iter(&self) -> impl Iterator<Item = (&String, &Property)> {
        self.0.iter()
    }

    /// Number of properties.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn remove(&mut self, key: &str) -> Option<Property> {
        self.0.remove(key)
    }

    /// As JSON with every attribute, by key.
    #[must_use]
    pub fn json(&self) -> Json {
        Json::Object(self.0.iter().map(|(k, p)| (k.clone(), p.json())).collect::<Map<_, _>>())
    }

    /// Text that determines the order of equals.
    pub(super) fn text(&self) -> String {
        self.json().to_string()
    }
}

/// A list of alternatives for each of several groups of properties; it represents their product.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct MultiArray(pub(super) Vec<Vec<PropertyArray>>);

impl MultiArray {
    /// Reads `properties` of a file: an object, or a list of objects and of lists of alternative objects.
    ///
    /// # Errors
    /// The faulty property, or too many alternatives.
    pub fn from_json(json: Option<&Json>) -> Result<Self, NeatError> {
        let groups = json.map_or(&[][..], list);
        let mut multi = Self::default();
        for group in groups {
            multi.0.push(list(group).iter().map(PropertyArray::from_json).collect::<Result<_, _>>()?);
        }
        multi.expand()?;
        Ok(multi)
    }

    /// Every combination; the last group varies fastest.
    ///
    /// # Errors
    /// Two groups differ in an immutable property, or there are too many combinations.
    pub fn expand(&self) -> Result<Vec<PropertyArray>, NeatError> {
        let count = self.0.iter().fold(1usize, |n, group| n.saturating_mul(group.len()));
        if count > MAX_ROWS {
            return Err(NeatError::too_many("properties"));
        }
        let mut all = vec![PropertyArray::default()];
        for group in &self.0 {
            let mut next = Vec::with_capacity(all.len() * group.len());
            for array in &all {
                for alternative in group {
                    let mut both = array.clone();
                    for (key, property) in &alternative.0 {
                        both.add(key, property.clone())?;
                    }
                    next.push(both);
                }
            }
            all = next;
        }
        Ok(all)
    }

    pub(super) fn json(&self) -> Json {
        self.0.iter().map(|group| group.iter().map(PropertyArray::json).collect::<Json>()).collect()
    }
}

/// The elements of a list; any other value is treated as a list with one element.
pub(super) fn list(json: &Json) -> &[Json] {
    json.as_array().map_or(std::slice::from_ref(json), Vec::as_slice)
}
