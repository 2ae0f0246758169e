//! LWIP nodes of a scenario: `anabranch lwip` between the namespace of the UPF and those of its legs, the configuration of the
//! UEs, and its observation.
//!
//! ```text
//!  upf                      lwip-<name>                                    UE
//!  lw0  10.64.0.0/16 ┄┄┄┄┄ ran  ─┬─ l0 10.1.0.1 ─ link or cell ─ lte  10.1.0.10, bearer 10.64.0.16
//!  x0   10.4.0.1 ───────── x  ───┴─ l1 10.1.1.1 ─ link ───────── wifi 10.1.1.10, Wi-Fi  10.64.0.17
//! ```
//!
//! Packets from the LTE leg enter the node. Packets from Wi-Fi that are not for the node are routed by `x`. At the UE, three
//! lines of nftables translate the Wi-Fi address of `10.64.0.0/16` to the bearer address.

use super::agent::{Agent, LwipNode};
use super::plan::{LwipPlan, Plan};
use super::program::{self, Program};
use super::stop::Stop;
use super::topology::{Network, READY};
use super::tunnels::Device;
use crate::backend::{Outcome, Unable};
use crate::scenario::Case;
use anabranch_lwip::UeConfig;
use anyhow::{Context, Result, anyhow, bail};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use toml::{Table, Value};

/// Running nodes. They end when this is dropped.
#[derive(Debug, Default)]
pub struct Lwips {
    running: BTreeMap<String, RunningNode>,
}

#[derive(Debug)]
struct RunningNode {
    program: Program,
    agent: Agent,
}

impl Lwips {
    /// Starts the nodes, waits until they are ready, configures the interfaces they created, and sets up address translation at
    /// the UEs.
    ///
    /// # Errors
    /// A node does not start; `nft` is missing.
    pub fn start(
        case: &Case,
        plan: &Plan,
        network: &Network,
        device: Device,
        folder: &Path,
        stop: &Stop,
    ) -> Result<Self> {
        let mut lwips = Self::default();
        if plan.lwips.is_empty() {
            return Ok(lwips);
        }
        program::require(&[("nft", "nftables")])?;
        let anabranch = program::anabranch()?;
        for node in &plan.lwips {
            let name = &node.space;
            let path = |ending: &str| folder.join(format!("{name}.{ending}"));
            let file =
                file(case, node, device, &path("sock")).with_context(|| format!("lwip {}", node.name))?;
            let text = toml::to_string(&file).context("configuration")?;
            std::fs::write(path("toml"), text).with_context(|| path("toml").display().to_string())?;
            let mut command = program::prompt(&anabranch);
            command.arg("lwip").arg("--config").arg(path("toml"));
            let program = Program::start(network.space(name)?, name, &mut command, folder, None)?;
            let agent = Agent::new(name, &path("sock"));
            lwips.running.insert(node.name.clone(), RunningNode { program, agent });
        }
        for running in lwips.running.values_mut() {
            let agent = running.agent.clone();
            running.program.wait_ready(READY, stop, || agent.status().is_ok())?;
        }
        for node in &plan.lwips {
            network.space(&node.space)?.ip(&node.setup)?;
            for ue in &node.ues {
                let config = folder.join(format!("{}.toml", node.space));
                let space = network.space(&ue.space)?;
                let mut rules = Command::new(&anabranch);
                rules.args(["lwip", "--ue-rules", &ue.name, "--ue-interface", &ue.wifi_interface]);
                let rules = space.output(rules.arg("--config").arg(config))?;
                let mut nft = program::command("nft");
                nft.args(["-f", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
                let mut child = space.spawn(&mut nft)?;
                if let Some(mut stdin) = child.stdin.take() {
                    // If `nft` stops reading, its exit status shows the reason.
                    let _ = stdin.write_all(rules.as_bytes());
                }
                let output = child.wait_with_output().context("nft")?;
                if !output.status.success() {
                    bail!("nft at {}: {}", ue.name, String::from_utf8_lossy(&output.stderr).trim());
                }
            }
        }
        Ok(lwips)
    }

    /// Checks that all nodes are running.
    ///
    /// # Errors
    /// The node that ended, with the end of its log.
    pub fn check(&mut self) -> Result<()> {
        for running in self.running.values_mut() {
            if let Some(status) = running.program.ended()? {
                bail!("{} ended ({status}): {}", running.program.name(), running.program.log_tail());
            }
        }
        Ok(())
    }

    /// Current metrics of the nodes.
    ///
    /// # Errors
    /// A node does not answer.
    pub fn measure(&self, out: &mut Outcome) -> Result<()> {
        for (name, running) in &self.running {
            measure(name, &running.agent.lwip()?, out);
        }
        Ok(())
    }
}

impl Drop for Lwips {
    fn drop(&mut self) {
        for running in self.running.values_mut() {
            running.program.stop();
        }
    }
}

/// The configuration file of a node.
fn file(case: &Case, plan: &LwipPlan, device: Device, socket: &Path) -> Result<Table> {
    let of = case.lwips.get(&plan.name).ok_or_else(|| anyhow!("is not in the scenario"))?;
    if of.ue_reorder_ms > 0.0 {
        bail!(Unable(format!("lwip.{}.ue_reorder_ms: the kernel of a UE does not reorder", plan.name)));
    }
    let ue = |ue: &super::plan::LwipUe| UeConfig {
        name: ue.name.clone(),
        addresses: vec![ue.bearer.into()],
        wifi: vec![ue.wifi.into()],
    };
    let node =
        of.config_at(plan.ues.iter().map(ue).collect(), &[plan.prober.into()]).map_err(anyhow::Error::msg)?;
    let entries = |entries: &[(&str, Value)]| -> Table {
        entries.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect()
    };
    let backhaul = entries(&[
        ("kind", device.name().into()),
        ("name", plan.backhaul.1.clone().into()),
        ("netns", plan.backhaul.0.clone().into()),
        ("routes", vec![Value::from(plan.prefix.clone())].into()),
    ]);
    let lte = entries(&[("kind", device.name().into()), ("name", super::plan::LWIP_RAN.into())]);
    let api = entries(&[("listen", format!("unix:{}", socket.display()).into())]);
    Ok(entries(&[
        ("lwip", entries(&[("name", plan.name.clone().into())]).into()),
        ("backhaul", backhaul.into()),
        ("lte", lte.into()),
        ("node", Value::try_from(&node).context("the node as TOML")?),
        ("api", api.into()),
    ]))
}

fn measure(name: &str, node: &LwipNode, out: &mut Outcome) {
    let mut put = |what: &str, value: f64| out.metrics.insert(format!("lwip.{name}.{what}"), value);
    let mut steered = [0, 0];
    for (leg, steered) in node.legs.iter().zip(&mut steered) {
        *steered = leg.steered;
        put(&format!("{}_packets", leg.leg), leg.steered as f64);
    }
    put("lte_percent", 100.0 * steered[0] as f64 / ((steered[0] + steered[1]) as f64).max(1.0));
    let acks = &node.acks;
    for (what, value) in [
        ("acks", acks.advances + acks.duplicates),
        ("duplicate_acks", acks.duplicates),
        ("let_through", acks.let_through),
        ("held_acks", acks.held),
        ("triple_duplicates", acks.triple_duplicates),
        ("superseded_acks", acks.superseded),
        ("released_acks", acks.released),
    ] {
        put(what, value as f64);
    }
    let by = |reason: &str| node.holds.ended.get(reason).copied().unwrap_or(0) as f64;
    let all = node.holds.counts.iter().sum::<u64>() as f64;
    put("holds", all);
    put("holds_filled", by("filled"));
    put("holds_timed_out", by("timer"));
    put("holds_ended_otherwise", all - by("filled") - by("timer"));
    put("hold_mean_ms", node.holds.sum_ms / all.max(1.0));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::plan;

    pub const TWO_LEGS: &str = r#"
title = "t"
[link.lte]
[link.wifi]
[lwip.node]
lte = "lte"
wifi = "wifi"
steering = { mode = "fixed_ratio", lte_percent = 30 }
dida = { hold = { mode = "fixed", ms = 20 } }
[ue.phone]
accesses = [{ name = "lte", link = "lte" }, { name = "wifi", link = "wifi" }]
[flow.f]
kind = "bulk_tcp"
via = "lwip"
"#;

    #[test]
    fn the_file_has_the_node_of_the_scenario() {
        let scenario = crate::scenario::parse(Path::new("t.toml"), TWO_LEGS, &[]).unwrap();
        let case = &scenario.cases[0];
        let plan = plan::lay_out(case).unwrap();
        let file = file(case, &plan.lwips[0], Device::Tun, Path::new("/x/s")).unwrap();
        let says = |path: &[&str], is: &str| {
            let value = path.iter().fold(Value::Table(file.clone()), |at, key| match key.parse::<usize>() {
                Ok(number) => at[number].clone(),
                Err(_) => at[*key].clone(),
            });
            assert_eq!(value.as_str(), Some(is), "{path:?}");
        };
        says(&["backhaul", "netns"], "upf");
        says(&["backhaul", "routes", "0"], "10.64.0.0/16");
        says(&["node", "ues", "0", "addresses", "0"], "10.64.0.16");
        says(&["node", "ues", "0", "wifi", "0"], "10.64.0.17");
        says(&["node", "steering", "mode"], "fixed_ratio");
        says(&["api", "listen"], "unix:/x/s");
    }

    #[test]
    fn options_of_the_virtual_backend_are_refused() {
        let text = TWO_LEGS.replace("wifi = \"wifi\"\n", "wifi = \"wifi\"\nue_reorder_ms = 5\n");
        let scenario = crate::scenario::parse(Path::new("t.toml"), &text, &[]).unwrap();
        let case = &scenario.cases[0];
        let plan = plan::lay_out(case).unwrap();
        let error = file(case, &plan.lwips[0], Device::Tun, Path::new("/x/s")).unwrap_err();
        assert!(error.downcast_ref::<Unable>().is_some(), "{error}");
    }
}
