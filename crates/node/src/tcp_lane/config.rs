//! Section `[tcp_lane]` of `ue.toml` and of `upf.toml`.

use crate::runtime::config::types::{FIRST_MARK, check_interfaces};
use serde::Deserialize;
use std::time::Duration;

/// Maximum of all times, seconds.
const MOST_SECONDS: u32 = 86_400;
/// Maximum of all amounts of memory, MiB.
const MOST_MB: u32 = 1 << 20;
/// Maximum of all numbers of flows.
const MOST_FLOWS: u32 = 1 << 20;

/// Keys common to both ends.
struct LaneCommon<'a> {
    mark: u32,
    keepalive_s: u32,
    flows: u32,
    congestion_control: &'a str,
}

/// `[tcp_lane]` of a UE. There is a lane while the UPF offers one and a rule has `functionality = "mptcp"`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct UeLane {
    /// Port on 127.0.0.1 and ::1 to which flows are redirected.
    pub port: u16,
    /// Firewall mark of redirected packets, and number of the routing table for them. The next number marks
    /// flows that continue on the packet lane.
    pub mark: u32,
    /// Number of threads; 0: one per core.
    pub workers: u16,
    /// Interfaces whose incoming forwarded flows are redirected, too.
    pub interfaces: Vec<String>,
    /// Maximum number of simultaneous flows; further ones are reset.
    pub flows: u32,
    /// Maximum number of simultaneous flows per client address of forwarded flows; further ones are reset.
    pub flows_per_client: u32,
    /// Idle time after which TCP keepalives are sent, seconds.
    pub keepalive_s: u32,
    /// Congestion control of the subflows in the uplink; empty: BBR if the kernel has it, else the kernel's
    /// default.
    pub congestion_control: String,
    /// Maximum memory of data in flows, MiB; 0: half of the memory from which the kernel limits all TCP
    /// connections.
    pub memory_mb: u32,
    /// Loss without congestion during two seconds, percent, above which an access gets no subflow while
    /// another access has less; 100: never.
    pub leave_loss_percent: u8,
}

impl Default for UeLane {
    fn default() -> Self {
        Self {
            port: 15_172,
            mark: 0xab64,
            workers: 0,
            interfaces: Vec::new(),
            flows: 4096,
            flows_per_client: 1024,
            keepalive_s: 120,
            congestion_control: String::new(),
            memory_mb: 0,
            leave_loss_percent: 15,
        }
    }
}

impl UeLane {
    /// Firewall mark of flows that continue on the packet lane.
    pub const fn own_mark(&self) -> u32 {
        self.mark + 1
    }

    /// Checks the values; the error describes the first problem. The tunnel's interface is `device`, with the
    /// mark `device_mark`.
    pub fn check(&self, device: &str, device_mark: u32) -> Result<(), String> {
        if self.port == 0 {
            return Err("[tcp_lane] port = 0: must be 1 to 65535".to_owned());
        }
        let common = LaneCommon {
            mark: self.mark,
            keepalive_s: self.keepalive_s,
            flows: self.flows,
            congestion_control: &self.congestion_control,
        };
        common.check()?;
        within("flows_per_client", self.flows_per_client, MOST_FLOWS)?;
        at_most("memory_mb", self.memory_mb, MOST_MB)?;
        within("leave_loss_percent", self.leave_loss_percent.into(), 100)?;
        check_interfaces("[tcp_lane] interfaces", &self.interfaces)?;
        if self.interfaces.iter().any(|name| name == device) {
            return Err(format!(
                "[tcp_lane] interfaces: \"{device}\" is the tunnel's own: list interfaces at which packets of others arrive"
            ));
        }
        if self.mark.abs_diff(device_mark) < 2 {
            return Err(format!(
                "[tcp_lane] mark = {}: it and [device] mark also use the next number: choose another",
                self.mark
            ));
        }
        Ok(())
    }
}

/// `[tcp_lane]` of a UPF. If the section exists, the UPF offers a lane to its UEs.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct UpfLane {
    /// Firewall mark of the lane's connections and of packets that return to the lane, and number of the
    /// routing table for them.
    pub mark: u32,
    /// Number of threads; 0: one per core.
    pub workers: u16,
    /// Maximum number of simultaneous flows; further ones are reset.
    pub flows: u32,
    /// Maximum number of simultaneous flows per session.
    pub flows_per_session: u32,
    /// Time limit for the first bytes of a flow, seconds.
    pub first_bytes_s: u32,
    /// Time limit for connecting to a server, seconds.
    pub connect_s: u32,
    /// Maximum memory of data in flows, MiB; 0: half of the memory from which the kernel limits all TCP
    /// connections.
    pub memory_mb: u32,
    /// The same for the flows of a session; 0: an eighth of `memory_mb`.
    pub memory_per_session_mb: u32,
    /// Idle time after which TCP keepalives are sent, seconds.
    pub keepalive_s: u32,
    /// Congestion control of the subflows in the downlink; empty: BBR if the kernel has it, else the kernel's
    /// default.
    pub congestion_control: String,
}

impl Default for UpfLane {
    fn default() -> Self {
        Self {
            mark: 0xab68,
            workers: 0,
            flows: 16_384,
            flows_per_session: 2048,
            first_bytes_s: 5,
            connect_s: 30,
            memory_mb: 0,
            memory_per_session_mb: 0,
            keepalive_s: 120,
            congestion_control: String::new(),
        }
    }
}

impl UpfLane {
    /// Checks the values; the error describes the first problem.
    pub fn check(&self) -> Result<(), String> {
        let common = LaneCommon {
            mark: self.mark,
            keepalive_s: self.keepalive_s,
            flows: self.flows,
            congestion_control: &self.congestion_control,
        };
        common.check()?;
        within("flows_per_session", self.flows_per_session, MOST_FLOWS)?;
        within("first_bytes_s", self.first_bytes_s, MOST_SECONDS)?;
        at_most("memory_mb", self.memory_mb, MOST_MB)?;
        at_most("memory_per_session_mb", self.memory_per_session_mb, MOST_MB)?;
        within("connect_s", self.connect_s, MOST_SECONDS)
    }

    /// Time limit for the first bytes of a flow.
    pub const fn first_bytes(&self) -> Duration {
        Duration::from_secs(self.first_bytes_s as u64)
    }

    /// Time limit for connecting to a server.
    pub const fn connect(&self) -> Duration {
        Duration::from_secs(self.connect_s as u64)
    }
}

impl LaneCommon<'_> {
    fn check(&self) -> Result<(), String> {
        if !(FIRST_MARK..u32::MAX).contains(&self.mark) {
            let most = u32::MAX - 1;
            return Err(format!("[tcp_lane] mark = {}: must be {FIRST_MARK} to {most}", self.mark));
        }
        within("keepalive_s", self.keepalive_s, MOST_SECONDS)?;
        within("flows", self.flows, MOST_FLOWS)?;
        let name = self.congestion_control;
        let sound = name.len() < 16 && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        if sound {
            Ok(())
        } else {
            Err(format!(
                "[tcp_lane] congestion_control = \"{name}\": a name of the kernel's, such as \"cubic\""
            ))
        }
    }
}

fn at_most(key: &str, value: u32, most: u32) -> Result<(), String> {
    if value <= most { Ok(()) } else { Err(format!("[tcp_lane] {key} = {value}: must be 0 to {most}")) }
}

fn within(key: &str, value: u32, most: u32) -> Result<(), String> {
    if (1..=most).contains(&value) {
        Ok(())
    } else {
        Err(format!("[tcp_lane] {key} = {value}: must be 1 to {most}"))
    }
}
