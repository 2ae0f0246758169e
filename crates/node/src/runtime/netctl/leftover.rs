//! Leftovers of proxies and TCP lanes that have ended. They are found without a configuration file, because
//! an unreadable file must not keep a host cut off.
//!
//! A running program listens on the port to which it redirects flows. Therefore a table that redirects to a
//! port on which nobody listens is a leftover, and so is a rule to a table of `local` routes whose mark is
//! set by no remaining table.

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

/// Prefix of the names of tables.
const PREFIX: &str = "anabranch_";
/// Longest wait for another program that sets up or cleans up.
const TURN: Duration = Duration::from_secs(10);
/// Longest wait for the removal of a table whose program has just ended.
const GOING: Duration = Duration::from_secs(3);

/// Acquires the turn to set up or clean up, which only one program of this namespace has at a time.
///
/// # Errors
/// A socket cannot be created.
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

/// A table with the ports and marks of its redirections.
#[derive(Debug, PartialEq, Eq)]
struct TableRedirections {
    table: String,
    ports: BTreeSet<u16>,
    marks: BTreeSet<u32>,
}

/// Removes all leftovers.
pub async fn clean(handle: &Handle) -> anyhow::Result<()> {
    let tables = tokio::task::spawn_blocking(tables).await??;
    let (living, dead): (Vec<TableRedirections>, Vec<TableRedirections>) =
        tables.into_iter().partition(|one| one.ports.iter().any(|port| is_taken(*port)));
    for one in dead {
        tracing::info!(table = one.table, "removing the redirection to a proxy that has ended");
        remove(&one.table).await?;
    }
    let alive: BTreeSet<u32> = living.into_iter().flat_map(|one| one.marks).collect();
    let orphans = orphans(handle, &alive).await?;
    steps::clean_tables(handle, PROXY_PRIORITY..PROXY_PRIORITY + 1, &orphans).await
}

/// Removes a table, if it exists. If its program has just ended, waits until the kernel removes the table.
///
/// # Errors
/// The table stays, because its program is running.
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
            bail!("nftables table {table} belongs to a running program: stop it first");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Whether a program listens on this port. Connections in TIME_WAIT do not count.
fn is_taken(port: u16) -> bool {
    let bind = || {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, port)).into())
    };
    matches!(bind(), Err(error) if error.kind() == std::io::ErrorKind::AddrInUse)
}

/// The nftables tables of this machine that redirect flows to a port.
fn tables() -> anyhow::Result<Vec<TableRedirections>> {
    let mut all = Vec::new();
    for table in names()? {
        match nft(&["list", "table", "inet", &table]) {
            Ok(said) => all.extend(leads(table, &said)),
            // A table that was removed meanwhile is skipped; an error about an existing one is returned.
            Err(error) => anyhow::ensure!(!names()?.contains(&table), error),
        }
    }
    Ok(all)
}

/// Names of the tables with the prefix.
pub fn names() -> anyhow::Result<Vec<String>> {
    let said = nft(&["list", "tables", "inet"])?;
    let names = said.lines().filter_map(|line| line.strip_prefix("table inet ")?.split_whitespace().next());
    Ok(names.filter(|name| name.starts_with(PREFIX)).map(str::to_owned).collect())
}

/// Parses the redirections of a table; `None` if it has none. Parses nft's text format, because the JSON of
/// nft 1.0.6 has random table flags.
fn leads(table: String, said: &str) -> Option<TableRedirections> {
    let mut one = TableRedirections { table, ports: BTreeSet::new(), marks: BTreeSet::new() };
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

/// The output of nft. Without nft, there are no tables.
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

/// Routing tables of proxies whose mark is set by no table.
async fn orphans(handle: &Handle, alive: &BTreeSet<u32>) -> anyhow::Result<Vec<u32>> {
    // A program killed during its start may have left a route without a rule.
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

/// Routing tables with `local` routes of anabranch.
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

/// A rule or route of another program for a proxy's mark or the next one, or for the table of the mark. `None`: there is at
/// most what a killed proxy leaves.
pub async fn other_use(handle: &Handle, mark: u32) -> anyhow::Result<Option<String>> {
    for (version, ip) in [(IpVersion::V4, "ip"), (IpVersion::V6, "ip -6")] {
        let mut rules = handle.rule().get(version).execute();
        while let Some(rule) = answer(&mut rules).await? {
            if mark_of(&rule) == Some(mark) {
                continue;
            }
            let used = rule.attributes.iter().find_map(|attribute| match attribute {
                RuleAttribute::FwMark(of) if [mark, mark + 1].contains(of) => Some(format!("mark {of}")),
                RuleAttribute::Table(table) if *table == mark => Some(format!("routing table {mark}")),
                _ => None,
            });
            if let Some(used) = used {
                return Ok(Some(format!("a rule of another program uses {used} (`{ip} rule`)")));
            }
        }
    }
    let v4 = RouteMessageBuilder::<Ipv4Addr>::new().table_id(mark).build();
    let v6 = RouteMessageBuilder::<Ipv6Addr>::new().table_id(mark).build();
    for (message, ip) in [(v4, "ip"), (v6, "ip -6")] {
        let mut routes = handle.route().get(message).execute();
        while let Some(route) = answer(&mut routes).await? {
            let of_a_proxy = route.header.protocol == RouteProtocol::Other(PROTOCOL)
                && route.header.kind == RouteType::Local
                && route.header.destination_prefix_length == 0;
            if route.attributes.contains(&RouteAttribute::Table(mark)) && !of_a_proxy {
                return Ok(Some(format!(
                    "another program has routes in table {mark} (`{ip} route show table {mark}`)"
                )));
            }
        }
    }
    Ok(None)
}

/// The mark of a rule of a proxy, which is also the number of its table.
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

/// Whether a table contains `local` routes, as a proxy's; the table of the answers of a UPF's lane does not.
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
    // A rule without routes has no effect.
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
    fn redirections_of_a_table_are_parsed() {
        let text = "table inet anabranch_x { # progname nft\n\tflags owner\n\tchain prerouting {\n\
            \t\tmeta nfproto ipv4 meta mark 0x0000ab60 meta l4proto tcp tproxy ip to 127.0.0.1:15171 accept\n\
            \t\tmeta nfproto ipv6 meta mark 0xfffffffe meta l4proto udp tproxy ip6 to [::1]:9 accept\n\t}\n}\n";
        let one = leads("anabranch_x".into(), text).unwrap();
        assert_eq!((one.ports, one.marks), ([15_171, 9].into(), [0xab60, 0xffff_fffe].into()));
        assert_eq!(leads("anabranch_x".into(), "table inet anabranch_x {\n\tchain tproxy {\n\t}\n}\n"), None);
    }

    /// What a killed proxy leaves is no use by another program, and everything else is, in both families.
    #[test]
    fn rules_and_routes_of_other_programs_are_told_from_leftovers() {
        in_private_network(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                sh("ip link add va type veth peer vb; ip link set va up; ip addr add 10.9.0.1/24 dev va
                    ip addr add fd09::1/64 dev va nodad");
                let net = Net::open().unwrap();
                let left = net.redirect(tproxy("dead", 520, 15_171)).await.unwrap();
                drop(net.claim_marks(520).await.unwrap().unwrap());
                for (more, parts) in [
                    (
                        "route add default via 10.9.0.2 table 520 proto 171 metric 7",
                        ["routes in table 520", "`ip route"],
                    ),
                    (
                        "route add local 192.0.2.0/24 dev lo table 520 proto 171",
                        ["in table 520", "`ip route"],
                    ),
                    (
                        "-6 route add default dev va table 520 metric 7",
                        ["routes in table 520", "`ip -6 route"],
                    ),
                    ("rule add fwmark 520 lookup 530 priority 20700 proto 171", ["mark 520", "`ip rule"]),
                    ("rule add fwmark 521 lookup main", ["mark 521", "`ip rule"]),
                    ("-6 rule add from fd09::/64 lookup 520", ["routing table 520", "`ip -6 rule"]),
                ] {
                    sh(&format!("ip {more}"));
                    let before = picture();
                    let why = net.claim_marks(520).await.unwrap().unwrap_err();
                    assert!(parts.iter().all(|part| why.contains(part)), "{more}: {why}");
                    assert_eq!(picture(), before);
                    sh(&format!("ip {}", more.replace(" add ", " del ")));
                }
                drop(net.claim_marks(520).await.unwrap().unwrap());
                net.undo(left).await;
            });
        });
    }

    /// Leftovers with any names, marks and ports are removed, and nothing else.
    #[test]
    fn leftovers_are_removed_and_running_programs_keep_theirs() {
        in_private_network(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let net = Net::open().unwrap();
                // Tables of other programs, even with the prefix, and rules with the same priority.
                sh("nft add table inet anabranch_other; nft add table ip foreign
                    ip rule add fwmark 7 table 7 priority 20600
                    ip link add va type veth peer vb; ip link set va up; ip addr add 10.9.0.1/24 dev va
                    ip rule add fwmark 0xab68 table 43880 priority 20600 proto 171
                    ip route add default via 10.9.0.2 table 43880 proto 171");
                let living = std::net::TcpListener::bind("127.0.0.1:15200").unwrap();
                let layer = net.redirect(tproxy("living", 0xab70, 15_200)).await.unwrap();
                let before = picture();
                for (name, mark, port) in
                    [("proxy", 0xab60, 15_171), ("a-b", 300, 9), ("z", u32::MAX - 1, 65_535)]
                {
                    let dead = tproxy(name, mark, port);
                    let left = net.redirect(dead.clone()).await.unwrap();
                    // On a kernel without owned tables, the table would stay, too.
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
