//! Congestion controllers, registered in the kernel (struct_ops).

use super::feedback::{Feedback, FeedbackConfig};
use super::object::{Counters, configure, counters, open};
use super::sockets::SOCKETS;
use super::{BpfError, replace, supported, tried};
use crate::release::{release, version};
use anabranch_cc::Algorithm;
use anabranch_cc::int::IntConfig;
use libbpf_rs::{ErrorKind, Link, MapCore, MapHandle, MapType, Object};
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::{fs, io};

/// The controllers with a kernel program.
pub const LOADABLE: [Algorithm; 4] =
    [Algorithm::IntCubicL1, Algorithm::IntCubicL2, Algorithm::IntCubicSs, Algorithm::IntRate];

macro_rules! object {
    ($name:literal) => {{
        // The loader reads 64-bit words.
        #[repr(align(8))]
        struct Aligned<B: ?Sized>(B);
        static OBJECT: &Aligned<[u8]> =
            &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".bpf.o")));
        &OBJECT.0
    }};
}
pub(super) use object;

fn bytes(algorithm: Algorithm) -> Result<&'static [u8], BpfError> {
    Ok(match algorithm {
        Algorithm::IntCubicL1 => object!("int_cubic_l1"),
        Algorithm::IntCubicL2 => object!("int_cubic_l2"),
        Algorithm::IntCubicSs => object!("int_cubic_ss"),
        Algorithm::IntRate => object!("int_rate"),
        other => return Err(BpfError::NotLoadable(other)),
    })
}

/// Linux version required by a controller beyond the common requirements.
const fn oldest(algorithm: Algorithm) -> Option<(u32, u32)> {
    match algorithm {
        // cong_control receives the ACK and its flags since this version.
        Algorithm::IntRate => Some((6, 10)),
        _ => None,
    }
}

/// Names of the congestion controllers currently available in the kernel, including those of others.
///
/// # Errors
/// The kernel's list cannot be read.
pub fn available() -> io::Result<Vec<String>> {
    let list = fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control")?;
    Ok(list.split_whitespace().map(str::to_owned).collect())
}

/// Registered controllers; they are unregistered when this is dropped.
#[derive(Debug)]
pub struct Controllers {
    // Registrations before objects: unregistered first.
    loaded: Vec<(Registration, Algorithm, Object)>,
    // Socket state shared with the replaced version.
    inherited: Option<MapHandle>,
    replaced: Vec<Algorithm>,
}

/// A registration of a controller.
#[derive(Debug)]
#[allow(dead_code, reason = "held, not read")]
enum Registration {
    /// Registered by this process.
    Own(Link),
    /// Registered by another process and updated with our program: it exists as long as either process holds it.
    TakenOver(OwnedFd),
}

impl Controllers {
    /// Registers controllers. A controller that another anabranch process keeps registered is replaced atomically: new connections
    /// use the new version, and open connections keep the old one, which stays in the kernel until the last of them closes. Both share
    /// the sockets' state, so both continue to receive reports. The other process is then no longer needed and can end;
    /// [`Self::replaced`] returns the replaced controllers.
    ///
    /// Without replacement, either all or none are registered. A completed replacement is not reverted when a later one fails, but
    /// nothing is unregistered as long as the other process lives.
    ///
    /// # Errors
    /// A controller has no kernel program or is registered by other software; the machine lacks support; or the verifier rejects it.
    pub fn load(algorithms: &[Algorithm], config: &IntConfig) -> Result<Self, BpfError> {
        supported()?;
        let mut all = Self { loaded: Vec::new(), inherited: None, replaced: Vec::new() };
        all.inherited = algorithms.iter().find_map(|a| replace::sockets_of(a.name()));
        for &algorithm in algorithms {
            all.add(algorithm, config)?;
        }
        Ok(all)
    }

    /// The controllers that were registered by another process before.
    #[must_use]
    pub fn replaced(&self) -> &[Algorithm] {
        &self.replaced
    }

    fn add(&mut self, algorithm: Algorithm, config: &IntConfig) -> Result<(), BpfError> {
        let name = algorithm.name();
        let bytes = bytes(algorithm)?;
        let there = available().is_ok_and(|names| names.iter().any(|n| n == name));
        let mut object = open(name, bytes)?;
        configure(&mut object, &constants(config))?;
        if let Some(map) = self.sockets() {
            share_sockets(&mut object, &map)?;
        }
        let release = release().unwrap_or_default();
        let is_before = |oldest| version(&release).is_some_and(|version| version < oldest);
        let mut object = match (object.load(), oldest(algorithm)) {
            // A distribution may have backported the requirement to an older kernel.
            (Err(_), Some(oldest)) if is_before(oldest) => {
                let (major, minor) = oldest;
                return Err(BpfError::Unsupported(format!(
                    "{name} needs Linux {major}.{minor} or later, this is {release}; the other controllers need less"
                )));
            }
            (loaded, _) => tried(format!("loading {name}"), loaded)?,
        };
        let ops = object.maps_mut().find(|m| m.map_type() == MapType::StructOps);
        let mut ops = ops.ok_or_else(|| BpfError::Unsupported(format!("{name} has no operations")))?;
        let own = match (!there).then(|| ops.attach_struct_ops()) {
            // Another process has registered it in the meantime.
            Some(Err(error)) if error.kind() == ErrorKind::AlreadyExists => None,
            registered => registered.map(|link| tried(format!("registering {name}"), link)).transpose()?,
        };
        let registration = if let Some(link) = own {
            Registration::Own(link)
        } else {
            let link = replace::replace(name, &mut ops)?;
            self.replaced.push(algorithm);
            Registration::TakenOver(link)
        };
        self.loaded.push((registration, algorithm, object));
        Ok(())
    }

    /// The controllers with their counters.
    ///
    /// # Errors
    /// The kernel refuses to read them.
    pub fn counters(&self) -> Result<Vec<(Algorithm, Counters)>, BpfError> {
        self.loaded.iter().map(|(_, algorithm, object)| Ok((*algorithm, counters(object)?))).collect()
    }

    /// Attaches the feedback program to the sockets in `cgroup` (cgroup v2) and below, until the result is dropped. With a key, received
    /// reports without a valid tag are ignored, and sent ones have a tag.
    ///
    /// # Errors
    /// No such cgroup, or the kernel refuses.
    pub fn feedback(&self, cgroup: &Path, config: &FeedbackConfig) -> Result<Feedback, BpfError> {
        Feedback::attach(cgroup, config, self.sockets())
    }

    /// The map with the sockets' state: that of the first loaded controller, or of the replaced version.
    fn sockets(&self) -> Option<MapHandle> {
        let Some((_, _, first)) = self.loaded.first() else {
            let map = self.inherited.as_ref()?;
            return MapHandle::try_from(map).ok();
        };
        let map = first.maps().find(|m| m.name() == OsStr::new(SOCKETS))?;
        MapHandle::try_from(&map).ok()
    }
}

/// `struct ab_config`.
fn constants(config: &IntConfig) -> Vec<u8> {
    let mut b = config.ceiling_bps.to_ne_bytes().to_vec();
    for value in [config.increment, config.growth_cap, config.stale_rtts.max(1), 0] {
        b.extend(value.to_ne_bytes());
    }
    b
}

/// Makes `object` use the sockets' state in `map`.
pub(super) fn share_sockets(object: &mut libbpf_rs::OpenObject, map: &MapHandle) -> Result<(), BpfError> {
    let ours = object.maps_mut().find(|m| m.name() == OsStr::new(SOCKETS));
    match ours {
        Some(mut ours) => tried("sharing the sockets' state", ours.reuse_fd(map.as_fd())),
        None => Err(BpfError::Unsupported("the programs do not share their sockets' state".into())),
    }
}
