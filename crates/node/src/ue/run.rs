//! `anabranch ue`: set-up, control loop and tear-down.

use super::access::{self, Access, Change};
use super::taps::{Installed, Taps, Usci, Windows};
use crate::keygen::random_seed;
use crate::runtime::api::{self, ControlRequest, EventLog};
use crate::runtime::config::{self, Cipher, Device, Mtu, RemoteAddr, UeConfig, WithoutAddress};
use crate::runtime::netctl::{self, Claim, Layer, Monitor, Net, OwnerThread, Owners};
use crate::runtime::service::{ProcessSignal, Signals, notify, reloading};
use crate::runtime::state_file::{self, Timestamp};
use crate::runtime::trouble::Troubles;
use crate::runtime::{Common, device, folder, views};
use crate::tcp_lane::run::UeLaneControl;
use anabranch_atsss::PathId;
use anabranch_atsss::crypto::{PublicKey, Suite};
use anabranch_atsss::session::{Addresses, SessionEvent, SessionParams};
use anabranch_atsss::ue::{self, Ue, UeCommand, UeEvent};
use anabranch_engine::clock::{Clock, unix_ns};
use anabranch_engine::worker::{Handle, Worker};
use anabranch_engine::worker_pool::WorkerPool;
use anabranch_steer::Rule;
use anabranch_wire::tunnel::SECURE_OVERHEAD;
use anyhow::anyhow;
use std::collections::BTreeSet;
use std::fs::File;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Notify, mpsc};

/// Interval of the checks of the accesses without a notification of a change, and of name resolution.
const ACCESS_CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Shortest interval between restorations of configuration that other programs remove.
const RESTORE_INTERVAL: Duration = Duration::from_secs(1);
/// Largest inner MTU, bytes; [device] mtu has the same limit.
const MAX_MTU: u16 = 9000;

/// The message that the UPF does not answer; from the fourth attempt on with possible causes.
fn no_answer(access: &str, remote: Option<SocketAddr>, tries: u32) -> String {
    let fact = format!("no answer from the UPF over {access} ({tries} attempts)");
    let Some(remote) = remote else { return fact };
    let own = netctl::owner_of(remote.ip()).map(|interface| {
        format!(
            "{} is this machine's own address ({interface}): unless a UPF runs here, give the UPF's as [[access]] remote",
            remote.ip()
        )
    });
    let rest = (tries >= 4)
        .then(|| format!("does it run, does UDP reach {remote}, and is [upf] public_key correct?"));
    let hints: Vec<String> = own.into_iter().chain(rest).collect();
    if hints.is_empty() { fact } else { format!("{fact}: {}", hints.join("; ")) }
}

/// Reads the configuration file; command-line flags take precedence.
pub fn load(args: &Common) -> anyhow::Result<UeConfig> {
    let mut config: UeConfig = config::load(&args.config)?;
    args.win(&mut config.api, &mut config.metrics)?;
    Ok(config)
}

/// Claims the marks and routing tables of the slices.
fn claim_slices(bindings: &[config::SliceBinding]) -> anyhow::Result<Claim> {
    let of =
        |binding: &config::SliceBinding| binding.mark.into_iter().chain(binding.table).collect::<Vec<_>>();
    let numbers = |binding| of(binding).into_iter().flat_map(|number| [number, number + 1]);
    // One slice's table may have the number of another one's mark.
    let all: BTreeSet<u32> = bindings.iter().flat_map(numbers).collect();
    Claim::numbers(all)?.map_err(|number| {
        let name = bindings.iter().find(|binding| numbers(binding).any(|own| own == number));
        let name = name.map_or("", |binding| &binding.slice);
        anyhow!(
            "[[slice]] {name}: another anabranch program in this network namespace has mark and routing table {number}: stop it, \
             or set another mark and table, two apart from others at least"
        )
    })
}

/// Sets everything up, runs until the end, and takes everything down again, also after a failure.
pub async fn run(args: &Common, config: UeConfig) -> anyhow::Result<()> {
    let mut signals = Signals::open()?;
    let key = config::read_private_key(&config.ue.private_key_file)?;
    let net = Net::open()?.remembering(folder::of(&config.ue.state_file), &config.device.name);
    let _claim = Claim::device_and_mark(&config.device.name, config.device.mark)?;
    let _slices = claim_slices(&config.slice)?;
    net.clean(&config.device.name, Some(config.device.mark), false).await?;

    let mut accesses: Vec<Access> =
        config.access.iter().map(|a| Access::new(a.clone(), &config.device)).collect();
    for access in accesses.iter_mut().filter(|a| a.remote.is_none()) {
        let config::UeAccess { remote, local, .. } = access.config.clone();
        let found = access::resolve(remote.clone(), local).await;
        access.remote = access.choose(&found, Instant::now());
        if access.remote.is_none() {
            let name = &access.config.name;
            tracing::warn!(
                access = name,
                "the UPF's name {} does not resolve; retrying every 5 s",
                remote.host
            );
        }
    }
    let mtu = mtu(&config.device, &accesses);

    let (inner, namespace) = netctl::inner_end(&config.device);
    let base = net.apply(inner).await?;
    let result = serve(args, config, key, &net, namespace.as_ref(), accesses, mtu, &mut signals).await;
    net.undo(base).await;
    net.restore_rest().await;
    result
}

#[expect(clippy::too_many_arguments, reason = "what a run starts with, each once")]
async fn serve(
    args: &Common,
    config: UeConfig,
    key: anabranch_atsss::crypto::PrivateKey,
    net: &Net,
    namespace: Option<&File>,
    mut accesses: Vec<Access>,
    mtu: u16,
    signals: &mut Signals,
) -> anyhow::Result<()> {
    let windows = Windows::start(&config.ue)?;
    let timestamp = Timestamp::load(&config.ue.state_file);
    let device = device::open(&config.device, mtu, 1, namespace)?.remove(0);
    let clock = Clock::start();
    let now = clock.now();
    let own_key = key.public();
    let core_config = ue::UeConfig {
        private_key: key,
        upf_key: config.upf.public_key,
        suite: suite(config.upf.cipher),
        accesses: accesses
            .iter()
            .map(|a| ue::UeAccess {
                name: a.config.name.clone(),
                remote: a.remote_or_any(),
                local: None,
                security: a.config.security,
                max_payload: a.max_payload(),
            })
            .collect(),
        rules: config.rule.clone(),
        params: SessionParams {
            probe: config.probe,
            flap: config.flap,
            max_payload: accesses.iter().map(Access::max_payload).max().unwrap_or(0),
            inner_mtu: mtu,
            fast_path: config.device.fast_path,
            tcp_lane: true,
            ..SessionParams::default()
        },
        unix_epoch_ns: unix_ns().saturating_sub(now.as_nanos()),
        last_timestamp_ns: timestamp.ns(),
    };
    let epoch = Duration::from_nanos(core_config.unix_epoch_ns);
    let mut end = Ue::new(core_config, random_seed()?, now)?;
    if let Some(ioam) = &config.ioam {
        end.set_ioam(ioam.node(epoch));
    }
    let mut sockets = Vec::new();
    for (path, access) in (0..).zip(&mut accesses) {
        let Change { socket, .. } = access.refresh();
        if access.trouble().is_some() {
            end.on_command(UeCommand::Carrier { path, up: false }, now);
        }
        sockets.push(socket.flatten());
    }
    let (event_sender, events) = mpsc::channel(1024);
    let (mut worker, handle) = Worker::new(end, clock, device, sockets, event_sender)?;
    worker.spin(config.device.busy_poll());
    let paths = u32::try_from(config.access.len()).unwrap_or(1);
    worker.set_fast(device::fast_path(&config.device, true, paths, 1)?.remove(0));
    let worker_pool = WorkerPool::start(vec![(worker, handle)])?;

    let log = EventLog::default();
    let asks_up = config.slices.as_ref().is_some_and(|s| s.ask_for_more);
    let taps = Taps::new(config.slice.clone(), config.mapping.clone())
        .with_growth_requests(asks_up)
        .with_own_mark(config.device.mark);
    let taps = Arc::new(taps.with_window_program(windows.is_some()));
    let installed =
        Installed::start(net.clone(), &config.slice, windows, (config.ue.name.clone(), log.clone())).await?;
    let followed = config.slices.as_ref().map(|slices| Usci::new(slices, taps.clone())).transpose()?;
    let following = followed.clone().map(|usci| {
        taps.set_usci(usci.clone());
        [tokio::spawn(usci.clone().run()), tokio::spawn(usci.send_needs())]
    });
    let shared = Some(taps.clone());
    let server = api::serve(api::Agent::Ue, &config.api, config.metrics.as_ref(), log.clone(), shared).await;
    let names = config.access.iter().map(|access| access.name.to_string()).collect();
    let loosened = accesses.iter().map(|_| Default::default()).collect();
    let lane = UeLaneControl::new(config.tcp_lane.clone(), &config.device, names, net.clone());
    let mut agent = Agent {
        args: args.clone(),
        own_key,
        worker: worker_pool.handles()[0].clone(),
        net: net.clone(),
        accesses,
        taps,
        installed,
        lane,
        loosened,
        session: Layer::default(),
        ipv6: false,
        addresses: Addresses::default(),
        mtu,
        owners: None,
        log,
        troubles: Troubles::default(),
        timestamp,
        started: Instant::now(),
        config,
    };
    let mut worker_pool = worker_pool;
    let cleaned = agent.lane.clean().await;
    let result = match server.and_then(|server| cleaned.map(|()| server)) {
        Ok((_server, requests)) => agent.serve(signals, &mut worker_pool, events, requests).await,
        Err(error) => Err(error),
    };
    notify("STOPPING=1");
    if let (Some(usci), Some(following)) = (followed, following) {
        following.iter().for_each(tokio::task::JoinHandle::abort);
        usci.leave().await;
    }
    // Flows of the lane end while the session can still signal it. The peer is notified, then routes go before the device they point
    // to.
    agent.lane.stop(&agent.worker.clone()).await;
    let _ = agent.worker.run(|worker, now| worker.end.on_command(UeCommand::Close, now));
    agent.installed.remove().await;
    net.undo(std::mem::take(&mut agent.session)).await;
    for (_, layer) in std::mem::take(&mut agent.loosened) {
        net.undo(layer).await;
    }
    let stopped = worker_pool.stop();
    result.and(stopped)
}

/// State of the control plane.
pub struct Agent {
    pub(super) args: Common,
    pub(super) config: UeConfig,
    pub(super) own_key: PublicKey,
    pub(super) worker: Handle<Ue>,
    pub(super) net: Net,
    pub(super) accesses: Vec<Access>,
    pub(super) taps: Arc<Taps>,
    /// Routes and rules of slices.
    pub(super) installed: Installed,
    pub(super) lane: UeLaneControl,
    /// Per access: the index of its interface, and the setting that accepts answers over an access that is
    /// not the best route to the UPF.
    pub(super) loosened: Vec<(Option<u32>, Layer)>,
    /// Addresses and routes of the session.
    pub(super) session: Layer,
    /// Whether IPv6 was enabled on the device when these were made.
    pub(super) ipv6: bool,
    pub(super) addresses: Addresses,
    pub(super) mtu: u16,
    pub(super) owners: Option<OwnerThread>,
    pub(super) log: EventLog,
    /// Reasons why there is no session.
    pub(super) troubles: Troubles,
    pub(super) timestamp: Timestamp,
    pub(super) started: Instant,
}

impl Agent {
    async fn serve(
        &mut self,
        signals: &mut Signals,
        worker_pool: &mut WorkerPool<Ue>,
        mut events: mpsc::Receiver<UeEvent>,
        mut requests: mpsc::Receiver<ControlRequest>,
    ) -> anyhow::Result<()> {
        let changed = Arc::new(Notify::new());
        watch(changed.clone())?;
        let (resolved, mut addresses) = mpsc::channel(8);
        let taps = self.taps.clone();
        let mut tick = tokio::time::interval(ACCESS_CHECK_INTERVAL);
        // Whether some network configuration was removed, and the earliest time of the next restoration.
        let (mut removed, mut hold_at) = (false, tokio::time::Instant::now());
        tracing::info!(name = self.config.ue.name, public_key = %self.own_key, "ue runs");
        notify("READY=1");
        loop {
            tokio::select! {
                biased;
                signal = signals.next() => match signal {
                    ProcessSignal::Stop | ProcessSignal::HandOver => return Ok(()),
                    ProcessSignal::Reload => reloading(self.reload()).await,
                },
                () = changed.notified() => {
                    self.refresh().await;
                    self.installed.update(&self.taps, false).await;
                    removed = true;
                }
                () = tokio::time::sleep_until(hold_at), if removed => {
                    // A program that removes it repeatedly must not keep the agent busy.
                    (removed, hold_at) = (false, tokio::time::Instant::now() + RESTORE_INTERVAL);
                    self.hold().await;
                }
                () = self.lane.due() => self.lane.update_endpoints(&self.worker).await,
                () = netctl::broken(self.lane.layer()), if !removed => removed = true,
                () = taps.changed() => self.installed.update(&self.taps, false).await,
                Some(event) = events.recv() => self.on_event(event).await?,
                Some(request) = requests.recv() => self.on_request(request).await,
                Some((path, remote, found)) = addresses.recv() => self.on_resolved(path, &remote, found).await,
                _ = tick.tick() => {
                    self.refresh().await;
                    self.update_session().await?;
                    self.hold().await;
                    // Facts about slices expire, too.
                    self.installed.update(&self.taps, true).await;
                    self.resolve(&resolved);
                    // The worker answered, so it is alive.
                    self.report_send_errors().await;
                    notify("WATCHDOG=1");
                }
                error = worker_pool.failed() => return Err(error),
            }
        }
    }

    /// Checks every access and passes changes on to the data path.
    async fn refresh(&mut self) {
        for path in 0..self.accesses.len() {
            let change = self.accesses[path].refresh();
            self.loosen(path).await;
            self.apply_change(path, change);
        }
    }

    /// Relaxes the reverse-path filter of an access, because answers of the UPF may arrive over an access
    /// that is not the best route to it. Also for an interface that appears, or reappears, after the start.
    async fn loosen(&mut self, path: usize) {
        let access = &self.accesses[path];
        let (index, Some(name)) = (access.index(), &access.config.interface) else { return };
        if self.loosened[path].0 == index {
            return;
        }
        let plan = netctl::ue_accesses(std::iter::once(name.as_str()));
        self.net.undo(std::mem::take(&mut self.loosened[path].1)).await;
        match self.net.apply(plan).await {
            Ok(layer) => self.loosened[path] = (index, layer),
            // The next check tries again.
            Err(error) => tracing::warn!(access = access.config.name, "{error:#}"),
        }
    }

    /// Adapts addresses, routes and lane to the state of the session. Events report changes, but one may have
    /// been lost, and an operation that failed may succeed now. Also passes the wall clock to the session.
    async fn update_session(&mut self) -> anyhow::Result<()> {
        let query = self.worker.query(|worker, now| {
            let unix_epoch_ns = unix_ns().saturating_sub(now.as_nanos());
            worker.end.on_command(UeCommand::Clock { unix_epoch_ns }, now);
            worker.end.state()
        });
        // A worker that is too busy is queried next time.
        let Ok(state) = query.await else { return Ok(()) };
        let now = Instant::now();
        for (access, path) in self.accesses.iter_mut().zip(&state.paths) {
            access.set_answers(path.up, now);
        }
        if state.addresses != Addresses::default() {
            self.take_addresses(state.addresses, state.mtu).await?;
        }
        self.lane.offered = state.tcp_lane;
        let mut events = Vec::new();
        for (path, state) in (0..).zip(state.paths) {
            events.extend(self.lane.set_path(path, state.up, &self.worker).await);
            events.extend(self.lane.set_overdue(path, state.overdue, &self.worker).await);
            events.extend(self.lane.set_loss(path, state.loss_percent, &self.worker).await);
        }
        self.lane.update_endpoints(&self.worker).await;
        for event in events {
            self.log.push(api::Event { ue: Some(self.config.ue.name.clone()), ..event });
        }
        if !self.lane.is_backing_off() {
            self.update_lane(&state.rules).await;
        }
        Ok(())
    }

    /// Restores the routing rules of the tunnel, without which traffic would bypass it. IPv6 may have been
    /// enabled or disabled meanwhile.
    async fn hold(&mut self) {
        let ipv6 = netctl::has_ipv6(&self.config.device.name);
        let other = self.addresses != Addresses::default() && ipv6 != self.ipv6;
        if other && let Err(error) = self.apply_session().await {
            tracing::warn!("{error:#}");
        }
        let session = (!other).then_some(&self.session);
        let layers = session.into_iter().chain(self.lane.layer());
        self.net.hold(layers, Some(&self.config.ue.name), &self.log).await;
    }

    fn apply_change(&mut self, path: usize, change: Change) {
        if change.socket.is_none() && change.usable.is_none() {
            return;
        }
        let name = self.accesses[path].config.name.clone();
        let done = self.worker.run(move |worker, now| {
            if let Some(socket) = change.socket
                && let Err(error) = worker.replace_socket(path, socket)
            {
                tracing::error!(access = name, "cannot watch the new socket: {error}");
            }
            if let Some(up) = change.usable {
                worker.end.on_command(UeCommand::Carrier { path: path as PathId, up }, now);
            }
        });
        if let Err(error) = done {
            tracing::error!("{error}");
        }
    }

    /// Resolves remotes that are names while they are unresolved or do not answer.
    fn resolve(&self, resolved: &mpsc::Sender<(usize, RemoteAddr, Vec<SocketAddr>)>) {
        for (path, access) in self.accesses.iter().enumerate() {
            if access::is_name(&access.config.remote) {
                let (remote, local, resolved) =
                    (access.config.remote.clone(), access.config.local, resolved.clone());
                tokio::spawn(async move {
                    let found = access::resolve(remote.clone(), local).await;
                    let _ = resolved.send((path, remote, found)).await;
                });
            }
        }
    }

    /// Handles the result of a resolution.
    pub(super) async fn on_resolved(&mut self, path: usize, name: &RemoteAddr, found: Vec<SocketAddr>) {
        // A reload may have set another name since the request.
        let Some(access) = self.accesses.get_mut(path).filter(|access| access.config.remote == *name) else {
            return;
        };
        let Some(remote) = access.choose(&found, Instant::now()) else { return };
        if !access.set_remote(remote) {
            return;
        }
        let name = access.config.name.clone();
        let event =
            views::event("remote", Some(&self.config.ue.name), format!("{name}: the UPF is at {remote}"));
        self.log.push(api::Event { access: Some(name), ..event });
        let command = UeCommand::Remote { path: path as PathId, remote };
        if let Err(error) = self.worker.run(|worker, now| worker.end.on_command(command, now)) {
            tracing::error!("{error}");
        }
        self.refresh().await;
    }

    async fn report_send_errors(&self) {
        let Ok(errors) = self.worker.query(|worker, _| worker.send_errors()).await else { return };
        for (path, error) in errors {
            let access = self.name_of(path as PathId);
            tracing::warn!(access, "datagrams could not be sent: {error}");
        }
    }

    async fn on_event(&mut self, event: UeEvent) -> anyhow::Result<()> {
        let ue = self.config.ue.name.clone();
        match event {
            UeEvent::Connected { addresses, mtu } => {
                self.troubles.clear(&ue);
                let list: Vec<String> = addresses.iter().map(|a| a.to_string()).collect();
                let message = format!("connected as {}, inner MTU {mtu}", list.join(" and "));
                self.log.push(views::event("session-up", Some(&ue), message));
                if self.take_addresses(addresses, mtu).await? {
                    self.update_lane_now().await;
                }
            }
            UeEvent::Handshake { timestamp_ns } => {
                if let Some((path, text)) = self.timestamp.accepted(timestamp_ns) {
                    tokio::task::spawn_blocking(move || {
                        if let Err(error) = state_file::replace(&path, &text) {
                            tracing::warn!(
                                "{error:#}: if the clock is set back, the UPF refuses this UE until the clock is right"
                            );
                        }
                    });
                }
            }
            UeEvent::UpfRestarted => {
                if self.lane.reset_flows() {
                    let what = "TCP lane: the UPF was restarted, flows are reset".to_owned();
                    self.log.push(views::event("tcp-lane", Some(&ue), what));
                }
            }
            UeEvent::Refused { reason, retry_in } => {
                let message = format!("{reason}; retrying in {} s", retry_in.as_secs());
                self.troubles.note(&ue, &format!("refused: {reason}"), Instant::now());
                self.log.push(views::event("refused", Some(&ue), message));
            }
            UeEvent::HandshakeTimeout { path, tries } if tries.is_power_of_two() => {
                let access = self.name_of(path);
                let asked = self.accesses.get(usize::from(path));
                let message = match asked.and_then(Access::why) {
                    Some(why) => format!("the UPF cannot be reached over {access}: {why}"),
                    None => no_answer(&access, asked.and_then(|access| access.remote), tries),
                };
                self.troubles.note(&ue, &message, Instant::now());
                let event = views::event("handshake-timeout", Some(&ue), message);
                self.log.push(api::Event { access: Some(access), ..event });
            }
            UeEvent::HandshakeTimeout { .. } => {}
            UeEvent::Rules(count) => {
                self.log.push(views::event("rules", Some(&ue), format!("{count} rules in force")));
                self.update_lane_now().await;
            }
            UeEvent::TcpLane(offered) => {
                self.lane.offered = offered;
                self.update_lane_now().await;
            }
            UeEvent::BadConfig(error) => self.log.push(views::event("bad-config", Some(&ue), error)),
            UeEvent::OwnerWanted(key) => {
                if self.owners.is_none() {
                    let worker = self.worker.clone();
                    let found = move |key, owner| {
                        let command = UeCommand::Owner { key, owner };
                        // If the worker is too busy, the flow keeps its rule.
                        let _ = worker.run(|worker, now| worker.end.on_command(command, now));
                    };
                    self.owners = Some(OwnerThread::start(Owners::open()?, found)?);
                }
                // Also if too many look-ups are queued.
                let _ = self.owners.as_ref().is_some_and(|owners| owners.look_up(key));
            }
            UeEvent::Session(event) => {
                let of_lane = match event {
                    SessionEvent::PathUp { path, .. } => self.lane.set_path(path, true, &self.worker).await,
                    SessionEvent::PathDown { path, .. } => {
                        self.lane.set_path(path, false, &self.worker).await
                    }
                    SessionEvent::Overdue { path, overdue } => {
                        if overdue {
                            // The kernel may not have reported yet that the carrier is lost.
                            self.refresh().await;
                        }
                        self.lane.set_overdue(path, overdue, &self.worker).await
                    }
                    SessionEvent::LastingLoss { path, percent } => {
                        self.lane.set_loss(path, percent, &self.worker).await
                    }
                    _ => Vec::new(),
                };
                let event = views::session_event(&ue, event, |path| self.name_of(path));
                for event in event.into_iter().chain(of_lane) {
                    self.log.push(api::Event { ue: Some(ue.clone()), ..event });
                }
            }
        }
        Ok(())
    }

    /// Updates the redirection of TCP flows to the lane for the current rules and session; if the worker is
    /// too busy, at the next tick.
    async fn update_lane_now(&mut self) {
        if let Ok(state) = self.worker.query(|worker, _| worker.end.state()).await {
            self.update_lane(&state.rules).await;
        }
    }

    async fn update_lane(&mut self, rules: &[Rule]) {
        if let Some(what) = self.lane.update(rules, self.addresses, self.mtu, &self.worker).await {
            self.log.push(views::event("tcp-lane", Some(&self.config.ue.name), what));
        }
    }

    /// Applies the addresses of the session; true if they differ from the previous ones. If the kernel
    /// refuses, the previous ones stay, so that no traffic bypasses the tunnel, and the next tick tries
    /// again.
    async fn take_addresses(&mut self, addresses: Addresses, mtu: u16) -> anyhow::Result<bool> {
        let had = (self.addresses, self.mtu);
        if had == (addresses, mtu) {
            return Ok(false);
        }
        (self.addresses, self.mtu) = (addresses, mtu);
        match self.apply_session().await {
            Ok(()) => Ok(true),
            // A session that never had addresses is useless.
            Err(error) if had.0 == Addresses::default() => Err(error),
            Err(error) => {
                (self.addresses, self.mtu) = had;
                tracing::error!("the session's new addresses are not in use; retrying in 5 s: {error:#}");
                Ok(false)
            }
        }
    }

    /// Replaces addresses and routes of the session; after a failure, the previous ones stay.
    pub(super) async fn apply_session(&mut self) -> anyhow::Result<()> {
        let device = &self.config.device;
        let mut addresses: Vec<IpAddr> = self.addresses.iter().collect();
        let ipv6 = netctl::has_ipv6(&device.name);
        if addresses.iter().any(IpAddr::is_ipv6) && !ipv6 {
            addresses.retain(IpAddr::is_ipv4);
            tracing::warn!(
                "the session's IPv6 address is not used: IPv6 is off on this machine (disable_ipv6)"
            );
        }
        for (v6, family) in [(false, "IPv4"), (true, "IPv6")] {
            let unserved = device.routes.iter().any(|to| to.addr().is_ipv6() == v6)
                && !addresses.iter().any(|a| a.is_ipv6() == v6);
            match device.without_address {
                _ if !unserved || v6 && !ipv6 => {}
                WithoutAddress::Block => {
                    tracing::info!(
                        "no {family} address: traffic to the {family} prefixes of [device] routes is blocked"
                    );
                }
                WithoutAddress::Warn => {
                    let message = format!(
                        "no {family} address: traffic to the {family} prefixes of [device] routes bypasses the tunnel"
                    );
                    tracing::warn!("{message}");
                    self.log.push(views::event("outside", Some(&self.config.ue.name), message));
                }
            }
        }
        let plan = netctl::session_of_ue(&self.config.device, &addresses, self.mtu);
        self.net.replace(&mut self.session, plan).await?;
        self.ipv6 = ipv6;
        Ok(())
    }

    pub(super) fn name_of(&self, path: PathId) -> String {
        self.accesses.get(usize::from(path)).map_or_else(|| path.to_string(), |a| a.config.name.clone())
    }
}

/// A list of names for a sentence; "nothing" if it is empty.
pub fn list(names: &[String]) -> String {
    if names.is_empty() { "nothing".to_owned() } else { names.join(", ") }
}

/// Notifies `changed` whenever links, addresses or routes change.
fn watch(changed: Arc<Notify>) -> anyhow::Result<()> {
    let mut monitor = Monitor::open()?;
    tokio::spawn(async move {
        loop {
            match monitor.changed().await {
                Ok(()) => changed.notify_one(),
                Err(error) => {
                    // The periodic check continues.
                    tracing::error!("link changes are detected with a delay from now on: {error:#}");
                    return;
                }
            }
        }
    });
    Ok(())
}

fn suite(cipher: Cipher) -> Suite {
    match cipher {
        Cipher::Aes256Gcm => Suite::Aes256Gcm,
        Cipher::Chacha20Poly1305 => Suite::ChaCha20Poly1305,
        Cipher::Auto if has_aes() => Suite::Aes256Gcm,
        Cipher::Auto => Suite::ChaCha20Poly1305,
    }
}

fn has_aes() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("aes") && std::arch::is_x86_feature_detected!("pclmulqdq");
    #[cfg(target_arch = "aarch64")]
    return std::arch::is_aarch64_feature_detected!("aes");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    false
}

/// The inner MTU, common to all accesses: as configured, or the capacity of the widest access. Narrower
/// accesses fragment; therefore an MTU above that of Ethernet requires all accesses to support it.
fn mtu(device: &Device, accesses: &[Access]) -> u16 {
    match device.mtu {
        Mtu::Bytes(bytes) => bytes,
        Mtu::Auto => auto_mtu(accesses.iter().map(Access::max_payload)),
    }
}

fn auto_mtu(payloads: impl Iterator<Item = u16> + Clone) -> u16 {
    let (least, most) = (payloads.clone().min().unwrap_or(1472), payloads.max().unwrap_or(1472));
    let inner = |payload: u16| payload.saturating_sub(SECURE_OVERHEAD as u16);
    inner(least.max(most.min(1472))).clamp(1280, MAX_MTU)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{in_private_network, sh};

    #[test]
    fn a_upf_address_of_this_machine_is_reported_at_once() {
        in_private_network(|| {
            sh("ip link add wlan0 type veth peer name p0; ip link set p0 up; ip link set wlan0 up
                ip addr add 10.9.0.2/24 dev wlan0; ip addr add 2001:db8:9::2/64 dev wlan0 nodad");
            for (remote, own) in [
                ("10.9.0.2:4500", Some("wlan0")),
                ("[2001:db8:9::2]:4500", Some("wlan0")),
                ("127.0.0.1:4500", Some("lo")),
                ("127.0.0.9:4500", Some("lo")),
                ("10.9.0.1:4500", None),
                ("[2001:db8:9::1]:4500", None),
            ] {
                for tries in [1, 2, 4, 64] {
                    let said = no_answer("wifi", remote.parse().ok(), tries);
                    let names_own =
                        own.is_some_and(|own| said.contains(&format!("this machine's own address ({own})")));
                    assert_eq!(names_own, own.is_some(), "{said}");
                    assert_eq!(said.contains("[[access]] remote"), own.is_some(), "{said}");
                    assert_eq!(said.contains("public_key"), tries >= 4, "{said}");
                }
            }
        });
    }
}
