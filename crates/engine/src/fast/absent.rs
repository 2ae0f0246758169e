//! Replacement for builds without kernel programs: there is no fast path.

use super::{CollectReason, FastStatus, LocalEndpoint};
use crate::worker::TunnelEnd;
use anabranch_atsss::fast::FastFlow;
use anabranch_atsss::session::Addresses;
use anabranch_element::time::Instant;
use anabranch_wire::ip::FlowKey;

/// Has no values.
pub enum Fast {}

/// Always fails.
///
/// # Errors
/// There are no kernel programs.
pub fn start(_: &str, _: bool, _: u32, _: usize) -> anyhow::Result<Vec<Fast>> {
    anyhow::bail!("this build has no kernel programs; build with `--features bpf` (./x does)")
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
