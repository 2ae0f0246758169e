//! Policies and profiles: their match conditions and added properties.

use super::array::{MultiArray, PropertyArray};
use super::{MAX_ENTRIES, MAX_ROWS, NeatError, json};
use serde_json::{Value as Json, json};
use siphasher::sip::SipHasher24;
use std::collections::BTreeMap;
use std::hash::Hasher;

/// One policy, or profile.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    /// Its name, in lower case.
    pub uid: String,
    /// Policies with smaller values are applied first.
    pub priority: i64,
    /// Whether the matched properties are removed before others are added.
    pub replace_matched: bool,
    /// Description.
    pub description: String,
    /// Whether it is declared as a profile (`policy_type`).
    pub is_profile: bool,
    /// Properties that a candidate must have; empty: any candidate.
    pub matches: PropertyArray,
    /// Properties to add, after expansion of alternatives.
    pub properties: Vec<PropertyArray>,
    written: MultiArray,
}

impl Policy {
    /// Reads a policy file.
    ///
    /// # Errors
    /// The faulty place, and the valid form.
    pub fn from_json(text: &str) -> Result<Self, NeatError> {
        Self::from_value(&json::parse(text, "policy")?)
    }

    /// Reads a policy file whose policy gets the name `uid`.
    ///
    /// # Errors
    /// Those of [`Policy::from_json`].
    pub fn named(uid: &str, text: &str) -> Result<Self, NeatError> {
        Self::from_value(&json::parse_named(text, "policy", uid)?)
    }

    /// Reads a policy.
    ///
    /// # Errors
    /// Those of [`Policy::from_json`].
    pub fn from_value(value: &Json) -> Result<Self, NeatError> {
        let object = super::value::object(value, "policy")?;
        let uid = uid(value).to_lowercase();
        let within = |e: NeatError| e.within(&format!("policy \"{uid}\""));
        let matches = object.get("match").map_or(Ok(PropertyArray::default()), PropertyArray::from_json);
        let written = MultiArray::from_json(object.get("properties")).map_err(within)?;
        let priority = match object.get("priority") {
            None => Some(0),
            Some(Json::String(text)) => text.trim().parse().ok(),
            // Truncates like Python's int().
            Some(number) => number.as_i64().or_else(|| number.as_f64().map(|n| n as i64)),
        };
        Ok(Self {
            priority: priority.ok_or_else(|| within(NeatError::new("priority", "write a whole number")))?,
            replace_matched: object.get("replace_matched").and_then(Json::as_bool).unwrap_or(false),
            description: text(object.get("description")),
            is_profile: text(object.get("policy_type")) == "profile",
            matches: matches.map_err(within)?,
            properties: written.expand().map_err(within)?,
            written,
            uid,
        })
    }

    /// As JSON.
    #[must_use]
    pub fn json(&self) -> Json {
        json!({
            "uid": self.uid,
            "priority": self.priority,
            "replace_matched": self.replace_matched,
            "description": self.description,
            "policy_type": if self.is_profile { "profile" } else { "policy" },
            "match": self.matches.json(),
            "properties": self.written.json(),
        })
    }
}

/// A repository of policies, or of profiles.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Pib(BTreeMap<String, Policy>);

impl Pib {
    /// Adds a policy, replacing one with the same uid.
    ///
    /// # Errors
    /// The repository is full.
    pub fn insert(&mut self, policy: Policy) -> Result<(), NeatError> {
        if self.0.len() >= MAX_ENTRIES && !self.0.contains_key(&policy.uid) {
            return Err(NeatError::new(policy.uid, format!("{MAX_ENTRIES} policies are there; remove one")));
        }
        self.0.insert(policy.uid.clone(), policy);
        Ok(())
    }

    /// Removes a policy.
    pub fn remove(&mut self, uid: &str) -> Option<Policy> {
        self.0.remove(&uid.to_lowercase())
    }

    /// The policy with this uid.
    #[must_use]
    pub fn get(&self, uid: &str) -> Option<&Policy> {
        self.0.get(&uid.to_lowercase())
    }

    /// All uids.
    pub fn uids(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Applies every matching policy in the order of priority; a candidate may become several, or none.
    ///
    /// # Errors
    /// Too many candidates.
    pub fn lookup(&self, input: PropertyArray) -> Result<Vec<PropertyArray>, NeatError> {
        let mut ordered: Vec<&Policy> = self.0.values().collect();
        ordered.sort_by_key(|p| p.priority);
        let mut candidates = vec![input];
        for policy in ordered {
            let mut updated = Vec::with_capacity(candidates.len());
            for mut candidate in candidates {
                if !policy.matches.is_within(&candidate) {
                    updated.push(candidate);
                    continue;
                }
                if policy.replace_matched {
                    for (key, _) in policy.matches.iter() {
                        candidate.remove(key);
                    }
                }
                // A candidate that conflicts with an immutable property is dropped.
                updated.extend(policy.properties.iter().filter_map(|p| candidate.plus(p).ok()));
                if updated.len() > MAX_ROWS {
                    return Err(NeatError::too_many(format!("policy \"{}\"", policy.uid)));
                }
            }
            candidates = updated;
        }
        Ok(candidates)
    }
}

/// The uid in an entry, otherwise one derived from its content.
pub(super) fn uid(value: &Json) -> String {
    match value.get("uid") {
        Some(Json::String(uid)) => uid.clone(),
        Some(Json::Null) | None => {
            let mut hasher = SipHasher24::new_with_keys(0, 0);
            hasher.write(value.to_string().as_bytes());
            format!("{:016x}", hasher.finish())
        }
        Some(other) => other.to_string(),
    }
}

pub(super) fn text(json: Option<&Json>) -> String {
    json.and_then(Json::as_str).unwrap_or_default().to_owned()
}
