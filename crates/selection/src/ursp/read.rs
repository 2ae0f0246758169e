//! Parsing of a policy; errors contain the position.

use super::{MAX_LIST, MAX_RULES, Route, Rule, Snssai, TrafficDescriptor, Ursp, UrspError};
use anabranch_element::names::did_you_mean;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

type Read<T> = Result<T, UrspError>;

fn wrong<T>(place: &str, reason: impl Into<String>) -> Read<T> {
    Err(UrspError { place: place.to_owned(), reason: reason.into() })
}

pub(super) fn document(value: Value) -> Read<Ursp> {
    let (guidance, other) = match value {
        Value::Object(mut map) => match map.remove("urspGuidance") {
            Some(guidance) => (guidance, map),
            None => return wrong("document", "it has no \"urspGuidance\""),
        },
        list @ Value::Array(_) => (list, Map::new()),
        _ => return wrong("document", "write an object with \"urspGuidance\", or that list alone"),
    };
    let rules = list(&guidance, "urspGuidance", MAX_RULES)?;
    let rules = rules.iter().enumerate().map(|(i, r)| rule(r, &format!("urspGuidance[{i}]")));
    Ok(Ursp { rules: rules.collect::<Read<_>>()?, other })
}

fn rule(value: &Value, place: &str) -> Read<Rule> {
    let object = members(value, place, &["trafficDesc", "relatPrecedence", "routeSelParamSets"])?;
    let at = |name: &str| format!("{place}.{name}");
    let traffic = object.get("trafficDesc").map(|t| traffic(t, &at("trafficDesc"))).transpose()?;
    let precedence =
        object.get("relatPrecedence").map(|p| uinteger(p, &at("relatPrecedence"))).transpose()?;
    let sets = at("routeSelParamSets");
    let Some(routes) = object.get("routeSelParamSets") else {
        return wrong(place, "it has no \"routeSelParamSets\", so it leads nowhere");
    };
    let routes = list(routes, &sets, MAX_LIST)?;
    let routes = routes.iter().enumerate().map(|(i, r)| route(r, &format!("{sets}[{i}]")));
    Ok(Rule { traffic, precedence, routes: routes.collect::<Read<_>>()? })
}

const COMPONENTS: [&str; 6] = ["appDescs", "flowDescs", "domainDescs", "ethFlowDescs", "dnns", "connCaps"];

fn traffic(value: &Value, place: &str) -> Read<TrafficDescriptor> {
    let object = members(value, place, &COMPONENTS)?;
    if object.is_empty() {
        return wrong(
            place,
            format!(
                "it is empty; give one of {}, or leave it out to match everything",
                COMPONENTS.join(", ")
            ),
        );
    }
    let texts = |name: &str| -> Read<Vec<String>> {
        let place = format!("{place}.{name}");
        let Some(value) = object.get(name) else { return Ok(Vec::new()) };
        let all = list(value, &place, MAX_LIST)?;
        all.iter().enumerate().map(|(i, v)| text(v, &format!("{place}[{i}]"))).collect()
    };
    let mut flows = Vec::new();
    for (i, flow) in texts("flowDescs")?.into_iter().enumerate() {
        match flow.parse() {
            Ok(flow) => flows.push(flow),
            Err(reason) => return wrong(&format!("{place}.flowDescs[{i}]"), reason),
        }
    }
    let ethernet = match object.get("ethFlowDescs") {
        None => Vec::new(),
        Some(value) => list(value, &format!("{place}.ethFlowDescs"), MAX_LIST)?.to_vec(),
    };
    Ok(TrafficDescriptor {
        applications: applications(object.get("appDescs"), &format!("{place}.appDescs"))?,
        flows,
        domains: texts("domainDescs")?,
        dnns: texts("dnns")?,
        capabilities: texts("connCaps")?,
        ethernet,
    })
}

fn applications(value: Option<&Value>, place: &str) -> Read<BTreeMap<String, BTreeMap<String, String>>> {
    let Some(value) = value else { return Ok(BTreeMap::new()) };
    let systems = map(value, place)?;
    let mut all = BTreeMap::new();
    for (os, descriptor) in systems {
        let place = format!("{place}.{os}");
        let object = members(descriptor, &place, &["osId", "appIds"])?;
        if object.get("osId").and_then(Value::as_str) != Some(os) {
            return wrong(&place, format!("its \"osId\" is to be the key, \"{os}\""));
        }
        let place = format!("{place}.appIds");
        let Some(ids) = object.get("appIds") else { return wrong(&place, "it is missing") };
        let ids = map(ids, &place)?.iter().map(|(k, v)| Ok((k.clone(), text(v, &format!("{place}.{k}"))?)));
        all.insert(os.clone(), ids.collect::<Read<_>>()?);
    }
    Ok(all)
}

fn route(value: &Value, place: &str) -> Read<Route> {
    const PLACES: [&str; 2] = ["spatialValidityAreas", "spatialValidityTais"];
    let object = members(value, place, &["dnn", "snssai", "precedence", PLACES[0], PLACES[1]])?;
    let at = |name: &str| format!("{place}.{name}");
    let route = Route {
        dnn: object.get("dnn").map(|d| text(d, &at("dnn"))).transpose()?,
        snssai: object.get("snssai").map(|s| snssai(s, &at("snssai"))).transpose()?,
        precedence: object.get("precedence").map(|p| uinteger(p, &at("precedence"))).transpose()?,
        places: object
            .iter()
            .filter(|(k, _)| PLACES.contains(&k.as_str()))
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect(),
    };
    for name in PLACES {
        if let Some(areas) = route.places.get(name) {
            list(areas, &at(name), MAX_LIST)?;
        }
    }
    if route.dnn.is_none() && route.snssai.is_none() {
        return wrong(place, "it names neither \"dnn\" nor \"snssai\"");
    }
    Ok(route)
}

fn snssai(value: &Value, place: &str) -> Read<Snssai> {
    let object = members(value, place, &["sst", "sd"])?;
    let sst = object.get("sst").and_then(Value::as_u64).and_then(|sst| u8::try_from(sst).ok());
    let Some(sst) = sst else { return wrong(&format!("{place}.sst"), "write a whole number from 0 to 255") };
    let sd = match object.get("sd") {
        None => None,
        Some(value) => {
            match value.as_str().filter(|s| s.len() == 6 && s.bytes().all(|b| b.is_ascii_hexdigit())) {
                Some(hex) => u32::from_str_radix(hex, 16).ok(),
                None => {
                    return wrong(
                        &format!("{place}.sd"),
                        format!("{value}: write six hexadecimal digits in quotes, such as \"00000a\""),
                    );
                }
            }
        }
    };
    Ok(Snssai { sst, sd })
}

fn members<'a>(value: &'a Value, place: &str, known: &[&str]) -> Read<&'a Map<String, Value>> {
    let Some(object) = value.as_object() else { return wrong(place, "write an object") };
    for name in object.keys() {
        if !known.contains(&name.as_str()) {
            let hint = did_you_mean(name, known.iter().copied());
            let known = known.join(", ");
            return wrong(place, format!("there is no member \"{name}\"{hint} (known are {known})"));
        }
    }
    Ok(object)
}

fn map<'a>(value: &'a Value, place: &str) -> Read<&'a Map<String, Value>> {
    match value.as_object() {
        Some(map) if !map.is_empty() && map.len() <= MAX_LIST => Ok(map),
        _ => wrong(place, format!("write an object of 1 to {MAX_LIST} entries")),
    }
}

fn list<'a>(value: &'a Value, place: &str, most: usize) -> Read<&'a [Value]> {
    match value.as_array() {
        Some(all) if !all.is_empty() && all.len() <= most => Ok(all),
        _ => wrong(place, format!("write a list of 1 to {most} entries")),
    }
}

fn text(value: &Value, place: &str) -> Read<String> {
    match value.as_str() {
        Some(text) if !text.is_empty() && text.len() <= 1024 => Ok(text.to_owned()),
        _ => wrong(place, format!("{}: write a text of 1 to 1024 bytes", short(value))),
    }
}

fn uinteger(value: &Value, place: &str) -> Read<u32> {
    match value.as_u64().and_then(|n| u32::try_from(n).ok()) {
        Some(n) => Ok(n),
        None => wrong(place, format!("{}: write a whole number from 0 to {}", short(value), u32::MAX)),
    }
}

/// A value, shortened for an error message.
fn short(value: &Value) -> String {
    value.to_string().chars().take(40).collect()
}
