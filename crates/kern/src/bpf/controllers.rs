//! Congestion controllers, registered with the kernel (struct_ops).

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

/// The controllers that have a kernel program.
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

/// The Linux that a controller needs beyond what all of them do.
const fn oldest(algorithm: Algorithm) -> Option<(u32, u32)> {
    match algorithm {
        // cong_control has the ACK and its flags since then.
        Algorithm::IntRate => Some((6, 10)),
        _ => None,
    }
}

/// Names of the congestion controllers that the kernel has at present, ours or not.
///
/// # Errors
/// The kernel's list cannot be read.
pub fn available() -> io::Result<Vec<String>> {
    let list = fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control")?;
    Ok(list.split_whitespace().map(str::to_owned).collect())
}

/// Controllers that are registered as long as this lives.
#[derive(Debug)]
pub struct Controllers {
    // Registrations before objects: unregistered first.
    loaded: Vec<(Registration, Algorithm, Object)>,
    // The sockets' state of the version that was replaced.
    inherited: Option<MapHandle>,
    replaced: Vec<Algorithm>,
}

/// What keeps a controller registered.
#[derive(Debug)]
#[allow(dead_code, reason = "held, not read")]
enum Registration {
    /// Ours from the start.
    Own(Link),
    /// Another process's, with our program in it: it lives as long as either of us holds it.
    TakenOver(OwnedFd),
}

impl Controllers {
    /// Registers controllers. One that another process of ours keeps registered is replaced, without a moment in
    /// which there is none: connections made from now on run the new version and open ones keep the old, which
    /// stays in the kernel until the last of them closes. Both share the sockets' state, so reports go on to reach
    /// both. The other process has nothing left to hold then and can end; [`Self::replaced`] names what was taken.
    ///
    /// Without replacement it is all or none; a replacement that has been made is not taken back when a later one
    /// fails, but nothing becomes unregistered as long as the other process lives.
    ///
    /// # Errors
    /// One has no kernel program or is registered by somebody else; the machine cannot; the verifier refuses.
    pub fn load(algorithms: &[Algorithm], config: &IntConfig) -> Result<Self, BpfError> {
        supported()?;
        let mut all = Self { loaded: Vec::new(), inherited: None, replaced: Vec::new() };
        all.inherited = algorithms.iter().find_map(|a| replace::sockets_of(a.name()));
        for &algorithm in algorithms {
            all.add(algorithm, config)?;
        }
        Ok(all)
    }

    /// Which controllers were another process's before.
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
            // A distribution may have given an older kernel what it takes.
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
            // Another process has been faster since.
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

    /// The controllers, with what each has counted.
    ///
    /// # Errors
    /// The kernel does not let them be read.
    pub fn counters(&self) -> Result<Vec<(Algorithm, Counters)>, BpfError> {
        self.loaded.iter().map(|(_, algorithm, object)| Ok((*algorithm, counters(object)?))).collect()
    }

    /// Telemetry's way back for the sockets in `cgroup` (cgroup v2) and below, as long as the result lives. With a key, reports
    /// without its tag are not taken, and those that are sent have it.
    ///
    /// # Errors
    /// No such cgroup, or the kernel refuses.
    pub fn feedback(&self, cgroup: &Path, config: &FeedbackConfig) -> Result<Feedback, BpfError> {
        Feedback::attach(cgroup, config, self.sockets())
    }

    /// The map with the sockets' state: of the first that was loaded, or of the version replaced.
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

/// Lets `object` use the sockets' state in `map`.
pub(super) fn share_sockets(object: &mut libbpf_rs::OpenObject, map: &MapHandle) -> Result<(), BpfError> {
    let ours = object.maps_mut().find(|m| m.name() == OsStr::new(SOCKETS));
    match ours {
        Some(mut ours) => tried("sharing the sockets' state", ours.reuse_fd(map.as_fd())),
        None => Err(BpfError::Unsupported("the programs do not share their sockets' state".into())),
    }
}
