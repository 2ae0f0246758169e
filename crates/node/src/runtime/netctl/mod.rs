//! Changes to the kernel's network configuration, and their reversal.
//!
//! A change is a plan of [`Step`]s. [`Net::apply`] executes the steps in order; if one fails, the earlier
//! ones are undone, and the error names the failed step. The applied steps form a [`Layer`], which is undone
//! in reverse order when the program stops. After a killed run, [`Net::clean`] removes its leftovers at the
//! next start. It recognises them by the names of device and table, by the routing tables that the mark
//! numbers, and by identifiers. The configuration of a running program is protected by its [`Claim`].
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
mod subflows;
mod sysctls;
mod tproxy;

pub use claim::Claim;
pub use lane::{LANE_DEVICE, lane_endpoint, lane_return_route, lane_table, ue_lane_plan, upf_lane_plan};
pub use monitor::{Health, Monitor, TableMonitor, Watched};
pub use mptcp::{
    Endpoint as MptcpEndpoint, MAX_ENDPOINTS, add as add_endpoint, reopens_subflows, warn_of_kernel,
    withdraw as withdraw_endpoint,
};
pub use namespace::{inner_end, inside};
pub use owner::{OwnerThread, Owners};
pub use plan::{has_ipv6, inside_name, session_of_ue, ue_accesses, upf};
pub use port::port_of;
pub use slices::{MAPPING_PRIORITY, MARK_PRIORITY, PROXY_PRIORITY, SOURCE_PRIORITY, Selector, SliceRoute};
pub use socket::{SocketSpec, addresses, bind_access, bind_when_free, owner_of};
pub use steps::Step;
pub use subflows::needed as needed_endpoints;
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

/// Steps that were applied together and are undone together.
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

    /// Stores original values of sysctls in the directory, for the next run after a kill and for other
    /// anabranch programs; `device` belongs to this program.
    pub fn remembering(mut self, folder: &Path, device: &str) -> Self {
        self.sysctls = Arc::new(Sysctls::in_folder(folder, device));
        self
    }

    /// Restores sysctls that a killed run had set and that this run does not need.
    pub async fn restore_rest(&self) {
        let sysctls = self.sysctls.clone();
        let done = tokio::task::spawn_blocking(move || sysctls.restore_rest()).await;
        if let Ok(Err(error)) = done {
            tracing::warn!("network: {error:#}");
        }
    }

    /// Executes a plan completely, or undoes it.
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

    /// Replaces the configuration of `layer` by the plan: common addresses, routes and rules stay, and new
    /// ones are made before old ones are removed, so that every packet has a route at all times. If a step
    /// fails, `layer` is unchanged.
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
                // A step that had replaced a part of the layer is undone; the replaced part is restored
                // explicitly.
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

    /// Restores the layer's addresses, routes and rules that other programs have removed; systemd-networkd,
    /// for example, removes foreign rules when it restarts. Failures are retried at the next call. Returns
    /// descriptions of what was restored.
    pub async fn restore(&self, layer: &Layer) -> Vec<String> {
        let mut made = Vec::new();
        for undo in &layer.0 {
            match steps::again(&self.handle, undo).await {
                Ok(None) => {}
                Ok(Some(what)) => made.push(format!("somebody removed this {what}; it is there again")),
                Err(error) if undo.keeper().is_some_and(Keeper::is_problem_reported) => {
                    tracing::debug!("{error:#}");
                }
                Err(error) => {
                    tracing::warn!(
                        "a part of the network configuration was removed and cannot be restored: {error:#}"
                    )
                }
            }
        }
        made
    }

    /// Restores removed parts of the layers ([`Self::restore`]), and records events (of `ue`) about them and
    /// about tables that do not last.
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

    /// Restores the plan's nftables tables that were removed (by `nft flush ruleset`, which most restarts of
    /// nftables execute); returns their names. The plan's layer also undoes these.
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
                            tracing::info!(
                                flows,
                                "flows that began without address translation are translated now"
                            )
                        }
                        Err(error) => {
                            tracing::warn!(
                                "flows that began without address translation stay untranslated: {error:#}"
                            )
                        }
                    }
                }
                made.push(table);
            }
        }
        Ok(made)
    }

    /// Undoes a layer in reverse order. Steps that cannot be undone are logged and skipped.
    pub async fn undo(&self, layer: Layer) {
        for undo in layer.0.into_iter().rev() {
            let what = format!("{undo:?}");
            if let Err(error) = steps::undo(&self.handle, undo).await {
                tracing::warn!("network: undoing {what}: {error:#}");
            }
        }
    }

    /// Like [`Net::undo`], but keeps address translation and forwarding for the run that follows at once, so
    /// that flows continue.
    pub async fn make_way(&self, mut layer: Layer) {
        layer.0.retain(|undo| !matches!(undo, Undo::Table(_) | Undo::Sysctl(..)));
        self.undo(layer).await;
    }

    /// Removes Multipath TCP endpoints left by a killed run.
    pub fn clean_endpoints(&self) -> anyhow::Result<()> {
        mptcp::clean()
    }

    /// Removes rules and routes of slices left by a killed run with these tables.
    pub async fn clean_slices(&self, tables: &[u32]) -> anyhow::Result<()> {
        steps::clean_tables(
            &self.handle,
            MARK_PRIORITY..MAPPING_PRIORITY + super::config::MOST_SLICES as u32,
            tables,
        )
        .await
    }

    /// Removes the leftovers of proxies and TCP lanes of UEs that have ended: nftables tables that redirect
    /// to a port on which nobody listens, and rules and routes without a table. The configuration of running
    /// programs is not touched; programs that are setting up are waited for.
    pub async fn clean_dead(&self) -> anyhow::Result<()> {
        let _only = leftover::only().await?;
        leftover::clean(&self.handle).await
    }

    /// Like [`Self::apply`] with the plan of a [`proxy`], while no other program cleans up.
    pub async fn redirect(&self, tproxy: Tproxy) -> anyhow::Result<Layer> {
        let _only = leftover::only().await?;
        self.apply(plan::proxy(tproxy)).await
    }

    /// Claims the mark of a proxy, the next one, and the routing tables with these numbers. Returns the reason if
    /// another program uses one of them; nothing has changed then.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub async fn claim_marks(&self, mark: u32) -> anyhow::Result<Result<Claim, String>> {
        let claim = match Claim::numbers([mark, mark + 1])? {
            Ok(claim) => claim,
            Err(number) => {
                return Ok(Err(format!(
                    "another anabranch program in this network namespace has mark and routing table {number}"
                )));
            }
        };
        Ok(match leftover::other_use(&self.handle, mark).await? {
            Some(what) => Err(what),
            None => Ok(claim),
        })
    }

    /// Removes leftovers of a killed run of a proxy or a TCP lane with this mark and nftables table.
    pub async fn clean_proxy(&self, mark: u32, table: &str) -> anyhow::Result<()> {
        steps::clean_tables(&self.handle, PROXY_PRIORITY..PROXY_PRIORITY + 1, &[mark]).await?;
        leftover::remove(table).await
    }

    /// Removes leftovers of a killed run with this device name and, if given, this mark; with `keep_table`,
    /// not the address translation, which will be replaced.
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

/// Waits until an owned table of these layers has disappeared prematurely and may be restored: then
/// [`Net::hold`] is due. Never returns if there is no such table.
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
    /// Replaces the redirection to a proxy atomically.
    pub async fn replace(&self, tproxy: Tproxy) -> anyhow::Result<()> {
        let keeper = self.0.iter().find_map(Undo::keeper).cloned();
        tokio::task::spawn_blocking(move || tproxy::replace(&tproxy, keeper.as_ref())).await?
    }
}

#[cfg(test)]
mod tests;
