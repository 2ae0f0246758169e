//! Tunnels between the two namespaces of a [`Pair`].

use super::wireguard::{self, End};
use super::{Bench, CLIENT, Core, Pair, SERVER, pinned, wait_for};
use crate::netns::program::Program;
use crate::netns::space::Space;
use anabranch_atsss::crypto::PrivateKey;
use anyhow::{Context, Result};
use nix::sys::signal::Signal;
use rand_chacha::ChaCha20Rng;
use rand_core::SeedableRng;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Carrier of the packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The veth pair itself.
    Direct,
    /// `anabranch ue` and `anabranch upf`, encrypted.
    Secure,
    /// The same, with 20 ms of busy polling before it sleeps (`busy_poll_us`).
    SecurePolling,
    /// The same without encryption.
    Plain,
    /// The same, forwarded by the kernel (`fast_path`).
    PlainKernel,
    /// Cloudflare's user-space WireGuard.
    BoringTun,
    /// The reference user-space WireGuard, with GSO and GRO.
    WireGuardGo,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Direct => "veth, no tunnel",
            Self::Secure => "anabranch, secure",
            Self::SecurePolling => "anabranch, secure, polling",
            Self::Plain => "anabranch, plain",
            Self::PlainKernel => "anabranch, plain, in the kernel",
            Self::BoringTun => "boringtun",
            Self::WireGuardGo => "wireguard-go",
        }
    }

    pub fn key(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Secure => "secure",
            Self::SecurePolling => "secure-polling",
            Self::Plain => "plain",
            Self::PlainKernel => "plain-kernel",
            Self::BoringTun => "boringtun",
            Self::WireGuardGo => "wireguard-go",
        }
    }

    /// `security` of the access, and additional keys of `[device]`.
    fn keys(self) -> (&'static str, &'static str) {
        match self {
            Self::Plain => ("plain", ""),
            Self::PlainKernel => ("plain", "fast_path = true\n"),
            Self::SecurePolling => ("secure", "busy_poll_us = 20000\n"),
            _ => ("secure", ""),
        }
    }

    /// Path of the program, if it is available and requested.
    pub fn program(self, bench: &Bench) -> Option<PathBuf> {
        if !bench.wants(self.key()) {
            return None;
        }
        match self {
            Self::Direct | Self::Secure | Self::SecurePolling | Self::Plain | Self::PlainKernel => {
                Some(bench.anabranch.clone())
            }
            Self::BoringTun => bench.peer("boringtun-cli"),
            Self::WireGuardGo => bench.peer("wireguard-go").or_else(|| bench.peer("wireguard")),
        }
    }
}

/// An established tunnel.
pub struct Tunnel {
    /// Inner address of the client.
    pub client: String,
    /// Inner address of the server.
    pub server: String,
    /// The program on the server's side.
    pub far: Option<Program>,
    near: Option<Program>,
}

impl Tunnel {
    /// Sends both programs a signal.
    pub fn signal(&self, signal: Signal) {
        self.near.iter().chain(&self.far).for_each(|program| program.signal(signal));
    }
}

/// Name of the devices.
pub const DEVICE: &str = "bench0";

/// Sets the tunnel up and waits until it carries packets.
pub fn establish(bench: &Bench, pair: &Pair, kind: Kind, folder: &Path) -> Result<Tunnel> {
    let tunnel = match kind {
        Kind::Direct => Tunnel { client: CLIENT.into(), server: SERVER.into(), far: None, near: None },
        Kind::Secure | Kind::SecurePolling | Kind::Plain | Kind::PlainKernel => {
            let upf = Upf::configure(bench, folder, &[], kind)?;
            upf.connect(bench, &pair.client, &pair.server)?
        }
        Kind::BoringTun | Kind::WireGuardGo => peer(bench, pair, kind, folder)?,
    };
    answers(bench, pair, &tunnel).with_context(|| kind.name())?;
    Ok(tunnel)
}

/// Waits until the server answers through the tunnel.
pub fn answers(bench: &Bench, pair: &Pair, tunnel: &Tunnel) -> Result<()> {
    let ping = || {
        let mut ping = Command::new("ping");
        ping.args(["-c", "1", "-W", "1", &tunnel.server]);
        pair.client.output(&mut ping).is_ok()
    };
    wait_for("no reply through the tunnel", Duration::from_secs(10), bench, ping)
}

fn peer(bench: &Bench, pair: &Pair, kind: Kind, folder: &Path) -> Result<Tunnel> {
    let mut rng = ChaCha20Rng::seed_from_u64(2);
    let keys = [PrivateKey::generate(&mut rng), PrivateKey::generate(&mut rng)];
    let path = kind.program(bench).context("the peer's program")?;
    let start = |core, space: &Space, device: &str| -> Result<Program> {
        let mut command = pinned(core, &path);
        match kind {
            Kind::BoringTun => {
                command.args(["--foreground", "--disable-drop-privileges", "--verbosity", "error", device])
            }
            _ => command.args(["--foreground", device]).env("WG_PROCESS_FOREGROUND", "1"),
        };
        let mut program =
            Program::start(space, &format!("{}-{device}", kind.key()), &mut command, folder, None)?;
        let socket = wireguard::socket(device);
        let answers = || std::os::unix::net::UnixStream::connect(&socket).is_ok();
        program.wait_ready(Duration::from_secs(5), &bench.sandbox.stop, answers)?;
        Ok(program)
    };
    std::fs::create_dir_all("/var/run/wireguard").context("/var/run/wireguard")?;
    // Their sockets are named after the device, in one folder for all namespaces.
    let near = start(Core::Client, &pair.client, "benchc")?;
    let far = start(Core::Server, &pair.server, "benchs")?;
    let endpoint = SocketAddr::new(SERVER.parse().context("address")?, 51820);
    let ends = [
        End {
            device: "benchc",
            key: &keys[0],
            listen_port: 51821,
            peer: &keys[1],
            endpoint: Some(endpoint),
            allowed: "10.9.0.2/32",
        },
        End {
            device: "benchs",
            key: &keys[1],
            listen_port: 51820,
            peer: &keys[0],
            endpoint: None,
            allowed: "10.9.0.1/32",
        },
    ];
    ends.iter().try_for_each(wireguard::configure)?;
    let addresses = |space: &Space, device: &str, own: &str| {
        // 80 bytes under the link's MTU, as wg-quick sets it.
        space.ip(&format!("addr add {own}/24 dev {device}\nlink set {device} mtu 1420 up"))
    };
    addresses(&pair.client, "benchc", "10.9.0.1")?;
    addresses(&pair.server, "benchs", "10.9.0.2")?;
    Ok(Tunnel { client: "10.9.0.1".into(), server: "10.9.0.2".into(), far: Some(far), near: Some(near) })
}

/// A UPF's files, and one UE's.
pub struct Upf {
    folder: PathBuf,
    /// The UPF's key.
    pub key: PrivateKey,
    /// The key of the measuring UE.
    pub ue: PrivateKey,
    kind: Kind,
}

/// Where UPFs of benchmarks listen.
pub const PORT: u16 = 4500;

impl Upf {
    /// Writes configuration and keys for a UPF with one measuring UE, and `more`.
    pub fn configure(_bench: &Bench, folder: &Path, more: &[PrivateKey], kind: Kind) -> Result<Self> {
        let mut rng = ChaCha20Rng::seed_from_u64(1);
        let (key, ue) = (PrivateKey::generate(&mut rng), PrivateKey::generate(&mut rng));
        let upf = Self { folder: folder.to_owned(), key, ue, kind };
        upf.write_key("upf.key", &upf.key)?;
        upf.write_key("ue.key", &upf.ue)?;
        let folder = folder.display();
        let (security, more_device) = kind.keys();
        let mut text = format!(
            "[upf]\nprivate_key_file = \"{folder}/upf.key\"\nworkers = 1\nmax_sessions = {sessions}\n\
             state_file = \"{folder}/state.json\"\n\
             [[access]]\nname = \"wire\"\nlisten = \"0.0.0.0:{PORT}\"\nsecurity = \"{security}\"\n\
             [device]\nname = \"{DEVICE}\"\nmtu = 1420\n{more_device}[n6]\nmode = \"routed\"\nopen = [\"0.0.0.0/0\"]\n[pool]\nv4 = \"10.64.0.0/12\"\n\
             [api]\nlisten = \"unix:{folder}/upf.sock\"\n\
             [[rule]]\nname = \"all\"\nsteering = {{ mode = \"smallest-delay\" }}\n",
            sessions = more.len() + 1,
        );
        for (i, key) in std::iter::once(&upf.ue).chain(more).enumerate() {
            text.push_str(&format!("[[ue]]\nname = \"ue{i}\"\npublic_key = \"{}\"\n", key.public()));
        }
        upf.write("upf.toml", &text)?;
        Ok(upf)
    }

    /// Starts the UPF.
    pub fn start(&self, bench: &Bench, server: &Space) -> Result<Program> {
        let mut command = pinned(Core::Server, &bench.anabranch);
        command.args(["--log", "warn", "upf", "--config"]).arg(self.folder.join("upf.toml"));
        let mut program = Program::start(server, "upf", &mut command, &self.folder, None)?;
        let socket = self.folder.join("upf.sock");
        program.wait_ready(Duration::from_secs(60), &bench.sandbox.stop, || socket.exists())?;
        Ok(program)
    }

    /// Starts both ends and waits for the session.
    pub fn connect(&self, bench: &Bench, client: &Space, server: &Space) -> Result<Tunnel> {
        let far = self.start(bench, server)?;
        self.join(bench, client, far)
    }

    /// Starts a UE for a running UPF.
    pub fn join(&self, bench: &Bench, client: &Space, far: Program) -> Result<Tunnel> {
        self.join_at(bench, client, far, SERVER, "10.64.0.1/32")
    }

    /// As [`Upf::join`], with the UPF at `remote` and `routes` through the tunnel.
    pub fn join_at(
        &self,
        bench: &Bench,
        client: &Space,
        far: Program,
        remote: &str,
        routes: &str,
    ) -> Result<Tunnel> {
        let folder = self.folder.display();
        let (security, more_device) = self.kind.keys();
        let text = format!(
            "[ue]\nname = \"bench\"\nprivate_key_file = \"{folder}/ue.key\"\n[upf]\npublic_key = \"{}\"\n\
             [[access]]\nname = \"wire\"\ninterface = \"wire\"\nremote = \"{remote}:{PORT}\"\nsecurity = \"{security}\"\n\
             [device]\nname = \"{DEVICE}\"\nmtu = 1420\n{more_device}routes = [\"{routes}\"]\n\
             [api]\nlisten = \"unix:{folder}/ue.sock\"\n",
            self.key.public(),
        );
        self.write("ue.toml", &text)?;
        let mut command = pinned(Core::Client, &bench.anabranch);
        command.args(["--log", "warn", "ue", "--config"]).arg(self.folder.join("ue.toml"));
        let near = Program::start(client, "ue", &mut command, &self.folder, None)?;
        let mut address = None;
        wait_for("the UE has no address", Duration::from_secs(10), bench, || {
            address = inner_address(client);
            address.is_some()
        })
        .with_context(|| near.log_tail())?;
        let own = address.context("the UE's address")?;
        Ok(Tunnel { client: own, server: "10.64.0.1".into(), far: Some(far), near: Some(near) })
    }

    fn write_key(&self, name: &str, key: &PrivateKey) -> Result<()> {
        use std::os::unix::fs::PermissionsExt;
        self.write(name, &key.to_base64())?;
        let path = self.folder.join(name);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).context("key file")
    }

    fn write(&self, name: &str, text: &str) -> Result<()> {
        let path = self.folder.join(name);
        std::fs::write(&path, text).with_context(|| path.display().to_string())
    }
}

/// Address that the UE assigned to its device.
fn inner_address(space: &Space) -> Option<String> {
    let text = space.output(Command::new("ip").args(["-4", "-o", "addr", "show", "dev", DEVICE])).ok()?;
    let after = text.split_whitespace().skip_while(|w| *w != "inet").nth(1)?;
    after.split('/').next().map(str::to_owned)
}
