//! What a UPF remembers across restarts: the address each UE was given, the newest handshake timestamp seen
//! of it (a recording from before the restart must not pass), and the UEs that were added over REST.
//!
//! One JSON file, replaced whole and atomically.

use crate::runtime::config::{Pool, UpfUe, gateway_v4, gateway_v6};
use crate::runtime::{folder, state_file};
use anabranch_atsss::FixedHasher;
use anabranch_atsss::crypto::PublicKey;
use anabranch_atsss::session::Addresses;
use anabranch_element::index::HashIndex;
use anyhow::Context;
use ipnet::{Ipv4Net, Ipv6Net};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::BuildHasher;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

/// Addresses of an IPv6 pool that are tried; a /64 has more than anybody wants to walk.
const MAX_V6: u128 = 1 << 24;

/// What a lease of both families takes in the file, at most.
const LEASE_TEXT_BYTES: usize = 176;

/// The file, as it is read.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(rename = "version")]
    _version: u32,
    leases: Vec<Lease>,
    ues: Vec<UpfUe>,
}

/// The same as it is written, from where it is.
#[derive(Serialize)]
struct Written<'a> {
    version: u32,
    leases: &'a [Lease],
    ues: &'a [UpfUe],
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

/// Given addresses: a list, and where in it a key's and an address's lease is. Some 110 bytes for each.
#[derive(Debug, Clone)]
pub struct Leases {
    v4: Option<Ipv4Net>,
    v6: Option<Ipv6Net>,
    all: Vec<Lease>,
    by_key: HashIndex,
    by_address: HashIndex,
    /// Keys and addresses are the operator's, not chosen by strangers: it needs no secret.
    hasher: FixedHasher,
    next_v4: u32,
    next_v6: u128,
    /// UEs added over REST, in the order they came.
    pub added: Vec<UpfUe>,
    /// Whose newest timestamp stays known although they may not be let in.
    pub remembered: BTreeSet<PublicKey>,
    /// Something is not in the file yet.
    pub dirty: bool,
}

impl Leases {
    /// Nothing was ever given.
    pub fn new(pool: &Pool) -> Self {
        Self {
            v4: pool.v4,
            v6: pool.v6,
            all: Vec::new(),
            by_key: HashIndex::default(),
            by_address: HashIndex::default(),
            hasher: FixedHasher::new(0),
            next_v4: 0,
            next_v6: 0,
            added: Vec::new(),
            remembered: BTreeSet::new(),
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
        leases.put_all(file.leases);
        Ok(leases)
    }

    /// What belongs into the file.
    pub fn to_text(&self) -> Vec<u8> {
        let file = Written { version: 1, leases: &self.all, ues: &self.added };
        // Growing to it would take three times the memory for a moment.
        let mut text = Vec::with_capacity(LEASE_TEXT_BYTES * self.all.len() + 1024);
        // Writing to memory does not fail, and neither do keys and addresses.
        let _ = serde_json::to_writer(&mut text, &file);
        text
    }

    /// The newest handshake timestamp seen of a UE.
    pub fn timestamp_ns(&self, key: &PublicKey) -> u64 {
        self.of(key).map_or(0, |number| self.all[number].timestamp_ns)
    }

    /// Any timestamp of this UE is as good as the first.
    pub fn forget_timestamp(&mut self, key: &PublicKey) {
        if let Some(number) = self.of(key) {
            self.all[number].timestamp_ns = 0;
            self.dirty = true;
        }
    }

    /// A handshake of a UE was accepted.
    pub fn saw(&mut self, key: PublicKey, timestamp_ns: u64) {
        let number = self.lease(key);
        self.all[number].timestamp_ns = timestamp_ns;
        self.dirty = true;
    }

    /// Who has this address.
    pub fn owner(&self, address: IpAddr) -> Option<PublicKey> {
        self.holder(address).map(|number| self.all[number].public_key)
    }

    /// Gives every one of `ues` its addresses: the fixed ones first, then those it had, then free ones. The
    /// UEs' fixed addresses do not collide (configuration is checked); somebody else's lease gives way. For which there is none left,
    /// `refuse` says whether the others go on without it.
    pub fn assign<'a>(
        &mut self,
        ues: impl Iterator<Item = &'a UpfUe> + Clone,
        mut refuse: impl FnMut(&UpfUe, String) -> Result<(), String>,
    ) -> Result<BTreeMap<PublicKey, Addresses>, String> {
        for ue in ues.clone() {
            self.give_fixed(ue);
        }
        let known: BTreeSet<PublicKey> = ues.clone().map(|ue| ue.public_key).collect();
        let mut given = BTreeMap::new();
        for ue in ues {
            match self.fill(ue, |key| known.contains(key)) {
                Ok(addresses) => drop(given.insert(ue.public_key, addresses)),
                Err(why) => refuse(ue, why)?,
            }
        }
        Ok(given)
    }

    /// Keeps no room for more than there are: most are known from the start.
    pub fn shrink(&mut self) {
        self.all.shrink_to_fit();
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

    /// Makes its fixed addresses the UE's, whoever had them, and whatever it had of that family.
    fn give_fixed(&mut self, ue: &UpfUe) {
        for address in ue.fixed().iter() {
            let number = self.lease(ue.public_key);
            match self.holder(address) {
                Some(holder) if holder == number => continue,
                Some(other) => self.take(other, address),
                None => {}
            }
            self.give(number, address);
        }
    }

    /// Completes a UE's addresses. If the pool is used up, leases of UEs that are not `known` are ended.
    fn fill(&mut self, ue: &UpfUe, known: impl Fn(&PublicKey) -> bool) -> Result<Addresses, String> {
        let key = ue.public_key;
        let number = self.lease(key);
        let (v4, v6) = (self.v4, self.v6);
        let usable = |address: &IpAddr| match *address {
            IpAddr::V4(a) => v4.is_some_and(|pool| usable_v4(pool, a)),
            IpAddr::V6(a) => v6.is_some_and(|pool| usable_v6(pool, a)),
        };
        for address in self.all[number].addresses().iter().filter(|address| !usable(address)) {
            self.take(number, address);
        }
        if let Some(pool) = v4.filter(|_| self.all[number].v4.is_none()) {
            let free = self.free(&known, |leases| leases.free_v4(pool).map(IpAddr::V4));
            self.give_of(&key, free.ok_or_else(|| full("v4", &pool, &ue.name))?);
        }
        // Numbers are others where leases were ended.
        let number = self.lease(key);
        if let Some(pool) = v6.filter(|_| self.all[number].v6.is_none()) {
            let free = self.free(&known, |leases| leases.free_v6(pool).map(IpAddr::V6));
            self.give_of(&key, free.ok_or_else(|| full("v6", &pool, &ue.name))?);
        }
        let number = self.lease(key);
        Ok(self.all[number].addresses())
    }

    /// A free address; leases of UEs that are not `known` are ended before there is none.
    fn free(
        &mut self,
        known: &impl Fn(&PublicKey) -> bool,
        find: impl Fn(&mut Self) -> Option<IpAddr>,
    ) -> Option<IpAddr> {
        find(self).or_else(|| {
            self.forget(known);
            find(self)
        })
    }

    fn of(&self, key: &PublicKey) -> Option<usize> {
        let is_it = |number: u32| self.all[number as usize].public_key == *key;
        self.by_key.find(self.hasher.hash_one(key), is_it).map(|number| number as usize)
    }

    fn holder(&self, address: IpAddr) -> Option<usize> {
        let is_it = |number: u32| self.all[number as usize].addresses().contains(address);
        self.by_address.find(self.hasher.hash_one(address), is_it).map(|number| number as usize)
    }

    /// The lease of `key`, made if it has none.
    fn lease(&mut self, key: PublicKey) -> usize {
        self.of(&key).unwrap_or_else(|| {
            let number = self.all.len();
            self.all.push(Lease { public_key: key, v4: None, v6: None, timestamp_ns: 0 });
            self.by_key.insert(self.hasher.hash_one(key), number as u32);
            number
        })
    }

    /// Gives a lease an address that nobody has, in the place of the one of that family.
    fn give(&mut self, number: usize, address: IpAddr) {
        let lease = &mut self.all[number];
        let old = match address {
            IpAddr::V4(a) => lease.v4.replace(a).map(IpAddr::V4),
            IpAddr::V6(a) => lease.v6.replace(a).map(IpAddr::V6),
        };
        if let Some(old) = old {
            self.by_address.remove(self.hasher.hash_one(old), number as u32);
        }
        self.by_address.insert(self.hasher.hash_one(address), number as u32);
        self.dirty = true;
    }

    fn give_of(&mut self, key: &PublicKey, address: IpAddr) {
        let number = self.lease(*key);
        self.give(number, address);
    }

    /// Takes an address away that the lease has.
    fn take(&mut self, number: usize, address: IpAddr) {
        let lease = &mut self.all[number];
        match address {
            IpAddr::V4(_) => lease.v4 = None,
            IpAddr::V6(_) => lease.v6 = None,
        }
        self.by_address.remove(self.hasher.hash_one(address), number as u32);
        self.dirty = true;
    }

    fn forget(&mut self, known: &impl Fn(&PublicKey) -> bool) {
        let mut all = std::mem::take(&mut self.all);
        all.retain_mut(|lease| {
            if known(&lease.public_key) {
                return true;
            }
            (lease.v4, lease.v6) = (None, None);
            self.remembered.contains(&lease.public_key)
        });
        (self.by_key, self.by_address) = Default::default();
        self.put_all(all);
        self.dirty = true;
    }

    /// An address that two of them have is the first one's.
    fn put_all(&mut self, leases: Vec<Lease>) {
        for lease in leases {
            let number = self.lease(lease.public_key);
            self.all[number].timestamp_ns = lease.timestamp_ns;
            for address in lease.addresses().iter() {
                if self.holder(address).is_none() {
                    self.give(number, address);
                }
            }
        }
        self.dirty = false;
    }

    fn free_v4(&mut self, pool: Ipv4Net) -> Option<Ipv4Addr> {
        let (first, size) =
            (u32::from(pool.network()), u32::from(pool.broadcast()) - u32::from(pool.network()));
        for _ in 0..size {
            self.next_v4 = (self.next_v4 + 1) % size.max(1);
            let address = Ipv4Addr::from(first + self.next_v4);
            if usable_v4(pool, address) && self.holder(address.into()).is_none() {
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
            if usable_v6(pool, address) && self.holder(address.into()).is_none() {
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
pub fn save(path: &Path, text: &[u8]) -> anyhow::Result<()> {
    folder::make_for(path)?;
    state_file::replace(path, text)
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

    fn assign(leases: &mut Leases, ues: &[UpfUe]) -> Result<BTreeMap<PublicKey, Addresses>, String> {
        leases.assign(ues.iter(), |_, why| Err(why))
    }

    #[test]
    fn addresses_are_kept_across_restarts() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("var/state.json");
        let mut leases = Leases::load(&path, &pool("10.0.0.0/29")).unwrap();
        let ues = [ue(1), ue(2)];
        let given = assign(&mut leases, &ues).unwrap();
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
        let now = assign(&mut again, &more).unwrap();
        assert_eq!(now[&PublicKey([1; 32])], given[&PublicKey([1; 32])]);
        assert_eq!(now[&PublicKey([2; 32])], given[&PublicKey([2; 32])]);
        assert_eq!(now[&PublicKey([3; 32])].v4, Some("10.0.0.4".parse().unwrap()));

        std::fs::write(&path, "{").unwrap();
        let error = format!("{:#}", Leases::load(&path, &pool("10.0.0.0/29")).unwrap_err());
        assert!(error.contains("state.json is damaged: repair it"), "{error}");
    }

    #[test]
    fn an_address_that_two_have_in_the_file_is_the_first_ones() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.json");
        let lease = |id: u8| {
            let key = PublicKey([id; 32]);
            format!(
                "{{\"public_key\":\"{key}\",\"v4\":\"10.0.0.2\",\"v6\":\"fd45::{id}\",\"timestamp_ns\":{id}}}"
            )
        };
        let text = format!("{{\"version\":1,\"leases\":[{},{}],\"ues\":[]}}", lease(4), lease(3));
        std::fs::write(&path, text).unwrap();
        let mut leases = Leases::load(&path, &pool("10.0.0.0/29")).unwrap();
        let given = assign(&mut leases, &[ue(3), ue(4)]).unwrap();
        let (third, fourth) = (&given[&PublicKey([3; 32])], &given[&PublicKey([4; 32])]);
        assert_eq!((fourth.v4, third.v4), ("10.0.0.2".parse().ok(), "10.0.0.3".parse().ok()));
        assert_eq!((fourth.v6, third.v6), ("fd45::4".parse().ok(), "fd45::3".parse().ok()));
        assert_eq!(leases.timestamp_ns(&PublicKey([3; 32])), 3);
    }

    #[test]
    fn a_fixed_address_wins_over_a_lease() {
        let mut leases = Leases::new(&pool("10.0.0.0/29"));
        assign(&mut leases, &[ue(1)]).unwrap();
        let fixed = UpfUe { address_v4: Some("10.0.0.2".parse().unwrap()), ..ue(2) };
        let given = assign(&mut leases, &[ue(1), fixed]).unwrap();
        assert_eq!(given[&PublicKey([2; 32])].v4, Some("10.0.0.2".parse().unwrap()));
        assert_eq!(given[&PublicKey([1; 32])].v4, Some("10.0.0.3".parse().unwrap()));
        assert_eq!(leases.owner("10.0.0.2".parse().unwrap()), Some(PublicKey([2; 32])));
    }

    #[test]
    fn a_full_pool_forgets_strangers_before_it_refuses() {
        let mut leases = Leases::new(&pool("10.0.0.0/29"));
        let five: Vec<UpfUe> = (1..=5).map(ue).collect();
        assign(&mut leases, &five).unwrap();
        let error = assign(&mut leases.clone(), &(1..=6).map(ue).collect::<Vec<_>>()).unwrap_err();
        assert!(error.contains("larger prefix"), "{error}");
        // UE 5 is no longer configured.
        let given = assign(&mut leases, &[ue(1), ue(2), ue(3), ue(4), ue(6)]).unwrap();
        assert_eq!(given[&PublicKey([6; 32])].v4, Some("10.0.0.6".parse().unwrap()));
        // Another pool: everybody moves.
        let mut other = Leases { v4: Some("10.9.0.0/24".parse().unwrap()), ..leases };
        let given = assign(&mut other, &[ue(1)]).unwrap();
        assert_eq!(given[&PublicKey([1; 32])].v4.unwrap().octets()[1], 9);
    }
}
