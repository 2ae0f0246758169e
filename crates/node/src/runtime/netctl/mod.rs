//! What the program changes in the kernel's network configuration, and how it is put back.
//!
//! A change is a plan of [`Step`]s. [`Net::apply`] executes it in order; if a step fails, those before it
//! are undone and the error says which one it was. What was applied is a [`Layer`], undone in reverse when
//! the program stops. A run that was killed leaves only what [`Net::clean`] recognises at the next start:
//! by the names of device and table, by the routing tables that the mark numbers, and by identifiers. What a run
//! that lives has is not taken for that: it holds a [`Claim`].
//!
//! ```text
//!  start ── clean ── apply(device) ──▶ running ── session up: apply(addresses, routes) ──▶ …
//!    stop or failure: undo the layers, last first
//! ```

mod claim;
mod conntrack;
mod keeper;
mod lane;
mod leftover;
mod monitor;
mod mptcp;
mod namespace;
mod nat;
mod owner;
mod plan;
mod port;
mod slices;
mod socket;
mod steps;
mod sysctls;
mod tproxy;

pub use claim::Claim;
pub use lane::{LANE_DEVICE, lane_endpoint, lane_of_ue, lane_of_upf, lane_table, lane_way_back};
pub use monitor::{Health, Monitor, TableMonitor, Watched};
pub use mptcp::{
    Endpoint as MptcpEndpoint, MOST as MOST_ENDPOINTS, add as add_endpoint, opens_again, warn_of_kernel,
    withdraw as withdraw_endpoint,
};
pub use namespace::{inner_end, inside};
pub use owner::{OwnerThread, Owners};
pub use plan::{has_ipv6, inside_name, session_of_ue, ue_accesses, upf};
pub use port::port_of;
pub use slices::{MAPPING_PRIORITY, MARK_PRIORITY, PROXY_PRIORITY, SOURCE_PRIORITY, Selector, SliceRoute};
pub use socket::{SocketSpec, addresses, bind_access, bind_when_free, interface_of, owner_of};
pub use steps::Step;
pub use tproxy::{FlowRule, Tproxy};

use super::api::EventLog;
use super::views;
use anyhow::Context;
use keeper::Keeper;
use nat::Nat;
use rtnetlink::Handle;
use std::path::Path;
use std::sync::Arc;
use std::task::Poll;
use steps::Undo;
use sysctls::Sysctls;

/// What was applied together, so that it can be undone together.
#[derive(Default)]
#[must_use = "a layer that is dropped cannot be undone"]
pub struct Layer(Vec<Undo>);

/// The kernel's network configuration of this namespace.
#[derive(Clone)]
pub struct Net {
    handle: Handle,
    sysctls: Arc<Sysctls>,
}

impl Net {
    /// Connects to rtnetlink; must be called inside the tokio runtime.
    pub fn open() -> anyhow::Result<Self> {
        let (connection, handle, _) = rtnetlink::new_connection().context("opening rtnetlink")?;
        tokio::spawn(connection);
        Ok(Self { handle, sysctls: Arc::new(Sysctls::forgetful()) })
    }

    /// Remembers in the folder what switches of the kernel were before, for the run after one that is killed and for other
    /// programs of ours; `device` is this program's.
    pub fn remembering(mut self, folder: &Path, device: &str) -> Self {
        self.sysctls = Arc::new(Sysctls::in_folder(folder, device));
        self
    }

    /// Puts back what a killed run had set and this one did not want.
    pub async fn restore_rest(&self) {
        let sysctls = self.sysctls.clone();
        let done = tokio::task::spawn_blocking(move || sysctls.restore_rest()).await;
        if let Ok(Err(error)) = done {
            tracing::warn!("network: {error:#}");
        }
    }

    /// Executes a plan whole, or not at all.
    pub async fn apply(&self, plan: Vec<Step>) -> anyhow::Result<Layer> {
        let mut layer = Layer::default();
        for step in plan {
            let what = step.to_string();
            tracing::debug!("network: {what}");
            match steps::apply(&self.handle, &self.sysctls, step).await {
                Ok(Some(undo)) => layer.0.push(undo),
                Ok(None) => {}
                Err(error) => {
                    self.undo(layer).await;
                    return Err(error.context(format!("network: {what}")));
                }
            }
        }
        Ok(layer)
    }

    /// Puts the plan in place of what `layer` has: addresses, routes and rules that both have stay, and what is new is made before
    /// what is old goes, so that there is a way for each packet all the time. If a step fails, `layer` is as it was.
    pub async fn replace(&self, layer: &mut Layer, plan: Vec<Step>) -> anyhow::Result<()> {
        let (mut stays, mut new) = (Vec::new(), Vec::new());
        for step in plan {
            match steps::undo_of(&step)?.filter(|undo| layer.0.contains(undo)) {
                Some(undo) => stays.push(undo),
                None => new.push(step),
            }
        }
        let made = match self.apply(new).await {
            Ok(made) => made,
            Err(error) => {
                // What had taken the place of something of the layer is undone, and that is not back by itself.
                self.restore(layer).await;
                return Err(error);
            }
        };
        let (kept, gone) = std::mem::take(&mut layer.0).into_iter().partition(|old| stays.contains(old));
        layer.0 = kept;
        layer.0.extend(made.0);
        self.undo(Layer(gone)).await;
        Ok(())
    }

    /// Makes the layer's addresses, routes and rules again that somebody has removed, as systemd-networkd does with rules when it
    /// starts again. What cannot be made is tried again with the next call. What was made, in words for people.
    pub async fn restore(&self, layer: &Layer) -> Vec<String> {
        let mut made = Vec::new();
        for undo in &layer.0 {
            match steps::again(&self.handle, undo).await {
                Ok(None) => {}
                Ok(Some(what)) => made.push(format!("somebody removed this {what}; it is there again")),
                Err(error) if undo.keeper().is_some_and(Keeper::has_complained) => {
                    tracing::debug!("{error:#}");
                }
                Err(error) => {
                    tracing::warn!("somebody removed a part of our network configuration: {error:#}")
                }
            }
        }
        made
    }

    /// Makes again what somebody has removed of the layers ([`Self::restore`]), and tells what that was, and of tables that do not
    /// last, as events (of `ue`).
    pub async fn hold<'a>(
        &self,
        layers: impl IntoIterator<Item = &'a Layer>,
        ue: Option<&str>,
        log: &EventLog,
    ) {
        for layer in layers {
            for what in self.restore(layer).await {
                log.push(views::event("restored", ue, what));
            }
            for what in layer.0.iter().filter_map(|undo| undo.keeper()?.complaint()) {
                log.push(views::event("not-restored", ue, what));
            }
        }
    }

    /// Makes the plan's tables of nftables again that somebody removed (`nft flush ruleset`, and so most restarts of nftables);
    /// their names. The layer of the plan undoes these, too.
    pub async fn restore_tables(&self, plan: &[Step]) -> anyhow::Result<Vec<String>> {
        let mut wanted = plan.iter().filter_map(|step| Some((step, step.table()?.to_owned()))).peekable();
        let mut made = Vec::new();
        if wanted.peek().is_some() {
            let there = tokio::task::spawn_blocking(leftover::names).await??;
            for (step, table) in wanted.filter(|(_, table)| !there.contains(table)) {
                steps::apply(&self.handle, &self.sysctls, step.clone()).await?;
                if let Step::Masquerade(nat) = step {
                    let sources = nat.sources.clone();
                    match tokio::task::spawn_blocking(move || conntrack::forget_untranslated(&sources))
                        .await?
                    {
                        Ok(0) => {}
                        Ok(flows) => {
                            tracing::info!(flows, "flows that began without address translation have it now")
                        }
                        Err(error) => {
                            tracing::warn!("flows that began without address translation stay so: {error:#}")
                        }
                    }
                }
                made.push(table);
            }
        }
        Ok(made)
    }

    /// Undoes a layer, last step first. What cannot be undone is logged and left.
    pub async fn undo(&self, layer: Layer) {
        for undo in layer.0.into_iter().rev() {
            let what = format!("{undo:?}");
            if let Err(error) = steps::undo(&self.handle, undo).await {
                tracing::warn!("network: undoing {what}: {error:#}");
            }
        }
    }

    /// As [`Net::undo`], but leaves address translation and forwarding to the run that follows at once: flows live on.
    pub async fn make_way(&self, mut layer: Layer) {
        layer.0.retain(|undo| !matches!(undo, Undo::Table(_) | Undo::Sysctl(..)));
        self.undo(layer).await;
    }

    /// Removes endpoints of Multipath TCP that a killed run may have left.
    pub fn clean_endpoints(&self) -> anyhow::Result<()> {
        mptcp::clean()
    }

    /// Removes rules and routes of slices that a killed run with these tables may have left.
    pub async fn clean_slices(&self, tables: &[u32]) -> anyhow::Result<()> {
        steps::clean_tables(
            &self.handle,
            MARK_PRIORITY..MAPPING_PRIORITY + super::config::MOST_SLICES as u32,
            tables,
        )
        .await
    }

    /// Removes what proxies and TCP lanes of UEs have left that are gone: tables of nftables that lead to a port that nobody
    /// has, and rules and routes that no table is about. Nothing of those that live is touched; who is about to set one up
    /// is waited for.
    pub async fn clean_dead(&self) -> anyhow::Result<()> {
        let _only = leftover::only().await?;
        leftover::clean(&self.handle).await
    }

    /// As [`Self::apply`] of a [`proxy`]'s plan, while nobody cleans.
    pub async fn lead(&self, tproxy: Tproxy) -> anyhow::Result<Layer> {
        let _only = leftover::only().await?;
        self.apply(plan::proxy(tproxy)).await
    }

    /// Removes what a killed run of a proxy, or of a TCP lane, with this mark and table of nftables may have left.
    pub async fn clean_proxy(&self, mark: u32, table: &str) -> anyhow::Result<()> {
        steps::clean_tables(&self.handle, PROXY_PRIORITY..PROXY_PRIORITY + 1, &[mark]).await?;
        leftover::remove(table).await
    }

    /// Removes what a killed run with this device name, and this mark if it had rules by one, may have left; not the address
    /// translation if it will be replaced (`keep_table`).
    pub async fn clean(&self, device: &str, mark: Option<u32>, keep_table: bool) -> anyhow::Result<()> {
        steps::clean(&self.handle, device, mark).await?;
        steps::undo(&self.handle, Undo::Table(nat::Filter::table_name(device))).await?;
        if keep_table {
            Ok(())
        } else {
            steps::undo(&self.handle, Undo::Table(Nat::table_name(device))).await
        }
    }
}

/// Waits until a table of these layers that goes with a process of ours has gone with it before it should, and may be made again:
/// [`Net::hold`] is due. Never, where there is none.
pub async fn broken<'a>(layers: impl IntoIterator<Item = &'a Layer>) {
    let kept = layers.into_iter().flat_map(|layer| &layer.0).filter_map(Undo::keeper);
    let mut kept: Vec<_> = kept.map(|keeper| Box::pin(keeper.ended())).collect();
    std::future::poll_fn(|context| {
        let ended = kept.iter_mut().any(|ended| ended.as_mut().poll(context).is_ready());
        if ended { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

impl Layer {
    /// Puts what leads flows to a proxy in place of what did so until now, at once or not at all.
    pub async fn replace(&self, tproxy: Tproxy) -> anyhow::Result<()> {
        let keeper = self.0.iter().find_map(Undo::keeper).cloned();
        tokio::task::spawn_blocking(move || tproxy::replace(&tproxy, keeper.as_ref())).await?
    }
}

#[cfg(test)]
mod tests;
