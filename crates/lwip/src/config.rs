//! The configuration of a node.
//!
//! ```toml
//! wifi_leg = "translate"                    # or "tunnel": packets reach the UE unchanged
//! other = "lte"                             # UDP: lte, wifi, by_flow
//! steering = { mode = "fixed_ratio", lte_percent = 50 }   # rtt_weighted, capacity_weighted, autonomous, switched
//! probe = { addresses = ["10.45.0.1"] }     # measures the legs; most steering modes require it
//! dida = { let_through = 2, hold = { mode = "fixed", ms = 50 } }
//!
//! [[ues]]
//! name = "phone"
//! addresses = ["10.45.0.2"]                 # on the bearer: the addresses that servers use
//! wifi = ["10.46.0.2"]                      # on Wi-Fi
//! ```

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Longest hold that can be configured, milliseconds.
pub const MAX_HOLD_MS: f64 = 10_000.0;

/// The configuration of a node. Absent keys have the stated defaults.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Form of the Wi-Fi leg. Default: `translate`.
    pub wifi_leg: WifiLeg,
    /// How TCP is divided between the legs. Default: `fixed_ratio`, 50 % over LTE.
    pub steering: Steering,
    /// The leg of UDP. Everything else that is not TCP uses LTE. Default: `lte`.
    pub other: OtherTraffic,
    /// Probes, which measure the legs. If absent, only `fixed_ratio` and `switched` with a fixed leg are possible.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probe: Option<ProbeConfig>,
    /// DIDA. If absent, ACKs are forwarded unchanged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dida: Option<DidaConfig>,
    /// The UEs. Packets to other addresses use LTE, unchanged.
    pub ues: Vec<UeConfig>,
    /// Size of the flow table, 1 to 2^24. When it is full, the flow that has been idle longest is evicted. Default:
    /// 65,536 (24 MB when full).
    pub flows: u32,
    /// A flow without packets is forgotten after this time, seconds, 1 to 86,400. Default: 60.
    pub idle_s: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            wifi_leg: WifiLeg::default(),
            steering: Steering::default(),
            other: OtherTraffic::default(),
            probe: None,
            dida: None,
            ues: Vec::new(),
            flows: 65_536,
            idle_s: 60,
        }
    }
}

/// Configuration of a UE.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UeConfig {
    /// A unique name.
    pub name: String,
    /// The addresses on the bearer, one per family, unique among UEs.
    pub addresses: Vec<IpAddr>,
    /// The addresses on Wi-Fi, one per family. With `wifi_leg = "translate"`, a family without an address uses LTE
    /// only.
    #[serde(default)]
    pub wifi: Vec<IpAddr>,
}

/// Form of the Wi-Fi leg.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WifiLeg {
    /// The node replaces the destination by the UE's Wi-Fi address, and the UE restores the bearer address.
    #[default]
    Translate,
    /// The leg is a tunnel, or finds the UE in some other way. Packets stay unchanged.
    Tunnel,
}

/// How TCP is divided between the legs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "mode", rename_all = "snake_case", deny_unknown_fields)]
pub enum Steering {
    /// A fixed share of the packets of each flow over LTE, spread evenly (the paper's LTE-20, LTE-50, LTE-80).
    FixedRatio {
        /// 0 to 100, in steps of any size.
        lte_percent: f64,
    },
    /// Shares inversely proportional to the round-trip times of the legs, as in the authors' code.
    RttWeighted {
        /// Least share of a leg, percent, 0 to 50. Default: 5.
        #[serde(default = "five")]
        least_percent: f64,
    },
    /// Shares proportional to the rates of the legs. A leg that was never full counts with its initial rate or the
    /// highest rate seen on it, whichever is higher.
    CapacityWeighted {
        /// Least share of a leg, percent, 0 to 50. Default: 5.
        #[serde(default = "five")]
        least_percent: f64,
        /// Initial rate of LTE, Mbit/s, more than 0 and at most 100,000. Default: 10.
        #[serde(default = "ten")]
        lte_mbps: f64,
        /// Initial rate of Wi-Fi, Mbit/s, more than 0 and at most 100,000. Default: 10.
        #[serde(default = "ten")]
        wifi_mbps: f64,
    },
    /// The law of `autonomous` load-balance: each flow has the leg that offers it more as its home, and packets use
    /// the other leg while they arrive no later there. Capacity, delay and loss of the legs are derived from
    /// probes, trains and ACKs; no rates are configured.
    Autonomous,
    /// All of a UE's flows on one leg (the switched bearer of TS 36.300).
    Switched {
        /// The leg. Default: `auto`.
        #[serde(default)]
        to: SwitchTo,
        /// `auto`: the RTT of the other leg must be shorter by this percentage, 0 to 99. Default: 25.
        #[serde(default = "quarter")]
        hysteresis_percent: f64,
        /// `auto`: least time between two changes while both legs are up, milliseconds. Default: 1,000.
        #[serde(default = "second")]
        dwell_ms: u32,
    },
}

const fn five() -> f64 {
    5.0
}
const fn ten() -> f64 {
    10.0
}
const fn quarter() -> f64 {
    25.0
}
const fn second() -> u32 {
    1000
}

/// The leg of a switched bearer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SwitchTo {
    /// The leg with the shorter RTT.
    #[default]
    Auto,
    /// LTE.
    Lte,
    /// Wi-Fi, while it is up.
    Wifi,
}

/// Probes: echo requests to every UE on both legs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProbeConfig {
    /// The node's own addresses, at most one per family. UEs answer to them, so packets to them must reach the
    /// node.
    pub addresses: Vec<IpAddr>,
    /// Time between probes of a UE that receives packets, milliseconds, 10 to 60,000. Default: 100.
    #[serde(default = "hundred")]
    pub interval_ms: u32,
    /// Time between probes of any other UE, milliseconds, `interval_ms` to 600,000. Default: 1,000.
    #[serde(default = "second")]
    pub idle_ms: u32,
    /// Wi-Fi is down after this many consecutive probes without an answer, 1 to 15. Default: 4.
    #[serde(default = "four")]
    pub lost_after: u16,
}

const fn hundred() -> u32 {
    100
}
const fn four() -> u16 {
    4
}

impl ProbeConfig {
    /// Probes from `addresses`, with all defaults.
    #[must_use]
    pub const fn new(addresses: Vec<IpAddr>) -> Self {
        Self { addresses, interval_ms: hundred(), idle_ms: second(), lost_after: four() }
    }

    fn check(&self) -> Result<(), ConfigError> {
        let fail = |key, value: String, remedy| Err(ConfigError::Value { key, value, remedy });
        for (i, address) in self.addresses.iter().enumerate() {
            if address.is_unspecified() || address.is_multicast() {
                return fail("probe.addresses", address.to_string(), "the address of one host");
            }
            if self.addresses[..i].iter().any(|other| other.is_ipv4() == address.is_ipv4()) {
                return fail("probe.addresses", address.to_string(), "one address per family");
            }
        }
        if self.addresses.is_empty() {
            return fail("probe.addresses", "[]".into(), "at least one address");
        }
        if !(10..=60_000).contains(&self.interval_ms) {
            return fail("probe.interval_ms", self.interval_ms.to_string(), "10 to 60000");
        }
        if !(self.interval_ms..=600_000).contains(&self.idle_ms) {
            return fail("probe.idle_ms", self.idle_ms.to_string(), "interval_ms to 600000");
        }
        if !(1..=15).contains(&self.lost_after) {
            return fail("probe.lost_after", self.lost_after.to_string(), "1 to 15");
        }
        Ok(())
    }
}

impl Default for Steering {
    fn default() -> Self {
        Self::FixedRatio { lte_percent: 50.0 }
    }
}

/// The leg of UDP.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OtherTraffic {
    /// LTE, the anchor leg, as without LWIP.
    #[default]
    Lte,
    /// Wi-Fi, if the UE has it.
    Wifi,
    /// Whole flows, in the ratio of `steering`. No UDP flow is split, because nothing would restore its order.
    ByFlow,
}

/// Configuration of DIDA.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DidaConfig {
    /// Duplicate ACKs that are forwarded before holding starts, 0 to 100. The paper's 2 is one less than a classic
    /// sender needs to retransmit; use 0 for a sender with RACK. Of duplicates whose SACK blocks are hidden, none
    /// is let through, whatever the value. Default: 2.
    pub let_through: u16,
    /// How long they are held. Default: fixed, 50 ms.
    pub hold: Hold,
    /// Whether SACK blocks are held as well. They are removed from ACKs that advance and report a gap, because a
    /// sender with SACK would otherwise learn from them what the held duplicates report. No effect on senders
    /// without SACK. `false` is DIDA as in the paper. Default: `true`.
    pub hide_sack: bool,
    /// Whether every hold ends before the sender's retransmission timer expires, as far as the node can estimate
    /// it. `false` is for experiments with long holds. Default: `true`.
    pub respect_rto: bool,
    /// Assumed minimum of the difference between the sender's RTO and its SRTT, milliseconds, 1 to 10,000. Default:
    /// 200, as in Linux. The minimum of RFC 6298, 1 s for the whole RTO, is longer than that for round trips below
    /// 0.8 s.
    pub min_rto_ms: u32,
    /// Most ACKs held per flow; the next one releases them. Default: 256.
    pub held_per_flow: u32,
    /// Most ACKs held in total, of 128 bytes each; beyond that, nothing more is held. Default: 65,536 (8 MB when
    /// full).
    pub held: u32,
}

impl Default for DidaConfig {
    fn default() -> Self {
        Self {
            let_through: 2,
            hold: Hold::default(),
            hide_sack: true,
            respect_rto: true,
            min_rto_ms: 200,
            held_per_flow: 256,
            held: 65_536,
        }
    }
}

/// How long an ACK is held while the missing one is awaited.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "mode", rename_all = "snake_case", deny_unknown_fields)]
pub enum Hold {
    /// Always the same time.
    Fixed {
        /// Milliseconds, 0 to 10,000; 0: nothing is held.
        ms: f64,
    },
    /// The paper's t_opt with its sign corrected, computed from the estimates of each flow; see
    /// [`Model`](super::holding_time::Model). For comparison with the paper: it is mostly 0, and a download takes
    /// as long as without a hold.
    Optimal,
    /// The hold that would have cost the sender least, judged by recent gaps of the UE. Not part of the paper; see
    /// docs/lwip.md.
    Adaptive,
}

impl Default for Hold {
    fn default() -> Self {
        Self::Fixed { ms: 50.0 }
    }
}

/// An invalid configuration.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ConfigError {
    /// A value is out of range.
    #[error("{key} = {value}: must be {remedy}")]
    Value {
        /// Name of the configuration key.
        key: &'static str,
        /// The rejected value.
        value: String,
        /// What is valid.
        remedy: &'static str,
    },
    /// The configuration of a UE is invalid.
    #[error("ues: \"{ue}\": {key} = {value}: must be {remedy}")]
    Ue {
        /// Its name.
        ue: String,
        /// Name of the configuration key.
        key: &'static str,
        /// The rejected value.
        value: String,
        /// What is valid.
        remedy: &'static str,
    },
}

impl ConfigError {
    pub(super) fn value(key: &'static str, value: impl ToString, remedy: &'static str) -> Self {
        Self::Value { key, value: value.to_string(), remedy }
    }
}

impl Config {
    /// Checks the configuration.
    ///
    /// # Errors
    /// The first error found.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.steering.check()?;
        self.check_probe(&self.steering)?;
        if let Some(dida) = &self.dida {
            dida.check()?;
        }
        if !(1..=1 << 24).contains(&self.flows) {
            return Err(ConfigError::value("flows", self.flows, "1 to 16777216"));
        }
        if !(1..=86_400).contains(&self.idle_s) {
            return Err(ConfigError::value("idle_s", self.idle_s, "1 to 86400"));
        }
        let mut bearer: BTreeMap<IpAddr, &str> = BTreeMap::new();
        for (i, ue) in self.ues.iter().enumerate() {
            ue.check()?;
            let fail =
                |key, value: String, remedy| Err(ConfigError::Ue { ue: ue.name.clone(), key, value, remedy });
            if self.ues[..i].iter().any(|other| other.name == ue.name) {
                return fail("name", ue.name.clone(), "a name that no other UE has");
            }
            for address in &ue.addresses {
                if bearer.insert(*address, &ue.name).is_some() {
                    return fail("addresses", address.to_string(), "an address that no other UE has");
                }
            }
        }
        // The node could not tell a packet translated to such an address from one for LTE or for another UE.
        for ue in self.ues.iter().filter(|_| self.wifi_leg == WifiLeg::Translate) {
            for address in &ue.wifi {
                if bearer.insert(*address, &ue.name).is_some() {
                    let (ue, value) = (ue.name.clone(), address.to_string());
                    let remedy = "an address that is no UE's on the bearer, and no other UE's on Wi-Fi";
                    return Err(ConfigError::Ue { ue, key: "wifi", value, remedy });
                }
            }
        }
        Ok(())
    }
}

impl Config {
    /// Checks that probes are configured if `steering` needs measurements.
    pub(super) fn check_probe(&self, steering: &Steering) -> Result<(), ConfigError> {
        match &self.probe {
            Some(probe) => probe.check(),
            None if steering.needs_probe() => Err(ConfigError::value(
                "probe",
                "none",
                "there, with an address of the node: this steering goes by what probes measure",
            )),
            None => Ok(()),
        }
    }
}

impl UeConfig {
    /// Checks this UE, without regard to others.
    ///
    /// # Errors
    /// The first error found.
    pub fn check(&self) -> Result<(), ConfigError> {
        let fail =
            |key, value: String, remedy| Err(ConfigError::Ue { ue: self.name.clone(), key, value, remedy });
        if self.name.is_empty() {
            return fail("name", "\"\"".into(), "a name");
        }
        for (key, list) in [("addresses", &self.addresses), ("wifi", &self.wifi)] {
            for (i, address) in list.iter().enumerate() {
                if address.is_unspecified() || address.is_multicast() {
                    return fail(key, address.to_string(), "the address of one host");
                }
                if list[..i].iter().any(|other| other.is_ipv4() == address.is_ipv4()) {
                    return fail(key, address.to_string(), "one address per family");
                }
            }
        }
        if self.addresses.is_empty() {
            return fail("addresses", "[]".into(), "at least one address");
        }
        Ok(())
    }
}

impl Steering {
    /// Checks the values.
    ///
    /// # Errors
    /// The first error found.
    pub fn check(&self) -> Result<(), ConfigError> {
        match *self {
            Self::FixedRatio { lte_percent } => {
                within("steering.lte_percent", lte_percent, 0.0..=100.0, "a number of 0 to 100")
            }
            Self::RttWeighted { least_percent } => least(least_percent),
            Self::CapacityWeighted { least_percent, lte_mbps, wifi_mbps } => {
                least(least_percent)?;
                let remedy = "a number more than 0 and at most 100000";
                within("steering.lte_mbps", lte_mbps, 1e-6..=1e5, remedy)?;
                within("steering.wifi_mbps", wifi_mbps, 1e-6..=1e5, remedy)
            }
            Self::Autonomous => Ok(()),
            Self::Switched { hysteresis_percent, .. } => {
                let key = "steering.hysteresis_percent";
                within(key, hysteresis_percent, 0.0..=99.0, "a number of 0 to 99")
            }
        }
    }

    const fn needs_probe(&self) -> bool {
        match self {
            Self::FixedRatio { .. } | Self::Switched { to: SwitchTo::Lte | SwitchTo::Wifi, .. } => false,
            Self::RttWeighted { .. }
            | Self::CapacityWeighted { .. }
            | Self::Autonomous
            | Self::Switched { .. } => true,
        }
    }
}

impl DidaConfig {
    /// Checks the values.
    ///
    /// # Errors
    /// The first error found.
    pub fn check(&self) -> Result<(), ConfigError> {
        if self.let_through > 100 {
            return Err(ConfigError::value("dida.let_through", self.let_through, "0 to 100"));
        }
        if !(1..=1 << 24).contains(&self.held) {
            return Err(ConfigError::value("dida.held", self.held, "1 to 16777216"));
        }
        if self.held_per_flow == 0 {
            return Err(ConfigError::value("dida.held_per_flow", 0, "at least 1"));
        }
        if !(1..=10_000).contains(&self.min_rto_ms) {
            return Err(ConfigError::value("dida.min_rto_ms", self.min_rto_ms, "1 to 10000"));
        }
        match self.hold {
            Hold::Fixed { ms } => within("dida.hold.ms", ms, 0.0..=MAX_HOLD_MS, "a number of 0 to 10000"),
            Hold::Optimal | Hold::Adaptive => Ok(()),
        }
    }
}

fn least(percent: f64) -> Result<(), ConfigError> {
    within("steering.least_percent", percent, 0.0..=50.0, "a number of 0 to 50")
}

fn within(
    key: &'static str,
    value: f64,
    range: core::ops::RangeInclusive<f64>,
    remedy: &'static str,
) -> Result<(), ConfigError> {
    // NaN is in no range.
    if range.contains(&value) { Ok(()) } else { Err(ConfigError::value(key, value, remedy)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_is_read_and_written() {
        let text = r#"
            steering = { mode = "fixed_ratio", lte_percent = 20 }
            dida = { let_through = 0, hold = { mode = "fixed", ms = 40 } }
            [[ues]]
            name = "phone"
            addresses = ["10.45.0.2", "fd00:45::2"]
            wifi = ["10.46.0.2"]
        "#;
        let config: Config = toml::from_str(text).unwrap();
        config.check().unwrap();
        assert_eq!(config.dida.unwrap().hold, Hold::Fixed { ms: 40.0 });
        assert_eq!(toml::from_str::<Config>(&toml::to_string(&config).unwrap()).unwrap(), config);
        assert_eq!(toml::from_str::<Config>("").unwrap(), Config::default());
        assert!(toml::from_str::<Config>("stering = 1").is_err());
    }

    #[test]
    fn errors_name_the_key_and_a_remedy() {
        for (text, said) in [
            ("flows = 0", "flows = 0"),
            ("idle_s = 0", "1 to 86400"),
            ("steering = { mode = \"fixed_ratio\", lte_percent = 101 }", "steering.lte_percent = 101"),
            ("steering = { mode = \"fixed_ratio\", lte_percent = nan }", "NaN"),
            ("dida = { let_through = 101 }", "dida.let_through"),
            ("dida = { hold = { mode = \"fixed\", ms = -1 } }", "dida.hold.ms"),
            ("steering = { mode = \"rtt_weighted\" }", "probe = none"),
            ("steering = { mode = \"switched\" }", "probe = none"),
            ("steering = { mode = \"switched\", to = \"wifi\", hysteresis_percent = 100 }", "0 to 99"),
            ("steering = { mode = \"capacity_weighted\", lte_mbps = 0 }", "lte_mbps"),
            ("steering = { mode = \"capacity_weighted\", least_percent = 51 }", "0 to 50"),
            ("probe = { addresses = [] }", "at least one"),
            ("probe = { addresses = [\"::\"] }", "one host"),
            ("probe = { addresses = [\"10.0.0.1\", \"10.0.0.2\"] }", "per family"),
            ("probe = { addresses = [\"10.0.0.1\"], interval_ms = 9 }", "10 to 60000"),
            ("probe = { addresses = [\"10.0.0.1\"], idle_ms = 50 }", "interval_ms to"),
            ("probe = { addresses = [\"10.0.0.1\"], lost_after = 0 }", "1 to 15"),
            ("dida = { held = 0 }", "dida.held"),
            ("dida = { min_rto_ms = 0 }", "1 to 10000"),
            ("dida = { held_per_flow = 0 }", "dida.held_per_flow"),
            ("ues = [{ name = \"\", addresses = [\"10.0.0.1\"] }]", "a name"),
            ("ues = [{ name = \"a\", addresses = [] }]", "at least one"),
            ("ues = [{ name = \"a\", addresses = [\"0.0.0.0\"] }]", "one host"),
            ("ues = [{ name = \"a\", addresses = [\"10.0.0.1\", \"10.0.0.2\"] }]", "per family"),
            (
                "ues = [{ name = \"a\", addresses = [\"10.0.0.1\"] }, { name = \"b\", addresses = [\"10.0.0.1\"] }]",
                "no other UE",
            ),
            ("ues = [{ name = \"a\", addresses = [\"10.0.0.1\"], wifi = [\"10.0.0.1\"] }]", "on the bearer"),
            (
                "ues = [{ name = \"a\", addresses = [\"10.0.0.1\"] , wifi = [\"10.0.1.9\"] }, \
                 { name = \"b\", addresses = [\"10.0.0.2\"], wifi = [\"10.0.1.9\"] }]",
                "no other UE's on Wi-Fi",
            ),
            (
                "ues = [{ name = \"a\", addresses = [\"10.0.0.1\"] }, { name = \"a\", addresses = [\"10.0.0.2\"] }]",
                "no other UE",
            ),
        ] {
            let error = toml::from_str::<Config>(text).unwrap().check().unwrap_err().to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
