//! Connection groups (RFC 9622 §7.4): connections cloned from one another share their connection properties, except the priority.

use crate::connection::Inner;
use crate::event::Event;
use crate::setup;
use crate::transport::Link;
use anabranch_selection::{CapacityProfile, Properties, Protocol, Rate, plan};
use socket2::SockRef;
use std::io;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

/// Connection properties that can change while a connection is open (RFC 9622 §8.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ConnectionProperties {
    /// `connTimeout`: how long data may remain unacknowledged before the connection is given up; `None`: the kernel's default. QUIC:
    /// set before opening.
    pub timeout: Option<Duration>,
    /// `keepAliveTimeout`: idle time before probes are sent; `None`: never. QUIC: set before opening.
    pub keep_alive_timeout: Option<Duration>,
    /// `connCapacityProfile`: sets the DSCP and, over TCP, disables Nagle's algorithm for low latency. The path does not change.
    pub capacity_profile: CapacityProfile,
    /// `maxSendRate`: pacing rate of TCP and Multipath TCP.
    pub max_send_rate: Rate,
}

impl ConnectionProperties {
    /// The values in `properties`.
    pub(crate) fn of(properties: &Properties) -> Self {
        Self {
            timeout: None,
            keep_alive_timeout: None,
            capacity_profile: properties.conn_capacity_profile,
            max_send_rate: properties.max_send_rate,
        }
    }

    /// Applies them to a newly opened TCP socket; DSCP and pacing are part of the plan.
    pub(crate) fn apply_all(&self, socket: &SockRef<'_>) -> io::Result<()> {
        let default = Self::default();
        if self.timeout != default.timeout {
            setup::set_timeout(socket, self.timeout)?;
        }
        if self.keep_alive_timeout != default.keep_alive_timeout {
            setup::set_keep_alive(socket, self.keep_alive_timeout)?;
        }
        if self.capacity_profile != default.capacity_profile {
            setup::set_profile(socket, self.capacity_profile)?;
        }
        Ok(())
    }

    /// Applies what differs from `old`. `most_bps` is the plan's pacing rate, which a program cannot exceed.
    ///
    /// # Errors
    /// The property that cannot be set, and why.
    pub(crate) fn apply(
        &self,
        old: &Self,
        link: &Link,
        protocol: Protocol,
        most_bps: Option<u64>,
    ) -> io::Result<()> {
        let named = |property: &str, result: io::Result<()>| {
            result.map_err(|e| io::Error::new(e.kind(), format!("property \"{property}\": {e}")))
        };
        let fixed = || {
            let reason = format!("over {protocol} it cannot change while the connection is open");
            io::Error::new(io::ErrorKind::Unsupported, reason)
        };
        let socket = link.own_socket();
        let tcp = matches!(protocol, Protocol::Tcp | Protocol::Mptcp);
        if self.timeout != old.timeout {
            match &socket {
                Some(socket) if tcp => named("connTimeout", setup::set_timeout(socket, self.timeout))?,
                // UDP has no timeout.
                _ if protocol == Protocol::Udp => {}
                _ => named("connTimeout", Err(fixed()))?,
            }
        }
        if self.keep_alive_timeout != old.keep_alive_timeout {
            match &socket {
                Some(socket) if tcp => {
                    let set = setup::set_keep_alive(socket, self.keep_alive_timeout);
                    named("keepAliveTimeout", set)?;
                }
                _ => named("keepAliveTimeout", Err(fixed()))?,
            }
        }
        if self.capacity_profile != old.capacity_profile {
            let Some(socket) = &socket else { return named("connCapacityProfile", Err(fixed())) };
            named("connCapacityProfile", setup::set_dscp(socket, plan::dscp(self.capacity_profile)))?;
            if tcp {
                named("connCapacityProfile", setup::set_profile(socket, self.capacity_profile))?;
            }
        }
        if self.max_send_rate != old.max_send_rate {
            let Some(socket) = &socket else { return named("maxSendRate", Err(fixed())) };
            let least = [self.max_send_rate.get(), most_bps].into_iter().flatten().min();
            named("maxSendRate", setup::set_rate(socket, Rate::bps(least.unwrap_or(0))))?;
        }
        Ok(())
    }
}

/// Connections that share their properties.
#[derive(Debug)]
pub(crate) struct Group {
    shared: Mutex<Shared>,
}

#[derive(Debug)]
struct Shared {
    connection_properties: ConnectionProperties,
    members: Vec<Weak<Inner>>,
}

impl Group {
    pub fn new(connection_properties: ConnectionProperties) -> Arc<Self> {
        Arc::new(Self { shared: Mutex::new(Shared { connection_properties, members: Vec::new() }) })
    }

    pub fn connection_properties(&self) -> ConnectionProperties {
        self.shared().connection_properties
    }

    pub fn join(&self, member: &Arc<Inner>) {
        let mut shared = self.shared();
        shared.members.retain(|m| m.strong_count() > 0);
        shared.members.push(Arc::downgrade(member));
    }

    pub fn members(&self) -> Vec<Arc<Inner>> {
        self.shared().members.iter().filter_map(Weak::upgrade).filter(|m| m.is_open()).collect()
    }

    /// Applies properties to `first`, and then to the others; those that cannot apply them get an event.
    ///
    /// # Errors
    /// `first` cannot apply them: the others are unchanged.
    pub fn set(&self, connection_properties: ConnectionProperties, first: &Arc<Inner>) -> io::Result<()> {
        let old = self.connection_properties();
        first.apply(&connection_properties, &old)?;
        self.shared().connection_properties = connection_properties;
        for member in self.members().iter().filter(|m| !Arc::ptr_eq(m, first)) {
            if let Err(error) = member.apply(&connection_properties, &old) {
                member.emit(Event::CloneError(error.to_string()));
            }
        }
        Ok(())
    }

    /// A panic while the lock is held leaves the data consistent.
    fn shared(&self) -> std::sync::MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
