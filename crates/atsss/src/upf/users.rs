//! Records of the known UEs, found by key, by virtual address, or by receiver index.
//!
//! ```text
//!   public key       ─▶ HashIndex ───┐
//!   virtual address  ─▶ SessionTable ┼─▶ user index ─▶ User { key, name, addresses, seat ─▶ UserSlot { session } }
//!   receiver index   ─▶ Slab ────────┘   (slot and generation)      nothing else if it has no session
//! ```
//!
//! This is the first level of the hierarchical lookup of JUNCTION §V-C1; the second is the user's session
//! and its path states, the third the rule set that all users share, with the exception table beside it.

use super::api::{UeEntry, UpfError};
use crate::FixedHasher;
use crate::crypto::PublicKey;
use crate::keyring::MOST_EPOCHS;
use crate::session::{Addresses, ReportFrom, Session};
use crate::table::session::{SessionLimits, SessionTable};
use crate::table::{Slab, SlabLayout, TableError};
use anabranch_element::index::HashIndex;
use anabranch_steer::Rule;
use std::hash::BuildHasher;
use std::net::{IpAddr, SocketAddr};

/// Index of a user: slot and generation.
pub(super) type UserIndex = u32;

/// Most UEs of a shard.
const MAX_USERS: u32 = 1 << 20;
/// Receiver indices per session: one more than it has epochs, because the oldest is removed only after the
/// new one exists.
const RECEIVERS_PER_SESSION: u32 = MOST_EPOCHS as u32 + 1;
/// Slots for addresses to which paths are bound: one per session, within these limits.
const MIN_BOUND: u32 = 256;
const MAX_BOUND: u32 = 1 << 18;
/// Most shards.
pub(super) const MAX_SHARDS: u32 = 256;

/// A known UE.
pub(super) struct User {
    pub key: PublicKey,
    pub name: Name,
    pub addresses: Addresses,
    pub last_timestamp_ns: u64,
    pub user_slot: Option<Box<UserSlot>>,
    /// Data that most UEs do not have.
    pub user_config: Option<Box<UserConfig>>,
    pub accept_rules: bool,
}

/// A name; up to 22 bytes are stored without allocation.
pub(super) enum Name {
    Short(u8, [u8; 22]),
    Long(Box<str>),
}

impl Default for Name {
    fn default() -> Self {
        Self::Short(0, [0; 22])
    }
}

impl Name {
    pub fn new(name: &str) -> Self {
        let mut bytes = [0; 22];
        match bytes.get_mut(..name.len()) {
            Some(room) => {
                room.copy_from_slice(name.as_bytes());
                Self::Short(name.len() as u8, bytes)
            }
            None => Self::Long(name.into()),
        }
    }

    pub fn as_str(&self) -> &str {
        match self {
            // It was a valid string when it was stored.
            Self::Short(len, bytes) => {
                bytes.get(..usize::from(*len)).and_then(|b| str::from_utf8(b).ok()).unwrap_or("")
            }
            Self::Long(name) => name,
        }
    }
}

/// Configuration for one UE only.
#[derive(Default)]
pub(super) struct UserConfig {
    pub rules: Vec<Rule>,
    /// (application, rule) by name.
    pub exceptions: Vec<(String, String)>,
}

/// A UE's session.
pub(super) struct UserSlot {
    pub session: Session,
    /// Rules sent by the UE; most send none.
    pub own_rules: Option<Box<OwnRules>>,
    /// When a closed destination may next be reported.
    pub closed_from: ReportFrom,
    pub confirmed: bool,
    /// Waiting for the next poll.
    pub dirty: bool,
}

pub(super) struct OwnRules(pub Vec<Rule>);

impl UserSlot {
    pub fn own_rules(&self) -> &[Rule] {
        self.own_rules.as_ref().map_or(&[], |own| &own.0)
    }
}

impl User {
    pub fn rules(&self) -> &[Rule] {
        self.user_config.as_ref().map_or(&[], |user_config| &user_config.rules)
    }

    pub fn exceptions(&self) -> &[(String, String)] {
        self.user_config.as_ref().map_or(&[], |user_config| &user_config.exceptions)
    }

    /// Sets rules; memory is kept only for what exists.
    pub fn set_rules(&mut self, rules: Vec<Rule>) {
        self.user_config.get_or_insert_default().rules = rules;
        self.tidy();
    }

    pub fn exceptions_mut(&mut self, change: impl FnOnce(&mut Vec<(String, String)>)) {
        change(&mut self.user_config.get_or_insert_default().exceptions);
        self.tidy();
    }

    fn tidy(&mut self) {
        if self.user_config.as_ref().is_some_and(|s| s.rules.is_empty() && s.exceptions.is_empty()) {
            self.user_config = None;
        }
    }
}

/// All users of a shard.
pub(super) struct Users {
    pub slab: Slab<User>,
    pub table: SessionTable,
    keys: HashIndex,
    receivers: Slab<UserIndex>,
    hasher: FixedHasher,
    /// By hash of an address: the user whose path was last bound to it.
    bound: Box<[UserIndex]>,
    shard: u32,
    shards: u32,
    pub sessions: usize,
}

impl Users {
    /// `seed` should be hard to guess.
    pub fn new(shard: u32, shards: u32, max_sessions: u32, seed: u64) -> Self {
        let shards = shards.clamp(1, MAX_SHARDS);
        // An index on the wire is a multiple of the number of shards plus the shard, so bits are reserved for
        // that.
        let shard_bits = u32::BITS - (shards - 1).leading_zeros();
        let layout = |limit| SlabLayout { limit, shard: 0, shard_bits: shard_bits as u8 };
        let exceptions = SessionLimits::for_sessions(max_sessions as usize).exceptions;
        let limits = SessionLimits { exceptions, ..SessionLimits::for_sessions(MAX_USERS as usize) };
        Self {
            slab: Slab::new("UEs", SlabLayout::single(MAX_USERS)),
            table: SessionTable::with_limits(limits, seed),
            keys: HashIndex::default(),
            receivers: Slab::new(
                "receiver indices",
                layout(max_sessions.saturating_mul(RECEIVERS_PER_SESSION)),
            ),
            hasher: FixedHasher::new(seed),
            bound: vec![
                UserIndex::MAX;
                max_sessions.clamp(MIN_BOUND, MAX_BOUND).next_power_of_two() as usize
            ]
            .into(),
            shard: shard % shards,
            shards,
            sessions: 0,
        }
    }

    /// The user with this key.
    pub fn find(&self, key: &PublicKey) -> Option<UserIndex> {
        let slot = self.keys.find(self.hasher.hash_one(key.0), |slot| {
            self.slab.at_slot(slot).is_some_and(|(_, user)| user.key == *key)
        })?;
        self.slab.at_slot(slot).map(|(index, _)| index)
    }

    /// The user with this virtual address.
    #[inline]
    pub fn by_address(&self, address: IpAddr) -> Option<UserIndex> {
        self.table.by_address(address)
    }

    /// The user whose session has this receiver index.
    #[inline]
    pub fn by_receiver(&self, index: u32) -> Option<UserIndex> {
        if index % self.shards != self.shard {
            return None;
        }
        self.receivers.get(index / self.shards).copied()
    }

    /// Allocates a receiver index for the user's next keys.
    pub fn claim_receiver(&mut self, user: UserIndex) -> Result<u32, TableError> {
        self.receivers.insert(user).map(|index| index * self.shards + self.shard)
    }

    /// Releases a receiver index.
    pub fn release_receiver(&mut self, index: u32) {
        // Not found: it was released before.
        let _ = self.receivers.remove(index / self.shards);
    }

    /// Notes that a path of this user's session is bound to an address. If two addresses share a slot, one is
    /// forgotten until its session changes its keys.
    pub fn note_bound(&mut self, address: SocketAddr, user: UserIndex) {
        let slot = self.bound_slot(address);
        self.bound[slot] = user;
    }

    /// The user whose session may have a path bound to this address; the caller must verify it.
    pub fn bound(&self, address: SocketAddr) -> Option<UserIndex> {
        Some(self.bound[self.bound_slot(address)]).filter(|user| *user != UserIndex::MAX)
    }

    fn bound_slot(&self, address: SocketAddr) -> usize {
        // The number of slots is a power of two.
        self.hasher.hash_one(address) as usize & (self.bound.len() - 1)
    }

    pub fn user_slot(&self, user: UserIndex) -> Option<&UserSlot> {
        self.slab.get(user)?.user_slot.as_deref()
    }

    #[inline]
    pub fn user_slot_mut(&mut self, user: UserIndex) -> Option<&mut UserSlot> {
        self.slab.get_mut(user)?.user_slot.as_deref_mut()
    }

    /// Name of a user, for events.
    pub fn name(&self, user: UserIndex) -> String {
        self.slab.get(user).map_or_else(String::new, |user| user.name.as_str().to_owned())
    }

    /// Adds a UE, or changes one. Returns its index, and whether its addresses have changed.
    ///
    /// # Errors
    /// [`UpfError::AddressTaken`] or [`UpfError::Table`]; nothing has changed then.
    pub fn put(&mut self, entry: UeEntry) -> Result<(UserIndex, bool), UpfError> {
        let known = self.find(&entry.key);
        for address in entry.addresses.iter() {
            if let Some(owner) = self.by_address(address).filter(|owner| Some(*owner) != known) {
                return Err(UpfError::AddressTaken { name: entry.name, address, other: self.name(owner) });
            }
        }
        let UeEntry { name, key, addresses, rules, accept_rules } = entry;
        let user = match known {
            Some(user) => user,
            None => self.add(key)?,
        };
        let before = self.slab.get(user).map(|user| user.addresses).unwrap_or_default();
        if let Err(error) = self.move_to(user, before, addresses) {
            if known.is_none() {
                self.remove(user);
            }
            return Err(error.into());
        }
        if let Some(record) = self.slab.get_mut(user) {
            record.name = Name::new(&name);
            record.addresses = addresses;
            record.accept_rules = accept_rules;
            record.set_rules(rules);
        }
        Ok((user, known.is_some() && before != addresses))
    }

    fn add(&mut self, key: PublicKey) -> Result<UserIndex, TableError> {
        let user = self.slab.insert(User {
            key,
            name: Name::default(),
            addresses: Addresses::default(),
            last_timestamp_ns: 0,
            user_slot: None,
            user_config: None,
            accept_rules: false,
        })?;
        self.keys.insert(self.hasher.hash_one(key.0), Slab::<User>::slot_number(user));
        Ok(user)
    }

    /// Replaces the addresses of a user, all or none.
    fn move_to(&mut self, user: UserIndex, before: Addresses, after: Addresses) -> Result<(), TableError> {
        let mut bound = Vec::new();
        for address in after.iter().filter(|address| !before.contains(*address)) {
            if let Err(error) = self.table.insert(address, user) {
                for address in bound {
                    self.table.remove(address);
                }
                return Err(error);
            }
            bound.push(address);
        }
        for address in before.iter().filter(|address| !after.contains(*address)) {
            self.table.remove(address);
        }
        Ok(())
    }

    /// Removes a user without a session.
    pub fn remove(&mut self, user: UserIndex) -> Option<User> {
        let record = self.slab.remove(user).ok()?;
        self.keys.remove(self.hasher.hash_one(record.key.0), Slab::<User>::slot_number(user));
        for address in record.addresses.iter() {
            self.table.remove(address);
        }
        self.table.remove_exceptions_of(user);
        Some(record)
    }

    /// Users in the order of their slots, with their numbers: approximately the order in which they were
    /// added.
    pub fn iter(&self) -> impl Iterator<Item = (UserIndex, &User)> {
        self.slab.iter()
    }

    /// Memory of the tables in bytes, without the sessions.
    pub fn table_bytes(&self) -> usize {
        self.slab.bytes()
            + self.table.bytes()
            + self.keys.bytes()
            + self.receivers.bytes()
            + size_of_val(&*self.bound)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crypto::PrivateKey;
    use std::net::Ipv4Addr;

    /// The table of docs/atsss-memory.md.
    #[test]
    fn sizes_are_as_documented() {
        use crate::keyring::Epoch;
        use crate::path::PathMonitor;
        use crate::session::Path;
        use crate::table::session::address_bytes;
        let page = include_str!("../../../../docs/atsss-memory.md");
        let index = {
            let mut index = HashIndex::default();
            index.insert(1, 1);
            index.bytes() / 8 // slots at first
        };
        for (part, bytes) in [
            ("`User` slot", Slab::<User>::SLOT_BYTES),
            ("`UserSlot`", size_of::<UserSlot>()),
            ("of which `Session`", size_of::<Session>()),
            ("`Epoch`", size_of::<Epoch>()),
            ("`Path`", size_of::<Path>()),
            ("of which `PathMonitor`", size_of::<PathMonitor>()),
            ("receiver index slot", Slab::<UserIndex>::SLOT_BYTES),
            ("address slot, IPv4", address_bytes(3000, false) / 4001),
            ("key index slot", index),
            ("timer", super::super::timers::ENTRY_BYTES),
        ] {
            let row = page.lines().find_map(|line| line.strip_prefix(&format!("| {part} | ")));
            let said = row.and_then(|row| row.split(' ').next()).and_then(|n| n.parse().ok());
            assert_eq!(said, Some(bytes), "{part}");
        }
    }

    fn entry(n: u8, last: u8) -> UeEntry {
        UeEntry {
            name: format!("ue{n}"),
            key: PrivateKey::from_bytes([n; 32]).public(),
            addresses: Addresses { v4: Some(Ipv4Addr::new(10, 0, 0, last)), v6: None },
            rules: Vec::new(),
            accept_rules: true,
        }
    }

    #[test]
    fn receiver_indices_contain_their_shard_and_are_not_reused_soon() {
        for shards in [1, 2, 3, 7, 16, MAX_SHARDS] {
            for shard in [0, 1 % shards, shards - 1] {
                let mut users = Users::new(shard, shards, 10, 1);
                let (user, _) = users.put(entry(1, 1)).unwrap();
                let first = users.claim_receiver(user).unwrap();
                assert_eq!((first % shards, users.by_receiver(first)), (shard, Some(user)));
                assert_eq!(users.by_receiver(first + shards), None);
                users.release_receiver(first);
                users.release_receiver(first);
                let second = users.claim_receiver(user).unwrap();
                assert_ne!(first, second);
                assert_eq!((users.by_receiver(first), users.by_receiver(second)), (None, Some(user)));
                for _ in 1..10 * RECEIVERS_PER_SESSION {
                    users.claim_receiver(user).unwrap();
                }
                assert!(users.claim_receiver(user).is_err(), "bounded");
            }
        }
    }

    #[test]
    fn names_of_any_length_are_stored() {
        assert_eq!(size_of::<Name>(), 24);
        for len in 0..40 {
            let name = "ü".repeat(len / 2) + &"x".repeat(len % 2);
            assert_eq!(Name::new(&name).as_str(), name);
        }
    }

    #[test]
    fn addresses_have_one_owner_and_follow_changes() {
        let mut users = Users::new(0, 1, 10, 1);
        let (one, moved) = users.put(entry(1, 1)).unwrap();
        assert!(!moved);
        let error = users.put(entry(2, 1)).unwrap_err().to_string();
        assert_eq!(error, "address 10.0.0.1 of UE \"ue2\" already belongs to UE \"ue1\": give each its own");
        assert_eq!(users.find(&entry(2, 1).key), None, "nothing has changed");
        assert_eq!(users.put(entry(1, 1)), Ok((one, false)));
        assert_eq!(users.put(entry(1, 5)), Ok((one, true)));
        let (two, _) = users.put(entry(2, 1)).unwrap();
        assert_eq!(users.by_address(Ipv4Addr::new(10, 0, 0, 1).into()), Some(two));
        assert_eq!(users.by_address(Ipv4Addr::new(10, 0, 0, 5).into()), Some(one));
        assert_eq!(users.remove(one).map(|user| user.name.as_str().to_owned()), Some("ue1".into()));
        assert_eq!((users.find(&entry(1, 1).key), users.find(&entry(2, 1).key)), (None, Some(two)));
        assert_eq!(users.by_address(Ipv4Addr::new(10, 0, 0, 5).into()), None);
        assert!(users.remove(one).is_none() && users.table_bytes() > 0);
    }
}
