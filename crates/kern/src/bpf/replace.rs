//! Replaces a loaded controller with a newer version (`BPF_LINK_UPDATE` on its struct_ops link).
//!
//! The kernel swaps the operations of a name atomically: a socket that selects the name gets either the old or the new ones. Sockets
//! with the old operations keep them and, through them, the old programs.

use super::inspect::{holders, maps_of};
use super::sockets::SOCKETS;
use super::{BpfError, tried};
use libbpf_rs::query::{LinkInfoIter, LinkTypeInfo, MapInfoIter};
use libbpf_rs::{MapHandle, MapMut, MapType};
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::ptr;

/// Size of `struct ab_socket`.
pub(super) const SOCKET_LEN: u32 = 272;

/// Replaces the operations registered as `name` by `ops`; they stay registered as long as the result exists.
pub(super) fn replace(name: &'static str, ops: &mut MapMut<'_>) -> Result<OwnedFd, BpfError> {
    let link = link_of(name).ok_or(BpfError::Registered(name))?;
    // libbpf fills in the new operations only during registration. The name is in use, so the registration fails; if it was
    // unregistered in the meantime, the registration has succeeded.
    if let Ok(own) = ops.attach_struct_ops() {
        drop(own);
        return Err(BpfError::Unsupported(format!("{name} was unregistered meanwhile: try again")));
    }
    // SAFETY: both descriptors are open, and no options are passed.
    let result =
        unsafe { libbpf_sys::bpf_link_update(link.as_raw_fd(), ops.as_fd().as_raw_fd(), ptr::null()) };
    let result = if result < 0 { Err(libbpf_rs::Error::from(io::Error::last_os_error())) } else { Ok(()) };
    tried(format!("replacing {name}"), result)?;
    Ok(link)
}

/// The sockets' state used by the loaded version of `name`, if its layout equals ours.
pub(super) fn sockets_of(name: &str) -> Option<MapHandle> {
    let held: Vec<u32> = holders(name).ok()?.into_iter().flat_map(maps_of).collect();
    let info = MapInfoIter::default().find(|info| {
        info.ty == MapType::SkStorage
            && info.name == OsStr::new(SOCKETS)
            && info.value_size == SOCKET_LEN
            && held.contains(&info.id)
    })?;
    MapHandle::from_map_id(info.id).ok()
}

/// The link by which one of our controllers is registered.
fn link_of(name: &str) -> Option<OwnedFd> {
    let maps: Vec<u32> = MapInfoIter::default()
        .filter(|info| info.ty == MapType::StructOps && info.name == OsStr::new(name))
        .map(|info| info.id)
        .collect();
    let id = LinkInfoIter::default().find_map(|link| match link.info {
        LinkTypeInfo::StructOps(ops) if maps.contains(&ops.map_id) => Some(link.id),
        _ => None,
    })?;
    // SAFETY: the call takes a number; a returned descriptor has no other owner.
    unsafe {
        let fd = libbpf_sys::bpf_link_get_fd_by_id(id);
        (fd >= 0).then(|| OwnedFd::from_raw_fd(fd))
    }
}
