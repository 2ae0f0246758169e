//! The steps of a plan, each with its inverse.

use super::keeper::Keeper;
use super::lane::{self, ReturnRoute};
use super::mptcp;
use super::nat::{self, Nat};
use super::slices::{self, Selector, SliceRoute};
use super::sysctls::Sysctls;
use super::tproxy::{self, Tproxy};
use anyhow::{Context, bail};
use ipnet::IpNet;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::link::{InfoData, InfoKind, InfoVeth, LinkAttribute, LinkInfo, LinkMessage};
use rtnetlink::packet_route::route::{
    RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use rtnetlink::packet_route::rule::{RuleAction, RuleAttribute, RuleFlags, RuleMessage};
use rtnetlink::{Handle, IpVersion, LinkUnspec, LinkVeth, RouteMessageBuilder};
use std::fmt;
use std::net::IpAddr;
use std::ops::Range;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;
use tokio_stream::{Stream, StreamExt};

/// Identifies routes and rules of anabranch (rtm_protocol, FRA_PROTOCOL); `ip route show proto 171` lists
/// them.
pub const PROTOCOL: u8 = 171;
/// Metric of the kernel's routes to the networks of IPv6 addresses (IP6_RT_PRIO_ADDRCONF).
const CONNECTED_METRIC: u32 = 256;
/// Priority of the first routing rule; the others follow it.
pub const RULE_PRIORITY: u32 = 21_000;

/// One change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Creates a veth pair, with neighbour discovery and offload disabled at its outer end.
    Veth {
        /// End with addresses and routes.
        outside: String,
        /// End that the program opens.
        inside: String,
        /// Namespace of the inner end; `None`: the same as the outer one's.
        namespace: Option<RawFd>,
    },
    /// Creates a veth pair without neighbour discovery, with one end in another namespace.
    Pair {
        /// End that stays.
        outside: String,
        /// End that is moved.
        inside: String,
        /// Namespace to which it is moved.
        namespace: RawFd,
    },
    /// Renames a device that is down.
    Rename {
        device: String,
        /// The new name.
        to: String,
    },
    /// Sets the MTU of a device and brings it up.
    Up {
        device: String,
        /// MTU, bytes.
        mtu: u16,
    },
    /// Adds an address.
    Address {
        device: String,
        /// Address and prefix of its network.
        address: IpNet,
    },
    /// Adds a route.
    Route {
        device: String,
        /// Destination.
        to: IpNet,
        /// Routing table.
        table: u32,
    },
    /// Adds a routing rule for packets without the mark.
    Rule {
        /// For IPv6.
        v6: bool,
        /// Offset from [`RULE_PRIORITY`].
        order: u32,
        /// Table looked up.
        table: u32,
        /// Firewall mark that is exempt.
        unless_mark: u32,
        /// Whether default routes of the table are ignored (suppress_prefixlength 0).
        suppress_default: bool,
    },
    /// Writes a sysctl and stores its previous value.
    Sysctl {
        /// Path below /proc/sys.
        key: String,
        value: &'static str,
        /// Only if this is the current value; `None`: always.
        only_from: Option<&'static str>,
    },
    /// Sends answers back through the device at which the request arrived (nftables).
    ReturnRoute(ReturnRoute),
    /// Translates source addresses (nftables).
    Masquerade(Nat),
    /// Blocks packets of UEs to closed destinations that the kernel's fast path forwards (nftables).
    Close(nat::Filter),
    /// Adds a default route in the table of a slice.
    Slice(SliceRoute),
    /// Adds a rule that sends the selected packets to a table.
    Select {
        /// Priority of the rule; smaller ones are evaluated first.
        priority: u32,
        /// Table looked up.
        table: u32,
        /// The packets.
        by: Selector,
    },
    /// Treats all addresses of a prefix as local.
    Local {
        /// The prefix.
        to: IpNet,
        /// Routing table.
        table: u32,
    },
    /// Redirects flows to a transparent proxy (nftables).
    Intercept(Tproxy),
    /// Raises the number of additional Multipath TCP subflows per connection to at least this.
    Subflows(u32),
    /// Adds an address from which Multipath TCP opens additional subflows.
    Endpoint(mptcp::Endpoint),
}

/// The inverse of a step.
#[derive(Debug)]
pub enum Undo {
    Link(String),
    Address(String, IpNet),
    Route(Box<RouteMessage>),
    Rule(Box<RuleMessage>),
    Sysctl(Arc<Sysctls>, String),
    Table(String),
    /// An owned table, which is removed when this is dropped.
    Kept(Keeper),
    Subflows(u32),
    Endpoint(u8),
}

/// Equality of addresses, routes and rules; all others are never equal.
impl PartialEq for Undo {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Address(device, address), Self::Address(of, other)) => (device, address) == (of, other),
            (Self::Route(message), Self::Route(other)) => message == other,
            (Self::Rule(message), Self::Rule(other)) => message == other,
            _ => false,
        }
    }
}

impl Undo {
    /// The keeper of an owned table.
    pub fn keeper(&self) -> Option<&Keeper> {
        match self {
            Self::Kept(keeper) => Some(keeper),
            _ => None,
        }
    }
}

impl Step {
    /// Name of the nftables table of the step, for tables that any program can remove.
    pub fn table(&self) -> Option<&str> {
        match self {
            Self::Masquerade(nat) => Some(&nat.table),
            Self::Close(filter) => Some(&filter.table),
            _ => None,
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Veth { outside, inside, .. } => write!(f, "create veth pair {outside}, {inside}"),
            Self::Pair { outside, .. } => {
                write!(f, "create veth pair {outside} into the TCP lane's namespace")
            }
            Self::Rename { device, to } => write!(f, "call {device} {to}"),
            Self::ReturnRoute(back) => {
                write!(f, "answers go back by {} (nftables table {})", back.device, back.table)
            }
            Self::Up { device, mtu } => write!(f, "switch {device} on with MTU {mtu}"),
            Self::Address { device, address } => write!(f, "give {device} the address {address}"),
            Self::Route { device, to, table } => write!(f, "route {to} through {device} (table {table})"),
            Self::Rule { v6, order, table, .. } => {
                let family = if *v6 { "IPv6" } else { "IPv4" };
                write!(f, "{family} rule {} for table {table}", RULE_PRIORITY + order)
            }
            Self::Sysctl { key, value, .. } => write!(f, "set {key} = {value}"),
            Self::Masquerade(nat) => write!(f, "translate addresses (nftables table {})", nat.table),
            Self::Close(to) => write!(f, "close destinations to UEs (nftables table {})", to.table),
            Self::Slice(route) => write!(f, "route a slice through {} (table {})", route.device, route.table),
            Self::Select { priority, table, .. } => write!(f, "rule {priority} for table {table}"),
            Self::Local { to, table } => write!(f, "take {to} for our addresses (table {table})"),
            Self::Intercept(tproxy) => write!(f, "lead flows to the proxy (nftables table {})", tproxy.table),
            Self::Subflows(count) => write!(f, "allow Multipath TCP {count} further subflows"),
            Self::Endpoint(endpoint) => write!(f, "endpoint of Multipath TCP {}", endpoint.address),
        }
    }
}

/// A veth pair whose inner end is created in `namespace`, if given.
fn veth(outside: &str, inside: &str, namespace: Option<RawFd>) -> LinkMessage {
    let mut message = LinkVeth::new(outside, inside).build();
    let infos = message.attributes.iter_mut().find_map(|attribute| match attribute {
        LinkAttribute::LinkInfo(infos) => Some(infos),
        _ => None,
    });
    for info in infos.into_iter().flatten() {
        if let LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer))) = info {
            peer.attributes.extend(namespace.map(LinkAttribute::NetNsFd));
        }
    }
    message
}

/// The inverse of a step that adds an address, a route or a rule; `None` for other steps.
pub fn undo_of(step: &Step) -> anyhow::Result<Option<Undo>> {
    let route = |message: RouteMessage| Undo::Route(Box::new(message));
    Ok(Some(match step {
        Step::Address { device, address } => Undo::Address(device.clone(), *address),
        Step::Route { device, to, table } => route(self::route(index(device)?, *to, *table)?),
        Step::Slice(slice) => route(slices::route(index(&slice.device)?, slice)?),
        Step::Local { to, table } => route(local(index("lo")?, *to, *table)?),
        Step::Rule { v6, order, table, unless_mark, suppress_default } => {
            Undo::Rule(Box::new(rule(*v6, *order, *table, *unless_mark, *suppress_default)))
        }
        Step::Select { priority, table, by } => Undo::Rule(Box::new(slices::rule(*priority, *table, by))),
        _ => return Ok(None),
    }))
}

/// Makes the address, route or rule that `undo` would remove; with `replace`, in place of an existing one. No
/// effect for others.
async fn make(handle: &Handle, undo: &Undo, replace: bool) -> anyhow::Result<Result<(), rtnetlink::Error>> {
    Ok(match undo {
        Undo::Address(device, address) => {
            let add = handle.address().add(index(device)?, address.addr(), address.prefix_len());
            if replace { add.replace() } else { add }.execute().await
        }
        Undo::Route(message) => {
            let add = handle.route().add((**message).clone());
            if replace { add.replace() } else { add }.execute().await
        }
        Undo::Rule(message) => {
            let mut add = handle.rule().add();
            *add.message_mut() = (**message).clone();
            add.execute().await
        }
        _ => Ok(()),
    })
}

/// Executes one step. `None`: there is nothing to undo.
pub async fn apply(handle: &Handle, sysctls: &Arc<Sysctls>, step: Step) -> anyhow::Result<Option<Undo>> {
    if let Some(undo) = undo_of(&step)? {
        make(handle, &undo, true).await?.map_err(explain)?;
        return Ok(Some(undo));
    }
    match step {
        Step::Veth { outside, inside, namespace } => {
            let pair = veth(&outside, &inside, namespace);
            handle.link().add(pair).execute().await.map_err(explain)?;
            let undo = Undo::Link(outside.clone());
            let rest = async {
                // Without address resolution, all packets are delivered.
                let message = LinkUnspec::new_with_name(&outside).arp(false).build();
                handle.link().set(message).execute().await.map_err(explain)?;
                anabranch_kern::interface::disable_offloads(&outside)
                    .with_context(|| format!("offloads of {outside}"))?;
                for name in [&outside, &inside] {
                    // The interface's own IPv6 traffic must not enter the tunnel.
                    write_sysctl(&format!("net/ipv6/conf/{name}/addr_gen_mode"), "1").ok();
                }
                Ok(())
            };
            match rest.await {
                Ok(()) => Ok(Some(undo)),
                Err(error) => {
                    self::undo(handle, undo).await.ok();
                    Err(error)
                }
            }
        }
        Step::Pair { outside, inside, namespace } => {
            handle.link().add(LinkVeth::new(&outside, &inside).build()).execute().await.map_err(explain)?;
            let undo = Undo::Link(outside.clone());
            let rest = async {
                // Without address resolution, a frame has its sender's address as destination; equal
                // addresses at both ends make it acceptable.
                let mac = anabranch_kern::interface::mac(&outside)?.to_vec();
                write_sysctl(&format!("net/ipv6/conf/{outside}/addr_gen_mode"), "1").ok();
                let message = LinkUnspec::new_with_name(&outside).arp(false).build();
                handle.link().set(message).execute().await.map_err(explain)?;
                let message = LinkUnspec::new_with_name(&inside).arp(false).address(mac).build();
                handle.link().set(message).execute().await.map_err(explain)?;
                let message = LinkUnspec::new_with_name(&inside).setns_by_fd(namespace).build();
                handle.link().set(message).execute().await.map_err(explain)
            };
            match rest.await {
                Ok(()) => Ok(Some(undo)),
                Err(error) => {
                    self::undo(handle, undo).await.ok();
                    Err(error)
                }
            }
        }
        Step::Rename { device, to } => {
            let message = LinkUnspec::new_with_index(index(&device)?).name(to).build();
            handle.link().set(message).execute().await.map_err(explain)?;
            Ok(None)
        }
        Step::ReturnRoute(return_route) => {
            let table = return_route.table.clone();
            let keeper = tokio::task::spawn_blocking(move || lane::install(&return_route)).await??;
            Ok(Some(keeper.map_or(Undo::Table(table), Undo::Kept)))
        }
        Step::Up { device, mtu } => {
            write_sysctl(&format!("net/ipv6/conf/{device}/addr_gen_mode"), "1").ok();
            let message = LinkUnspec::new_with_name(&device).mtu(u32::from(mtu)).up().build();
            handle.link().set(message).execute().await.map_err(explain)?;
            Ok(None)
        }
        Step::Sysctl { key, value, only_from } => {
            let (all, name) = (sysctls.clone(), key.clone());
            // Writes a file, which may block.
            let set = tokio::task::spawn_blocking(move || all.set(&name, value, only_from)).await??;
            Ok(set.then(|| Undo::Sysctl(sysctls.clone(), key)))
        }
        Step::Intercept(to) => {
            let table = to.table.clone();
            let keeper = tokio::task::spawn_blocking(move || tproxy::redirect(&to)).await??;
            Ok(Some(keeper.map_or(Undo::Table(table), Undo::Kept)))
        }
        Step::Subflows(count) => Ok(mptcp::allow(count)?.map(Undo::Subflows)),
        Step::Endpoint(endpoint) => Ok(mptcp::add(&endpoint)?.map(Undo::Endpoint)),
        Step::Close(filter) => {
            let table = filter.table.clone();
            tokio::task::spawn_blocking(move || nat::close(&filter)).await??;
            Ok(Some(Undo::Table(table)))
        }
        Step::Masquerade(nat) => {
            let table = nat.table.clone();
            tokio::task::spawn_blocking(move || nat::install(&nat)).await??;
            Ok(Some(Undo::Table(table)))
        }
        // Executed above.
        Step::Address { .. }
        | Step::Route { .. }
        | Step::Rule { .. }
        | Step::Slice(_)
        | Step::Select { .. }
        | Step::Local { .. } => Ok(None),
    }
}

/// Undoes one step. A missing object is not an error.
pub async fn undo(handle: &Handle, undo: Undo) -> anyhow::Result<()> {
    match undo {
        Undo::Link(name) => match index(&name) {
            Ok(index) => gone_is_fine(handle.link().del(index).execute().await),
            Err(_) => Ok(()),
        },
        Undo::Address(device, address) => {
            let Ok(index) = index(&device) else { return Ok(()) };
            let mut add = handle.address().add(index, address.addr(), address.prefix_len());
            let message = add.message_mut().clone();
            gone_is_fine(handle.address().del(message).execute().await)
        }
        Undo::Route(message) => gone_is_fine(handle.route().del(*message).execute().await),
        Undo::Rule(message) => gone_is_fine(handle.rule().del(*message).execute().await),
        Undo::Sysctl(sysctls, key) => tokio::task::spawn_blocking(move || sysctls.restore(&key)).await?,
        Undo::Table(table) => tokio::task::spawn_blocking(move || nat::remove(&table)).await?,
        // Waits for nft to end.
        Undo::Kept(keeper) => Ok(tokio::task::spawn_blocking(move || drop(keeper)).await?),
        Undo::Subflows(count) => mptcp::limit(count),
        Undo::Endpoint(id) => mptcp::remove(id),
    }
}

/// Restores an address (with the kernel's route to its network), a route, a rule or an owned table that
/// another program has removed; returns its description if it was missing.
pub async fn again(handle: &Handle, undo: &Undo) -> anyhow::Result<Option<String>> {
    let mut done = make(handle, undo, false).await?;
    let what = match undo {
        Undo::Address(device, address) if matches!(&done, Err(error) if exists(error)) => {
            if address.prefix_len() < address.max_prefix_len() {
                let route = connected(index(device)?, *address)?;
                done = handle.route().add(route).execute().await;
            }
            format!("route to {} by {device}", address.trunc())
        }
        Undo::Address(device, address) => format!("address {address} of {device}"),
        Undo::Route(message) => {
            let table = message.attributes.iter().find_map(|attribute| match attribute {
                RouteAttribute::Table(table) => Some(*table),
                _ => None,
            });
            let table = table.unwrap_or_else(|| message.header.table.into());
            format!("route in table {table}")
        }
        Undo::Rule(message) => {
            let priority = message.attributes.iter().find_map(|attribute| match attribute {
                RuleAttribute::Priority(priority) => Some(*priority),
                _ => None,
            });
            format!("rule {}", priority.unwrap_or_default())
        }
        Undo::Kept(keeper) => {
            let keeper = keeper.clone();
            let made = tokio::task::spawn_blocking(move || keeper.revive()).await??;
            return Ok(made.map(|table| format!("nftables table {table} (its nft has ended)")));
        }
        _ => return Ok(None),
    };
    match done {
        Ok(()) => Ok(Some(what)),
        Err(error) if exists(&error) => Ok(None),
        Err(error) => Err(explain(error).context(what)),
    }
}

fn exists(error: &rtnetlink::Error) -> bool {
    matches!(error, rtnetlink::Error::NetlinkError(message)
        if message.raw_code() == -(nix::errno::Errno::EEXIST as i32))
}

/// Removes the leftovers of a killed run.
pub async fn clean(handle: &Handle, device: &str, mark: Option<u32>) -> anyhow::Result<()> {
    for version in [IpVersion::V4, IpVersion::V6] {
        let mut rules = handle.rule().get(version).execute();
        while let Some(rule) = answer(&mut rules).await? {
            let ours = |a: &RuleAttribute| matches!(a, RuleAttribute::FwMark(m) if Some(*m) == mark);
            let numbered = |a: &RuleAttribute| matches!(a, RuleAttribute::Priority(p) if (RULE_PRIORITY..RULE_PRIORITY + 8).contains(p));
            if rule.attributes.iter().any(ours) && rule.attributes.iter().any(numbered) {
                tracing::info!("removing a routing rule that an earlier run left");
                gone_is_fine(handle.rule().del(rule).execute().await)?;
            }
        }
    }
    // Connections of a TCP lane can outlive their program, and with them its namespace and veth pair.
    let [lane, _] = lane::lane_pair(device);
    if let Ok(index) = index(&lane)
        && is_veth(handle, index).await?
    {
        tracing::info!("removing the device {lane} that an earlier run left");
        gone_is_fine(handle.link().del(index).execute().await)?;
    }
    if let Ok(index) = index(device) {
        if !is_veth(handle, index).await? {
            bail!(
                "device {device} exists already and is not ours: stop the program that has it, or choose another \
                 [device] name"
            );
        }
        tracing::info!("removing the device {device} that an earlier run left");
        gone_is_fine(handle.link().del(index).execute().await)?;
    }
    Ok(())
}

/// Removes rules with these priorities, and routes of these tables with [`PROTOCOL`].
pub async fn clean_tables(handle: &Handle, priorities: Range<u32>, tables: &[u32]) -> anyhow::Result<()> {
    for version in [IpVersion::V4, IpVersion::V6] {
        let mut rules = handle.rule().get(version.clone()).execute();
        while let Some(rule) = answer(&mut rules).await? {
            let has = |is: &dyn Fn(&RuleAttribute) -> bool| rule.attributes.iter().any(is);
            if has(&|a| *a == RuleAttribute::Protocol(RouteProtocol::Other(PROTOCOL)))
                && has(&|a| matches!(a, RuleAttribute::Priority(p) if priorities.contains(p)))
                && has(&|a| matches!(a, RuleAttribute::Table(t) if tables.contains(t)))
            {
                tracing::info!("removing a routing rule that an earlier run left");
                gone_is_fine(handle.rule().del(rule).execute().await)?;
            }
        }
        for table in tables {
            let builder = match version {
                IpVersion::V4 => RouteMessageBuilder::<std::net::Ipv4Addr>::new().table_id(*table).build(),
                IpVersion::V6 => RouteMessageBuilder::<std::net::Ipv6Addr>::new().table_id(*table).build(),
            };
            let mut routes = handle.route().get(builder).execute();
            while let Some(route) = answer(&mut routes).await? {
                let there = route.attributes.contains(&RouteAttribute::Table(*table));
                if there && route.header.protocol == RouteProtocol::Other(PROTOCOL) {
                    tracing::info!(table, "removing a route that an earlier run left");
                    gone_is_fine(handle.route().del(route).execute().await)?;
                }
            }
        }
    }
    Ok(())
}

/// Time limit for the kernel's answer. The kernel answers at once, but on a busy machine this program may be
/// late.
const ANSWER: Duration = Duration::from_secs(30);

/// The next part of the kernel's answer; `None` at its end, or if the request does not apply, for example
/// IPv6 rules in a kernel without IPv6.
///
/// # Errors
/// There was no answer, so nothing can be concluded about its contents.
pub async fn answer<T>(
    answers: &mut (impl Stream<Item = Result<T, rtnetlink::Error>> + Unpin),
) -> anyhow::Result<Option<T>> {
    answer_within(ANSWER, answers).await
}

async fn answer_within<T>(
    most: Duration,
    answers: &mut (impl Stream<Item = Result<T, rtnetlink::Error>> + Unpin),
) -> anyhow::Result<Option<T>> {
    match tokio::time::timeout(most, answers.next()).await {
        Ok(next) => Ok(next.and_then(Result::ok)),
        // The library also never returns an answer that it cannot parse.
        Err(_) => bail!("rtnetlink has not answered within {} s", most.as_secs_f32()),
    }
}

async fn is_veth(handle: &Handle, index: u32) -> anyhow::Result<bool> {
    let mut links = handle.link().get().match_index(index).execute();
    let link = answer(&mut links).await?;
    Ok(link.is_some_and(|link| {
        link.attributes.iter().any(|attribute| match attribute {
            LinkAttribute::LinkInfo(infos) => infos.contains(&LinkInfo::Kind(InfoKind::Veth)),
            _ => false,
        })
    }))
}

fn route(index: u32, to: IpNet, table: u32) -> anyhow::Result<RouteMessage> {
    let message = RouteMessageBuilder::<IpAddr>::new()
        .destination_prefix(to.network(), to.prefix_len())
        .with_context(|| format!("destination {to}"))?
        .output_interface(index)
        .table_id(table)
        .protocol(RouteProtocol::Other(PROTOCOL))
        .scope(if to.addr().is_ipv4() { RouteScope::Link } else { RouteScope::Universe })
        .build();
    Ok(message)
}

/// The route that the kernel adds and removes with an address.
fn connected(index: u32, address: IpNet) -> anyhow::Result<RouteMessage> {
    let mut message = route(index, address.trunc(), u32::from(RouteHeader::RT_TABLE_MAIN))?;
    message.header.protocol = RouteProtocol::Kernel;
    match address.addr() {
        IpAddr::V4(source) => message.attributes.push(RouteAttribute::PrefSource(source.into())),
        IpAddr::V6(_) => message.attributes.push(RouteAttribute::Priority(CONNECTED_METRIC)),
    }
    Ok(message)
}

fn local(index: u32, to: IpNet, table: u32) -> anyhow::Result<RouteMessage> {
    let v6 = to.addr().is_ipv6();
    let message = RouteMessageBuilder::<IpAddr>::new()
        .destination_prefix(to.network(), to.prefix_len())
        .with_context(|| format!("destination {to}"))?
        .output_interface(index)
        .table_id(table)
        .protocol(RouteProtocol::Other(PROTOCOL))
        .kind(RouteType::Local)
        .scope(if v6 { RouteScope::Universe } else { RouteScope::Host })
        .build();
    Ok(message)
}

fn rule(v6: bool, order: u32, table: u32, unless_mark: u32, suppress_default: bool) -> RuleMessage {
    let mut message = RuleMessage::default();
    message.header.family = if v6 { AddressFamily::Inet6 } else { AddressFamily::Inet };
    message.header.action = RuleAction::ToTable;
    message.header.flags = RuleFlags::Invert;
    message.header.table = u8::try_from(table).unwrap_or(0);
    message.attributes = vec![
        RuleAttribute::Priority(RULE_PRIORITY + order),
        RuleAttribute::FwMark(unless_mark),
        RuleAttribute::Table(table),
        RuleAttribute::Protocol(RouteProtocol::Other(PROTOCOL)),
    ];
    if suppress_default {
        message.attributes.push(RuleAttribute::SuppressPrefixLen(0));
    }
    message
}

fn index(device: &str) -> anyhow::Result<u32> {
    Ok(anabranch_kern::interface::index(device)?)
}

fn write_sysctl(key: &str, value: &str) -> anyhow::Result<()> {
    let path = format!("/proc/sys/{key}");
    std::fs::write(&path, value).with_context(|| format!("writing {value} to {path}"))
}

fn gone_is_fine(result: Result<(), rtnetlink::Error>) -> anyhow::Result<()> {
    use nix::errno::Errno::{EADDRNOTAVAIL, ENODEV, ENOENT, ESRCH};
    match result {
        Err(rtnetlink::Error::NetlinkError(message))
            if [ENODEV, ENOENT, ESRCH, EADDRNOTAVAIL].iter().any(|&e| message.raw_code() == -(e as i32)) =>
        {
            Ok(())
        }
        other => other.map_err(explain),
    }
}

fn explain(error: rtnetlink::Error) -> anyhow::Error {
    match error {
        rtnetlink::Error::NetlinkError(message)
            if message.raw_code() == -(nix::errno::Errno::EPERM as i32) =>
        {
            anyhow::anyhow!("not permitted: run as root, or give the program CAP_NET_ADMIN")
        }
        rtnetlink::Error::NetlinkError(message) => message.to_io().into(),
        other => other.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_missing_answer_is_an_error() {
        let soon = Duration::from_millis(20);
        let mut all = tokio_stream::iter([Ok(1), Ok(2)]);
        assert_eq!(answer_within(soon, &mut all).await.unwrap(), Some(1));
        assert_eq!(answer_within(soon, &mut all).await.unwrap(), Some(2));
        assert_eq!(answer_within(soon, &mut all).await.unwrap(), None);
        let mut silent = tokio_stream::pending::<Result<u32, rtnetlink::Error>>();
        let error = answer_within(soon, &mut silent).await.unwrap_err().to_string();
        assert!(error.contains("has not answered within 0.02 s"), "{error}");
    }
}
