//! Configuration files in TOML. Every key is checked; every error names file, line, key and remedy.
//!
//! The module depends on nothing else in this crate: a fuzz target compiles it alone.
//!
//! Annotated examples with every default: `packaging/{ue,upf,gnb,lwip,proxy,slice-manager}.example.toml`.

pub mod api;
#[cfg(test)]
pub mod documented;
pub mod gateways;
pub mod keys;
pub mod load;
pub mod types;

pub use crate::gnb::config::{GnbConfig, N3Section, PortDevice};
pub use crate::lwip::config::{GtpuBackhaul, LwipConfig, ue_rules};
pub use crate::proxy::config::{AgentLink, ProxyConfig, ProxyLimits, ProxyRule, Source, Unmet};
#[cfg(feature = "slice-manager")]
pub use crate::slice_manager::config::{AgentSection, Callbacks, Limits, ManagedAccess, SliceManagerConfig};
pub use crate::tcp_lane::config::{UeLane as UeLaneSection, UpfLane as UpfLaneSection};
pub use crate::ue::config::{
    Cipher, Follow, MOST_SLICES, Mapping, SliceBinding, SlicesSection, UeAccess, UeConfig, UeSection,
    WindowBy,
};
pub use crate::upf::config::{
    N6Mode, Pool, UpfAccess, UpfConfig, UpfUe, address_key, gateway_v4, gateway_v6,
};
#[cfg(test)]
pub use api::FixedToken;
pub use api::{Api, Connections, Listen, Metrics, OAuth, RoleName, Tls};
pub use keys::{read_private_key, warn_if_open};
pub use load::{Check, ConfigError, load, parse, read_trace};
pub use types::{
    Device, DeviceKind, Mtu, RemoteAddr, WithoutAddress, check_rules, differing, differing_accesses,
};
