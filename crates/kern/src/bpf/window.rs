//! Initial windows by packet mark: `bpf/initial_window.bpf.c` on a cgroup.

use super::controllers::object;
use super::object::{attach, open};
use super::{BpfError, loadable_here, tried};
use crate::socket::netns_cookie;
use libbpf_rs::{Link, Map, MapCore, MapFlags, Object};
use std::ffi::OsStr;
use std::fs::File;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd;
use std::path::Path;

/// Maximum number of marks with a window.
pub const MOST_WINDOWS: usize = 1024;

/// Counters of connections whose mark has a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WindowCounters {
    /// The window was set.
    pub set: u64,
    /// The kernel refused it, because data had already been sent.
    pub refused: u64,
    /// The SYN was lost, so the connection starts with one segment as required (RFC 5681 §3.1).
    pub left: u64,
}

/// The attached program; detached when this is dropped.
#[derive(Debug)]
pub struct InitialWindows {
    _links: Vec<Link>,
    object: Object,
    netns: u64,
}

impl InitialWindows {
    /// Attaches the program to the sockets of `cgroup` and below. Marks apply to the calling thread's network namespace.
    ///
    /// # Errors
    /// No such cgroup, a kernel before 5.15, or a refusal of the kernel.
    pub fn attach(cgroup: &Path) -> Result<Self, BpfError> {
        loadable_here()?;
        let what = || format!("{} (a cgroup v2 directory is needed)", cgroup.display());
        let group = File::open(cgroup).map_err(|source| BpfError::Io { what: what(), source })?;
        let asked = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|socket| netns_cookie(&socket));
        let netns = asked
            .map_err(|source| BpfError::Io { what: "which network namespace this is".to_owned(), source })?;
        let object = open("initial_window", object!("initial_window"))?;
        let object = tried("loading initial_window", object.load())?;
        let links = attach(&object, &["ab_initial_window"], |program| {
            tried(what(), program.attach_cgroup(group.as_raw_fd()))
        })?;
        Ok(Self { _links: links, object, netns })
    }

    /// Sets the initial window of connections with this mark, in segments; `None`: the kernel's default.
    ///
    /// # Errors
    /// There are already [`MOST_WINDOWS`].
    pub fn set(&self, mark: u32, segments: Option<u32>) -> Result<(), BpfError> {
        // struct ab_window_key
        let mut key = self.netns.to_ne_bytes().to_vec();
        key.extend(mark.to_ne_bytes());
        key.extend([0; 4]);
        let map = self.map("ab_windows")?;
        match segments {
            Some(segments) => {
                let value = segments.to_ne_bytes();
                tried(format!("the window of mark {mark}"), map.update(&key, &value, MapFlags::ANY))
            }
            // Deleting an absent entry is not an error.
            None => {
                let there = tried(format!("the window of mark {mark}"), map.lookup(&key, MapFlags::ANY))?;
                match there {
                    Some(_) => tried(format!("the window of mark {mark}"), map.delete(&key)),
                    None => Ok(()),
                }
            }
        }
    }

    /// The counters.
    ///
    /// # Errors
    /// The kernel refuses to read them.
    pub fn counters(&self) -> Result<WindowCounters, BpfError> {
        let map = self.map("ab_window_counts")?;
        let mut all = [0; 3];
        for (key, value) in (0u32..).zip(&mut all) {
            let bytes = tried("reading counters", map.lookup(&key.to_ne_bytes(), MapFlags::ANY))?;
            *value = bytes.and_then(|b| b.first_chunk().map(|b| u64::from_ne_bytes(*b))).unwrap_or(0);
        }
        let [set, refused, left] = all;
        Ok(WindowCounters { set, refused, left })
    }

    fn map(&self, name: &str) -> Result<Map<'_>, BpfError> {
        let found = self.object.maps().find(|map| map.name() == OsStr::new(name));
        found.ok_or_else(|| BpfError::Unsupported(format!("no map {name}")))
    }
}
