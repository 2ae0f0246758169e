//! The feedback program, which carries telemetry back to the sender: `bpf/feedback.bpf.c` on a cgroup.

use super::controllers::{object, share_sockets};
use super::object::{Counters, attach, configure, counters, open};
use super::{BpfError, loadable_here, tried};
use libbpf_rs::{Link, MapHandle, Object};
use std::fs::{File, Metadata};
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Key that authenticates reports: both ends of a connection have the same key, and ignore reports without a valid tag.
#[derive(Clone)]
pub struct ReportKey([u8; Self::LEN]);

impl ReportKey {
    /// Size of a key in bytes.
    pub const LEN: usize = 16;

    /// A key from uniformly distributed secret bytes; all zeros mean no key.
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

/// Configuration of the feedback program.
#[derive(Debug, Clone, Default)]
pub struct FeedbackConfig {
    /// Key of the tags; reports without a valid tag are ignored.
    pub key: Option<ReportKey>,
    /// Number of routers on the path that are known to have no dropping queue.
    pub known_routers: u8,
}

impl FeedbackConfig {
    /// Size of the constants.
    #[cfg(test)]
    pub(super) const LEN: usize = 24;

    /// `struct ab_feedback_config`: two little-endian numbers (the byte order of SipHash), and the number of routers.
    fn constants(&self) -> Vec<u8> {
        let bytes = self.key.as_ref().map_or([0; ReportKey::LEN], |key| key.0);
        let number = u128::from_le_bytes(bytes);
        let key = [number as u64, (number >> 64) as u64].map(u64::to_ne_bytes).concat();
        [key, u32::from(self.known_routers).to_ne_bytes().into(), vec![0; 4]].concat()
    }
}

/// The attached program; detached when this is dropped.
#[derive(Debug)]
pub struct Feedback {
    _links: Vec<Link>,
    object: Object,
    cgroup: PathBuf,
    /// File system and number of the cgroup's directory.
    directory: (u64, u64),
}

fn directory(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

impl Feedback {
    /// Attaches the program to the sockets of `cgroup`; a receiver needs no controllers.
    ///
    /// # Errors
    /// No such cgroup, or a refusal of the kernel.
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
        let io = |source| BpfError::Io { what: what(), source };
        let group = File::open(cgroup).map_err(io)?;
        let directory = directory(&group.metadata().map_err(io)?);
        let mut object = open("feedback", object!("feedback"))?;
        configure(&mut object, &config.constants())?;
        if let Some(map) = shares {
            share_sockets(&mut object, &map)?;
        }
        let object = tried("loading feedback", object.load())?;
        let links = attach(&object, &["ab_feedback"], |program| {
            tried(what(), program.attach_cgroup(group.as_raw_fd()))
        })?;
        Ok(Self { _links: links, object, cgroup: cgroup.to_owned(), directory })
    }

    /// Whether the cgroup has been removed, or another one is at its path: that one needs another program.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        match std::fs::metadata(&self.cgroup) {
            Ok(there) => directory(&there) != self.directory,
            Err(error) => error.kind() == ErrorKind::NotFound,
        }
    }

    /// The counters.
    ///
    /// # Errors
    /// The kernel refuses to read them.
    pub fn counters(&self) -> Result<Counters, BpfError> {
        counters(&self.object)
    }
}
