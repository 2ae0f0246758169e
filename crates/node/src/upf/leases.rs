//! What a UPF remembers across restarts: the address each UE was given, the newest handshake timestamp seen
//! of it (a recording from before the restart must not pass), and the UEs that were added over REST.
//!
//! One JSON file, replaced whole and atomically. An entry that cannot be read is left out alone, and stays in the file as it
//! is; a file that cannot be read as a whole is refused, for what it has would be lost with the next change.

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

/// Addresses of an IPv6 pool that are tried; a /64 has more than anybody wants to walk.
const MAX_V6: u128 = 1 << 24;

/// What a lease of both families takes in the file, at most.
const LEASE_TEXT_BYTES: usize = 176;

/// The one there is.
const VERSION: u64 = 1;

/// What can be done where there is nothing better.
const REMOVE: &str =
    "remove it (UEs then get new addresses, and those that were added over REST are to be added again)";

/// What of an entry that cannot be read is shown, in bytes.
const SHOWN_BYTES: usize = 120;

/// What every version of the file has.
#[derive(Deserialize)]
struct Version {
    version: u64,
}

/// The file, as it is read: with what an entry is, or as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File<L, U> {
    #[serde(rename = "version")]
    _version: u64,
    leases: Vec<L>,
    ues: Vec<U>,
}

/// The same as it is written, from where it is.
#[derive(Serialize)]
struct Written<'a> {
    version: u64,
    leases: Entries<'a, Lease>,
    ues: Entries<'a, UpfUe>,
}

/// Entries, and after them those that could not be read.
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
    /// Where it was: `ues[3]`.
    pub at: String,
    /// The name of the UE it is about; where there is none, or another has it, where it was.
    pub name: String,
    /// What is wrong with it, and the remedy.
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

/// Those of a list that can be read.
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
    /// What of them cannot be read.
    pub unread: Vec<Unread>,
    unread_leases: Vec<Unread>,
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
            unread: Vec::new(),
            unread_leases: Vec::new(),
            remembered: BTreeSet::new(),
            dirty: false,
        }
    }

    /// Reads the file; one that is not there yet is an empty one.
    ///
    /// # Errors
    /// It cannot be read as a whole. It is as it was then.
    pub fn load(path: &Path, pool: &Pool) -> anyhow::Result<Self> {
        let mut leases = Self::new(pool);
        let wrong = |why: String| ConfigError::new(format!("state file {}", path.display()), why);
        let text = match std::fs::read(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(leases),
            Err(error) => {
                let why = format!("cannot be read: {error}: it must be a file of the user that runs the UPF");
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
                "it has version {version}, and this program knows version {VERSION}: run the one that wrote it, or {REMOVE}"
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

    /// Forgets the UE whose entry cannot be read.
    pub fn forget_unread(&mut self, name: &str) {
        self.unread.retain(|unread| unread.name != name);
    }

    /// What belongs into the file.
    pub fn to_text(&self) -> Vec<u8> {
        let file = Written {
            version: VERSION,
            leases: Entries(&self.all, &self.unread_leases),
            ues: Entries(&self.added, &self.unread),
        };
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
            // Of a key that is there twice, after a repair, the newest counts.
            self.all[number].timestamp_ns = self.all[number].timestamp_ns.max(lease.timestamp_ns);
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
        assert!(error.contains("state.json: damaged") && error.contains("repair it"), "{error}");
    }

    /// Who it is about is told, nobody else notices, and it is there when the file is written again.
    #[test]
    fn an_entry_that_cannot_be_read_is_left_out_alone_and_stays_in_the_file() {
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
                // Written and read, and written and read once more.
                for _ in 0..2 {
                    std::fs::write(&path, again.to_text()).unwrap();
                    again = Leases::load(&path, &pool("10.0.0.0/28")).unwrap();
                }
                let kept: serde_json::Value = serde_json::from_slice(&again.to_text()).unwrap();
                assert_eq!(kept[list].as_array().unwrap().iter().filter(|one| *one == entry).count(), 1);
            }
        }
    }

    /// Cut anywhere, of another version, or something else: it stops the start, names file and place, and loses nothing.
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
        // Somebody who empties it means an empty one, and nothing is lost by it.
        for empty in ["", " \n"] {
            assert_eq!(load(empty.as_bytes()).unwrap().added, []);
        }
        assert_eq!(load(&good).unwrap().added, [ue(2)]);
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
