//! `ue.toml`.

use super::load::Check;
use super::types::{Api, Device, Metrics, RemoteAddr, check_accesses, check_rules};
use anabranch_core::access::crypto::PublicKey;
use anabranch_core::access::path::{FlapParams, ProbeParams};
use anabranch_core::access::session::Security;
use anabranch_core::policy::Rule;
use serde::Deserialize;
use std::net::IpAddr;
use std::path::PathBuf;

/// The UE's configuration.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UeConfig {
    /// `[ue]`
    pub ue: UeSection,
    /// `[upf]`
    pub upf: UpfPeer,
    /// `[[access]]`, in the order of their path ids.
    #[serde(default)]
    pub access: Vec<UeAccess>,
    /// `[device]`
    #[serde(default)]
    pub device: Device,
    /// `[[rule]]`, first match wins.
    #[serde(default)]
    pub rule: Vec<Rule>,
    /// `[probe]`
    #[serde(default)]
    pub probe: ProbeParams,
    /// `[flap]`
    #[serde(default)]
    pub flap: FlapParams,
    /// `[api]`
    #[serde(default = "default_api")]
    pub api: Api,
    /// `[metrics]`
    #[serde(default)]
    pub metrics: Option<Metrics>,
}

/// `[ue]`
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UeSection {
    /// Shown in logs and status.
    #[serde(default = "default_name")]
    pub name: String,
    /// File with the private key (`anabranch keygen`).
    pub private_key_file: PathBuf,
}

/// `[upf]`
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UpfPeer {
    /// The UPF's public key, base64.
    pub public_key: PublicKey,
    /// Cipher to propose: AES where the processor has instructions for it, else ChaCha20.
    #[serde(default)]
    pub cipher: Cipher,
}

/// Cipher of the secure form.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cipher {
    /// By what the processor does fastest.
    #[default]
    Auto,
    /// AES-256-GCM.
    Aes256Gcm,
    /// ChaCha20-Poly1305.
    Chacha20Poly1305,
}

/// `[[access]]`
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UeAccess {
    /// Name, as rules use it.
    pub name: String,
    /// Interface the datagrams leave by (SO_BINDTODEVICE).
    #[serde(default)]
    pub interface: Option<String>,
    /// Source address of the datagrams.
    #[serde(default)]
    pub local: Option<IpAddr>,
    /// The UPF, as seen through this access.
    pub remote: RemoteAddr,
    /// Protection of user data.
    #[serde(default)]
    pub security: Security,
}

impl Check for UeConfig {
    fn check(&self) -> Result<(), String> {
        let names: Vec<&str> = self.access.iter().map(|a| a.name.as_str()).collect();
        check_accesses(&names)?;
        for access in &self.access {
            if let Some(interface) = &access.interface
                && !(1..=15).contains(&interface.len())
            {
                return Err(format!(
                    "access {}: interface \"{interface}\" is not an interface name (1 to 15 bytes)",
                    access.name
                ));
            }
        }
        check_rules(&self.rule, &names)?;
        self.probe.validate().map_err(|e| format!("[probe] {e}"))?;
        self.flap.validate().map_err(|e| format!("[flap] {e}"))?;
        self.device.check()?;
        self.api.check()
    }
}

fn default_name() -> String {
    "ue".to_owned()
}

fn default_api() -> Api {
    Api::unix("/run/anabranch/ue.sock")
}
