//! Network namespaces: execution inside one, and a private one for the inner end of a veth pair.

use super::plan::packet_device;
use super::steps::Step;
use crate::runtime::config::{Device, DeviceKind};
use anyhow::Context;
use nix::sched::{CloneFlags, setns, unshare};
use std::fs::File;
use std::path::Path;

/// The steps that create the end of a device that the program opens, and its namespace: nothing for TUN; for
/// the kind `packet`, a veth pair with its inner end in a network namespace.
pub fn inner_end(device: &Device) -> (Vec<Step>, Option<File>) {
    match device.kind {
        DeviceKind::Tun => (Vec::new(), None),
        DeviceKind::Packet => {
            let namespace = private(device);
            (packet_device(device, namespace.as_ref()), namespace)
        }
    }
}

/// Creates an unnamed network namespace. It is removed with its last socket, however the program ends, and
/// with it the veth pair, its addresses and its routes, as with a TUN interface.
///
/// `None` without CAP_SYS_ADMIN: then the pair of a killed program stays until its next start.
fn private(device: &Device) -> Option<File> {
    let create = || {
        unshare(CloneFlags::CLONE_NEWNET)?;
        // Disables router solicitations in it; without IPv6 there are none.
        std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1").ok();
        File::open("/proc/thread-self/ns/net")
    };
    let made: std::io::Result<File> = std::thread::scope(|scope| {
        scope.spawn(create).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    let explain = |error| {
        tracing::warn!(
            device = device.name,
            "no network namespace for its inner end ({error}; CAP_SYS_ADMIN is needed): if this program is killed, the \
             interface and its routes stay until the next start"
        );
    };
    made.map_err(explain).ok()
}

/// Runs `body` on a thread of its own, in the namespace at `path` if given.
pub fn inside<T: Send>(
    path: Option<&Path>,
    body: impl FnOnce() -> anyhow::Result<T> + Send,
) -> anyhow::Result<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            if let Some(path) = path {
                let place = path.display();
                let file = std::fs::File::open(path)
                    .with_context(|| format!("netns {place}: is there one? `ip netns` lists them"))?;
                setns(file, CloneFlags::CLONE_NEWNET)
                    .with_context(|| format!("netns {place}: cannot enter it; this needs CAP_SYS_ADMIN"))?;
            }
            body()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
