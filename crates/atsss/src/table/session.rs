//! The UPF's session lookup, hierarchical as in JUNCTION §V-C1.
//!
//! ```text
//!   flat (Fig. 7a)                         hierarchical (Fig. 7b)
//!   (session id, application)              session id --> user index       this table, one slot per address
//!       --> mode, endpoints, path states   user index --> endpoints, path states       once per user
//!   N x M entries, path states in each     application --> mode            rule set, shared by all users
//!                                          (user, application) --> exception           few
//! ```
//!
//! The session id is the virtual address of the tunnel. In the paper, every application of a user has a
//! session and address of its own. Here a user has one tunnel with an IPv4 and an IPv6 address, or more if
//! needed, and (user, application) identifies one of the paper's sessions. The value is a plain user index,
//! whose meaning is up to the caller.
//!
//! *Exceptions* (§V-C1, "handling exception cases") are sessions that cannot be summarised, because they need
//! a sequence counter of their own or a rule that differs from the common one. The table is small: as in the
//! paper, [`SessionLimits::for_sessions`] provides for 10 % of the users.

use super::TableError;
use super::open::{Key, OpenTable, slots_for};
use std::net::IpAddr;

/// Sizes of a [`SessionTable`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionLimits {
    /// Most IPv4 addresses.
    pub v4: usize,
    /// Most IPv6 addresses.
    pub v6: usize,
    /// Most exceptions.
    pub exceptions: usize,
}

impl SessionLimits {
    /// Room for this many sessions with an address of each family, and exceptions for 10 % of them.
    #[must_use]
    pub const fn for_sessions(sessions: usize) -> Self {
        Self { v4: sessions, v6: sessions, exceptions: sessions.div_ceil(10) }
    }
}

/// The exception of one (user, application).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exception {
    /// The rule that applies instead of the application's own.
    pub rule: u16,
    /// The next sequence number of the private counter.
    pub sequence: u32,
}

/// Key of the exception table: user index and application.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ExceptionKey {
    user: u32,
    application: u16,
}

impl Key for ExceptionKey {
    const FILL: Self = Self { user: 0, application: 0 };
    fn words(&self) -> (u64, u64) {
        (u64::from(self.user), u64::from(self.application))
    }
}

/// Virtual address to user index, and the exceptions.
#[derive(Debug, Clone)]
pub struct SessionTable {
    v4: OpenTable<u32>,
    v6: OpenTable<[u32; 4]>,
    exceptions: OpenTable<ExceptionKey>,
    /// Indexed by the values of the exception table; a removed element is overwritten by the last one.
    exception_list: Vec<(ExceptionKey, Exception)>,
}

impl SessionTable {
    /// Most sessions unless configured otherwise.
    pub const DEFAULT_SESSIONS: usize = 1 << 20;

    /// A table with default limits that grows as needed. `seed` should be hard to guess.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self::with_limits(SessionLimits::for_sessions(Self::DEFAULT_SESSIONS), seed)
    }

    /// A table with these limits that grows as needed.
    #[must_use]
    pub fn with_limits(limits: SessionLimits, seed: u64) -> Self {
        let seed = [seed, seed.rotate_left(32) ^ 0x5851_f42d_4c95_7f2d];
        Self {
            v4: OpenTable::new("IPv4 sessions", limits.v4, seed),
            v6: OpenTable::new("IPv6 sessions", limits.v6, seed),
            exceptions: OpenTable::new("exceptions", limits.exceptions, seed),
            exception_list: Vec::new(),
        }
    }

    /// Allocates the memory for the limits, so that no insertion has to grow the table.
    pub fn reserve(&mut self) {
        self.v4.reserve();
        self.v6.reserve();
        self.exceptions.reserve();
        self.exception_list.reserve_exact(self.exceptions.limit() - self.exception_list.len());
    }

    /// Binds a virtual address to a user index below `u32::MAX`.
    ///
    /// # Errors
    /// [`TableError::Exists`] if the address is bound, [`TableError::Full`] at the limit.
    pub fn insert(&mut self, address: IpAddr, user: u32) -> Result<(), TableError> {
        match address {
            IpAddr::V4(a) => self.v4.insert(a.to_bits(), user),
            IpAddr::V6(a) => self.v6.insert(words(a), user),
        }
    }

    /// Unbinds a virtual address and returns the user index it had.
    pub fn remove(&mut self, address: IpAddr) -> Option<u32> {
        match address {
            IpAddr::V4(a) => self.v4.remove(&a.to_bits()).ok(),
            IpAddr::V6(a) => self.v6.remove(&words(a)).ok(),
        }
    }

    /// The user index of a virtual address.
    #[must_use]
    #[inline]
    pub fn by_address(&self, address: IpAddr) -> Option<u32> {
        match address {
            IpAddr::V4(a) => self.v4.get(&a.to_bits()),
            IpAddr::V6(a) => self.v6.get(&words(a)),
        }
    }

    /// Looks up a batch. The lookups are independent of one another, so the processor overlaps their cache
    /// misses. Stops at the end of the shorter slice.
    pub fn by_addresses(&self, addresses: &[IpAddr], users: &mut [Option<u32>]) {
        for (user, address) in users.iter_mut().zip(addresses) {
            *user = self.by_address(*address);
        }
    }

    /// Sets or changes the exception of one application of a user.
    ///
    /// # Errors
    /// [`TableError::Full`] at the limit.
    pub fn set_exception(
        &mut self,
        user: u32,
        application: u16,
        exception: Exception,
    ) -> Result<(), TableError> {
        let key = ExceptionKey { user, application };
        if let Some(slot) = self.exception_mut(user, application) {
            *slot = exception;
            return Ok(());
        }
        let at = u32::try_from(self.exception_list.len()).unwrap_or(u32::MAX);
        self.exceptions.insert(key, at)?;
        self.exception_list.push((key, exception));
        Ok(())
    }

    /// Whether one more exception fits.
    ///
    /// # Errors
    /// [`TableError::Full`] at the limit.
    pub const fn room_for_exception(&self) -> Result<(), TableError> {
        let limit = self.exceptions.limit();
        if self.exceptions.len() < limit {
            Ok(())
        } else {
            Err(TableError::Full { what: "exceptions", limit })
        }
    }

    /// Removes an exception and returns it.
    fn remove_exception(&mut self, user: u32, application: u16) -> Option<Exception> {
        let at = self.exceptions.remove(&ExceptionKey { user, application }).ok()?;
        let (_, exception) = self.exception_list.swap_remove(at as usize);
        if let Some((moved, _)) = self.exception_list.get(at as usize) {
            self.exceptions.replace(moved, at);
        }
        Some(exception)
    }

    /// Removes all exceptions of a user. Takes time proportional to the number of all exceptions.
    pub fn remove_exceptions_of(&mut self, user: u32) {
        let of_user = |(key, _): &&(ExceptionKey, Exception)| key.user == user;
        while let Some((key, _)) = self.exception_list.iter().rfind(of_user) {
            let application = key.application;
            self.remove_exception(user, application);
        }
    }

    /// The exception of one application of a user.
    #[must_use]
    #[inline]
    pub fn exception(&self, user: u32, application: u16) -> Option<&Exception> {
        if self.exception_list.is_empty() {
            return None;
        }
        let at = self.exceptions.get(&ExceptionKey { user, application })?;
        self.exception_list.get(at as usize).map(|(_, exception)| exception)
    }

    /// The exception of one application of a user, mutable.
    #[inline]
    fn exception_mut(&mut self, user: u32, application: u16) -> Option<&mut Exception> {
        if self.exception_list.is_empty() {
            return None;
        }
        let at = self.exceptions.get(&ExceptionKey { user, application })?;
        self.exception_list.get_mut(at as usize).map(|(_, exception)| exception)
    }

    /// The rule of an application of a user, and the sequence number of the packet if the user has a private
    /// counter, which is advanced. These are the last two levels of the hierarchical lookup.
    #[inline]
    pub fn steer(&mut self, user: u32, application: u16) -> (u16, Option<u32>) {
        match self.exception_mut(user, application) {
            None => (application, None),
            Some(exception) => {
                let sequence = exception.sequence;
                exception.sequence = sequence.wrapping_add(1);
                (exception.rule, Some(sequence))
            }
        }
    }

    /// Number of bound addresses, of both families.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.v4.len() + self.v6.len()
    }

    /// Whether no address is bound.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of exceptions of all users.
    #[must_use]
    pub fn exceptions(&self) -> usize {
        self.exception_list.len()
    }

    /// Bytes allocated.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let list = self.exception_list.capacity() * size_of::<(ExceptionKey, Exception)>();
        self.v4.bytes() + self.v6.bytes() + self.exceptions.bytes() + list
    }
}

/// Bytes of the session table for `addresses` of one family with all room reserved.
#[must_use]
pub const fn address_bytes(addresses: usize, v6: bool) -> usize {
    let slot = if v6 { OpenTable::<[u32; 4]>::SLOT_BYTES } else { OpenTable::<u32>::SLOT_BYTES };
    slots_for(addresses).saturating_mul(slot)
}

/// Bytes of the exception table for `exceptions` with all room reserved.
#[must_use]
pub const fn exception_bytes(exceptions: usize) -> usize {
    let slots = slots_for(exceptions).saturating_mul(OpenTable::<ExceptionKey>::SLOT_BYTES);
    slots.saturating_add(exceptions.saturating_mul(size_of::<(ExceptionKey, Exception)>()))
}

fn words(address: std::net::Ipv6Addr) -> [u32; 4] {
    let bits = address.to_bits();
    [96, 64, 32, 0].map(|shift| (bits >> shift) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use std::net::{Ipv4Addr, Ipv6Addr};

    fn address(n: u8) -> IpAddr {
        if n.is_multiple_of(2) {
            Ipv4Addr::new(10, 0, 0, n / 2).into()
        } else {
            Ipv6Addr::from_bits(0xfd00_u128 << 112 | u128::from(n / 2) << 40).into()
        }
    }

    #[test]
    fn limits_are_errors() {
        let mut table = SessionTable::with_limits(SessionLimits { v4: 1, v6: 0, exceptions: 1 }, 7);
        assert_eq!(table.insert(address(0), 3), Ok(()));
        assert_eq!(table.insert(address(0), 3), Err(TableError::Exists { what: "IPv4 sessions" }));
        assert_eq!(table.insert(address(2), 3), Err(TableError::Full { what: "IPv4 sessions", limit: 1 }));
        assert_eq!(table.insert(address(1), 3), Err(TableError::Full { what: "IPv6 sessions", limit: 0 }));
        let exception = Exception { rule: 9, sequence: u32::MAX };
        assert_eq!(table.set_exception(3, 1, exception), Ok(()));
        assert!(table.set_exception(3, 2, exception).is_err());
        assert_eq!(table.steer(3, 1), (9, Some(u32::MAX)));
        assert_eq!(table.steer(3, 1), (9, Some(0)), "the counter wraps");
        assert_eq!(table.steer(3, 2), (2, None));
        assert_eq!(table.steer(4, 1), (1, None));
    }

    #[test]
    fn the_sizes_used_for_accounting_are_the_real_ones() {
        for n in [1, 10, 1000] {
            let mut table = SessionTable::with_limits(SessionLimits { v4: n, v6: n, exceptions: n }, 7);
            table.reserve();
            assert_eq!(table.bytes(), address_bytes(n, false) + address_bytes(n, true) + exception_bytes(n));
        }
    }

    #[test]
    fn a_table_that_grew_to_128k_finds_every_entry() {
        let mut table = SessionTable::new(3);
        let v4 = |n: u32| IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 + n));
        for n in 0..128 * 1024 {
            table.insert(v4(n), n).unwrap();
        }
        assert!((0..128 * 1024).all(|n| table.by_address(v4(n)) == Some(n)));
        assert!((128 * 1024..130 * 1024).all(|n| table.by_address(v4(n)).is_none()));
        assert!((0..128 * 1024).all(|n| table.remove(v4(n)) == Some(n)) && table.is_empty());
    }

    /// The flat table of Fig. 7a: one entry per (session, application) with its complete state.
    #[derive(Default)]
    struct Naive {
        entries: BTreeMap<(IpAddr, u16), (u32, u16, Option<u32>)>,
    }

    const APPLICATIONS: u16 = 3;

    impl Naive {
        fn insert(&mut self, address: IpAddr, user: u32, exceptions: &BTreeMap<(u32, u16), Exception>) {
            for application in 0..APPLICATIONS {
                let exception = exceptions.get(&(user, application));
                let rule = exception.map_or(application, |e| e.rule);
                self.entries.insert((address, application), (user, rule, exception.map(|e| e.sequence)));
            }
        }
    }

    proptest! {
        #[test]
        fn the_hierarchical_lookup_answers_as_the_flat_one(
            seed in any::<u64>(),
            steps in proptest::collection::vec((0u8..5, 0u8..20, 0u32..4, 0u16..APPLICATIONS), 0..80),
        ) {
            let mut table = SessionTable::new(seed);
            let mut exceptions = BTreeMap::new();
            let mut owner = BTreeMap::new();
            for (i, (step, n, user, application)) in steps.into_iter().enumerate() {
                let address = address(n);
                match step {
                    0 | 1 => {
                        let wanted = owner.entry(address).or_insert(user) == &user;
                        let inserted = table.insert(address, user).is_ok();
                        prop_assert!(!inserted || wanted);
                    }
                    2 => prop_assert_eq!(table.remove(address), owner.remove(&address)),
                    3 => {
                        let exception = Exception { rule: 100 + i as u16, sequence: i as u32 };
                        exceptions.insert((user, application), exception);
                        table.set_exception(user, application, exception).unwrap();
                    }
                    _ if n < 4 => {
                        exceptions.retain(|(u, _), _| *u != user);
                        table.remove_exceptions_of(user);
                    }
                    _ => {
                        let removed = table.remove_exception(user, application);
                        prop_assert_eq!(removed, exceptions.remove(&(user, application)));
                    }
                }
                prop_assert_eq!((table.len(), table.exceptions()), (owner.len(), exceptions.len()));
                let mut naive = Naive::default();
                owner.iter().for_each(|(address, user)| naive.insert(*address, *user, &exceptions));
                for n in 0..20 {
                    let address = self::address(n);
                    for application in 0..APPLICATIONS {
                        let found = table.by_address(address).map(|user| {
                            let exception = table.exception_mut(user, application).copied();
                            (user, exception.map_or(application, |e| e.rule), exception.map(|e| e.sequence))
                        });
                        prop_assert_eq!(found, naive.entries.get(&(address, application)).copied());
                    }
                }
            }
        }
    }
}
