//! What proxies and TCP lanes that are gone have left, found without their configuration: a file that cannot be read must
//! not keep a host cut off.
//!
//! Who leads flows to a port has that port. So a table that leads to a port that nobody has is a leftover, whoever made
//! it, and so is a rule to a table of `local` routes whose mark no living table sets.

use super::claim;
use super::slices::PROXY_PRIORITY;
use super::steps::{self, PROTOCOL, answer};
use anyhow::{Context, bail};
use rtnetlink::packet_route::route::{RouteAttribute, RouteProtocol, RouteType};
use rtnetlink::packet_route::rule::{RuleAttribute, RuleMessage};
use rtnetlink::{Handle, IpVersion, RouteMessageBuilder};
use socket2::{Domain, Socket, Type};
use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::time::{Duration, Instant};

/// Tables of ours begin with this.
const PREFIX: &str = "anabranch_";
/// Longest wait for another program that sets up or cleans.
const TURN: Duration = Duration::from_secs(10);
/// Longest wait for a table to go whose program has just ended.
const GOING: Duration = Duration::from_secs(3);

/// Only one program of this namespace sets up or cleans at a time, as long as this lives.
///
/// # Errors
/// A socket cannot be made.
pub async fn only() -> anyhow::Result<Option<UnixDatagram>> {
    let start = Instant::now();
    loop {
        if let Some(socket) = claim::take("netctl")? {
            return Ok(Some(socket));
        }
        if start.elapsed() > TURN {
            tracing::warn!("another program has held the socket @anabranch-netctl for {} s", TURN.as_secs());
            return Ok(None);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// What a table leads where.
#[derive(Debug, PartialEq, Eq)]
struct Leads {
    table: String,
    ports: BTreeSet<u16>,
    marks: BTreeSet<u32>,
}

/// Removes every leftover.
pub async fn clean(handle: &Handle) -> anyhow::Result<()> {
    let tables = tokio::task::spawn_blocking(tables).await??;
    let (living, dead): (Vec<Leads>, Vec<Leads>) =
        tables.into_iter().partition(|one| one.ports.iter().any(|port| is_taken(*port)));
    for one in dead {
        tracing::info!(table = one.table, "removing what leads flows to a proxy that is gone");
        remove(&one.table).await?;
    }
    let alive: BTreeSet<u32> = living.into_iter().flat_map(|one| one.marks).collect();
    let orphans = orphans(handle, &alive).await?;
    steps::clean_tables(handle, PROXY_PRIORITY..PROXY_PRIORITY + 1, &orphans).await
}

/// Removes a table, if it is there. One that goes with a program that has just ended is waited for.
///
/// # Errors
/// It stays: the program that has it runs.
pub async fn remove(table: &str) -> anyhow::Result<()> {
    let start = Instant::now();
    loop {
        let name = table.to_owned();
        tokio::task::spawn_blocking(move || super::nat::remove(&name)).await??;
        let name = table.to_owned();
        let there = tokio::task::spawn_blocking(move || names().map(|all| all.contains(&name))).await??;
        if !there {
            return Ok(());
        }
        if start.elapsed() > GOING {
            bail!("nftables table {table} belongs to a program that runs: stop it first");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Whether a program listens there. What ended connections left behind does not count.
fn is_taken(port: u16) -> bool {
    let bind = || {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, port)).into())
    };
    matches!(bind(), Err(error) if error.kind() == std::io::ErrorKind::AddrInUse)
}

/// Tables of ours that lead flows somewhere.
fn tables() -> anyhow::Result<Vec<Leads>> {
    let mut all = Vec::new();
    for table in names()? {
        match nft(&["list", "table", "inet", &table]) {
            Ok(said) => all.extend(leads(table, &said)),
            // One that has gone meanwhile leads nowhere; of one that is there it must be known.
            Err(error) => anyhow::ensure!(!names()?.contains(&table), error),
        }
    }
    Ok(all)
}

/// Names of the tables of ours.
pub fn names() -> anyhow::Result<Vec<String>> {
    let said = nft(&["list", "tables", "inet"])?;
    let names = said.lines().filter_map(|line| line.strip_prefix("table inet ")?.split_whitespace().next());
    Ok(names.filter(|name| name.starts_with(PREFIX)).map(str::to_owned).collect())
}

/// Where a table leads flows; none: nowhere. Read as people do: in JSON nft 1.0.6 gives a wild pointer as the flags of a table.
fn leads(table: String, said: &str) -> Option<Leads> {
    let mut one = Leads { table, ports: BTreeSet::new(), marks: BTreeSet::new() };
    for line in said.lines() {
        let Some((matches, to)) = line.split_once(" tproxy ") else { continue };
        let port =
            to.split(':').next_back().and_then(|rest| rest.split_whitespace().next()?.parse::<u16>().ok());
        one.ports.extend(port);
        let mark = matches.split_once("meta mark ").and_then(|(_, rest)| rest.split_whitespace().next());
        one.marks.extend(mark.and_then(|hex| u32::from_str_radix(hex.strip_prefix("0x")?, 16).ok()));
    }
    (!one.ports.is_empty()).then_some(one)
}

/// What nft says. Where there is none, there is no table of ours.
fn nft(args: &[&str]) -> anyhow::Result<String> {
    let output = match Command::new("nft").args(args).output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(String::new()),
        other => other.context("running nft")?,
    };
    if !output.status.success() {
        bail!("nft {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Routing tables of proxies whose mark nobody sets.
async fn orphans(handle: &Handle, alive: &BTreeSet<u32>) -> anyhow::Result<Vec<u32>> {
    // One that was killed in the middle of its start may have a route, and no rule yet.
    let mut marks = local_tables(handle).await?;
    marks.retain(|mark| !alive.contains(mark));
    for version in [IpVersion::V4, IpVersion::V6] {
        let mut rules = handle.rule().get(version.clone()).execute();
        while let Some(rule) = answer(&mut rules).await? {
            marks.extend(mark_of(&rule).filter(|mark| !alive.contains(mark)));
        }
    }
    let mut found = Vec::new();
    for mark in marks {
        if is_local(handle, mark).await? {
            found.push(mark);
        }
    }
    Ok(found)
}

/// Tables with routes of ours that lead to this machine.
async fn local_tables(handle: &Handle) -> anyhow::Result<BTreeSet<u32>> {
    let v4 = RouteMessageBuilder::<Ipv4Addr>::new().build();
    let v6 = RouteMessageBuilder::<Ipv6Addr>::new().build();
    let mut tables = BTreeSet::new();
    for message in [v4, v6] {
        let mut routes = handle.route().get(message).execute();
        while let Some(route) = answer(&mut routes).await? {
            if route.header.protocol == RouteProtocol::Other(PROTOCOL)
                && route.header.kind == RouteType::Local
            {
                tables.extend(route.attributes.iter().find_map(|attribute| match attribute {
                    RouteAttribute::Table(table) => Some(*table),
                    _ => None,
                }));
            }
        }
    }
    Ok(tables)
}

/// The mark of a rule that leads to a proxy: also the number of its table.
fn mark_of(rule: &RuleMessage) -> Option<u32> {
    let has = |attribute: RuleAttribute| rule.attributes.contains(&attribute);
    let mark = rule.attributes.iter().find_map(|a| match a {
        RuleAttribute::FwMark(mark) => Some(*mark),
        _ => None,
    })?;
    (has(RuleAttribute::Protocol(RouteProtocol::Other(PROTOCOL)))
        && has(RuleAttribute::Priority(PROXY_PRIORITY))
        && has(RuleAttribute::Table(mark)))
    .then_some(mark)
}

/// Whether a table has routes as a proxy's: what answers of a UPF's lane go back by is none.
async fn is_local(handle: &Handle, table: u32) -> anyhow::Result<bool> {
    let v4 = RouteMessageBuilder::<Ipv4Addr>::new().table_id(table).build();
    let v6 = RouteMessageBuilder::<Ipv6Addr>::new().table_id(table).build();
    let (mut any, mut other) = (false, false);
    for message in [v4, v6] {
        let mut routes = handle.route().get(message).execute();
        while let Some(route) = answer(&mut routes).await? {
            if route.attributes.contains(&RouteAttribute::Table(table)) {
                any = true;
                other |= route.header.kind != RouteType::Local;
            }
        }
    }
    // A rule whose routes are gone leads nowhere.
    Ok(!other || !any)
}

#[cfg(test)]
mod tests {
    use super::super::{FlowRule, Net, Tproxy};
    use super::leads;
    use crate::testing::{in_private_network, sh};
    use anabranch_rules::Filter;

    fn tproxy(name: &str, mark: u32, port: u16) -> Tproxy {
        Tproxy {
            table: Tproxy::table_name(name),
            mark,
            port,
            v6: true,
            local: true,
            only_by: None,
            interfaces: Vec::new(),
            except: Vec::new(),
            flows: vec![FlowRule { filter: Filter::default(), take: true }],
            forwarded: Vec::new(),
            keeps_source: false,
        }
    }

    fn picture() -> String {
        sh("nft list ruleset; ip rule; ip -6 rule; ip route show table all; ip -6 route show table all")
    }

    #[test]
    fn where_a_table_leads_is_read() {
        let text = "table inet anabranch_x { # progname nft\n\tflags owner\n\tchain prerouting {\n\
            \t\tmeta nfproto ipv4 meta mark 0x0000ab60 meta l4proto tcp tproxy ip to 127.0.0.1:15171 accept\n\
            \t\tmeta nfproto ipv6 meta mark 0xfffffffe meta l4proto udp tproxy ip6 to [::1]:9 accept\n\t}\n}\n";
        let one = leads("anabranch_x".into(), text).unwrap();
        assert_eq!((one.ports, one.marks), ([15_171, 9].into(), [0xab60, 0xffff_fffe].into()));
        assert_eq!(leads("anabranch_x".into(), "table inet anabranch_x {\n\tchain tproxy {\n\t}\n}\n"), None);
    }

    /// Whatever names, marks and ports they had: what the dead left goes, and nothing else.
    #[test]
    fn what_the_dead_left_goes_and_what_lives_stays() {
        in_private_network(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let net = Net::open().unwrap();
                // Others' tables, even of our kind of name, and rules with our priority.
                sh("nft add table inet anabranch_other; nft add table ip foreign
                    ip rule add fwmark 7 table 7 priority 20600
                    ip link add va type veth peer vb; ip link set va up; ip addr add 10.9.0.1/24 dev va
                    ip rule add fwmark 0xab68 table 43880 priority 20600 proto 171
                    ip route add default via 10.9.0.2 table 43880 proto 171");
                let living = std::net::TcpListener::bind("127.0.0.1:15200").unwrap();
                let layer = net.lead(tproxy("living", 0xab70, 15_200)).await.unwrap();
                let before = picture();
                for (name, mark, port) in
                    [("proxy", 0xab60, 15_171), ("a-b", 300, 9), ("z", u32::MAX - 1, 65_535)]
                {
                    let dead = tproxy(name, mark, port);
                    let left = net.lead(dead.clone()).await.unwrap();
                    // As a kernel without tables that go would have it: also the table stays.
                    if port != 9 {
                        for undo in left.0 {
                            if matches!(undo, super::super::Undo::Kept(_)) {
                                drop(undo);
                                super::super::tproxy::replace(&dead, None).unwrap();
                            }
                        }
                    }
                }
                assert_ne!(picture(), before);
                net.clean_dead().await.unwrap();
                assert_eq!(picture(), before);
                drop(living);
                net.undo(layer).await;
                net.clean_dead().await.unwrap();
                let after = picture();
                assert!(after.contains("anabranch_other") && after.contains("43880"), "{after}");
                assert!(!after.contains("anabranch_living"), "{after}");
            });
        });
    }
}
