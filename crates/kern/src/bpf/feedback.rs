//! Telemetry's way back: `bpf/feedback.bpf.c` on a cgroup.

use super::controllers::{object, share_sockets};
use super::object::{Counters, attach, counters, open};
use super::{BpfError, supported, tried};
use libbpf_rs::{Link, MapHandle, Object};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;

/// Attached as long as this lives.
#[derive(Debug)]
pub struct Feedback {
    _links: Vec<Link>,
    object: Object,
}

impl Feedback {
    /// Attaches it to the sockets of `cgroup`; a receiver needs no controllers.
    ///
    /// # Errors
    /// No such cgroup, or the kernel refuses.
    pub fn receiver(cgroup: &Path) -> Result<Self, BpfError> {
        supported()?;
        Self::attach(cgroup, None)
    }

    pub(super) fn attach(cgroup: &Path, shares: Option<MapHandle>) -> Result<Self, BpfError> {
        let what = || format!("{} (a cgroup v2 directory is needed)", cgroup.display());
        let group = File::open(cgroup).map_err(|source| BpfError::Io { what: what(), source })?;
        let mut object = open("feedback", object!("feedback"))?;
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
