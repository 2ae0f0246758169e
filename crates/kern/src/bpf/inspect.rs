//! Our programs on this machine, whichever process holds them, as reported by the kernel.

use super::object::{Counters, read_counters};
use super::{BpfError, LOADABLE, available, visible_here};
use libbpf_rs::query::MapInfoIter;
use libbpf_rs::{MapHandle, MapType};
use std::ffi::OsStr;
use std::path::Path;
use std::{fs, io};

/// Prefix of the counters' maps: `ab_int_rate`, `ab_feedback`, `ab_ioam_source`.
const PREFIX: &str = "ab_";

/// The counters of all our programs on this machine: name, map id, counters. Root only.
///
/// # Errors
/// The kernel refuses to read them.
pub fn shown() -> Result<Vec<(String, u32, Counters)>, BpfError> {
    visible_here()?;
    let mut all = Vec::new();
    for info in MapInfoIter::default().filter(|info| info.ty == MapType::PercpuArray) {
        let Some(name) = info.name.to_str().and_then(|name| name.strip_prefix(PREFIX)) else { continue };
        // A map that has disappeared in the meantime is skipped.
        let Ok(map) = MapHandle::from_map_id(info.id) else { continue };
        if info.max_entries == super::object::COUNTERS && info.value_size == 8 {
            all.push((name.to_owned(), info.id, read_counters(&map)?));
        }
    }
    Ok(all)
}

/// The processes that keep the controller `name` registered.
///
/// # Errors
/// /proc cannot be read.
pub fn holders(name: &str) -> io::Result<Vec<u32>> {
    let maps: Vec<u32> = MapInfoIter::default()
        .filter(|info| info.ty == MapType::StructOps && info.name == OsStr::new(name))
        .map(|info| info.id)
        .collect();
    let mut holders = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let path = entry?.path();
        let Some(pid) = path.file_name().and_then(OsStr::to_str).and_then(|n| n.parse().ok()) else {
            continue;
        };
        if holds(&path.join("fdinfo"), &maps) {
            holders.push(pid);
        }
    }
    Ok(holders)
}

/// Ids of the maps held by a process; none if it has ended or may not be inspected.
pub(super) fn maps_of(pid: u32) -> Vec<u32> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fdinfo")) else { return Vec::new() };
    let map = |text: String| {
        let field = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
        // A link has the id of its map; a map its own.
        field("link_type:").is_none().then(|| field("map_id:")?.parse().ok())?
    };
    entries.flatten().filter_map(|entry| map(fs::read_to_string(entry.path()).ok()?)).collect()
}

/// Whether a process has a struct_ops link on one of `maps`. A process that cannot be inspected counts as having none.
fn holds(fdinfo: &Path, maps: &[u32]) -> bool {
    let Ok(entries) = fs::read_dir(fdinfo) else { return false };
    entries.flatten().any(|entry| {
        let Ok(text) = fs::read_to_string(entry.path()) else { return false };
        let field = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
        field("link_type:") == Some("struct_ops")
            && field("map_id:").and_then(|id| id.parse().ok()).is_some_and(|id| maps.contains(&id))
    })
}

/// Our controllers that are currently registered.
///
/// # Errors
/// The kernel's list cannot be read.
pub fn registered() -> io::Result<Vec<&'static str>> {
    let names = available()?;
    Ok(LOADABLE.into_iter().map(|a| a.name()).filter(|ours| names.iter().any(|n| n == ours)).collect())
}
