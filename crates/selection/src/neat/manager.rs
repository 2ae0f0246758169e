//! Processing of a request by profiles, CIB and policies.

use super::array::{MultiArray, PropertyArray, Score, list};
use super::cib::Cib;
use super::pib::Pib;
use super::sockopt::{SocketOption, socket_option};
use super::value::{Scalar, Value};
use super::{MAX_ROWS, NeatError, json};
use serde_json::Value as Json;

/// Maximum number of candidates in an answer.
const ANSWERED: usize = 10;
/// Maximum number of requests in one question after expansion of alternatives.
const MAX_REQUESTS: usize = 64;

/// One ranked candidate.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidate {
    /// The properties.
    pub properties: PropertyArray,
    /// The score that determines its rank.
    pub score: Score,
}

/// The three repositories.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Manager {
    /// Applied before the CIB.
    pub profiles: Pib,
    /// Applied after the CIB.
    pub policies: Pib,
    /// Information about host and network.
    pub cib: Cib,
}

impl Manager {
    /// Ranked candidates for a question: a list of requests, each an object of properties or a list of such objects.
    ///
    /// # Errors
    /// A fault of the question, or too many candidates.
    pub fn query(&self, question: &str, now_unix_s: u64) -> Result<Vec<Candidate>, NeatError> {
        self.query_value(&json::parse(question, "request")?, now_unix_s)
    }

    /// Like [`Manager::query`] for a question that has been parsed.
    ///
    /// # Errors
    /// Those of [`Manager::query`].
    pub fn query_value(&self, question: &Json, now_unix_s: u64) -> Result<Vec<Candidate>, NeatError> {
        let requests = requests(question)?;
        if let Some(requests) = pre_resolve(&requests) {
            return Ok(requests.into_iter().map(candidate).collect());
        }
        let rows = self.cib.rows(now_unix_s)?;
        let mut candidates: Vec<PropertyArray> = Vec::new();
        for request in requests {
            let mut known: Vec<PropertyArray> = Vec::new();
            for profiled in self.profiles.lookup(request)? {
                for found in Cib::lookup(&rows, &profiled) {
                    push_new(&mut known, found)?;
                }
            }
            known.sort_by(|a, b| a.score().best_first(&b.score()));
            for found in known {
                for candidate in self.policies.lookup(found)? {
                    push_new(&mut candidates, candidate)?;
                }
            }
        }
        let mut single: Vec<PropertyArray> = candidates.into_iter().flat_map(one_transport).collect();
        single.sort_by(|a, b| a.score().best_first(&b.score()));
        single.truncate(ANSWERED);
        Ok(single.into_iter().map(|c| candidate(cleaned(c))).collect())
    }
}

fn candidate(properties: PropertyArray) -> Candidate {
    Candidate { score: properties.score(), properties }
}

fn push_new(all: &mut Vec<PropertyArray>, new: PropertyArray) -> Result<(), NeatError> {
    if all.len() >= MAX_ROWS {
        return Err(NeatError::too_many("candidates"));
    }
    if !all.iter().any(|there| there.equals(&new)) {
        all.push(new);
    }
    Ok(())
}

/// The requests of a question after expansion of alternatives.
fn requests(question: &Json) -> Result<Vec<PropertyArray>, NeatError> {
    let all = question.as_array().ok_or_else(|| {
        NeatError::new("request", "write a list of requests, such as [{\"transport\": {\"value\": \"TCP\"}}]")
    })?;
    let mut requests = Vec::new();
    for (i, request) in all.iter().enumerate() {
        let within = |e: NeatError| e.within(&format!("request {}", i + 1));
        let mut multi = MultiArray::default();
        for part in list(request) {
            if let Json::Array(alternatives) = part {
                let read: Result<_, _> = alternatives.iter().map(PropertyArray::from_json).collect();
                multi.0.push(read.map_err(within)?);
            } else {
                multi.0.extend(PropertyArray::alternatives(part).map_err(within)?.0);
            }
        }
        requests.extend(multi.expand().map_err(within)?);
        if requests.len() > MAX_REQUESTS {
            return Err(within(NeatError::new(
                "alternatives",
                format!("more than {MAX_REQUESTS} in all; ask twice"),
            )));
        }
    }
    for request in &mut requests {
        split_local_endpoint(request)?;
    }
    Ok(requests)
}

/// Splits `address@interface` into `local_ip` and `interface`.
fn split_local_endpoint(request: &mut PropertyArray) -> Result<(), NeatError> {
    let Some(whole) = request.remove("local_endpoint") else { return Ok(()) };
    let parts = match &whole.value {
        Value::Single(Scalar::Text(text)) => text.split_once('@').filter(|(_, device)| !device.contains('@')),
        _ => None,
    };
    let (address, interface) =
        parts.ok_or_else(|| NeatError::new("property \"local_endpoint\"", "write \"address@interface\""))?;
    for (key, part) in [("local_ip", address), ("interface", interface)] {
        let mut property = whole.clone();
        property.value = Value::Single(Scalar::Text(part.to_owned()));
        request.add(key, property)?;
    }
    Ok(())
}

/// A question asked before name resolution is answered with its own requests.
fn pre_resolve(requests: &[PropertyArray]) -> Option<Vec<PropertyArray>> {
    let asked = Value::Single(Scalar::Text("pre-resolve".into()));
    let is = |r: &PropertyArray| r.get("__request_type").is_some_and(|p| p.value == asked);
    requests.iter().any(is).then(|| {
        let mut requests = requests.to_vec();
        requests.iter_mut().for_each(|r| drop(r.remove("__request_type")));
        requests
    })
}

/// One candidate for each permitted transport.
fn one_transport(candidate: PropertyArray) -> Vec<PropertyArray> {
    let Some(transport) = candidate.get("transport").filter(|t| matches!(t.value, Value::Set(_))).cloned()
    else {
        return vec![candidate];
    };
    let with = |one: &Scalar| {
        let mut single = candidate.clone();
        single.remove("transport");
        let property = super::Property { value: Value::Single(one.clone()), ..transport.clone() };
        // The property was removed, so this cannot conflict.
        let _ = single.add("transport", property);
        single
    };
    transport.value.scalars().iter().map(with).collect()
}

/// Removes internal properties, and replaces names of socket options by numbers.
fn cleaned(mut candidate: PropertyArray) -> PropertyArray {
    candidate.remove("default_profile");
    candidate.remove("uid");
    let keys: Vec<String> = candidate.iter().map(|(k, _)| k.clone()).collect();
    for key in keys {
        match socket_option(&key) {
            SocketOption::NotOne => {}
            SocketOption::Unknown => drop(candidate.remove(&key)),
            SocketOption::Number(number) if number == key => {}
            SocketOption::Number(number) => {
                if let Some(property) = candidate.remove(&key) {
                    // If two names of one option conflict, the first by name is kept.
                    let _ = candidate.add(&number, property);
                }
            }
        }
    }
    candidate
}
