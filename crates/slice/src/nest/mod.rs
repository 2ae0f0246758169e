//! Network slice templates in Katana's format (GSMA NG.116: a GST with values is a NEST).
//!
//! A NEST is kept as received, with all keys, known or not; the values used by the slice manager are read from it and validated.
//! Its rates are in kbit/s and its times in seconds, as in Katana's model; all other values here are in bit/s and milliseconds.
//!
//! In addition to Katana's keys: `sst`, `sd`, `dnn`, and `s_nssai {sst, sd}`, so that a NEST can specify its S-NSSAI.

use super::profile::ServiceProfile;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Maximum number of base descriptors in a chain of references.
const MAX_DEPTH: usize = 16;
/// Maximum rate, kbit/s: 1 Tbit/s.
const MAX_KBPS: f64 = 1e9;
/// Maximum number of entries of a list.
const MAX_LIST: usize = 256;
/// Maximum length of a name in bytes.
const MAX_NAME: usize = 128;

/// Why a NEST is rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {what}")]
pub struct NestError {
    /// Position, such as `base_slice_descriptor.mtu`.
    pub path: String,
    /// The fault, and the valid values.
    pub what: String,
}

/// A guaranteed and a maximum rate, bit/s.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Throughput {
    /// Guaranteed rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guaranteed_bps: Option<u64>,
    /// Maximum rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub maximum_bps: Option<u64>,
}

/// A 5QI and its characteristics (TS 23.501 Table 5.7.4-1).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Qos {
    /// 5QI, 1 to 255.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qi: Option<u8>,
    /// 0 GBR, 1 delay-critical GBR, 2 non-GBR.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_type: Option<u8>,
    /// Priority level, 1 to 127; a lower number goes first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority_level: Option<u8>,
    /// Packet delay budget between UE and UPF, milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packet_delay_budget_ms: Option<f64>,
    /// Packet error rate of the 5QI (TS 23.501 §5.7.3.5), percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packet_error_rate_percent: Option<f64>,
    /// Jitter, milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jitter_ms: Option<f64>,
    /// Maximum packet loss rate, percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_packet_loss_rate_percent: Option<f64>,
}

/// A validated NEST: the document, and the values read from it.
#[derive(Debug, Clone, PartialEq)]
pub struct Nest {
    /// The document as received.
    pub document: Map<String, Value>,
    /// Its base descriptor, completed from the descriptors it refers to.
    pub base: Map<String, Value>,
    /// `base_slice_des_id`: the name of the slice.
    pub name: String,
    /// Slice/service type: as given, otherwise 1 (eMBB) for delay-tolerant slices and 2 (URLLC) for others, as in Katana.
    pub sst: u8,
    /// Slice differentiator, six hexadecimal digits.
    pub sd: Option<String>,
    /// Data network.
    pub dnn: Option<String>,
    /// Locations, in lower case as in Katana.
    pub coverage: Vec<String>,
    /// Whether the slice is delay tolerant.
    pub delay_tolerance: bool,
    /// Rates of the whole slice, downlink.
    pub network_dl: Throughput,
    /// Rates of the whole slice, uplink.
    pub network_ul: Throughput,
    /// Rates of one UE, downlink.
    pub ue_dl: Throughput,
    /// Rates of one UE, uplink.
    pub ue_ul: Throughput,
    /// Isolation: 0 none, 1 core, 2 RAN, 3 both.
    pub isolation: u8,
    /// Maximum packet size, bytes.
    pub mtu: Option<u16>,
    /// Maximum number of UEs.
    pub terminals: Option<u64>,
    /// Maximum number of sessions.
    pub connections: Option<u64>,
    /// 5QIs with their characteristics.
    pub qos: Vec<Qos>,
}

impl Nest {
    /// Reads and validates a NEST. `base_of` returns a base descriptor by its `base_slice_des_id`.
    ///
    /// # Errors
    /// The first fault: a missing mandatory key, a value of a wrong type or out of range, a guarantee above the maximum, or a
    /// dangling or circular reference.
    pub fn parse(
        document: &Value,
        base_of: &dyn Fn(&str) -> Option<Map<String, Value>>,
    ) -> Result<Self, NestError> {
        let document = document.as_object().ok_or_else(|| wrong("", "must be an object"))?.clone();
        let own = match document.get("base_slice_descriptor") {
            Some(Value::Object(own)) if !own.is_empty() => own,
            None | Some(Value::Null) => return Err(wrong("base_slice_descriptor", "is missing")),
            Some(Value::Object(_)) => return Err(wrong("base_slice_descriptor", "is empty")),
            Some(_) => return Err(wrong("base_slice_descriptor", "must be an object")),
        };
        for part in ["service_descriptor", "test_descriptor"] {
            if document.get(part).is_some_and(|v| !v.is_null() && !v.is_object()) {
                return Err(wrong(part, "must be an object"));
            }
        }
        if let Some(services) = document.get("service_descriptor").and_then(|s| s.get("ns_list")) {
            let path = "service_descriptor.ns_list";
            let list = services.as_array().ok_or_else(|| wrong(path, "must be a list"))?;
            if list.len() > MAX_LIST || !list.iter().all(Value::is_object) {
                return Err(wrong(path, &format!("must be a list of at most {MAX_LIST} objects")));
            }
        }
        let base = resolve(own, base_of)?;
        let of = Reader { map: &base, path: "base_slice_descriptor".to_owned() };
        for needed in ["network_DL_throughput", "delay_tolerance"] {
            of.get(needed).ok_or_else(|| of.wrong(needed, "is missing"))?;
        }
        let name = of.text("base_slice_des_id")?.filter(|name| !name.is_empty());
        let name = name.unwrap_or_else(|| "slice".to_owned());
        let delay_tolerance = of.flag("delay_tolerance")?.unwrap_or(false);
        let (sst, sd) = snssai(&of)?;
        let nest = Self {
            sst: sst.unwrap_or(if delay_tolerance { 1 } else { 2 }),
            sd,
            dnn: of.text("dnn")?,
            coverage: of.texts("coverage")?.into_iter().map(|l| l.to_lowercase()).collect(),
            delay_tolerance,
            network_dl: of.throughput("network_DL_throughput")?,
            network_ul: of.throughput("network_UL_throughput")?,
            ue_dl: of.throughput("ue_DL_throughput")?,
            ue_ul: of.throughput("ue_UL_throughput")?,
            isolation: of.integer("isolation", 0, 3)?.unwrap_or(0) as u8,
            mtu: of.integer("mtu", 68, 65_535)?.map(|v| v as u16),
            terminals: of.integer("number_of_terminals", 0, 1 << 40)?,
            connections: of.integer("number_of_connections", 0, 1 << 40)?,
            qos: qos(&of)?,
            name,
            document,
            base: base.clone(),
        };
        of.rest()?;
        Ok(nest)
    }

    /// Network services for MANO, as received.
    #[must_use]
    pub fn services(&self) -> &[Value] {
        let list = self.document.get("service_descriptor").and_then(|s| s.get("ns_list"));
        list.and_then(Value::as_array).map_or(&[], Vec::as_slice)
    }
}

/// Writes the values of a profile into a NEST, so that readers see the values in force.
pub fn reflect(document: &mut Value, profile: &ServiceProfile) {
    let Some(Value::Object(own)) = document.get_mut("base_slice_descriptor") else { return };
    for (key, thpt) in [
        ("network_DL_throughput", profile.dl_slice),
        ("network_UL_throughput", profile.ul_slice),
        ("ue_DL_throughput", profile.dl_ue),
        ("ue_UL_throughput", profile.ul_ue),
    ] {
        let mut rates = Map::new();
        for (name, kbps) in [("guaranteed", thpt.gua), ("maximum", thpt.max)] {
            rates.extend(kbps.map(|kbps| (name.to_owned(), rate(kbps))));
        }
        // This key is mandatory, and 0 where nothing is guaranteed.
        if !rates.is_empty() || own.contains_key(key) {
            own.insert(key.to_owned(), Value::Object(rates));
        }
    }
    for (key, number) in [
        ("mtu", profile.dl_packet.into_iter().chain(profile.ul_packet).min().map(u64::from)),
        ("number_of_terminals", profile.max_ues),
        ("number_of_connections", profile.max_sessions),
    ] {
        if number.is_some() || own.contains_key(key) {
            own.insert(key.to_owned(), number.map_or(Value::Null, Value::from));
        }
    }
}

/// Writes a whole number as an integer.
fn rate(kbps: f64) -> Value {
    if kbps.fract() == 0.0 { Value::from(kbps as u64) } else { Value::from(kbps) }
}

/// The values of a descriptor, completed from the descriptors it refers to. Null and an empty list count as absent, as in Katana.
fn resolve(
    own: &Map<String, Value>,
    base_of: &dyn Fn(&str) -> Option<Map<String, Value>>,
) -> Result<Map<String, Value>, NestError> {
    let path = "base_slice_descriptor.base_slice_des_ref";
    let mut all = own.clone();
    let mut seen: Vec<String> = Vec::new();
    let mut next = own.get("base_slice_des_ref").cloned().unwrap_or(Value::Null);
    loop {
        let name = match next {
            Value::Null => return Ok(all),
            Value::String(name) if name.is_empty() => return Ok(all),
            Value::String(name) => name,
            _ => return Err(wrong(path, "must be the base_slice_des_id of a base slice descriptor")),
        };
        if seen.contains(&name) {
            let circle = seen.join(" -> ");
            return Err(wrong(path, &format!("refers in a circle: {circle} -> {name}")));
        }
        if seen.len() == MAX_DEPTH {
            return Err(wrong(path, &format!("refers through more than {MAX_DEPTH} descriptors")));
        }
        let base = base_of(&name)
            .ok_or_else(|| wrong(path, &format!("there is no base slice descriptor \"{name}\"")))?;
        next = base.get("base_slice_des_ref").cloned().unwrap_or(Value::Null);
        for (key, value) in base {
            // Name and reference are never inherited; `_id` belongs to the store.
            if matches!(key.as_str(), "base_slice_des_ref" | "_id") {
                continue;
            }
            let silent = |v: &Value| v.is_null() || v.as_array().is_some_and(Vec::is_empty);
            if all.get(&key).is_none_or(silent) {
                all.insert(key, value);
            }
        }
        seen.push(name);
    }
}

/// Validates a base slice descriptor before it is stored: its values, and that it does not refer to itself.
///
/// # Errors
/// Those of [`Nest::parse`]; only the name is mandatory.
pub fn check_base(
    descriptor: &Map<String, Value>,
    base_of: &dyn Fn(&str) -> Option<Map<String, Value>>,
) -> Result<String, NestError> {
    let of = Reader { map: descriptor, path: String::new() };
    let name = of.text("base_slice_des_id")?.ok_or_else(|| wrong("base_slice_des_id", "is missing"))?;
    // Resolve as if it were already stored.
    let with = |wanted: &str| if wanted == name { Some(descriptor.clone()) } else { base_of(wanted) };
    let base = resolve(descriptor, &with)?;
    let of = Reader { map: &base, path: String::new() };
    snssai(&of)?;
    for key in ["network_DL_throughput", "network_UL_throughput", "ue_DL_throughput", "ue_UL_throughput"] {
        of.throughput(key)?;
    }
    qos(&of)?;
    of.rest()?;
    Ok(name)
}

fn snssai(of: &Reader<'_>) -> Result<(Option<u8>, Option<String>), NestError> {
    let nested = of.object("s_nssai")?;
    let own = nested.as_ref().unwrap_or(of);
    let sst = own.integer("sst", 0, 255)?.map(|v| v as u8);
    let sd = own.text("sd")?;
    if let Some(sd) = sd.as_ref().filter(|sd| sd.len() != 6 || !sd.bytes().all(|b| b.is_ascii_hexdigit())) {
        return Err(own.wrong("sd", &format!("is \"{sd}\": must be six hexadecimal digits")));
    }
    Ok((sst, sd.map(|sd| sd.to_lowercase())))
}

fn qos(of: &Reader<'_>) -> Result<Vec<Qos>, NestError> {
    let mut all = Vec::new();
    for (i, value) in of.list("qos")?.iter().enumerate() {
        let path = of.at(&format!("qos[{i}]"));
        let map = value.as_object().ok_or_else(|| wrong(&path, "must be an object"))?;
        let of = Reader { map, path };
        // Seconds: the largest budget of Table 5.7.4-1 is 1.1 s, for satellites.
        let ms = |key| Ok::<_, NestError>(of.number(key, 0.0, 10.0, "seconds")?.map(|s| s * 1e3));
        all.push(Qos {
            qi: of.integer("qi", 1, 255)?.map(|v| v as u8),
            resource_type: of.integer("resource_type", 0, 2)?.map(|v| v as u8),
            priority_level: of.integer("priority_level", 1, 127)?.map(|v| v as u8),
            packet_delay_budget_ms: ms("packet_delay_budget")?,
            packet_error_rate_percent: of.number("packet_error_rate", 0.0, 100.0, "percent")?,
            jitter_ms: ms("jitter")?,
            max_packet_loss_rate_percent: of.number("max_packet_loss_rate", 0.0, 100.0, "percent")?,
        });
    }
    Ok(all)
}

fn wrong(path: &str, what: &str) -> NestError {
    NestError {
        path: if path.is_empty() { "body".to_owned() } else { path.to_owned() },
        what: what.to_owned(),
    }
}

/// Reads an object; errors name the key.
struct Reader<'a> {
    map: &'a Map<String, Value>,
    path: String,
}

impl<'a> Reader<'a> {
    fn at(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    fn wrong(&self, key: &str, what: &str) -> NestError {
        wrong(&self.at(key), what)
    }

    fn get(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|v| !v.is_null())
    }

    fn object(&self, key: &str) -> Result<Option<Reader<'a>>, NestError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(Reader { map, path: self.at(key) })),
            Some(_) => Err(self.wrong(key, "must be an object")),
        }
    }

    fn text(&self, key: &str) -> Result<Option<String>, NestError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(text)) if text.len() <= MAX_NAME && !text.chars().any(char::is_control) => {
                Ok(Some(text.clone()))
            }
            Some(_) => Err(self.wrong(key, &format!("must be a text of at most {MAX_NAME} bytes"))),
        }
    }

    fn list(&self, key: &str) -> Result<&'a [Value], NestError> {
        match self.get(key) {
            None => Ok(&[]),
            Some(Value::Array(list)) if list.len() <= MAX_LIST => Ok(list),
            Some(_) => Err(self.wrong(key, &format!("must be a list of at most {MAX_LIST}"))),
        }
    }

    fn texts(&self, key: &str) -> Result<Vec<String>, NestError> {
        let text = |v: &Value| v.as_str().filter(|t| t.len() <= MAX_NAME).map(str::to_owned);
        let all: Option<Vec<String>> = self.list(key)?.iter().map(text).collect();
        all.ok_or_else(|| self.wrong(key, "must be a list of names"))
    }

    fn flag(&self, key: &str) -> Result<Option<bool>, NestError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(_) => Err(self.wrong(key, "must be true or false")),
        }
    }

    fn number(&self, key: &str, min: f64, max: f64, unit: &str) -> Result<Option<f64>, NestError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let number = value.as_f64().filter(|n| (min..=max).contains(n));
        let remedy =
            || self.wrong(key, &format!("is {value}: must be a number of {min} to {max}, in {unit}"));
        number.map(Some).ok_or_else(remedy)
    }

    fn integer(&self, key: &str, min: u64, max: u64) -> Result<Option<u64>, NestError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let whole =
            |n: f64| if n.fract() == 0.0 && (0.0..=1.8e19).contains(&n) { Some(n as u64) } else { None };
        let number = value.as_u64().or_else(|| value.as_f64().and_then(whole));
        let remedy = || self.wrong(key, &format!("is {value}: must be a whole number of {min} to {max}"));
        number.filter(|n| (min..=max).contains(n)).map(Some).ok_or_else(remedy)
    }

    fn throughput(&self, key: &str) -> Result<Throughput, NestError> {
        let Some(of) = self.object(key)? else { return Ok(Throughput::default()) };
        let bps = |key| {
            let kbps = of.number(key, 0.0, MAX_KBPS, "kbit/s")?;
            Ok::<_, NestError>(kbps.map(|kbps| (kbps * 1e3).round() as u64))
        };
        let rates = Throughput { guaranteed_bps: bps("guaranteed")?, maximum_bps: bps("maximum")? };
        match (rates.guaranteed_bps, rates.maximum_bps) {
            (Some(least), Some(most)) if least > most => {
                let what = format!("is {} kbit/s, below the guaranteed {} kbit/s", most / 1000, least / 1000);
                Err(of.wrong("maximum", &what))
            }
            _ => Ok(rates),
        }
    }

    /// Values that are only passed on are validated as well, so that a wrong unit is not passed on.
    fn rest(&self) -> Result<(), NestError> {
        for (key, max) in
            [("group_communication_support", 3), ("simultaneous_nsi", 15), ("device_velocity", 4)]
        {
            self.integer(key, 0, max)?;
        }
        for key in ["mmtel_support", "nb_iot", "nonIP_traffic"] {
            self.flag(key)?;
        }
        self.number("terminal_density", 0.0, 1e12, "UEs per square kilometre")?;
        self.texts("radio_spectrum")?;
        if let Some(of) = self.object("deterministic_communication")? {
            of.flag("availability")?;
            for (i, value) in of.list("periodicity")?.iter().enumerate() {
                if value.as_f64().is_none_or(|s| !(0.0..=1e9).contains(&s)) {
                    return Err(
                        of.wrong(&format!("periodicity[{i}]"), "must be a number of seconds, 0 or more")
                    );
                }
            }
        }
        if let Some(of) = self.object("mission_critical_support")? {
            of.flag("availability")?;
            of.list("mc_service")?;
        }
        if let Some(of) = self.object("positional_support")? {
            of.list("availability")?;
            of.number("frequency", 0.0, 1e9, "seconds")?;
            of.number("accuracy", 0.0, 1e9, "metres")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
