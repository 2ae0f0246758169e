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
}

impl std::fmt::Debug for ReportKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ReportKey(…)")
    }
}

/// How reports are made and read.
#[derive(Debug, Clone, Default)]
pub struct FeedbackConfig {
    /// Reports have a tag by it, and those without one count for nothing.
    pub key: Option<ReportKey>,
    /// Routers on the way of traces that are known to have no queue that drops.
    pub known_routers: u8,
}

impl FeedbackConfig {
    /// Bytes of what the program is told.
    #[cfg(test)]
    pub(super) const LEN: usize = 24;

    /// `struct ab_feedback_config`: two numbers, the first bytes the least (SipHash's own order), and the routers.
    fn constants(&self) -> Vec<u8> {
        let bytes = self.key.as_ref().map_or([0; ReportKey::LEN], |key| key.0);
        let number = u128::from_le_bytes(bytes);
        let key = [number as u64, (number >> 64) as u64].map(u64::to_ne_bytes).concat();
        [key, u32::from(self.known_routers).to_ne_bytes().into(), vec![0; 4]].concat()
    }
}

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
    pub fn receiver(cgroup: &Path, config: &FeedbackConfig) -> Result<Self, BpfError> {
        loadable_here()?;
        Self::attach(cgroup, config, None)
    }

    pub(super) fn attach(
        cgroup: &Path,
        config: &FeedbackConfig,
        shares: Option<MapHandle>,
    ) -> Result<Self, BpfError> {
        let what = || format!("{} (a cgroup v2 directory is needed)", cgroup.display());
        let group = File::open(cgroup).map_err(|source| BpfError::Io { what: what(), source })?;
        let mut object = open("feedback", object!("feedback"))?;
        configure(&mut object, &config.constants())?;
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
