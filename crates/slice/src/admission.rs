//! Admission control: the sum of all guarantees never exceeds the capacity.
//!
//! A guarantee is three numbers per access: downlink rate, uplink rate, and the share of RBs that carries them. During a change,
//! the larger of the old and the new value counts for each number, so that neither completing nor undoing the change can exceed
//! the capacity.

use super::inventory::{Access, Inventory, WHOLE};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// Guarantee of a slice on one access.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Guarantee {
    /// Downlink, bit/s.
    pub downlink_bps: u64,
    /// Uplink, bit/s.
    pub uplink_bps: u64,
    /// Share of the RBs, millionths.
    pub share_ppm: u32,
}

impl Guarantee {
    /// A guarantee of these rates, with the smallest share of the access's RBs that carries the larger of them.
    #[must_use]
    pub fn of_rates(downlink_bps: u64, uplink_bps: u64, access: &Access) -> Self {
        let share =
            |rate: u64, of: u64| (u128::from(rate) * u128::from(WHOLE)).div_ceil(u128::from(of.max(1)));
        let share = share(downlink_bps, access.downlink_bps).max(share(uplink_bps, access.uplink_bps));
        // A share above the whole is rejected later; u32::MAX is above the whole.
        Self { downlink_bps, uplink_bps, share_ppm: u32::try_from(share).unwrap_or(u32::MAX) }
    }

    /// The larger of each value.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self {
            downlink_bps: self.downlink_bps.max(other.downlink_bps),
            uplink_bps: self.uplink_bps.max(other.uplink_bps),
            share_ppm: self.share_ppm.max(other.share_ppm),
        }
    }
}

/// Guarantees of a slice by access.
pub type Demand = BTreeMap<String, Guarantee>;

/// The larger of each value, on every access of either.
#[must_use]
pub fn larger(a: &Demand, b: &Demand) -> Demand {
    let mut all = a.clone();
    for (access, guarantee) in b {
        let entry = all.entry(access.clone()).or_default();
        *entry = entry.max(*guarantee);
    }
    all
}

/// A resource of an access.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Resource {
    /// Downlink rate, bit/s.
    DownlinkBps,
    /// Uplink rate, bit/s.
    UplinkBps,
    /// Share of RBs, millionths.
    SharePpm,
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::DownlinkBps => "bit/s downlink",
            Self::UplinkBps => "bit/s uplink",
            Self::SharePpm => "millionths of the RBs",
        })
    }
}

/// Why a slice is not admitted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Shortage {
    /// A resource is insufficient.
    #[error(
        "access \"{access}\" has {free} {resource} left, and {wanted} are needed: ask for less, or remove a slice"
    )]
    Full {
        /// Name of the access.
        access: String,
        /// The insufficient resource.
        resource: Resource,
        /// Amount needed.
        wanted: u64,
        /// Amount left.
        free: u64,
    },
    /// The access does not exist.
    #[error("there is no access \"{0}\": see the configuration of the slice manager")]
    Unknown(String),
}

/// Sum of guarantees by access.
#[derive(Debug, Clone, Default)]
pub struct Ledger {
    sums: BTreeMap<String, (u64, u64, u64)>,
}

impl Ledger {
    /// Adds the guarantees of one slice.
    pub fn add(&mut self, demand: &Demand) {
        for (access, g) in demand {
            let sum = self.sums.entry(access.clone()).or_default();
            sum.0 = sum.0.saturating_add(g.downlink_bps);
            sum.1 = sum.1.saturating_add(g.uplink_bps);
            sum.2 = sum.2.saturating_add(u64::from(g.share_ppm));
        }
    }

    /// Checks that there is room for another slice.
    ///
    /// # Errors
    /// The first insufficient resource, in the order of access names.
    pub fn admit(&self, demand: &Demand, inventory: &Inventory) -> Result<(), Shortage> {
        for (name, g) in demand {
            let access = inventory.get(name).ok_or_else(|| Shortage::Unknown(name.clone()))?;
            let sum = self.sums.get(name).copied().unwrap_or_default();
            for (resource, wanted, used, of) in [
                (Resource::DownlinkBps, g.downlink_bps, sum.0, access.downlink_bps),
                (Resource::UplinkBps, g.uplink_bps, sum.1, access.uplink_bps),
                (Resource::SharePpm, g.share_ppm.into(), sum.2, access.max_share_ppm.into()),
            ] {
                let free = of.saturating_sub(used);
                if wanted > free {
                    return Err(Shortage::Full { access: name.clone(), resource, wanted, free });
                }
            }
        }
        Ok(())
    }

    /// Checks that there is room for a change from `held` to `reserved`, where `held` is not included in these sums. Amounts that do
    /// not grow are accepted even without room, for instance on an access whose capacity was reduced.
    ///
    /// # Errors
    /// Those of [`Self::admit`].
    pub fn admit_change(
        &self,
        held: &Demand,
        reserved: &Demand,
        inventory: &Inventory,
    ) -> Result<(), Shortage> {
        let grows = |(name, new): (&String, &Guarantee)| {
            let old = held.get(name).copied().unwrap_or_default();
            let more = Guarantee {
                downlink_bps: if new.downlink_bps > old.downlink_bps { new.downlink_bps } else { 0 },
                uplink_bps: if new.uplink_bps > old.uplink_bps { new.uplink_bps } else { 0 },
                share_ppm: if new.share_ppm > old.share_ppm { new.share_ppm } else { 0 },
            };
            (!held.contains_key(name) || more != Guarantee::default()).then(|| (name.clone(), more))
        };
        self.admit(&reserved.iter().filter_map(grows).collect(), inventory)
    }

    /// Sum of guarantees on an access: downlink and uplink in bit/s, share in millionths.
    #[must_use]
    pub fn promised(&self, access: &str) -> (u64, u64, u64) {
        self.sums.get(access).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell() -> Inventory {
        let access = Access {
            name: "cell".into(),
            location: String::new(),
            downlink_bps: 100_000_000,
            uplink_bps: 50_000_000,
            max_share_ppm: 900_000,
            delay_ms: 0.0,
            rest_slice: "default".into(),
        };
        Inventory::new([access]).unwrap()
    }

    #[test]
    fn a_shortage_states_the_access_and_the_remainder() {
        let inventory = cell();
        let access = inventory.get("cell").unwrap();
        let mut ledger = Ledger::default();
        let demand: Demand = [("cell".to_owned(), Guarantee::of_rates(60_000_000, 0, access))].into();
        assert_eq!(demand["cell"].share_ppm, 600_000);
        ledger.admit(&demand, &inventory).unwrap();
        ledger.add(&demand);
        let error = ledger.admit(&demand, &inventory).unwrap_err().to_string();
        assert!(error.contains("\"cell\" has 40000000 bit/s downlink left"), "{error}");
        // The rate would fit, but not the RBs: a tenth is reserved.
        let small = [("cell".to_owned(), Guarantee::of_rates(35_000_000, 0, access))].into();
        let error = ledger.admit(&small, &inventory).unwrap_err().to_string();
        assert!(error.contains("300000 millionths of the RBs"), "{error}");
        let other = [("cell-9".to_owned(), Guarantee::default())].into();
        assert_eq!(ledger.admit(&other, &inventory), Err(Shortage::Unknown("cell-9".into())));
    }

    #[test]
    fn shares_round_up_and_never_overflow() {
        let inventory = cell();
        let access = inventory.get("cell").unwrap();
        assert_eq!(Guarantee::of_rates(1, 0, access).share_ppm, 1);
        assert_eq!(Guarantee::of_rates(u64::MAX, u64::MAX, access).share_ppm, u32::MAX);
    }
}
