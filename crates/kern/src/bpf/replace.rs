//! A newer version in the place of a loaded one (`BPF_LINK_UPDATE` on its struct_ops link).
//!
//! The kernel swaps the operations under a name in one step: a socket that asks for the name gets the old ones or
//! the new ones, never none. Sockets that run the old ones keep them and, through them, the old programs.

use super::inspect::{holders, maps_of};
use super::sockets::SOCKETS;
use super::{BpfError, tried};
use libbpf_rs::query::{LinkInfoIter, LinkTypeInfo, MapInfoIter};
use libbpf_rs::{MapHandle, MapMut, MapType};
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::ptr;

/// Bytes of `struct ab_socket`.
pub(super) const SOCKET_LEN: u32 = 272;

/// Puts `ops` in the place of what is registered as `name`; the result keeps it there.
pub(super) fn replace(name: &'static str, ops: &mut MapMut<'_>) -> Result<OwnedFd, BpfError> {
    let link = link_of(name).ok_or(BpfError::Registered(name))?;
    // libbpf fills the new operations in when it registers them, and has no other way to ask for that. The name is
    // taken, so registering comes to nothing; with it gone since, we have registered it ourselves.
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

/// The sockets' state that the loaded version of `name` uses, if it is of our layout.
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

/// The link by which a controller of ours is registered.
fn link_of(name: &str) -> Option<OwnedFd> {
    let maps: Vec<u32> = MapInfoIter::default()
        .filter(|info| info.ty == MapType::StructOps && info.name == OsStr::new(name))
        .map(|info| info.id)
        .collect();
    let id = LinkInfoIter::default().find_map(|link| match link.info {
        LinkTypeInfo::StructOps(ops) if maps.contains(&ops.map_id) => Some(link.id),
        _ => None,
    })?;
    // SAFETY: takes a number; a descriptor that comes back is nobody else's.
    unsafe {
        let fd = libbpf_sys::bpf_link_get_fd_by_id(id);
        (fd >= 0).then(|| OwnedFd::from_raw_fd(fd))
    }
}
