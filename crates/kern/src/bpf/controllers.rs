//! Congestion controllers, registered with the kernel (struct_ops).

use super::feedback::Feedback;
use super::object::{Counters, configure, counters, open};
use super::{BpfError, supported, tried};
use anabranch_core::cc::Algorithm;
use anabranch_core::cc::int::IntConfig;
use libbpf_rs::{Link, MapCore, MapType, Object};
use std::ffi::OsStr;
use std::os::fd::AsFd;
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
    // Links before objects: unregistered first.
    loaded: Vec<(Link, Algorithm, Object)>,
}

impl Controllers {
    /// Registers controllers; all, or none.
    ///
    /// # Errors
    /// One has no kernel program or is registered already; the machine cannot; the verifier refuses.
    pub fn load(algorithms: &[Algorithm], config: &IntConfig) -> Result<Self, BpfError> {
        supported()?;
        let mut all = Self { loaded: Vec::new() };
        for &algorithm in algorithms {
            all.add(algorithm, config)?;
        }
        Ok(all)
    }

    fn add(&mut self, algorithm: Algorithm, config: &IntConfig) -> Result<(), BpfError> {
        let name = algorithm.name();
        let bytes = bytes(algorithm)?;
        // A second registration would be refused too late, and with "Success".
        if available().is_ok_and(|names| names.iter().any(|n| n == name)) {
            return Err(BpfError::Registered(name));
        }
        let mut object = open(name, bytes)?;
        configure(&mut object, &constants(config))?;
        if let Some((_, _, first)) = self.loaded.first() {
            share_sockets(&mut object, first)?;
        }
        let mut object = tried(format!("loading {name}"), object.load())?;
        let ops = object.maps_mut().find(|m| m.map_type() == MapType::StructOps);
        let mut ops = ops.ok_or_else(|| BpfError::Unsupported(format!("{name} has no operations")))?;
        let link = tried(format!("registering {name}"), ops.attach_struct_ops())?;
        self.loaded.push((link, algorithm, object));
        Ok(())
    }

    /// The controllers, with what each has counted.
    ///
    /// # Errors
    /// The kernel does not let them be read.
    pub fn counters(&self) -> Result<Vec<(Algorithm, Counters)>, BpfError> {
        self.loaded.iter().map(|(_, algorithm, object)| Ok((*algorithm, counters(object)?))).collect()
    }

    /// Telemetry's way back for the sockets in `cgroup` (cgroup v2) and below, as long as the result lives.
    ///
    /// # Errors
    /// No such cgroup, or the kernel refuses.
    pub fn feedback(&self, cgroup: &Path) -> Result<Feedback, BpfError> {
        Feedback::attach(cgroup, self.loaded.first().map(|(_, _, object)| object))
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

/// Lets `object` use the sockets' state of `of`.
pub(super) fn share_sockets(object: &mut libbpf_rs::OpenObject, of: &Object) -> Result<(), BpfError> {
    let theirs = of.maps().find(|m| m.name() == OsStr::new("ab_sockets"));
    let ours = object.maps_mut().find(|m| m.name() == OsStr::new("ab_sockets"));
    match (ours, theirs) {
        (Some(mut ours), Some(theirs)) => tried("sharing the sockets' state", ours.reuse_fd(theirs.as_fd())),
        _ => Err(BpfError::Unsupported("the programs do not share their sockets' state".into())),
    }
}
