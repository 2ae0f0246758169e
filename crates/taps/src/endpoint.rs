//! Local and remote endpoints (RFC 9622 §6.1).

use crate::error::Error;
use anabranch_selection::{Endpoint, Protocol};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

/// The peer: a name or an address, a port, and the protocols it is known to support.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RemoteEndpoint {
    hostname: Option<String>,
    address: Option<IpAddr>,
    port: Option<u16>,
    protocols: BTreeSet<Protocol>,
    priority: u16,
}

impl RemoteEndpoint {
    /// A peer by name, resolved when a connection is opened; certificates are checked against this name.
    #[must_use]
    pub fn hostname(name: impl Into<String>) -> Self {
        Self { hostname: Some(name.into()), ..Self::default() }
    }

    /// A peer by address.
    #[must_use]
    pub fn ip(address: impl Into<IpAddr>) -> Self {
        Self { address: Some(address.into()), ..Self::default() }
    }

    /// Sets the port; required.
    #[must_use]
    pub fn port(mut self, port: u16) -> Self {
        self.port = Some(port);
        self
    }

    /// Adds a supported protocol; without any, all are tried.
    #[must_use]
    pub fn protocol(mut self, protocol: Protocol) -> Self {
        self.protocols.insert(protocol);
        self
    }

    /// Sets the priority among several peers: smaller first. Default: 0.
    #[must_use]
    pub fn priority(mut self, priority: u16) -> Self {
        self.priority = priority;
        self
    }
}

impl From<SocketAddr> for RemoteEndpoint {
    fn from(address: SocketAddr) -> Self {
        Self::ip(address.ip()).port(address.port())
    }
}

/// The local endpoint; every part is optional and restricts the selection.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LocalEndpoint {
    pub(crate) interface: Option<String>,
    pub(crate) address: Option<IpAddr>,
    pub(crate) port: Option<u16>,
}

impl LocalEndpoint {
    /// No restriction.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Only this interface, equivalent to requiring it in the property `interface` (RFC 9622 §6.1.2).
    #[must_use]
    pub fn interface(mut self, name: impl Into<String>) -> Self {
        self.interface = Some(name.into());
        self
    }

    /// Only this address.
    #[must_use]
    pub fn ip(mut self, address: impl Into<IpAddr>) -> Self {
        self.address = Some(address.into());
        self
    }

    /// Only this port; for a listener, 0 means any free port.
    #[must_use]
    pub fn port(mut self, port: u16) -> Self {
        self.port = Some(port);
        self
    }
}

impl From<SocketAddr> for LocalEndpoint {
    fn from(address: SocketAddr) -> Self {
        Self::new().ip(address.ip()).port(address.port())
    }
}

/// Resolved peers, with their names.
pub(crate) struct Resolved {
    pub endpoints: Vec<Endpoint>,
    pub names: BTreeMap<SocketAddr, String>,
    /// The error of the first name without an address.
    pub failed: Option<Error>,
}

/// Resolves names with the system's resolver. All are the same peer: a name without an address does not affect the others.
pub(crate) async fn resolve(remotes: &[RemoteEndpoint]) -> Result<Resolved, Error> {
    if remotes.is_empty() {
        let hint = "a connection needs a remote one: Preconnection::remote";
        return Err(Error::Endpoint(hint.into()));
    }
    let mut resolved = Resolved { endpoints: Vec::new(), names: BTreeMap::new(), failed: None };
    for remote in remotes {
        let Some(port) = remote.port else {
            return Err(Error::Endpoint(format!("{remote:?} has no port: RemoteEndpoint::port")));
        };
        let mut add = |address: IpAddr| {
            // An IPv4-mapped IPv6 address is treated as IPv4.
            let address = address.to_canonical();
            let (priority, protocols) = (remote.priority, remote.protocols.clone());
            resolved.endpoints.push(Endpoint { priority, address, port, protocols });
            if let Some(name) = &remote.hostname {
                resolved.names.insert(SocketAddr::new(address, port), name.clone());
            }
        };
        match (&remote.address, &remote.hostname) {
            (Some(address), _) => add(*address),
            (None, Some(name)) => match tokio::net::lookup_host((name.as_str(), port)).await {
                Ok(found) => found.for_each(|address| add(address.ip())),
                Err(source) => {
                    tracing::debug!("{name} cannot be resolved: {source}");
                    resolved.failed.get_or_insert(Error::Resolve { name: name.clone(), source });
                }
            },
            (None, None) => return Err(Error::Endpoint("a remote one has neither name nor address".into())),
        }
    }
    Ok(resolved)
}
