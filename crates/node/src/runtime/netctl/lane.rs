//! Network configuration of the TCP lane (docs/tcp-lane.md): inside its namespace and, at a UPF, the egress
//! of its flows.
//!
//! ```text
//!  UE:  [ lane0 ]                         UPF: [ lane0     n6 ]── veth pair ──[ DEVICE-n ] host: forwarded as from the tunnel
//!         own addresses, one per path            UPF's      all of the pool is local           answers return by mark M
//! ```

use super::keeper::Keeper;
use super::slices::{PROXY_PRIORITY, Selector};
use super::steps::Step;
use super::{mptcp, tproxy};
use anabranch_atsss::{MAX_PATHS, PathId, tcp_lane};
use ipnet::{IpNet, Ipv6Net};
use serde_json::{Value, json};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::RawFd;

/// Name of the lane's interface in its namespace.
pub const LANE_DEVICE: &str = "lane0";
/// Name of the end of the veth pair in the namespace of a UPF's lane.
const N6_DEVICE: &str = "n6";
const MAIN_TABLE: u32 = 254;
const LOCAL_TABLE: u32 = 255;
/// Receive buffers (`tcp_rmem`: minimum, default, maximum), bytes. While a path is lost, data from other paths waits
/// in the buffer for the missing data. Linux 6.18 computes the window from the payload of earlier segments but charges
/// the buffer with their memory: a buffer just as large as the window would be filled by waiting data, and the missing
/// data could never be received.
const RECEIVE_BYTES: &str = "4096 4194304 33554432";

/// The steps common to both ends.
fn common(mtu: u16) -> Vec<Step> {
    vec![
        Step::Sysctl { key: "net/mptcp/enabled".to_owned(), value: "1", only_from: None },
        Step::Up { device: "lo".to_owned(), mtu: u16::MAX },
        Step::Up { device: LANE_DEVICE.to_owned(), mtu },
        // Each path may have a subflow.
        Step::Subflows(MAX_PATHS as u32),
    ]
}

/// The lane of a UE: an address per path, from which the path manager opens a subflow.
pub fn ue_lane_plan(session: Ipv4Addr, paths: PathId, mtu: u16) -> Vec<Step> {
    let mut plan = common(mtu);
    plan.push(Step::Sysctl { key: "net/ipv4/tcp_rmem".to_owned(), value: RECEIVE_BYTES, only_from: None });
    let device = || LANE_DEVICE.to_owned();
    for path in 0..paths {
        let endpoint = lane_endpoint(session, path);
        plan.push(Step::Address { device: device(), address: IpNet::from(endpoint.address) });
        plan.push(Step::Endpoint(endpoint));
    }
    plan.push(Step::Route {
        device: device(),
        to: IpNet::from(IpAddr::V6(tcp_lane::UPF)),
        table: MAIN_TABLE,
    });
    plan
}

/// The Multipath TCP endpoint of a path of a UE's lane.
pub fn lane_endpoint(session: Ipv4Addr, path: PathId) -> mptcp::Endpoint {
    let address = IpAddr::V6(tcp_lane::address(session, path));
    mptcp::Endpoint { device: LANE_DEVICE.to_owned(), address, backup: false }
}

/// Names of the veth pair of a UPF's lane: the host's end, and the other end before it is moved into the
/// namespace.
pub fn lane_pair(device: &str) -> [String; 2] {
    [format!("{device}-n"), format!("{device}-m")]
}

/// The lane of a UPF, inside its namespace: every address of the pools may be the source of a connection.
pub fn upf_lane_plan(device: &str, pools: &[IpNet], mtu: u16) -> Vec<Step> {
    let mut plan = common(mtu);
    let lane = || LANE_DEVICE.to_owned();
    let all_ues = Ipv6Net::new_assert(tcp_lane::address(Ipv4Addr::UNSPECIFIED, 0), 56).trunc();
    plan.push(Step::Address { device: lane(), address: IpNet::from(IpAddr::V6(tcp_lane::UPF)) });
    plan.push(Step::Route { device: lane(), to: IpNet::V6(all_ues), table: MAIN_TABLE });
    let [_, inside] = lane_pair(device);
    plan.push(Step::Rename { device: inside, to: N6_DEVICE.to_owned() });
    plan.push(Step::Up { device: N6_DEVICE.to_owned(), mtu });
    // ICMP errors of the host about a flow, such as Packet Too Big, have a source address that is local here.
    let key = format!("net/ipv4/conf/{N6_DEVICE}/accept_local");
    plan.push(Step::Sysctl { key, value: "1", only_from: None });
    for key in ["net/ipv4/ip_nonlocal_bind", "net/ipv6/ip_nonlocal_bind", "net/ipv4/tcp_tw_reuse"] {
        plan.push(Step::Sysctl { key: key.to_owned(), value: "1", only_from: None });
    }
    for pool in pools {
        plan.push(Step::Local { to: pool.trunc(), table: LOCAL_TABLE });
        plan.push(Step::Route { device: N6_DEVICE.to_owned(), to: everything(*pool), table: MAIN_TABLE });
    }
    plan
}

/// The lane of a UPF, on the host: the veth pair, and the route of answers.
pub fn lane_return_route(device: &str, namespace: RawFd, pools: &[IpNet], mark: u32, mtu: u16) -> Vec<Step> {
    let [outside, inside] = lane_pair(device);
    let mut plan = vec![Step::Pair { outside: outside.clone(), inside, namespace }];
    plan.push(Step::Up { device: outside.clone(), mtu });
    // Packets from the pair have source addresses that are routed to the tunnel's device.
    let key = format!("net/ipv4/conf/{outside}/rp_filter");
    plan.push(Step::Sysctl { key, value: "2", only_from: None });
    // Without an address of its own, the interface's setting would not apply.
    if let Some(address) =
        pools.iter().find(|pool| pool.addr().is_ipv4()).and_then(|pool| pool.hosts().next())
    {
        plan.push(Step::Address { device: outside.clone(), address: IpNet::from(address) });
    }
    for pool in pools {
        let v6 = pool.addr().is_ipv6();
        plan.push(Step::Route { device: outside.clone(), to: everything(*pool), table: mark });
        let by = Selector { v6, mark: Some(mark), ..Selector::default() };
        plan.push(Step::Select { priority: PROXY_PRIORITY, table: mark, by });
    }
    plan.push(Step::ReturnRoute(ReturnRoute { table: lane_table(device), device: outside, mark }));
    plan
}

/// Name of the nftables table of the lane that belongs to `device`.
pub fn lane_table(device: &str) -> String {
    format!("anabranch_{}_lane", device.replace('-', "_"))
}

fn everything(of_family: IpNet) -> IpNet {
    let any = if of_family.addr().is_ipv6() {
        IpAddr::V6(Ipv6Addr::UNSPECIFIED)
    } else {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED)
    };
    IpNet::new_assert(any, 0)
}

/// Answers to packets that arrived at a device return through it, and so do ICMP errors of this host about
/// them (nftables, connection tracking).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReturnRoute {
    /// Name of the nftables table.
    pub table: String,
    /// Name of the interface at which requests arrive.
    pub device: String,
    /// Mark of the connections and of their returning packets.
    pub mark: u32,
}

impl ReturnRoute {
    fn ruleset(&self, kept: bool) -> Value {
        let by = |op: &str| json!({"match": {"op": op, "left": {"meta": {"key": "iifname"}}, "right": self.device}});
        let ct = |key: &str, right: Value| json!({"match": {"op": "==", "left": {"ct": {"key": key}}, "right": right}});
        let rule = |chain: &str, expr: Vec<Value>| json!({"add": {"rule": {"family": "inet", "table": self.table, "chain": chain, "expr": expr}}});
        // After connection tracking, before routing (priority "mangle").
        let chain = |hook: &str, kind: &str| {
            json!({"add": {"chain": {
                "family": "inet", "table": self.table, "name": hook, "type": kind, "hook": hook, "prio": -150,
                "policy": "accept",
            }}})
        };
        let marked = json!({"mangle": {"key": {"ct": {"key": "mark"}}, "value": self.mark}});
        let back = || {
            let mark = json!({"mangle": {"key": {"meta": {"key": "mark"}}, "value": self.mark}});
            [ct("mark", json!(self.mark)), ct("direction", json!("reply")), mark]
        };
        let mut all = tproxy::emptied(&self.table, kept);
        all.extend([chain("prerouting", "filter"), chain("output", "route")]);
        all.push(rule("prerouting", vec![by("=="), marked]));
        all.push(rule("prerouting", std::iter::once(by("!=")).chain(back()).collect()));
        all.push(rule("output", back().to_vec()));
        json!({"nftables": all})
    }
}

/// Creates the table, which must not exist; if the kernel supports it, as a table that `nft flush ruleset`
/// does not remove and whose lifetime is that of this process.
pub fn install(return_route: &ReturnRoute) -> anyhow::Result<Option<Keeper>> {
    tproxy::keep(&return_route.table, |keeper| {
        tproxy::apply(&return_route.ruleset(keeper.is_some()), keeper, "nft_ct")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{in_private_network, sh};

    #[test]
    fn nft_accepts_the_ruleset() {
        in_private_network(|| {
            let return_route =
                ReturnRoute { table: lane_table("anb-0"), device: "anb-0-n".into(), mark: 0xab68 };
            let kept = install(&return_route).unwrap();
            sh("nft flush ruleset");
            let all = sh("nft list ruleset");
            assert_eq!(all.matches("table inet anabranch_anb_0_lane").count(), 1, "{all}");
            for line in [
                "iifname \"anb-0-n\" ct mark set 0x0000ab68",
                "iifname != \"anb-0-n\" ct mark 0x0000ab68 ct direction reply meta mark set 0x0000ab68",
                "type route hook output",
            ] {
                assert!(all.contains(line), "{line}\n{all}");
            }
            drop(kept);
            assert_eq!(sh("nft list ruleset"), "");
        });
    }
}
