//! UEs and UPFs of a scenario: keys, configuration files, processes, and waiting for connections.

use super::agent::Agent;
use super::plan::{AccessPlan, Plan, TUNNEL, UePlan, UpfPlan};
use super::program::{self, Program};
use super::slices::{self, Manager};
use super::stop::Stop;
use super::topology::{Network, READY};
use crate::backend::Unable;
use crate::scenario::model::{Case, Ue, Via};
use anabranch_atsss::crypto::PrivateKey;
use anabranch_steer::{Functionality, Rule, SteeringMode, load_balance};
use anyhow::{Context, Result, bail};
use rand_chacha::ChaCha20Rng;
use rand_core::SeedableRng;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;
use toml::{Table, Value};

/// Delay between the moment when all paths are up and the start of a run with an autonomous rule. In virtual time it is up to two
/// seconds. In both backends, both ends have then measured their idle paths.
const MEASURED: Duration = Duration::from_secs(1);

/// How packets enter the tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Device {
    /// A TUN interface.
    Tun,
    /// A veth pair and a packet socket.
    Packet,
}

impl Device {
    /// TUN if this user may use it.
    #[must_use]
    pub fn best() -> Self {
        let tun = std::fs::File::options().read(true).write(true).open("/dev/net/tun");
        if tun.is_ok() { Self::Tun } else { Self::Packet }
    }

    /// Its name in configuration files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tun => "tun",
            Self::Packet => "packet",
        }
    }
}

/// Running tunnel ends. They end when this is dropped, UEs first.
#[derive(Debug, Default)]
pub struct Tunnels {
    /// UEs by name.
    pub ues: BTreeMap<String, Running>,
    /// UPFs by name.
    pub upfs: BTreeMap<String, Running>,
    /// The slice manager of the UEs.
    manager: Option<Manager>,
}

/// A running tunnel end.
#[derive(Debug)]
pub struct Running {
    /// The process.
    pub program: Program,
    /// Its REST interface.
    pub agent: Agent,
}

impl Tunnels {
    /// Starts the UEs with traffic for the tunnel, and their UPFs; waits until every path is up and sets the routes.
    ///
    /// # Errors
    /// A tunnel end does not start or does not connect.
    /// One does not start or does not connect.
    pub fn start(
        case: &Case,
        plan: &Plan,
        network: &Network,
        seed: u64,
        device: Device,
        folder: &Path,
        stop: &Stop,
    ) -> Result<Self> {
        let users: BTreeSet<&String> = case
            .flows
            .values()
            .filter(|f| matches!(f.via, Via::Atsss | Via::Slices))
            .map(|f| &f.ue)
            .collect();
        let mut tunnels = Self::default();
        if users.is_empty() {
            return Ok(tunnels);
        }
        let manager = Manager::start(case, plan, network, folder, stop)?;
        let mut rng = ChaCha20Rng::seed_from_u64(seed);
        let ue_keys: BTreeMap<&String, PrivateKey> =
            users.iter().map(|ue| (*ue, PrivateKey::generate(&mut rng))).collect();
        let start = Start { case, plan, network, device, folder, stop, anabranch: program::anabranch()? };
        let mut upf_keys = BTreeMap::new();
        for (name, of) in &plan.upfs {
            if !of.ues.iter().any(|ue| users.contains(ue)) {
                continue;
            }
            let key = PrivateKey::generate(&mut rng);
            let known = ue_keys.iter().filter(|(ue, _)| of.ues.contains(ue)).map(|(ue, key)| (*ue, key));
            let file = start.upf_file(name, of, known)?;
            let running = start.run("upf", &of.space, &file, &key)?;
            tunnels.upfs.insert(name.clone(), running);
            upf_keys.insert(name, key);
        }
        for (ue, key) in &ue_keys {
            let (Some(of), Some(upf)) = (plan.ues.get(*ue), upf_keys.get(&case.ues[*ue].upf)) else {
                bail!("UE {ue} has no UPF");
            };
            let mut file = start.ue_file(ue, of, &case.ues[*ue], upf)?;
            if let Some(manager) = &manager {
                manager.configure(case, ue, of, &mut file);
            }
            tunnels.ues.insert((*ue).clone(), start.run("ue", &of.space, &file, key)?);
        }
        for (ue, running) in &mut tunnels.ues {
            let accesses = case.ues[ue].accesses.len();
            let agent = running.agent.clone();
            let connected =
                || agent.paths().is_ok_and(|paths| paths.iter().filter(|p| p.up).count() == accesses);
            running
                .program
                .wait_ready(READY, stop, connected)
                .with_context(|| format!("UE {ue} does not connect over all its accesses"))?;
            if has_lane(&case.ues[ue].rules) {
                let runs = || agent.tcp_lane().is_ok_and(|lane| lane.state == "runs");
                running
                    .program
                    .wait_ready(READY, stop, runs)
                    .with_context(|| format!("TCP lane of UE {ue}"))?;
            }
            let of = &plan.ues[ue];
            let space = network.space(&of.space)?;
            match manager.as_ref().filter(|_| slices::uses(case, ue)) {
                Some(manager) => {
                    manager.wait(case, ue, &mut running.program, &running.agent, stop)?;
                    space.ip(&slices::routes(of))?;
                }
                None => space.ip(&of.tunnel_routes)?,
            }
        }
        tunnels.manager = manager;
        if users.iter().any(|ue| is_autonomous(&case.ues[*ue].rules)) {
            stop.sleep(MEASURED);
        }
        Ok(tunnels)
    }

    /// All tunnel ends, UEs first.
    pub fn all(&self) -> impl Iterator<Item = (&String, &Running)> {
        self.ues.iter().chain(&self.upfs)
    }

    /// Checks that all tunnel ends are running.
    ///
    /// # Errors
    /// The one that ended, with the end of its log.
    pub fn check(&mut self) -> Result<()> {
        for running in self.ues.values_mut().chain(self.upfs.values_mut()) {
            if let Some(status) = running.program.ended()? {
                bail!("{} ended ({status}): {}", running.program.name(), running.program.log_tail());
            }
        }
        self.manager.as_mut().map_or(Ok(()), Manager::check)
    }
}

impl Drop for Tunnels {
    fn drop(&mut self) {
        for running in self.ues.values_mut().chain(self.upfs.values_mut()) {
            running.program.signal(nix::sys::signal::Signal::SIGTERM);
        }
        for running in self.ues.values_mut().chain(self.upfs.values_mut()) {
            running.program.stop();
        }
    }
}

struct Start<'a> {
    case: &'a Case,
    plan: &'a Plan,
    network: &'a Network,
    device: Device,
    folder: &'a Path,
    stop: &'a Stop,
    anabranch: PathBuf,
}

impl Start<'_> {
    /// Runs `part` with the configuration `file` and waits until it answers.
    fn run(&self, part: &str, space: &str, file: &Table, key: &PrivateKey) -> Result<Running> {
        let name = format!("{part}-{space}");
        let path = self.path(space, "toml");
        let text = toml::to_string(file).context("configuration")?;
        std::fs::write(&path, text).with_context(|| path.display().to_string())?;
        program::write_secret(&self.path(space, "key"), &key.to_base64())?;
        let mut command = program::prompt(&self.anabranch);
        command.arg(part).arg("--config").arg(&path);
        let mut program = Program::start(self.network.space(space)?, &name, &mut command, self.folder, None)?;
        let agent = Agent::new(&name, &self.path(space, "sock"));
        program.wait_ready(READY, self.stop, || agent.status().is_ok())?;
        Ok(Running { program, agent })
    }

    fn ue_file(&self, name: &str, plan: &UePlan, ue: &Ue, upf: &PrivateKey) -> Result<Table> {
        let access = |(plan, of): (&AccessPlan, &crate::scenario::model::Access)| {
            table([
                ("name", of.name.clone().into()),
                ("interface", plan.interface.clone().into()),
                ("remote", format!("{}:{}", plan.gateway, plan.port).into()),
                ("security", of.security.to_string().into()),
            ])
        };
        let mut file = table([
            (
                "ue",
                table([
                    ("name", name.into()),
                    ("private_key_file", self.file(&plan.space, "key")),
                    ("state_file", self.file(&plan.space, "state.json")),
                ])
                .into(),
            ),
            ("upf", table([("public_key", upf.public().to_string().into())]).into()),
            ("access", list(plan.accesses.iter().zip(&ue.accesses).map(access))),
            ("device", self.device_table().into()),
            ("rule", Value::try_from(&ue.rules).context("rules")?),
            ("api", self.api(&plan.space).into()),
        ]);
        add_ioam(&mut file, ue.ioam_node);
        if has_lane(&ue.rules) {
            file.insert("tcp_lane".to_owned(), Table::new().into());
        }
        Ok(file)
    }

    fn upf_file<'k>(
        &self,
        name: &str,
        plan: &UpfPlan,
        ues: impl Iterator<Item = (&'k String, &'k PrivateKey)>,
    ) -> Result<Table> {
        let of = self.case.upfs.get(name).cloned().unwrap_or_default();
        let queues = of.reorder_queues;
        if queues != crate::scenario::file::Upf::default().reorder_queues {
            bail!(Unable(format!(
                "upf.{name}.reorder_queues = {queues}: `anabranch upf` has a fixed number"
            )));
        }
        // An access name is plain at the UPF if it is plain at one of the UEs; each UE decides for itself.
        let security = |access: &String| {
            let plain = self
                .case
                .ues
                .values()
                .flat_map(|u| &u.accesses)
                .any(|a| a.name == *access && a.security == crate::scenario::file::Security::Plain);
            if plain { "plain" } else { "secure" }
        };
        let access = |(access, port): (&String, &u16)| {
            table([
                ("name", access.clone().into()),
                ("listen", format!("0.0.0.0:{port}").into()),
                ("security", security(access).into()),
            ])
        };
        let mut known = Vec::new();
        for (ue, key) in ues {
            let of = &self.plan.ues[ue];
            known.push(table([
                ("name", ue.clone().into()),
                ("public_key", key.public().to_string().into()),
                ("address_v4", of.inner.to_string().into()),
                ("address_v6", of.inner6.clone().into()),
            ]));
        }
        let upf = table([
            ("private_key_file", self.file(&plan.space, "key")),
            ("state_file", self.file(&plan.space, "state.json")),
        ]);
        let pool = table([("v4", plan.pool.clone().into()), ("v6", plan.pool6.clone().into())]);
        let mut file = table([
            ("upf", upf.into()),
            ("access", list(plan.accesses.iter().map(access))),
            ("device", self.device_table().into()),
            ("n6", n6()),
            ("pool", pool.into()),
            ("ue", list(known.into_iter())),
            ("api", self.api(&plan.space).into()),
        ]);
        add_ioam(&mut file, of.ioam_node);
        if self.case.ues.values().any(|ue| has_lane(&ue.rules)) {
            file.insert("tcp_lane".to_owned(), Table::new().into());
        }
        Ok(file)
    }

    fn device_table(&self) -> Table {
        table([("kind", self.device.name().into()), ("name", TUNNEL.into())])
    }

    fn api(&self, space: &str) -> Table {
        table([("listen", format!("unix:{}", self.path(space, "sock").display()).into())])
    }

    fn file(&self, space: &str, ending: &str) -> Value {
        self.path(space, ending).display().to_string().into()
    }

    fn path(&self, space: &str, ending: &str) -> PathBuf {
        self.folder.join(format!("{space}.{ending}"))
    }
}

pub(super) fn has_lane(rules: &[Rule]) -> bool {
    rules.iter().any(|rule| rule.functionality == Functionality::Mptcp)
}

fn is_autonomous(rules: &[Rule]) -> bool {
    let autonomous = |mode: &SteeringMode| {
        matches!(mode, SteeringMode::LoadBalance(load_balance::Params { autonomous: true, .. }))
    };
    rules.iter().any(|rule| autonomous(&rule.steering))
}

/// N6 settings: servers of scenarios have private addresses, and UEs may communicate with each other.
fn n6() -> toml::Value {
    let open = ["0.0.0.0/0", "::/0"].map(toml::Value::from).to_vec();
    table([("mode", "routed".into()), ("open", open.into()), ("ue_to_ue", true.into())]).into()
}

/// Adds the `[ioam]` table of a node.
fn add_ioam(file: &mut Table, node_id: Option<u32>) {
    if let Some(node_id) = node_id {
        file.insert("ioam".to_owned(), table([("node_id", i64::from(node_id).into())]).into());
    }
}

pub(super) fn table<const N: usize>(entries: [(&str, Value); N]) -> Table {
    entries.into_iter().map(|(k, v)| (k.to_owned(), v)).collect()
}

pub(super) fn list(tables: impl Iterator<Item = Table>) -> Value {
    Value::Array(tables.map(Value::Table).collect())
}
