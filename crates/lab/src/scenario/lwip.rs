//! LWIP nodes in a scenario file, and their conversion to the configuration of `anabranch_lwip`.

use super::schema::table;
use anabranch_lwip::{self as lwip, Config, DidaConfig, ProbeConfig, UeConfig};
use serde::de::DeserializeOwned;
use std::net::IpAddr;

table! {
    /// An LWIP node: it stands beside the cell and splits the TCP packets of its UEs' bearers over LTE and Wi-Fi; `via
    /// = "lwip"` is a flow through it. Its UEs are those with an access on `lte` and one on `wifi`. All traffic over
    /// `lte` passes through the node, which forwards packets outside the bearers unchanged.
    pub struct Lwip {
        /// Link or cell of the LTE leg, which carries all uplink packets.
        lte: String = String::new(), required();
        /// Link of the Wi-Fi leg.
        wifi: String = String::new(), required();
        /// Delivery over the Wi-Fi leg: `translate` (the node replaces the UE's bearer address by its Wi-Fi address,
        /// and the UE restores it) or `tunnel` (packets stay unchanged).
        wifi_leg: String = "translate".into();
        /// Split of TCP: a `mode` and its keys as in docs/lwip.md. Default: `{ mode = "fixed_ratio", lte_percent = 50
        /// }`.
        steering: toml::Table = toml::Table::new();
        /// Leg for UDP: `lte`, `wifi` or `by_flow`.
        other: String = "lte".into();
        /// DIDA, with keys as in docs/lwip.md, such as `{ let_through = 2, hold = { mode = "fixed", ms = 50 } }`.
        /// Without it, ACKs are forwarded without delay.
        dida: Option<toml::Table> = None;
        /// Measurement of the legs, with keys as in docs/lwip.md except `addresses`, such as `{ interval_ms = 100 }`.
        /// By default, the node measures if `steering` requires it.
        probe: Option<toml::Table> = None;
        /// Capacity of the flow table.
        flows: u32 = 65_536, range(1.0, 16_777_216.0);
        /// Time without packets after which a flow is removed, seconds.
        idle_s: u32 = 60, range(1.0, 86_400.0);
        /// Longest time for which the UE waits for missing data while it restores the order of TCP flows below its own
        /// TCP, milliseconds; 0: no reordering. Virtual backend only.
        ue_reorder_ms: f64 = 0.0, range(0.0, 10_000.0);
    }
}

impl Lwip {
    /// As [`Self::config_at`], for a node without an address of its own.
    ///
    /// # Errors
    /// The key that is wrong, and why.
    pub fn config(&self, ues: Vec<UeConfig>) -> Result<Config, String> {
        self.config_at(ues, &[])
    }

    /// The configuration for `anabranch_lwip`, for these UEs; the node measures its legs from the addresses `own`.
    ///
    /// # Errors
    /// The key that is wrong, and why.
    pub fn config_at(&self, ues: Vec<UeConfig>, own: &[IpAddr]) -> Result<Config, String> {
        let tables = Config { ues, flows: self.flows, idle_s: self.idle_s, ..Config::default() };
        let config = Config {
            wifi_leg: word("wifi_leg", &self.wifi_leg)?,
            steering: match self.steering.is_empty() {
                true => lwip::Steering::default(),
                false => keys("steering", &self.steering)?,
            },
            other: word("other", &self.other)?,
            dida: self.held()?,
            probe: self.probe(own)?,
            ..tables
        };
        config.check().map_err(|e| e.to_string())?;
        Ok(config)
    }

    /// The configuration of DIDA, if the node delays ACKs.
    ///
    /// # Errors
    /// As [`Lwip::config`].
    pub fn held(&self) -> Result<Option<DidaConfig>, String> {
        self.dida.as_ref().map(|dida| keys("dida", dida)).transpose()
    }

    fn probe(&self, own: &[IpAddr]) -> Result<Option<ProbeConfig>, String> {
        let fixed = self.steering.get("mode").is_none_or(|mode| mode.as_str() == Some("fixed_ratio"));
        if own.is_empty() || (fixed && self.probe.is_none()) {
            return Ok(None);
        }
        let mut table = self.probe.clone().unwrap_or_default();
        let own = own.iter().map(|address| toml::Value::String(address.to_string())).collect();
        table.insert("addresses".into(), toml::Value::Array(own));
        keys("probe", &table).map(Some)
    }
}

fn word<T: DeserializeOwned>(key: &str, word: &str) -> Result<T, String> {
    toml::Value::String(word.to_owned())
        .try_into()
        .map_err(|e: toml::de::Error| format!("{key}: {}", e.message()))
}

fn keys<T: DeserializeOwned>(key: &str, table: &toml::Table) -> Result<T, String> {
    table.clone().try_into().map_err(|e: toml::de::Error| format!("{key}: {}", e.message()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_read_as_the_core_reads_it() {
        let text = "lte = \"cell\"\nwifi = \"ap\"\nsteering = { mode = \"fixed_ratio\", lte_percent = 20 }\n\
                    dida = { let_through = 1 }";
        let lwip: Lwip = toml::from_str(text).unwrap();
        let config = lwip.config(Vec::new()).unwrap();
        assert_eq!(config.steering, lwip::Steering::FixedRatio { lte_percent: 20.0 });
        assert_eq!(config.dida.unwrap().let_through, 1);
        assert_eq!(Lwip::default().config(Vec::new()).unwrap(), Config::default());
    }

    #[test]
    fn a_wrong_key_is_named() {
        for (text, said) in [
            ("wifi_leg = \"bridge\"", "wifi_leg"),
            ("steering = { mode = \"fixed_ratio\", lte_percent = 101 }", "lte_percent"),
            ("dida = { hold = { mode = \"fixed\", s = 1 } }", "dida"),
        ] {
            let lwip: Lwip = toml::from_str(text).unwrap();
            let error = lwip.config(Vec::new()).unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
