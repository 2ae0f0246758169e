//! The accesses of a UE: name resolution, interface health, sockets.

use crate::runtime::config::{Device, RemoteAddr, UeAccess};
use crate::runtime::engine::udp::AccessSocket;
use crate::runtime::netctl::{Health, Watched, bind_access, interface_of};
use anabranch_atsss::session::Security;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

/// Interface MTU where none can be found out.
const DEFAULT_MTU: u32 = 1500;
/// A name server that does not answer must not hold anything up.
const RESOLVE_WITHIN: Duration = Duration::from_secs(3);

/// One access and what is known of it.
pub struct Access {
    /// As configured.
    pub config: UeAccess,
    /// The UPF's address; `None` while its name does not resolve.
    pub remote: Option<SocketAddr>,
    mark: u32,
    /// Whether its datagrams may come several at a time.
    gro: bool,
    health: Health,
    bound: bool,
}

/// What the data path has to be told.
#[derive(Default)]
pub struct Change {
    /// Put this socket (or none) in place.
    pub socket: Option<Option<AccessSocket>>,
    /// The access became usable, or stopped being so.
    pub usable: Option<bool>,
}

impl Access {
    /// Nothing is known yet.
    pub fn new(config: UeAccess, device: &Device) -> Self {
        let health = Health { trouble: Some(UNRESOLVED), index: None };
        let remote = literal(&config.remote);
        let gro = !(device.fast_path && config.security == Security::Plain);
        Self { config, remote, mark: device.mark, gro, health, bound: false }
    }

    /// Why it cannot be used.
    pub fn trouble(&self) -> Option<&'static str> {
        self.health.trouble
    }

    /// The same for people: with the name, if it is that.
    pub fn why(&self) -> Option<String> {
        let trouble = self.trouble()?;
        if self.remote.is_some() {
            return Some(trouble.to_owned());
        }
        Some(format!("{trouble}: {}", self.config.remote.host))
    }

    /// The UPF's address, or one that stands for "not known".
    pub fn remote_or_any(&self) -> SocketAddr {
        self.remote.unwrap_or_else(|| SocketAddr::new(self.any(), self.config.remote.port))
    }

    /// The UPF is at this address; whether that is news.
    pub fn set_remote(&mut self, remote: SocketAddr) -> bool {
        let old = self.remote.replace(remote);
        // A socket of the other family cannot reach it.
        self.bound &= old.is_none_or(|old| old.is_ipv6() == remote.is_ipv6());
        old != Some(remote)
    }

    /// Looks at interface, addresses and routes; opens a socket when it is time to.
    pub fn look(&mut self) -> Change {
        let Some(watched) = self.watched() else { return Change::default() };
        let old = self.health.clone();
        self.health = watched.health();
        let mut change = Change::default();
        // A socket is bound to an interface's index: another interface of the name needs another socket.
        let moved = self.bound && self.health.index != old.index;
        if moved || self.health.trouble.is_none() && !self.bound {
            self.bound = false;
            let socket = if self.health.trouble.is_none() { self.open(&watched) } else { None };
            self.bound = socket.is_some();
            change.socket = Some(socket);
        }
        if self.health.trouble != old.trouble || moved {
            let usable = self.health.trouble.is_none();
            let name = &self.config.name;
            match self.health.trouble {
                None => tracing::info!(access = name, "usable"),
                Some(trouble) => tracing::warn!(access = name, "not usable: {trouble}"),
            }
            change.usable = Some(usable);
        }
        change
    }

    /// The largest UDP payload its interface takes, in bytes.
    pub fn max_payload(&self) -> u16 {
        let mtu = self.interface().and_then(|name| anabranch_kern::interface::mtu(&name).ok());
        let headers = if self.any().is_ipv6() { 48 } else { 28 };
        // UDP over a 64 KiB loopback is still bounded by the buffers of the data path.
        u16::try_from(mtu.unwrap_or(DEFAULT_MTU).min(9216)).unwrap_or(1500).saturating_sub(headers)
    }

    fn watched(&self) -> Option<Watched> {
        let remote = self.remote?;
        let UeAccess { interface, local, .. } = &self.config;
        Some(Watched { interface: interface.clone(), local: *local, remote, mark: self.mark })
    }

    fn open(&mut self, watched: &Watched) -> Option<AccessSocket> {
        let opened = bind_access(&watched.socket())
            .and_then(|socket| AccessSocket::new(socket, false, self.gro).map_err(anyhow::Error::from));
        match opened {
            Ok(socket) => Some(socket),
            Err(error) => {
                tracing::warn!(access = self.config.name, "{error:#}");
                self.health.trouble = Some("no socket; see the log");
                None
            }
        }
    }

    fn any(&self) -> IpAddr {
        let v6 = self.remote.map_or_else(|| self.config.local.is_some_and(|l| l.is_ipv6()), |r| r.is_ipv6());
        if v6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() }
    }

    /// The configured interface, or the one that has the configured address.
    fn interface(&self) -> Option<String> {
        self.config.interface.clone().or_else(|| interface_of(self.config.local?))
    }
}

const UNRESOLVED: &str = "the UPF's name does not resolve";

/// The address in a remote that needs no name server.
fn literal(remote: &RemoteAddr) -> Option<SocketAddr> {
    remote.host.parse().ok().map(|ip: IpAddr| SocketAddr::new(ip, remote.port))
}

/// Whether a remote is a name, whose address may change.
pub fn is_name(remote: &RemoteAddr) -> bool {
    literal(remote).is_none()
}

/// Asks for the address of a remote; of the family of `local`, if that is given.
pub async fn resolve(remote: RemoteAddr, local: Option<IpAddr>) -> Option<SocketAddr> {
    let lookup = tokio::net::lookup_host((remote.host.as_str(), remote.port));
    match tokio::time::timeout(RESOLVE_WITHIN, lookup).await {
        Ok(Ok(mut found)) => found.find(|a| local.is_none_or(|l| l.is_ipv6() == a.is_ipv6())),
        Ok(Err(error)) => {
            tracing::debug!("{remote}: {error}");
            None
        }
        Err(_) => None,
    }
}
