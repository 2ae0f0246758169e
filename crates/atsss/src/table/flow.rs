//! The flow table of a session: the rule and the sequence number of each flow.
//!
//! ```text
//!   5-tuple --SipHash-1-3, keyed--> index --> node { key, entry, newer, older }
//!                                                           ^ most recently used ... least <- evicted
//! ```
//!
//! Bounded: at the limit, the least recently used flow is evicted. The hash is keyed, because remote hosts
//! choose the 5-tuples. An idle session takes two words: nothing is allocated before the first flow. After
//! that, memory doubles with the number of flows, and is freed when all have expired. A packet of a known
//! flow allocates nothing. The table is deterministic: the same key and calls give the same evictions.
//!
//! *Sequence numbers.* A flow that was evicted and returns must not repeat numbers that the receiver has
//! seen. Each flow therefore starts at a session-wide counter that is not behind (in serial arithmetic, RFC
//! 1982) any number used by a removed flow, nor more than 2^30 behind one in the table. The first packet must
//! be marked START (see [`FlowEntry::next_sequence`]).

use anabranch_element::index::HashIndex;
use anabranch_element::time::{Duration, Instant};
use anabranch_steer::FlowSteer;
use anabranch_wire::ip::FlowKey;
use core::num::NonZeroU32;

/// A flow that was idle for this time marks a START again: the receiver may have forgotten it, and none of
/// its packets are in flight any more.
const SILENT: Duration = Duration::from_secs(5);

/// Flows per session unless configured otherwise.
pub const DEFAULT_FLOWS: u32 = 4096;

const NONE: u32 = u32::MAX;
/// Initial capacity of a table, in nodes.
const FIRST: usize = 8;

/// The flows of one session.
#[derive(Debug)]
pub struct FlowTable(Form);

#[derive(Debug)]
enum Form {
    /// `counter` as in [`Flows`]; it is kept when the flows are removed.
    Unused {
        key: u64,
        limit: NonZeroU32,
        counter: u32,
    },
    Used(Box<Flows>),
}

/// The temporary position of a flow's entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowPlace(u32);

/// The state of one flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowEntry {
    hash: u64,
    last_used: Instant,
    sequence: u32,
    generation: u32,
    rule: u16,
    assigned: bool,
    started: bool,
    pinned: bool,
    /// State of the flow for steering.
    pub steer: FlowSteer,
}

impl FlowEntry {
    /// The rule of the flow by its classification; 0 before [`Self::assign`].
    #[must_use]
    pub const fn rule(&self) -> u16 {
        self.rule
    }

    /// The generation of the rules by which the flow was classified; `None` before [`Self::assign`].
    #[must_use]
    pub const fn generation(&self) -> Option<u32> {
        if self.assigned { Some(self.generation) } else { None }
    }

    /// Notes the outcome of a classification.
    pub const fn assign(&mut self, rule: u16, generation: u32) {
        self.rule = rule;
        self.generation = generation;
        self.assigned = true;
    }

    /// As [`Self::assign`], from information that is not in packets: the entry survives [`FlowTable::rest`].
    pub const fn pin(&mut self, rule: u16, generation: u32) {
        self.assign(rule, generation);
        self.pinned = true;
    }

    /// Whether the rule was set with [`Self::pin`].
    #[must_use]
    #[cfg(test)]
    pub const fn is_pinned(&self) -> bool {
        self.pinned
    }

    /// Keyed hash of the flow, well mixed; constant during the session.
    #[must_use]
    pub const fn hash(&self) -> u64 {
        self.hash
    }

    /// The sequence number of the next packet.
    #[must_use]
    pub const fn sequence(&self) -> u32 {
        self.sequence
    }

    /// Takes a sequence number for a packet. The flag is set for the first one, and for the first one after a
    /// long idle time: it starts the flow's sequence at the receiver.
    pub const fn next_sequence(&mut self) -> (u32, bool) {
        let (sequence, first) = (self.sequence, !self.started);
        self.sequence = sequence.wrapping_add(1);
        self.started = true;
        (sequence, first)
    }
}

#[derive(Debug)]
struct Node {
    key: FlowKey,
    entry: FlowEntry,
    newer: u32,
    older: u32,
}

#[derive(Debug)]
struct Flows {
    /// Nodes by the hash in their entry.
    index: HashIndex,
    /// All are in use: a removed node is overwritten by the last one.
    nodes: Vec<Node>,
    newest: u32,
    oldest: u32,
    /// First sequence number of the next new flow.
    counter: u32,
    limit: NonZeroU32,
    key: u64,
    evicted: u64,
}

impl FlowTable {
    /// An empty table of up to [`DEFAULT_FLOWS`] flows. `hash_key` must be secret.
    #[must_use]
    pub const fn new(hash_key: u64) -> Self {
        Self::with_limit(hash_key, DEFAULT_FLOWS)
    }

    /// An empty table of up to `limit` flows (at least 1, at most 2^24).
    const fn with_limit(hash_key: u64, limit: u32) -> Self {
        let limit = if limit > 1 << 24 { 1 << 24 } else { limit };
        let limit = match NonZeroU32::new(limit) {
            Some(limit) => limit,
            None => NonZeroU32::MIN,
        };
        Self(Form::Unused { key: hash_key, limit, counter: 0 })
    }

    /// The entry of a flow. It is created if it is new, evicting the least recently used one if necessary.
    pub fn entry(&mut self, key: &FlowKey, now: Instant) -> &mut FlowEntry {
        self.flows().entry(key, now)
    }

    /// As [`Self::entry`]; returns the position of the entry, for [`Self::at`]. It is valid until the next
    /// call that adds or removes flows.
    #[inline]
    pub fn touch(&mut self, key: &FlowKey, now: Instant) -> FlowPlace {
        FlowPlace(self.flows().touch(key, now))
    }

    /// The entry at a position.
    #[inline]
    pub fn at(&mut self, place: FlowPlace) -> Option<&mut FlowEntry> {
        let Form::Used(flows) = &mut self.0 else { return None };
        flows.nodes.get_mut(place.0 as usize).map(|node| &mut node.entry)
    }

    /// The entry of an existing flow, without marking it as used.
    #[must_use]
    pub fn get(&self, key: &FlowKey) -> Option<&FlowEntry> {
        let flows = self.used()?;
        let node = flows.find(key, flows.hash(key))?;
        flows.nodes.get(node as usize).map(|node| &node.entry)
    }

    /// As [`Self::get`], mutable.
    pub fn get_mut(&mut self, key: &FlowKey) -> Option<&mut FlowEntry> {
        let Form::Used(flows) = &mut self.0 else { return None };
        let node = flows.find(key, flows.hash(key))?;
        flows.nodes.get_mut(node as usize).map(|node| &mut node.entry)
    }

    /// Removes a flow.
    pub fn remove(&mut self, key: &FlowKey) -> Option<FlowEntry> {
        let Form::Used(flows) = &mut self.0 else { return None };
        let node = flows.find(key, flows.hash(key))?;
        Some(flows.remove(node))
    }

    /// Removes flows without a packet for `idle`, and frees memory when none is left. Takes time proportional
    /// to the number of removed flows, which it returns.
    pub fn expire(&mut self, idle: Duration, now: Instant) -> usize {
        let Form::Used(flows) = &mut self.0 else { return 0 };
        let before = flows.nodes.len();
        while let Some(node) = flows.nodes.get(flows.oldest as usize)
            && now.saturating_since(node.entry.last_used) >= idle
        {
            flows.evict();
        }
        let expired = before - flows.nodes.len();
        if flows.nodes.is_empty() {
            (flows.nodes, flows.index) = (Vec::new(), HashIndex::default());
        }
        expired
    }

    /// Removes every flow whose rule can be determined again, and pinned ones without a packet for `idle`.
    /// Frees all memory not needed for the rest. Sequence numbers are never reused. Takes time proportional
    /// to the number of flows.
    pub fn rest(&mut self, idle: Duration, now: Instant) {
        let Form::Used(flows) = &mut self.0 else { return };
        let mut at = 0;
        while let Some(node) = flows.nodes.get(at) {
            if node.entry.pinned && now.saturating_since(node.entry.last_used) < idle {
                at += 1;
            } else {
                // The last node takes the place of the removed one, so the same position is examined again.
                flows.remove(at as u32);
            }
        }
        if flows.nodes.is_empty() {
            self.0 = Form::Unused { key: flows.key, limit: flows.limit, counter: flows.counter };
        } else {
            flows.fit(flows.nodes.len());
        }
    }

    /// Gives pinned flows another rule, or none, after the rules have changed: `rule` maps the old to the new
    /// one.
    pub fn renumber_pinned(&mut self, generation: u32, rule: impl Fn(u16) -> Option<u16>) {
        let Form::Used(flows) = &mut self.0 else { return };
        for entry in flows.nodes.iter_mut().map(|node| &mut node.entry).filter(|entry| entry.pinned) {
            match rule(entry.rule) {
                Some(rule) => entry.pin(rule, generation),
                None => (entry.pinned, entry.assigned) = (false, false),
            }
        }
    }

    /// Flows, most recently used first.
    pub fn iter(&self) -> impl Iterator<Item = (&FlowKey, &FlowEntry)> {
        let flows = self.used();
        let mut at = flows.map_or(NONE, |flows| flows.newest);
        core::iter::from_fn(move || {
            let node = flows?.nodes.get(at as usize)?;
            at = node.older;
            Some((&node.key, &node.entry))
        })
    }

    /// Number of flows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.used().map_or(0, |flows| flows.nodes.len())
    }

    /// Whether there is no flow.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Flows that were evicted or expired.
    #[must_use]
    pub fn evicted(&self) -> u64 {
        self.used().map_or(0, |flows| flows.evicted)
    }

    /// Bytes allocated.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.used().map_or(0, |flows| {
            size_of::<Flows>() + flows.index.bytes() + flows.nodes.capacity() * size_of::<Node>()
        })
    }

    const fn used(&self) -> Option<&Flows> {
        match &self.0 {
            Form::Used(flows) => Some(flows),
            Form::Unused { .. } => None,
        }
    }

    fn flows(&mut self) -> &mut Flows {
        if let Form::Unused { key, limit, counter } = self.0 {
            self.0 = Form::Used(Box::new(Flows::new(key, limit, counter)));
        }
        match &mut self.0 {
            Form::Used(flows) => flows,
            Form::Unused { .. } => unreachable!("created just above"),
        }
    }
}

impl Flows {
    fn new(key: u64, limit: NonZeroU32, counter: u32) -> Self {
        Self {
            index: HashIndex::default(),
            nodes: Vec::new(),
            newest: NONE,
            oldest: NONE,
            counter,
            limit,
            key,
            evicted: 0,
        }
    }

    fn entry(&mut self, key: &FlowKey, now: Instant) -> &mut FlowEntry {
        let at = self.touch(key, now);
        &mut self.nodes[at as usize].entry
    }

    fn touch(&mut self, key: &FlowKey, now: Instant) -> u32 {
        // Packets arrive in bursts of one flow, so the newest one is compared first.
        let at = match self.nodes.get(self.newest as usize) {
            Some(node) if node.key == *key => self.newest,
            _ => self.make_newest(key),
        };
        let counter = &mut self.counter;
        let entry = &mut self.nodes[at as usize].entry;
        if now.saturating_since(entry.last_used) >= SILENT {
            entry.started = false;
        }
        entry.last_used = now;
        // Keep the counter near the highest numbers, so that "behind" is meaningful in 32 bits.
        let ahead = entry.sequence.wrapping_sub(*counter);
        if (1 << 30..1 << 31).contains(&ahead) {
            *counter = entry.sequence;
        }
        at
    }

    fn make_newest(&mut self, key: &FlowKey) -> u32 {
        let hash = self.hash(key);
        let at = match self.find(key, hash) {
            Some(node) => {
                self.unlink(node);
                node
            }
            None => self.add(key, hash),
        };
        self.link_newest(at);
        at
    }

    /// Inserts a flow that is not in the table, without linking it.
    fn add(&mut self, key: &FlowKey, hash: u64) -> u32 {
        if self.nodes.len() >= self.limit.get() as usize {
            self.evict();
        }
        if self.index.is_full() {
            self.grow();
        }
        let entry = FlowEntry {
            hash,
            last_used: Instant::ZERO,
            sequence: self.counter,
            generation: 0,
            rule: 0,
            assigned: false,
            started: false,
            pinned: false,
            steer: FlowSteer::default(),
        };
        let at = u32::try_from(self.nodes.len()).unwrap_or(NONE);
        self.nodes.push(Node { key: *key, entry, newer: NONE, older: NONE });
        self.index.insert(hash, at);
        at
    }

    fn evict(&mut self) {
        if !self.nodes.is_empty() {
            self.remove(self.oldest);
            self.evicted += 1;
        }
    }

    /// Removes an existing node.
    fn remove(&mut self, at: u32) -> FlowEntry {
        self.unlink(at);
        self.index.remove(self.nodes[at as usize].entry.hash, at);
        let last = u32::try_from(self.nodes.len() - 1).unwrap_or(NONE);
        if last != at {
            // The last node moves into the gap: update the index and its neighbours.
            let node = &self.nodes[last as usize];
            let (hash, newer, older) = (node.entry.hash, node.newer, node.older);
            self.index.renumber(hash, last, at);
            self.set_older_of(newer, at);
            self.set_newer_of(older, at);
        }
        let entry = self.nodes.swap_remove(at as usize).entry;
        // The numbers that the flow has used are not used again.
        if entry.sequence.wrapping_sub(self.counter) < 1 << 31 {
            self.counter = entry.sequence;
        }
        entry
    }

    fn grow(&mut self) {
        self.fit((self.nodes.len() * 2).max(FIRST).min(self.limit.get() as usize));
    }

    /// Resizes to exactly this many entries.
    fn fit(&mut self, entries: usize) {
        self.nodes.reserve_exact(entries.saturating_sub(self.nodes.len()));
        self.nodes.shrink_to(entries);
        self.index = HashIndex::with_capacity(entries);
        for (at, node) in (0..).zip(&self.nodes) {
            self.index.insert(node.entry.hash, at);
        }
    }

    fn hash(&self, key: &FlowKey) -> u64 {
        key.hash64((self.key, self.key.rotate_left(32) ^ 0x736f_6d65_7073_6575))
    }

    /// The node of a flow.
    fn find(&self, key: &FlowKey, hash: u64) -> Option<u32> {
        self.index.find(hash, |node| self.nodes.get(node as usize).is_some_and(|node| node.key == *key))
    }

    fn unlink(&mut self, at: u32) {
        let Some(node) = self.nodes.get(at as usize) else { return };
        let (newer, older) = (node.newer, node.older);
        self.set_older_of(newer, older);
        self.set_newer_of(older, newer);
    }

    fn link_newest(&mut self, at: u32) {
        let second = self.newest;
        self.set_newer_of(second, at);
        self.newest = at;
        if let Some(node) = self.nodes.get_mut(at as usize) {
            (node.newer, node.older) = (NONE, second);
        }
    }

    /// `NONE` stands for the end of the list on that side.
    fn set_older_of(&mut self, at: u32, older: u32) {
        match self.nodes.get_mut(at as usize) {
            Some(node) => node.older = older,
            None => self.newest = older,
        }
    }

    fn set_newer_of(&mut self, at: u32, newer: u32) {
        match self.nodes.get_mut(at as usize) {
            Some(node) => node.newer = newer,
            None => self.oldest = newer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

    fn flow(n: u16) -> FlowKey {
        let (src, dst): (IpAddr, IpAddr) = if n.is_multiple_of(3) {
            (Ipv6Addr::LOCALHOST.into(), Ipv6Addr::from_bits(n.into()).into())
        } else {
            (Ipv4Addr::LOCALHOST.into(), Ipv4Addr::from_bits(n.into()).into())
        };
        FlowKey { src, dst, src_port: n, dst_port: 443, protocol: 6 }
    }

    #[test]
    fn an_idle_session_costs_two_words() {
        assert_eq!(size_of::<FlowTable>(), 16);
        let mut table = FlowTable::new(1);
        assert_eq!((table.bytes(), table.expire(Duration::ZERO, Instant::MAX)), (0, 0));
        table.entry(&flow(1), Instant::ZERO);
        assert!(table.bytes() < 1536, "{}", table.bytes());
        assert_eq!(table.expire(Duration::from_secs(1), Instant::from_secs(1)), 1);
        assert!(table.is_empty() && table.bytes() < 128, "{}", table.bytes());
    }

    #[test]
    fn a_flow_that_returns_continues_with_higher_numbers() {
        let mut table = FlowTable::with_limit(1, 2);
        let first = table.entry(&flow(1), Instant::ZERO);
        assert_eq!([first.next_sequence(), first.next_sequence()], [(0, true), (1, false)]);
        assert_eq!(table.entry(&flow(2), Instant::ZERO).next_sequence(), (0, true));
        table.entry(&flow(3), Instant::ZERO);
        assert_eq!((table.evicted(), table.get(&flow(1))), (1, None));
        assert_eq!(table.entry(&flow(1), Instant::ZERO).next_sequence(), (2, true));
        // The same across the wrap of the counter.
        let mut table = FlowTable::with_limit(1, 1);
        let mut last = 0u32;
        for n in 0..20 {
            let entry = table.entry(&flow(n), Instant::ZERO);
            assert!(entry.sequence().wrapping_sub(last) < 1 << 31);
            entry.sequence = entry.sequence.wrapping_add(0x3000_0000);
            entry.started = true;
            last = entry.sequence;
        }
    }

    #[test]
    fn an_idle_flow_starts_again_with_the_next_number() {
        let mut table = FlowTable::new(1);
        let mut next = |s| table.entry(&flow(1), Instant::from_secs(s)).next_sequence();
        assert_eq!(
            [next(1), next(5), next(9), next(14), next(14)],
            [(0, true), (1, false), (2, false), (3, true), (4, false)]
        );
    }

    #[test]
    fn at_rest_only_pinned_flows_stay_and_numbers_go_on() {
        let mut table = FlowTable::new(1);
        for n in 0..100 {
            let entry = table.entry(&flow(n), Instant::from_secs(u64::from(n)));
            for _ in 0..=n {
                entry.next_sequence();
            }
            if n % 10 == 0 {
                entry.pin(n, 1);
            }
        }
        table.rest(Duration::from_secs(50), Instant::from_secs(100));
        let kept: Vec<_> = table.iter().map(|(_, e)| e.rule()).collect();
        assert_eq!(kept, [90, 80, 70, 60]);
        assert!(table.bytes() < 640, "{}", table.bytes());
        assert_eq!(table.entry(&flow(3), Instant::from_secs(100)).next_sequence(), (100, true));
        table.renumber_pinned(2, |rule| (rule > 70).then_some(rule + 1));
        assert_eq!(table.get(&flow(80)).map(|e| (e.rule(), e.generation())), Some((81, Some(2))));
        assert_eq!(table.get(&flow(60)).and_then(FlowEntry::generation), None);
        table.rest(Duration::ZERO, Instant::from_secs(100));
        assert_eq!((table.len(), table.bytes()), (0, 0));
        assert_eq!(table.entry(&flow(3), Instant::from_secs(100)).next_sequence(), (101, true));
    }

    #[test]
    fn the_counter_follows_a_flow_that_runs_ahead() {
        let mut table = FlowTable::new(1);
        for _ in 0..10 {
            let entry = table.entry(&flow(1), Instant::ZERO);
            let lead = entry.sequence;
            entry.sequence = lead.wrapping_add(1 << 29);
            let start = table.entry(&flow(2), Instant::ZERO).sequence();
            table.remove(&flow(2));
            assert!(lead.wrapping_sub(start) <= 1 << 30, "{lead} {start}");
        }
    }

    #[derive(Debug, Clone)]
    enum Step {
        Use(u16),
        Remove(u16),
        Expire(u64),
        Rest(u64),
        Pin(u16),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            8 => (0u16..30).prop_map(Step::Use),
            2 => (0u16..30).prop_map(Step::Remove),
            1 => (0u64..60).prop_map(Step::Expire),
            1 => (0u64..60).prop_map(Step::Rest),
            1 => (0u16..30).prop_map(Step::Pin),
        ];
        proptest::collection::vec(step, 0..200)
    }

    proptest! {
        #[test]
        fn behaves_like_a_map_in_order_of_use(key in any::<u64>(), limit in 1u32..25, steps in steps()) {
            let mut table = FlowTable::with_limit(key, limit);
            // Flow -> (step of last use, packets so far).
            let mut model: BTreeMap<u16, (u64, u16)> = BTreeMap::new();
            let mut highest: BTreeMap<u16, u32> = BTreeMap::new();
            let mut pinned = BTreeMap::new();
            let mut clock = 0;
            for step in steps {
                clock += 1;
                let now = Instant::from_nanos(clock);
                match step {
                    Step::Use(n) => {
                        if !model.contains_key(&n) && model.len() == limit as usize {
                            let oldest = *model.iter().min_by_key(|(_, (used, _))| *used).unwrap().0;
                            model.remove(&oldest);
                        }
                        let fresh = !model.contains_key(&n);
                        let (used, packets) = model.entry(n).or_default();
                        (*used, *packets) = (clock, *packets + 1);
                        let entry = table.entry(&flow(n), now);
                        prop_assert_eq!(entry.generation().is_none(), fresh);
                        prop_assert!(!fresh || !entry.is_pinned());
                        if fresh {
                            pinned.remove(&n);
                        }
                        entry.assign(n, 7);
                        let (sequence, first) = entry.next_sequence();
                        prop_assert_eq!(first, fresh);
                        // Never a number that the flow has used before.
                        let next = highest.entry(n).or_default();
                        prop_assert!(sequence >= *next && (fresh || sequence == *next));
                        *next = sequence + 1;
                    }
                    Step::Remove(n) => {
                        let removed = table.remove(&flow(n)).map(|entry| entry.rule());
                        prop_assert_eq!(removed, model.remove(&n).map(|_| n));
                    }
                    Step::Expire(age) => {
                        let before = model.len();
                        model.retain(|_, (used, _)| clock - *used < age);
                        let expired = table.expire(Duration::from_nanos(age), now);
                        prop_assert_eq!(expired, before - model.len());
                    }
                    Step::Pin(n) => {
                        if let Some(entry) = table.get_mut(&flow(n)) {
                            entry.pin(n, 7);
                            pinned.insert(n, ());
                        }
                    }
                    Step::Rest(age) => {
                        table.rest(Duration::from_nanos(age), now);
                        model.retain(|n, (used, _)| pinned.contains_key(n) && clock - *used < age);
                    }
                }
                let mut order: Vec<_> = model.iter().map(|(n, (used, _))| (*used, *n)).collect();
                order.sort_unstable_by(|a, b| b.cmp(a));
                let listed: Vec<_> =
                    table.iter().map(|(_, e)| (e.last_used.as_nanos(), e.rule())).collect();
                prop_assert_eq!(listed, order);
                prop_assert_eq!(table.len(), model.len());
                for n in 0..30 {
                    prop_assert_eq!(table.get(&flow(n)).map(FlowEntry::rule), model.get(&n).map(|_| n));
                }
            }
        }
    }
}
