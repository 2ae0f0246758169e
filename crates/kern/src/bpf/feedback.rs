//! Telemetry's way back: `bpf/feedback.bpf.c` on a cgroup.

use super::controllers::{object, share_sockets};
use super::object::{Counters, attach, configure, counters, open};
use super::{BpfError, loadable_here, tried};
use libbpf_rs::{Link, MapHandle, Object};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;

/// What makes reports trustworthy: both ends of a connection have the same, and take no report without its tag.
#[derive(Clone)]
pub struct ReportKey([u8; Self::LEN]);

impl ReportKey {
    /// Bytes of a key.
    pub const LEN: usize = 16;

    /// From secret bytes, all of them equally likely; zeros alone would be none.
    #[must_use]
    pub const fn new(bytes: [u8; Self::LEN]) -> Self {
        Self(bytes)
    }

    /// `struct ab_report_key`: two numbers, the first bytes the least (SipHash's own order).
    fn constants(key: Option<&Self>) -> Vec<u8> {
        let bytes = key.map_or([0; Self::LEN], |key| key.0);
        let number = u128::from_le_bytes(bytes);
        [(number as u64).to_ne_bytes(), ((number >> 64) as u64).to_ne_bytes()].concat()
    }
}

impl std::fmt::Debug for ReportKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ReportKey(…)")
    }
}

/// Attached as long as this lives.
#[derive(Debug)]
pub struct Feedback {
    _links: Vec<Link>,
    object: Object,
}

impl Feedback {
    /// Attaches it to the sockets of `cgroup`; a receiver needs no controllers. With a key, reports have a tag.
    ///
    /// # Errors
    /// No such cgroup, or the kernel refuses.
    pub fn receiver(cgroup: &Path, key: Option<&ReportKey>) -> Result<Self, BpfError> {
        loadable_here()?;
        Self::attach(cgroup, key, None)
    }

    pub(super) fn attach(
        cgroup: &Path,
        key: Option<&ReportKey>,
        shares: Option<MapHandle>,
    ) -> Result<Self, BpfError> {
        let what = || format!("{} (a cgroup v2 directory is needed)", cgroup.display());
        let group = File::open(cgroup).map_err(|source| BpfError::Io { what: what(), source })?;
        let mut object = open("feedback", object!("feedback"))?;
        configure(&mut object, &ReportKey::constants(key))?;
        if let Some(map) = shares {
            share_sockets(&mut object, &map)?;
        }
        let object = tried("loading feedback", object.load())?;
        let links = attach(&object, &["ab_feedback"], |program| {
            tried(what(), program.attach_cgroup(group.as_raw_fd()))
        })?;
        Ok(Self { _links: links, object })
    }

    /// What it has counted.
    ///
    /// # Errors
    /// The kernel does not let them be read.
    pub fn counters(&self) -> Result<Counters, BpfError> {
        counters(&self.object)
    }
}
