//! The accesses of a UE: name resolution, interface health, sockets.

use crate::runtime::config::{Device, RemoteAddr, UeAccess};
use crate::runtime::engine::udp::AccessSocket;
use crate::runtime::netctl::{Health, Watched, bind_access, interface_of};
use anabranch_atsss::session::Security;
use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

/// Interface MTU where none can be found out.
const DEFAULT_MTU: u32 = 1500;
/// A name server that does not answer must not hold anything up.
const RESOLVE_WITHIN: Duration = Duration::from_secs(3);
/// Without an answer by the access for so long, another address of the name is tried.
const UNANSWERED: Duration = Duration::from_secs(20);

/// One access and what is known of it.
pub struct Access {
    /// As configured.
    pub config: UeAccess,
    /// The UPF's address; `None` while its name does not resolve.
    pub remote: Option<SocketAddr>,
    /// The address is that of the name before a reload: the new one does not resolve yet.
    stale: bool,
    mark: u32,
    /// Whether its datagrams may come several at a time.
    gro: bool,
    health: Health,
    bound: bool,
    /// Since when nothing comes by it, or another address was tried.
    silent_since: Option<Instant>,
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
        let health = Health { trouble: Some(Cow::Borrowed(UNRESOLVED)), index: None };
        let remote = literal(&config.remote);
        let gro = !(device.fast_path && config.security == Security::Plain);
        Self {
            config,
            remote,
            stale: false,
            mark: device.mark,
            gro,
            health,
            bound: false,
            silent_since: None,
        }
    }

    /// Why it cannot be used.
    pub fn trouble(&self) -> Option<&str> {
        self.health.trouble.as_deref()
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

    /// Index of its interface, if it has one and that is there.
    pub fn index(&self) -> Option<u32> {
        self.health.index
    }

    /// Whether the UPF answers by it.
    pub fn set_answers(&mut self, answers: bool, now: Instant) {
        self.silent_since = if answers { None } else { self.silent_since.or(Some(now)) };
    }

    /// Which of the UPF's addresses to use: the one in use while it is one of them and can be reached, else the next that this
    /// access reaches.
    pub fn choose(&mut self, found: &[SocketAddr], now: Instant) -> Option<SocketAddr> {
        let reached = |remote: SocketAddr| self.watched(remote).health().trouble.is_none();
        let silent = self.silent_since.is_some_and(|since| now >= since + UNANSWERED);
        let at = found.iter().position(|address| self.remote == Some(*address));
        let current = at.map(|at| found[at]);
        if !silent && current.is_some_and(reached) {
            return current;
        }
        // Those after the one in use come first.
        let from = at.map_or(0, |at| at + 1);
        let next = found[from..].iter().chain(&found[..from]).copied().find(|address| reached(*address));
        let chosen = next.or(current).or(found.first().copied());
        if silent && chosen != self.remote {
            self.silent_since = Some(now);
        }
        chosen
    }

    /// Another name, whose addresses are asked for next.
    pub fn rename(&mut self, name: RemoteAddr) {
        self.config.remote = name;
        self.stale = self.remote.is_some();
    }

    /// That a name does not resolve for which the address of the one before stays in use.
    pub fn unresolved(&self) -> Option<String> {
        let remote = self.remote.filter(|_| self.stale)?;
        let UeAccess { name, remote: RemoteAddr { host, .. }, .. } = &self.config;
        Some(format!("access {name}: {UNRESOLVED}: {host}; {remote} stays in use until it does"))
    }

    /// The UPF is at this address; whether that is news.
    pub fn set_remote(&mut self, remote: SocketAddr) -> bool {
        self.stale = false;
        let old = self.remote.replace(remote);
        // A socket of the other family cannot reach it.
        self.bound &= old.is_none_or(|old| old.is_ipv6() == remote.is_ipv6());
        old != Some(remote)
    }

    /// Looks at interface, addresses and routes; opens a socket when it is time to.
    pub fn look(&mut self) -> Change {
        let Some(watched) = self.remote.map(|remote| self.watched(remote)) else { return Change::default() };
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
            match &self.health.trouble {
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

    fn watched(&self, remote: SocketAddr) -> Watched {
        let UeAccess { interface, local, .. } = &self.config;
        Watched { interface: interface.clone(), local: *local, remote, mark: self.mark }
    }

    fn open(&mut self, watched: &Watched) -> Option<AccessSocket> {
        let opened = bind_access(&watched.socket())
            .and_then(|socket| AccessSocket::new(socket, false, self.gro).map_err(anyhow::Error::from));
        match opened {
            Ok(socket) => Some(socket),
            Err(error) => {
                tracing::warn!(access = self.config.name, "{error:#}");
                self.health.trouble = Some(Cow::Borrowed("no socket; see the log"));
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

/// Asks for the addresses of a remote; of the family of `local`, if that is given. None: there is no answer.
pub async fn resolve(remote: RemoteAddr, local: Option<IpAddr>) -> Vec<SocketAddr> {
    let lookup = tokio::net::lookup_host((remote.host.as_str(), remote.port));
    match tokio::time::timeout(RESOLVE_WITHIN, lookup).await {
        Ok(Ok(found)) => found.filter(|a| local.is_none_or(|l| l.is_ipv6() == a.is_ipv6())).collect(),
        Ok(Err(error)) => {
            tracing::debug!("{remote}: {error}");
            Vec::new()
        }
        Err(_) => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{in_private_network, sh};

    fn access(interface: &str) -> Access {
        let file =
            format!("name = \"{interface}\"\ninterface = \"{interface}\"\nremote = \"upf.example:4500\"\n");
        Access::new(toml::from_str(&file).unwrap(), &Device::default())
    }

    #[test]
    fn a_name_that_does_not_resolve_is_told_until_one_does() {
        let mut access = access("wlan0");
        let name = |host: &str| RemoteAddr { host: host.to_owned(), port: 4500 };
        // Nothing stays in use where there was nothing.
        access.rename(name("none.example"));
        assert_eq!(access.unresolved(), None);
        let old: SocketAddr = "198.51.100.7:4500".parse().unwrap();
        assert!(access.set_remote(old));
        access.rename(name("new.example"));
        let told = access.unresolved().unwrap();
        assert!(told.contains("new.example") && told.contains("198.51.100.7:4500 stays in use"), "{told}");
        // The same address under the new name is no news, but an answer.
        assert!(!access.set_remote(old));
        assert_eq!(access.unresolved(), None);
    }

    /// A name with addresses of both families, and accesses that have one each.
    #[test]
    fn each_access_takes_an_address_that_it_reaches_and_keeps_it() {
        in_private_network(|| {
            sh("for i in wlan0 wwan0; do ip link add $i type veth peer name p$i; ip link set p$i up; ip link set $i up; done
                ip addr add 10.9.0.2/24 dev wlan0; ip route add default via 10.9.0.1 dev wlan0
                ip addr add 2001:db8:9::2/64 dev wwan0 nodad; ip -6 route add default via 2001:db8:9::1 dev wwan0");
            let [v4, v6, other]: [SocketAddr; 3] =
                ["198.51.100.7:4500", "[2001:db8:77::7]:4500", "198.51.100.8:4500"]
                    .map(|a| a.parse().unwrap());
            let now = Instant::now();
            for found in [[v4, v6], [v6, v4]] {
                assert_eq!(access("wlan0").choose(&found, now), Some(v4));
                assert_eq!(access("wwan0").choose(&found, now), Some(v6));
            }
            // Without one that is reached, any will do; without an answer, none.
            assert_eq!(access("nowhere0").choose(&[v6, v4], now), Some(v6));
            assert_eq!(access("wlan0").choose(&[], now), None);
            // A name server that turns its answers round changes nothing, nor does another address family that came.
            let mut wlan = access("wlan0");
            wlan.remote = Some(v4);
            sh(
                "ip addr add 2001:db8:8::2/64 dev wlan0 nodad; ip -6 route add default via 2001:db8:8::1 dev wlan0 metric 1",
            );
            for found in [[v4, v6, other], [other, v6, v4]] {
                assert_eq!(wlan.choose(&found, now), Some(v4));
            }
            // One that does not answer gives way to the next, once in a while.
            wlan.set_answers(false, now);
            assert_eq!(wlan.choose(&[v4, v6, other], now), Some(v4));
            let later = now + UNANSWERED;
            assert_eq!(wlan.choose(&[v4, v6, other], later), Some(v6));
            wlan.remote = Some(v6);
            assert_eq!(wlan.choose(&[v4, v6, other], later), Some(v6));
            assert_eq!(wlan.choose(&[v4, v6, other], later + UNANSWERED), Some(other));
            wlan.remote = Some(other);
            wlan.set_answers(true, later);
            assert_eq!(wlan.choose(&[v4, v6, other], later + 9 * UNANSWERED), Some(other));
            // One that is not there any more is left.
            assert_eq!(wlan.choose(&[v4], later), Some(v4));
        });
    }
}
