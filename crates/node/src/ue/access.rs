//! The accesses of a UE: name resolution, interface health, sockets.

use crate::runtime::config::{Device, RemoteAddr, UeAccess};
use crate::runtime::netctl::{Health, Watched, bind_access};
use anabranch_atsss::session::Security;
use anabranch_engine::udp::{AccessSocket, interface_of};
use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

/// Interface MTU if it cannot be determined, bytes.
const DEFAULT_MTU: u32 = 1500;
/// Time limit for a name server's answer, so that it delays nothing else.
const RESOLVE_WITHIN: Duration = Duration::from_secs(3);
/// Time without an answer over the access after which another address of the name is tried.
const UNANSWERED: Duration = Duration::from_secs(20);

/// An access and its state.
pub struct Access {
    /// The configuration of the access.
    pub config: UeAccess,
    /// The UPF's address; `None` while its name does not resolve.
    pub remote: Option<SocketAddr>,
    /// Whether the address belongs to the name before a reload, because the new name does not resolve yet.
    stale: bool,
    mark: u32,
    /// Whether its datagrams may be received in batches (GRO).
    gro: bool,
    health: Health,
    bound: bool,
    /// Since when nothing has been received over it, or since the last change of address.
    silent_since: Option<Instant>,
}

/// Changes that the data path must apply.
#[derive(Default)]
pub struct Change {
    /// Replace the socket by this one, or by none; `None`: keep it.
    pub socket: Option<Option<AccessSocket>>,
    /// The access has become usable or unusable; `None`: no change.
    pub usable: Option<bool>,
}

impl Access {
    /// An access that has not been checked yet.
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

    /// The reason why the access is unusable; `None` if it is usable.
    pub fn trouble(&self) -> Option<&str> {
        self.health.trouble.as_deref()
    }

    /// The reason in full, with the name that does not resolve.
    pub fn why(&self) -> Option<String> {
        let trouble = self.trouble()?;
        if self.remote.is_some() {
            return Some(trouble.to_owned());
        }
        Some(format!("{trouble}: {}", self.config.remote.host))
    }

    /// The UPF's address, or the unspecified address while it is unknown.
    pub fn remote_or_any(&self) -> SocketAddr {
        self.remote.unwrap_or_else(|| SocketAddr::new(self.any(), self.config.remote.port))
    }

    /// Index of its interface; `None` if no interface is configured or it does not exist.
    pub fn index(&self) -> Option<u32> {
        self.health.index
    }

    /// Records whether the UPF answers over the access.
    pub fn set_answers(&mut self, answers: bool, now: Instant) {
        self.silent_since = if answers { None } else { self.silent_since.or(Some(now)) };
    }

    /// Selects one of the UPF's addresses: the current one while it is listed and reachable, else the next
    /// one that this access can reach.
    pub fn choose(&mut self, found: &[SocketAddr], now: Instant) -> Option<SocketAddr> {
        let reached = |remote: SocketAddr| self.watched(remote).health().trouble.is_none();
        let silent = self.silent_since.is_some_and(|since| now >= since + UNANSWERED);
        let at = found.iter().position(|address| self.remote == Some(*address));
        let current = at.map(|at| found[at]);
        if !silent && current.is_some_and(reached) {
            return current;
        }
        // The addresses after the current one are tried first.
        let from = at.map_or(0, |at| at + 1);
        let next = found[from..].iter().chain(&found[..from]).copied().find(|address| reached(*address));
        let chosen = next.or(current).or(found.first().copied());
        if silent && chosen != self.remote {
            self.silent_since = Some(now);
        }
        chosen
    }

    /// Sets another name; its addresses are resolved next.
    pub fn rename(&mut self, name: RemoteAddr) {
        self.config.remote = name;
        self.stale = self.remote.is_some();
    }

    /// A message if the name does not resolve and the address of the previous name stays in use.
    pub fn unresolved(&self) -> Option<String> {
        let remote = self.remote.filter(|_| self.stale)?;
        let UeAccess { name, remote: RemoteAddr { host, .. }, .. } = &self.config;
        Some(format!("access {name}: {UNRESOLVED}: {host}; {remote} stays in use until it does"))
    }

    /// Sets the UPF's address; true if it differs from the previous one.
    pub fn set_remote(&mut self, remote: SocketAddr) -> bool {
        self.stale = false;
        let old = self.remote.replace(remote);
        // A socket of the other address family cannot reach it.
        self.bound &= old.is_none_or(|old| old.is_ipv6() == remote.is_ipv6());
        old != Some(remote)
    }

    /// Checks interface, addresses and routes; opens a socket when that becomes possible.
    pub fn refresh(&mut self) -> Change {
        let Some(watched) = self.remote.map(|remote| self.watched(remote)) else { return Change::default() };
        let old = self.health.clone();
        self.health = watched.health();
        let mut change = Change::default();
        // A socket is bound to the index of an interface; a new interface of the same name needs a new
        // socket.
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

    /// The largest UDP payload that its interface supports, bytes.
    pub fn max_payload(&self) -> u16 {
        let mtu = self.interface().and_then(|name| anabranch_kern::interface::mtu(&name).ok());
        let headers = if self.any().is_ipv6() { 48 } else { 28 };
        // With a loopback MTU of 64 KiB, the buffers of the data path are the limit.
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

/// The address of a remote that is given as a literal address.
fn literal(remote: &RemoteAddr) -> Option<SocketAddr> {
    remote.host.parse().ok().map(|ip: IpAddr| SocketAddr::new(ip, remote.port))
}

/// Whether a remote is a name, whose address may change.
pub fn is_name(remote: &RemoteAddr) -> bool {
    literal(remote).is_none()
}

/// Resolves the addresses of a remote, restricted to the family of `local` if that is given. Empty: there is
/// no answer.
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
    fn an_unresolved_name_is_reported_until_it_resolves() {
        let mut access = access("wlan0");
        let name = |host: &str| RemoteAddr { host: host.to_owned(), port: 4500 };
        // Without a previous address, none stays in use.
        access.rename(name("none.example"));
        assert_eq!(access.unresolved(), None);
        let old: SocketAddr = "198.51.100.7:4500".parse().unwrap();
        assert!(access.set_remote(old));
        access.rename(name("new.example"));
        let told = access.unresolved().unwrap();
        assert!(told.contains("new.example") && told.contains("198.51.100.7:4500 stays in use"), "{told}");
        // The same address under the new name is not a change, but it is an answer.
        assert!(!access.set_remote(old));
        assert_eq!(access.unresolved(), None);
    }

    /// A name with addresses of both families, and accesses with one family each.
    #[test]
    fn each_access_selects_a_reachable_address_and_keeps_it() {
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
            // If no address is reachable, the first is used; without an answer, none.
            assert_eq!(access("nowhere0").choose(&[v6, v4], now), Some(v6));
            assert_eq!(access("wlan0").choose(&[], now), None);
            // A name server that rotates its answers changes nothing, nor does an additional address family.
            let mut wlan = access("wlan0");
            wlan.remote = Some(v4);
            sh(
                "ip addr add 2001:db8:8::2/64 dev wlan0 nodad; ip -6 route add default via 2001:db8:8::1 dev wlan0 metric 1",
            );
            for found in [[v4, v6, other], [other, v6, v4]] {
                assert_eq!(wlan.choose(&found, now), Some(v4));
            }
            // After a while without answers, the next address is used.
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
            // An address that is no longer listed is given up.
            assert_eq!(wlan.choose(&[v4], later), Some(v4));
        });
    }
}
