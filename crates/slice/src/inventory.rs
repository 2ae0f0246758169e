//! Inventory: accesses and their capacity.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// All RBs of a cell in the unit of shares, millionths.
pub const WHOLE: u32 = 1_000_000;

/// An access of the network: a cell, or a Wi-Fi access point.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Access {
    /// Unique name.
    pub name: String,
    /// Location served, as named in a NEST's `coverage`, compared case-insensitively. Empty: everywhere.
    #[serde(default)]
    pub location: String,
    /// Downlink rate available for guarantees, bit/s.
    pub downlink_bps: u64,
    /// Uplink rate available for guarantees, bit/s.
    pub uplink_bps: u64,
    /// Share of RBs available for guarantees, millionths; the rest is for traffic outside slices.
    #[serde(default = "whole")]
    pub max_share_ppm: u32,
    /// Minimum one-way delay of the access, milliseconds; a slice with a lower latency requirement is not placed there.
    #[serde(default)]
    pub delay_ms: f64,
    /// Name of the cell's slice for UEs without another slice; slices of this manager never use this name there.
    #[serde(default = "rest")]
    pub rest_slice: String,
}

fn rest() -> String {
    "default".to_owned()
}

fn whole() -> u32 {
    WHOLE
}

/// All accesses by name.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Inventory {
    accesses: BTreeMap<String, Access>,
}

/// Why the accesses are invalid.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum InventoryError {
    /// A name is empty or used twice.
    #[error("access \"{0}\": give every access a name of its own")]
    Name(String),
    /// A value is out of range.
    #[error("access \"{access}\": {key} must be {remedy}")]
    Value {
        /// Name of the access.
        access: String,
        /// The configuration key.
        key: &'static str,
        /// The valid values.
        remedy: &'static str,
    },
}

impl Inventory {
    /// Validates the accesses.
    ///
    /// # Errors
    /// An empty or duplicate name, no capacity, or a share above the whole.
    pub fn new(accesses: impl IntoIterator<Item = Access>) -> Result<Self, InventoryError> {
        let mut all = BTreeMap::new();
        for access in accesses {
            let wrong = |key, remedy| InventoryError::Value { access: access.name.clone(), key, remedy };
            if access.downlink_bps == 0 || access.uplink_bps == 0 {
                return Err(wrong("downlink_bps and uplink_bps", "1 or more"));
            }
            if access.max_share_ppm > WHOLE {
                return Err(wrong("max_share_ppm", "0 to 1000000"));
            }
            if !(0.0..=10_000.0).contains(&access.delay_ms) {
                return Err(wrong("delay_ms", "0 to 10000"));
            }
            let name = access.name.clone();
            if name.is_empty() || all.insert(name.clone(), access).is_some() {
                return Err(InventoryError::Name(name));
            }
        }
        Ok(Self { accesses: all })
    }

    /// The access with this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Access> {
        self.accesses.get(name)
    }

    /// All accesses in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = &Access> {
        self.accesses.values()
    }

    /// The accesses that serve a location.
    pub fn at<'a>(&'a self, location: &'a str) -> impl Iterator<Item = &'a Access> {
        self.iter().filter(move |a| a.location.is_empty() || a.location.eq_ignore_ascii_case(location))
    }
}
