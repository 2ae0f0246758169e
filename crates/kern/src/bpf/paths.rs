//! A monitor's paths in a BPF map that others read without system calls: `struct ab_path` in bpf/abi.h.
//!
//! ```text
//!   anabranch int monitor --map ──writes──▶ array ab_paths, mapped into memory ◀──reads── anabranch int paths,
//!                                           (BPF_F_MMAPABLE)                              BPF programs of others
//! ```
//!
//! The map exists as long as a process holds it. Readers map it read-only. Each entry has a sequence number that is odd during a
//! write, as in a seqlock, so readers never mix parts of different paths.

use super::mapped::Mapped;
use super::{BpfError, loadable_here, tried, visible_here};
use libbpf_rs::query::MapInfoIter;
use libbpf_rs::{MapHandle, MapType};
use std::ffi::OsStr;
use std::sync::atomic::{Ordering, fence};

/// Name of the maps.
const NAME: &str = "ab_paths";
/// Maximum number of nodes of a path in an entry; longer paths are truncated.
pub const PATH_NODES: usize = 16;
/// Number of words of `struct ab_path`.
pub(super) const WORDS: usize = 18;
/// Maximum number of entries read from a map.
const MOST_ENTRIES: u32 = 4096;
/// Number of attempts; a writer that was stopped within an entry is not waited for.
const TRIES: usize = 1000;
const UNKNOWN: u64 = u64::MAX;
const NO_NODE: u32 = u32::MAX;
const COMPLETE: u8 = 1;

/// A published path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PublishedPath {
    /// Time of its last trace, microseconds of CLOCK_MONOTONIC.
    pub seen_us: u64,
    /// Traces received from this path so far.
    pub traces: u64,
    /// Packets dropped by its queues, summed over all hops.
    pub queue_drops: u64,
    /// Packets lost by its media, summed over all hops.
    pub medium_losses: u64,
    /// Link rate of the bottleneck, kbit/s.
    pub link_kbps: Option<u64>,
    /// Arrival rate at the bottleneck, kbit/s.
    pub arrival_kbps: Option<u64>,
    /// Queue depth at the bottleneck, bytes.
    pub depth_bytes: Option<u64>,
    /// Free space of the bottleneck's queue, bytes.
    pub free_bytes: Option<u64>,
    /// Flows at the bottleneck; 0: unknown.
    pub flows: u32,
    /// IOAM namespace.
    pub namespace: u16,
    /// Number of nodes in the newest trace.
    pub hops: u8,
    /// Every hop reported its drops, and no hop is without telemetry.
    pub complete: bool,
    /// Node ids, first hop first; `None`: beyond the last hop, or without a short id.
    pub nodes: [Option<u32>; PATH_NODES],
}

impl PublishedPath {
    /// All words after the sequence number.
    fn words(&self) -> [u64; WORDS - 1] {
        let or = |value: Option<u64>| value.unwrap_or(UNKNOWN);
        let mut tail = [0; 8];
        tail[..4].copy_from_slice(&self.flows.to_ne_bytes());
        tail[4..6].copy_from_slice(&self.namespace.to_ne_bytes());
        tail[6] = self.hops;
        tail[7] = if self.complete { COMPLETE } else { 0 };
        let mut words = [0; WORDS - 1];
        words[..9].copy_from_slice(&[
            self.seen_us,
            self.traces,
            self.queue_drops,
            self.medium_losses,
            or(self.link_kbps),
            or(self.arrival_kbps),
            or(self.depth_bytes),
            or(self.free_bytes),
            u64::from_ne_bytes(tail),
        ]);
        for (word, pair) in words[9..].iter_mut().zip(self.nodes.chunks_exact(2)) {
            let mut bytes = [0; 8];
            bytes[..4].copy_from_slice(&pair[0].unwrap_or(NO_NODE).to_ne_bytes());
            bytes[4..].copy_from_slice(&pair[1].unwrap_or(NO_NODE).to_ne_bytes());
            *word = u64::from_ne_bytes(bytes);
        }
        words
    }

    fn parse(words: &[u64; WORDS - 1]) -> Self {
        let known = |at: usize| Some(words[at]).filter(|value| *value != UNKNOWN);
        let [a, b, c, d, e, f, hops, flags] = words[8].to_ne_bytes();
        let node = |at: usize| {
            let bytes = words[9 + at / 2].to_ne_bytes();
            let half: [u8; 4] = std::array::from_fn(|i| bytes[at % 2 * 4 + i]);
            Some(u32::from_ne_bytes(half)).filter(|id| *id != NO_NODE)
        };
        Self {
            seen_us: words[0],
            traces: words[1],
            queue_drops: words[2],
            medium_losses: words[3],
            link_kbps: known(4),
            arrival_kbps: known(5),
            depth_bytes: known(6),
            free_bytes: known(7),
            flows: u32::from_ne_bytes([a, b, c, d]),
            namespace: u16::from_ne_bytes([e, f]),
            hops,
            complete: flags & COMPLETE != 0,
            nodes: std::array::from_fn(node),
        }
    }
}

/// A consistent copy of an entry; `None`: it is unused, or its writer stopped within it.
fn read(memory: &Mapped, index: usize) -> Option<PublishedPath> {
    let (sequence, rest) = memory.entry(index)?.split_first()?;
    for _ in 0..TRIES {
        let before = sequence.load(Ordering::Acquire);
        if before == 0 {
            return None;
        }
        let words = std::array::from_fn(|i| rest[i].load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        if before % 2 == 0 && sequence.load(Ordering::Relaxed) == before {
            // A withdrawn entry has no hops.
            return Some(PublishedPath::parse(&words)).filter(|path| path.hops > 0);
        }
        std::hint::spin_loop();
    }
    None
}

/// A map owned by this process; it is removed when this is dropped and no other process holds it.
#[derive(Debug)]
pub struct PathsMap {
    _map: MapHandle,
    memory: Mapped,
}

impl PathsMap {
    /// An empty map for `entries` paths, 1 to 4096 (clamped).
    ///
    /// # Errors
    /// The machine lacks support, the user lacks permission, or the kernel refuses.
    pub fn create(entries: u32) -> Result<Self, BpfError> {
        loadable_here()?;
        let entries = entries.clamp(1, MOST_ENTRIES);
        let options = libbpf_sys::bpf_map_create_opts {
            sz: size_of::<libbpf_sys::bpf_map_create_opts>() as _,
            map_flags: libbpf_sys::BPF_F_MMAPABLE,
            ..Default::default()
        };
        let bytes = (WORDS * size_of::<u64>()) as u32;
        let map = MapHandle::create(MapType::Array, Some(NAME), 4, bytes, entries, &options);
        let map = tried(format!("making {NAME}"), map)?;
        let memory = Mapped::new(&map, NAME, entries, WORDS, libc::PROT_READ | libc::PROT_WRITE)?;
        Ok(Self { _map: map, memory })
    }

    /// Publishes these paths in this order, and withdraws earlier ones beyond them, without system calls. Paths beyond the size of the
    /// map are omitted.
    pub fn publish(&mut self, paths: impl IntoIterator<Item = PublishedPath>) {
        let all = paths.into_iter().map(Some).chain(std::iter::repeat(None));
        for (index, path) in (0..self.memory.len()).zip(all) {
            let Some((sequence, rest)) = self.memory.entry(index).and_then(<[_]>::split_first) else {
                return;
            };
            let before = sequence.load(Ordering::Relaxed);
            if path.is_none() && before == 0 {
                return;
            }
            sequence.store(before.wrapping_add(1) | 1, Ordering::Relaxed);
            fence(Ordering::Release);
            for (word, value) in rest.iter().zip(path.unwrap_or_default().words()) {
                word.store(value, Ordering::Relaxed);
            }
            // Even, and never 0 again.
            sequence.store((before.wrapping_add(2) & !1).max(2), Ordering::Release);
        }
    }
}

/// The maps published by the monitors of this machine: the id of each map, and its paths. Root only.
///
/// # Errors
/// The kernel refuses to read them.
pub fn published() -> Result<Vec<(u32, Vec<PublishedPath>)>, BpfError> {
    visible_here()?;
    let mut all = Vec::new();
    for info in MapInfoIter::default() {
        let ours = info.ty == MapType::Array
            && info.name == OsStr::new(NAME)
            && info.value_size as usize == WORDS * size_of::<u64>()
            && info.max_entries <= MOST_ENTRIES;
        if !ours {
            continue;
        }
        // A map that has disappeared in the meantime has no paths.
        let Ok(map) = MapHandle::from_map_id(info.id) else { continue };
        let memory = Mapped::new(&map, NAME, info.max_entries, WORDS, libc::PROT_READ)?;
        all.push((info.id, (0..memory.len()).filter_map(|index| read(&memory, index)).collect()));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use libbpf_rs::MapCore;

    fn sample(n: u64) -> PublishedPath {
        let mut nodes = [None; PATH_NODES];
        nodes[0] = Some(n as u32);
        nodes[15] = Some(7);
        PublishedPath {
            seen_us: n,
            traces: n,
            queue_drops: n,
            medium_losses: n,
            link_kbps: Some(n),
            arrival_kbps: None,
            depth_bytes: Some(n),
            free_bytes: Some(n),
            flows: n as u32,
            namespace: 123,
            hops: 16,
            complete: true,
            nodes,
        }
    }

    #[test]
    fn published_values_are_read() {
        let Ok(mut map) = PathsMap::create(4) else {
            assert!(
                std::env::var_os("CI").is_none(),
                "CI must be able to make a BPF map: run the tests as root"
            );
            eprintln!("skipped: root is needed to make a BPF map");
            return;
        };
        let read = |map: &PathsMap| {
            // By the map's id, as in another process.
            let id = map._map.info().unwrap().info.id;
            published().unwrap().into_iter().find(|(other, _)| *other == id).unwrap().1
        };
        assert_eq!(read(&map), []);
        // More than fit.
        map.publish((1..=5).map(sample));
        assert_eq!(read(&map), (1..=4).map(sample).collect::<Vec<_>>());
        map.publish([sample(9)]);
        assert_eq!(read(&map), [sample(9)]);
        map.publish([]);
        assert_eq!(read(&map), []);
    }

    /// A reader concurrent with a writer: every path it returns is one that was written, complete.
    #[test]
    fn a_reader_takes_no_halves() {
        let Ok(mut map) = PathsMap::create(1) else { return };
        let view = Mapped::new(&map._map, NAME, 1, WORDS, libc::PROT_READ).unwrap();
        map.publish([sample(1)]);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for n in 2..200_000 {
                    map.publish([sample(n)]);
                }
            });
            let mut last = 1;
            while last < 199_999 {
                let Some(path) = super::read(&view, 0) else { continue };
                assert_eq!(path, sample(path.traces));
                assert!(path.traces >= last);
                last = path.traces;
            }
        });
    }
}
