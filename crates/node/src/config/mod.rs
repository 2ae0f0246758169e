//! Configuration files: TOML, checked to the last key, every error with file, line, key and remedy.
//!
//! Needs nothing of the program around it: a fuzz target compiles this module alone.
//!
//! Annotated examples with every default: `packaging/{ue,upf,gnb,lwip,proxy,slice-manager}.example.toml`.

mod api;
#[cfg(test)]
mod documented;
mod gateways;
mod gnb;
mod keys;
mod load;
mod lwip;
mod proxy;
mod slice_manager;
mod tcp_lane;
mod types;
mod ue;
mod upf;

#[cfg(test)]
pub use api::FixedToken;
pub use api::{Api, Connections, Listen, Metrics, OAuth, RoleName, Tls};
pub use gnb::{GnbConfig, N3Section, PortDevice};
pub use keys::read_private_key;
pub use load::{Check, ConfigError, load, parse, read_trace};
pub use lwip::{GtpuBackhaul, LwipConfig, ue_rules};
pub use proxy::{AgentLink, ProxyConfig, ProxyLimits, ProxyRule, Source, Unmet};
pub use slice_manager::{AgentSection, Callbacks, Limits, ManagedAccess, SliceManagerConfig};
pub use tcp_lane::{UeLane as UeLaneSection, UpfLane as UpfLaneSection};
pub use types::{Device, DeviceKind, Mtu, RemoteAddr, WithoutAddress, check_rules};
pub use ue::{
    Cipher, Follow, MOST_SLICES, Mapping, SliceBinding, SlicesSection, UeAccess, UeConfig, UeSection,
    WindowBy,
};
pub use upf::{N6Mode, Pool, UpfAccess, UpfConfig, UpfUe, address_key, gateway_v4, gateway_v6};
