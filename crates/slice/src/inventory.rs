//! What there is to share: accesses and their capacity.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// All RBs of a cell, in the unit of shares: millionths.
pub const WHOLE: u32 = 1_000_000;

/// One access of the network: a cell, or a Wi-Fi access point.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Access {
    /// Unique name.
    pub name: String,
    /// Where it serves: the name a NEST's `coverage` uses, compared without regard to case. Empty: everywhere.
    #[serde(default)]
    pub location: String,
    /// Downlink rate that can be promised, bit/s.
    pub downlink_bps: u64,
    /// Uplink rate that can be promised, bit/s.
    pub uplink_bps: u64,
    /// Share of its RBs that can be promised, millionths; what is left is for traffic of no slice.
    #[serde(default = "whole")]
    pub max_share_ppm: u32,
    /// What a packet waits on it at least, milliseconds one way; a slice that must be faster is not placed there.
    #[serde(default)]
    pub delay_ms: f64,
    /// The slice of its cell that those are in who have no other: none of ours is called so there.
    #[serde(default = "rest")]
    pub rest_slice: String,
}

fn rest() -> String {
    "default".to_owned()
}

fn whole() -> u32 {
    WHOLE
}

/// Everything there is to share, by name.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Inventory {
    accesses: BTreeMap<String, Access>,
}

/// Why accesses cannot be as written.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum InventoryError {
    /// A name is used twice, or is empty.
    #[error("access \"{0}\": give every access a name of its own")]
    Name(String),
    /// A value is out of its range.
    #[error("access \"{access}\": {key} must be {remedy}")]
    Value {
        /// Its name.
        access: String,
        /// The key.
        key: &'static str,
        /// What would be valid.
        remedy: &'static str,
    },
}

impl Inventory {
    /// The accesses there are.
    ///
    /// # Errors
    /// A name that is empty or used twice; no capacity; a share above the whole.
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

    /// The access of this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Access> {
        self.accesses.get(name)
    }

    /// All, in order of their names.
    pub fn iter(&self) -> impl Iterator<Item = &Access> {
        self.accesses.values()
    }

    /// Those that serve a location.
    pub fn at<'a>(&'a self, location: &'a str) -> impl Iterator<Item = &'a Access> {
        self.iter().filter(move |a| a.location.is_empty() || a.location.eq_ignore_ascii_case(location))
    }
}
