//! Replacement for builds without kernel programs: there is no fast path.

use super::super::worker::TunnelEnd;
use super::{CollectReason, FastStatus, LocalEndpoint};
use crate::runtime::config::Device;
use anabranch_atsss::fast::FastFlow;
use anabranch_atsss::session::Addresses;
use anabranch_element::time::Instant;
use anabranch_wire::ip::FlowKey;

/// Has no values.
pub enum Fast {}

/// No fast path for any worker.
///
/// # Errors
/// The configuration enables it.
pub fn start(device: &Device, _: bool, _: u32, workers: usize) -> anyhow::Result<Vec<Option<Fast>>> {
    anyhow::ensure!(
        !device.fast_path,
        "[device] fast_path = true: this build has no kernel programs; build with `--features bpf` (./x does), or remove \
         it out"
    );
    Ok((0..workers).map(|_| None).collect())
}

impl Fast {
    pub fn status(&self) -> FastStatus {
        match *self {}
    }

    pub fn next(&self) -> Option<Instant> {
        match *self {}
    }

    pub fn offload(&mut self, _: &FastFlow, _: Instant, _: impl FnOnce() -> Option<LocalEndpoint>) {
        match *self {}
    }

    pub fn revoke(&mut self, _: Addresses, _: Option<&FlowKey>) {
        match *self {}
    }

    pub fn collect(&mut self, _: &mut impl TunnelEnd, _: Instant, _: CollectReason) {
        match *self {}
    }

    pub fn moved(&mut self, _: u8) {
        match *self {}
    }
}
