//! `anabranch upf`: set-up, control loop and tear-down. `requests` handles the REST interface.

use super::leases::{self, Leases};
use crate::keygen::random_seed;
use crate::runtime::api::{self, ControlRequest, EventLog};
use crate::runtime::config::{self, Mtu, N6Mode, UpfConfig, UpfUe};
use crate::runtime::netctl::{
    self, Claim, Layer, Net, SocketSpec, Step, TableMonitor, bind_access, bind_when_free,
};
use crate::runtime::service::{ProcessSignal, Signals, notify, reloading};
use crate::runtime::trouble::Troubles;
use crate::runtime::{Common, device, folder, views};
use crate::tcp_lane::run::UpfLaneControl;
use anabranch_atsss::FixedHasher;
use anabranch_atsss::crypto::{PrivateKey, PublicKey};
use anabranch_atsss::session::{Addresses, Security, SessionEvent, SessionParams};
use anabranch_atsss::upf::{self, UeEntry, Upf, UpfCommand, UpfEvent};
use anabranch_element::time::Instant as CoreInstant;
use anabranch_engine::clock::{Clock, unix_ns};
use anabranch_engine::ends::{OwnerTable, UpfEnd};
use anabranch_engine::udp::{AccessSocket, interface_of};
use anabranch_engine::worker::{Handle, Worker};
use anabranch_engine::worker_pool::WorkerPool;
use anabranch_steer::Rule;
use anyhow::Context;
use arc_swap::ArcSwap;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// Inner MTU for "auto", bytes: fits a path of 1500 bytes with room for one more tunnel.
const AUTO_MTU: u16 = 1400;
/// Interval at which the state file is written if it has changed, addresses, routes and rules are checked,
/// send errors are logged, and unused memory is released.
const TICK: Duration = Duration::from_secs(5);
/// Writing takes at most 1/SAVING of the time: with 100,000 UEs there is a handshake in every tick, and each
/// write writes the whole file.
const SAVING: u32 = 200;

const SHARED_KEY: &str =
    "two devices use this UE's key and displace each other from the session: give each its own key";

/// Reads the configuration file; command-line flags take precedence.
pub fn load(args: &Common) -> anyhow::Result<UpfConfig> {
    let mut config: UpfConfig = config::load(&args.config)?;
    args.win(&mut config.api, &mut config.metrics)?;
    Ok(config)
}

/// A UE that the UPF serves. With up to 100,000 of them, the configuration of a UE is not stored anywhere
/// else.
#[derive(Debug, Clone, PartialEq)]
pub struct UeRecord {
    /// Identity of the UE.
    pub key: PublicKey,
    /// Assigned addresses.
    pub addresses: Addresses,
    /// Rules for this UE only.
    pub rules: Box<[Rule]>,
    /// Whether rules requested by the UE apply.
    pub accept_rules: bool,
    /// True: from the configuration file; false: added over REST.
    pub from_file: bool,
}

/// UEs by name.
pub type Directory = BTreeMap<Box<str>, UeRecord>;

impl UeRecord {
    /// The name of a configured UE, and the UE with its assigned addresses.
    pub fn new(ue: UpfUe, addresses: Addresses, from_file: bool) -> (Box<str>, Self) {
        let UpfUe { name, public_key: key, rule, accept_rules, .. } = ue;
        (name.into(), Self { key, addresses, rules: rule.into(), accept_rules, from_file })
    }

    /// Index of the worker that serves it.
    pub fn shard(&self, workers: usize) -> usize {
        usize::from(self.key.shard_hint()) % workers
    }

    /// The UE in the form that crate `atsss` uses.
    pub fn entry(&self, name: &str) -> UeEntry {
        UeEntry {
            name: name.to_owned(),
            key: self.key,
            addresses: self.addresses,
            rules: self.rules.to_vec(),
            accept_rules: self.accept_rules,
        }
    }
}

/// UEs added over REST that are not admitted: name and reason. They stay in the state file.
pub type RefusedUes = BTreeMap<String, String>;

/// All UEs of the configuration and of the state file, with their addresses, and those of the state file that
/// do not fit the configuration. Moves the UEs out of `config`.
pub fn directory(config: &mut UpfConfig, leases: &mut Leases) -> Result<(Directory, RefusedUes), String> {
    let keys: HashSet<PublicKey> = config.ue.iter().map(|ue| ue.public_key).collect();
    let names: HashSet<&str> = config.ue.iter().map(|ue| ue.name.as_str()).collect();
    let mut holders: HashMap<IpAddr, &str> = HashMap::new();
    for ue in &config.ue {
        holders.extend(ue.fixed().iter().map(|address| (address, ue.name.as_str())));
    }
    // A UE that was added over REST and is now in the configuration file belongs to the file.
    leases.added.retain(|added| !keys.contains(&added.public_key));
    // Also for UEs that are not admitted now, so that old recordings are not accepted once they are admitted
    // again.
    leases.remembered = leases.added.iter().map(|added| added.public_key).collect();
    let misfit = |added: &UpfUe| {
        if names.contains(added.name.as_str()) {
            return Some(format!("[[ue]] \"{}\" of the file has its name: rename that one", added.name));
        }
        let holder = added.fixed().iter().find_map(|address| Some((address, holders.get(&address)?)));
        if let Some((address, holder)) = holder {
            return Some(format!(
                "[[ue]] \"{holder}\" of the file has the same address {address}: choose another address in the file"
            ));
        }
        config.check_stored_ue(added).err()
    };
    let mut refused: RefusedUes =
        leases.added.iter().filter_map(|added| Some((added.name.clone(), misfit(added)?))).collect();
    let added = std::mem::take(&mut leases.added);
    let fit: Vec<&UpfUe> = added.iter().filter(|added| !refused.contains_key(&added.name)).collect();
    let mut without_address = Vec::new();
    let given = leases.assign(config.ue.iter().chain(fit.iter().copied()), |ue, why| {
        if keys.contains(&ue.public_key) {
            return Err(why);
        }
        without_address.push((ue.name.clone(), why));
        Ok(())
    });
    refused.extend(without_address);
    let record = |ue: UpfUe, from_file| {
        let addresses = given.as_ref().ok().and_then(|given| given.get(&ue.public_key)).copied();
        UeRecord::new(ue, addresses.unwrap_or_default(), from_file)
    };
    let served = added.iter().filter(|added| !refused.contains_key(&added.name));
    let mut ues: Directory = served.map(|ue| record(ue.clone(), false)).collect();
    ues.extend(std::mem::take(&mut config.ue).into_iter().map(|ue| record(ue, true)));
    leases.added = added;
    leases.shrink();
    given?;
    let taken = |name: &str, refused: &RefusedUes| ues.contains_key(name) || refused.contains_key(name);
    for unread in &mut leases.unread {
        if taken(&unread.name, &refused) {
            unread.name.clone_from(&unread.at);
        }
        refused.insert(unread.name.clone(), unread.why.clone());
    }
    for (name, why) in &mut refused {
        *why = format!(
            "it was added over REST and is not admitted: {why}; or remove it with DELETE /v1/sessions/{name}"
        );
    }
    Ok((ues, refused))
}

/// Sets everything up, runs until the end, and takes everything down again, also after a failure.
pub async fn run(args: &Common, mut config: UpfConfig) -> anyhow::Result<()> {
    let mut signals = Signals::open()?;
    let key = config::read_private_key(&config.upf.private_key_file)?;
    let mut leases = Leases::load(&config.upf.state_file, &config.pool)?;
    let (ues, refused) = directory(&mut config, &mut leases)
        .map_err(|message| config::ConfigError::new(args.config.display().to_string(), message))?;
    let state = folder::of(&config.upf.state_file);
    folder::make_for(&config.upf.state_file)?;
    let net = Net::open()?.remembering(state, &config.device.name);
    // A table of the same name is replaced in one step. Without the table, the kernel would treat packets of
    // flows that it has just translated as its own, and reset the flows.
    let keep_table = config.n6.mode == N6Mode::Nat;
    let _claim = Claim::device(&config.device.name)?;
    // This UPF has no routing rules by mark; a UE on the same machine may have some.
    net.clean(&config.device.name, None, keep_table).await?;
    let (plan, namespace) = netctl::inner_end(&config.device);
    let base = net.apply(plan).await?;
    let result =
        serve(args, config, key, &net, namespace.as_ref(), leases, (ues, refused), &mut signals).await;
    net.undo(base).await;
    result
}

#[expect(clippy::too_many_arguments, reason = "what a run starts with, each once")]
async fn serve(
    args: &Common,
    config: UpfConfig,
    key: PrivateKey,
    net: &Net,
    namespace: Option<&File>,
    leases: Leases,
    (ues, refused): (Directory, RefusedUes),
    signals: &mut Signals,
) -> anyhow::Result<()> {
    let workers = config.workers();
    let mtu = match config.device.mtu {
        Mtu::Bytes(bytes) => bytes,
        Mtu::Auto => AUTO_MTU,
    };
    let own_key = key.public();
    let owners = Arc::new(ArcSwap::from_pointee(owner_table(&ues, workers)?));
    let clock = Clock::start();
    let mut sockets = sockets(&config, workers)?;
    let (event_sender, events) = mpsc::channel(8192);
    let mut worker_pool = Vec::new();
    let devices = device::open(&config.device, mtu, workers, namespace)?;
    let paths = config.upf.max_sessions.saturating_mul(config.access.len() as u32);
    let lanes = device::fast_path(&config.device, false, paths, workers)?;
    for (shard, (device, lanes)) in devices.into_iter().zip(lanes).enumerate() {
        let mut upf = shard_of(&config, &key, mtu, shard, workers, clock.now())?;
        for (name, record) in ues.iter().filter(|(_, record)| record.shard(workers) == shard) {
            for command in add(name, record, &leases) {
                upf.command(command, clock.now())?;
            }
        }
        let end = UpfEnd::new(upf, workers, &owners);
        let own = sockets.iter_mut().map(|of_access| of_access.pop_front()).collect();
        let (mut worker, handle) = Worker::new(end, clock, device, own, event_sender.clone())?;
        worker.spin(config.device.busy_poll());
        worker.set_fast(lanes);
        worker_pool.push((worker, handle));
    }
    let plan = netctl::upf(&config, mtu);
    let layer = net.apply(plan.clone()).await?;

    let result = async {
        let worker_pool = WorkerPool::start(worker_pool)?;
        let lane = match &config.tcp_lane {
            Some(lane) => Some(UpfLaneControl::start(lane, &config, mtu, net, worker_pool.handles()).await?),
            None => None,
        };
        let log = EventLog::default();
        for (name, why) in &refused {
            log.push(views::event("refused", Some(name), why.clone()));
        }
        let mut agent = Agent {
            args: args.clone(),
            own_key,
            shards: worker_pool.handles().to_vec(),
            ues,
            refused,
            leases,
            owners,
            owners_due: None,
            mtu,
            lane,
            net: net.clone(),
            plan,
            log: log.clone(),
            troubles: Troubles::default(),
            shared_keys: Troubles::default(),
            started: Instant::now(),
            save_after: Instant::now(),
            config,
        };
        let mut worker_pool = worker_pool;
        let api = (&agent.config.api, agent.config.metrics.as_ref());
        let role = api::Agent::Upf;
        let served = match api::serve(role, api.0, api.1, log, None).await {
            Ok((_server, requests)) => agent.serve(signals, &mut worker_pool, events, requests, &layer).await,
            Err(error) => Err(error),
        };
        notify("STOPPING=1");
        if let Some(lane) = agent.lane.take() {
            lane.stop().await;
        }
        let stopped = worker_pool.stop();
        if let Err(error) = agent.save().await {
            // Not a failure of the stop: changes over REST are on the disk before they are confirmed.
            tracing::error!("{error:#}: addresses and handshake time stamps since the last write are lost");
        }
        stopped.and(served)
    }
    .await;
    match result {
        Ok(ProcessSignal::HandOver) => net.make_way(layer).await,
        _ => {
            net.undo(layer).await;
            net.restore_rest().await;
        }
    }
    result.map(drop)
}

/// State of the control plane.
pub struct Agent {
    pub(crate) args: Common,
    pub(crate) config: UpfConfig,
    pub(crate) own_key: PublicKey,
    pub(crate) shards: Vec<Handle<UpfEnd>>,
    pub(crate) ues: Directory,
    /// UEs of the state file that are not admitted.
    pub(crate) refused: RefusedUes,
    pub(crate) leases: Leases,
    pub(crate) owners: Arc<ArcSwap<OwnerTable>>,
    /// Time at which the workers receive new addresses.
    pub(crate) owners_due: Option<tokio::time::Instant>,
    pub(crate) mtu: u16,
    /// The TCP lane, which terminates TCP flows of UEs.
    pub(crate) lane: Option<UpfLaneControl>,
    net: Net,
    /// Steps of the network configuration made at the start.
    plan: Vec<Step>,
    pub(crate) log: EventLog,
    /// UEs that are refused at present.
    pub(crate) troubles: Troubles,
    /// UEs whose key is used by two devices; they have a session all the time.
    pub(crate) shared_keys: Troubles,
    pub(crate) started: Instant,
    /// Earliest time of the next write that is due only to handshakes.
    pub(crate) save_after: Instant,
}

impl Agent {
    async fn serve(
        &mut self,
        signals: &mut Signals,
        worker_pool: &mut WorkerPool<UpfEnd>,
        mut events: mpsc::Receiver<UpfEvent>,
        mut requests: mpsc::Receiver<ControlRequest>,
        layer: &Layer,
    ) -> anyhow::Result<ProcessSignal> {
        self.save().await?;
        let mut tick = tokio::time::interval(TICK);
        let mut tables = Tables::watch(&self.plan);
        tracing::info!(public_key = %self.own_key, ues = self.ues.len(), workers = self.shards.len(), "upf runs");
        notify("READY=1");
        loop {
            let owners_due = self.owners_due;
            tokio::select! {
                Some(event) = events.recv() => self.on_event(event),
                signal = signals.next() => match signal {
                    ProcessSignal::Stop => return Ok(ProcessSignal::Stop),
                    ProcessSignal::HandOver => return Ok(ProcessSignal::HandOver),
                    ProcessSignal::Reload => reloading(self.reload()).await,
                },
                Some(request) = requests.recv() => self.on_request(request).await,
                () = sleep_until(owners_due) => self.publish_owners()?,
                () = tables.removed() => tables.due = !self.restore_tables().await,
                () = netctl::broken(self.layers(layer)) => self.hold(layer).await,
                _ = tick.tick() => {
                    if Instant::now() >= self.save_after
                        && let Err(error) = self.save().await
                    {
                        tracing::error!("{error:#}");
                    }
                    self.report_time();
                    self.hold(layer).await;
                    if tables.are_due() {
                        tables.due = !self.restore_tables().await;
                    }
                    // The workers answered, so they are alive.
                    self.report_send_errors().await;
                    anabranch_kern::memory::give_back();
                    notify("WATCHDOG=1");
                }
                error = worker_pool.failed() => return Err(error),
            }
        }
    }

    fn on_event(&mut self, event: UpfEvent) {
        match event {
            UpfEvent::Handshake { key, timestamp_ns } => self.leases.saw(key, timestamp_ns),
            UpfEvent::SessionUp { ue } => {
                self.troubles.clear(&ue);
                let addresses = self.ues.get(ue.as_str()).map(|record| record.addresses).unwrap_or_default();
                let addresses: Vec<String> = addresses.iter().map(|a| a.to_string()).collect();
                let message = format!("connected as {}", addresses.join(" and "));
                self.log.push(views::event("session-up", Some(&ue), message));
            }
            UpfEvent::Refused { ue, reason } => {
                // A refused UE repeats its request; the event is recorded once.
                if self.troubles.note(&ue, reason, Instant::now()) {
                    self.log.push(views::event("refused", Some(&ue), reason.to_owned()));
                }
            }
            UpfEvent::SharedKey { ue } => {
                self.shared_keys.note(&ue, SHARED_KEY, Instant::now());
                self.log.push(views::event("shared-key", Some(&ue), SHARED_KEY.to_owned()));
            }
            UpfEvent::SessionDown { ue, addresses, reason } => {
                if reason.ends_connections() {
                    self.reset_lane_flows(&ue, addresses);
                }
                self.log.push(views::event("session-down", Some(&ue), format!("session ended: {reason}")));
            }
            UpfEvent::BadConfig { ue, error } => {
                // The text quotes input from the UE.
                let error = error.replace(char::is_control, "?");
                self.log.push(views::event("bad-config", Some(&ue), error));
            }
            UpfEvent::Session { ue, accesses, event } => {
                if let SessionEvent::Rekeyed { fresh_peer, .. } = event {
                    self.troubles.clear(&ue);
                    if fresh_peer && let Some(record) = self.ues.get(ue.as_str()) {
                        self.reset_lane_flows(&ue, record.addresses);
                    }
                }
                let access = |path: u8| {
                    accesses.get(usize::from(path)).map_or_else(|| path.to_string(), String::clone)
                };
                if let Some(event) = views::session_event(&ue, event, access) {
                    self.log.push(event);
                }
            }
        }
    }

    /// Resets the flows of the TCP lane of a session whose UE has ended or was restarted: nobody continues them, and
    /// only a server that sends would notice.
    fn reset_lane_flows(&self, ue: &str, addresses: Addresses) {
        let (Some(lane), Some(address)) = (&self.lane, addresses.v4) else { return };
        let flows = lane.reset_flows(address);
        if flows > 0 {
            tracing::info!(ue, flows, "TCP lane: flows of an ended session were reset");
        }
    }

    /// Passes the wall clock to the workers, because it may have been set.
    fn report_time(&self) {
        for shard in &self.shards {
            // A worker that is too busy receives it next time.
            let _ = shard.run(|worker, now| {
                let unix_epoch_ns = unix_ns().saturating_sub(now.as_nanos());
                let _ = worker.end.upf.command(UpfCommand::Clock { unix_epoch_ns }, now);
            });
        }
    }

    /// Restores routes, rules and the redirection of the TCP lane that were removed by other programs.
    async fn hold(&self, layer: &Layer) {
        self.net.hold(self.layers(layer), None, &self.log).await;
    }

    fn layers<'a>(&'a self, layer: &'a Layer) -> impl Iterator<Item = &'a Layer> {
        std::iter::once(layer).chain(self.lane.as_ref().map(UpfLaneControl::layer))
    }

    /// Restores the nftables tables after another program has reloaded the rules of the host; true on
    /// success.
    async fn restore_tables(&self) -> bool {
        let made = self.net.restore_tables(&self.plan).await;
        for table in made.as_deref().unwrap_or_default() {
            let what = format!("somebody removed this nftables table {table}; it is there again");
            self.log.push(views::event("restored", None, what));
        }
        made.inspect_err(|error| tracing::warn!("nftables: {error:#}")).is_ok()
    }

    /// Writes the state file if there are changes.
    pub(crate) async fn save(&mut self) -> anyhow::Result<()> {
        if std::mem::take(&mut self.leases.dirty) {
            let start = Instant::now();
            // The text is smaller than the state, and generating it takes a fraction of the time of writing.
            let (path, text) = (self.config.upf.state_file.clone(), self.leases.to_text());
            let saved = tokio::task::spawn_blocking(move || leases::save(&path, &text)).await?;
            self.leases.dirty = saved.is_err();
            self.save_after = Instant::now() + SAVING * start.elapsed();
            saved?;
        }
        Ok(())
    }

    fn publish_owners(&mut self) -> anyhow::Result<()> {
        self.owners_due = None;
        self.owners.store(Arc::new(owner_table(&self.ues, self.shards.len())?));
        Ok(())
    }

    async fn report_send_errors(&self) {
        for shard in &self.shards {
            let Ok(errors) = shard.query(|worker, _| worker.send_errors()).await else { continue };
            for (access, error) in errors {
                let access = self.config.access.get(access).map_or("?", |a| &a.name);
                tracing::warn!(access, "datagrams could not be sent: {error}");
            }
        }
    }
}

/// Detection of removed nftables tables.
struct Tables {
    /// Without a monitor, the tables are checked at every tick.
    monitor: Option<TableMonitor>,
    /// A table could not be restored; the next tick tries again.
    due: bool,
}

impl Tables {
    /// Subscribes to changes, if the plan has tables. A table may have been removed before.
    fn watch(plan: &[Step]) -> Self {
        let wanted = plan.iter().any(|step| step.table().is_some());
        let monitor = wanted.then(TableMonitor::open).transpose();
        let monitor =
            monitor.inspect_err(|error| tracing::warn!("{error:#}; the tables are checked every 5 s"));
        Self { monitor: monitor.ok().flatten(), due: wanted }
    }

    fn are_due(&self) -> bool {
        self.due || self.monitor.is_none()
    }

    /// Waits until a table was removed.
    async fn removed(&mut self) {
        if let Some(monitor) = &mut self.monitor {
            match monitor.removed().await {
                Ok(()) => return,
                Err(error) => tracing::warn!("{error:#}; the tables are checked every 5 s from now on"),
            }
            self.monitor = None;
        }
        std::future::pending().await
    }
}

/// The commands that add a UE to its shard.
pub fn add(name: &str, record: &UeRecord, leases: &Leases) -> [UpfCommand; 2] {
    let key = record.key;
    let timestamp_ns = leases.timestamp_ns(&key);
    [UpfCommand::AddUe(record.entry(name)), UpfCommand::NotBefore { key, timestamp_ns }]
}

/// Table of the worker of each virtual address; empty with only one worker.
fn owner_table(ues: &Directory, workers: usize) -> anyhow::Result<OwnerTable> {
    let seed = random_seed()?;
    let hash_key = seed.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    let mut table = OwnerTable::with_hasher(FixedHasher::new(hash_key));
    if workers > 1 {
        for record in ues.values() {
            let shard = u8::try_from(record.shard(workers)).unwrap_or(0);
            table.extend(record.addresses.iter().map(|address| (address, shard)));
        }
    }
    Ok(table)
}

fn shard_of(
    config: &UpfConfig,
    key: &PrivateKey,
    mtu: u16,
    shard: usize,
    workers: usize,
    now: CoreInstant,
) -> anyhow::Result<Upf> {
    let epoch = Duration::from_nanos(unix_ns().saturating_sub(now.as_nanos()));
    let core_config = upf::UpfConfig {
        private_key: key.clone(),
        accesses: config
            .access
            .iter()
            .map(|a| upf::UpfAccess { name: a.name.clone(), security: a.security, local: None })
            .collect(),
        rules: config.rule.clone(),
        params: SessionParams {
            probe: config.probe,
            flap: config.flap,
            max_payload: max_payload(config),
            inner_mtu: mtu,
            fast_path: config.device.fast_path,
            tcp_lane: config.tcp_lane.is_some(),
            destinations: Arc::new(config.destinations()),
            ..SessionParams::default()
        },
        shard: shard as u32,
        shards: workers as u32,
        max_sessions: config.upf.max_sessions.div_ceil(workers as u32),
        unix_epoch_ns: u64::try_from(epoch.as_nanos()).unwrap_or(u64::MAX),
    };
    let mut upf = Upf::new(core_config, random_seed()?, now)?;
    if let Some(ioam) = &config.ioam {
        upf.set_ioam(ioam.node(epoch));
    }
    Ok(upf)
}

/// The largest UDP payload that the interface of any access supports, bytes. The limits of the paths are
/// discovered later.
fn max_payload(config: &UpfConfig) -> u16 {
    let of_access = |access: &config::UpfAccess| {
        let interface = access.interface.clone().or_else(|| interface_of(access.listen.ip()));
        let mtu = interface.and_then(|name| anabranch_kern::interface::mtu(&name).ok()).unwrap_or(1500);
        let headers = if access.listen.is_ipv6() { 48 } else { 28 };
        u16::try_from(mtu.min(9216)).unwrap_or(1500).saturating_sub(headers)
    };
    config.access.iter().map(of_access).max().unwrap_or(1472)
}

/// Opens one socket per access and worker.
fn sockets(
    config: &UpfConfig,
    workers: usize,
) -> anyhow::Result<Vec<std::collections::VecDeque<AccessSocket>>> {
    let mut all = Vec::new();
    for access in &config.access {
        let spec = SocketSpec {
            local: access.listen,
            interface: access.interface.clone(),
            mark: None,
            shared: workers > 1,
        };
        let place = || format!("access {}: listen {}", access.name, access.listen);
        let gro = !(config.device.fast_path && access.security == Security::Plain);
        let mut of_access = std::collections::VecDeque::new();
        for worker in 0..workers {
            let socket = bind_when_free(|| bind_access(&spec)).with_context(place)?;
            if workers > 1 && worker + 1 == workers {
                anabranch_kern::reuseport::spread(&socket, workers as u32)
                    .with_context(place)
                    .context("distributing datagrams to workers")?;
            }
            of_access.push_back(AccessSocket::new(socket, true, gro).with_context(place)?);
        }
        all.push(of_access);
    }
    Ok(all)
}

async fn sleep_until(at: Option<tokio::time::Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resident_bytes() -> usize {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
    }

    #[test]
    fn an_added_ue_that_conflicts_with_the_file_is_refused_and_stays_stored() {
        let text = |pool: &str, ues: &str| {
            let text = format!(
                "[upf]\nprivate_key_file = \"k\"\n[[access]]\nname = \"5g\"\nlisten = \"0.0.0.0:4500\"\n[device]\n\
                 [n6]\n[pool]\nv4 = \"{pool}\"\n{ues}"
            );
            config::parse::<UpfConfig>("upf.toml", &text).unwrap()
        };
        let of_file = |name: &str, id: u8, more: &str| {
            format!("[[ue]]\nname = \"{name}\"\npublic_key = \"{}\"\n{more}\n", PublicKey([id; 32]))
        };
        let added = |name: &str, id: u8, v4: Option<&str>| UpfUe {
            name: name.to_owned(),
            public_key: PublicKey([id; 32]),
            address_v4: v4.map(|v4| v4.parse().unwrap()),
            address_v6: None,
            rule: Vec::new(),
            accept_rules: true,
        };
        let mut rule = text("10.0.0.0/29", "");
        rule.rule = config::parse::<UpfConfig>(
            "upf.toml",
            "[upf]\nprivate_key_file = \"k\"\n[[access]]\nname = \"wifi\"\nlisten = \"0.0.0.0:4500\"\n[device]\n[n6]\n\
             [pool]\nv4 = \"10.0.0.0/29\"\n[[rule]]\nname = \"r\"\n\
             steering = { mode = \"active-standby\", primary = \"wifi\" }\n",
        )
        .unwrap()
        .rule;
        let ruled = UpfUe { rule: rule.rule, ..added("ruled", 6, None) };
        let cases = [
            (
                added("far", 2, Some("10.9.0.9")),
                "10.0.0.0/29",
                of_file("a", 1, ""),
                "not a free host address",
            ),
            (added("a", 3, None), "10.0.0.0/29", of_file("a", 1, ""), "of the file has its name"),
            (
                added("b", 4, Some("10.0.0.3")),
                "10.0.0.0/29",
                of_file("a", 1, "address_v4 = \"10.0.0.3\""),
                "has the same address 10.0.0.3",
            ),
            (added("c", 5, None), "10.0.0.0/30", of_file("a", 1, ""), "no address left for UE c"),
            (ruled, "10.0.0.0/29", of_file("a", 1, ""), "no access is named \"wifi\""),
        ];
        for (misfit, pool, ues, why) in cases {
            let mut config = text(pool, &ues);
            let mut leases = Leases::new(&config.pool);
            leases.added.push(misfit.clone());
            let (ues, refused) = directory(&mut config, &mut leases).unwrap();
            assert_eq!((ues.len(), ues["a"].key), (1, PublicKey([1; 32])), "{why}");
            assert!(refused[&misfit.name].contains(why), "{refused:?}");
            assert!(refused[&misfit.name].contains(&format!("DELETE /v1/sessions/{}", misfit.name)));
            assert_eq!(leases.added, std::slice::from_ref(&misfit));
            assert!(String::from_utf8(leases.to_text()).unwrap().contains("\"ues\":[{"));
        }
        // If the pool is full, its address is reassigned, but its earlier handshakes remain invalid.
        let far = added("far", 2, Some("10.9.0.9"));
        let mut config = text("10.0.0.0/30", &of_file("a", 1, ""));
        let mut leases = Leases::new(&config.pool);
        leases.saw(far.public_key, 77);
        leases.saw(PublicKey([9; 32]), 78);
        let was = leases.assign_one(&added("far", 2, None), |_| true).unwrap();
        leases.added.push(far);
        let (ues, _) = directory(&mut config, &mut leases).unwrap();
        assert_eq!(ues["a"].addresses, was);
        assert_eq!([2, 9].map(|id| leases.timestamp_ns(&PublicKey([id; 32]))), [77, 0]);
        // A UE with an unreadable entry is not admitted either.
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.json");
        let entries =
            "{\"name\":\"tv\",\"public_key\":7},{\"name\":\"tv\"},{\"public_key\":7},{\"name\":\"a\"}";
        std::fs::write(&path, format!("{{\"version\":1,\"leases\":[],\"ues\":[{entries}]}}")).unwrap();
        let mut config = text("10.0.0.0/29", &of_file("a", 1, ""));
        let mut leases = Leases::load(&path, &config.pool).unwrap();
        let (ues, refused) = directory(&mut config, &mut leases).unwrap();
        assert_eq!(ues.keys().map(|name| &**name).collect::<Vec<_>>(), ["a"]);
        assert_eq!(refused.keys().collect::<Vec<_>>(), ["tv", "ues[1]", "ues[2]", "ues[3]"]);
        for (name, at) in [("tv", 0), ("ues[1]", 1), ("ues[2]", 2), ("ues[3]", 3)] {
            let reason = &refused[name];
            assert!(reason.contains("state.json") && reason.contains(&format!("ues[{at}]")), "{reason}");
            assert!(reason.contains("public_key") && reason.contains("DELETE /v1/sessions/"), "{reason}");
        }
        // UEs of the configuration file must fit the pool, also the one in use when the file is reloaded.
        let mut config = text("10.0.0.0/29", &(of_file("a", 1, "") + &of_file("b", 2, "")));
        config.pool = text("10.0.0.0/30", "").pool;
        let mut leases = Leases::new(&config.pool);
        let error = directory(&mut config, &mut leases).unwrap_err();
        assert!(error.contains("no address left for UE b"), "{error}");
    }

    #[test]
    fn many_ues_take_little_memory_and_what_reading_them_took_is_given_back() {
        const UES: u32 = 100_000;
        let mut text = String::from(
            "[upf]\nprivate_key_file = \"k\"\n[[access]]\nname = \"5g\"\nlisten = \"0.0.0.0:4500\"\n[device]\n\
             [n6]\n[pool]\nv4 = \"10.64.0.0/12\"\n",
        );
        for ue in 0..UES {
            let mut key = [7; 32];
            key[..4].copy_from_slice(&ue.to_le_bytes());
            text += &format!("[[ue]]\nname = \"ue{ue}\"\npublic_key = \"{}\"\n", PublicKey(key));
        }
        let before = resident_bytes();
        let mut config: UpfConfig = config::parse("upf.toml", &text).unwrap();
        let mut leases = Leases::new(&config.pool);
        let (ues, _) = directory(&mut config, &mut leases).unwrap();
        let most = resident_bytes();
        // Twice the time for which mimalloc keeps freed memory.
        std::thread::sleep(Duration::from_secs(2));
        anabranch_kern::memory::give_back();
        let after = resident_bytes();
        assert_eq!((ues.len(), config.ue.len()), (UES as usize, 0));
        let last = &ues["ue99999"];
        assert_eq!(leases.owner(last.addresses.v4.unwrap().into()), Some(last.key));
        let each = after.saturating_sub(before) / UES as usize;
        // Other tests of this process change the figure; the entries alone take about 240 bytes.
        assert!(
            each < 400,
            "{each} bytes per UE, of at most {} while reading",
            (most - before) / UES as usize
        );
    }
}
