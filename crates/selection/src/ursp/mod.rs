//! UE route selection policy: the mapping of applications and flows to slices (TS 24.526 §4.2), as the JSON of `urspGuidance`
//! (TS 29.522 §5.11, `TS29522_ServiceParameter.yaml`).
//!
//! A rule has a traffic descriptor and routes, each with a slice (S-NSSAI) and a data network (DNN). Rules and routes are tried by
//! precedence, the smallest first. Every kind of component in a descriptor must match; among components of the same kind, any entry
//! suffices. A rule without a descriptor matches all traffic.
//!
//! Preserved but not evaluated, so that such an entry never matches: Ethernet flow descriptions, domains that are regular
//! expressions, and routes bound to locations. Members of `ServiceParameterData` other than `urspGuidance` are preserved
//! unchanged.

mod flow;
mod matching;
mod read;

pub use flow::FlowDescription;
pub use matching::{Flow, Matched};

use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Maximum number of rules of one policy.
pub const MAX_RULES: usize = 1024;
/// Maximum number of entries of one list in a rule.
pub const MAX_LIST: usize = 256;

/// Why a policy is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {reason}")]
pub struct UrspError {
    /// Position in the document, such as `urspGuidance[2].routeSelParamSets[0].snssai.sd`.
    pub place: String,
    /// The fault, and the valid form.
    pub reason: String,
}

/// A policy.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Ursp {
    /// The rules in the order of the document.
    pub rules: Vec<Rule>,
    /// Other members of the document.
    pub other: Map<String, Value>,
}

/// One rule.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Rule {
    /// Traffic descriptor; `None`: all traffic.
    pub traffic: Option<TrafficDescriptor>,
    /// Smaller values are tried first; `None`: after all others.
    pub precedence: Option<u32>,
    /// Routes, at least one.
    pub routes: Vec<Route>,
}

/// A traffic descriptor.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TrafficDescriptor {
    /// Applications: operating system id → name → application id.
    pub applications: BTreeMap<String, BTreeMap<String, String>>,
    /// Protocol, address and port of the server.
    pub flows: Vec<FlowDescription>,
    /// Fully qualified domain names, or regular expressions.
    pub domains: Vec<String>,
    /// Data networks requested by the application.
    pub dnns: Vec<String>,
    /// Capabilities requested by the application: `IMS`, `MMS`, `SUPL`, `INTERNET`, or later ones.
    pub capabilities: Vec<String>,
    /// Ethernet flows, preserved unchanged.
    pub ethernet: Vec<Value>,
}

/// A route.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Route {
    /// Data network.
    pub dnn: Option<String>,
    /// Slice.
    pub snssai: Option<Snssai>,
    /// Smaller values are tried first; `None`: after all others.
    pub precedence: Option<u32>,
    /// Members that bind it to locations, preserved unchanged.
    pub places: Map<String, Value>,
}

/// A slice's identity (TS 23.003 §28.4): service type and differentiator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Snssai {
    /// Slice/service type.
    pub sst: u8,
    /// Slice differentiator, 24 bits.
    pub sd: Option<u32>,
}

impl Ursp {
    /// Reads `ServiceParameterData`, or only its list `urspGuidance`.
    ///
    /// # Errors
    /// The faulty position, and the valid form.
    pub fn from_json(text: &str) -> Result<Self, UrspError> {
        let value = serde_json::from_str(text)
            .map_err(|e| UrspError { place: "document".into(), reason: format!("this is no JSON: {e}") })?;
        read::document(value)
    }

    /// As `ServiceParameterData`.
    #[must_use]
    pub fn json(&self) -> Value {
        let mut document = self.other.clone();
        document.insert("urspGuidance".into(), self.rules.iter().map(Rule::json).collect());
        document.into()
    }
}

impl Rule {
    fn json(&self) -> Value {
        let mut rule = Map::new();
        if let Some(traffic) = &self.traffic {
            rule.insert("trafficDesc".into(), traffic.json());
        }
        if let Some(precedence) = self.precedence {
            rule.insert("relatPrecedence".into(), precedence.into());
        }
        rule.insert("routeSelParamSets".into(), self.routes.iter().map(Route::json).collect());
        rule.into()
    }
}

impl TrafficDescriptor {
    fn json(&self) -> Value {
        let mut traffic = Map::new();
        if !self.applications.is_empty() {
            let systems = self.applications.iter();
            let all = systems.map(|(os, ids)| (os.clone(), json!({"osId": os, "appIds": ids})));
            traffic.insert("appDescs".into(), all.collect());
        }
        let flows: Vec<String> = self.flows.iter().map(ToString::to_string).collect();
        for (name, list) in [
            ("flowDescs", &flows),
            ("domainDescs", &self.domains),
            ("dnns", &self.dnns),
            ("connCaps", &self.capabilities),
        ] {
            if !list.is_empty() {
                traffic.insert(name.into(), json!(list));
            }
        }
        if !self.ethernet.is_empty() {
            traffic.insert("ethFlowDescs".into(), self.ethernet.clone().into());
        }
        traffic.into()
    }
}

impl Route {
    fn json(&self) -> Value {
        let mut route = self.places.clone();
        if let Some(dnn) = &self.dnn {
            route.insert("dnn".into(), json!(dnn));
        }
        if let Some(snssai) = self.snssai {
            let mut slice = Map::from_iter([("sst".to_owned(), json!(snssai.sst))]);
            if let Some(sd) = snssai.sd {
                slice.insert("sd".into(), json!(format!("{sd:06x}")));
            }
            route.insert("snssai".into(), slice.into());
        }
        if let Some(precedence) = self.precedence {
            route.insert("precedence".into(), precedence.into());
        }
        route.into()
    }
}

#[cfg(test)]
mod tests;
