//! What a UPF remembers across restarts: the address each UE was given, the newest handshake timestamp seen
//! of it (a recording from before the restart must not pass), and the UEs that were added over REST.
//!
//! One JSON file, replaced whole and atomically.

use crate::config::{Pool, UpfUe, gateway_v4, gateway_v6};
use anabranch_core::access::crypto::PublicKey;
use anabranch_core::access::session::Addresses;
use anyhow::Context;
use ipnet::{Ipv4Net, Ipv6Net};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};

/// Addresses of an IPv6 pool that are tried; a /64 has more than anybody wants to walk.
const MAX_V6: u128 = 1 << 24;

/// The file.
#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    version: u32,
    leases: Vec<Lease>,
    ues: Vec<UpfUe>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Lease {
    public_key: PublicKey,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    v4: Option<Ipv4Addr>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    v6: Option<Ipv6Addr>,
    #[serde(default)]
    timestamp_ns: u64,
}

/// Given addresses.
#[derive(Debug, Clone)]
pub struct Leases {
    v4: Option<Ipv4Net>,
    v6: Option<Ipv6Net>,
    by_key: BTreeMap<PublicKey, Lease>,
    owners: BTreeMap<IpAddr, PublicKey>,
    next_v4: u32,
    next_v6: u128,
    /// UEs added over REST, in the order they came.
    pub added: Vec<UpfUe>,
    /// Something is not in the file yet.
    pub dirty: bool,
}

impl Leases {
    /// Nothing was ever given.
    pub fn new(pool: &Pool) -> Self {
        Self {
            v4: pool.v4,
            v6: pool.v6,
            by_key: BTreeMap::new(),
            owners: BTreeMap::new(),
            next_v4: 0,
            next_v6: 0,
            added: Vec::new(),
            dirty: false,
        }
    }

    /// Reads the file; one that is not there yet is an empty one.
    pub fn load(path: &Path, pool: &Pool) -> anyhow::Result<Self> {
        let mut leases = Self::new(pool);
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(leases),
            Err(error) => return Err(error).with_context(|| format!("state file {}", path.display())),
        };
        let file: File = serde_json::from_str(&text).with_context(|| {
            let place = path.display();
            format!("state file {place} is damaged: repair it, or remove it (UEs then get new addresses)")
        })?;
        leases.added = file.ues;
        for lease in file.leases {
            for address in lease.addresses().iter() {
                leases.owners.insert(address, lease.public_key);
            }
            leases.by_key.insert(lease.public_key, lease);
        }
        Ok(leases)
    }

    /// What belongs into the file.
    pub fn to_text(&self) -> String {
        let file =
            File { version: 1, leases: self.by_key.values().cloned().collect(), ues: self.added.clone() };
        serde_json::to_string(&file).unwrap_or_default()
    }

    /// The newest handshake timestamp seen of a UE.
    pub fn timestamp_ns(&self, key: &PublicKey) -> u64 {
        self.by_key.get(key).map_or(0, |lease| lease.timestamp_ns)
    }

    /// A handshake of a UE was accepted.
    pub fn saw(&mut self, key: PublicKey, timestamp_ns: u64) {
        self.lease(key).timestamp_ns = timestamp_ns;
        self.dirty = true;
    }

    /// Who has this address.
    pub fn owner(&self, address: IpAddr) -> Option<PublicKey> {
        self.owners.get(&address).copied()
    }

    /// Gives every one of `ues` its addresses: the fixed ones first, then those it had, then free ones. The
    /// UEs' fixed addresses do not collide (configuration is checked); somebody else's lease gives way.
    pub fn assign<'a>(
        &mut self,
        ues: impl Iterator<Item = &'a UpfUe> + Clone,
    ) -> Result<BTreeMap<PublicKey, Addresses>, String> {
        for ue in ues.clone() {
            self.give_fixed(ue);
        }
        let known: BTreeSet<PublicKey> = ues.clone().map(|ue| ue.public_key).collect();
        ues.map(|ue| Ok((ue.public_key, self.fill(ue, |key| known.contains(key))?))).collect()
    }

    /// The same for one more UE, beside those that are `known`.
    pub fn assign_one(
        &mut self,
        ue: &UpfUe,
        known: impl Fn(&PublicKey) -> bool,
    ) -> Result<Addresses, String> {
        self.give_fixed(ue);
        self.fill(ue, |key| *key == ue.public_key || known(key))
    }

    fn give_fixed(&mut self, ue: &UpfUe) {
        for address in [ue.address_v4.map(IpAddr::V4), ue.address_v6.map(IpAddr::V6)].into_iter().flatten() {
            self.give(ue.public_key, address);
        }
    }

    /// Completes a UE's addresses. If the pool is used up, leases of UEs that are not `known` are ended.
    fn fill(&mut self, ue: &UpfUe, known: impl Fn(&PublicKey) -> bool) -> Result<Addresses, String> {
        let key = ue.public_key;
        let mut lease = self.lease(key).clone();
        if !lease.v4.is_some_and(|a| self.v4.is_some_and(|p| usable_v4(p, a))) {
            self.release(lease.v4.map(IpAddr::V4));
            lease.v4 = None;
        }
        if !lease.v6.is_some_and(|a| self.v6.is_some_and(|p| usable_v6(p, a))) {
            self.release(lease.v6.map(IpAddr::V6));
            lease.v6 = None;
        }
        if let Some(pool) = self.v4.filter(|_| lease.v4.is_none()) {
            let free = self.free_v4(pool).or_else(|| {
                self.forget(&known);
                self.free_v4(pool)
            });
            lease.v4 = Some(free.ok_or_else(|| full("v4", &pool, &ue.name))?);
        }
        if let Some(pool) = self.v6.filter(|_| lease.v6.is_none()) {
            let free = self.free_v6(pool).or_else(|| {
                self.forget(&known);
                self.free_v6(pool)
            });
            lease.v6 = Some(free.ok_or_else(|| full("v6", &pool, &ue.name))?);
        }
        let addresses = lease.addresses();
        for address in addresses.iter() {
            self.owners.insert(address, key);
        }
        if self.by_key.get(&key) != Some(&lease) {
            self.by_key.insert(key, lease);
            self.dirty = true;
        }
        Ok(addresses)
    }

    fn lease(&mut self, key: PublicKey) -> &mut Lease {
        let empty = Lease { public_key: key, v4: None, v6: None, timestamp_ns: 0 };
        self.by_key.entry(key).or_insert(empty)
    }

    /// Makes `address` the one of `key`, whoever had it, and whatever `key` had of that family.
    fn give(&mut self, key: PublicKey, address: IpAddr) {
        if let Some(other) = self.owners.insert(address, key).filter(|other| *other != key) {
            let lease = self.lease(other);
            match address {
                IpAddr::V4(_) => lease.v4 = None,
                IpAddr::V6(_) => lease.v6 = None,
            }
        }
        let lease = self.lease(key);
        let old = match address {
            IpAddr::V4(a) => lease.v4.replace(a).map(IpAddr::V4),
            IpAddr::V6(a) => lease.v6.replace(a).map(IpAddr::V6),
        };
        if old != Some(address) {
            self.release(old);
            self.dirty = true;
        }
    }

    fn release(&mut self, address: Option<IpAddr>) {
        if let Some(address) = address {
            self.owners.remove(&address);
        }
    }

    fn forget(&mut self, known: &impl Fn(&PublicKey) -> bool) {
        self.by_key.retain(|key, _| known(key));
        self.owners.retain(|_, key| known(key));
        self.dirty = true;
    }

    fn free_v4(&mut self, pool: Ipv4Net) -> Option<Ipv4Addr> {
        let (first, size) =
            (u32::from(pool.network()), u32::from(pool.broadcast()) - u32::from(pool.network()));
        for _ in 0..size {
            self.next_v4 = (self.next_v4 + 1) % size.max(1);
            let address = Ipv4Addr::from(first + self.next_v4);
            if usable_v4(pool, address) && !self.owners.contains_key(&address.into()) {
                return Some(address);
            }
        }
        None
    }

    fn free_v6(&mut self, pool: Ipv6Net) -> Option<Ipv6Addr> {
        let first = u128::from(pool.network());
        let size = (u128::from(pool.broadcast()) - first).min(MAX_V6);
        for _ in 0..size {
            self.next_v6 = (self.next_v6 + 1) % size.max(1);
            let address = Ipv6Addr::from(first + self.next_v6);
            if usable_v6(pool, address) && !self.owners.contains_key(&address.into()) {
                return Some(address);
            }
        }
        None
    }
}

impl Lease {
    fn addresses(&self) -> Addresses {
        Addresses { v4: self.v4, v6: self.v6 }
    }
}

/// Replaces the state file; a crash leaves the old one or the new one.
pub fn save(path: &PathBuf, text: &str) -> anyhow::Result<()> {
    let write = || -> std::io::Result<()> {
        if let Some(folder) = path.parent().filter(|f| !f.as_os_str().is_empty()) {
            std::fs::create_dir_all(folder)?;
        }
        let mut new = path.clone().into_os_string();
        new.push(".new");
        let mut file = std::fs::File::create(&new)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&new, path)
    };
    write().with_context(|| format!("state file {}", path.display()))
}

fn usable_v4(pool: Ipv4Net, address: Ipv4Addr) -> bool {
    pool.contains(&address)
        && address != pool.network()
        && address != pool.broadcast()
        && Some(address) != gateway_v4(pool)
}

fn usable_v6(pool: Ipv6Net, address: Ipv6Addr) -> bool {
    pool.contains(&address) && address != pool.network() && Some(address) != gateway_v6(pool)
}

fn full(family: &str, pool: &dyn std::fmt::Display, ue: &str) -> String {
    format!("[pool] {family} \"{pool}\" has no address left for UE {ue}: use a larger prefix, or remove UEs")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(v4: &str) -> Pool {
        Pool { v4: Some(v4.parse().unwrap()), v6: Some("fd45::/64".parse().unwrap()) }
    }

    fn ue(id: u8) -> UpfUe {
        UpfUe {
            name: format!("ue{id}"),
            public_key: PublicKey([id; 32]),
            address_v4: None,
            address_v6: None,
            rule: Vec::new(),
            accept_rules: true,
        }
    }

    #[test]
    fn addresses_are_kept_across_restarts() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("var/state.json");
        let mut leases = Leases::load(&path, &pool("10.0.0.0/29")).unwrap();
        let ues = [ue(1), ue(2)];
        let given = leases.assign(ues.iter()).unwrap();
        assert_eq!(given[&PublicKey([1; 32])].v4, Some("10.0.0.2".parse().unwrap()));
        assert_eq!(given[&PublicKey([2; 32])].v6, Some("fd45::3".parse().unwrap()));
        leases.saw(PublicKey([2; 32]), 77);
        leases.added.push(ue(2));
        save(&path, &leases.to_text()).unwrap();

        let mut again = Leases::load(&path, &pool("10.0.0.0/29")).unwrap();
        assert_eq!(again.timestamp_ns(&PublicKey([2; 32])), 77);
        assert_eq!(again.added, [ue(2)]);
        // The other order, and a newcomer first: nobody's address changes.
        let more = [ue(3), ue(2), ue(1)];
        let now = again.assign(more.iter()).unwrap();
        assert_eq!(now[&PublicKey([1; 32])], given[&PublicKey([1; 32])]);
        assert_eq!(now[&PublicKey([2; 32])], given[&PublicKey([2; 32])]);
        assert_eq!(now[&PublicKey([3; 32])].v4, Some("10.0.0.4".parse().unwrap()));

        std::fs::write(&path, "{").unwrap();
        let error = format!("{:#}", Leases::load(&path, &pool("10.0.0.0/29")).unwrap_err());
        assert!(error.contains("state.json is damaged: repair it"), "{error}");
    }

    #[test]
    fn a_fixed_address_wins_over_a_lease() {
        let mut leases = Leases::new(&pool("10.0.0.0/29"));
        leases.assign([ue(1)].iter()).unwrap();
        let fixed = UpfUe { address_v4: Some("10.0.0.2".parse().unwrap()), ..ue(2) };
        let given = leases.assign([ue(1), fixed].iter()).unwrap();
        assert_eq!(given[&PublicKey([2; 32])].v4, Some("10.0.0.2".parse().unwrap()));
        assert_eq!(given[&PublicKey([1; 32])].v4, Some("10.0.0.3".parse().unwrap()));
        assert_eq!(leases.owner("10.0.0.2".parse().unwrap()), Some(PublicKey([2; 32])));
    }

    #[test]
    fn a_full_pool_forgets_strangers_before_it_refuses() {
        let mut leases = Leases::new(&pool("10.0.0.0/29"));
        let five: Vec<UpfUe> = (1..=5).map(ue).collect();
        leases.assign(five.iter()).unwrap();
        let error = leases.clone().assign((1..=6).map(ue).collect::<Vec<_>>().iter()).unwrap_err();
        assert!(error.contains("larger prefix"), "{error}");
        // UE 5 is no longer configured.
        let given = leases.assign([ue(1), ue(2), ue(3), ue(4), ue(6)].iter()).unwrap();
        assert_eq!(given[&PublicKey([6; 32])].v4, Some("10.0.0.6".parse().unwrap()));
        // Another pool: everybody moves.
        let mut other = Leases { v4: Some("10.9.0.0/24".parse().unwrap()), ..leases };
        let given = other.assign([ue(1)].iter()).unwrap();
        assert_eq!(given[&PublicKey([1; 32])].v4.unwrap().octets()[1], 9);
    }
}
