//! Queue disciplines by name, and their parameters as a person writes them.

use super::bdp::Bdp;
use super::codel::{CoDelParams, CoDelQueue};
use super::drql::Drql;
use super::dynrlc::{DynRlc, DynRlcParams};
use super::e5g_bdp::{E5gBdp, E5gBdpParams};
use super::fq_codel::{FqCoDel, FqCoDelParams};
use super::jit::{Jit, JitParams};
use super::l4s::{L4s, L4sParams};
use super::vanilla::Fifo;
use super::{AnyBuffer, AnyLimiter, BearerParams};
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// The disciplines by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Algorithm {
    /// Everything at once into a FIFO.
    Vanilla,
    /// Controlled delay in RLC.
    CoDel,
    /// Flow queueing with controlled delay in RLC.
    FqCoDel,
    /// Limit in SDUs by sojourn.
    DynRlc,
    /// Limit in bytes by what the MAC leaves.
    Drql,
    /// Pace of the last TTI.
    Bdp,
    /// Pace by average bandwidth and packet size.
    E5gBdp,
    /// Dual-queue coupled AQM in RLC.
    L4s,
    /// Filled to the announced grant just before the tick.
    Jit,
}

impl Algorithm {
    /// Every discipline.
    pub const ALL: [Self; 9] = [
        Self::Vanilla,
        Self::CoDel,
        Self::FqCoDel,
        Self::DynRlc,
        Self::Drql,
        Self::Bdp,
        Self::E5gBdp,
        Self::L4s,
        Self::Jit,
    ];

    /// Its name in files and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Vanilla => "vanilla",
            Self::CoDel => "codel",
            Self::FqCoDel => "fq_codel",
            Self::DynRlc => "dynrlc",
            Self::Drql => "drql",
            Self::Bdp => "5g_bdp",
            Self::E5gBdp => "e5g_bdp",
            Self::L4s => "l4s",
            Self::Jit => "jit",
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that is no queue discipline.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no queue discipline \"{name}\"{}; there are: {}", nearest(name), names())]
pub struct UnknownAlgorithm {
    /// The name as written.
    pub name: String,
}

impl FromStr for Algorithm {
    type Err = UnknownAlgorithm;
    fn from_str(name: &str) -> Result<Self, UnknownAlgorithm> {
        Self::ALL
            .into_iter()
            .find(|a| a.name() == name)
            .ok_or_else(|| UnknownAlgorithm { name: name.to_owned() })
    }
}

impl TryFrom<String> for Algorithm {
    type Error = UnknownAlgorithm;
    fn try_from(name: String) -> Result<Self, UnknownAlgorithm> {
        name.parse()
    }
}

impl From<Algorithm> for String {
    fn from(algorithm: Algorithm) -> Self {
        algorithm.name().to_owned()
    }
}

fn names() -> String {
    Algorithm::ALL.map(Algorithm::name).join(", ")
}

fn nearest(name: &str) -> String {
    Algorithm::ALL
        .into_iter()
        .map(|a| (strsim::jaro_winkler(&name.to_lowercase(), a.name()), a))
        .filter(|(likeness, _)| *likeness > 0.7)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map_or_else(String::new, |(_, a)| format!(", did you mean \"{a}\"?"))
}

/// No parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoParams {}

/// A discipline and its parameters, as written: a name, or a table with `algorithm` and some of its
/// parameters. What is left out has the default of the discipline's own file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(remote = "Self", tag = "algorithm")]
pub enum QueueConfig {
    /// See [`super::vanilla`].
    #[serde(rename = "vanilla")]
    Vanilla(NoParams),
    /// See [`super::codel`].
    #[serde(rename = "codel")]
    CoDel(CoDelParams),
    /// See [`super::fq_codel`].
    #[serde(rename = "fq_codel")]
    FqCoDel(FqCoDelParams),
    /// See [`super::dynrlc`].
    #[serde(rename = "dynrlc")]
    DynRlc(DynRlcParams),
    /// See [`super::drql`].
    #[serde(rename = "drql")]
    Drql(NoParams),
    /// See [`super::bdp`].
    #[serde(rename = "5g_bdp")]
    Bdp(NoParams),
    /// See [`super::e5g_bdp`].
    #[serde(rename = "e5g_bdp")]
    E5gBdp(E5gBdpParams),
    /// See [`super::l4s`].
    #[serde(rename = "l4s")]
    L4s(L4sParams),
    /// See [`super::jit`].
    #[serde(rename = "jit")]
    Jit(JitParams),
}

/// A parameter out of its range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("queue {algorithm}: {key} = {value}: must be {remedy}")]
pub struct QueueError {
    /// The discipline.
    pub algorithm: Algorithm,
    /// The key as written.
    pub key: &'static str,
    /// Its value.
    pub value: String,
    /// What would be valid.
    pub remedy: &'static str,
}

impl QueueConfig {
    /// The discipline's name.
    #[must_use]
    pub fn algorithm(&self) -> Algorithm {
        match self {
            Self::Vanilla(_) => Algorithm::Vanilla,
            Self::CoDel(_) => Algorithm::CoDel,
            Self::FqCoDel(_) => Algorithm::FqCoDel,
            Self::DynRlc(_) => Algorithm::DynRlc,
            Self::Drql(_) => Algorithm::Drql,
            Self::Bdp(_) => Algorithm::Bdp,
            Self::E5gBdp(_) => Algorithm::E5gBdp,
            Self::L4s(_) => Algorithm::L4s,
            Self::Jit(_) => Algorithm::Jit,
        }
    }

    /// Whether every parameter is in its range.
    ///
    /// # Errors
    /// The first that is not, with the range.
    pub fn check(&self) -> Result<(), QueueError> {
        let check = |key, value: &dyn fmt::Display, ok: bool, remedy| {
            let error = || QueueError { algorithm: self.algorithm(), key, value: value.to_string(), remedy };
            if ok { Ok(()) } else { Err(error()) }
        };
        let micros = |key, us: u32| check(key, &us, us > 0, "at least 1");
        match self {
            Self::Vanilla(_) | Self::Drql(_) | Self::Bdp(_) => Ok(()),
            Self::CoDel(p) => {
                micros("target_us", p.target_us)?;
                micros("interval_us", p.interval_us)
            }
            Self::FqCoDel(p) => {
                check("flows", &p.flows, (1..=1 << 16).contains(&p.flows), "1 to 65536")?;
                micros("target_us", p.target_us)?;
                micros("interval_us", p.interval_us)
            }
            Self::DynRlc(p) => {
                micros("interval_us", p.interval_us)?;
                check("min_sdus", &p.min_sdus, p.min_sdus >= 1, "at least 1")?;
                check("max_sdus", &p.max_sdus, p.max_sdus >= p.min_sdus, "at least min_sdus")?;
                check("alpha", &p.alpha, (0.0..=1.0).contains(&p.alpha), "0 to 1")
            }
            Self::E5gBdp(p) => {
                check("alpha", &p.alpha, p.alpha > 0.0 && p.alpha <= 1.0, "above 0, up to 1")?;
                let c = p.reduce_const;
                check("reduce_const", &c, (0.0..=1.0).contains(&c), "0 to 1")
            }
            Self::Jit(p) => {
                micros("max_guard_us", p.max_guard_us)?;
                let (min, max) = (p.min_guard_us, p.max_guard_us);
                check("min_guard_us", &min, min <= max, "at most max_guard_us")?;
                let within = (min..=max).contains(&p.guard_us);
                check("guard_us", &p.guard_us, within, "between min_guard_us and max_guard_us")
            }
            Self::L4s(p) => {
                micros("update_us", p.update_us)?;
                let gain = |hz: f64| (0.0..=1e3).contains(&hz);
                check("alpha_hz", &p.alpha_hz, gain(p.alpha_hz), "0 to 1000")?;
                check("beta_hz", &p.beta_hz, gain(p.beta_hz), "0 to 1000")?;
                let wrong = p.low_latency_qfis.iter().find(|qfi| **qfi > 63);
                check("low_latency_qfis", &wrong.unwrap_or(&0), wrong.is_none(), "QFIs of 0 to 63")
            }
        }
    }

    /// The limiter and the buffer of a bearer.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub fn build(&self, bearer: BearerParams) -> Result<(AnyLimiter, AnyBuffer), QueueError> {
        self.check()?;
        let paced = |limiter| (limiter, AnyBuffer::Fifo(Fifo::new(bearer.limit)));
        let open = |buffer| (AnyLimiter::Open, buffer);
        Ok(match self {
            Self::Vanilla(_) => paced(AnyLimiter::Open),
            Self::CoDel(p) => open(AnyBuffer::CoDel(CoDelQueue::new(*p, bearer))),
            Self::FqCoDel(p) => open(AnyBuffer::FqCoDel(Box::new(FqCoDel::new(*p, bearer)))),
            Self::DynRlc(p) => paced(AnyLimiter::DynRlc(DynRlc::new(*p, bearer))),
            Self::Drql(_) => paced(AnyLimiter::Drql(Drql::new(bearer))),
            Self::Bdp(_) => paced(AnyLimiter::Bdp(Bdp::new(bearer))),
            Self::E5gBdp(p) => paced(AnyLimiter::E5gBdp(E5gBdp::new(*p, bearer))),
            Self::Jit(p) => paced(AnyLimiter::Jit(Jit::new(*p, bearer))),
            Self::L4s(p) => open(AnyBuffer::L4s(Box::new(L4s::new(p, bearer)))),
        })
    }
}

impl From<Algorithm> for QueueConfig {
    fn from(algorithm: Algorithm) -> Self {
        match algorithm {
            Algorithm::Vanilla => Self::Vanilla(NoParams {}),
            Algorithm::CoDel => Self::CoDel(CoDelParams::default()),
            Algorithm::FqCoDel => Self::FqCoDel(FqCoDelParams::default()),
            Algorithm::DynRlc => Self::DynRlc(DynRlcParams::default()),
            Algorithm::Drql => Self::Drql(NoParams {}),
            Algorithm::Bdp => Self::Bdp(NoParams {}),
            Algorithm::E5gBdp => Self::E5gBdp(E5gBdpParams::default()),
            Algorithm::L4s => Self::L4s(L4sParams::default()),
            Algorithm::Jit => Self::Jit(JitParams::default()),
        }
    }
}

impl FromStr for QueueConfig {
    type Err = UnknownAlgorithm;
    fn from_str(name: &str) -> Result<Self, UnknownAlgorithm> {
        name.parse::<Algorithm>().map(Self::from)
    }
}

impl Serialize for QueueConfig {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Self::serialize(self, serializer)
    }
}

impl<'de> Deserialize<'de> for QueueConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NameOrTable;
        impl<'de> Visitor<'de> for NameOrTable {
            type Value = QueueConfig;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a queue discipline ({}), or a table with `algorithm` and its parameters", names())
            }
            fn visit_str<E: de::Error>(self, name: &str) -> Result<QueueConfig, E> {
                name.parse().map_err(E::custom)
            }
            fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<QueueConfig, M::Error> {
                QueueConfig::deserialize(MapAccessDeserializer::new(map))
            }
        }
        deserializer.deserialize_any(NameOrTable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<QueueConfig, serde_json::Error> {
        serde_json::from_str(text)
    }

    #[test]
    fn a_name_or_a_table() {
        assert_eq!(parse("\"e5g_bdp\"").unwrap(), QueueConfig::from(Algorithm::E5gBdp));
        let codel = parse("{\"algorithm\": \"codel\", \"target_us\": 1000}").unwrap();
        assert_eq!(
            codel,
            QueueConfig::CoDel(CoDelParams { target_us: 1000, interval_us: 100_000, ecn: false })
        );
        for algorithm in Algorithm::ALL {
            let config = QueueConfig::from(algorithm);
            assert_eq!(config.algorithm(), algorithm);
            assert_eq!(parse(&format!("\"{algorithm}\"")).unwrap(), config);
            let written = serde_json::to_string(&config).unwrap();
            assert!(written.contains(algorithm.name()));
            assert_eq!(parse(&written).unwrap(), config);
            config.build(BearerParams::default()).unwrap();
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let why = |text: &str| parse(text).unwrap_err().to_string();
        assert!(why("\"vanila\"").contains("did you mean \"vanilla\"?"));
        assert!(why("3").contains("a queue discipline"));
        assert!(why("{\"algorithm\": \"vanilla\", \"target_us\": 1}").contains("target_us"));
        assert!(why("{\"algorithm\": \"codel\", \"targt_us\": 1}").contains("`targt_us`, expected one of"));
        assert!(why("{\"algorithm\": \"red\"}").contains("expected one of `vanilla`, `codel`"));
        for (config, message) in [
            (
                QueueConfig::E5gBdp(E5gBdpParams { alpha: f64::NAN, ..Default::default() }),
                "queue e5g_bdp: alpha = NaN: must be above 0, up to 1",
            ),
            (
                QueueConfig::DynRlc(DynRlcParams { max_sdus: 0, ..Default::default() }),
                "queue dynrlc: max_sdus = 0: must be at least min_sdus",
            ),
            (
                QueueConfig::FqCoDel(FqCoDelParams { flows: 0, ..Default::default() }),
                "queue fq_codel: flows = 0: must be 1 to 65536",
            ),
            (
                QueueConfig::L4s(L4sParams { low_latency_qfis: vec![5, 64], ..Default::default() }),
                "queue l4s: low_latency_qfis = 64: must be QFIs of 0 to 63",
            ),
        ] {
            assert_eq!(config.build(BearerParams::default()).unwrap_err().to_string(), message);
        }
    }
}
