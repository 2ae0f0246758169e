//! The owner of a local flow: user id and cgroup, from the kernel's socket tables.
//!
//! There is one exact query per new flow that a rule matches on its owner (sock_diag(7), struct
//! inet_diag_req_v2), never a dump. Cgroup ids are inode numbers of /sys/fs/cgroup. An unknown id requires a
//! walk through all cgroups, which may take long; there is at most one per [`WALK_EVERY`], and the control
//! plane uses an [`OwnerThread`].

use anabranch_atsss::classify::FlowOwner;
use anabranch_wire::ip::FlowKey;
use anyhow::{Context, bail};
use nix::libc;
use rtnetlink::sys::{Socket, SocketAddr, constants::NETLINK_SOCK_DIAG};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::{Duration, Instant};

const CGROUP_ROOT: &str = "/sys/fs/cgroup";
/// Maximum number of directories in a walk; on a machine with more, some flows have no known cgroup.
const MAX_CGROUPS: usize = 4096;

/// Shortest interval between two walks, and its minimum as a multiple of the duration of the last walk. Flows
/// of a cgroup that is unknown meanwhile have none.
const WALK_EVERY: Duration = Duration::from_secs(1);
const WALK_SHARE: u32 = 10;
/// Maximum number of waiting requests; further ones are dropped, and their flows keep their rule.
const MAX_WAITING: usize = 1024;

const UDP: u8 = 17;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const INET_DIAG_CGROUP_ID: u16 = 21;
const HEADER_BYTES: usize = 16;
const REQUEST_BYTES: usize = HEADER_BYTES + 56;
const ANSWER_BYTES: usize = HEADER_BYTES + 72;
const UID_AT: usize = HEADER_BYTES + 64;

/// Looks up owners.
pub struct Owners {
    socket: Socket,
    root: PathBuf,
    cgroups: BTreeMap<u64, String>,
    /// Earliest time of the next walk.
    walk_after: Option<Instant>,
    walks: u64,
}

/// Looks up owners on a thread of its own.
pub struct OwnerThread(SyncSender<FlowKey>);

impl OwnerThread {
    /// Starts the thread, which passes each owner to `found`. It ends when this is dropped.
    pub fn start(
        mut owners: Owners,
        found: impl Fn(FlowKey, FlowOwner) + Send + 'static,
    ) -> anyhow::Result<Self> {
        let (wanted, asked) = sync_channel::<FlowKey>(MAX_WAITING);
        let run = move || {
            for flow in asked {
                let owner = owners.owner(&flow);
                found(flow, owner);
            }
        };
        std::thread::Builder::new().name("owners".into()).spawn(run).context("thread of owners")?;
        Ok(Self(wanted))
    }

    /// Queues a request without waiting; `false` if the queue is full.
    pub fn look_up(&self, flow: FlowKey) -> bool {
        self.0.try_send(flow).is_ok()
    }
}

impl Owners {
    /// Opens the query socket.
    pub fn open() -> anyhow::Result<Self> {
        let mut socket = Socket::new(NETLINK_SOCK_DIAG).context("opening sock_diag")?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        // The kernel answers synchronously or not at all; the control plane must never block.
        socket.set_non_blocking(true)?;
        let root = PathBuf::from(CGROUP_ROOT);
        Ok(Self { socket, root, cgroups: BTreeMap::new(), walk_after: None, walks: 0 })
    }

    /// The owner of a local flow; empty if no socket of this machine matches.
    pub fn owner(&mut self, flow: &FlowKey) -> FlowOwner {
        match self.query(flow) {
            Ok((uid, cgroup)) => FlowOwner { uid: Some(uid), cgroup: cgroup.and_then(|id| self.cgroup(id)) },
            Err(error) => {
                tracing::debug!("owner of {flow:?}: {error:#}");
                FlowOwner::default()
            }
        }
    }

    fn query(&mut self, flow: &FlowKey) -> anyhow::Result<(u32, Option<u64>)> {
        self.socket.send(&request(flow), 0)?;
        let (answer, _) = self.socket.recv_from_full()?;
        parse(&answer)
    }

    fn cgroup(&mut self, id: u64) -> Option<String> {
        let now = Instant::now();
        if !self.cgroups.contains_key(&id) && self.walk_after.is_none_or(|after| now >= after) {
            self.cgroups = read_cgroups(&self.root);
            self.walks += 1;
            self.walk_after = Some(now + WALK_EVERY.max(now.elapsed() * WALK_SHARE));
        }
        self.cgroups.get(&id).cloned()
    }
}

/// struct nlmsghdr and struct inet_diag_req_v2.
fn request(flow: &FlowKey) -> [u8; REQUEST_BYTES] {
    let mut b = [0; REQUEST_BYTES];
    b[0..4].copy_from_slice(&(REQUEST_BYTES as u32).to_ne_bytes());
    b[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    b[6..8].copy_from_slice(&1u16.to_ne_bytes()); // NLM_F_REQUEST
    b[16] = if flow.src.is_ipv6() { libc::AF_INET6 as u8 } else { libc::AF_INET as u8 };
    b[17] = flow.protocol;
    b[20..24].copy_from_slice(&u32::MAX.to_ne_bytes()); // any state
    // For UDP the kernel swaps the two "for historical reasons" (net/ipv4/udp_diag.c).
    let (from, to) = ((flow.src, flow.src_port), (flow.dst, flow.dst_port));
    let (from, to) = if flow.protocol == UDP { (to, from) } else { (from, to) };
    b[24..26].copy_from_slice(&from.1.to_be_bytes());
    b[26..28].copy_from_slice(&to.1.to_be_bytes());
    put_address(&mut b[28..44], from.0);
    put_address(&mut b[44..60], to.0);
    b[64..72].fill(0xff); // INET_DIAG_NOCOOKIE
    b
}

fn put_address(to: &mut [u8], address: IpAddr) {
    match address {
        IpAddr::V4(a) => to[..4].copy_from_slice(&a.octets()),
        IpAddr::V6(a) => to.copy_from_slice(&a.octets()),
    }
}

/// struct inet_diag_msg and its attributes, or struct nlmsgerr.
fn parse(answer: &[u8]) -> anyhow::Result<(u32, Option<u64>)> {
    let word = |at: usize| answer.get(at..at + 4).map(|b| u32::from_ne_bytes([b[0], b[1], b[2], b[3]]));
    let kind = answer.get(4..6).map(|b| u16::from_ne_bytes([b[0], b[1]]));
    if kind != Some(SOCK_DIAG_BY_FAMILY) || answer.len() < ANSWER_BYTES {
        let error = word(HEADER_BYTES).unwrap_or(0) as i32;
        bail!("no such socket ({})", std::io::Error::from_raw_os_error(error.saturating_neg()));
    }
    let uid = word(UID_AT).context("answer cut short")?;
    let mut at = ANSWER_BYTES;
    while let Some(head) = answer.get(at..at + 4) {
        let (len, kind) = (u16::from_ne_bytes([head[0], head[1]]), u16::from_ne_bytes([head[2], head[3]]));
        if kind == INET_DIAG_CGROUP_ID
            && let Some(value) = answer.get(at + 4..at + 12)
        {
            return Ok((uid, value.try_into().map(u64::from_ne_bytes).ok()));
        }
        if len < 4 {
            break;
        }
        at += usize::from(len).next_multiple_of(4);
    }
    Ok((uid, None))
}

fn read_cgroups(root: &Path) -> BTreeMap<u64, String> {
    let mut found = BTreeMap::new();
    let mut waiting: Vec<PathBuf> = vec![root.to_owned()];
    while let Some(directory) = waiting.pop() {
        if found.len() >= MAX_CGROUPS {
            break;
        }
        if let (Ok(meta), Ok(name)) = (directory.metadata(), directory.strip_prefix(root)) {
            found.insert(meta.ino(), name.to_string_lossy().into_owned());
        }
        let entries = std::fs::read_dir(&directory).into_iter().flatten().flatten();
        waiting.extend(entries.filter(|e| e.file_type().is_ok_and(|t| t.is_dir())).map(|e| e.path()));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream, UdpSocket};

    fn key(src: std::net::SocketAddr, dst: std::net::SocketAddr, protocol: u8) -> FlowKey {
        FlowKey { src: src.ip(), dst: dst.ip(), src_port: src.port(), dst_port: dst.port(), protocol }
    }

    #[test]
    fn own_flows_have_this_process_as_owner() {
        let mut owners = Owners::open().unwrap();
        let ours = nix::unistd::getuid().as_raw();
        for host in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(host) else { continue };
            let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let flow = key(stream.local_addr().unwrap(), stream.peer_addr().unwrap(), 6);
            assert_eq!(owners.owner(&flow).uid, Some(ours), "{host}");
            let udp = UdpSocket::bind(host).unwrap();
            let flow = key(udp.local_addr().unwrap(), listener.local_addr().unwrap(), 17);
            assert_eq!(owners.owner(&flow).uid, Some(ours), "{host}");
            let nobody = key("192.0.2.1:5".parse().unwrap(), "192.0.2.2:6".parse().unwrap(), 6);
            assert_eq!(owners.owner(&nobody), FlowOwner::default());
            // A late answer to the previous request must not be taken for the answer to this one.
            assert_eq!(owners.owner(&flow).uid, Some(ours), "{host}");
        }
    }

    #[test]
    fn cgroups_have_the_names_used_in_rules() {
        let root = tempfile::tempdir().unwrap();
        let leaf = root.path().join("system.slice/backup.service");
        std::fs::create_dir_all(&leaf).unwrap();
        let found = read_cgroups(root.path());
        assert_eq!(found[&leaf.metadata().unwrap().ino()], "system.slice/backup.service");
        assert_eq!(found[&root.path().metadata().unwrap().ino()], "");
    }

    #[test]
    fn unknown_cgroups_cause_walks_at_a_limited_rate() {
        let root = tempfile::tempdir().unwrap();
        let mut owners = Owners { root: root.path().to_owned(), ..Owners::open().unwrap() };
        let begin = Instant::now();
        for id in 0..10_000 {
            assert_eq!(owners.cgroup(u64::MAX - id), None);
        }
        let most = 1 + begin.elapsed().as_secs();
        assert!(owners.walks <= most, "{} walks for 10,000 flows", owners.walks);
        // A new one is found nevertheless, soon.
        owners.walk_after = Some(Instant::now());
        assert_eq!(owners.cgroup(root.path().metadata().unwrap().ino()).as_deref(), Some(""));
    }

    #[test]
    fn requests_to_the_thread_do_not_block() {
        let (found, told) = std::sync::mpsc::channel();
        let (go, wait) = std::sync::mpsc::channel::<()>();
        // As slow as a walk through a file system that does not respond.
        let slow = move |flow: FlowKey, _| {
            wait.recv().unwrap();
            found.send(flow.src_port).unwrap();
        };
        let thread = OwnerThread::start(Owners::open().unwrap(), slow).unwrap();
        let flow = |port| FlowKey {
            src_port: port,
            ..key("192.0.2.1:5".parse().unwrap(), "192.0.2.2:6".parse().unwrap(), 6)
        };
        let taken = (0..2 * MAX_WAITING as u16).filter(|port| thread.look_up(flow(*port))).count();
        assert!((MAX_WAITING..=MAX_WAITING + 1).contains(&taken), "{taken}");
        (0..taken).for_each(|_| go.send(()).unwrap());
        assert_eq!((0..taken).filter(|_| told.recv().is_ok()).count(), taken);
    }

    #[test]
    fn any_answer_is_harmless() {
        for len in 0..200 {
            let _ = parse(&vec![0; len]);
            let _ = parse(&vec![20; len]);
            let _ = parse(&vec![255; len]);
        }
    }
}
