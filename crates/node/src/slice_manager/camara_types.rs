//! Types shared by CAMARA's APIs: devices, ports, times, and credentials of event sinks.

use super::camara::CamaraError;
use super::routes::object_or_null;
use crate::runtime::api::Problem;
use crate::runtime::times::{from_rfc3339, rfc3339};
use anabranch_slice::Manager;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Maximum value of a time in any unit.
const MAX_VALUE: u64 = 1_000_000_000;

/// A time span: a value and its unit.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TimeSpan {
    #[schema(minimum = 1, maximum = 1_000_000_000)]
    value: u64,
    /// `Days`, `Hours`, `Minutes`, `Seconds`, `Milliseconds`, `Microseconds` or `Nanoseconds`.
    unit: String,
}

impl TimeSpan {
    /// The time span in milliseconds, at most ten seconds, which exceeds any latency that can be requested.
    ///
    /// # Errors
    /// The value is out of range, or the unit is unknown.
    pub fn ms(&self, field: &'static str) -> Result<f64, Problem> {
        if !(1..=MAX_VALUE).contains(&self.value) {
            let detail = format!("value is {}: must be 1 to {MAX_VALUE}", self.value);
            return Err(Problem::invalid(detail).field(field));
        }
        let times = match self.unit.as_str() {
            "Days" => 86_400_000.0,
            "Hours" => 3_600_000.0,
            "Minutes" => 60_000.0,
            "Seconds" => 1e3,
            "Milliseconds" => 1.0,
            "Microseconds" => 1e-3,
            "Nanoseconds" => 1e-6,
            other => {
                let detail = format!(
                    "unit \"{other}\": must be Days, Hours, Minutes, Seconds, Milliseconds, \
                                      Microseconds or Nanoseconds"
                );
                return Err(Problem::invalid(detail).field(field));
            }
        };
        Ok((self.value as f64 * times).min(10_000.0))
    }
}

/// Credential for an event sink. It is never shown again.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SinkCredential {
    /// `ACCESSTOKEN`.
    credential_type: String,
    access_token: String,
    /// Expiry, RFC 3339.
    access_token_expires_utc: String,
    /// `bearer`.
    access_token_type: String,
}

impl SinkCredential {
    /// The bearer token.
    ///
    /// # Errors
    /// The credential type is not supported, or the token has expired at `now_ms` (Unix time).
    pub fn token(self, now_ms: u64) -> Result<String, CamaraError> {
        if self.credential_type != "ACCESSTOKEN" {
            let message = "sinkCredential.credentialType: only ACCESSTOKEN is supported".to_owned();
            return Err(CamaraError::of(400, "INVALID_CREDENTIAL", message));
        }
        if self.access_token_type != "bearer" {
            let message = "sinkCredential.accessTokenType: only bearer is supported".to_owned();
            return Err(CamaraError::of(400, "INVALID_TOKEN", message));
        }
        let expires_ms = from_rfc3339(&self.access_token_expires_utc);
        let readable = (1..=4096).contains(&self.access_token.len())
            && self.access_token.bytes().all(|b| b.is_ascii_graphic());
        let (Some(expires_ms), true) = (expires_ms, readable) else {
            let message = "sinkCredential: accessToken of 1 to 4096 visible characters, and accessTokenExpiresUtc such as \
                           2030-01-31T08:00:00Z";
            return Err(CamaraError::of(400, "INVALID_CREDENTIAL", message.to_owned()));
        };
        if expires_ms <= now_ms {
            let message = format!("sinkCredential.accessTokenExpiresUtc: {} is over", rfc3339(expires_ms));
            return Err(CamaraError::of(400, "INVALID_CREDENTIAL", message));
        }
        Ok(self.access_token)
    }
}

/// An IPv4 address as seen on the Internet.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Ipv4Device {
    public_address: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    private_address: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    public_port: Option<u16>,
}

/// The device of a QoS session. UEs are identified by network access identifier or phone number, which is the
/// UE's name.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Device {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    network_access_identifier: Option<String>,
    /// Phone number with `+` and country code (E.164).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    phone_number: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "object_or_null")]
    ipv4_address: Option<Ipv4Device>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ipv6_address: Option<String>,
}

impl Device {
    /// The name of the UE.
    ///
    /// # Errors
    /// The device has no supported identifier, or the UE is unknown.
    pub fn ue(&self, m: &Manager) -> Result<String, CamaraError> {
        let mut names = self.network_access_identifier.iter().chain(&self.phone_number).peekable();
        if names.peek().is_none() {
            let (code, message) = match (&self.ipv4_address, &self.ipv6_address) {
                (None, None) => ("MISSING_IDENTIFIER", "device: give networkAccessIdentifier or phoneNumber"),
                _ => (
                    "UNSUPPORTED_IDENTIFIER",
                    "device: only networkAccessIdentifier and phoneNumber are supported",
                ),
            };
            return Err(CamaraError::of(422, code, message.to_owned()));
        }
        names.find(|name| m.ues().contains_key(*name)).cloned().ok_or_else(|| {
            let message = "device: no UE has this name: the operator adds them with PUT /v1/ues/{ue}";
            CamaraError::of(404, "IDENTIFIER_NOT_FOUND", message.to_owned())
        })
    }
}

/// Single ports and port ranges.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Ports {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    ranges: Vec<PortRange>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    ports: Vec<u16>,
}

/// A range of ports, both ends included.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PortRange {
    from: u16,
    to: u16,
}

impl Ports {
    /// Validates the ports.
    ///
    /// # Errors
    /// A range is reversed, or there are none or too many.
    pub fn check(of: Option<&Self>, field: &'static str) -> Result<(), Problem> {
        let Some(ports) = of else { return Ok(()) };
        let wrong = ports.ranges.iter().any(|r| r.from > r.to);
        if wrong
            || ports.ranges.len() + ports.ports.len() > 1000
            || ports.ranges.is_empty() && ports.ports.is_empty()
        {
            let detail =
                format!("{field}: give 1 to 1000 ports and ranges, each from the lower to the higher");
            return Err(Problem::invalid(detail).field(field));
        }
        Ok(())
    }
}
