use super::super::config::{Device, UpfConfig, WithoutAddress, parse};
use super::plan::packet_device;
use super::*;
use crate::testing::{in_private_network, sh};
use std::time::{Duration, Instant};

fn with_runtime<T>(body: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(body)
}

/// The complete configuration of the namespace that a plan may change.
fn picture() -> String {
    // With a delay after links come up, the kernel adds link-local addresses, and later records missing
    // carriers and the result of duplicate address detection.
    sh("ip -o addr | grep -v ' fe80:' | sed 's/ tentative//'; ip -o link | grep -v anb | sed 's/ state .*//; s/<.*>//' || true; ip rule; ip -6 rule
        ip route show table all | grep -v ' dev va' | grep -v 'fe80:' | sed 's/ linkdown//; s/ *$//' || true
        nft list ruleset; cat /proc/sys/net/ipv4/ip_forward /proc/sys/net/ipv4/conf/*/rp_filter")
}

fn upf_config() -> UpfConfig {
    parse("upf.example.toml", include_str!("../../../../../packaging/upf.example.toml")).unwrap()
}

#[test]
fn everything_applied_is_undone() {
    in_private_network(|| {
        with_runtime(async {
            let net = Net::open().unwrap();
            let before = picture();
            let config = upf_config();
            let mut layer = net.apply(packet_device(&config.device, None)).await.unwrap();
            layer.0.extend(net.apply(upf(&config, 1400)).await.unwrap().0);
            let during = picture();
            assert!(during.contains("10.45.0.1/16") && during.contains("masquerade"), "{during}");
            assert!(sh("nft list ruleset").contains("oifname != \"anb0\""));
            // Another program removes all rules of the host.
            let plan = upf(&config, 1400);
            assert_eq!(net.restore_tables(&plan).await.unwrap(), [""; 0]);
            let rules = sh("nft list ruleset; nft flush ruleset");
            assert_eq!(net.restore_tables(&plan).await.unwrap(), ["anabranch_anb0"]);
            assert_eq!(sh("nft list ruleset"), rules);
            net.undo(layer).await;
            assert_eq!(picture(), before);
        });
    });
}

#[test]
fn removed_parts_are_restored_and_nothing_else_is_changed() {
    in_private_network(|| {
        with_runtime(async {
            let net = Net::open().unwrap();
            let device = Device {
                routes: ["0.0.0.0/0", "::/0"].map(|to| to.parse().unwrap()).into(),
                ..Device::default()
            };
            let mut layer = net.apply(packet_device(&device, None)).await.unwrap();
            let addresses = ["10.45.0.2".parse().unwrap(), "fd45::2".parse().unwrap()];
            layer.0.extend(net.apply(session_of_ue(&device, &addresses, 1400)).await.unwrap().0);
            let before = picture();
            for remove in [
                "true",
                "ip rule del pref 21001; ip -6 rule del pref 21002",
                "ip route flush table 43867; ip -6 route flush table 43867",
                "ip addr flush dev anb0",
            ] {
                let mut monitor = Monitor::open().unwrap();
                sh(remove);
                net.restore(&layer).await;
                assert_eq!(picture(), before, "{remove}");
                let told = tokio::time::timeout(Duration::from_millis(50), monitor.changed()).await;
                assert_eq!(told.is_ok(), remove != "true", "{remove}");
            }
            net.undo(layer).await;
        });
    });
}

#[test]
fn common_parts_stay_when_a_plan_replaces_another() {
    in_private_network(|| {
        with_runtime(async {
            let net = Net::open().unwrap();
            let device = |routes: &[&str]| Device {
                routes: routes.iter().map(|to| to.parse().unwrap()).collect(),
                ..Device::default()
            };
            let all = device(&["0.0.0.0/0", "::/0"]);
            let base = net.apply(packet_device(&all, None)).await.unwrap();
            let old_addresses = ["10.45.0.2".parse().unwrap(), "fd45::2".parse().unwrap()];
            let addresses = ["10.45.0.3".parse().unwrap(), "fd45::2".parse().unwrap()];
            let more = device(&["0.0.0.0/0", "::/0", "198.51.100.0/24"]);
            let some = device(&["198.51.100.0/24", "2001:db8:7::/48"]);
            let wanted = {
                let layer = net.apply(session_of_ue(&more, &addresses, 1400)).await.unwrap();
                let wanted = picture();
                net.undo(layer).await;
                wanted
            };

            let mut layer = net.apply(session_of_ue(&all, &old_addresses, 1400)).await.unwrap();
            let mut monitor = std::process::Command::new("ip");
            monitor.args(["-o", "monitor", "route", "rule"]).stdout(std::process::Stdio::piped());
            let mut monitor = monitor.spawn().unwrap();
            tokio::time::sleep(Duration::from_millis(300)).await;
            net.replace(&mut layer, session_of_ue(&more, &addresses, 1400)).await.unwrap();
            assert_eq!(picture(), wanted);
            tokio::time::sleep(Duration::from_millis(300)).await;
            monitor.kill().unwrap();
            let told = String::from_utf8(monitor.wait_with_output().unwrap().stdout).unwrap();
            assert!(told.contains("198.51.100.0/24"), "{told}");
            // The address that is removed takes its route with it.
            let gone: Vec<_> =
                told.lines().filter(|l| l.contains("Deleted") && !l.contains("10.45.0.2")).collect();
            assert!(gone.is_empty(), "{told}");

            let mut bad = session_of_ue(&some, &old_addresses, 1400);
            bad.push(Step::Address { device: "nothing0".into(), address: "192.0.2.1/24".parse().unwrap() });
            assert!(net.replace(&mut layer, bad).await.is_err());
            assert_eq!(picture(), wanted);

            net.replace(&mut layer, session_of_ue(&some, &addresses, 1400)).await.unwrap();
            assert!(!picture().contains("21002") && sh("ip rule").contains("21000"), "{}", picture());
            net.undo(layer).await;
            net.undo(base).await;
            assert!(!picture().contains("2100"), "{}", picture());
        });
    });
}

/// For every part that the new plan replaces, and every step that the kernel refuses.
#[test]
fn a_failed_replacement_leaves_the_previous_plan() {
    in_private_network(|| {
        sh("sysctl -qw net.ipv6.conf.default.addr_gen_mode=1
            ip link add va type veth peer vb; ip addr add 198.51.100.2/24 dev va; ip link set va up; ip link set vb up
            ip addr add 2001:db8::2/64 dev va nodad");
        with_runtime(async {
            let net = Net::open().unwrap();
            let route = |v6: bool, initcwnd| {
                Step::Slice(SliceRoute { v6, device: "va".into(), gateway: None, table: 512, initcwnd })
            };
            let select = |mark| Step::Select {
                priority: MARK_PRIORITY,
                table: 512,
                by: Selector { mark: Some(mark), ..Selector::default() },
            };
            let address = |to: &str| Step::Address { device: "va".into(), address: to.parse().unwrap() };
            let old = vec![address("203.0.113.1/32"), route(false, Some(39)), route(true, None), select(512)];
            let mut layer = net.apply(old).await.unwrap();
            let before = picture();
            let new =
                [address("203.0.113.2/32"), route(false, Some(100)), route(true, Some(100)), select(513)];
            // A group address, an existing rule, a missing device, a name that nft refuses.
            sh("ip rule add fwmark 600 lookup 512 pref 20999 proto 171");
            let refused = [
                (address("ff02::1/128"), "give va the address ff02::1/128"),
                (
                    Step::Select {
                        priority: 20999,
                        table: 512,
                        by: Selector { mark: Some(600), ..Selector::default() },
                    },
                    "rule 20999 for table 512: File exists",
                ),
                (
                    Step::Address { device: "nothing0".into(), address: "192.0.2.1/24".parse().unwrap() },
                    "nothing0",
                ),
                (
                    Step::Masquerade(Nat {
                        table: "x".repeat(300),
                        sources: Vec::new(),
                        device: "va".into(),
                        only_by: None,
                    }),
                    "translate addresses (nftables table xxx",
                ),
            ];
            for (bad, place) in refused {
                for at in 0..=new.len() {
                    let mut plan = new.to_vec();
                    plan.insert(at, bad.clone());
                    let error = format!("{:#}", net.replace(&mut layer, plan).await.unwrap_err());
                    assert!(error.contains(place), "{place}: {error}");
                    sh("ip rule del pref 20999");
                    assert_eq!(picture(), before, "{place}, at {at}");
                    sh("ip rule add fwmark 600 lookup 512 pref 20999 proto 171");
                }
            }
            sh("ip rule del pref 20999");
            net.replace(&mut layer, new.to_vec()).await.unwrap();
            assert!(sh("ip route show table 512").contains("initcwnd 100"));
            net.undo(layer).await;
        });
    });
}

#[test]
fn the_monitor_reports_removed_tables_only() {
    in_private_network(|| {
        with_runtime(async {
            let mut monitor = TableMonitor::open().unwrap();
            let soon = Duration::from_millis(200);
            sh(
                "nft 'add table inet a; add chain inet a c; add rule inet a c counter; delete chain inet a c; add table ip b'",
            );
            assert!(tokio::time::timeout(soon, monitor.removed()).await.is_err());
            for remove in ["nft delete table ip b", "nft flush ruleset"] {
                sh(remove);
                tokio::time::timeout(soon, monitor.removed()).await.expect(remove).unwrap();
            }
            // More notifications than the buffer holds: a removal may have been among them.
            sh("nft add table inet a; nft add chain inet a c");
            sh("yes add rule inet a c ip saddr 192.0.2.1 counter | head -n 20000 | nft -f -");
            tokio::time::timeout(soon, monitor.removed()).await.expect("many").unwrap();
        });
    });
}

#[test]
fn the_filter_blocks_packets_of_the_fast_path() {
    in_private_network(|| {
        // The tunnel's device represents the fast path's delivery to the kernel: packets of a UE, from
        // inside.
        sh("ip link add n6 type veth peer name srv; ip link set n6 up; ip link set srv up
            ip addr add 192.0.2.1/24 dev n6; ip -6 addr add 2001:db8:6::1/64 dev n6 nodad");
        with_runtime(async {
            let net = Net::open().unwrap();
            let before = picture();
            let mut config = upf_config();
            config.device.fast_path = true;
            config.n6.mode = super::super::config::N6Mode::Routed;
            config.n6.open = vec!["172.16.7.0/24".parse().unwrap()];
            config.pool.v6 = Some("fd45::/64".parse().unwrap());
            let mut layer = net.apply(packet_device(&config.device, None)).await.unwrap();
            layer.0.extend(net.apply(upf(&config, 1400)).await.unwrap().0);
            let rules = sh("nft -nn list table inet anabranch_anb0_to");
            let order = [
                "ip daddr 10.45.0.1 counter",
                "ip daddr 10.45.0.0/16 counter",
                "ip daddr 172.16.7.0/24 counter",
                "ip daddr 169.254.0.0/16 counter",
                "ip6 daddr 64:ff9b::a9fe:0/112 counter",
                "ip6 daddr fd45::1 counter",
                "ip6 daddr fc00::/7 counter",
            ];
            let places: Vec<_> = order
                .iter()
                .map(|rule| rules.find(rule).unwrap_or_else(|| panic!("{rule}: {rules}")))
                .collect();
            assert!(places.is_sorted(), "{rules}");
            assert_eq!(
                rules.matches("iifname \"anb0\"").count(),
                config.destinations().rules().len(),
                "{rules}"
            );
            // Killed here: the next start removes the table, with or without a filter of its own.
            std::mem::forget(layer);
            net.clean(&config.device.name, Some(config.device.mark), false).await.unwrap();
            assert!(!sh("nft list ruleset").contains("anabranch_anb0_to"));
            sh("sysctl -qw net.ipv4.ip_forward=0 net.ipv6.conf.all.forwarding=0");
            assert_eq!(picture(), before);
        });
    });
}

#[test]
fn a_failed_step_undoes_those_before_it() {
    in_private_network(|| {
        with_runtime(async {
            let net = Net::open().unwrap();
            let before = picture();
            let mut plan = packet_device(&upf_config().device, None);
            plan.extend(upf(&upf_config(), 1400));
            plan.push(Step::Address { device: "nothing0".into(), address: "192.0.2.1/24".parse().unwrap() });
            let error = net.apply(plan).await.err().unwrap();
            let text = format!("{error:#}");
            assert!(
                text.contains("give nothing0 the address 192.0.2.1/24") && text.contains("no interface"),
                "{text}"
            );
            assert_eq!(picture(), before);
        });
    });
}

#[test]
fn the_default_route_takes_everything_except_the_tunnel() {
    in_private_network(|| {
        sh("ip link add va type veth peer vb; ip addr add 198.51.100.2/24 dev va; ip link set va up; ip link set vb up
            ip route add default via 198.51.100.1; ip route add 203.0.113.0/24 via 198.51.100.1");
        with_runtime(async {
            let net = Net::open().unwrap();
            let before = picture();
            let device = Device {
                routes: vec!["0.0.0.0/0".parse().unwrap(), "203.0.113.128/25".parse().unwrap()],
                ..Device::default()
            };
            let addresses = ["10.45.0.2".parse().unwrap()];
            let mut layer = net.apply(packet_device(&device, None)).await.unwrap();
            layer.0.extend(net.apply(session_of_ue(&device, &addresses, 1400)).await.unwrap().0);
            let way = |to: &str| sh(&format!("ip route get {to}"));
            assert!(way("8.8.8.8").contains("dev anb0"), "{}", way("8.8.8.8"));
            assert!(way("203.0.113.200").contains("dev anb0"));
            assert!(way("203.0.113.1").contains("dev va"), "a more specific local route stays");
            assert!(way(&format!("8.8.8.8 mark {}", device.mark)).contains("dev va"), "no loop");
            // Killed here: the next start removes the rules and the device.
            std::mem::forget(layer);
            net.clean(&device.name, Some(device.mark), false).await.unwrap();
            assert_eq!(picture(), before);
        });
    });
}

#[test]
fn slices_are_selected_by_mark_and_by_flow_and_everything_is_removed() {
    in_private_network(|| {
        // Without automatic addresses, which would appear during the comparison.
        sh("sysctl -qw net.ipv6.conf.default.addr_gen_mode=1
            ip link add va type veth peer vb; ip addr add 198.51.100.2/24 dev va; ip link set va up; ip link set vb up
            ip link add vc type veth peer vd; ip addr add 203.0.113.2/24 dev vc; ip link set vc up; ip link set vd up
            ip addr add 2001:db8::2/64 dev vc nodad; ip route add default via 198.51.100.1");
        with_runtime(async {
            let net = Net::open().unwrap();
            let before = picture();
            let route = |v6: bool, table: u32, initcwnd: Option<u32>| {
                let gateway = if v6 { None } else { Some("203.0.113.1".parse().unwrap()) };
                Step::Slice(SliceRoute { v6, device: "vc".into(), gateway, table, initcwnd })
            };
            let mark = |v6: bool, table: u32, mark: u32| Step::Select {
                priority: MARK_PRIORITY,
                table,
                by: Selector { v6, mark: Some(mark), ..Selector::default() },
            };
            let flow = Selector {
                protocol: Some(6),
                remote: Some("192.0.2.0/24".parse().unwrap()),
                remote_port: Some((5000, 5100)),
                uid: Some(1234),
                ..Selector::default()
            };
            let plan = || {
                vec![
                    route(false, 512, None),
                    route(false, 513, Some(39)),
                    route(true, 513, Some(39)),
                    mark(false, 512, 512),
                    mark(false, 513, 513),
                    mark(true, 513, 513),
                    Step::Select { priority: MAPPING_PRIORITY, table: 513, by: flow.clone() },
                ]
            };
            let layer = net.apply(plan()).await.unwrap();
            let way = |to: &str| sh(&format!("ip route get {to}"));
            assert!(way("192.0.2.7").contains("dev va"), "{}", way("192.0.2.7"));
            assert!(way("192.0.2.7 mark 512").contains("via 203.0.113.1 dev vc"));
            assert!(way("192.0.2.7 mark 513").contains("initcwnd 39"), "{}", way("192.0.2.7 mark 513"));
            assert!(way("2001:db8:1::7 mark 513").contains("initcwnd 39"));
            let mapped = way("192.0.2.7 ipproto tcp dport 5050 uid 1234");
            assert!(mapped.contains("dev vc") && mapped.contains("initcwnd 39"), "{mapped}");
            for other in [
                "ipproto tcp dport 5101 uid 1234",
                "ipproto udp dport 5050 uid 1234",
                "ipproto tcp dport 5050 uid 1235",
            ] {
                assert!(way(&format!("192.0.2.7 {other}")).contains("dev va"), "{other}");
            }
            // Another window replaces the first.
            let wider = net.apply(vec![route(false, 513, Some(100))]).await.unwrap();
            assert_eq!(sh("ip route show table 513").lines().count(), 1);
            assert!(way("192.0.2.7 mark 513").contains("initcwnd 100"));
            net.undo(wider).await;
            net.undo(layer).await;
            assert_eq!(picture(), before);
            // Killed here: the next start removes it.
            std::mem::forget(net.apply(plan()).await.unwrap());
            net.clean_slices(&[512, 513]).await.unwrap();
            assert_eq!(picture(), before);
        });
    });
}

#[test]
fn multipath_tcp_endpoints_are_managed_and_foreign_ones_stay() {
    in_private_network(|| {
        sh("ip link add va type veth peer vb; ip link set va up; ip link set vb up
            ip addr add 192.0.2.2/24 dev va; ip addr add 2001:db8::2/64 dev va nodad
            ip addr add 192.0.2.3/24 dev va; ip addr add 192.0.2.4/24 dev va");
        let there = |what: &str| sh(&format!("ip mptcp {what} show")).trim().to_owned();
        if !std::path::Path::new("/proc/sys/net/mptcp/enabled").exists() {
            assert!(std::env::var_os("CI").is_none(), "CI must have Multipath TCP");
            return;
        }
        sh("ip mptcp endpoint add 192.0.2.3 dev va subflow; ip mptcp endpoint add 192.0.2.4 dev va signal
            ip mptcp limits set subflow 1 add_addr_accepted 5");
        let before = || (there("endpoint"), there("limits"));
        with_runtime(async {
            let net = Net::open().unwrap();
            let (first, endpoint) = (before(), |address: &str, backup| {
                let address = address.parse().unwrap();
                Step::Endpoint(MptcpEndpoint { device: "va".into(), address, backup })
            });
            let plan = || {
                vec![
                    Step::Subflows(3),
                    endpoint("192.0.2.2", true),
                    endpoint("2001:db8::2", false),
                    // An endpoint of another program that serves.
                    endpoint("192.0.2.3", false),
                ]
            };
            let layer = net.apply(plan()).await.unwrap();
            let now = there("endpoint");
            assert!(now.contains("192.0.2.2 id 171 subflow backup dev va"), "{now}");
            assert!(now.contains("2001:db8::2 id 172 subflow dev va"), "{now}");
            assert!(there("limits").contains("add_addr_accepted 5 subflows 3"), "{}", there("limits"));
            // No longer a backup; it is the same endpoint.
            let again = net.apply(vec![endpoint("192.0.2.2", false)]).await.unwrap();
            let now = there("endpoint");
            assert!(now.contains("192.0.2.2 id 171 subflow dev va") && now.lines().count() == 4, "{now}");
            net.undo(again).await;
            net.undo(layer).await;
            assert_eq!(before(), first);
            // If one step fails, none is applied.
            let mut wrong = plan();
            wrong.push(endpoint("192.0.2.4", false));
            let error = format!("{:#}", net.apply(wrong).await.err().unwrap());
            assert!(error.contains("192.0.2.4") && error.contains("without `subflow`"), "{error}");
            assert_eq!(before(), first);
            // Killed here: the next start removes it.
            std::mem::forget(net.apply(plan()).await.unwrap());
            net.clean_endpoints().unwrap();
            assert_eq!(there("endpoint"), first.0);
        });
    });
}

#[test]
fn a_foreign_device_is_not_touched() {
    in_private_network(|| {
        sh("ip link add link lo anb0 type macvlan 2>/dev/null || ip tuntap add anb0 mode tun");
        with_runtime(async {
            let error = Net::open().unwrap().clean("anb0", Some(7), false).await.unwrap_err().to_string();
            assert!(error.contains("not ours"), "{error}");
        });
        sh("ip link show anb0");
    });
}

#[test]
fn loss_of_carrier_address_or_route_is_detected() {
    in_private_network(|| {
        sh("ip link add va type veth peer vb; ip addr add 192.0.2.2/24 dev va; ip link set va up; ip link set vb up
            ip route add default via 192.0.2.1");
        let watched = Watched {
            interface: Some("va".into()),
            local: None,
            remote: "198.51.100.7:4500".parse().unwrap(),
            mark: 77,
        };
        with_runtime(async {
            let mut monitor = Monitor::open().unwrap();
            let steps = [
                // The kernel detects the carrier of a new link with a delay.
                ("true", None),
                ("ip link set vb down", Some("no carrier")),
                ("ip link set vb up", None),
                ("ip route del default", Some("no route to the UPF")),
                // A route that the netlink library cannot parse.
                ("ip route add default via 192.0.2.1 congctl lock reno", None),
                ("ip route del default", Some("no route to the UPF")),
                ("ip route add default via 192.0.2.1", None),
                ("ip addr del 192.0.2.2/24 dev va", Some("no address")),
                ("ip addr add 192.0.2.2/24 dev va; ip route add default via 192.0.2.1", None),
                ("ip link set va down", Some("interface is off")),
                ("ip link del va", Some("no such interface")),
            ];
            for (command, want) in steps {
                sh(command);
                let changed = Instant::now();
                loop {
                    let health = watched.health();
                    if health.trouble.as_deref() == want {
                        break;
                    }
                    assert!(changed.elapsed() < Duration::from_secs(3), "{command}: {health:?}");
                    let _ = tokio::time::timeout(Duration::from_secs(1), monitor.changed()).await;
                }
            }
        });
    });
}

#[test]
fn a_source_address_that_is_not_there_is_named_as_the_reason() {
    in_private_network(|| {
        sh("ip link add va type veth peer vb; ip addr add 192.0.2.2/24 dev va; ip link set va up; ip link set vb up
            ip route add default via 192.0.2.1");
        let trouble = |interface: Option<&str>, local: &str| {
            let watched = Watched {
                interface: interface.map(str::to_owned),
                local: Some(local.parse().unwrap()),
                remote: "198.51.100.7:4500".parse().unwrap(),
                mark: 77,
            };
            let start = Instant::now();
            loop {
                // The kernel detects the carrier of a new link with a delay.
                match watched.health().trouble.unwrap_or_default() {
                    wait if wait == "no carrier" && start.elapsed() < Duration::from_secs(3) => {
                        std::thread::sleep(Duration::from_millis(10));
                    }
                    trouble => return trouble.into_owned(),
                }
            }
        };
        assert_eq!(trouble(Some("va"), "192.0.2.2"), "");
        let is_not = "no address: local is not an address of";
        assert_eq!(trouble(Some("va"), "192.0.2.99"), format!("{is_not} the interface"));
        assert_eq!(trouble(None, "192.0.2.99"), format!("{is_not} this machine"));
    });
}

/// The kernel reports the second loss within a second late, if the ends of the pair have the same index (others are urgent).
#[test]
fn a_lost_carrier_is_seen_before_the_kernel_reports_it() {
    in_private_network(|| {
        let mut far = std::process::Command::new("unshare").args(["--net", "sleep", "60"]).spawn().unwrap();
        let namespace = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/net")).unwrap();
        while namespace(&far.id().to_string()) == namespace("thread-self") {
            std::thread::sleep(Duration::from_millis(10));
        }
        let there = format!("nsenter --net=/proc/{}/ns/net ip link set", far.id());
        let watched = ["va", "vb"].map(|name| {
            let index = u32::from(name.as_bytes()[1]);
            sh(&format!(
                "ip link add {name} index {index} type veth peer name {name} index {index} netns {}
                 {there} {name} up; ip link set {name} up; ip addr add 192.0.2.2/24 dev {name}",
                far.id()
            ));
            let remote = "192.0.2.7:4500".parse().unwrap();
            Watched { interface: Some(name.into()), local: None, remote, mark: 77 }
        });
        let start = Instant::now();
        while watched.iter().any(|watched| watched.health().trouble.is_some()) {
            assert!(start.elapsed() < Duration::from_secs(3));
            std::thread::sleep(Duration::from_millis(10));
        }
        sh(&format!("{there} va down; {there} vb down"));
        let trouble = watched.map(|watched| watched.health().trouble);
        let _ = far.kill();
        let _ = far.wait();
        assert_eq!(trouble.map(Option::unwrap_or_default), ["no carrier"; 2]);
    });
}

/// By name and by address, with and without an address of its own, before and while the interface is a port.
#[test]
fn a_port_is_reported_with_its_owner() {
    in_private_network(|| {
        sh("ip link add va type veth peer vb; ip link set va up; ip link set vb up
            ip link add br7 type bridge; ip link set br7 up; ip route add default dev va");
        let of = |interface: Option<&str>, local: Option<&str>| Watched {
            interface: interface.map(str::to_owned),
            local: local.map(|a| a.parse().unwrap()),
            remote: "198.51.100.7:4500".parse().unwrap(),
            mark: 77,
        };
        let (by_name, by_address) = (of(Some("va"), None), of(None, Some("192.0.2.2")));
        let until = |watched: &Watched, want: &str| {
            let start = Instant::now();
            loop {
                let trouble = watched.health().trouble.unwrap_or_default();
                if trouble.starts_with(want) && want.is_empty() == trouble.is_empty() {
                    return trouble;
                }
                assert!(start.elapsed() < Duration::from_secs(3), "{watched:?}: {trouble} for {want}");
            }
        };
        for (command, want) in [
            ("true", "no address"),
            ("ip addr add 192.0.2.2/24 dev va", ""),
            ("ip link set va master br7", "it is a port of br7 (bridge)"),
        ] {
            sh(command);
            until(&by_name, want);
            until(&by_address, want);
        }
        let told = until(&by_name, "it is a port");
        assert!(told.ends_with("name br7, or take it out of there"), "{told}");
        sh("ip addr flush dev va");
        until(&by_name, "it is a port of br7");
        // The bridge itself can be used, and the former port again.
        sh("ip addr add 192.0.2.2/24 dev br7; ip route replace default dev br7");
        until(&of(Some("br7"), None), "");
        until(&by_address, "");
        sh(
            "ip addr flush dev br7; ip link set va nomaster; ip addr add 192.0.2.2/24 dev va; ip route replace default dev va",
        );
        until(&by_name, "");
        assert_eq!((port_of("va"), port_of("nothing0")), (None, None));
    });
}

/// IPv6 prefixes in `routes` without an IPv6 address: packets do not leave through the default route, unless
/// configured so.
#[test]
fn destinations_without_a_tunnel_address_do_not_bypass_the_tunnel() {
    for (without_address, leaves) in [(WithoutAddress::Block, false), (WithoutAddress::Warn, true)] {
        in_private_network(|| {
            sh("ip link add va type veth peer vb; ip link set va up; ip link set vb up
                ip -6 addr add 2001:db8:1::2/64 dev va nodad; ip -6 route add default via 2001:db8:1::1
                ip addr add 198.51.100.2/24 dev va; ip route add default via 198.51.100.1");
            with_runtime(async {
                let net = Net::open().unwrap();
                let before = picture();
                for (given, other, to) in
                    [("10.45.0.2", "2001:db8:9::9", "8.8.8.8"), ("fd45::2", "8.8.8.8", "2001:db8:9::9")]
                {
                    let routes = vec!["0.0.0.0/0".parse().unwrap(), "::/0".parse().unwrap()];
                    let device = Device { routes, without_address, ..Device::default() };
                    let mut layer = net.apply(packet_device(&device, None)).await.unwrap();
                    let plan = session_of_ue(&device, &[given.parse().unwrap()], 1400);
                    layer.0.extend(net.apply(plan).await.unwrap().0);
                    let way = |to: &str| sh(&format!("ip route get {to}"));
                    assert!(way(to).contains("dev anb0"), "{}", way(to));
                    assert_eq!(way(other).contains("dev va"), leaves, "{}", way(other));
                    // The tunnel's own datagrams and destinations with specific routes are not affected.
                    let own = sh(&format!("ip route get {other} mark {}", device.mark));
                    assert!(own.contains("dev va"), "{own}");
                    assert!(
                        way("2001:db8:1::1").contains("dev va") && way("198.51.100.1").contains("dev va")
                    );
                    net.undo(layer).await;
                    assert_eq!(picture(), before);
                }
            });
        });
    }
}

#[test]
fn a_session_works_with_ipv6_disabled() {
    in_private_network(|| {
        sh("sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1");
        with_runtime(async {
            let net = Net::open().unwrap();
            let routes = vec!["0.0.0.0/0".parse().unwrap(), "::/0".parse().unwrap()];
            let device = Device { routes, ..Device::default() };
            let mut layer = net.apply(packet_device(&device, None)).await.unwrap();
            assert!(!has_ipv6(&device.name) && !has_ipv6("none"));
            let plan = session_of_ue(&device, &["10.45.0.2".parse().unwrap()], 1400);
            layer.0.extend(net.apply(plan).await.unwrap().0);
            assert!(sh("ip route get 8.8.8.8").contains("dev anb0"));
            net.undo(layer).await;
        });
    });
}

/// As after `kill -9`: the next run knows the original value and restores it.
#[test]
fn forwarding_is_restored_after_a_kill() {
    for before in ["0", "1"] {
        in_private_network(|| {
            let folder = tempfile::tempdir().unwrap();
            let forwarding = || sh("cat /proc/sys/net/ipv4/ip_forward").trim().to_owned();
            sh(&format!("sysctl -qw net.ipv4.ip_forward={before}"));
            with_runtime(async {
                let config = upf_config();
                let start = async || {
                    let net = Net::open().unwrap().remembering(folder.path(), &config.device.name);
                    net.clean(&config.device.name, Some(config.device.mark), false).await.unwrap();
                    let mut layer = net.apply(packet_device(&config.device, None)).await.unwrap();
                    layer.0.extend(net.apply(upf(&config, 1400)).await.unwrap().0);
                    assert_eq!(forwarding(), "1");
                    (net, layer)
                };
                for _ in 0..2 {
                    let (_net, mut layer) = start().await;
                    // Dropping releases the resources of the process but leaves its settings.
                    layer.0.clear();
                }
                let (net, layer) = start().await;
                net.undo(layer).await;
                assert_eq!(forwarding(), before);
                // Killed, and the next run does not need it.
                let (_net, mut layer) = start().await;
                layer.0.clear();
                let next = Net::open().unwrap().remembering(folder.path(), &config.device.name);
                next.restore_rest().await;
                assert_eq!(forwarding(), before);
            });
        });
    }
}
