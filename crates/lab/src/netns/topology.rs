//! Creates the network of a [`Plan`] and runs its links.

use super::plan::{EmulatedLink, End, Plan, Role};
use super::program::{self, Program};
use super::space::Space;
use super::stop::Stop;
use crate::scenario::model::Link;
use anabranch_kern::interface;
use anabranch_link::{Direction, LinkPatch, LinkSpec};
use anyhow::{Context, Result, anyhow, bail};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Maximum time until a program is ready.
pub const READY: Duration = Duration::from_secs(20);
/// Timeout of a command to a link.
const ANSWER: Duration = Duration::from_secs(5);

/// Programs of the network itself.
pub const PROGRAMS: &[(&str, &str)] = &[("ip", "iproute2"), ("ethtool", "ethtool")];

/// A network that exists. Its processes end when this is dropped.
#[derive(Debug)]
pub struct Network {
    /// Namespaces by name.
    pub spaces: BTreeMap<String, Space>,
    /// Access links by their name in the scenario.
    pub links: BTreeMap<String, RunningLink>,
    /// Links of servers.
    server_links: Vec<RunningLink>,
}

impl Network {
    /// Creates everything and waits until the links run.
    ///
    /// # Errors
    /// The first step that fails.
    pub fn make(plan: &Plan, seed: u64, folder: &Path, stop: &Stop) -> Result<Self> {
        let mut spaces = BTreeMap::new();
        for (name, role) in &plan.spaces {
            let space = Space::create(name)?;
            space.sysctl(parameters(*role))?;
            spaces.insert(name.clone(), space);
        }
        let mut network = Self { spaces, links: BTreeMap::new(), server_links: Vec::new() };
        network.interfaces(plan)?;
        for (name, lines) in &plan.setup {
            network.space(name)?.ip(lines)?;
        }
        let anabranch = program::anabranch()?;
        let mut running = Vec::new();
        for (number, link) in plan.links.iter().enumerate() {
            let space = network.space(&link.space)?;
            let seed = seed.wrapping_add(number as u64);
            let peers = plan.veths.iter().filter_map(|[a, b]| match &link.space {
                space if *space == a.space => Some(b.clone()),
                space if *space == b.space => Some(a.clone()),
                _ => None,
            });
            let peers = peers.collect();
            running.push(RunningLink::start(&anabranch, space, link, peers, seed, folder)?);
        }
        for (mut one, link) in running.into_iter().zip(&plan.links) {
            one.wait_ready(stop)?;
            match &link.name {
                Some(name) => drop(network.links.insert(name.clone(), one)),
                None => network.server_links.push(one),
            }
        }
        Ok(network)
    }

    /// A namespace by name.
    ///
    /// # Errors
    /// There is no namespace of this name.
    pub fn space(&self, name: &str) -> Result<&Space> {
        self.spaces.get(name).ok_or_else(|| anyhow!("no namespace {name}"))
    }

    /// An access link by its name in the scenario.
    ///
    /// # Errors
    /// There is no link of this name.
    pub fn link(&mut self, name: &str) -> Result<&mut RunningLink> {
        self.links.get_mut(name).ok_or_else(|| anyhow!("no link {name}"))
    }

    /// Takes the carrier of an access link away from the hosts at its ends.
    ///
    /// Runs in parallel would delay each other's reports of it; see [`interface::has_carrier`].
    ///
    /// # Errors
    /// There is no link of this name, or it refuses.
    pub fn carrier_down(&mut self, name: &str, direction: Direction) -> Result<()> {
        let link = self.link(name)?;
        link.set(direction, &LinkPatch { up: Some(false), ..LinkPatch::default() })?;
        for end in link.peers.clone() {
            let query = || interface::has_carrier(&end.interface).with_context(|| end.interface.clone());
            self.space(&end.space)?.enter(query)?;
        }
        Ok(())
    }

    fn interfaces(&self, plan: &Plan) -> Result<()> {
        let lines: Vec<String> = plan
            .veths
            .iter()
            .map(|[a, b]| {
                format!(
                    "link add name {} netns {} address {} type veth peer name {} netns {} address {}",
                    a.interface, a.space, a.mac, b.interface, b.space, b.mac
                )
            })
            .collect();
        let Some(first) = self.spaces.values().next() else { return Ok(()) };
        first.ip(&lines.join("\n"))?;
        for end in plan.veths.iter().flatten().filter(|e| e.plain) {
            let mut ethtool = program::command("ethtool");
            ethtool.args(["-K", &end.interface, "tso", "off", "gso", "off", "gro", "off", "tx", "off"]);
            self.space(&end.space)?.output(&mut ethtool)?;
        }
        Ok(())
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.links.clear();
        self.server_links.clear();
        for (_, space) in std::mem::take(&mut self.spaces) {
            space.remove();
        }
    }
}

/// Kernel parameters of a namespace, set before it has interfaces.
fn parameters(role: Role) -> &'static [(&'static str, &'static str)] {
    match role {
        // Only a wire: it must not send packets of its own.
        Role::Link => &[("net/ipv6/conf/default/disable_ipv6", "1")],
        Role::Upf | Role::Lwip => &[
            ("net/ipv4/ip_forward", "1"),
            ("net/ipv4/conf/all/rp_filter", "0"),
            ("net/ipv4/conf/default/rp_filter", "0"),
            ("net/ipv6/conf/all/forwarding", "1"),
            ("net/ipv6/conf/default/accept_dad", "0"),
        ],
        Role::Ue | Role::Server => &[
            ("net/ipv4/conf/all/rp_filter", "0"),
            ("net/ipv4/conf/default/rp_filter", "0"),
            ("net/ipv6/conf/default/accept_dad", "0"),
            ("net/ipv6/conf/default/accept_ra", "0"),
            ("net/ipv6/conf/default/router_solicitations", "0"),
            // A connection must not start with metrics of an earlier one.
            ("net/ipv4/tcp_no_metrics_save", "1"),
            ("net/mptcp/enabled", "1"),
        ],
    }
}

/// A running `anabranch link`.
#[derive(Debug)]
pub struct RunningLink {
    program: Program,
    path: PathBuf,
    control: Option<LinkControl>,
    /// The interfaces of the hosts at its ends.
    peers: Vec<End>,
}

impl RunningLink {
    fn start(
        anabranch: &Path,
        space: &Space,
        link: &EmulatedLink,
        peers: Vec<End>,
        seed: u64,
        folder: &Path,
    ) -> Result<Self> {
        let name = &link.space;
        let path = folder.join(format!("{name}.sock"));
        let keys = folder.join(format!("{name}.toml"));
        std::fs::write(&keys, file(&link.link)?).with_context(|| keys.display().to_string())?;
        let mut command = std::process::Command::new(anabranch);
        command.arg("link");
        for (flag, interfaces) in ["--a", "--b"].iter().zip(&link.sides) {
            for interface in interfaces {
                command.args([flag, interface.as_str()]);
            }
        }
        command.args(["--seed", &seed.to_string()]);
        command.arg("--file").arg(&keys).arg("--control").arg(&path);
        let program = Program::start(space, name, &mut command, folder, None)?;
        Ok(Self { program, path, control: None, peers })
    }

    fn wait_ready(&mut self, stop: &Stop) -> Result<()> {
        let path = self.path.clone();
        self.program.wait_ready(READY, stop, || UnixStream::connect(&path).is_ok())?;
        self.control = Some(self.connect()?);
        Ok(())
    }

    /// Another connection to it, for use by another thread.
    ///
    /// # Errors
    /// The link does not answer.
    pub fn connect(&self) -> Result<LinkControl> {
        let mut control = LinkControl::open(self.program.name(), &self.path)?;
        control.stats()?;
        Ok(control)
    }

    /// Changes keys of one direction (A to B is up) or both.
    ///
    /// # Errors
    /// The link does not answer, or refuses.
    pub fn set(&mut self, direction: Direction, change: &LinkPatch) -> Result<()> {
        let tail = self.program.log_tail();
        match &mut self.control {
            Some(control) => control.set(direction, change).context(tail),
            None => bail!("{} is not ready", self.program.name()),
        }
    }
}

/// A connection to the control socket of an `anabranch link`.
#[derive(Debug)]
pub struct LinkControl {
    name: String,
    connection: BufReader<UnixStream>,
}

impl LinkControl {
    fn open(name: &str, path: &Path) -> Result<Self> {
        let stream = UnixStream::connect(path).with_context(|| format!("{name} does not listen"))?;
        stream.set_read_timeout(Some(ANSWER)).context("control socket")?;
        stream.set_write_timeout(Some(ANSWER)).context("control socket")?;
        Ok(Self { name: name.to_owned(), connection: BufReader::new(stream) })
    }

    fn set(&mut self, direction: Direction, change: &LinkPatch) -> Result<()> {
        self.request(&json!({ "op": "set", "direction": direction, "change": change })).map(drop)
    }

    /// The counters of the link.
    ///
    /// # Errors
    /// The link does not answer.
    pub fn stats(&mut self) -> Result<Value> {
        self.request(&json!({ "op": "stats" }))
    }

    fn request(&mut self, request: &Value) -> Result<Value> {
        let name = &self.name;
        let mut line = String::new();
        let asked = self.connection.get_mut().write_all(format!("{request}\n").as_bytes());
        match asked.and_then(|()| self.connection.read_line(&mut line)) {
            Ok(n) if n > 0 => {}
            _ => bail!("{name} does not answer"),
        }
        let answer: Value = serde_json::from_str(&line).with_context(|| format!("answer of {name}"))?;
        match answer.get("error") {
            Some(error) => bail!("{name}: {error}"),
            None => Ok(answer),
        }
    }
}

/// The configuration file of an `anabranch link`.
fn file(link: &Link) -> Result<String> {
    let table = |direction: LinkSpec| toml::Value::try_from(direction).context("link as TOML");
    let mut file = toml::Table::new();
    file.insert("a_to_b".into(), table(link.up.spec())?);
    file.insert("b_to_a".into(), table(link.down.spec())?);
    toml::to_string(&file).context("link as TOML")
}
