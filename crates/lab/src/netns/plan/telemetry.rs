//! Requirements of in-band telemetry on the machine: controllers, their bounds, sources at interfaces, room in packets.

use super::servers::{IPV6_MTU, TUNNEL_MTU};
use super::{Build, TUNNEL};
use crate::backend::Unable;
use crate::scenario::file::{CongestionControl, Telemetry};
use crate::scenario::model::{Case, Flow, Via};
use anyhow::{Result, bail};
use std::collections::{BTreeMap, BTreeSet};

/// Requirements of in-band telemetry; see the module documentation.
#[derive(Debug, Clone, Default)]
pub struct TelemetryPlan {
    /// Controllers of this project that flows use.
    pub controllers: BTreeSet<CongestionControl>,
    /// Their bounds: the kernel has one set for all flows.
    pub bounds: Option<Telemetry>,
    /// Flows whose sockets send and receive reports.
    pub flows: BTreeSet<String>,
    /// Bytes reserved in IPv6 packets of flows with this control.
    pub(super) room: BTreeMap<CongestionControl, u32>,
    /// Sources by namespace and interface.
    pub sources: BTreeMap<(String, String), SourcePlan>,
}

/// Configuration of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourcePlan {
    /// One segment in this many carries a trace.
    pub every: u32,
    /// Number of nodes that fit in a trace.
    pub nodes: u8,
}

/// Bytes of a trace with room for `nodes` as an extension header: 16, plus 36 per node, rounded up to 8n.
#[must_use]
pub fn trace_bytes(nodes: u8) -> u32 {
    (16 + 36 * u32::from(nodes)).next_multiple_of(8)
}

/// Maximum number of nodes in a trace of the kernel's source, whose stack is small.
const MOST_NODES: u8 = 4;

impl TelemetryPlan {
    pub(super) fn of(case: &Case) -> Result<Self> {
        let mut plan = Self::default();
        let mut rooms: BTreeMap<CongestionControl, (&String, Option<u8>)> = BTreeMap::new();
        for (name, flow) in case.flows.iter().filter(|(_, flow)| flow.traffic.is_tcp()) {
            let Some(cc) = flow.traffic.congestion_control() else { continue };
            if cc.reads_reports() {
                plan.controllers.insert(cc);
            }
            if flow.ipv6 {
                let nodes = flow.telemetry.as_ref().map(|t| t.nodes);
                let (other, of) = rooms.entry(cc).or_insert((name, nodes));
                if *of != nodes {
                    bail!(Unable(format!(
                        "flow.{name} and flow.{other}: in namespaces all flows over IPv6 with {cc} have room for the same \
                         traces (telemetry.nodes), or none has"
                    )));
                }
            }
            let Some(telemetry) = &flow.telemetry else { continue };
            if telemetry.nodes > MOST_NODES {
                bail!(Unable(format!(
                    "flow.{name}.telemetry.nodes = {}: a trace of the kernel's source has room for {MOST_NODES}",
                    telemetry.nodes
                )));
            }
            if telemetry.broker_interval_ms.is_some() {
                bail!(Unable(format!(
                    "flow.{name}.telemetry.broker_interval_ms: the kernel's controllers hear of reports by ACKs"
                )));
            }
            fits_the_tunnel(name, flow, telemetry.nodes)?;
            plan.flows.insert(name.clone());
            plan.room.insert(cc, trace_bytes(telemetry.nodes));
            let bounds = plan.bounds.get_or_insert_with(|| telemetry.clone());
            if !same_bounds(bounds, telemetry) {
                bail!(Unable(format!(
                    "flow.{name}.telemetry: in namespaces all flows have the same increment, growth_cap, ceiling_mbps and \
                     stale_rtts"
                )));
            }
        }
        Ok(plan)
    }
}

/// Checks that packets with a trace fit in the tunnel, and that the path carries IPv6's minimum of 1280 bytes.
fn fits_the_tunnel(name: &str, flow: &Flow, nodes: u8) -> Result<()> {
    let least = IPV6_MTU + trace_bytes(nodes);
    if flow.via == Via::Atsss && least > TUNNEL_MTU {
        bail!(Unable(format!(
            "flow.{name}.telemetry.nodes = {nodes}: in namespaces the tunnel carries {TUNNEL_MTU} bytes, and a trace for so many \
             nodes needs {least}; 2 fit"
        )));
    }
    Ok(())
}

fn same_bounds(a: &Telemetry, b: &Telemetry) -> bool {
    let of = |t: &Telemetry| (t.increment, t.growth_cap, t.stale_rtts, t.ceiling_mbps.to_bits());
    of(a) == of(b)
}

impl Build<'_> {
    /// Lays out the sources of traces.
    pub(super) fn sources(&mut self) -> Result<()> {
        let case = self.case;
        for (name, flow) in &case.flows {
            let Some(telemetry) = &flow.telemetry else { continue };
            let Some(place) = self.leaves_by(flow) else { continue };
            let source = SourcePlan { every: telemetry.every, nodes: telemetry.nodes };
            let known = *self.plan.telemetry.sources.entry(place).or_insert(source);
            if known != source {
                bail!(Unable(format!(
                    "flow.{name}.telemetry: in namespaces all flows that leave a host by one interface have the same `every` \
                     and `nodes`"
                )));
            }
        }
        Ok(())
    }

    /// Namespace and interface by which the data of a flow leaves its sender.
    fn leaves_by(&self, flow: &Flow) -> Option<(String, String)> {
        let ue = self.case.ues.get(&flow.ue)?;
        if flow.traffic.is_upload() {
            let access = match &flow.via {
                Via::Direct(access) => access,
                Via::Atsss => return Some((self.names.ue(&flow.ue), TUNNEL.to_owned())),
                _ => return None,
            };
            let index = ue.accesses.iter().position(|a| a.name == *access)?;
            return Some((self.names.ue(&flow.ue), self.interface_of(&flow.ue, index)));
        }
        let p = super::position(&self.case.upfs, &ue.upf);
        Some((self.names.server(&flow.server), format!("u{p}")))
    }
}
