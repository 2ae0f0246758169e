//! Slices of a scenario: a slice manager, UEs that use it, and the policy results for the scenario's traffic. There is no other
//! configuration: the slice manager's data and the UE's policy determine the path of a flow.
//!
//! ```text
//!  [slice.x] ─▶ anabranch slice-manager ─ USCI ─▶ anabranch ue ─▶ rules, tables, windows
//!                                                   ▲    │
//!                                    flow's `needs` ─┘    └─▶ protocol, mark, pacing ─▶ the flow's socket
//! ```

use super::agent::Agent;
use super::plan::{Plan, UePlan};
use super::program::{self, Program};
use super::space::Space;
use super::stop::Stop;
use super::topology::{Network, READY};
use super::traffic::Setup;
use super::tunnels::{list, table};
use crate::scenario::file::Slice;
use crate::scenario::model::{Case, Flow, Via};
use crate::slices::{ACCESS, FIRST_MARK, capacity_bps, of_ue, profile, question};
use anabranch_selection::Protocol;
use anabranch_selection::plan::{Action, Answer};
use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use toml::Table;

/// File with its token, in the folder of the run.
const TOKEN: &str = "slices.token";

/// A running slice manager with the slices of the scenario. It ends when this is dropped.
#[derive(Debug)]
pub struct Manager {
    program: Program,
    socket: PathBuf,
    folder: PathBuf,
}

/// Whether a UE has flows that are placed by its policy.
#[must_use]
pub fn uses(case: &Case, ue: &str) -> bool {
    case.flows.values().any(|flow| flow.ue == ue && flow.via == Via::Slices)
}

impl Manager {
    /// Starts the slice manager if a UE needs it, creates the slices, and assigns those with a suitable access to each such UE.
    ///
    /// # Errors
    /// It does not start, or refuses a slice.
    pub fn start(
        case: &Case,
        plan: &Plan,
        network: &Network,
        folder: &Path,
        stop: &Stop,
    ) -> Result<Option<Self>> {
        let Some(first) = case.ues.keys().find(|ue| uses(case, ue)) else { return Ok(None) };
        let (config, socket) = (folder.join("slice-manager.toml"), folder.join("slice-manager.sock"));
        let text = format!(
            "[manager]\nname = \"lab\"\ndatabase = \"sqlite:{}\"\n[api]\nlisten = \"unix:{}\"\n\
             [[access]]\nname = \"{ACCESS}\"\ndownlink_bps = {2}\nuplink_bps = {2}\n",
            folder.join("slices.db").display(),
            socket.display(),
            capacity_bps(case),
        );
        std::fs::write(&config, text).with_context(|| config.display().to_string())?;
        let mut command = program::prompt(program::anabranch()?);
        command.arg("slice-manager").arg("--config").arg(&config);
        // Its socket is reachable from any namespace.
        let space = network.space(&plan.ues[first].space)?;
        let program = Program::start(space, "slice-manager", &mut command, folder, None)?;
        let mut manager = Self { program, socket, folder: folder.to_owned() };
        let agent = Agent::new("slice-manager", &manager.socket);
        manager.program.wait_ready(READY, stop, || agent.request("GET", "/v1/accesses", "").is_ok())?;
        let mut ids = BTreeMap::new();
        for (name, slice) in &case.slices {
            let made: CreatedSlice =
                serde_json::from_str(&agent.request("POST", "/v1/slices", &order(name, slice))?)
                    .context("the slice manager's answer")?;
            ids.insert(name, made.id);
        }
        let running = || {
            let list = agent.request("GET", "/v1/slices?limit=1000", "").unwrap_or_default();
            let list: Value = serde_json::from_str(&list).unwrap_or_default();
            let all = list["slices"].as_array();
            all.is_some_and(|all| all.len() == ids.len() && all.iter().all(|s| s["state"] == "Running"))
        };
        manager.program.wait_ready(READY, stop, running).context("slices do not come to run")?;
        for ue in case.ues.keys().filter(|ue| uses(case, ue)) {
            let held: Vec<&String> = of_ue(case, ue).map(|(name, ..)| &ids[name]).collect();
            let body = json!({ "slices": held }).to_string();
            let told: UeToken =
                serde_json::from_str(&agent.request("PUT", &format!("/v1/ues/{ue}"), &body)?)
                    .context("the slice manager's answer")?;
            let path = manager.token(&plan.ues[ue]);
            program::write_secret(&path, &told.token)?;
        }
        Ok(Some(manager))
    }

    fn token(&self, plan: &UePlan) -> PathBuf {
        self.folder.join(format!("{}.{TOKEN}", plan.space))
    }

    /// Adds the slices part to the configuration of a UE's agent.
    pub fn configure(&self, case: &Case, ue: &str, plan: &UePlan, file: &mut Table) {
        if !uses(case, ue) {
            return;
        }
        let section = table([
            ("manager", format!("unix:{}", self.socket.display()).into()),
            ("token_file", self.token(plan).display().to_string().into()),
            // Links have a fixed capacity, so a guarantee cannot grow.
            ("ask_for_more", false.into()),
        ]);
        file.insert("slices".into(), section.into());
        let bindings = of_ue(case, ue).map(|(name, slice, index)| {
            let access = &plan.accesses[index];
            let number = i64::from(FIRST_MARK) + 2 * index as i64;
            table([
                ("slice", name.clone().into()),
                ("interface", access.interface.clone().into()),
                ("mark", number.into()),
                ("table", number.into()),
                ("gateway", access.gateway.to_string().into()),
                ("alpha", slice.alpha.into()),
            ])
        });
        file.insert("slice".into(), list(bindings));
    }

    /// Waits until an agent has received its slices.
    ///
    /// # Errors
    /// It does not in time.
    pub fn wait(
        &self,
        case: &Case,
        ue: &str,
        program: &mut Program,
        agent: &Agent,
        stop: &Stop,
    ) -> Result<()> {
        let wanted: BTreeSet<&String> = of_ue(case, ue).map(|(name, ..)| name).collect();
        let heard = || {
            let known: BTreeMap<String, Value> = agent
                .request("GET", "/connections/slices", "")
                .ok()
                .and_then(|text| serde_json::from_str(&text).ok())
                .unwrap_or_default();
            wanted.iter().all(|name| known.contains_key(*name))
        };
        program.wait_ready(READY, stop, heard).with_context(|| format!("UE {ue} is not told of its slices"))
    }

    /// Checks that it is running.
    ///
    /// # Errors
    /// It has ended; with the end of its log.
    pub fn check(&mut self) -> Result<()> {
        if let Some(status) = self.program.ended()? {
            bail!("the slice manager ended ({status}): {}", self.program.log_tail());
        }
        Ok(())
    }
}

/// Routes of a UE to the servers if its policy says nothing else: over its first access.
#[must_use]
pub fn routes(plan: &UePlan) -> String {
    let first = plan.accesses.first();
    first.map_or_else(String::new, |access| {
        let (gateway, interface) = (access.gateway, &access.interface);
        format!("route add 10.3.0.0/16 via {gateway} dev {interface} congctl cubic")
    })
}

/// The choice of a UE's policy for a flow.
#[derive(Debug, Clone, Default)]
pub struct Choice {
    /// Maximum number of paths.
    pub paths: usize,
    /// Whether to use Multipath TCP.
    pub mptcp: bool,
    /// Initial window, segments.
    pub window: Option<u32>,
    /// Source address of its socket.
    pub local: Option<IpAddr>,
    /// Options of its socket.
    pub setup: Setup,
}

impl Choice {
    /// Binds a program that sets no socket options: the mark of the choice becomes a rule for its destination, like the traffic
    /// descriptor of a URSP rule.
    ///
    /// # Errors
    /// The choice is Multipath TCP, which the program would have to request itself.
    pub fn bind_program(&self, space: &Space, server: std::net::SocketAddr, protocol: &str) -> Result<()> {
        ensure!(!self.mptcp, "the policy chose Multipath TCP, which its program does not speak");
        let Some(mark) = self.setup.mark else { return Ok(()) };
        let (ip, port) = (server.ip(), server.port());
        // The mark and the table of a slice have the same number here.
        space.ip(&format!("rule add to {ip} ipproto {protocol} dport {port} table {mark}"))
    }
}

#[derive(Deserialize)]
struct CreatedSlice {
    id: String,
}

#[derive(Deserialize)]
struct UeToken {
    token: String,
}

/// Asks a UE's agent for a connection to `server`.
///
/// # Errors
/// The policy refuses; with the property.
pub fn choose(agent: &Agent, flow: &Flow, server: std::net::SocketAddr) -> Result<Choice> {
    let tcp = flow.traffic.is_tcp();
    let body = question(flow, server).to_string();
    let answer = agent.request("POST", "/connections/select", &body).context("the UE's policy refuses")?;
    let answer: Answer = serde_json::from_str(&answer).context("the answer to POST /connections/select")?;
    let best = answer.candidates.into_iter().next().context("no candidate")?;
    let first = best.candidate;
    let mptcp = first.protocol == Protocol::Mptcp;
    let mut choice = Choice { paths: first.paths.len(), mptcp, ..Choice::default() };
    ensure!(!tcp || mptcp || first.protocol == Protocol::Tcp, "it chose {}", first.protocol);
    for action in best.plan {
        match action {
            Action::Mark { mark, .. } => choice.setup.mark = Some(mark),
            Action::LocalAddress { address, .. } => choice.local = Some(address),
            Action::Device { interface } => choice.setup.interface = Some(interface),
            Action::InitialWindow { route_bucket, .. } => choice.window = Some(route_bucket),
            Action::CongestionControl { name } => choice.setup.congestion_control = Some(name),
            Action::Pacing { bps } if tcp && !choice.mptcp => choice.setup.pacing_bps = Some(bps),
            Action::Dscp { dscp } => choice.setup.dscp = Some(dscp),
            // The first is implied by the protocol, the second was done by the agent, and the rate of datagrams is that of the traffic.
            Action::Mptcp | Action::MptcpEndpoint { .. } | Action::Pacing { .. } => {}
            Action::Unknown => {
                bail!("the agent is newer than this program: it names a step that is not known here")
            }
        }
    }
    Ok(choice)
}

/// A slice as a request to the slice manager.
fn order(name: &str, slice: &Slice) -> String {
    json!({"name": name, "serviceProfile": profile(slice)}).to_string()
}
