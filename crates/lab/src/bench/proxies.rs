//! Added latency of 1, 64 and 512 TCP flows of 1 Mbit/s: the anabranch tunnel, nginx `stream`, shadowsocks-rust.
//!
//! ```text
//!  [client] ── veth "wire" ── [middle] ── veth "far" ── [server]
//!   UE                         UPF                                anabranch
//!                              nginx                              nginx stream
//!   sslocal                    ssserver                           shadowsocks-rust
//! ```

use super::ends::Upf;
use super::{Bench, CLIENT, Core, Result1, SERVER, figures, join, pinned, stats, traffic};
use crate::netns::program::Program;
use crate::netns::space::Space;
use crate::netns::traffic::{self as tasks, Messages, Task, TaskTimes};
use anyhow::{Context, Result};
use serde_json::json;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

pub const FLOWS: [u32; 3] = [1, 64, 512];
/// Size of a message; with [`INTERVAL`], 1 Mbit/s per flow.
const MESSAGE_BYTES: usize = 1250;
const INTERVAL: Duration = Duration::from_millis(10);
/// Addresses of the second hop.
const MIDDLE: &str = "198.51.100.1";
const FAR: &str = "198.51.100.2";
const PORT: u16 = 8000;
const PROXY_PORT: u16 = 8001;
/// Cipher of shadowsocks, of the same family as that of the tunnel.
const SS_METHOD: &str = "aes-256-gcm";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Direct,
    Anabranch,
    Polling,
    Kernel,
    Nginx,
    Shadowsocks,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Direct => "routed, no proxy",
            Self::Anabranch => "anabranch, secure",
            Self::Polling => "anabranch, secure, polling",
            Self::Kernel => "anabranch, plain, in the kernel",
            Self::Nginx => "nginx stream",
            Self::Shadowsocks => "shadowsocks-rust",
        }
    }

    fn key(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Anabranch => "secure",
            Self::Polling => "secure-polling",
            Self::Kernel => "plain-kernel",
            Self::Nginx => "nginx",
            Self::Shadowsocks => "shadowsocks",
        }
    }

    fn is_here(self, bench: &Bench) -> bool {
        match self {
            Self::Direct | Self::Anabranch | Self::Polling | Self::Kernel => true,
            Self::Nginx => bench.peer("nginx").is_some() && stream_module().is_some(),
            Self::Shadowsocks => bench.peer("sslocal").is_some() && bench.peer("ssserver").is_some(),
        }
    }
}

/// Debian packages the stream module of nginx separately.
fn stream_module() -> Option<&'static str> {
    let path = "/usr/lib/nginx/modules/ngx_stream_module.so";
    Path::new(path).exists().then_some(path)
}

pub fn run(bench: &Bench) -> Result<Result1> {
    let mut kinds =
        vec![Kind::Direct, Kind::Anabranch, Kind::Polling, Kind::Kernel, Kind::Nginx, Kind::Shadowsocks];
    kinds.retain(|kind| bench.wants(kind.key()));
    let mut notes: Vec<String> = kinds
        .iter()
        .filter(|kind| !kind.is_here(bench))
        .map(|kind| format!("left out: {} is not installed (./x bench tunnel installs it)", kind.name()))
        .collect();
    kinds.retain(|kind| kind.is_here(bench));
    let mut table =
        figures(&["flows", "", "p50 µs", "p99 µs", "added p50", "added p99", "messages", "late or lost"]);
    let mut rows = Vec::new();
    for &flows in &bench.flows {
        let mut of_kind = vec![Vec::new(); kinds.len()];
        // Contenders alternate within each round, so that a temporary slowdown of the machine affects all of them.
        for round in 1..=bench.rounds {
            for (kind, results) in kinds.iter().zip(&mut of_kind) {
                bench.doing(&format!("{flows} flows of 1 Mbit/s, round {round}: {}", kind.name()));
                let (mut delays, sent) = once(bench, *kind, flows as usize)?;
                let missing = sent.saturating_sub(delays.len() as u64);
                let [p50, p99] = [0.5, 0.99].map(|part| stats::quantile(&mut delays, part));
                results.push(Round { p50, p99, sent, missing });
            }
        }
        let mut base = None;
        for (kind, rounds) in kinds.iter().zip(&of_kind) {
            let median = |of: fn(&Round) -> u64| {
                let mut values: Vec<u64> = rounds.iter().map(of).collect();
                stats::quantile(&mut values, 0.5)
            };
            let (p50, p99) = (median(|r| r.p50), median(|r| r.p99));
            let total = |of: fn(&Round) -> u64| rounds.iter().map(of).sum::<u64>();
            let (sent, missing) = (total(|r| r.sent), total(|r| r.missing));
            let (base50, base99) = *base.get_or_insert((p50, p99));
            let added = |value: u64, base: u64| (value as f64 - base as f64) * 1e-3;
            table.add_row([
                flows.to_string(),
                kind.name().to_owned(),
                stats::us(p50),
                stats::us(p99),
                format!("{:+.1}", added(p50, base50)),
                format!("{:+.1}", added(p99, base99)),
                sent.to_string(),
                missing.to_string(),
            ]);
            rows.push(json!({
                "flows": flows, "through": kind.name(), "p50_us": p50 as f64 * 1e-3, "p99_us": p99 as f64 * 1e-3,
                "added_p50_us": added(p50, base50), "added_p99_us": added(p99, base99),
                "messages": sent, "missing": missing,
            }));
        }
    }
    notes.push(format!("medians of {} rounds of {} s", bench.rounds, bench.seconds.as_secs()));
    notes.push(
        "messages of 1,250 bytes every 10 ms per flow, from the time before the write to that after the read; CUBIC"
            .to_owned(),
    );
    Ok(Result1 { name: "proxies", table, json: rows.into(), notes })
}

/// Results of one round; delays in nanoseconds.
#[derive(Debug, Clone)]
struct Round {
    p50: u64,
    p99: u64,
    sent: u64,
    missing: u64,
}

/// Delay of each message, and number of messages sent.
fn once(bench: &Bench, kind: Kind, flows: usize) -> Result<(Vec<u64>, u64)> {
    let tag = format!("p{flows}{kind:?}").to_lowercase();
    let folder = bench.folder(&tag)?;
    let space = |name: &str| Space::create(&format!("{tag}-{name}"));
    let (client, middle, server) = (space("client")?, space("middle")?, space("server")?);
    join(&client, &middle, "wire", [CLIENT, SERVER], 30)?;
    join(&middle, &server, "far", [MIDDLE, FAR], 30)?;
    middle.sysctl(&[("net/ipv4/ip_forward", "1")])?;
    // Independent of the host's default: BBR paces, which costs a timer per packet. Set by route, so that it also applies to
    // the connections of the proxies.
    for (space, network, device, own) in [
        (&client, "192.0.2.0/30", "wire", CLIENT),
        (&middle, "192.0.2.0/30", "wire", SERVER),
        (&middle, "198.51.100.0/30", "far", MIDDLE),
    ] {
        space.ip(&format!("route replace {network} dev {device} src {own} congctl lock cubic"))?;
    }
    client.ip(&format!("route add {FAR}/32 via {SERVER} congctl lock cubic"))?;
    server.ip(&format!("route add default via {MIDDLE}"))?;

    let _running = through(bench, kind, &folder, &client, &middle)?;
    let to: SocketAddr = match kind {
        Kind::Direct | Kind::Anabranch | Kind::Polling | Kind::Kernel => format!("{FAR}:{PORT}"),
        Kind::Nginx => format!("{SERVER}:{PROXY_PORT}"),
        Kind::Shadowsocks => format!("127.0.0.1:{PROXY_PORT}"),
    }
    .parse()
    .context("address")?;
    // Proxies need time to accept hundreds of connections.
    let start_ns = tasks::now_ns() + 1_500_000_000 + flows as u64 * 10_000_000;
    let stop_ns = start_ns + u64::try_from(bench.seconds.as_nanos()).unwrap_or(u64::MAX / 2);
    let when = TaskTimes { start_ns, stop_ns, until_ns: stop_ns + 500_000_000 };
    let task = |address: SocketAddr, report: &str| Messages {
        address,
        when,
        flows,
        message_bytes: MESSAGE_BYTES,
        interval: INTERVAL,
        report: folder.join(report),
    };
    let listen = Task::MessagesListen(task(format!("{FAR}:{PORT}").parse().context("address")?, "delays"));
    let connect = Task::MessagesConnect(task(to, "sent"));
    let mut sink = Program::start(&server, "sink", &mut traffic(Core::Server, &listen)?, &folder, None)?;
    let ready = || server.enter(|| Ok(tasks::port_in_use(PORT, true))).unwrap_or(false);
    sink.wait_ready(Duration::from_secs(1), &bench.sandbox.stop, ready)?;
    let mut source = Program::start(&client, "source", &mut traffic(Core::Client, &connect)?, &folder, None)?;
    let deadline = Instant::now() + bench.seconds + Duration::from_secs(20);
    source.wait_success(deadline, &bench.sandbox.stop)?;
    sink.wait_success(deadline, &bench.sandbox.stop)?;
    let delays = tasks::delays(&folder.join("delays"))?;
    let sent =
        std::fs::read_to_string(folder.join("sent")).context("sent")?.trim().parse().context("sent")?;
    drop((source, sink));
    [client, middle, server].into_iter().for_each(Space::remove);
    Ok((delays, sent))
}

/// Programs between client and server; stopped on drop.
#[expect(dead_code, reason = "held for its end")]
enum Running {
    Nothing,
    Tunnel(super::ends::Tunnel),
    Programs(Vec<Program>),
}

fn through(bench: &Bench, kind: Kind, folder: &Path, client: &Space, middle: &Space) -> Result<Running> {
    let write = |name: &str, text: String| {
        let path = folder.join(name);
        std::fs::write(&path, text).with_context(|| path.display().to_string()).map(|()| path)
    };
    let listening = |program: &mut Program, space: &Space, port| {
        let ready = || space.enter(|| Ok(tasks::port_in_use(port, true))).unwrap_or(false);
        program.wait_ready(Duration::from_secs(5), &bench.sandbox.stop, ready)
    };
    match kind {
        Kind::Direct => Ok(Running::Nothing),
        Kind::Anabranch | Kind::Polling | Kind::Kernel => {
            let form = match kind {
                Kind::Kernel => super::ends::Kind::PlainKernel,
                Kind::Polling => super::ends::Kind::SecurePolling,
                _ => super::ends::Kind::Secure,
            };
            let upf = Upf::configure(bench, folder, &[], form)?;
            let far = upf.start(bench, middle)?;
            let tunnel = upf.join_at(bench, client, far, SERVER, "10.64.0.1/32")?;
            client.ip(&format!("route replace {FAR}/32 dev {} congctl lock cubic", super::ends::DEVICE))?;
            Ok(Running::Tunnel(tunnel))
        }
        Kind::Nginx => {
            let module = stream_module().context("nginx's stream module")?;
            let text = format!(
                "load_module {module};\nuser root;\nworker_processes 1;\ndaemon off;\npid {0}/nginx.pid;\nerror_log {0}/error.log;\n\
                 events {{ worker_connections 4096; }}\n\
                 stream {{ server {{ listen {PROXY_PORT}; tcp_nodelay on; proxy_pass {FAR}:{PORT}; }} }}\n",
                folder.display()
            );
            let config = write("nginx.conf", text)?;
            let nginx = bench.peer("nginx").context("nginx")?;
            let mut command = pinned(Core::Server, nginx);
            command.arg("-c").arg(config).arg("-p").arg(folder);
            let mut program = Program::start(middle, "nginx", &mut command, folder, None)?;
            listening(&mut program, middle, PROXY_PORT)?;
            Ok(Running::Programs(vec![program]))
        }
        Kind::Shadowsocks => {
            let server = json!({
                "server": "0.0.0.0", "server_port": 8388, "password": "bench", "method": SS_METHOD,
                "mode": "tcp_only", "no_delay": true,
            });
            let local = json!({
                "server": SERVER, "server_port": 8388, "password": "bench", "method": SS_METHOD, "no_delay": true,
                "mode": "tcp_only",
                "locals": [{
                    "protocol": "tunnel", "mode": "tcp_only", "local_address": "127.0.0.1",
                    "local_port": PROXY_PORT, "forward_address": FAR, "forward_port": PORT,
                }],
            });
            let start =
                |core, name: &str, space: &Space, config: serde_json::Value, port| -> Result<Program> {
                    let path = write(&format!("{name}.json"), config.to_string())?;
                    let mut command = pinned(core, bench.peer(name).context("shadowsocks-rust")?);
                    command.arg("--config").arg(path);
                    let mut program = Program::start(space, name, &mut command, folder, None)?;
                    listening(&mut program, space, port)?;
                    Ok(program)
                };
            let far = start(Core::Server, "ssserver", middle, server, 8388)?;
            let near = start(Core::Client, "sslocal", client, local, PROXY_PORT)?;
            Ok(Running::Programs(vec![near, far]))
        }
    }
}
