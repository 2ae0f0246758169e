//! The configured inner interface of UE, UPF, gNB and LWIP node, and its fast path in the kernel.

use super::config::{Device as Config, DeviceKind};
use super::netctl::{inside, inside_name};
use anabranch_engine::device::Device;
use anabranch_engine::fast::{self, Fast};
use anyhow::Context;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;

/// Opens the configured interface with one queue per worker. For the kind `packet`, the veth pair must exist
/// ([`packet_device`](super::netctl::packet_device)), its inner end in `namespace` if given, and
/// there is only one queue.
pub fn open(
    config: &Config,
    mtu: u16,
    queues: usize,
    namespace: Option<&File>,
) -> anyhow::Result<Vec<Device>> {
    match config.kind {
        DeviceKind::Tun => Device::tun(&config.name, mtu, queues),
        DeviceKind::Packet => {
            let peer = anabranch_kern::interface::mac(&config.name)
                .with_context(|| format!("device {}", config.name))?;
            let name = inside_name(&config.name);
            let open = || {
                anabranch_kern::interface::disable_offloads(&name)
                    .and_then(|()| anabranch_kern::interface::set_up(&name, true))
                    .with_context(|| format!("device {name}"))?;
                Device::packet(&name, peer, mtu)
            };
            let path = namespace.map(|file| format!("/proc/self/fd/{}", file.as_raw_fd()));
            Ok(vec![inside(path.as_deref().map(Path::new), open)?])
        }
    }
}

/// A fast path per worker; `None` without `[device] fast_path`. `paths`: maximum number of lanes.
///
/// # Errors
/// This build has no kernel programs, or the kernel refuses them.
pub fn fast_path(config: &Config, ue: bool, paths: u32, workers: usize) -> anyhow::Result<Vec<Option<Fast>>> {
    if !config.fast_path {
        return Ok((0..workers).map(|_| None).collect());
    }
    let lanes = fast::start(&config.name, ue, paths, workers)
        .context("[device] fast_path = true (without it no kernel program is needed)")?;
    Ok(lanes.into_iter().map(Some).collect())
}
