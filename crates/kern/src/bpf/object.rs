//! Objects compiled by build.rs: opening, configuring, loading, and counters.

use super::{BpfError, tried};
use libbpf_rs::{AsRawLibbpf, Link, MapCore, MapFlags, MapType, Object, ObjectBuilder, OpenObject};
use std::ffi::OsStr;
use std::io;
use std::ptr::{self, NonNull};
use std::sync::Once;

/// Opens an object; libbpf's messages go only into the error.
pub(super) fn open(name: &str, bytes: &[u8]) -> Result<OpenObject, BpfError> {
    static QUIET: Once = Once::new();
    QUIET.call_once(|| {
        if std::env::var_os("ANABRANCH_BPF_DEBUG").is_none() {
            libbpf_rs::set_print(None);
        }
    });
    tried(format!("opening {name}"), ObjectBuilder::default().open_memory(bytes))
}

/// Sets the constants of an object before it is loaded.
pub(super) fn configure(object: &mut OpenObject, config: &[u8]) -> Result<(), BpfError> {
    for mut map in object.maps_mut() {
        if map.name() == OsStr::new(".rodata.config") {
            return tried("setting constants", map.set_initial_value(config));
        }
    }
    Err(BpfError::Unsupported("the object has no constants to set".into()))
}

/// Attaches the programs of `object` in `names` with `attach`.
pub(super) fn attach(
    object: &Object,
    names: &[&str],
    mut attach: impl FnMut(&libbpf_rs::ProgramMut<'_>) -> Result<Link, BpfError>,
) -> Result<Vec<Link>, BpfError> {
    let mut links = Vec::new();
    for name in names {
        let found = object.progs_mut().find(|p| p.name() == OsStr::new(name));
        let program = found.ok_or_else(|| BpfError::Unsupported(format!("no program {name}")))?;
        links.push(attach(&program)?);
    }
    Ok(links)
}

/// Attaches the program `name` of `object` to an interface by index, after existing programs.
pub(super) fn attach_tcx(
    object: &Object,
    name: &str,
    interface: u32,
    what: impl Fn() -> String,
) -> Result<Link, BpfError> {
    let mut links = attach(object, &[name], |program| {
        // SAFETY: the program is loaded and owned by `object`; no options are passed.
        let link = unsafe {
            libbpf_sys::bpf_program__attach_tcx(
                program.as_libbpf_object().as_ptr(),
                interface as libc::c_int,
                ptr::null(),
            )
        };
        // In libbpf 1, a failure is a null pointer with errno.
        match NonNull::new(link) {
            // SAFETY: the link was created by libbpf and has no other owner.
            Some(link) => Ok(unsafe { Link::from_ptr(link) }),
            None => Err(BpfError::Io { what: what(), source: io::Error::last_os_error() }),
        }
    })?;
    links.pop().ok_or_else(|| BpfError::Unsupported(format!("no program {name}")))
}

/// Counters of a program; see the list in `bpf/abi.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// ACKs outside of recovery (int_rate: all).
    pub acks: u64,
    /// Losses classified as medium losses.
    pub losses_medium: u64,
    /// Losses classified as congestion.
    pub losses_congestion: u64,
    /// Classifications revoked by a late report.
    pub losses_taken_back: u64,
    /// ACKs with stale telemetry.
    pub acks_stale: u64,
    /// Reports received as TCP options.
    pub reports_in: u64,
    /// Reports sent.
    pub reports_out: u64,
    /// Options of our kind with another format.
    pub reports_bad: u64,
    /// Traces read.
    pub traces_in: u64,
    /// Traces inserted into packets.
    pub traces_out: u64,
    /// Traces omitted for lack of room.
    pub traces_skipped: u64,
}

/// Number of entries of the counters' map.
pub(super) const COUNTERS: u32 = 11;

/// Reads the counters of an object, from its only array of that size.
pub(super) fn counters(object: &Object) -> Result<Counters, BpfError> {
    let is_it = |m: &libbpf_rs::Map<'_>| m.map_type() == MapType::PercpuArray && m.max_entries() == COUNTERS;
    match object.maps().find(is_it) {
        Some(map) => read_counters(&map),
        None => Ok(Counters::default()),
    }
}

/// Reads a map of counters, summed over processors.
pub(super) fn read_counters(map: &impl MapCore) -> Result<Counters, BpfError> {
    let mut all = [0; COUNTERS as usize];
    for (key, value) in (0u32..).zip(&mut all) {
        let each = tried("reading counters", map.lookup_percpu(&key.to_ne_bytes(), MapFlags::ANY))?;
        let counts = each.iter().flatten().filter_map(|bytes| bytes.first_chunk());
        *value = counts.map(|bytes| u64::from_ne_bytes(*bytes)).sum();
    }
    let [acks, losses_medium, losses_congestion, losses_taken_back, acks_stale, rest @ ..] = all;
    let [reports_in, reports_out, reports_bad, traces_in, traces_out, traces_skipped] = rest;
    Ok(Counters {
        acks,
        losses_medium,
        losses_congestion,
        losses_taken_back,
        acks_stale,
        reports_in,
        reports_out,
        reports_bad,
        traces_in,
        traces_out,
        traces_skipped,
    })
}
