//! Checks of the files, interfaces and ports that a configuration names, before anything is changed and with
//! `--check`. An error is the user's to correct, so the exit code is 2. Interfaces and addresses may appear
//! later, for example during boot; if they are missing at a start, the exit code is 1, and the service
//! manager retries.

use super::config::{self, Api, ConfigError, Listen, Metrics, ProxyConfig, UeAccess, UeConfig, UpfConfig};
use super::netctl::{self, Claim, Net, SocketSpec, bind_access, bind_when_free};
use super::{Common, current_thread, folder};
use anabranch_atsss::crypto::PrivateKey;
use anabranch_rules::Filter;
use anabranch_steer::Rule;
use anyhow::bail;
use ipnet::IpNet;
use nix::errno::Errno;
use socket2::{Domain, Socket, Type};
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Time limit for the answer of an agent that may be running.
const ANSWER: Duration = Duration::from_millis(500);
/// From linux/capability.h.
const CAP_NET_ADMIN: u32 = 12;

/// Checks the capability that every agent needs.
///
/// # Errors
/// The process lacks the capability.
pub fn may_configure() -> anyhow::Result<()> {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    if has_capability(&status, CAP_NET_ADMIN) == Some(false) {
        bail!(
            "not permitted: this process lacks CAP_NET_ADMIN (devices, addresses, routes, nftables); run it as root, or by \
             a unit as in packaging/systemd"
        );
    }
    Ok(())
}

/// Whether the capability is effective according to /proc/PID/status; `None` if the text cannot be parsed.
fn has_capability(status: &str, capability: u32) -> Option<bool> {
    let hex = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    Some(u64::from_str_radix(hex.trim(), 16).ok()? >> capability & 1 == 1)
}

/// Checks what `ue.toml` names.
///
/// # Errors
/// The first problem.
pub fn ue(args: &Common, config: &UeConfig) -> anyhow::Result<()> {
    let at = CheckContext::new(&args.config, args.check, &config.api);
    let key = at.key("[ue] private_key_file", &config.ue.private_key_file)?;
    if key.public() == config.upf.public_key {
        let whose = "is this UE's own key: give the UPF's, which `anabranch keygen` printed there";
        anyhow::bail!(at.wrong(&format!("[upf] public_key {whose}")));
    }
    at.no_folder("[ue] state_file", &config.ue.state_file)?;
    if let Some(message) = no_directory(&config.ue.state_file) {
        tracing::warn!(
            "[ue] state_file {message}; without it, the UPF refuses this UE after its clock has been set back"
        );
    }
    for [one, other] in twice(&config.access) {
        tracing::warn!(
            "accesses {one} and {other} have the same interface, local address and remote: the capacity of one link would count twice"
        );
    }
    warn_unreached("[[rule]]", &config.rule);
    if args.check {
        absent(&config.access);
    }
    if let Some(slices) = &config.slices {
        at.token("[slices] token_file", &slices.token_file)?;
    }
    at.listeners(&config.api, config.metrics.as_ref())
}

/// What is wrong with the place of a file whose directory does not exist.
fn no_directory(file: &Path) -> Option<String> {
    let folder = folder::of(file);
    let (file, missing) = (file.display(), folder.display());
    (!folder.is_dir())
        .then(|| format!("\"{file}\": there is no directory {missing}: create it, or set another file"))
}

/// Pairs of accesses that use one link to one UPF, as far as the file shows: with the same interface and
/// local address. The UPF's port does not matter.
fn twice(accesses: &[UeAccess]) -> Vec<[&str; 2]> {
    let same = |one: &UeAccess, other: &UeAccess| {
        (&one.interface, one.local, &one.remote.host) == (&other.interface, other.local, &other.remote.host)
    };
    let before = accesses.iter().enumerate().filter_map(|(at, access)| {
        let other = accesses[..at].iter().find(|other| same(other, access))?;
        Some([other.name.as_str(), access.name.as_str()])
    });
    before.collect()
}

/// Warns of rules behind one that matches everything: they have no effect.
fn warn_unreached(list: &str, rules: &[Rule]) {
    if let Some([all, first]) = unreached(rules) {
        tracing::warn!(
            "{list}: rule \"{first}\" has no effect, because rule \"{all}\" before it matches everything: change their order"
        );
    }
}

/// The first rule that matches everything, and the rule behind it.
fn unreached(rules: &[Rule]) -> Option<[&str; 2]> {
    let pair = rules.windows(2).find(|pair| pair[0].filter == Filter::default())?;
    Some([&pair[0].name, &pair[1].name])
}

/// Warns of accesses that cannot be used at present. That is not an error, because accesses come and go.
fn absent(accesses: &[UeAccess]) {
    for UeAccess { name, interface, local, remote, .. } in accesses {
        let is_own = |local: IpAddr| {
            netctl::addresses().iter().any(|(own, address, _)| {
                *address == local && interface.as_ref().is_none_or(|interface| interface == own)
            })
        };
        if let Some(local) = local.filter(|local| !is_own(*local)) {
            let owner = interface.as_deref().unwrap_or("this machine");
            tracing::warn!(
                "access {name}: local \"{local}\" is not an address of {owner} at present; the access is used once it is (`ip address` \
                 lists the addresses)"
            );
        }
        if let Some(interface) = interface
            && anabranch_kern::interface::index(interface).is_err()
        {
            tracing::warn!(
                "access {name}: interface \"{interface}\" does not exist at present; the access is used once it does (`ip link` lists the interfaces)"
            );
        }
        if let Some(interface) = interface
            && let Some(of) = netctl::port_of(interface)
        {
            tracing::warn!("access {name}: interface \"{interface}\": {of}");
        }
        match (remote.host.as_str(), remote.port).to_socket_addrs() {
            Ok(mut found) => {
                if let Some(interface) = found.find_map(|found| netctl::owner_of(found.ip())) {
                    tracing::warn!(
                        "access {name}: remote \"{}\" is this machine's own address ({interface}): unless a UPF runs here, give the \
                         UPF's",
                        remote.host
                    );
                }
            }
            Err(_) => tracing::warn!(
                "access {name}: remote \"{}\" does not resolve at present; the access is used once it does",
                remote.host
            ),
        }
    }
}

/// Checks what `upf.toml` names.
///
/// # Errors
/// The first problem.
pub fn upf(args: &Common, config: &UpfConfig) -> anyhow::Result<()> {
    let at = CheckContext::new(&args.config, args.check, &config.api);
    let key = at.key("[upf] private_key_file", &config.upf.private_key_file)?;
    if let Some(ue) = config.ue.iter().find(|ue| ue.public_key == key.public()) {
        let whose = "is this UPF's own key: give the UE's, which `anabranch keygen` printed there";
        anyhow::bail!(at.wrong(&format!("[[ue]] {}: public_key {whose}", ue.name)));
    }
    warn_unreached("[[rule]]", &config.rule);
    for ue in &config.ue {
        warn_unreached(&format!("[[ue.rule]] of {}", ue.name), &ue.rule);
    }
    at.pools(config)?;
    at.writable("[upf] state_file", &config.upf.state_file)?;
    if let Some(interface) = &config.n6.interface {
        at.interface("[n6] interface", interface)?;
    }
    if config.pool.v6.is_some() && !netctl::has_ipv6("default") {
        anyhow::bail!(at.wrong(
            "[pool] v6: IPv6 is off on this machine: `sysctl net.ipv6.conf.default.disable_ipv6=0`, or remove v6",
        ));
    }
    for access in &config.access {
        let what = format!("access {}", access.name);
        if let Some(interface) = &access.interface {
            at.interface(&format!("{what}: interface"), interface)?;
        }
        let (local, interface) = (access.listen, access.interface.clone());
        let spec = SocketSpec { local, interface, mark: None, shared: false };
        // The present user may lack permission for the check, which the user that starts the program has.
        let unknown = |errno: Errno| errno == Errno::EPERM;
        if !at.running
            && let Err(error) = bind_when_free(|| bind_access(&spec))
            && !error.chain().any(|cause| errno(cause).is_some_and(unknown))
        {
            let is_not_there = error.chain().any(|cause| errno(cause) == Some(Errno::EADDRNOTAVAIL));
            return Err(at.at_fault(&format!("{what}: listen \"{local}\": {error:#}"), is_not_there));
        }
    }
    at.listeners(&config.api, config.metrics.as_ref())
}

/// Checks what `proxy.toml` names. A start needs no interface, because interfaces may appear later, and claims the
/// marks itself ([`proxy_marks`]).
///
/// # Errors
/// The first problem.
pub fn proxy(args: &Common, config: &ProxyConfig) -> anyhow::Result<()> {
    let at = CheckContext::new(&args.config, args.check, &config.api);
    at.listeners(&config.api, config.metrics.as_ref())?;
    if !at.running {
        at.intercepting_port(config.proxy.port)?;
    }
    if args.check {
        for name in &config.intercept.interfaces {
            at.interface("[intercept] interfaces", name)?;
        }
        if !at.running {
            current_thread()?.block_on(async { proxy_marks(args, config, &Net::open()?).await }).map(drop)?;
        }
    }
    Ok(())
}

/// Claims the marks of a proxy and their routing tables.
///
/// # Errors
/// Another program uses one of them.
pub async fn proxy_marks(args: &Common, config: &ProxyConfig, net: &Net) -> anyhow::Result<Claim> {
    let mark = config.proxy.mark;
    let wrong = |why| {
        let message =
            format!("[proxy] mark = {mark}: {why}: set another mark, two apart from others at least");
        ConfigError::new(args.config.display().to_string(), message)
    };
    Ok(net.claim_marks(mark).await?.map_err(wrong)?)
}

/// Checks what `[api]` and `[metrics]` of the other agents name.
///
/// # Errors
/// The first problem.
pub fn agent(args: &Common, api: &Api, metrics: Option<&Metrics>) -> anyhow::Result<()> {
    CheckContext::new(&args.config, args.check, api).listeners(api, metrics)
}

/// Checks `[api]` of a slice manager, and that the directory of its database exists; `check`: only a check (`--check`).
///
/// # Errors
/// The first problem.
#[cfg(feature = "slice-manager")]
pub fn slice_manager(file: &Path, check: bool, api: &Api, database: Option<&Path>) -> anyhow::Result<()> {
    let context = CheckContext::new(file, check, api);
    if let Some(database) = database {
        context.writable("[manager] database", database)?;
    }
    context.listeners(api, None)
}

fn errno(cause: &(dyn std::error::Error + 'static)) -> Option<Errno> {
    cause.downcast_ref::<std::io::Error>()?.raw_os_error().map(Errno::from_raw)
}

/// Whether the agent of this configuration is running; then the ports in use are its own.
fn runs(listen: &Listen) -> bool {
    match listen {
        Listen::Off => false,
        Listen::Unix(path) => UnixStream::connect(path).is_ok(),
        Listen::Tcp(address) => TcpStream::connect_timeout(address, ANSWER).is_ok_and(|stream| {
            use std::io::{Read, Write};
            let mut head = [0; 9];
            stream.set_read_timeout(Some(ANSWER)).is_ok()
                && (&stream).write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").is_ok()
                && (&stream).read_exact(&mut head).is_ok()
                && head.starts_with(b"HTTP/1.1 ")
        }),
    }
}

struct CheckContext<'a> {
    file: &'a Path,
    /// Only a check (`--check`).
    check: bool,
    /// Only a check, while the agent of the configuration is running.
    running: bool,
}

impl<'a> CheckContext<'a> {
    fn new(file: &'a Path, check: bool, api: &Api) -> Self {
        Self { file, check, running: check && runs(&api.listen) }
    }

    fn wrong(&self, message: &str) -> ConfigError {
        ConfigError::new(self.file.display().to_string(), message)
    }

    /// The same; if `may_come`, the problem is not a configuration error at a start, because it may
    /// disappear.
    fn at_fault(&self, message: &str, may_come: bool) -> anyhow::Error {
        let error = self.wrong(message);
        if may_come && !self.check { anyhow::Error::msg(error.to_string()) } else { error.into() }
    }

    fn key(&self, what: &str, path: &Path) -> Result<PrivateKey, ConfigError> {
        config::read_private_key(path).map_err(|error| self.wrong(&format!("{what}: {error}")))
    }

    fn token(&self, what: &str, path: &Path) -> Result<(), ConfigError> {
        super::api::read_token(path).map(drop).map_err(|error| self.wrong(&format!("{what}: {error:#}")))
    }

    fn interface(&self, what: &str, name: &str) -> anyhow::Result<()> {
        anabranch_kern::interface::index(name).map(drop).map_err(|error| {
            let message =
                format!("{what} \"{name}\": {error}; `ip link` lists the interfaces of this machine");
            self.at_fault(&message, true)
        })?;
        match netctl::port_of(name) {
            Some(of) => Err(self.at_fault(&format!("{what} \"{name}\": {of}"), true)),
            None => Ok(()),
        }
    }

    /// Checks that a proxy can listen on its port, in each family that this machine has.
    fn intercepting_port(&self, port: u16) -> Result<(), ConfigError> {
        for ip in [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)] {
            let at = SocketAddr::new(ip, port);
            for (kind, protocol) in [(Type::STREAM, "TCP"), (Type::DGRAM, "UDP")] {
                let bind = || {
                    let socket = Socket::new(Domain::for_address(at), kind, None)?;
                    if at.is_ipv6() {
                        socket.set_only_v6(true)?;
                    }
                    if kind == Type::STREAM {
                        socket.set_reuse_address(true)?;
                    }
                    socket.bind(&at.into())
                };
                if let Err(error) = bind_when_free(bind)
                    && error.downcast_ref().is_some_and(is_in_use)
                {
                    return Err(self.wrong(&format!(
                        "[proxy] port = {port}: another program has {protocol} port {at}: stop it, or set another port"
                    )));
                }
            }
        }
        Ok(())
    }

    /// Checks the pools, which are routed to the tunnel, against the other networks of this machine.
    fn pools(&self, config: &UpfConfig) -> Result<(), ConfigError> {
        let ours = |name: &str| {
            name.strip_prefix(&config.device.name).is_some_and(|rest| ["", "-n"].contains(&rest))
        };
        let pools = [config.pool.v4.map(IpNet::V4), config.pool.v6.map(IpNet::V6)];
        for (interface, address, prefix) in netctl::addresses() {
            for pool in pools.into_iter().flatten().filter(|_| !ours(&interface)) {
                let Ok(net) = IpNet::new(address, prefix) else { continue };
                if pool.contains(&address) {
                    return Err(self.wrong(&format!(
                        "[pool] \"{pool}\": {net} of {interface} is within it, so this machine would route that network into \
                         the tunnel: choose another prefix"
                    )));
                }
                if net.contains(&pool) {
                    tracing::warn!(
                        "[pool] \"{pool}\" is a part of {net} of {interface}: no other machine in that network may use its addresses"
                    );
                }
            }
        }
        Ok(())
    }

    /// Checks that the path of a file is not that of a directory.
    fn no_folder(&self, what: &str, path: &Path) -> Result<(), ConfigError> {
        if path.is_dir() {
            return Err(self.wrong(&format!("{what} \"{}\" is a directory: name a file", path.display())));
        }
        Ok(())
    }

    /// Checks that the directory of a file exists, or can be created within an existing one.
    fn writable(&self, what: &str, path: &Path) -> Result<(), ConfigError> {
        self.no_folder(what, path)?;
        let folder = folder::of(path);
        if folder.is_dir() || !folder.exists() && folder::of(folder).is_dir() {
            return Ok(());
        }
        Err(self.wrong(&format!("{what} {}", no_directory(path).unwrap_or_default())))
    }

    fn listeners(&self, api: &Api, metrics: Option<&Metrics>) -> anyhow::Result<()> {
        if let Some(path) = &api.token_file {
            self.token("[api] token_file", path)?;
        }
        for token in &api.tokens {
            self.token("[api] tokens", &token.file)?;
        }
        if let Some(oauth) = &api.oauth {
            super::api::auth::check_files(oauth).map_err(|e| self.wrong(&format!("[api] oauth: {e:#}")))?;
        }
        for (what, tls) in
            [("[api] tls", api.tls.as_ref()), ("[metrics] tls", metrics.and_then(|m| m.tls.as_ref()))]
        {
            let read = tls.map(super::api::tls::Tls::new).transpose();
            read.map_err(|error| self.wrong(&format!("{what}: {error:#}")))?;
        }
        for (what, listen) in std::iter::once(("[api] listen", &api.listen))
            .chain(metrics.map(|metrics| ("[metrics] listen", &metrics.listen)))
        {
            match listen {
                Listen::Off => {}
                Listen::Unix(path) => {
                    self.writable(what, path)?;
                    if !self.running && UnixStream::connect(path).is_ok() {
                        anyhow::bail!(self.wrong(&format!(
                            "{what} \"unix:{}\": another program listens there: stop it, or set another path",
                            path.display()
                        )));
                    }
                    if path.exists() && !folder::is_socket(path) {
                        anyhow::bail!(self.wrong(&format!(
                            "{what} \"unix:{}\": the path is a file, not a socket",
                            path.display()
                        )));
                    }
                }
                Listen::Tcp(address) if !self.running => {
                    match bind_when_free(|| TcpListener::bind(address)) {
                        Err(error) if !error.downcast_ref().is_some_and(is_denied) => {
                            let is_not_there = error.downcast_ref().is_some_and(is_not_available);
                            let message = format!(
                                "{what} \"{address}\": {error}: is it an address of this machine, and is the port free?"
                            );
                            return Err(self.at_fault(&message, is_not_there));
                        }
                        _ => {}
                    }
                }
                Listen::Tcp(_) => {}
            }
        }
        Ok(())
    }
}

fn is_denied(error: &std::io::Error) -> bool {
    error.kind() == ErrorKind::PermissionDenied
}

fn is_in_use(error: &std::io::Error) -> bool {
    error.kind() == ErrorKind::AddrInUse
}

fn is_not_available(error: &std::io::Error) -> bool {
    error.kind() == ErrorKind::AddrNotAvailable
}

#[cfg(test)]
mod tests {
    use super::super::config::parse;
    use super::*;

    const UPF: &str = include_str!("../../../../packaging/upf.example.toml");

    /// Checks a configuration in `folder` with existing files, in which `this` is replaced by `that`.
    fn upf(folder: &Path, this: &str, that: &str) -> Result<(), String> {
        checked(folder, this, that, true)
    }

    fn checked(folder: &Path, this: &str, that: &str, check: bool) -> Result<(), String> {
        let text = UPF
            .replace("/etc/anabranch", &folder.display().to_string())
            .replace("/var/lib/anabranch", &folder.display().to_string())
            .replace("/run/anabranch", &folder.display().to_string())
            .replace("0.0.0.0:45", "127.0.0.1:545");
        assert!(text.contains(this), "{this}");
        let config: UpfConfig = parse("upf.toml", &text.replacen(this, that, 1)).unwrap();
        let args = Common { config: "upf.toml".into(), check, api: None, metrics: None };
        super::upf(&args, &config).map_err(|error| {
            let error = error.context("outside");
            let text = format!("{error:#}");
            // These may appear later during boot.
            let may_come = ["none7", "192.0.2.77"].iter().any(|what| text.contains(what));
            assert_eq!(super::super::is_config_error(&error), check || !may_come, "{text}");
            text
        })
    }

    #[test]
    fn a_missing_directory_for_the_state_of_a_ue_is_named() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(no_directory(&folder.path().join("ue-state.json")), None);
        let message = no_directory(&folder.path().join("none/ue-state.json")).unwrap();
        let missing = folder.path().join("none").display().to_string();
        assert!(message.contains(&format!("there is no directory {missing}: create it")), "{message}");
    }

    #[test]
    fn a_rule_behind_one_that_matches_everything_is_reported() {
        let rule = |name: &str, filter: &str| -> Rule {
            let text =
                format!("name = \"{name}\"\nfilter = {{ {filter} }}\nsteering = {{ mode = \"redundant\" }}");
            toml::from_str(&text).unwrap()
        };
        let (web, all, ssh) =
            (rule("web", "remote_port = 443"), rule("all", ""), rule("ssh", "remote_port = 22"));
        let rules = [web.clone(), ssh.clone(), all.clone()];
        assert_eq!(unreached(&rules), None);
        assert_eq!(unreached(&[web, all, ssh]), Some(["all", "ssh"]));
    }

    #[test]
    fn one_link_under_two_names_is_reported() {
        let accesses = |texts: &[&str]| -> Vec<UeAccess> {
            let access =
                |(at, text): (usize, &&str)| toml::from_str(&format!("name = \"a{at}\"\n{text}")).unwrap();
            texts.iter().enumerate().map(access).collect()
        };
        let [wlan, wwan] =
            ["wlan0", "wwan0"].map(|name| format!("interface = \"{name}\"\nremote = \"192.0.2.1:45"));
        let [wlan00, wlan01, wwan01] = [format!("{wlan}00\""), format!("{wlan}01\""), format!("{wwan}01\"")];
        let [local2, local3] = ["2", "3"].map(|host| format!("{wlan01}\nlocal = \"10.0.0.{host}\""));
        let [host1, host2] = ["1", "2"].map(|host| format!("remote = \"192.0.2.{host}:4500\""));
        let one = accesses(&[&wlan00, &wwan01, &wlan01, &wlan00]);
        assert_eq!(twice(&one), [["a0", "a2"], ["a0", "a3"]]);
        for apart in [[&wlan00, &wwan01], [&local2, &local3], [&wlan00, &local2], [&host1, &host2]] {
            assert!(twice(&accesses(&apart.map(String::as_str))).is_empty(), "{apart:?}");
        }
    }

    #[test]
    fn missing_and_occupied_resources_are_found_before_changes() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name).display().to_string();
        let missing = upf(folder.path(), "[n6]", "[n6]").unwrap_err();
        assert!(missing.contains("[upf] private_key_file") && missing.contains("keygen"), "{missing}");
        std::fs::create_dir(at("upf.key")).unwrap();
        let a_folder = upf(folder.path(), "[n6]", "[n6]").unwrap_err();
        assert!(a_folder.contains("directory"), "{a_folder}");
        std::fs::remove_dir(at("upf.key")).unwrap();
        std::fs::write(at("upf.key"), "no key").unwrap();
        assert!(upf(folder.path(), "[n6]", "[n6]").is_err());
        std::fs::write(at("upf.key"), "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=").unwrap();
        upf(folder.path(), "[n6]", "[n6]").unwrap();

        for check in [true, false] {
            let missing = |this: &str, that: &str| checked(folder.path(), this, that, check).unwrap_err();
            let no_interface = missing("[n6]", "[n6]\ninterface = \"none7\"");
            assert!(no_interface.contains("[n6] interface \"none7\""), "{no_interface}");
            let no_address = missing("127.0.0.1:54500", "192.0.2.77:54500");
            assert!(no_address.contains("listen \"192.0.2.77:54500\""), "{no_address}");
        }
        upf(folder.path(), "[n6]", "[n6]\ninterface = \"lo\"").unwrap();
        let taken = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let in_use = upf(folder.path(), "127.0.0.1:54500", &format!("127.0.0.1:{port}")).unwrap_err();
        assert!(in_use.contains(&format!("listen \"127.0.0.1:{port}\"")), "{in_use}");

        let socket = format!("unix:{}", at("upf.sock"));
        let tree = upf(folder.path(), &socket, &format!("unix:{}", at("no/such/upf.sock"))).unwrap_err();
        assert!(tree.contains("there is no directory"), "{tree}");
        upf(folder.path(), &socket, &format!("unix:{}", at("made/upf.sock"))).unwrap();
        assert!(!folder.path().join("made").exists(), "a check makes nothing");
        let busy = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = busy.local_addr().unwrap().port();
        let in_use = upf(folder.path(), &socket, &format!("127.0.0.1:{port}")).unwrap_err();
        assert!(in_use.contains("[api] listen"), "{in_use}");

        // While the program is running, its ports are in use by itself.
        let _running = std::os::unix::net::UnixListener::bind(at("upf.sock")).unwrap();
        let port = taken.local_addr().unwrap().port();
        upf(folder.path(), "127.0.0.1:54500", &format!("127.0.0.1:{port}")).unwrap();
        let second = checked(folder.path(), "127.0.0.1:54500", "127.0.0.1:54510", false).unwrap_err();
        assert!(second.contains("another program listens there"), "{second}");
    }

    #[test]
    fn a_pool_must_not_overlap_networks_of_this_machine() {
        crate::testing::in_private_network(|| {
            let folder = tempfile::tempdir().unwrap();
            std::fs::write(folder.path().join("upf.key"), "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=")
                .unwrap();
            let pool = |v4: &str| upf(folder.path(), "10.45.0.0/16", v4);
            crate::testing::sh(
                "ip link set lo up; ip link add eth7 type veth peer name far7; ip addr add 10.45.3.4/20 dev eth7",
            );
            let error = pool("10.45.0.0/16").unwrap_err();
            assert!(
                error.contains("[pool] \"10.45.0.0/16\"") && error.contains("10.45.3.4/20 of eth7"),
                "{error}"
            );
            pool("10.46.0.0/16").unwrap();
            // A part of the interface's network without this machine's own address: other routes are not
            // affected.
            pool("10.45.8.0/24").unwrap();
            // Leftovers of a killed run, and the lane of a running program.
            crate::testing::sh("ip link set eth7 name anb0");
            pool("10.45.0.0/16").unwrap();
            crate::testing::sh("ip link set anb0 name anb0-n");
            pool("10.45.0.0/16").unwrap();
        });
    }

    #[test]
    fn an_interface_that_is_a_port_is_refused_with_a_remedy() {
        crate::testing::in_private_network(|| {
            let folder = tempfile::tempdir().unwrap();
            std::fs::write(folder.path().join("upf.key"), "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=")
                .unwrap();
            crate::testing::sh("ip link add eth7 type veth peer name far7; ip link add br7 type bridge");
            let n6 = || upf(folder.path(), "[n6]", "[n6]\ninterface = \"eth7\"");
            let access = || {
                upf(
                    folder.path(),
                    "listen = \"127.0.0.1:54500\"",
                    "listen = \"127.0.0.1:54500\"\ninterface = \"eth7\"",
                )
            };
            n6().unwrap();
            access().unwrap();
            crate::testing::sh("ip link set eth7 master br7");
            for error in [n6(), access()] {
                let error = error.unwrap_err();
                assert!(
                    error.contains("\"eth7\": it is a port of br7 (bridge)") && error.contains("name br7"),
                    "{error}"
                );
            }
        });
    }

    #[test]
    fn a_key_of_this_end_is_refused_for_the_peer() {
        let folder = tempfile::tempdir().unwrap();
        let key = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
        std::fs::write(folder.path().join("upf.key"), key).unwrap();
        std::fs::write(folder.path().join("ue.key"), key).unwrap();
        let own = key.parse::<PrivateKey>().unwrap().public();
        let ue = format!("[[ue]]\nname = \"tv\"\npublic_key = \"{own}\"\n[n6]");
        let error = upf(folder.path(), "[n6]", &ue).unwrap_err();
        assert!(error.contains("[[ue]] tv: public_key is this UPF's own"), "{error}");

        let text = format!(
            "[ue]\nprivate_key_file = \"{0}/ue.key\"\n[upf]\npublic_key = \"{own}\"\n[api]\nlisten = \"unix:{0}/ue.sock\"\n\
             [[access]]\nname = \"wifi\"\ninterface = \"none7\"\nremote = \"192.0.2.1:4501\"\n",
            folder.path().display()
        );
        let args = Common { config: "ue.toml".into(), check: true, api: None, metrics: None };
        let error = super::ue(&args, &parse("ue.toml", &text).unwrap()).unwrap_err().to_string();
        assert!(error.contains("[upf] public_key is this UE's own"), "{error}");
        // A missing interface is not an error in a UE's file.
        let text = text.replace(&own.to_string(), "vmHhqE8tcZ4WAGqG4kP5IO2rCzYb1eN3mWvPc7yqC2o=");
        super::ue(&args, &parse("ue.toml", &text).unwrap()).unwrap();
        let state = format!("[ue]\nstate_file = \"{}\"", folder.path().display());
        for check in [true, false] {
            let args = Common { check, ..args.clone() };
            let error = super::ue(&args, &parse("ue.toml", &text.replacen("[ue]", &state, 1)).unwrap());
            let error = error.unwrap_err();
            assert!(super::super::is_config_error(&error), "{error}");
            let error = error.to_string();
            assert!(
                error.contains("[ue] state_file") && error.contains("is a directory: name a file"),
                "{error}"
            );
        }
    }

    #[test]
    fn capabilities_are_parsed() {
        let status = "Name:\tx\nCapEff:\t0000000000003000\nSeccomp:\t0\n";
        assert_eq!(has_capability(status, CAP_NET_ADMIN), Some(true));
        assert_eq!(has_capability(status, 11), Some(false));
        assert_eq!(has_capability("CapEff:\tx\n", 11), None);
    }
}
