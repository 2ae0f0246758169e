//! State of a UPF that survives restarts: the address assigned to each UE, the newest handshake timestamp
//! seen of it (so that a recording from before the restart is not accepted), and the UEs that were added over
//! REST.
//!
//! The state is one JSON file, which is replaced atomically as a whole. A single entry that cannot be read is
//! skipped and stays in the file unchanged. A file that cannot be read as a whole is refused, because the
//! next change would overwrite its contents.

use crate::runtime::config::{ConfigError, Pool, UpfUe, gateway_v4, gateway_v6};
use crate::runtime::{folder, state_file};
use anabranch_atsss::FixedHasher;
use anabranch_atsss::crypto::PublicKey;
use anabranch_atsss::session::Addresses;
use anabranch_element::index::HashIndex;
use ipnet::{Ipv4Net, Ipv6Net};
use serde::de::DeserializeOwned;
use serde::ser::SerializeSeq;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::BuildHasher;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

/// Maximum number of IPv6 addresses that are tried; a /64 has too many to walk.
const MAX_V6: u128 = 1 << 24;

/// Upper bound on the length of a lease with both address families in the file, bytes.
const LEASE_TEXT_BYTES: usize = 176;

/// Version of the file format.
const VERSION: u64 = 1;

/// Remedy of last resort.
const REMOVE: &str =
    "remove it (UEs then get new addresses, and UEs that were added over REST must be added again)";

/// Maximum length of the part of an unreadable entry that is shown, bytes.
const SHOWN_BYTES: usize = 120;

/// The part of the file that all versions have in common.
#[derive(Deserialize)]
struct Version {
    version: u64,
}

/// The file as it is read; the types of the entries are parameters.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File<L, U> {
    #[serde(rename = "version")]
    _version: u64,
    leases: Vec<L>,
    ues: Vec<U>,
}

/// The file as it is written, borrowed from the state.
#[derive(Serialize)]
struct Written<'a> {
    version: u64,
    leases: Entries<'a, Lease>,
    ues: Entries<'a, UpfUe>,
}

/// Entries, followed by those that could not be read.
struct Entries<'a, T>(&'a [T], &'a [Unread]);

impl<T: Serialize> Serialize for Entries<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(self.0.len() + self.1.len()))?;
        self.0.iter().try_for_each(|entry| list.serialize_element(entry))?;
        self.1.iter().try_for_each(|unread| list.serialize_element(&unread.entry))?;
        list.end()
    }
}

/// An entry of the file that cannot be read.
#[derive(Debug, Clone)]
pub struct Unread {
    /// Place in the file, such as `ues[3]`.
    pub at: String,
    /// Name of the UE that it concerns; without a unique name, the place in the file.
    pub name: String,
    /// The error and its remedy.
    pub why: String,
    entry: Value,
}

impl Unread {
    fn new(path: &Path, at: String, entry: Value, error: &serde_json::Error) -> Self {
        let name = entry.get("name").and_then(Value::as_str).unwrap_or(&at).to_owned();
        let mut shown = entry.to_string();
        if shown.len() > SHOWN_BYTES {
            shown.truncate((0..=SHOWN_BYTES).rev().find(|at| shown.is_char_boundary(*at)).unwrap_or(0));
            shown.push('…');
        }
        let why = format!(
            "its entry {at} in the state file {}, {shown}, cannot be read ({error}): it stays there; repair it while the UPF is stopped",
            path.display()
        );
        Self { at, name, why, entry }
    }
}

/// Reads a list entry by entry; returns the readable entries and the others.
fn read<T: DeserializeOwned>(
    path: &Path,
    list: &str,
    entries: Vec<Value>,
    unread: &mut Vec<Unread>,
) -> Vec<T> {
    let one = |(at, entry): (usize, Value)| match T::deserialize(&entry) {
        Ok(read) => Some(read),
        Err(error) => {
            unread.push(Unread::new(path, format!("{list}[{at}]"), entry, &error));
            None
        }
    };
    entries.into_iter().enumerate().filter_map(one).collect()
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

/// The assigned addresses: a list of leases with indexes by key and by address, about 110 bytes per UE.
#[derive(Debug, Clone)]
pub struct Leases {
    v4: Option<Ipv4Net>,
    v6: Option<Ipv6Net>,
    all: Vec<Lease>,
    by_key: HashIndex,
    by_address: HashIndex,
    /// Keys and addresses are chosen by the operator, not by strangers, so the hash needs no secret.
    hasher: FixedHasher,
    next_v4: u32,
    next_v6: u128,
    /// UEs added over REST, in the order of addition.
    pub added: Vec<UpfUe>,
    /// Entries of such UEs that cannot be read.
    pub unread: Vec<Unread>,
    unread_leases: Vec<Unread>,
    /// UEs that are not admitted at present but whose newest timestamp is kept.
    pub remembered: BTreeSet<PublicKey>,
    /// Whether there are changes that are not yet in the file.
    pub dirty: bool,
}

impl Leases {
    /// State without leases.
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
            unread: Vec::new(),
            unread_leases: Vec::new(),
            remembered: BTreeSet::new(),
            dirty: false,
        }
    }

    /// Reads the file; a file that does not exist counts as empty.
    ///
    /// # Errors
    /// The file cannot be read as a whole; it is left unchanged.
    pub fn load(path: &Path, pool: &Pool) -> anyhow::Result<Self> {
        let mut leases = Self::new(pool);
        let wrong = |why: String| ConfigError::new(format!("state file {}", path.display()), why);
        let text = match std::fs::read(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(leases),
            Err(error) => {
                let why = format!("cannot be read: {error}: it must belong to the user that runs the UPF");
                return Err(wrong(why).into());
            }
        };
        if text.iter().all(u8::is_ascii_whitespace) {
            tracing::warn!("state file {} is empty: UEs get new addresses", path.display());
            return Ok(leases);
        }
        let damaged =
            |error| wrong(format!("damaged ({error}): repair it, put a copy in its place, or {REMOVE}"));
        let Version { version } = serde_json::from_slice(&text).map_err(damaged)?;
        if version != VERSION {
            let why = format!(
                "it has version {version}, and this program supports version {VERSION}: run the program that wrote it, or {REMOVE}"
            );
            return Err(wrong(why).into());
        }
        if let Ok(File { leases: given, ues, .. }) = serde_json::from_slice::<File<Lease, UpfUe>>(&text) {
            leases.added = ues;
            leases.put_all(given);
            return Ok(leases);
        }
        let file: File<Value, Value> = serde_json::from_slice(&text).map_err(damaged)?;
        leases.added = read(path, "ues", file.ues, &mut leases.unread);
        let given = read(path, "leases", file.leases, &mut leases.unread_leases);
        for unread in &leases.unread_leases {
            tracing::warn!("a UE may get another address: {}", unread.why);
        }
        leases.put_all(given);
        Ok(leases)
    }

    /// Removes the entry of a UE that cannot be read.
    pub fn forget_unread(&mut self, name: &str) {
        self.unread.retain(|unread| unread.name != name);
    }

    /// The contents of the file.
    pub fn to_text(&self) -> Vec<u8> {
        let file = Written {
            version: VERSION,
            leases: Entries(&self.all, &self.unread_leases),
            ues: Entries(&self.added, &self.unread),
        };
        // Growing the buffer step by step would temporarily take three times the memory.
        let mut text = Vec::with_capacity(LEASE_TEXT_BYTES * self.all.len() + 1024);
        // Neither writing to memory nor serialising keys and addresses can fail.
        let _ = serde_json::to_writer(&mut text, &file);
        text
    }

    /// The newest handshake timestamp seen of a UE.
    pub fn timestamp_ns(&self, key: &PublicKey) -> u64 {
        self.of(key).map_or(0, |number| self.all[number].timestamp_ns)
    }

    /// Forgets the timestamp of this UE; the next handshake is accepted with any timestamp.
    pub fn forget_timestamp(&mut self, key: &PublicKey) {
        if let Some(number) = self.of(key) {
            self.all[number].timestamp_ns = 0;
            self.dirty = true;
        }
    }

    /// Records the timestamp of an accepted handshake.
    pub fn saw(&mut self, key: PublicKey, timestamp_ns: u64) {
        let number = self.lease(key);
        self.all[number].timestamp_ns = timestamp_ns;
        self.dirty = true;
    }

    /// The UE that holds this address.
    pub fn owner(&self, address: IpAddr) -> Option<PublicKey> {
        self.holder(address).map(|number| self.all[number].public_key)
    }

    /// Assigns addresses to all `ues`: first fixed addresses, then previous leases, then free addresses.
    /// Fixed addresses do not collide (the configuration is checked) and take precedence over leases of other
    /// UEs. For a UE that finds no free address, `refuse` decides whether the others continue without it.
    pub fn assign<'a>(
        &mut self,
        ues: impl Iterator<Item = &'a UpfUe> + Clone,
        mut refuse: impl FnMut(&UpfUe, String) -> Result<(), String>,
    ) -> Result<BTreeMap<PublicKey, Addresses>, String> {
        for ue in ues.clone() {
            self.assign_fixed(ue);
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

    /// Releases spare capacity: most UEs are known from the start.
    pub fn shrink(&mut self) {
        self.all.shrink_to_fit();
    }

    /// Assigns addresses to one more UE, besides those that are `known`.
    pub fn assign_one(
        &mut self,
        ue: &UpfUe,
        known: impl Fn(&PublicKey) -> bool,
    ) -> Result<Addresses, String> {
        self.assign_fixed(ue);
        self.fill(ue, |key| *key == ue.public_key || known(key))
    }

    /// Assigns the fixed addresses of a UE, whoever held them, in place of its previous ones of the same
    /// family.
    fn assign_fixed(&mut self, ue: &UpfUe) {
        for address in ue.fixed().iter() {
            let number = self.lease(ue.public_key);
            match self.holder(address) {
                Some(holder) if holder == number => continue,
                Some(other) => self.take(other, address),
                None => {}
            }
            self.record(number, address);
        }
    }

    /// Completes a UE's addresses. If the pool is exhausted, leases of UEs that are not `known` are ended.
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
            self.assign_to(&key, free.ok_or_else(|| full("v4", &pool, &ue.name))?);
        }
        // Ending leases changes the indexes.
        let number = self.lease(key);
        if let Some(pool) = v6.filter(|_| self.all[number].v6.is_none()) {
            let free = self.free(&known, |leases| leases.free_v6(pool).map(IpAddr::V6));
            self.assign_to(&key, free.ok_or_else(|| full("v6", &pool, &ue.name))?);
        }
        let number = self.lease(key);
        Ok(self.all[number].addresses())
    }

    /// A free address. If there is none, leases of UEs that are not `known` are ended.
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

    /// Index of the lease of `key`, which is created if necessary.
    fn lease(&mut self, key: PublicKey) -> usize {
        self.of(&key).unwrap_or_else(|| {
            let number = self.all.len();
            self.all.push(Lease { public_key: key, v4: None, v6: None, timestamp_ns: 0 });
            self.by_key.insert(self.hasher.hash_one(key), number as u32);
            number
        })
    }

    /// Assigns a free address to a lease, in place of its address of the same family.
    fn record(&mut self, number: usize, address: IpAddr) {
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

    fn assign_to(&mut self, key: &PublicKey, address: IpAddr) {
        let number = self.lease(*key);
        self.record(number, address);
    }

    /// Removes an address from the lease that holds it.
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

    /// Adds leases read from the file. An address that two of them have goes to the first.
    fn put_all(&mut self, leases: Vec<Lease>) {
        for lease in leases {
            let number = self.lease(lease.public_key);
            // If a key occurs twice, for example after a manual repair, the newest timestamp applies.
            self.all[number].timestamp_ns = self.all[number].timestamp_ns.max(lease.timestamp_ns);
            for address in lease.addresses().iter() {
                if self.holder(address).is_none() {
                    self.record(number, address);
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

/// Replaces the state file atomically: after a crash it has the old or the new contents.
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
        // In another order and with a new UE first: no address changes.
        let more = [ue(3), ue(2), ue(1)];
        let now = assign(&mut again, &more).unwrap();
        assert_eq!(now[&PublicKey([1; 32])], given[&PublicKey([1; 32])]);
        assert_eq!(now[&PublicKey([2; 32])], given[&PublicKey([2; 32])]);
        assert_eq!(now[&PublicKey([3; 32])].v4, Some("10.0.0.4".parse().unwrap()));

        std::fs::write(&path, "{").unwrap();
        let error = format!("{:#}", Leases::load(&path, &pool("10.0.0.0/29")).unwrap_err());
        assert!(error.contains("state.json: damaged") && error.contains("repair it"), "{error}");
    }

    /// The problem is reported with the name of the UE, other UEs are not affected, and the entry is written
    /// back.
    #[test]
    fn an_unreadable_entry_is_skipped_and_stays_in_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.json");
        let mut leases = Leases::new(&pool("10.0.0.0/28"));
        let ues: Vec<UpfUe> = (1..=3).map(ue).collect();
        let given = assign(&mut leases, &ues).unwrap();
        (1..=3).for_each(|id| leases.saw(PublicKey([id; 32]), id.into()));
        leases.added.extend(ues.clone());
        let good: serde_json::Value = serde_json::from_slice(&leases.to_text()).unwrap();
        let keys = |id: u8| PublicKey([id; 32]).to_string();
        let bad = [
            ("ues", serde_json::json!({"name": "bad", "public_key": "short"}), "public_key"),
            ("ues", serde_json::json!({"name": "bad"}), "public_key"),
            (
                "ues",
                serde_json::json!({"name": "bad", "public_key": keys(9), "address_v4": "10.0.0"}),
                "address",
            ),
            ("ues", serde_json::json!({"name": "bad", "public_key": keys(9), "later": 1}), "later"),
            ("ues", serde_json::json!({"public_key": keys(9)}), "name"),
            ("ues", serde_json::json!(7), "7"),
            ("ues", serde_json::Value::Null, "null"),
            ("leases", serde_json::json!({"public_key": keys(9), "v4": "fd45::1"}), "v4"),
            ("leases", serde_json::json!({"public_key": keys(9), "timestamp_ns": -1}), "timestamp_ns"),
            ("leases", serde_json::json!({"public_key": keys(9), "later": {"deep": [1]}}), "later"),
            ("leases", serde_json::json!([]), "sequence"),
        ];
        for (list, entry, _) in &bad {
            for at in 0..=3 {
                let mut text = good.clone();
                text[list].as_array_mut().unwrap().insert(at, entry.clone());
                std::fs::write(&path, text.to_string()).unwrap();
                let mut again = Leases::load(&path, &pool("10.0.0.0/28")).unwrap();
                assert_eq!(again.added, ues, "{entry}");
                let now = assign(&mut again, &[ue(4), ue(3), ue(2), ue(1)]).unwrap();
                for id in 1..=3 {
                    let key = PublicKey([id; 32]);
                    assert_eq!(
                        (now[&key], again.timestamp_ns(&key)),
                        (given[&key], id.into()),
                        "{entry} at {at}"
                    );
                }
                // Two cycles of writing and reading.
                for _ in 0..2 {
                    std::fs::write(&path, again.to_text()).unwrap();
                    again = Leases::load(&path, &pool("10.0.0.0/28")).unwrap();
                }
                let kept: serde_json::Value = serde_json::from_slice(&again.to_text()).unwrap();
                assert_eq!(kept[list].as_array().unwrap().iter().filter(|one| *one == entry).count(), 1);
            }
        }
    }

    /// A truncated file, another version or other contents: the start fails with file and place, and nothing
    /// is lost.
    #[test]
    fn a_file_that_cannot_be_read_as_a_whole_is_refused_with_place_and_remedy() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.json");
        let mut leases = Leases::new(&pool("10.0.0.0/28"));
        assign(&mut leases, &[ue(1), ue(2)]).unwrap();
        leases.added.push(ue(2));
        let good = leases.to_text();
        let load = |text: &[u8]| {
            std::fs::write(&path, text).unwrap();
            let loaded = Leases::load(&path, &pool("10.0.0.0/28")).map_err(|error| format!("{error:#}"));
            assert_eq!(std::fs::read(&path).unwrap(), text, "it is not touched");
            loaded
        };
        for cut in 1..good.len() {
            let error = load(&good[..cut]).unwrap_err();
            assert!(error.contains("state.json: damaged") && error.contains("column"), "{cut}: {error}");
        }
        let newer =
            String::from_utf8(good.clone()).unwrap().replace("\"version\":1", "\"version\":2,\"more\":[]");
        let error = load(newer.as_bytes()).unwrap_err();
        assert!(error.contains("state.json") && error.contains("version 2"), "{error}");
        for garbage in [&b"\xff\xfe"[..], b"[]", b"{}", b"null", b"{\"version\":1}", &[0; 4096]] {
            let error = load(garbage).unwrap_err();
            assert!(error.contains("state.json: damaged"), "{error}");
        }
        // An empty file is accepted: it has nothing to lose.
        for empty in ["", " \n"] {
            assert_eq!(load(empty.as_bytes()).unwrap().added, []);
        }
        assert_eq!(load(&good).unwrap().added, [ue(2)]);
    }

    #[test]
    fn an_address_with_two_leases_in_the_file_goes_to_the_first() {
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
    fn a_full_pool_ends_leases_of_unknown_ues_before_it_refuses() {
        let mut leases = Leases::new(&pool("10.0.0.0/29"));
        let five: Vec<UpfUe> = (1..=5).map(ue).collect();
        assign(&mut leases, &five).unwrap();
        let error = assign(&mut leases.clone(), &(1..=6).map(ue).collect::<Vec<_>>()).unwrap_err();
        assert!(error.contains("larger prefix"), "{error}");
        // UE 5 is no longer configured.
        let given = assign(&mut leases, &[ue(1), ue(2), ue(3), ue(4), ue(6)]).unwrap();
        assert_eq!(given[&PublicKey([6; 32])].v4, Some("10.0.0.6".parse().unwrap()));
        // With another pool, all UEs get new addresses.
        let mut other = Leases { v4: Some("10.9.0.0/24".parse().unwrap()), ..leases };
        let given = assign(&mut other, &[ue(1)]).unwrap();
        assert_eq!(given[&PublicKey([1; 32])].v4.unwrap().octets()[1], 9);
    }
}
